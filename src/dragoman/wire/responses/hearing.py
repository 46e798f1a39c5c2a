"""Which item of an answer is meant, when servers number items badly or not at all.

An item is known by its id, else by its place in the output, else by being the last of its kind
that is still open. What an event says of it is the business of `heard`.
"""

from __future__ import annotations

from dragoman.core.item import JSON, Item
from dragoman.core.turn import Turn

from .heard import CALLS, Heard, Types


class Hearing:
    """The items of one answer, as far as they were told of."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._heard: list[Heard] = []
        self._last: Heard | None = None

    def add(self, item: Item, place: JSON) -> Heard:
        """A new item."""
        self._last = Heard(self.turn, item, place)
        self._heard.append(self._last)
        return self._last

    def find(self, id: JSON, place: JSON, wanted: Types) -> Heard | None:
        """The item that is meant, among those of the wanted types that are not done."""
        last = self._last
        if last is not None and last.id == id and last.place == place and last.is_open(wanted):
            return last
        found = self._search(id, place, wanted)
        self._last = found or last
        return found

    def _search(self, id: JSON, place: JSON, wanted: Types) -> Heard | None:
        open = [heard for heard in self._heard if heard.is_open(wanted)]
        same = [h for h in open if h.id == id] if id is not None else []
        if not same and place is not None:
            same = [h for h in open if h.place == place]
        elif not same and id is None:
            same = open
        return same[-1] if same else None

    def any(self, id: JSON, place: JSON) -> Heard | None:
        """The item that is meant, open or done, of whatever type."""
        for heard in reversed(self._heard):
            if heard.id == id if id is not None else heard.place == place is not None:
                return heard
        return None

    def reconcile(self, output: list[Item], *, failed: bool = False) -> None:
        """The whole output: the last word on what was streamed, and on what was not."""
        known = self._matched(output)
        for place, item in enumerate(output):
            heard = known.get(place)
            if heard is None:
                heard = self.add(item, place)
                if failed:
                    heard.leave(item)
            if not failed:
                heard.end(item)

    def _matched(self, output: list[Item]) -> dict[int, Heard]:
        """By place in the output, the items that were heard of: first those that have the same
        id, then those left over of the same type, in their order."""
        known: dict[int, Heard] = {}
        left = list(self._heard)
        for same in (_identical, _alike):
            for place, item in enumerate(output):
                found = next((h for h in left if same(h, item)), None)
                if place not in known and found is not None:
                    known[place] = found
                    left.remove(found)
        return known

    @property
    def called(self) -> bool:
        """Whether any tool was called."""
        return any(heard.type in CALLS for heard in self._heard)

    @property
    def nameless(self) -> bool:
        """Whether a call never got its name."""
        return any(heard.index is None for heard in self._heard)


def _identical(heard: Heard, item: Item) -> bool:
    call_id = getattr(item, "call_id", None)
    same = heard.id == item.id if item.id is not None else False
    return _alike(heard, item) and (same or (bool(call_id) and heard.call_id == call_id))


def _alike(heard: Heard, item: Item) -> bool:
    return heard.type is type(item)
