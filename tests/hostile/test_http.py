"""HTTP as RFC 9112 has it: what is ambiguous or of another protocol is refused and the connection
closed; clients of HTTP/1.0 and those that close their own side get answers they can read; pages and
extensions are let in by the origins that are listed, and no others."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from itertools import count

import pytest

from dragoman.core.interfaces import Secret
from dragoman.server.app import App
from dragoman.server.http import AHEAD, LINES, HTTPProtocol
from dragoman.server.settings import Settings
from tests.server.stubs import OPENING, PATHS, Call, Stub, asking, closing, exchange, served, word
from tests.server.test_own_host import connected, until

BODY = json.dumps(asking()).encode()
STREAM = json.dumps(asking(stream=True)).encode()
LENGTH = f"content-length: {len(BODY)}"
JSON = "content-type: application/json"
HERE = "host: localhost"
CHAT = PATHS["chat"]


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join((line, *headers, "", "")).encode() + body


def chat(*headers: str, version: str = "HTTP/1.1", target: str = CHAT) -> bytes:
    return request(f"POST {target} {version}", JSON, LENGTH, *headers, body=BODY)


SOCKET = (
    "upgrade: websocket",
    "connection: upgrade",
    "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
    "sec-websocket-version: 13",
)
PROTOCOL = "sec-websocket-protocol: \u00e9"  # websockets quoted it, and raised
H2C = ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__")
CHUNKED = f"{len(BODY):x}\r\n".encode() + BODY + b"\r\n0\r\n\r\n"
MESSAGES: list[tuple[str, bytes, int]] = [
    ("1.41 two hosts", chat(HERE, HERE), 400),
    ("1.41 own host, then foreign", chat(HERE, "host: evil.example"), 400),
    ("1.41 two hosts on a public path", request("GET /healthz HTTP/1.1", HERE, HERE), 400),
    ("1.42 foreign authority", chat(HERE, target=f"http://evil.example{CHAT}"), 403),
    ("1.42 own authority", chat("host: evil.example", target=f"http://localhost{CHAT}"), 200),
    ("1.42 authority and two hosts", chat(HERE, HERE, target=f"http://localhost{CHAT}"), 400),
    ("1.42 two slashes are a path", chat(HERE, target="//evil.example/v1%2fmodels"), 404),
    ("1.43 no host", chat(), 400),
    ("1.43 no host, absolute", chat(target=f"http://localhost{CHAT}"), 400),
    ("1.43 HTTP/1.0 needs none", chat(version="HTTP/1.0"), 200),
    ("2.02 HTTP/2.0", chat(HERE, version="HTTP/2.0"), 400),
    ("2.02 HTTP/0.9", chat(HERE, version="HTTP/0.9"), 400),
    ("2.02 HTTP/1.2", chat(HERE, version="HTTP/1.2"), 400),
    ("2.02 RTSP", chat(HERE, version="RTSP/1.0"), 400),
    ("2.02 RTSP/1.1", chat(HERE, version="RTSP/1.1"), 400),
    ("2.02 RTSP options", request("OPTIONS /v1/models RTSP/1.0", HERE), 400),
    ("2.02 ICE", request("SOURCE /v1/models ICE/1.0", HERE), 400),
    (
        "2.02 chunks in HTTP/1.0",
        request(f"POST {CHAT} HTTP/1.0", HERE, JSON, "transfer-encoding: chunked", body=CHUNKED),
        400,
    ),
    ("a content type twice", chat(HERE, JSON), 400),
    ("26 a socket by POST", request("POST /v1/responses HTTP/1.1", HERE, *SOCKET), 400),
    ("an upgrade to what is not spoken", chat(HERE, *H2C), 200),
    ("one of a connection that closes", chat(HERE, *H2C, "connection: close"), 200),
    ("one with a large head", chat(HERE, *H2C, f"x: {'y' * 70_000}"), 431),
    ("a tunnel", request("CONNECT localhost:80 HTTP/1.1", HERE), 400),
    ("a tunnel to a path", request("CONNECT /v1/models HTTP/1.1", HERE, *H2C), 405),
    ("a socket of letters", request("GET /v1/responses HTTP/1.1", HERE, *SOCKET, PROTOCOL), 400),
    ("26 a socket of no version", request("GET /v1/responses HTTP/1.1", HERE, *SOCKET[:-1]), 400),
]
HOSTS = ["x, y", "localhost,localhost", "localhost localhost", "a/b", "me@localhost", "x" * 301]


@pytest.mark.parametrize(
    ("message", "status"), [row[1:] for row in MESSAGES], ids=[row[0] for row in MESSAGES]
)
async def test_what_http_forbids_is_refused(message, status) -> None:
    async with served(App(Stub(), Settings())) as port:
        answers = await asyncio.wait_for(exchange(port, message, request("GET / HTTP/1.0")), 20)
        assert answers.split(b" ", 2)[1] == str(status).encode(), answers
        if status == 400:
            assert b'"type":"invalid_request_error"' in answers


async def test_bodies_behind_an_upgrade_that_is_not_spoken_are_read() -> None:
    """RFC 9110, 7.8: the JDK's client asks for one with each request over plain HTTP."""
    chunked = (JSON, HERE, "transfer-encoding: chunked", *H2C)
    messages = [chat(HERE, *H2C), request(f"POST {CHAT} HTTP/1.1", *chunked, body=CHUNKED)]
    messages += [chat(HERE, *H2C), chat(HERE, "connection: close")]
    sent = b"".join(messages)
    async with served(App(Stub(), Settings())) as port:
        for cut in (len(sent), 30, len(messages[0]) - len(BODY), len(messages[0]) - 5):
            answers = await exchange(port, sent[:cut], sent[cut:])
            assert answers.count(b"HTTP/1.1 200 OK") == len(messages), cut


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("keys", [(), (Secret("key-of-a"),)], ids=["no keys", "keys"])
async def test_1_41_a_host_that_is_none_or_two_is_refused(host, keys) -> None:
    headers = {"host": host, "x-api-key": "key-of-a"}
    call = await Call(App(Stub(), Settings(keys=keys)), body=asking(), headers=headers)()
    assert (call.status, call.json["error"]["param"]) == (400, "Host")


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_2_11_http_1_0_gets_no_chunks(body) -> None:
    async with served(App(Stub(), Settings())) as port:
        length = f"content-length: {len(body)}"
        answer = await exchange(port, request(f"POST {CHAT} HTTP/1.0", JSON, length, body=body))
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert b"\r\nconnection: close" in head
        assert rest.startswith(b"data: {" if body == STREAM else b'{"id"')
        assert rest.endswith(b"data: [DONE]\n\n" if body == STREAM else b"}")


