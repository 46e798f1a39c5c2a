"""Summaries: written by the model, carried as opaque items, put back into words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed, Finished, Progress, Started
from dragoman.core.fold import Fold
from dragoman.core.item import Compaction, FunctionCall, FunctionCallOutput, Message, Unknown
from dragoman.core.lifecycle import check
from dragoman.core.loss import Loss
from dragoman.core.request import FunctionTool, Request
from dragoman.core.response import Response, Usage
from dragoman.engines.compaction import (
    OPENING,
    ORDER,
    Compacting,
    decode_summary,
    encode_summary,
    expanded,
    summarise,
    threshold,
)
from dragoman.engines.script import Script, spoken

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


async def heard(engine: Any, request: Request) -> list[Event]:
    return [event async for event in engine.stream(request)]


def folded(events: list[Event]) -> Response:
    fold = Fold()
    for event in events:
        fold.feed(event)
    return fold.response


@given(st.text())
def test_a_blob_of_ours_opens_and_says_what_was_put_in(text: str) -> None:
    assert decode_summary(encode_summary(text)) == text


@pytest.mark.parametrize("blob", ["", "gAAAA", "dragoman.summary.1.@@@", "dragoman.summary.1.a"])
def test_other_blobs_do_not_open(blob: str) -> None:
    assert decode_summary(blob) is None


def test_a_summary_stands_for_what_came_before_it() -> None:
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
def test_the_threshold_is_what_the_request_says(rules: Any, limit: int | None) -> None:
    assert threshold(Request(model="m", context_management=rules)) == limit


async def test_beyond_the_threshold_a_summary_comes_first() -> None:
    model = Model()
    request = Request(model="m", items=TALK, context_management=AT_ONCE)
    events = await heard(Compacting(model), request)
    check(events)
    response = folded(events)
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


async def test_what_the_answer_told_at_its_beginning_is_told_at_its_end() -> None:
    told = Loss("seed", "dropped", "the model knows no seeds")

    class Telling(Model):
        def play(self, request: Request) -> Any:
            return replace(super().play(request), losses=(told,), guarantee="enforced")

    model = Telling(replace(spoken("She is Ada."), losses=()))
    request = Request(model="m", items=TALK, context_management=AT_ONCE)
    response = folded(await heard(Compacting(model), request))
    assert response.losses == (told,)
    assert response.guarantee == "enforced"


async def test_below_the_threshold_nothing_is_changed() -> None:
    model = Model()
    rules = [{"type": "compaction", "compact_threshold": 100_000}]
    events = await heard(
        Compacting(model), Request(model="m", items=TALK, context_management=rules)
    )
    assert [item.text for item in folded(events).output if isinstance(item, Message)] == ["Ada."]
    assert model.asked[0].items == TALK


TRIGGER = Unknown("responses", "compaction_trigger", {})


@pytest.mark.parametrize("rules", [None, AT_ONCE])
async def test_trigger_as_last_item_is_answered_by_a_summary_alone(rules: Any) -> None:
    used = Usage(input_tokens=5, output_tokens=6)
    model = Model(replace(spoken("She is Ada."), usage=used))
    request = Request(model="m", items=(*TALK, TRIGGER), context_management=rules)
    events = await heard(Compacting(model), request)
    check(events)
    response = folded(events)
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


async def test_trigger_whose_summary_fails_fails_the_answer() -> None:
    request = Request(model="m", items=(*TALK, TRIGGER))
    end = (await heard(Compacting(Model("  ")), request))[-1]
    assert isinstance(end, Failed)
    assert "no summary" in end.fault.message


async def test_trigger_before_other_items_is_left_to_the_engine() -> None:
    model = Model()
    request = Request(model="m", items=(TRIGGER, *TALK))
    assert folded(await heard(Compacting(model), request)).text == "Ada."
    assert model.asked[0].items == request.items


async def test_without_a_threshold_the_engine_answers() -> None:
    model = Model()
    blob = Compaction(encode_summary("She is Ada."))
    await heard(Compacting(model), Request(model="m", items=(blob, TALK[-1])))
    assert model.asked[0].items == (Message("user", OPENING + "She is Ada."), TALK[-1])


async def test_a_turn_with_calls_stays_whole() -> None:
    model = Model()
    tail = (FunctionCall("c", "f", "{}"), FunctionCallOutput("c", "1"))
    request = Request(model="m", items=(*TALK, *tail), context_management=AT_ONCE)
    await heard(Compacting(model), request)
    assert model.asked[1].items[-3:] == (TALK[-1], *tail)


async def test_a_conversation_without_words_of_a_user_is_its_summary() -> None:
    model = Model()
    said = (Message("assistant", "a word " * 50),)
    await heard(Compacting(model), Request(model="m", items=said, context_management=AT_ONCE))
    assert model.asked[1].items == (Message("user", OPENING + "She is Ada."),)


FAULT = Fault("upstream_error", "It is broken.", "upstream")


@pytest.mark.parametrize(
    ("summary", "words"),
    [("  ", "no summary"), ((Started("1", 0, "m"), Failed(FAULT)), "broken")],
)
async def test_without_a_summary_the_answer_fails(summary: Any, words: str) -> None:
    model = Model(summary)
    request = Request(model="m", items=TALK, context_management=AT_ONCE)
    events = await heard(Compacting(model), request)
    check(events)
    end = events[-1]
    assert isinstance(end, Failed)
    assert words in end.fault.message
    with pytest.raises(FaultError, match=words):
        await summarise(Model(summary), request)


class Picky(Model):
    """Cannot make a prompt of anything."""

    async def count(self, request: Request) -> int:
        raise FaultError(FAULT)


async def test_what_cannot_be_counted_fails() -> None:
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
    events = await heard(Compacting(Busy()), request)
    moved = [event.index for event in events if isinstance(event, Progress)]
    assert moved == [0, None, 1]
