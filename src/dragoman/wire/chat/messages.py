"""Chat messages and their content parts, decoded into items and encoded from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import (
    JSON,
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
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import LossList
from dragoman.wire import json
from dragoman.wire.choices import merge
from dragoman.wire.json import ABSENT, Reader
from dragoman.wire.protocol import Dialect

from .fields import NAME, from_extra, restore, to_extra

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
    """A message of the role that its kind is for."""

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
    # Under any name, and of any shape: other servers and clients have put other things there.
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


message_reader = Reader[_Message | _Tool | _Function](
    _System, _Developer, _User, _Assistant, _Tool, _Function
)
_parts = Reader[_TextPart | _RefusalPart | _ImagePart | _AudioPart | _FilePart](
    _TextPart, _RefusalPart, _ImagePart, _AudioPart, _FilePart
)
_image_url, _sound, _file_data = Reader(_ImageURL), Reader(_Sound), Reader(_FileData)
_past_audio, _calls = Reader(_PastAudio), Reader(_Call)
_function_calls, _custom_calls = Reader(_FunctionCall), Reader(_CustomCall)


# ---- decoding ----------------------------------------------------------------------------


def decode_messages(data: Raw) -> tuple[Item, ...]:
    """The items of a conversation, by `message_reader`. Raises FaultError naming the message that
    is wrong."""
    items: list[Item] = []
    calls: dict[str, type[Item]] = {}  # the calls that results may refer to
    legacy: dict[str, str] = {}  # by function name: the id made up for its last call
    after_assistant = False
    messages, unknown = message_reader.read_all(data, "messages")
    for number, message in enumerate(messages):
        rest = unknown.get(number, {})
        content: Content | None
        if isinstance(message.content, list):
            path = f"messages[{number}].content"
            content = tuple([_part(raw, f"{path}[{n}]") for n, raw in enumerate(message.content)])
        else:
            content = message.content
        if isinstance(message, _Assistant):
            turn = _assistant_items(message, content, rest, number)
            if message.tool_calls or message.function_call is not ABSENT:
                for item in turn:
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
            if rest or message.name is not None:
                extra = to_extra(rest)
                items.append(Message(message.role, content, name=message.name, extra=extra))
            else:
                items.append(Message(message.role, content))
        elif isinstance(message, _Tool):
            call_id = message.tool_call_id
            if call_id not in calls:
                problem = f"is {call_id!r}, and no earlier call has that id"
                raise FaultError(bad_request(problem, f"messages[{number}].tool_call_id"))
            kind = CustomToolCallOutput if calls[call_id] is CustomToolCall else FunctionCallOutput
            items.append(kind(call_id, content or "", extra=to_extra(rest) if rest else None))
        else:
            if message.name not in legacy:
                problem = f"is {message.name!r}, and no earlier call is to that function"
                raise FaultError(bad_request(problem, f"messages[{number}].name"))
            extra = to_extra({**rest, "name": message.name})
            items.append(FunctionCallOutput(legacy[message.name], content or "", extra=extra))
    if not items:
        raise FaultError(bad_request("is empty", "messages"))
    return tuple(items)


def _assistant_items(
    message: _Assistant, given: Content | None, rest: dict[str, JSON], place: int
) -> list[Item]:
    """The items of an assistant message; there is always one."""
    items: list[Item] = []
    reasoning = None
    if message.reasoning_content is not ABSENT or message.reasoning is not ABSENT:
        reasoning = _reasoning_text(message, rest)
    details = _reasoning = message.reasoning_details
    if reasoning is not None or details:
        json.check_depth(details)
        thoughts = () if reasoning is None else (Thought(reasoning),)
        extra = to_extra({"reasoning_details": details} if details else {})
        items.append(Reasoning(thoughts, extra=extra))
    calls: list[FunctionCall | CustomToolCall | Unknown] = []
    if message.tool_calls:
        path = f"messages[{place}].tool_calls"
        calls = [_call(raw, f"{path}[{n}]") for n, raw in enumerate(message.tool_calls)]
    if message.function_call is not ABSENT and bytes(message.function_call) != b"null":
        if calls:
            rest["function_call"] = json.value_of(message.function_call)
        else:
            path, call_id = f"messages[{place}].function_call", f"call_legacy_{place}"
            calls = [_function_call(call_id, message.function_call, {}, path)]
    content = None if given == () else given
    if message.refusal or message.audio is not ABSENT:
        content = _with_refusal_and_audio(content, message, f"messages[{place}]")
    if content is not None or message.name or rest or not calls:
        if content is None:
            content = () if calls else ""
        extra = to_extra(rest) if rest else None
        items.append(Message("assistant", content, name=message.name, extra=extra))
    return items + calls


def _reasoning_text(message: _Assistant, rest: dict[str, JSON]) -> str | None:
    """The reasoning, under any of the names servers have for it; what else stands there is added
    to the unknown fields."""
    text = None
    for name, raw in (
        ("reasoning_content", message.reasoning_content),
        ("reasoning", message.reasoning),
    ):
        value = json.value_of(raw)
        if isinstance(value, str) and not text:
            text = value
        elif value is not None and value != text:
            rest[name] = value
    return text


def _with_refusal_and_audio(
    content: Content | None, message: _Assistant, path: str
) -> Content | None:
    """The content of an assistant message, with its refusal and its past audio as parts."""
    added: list[Part] = [Refusal(message.refusal)] if message.refusal else []
    if message.audio is not ABSENT and bytes(message.audio) != b"null":
        audio, rest = _past_audio.read(message.audio, f"{path}.audio")
        added.append(
            Audio(
                audio.data,
                transcript=audio.transcript,
                id=audio.id,
                expires_at=audio.expires_at,
                extra=to_extra(rest),
            )
        )
    return (*(parts(content) if content else ()), *added) if added else content


def _part(raw: Raw, path: str) -> Part:
    try:
        part, rest = _parts.read(raw, path)
    except FaultError:
        value = json.load(bytes(raw))
        if isinstance(value, dict) and str(value.get("type")) in VENDOR_PARTS:
            return UnknownPart(NAME, value)
        raise
    match part:
        case _TextPart():
            return Text(part.text, extra=to_extra(rest) if rest else None)
        case _RefusalPart():
            return Refusal(part.refusal, extra=to_extra(rest))
        case _ImagePart(image_url=inner):
            if bytes(memoryview(inner)[:1]) == b'"':  # seen in the wild, and clear enough
                inner = Raw(b'{"url":%b}' % bytes(inner))
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


def _call(raw: Raw, path: str) -> FunctionCall | CustomToolCall | Unknown:
    call, rest = _calls.read(raw, path)
    kind = call.type or "function"
    if kind not in ("function", "custom"):
        value = json.load(bytes(raw))
        fields = {name: each for name, each in value.items() if name != "type"}
        return Unknown(NAME, kind, fields)
    inner, path = (call.function if kind == "function" else call.custom), f"{path}.{kind}"
    if inner is ABSENT:
        raise FaultError(bad_request("is missing", path))
    return (_function_call if kind == "function" else _custom_call)(call.id, inner, rest, path)


def _function_call(call_id: str, inner: Raw, rest: dict[str, JSON], path: str) -> FunctionCall:
    call, more = _function_calls.read(inner, path)
    arguments = call.arguments or ""
    if not isinstance(arguments, str):
        json.check_depth(arguments)
        arguments = json.text(arguments)
    extra = to_extra(rest, function=more) if rest or more else None
    return FunctionCall(call_id, call.name, arguments, call.namespace, extra=extra)


def _custom_call(call_id: str, inner: Raw, rest: dict[str, JSON], path: str) -> CustomToolCall:
    call, more = _custom_calls.read(inner, path)
    extra = to_extra(rest, custom=more)
    return CustomToolCall(call_id, call.name, call.input or "", call.namespace, extra=extra)


# ---- encoding ----------------------------------------------------------------------------


def encode_content(content: Content) -> JSON:
    """The content as it was given."""
    return content if isinstance(content, str) else [encode_part(part) for part in content]


def encode_part(part: Part) -> dict[str, JSON]:
    """One part; one that this wire has no form for as text."""
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


def is_text(content: Sequence[Part]) -> bool:
    """Whether all parts are text."""
    return all(isinstance(part, Text | Refusal) for part in content)


def describe(part: Part) -> str:
    """A part as text, for models and servers that cannot take the part itself."""
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
"""Stands for reasoning that a server requires and that we do not have. Servers that require some
refuse the empty string; words would be taken for the model's own."""
MAX_DESCRIBED = 2000
"""How many characters of a field are kept where an item is described as text."""


