"""The client against raw servers: requests, answers, content codings, limits."""

import asyncio
import gzip
import traceback
import zlib
from collections.abc import Iterable

import pytest

from dragoman.net.client import Client, Decoder
from dragoman.net.connection import Limits, Timeouts
from dragoman.net.errors import (
    DisconnectedError,
    InvalidUrlError,
    NetTimeoutError,
    RemoteProtocolError,
    TooLargeError,
)
from tests.net.peer import Line, Peer, answering, chunked, plain

pytestmark = pytest.mark.usefixtures("clean")
CANARY = "sk-canary-3f9a"


async def fetch(client: Client, url: str, method: str = "GET", body: bytes | None = None) -> bytes:
    async with client.stream(method, url, body=body) as response:
        assert response.status == 200
        return await response.read()


async def test_a_request_is_written_as_it_must() -> None:
    async with Peer(answering(plain(b"hello"))) as peer, Client() as client:
        headers = (("Content-Type", "application/json"), ("X-Text", "caf\xe9"))
        async with client.stream("POST", peer.url + "v1?a=b", headers, b"{}") as response:
            assert await response.read() == b"hello"
    head, _, body = peer.requests[0].partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.decode("latin-1").split("\r\n") == [
        "POST /v1?a=b HTTP/1.1",
        f"host: 127.0.0.1:{peer.port}",
        "Content-Type: application/json",
        "X-Text: caf\xe9",
        "accept-encoding: identity",
        "user-agent: dragoman",
        "content-length: 2",
    ]


async def test_a_request_without_a_body_has_no_length_and_keeps_the_callers_headers() -> None:
    async with Peer(answering(plain(b""), plain(b""))) as peer, Client() as client:
        own = (("Accept-Encoding", "gzip"), ("User-Agent", "own/1"))
        async with client.stream("GET", peer.url, own):
            pass
        async with client.stream("POST", peer.url, own):
            pass
    get, post = peer.requests
    assert get.split(b"\r\n")[2:] == [b"Accept-Encoding: gzip", b"User-Agent: own/1", b"", b""]
    assert post.endswith(b"\r\ncontent-length: 0\r\n\r\n")


async def test_credentials_of_a_url_become_an_authorization_unless_there_is_one() -> None:
    async with Peer(answering(plain(b""), plain(b""))) as peer, Client() as client:
        url = peer.url.replace("//", "//user:pass@")
        async with client.stream("GET", url):
            pass
        async with client.stream("GET", url, (("Authorization", "Bearer x"),)):
            pass
    assert b"authorization: Basic dXNlcjpwYXNz\r\n" in peer.requests[0]
    assert b"Basic" not in peer.requests[1]


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", (("X", f"{CANARY}\r\nY: z"),)),
        ("GET", (("X", f"{CANARY}\nY: z"),)),
        ("GET", (("X", f"{CANARY}\0"),)),
        ("GET", (("X", f"{CANARY}\u2026"),)),
        ("GET", (("X\r\nY", CANARY),)),
        ("GET", (("X:", CANARY),)),
        ("GET", ((" X", CANARY),)),
        ("GET", (("\xdc", CANARY),)),
        ("GET", (("", CANARY),)),
        ("GET", (("Host", CANARY),)),
        ("GET", (("Content-Length", CANARY),)),
        ("GET", (("transfer-encoding", CANARY),)),
        ("CONNECT", (("X", CANARY),)),
        ("GET / HTTP/1.1\r\n", (("X", CANARY),)),
    ],
)
async def test_header_that_could_break_the_request_is_refused_unquoted(method, headers) -> None:
    async with Client() as client:
        with pytest.raises(ValueError) as caught:
            client.stream(method, "http://127.0.0.1:1/", headers)
    assert CANARY not in "".join(traceback.format_exception(caught.value, chain=True))


async def test_a_bad_url_is_refused() -> None:
    async with Client() as client:
        with pytest.raises(InvalidUrlError):
            client.stream("GET", "file:///etc/passwd")


