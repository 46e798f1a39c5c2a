"""What every store implements, and the values it stores: records, logs, conversations, messages.

One conformance suite holds for all stores. A method that writes returns when what it wrote
survives a crash of this process. A method that takes a tenant finds nothing of another tenant's;
unknown ids give None or False, never an error. Ids are bare, without the prefix a wire puts before
them, and times are Unix seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.event import Event
from dragoman.core.item import (
    JSON,
    Call,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    Message,
    Reasoning,
)
from dragoman.core.request import Request
from dragoman.core.response import Response

DAY = 86_400.0


class StoreError(Exception):
    """The store could not do what was asked; the message says what failed."""


class Retention(Struct, frozen=True, kw_only=True):
    """How long and how much a store keeps; its `sweep` deletes the rest.

    Responses and conversations live `max_age` seconds, the event logs of ended runs `max_log_age`
    seconds (without its log a response can be read, but no longer replayed), and there are at most
    `max_responses` responses.
    """

    max_age: float = 30 * DAY
    max_log_age: float = DAY
    max_responses: int = 100_000


# ---- values --------------------------------------------------------------------------------


RunStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING = ("queued", "in_progress")
"""The states of a run that has not ended."""


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stored response: its request, its state and its result.

    `request` holds its own input only, as it was given; what came before is found through
    `previous`, so that a long conversation is not copied into each of its turns. `response` is
    there once the run has ended. `owner` is the server that runs it and `lease` the time until
    which that server has promised to. `dialect` and `version` name the encoder that sent it: the
    same encoder over the same log gives the same bytes. `cancelling` is true once somebody asked
    for the run's end.
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
        """The items of the request, with an id each, and of the response."""
        output = self.response.output if self.response is not None else ()
        return named(self.request.items, self.id) + output

    def item(self, id: str) -> Item | None:
        """The item with this id."""
        return next((item for item in self.items if item.id == id), None)


class StoredAnswer(Struct, frozen=True):
    """A stored response and the model that was asked: the one whose reasoning it holds."""

    model: str
    response: Response


class LogSegment(Struct, frozen=True):
    """Consecutive events of one log; `first` is the index of the first of them, from 0."""

    first: int
    events: tuple[Event, ...]


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation with an id of its own; its items are stored one by one."""

    id: str
    tenant: str
    created_at: int
    metadata: dict[str, JSON] | None = None


class OutboxMessage(Struct, frozen=True, kw_only=True):
    """A message to deliver: its body, the URL, when to send it, and how often it was taken out."""

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


class ItemPage(Struct, frozen=True):
    """A page of items, and whether there are more."""

    items: tuple[Item, ...]
    more: bool


class RecordPage(Struct, frozen=True):
    """A page of records, and whether there are more."""

    records: tuple[Record, ...]
    more: bool


def segments_from(log: Iterable[LogSegment], first: int) -> Iterator[LogSegment]:
    """The segments of a log from this index on: one that begins before it is cut, none is empty."""
    for segment in log:
        skip = max(0, first - segment.first)
        if skip < len(segment.events):
            yield LogSegment(segment.first + skip, segment.events[skip:])


_PREFIXES: dict[type, str] = {
    Message: "msg",
    Reasoning: "rs",
    FunctionCall: "fc",
    FunctionCallOutput: "fco",
    CustomToolCall: "ctc",
    CustomToolCallOutput: "ctco",
    Compaction: "cmp",
}


def input_id(item: Item, response: str, place: int) -> str:
    """The id of an input item that came without one, from the id of the response and its place."""
    return f"{_PREFIXES.get(type(item), 'item')}_{response}_in{place}"


def named(items: Sequence[Item], response: str) -> tuple[Item, ...]:
    """Input items with an id each, where they came without one that of `input_id`."""
    return tuple(
        [
            item
            if item.id or isinstance(item, ItemReference)
            else replace(item, id=input_id(item, response, place))
            for place, item in enumerate(items)
        ]
    )


