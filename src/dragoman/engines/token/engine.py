"""The token engine: a format, a model and its vocabulary."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from importlib.util import find_spec

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
from dragoman.wire.registry import spell_fault, spell_losses

from .constraints import Batches, Constrain, Enforcer, with_guarantee
from .next_token import StreamModel
from .planner import Plan, Planner, ids_of
from .scheduler import Scheduler
from .sequence_decoder import SequenceDecoder
from .source import NextTokenModel, ScoringModel

MAX_TOKENS = 131_072
"""The most new tokens where neither the request nor the model's context sets a limit."""
CONCURRENCY = 32
QUEUE = 1_024


class TokenEngine:
    """Serves a model that reads and writes tokens.

    - `format` turns a conversation into a prompt and parses the answer.
    - `model` is a `ScoringModel`, or made by `from_next_token`, `from_step` or `from_stream`.
    - `tokenizer` is its vocabulary; `ends` are ids, or control tokens by their text, that end every
      answer beside those of the format.
    - `setting` is what prompts say beside the request (a function is called each time: the date
      changes).
    - `max_tokens` is the limit where the request sets none and the model has no context.
    - `concurrency` sequences run at a time, and `queue` more may wait; beyond that requests are
      refused as `overloaded`.

    Raises ImportError where a model gives scores and numpy is missing.
    """

    def __init__(
        self,
        format: Format,
        model: ScoringModel | NextTokenModel | StreamModel,
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
        scores = not isinstance(model, NextTokenModel | StreamModel)
        if scores and find_spec("numpy") is None:
            raise ImportError("Scores of a model need numpy: pip install 'dragoman[local]'.")
        self._planner = Planner(
            format=format,
            tokenizer=tokenizer,
            setting=setting,
            context=model.context,
            max_tokens=max_tokens,
            ends=ids_of(ends, tokenizer),
            enforcer=Enforcer(tokenizer, scores=scores, constrain=constrain),
            scores=scores,
            honoured=model.honoured if isinstance(model, NextTokenModel | StreamModel) else None,
        )
        self._source: Scheduler | StreamModel
        if isinstance(model, StreamModel):
            self._source = model
        else:
            most = concurrency or getattr(model, "concurrency", None) or CONCURRENCY
            describe = lru_cache(maxsize=1 << 16)(self._token)
            self._source = Scheduler(model, describe, concurrency=most, queue=queue)

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
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
        """Continue a raw prompt, a text or ids; the answer is text as it stands."""
        return _singly(self._answer(partial(self._planner.raw, prompt, request, echo)))

    async def count(self, request: Request) -> int:
        """The number of tokens in a request's prompt. Raises FaultError."""
        return await self._planner.count(request)

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        extra = {
            "description": self.description,
            "format": self.format.name,
            "context_window": self.context,
            "guarantees": list(self._planner.enforcer.guarantees),
        }
        shown = {name: value for name, value in extra.items() if value is not None}
        return (Model(self.name, created=self._created, extra={"models": shown}),)

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(images=False, audio=False, choices=True, context=self.context)

    async def close(self) -> None:
        """Fail what is running, and end the model's thread."""
        await self._source.close()

    async def _planned(self, request: Request, wire: str | None) -> Plan:
        """The plan of a request, with its fields named as on the caller's wire."""
        try:
            plan = await self._planner.chat(request)
        except FaultError as error:
            raise FaultError(spell_fault(error.fault, request, wire)) from error
        return replace(plan, losses=spell_losses(plan.losses, request, wire))

    async def _answer(self, planning: Callable[[], Awaitable[Plan]]) -> Batches:
        """The events of a plan. A turn emits legal events and a source always ends, so that only an
        error before the start is handled here."""
        try:
            plan = await planning()
            answer = self._decoded(plan)
            if plan.requirement is not None:
                answer = with_guarantee(answer, plan.requirement)
            async with aclosing(answer) as batches:
                async for events in batches:
                    if plan.undo is not None:
                        events = plan.undo(events)
                    if events:
                        yield events
        except Exception as error:
            yield [Failed(fault_from(error))]

    async def _decoded(self, plan: Plan) -> Batches:
        piece = self.tokenizer.piece
        decoders = [SequenceDecoder(plan, number, piece) for number in range(len(plan.jobs))]
        merge = Merge(len(decoders)) if len(decoders) > 1 else None
        async with aclosing(self._source.run(plan.jobs)) as new_tokens:
            async for index, new in new_tokens:
                events = decoders[index].take(new)
                if merge is not None:
                    events = [e for event in events for e in merge.feed(index, event)]
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
