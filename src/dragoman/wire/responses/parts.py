"""Pieces of content in the Responses protocol's spelling, read and written.

Text, refusals, images, files, reasoning, and what hangs on text: annotations and token
probabilities. Knows nothing of the item a piece stands in, except what text is called there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import (
    JSON,
    Annotation,
    Audio,
    File,
    Image,
    Part,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    UnknownPart,
)
from dragoman.wire.body import Fields, kind

from .extras import WIRE, dense, keep, kept

VENDOR_PARTS = frozenset({"input_video", "video_url", "audio_url", "computer_screenshot"})
"""Kinds of content that servers beside OpenAI's know; any other unknown kind is a mistake."""

_NOTES: dict[str, tuple[str, type]] = {
    "start_index": ("start", int),
    "end_index": ("end", int),
    "url": ("url", str),
    "title": ("title", str),
    "file_id": ("file_id", str),
    "filename": ("filename", str),
    "container_id": ("container_id", str),
    "index": ("index", int),
}
"""The fields of an annotation: their name on the wire, ours, and their type."""

_REQUIRED: dict[str, dict[str, JSON]] = {
    "url_citation": {"url": "", "start_index": 0, "end_index": 0, "title": ""},
    "file_citation": {"file_id": "", "filename": "", "index": 0},
    "container_file_citation": {
        "container_id": "",
        "file_id": "",
        "filename": "",
        "start_index": 0,
        "end_index": 0,
    },
    "file_path": {"file_id": "", "index": 0},
}
"""Fields the protocol's types demand of an annotation, and what stands for one not known."""


# ---- reading -----------------------------------------------------------------------------


def objects(values: list[JSON], path: str) -> Iterator[tuple[dict[str, JSON], str]]:
    """Every member of a list with its path. Raises FaultError for one that is no object."""
    for number, value in enumerate(values):
        at = f"{path}[{number}]"
        if not isinstance(value, dict):
            raise FaultError(bad_request(f"is {kind(value)}, and must be an object", at))
        yield value, at


def decode(value: dict[str, JSON], path: str = "") -> Part:
    """One piece of content. An unknown kind becomes an `UnknownPart`.

    Raises FaultError naming the field that is missing or of the wrong type.
    """
    fields = Fields(value, path)
    match fields.need("type"):
        case "input_text" | "output_text" | "text":
            return Text(
                need_text(fields, "text"),
                annotations=decode_annotations(fields.any("annotations")),
                tokens=decode_tokens(fields.any("logprobs")),
                extra=keep(fields.rest()),
            )
        case "refusal":
            return Refusal(need_text(fields, "refusal"), extra=keep(fields.rest()))
        case "input_image":
            return _image(fields)
        case "input_file":
            return _file(fields)
        case "input_audio":
            sound = fields.object("input_audio")
            if sound is None:
                raise fields.wrong("input_audio", "is missing")
            data, format = sound.need("data"), sound.string("format")
            return Audio(data, format, extra=keep(fields.rest()))
        case "reasoning_text":
            return Thought(need_text(fields, "text"), extra=keep(fields.rest()))
        case "summary_text":
            return Summary(need_text(fields, "text"), extra=keep(fields.rest()))
        case _:
            return UnknownPart(WIRE, value)


def need_text(fields: Fields, name: str) -> str:
    """A string that must be there and may be empty."""
    text = fields.string(name)
    if text is None:
        raise fields.wrong(name, "is missing")
    return text


def _image(fields: Fields) -> Image:
    url, file_id = fields.string("image_url"), fields.string("file_id")
    if url is None and file_id is None:
        raise fields.wrong("image_url", "is missing")
    return Image(url, file_id, fields.string("detail"), keep(fields.rest()))


def _file(fields: Fields) -> File:
    file_id, data = fields.string("file_id"), fields.string("file_data")
    url, filename = fields.string("file_url"), fields.string("filename")
    if file_id is None and data is None and url is None:
        raise fields.wrong("file_data", "is missing")
    return File(file_id, data, url, filename, keep(fields.rest()))


def decode_annotations(values: JSON) -> tuple[Annotation, ...]:
    """The annotations of a text; what is no object is passed over."""
    return tuple(decode_annotation(value) for value in _dicts(values))


