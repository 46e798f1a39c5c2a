"""Finds what a request or an answer loses on its way from one protocol to another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, unsupported, with_param
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
from dragoman.core.loss import Loss, LossList, path
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
from dragoman.core.response import Response

from .loss_table import ANSWER, REQUEST, UNKNOWN, Row, Table


class Account:
    """The losses of one crossing, as they are found."""

    __slots__ = ("_items", "_ledger", "_numbers", "_table", "target")

    def __init__(self, table: Table, target: str, items: tuple[Item, ...] = ()) -> None:
        self.target = target
        self._table = table
        self._items = items
        self._ledger = LossList()
        self._numbers: list[int] | None = None  # of the messages the items came in, once asked

    def note(self, key: str, *place: int) -> None:
        """The case of this row has come up at this place. Raises FaultError if it is refused."""
        row = self._table[key]
        self._apply(row, row.field, place)

    def note_in(self, field: str, key: str, *place: int) -> None:
        """The same for a field that stands elsewhere than the row says, such as deeper."""
        self._apply(self._table[key], field, place)

    def unknown(self, extra: Extra | None, where: str, *place: int) -> None:
        """Fields that only another wire has a word for."""
        for wire, fields in (extra or {}).items():
            if wire != self.target and wire in _WIRES:
                self._unknown(fields, where, place)

    def _unknown(self, fields: dict[str, JSON], where: str, place: tuple[int, ...]) -> None:
        for name, value in fields.items():
            field = f"{where}.{name}" if where else name
            row = self._table.get(field, self._table[UNKNOWN])
            if row.fate == "carried" and isinstance(value, dict):
                self._unknown(value, field, place)  # what is left over inside a known object
            elif value is not None:
                self._apply(self._table[UNKNOWN] if row.fate == "carried" else row, field, place)

    def losses(self) -> tuple[Loss, ...]:
        """What was found, a kind of field named once."""
        return self._ledger.losses()

    def _apply(self, row: Row, field: str, place: tuple[int, ...]) -> None:
        if row.fate == "refused":
            where = path(field, self._counted(field, place))
            raise FaultError(unsupported(f"cannot be carried: {row.why}", where))
        if row.fate == "carried" or row.quiet:
            return
        if not self._ledger.contains(field, row.why):
            place = self._counted(field, place)
        self._ledger.note(field, row.fate, row.why, place)

    def _counted(self, field: str, place: tuple[int, ...]) -> tuple[int, ...]:
        """The place as the client counts, where it counts messages and not items."""
        if place and field.startswith("messages["):
            if self._numbers is None:
                self._numbers = message_numbers(self._items)
            return (self._numbers[place[0]], *place[1:])
        return place


_WIRES = frozenset(("chat", "responses"))


def message_numbers(items: tuple[Item, ...]) -> list[int]:
    """The number of the Chat message that each item came in.

    A turn of the assistant is one message of several items: reasoning, text, calls. A mark in
    `extra["turn"]` tells where a turn begins right after another one.

    >>> turn = (Message("user", "?"), Reasoning(), Message("assistant", "!"), Message("user"))
    >>> message_numbers(turn)
    [0, 1, 1, 2]
    """
    numbers: list[int] = []
    number, inside = -1, False
    for item in items:
        turn = _of_a_turn(item)
        if not (inside and turn) or (item.extra is not None and "turn" in item.extra):
            number += 1
        inside = turn
        numbers.append(number)
    return numbers


def _of_a_turn(item: Item) -> bool:
    match item:
        case Message(role=role):
            return role == "assistant"
        case _:
            return isinstance(item, Reasoning | FunctionCall | CustomToolCall | Unknown)


def judge_answer(response: Response, target: str) -> tuple[Loss, ...]:
    """What the answer loses on the target wire, in the words of the other one."""
    table = ANSWER.get(target)
    if table is None:  # who asked for a bare text has all there is to it
        return ()
    if target == "chat" and _is_plain(response):
        return ()
    account = Account(table, target)
    if target == "responses":
        _to_responses(response, account)
    else:
        _to_chat(response, account)
    account.unknown(response.extra, "")
    if response.usage is not None:
        account.unknown(response.usage.extra, "usage")
    return account.losses()


def _is_plain(response: Response) -> bool:
    """Whether an answer is one message with nothing in it that a wire might have no place for,
    and was heard on Chat, if on any wire."""
    match response.output:
        case (Message(phase=None, extra=None, content=(Text(annotations=(), extra=None),)),):
            pass
        case _:
            return False
    if response.status != "completed" or (response.usage and response.usage.extra):
        return False
    return response.extra is None or "responses" not in response.extra


def _choices(response: Response) -> tuple[int, ...]:
    return response.choices or (0,) * len(response.output)


# ---- towards Responses -----------------------------------------------------------------------

_SPLITS = {
    "input_audio_tokens": "prompt_tokens_details.audio_tokens",
    "input_text_tokens": "prompt_tokens_details.text_tokens",
    "input_image_tokens": "prompt_tokens_details.image_tokens",
    "output_audio_tokens": "completion_tokens_details.audio_tokens",
    "output_text_tokens": "completion_tokens_details.text_tokens",
    "accepted_prediction_tokens": "completion_tokens_details.accepted_prediction_tokens",
    "rejected_prediction_tokens": "completion_tokens_details.rejected_prediction_tokens",
}


def _to_responses(response: Response, account: Account) -> None:
    for item, choice in zip(response.output, _choices(response), strict=True):
        if choice:
            account.note("choices[*]: any further", choice)
        else:
            _item_to_responses(item, account)
    for name, field in _SPLITS.items():
        if response.usage is not None and getattr(response.usage, name) is not None:
            account.note(f"usage.{field}")


def _item_to_responses(item: Item, account: Account) -> None:
    parts = item.parts if isinstance(item, Message) else ()
    for part in item.content if isinstance(item, Reasoning) else parts:
        match part:
            case Thought(tokens=tokens) if tokens:
                account.note("choices[*].logprobs.content: of reasoning", 0)
            case Refusal(tokens=tokens) if tokens:
                account.note("choices[*].logprobs.refusal", 0)
            case Audio(transcript=transcript):
                how = "without" if transcript is None else "with"
                account.note(f"choices[*].message.audio: {how} a transcript", 0)
    account.unknown(item.extra, "choices[*].message", 0)


# ---- towards Chat ----------------------------------------------------------------------------


def _to_chat(response: Response, account: Account) -> None:
    if response.status == "incomplete" and not {"length", "content_filter"} & {*response.reasons}:
        account.note("incomplete_details.reason: any other")
    pairs = zip(response.output, _choices(response), strict=True)
    said = Counter(choice for item, choice in pairs if isinstance(item, Message))
    if any(count > 1 for count in said.values()):
        account.note("output: several messages")
    for index, item in enumerate(response.output):
        _item_to_chat(item, account, index)


def _item_to_chat(item: Item, account: Account, index: int) -> None:
    match item:
        case Message(phase=phase):
            if phase is not None:
                account.note("output[*].phase", index)
            for number, part in enumerate(item.parts):
                notes = part.annotations if isinstance(part, Text) else ()
                if any(note.kind != "url_citation" for note in notes):
                    account.note("output[*].content[*].annotations: any other", index, number)
        case Reasoning():
            if item.summary:
                beside = "beside the reasoning" if item.content else "alone"
                account.note(f"output[*].summary: {beside}", index)
            if item.encrypted is not None:
                account.note("output[*].encrypted_content", index)
        case Compaction():
            account.note("output[*]: compaction", index)
        case Unknown(wire=wire) if wire != "chat":
            account.note("output[*]: of another kind", index)
    account.unknown(item.extra, "output[*]", index)


def judge(request: Request, target: str) -> tuple[Loss, ...]:
    """What the request loses when it is said on the target wire.

    Fields are named as the client of the other wire wrote them; on its own wire a request loses
    nothing. Raises FaultError (`unsupported`, with the field) where a loss would change what the
    caller gets.
    """
    account = Account(REQUEST[target], target, request.items)
    if target == "responses":
        _to_responses_loss(request, account)
    else:
        _to_chat_loss(request, account)
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


def _to_responses_loss(request: Request, account: Account) -> None:
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
        _item_to_responses_loss(item, account, index)


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


def _item_to_responses_loss(item: Item, account: Account, index: int) -> None:
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


def _to_chat_loss(request: Request, account: Account) -> None:
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
        _item_to_chat_loss(item, account)
    for index, item in enumerate(request.items):
        _item_to_chat_loss(item, account, index)


def _item_to_chat_loss(item: Item, account: Account, *place: int) -> None:
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

    >>> header([Loss("seed", "dropped", ""), Loss("logprobs", "emulated", "")])
    'dropped: seed; emulated: logprobs'
    """
    groups: dict[str, dict[str, None]] = {"dropped": {}, "emulated": {}}
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
    return with_param(fault, _worded(fault.param, request, wire))


def _worded(name: str, request: Request, wire: str) -> str:
    def word(found: re.Match[str]) -> str:
        place = found[2]
        if place is not None and wire == "chat":
            place = message_numbers(request.items)[int(place)]
        return _WORDS[wire][found[1]] + ("" if place is None else f"[{place}]")

    for pattern, words in _MEMBERS[wire]:
        name = pattern.sub(words, name)
    return _CORE_NAME.sub(word, name)
