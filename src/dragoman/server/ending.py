"""How answers end: the events that are an end, and the one that belongs to an answer that was
stopped. A client that is still there and the record of the answer are told the same.

It does not know who stops an answer, nor how an end is told.
"""

from __future__ import annotations

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Finished

TERMINAL = (Finished, Failed)
"""The events after which nothing comes."""

UNFINISHED = Fault("upstream_cut", "The answer broke off before its end.", "upstream")
"""Why an answer failed that came to no end of its own."""


def end_for(fault: Fault | None) -> Finished | Failed:
    """The end of an answer that was stopped: its client's wish, or a failure.

    >>> end_for(UNFINISHED) == Failed(UNFINISHED)
    True
    """
    if fault is None or fault.code in ("cancelled", "stalled"):
        return Finished("cancelled")
    return Failed(fault)
