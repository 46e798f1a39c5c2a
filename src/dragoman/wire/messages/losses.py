"""What Anthropic's Messages cannot say, and what it calls the fields of the core."""

from __future__ import annotations

import re
from collections.abc import Callable

from dragoman.core.item import FunctionCallOutput, Message
from dragoman.core.request import Request
from dragoman.wire.losses import (
    ANSWERED,
    SAME,
    SEVERAL,
    Losses,
    Row,
    Table,
    foreign,
    is_true,
    not_text,
    rows,
)

_WIRE = "messages"
_FOREIGN = "of another wire", foreign(_WIRE)
_NO_STATE = "Messages stores no conversations"
_NO_HOSTED = "Messages has no such tool"
_PARTS = (
    rows("carried", "as a block", "Text.text", "Image.url file_id", "File.data url file_id"),
    Row("File.filename", "carried", "as `title`"),
    Row("Image.detail", "dropped", "Messages has no level of detail"),
    Row("Refusal.text", "emulated", "said as text", "", is_true("text"), "refusal"),
    Row(
        "Text.annotations",
        "dropped",
        "Messages cites in its own way only",
        "of another wire",
        lambda part, _: any(_WIRE not in (note.extra or ()) for note in part.annotations),
    ),
    rows("carried", "as `citations`", "Annotation"),
    rows("dropped", "Messages has no log-probabilities", "Text.tokens", "Refusal.tokens"),
    rows("dropped", "Messages has no log-probabilities", "Thought.tokens", "Token"),
)
_CALLS = (
    *rows("carried", "as `tool_use`", "FunctionCall.call_id name arguments"),
    *rows("dropped", "Messages has no namespaces", "FunctionCall.namespace"),
    Row("CustomToolCall", "emulated", "as `tool_use` with one string `input`"),
)


def _unsigned(item: object, _: object) -> bool:
    """Reasoning that Anthropic's server has not signed, and so would refuse."""
    fields = (getattr(item, "extra", None) or {}).get(_WIRE, {})
    return not (fields.get("signature") or "data" in fields)


