"""What a stored answer's calls are found by, when they come back without the thoughts before them.

Some servers count the ids of their calls from 0 in every conversation, so that an id says little:
name and arguments belong to it. What is found then, and what is made of it, is not known here.
"""

from __future__ import annotations

import hashlib
import json

from dragoman.core.item import Call, CustomToolCall, FunctionCall, Reasoning
from dragoman.core.response import Response


def mark(call: Call) -> str:
    """What a call is known by, however its arguments are written.

    >>> here, there = (FunctionCall("1", "now", text) for text in ('{"at": 1.0}', '{"at":1}'))
    >>> mark(here) == mark(there)
    True
    """
    said = call.arguments if isinstance(call, FunctionCall) else call.input
    whole = json.dumps([call.call_id, call.name, _tidy(said)])
    return hashlib.sha256(whole.encode()).hexdigest()


def marks(response: Response) -> list[str]:
    """The marks of an answer's calls, in their order; of one without reasoning nobody asks for
    any."""
    if Reasoning not in map(type, response.output):
        return []
    calls = (item for item in response.output if isinstance(item, FunctionCall | CustomToolCall))
    return sorted(set(map(mark, calls)))


def _tidy(said: str) -> str:
    """JSON as everybody would write it; anything else as it is."""
    try:
        return json.dumps(json.loads(said, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return said


def _number(said: str) -> float | int:
    """Many clients write a whole number without its point."""
    value = float(said)
    return int(value) if value.is_integer() else value
