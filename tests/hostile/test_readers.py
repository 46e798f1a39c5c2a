"""Clients that read slowly, or not at all, hold little, and not for long."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.hostile.stage import gateway, watched
from tests.mock import Asked, Reply, chunk, completion, head, plain
from tests.product import Product, configured
from tests.samples import samples

SIZE = 4_000_000
WHOLE = plain(200, completion({"content": "word " * (SIZE // 5)}))
WORDS = b"data: " + json.dumps(chunk({"content": "word " * 400})).encode() + b"\n\n"
STREAM = [head(200, "connection: close"), *([WORDS * 8] * 2_000)]
"""32 MB, more than all that systems buffer."""
BUDGET = 24_000_000
CLIENTS = samples(20, 60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readers")
    settings = f"[server]\nkeep_alive = 2\nstall = 2\nmemory = {BUDGET}\n"
    with gateway(reply, *configured(folder, settings)) as (running, _):
        yield running


def reply(asked: Asked) -> Reply:
    if asked.json["model"] == "one event":
        large = b"data: " + json.dumps(chunk({"content": "a" * (BUDGET * 3 // 5)})).encode()
        return Reply([head(200, "connection: close"), large + b"\n\n"])
    return Reply(STREAM) if asked.json.get("stream") else WHOLE


@contextmanager
def asking(
    server: Product, path: str, body: object, *fields: str, method: str = "POST"
) -> Iterator[socket.socket]:
    """A connection on which this was asked, and that takes few bytes before somebody reads."""
    data = json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: 127.0.0.1:{server.port}",
        "content-type: application/json",
        f"content-length: {len(data)}",
        *fields,
    ]
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall("\r\n".join((*lines, "", "")).encode() + data)
        yield client


def clients_of(server: Product) -> int:
    """How many connections of clients the server has open."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = {f[9] for f in lines if f[1].endswith(f":{server.port:04X}") and f[3] != "0A"}
    found: set[str] = set()
    for file in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found.add(str(file.readlink())[8:-1])
    return len(ours & found)


CHAT = "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES = "/v1/responses", {"model": "m", "input": "hi"}


ROWS = {"2d.07 passed on": (*CHAT, "close"), "2d.07 stored": (*RESPONSES, "keep-alive")}


@pytest.mark.parametrize("name", ROWS)
def test_unread_whole_answers_are_released(server, name) -> None:
    path, body, kept = ROWS[name]
    until = time.monotonic() + 30
    with ExitStack() as stack, watched(server) as cost:
        clients = [
            stack.enter_context(asking(server, path, body, f"connection: {kept}"))
            for _ in range(CLIENTS)
        ]
        while clients_of(server) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        while clients_of(server) > 1 and time.monotonic() < until:  # one asks for its health
            time.sleep(0.1)
        assert len(clients) == CLIENTS
        assert clients_of(server) <= 1
    assert cost.grown < 20 * CLIENTS  # while they are made, and stored
    answer = server.request("POST", path, json.dumps(body).encode())
    assert (answer.status, len(answer.body) > SIZE) == (200, True)


STREAMS = {
    "2d.06, 2f.02a passed on": CHAT,
    "2f.02b not stored": (RESPONSES[0], {**RESPONSES[1], "store": False}),
    "2f.02c stored": RESPONSES,
}


@pytest.mark.parametrize("name", STREAMS)
def test_unread_streams_are_paused_and_released(server, name) -> None:
    path, body = STREAMS[name]
    until = time.monotonic() + 30
    with ExitStack() as stack, watched(server) as cost:
        for _ in range(CLIENTS // 2):
            stack.enter_context(asking(server, path, {**body, "stream": True}))
        while clients_of(server) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        while clients_of(server) > 1 and time.monotonic() < until:
            time.sleep(0.1)
        assert clients_of(server) <= 1
    assert cost.grown < 10 * CLIENTS


def test_what_there_is_no_room_for_is_refused_and_may_be_asked_again(server) -> None:
    path, body = CHAT
    with ExitStack() as stack:
        clients = [stack.enter_context(asking(server, path, body)) for _ in range(20)]
        heads = [client.recv(4096, socket.MSG_WAITALL).decode("latin-1") for client in clients]
    statuses = [head.split(" ", 2)[1] for head in heads]
    assert 0 < statuses.count("200") < 20
    refused = next(head for head in heads if " 503 " in head).lower()
    assert "retry-after: 1" in refused
    assert "(memory)" in refused


def test_a_client_that_takes_its_time_gets_all(server) -> None:
    path, body = CHAT
    size = 0
    with asking(server, path, body, "connection: close") as client:
        time.sleep(0.3)
        while piece := client.recv(65536):
            size += len(piece)
    assert size > SIZE


def replayed(server: Product) -> str:
    """The path of the replay of a stored answer, which is five times as large as that."""
    path, body = RESPONSES
    stored = server.request("POST", path, json.dumps(body).encode()).json["id"]
    return f"{path}/{stored}?stream=true"


def test_replays_that_there_is_no_room_for_are_refused_and_the_others_whole(server) -> None:
    path = replayed(server)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: server.request("GET", path), range(16)))
    refused = [answer for answer in answers if answer.status == 503]
    assert 0 < len(refused) < 16
    for answer in answers:
        if answer in refused:
            assert answer.headers["retry-after"] == "1"
        else:
            assert answer.body.endswith(b"data: [DONE]\n\n")


def test_unread_replays_are_bounded_and_released(server) -> None:
    path, until = replayed(server), time.monotonic() + 30
    whole = server.request("GET", path).body
    assert len(whole) > 5 * SIZE
    assert whole.endswith(b"data: [DONE]\n\n")
    with ExitStack() as stack, watched(server) as cost:
        for _ in range(CLIENTS):
            stack.enter_context(asking(server, path, "", method="GET"))
        while clients_of(server) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        while clients_of(server) > 1 and time.monotonic() < until:
            time.sleep(0.1)
        assert clients_of(server) <= 1
    assert cost.grown < 200 + 4 * CLIENTS  # 20 each would be made, and wait


def test_an_answer_whose_first_piece_has_no_room_still_has_a_head(server) -> None:
    message = {"role": "user", "content": "hi"}
    body = {"model": "one event", "messages": [message], "stream": True}
    answer = server.post("chat", body)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert [each["error"]["code"] for each in answer.data] == ["overloaded"]