_REQUEST = Table(
    rows(
        "carried",
        SAME,
        "Request.sampling stream model tools",
        "Sampling.top_p top_k",
        "FunctionTool",
    ),
    rows("carried", "in `metadata`", "Request.user"),
    Row("Request.items", "carried", "as `system` and `messages`"),
    Row("Request.instructions", "carried", "as `system`"),
    Row("Request.max_output_tokens", "carried", "as `max_tokens`, which is always sent"),
    Row("Request.tool_choice", "carried", "`required` is `any`"),
    rows("carried", "by its name", "NamedTool"),
    Row("AllowedTools", "emulated", "sent as `auto` or `any`"),
    Row("Request.parallel_tool_calls", "carried", "as `disable_parallel_tool_use`"),
    Row("Request.format", "carried", "as `output_config.format`"),
    rows("carried", "as `output_config.format`", "TextFormat", "JSONSchema.schema strict"),
    Row("JSONSchema.name", "carried", "a schema has no name", silent=True),
    Row("JSONSchema.description", "dropped", "a schema has no description"),
    Row("JSONObject", "emulated", "the model is told to answer with a JSON object"),
    Row("Request.reasoning", "carried", "as `thinking` and `output_config.effort`"),
    Row("ReasoningOptions.effort", "carried", "as `thinking` and `output_config.effort`"),
    Row("ReasoningOptions.summary", "emulated", "the reasoning itself is given as its summary too"),
    Row(
        "Request.service_tier",
        "dropped",
        "Messages has no such tier",
        "neither `auto` nor `default`",
        lambda request, _: request.service_tier not in (None, "auto", "default"),
    ),
    Row("Sampling.stop", "carried", "as `stop_sequences`"),
    Row(
        "Sampling.temperature",
        "emulated",
        "1 is the highest there is",
        "above 1",
        lambda sampling, _: (sampling.temperature or 0) > 1,
    ),
    rows(
        "dropped",
        "Messages has no such sampling value",
        "Sampling.min_p frequency_penalty presence_penalty repetition_penalty seed",
    ),
    Row(
        "Sampling.logit_bias",
        "refused",
        "Messages cannot bias tokens",
        "not empty",
        is_true("logit_bias"),
    ),
    Row(
        "Sampling.logprobs",
        "refused",
        "Messages has no log-probabilities",
        "true",
        is_true("logprobs"),
    ),
    Row("Sampling.top_logprobs", "dropped", "Messages has no log-probabilities"),
    Row(
        "Sampling.n",
        "refused",
        "Messages gives one answer",
        "more than 1",
        lambda sampling, _: (sampling.n or 1) > 1,
    ),
    rows(
        "dropped",
        "a hint that Messages does not take",
        "Request.verbosity prediction metadata safety_identifier",
        "Request.prompt_cache_key prompt_cache_retention prompt_cache_options",
    ),
    Row("Request.moderation", "dropped", "Messages has no such option"),
    Row("Request.web_search", "dropped", "Messages searches by a tool of its own"),
    Row("Request.max_tool_calls", "dropped", "Messages has no such limit"),
    Row("Request.store", "dropped", _NO_STATE, "true", is_true("store")),
    Row("Request.previous_response_id", "refused", _NO_STATE),
    Row("Request.conversation", "refused", _NO_STATE),
    Row("Request.prompt", "refused", "Messages stores no prompts"),
    Row("Request.context_management", "dropped", "Messages has another form of it"),
    Row(
        "Request.background",
        "refused",
        "Messages answers at once or not at all",
        "true",
        is_true("background"),
    ),
    Row(
        "Request.truncation",
        "dropped",
        "Messages never cuts a conversation",
        "not `disabled`",
        lambda request, _: request.truncation not in (None, "disabled"),
    ),
    Row("Request.include", "dropped", "Messages cannot add this to an answer"),
    Row("Request.modalities", "refused", "Messages answers in text only", "not text", not_text),
    rows("dropped", "no spoken answer was asked for", "Request.audio", "AudioOutput"),
    Row("Request.stream_options", "carried", "usage is part of every answer"),
    Row("StreamOptions.include_usage", "carried", "usage is part of every answer"),
    Row("StreamOptions.include_obfuscation", "dropped", "Messages does not obfuscate"),
    Row("Completion", "refused", "Messages takes conversations, no bare prompts", name="prompts"),
    rows("carried", "as a message", "Message.content"),
    Row(
        "Message.role",
        "emulated",
        "sent as `system`",
        "`developer`",
        lambda message, _: message.role == "developer",
    ),
    rows("dropped", "Messages has no such field", "Message.name phase"),
    *(
        Row(f"{item}.{field}", "dropped", why)
        for field, why in (
            ("id", "Messages has no ids of items; a call keeps its `call_id`"),
            ("status", "Messages has no status of items"),
        )
        for item in ("Message", "Reasoning", "FunctionCall", "FunctionCallOutput")
    ),
    Row(
        "Reasoning",
        "dropped",
        "thinking goes back with a signature of the same server only",
        "without a signature",
        _unsigned,
    ),
    Row("Reasoning.content", "carried", "as `thinking`"),
    rows("carried", "as `thinking`", "Thought.text", "Summary.text", "Reasoning.summary"),
    Row("Reasoning.encrypted", "dropped", "only the server that encrypted it can read it"),
    _CALLS,
    rows("carried", "as `tool_result`", "FunctionCallOutput.call_id output"),
    Row("CustomToolCallOutput", "carried", "as `tool_result`"),
    Row("Compaction", "refused", "only the server that made a compaction can read it"),
    Row("ItemReference", "refused", "Messages stores no items to refer to"),
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
    *_PARTS,
    Row(
        "Audio",
        "emulated",
        "the transcript is given as text",
        "with a transcript",
        lambda part, _: bool(part.transcript),
        "audio",
    ),
    Row(
        "Audio",
        "refused",
        "Messages takes no audio",
        "without a transcript",
        lambda part, _: not part.transcript,
        "input_audio",
    ),
    Row("UnknownPart", "refused", "Messages has no such block", *_FOREIGN),
    Row("CustomTool", "dropped", "Messages has no free-form tools"),
    Row("Namespace", "emulated", "its tools one by one"),
    Row("UnknownTool", "dropped", _NO_HOSTED, *_FOREIGN),
    Row("UnknownTool as a choice", "refused", _NO_HOSTED, *_FOREIGN),
)

