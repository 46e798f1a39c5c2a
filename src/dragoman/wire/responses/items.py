"""Items and content parts of the Responses protocol, decoded and encoded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Event, ItemAdded, ItemDone
from dragoman.core.item import (
    JSON,
    Annotation,
    Audio,
    CallOutput,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    Extra,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemReference,
    ItemStatus,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Summary,
    Text,
    Thought,
    Token,
    Unknown,
    UnknownPart,
)
from dragoman.core.request import Request
from dragoman.wire import json
from dragoman.wire.json import Fields, kind

WIRE: Final = "responses"
"""The key of this wire in every `extra`."""


def to_extra(fields: dict[str, JSON]) -> Extra | None:
    """Unknown fields as an `extra`; None where there are none."""
    return {WIRE: fields} if fields else None


def from_extra(extra: Extra | None) -> dict[str, JSON]:
    """The unknown fields of this wire."""
    return extra.get(WIRE, {}) if extra else {}


def dense(fields: Mapping[str, JSON]) -> dict[str, JSON]:
    """Only the fields that were set.

    >>> dense({"id": None, "role": "user", "n": 0})
    {'role': 'user', 'n': 0}
    """
    return {name: value for name, value in fields.items() if value is not None}


def merge(base: dict[str, JSON], more: dict[str, JSON]) -> dict[str, JSON]:
    """Both; where both have an object under a name, the objects are merged.

    >>> merge({"text": {"verbosity": "low"}}, {"text": {"vendor": 1}, "vendor": 2})
    {'text': {'verbosity': 'low', 'vendor': 1}, 'vendor': 2}
    """
    merged = dict(base)
    for name, value in more.items():
        known = merged.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            merged[name] = merge(known, value)
        else:
            merged[name] = value
    return merged


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


# ---- decoding -----------------------------------------------------------------------------


def objects(values: list[JSON], path: str) -> Iterator[tuple[dict[str, JSON], str]]:
    """Every member of a list with its path. Raises FaultError for one that is no object."""
    for number, value in enumerate(values):
        at = f"{path}[{number}]"
        if not isinstance(value, dict):
            raise FaultError(bad_request(f"is {kind(value)}, and must be an object", at))
        yield value, at


def decode_parts(value: dict[str, JSON], path: str = "") -> Part:
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
                extra=to_extra(fields.rest()),
            )
        case "refusal":
            return Refusal(need_text(fields, "refusal"), extra=to_extra(fields.rest()))
        case "input_image":
            return _image(fields)
        case "input_file":
            return _file(fields)
        case "input_audio":
            sound = fields.object("input_audio")
            if sound is None:
                raise fields.wrong("input_audio", "is missing")
            data, format = sound.need("data"), sound.string("format")
            return Audio(data, format, extra=to_extra(fields.rest()))
        case "reasoning_text":
            return Thought(need_text(fields, "text"), extra=to_extra(fields.rest()))
        case "summary_text":
            return Summary(need_text(fields, "text"), extra=to_extra(fields.rest()))
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
    return Image(url, file_id, fields.string("detail"), to_extra(fields.rest()))


def _file(fields: Fields) -> File:
    file_id, data = fields.string("file_id"), fields.string("file_data")
    url, filename = fields.string("file_url"), fields.string("filename")
    if file_id is None and data is None and url is None:
        raise fields.wrong("file_data", "is missing")
    return File(file_id, data, url, filename, to_extra(fields.rest()))


def decode_annotations(values: JSON) -> tuple[Annotation, ...]:
    """The annotations of a text; what is no object is passed over."""
    return tuple(decode_annotation(value) for value in _dicts(values))


def decode_annotation(value: dict[str, JSON]) -> Annotation:
    """One annotation; a field of an unexpected type is kept as one we do not know."""
    known: dict[str, JSON] = {}
    rest: dict[str, JSON] = {}
    for name, encoded in value.items():
        ours, wanted = _NOTES.get(name, ("", object))
        if ours and isinstance(encoded, wanted) and not isinstance(encoded, bool):
            known[ours] = encoded
        elif name != "type" and encoded is not None:
            rest[name] = encoded
    return Annotation(str(value.get("type", "")), **known, extra=to_extra(rest))


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
    return Token(str(text), logprob, octets, top, extra=to_extra(dense(rest)))


# ---- encoding -----------------------------------------------------------------------------


def encode_parts(
    part: Part, text: str = "input_text", *, full: bool = False
) -> dict[str, JSON] | None:
    """One piece of content; None for one that belongs to another wire.

    `text` is what plain text is called where it stands. A `full` piece is one of an answer: it
    has the lists of annotations and probabilities also where they are empty.
    """
    match part:
        case Text():
            encoded: dict[str, JSON] = {"type": text, "text": part.text}
            if part.annotations or text == "output_text":
                encoded["annotations"] = [encode_annotation(note) for note in part.annotations]
            if part.tokens or full:
                encoded["logprobs"] = encode_tokens(part.tokens)
        case Refusal():
            encoded = {"type": "refusal", "refusal": part.text}
        case Thought():
            encoded = {"type": "reasoning_text", "text": part.text}
        case Summary():
            encoded = {"type": "summary_text", "text": part.text}
        case UnknownPart():
            return part.value if part.wire == WIRE else None
        case Audio():
            return encode_parts(
                Text(part.transcript or ""), text, full=full
            )  # no sound here, but words
        case _:
            encoded = dense(_media(part))
    return {**encoded, **from_extra(part.extra)}


def encode_all(
    parts: Iterable[Part], text: str = "input_text", *, full: bool = False
) -> list[dict[str, JSON]]:
    """Pieces of content in a row, those of other wires left out."""
    encoded = (encode_parts(part, text, full=full) for part in parts)
    return [part for part in encoded if part is not None]


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
    encoded = dense({name: getattr(note, ours) for name, (ours, _) in _NOTES.items()})
    return {"type": note.kind, **_REQUIRED.get(note.kind, {}), **encoded, **from_extra(note.extra)}


def encode_tokens(values: Iterable[Token]) -> list[dict[str, JSON]]:
    """Token probabilities. A token whose probability is not known is left
    out, as it cannot be encoded; bytes that are not known are those of the text."""
    return [
        {**_brief(token), "top_logprobs": [_brief(t) for t in token.top if t.logprob is not None]}
        for token in values
        if token.logprob is not None
    ]


def _brief(token: Token) -> dict[str, JSON]:
    octets = token.text.encode("utf-8", "replace") if token.bytes is None else token.bytes
    encoded = {"token": token.text, "logprob": token.logprob, "bytes": list(octets)}
    return {**encoded, **from_extra(token.extra)}


# ---- typed -------------------------------------------------------------------------------

_Name = Annotated[str, Meta(min_length=1)]


class _InputText(Struct, tag="input_text", forbid_unknown_fields=True):
    text: str


class _OutputText(Struct, tag="output_text", forbid_unknown_fields=True):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class _InputImage(Struct, tag="input_image", forbid_unknown_fields=True):
    image_url: str
    detail: str | None = None


class _SummaryText(Struct, tag="summary_text", forbid_unknown_fields=True):
    text: str


class _ReasoningText(Struct, tag="reasoning_text", forbid_unknown_fields=True):
    text: str


_Part = _InputText | _OutputText | _InputImage


class _Message(Struct, tag="message", forbid_unknown_fields=True):
    role: Role
    content: str | list[_Part]
    id: str | None = None
    status: ItemStatus | None = None
    phase: str | None = None


class _EasyMessage(Struct, forbid_unknown_fields=True):
    """A message without a type, as people write them."""

    role: Role
    content: str | list[_Part]


class _Reasoning(Struct, tag="reasoning", forbid_unknown_fields=True):
    summary: list[_SummaryText] = []
    content: list[_ReasoningText] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: ItemStatus | None = None


class _FunctionCall(Struct, tag="function_call", forbid_unknown_fields=True):
    call_id: _Name
    name: _Name
    arguments: str
    namespace: str | None = None
    id: str | None = None
    status: ItemStatus | None = None


class _CustomToolCall(Struct, tag="custom_tool_call", forbid_unknown_fields=True):
    call_id: _Name
    name: _Name
    input: str
    namespace: str | None = None
    id: str | None = None
    status: ItemStatus | None = None


class _Output(Struct, tag="function_call_output", forbid_unknown_fields=True):
    call_id: _Name
    output: str | list[_Part]
    id: str | None = None
    status: ItemStatus | None = None


class _CustomOutput(Struct, tag="custom_tool_call_output", forbid_unknown_fields=True):
    call_id: _Name
    output: str | list[_Part]
    id: str | None = None
    status: ItemStatus | None = None


_Typed = _Message | _Reasoning | _FunctionCall | _CustomToolCall | _Output | _CustomOutput
_read_typed = msgspec.json.Decoder(list[_Typed]).decode
_read_one = msgspec.json.Decoder(_Typed).decode
_read_easy = msgspec.json.Decoder(_EasyMessage).decode
_read_raw = msgspec.json.Decoder(list[Raw]).decode


def decode_typed(data: Raw) -> tuple[Item, ...]:
    """The items of an array. Those of a usual shape are decoded typed, in one step where all are;
    the others field by field. Raises FaultError or ValueError for what is wrong, without its place.
    """
    values: list[_Typed | _EasyMessage | Raw]
    try:
        values = [*_read_typed(data)]
    except msgspec.ValidationError:
        values = [_typed_or_raw(raw) for raw in _read_raw(data)]
    items: list[Item] = []
    for value in values:
        match value:
            case _Message():
                content = value.content if isinstance(value.content, str) else _parts(value.content)
                items.append(
                    Message(value.role, content, value.id, value.status, phase=value.phase)
                )
            case _FunctionCall(call_id, name, arguments, space, id, status):
                items.append(FunctionCall(call_id, name, arguments, space, id, status))
            case _Output(call_id, output, id, status):
                encoded = output if isinstance(output, str) else _parts(output)
                items.append(FunctionCallOutput(call_id, encoded, id, status))
            case _CustomToolCall(call_id, name, text, space, id, status):
                items.append(CustomToolCall(call_id, name, text, space, id, status))
            case _CustomOutput(call_id, output, id, status):
                encoded = output if isinstance(output, str) else _parts(output)
                items.append(CustomToolCallOutput(call_id, encoded, id, status))
            case _Reasoning(id=id, status=status, encrypted_content=encrypted):
                thoughts = tuple([Thought(part.text) for part in value.content or ()])
                summary = tuple([Summary(part.text) for part in value.summary])
                items.append(Reasoning(thoughts, summary, encrypted, id, status))
            case _EasyMessage():
                content = value.content if isinstance(value.content, str) else _parts(value.content)
                items.append(Message(value.role, content))
            case _:
                items += decode_all([json.value_of(value)], "input")
    return tuple(items)


def _typed_or_raw(raw: Raw) -> _Typed | _EasyMessage | Raw:
    for read in (_read_one, _read_easy):
        try:
            value: _Typed | _EasyMessage = read(raw)
        except msgspec.ValidationError:
            continue
        return value
    return raw


def _parts(parts: list[_Part]) -> tuple[Part, ...]:
    found: list[Part] = []
    for part in parts:
        if isinstance(part, _InputText):
            found.append(Text(part.text))
        elif isinstance(part, _InputImage):
            found.append(Image(part.image_url, None, part.detail))
        elif part.annotations or part.logprobs:
            json.check_depth([part.annotations, part.logprobs])
            notes, tokens = decode_annotations(part.annotations), decode_tokens(part.logprobs)
            found.append(Text(part.text, notes, tokens))
        else:
            found.append(Text(part.text))
    return tuple(found)


# ---- field by field ----------------------------------------------------------------------

ROLES = frozenset(get_args(Role))
_STATUSES = frozenset(get_args(ItemStatus))


# ---- decoding -----------------------------------------------------------------------------


def decode_all(values: list[JSON], path: str) -> tuple[Item, ...]:
    """The items of a list. Raises FaultError naming the item and the field that is wrong."""
    return tuple(decode_items(value, at) for value, at in objects(values, path))


def decode_items(value: dict[str, JSON], path: str = "") -> Item:
    """One item; without a type it is a message, or a reference where it has but an id."""
    fields = Fields(value, path)
    match fields.string("type"):
        case None if "role" not in fields and "content" not in fields and "id" in fields:
            return ItemReference(fields.need("id"), to_extra(fields.rest()))
        case None | "message":
            return _message(fields)
        case "reasoning":
            return _reasoning(fields)
        case "function_call":
            call_id, name = fields.need("call_id"), fields.need("name")
            encoded = need_text(fields, "arguments")
            space, id, status, extra = fields.string("namespace"), *_identity(fields)
            return FunctionCall(call_id, name, encoded, space, id, status, extra)
        case "custom_tool_call":
            call_id, name = fields.need("call_id"), fields.need("name")
            encoded = need_text(fields, "input")
            space, id, status, extra = fields.string("namespace"), *_identity(fields)
            return CustomToolCall(call_id, name, encoded, space, id, status, extra)
        case "function_call_output":
            return FunctionCallOutput(fields.need("call_id"), _output(fields), *_identity(fields))
        case "custom_tool_call_output":
            return CustomToolCallOutput(fields.need("call_id"), _output(fields), *_identity(fields))
        case "compaction":
            encrypted = need_text(fields, "encrypted_content")
            return Compaction(encrypted, fields.string("id"), to_extra(fields.rest()))
        case "item_reference":
            return ItemReference(fields.need("id"), to_extra(fields.rest()))
        case other:
            id = value.get("id")
            rest = {name: encoded for name, encoded in value.items() if name != "type"}
            return Unknown(WIRE, other, rest, id if isinstance(id, str) else None)


def _identity(fields: Fields) -> tuple[str | None, ItemStatus | None, Extra | None]:
    """What all items have: id, status, and what we do not know. A strange status is kept."""
    status = fields.string("status")
    known: ItemStatus | None = None
    match status:
        case "in_progress" | "completed" | "incomplete":
            known, status = status, None
    id = fields.string("id")
    return id, known, to_extra({**dense({"status": status}), **fields.rest()})


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
            return tuple(decode_parts(v, at) for v, at in objects(values, fields.at(name)))
        case value:
            raise fields.wrong(name, f"is {kind(value)}, and must be a string or an array")


def _output(fields: Fields) -> str | tuple[Part, ...]:
    if "output" not in fields:
        raise fields.wrong("output", "is missing")
    return _content(fields, "output")


def _reasoning(fields: Fields) -> Reasoning:
    thoughts = tuple(_thought(v, at) for v, at in _list(fields, "content"))
    summary = tuple(_summary(v, at) for v, at in _list(fields, "summary"))
    encrypted, (id, status, extra) = fields.string("encrypted_content"), _identity(fields)
    return Reasoning(thoughts, summary, encrypted, id, status, extra)


def _list(fields: Fields, name: str) -> Iterator[tuple[dict[str, JSON], str]]:
    return objects(fields.array(name) or [], fields.at(name))


def _thought(value: dict[str, JSON], path: str) -> Thought | UnknownPart:
    """Reasoning in words, also where a server spells it as the text of a message."""
    match decode_parts(value, path):
        case Thought() as part:
            return part
        case Text(text=text) | Summary(text=text):
            return Thought(text)
        case _:
            return UnknownPart(WIRE, value)


def _summary(value: dict[str, JSON], path: str) -> Summary | UnknownPart:
    match decode_parts(value, path):
        case Summary() as part:
            return part
        case Text(text=text) | Thought(text=text):
            return Summary(text)
        case _:
            return UnknownPart(WIRE, value)


# ---- encoding -----------------------------------------------------------------------------


def encode_items(item: Item, *, full: bool = False) -> dict[str, JSON] | None:
    """One item with the fields it has; None for one of another wire."""
    match item:
        case Message():
            encoded = _encode_message(item, full)
        case Reasoning():
            content = encode_all(item.content) or None
            summary = encode_all(item.summary)
            encoded = {"summary": summary, "content": content, "encrypted_content": item.encrypted}
        case FunctionCall():
            encoded = {"call_id": item.call_id, "name": item.name, "namespace": item.namespace}
            encoded["arguments"] = item.arguments
        case CustomToolCall():
            encoded = {"call_id": item.call_id, "name": item.name, "namespace": item.namespace}
            encoded["input"] = item.input
        case FunctionCallOutput() | CustomToolCallOutput():
            encoded = _encode_output(item)
        case Compaction():
            encoded = {"id": item.id, "encrypted_content": item.encrypted}
            return dense({"type": "compaction", **encoded, **from_extra(item.extra)})
        case ItemReference():
            return {"type": "item_reference", "id": item.id, **from_extra(item.extra)}
        case _:
            return {"type": item.kind, **item.value} if item.wire == WIRE else None
    identity = {"type": _TYPES[type(item)], "id": item.id, "status": item.status}
    return dense({**identity, **encoded, **from_extra(item.extra)})


_TYPES: dict[type, str] = {
    Message: "message",
    Reasoning: "reasoning",
    FunctionCall: "function_call",
    FunctionCallOutput: "function_call_output",
    CustomToolCall: "custom_tool_call",
    CustomToolCallOutput: "custom_tool_call_output",
}


def _encode_message(item: Message, full: bool) -> dict[str, JSON]:
    text = "output_text" if item.role == "assistant" else "input_text"
    content: JSON = item.content
    if full or not isinstance(item.content, str):
        content = encode_all(item.parts, text, full=full)
    return {"role": item.role, "content": content, "phase": item.phase}


def _encode_output(item: CallOutput) -> dict[str, JSON]:
    output = item.output
    encoded = output if isinstance(output, str) else encode_all(output)
    return {"call_id": item.call_id, "output": encoded}


def encode_output(item: Item, id: str) -> dict[str, JSON] | None:
    """One item of an answer, under this id; None for one that belongs to another wire."""
    match item:
        case Unknown():
            return {"type": item.kind, **item.value, "id": id} if item.wire == WIRE else None
        case Compaction() | ItemReference():
            return encode_items(replace(item, id=id))
        case _:
            return encode_items(replace(item, id=id, status=item.status or "completed"), full=True)


def hosted(item: Item) -> str | None:
    """What the events of an item's progress are called; None for an item that has none."""
    match item:
        case Unknown():
            return item.kind
        case Compaction():
            return "compaction"
        case _:
            return None


SEALED = "reasoning.encrypted_content"
"""The value of `include` that asks for encrypted reasoning."""


def hides(request: Request) -> bool:
    """Whether the answer to this request omits encrypted reasoning.

    >>> hides(Request(model="m", store=True)), hides(Request(model="m", store=False))
    (True, False)
    """
    return request.store is True and SEALED not in request.include


def shown(items: Iterable[Item], include: Collection[str] = ()) -> tuple[Item, ...]:
    """The items as shown to a client that asked to include this."""
    return tuple(items) if SEALED in include else tuple(map(_bare, items))


def without(event: Event) -> Event:
    """An event, without the encrypted content of the item in it."""
    if isinstance(event, ItemAdded | ItemDone):
        bare = _bare(event.item)
        return event if bare is event.item else replace(event, item=bare)
    return event


def _bare(item: Item) -> Item:
    encrypted = isinstance(item, Reasoning) and item.encrypted is not None
    return replace(item, encrypted=None) if encrypted else item
