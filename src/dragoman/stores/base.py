"""Values of stores: records, logs, conversations, messages; and pub/sub of their changes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
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
    place_of,
)
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.net.threads import seen

T = TypeVar("T")


def tenant_name(secret: bytes, digest: str) -> str:
    """The name of a tenant in a store, by the digest of its credential: without the store's secret
    a credential cannot be checked against it. Without a credential the name is empty."""
    return hmac.digest(secret, digest.encode(), "sha256").hex()[:24] if digest else ""


_log = logging.getLogger("dragoman.stores")


class StoreError(FaultError):
    """The store failed. The message has the error and the place, for the log;
    the fault, which is for clients, only the kind of store."""

    def __init__(self, message: str, kind: str = "") -> None:
        store = f"The store of this server ({kind})" if kind else "The store of this server"
        problem = (
            f"{store} cannot be used now; the server's log says why. Try again, or ask for "
            "something that needs no store."
        )
        super().__init__(Fault("store_unavailable", problem, retry_after=RETRY_AFTER))
        self.args = (message,)


class ConflictError(StoreError):
    """The new value conflicts with a stored one: a duplicate id, for instance."""


class WaitedError(StoreError):
    """The store works, but the tenant has so many queued reads that this one timed out."""

    def __init__(self) -> None:
        problem = (
            "Too much of what is stored is read for this key at once, and no turn came in time "
            "(store_time). Ask for less at a time, or later."
        )
        FaultError.__init__(self, Fault("rate_limited", problem, retry_after=RETRY_AFTER))


class LongError(StoreError):
    """The store works, but this statement takes longer than its patience."""

    def __init__(self) -> None:
        problem = (
            "This takes the store longer than store_time. Ask for less: for fewer words, for "
            "instance, or in fewer vector stores."
        )
        FaultError.__init__(self, Fault("too_large", problem, "client"))


RETRY_AFTER = "5"
"""The `Retry-After` of a failing store, in seconds."""
PATIENCE = 5.0
"""The timeout of a store's operations, in seconds."""
REST = 1.0
"""Seconds between attempts with a store that does not answer."""
SLOW = 1.0
"""Seconds from which a failure counts as a timeout."""
REPEATED = 60.0
"""Seconds before the same failure is logged again."""


slowness: ContextVar[float] = ContextVar("slowness", default=1.0)
"""Multiplies the store's patience for the current work: no request waits for a sweep."""


@contextmanager
def slower(times: float) -> Iterator[None]:
    """Set `slowness` for the work inside."""
    before = slowness.set(times)
    try:
        yield
    finally:
        slowness.reset(before)


class Breaker:
    """Keeps callers from waiting in turn for a store that does not answer.

    A circuit breaker: after a slow failure calls fail at once, except one each `REST` seconds; the
    first success closes it. Quick failures do not open it. Each failure is logged
    once.
    """

    def __init__(self, kind: str, patience: float) -> None:
        self.open = False
        self._kind = kind
        self._patience = patience
        self._slow = min(SLOW, patience / 2)
        self._error = ""
        self._logged: dict[str, float] = {}
        self._next = 0.0  # when the next call may try

    def check(self) -> None:
        """Raise StoreError while it is open, except for the call that may try."""
        now = time.monotonic()
        if now < self._next:
            raise StoreError(self._error, self._kind)
        self._next = now + self._patience + REST

    def failed(self, message: str, seconds: float) -> StoreError:
        """Record a failure after so many seconds; returns its error."""
        now = time.monotonic()
        if self.open or seconds >= self._slow:
            self.open, self._next = True, now + REST
        self._error = message
        if now > self._logged.get(message, -REPEATED) + REPEATED:
            self._logged = {**self._logged, message: now} if len(self._logged) < 16 else {}
            _log.warning("%s", message)
        return StoreError(message, self._kind)

    def worked(self) -> None:
        """Record that the store answers again."""
        self.open, self._logged = False, {}
        _log.warning("The %s store answers again.", self._kind)


