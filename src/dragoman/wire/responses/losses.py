"""What Responses cannot say, and what it calls the fields of the core."""

from __future__ import annotations

import re
from collections.abc import Callable

from dragoman.core.request import Request
from dragoman.wire.losses import (
    ANSWERED,
    SAME,
    SAMPLED,
    Losses,
    Row,
    Table,
    foreign,
    is_true,
    not_text,
    rows,
)

_WIRE = "responses"
_FOREIGN = "of another wire", foreign(_WIRE)
_LOGPROBS = "message.output_text.logprobs"
_CARRIED = (
    *rows("carried", SAME, "Message.role id status phase"),
    *rows("carried", SAME, "Reasoning", "FunctionCall", "FunctionCallOutput", "CustomToolCall"),
    *rows("carried", SAME, "CustomToolCallOutput", "Compaction", "ItemReference"),
    *rows("carried", "as a part", "Text", "Thought.text", "Summary.text", "Refusal.text"),
    *rows("carried", "where they stand", "Annotation", "Token"),
    *rows("dropped", "Responses has none for these", "Refusal.tokens", "Thought.tokens"),
    Row("Unknown", "dropped", "Responses has no such item", *_FOREIGN),
    Row(
        "Audio",
        "emulated",
        "the transcript is given as text",
        "with a transcript",
        lambda part, _: part.transcript is not None,
        "audio",
    ),
)

_REQUEST = Table(
    SAMPLED,
    _CARRIED,
    rows(
        "carried",
        SAME,
        "Request.instructions tools parallel_tool_calls max_tool_calls max_output_tokens",
        "Request.reasoning store previous_response_id conversation",
        "Request.background truncation context_management include prompt metadata",
        "Request.safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options",
        "Request.service_tier moderation",
        "ReasoningOptions",
        "Message.content",
        "Image",
        "File",
        "Namespace",
        "StreamOptions.include_obfuscation",
    ),
    Row("Request.items", "carried", "as `input`"),
    Row("Request.tool_choice", "carried", "the same choice, without nesting"),
    Row("Request.format", "carried", "as `text.format`"),
    Row("Request.verbosity", "carried", "as `text.verbosity`"),
    Row("Completion", "refused", "Responses takes conversations, no bare prompts", name="prompts"),
    Row("Request.modalities", "refused", "Responses answers in text only", "not text", not_text),
    rows("dropped", "no spoken answer was asked for", "Request.audio", "AudioOutput"),
    Row("Request.prediction", "dropped", "Responses takes no predicted output"),
    Row("Request.web_search", "dropped", "Responses searches by a tool of its own"),
    Row("Sampling.stop", "refused", "Responses has no stop sequences"),
    Row(
        "Sampling.logit_bias",
        "refused",
        "Responses cannot bias tokens",
        "not empty",
        is_true("logit_bias"),
    ),
    Row(
        "Sampling.n",
        "refused",
        "Responses gives one answer",
        "more than 1",
        lambda sampling, _: sampling.n is not None and sampling.n > 1,
    ),
    Row("Sampling.seed", "dropped", "Responses has no seed"),
    rows(
        "dropped",
        "Responses has no such sampling value",
        "Sampling.top_k min_p repetition_penalty",
    ),
    Row(
        "Sampling.logprobs",
        "emulated",
        f"asked for by `include: {_LOGPROBS}`",
        "not in `include`",
        lambda sampling, request: sampling.logprobs and _LOGPROBS not in request.include,
    ),
    Row(
        "Sampling.top_logprobs",
        "emulated",
        f"sent beside `include: {_LOGPROBS}`",
        "with `logprobs`",
        lambda sampling, request: (
            sampling.logprobs
            and sampling.top_logprobs is not None
            and _LOGPROBS not in request.include
        ),
    ),
    Row("StreamOptions.include_usage", "carried", "usage is part of every answer"),
    rows("carried", "as `text.format`, without nesting", "TextFormat", "JSONObject", "JSONSchema"),
    rows("carried", "without nesting", "FunctionTool", "CustomTool", "NamedTool", "AllowedTools"),
    Row("Message.name", "dropped", "Responses has no speaker's name"),
    Row(
        "Audio",
        "refused",
        "the sound behind this id cannot be sent",
        "by id only",
        lambda part, _: part.transcript is None and part.id is not None,
        "audio",
    ),
    Row(
        "Audio",
        "refused",
        "Responses takes no audio",
        "sound",
        lambda part, _: part.transcript is None and part.id is None,
        "input_audio",
    ),
    Row("UnknownPart", "refused", "Responses has no such part", *_FOREIGN),
    Row("UnknownTool", "dropped", "Responses has no such tool", *_FOREIGN),
    Row("UnknownTool as a choice", "refused", "Responses has no such tool", *_FOREIGN),
)

_ANSWER = Table(
    ANSWERED,
    _CARRIED,
    rows(
        "carried",
        SAME,
        "Response.created_at status output error completed_at",
        "Usage.input_tokens output_tokens total_tokens cached_tokens cache_write_tokens",
        "Usage.reasoning_tokens",
    ),
    Row("Response.reasons", "carried", "as `incomplete_details`"),
    Row("Response.choices", "dropped", "Responses gives one answer, the first"),
    rows(
        "dropped",
        "Responses does not split usage so",
        "Usage.input_audio_tokens input_text_tokens input_image_tokens",
        "Usage.output_audio_tokens output_text_tokens",
    ),
    rows(
        "dropped",
        "Responses takes no predicted output",
        "Usage.accepted_prediction_tokens rejected_prediction_tokens",
    ),
    Row("Message.name", "dropped", "an answer has no name", silent=True),
    Row(
        "Audio",
        "dropped",
        "Responses has no sound",
        "without a transcript",
        lambda part, _: part.transcript is None,
        "audio",
    ),
    rows("dropped", "Responses answers with text", "Image", "File"),
    Row("UnknownPart", "dropped", "Responses has no such part", *_FOREIGN),
)

LOSSES = Losses(_WIRE, _REQUEST, _ANSWER)


# ---- names -----------------------------------------------------------------------------------

_TOOL = r"^(tools\[\d+\](?:\.tools\[\d+\])?)"
_RENAMED = tuple(
    (re.compile(core), here)
    for core, here in (
        (r"^items\b", "input"),
        (r"^format\b", "text.format"),
        (r"^verbosity\b", "text.verbosity"),
        (rf"{_TOOL}\.grammar\b", r"\1.format.definition"),
        (rf"{_TOOL}\.syntax\b", r"\1.format.syntax"),
    )
)


def spelling(request: Request) -> Callable[[str], str]:
    """The function from the core's name of a field to the one of Responses."""

    def spell(path: str) -> str:
        for pattern, name in _RENAMED:
            path = pattern.sub(name, path)
        return path

    return spell
