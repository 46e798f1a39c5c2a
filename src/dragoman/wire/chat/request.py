"""Chat Completions requests, decoded and encoded."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.item import JSON
from dragoman.core.loss import Loss, LossList
from dragoman.core.request import (
    AudioOutput,
    JSONObject,
    JSONSchema,
    OutputFormat,
    ReasoningOptions,
    Request,
    Sampling,
    StreamOptions,
    TextFormat,
    Tool,
)
from dragoman.wire import json
from dragoman.wire.choices import logit_bias, stop
from dragoman.wire.json import ABSENT, Fields, Reader
from dragoman.wire.losses import judge
from dragoman.wire.protocol import Dialect

from . import tools
from .fields import from_extra, restore, to_extra
from .losses import LOSSES
from .messages import decode_messages, encode_messages, message_reader

VENDOR_FORMATS = frozenset({"ebnf", "grammar", "json", "regex", "structural_tag"})
"""Response formats that are not in the protocol and that some servers enforce."""

LEGACY = "legacy"
"""The key in `extra` that marks a request made with `functions`, to be answered in kind."""

_LOGPROBS = "message.output_text.logprobs"

# A number is written again as it was: 1 does not become 1.0.
_Probability = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
_Temperature = Annotated[int, Meta(ge=0, le=2)] | Annotated[float, Meta(ge=0, le=2)]
_Penalty = Annotated[int, Meta(ge=-2, le=2)] | Annotated[float, Meta(ge=-2, le=2)]
_Factor = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
_Limit = Annotated[int, Meta(ge=1)]


class _Body(Struct, kw_only=True):
    """The usual fields. Those of several shapes or with fields inside are any value here, and read
    field by field together with the rare ones, which come as unknown ones do."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Raw
    tools: Raw = ABSENT
    tool_choice: JSON = None
    parallel_tool_calls: bool | None = None
    temperature: _Temperature | None = None
    top_p: _Probability | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: _Probability | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: _Factor | None = None
    seed: int | None = None
    stop: JSON = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: _Limit | None = None
    max_completion_tokens: _Limit | None = None
    response_format: JSON = None
    verbosity: str | None = None
    reasoning_effort: str | None = None
    reasoning: JSON = None
    modalities: list[str] | None = None
    stream: bool | None = None
    stream_options: JSON = None
    store: bool | None = None
    metadata: JSON = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None


_body = Reader(_Body, messages=message_reader.strict_list)
_INTEGERS = ("max_completion_tokens", "max_tokens", "n", "seed", "top_k", "top_logprobs")
_NO_SAMPLING = Sampling()


# ---- decoding ----------------------------------------------------------------------------


def decode_request(data: bytes) -> Request:
    """The request in a body. Raises FaultError naming the field that is wrong."""
    try:
        return _decode(data)
    except (FaultError, *json.BROKEN, ValueError) as error:
        # What is no JSON, or nested too deeply, is refused as that before anything else.
        fields = json.parse(data).rest()
        given = {name: fields.get(name) for name in _INTEGERS}
        rounded = {n: int(v) for n, v in given.items() if isinstance(v, float) and v.is_integer()}
        if isinstance(error, FaultError) and not rounded:
            raise
    # Lone surrogates, which msgspec does not read, are replaced; `4096.0` counts as an integer.
    return _decode(json.dump(fields | rounded))


def _decode(data: bytes) -> Request:
    body, rest = _body.read(data)
    items = decode_messages(body.messages)
    offered = () if body.tools is ABSENT else tools.decode(body.tools)
    limit, old = body.max_completion_tokens, body.max_tokens
    if limit is None:
        limit = old
    elif old not in (None, limit):
        rest["max_tokens"] = old
    usual = (
        ("tool_choice", body.tool_choice),
        ("stop", body.stop),
        ("response_format", body.response_format),
        ("reasoning", body.reasoning),
        ("stream_options", body.stream_options),
        ("metadata", body.metadata),
    )
    given = {name: value for name, value in usual if value is not None}
    if given:
        json.check_depth(given)
        rest |= given
    sampling = Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        n=body.n,
    )
    more: dict[str, Any] = {"sampling": _NO_SAMPLING if sampling == _NO_SAMPLING else sampling}
    if body.reasoning_effort:
        more["reasoning"] = ReasoningOptions(body.reasoning_effort)
    if rest:
        more |= _structured_fields(Fields(rest), offered, sampling, body.reasoning_effort)
    return Request(
        model=body.model,
        items=items,
        tools=more.pop("tools", offered),
        parallel_tool_calls=body.parallel_tool_calls,
        max_output_tokens=limit,
        verbosity=body.verbosity,
        modalities=None if body.modalities is None else tuple(body.modalities),
        stream=body.stream or False,
        store=body.store,
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        service_tier=body.service_tier,
        **more,
    )


