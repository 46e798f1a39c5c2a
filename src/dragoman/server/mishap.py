"""What becomes of an exception nobody expected: a line in the log, and a fault for the client.

Neither may show a key, wherever the exception picked it up. The client learns that it was our
mistake and the id by which the log names it, and nothing else.
"""

from __future__ import annotations

import logging
import traceback

from dragoman.core.error import Fault, FaultError
from dragoman.core.secret import Secret

_log = logging.getLogger("dragoman.server")


def fault_of(error: Exception, request_id: str, key: Secret | None) -> Fault:
    """The fault to tell the client; all but a FaultError is logged, the key blotted out."""
    if isinstance(error, FaultError):
        return error.fault
    told = "".join(traceback.format_exception(error))
    if key is not None:
        told = told.replace(key.reveal(), str(key))
    _log.error("%s failed:\n%s", request_id, told)
    problem = f"Something went wrong in this server; its log says more about {request_id}."
    return Fault("internal", problem)
