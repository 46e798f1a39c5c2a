"""The seams of the house: what an engine, a wire, an encoder and a decoder promise.

Only signatures live here, so that every layer can be written against them. Methods that take
time are plain functions that return awaitables or async generators.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from typing import Protocol

from msgspec import Struct

from .event import Event
from .item import Extra
from .request import Request
from .secret import Secret


class Caller(Struct, frozen=True, omit_defaults=True):
    """Who asks: whose data it is, with which key, until when (monotonic seconds), traced how.

    `key` is the client's own key; it goes upstream only where the configuration says so. `wire` is
    the protocol the caller speaks: an engine that could ask over several prefers that one. `hops`
    counts the Dragomans this request has passed.
    """

    tenant: str = ""
    key: Secret | None = None
    deadline: float | None = None
    trace: str | None = None
    hops: int = 0
    wire: str | None = None


ANYONE = Caller()


class Model(Struct, frozen=True, omit_defaults=True):
    """A model an engine offers. `created` is in Unix seconds."""

    id: str
    owned_by: str = "dragoman"
    created: int = 0
    extra: Extra | None = None


class Capabilities(Struct, frozen=True, omit_defaults=True):
    """What a model is known to take. None means unknown: send it and see."""

    images: bool | None = None
    audio: bool | None = None
    tools: bool | None = None
    custom_tools: bool | None = None
    namespaces: bool | None = None
    choices: bool | None = None
    context: int | None = None


class Engine(Protocol):
    """Whatever can answer.

    `stream` yields the events of one answer: `Started` first (or `Failed` at once, when it never
    began) and one terminal event last, on every path. It raises nothing of its own; to stop it,
    cancel the task that iterates, or close the generator between events.
    """

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Answer one request."""
        ...

    def models(self, caller: Caller = ANYONE) -> Awaitable[tuple[Model, ...]]:
        """The models on offer to a caller. Raises FaultError when they cannot be learned."""
        ...

    def capabilities(self, model: str) -> Awaitable[Capabilities]:
        """What is known of a model."""
        ...

    def close(self) -> Awaitable[None]:
        """Let go of connections and tasks."""
        ...


class Encoder(Protocol):
    """Says events on a wire."""

    def feed(self, event: Event) -> bytes:
        """The bytes for one event; empty when the wire has no word for it."""
        ...

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A sign of life: a comment, or a harmless data event. Empty before the first event."""
        ...


class Decoder(Protocol):
    """Hears an answer on a wire, in pieces of any size."""

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        ...

    def close(self) -> list[Event]:
        """No more bytes will come: whatever was not ended is ended now, as what it is."""
        ...

    @property
    def ended(self) -> bool:
        """True once the wire said that the answer is over, though late news may follow."""
        ...
