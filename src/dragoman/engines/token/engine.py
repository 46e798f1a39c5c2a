"""A model that scores tokens as an engine: plans, schedules, and decodes sequences into events."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from importlib.util import find_spec

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.item import Token
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Usage
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import Turn
from dragoman.engines.base import fault_from, new_id, now
from dragoman.engines.fan_out import Merge
from dragoman.formats.format import PLAIN, Format, Setting
from dragoman.formats.prompt import Tokenizer
from dragoman.wire.registry import spell_fault, spell_losses

from .constraints import Batches, Constrain, Enforcer, with_guarantee
from .next_token import StreamModel
from .planner import Plan, Planner, ids_of
from .scheduler import Scheduler
from .source import NewTokens, NextTokenModel, ScoringModel


class StopScanner:
    """Finds the first of some strings to be complete, in text that comes in pieces of any size.

    >>> scanner = StopScanner(["END"])
    >>> scanner.feed("one E"), scanner.feed("N two E"), scanner.feed("ND three"), scanner.found
    ('one ', 'EN two ', '', True)
    """

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The text that is certain now; empty once a string was found."""
        if self.found:
            return ""
        text = self._held + text
        places = [(at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)[1]]
        cut = min((_beginning(text, stop) for stop in self._stops), default=len(text))
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """The text that was held back and is no stop string after all."""
        held, self._held = self._held, ""
        return held


def _beginning(text: str, stop: str) -> int:
    """Where the longest end of the text begins that is a beginning of the stop string."""
    at = text.find(stop[0], max(len(text) - len(stop) + 1, 0))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) if at < 0 else at


class StoppingTurn(Turn):
    """A turn whose text ends at the first of the stop strings.

    `stopped` turns true when one is complete; after that nothing is emitted.
    """

    def __init__(
        self,
        stops: Sequence[str],
        id: str,
        created_at: int,
        model: str,
        losses: tuple[Loss, ...] = (),
    ) -> None:
        super().__init__(id, created_at, model, losses=losses, think=None)
        self.stopped = False
        self._scanner = StopScanner(stops)
        self._waiting: list[Token] = []  # of text that is held back
        self._ahead = 0  # bytes of tokens emitted whose text is still held back

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """Text, as far as it is certain."""
        if self.stopped:
            return
        self._waiting += tokens
        text = self._scanner.feed(data)
        self.stopped = self._scanner.found
        if text or self.stopped:
            super().text(text, choice, self._tokens_of(text))

    def texts(self, pieces: list[str], choice: int = 0) -> None:
        for piece in pieces:
            self.text(piece, choice)

    def refusal(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        if self._open_after_held(choice):
            super().refusal(data, choice, tokens)

    def reasoning(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        if self._open_after_held(choice):
            super().reasoning(data, choice, tokens)

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        if self._open_after_held(choice):
            super().call(fragment, choice)

    def close_message(self, choice: int = 0) -> None:
        if self._open_after_held(choice):
            super().close_message(choice)

    def finish(self, reason: str, choice: int = 0) -> None:
        """The end, at a stop string or at the model's own."""
        self._open_after_held(choice)
        super().finish("stop" if self.stopped else reason, choice)

    def _open_after_held(self, choice: int) -> bool:
        """Whether more may be emitted. A stop string cannot continue beyond the text it began
        in."""
        if self.stopped:
            return False
        if held := self._scanner.flush():
            super().text(held, choice, self._tokens_of(held))
        return True

    def _tokens_of(self, text: str) -> tuple[Token, ...]:
        """The tokens that begin in this text."""
        if not self._waiting:
            return ()
        room, count = len(text.encode("utf-8", "replace")) - self._ahead, 0
        for token in self._waiting:
            if room <= 0:
                break
            room -= len(token.bytes or b"")
            count += 1
        self._ahead = -room
        found, self._waiting = tuple(self._waiting[:count]), self._waiting[count:]
        return found


_utf8 = getincrementaldecoder("utf-8")


class SequenceDecoder:
    """Decodes one choice of an answer. The first counts the prompt's tokens; the others share
    them."""

    def __init__(self, plan: Plan, number: int, piece: Callable[[int], bytes]) -> None:
        stops, named = plan.request.sampling.stop, (new_id(), now(), plan.request.model)
        self._turn: Turn
        if stops:
            self._turn = StoppingTurn(stops, *named, plan.losses)
        else:
            self._turn = Turn(*named, losses=plan.losses, think=None)
        self._parser = plan.parser(self._turn)
        self._first = number == 0
        self._prompt = len(plan.jobs[0].prompt) if self._first else 0
        self._count = 0
        self._echo = plan.echo
        self._scored = plan.jobs[0].scored
        self._markers = _EndMarkers(plan.markers, piece) if plan.markers else None
        self._over = False

    def take(self, new: NewTokens) -> list[Event]:
        """The events of new tokens."""
        self._turn.begin()
        if self._echo is not None and (new.prompt is not None or not self._scored):
            # Not scanned: stop strings count only in what the model adds.
            Turn.text(self._turn, self._echo, 0, tuple(new.prompt or ()))
            self._echo = None
        if self._markers is not None or isinstance(self._turn, StoppingTurn):
            self._feed_singly(new)
        elif new.ids:
            self._parser.feed(new.ids, new.tokens)
            self._count += len(new.ids)
        if not self._over and new.end is not None:
            self._end(new.end, new.cached)
        return self._turn.take()

    def _feed_singly(self, new: NewTokens) -> None:
        """Feed one token after the other, so as to count none after the one that ends the
        answer."""
        for place, id in enumerate(new.ids):
            self._parser.feed((id,), new.tokens[place : place + 1])
            self._count += 1
            if self._stopped(id):
                new.stopped = True
                self._end("stop", new.cached)
                return

    def _stopped(self, id: int) -> bool:
        if isinstance(self._turn, StoppingTurn) and self._turn.stopped:
            return True
        return self._markers is not None and self._markers.complete_with(id)

    def _end(self, end: str | Fault, cached: int | None) -> None:
        self._over = True
        self._turn.usage = Usage(
            input_tokens=self._prompt,
            output_tokens=self._count,
            total_tokens=self._prompt + self._count,
            cached_tokens=cached if self._first or cached is None else 0,
            reasoning_tokens=self._parser.reasoning_tokens,
        )
        if isinstance(end, Fault):
            self._turn.fail(end)
        else:
            self._parser.close(end)


class _EndMarkers:
    """Finds the ends of a format in a vocabulary that has no tokens for them."""

    def __init__(self, texts: Sequence[str], piece: Callable[[int], bytes]) -> None:
        self._scanner = StopScanner(texts)
        self._decoder = _utf8("replace")
        self._piece = piece

    def complete_with(self, id: int) -> bool:
        """Whether one is complete with this token."""
        self._scanner.feed(self._decoder.decode(self._piece(id)))
        return self._scanner.found


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
