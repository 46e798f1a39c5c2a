"""Searches texts of models by Python's regular expressions, in a process with limits.

What repeats within a repeat takes years for some texts of forty letters, while `re` lets no other
thread run. A search takes some milliseconds, up to seconds, for which no event loop waits.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import TypeVar

import msgspec
from msgspec import Struct

from dragoman.core.error import Fault, FaultError, quoted
from dragoman.engines.child import Child, ChildError, GivenUpError, Limits
from dragoman.engines.turns import ThreadPool

MAX_SECONDS, MAX_MEMORY = 1, 256 * 1024 * 1024
"""Seconds of the processor, and bytes of memory, that one search may take."""
MAX_HITS = 1000
"""The most hits of a search, of those that are not empty."""
REST = 20
"""After how many times as long as a search took a text that grows is searched again: each search is
a process, for which the text's stream waits."""
_LIMITS = Limits(MAX_SECONDS, MAX_MEMORY)
_CHILD = Child(f"{__name__}:searching", b"")
_POOL = ThreadPool()
_T = TypeVar("_T")


class Hit(Struct, frozen=True, array_like=True):
    """Where a pattern matches, and its named groups that have matched."""

    start: int
    end: int
    groups: dict[str, tuple[int, int]]


async def apart(subject: str, work: Callable[..., _T], *given: object) -> _T:
    """Run work that searches, in a thread. Cancelling this ends the search. What is searched for
    different subjects takes turns."""
    return await _POOL.run(subject, partial(copy_context().run, work, *given))


async def first(pattern: str, text: str) -> Hit | None:
    """The first hit. Raises FaultError, as the others do, where that takes too long."""
    return next(iter(await apart(pattern, _ask, "search", pattern, text)), None)


def whole(pattern: str, text: str) -> Hit | None:
    """The hit that is all of the text."""
    return next(iter(_ask("fullmatch", pattern, text)), None)


def every(pattern: str, text: str) -> list[Hit]:
    """The hits that are not empty."""
    return _ask("finditer", pattern, text)


class Growing:
    """A text that comes in pieces, and is searched as it grows: what is found begins anywhere."""

    def __init__(self) -> None:
        self._pieces = list[str]()
        self._size = self._due = 0
        self._rested = 0.0

    async def look(self, piece: str, found: Callable[[str], Awaitable[object]]) -> bool:
        """Take a piece; whether something is found, where it is time to look again."""
        self._pieces.append(piece)
        self._size += len(piece)
        began = monotonic()
        if self._size < self._due or began < self._rested:
            return False
        self._due = self._size + self._size // 16
        seen = bool(await found("".join(self._pieces)))
        self._rested = (ended := monotonic()) + REST * (ended - began)
        return seen


def _ask(how: str, pattern: str, text: str) -> list[Hit]:
    message = msgspec.msgpack.encode(
        (how, *(each.encode(errors="surrogatepass") for each in (pattern, text)))
    )
    try:
        answer = _CHILD.ask(message, _LIMITS)
    except (ChildError, GivenUpError) as error:
        problem = (
            f"To look for {quoted(pattern)} in what the model wrote takes more than {MAX_SECONDS} "
            f"s or {MAX_MEMORY // 2**20} MB. Repeat nothing in it that repeats something itself."
        )
        raise FaultError(Fault("upstream_error", problem, "upstream")) from error
    return msgspec.msgpack.decode(answer, type=list[Hit])


def searching(setup: bytes) -> Callable[[bytes], bytes]:
    """What searches in a child. What is no pattern for `re` matches nothing."""

    def answer(message: bytes) -> bytes:
        how, *given = msgspec.msgpack.decode(message, type=tuple[str, bytes, bytes])
        pattern, text = (each.decode(errors="surrogatepass") for each in given)
        try:
            compiled = re.compile(pattern)
        except re.error:
            return msgspec.msgpack.encode([])
        found: list[Hit] = []
        if how == "finditer":
            for hit in compiled.finditer(text):
                if hit[0]:
                    found.append(_hit(hit))
                if len(found) == MAX_HITS:
                    break
        elif (one := getattr(compiled, how)(text)) is not None:
            found.append(_hit(one))
        return msgspec.msgpack.encode(found)

    return answer


def _hit(hit: re.Match[str]) -> Hit:
    groups = {name: hit.span(name) for name in hit.re.groupindex if hit[name] is not None}
    return Hit(*hit.span(), groups)
