"""Decodes Chat messages, parts, log-probabilities and annotations into items, and encodes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request, quoted
from dragoman.core.item import (
    JSON,
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
from dragoman.wire import json
from dragoman.wire.json import ABSENT, LIMITS, Limits, Reader, merge
from dragoman.wire.losses import Note
from dragoman.wire.pieces import LONG, Long, long, shortened
from dragoman.wire.protocol import Dialect

NAME = "chat"
"""The key of this wire in every `extra`."""


def to_extra(rest: dict[str, JSON], **nested: dict[str, JSON]) -> Extra | None:
    """The extra with unknown fields, and those of objects inside; None if there are none.

    >>> to_extra({"a": 1}, function={"b": 2}), to_extra({}, function={})
    ({'chat': {'a': 1, 'function': {'b': 2}}}, None)
    """
    kept = rest | {name: fields for name, fields in nested.items() if fields}
    return {NAME: kept} if kept else None


def from_extra(extra: Extra | None) -> dict[str, JSON]:
    """The unknown fields of this wire."""
    return extra.get(NAME, {}) if extra else {}


def restore(fields: dict[str, JSON], extra: Extra | None) -> dict[str, JSON]:
    """The fields, with the unknown ones added; existing fields are not overwritten.

    >>> restore({"id": "1", "function": {"name": "f"}}, to_extra({"id": "2"}, function={"b": 2}))
    {'id': '1', 'function': {'name': 'f', 'b': 2}}
    """
    return merge(fields, from_extra(extra)) if extra else fields


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
"""Part types that are not in the protocol, but that some servers accept; carried unchanged."""
NEW_TURN: Extra = {"turn": {"new": True}}
"""Marks an item that begins an assistant message right after another assistant message, which
would otherwise be taken for one."""

Content = str | tuple[Part, ...]
_Word = Annotated[str, Meta(min_length=1)]


# ---- the objects of the protocol ---------------------------------------------------------


class _TextPart(Struct, tag_field="type", tag="text"):
    text: str


class _RefusalPart(Struct, tag_field="type", tag="refusal"):
    refusal: str


class _ImagePart(Struct, tag_field="type", tag="image_url"):
    image_url: Raw


class _AudioPart(Struct, tag_field="type", tag="input_audio"):
    input_audio: Raw


class _FilePart(Struct, tag_field="type", tag="file"):
    file: Raw


class _ImageURL(Struct):
    url: _Word
    detail: str | None = None


class _Sound(Struct):
    data: _Word
    format: str | None = None


class _FileData(Struct):
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class _Message(Struct, tag_field="role", gc=False):
    """A message, by its role."""

    role: ClassVar[Role]
    content: str | list[Raw] | None = None
    name: str | None = None


class _System(_Message, tag="system"):
    role = "system"


class _Developer(_Message, tag="developer"):
    role = "developer"


class _User(_Message, tag="user"):
    role = "user"


class _Assistant(_Message, tag="assistant"):
    role = "assistant"
    tool_calls: list[Raw] | None = None
    refusal: str | None = None
    # Under any name, and of any shape: servers and clients vary.
    reasoning_content: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_details: list[JSON] | None = None
    audio: Raw = ABSENT
    function_call: Raw = ABSENT


class _Tool(Struct, tag_field="role", tag="tool", gc=False):
    tool_call_id: _Word
    content: str | list[Raw] | None = None


class _Function(Struct, tag_field="role", tag="function"):
    name: _Word
    content: str | list[Raw] | None = None


class _PastAudio(Struct):
    id: _Word
    data: str | None = None
    transcript: str | None = None
    expires_at: int | None = None


class _Call(Struct):
    id: _Word
    type: str | None = None
    function: Raw = ABSENT
    custom: Raw = ABSENT


class _FunctionCall(Struct):
    name: _Word
    arguments: str | dict[str, JSON] | None = None
    namespace: str | None = None


class _CustomCall(Struct):
    name: _Word
    input: str | None = None
    namespace: str | None = None


_image_url, _sound, _file_data = Reader(_ImageURL), Reader(_Sound), Reader(_FileData)
_function_calls, _custom_calls = Reader(_FunctionCall), Reader(_CustomCall)
_past_audio = Reader(_PastAudio)
_calls = Reader(
    _Call,
    type=Literal["function", "custom"] | None,
    function=_function_calls.strict,
    custom=_custom_calls.strict,
)
_parts = Reader[_TextPart | _RefusalPart | _ImagePart | _AudioPart | _FilePart](
    *(_TextPart, _RefusalPart, _ImagePart, _AudioPart, _FilePart),
    image_url=_image_url.strict,
    input_audio=_sound.strict,
    file=_file_data.strict,
)
message_reader = Reader[_Message | _Tool | _Function](
    *(_System, _Developer, _User, _Assistant, _Tool, _Function),
    content=str | _parts.strict_list | None,
    tool_calls=_calls.strict_list | None,
)


# ---- decoding ----------------------------------------------------------------------------


def decode_messages(data: Raw | list[Any], limits: Limits = LIMITS) -> tuple[Item, ...]:
    """The items of a conversation, by `message_reader`. Raises FaultError naming the message that
    is wrong."""
    items: list[Item] = []
    calls: dict[str, type[Item]] = {}  # the calls that results may refer to
    legacy: dict[str, str] = {}  # by function name: the id made up for its last call
    after_assistant = False
    unknown: dict[int, dict[str, JSON]] = {}
    if not isinstance(data, list):
        data, unknown = message_reader.read_all(data, "messages")
    if len(data) > limits.max_items:
        raise json.too_many("messages", limits.max_items, "max_items")
    for number, message in enumerate(data):
        rest = unknown.get(number, {})
        content: Content | None = message.content
        if isinstance(message.content, list):
            path = f"messages[{number}].content"
            if len(message.content) > limits.max_parts:
                raise json.too_many(path, limits.max_parts, "max_parts")
            content = tuple(
                [
                    Text(part.text)
                    if isinstance(part, _TextPart)
                    else _part(part, f"{path}[{place}]")
                    for place, part in enumerate(message.content)
                ]
            )
        if isinstance(message, _Assistant):
            turn = _assistant_items(message, content, rest, f"messages[{number}]")
            for item in turn if message.tool_calls or message.function_call is not ABSENT else ():
                match item:
                    case FunctionCall() | CustomToolCall():
                        calls[item.call_id] = type(item)
                        if message.tool_calls is None:
                            legacy[item.name] = item.call_id
                    case Unknown(value={"id": str(call_id)}):
                        calls[call_id] = Unknown
            if after_assistant:
                turn[0] = replace(turn[0], extra=(turn[0].extra or {}) | NEW_TURN)
            items += turn
            after_assistant = True
            continue
        after_assistant = False
        if isinstance(message, _Message):
            if content is None:
                raise FaultError(bad_request("is missing", f"messages[{number}].content"))
            extra = to_extra(rest) if rest else None
            items.append(Message(message.role, content, name=message.name, extra=extra))
        elif isinstance(message, _Tool):
            call_id = message.tool_call_id
            if call_id not in calls:
                problem = f"is {quoted(call_id)}, and no earlier call has that id"
                raise FaultError(bad_request(problem, f"messages[{number}].tool_call_id"))
            kind = CustomToolCallOutput if calls[call_id] is CustomToolCall else FunctionCallOutput
            items.append(kind(call_id, content or "", extra=to_extra(rest) if rest else None))
        else:
            if message.name not in legacy:
                problem = f"is {quoted(message.name)}, and no earlier call is to that function"
                raise FaultError(bad_request(problem, f"messages[{number}].name"))
            extra = to_extra({**rest, "name": message.name})
            items.append(FunctionCallOutput(legacy[message.name], content or "", extra=extra))
    if not items:
        raise FaultError(bad_request("is empty", "messages"))
    return tuple(items)


def _assistant_items(
    message: _Assistant, given: Content | None, rest: dict[str, JSON], path: str
) -> list[Item]:
    """The items of an assistant message; there is always one."""
    items: list[Item] = []
    if rest.get("annotations") == []:  # of an answer of ours, which some servers refuse
        del rest["annotations"]
    reasoning, details = None, message.reasoning_details
    for name in ("reasoning_content", "reasoning"):  # any other value is an unknown field
        if (raw := getattr(message, name)) is not ABSENT:
            value = json.value_of(raw)
            if isinstance(value, str) and not reasoning:
                reasoning = value
            elif value is not None and value != reasoning:
                rest[name] = value
    if reasoning is not None or details:
        json.check_depth(details)
        thoughts = () if reasoning is None else (Thought(reasoning),)
        extra = to_extra({"reasoning_details": details} if details else {})
        items.append(Reasoning(thoughts, extra=extra))
    calls: list[FunctionCall | CustomToolCall | Unknown] = []
    if message.tool_calls:
        calls = [_call(raw, f"{path}.tool_calls[{n}]") for n, raw in enumerate(message.tool_calls)]
    if message.function_call is not ABSENT and bytes(message.function_call) != b"null":
        if calls:
            rest["function_call"] = json.value_of(message.function_call)
        else:
            call, more = _function_calls.read(message.function_call, f"{path}.function_call")
            call_id = f"call_legacy_{path[9:-1]}"  # by the number of the message
            calls = [_function_call(call_id, call, to_extra({}, function=more))]
    content = None if given == () else given
    added: list[Part] = [Refusal(message.refusal)] if message.refusal else []
    if message.audio is not ABSENT:
        audio, more = _past_audio.read_optional(message.audio, f"{path}.audio")
        if audio is not None:
            at, transcript, extra = audio.expires_at, audio.transcript, to_extra(more)
            past = Audio(audio.data, id=audio.id, transcript=transcript, expires_at=at, extra=extra)
            added.append(past)
    if added:  # they are fields of their own on this wire
        content = (*(parts(content) if content else ()), *added)
    if content is not None or message.name or rest or not calls:
        if content is None:
            content = () if calls else ""
        extra = to_extra(rest) if rest else None
        items.append(Message("assistant", content, name=message.name, extra=extra))
    return items + calls


def _part(data: Any, path: str) -> Part:
    try:
        part, rest = _parts.read(data, path)
    except FaultError:
        value = json.load(bytes(data))
        if isinstance(value, dict) and str(value.get("type")) in VENDOR_PARTS:
            return UnknownPart(NAME, value)
        raise
    match part:
        case _TextPart():
            return Text(part.text, extra=to_extra(rest))
        case _RefusalPart():
            return Refusal(part.refusal, extra=to_extra(rest))
        case _ImagePart():
            inner: Any = part.image_url
            if isinstance(inner, Raw) and bytes(inner)[:1] == b'"':
                inner = Raw(b'{"url":%b}' % bytes(inner))  # seen in the wild, and unambiguous
            image, more = _image_url.read(inner, f"{path}.image_url")
            return Image(image.url, detail=image.detail, extra=to_extra(rest, image_url=more))
        case _AudioPart():
            sound, more = _sound.read(part.input_audio, f"{path}.input_audio")
            return Audio(sound.data, sound.format, extra=to_extra(rest, input_audio=more))
        case _:
            file, more = _file_data.read(part.file, f"{path}.file")
            if not file.file_id and not file.file_data:
                problem = "is missing, and so is file_id"
                raise FaultError(bad_request(problem, f"{path}.file.file_data"))
            extra = to_extra(rest, file=more)
            return File(file.file_id, file.file_data, filename=file.filename, extra=extra)


def _call(data: Any, path: str) -> FunctionCall | CustomToolCall | Unknown:
    call, rest = _calls.read(data, path)
    kind = call.type or "function"
    if kind not in ("function", "custom"):
        fields = json.value_of(data)
        return Unknown(NAME, kind, {name: v for name, v in fields.items() if name != "type"})
    inner, path = (call.function if kind == "function" else call.custom), f"{path}.{kind}"
    if inner is ABSENT:
        raise FaultError(bad_request("is missing", path))
    if kind == "function":
        function, more = _function_calls.read(inner, path)
        extra = to_extra(rest, function=more) if rest or more else None
        return _function_call(call.id, function, extra)
    custom, more = _custom_calls.read(inner, path)
    extra = to_extra(rest, custom=more)
    return CustomToolCall(call.id, custom.name, custom.input or "", custom.namespace, extra=extra)


def _function_call(call_id: str, call: _FunctionCall, extra: Extra | None) -> FunctionCall:
    arguments = call.arguments or ""
    if not isinstance(arguments, str):
        json.check_depth(arguments)
        arguments = json.text(arguments)
    return FunctionCall(call_id, call.name, arguments, call.namespace, extra=extra)


# ---- encoding ----------------------------------------------------------------------------


def encode_part(part: Part) -> dict[str, JSON]:
    """One part; one that this wire has no form for as text."""
    match part:
        case Text():
            return restore({"type": "text", "text": long(part.text)}, part.extra)
        case Refusal():
            return restore({"type": "refusal", "refusal": long(part.text)}, part.extra)
        case Image(url=str(url)):
            image = {"url": long(url)} | ({"detail": part.detail} if part.detail else {})
            return restore({"type": "image_url", "image_url": image}, part.extra)
        case Audio(data=str(data)):
            sound = {"data": long(data)} | ({"format": part.format} if part.format else {})
            return restore({"type": "input_audio", "input_audio": sound}, part.extra)
        case File() if part.file_id or part.data:
            names = (("file_id", part.file_id), ("file_data", part.data and long(part.data)))
            file = {name: value for name, value in (*names, ("filename", part.name)) if value}
            return restore({"type": "file", "file": file}, part.extra)
        case UnknownPart(wire=wire) if wire == NAME:
            return part.value
        case _:
            return {"type": "text", "text": describe(part)}


def parts(content: Content) -> tuple[Part, ...]:
    """The content as parts, in either form."""
    return (Text(content),) if isinstance(content, str) else content


def describe(part: Part) -> str:
    """A part as text, for models and servers that do not support it."""
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


PLACEHOLDER_REASONING = " "
"""A placeholder for reasoning that a server requires and that we do not have. Such servers
refuse the empty string; a text would be taken for the model's own."""