async def test_headers_and_trailers() -> None:
    answer = chunked(b"hello", trailer="X-Sum: 1\r\n").replace(
        b"200 OK\r\n", b"404 Not There\r\nSet-Cookie: a\r\nset-cookie: b\r\nX: \xe9\r\n"
    )
    async with (
        Peer(answering(answer)) as peer,
        Client() as client,
        client.stream("GET", peer.url) as response,
    ):
        assert response.status == 404
        assert response.header("SET-COOKIE") == "a"
        assert response.header("missing") is None
        assert response.header("x") == "é"
        assert await response.read() == b"hello"
        assert response.header("x-sum") is None  # a trailer is no header


async def test_a_response_is_of_no_use_outside_its_block() -> None:
    async with Peer(answering(plain(b"hello"))) as peer, Client() as client:
        async with client.stream("GET", peer.url) as response:
            pass
        with pytest.raises(RuntimeError, match="outside its `async with`"):
            await response.read()


async def test_head_has_no_body() -> None:
    async with (
        Peer(answering(plain(b"hello")[:-5], close=False)) as peer,
        Client() as client,
        client.stream("HEAD", peer.url) as response,
    ):
        assert await response.read() == b""
        assert response.header("content-length") == "5"


@pytest.mark.parametrize(
    "status", ["301 Moved", "307 Temporary Redirect", "429 Slow Down", "503 No"]
)
async def test_no_status_is_acted_upon(status) -> None:
    answer = plain(b"why", "Location: /other", "Retry-After: 1", status=status)
    async with (
        Peer(answering(answer)) as peer,
        Client() as client,
        client.stream("POST", peer.url, body=b"x") as response,
    ):
        assert response.status == int(status[:3])
        assert await response.read() == b"why"
    assert len(peer.requests) == 1


async def test_a_stream_is_handed_on_as_it_arrives() -> None:
    step = asyncio.Event()

    async def serve(line: Line) -> None:
        await line.request()
        await line.write(chunked(b"")[:-10])
        for n in range(3):
            await line.write(b"6\r\ndata %d\r\n" % n)
            await step.wait()
            step.clear()
        await line.write(b"0\r\n\r\n")

    async with Peer(serve) as peer, Client() as client, client.stream("GET", peer.url) as response:
        seen = []
        async for chunk in response.chunks():
            seen.append(chunk)
            step.set()
    assert seen == [b"data 0", b"data 1", b"data 2"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Encoding: gzip"], gzip.compress(b"hello", mtime=0)),
        (["Content-Encoding: GZIP"], gzip.compress(b"hello", mtime=0)),
        (["Content-Encoding: deflate"], zlib.compress(b"hello")),
        (["Content-Encoding: deflate, gzip"], gzip.compress(zlib.compress(b"hello"), mtime=0)),
        (
            ["Content-Encoding: deflate", "Content-Encoding: gzip"],
            gzip.compress(zlib.compress(b"hello"), mtime=0),
        ),
        (["Content-Encoding: identity"], b"hello"),
        (["Content-Encoding:"], b"hello"),
    ],
)
async def test_content_codings_are_decoded_though_not_requested(headers, body) -> None:
    async with Peer(answering(plain(body, *headers), plain(b"x"))) as peer, Client() as client:
        assert await fetch(client, peer.url) == b"hello"
        assert await fetch(client, peer.url) == b"x"
    assert peer.accepted == 1


async def test_a_transfer_coding_is_undone() -> None:
    coded = gzip.compress(b"hello", mtime=0)
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    async with Peer(answering(answer % (len(coded), coded))) as peer, Client() as client:
        assert await fetch(client, peer.url) == b"hello"


