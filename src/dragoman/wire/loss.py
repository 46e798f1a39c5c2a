"""Finds what a request or an answer would lose on a wire, and says it in one line.

The fates are those of the table in `policy`; here values are looked through, once, for fields that
have one worth telling. Nothing is encoded here and no codec is known: an encoder asks `judge`
before it speaks, and adds to the losses what its dialect costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.core.error import Fault, about
from dragoman.core.item import (
    JSON,
    Audio,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
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
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AllowedTools,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
    Sampling,
    Tool,
    UnknownTool,
)

from .account import Account, message_numbers
from .policy import REQUEST, UNKNOWN


def judge(request: Request, target: str) -> tuple[Loss, ...]:
    """What the request loses when it is said on the target wire.

    Fields are named as the client of the other wire wrote them; on its own wire a request loses
    nothing. Raises FaultError (`unsupported`, with the field) where a loss would change what the
    caller gets.
    """
    account = Account(REQUEST[target], target, request.items)
    if target == "responses":
        _to_responses(request, account)
    else:
        _to_chat(request, account)
    if request.tools:
        _tools(request.tools, account)
    _tool_choice(request, account)
    if request.extra is not None:
        account.unknown(request.extra, "")
    if request.reasoning is not None:
        account.unknown(request.reasoning.extra, "reasoning")
    if request.stream_options is not None:
        account.unknown(request.stream_options.extra, "stream_options")
    if isinstance(request.format, JSONSchema):
        account.unknown(request.format.extra, _FORMAT[target])
    return account.losses()


_FORMAT = {"responses": "response_format.json_schema", "chat": "text.format"}
_ALLOWED = {"responses": "tool_choice.allowed_tools.tools[*]", "chat": "tool_choice.tools[*]"}
_KIND = "of another kind"
_NOTHING: tuple[JSON, ...] = (None, {}, ())


# ---- towards Responses -----------------------------------------------------------------------

_PLAIN = Sampling()
_NO_SAMPLING = ("stop", "logit_bias", "seed", "top_k", "min_p", "repetition_penalty")
_LOGPROBS = "message.output_text.logprobs"


def _to_responses(request: Request, account: Account) -> None:
    if request.sampling != _PLAIN:
        _sampling(request.sampling, account, _LOGPROBS in request.include)
    if request.modalities and any(modality != "text" for modality in request.modalities):
        account.note("modalities: any other")
    if request.audio is not None:
        account.note("audio")
    if request.prediction is not None:
        account.note("prediction")
    if request.web_search is not None:
        account.note("web_search_options")
    for index, item in enumerate(request.items):
        _item_to_responses(item, account, index)


def _sampling(sampling: Sampling, account: Account, asked: bool) -> None:
    """`asked`: log-probabilities are asked for in Responses' own way already."""
    for name in _NO_SAMPLING:
        if getattr(sampling, name) not in _NOTHING:
            account.note(name)
    if sampling.n is not None and sampling.n > 1:
        account.note("n: more than 1")
    if sampling.logprobs and not asked:
        account.note("logprobs")
        if sampling.top_logprobs is not None:
            account.note("top_logprobs")


def _item_to_responses(item: Item, account: Account, index: int) -> None:
    where = "messages[*]"
    match item:
        case Message(content=content):
            if item.name is not None:
                account.note("messages[*].name", index)
            _parts_to_responses(content, account, index)
        case FunctionCallOutput() | CustomToolCallOutput():
            _parts_to_responses(item.output, account, index)
        case FunctionCall() | CustomToolCall():
            where = "messages[*].tool_calls[*]"
        case Unknown(wire=wire) if wire != "responses":
            account.note("messages[*].tool_calls[*]: of another kind", index)
    if item.extra is not None:
        account.unknown(item.extra, where, index)


def _parts_to_responses(content: str | tuple[Part, ...], account: Account, index: int) -> None:
    if isinstance(content, str):
        return
    for number, part in enumerate(content):
        match part:
            case UnknownPart(wire=wire):
                if wire != "responses":
                    account.note("messages[*].content[*]: of another kind", index, number)
                continue
            case Audio(transcript=str()):
                account.note("messages[*].audio: with a transcript", index)
            case Audio(id=str()):
                account.note("messages[*].audio: by id only", index)
            case Audio():
                account.note("messages[*].content[*].input_audio", index, number)
        if part.extra is not None:
            account.unknown(part.extra, "messages[*].content[*]", index, number)


# ---- towards Chat ----------------------------------------------------------------------------

_NO_STATE = (
    "max_tool_calls",
    "previous_response_id",
    "conversation",
    "prompt",
    "context_management",
)