def encode_messages(items: Iterable[Item], dialect: Dialect, losses: LossList) -> list[JSON]:
    """The messages for these items; what the dialect costs is added to the losses."""
    messages: list[JSON] = []
    turn: _AssistantTurn | None = None  # the assistant message that is not complete yet
    moved: list[Part] = []  # parts of results that only a user message may have
    reasoning_missing = False

    def end_turn() -> None:
        nonlocal turn, reasoning_missing
        if turn is not None:
            reasoning_missing = reasoning_missing or turn.lacks_reasoning
            messages.append(turn.message())
            turn = None

    def end_results() -> None:
        end_turn()
        if moved:
            messages.append({"role": "user", "content": encode_content(tuple(moved))})
            moved.clear()

    for index, item in enumerate(items):
        match item:
            case Message(role="user" | "system" | "developer"):
                if turn is not None or moved:
                    end_results()
                content = item.content
                if not isinstance(content, str):
                    content = _encode_parts(content, dialect, losses, index)
                message: dict[str, JSON] = {"role": item.role, "content": content}
                if item.name:
                    message["name"] = item.name
                messages.append(message if item.extra is None else restore(message, item.extra))
            case FunctionCallOutput() | CustomToolCallOutput():
                if turn is not None:
                    end_turn()
                output = item.output
                if not isinstance(output, str):
                    shown = [part for part in output if isinstance(part, Image | Audio | File)]
                    if shown:
                        label = Text(f"From the result of the tool call {item.call_id}:")
                        moved += [label, *shown]
                        output = tuple(map(_without_media, output))
                    output = _encode_parts(output, dialect, losses, index)
                message = {"role": "tool", "tool_call_id": item.call_id, "content": output}
                messages.append(message if item.extra is None else restore(message, item.extra))
            case Unknown(kind="compaction_trigger") | ItemReference() | Compaction():
                pass  # asks for nothing where it is not last; the others are refused before
            case _:
                if turn is None or (item.extra and item.extra.get("turn")):
                    end_results()
                    turn = _AssistantTurn(dialect)
                turn.add(item, losses, index)
    if turn is not None or moved:
        end_results()
    if reasoning_missing:
        why = (
            "this server wants the reasoning that led to a call, and there is none: it gets a space"
        )
        losses.note("items[*].reasoning", "emulated", why)
    return messages


