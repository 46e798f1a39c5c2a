"""Enforces the demands on an answer by grammars (llguidance), or verifies the finished answer."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from time import thread_time
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
from dragoman.engines.child import Child, ChildError, GivenUpError, Limits
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
    recursive,
)
from dragoman.formats.grammar.lark import Writer, error_text
from dragoman.formats.grammar.schema import inside
from dragoman.formats.prompt import ByteTokenizer, Tokenizer
from dragoman.net.threads import TenantLock, outlasting

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
        self.turns = TenantLock(MAX_VERIFIED)

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """The guarantees that an answer can have."""
        return ("enforced",) if self._enforces else ("verified", "best-effort")

    def close(self) -> None:
        """End the process that tries grammars."""
        if self._compiler is not None:
            self._compiler.close()

    def requirement(
        self, request: Request, grammar: Grammar | None, ends: frozenset[int], tenant: str = ""
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
        compiled = self._compiler.compiled(grammar, ends, tenant)
        return Requirement(compiled.state, asked)


async def with_guarantee(
    batches: Batches, requirement: Requirement, turns: TenantLock, tenant: str = ""
) -> Batches:
    """The same events, with the answer's guarantee; a strict demand that was not met makes the end
    a failure. Answers are verified by `turns` of the tenants."""
    asked, fold = requirement.asked, Fold()
    fits = partial(matches, allowance=Allowance())  # one for all that is verified of the answer
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
                    each = (problem(asked, response.choice(n), fits) for n in numbers)
                    await turns.acquire(tenant)
                    work = partial(next, filter(None, each), None)
                    try:
                        found = await outlasting(work, partial(turns.release, tenant))
                    except FaultError as error:
                        rest = (end.usage, end.completed_at, end.extra)
                        yield [*batch[:-1], Failed(error.fault, *rest)]
                        return
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
            problem = (
                "cannot be verified without llguidance (pip install '.[local]' in the checkout)"
            )
            raise FaultError(unsupported(problem, body.param))
        byte_compiler().compiled(_written(body))


def matches(body: Body, text: str, allowance: Allowance | None = None) -> bool:
    """Whether a text matches a grammar. Raises FaultError as `followed` does."""
    state = followed(_written(body), text, allowance)
    return state is not None and state.accepting


def followed(
    grammar: Grammar, text: str, allowance: Allowance | None = None
) -> GrammarState | None:
    """The state of a grammar after a text; None where that does not match. Raises FaultError where
    the grammar is too large for it, or takes too long."""
    renewed = False
    while True:
        compiled = byte_compiler().compiled(grammar)
        state = GrammarState(compiled, allowance)
        data = text.encode(errors="surrogatepass")  # half a pair matches nothing
        try:
            if compiled.slow and len(data) > MAX_UNTRIED:
                byte_compiler().read(grammar, data)
            state.accept(data)
            return state
        except FaultError as error:
            if error.fault.code == "internal":  # it does not match
                return None
            if renewed or not compiled.worn:
                raise
            renewed = True  # other texts have worn it out, so the next is compiled anew


def _written(body: Body) -> Grammar:
    writer = Writer()
    return writer.grammar(writer.body(body))


@cache
def byte_compiler() -> GrammarCompiler:
    """A compiler for texts, whatever their tokens."""
    return GrammarCompiler(ByteTokenizer(), forces=False)


# ---- llguidance ----------------------------------------------------------------------------

MAX_SECONDS, MAX_MEMORY = 2, 256 * 1024 * 1024
"""Seconds of the processor, and bytes of memory, that compiling one grammar may take."""
MAX_TEXT = 1024 * 1024
"""The most characters of one grammar: all schemas of a request together."""
MAX_UNTRIED = 4096
"""Bytes of a text after which that process reads it first, where rules come again in themselves: at
one byte all may end that have begun, which takes seconds and ends in an error."""
MAX_TRIED = 2
"""Grammars that are tried at a time, for each vocabulary."""
MAX_VERIFIED = 3
"""Answers of a model that are verified at a time, of which a tenant has one."""
PER_SECOND, PER_BYTE = 100_000, 256
"""Bytes of a text for which it has one second more, and bytes of memory for each of them."""
MAX_KEPT = 128 * 1024 * 1024
"""Bytes of grammars that stay compiled, for each vocabulary."""
MAX_STATES = 50_000
"""States of a compiled grammar's lexer, which come as answers are written (1 to 2 KB each)."""
GROWTH = 64 * 1024 * 1024
"""Bytes that a second of masks is taken to add to a compiled grammar, in such states: llguidance
does not tell. The most that was seen is twice as much; a grammar with all its states adds none."""
LEAST = 64 * 1024
"""Bytes that a compiled grammar takes at the least."""
PROBES = 8
"""Tokens that a grammar is tried with: some are too large only after the first."""
MAX_SLOW = 0.5
"""Seconds of the processor that grammars may take for one answer beyond what each token is given:
where a text can be read in many ways, each token takes longer than the last."""
MAX_QUICK = 0.02
"""Seconds of a mask after which a grammar is slow. Those whose rules come again in themselves are
from the first: of a long token each letter may be read in all ways that the last left open."""
PER_MASK, PER_TOKEN = 0.003, 0.0001
"""Seconds that are given for each mask, and for each token or byte: many times the usual."""
PIECE, QUICK = 16, 0.001
"""Tokens that are read at once, where they take no longer than these seconds, else one: llguidance
holds up the other threads meanwhile."""

