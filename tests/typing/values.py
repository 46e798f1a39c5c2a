"""What a type checker must see: read by mypy, never run.

Every line here is a promise to users with checkers: attributes have the types their documentation
says, and a `match` over a union can be exhaustive.
"""

from collections.abc import Iterable
from typing import assert_never, assert_type

from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.fold import fold
from dragoman.core.item import Item
from dragoman.core.response import Response, Usage


def an_answer(events: Iterable[Event]) -> None:
    response = fold(events)
    assert_type(response, Response)
    assert_type(response.text, str)
    assert_type(response.output, tuple[Item, ...])
    assert_type(response.usage, Usage | None)


def events_are_nine(event: Event) -> str:
    match event:
        case Started() | Finished() | Failed():
            return "once"
        case ItemAdded() | ItemDone() | PartAdded() | PartDone():
            return "brackets"
        case Delta(data=data):
            return str(data)
        case Progress(state=state):
            return state
        case _:
            assert_never(event)
