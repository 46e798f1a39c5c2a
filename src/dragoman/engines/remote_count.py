"""Counts the tokens of a prompt by the server of its model."""

from __future__ import annotations

import asyncio

import msgspec

from dragoman.core.error import FaultError
from dragoman.core.interfaces import Caller
from dragoman.core.lower import lower
from dragoman.core.request import Request
from dragoman.wire import json
from dragoman.wire.protocol import Wire
from dragoman.wire.registry import WIRES

from .upstream import LISTING, Answer, Upstream, question


async def count(upstream: Upstream, request: Request, caller: Caller) -> int | None:
    """The prompt's tokens, as counted by the server; None where it cannot."""
    if not upstream.wires:
        await upstream.find_out(caller)
    able = [WIRES[name] for name in upstream.wires if WIRES[name].count_path]
    wire = next((each for each in able if each.name == caller.wire), able[0] if able else None)
    if wire is None:
        return None
    asked = await asyncio.to_thread(_body, upstream, wire, request)
    url, client = upstream.at(wire.count_path), upstream.client
    headers = (*upstream.headers(caller), *upstream.own_headers(wire, caller))
    answer = asked and await question(client, "POST", url, headers, asked, patience=LISTING)
    match answer:
        case Answer(status=200, value={"input_tokens": given}):
            return max(json.whole(given) or 0, 0) or None
    return None


def _body(upstream: Upstream, wire: Wire, request: Request) -> bytes | None:
    """The body of a request for a count; None where the wire has none."""
    lowered = lower(request, upstream.limits(request.model))
    try:
        body, _ = wire.encode_request(lowered.request, upstream.profile.dialect)
    except FaultError:
        return None
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({k: v for k, v in fields.items() if k in wire.count_fields})
