"""Protocols that engines, encoders and decoders implement, and the values that describe callers and
models.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import NoReturn, Protocol

from msgspec import Struct

from .event import Event
from .item import JSON, Extra
from .request import Request

VERSION = "0.1.0"

VERSION_HEADER = "x-dragoman"
"""The header of every answer; its value is the version."""

HOPS_HEADER = "x-dragoman-hops"
"""The request header that counts the gateways passed so far."""


class Secret:
    """A text that is neither printed nor serialised; `reveal` returns it.

    >>> key = Secret("open sesame")
    >>> print(key, f"{key}", [key])
    *** *** [Secret(***)]
    >>> key.reveal()
    'open sesame'
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself."""
        return self._value

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not serialised")


class Caller(Struct, frozen=True, omit_defaults=True):
    """The client of a request: its tenant, key, deadline (monotonic seconds) and trace.

    `key` is the client's own key; it is sent upstream only where the configuration allows it.
    `bearer` is false for a key in `x-api-key`, which is for keys alone. `wire` is
    the caller's protocol, which an engine with several prefers. `hops`
    counts the Dragomans that the request has passed. `stored` is true where the answer is stored
    here and may be continued: then we keep what the caller does not send back. `response` is
    the id it is stored under: an engine that uses it for the answer and its items saves the store
    an index of them. `headers` are those of the request that may be forwarded to an upstream
    of the caller's wire. `size` is that of the request's body in bytes, where it is so
    large that it is processed in a thread. `count` accounts for large buffers of the answer, in
    bytes; it raises FaultError where there is no room for them.
    """

    tenant: str = ""
    key: Secret | None = None
    deadline: float | None = None
    trace: str | None = None
    hops: int = 0
    wire: str | None = None
    stored: bool = False
    response: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    size: int = 0
    count: Callable[[int], None] | None = None
    bearer: bool = True


ANYONE = Caller()


class Model(Struct, frozen=True, omit_defaults=True):
    """A model an engine offers. `created` is in Unix seconds."""

    id: str
    owned_by: str = "dragoman"
    created: int = 0
    extra: Extra | None = None


def first_model(names: Sequence[str]) -> str | None:
    """The model to ask where none was named: the first, but those that only embed, by their names,
    where there are others.

    >>> first_model(["nomic-embed-text", "qwen3:8b", "llama3.2"])
    'qwen3:8b'
    """
    return next((name for name in names if "embed" not in name.lower()), next(iter(names), None))


class Capabilities(Struct, frozen=True, omit_defaults=True):
    """The capabilities of a model. None means unknown: the field is sent.

    `constraints` are the ways in which an answer's text can be constrained, each with its field
    of `wire`: `lark`, `gbnf`, `regex`, `choice` (of texts); `schema` has a field in every
    wire, and `custom` is the input of a custom tool. `continues` are fields of `wire` with which
    the answer is the rest of an unfinished message of the assistant: none where that is enough.
    `guarantees` are those of a model whose entry in the listing has none; None: `constraints` are
    enforced for every model.
    """

    images: bool | None = None
    audio: bool | None = None
    tools: bool | None = None
    custom_tools: bool | None = None
    namespaces: bool | None = None
    choices: bool | None = None
    context: int | None = None
    wire: str | None = None
    constraints: dict[str, str] | None = None
    continues: dict[str, JSON] | None = None
    guarantees: tuple[str, ...] | None = None


class Engine(Protocol):
    """Answers requests.

    `stream` yields the events of one answer: `Started` first (or `Failed` at once, when it never
    began) and one terminal event last, on every path. It does not raise; to stop it,
    cancel the task that iterates, or close the generator between events.

    An engine may have more methods, which are looked up by name:

    - `start(request, caller, sink)` returns a `Handle`. The events arrive by callback, with the
      same guarantees, and need no task. The sink is not called before this has returned.
    - `count(request, caller)` gives, awaited, the exact number of tokens of the prompt, or None.
    - `complete(prompt, request, caller, *, echo=False)` streams the continuation of a bare prompt:
      text with control tokens, or token ids. The request beside it has no items. With
      `echo` the answer begins with the prompt itself.
    - `embed(request, caller)` gives, awaited, vectors of texts in the protocol's own objects.
    """

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Stream the answer to one request."""
        ...

    def models(self, caller: Caller = ANYONE) -> Awaitable[tuple[Model, ...]]:
        """The models for a caller. Raises FaultError when they cannot be listed."""
        ...

    def capabilities(self, model: str) -> Awaitable[Capabilities]:
        """The capabilities of a model."""
        ...

    def close(self) -> Awaitable[None]:
        """Close connections and end tasks."""
        ...


class Sink(Protocol):
    """Receives the events of an answer; see `engines.base.start`."""

    def receive(self, events: list[Event]) -> None:
        """Process the next events, at least one; the last of all is `Finished` or `Failed`.

        It is called on the event loop, never before `start` has returned, and must not block or
        raise.
        """
        ...


class Handle(Protocol):
    """Controls a started answer; every method may be called inside `Sink.receive`."""

    def cancel(self) -> None:
        """Cancel all work for the answer. The sink receives nothing more."""
        ...

    def pause(self) -> None:
        """Pause production until `resume`: the client's socket is full."""
        ...

    def resume(self) -> None:
        """Resume production."""
        ...


class Encoder(Protocol):
    """Encodes the events of one answer on a wire."""

    def feed(self, events: Sequence[Event]) -> bytes:
        """The bytes for these events, meant for one write; empty where the wire has none for them.

        The grouping of events does not change the bytes.
        """
        ...

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A heartbeat: a comment, or an event without effect. Empty before the first event."""
        ...


class Decoder(Protocol):
    """Decodes an answer on a wire, in pieces of any size."""

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        ...

    def close(self) -> list[Event]:
        """End the input: the rest of the answer, complete or cut."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the wire has ended the answer, though late usage may follow."""
        ...
