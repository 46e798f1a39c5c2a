"""Messages and their content blocks, decoded into items and encoded from them."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request, quoted
from dragoman.core.item import (
    JSON,
    RECORD,
    Annotation,
    Audio,
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
    Text,
    Thought,
    Unknown,
    UnknownPart,
    objects,
)
from dragoman.wire import json
from dragoman.wire.json import LIMITS, Limits, Reader, merge
from dragoman.wire.pieces import long, shortened

NAME = "messages"
"""The key of this wire in every `extra`."""
MESSAGE = "(message)"
"""The key, in the extra of the first item of a message, of the message's own unknown fields. No
block has a field of this name."""
NEW_TURN: Extra = {"turn": {"new": True}}
"""Marks an item that begins an assistant message right after another assistant message."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
Word = Annotated[str, Meta(min_length=1)]


def to_extra(rest: dict[str, JSON]) -> Extra | None:
    """The extra that holds unknown fields; None if there are none."""
    return {NAME: rest} if rest else None


def from_extra(extra: Extra | None) -> dict[str, JSON]:
    """The unknown fields of this wire; those of the message around a block are not the block's."""
    found = extra.get(NAME, {}) if extra else {}
    return {k: v for k, v in found.items() if k != MESSAGE} if MESSAGE in found else found


def restore(fields: dict[str, JSON], extra: Extra | None) -> dict[str, JSON]:
    """The fields, and the unknown ones with them; a field that is there stands."""
    return merge(fields, from_extra(extra)) if extra else fields


# ---- the objects of the protocol ---------------------------------------------------------


class _Text(Struct, tag_field="type", tag="text"):
    text: str
    citations: list[dict[str, JSON]] | None = None


class _Image(Struct, tag_field="type", tag="image"):
    source: dict[str, JSON]


class _Document(Struct, tag_field="type", tag="document"):
    source: dict[str, JSON]
    title: str | None = None


