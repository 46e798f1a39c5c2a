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
    SAME,
    SAMPLED,
    SEVERAL,
    Losses,
    Row,
    Table,
    Test,
    foreign,
    is_true,
    rows,
)

_WIRE = "chat"
_FOREIGN = "of another wire", foreign(_WIRE)
_NO_HOSTED = "Chat has no hosted tools"
_CALLS = (
    *rows("carried", SAME, "FunctionCall.call_id name arguments namespace"),
    *rows("carried", SAME, "CustomToolCall.call_id name input namespace"),
)


def _new_summary(item: Any, _: Any) -> bool:
    """A summary that repeats the reasoning is one we emulated; leaving it out loses nothing."""
    thoughts = [part.text for part in item.content if isinstance(part, Thought)]
    summary = [part.text for part in item.summary if isinstance(part, Summary)]
    return bool(item.summary) and (thoughts != summary or len(summary) != len(item.summary))


def _summaries(how: str, test: Test) -> tuple[Row, Row]:
    """The rows of summaries: Chat has one field for them and for the reasoning itself."""
    field, alone, beside = "Reasoning.summary", "alone", "beside other reasoning"
    instead, left_out = f"{how} in place of the reasoning itself", f"the reasoning itself is {how}"
    return (
        Row(field, "emulated", instead, alone, lambda i, r: test(i, r) and not i.content),
        Row(field, "dropped", left_out, beside, lambda i, r: test(i, r) and i.content),
    )


_REQUEST = Table(
    SAMPLED,
    rows(
        "carried",
        SAME,
        "Request.parallel_tool_calls store metadata moderation service_tier tools audio",
        "Request.safety_identifier prompt_cache_key prompt_cache_options prompt_cache_retention",
        "Request.verbosity modalities prediction",
        "Sampling.top_k min_p n repetition_penalty seed stop logit_bias logprobs top_logprobs",
        "AudioOutput",
        "StreamOptions",
        "Message.role content name",
        "FunctionTool",
        "CustomTool",
    ),
    Row("Request.items", "carried", "as `messages`; what belongs to one turn is one message"),
    Row("Request.instructions", "carried", "as the first system message"),
    Row("Request.tool_choice", "carried", "the same choice, nested; `allowed_tools` too"),
    rows("carried", "the same choice, nested", "NamedTool", "AllowedTools"),
    Row("Request.max_output_tokens", "carried", "as `max_completion_tokens`"),
    rows(
        "carried",
        "as `response_format`",
        "Request.format",
        "TextFormat",
        "JSONObject",
        "JSONSchema",
    ),
    rows("carried", "as `reasoning_effort`", "Request.reasoning", "ReasoningOptions.effort"),
    Row("Request.web_search", "carried", "as `web_search_options`"),
    Row("ReasoningOptions.summary", "emulated", "the reasoning itself is given as its summary too"),
    Row("Request.max_tool_calls", "dropped", "Chat runs no tools by itself"),
    Row("Request.previous_response_id", "refused", "Chat stores no responses"),
    Row("Request.conversation", "refused", "Chat stores no conversations"),
    Row("Request.prompt", "refused", "Chat stores no prompts"),
    Row("Request.context_management", "dropped", "Chat sends the whole conversation"),
    Row(
        "Request.background",
        "refused",
        "Chat answers at once or not at all",
        "true",
        is_true("background"),
    ),
    Row(
        "Request.truncation",
        "dropped",
        "Chat never cuts a conversation",
        "not `disabled`",
        lambda request, _: request.truncation not in (None, "disabled"),
    ),
    Row("Request.include", "dropped", "Chat cannot add this to an answer"),
    Row("Request.include", "emulated", "asked for by `logprobs`", "message.output_text.logprobs"),
    *(
        Row("Request.include", "dropped", why, value)
        for value, why in (
            ("reasoning.encrypted_content", "Chat has no encrypted reasoning"),
            ("message.input_image.image_url", "Chat does not repeat the input"),
            ("file_search_call.results", _NO_HOSTED),
            ("web_search_call.results", _NO_HOSTED),
            ("web_search_call.action.sources", _NO_HOSTED),
            ("computer_call_output.output.image_url", _NO_HOSTED),
            ("code_interpreter_call.outputs", _NO_HOSTED),
        )
    ),
    Row("Completion", "refused", "Chat takes conversations, no bare prompts", name="prompts"),
    Row("Message.phase", "dropped", "Chat messages have no phase"),
    *(
        Row(f"{item}.{field}", "dropped", why)
        for field, why in (
            ("id", "Chat has no ids of items; a call keeps its `call_id`"),
            ("status", "Chat has no status of items"),
        )
        for item in (
            *("Message", "Reasoning", "FunctionCall", "CustomToolCall"),
            *("FunctionCallOutput", "CustomToolCallOutput"),
        )
    ),
    Row("Reasoning.content", "carried", "as reasoning of the message it led to"),
    *_summaries("sent", _new_summary),
    Row("Reasoning.encrypted", "dropped", "Chat has no encrypted reasoning"),
    _CALLS,
    rows("carried", "as a tool message", "FunctionCallOutput.call_id output"),
    rows("carried", "as a tool message", "CustomToolCallOutput.call_id output"),
    *(
        Row(f"{part} in an output", "emulated", "shown in a user message after it")
        for part in ("Image", "Audio", "File")
    ),
    Row("Compaction", "refused", "only the server that made a compaction can read it"),
    Row("ItemReference", "refused", "Chat stores no items to refer to"),
    Row(
        "Unknown",
        "dropped",
        "only the last item can ask for a summary",
        "`compaction_trigger`",
        lambda item, _: item.kind == "compaction_trigger" and item.wire != _WIRE,
    ),
    Row(
        "Unknown",
        "emulated",
        "the model reads it as text",
        "of another wire",
        lambda item, _: item.kind != "compaction_trigger" and item.wire != _WIRE,
    ),
    rows("carried", "as text", "Text.text", "Thought.text", "Summary.text"),
    Row("Text.annotations", "dropped", "Chat takes no annotations back"),
    *(
        Row(f"{part}.tokens", "dropped", "Chat takes no log-probabilities back")
        for part in ("Text", "Refusal", "Thought")
    ),
    rows("carried", "where they stand", "Annotation", "Token"),
    Row("Refusal.text", "carried", "as `refusal`"),
    rows("carried", "as `image_url`", "Image.url detail"),
    Row("Image.file_id", "refused", "Chat images have addresses only"),
    Row("Audio", "carried", "as `input_audio`, or `audio` of a message"),
    rows("carried", "as `file`", "File.file_id data filename"),
    Row("File.url", "refused", "Chat files have no address", name="file_url"),
    Row("UnknownPart", "refused", "Chat has no such part", *_FOREIGN),
    Row("Namespace", "carried", "its tools one by one"),
    Row("UnknownTool", "dropped", _NO_HOSTED, *_FOREIGN),
    Row("UnknownTool as a choice", "refused", _NO_HOSTED, *_FOREIGN),
)