def _to_chat(request: Request, account: Account) -> None:
    for name in _NO_STATE:
        if getattr(request, name) is not None:
            account.note(name)
    if request.background:
        account.note("background: true")
    if request.truncation not in (None, "disabled"):
        account.note("truncation: any other")
    if request.reasoning is not None and request.reasoning.summary is not None:
        account.note("reasoning.summary")
    for value in request.include:
        key = f"include[{value}]"
        account.note_in(key, key if key in REQUEST["chat"] else "include[*]")
    for item in request.instructions if isinstance(request.instructions, tuple) else ():
        _item_to_chat(item, account)
    for index, item in enumerate(request.items):
        _item_to_chat(item, account, index)


def _item_to_chat(item: Item, account: Account, *place: int) -> None:
    match item:
        case Message():
            if item.phase is not None:
                account.note("input[*].phase", *place)
            _bookkeeping(item, account, place)
            _parts_to_chat(item.content, account, "input[*].content[*]", place)
        case FunctionCall() | CustomToolCall():
            _bookkeeping(item, account, place)
        case FunctionCallOutput() | CustomToolCallOutput():
            _bookkeeping(item, account, place)
            _parts_to_chat(item.output, account, "input[*].output[*]", place)
        case Reasoning():
            _bookkeeping(item, account, place)
            _reasoning_to_chat(item, account, place)
        case Unknown(wire=wire, kind=kind):
            if wire != "chat":
                trigger = kind == "compaction_trigger"
                account.note(f"input[*]: {kind if trigger else _KIND}", *place)
        case _:
            kind = "compaction" if isinstance(item, Compaction) else "item_reference"
            account.note(f"input[*]: {kind}", *place)
    if item.extra is not None:
        account.unknown(item.extra, "input[*]", *place)


def _bookkeeping(
    item: Message
    | Reasoning
    | FunctionCall
    | CustomToolCall
    | FunctionCallOutput
    | CustomToolCallOutput,
    account: Account,
    place: tuple[int, ...],
) -> None:
    if item.id is not None:
        account.note("input[*].id", *place)
    if item.status is not None:
        account.note("input[*].status", *place)


def _same_words(item: Reasoning) -> bool:
    thoughts = [part.text for part in item.content if isinstance(part, Thought)]
    summary = [part.text for part in item.summary if isinstance(part, Summary)]
    return thoughts == summary and len(summary) == len(item.summary)


def _reasoning_to_chat(item: Reasoning, account: Account, place: tuple[int, ...]) -> None:
    # A summary that says what the reasoning says is one we emulated; leaving it out loses nothing.
    if item.summary and not _same_words(item):
        beside = "beside the reasoning" if item.content else "alone"
        account.note(f"input[*].summary: {beside}", *place)
    if item.encrypted is not None:
        account.note("input[*].encrypted_content", *place)
    for where, parts in (("content", item.content), ("summary", item.summary)):
        for number, part in enumerate(parts):
            field = f"input[*].{where}[*]"
            if not isinstance(part, UnknownPart):
                account.unknown(part.extra, field, *place, number)
            elif part.wire != "chat":
                account.note_in(field, UNKNOWN, *place, number)


def _parts_to_chat(
    content: str | tuple[Part, ...], account: Account, where: str, place: tuple[int, ...]
) -> None:
    if isinstance(content, str):
        return
    for number, part in enumerate(content):
        spot = (*place, number) if place else ()
        match part:
            case UnknownPart(wire=wire):
                if wire != "chat":
                    account.note(f"{where}: {_KIND}", *spot)
                continue
            case Text(annotations=annotations, tokens=tokens):
                if annotations:
                    account.note_in(
                        f"{where}.annotations", "input[*].content[*].annotations", *spot
                    )
                if tokens:
                    account.note_in(f"{where}.logprobs", "input[*].content[*].logprobs", *spot)
            case Refusal(tokens=tokens) if tokens:
                account.note_in(f"{where}.logprobs", "input[*].content[*].logprobs", *spot)
            case Image(file_id=str()):
                account.note(f"{where}.file_id: of an image", *spot)
            case File(url=str()):
                account.note(f"{where}.file_url", *spot)
        if where == "input[*].output[*]" and isinstance(part, Image | Audio | File):
            account.note("input[*].output[*]: image, audio, file", *spot)
        if part.extra is not None:
            account.unknown(part.extra, where, *spot)


# ---- tools, the same both ways ---------------------------------------------------------------


def _tools(
    tools: tuple[Tool, ...], account: Account, where: str = "tools[*]", place: tuple[int, ...] = ()
) -> None:
    for number, tool in enumerate(tools):
        spot = (*place, number)
        if isinstance(tool, UnknownTool):
            if tool.wire != account.target:
                account.note_in(where, f"tools[*]: {_KIND}", *spot)
            continue
        if isinstance(tool, Namespace):
            _tools(tool.tools, account, f"{where}.tools[*]", spot)
        account.unknown(tool.extra, where, *spot)


