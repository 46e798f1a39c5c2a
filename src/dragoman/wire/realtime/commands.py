"""What clients send: the eleven client events, decoded into commands and encoded from them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dragoman.core.conversation import other_weight, take_sounds
from dragoman.core.error import Fault, FaultError, bad_request, quoted
from dragoman.core.item import JSON, Item
from dragoman.core.session_values import (
    Append,
    Cancel,
    Clear,
    ClearOutput,
    Command,
    Commit,
    Configure,
    CreateItem,
    Delete,
    Respond,
    Retrieve,
    SessionConfig,
    Truncate,
    Unreadable,
)
from dragoman.core.sound import from_base64
from dragoman.wire import json
from dragoman.wire.json import Fields, dense

from .config import (
    decode_config,
    decode_response_config,
    encode_config,
    encode_response_config,
)
from .items import decode_item, encode_item

MAX_AUDIO = 15 * 1024 * 1024
"""Bytes of sound in one `input_audio_buffer.append`."""
MAX_EVENT_ID = 512
"""Characters of a client's `event_id`."""
MAX_OTHER = 1024 * 1024
"""Characters of an item beside its texts: ids, names, and what is not known."""
NO_CONVERSATION = "none"


def decode_command(data: bytes) -> Command:
    """What a client's event asks for. It never raises: what makes no sense is a command too, which
    the session refuses."""
    try:
        value = json.load(data)
    except ValueError as error:
        return Unreadable(fault=bad_request(f"The event {error}."))
    if not isinstance(value, dict):
        problem = f"The event is {json.kind(value)}, and must be a JSON object."
        return Unreadable(fault=bad_request(problem))
    return command_of(value)


def command_of(value: dict[str, JSON]) -> Command:
    """The same of an event that is an object already."""
    fields = Fields(value)
    event_id: str | None = None
    try:
        event_id = fields.string("event_id")
        if event_id is not None and len(event_id) > MAX_EVENT_ID:
            event_id = None
            raise fields.wrong("event_id", f"has more than {MAX_EVENT_ID} characters")
        kind = fields.need("type")
        decode = _DECODERS.get(kind)
        if decode is None:
            problem = f"is {quoted(kind)}, which is no event of a client; they are "
            raise fields.wrong("type", problem + ", ".join(_DECODERS))
        return replace(decode(fields), event_id=event_id)
    except FaultError as error:
        return Unreadable(fault=error.fault, event_id=event_id)


def _configure(fields: Fields) -> Command:
    session = fields.object("session")
    if session is None:
        raise fields.wrong("session", "is missing")
    return Configure(changes=decode_config(session))


def _append(fields: Fields) -> Command:
    text = fields.string("audio")
    if text is None:
        raise fields.wrong("audio", "is missing")
    if len(text) > MAX_AUDIO * 4 // 3 + 4:
        message = f"audio: is more than {MAX_AUDIO} bytes of sound; send it in several events"
        raise FaultError(Fault("too_large", message, "client", "audio"))
    try:
        return Append(audio=from_base64(text))
    except ValueError:
        raise fields.wrong("audio", "is not base64") from None


def _item(fields: Fields) -> Item:
    item = decode_item(fields)
    if (size := other_weight(item)) > MAX_OTHER:
        problem = f"has {size} characters beside its texts, and may have {MAX_OTHER}"
        raise FaultError(Fault("too_large", f"item: {problem}", "client", "item"))
    return item


def _create(fields: Fields) -> Command:
    item = fields.object("item")
    if item is None:
        raise fields.wrong("item", "is missing")
    decoded = _item(item)
    if decoded.__struct_config__.tag == "item_reference":
        raise item.wrong("type", "is 'item_reference', which stands in the input of an answer only")
    # Decoded here: large frames are read in a thread, and sessions are not.
    decoded, sounds = take_sounds(decoded)
    previous = fields.string("previous_item_id")
    return CreateItem(item=decoded, previous_item_id=previous, sounds=sounds)


def _truncate(fields: Fields) -> Command:
    id, index = fields.need("item_id"), fields.integer("content_index", 0) or 0
    end = fields.integer("audio_end_ms", 0)
    if end is None:
        raise fields.wrong("audio_end_ms", "is missing")
    return Truncate(item_id=id, content_index=index, audio_end_ms=end)