def _structured_fields(
    fields: Fields, offered: tuple[Tool, ...], sampling: Sampling, effort: str | None
) -> dict[str, Any]:
    """The fields of a request that are objects or come in several shapes; what is left is extra."""
    functions = tools.decode_functions(fields)
    choice = tools.decode_choice(fields, offered)
    if choice is None:
        choice = tools.decode_function_call(fields, offered + functions)
    if sampling.repetition_penalty is None:
        repetition = fields.number("repeat_penalty", 0)
        sampling = replace(sampling, repetition_penalty=repetition)
    reasoning, reasoning_rest = _reasoning(effort, fields.any("reasoning"))
    format, format_rest = _format(fields)
    decoded = {
        "tools": offered + functions if functions else offered,
        "tool_choice": choice,
        "sampling": replace(sampling, stop=stop(fields), logit_bias=logit_bias(fields)),
        "format": format,
        "reasoning": reasoning,
        "audio": _audio(fields),
        "prediction": fields.mapping("prediction"),
        "stream_options": _stream_options(fields),
        "metadata": fields.mapping("metadata"),
        "prompt_cache_options": fields.mapping("prompt_cache_options"),
        "moderation": fields.any("moderation"),
        "web_search": fields.mapping("web_search_options"),
    }
    extra = to_extra(fields.rest() | reasoning_rest | format_rest) or {}
    if functions and not offered:
        extra[LEGACY] = {"functions": True}
    return decoded | {"extra": extra or None}


def _reasoning(effort: str | None, given: JSON) -> tuple[ReasoningOptions | None, dict[str, JSON]]:
    """The options in OpenRouter's `reasoning`, beside the effort or instead of it."""
    if given is not None and not isinstance(given, dict):
        return (ReasoningOptions(effort) if effort else None), {"reasoning": given}
    rest = {name: value for name, value in (given or {}).items() if value is not None}
    if isinstance(rest.get("effort"), str) and effort in (None, rest["effort"]):
        effort = rest.pop("effort")
    options = ReasoningOptions(effort, extra=to_extra(rest))
    return (None if options == ReasoningOptions() else options), {}


def _format(fields: Fields) -> tuple[OutputFormat | None, dict[str, JSON]]:
    """The format of the answer, and what else is said about it."""
    whole = fields.mapping("response_format")
    if whole is None:
        return None, {}
    given = Fields(whole, fields.at("response_format"))
    kind = given.need("type")
    if kind in VENDOR_FORMATS:
        return None, {"response_format": whole}
    format: OutputFormat
    match kind:
        case "text":
            format = TextFormat()
        case "json_object":
            format = JSONObject()
        case "json_schema":
            inner = given.object("json_schema")
            if inner is None:
                raise given.wrong("json_schema", "is missing")
            name, schema = inner.need("name"), inner.mapping("schema")
            description, strict = inner.string("description"), inner.boolean("strict")
            format = JSONSchema(name, schema, description, strict, to_extra(inner.rest()))
        case _:
            raise given.wrong("type", f"is {kind!r}, and must be text, json_object or json_schema")
    rest = given.rest()
    return format, ({"response_format": rest} if rest else {})


def _audio(fields: Fields) -> AudioOutput | None:
    given = fields.object("audio")
    if given is None:
        return None
    voice, format = given.any("voice"), given.string("format")
    return AudioOutput(voice, format, to_extra(given.rest()))


def _stream_options(fields: Fields) -> StreamOptions | None:
    given = fields.object("stream_options")
    if given is None:
        return None
    usage, obfuscation = given.boolean("include_usage"), given.boolean("include_obfuscation")
    return StreamOptions(usage, obfuscation, to_extra(given.rest()))