def encode_messages(items: Iterable[Item], dialect: Dialect, notes: list[Note]) -> list[JSON]:
    """The messages for these items; losses of the dialect are noted."""
    messages: list[JSON] = []
    turn: list[tuple[int, Any]] = []  # the items of an assistant message that is not complete yet
    moved: list[Part] = []  # parts of results that only a user message may have
    for index, item in enumerate((*items, None)):
        match item:
            case Message():
                inside = item.role == "assistant"
            case None:
                inside = False
            case Unknown(kind="compaction_trigger") | ItemReference() | Compaction():
                continue  # no request where it is not last; the others are refused before
            case _:
                inside = not isinstance(item, _OUTPUTS)
        if turn and not (inside and not (item and item.extra and item.extra.get("turn"))):
            messages.append(_assistant_message(turn, dialect, notes))
            turn = []
        if moved and not isinstance(item, _OUTPUTS):
            messages.append({"role": "user", "content": [encode_part(part) for part in moved]})
            moved = []
        if inside:
            turn.append((index, item))
            continue
        if isinstance(item, Message):
            given: JSON = item.content
            if not isinstance(given, str):
                given = _encode_parts(given, dialect, notes, index)
            elif len(given) > LONG:
                given = Long(given)
            message = {"role": item.role, "content": given}
            if item.name:
                message["name"] = item.name
        elif isinstance(item, _OUTPUTS):
            content = item.output
            if not isinstance(content, str):
                shown = [part for part in content if type(part) in _MEDIA]
                if shown:
                    moved += [Text(f"From the result of the tool call {item.call_id}:"), *shown]
                    content = tuple(
                        Text(f"[{kind}: see the next user message]") if kind else part
                        for part, kind in ((part, _MEDIA.get(type(part))) for part in content)
                    )
                given = _encode_parts(content, dialect, notes, index)
            else:
                given = long(content)
            message = {"role": "tool", "tool_call_id": item.call_id, "content": given}
        else:
            continue
        messages.append(message if item.extra is None else restore(message, item.extra))
    return messages


