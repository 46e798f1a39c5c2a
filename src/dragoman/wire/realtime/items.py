"""Items of a session's conversation, decoded and encoded."""

from __future__ import annotations

from typing import Any, Final

from dragoman.core.conversation import type_of
from dragoman.core.error import LONGEST_NAME, FaultError, bad_request, quoted
from dragoman.core.item import (
    JSON,
    Audio,
    Extra,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemReference,
    ItemStatus,
    Message,
    Part,
    Refusal,
    Text,
    Unknown,
    UnknownPart,
)
from dragoman.wire import json
from dragoman.wire.json import Fields, dense
from dragoman.wire.pieces import long

WIRE: Final = "realtime"
"""The key of this wire in every `extra`."""

MAX_PARTS = 1_024
"""Content parts of one message, which several events repeat."""
ROLES = ("system", "user", "assistant", "developer")
STATES: tuple[ItemStatus, ...] = ("in_progress", "completed", "incomplete")
_TEXTS = frozenset(("input_text", "output_text", "text"))
_SOUNDS = frozenset(("input_audio", "output_audio", "audio"))


def to_extra(fields: dict[str, JSON]) -> Extra | None:
    """Unknown fields as an `extra`; None where there are none."""
    return {WIRE: fields} if fields else None


def decode_item(fields: Fields) -> Item:
    """An item. One of a kind we do not know is carried unchanged. Raises FaultError."""
    kind = fields.need("type")
    id = fields.string("id") or None
    if id is not None and len(id) > LONGEST_NAME:
        raise fields.wrong("id", f"has more than {LONGEST_NAME} characters")
    fields.any("object")
    if kind not in ("message", "function_call", "function_call_output", "item_reference"):
        return Unknown(WIRE, kind, fields.left(), id)
    status: Any = fields.one_of("status", STATES)
    match kind:
        case "message":
            role: Any = fields.one_of("role", ROLES)
            if role is None:
                raise fields.wrong("role", "is missing")
            parts = [*fields.objects("content")]
            if len(parts) > MAX_PARTS:
                raise fields.wrong("content", f"has {len(parts)} parts, and may have {MAX_PARTS}")
            content = tuple([decode_part(part) for part in parts])
            extra = to_extra(fields.rest())
            return Message(role, content, id=id, status=status, extra=extra)
        case "function_call":
            name, arguments = fields.need("name"), fields.string("arguments") or ""
            call_id = fields.string("call_id") or id or ""
            extra = to_extra(fields.rest())
            return FunctionCall(call_id, name, arguments, id=id, status=status, extra=extra)
        case "function_call_output":
            call_id, output = fields.need("call_id"), fields.string("output")
            if output is None:
                raise fields.wrong("output", "is missing")
            extra = to_extra(fields.rest())
            return FunctionCallOutput(call_id, output, id=id, status=status, extra=extra)
        case _:
            if id is None:
                raise fields.wrong("id", "is missing")
            return ItemReference(id, extra=to_extra(fields.rest()))


def decode_part(fields: Fields) -> Part:
    """A part of a message's content."""
    kind = fields.need("type")
    if kind in _TEXTS:
        return Text(fields.string("text") or "", extra=to_extra(fields.rest()))
    if kind in _SOUNDS:
        data, transcript = fields.string("audio"), fields.string("transcript")
        return Audio(data, "pcm16", transcript, extra=to_extra(fields.rest()))
    if kind == "input_image":
        url, detail = fields.need("image_url"), fields.string("detail")
        return Image(url, None, detail, extra=to_extra(fields.rest()))
    return UnknownPart(WIRE, {"type": kind, **fields.left()})


def encode_item(item: Item) -> dict[str, JSON]:
    """An item. Raises FaultError for one that the protocol has not."""
    match item:
        case Message(role=role):
            role = "system" if role == "developer" else role
            parts = [encode_part(part, role) for part in item.parts]
            return _object(item, "message", {"status": item.status, "role": role, "content": parts})
        case FunctionCall(call_id=call_id, name=name, arguments=arguments):
            known: dict[str, JSON] = {"status": item.status, "call_id": call_id, "name": name}
            return _object(item, "function_call", {**known, "arguments": long(arguments)})
        case FunctionCallOutput(call_id=call_id, output=output):
            text = output if isinstance(output, str) else _text(output)
            known = {"status": item.status, "call_id": call_id, "output": long(text)}
            return _object(item, "function_call_output", known)
        case ItemReference(id=id):
            return {"type": "item_reference", "id": id}
        case Unknown(kind=kind, value=value, id=id):
            return {**value, "type": kind, **({"id": id} if id else {})}
        case _:
            problem = f"is {quoted(type_of(item))}, which a session has no place for"
            raise FaultError(bad_request(problem, "item.type"))


def encode_part(part: Part, role: str) -> dict[str, JSON]:
    """A part of a message in a role. Raises FaultError for one that the protocol has not."""
    side = "output" if role == "assistant" else "input"
    match part:
        case Text(text=text) | Refusal(text=text):
            known: dict[str, JSON] = {"type": f"{side}_text", "text": long(text)}
        case Audio(data=data, transcript=transcript):
            said = transcript and long(transcript)
            known = dense({"audio": data and long(data), "transcript": said})
            known = {"type": f"{side}_audio", **known}
            if side == "input":  # the Agents SDK in JavaScript wants null where there is none yet
                known["transcript"] = said
        case Image(url=str(url), detail=detail):
            known = {"type": "input_image", "image_url": long(url), **dense({"detail": detail})}
        case UnknownPart(value=value):
            return value
        case _:
            tag = quoted(str(part.__struct_config__.tag))
            problem = f"is {tag}, which a session has no place for"
            raise FaultError(bad_request(problem, "item.content"))
    return json.merge(known, (part.extra or {}).get(WIRE, {}))


def _object(item: Item, kind: str, known: dict[str, JSON]) -> dict[str, JSON]:
    head = dense({"id": item.id, "object": "realtime.item", "type": kind})
    return json.merge({**head, **dense(known)}, (item.extra or {}).get(WIRE, {}))


def _text(parts: tuple[Part, ...]) -> str:
    """Parts of a result as text, all that the protocol has for one."""
    return "".join([part.text for part in parts if isinstance(part, Text)])
