"""An engine out of a format, a model and its vocabulary.

A request is rendered and sent to the model as ids; what comes back is parsed as it comes. Which
format and which model is not known here; how sequences share the model is the scheduler's affair.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Protocol

from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.item import Token
from dragoman.core.request import Request
from dragoman.engines.base import fault_from, now
from dragoman.engines.fan_out import Merge
from dragoman.formats.format import PLAIN, Format, Setting
from dragoman.formats.prompt import Tokenizer
from dragoman.wire.losses import blamed, worded

from .constraints import Batches, Bounds, Constrain, kept
from .next_token import StreamModel
from .planner import Plan, Planner, ids_of
from .scheduler import Scheduler
from .sequence_decoder import Hearing
from .source import Job, NamingModel, ScoringModel, Written

MAX_TOKENS = 131_072
"""Tokens written at the most where neither the request nor the model's context sets a limit."""
CONCURRENCY = 32
QUEUE = 1_024


class Writer(Protocol):
    """Whatever writes sequences: a scheduler with its model, or a stream of ids."""

    def run(self, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Written], None]:
        """What is written in each sequence, by its place among the jobs, until all are over.

        The first news of all is empty: the jobs are taken. Raises FaultError when they are not.
        """
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class TokenEngine:
    """Serves a model that reads and writes tokens.

    `format` says how a conversation becomes a prompt and how the model's answer is read. `model` is
    a `ScoringModel`, or what `from_next_token`, `from_step` or `from_stream` made. `tokenizer` is
    its vocabulary; `ends` are ids, or control tokens by their text, that end every answer beside
    those of the format. `setting` is what prompts say beyond the request (a function is asked each
    time: the date changes). `max_tokens` holds where a request sets no limit and the model no
    context.

    Raises ImportError where a model gives scores and there is no numpy to weigh them.

    At most `concurrency` sequences are written at a time, and `queue` more may wait; beyond that a
    request is refused as `overloaded`. The model's slots are freed as soon as nobody reads.
    """

    def __init__(
        self,
        format: Format,
        model: ScoringModel | NamingModel | StreamModel,
        tokenizer: Tokenizer,
        *,
        name: str = "local",
        description: str | None = None,
        setting: Setting | Callable[[], Setting] = PLAIN,
        max_tokens: int = MAX_TOKENS,
        ends: Iterable[int | str] = (),
        constrain: Constrain | None = None,
        concurrency: int | None = None,
        queue: int = QUEUE,
    ) -> None:
        self.name = name
        self.description = description
        self.format = format
        self.tokenizer = tokenizer
        self.context = model.context
        self._created = now()
        scores = not isinstance(model, NamingModel | StreamModel)
        if scores and find_spec("numpy") is None:
            raise ImportError("Scores of a model need numpy: pip install 'dragoman[local]'.")
        self._planner = Planner(
            format=format,
            tokenizer=tokenizer,
            setting=setting,
            context=model.context,
            max_tokens=max_tokens,
            ends=ids_of(ends, tokenizer),
            bounds=Bounds(tokenizer, scores=scores, constrain=constrain),
            scores=scores,
            obeys=model.obeys if isinstance(model, NamingModel | StreamModel) else None,
        )
        self._writer: Writer
        if isinstance(model, StreamModel):
            self._writer = model
        else:
            most = concurrency or getattr(model, "concurrency", None) or CONCURRENCY
            describe = lru_cache(maxsize=1 << 16)(self._token)
            self._writer = Scheduler(model, describe, concurrency=most, queue=queue)

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Answer one request."""
        return _singly(self.batches(request, caller))

    def batches(self, request: Request, caller: Caller = ANYONE) -> Batches:
        """The same, as many events at a time as there are."""
        return self._answer(partial(self._planned, request, caller.wire))

    def complete(
        self,
        prompt: str | Sequence[int],
        request: Request,
        caller: Caller = ANYONE,
        *,
        echo: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Go on writing a bare prompt, a text or ids; what comes is text as it stands."""
        return _singly(self._answer(partial(self._planner.raw, prompt, request, echo)))

    async def count(self, request: Request) -> int:
        """How many tokens the prompt of a request has. Raises FaultError."""
        return await self._planner.count(request)

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The one model there is."""
        extra = {
            "description": self.description,
            "format": self.format.name,
            "context_window": self.context,
            "guarantees": list(self._planner.bounds.guarantees),
        }
        shown = {name: value for name, value in extra.items() if value is not None}
        return (Model(self.name, created=self._created, extra={"models": shown}),)

    async def capabilities(self, model: str) -> Capabilities:
        """Text and alternatives; tools in so far as the format has them."""
        return Capabilities(images=False, audio=False, choices=True, context=self.context)

    async def close(self) -> None:
        """Fail what is being written, and let go of the model's thread."""
        await self._writer.close()

    async def _planned(self, request: Request, wire: str | None) -> Plan:
        """The plan of a request, with its fields named as on the caller's wire."""
        try:
            plan = await self._planner.chat(request)
        except FaultError as error:
            raise FaultError(blamed(error.fault, request, wire)) from error
        return replace(plan, losses=worded(plan.losses, request, wire))

    async def _answer(self, planning: Callable[[], Awaitable[Plan]]) -> Batches:
        """The events of a plan. A turn makes legal events, and what a writer writes always ends, so
        that only what cannot begin is left to be told here."""
        try:
            plan = await planning()
            written = self._written(plan)
            bound = written if plan.bound is None else kept(written, plan.bound)
            async with aclosing(bound) as batches:
                async for events in batches:
                    if plan.undo is not None:
                        events = plan.undo(events)
                    if events:
                        yield events
        except Exception as error:
            yield [Failed(fault_from(error))]

    async def _written(self, plan: Plan) -> Batches:
        """What is written, as events."""
        piece = self.tokenizer.piece
        hearings = [Hearing(plan, number, piece) for number in range(len(plan.jobs))]
        merge = Merge(len(hearings)) if len(hearings) > 1 else None
        async with aclosing(self._writer.run(plan.jobs)) as news:
            async for place, written in news:
                events = hearings[place].take(written)
                if merge is not None:
                    events = [e for event in events for e in merge.feed(place, event)]
                if events:
                    yield events
                if merge is not None and merge.over:
                    return

    def _token(self, id: int) -> Token:
        piece = self.tokenizer.piece(id)
        return Token(piece.decode("utf-8", "replace"), None, piece, id=id)


async def _singly(batches: Batches) -> AsyncGenerator[Event, None]:
    async with aclosing(batches):
        async for events in batches:
            for event in events:
                yield event
