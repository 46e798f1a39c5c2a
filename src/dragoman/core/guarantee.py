"""How sure one can be that an answer is what was demanded: a word that answers carry.

`enforced`: the model could not write anything else. `verified`: the finished answer was looked at,
and is what was demanded. `best-effort`: the model was told, and nobody looked. An answer of which
nothing was demanded carries no word. How a demand is enforced or verified is not known here.
"""

from __future__ import annotations

from typing import Literal

from .item import JSON
from .request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
    Tool,
    UnknownTool,
)

Guarantee = Literal["enforced", "verified", "best-effort"]

WHOLE = (
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "structured_outputs",
)
"""Fields beyond the protocols that demand something of the whole answer."""


def demanded(request: Request) -> bool:
    """Whether the answer must be more than any text.

    >>> demanded(Request(model="m")), demanded(Request(model="m", format=JSONObject()))
    (False, True)
    """
    if request.tool_choice is None and not (request.tools or request.format or request.extra):
        return False  # as of most requests
    if isinstance(request.format, JSONObject | JSONSchema):
        return True
    match request.tool_choice:
        case "required" | NamedTool() | AllowedTools() | UnknownTool():
            return True
        case "none":
            pass
        case _ if any(map(_strict, request.tools)):
            return True
    if request.extra is None:
        return False
    return any(map(_binds, request.extra.values()))


def unsure(request: Request) -> Guarantee | None:
    """The word for an answer of which nobody said more."""
    return "best-effort" if demanded(request) else None


def _binds(fields: dict[str, JSON]) -> bool:
    """Whether a wire's own fields demand something."""
    format = fields.get("response_format")
    bound = isinstance(format, dict) and "type" in format  # of a kind that no protocol has
    return bound or any(fields.get(name) is not None for name in WHOLE)


def _strict(tool: Tool) -> bool:
    """Whether what is in a call of this tool must fit."""
    match tool:
        case FunctionTool(strict=strict):
            return strict is True
        case CustomTool(grammar=grammar):
            return grammar is not None
        case Namespace(tools=tools):
            return any(map(_strict, tools))
        case _:
            return False
