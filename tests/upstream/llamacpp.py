"""The real upstream of the tests: llama.cpp serving the tiny test model, as a fixture.

A folder that wants it imports the fixture `llamacpp` in its conftest. What the model knows stands
in `training/tiny/transcripts.py`; this module knows the process and its HTTP face only.
"""

import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest

HERE = Path(__file__).parent
MODEL_FOLDER = HERE / "model"
MODEL_FILE = "tiny.gguf"
SERVER = HERE / "llamacpp_server.py"
SLOTS = 4
CONTEXT = 8192
"""Tokens of each slot."""
SONG = 7_000
"""Tokens that "Sing for ever." exceeds when nobody stops it: it fills the context."""


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

    def ask(self, path: str, body: object = None) -> str:
        """The body of its answer at `path` (below the root); a body is sent as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        with contextlib.closing(connection):
            sent = None if body is None else json.dumps(body)
            method, headers = (
                "GET" if body is None else "POST",
                {"Content-Type": "application/json"},
            )
            connection.request(method, path, sent, headers)
            return connection.getresponse().read().decode()

    def busy(self) -> int:
        """Count the slots that are generating now."""
        return sum(bool(slot["is_processing"]) for slot in json.loads(self.ask("/slots")))

    def predicted(self) -> int:
        """Count the tokens it has ever generated, without those of the slots that are busy."""
        (line,) = re.findall(r"(?m)^llamacpp:tokens_predicted_total (\d+)$", self.ask("/metrics"))
        return int(line)

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
    context: int = CONTEXT,
    file: Path = MODEL_FOLDER / MODEL_FILE,
    exact: bool = False,
) -> Iterator[Llamacpp]:
    """Start a server of its own for a model, the tiny one by default, and end it with the block.

    Its log is shown by the error when it does not start. `exact` keeps it from rounding keys and
    values to half precision.
    """
    command = [sys.executable, str(SERVER), file.name, "--alias", model, "--slots", str(slots)]
    command += ["--context", str(context)]
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
