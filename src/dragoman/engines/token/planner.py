"""Plans a request for a token engine: prompt ids, sampling, limits, constraints."""

from __future__ import annotations

import asyncio
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.item import Message, Token
from dragoman.core.loss import Loss
from dragoman.core.lower import Lowered, Restore, lower, with_summary
from dragoman.core.request import Request, Sampling
from dragoman.core.response import CONSTRAINT_FIELDS, default_guarantee
from dragoman.core.turn import Turn
from dragoman.engines.base import unsupported_fields
from dragoman.formats.format import Format, Parser, Setting
from dragoman.formats.prompt import Prompt, Tokenizer

from .constraints import Enforcer, Requirement
from .source import Job, room

_utf8 = getincrementaldecoder("utf-8")


def raw_ids(prompt: str | Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The ids of a raw prompt, in which control tokens may be spelled out.

    >>> from dragoman.formats.prompt import ByteTokenizer
    >>> raw_ids("hi<|end|>", ByteTokenizer(["<|end|>"]))
    [104, 105, 256]
    """
    if not isinstance(prompt, str):
        return list(prompt)
    controls = tokenizer.controls
    longest_first = sorted(controls, key=len, reverse=True)
    marks = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    ids: list[int] = []
    at = 0
    for mark in marks.finditer(prompt):
        ids += tokenizer.encode(prompt[at : mark.start()])
        ids.append(controls[mark[0]])
        at = mark.end()
    return [*ids, *tokenizer.encode(prompt[at:])]


class RawParser:
    """Emits the model's tokens as text; control tokens are left out."""

    def __init__(self, request: Request, turn: Turn, tokenizer: Tokenizer) -> None:
        self._turn = turn
        self._piece = tokenizer.piece
        self._controls = frozenset(tokenizer.controls.values())
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


MAX_CHOICES = 128

Done = TypeVar("Done")

_SAMPLING_FIELDS = (
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "logit_bias",
)
"""Fields that only change which token is chosen."""

_QUICK = 4_000
"""Characters of a conversation that is rendered on the event loop; longer ones in a thread."""


class Plan(Struct, frozen=True, kw_only=True):
    """A request, ready to run.

    `requirement` is what its answer must be, if anything. `markers` are texts that end an answer
    and are no tokens here. `echo` is what the answer begins with, and `undo` restores in its events
    what was lowered in the request.
    """

    request: Request
    jobs: tuple[Job, ...]
    parser: Callable[[Turn], Parser]
    losses: tuple[Loss, ...] = ()
    requirement: Requirement | None = None
    markers: tuple[str, ...] = ()
    echo: str | None = None
    undo: Restore | None = None


class Planner(Struct, frozen=True, kw_only=True):
    """Plans for one model in one format.

    `scores` says whether the model gives scores, `honoured` which sampling fields it honours if it
    does not (None: all).
    """

    format: Format
    tokenizer: Tokenizer
    setting: Setting | Callable[[], Setting]
    context: int | None
    max_tokens: int
    ends: frozenset[int]
    enforcer: Enforcer
    scores: bool
    honoured: frozenset[str] | None

    async def chat(self, request: Request) -> Plan:
        """The plan of a conversation. Raises FaultError."""
        return await _off_loop_if_slow(self._chat, request)

    async def count(self, request: Request) -> int:
        """The number of tokens in the prompt of a conversation. Raises FaultError."""
        return len((await _off_loop_if_slow(self._lowered, request))[2])

    async def raw(self, prompt: str | Sequence[int], request: Request, echo: bool) -> Plan:
        """The plan of a raw prompt. Raises FaultError."""
        return await asyncio.to_thread(self._raw, prompt, request, echo)

    def _lowered(self, request: Request) -> tuple[Lowered, Prompt, list[int]]:
        """The request in terms of the format, its prompt, and the prompt's ids."""
        lowered = lower(request, self.format.limits)
        setting = self.setting() if callable(self.setting) else self.setting
        try:
            prompt = self.format.render(lowered.request, setting)
        except FaultError as error:
            raise FaultError(lowered.client_fault(error.fault)) from error
        return lowered, prompt, prompt.ids(self.tokenizer)

    def _chat(self, request: Request) -> Plan:
        lowered, prompt, ids = self._lowered(request)
        asked = lowered.request
        ends, markers = self._ends(asked)
        job = self._job(ids, asked, ends)
        try:
            requirement = self.enforcer.requirement(asked, self.format.grammar(asked), ends)
        except FaultError as error:
            raise FaultError(lowered.client_fault(error.fault)) from error
        not_enforced = tuple(_not_enforced(asked, requirement))
        if lowered.grammar_described and default_guarantee(request):
            requirement = replace(requirement or Requirement(None, None), described=True)
        return Plan(
            request=asked,
            jobs=self._alternatives(job, requirement),
            requirement=requirement,
            parser=lambda turn: self.format.parser(asked, turn, self.tokenizer),
            losses=(
                *lowered.losses,
                *lowered.client_losses(prompt.losses),
                *not_enforced,
                *self._unsupported_sampling(asked.sampling),
            ),
            markers=markers,
            undo=with_summary(request, lowered.restore),
        )

    def _raw(self, prompt: str | Sequence[int], request: Request, echo: bool) -> Plan:
        ids = raw_ids(prompt, self.tokenizer)
        for id in ids:
            if not 0 <= id < self.tokenizer.size:
                raise FaultError(bad_request(f"{id} is no token id of this model", "prompt"))
        ends, _ = self._ends(request)
        job = self._job(ids, request, ends, least=0 if echo else 1)
        job = replace(job, scored=echo and bool(request.sampling.logprobs))
        texts = prompt if isinstance(prompt, str) else b"".join(map(self.tokenizer.piece, ids))
        return Plan(
            request=request,
            jobs=self._alternatives(job, None),
            parser=lambda turn: RawParser(request, turn, self.tokenizer),
            losses=self._unsupported_sampling(request.sampling),
            echo=(texts if isinstance(texts, str) else texts.decode("utf-8", "replace"))
            if echo
            else None,
        )

    def _ends(self, request: Request) -> tuple[frozenset[int], tuple[str, ...]]:
        """What ends an answer: ids, and texts where the vocabulary has no id for them."""
        stops, controls = self.format.stops(request), self.tokenizer.controls
        ids = (controls[text] for text in stops.controls if text in controls)
        texts = (text for text in stops.controls if text not in controls)
        return self.ends.union(ids), (*stops.texts, *texts)

    def _job(self, ids: list[int], request: Request, ends: frozenset[int], least: int = 1) -> Job:
        asked = request.max_output_tokens
        if asked is not None and asked < least:
            raise FaultError(bad_request(f"{asked} is less than {least}", "max_output_tokens"))
        if not ids:
            raise FaultError(bad_request("There is nothing in the prompt."))
        self._check(request.sampling)
        return Job(
            prompt=tuple(ids),
            sampling=request.sampling,
            ends=ends,
            limit=room(ids, self.context, asked, self.max_tokens, request.model),
            size=self.tokenizer.size,
        )

    def _alternatives(self, job: Job, requirement: Requirement | None) -> tuple[Job, ...]:
        """The job of each choice, with a seed and a constraint of its own."""
        count = 1 if job.sampling.n is None else job.sampling.n
        if not 1 <= count <= MAX_CHOICES:
            raise FaultError(bad_request(f"{count} is not between 1 and {MAX_CHOICES}", "n"))
        jobs = [job]
        seed = job.sampling.seed
        for number in range(1, count):
            own = None if seed is None else seed + number
            jobs.append(replace(job, sampling=replace(job.sampling, seed=own)))
        if requirement is None or requirement.constraint is None:
            return tuple(jobs)
        return tuple(replace(each, constraint=requirement.constraint()) for each in jobs)

    def _check(self, sampling: Sampling) -> None:
        """Raises FaultError for invalid sampling fields, and log-probabilities of a model without
        scores."""
        if self.scores:
            from .sampler import check

            check(sampling, self.tokenizer.size)
        elif sampling.logprobs:
            problem = "this model gives tokens without probabilities"
            raise FaultError(unsupported(problem, "logprobs"))

    def _unsupported_sampling(self, sampling: Sampling) -> tuple[Loss, ...]:
        """The sampling fields that the model ignores."""
        if self.honoured is None:
            return ()
        why = "the model chooses its tokens without it"
        asked = (name for name in _SAMPLING_FIELDS if getattr(sampling, name) is not None)
        return tuple(Loss(name, "dropped", why) for name in asked if name not in self.honoured)


def ids_of(ends: Iterable[int | str], tokenizer: Tokenizer) -> frozenset[int]:
    """Ids, given as such or as texts of control tokens. Raises KeyError for an unknown text."""
    return frozenset(tokenizer.controls[e] if isinstance(e, str) else e for e in ends)


def _not_enforced(request: Request, requirement: Requirement | None) -> Iterator[Loss]:
    """Fields that a prompt cannot express, and constraints that nothing enforces."""
    yield from unsupported_fields(request, heard=CONSTRAINT_FIELDS)
    if requirement is None and request.tools and request.parallel_tool_calls is False:
        yield Loss("parallel_tool_calls", "dropped", "nothing limits the model to one call")


async def _off_loop_if_slow(work: Callable[[Request], Done], request: Request) -> Done:
    """Run in a thread what may take long."""
    return work(request) if _is_quick(request) else await asyncio.to_thread(work, request)


def _is_quick(request: Request) -> bool:
    """Whether rendering takes microseconds."""
    if request.tools or default_guarantee(request):
        return False
    room = _QUICK
    for item in request.items:
        if not isinstance(item, Message) or not isinstance(item.content, str):
            return False
        room -= len(item.content) + 100
    return room > 0
