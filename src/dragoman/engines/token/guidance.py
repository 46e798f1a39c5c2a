"""Grammars at work: which tokens may come next, by llguidance, for vocabularies of any kind.

A vocabulary is read once, a grammar compiled once, and each sequence gets a copy of its own. What a
grammar says is not known here. Nothing in this module raises into a sampler but a fault.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import llguidance
import numpy as np

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.formats.format import Grammar, Marker
from dragoman.formats.prompt import Tokenizer

if TYPE_CHECKING:
    from .source import Logits

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
