"""Items and content parts of the Responses protocol, decoded and encoded."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request, hint, quoted
from dragoman.core.item import (
    JSON,
    RECORD,
    Annotation,
    Audio,
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
    objects,
)
from dragoman.wire import json
from dragoman.wire.json import ABSENT, LIMITS, Limits, Reader, dense, kind
from dragoman.wire.pieces import LONG, Long, long

WIRE: Final = "responses"
"""The key of this wire in every `extra`."""


def to_extra(fields: dict[str, JSON]) -> Extra | None:
    """Unknown fields as an `extra`; None where there are none."""
    return {WIRE: fields} if fields else None


def from_extra(extra: Extra | None) -> dict[str, JSON]:
    """The unknown fields of this wire."""
    return extra.get(WIRE, {}) if extra else {}


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


# ---- the objects of the protocol ---------------------------------------------------------

_Word = Annotated[str, Meta(min_length=1)]


class _InputText(Struct, tag="input_text"):
    text: str
    annotations: JSON = None
    logprobs: JSON = None


class _OutputText(_InputText, tag="output_text"):
    pass


class _PlainText(_InputText, tag="text"):
    pass


class _Refusal(Struct, tag="refusal"):
    refusal: str


class _Image(Struct, tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class _File(Struct, tag="input_file"):
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


class _Audio(Struct, tag="input_audio"):
    input_audio: Raw


class _Sound(Struct):
    data: _Word
    format: str | None = None


class _ReasoningText(Struct, tag="reasoning_text"):
    text: str


class _SummaryText(Struct, tag="summary_text"):
    text: str


class _Item(Struct, kw_only=True):
    id: str | None = None
    status: str | None = None


class _EasyMessage(_Item, kw_only=True):
    """A message without a type, as people write them."""

    role: str
    content: Raw = ABSENT
    phase: str | None = None


class _Message(_EasyMessage, tag="message"):
    pass


class _Reasoning(_Item, tag="reasoning", kw_only=True):
    content: Raw = ABSENT
    summary: Raw = ABSENT
    encrypted_content: str | None = None


class _FunctionCall(_Item, tag="function_call", kw_only=True):
    call_id: _Word
    name: _Word
    arguments: str
    namespace: str | None = None


class _CustomToolCall(_Item, tag="custom_tool_call", kw_only=True):
    call_id: _Word
    name: _Word
    input: str
    namespace: str | None = None


class _CallOutput(_Item, tag="function_call_output", kw_only=True):
    call_id: _Word
    output: Raw


class _CustomCallOutput(_CallOutput, tag="custom_tool_call_output"):
    pass


class _Compaction(Struct, tag="compaction"):
    encrypted_content: str
    id: str | None = None


class _ItemReference(Struct, tag="item_reference"):
    id: _Word


class _Head(Struct):
    """What tells the kinds of objects apart."""

    type: str | None = None
    id: JSON = None
    role: JSON = None
    content: Raw = ABSENT


_PARTS = (
    *(_InputText, _OutputText, _PlainText, _Refusal, _Image, _File, _Audio),
    *(_ReasoningText, _SummaryText),
)
_ITEMS = (
    *(_Message, _Reasoning, _FunctionCall, _CustomToolCall, _CallOutput, _CustomCallOutput),
    *(_Compaction, _ItemReference),
)
_KINDS = {each.__struct_config__.tag for each in (*_PARTS, *_ITEMS)}
CONTENT = "input_text, input_image, input_file, input_audio, output_text, refusal"
"""The kinds of content that errors name."""
_parts, _sound = Reader[Any](*_PARTS), Reader(_Sound)
_content_type = str | _parts.strict_list | None
_items = Reader[Any](*_ITEMS, content=_content_type, summary=_content_type, output=_content_type)
_easy = Reader(_EasyMessage, content=_content_type)
_read_items = msgspec.json.Decoder(_items.strict_list).decode
_read_easy = msgspec.json.Decoder(_easy.strict_list).decode
_read_head = msgspec.json.Decoder(_Head).decode
_read_array = msgspec.json.Decoder(list[Raw]).decode


# ---- decoding ----------------------------------------------------------------------------


def decode_items(data: bytes | Raw, path: str, limits: Limits = LIMITS) -> tuple[Item, ...]:
    """The items of an array, in one step where all are of a usual shape. Raises FaultError naming
    the item and the field that is wrong."""
    usual = True
    try:
        values = _read_items(data)
    except msgspec.ValidationError:
        try:
            values = _read_easy(data)
        except msgspec.ValidationError:
            usual, values = False, _read_array(data)
    if len(values) > limits.max_items:
        raise json.too_many(path, limits.max_items, "max_items")
    if not usual:
        return tuple([_read_item(raw, f"{path}[{n}]") for n, raw in enumerate(values)])
    return tuple([_item(value, {}, f"{path}[{n}]") for n, value in enumerate(values)])


def decode_item(value: dict[str, JSON], path: str = "") -> Item:
    """One item; without a type it is a message, or a reference where it has but an id. Raises
    FaultError naming the field that is wrong."""
    return _read_item(json.dump(value), path)


def _read_item(data: bytes | Raw, path: str) -> Item:
    head = _head(data, path)
    if head.type is None:
        if head.role is None and head.content is ABSENT and head.id:
            data = json.dump({**json.load(bytes(data)), "type": "item_reference"})
        else:
            return _item(*_easy.read(data, path), path)
    elif head.type not in _KINDS:
        if head.role and head.content is not ABSENT and hint(head.type, ("message",)):
            problem = f"is {quoted(head.type)}; did you mean message?"  # lost, were it let through
            raise _wrong(path, "type", problem)
        value = json.load(bytes(data))
        del value["type"]
        return Unknown(WIRE, head.type, value, head.id if isinstance(head.id, str) else None)
    return _item(*_items.read(data, path), path)


def _head(data: bytes | Raw, path: str) -> _Head:
    try:
        return _read_head(data)
    except msgspec.ValidationError as error:
        raise json.invalid(error, path) from None


def _wrong(path: str, name: str, problem: str = "is missing") -> FaultError:
    return FaultError(bad_request(problem, f"{path}.{name}".removeprefix(".")))


def _item(value: Any, rest: dict[str, JSON], path: str) -> Item:
    extra: Extra | None
    match value:
        case _Compaction():
            return Compaction(value.encrypted_content, value.id, to_extra(rest))
        case _ItemReference():
            return ItemReference(value.id, to_extra(rest))
    id, status = value.id, value.status
    if status not in _STATUSES:  # carried as it is
        rest, status = {"status": status, **rest}, None
    extra = {WIRE: rest} if rest else None
    match value:
        case _EasyMessage():
            role: Any = value.role
            if role not in _ROLES:
                problem = f"is {quoted(role)}, and must be one of {', '.join(_ROLES)}"
                raise _wrong(path, "role", problem)
            content = _content(value.content, path, "content")
            if content is None and role != "assistant":
                raise _wrong(path, "content")
            content = () if content is None else content
            return Message(role, content, id, status, phase=value.phase, extra=extra)
        case _FunctionCall(call_id=call_id, name=name):
            return FunctionCall(call_id, name, value.arguments, value.namespace, id, status, extra)
        case _CustomToolCall(call_id=call_id, name=name):
            return CustomToolCall(call_id, name, value.input, value.namespace, id, status, extra)
        case _Reasoning():
            thoughts = _texts(Thought, value.content, path, "content")
            summary = _texts(Summary, value.summary, path, "summary")
            return Reasoning(thoughts, summary, value.encrypted_content, id, status, extra)
        case _:
            output = _content(value.output, path, "output")
            if output is None:
                raise _wrong(path, "output")
            custom = isinstance(value, _CustomCallOutput)
            outputs = CustomToolCallOutput if custom else FunctionCallOutput
            return outputs(value.call_id, output, id, status, extra)


_ROLES = sorted(get_args(Role))
_STATUSES: tuple[ItemStatus | None, ...] = (None, "completed", "in_progress", "incomplete")


def _content(given: Any, path: str, name: str) -> str | tuple[Part, ...] | None:
    """A string, or parts; None where it is null or absent. It is decoded, or Raw where something in
    the item is unusual."""
    if isinstance(given, Raw) and bytes(memoryview(given)[:1]) != b"[":
        given = json.value_of(given)
    if given is None or isinstance(given, str):
        return given
    at = f"{path}.{name}".removeprefix(".")
    if isinstance(given, list):
        return tuple([_part(part, {}, f"{at}[{n}]") for n, part in enumerate(given)])
    if isinstance(given, Raw):
        return tuple([_read_part(raw, f"{at}[{n}]") for n, raw in enumerate(_read_array(given))])
    raise _wrong(path, name, f"is {kind(given)}, and must be a string or an array")


def _texts(wanted: type[Any], given: Any, path: str, name: str) -> tuple[Any, ...]:
    """Reasoning or its summary, also where a server spells it as the text of a message."""
    content = _content(given, path, name)
    if isinstance(content, str):
        raise _wrong(path, name, "is a string, and must be an array")
    found: list[Part] = []
    for part in content or ():
        match part:
            case UnknownPart():
                found.append(part)
            case Text(text=text) | Thought(text=text) | Summary(text=text):
                found.append(part if isinstance(part, wanted) else wanted(text))
            case _:
                found.append(UnknownPart(WIRE, encode_part(part) or {}))
    return tuple(found)


def decode_part(value: dict[str, JSON]) -> Part:
    """One piece of content. Raises FaultError naming the field that is missing or wrong."""
    return _read_part(json.dump(value), "")


def _read_part(data: bytes | Raw, path: str) -> Part:
    type = _head(data, path).type
    if not type:
        raise _wrong(path, "type", "is missing" if type is None else "is empty")
    if type not in _KINDS:
        return UnknownPart(WIRE, json.load(bytes(data)))
    return _part(*_parts.read(data, path), path)


def _part(value: Any, rest: dict[str, JSON], path: str) -> Part:
    extra: Extra | None = {WIRE: rest} if rest else None
    match value:
        case _InputText():
            if not (value.annotations or value.logprobs):
                return Text(value.text, extra=extra)
            json.check_depth([value.annotations, value.logprobs])
            notes, tokens = decode_annotations(value.annotations), decode_tokens(value.logprobs)
            return Text(value.text, notes, tokens, extra)
        case _Refusal():
            return Refusal(value.refusal, extra=extra)
        case _Image():
            if value.image_url is None and value.file_id is None:
                raise _wrong(path, "image_url")
            return Image(value.image_url, value.file_id, value.detail, extra)
        case _File():
            if value.file_id is None and value.file_data is None and value.file_url is None:
                raise _wrong(path, "file_data")
            return File(value.file_id, value.file_data, value.file_url, value.filename, extra)
        case _Audio():
            sound, _ = _sound.read(value.input_audio, f"{path}.input_audio")
            return Audio(sound.data, sound.format, extra=extra)
        case _ReasoningText():
            return Thought(value.text, extra=extra)
        case _:
            return Summary(value.text, extra=extra)


def decode_annotations(values: JSON) -> tuple[Annotation, ...]:
    """The annotations of a text; what is no object is passed over."""
    return tuple(decode_annotation(value) for value in objects(values))


def decode_annotation(value: dict[str, JSON]) -> Annotation:
    """One annotation; a field of an unexpected type counts as unknown."""
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
    return tuple(_token(value) for value in objects(values))


def _token(value: dict[str, JSON]) -> Token:
    rest = dict(value)
    text, logprob, raw = rest.pop("token", ""), rest.pop("logprob", None), rest.pop("bytes", None)
    top = decode_tokens(rest.pop("top_logprobs", None))
    if type(logprob) not in (int, float):
        logprob = None
    try:
        octets = bytes(raw) if isinstance(raw, list) else None
    except (TypeError, ValueError):
        octets = None
    return Token(str(text), logprob, octets, top, extra=to_extra(dense(rest)))


# ---- encoding ----------------------------------------------------------------------------

_TYPES: dict[type, str] = {
    Message: "message",
    Reasoning: "reasoning",
    FunctionCall: "function_call",
    FunctionCallOutput: "function_call_output",
    CustomToolCall: "custom_tool_call",
    CustomToolCallOutput: "custom_tool_call_output",
    Compaction: "compaction",
    ItemReference: "item_reference",
}


def encode_item(item: Item, id: str | None = None) -> dict[str, JSON] | None:
    """One item with the fields it has; None for one of another wire. With an id it is one of an
    answer, under this id and with all fields that its type demands."""
    if isinstance(item, Unknown):
        given = {} if id is None else {"id": id}
        return {"type": item.kind, **item.value, **given} if item.wire == WIRE else None
    full = id is not None
    encoded: dict[str, JSON] = {
        "type": _TYPES[type(item)],
        "id": id if full else item.id,
    }
    if not isinstance(item, Compaction | ItemReference):
        encoded["status"] = item.status or ("completed" if full else None)
    match item:
        case Message(content=content):
            text = "output_text" if item.role == "assistant" else "input_text"
            encoded["role"] = item.role
            if full or not isinstance(content, str):
                encoded["content"] = [
                    part
                    for each in ((Text(content),) if isinstance(content, str) else content)
                    if (part := encode_part(each, text, full=full)) is not None
                ]
            else:
                encoded["content"] = long(content)
            encoded["phase"] = item.phase
        case Reasoning():
            encoded["summary"] = _encode_parts(item.summary)
            encoded["content"] = _encode_parts(item.content) or None
            encoded["encrypted_content"] = item.encrypted
        case FunctionCall() | CustomToolCall():
            encoded |= {"call_id": item.call_id, "name": item.name, "namespace": item.namespace}
            if isinstance(item, FunctionCall):
                encoded["arguments"] = long(item.arguments)
            else:
                encoded["input"] = long(item.input)
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            encoded["call_id"] = item.call_id
            encoded["output"] = long(output) if isinstance(output, str) else _encode_parts(output)
        case Compaction():
            encoded["encrypted_content"] = item.encrypted
    if item.extra:
        encoded |= from_extra(item.extra)
    return {name: value for name, value in encoded.items() if value is not None}


def _encode_parts(parts: Iterable[Part]) -> list[dict[str, JSON]]:
    """Pieces of content in a row, those of other wires left out."""
    return [encoded for part in parts if (encoded := encode_part(part)) is not None]


def encode_part(
    part: Part, text: str = "input_text", *, full: bool = False
) -> dict[str, JSON] | None:
    """One piece of content; None for one that belongs to another wire.

    `text` is what plain text is called where it stands. A `full` piece is one of an answer: it
    has the lists of annotations and probabilities also where they are empty.
    """
    match part:
        case Text():
            encoded: dict[str, JSON] = {
                "type": text,
                "text": part.text if len(part.text) <= LONG else Long(part.text),
            }
            if part.annotations or text == "output_text":
                encoded["annotations"] = [encode_annotation(note) for note in part.annotations]
            if part.tokens or full:
                encoded["logprobs"] = long(encode_tokens(part.tokens)) if part.tokens else []
        case Refusal():
            encoded = {"type": "refusal", "refusal": long(part.text)}
        case Thought():
            encoded = {"type": "reasoning_text", "text": long(part.text)}
        case Summary():
            encoded = {"type": "summary_text", "text": long(part.text)}
        case UnknownPart():
            return part.value if part.wire == WIRE else None
        case Audio():  # no sound here, but words
            return encode_part(Text(part.transcript or ""), text, full=full)
        case Image():
            encoded = {"image_url": part.url, "file_id": part.file_id, "detail": part.detail}
            encoded = dense({"type": "input_image", **encoded})
        case _:
            encoded = {"file_id": part.file_id, "filename": part.name}
            encoded |= {"file_data": part.data, "file_url": part.url}
            encoded = dense({"type": "input_file", **encoded})
    return {**encoded, **from_extra(part.extra)} if part.extra else encoded


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


def hosted(item: Item) -> str | None:
    """What the events of an item's progress are called; None for an item that has none."""
    match item:
        case Unknown():
            return item.kind
        case Compaction():
            return "compaction"
        case _:
            return None


