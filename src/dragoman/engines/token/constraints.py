"""Constraints of an answer: which demands bind each token, and how sure the result is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeGuard

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, unsupported
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import Fold
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Guarantee, Response
from dragoman.formats.format import Grammar
from dragoman.formats.grammar.demand import Body, Demand, JSONBody, Lark, Regex, demand
from dragoman.formats.grammar.lark import Writer
from dragoman.formats.grammar.validate import Problem, problem
from dragoman.formats.prompt import ByteTokenizer, Tokenizer

from .source import Constraint

if TYPE_CHECKING:
    from .guidance import Guide, Motion

Constrain = Callable[[Grammar, Tokenizer, frozenset[int]], Constraint]
"""Makes a grammar a constraint for one sequence; the ids are those that end an answer."""

Batches = AsyncGenerator[list[Event], None]

_HOW = "pip install 'dragoman[local]'"


class Bound(Struct, frozen=True):
    """The demands on one answer, and who keeps them.

    `constraint` makes one for each sequence that is held to them; with `asked` the answer is
    looked at. `described` says that there is a demand beside them which nobody keeps.
    """

    constraint: Callable[[], Constraint] | None
    asked: Demand | None
    described: bool = False

    @property
    def sure(self) -> Guarantee:
        """How sure an answer is in which nothing was found wrong."""
        if self.described:
            return "best-effort"
        return "verified" if self.constraint is None else "enforced"


class Bounds:
    """Keeps the demands on one model. `scores` says whether it can be held to a grammar."""

    def __init__(self, tokenizer: Tokenizer, *, scores: bool, constrain: Constrain | None) -> None:
        self._tokenizer = tokenizer
        self._constrain = constrain
        self._enforces = scores and (constrain is not None or _installed())
        self._guide: Guide | None = None
        self._lock = threading.Lock()

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """How sure an answer can be that was demanded to be something."""
        return ("enforced",) if self._enforces else ("verified", "best-effort")

    def bound(
        self, request: Request, grammar: Grammar | None, ends: frozenset[int]
    ) -> Bound | None:
        """What to do about a request; None where it demands nothing. `ends` end an answer.

        It takes its time, so call it away from an event loop. Raises FaultError, naming the field,
        for demands that mean nothing or cannot be kept.
        """
        if grammar is None:
            return None
        if not self._enforces:
            asked = demand(request)
            _check(asked)
            return Bound(None, asked)
        # A string of the client's own may stop the answer where the grammar would not.
        asked = demand(request) if request.sampling.stop else None
        return Bound(self._constraint(grammar, ends), asked)

    def _constraint(self, grammar: Grammar, ends: frozenset[int]) -> Callable[[], Constraint]:
        if self._constrain is not None:
            return partial(self._constrain, grammar, self._tokenizer, ends)
        with self._lock:
            if self._guide is None:
                from .guidance import Guide

                self._guide = Guide(self._tokenizer)
        self._guide.constrain(grammar, ends)  # says now what is wrong with it
        return partial(self._guide.constrain, grammar, ends)


async def kept(batches: Batches, bound: Bound) -> Batches:
    """The same events, with the word of how sure the answer is; a strict demand that was not met
    makes a failure of the end."""
    fold = Fold() if bound.asked is not None else None
    async with aclosing(batches):
        async for batch in batches:
            if fold is not None:
                fold.feed_all(batch)
            if isinstance(start := batch[0], Started) and bound.constraint is not None:
                batch[0] = replace(start, guarantee=bound.sure)
            if isinstance(end := batch[-1], Finished):
                batch[-1] = await _ended(end, bound, fold)
            yield batch


async def _ended(event: Finished, bound: Bound, fold: Fold | None) -> Finished | Failed:
    """The end, with what a look at the answer said."""
    enforced = bound.constraint is not None
    if fold is None or bound.asked is None:
        return replace(event, guarantee=bound.sure)
    if event.status != "completed":
        return replace(event, guarantee=bound.sure if enforced else "best-effort")
    found = await asyncio.to_thread(_looked_at, bound.asked, fold.response)
    if found is None:
        return replace(event, guarantee=bound.sure)
    if found.grave and not enforced:
        told = f"The model's answer is not what was demanded: {found.what}. Ask again."
        fault = Fault("upstream_error", told, "upstream")
        return Failed(fault, event.usage, event.completed_at, event.extra)
    loss = Loss("format", "dropped", f"the answer is not what was demanded: {found.what}")
    return replace(event, guarantee="best-effort", losses=(*event.losses, loss))


def _looked_at(asked: Demand, response: Response) -> Problem | None:
    """What is wrong with any of the choices."""
    for number in range(len(response.reasons)):
        if (found := problem(asked, response.choice(number), _matches)) is not None:
            return found
    return None


# ---- texts of a grammar ------------------------------------------------------------------


def _installed() -> bool:
    """Whether grammars can be run."""
    try:
        return find_spec("llguidance") is not None
    except ValueError:  # it was imported in a way that left no trace
        return False


def _check(asked: Demand | None) -> None:
    """Raises FaultError for a demand that cannot be looked into, or is no grammar."""
    bodies = [] if asked is None else [asked.text, *(tool.body for tool in asked.tools)]
    for body in bodies:
        if body is not None and _takes_a_grammar(body):
            if not _installed():
                raise FaultError(
                    unsupported(f"cannot be kept without llguidance ({_HOW})", body.param)
                )
            _motion(body)


def _takes_a_grammar(body: Body) -> TypeGuard[Regex | Lark | JSONBody]:
    """Whether it takes a grammar to tell what is of it."""
    match body:
        case JSONBody(schema=schema):
            said = msgspec.json.encode(schema)
            return any(word in said for word in (b'"pattern', b'"format"'))
        case _:
            return isinstance(body, Regex | Lark)


def _matches(body: Body, text: str) -> bool:
    """Whether a text is of a grammar."""
    motion = _motion(body)
    try:
        motion.accept(text.encode())
    except FaultError:
        return False
    return motion.fits


def _motion(body: Body) -> Motion:
    writer = Writer()
    return _bytes().constrain(writer.grammar(writer.body(body)))


@cache
def _bytes() -> Guide:
    """A guide for texts, whatever their tokens."""
    from .guidance import Guide

    return Guide(ByteTokenizer())
