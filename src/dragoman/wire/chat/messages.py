"""The messages of a request become items.

One assistant message holds what are several items elsewhere: reasoning, a message, calls. They
come out in that order. Results are paired with their calls here, since a result without a call
is refused; what the model's server would make of the rest is its own affair.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from dragoman.core.item import (
    JSON,
    Audio,
    CallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    Extra,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Unknown,
)
from dragoman.wire import body
from dragoman.wire.body import Fields

from . import content
from .extras import NAME, keep

ROLES = ("assistant", "developer", "function", "system", "tool", "user")
TURN: Extra = {"turn": {"new": True}}
"""Marks an item that begins an assistant message right after another assistant message, which
would otherwise be taken for one."""


def decode(request: Fields) -> tuple[Item, ...]:
    """The items of a conversation. Raises FaultError naming the message that is wrong."""
    reader = _Reader()
    for message in request.objects("messages"):
        reader.read(message)
    if not reader.items:
        raise request.wrong("messages", "is missing or empty")
    return tuple(reader.items)


class _Reader:
    """The items so far, and the calls that results may refer to."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._calls: dict[str, type[Item]] = {}
        self._legacy: dict[str, str] = {}  # by function name: the id made up for its last call
        self._after_assistant = False

    def read(self, message: Fields) -> None:
        """One message more."""
        role = message.need("role")
        match role:
            case "assistant":
                self._assistant(message)
            case "system" | "developer" | "user":
                self.items.append(_spoken(role, message))
            case "tool":
                self.items.append(self._result(message))
            case "function":
                self.items.append(self._legacy_result(message))
            case _:
                raise message.wrong("role", f"is {role!r}, and must be one of {', '.join(ROLES)}")
        self._after_assistant = role == "assistant"

    def _assistant(self, message: Fields) -> None:
        legacy_id = f"call_legacy_{len(self._calls)}"
        items = _turn(message, legacy_id)
        for item in items:
            match item:
                case FunctionCall() | CustomToolCall():
                    self._calls[item.call_id] = type(item)
                    if item.call_id == legacy_id:
                        self._legacy[item.name] = legacy_id
                case Unknown(value={"id": str(call_id)}):
                    self._calls[call_id] = Unknown
        if self._after_assistant:
            items[0] = replace(items[0], extra=(items[0].extra or {}) | TURN)
        self.items += items

    def _result(self, message: Fields) -> CallOutput:
        call_id = message.need("tool_call_id")
        if call_id not in self._calls:
            raise message.wrong("tool_call_id", f"is {call_id!r}, and no earlier call has that id")
        output, extra = content.decode(message) or "", keep(message.rest())
        if self._calls[call_id] is CustomToolCall:
            return CustomToolCallOutput(call_id, output, extra=extra)
        return FunctionCallOutput(call_id, output, extra=extra)

    def _legacy_result(self, message: Fields) -> CallOutput:
        name = message.need("name")
        if name not in self._legacy:
            raise message.wrong("name", f"is {name!r}, and no earlier call is to that function")
        output, rest = content.decode(message) or "", message.rest()
        return FunctionCallOutput(self._legacy[name], output, extra=keep(rest | {"name": name}))


def _spoken(role: Literal["system", "developer", "user"], message: Fields) -> Message:
    said = content.decode(message)
    if said is None:
        raise message.wrong("content", "is missing")
    return Message(role, said, name=message.string("name"), extra=keep(message.rest()))


# ---- assistant messages ------------------------------------------------------------------


def _turn(message: Fields, legacy_id: str) -> list[Item]:
    """The items of an assistant message; there is always one."""
    reasoning, rest = _reasoning(message)
    said, name = _said(message), message.string("name")
    calls = [_call(call) for call in message.objects("tool_calls")]
    if not calls and (legacy := message.object("function_call")) is not None:
        calls = [_function_call(legacy_id, legacy, {})]
    extra = keep(message.rest() | rest)
    items: list[Item] = [] if reasoning is None else [reasoning]
    if said is not None or name or extra or not calls:
        empty: str | tuple[Part, ...] = () if calls else ""
        items.append(Message("assistant", empty if said is None else said, name=name, extra=extra))
    return items + calls


def _reasoning(message: Fields) -> tuple[Reasoning | None, dict[str, JSON]]:
    """What was thought, under any of the names servers have for it; and what is none of it."""
    text, rest = None, {}
    for name in ("reasoning_content", "reasoning"):
        value = message.any(name)
        if isinstance(value, str) and not text:
            text = value
        elif value is not None and value != text:
            rest[name] = value
    details = message.array("reasoning_details")
    sealed = keep({"reasoning_details": details} if details else {})
    if text is None and sealed is None:
        return None, rest
    return Reasoning(() if text is None else (Thought(text),), extra=sealed), rest


def _said(message: Fields) -> content.Content | None:
    """The content of an assistant message, its refusal and its past audio as parts of it."""
    said = content.decode(message)
    parts: list[Part] = []
    if refusal := message.string("refusal"):
        parts.append(Refusal(refusal))
    if (audio := message.object("audio")) is not None:
        parts.append(_past_audio(audio))
    if not parts:
        return None if said == () else said
    if isinstance(said, str):
        said = (Text(said),) if said else ()
    return (*(said or ()), *parts)


def _past_audio(audio: Fields) -> Audio:
    id, data, transcript = audio.need("id"), audio.string("data"), audio.string("transcript")
    expires_at = audio.integer("expires_at")
    return Audio(
        data, transcript=transcript, id=id, expires_at=expires_at, extra=keep(audio.rest())
    )


def _call(call: Fields) -> FunctionCall | CustomToolCall | Unknown:
    call_id, kind = call.need("id"), call.string("type") or "function"
    inner = call.object(kind) if kind in ("function", "custom") else None
    if inner is not None:
        return (_function_call if kind == "function" else _custom_call)(call_id, inner, call.rest())
    if kind in ("function", "custom"):
        raise call.wrong(kind, "is missing")
    return Unknown(NAME, kind, {"id": call_id, **call.rest()})


def _function_call(call_id: str, inner: Fields, rest: dict[str, JSON]) -> FunctionCall:
    name, namespace, arguments = inner.need("name"), inner.string("namespace"), ""
    match inner.any("arguments"):
        case None:
            pass
        case str(text):
            arguments = text
        case dict(value):
            arguments = body.text(value)
        case value:
            raise inner.wrong("arguments", f"is {body.kind(value)}, and must be a string")
    extra = keep(rest, function=inner.rest())
    return FunctionCall(call_id, name, arguments, namespace, extra=extra)


def _custom_call(call_id: str, inner: Fields, rest: dict[str, JSON]) -> CustomToolCall:
    name, namespace, said = inner.need("name"), inner.string("namespace"), inner.string("input")
    return CustomToolCall(
        call_id, name, said or "", namespace, extra=keep(rest, custom=inner.rest())
    )