ENCRYPTED = "reasoning.encrypted_content"
"""The value of `include` that asks for encrypted reasoning."""


def shown(
    items: Iterable[Item], include: Collection[str] = (), *, encrypted: bool = False
) -> tuple[Item, ...]:
    """The items as shown to a client that asked to include this: reasoning without its encrypted
    content, unless that is included or `encrypted` content is shown anyway, and calls that this
    server ran without the results that are not included.

    >>> shown([Reasoning(encrypted="x")]) == (Reasoning(),)
    True
    """
    encrypted = encrypted or ENCRYPTED in include
    return tuple(
        [
            replace(item, encrypted=None)
            if type(item) is Reasoning and not encrypted
            else _without_results(item, include)
            if type(item) is Unknown and item.extra is not None and RECORD in item.extra
            else item
            for item in items
        ]
    )


RESULTS = {
    "code_interpreter_call": ("outputs",),
    "file_search_call": ("results",),
    "web_search_call": ("results", "action.sources"),
}
"""The fields of items of hosted tools that a client sees only where it includes them."""


def _without_results(item: Unknown, include: Collection[str]) -> Unknown:
    value = {**item.value}
    for name in RESULTS.get(item.kind, ()):
        if f"{item.kind}.{name}" not in include:
            first, _, rest = name.partition(".")
            if rest and isinstance(inside := value.get(first), dict):
                value[first] = {key: each for key, each in inside.items() if key != rest}
            elif first in value and not rest:
                value[first] = None
    return replace(item, value=value)