def renamed_id(item: Item, place: int) -> str:
    """Another id for an item whose own is taken in a conversation, from its place there."""
    return f"{item.id}_{place}"


# ---- finding reasoning by its calls --------------------------------------------------------


def call_digest(call: Call) -> str:
    """The key under which the response that made a call is found, however its JSON is written.

    Name and arguments belong to it, because some servers count the ids of their calls from 0 in
    every conversation.

    >>> here, there = (FunctionCall("1", "now", text) for text in ('{"at": 1.0}', '{"at":1}'))
    >>> call_digest(here) == call_digest(there)
    True
    """
    text = call.arguments if isinstance(call, FunctionCall) else call.input
    key = json.dumps([call.call_id, call.name, _normalized(text)])
    return hashlib.sha256(key.encode()).hexdigest()


def call_digests(response: Response) -> list[str]:
    """The digests of a response's calls; none where it has no reasoning, since only that is looked
    up by them."""
    if Reasoning not in map(type, response.output):
        return []
    calls = (item for item in response.output if isinstance(item, FunctionCall | CustomToolCall))
    return sorted(set(map(call_digest, calls)))


def _normalized(text: str) -> str:
    """JSON with sorted keys; any other text unchanged."""
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float | int:
    """1.0 and 1 are the same argument: many clients write whole numbers without the point."""
    value = float(text)
    return int(value) if value.is_integer() else value


# ---- the store -----------------------------------------------------------------------------


class Source(Protocol):
    """Where is looked up what a request goes on from."""

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        """A response and all before it through `previous`, the earliest first; empty when one of
        them is not known."""

    async def find_item(self, tenant: str, item: str) -> Item | None:
        """The item with this id in the input or output of any response."""

    async def find_answers(self, tenant: str, digests: Sequence[str]) -> tuple[StoredAnswer, ...]:
        """The responses with reasoning that made the calls with these digests, each once. Of
        several that made the same call, it is the latest."""

    async def list_items(
        self, tenant: str, id: str, paging: Paging | None = None
    ) -> ItemPage | None:
        """A page of a conversation's items, or all of them in their order."""


class Outbox(Protocol):
    """Messages, until they are delivered."""

    async def take_due(self, now: float, until: float, most: int = 20) -> tuple[OutboxMessage, ...]:
        """Take out messages that are due; one that is not settled is due again at `until`. Each
        goes to one server only."""

    async def settle(self, id: str, due: float | None = None) -> None:
        """Delete a message, or have it sent again at another time."""


