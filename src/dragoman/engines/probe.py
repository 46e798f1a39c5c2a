"""Finds out what kind of server an address is, by free questions only.

The model listing tells its kind; an empty request to `/responses` tells whether it speaks that
protocol (a server that does refuses it as a bad request). Neither costs a token. Silence for a
second counts as "no".
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from dragoman.core.error import Fault
from dragoman.core.identity import MARK
from dragoman.net.error import ConnectError, NetError, ProxyError, TLSError
from dragoman.net.http import Client, HeaderFields
from dragoman.wire import body

from . import failure
from .profiles import GENERIC, Profile, by_answers

PATIENCE = 1.0
"""Seconds a server has for each question."""


class Answer(Struct, frozen=True):
    """What came back: the status (0: nothing did), the `Server` header, the JSON if it was that.

    `ours` is set when the answer carries the mark of a Dragoman; `fault` says why there is no
    connection to ask over, where there is none.
    """

    status: int = 0
    server: str | None = None
    value: Any = None
    ours: bool = False
    fault: Fault | None = None


Senses = dict[str, frozenset[str] | None]
"""What each listed model takes in (`text`, `image`, `audio` …); None where that is not said."""


class Found(Struct, frozen=True):
    """What an address turned out to be, the wires it speaks, best first, and what its
    models take in. Where there is no connection there are no wires, and `fault` says why."""

    profile: Profile
    wires: tuple[str, ...]
    senses: Senses
    fault: Fault | None = None


async def look(client: Client, base_url: str, headers: HeaderFields) -> Found:
    """Find out what is at this address and which wires it speaks. Never raises for silence."""
    listing = await question(client, "GET", f"{base_url}/models", headers)
    if listing.fault is not None:
        return Found(GENERIC, (), {}, listing.fault)
    profile, taken = recognise(listing), senses(entries(listing.value))
    if profile is not None and profile.wires:
        return Found(profile, profile.wires, taken)
    reply = await question(client, "POST", f"{base_url}/responses", headers, b"{}")
    profile = profile or by_answers(reply.server)
    if profile is not None and profile.wires:
        return Found(profile, profile.wires, taken)
    speaks = reply.status in (400, 422)
    return Found(profile or GENERIC, ("responses", "chat") if speaks else ("chat",), taken)


def recognise(listing: Answer) -> Profile | None:
    """The profile a model listing gives away."""
    return by_answers(listing.server, entries(listing.value))


def senses(listing: list[dict[str, Any]]) -> Senses:
    """What a listing says its models take in.

    >>> senses([{"id": "m", "architecture": {"input_modalities": ["text"]}}, {"id": "n"}])
    {'m': frozenset({'text'}), 'n': None}
    """
    found: Senses = {}
    for entry in listing:
        match entry:
            case {"id": str(name), "architecture": {"input_modalities": [*taken]}}:
                found[name] = frozenset(map(str, taken))
            case {"id": str(name)}:
                found[name] = None
    return found


_CONTEXT = ("context_window", "max_model_len", "context_length", "max_context_length")


def context(entry: dict[str, Any]) -> int | None:
    """How many tokens a listing says a model can hold, under any of the names servers use.

    >>> context({"max_model_len": 4096}), context({"meta": {"n_ctx": 512}}), context({})
    (4096, 512, None)
    """
    meta = entry.get("meta")
    named = [entry.get(name) for name in _CONTEXT]
    if isinstance(meta, dict):
        named += [meta.get("n_ctx"), meta.get("n_ctx_train")]
    return next((size for size in named if type(size) is int and size > 0), None)


def entries(value: Any) -> list[dict[str, Any]]:
    """The models of a listing, whatever shape it has; none where it is no listing."""
    data = value.get("data") if isinstance(value, dict) else value
    return [e for e in data if isinstance(e, dict)] if isinstance(data, list) else []


async def question(
    client: Client,
    method: str,
    url: str,
    headers: HeaderFields,
    content: bytes | None = None,
    patience: float = PATIENCE,
) -> Answer:
    """Ask, and take silence, a broken answer or a refusal for what it is."""
    if content is not None:
        headers = (*headers, ("content-type", "application/json"))
    try:
        async with asyncio.timeout(patience), client.stream(method, url, headers, content) as reply:
            raw = await reply.read()
            fields = reply.headers
            ours = fields.get(MARK) is not None
            return Answer(reply.status, fields.get("server"), _json(raw), ours)
    except (ConnectError, TLSError, ProxyError) as error:
        return Answer(fault=failure.broken(error))
    except (NetError, TimeoutError):
        return Answer()


def _json(raw: bytes) -> Any:
    try:
        return body.load(raw)
    except ValueError:
        return None
