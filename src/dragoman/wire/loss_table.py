"""The loss table: what happens to each field between two protocols."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Fate = Literal["carried", "emulated", "dropped", "refused"]


class Row(Struct, frozen=True):
    """One field, in the words of the wire it comes from, and its fate on the other.

    `[*]` stands for any place in a list. `when` narrows the row to some values of the field. A
    `quiet` row is told in this table alone, and not of every answer.
    """

    field: str
    fate: Fate
    why: str
    when: str = ""
    quiet: bool = False

    @property
    def key(self) -> str:
        """How the row is looked up: `n: more than 1`."""
        return f"{self.field}: {self.when}" if self.when else self.field


def _same(*fields: str) -> tuple[Row, ...]:
    return tuple(Row(field, "carried", "the same field") for field in fields)


UNKNOWN = "(any other field)"
"""The row for fields that nobody here has heard of, at any depth."""

_WORKING = "how the server worked, for which the other protocol has no word"

_OTHER_FIELD = Row(
    UNKNOWN, "dropped", "a field of one wire only, passed on where that wire is spoken"
)


def _bound(wire: str) -> tuple[Row, ...]:
    """Fields that some servers enforce: an answer that ignores them is no answer."""
    names = ("guided_regex", "guided_choice", "guided_grammar", "guided_json")
    why = f"{wire} has no such bound on an answer"
    return tuple(Row(name, "refused", why) for name in (*names, "structured_outputs"))


_CHAT_REQUEST = (
    *_same("model", "temperature", "top_p", "frequency_penalty", "presence_penalty"),
    *_same("parallel_tool_calls", "stream", "store", "metadata", "moderation", "service_tier"),
    *_same("user", "safety_identifier"),
    *_same("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    Row("messages", "carried", "as `input`, one item for each thing said, called or returned"),
    Row("messages[*].role", "carried", "system, developer, user and assistant as they are"),
    Row("messages[*].content", "carried", "text, with its parts"),
    Row("messages[*].content[*].image_url", "carried", "as `input_image`"),
    Row("messages[*].content[*].file", "carried", "as `input_file`"),
    Row("messages[*].content[*].input_audio", "refused", "Responses takes no audio"),
    Row("messages[*].content[*]", "refused", "Responses has no such part", "of another kind"),
    Row("messages[*].refusal", "carried", "as a refusal part"),
    Row("messages[*].audio", "emulated", "the transcript is sent as text", "with a transcript"),
    Row("messages[*].audio", "refused", "the sound behind this id cannot be sent", "by id only"),
    Row("messages[*].name", "dropped", "Responses has no speaker's name"),
    Row("messages[*].reasoning_content", "carried", "as a reasoning item"),
    Row("messages[*].reasoning", "carried", "as a reasoning item"),
    Row(
        "messages[*].reasoning_details",
        "dropped",
        "only the kind of server that made them reads them",
    ),
    Row("messages[*].tool_calls", "carried", "as items; the id of a call is its `call_id`"),
    Row("messages[*].tool_calls[*].custom", "carried", "as a `custom_tool_call`"),
    Row("messages[*].tool_call_id", "carried", "as the `call_id` of the call's output"),
    Row("messages[*].function_call", "carried", "as a `function_call` item"),
    Row("messages[*].tool_calls[*]", "dropped", "Responses has no such call", "of another kind"),
    Row("tools", "carried", "the same tools, without nesting; `strict` is always written out"),
    Row("tools[*].function", "carried", "without nesting"),
    Row("tools[*].custom", "carried", "its grammar too, without nesting"),
    Row("tools[*]", "dropped", "Responses has no such tool", "of another kind"),
    Row("functions", "carried", "as function tools"),
    Row("function_call", "carried", "as `tool_choice`"),
    Row("tool_choice", "carried", "the same choice, without nesting; `allowed_tools` too"),
    Row("tool_choice.function", "carried", "without nesting"),
    Row("tool_choice.custom", "carried", "without nesting"),
    Row("tool_choice.allowed_tools", "carried", "without nesting"),
    Row("tool_choice.allowed_tools.tools[*].function", "carried", "without nesting"),
    Row("tool_choice.allowed_tools.tools[*].custom", "carried", "without nesting"),
    Row("tool_choice", "refused", "Responses has no such tool", "of another kind"),
    Row("tool_choice.allowed_tools.tools[*]", "dropped", "Responses has no such tool"),
    Row("max_completion_tokens", "carried", "as `max_output_tokens`, which some want at least 16"),
    Row("max_tokens", "carried", "as `max_output_tokens`, which some want at least 16"),
    Row("reasoning_effort", "carried", "as `reasoning.effort`"),
    Row("verbosity", "carried", "as `text.verbosity`"),
    Row("response_format", "carried", "as `text.format`, without nesting"),
    Row("response_format.type", "refused", "Responses has schemas and JSON objects only"),
    *_bound("Responses"),
    Row("stream_options", "carried", "usage is always streamed, and shown to who asked"),
    Row("logprobs", "emulated", "asked for by `include: message.output_text.logprobs`"),
    Row("top_logprobs", "emulated", "sent beside `include: message.output_text.logprobs`"),
    Row("n", "carried", "one answer is what Responses gives", "1"),
    Row("n", "refused", "Responses gives one answer", "more than 1"),
    Row("stop", "refused", "Responses has no stop sequences"),
    Row("logit_bias", "refused", "Responses cannot bias tokens"),
    Row("modalities", "carried", "text is what Responses gives", "text"),
    Row("modalities", "refused", "Responses answers in text only", "any other"),
    Row("audio", "dropped", "no spoken answer was asked for"),
    Row("seed", "dropped", "Responses has no seed"),
    Row("prediction", "dropped", "Responses takes no predicted output"),
    Row("web_search_options", "dropped", "Responses searches by a tool of its own"),
    Row("top_k", "dropped", "Responses has no such sampling value"),
    Row("min_p", "dropped", "Responses has no such sampling value"),
    Row("repetition_penalty", "dropped", "Responses has no such sampling value"),
    _OTHER_FIELD,
)

_NO_HOSTED = "Chat has no hosted tools"
_RESPONSES_REQUEST = (
    *_same("model", "temperature", "top_p", "frequency_penalty", "presence_penalty"),
    *_same("parallel_tool_calls", "stream", "store", "metadata", "moderation", "service_tier"),
    *_same("user", "safety_identifier", "stream_options"),
    *_same("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    Row("input", "carried", "as `messages`; what belongs to one turn becomes one message"),
    Row("instructions", "carried", "as the first system message"),
    Row("input[*].role", "carried", "system, developer, user and assistant as they are"),
    Row("input[*].content", "carried", "text, with its parts"),
    Row("input[*].phase", "dropped", "Chat messages have no phase"),
    Row("input[*].id", "dropped", "Chat has no ids of items; a call keeps its `call_id`"),
    Row("input[*].status", "dropped", "Chat has no status of items"),
    Row("input[*].content[*].image_url", "carried", "as `image_url.url`"),
    Row("input[*].content[*].file_id", "carried", "as `file.file_id`", "of a file"),
    Row("input[*].content[*].file_id", "refused", "Chat images have addresses only", "of an image"),
    Row("input[*].content[*].file_data", "carried", "as `file.file_data`"),
    Row("input[*].content[*].file_url", "refused", "Chat files have no address"),
    Row("input[*].content[*].annotations", "dropped", "Chat takes no annotations back"),
    Row("input[*].content[*].logprobs", "dropped", "Chat takes no log-probabilities back"),
    Row("input[*].content[*].refusal", "carried", "as `refusal`"),
    Row("input[*].content[*]", "refused", "Chat has no such part", "of another kind"),
    Row("input[*].output", "carried", "as a tool message"),
    Row("input[*].output[*]", "emulated", "shown in a user message after it", "image, audio, file"),
    Row("input[*].output[*].file_id", "refused", "Chat images have addresses only", "of an image"),
    Row("input[*].output[*].file_url", "refused", "Chat files have no address"),
    Row("input[*].output[*]", "refused", "Chat has no such part", "of another kind"),
    Row("input[*].arguments", "carried", "as `tool_calls`, word for word"),
    Row("input[*].input", "carried", "as a custom call in `tool_calls`, word for word"),
    Row("input[*].namespace", "carried", "beside the name"),
    Row("input[*].content[*].reasoning_text", "carried", "as reasoning of the message it led to"),
    Row("input[*].summary", "emulated", "sent in place of the reasoning itself", "alone"),
    Row("input[*].summary", "dropped", "the reasoning itself is sent", "beside the reasoning"),
    Row("input[*].encrypted_content", "dropped", "Chat has no sealed reasoning"),
    Row("input[*]", "emulated", "the model reads it as text", "of another kind"),
    Row("input[*]", "refused", "only the server that made a compaction can read it", "compaction"),
    Row("input[*]", "dropped", "only the last item can ask for a summary", "compaction_trigger"),
    Row("input[*]", "refused", "Chat keeps no items to refer to", "item_reference"),
    Row("tools", "carried", "functions, custom tools with their grammar, namespaces"),
    Row("tools[*]", "dropped", _NO_HOSTED, "of another kind"),
    Row("tool_choice", "carried", "the same choice, nested; `allowed_tools` too"),
    Row("tool_choice", "refused", _NO_HOSTED, "of another kind"),
    Row("tool_choice.tools[*]", "dropped", _NO_HOSTED),
    Row("max_output_tokens", "carried", "as `max_completion_tokens`"),
    Row("max_tool_calls", "dropped", "Chat runs no tools by itself"),
    Row("reasoning", "carried", "its effort as `reasoning_effort`"),
    Row("reasoning.summary", "emulated", "the reasoning itself is given as its summary too"),
    Row("reasoning.generate_summary", "dropped", "Chat has no summaries of reasoning"),
    Row("reasoning.context", "dropped", "the reasoning in the request is what the model reads"),
    Row("reasoning.mode", "dropped", "Chat has efforts only"),
    Row("text", "carried", "its format as `response_format`, its verbosity as `verbosity`"),
    *_bound("Chat"),
    Row("top_logprobs", "carried", "the same field"),
    Row("include", "carried", "value by value"),
    Row("include[message.output_text.logprobs]", "emulated", "asked for by `logprobs`"),
    Row("include[reasoning.encrypted_content]", "dropped", "Chat has no sealed reasoning"),
    Row("include[message.input_image.image_url]", "dropped", "Chat does not repeat the input"),
    Row("include[file_search_call.results]", "dropped", _NO_HOSTED),
    Row("include[web_search_call.results]", "dropped", _NO_HOSTED),
    Row("include[web_search_call.action.sources]", "dropped", _NO_HOSTED),
    Row("include[computer_call_output.output.image_url]", "dropped", _NO_HOSTED),
    Row("include[code_interpreter_call.outputs]", "dropped", _NO_HOSTED),
    Row("include[*]", "dropped", "Chat cannot add this to an answer"),
    Row("truncation", "carried", "nothing is cut, which is what Chat does", "disabled"),
    Row("truncation", "dropped", "Chat never cuts a conversation", "any other"),
    Row("background", "carried", "the answer comes at once, which is what Chat does", "false"),
    Row("background", "refused", "Chat answers at once or not at all", "true"),
    Row("previous_response_id", "refused", "Chat keeps no responses"),
    Row("conversation", "refused", "Chat keeps no conversations"),
    Row("prompt", "refused", "Chat keeps no prompts"),
    Row("context_management", "dropped", "Chat sends the whole conversation"),
    Row("access_programs", "dropped", "Chat has no access programs"),
    Row("image", "dropped", "Chat has no options for images"),
    _OTHER_FIELD,
)

_USAGE = "the same count, under Responses' name"
_CHAT_ANSWER = (
    Row("id", "carried", "the same id, with this wire's prefix"),
    Row("created", "carried", "as `created_at`"),
    Row("model", "carried", "the same field"),
    Row("choices[*]", "carried", "as the output", "the first"),
    Row("choices[*]", "dropped", "Responses gives one answer", "any further"),
    Row("choices[*].message.content", "carried", "as a message"),
    Row("choices[*].message.refusal", "carried", "as a refusal part"),
    Row("choices[*].message.reasoning_content", "carried", "as a reasoning item"),
    Row("choices[*].message.reasoning", "carried", "as a reasoning item"),
    Row("choices[*].message.tool_calls", "carried", "as items"),
    Row("choices[*].message.function_call", "carried", "as an item"),
    Row("choices[*].message.annotations", "carried", "without nesting"),
    Row("choices[*].message.audio", "emulated", "the transcript as text", "with a transcript"),
    Row("choices[*].message.audio", "dropped", "Responses has no sound", "without a transcript"),
    Row("choices[*].logprobs.content", "carried", "beside the text"),
    Row(
        "choices[*].logprobs.content", "dropped", "Responses has none for reasoning", "of reasoning"
    ),
    Row("choices[*].logprobs.refusal", "dropped", "Responses has none for refusals"),
    Row("choices[*].finish_reason", "carried", "as `status` and `incomplete_details`"),
    Row("error", "carried", "as `response.failed`"),
    Row("usage", "carried", _USAGE),
    Row("usage.prompt_tokens_details.cached_tokens", "carried", _USAGE),
    Row("usage.prompt_tokens_details.cache_write_tokens", "carried", _USAGE),
    Row("usage.completion_tokens_details.reasoning_tokens", "carried", _USAGE),
    Row("usage.prompt_tokens_details.audio_tokens", "dropped", "Responses does not split usage so"),
    Row("usage.prompt_tokens_details.text_tokens", "dropped", "Responses does not split usage so"),
    Row("usage.prompt_tokens_details.image_tokens", "dropped", "Responses does not split usage so"),
    Row(
        "usage.completion_tokens_details.audio_tokens",
        "dropped",
        "Responses does not split usage so",
    ),
    Row(
        "usage.completion_tokens_details.text_tokens",
        "dropped",
        "Responses does not split usage so",
    ),
    Row(
        "usage.completion_tokens_details.accepted_prediction_tokens",
        "dropped",
        "Responses takes no predicted output",
    ),
    Row(
        "usage.completion_tokens_details.rejected_prediction_tokens",
        "dropped",
        "Responses takes no predicted output",
    ),
    Row("system_fingerprint", "dropped", _WORKING, quiet=True),
    Row("timings", "dropped", _WORKING, quiet=True),
    _OTHER_FIELD,
)

_RESPONSES_ANSWER = (
    Row("id", "carried", "the same id, with this wire's prefix"),
    Row("created_at", "carried", "as `created`"),
    Row("model", "carried", "the same field"),
    Row("status", "carried", "as `finish_reason`, or as an error"),
    Row("incomplete_details.reason", "carried", "as `finish_reason`", "length, content filter"),
    Row("incomplete_details.reason", "emulated", "said as `stop`", "any other"),
    Row("error", "carried", "as an error object"),
    Row("usage", "carried", "the same counts, under Chat's names"),
    Row("output", "carried", "as one message"),
    Row("output", "emulated", "joined into one message", "several messages"),
    Row("output[*].id", "carried", "the answer's id stands for all; a call keeps its `call_id`"),
    Row("output[*].status", "carried", "in `finish_reason`"),
    Row("output[*].phase", "dropped", "Chat messages have no phase"),
    Row("output[*].content[*].text", "carried", "as `content`"),
    Row("output[*].content[*].refusal", "carried", "as `refusal`"),
    Row("output[*].content[*].logprobs", "carried", "beside the message"),
    Row("output[*].content[*].annotations", "carried", "nested", "url_citation"),
    Row("output[*].content[*].annotations", "dropped", "Chat cites addresses only", "any other"),
    Row("output[*].content[*].reasoning_text", "carried", "as reasoning of the message"),
    Row("output[*].summary", "emulated", "shown in place of the reasoning itself", "alone"),
    Row("output[*].summary", "dropped", "the reasoning itself is shown", "beside the reasoning"),
    Row("output[*].encrypted_content", "dropped", "Chat has no sealed reasoning"),
    Row("output[*].arguments", "carried", "as `tool_calls`, word for word"),
    Row("output[*].input", "carried", "as a custom call in `tool_calls`, word for word"),
    Row("output[*].namespace", "carried", "beside the name"),
    Row("output[*]", "dropped", _NO_HOSTED, "of another kind"),
    Row("output[*]", "dropped", "Chat has no compactions", "compaction"),
    _OTHER_FIELD,
)

Table = dict[str, Row]


def _table(rows: tuple[Row, ...]) -> Table:
    return {row.key: row for row in rows}


REQUEST: dict[str, Table] = {
    "responses": _table(_CHAT_REQUEST),
    "chat": _table(_RESPONSES_REQUEST),
}
"""What becomes of a request's fields, by the wire it goes to; it comes from the other one."""

ANSWER: dict[str, Table] = {
    "responses": _table(_CHAT_ANSWER),
    "chat": _table(_RESPONSES_ANSWER),
}
"""The same for an answer's fields."""
