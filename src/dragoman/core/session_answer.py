"""Rewrites the events of an engine's answer as the client of a session sees them.

The items are those that a session shows, under ids of the session, in dense places; refusals are
text; and whatever ends the answer, parts and items that are open are closed first.
"""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from .event import Delta, Event, ItemAdded, ItemDone, PartAdded, PartDone, Progress
from .item import Audio, FunctionCall, Item, ItemStatus, Message, Part, Refusal, Text, Unknown

SHOWN = frozenset(("mcp_call", "mcp_list_tools", "mcp_approval_request"))
"""Items of hosted tools that clients see; others are for the model alone."""


class Open(Struct):
    """An open item: its place among those that are shown, the client's parts that are done, those
    that are open by the engine's number, and the arguments of a call. `item` is the item as it was
    added."""

    item: Item
    place: int
    done: dict[int, Text | Audio] = field(default_factory=dict)
    parts: dict[int, tuple[int, Text | Audio, StringIO]] = field(default_factory=dict)
    arguments: StringIO = field(default_factory=StringIO)
    held: list[Event] | None = None


class AnswerView:
    """One answer. `hidden` are whole items that are not shown, which the model needs again.

    >>> view = AnswerView(lambda: "item_1")
    >>> view.feed(ItemAdded(0, Message("assistant", id="msg_1")))[0].item.id
    'item_1'
    >>> [type(event).__name__ for event in view.close()]
    ['ItemDone']
    """

    def __init__(self, make_id: Callable[[], str]) -> None:
        self.output: list[Item] = []
        self.hidden: list[Item] = []
        self.items: list[Item] = []
        """What was shown, as it was added, by its place."""
        self._make_id = make_id
        self._open: dict[int, Open] = {}
        self._unseen: set[int] = set()  # numbers of open items of the first choice

    def feed(self, event: Event) -> list[Event]:
        """What the client sees of an event."""
        if isinstance(event, ItemAdded):
            return self._item_added(event)
        index = getattr(event, "index", None)
        if index in self._unseen and isinstance(event, ItemDone):
            self._unseen.discard(index)
            self.hidden.append(replace(event.item, id=self._make_id()))
        if index is None or (open := self._open.get(index)) is None:
            return []
        match event:
            case PartAdded():
                return self._part_added(open, event)
            case PartDone(part_index=number):
                return self._part_done(open, number)
            case ItemDone(item=item):
                return self._item_done(index, item)
            case Delta():
                return self._delta(open, event)
        return self._progress(open, cast(Progress, event))

    def close(self) -> list[Event]:
        """The events that close what is open."""
        events: list[Event] = []
        for index, open in [*self._open.items()]:
            for number in [*open.parts]:
                events += self._part_done(open, number)
            events += self._item_done(index, None)
        return events

    def _item_added(self, event: ItemAdded) -> list[Event]:
        item = event.item
        if event.choice:
            return []
        if isinstance(item, Message | FunctionCall):
            item = replace(item, id=self._make_id(), status="in_progress")
        elif isinstance(item, Unknown) and item.kind in SHOWN:
            item = replace(item, id=self._make_id())
        else:
            self._unseen.add(event.index)
            return []
        place = len(self.items)
        self.items.append(item)
        called = isinstance(item, Unknown) and item.kind == "mcp_call"
        self._open[event.index] = Open(item, place, held=[] if called else None)
        return [ItemAdded(place, item)]

    def _progress(self, open: Open, event: Progress) -> list[Event]:
        state, shown = event.state, replace(event, index=open.place)
        if state == "raw":
            values = event.data.values() if isinstance(event.data, dict) else ()
            given = [fields["arguments"] for fields in values if "arguments" in fields]
            return self._argued(open, given[0]) if given else []
        if state == "in_progress" and open.held is not None:
            open.held.append(shown)
            return []
        return [*self._argued(open, open.arguments.getvalue()), shown]

    def _argued(self, open: Open, arguments: str) -> list[Event]:
        """The arguments of a call by the server, and that it is in progress: in sessions the one
        comes before the other, in responses it is the other way round."""
        held, open.held = open.held, None
        if held is None:
            return []
        return [Progress(open.place, "raw", {"realtime": {"arguments": arguments}}), *held]

    def _part_added(self, open: Open, event: PartAdded) -> list[Event]:
        part: Part = Text("") if isinstance(event.part, Refusal) else event.part
        if not isinstance(part, Text | Audio):
            return []
        place = len(open.done) + len(open.parts)
        open.parts[event.part_index] = place, part, StringIO()
        return [PartAdded(open.place, place, part)]

    def _delta(self, open: Open, event: Delta) -> list[Event]:
        kind = event.kind
        if kind == "arguments":
            open.arguments.write(event.data)
            return [Delta(open.place, 0, kind, event.data)]
        if event.part_index not in open.parts:
            return []
        place, part, pieces = open.parts[event.part_index]
        if kind in ("text", "refusal", "transcript"):
            pieces.write(event.data)
            kind = "transcript" if isinstance(part, Audio) else "text"
        elif kind != "audio":  # annotations
            return []
        return [Delta(open.place, place, kind, event.data)]

    def _part_done(self, open: Open, number: int) -> list[Event]:
        if number not in open.parts:
            return []
        place, part, pieces = open.parts.pop(number)
        text = pieces.getvalue()
        whole = replace(part, transcript=text) if isinstance(part, Audio) else Text(text)
        open.done[place] = whole
        return [PartDone(open.place, place, whole)]

    def _item_done(self, index: int, item: Item | None) -> list[Event]:
        """An item is complete; None for one that the end of its answer cut short."""
        open = self._open.pop(index)
        status: ItemStatus = "incomplete" if item is None else "completed"
        whole = open.item
        if isinstance(whole, Message):
            parts = tuple([open.done[place] for place in sorted(open.done)])
            whole = replace(whole, content=parts, status=status)
        elif isinstance(whole, FunctionCall):
            whole = replace(whole, arguments=open.arguments.getvalue(), status=status)
        elif item is not None:
            whole = replace(item, id=whole.id)
        self.output.append(whole)
        value = whole.value if isinstance(whole, Unknown) else {}
        return [*self._argued(open, value.get("arguments", "")), ItemDone(open.place, whole)]
