"""The whole product as a user runs it: the command in a process of its own, on a free port.

It knows the command line, the address that is printed and `/healthz`; what is asked of the server
is for the tests to say. Answers are read raw: every write of the server stays to be seen.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dragoman as dragoman_package
from tests.server.stubs import PATHS

START_SECONDS = 60
"""How long a start may take on a machine that does much else."""
STOP_SECONDS = 30
SOURCE = {"PYTHONPATH": str(Path(dragoman_package.__file__).parent.parent)}
"""What a process of its own needs in its environment to run the package that this one runs."""
_READY = re.compile(r"ready at (http://\S+/v1)$")


@dataclass(frozen=True)
class Answer:
    """What came back: the status, the headers in lower case, and the body as it was written.

    `writes` are the chunks of the transfer: one for each time the server wrote to a stream. A
    plain answer has one.
    """

    status: int
    headers: dict[str, str]
    writes: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> list[Any]:
        """The payloads of an event stream, `[DONE]` as that word."""
        lines = self.body.decode().split("\n")
        payloads = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [each if each == "[DONE]" else json.loads(each) for each in payloads]


@dataclass(frozen=True)
class Product:
    """A running server. `base_url` is what its clients are given, and ends in `/v1`."""

    base_url: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(urlsplit(self.base_url).port or 0)

    def post(self, wire: str, body: object) -> Answer:
        """Ask over a wire."""
        return self.request("POST", PATHS[wire], json.dumps(body).encode())

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Ask, and read the answer to its end."""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            "connection: close",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall("\r\n".join((*lines, "", "")).encode() + body)
            response = http.client.HTTPResponse(connection)
            response.begin()
            fields = {name.lower(): value for name, value in response.getheaders()}
            assert response.fp is not None
            chunked = fields.get("transfer-encoding") == "chunked"
            writes = tuple(_chunks(response)) if chunked else (response.read(),)
            response.close()
        return Answer(response.status, fields, writes)


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The chunks of a body as they were framed, which `http.client` itself does not show."""
    reader = response.fp
    while size := int(reader.readline().split(b";")[0], 16):
        chunk = reader.read(size)
        assert reader.read(2) == b"\r\n"
        yield chunk
    assert reader.readline() == b"\r\n"


@contextmanager
def dragoman(*words: str, **environ: str) -> Iterator[Product]:
    """Run `dragoman serve --port 0 WORDS` from when it is ready to the end of the block.

    Raises RuntimeError with what it said if it does not start, and AssertionError at the end if
    it showed a traceback or a warning on the way, or did not stop when told to.
    """
    command = [sys.executable, "-W", "error", "-m", "dragoman", "serve", "--port", "0", *words]
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory() as folder:
        here = {"PATH": os.environ["PATH"], "NO_COLOR": "1", "XDG_DATA_HOME": folder}
        environment = {**here, **SOURCE, **environ}
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        )
        with process:
            try:
                yield Product(_ready(process, log), process)
            finally:
                stopped = _stop(process)
        said = _said(log)
    assert stopped, "it did not stop when told to"
    assert "Traceback" not in said, said
    assert "Warning" not in said, said


def _ready(process: subprocess.Popen[str], log: Any) -> str:
    """Its address, once it answers there."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := _READY.search(line.rstrip()):
            _healthy(found[1])
            return found[1]
    raise RuntimeError(f"Dragoman did not start:\n{_said(log)}")


def _healthy(base_url: str) -> None:
    place = urlsplit(base_url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, START_SECONDS)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()


def _stop(process: subprocess.Popen[str]) -> bool:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return False
    return True


def _said(log: Any) -> str:
    log.seek(0)
    return str(log.read())


def configured(folder: Path, text: str) -> tuple[str, str]:
    """The words that serve with this configuration, which is written into the folder."""
    path = folder / "dragoman.toml"
    path.write_text(text)
    return "--config", str(path)
