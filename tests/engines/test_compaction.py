"""Compaction and truncation: summaries as opaque items, and input cut where that is allowed."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Failed, Finished, Progress, Started
from dragoman.core.fold import fold
from dragoman.core.interfaces import ANYONE, Caller, Capabilities
from dragoman.core.item import Compaction, FunctionCall, FunctionCallOutput, Message, Unknown
from dragoman.core.loss import Loss
from dragoman.core.request import FunctionTool, Request
from dragoman.core.response import Response, Usage
from dragoman.engines.compaction import (
    LONGEST,
    OPENING,
    ORDER,
    Compacting,
    Truncating,
    count,
    decode_summary,
    encode_summary,
    estimate,
    expanded,
    summarise,
    threshold,
)
from dragoman.engines.router import Route, Router
from dragoman.engines.script import Script, spoken
from dragoman.wire.losses import header
from tests.engines.stage import heard

TALK = (
    Message("developer", "Be kind."),
    Message("user", "My name is Ada. " * 50),
    Message("assistant", "Hello, Ada."),
    Message("user", "What is my name?"),
)
AT_ONCE = [{"type": "compaction", "compact_threshold": 10}]


class Model(Script):
    """Writes a summary when asked for one, and answers otherwise."""

    def __init__(self, summary: str | Response = "She is Ada.") -> None:
        super().__init__(self.play)
        self.asked: list[Request] = []
        self.summary = summary

    def play(self, request: Request) -> Any:
        self.asked.append(request)
        last = request.items[-1]
        if isinstance(last, Message) and last.text == ORDER:
            return self.summary

        return replace(spoken("Ada."), usage=Usage(input_tokens=1, output_tokens=2))


@given(st.text())
def test_encoded_summary_is_decoded(text) -> None:
    assert decode_summary(encode_summary(text)) == text


@pytest.mark.parametrize("blob", ["", "gAAAA", "dragoman.summary.1.@@@", "dragoman.summary.1.a"])
def test_foreign_summary_is_not_decoded(blob) -> None:
    assert decode_summary(blob) is None


def test_summary_replaces_earlier_items() -> None:
    items = (
        *TALK,
        Compaction(encode_summary("old")),
        Message("user", "a"),
        Compaction(encode_summary("She is Ada.")),
    )
    asked = expanded(Request(model="m", items=(*items, Message("user", "And now?"))))
    assert asked.items == (
        TALK[0],
        Message("user", OPENING + "She is Ada."),
        Message("user", "And now?"),
    )
    theirs = Request(model="m", items=(*TALK, Compaction("gAAAA")))
    assert expanded(theirs) == theirs


@pytest.mark.parametrize(
    ("rules", "limit"),
    [
        (None, None),
        ([], None),
        (AT_ONCE, 10),
        (["x", {"type": "other"}, {"type": "compaction"}], None),
        ([{"type": "compaction", "compact_threshold": True}], None),
        ([{"type": "compaction", "compact_threshold": 0}], None),
    ],
)
def test_threshold_is_read_from_the_request(rules, limit) -> None:
    assert threshold(Request(model="m", context_management=rules)) == limit


async def test_beyond_the_threshold_a_summary_comes_first() -> None:
    model = Model()
    request = Request(model="m", items=TALK, context_management=AT_ONCE)
    events = await heard(Compacting(model), request)
    response = fold(events)
    compaction, answer = response.output
    assert isinstance(compaction, Compaction)
    assert decode_summary(compaction.encrypted) == "She is Ada."
    assert isinstance(answer, Message)
    assert answer.text == "Ada."
    assert response.usage == Usage(input_tokens=1, output_tokens=2)
    order, question = model.asked
    assert order.items[: len(TALK)] == TALK
    assert question.items == (TALK[0], Message("user", OPENING + "She is Ada."), TALK[-1])
    assert question.context_management is None


async def test_losses_of_the_answer_are_kept_after_compaction() -> None:
    told = Loss("seed", "dropped", "the model knows no seeds")

    class Telling(Model):
        def play(self, request: Request) -> Any:
            return replace(super().play(request), losses=(told,), guarantee="enforced")

    model = Telling(replace(spoken("She is Ada."), losses=()))
    request = Request(model="m", items=TALK, context_management=AT_ONCE)
    response = fold(await heard(Compacting(model), request))
    assert response.losses == (told,)
    assert response.guarantee == "enforced"


TRIGGER = Unknown("responses", "compaction_trigger", {})


@pytest.mark.parametrize("rules", [None, AT_ONCE])
async def test_trigger_as_last_item_is_answered_by_a_summary_alone(rules) -> None:
    used = Usage(input_tokens=5, output_tokens=6)
    model = Model(replace(spoken("She is Ada."), usage=used))
    request = Request(model="m", items=(*TALK, TRIGGER), context_management=rules)
    events = await heard(Compacting(model), request)
    response = fold(events)
    (item,) = response.output
    assert isinstance(item, Compaction)
    assert decode_summary(item.encrypted) == "She is Ada."
    assert (response.status, response.usage) == ("completed", used)
    (order,) = model.asked
    assert order.items == (*TALK, Message("user", ORDER))
    # Codex asks again when that is full too: out of the summary, not of what it stands for.
    later = replace(request, items=(item, Message("user", "And?"), TRIGGER))
    await heard(Compacting(model), later)
    summary, question, _ = model.asked[1].items
    assert (summary, question) == (
        Message("user", OPENING + "She is Ada."),
        Message("user", "And?"),
    )


BLOB = Compaction(encode_summary("She is Ada."))
SUMMARY = Message("user", OPENING + "She is Ada.")
CALL = (FunctionCall("c", "f", "{}"), FunctionCallOutput("c", "1"))
HIGH = [{"type": "compaction", "compact_threshold": 100_000}]


@pytest.mark.parametrize(
    ("items", "rules", "asked"),
    [
        (TALK, HIGH, TALK),
        ((TRIGGER, *TALK), None, (TRIGGER, *TALK)),  # a trigger counts as the last item only
        ((BLOB, TALK[-1]), None, (SUMMARY, TALK[-1])),
        ((*TALK, *CALL), AT_ONCE, (TALK[0], SUMMARY, TALK[-1], *CALL)),  # the turn stays whole
        ((Message("assistant", "a word " * 50),), AT_ONCE, (SUMMARY,)),
    ],
)
async def test_items_the_model_is_asked(items, rules, asked) -> None:
    model = Model()
    request = Request(model="m", items=items, context_management=rules)
    assert fold(await heard(Compacting(model), request)).text == "Ada."
    assert len(model.asked) == 1 + (rules is AT_ONCE)
    assert model.asked[-1].items == asked


FAULT = Fault("upstream_error", "It is broken.", "upstream")


@pytest.mark.parametrize("items", [TALK, (*TALK, TRIGGER)], ids=["threshold", "trigger"])
@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ("  ", "no summary"),
        ("é" * (LONGEST // 2 + 1), "more than 1000000 bytes"),
        ((Started("1", 0, "m"), Failed(FAULT)), "broken"),
    ],
)
async def test_without_a_summary_the_answer_fails(summary, words, items) -> None:
    model = Model(summary)
    request = Request(model="m", items=items, context_management=AT_ONCE)
    events = await heard(Compacting(model), request)
    end = events[-1]
    assert words in end.fault.message
    with pytest.raises(FaultError, match=words):
        await summarise(Model(summary), request)


def test_the_latest_summary_alone_is_decoded_and_none_that_is_too_long(monkeypatch) -> None:
    """What a client sent is decoded on the event loop."""
    tried: list[int] = []
    decode = base64.b64decode

    def counted(content: str, *rest: Any, **options: Any) -> bytes:
        tried.append(len(content))
        return decode(content, *rest, **options)

    monkeypatch.setattr(base64, "b64decode", counted)
    good, broken = (Compaction(encode_summary("Ada.") + end) for end in ("", "!"))
    request = Request(model="m", items=(good, *[broken] * 10, Message("user", "hi")))
    assert expanded(request) is request
    assert len(tried) == 1
    request = replace(request, items=(Compaction(encode_summary("a" * 2 * LONGEST)),))
    assert expanded(request) is request
    assert len(tried) == 1


class Picky(Model):
    """Cannot make a prompt of anything."""

    async def count(self, request: Request, caller: Caller = ANYONE) -> int:
        raise FaultError(FAULT)


async def test_failed_count_fails_the_answer() -> None:
    request = Request(model="m", items=TALK, context_management=AT_ONCE)
    assert await heard(Compacting(Picky()), request) == [Failed(FAULT)]
    with pytest.raises(FaultError):
        await Compacting(Picky()).count(request)
    assert await Compacting(Model()).count(request) is None


async def test_tools_stay_in_sight_and_uncalled() -> None:
    model = Model()
    tools = (FunctionTool("f"),)
    summary, usage = await summarise(model, Request(model="m", items=TALK, tools=tools))
    assert (summary, usage) == ("She is Ada.", None)
    assert (model.asked[0].tools, model.asked[0].tool_choice) == (tools, "none")


async def test_progress_is_moved_with_what_it_is_about() -> None:

    class Busy(Model):
        def play(self, request: Request) -> Any:
            take = super().play(request)
            if isinstance(take, str):
                return take
            return (
                Started("1", 0, "m"),
                Progress(None, "alive"),
                Progress(0, "searching"),
                Finished("completed"),
            )

    request = Request(model="m", items=TALK, context_management=AT_ONCE)
    events = [event async for event in Compacting(Busy()).stream(request)]
    moved = [event.index for event in events if isinstance(event, Progress)]
    assert moved == [0, None, 1]


# ---- truncation --------------------------------------------------------------------------

LONG = tuple(Message("user", f"{n} " * 200) for n in range(20))


class Small(Script):
    """A script with a small context that remembers what it was asked."""

    context: int | None = 1000

    def __init__(self) -> None:
        super().__init__(self.play)
        self.asked: list[Request] = []

    def play(self, request: Request) -> str:
        self.asked.append(request)
        return "yes"

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(context=self.context)

    async def count(self, request: Request, caller: Caller = ANYONE) -> int:
        return 42


async def test_truncated_input_is_reported() -> None:
    small = Small()
    request = Request(model="m", items=LONG, truncation="auto", max_output_tokens=100)
    events = await heard(Truncating(small), request)
    (asked,) = small.asked
    assert 0 < len(asked.items) < len(LONG)
    assert asked.items == LONG[-len(asked.items) :]
    (loss,) = events[0].losses
    missing = len(LONG) - len(asked.items)
    assert (loss.field, loss.action) == (f"input({missing})", "dropped")
    assert header((loss,)) == f"dropped: input({missing})"  # the reason is not in it


@pytest.mark.parametrize(
    ("truncation", "context", "items"),
    [
        (None, 1000, LONG),
        ("disabled", 1000, LONG),
        ("auto", None, LONG),
        ("auto", 10_000, LONG[:2]),
    ],
)
async def test_input_is_truncated_only_where_allowed_and_needed(truncation, context, items) -> None:
    small = Small()
    small.context = context
    request = Request(model="m", items=items, truncation=truncation)
    started = (await heard(Truncating(small), request))[0]
    assert small.asked[0].items == items
    assert not started.losses


class Dense(Small):
    """A model with a token for each byte, which counts its prompts."""

    counted = 0

    async def count(self, request: Request, caller: Caller = ANYONE) -> int:
        self.counted += 1
        return 4 * estimate(request)


@pytest.mark.parametrize(("items", "count"), [(LONG, 1), (LONG[:4], 1), (LONG[:1], 0), ((), 0)])
async def test_prompt_that_has_more_tokens_than_estimated_is_cut_again(items, count) -> None:
    dense = Dense()
    dense.context = 2000
    request = Request(model="m", items=items, truncation="auto", max_output_tokens=500)
    await heard(Truncating(dense), request)
    (asked,) = dense.asked
    assert await Dense().count(asked) <= 1500
    assert asked.items == items[len(items) - len(asked.items) :]
    assert (bool(asked.items), dense.counted) == (bool(items), count)


async def test_last_turn_that_is_too_long_is_counted_once() -> None:
    dense = Dense()
    last = Message("user", "long " * 1000)
    await heard(Truncating(dense), Request(model="m", items=(*LONG, last), truncation="auto"))
    assert (dense.asked[0].items, dense.counted) == ((last,), 1)


async def test_answer_limit_beyond_the_context_reserves_no_more_than_none() -> None:
    small = Small()
    request = Request(model="m", items=LONG[:2], truncation="auto", max_output_tokens=8000)
    started = (await heard(Truncating(small), request))[0]
    assert (small.asked[0].items, started.losses) == (LONG[:2], ())


async def test_counting_is_exact_where_the_engine_can() -> None:
    request = Request(model="m", items=(Message("user", "12345678"),))
    assert await count(Small(), request) == (42, True)
    assert await count(Script("yes"), request) == (6, False)
    router = Router([Route(Small(), models=("m",)), Route(Script("yes"), models=("other",))])
    assert await count(router, request) == (42, True)
    other = Request(model="other", items=request.items)
    assert await count(Truncating(router), other) == (6, False)
