"""What servers send: the 46 server events, encoded from the events of a session and decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from dragoman.core.conversation import item_id, type_of
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta, Event, ItemAdded, ItemDone, PartAdded, PartDone, Progress
from dragoman.core.item import JSON, Audio, FunctionCall, Part, Text
from dragoman.core.session_values import (
    Answer,
    BufferCleared,
    BufferCommitted,
    BufferSpeechStarted,
    BufferSpeechStopped,
    BufferTimedOut,
    ConversationCreated,
    ConversationItemAdded,
    ConversationItemDone,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    Playing,
    RateLimits,
    Refused,
    ResponseCreated,
    ResponseDone,
    SessionConfig,
    SessionCreated,
    SessionEvent,
    SessionUpdated,
    ToneReceived,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    TranscriptionSegment,
    UnknownEvent,
)
from dragoman.wire.error import describe, error_object
from dragoman.wire.json import Fields, dense
from dragoman.wire.pieces import long

from .config import (
    decode_config,
    decode_response,
    encode_response,
    encode_session,
    reported,
)
from .items import decode_item, encode_item

Object = dict[str, JSON]

_TRANSCRIPTION = "conversation.item.input_audio_transcription"
_PLAIN: dict[type, str] = {
    ItemTruncated: "conversation.item.truncated",
    ItemDeleted: "conversation.item.deleted",
    BufferCleared: "input_audio_buffer.cleared",
    BufferSpeechStarted: "input_audio_buffer.speech_started",
    BufferSpeechStopped: "input_audio_buffer.speech_stopped",
    BufferTimedOut: "input_audio_buffer.timeout_triggered",
    TranscriptionDelta: f"{_TRANSCRIPTION}.delta",
    TranscriptionSegment: f"{_TRANSCRIPTION}.segment",
}
"""Events whose fields are those of the core, by the same names."""
_PLAIN_NAMES: dict[str, Any] = {name: kind for kind, name in _PLAIN.items()}

_DELTAS = {
    "text": "response.output_text.delta",
    "audio": "response.output_audio.delta",
    "transcript": "response.output_audio_transcript.delta",
    "arguments": "response.function_call_arguments.delta",
}
_DELTA_NAMES = {name: kind for kind, name in _DELTAS.items()}
_MCP_ARGUMENTS = "response.mcp_call_arguments"
_CLOSING = frozenset(
    (
        "response.output_text.done",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.function_call_arguments.done",
    )
)
"""Events that say again what the one behind them says: of the part, or of the item."""


# ---- encoding ------------------------------------------------------------------------------------


def encode_events(events: Iterable[SessionEvent], make_id: Callable[[], str]) -> list[Object]:
    """The server events of these, each under an id of its own."""
    return [
        {"type": kind, "event_id": make_id(), **fields}
        for event in events
        for kind, fields in _encode(event)
    ]


def _encode(event: SessionEvent) -> list[tuple[str, Object]]:
    if (plain := _PLAIN.get(type(event))) is not None:
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        if fields.get("logprobs", 0) is None:
            del fields["logprobs"]
        return [(plain, fields)]
    match event:
        case Answer():
            return _encode_answer(event)
        case SessionCreated(id=id, config=config, expires_at=expires):
            return [("session.created", {"session": encode_session(id, config, expires)})]
        case SessionUpdated(id=id, config=config, expires_at=expires, losses=losses):
            session = {"session": encode_session(id, config, expires)}
            return [("session.updated", {**session, **reported(losses)})]
        case ConversationCreated(id=id):
            conversation = {"id": id, "object": "realtime.conversation"}
            return [("conversation.created", {"conversation": conversation})]
        case ConversationItemAdded(item=item, previous_item_id=previous):
            item_fields = {"previous_item_id": previous, "item": encode_item(item)}
            return [("conversation.item.added", item_fields)]
        case ConversationItemDone(item=item, previous_item_id=previous):
            item_fields = {"previous_item_id": previous, "item": encode_item(item)}
            return [("conversation.item.done", item_fields)]
        case ItemRetrieved(item=item, losses=losses):
            retrieved = {"item": encode_item(item), **reported(losses)}
            return [("conversation.item.retrieved", retrieved)]
        case BufferCommitted(item_id=id, previous_item_id=previous, losses=losses):
            committed = {"item_id": id, "previous_item_id": previous, **reported(losses)}
            return [("input_audio_buffer.committed", committed)]
        case TranscriptionCompleted(item_id=id, content_index=index, transcript=text):
            usage = event.usage or {"type": "duration", "seconds": event.seconds}
            known = {"item_id": id, "content_index": index, "transcript": text, "usage": usage}
            return [(f"{_TRANSCRIPTION}.completed", {**known, **_logprobs(event.logprobs)})]
        case TranscriptionFailed(item_id=id, content_index=index, fault=fault):
            failed = {"item_id": id, "content_index": index, "error": dense(_error(fault))}
            return [(f"{_TRANSCRIPTION}.failed", failed)]
        case ResponseCreated(response=response):
            return [("response.created", {"response": encode_response(response)})]
        case ResponseDone(response=response):
            done = {"response": encode_response(response), **reported(response.losses)}
            return [("response.done", done)]
        case Playing(response_id=id, state=state):
            return [(f"output_audio_buffer.{state}", {"response_id": id})]
        case ToneReceived(tone=tone, received_at=at):
            return [("input_audio_buffer.dtmf_event_received", {"event": tone, "received_at": at})]
        case RateLimits(limits=limits):
            return [("rate_limits.updated", {"rate_limits": list(limits)})]
        case Refused(fault=fault, event_id=event_id):
            return [("error", {"error": {**_error(fault), "event_id": event_id}})]
        case UnknownEvent(kind=kind, value=value):
            return [(kind, value)]
    raise TypeError(type(event).__name__)  # pragma: no cover - all kinds are above


def _error(fault: Any) -> Object:
    """An error object whose code is always a string: clients of sockets tell errors by it."""
    error = error_object(fault)
    return {**error, "code": error["code"] or fault.code}


def _logprobs(value: JSON) -> Object:
    return dense({"logprobs": value})


def _encode_answer(answer: Answer) -> list[tuple[str, Object]]:
    event, kind = answer.event, answer.kind
    head: Object = {
        "response_id": answer.response_id,
        "item_id": answer.item_id,
        "output_index": getattr(event, "index", 0),
    }
    listed = {name: value for name, value in head.items() if name != "item_id"}
    match event:
        case Delta(kind="arguments", data=data) if kind == "mcp_call":
            return [(f"{_MCP_ARGUMENTS}.delta", {**head, "delta": data})]
        case Delta(kind="arguments", data=data):
            return [
                (_DELTAS["arguments"], {**head, "call_id": answer.call_id, "delta": long(data)})
            ]
        case Delta(kind=sense, part_index=number, data=data):
            return [(_DELTAS[sense], {**head, "content_index": number, "delta": long(data)})]
        case ItemAdded(item=item):
            return [("response.output_item.added", {**listed, "item": encode_item(item)})]
        case PartAdded(part_index=number, part=part):
            place = {**head, "content_index": number}
            return [("response.content_part.added", {**place, "part": _encode_part(part)})]
        case PartDone(part_index=number, part=part):
            place = {**head, "content_index": number}
            shown = _encode_part(part)
            whole = ("response.content_part.done", {**place, "part": shown})
            if not isinstance(part, Audio):
                return [("response.output_text.done", {**place, "text": shown["text"]}), whole]
            transcript = {**place, "transcript": long(part.transcript or "")}
            return [
                ("response.output_audio.done", place),
                ("response.output_audio_transcript.done", transcript),
                whole,
            ]
        case ItemDone(item=item):
            done = ("response.output_item.done", {**listed, "item": encode_item(item)})
            if isinstance(item, FunctionCall):
                call = {
                    "call_id": item.call_id,
                    "name": item.name,
                    "arguments": long(item.arguments),
                }
                return [("response.function_call_arguments.done", {**head, **call}), done]
            return [done]
        case Progress(state="raw", data={"realtime": {"arguments": arguments}}):
            return [(f"{_MCP_ARGUMENTS}.done", {**head, "arguments": arguments})]
        case Progress(state="in_progress" | "completed" | "failed" as state):
            del head["response_id"]
            if kind == "mcp_call":
                return [(f"response.mcp_call.{state}", head)]
            if kind == "mcp_list_tools":
                return [(f"mcp_list_tools.{state}", {"item_id": answer.item_id})]
    return []  # progress that the protocol has no event for


def _encode_part(part: Part) -> Object:
    if isinstance(part, Audio):
        return {"type": "audio", "transcript": long(part.transcript or "")}
    return {"type": "text", "text": long(getattr(part, "text", ""))}


# ---- decoding ------------------------------------------------------------------------------------


def decode_event(value: Object) -> list[SessionEvent]:
    """The events that a server event stands for: none for one that repeats what the next says. One
    that we do not know is carried unchanged, as is one that makes no sense."""
    kind = value.get("type")
    if not isinstance(kind, str) or kind in _CLOSING:
        return []
    rest = {name: each for name, each in value.items() if name not in ("type", "event_id")}
    try:
        if (plain := _PLAIN_NAMES.get(kind)) is not None:
            return [msgspec.convert(rest, plain)]
        if (decode := _DECODERS.get(kind)) is not None:
            return [decode(Fields(rest))]
        if kind.startswith("response."):
            return _decode_answer(kind, Fields(rest))
    except (FaultError, msgspec.ValidationError):
        pass
    return [UnknownEvent(kind, rest)]


def _session(fields: Fields) -> tuple[str, SessionConfig, int]:
    session = fields.object("session") or Fields({})
    id, expires = session.string("id") or "", session.integer("expires_at") or 0
    return id, SessionConfig(**{"turn_detection": None, **decode_config(session)}), expires


def _item(fields: Fields) -> Any:
    item = fields.object("item")
    if item is None:
        raise fields.wrong("item", "is missing")
    return decode_item(item)


def _number(fields: Fields, name: str = "content_index") -> int:
    return fields.integer(name, 0) or 0


def _conversation_id(fields: Fields) -> SessionEvent:
    conversation = fields.object("conversation") or Fields({})
    return ConversationCreated(conversation.string("id") or "")


def _completed(fields: Fields) -> SessionEvent:
    id, number = fields.need("item_id"), _number(fields)
    text, usage = fields.string("transcript") or "", fields.any("usage")
    seconds = 0.0
    match usage:
        case {"type": "duration", "seconds": int() | float() as length, **rest} if not rest:
            seconds, usage = float(length), None
    logprobs = fields.any("logprobs")
    return TranscriptionCompleted(id, number, text, seconds, usage, logprobs)


def _failed(fields: Fields) -> SessionEvent:
    fault = describe({"error": fields.mapping("error")}) or _UNEXPLAINED
    return TranscriptionFailed(fields.need("item_id"), _number(fields), fault)


def _refused(fields: Fields) -> SessionEvent:
    error = dict(fields.mapping("error") or {})
    event_id = error.pop("event_id", None)
    fault = describe({"error": error}) or _UNEXPLAINED
    return Refused(fault, event_id if isinstance(event_id, str) else None)


_UNEXPLAINED = Fault("upstream_error", "The session's server reported an error.", "upstream")


def _limits(fields: Fields) -> SessionEvent:
    limits = fields.array("rate_limits") or []
    return RateLimits(tuple([each for each in limits if isinstance(each, dict)]))


def _response(fields: Fields) -> Any:
    return decode_response(fields.object("response") or Fields({}))


def _tone(fields: Fields) -> SessionEvent:
    return ToneReceived(fields.need("event"), _number(fields, "received_at"))


def _listing(state: Any) -> Callable[[Fields], SessionEvent]:
    def decode(fields: Fields) -> SessionEvent:
        return Answer("", fields.need("item_id"), Progress(0, state), "mcp_list_tools")

    return decode


def _mcp_call(state: Any) -> Callable[[Fields], SessionEvent]:
    def decode(fields: Fields) -> SessionEvent:
        event = Progress(_number(fields, "output_index"), state)
        return Answer("", fields.need("item_id"), event, "mcp_call")

    return decode


def _playing(state: Any) -> Callable[[Fields], SessionEvent]:
    return lambda fields: Playing(fields.need("response_id"), state)


_DECODERS: dict[str, Callable[[Fields], SessionEvent]] = {
    "session.created": lambda fields: SessionCreated(*_session(fields)),
    "session.updated": lambda fields: SessionUpdated(*_session(fields)),
    "conversation.created": _conversation_id,
    # The beta dialect's, which says that an item is there and complete at once.
    "conversation.item.created": lambda fields: ConversationItemAdded(
        _item(fields), fields.string("previous_item_id")
    ),
    "conversation.item.added": lambda fields: ConversationItemAdded(
        _item(fields), fields.string("previous_item_id")
    ),
    "conversation.item.done": lambda fields: ConversationItemDone(
        _item(fields), fields.string("previous_item_id")
    ),
    "conversation.item.retrieved": lambda fields: ItemRetrieved(_item(fields)),
    "input_audio_buffer.committed": lambda fields: BufferCommitted(
        fields.need("item_id"), fields.string("previous_item_id")
    ),
    f"{_TRANSCRIPTION}.completed": _completed,
    f"{_TRANSCRIPTION}.failed": _failed,
    "input_audio_buffer.dtmf_event_received": _tone,
    "response.created": lambda fields: ResponseCreated(_response(fields)),
    "response.done": lambda fields: ResponseDone(_response(fields)),
    "rate_limits.updated": _limits,
    "error": _refused,
    **{
        f"output_audio_buffer.{state}": _playing(state)
        for state in ("started", "stopped", "cleared")
    },
    **{f"mcp_list_tools.{s}": _listing(s) for s in ("in_progress", "completed", "failed")},
    **{f"response.mcp_call.{s}": _mcp_call(s) for s in ("in_progress", "completed", "failed")},
}


def _decode_answer(kind: str, fields: Fields) -> list[SessionEvent]:
    """Something inside an answer."""
    response_id, index = fields.string("response_id") or "", _number(fields, "output_index")
    call_id = None
    of = "message"
    event: Event
    if kind in ("response.output_item.added", "response.output_item.done"):
        item = _item(fields)
        id, of = item_id(item), type_of(item)
        call_id = item.call_id if isinstance(item, FunctionCall) else None
        event = ItemAdded(index, item) if kind.endswith("added") else ItemDone(index, item)
        return [Answer(response_id, id, event, of, call_id)]
    id, number = fields.need("item_id"), _number(fields)
    if kind in _DELTA_NAMES:
        sense: Any = _DELTA_NAMES[kind]
        event = Delta(index, number, sense, fields.string("delta") or "")
        if sense == "arguments":
            of, call_id = "function_call", fields.string("call_id")
    elif kind == f"{_MCP_ARGUMENTS}.delta":
        of, event = "mcp_call", Delta(index, 0, "arguments", fields.string("delta") or "")
    elif kind == f"{_MCP_ARGUMENTS}.done":
        text = fields.string("arguments") or ""
        of, event = "mcp_call", Progress(index, "raw", {"realtime": {"arguments": text}})
    elif kind in ("response.content_part.added", "response.content_part.done"):
        given = fields.object("part") or Fields({})
        part: Text | Audio = Text(given.string("text") or "")
        if given.string("type") in ("audio", "output_audio"):
            part = Audio(format="pcm16", transcript=given.string("transcript") or "")
        done = kind.endswith("done")
        event = PartDone(index, number, part) if done else PartAdded(index, number, part)
    else:
        return [UnknownEvent(kind, {**fields.left(), "response_id": response_id, "item_id": id})]
    return [Answer(response_id, id, event, of, call_id)]
