"""Chat Completions requests, decoded and encoded."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import asdict

from dragoman.core.error import FaultError
from dragoman.core.item import JSON, Extra
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AudioOutput,
    FunctionTool,
    JSONObject,
    JSONSchema,
    OutputFormat,
    ReasoningOptions,
    Request,
    StreamOptions,
    TextFormat,
    ToolChoice,
)
from dragoman.wire import json
from dragoman.wire.choices import (
    SamplingFields,
    decode_sampling,
    encode_stream,
    stream_options,
)
from dragoman.wire.json import ABSENT, Fields, Reader, merge
from dragoman.wire.losses import Note, judge, listed
from dragoman.wire.protocol import Dialect

from . import tools
from .fields import NAME, from_extra, restore, to_extra
from .losses import LOSSES
from .messages import decode_messages, encode_messages, message_reader

VENDOR_FORMATS = frozenset({"ebnf", "grammar", "json", "regex", "structural_tag"})
"""Response formats that are not in the protocol and that some servers enforce."""

LEGACY = "legacy"
"""The key in `extra` that marks a request made with `functions`, to be answered in kind."""

_LOGPROBS = "message.output_text.logprobs"

_Limit = Annotated[int, Meta(ge=1)]
_Word = Annotated[str, Meta(min_length=1)]
_Object = dict[str, JSON]


class _TextFormat(Struct, tag_field="type", tag="text"):
    pass


class _JSONObject(Struct, tag_field="type", tag="json_object"):
    pass


class _JSONSchema(Struct, tag_field="type", tag="json_schema"):
    json_schema: Raw


class _Schema(Struct):
    name: _Word
    schema: _Object | None = None
    description: str | None = None
    strict: bool | None = None


class _Audio(Struct):
    voice: JSON = None
    format: str | None = None


class _Body(SamplingFields, kw_only=True):
    model: _Word
    messages: Raw
    tools: Raw = ABSENT
    functions: JSON = None
    tool_choice: JSON = None
    function_call: JSON = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    max_tokens: _Limit | None = None
    max_completion_tokens: _Limit | None = None
    response_format: Raw = ABSENT
    verbosity: str | None = None
    reasoning_effort: str | None = None
    reasoning: JSON = None
    modalities: list[str] | None = None
    audio: Raw = ABSENT
    prediction: _Object | None = None
    stream: bool | None = None
    stream_options: Raw = ABSENT
    store: bool | None = None
    metadata: _Object | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: _Object | None = None
    service_tier: str | None = None
    moderation: JSON = None
    web_search_options: _Object | None = None


_schema, _audio = Reader(_Schema), Reader(_Audio)
_formats = Reader[_TextFormat | _JSONObject | _JSONSchema](
    _TextFormat, _JSONObject, _JSONSchema, json_schema=_schema.strict
)
_body = Reader(
    _Body,
    messages=message_reader.strict_list,
    response_format=_formats.strict | None,
    audio=_audio.strict | None,
    stream_options=stream_options.strict | None,
)
_INTEGERS = ("max_completion_tokens", "max_tokens", "n", "seed", "top_k", "top_logprobs")


# ---- decoding ----------------------------------------------------------------------------


def decode_request(data: bytes) -> Request:
    """The request in a body. Raises FaultError naming the field that is wrong."""
    try:
        return _decode(data)
    except (FaultError, *json.BROKEN, ValueError) as error:
        return _decode(json.mended(data, error, _INTEGERS))


def _decode(data: bytes) -> Request:
    unknown: dict[str, JSON] = {}
    try:
        body = _body.decode(data)
    except msgspec.ValidationError:
        body, unknown = _body.read_loosely(data)
    items = decode_messages(body.messages)
    offered = () if body.tools is ABSENT else tools.decode(body.tools)
    reasoning = ReasoningOptions(body.reasoning_effort) if body.reasoning_effort else None
    nested = [
        *(body.reasoning, body.prediction, body.metadata, body.prompt_cache_options),
        *(body.moderation, body.web_search_options),
        *(body.tool_choice, body.functions, body.function_call),
    ]
    functions: tuple[FunctionTool, ...] = ()
    choice: ToolChoice | None = None
    if nested.count(None) < len(nested):
        json.check_depth(nested)
        given = {"functions": body.functions, "tool_choice": body.tool_choice}
        fields = Fields(given | {"function_call": body.function_call})
        functions = tools.decode_functions(fields)
        choice = tools.decode_choice(fields, offered)
        if choice is None:
            choice = tools.decode_function_call(fields, offered + functions)
        unknown |= fields.rest()
        if body.reasoning is not None:
            reasoning = _decode_reasoning(reasoning, body.reasoning, unknown)
    sampling = decode_sampling(body, body.logprobs, body.top_logprobs, unknown)
    limit, old = body.max_completion_tokens, body.max_tokens
    if limit is None:
        limit = old
    elif old not in (None, limit):
        unknown["max_tokens"] = old
    format = audio = options = None
    if body.response_format is not None and body.response_format is not ABSENT:
        format = _decode_format(body.response_format, unknown)
    if body.audio is not ABSENT:
        voice, rest = _audio.read_optional(body.audio, "audio")
        if voice is not None:
            audio = AudioOutput(voice.voice, voice.format, to_extra(rest))
    if body.stream_options is not ABSENT:
        asked, rest = stream_options.read_optional(body.stream_options, "stream_options")
        if asked is not None:
            options = StreamOptions(asked.include_usage, asked.include_obfuscation, to_extra(rest))
    extra: Extra = {NAME: unknown} if unknown else {}
    if functions and not offered:
        extra[LEGACY] = {"functions": True}
    return Request(
        model=body.model,
        items=items,
        tools=offered + functions if functions else offered,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        sampling=sampling,
        max_output_tokens=limit,
        format=format,
        verbosity=body.verbosity,
        reasoning=reasoning,
        modalities=None if body.modalities is None else tuple(body.modalities),
        audio=audio,
        prediction=body.prediction,
        stream=body.stream or False,
        stream_options=options,
        store=body.store,
        metadata=body.metadata,
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        prompt_cache_options=body.prompt_cache_options,
        service_tier=body.service_tier,
        moderation=body.moderation,
        web_search=body.web_search_options,
        extra=extra or None,
    )


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


def _decode_format(data: Any, unknown: dict[str, JSON]) -> OutputFormat | None:
    """The format of the answer; what else is said about it is added to the unknown fields."""
    try:
        given, rest = _formats.read_optional(data, "response_format")
    except FaultError:
        value = json.value_of(data)
        if not isinstance(value, dict) or str(value.get("type")) not in VENDOR_FORMATS:
            raise
        given, rest = None, value
    if rest:
        unknown["response_format"] = rest
    match given:
        case _TextFormat():
            return TextFormat()
        case _JSONObject():
            return JSONObject()
        case _JSONSchema():
            schema, rest = _schema.read(given.json_schema, "response_format.json_schema")
            json.check_depth(schema.schema)
            extra = to_extra(rest)
            return JSONSchema(schema.name, schema.schema, schema.description, schema.strict, extra)
        case _:
            return None


# ---- encoding ----------------------------------------------------------------------------


def encode_request(request: Request, dialect: Dialect) -> tuple[bytes, tuple[Loss, ...]]:
    """The body that asks this of a server, and what it could not carry as it stood.

    Only what was asked for is in it. Raises FaultError where a loss would change the answer.
    """
    losses = judge(request, LOSSES)
    notes: list[Note] = []
    messages = encode_messages(request.items, dialect, notes)
    if isinstance(request.instructions, str):
        messages.insert(0, {"role": "system", "content": request.instructions})
    elif request.instructions is not None:
        messages = [*encode_messages(request.instructions, dialect, []), *messages]
    reasoning, sampling, format = request.reasoning, request.sampling, request.format
    logprobs = sampling.logprobs
    if logprobs is None and (sampling.top_logprobs or _LOGPROBS in request.include):
        logprobs = True  # who asks for alternatives, or by `include`, asks for these
    given: dict[str, JSON] = {
        "model": request.model,
        "messages": messages,
        dialect.max_tokens: request.max_output_tokens,
        **asdict(sampling),
        "stop": sampling.stop or None,
        "repetition_penalty": None,
        dialect.repetition_penalty: sampling.repetition_penalty,
        "logprobs": logprobs,
        "response_format": None if format is None else _encode_format(format),
        "verbosity": request.verbosity,
        "reasoning_effort": reasoning.effort if reasoning else None,
        "reasoning": from_extra(reasoning.extra) or None if reasoning else None,
        "modalities": request.modalities,
        "prediction": request.prediction,
        "store": request.store,
        "metadata": request.metadata,
        "user": request.user,
        "safety_identifier": request.safety_identifier,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "prompt_cache_options": request.prompt_cache_options,
        "service_tier": request.service_tier,
        "moderation": request.moderation,
        "web_search_options": request.web_search,
    }
    if (audio := request.audio) is not None:
        spoken = {"voice": audio.voice, "format": audio.format}
        given["audio"] = restore(_given(spoken), audio.extra)
    choice = request.tool_choice
    if request.tools or choice is not None or request.parallel_tool_calls is not None:
        offered = tools.encode(request.tools) if request.tools else None
        more = {
            "tool_choice": None if choice is None else tools.encode_choice(choice),
            "parallel_tool_calls": request.parallel_tool_calls,
        }
        if offered is not None:
            given |= {"tools": offered, **more}
        else:
            why = "there are no tools to choose from"
            notes += [(name, "dropped", why, ()) for name in _given(more)]
    if request.stream or request.stream_options is not None:
        given |= encode_stream(request, dialect, NAME, notes)
    body = {name: value for name, value in given.items() if value is not None}
    if request.extra:
        body = merge(body, from_extra(request.extra))
    for name in sorted(dialect.drop & body.keys()):
        del body[name]
        notes.append((name, "dropped", "this server does not take it", ()))
    return json.dump(body), losses + listed(notes) if notes else losses


def _given(fields: dict[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in fields.items() if value is not None}


def _encode_format(format: OutputFormat) -> JSON:
    match format:
        case TextFormat():
            return {"type": "text"}
        case JSONObject():
            return {"type": "json_object"}
        case _:
            optional = {"description": format.description, "schema": format.schema}
            inner = {"name": format.name} | _given(optional | {"strict": format.strict})
            return {"type": "json_schema", "json_schema": restore(inner, format.extra)}
