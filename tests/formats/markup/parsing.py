"""How the tests parse markup: a text or tokens in pieces, to items, events and warnings."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from msgspec import Struct

from dragoman.core.event import Delta, Event, Finished
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, Message, Reasoning
from dragoman.core.request import FunctionTool, Request, Tool
from dragoman.core.turn import Turn
from dragoman.formats.format import Format
from dragoman.formats.markup.families import BY_NAME
from dragoman.formats.markup.format import Markup
from dragoman.formats.markup.profile import all_marks
from dragoman.formats.prompt import ByteTokenizer

WEATHER = FunctionTool(
    "get_weather",
    "The weather somewhere.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "tags": {"type": "array"},
        },
    },
)
NOW = FunctionTool("now")
TOOLS: tuple[Tool, ...] = (WEATHER, NOW)
FAMILIES = tuple(sorted(BY_NAME))

family = cache(Markup)


class Parsed(Struct):
    """What came of an answer. `said` are its items: ("text", …), ("thought", …) or (name, …)."""

    said: list[tuple[str, str]]
    events: list[Event]
    warnings: list[str]
    statuses: list[str | None]
    reason: str
    reasoning: int


def asked(tools: Sequence[Tool] = TOOLS, **more: object) -> Request:
    """A request with these tools."""
    return Request(model="m", tools=tuple(tools), **more)


def pieces(text: str, cuts: Sequence[int] | int | None) -> list[str]:
    """The text, cut at these places, or into pieces of this size."""
    if cuts is None:
        return [text]
    if isinstance(cuts, int):
        return [text[at : at + cuts] for at in range(0, len(text), cuts)]
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


def parse(
    format: Format | str,
    text: str,
    cuts: Sequence[int] | int | None = None,
    *,
    tools: Sequence[Tool] = TOOLS,
    reason: str = "stop",
    **more: object,
) -> Parsed:
    """A text, parsed in pieces."""
    format = family(format) if isinstance(format, str) else format
    turn = Turn("1", 0, "m", think=None)
    parser = format.parser(asked(tools, **more), turn)
    for piece in pieces(text, cuts):
        parser.write(piece)
    parser.close(reason)
    return parsed(turn.take(), parser.warnings, parser.reasoning_tokens)


def parse_ids(
    format: Format | str,
    ids: Sequence[int],
    tokenizer: ByteTokenizer,
    size: int = 1,
    *,
    tools: Sequence[Tool] = TOOLS,
    reason: str = "stop",
) -> Parsed:
    """Tokens, parsed `size` at a time."""
    format = family(format) if isinstance(format, str) else format
    turn = Turn("1", 0, "m", think=None)
    parser = format.parser(asked(tools), turn, tokenizer)
    for at in range(0, len(ids), size):
        parser.feed(ids[at : at + size])
    parser.close(reason)
    return parsed(turn.take(), parser.warnings, parser.reasoning_tokens)


def parsed(events: list[Event], warnings: Sequence[str], reasoning: int) -> Parsed:
    """What these events say."""
    output = fold(events).output
    end = events[-1]
    assert isinstance(end, Finished), end
    said = [show(item) for item in output]
    statuses = [item.status for item in output]
    return Parsed(said, events, list(warnings), statuses, end.reasons[0], reasoning)


def show(item: object) -> tuple[str, str]:
    """An item in short."""
    match item:
        case Message():
            return "text", item.text
        case Reasoning():
            return "thought", item.text
        case FunctionCall():
            return item.name, item.arguments
    raise AssertionError(item)


def deltas(events: list[Event]) -> list[tuple[str, str]]:
    """What the deltas of each item say, joined."""
    said: dict[int, str] = {}
    kinds: dict[int, str] = {}
    for event in events:
        if isinstance(event, Delta):
            said[event.index] = said.get(event.index, "") + event.data
            kinds[event.index] = event.kind
    return [(kinds[index], said[index]) for index in sorted(said)]


def tokens(format: str, text: str) -> tuple[list[int], ByteTokenizer]:
    """A text as a model of the family writes it: its marks as control tokens, the rest as bytes."""
    tokenizer = vocabulary(format)
    ids: list[int] = []
    for piece in re.split("(" + "|".join(map(re.escape, tokenizer.controls)) + ")", text):
        if piece in tokenizer.controls:
            ids.append(tokenizer.controls[piece])
        else:
            ids.extend(tokenizer.encode(piece))
    return ids, tokenizer


@cache
def vocabulary(format: str) -> ByteTokenizer:
    """Bytes, and the marks of a family as control tokens, the longest first."""
    profile = BY_NAME[format]
    names = {
        *profile.controls,
        *(mark for mark in all_marks(profile) if mark[-1] in ">]" and mark[1:]),
    }
    return ByteTokenizer(sorted(names, key=len, reverse=True))
