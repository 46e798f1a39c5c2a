"""What the events about items mean, by name: items, pieces of content, deltas, progress.

A table of names and what to do, under the protocol's own names and under those that servers gave
them. Which item is meant is found by `hearing`; of the response as a whole nothing is known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.event import DeltaKind, State
from dragoman.core.item import (
    JSON,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
)

from . import mend, parts
from .extras import WIRE
from .heard import CALLS, Heard, Types
from .hearing import Hearing
from .wording import STATES

Told = dict[str, JSON]
"""One event of the wire, decoded."""

Hear = Callable[[Hearing, Told], None]


class _Home(Struct, frozen=True):
    """Where something belongs: in an item of one of these types, or in one that is made up."""

    types: Types
    fresh: Item


_MESSAGE = _Home((Message,), Message("assistant"))
_THOUGHT = _Home((Reasoning,), Reasoning())
_ANYWHERE = _Home((Message, Reasoning), Message("assistant"))
_FUNCTION_CALL = _Home(CALLS, FunctionCall("", "", ""))
_CUSTOM_CALL = _Home(CALLS, CustomToolCall("", "", ""))


class _Family(Struct, frozen=True):
    """Events of one kind of delta: what they bring, where to, and the field of the whole."""

    kind: DeltaKind
    home: _Home
    whole: str
    number: str = "content_index"


_TEXT = _Family("text", _MESSAGE, "text")
_REFUSAL = _Family("refusal", _MESSAGE, "refusal")
_REASONING = _Family("reasoning", _THOUGHT, "text")
_SUMMARY = _Family("summary", _THOUGHT, "text", "summary_index")
_FUNCTION = _Family("arguments", _FUNCTION_CALL, "arguments")
_CUSTOM = _Family("input", _CUSTOM_CALL, "input")

_FAMILIES = {
    "output_text": _TEXT,
    "refusal": _REFUSAL,
    "reasoning_text": _REASONING,
    "reasoning": _REASONING,
    "reasoning_summary_text": _SUMMARY,
    "reasoning_summary": _SUMMARY,
    "function_call_arguments": _FUNCTION,
    "custom_tool_call_input": _CUSTOM,
}
_PARTS = {
    "content_part": None,
    "reasoning_part": "reasoning_text",
    "reasoning_summary_part": "summary_text",
}
"""Families of parts, and the kind all their parts are of."""

_HOMES: dict[type, _Home] = {
    Text: _MESSAGE,
    Refusal: _MESSAGE,
    Thought: _THOUGHT,
    Summary: _THOUGHT,
}
_STATES: dict[str, State] = {STATES.get(state, state): state for state in get_args(State)}
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_ADDRESS = ("type", "item_id", "output_index", "sequence_number")


def _meant(hearing: Hearing, told: Told, home: _Home) -> Heard:
    """The item an event is about, made up where it was never announced."""
    id, place = told.get("item_id"), told.get("output_index")
    heard = hearing.find(id, place, home.types)
    if heard is None:
        fresh = replace(home.fresh, id=id if isinstance(id, str) else None)
        heard = hearing.add(fresh, place)
    return heard


def _delta(family: _Family) -> Hear:
    def hear(hearing: Hearing, told: Told) -> None:
        delta = told.get("delta")
        if isinstance(delta, str):
            probabilities = told.get("logprobs")
            tokens = parts.decode_tokens(probabilities) if probabilities else ()
            heard = _meant(hearing, told, family.home)
            heard.write(family.kind, delta, told.get(family.number), tokens)

    return hear


def _whole(family: _Family) -> Hear:
    def hear(hearing: Hearing, told: Told) -> None:
        text = told.get(family.whole)
        if isinstance(text, str) and text:
            heard = _meant(hearing, told, family.home)
            heard.name(told.get("name"), told.get("call_id"))
            tokens = parts.decode_tokens(told.get("logprobs"))
            heard.whole(family.kind, text, told.get(family.number), tokens)

    return hear


def _part(kind: str | None, then: Callable[[Heard, Part, JSON], None]) -> Hear:
    def hear(hearing: Hearing, told: Told) -> None:
        part = mend.part(told.get("part"), kind)
        if part is not None:
            given = told.get("summary_index", told.get("content_index"))
            then(_meant(hearing, told, _HOMES.get(type(part), _ANYWHERE)), part, given)

    return hear


def _annotation(hearing: Hearing, told: Told) -> None:
    value = told.get("annotation")
    if isinstance(value, dict):
        heard = _meant(hearing, told, _MESSAGE)
        heard.annotate(parts.decode_annotation(value), told.get("content_index"))


def _item_added(hearing: Hearing, told: Told) -> None:
    value = told.get("item")
    if isinstance(value, dict):
        hearing.add(mend.item(value), told.get("output_index"))


def _item_done(hearing: Hearing, told: Told) -> None:
    value = told.get("item")
    if isinstance(value, dict):
        item, place = mend.item(value), told.get("output_index")
        heard = hearing.find(item.id, place, (type(item),)) or hearing.add(item, place)
        heard.end(item)


def beside(hearing: Hearing, name: str, told: Told) -> None:
    """Progress of a hosted tool; or something we do not know, kept as it is.

    A name that could break out of its line is not repeated, and so neither is what it names.
    """
    if not _NAME.fullmatch(name):
        return
    heard = hearing.any(told.get("item_id"), told.get("output_index"))
    index = None if heard is None else heard.index
    family, _, word = name.removeprefix("response.").rpartition(".")
    if heard is not None and heard.kind == family and word in _STATES:
        data = {field: value for field, value in told.items() if field not in _ADDRESS}
        hearing.turn.progress(index, _STATES[word], data or None)
    else:
        kept = {field: value for field, value in told.items() if field != "sequence_number"}
        hearing.turn.progress(index, "raw", {WIRE: {**kept, "type": name}})


HEAR: dict[str, Hear] = {
    "response.output_item.added": _item_added,
    "response.output_item.done": _item_done,
    "response.output_text.annotation.added": _annotation,
    **{f"response.{name}.delta": _delta(family) for name, family in _FAMILIES.items()},
    **{f"response.{name}.done": _whole(family) for name, family in _FAMILIES.items()},
    **{f"response.{name}.added": _part(kind, Heard.begin_part) for name, kind in _PARTS.items()},
    **{f"response.{name}.done": _part(kind, Heard.end_part) for name, kind in _PARTS.items()},
}
"""Every event about items, and what hears it."""
