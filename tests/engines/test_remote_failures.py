"""What a remote engine makes of servers that refuse, break, fall silent or are not there.

The exact end of every kind of broken answer is in the table of `tests/chaos`; here is what the
table cannot say: time-outs, retries, keys, and what is never raised.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.event import Failed
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.request import Sampling
from dragoman.engines import upstream
from dragoman.engines.remote import Remote
from dragoman.net.connection import Timeouts
from dragoman.wire import error as wire_error
from tests.engines.asking import HELLO, HELLO_STREAM, ask, asking, events, fault, remote
from tests.mock import Asked, Reply, chunk, completion, head, mock, plain, stream

CANARY = "sk-canary-0123456789"
LIMIT = plain(429, {"error": {"message": "slow down"}}, "retry-after: 0")


def chained(*replies: Reply) -> Any:
    """A handler that gives these one after the other, the last one for ever."""
    left = list(replies)
    return lambda asked: left.pop(0) if len(left) > 1 else left[0]


# ---- what kind of fault --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (plain(418, {"error": {"message": "a teapot"}}), "upstream_refused", "a teapot"),
        (plain(200, b"tea", type="text/plain"), "upstream_error", "tea"),
        (plain(200, b"[1]"), "upstream_error", "an array"),
        (plain(200, {"id": "x"}), "upstream_error", "no choices"),
        (plain(200, {"choices": []}), "upstream_error", "no choices"),
        (plain(200, {"choices": ["x"]}), "upstream_error", "a choice that is a string"),
        (plain(200, {"choices": [{"index": 0}]}), "upstream_error", "without a message"),
    ],
)
async def test_r1_4_a_fault_says_which_of_these_it_was(reply: Reply, code: str, words: str) -> None:
    async with remote(reply) as (engine, _):
        told = await fault(engine)
    assert told.code == code
    assert words in told.message


async def test_r1_4_a_server_that_is_not_there_is_named(unused_port: int) -> None:
    engine = Remote(f"http://127.0.0.1:{unused_port}/v1", wire="chat")
    told = await fault(engine)
    await engine.close()
    assert told.code == "upstream_unreachable"
    assert f"127.0.0.1:{unused_port}" in told.message
    assert wire_error.status(told) == 502


@pytest.fixture
async def unused_port() -> int:
    async with mock(HELLO) as up:
        return up.port


async def test_r1_w12_a_fault_carries_all_the_server_said() -> None:
    error = {
        "message": "that is too hot",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": "too_hot",
        "vendor": 1,
    }
    async with remote(plain(400, {"error": error}, "retry-after: 9")) as (engine, _):
        told = await fault(engine)
    assert (told.status, told.message, told.param) == (400, "that is too hot", "temperature")
    assert (told.upstream_type, told.upstream_code) == ("invalid_request_error", "too_hot")
    assert told.retry_after == "9"
    assert told.blame == "client"
    assert wire_error.error_object(told) == error


# ---- time-outs and bytes -------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (Reply([], hang=True), "upstream_timeout", "no response headers"),
        (Reply([b"HTTP/1.1 200 OK\r\n"], hang=True), "upstream_timeout", "no response headers"),
        (Reply([head()], hang=True), "upstream_timeout", "fell silent"),
        (stream(chunk({"content": "x"}), done=False, hang=True), "upstream_timeout", "fell silent"),
        (Reply([head(200, "content-length: 9"), b"{"]), "upstream_cut", "before the answer was"),
        (Reply([b"\xff\xfe\r\n\r\n"]), "upstream_error", "does not speak HTTP"),
        (Reply([b"220 mail.example ESMTP\r\n"]), "upstream_error", "does not speak HTTP"),
        (plain(200, b'{"choices": "\xff"}'), "upstream_error", "is not UTF-8"),
        (plain(500, b"\xff\xfe"), "upstream_refused", "500"),
    ],
)
async def test_r1_w16_what_breaks_is_a_fault_of_ours_and_never_raised(
    reply: Reply, code: str, words: str, streamed: bool
) -> None:
    timeouts = Timeouts(
        first_byte=0.05 if words == "no response headers" else 60,
        idle=0.05 if words == "fell silent" else 60,
    )
    async with remote(reply, timeouts=timeouts) as (engine, _), asyncio.timeout(60):
        told = await fault(engine, asking(stream=streamed))
    assert told.code == code
    assert words in told.message


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
async def test_a_time_out_after_the_end_is_no_failure(streamed: bool) -> None:
    said = stream(chunk({"content": "x"}), chunk(finish="stop"), done=False)
    at_once = Reply([b"".join(said.pieces)], hang=True)
    timeouts = Timeouts(idle=0.05)
    async with remote(at_once, timeouts=timeouts) as (engine, _), asyncio.timeout(60):
        assert (await ask(engine, asking(stream=streamed))).text == "x"


async def test_slow_is_not_dead() -> None:
    """Time-outs are for silence: an answer that drips on longer than one is heard whole."""
    pieces = HELLO_STREAM.pieces[:1] + [b": ping\n\n"] * 30 + HELLO_STREAM.pieces[1:]
    drip = Reply(pieces, pause=0.02)
    async with remote(drip, timeouts=Timeouts(idle=0.4)) as (engine, _):
        assert (await ask(engine, asking(stream=True))).text == "Hello"


@pytest.mark.parametrize("tail", ["endless", "silent"])
async def test_a_refusal_that_does_not_end_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tail: str
) -> None:
    monkeypatch.setattr(upstream, "PATIENCE", 0.5)
    monkeypatch.setattr(upstream, "LONGEST_REFUSAL", 1000)
    words = [head(503, "retry-after: 4", type="text/plain"), b"full "]
    more = [b"x" * 500] * 10 if tail == "endless" else []
    async with remote(Reply(words + more, hang=True)) as (engine, up), asyncio.timeout(60):
        told = await fault(engine)
        await up.asked[0].gone
    assert (told.status, told.retry_after) == (503, "4")
    assert "full" in told.message


# ---- retries -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
async def test_p25_a_refusal_is_passed_on_at_once_with_its_time(status: int) -> None:
    refusal = plain(status, {"error": {"message": "slow down"}}, "retry-after: 30")
    async with remote(refusal) as (engine, up):
        began = time.monotonic()
        told = await fault(engine)
        assert time.monotonic() - began < 5
        assert len(up.asked) == 1
    assert (told.code, told.status, told.retry_after) == ("upstream_refused", status, "30")


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
async def test_p25_it_is_tried_again_where_that_is_configured(status: int, streamed: bool) -> None:
    busy = plain(status, b"busy", "retry-after: 0")
    good = HELLO_STREAM if streamed else HELLO
    async with remote(chained(busy, busy, good), retries=2) as (engine, up):
        assert (await ask(engine, asking(stream=streamed))).text == "Hello"
        assert len(up.asked) == 3
        assert len({asked.body for asked in up.asked}) == 1


async def test_p25_and_not_more_often() -> None:
    async with remote(LIMIT, retries=2) as (engine, up):
        told = await fault(engine)
        assert len(up.asked) == 3
    assert (told.status, told.message) == (429, "slow down")


@pytest.mark.parametrize("status", [400, 401, 404, 500, 502])
async def test_p25_other_refusals_are_never_tried_again(status: int) -> None:
    async with remote(plain(status, b"no"), retries=5) as (engine, up):
        await fault(engine)
        assert len(up.asked) == 1


async def test_p25_a_lost_idle_connection_is_tried_again_once() -> None:
    stale: set[int] = set()

    def reply(asked: Asked) -> Reply:
        if asked.connection in stale:
            return Reply([])
        stale.add(asked.connection)
        return HELLO

    async with remote(reply) as (engine, up):
        await ask(engine)
        assert (await ask(engine)).text == "Hello"
        assert [asked.connection for asked in up.asked] == [1, 1, 2]
        assert up.asked[1].body == up.asked[2].body


async def test_p25_after_the_first_byte_nothing_is_tried_again() -> None:
    first = Reply([b"HTTP/1.1 200 OK\r\ncontent-"])
    async with remote(chained(first, HELLO), retries=3) as (engine, up):
        assert (await fault(engine)).code == "upstream_cut"
        assert len(up.asked) == 1


async def test_p25_a_server_that_comes_up_in_a_moment_is_found(unused_port: int) -> None:
    engine = Remote(f"http://127.0.0.1:{unused_port}/v1", wire="chat")
    waiting = asyncio.ensure_future(ask(engine))
    await asyncio.sleep(0.02)  # it has been refused once, and waits a tenth of a second
    async with mock(HELLO, port=unused_port) as up:
        assert (await waiting).text == "Hello"
        await engine.close()
        assert len(up.asked) == 1


@pytest.mark.parametrize(
    ("said", "attempt", "wait"),
    [
        ("3", 0, 3.0),
        ("0", 4, 0.0),
        ("-5", 0, 0.5),
        ("86400", 0, upstream.LONGEST_WAIT),
        (None, 0, 0.5),
        (None, 2, 2.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 1, 1.0),
        ("nan", 0, 0.5),
    ],
)
def test_how_long_a_configured_retry_waits(said: str | None, attempt: int, wait: float) -> None:
    assert upstream.wait(said, attempt) == wait


# ---- keys ----------------------------------------------------------------------------------

REFUSED = {"error": {"message": f"Incorrect API key provided: {CANARY}.", "code": "bad_key"}}


@pytest.mark.parametrize("status", [401, 403])
async def test_our_key_refused_is_our_fault_and_says_so(status: int) -> None:
    async with remote(plain(status, REFUSED), key=CANARY) as (engine, up):
        told = await fault(engine)
    assert (told.code, told.blame) == ("upstream_authentication", "server")
    assert wire_error.status(told) == 502
    assert str(up.port) in told.message
    assert "refused the key" in told.message
    assert "canary" not in repr(told)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_a_key_where_none_was_given_is_told_as_that(status: int) -> None:
    no = plain(status, REFUSED)
    async with remote(no, probed=no) as (engine, _):
        answered = await fault(engine)
        with pytest.raises(FaultError) as listed:
            await engine.models(Caller())
    for told in (answered, listed.value.fault):
        assert told.code == "upstream_authentication"
        assert "none was given" in told.message
        assert "--key-env" in told.message


@pytest.mark.parametrize("status", [401, 403])
async def test_the_clients_own_key_refused_is_the_clients(status: int) -> None:
    caller = Caller(key=Secret("sk-client"))
    async with remote(plain(status, {"error": {"message": "no"}}), pass_client_key=True) as (
        engine,
        up,
    ):
        told = await fault(engine, caller=caller)
        assert up.asked[0].headers["authorization"] == "Bearer sk-client"
    assert told.blame == "client"
    assert wire_error.status(told) == status


async def test_a_clients_key_never_travels_unless_that_is_configured() -> None:
    caller = Caller(key=Secret(CANARY))
    for options in ({}, {"key": "ours"}):
        async with remote(HELLO, **options) as (engine, up):
            await ask(engine, caller=caller)
            headers = up.asked[0].headers
        assert CANARY not in repr(headers)
        assert headers.get("authorization") == ("Bearer ours" if options else None)


async def test_without_a_key_of_the_client_ours_is_used() -> None:
    async with remote(HELLO, key="ours", pass_client_key=True) as (engine, up):
        await ask(engine)
        assert up.asked[0].headers["authorization"] == "Bearer ours"


@pytest.mark.parametrize(
    "reply",
    [
        plain(401, REFUSED),
        plain(500, b"<html>oops</html>", type="text/html"),
        plain(200, b"nonsense", type="text/plain"),
        Reply([]),
        Reply([b"SSH-2.0\r\n"]),
        stream(chunk({"content": "x"}), done=False),
    ],
)
async def test_p45_a_key_is_in_no_fault_log_or_traceback(
    reply: Reply, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    caller = Caller(key=Secret(CANARY))
    async with remote(reply, key=CANARY, pass_client_key=True, profile="ollama") as (engine, _):
        for streamed in (True, False):
            heard = await events(engine, asking(stream=streamed), caller)
            assert "canary" not in repr(heard)
        assert "canary" not in repr(engine.__dict__)
    assert "canary" not in caplog.text + "".join(capsys.readouterr())


@pytest.mark.parametrize("key", [f"{CANARY}\nx-evil: 1", f"{CANARY}\u0416", f"{CANARY}\x00"])
async def test_p45_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="key") as caught:
        Remote("http://127.0.0.1:1/v1", key=key)
    assert "canary" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("wire", ["auto", "chat"])
async def test_a_clients_key_that_no_header_can_carry_is_the_clients_mistake(wire: str) -> None:
    bad, good = Caller(key=Secret(f"{CANARY}\x01")), Caller(key=Secret("sk-client"))
    async with remote(HELLO, wire=wire, pass_client_key=True) as (engine, up):
        told = await fault(engine, caller=bad)
        with pytest.raises(FaultError, match="header") as caught:
            await engine.models(bad)
        assert not up.connections
        assert (await ask(engine, caller=good)).text == "Hello"
    assert (told.code, told.blame) == ("invalid_request", "client")
    assert "canary" not in repr(told) + "".join(traceback.format_exception(caught.value))


# ---- several at once -----------------------------------------------------------------------


async def test_one_alternative_that_fails_fails_the_whole_and_frees_the_others() -> None:
    def reply(asked: Asked) -> Reply:
        if asked.json["seed"] == 1:
            return plain(500, {"error": {"message": "boom"}})
        return stream(chunk({"content": "x"}), done=False, hang=True)

    request = asking(stream=True, sampling=Sampling(n=2, seed=0))
    async with remote(reply, profile="ollama") as (engine, up), asyncio.timeout(60):
        *_, last = await events(engine, request)
        for asked in up.asked:
            assert asked.json["seed"] == 1 or await asked.gone
    assert isinstance(last, Failed)
    assert last.fault.message == "boom"


async def test_a_request_that_the_wire_cannot_say_is_refused_before_anyone_is_asked() -> None:
    async with remote(HELLO, wire="responses", profile="openai") as (engine, up):
        told = await fault(engine, asking(sampling=Sampling(stop=("END",))))
        assert not up.asked
    assert (told.code, told.param) == ("unsupported", "stop")


async def test_an_answer_that_fails_leaves_the_engine_usable() -> None:
    bad = Reply([head(), b"data: {}\n\n"])
    async with remote(chained(bad, plain(500, b""), HELLO_STREAM)) as (engine, _):
        await fault(engine, asking(stream=True))
        await fault(engine, asking(stream=True))
        assert (await ask(engine, asking(stream=True))).text == "Hello"


async def test_an_event_beyond_all_bounds_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.wire import sse

    monkeypatch.setattr(sse, "MAX_EVENT", 1000)
    long = stream(chunk({"content": "a"}), chunk({"content": "x" * 2000}))
    async with remote(long) as (engine, _):
        told = await fault(engine, asking(stream=True))
    assert told.code == "upstream_error"


async def test_a_body_beyond_all_bounds_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = plain(200, completion({"content": "x" * 100_000}))
    async with remote(answer) as (engine, _):
        assert len((await ask(engine)).text) == 100_000
