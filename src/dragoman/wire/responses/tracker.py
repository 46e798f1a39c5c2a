"""Tracks the items of a Responses stream while a server sends them."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.event import DeltaKind
from dragoman.core.fold import item_closed, unfold_item
from dragoman.core.item import (
    JSON,
    Annotation,
    CustomToolCall,
    FunctionCall,
    Item,
    Part,
    Summary,
    Token,
)
from dragoman.core.open_item import OpenItem, OpenPart, empty_part, part_kind
from dragoman.core.turn import Turn

from .items import hosted

CALLS: tuple[type[FunctionCall], type[CustomToolCall]] = (FunctionCall, CustomToolCall)
Types = tuple[type[Item], ...]
Target = tuple[OpenItem, DeltaKind, int | None]
"""An open item, and the kind and number of what is written to it."""
LastDelta = tuple[str, tuple[JSON, JSON, JSON], Target]
"""The field that numbers parts, the place by the upstream (item, output, part), and the target."""


class _Numbers:
    """The numbers of the parts in one list of an item: as the upstream counts, and as we do."""

    __slots__ = ("_count", "_known", "_open")

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._open: dict[str, int] = {}  # the last part of each kind, while it is open
        self._count = 0

    def begin(self, kind: str, given: JSON) -> int:
        """The number of a part that begins."""
        number, self._count = self._count, self._count + 1
        if isinstance(given, int):
            self._known[given] = number
        self._open[kind] = number
        return number

    def find(self, kind: str, given: JSON) -> int:
        """The number of the part that is meant: the one of that number, else the open one of
        that kind, else one that begins now."""
        number = self._known.get(given) if isinstance(given, int) else None
        if number is None:
            number = self._open.get(kind)
        return self.begin(kind, given) if number is None else number

    def end(self, kind: str, number: int) -> None:
        """The part is done: more of its kind without a known number is another part."""
        if self._open.get(kind) == number:
            del self._open[kind]


class ItemState:
    """An item under the names the upstream has for it: id, call id, place in the output."""

    __slots__ = (
        "_announced",
        "_numbers",
        "_turn",
        "_waiting",
        "call_id",
        "done",
        "id",
        "index",
        "kind",
        "place",
        "type",
    )

    def __init__(self, turn: Turn, item: Item, place: JSON) -> None:
        self.type = type(item)
        self.id = item.id
        self.call_id = getattr(item, "call_id", None)
        self.kind = hosted(item)
        self.place = place
        self.done = False
        self.index: int | None = None  # in the turn, once it is open there
        self._announced = item
        self._turn = turn
        self._waiting: list[str] = []  # arguments of a call without a name
        self._numbers = {False: _Numbers(), True: _Numbers()}  # content, summary
        self.open(item)

    def is_open(self, wanted: Types) -> bool:
        """Whether the item is of one of these types and not done."""
        return not self.done and self.type in wanted

    def open(self, item: Item) -> None:
        """Open the item in the turn, unless it is a call that has no name."""
        if self.index is not None or (isinstance(item, CALLS) and not item.name):
            return
        self.index = self._turn.open(item)
        if self._waiting:
            self.write("arguments", "".join(self._waiting))

    def name(self, name: JSON, call_id: JSON) -> None:
        """A call that was still without a name has one now."""
        if self.index is None and isinstance(name, str) and name:
            id = call_id if isinstance(call_id, str) else self.call_id
            self.open(replace(self._announced, call_id=id, name=name))

    def write(
        self, kind: DeltaKind, data: str, given: JSON = None, tokens: tuple[Token, ...] = ()
    ) -> Target | None:
        """More of the item, in the part the upstream gives a number for. Gives where the next piece
        of the same goes; None where that is not known."""
        if self.index is None:
            self._waiting.append(data)
            return None
        number = None
        if self.type in CALLS:
            kind = self._call_kind
        else:
            number = self._numbers[kind == "summary"].find(kind, given)
        self._turn.write(self.index, kind, data, number, tokens)
        item = self._item
        return None if item is None else (item, kind, number)

    def whole(self, kind: DeltaKind, data: str, given: JSON, tokens: tuple[Token, ...]) -> None:
        """The whole of a part or of a call; it counts where no delta brought any of it."""
        item = self._item
        if item is None:
            if not self._waiting:
                self._waiting.append(data)
        elif self.type in CALLS:
            if not str(item.data):
                self.write(kind, data)
        elif not str(self._part(item, kind, given).data):
            self.write(kind, data, given, tokens)

    def annotate(self, note: Annotation, given: JSON) -> None:
        """A note on a part's text."""
        if (item := self._item) is not None:
            self._turn.emit(item.annotate(note, self._numbers[False].find("text", given)))

    def begin_part(self, part: Part, given: JSON) -> None:
        """A part begins, as a rule still empty."""
        if (item := self._item) is not None:
            kind = part_kind(part)
            number = self._numbers[isinstance(part, Summary)].begin(kind, given)
            self._turn.emit(item.at(kind, number, empty_part(part))[0])
            if text := getattr(part, "text", ""):
                self._turn.write(item.index, kind, text, number)

    def end_part(self, part: Part, given: JSON) -> None:
        """A part is done; it is here whole."""
        if (item := self._item) is not None:
            numbers, kind = self._numbers[isinstance(part, Summary)], part_kind(part)
            number = numbers.find(kind, given)
            events, opened = item.at(kind, number, empty_part(part))
            self._turn.emit([*events, *item.close_part(opened, part)])
            numbers.end(kind, number)

    def end(self, final: Item) -> None:
        """The item is done; it is here whole."""
        self.open(final)
        self.done = True
        if self.index is not None:
            self._turn.close(self.index, final)

    def leave(self, item: Item) -> None:
        """All there is of an item in an answer that failed: it stays open if it was."""
        if item_closed(item):
            self.end(item)
        elif self.index is not None:
            self._turn.emit([*unfold_item(self.index, item, closed=False)][1:])

    @property
    def _item(self) -> OpenItem | None:
        return None if self.index is None else self._turn.item(self.index)

    @property
    def _call_kind(self) -> DeltaKind:
        return "input" if self.type is CustomToolCall else "arguments"

    def _part(self, item: OpenItem, kind: DeltaKind, given: JSON) -> OpenPart:
        number = self._numbers[kind == "summary"].find(kind, given)
        events, part = item.at(kind, number)
        self._turn.emit(events)
        return part