def _encode_parts(
    content: tuple[Part, ...], dialect: Dialect, losses: LossList, index: int
) -> JSON:
    """Parts as this server takes them: a list that is all text may have to be a string."""
    if dialect.content_parts or not is_text(content):
        return encode_content(content)
    if len(content) > 1:
        why = "the text is sent as one string; its parts are joined"
        losses.note("items[*].content", "emulated", why, (index,))
    return "\n".join(describe(part) for part in content)


def _without_media(part: Part) -> Part:
    """A part of a result; one that cannot stand there as the text that says where it is."""
    match part:
        case Image():
            return Text("[image: see the next user message]")
        case Audio():
            return Text("[audio: see the next user message]")
        case File():
            return Text("[file: see the next user message]")
        case _:
            return part


class _AssistantTurn:
    """The items between two messages of others, which are one assistant message."""

    __slots__ = ("_calls", "_content", "_dialect", "_extra", "_inline", "_reasoning")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._reasoning: list[str] = []
        self._content: Content | None = None
        self._inline = ""  # reasoning in think tags, which stands before the text it belongs to
        self._calls: list[JSON] = []
        self._extra: dict[str, JSON] = {}

    def add(
        self,
        item: Message | Reasoning | FunctionCall | CustomToolCall | Unknown,
        losses: LossList,
        index: int,
    ) -> None:
        """One item more of this turn."""
        match item:
            case FunctionCall() | CustomToolCall():
                self._calls.append(encode_call(item))
            case Message():
                content = item.content
                if not isinstance(content, str) and not self._dialect.content_parts:
                    _encode_parts(content, self._dialect, losses, index)  # notes what it costs
                self._add_content(content)
                if item.name:
                    self._add_extra({"name": item.name})
                if item.extra:
                    self._add_extra(from_extra(item.extra))
            case Reasoning():
                self._add_reasoning(item, losses, index)
            case Unknown(wire=wire) if wire == NAME:
                self._calls.append({"type": item.kind, **item.value})
            case _:
                text = f"[{item.kind}: {json.text(_shortened(item.value))}]"
                self._add_content((Text(text),))

    @property
    def lacks_reasoning(self) -> bool:
        """Whether the server wants reasoning with this message, and there is none."""
        must = self._dialect.reasoning_echo == "must"
        return must and bool(self._calls) and not any(self._reasoning)

    def message(self) -> dict[str, JSON]:
        """The message; fields that were not given are not in it."""
        message: dict[str, JSON] = {"role": "assistant"}
        if self._inline:
            self._add_content("")
        refusal: str | None = None
        audio: dict[str, JSON] | None = None
        content = self._content
        if isinstance(content, tuple):
            content, refusal, audio = _split_content(content)
        if content is not None:
            text = not isinstance(content, str) and not self._dialect.content_parts
            message["content"] = (
                "\n".join(map(describe, parts(content)))
                if text and is_text(parts(content))
                else encode_content(content)
            )
        elif not (self._calls or refusal or audio):
            message["content"] = ""
        if refusal:
            message["refusal"] = refusal
        if audio:
            message["audio"] = audio
        if self._reasoning and self._dialect.reasoning_echo != "never":
            message[self._dialect.reasoning_field] = "\n\n".join(self._reasoning)
        if self.lacks_reasoning:
            message[self._dialect.reasoning_field] = PLACEHOLDER_REASONING
        if self._calls:
            message["tool_calls"] = self._calls
        if self._dialect.reasoning_echo == "never":
            self._extra.pop("reasoning_details", None)
        return merge(message, self._extra) if self._extra else message

    def _add_reasoning(self, item: Reasoning, losses: LossList, index: int) -> None:
        if self._dialect.reasoning_echo == "never":
            why = "this server takes no reasoning back"
            losses.note("items[*].reasoning", "dropped", why, (index,))
        tags = (item.extra or {}).get("inline")
        if tags is not None:
            self._inline += tags.get("open", "") + item.text + tags.get("close", "")
        elif item.content or item.summary:
            self._reasoning.append(item.text)
        if item.extra:
            self._add_extra(from_extra(item.extra))

    def _add_content(self, content: Content) -> None:
        inline, self._inline = self._inline, ""
        if inline:  # reasoning in think tags runs into the text with nothing between
            match content:
                case str():
                    content = inline + content
                case (Text() as first, *rest):
                    content = (replace(first, text=inline + first.text), *rest)
                case _:
                    content = (Text(inline), *content)
        if self._content is None or self._content == ():
            self._content = content
        elif content != ():
            self._content = (*parts(self._content), *parts(content))

    def _add_extra(self, fields: dict[str, JSON]) -> None:
        for name, value in fields.items():
            have = self._extra.get(name)
            if isinstance(have, list) and isinstance(value, list):
                self._extra[name] = have + value
            else:
                self._extra.setdefault(name, value)


