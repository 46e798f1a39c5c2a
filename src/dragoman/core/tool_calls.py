"""Sorts fragments of tool calls into calls, and finds when arguments are complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from .error import TOO_MANY, FaultError
from .item import Extra

LONGEST = 128 * 1024
"""Characters that are scanned for the end of arguments, of all calls of an answer together: that
is done in one piece, and what is longer counts as incomplete."""
_STRUCTURE = re.compile(r'\\.|\\\Z|["{}]', re.DOTALL)


class CallFragment(Struct, frozen=True, omit_defaults=True):
    """A piece of a tool call as a stream brought it; anything may be missing."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    custom: bool = False
    namespace: str | None = None
    extra: Extra | None = None
    last: bool = False
    """Whether nothing more of this call will come."""

    @property
    def opens(self) -> bool:
        """Whether the arguments look like the beginning of an object."""
        return self.arguments.lstrip()[:1] == "{"


class Unread:
    """How many more characters of arguments are scanned for their end, in one answer."""

    left = LONGEST


class LooseCall:
    """One call as far as its fragments go. `item` is its index in the answer once announced, and
    `placeholder` is whether its arguments began with an empty object that may mean nothing."""

    __slots__ = (
        "_carry",
        "_complete",
        "_depth",
        "_in_string",
        "_opened",
        "_scanned",
        "_trailing",
        "_unknown",
        "_unread",
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

    def __init__(self, fragment: CallFragment, unread: Unread | None = None) -> None:
        self.index = fragment.index
        self.id = fragment.id or None
        self.name = fragment.name or None
        self.custom = fragment.custom
        self.namespace = fragment.namespace
        self.extra = fragment.extra
        self.pieces: list[str] = []
        self.placeholder = False
        self.item: int | None = None
        # How the JSON of the pieces stands, so that only text whose braces are closed is parsed.
        self._scanned = 0  # pieces
        self._unread, self._unknown = unread or Unread(), False
        self._depth = 0
        self._opened = False
        self._in_string = False
        self._trailing = False  # text came after the end
        self._carry = ""  # a backslash at the end of a piece
        self._complete: bool | None = False  # None: not known

    def update(self, fragment: CallFragment) -> None:
        """Set what was not known before: a late id, a late name and what comes with it."""
        self.extra = fragment.extra or self.extra
        self.id = self.id or fragment.id or None
        if self.name is None:
            self.name = fragment.name or None
            self.custom = self.custom or fragment.custom
            self.namespace = self.namespace or fragment.namespace

    @property
    def complete(self) -> bool:
        """Whether the arguments are a complete JSON object that is not empty; of long ones this is
        not known."""
        if self.custom:
            return False
        for piece in self.pieces[self._scanned :]:
            self._unread.left -= len(piece)
            self._unknown = self._unknown or self._unread.left < 0
            if not self._unknown:
                self._scan(piece)
        self._scanned = len(self.pieces)
        if self._unknown:
            return False
        if self._complete is None:
            value = None
            if self._opened and self._depth == 0 and not self._trailing:
                with suppress(ValueError, RecursionError):
                    value = json.loads("".join(self.pieces))
            self._complete = isinstance(value, dict) and bool(value)
        return self._complete

    @property
    def ended(self) -> bool:
        """Whether arguments that are too long to know may be complete, by their last character:
        no JSON goes on with an object there."""
        return self._unknown and "".join(self.pieces[-1:]).rstrip()[-1:] == "}"

    @property
    def whole(self) -> bool:
        """The same, an empty object included."""
        return self.complete or (self.placeholder and not self.pieces)

    def _scan(self, piece: str) -> None:
        if not piece.strip():
            return
        self._complete = None
        self._trailing = self._trailing or (self._opened and self._depth == 0)
        text, self._carry = self._carry + piece, ""
        for mark in _STRUCTURE.findall(text):
            if mark == '"':
                self._in_string = not self._in_string
            elif mark == "\\":
                self._carry = mark
            elif not self._in_string and mark == "{":
                self._opened = True
                self._depth += 1
            elif not self._in_string and mark == "}":
                self._depth -= 1


class CallSorter:
    """The calls of one choice, in order of first appearance."""

    __slots__ = ("_again", "_by_id", "_by_index", "_room", "_unread", "calls")

    def __init__(self, room: Iterator[None], unread: Unread | None = None) -> None:
        self._unread = unread
        self._room = room  # one for each call that the answer may still have
        self.calls: list[LooseCall] = []
        self._by_id: dict[str, LooseCall] = {}
        self._by_index: dict[int, LooseCall] = {}
        self._again: str | None = None  # a name sent again once its call was complete

    def sort(self, fragment: CallFragment) -> LooseCall | None:
        """The call this fragment belongs to, a new one where it begins one.

        None for an empty fragment that continues nothing. Raises FaultError for one call too many.
        """
        at = self._by_index.get(fragment.index) if fragment.index is not None else None
        last = self.calls[-1] if self.calls else None
        known = last if fragment.index is None else at
        if (
            known is not None
            and known.name is not None
            and not (fragment.id or fragment.name or fragment.extra)
            and fragment.arguments.lstrip()[:1] != "{"
        ):
            return known  # as nearly all: more arguments of a call that has its name
        call = self._find(fragment, at, last)
        if call is None:
            if not (fragment.id or fragment.name or fragment.arguments):
                return None
            if next(self._room, self) is self:
                raise FaultError(TOO_MANY)
            call = LooseCall(fragment, self._unread)
            call.name, self._again = call.name or self._again, None
            self.calls.append(call)
        elif fragment.name and fragment.name == call.name and not fragment.arguments.strip():
            self._again = call.name if call.complete else None
        call.update(fragment)
        if fragment.id:
            self._by_id[fragment.id] = call
        if fragment.index is not None:
            self._by_index[fragment.index] = call
        return call

    def _find(
        self, fragment: CallFragment, at: LooseCall | None, last: LooseCall | None
    ) -> LooseCall | None:
        """The known call a fragment continues, by the rules of `docs/reference/behaviours.md`.

        `at` has the same index, `last` came last.
        """
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
            return None  # two calls that both send their arguments before their names
        if _begins(known, fragment) and (at is None or self._again == known.name):
            return None  # the known call is complete: these are arguments of one yet to be named
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
    """Whether a fragment begins a call of its own, given what is known of this one."""
    if fragment.name and known.name is not None and fragment.name != known.name:
        return True
    if fragment.arguments == "{}" and fragment.name and known.placeholder and not known.pieces:
        return True
    return fragment.opens and (known.complete or (bool(fragment.name) and known.ended))