class ItemTracker:
    """The items of one answer, as far as they have come."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._items: list[ItemState] = []
        self.last_delta: LastDelta | None = None  # if that was the last event
        self._last: ItemState | None = None

    def add(self, item: Item, place: JSON) -> ItemState:
        """A new item."""
        self._last = ItemState(self.turn, item, place)
        self._items.append(self._last)
        return self._last

    def find(self, id: JSON, place: JSON, wanted: Types) -> ItemState | None:
        """The item that is meant, among those of the wanted types that are not done."""
        last = self._last
        if last is not None and last.id == id and last.place == place and last.is_open(wanted):
            return last
        found = self._search(id, place, wanted)
        self._last = found or last
        return found

    def _search(self, id: JSON, place: JSON, wanted: Types) -> ItemState | None:
        open = [state for state in self._items if state.is_open(wanted)]
        same = [h for h in open if h.id == id] if id is not None else []
        if not same and place is not None:
            same = [h for h in open if h.place == place]
        elif not same and id is None:
            same = open
        return same[-1] if same else None

    def any(self, id: JSON, place: JSON) -> ItemState | None:
        """The item that is meant, open or done, of whatever type."""
        for state in reversed(self._items):
            if state.id == id if id is not None else state.place == place is not None:
                return state
        return None

    def reconcile(self, output: list[Item], *, failed: bool = False) -> None:
        """The whole output: the last word on what was streamed, and on what was not."""
        known = self._matched(output)
        for place, item in enumerate(output):
            state = known.get(place)
            if state is None:
                state = self.add(item, place)
                if failed:
                    state.leave(item)
            if not failed:
                state.end(item)

    def _matched(self, output: list[Item]) -> dict[int, ItemState]:
        """By place in the output, the items that were streamed: first those that have the same
        id, then those left over of the same type, in their order."""
        known: dict[int, ItemState] = {}
        left = list(self._items)
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
        return any(state.type in CALLS for state in self._items)

    @property
    def nameless(self) -> bool:
        """Whether a call never got its name."""
        return any(state.index is None for state in self._items)


def _identical(state: ItemState, item: Item) -> bool:
    call_id = getattr(item, "call_id", None)
    same = state.id == item.id if item.id is not None else False
    return _alike(state, item) and (same or (bool(call_id) and state.call_id == call_id))


def _alike(state: ItemState, item: Item) -> bool:
    return state.type is type(item)
