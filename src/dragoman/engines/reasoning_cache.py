"""Caches the reasoning of calls, and restores it where a client has dropped it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import ItemsView, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.event import Event, ItemAdded, ItemDone
from dragoman.core.interfaces import Caller, Engine
from dragoman.core.item import (
    JSON,
    Call,
    CustomToolCall,
    Extra,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Unknown,
    in_short,
    place_behind,
    place_of,
)
from dragoman.core.loss import Loss
from dragoman.core.request import Request

from .base import ENDS, LRU, Prepared, Wrapper, with_losses
from .reasoning import ENCRYPTED, OURS, SIZE, is_opaque, without_opaque

RESPELLED = 16 * 1024
"""Characters of a call's arguments beyond which they are compared as text, not by their values."""
READ = 1024 * 1024
"""The same for all arguments of a request together."""
LARGE = 64 * 1024
"""Bytes of restored reasoning beyond which it counts in `memory`, and is encoded in a thread."""
PER_ENTRY = 200
"""Overhead of a cache entry, in bytes."""


_Made = Call | Unknown
"""What a model has made: a call for the client, or one that its server runs, such as a search."""


class _Led(Struct, frozen=True):
    """Reasoning before calls: before the text beside them, and after it; and a call's fields that
    only its wire has, such as Gemini's signature."""

    model: str
    before: tuple[Reasoning, ...] = ()
    after: tuple[Reasoning, ...] = ()
    extra: Extra | None = None
    size: int = 0


_Key = tuple[str, int | None, str, str, str]
"""The key of a call: tenant, place (see `place_of`), id, name and arguments."""


class ReasoningCache:
    """Caches the reasoning of calls by tenant and call, and the model of encrypted reasoning.

    >>> cache, reasoning = ReasoningCache(), Reasoning(encrypted="gAAA")
    >>> call = FunctionCall("call_1", "now", "{}")
    >>> cache.store("", "m", (reasoning, call))
    >>> cache.restore("", "m", (Message("user", "?"), call))[0][1] == reasoning
    True
    """

    def __init__(self, size: int = SIZE, share: float = 1.0) -> None:
        """`share` is the part of the size, in bytes, that one tenant may have."""
        each, own = size // 16, int(size // 16 * share)
        self.led: LRU[_Key, _Led] = LRU(size, int(size * share))
        # The latest by id, for clients that reformat the arguments.
        self.latest: LRU[tuple[str, int | None, str], _Key] = LRU(each, own)
        self.makers: LRU[tuple[str, bytes], str] = LRU(each, own)

    def store(
        self, tenant: str, model: str, items: Iterable[Item], place: int | None = None
    ) -> None:
        """Store the reasoning of an answer of this model, which was asked for in this place, if
        that is known."""
        recording = _Recording(self, tenant, model, place)
        for item in items:
            recording.add(item)

    def restore(
        self, tenant: str, model: str, items: tuple[Item, ...]
    ) -> tuple[tuple[Item, ...], tuple[Loss, ...]]:
        """The items for this model: missing reasoning is restored in place, and what another model
        encrypted is dropped. The same tuple, where nothing changes."""
        return _Restoring(self, tenant, model).all(items)

    def find(self, tenant: str, place: int, call: Call, most: int = RESPELLED) -> _Led | None:
        """The reasoning of a call, whatever the format of its arguments, and with any that a client
        filled in (Claude Code), where they are at most so long."""
        found = None
        for at in (place, None):  # an earlier version stored no place
            key = _key(tenant, at, call)
            found = found or self.led.get(key)
            if found is None and (latest := self.latest.get(key[:3])) and latest[3] == call.name:
                read = max(len(latest[4]), len(key[4])) <= most
                same = read and _value(latest[4]) <= _value(key[4])
                found = self.led.get(latest) if same else None
        return found


class _Recording(Struct):
    """The reasoning before the next call of an answer."""

    cache: ReasoningCache
    tenant: str
    model: str
    place: int | None
    before: tuple[Reasoning, ...] = ()
    after: tuple[Reasoning, ...] = ()
    has_text: bool = False
    led: _Led | None = None  # of the last call, and of those made together with it
    weight: int = 0  # of that

    def add(self, item: Item) -> None:
        """The next item of the answer."""
        cache, tenant = self.cache, self.tenant
        match item:
            case Reasoning():
                if is_opaque(item):
                    cache.makers.put((tenant, _digest(item)), self.model, PER_ENTRY, tenant)
                if "inline" in (item.extra or {}):
                    pass  # it is inline in the text, and comes back with it
                elif self.has_text:
                    self.after += (item,)
                else:
                    self.before += (item,)
            case Message():
                self.has_text = True
            case FunctionCall() | CustomToolCall() | Unknown() if _is_made(item):
                if self.before or self.after:
                    self.weight = sum(len(repr(each)) for each in self.before + self.after)
                    self.led = _Led(self.model, self.before, self.after, size=self.weight)
                self.before, self.after, self.has_text = (), (), False
                led, call = self.led, _call(item)
                if call is None:
                    return
                if led is None and call is not item:
                    led = _Led(self.model)  # what leads to the next call is behind it
                key = _key(tenant, self.place, call)
                own = PER_ENTRY + len(tenant) + sum(map(len, key[2:]))
                if call.extra is not None:
                    led = replace(led or _Led(self.model), extra=call.extra)
                    own += len(repr(call.extra))
                if led is not None:
                    cache.led.put(key, led, own + self.weight, tenant)
                    cache.latest.put(key[:3], key, own, tenant)


