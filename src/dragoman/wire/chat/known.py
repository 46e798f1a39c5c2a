"""The fields of an answer that this wire knows, level by level, and what is left of others.

Servers add fields at every level; what is not in these sets is kept and said again.
"""

from __future__ import annotations

from dragoman.core.item import JSON

CHUNK = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"})
CHOICE = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason", "error"})
MESSAGE = frozenset(
    {
        "annotations",
        "audio",
        "content",
        "function_call",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "refusal",
        "role",
        "tool_calls",
    }
)
ENTRY = frozenset({"index", "id", "type", "function", "custom"})
CALL = frozenset({"name", "namespace", "arguments", "input"})

MOST_CHOICES = 128
"""How many alternatives there may be; an index beyond is a mistake."""

_NOTHING: tuple[JSON, ...] = (None, [], {})


def rest(value: dict[str, JSON], known: frozenset[str]) -> dict[str, JSON]:
    """The fields we do not know, without those that say nothing."""
    if known.issuperset(value):
        return {}
    return {n: v for n, v in value.items() if n not in known and v not in _NOTHING}


def index(entry: dict[str, JSON]) -> int | None:
    """The index of a choice or a call, if it has one."""
    given = entry.get("index")
    return given if type(given) is int else None


def number(choice: dict[str, JSON], position: int) -> int:
    """The number of a choice: its index, or its position where the index is a mistake."""
    given = index(choice)
    return given if given is not None and 0 <= given < MOST_CHOICES else position
