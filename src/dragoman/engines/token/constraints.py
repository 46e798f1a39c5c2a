"""Enforces the demands on an answer by grammars (llguidance), or verifies the finished answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, unsupported
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import Fold
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Guarantee
from dragoman.formats.format import Grammar, Marker
from dragoman.formats.grammar.demand import (
    Body,
    Demand,
    JSONBody,
    Lark,
    Problem,
    Regex,
    demand,
    problem,
)
from dragoman.formats.grammar.lark import Writer
from dragoman.formats.prompt import ByteTokenizer, Tokenizer

if TYPE_CHECKING:
    import llguidance
    from numpy.typing import NDArray

Batches = AsyncGenerator[list[Event], None]


class Requirement(Struct, frozen=True):
    """The demands on one answer, and how they are met.

    `constraint` makes a constraint for each sequence; with `asked` the finished answer is verified.
    `described` says that there is a further demand which is only described in the prompt.
    """

    constraint: Callable[[], GrammarState] | None
    asked: Demand | None
    described: bool = False

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of an answer in which no problem was found."""
        if self.described:
            return "best-effort"
        return "verified" if self.constraint is None else "enforced"


class Enforcer:
    """Enforces or verifies demands for one model. `scores` says whether a grammar can constrain
    it."""

    def __init__(self, tokenizer: Tokenizer, *, scores: bool) -> None:
        self._tokenizer = tokenizer
        self._enforces = scores and _llguidance_installed()
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """The guarantees that an answer can have."""
        return ("enforced",) if self._enforces else ("verified", "best-effort")

    def requirement(
        self, request: Request, grammar: Grammar | None, ends: frozenset[int]
    ) -> Requirement | None:
        """How to meet the demands of a request; None where it has none. `ends` end an answer.

        Compiling takes time: call it off the event loop. Raises FaultError, naming the field, for
        demands that are invalid or cannot be met.
        """
        if grammar is None:
            return None
        if not self._enforces:
            asked = demand(request)
            _check(asked)
            return Requirement(None, asked)
        # A string of the client's own may stop the answer where the grammar would not.
        asked = demand(request) if request.sampling.stop else None
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self._tokenizer)
        self._compiler.constrain(grammar, ends)  # raises now what is wrong with it
        return Requirement(partial(self._compiler.constrain, grammar, ends), asked)


async def with_guarantee(batches: Batches, requirement: Requirement) -> Batches:
    """The same events, with the answer's guarantee; a strict demand that was not met makes the end
    a failure."""
    asked, fold = requirement.asked, Fold()
    async with aclosing(batches):
        async for batch in batches:
            if asked is not None:
                fold.feed_all(batch)
            if isinstance(start := batch[0], Started) and requirement.constraint is not None:
                batch[0] = replace(start, guarantee=requirement.guarantee)
            if isinstance(end := batch[-1], Finished):
                found = None
                if asked is not None and end.status == "completed":
                    response = fold.response
                    numbers = range(len(response.reasons))
                    each = (problem(asked, response.choice(n), _matches) for n in numbers)
                    found = await asyncio.to_thread(next, filter(None, each), None)
                batch[-1] = _checked_end(end, requirement, found)
            yield batch


def _checked_end(
    event: Finished, requirement: Requirement, found: Problem | None
) -> Finished | Failed:
    """The end, with the result of verifying the answer; one that is cut short is not verified."""
    enforced = requirement.constraint is not None
    if found is None:
        sure = enforced or requirement.asked is None or event.status == "completed"
        return replace(event, guarantee=requirement.guarantee if sure else "best-effort")
    if found.fatal and not enforced:
        text = f"The model's answer is not what was demanded: {found.what}. Ask again."
        fault = Fault("upstream_error", text, "upstream")
        return Failed(fault, event.usage, event.completed_at, event.extra)
    loss = Loss("format", "dropped", f"the answer is not what was demanded: {found.what}")
    return replace(event, guarantee="best-effort", losses=(*event.losses, loss))


# ---- texts of a grammar ------------------------------------------------------------------


def _llguidance_installed() -> bool:
    try:
        return find_spec("llguidance") is not None
    except ValueError:  # llguidance is in sys.modules as None
        return False


def _check(asked: Demand | None) -> None:
    """Raises FaultError for a demand that cannot be verified, or is no grammar."""
    for body in () if asked is None else (asked.text, *(tool.body for tool in asked.tools)):
        if not isinstance(body, Regex | Lark | JSONBody):
            continue
        if isinstance(body, JSONBody):
            text = msgspec.json.encode(body.schema)
            if b'"pattern' not in text and b'"format"' not in text:
                continue  # which takes no grammar
        if not _llguidance_installed():
            problem = "cannot be verified without llguidance (pip install 'dragoman[local]')"
            raise FaultError(unsupported(problem, body.param))
        _grammar_state(body)


def _matches(body: Body, text: str) -> bool:
    """Whether a text matches a grammar."""
    state = _grammar_state(body)
    try:
        state.accept(text.encode())
    except FaultError:
        return False
    return state.accepting


def _grammar_state(body: Body) -> GrammarState:
    writer = Writer()
    return _byte_compiler().constrain(writer.grammar(writer.body(body)))


@cache
def _byte_compiler() -> GrammarCompiler:
    """A compiler for texts, whatever their tokens."""
    return GrammarCompiler(ByteTokenizer())


# ---- llguidance ----------------------------------------------------------------------------

MAX_COMPILED = 256
"""Grammars that stay compiled, for each vocabulary."""

_NO_LOG = 0


