"""What Completions cannot say, and what it calls the fields of the core."""

from __future__ import annotations

import re
from collections.abc import Callable

from dragoman.core.request import Request, TextFormat
from dragoman.wire.losses import Losses, Row, Table, rows

_WIRE = "completions"
_SAME = "the same field"
_TEXT = "a prompt is text, and so is what follows it"
_ONCE = "Completions stores nothing"

_REQUEST = Table(
    rows(
        "carried",
        _SAME,
        "Request.model sampling stream stream_options user",
        "Completion.prompts echo",
        "Sampling.temperature top_p top_k min_p frequency_penalty presence_penalty n",
        "Sampling.repetition_penalty seed stop logit_bias logprobs top_logprobs",
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
        lambda request, _: request.background,
    ),
    Row(
        "Request.modalities",
        "refused",
        "Completions answers in text only",
        "not text",
        lambda request, _: any(modality != "text" for modality in request.modalities or ()),
    ),
    Row("Request.store", "dropped", _ONCE, "true", lambda request, _: request.store),
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
    rows(
        "carried",
        _SAME,
        "Response.model usage choices",
        "Usage",
    ),
    Row("Response.id", "carried", "the same id, with this wire's prefix"),
    Row("Response.created_at", "carried", "as `created`"),
    rows("carried", "as `finish_reason`, or as an error", "Response.status reasons"),
    Row("Response.error", "carried", "as an error object"),
    rows("carried", "in a header", "Response.losses guarantee"),
    Row("Response.completed_at", "dropped", "Completions does not say it", silent=True),
    Row("Response.output", "carried", "its text"),
    Row("Message.content", "carried", "its text"),
    rows("dropped", "text stands alone here", "Message.phase name"),
    Row("Message.role", "carried", "all is the model's"),
    rows("carried", "in what the answer says of itself", "Message.id status"),
    rows("carried", "as text", "Text.text tokens", "Token"),
    Row("Text.annotations", "dropped", "text stands alone here"),
    rows("dropped", _TEXT, "Refusal", "Image", "Audio", "File", "Thought", "Summary"),
    rows("dropped", _TEXT, "Annotation", "UnknownPart", "Reasoning", "Compaction", "Unknown"),
    rows("dropped", _TEXT, "FunctionCall", "CustomToolCall", "ItemReference"),
    rows("dropped", _TEXT, "FunctionCallOutput", "CustomToolCallOutput"),
)

LOSSES = Losses(_WIRE, _REQUEST, _ANSWER)
_LIMIT = re.compile(r"^max_output_tokens\b")


def spelling(request: Request) -> Callable[[str], str]:
    """The function from the core's name of a field to the one of Completions."""
    return _spell


def _spell(path: str) -> str:
    return _LIMIT.sub("max_tokens", path)
