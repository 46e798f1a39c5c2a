"""The oldest versions of the dependencies that are declared, and whether the product works on them.

`python -m tests.floors versions` prints them as requirements; `python -m tests.floors` runs a model
and a gateway in front of it, and asks over HTTP and WebSocket. `make floors` does both, in an
environment of its own: this needs nothing but the standard library.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
READY = re.compile(r"ready at http://127\.0\.0\.1:(\d+)/v1$")
CHAT = {"model": "script", "messages": [{"role": "user", "content": "Hi"}]}
TURN = {"type": "response.create", "model": "script", "input": "Hi"}


def versions() -> list[str]:
    """The floor of each run-time dependency, as a requirement."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [
        re.sub(r"^([\w-]+)>=([\w.]+)[^;]*", r"\1==\2", each) for each in project["dependencies"]
    ]


@contextmanager
def serving(*words: str) -> Iterator[int]:
    """A server in a process of its own; its port."""
    command = [sys.executable, "-W", "error", "-m", "dragoman", "serve", "--port", "0", *words]
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_DATA_HOME": folder}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
            assert process.stdout is not None
            try:
                found = next(filter(None, (READY.search(line.rstrip()) for line in process.stdout)))
                yield int(found[1])
            finally:
                process.terminate()


def asked(port: int, body: object) -> bytes:
    """What a server answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    data = response.read()
    assert response.status == 200, data
    connection.close()
    return data


def turn(port: int) -> bytes:
    """What a server answers over WebSocket, frames and all."""
    key = base64.b64encode(bytes(16)).decode()
    head = (
        f"GET /v1/responses HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: Upgrade\r\n"
        f"upgrade: websocket\r\nsec-websocket-key: {key}\r\nsec-websocket-version: 13\r\n\r\n"
    )
    text = json.dumps(TURN).encode()
    frame = bytes([0x81, 0x80 | len(text)]) + bytes(4) + text  # masked, with zeros
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head.encode())
        data = _until(connection, b"\r\n\r\n")
        connection.sendall(frame)
        return data + _until(connection, b"response.completed")


def _until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        more = connection.recv(1 << 16)
        assert more, data
        data += more
    return data


def main() -> None:
    """Print the floors, or serve on what is installed."""
    if sys.argv[1:] == ["versions"]:
        sys.stdout.write("\n".join(versions()) + "\n")
        return
    with serving("script") as model, serving("--upstream", f"http://127.0.0.1:{model}/v1") as port:
        for each in (model, port):
            assert json.loads(asked(each, CHAT))["choices"][0]["message"]["content"]
            assert asked(each, {**CHAT, "stream": True}).endswith(b"data: [DONE]\n\n")
            assert turn(each).startswith(b"HTTP/1.1 101 ")
    sys.stdout.write("The product works on these versions.\n")


if __name__ == "__main__":
    main()
