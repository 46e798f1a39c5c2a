"""The beta dialect of the protocol, rewritten to GA and back, event by event.

Both sides of a connection may speak it: older clients, and servers that copied it. What is not
named here is alike in both.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.core.item import JSON

Object = dict[str, JSON]

_PLACES: dict[str, tuple[str, ...]] = {
    "modalities": ("output_modalities",),
    "voice": ("audio", "output", "voice"),
    "output_audio_format": ("audio", "output", "format"),
    "speed": ("audio", "output", "speed"),
    "input_audio_format": ("audio", "input", "format"),
    "input_audio_transcription": ("audio", "input", "transcription"),
    "input_audio_noise_reduction": ("audio", "input", "noise_reduction"),
    "turn_detection": ("audio", "input", "turn_detection"),
    "max_response_output_tokens": ("max_output_tokens",),
}
"""Fields of the flat beta session, and where GA has them."""
_FORMATS: dict[str, Object] = {
    "pcm16": {"type": "audio/pcm", "rate": 24_000},
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
}
_FORMAT_NAMES = {value["type"]: name for name, value in _FORMATS.items()}
_EVENTS = {
    f"response.{old}.{step}": f"response.{new}.{step}"
    for old, new in (
        ("text", "output_text"),
        ("audio", "output_audio"),
        ("audio_transcript", "output_audio_transcript"),
    )
    for step in ("delta", "done")
}
_EVENTS |= {
    f"transcription_session.{step}": f"session.{step}" for step in ("created", "updated", "update")
}
_OLD_EVENTS = {new: old for old, new in _EVENTS.items() if not old.startswith("transcription")}
_PARTS = {"text": "output_text", "audio": "output_audio"}
_OLD_PARTS = {new: old for old, new in _PARTS.items()}


def to_ga(event: Object) -> list[Object]:
    """The GA events of one of the beta dialect, whichever side it is of."""
    kind = event.get("type")
    event = {**event, "type": _EVENTS.get(str(kind), kind)}
    if isinstance(session := event.get("session"), dict):
        known = _nested(session)
        transcribes = str(kind).startswith("transcription_session")
        event["session"] = {"type": "transcription" if transcribes else "realtime", **known}
    if isinstance(response := event.get("response"), dict):
        event["response"] = _nested(response)
        _rewrite_items(event["response"], _PARTS)
    _rewrite_items(event, _PARTS)
    if kind == "conversation.item.created":
        # An item that is answered is done later, with `response.output_item.done`.
        added = {**event, "type": "conversation.item.added"}
        if isinstance(item := event.get("item"), dict) and item.get("status") == "in_progress":
            return [added]
        return [added, {**event, "type": "conversation.item.done"}]
    return [event]


def to_beta(event: Object) -> list[Object]:
    """The beta events of one of GA, whichever side it is of; none for one that beta has not."""
    kind = event.get("type")
    if kind == "conversation.item.done":
        return []
    if kind == "conversation.item.added":
        kind = "conversation.item.created"
    event = {**event, "type": _OLD_EVENTS.get(str(kind), kind)}
    if isinstance(session := event.get("session"), dict):
        transcribes = session.get("type") == "transcription"
        event["session"] = _flat(session, limit="max_response_output_tokens")
        event["session"].pop("type", None)
        if transcribes and str(kind).startswith("session."):
            event["type"] = f"transcription_{kind}"
    if isinstance(response := event.get("response"), dict):
        event["response"] = _flat(response, limit="max_output_tokens")
        _rewrite_items(event["response"], _OLD_PARTS)
        if "status" in response:  # readers of its time insist on these
            event["response"] = {"status_details": None, "usage": None, **event["response"]}
    _rewrite_items(event, _OLD_PARTS)
    return [event]


def _rewrite_items(event: Object, names: dict[str, str]) -> None:
    """Rename the kinds of content in the items of an event or an answer: assistants' only."""
    for field in ("item", "output", "input"):
        value = event.get(field)
        if isinstance(value, dict):
            event[field] = _with_parts(value, names)
        elif isinstance(value, list):
            event[field] = [_with_parts(item, names) for item in value]


def _with_parts(item: JSON, names: dict[str, str]) -> JSON:
    if not isinstance(item, dict) or item.get("role") != "assistant":
        return item
    content = item.get("content")
    if not isinstance(content, list):
        return item
    parts = [
        {**part, "type": names.get(kind, kind)}
        if isinstance(part, dict) and isinstance(kind := part.get("type"), str)
        else part
        for part in content
    ]
    return {**item, "content": parts}


def _nested(flat: Object) -> Object:
    """A session or an answer as GA has it."""
    nested: Object = {}
    for name, value in flat.items():
        if name not in _PLACES:
            nested[name] = value
            continue
        *path, last = _PLACES[name]
        outer = nested
        for step in path:
            if not isinstance(outer.get(step), dict):
                outer[step] = {}
            outer = outer[step]
        outer[last] = _change(name, value, _to_ga)
    return nested


def _flat(nested: Object, *, limit: str) -> Object:
    """A session or an answer as the beta dialect has it; `limit` is what it calls its limit of
    tokens."""
    flat = {name: value for name, value in nested.items() if name != "audio"}
    for name, (*path, last) in _PLACES.items():
        source: JSON = nested
        for step in path:
            source = source.get(step) if isinstance(source, dict) else None
        if isinstance(source, dict) and last in source:
            if not path:
                del flat[last]
            name = limit if name == "max_response_output_tokens" else name
            flat[name] = _change(name, source[last], _to_beta)
    return flat


def _change(name: str, value: JSON, change: Callable[[str, JSON], JSON]) -> JSON:
    return value if value is None else change(name, value)


def _to_ga(name: str, value: JSON) -> JSON:
    if name.endswith("audio_format"):
        return _FORMATS.get(value, value) if isinstance(value, str) else value
    if name == "modalities" and isinstance(value, list):
        return ["audio"] if "audio" in value else value
    return value


def _to_beta(name: str, value: JSON) -> JSON:
    if name.endswith("audio_format") and isinstance(value, dict):
        kind = value.get("type")
        return _FORMAT_NAMES.get(kind, value) if isinstance(kind, str) else value
    if name == "modalities" and isinstance(value, list):
        return ["text", "audio"] if "audio" in value else value
    return value
