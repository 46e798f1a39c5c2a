"""The real upstream of the tests: llama.cpp serving the tiny test model, as a fixture.

A folder that wants it imports the fixture `llamacpp` in its conftest. What the model knows stands
in `training/tiny/transcripts.py`; this module knows the process and its HTTP face only.
"""

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pytest

HERE = Path(__file__).parent
MODEL_FOLDER = HERE / "model"
MODEL_FILE = "tiny.gguf"
SERVER = HERE / "llamacpp_server.py"
SLOTS = 4
SONG = 7_000
"""Tokens that "Sing for ever." exceeds when nobody stops it: it fills the context."""


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer: its status, its headers with lower-case names, its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Return the data of a well-formed event stream, each parsed unless it is `[DONE]`."""
        blocks = self.body.decode().split("\n\n")
        lines = [line for block in blocks for line in block.split("\n")]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [item if item == "[DONE]" else json.loads(item) for item in data]


@dataclass(frozen=True)
class Llamacpp:
    """A running llama.cpp server; `base_url` ends in `/v1`, `model` is the name it answers to."""

    host: str
    port: int
    model: str
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def request(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask for `path` (below the root) and read the whole answer; a body is sent as JSON.

        Bytes are sent as they are. The method is POST when there is a body, else GET.
        """
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        with contextlib.closing(connection):
            sent = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method or ("GET" if body is None else "POST"), path, payload, sent)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, received, response.read())

    def open(self, path: str, body: bytes | None, *, close: bool = False) -> socket.socket:
        """Send a request over a socket of its own and return that, to be read and closed.

        The request is a POST when there is a body, else a GET; with `close` it asks the server to
        close the connection after the answer.
        """
        head = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {self.host}"]
        if body is not None:
            head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if close:
            head.append("Connection: close")
        connection = socket.create_connection((self.host, self.port), timeout=60)
        connection.sendall("\r\n".join([*head, "", ""]).encode() + (body or b""))
        return connection

    def slots(self) -> list[dict[str, Any]]:
        """Return the server's own account of its slots; `is_processing` is true for a busy one."""
        return list(self.request("/slots").json())

    def busy(self) -> int:
        """Count the slots that are generating now."""
        return sum(bool(slot["is_processing"]) for slot in self.slots())

    def predicted(self) -> int:
        """Count the tokens it has ever generated, without those of the slots that are busy."""
        (line,) = re.findall(r"(?m)^llamacpp:tokens_predicted_total (\d+)$", self.metrics())
        return int(line)

    def metrics(self) -> str:
        """Return what it tells of its work, a number on each line."""
        return self.request("/metrics").body.decode()

    def wait_busy(self, count: int, seconds: float) -> None:
        """Wait until exactly `count` slots are busy.

        The server tells of its slots only when asked, hence the polling. Raises TimeoutError.
        """
        started = time.monotonic()
        while (found := self.busy()) != count:
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"{found} slots are busy after {seconds} s, not {count}")
            time.sleep(0.005)


@contextlib.contextmanager
def run_llamacpp(
    *,
    model: str = "tiny-test",
    slots: int = SLOTS,
    api_key: str | None = None,
    file: Path = MODEL_FOLDER / MODEL_FILE,
    exact: bool = False,
) -> Iterator[Llamacpp]:
    """Start a server of its own for a model, the tiny one by default, and end it with the block.

    Its log is shown by the error when it does not start. With `api_key` it wants that key; `exact`
    keeps it from rounding keys and values to half precision.
    """
    command = [sys.executable, str(SERVER), file.name, "--alias", model, "--slots", str(slots)]
    if api_key is not None:
        command += ["--api-key", api_key]
    if exact:
        command.append("--exact")
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            # A relative model path keeps the machine's folders out of what the server tells.
            cwd=file.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with process:
            try:
                host, port = address(process, log)
                yield Llamacpp(host, port, model, process)
            finally:
                stop(process)


def address(process: subprocess.Popen[str], log: TextIO) -> tuple[str, int]:
    """Read the address that the server prints; raise RuntimeError with its log if it does not."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("http://"):
            host, port = line.strip().removeprefix("http://").rsplit(":", 1)
            return host, int(port)
    log.seek(0)
    raise RuntimeError(f"llama.cpp did not start:\n{log.read()}")


def stop(process: subprocess.Popen[str]) -> None:
    """End the server: it leaves when its stdin closes, and is killed if it does not."""
    process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()


@pytest.fixture(scope="session")
def llamacpp() -> Iterator[Llamacpp]:
    """A llama.cpp server with the tiny model, shared by the session."""
    with run_llamacpp() as server:
        yield server