_OUTPUTS = (FunctionCallOutput, CustomToolCallOutput)
_MEDIA: dict[type, str] = {Image: "image", Audio: "audio", File: "file"}
"""Parts that are not allowed in the result of a tool."""


def _encode_parts(
    content: tuple[Part, ...], dialect: Dialect, notes: list[Note], index: int
) -> JSON:
    """Parts in the server's dialect: a list of texts, or files of it, may have to be a string."""
    if not dialect.content_parts and any(type(part) is File and part.text for part in content):
        why = "the text of a file is sent, as Chat has no files of text"
        notes.append(("items[*].content", "emulated", why, (index,)))
        content = tuple(map(_as_text, content))
    if dialect.content_parts or not {Text, Refusal}.issuperset(map(type, content)):
        return [encode_part(part) for part in content]
    if len(content) > 1:
        why = "the text is sent as one string; its parts are joined"
        notes.append(("items[*].content", "emulated", why, (index,)))
    return long("\n".join(map(describe, content)))


def _as_text(part: Part) -> Part:
    """The text of a file of text, behind its name; any other part as it is."""
    if not isinstance(part, File) or not (text := part.text):
        return part
    return Text(f"{part.filename}:\n\n{text}" if part.filename else text)


def _assistant_message(
    turn: list[tuple[int, Any]], dialect: Dialect, notes: list[Note]
) -> dict[str, JSON]:
    """Collects the assistant's items between two other messages into one message, without absent
    fields."""
    match turn:
        case [(_, Message(content=str(text), name=None, extra=None))]:  # as most of a history
            return {"role": "assistant", "content": text if len(text) <= LONG else Long(text)}
    contents: list[Content] = []
    reasoning: list[str] = []
    inline = ""  # reasoning in think tags runs into the text it belongs to with nothing between
    calls: list[JSON] = []
    more: dict[str, JSON] = {}
    for index, item in turn:
        content: Content | None = None
        match item:
            case FunctionCall() | CustomToolCall():
                if not dialect.call_extra and from_extra(item.extra):
                    why = "this server refuses fields of calls that it does not know"
                    notes.append(("items[*].extra", "dropped", why, (index,)))
                    item = replace(item, extra=None)
                calls.append(encode_call(item))
                continue
            case Unknown(wire=wire) if wire == NAME:
                calls.append({"type": item.kind, **item.value})
                continue
            case Unknown():
                content = (Text(f"[{item.kind}: {json.text(shortened(item.value))}]"),)
            case Message():
                content = item.content
                if not isinstance(content, str) and not dialect.content_parts:
                    _encode_parts(content, dialect, notes, index)  # notes its losses
                if item.name:
                    more.setdefault("name", item.name)
            case _:
                if dialect.reasoning_echo == "never":
                    why = "this server takes no reasoning back"
                    notes.append(("items[*].reasoning", "dropped", why, (index,)))
                if (tags := (item.extra or {}).get("inline")) is not None:
                    inline += tags.get("open", "") + item.text + tags.get("close", "")
                elif item.content or item.summary:
                    reasoning.append(item.text)
        if content is not None:
            contents.append(_prefixed(inline, content) if inline else content)
            inline = ""
        for name, value in from_extra(item.extra).items() if item.extra else ():
            have = more.get(name)
            if isinstance(have, list) and isinstance(value, list):
                more[name] = have + value
            else:
                more.setdefault(name, value)
    if inline:
        contents.append(inline)
    message: dict[str, JSON] = {"role": "assistant"}
    refusals: list[str] = []
    several = [content for content in contents if content != ()]
    whole: JSON = None
    if len(several) == 1 and isinstance(several[0], str):
        whole = several[0]
    elif several:
        kept: list[Part] = []
        for part in (part for content in several for part in parts(content)):
            match part:  # refusals and past audio have fields of their own on this wire
                case Refusal():
                    refusals.append(part.text)
                case Audio(id=str(id)):
                    message["audio"] = restore({"id": id}, part.extra)
                case Audio():
                    kept.append(Text(describe(part)))
                case _:
                    kept.append(part)
        whole = _encode_parts(tuple(kept), dialect, [], 0) if kept else None
    refusal = "".join(refusals)
    if whole is not None or not (calls or refusal or "audio" in message):
        message["content"] = long(whole) if isinstance(whole, str) else whole or ""
    if refusal:
        message["refusal"] = long(refusal)
    if dialect.reasoning_echo == "never":
        more.pop("reasoning_details", None)
    elif reasoning:
        message[dialect.reasoning_field] = long("\n\n".join(reasoning))
    if calls:
        message["tool_calls"] = calls
        if (missing := dialect.call_stand_in) and not any(missing.keys() & call for call in calls):
            calls[0] = {**calls[0], **missing}
    return merge(message, more) if more else message


