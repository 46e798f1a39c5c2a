"""Responses requests, decoded and encoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import (
    JSON,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    Message,
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedTool,
    Namespace,
    OutputFormat,
    ReasoningOptions,
    Request,
    Sampling,
    StreamOptions,
    Tool,
    UnknownTool,
)
from dragoman.wire import json
from dragoman.wire.json import ABSENT, Fields, Reader, kind
from dragoman.wire.losses import judge
from dragoman.wire.protocol import STANDARD, Dialect

from . import tools
from .items import (
    VENDOR_PARTS,
    decode_all,
    decode_typed,
    dense,
    encode_items,
    from_extra,
    merge,
    to_extra,
)
from .losses import LOSSES

_BRINGS_TOOLS = frozenset({"additional_tools", "tool_search_output"})
"""Kinds of items that offer tools themselves."""


def check(request: Request) -> None:
    """Raises FaultError for the first rule that is broken."""
    if request.conversation is not None and request.previous_response_id is not None:
        raise _wrong("cannot be given together with previous_response_id", "conversation")
    elsewhere = (request.previous_response_id, request.conversation, request.prompt)
    if not request.items and request.instructions is None and elsewhere == (None, None, None):
        raise _wrong("is missing", "input")
    _check_parts(request.items)
    if request.previous_response_id is None and request.conversation is None:
        _check_outputs(request.items)
    if request.prompt is not None or request.tool_choice is None:
        return
    kinds = {item.kind for item in request.items if isinstance(item, Unknown)}
    if not kinds & _BRINGS_TOOLS:
        _check_choice(request)


def _wrong(problem: str, param: str) -> FaultError:
    return FaultError(bad_request(problem, param))


def _check_parts(items: tuple[Item, ...]) -> None:
    """An unknown kind of content is a mistake, not an extension."""
    for number, item in enumerate(items):
        if isinstance(item, Message):
            name, parts = "content", item.content
        elif isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            name, parts = "output", item.output
        else:
            continue
        for place, part in enumerate(parts if isinstance(parts, tuple) else ()):
            if isinstance(part, UnknownPart) and part.value["type"] not in VENDOR_PARTS:
                problem = f"is {part.value['type']!r}, which is no kind of content"
                raise _wrong(problem, f"input[{number}].{name}[{place}].type")


def _check_outputs(items: tuple[Item, ...]) -> None:
    """A call's output follows its call, unless earlier items are out of sight."""
    calls: set[str] = set()
    for number, item in enumerate(items):
        match item:
            case FunctionCall() | CustomToolCall():
                calls.add(item.call_id)
            case Unknown(value={"call_id": str(call_id)}):
                calls.add(call_id)
            case ItemReference() | Compaction():
                return
            case FunctionCallOutput() | CustomToolCallOutput() if item.call_id not in calls:
                problem = f"No tool call found for the output with call_id {item.call_id!r}"
                raise _wrong(problem, f"input[{number}].call_id")


def _check_choice(request: Request) -> None:
    """A tool that must be called must be offered."""
    match request.tool_choice:
        case NamedTool() as choice if (choice.kind, choice.name) not in _names(request.tools):
            raise _wrong(f"{choice.name!r} is not among the tools", "tool_choice")
        case AllowedTools() as choice:
            offered = set(_names(request.tools))
            for number, tool in enumerate(choice.tools):
                if isinstance(tool, NamedTool) and (tool.kind, tool.name) not in offered:
                    at = f"tool_choice.tools[{number}]"
                    raise _wrong(f"{tool.name!r} is not among the tools", at)
            if choice.mode == "required" and not choice.tools:
                raise _wrong("is required, and no tool is allowed", "tool_choice")
        case "required" | UnknownTool() if not request.tools:
            raise _wrong("needs tools, and there are none", "tool_choice")


def _names(tools: tuple[Tool, ...]) -> Iterator[tuple[str, str]]:
    """Kind and name of every tool that can be chosen by name."""
    for tool in tools:
        match tool:
            case FunctionTool():
                yield "function", tool.name
            case CustomTool():
                yield "custom", tool.name
            case Namespace():
                yield from _names(tool.tools)


LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for token probabilities."""

_VENDOR = "responses_vendor"
"""The key in `extra` of sampling values that only some servers take on this wire."""

_STRINGS = (
    "previous_response_id",
    "truncation",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
)
_BOOLEANS = ("parallel_tool_calls", "background")
_OBJECTS = ("prompt", "metadata", "moderation", "prompt_cache_options")
_LIMITS = ("max_tool_calls", "max_output_tokens")
_CHANCES = ("temperature", "top_p")
_PENALTIES = ("frequency_penalty", "presence_penalty")


# ---- decoding -----------------------------------------------------------------------------


def decode(data: bytes) -> Request:
    """The request in a body. Raises FaultError naming the field that is wrong.

    >>> decode(b'{"model": "m", "input": "hello"}').items[0].text
    'hello'
    """
    try:
        body, rest = _body.read(data)
        items = () if body.input is ABSENT else _typed_input(body.input)
        offered = () if body.tools is ABSENT else tools.decode_cached(body.tools)
        known: dict[str, Any] = {name: getattr(body, name) for name in _TYPED}
        given = {name: v for name in _STRUCTURED if (v := getattr(body, name)) is not None}
        json.check_depth([given, *(known[name] for name in _OBJECTS)])
        fields = Fields(rest | given)
    except (FaultError, ValueError, *json.BROKEN):
        # No JSON, half a character in it, or a wrong type somewhere: read it field by field, which
        # finds the words for what is wrong, and takes what is only unusual.
        fields = json.parse(data)
        known, items = {"model": fields.need("model")}, _input(fields)
        known |= {name: fields.string(name) for name in _STRINGS}
        known |= {name: fields.boolean(name) for name in (*_BOOLEANS, "store", "stream")}
        known |= {name: fields.mapping(name) for name in _OBJECTS}
        known |= {name: fields.integer(name, 1) for name in _LIMITS}
        known |= {name: fields.number(name, 0, 2 - (name == "top_p")) for name in _CHANCES}
        known |= {name: fields.number(name, -2, 2) for name in _PENALTIES}
        known["top_logprobs"] = fields.integer("top_logprobs", 0, 20)
        known["include"] = fields.strings("include")
        offered = tools.decode_all(fields)
    request = _request(fields, known, items, offered)
    check(request)
    return request


def _request(
    fields: Fields, known: dict[str, Any], items: tuple[Item, ...], offered: tuple[Tool, ...]
) -> Request:
    """The request, of the fields with a simple type and those that are objects or rare."""
    include = tuple(known.pop("include") or ())
    values = {name: known.pop(name) for name in (*_CHANCES, *_PENALTIES, "top_logprobs")}
    vendor = {name: fields.any(name) for name in _VENDOR_SAMPLING if name in fields}
    if vendor:
        values |= _vendor_sampling(vendor)
    if LOGPROBS in include:
        values["logprobs"] = True
    format, verbosity, rest = _text(fields)
    context = fields.array("context_management")
    decoded = {
        "instructions": _instructions(fields),
        "tool_choice": tools.decode_choice(fields),
        "reasoning": _reasoning(fields),
        "stream_options": _stream_options(fields),
        "conversation": _conversation(fields),
    }
    unknown = {**fields.rest(), **({"text": rest} if rest else {})}
    if known["store"] is None:
        unknown["store"] = None  # absent, which here means yes: see `encode`
    extra = to_extra(unknown) or {}
    if vendor:
        extra[_VENDOR] = vendor
    known["stream"] = known["stream"] or False
    return Request(
        **known,
        **decoded,
        items=items,
        tools=offered,
        sampling=Sampling(**values),
        format=format,
        verbosity=verbosity,
        context_management=context,
        include=include,
        extra=extra or None,
    )


# ---- typed bodies ------------------------------------------------------------------------

# A number is encoded as it was: 1 does not become 1.0.
_Probability = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
_Temperature = Annotated[int, Meta(ge=0, le=2)] | Annotated[float, Meta(ge=0, le=2)]
_Penalty = Annotated[int, Meta(ge=-2, le=2)] | Annotated[float, Meta(ge=-2, le=2)]
_Limit = Annotated[int, Meta(ge=1)]
_Name = Annotated[str, Meta(min_length=1)]


class _Body(Struct):
    """The usual fields. Objects are any value here, and read field by field."""

    model: _Name
    input: Raw = ABSENT
    tools: Raw = ABSENT
    previous_response_id: str | None = None
    truncation: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    prompt: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    max_tool_calls: _Limit | None = None
    max_output_tokens: _Limit | None = None
    temperature: _Temperature | None = None
    top_p: _Probability | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    instructions: JSON = None
    tool_choice: JSON = None
    text: JSON = None
    reasoning: JSON = None
    stream_options: JSON = None
    conversation: JSON = None
    context_management: JSON = None


_body = Reader(_Body)
_STRUCTURED = (
    *("instructions", "tool_choice", "text", "reasoning", "stream_options", "conversation"),
    "context_management",
)
_TYPED = tuple({*_Body.__struct_fields__} - {"input", "tools", *_STRUCTURED})


def _typed_input(data: Raw) -> tuple[Item, ...]:
    if bytes(data)[:1] == b"[":
        return decode_typed(data)
    return _input(Fields({"input": json.value_of(data)}))


# ---- fields ------------------------------------------------------------------------------


def _input(fields: Fields) -> tuple[Item, ...]:
    match fields.any("input"):
        case None:
            return ()
        case str(text):
            return (Message("user", text),)
        case list(values):
            return decode_all(values, fields.at("input"))
        case value:
            raise fields.wrong("input", f"is {kind(value)}, and must be a string or an array")


def _instructions(fields: Fields) -> str | tuple[Item, ...] | None:
    match fields.any("instructions"):
        case list(values):
            return decode_all(values, fields.at("instructions"))
        case None | str() as text:
            return text
        case value:
            raise fields.wrong("instructions", f"is {kind(value)}, and must be a string")


def _conversation(fields: Fields) -> JSON:
    match fields.any("conversation"):
        case None | str() | {"id": str()} as value:
            return value
        case _:
            raise fields.wrong("conversation", "must be a conversation's id, or an object with it")


def _vendor_sampling(vendor: dict[str, JSON]) -> dict[str, Any]:
    """The sampling values that the protocol itself has not."""
    more = Fields(vendor)
    stop = vendor.get("stop")
    bias = more.mapping("logit_bias")
    for token, value in (bias or {}).items():
        Fields({token: value}, "logit_bias").number(token, -100, 100)
    return {
        "top_k": more.integer("top_k"),
        "min_p": more.number("min_p", 0, 1),
        "repetition_penalty": more.number("repetition_penalty", 0),
        "seed": more.integer("seed"),
        "stop": (stop,) if isinstance(stop, str) else more.strings("stop"),
        "logit_bias": bias,
    }


_VENDOR_SAMPLING = ("top_k", "min_p", "repetition_penalty", "seed", "stop", "logit_bias")


def _text(fields: Fields) -> tuple[OutputFormat | None, str | None, dict[str, JSON]]:
    """The format of the answer, its verbosity, and what we do not know of `text`."""
    text = fields.object("text")
    if text is None:
        return None, None, {}
    format, known = text.object("format"), None
    unknown: dict[str, JSON] = {}
    if format is not None:
        known, unknown = tools.decode_format(format)
    verbosity = text.string("verbosity")
    return known, verbosity, {**text.rest(), **({"format": unknown} if unknown else {})}


def _reasoning(fields: Fields) -> ReasoningOptions | None:
    options = fields.object("reasoning")
    if options is None:
        return None
    effort, summary = options.string("effort"), options.string("summary")
    return ReasoningOptions(effort, summary, to_extra(options.rest()))


def _stream_options(fields: Fields) -> StreamOptions | None:
    options = fields.object("stream_options")
    if options is None:
        return None
    obfuscation = options.boolean("include_obfuscation")
    return StreamOptions(include_obfuscation=obfuscation, extra=to_extra(options.rest()))


# ---- encoding -----------------------------------------------------------------------------


def encode(request: Request, dialect: Dialect = STANDARD) -> tuple[bytes, tuple[Loss, ...]]:
    """The body that asks for this, with only what was asked for, and what it could not carry.

    Raises FaultError where a loss would change the answer. The same request always gives the
    same bytes, and a longer conversation begins with the bytes of the shorter one.

    An absent `store` means yes on this wire and no elsewhere. So it stays absent where a client
    of this wire left it out, and is `false` where a client of another wire did not ask for it.
    """
    vendor = (request.extra or {}).get(_VENDOR, {})
    own = replace(request.sampling, **dict.fromkeys(vendor))
    losses = judge(replace(request, sampling=own), LOSSES)
    encoded = dense(merge(_fields(request), {**vendor, **from_extra(request.extra)}))
    for name in sorted(dialect.drop & encoded.keys()):
        del encoded[name]
        losses += (Loss(name, "dropped", "the model's server does not take it"),)
    return json.dump({**encoded, "input": _encode_items(request.items)}), losses


def _fields(request: Request) -> dict[str, JSON]:
    sampling = request.sampling
    return {
        "model": request.model,
        "stream": request.stream or None,
        "instructions": encode_instructions(request),
        "tools": tools.encode_cached(request.tools) if request.tools else None,
        "tool_choice": request.tool_choice and tools.encode_choice(request.tool_choice),
        "max_tool_calls": request.max_tool_calls,
        "text": _encode_text(request),
        "reasoning": _encode_reasoning(request.reasoning),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "top_logprobs": sampling.top_logprobs,
        "max_output_tokens": request.max_output_tokens,
        "include": _encode_include(request),
        "stream_options": _encode_stream_options(request.stream_options),
        "store": bool(request.store),
        **{name: getattr(request, name) for name in (*_STRINGS, *_BOOLEANS, *_OBJECTS)},
        "conversation": request.conversation,
        "context_management": request.context_management,
    }


def _encode_items(values: tuple[Item, ...]) -> list[JSON]:
    encoded = (encode_items(item) for item in values)
    return [item for item in encoded if item is not None]


def encode_instructions(request: Request) -> JSON:
    """Instructions in the shape they were given."""
    if isinstance(request.instructions, tuple):
        return _encode_items(request.instructions)
    return request.instructions


def _encode_text(request: Request) -> JSON:
    format = tools.encode_format(request.format) if request.format is not None else None
    return dense({"format": format, "verbosity": request.verbosity}) or None


def _encode_reasoning(options: ReasoningOptions | None) -> JSON:
    if options is None:
        return None
    encoded = {"effort": options.effort, "summary": options.summary}
    return dense({**encoded, **from_extra(options.extra)})


def _encode_stream_options(options: StreamOptions | None) -> JSON:
    """What this wire has of them; usage is part of every answer here."""
    if options is None:
        return None
    encoded = {"include_obfuscation": options.include_obfuscation, **from_extra(options.extra)}
    return dense(encoded) or None


def _encode_include(request: Request) -> JSON:
    include = list(request.include)
    if request.sampling.logprobs and LOGPROBS not in include:
        include.append(LOGPROBS)
    return include or None
