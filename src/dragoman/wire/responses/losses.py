"""What Responses cannot say, and what it calls the fields of the core."""

from __future__ import annotations

from dragoman.wire.losses import (
    ANSWERED,
    LABELLED,
    SAME,
    SAMPLED,
    TOOL,
    UNNAMED_STOP,
    Case,
    Losses,
    Table,
    foreign,
    one_text,
    one_text_answered,
    renaming,
    rows,
)

_WIRE = "responses"
_FOREIGN = foreign(_WIRE)
_LOGPROBS = "message.output_text.logprobs"
_SPOKEN = Case("with a transcript", lambda part, _: part.transcript is not None)
_BY_ID = Case("by id only", lambda part, _: part.transcript is None and part.id is not None)
_SOUND = Case("sound", lambda part, _: part.transcript is None and part.id is None)
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
    one_text("Responses", _WIRE),
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
    rows("dropped", "Responses takes no predicted output", "Request.prediction"),
    rows("refused", "Responses has no stop sequences", "Sampling.stop"),
    rows(
        "dropped",
        "Responses has no such sampling value",
        "Sampling.top_k",
    ),
    rows("emulated", f"asked for by `include: {_LOGPROBS}`", "Sampling.logprobs", case=_ASKED),
    rows("emulated", f"sent beside `include: {_LOGPROBS}`", "Sampling.top_logprobs", case=_BESIDE),
    rows("carried", "as `text.format`, without nesting", "TextFormat", "JSONObject", "JSONSchema"),
    rows("carried", "without nesting", "FunctionTool", "CustomTool", "NamedTool", "AllowedTools"),
    rows("dropped", "Responses has no speaker's name", "Message.name"),
    rows("refused", "the sound behind this id cannot be sent", "Audio", case=_BY_ID, name="audio"),
    rows("refused", "Responses takes no audio", "Audio", case=_SOUND, name="input_audio"),
    rows("refused", "Responses has no such part", "UnknownPart", case=_FOREIGN),
)

_ANSWER = Table(
    ANSWERED,
    UNNAMED_STOP,
    _CARRIED,
    one_text_answered("Responses"),
    rows(
        "carried",
        SAME,
        "Response.created_at status output error completed_at",
        "Usage.input_tokens output_tokens total_tokens cached_tokens cache_write_tokens",
        "Usage.reasoning_tokens",
    ),
    rows("carried", "as `incomplete_details`", "Response.reasons"),
    rows(
        "dropped",
        "Responses takes no predicted output",
        "Usage.accepted_prediction_tokens rejected_prediction_tokens",
    ),
    rows("dropped", "an answer has no name", "Message.name", silent=True),
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
