"""Plays given events, responses or text at a pace: for tests, docs and replays."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from itertools import cycle

from msgspec.structs import replace

from dragoman.core.event import Delta, Event
from dragoman.core.fold import unfold
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
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
from dragoman.core.response import Response, Usage

from .base import enforce_contract, new_id, now

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


Cue = Event | float | Exception | Callable[[], Awaitable[object]]
"""What a take is made of: an event to give, seconds to wait, an exception to raise, or something
to wait for (the `wait` of an `asyncio.Event`)."""

Take = str | Response | Iterable[Cue]
"""What is played for one request: a text, a response, or cues."""

NAME = "script"


class Script:
    """An engine that plays takes: one for each request, from the first again after the last.

    A single function instead of takes is asked what to play, with the request. `pace` is the
    number of seconds between two pieces of an answer; texts and responses are given in pieces of
    one word.

    >>> async def hear():
    ...     return [event async for event in Script("Good day").stream(Request(model="script"))]
    >>> [event.data for event in asyncio.run(hear()) if isinstance(event, Delta)]
    ['Good', ' day']
    """

    def __init__(
        self,
        *takes: Take | Callable[[Request], Take],
        pace: float = 0.0,
        name: str = NAME,
    ) -> None:
        if not takes:
            raise ValueError("a script needs something to play")
        self.name = name
        self._takes = cycle(takes)
        self._pace = pace

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Play the next take."""
        return enforce_contract(self._play(request), self.name)

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The one model there is: this script."""
        return (Model(self.name),)

    async def capabilities(self, model: str) -> Capabilities:
        """A script takes anything."""
        return Capabilities(
            images=True, audio=True, tools=True, custom_tools=True, namespaces=True, choices=True
        )

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _play(self, request: Request) -> AsyncGenerator[Event, None]:
        take = next(self._takes)
        if callable(take):
            take = take(request)
        for cue in self._cues(take):
            match cue:
                case int() | float():
                    await asyncio.sleep(cue)
                case Exception():
                    raise cue
                case Delta():
                    yield cue
                    await asyncio.sleep(self._pace)
                case _ if callable(cue):
                    await cue()
                case _:
                    yield cue

    def _cues(self, take: Take) -> Iterable[Cue]:
        if isinstance(take, str):
            return in_words(unfold(spoken(take, self.name)))
        return in_words(unfold(take)) if isinstance(take, Response) else take


def spoken(text: str, model: str = NAME) -> Response:
    """The response that says this text and no more."""
    id = new_id()
    said = Message("assistant", (Text(text),), id=f"msg_{id}_0", status="completed")
    return Response(
        id=id,
        created_at=now(),
        model=model,
        status="completed",
        output=(said,),
        reasons=("stop",),
    )