async def test_a_coding_that_is_cut_or_unknown_is_a_protocol_error() -> None:
    cut = plain(gzip.compress(b"hello", mtime=0)[:-1], "Content-Encoding: gzip")
    unknown = plain(b"hello", "Content-Encoding: br")
    async with Peer(answering(cut, unknown)) as peer, Client() as client:
        with pytest.raises(RemoteProtocolError, match="gzip body ends too early"):
            await fetch(client, peer.url)
        with pytest.raises(RemoteProtocolError, match="unknown content coding 'br'"):
            await fetch(client, peer.url)


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"x" * 1001),
        chunked(*[b"x" * 100] * 11),
        plain(gzip.compress(b"\0" * 5_000_000, mtime=0), "Content-Encoding: gzip"),
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
    ],
    ids=["length", "chunked", "bomb", "until the end"],
)
async def test_a_body_over_the_limit_is_refused(answer) -> None:
    async with Peer(answering(answer)) as peer, Client(limits=Limits(body_bytes=1000)) as client:
        with pytest.raises(TooLargeError, match="a body of more than 1000 bytes"):
            await fetch(client, peer.url)


async def test_a_body_over_the_limit_is_not_read_on() -> None:
    async def serve(line: Line) -> None:
        await line.request()
        await line.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await line.write(b"x" * 1000)

    async with Peer(serve) as peer, Client(limits=Limits(body_bytes=1000)) as client:
        with pytest.raises(TooLargeError):
            await fetch(client, peer.url)
        async with asyncio.timeout(5):
            await peer.gone.wait()


async def test_the_limit_can_be_set_for_one_body() -> None:
    async with Peer(answering(plain(b"hello"), plain(b"hello"))) as peer, Client() as client:
        async with client.stream("GET", peer.url) as response:
            assert await response.read(5) == b"hello"
        async with client.stream("GET", peer.url) as response:
            with pytest.raises(TooLargeError):
                await response.read(4)


async def test_a_large_answer_and_a_large_request() -> None:
    body = bytes(range(256)) * 40_000

    async def serve(line: Line) -> None:
        request = await line.request()
        await line.write(plain(request.partition(b"\r\n\r\n")[2]))

    async with Peer(serve) as peer, Client() as client:
        assert await fetch(client, peer.url, "POST", body) == body


async def test_timeouts_name_the_phase() -> None:
    async def silent(line: Line) -> None:
        await line.request()
        await line.wait_closed_by_client()

    async def stuck(line: Line) -> None:
        await line.request()
        await line.write(plain(b"hello")[:-1])
        await line.wait_closed_by_client()

    for serve, phase in ((silent, "first_byte"), (stuck, "idle")):
        timeouts = Timeouts(**{phase: 0.05})
        async with Peer(serve) as peer, Client(timeouts=timeouts) as client:
            with pytest.raises(NetTimeoutError) as caught:
                await fetch(client, peer.url)
            assert caught.value.phase == phase


async def test_time_outs_of_one_request_win() -> None:
    async def silent(line: Line) -> None:
        await line.request()
        await line.wait_closed_by_client()

    async with Peer(silent) as peer, Client() as client:
        with pytest.raises(NetTimeoutError):
            async with client.stream("GET", peer.url, timeouts=Timeouts(first_byte=0.02)):
                pass


async def test_ipv6_address_is_connected_to_and_named_in_brackets() -> None:
    async with Peer(answering(plain(b"hello")), host="::1") as peer, Client() as client:
        assert await fetch(client, peer.url) == b"hello"
    assert f"host: [::1]:{peer.port}".encode() in peer.requests[0]


async def test_no_error_message_contains_a_secret() -> None:
    serves = [
        answering(plain(b"hello")[:-1]),
        answering(b"SSH-2.0\r\n"),
        answering(b""),
        answering(b"HTTP/1.1 200 OK\r\nA: " + CANARY.encode() + b"\r\nB b: c\r\n\r\n"),
        answering(plain(b"x" * 99)),
    ]
    for serve in serves:
        async with Peer(serve) as peer, Client(limits=Limits(body_bytes=9)) as client:
            url = peer.url.replace("//", f"//u:{CANARY}@") + f"?key={CANARY}"
            with pytest.raises((DisconnectedError, RemoteProtocolError, TooLargeError)) as caught:
                async with client.stream("GET", url, (("X-Key", CANARY),)) as response:
                    await response.read()
            printed = "".join(traceback.format_exception(caught.value))
            assert CANARY not in printed + repr(caught.value)