def _respond(fields: Fields) -> Command:
    asked = fields.object("response")
    if asked is None:
        return Respond()
    conversation = asked.string("conversation") != NO_CONVERSATION
    input = None
    if "input" in asked:
        input = tuple([_item(item) for item in asked.objects("input")])
    metadata = asked.mapping("metadata")
    if metadata is not None:
        json.check_metadata(metadata, json.LIMITS)
    changes = decode_response_config(asked)
    return Respond(changes=changes, conversation=conversation, input=input, metadata=metadata)


_DECODERS: dict[str, Callable[[Fields], Command]] = {
    "session.update": _configure,
    "input_audio_buffer.append": _append,
    "input_audio_buffer.commit": lambda fields: Commit(),
    "input_audio_buffer.clear": lambda fields: Clear(),
    "output_audio_buffer.clear": lambda fields: ClearOutput(),
    "conversation.item.create": _create,
    "conversation.item.retrieve": lambda fields: Retrieve(item_id=fields.need("item_id")),
    "conversation.item.truncate": _truncate,
    "conversation.item.delete": lambda fields: Delete(item_id=fields.need("item_id")),
    "response.create": _respond,
    "response.cancel": lambda fields: Cancel(response_id=fields.string("response_id")),
}


def encode_command(command: Command) -> dict[str, JSON]:
    """A command as the event that asks for it. Raises FaultError for what the protocol has not."""
    fields = _encode(command)
    return fields if command.event_id is None else {**fields, "event_id": command.event_id}


def _encode(command: Command) -> dict[str, JSON]:
    match command:
        case Configure(changes=changes):
            return {"type": "session.update", "session": _encode_changes(changes)}
        case Append(audio=audio):
            text = b64encode(audio).decode()
            return {"type": "input_audio_buffer.append", "audio": text}
        case Commit():
            return {"type": "input_audio_buffer.commit"}
        case Clear():
            return {"type": "input_audio_buffer.clear"}
        case ClearOutput():
            return {"type": "output_audio_buffer.clear"}
        case CreateItem(item=item, previous_item_id=previous):
            event = {"type": "conversation.item.create", **dense({"previous_item_id": previous})}
            return {**event, "item": encode_item(item)}
        case Retrieve(item_id=id):
            return {"type": "conversation.item.retrieve", "item_id": id}
        case Truncate(item_id=id, content_index=index, audio_end_ms=end):
            event = {"type": "conversation.item.truncate", "item_id": id}
            return {**event, "content_index": index, "audio_end_ms": end}
        case Delete(item_id=id):
            return {"type": "conversation.item.delete", "item_id": id}
        case Respond(changes=changes, conversation=conversation, input=input, metadata=metadata):
            asked = encode_response_config(SessionConfig(**changes), changes)
            if not conversation:
                asked["conversation"] = NO_CONVERSATION
            if input is not None:
                asked["input"] = [encode_item(item) for item in input]
            asked |= dense({"metadata": metadata})
            return {"type": "response.create", **({"response": asked} if asked else {})}
        case Cancel(response_id=id):
            return {"type": "response.cancel", **dense({"response_id": id})}
        case _:
            problem = f"{type(command).__name__} is no event of the protocol"
            raise FaultError(bad_request(problem))


_PLACES: dict[str, tuple[str, ...]] = {
    "kind": ("type",),
    "modalities": ("output_modalities",),
    "input_format": ("audio", "input", "format"),
    "transcription": ("audio", "input", "transcription"),
    "noise_reduction": ("audio", "input", "noise_reduction"),
    "turn_detection": ("audio", "input", "turn_detection"),
    "output_format": ("audio", "output", "format"),
    "voice": ("audio", "output", "voice"),
    "speed": ("audio", "output", "speed"),
}
"""Where a configuration has what the core calls otherwise."""


def _encode_changes(changes: dict[str, Any]) -> dict[str, JSON]:
    """The fields of a configuration that are given, and no others."""
    known = {name: value for name, value in changes.items() if name != "extra"}
    whole = encode_config(SessionConfig(**{"turn_detection": None, **known}))
    session: dict[str, JSON] = {"type": whole["type"]}
    for name in known:
        *path, last = _PLACES.get(name, (name,))
        outer, source = session, whole
        for step in path:
            outer, source = outer.setdefault(step, {}), source[step]
        outer[last] = source.get(last)
    return json.merge(session, (changes.get("extra") or {}).get("realtime", {}))
