"""Fits long conversations into a context: counts tokens, truncates, or summarises them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from msgspec.structs import replace

from dragoman.core.context import estimate, fit
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import (
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
from dragoman.core.fold import Fold
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import Compaction, Item, Message, Unknown
from dragoman.core.loss import Loss
from dragoman.core.request import Request, Sampling
from dragoman.core.response import Usage

from .base import Driver, Prepared, Wrapper, new_id, now
from .fan_out import add_usage

ANSWER = 4
"""The part of a context that is left for the answer, where no limit is given: one in so many."""


async def count(engine: Engine, request: Request) -> tuple[int, bool]:
    """The tokens of a request's prompt, and whether that is exact. Raises FaultError for a request
    that the engine cannot make a prompt of."""
    able: Callable[[Request], Awaitable[int | None]] | None = getattr(engine, "count", None)
    if able is not None:
        counted = await able(request)
        if counted is not None:
            return counted, True
    return estimate(request), False


class Truncating(Wrapper):
    """Middleware that leaves out the oldest turns where a request allows it and its model's context
    is known and too small."""

    acts_on = frozenset(("truncation",))

    def prepare(self, request: Request, caller: Caller) -> Awaitable[Prepared | None] | None:
        """Look up the size of the context, where turns may be left out."""
        return self._prepare(request) if request.truncation == "auto" else None

    async def _prepare(self, request: Request) -> Prepared | None:
        fitting = await self._fitting(request)
        missing = len(request.items) - len(fitting.items)

        def reported(events: list[Event]) -> list[Event]:
            if isinstance(events[0], Started):
                return [_told(events[0], missing), *events[1:]]
            return events

        return Prepared(fitting, reported) if missing else None

    async def _fitting(self, request: Request) -> Request:
        context = (await self.engine.capabilities(request.model)).context
        if context is None:
            return request
        room = context - (request.max_output_tokens or context // ANSWER)
        rest = estimate(replace(request, items=()))
        return replace(request, items=fit(request.items, room - rest))


def _told(started: Started, missing: int) -> Started:
    items = "the earliest item was" if missing == 1 else f"the {missing} earliest items were"
    loss = Loss("input", "dropped", f"{items} left out, so that the rest fits the model's context")
    return replace(started, losses=(*started.losses, loss))


MARK = "dragoman.summary.1."
"""What a blob of ours begins with."""

ORDER = (
    "Write a summary of this conversation that lets somebody go on with it who has not read it: "
    "what was asked for, what was found out and decided, names, numbers, files and code that "
    "matter, and what is still to be done. Write the summary alone."
)
OPENING = "A summary of the conversation so far:\n\n"


class Compacting(Wrapper):
    """Middleware that understands summaries of ours, and writes one where a request asks for it."""

    acts_on = frozenset((Compaction, Unknown, "context_management"))

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Answer out of the last summary and what follows it."""
        items = request.items
        known = expanded(request) if Compaction in map(type, items) else request
        last = items[-1] if items else None  # which is no message where it is a trigger
        limited = request.context_management and threshold(request) is not None
        if limited or (type(last) is Unknown and triggered(known)):
            return Prepared(known, start=partial(Driver, self._measured(known, caller)))
        return None if known is request else Prepared(known)

    async def count(self, request: Request) -> int | None:
        """The tokens of what the model will see, where the engine inside can count."""
        counted, exact = await count(self.engine, expanded(request))
        return counted if exact else None

    async def _measured(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        alone, limit = triggered(request), threshold(request)
        long = alone or (limit is not None and (await count(self.engine, request))[0] > limit)
        items = request.items[:-1] if alone else request.items
        asked = replace(request, items=items, context_management=None)
        answer = self._shortened(asked, caller, alone=alone) if long else None
        async with aclosing(answer or self.engine.stream(asked, caller)) as events:
            async for event in events:
                yield event

    async def _shortened(
        self, request: Request, caller: Caller, *, alone: bool
    ) -> AsyncGenerator[Event, None]:
        """A summary, shown as the first item, and unless it is to be alone the answer out of it."""
        id = new_id()
        blank = Compaction("", f"cmp_{id}")
        begun = Started(id, now(), request.model)
        yield begun
        yield ItemAdded(0, blank)
        yield Progress(0, "compacting")
        summary, used = await summarise(self.engine, request, caller)
        yield ItemDone(0, replace(blank, encrypted=seal(summary)))
        if alone:
            yield Finished("completed", usage=used, completed_at=now())
            return
        shorter = replace(request, items=(*_rules(request.items), _words(summary), *_last(request)))
        hidden = begun
        async with aclosing(self.engine.stream(shorter, caller)) as events:
            async for event in events:
                if isinstance(event, Started):  # the answer has begun before: with the summary
                    hidden = event
                else:
                    yield _moved(event, used, hidden)


async def summarise(
    engine: Engine, request: Request, caller: Caller = ANYONE
) -> tuple[str, Usage | None]:
    """A summary of a conversation, and what it took. Raises FaultError when there is none."""
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
    return response.text.strip(), response.usage


def expanded(request: Request) -> Request:
    """The request with its last summary in words, and without what that stands for."""
    items = request.items
    if Compaction not in map(type, items):
        return request
    places = [place for place, item in enumerate(items) if _summary(item) is not None]
    if not places:
        return request
    last = places[-1]
    summary = _summary(request.items[last]) or ""
    before, after = request.items[:last], request.items[last + 1 :]
    return replace(request, items=(*_rules(before), _words(summary), *after))


def threshold(request: Request) -> int | None:
    """The number of tokens beyond which a request asks for a summary."""
    for rule in request.context_management or ():
        if isinstance(rule, dict) and rule.get("type") == "compaction":
            limit = rule.get("compact_threshold")
            if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
                return limit
    return None


def triggered(request: Request) -> bool:
    """Whether a request asks for a summary in place of an answer. The protocol has the trigger as
    the last item of the input; Codex sends it when its context is full, and then goes on from the
    one compaction item that it takes out of the answer."""
    last = request.items[-1] if request.items else None
    return isinstance(last, Unknown) and last.kind == "compaction_trigger"


def seal(summary: str) -> str:
    """A summary as an opaque blob. It hides nothing from whoever took part in the conversation.

    >>> unseal(seal("They said hello."))
    'They said hello.'
    """
    return MARK + base64.urlsafe_b64encode(summary.encode("utf-8", "replace")).decode()


def unseal(blob: str) -> str | None:
    """The summary in a blob of ours; None for one of somebody else."""
    if not blob.startswith(MARK):
        return None
    try:
        return base64.b64decode(blob[len(MARK) :], b"-_", validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return None


def _summary(item: Item) -> str | None:
    return unseal(item.encrypted) if isinstance(item, Compaction) else None


def _rules(items: Sequence[Item]) -> list[Item]:
    """What holds for the whole conversation."""
    return [i for i in items if isinstance(i, Message) and i.role in ("system", "developer")]


def _words(summary: str) -> Message:
    return Message("user", OPENING + summary)


def _last(request: Request) -> tuple[Item, ...]:
    """What was said last, and is to be answered: from the last words of the user on."""
    for place in range(len(request.items) - 1, -1, -1):
        item = request.items[place]
        if isinstance(item, Message) and item.role == "user":
            return tuple(i for i in request.items[place:] if i not in _rules([i]))
    return ()


_INDEXED = (ItemAdded, PartAdded, Delta, PartDone, ItemDone)


def _total(*reports: Usage | None) -> Usage | None:
    return add_usage([report for report in reports if report is not None])


def _moved(event: Event, used: Usage | None, hidden: Started) -> Event:
    """An event of the answer, one place further on, as the summary stands before it. What was told
    at a beginning that nobody sees is told at the end."""
    match event:
        case Progress(index=int(index)):
            return replace(event, index=index + 1)
        case Finished():
            return replace(
                event,
                usage=_total(event.usage, used),
                losses=hidden.losses + event.losses,
                guarantee=event.guarantee or hidden.guarantee,
            )
        case Failed():
            return replace(event, usage=_total(event.usage, used))
        case _ if isinstance(event, _INDEXED):
            return replace(event, index=event.index + 1)
        case _:
            return event
