"""What a remote engine makes of servers that refuse, break, fall silent or are not there.

The exact end of every kind of broken answer is in the table of `tests/chaos`; here is what the
table cannot say: time-outs, retries, keys, and what is never raised.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import time
import traceback
from typing import Any

import pytest

from dragoman.core import turn
from dragoman.core.error import MAX_ITEMS, TOO_MANY, FaultError
from dragoman.core.event import Failed
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.request import Sampling
from dragoman.engines import upstream
from dragoman.engines.remote import EVENTS, Remote
from dragoman.net.connection import Timeouts
from dragoman.wire import error as wire_error
from tests.engines.asking import BODY, HELLO, HELLO_STREAM, ask, asking, events, fault, remote
from tests.engines.receiving import Receiver
from tests.mock import Asked, Reply, chunk, head, mock, plain, stream

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
async def test_r1_4_fault_names_what_was_wrong(reply, code, words) -> None:
    async with remote(reply) as (engine, _):
        found = await fault(engine)
    assert found.code == code
    assert words in found.message


@pytest.mark.parametrize("name", ["gpus", None])
async def test_r1_4_unreachable_server_is_named_and_its_address_is_not(unused_port, name) -> None:
    engine = Remote(f"http://127.0.0.1:{unused_port}/v1", wire="chat", name=name)
    found = await fault(engine)
    await engine.close()
    assert found.code == "upstream_unreachable"
    called = "the upstream gpus" if name else "the upstream"
    assert f"a connection to {called} failed: Connection refused" in found.message
    assert str(unused_port) not in found.message
    assert wire_error.status(found) == 502


@pytest.fixture
async def unused_port() -> int:
    async with mock(HELLO) as up:
        return up.port


async def test_r1_w12_fault_has_all_fields_of_the_error() -> None:
    error = {
        "message": "that is too hot",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": "too_hot",
        "vendor": 1,
    }
    async with remote(plain(400, {"error": error}, "retry-after: 9")) as (engine, _):
        found = await fault(engine)
    assert (found.status, found.message, found.param) == (400, "that is too hot", "temperature")
    assert (found.upstream_type, found.upstream_code) == ("invalid_request_error", "too_hot")
    assert found.retry_after == "9"
    assert found.blame == "client"
    assert wire_error.error_object(found) == error


# ---- too much ----------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [8, 300], ids=["before the first look", "after it"])
async def test_the_bytes_of_an_answer_are_counted_to_the_last(words) -> None:
    said = [chunk({"content": "word"})] * words
    reply = stream(*said, chunk(finish="stop"))
    whole = sum(map(len, reply.pieces[1:]))
    for limit, broken in ((whole, False), (whole - len(reply.pieces[-1]) - 1, True)):
        async with remote(reply, answer_limit=limit) as (engine, _):
            *_, end = await events(engine, asking(stream=True))
        assert isinstance(end, Failed) is broken
        if broken:
            assert f"more than {limit} bytes (answer_limit)" in end.fault.message


async def test_the_bytes_of_several_choices_are_counted_together() -> None:
    whole = 2 * len(BODY)
    for limit, broken in ((whole, False), (whole - 1, True)):
        async with remote(HELLO, profile="ollama", answer_limit=limit) as (engine, _):
            *_, end = await events(engine, asking(sampling=Sampling(n=2)))
        assert isinstance(end, Failed) is broken


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
async def test_r1_w16_broken_answer_is_a_fault_and_never_raised(
    reply, code, words, streamed
) -> None:
    timeouts = Timeouts(
        first_byte=0.05 if words == "no response headers" else 60,
        idle=0.05 if words == "fell silent" else 60,
    )
    async with remote(reply, timeouts=timeouts) as (engine, _), asyncio.timeout(60):
        found = await fault(engine, asking(stream=streamed))
    assert found.code == code
    assert words in found.message


async def test_slow_answer_does_not_time_out() -> None:
    """Time-outs are for silence: an answer that drips on longer than one is heard whole."""
    pieces = HELLO_STREAM.pieces[:1] + [b": ping\n\n"] * 30 + HELLO_STREAM.pieces[1:]
    drip = Reply(pieces, pause=0.02)
    async with remote(drip, timeouts=Timeouts(idle=0.4)) as (engine, _):
        assert (await ask(engine, asking(stream=True))).text == "Hello"


@pytest.mark.parametrize("tail", ["endless", "silent"])
async def test_refusal_that_does_not_end_is_reported(monkeypatch, tail) -> None:
    monkeypatch.setattr(upstream, "PATIENCE", 0.5)
    monkeypatch.setattr(wire_error, "LONGEST", 1000)
    words = [head(503, "retry-after: 4", type="text/plain"), b"full "]
    more = [b"x" * 500] * 10 if tail == "endless" else []
    async with remote(Reply(words + more, hang=True)) as (engine, up), asyncio.timeout(60):
        found = await fault(engine)
        await up.asked[0].gone
    assert (found.status, found.retry_after) == (503, "4")
    assert "full" in found.message


# ---- retries -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_p25_refusal_is_passed_on_at_once_with_its_retry_after(status) -> None:
    refusal = plain(status, {"error": {"message": "slow down"}}, "retry-after: 30")
    async with remote(refusal) as (engine, up):
        began = time.monotonic()
        found = await fault(engine)
        assert time.monotonic() - began < 5
        assert len(up.asked) == 1
    assert (found.code, found.status, found.retry_after) == ("upstream_refused", status, "30")


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
async def test_p25_refusal_is_retried_where_configured(status, streamed) -> None:
    busy = plain(status, b"busy", "retry-after: 0")
    good = HELLO_STREAM if streamed else HELLO
    async with remote(chained(busy, busy, good), retries=2) as (engine, up):
        assert (await ask(engine, asking(stream=streamed))).text == "Hello"
        assert len(up.asked) == 3
        assert len({asked.body for asked in up.asked}) == 1


async def test_p25_refused_embeddings_are_retried_as_answers_are() -> None:
    vectors = {"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "model": "e"}
    async with remote(chained(LIMIT, LIMIT, plain(200, vectors)), retries=2) as (engine, up):
        assert "data" in await engine.embed({"model": "e", "input": "x"})
        assert len(up.asked) == 3
    for reply, asked in ((LIMIT, 3), (plain(400, b"no"), 1)):
        async with remote(reply, retries=2) as (engine, up):
            with pytest.raises(FaultError):
                await engine.embed({"model": "e", "input": "x"})
            assert len(up.asked) == asked


async def test_p25_retries_are_limited() -> None:
    async with remote(LIMIT, retries=2) as (engine, up):
        found = await fault(engine)
        assert len(up.asked) == 3
    assert (found.status, found.message) == (429, "slow down")


@pytest.mark.parametrize("status", [400, 401, 404, 500, 502])
async def test_p25_other_refusals_are_never_retried(status) -> None:
    async with remote(plain(status, b"no"), retries=5) as (engine, up):
        await fault(engine)
        assert len(up.asked) == 1


async def test_p25_lost_idle_connection_is_retried_once() -> None:
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


async def test_p25_nothing_is_retried_after_the_first_byte() -> None:
    first = Reply([b"HTTP/1.1 200 OK\r\ncontent-"])
    async with remote(chained(first, HELLO), retries=3) as (engine, up):
        assert (await fault(engine)).code == "upstream_cut"
        assert len(up.asked) == 1


async def test_p25_refused_connection_is_retried_once(unused_port: int) -> None:
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
def test_wait_before_a_retry(said, attempt, wait) -> None:
    assert upstream.wait(said, attempt) == wait


# ---- keys ----------------------------------------------------------------------------------

REFUSED = {"error": {"message": f"Incorrect API key provided: {CANARY}.", "code": "bad_key"}}


@pytest.mark.parametrize("profile", ["generic", "anthropic"])
async def test_key_that_a_messages_server_refuses_may_have_another_header(profile) -> None:
    settings = {"key": CANARY, "wire": "messages", "profile": profile}
    async with remote(plain(401, {"error": {"message": "no"}}), **settings) as (engine, _):
        found = await fault(engine)
    hint = "sends it as x-api-key" in found.message
    assert hint == (profile == "generic")


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_configured_key_is_a_server_fault(status) -> None:
    async with remote(plain(status, REFUSED), key=CANARY) as (engine, up):
        found = await fault(engine)
    assert (found.code, found.blame) == ("upstream_authentication", "server")
    assert wire_error.status(found) == 502
    assert str(up.port) not in found.message
    assert "refused the key" in found.message
    assert "canary" not in repr(found)
    assert "profile" not in found.message  # it is sent as all servers of this wire take it
    # A key that is known may still not be allowed this model.
    assert ("Incorrect API key provided: ***" in found.message) == (status == 403)


@pytest.mark.parametrize("status", [401, 403])
async def test_missing_key_is_reported_with_its_option(status) -> None:
    no = plain(status, REFUSED)
    async with remote(no, probed=no) as (engine, _):
        answered = await fault(engine)
        with pytest.raises(FaultError) as listed:
            await engine.models(Caller())
    for found in (answered, listed.value.fault):
        assert found.code == "upstream_authentication"
        assert "none was given" in found.message
        assert "--key-env" in found.message


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_client_key_is_a_client_fault(status) -> None:
    caller = Caller(key=Secret("sk-client"))
    refusal = plain(status, {"error": {"message": "no"}})
    async with remote(refusal, probed=refusal, pass_client_key=True) as (engine, up):
        found = [await fault(engine, caller=caller), await fault(engine)]
        assert up.asked[0].headers["authorization"] == "Bearer sk-client"
        for asks in (caller, Caller()):
            with pytest.raises(FaultError) as listed:
                await engine.models(asks)
            found.append(listed.value.fault)
    assert {each.blame for each in found} == {"client"}
    assert {wire_error.status(each) for each in found} == {status}
    assert "none is in this request" in found[1].message


async def test_client_key_is_sent_only_where_configured() -> None:
    caller = Caller(key=Secret(CANARY))
    for options in ({}, {"key": "ours"}):
        async with remote(HELLO, **options) as (engine, up):
            await ask(engine, caller=caller)
            headers = up.asked[0].headers
        assert CANARY not in repr(headers)
        assert headers.get("authorization") == ("Bearer ours" if options else None)


@pytest.mark.parametrize("passes", [False, True])
async def test_our_key_that_is_refused_is_our_fault(passes) -> None:
    async with remote(plain(401, REFUSED), key="ours", pass_client_key=passes) as (engine, _):
        assert (await fault(engine)).code == "upstream_authentication"


async def test_configured_key_is_the_default_for_clients_without_one() -> None:
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
async def test_p45_a_key_is_in_no_fault_log_or_traceback(reply, caplog, capsys) -> None:
    caplog.set_level(logging.DEBUG)
    caller = Caller(key=Secret(CANARY))
    async with remote(reply, key=CANARY, pass_client_key=True, profile="ollama") as (engine, _):
        for streamed in (True, False):
            heard = await events(engine, asking(stream=streamed), caller)
            assert "canary" not in repr(heard)
        assert "canary" not in repr(engine.__dict__)
    assert "canary" not in caplog.text + "".join(capsys.readouterr())


@pytest.mark.parametrize("key", [f"{CANARY}\nx-evil: 1", f"{CANARY}\u0416", f"{CANARY}\x00"])
async def test_p45_invalid_key_is_refused_and_not_shown(key) -> None:
    with pytest.raises(ValueError, match="key") as caught:
        Remote("http://127.0.0.1:1/v1", key=key)
    assert "canary" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("wire", ["auto", "chat"])
async def test_invalid_client_key_is_a_client_fault(wire) -> None:
    bad, good = Caller(key=Secret(f"{CANARY}\x01")), Caller(key=Secret("sk-client"))
    async with remote(HELLO, wire=wire, pass_client_key=True) as (engine, up):
        found = await fault(engine, caller=bad)
        with pytest.raises(FaultError, match="header") as caught:
            await engine.models(bad)
        assert not up.connections
        assert (await ask(engine, caller=good)).text == "Hello"
    assert (found.code, found.blame) == ("invalid_request", "client")
    assert "canary" not in repr(found) + "".join(traceback.format_exception(caught.value))


# ---- limits --------------------------------------------------------------------------------


async def test_unsupported_field_is_refused_without_a_request() -> None:
    async with remote(HELLO, wire="responses", profile="openai") as (engine, up):
        found = await fault(engine, asking(sampling=Sampling(stop=("END",))))
        assert not up.asked
    assert (found.code, found.param) == ("unsupported", "stop")


async def test_engine_is_usable_after_a_failure() -> None:
    bad = Reply([head(), b"data: {}\n\n"])
    async with remote(chained(bad, plain(500, b""), HELLO_STREAM)) as (engine, _):
        await fault(engine, asking(stream=True))
        await fault(engine, asking(stream=True))
        assert (await ask(engine, asking(stream=True))).text == "Hello"


async def test_event_over_the_limit_is_a_fault(monkeypatch) -> None:
    from dragoman.wire import sse

    monkeypatch.setattr(sse, "MAX_EVENT", 1000)
    long = stream(chunk({"content": "a"}), chunk({"content": "x" * 2000}))
    async with remote(long) as (engine, _):
        found = await fault(engine, asking(stream=True))
    assert found.code == "upstream_error"


@pytest.mark.parametrize("tail", ["\n\n", ""])
async def test_an_item_too_many_leaves_those_before_it_in_one_read(monkeypatch, tail) -> None:
    monkeypatch.setattr(turn, "MAX_ITEMS", 3)
    item = {"type": "message", "role": "assistant", "content": []}
    added = json.dumps({"type": "response.output_item.added", "output_index": 0, "item": item})
    body = "\n\n".join([f"data: {added}"] * 4) + tail
    async with remote(plain(200, body.encode(), type="text/event-stream"), wire="responses") as (
        engine,
        _,
    ):
        found = await events(engine, asking(stream=True))
    assert [type(event).__name__ for event in found] == ["Started", *["ItemAdded"] * 3, "Failed"]
    assert found[-1].fault == TOO_MANY


@pytest.mark.parametrize("more", [0, 1])
async def test_calls_of_a_whole_answer_are_counted(more) -> None:
    function = {"name": "f", "arguments": "{}"}
    calls = [
        {"id": f"c{n}", "type": "function", "function": function} for n in range(MAX_ITEMS + more)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    async with remote(plain(200, {"id": "x", "object": "chat.completion", **body})) as (engine, _):
        found = await events(engine, asking())
    assert getattr(found[-1], "fault", None) == (TOO_MANY if more else None)


@pytest.mark.parametrize(("bytes", "more"), [(40_000, 0), (90_000, 0), (20_000, 1)])
async def test_items_of_a_whole_answer_come_a_few_in_a_turn(bytes, more) -> None:
    """Also of one that is not so long that a thread decodes it."""
    item = {"type": "message", "content": []} if not more else {}
    text = json.dumps(item, separators=(",", ":"))
    output = [item] * (MAX_ITEMS + 1 if more else bytes // len(text))
    body = {"id": "x", "object": "response", "status": "completed", "output": output}
    receiver = Receiver()
    async with remote(plain(200, body), wire="responses") as (engine, _):
        receiver.start(engine, asking())
        await receiver.end()
    assert getattr(receiver.events[-1], "fault", None) == (TOO_MANY if more else None)
    assert max(map(len, receiver.batches)) <= EVENTS


async def test_without_a_file_to_connect_with_the_fault_is_ours(
    monkeypatch,
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    engine = Remote("http://127.0.0.1:9/v1", wire="chat")
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", full, raising=False)
    found = await fault(engine)
    assert (found.code, found.blame, found.retry_after) == ("overloaded", "server", "1")
    await engine.close()
