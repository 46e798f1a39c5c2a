"""Limits: concurrent and queued requests, buffered bytes, and the size of bodies."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import astuple

from dragoman.core.error import Code, Fault, FaultError, quoted
from dragoman.core.event import Delta, Event
from dragoman.core.item import Item, Token
from dragoman.core.request import Request
from dragoman.stores.serialize import size_of
from dragoman.wire.json import LARGE, VALUE, Limits, check_size, marks, split_at_quotes

from .cancellation import InFlight, Watch
from .exchange import Exchange
from .settings import Settings

RETRY_AFTER = "1"
"""The `Retry-After` of a busy server, in seconds."""

_JSON = "application/json"
STALLED = Fault(
    "stalled", "The rest of the body did not come in time (read_time, min_rate).", "client"
)


STEP = 4096
"""Bytes of many requests, or frames, that are parsed in one turn of the loop."""


class Gate:
    """Admits `running` at once and lets `waiting` more queue: round-robin over tenants, in order
    within one.

    A tenant may have `share` of its own and the free places together, so that one tenant leaves
    places for others. Entering raises FaultError: `rate_limited`
    when the queue is full, `overloaded` after `patience` seconds in it.
    """

    def __init__(
        self, running: int, waiting: int, patience: float | None, share: float = 1.0
    ) -> None:
        self._free = running
        self._room = waiting
        self._patience = patience
        self._share = share
        self._running: dict[str, int] = {}
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # next tenant first

    def enter_at_once(self, tenant: str) -> bool:
        """Enter, if that takes no waiting; then `leave` must be called."""
        own, free = self._running.get(tenant, 0), self._free
        if free <= 0 or (own and own + 1 > self._share * (own + free)):
            return False
        self._running[tenant], self._free = own + 1, free - 1
        return True

    def leave(self, tenant: str) -> None:
        """Make room for the next one."""
        self._free += 1
        if own := self._running.pop(tenant) - 1:
            self._running[tenant] = own
        if self._queues:
            self._admit()

    def queue(self, tenant: str) -> asyncio.Future[None]:
        """A future for a place; `leave` must be called once it is done, and `give_up` to cancel
        it. Raises FaultError where too many wait."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.enter_at_once(tenant):
            turn.set_result(None)
            return turn
        own = len(self._queues.get(tenant, ()))
        if self._room <= 0 or (own and own + 1 > self._share * (own + self._room)):
            raise FaultError(_busy("rate_limited", "too many requests are waiting already"))
        self._room -= 1
        self._queues.setdefault(tenant, deque()).append(turn)
        return turn

    def give_up(self, tenant: str, turn: asyncio.Future[None]) -> None:
        """Stop waiting; a place that was assigned is released."""
        if turn.done() and not turn.cancelled():
            self.leave(tenant)
        elif (queue := self._queues.get(tenant)) and turn in queue:
            self._room += 1
            queue.remove(turn)
            if not queue:
                del self._queues[tenant]

    async def enter(self, tenant: str) -> None:
        """Wait for a place and enter; then `leave` must be called."""
        turn = self.queue(tenant)
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except TimeoutError:
            self.give_up(tenant, turn)
            problem = f"no turn came in {self._patience:g} s"
            raise FaultError(_busy("overloaded", problem)) from None
        except asyncio.CancelledError:
            self.give_up(tenant, turn)
            raise

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """A place for as long as the context lasts."""
        await self.enter(tenant)
        try:
            yield
        finally:
            self.leave(tenant)

    def _admit(self) -> None:
        """Assign the free places to waiters, one to each tenant in turn."""
        refused = 0
        while self._free and refused < len(self._queues):
            tenant, queue = next(iter(self._queues.items()))
            del self._queues[tenant]
            if queue[0].cancelled() or self.enter_at_once(tenant):
                refused = 0
                self._room += 1
                turn = queue.popleft()
                if not turn.cancelled():
                    turn.set_result(None)
            else:
                refused += 1
            if queue:
                self._queues[tenant] = queue


def _busy(code: Code, problem: str) -> Fault:
    return Fault(code, f"The server is busy: {problem}.", "server", retry_after=RETRY_AFTER)


