"""Whether a finished answer is what was demanded, for models that nothing could hold to it.

It judges the answer as it was heard, not as it was written: calls and text, whatever the format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from msgspec import Struct

from dragoman.core.item import Call, FunctionCall, Item, Message

from .body import Anything, Body, Choice, JSONBody
from .demand import Callee, Demand
from .valid import valid

Matches = Callable[[Body, str], bool]
"""Whether a text is of a grammar, or of a JSON schema that reads from left to right."""


class Problem(Struct, frozen=True):
    """What is wrong with an answer, and whether it is worse than no answer."""

    what: str
    grave: bool = True


def problem(asked: Demand, items: Sequence[Item], matches: Matches) -> Problem | None:
    """What is wrong with an answer; None where nothing is.

    >>> problem(Demand(None, (), True), [Message("assistant", "Hm.")], lambda body, text: True)
    Problem(what='it calls no tool', grave=True)
    """
    calls = [item for item in items if isinstance(item, Call)]
    if not calls:
        if asked.text is None:
            return Problem("it calls no tool")
        text = "".join(item.text for item in items if isinstance(item, Message))
        fits = _fits(asked.text, text, matches)
        return None if fits else Problem("its text is something else", asked.strict)
    if len(calls) > 1 and not asked.several:
        return Problem("it calls several tools at once")
    return next(filter(None, (_wrong(call, asked.tools, matches) for call in calls)), None)


def _wrong(call: Call, tools: Sequence[Callee], matches: Matches) -> Problem | None:
    """What is wrong with a call."""
    for tool in tools:
        if (tool.name, tool.namespace) == (call.name, call.namespace):
            said = call.arguments if isinstance(call, FunctionCall) else call.input
            if _fits(tool.body, said, matches):
                return None
            return Problem(f"what it gives to {call.name} does not fit", tool.strict)
    return Problem(f"it calls {call.name}, which may not be called")


def _fits(body: Body, text: str, matches: Matches) -> bool:
    match body:
        case Anything():
            return True
        case Choice(texts=texts):
            return text in texts
        case JSONBody(schema=schema):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                return False
            return valid(
                value, schema, lambda leaf, said: matches(JSONBody("", leaf), _quoted(said))
            )
        case _:
            return matches(body, text)


def _quoted(text: str) -> str:
    """A text as JSON, in the one way that a grammar knows."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
