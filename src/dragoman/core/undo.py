"""Undoes on the events of an answer what was done to its request.

Calls get back their own names and kinds, and a call that was not allowed never reaches the client.
Both turn legal events into legal events; neither knows a wire.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from .event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from .item import (
    CustomToolCall,
    FunctionCall,
    Message,
    Reasoning,
    Summary,
    Text,
    Thought,
)
from .ledger import Ledger
from .request import Request
from .toolbox import Toolbox

Undo = Callable[[Event], list[Event]]
"""Takes an event of the upstream's answer and gives what the client sees of it."""


class Renamer:
    """Gives calls back the names and kinds their client knows.

    The input of a custom tool that was offered as a function is known when its arguments are
    whole, and comes in one piece then.
    """

    __slots__ = ("_box", "_waiting")

    def __init__(self, box: Toolbox) -> None:
        self._box = box
        self._waiting: dict[int, tuple[FunctionCall, list[str]]] = {}

    def feed(self, event: Event) -> list[Event]:
        """The events to pass on for this one."""
        match event:
            case Delta(index=index):
                if index not in self._waiting:
                    return [event]
                self._waiting[index][1].append(event.data)
                return []
            case ItemAdded(index=index, item=FunctionCall() | CustomToolCall() as call):
                own = self._box.restore(call)
                if isinstance(call, FunctionCall) and isinstance(own, CustomToolCall):
                    self._waiting[index] = call, []
                return [replace(event, item=own)]
            case ItemDone(index=index, item=FunctionCall() | CustomToolCall() as call):
                own = self._box.restore(call)
                whole = self._waiting.pop(index, None) is not None
                return [*(_input(index, own) if whole else ()), replace(event, item=own)]
            case Failed():
                return [*self._cut_short(), event]
            case _:
                return [event]

    def _cut_short(self) -> list[Event]:
        """What had come of inputs that will not be finished."""
        waiting, self._waiting = self._waiting, {}
        return [
            delta
            for index, (call, pieces) in waiting.items()
            for delta in _input(index, self._box.restore(replace(call, arguments="".join(pieces))))
        ]


def _input(index: int, call: FunctionCall | CustomToolCall) -> list[Event]:
    said = call.input if isinstance(call, CustomToolCall) else call.arguments
    return [Delta(index, 0, "input", said)] if said else []


class _Choice:
    """What one alternative of the answer kept, and whether a call of it was held back."""

    __slots__ = ("calls", "held_back", "items")

    def __init__(self) -> None:
        self.calls = 0
        self.items = 0
        self.held_back = False


class Suppressor:
    """Holds back the calls of tools that were not allowed, and tells so at the end.

    `allowed` holds pairs of a namespace (or None) and a name. Indices stay dense; a choice whose
    calls were all held back did not end with calls, and one with nothing left says nothing.
    """

    __slots__ = ("_allowed", "_choices", "_id", "_indices", "_ledger", "_names", "_next")

    def __init__(self, allowed: frozenset[tuple[str | None, str]]) -> None:
        self._allowed = allowed
        self._names = {name for _, name in allowed}
        self._ledger = Ledger()
        self._choices: dict[int, _Choice] = {}
        self._indices: list[int | None] = []  # by the upstream's index: ours, or None if held back
        self._next = 0
        self._id = ""

    def feed(self, event: Event) -> list[Event]:
        """The events to pass on for this one."""
        match event:
            case Delta() | PartAdded() | PartDone() | ItemDone() | Progress(index=int()):
                return self._inside(event, event.index or 0)
            case ItemAdded():
                return self._added(event)
            case Finished():
                return self._finish(event)
            case Started():
                self._id = event.id
        return [event]

    def _inside(
        self, event: Delta | PartAdded | PartDone | ItemDone | Progress, index: int
    ) -> list[Event]:
        ours = self._indices[index]
        if ours == index:
            return [event]
        return [] if ours is None else [replace(event, index=ours)]

    def _added(self, event: ItemAdded) -> list[Event]:
        choice = self._choices.setdefault(event.choice, _Choice())
        called = isinstance(event.item, FunctionCall | CustomToolCall)
        if isinstance(event.item, FunctionCall | CustomToolCall) and not self._may(event.item):
            choice.held_back = True
            self._indices.append(None)
            why = f"a call of {event.item.name!r}, which is not allowed, was held back"
            self._ledger.note("tool_choice", "told", why)
            return []
        choice.items += 1
        choice.calls += called
        index, self._next = self._next, self._next + 1
        self._indices.append(index)
        return [event if index == event.index else replace(event, index=index)]

    def _may(self, call: FunctionCall | CustomToolCall) -> bool:
        if call.namespace is None and call.name in self._names:
            return True  # an upstream may leave the namespace out
        return (call.namespace, call.name) in self._allowed

    def _finish(self, event: Finished) -> list[Event]:
        losses = self._ledger.losses()
        if not losses:
            return [event]
        reasons = list(event.reasons)
        said: list[Event] = []
        for number, choice in self._choices.items():
            bereft = choice.held_back and not choice.calls
            if bereft and number < len(reasons) and reasons[number] == "tool_calls":
                reasons[number] = "stop"
            if not choice.items:
                said += self._silence(number)
        end = replace(event, reasons=tuple(reasons), losses=(*event.losses, *losses))
        return [*said, end]

    def _silence(self, choice: int) -> list[Event]:
        """A message that says nothing. Its id counts on from those of all items so far."""
        id = f"msg_{self._id}_{len(self._indices)}"
        self._indices.append(self._next)
        index, self._next = self._next, self._next + 1
        message = Message("assistant", (Text(""),), id, "completed")
        return [
            ItemAdded(index, replace(message, content=(), status="in_progress"), choice),
            PartAdded(index, 0, Text("")),
            PartDone(index, 0, Text("")),
            ItemDone(index, message),
        ]


