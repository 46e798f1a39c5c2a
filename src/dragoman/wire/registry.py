"""The registry of wires, which server, engines, documentation and command line read.

Nothing else in the package names the wires there are.
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
"""Every wire by its name, the one to prefer first."""
BASE = "/v1"
"""What base URLs end with."""


def wire_at(path: str, headers: Container[bytes] = ()) -> Wire:
    """The wire that a request is of: the one its path belongs to, or else the one whose clients are
    known by one of these headers (names in lower case); the first one where neither says.

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
    """The same losses, with the core's names of fields (`items[3]`) as clients of a wire know them.

    A client that speaks no wire, but calls the library, knows the names of the core.
    """
    found = WIRES.get(wire or "")
    if found is None or not losses:
        return tuple(losses)
    spell, own = found.spelling(request), (request.extra or {}).get(found.name, {})
    # A field that only the client's wire knows has its name already, which may be one of the core.
    return tuple(
        [
            loss if loss.field.partition(".")[0] in own else replace(loss, field=spell(loss.field))
            for loss in losses
        ]
    )


def spell_fault(fault: Fault, request: Request, wire: str | None) -> Fault:
    """The same fault, with the field it is about as clients of a wire know it.

    >>> from dragoman.core.error import bad_request
    >>> fault = bad_request("cannot be enforced", "format.schema.not")
    >>> spell_fault(fault, Request(model="m"), "responses").message
    'text.format.schema.not: cannot be enforced'
    """
    found = WIRES.get(wire or "")
    if fault.param is None or found is None:
        return fault
    return with_param(fault, found.spelling(request)(fault.param))
