"""Responses requests, decoded and encoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct
from msgspec.structs import asdict, replace

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
    ReasoningOptions,
    Request,
    Sampling,
    StreamOptions,
    Tool,
    UnknownTool,
)
from dragoman.wire import json
from dragoman.wire.json import ABSENT, Fields, Reader
from dragoman.wire.losses import judge
from dragoman.wire.protocol import STANDARD, Dialect

from . import tools
from .items import (
    VENDOR_PARTS,
    WIRE,
    decode_items,
    dense,
    encode_item,
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
    whole = request.previous_response_id is None and request.conversation is None
    _check_items(request.items, whole=whole)
    if request.prompt is not None or request.tool_choice is None:
        return
    kinds = {item.kind for item in request.items if isinstance(item, Unknown)}
    if not kinds & _BRINGS_TOOLS:
        _check_choice(request)


def _wrong(problem: str, param: str) -> FaultError:
    return FaultError(bad_request(problem, param))


def _check_items(items: tuple[Item, ...], *, whole: bool) -> None:
    """An unknown kind of content is a mistake, not an extension. A call's output follows its call,
    unless earlier items are out of sight, as where this is not the `whole` conversation."""
    calls: set[str] = set()
    for number, item in enumerate(items):
        match item:
            case Message(content=parts):
                name = "content"
            case FunctionCallOutput(output=parts) | CustomToolCallOutput(output=parts):
                name = "output"
                if whole and item.call_id not in calls:
                    problem = f"No tool call found for the output with call_id {item.call_id!r}"
                    raise _wrong(problem, f"input[{number}].call_id")
            case FunctionCall() | CustomToolCall():
                calls.add(item.call_id)
                continue
            case Unknown(value={"call_id": str(call_id)}):
                calls.add(call_id)
                continue
            case _:
                whole = whole and not isinstance(item, ItemReference | Compaction)
                continue
        if isinstance(parts, str):
            continue
        for place, part in enumerate(parts):
            if isinstance(part, UnknownPart) and part.value["type"] not in VENDOR_PARTS:
                problem = f"is {part.value['type']!r}, which is no kind of content"
                raise _wrong(problem, f"input[{number}].{name}[{place}].type")


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
_INTEGERS = ("max_tool_calls", "max_output_tokens", "top_logprobs")
_SAMPLING = (*("temperature", "top_p", "frequency_penalty", "presence_penalty", "top_logprobs"),)
_STRUCTURED = (
    *("instructions", "tool_choice", "text", "reasoning", "stream_options", "conversation"),
    "context_management",
)
_VENDOR_SAMPLING = ("top_k", "min_p", "repetition_penalty", "seed", "stop", "logit_bias")

# A number is encoded as it was: 1 does not become 1.0.
_Probability = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
_Temperature = Annotated[int, Meta(ge=0, le=2)] | Annotated[float, Meta(ge=0, le=2)]
_Penalty = Annotated[int, Meta(ge=-2, le=2)] | Annotated[float, Meta(ge=-2, le=2)]
_Limit = Annotated[int, Meta(ge=1)]
_Name = Annotated[str, Meta(min_length=1)]


class _Body(Struct):
    """The usual fields. Those of several shapes or with fields inside are any value here, and read
    field by field together with the rare ones, which come as unknown ones do."""

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
    instructions: str | list[Any] | None = None
    tool_choice: JSON = None
    text: JSON = None
    reasoning: JSON = None
    stream_options: JSON = None
    conversation: JSON = None
    context_management: list[Any] | None = None


_body = Reader(_Body)

# ---- decoding -----------------------------------------------------------------------------


def decode(data: bytes) -> Request:
    """The request in a body. Raises FaultError naming the field that is wrong.

    >>> decode(b'{"model": "m", "input": "hello"}').items[0].text
    'hello'
    """
    try:
        request = _decode(data)
    except (FaultError, ValueError, *json.BROKEN) as error:
        # What is no JSON, or nested too deeply, is refused as that before anything else.
        fields = json.parse(data).rest()
        given = {name: fields.get(name) for name in _INTEGERS}
        rounded = {n: int(v) for n, v in given.items() if isinstance(v, float) and v.is_integer()}
        if isinstance(error, FaultError) and not rounded:
            raise
        # Lone surrogates, which msgspec does not read, are replaced; `4096.0` counts as an integer.
        request = _decode(json.dump(fields | rounded))
    check(request)
    return request


def _decode(data: bytes) -> Request:
    body, rest = _body.read(data)
    known = asdict(body)
    items = _input(known.pop("input"))
    offered = known.pop("tools")
    sampling = {name: known.pop(name) for name in _SAMPLING}
    include = known["include"] = tuple(known["include"] or ())
    if LOGPROBS in include:
        sampling["logprobs"] = True
    given = {name: value for name in _STRUCTURED if (value := known.pop(name)) is not None}
    loose = [*given.values(), *map(known.get, _OBJECTS)]
    if any(loose):
        json.check_depth(loose)
    if given or rest:
        decoded, rest = _structured(Fields(rest | given), sampling)
        known |= decoded
    if known["store"] is None:
        rest["store"] = None  # absent, which here means yes: see `encode`
    vendor = {name: rest.pop(name) for name in _VENDOR_SAMPLING if name in rest}
    extra = {WIRE: rest} if rest else {}
    if vendor:
        extra[_VENDOR] = vendor
    known["stream"] = known["stream"] or False
    return Request(
        **known,
        items=items,
        tools=() if offered is ABSENT else tools.decode_cached(offered),
        sampling=Sampling(**sampling),
        extra=extra or None,
    )


def _input(data: Raw) -> tuple[Item, ...]:
    if data is ABSENT:
        return ()
    match bytes(memoryview(data)[:1]):
        case b"[":
            return decode_items(data, "input")
        case b'"':
            return (Message("user", json.decode_string(data)),)
        case b"n":
            return ()
        case _:
            problem = f"is {json.kind(json.value_of(data))}, and must be a string or an array"
            raise FaultError(bad_request(problem, "input"))


def _structured(fields: Fields, sampling: dict[str, Any]) -> tuple[dict[str, Any], dict[str, JSON]]:
    """The fields of a request that are objects or come in several shapes, and all that is left.
    Sampling values that the protocol itself has not are added to the others, and left too."""
    decoded: dict[str, Any] = {
        "tool_choice": tools.decode_choice(fields),
        "context_management": fields.any("context_management"),
    }
    match fields.any("instructions"):
        case list(values):
            decoded["instructions"] = decode_items(json.dump(values), "instructions")
        case text:
            decoded["instructions"] = text
    match fields.any("conversation"):
        case None | str() | {"id": str()} as value:
            decoded["conversation"] = value
        case _:
            raise fields.wrong("conversation", "must be a conversation's id, or an object with it")
    if (options := fields.object("reasoning")) is not None:
        effort, summary = options.string("effort"), options.string("summary")
        decoded["reasoning"] = ReasoningOptions(effort, summary, to_extra(options.rest()))
    if (options := fields.object("stream_options")) is not None:
        obfuscation, extra = options.boolean("include_obfuscation"), to_extra(options.rest())
        decoded["stream_options"] = StreamOptions(include_obfuscation=obfuscation, extra=extra)
    unknown: dict[str, JSON] = {}
    if (text := fields.object("text")) is not None:
        decoded["verbosity"], format = text.string("verbosity"), text.object("format")
        unknown = text.rest()
        if format is not None:
            decoded["format"], more = tools.decode_format(format)
            unknown |= {"format": more} if more else {}
    rest = fields.rest()
    vendor = {name: rest[name] for name in _VENDOR_SAMPLING if name in rest}
    if vendor:
        sampling |= _vendor_sampling(vendor)
    return decoded, rest | ({"text": unknown} if unknown else {})


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
    return [encoded for item in values if (encoded := encode_item(item)) is not None]


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