# ---- encoding ----------------------------------------------------------------------------


def encode_request(request: Request, dialect: Dialect) -> tuple[bytes, tuple[Loss, ...]]:
    """The body that asks this of a server, and what it could not carry as it stood.

    Only what was asked for is in it. Raises FaultError where a loss would change the answer.
    """
    judged, losses = judge(request, LOSSES), LossList()
    messages = encode_messages(request.items, dialect, losses)
    if isinstance(request.instructions, str):
        messages.insert(0, {"role": "system", "content": request.instructions})
    elif request.instructions is not None:
        messages = [*encode_messages(request.instructions, dialect, LossList()), *messages]
    body: dict[str, JSON] = {"model": request.model, "messages": messages}
    reasoning, sampling = request.reasoning, request.sampling
    logprobs = sampling.logprobs
    if logprobs is None and (sampling.top_logprobs or _LOGPROBS in request.include):
        logprobs = True  # who asks for alternatives, or by `include`, asks for these
    optional: tuple[tuple[str, JSON], ...] = (
        (dialect.max_tokens, request.max_output_tokens),
        ("logprobs", logprobs),
        ("response_format", None if request.format is None else _encode_format(request.format)),
        ("verbosity", request.verbosity),
        ("reasoning_effort", reasoning.effort if reasoning else None),
        ("reasoning", from_extra(reasoning.extra) or None if reasoning else None),
        ("modalities", request.modalities),
        ("audio", None if request.audio is None else _encode_audio(request.audio)),
        ("prediction", request.prediction),
        ("store", request.store),
        ("metadata", request.metadata),
        ("user", request.user),
        ("safety_identifier", request.safety_identifier),
        ("prompt_cache_key", request.prompt_cache_key),
        ("prompt_cache_retention", request.prompt_cache_retention),
        ("prompt_cache_options", request.prompt_cache_options),
        ("service_tier", request.service_tier),
        ("moderation", request.moderation),
        ("web_search_options", request.web_search),
    )
    if sampling != _NO_SAMPLING:
        optional += (
            ("temperature", sampling.temperature),
            ("top_p", sampling.top_p),
            ("top_k", sampling.top_k),
            ("min_p", sampling.min_p),
            ("frequency_penalty", sampling.frequency_penalty),
            ("presence_penalty", sampling.presence_penalty),
            (dialect.repetition_penalty, sampling.repetition_penalty),
            ("seed", sampling.seed),
            ("stop", sampling.stop or None),
            ("logit_bias", sampling.logit_bias),
            ("top_logprobs", sampling.top_logprobs),
            ("n", sampling.n),
        )
    for name, value in optional:
        if value is not None:
            body[name] = value
    if request.tools or request.tool_choice is not None or request.parallel_tool_calls is not None:
        _add_tools(body, request, losses)
    if request.stream:
        options = request.stream_options or StreamOptions()
        usage = True if dialect.ask_usage else options.include_usage
        given = {"include_usage": usage, "include_obfuscation": options.include_obfuscation}
        body["stream"] = True
        if encoded := restore(_given(given), options.extra):
            body["stream_options"] = encoded
    elif request.stream_options is not None:
        losses.note("stream_options", "dropped", "the answer is not streamed")
    if request.extra:
        body = restore(body, request.extra)
    for name in sorted(dialect.drop & body.keys()):
        del body[name]
        losses.note(name, "dropped", "this server does not take it")
    return json.dump(body), judged + losses.losses()


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


def _encode_audio(audio: AudioOutput) -> JSON:
    return restore(_given({"voice": audio.voice, "format": audio.format}), audio.extra)


def _add_tools(body: dict[str, JSON], request: Request, losses: LossList) -> None:
    """The tools, and what only makes sense with them."""
    offered = tools.encode(request.tools) if request.tools else None
    if offered is not None:
        body["tools"] = offered
    choice = request.tool_choice
    for name, value in (
        ("tool_choice", None if choice is None else tools.encode_choice(choice)),
        ("parallel_tool_calls", request.parallel_tool_calls),
    ):
        if value is not None and offered is None:
            losses.note(name, "dropped", "there are no tools to choose from")
        elif value is not None:
            body[name] = value
