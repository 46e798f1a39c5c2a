"""Answers that this protocol has no blocks for: they are streamed as they are given whole."""

import json

import pytest

from dragoman.core.fold import unfold
from dragoman.core.item import FunctionCall, Message, Summary, Text, Thought
from dragoman.core.request import Request
from dragoman.wire.messages import MESSAGES
from dragoman.wire.protocol import STANDARD
from tests.answers import answer
from tests.wire.messages.gathering import gathered

ASKED = Request(model="m", stream=True)


@pytest.mark.parametrize(
    "item",
    [
        Message("assistant", (Thought("hm"), Text("Hello"), Summary("hm"))),
        FunctionCall("call_a", "f", '"Oslo"'),
        FunctionCall("call_a", "f", " \n[1, 2]"),
        FunctionCall("call_a", "f", "Oslo"),
        FunctionCall("call_a", "f", " \n{}"),
    ],
)
def test_odd_item_is_streamed_as_it_is_given_whole(item) -> None:
    response = answer(item)
    whole = json.loads(MESSAGES.encode_response(response, ASKED, STANDARD))
    encoder = MESSAGES.encoder(ASKED, STANDARD)
    stream = b"".join(encoder.feed((event,)) for event in unfold(response))
    assert gathered(stream) == whole