class _Restoring(Struct):
    """The items so far, and where the reasoning of the next call begins."""

    cache: ReasoningCache
    tenant: str
    model: str
    items: list[Item] = []
    dropped: dict[str, None] = {}  # the models that encrypted the dropped reasoning
    start: int = 0
    place: int = 0
    size: int = 0  # of what was restored
    left: int = READ  # characters of arguments
    restored: set[int] = set()  # reasoning of calls, by its identity
    brought: set[bytes] = set()  # what the client brought that is opaque, by its digest

    def all(self, items: tuple[Item, ...]) -> tuple[tuple[Item, ...], tuple[Loss, ...]]:
        """Restore the items of a request, and report the losses."""
        for item in items:
            self.add(item)
        losses = tuple(
            Loss(ENCRYPTED, "dropped", f"encrypted by {maker}, and so dropped for {self.model}")
            for maker in self.dropped
        )
        restored = tuple(self.items)
        return (items if restored == items else restored), losses

    def add(self, item: Item) -> None:
        """The next item of the request."""
        if "turn" in (item.extra or {}):  # a mark for the beginning of a turn right after another
            self.start = len(self.items)
        elif isinstance(item, Reasoning) and self.items and isinstance(self.items[-1], Unknown):
            self.start = len(self.items)  # it leads to what follows
        match item:
            case FunctionCall() | CustomToolCall() | Unknown() if _is_made(item):
                led = self._find(item)
                if led is None and isinstance(item, Unknown):
                    self.items.append(item)  # what led to it may be the next call's
                    return
                given = self._with_reasoning(self.items[self.start :], item, led)
                self.items[self.start :] = given
                self.start = len(self.items)
            case Reasoning() if is_opaque(item):
                self.brought.add(digest := _digest(item))
                maker = self.cache.makers.get((self.tenant, digest))
                self.items += self._readable((item,), maker or self.model)
            case Reasoning() | Message(role="assistant"):
                self.items.append(item)
            case _:
                self.items.append(item)
                self.start = len(self.items)
                self.place = place_behind(self.place, (item,))

    def _find(self, made: _Made) -> _Led | None:
        if (call := _call(made)) is None:
            return None
        self.left -= len(call.text)
        return self.cache.find(self.tenant, self.place, call, min(RESPELLED, self.left))

    def _with_reasoning(self, stretch: Sequence[Item], call: _Made, led: _Led | None) -> list[Item]:
        """A call and the items before it, with its reasoning: once, unless it is there."""
        if led is not None and led.extra is not None and led.model == self.model:
            call = replace(call, extra=led.extra | (call.extra or {}))
        given, first = [*stretch, call], led and (led.before or led.after)
        if led is None or not first or id(first) in self.restored:
            return given
        self.restored.add(id(first))
        there = (
            _digest(each) in self.brought for each in led.before + led.after if is_opaque(each)
        )
        if self.brought and any(there):
            return given  # it stands before a tool of the server, with what that showed
        self.size += led.size
        brought = [item for item in stretch if isinstance(item, Reasoning)]
        if brought and not _is_text_of(brought, led):
            return given
        before, after = (self._readable(items, led.model) for items in (led.before, led.after))
        rest = [item for item in stretch if not isinstance(item, Reasoning)]
        whole = [*before, *rest, *after, call]
        mark = (given[0].extra or {}).get("turn")
        if mark is not None:  # it moves to the item that now begins the turn
            whole = [_marked(whole[0], mark), *(_marked(item, None) for item in whole[1:])]
        return whole

    def _readable(self, items: Sequence[Reasoning], maker: str) -> list[Item]:
        if maker == self.model or not any(map(is_opaque, items)):
            return list(items)
        self.dropped[maker] = None
        return without_opaque(items)


