"""Chat Completions requests, decoded and encoded, with their tools and the choice among them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from dragoman.core.error import FaultError, bad_request, quoted
from dragoman.core.item import JSON, Extra
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AllowedTools,
    AudioOutput,
    CustomTool,
    FunctionTool,
    NamedTool,
    Namespace,
    OutputFormat,
    ReasoningOptions,
    Request,
    Tool,
    ToolChoice,
    UnknownTool,
)
from dragoman.wire import json
from dragoman.wire.choices import (
    LABELS,
    ConversationFields,
    decode_sampling,
    decode_stream_options,
    encode_body,
    encode_stream,
    stream_options,
)
from dragoman.wire.json import ABSENT, LIMITS, Fields, Limits, Reader
from dragoman.wire.losses import Note, judge
from dragoman.wire.pieces import long
from dragoman.wire.protocol import Dialect
from dragoman.wire.tools import ToolCodec, without_tools

from .losses import LOSSES
from .messages import (
    NAME,
    PLACEHOLDER_REASONING,
    decode_messages,
    encode_messages,
    from_extra,
    message_reader,
    restore,
    to_extra,
)

TOOLS = ToolCodec(NAME, nested=True)
VENDOR_FORMATS = frozenset({"ebnf", "grammar", "json", "regex", "structural_tag"})
"""Response formats that are not in the protocol and that some servers enforce."""

LEGACY = "legacy"
"""The key in `extra` that marks a request made with `functions`, to be answered in kind."""

_LOGPROBS = "message.output_text.logprobs"

_Limit = Annotated[int, Meta(ge=1)]
_Word = Annotated[str, Meta(min_length=1)]
_Object = dict[str, JSON]


class _Audio(Struct):
    voice: JSON = None
    format: str | None = None


class _Body(ConversationFields, kw_only=True):
    messages: Raw
    functions: JSON = None
    function_call: JSON = None
    logprobs: bool | None = None
    max_tokens: _Limit | None = None
    max_completion_tokens: _Limit | None = None
    response_format: Raw = ABSENT
    verbosity: str | None = None
    reasoning_effort: str | None = None
    reasoning: JSON = None
    modalities: list[str] | None = None
    audio: Raw = ABSENT
    prediction: _Object | None = None
    web_search_options: _Object | None = None


_audio = Reader(_Audio)
_body = Reader(
    _Body,
    messages=message_reader.strict_list,
    audio=_audio.strict | None,
    stream_options=stream_options.strict | None,
)
_SAME = ("verbosity", "prediction", "store", *LABELS)
"""Fields that are identical on this wire and in the core."""
_same = attrgetter(*_SAME)
_nested = attrgetter(
    *("reasoning", "prediction", "metadata", "prompt_cache_options", "moderation"),
    *("web_search_options", "tool_choice", "functions", "function_call"),
)
_INTEGERS = ("max_completion_tokens", "max_tokens", "n", "seed", "top_k", "top_logprobs")


# ---- decoding ----------------------------------------------------------------------------


def decode_request(data: bytes, limits: Limits = LIMITS) -> Request:
    """The request in a body. Raises FaultError naming the field that is wrong."""
    try:
        return _decode(data, limits)
    except (FaultError, *json.BROKEN, ValueError) as error:
        return _decode(json.mended(data, error, _INTEGERS), limits)


def _decode(data: bytes, limits: Limits) -> Request:
    unknown: dict[str, JSON] = {}
    try:
        body = _body.decode(data)
    except msgspec.ValidationError:
        try:
            body, unknown = _body.read_loosely(data)
        except FaultError:
            fields = json.parse(data)
            if "messages" not in fields and "input" in fields:
                problem = "is missing; `input` is what /v1/responses takes"
                raise FaultError(bad_request(problem, "messages")) from None
            raise
    items = decode_messages(body.messages, limits)
    offered = () if body.tools is ABSENT else TOOLS.decode_all(body.tools, limits)
    reasoning = ReasoningOptions(body.reasoning_effort) if body.reasoning_effort else None
    nested = _nested(body)
    functions: tuple[FunctionTool, ...] = ()
    choice: ToolChoice | None = None
    if nested.count(None) < len(nested):
        json.check_depth(nested)
        if body.metadata is not None:
            json.check_metadata(body.metadata, limits)
        given = Fields({"functions": body.functions}).objects("functions")
        functions = tuple([TOOLS.function(each) for each in given])
        if len(functions) > limits.max_tools:
            raise json.too_many("functions", limits.max_tools, "max_tools")
        if body.tool_choice is None:
            choice = _decode_function_call(body.function_call, offered + functions)
        else:
            choice = TOOLS.decode_choice(body.tool_choice, limits)
            _check_choice(choice, offered)
            unknown |= json.dense({"function_call": body.function_call})
        if body.reasoning is not None:
            reasoning = _decode_reasoning(reasoning, body.reasoning, unknown)
    if body.top_logprobs and body.logprobs is None:
        raise FaultError(bad_request("needs logprobs to be true", "top_logprobs"))
    sampling = decode_sampling(body, body.logprobs, body.top_logprobs, unknown, limits)
    limit, old = body.max_completion_tokens, body.max_tokens
    if limit is None:
        limit = old
    elif old not in (None, limit):
        unknown["max_tokens"] = old
    format = audio = options = None
    if body.response_format is not ABSENT:
        format = _decode_format(json.value_of(body.response_format), unknown)
    if body.audio is not ABSENT:
        voice, rest = _audio.read_optional(body.audio, "audio")
        if voice is not None:
            audio = AudioOutput(voice.voice, voice.format, to_extra(rest))
    if body.stream_options is not ABSENT:
        options = decode_stream_options(body.stream_options, NAME)
    extra: Extra = {NAME: unknown} if unknown else {}
    if functions and not offered:
        extra[LEGACY] = {"functions": True}
    return Request(
        model=body.model,
        items=items,
        tools=offered + functions if functions else offered,
        tool_choice=choice,
        sampling=sampling,
        max_output_tokens=limit,
        format=format,
        reasoning=reasoning,
        modalities=None if body.modalities is None else tuple(body.modalities),
        audio=audio,
        stream=body.stream or False,
        stream_options=options,
        web_search=body.web_search_options,
        extra=extra or None,
        **dict(zip(_SAME, _same(body), strict=True)),
    )


def _decode_function_call(value: JSON, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """The choice in the deprecated `function_call`."""
    match value:
        case None | "none" | "auto":
            return value
        case {"name": str(name)}:
            rest = {field: given for field, given in value.items() if field != "name"}
            choice = NamedTool(name, extra=to_extra({}, function=rest))
            _check_offered("function_call", choice, frozenset(_keys(tools)))
            return choice
        case _:
            problem = "must be none, auto or an object with a name"
            raise FaultError(bad_request(problem, "function_call"))


def _check_choice(choice: ToolChoice, tools: tuple[Tool, ...]) -> None:
    """Check that the chosen tools are offered."""
    match choice:
        case "required" if not tools:
            raise FaultError(bad_request("is 'required', and there are no tools", "tool_choice"))
        case AllowedTools(tools=several):
            path = "tool_choice.allowed_tools.tools"
            if not several:
                raise FaultError(bad_request("is missing or empty", path))
            offered = frozenset(_keys(tools))
            for number, each in enumerate(several):
                field = each.kind if isinstance(each, NamedTool) else "type"
                _check_offered(f"{path}[{number}].{field}", each, offered)
        case NamedTool():
            _check_offered(f"tool_choice.{choice.kind}", choice, frozenset(_keys(tools)))
        case UnknownTool():
            _check_offered("tool_choice.type", choice, frozenset(_keys(tools)))


def _check_offered(
    path: str, choice: NamedTool | UnknownTool, offered: frozenset[tuple[str | None, ...]]
) -> None:
    if _key(choice) not in offered:
        name = choice.name if isinstance(choice, NamedTool) else choice.kind
        problem = f"chooses {quoted(name)}, which is not among the tools"
        raise FaultError(bad_request(problem, path))


def _key(choice: NamedTool | UnknownTool) -> tuple[str | None, ...]:
    if isinstance(choice, NamedTool):
        return choice.kind, choice.name, choice.namespace
    return (choice.kind,)


def _keys(tools: tuple[Tool, ...], space: str | None = None) -> Iterator[tuple[str | None, ...]]:
    """The keys of tools in a choice: kind, name and namespace, or the kind alone."""
    for tool in tools:
        match tool:
            case Namespace():
                yield from _keys(tool.tools, tool.name)
            case FunctionTool():
                yield "function", tool.name, space
            case CustomTool():
                yield "custom", tool.name, space
            case _:
                yield (tool.kind,)


def _decode_reasoning(
    options: ReasoningOptions | None, given: JSON, unknown: dict[str, JSON]
) -> ReasoningOptions | None:
    """The options in OpenRouter's `reasoning`, beside the effort or instead of it."""
    if not isinstance(given, dict):
        unknown["reasoning"] = given
        return options
    effort = options.effort if options else None
    rest = {name: value for name, value in given.items() if value is not None}
    if isinstance(rest.get("effort"), str) and effort in (None, rest["effort"]):
        effort = rest.pop("effort")
    return ReasoningOptions(effort, extra=to_extra(rest)) if effort or rest else None