class Budget:
    """Accounts for the bytes that a worker buffers: `total` at once, and a share of them for each
    tenant. It never waits. A body weighs more than its bytes: see `weigh`.

    Code that buffers bytes opens a `Hold` for the tenant, and sets its size with `resize`: before
    the bytes are read or made, where their number is known, else as they arrive. `close` releases
    them, and must be called on every path.

    >>> budget = Budget(total=100, share=60)
    >>> body, answer = budget.hold("a"), budget.hold("b")
    >>> body.resize(50); answer.resize(40); budget.held
    90
    >>> answer.resize(60)
    Traceback (most recent call last):
        ...
    dragoman.core.error.FaultError: The server is busy: too many bytes are in flight (memory).
    >>> body.close(); answer.resize(60); answer.size, budget.held
    (60, 60)
    """

    def __init__(self, total: int, share: int | None = None) -> None:
        self.held = 0
        self.tenants: dict[str, int] = {}
        self._total = total
        self.share = share or total

    def hold(self, tenant: str) -> Hold:
        """A new `Hold` for this tenant, of no bytes."""
        return Hold(self, tenant)

    def take(self, tenant: str, more: int) -> None:
        """Count so many more, or fewer. Raises FaultError where there is no room for more, and
        counts nothing then: `rate_limited` when the tenant has its share, else `overloaded`."""
        own = self.tenants.get(tenant, 0) + more
        if more > 0 and own > self.share < self._total:
            problem = f"of one key, more than {self.share} bytes are in flight already (memory)"
            raise FaultError(_busy("rate_limited", problem))
        if more > 0 and self.held + more > self._total:
            raise FaultError(_busy("overloaded", "too many bytes are in flight (memory)"))
        self.held += more
        if own:
            self.tenants[tenant] = own
        else:
            self.tenants.pop(tenant, None)


