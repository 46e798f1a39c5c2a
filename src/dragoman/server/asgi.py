"""The words of ASGI 3 as types, and those of a host that need not be awaited.

Nothing here knows which host runs the application; any that speaks ASGI will do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Audience(Protocol):
    """Who wants to know how a client takes its answer."""

    def gone(self) -> None:
        """It has closed the connection."""
        ...

    def drained(self) -> None:
        """It has read so much that more can be written."""
        ...


class Outlet(Protocol):
    """The way back to a client where writing is a plain call: our own host has it.

    `audience` is told of the client. `full` says that the client does not keep up; what is put
    then is kept for it all the same.
    """

    audience: Audience | None

    @property
    def full(self) -> bool: ...

    def receive(self) -> Awaitable[Message]:
        """As in ASGI."""
        ...

    def send(self, message: Message) -> Awaitable[None]:
        """As in ASGI."""
        ...

    def take_body(self) -> bytes:
        """The body of the request, which is here; nothing but the client's leaving is received
        from now on."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """The status and the headers."""
        ...

    def put(self, body: bytes, *, more: bool) -> None:
        """A piece of the body, the last one without `more`."""
        ...
