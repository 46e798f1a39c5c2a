"""What a type checker sees of the synchronous face: the client's and the stream's, without `await`.

Types only: what runs is `blocking`, which has no method of its own. A test holds these to the
methods they stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self, Unpack

from dragoman.core.event import Event
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.response import Response

from .answer import Answer
from .ask import Input, Settings


class _Context(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class SyncStream(_Context, Protocol):
    """A `Stream` for code without `async`."""

    def __iter__(self) -> Iterator[Event]: ...

    def __next__(self) -> Event: ...

    @property
    def text(self) -> Iterator[str]:
        """The pieces of text of the first choice. Raises AnswerError when the answer fails."""

    @property
    def response(self) -> Response:
        """All that has come so far."""

    @property
    def answer(self) -> Answer:
        """The same, with what it took."""

    def finish(self) -> Answer:
        """Read on to the end and give the whole answer, a failed one too."""

    def close(self) -> None:
        """Give the answer up."""


class SyncClient(_Context, Protocol):
    """A `Client` for code without `async`."""

    def stream(
        self, request: Input, caller: Caller = ANYONE, **settings: Unpack[Settings]
    ) -> SyncStream:
        """Ask, and read the answer as it comes."""

    def respond(
        self,
        request: Input,
        caller: Caller = ANYONE,
        *,
        raises: bool = True,
        **settings: Unpack[Settings],
    ) -> Answer:
        """Ask, and wait for the whole answer. Raises AnswerError when it fails."""

    def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The models on offer."""

    def capabilities(self, model: str) -> Capabilities:
        """What is known of a model."""

    def close(self) -> None:
        """Let go of connections and tasks."""