_ANSWER = Table(
    ANSWERED,
    _CALLS,
    rows("carried", SAME, "Response.choices", "Usage", "Message.role"),
    Row("Response.created_at", "carried", "as `created`"),
    Row("Response.status", "carried", "as `finish_reason`, or as an error"),
    Row("Response.error", "carried", "as an error object"),
    Row("Response.completed_at", "dropped", "Chat does not say when it ended", silent=True),
    Row(
        "Response.reasons",
        "emulated",
        "said as `stop`",
        "not `length` or `content_filter`",
        lambda response, _: (
            response.status == "incomplete"
            and not {"length", "content_filter"} & {*response.reasons}
        ),
        "incomplete_details.reason",
    ),
    Row("Response.output", "carried", "as one message"),
    Row("Response.output", "emulated", "joined into one message", SEVERAL),
    *(
        Row(f"{item}.{field}", "carried", why)
        for field, why in (
            ("id", "the answer's id stands for all; a call keeps its `call_id`"),
            ("status", "in `finish_reason`"),
        )
        for item in ("Message", "Reasoning", "FunctionCall", "CustomToolCall")
    ),
    Row("Message.phase", "dropped", "Chat messages have no phase"),
    Row("Message.name", "dropped", "an answer has no name", silent=True),
    Row("Reasoning.content", "carried", "as reasoning of the message"),
    *_summaries("shown", is_true("summary")),
    Row("Reasoning.encrypted", "dropped", "Chat has no encrypted reasoning"),
    Row("Compaction", "dropped", "Chat has no compactions"),
    Row("Unknown", "dropped", _NO_HOSTED, *_FOREIGN),
    rows(
        "dropped",
        "no part of an answer",
        "FunctionCallOutput",
        "CustomToolCallOutput",
        "ItemReference",
    ),
    rows("carried", "as `content`", "Text.text", "Thought.text", "Summary.text"),
    rows(
        "carried", "beside the message", "Text.tokens", "Thought.tokens", "Refusal.tokens", "Token"
    ),
    Row(
        "Text.annotations",
        "dropped",
        "Chat cites addresses only",
        "not `url_citation`",
        lambda part, _: any(note.kind != "url_citation" for note in part.annotations),
    ),
    Row("Annotation", "carried", "nested"),
    Row("Refusal.text", "carried", "as `refusal`"),
    Row("Audio", "carried", "as `audio`"),
    rows("dropped", "Chat answers with text and sound", "Image", "File"),
    Row("UnknownPart", "dropped", "Chat has no such part", *_FOREIGN),
)

LOSSES = Losses(_WIRE, _REQUEST, _ANSWER)


# ---- names -----------------------------------------------------------------------------------

_TOOL = r"^(tools\[\d+\](?:\.tools\[\d+\])?)"
_RENAMED = tuple(
    (re.compile(core), chat)
    for core, chat in (
        (r"^format\.", "response_format.json_schema."),
        (r"^format\b", "response_format"),
        (r"^max_output_tokens\b", "max_completion_tokens"),
        (r"^reasoning\.effort\b", "reasoning_effort"),
        (r"^web_search\b", "web_search_options"),
        (r"^instructions\b", "messages"),
        (rf"{_TOOL}\.parameters\b", r"\1.function.parameters"),
        (rf"{_TOOL}\.grammar\b", r"\1.custom.format.grammar.definition"),
        (rf"{_TOOL}\.syntax\b", r"\1.custom.format.grammar.syntax"),
        (r"^tool_choice\.tools\b", "tool_choice.allowed_tools.tools"),
    )
)
"""Fields of the core that Chat calls otherwise, or has elsewhere."""
_ITEM = re.compile(r"^items(?:\[(\d+|\*)\])?(.*)")
_SOUND = re.compile(r"\.content\[[\d*]+\]\.audio")


def spelling(request: Request) -> Callable[[str], str]:
    """The function from the core's name of a field in this request to Chat's."""
    numbers: list[int] = []

    def spell(path: str) -> str:
        if (found := _ITEM.match(path)) is None:
            for pattern, name in _RENAMED:
                path = pattern.sub(name, path)
            return path
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
