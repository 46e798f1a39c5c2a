"""What is kept, as values: a response with what was asked for it, a stretch of its log, a
conversation.

Ids are bare, without the prefix a wire puts before them, and times are Unix seconds. A record holds
only its own input; what came before is found through `previous`, so that a long conversation is
not copied into each of its turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

from dragoman.core.event import Event
from dragoman.core.item import JSON, Item
from dragoman.core.request import Request
from dragoman.core.response import Response

RunStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING = ("queued", "in_progress")
"""The states of a run that has not ended."""


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One response: who asked what, how far it is, and what came of it.

    `request` is what was asked, its items with ids; `response` is there once the run has ended.
    `owner` is the server that runs it and `lease` the time until which it has promised to.
    `dialect` and `version` are those of the encoder that said it: the log said again by the same
    encoder gives the same bytes. `cancelling` is true once somebody asked for its end.
    """

    id: str
    tenant: str
    wire: str
    created_at: int
    request: Request
    status: RunStatus = "in_progress"
    response: Response | None = None
    previous: str | None = None
    conversation: str | None = None
    background: bool = False
    cancelling: bool = False
    owner: str = ""
    lease: float = 0.0
    dialect: str = ""
    version: int = 1
    metadata: dict[str, JSON] | None = None

    @property
    def running(self) -> bool:
        """Whether the run has not ended."""
        return self.status in RUNNING

    @property
    def items(self) -> tuple[Item, ...]:
        """What was asked and what was answered."""
        return self.request.items + (self.response.output if self.response is not None else ())

    def item(self, id: str) -> Item | None:
        """The item with this id."""
        return next((item for item in self.items if item.id == id), None)


class Answer(Struct, frozen=True):
    """What was answered, and which model was asked: the one whose thoughts it holds."""

    model: str
    response: Response


def another(item: Item, place: int) -> str:
    """Another id for an item whose own is taken, from the place where it will stand."""
    return f"{item.id}_{place}"


class Stretch(Struct, frozen=True):
    """Events of one log that follow one another; `first` is the place of the first, from 0."""

    first: int
    events: tuple[Event, ...]


def stretches_from(log: Iterable[Stretch], first: int) -> Iterator[Stretch]:
    """What a log has from this place on: what begins before it is cut, and nothing is empty."""
    for stretch in log:
        skip = max(0, first - stretch.first)
        if skip < len(stretch.events):
            yield Stretch(stretch.first + skip, stretch.events[skip:])


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation that is kept under a name of its own; its items are kept one by one."""

    id: str
    tenant: str
    created_at: int
    metadata: dict[str, JSON] | None = None


class Letter(Struct, frozen=True, kw_only=True):
    """A message that shall reach somebody: what it says, to which URL, when it is to be sent, and
    how often it was taken out to be."""

    id: str
    target: str
    body: bytes
    due: float
    attempts: int = 0


Order = Literal["asc", "desc"]


class Paging(Struct, frozen=True, kw_only=True):
    """Which part of a list is wanted: at most `limit` entries after the one with the id `after`."""

    after: str | None = None
    limit: int = 20
    order: Order = "desc"


class Items(Struct, frozen=True):
    """A page of items, and whether there are more."""

    items: tuple[Item, ...]
    more: bool


class Records(Struct, frozen=True):
    """A page of records, and whether there are more."""

    records: tuple[Record, ...]
    more: bool
