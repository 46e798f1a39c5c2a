"""Chat Completions requests, decoded and encoded."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dragoman.core.item import JSON, Extra, Message, Text
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
)
from dragoman.core.response import Response, Usage
from dragoman.core.turn import Turn
from dragoman.wire import json
from dragoman.wire.choices import decode as decode_sampling
from dragoman.wire.dialect import Dialect
from dragoman.wire.json import Fields
from dragoman.wire.losses import judge

from . import tools
from .fields import NAME, keep, kept, restore
from .losses import LOSSES
from .messages import decode_messages, encode_turns

_Role = Literal["system", "developer", "user", "assistant"]
_Count = Annotated[int, Meta(ge=1)]
_Word = Annotated[str, Meta(min_length=1)]
_Share = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
_Heat = Annotated[int, Meta(ge=0, le=2)] | Annotated[float, Meta(ge=0, le=2)]
_Nothing = Annotated[list[None], Meta(max_length=0)]


# ---- requests ----------------------------------------------------------------------------


class _Spoken(Struct, forbid_unknown_fields=True):
    role: _Role
    content: str


class _Options(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None


class _Asked(Struct, forbid_unknown_fields=True):
    model: _Word
    messages: Annotated[list[_Spoken], Meta(min_length=1)]
    temperature: _Heat | None = None
    top_p: _Share | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stream: bool | None = None
    stream_options: _Options | None = None


_asked = msgspec.json.Decoder(_Asked).decode
_NO_SAMPLING = Sampling()


def decode_request(data: bytes) -> Request | None:
    """The request in a plain body."""
    try:
        asked = _asked(data)
    except json.BROKEN:
        return None
    old, new, options = asked.max_tokens, asked.max_completion_tokens, asked.stream_options
    if (old is not None and new is not None) or _answered_twice(asked.messages):
        return None
    heat, share = asked.temperature, asked.top_p
    return Request(
        model=asked.model,
        items=tuple([Message(each.role, each.content) for each in asked.messages]),
        sampling=(
            _NO_SAMPLING
            if heat is None and share is None
            else Sampling(temperature=heat, top_p=share)
        ),
        max_output_tokens=old if new is None else new,
        stream=asked.stream or False,
        stream_options=None if options is None else StreamOptions(options.include_usage),
    )


def encode_request(request: Request, dialect: Dialect) -> bytes | None:
    """The body that asks this, if it is plain; it loses nothing then."""
    sampling, options, extra = request.sampling, request.stream_options, request.extra
    plain = Request(
        model=request.model,
        items=request.items,
        instructions=request.instructions,
        sampling=Sampling(temperature=sampling.temperature, top_p=sampling.top_p),
        max_output_tokens=request.max_output_tokens,
        stream=request.stream,
        stream_options=None if options is None else StreamOptions(options.include_usage),
        extra=None if extra and any(extra.values()) else extra,
    )
    # One comparison, made by msgspec, finds every field that is not looked at below.
    if plain != request or dialect.drop or (options is not None and not request.stream):
        return None
    messages = _messages(request)
    if messages is None:
        return None
    said: dict[str, JSON] = {"model": request.model, "messages": messages}
    for name, value in (
        (dialect.max_tokens, request.max_output_tokens),
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
    ):
        if value is not None:
            said[name] = value
    if request.stream:
        said["stream"] = True
        counted = True if dialect.ask_usage else options and options.include_usage
        if counted is not None:
            said["stream_options"] = {"include_usage": counted}
    return json.dump(said)


def _messages(request: Request) -> list[JSON] | None:
    """The messages, if each is a text in a role and nothing else."""
    said: list[JSON] = []
    if request.instructions is not None:
        if not isinstance(request.instructions, str):
            return None
        said.append({"role": "system", "content": request.instructions})
    before = ""
    for item in request.items:
        if type(item) is not Message or type(item.content) is not str:
            return None
        if item.role == before == "assistant" or item != Message(item.role, item.content):
            return None
        before = item.role
        said.append({"role": item.role, "content": item.content})
    return said


def _answered_twice(spoken: list[_Spoken]) -> bool:
    """Whether two messages of the assistant stand together, which are one turn elsewhere."""
    before = ""
    for each in spoken:
        if each.role == before == "assistant":
            return True
        before = each.role
    return False


# ---- answers -----------------------------------------------------------------------------


class _Message(Struct, forbid_unknown_fields=True):
    content: _Word
    role: Literal["assistant"] | None = None
    refusal: Literal[""] | None = None
    annotations: _Nothing | None = None


class _Choice(Struct, forbid_unknown_fields=True):
    message: _Message
    finish_reason: Literal["stop", "length"]
    index: Literal[0] | None = None
    logprobs: None = None


class _PromptDetails(Struct, forbid_unknown_fields=True):
    cached_tokens: int | None = None
    audio_tokens: int | None = None


class _CompletionDetails(Struct, forbid_unknown_fields=True):
    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class _Usage(Struct, forbid_unknown_fields=True):
    prompt_tokens: int
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Answered(Struct, forbid_unknown_fields=True):
    choices: Annotated[list[_Choice], Meta(min_length=1, max_length=1)]
    id: str | None = None
    object: Literal["chat.completion"] | None = None
    created: int | None = None
    model: str | None = None
    usage: _Usage | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None


_answered = msgspec.json.Decoder(_Answered).decode
_NO_PROMPT_DETAILS, _NO_COMPLETION_DETAILS = _PromptDetails(), _CompletionDetails()


def read_answer(data: bytes, turn: Turn) -> bool:
    """Hear a plain answer into a turn; False if it must be heard the long way."""
    if turn.started or not turn.direct:
        return False
    try:
        answer = _answered(data)
    except json.BROKEN:
        return False
    (choice,) = answer.choices
    said = choice.message.content
    if said.lstrip().startswith("<"):  # perhaps a think tag
        return False
    extra: Extra = {}
    if answer.id is not None or answer.created is not None:
        extra["upstream"] = _given(("id", answer.id), ("created", answer.created))
    tier, stamp = answer.service_tier, answer.system_fingerprint
    if tier is not None or stamp is not None:
        extra[NAME] = _given(("service_tier", tier), ("system_fingerprint", stamp))
    turn.usage = None if answer.usage is None else _counted(answer.usage)
    turn.whole_answer(said, choice.finish_reason, answer.model, extra)
    return True


def _given(*values: tuple[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in values if value is not None}


def _counted(usage: _Usage) -> Usage:
    asked = usage.prompt_tokens_details or _NO_PROMPT_DETAILS
    said = usage.completion_tokens_details or _NO_COMPLETION_DETAILS
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        cached_tokens=asked.cached_tokens,
        reasoning_tokens=said.reasoning_tokens,
        input_audio_tokens=asked.audio_tokens,
        output_audio_tokens=said.audio_tokens,
        accepted_prediction_tokens=said.accepted_prediction_tokens,
        rejected_prediction_tokens=said.rejected_prediction_tokens,
    )


def only_text(response: Response) -> str | None:
    """All that an answer says, where that is one text without anything beside it."""
    match response.output:
        case (Message(content=(Text() as text,), extra=None),) if not response.choices:
            return text.text if text == Text(text.text) else None
        case _:
            return None


VENDOR_FORMATS = frozenset({"ebnf", "grammar", "json", "regex", "structural_tag"})
"""Response formats that are not in the protocol and that some servers enforce."""

LEGACY = "legacy"
"""The key in `extra` that marks a request made with `functions`, to be answered in kind."""

_LOGPROBS = "message.output_text.logprobs"


# ---- hearing -----------------------------------------------------------------------------


def decode(data: bytes) -> Request:
    """The request in a body. Raises FaultError naming the field that is wrong."""
    return decode_request(data) or _decode(json.parse(data))


def _decode(fields: Fields) -> Request:
    model, items = fields.need("model"), decode_messages(fields)
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
    if (short := encode_request(request, dialect)) is not None:
        return short, ()
    judged, ledger = judge(request, LOSSES), LossList()
    said: dict[str, JSON] = {
        "model": request.model,
        "messages": _messages_request(request, dialect, ledger),
        **_set_fields(request, dialect),
        **_tools(request, ledger),
        **_stream(request, dialect, ledger),
    }
    said = restore(said, request.extra)
    for name in sorted(dialect.drop & said.keys()):
        del said[name]
        ledger.note(name, "dropped", "this server does not take it")
    return json.dump(said), judged + ledger.losses()


def _messages_request(request: Request, dialect: Dialect, ledger: LossList) -> list[JSON]:
    said = encode_turns(request.items, dialect, ledger)
    match request.instructions:
        case None:
            return said
        case str(text):
            return [{"role": "system", "content": text}, *said]
        case items:
            return [*encode_turns(items, dialect, LossList()), *said]


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
    return _given_request(fields)


def _given_request(fields: dict[str, JSON]) -> dict[str, JSON]:
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
            inner = {"name": format.name} | _given_request(optional | {"strict": format.strict})
            return {"type": "json_schema", "json_schema": restore(inner, format.extra)}


def _say_audio(audio: AudioOutput | None) -> JSON:
    if audio is None:
        return None
    return restore(_given_request({"voice": audio.voice, "format": audio.format}), audio.extra)


def _tools(request: Request, ledger: LossList) -> dict[str, JSON]:
    """The tools, and what only makes sense with them."""
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    said = {
        "tool_choice": None if choice is None else tools.encode_choice(choice),
        "parallel_tool_calls": parallel,
    }
    offered = tools.encode(request.tools)
    if offered:
        return {"tools": offered} | _given_request(said)
    for name in _given_request(said):
        ledger.note(name, "dropped", "there are no tools to choose from")
    return {}


def _stream(request: Request, dialect: Dialect, ledger: LossList) -> dict[str, JSON]:
    options = request.stream_options
    if not request.stream:
        if options is not None:
            ledger.note("stream_options", "dropped", "the answer is not streamed")
        return {}
    options = options or StreamOptions()
    usage = True if dialect.ask_usage else options.include_usage
    given = {"include_usage": usage, "include_obfuscation": options.include_obfuscation}
    said = restore(_given_request(given), options.extra)
    return {"stream": True} | ({"stream_options": said} if said else {})
