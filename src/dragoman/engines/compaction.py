"""Fits long conversations into a context: estimates tokens, and drops or summarises the oldest
turns.

Turns are dropped whole: no output without its call, no reasoning without its message.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import filterfalse
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed, Finished, ItemAdded, ItemDone, Progress, Started
from dragoman.core.fold import Fold
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import (
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
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import Loss
from dragoman.core.request import Request, Sampling
from dragoman.core.response import Usage

from .base import Driver, Prepared, Wrapper, new_id, now, with_losses
from .fan_out import add_usage

# ---- estimates -------------------------------------------------------------------------------

BYTES_PER_TOKEN = 4
"""For English text and JSON in common vocabularies; other scripts have more bytes per character,
which compensates."""
PER_ITEM = 4
"""Tokens that frame an item."""
PER_IMAGE = 800
"""Tokens of an image of ordinary size, whatever its bytes."""
PER_AUDIO_BYTE = 1 / 4000
"""Audio as base64 of PCM: about ten tokens per second."""

MANY = 1_000
"""Items of a request that are counted on the event loop."""
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def estimate(request: Request) -> int:
    """About how many tokens the prompt of a request has.

    >>> estimate(Request(model="m", items=(Message("user", "Good morning to you"),)))
    9
    """
    instructions = request.instructions or ()
    if isinstance(instructions, str):
        instructions = (Message("system", instructions),)
    items = sum(map(weight, (*instructions, *request.items)))
    return items + sum(map(_value, request.tools))


def weight(item: Item) -> int:
    """About how many tokens an item takes."""
    match item:
        case Message():
            tokens = sum(map(_part, item.parts))
        case Reasoning():
            tokens = sum(map(_part, item.content or item.summary)) or _text(item.encrypted or "")
        case FunctionCall(name=name, arguments=text) | CustomToolCall(name=name, input=text):
            tokens = _text(name) + _text(text)
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            tokens = _text(output) if isinstance(output, str) else sum(map(_part, output))
        case Compaction():
            tokens = _text(item.encrypted)
        case _:
            tokens = _value(item)
    return PER_ITEM + tokens


def _part(part: Part) -> int:
    match part:
        case Image():
            return PER_IMAGE
        case Audio():
            return _text(part.transcript or "") + int(len(part.data or "") * PER_AUDIO_BYTE)
        case File():
            return _text(part.data or "")
        case UnknownPart():
            return _value(part)
        case _:
            return _text(part.text)


def _text(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def _value(value: Any) -> int:
    try:
        size = len(_encode(value))
    except UnicodeEncodeError:  # half of a surrogate pair
        size = len(repr(value))
    return -(-size // BYTES_PER_TOKEN)


async def count(engine: Engine, request: Request, caller: Caller = ANYONE) -> tuple[int, bool]:
    """The tokens of a request's prompt, and whether that is exact. Raises FaultError for a request
    that the engine cannot render."""
    able: Callable[..., Awaitable[int | None]] | None = getattr(engine, "count", None)
    if able is not None:
        counted = await able(request, caller)
        if counted is not None:
            return counted, True
    return await _apart(estimate, request), False


async def _apart(work: Callable[..., T], request: Request, *given: int) -> T:
    """Call a function with a request; in a thread where it has many items."""
    if len(request.items) <= MANY:
        return work(request, *given)
    return await asyncio.to_thread(work, request, *given)


# ---- truncation ------------------------------------------------------------------------------

ANSWER = 4
"""The fraction of a context that is reserved for the answer, without a limit: one in so many."""
COUNTS = 4
"""How often the prompt of one request is counted and cut again, before it is left to the engine."""


class Truncating(Wrapper):
    """Middleware that drops the oldest turns where a request allows it and its model's context is
    known and too small."""

    acts_on = frozenset(("truncation",))

    def prepare(self, request: Request, caller: Caller) -> Awaitable[Prepared | None] | None:
        """Look up the context size, where truncation is allowed."""
        return self._prepare(request, caller) if request.truncation == "auto" else None

    async def _prepare(self, request: Request, caller: Caller) -> Prepared | None:
        context = (await self.engine.capabilities(request.model)).context
        if context is None:
            return None
        limit = request.max_output_tokens or context  # no prompt leaves room for a larger answer
        room = context - (limit if limit < context else context // ANSWER)
        items = await self._fitted(request, room, caller)
        missing = len(request.items) - len(items)
        if not missing:
            return None
        why = "the earliest items, so many, were left out: the rest fits the model's context"
        losses = (Loss(f"input({missing})", "dropped", why),)
        return Prepared(replace(request, items=items), partial(with_losses, losses=losses))

    async def _fitted(self, request: Request, room: int, caller: Caller) -> tuple[Item, ...]:
        """The latest turns that have room. What may be more than was estimated is counted, where
        the engine can, and cut again by as much as the estimate was wrong."""
        fitted, budget = request, room
        for _ in range(COUNTS):
            before = len(fitted.items)
            fitted = replace(request, items=await _apart(_fitting, request, budget))
            about = await _apart(estimate, fitted)
            if about * BYTES_PER_TOKEN <= room or (len(fitted.items) == before and budget < room):
                break
            tokens, exact = await count(self.engine, fitted, caller)
            if not exact or tokens <= room:
                break
            budget = about * room // tokens
        return fitted.items


def _fitting(request: Request, room: int) -> tuple[Item, ...]:
    return fit(request.items, room - estimate(replace(request, items=())))


def fit(items: Sequence[Item], budget: int) -> tuple[Item, ...]:
    """The latest turns of at most `budget` tokens, and all system and developer messages.

    The last turn stays even where it alone is over the budget. The work is linear in the number of
    items.

    >>> turns = [Message("user", "a" * 400), Message("assistant", "b" * 400), Message("user", "c")]
    >>> [item.text for item in fit(turns, 50)]
    ['c']
    """
    weights = list(map(weight, items))
    if not items or sum(weights) <= budget:
        return tuple(items)
    rules = list(map(_is_rule, items))
    free = budget - sum(w for w, rule in zip(weights, rules, strict=True) if rule)
    place = start = len(items)
    total = 0
    complete = _complete(items)
    while total <= free or start == len(items):  # together they exceed the budget, so this ends
        place -= 1
        total += 0 if rules[place] else weights[place]
        if complete[place] and (total <= free or start == len(items)):
            start = place
    return tuple(item for place, item in enumerate(items) if place >= start or rules[place])


def _complete(items: Sequence[Item]) -> list[bool]:
    """Whether the items from each place on are complete: a turn begins there with a user's message,
    and no output after it belongs to a call before it."""
    owed: set[str] = set()
    complete = [False] * len(items)
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        match item:
            case FunctionCallOutput() | CustomToolCallOutput():
                owed.add(item.call_id)
            case FunctionCall() | CustomToolCall():
                owed.discard(item.call_id)
            case Message(role="user") if not owed:
                complete[place] = True
    if not any(complete):
        complete[0] = True
    return complete


def _is_rule(item: Item) -> bool:
    """Whether an item applies to the whole conversation."""
    return isinstance(item, Message) and item.role in ("system", "developer")


# ---- summaries -------------------------------------------------------------------------------

LONGEST = 1_000_000
"""Bytes of a summary; its content has a third more."""
MARK = "dragoman.summary.1."
"""The prefix of the content of our compaction items."""

ORDER = (
    "Write a summary of this conversation that lets somebody go on with it who has not read it: "
    "what was asked for, what was found out and decided, names, numbers, files and code that "
    "matter, and what is still to be done. Write the summary alone."
)
OPENING = "A summary of the conversation so far:\n\n"


class Compacting(Wrapper):
    """Middleware that expands our compaction items, and writes one where a request asks for it."""

    acts_on = frozenset((Compaction, Unknown, "context_management"))

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Replace what a summary stands for."""
        known = expanded(request)
        if threshold(request) is not None or triggered(known):
            return Prepared(known, start=partial(Driver, self._compacted(known, caller)))
        return None if known is request else Prepared(known)

    async def count(self, request: Request, caller: Caller = ANYONE) -> int | None:
        """The tokens of the expanded request, where the engine inside can count."""
        counted, exact = await count(self.engine, expanded(request), caller)
        return counted if exact else None

    async def _compacted(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        """The answer; where the conversation is too long, or only a summary was requested, with a
        summary as its first item."""
        alone, limit = triggered(request), threshold(request)
        known = 0 if alone or limit is None else (await count(self.engine, request, caller))[0]
        long = alone or (limit is not None and known > limit)
        items = request.items[:-1] if alone else request.items
        asked = replace(request, items=items, context_management=None)
        begun = Started(new_id(), now(), request.model)
        used: Usage | None = None
        if long:
            blank = Compaction("", f"cmp_{begun.id}")
            yield begun
            yield ItemAdded(0, blank)
            yield Progress(0, "compacting")
            summary, used = await summarise(self.engine, asked, caller)
            yield ItemDone(0, replace(blank, encrypted=encode_summary(summary)))
            if alone:
                yield Finished("completed", usage=used, completed_at=now())
                return
            asked = replace(asked, items=compacted(items, summary))
        async with aclosing(self.engine.stream(asked, caller)) as events:
            async for event in events:
                if not long:
                    yield event
                elif isinstance(event, Started):  # the answer began with the summary
                    begun = event
                else:
                    yield _moved(event, used, begun)


async def summarise(
    engine: Engine, request: Request, caller: Caller = ANYONE
) -> tuple[str, Usage | None]:
    """A summary of a conversation, and its usage. Raises FaultError when there is none."""
    fold = Fold()
    asked = Request(
        model=request.model,
        items=(*expanded(request).items, Message("user", ORDER)),
        instructions=request.instructions,
        tools=request.tools,
        tool_choice="none" if request.tools else None,
        sampling=Sampling(),
        reasoning=request.reasoning,
        prompt_cache_key=request.prompt_cache_key,
        truncation="auto",
    )
    async with aclosing(engine.stream(asked, caller)) as events:
        async for event in events:
            fold.feed(event)
    response = fold.response
    if response.error is not None:
        raise FaultError(response.error)
    if not response.text.strip():
        raise FaultError(Fault("upstream_error", "The model wrote no summary.", "upstream"))
    if len(response.text.encode("utf-8", "replace")) > LONGEST:
        problem = f"The model wrote a summary of more than {LONGEST} bytes."
        raise FaultError(Fault("upstream_error", problem, "upstream"))
    return response.text.strip(), response.usage


def compacted(items: Sequence[Item], summary: str) -> tuple[Item, ...]:
    """A conversation with a summary in place of everything before its last turn, which is not yet
    answered."""
    users = [n for n, i in enumerate(items) if isinstance(i, Message) and i.role == "user"]
    turn = filterfalse(_is_rule, items[users[-1] :] if users else ())
    return (*filter(_is_rule, items), _as_message(summary), *turn)


def expanded(request: Request) -> Request:
    """The request with its last summary as a message, and without the items it replaces; the same
    one, where it has no summary of ours."""
    items = request.items
    for place in range(len(items) - 1, -1, -1):
        match items[place]:
            case Compaction(encrypted=content) if content.startswith(MARK):
                summary = decode_summary(content)
                if summary is None:
                    break  # it replaces everything before it, earlier summaries included
                before, after = filter(_is_rule, items[:place]), items[place + 1 :]
                return replace(request, items=(*before, _as_message(summary), *after))
    return request


def threshold(request: Request) -> int | None:
    """The number of tokens beyond which a request asks for a summary."""
    for rule in request.context_management or ():
        match rule:
            case {"type": "compaction", "compact_threshold": int(limit)} if (
                limit > 0 and not isinstance(limit, bool)
            ):
                return limit
    return None


def triggered(request: Request) -> bool:
    """Whether a request asks for a summary in place of an answer. The protocol has the trigger as
    the last item of the input; Codex sends it when its context is full, and then continues from the
    compaction item of the answer."""
    last = request.items[-1] if request.items else None
    return isinstance(last, Unknown) and last.kind == "compaction_trigger"


def encode_summary(summary: str) -> str:
    """A summary as the content of a compaction item. It is not encrypted, as it contains nothing
    that its client does not know.

    >>> decode_summary(encode_summary("They said hello."))
    'They said hello.'
    """
    return MARK + base64.urlsafe_b64encode(summary.encode("utf-8", "replace")).decode()


def decode_summary(content: str) -> str | None:
    """Decode our content; None for that of another server."""
    if not content.startswith(MARK) or len(content) > 2 * LONGEST:
        return None
    try:
        summary = base64.b64decode(content[len(MARK) :], b"-_", validate=True)
    except ValueError:
        return None
    return summary.decode("utf-8", "replace")


def _as_message(summary: str) -> Message:
    return Message("user", OPENING + summary)


def _moved(event: Event, used: Usage | None, begun: Started) -> Event:
    """An event of the answer, with its index shifted by the summary. The losses of its own
    `Started`, which is not sent, are reported at its end."""
    if isinstance(event, Finished | Failed):
        usage = add_usage([each for each in (event.usage, used) if each is not None])
        if isinstance(event, Failed):
            return replace(event, usage=usage)
        losses, guarantee = begun.losses + event.losses, event.guarantee or begun.guarantee
        return replace(event, usage=usage, losses=losses, guarantee=guarantee)
    index: int | None = getattr(event, "index", None)
    return event if index is None else replace(event, index=index + 1)
