"""Registers the wires, for server, engines, documentation and command line.

No other module names the wires.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec.structs import replace

from dragoman.core.error import Fault, with_param
from dragoman.core.loss import Loss
from dragoman.core.request import Request

from .chat import CHAT
from .completions import COMPLETIONS
from .messages import MESSAGES
from .protocol import Wire
from .responses import RESPONSES

WIRES: dict[str, Wire] = {wire.name: wire for wire in (CHAT, RESPONSES, MESSAGES, COMPLETIONS)}
"""Every wire by its name, in order of preference."""
BASE = "/v1"
"""The suffix of base URLs."""


def wire_at(path: str, headers: Container[bytes] = ()) -> Wire:
    """The wire of a request: by its path, or else by the
    `client_header` (names in lower case); the first wire otherwise.

    >>> wire_at("/v1/responses/resp_1").name, wire_at("/v1/models").name
    ('responses', 'chat')
    """

    def signs(wire: Wire) -> tuple[bool, bool, bool]:
        own = BASE + wire.path
        return (
            path == own or path.startswith(f"{own}/"),
            wire.client_header.encode() in headers,
            path == BASE + wire.models_path,
        )

    return max(WIRES.values(), key=signs)


def spell_losses(losses: Iterable[Loss], request: Request, wire: str | None) -> tuple[Loss, ...]:
    """The same losses, with the core's names of fields (`items[3]`) replaced by those of a wire.

    Without a wire, for users of the library, the names of the core are kept.
    """
    found = WIRES.get(wire or "")
    if found is None or not losses:
        return tuple(losses)
    spell, own = found.spelling(request), (request.extra or {}).get(found.name, {})
    # A field of the client's wire alone has its name already, which may equal one of the core.
    return tuple(
        [
            loss if loss.field.partition(".")[0] in own else replace(loss, field=spell(loss.field))
            for loss in losses
        ]
    )


def spell_fault(fault: Fault, request: Request, wire: str | None) -> Fault:
    """The same fault, with its field's name on a wire.

    >>> from dragoman.core.error import bad_request
    >>> fault = bad_request("cannot be enforced", "format.schema.not")
    >>> spell_fault(fault, Request(model="m"), "responses").message
    'text.format.schema.not: cannot be enforced'
    """
    found = WIRES.get(wire or "")
    if fault.param is None or found is None:
        return fault
    return with_param(fault, found.spelling(request)(fault.param))
