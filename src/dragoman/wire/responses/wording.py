"""What each event of an answer is called on this wire, and with which fields.

Gives names and fields, neither numbered nor encoded. Items come one after the other here, so an
item's place in the output is the number of items before it; pieces of content are counted inside
their item. An item or a piece that belongs to another wire has no place, and nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.event import Delta, ItemAdded, ItemDone, PartAdded, PartDone, Progress
from dragoman.core.item import (
    JSON,
    Audio,
    CustomToolCall,
    FunctionCall,
    Item,
    Part,
    Refusal,
    Summary,
    Text,
    Thought,
)

from . import items, parts
from .extras import WIRE
from .snapshot import item_id

Said = tuple[str, dict[str, JSON]]
"""The name of an event and its fields, all but its type and number."""

Inside = PartAdded | Delta | PartDone | ItemDone
ItemEvent = ItemAdded | Inside | Progress

STATES = {"partial": "partial_image"}
"""States of hosted tools that are called otherwise on this wire."""

_WORDS = {
    "text": "output_text",
    "transcript": "output_text",
    "refusal": "refusal",
    "summary": "reasoning_summary_text",
    "arguments": "function_call_arguments",
    "input": "custom_tool_call_input",
}
"""What the deltas of a kind are called; reasoning is called as the dialect has it."""


class _Place:
    """Where an item stands in the output, and what of it has been said."""

    __slots__ = ("contents", "fields", "kind", "notes")

    def __init__(self, item: Item, id: str, position: int) -> None:
        self.fields: dict[str, JSON] = {"item_id": id, "output_index": position}
        self.kind = items.hosted(item)
        self.contents: dict[int, int] = {}  # our number of a part: its number here
        self.notes: dict[int, int] = {}  # our number of a part: annotations so far

    def open(self, part: Part, number: int) -> dict[str, JSON] | None:
        """Where a part stands, from now on; None if it has no place here."""
        if isinstance(part, Summary):
            return {**self.fields, "summary_index": number}
        if parts.encode(part) is None:
            return None
        self.contents[number] = len(self.contents)
        return self.at(number)

    def at(self, number: int) -> dict[str, JSON] | None:
        """Where a part stands that is no summary."""
        position = self.contents.get(number)
        return None if position is None else {**self.fields, "content_index": position}


class Wording:
    """Finds the words for the items of one answer. `reasoning` is what raw reasoning is called."""

    def __init__(self, reasoning: str) -> None:
        self.response_id = ""
        self._words = {**_WORDS, "reasoning": reasoning}
        self._places: dict[int, _Place] = {}  # by our index

    def say(self, event: ItemEvent) -> Iterator[Said]:
        """The events to say for one about an item, or beside all items."""
        match event:
            case ItemAdded(index=index, item=item):
                yield from self._item_added(index, item)
            case Progress():
                yield from self._progress(event)
            case _ if (place := self._places.get(event.index)) is not None:
                yield from self._inside(place, event)

    def _item_added(self, index: int, item: Item) -> Iterator[Said]:
        id, position = item_id(item, self.response_id, index), len(self._places)
        said = items.encode_output(item, id)
        if said is not None:
            self._places[index] = _Place(item, id, position)
            yield "response.output_item.added", {"output_index": position, "item": said}

    def _inside(self, place: _Place, event: Inside) -> Iterator[Said]:
        match event:
            case PartAdded(part=part):
                at = place.open(part, event.part_index)
                if at is not None:
                    family = "reasoning_summary" if isinstance(part, Summary) else "content"
                    yield f"response.{family}_part.added", {**at, "part": _full(part)}
            case Delta(kind="annotation"):
                yield from _annotation(place, event)
            case Delta():
                yield from self._delta(place, event)
            case PartDone():
                yield from self._part_done(place, event)
            case _:
                yield from _item_done(place, event.item)

    def _delta(self, place: _Place, event: Delta) -> Iterator[Said]:
        match event.kind:
            case "text" | "transcript" | "refusal" | "reasoning":
                at = place.at(event.part_index)
            case "summary":
                at = {**place.fields, "summary_index": event.part_index}
            case "arguments" | "input" if place.kind is None:
                at = place.fields
            case _:
                at = None  # the whole is in the item when it is done
        if at is None:
            return
        said = {**at, "delta": event.data}
        if event.kind in ("text", "transcript"):
            said["logprobs"] = parts.encode_tokens(event.tokens)
        yield f"response.{self._words[event.kind]}.delta", said

    def _part_done(self, place: _Place, event: PartDone) -> Iterator[Said]:
        part = event.part
        if isinstance(part, Summary):
            at: dict[str, JSON] | None = {**place.fields, "summary_index": event.part_index}
        else:
            at = place.at(event.part_index)
        if at is None:
            return
        whole = _full(part)
        match part:
            case Text() | Audio():
                said = {name: whole[name] for name in ("text", "logprobs")}
                yield "response.output_text.done", {**at, **said}
            case Refusal():
                yield "response.refusal.done", {**at, "refusal": part.text}
            case Thought():
                yield f"response.{self._words['reasoning']}.done", {**at, "text": part.text}
            case Summary():
                yield "response.reasoning_summary_text.done", {**at, "text": part.text}
                yield "response.reasoning_summary_part.done", {**at, "part": whole}
                return
        yield "response.content_part.done", {**at, "part": whole}

    def _progress(self, event: Progress) -> Iterator[Said]:
        place = None if event.index is None else self._places.get(event.index)
        if event.state == "raw":
            said = event.data.get(WIRE)
            if said is not None and (event.index is None or place is not None):
                where = place.fields if place else {}
                told = {name: where.get(name, value) for name, value in said.items()}
                yield told.pop("type"), told
        elif place is not None and place.kind is not None:
            state = STATES.get(event.state, event.state)
            yield f"response.{place.kind}.{state}", {**place.fields, **(event.data or {})}


def _full(part: Part) -> dict[str, JSON]:
    return parts.encode(part, "output_text", full=True) or {}


def _annotation(place: _Place, event: Delta) -> Iterator[Said]:
    at = place.at(event.part_index)
    if at is not None:
        number = place.notes.get(event.part_index, 0)
        place.notes[event.part_index] = number + 1
        note = {"annotation_index": number, "annotation": parts.encode_annotation(event.data)}
        yield "response.output_text.annotation.added", {**at, **note}


def _item_done(place: _Place, item: Item) -> Iterator[Said]:
    where = place.fields
    match item:
        case FunctionCall():
            said = {"name": item.name, "arguments": item.arguments}
            yield "response.function_call_arguments.done", {**where, **said}
        case CustomToolCall():
            yield "response.custom_tool_call_input.done", {**where, "input": item.input}
    whole = items.encode_output(item, where["item_id"])
    yield "response.output_item.done", {"output_index": where["output_index"], "item": whole}
