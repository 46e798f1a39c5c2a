"""Chat messages and their content parts, decoded into items and encoded from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import (
    JSON,
    Audio,
    CallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    Extra,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import LossList
from dragoman.wire import json
from dragoman.wire.dialect import Dialect
from dragoman.wire.json import Fields

from .fields import NAME, join, keep, kept, restore

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


def decode_content(message: Fields, name: str = "content") -> Content | None:
    """The content of a message; None when there is none."""
    value = message.any(name)
    match value:
        case None | str():
            return value
        case list():
            path = message.at(name)
            return tuple(_part(each, f"{path}[{n}]") for n, each in enumerate(value))
        case _:
            problem = f"is {json.kind(value)}, and must be a string or an array of parts"
            raise message.wrong(name, problem)


def _part(value: JSON, path: str) -> Part:
    if not isinstance(value, dict):
        raise FaultError(bad_request(f"is {json.kind(value)}, and must be an object", path))
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
        raise part.wrong("image_url", f"is {json.kind(given)}, and must be an object with a url")
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


def encode_content(content: Content) -> JSON:
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


ROLES = ("assistant", "developer", "function", "system", "tool", "user")
TURN: Extra = {"turn": {"new": True}}
"""Marks an item that begins an assistant message right after another assistant message, which
would otherwise be taken for one."""


def decode_messages(request: Fields) -> tuple[Item, ...]:
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
        output, extra = decode_content(message) or "", keep(message.rest())
        if self._calls[call_id] is CustomToolCall:
            return CustomToolCallOutput(call_id, output, extra=extra)
        return FunctionCallOutput(call_id, output, extra=extra)

    def _legacy_result(self, message: Fields) -> CallOutput:
        name = message.need("name")
        if name not in self._legacy:
            raise message.wrong("name", f"is {name!r}, and no earlier call is to that function")
        output, rest = decode_content(message) or "", message.rest()
        return FunctionCallOutput(self._legacy[name], output, extra=keep(rest | {"name": name}))


def _spoken(role: Literal["system", "developer", "user"], message: Fields) -> Message:
    said = decode_content(message)
    if said is None:
        raise message.wrong("content", "is missing")
    return Message(role, said, name=message.string("name"), extra=keep(message.rest()))


# ---- assistant messages ------------------------------------------------------------------


def _turn(message: Fields, legacy_id: str) -> list[Item]:
    """The items of an assistant message; there is always one."""
    reasoning, rest = _reasoning(message)
    said, name = _said_messages(message), message.string("name")
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


def _said_messages(message: Fields) -> Content | None:
    """The content of an assistant message, its refusal and its past audio as parts of it."""
    said = decode_content(message)
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
            arguments = json.text(value)
        case value:
            raise inner.wrong("arguments", f"is {json.kind(value)}, and must be a string")
    extra = keep(rest, function=inner.rest())
    return FunctionCall(call_id, name, arguments, namespace, extra=extra)


def _custom_call(call_id: str, inner: Fields, rest: dict[str, JSON]) -> CustomToolCall:
    name, namespace, said = inner.need("name"), inner.string("namespace"), inner.string("input")
    return CustomToolCall(
        call_id, name, said or "", namespace, extra=keep(rest, custom=inner.rest())
    )


NO_THOUGHT = " "
"""Stands for reasoning that is owed and not to be had. Servers that ask for some refuse the empty
string; words would be taken for the model's own."""
LONGEST = 2000
"""How many characters of a field are kept where an item is written down as a note."""


def encode_turns(items: Iterable[Item], dialect: Dialect, ledger: LossList) -> list[JSON]:
    """The messages that say these items; what the dialect costs goes into the ledger."""
    writer = _Writer(dialect)
    for index, item in enumerate(items):
        _note_costs(item, index, dialect, ledger)
        writer.add(item)
    messages = writer.close()
    if writer.owed:
        why = (
            "this server wants the reasoning that led to a call, and there is none: it gets a space"
        )
        ledger.note("items[*].reasoning", "emulated", why)
    return messages