TOO_SLOW = (
    "The grammar of the answer takes too long for such a text. Let each rule repeat itself at one "
    'place only, its beginning: s: s "a" | "a", not s: s s, nor s: "a" s'
)
_NO_LOG = 0
_LIMITED = ("ParserTooComplex", "LexerTooComplex")


class Allowance(Struct):
    """The seconds that grammars took for an answer, beyond those that they are given."""

    spent: float = 0.0

    def spend(self, took: float, given: float) -> None:
        """Raises FaultError where that is too much."""
        self.spent = max(self.spent + took - given, 0.0)
        if self.spent > MAX_SLOW:
            raise FaultError(bad_request(TOO_SLOW))


class Compiled(Struct, eq=False):
    """A compiled grammar, of which every sequence gets a copy.

    The copies share the states of llguidance's lexer, with which its `weight` grows, and of which
    there is a limit: one that has reached it is `worn`, and is compiled again for the next request.
    Masks of those that are `slow` are computed apart (`Masks`), and so many are meanwhile: `busy`.
    """

    matcher: llguidance.LLMatcher
    size: int
    weight: int
    slow: bool = False
    worn: bool = False
    busy: int = 0

    def state(self) -> GrammarState:
        return GrammarState(self)


class GrammarCompiler:
    """Compiles grammars over one vocabulary; from any thread.

    Each is tried in a process of its own first: some take minutes, gigabytes, or the process with
    them. Building it reads the whole vocabulary (about a second for 200,000 tokens), so keep it.
    Without `forces`, `forced` is always empty.

    >>> from dragoman.formats.prompt import ByteTokenizer
    >>> compiler = GrammarCompiler(ByteTokenizer())
    >>> state = compiler.constrain(Grammar('start: "yes" | "no"'))
    >>> state.accept(b"n"); bytes(state.forced())
    b'o'
    >>> compiler.close()
    """

    def __init__(self, tokenizer: Tokenizer, *, forces: bool = True) -> None:
        self._controls = dict(tokenizer.controls)
        self._forces = forces
        self._size = size = tokenizer.size
        # One more token for the end, which no model writes.
        pieces = [*map(tokenizer.piece, range(size)), b"<never>"]
        special = [*tokenizer.controls.values(), size]
        self._tokens = _llguidance_tokens(pieces, special, tokenizer.encode)
        self._child = Child(f"{__name__}:try_grammars", msgspec.msgpack.encode((pieces, special)))
        self._kept: dict[str, OrderedDict[tuple[Grammar, frozenset[int]], Compiled]] = {}
        self._lock = threading.Lock()
        self._trying = threading.BoundedSemaphore(MAX_TRIED)

    def close(self) -> None:
        """End the process that tries grammars."""
        self._child.close()

    def constrain(self, grammar: Grammar, ends: frozenset[int] = frozenset()) -> GrammarState:
        """A grammar in its initial state; see `compiled`."""
        return self.compiled(grammar, ends).state()

    def compiled(
        self, grammar: Grammar, ends: frozenset[int] = frozenset(), tenant: str = ""
    ) -> Compiled:
        """A compiled grammar. `ends` are ids that end an answer where the grammar names no token
        for it that is in the vocabulary.

        Raises FaultError, naming the field that demanded it, for what is no grammar, or too large.
        """
        key = (grammar, ends)
        with self._lock:
            kept = self._kept.get(tenant)
            if kept is not None and key in kept and not kept[key].worn:
                kept.move_to_end(key)
                return kept[key]
        with self._trying:
            given, weight, _ = self._tried(grammar, ends)
            matcher = _matcher(self._tokens, given)
            matcher.compute_bitmask()  # computed once, copies share it: else the model waits
        slow = any(recursive(text) for _, text in grammar.inner)
        found = Compiled(matcher, self._size, weight, slow)
        with self._lock:
            self._kept.setdefault(tenant, OrderedDict())[key] = found
            self._drop()
        return found

    def check(self, grammar: Grammar, seconds: float) -> None:
        """Try a grammar that is compiled elsewhere, where others wait for it. Raises FaultError,
        naming the field that demanded it, for what is no grammar, or takes more of the processor's
        seconds than that."""
        with self._trying:
            *_, took = self._tried(grammar, frozenset())
        if took > seconds:
            problem = f"takes {took:.2g} s to compile, and {seconds} s are the most here"
            only = grammar.parts[0][0] if len(grammar.parts) == 1 else None
            raise FaultError(bad_request(f"The grammar of the answer {problem}", only))

    def read(self, grammar: Grammar, text: bytes) -> None:
        """Read a text, of a vocabulary of bytes, elsewhere. Raises FaultError as `accept` does."""
        self._tried(grammar, frozenset(), text)

    def _drop(self) -> None:
        """Drop what is over the limit, of the tenant that has most of it and longest unused."""
        weights = {
            tenant: sum(each.weight for each in kept.values())
            for tenant, kept in self._kept.items()
        }
        while sum(weights.values()) > MAX_KEPT:
            largest = max(weights, key=weights.__getitem__)
            weights[largest] -= self._kept[largest].popitem(last=False)[1].weight
            if not self._kept[largest]:
                del self._kept[largest], weights[largest]

    def _tried(
        self, grammar: Grammar, ends: frozenset[int], text: bytes = b""
    ) -> tuple[str, int, float]:
        """The grammar as llguidance takes it, the bytes it takes compiled, and the seconds. Raises
        FaultError where a child could not compile it, or read the text by it."""
        rules = "\n".join((grammar.lark, *self._markers(grammar.markers, ends)))
        whole = _given(rules, grammar.inner, self._forces)
        only = grammar.parts[0][0] if len(grammar.parts) == 1 else None
        if len(whole) > MAX_TEXT:
            problem = f"has {len(whole)} characters in all, and {MAX_TEXT} are the most here"
            raise FaultError(bad_request(f"The grammar of the answer {problem}", only))
        lines = {line.partition(":")[0]: line for line in grammar.lark.split("\n")}
        parts = [  # which demand is at fault?
            (
                param,
                _given(
                    f"start: {expression}\n{lines.get(expression, '')}",
                    [each for each in grammar.inner if expression == f"@{each[0]}"],
                    self._forces,
                ),
            )
            for param, expression in grammar.parts
        ]
        try:
            message = msgspec.msgpack.encode((text, [(None, whole), *parts]))
            seconds, memory = len(text) // PER_SECOND, PER_BYTE * len(text)
            limits = Limits(MAX_SECONDS + seconds, MAX_MEMORY + memory)
            answer = self._child.ask(message, limits)
        except (GivenUpError, ChildError) as error:
            if text:
                raise FaultError(bad_request(TOO_SLOW)) from error
            problem = (
                f"takes more than {MAX_SECONDS} s or {MAX_MEMORY // 2**20} MB to compile, or is "
                "nested too deeply. Make it smaller: fewer alternatives, patterns, repetitions"
            )
            raise FaultError(bad_request(f"The grammar of the answer {problem}", only)) from error
        param, problem, weight, took = msgspec.msgpack.decode(
            answer, type=tuple[str | None, str, int, float]
        )
        if problem and text:
            raise FaultError(bad_request(problem) if param else Fault("internal", problem))
        if problem and param is None:
            problem = f"The constraint{' ' if problem.startswith('is ') else ': '}{problem}"
        if problem:
            raise FaultError(bad_request(problem, param))
        return whole, weight, took

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

    __slots__ = ("_allowance", "_bits", "_matcher", "_size", "_spent", "compiled", "looked", "took")

    def __init__(self, compiled: Compiled, allowance: Allowance | None = None) -> None:
        self.compiled = compiled
        self._matcher = compiled.matcher.deep_copy()
        self._size = compiled.size
        self._allowance = Allowance() if allowance is None else allowance
        self._bits: bytes | None = None
        self._spent = 0.0
        self.looked = False
        """Whether the next mask was asked for, apart."""
        self.took = 0.0
        """Seconds of the processor that the last mask took, with what was accepted since. One that
        was looked for apart held up nobody."""

    def look(self) -> None:
        """Look for what may come next, which may be slow; from any thread. Other threads run."""
        started = thread_time()
        self._bits = self._matcher.compute_bitmask()
        self._spent = thread_time() - started

    def mask(self, logits: NDArray[Any]) -> None:
        """Set the scores of tokens that may not come next to minus infinity, in place. Raises
        FaultError where llguidance's limits are exceeded."""
        import numpy as np

        apart = self._bits is not None
        if not apart:
            self.look()
        bits, self._bits = np.frombuffer(self._bits or b"", dtype=np.uint8), None
        self.took = 0.0 if apart else self._spent
        self.compiled.slow |= self._spent > MAX_QUICK
        self.compiled.weight += int(self._spent * GROWTH)
        self._check()
        self._allowance.spend(self._spent, PER_MASK)
        barred = np.unpackbits(~bits, count=self._size, bitorder="little").view(np.bool_)
        np.copyto(logits[: self._size], -np.inf, where=barred)
        logits[self._size :] = -np.inf  # padding rows of the network

    def accept(self, ids: Sequence[int]) -> None:
        """Advance by these tokens. Raises FaultError where they do not match, or take too long."""
        self._bits, self.looked = None, False
        left, at, size = list(ids), 0, 1
        while at < len(left):
            started = thread_time()
            self._matcher.consume_tokens(left[at : at + size])
            took = thread_time() - started
            self.took += took
            self._check()
            self._allowance.spend(took, size * PER_TOKEN)
            at, size = at + size, min(2 * size, PIECE) if took < QUICK else 1

    def forced(self) -> Sequence[int]:
        """The tokens that must come next; empty where there is a choice. Raises FaultError where
        that takes too long."""
        started = thread_time()
        forced: list[int] = self._matcher.compute_ff_tokens()
        took = thread_time() - started
        self.took += took
        self._check()
        self._allowance.spend(took, (1 + len(forced)) * PER_TOKEN)
        return forced

    @property
    def over(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._matcher.is_stopped()

    @property
    def accepting(self) -> bool:
        """Whether the tokens so far are a complete match."""
        return self._matcher.is_accepting()

    @property
    def captures(self) -> list[tuple[str, bytes]]:
        """What the rules with a `capture` have matched, in order."""
        return self._matcher.get_captures()

    def _check(self) -> None:
        if self._matcher.is_error():
            problem = error_text(self._matcher.get_error())
            if self._matcher.stop_reason() in _LIMITED or "too large" in problem:
                self.compiled.worn = True
                why = "fewer alternatives, patterns and repetitions are needed"
                raise FaultError(bad_request(f"The demands on the answer are too large: {why}"))
            raise FaultError(Fault("internal", f"The grammar lost its way: {problem}"))


def try_grammars(setup: bytes) -> Callable[[bytes], bytes]:
    """What tries grammars in a child, with some tokens: the first of them, and the others, which
    are its parts. Gives the field and the problem, and the bytes and seconds it took. A text is
    read by the first instead; a field says only that it proved too large."""
    pieces, special = msgspec.msgpack.decode(setup, type=tuple[list[bytes], list[int]])
    ids = {piece: id for id, piece in enumerate(pieces)}
    single = [ids.get(bytes([value]), 0) for value in range(256)]
    tokens = _llguidance_tokens(pieces, special, lambda text: [single[v] for v in text.encode()])

    def answer(message: bytes) -> bytes:
        text, ((_, whole), *parts) = msgspec.msgpack.decode(
            message, type=tuple[bytes, list[tuple[str | None, str]]]
        )
        if text:
            return msgspec.msgpack.encode((*_read(tokens, whole, text), 0, 0.0))
        _problem(tokens, _given('start: "a"', ()))  # what any grammar takes is not its weight
        before, started = _resident(), thread_time()
        problem = _problem(tokens, whole)
        took = thread_time() - started
        weight = max(_resident() - before, 4 * len(whole), LEAST)
        # Each alone too: much may come before it, which the few tokens do not get past.
        found = ((param, given, _problem(tokens, given)) for param, given in parts)
        at, given, problem = next((each for each in found if each[2]), (None, "", problem))
        if at is not None:
            place, problem = _placed(tokens, given, problem)
            at += place
        return msgspec.msgpack.encode((at, problem, weight, took))

    return answer


def _read(tokens: llguidance.LLTokenizer, given: str, text: bytes) -> tuple[str | None, str]:
    """What is wrong with a text for a grammar, and before it a field if that is its size."""
    try:
        Compiled(_matcher(tokens, given), 0, 0).state().accept(text)
    except FaultError as error:
        return None if error.fault.code == "internal" else "text", error.fault.message
    return None, ""


def _problem(tokens: llguidance.LLTokenizer, given: str, probes: int = PROBES) -> str:
    """What is wrong with a grammar, or turns out to be within some tokens; empty if nothing."""
    matcher = _matcher(tokens, given)
    for step in range(probes):
        mask = matcher.compute_bitmask()
        if matcher.is_error() or matcher.is_stopped():
            break
        allowed = [at * 8 + bit for at, bits in enumerate(mask) if bits for bit in _BITS[bits]]
        if not allowed or not matcher.consume_token(allowed[step * 7919 % len(allowed)]):
            break
    return error_text(matcher.get_error()) if matcher.is_error() else ""


MAX_PLACES = 100
"""Places of a schema at which a problem is looked for."""


def _placed(tokens: llguidance.LLTokenizer, given: str, problem: str) -> tuple[str, str]:
    """The innermost place of a schema, where it is one, that has such a problem by itself; and the
    problem there."""
    lark: str = json.loads(given)["grammars"][0]["lark_grammar"]
    _, found, dumped = lark.partition("%json ")
    if not problem or not found or lark.count("\n") > 1:  # a grammar of the client's own
        return "", problem
    root = json.loads(dumped)
    shared = {name: root[name] for name in ("$defs", "definitions", "x-guidance") if name in root}
    place, schema, left, seen = "", root, MAX_PLACES, {""}
    kind = problem.partition(":")[0]  # another one is of what is not there: what `each` refers to
    while True:
        for where, each in inside(schema, root, place):
            left -= 1
            if left < 0:
                return place, problem
            alone = f"start: %json {json.dumps({**shared, **each})}"
            why = _problem(tokens, _given(alone, ()), 1)
            if where not in seen and why.partition(":")[0] == kind:
                seen.add(where)
                place, schema, problem = where, each, why
                break
        else:
            return place, problem


_ENDLESS = re.compile(r"[+*%]|,\s*\}|[0-9]{3}\s*\}")
"""What a grammar has that repeats something without a limit, or often, or refers to others."""
_BITS = [[bit for bit in range(8) if bits >> bit & 1] for bits in range(256)]


def _resident() -> int:
    """Bytes of memory of this process, where the system tells."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def _given(lark: str, inner: Sequence[tuple[str, str]], forces: bool = True) -> str:
    """A grammar and those it uses, as llguidance takes them."""
    # Bytes that must follow are looked for to their end, which a client's grammar may not have, as
    # `/a+/ "a"`, or only after millions: all of the process would wait.
    # Where rules come again in themselves, each byte that may follow is tried, before all.
    endless = any(_ENDLESS.search(text) or recursive(text) for _, text in inner)
    if endless or not forces:
        lark += '\n%llguidance {"no_forcing": true}'
    grammars = [{"name": name, "lark_grammar": text} for name, text in (("top", lark), *inner)]
    return json.dumps({"grammars": grammars})


def _matcher(tokens: llguidance.LLTokenizer, given: str) -> llguidance.LLMatcher:
    import llguidance

    limits = llguidance.LLParserLimits(max_lexer_states=MAX_STATES, max_grammar_size=200_000)
    return llguidance.LLMatcher(tokens, given, log_level=_NO_LOG, limits=limits)


def _llguidance_tokens(
    pieces: list[bytes], special: list[int], encode: Callable[[str], Sequence[int]]
) -> llguidance.LLTokenizer:
    import llguidance

    vocabulary = _LLGuidanceVocabulary(pieces, special, encode)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary))


class _LLGuidanceVocabulary(Struct):
    """A vocabulary as llguidance's `TokenizerWrapper` takes it. The last token is the end."""

    tokens: list[bytes]
    special_token_ids: list[int]
    encode: Callable[[str], Sequence[int]]
    bos_token_id: None = None

    @property
    def eos_token_id(self) -> int:
        return len(self.tokens) - 1

    def __call__(self, text: str | bytes) -> list[int]:
        return list(
            self.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
        )
