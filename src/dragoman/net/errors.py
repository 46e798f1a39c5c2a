"""Errors of connections and HTTP, and what caused them."""

from __future__ import annotations

from typing import Literal

Phase = Literal["pool", "connect", "tls", "proxy", "first_byte", "idle", "total"]


class NetError(Exception):
    """The base of all errors of connections and HTTP."""


class InvalidUrlError(NetError, ValueError):
    """The text is no URL that can be requested over HTTP."""


class ConnectError(NetError):
    """The name did not resolve or the connection was refused; nothing was sent."""


class TLSError(NetError):
    """The TLS handshake failed, for instance over a certificate; nothing was sent."""


class ProxyError(NetError):
    """The proxy could not be reached or refused the tunnel; `status` is its answer, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NetTimeoutError(NetError):
    """The time allowed for one `phase` of the request is over."""

    def __init__(self, message: str, phase: Phase) -> None:
        super().__init__(message)
        self.phase = phase


class RemoteProtocolError(NetError):
    """The peer's bytes are no valid HTTP/1.1."""


class DisconnectedError(NetError):
    """The peer closed the connection before its answer was complete.

    `before_first_byte` is true when no byte of the response was received; `reused` when the
    connection had served an earlier request, so that the peer may never have seen this one.
    """

    def __init__(self, message: str, *, before_first_byte: bool, reused: bool) -> None:
        super().__init__(message)
        self.before_first_byte = before_first_byte
        self.reused = reused


class TooLargeError(NetError):
    """A header block or a body exceeds its limit."""


class BlockedAddressError(NetError):
    """The guard does not allow this address."""
