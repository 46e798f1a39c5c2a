"""What becomes of an exception nobody expected: a line in the log, and a fault for the client.

Neither may show a key, wherever the exception picked it up. The client learns that it was our
mistake and the id by which the log names it, and nothing else.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller
from dragoman.core.secret import Secret

_log = logging.getLogger("dragoman.server")


@contextmanager
def mishaps(request_id: str, caller: Caller) -> Iterator[None]:
    """Log any exception and raise it as a FaultError; a FaultError passes as it is."""
    try:
        yield
    except FaultError:
        raise
    except Exception as error:
        raise FaultError(report(error, request_id, caller.key)) from None


def report(error: Exception, request_id: str, key: Secret | None) -> Fault:
    """Log an exception, the client's key blotted out; the fault to tell the client."""
    told = "".join(traceback.format_exception(error))
    if key is not None:
        told = told.replace(key.reveal(), str(key))
    _log.error("%s failed:\n%s", request_id, told)
    problem = f"Something went wrong in this server; its log says more about {request_id}."
    return Fault("internal", problem)