def _split_content(
    content: tuple[Part, ...],
) -> tuple[Content | None, str | None, dict[str, JSON] | None]:
    """Content, refusal and past audio, which have fields of their own on this wire."""
    audio: dict[str, JSON] | None = None
    kept: list[Part] = []
    refusals: list[str] = []
    for part in content:
        match part:
            case Refusal():
                refusals.append(part.text)
            case Audio(id=str(id)):
                audio = restore({"id": id}, part.extra)
            case Audio():
                kept.append(Text(describe(part)))
            case _:
                kept.append(part)
    return tuple(kept) or None, "".join(refusals) or None, audio


def encode_call(call: FunctionCall | CustomToolCall) -> dict[str, JSON]:
    """A call as an entry of `tool_calls`."""
    inner: dict[str, JSON] = {"name": call.name}
    if call.namespace:
        inner["namespace"] = call.namespace
    if isinstance(call, FunctionCall):
        inner["arguments"] = call.arguments
        entry = {"id": call.call_id, "type": "function", "function": inner}
    else:
        inner["input"] = call.input
        entry = {"id": call.call_id, "type": "custom", "custom": inner}
    return entry if call.extra is None else restore(entry, call.extra)


def _shortened(value: JSON) -> JSON:
    """The value of an item that this wire has no form for (a hosted tool's call, as a rule),
    without ids and blobs."""
    match value:
        case str() if len(value) > MAX_DESCRIBED or value.startswith("data:"):
            return value[:MAX_DESCRIBED] + "…" if " " in value[:MAX_DESCRIBED] else "…"
        case list():
            return [_shortened(each) for each in value]
        case dict():
            hidden = ("id", "status", "encrypted_content")
            return {name: _shortened(v) for name, v in value.items() if name not in hidden and v}
        case _:
            return value