def _is_text_of(brought: Sequence[Reasoning], led: _Led) -> bool:
    """Whether a client sent back only the text of a call's reasoning."""
    if any(map(is_opaque, brought)):
        return False
    items = led.before + led.after
    parts = (p.text for i in items for p in (*i.summary, *i.content) if hasattr(p, "text"))
    known = [_squeezed(item.text for item in items), _squeezed(parts)]
    text = _squeezed(item.text for item in brought)
    # Before it, that of the server's own calls may be, which some clients do not see.
    return text in known or text.endswith(tuple(filter(None, known)))


def _squeezed(texts: Iterable[str]) -> str:
    """Texts without the white space that wires put between them."""
    return "".join("".join(texts).split())


def _marked(item: Item, mark: object) -> Item:
    """An item with this mark of a turn, or with none."""
    extra = {name: value for name, value in (item.extra or {}).items() if name != "turn"}
    return replace(item, extra=(extra if mark is None else extra | {"turn": mark}) or None)


def _is_made(item: _Made) -> bool:
    """Whether the model has made an item, which is none of a client's results."""
    return not isinstance(item, Unknown) or not item.kind.endswith(("_output", "_response"))


def _call(made: _Made) -> Call | None:
    """The call that identifies what a model has made, where it has an id."""
    if not isinstance(made, Unknown):
        return made
    named = (made.value.get("id"), made.value.get("tool_use_id"), made.id)
    id = next((each for each in named if isinstance(each, str)), None)
    return None if id is None else FunctionCall(id, made.kind, "")


def _key(tenant: str, place: int | None, call: Call) -> _Key:
    return tenant, place_of(call, place), call.call_id, call.name, call.text


def _value(arguments: str) -> ItemsView[str, object]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return value.items() if isinstance(value, dict) else {"": value}.items()


MANY = 500
"""The most texts that identify encrypted content."""


def _digest(item: Reasoning) -> bytes:
    """A short identifier of encrypted content or a signature, which may be long."""
    signed = {name: value for name, value in (item.extra or {}).items() if name not in OURS}
    opaque = "\0".join(islice(_texts(item.encrypted or signed), MANY))
    return hashlib.sha256(opaque.encode("utf-8", "surrogatepass")).digest()


def _texts(value: JSON) -> Iterator[str]:
    """The names and values in a value, flattened; of a long text its length and ends."""
    match value:
        case dict():
            for name in sorted(value):
                yield name
                yield from _texts(value[name])
        case list():
            for each in value:
                yield from _texts(each)
        case _:
            yield in_short(str(value))


_RESTORING = frozenset((FunctionCall, CustomToolCall, Reasoning))
"""Items that may require restoring or dropping reasoning."""


class CachingReasoning(Wrapper):
    """Middleware that stores the reasoning of calls, and restores it in requests that lack it."""

    acts_on = frozenset(("tools", Reasoning))

    def __init__(self, engine: Engine, cache: ReasoningCache | None = None) -> None:
        super().__init__(engine)
        self.cache = ReasoningCache() if cache is None else cache

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Restore reasoning, and record the answer, for requests with tools, calls or
        reasoning."""
        if not request.tools and Reasoning not in map(type, request.items):
            return None
        asked, losses, place = request, tuple[Loss, ...](), 0
        if not _RESTORING.isdisjoint(map(type, request.items)):
            restoring = _Restoring(self.cache, caller.tenant, request.model)
            items, losses = restoring.all(request.items)
            asked = request if items is request.items else replace(request, items=items)
            place, size = restoring.place, restoring.size
            if size > LARGE:  # many small requests could bring back the same
                if caller.count is not None:
                    caller.count(size)
                caller = replace(caller, size=caller.size + size)
        else:
            place = place_behind(0, request.items)
        new = partial(_Recording, self.cache, caller.tenant, request.model, place)
        recordings: dict[int, _Recording] = defaultdict(new)  # by choice
        choices: list[int] = []  # by index
        undone: set[int] = set()
        done: dict[int, Item] = {}  # by index, while an earlier item is open

        def recorded(events: list[Event]) -> list[Event]:
            """Each item is stored when it is done: a client may bring back an answer that was
            cancelled after a call."""
            for event in events:
                if type(event) is ItemAdded:
                    choices.append(event.choice)
                    undone.add(event.index)
                elif type(event) is ItemDone:
                    undone.discard(event.index)
                    done[event.index] = event.item
            if done:  # at the end, open items stay open
                first = min(undone, default=None) if type(events[-1]) not in ENDS else None
                for index in sorted(done):
                    if first is None or index < first:
                        recordings[choices[index]].add(done.pop(index))
            return with_losses(events, losses) if losses else events

        return Prepared(asked, recorded, caller=caller)
