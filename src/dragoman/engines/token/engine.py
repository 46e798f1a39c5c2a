"""A model of tokens as an engine: plans a request, runs its sequences, decodes them into events."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from operator import itemgetter
from typing import TypeVar
from weakref import finalize

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, unsupported
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.item import FunctionCallOutput, Item, Message, Text, Token
from dragoman.core.loss import Loss
from dragoman.core.lower import Lowered, Restore, lower, with_summary
from dragoman.core.request import Request, Sampling
from dragoman.core.response import CONSTRAINT_FIELDS, TEXT_CONSTRAINTS, Usage, default_guarantee
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import Turn
from dragoman.engines.base import fault_from, new_id, now, unsupported_fields
from dragoman.engines.fan_out import Merge
from dragoman.engines.find_format import dated
from dragoman.engines.turns import ThreadPool
from dragoman.formats.format import Format, Parser, Setting
from dragoman.formats.grammar.demand import check_tools, unenforced
from dragoman.formats.prompt import Marks, Prompt, Tokenizer, shown_controls
from dragoman.wire.registry import spell_fault, spell_losses

from .constraints import Batches, Enforcer, Requirement, with_guarantee
from .next_token import NextTokenModel, StreamModel
from .scheduler import Scheduler
from .source import Job, NewTokens, ScoringModel

_utf8 = getincrementaldecoder("utf-8")

# ---- raw prompts -----------------------------------------------------------------------------


def raw_ids(
    prompt: str | Sequence[int], tokenizer: Tokenizer, marks: Marks | None = None
) -> list[int]:
    """The ids of a raw prompt, in which control tokens (`marks`, if made before) may be spelled
    out.

    >>> from dragoman.formats.prompt import ByteTokenizer
    >>> raw_ids("hi<|end|>", ByteTokenizer(["<|end|>"]))
    [104, 105, 256]
    """
    if not isinstance(prompt, str):
        return list(prompt)
    marks = marks or Marks(tokenizer.controls)
    return Prompt(tuple(marks.split(prompt))).ids(tokenizer)


class RawParser:
    """Emits the model's tokens as text; control tokens are left out."""

    def __init__(self, turn: Turn, tokenizer: Tokenizer) -> None:
        self._turn = turn
        self._piece = tokenizer.piece
        shown = shown_controls(tokenizer)
        controls = tokenizer.controls.items()
        self._controls = frozenset(id for text, id in controls if text not in shown)
        self._decoder = _utf8("replace")
        self.reasoning_tokens = 0
        self.warnings: tuple[str, ...] = ()

    def feed(self, ids: Sequence[int], tokens: Sequence[Token] = ()) -> None:
        decode, piece, controls = self._decoder.decode, self._piece, self._controls
        texts = [decode(piece(id)) if id not in controls else "" for id in ids]
        if not tokens:
            self._turn.texts([text for text in texts if text])
            return
        for text, token in zip(texts, tokens, strict=True):
            self._turn.text(text, 0, (token,))

    def write(self, text: str) -> None:
        self._turn.text(text)

    def close(self, reason: str) -> None:
        self._turn.text(self._decoder.decode(b"", True))
        self._turn.finish(reason)
        self._turn.end(complete=True)


# ---- sequences -------------------------------------------------------------------------------


