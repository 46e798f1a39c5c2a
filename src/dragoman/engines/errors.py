"""Maps failures of a connection, and refusals by a server, to faults for the caller."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from dragoman.core.error import Fault
from dragoman.core.interfaces import Secret
from dragoman.core.turn import CUT
from dragoman.net.client import Response
from dragoman.net.errors import (
    DisconnectedError,
    NetError,
    NetTimeoutError,
    RemoteProtocolError,
    TooLargeError,
)
from dragoman.wire import json

PATIENCE = 2.0
"""Seconds a refusal has to say why."""
LONGEST_REFUSAL = 256 * 1024
"""How many bytes of a refusal are read."""
LONGEST_WAIT = 60.0
"""Seconds a configured retry waits at the most, whatever Retry-After says."""
SHORTEST_SECRET = 8
"""Characters below which a key is a placeholder that may well be a word of the message."""


def broken(error: NetError) -> Fault:
    """The fault that an error of the net is."""
    match error:
        case NetTimeoutError():
            return Fault(
                "upstream_timeout", f"The model's server is too slow: {error}.", "upstream"
            )
        case DisconnectedError(before_first_byte=False):
            return CUT
        case RemoteProtocolError() | TooLargeError():
            return Fault(
                "upstream_error", f"The model's server does not speak HTTP: {error}.", "upstream"
            )
        case _:
            return unreachable(str(error))


def unreachable(what: str) -> Fault:
    """Nobody answers there."""
    return Fault(
        "upstream_unreachable",
        f"The model's server cannot be reached: {what}. Is it running, and at this address?",
        "upstream",
    )


def key_refused(base_url: str, status: int, key: Secret | None) -> Fault:
    """A server did not take the key that we, not our client, have for it, or wants one."""
    said = (
        f"{base_url} asks for a key, and none was given for it ({status}). Give it one"
        if key is None
        else f"{base_url} refused the key that was given for it ({status}). Give it a working one"
    )
    return Fault(
        "upstream_authentication",
        f"{said} (--upstream-key-env; for ask, chat and models --key-env).",
        "server",
        status=status,
    )


async def words(refusal: Response) -> bytes:
    """What a refusal says, as far as it comes: cut, endless or slow, its status counts."""
    said = b""
    with suppress(TimeoutError, NetError):
        async with asyncio.timeout(PATIENCE):
            async for data in refusal.chunks():
                said += data
                if len(said) >= LONGEST_REFUSAL:
                    break
    return said


def wait(retry_after: str | None, attempt: int) -> float:
    """Seconds before a configured retry.

    >>> wait("3", 0), wait("86400", 0), wait(None, 2)
    (3.0, 60.0, 2.0)
    """
    asked = retry_after or ""
    seconds = float(asked) if asked.isdecimal() else 0.5 * 2**attempt
    return min(seconds, LONGEST_WAIT)


def without(fault: Fault, key: Secret | None) -> Fault:
    """The fault with the key taken out of its words: some servers quote what they refuse.

    >>> without(Fault("internal", "No such key: sk-12345678."), Secret("sk-12345678")).message
    'No such key: ***.'
    """
    hidden = key.reveal() if key is not None else ""
    if len(hidden) < SHORTEST_SECRET:
        return fault
    hidden = json.text(hidden)[1:-1]  # as it stands in JSON
    told = json.text(msgspec.to_builtins(fault))
    if hidden not in told:
        return fault
    return msgspec.json.decode(told.replace(hidden, str(key)), type=Fault)


def sendable(key: Secret | str | None) -> Secret | None:
    """The key, if a header can carry it. Raises ValueError, which does not show it, if none can.

    >>> sendable("a\\nb")
    Traceback (most recent call last):
        ...
    ValueError: the key holds characters that no header can carry
    """
    value = key.reveal() if isinstance(key, Secret) else key
    if value is None:
        return None
    if not (value.isascii() and value.isprintable()):
        raise ValueError("the key holds characters that no header can carry")
    return Secret(value)
