"""What Anthropic's Messages cannot say, and what it calls the fields of the core."""

from __future__ import annotations

import re
from collections.abc import Callable

from dragoman.core.item import FunctionCallOutput, Message
from dragoman.core.request import Request
from dragoman.wire.losses import (
    ANSWERED,
    NO_PART_OF_AN_ANSWER,
    OTHER_STATUS,
    SAME,
    SEVERAL,
    UNFINISHED,
    Case,
    Losses,
    Table,
    foreign,
    is_true,
    one_text,
    one_text_answered,
    renaming,
    rows,
    stateless,
)

from .blocks import NAME, is_hosted, is_signed

_FOREIGN = foreign(NAME)
_FOREIGN_ITEM = Case(_FOREIGN.when, lambda item, _: item.wire != NAME and not is_hosted(item))
_NO_STATE = "Messages stores no conversations"
_NO_LOGPROBS = "Messages has no log-probabilities"
_SPOKEN = Case("with a transcript", lambda part, _: bool(part.transcript))
_SILENT = Case("without a transcript", lambda part, _: not part.transcript)
_PARTS = (
    *rows("carried", "as a block", "Text.text", "Image.url file_id", "File.data url file_id"),
    *rows("carried", "as `title`", "File.filename"),
    *rows("emulated", "sent as text", "Refusal.text", name="refusal"),
    *rows(
        "dropped",
        "Messages cites in its own way only",
        "Text.annotations",
        case=Case(
            "of another wire",
            lambda part, _: any(NAME not in (note.extra or ()) for note in part.annotations),
        ),
    ),
    *rows("carried", "as `citations`", "Annotation"),
    *rows("dropped", _NO_LOGPROBS, "Text.tokens", "Refusal.tokens", "Thought.tokens", "Token"),
    *rows("emulated", "the transcript is given as text", "Audio", case=_SPOKEN, name="audio"),
)
_CALLS = (
    *rows("carried", "as `tool_use`", "FunctionCall.call_id name arguments"),
    *rows("dropped", "Messages has no namespaces", "FunctionCall.namespace"),
    *rows("emulated", "as `tool_use` with one string `input`", "CustomToolCall"),
)


_REQUEST = Table(
    stateless("Messages", NAME),
    one_text("Messages", NAME),
    rows("carried", SAME, "Request.sampling stream model tools", "Sampling.top_p top_k"),
    rows("carried", "in `metadata`", "Request.user"),
    rows("carried", "as `system` and `messages`", "Request.items", "Message.content"),
    rows("carried", "as `system`", "Request.instructions"),
    rows("carried", "as `max_tokens`, which is always sent", "Request.max_output_tokens"),
    rows("carried", "`required` is `any`", "Request.tool_choice"),
    rows("carried", "by its name", "NamedTool"),
    rows("emulated", "sent as `auto` or `any`", "AllowedTools"),
    rows("carried", "as `disable_parallel_tool_use`", "Request.parallel_tool_calls"),
    rows("carried", "as `output_config.format`", "Request.format", "TextFormat"),
    rows("carried", "as `output_config.format`", "JSONSchema.schema strict"),
    rows("dropped", "a schema has no name", "JSONSchema.name", silent=True),
    rows("dropped", "a schema has no description", "JSONSchema.description"),
    rows("emulated", "the system prompt asks for a JSON object", "JSONObject"),
    rows("carried", "as `thinking` and `output_config.effort`", "Request.reasoning"),
    rows("carried", "as `thinking` and `output_config.effort`", "ReasoningOptions.effort"),
    rows(
        "dropped",
        "Messages has no such tier",
        "Request.service_tier",
        case=Case(
            "neither `auto` nor `default`",
            lambda request, _: request.service_tier not in (None, "auto", "default"),
        ),
    ),
    rows("carried", "as `stop_sequences`", "Sampling.stop"),
    rows(
        "emulated",
        "1 is the highest there is",
        "Sampling.temperature",
        case=Case("above 1", lambda sampling, _: (sampling.temperature or 0) > 1),
    ),
    rows(
        "dropped",
        "Messages has no such sampling value",
        "Sampling.frequency_penalty presence_penalty",
    ),
    rows("refused", _NO_LOGPROBS, "Sampling.logprobs", case=is_true("logprobs")),
    rows("dropped", _NO_LOGPROBS, "Sampling.top_logprobs"),
    rows(
        "dropped",
        "a hint that Messages does not take",
        "Request.verbosity prediction metadata safety_identifier",
        "Request.prompt_cache_key prompt_cache_retention prompt_cache_options",
    ),
    rows("dropped", "Messages has no such option", "Request.moderation"),
    rows("dropped", "Messages has no such limit", "Request.max_tool_calls"),
    rows("dropped", _NO_STATE, "Request.store", case=is_true("store")),
    rows("refused", _NO_STATE, "Request.previous_response_id"),
    rows("dropped", "Messages has another form of it", "Request.context_management"),
    rows(
        "carried",
        "usage is part of every answer",
        "Request.stream_options",
    ),
    rows("dropped", "Messages does not obfuscate", "StreamOptions.include_obfuscation"),
    rows(
        "emulated",
        "sent as `system`",
        "Message.role",
        case=Case("`developer`", lambda message, _: message.role == "developer"),
    ),
    rows("dropped", "Messages has no such field", "Message.name phase"),
    rows(
        "dropped",
        "Messages has none for items; a call keeps its `call_id`",
        "Message.id",
        "Reasoning.id status",
        "FunctionCall.id status",
        "FunctionCallOutput.id status",
    ),
    rows("dropped", "Messages has none for items", "Message.status", case=OTHER_STATUS),
    rows("carried", "as the last message", "Message.status", case=UNFINISHED),
    rows(
        "dropped",
        "thinking goes back with a signature of the same server only",
        "Reasoning",
        case=Case("without a signature", lambda item, _: not is_signed(item)),
    ),
    rows("carried", "as `thinking`", "Reasoning.content summary", "Thought.text", "Summary.text"),
    rows("dropped", "only the server that encrypted it can read it", "Reasoning.encrypted"),
    _CALLS,
    rows("carried", "as `tool_result`", "FunctionCallOutput.call_id output"),
    rows("carried", "as `tool_result`", "CustomToolCallOutput"),
    _PARTS,
    rows("dropped", "Messages has no level of detail", "Image.detail"),
    rows("refused", "Messages takes no audio", "Audio", case=_SILENT, name="input_audio"),
    rows("refused", "Messages has no such block", "UnknownPart", case=_FOREIGN),
    rows("carried", SAME, "FunctionTool"),
    rows("dropped", "Messages has no free-form tools", "CustomTool"),
    rows("emulated", "its tools one by one", "Namespace"),
)