class Summariser:
    """Gives open reasoning as the summary that was asked for, too.

    The summary comes as the model thinks; the reasoning itself follows whole, as summary parts come
    before content parts in a Responses stream. An item that begins with a summary of the upstream's
    own is left alone.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, _Summarised] = {}  # by index, once reasoning has begun in them

    def feed(self, event: Event) -> list[Event]:
        """The events to pass on for this one."""
        match event:
            case PartAdded(index=index, part=Thought()) if index not in self._items:
                self._items[index] = _Summarised()
            case PartAdded(index=index, part=Summary()) if index not in self._items:
                self._items[index] = _Summarised(native=True)
        match event:
            case PartAdded() | Delta() | PartDone() | ItemDone():
                item = self._items.get(event.index)
                return [event] if item is None or item.native else item.feed(event)
            case _:
                return [event]


class _Summarised:
    """A reasoning item with an emulated summary."""

    __slots__ = ("_content", "_numbers", "_summary", "native")

    def __init__(self, *, native: bool = False) -> None:
        self.native = native
        self._numbers: dict[tuple[bool, int], int] = {}  # by (is a summary, part): summary index
        self._summary: dict[int, Summary] = {}
        self._content: list[Event] = []  # which waits for the end of the item

    def feed(self, event: PartAdded | Delta | PartDone | ItemDone) -> list[Event]:
        """The events to pass on for one about the item."""
        match event:
            case PartAdded(index, part_index, Thought() | Summary() as part):
                number = len(self._numbers)
                self._numbers[isinstance(part, Summary), part_index] = number
                return [PartAdded(index, number, Summary(""))]
            case Delta(index, part_index, "reasoning" | "summary" as kind, data):
                number = self._numbers[kind == "summary", part_index]
                return [Delta(index, number, "summary", data)] if data else []
            case PartDone(index, part_index, Thought() | Summary() as part):
                number = self._numbers[isinstance(part, Summary), part_index]
                if isinstance(part, Thought):
                    self._content += [
                        PartAdded(index, part_index, replace(part, text="", tokens=())),
                        Delta(index, part_index, "reasoning", part.text, part.tokens),
                        event,
                    ]
                    part = Summary(part.text)
                self._summary[number] = part
                return [PartDone(index, number, part)]
            case ItemDone(item=Reasoning() as item):
                summary = tuple(self._summary[number] for number in sorted(self._summary))
                return [*self._content, replace(event, item=replace(item, summary=summary))]
            case _:
                self._content.append(event)
                return []


def summarised(request: Request, undo: Undo | None = None) -> Undo | None:
    """The same, with a summary of open reasoning where the request asks for one."""
    if request.reasoning is None or request.reasoning.summary is None:
        return undo
    summarise = Summariser().feed
    return summarise if undo is None else in_turn(undo, summarise)


def undone(undo: Undo | None, batch: list[Event]) -> list[Event]:
    """A batch of events as the client sees it.

    >>> undone(None, []), undone(Summariser().feed, [])
    ([], [])
    """
    return batch if undo is None else [seen for event in batch for seen in undo(event)]


def in_turn(first: Undo, second: Undo) -> Undo:
    """Both, one after the other."""

    def undo(event: Event) -> list[Event]:
        return [last for between in first(event) for last in second(between)]

    return undo