class Together:
    """Deduplicates concurrent reads, as those of a run's readers."""

    def __init__(self) -> None:
        self._asking: dict[tuple[object, ...], asyncio.Task[Any]] = {}

    async def ask(
        self,
        key: tuple[object, ...],
        ask: Callable[[], Coroutine[Any, Any, T]],
        seconds: float | None = None,
    ) -> T | None:
        """The result for this key, shared by all callers before it is begun, as later ones may
        know of newer data; or with `seconds` by all callers until its end. None on a timeout."""
        loop = asyncio.get_running_loop()
        key = loop, *key

        async def for_all() -> T:
            if seconds is None:
                del self._asking[key]
            try:
                return await ask()
            finally:
                if seconds is not None:
                    del self._asking[key]

        if (asking := self._asking.get(key)) is None:
            asking = self._asking[key] = loop.create_task(for_all())
            asking.add_done_callback(seen)
        await asyncio.wait((asking,), timeout=seconds)
        return asking.result() if asking.done() else None


class TooMuchError(Exception):
    """The result is larger than the caller's limit."""


class Room(Struct):
    """A limit for reading: `left` bytes of `most`. `count` accounts for large values before they
    are read, and releases them; it may refuse. `held` are accounted for. `items` is the most items
    of a request with its references, and `seen` the bytes that were searched for them."""

    most: int = 2**62
    left: int = 2**62
    count: Callable[[int], None] | None = None
    held: int = 0
    items: int = 2**62
    seen: int = 0

    def take(self, size: int) -> None:
        """Take so many bytes. Raises TooMuchError where there is no room."""
        self.left -= size
        if self.left < 0:
            raise TooMuchError

    def read(self, size: int) -> None:
        """Take so many bytes before they are read. Raises TooMuchError, and what `count` raises."""
        self.take(size)
        self.hold(size)

    def hold(self, size: int) -> None:
        """Hold so many more, or fewer."""
        if self.count is not None and abs(size) > AT_ONCE:
            self.count(size)
            self.held += size


AT_ONCE = 64 * 1024
"""Bytes that may be read without accounting."""
LONGEST_ID = 512
"""Characters of an id in an index: longer ones make each of its pages a search of its own."""
APART = 256 * 1024
"""Bytes from which values are packed and unpacked in a thread."""


# ---- values --------------------------------------------------------------------------------


RunStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING = ("queued", "in_progress")
"""The states of a run that has not ended."""


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stored response: its request, its state and its result.

    `request` has its own input only, unchanged; earlier items are found through
    `previous`, so that a long conversation is not copied into each of its turns, or in its
    `conversation`, up to `after`: the id of the last item that it had ("" without one; None where
    an earlier version stored this). `place` is that behind all its items, earlier ones too
    (`core.item.place_behind`), where it has tools. `response` is set once the run has ended.
    `owner` is the server that runs it and `lease` the time at which its lease expires. `dialect`
    and `version` name the encoder that sent it: the same encoder over the same log gives the same
    bytes. `cancelling` is true once a cancellation was requested. `size` is in bytes, where the
    request is so large that it is packed in a thread; it is not stored.
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
    after: str | None = None
    background: bool = False
    cancelling: bool = False
    owner: str = ""
    lease: float = 0.0
    dialect: str = ""
    version: int = 1
    metadata: dict[str, JSON] | None = None
    place: int | None = None
    size: int = 0

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
    """A stored response and its model, whose reasoning it contains, and the place in which it was
    asked for, if that is known (`core.item.place_behind`)."""

    model: str
    response: Response
    place: int | None = None