def _note_costs(item: Item, index: int, dialect: Dialect, ledger: LossList) -> None:
    match item:
        case Reasoning() if dialect.reasoning_echo == "never":
            why = "this server takes no reasoning back"
            ledger.note("items[*].reasoning", "dropped", why, (index,))
        case Message(content=tuple(parts)) | FunctionCallOutput(output=tuple(parts)):
            if not dialect.content_parts and len(parts) > 1 and is_text(parts):
                why = "the text is sent as one string; its parts are joined"
                ledger.note("items[*].content", "emulated", why, (index,))


class _Writer:
    """The messages so far, the assistant's turn that is open, and what waits to be shown."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._messages: list[JSON] = []
        self._turn: _AssistantTurn | None = None
        self._hoisted: list[Part] = []
        self.owed = False  # reasoning was, and could not be had

    def add(self, item: Item) -> None:
        """One item more."""
        match item:
            case Message(role="assistant") | Reasoning() | FunctionCall() | CustomToolCall():
                self._assistant(item)
            case Unknown(kind="compaction_trigger"):
                pass  # not the last item, where it would have been answered: it asks for nothing
            case Unknown():
                self._assistant(item)
            case FunctionCallOutput() | CustomToolCallOutput():
                self._end_turn()
                self._messages.append(self._result(item))
            case Message():
                self._end_results()
                self._messages.append(_spoken_turns(item, self._dialect))
            case _:
                pass  # references and compactions: refused before anything is encoded

    def close(self) -> list[JSON]:
        """All messages."""
        self._end_results()
        return self._messages

    def _assistant(
        self, item: Message | Reasoning | FunctionCall | CustomToolCall | Unknown
    ) -> None:
        begins = bool(item.extra and item.extra.get("turn"))
        if self._turn is None or begins:
            self._end_results()
            self._turn = _AssistantTurn(self._dialect)
        self._turn.add(item)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self.owed = self.owed or turn.owed
            self._messages.append(turn.message())

    def _end_results(self) -> None:
        """After the last result of a turn, show what could not be said in it."""
        self._end_turn()
        parts, self._hoisted = self._hoisted, []
        if parts:
            self._messages.append({"role": "user", "content": encode_content(tuple(parts))})

    def _result(self, item: CallOutput) -> JSON:
        output = item.output
        if not isinstance(output, str):
            shown = [part for part in output if isinstance(part, Image | Audio | File)]
            if shown:
                label = Text(f"From the result of the tool call {item.call_id}:")
                self._hoisted += [label, *shown]
            output = tuple(_here(part) for part in output)
        said = _content(output, self._dialect)
        return restore({"role": "tool", "tool_call_id": item.call_id, "content": said}, item.extra)


def _here(part: Part) -> Part:
    """A part of a result, or the word that it follows in a message of its own."""
    match part:
        case Image():
            return Text("[image: see the next user message]")
        case Audio():
            return Text("[audio: see the next user message]")
        case File():
            return Text("[file: see the next user message]")
        case _:
            return part


def _spoken_turns(item: Message, dialect: Dialect) -> JSON:
    said = {"role": item.role, "content": _content(item.content, dialect)}
    if item.name:
        said["name"] = item.name
    return restore(said, item.extra)


def _content(said: Content, dialect: Dialect) -> JSON:
    """Content as this side takes it: a list that is all text may have to be a string."""
    if isinstance(said, tuple) and not dialect.content_parts and is_text(said):
        return "\n".join(describe(part) for part in said)
    return encode_content(said)


class _AssistantTurn:
    """Everything between two things that others said, as one message."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._thoughts: list[str] = []
        self._said: Content | None = None
        self._inline = ""  # think tags and the thought in them, before the text they belong to
        self._calls: list[JSON] = []
        self._more: dict[str, JSON] = {}

    def add(self, item: Message | Reasoning | FunctionCall | CustomToolCall | Unknown) -> None:
        """One item more of this turn."""
        match item:
            case Reasoning():
                self._think(item)
            case Message():
                self._say(item.content)
                self._keep({"name": item.name} if item.name else {})
                self._keep(kept(item.extra))
            case FunctionCall() | CustomToolCall():
                self._calls.append(encode_call(item))
            case Unknown(wire=wire) if wire == NAME:
                self._calls.append({"type": item.kind, **item.value})
            case _:
                self._say((Text(_note(item)),))

    @property
    def owed(self) -> bool:
        """Whether the server wants reasoning with this message, and there is none."""
        must = self._dialect.reasoning_echo == "must"
        return must and bool(self._calls) and not any(self._thoughts)

    def message(self) -> dict[str, JSON]:
        """The message; fields that were not given are not in it."""
        said: dict[str, JSON] = {"role": "assistant"}
        if self._inline:
            self._say("")
        parts, refusal, audio = _apart(self._said)
        if parts is not None:
            said["content"] = _content(parts, self._dialect)
        elif not (self._calls or refusal or audio):
            said["content"] = ""
        said |= {"refusal": refusal} if refusal else {}
        said |= {"audio": audio} if audio else {}
        if self._thoughts and self._dialect.reasoning_echo != "never":
            said[self._dialect.reasoning_field] = "\n\n".join(self._thoughts)
        if self.owed:
            said[self._dialect.reasoning_field] = NO_THOUGHT
        said |= {"tool_calls": self._calls} if self._calls else {}
        if self._dialect.reasoning_echo == "never":
            self._more.pop("reasoning_details", None)
        return join(said, self._more)

    def _think(self, item: Reasoning) -> None:
        tags = (item.extra or {}).get("inline")
        if tags is not None:
            self._inline += tags.get("open", "") + item.text + tags.get("close", "")
        elif item.content or item.summary:
            self._thoughts.append(item.text)
        self._keep(kept(item.extra))

    def _say(self, said: Content) -> None:
        glue, self._inline = self._inline, ""
        if glue:
            said = _glued(glue, said)
        if self._said is None or self._said == ():
            self._said = said
        elif said != ():
            self._said = (*parts(self._said), *parts(said))

    def _keep(self, fields: dict[str, JSON]) -> None:
        for name, value in fields.items():
            have = self._more.get(name)
            if isinstance(have, list) and isinstance(value, list):
                self._more[name] = have + value
            else:
                self._more.setdefault(name, value)


