"""Limits: how many requests are answered at once, how many wait, and how large a body may be."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.core.error import Code, Fault, FaultError, quoted
from dragoman.core.event import Delta, Event, ItemDone, PartDone
from dragoman.core.item import CustomToolCall, FunctionCall, Message, Text, Token
from dragoman.wire.json import LARGE, VALUE, Limits, check_size, marks, split_at_quotes

from .cancellation import InFlight, Watch
from .exchange import Exchange
from .settings import Settings

RETRY_AFTER = "1"
"""Seconds after which it is worth asking again when everything is taken."""

_JSON = "application/json"
STALLED = Fault(
    "stalled", "The rest of the body did not come in time (read_time, min_rate).", "client"
)


class Gate:
    """Admits `running` at once and lets `waiting` more queue, the tenants in turn, and those of one
    first come, first served.

    Of what a tenant has and what is free together, it may have `share`: what one floods, others
    find open, until there is nothing left to divide. Entering raises FaultError: `rate_limited`
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
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # whose turn comes first is first

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
        """A turn that comes by itself; `leave` must be called once it has come, and `give_up` when
        it is no longer waited for. Raises FaultError where too many wait."""
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
        """Wait for a turn no longer; one that has come is given back."""
        if turn.done() and not turn.cancelled():
            self.leave(tenant)
        elif (queue := self._queues.get(tenant)) and turn in queue:
            self._room += 1
            queue.remove(turn)
            if not queue:
                del self._queues[tenant]

    async def enter(self, tenant: str) -> None:
        """Enter when it is our turn; then `leave` must be called."""
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
        """Give what is free to those who wait, a place to each tenant in turn."""
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
    """The bytes that a worker may hold for others, `total` at once, and a share of them for each
    tenant. It counts; it waits for nothing. A body weighs more than its bytes: see `weigh`.

    Whoever is about to hold bytes opens a `Hold` for their tenant, and says with `resize` how many
    it holds from now on: before they are read or made, where their number is known, else as they
    come. `close` gives them back, on every path.

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
        """Bytes of this tenant; none as yet."""
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
    """What one body, frame or answer holds of a budget."""

    __slots__ = ("_budget", "_tenant", "size")

    def __init__(self, budget: Budget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self.size = 0

    def resize(self, size: int) -> None:
        """Hold so many bytes from now on. Raises FaultError where there is no room for more
        (`too_large` when there never will be), and holds what it held."""
        if size > (most := self._budget.share):
            problem = f"It takes more than the {most} bytes there may be in flight (memory)."
            raise FaultError(Fault("too_large", problem, "client"))
        self._budget.take(self._tenant, size - self.size)
        self.size = size

    def add(self, more: int) -> None:
        """Hold so many more, or fewer. Raises FaultError as `resize` does."""
        self.resize(self.size + more)

    def close(self) -> None:
        """Hold nothing any more."""
        self.resize(0)


LIGHT = 4096
"""Bytes of a body that is not weighed."""
SMALL = 64 * 1024
"""What a body weighs, or a connection holds, without being counted in the memory."""
HEAVY = 1_500_000
"""What a body weighs that is decoded in a thread: others would have to wait for long."""


def weigh(body: bytes) -> int:
    """What a body takes once it is decoded, but for what `widened` says: its bytes, and some for
    each of its values. Of a large one it is only known to be heavy: see `measured`.

    >>> weigh(b'{"model":"m","input":"Hi"}')
    346
    """
    size = len(body)
    return size + (HEAVY if size > LARGE else VALUE * marks(body))


_CONTINUED = bytes(range(0x80, 0xC0))
WIDEST = 4
"""Bytes that each character of a text takes in which one takes so many."""
_WIDE = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4", b"\\u")
"""What a character begins with in JSON that may take four bytes once it is decoded."""


def widened(text: bytes) -> int:
    r"""How many bytes a text in JSON takes once it is decoded, beside those in UTF-8: each of its
    characters takes as many as the widest. None where all are ASCII, which has one form only.

    >>> widened(b"plain"), widened("naïve".encode()), widened(rb"plain \ud83d\ude00")
    (0, 10, 32)
    """
    characters, width = _extent(text)
    return characters * width if width > 1 else 0


def _extent(text: bytes) -> tuple[int, int]:
    """How many characters a text has, and how many bytes the widest of them takes."""
    escaped = b"\\u" in text
    if not escaped and text.isascii():
        return len(text), 1
    if escaped:
        text = text.replace(b"\\\\", b"_")  # behind which it is a letter
    characters = len(text.translate(None, _CONTINUED)) - 5 * text.count(b"\\u")
    return characters, WIDEST if any(start in text for start in _WIDE) else 2


def measured(body: bytes, limits: Limits) -> int:
    """What a heavy body takes of the memory beside its bytes: some for each of its values, and what
    each of its texts is widened by. Raises FaultError as `check_size` does."""
    found, characters, width = VALUE * check_size(body, limits), 0, 1
    if not any(widened(body[at : at + LARGE + 1]) for at in range(0, len(body), LARGE)):
        return found
    for within, texts in split_at_quotes(body):
        for place, text in enumerate(texts, within):
            if place % 2 == 0:
                continue
            if place > within:  # or it goes on with that of the slice before
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
    """The body of a request, which is held for it from now on. What is not JSON has its own limit,
    by another setting.

    Raises FaultError when its head says that it is of another type, when it is larger than it may
    be, when there is no room for it, when the client disconnects, and when nothing comes for
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
    """The length that the headers say the body has, or 0. Raises FaultError where what they say is
    enough to refuse it."""
    headers = exchange.headers
    media_type = _JSON
    if headers.get(b"content-type") != b"application/json":  # which it is, as a rule
        media_type = exchange.header(b"content-type").partition(";")[0].strip().lower()
    if media_type not in wanted:
        # A page on any site may make a browser send text/plain to this machine; JSON it may not.
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
    """Why a body of more than `limit` bytes is refused."""
    problem = f"The body is larger than {limit} bytes, which is this server's limit ({setting})."
    return Fault("too_large", problem, "client")


LETTERS = 100
"""Characters of text that take as long to encode as a token with its log-probability."""


def tokens_of(event: Event) -> int:
    """How many tokens with log-probabilities an event has, with their alternatives, and
    annotations; and for its text, as many as take as long."""
    match event:
        case Delta(data=str(text)):
            return _count(text, event.tokens)
        case PartDone(part=Text() as part):
            return _count(part.text, part.tokens) + len(part.annotations)
        case ItemDone(item=Message() as message):
            texts = [part for part in message.parts if type(part) is Text]
            return sum([_count(text.text, text.tokens) + len(text.annotations) for text in texts])
        case ItemDone(item=FunctionCall() | CustomToolCall() as call):
            return _count(call.text)
    return 0


def _count(text: str, tokens: tuple[Token, ...] = ()) -> int:
    return len(text) // LETTERS + sum([1 + len(token.top) for token in tokens])