class GrammarCompiler:
    """Compiles grammars over one vocabulary; from any thread.

    Building it reads the whole vocabulary (about a second for 200,000 tokens), so keep it.

    >>> from dragoman.formats.prompt import ByteTokenizer
    >>> compiler = GrammarCompiler(ByteTokenizer())
    >>> state = compiler.constrain(Grammar('start: "yes" | "no"'))
    >>> state.accept(b"n"); bytes(state.forced())
    b'o'
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        import llguidance

        self._controls = dict(tokenizer.controls)
        self._size = tokenizer.size
        wrapped = llguidance.TokenizerWrapper(_LLGuidanceVocabulary(tokenizer))
        self._tokens = llguidance.LLTokenizer(wrapped)
        self._compiled: OrderedDict[tuple[Grammar, frozenset[int]], llguidance.LLMatcher]
        self._compiled = OrderedDict()
        self._lock = threading.Lock()

    def constrain(self, grammar: Grammar, ends: frozenset[int] = frozenset()) -> GrammarState:
        """A grammar in its initial state. `ends` are ids that end an answer where the grammar names
        no token for it that is in the vocabulary.

        Raises FaultError, naming the field that demanded it, for what is no grammar.
        """
        key = (grammar, ends)
        with self._lock:
            matcher = self._compiled.get(key)
            if matcher is None:
                matcher = self._compile(grammar, ends)
                self._compiled[key] = matcher
                if len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
            else:
                self._compiled.move_to_end(key)
            return GrammarState(matcher.deep_copy(), self._size)

    def _compile(self, grammar: Grammar, ends: frozenset[int]) -> llguidance.LLMatcher:
        rules = "\n".join((grammar.lark, *self._markers(grammar.markers, ends)))
        matcher = self._matcher(rules, grammar.inner)
        if not matcher.is_error():
            return matcher
        lines = {line.partition(":")[0]: line for line in grammar.lark.splitlines()}
        for param, expression in grammar.parts:  # which demand is at fault?
            part = f"start: {expression}\n{lines.get(expression, '')}"
            inner = [each for each in grammar.inner if expression == f"@{each[0]}"]
            alone = self._matcher(part, inner)
            if alone.is_error():
                raise FaultError(bad_request(_error_text(alone.get_error()), param))
        raise FaultError(
            bad_request(f"The demands on the answer: {_error_text(matcher.get_error())}")
        )

    def _matcher(self, lark: str, inner: Sequence[tuple[str, str]]) -> llguidance.LLMatcher:
        import llguidance

        grammars = [{"name": name, "lark_grammar": text} for name, text in (("top", lark), *inner)]
        given = json.dumps({"grammars": grammars})
        matcher = llguidance.LLMatcher(self._tokens, given, log_level=_NO_LOG)
        if not matcher.is_error():
            matcher.compute_bitmask()  # computed once, copies share it: else the model waits
        return matcher

    def _markers(self, markers: Sequence[Marker], ends: frozenset[int]) -> Iterator[str]:
        """The rules of the markers, as this vocabulary has them."""
        known = [m.text for m in markers if m.end and m.text in self._controls]
        others = ",".join(map(str, sorted(ends)))
        for marker in markers:
            id = self._controls.get(marker.text)
            token = json.dumps(marker.text, ensure_ascii=False) if id is None else f"<[{id}]>"
            if marker.end and id is None:
                ids = self._controls[known[0]] if known else others
                token = f"<[{ids}]>" if ids != "" else '""'
            lazy = "[lazy]" if marker.before and id is None else ""
            yield f"{marker.rule}{lazy}: {marker.before} {token}"


class GrammarState:
    """The state of a grammar in one sequence."""

    __slots__ = ("_matcher", "_size")

    def __init__(self, matcher: llguidance.LLMatcher, size: int) -> None:
        self._matcher = matcher
        self._size = size

    def mask(self, logits: NDArray[Any]) -> None:
        """Set the scores of tokens that may not come next to minus infinity, in place. Raises
        FaultError where llguidance's limits are exceeded."""
        import numpy as np

        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            problem = _error_text(self._matcher.get_error())
            raise FaultError(bad_request(f"The demands on the answer are too large: {problem}"))
        barred = np.unpackbits(~bits, count=self._size, bitorder="little").view(np.bool_)
        np.copyto(logits[: self._size], -np.inf, where=barred)
        logits[self._size :] = -np.inf  # padding rows of the network

    def accept(self, ids: Sequence[int]) -> None:
        """Advance by these tokens. Raises FaultError where they do not match."""
        self._matcher.consume_tokens(list(ids))
        self._check()

    def forced(self) -> Sequence[int]:
        """The tokens that must come next; empty where there is a choice."""
        forced: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return forced

    @property
    def over(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._matcher.is_stopped()

    @property
    def accepting(self) -> bool:
        """Whether the tokens so far are a complete match."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            problem = f"The grammar lost its way: {_error_text(self._matcher.get_error())}"
            raise FaultError(Fault("internal", problem))


class _LLGuidanceVocabulary:
    """A tokenizer as llguidance's `TokenizerWrapper` takes it, with one more token for the end,
    which no model writes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        size = tokenizer.size
        self.eos_token_id = size
        self.bos_token_id = None
        self.tokens = [tokenizer.piece(id) for id in range(size)] + [b"<never>"]
        self.special_token_ids = [*tokenizer.controls.values(), size]

    def __call__(self, text: str | bytes) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return list(self._tokenizer.encode(text))


def _error_text(error: str) -> str:
    """The first lines of an error: after them comes the grammar itself."""
    lines = [line.strip() for line in error.partition("<state>")[0].splitlines()]
    text = " ".join(line for line in lines if line and "|" not in line[:6])
    return (text.partition("failed to compile JSON schema: ")[2] or text).rstrip(" ^")[:300]