def _glued(text: str, said: Content) -> Content:
    """The text and what follows it, with no seam between them."""
    match said:
        case str():
            return text + said
        case (Text() as first, *rest):
            return (replace(first, text=text + first.text), *rest)
        case _:
            return (Text(text), *said)


def _apart(
    said: Content | None,
) -> tuple[Content | None, str | None, dict[str, JSON] | None]:
    """Content, refusal and past audio, which have fields of their own on this wire."""
    if said is None or isinstance(said, str):
        return said, None, None
    audio: dict[str, JSON] | None = None
    parts: list[Part] = []
    refusals: list[str] = []
    for part in said:
        match part:
            case Refusal():
                refusals.append(part.text)
            case Audio(id=str(id)):
                audio = restore({"id": id}, part.extra)
            case Audio():
                parts.append(Text(describe(part)))
            case _:
                parts.append(part)
    return tuple(parts) or None, "".join(refusals) or None, audio


def encode_call(call: FunctionCall | CustomToolCall) -> dict[str, JSON]:
    """A call as an entry of `tool_calls`."""
    named = {"name": call.name} | ({"namespace": call.namespace} if call.namespace else {})
    match call:
        case FunctionCall():
            kind, inner = "function", named | {"arguments": call.arguments}
        case _:
            kind, inner = "custom", named | {"input": call.input}
    return restore({"id": call.call_id, "type": kind, kind: inner}, call.extra)


def _note(item: Unknown) -> str:
    """An item this wire has no form for (a hosted tool's call, as a rule), in words."""
    return f"[{item.kind}: {json.text(_short(item.value))}]"


def _short(value: JSON) -> JSON:
    """The value without what would drown it."""
    match value:
        case str() if len(value) > LONGEST or value.startswith("data:"):
            return value[:LONGEST] + "…" if " " in value[:LONGEST] else "…"
        case list():
            return [_short(each) for each in value]
        case dict():
            hidden = ("id", "status", "encrypted_content")
            return {name: _short(v) for name, v in value.items() if name not in hidden and v}
        case _:
            return value