# ---- values, as other servers spell them -------------------------------------------------

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Calls, and the field of what they are called with."""

_TEXTUAL = frozenset({"output_text", "refusal", "reasoning_text", "summary_text"})
"""Kinds of content that are words."""


def lenient_item(value: dict[str, JSON]) -> Item:
    """The item that is meant. A call may still have an empty name or call id."""
    given = value.get("type")
    kind = given if isinstance(given, str) else "message"
    try:
        if kind in _CALLS:
            return _lenient_call(value, _CALLS[kind])
        return decode_item(_repaired({**value, "type": kind}, kind))
    except FaultError:
        rest = {name: encoded for name, encoded in value.items() if name != "type"}
        id = value.get("id")
        return Unknown(WIRE, kind, rest, id if isinstance(id, str) else None)


def _lenient_call(value: dict[str, JSON], field: str) -> Item:
    """A call with what it has; the ids it lacks are given to it when it is opened."""
    given = value.get(field)
    text = given if isinstance(given, str) else "" if given is None else json.text(given)
    call_id, name = value.get("call_id") or value.get("id") or "", value.get("name") or ""
    call = decode_item({**value, field: text, "call_id": call_id or "?", "name": name or "?"})
    return replace(call, call_id=call_id, name=name)


def _repaired(value: dict[str, JSON], kind: str) -> dict[str, JSON]:
    match kind:
        case "message":
            role = next((role for role in get_args(Role) if role == value.get("role")), "assistant")
            return {**value, "role": role, "content": _lenient_content(value.get("content"), None)}
        case "reasoning":
            content = _lenient_content(value.get("content"), "reasoning_text")
            summary = _lenient_content(value.get("summary"), "summary_text")
            return {**value, "content": content, "summary": summary}
        case "function_call_output" | "custom_tool_call_output" if value.get("output") is None:
            return {**value, "output": ""}
        case "compaction":
            return {**value, "encrypted_content": value.get("encrypted_content") or ""}
        case _:
            return value


def _lenient_content(given: JSON, kind: str | None) -> JSON:
    """Content as a list of pieces; a bare string stays one where no `kind` of piece is wanted."""
    match given:
        case str():
            return given if kind is None else [{"type": kind, "text": given}]
        case list(pieces):
            return [_piece(piece) for piece in pieces if isinstance(piece, dict)]
        case _:
            return []


def _piece(value: dict[str, JSON]) -> dict[str, JSON]:
    given = value.get("type")
    kind = given if isinstance(given, str) else "output_text"
    field = "refusal" if kind == "refusal" else "text"
    if kind in _TEXTUAL and not isinstance(value.get(field), str):
        return {**value, "type": kind, field: ""}
    return {**value, "type": kind}


def lenient_part(value: JSON, kind: str | None = None) -> Part | None:
    """The piece of content that is meant, if there is one; `kind` overrules its own."""
    if not isinstance(value, dict):
        return None
    try:
        return decode_part(_piece({**value, "type": kind} if kind else value))
    except FaultError:
        return None