async def test_http_1_0_gets_no_100() -> None:
    async with served(App(Stub(), Settings())) as port:
        fields = (JSON, "expect: 100-continue", f"content-length: {len(BODY)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(f"POST {CHAT} HTTP/1.0", *fields))
        await asyncio.sleep(0.05)
        writer.write(BODY)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


# ---- many requests at once -----------------------------------------------------------------------


async def test_13_requests_that_come_together_are_parsed_a_few_at_a_time(monkeypatch) -> None:
    waiting, answer, together = [], HTTPProtocol._answer, 3000

    def look(self: HTTPProtocol) -> None:
        waiting.append(len(self.pipeline))
        answer(self)

    monkeypatch.setattr(HTTPProtocol, "_answer", look)
    quoting = json.dumps(asking(messages=[{"role": "user", "content": " HTTP/1.1" * 999}])).encode()
    length = f"content-length: {len(quoting)}"
    messages = [request(f"GET /{number} HTTP/1.1", HERE) for number in range(together)]
    messages.insert(9, request(f"POST {CHAT} HTTP/1.1", HERE, JSON, length, body=quoting))
    async with served(App(Stub(), Settings())) as port:
        answers = await asyncio.wait_for(
            exchange(port, b"".join(messages), request("GET /end HTTP/1.0")), 60
        )
    found = re.findall(rb"HTTP/1.1 200|nothing at /(\w+)", answers)
    assert found[9] == b""  # the one with a body, in its place
    assert found[:9] + found[10:] == [*(b"%d" % n for n in range(together)), b"end"]
    assert max(waiting) <= AHEAD


async def test_14_requests_behind_an_answer_are_not_read(monkeypatch) -> None:
    kept, received = [], HTTPProtocol.data_received

    def receive(self: HTTPProtocol, data: bytes) -> None:
        received(self, data)
        kept.append((len(self.pipeline), len(self._unparsed)))

    monkeypatch.setattr(HTTPProtocol, "data_received", receive)
    stub = Stub(0.3, *OPENING, word("Hello"), *closing("Hello"))
    many = request("GET / HTTP/1.1", HERE, "x: " + "y" * 9_000)
    async with served(App(stub, Settings())) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(chat(HERE))
        for _ in range(100):  # more than is read at once
            writer.write(many)
        writer.write_eof()
        answers = await asyncio.wait_for(reader.read(), 60)
        writer.close()
    assert answers.count(b"HTTP/1.1 200") == 1
    assert answers.count(b"HTTP/1.1 404") == 100
    assert max(waiting for waiting, _ in kept) <= AHEAD
    assert 0 < max(size for _, size in kept) <= 512 * 1024


@pytest.mark.parametrize("path", [CHAT, "/nowhere"])  # one whose body is read, and not
async def test_many_small_chunks_are_parsed_a_few_at_a_time(monkeypatch, path) -> None:
    parsed, turns, on_body = Counter[int](), count(), HTTPProtocol.on_body

    def look(self: HTTPProtocol, body: bytes) -> None:
        parsed[turn] += 1
        on_body(self, body)

    def next_turn() -> None:
        nonlocal turn
        turn = next(turns)
        asyncio.get_running_loop().call_soon(next_turn)

    turn = next(turns)
    monkeypatch.setattr(HTTPProtocol, "on_body", look)
    body = BODY + b" " * 50_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = request(f"POST {path} HTTP/1.1", HERE, JSON, "transfer-encoding: chunked")
    async with served(App(Stub(*OPENING, *closing("Hello")), Settings())) as port:
        next_turn()
        answers = await asyncio.wait_for(
            exchange(port, head + chunks + head + chunks, request("GET /end HTTP/1.0")), 60
        )
    assert parsed.total() == 2 * len(body)
    assert max(parsed.values()) <= LINES
    assert answers.count(b"HTTP/1.1 200" if path == CHAT else b"nothing at /nowhere") == 2
    assert b"nothing at /end" in answers


@pytest.mark.parametrize("refused", [False, True])
async def test_after_a_large_read_of_what_is_dropped_others_have_their_turn(refused) -> None:
    protocol, link = connected(App(Stub(), Settings()))
    close = "connection: close" if refused else "connection: keep-alive"
    protocol.data_received(
        request("POST /nowhere HTTP/1.1", HERE, JSON, close, f"content-length: {300_000}")
    )
    assert b"HTTP/1.1 404 " in link.written
    for _ in range(2):
        protocol.data_received(b" " * 100_000)
        assert not link.reading  # uvloop would call it up to 32 times
        await asyncio.sleep(0)
        assert link.reading
    protocol.connection_lost(None)


async def test_an_unread_answer_is_no_way_to_a_socket(monkeypatch) -> None:
    app = App(Stub(*OPENING, *closing("x" * 200_000)), Settings())
    protocol, link = connected(app)
    written = link.write

    def write(data: bytes) -> None:
        written(data)
        protocol.pause_writing()

    monkeypatch.setattr(link, "write", write)
    protocol.data_received(chat(HERE))
    await until(link, b"xxx")
    assert app.budget.held > 200_000
    protocol.data_received(request("GET /v1/responses HTTP/1.1", HERE, *SOCKET))
    assert b"HTTP/1.1 400 " in link.written
    protocol.connection_lost(None)
    assert app.budget.held == 0


# ---- one side closed -----------------------------------------------------------------------------


async def half_closed(port: int, *messages: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(messages))
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_2_09_a_client_that_closed_its_side_gets_the_answer(body) -> None:
    stub = Stub(0.2, *OPENING, word("Hello"), *closing("Hello"))
    async with served(App(stub, Settings())) as port:
        length = f"content-length: {len(body)}"
        answer = await half_closed(
            port, request(f"POST {CHAT} HTTP/1.1", HERE, JSON, length, body=body)
        )
        assert b"HTTP/1.1 200 OK" in answer
        assert b"\r\nconnection: close" in answer
        assert b"Hello" in answer


async def test_2_09_all_requests_before_the_end_are_answered() -> None:
    async with served(
        App(Stub(0.1, *OPENING, word("Hello"), *closing("Hello")), Settings())
    ) as port:
        answer = await half_closed(port, chat(HERE), chat(HERE), chat(HERE))
        assert answer.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
async def test_2_09_a_client_that_closed_both_sides_is_gone(version) -> None:
    stub = Stub(60)
    async with served(App(stub, Settings())) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(chat(HERE, version=version))
        await stub.begun.wait()
        writer.close()
        await asyncio.wait_for(stub.cancelled.wait(), 5)


@pytest.mark.parametrize("behind", ["at once", "later"])
async def test_a_client_that_leaves_requests_behind_is_gone(behind) -> None:
    """Nothing is read of it while they wait."""
    stub = Stub(60)
    async with served(App(stub, Settings())) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(chat(HERE) * (2 if behind == "at once" else 1))
        await stub.begun.wait()
        writer.write(chat(HERE))
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.wait_for(stub.cancelled.wait(), 10)


async def test_2_09_a_request_cut_in_its_body_is_not_answered() -> None:
    stub = Stub()
    async with served(App(stub, Settings())) as port:
        assert b" 200 " not in await half_closed(port, chat(HERE)[:-1])
    assert not stub.asked


async def test_2_09_a_refusal_is_the_last_answer_to_a_half_closed_client() -> None:
    async with served(App(Stub(1), Settings())) as port:
        answer = await half_closed(port, chat(HERE), b"GET / HTTP/3.3\r\n\r\n")
        assert b"100 Continue" not in answer
        assert answer.startswith(b"HTTP/1.1 400")


# ---- origins ------------------------------------------------------------------------------------

EXTENSION = "chrome-extension://abcdefghijklmnopabcdefghijklmnop"
UNLISTED = [
    *("http://evil.example", "https://evil.example:8000", "HTTP://EVIL.EXAMPLE", "null", "NULL"),
    *("blob:http://evil.example/x", "ws://evil.example", "ftp://evil.example", "data:text/html,x"),
    *(
        "http://localhost.evil.example",
        "http://evil.example/localhost",
        "http://localhost@evil.example",
    ),
    *("http://evil.example http://localhost", "http://evil.example#localhost", "file://", "x://y"),
    *(EXTENSION, "moz-extension://x", "safari-web-extension://x", "javascript://localhost"),
    *("http://[::1].evil.example", "http://127.0.0.1.evil.example", "http://", "://", "localhost"),
]


@pytest.mark.parametrize("origin", UNLISTED)
async def test_1_44_and_1_45_origins_that_are_not_listed_are_refused(origin) -> None:
    call = await Call(App(Stub(), Settings()), body=asking(), headers={"origin": origin})()
    assert call.status == 403
    assert "access-control-allow-origin" not in call.headers


LISTED = [
    ("https://app.example", "https://app.example", True),
    ("https://app.example", "https://app.example:443", True),
    ("https://App.Example/", "https://app.example", True),
    ("https://app.example", "http://app.example", False),
    ("https://app.example", "https://app.example:444", False),
    ("https://app.example", "https://app.example.evil", False),
    ("https://app.example", "https://notapp.example", False),
    (EXTENSION, EXTENSION, True),
    (EXTENSION, f"{EXTENSION}x", False),
    ("null", "null", True),
]


@pytest.mark.parametrize(("listed", "origin", "invited"), LISTED)
async def test_listed_origins_are_compared_as_origins(listed, origin, invited) -> None:
    app = App(Stub(), Settings(cors_origins=(listed,)))
    call = await Call(app, body=asking(), headers={"origin": origin})()
    assert call.status == (200 if invited else 403)
    assert call.headers.get("access-control-allow-origin") == (origin if invited else None)
