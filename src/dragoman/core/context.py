"""Estimates the tokens of a conversation, and drops the oldest turns so that it fits a context.

Turns are dropped whole: no output without its call, no reasoning without the message it led to.
The work is linear in the number of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from .item import (
    Audio,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
)
from .request import Request

BYTES_PER_TOKEN = 4
"""Of English text and JSON in common vocabularies; other scripts take more bytes per character,
which evens out."""
PER_ITEM = 4
"""Tokens that frame an item."""
PER_IMAGE = 800
"""A picture of ordinary size; its bytes do not matter."""
PER_AUDIO_BYTE = 1 / 4000
"""Audio as base64 of PCM: about ten tokens per second."""

_encode = msgspec.json.Encoder().encode


def estimate(request: Request) -> int:
    """About how many tokens the prompt of a request has.

    >>> estimate(Request(model="m", items=(Message("user", "Good morning to you"),)))
    9
    """
    total = sum(map(weight, request.items))
    if isinstance(request.instructions, str):
        total += _text(request.instructions) + PER_ITEM
    else:
        total += sum(map(weight, request.instructions or ()))
    return total + sum(_value(tool) for tool in request.tools)


def weight(item: Item) -> int:
    """About how many tokens an item takes."""
    match item:
        case Message(content=str(text)):
            return PER_ITEM + _text(text)
        case Message():
            return PER_ITEM + sum(map(_part, item.parts))
        case Reasoning():
            encrypted = _text(item.encrypted or "")
            return PER_ITEM + (sum(map(_part, item.content or item.summary)) or encrypted)
        case FunctionCall():
            return PER_ITEM + _text(item.name) + _text(item.arguments)
        case CustomToolCall():
            return PER_ITEM + _text(item.name) + _text(item.input)
        case FunctionCallOutput(output=str(text)) | CustomToolCallOutput(output=str(text)):
            return PER_ITEM + _text(text)
        case FunctionCallOutput(output=parts) | CustomToolCallOutput(output=parts):
            return PER_ITEM + sum(_part(part) for part in parts if not isinstance(part, str))
        case Compaction():
            return PER_ITEM + _text(item.encrypted)
        case _:
            return PER_ITEM + _value(item)


def fit(items: Sequence[Item], budget: int) -> tuple[Item, ...]:
    """The latest turns of at most `budget` tokens, and all system and developer messages.

    The last turn stays even where it alone is over the budget.

    >>> turns = [Message("user", "a" * 400), Message("assistant", "b" * 400), Message("user", "c")]
    >>> [item.text for item in fit(turns, 50)]
    ['c']
    """
    weights = list(map(weight, items))
    if not items or sum(weights) <= budget:
        return tuple(items)
    rules = [isinstance(i, Message) and i.role in ("system", "developer") for i in items]
    free = budget - sum(w for w, rule in zip(weights, rules, strict=True) if rule)
    place = start = len(items)
    total = 0
    whole = _whole(items)
    while total <= free or start == len(items):  # all of them are too much, so this has an end
        place -= 1
        total += 0 if rules[place] else weights[place]
        if whole[place] and (total <= free or start == len(items)):
            start = place
    return tuple(item for place, item in enumerate(items) if place >= start or rules[place])


def _whole(items: Sequence[Item]) -> list[bool]:
    """Whether the items from each place on are complete: a turn begins there with a user's message,
    and no output after it belongs to a call before it."""
    owed: set[str] = set()
    whole = [False] * len(items)
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        match item:
            case FunctionCallOutput() | CustomToolCallOutput():
                owed.add(item.call_id)
            case FunctionCall() | CustomToolCall():
                owed.discard(item.call_id)
            case Message(role="user") if not owed:
                whole[place] = True
    if not any(whole) and items:
        whole[0] = True
    return whole


def _part(part: Part) -> int:
    match part:
        case Text() | Refusal() | Thought() | Summary():
            return _text(part.text)
        case Image():
            return PER_IMAGE
        case Audio():
            return _text(part.transcript or "") + int(len(part.data or "") * PER_AUDIO_BYTE)
        case File():
            return _text(part.data or "")
        case _:
            return _value(part)


def _text(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def _value(value: Any) -> int:
    return -(-len(_encode(value)) // BYTES_PER_TOKEN)
