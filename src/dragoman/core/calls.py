"""Tells which tool call a loose fragment belongs to.

Servers leave out indices, give every call the same one, repeat ids, or put the name after the
arguments. This module sorts fragments into calls by identity first (id), then by index, then by
what the fragments themselves show; it emits nothing and knows no wire.
"""

from __future__ import annotations

import json

from msgspec import Struct


class CallFragment(Struct, frozen=True, omit_defaults=True):
    """A piece of a tool call as a stream gave it; anything may be missing."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    custom: bool = False
    namespace: str | None = None


class LooseCall:
    """One call as far as its fragments go. `item` is its index in the answer once announced."""

    __slots__ = ("custom", "id", "index", "item", "name", "namespace", "pieces", "shut")

    def __init__(self, fragment: CallFragment) -> None:
        self.index = fragment.index
        self.id = fragment.id
        self.name = fragment.name
        self.custom = fragment.custom
        self.namespace = fragment.namespace
        self.pieces: list[str] = []
        self.item: int | None = None
        self.shut = False

    @property
    def complete(self) -> bool:
        """Whether the arguments are a whole JSON object already (one that says something)."""
        return not self.custom and is_object("".join(self.pieces))


class CallSorter:
    """The calls of one choice, in order of first appearance."""

    __slots__ = ("_by_id", "_by_index", "calls")

    def __init__(self) -> None:
        self.calls: list[LooseCall] = []
        self._by_id: dict[str, LooseCall] = {}
        self._by_index: dict[int, LooseCall] = {}

    def sort(self, fragment: CallFragment) -> LooseCall:
        """The call this fragment belongs to, made anew where it begins one."""
        call = self._find(fragment)
        if call is None:
            call = LooseCall(fragment)
            self.calls.append(call)
        elif call.name is None:
            call.name = fragment.name
            call.custom = call.custom or fragment.custom
            call.namespace = call.namespace or fragment.namespace
        if call.id is None:
            call.id = fragment.id
        if fragment.id:
            self._by_id.setdefault(fragment.id, call)
        if fragment.index is not None:
            self._by_index[fragment.index] = call
        return call

    def _find(self, fragment: CallFragment) -> LooseCall | None:
        if fragment.id:
            return self._find_by_id(fragment, fragment.id)
        at = self._by_index.get(fragment.index) if fragment.index is not None else None
        last = self.calls[-1] if self.calls else None
        known = at or last
        if known is None:
            return None
        if fragment.name:
            # A name where one is known starts a new call, unless it only repeats the name.
            if at is None and fragment.index is not None and known.name is not None:
                return None
            return None if known.name is not None and _begins(known, fragment) else known
        if at is None and known.name is not None and known.complete and fragment.arguments.strip():
            return None  # the last call is whole: these arguments are before their name
        return known

    def _find_by_id(self, fragment: CallFragment, id: str) -> LooseCall | None:
        same = self._by_id.get(id)
        at = self._by_index.get(fragment.index) if fragment.index is not None else None
        if same is not None:
            # The same id on another index, with a name: two calls that share an id.
            moved = fragment.index is not None and fragment.index != same.index
            if moved and at is None and fragment.name and same.index is not None:
                return None
            if moved and at is not None and at.id == id:
                return at
            return None if fragment.name and _begins(same, fragment) else same
        if at is not None and at.id is None and (at.name is None or at.name == fragment.name):
            return at  # the id came late
        if at is not None and at.id is None and fragment.name is None:
            return at
        last = self.calls[-1] if self.calls else None
        if fragment.index is None and last is not None and last.id is None and not fragment.name:
            return last
        return None


def _begins(known: LooseCall, fragment: CallFragment) -> bool:
    """Whether a named fragment is a new call rather than more of a known one."""
    if known.name != fragment.name:
        return True
    return known.complete and fragment.arguments.lstrip().startswith("{")


def is_object(text: str) -> bool:
    """Whether the text is a whole, non-empty JSON object."""
    bare = text.strip()
    if len(bare) < 3 or bare[0] != "{" or bare[-1] != "}":
        return False
    try:
        return bool(json.loads(bare))
    except (ValueError, RecursionError):
        return False
