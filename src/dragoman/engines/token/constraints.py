"""Constraints of an answer: which demands bind each token, and how sure the result is."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeGuard

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, unsupported
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import Fold
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Guarantee, Response
from dragoman.formats.format import Grammar, Marker
from dragoman.formats.grammar.demand import Body, Demand, JSONBody, Lark, Regex, demand
from dragoman.formats.grammar.lark import Writer
from dragoman.formats.grammar.validate import Problem, problem
from dragoman.formats.prompt import ByteTokenizer, Tokenizer

from .source import Constraint

if TYPE_CHECKING:
    import llguidance

    from .source import Logits

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
    if found.fatal and not enforced:
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
    return Guide(ByteTokenizer())


# ---- llguidance ----------------------------------------------------------------------------

COMPILED = 256
"""Grammars that are kept compiled, for each vocabulary."""

_SILENT = 0


class Guide:
    """Constrains sequences over one vocabulary.

    Building it reads the whole vocabulary (about a second for 200,000 tokens), so keep it. It may
    be used from any thread.

    >>> from dragoman.formats.prompt import ByteTokenizer
    >>> guide = Guide(ByteTokenizer())
    >>> motion = guide.constrain(Grammar('start: "yes" | "no"'))
    >>> motion.accept(b"n"); bytes(motion.forced())
    b'o'
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        import llguidance

        self._controls = dict(tokenizer.controls)
        self._size = tokenizer.size
        wrapped = llguidance.TokenizerWrapper(_Vocabulary(tokenizer))
        self._tokens = llguidance.LLTokenizer(wrapped)
        self._compiled: OrderedDict[tuple[Grammar, frozenset[int]], llguidance.LLMatcher]
        self._compiled = OrderedDict()
        self._lock = threading.Lock()

    def constrain(self, grammar: Grammar, ends: frozenset[int] = frozenset()) -> Motion:
        """The grammar, at its beginning. `ends` are ids that end an answer where the grammar names
        no token for it that is in the vocabulary.

        Raises FaultError, naming the field that demanded it, for what is no grammar.
        """
        key = (grammar, ends)
        with self._lock:
            matcher = self._compiled.get(key)
            if matcher is None:
                matcher = self._compile(grammar, ends)
                self._compiled[key] = matcher
                if len(self._compiled) > COMPILED:
                    self._compiled.popitem(last=False)
            else:
                self._compiled.move_to_end(key)
            return Motion(matcher.deep_copy(), self._size)

    def _compile(self, grammar: Grammar, ends: frozenset[int]) -> llguidance.LLMatcher:
        rules = "\n".join((grammar.lark, *self._markers(grammar.markers, ends)))
        matcher = self._matcher(rules, grammar.inner)
        if not matcher.is_error():
            return matcher
        lines = {line.partition(":")[0]: line for line in grammar.lark.splitlines()}
        for param, expression in grammar.parts:  # which of the demands is it?
            part = f"start: {expression}\n{lines.get(expression, '')}"
            inner = [each for each in grammar.inner if expression == f"@{each[0]}"]
            alone = self._matcher(part, inner)
            if alone.is_error():
                raise FaultError(bad_request(_told(alone.get_error()), param))
        raise FaultError(bad_request(f"The demands on the answer: {_told(matcher.get_error())}"))

    def _matcher(self, lark: str, inner: Sequence[tuple[str, str]]) -> llguidance.LLMatcher:
        import llguidance

        grammars = [{"name": name, "lark_grammar": text} for name, text in (("top", lark), *inner)]
        given = json.dumps({"grammars": grammars})
        matcher = llguidance.LLMatcher(self._tokens, given, log_level=_SILENT)
        if not matcher.is_error():
            matcher.compute_bitmask()  # copies know what it takes, so no model waits for that
        return matcher

    def _markers(self, markers: Sequence[Marker], ends: frozenset[int]) -> Iterator[str]:
        """The rules of the markers, as this vocabulary has them."""
        known = [m.text for m in markers if m.kind == "end" and m.text in self._controls]
        others = ",".join(map(str, sorted(ends)))
        for marker in markers:
            id = self._controls.get(marker.text)
            token = json.dumps(marker.text, ensure_ascii=False) if id is None else f"<[{id}]>"
            match marker.kind:
                case "end" if id is None and known:
                    yield f"{marker.rule}: <[{self._controls[known[0]]}]>"
                case "end" if id is None:
                    yield f"{marker.rule}: " + (f"<[{others}]>" if others else '""')
                case "after text" if id is None:
                    yield f"{marker.rule}[lazy]: {marker.before} {token}"
                case "after text":
                    yield f"{marker.rule}: {marker.before} {token}"
                case _:
                    yield f"{marker.rule}: {token}"


class Motion:
    """A grammar in motion, for one sequence: the `Constraint` of a sampler."""

    __slots__ = ("_matcher", "_size")

    def __init__(self, matcher: llguidance.LLMatcher, size: int) -> None:
        self._matcher = matcher
        self._size = size

    def mask(self, logits: Logits) -> None:
        """Set the scores of tokens that may not come next to minus infinity, in place. Raises
        FaultError where there is too much to be looked through."""
        import numpy as np

        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            problem = f"The demands on the answer are too large: {_told(self._matcher.get_error())}"
            raise FaultError(bad_request(problem))
        barred = np.unpackbits(~bits, count=self._size, bitorder="little").view(np.bool_)
        np.copyto(logits[: self._size], -np.inf, where=barred)
        logits[self._size :] = -np.inf  # of ids that the vocabulary does not have

    def accept(self, ids: Sequence[int]) -> None:
        """These tokens came. Raises FaultError where they do not fit."""
        self._matcher.consume_tokens(list(ids))
        self._check()

    def forced(self) -> Sequence[int]:
        """The tokens that must come next, one way only; empty where there is a choice."""
        forced: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return forced

    @property
    def over(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._matcher.is_stopped()

    @property
    def fits(self) -> bool:
        """Whether what came so far is all that was demanded."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            problem = f"The grammar lost its way: {_told(self._matcher.get_error())}"
            raise FaultError(Fault("internal", problem))


class _Vocabulary:
    """A tokenizer, as llguidance wants to see one; with one more token, which nobody can say."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        size = tokenizer.size
        self.eos_token_id = size
        self.bos_token_id = None
        self.tokens = [tokenizer.piece(id) for id in range(size)] + [b"<never>"]
        self.special_token_ids = [*tokenizer.controls.values(), size]

    def __call__(self, text: str | bytes) -> list[int]:
        said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return list(self._tokenizer.encode(said))


def _told(error: str) -> str:
    """The first lines of an error: what comes after is the grammar itself."""
    lines = [line.strip() for line in error.partition("<state>")[0].splitlines()]
    told = " ".join(line for line in lines if line and "|" not in line[:6])
    return told[:300]
