"""Content parts of messages, in both directions.

Content keeps the shape it had, a string or a list, so that a prompt that passes through stays
the same prompt. Which part may stand in which role is left to the models' servers.
"""

from __future__ import annotations

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import (
    JSON,
    Audio,
    File,
    Image,
    Part,
    Refusal,
    Summary,
    Text,
    Thought,
    UnknownPart,
)
from dragoman.wire import body
from dragoman.wire.body import Fields

from .extras import NAME, keep, restore

VENDOR_PARTS = frozenset(
    {
        "audio_url",
        "document",
        "image_embeds",
        "input_video",
        "redacted_thinking",
        "thinking",
        "video",
        "video_url",
    }
)
"""Part types that are not in the protocol and that some servers take; carried as they are."""

Content = str | tuple[Part, ...]


# ---- hearing -----------------------------------------------------------------------------


def decode(message: Fields, name: str = "content") -> Content | None:
    """The content of a message; None when there is none."""
    value = message.any(name)
    match value:
        case None | str():
            return value
        case list():
            path = message.at(name)
            return tuple(_part(each, f"{path}[{n}]") for n, each in enumerate(value))
        case _:
            problem = f"is {body.kind(value)}, and must be a string or an array of parts"
            raise message.wrong(name, problem)


def _part(value: JSON, path: str) -> Part:
    if not isinstance(value, dict):
        raise FaultError(bad_request(f"is {body.kind(value)}, and must be an object", path))
    part = Fields(value, path)
    match part.need("type"):
        case "text":
            return Text(_said(part, "text"), extra=keep(part.rest()))
        case "refusal":
            return Refusal(_said(part, "refusal"), extra=keep(part.rest()))
        case "image_url":
            return _image(part)
        case "input_audio":
            sound = _inner(part, "input_audio")
            data, format = sound.need("data"), sound.string("format")
            return Audio(data, format, extra=keep(part.rest(), input_audio=sound.rest()))
        case "file":
            return _file(part)
        case kind if kind in VENDOR_PARTS:
            return UnknownPart(NAME, value)
        case kind:
            raise part.wrong("type", f"is {kind!r}, which is no part of a message")


def _said(part: Fields, name: str) -> str:
    text = part.string(name)
    if text is None:
        raise part.wrong(name, "is missing")
    return text


def _inner(part: Fields, name: str) -> Fields:
    inner = part.object(name)
    if inner is None:
        raise part.wrong(name, "is missing")
    return inner


def _image(part: Fields) -> Image:
    given = part.any("image_url")
    if isinstance(given, str):  # seen in the wild, and clear enough
        given = {"url": given}
    if not isinstance(given, dict):
        raise part.wrong("image_url", f"is {body.kind(given)}, and must be an object with a url")
    image = Fields(given, part.at("image_url"))
    url, detail = image.need("url"), image.string("detail")
    return Image(url, detail=detail, extra=keep(part.rest(), image_url=image.rest()))


def _file(part: Fields) -> File:
    file = _inner(part, "file")
    file_id, data, filename = (file.string(n) for n in ("file_id", "file_data", "filename"))
    if not file_id and not data:
        raise file.wrong("file_data", "is missing, and so is file_id")
    return File(file_id, data, filename=filename, extra=keep(part.rest(), file=file.rest()))


# ---- telling -----------------------------------------------------------------------------


def encode(content: Content) -> JSON:
    """The content as it stood."""
    return content if isinstance(content, str) else [encode_part(part) for part in content]


def encode_part(part: Part) -> dict[str, JSON]:
    """One part. What this wire has no form for is said in words."""
    match part:
        case Text():
            return restore({"type": "text", "text": part.text}, part.extra)
        case Refusal():
            return restore({"type": "refusal", "refusal": part.text}, part.extra)
        case Image(url=str(url)):
            image = {"url": url} | ({"detail": part.detail} if part.detail else {})
            return restore({"type": "image_url", "image_url": image}, part.extra)
        case Audio(data=str(data)):
            sound = {"data": data} | ({"format": part.format} if part.format else {})
            return restore({"type": "input_audio", "input_audio": sound}, part.extra)
        case File() if part.file_id or part.data:
            names = (("file_id", part.file_id), ("file_data", part.data))
            file = {name: value for name, value in (*names, ("filename", part.filename)) if value}
            return restore({"type": "file", "file": file}, part.extra)
        case UnknownPart(wire=wire) if wire == NAME:
            return part.value
        case _:
            return {"type": "text", "text": describe(part)}


def parts(content: Content) -> tuple[Part, ...]:
    """The content as parts, whichever way it was given."""
    return (Text(content),) if isinstance(content, str) else content


def is_text(content: tuple[Part, ...]) -> bool:
    """Whether there is nothing but words in it."""
    return all(isinstance(part, Text | Refusal) for part in content)


def describe(part: Part) -> str:
    """A part in words, for readers who cannot take the part itself."""
    match part:
        case Text() | Refusal() | Thought() | Summary():
            return part.text
        case Image():
            return f"[image {part.file_id}]" if part.file_id else "[image]"
        case Audio():
            return part.transcript or "[audio]"
        case File():
            named = part.filename or part.url or part.file_id
            return f"[file {named}]" if named else "[file]"
        case _:
            return f"[{part.value.get('type', 'part')}]"