class _Thinking(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str | None = None


class _Redacted(Struct, tag_field="type", tag="redacted_thinking"):
    data: str


class _ToolUse(Struct, tag_field="type", tag="tool_use"):
    id: Word
    name: Word
    input: Raw


class _ToolResult(Struct, tag_field="type", tag="tool_result"):
    tool_use_id: Word
    content: str | list[Raw] | None = None


class _Message(Struct, gc=False):
    role: Literal["user", "assistant", "system"]
    content: str | list[Raw]


_KINDS = (_Text, _Image, _Document, _Thinking, _Redacted, _ToolUse, _ToolResult)
_KNOWN = frozenset(str(kind.__struct_config__.tag) for kind in _KINDS)
_inner = Reader[Any](_Text, _Image, _Document)
_blocks = Reader[Any](*_KINDS, content=str | _inner.strict_list | None)
message_reader = Reader(_Message, content=str | _blocks.strict_list)
system_reader = Reader[Any](_Text)


# ---- decoding ----------------------------------------------------------------------------


def decode_messages(
    data: Raw | list[Any], system: str | list[Raw] | None, limits: Limits = LIMITS
) -> tuple[Item, ...]:
    """The items of a conversation, by `message_reader`; `system` is the first
    message, joined with system messages right after it. Raises FaultError naming the block
    that is wrong."""
    items: list[Item] = []
    opening: list[Part] = []  # of a system prompt in several messages
    calls: set[str] = set()
    before = ""  # the role of the previous message
    unknown: dict[int, dict[str, JSON]] = {}
    if system:
        items.append(Message("system", _texts(system, "system")))
    if not isinstance(data, list):
        data, unknown = message_reader.read_all(data, "messages")
    if len(data) > limits.max_items:
        raise json.too_many("messages", limits.max_items, "max_items")
    for number, message in enumerate(data):
        path, content = f"messages[{number}].content", message.content
        if not isinstance(content, str) and len(content) > limits.max_parts:
            raise json.too_many(path, limits.max_parts, "max_parts")
        if message.role == "assistant":
            added = _assistant_items(content, path)
            calls |= {item.call_id for item in added if isinstance(item, FunctionCall)}
            if before == "assistant":
                added[0] = replace(added[0], extra=(added[0].extra or {}) | NEW_TURN)
        elif message.role == "user":
            added = _user_items(content, path, calls)
        else:
            prompt = Message("system", _texts(content, path))
            first = items[0] if len(items) == 1 and number not in unknown else None
            if isinstance(first, Message) and first.role == "system":
                opening = opening or list(first.parts)
                opening += prompt.parts
                continue
            added = [prompt]
        if rest := unknown.get(number):
            fields = from_extra(added[0].extra) | {MESSAGE: rest}
            added[0] = replace(added[0], extra=(added[0].extra or {}) | {NAME: fields})
        items += added
        before = message.role
    if not data:
        raise FaultError(bad_request("is empty", "messages"))
    if opening:
        items[0] = replace(items[0], content=tuple(opening))
    last = items[-1]
    if isinstance(last, Message) and last.role == "assistant":
        items[-1] = replace(last, status="in_progress")  # the answer is the rest of it
    return tuple(items)


def _texts(blocks: str | list[Any], path: str) -> str | tuple[Part, ...]:
    """A system prompt: texts, and blocks of unknown types."""
    if isinstance(blocks, str):
        return blocks
    parts: list[Part] = []
    for number, raw in enumerate(blocks):
        block, rest = _read(raw, f"{path}[{number}]", system_reader)
        if isinstance(block, _Text):
            parts.append(_text(block, rest))
        elif block is None:
            parts.append(UnknownPart(NAME, rest))
        else:  # decoded with the message it is in
            problem = f"is {_kind(block)!r}, and only text is allowed here"
            raise FaultError(bad_request(problem, f"{path}[{number}].type"))
    return tuple(parts)


def _kind(block: Struct) -> str:
    return str(block.__struct_config__.tag)


def _text(block: _Text, rest: dict[str, JSON]) -> Text:
    if block.citations:
        json.check_depth(block.citations)
    notes = [decode_citation(each) for each in block.citations or ()]
    return Text(block.text, tuple(notes), extra=to_extra(rest))


def _read(raw: Any, path: str, reader: Reader[Any]) -> tuple[Any, dict[str, JSON]]:
    """A block and its unknown fields; for a type we do not know, the fields themselves."""
    try:
        return reader.read(raw, path)
    except FaultError:
        value = json.value_of(raw)
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind in _KNOWN:
            raise
        return None, value


def _user_items(content: str | list[Any], path: str, calls: set[str]) -> list[Item]:
    """The results of tools, and the user's message after them;
    there is always one item."""
    if isinstance(content, str):
        return [Message("user", content)]
    results: list[Item] = []
    parts: list[Part] = []
    for number, raw in enumerate(content):
        place = f"{path}[{number}]"
        block, rest = _read(raw, place, _blocks)
        if not isinstance(block, _ToolResult):
            parts.append(_part(block, rest, place))
            continue
        if block.tool_use_id not in calls:
            problem = f"is {quoted(block.tool_use_id)}, and no earlier tool_use has that id"
            raise FaultError(bad_request(problem, f"{place}.tool_use_id"))
        output: str | tuple[Part, ...] = ""
        if isinstance(block.content, str):
            output = block.content
        elif block.content:
            inside = enumerate(block.content)
            each = ((f"{place}.content[{n}]", inner) for n, inner in inside)
            output = tuple([_part(*_read(inner, at, _inner), at) for at, inner in each])
        results.append(FunctionCallOutput(block.tool_use_id, output, extra=to_extra(rest)))
    return results if results and not parts else [*results, Message("user", tuple(parts))]


def _part(block: Any, rest: dict[str, JSON], path: str) -> Part:
    """One part of a user's message or a tool's result. Raises FaultError for a block that only the
    assistant has."""
    if isinstance(block, _Image | _Document):
        json.check_depth(block.source)
    match block:
        case _Text():
            return _text(block, rest)
        case _Document(source={"type": "content"} as source, title=title):
            titled = {} if title is None else {"title": title}
            return UnknownPart(NAME, {"type": "document", "source": source, **titled, **rest})
        case _Image(source=source):
            data, url, file_id = _decode_source(source, f"{path}.source")
            return Image(data or url, file_id=file_id, extra=_around(source, rest))
        case _Document(source=source, title=title):
            data, url, file_id = _decode_source(source, f"{path}.source", text=True)
            extra = _around(source, rest)
            return File(file_id, data=data, url=url, filename=title, extra=extra)
        case None:
            return UnknownPart(NAME, rest)
        case _:
            problem = f"is {_kind(block)!r}, which only the assistant says"
            raise FaultError(bad_request(problem, f"{path}.type"))


def _decode_source(
    source: dict[str, JSON], path: str, *, text: bool = False
) -> tuple[str | None, str | None, str | None]:
    """The data URL of a source, or its URL, or the id of its file."""
    match source:
        case {"type": "base64", "media_type": str(media), "data": str(data)}:
            return f"data:{media};base64,{data}", None, None
        case {"type": "text", "media_type": str(media), "data": str(data)} if text:
            encoded = b64encode(data.encode("utf-8", "replace")).decode()
            return f"data:{media};charset=utf-8;base64,{encoded}", None, None
        case {"type": "url", "url": str(url)}:
            return None, url, None
        case {"type": "file", "file_id": str(id)}:
            return None, None, id
        case _:
            raise FaultError(bad_request("is none that we know, or has no data", path))


def _around(source: dict[str, JSON], rest: dict[str, JSON]) -> Extra | None:
    """The extra of a block with a source, either of which may have unknown fields."""
    known = ("type", "media_type", "data", "url", "file_id")
    beside = {name: value for name, value in source.items() if name not in known}
    return to_extra({**rest, "source": beside} if beside else rest)


def _assistant_items(content: str | list[Any], path: str) -> list[Item]:
    """The items of an assistant message; there is always one. Texts in a row are one message."""
    if isinstance(content, str):
        return [Message("assistant", content)]
    items: list[Item] = []
    texts: list[Part] = []
    uses: dict[str, dict[str, JSON]] = {}
    for number, raw in enumerate(content):
        place = f"{path}[{number}]"
        block, rest = _read(raw, place, _blocks)
        if isinstance(block, _Text):
            texts.append(_text(block, rest))
            continue
        if texts:
            items.append(Message("assistant", tuple(texts)))
            texts = []
        match block:
            case _Thinking():
                if block.signature:
                    rest = {"signature": block.signature, **rest}
                thoughts = (Thought(block.thinking),) if block.thinking else ()
                items.append(Reasoning(thoughts, extra=to_extra(rest)))
            case _Redacted():
                items.append(Reasoning(extra=to_extra({"data": block.data, **rest})))
            case _ToolUse():
                arguments = bytes(block.input).decode("utf-8", "replace")
                if arguments[:1] != "{":
                    raise FaultError(bad_request("must be an object", f"{place}.input"))
                items.append(FunctionCall(block.id, block.name, arguments, extra=to_extra(rest)))
            case None:
                fields = {name: value for name, value in rest.items() if name != "type"}
                record = _record(fields, uses)
                items.append(Unknown(NAME, str(rest["type"]), fields, extra=record))
            case _:
                problem = f"is {_kind(block)!r}, which the assistant never says"
                raise FaultError(bad_request(problem, f"{place}.type"))
    if texts or not items:
        items.append(Message("assistant", tuple(texts)))
    return items


_USED = re.compile(r"srvtoolu_((?:ws|ci|mcp)_\w+)")
"""The ids of calls that our server ran."""


def _record(block: dict[str, JSON], uses: dict[str, dict[str, JSON]]) -> Extra | None:
    """The extra of a block of a call that our server ran: its result has the record
    of the call, which is in `uses`. None for other blocks."""
    use_id = str(block.get("id") or block.get("tool_use_id"))
    if (ours := _USED.fullmatch(use_id)) is None:
        return None
    if "tool_use_id" not in block:
        uses[use_id] = block
        return {RECORD: {}}
    use = uses.get(use_id, {})
    given: dict[str, JSON] = {"call_id": ours[1], "name": str(use.get("name"))}
    given |= {"arguments": json.text(use.get("input") or {}), "output": "It failed."}
    match use, block.get("content"):
        case {"name": "web_search"}, [{"encrypted_content": str(kept)}, *_]:
            with suppress(ValueError, FaultError):
                if isinstance(found := json.value_of(Raw(b64decode(kept))), dict):
                    return {RECORD: found}
        case {"name": "code_execution", "input": {"code": str(code)}}, {"stdout": str(logs)}:
            given |= {"name": "python", "arguments": json.text({"code": code}), "output": logs}
        case {"server_name": str(label)}, [{"text": str(text)}, *_]:
            given |= {"output": text, "namespace": label}
    return {RECORD: given}


# ---- encoding ----------------------------------------------------------------------------


def encode_messages(items: Iterable[Item]) -> tuple[str | list[JSON], list[JSON]]:
    """The system prompt, and the messages for these items.

    Results in a row are one message of the user, with the parts of a message right behind them;
    items of the assistant in a row are one message of the assistant.
    """
    system: str | list[JSON] = []
    messages: list[JSON] = []
    last: dict[str, Any] = {}
    role, joins = "", False  # whether the user's next message is joined to the results before it
    for item in items:
        extra = item.extra
        marked = extra is not None and ("turn" in extra or MESSAGE in extra.get(NAME, ()))
        match item:
            case Message(role="system" | "developer") if not (messages or marked):
                if system:
                    system = as_blocks(system)
                    system += encode_parts(item.parts)
                else:
                    system = _encode_content(item.content)
                continue
            case Message(role="system" | "developer"):
                now, given = "system", _encode_content(item.content)
            case Message(role="user"):
                now, given = "user", _encode_content(item.content)
            case FunctionCallOutput() | CustomToolCallOutput():
                now, given = "user", [_encode_result(item)]
            case Message():
                now, given = "assistant", _encode_content(item.content)
            case Reasoning() if not is_signed(item):
                continue  # the upstream would refuse it
            case Reasoning(content=[_, *_]):
                # The signature is of the thinking itself; a summary beside it repeats it.
                now, given = "assistant", encode_item(replace(item, summary=()))
            case FunctionCall() | CustomToolCall():
                now, given = "assistant", [encode_call(item) | {"id": _legal(item.call_id)}]
            case Unknown() if item.wire != NAME and item.kind != "compaction_trigger":
                text = f"[{item.kind}: {json.text(shortened(item.value))}]"
                now, given = "assistant", [{"type": "text", "text": text}]
            case _:
                now, given = "assistant", encode_item(item)
        if not given:
            continue  # this wire refuses empty messages and texts
        result = isinstance(item, FunctionCallOutput | CustomToolCallOutput)
        if now == role == "assistant" and not marked:
            last["content"] = as_blocks(last["content"])
            last["content"] += as_blocks(given)
        elif now == role == "user" and joins and isinstance(given, list) and not marked:
            last["content"] += given
        else:
            last = {"role": now, "content": given}
            own = extra[NAME].get(MESSAGE) if extra is not None and NAME in extra else None
            if isinstance(own, dict):
                merge(last, own)
            messages.append(last)
        role, joins = now, result
    return system, messages


def _encode_content(content: str | tuple[Part, ...]) -> str | list[JSON]:
    """The content of a message in its given form; an empty one has no blocks."""
    if isinstance(content, str):
        return long(content) or []
    return encode_parts(content)


def as_blocks(content: str | list[JSON]) -> list[JSON]:
    """Content as blocks, in either form."""
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def encode_parts(parts: Iterable[Part]) -> list[JSON]:
    """The blocks for these parts; an empty text has none."""
    return [block for part in parts if (block := _encode_part(part)) is not None]


def encode_item(item: Item) -> list[JSON]:
    """The blocks for an item of the assistant."""
    match item:
        case Message():
            return encode_parts(item.parts)
        case Reasoning():
            block = encode_thinking(item)
            return [block] if block.get("thinking") or is_signed(item) else []
        case FunctionCall() | CustomToolCall():
            return [encode_call(item)]
        case Unknown(wire=wire) if wire == NAME:
            return [{"type": item.kind, **item.value}]
        case Unknown() if is_hosted(item):
            return _encode_hosted(item)
        case _:
            return []


_HOSTED = frozenset(("code_interpreter_call", "mcp_call", "web_search_call"))
_SPOKEN_OF = ("name", "server_label", "arguments", "output", "error")


def is_hosted(item: Unknown) -> bool:
    """Whether an item is a call of a hosted tool that has blocks here: of it and of its result."""
    return item.kind in _HOSTED and item.id is not None


def is_search(item: Item) -> bool:
    """Whether an item is a web search by our server."""
    match item:
        case Unknown(kind="web_search_call", value={"action": {"type": "search"}, **rest}):
            return is_hosted(item) and rest.get("status") != "failed"
    return False


def _encode_hosted(item: Unknown) -> list[JSON]:
    """The blocks of a call that a server ran, and of its result. The model's result is stored
    in the protocol's field for encrypted content."""
    value, failed = item.value, item.value.get("status") == "failed"
    use: dict[str, JSON] = {"type": "server_tool_use", "id": f"srvtoolu_{item.id}"}
    result: dict[str, JSON] = {"tool_use_id": use["id"]}
    match item.kind:
        case "code_interpreter_call":
            use |= {"name": "code_execution", "input": {"code": value.get("code") or ""}}
            logs = "".join(str(each.get("logs") or "") for each in objects(value.get("outputs")))
            done = {"stdout": logs, "stderr": "", "return_code": int(failed), "content": []}
            content: JSON = {"type": "code_execution_result", **done}
            result |= {"type": "code_execution_tool_result", "content": content}
        case "mcp_call":
            name, label, arguments, output, error = map(value.get, _SPOKEN_OF)
            text = arguments if isinstance(arguments, str) else json.text(arguments or {})
            given = _encode_arguments(text)
            use |= {"type": "mcp_tool_use", "name": name, "server_name": label, "input": given}
            said = {"type": "text", "text": long(str(error or output or ""))}
            result |= {"type": "mcp_tool_result", "is_error": failed, "content": [said]}
        case _:
            action = next(iter(objects([value.get("action")])), {})
            asked = {name: action[name] for name in ("query", "url", "pattern") if action.get(name)}
            use |= {"name": "web_search", "input": asked}
            kept = b64encode(json.dump((item.extra or {}).get(RECORD))).decode()
            # Sources that are no pages, as those of weather, have no address.
            places = [each["url"] for each in objects(action.get("sources")) if "url" in each]
            places = places or [asked.get("url", "")]
            page: dict[str, JSON] = {"type": "web_search_result", "page_age": None}
            found = [
                {**page, "url": url, "title": url, "encrypted_content": "" if number else kept}
                for number, url in enumerate(places)
            ]
            wrong = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
            result |= {"type": "web_search_tool_result", "content": wrong if failed else found}
    return [use, result]


def is_signed(item: Reasoning) -> bool:
    """Whether reasoning has a signature or encrypted content of its server."""
    fields = from_extra(item.extra)
    return bool(fields.get("signature")) or "data" in fields


def encode_thinking(item: Reasoning) -> dict[str, JSON]:
    """The block for reasoning: its summary and its text, or its encrypted content."""
    fields = from_extra(item.extra)
    parts = (*item.summary, *item.content)
    texts = [part.text for part in parts if not isinstance(part, UnknownPart) and part.text]
    if not texts and "data" in fields:
        return {"type": "redacted_thinking", **fields}
    return {"type": "thinking", "thinking": long("\n\n".join(texts)), "signature": "", **fields}


def encode_call(call: FunctionCall | CustomToolCall) -> dict[str, JSON]:
    """The block for a call. Arguments are unchanged, if they are an object."""
    if isinstance(call, CustomToolCall):
        given: JSON = {"input": long(call.input)}
    else:
        given = _encode_arguments(call.arguments)
    block = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": given}
    return restore(block, call.extra)


def _legal(call_id: str) -> str:
    """A call id that is valid in this protocol; those of some servers have dots and colons."""
    return _ILLEGAL.sub(lambda found: f"_{ord(found[0]):x}_", call_id)


def _encode_arguments(arguments: str) -> JSON:
    """The arguments as an object; other values are wrapped in one."""
    text = arguments.strip()
    if not text:
        return {}
    try:
        value = json.load(text)
    except ValueError:
        return {"input": arguments}
    return Raw(text.encode()) if isinstance(value, dict) else {"input": value}


def _encode_result(item: FunctionCallOutput | CustomToolCallOutput) -> dict[str, JSON]:
    block: dict[str, JSON] = {"type": "tool_result", "tool_use_id": _legal(item.call_id)}
    if item.output:
        block["content"] = _encode_content(item.output)
    return restore(block, item.extra)


def _encode_part(part: Part) -> dict[str, JSON] | None:
    match part:
        case Text() | Refusal():
            block: dict[str, JSON] = {"type": "text", "text": long(part.text)}
            notes = part.annotations if isinstance(part, Text) else ()
            if cited := [each for note in notes if (each := encode_citation(note)) is not None]:
                block["citations"] = cited
            return restore(block, part.extra) if part.text or cited else None
        case Image():
            source = _encode_source(part.url, part.file_id)
            return restore({"type": "image", "source": source}, part.extra)
        case File():
            source = _encode_source(part.data or part.url, part.file_id)
            if (text := part.text) is not None:
                source = {"type": "text", "media_type": "text/plain", "data": long(text)}
            block = {"type": "document", "source": source}
            if part.filename is not None:
                block["title"] = part.filename
            return restore(block, part.extra)
        case UnknownPart(wire=wire) if wire == NAME:
            return part.value
        case Audio(transcript=str(text)) if text:
            return {"type": "text", "text": text}
        case _:
            return None


def _encode_source(where: str | None, file_id: str | None) -> dict[str, JSON]:
    """The source of an image or a document. Base64 without a type is that of a PDF."""
    if where is None:
        return {"type": "file", "file_id": file_id}
    if where.startswith(("http://", "https://")):
        return {"type": "url", "url": where}
    head, _, data = where.partition(",") if where.startswith("data:") else ("", ",", where)
    media = head.removeprefix("data:").partition(";")[0] or "application/pdf"
    media = "image/jpeg" if media == "image/jpg" else media  # as many write it
    return {"type": "base64", "media_type": media, "data": long(data)}


# ---- citations ---------------------------------------------------------------------------

_CITED = {"web_search_result_location": "url_citation"}
"""Citations that other wires have as well."""


def decode_citation(value: JSON) -> Annotation:
    """A citation as an annotation; its location in the document is in the `extra`."""
    fields = dict(value) if isinstance(value, dict) else {}
    kind = str(fields.get("type"))
    url, title, file_id = (
        found if isinstance(found := fields.get(name), str) else None
        for name in ("url", "title", "file_id")
    )
    return Annotation(
        _CITED.get(kind, kind), url=url, title=title, file_id=file_id, extra={NAME: fields}
    )


def encode_citation(note: Annotation) -> JSON:
    """A citation of this wire; None for an annotation of another one, which lacks fields."""
    return from_extra(note.extra) or None
