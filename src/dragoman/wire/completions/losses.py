"""What Completions cannot say, and what it calls the fields of the core."""

from __future__ import annotations

from dragoman.core.request import TextFormat
from dragoman.wire.losses import (
    ANSWERED,
    NOT_TEXT,
    SAME,
    SAMPLED,
    UNNAMED_STOP,
    Case,
    Losses,
    Table,
    is_true,
    renaming,
    rows,
)

_TEXT = "a prompt is text, and so is what follows it"
_ONCE = "Completions stores nothing"
_NO_CONVERSATION = "Completions takes a prompt, no conversation"
_FORMATTED = Case("not text", lambda request, _: not isinstance(request.format, TextFormat | None))

_REQUEST = Table(
    SAMPLED,
    rows(
        "carried",
        SAME,
        "Completion.prompts echo",
        "Sampling.top_k min_p n repetition_penalty seed stop logit_bias logprobs top_logprobs",
        "StreamOptions",
    ),
    rows("carried", "as `max_tokens`", "Request.max_output_tokens"),
    rows("refused", _NO_CONVERSATION, "Request.items instructions"),
    rows("refused", _TEXT, "Request.format", case=_FORMATTED),
    rows("refused", _ONCE, "Request.previous_response_id conversation prompt"),
    rows(
        "refused",
        "Completions answers at once or not at all",
        "Request.background",
        case=is_true("background"),
    ),
    rows("refused", "Completions gives text only", "Request.modalities", case=NOT_TEXT),
    rows("dropped", _ONCE, "Request.store", case=is_true("store")),
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
    UNNAMED_STOP,
    rows("carried", SAME, "Response.choices", "Usage"),
    rows("carried", "as `created`", "Response.created_at"),
    rows("carried", "as `finish_reason`, or as an error", "Response.status reasons"),
    rows("carried", "as an error object", "Response.error"),
    rows("dropped", "Completions does not say it", "Response.completed_at", silent=True),
    rows("carried", "its text", "Response.output"),
    rows("dropped", "text stands alone here", "Message.phase name", "Text.annotations"),
    rows("carried", "all is the model's", "Message.role"),
    rows("carried", "in what the answer says of itself", "Message.id status"),
    rows("carried", "as text", "Text.text tokens", "Token"),
    rows("dropped", _TEXT, "Refusal", "Image", "Audio", "File", "Thought", "Summary"),
    rows("dropped", _TEXT, "Annotation", "UnknownPart", "Reasoning", "Compaction", "Unknown"),
    rows("dropped", _TEXT, "FunctionCall", "CustomToolCall", "ItemReference"),
    rows("dropped", _TEXT, "FunctionCallOutput", "CustomToolCallOutput"),
)

LOSSES = Losses("completions", _REQUEST, _ANSWER)

spelling = renaming((r"^max_output_tokens\b", "max_tokens"))
"""Gives the function from the core's name of a field to the one of Completions."""
