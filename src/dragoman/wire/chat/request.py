"""A request's body, in both directions: every field of the protocol has its line here.

Messages and tools have rooms of their own. Fields that many servers take and the protocol does
not have (`top_k`, `reasoning`) are read as what they are; all others are kept and passed on.
"""

from __future__ import annotations

from dragoman.core.item import JSON, Extra
from dragoman.core.ledger import Ledger
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AudioOutput,
    JSONObject,
    JSONSchema,
    OutputFormat,
    ReasoningOptions,
    Request,
    StreamOptions,
    TextFormat,
)
from dragoman.wire import body
from dragoman.wire.body import Fields
from dragoman.wire.dialect import Dialect
from dragoman.wire.loss import judge
from dragoman.wire.sampling import decode as decode_sampling

from . import messages, plain, tools, turns
from .extras import keep, kept, restore

VENDOR_FORMATS = frozenset({"ebnf", "grammar", "json", "regex", "structural_tag"})
"""Response formats that are not in the protocol and that some servers enforce."""

LEGACY = "legacy"
"""The key in `extra` that marks a request made with `functions`, to be answered in kind."""

_LOGPROBS = "message.output_text.logprobs"


# ---- hearing -----------------------------------------------------------------------------


def decode(data: bytes) -> Request:
    """The request in a body. Raises FaultError naming the field that is wrong."""
    return plain.decode_request(data) or _decode(body.parse(data))


def _decode(fields: Fields) -> Request:
    model, items = fields.need("model"), messages.decode(fields)
    offered, functions = tools.decode(fields), tools.decode_functions(fields)
    choice = tools.decode_choice(fields, offered)
    if choice is None:
        choice = tools.decode_function_call(fields, offered + functions)
    reasoning, reasoning_rest = _reasoning(fields)
    format, format_rest = _format(fields)
    limit, limit_rest = _limit(fields)
    return Request(
        model=model,
        items=items,
        tools=offered + functions,
        tool_choice=choice,
        parallel_tool_calls=fields.boolean("parallel_tool_calls"),
        sampling=decode_sampling(
            fields,
            logprobs=fields.boolean("logprobs"),
            top_logprobs=fields.integer("top_logprobs", 0, 20),
        ),
        max_output_tokens=limit,
        format=format,
        verbosity=fields.string("verbosity"),
        reasoning=reasoning,
        modalities=fields.strings("modalities"),
        audio=_audio(fields),
        prediction=fields.mapping("prediction"),
        stream=fields.boolean("stream") or False,
        stream_options=_stream_options(fields),
        store=fields.boolean("store"),
        metadata=fields.mapping("metadata"),
        user=fields.string("user"),
        safety_identifier=fields.string("safety_identifier"),
        prompt_cache_key=fields.string("prompt_cache_key"),
        prompt_cache_retention=fields.string("prompt_cache_retention"),
        prompt_cache_options=fields.mapping("prompt_cache_options"),
        service_tier=fields.string("service_tier"),
        moderation=fields.any("moderation"),
        web_search=fields.mapping("web_search_options"),
        # Last, as it takes what the others left.
        extra=_extra(
            fields.rest() | reasoning_rest | format_rest | limit_rest,
            legacy=bool(functions) and not offered,
        ),
    )


def _extra(rest: dict[str, JSON], *, legacy: bool) -> Extra | None:
    extra = keep(rest) or {}
    if legacy:
        extra[LEGACY] = {"functions": True}
    return extra or None


def _limit(fields: Fields) -> tuple[int | None, dict[str, JSON]]:
    """How long the answer may be, under its new name and its old one."""
    new, old = fields.integer("max_completion_tokens", 1), fields.integer("max_tokens", 1)
    if new is None or old is None or new == old:
        return (old if new is None else new), {}
    return new, {"max_tokens": old}


def _reasoning(fields: Fields) -> tuple[ReasoningOptions | None, dict[str, JSON]]:
    effort, given = fields.string("reasoning_effort"), fields.any("reasoning")
    if given is not None and not isinstance(given, dict):
        return (ReasoningOptions(effort) if effort else None), {"reasoning": given}
    rest = {name: value for name, value in (given or {}).items() if value is not None}
    if isinstance(rest.get("effort"), str) and effort in (None, rest["effort"]):
        effort = rest.pop("effort")
    options = ReasoningOptions(effort, extra=keep(rest))
    return (None if options == ReasoningOptions() else options), {}


def _format(fields: Fields) -> tuple[OutputFormat | None, dict[str, JSON]]:
    """The form of the answer, and what else was said about it."""
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
            format = _schema(given)
        case _:
            raise given.wrong("type", f"is {kind!r}, and must be text, json_object or json_schema")
    rest = given.rest()
    return format, ({"response_format": rest} if rest else {})


