"""Answers measured and cut in words, for engines that have no tokens to count in.

A word brings the blanks before it, so that pieces joined are the text they came from. It knows
items and events, and nothing of who plays them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from dragoman.core.event import Delta, Event
from dragoman.core.item import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemStatus,
    Message,
    Reasoning,
    Text,
    Thought,
)
from dragoman.core.request import Request
from dragoman.core.response import Usage

_WORD = re.compile(r"\s*\S+|\s+\Z")
Said = Message | Reasoning | FunctionCall | CustomToolCall
"""What an engine without a model can say."""

_WORDED = ("text", "refusal", "reasoning", "summary", "arguments", "input")


def pieces(text: str) -> list[str]:
    """A text in words.

    >>> pieces("one  two ")
    ['one', '  two', ' ']
    """
    return _WORD.findall(text)


def in_words(events: Iterable[Event]) -> Iterator[Event]:
    """The same events with every piece of text cut into words, or into its tokens where known."""
    for event in events:
        match event:
            case Delta(tokens=(_, _, *_) as tokens) if _spells(event):
                for token in tokens:
                    yield replace(event, data=token.text, tokens=(token,))
            case Delta(kind=kind, data=str(text), tokens=()) if kind in _WORDED and text:
                for word in pieces(text):
                    yield replace(event, data=word)
            case _:
                yield event


def _spells(delta: Delta) -> bool:
    spelled = "".join(token.text for token in delta.tokens)
    return bool(delta.data == spelled)


def length(item: Item) -> int:
    """How many words an item has."""
    match item:
        case Message(text=text) | Reasoning(text=text):
            pass
        case FunctionCall(arguments=text) | CustomToolCall(input=text):
            pass
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            text = output if isinstance(output, str) else Message("user", output).text
        case _:
            return 0
    return len(pieces(text))


def shortened(items: list[Said], limit: int | None) -> tuple[list[Said], bool]:
    """As many words as the limit allows, and whether that cut anything off."""
    if limit is None:
        return items, False
    kept: list[Said] = []
    for item in items:
        words = length(item)
        if words > limit:
            return [*kept, cut(item, limit)], True
        limit -= words
        kept.append(item)
    return kept, False


def cut(item: Said, words: int) -> Said:
    """An item broken off after so many words; of a message or a reasoning, its first part."""

    def first(text: str) -> str:
        return "".join(pieces(text)[:words])

    status: ItemStatus = "incomplete"
    match item:
        case Message(parts=(Text() as part, *_)):
            part = replace(part, text=first(part.text), tokens=part.tokens[:words])
            return replace(item, content=(part,), status=status)
        case Reasoning(content=(Thought(text=text), *_)):
            return replace(item, content=(Thought(first(text)),), summary=(), status=status)
        case FunctionCall():
            return replace(item, arguments=first(item.arguments), status=status)
        case CustomToolCall():
            return replace(item, input=first(item.input), status=status)
        case _:  # there is nothing in it to be cut
            return replace(item, status=status)


def usage(request: Request, output: Iterable[Item]) -> Usage:
    """Words counted: an honest number, if none that a model would give."""
    instructions = request.instructions
    if isinstance(instructions, str):
        asked = len(pieces(instructions))
    else:
        asked = sum(map(length, instructions or ()))
    asked += sum(map(length, request.items))
    answered = thought = 0
    for item in output:
        answered += length(item)
        thought += length(item) if isinstance(item, Reasoning) else 0
    return Usage(asked, answered, asked + answered, reasoning_tokens=thought)