def decode_annotation(value: dict[str, JSON]) -> Annotation:
    """One annotation; a field of an unexpected type is kept as one we do not know."""
    known: dict[str, JSON] = {}
    rest: dict[str, JSON] = {}
    for name, said in value.items():
        ours, wanted = _NOTES.get(name, ("", object))
        if ours and isinstance(said, wanted) and not isinstance(said, bool):
            known[ours] = said
        elif name != "type" and said is not None:
            rest[name] = said
    return Annotation(str(value.get("type", "")), **known, extra=keep(rest))


def decode_tokens(values: JSON) -> tuple[Token, ...]:
    """Token probabilities; what is no object is passed over."""
    return tuple(_token(value) for value in _dicts(values))


def _dicts(values: JSON) -> list[dict[str, JSON]]:
    return [v for v in values if isinstance(v, dict)] if isinstance(values, list) else []


def _token(value: dict[str, JSON]) -> Token:
    rest = dict(value)
    text, logprob, raw = rest.pop("token", ""), rest.pop("logprob", None), rest.pop("bytes", None)
    top = decode_tokens(rest.pop("top_logprobs", None))
    if not isinstance(logprob, int | float):
        logprob = None
    try:
        octets = bytes(raw) if isinstance(raw, list) else None
    except (TypeError, ValueError):
        octets = None
    return Token(str(text), logprob, octets, top, extra=keep(dense(rest)))


# ---- writing -----------------------------------------------------------------------------


def encode(part: Part, text: str = "input_text", *, full: bool = False) -> dict[str, JSON] | None:
    """One piece of content; None for one that belongs to another wire.

    `text` is what plain text is called where it stands. A `full` piece is one of an answer: it
    has the lists of annotations and probabilities also where they are empty.
    """
    match part:
        case Text():
            said: dict[str, JSON] = {"type": text, "text": part.text}
            if part.annotations or text == "output_text":
                said["annotations"] = [encode_annotation(note) for note in part.annotations]
            if part.tokens or full:
                said["logprobs"] = encode_tokens(part.tokens)
        case Refusal():
            said = {"type": "refusal", "refusal": part.text}
        case Thought():
            said = {"type": "reasoning_text", "text": part.text}
        case Summary():
            said = {"type": "summary_text", "text": part.text}
        case UnknownPart():
            return part.value if part.wire == WIRE else None
        case Audio():
            return encode(Text(part.transcript or ""), text, full=full)  # no sound here, but words
        case _:
            said = dense(_media(part))
    return {**said, **kept(part.extra)}


def encode_all(
    parts: Iterable[Part], text: str = "input_text", *, full: bool = False
) -> list[dict[str, JSON]]:
    """Pieces of content in a row, those of other wires left out."""
    said = (encode(part, text, full=full) for part in parts)
    return [part for part in said if part is not None]


def _media(part: Image | File) -> dict[str, JSON]:
    match part:
        case Image():
            return {
                "type": "input_image",
                "image_url": part.url,
                "file_id": part.file_id,
                "detail": part.detail,
            }
        case _:
            return {
                "type": "input_file",
                "file_id": part.file_id,
                "filename": part.filename,
                "file_data": part.data,
                "file_url": part.url,
            }


def encode_annotation(note: Annotation) -> dict[str, JSON]:
    """One annotation, with every field its type demands."""
    said = dense({name: getattr(note, ours) for name, (ours, _) in _NOTES.items()})
    return {"type": note.kind, **_REQUIRED.get(note.kind, {}), **said, **kept(note.extra)}


def encode_tokens(values: Iterable[Token]) -> list[dict[str, JSON]]:
    """Token probabilities. A token whose probability is not known cannot be said and is left out;
    bytes that are not known are those of the text."""
    return [
        {**_brief(token), "top_logprobs": [_brief(t) for t in token.top if t.logprob is not None]}
        for token in values
        if token.logprob is not None
    ]


def _brief(token: Token) -> dict[str, JSON]:
    octets = token.text.encode("utf-8", "replace") if token.bytes is None else token.bytes
    said = {"token": token.text, "logprob": token.logprob, "bytes": list(octets)}
    return {**said, **kept(token.extra)}