def _decode_format(value: JSON, unknown: dict[str, JSON]) -> OutputFormat | None:
    """The response format; its unknown members are added to the unknown fields."""
    if isinstance(value, dict) and str(value.get("type")) in VENDOR_FORMATS:
        unknown["response_format"] = value
        return None
    form = Fields({"response_format": value}).object("response_format")
    if form is None:
        return None
    format, rest = TOOLS.decode_format(form)
    if rest:
        unknown["response_format"] = rest
    return format


# ---- encoding ----------------------------------------------------------------------------

_REPLY: dict[str, JSON] = {"role": "assistant", "content": "OK."}
_NOTHING: dict[str, JSON] = {"role": "assistant", "content": ""}


def _with_replies(messages: list[JSON], notes: list[Note]) -> list[JSON]:
    """The messages, with a reply between results of tools and a user's message, and without those
    of the assistant that say nothing: Mistral refuses both."""
    found: list[JSON] = []
    for message in messages:
        if message == _NOTHING:
            continue
        if found and found[-1]["role"] == "tool" and message["role"] == "user":
            found.append(_REPLY)
            why = "this server wants an assistant's message between the results and this one"
            notes.append(("items", "emulated", why, ()))
        found.append(message)
    return found


def _add_reasoning(messages: list[JSON], field: str, every: bool, notes: list[Note]) -> None:
    """Give each of the assistant's messages with calls reasoning, or `every` one where tools are
    offered: DeepSeek V4 wants that of answers to results, too, which most clients leave out."""
    why = "this server wants the reasoning of past answers; one that has none gets a space"
    for message in messages:
        wanted = message["role"] == "assistant" and (every or "tool_calls" in message)
        if wanted and not message.get(field):
            message[field] = PLACEHOLDER_REASONING
            notes.append(("items[*].reasoning", "emulated", why, ()))


