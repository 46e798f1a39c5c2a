"""Remembers reasoning by the call it led to, and restores it for clients that cannot carry it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.event import Event, ItemAdded, ItemDone, Started
from dragoman.core.interfaces import Caller, Engine
from dragoman.core.item import Call, CustomToolCall, FunctionCall, Item, Message, Reasoning
from dragoman.core.loss import Loss
from dragoman.core.request import Request

from .base import ENDS, LRU, Prepared, Wrapper
from .reasoning_encryption import ENCRYPTED, OURS, in_words, is_opaque

SIZE = 64 * 1024 * 1024
"""Bytes of reasoning kept, about."""
PER_KEY = 200
"""Bytes that an entry takes beside what it holds."""


class _Led(Struct, frozen=True):
    """What led to some calls: reasoning before the words that were said with them, and after."""

    model: str
    before: tuple[Reasoning, ...]
    after: tuple[Reasoning, ...]

    @property
    def items(self) -> tuple[Reasoning, ...]:
        return self.before + self.after


class _Key(Struct, frozen=True):
    """A call, as it was made. Some servers count their ids from 0 in every conversation."""

    tenant: str
    call_id: str
    name: str
    said: str


class ReasoningCache:
    """Remembers by tenant and call what led to a call, and by blob which model made it.

    >>> vault, thought = ReasoningCache(), Reasoning(encrypted="gAAA")
    >>> call = FunctionCall("call_1", "now", "{}")
    >>> vault.keep("", "m", (thought, call))
    >>> vault.recall("", "m", (Message("user", "?"), call))[0][1] == thought
    True
    """

    def __init__(self, size: int = SIZE) -> None:
        self.led: LRU[_Key, _Led] = LRU(size)
        # The latest of an id, for clients that write its arguments in their own way.
        self.latest: LRU[tuple[str, str], _Key] = LRU(size // 16)
        self.makers: LRU[tuple[str, bytes], str] = LRU(size // 16)

    def keep(self, tenant: str, model: str, items: Iterable[Item]) -> None:
        """Remember an answer of this model, as far as there is something to be remembered."""
        recording = _Recording(self, tenant, model)
        for item in items:
            recording.add(item)

    def recall(
        self, tenant: str, model: str, items: tuple[Item, ...]
    ) -> tuple[tuple[Item, ...], tuple[Loss, ...]]:
        """The items for this model, reasoning put back where it was and is missing, and without
        what another model sealed. The same tuple, where nothing is to be done."""
        restoring = _Restoring(model)
        for item in items:
            match item:
                case Reasoning() if is_opaque(item):
                    restoring.bring(item, self.makers.get((tenant, _digest(item))))
                case FunctionCall() | CustomToolCall():
                    restoring.call(item, self._find(_key(tenant, item)))
                case _:
                    restoring.add(item)
        return (tuple(restoring.items) if restoring.changed else items), restoring.losses

    def _find(self, key: _Key) -> _Led | None:
        found = self.led.get(key)
        if found is not None:
            return found
        latest = self.latest.get((key.tenant, key.call_id))
        return self.led.get(latest) if latest is not None and _same(latest, key) else None


class _Recording:
    """What came before the next call of an answer."""

    def __init__(self, vault: ReasoningCache, tenant: str, model: str) -> None:
        self._vault = vault
        self._tenant = tenant
        self._model = model
        self._before: tuple[Reasoning, ...] = ()
        self._after: tuple[Reasoning, ...] = ()
        self._spoken = False
        self._led: _Led | None = None  # to the last call, and to those made together with it

    def add(self, item: Item) -> None:
        """The next item of the answer."""
        vault, tenant = self._vault, self._tenant
        match item:
            case Reasoning():
                if is_opaque(item):
                    vault.makers.put((tenant, _digest(item)), self._model, PER_KEY)
                if "inline" in (item.extra or {}):
                    pass  # it stands in the text, and comes back with it
                elif self._spoken:
                    self._after += (item,)
                else:
                    self._before += (item,)
            case Message():
                self._spoken = True
            case FunctionCall() | CustomToolCall():
                if self._before or self._after:
                    self._led = _Led(self._model, self._before, self._after)
                if self._led is not None:
                    key = _key(tenant, item)
                    vault.led.put(key, self._led, _weight(key, self._led))
                    vault.latest.put((tenant, item.call_id), key, PER_KEY)
                self._before, self._after, self._spoken = (), (), False


class _Restoring:
    """The items so far, and where what leads to the next call begins."""

    def __init__(self, model: str) -> None:
        self.items: list[Item] = []
        self.changed = False
        self._model = model
        self._start = 0
        self._restored: set[int] = set()
        self._dropped: dict[str, None] = {}

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What was left out because others made it."""
        return tuple(
            Loss(ENCRYPTED, "dropped", f"sealed by {maker}, and so left out for {self._model}")
            for maker in self._dropped
        )

    def add(self, item: Item) -> None:
        """An item that is no call, as it came."""
        self._begin(item)
        self.items.append(item)
        if not (isinstance(item, Message | Reasoning) and _of_a_turn(item)):
            self._start = len(self.items)

    def bring(self, item: Reasoning, maker: str | None) -> None:
        """A sealed item that the client brought, made by this model, another, or nobody knows."""
        readable = self._readable((item,), maker or self._model)
        self.changed = self.changed or readable != [item]
        for each in readable:
            self.add(each)

    def call(self, call: Call, led: _Led | None) -> None:
        """A call, with what led to it put back: once, unless it is there."""
        self._begin(call)
        if led is not None and id(led) not in self._restored:
            self._restored.add(id(led))
            stretch = self.items[self._start :]
            brought = [item for item in stretch if isinstance(item, Reasoning)]
            if not brought or _only_words(brought, led):
                self._put_back(led, stretch, call)
                return
        self.items.append(call)
        self._start = len(self.items)

    def _put_back(self, led: _Led, stretch: Sequence[Item], call: Call) -> None:
        before = self._readable(led.before, led.model)
        after = self._readable(led.after, led.model)
        rest = [item for item in stretch if not isinstance(item, Reasoning)]
        whole = _as_one_turn([*before, *rest, *after, call], (*stretch, call))
        self.changed = self.changed or whole != [*stretch, call]
        self.items[self._start :] = whole
        self._start = len(self.items)

    def _begin(self, item: Item) -> None:
        """A mark says that a turn begins here, right after another."""
        if "turn" in (item.extra or {}):
            self._start = len(self.items)

    def _readable(self, items: Iterable[Reasoning], maker: str) -> list[Item]:
        if maker == self._model:
            return list(items)
        plain: list[Item] = []
        for item in items:
            words: Reasoning | None = item
            if is_opaque(item):
                self._dropped[maker] = None
                words = in_words(item)
            plain += [] if words is None else [words]
        return plain


