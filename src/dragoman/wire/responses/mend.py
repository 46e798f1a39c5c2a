"""Makes items of what servers send for items.

Reading a request is strict, reading an answer cannot be: content comes as a string or null,
arguments as an object, ids not at all. What can be meant only one way is taken that way; an item
that makes no sense is kept word for word.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.item import JSON, Item, Part, Unknown
from dragoman.wire import body

from . import items, parts
from .extras import WIRE

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Calls, and the field of what they are called with."""

_WORDED = frozenset({"output_text", "refusal", "reasoning_text", "summary_text"})
"""Kinds of content that are words."""


def item(value: dict[str, JSON]) -> Item:
    """The item that is meant. A call may still have an empty name or call id."""
    said = value.get("type")
    kind = said if isinstance(said, str) else "message"
    try:
        if kind in _CALLS:
            return _call(value, _CALLS[kind])
        return items.decode(_mended({**value, "type": kind}, kind))
    except FaultError:
        rest = {name: said for name, said in value.items() if name != "type"}
        id = value.get("id")
        return Unknown(WIRE, kind, rest, id if isinstance(id, str) else None)


def _call(value: dict[str, JSON], field: str) -> Item:
    """A call with what it has: whoever opens it gives it the ids it lacks."""
    said = value.get(field)
    text = said if isinstance(said, str) else "" if said is None else body.text(said)
    call_id, name = value.get("call_id") or value.get("id") or "", value.get("name") or ""
    whole = {**value, field: text, "call_id": call_id or "?", "name": name or "?"}
    call = items.decode(whole)
    return replace(call, call_id=call_id, name=name)


def _mended(value: dict[str, JSON], kind: str) -> dict[str, JSON]:
    match kind:
        case "message":
            role = next((role for role in items.ROLES if role == value.get("role")), "assistant")
            return {**value, "role": role, "content": _content(value.get("content"), None)}
        case "reasoning":
            content = _content(value.get("content"), "reasoning_text")
            summary = _content(value.get("summary"), "summary_text")
            return {**value, "content": content, "summary": summary}
        case "function_call_output" | "custom_tool_call_output" if value.get("output") is None:
            return {**value, "output": ""}
        case "compaction":
            return {**value, "encrypted_content": value.get("encrypted_content") or ""}
        case _:
            return value


def _content(said: JSON, kind: str | None) -> JSON:
    """Content as a list of pieces; a bare string stays one where no `kind` of piece is wanted."""
    match said:
        case str():
            return said if kind is None else [{"type": kind, "text": said}]
        case list(pieces):
            return [_piece(piece) for piece in pieces if isinstance(piece, dict)]
        case _:
            return []


def _piece(value: dict[str, JSON]) -> dict[str, JSON]:
    said = value.get("type")
    kind = said if isinstance(said, str) else "output_text"
    field = "refusal" if kind == "refusal" else "text"
    if kind in _WORDED and not isinstance(value.get(field), str):
        return {**value, "type": kind, field: ""}
    return {**value, "type": kind}


def part(value: JSON, kind: str | None = None) -> Part | None:
    """The piece of content that is meant, if there is one; `kind` overrules its own."""
    if not isinstance(value, dict):
        return None
    try:
        return parts.decode(_piece({**value, "type": kind} if kind else value))
    except FaultError:
        return None
