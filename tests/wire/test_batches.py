"""Events said or added up several at a time are the same events: for any answer, in any batches."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Delta, Event, ItemAdded, PartAdded, Started
from dragoman.core.fold import Fold, unfold
from dragoman.core.item import FunctionCall, Message, Text
from dragoman.core.request import Request, Sampling, StreamOptions
from dragoman.wire import json
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Wire
from dragoman.wire.responses import RESPONSES
from tests.strategies import responses
from tests.wire.chat.strategies import responses as chat_responses

ASKED = Request(
    model="m",
    stream_options=StreamOptions(include_usage=True),
    sampling=Sampling(logprobs=True),
)


FINE = ("text", "refusal", "reasoning", "summary", "arguments", "input")


def finer(events: list[Event]) -> list[Event]:
    """The same with all that is said in pieces of one character, as models speak."""
    fine: list[Event] = []
    for event in events:
        if isinstance(event, Delta) and event.kind in FINE:
            kind, place = event.kind, (event.index, event.part_index)
            pieces = [Delta(*place, kind, c) for c in event.data[1:]]
            first = Delta(*place, kind, event.data[:1], event.tokens)
            fine += [first, *pieces]
        else:
            fine.append(event)
    return fine


def batches(events: list[Event], data: st.DataObject) -> list[list[Event]]:
    cuts = data.draw(st.sets(st.integers(1, max(1, len(events) - 1)), max_size=4))
    bounds = [0, *sorted(cuts), len(events)]
    return [part for a, b in pairwise(bounds) if (part := events[a:b])]


@pytest.mark.parametrize("wire", [CHAT, RESPONSES], ids=["chat", "responses"])
@given(chat_responses(), st.data())
def test_an_encoder_says_the_same_of_many(wire: Wire, answer: Any, data: st.DataObject) -> None:
    events = finer(list(unfold(answer)))
    one_by_one, many = wire.encoder(ASKED, STANDARD), wire.encoder(ASKED, STANDARD)
    said = b"".join(one_by_one.feed([event]) for event in events)
    assert b"".join(map(many.feed, batches(events, data))) == said


@given(responses(), st.data())
def test_a_fold_adds_up_the_same_of_many(answer: Any, data: st.DataObject) -> None:
    events = finer(list(unfold(answer)))
    one_by_one, many = Fold(), Fold()
    for event in events:
        one_by_one.feed(event)
    for batch in batches(events, data):
        many.feed_all(batch)
    assert many.response == one_by_one.response


@pytest.mark.parametrize("texts", [["a"], ["a", "b\n", "é"], ["a", "half \ud83d", "b"]])
def test_many_values_are_each_on_a_line(texts: list[str]) -> None:
    assert json.dump_all(texts) == b"\n".join(map(json.dump, texts))


@pytest.mark.parametrize("wire", [CHAT, RESPONSES], ids=["chat", "responses"])
def test_alternatives_that_speak_in_turn_are_kept_apart(wire: Wire) -> None:
    opened = [
        event
        for n in (0, 1)
        for event in (
            ItemAdded(n, Message("assistant", (), f"msg_{n}", "in_progress"), n),
            PartAdded(n, 0, Text("")),
        )
    ]
    spoken = [Delta(n, 0, "text", text) for n in (0, 1) for text in ("a", "b")]
    events: list[Event] = [Started("1", 0, "m"), *opened, *spoken, *spoken]
    one_by_one, many = wire.encoder(ASKED, STANDARD), wire.encoder(ASKED, STANDARD)
    assert many.feed(events) == b"".join(one_by_one.feed([event]) for event in events)


def test_a_run_of_arguments_is_added_up() -> None:
    fold, call = Fold(), FunctionCall("c", "f", "", id="fc", status="in_progress")
    fold.feed_all([Started("1", 0, "m"), ItemAdded(0, call)])
    fold.feed_all([Delta(0, 0, "arguments", "{"), Delta(0, 0, "arguments", "}")])
    assert fold.response.output == (FunctionCall("c", "f", "{}", id="fc", status="in_progress"),)