_ANSWER = Table(
    ANSWERED,
    _CALLS,
    *_PARTS,
    rows(
        "carried",
        SAME,
        "Usage.input_tokens output_tokens cached_tokens cache_write_tokens reasoning_tokens",
    ),
    Row("Usage.total_tokens", "carried", "the sum of the others"),
    rows(
        "dropped",
        "Messages does not split usage so",
        "Usage.input_audio_tokens input_text_tokens input_image_tokens",
        "Usage.output_audio_tokens output_text_tokens",
        "Usage.accepted_prediction_tokens rejected_prediction_tokens",
    ),
    Row("Message.role", "carried", SAME),
    Row("Response.status", "carried", "as `stop_reason`, or as an error"),
    Row("Response.error", "carried", "as an error object"),
    rows("carried", "Messages has no times", "Response.created_at completed_at"),
    Row("Response.reasons", "carried", "as `stop_reason`"),
    Row("Response.output", "carried", "as `content`"),
    Row("Response.output", "emulated", "joined into one message", SEVERAL),
    Row("Response.choices", "dropped", "Messages gives one answer, the first"),
    *(
        Row(f"{item}.{field}", "carried", why)
        for field, why in (
            ("id", "the answer's id stands for all; a call keeps its `call_id`"),
            ("status", "in `stop_reason`"),
        )
        for item in ("Message", "Reasoning", "FunctionCall")
    ),
    Row("Message.phase", "dropped", "Messages has no phase"),
    Row("Message.name", "dropped", "an answer has no name", silent=True),
    Row("Reasoning.content", "carried", "as `thinking`"),
    Row("Reasoning.summary", "emulated", "shown as `thinking`"),
    Row("Reasoning.encrypted", "dropped", "Messages carries signatures of its own only"),
    rows("carried", "as `thinking`", "Thought.text", "Summary.text"),
    Row("Compaction", "dropped", "Messages has another form of it"),
    Row("Unknown", "dropped", "Messages has no such block", *_FOREIGN),
    rows(
        "dropped",
        "no part of an answer",
        "FunctionCallOutput",
        "CustomToolCallOutput",
        "ItemReference",
    ),
    Row("Audio", "emulated", "the transcript is given as text", "", is_true("transcript"), "audio"),
    Row(
        "Audio",
        "dropped",
        "Messages has no sound",
        "without a transcript",
        lambda part, _: not part.transcript,
        "audio",
    ),
    rows("dropped", "Messages answers with text", "Image", "File"),
    Row("UnknownPart", "dropped", "Messages has no such block", *_FOREIGN),
)

LOSSES = Losses(_WIRE, _REQUEST, _ANSWER)


# ---- names -----------------------------------------------------------------------------------

_RENAMED = tuple(
    (re.compile(core), here)
    for core, here in (
        (r"^format\.", "output_config.format."),
        (r"^format\b", "output_config.format"),
        (r"^max_output_tokens\b", "max_tokens"),
        (r"^stop\b", "stop_sequences"),
        (r"^reasoning\.effort\b", "output_config.effort"),
        (r"^reasoning\b", "thinking"),
        (r"^instructions\b", "system"),
        (r"^(tools\[\d+\])\.parameters\b", r"\1.input_schema"),
        (r"^user\b", "metadata.user_id"),
    )
)
_ITEM = re.compile(r"^items(?:\[(\d+|\*)\])?(.*)")


def spelling(request: Request) -> Callable[[str], str]:
    """The function from the core's name of a field in this request to the name here."""
    places: list[str] = []

    def spell(path: str) -> str:
        if (found := _ITEM.match(path)) is None:
            for pattern, name in _RENAMED:
                path = pattern.sub(name, path)
            return path
        place, rest = found[1], found[2]
        if place is None or place == "*":
            return f"messages[*]{rest}" if place else f"messages{rest}"
        if not places:
            places.extend(_places(request))
        return places[int(place)] + rest.replace(".output", ".content", 1)

    return spell


def _places(request: Request) -> list[str]:
    """Where each item stands: the system prompt, a message, or a block of one."""
    places: list[str] = []
    number, role, block = -1, "", 0
    for item in request.items:
        now = "assistant"
        if isinstance(item, Message):
            now = item.role
        elif isinstance(item, FunctionCallOutput):
            now = "user"
        if now in ("system", "developer") and number < 0:
            places.append("system")
            continue
        if now != role or now not in ("assistant", "user") or "turn" in (item.extra or ()):
            number, block = number + 1, 0
        role = now
        whole = isinstance(item, Message)
        places.append(f"messages[{number}]" + ("" if whole else f".content[{block}]"))
        block += len(item.content) if isinstance(item, Message) else 1
    return places
