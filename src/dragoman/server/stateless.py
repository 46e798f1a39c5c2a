"""What a server without a memory makes of a request that speaks of one.

Storing is declined and told; what refers to something stored is refused by the name of its field.
It knows requests, and neither wires nor engines.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, unsupported
from dragoman.core.item import ItemReference
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.opaque import ASKING, ENCRYPTED

NOT_STORED = Loss("store", "told", "this server stores no responses")
NOT_SEALED = Loss(ASKING, "told", "this server seals no reasoning; what the model sent is kept")
NOTHING_STORED = "this server stores nothing that could be referred to"


def without_memory(request: Request) -> tuple[Request, tuple[Loss, ...]]:
    """The request as the engine gets it, and what is not done as it was asked.

    Raises FaultError for a request that cannot be answered without a memory.
    """
    if request.previous_response_id is not None:
        name = "previous_response_id"
        problem = f"{name}: there is no response {request.previous_response_id!r}; {NOTHING_STORED}"
        raise FaultError(Fault("previous_response_not_found", problem, "client", name))
    if request.conversation is not None:
        raise FaultError(unsupported(NOTHING_STORED, "conversation"))
    if request.background:
        raise FaultError(unsupported("this server answers while you wait", "background"))
    for number, item in enumerate(request.items):
        if isinstance(item, ItemReference):
            raise FaultError(unsupported(NOTHING_STORED, f"input[{number}]"))
    losses: list[Loss] = []
    if request.store:
        losses.append(NOT_STORED)
        request = replace(request, store=False)
    elif request.store is None:
        request = decided(request)
    if ENCRYPTED in request.include:
        losses.append(NOT_SEALED)
    return request, tuple(losses)


def decided(request: Request) -> Request:
    """The request without the note that `store` was left out: an upstream might store then."""
    extra = request.extra
    if not extra or not any("store" in said for said in extra.values()):
        return request
    said = {wire: {k: v for k, v in said.items() if k != "store"} for wire, said in extra.items()}
    return replace(request, extra=said)
