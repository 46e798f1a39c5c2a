"""Answers that pass through: the same bytes, the same care, and only where nothing is to do."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.core.interfaces import Engine
from dragoman.engines.base import Wrapper
from dragoman.engines.chaos import Chaos, Mischief
from dragoman.engines.profiles import BY_NAME, PROFILES
from dragoman.engines.remote import Remote
from dragoman.engines.router import Route, Router
from dragoman.net.connection import Timeouts
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.wire import sse
from tests.mock import Mock, Reply, chunk, completion, head, mock, plain, stream
from tests.server.stubs import Call, asking

DONE = b"data: [DONE]\n\n"
ODD = b'{"id":"chatcmpl-1", "x":1,"object":"chat.completion","choices":[ %b ]}' % (
    b'{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop","y":[]}'
)
"""An answer as no encoder of ours would write it."""
SPOKEN = chunk({"content": "Hi"}, odd=1)
HELLO = stream(SPOKEN, chunk(finish="stop"))


def sent(reply: Reply) -> bytes:
    """The body of a reply whose head is a piece of its own."""
    return b"".join(reply.pieces[1:])


@asynccontextmanager
async def relaying(
    reply: Reply,
    *,
    wrap: Any = lambda engine: engine,
    settings: Settings | None = None,
    **options: Any,
) -> AsyncIterator[tuple[App, Mock]]:
    """A server in front of a mock that is known to speak cleanly."""
    async with mock(reply) as up:
        engine: Engine = Remote(up.base_url, **{"wire": "chat", "profile": "openai"} | options)
        app = App(wrap(engine), settings or Settings())
        try:
            yield app, up
        finally:
            await app.close()


async def asked(app: App, **fields: Any) -> Call:
    return await Call(app, body=asking(**fields))()


# ---- the same bytes ------------------------------------------------------------------------


async def test_a_whole_answer_is_the_upstreams_own_bytes_and_so_is_the_request() -> None:
    async with relaying(plain(200, ODD)) as (app, up):
        body = b'{ "model": "stub", "x_field":1.50, "messages":[{"role":"user","content":"Hi"}]}'
        call = await Call(app, body=body)()
        assert call.status == 200
        assert call.body == ODD
        assert up.asked[0].body == body
        assert "x-dragoman-loss" not in call.headers


async def test_a_stream_is_the_upstreams_own_bytes() -> None:
    async with relaying(HELLO) as (app, _):
        call = await asked(app, stream=True)
        assert call.headers["content-type"] == "text/event-stream"
        assert call.body == sent(HELLO)
        assert call.whole


async def test_a_stream_in_single_bytes_is_the_same_and_no_event_is_torn() -> None:
    body = sent(HELLO)
    pieces = [head(200, "connection: close"), *(body[n : n + 1] for n in range(len(body)))]
    async with relaying(Reply(pieces)) as (app, _):
        call = await asked(app, stream=True)
        assert call.body == body
        assert all(write.endswith(b"\n\n") for write in call.writes if write)


async def test_the_connection_is_used_again() -> None:
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in HELLO.pieces[1:]) + b"0\r\n\r\n"
    reply = Reply([head(200, "transfer-encoding: chunked") + chunked], keep=True)
    async with relaying(reply) as (app, up):
        for _ in range(3):
            await asked(app, stream=True)
        assert up.connections == 1


# ---- ends ----------------------------------------------------------------------------------


async def test_a_stream_that_was_cut_ends_in_our_error() -> None:
    async with relaying(stream(SPOKEN, done=False)) as (app, _):
        call = await asked(app, stream=True)
        *_, last = call.body.strip().split(b"\n\n")
        assert b"upstream_cut" in last
        assert DONE not in call.body


async def test_a_stream_that_does_not_say_that_it_is_done_is_completed() -> None:
    async with relaying(stream(SPOKEN, chunk(finish="stop"), done=False)) as (app, _):
        call = await asked(app, stream=True)
        assert call.body == sent(HELLO)


async def test_an_event_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    async with relaying(Reply([head(), b"data: " + b"x" * 200], hang=True)) as (app, _):
        call = await asked(app, stream=True)
        assert b"larger than 100 bytes" in call.body


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_that_falls_silent_is_not_waited_for(streamed: bool) -> None:
    begun = HELLO.pieces[:2] if streamed else [head(200, "content-length: 99"), b"{"]
    silent = Timeouts(idle=0.05)
    async with relaying(Reply(begun, hang=True), timeouts=silent) as (app, _):
        call = await asked(app, stream=streamed)
        assert b"upstream_timeout" in call.body
        assert call.status == (200 if streamed else 504)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_is_told_as_ever(streamed: bool) -> None:
    busy = plain(429, {"error": {"message": "slow down"}}, "retry-after: 7")
    async with relaying(busy) as (app, _):
        call = await asked(app, stream=streamed)
        assert call.status == 429
        assert call.headers["retry-after"] == "7"


async def test_a_refused_key_of_ours_is_our_mistake_and_is_not_shown() -> None:
    refused = plain(401, {"error": {"message": "bad key sk-secret-123"}})
    async with relaying(refused, key="sk-secret-123") as (app, _):
        call = await asked(app)
        assert call.status == 502
        assert b"sk-secret" not in call.body


async def test_a_server_that_is_not_there_is_told_as_ever() -> None:
    async with relaying(HELLO) as (_, up):
        port = up.port
    app = App(Remote(f"http://127.0.0.1:{port}/v1", wire="chat", profile="openai"), Settings())
    call = await asked(app)
    assert call.status == 502
    assert call.json["error"]["code"] == "upstream_unreachable"
    await app.close()


# ---- what is irregular is heard ------------------------------------------------------------


async def test_an_answer_that_is_no_stream_is_said_as_one() -> None:
    async with relaying(plain(200, completion({"content": "Hello"}))) as (app, _):
        call = await asked(app, stream=True)
        assert b'"content":"Hello"' in call.body
        assert call.body.endswith(DONE)


@pytest.mark.parametrize(
    "reply",
    [
        plain(200, {"error": {"message": "oh"}}),
        plain(200, b"<html>"),
        stream({"error": {"message": "oh"}}),
    ],
)
async def test_what_is_no_answer_is_a_failure(reply: Reply) -> None:
    async with relaying(reply) as (app, _):
        call = await asked(app)
        assert call.status == 502


async def test_a_stream_where_none_was_asked_for_is_said_whole() -> None:
    async with relaying(HELLO) as (app, _):
        call = await asked(app)
        assert call.json["choices"][0]["message"]["content"] == "Hi"


# ---- leaving, waiting, keys ----------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("pieces", [0, 1, 2])
async def test_law_6_a_client_that_goes_takes_the_upstream_with_it(
    streamed: bool, pieces: int
) -> None:
    async with relaying(Reply(HELLO.pieces[:pieces], hang=True)) as (app, up):
        call = Call(app, body=asking(stream=streamed))
        task = asyncio.create_task(call())
        await up.arrived.wait()
        if streamed and pieces == 2:
            await call.until(lambda: len(call.sent) > 1)
        left = time.monotonic()
        call.hang_up()
        await task
        async with asyncio.timeout(60):
            assert await up.asked[0].gone - left < 5.0


async def test_silence_is_filled_between_events() -> None:
    settings = Settings(heartbeat=0.1, header_hold=0.05)
    pieces = [*HELLO.pieces[:2], HELLO.pieces[2][:9]]
    async with relaying(Reply(pieces, hang=True), settings=settings) as (app, _):
        call = Call(app, body=asking(stream=True))
        task = asyncio.create_task(call())
        await call.until(lambda: b": alive" in call.body)
        assert call.body.startswith(HELLO.pieces[1] + b": alive\n\n")
        call.hang_up()
        await task


async def test_the_clients_key_stays_here_and_our_own_marks_travel() -> None:
    async with relaying(plain(200, ODD), key="ours") as (app, up):
        headers = {"authorization": "Bearer theirs", "x-dragoman-hops": "2", "cookie": "a=b"}
        await Call(app, body=asking(), headers=headers)()
        assert up.asked[0].headers["authorization"] == "Bearer ours"
        assert up.asked[0].headers["x-dragoman-hops"] == "3"
        assert "cookie" not in up.asked[0].headers
        assert "theirs" not in str(up.asked[0])


# ---- who may pass --------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}


def renamed(engine: Engine) -> Engine:
    return Router([Route(engine, models=("m",), aliases={"stub": "m"})])


def routed(engine: Engine) -> Engine:
    return Router([Route(engine, models=("stub",))])


class Curious(Wrapper):
    """A wrapper that wants to see what is said."""

    async def stream(self, request: Any, caller: Any = None) -> Any:
        async for event in self.engine.stream(request, caller):
            yield event


@pytest.mark.parametrize(
    ("passes", "fields", "options"),
    [
        (True, {}, {}),
        (True, {"tools": [TOOL], "temperature": 0.5, "x_unknown": {"a": 1}}, {}),
        (True, {"max_completion_tokens": 5}, {}),
        (True, {}, {"profile": "dragoman"}),
        (True, {}, {"wrap": routed}),
        (True, {}, {"wrap": Wrapper}),
        (False, {}, {"settings": Settings(relay=False)}),
        (False, {"max_tokens": 5}, {}),
        (False, {"tools": [TOOL], "tool_choice": ALLOWED}, {}),
        (False, {"store": True}, {}),
        (False, {}, {"profile": "generic"}),
        (False, {}, {"profile": "vllm"}),
        (False, {}, {"profile": "llama.cpp"}),
        (False, {}, {"wire": "responses"}),
        (False, {}, {"wrap": renamed}),
        (False, {}, {"wrap": Curious}),
        (False, {}, {"wrap": lambda engine: Chaos(engine, Mischief())}),
    ],
)
async def test_only_what_nobody_needs_to_see_passes(
    passes: bool, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    async with relaying(plain(200, ODD), **options) as (app, _):
        call = await asked(app, **fields)
        assert (call.body == ODD) is passes


async def test_over_responses_nothing_passes() -> None:
    async with relaying(plain(200, ODD)) as (app, _):
        call = await Call(app, "/v1/responses", asking("responses", store=False))()
        assert call.json["object"] == "response"


def test_only_servers_that_need_no_repair_are_called_clean() -> None:
    for profile in PROFILES:
        if profile.clean:
            assert set(profile.clean) <= set(profile.wires)
            assert profile.markup is None
            assert profile.silent_context is None
            assert profile.choices
            assert not profile.only_streams
    assert not BY_NAME["generic"].clean
