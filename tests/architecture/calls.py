"""Counts our Python calls per request and per paced chunk: `python -m tests.architecture.calls`.

`dragoman serve` runs as a user starts it, with its default store in a temporary folder, on the main
thread under `sys.setprofile`. The client and the model server are plain sockets on other threads,
which are not counted. It knows the command line and the wire, and no module of the package.

A call is a frame that begins or resumes in our source, on the loop or on a thread that the server
started. Comprehensions are left out: from Python 3.12 on they have no frame of their own.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import Any

from websockets.sync.client import connect

from tests.architecture.tree import PACKAGE, ROOT

ROUNDS = 16
"""Identical requests per case after the first ones; the least counts, as timers may add to some."""
WARM_UP = 3
CHUNKS = 30
QUIET = 0.02
"""Seconds without a call after which a request is over for the server too."""
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ASIDE = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})


def measured() -> dict[str, float]:
    """The figures, counted in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.architecture.calls"],
            env={
                **os.environ,
                "XDG_DATA_HOME": folder,
                "PYTHONPATH": os.pathsep.join((str(PACKAGE.parent), str(ROOT))),
                "PYTHONHASHSEED": "0",  # the order of a set decides how far a search goes
            },
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout.strip():
        raise RuntimeError(f"nothing was counted:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


class Counter:
    """The profile function, and the number of calls it has seen."""

    def __init__(self) -> None:
        self.calls = 0
        self._ours: dict[Any, bool] = {}
        self._folder = str(PACKAGE)

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            inside = code.co_filename.startswith(self._folder)
            ours = self._ours[code] = inside and code.co_name not in ASIDE
        self.calls += ours

    def settled(self) -> int:
        """The number of calls, once it no longer grows."""
        before = -1
        while before != self.calls:
            before = self.calls
            time.sleep(QUIET)
        return before

    def least(self, action: Callable[[], object]) -> int:
        """The least calls that any of several identical actions took."""
        for _ in range(WARM_UP):
            action()
        counts = []
        for _ in range(ROUNDS):
            before = self.settled()
            action()
            counts.append(self.settled() - before)
        return min(counts)


# ---- the model server ------------------------------------------------------------------------


class Model(BaseHTTPRequestHandler):
    """Answers Chat Completions: in one write, so that the server has one thing to read, or chunk by
    chunk as `pace` is released."""

    protocol_version = "HTTP/1.1"
    pace: threading.Semaphore | None = None

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "m", "object": "model", "created": 1}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "Hello there!", "refusal": None}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
            self._answer(_chat("chat.completion", choice, usage=usage))
            return
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        head += b"transfer-encoding: chunked\r\n\r\n"
        pieces = [_chunk({"role": "assistant", "content": ""})]
        pieces += [_chunk({"content": f" word{number}"}) for number in range(CHUNKS)]
        pieces += [_chunk({}, "stop"), b"data: [DONE]\n\n"]
        framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        if self.pace is None:
            self.wfile.write(head + b"".join(framed) + b"0\r\n\r\n")
            return
        self.wfile.write(head)
        for piece in (*framed[:-2], b"".join(framed[-2:]) + b"0\r\n\r\n"):
            self.pace.acquire()
            self.wfile.write(piece)

    def _answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        self.wfile.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(data), data))


def _chat(kind: str, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "c", "object": kind, "created": 1, "model": "m", "choices": [choice], **more}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps(_chat("chat.completion.chunk", choice)).encode()


# ---- the client ------------------------------------------------------------------------------


def _tool(number: int) -> dict[str, Any]:
    """A function as coding agents declare them."""
    names = ("path", "pattern", "limit", "recursive")
    properties = {name: {"type": "string", "description": f"The {name}."} for name in names}
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    about = f"Tool {number}: finds what matches in a folder."
    function = {"name": f"tool_{number}", "description": about, "parameters": schema}
    return {"type": "function", "function": function}


def _connected(port: int) -> socket.socket:
    """A connection to the server, once it answers."""
    for _ in range(600):
        try:
            client = socket.create_connection(("127.0.0.1", port), timeout=60)
        except ConnectionError:
            time.sleep(0.05)
        else:
            return client
    raise RuntimeError("the server does not answer")


def _asked(client: socket.socket, path: str, body: object) -> http.client.HTTPResponse:
    """Ask in a single write, so that the server has one thing to read; `http.client` does two."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    response = http.client.HTTPResponse(client)
    response.begin()
    if response.status != 200:
        raise RuntimeError(f"{path} answered {response.status}: {response.read()!r}")
    return response


def _paced(counter: Counter, client: socket.socket) -> int:
    """The calls of one streamed, stored answer from its first word to its last."""
    Model.pace = threading.Semaphore(2)  # the role and the first word
    response = _asked(client, RESPONSES, {"model": "m", "input": "Hi", "stream": True})
    before, words = 0, 0
    while words < CHUNKS:
        line = response.readline()
        if not line:
            raise RuntimeError("the answer ended early")
        if not line.startswith(b'data: {"type":"response.output_text.delta"'):
            continue
        words += 1
        if words == 1:
            before = counter.settled()
        if words < CHUNKS:
            Model.pace.release()
    after = counter.settled()
    Model.pace.release()  # the end
    response.read()
    Model.pace = None
    return after - before


def _turn(socket: Any) -> None:
    """One turn over WebSocket."""
    socket.send(json.dumps({"type": "response.create", "model": "m", "input": "Hi"}))
    kind = ""
    while kind != "response.completed":
        event = json.loads(socket.recv(timeout=60))
        kind = event["type"]
        if kind in ("error", "response.failed"):
            raise RuntimeError(f"the turn failed: {event}")


def _figures(counter: Counter, port: int) -> dict[str, float]:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5}
    tools = {**chat, "tools": [_tool(number) for number in range(10)]}
    rules = {"role": "system", "content": "Read the file\n" * 1_500}
    coding = {**tools, "messages": [rules, *chat["messages"]], "tools": 4 * tools["tools"]}
    stored = {"model": "m", "input": "Hi"}
    client = _connected(port)
    figures: dict[str, float] = {
        "plain": counter.least(lambda: _asked(client, CHAT, chat).read()),
        "ten_tools": counter.least(lambda: _asked(client, CHAT, tools).read()),
        "coding_agent": counter.least(lambda: _asked(client, CHAT, coding).read()),
        "stored": counter.least(lambda: _asked(client, RESPONSES, stored).read()),
    }
    paced = min(_paced(counter, client) for _ in range(WARM_UP + ROUNDS))
    figures["stored_chunk"] = round(paced / (CHUNKS - 1), 1)
    with connect(f"ws://127.0.0.1:{port}{RESPONSES}", max_size=None) as socket:
        figures["websocket_turn"] = counter.least(lambda: _turn(socket))
    return figures


def main() -> None:
    """Serve on this thread, count from another, and print one line of JSON."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    counter = Counter()
    real = sys.stdout
    sys.stdout = sys.stderr

    def drive() -> None:
        try:
            real.write(json.dumps(_figures(counter, port)) + "\n")
            real.flush()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    for work in (upstream.serve_forever, drive):
        threading.Thread(target=work, daemon=True).start()
    threading.setprofile(counter)
    sys.setprofile(counter)
    from dragoman.cli import main as command

    url = f"http://127.0.0.1:{upstream.server_address[1]}/v1"
    command(["serve", "--port", str(port), "--upstream", url, "--wire", "chat"])


if __name__ == "__main__":
    main()
