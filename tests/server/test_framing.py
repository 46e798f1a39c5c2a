"""What frames a body, and what stands behind it, is bounded like a head, and says nothing."""

import asyncio

import pytest

from tests.server.stubs import Stub
from tests.server.talk import request
from tests.server.test_own_host import asking, idle

CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    b"content-type: application/json\r\n\r\n"
)
ENDLESS = {
    "headers behind the body": (b"2\r\n{}\r\n0\r\n", b"a: %b\r\n" % (b"x" * 1000)),
    "a header behind the body": (b"2\r\n{}\r\n0\r\na: ", b"x" * 1000),
    "what is said of a chunk": (b"2;a=", b"x" * 1000),
    "nothing but a head": (b"", b""),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_framing_is_bounded_like_headers(what) -> None:
    stub = Stub()
    begin, more = ENDLESS[what]
    head = CHUNKED if more else CHUNKED[:-2] + b"a: " + b"x" * 20_000
    async with asking(stub, head + begin, header_limit=10_000) as (app, talk):
        for _ in range(20 if more else 0):
            talk.send(more)
            await asyncio.sleep(0.001)
        assert " 431 " in (await talk.answer()).status
        await idle(app)
    assert not stub.asked


async def test_a_long_body_in_small_chunks_is_no_head() -> None:
    body = request("chat").partition(b"\r\n\r\n")[2]
    chunks = [b"1;%b\r\n%b\r\n" % (b"x" * 500, body[at : at + 1]) for at in range(len(body))]
    async with asking(Stub(), CHUNKED, header_limit=1_000) as (_, talk):
        for chunk in chunks:
            talk.send(chunk)
            await asyncio.sleep(0)
        talk.send(b"0\r\n\r\n")
        assert " 200 " in (await talk.answer()).status


async def test_trailers_are_no_headers() -> None:
    body = request("chat").partition(b"\r\n\r\n")[2]
    chunk = b"%x\r\n%b\r\n0\r\nx-request-id: mine\r\n\r\n" % (len(body), body)
    async with asking(Stub(), CHUNKED + chunk) as (_, talk):
        answer = await talk.answer()
        assert " 200 " in answer.status
        assert answer.header("x-request-id") != "mine"