def _schema(given: Fields) -> JSONSchema:
    inner = given.object("json_schema")
    if inner is None:
        raise given.wrong("json_schema", "is missing")
    name, schema = inner.need("name"), inner.mapping("schema")
    description, strict = inner.string("description"), inner.boolean("strict")
    return JSONSchema(name, schema, description, strict, keep(inner.rest()))


def _audio(fields: Fields) -> AudioOutput | None:
    given = fields.object("audio")
    if given is None:
        return None
    voice, format = given.any("voice"), given.string("format")
    return AudioOutput(voice, format, keep(given.rest()))


def _stream_options(fields: Fields) -> StreamOptions | None:
    given = fields.object("stream_options")
    if given is None:
        return None
    usage, obfuscation = given.boolean("include_usage"), given.boolean("include_obfuscation")
    return StreamOptions(usage, obfuscation, keep(given.rest()))


# ---- telling -----------------------------------------------------------------------------


def encode(request: Request, dialect: Dialect) -> tuple[bytes, tuple[Loss, ...]]:
    """The body that asks this of a server, and what it could not carry as it stood.

    Only what was asked for is in it. Raises FaultError where a loss would change the answer.
    """
    if (short := plain.encode_request(request, dialect)) is not None:
        return short, ()
    judged, ledger = judge(request, "chat"), Ledger()
    said: dict[str, JSON] = {
        "model": request.model,
        "messages": _messages(request, dialect, ledger),
        **_set_fields(request, dialect),
        **_tools(request, ledger),
        **_stream(request, dialect, ledger),
    }
    said = restore(said, request.extra)
    for name in sorted(dialect.drop & said.keys()):
        del said[name]
        ledger.note(name, "told", "this server does not take it")
    return body.dump(said), judged + ledger.losses()


def _messages(request: Request, dialect: Dialect, ledger: Ledger) -> list[JSON]:
    said = turns.encode(request.items, dialect, ledger)
    match request.instructions:
        case None:
            return said
        case str(text):
            return [{"role": "system", "content": text}, *said]
        case items:
            return [*turns.encode(items, dialect, Ledger()), *said]


def _set_fields(request: Request, dialect: Dialect) -> dict[str, JSON]:
    """The plain fields that were set."""
    sampling, reasoning = request.sampling, request.reasoning
    fields = {
        dialect.max_tokens: request.max_output_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        dialect.repetition_penalty: sampling.repetition_penalty,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "logit_bias": sampling.logit_bias,
        "logprobs": _logprobs(request),
        "top_logprobs": sampling.top_logprobs,
        "n": sampling.n,
        "response_format": _say_format(request.format),
        "verbosity": request.verbosity,
        "reasoning_effort": reasoning.effort if reasoning else None,
        "reasoning": kept(reasoning.extra) or None if reasoning else None,
        "modalities": request.modalities,
        "audio": _say_audio(request.audio),
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
    return _given(fields)


def _given(fields: dict[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in fields.items() if value is not None}


def _logprobs(request: Request) -> bool | None:
    """Whoever asks for alternatives, or by another protocol's `include`, asks for these."""
    asked = bool(request.sampling.top_logprobs) or _LOGPROBS in request.include
    return True if request.sampling.logprobs is None and asked else request.sampling.logprobs


def _say_format(format: OutputFormat | None) -> JSON:
    match format:
        case None:
            return None
        case TextFormat():
            return {"type": "text"}
        case JSONObject():
            return {"type": "json_object"}
        case _:
            optional = {"description": format.description, "schema": format.schema}
            inner = {"name": format.name} | _given(optional | {"strict": format.strict})
            return {"type": "json_schema", "json_schema": restore(inner, format.extra)}


def _say_audio(audio: AudioOutput | None) -> JSON:
    if audio is None:
        return None
    return restore(_given({"voice": audio.voice, "format": audio.format}), audio.extra)


def _tools(request: Request, ledger: Ledger) -> dict[str, JSON]:
    """The tools, and what only makes sense with them."""
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    said = {
        "tool_choice": None if choice is None else tools.encode_choice(choice),
        "parallel_tool_calls": parallel,
    }
    offered = tools.encode(request.tools)
    if offered:
        return {"tools": offered} | _given(said)
    for name in _given(said):
        ledger.note(name, "told", "there are no tools to choose from")
    return {}


def _stream(request: Request, dialect: Dialect, ledger: Ledger) -> dict[str, JSON]:
    options = request.stream_options
    if not request.stream:
        if options is not None:
            ledger.note("stream_options", "told", "the answer is not streamed")
        return {}
    options = options or StreamOptions()
    usage = True if dialect.ask_usage else options.include_usage
    given = {"include_usage": usage, "include_obfuscation": options.include_obfuscation}
    said = restore(_given(given), options.extra)
    return {"stream": True} | ({"stream_options": said} if said else {})