class StopScanner:
    """Finds the first of some strings to be complete, in text that comes in pieces of any size.

    >>> scanner = StopScanner(["END"])
    >>> scanner.feed("one E"), scanner.feed("N two E"), scanner.feed("ND three"), scanner.found
    ('one ', 'EN two ', '', 'END')
    """

    __slots__ = ("_begun", "_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._begun = [0] * len(self._stops)  # where in what is held each may have begun
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that is certain now; empty once a string was found."""
        if self.found:
            return ""
        piece, held, begun = text, len(self._held), self._begun
        text = self._held + piece
        places = []
        for number, stop in enumerate(self._stops):
            at = begun[number]
            # Most that have begun go on; to look for all of them anew would take long.
            if at < held and len(text) - at < len(stop) and stop.startswith(piece, held - at):
                continue
            if (found := text.find(stop, at)) >= 0:
                places.append((found + len(stop), found, stop))
            begun[number] = _beginning(text, stop, at)
        if places:
            _, at, self.found = min(places)
            self._held = ""
            return text[:at]
        cut = min(begun, default=len(text))
        if cut:
            self._begun = [at - cut for at in begun]
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """The text that was held back and is no stop string after all."""
        held, self._held = self._held, ""
        self._begun = [0] * len(self._stops)
        return held


def _beginning(text: str, stop: str, at: int) -> int:
    """Where the longest end of the text from there on begins that is a beginning of the stop
    string."""
    at = text.find(stop[0], max(len(text) - len(stop) + 1, at))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) if at < 0 else at


class StoppingTurn(Turn):
    """A turn whose text ends at the first of the stop strings.

    `stop_sequence` is the one that was complete; after that nothing is emitted.
    """

    def __init__(
        self, stops: Sequence[str], id: str, created_at: int, model: str, losses: tuple[Loss, ...]
    ) -> None:
        super().__init__(id, created_at, model, losses=losses, think=None)
        self._scanner = StopScanner(stops)
        self._waiting: list[tuple[int, Token]] = []  # of text that is held, by where they begin
        self._taken = self._emitted = 0  # characters of text

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """Text, as far as it is certain."""
        if self.stop_sequence:
            return
        at = before = self._taken
        self._taken += len(data)
        for token in tokens:
            raw = token.bytes or b""
            rest = at > before and b"\x80" <= raw[:1] < b"\xc0"  # of a character that has begun
            self._waiting.append((min(at - rest, self._taken), token))
            at += sum(byte & 0xC0 != 0x80 for byte in raw)  # characters that begin in it
        text = self._scanner.feed(data)
        self.stop_sequence = self._scanner.found
        if text or self.stop_sequence:
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
        super().finish("stop" if self.stop_sequence else reason, choice)

    def _open_after_held(self, choice: int) -> bool:
        """Whether more may be emitted. A stop string cannot continue beyond the text it began
        in."""
        if self.stop_sequence:
            return False
        held, self._emitted = self._scanner.flush(), self._taken + 1  # what has no text, too
        if held or self._waiting:
            super().text(held, choice, self._tokens_of(""))
        self._emitted = self._taken
        return True

    def _tokens_of(self, text: str) -> tuple[Token, ...]:
        """The tokens that begin in this text."""
        self._emitted += len(text)
        count = bisect_left(self._waiting, self._emitted, key=itemgetter(0))
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        return tuple(token for _, token in found)


class Plan(Struct, frozen=True, kw_only=True):
    """A request, ready to run.

    `requirement` is what its answer must be, if anything. `markers` are texts that end an answer
    and are no tokens here. `echo` is what the answer begins with, and `restore` maps its events
    back to the client's terms, where the request was lowered.
    """

    request: Request
    jobs: tuple[Job, ...]
    parser: Callable[[Turn], Parser]
    losses: tuple[Loss, ...] = ()
    requirement: Requirement | None = None
    markers: tuple[str, ...] = ()
    echo: str | None = None
    restore: Restore | None = None


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
        # Finds the ends of a format in a vocabulary that has no tokens for them.
        self._markers = StopScanner(plan.markers)
        self._stepwise = bool(plan.markers or stops)
        self._decode = _utf8("replace").decode
        self._piece = piece
        self._over = False

    def take(self, new: NewTokens) -> list[Event]:
        """The events of new tokens."""
        self._turn.begin()
        if self._echo is not None and (new.prompt is not None or not self._scored):
            # Not scanned: stop strings count only in what the model adds.
            Turn.text(self._turn, self._echo, 0, tuple(new.prompt or ()))
            self._echo = None
        if self._stepwise:
            # One token after the other, so as to count none after the one that ends the answer.
            for place, id in enumerate(new.ids):
                self._parser.feed((id,), new.tokens[place : place + 1])
                self._count += 1
                self._markers.feed(self._decode(self._piece(id)))
                if self._markers.found or self._turn.stop_sequence:
                    new.stopped = True
                    self._end("stop", new.cached)
                    break
        elif new.ids:
            self._parser.feed(new.ids, new.tokens)
            self._count += len(new.ids)
        if not self._over and new.end is not None:
            self._end(new.end, new.cached)
        return self._turn.take()

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


# ---- the engine ------------------------------------------------------------------------------

MAX_TOKENS = 131_072
"""The most new tokens where neither the request nor the model's context sets a limit."""
MAX_CHOICES = 128
TOGETHER = 64
"""Tokens of an answer that are decoded in one turn of the event loop: a grammar may leave thousands
of them no choice, which come together, and so do those of many choices."""
CONCURRENCY, QUEUE = 32, 1_024
LARGE = 128 * 1024
"""Bytes of an answer that are accounted for at a time: the rest is small."""
WRITTEN, SCORED = 16, 128
"""Bytes of a token, and of one with its log-probability."""

_SAMPLING_FIELDS = (
    *("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "seed", "logit_bias"),
)
"""Fields that only change which token is chosen."""

_TEMPLATED = frozenset({"chat_template_kwargs", "documents"})
"""Fields of any size that a chat template is given."""
_QUICK = 4_000
"""Characters of a conversation that is rendered on the event loop; longer ones in a thread."""

Done = TypeVar("Done")


def _token(tokenizer: Tokenizer, id: int) -> Token:
    piece = tokenizer.piece(id)
    return Token(piece.decode("utf-8", "replace"), None, piece, id=id)


class TokenEngine:
    """Serves a model that reads and writes tokens.

    - `format` turns a conversation into a prompt and parses the answer.
    - `model` is a `ScoringModel`, or made by `from_next_token`, `from_step` or `from_stream`.
    - `tokenizer` is its vocabulary; `ends` are ids, or control tokens by their text, that end every
      answer beside those of the format.
    - `setting` is what prompts say beside the request (a function is called each time: the date
      changes); by default today's date, where the format has a place for it.
    - `max_tokens` is the limit where the request sets none and the model has no context.
    - `concurrency` sequences run at a time, and `queue` more may wait; beyond that requests are
      refused as `overloaded`.

    Call `close` when it is no longer needed: it has threads, and a process that tries grammars.
    They end with an engine that is garbage-collected, too, but later.

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
        setting: Setting | Callable[[], Setting] | None = None,
        max_tokens: int = MAX_TOKENS,
        ends: Iterable[int | str] = (),
        concurrency: int | None = None,
        queue: int = QUEUE,
    ) -> None:
        if isinstance(format, str):
            raise TypeError(f"format is a text: use find_format.by_name({format!r})")
        if not hasattr(model, "context"):
            raise TypeError(
                f"{type(model).__name__} is no model of tokens: use from_next_token, from_step or "
                "from_stream, or give it what a ScoringModel has"
            )
        scores = not isinstance(model, NextTokenModel | StreamModel)
        if scores and find_spec("numpy") is None:
            missing = "Scores of a model need the extra local: "
            raise ImportError(f"{missing}pip install '.[local]' in the checkout.")
        self.name = name
        self.description = description
        self.format = format
        self.tokenizer = tokenizer
        self.context = model.context
        self._created = now()
        self._setting = dated() if setting is None else setting
        self._max_tokens = max_tokens
        controls = tokenizer.controls
        self._ends = frozenset(controls[end] if isinstance(end, str) else end for end in ends)
        self._enforcer = Enforcer(tokenizer, scores=scores)
        self._scores = scores
        self._turns = ThreadPool()
        self._source: Scheduler | StreamModel
        if isinstance(model, StreamModel):
            self._source = model
        else:
            most = concurrency or getattr(model, "concurrency", None) or CONCURRENCY
            describe = lru_cache(maxsize=1 << 16)(partial(_token, tokenizer))
            self._source = Scheduler(model, describe, concurrency=most, queue=queue)
            finalize(self, self._source.end).atexit = False
        finalize(self, self._turns.close).atexit = False
        # Which sampling fields a model without scores honours; None: all.
        self._honoured: frozenset[str] | None = getattr(model, "honoured", None)

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        return self._answer(partial(self._planned, request, caller), caller.count)

    def complete(
        self,
        prompt: str | Sequence[int],
        request: Request,
        caller: Caller = ANYONE,
        *,
        echo: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Continue a raw prompt, a text or ids; the answer is text as it stands."""
        plan = partial(self._raw_plan, prompt, request, caller.tenant, echo)
        return self._answer(partial(self._turns.run, caller.tenant, plan), caller.count)

    async def count(self, request: Request, caller: Caller = ANYONE) -> int:
        """The number of tokens in a request's prompt. Raises FaultError."""
        return len((await self._off_loop_if_slow(caller.tenant, self._lowered, request))[2])

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        extra = {
            "description": self.description,
            "format": self.format.name,
            "context_window": self.context,
            "guarantees": list(self._enforcer.guarantees),
        }
        shown = {name: value for name, value in extra.items() if value is not None}
        return (Model(self.name, created=self._created, extra={"models": shown}),)

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            images=False,
            audio=False,
            choices=True,
            context=self.context,
            wire="chat",
            constraints=TEXT_CONSTRAINTS if "enforced" in self._enforcer.guarantees else None,
            continues={},
        )

    async def close(self) -> None:
        """Fail what is running, and end the model's thread."""
        await self._source.close()
        self._turns.close()
        self._enforcer.close()

    # ---- answering -----------------------------------------------------------------------

    async def _answer(
        self, planning: Callable[[], Awaitable[Plan]], count: Callable[[int], None] | None
    ) -> AsyncGenerator[Event, None]:
        """The events of a plan. A turn emits legal events and a source always ends, so that only an
        error before the start is handled here."""
        try:
            plan = await planning()
            answer = self._decoded(plan, count)
            if plan.requirement is not None:
                turns, tenant = self._enforcer.turns, plan.jobs[0].tenant
                answer = with_guarantee(answer, plan.requirement, turns, tenant)
            async with aclosing(answer) as batches:
                async for events in batches:
                    for event in events if plan.restore is None else plan.restore(events):
                        yield event
        except Exception as error:
            yield Failed(fault_from(error))

    async def _decoded(self, plan: Plan, count: Callable[[int], None] | None) -> Batches:
        piece, kept, decoded = self.tokenizer.piece, 0, 0
        scored = SCORED * (1 + (plan.request.sampling.top_logprobs or 0))
        decoders = [SequenceDecoder(plan, 0, piece)]
        while len(decoders) < len(plan.jobs):
            await asyncio.sleep(0)  # each looks at all tools
            decoders.append(SequenceDecoder(plan, len(decoders), piece))
        merge = Merge(len(decoders)) if len(decoders) > 1 else None
        async with aclosing(self._source.run(plan.jobs)) as new_tokens:
            async for index, new in new_tokens:
                kept += WRITTEN * len(new.ids) + scored * (len(new.tokens) + len(new.prompt or ()))
                if kept > LARGE and count is not None:
                    count(kept)
                    kept = 0
                for part in new.parts(TOGETHER):
                    events = decoders[index].take(part)
                    if merge is not None:
                        events = [e for event in events for e in merge.feed(index, event)]
                    if events:
                        yield events
                    if merge is not None and merge.over:
                        return
                    decoded += len(part.ids)
                    if decoded >= TOGETHER:
                        decoded = 0
                        await asyncio.sleep(0)

    # ---- planning ------------------------------------------------------------------------

    async def _planned(self, request: Request, caller: Caller) -> Plan:
        """The plan of a request, with its fields named as on the caller's wire. Raises
        FaultError."""
        try:
            work = partial(self._plan, tenant=caller.tenant)
            plan = await self._off_loop_if_slow(caller.tenant, work, request)
        except FaultError as error:
            raise FaultError(spell_fault(error.fault, request, caller.wire)) from error
        return replace(plan, losses=spell_losses(plan.losses, request, caller.wire))

    def _lowered(self, request: Request) -> tuple[Lowered, Prompt, list[int]]:
        """The request in terms of the format, its prompt, and the prompt's ids."""
        self._check_size(sum(map(_characters, request.items)), request)
        lowered = lower(request, self.format.limits)
        setting = self._setting() if callable(self._setting) else self._setting
        try:
            check_tools(lowered.request)
            prompt = self.format.render(lowered.request, setting)
        except FaultError as error:
            raise FaultError(lowered.client_fault(error.fault)) from error
        size = sum(len(p) if isinstance(p, str) else 1 for p in prompt.pieces)
        self._check_size(size, request)
        return lowered, prompt, prompt.ids(self.tokenizer)

    def _check_size(self, characters: int, request: Request) -> None:
        """Raises FaultError for a prompt that must be too long, before it is encoded."""
        context = self.context
        if context is None or characters <= 4 * context:
            return
        if characters >= context * self._longest_token:
            raise FaultError(_too_long(f"more than {context}", context, request))

    @cached_property
    def _marks(self) -> Marks:
        return Marks(self.tokenizer.controls)

    @cached_property
    def _longest_token(self) -> int:
        return max(len(self.tokenizer.piece(id)) for id in range(self.tokenizer.size))

    def _plan(self, request: Request, tenant: str = "") -> Plan:
        lowered, prompt, ids = self._lowered(request)
        asked = lowered.request
        ends, markers = self._ends_of(asked)
        jobs = self._jobs(ids, asked, ends, tenant)
        try:
            grammar = self.format.grammar(asked)
            requirement = self._enforcer.requirement(asked, grammar, ends, tenant)
        except FaultError as error:
            raise FaultError(lowered.client_fault(error.fault)) from error
        losses = [*lowered.losses, *lowered.client_losses(prompt.losses)]
        losses += unsupported_fields(asked, carried=CONSTRAINT_FIELDS)
        if requirement is None and asked.tools and asked.parallel_tool_calls is False:
            why = "nothing limits the model to one call"
            losses.append(Loss("parallel_tool_calls", "dropped", why))
        loose = lowered.client_losses(unenforced(asked))
        losses += loose
        if (lowered.grammar_described or loose) and default_guarantee(request):
            requirement = replace(requirement or Requirement(None, None), described=True)
        if requirement is not None and requirement.constraint is not None:
            jobs = tuple(replace(job, constraint=requirement.constraint()) for job in jobs)
        return Plan(
            request=asked,
            jobs=jobs,
            requirement=requirement,
            parser=lambda turn: self.format.parser(asked, turn, self.tokenizer),
            losses=(*losses, *self._unsupported_sampling(asked.sampling)),
            markers=markers,
            restore=with_summary(request, lowered.restore),
        )

    def _raw_plan(
        self, prompt: str | Sequence[int], request: Request, tenant: str, echo: bool
    ) -> Plan:
        self._check_size(len(prompt), request)
        ids = raw_ids(prompt, self.tokenizer, self._marks)
        for id in ids:
            if not 0 <= id < self.tokenizer.size:
                raise FaultError(bad_request(f"{id} is no token id of this model", "prompt"))
        ends, _ = self._ends_of(request)
        text = prompt
        if not isinstance(text, str):
            text = b"".join(map(self.tokenizer.piece, ids)).decode("utf-8", "replace")
        return Plan(
            request=request,
            jobs=self._jobs(ids, request, ends, tenant, echo=echo),
            parser=lambda turn: RawParser(turn, self.tokenizer),
            losses=(*unsupported_fields(request), *self._unsupported_sampling(request.sampling)),
            echo=text if echo else None,
        )

    def _ends_of(self, request: Request) -> tuple[frozenset[int], tuple[str, ...]]:
        """What ends an answer: ids, and texts where the vocabulary has no id for them."""
        stops, controls = self.format.stops(request), self.tokenizer.controls
        ids = (controls[text] for text in stops.controls if text in controls)
        texts = (text for text in stops.controls if text not in controls)
        return self._ends.union(ids), (*stops.texts, *texts)

    def _jobs(
        self,
        ids: list[int],
        request: Request,
        ends: frozenset[int],
        tenant: str,
        *,
        echo: bool = False,
    ) -> tuple[Job, ...]:
        """The sequences of a prompt, one for each choice, with a seed of its own. Raises FaultError
        for invalid limits and sampling fields, and for a prompt that leaves no room for an
        answer."""
        asked, sampling, context = request.max_output_tokens, request.sampling, self.context
        least = 0 if echo else 1
        if asked is not None and asked < least:
            raise FaultError(bad_request(f"{asked} is less than {least}", "max_output_tokens"))
        if not ids:
            raise FaultError(bad_request("There is nothing in the prompt."))
        bias = None
        if self._scores:
            from .sampler import check

            bias = check(sampling, self.tokenizer.size)
        elif sampling.logprobs:
            problem = "this model gives tokens without probabilities"
            raise FaultError(unsupported(problem, "logprobs"))
        limit = self._max_tokens if asked is None else asked
        if context is not None:
            if len(ids) >= context:
                raise FaultError(_too_long(f"{len(ids)}", context, request))
            left = context - len(ids)
            limit = left if asked is None else min(asked, left)
        count = 1 if sampling.n is None else sampling.n
        if not 1 <= count <= MAX_CHOICES:
            raise FaultError(bad_request(f"{count} is not between 1 and {MAX_CHOICES}", "n"))
        job = Job(
            prompt=tuple(ids),
            sampling=sampling,
            ends=ends,
            limit=limit,
            size=self.tokenizer.size,
            scored=echo and bool(sampling.logprobs),
            tenant=tenant,
            bias=bias,
        )
        if sampling.seed is None:
            return (job,) * count
        seeds = range(sampling.seed, sampling.seed + count)
        return tuple(replace(job, sampling=replace(sampling, seed=seed)) for seed in seeds)

    async def _off_loop_if_slow(
        self, tenant: str, work: Callable[[Request], Done], request: Request
    ) -> Done:
        """Run on a thread what may take longer than some microseconds."""
        demands = bool(request.tools or default_guarantee(request))
        slow = demands or getattr(self.format, "slow", False)
        slow = slow or any(_TEMPLATED & fields.keys() for fields in (request.extra or {}).values())
        room = -1 if slow else _QUICK
        room -= 20 * len(request.sampling.logit_bias or ())
        for item in request.items:
            if not isinstance(item, Message) or not isinstance(item.content, str):
                room = -1
                break
            room -= len(item.content) + 100
        if room > 0:
            return work(request)
        return await self._turns.run(tenant, partial(work, request), demanding=demands)

    def _unsupported_sampling(self, sampling: Sampling) -> tuple[Loss, ...]:
        """The sampling fields that the model ignores."""
        if self._honoured is None:
            return ()
        why = "the model chooses its tokens without it"
        asked = (name for name in _SAMPLING_FIELDS if getattr(sampling, name) is not None)
        return tuple(Loss(name, "dropped", why) for name in asked if name not in self._honoured)


def _characters(item: Item) -> int:
    """At least how many characters an item adds to the prompt."""
    match item:
        case Message(content=content) | FunctionCallOutput(output=content):
            if isinstance(content, str):
                return len(content)
            return sum(len(part.text) for part in content if isinstance(part, Text))
        case _:
            return 0


def _too_long(count: str, context: int, request: Request) -> Fault:
    problem = (
        f"The prompt has {count} tokens, instructions and tools included, and the model "
        f"{request.model!r} has a context of {context} tokens, of which at least one must be left "
        "for the answer. Shorten the conversation, or ask a model with a larger context."
    )
    return Fault("invalid_request", problem, "client", upstream_code="context_length_exceeded")
