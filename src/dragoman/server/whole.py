"""What a whole answer says: its body in the words of a wire, and the headers that tell what was not
carried and how sure it is.

A response that failed, or came to no end, is none. How it is sent is not known here.
"""

from __future__ import annotations

from dragoman.core.error import FaultError
from dragoman.core.response import Response, default_guarantee
from dragoman.wire.losses import judge_answer
from dragoman.wire.registry import Wire

from .asgi import Headers
from .cancellation import UNFINISHED
from .exchange import guarantee_header, loss_header
from .settings import DIALECTS, Settings
from .state.service import Plan


def whole(
    wire: Wire, response: Response, plan: Plan, settings: Settings, body: bytes = b""
) -> tuple[bytes, Headers]:
    """The body and its headers; `body` where it is there already. Raises FaultError for an answer
    that failed."""
    if response.status in ("failed", "in_progress"):
        raise FaultError(response.error or UNFINISHED)
    body = body or wire.encode_response(response, plan.echoed, DIALECTS[settings.dialect])
    losses = plan.losses + response.losses + judge_answer(response, wire.name)
    sure = guarantee_header(response.guarantee or default_guarantee(plan.request))
    return body, [*loss_header(losses), *sure]
