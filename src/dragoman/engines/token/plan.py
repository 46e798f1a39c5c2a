"""Turns a request into what is to be written: ids, how to choose more of them, and what ends them.

Here a request is found wanting, before the model hears of it: a prompt that is too long, settings
that mean nothing or that this model cannot keep. Who writes and who reads is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.guarantee import WHOLE, demanded, unsure
from dragoman.core.item import Message
from dragoman.core.loss import Loss
from dragoman.core.lower import Lowered, lower
from dragoman.core.request import Request, Sampling
from dragoman.core.turn import Turn
from dragoman.core.undo import Undo, summarised
from dragoman.engines.unsaid import unsaid
from dragoman.formats.format import Format, Parser, Setting
from dragoman.formats.prompt import Prompt
from dragoman.formats.tokenizer import Tokenizer

from .bounds import Bound, Bounds
from .raw import RawParser, raw_ids
from .run import Job, room

MOST_CHOICES = 128

Done = TypeVar("Done")

_SETTINGS = (
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "logit_bias",
)
"""The fields of a sampling that only change which token is chosen."""

_LIGHT = 4_000
"""Characters of a conversation that is rendered where it is asked; a longer one in a thread."""


class Plan(Struct, frozen=True, kw_only=True):
    """A request, ready to be written.

    `bound` is what its answer must be, where that is anything in particular. `markers` are texts
    that end an answer and are no tokens here. `echo` is what the answer begins with, and `undo`
    takes back in its events what was rewritten of the request.
    """

    request: Request
    jobs: tuple[Job, ...]
    parser: Callable[[Turn], Parser]
    losses: tuple[Loss, ...] = ()
    bound: Bound | None = None
    markers: tuple[str, ...] = ()
    echo: str | None = None
    undo: Undo | None = None


class Planner(Struct, frozen=True, kw_only=True):
    """Plans for one model in one format.

    `scores` says whether the model gives scores, `obeys` which settings it honours if it does not
    (None: it sees them all).
    """

    format: Format
    tokenizer: Tokenizer
    setting: Setting | Callable[[], Setting]
    context: int | None
    max_tokens: int
    ends: frozenset[int]
    bounds: Bounds
    scores: bool
    obeys: frozenset[str] | None

    async def chat(self, request: Request) -> Plan:
        """A plan for a conversation. Raises FaultError."""
        return await _apart(self._chat, request)

    async def count(self, request: Request) -> int:
        """How many tokens the prompt of a conversation has. Raises FaultError."""
        return len((await _apart(self._lowered, request))[2])

    async def raw(self, prompt: str | Sequence[int], request: Request, echo: bool) -> Plan:
        """A plan for a bare prompt. Raises FaultError."""
        return await asyncio.to_thread(self._raw, prompt, request, echo)

    def _lowered(self, request: Request) -> tuple[Lowered, Prompt, list[int]]:
        """A request as the format can say it, its prompt, and the ids of that."""
        lowered = lower(request, self.format.limits)
        setting = self.setting() if callable(self.setting) else self.setting
        try:
            prompt = self.format.render(lowered.request, setting)
        except FaultError as error:
            raise FaultError(lowered.blamed(error.fault)) from error
        return lowered, prompt, prompt.ids(self.tokenizer)

    def _chat(self, request: Request) -> Plan:
        lowered, prompt, ids = self._lowered(request)
        asked = lowered.request
        ends, markers = self._ends(asked)
        job = self._job(ids, asked, ends)
        try:
            bound = self.bounds.bound(asked, self.format.grammar(asked), ends)
        except FaultError as error:
            raise FaultError(lowered.blamed(error.fault)) from error
        unkept = tuple(_unkept(asked, bound))
        if lowered.described and unsure(request):
            bound = replace(bound or Bound(None, None), described=True)
        return Plan(
            request=asked,
            jobs=self._alternatives(job, bound),
            bound=bound,
            parser=lambda turn: self.format.parser(asked, turn, self.tokenizer),
            losses=(
                *lowered.losses,
                *lowered.placed(prompt.losses),
                *unkept,
                *self._unheard(asked.sampling),
            ),
            markers=markers,
            undo=summarised(request, lowered.events),
        )

    def _raw(self, prompt: str | Sequence[int], request: Request, echo: bool) -> Plan:
        ids = raw_ids(prompt, self.tokenizer)
        for id in ids:
            if not 0 <= id < self.tokenizer.size:
                raise FaultError(bad_request(f"{id} is no token id of this model", "prompt"))
        ends, _ = self._ends(request)
        job = self._job(ids, request, ends, least=0 if echo else 1)
        job = replace(job, scored=echo and bool(request.sampling.logprobs))
        said = prompt if isinstance(prompt, str) else b"".join(map(self.tokenizer.piece, ids))
        return Plan(
            request=request,
            jobs=self._alternatives(job, None),
            parser=lambda turn: RawParser(request, turn, self.tokenizer),
            losses=self._unheard(request.sampling),
            echo=(said if isinstance(said, str) else said.decode("utf-8", "replace"))
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

    def _alternatives(self, job: Job, bound: Bound | None) -> tuple[Job, ...]:
        """The job of each choice, with a seed and a constraint of its own."""
        count = 1 if job.sampling.n is None else job.sampling.n
        if not 1 <= count <= MOST_CHOICES:
            raise FaultError(bad_request(f"{count} is not between 1 and {MOST_CHOICES}", "n"))
        jobs = [job]
        seed = job.sampling.seed
        for number in range(1, count):
            own = None if seed is None else seed + number
            jobs.append(replace(job, sampling=replace(job.sampling, seed=own)))
        if bound is None or bound.constraint is None:
            return tuple(jobs)
        return tuple(replace(each, constraint=bound.constraint()) for each in jobs)

    def _check(self, sampling: Sampling) -> None:
        """Raises FaultError for settings that mean nothing, or that this model cannot keep."""
        if self.scores:
            from .sampler import check

            check(sampling, self.tokenizer.size)
        elif sampling.logprobs:
            problem = "this model names tokens only; it does not say how likely they are"
            raise FaultError(unsupported(problem, "logprobs"))

    def _unheard(self, sampling: Sampling) -> tuple[Loss, ...]:
        """The settings that the model will not hear of."""
        if self.obeys is None:
            return ()
        why = "the model chooses its tokens without it"
        asked = (name for name in _SETTINGS if getattr(sampling, name) is not None)
        return tuple(Loss(name, "told", why) for name in asked if name not in self.obeys)


def ids_of(ends: Iterable[int | str], tokenizer: Tokenizer) -> frozenset[int]:
    """Ids, given as such or by the texts of control tokens. Raises KeyError for a text that is no
    control token."""
    return frozenset(tokenizer.controls[e] if isinstance(e, str) else e for e in ends)


def _unkept(request: Request, bound: Bound | None) -> Iterator[Loss]:
    """What the prompt has no place for, and what nobody holds the model to."""
    yield from unsaid(request, heard=WHOLE)
    if bound is None and request.tools and request.parallel_tool_calls is False:
        yield Loss("parallel_tool_calls", "told", "nothing holds the model to one call")


async def _apart(work: Callable[[Request], Done], request: Request) -> Done:
    """Work on a request, in a thread where it may take long."""
    return work(request) if _is_light(request) else await asyncio.to_thread(work, request)


def _is_light(request: Request) -> bool:
    """Whether rendering is a matter of microseconds."""
    if request.tools or demanded(request):
        return False
    room = _LIGHT
    for item in request.items:
        if not isinstance(item, Message) or not isinstance(item.content, str):
            return False
        room -= len(item.content) + 100
    return room > 0
