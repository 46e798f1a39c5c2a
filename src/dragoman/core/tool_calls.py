"""Decides which tool call a loose fragment belongs to."""

from __future__ import annotations

import json
import re

from msgspec import Struct

from .item import Extra

_MARK = re.compile(r'\\.|\\\Z|["{}]', re.DOTALL)


class CallFragment(Struct, frozen=True, omit_defaults=True):
    """A piece of a tool call as a stream gave it; anything may be missing."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    custom: bool = False
    namespace: str | None = None
    extra: Extra | None = None
    last: bool = False
    """Nothing more of this call will come."""

    @property
    def opens(self) -> bool:
        """Whether the arguments look like the beginning of an object."""
        return self.arguments.lstrip()[:1] == "{"


class LooseCall:
    """One call as far as its fragments go. `item` is its index in the answer once announced."""

    __slots__ = (
        "_braces",
        "_scanned",
        "custom",
        "extra",
        "id",
        "index",
        "item",
        "name",
        "namespace",
        "pieces",
        "placeholder",
    )

    def __init__(self, fragment: CallFragment) -> None:
        self.index = fragment.index
        self.id = fragment.id or None
        self.name = fragment.name or None
        self.custom = fragment.custom
        self.namespace = fragment.namespace
        self.extra = fragment.extra
        self.pieces: list[str] = []
        self.placeholder = False
        self.item: int | None = None
        self._braces = _Braces()
        self._scanned = 0

    def learn(self, fragment: CallFragment) -> None:
        """What was not known before: a late id, a late name and what comes with it."""
        self.extra = fragment.extra or self.extra
        self.id = self.id or fragment.id or None
        if self.name is None:
            self.name = fragment.name or None
            self.custom = self.custom or fragment.custom
            self.namespace = self.namespace or fragment.namespace

    def add(self, arguments: str) -> str:
        """Take a piece of the arguments and give what can be said of it now.

        Some servers open every call with `{}` and send the arguments after it: the empty object
        waits, and is said at the end if it was all.
        """
        if arguments == "{}" and not self.pieces and not self.custom:
            self.placeholder = True
            return ""
        if arguments:
            self.pieces.append(arguments)
        return arguments

    @property
    def complete(self) -> bool:
        """Whether the arguments are a whole JSON object (one that says something)."""
        if self.custom:
            return False
        fresh, self._scanned = self.pieces[self._scanned :], len(self.pieces)
        for piece in fresh:
            self._braces.feed(piece)
        return self._braces.whole(self.pieces)

    @property
    def whole(self) -> bool:
        """The same, the empty object included."""
        return self.complete or (self.placeholder and not self.pieces)


class CallSorter:
    """The calls of one choice, in order of first appearance."""

    __slots__ = ("_again", "_by_id", "_by_index", "calls")

    def __init__(self) -> None:
        self.calls: list[LooseCall] = []
        self._by_id: dict[str, LooseCall] = {}
        self._by_index: dict[int, LooseCall] = {}
        self._again: str | None = None  # a name given again once its call was whole

    def sort(self, fragment: CallFragment) -> LooseCall | None:
        """The call this fragment belongs to, made anew where it begins one.

        None for a fragment that says nothing and continues nothing.
        """
        call = self._find(fragment)
        if call is None:
            if not (fragment.id or fragment.name or fragment.arguments):
                return None
            call = LooseCall(fragment)
            call.name, self._again = call.name or self._again, None
            self.calls.append(call)
        elif fragment.name and fragment.name == call.name and not fragment.arguments.strip():
            self._again = call.name if call.complete else None
        call.learn(fragment)
        if fragment.id:
            self._by_id[fragment.id] = call
        if fragment.index is not None:
            self._by_index[fragment.index] = call
        return call

    def _find(self, fragment: CallFragment) -> LooseCall | None:
        at = self._by_index.get(fragment.index) if fragment.index is not None else None
        last = self.calls[-1] if self.calls else None
        if fragment.id:
            return self._find_by_id(fragment, fragment.id, at, last)
        known = at or last
        if known is None:
            return None
        fresh = at is None and fragment.index is not None  # an index never seen
        if fragment.name:
            elsewhere = fresh and (known.name is not None or known.index is not None)
            return None if elsewhere or _begins(known, fragment) else known
        if fresh and known.name is None and known.index is not None:
            return None  # two calls that both give their arguments before their names
        if _begins(known, fragment) and (at is None or self._again == known.name):
            return None  # the known call is whole: these are the arguments of one yet to be named
        return known

    def _find_by_id(
        self, fragment: CallFragment, id: str, at: LooseCall | None, last: LooseCall | None
    ) -> LooseCall | None:
        same = self._by_id.get(id)
        if same is not None:
            if fragment.index is not None and same.index not in (None, fragment.index):
                if at is not None and at.id == id:
                    return at  # one of two calls that share an id
                if at is None and fragment.name and (fragment.opens or not fragment.arguments):
                    return None  # the second of them begins
            return None if _begins(same, fragment) else same
        for known in (at, last if fragment.index is None else None):
            if known is not None and known.id is None and not _begins(known, fragment):
                return known  # the id came late
        return None


def _begins(known: LooseCall, fragment: CallFragment) -> bool:
    """Whether a fragment must be a new call, as far as a known one tells."""
    if fragment.name and known.name is not None and fragment.name != known.name:
        return True
    if fragment.arguments == "{}" and fragment.name and known.placeholder and not known.pieces:
        return True
    return fragment.opens and known.complete


class _Braces:
    """Follows JSON text piece by piece, so that only a text whose braces are closed is parsed."""

    __slots__ = ("_carry", "_depth", "_known", "_opened", "_quoted", "_spoilt")

    def __init__(self) -> None:
        self._depth = 0
        self._opened = False
        self._quoted = False
        self._spoilt = False  # something came after the end
        self._carry = ""
        self._known: bool | None = None

    @property
    def _closed(self) -> bool:
        return self._opened and self._depth == 0

    def feed(self, piece: str) -> None:
        """Take a piece."""
        if not piece.strip():
            return
        self._known = None
        self._spoilt = self._spoilt or self._closed
        text, self._carry = self._carry + piece, ""
        for mark in _MARK.findall(text):
            if mark == '"':
                self._quoted = not self._quoted
            elif mark == "\\":
                self._carry = mark
            elif not self._quoted and mark == "{":
                self._opened = True
                self._depth += 1
            elif not self._quoted and mark == "}":
                self._depth -= 1

    def whole(self, pieces: list[str]) -> bool:
        """Whether the pieces are an object with something in it."""
        if self._known is None:
            parsable = self._closed and not self._spoilt
            self._known = parsable and _says_something("".join(pieces))
        return self._known


def _says_something(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value)