class LogSegment(Struct, frozen=True):
    """Consecutive events of one log; `first` is the index of the first of them, from 0. Only the
    run's `owner` may store one."""

    first: int
    events: tuple[Event, ...]
    owner: str = ""


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation with an id of its own; its items are stored one by one."""

    id: str
    tenant: str
    created_at: int
    metadata: dict[str, JSON] | None = None


class OutboxMessage(Struct, frozen=True, kw_only=True):
    """A message to deliver: its body, the URL, when to send it, the number of attempts, and whose
    it is."""

    id: str
    target: str
    body: bytes
    due: float
    attempts: int = 0
    tenant: str = ""


class Piece(Struct, frozen=True):
    """A chunk to be stored: its text, its index words, its vector of float32."""

    text: str
    words: list[str]
    vector: bytes | None = None


class Chunk(Struct, frozen=True):
    """A found chunk, and its file, by its `seq`."""

    seq: int
    file: int
    text: str
    vector: bytes | None = None


Order = Literal["asc", "desc"]


class Paging(Struct, frozen=True, kw_only=True):
    """The page of a list: at most `limit` entries after the one with the id `after`."""

    after: str | None = None
    limit: int = 20
    order: Order = "desc"


class Page(Struct, Generic[T], frozen=True):
    """A page of a list, and whether there is more."""

    items: tuple[T, ...]
    more: bool


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
    """The id of an input item without one, from the id of the response and its position."""
    return f"{_PREFIXES.get(type(item), 'item')}_{response}_in{place}"


def named(items: Sequence[Item], response: str) -> tuple[Item, ...]:
    """Input items with an id each, by default that of `input_id`."""
    return tuple(
        [
            item
            if item.id or isinstance(item, ItemReference)
            else replace(item, id=input_id(item, response, place))
            for place, item in enumerate(items)
        ]
    )


# ---- finding reasoning by its calls --------------------------------------------------------

SPELLED = 16 * 1024
"""Characters of arguments beyond which they are compared as text, and not by their values."""
DIGESTED = 1024 * 1024
"""Characters of shorter ones that are parsed for one request: those of its latest calls."""


def latest(calls: Sequence[Call], most: int = DIGESTED) -> list[Call]:
    """The latest calls, which can be looked up in time."""
    found, left = list[Call](), most
    for call in reversed(calls):
        size = len(call.text)
        left -= size if size <= SPELLED else 0
        if left < 0:
            break
        found.append(call)
    return found[::-1]


def call_digest(call: Call, place: int | None = None) -> str:
    """The key under which the response that made a call is found, however its JSON is written.

    Name, arguments and the place of the call belong to it, because some servers count the ids of
    their calls from 0 in every conversation (`core.item.place_of`).

    >>> here, there = (FunctionCall("1", "now", text) for text in ('{"at": 1.0}', '{"at":1}'))
    >>> call_digest(here) == call_digest(there)
    True
    """
    key = [_short(call.call_id), _short(call.name), _normalized(call.text)]
    if (own := place_of(call, place)) is not None:
        key.append(str(own))
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()


def call_digests(response: Response, place: int | None) -> list[str]:
    """The digests of a response's calls; none where it has no reasoning, as they are only used
    to find it."""
    if Reasoning not in map(type, response.output):
        return []
    calls = [item for item in response.output if isinstance(item, FunctionCall | CustomToolCall)]
    return sorted({call_digest(call, place) for call in latest(calls, APART)})


def _normalized(text: str) -> str:
    """JSON with sorted keys; any other text unchanged, and a long one in short."""
    if len(text) > SPELLED:
        return _short(text)
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _short(text: str) -> str:
    """A text, or the digest of a long one."""
    if len(text) <= SPELLED:
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _number(text: str) -> float | int:
    """Normalise 1.0 to 1: many clients write whole numbers without the point. Numbers beyond
    2**53 are not changed: 1e308 has 309 digits, which are slow to write."""
    value = float(text)
    return int(value) if abs(value) <= 2**53 and value.is_integer() else value


# ---- notifications -------------------------------------------------------------------------


SELDOM = 0.8
"""The longest interval between two polls, in seconds."""


class Subscribers:
    """The subscribers of one event loop, by the name of a run, for instance."""

    def __init__(self) -> None:
        self._subscribers: dict[str, set[asyncio.Event]] = {}

    def notify(self, name: str) -> None:
        """Wake the local subscribers."""
        for event in self._subscribers.get(name, ()):
            event.set()

    def publish_soon(self, name: str) -> None:
        """Notify the subscribers of this name."""
        self.notify(name)

    async def listen(self) -> None:
        """Start receiving. Raises StoreError."""

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
        """Return when the condition holds or on a timeout. It is checked at first, at each
        notification, and after `poll` seconds, doubling up to `SELDOM`."""
        end = time.monotonic() + seconds
        async with self.subscribe(name) as notified:
            while not await is_over() and (left := end - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(poll, left)):
                        await notified.wait()
                notified.clear()
                poll = max(poll, min(2 * poll, SELDOM))

    async def close(self) -> None:
        """Publish the queued names."""


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
        with suppress(StoreError):  # subscribers that miss it also poll
            while self._unpublished:
                names, self._unpublished = list(self._unpublished), set()
                await self.publish(names)


def index_key(item: str) -> str:
    """The index key of an item: the part of its id that all items of one turn share, or its id, or
    the digest of what is long.

    >>> index_key("msg_018f_in0"), index_key("fc_018f_2"), index_key("item_of_a_client")
    ('018f', '018f', 'item_of_a_client')
    """
    ours = _ITEM_ID.fullmatch(item)
    key = item if ours is None else ours[1]
    if len(key) <= LONGEST_ID:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


_ITEM_ID = re.compile(r"[a-z]+_([^_]+)_(?:in)?\d+")