def _prefixed(text: str, content: Content) -> Content:
    """The content with a text right before it."""
    match content:
        case str():
            return text + content
        case (Text() as first, *rest):
            return (replace(first, text=text + first.text), *rest)
        case _:
            return (Text(text), *content)


def encode_call(call: FunctionCall | CustomToolCall) -> dict[str, JSON]:
    """A call as an entry of `tool_calls`."""
    inner: dict[str, JSON] = {"name": call.name}
    if call.namespace:
        inner["namespace"] = call.namespace
    if isinstance(call, FunctionCall):
        inner["arguments"] = long(call.arguments)
        entry = {"id": call.call_id, "type": "function", "function": inner}
    else:
        inner["input"] = long(call.input)
        entry = {"id": call.call_id, "type": "custom", "custom": inner}
    return entry if call.extra is None else restore(entry, call.extra)


# ---- log-probabilities and annotations ---------------------------------------------------


def encode_logprobs(tokens: Sequence[Token]) -> list[JSON]:
    """The tokens with their alternatives."""
    return [
        _encode_token(token) | {"top_logprobs": [_encode_token(top) for top in token.top]}
        for token in tokens
    ]


def _encode_token(token: Token) -> dict[str, JSON]:
    fields: dict[str, JSON] = {} if token.id is None else {"id": token.id}
    fields |= {"token": token.text, "logprob": token.logprob}
    fields["bytes"] = None if token.bytes is None else list(token.bytes)
    return restore(fields, token.extra)


