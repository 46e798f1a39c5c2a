"""The one door for JSON: numbers that are none, and answers without an end."""

from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.event import Failed, Finished, PartAdded
from dragoman.core.item import Audio
from dragoman.core.turn import Turn
from dragoman.wire import body
from dragoman.wire.chat import CHAT
from dragoman.wire.codec import Wire
from dragoman.wire.responses import RESPONSES


@pytest.mark.parametrize(
    ("value", "number"),
    [(7, 7), (2.0, 2), (0, 0), (True, None), ("7", None), (None, None), (float("inf"), None)],
)
def test_a_count_is_a_number_that_can_be_counted_with(value: Any, number: int | None) -> None:
    assert body.whole(value) == number


def test_many_brackets_are_no_depth() -> None:
    wide = "[" + "[]," * body.MAX_DEPTH + "[]]"
    assert body.load(wide) == [[] for _ in range(body.MAX_DEPTH + 1)]
    deep = "[" * (body.MAX_DEPTH + 1) + "]" * (body.MAX_DEPTH + 1)
    with pytest.raises(ValueError, match=f"more than {body.MAX_DEPTH} levels deep"):
        body.load(deep)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert body.Fields({"n": 3.0}).integer("n") == 3
    with pytest.raises(FaultError, match="n: is a number, and must be an integer"):
        body.Fields({"n": 3.5}).integer("n")


def test_a_number_beyond_all_numbers_ends_no_answer() -> None:
    """`1e999` is JSON, and infinity is no count and no time."""
    decoder = RESPONSES.decoder(Turn("1", 0, "m"))
    said = b'"output": [], "completed_at": 1e999, "usage": {"input_tokens": 1e999}'
    event = b'{"type": "response.completed", "response": {%b}}' % said
    *_, end = decoder.feed(b"data: " + event + b"\n\n")
    assert end == Finished("completed")
    decoder = CHAT.decoder(Turn("1", 0, "m"))
    piece = b'{"choices": [{"delta": {"audio": {"id": "a", "expires_at": 1e999}}}]}'
    *_, end = decoder.feed(b"data: " + piece + b"\n\n")
    assert isinstance(end, PartAdded)
    assert end.part == Audio(id="a")


@pytest.mark.parametrize("wire", [CHAT, RESPONSES], ids=lambda wire: wire.name)
def test_an_answer_without_an_end_is_not_kept(wire: Wire) -> None:
    decoder = wire.decoder(Turn("1", 0, "m"))
    piece = b" " * (body.MAX_ANSWER // 4)
    events = decoder.feed(b"{")
    for _ in range(4):
        events += decoder.feed(piece)
    assert decoder.ended
    assert isinstance(events[-1], Failed)
    assert events[-1].fault.code == "upstream_error"
    assert decoder.feed(piece) == decoder.close() == []
