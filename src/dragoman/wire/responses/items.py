"""Items of a conversation in the Responses protocol's spelling, read and written.

The same item is written two ways: as history, with only the fields that were set, and as part of
an answer, where identity, status and empty lists are demanded by readers. An item of a kind we
do not know is kept word for word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from msgspec.structs import replace

from dragoman.core.item import (
    JSON,
    CallOutput,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    Extra,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    ItemStatus,
    Message,
    Part,
    Reasoning,
    Role,
    Summary,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.wire.body import Fields, kind

from . import parts
from .extras import WIRE, dense, keep, kept

ROLES = frozenset(get_args(Role))
_STATUSES = frozenset(get_args(ItemStatus))


# ---- reading -----------------------------------------------------------------------------


def decode_all(values: list[JSON], path: str) -> tuple[Item, ...]:
    """The items of a list. Raises FaultError naming the item and the field that is wrong."""
    return tuple(decode(value, at) for value, at in parts.objects(values, path))


def decode(value: dict[str, JSON], path: str = "") -> Item:
    """One item; without a type it is a message, or a reference where it has but an id."""
    fields = Fields(value, path)
    match fields.string("type"):
        case None if "role" not in fields and "content" not in fields and "id" in fields:
            return ItemReference(fields.need("id"), keep(fields.rest()))
        case None | "message":
            return _message(fields)
        case "reasoning":
            return _reasoning(fields)
        case "function_call":
            call_id, name = fields.need("call_id"), fields.need("name")
            said = parts.need_text(fields, "arguments")
            space, id, status, extra = fields.string("namespace"), *_identity(fields)
            return FunctionCall(call_id, name, said, space, id, status, extra)
        case "custom_tool_call":
            call_id, name = fields.need("call_id"), fields.need("name")
            said = parts.need_text(fields, "input")
            space, id, status, extra = fields.string("namespace"), *_identity(fields)
            return CustomToolCall(call_id, name, said, space, id, status, extra)
        case "function_call_output":
            return FunctionCallOutput(fields.need("call_id"), _output(fields), *_identity(fields))
        case "custom_tool_call_output":
            return CustomToolCallOutput(fields.need("call_id"), _output(fields), *_identity(fields))
        case "compaction":
            sealed = parts.need_text(fields, "encrypted_content")
            return Compaction(sealed, fields.string("id"), keep(fields.rest()))
        case "item_reference":
            return ItemReference(fields.need("id"), keep(fields.rest()))
        case other:
            id = value.get("id")
            rest = {name: said for name, said in value.items() if name != "type"}
            return Unknown(WIRE, other, rest, id if isinstance(id, str) else None)


def _identity(fields: Fields) -> tuple[str | None, ItemStatus | None, Extra | None]:
    """What all items have: id, status, and what we do not know. A strange status is kept."""
    status = fields.string("status")
    known: ItemStatus | None = None
    match status:
        case "in_progress" | "completed" | "incomplete":
            known, status = status, None
    id = fields.string("id")
    return id, known, keep({**dense({"status": status}), **fields.rest()})


def _message(fields: Fields) -> Message:
    role = fields.need("role")
    match role:
        case "system" | "developer" | "user" | "assistant":
            pass
        case _:
            allowed = ", ".join(sorted(ROLES))
            raise fields.wrong("role", f"is {role!r}, and must be one of {allowed}")
    if "content" not in fields and role != "assistant":
        raise fields.wrong("content", "is missing")
    content, phase = _content(fields, "content"), fields.string("phase")
    id, status, extra = _identity(fields)
    return Message(role, content, id, status, phase=phase, extra=extra)


def _content(fields: Fields, name: str) -> str | tuple[Part, ...]:
    """A string, or a list of pieces; nothing where it is null."""
    match fields.any(name):
        case None:
            return ()
        case str(text):
            return text
        case list(values):
            return tuple(parts.decode(v, at) for v, at in parts.objects(values, fields.at(name)))
        case value:
            raise fields.wrong(name, f"is {kind(value)}, and must be a string or an array")


def _output(fields: Fields) -> str | tuple[Part, ...]:
    if "output" not in fields:
        raise fields.wrong("output", "is missing")
    return _content(fields, "output")


def _reasoning(fields: Fields) -> Reasoning:
    thoughts = tuple(_thought(v, at) for v, at in _list(fields, "content"))
    summary = tuple(_summary(v, at) for v, at in _list(fields, "summary"))
    sealed, (id, status, extra) = fields.string("encrypted_content"), _identity(fields)
    return Reasoning(thoughts, summary, sealed, id, status, extra)


def _list(fields: Fields, name: str) -> Iterator[tuple[dict[str, JSON], str]]:
    return parts.objects(fields.array(name) or [], fields.at(name))


def _thought(value: dict[str, JSON], path: str) -> Thought | UnknownPart:
    """Reasoning in words, also where a server spells it as the text of a message."""
    match parts.decode(value, path):
        case Thought() as part:
            return part
        case Text(text=text) | Summary(text=text):
            return Thought(text)
        case _:
            return UnknownPart(WIRE, value)


def _summary(value: dict[str, JSON], path: str) -> Summary | UnknownPart:
    match parts.decode(value, path):
        case Summary() as part:
            return part
        case Text(text=text) | Thought(text=text):
            return Summary(text)
        case _:
            return UnknownPart(WIRE, value)


# ---- writing -----------------------------------------------------------------------------


def encode(item: Item, *, full: bool = False) -> dict[str, JSON] | None:
    """One item with the fields it has; None for one that belongs to another wire."""
    match item:
        case Message():
            said = _say_message(item, full)
        case Reasoning():
            content = parts.encode_all(item.content) or None
            summary = parts.encode_all(item.summary)
            said = {"summary": summary, "content": content, "encrypted_content": item.encrypted}
        case FunctionCall():
            said = {"call_id": item.call_id, "name": item.name, "namespace": item.namespace}
            said["arguments"] = item.arguments
        case CustomToolCall():
            said = {"call_id": item.call_id, "name": item.name, "namespace": item.namespace}
            said["input"] = item.input
        case FunctionCallOutput() | CustomToolCallOutput():
            said = _say_output(item)
        case Compaction():
            said = {"id": item.id, "encrypted_content": item.encrypted}
            return dense({"type": "compaction", **said, **kept(item.extra)})
        case ItemReference():
            return {"type": "item_reference", "id": item.id, **kept(item.extra)}
        case _:
            return {"type": item.kind, **item.value} if item.wire == WIRE else None
    identity = {"type": _TYPES[type(item)], "id": item.id, "status": item.status}
    return dense({**identity, **said, **kept(item.extra)})


_TYPES: dict[type, str] = {
    Message: "message",
    Reasoning: "reasoning",
    FunctionCall: "function_call",
    FunctionCallOutput: "function_call_output",
    CustomToolCall: "custom_tool_call",
    CustomToolCallOutput: "custom_tool_call_output",
}


def _say_message(item: Message, full: bool) -> dict[str, JSON]:
    text = "output_text" if item.role == "assistant" else "input_text"
    content: JSON = item.content
    if full or not isinstance(item.content, str):
        content = parts.encode_all(item.parts, text, full=full)
    return {"role": item.role, "content": content, "phase": item.phase}


def _say_output(item: CallOutput) -> dict[str, JSON]:
    output = item.output
    said = output if isinstance(output, str) else parts.encode_all(output)
    return {"call_id": item.call_id, "output": said}


def encode_output(item: Item, id: str) -> dict[str, JSON] | None:
    """One item of an answer, under this id; None for one that belongs to another wire."""
    match item:
        case Unknown():
            return {"type": item.kind, **item.value, "id": id} if item.wire == WIRE else None
        case Compaction() | ItemReference():
            return encode(replace(item, id=id))
        case _:
            return encode(replace(item, id=id, status=item.status or "completed"), full=True)


def hosted(item: Item) -> str | None:
    """What the events of an item's progress are called; None for an item that has none."""
    match item:
        case Unknown():
            return item.kind
        case Compaction():
            return "compaction"
        case _:
            return None