def _of_a_turn(item: Message | Reasoning) -> bool:
    return isinstance(item, Reasoning) or item.role == "assistant"


def _only_words(brought: Sequence[Reasoning], led: _Led) -> bool:
    """Whether a client brought the words of what led to a call, and nothing but them."""
    if any(is_opaque(item) for item in brought):
        return False
    words = _words(item.text for item in brought)
    shown = (
        part.text for i in led.items for part in (*i.summary, *i.content) if hasattr(part, "text")
    )
    return words in (_words(item.text for item in led.items), _words(shown))


def _words(texts: Iterable[str]) -> str:
    """Texts without the white space that wires put between them."""
    return "".join("".join(texts).split())


def _as_one_turn(whole: list[Item], stretch: Sequence[Item]) -> list[Item]:
    """The mark that a turn begins here goes to what begins it now."""
    if "turn" not in (stretch[0].extra or {}):
        return whole
    mark = {"turn": (stretch[0].extra or {})["turn"]}
    bare = [_unmarked(item) for item in whole]
    return [replace(bare[0], extra=(bare[0].extra or {}) | mark), *bare[1:]]


def _unmarked(item: Item) -> Item:
    extra = {name: value for name, value in (item.extra or {}).items() if name != "turn"}
    return replace(item, extra=extra or None)


def _key(tenant: str, call: Call) -> _Key:
    said = call.arguments if isinstance(call, FunctionCall) else call.input
    return _Key(tenant, call.call_id, call.name, said)


def _same(one: _Key, other: _Key) -> bool:
    """Whether two calls of one id are the same, but for how their arguments are written."""
    return one.name == other.name and _value(one.said) == _value(other.said)


def _value(said: str) -> object:
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        return said


def _digest(item: Reasoning) -> bytes:
    """What the opaque side of an item is known by; blobs may be long."""
    signed = {name: value for name, value in (item.extra or {}).items() if name not in OURS}
    sealed = item.encrypted or json.dumps(signed, sort_keys=True)
    return hashlib.sha256(sealed.encode("utf-8", "surrogatepass")).digest()


def _weight(key: _Key, led: _Led) -> int:
    return PER_KEY + len(key.said) + sum(len(repr(item)) for item in led.items)


class CachingReasoning(Wrapper):
    """Middleware that stores what led to calls, and restores it in requests that lack it."""

    acts_on = frozenset(("tools", Reasoning))

    def __init__(self, engine: Engine, vault: ReasoningCache | None = None) -> None:
        super().__init__(engine)
        self.vault = ReasoningCache() if vault is None else vault

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Restore reasoning, and record the answer, where calls may be made or have been, or
        reasoning was brought."""
        if not request.tools and Reasoning not in map(type, request.items):
            return None
        items, losses = self.vault.recall(caller.tenant, request.model, request.items)
        asked = request if items is request.items else replace(request, items=items)
        return Prepared(asked, _Recorder(self.vault, caller.tenant, request.model, losses).map)


class _Recorder:
    """Stores the items of an answer as they are done, each choice by itself: a client may bring
    back an answer that was cancelled after a call."""

    def __init__(
        self, vault: ReasoningCache, tenant: str, model: str, losses: tuple[Loss, ...]
    ) -> None:
        self._new = partial(_Recording, vault, tenant, model)
        self._losses = losses
        self._choices: list[int] = []  # by index
        self._done: dict[int, Item] = {}  # by index, while an earlier item is open
        self._next = 0
        self._recordings: dict[int, _Recording] = {}  # by choice

    def map(self, events: list[Event]) -> list[Event]:
        """The same events; the losses are added to the first."""
        for event in events:
            if type(event) is ItemDone:
                self._done[event.index] = event.item
                while self._next in self._done:
                    self._record(self._next)
                    self._next += 1
            elif type(event) is ItemAdded:
                self._choices.append(event.choice)
        if self._done and isinstance(events[-1], ENDS):  # what is open now stays open
            for index in sorted(self._done):
                self._record(index)
        if self._losses and isinstance(started := events[0], Started):
            return [replace(started, losses=(*started.losses, *self._losses)), *events[1:]]
        return events

    def _record(self, index: int) -> None:
        choice = self._choices[index]
        recording = self._recordings.get(choice)
        if recording is None:
            recording = self._recordings[choice] = self._new()
        recording.add(self._done.pop(index))