def _shorten_ids(messages: list[JSON], length: int, notes: list[Note]) -> None:
    """Replace ids of calls that have not so many letters and digits, as those of another server."""
    ids: dict[str, str] = {}
    for message in messages:
        for holder, name in (
            (message, "tool_call_id"),
            *((call, "id") for call in message.get("tool_calls", ())),
        ):
            given = holder.get(name)
            if isinstance(given, str) and not (
                len(given) == length and given.isascii() and given.isalnum()
            ):
                if given not in ids:
                    digest = hashlib.sha256(given.encode("utf-8", "surrogatepass"))
                    ids[given] = digest.hexdigest()[:length]
                holder[name] = ids[given]
    if ids:
        why = f"this server takes ids of {length} letters and digits alone"
        notes.append(("items[*].call_id", "emulated", why, ()))


def encode_request(request: Request, dialect: Dialect) -> tuple[bytes, tuple[Loss, ...]]:
    """The body of a request, and its losses.

    Absent fields are left out. Raises FaultError where a loss would change the answer.
    """
    losses = judge(request, LOSSES)
    notes: list[Note] = []
    messages = encode_messages(request.items, dialect, notes)
    if isinstance(request.instructions, str):
        messages.insert(0, {"role": "system", "content": long(request.instructions)})
    elif request.instructions is not None:
        messages = [*encode_messages(request.instructions, dialect, []), *messages]
    if dialect.call_id_length is not None:
        _shorten_ids(messages, dialect.call_id_length, notes)
    if not dialect.user_behind_results:
        messages = _with_replies(messages, notes)
    if dialect.reasoning_echo == "must":
        _add_reasoning(messages, dialect.reasoning_field, bool(request.tools), notes)
    reasoning, sampling, format = request.reasoning, request.sampling, request.format
    logprobs = sampling.logprobs
    if logprobs is None and (sampling.top_logprobs or _LOGPROBS in request.include):
        logprobs = True  # alternatives, and `include`, imply it
    given: dict[str, JSON] = {
        "model": request.model,
        "messages": messages,
        dialect.max_tokens: request.max_output_tokens,
        "logprobs": logprobs,
        "response_format": format and TOOLS.encode_format(format),
        "reasoning_effort": reasoning.effort if reasoning else None,
        "reasoning": from_extra(reasoning.extra) or None if reasoning else None,
        "modalities": request.modalities,
        "web_search_options": request.web_search,
        **dict(zip(_SAME, _same(request), strict=True)),
    }
    if not request.store and "store" in dialect.drop:
        del given["store"]  # where nothing is stored, nothing is lost
    if (audio := request.audio) is not None:
        spoken = {"voice": audio.voice, "format": audio.format}
        given["audio"] = restore(json.dense(spoken), audio.extra)
    choice = request.tool_choice
    if request.tools or choice is not None or request.parallel_tool_calls is not None:
        offered = TOOLS.encode_all(request.tools) if request.tools else None
        more = {
            "tool_choice": choice and TOOLS.encode_choice(choice),
            "parallel_tool_calls": given.pop("parallel_tool_calls"),
        }
        if offered is not None:
            given |= {"tools": offered, **more}
        else:
            notes += without_tools(request)
    if request.stream or request.stream_options is not None:
        given |= encode_stream(request, dialect, NAME, notes)
    return encode_body(given, request, dialect, NAME, losses, notes)
