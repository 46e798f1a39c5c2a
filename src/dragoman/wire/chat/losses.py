"""What Chat Completions cannot say, and what it calls the fields of the core."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dragoman.core.item import (
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Summary,
    Thought,
    Unknown,
)
from dragoman.core.request import Request
from dragoman.wire.losses import (
    ANSWERED,
    LABELLED,
    NO_PART_OF_AN_ANSWER,
    OTHER_STATUS,
    SAME,
    SAMPLED,
    SEVERAL,
    TOOL,
    UNFINISHED,
    UNNAMED_STOP,
    Action,
    Case,
    Losses,
    Row,
    Table,
    Test,
    foreign,
    no_bare_prompts,
    renaming,
    rows,
    stateless,
)

_WIRE = "chat"
_FOREIGN = foreign(_WIRE)
_OTHER_NOTE = Case(
    "not `url_citation`",
    lambda part, _: any(note.kind != "url_citation" for note in part.annotations),
)
_OTHER_END = Case(
    "not `length` or `content_filter`",
    lambda response, _: (
        response.status == "incomplete" and not {"length", "content_filter"} & {*response.reasons}
    ),
)
_NO_HOSTED = "Chat has no hosted tools"
_CALLS = (
    *rows("carried", SAME, "FunctionCall.call_id name arguments namespace"),
    *rows("carried", SAME, "CustomToolCall.call_id name input namespace"),
)
_ANSWERED = ("Message", "Reasoning", "FunctionCall", "CustomToolCall")
_ITEMS = (*_ANSWERED, "FunctionCallOutput", "CustomToolCallOutput")


def _new_summary(item: Any, _: Any) -> bool:
    """A summary that repeats the reasoning is one we emulated; leaving it out loses nothing."""
    thoughts = [part.text for part in item.content if isinstance(part, Thought)]
    summary = [part.text for part in item.summary if isinstance(part, Summary)]
    return bool(item.summary) and (thoughts != summary or len(summary) != len(item.summary))


def _summaries(how: str, test: Test) -> tuple[Row, ...]:
    """The rows of summaries: Chat has one field for them and for the reasoning itself."""
    alone = Case("alone", lambda i, r: test(i, r) and not i.content)
    beside = Case("beside other reasoning", lambda i, r: test(i, r) and i.content)
    instead, left_out = f"{how} in place of the reasoning itself", f"the reasoning itself is {how}"
    return (
        *rows("emulated", instead, "Reasoning.summary", case=alone),
        *rows("dropped", left_out, "Reasoning.summary", case=beside),
    )


def _included(why: str, *values: str, action: Action = "dropped") -> tuple[Row, ...]:
    """The rows for values of `include`."""
    return tuple([Row("Request.include", action, why, value) for value in values])


_REQUEST = Table(
    SAMPLED,
    LABELLED,
    stateless("Chat", _WIRE),
    no_bare_prompts("Chat"),
    rows(
        "carried",
        SAME,
        "Request.audio verbosity modalities prediction",
        "Sampling.top_k min_p n repetition_penalty seed stop logit_bias logprobs top_logprobs",
        "AudioOutput",
        "StreamOptions",
        "Message.role content name",
        "FunctionTool",
        "CustomTool",
    ),
    rows("carried", "as `messages`; what belongs to one turn is one message", "Request.items"),
    rows("carried", "as the first system message", "Request.instructions"),
    rows("carried", "the same choice, nested; `allowed_tools` too", "Request.tool_choice"),
    rows("carried", "the same choice, nested", "NamedTool", "AllowedTools"),
    rows("carried", "as `max_completion_tokens`", "Request.max_output_tokens"),
    rows("carried", "as `response_format`", "Request.format", "TextFormat", "JSONObject"),
    rows("carried", "as `response_format`", "JSONSchema"),
    rows("carried", "as `reasoning_effort`", "Request.reasoning", "ReasoningOptions.effort"),
    rows("carried", "as `web_search_options`", "Request.web_search"),
    rows("dropped", "Chat runs no tools by itself", "Request.max_tool_calls"),
    rows("refused", "Chat stores no responses", "Request.previous_response_id"),
    rows("dropped", "Chat sends the whole conversation", "Request.context_management"),
    _included("asked for by `logprobs`", "message.output_text.logprobs", action="emulated"),
    _included("Chat has no encrypted reasoning", "reasoning.encrypted_content"),
    _included("Chat does not repeat the input", "message.input_image.image_url"),
    _included(
        _NO_HOSTED,
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    ),
    rows("dropped", "Chat messages have no phase", "Message.phase"),
    rows(
        "dropped",
        "Chat has no ids of items; a call keeps its `call_id`",
        *(f"{item}.id" for item in _ITEMS),
    ),
    rows(
        "dropped",
        "Chat has no status of items",
        *(f"{item}.status" for item in _ITEMS if item != "Message"),
    ),
    rows("dropped", "Chat has no status of items", "Message.status", case=OTHER_STATUS),
    rows(
        "emulated",
        "sent last: some servers continue it, others answer it",
        "Message.status",
        case=UNFINISHED,
        name="",
    ),
    rows("carried", "as reasoning of the message it led to", "Reasoning.content"),
    _summaries("sent", _new_summary),
    rows("dropped", "Chat has no encrypted reasoning", "Reasoning.encrypted"),
    _CALLS,
    rows("carried", "as a tool message", "FunctionCallOutput.call_id output"),
    rows("carried", "as a tool message", "CustomToolCallOutput.call_id output"),
    rows(
        "emulated",
        "shown in a user message after it",
        *(f"{part} in an output" for part in ("Image", "Audio", "File")),
    ),
    rows("carried", "as text", "Text.text", "Thought.text", "Summary.text"),
    rows("dropped", "Chat takes no annotations back", "Text.annotations"),
    rows(
        "dropped",
        "Chat takes no log-probabilities back",
        *("Text.tokens", "Refusal.tokens", "Thought.tokens"),
    ),
    rows("carried", "where they stand", "Annotation", "Token"),
    rows("carried", "as `refusal`", "Refusal.text"),
    rows("carried", "as `image_url`", "Image.url detail"),
    rows("refused", "Chat images have addresses only", "Image.file_id"),
    rows("carried", "as `input_audio`, or `audio` of a message", "Audio"),
    rows("carried", "as `file`", "File.file_id data filename"),
    rows("refused", "Chat files have no address", "File.url", name="file_url"),
    rows("refused", "Chat has no such part", "UnknownPart", case=_FOREIGN),
    rows("carried", "its tools one by one", "Namespace"),
    rows("dropped", _NO_HOSTED, "UnknownTool", case=_FOREIGN),
    rows("refused", _NO_HOSTED, "UnknownTool as a choice", case=_FOREIGN),
)

_ANSWER = Table(
    ANSWERED,
    UNNAMED_STOP,
    NO_PART_OF_AN_ANSWER,
    _CALLS,
    rows("carried", SAME, "Response.choices", "Usage", "Message.role"),
    rows("carried", "as `created`", "Response.created_at"),
    rows("carried", "as `finish_reason`, or as an error", "Response.status"),
    rows("carried", "as an error object", "Response.error"),
    rows("dropped", "Chat does not say when it ended", "Response.completed_at", silent=True),
    rows(
        "emulated",
        "reported as `stop`",
        "Response.reasons",
        case=_OTHER_END,
        name="incomplete_details.reason",
    ),
    rows("carried", "as one message", "Response.output"),
    rows("emulated", "joined into one message", "Response.output", case=Case(SEVERAL)),
    rows(
        "carried",
        "the answer's id stands for all; a call keeps its `call_id`",
        *(f"{item}.id" for item in _ANSWERED),
    ),
    rows("carried", "in `finish_reason`", *(f"{item}.status" for item in _ANSWERED)),
    rows("dropped", "Chat messages have no phase", "Message.phase"),
    rows("carried", "as reasoning of the message", "Reasoning.content"),
    _summaries("shown", lambda item, _: item.summary),
    rows("dropped", "Chat has no encrypted reasoning", "Reasoning.encrypted"),
    rows("dropped", "Chat has no compactions", "Compaction"),
    rows("dropped", _NO_HOSTED, "Unknown", case=_FOREIGN),
    rows("carried", "as `content`", "Text.text", "Thought.text", "Summary.text"),
    rows("carried", "beside the message", "Text.tokens", "Thought.tokens", "Refusal.tokens"),
    rows("carried", "beside the message", "Token"),
    rows("dropped", "Chat cites addresses only", "Text.annotations", case=_OTHER_NOTE),
    rows("carried", "nested", "Annotation"),
    rows("carried", "as `refusal`", "Refusal.text"),
    rows("carried", "as `audio`", "Audio"),
    rows("dropped", "Chat answers with text and sound", "Image", "File"),
    rows("dropped", "Chat has no such part", "UnknownPart", case=_FOREIGN),
)

LOSSES = Losses(_WIRE, _REQUEST, _ANSWER)


# ---- names -----------------------------------------------------------------------------------

_renamed = renaming(
    (r"^format\.", "response_format.json_schema."),
    (r"^format\b", "response_format"),
    (r"^max_output_tokens\b", "max_completion_tokens"),
    (r"^reasoning\.effort\b", "reasoning_effort"),
    (r"^web_search\b", "web_search_options"),
    (r"^instructions\b", "messages"),
    (rf"{TOOL}\.parameters\b", r"\1.function.parameters"),
    (rf"{TOOL}\.grammar\b", r"\1.custom.format.grammar.definition"),
    (rf"{TOOL}\.syntax\b", r"\1.custom.format.grammar.syntax"),
    (r"^tool_choice\.tools\b", "tool_choice.allowed_tools.tools"),
)
"""For fields of the core that Chat calls otherwise, or has elsewhere."""
_ITEM = re.compile(r"^items(?:\[(\d+|\*)\])?(.*)")
_SOUND = re.compile(r"\.content\[[\d*]+\]\.audio")


def spelling(request: Request) -> Callable[[str], str]:
    """The function from the core's name of a field in this request to Chat's."""
    numbers: list[int] = []
    rename = _renamed(request)

    def spell(path: str) -> str:
        if (found := _ITEM.match(path)) is None:
            return rename(path)
        place, rest = found[1], re.sub(r"^\.output\b", ".content", found[2])
        rest = ".audio" if _SOUND.fullmatch(rest) else rest
        if place is None or place == "*":
            return f"messages[*]{rest}" if place else f"messages{rest}"
        if not numbers:  # they are counted once, however many fields are named
            numbers.extend(message_numbers(request.items))
        if isinstance(request.items[int(place)], FunctionCall | CustomToolCall | Unknown):
            rest = f".tool_calls[*]{rest}"
        return f"messages[{numbers[int(place)]}]{rest}"

    return spell


def message_numbers(items: tuple[Item, ...]) -> list[int]:
    """The number of the Chat message that each item came in.

    A turn of the assistant is one message of several items: reasoning, text, calls. A mark in
    `extra["turn"]` tells where a turn begins right after another one.

    >>> turn = (Message("user", "?"), Reasoning(), Message("assistant", "!"), Message("user", ""))
    >>> message_numbers(turn)
    [0, 1, 1, 2]
    """
    numbers: list[int] = []
    number, inside = -1, False
    for item in items:
        if isinstance(item, Message):
            of_a_turn = item.role == "assistant"
        else:
            of_a_turn = isinstance(item, Reasoning | FunctionCall | CustomToolCall | Unknown)
        if not (inside and of_a_turn) or (item.extra is not None and "turn" in item.extra):
            number += 1
        inside = of_a_turn
        numbers.append(number)
    return numbers