TEXT = b"".join(b"data: token %d\n\n" % n for n in range(2000))


def raw_deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(data) + deflater.flush()


CODED = {
    "gzip": (["gzip"], gzip.compress(TEXT, mtime=0)),
    "x-gzip": (["x-gzip"], gzip.compress(TEXT, mtime=0)),
    "deflate": (["deflate"], zlib.compress(TEXT)),
    "raw deflate": (["deflate"], raw_deflate(TEXT)),
    "two members": (
        ["gzip"],
        gzip.compress(TEXT[:999], mtime=0) + gzip.compress(TEXT[999:], mtime=0),
    ),
    "padded": (["gzip"], gzip.compress(TEXT, mtime=0) + b"\0" * 99),
    "two codings": (["deflate", "gzip"], gzip.compress(zlib.compress(TEXT), mtime=0)),
    "none": ([], TEXT),
}


def decode(codings: list[str], pieces: Iterable[bytes]) -> bytes:
    decoder = Decoder(codings)
    data = b"".join(b"".join(decoder.feed(piece)) for piece in pieces)
    decoder.finish()
    return data


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("size", [1, 2, 7, 1000, 1 << 20])
def test_any_grouping_decodes_to_the_same(name, size) -> None:
    codings, coded = CODED[name]
    pieces = [coded[at : at + size] for at in range(0, len(coded), size)]
    assert decode(codings, pieces) == TEXT


@pytest.mark.parametrize("name", ["gzip", "deflate", "raw deflate", "two codings"])
def test_a_coding_cut_short_is_an_error(name) -> None:
    codings, coded = CODED[name]
    for cut in (1, 2, 20, len(coded) - 1):
        with pytest.raises(RemoteProtocolError, match="ends too early"):
            decode(codings, [coded[:cut]])


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_no_bytes_are_no_broken_coding(coding) -> None:
    assert decode([coding], []) == b""


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bytes_that_are_not_so_coded_are_an_error(coding) -> None:
    with pytest.raises(RemoteProtocolError, match=f"not valid {coding}"):
        decode([coding], [b"\xff\xff\xff hello"])


def test_a_flushed_event_comes_out_at_once() -> None:
    deflater = zlib.compressobj(wbits=31)
    decoder = Decoder(["gzip"])
    for n in range(3):
        event = b"data: %d\n\n" % n
        coded = deflater.compress(event) + deflater.flush(zlib.Z_SYNC_FLUSH)
        assert b"".join(decoder.feed(coded)) == event


ZEROS = gzip.compress(b"\0" * 30_000_000, mtime=0)
BOMBS = {
    "zeros": (["gzip"], ZEROS, "256 times larger"),
    "twice": (["gzip", "gzip"], gzip.compress(ZEROS, mtime=0), "256 times larger"),
    "members": (["gzip"], gzip.compress(b"", mtime=0) * 1001, "more than 1000 gzip members"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_pieces_are_bounded_and_what_becomes_much_of_few_bytes_is_refused(name) -> None:
    codings, bomb, problem = BOMBS[name]
    decoder, size = Decoder(codings), 0
    with pytest.raises(TooLargeError, match=problem):
        piece = decoder.decode(bomb)
        while piece:
            assert len(piece) <= 32 * 1024
            size += len(piece)
            piece = decoder.decode(b"")
    assert size <= 10_000_000


def test_text_that_is_coded_well_is_decoded_in_turns() -> None:
    text = b"".join(b"data: %d\n\n" % n for n in range(100_000))
    decoder = Decoder(["gzip"])
    pieces = [decoder.decode(gzip.compress(text))]
    while pieces[-1]:
        pieces.append(decoder.decode(b""))
    decoder.finish()
    assert b"".join(pieces) == text
    assert len(pieces) > 20


def test_more_than_two_codings_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="more than 2 codings"):
        Decoder(["gzip"] * 3).decode(b"\x1f\x8b")
