"""What Completions cannot say, and what it calls the fields of the core."""

from __future__ import annotations

import re
from collections.abc import Callable

from dragoman.core.request import Request, TextFormat
from dragoman.wire.losses import (
    ANSWERED,
    SAME,
    SAMPLED,
    Losses,
    Row,
    Table,
    is_true,
    not_text,
    rows,
)

_TEXT = "a prompt is text, and so is what follows it"
_ONCE = "Completions stores nothing"

_REQUEST = Table(
    SAMPLED,
    rows(
        "carried",
        SAME,
        "Completion.prompts echo",
        "Sampling.top_k min_p n repetition_penalty seed stop logit_bias logprobs top_logprobs",
        "StreamOptions",
    ),
    Row("Request.max_output_tokens", "carried", "as `max_tokens`"),
    rows("refused", "Completions takes a prompt, no conversation", "Request.items instructions"),
    Row(
        "Request.format",
        "refused",
        _TEXT,
        "not text",
        lambda request, _: not isinstance(request.format, TextFormat | None),
    ),
    rows("refused", _ONCE, "Request.previous_response_id conversation prompt"),
    Row(
        "Request.background",
        "refused",
        "Completions answers at once or not at all",
        "true",
        is_true("background"),
    ),
    Row("Request.modalities", "refused", "Completions gives text only", "not text", not_text),
    Row("Request.store", "dropped", _ONCE, "true", is_true("store")),
    rows(
        "dropped",
        _TEXT,
        "Request.tools tool_choice parallel_tool_calls max_tool_calls verbosity reasoning audio",
        "Request.prediction web_search include context_management truncation",
    ),
    rows(
        "dropped",
        "Completions has no such label",
        "Request.metadata safety_identifier prompt_cache_key prompt_cache_retention",
        "Request.prompt_cache_options service_tier moderation",
    ),
)

_ANSWER = Table(
    ANSWERED,
    rows("carried", SAME, "Response.choices", "Usage"),
    Row("Response.created_at", "carried", "as `created`"),
    rows("carried", "as `finish_reason`, or as an error", "Response.status reasons"),
    Row("Response.error", "carried", "as an error object"),
    Row("Response.completed_at", "dropped", "Completions does not say it", silent=True),
    Row("Response.output", "carried", "its text"),
    rows("dropped", "text stands alone here", "Message.phase name", "Text.annotations"),
    Row("Message.role", "carried", "all is the model's"),
    rows("carried", "in what the answer says of itself", "Message.id status"),
    rows("carried", "as text", "Text.text tokens", "Token"),
    rows("dropped", _TEXT, "Refusal", "Image", "Audio", "File", "Thought", "Summary"),
    rows("dropped", _TEXT, "Annotation", "UnknownPart", "Reasoning", "Compaction", "Unknown"),
    rows("dropped", _TEXT, "FunctionCall", "CustomToolCall", "ItemReference"),
    rows("dropped", _TEXT, "FunctionCallOutput", "CustomToolCallOutput"),
)

LOSSES = Losses("completions", _REQUEST, _ANSWER)
_LIMIT = re.compile(r"^max_output_tokens\b")


def spelling(request: Request) -> Callable[[str], str]:
    """The function from the core's name of a field to the one of Completions."""
    return lambda path: _LIMIT.sub("max_tokens", path)