class Store(Source, Outbox, Protocol):
    """All that a server stores."""

    # Responses, and the event log of each.

    def begin(self, record: Record) -> Awaitable[None]:
        """Store a run that is about to start."""

    async def append(self, id: str, segment: LogSegment) -> None:
        """Add to the log of a run. A segment that is there already, or follows a gap, is an error;
        so is one for a run that has ended or is not known."""

    async def finish(
        self,
        id: str,
        response: Response,
        segment: LogSegment | None = None,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> bool:
        """End a run with its response, the last segment of its log, the items it adds to its
        conversation, and the messages that announce its end, in one step. An item whose id is
        taken in the conversation gets another. False, and nothing is written, when the run had
        ended before or is not known."""

    def put(
        self,
        record: Record,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> Awaitable[None]:
        """Store a response that has ended, whole and in one step: for answers that nobody could
        follow while they were made. The log is the one that unfolding `record.response` gives."""

    async def get(self, tenant: str, id: str) -> Record | None:
        """A response."""

    async def log(self, id: str, first: int = 0) -> tuple[LogSegment, ...]:
        """The log from this index on, in order; nothing at its end."""

    async def wait(self, id: str, length: int, seconds: float) -> None:
        """Return when the log is longer than this, when the run has ended, or when time is up."""

    async def list_responses(self, tenant: str, wire: str | None, paging: Paging) -> RecordPage:
        """The responses of a tenant (on one wire, or on all) by the time of their creation."""

    async def set_metadata(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Replace the metadata of a response."""

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a response and its log. Deleting a live run asks for its end as well."""

    # Which server runs what, and until when it has promised to.

    async def renew_leases(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Extend the leases of these runs. Gives the ids of those that must stop, because somebody
        asked for it, or has deleted or ended them."""

    async def request_cancel(self, tenant: str, id: str) -> bool:
        """Ask for the end of a run, wherever it runs; False when it is not known."""

    async def take_orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs whose lease has expired; each goes to one server only."""

    # Conversations and their items.

    async def create_conversation(
        self, conversation: Conversation, items: Sequence[Item] = ()
    ) -> None:
        """Store a new conversation."""

    async def get_conversation(self, tenant: str, id: str) -> Conversation | None:
        """A conversation."""

    async def set_conversation_metadata(
        self, tenant: str, id: str, metadata: dict[str, JSON]
    ) -> bool:
        """Replace the metadata of a conversation."""

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        """Delete a conversation and its items."""

    async def add_items(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items, each with an id of its own, at the end."""

    async def get_item(self, tenant: str, id: str, item: str) -> Item | None:
        """One item."""

    async def remove_item(self, tenant: str, id: str, item: str) -> bool:
        """Delete one item."""

    # The store itself.

    async def sweep(self, now: float) -> int:
        """Delete what is older or more than the retention allows, the oldest first, and give the
        number of responses deleted. Live runs stay."""

    async def ready(self) -> None:
        """Return when the store can be used. Raises StoreError, within a minute or so, that says
        what is wrong and what to do about it."""

    async def close(self) -> None:
        """Write what is waiting and release everything."""


# ---- notifications -------------------------------------------------------------------------


class Subscribers:
    """Those in one event loop who wait for something with a name, such as a run that grows."""

    def __init__(self) -> None:
        self._subscribers: dict[str, set[asyncio.Event]] = {}

    def notify(self, name: str) -> None:
        """Wake the subscribers here."""
        for event in self._subscribers.get(name, ()):
            event.set()

    def publish_soon(self, name: str) -> None:
        """Notify the subscribers of this name."""
        self.notify(name)

    async def listen(self) -> None:
        """Receive what others publish from now on. Raises StoreError."""

    @asynccontextmanager
    async def subscribe(self, name: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever this name is published, here or by another server."""
        event = asyncio.Event()
        self._subscribers.setdefault(name, set()).add(event)
        try:
            await self.listen()
            yield event
        finally:
            subscribers = self._subscribers[name]
            subscribers.discard(event)
            if not subscribers:
                del self._subscribers[name]

    async def wait(
        self, name: str, is_over: Callable[[], Awaitable[bool]], seconds: float, poll: float
    ) -> None:
        """Return when it is over or time is up: asked at first, at each notification, and every
        `poll` seconds."""
        end = time.monotonic() + seconds
        async with self.subscribe(name) as notified:
            while not await is_over() and (left := end - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(poll, left)):
                        await notified.wait()
                notified.clear()

    async def close(self) -> None:
        """Publish what is still waiting."""


class PubSub(Subscribers, ABC):
    """Pub/sub between servers that share a store.

    A notification may be lost; subscribers also poll.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unpublished: set[str] = set()
        self._publisher: asyncio.Task[None] | None = None

    @abstractmethod
    async def publish(self, names: Sequence[str]) -> None:
        """Send names to all servers. Raises StoreError."""

    def publish_soon(self, name: str) -> None:
        """Notify the subscribers of this name: here at once, elsewhere with the next batch."""
        self.notify(name)
        self._unpublished.add(name)
        if self._publisher is None or self._publisher.done():
            self._publisher = asyncio.get_running_loop().create_task(self._publish())

    async def close(self) -> None:
        if self._publisher is not None:
            await self._publisher

    async def _publish(self) -> None:
        with suppress(StoreError):  # a subscriber that misses it polls before long
            while self._unpublished:
                names, self._unpublished = list(self._unpublished), set()
                await self.publish(names)
