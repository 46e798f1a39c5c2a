"""Encrypted reasoning that a server cannot decrypt: asked once more without, and reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import fold, unfold
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import FunctionCall, Message, Reasoning, Summary
from dragoman.core.loss import Loss
from dragoman.core.request import FunctionTool, Request
from dragoman.engines.reasoning import ASKING, CODE, ENCRYPTED, RETRIED, RetryingReasoning
from dragoman.engines.script import Script, spoken
from tests.engines.receiving import Receiver
from tests.engines.stage import heard

ENCRYPTED_ITEM = Reasoning(summary=(Summary("A clock."),), encrypted="gAAA", id="rs_1")
BLOB = Reasoning(encrypted="gBBB", id="rs_2")
CALL = FunctionCall("call_1", "clock", "{}")
ASK = Message("user", "Go.")
TALK = Request(model="m", items=(ASK, ENCRYPTED_ITEM, BLOB, CALL))
TOOLS = Request(model="m", items=(ASK,), tools=(FunctionTool("clock"),))
CHAT, RESPONSES = Caller(wire="chat"), Caller(wire="responses")

INVALID = Fault(
    "upstream_refused", "It could not be verified.", "client", status=400, upstream_code=CODE
)
UNSUPPORTED = Fault(
    "upstream_refused", "Encrypted content is not supported with this model.", "client", status=400
)
NO_FIELD = replace(UNSUPPORTED, message="Unknown parameter: 'include'.")
NO_FIELD_EITHER = replace(UNSUPPORTED, message='[{"loc": ["body", "include"], "msg": "Extra"}]')
MISSING = Fault("upstream_refused", "Must include a message.", "client", status=400)
SIGNED = Fault("upstream_refused", "Invalid `signature` in `thinking` block", "client", status=400)


class Server(Script):
    """Refuses what it is told to, and says hello to the rest. `before` comes before a refusal."""

    def __init__(self, fault: Fault = INVALID, *before: Event, refused: Any = None) -> None:
        self.asked: list[Request] = []
        self.refused = refused or (lambda request: _has_encrypted(request))
        self.refusal = (*before, Failed(fault))
        super().__init__(self.play)

    def play(self, request: Request) -> Any:
        self.asked.append(request)
        if self.refused(request):
            return self.refusal
        lost = (
            () if ENCRYPTED not in request.include else (Loss(ASKING, "dropped", "no such thing"),)
        )
        started, *rest = unfold(spoken("Hello."))
        return [replace(started, losses=lost), *rest]


def _has_encrypted(request: Request) -> bool:
    return any(isinstance(item, Reasoning) and item.encrypted for item in request.items)


async def ask(engine: Any, request: Request, caller: Caller = ANYONE) -> list[Event]:
    return [event async for event in engine.stream(request, caller)]


@pytest.mark.parametrize("fault", [INVALID, UNSUPPORTED, SIGNED])
async def test_p12_rejected_encrypted_content_is_dropped_on_retry(fault) -> None:
    server = Server(fault)
    answer = fold(await heard(RetryingReasoning(server), TALK))
    assert answer.text == "Hello."
    assert answer.losses == (RETRIED,)
    first, second = server.asked
    assert first is TALK
    assert second.items == (ASK, replace(ENCRYPTED_ITEM, encrypted=None, id=None), CALL)


def about_anything(request: Request) -> bool:
    return True


@pytest.mark.parametrize(
    ("request_", "server", "asks"),
    [
        (TALK, Server(refused=about_anything), 2),
        (TALK, Server(INVALID, *list(unfold(spoken("Hel")))[:4]), 1),  # some output was sent
        (TALK, Server(Fault("upstream_refused", "Too long.", "client", status=400)), 1),
        (TALK, Server(NO_FIELD), 1),
        (TALK, Server(Fault("upstream_error", "encrypted content", "upstream", status=500)), 1),
        (TOOLS, Server(MISSING, refused=about_anything), 1),
        (replace(TALK, items=(ASK,)), Server(refused=about_anything), 1),
    ],
)
async def test_p12_only_a_refusal_of_encrypted_content_is_retried_and_once(
    request_, server, asks
) -> None:
    server.asked.clear()
    answer = fold(await heard(RetryingReasoning(server), request_))
    assert (answer.error, len(server.asked)) == (server.refusal[-1].fault, asks)


async def test_p12_refusal_is_not_retried_where_that_is_disabled() -> None:
    server = Server()
    answer = fold(await heard(RetryingReasoning(server, again=False), TALK))
    assert (answer.error, len(server.asked)) == (INVALID, 1)


STARTED = Started("1", 0, "m")


class Slow(Server):
    """Begins, and refuses a while later: headers are sent after a while, whatever the server
    does."""

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        async for event in super().stream(request, caller):
            yield event
            await asyncio.sleep(0.01)


async def test_p12_begun_stream_continues_with_the_retry() -> None:
    events = await heard(RetryingReasoning(Slow(INVALID, STARTED)), TALK)
    assert [type(event) for event in events].count(Started) == 1
    assert fold(events).text == "Hello."
    assert events[-1].losses == (RETRIED,)


async def test_p12_refusal_with_the_first_event_is_not_sent() -> None:
    first, *_, last = await heard(RetryingReasoning(Server(INVALID, STARTED)), TALK)
    assert first.losses == (RETRIED,)
    assert isinstance(last, Finished)


async def test_pause_and_cancel_reach_the_second_try() -> None:
    sink = Receiver()
    sink.start(RetryingReasoning(Slow(INVALID, STARTED)), TALK)
    await sink.until(lambda: sink.events)
    sink.pause()
    await asyncio.sleep(0.05)
    assert len(sink.events) < 3
    sink.resume()
    await sink.until(lambda: len(sink.events) > 3)
    sink.cancel()
    count = len(sink.events)
    await asyncio.sleep(0.05)
    assert len(sink.events) == count


# ---- asking for what a client of Chat cannot ask for ------------------------------------------


KEPT, PLAIN = replace(RESPONSES, stored=True), replace(TOOLS, tools=())
OWN = replace(TOOLS, include=(ENCRYPTED,))


@pytest.mark.parametrize(
    ("request_", "caller", "added", "losses"),
    [
        (TOOLS, CHAT, True, []),  # a client of Chat cannot ask for it
        (PLAIN, KEPT, True, []),  # the response is stored here
        (TOOLS, RESPONSES, False, []),
        (PLAIN, CHAT, False, []),
        (PLAIN, RESPONSES, False, []),
        (OWN, RESPONSES, False, [ASKING]),
        (OWN, KEPT, False, [ASKING]),
    ],
)
async def test_p9_encrypted_reasoning_is_requested_where_the_client_cannot(
    request_, caller, added, losses
) -> None:
    server = Server()
    answer = fold(await ask(RetryingReasoning(server), request_, caller))
    assert [loss.field for loss in answer.losses] == losses
    (asked,) = server.asked
    assert asked == (replace(request_, include=(ENCRYPTED,)) if added else request_)
    assert added or asked is request_


@pytest.mark.parametrize("fault", [UNSUPPORTED, NO_FIELD, NO_FIELD_EITHER])
@pytest.mark.parametrize("again", [True, False])
async def test_p9_model_without_encryption_is_asked_without_it_from_then_on(again, fault) -> None:
    server = Server(fault, refused=lambda request: ENCRYPTED in request.include)
    engine = RetryingReasoning(server, again=again)
    for _ in range(2):
        answer = fold(await ask(engine, TOOLS, CHAT))
        assert (answer.text, answer.losses) == ("Hello.", ())
    assert [request.include for request in server.asked] == [(ENCRYPTED,), (), ()]
    # Who asks for it by name gets the refusal.
    own = replace(TOOLS, include=(ENCRYPTED,))
    assert fold(await ask(engine, own, RESPONSES)).error == fault