_ANSWER = Table(
    ANSWERED,
    NO_PART_OF_AN_ANSWER,
    one_text_answered("Messages"),
    rows(
        "dropped",
        "Messages does not split usage so",
        "Usage.accepted_prediction_tokens rejected_prediction_tokens",
    ),
    _CALLS,
    _PARTS,
    rows(
        "carried",
        SAME,
        "Usage.input_tokens output_tokens cached_tokens cache_write_tokens reasoning_tokens",
    ),
    rows("carried", "the sum of the others", "Usage.total_tokens"),
    rows("carried", SAME, "Message.role"),
    rows("carried", "as `stop_reason`, or as an error", "Response.status error"),
    rows("dropped", "Messages has no times", "Response.created_at completed_at", silent=True),
    rows("carried", "as `stop_reason`", "Response.reasons"),
    rows("carried", "if it is one of the request's", "Response.stop_sequence"),
    rows("carried", "as `content`", "Response.output"),
    rows("emulated", "joined into one message", "Response.output", case=Case(SEVERAL)),
    rows(
        "carried",
        "the answer's own; a call keeps its `call_id`",
        "Message.id status",
        "Reasoning.id status",
        "FunctionCall.id status",
    ),
    rows("dropped", "Messages has no phase", "Message.phase"),
    rows("carried", "as `thinking`", "Reasoning.content", "Thought.text", "Summary.text"),
    rows("emulated", "shown as `thinking`", "Reasoning.summary"),
    rows("dropped", "Messages carries signatures of its own only", "Reasoning.encrypted"),
    rows("dropped", "Messages has another form of it", "Compaction"),
    rows("dropped", "Messages has no such block", "Unknown", case=_FOREIGN_ITEM),
    rows("dropped", "Messages has no such block", "UnknownPart", case=_FOREIGN),
)

LOSSES = Losses(NAME, _REQUEST, _ANSWER)


# ---- names -----------------------------------------------------------------------------------

_renamed = renaming(
    (r"^format\.", "output_config.format."),
    (r"^format\b", "output_config.format"),
    (r"^max_output_tokens\b", "max_tokens"),
    (r"^stop\b", "stop_sequences"),
    (r"^reasoning\.effort\b", "output_config.effort"),
    (r"^reasoning(\.thinking)?\b", "thinking"),
    (r"^instructions\b", "system"),
    (r"^(tools\[\d+\])\.parameters\b", r"\1.input_schema"),
    (r"^user\b", "metadata.user_id"),
    (r"^parallel_tool_calls\b", "tool_choice.disable_parallel_tool_use"),
)
_ITEM = re.compile(r"^items(?:\[(\d+|\*)\])?(.*)")
_PART = re.compile(r"^\.content\[(\d+)\](.*)")


def spelling(request: Request) -> Callable[[str], str]:
    """The function from the core's name of a field in this request to the name here."""
    places: list[tuple[str, int]] = []
    rename = _renamed(request)

    def spell(path: str) -> str:
        if (found := _ITEM.match(path)) is None:
            return rename(path)
        place, rest = found[1], found[2]
        if place is None or place == "*":
            return f"messages[*]{rest}" if place else f"messages{rest}"
        if not places:
            places.extend(_places(request))
        message, block = places[int(place)]
        if not isinstance(request.items[int(place)], Message):
            return f"{message}.content[{block}]" + rest.replace(".output", ".content", 1)
        if (part := _PART.match(rest)) is None:
            return message + rest
        if message != "system":
            message += ".content"
        return f"{message}[{block + int(part[1])}]{part[2]}"

    return spell


def _places(request: Request) -> list[tuple[str, int]]:
    """Where each item stands: the system prompt or a message, and its first block there."""
    places: list[tuple[str, int]] = []
    number, block, before = -1, 0, ""
    for item in request.items:
        if isinstance(item, FunctionCallOutput):
            now = "results"
        else:
            now = item.role if isinstance(item, Message) else "assistant"
        if now in ("system", "developer") and number < 0:
            places.append(("system", 0))
            continue
        # Blocks of the assistant are of one message, and so are results and what comes with them.
        joins = now in ("assistant", "results") and now == before
        joins = joins or (now, before) == ("user", "results")
        if not joins or "turn" in (item.extra or ()):
            number, block = number + 1, 0
        before = now
        places.append((f"messages[{number}]", block))
        block += len(item.parts) if isinstance(item, Message) else 1
    return places