CITATION = "url_citation"


def decode_annotation(value: JSON) -> Annotation | None:
    """An annotation; None for an invalid one."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
        return None
    rest = {name: each for name, each in value.items() if name != "type" and each is not None}
    if kind != CITATION:
        return Annotation(kind, extra=to_extra(rest))
    if isinstance(rest.get(CITATION), dict):
        cited = dict(rest.pop(CITATION))
        rest.pop("index", None)  # its place in the list of a stream
    else:
        cited, rest = rest, {}  # without the inner object, as seen in the wild
    start, end = _taken(cited, "start_index", int), _taken(cited, "end_index", int)
    url, title = _taken(cited, "url", str), _taken(cited, "title", str)
    return Annotation(
        CITATION, start, end, url, title, extra=to_extra(rest, url_citation=json.dense(cited))
    )


def _taken(left: dict[str, JSON], name: str, wanted: type) -> JSON:
    return left.pop(name) if type(left.get(name)) is wanted else None


def encode_annotation(note: Annotation, offset: int = 0) -> JSON:
    """An annotation whose text begins at `offset`; None where this wire has no form for it."""
    if note.kind != CITATION:
        return {"type": note.kind, **from_extra(note.extra)} if from_extra(note.extra) else None
    places = {"start_index": note.start, "end_index": note.end}
    inner: dict[str, JSON] = {k: place + offset for k, place in places.items() if place is not None}
    inner |= json.dense({"url": note.url, "title": note.title})
    return restore({"type": CITATION, CITATION: inner}, note.extra)