class Hold:
    """The part of a budget that one body, frame or answer holds."""

    __slots__ = ("_budget", "_tenant", "size")

    def __init__(self, budget: Budget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self.size = 0

    def resize(self, size: int) -> None:
        """Set the size. Raises FaultError where there is no room for more
        (`too_large` when there never will be), and leaves the size unchanged."""
        if size > (most := self._budget.share):
            problem = f"It takes more than the {most} bytes there may be in flight (memory)."
            raise FaultError(Fault("too_large", problem, "client"))
        self._budget.take(self._tenant, size - self.size)
        self.size = size

    def add(self, more: int) -> None:
        """Hold so many more, or fewer. Raises FaultError as `resize` does."""
        self.resize(self.size + more)

    def close(self) -> None:
        """Release everything."""
        self.resize(0)


LIGHT = 4096
"""Size up to which a body is not weighed."""
SMALL = 64 * 1024
"""Weight of a body, or of a connection's buffers, that is not counted."""
HEAVY = 1_500_000
"""Weight from which a body is decoded in a thread, not to block the loop."""


def weigh(body: bytes) -> int:
    """The memory of a decoded body, without that of `widened`: its bytes, and some for
    each of its values. Of a large body it is only a lower bound: see `measured`.

    >>> weigh(b'{"model":"m","input":"Hi"}')
    346
    """
    size = len(body)
    return size + (HEAVY if size > LARGE else VALUE * marks(body))


ESCAPED = re.compile(rb"\\u")
"""The beginning of an escape that may be any character. `in` takes four times as long."""
_BACKSLASH = re.compile(rb"\\\\")
_CONTINUED = bytes(range(0x80, 0xC0))
WIDEST = 4
"""Bytes per character of a Python string, by the bytes of its widest character in UTF-8."""
_WIDE = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
"""The beginnings, in UTF-8, of characters that take four bytes once decoded."""


def widened(text: bytes) -> int:
    r"""How many bytes a text in JSON takes once it is decoded, beside those in UTF-8: each of its
    characters takes as many as the widest. None where all are ASCII, which has one form only.

    >>> widened(b"plain"), widened("naïve".encode()), widened(rb"plain \ud83d\ude00")
    (0, 10, 32)
    """
    characters, width = _extent(text)
    return characters * width if width > 1 else 0


def _extent(text: bytes) -> tuple[int, int]:
    """The number of characters of a text, and the bytes that the widest of them takes."""
    escapes = 0
    if ESCAPED.search(text):
        if _BACKSLASH.search(text):
            text = text.replace(b"\\\\", b"_")  # behind which it is a letter
        escapes = text.count(b"\\u")
    if text.isascii():
        return len(text) - 5 * escapes, WIDEST if escapes else 1
    characters = len(text.translate(None, _CONTINUED)) - 5 * escapes
    wide = escapes or any(start in text for start in _WIDE)
    return characters, WIDEST if wide else 2


def measured(body: bytes, limits: Limits, found: int | None = None) -> int:
    """The memory of a large decoded body beside its bytes: some for each of its values, and what
    each of its texts is widened by. Raises FaultError as `check_size` does."""
    found, characters, width = VALUE * check_size(body, limits, found), 0, 1
    if not any(widened(body[at : at + LARGE + 1]) for at in range(0, len(body), LARGE)):
        return found
    for within, texts in split_at_quotes(body):
        for place, text in enumerate(texts, within):
            if place % 2 == 0:
                continue
            if place > within:  # else it continues the text of the slice before
                found += characters * width if width > 1 else 0
                characters, width = 0, 1
            more, widest = _extent(text)
            characters, width = characters + more, max(width, widest)
    return found + (characters * width if width > 1 else 0)


async def read_body(
    exchange: Exchange,
    settings: Settings,
    roster: InFlight,
    hold: Hold,
    *,
    media_type: tuple[str, ...] = (_JSON,),
    limit: int | None = None,
    setting: str = "body_limit",
) -> bytes:
    """Read the body of a request and account for it. Bodies that are not JSON have their own limit,
    by another setting.

    Raises FaultError for another content type, for a body that is too large,
    where there is no room for it, when the client disconnects, and when nothing comes for
    `read_time` seconds, or too little.
    """
    limit = settings.body_limit if limit is None else limit
    length = check_head(exchange, limit, media_type, setting)
    exchange.hold = hold
    if (body := exchange.whole) is not None:
        exchange.whole = None
        if len(body) > limit:
            raise FaultError(too_large(limit, setting))
        hold.resize(len(body))
        return body
    hold.resize(length)
    pieces: list[bytes] = []
    size = 0
    more = True
    now = asyncio.get_running_loop().time
    begun = now()
    with Watch(roster) as watch:
        while more:
            left = begun + settings.read_time + size / settings.min_rate - now()
            watch.limit(min(left, settings.read_time), STALLED)
            piece, more = await exchange.read()
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise FaultError(too_large(limit, setting))
            if size > hold.size:  # without a length
                hold.resize(size)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def check_head(
    exchange: Exchange,
    limit: int,
    wanted: tuple[str, ...] = (_JSON,),
    setting: str = "body_limit",
) -> int:
    """The Content-Length, or 0. Raises FaultError where the headers are
    enough to refuse the body."""
    headers = exchange.headers
    media_type = _JSON
    if headers.get(b"content-type") != b"application/json":  # the common case
        media_type = exchange.header(b"content-type").partition(";")[0].strip().lower()
    if media_type not in wanted:
        # Any web page can make a browser send text/plain to this machine, but not JSON (CORS).
        what = f"is {quoted(media_type)}" if media_type else "is missing"
        problem = f"The content-type {what}, and must be {' or '.join(wanted)}."
        raise FaultError(Fault("unsupported_media_type", problem, "client"))
    coding = ""
    if b"content-encoding" in headers:
        coding = exchange.header(b"content-encoding").strip().lower()
    if coding not in ("", "identity"):
        problem = f"The body is encoded with {quoted(coding)}; send it as it is."
        raise FaultError(Fault("unsupported_media_type", problem, "client"))
    length = headers.get(b"content-length", b"")
    if not length.isdigit():
        return 0
    if len(length) > 18 or int(length) > limit:
        raise FaultError(too_large(limit, setting))
    return int(length)


def too_large(limit: int, setting: str = "body_limit") -> Fault:
    """The fault for a body of more than `limit` bytes."""
    problem = f"The body is larger than {limit} bytes, which is this server's limit ({setting})."
    return Fault("too_large", problem, "client")


LETTERS = 100
"""Characters of text that cost as much to encode as a token with its log-probability."""


def values_in(events: Sequence[Event | Item | Request], most: int) -> int:
    """How many values the lists and objects of events have: tokens with log-probabilities, their
    alternatives, annotations, and what is not known. For its text, each event has as many as take
    as long. Counted until there are more than `most`."""
    found, rest = 0, list[object](events)
    while rest and found <= most:
        each = rest.pop()
        if type(each) is Delta and type(each.data) is str:  # nearly all
            found += len(each.data) // LETTERS
            rest += each.tokens
        elif isinstance(each, str | bytes):
            found += len(each) // LETTERS
        elif isinstance(each, Token):  # of which there are many
            found += len(each.top) + len(each.bytes or b"") // LETTERS
        elif isinstance(each, Struct):
            rest += filter(None, astuple(each))
        elif isinstance(each, tuple | list | dict):
            found += len(each)
            if found <= most:
                rest += each
                rest += each.values() if isinstance(each, dict) else ()
    return found


def weight_of(request: Request) -> int:
    """About the memory of a request that is read from the store, as `weigh` has it of a body."""
    return size_of(request) + VALUE * values_in((request,), 1 << 62)