def _tool_choice(request: Request, account: Account) -> None:
    """A choice that names a tool of another wire cannot be kept; one of several can be left out."""
    match request.tool_choice:
        case UnknownTool(wire=wire) if wire != account.target:
            account.note(f"tool_choice: {_KIND}")
        case NamedTool(extra=extra):
            account.unknown(extra, "tool_choice")
        case AllowedTools(tools=tools, extra=extra):
            account.unknown(extra, "tool_choice")
            for number, tool in enumerate(tools):
                if isinstance(tool, NamedTool):
                    account.unknown(tool.extra, _ALLOWED[account.target], number)
            foreign = [
                number
                for number, tool in enumerate(tools)
                if isinstance(tool, UnknownTool) and tool.wire != account.target
            ]
            if foreign and len(foreign) == len(tools):
                account.note(f"tool_choice: {_KIND}")
            for number in foreign:
                account.note(_ALLOWED[account.target], number)


# ---- the account in words --------------------------------------------------------------------

_HEADER_LENGTH = 1_000
_FIELD_LENGTH = 100
_UNSPEAKABLE = re.compile(r"[^A-Za-z0-9_.\[\]*:()/@$-]")


def header(losses: Iterable[Loss]) -> str:
    """One line of plain ASCII for an HTTP header: `told: seed, store; emulated: logprobs`.

    It is at most about a thousand characters long; what did not fit is counted. Empty when
    nothing was lost.

    >>> header([Loss("seed", "told", ""), Loss("logprobs", "emulated", "")])
    'told: seed; emulated: logprobs'
    """
    groups: dict[str, dict[str, None]] = {"told": {}, "emulated": {}}
    for loss in losses:
        groups[loss.action][_UNSPEAKABLE.sub("?", loss.field[:_FIELD_LENGTH])] = None
    line, left = "", sum(map(len, groups.values()))
    for action, fields in groups.items():
        opening = f"; {action}: " if line else f"{action}: "
        for field in fields:
            if len(line) + len(opening) + len(field) > _HEADER_LENGTH:
                return f"{line}; and {left} more"
            line += opening + field
            opening, left = ", ", left - 1
    return line


_WORDS: dict[str, dict[str, str]] = {
    "chat": {"items": "messages", "format": "response_format"},
    "responses": {"items": "input", "format": "text.format"},
}
_TOOL = r"^(tools\[\d+\](?:\.tools\[\d+\])?)"
_MEMBERS = {
    "chat": (
        (re.compile(r"^format\.schema\b"), "format.json_schema.schema"),
        (re.compile(rf"{_TOOL}\.parameters\b"), r"\1.function.parameters"),
        (re.compile(rf"{_TOOL}\.grammar\b"), r"\1.custom.format.grammar.definition"),
        (re.compile(rf"{_TOOL}\.syntax\b"), r"\1.custom.format.grammar.syntax"),
    ),
    "responses": (
        (re.compile(rf"{_TOOL}\.grammar\b"), r"\1.format.definition"),
        (re.compile(rf"{_TOOL}\.syntax\b"), r"\1.format.syntax"),
    ),
}
"""Where a wire has what the core keeps closer at hand."""
_CORE_NAME = re.compile(r"^(items|format)\b(?:\[(\d+)\])?")


def worded(losses: Iterable[Loss], request: Request, wire: str | None) -> tuple[Loss, ...]:
    """The same losses, with the names of the core (`items[3]`) in the words of a client's wire.

    A client that speaks no wire, but calls the library, knows the names of the core.
    """
    if wire not in _WORDS:
        return tuple(losses)
    return tuple(replace(loss, field=_worded(loss.field, request, wire)) for loss in losses)


def blamed(fault: Fault, request: Request, wire: str | None) -> Fault:
    """The same fault, with the field it is about in the words of a client's wire.

    >>> from dragoman.core.error import bad_request
    >>> fault = bad_request("cannot be enforced", "format.schema.not")
    >>> blamed(fault, Request(model="m"), "responses").message
    'text.format.schema.not: cannot be enforced'
    """
    if fault.param is None or wire not in _WORDS:
        return fault
    return about(fault, _worded(fault.param, request, wire))


def _worded(name: str, request: Request, wire: str) -> str:
    def word(found: re.Match[str]) -> str:
        place = found[2]
        if place is not None and wire == "chat":
            place = message_numbers(request.items)[int(place)]
        return _WORDS[wire][found[1]] + ("" if place is None else f"[{place}]")

    for pattern, words in _MEMBERS[wire]:
        name = pattern.sub(words, name)
    return _CORE_NAME.sub(word, name)
