"""One alternative of several, as a reader sees it that knows only one."""

from __future__ import annotations

import json

import pytest

from dragoman.core.event import Event
from dragoman.core.fold import fold, unfold
from dragoman.core.item import FunctionCall, Message, Text
from dragoman.core.lifecycle import FirstChoice, check
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.wire.protocol import STANDARD
from dragoman.wire.responses import RESPONSES

ITEMS = (
    Message("assistant", (Text("one"),), id="a", status="completed"),
    Message("assistant", (Text("two"),), id="b", status="completed"),
    FunctionCall("call", "f", "{}", id="c", status="completed"),
    FunctionCall("other", "f", "{}", id="d", status="completed"),
)


def answer(*choices: int) -> Response:
    return Response(
        id="1",
        created_at=1,
        model="m",
        status="completed",
        output=ITEMS[: len(choices)],
        choices=choices,
        reasons=("stop", "length"),
    )


@pytest.mark.parametrize(
    ("choices", "kept"),
    [((0, 1), "a"), ((1, 0), "b"), ((0, 1, 0, 1), "ac"), ((1, 1, 0), "c"), ((1,), "")],
)
def test_first_choice_is_left_in_legal_order(choices: tuple[int, ...], kept: str) -> None:
    first = FirstChoice()
    events = [e for event in unfold(answer(*choices)) if (e := first.feed(event)) is not None]
    check(events)
    response = fold(events)
    assert "".join(item.id or "" for item in response.output) == kept
    assert response.reasons == ("stop",)


def test_items_before_the_filter_keep_their_indices() -> None:
    events: list[Event] = list(unfold(answer(0, 1, 0)))
    begun = [e for e in events if getattr(e, "index", None) in (None, 0)]
    first = FirstChoice(1)
    rest = [e for event in events if event not in begun and (e := first.feed(event)) is not None]
    assert {getattr(event, "index", None) for event in rest} == {1}


@pytest.mark.parametrize("choices", [(0, 1), (1, 0), (0, 1, 0, 1)])
def test_responses_encodes_one_choice_streamed_and_whole(choices: tuple[int, ...]) -> None:
    response, request = answer(*choices), Request(model="m")
    whole = json.loads(RESPONSES.encode_response(response, request, STANDARD))
    encoder = RESPONSES.encoder(request, STANDARD)
    said = b"".join(encoder.feed((event,)) for event in unfold(response))
    data = [line[6:] for line in said.split(b"\n") if line.startswith(b"data: {")]
    assert json.loads(data[-1])["response"] == whole
    assert [item["id"] for item in whole["output"]] == [i.id for i in response.choice(0)]
    indices = {
        value["output_index"] for line in data if "output_index" in (value := json.loads(line))
    }
    assert indices == set(range(len(whole["output"])))
