"""What Responses cannot say, and what it calls the fields of the core."""

from __future__ import annotations

from dragoman.wire.losses import (
    ANSWERED,
    LABELLED,
    NOT_TEXT,
    SAME,
    SAMPLED,
    TOOL,
    Case,
    Losses,
    Table,
    foreign,
    is_true,
    renaming,
    rows,
)

_WIRE = "responses"
_FOREIGN = foreign(_WIRE)
_LOGPROBS = "message.output_text.logprobs"
_SPOKEN = Case("with a transcript", lambda part, _: part.transcript is not None)
_SILENT = Case("without a transcript", lambda part, _: part.transcript is None)
_BY_ID = Case("by id only", lambda part, _: part.transcript is None and part.id is not None)
_SOUND = Case("sound", lambda part, _: part.transcript is None and part.id is None)
_SEVERAL = Case("more than 1", lambda sampling, _: sampling.n is not None and sampling.n > 1)
_ASKED = Case(
    "not in `include`",
    lambda sampling, request: sampling.logprobs and _LOGPROBS not in request.include,
)
_BESIDE = Case(
    "with `logprobs`",
    lambda sampling, request: (
        sampling.logprobs and sampling.top_logprobs is not None and _LOGPROBS not in request.include
    ),
)
_CARRIED = (
    *rows("carried", SAME, "Message.role id status phase"),
    *rows("carried", SAME, "Reasoning", "FunctionCall", "FunctionCallOutput", "CustomToolCall"),
    *rows("carried", SAME, "CustomToolCallOutput", "Compaction", "ItemReference"),
    *rows("carried", "as a part", "Text", "Thought.text", "Summary.text", "Refusal.text"),
    *rows("carried", "where they stand", "Annotation", "Token"),
    *rows("dropped", "Responses has none for these", "Refusal.tokens", "Thought.tokens"),
    *rows("dropped", "Responses has no such item", "Unknown", case=_FOREIGN),
    *rows("emulated", "the transcript is given as text", "Audio", case=_SPOKEN, name="audio"),
)

_REQUEST = Table(
    SAMPLED,
    LABELLED,
    _CARRIED,
    rows(
        "carried",
        SAME,
        "Request.instructions max_tool_calls max_output_tokens reasoning previous_response_id",
        "Request.conversation background truncation context_management include prompt",
        "ReasoningOptions",
        "Message.content",
        "Image",
        "File",
        "Namespace",
        "StreamOptions.include_obfuscation",
    ),
    rows("carried", "as `input`", "Request.items"),
    rows("carried", "the same choice, without nesting", "Request.tool_choice"),
    rows("carried", "as `text.format`", "Request.format"),
    rows("carried", "as `text.verbosity`", "Request.verbosity"),
    rows("refused", "Responses takes conversations, no bare prompts", "Completion", name="prompts"),
    rows("refused", "Responses answers in text only", "Request.modalities", case=NOT_TEXT),
    rows("dropped", "no spoken answer was asked for", "Request.audio", "AudioOutput"),
    rows("dropped", "Responses takes no predicted output", "Request.prediction"),
    rows("dropped", "Responses searches by a tool of its own", "Request.web_search"),
    rows("refused", "Responses has no stop sequences", "Sampling.stop"),
    rows(
        "refused",
        "Responses cannot bias tokens",
        "Sampling.logit_bias",
        case=is_true("logit_bias", "not empty"),
    ),
    rows("refused", "Responses gives one answer", "Sampling.n", case=_SEVERAL),
    rows("dropped", "Responses has no seed", "Sampling.seed"),
    rows(
        "dropped",
        "Responses has no such sampling value",
        "Sampling.top_k min_p repetition_penalty",
    ),
    rows("emulated", f"asked for by `include: {_LOGPROBS}`", "Sampling.logprobs", case=_ASKED),
    rows("emulated", f"sent beside `include: {_LOGPROBS}`", "Sampling.top_logprobs", case=_BESIDE),
    rows("carried", "usage is part of every answer", "StreamOptions.include_usage"),
    rows("carried", "as `text.format`, without nesting", "TextFormat", "JSONObject", "JSONSchema"),
    rows("carried", "without nesting", "FunctionTool", "CustomTool", "NamedTool", "AllowedTools"),
    rows("dropped", "Responses has no speaker's name", "Message.name"),
    rows("refused", "the sound behind this id cannot be sent", "Audio", case=_BY_ID, name="audio"),
    rows("refused", "Responses takes no audio", "Audio", case=_SOUND, name="input_audio"),
    rows("refused", "Responses has no such part", "UnknownPart", case=_FOREIGN),
    rows("dropped", "Responses has no such tool", "UnknownTool", case=_FOREIGN),
    rows("refused", "Responses has no such tool", "UnknownTool as a choice", case=_FOREIGN),
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
    rows("carried", "as `incomplete_details`", "Response.reasons"),
    rows("dropped", "Responses gives one answer, the first", "Response.choices"),
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
    rows("dropped", "an answer has no name", "Message.name", silent=True),
    rows("dropped", "Responses has no sound", "Audio", case=_SILENT, name="audio"),
    rows("dropped", "Responses answers with text", "Image", "File"),
    rows("dropped", "Responses has no such part", "UnknownPart", case=_FOREIGN),
)

LOSSES = Losses(_WIRE, _REQUEST, _ANSWER)

spelling = renaming(
    (r"^items\b", "input"),
    (r"^format\b", "text.format"),
    (r"^verbosity\b", "text.verbosity"),
    (rf"{TOOL}\.grammar\b", r"\1.format.definition"),
    (rf"{TOOL}\.syntax\b", r"\1.format.syntax"),
)
"""Gives the function from the core's name of a field to the one of Responses."""
