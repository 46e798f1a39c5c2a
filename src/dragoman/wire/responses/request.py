"""Responses requests, decoded and encoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    Part,
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
from dragoman.wire.dialect import STANDARD, Dialect
from dragoman.wire.json import Fields, kind
from dragoman.wire.losses import judge

from . import tools
from .items import VENDOR_PARTS, decode_all, dense, encode_items, keep, kept, merge
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
    if request.prompt is None and not any(_brings_tools(item) for item in request.items):
        _check_choice(request)


def _wrong(problem: str, param: str) -> FaultError:
    return FaultError(bad_request(problem, param))


def _check_parts(items: tuple[Item, ...]) -> None:
    """A kind of content nobody knows is a mistake, not an extension."""
    for number, item in enumerate(items):
        match item:
            case Message(content=tuple(parts)):
                _known(parts, f"input[{number}].content")
            case (
                FunctionCallOutput(output=tuple(parts)) | CustomToolCallOutput(output=tuple(parts))
            ):
                _known(parts, f"input[{number}].output")


def _known(parts: tuple[Part, ...], path: str) -> None:
    for number, part in enumerate(parts):
        if isinstance(part, UnknownPart) and part.value["type"] not in VENDOR_PARTS:
            said = part.value["type"]
            raise _wrong(f"is {said!r}, which is no kind of content", f"{path}[{number}].type")


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


def _brings_tools(item: Item) -> bool:
    return isinstance(item, Unknown) and item.kind in _BRINGS_TOOLS


def _check_choice(request: Request) -> None:
    """A tool that must be called must be offered."""
    offered = set(_names(request.tools))
    match request.tool_choice:
        case NamedTool() as choice if (choice.kind, choice.name) not in offered:
            raise _wrong(f"{choice.name!r} is not among the tools", "tool_choice")
        case AllowedTools() as choice:
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
"""Where sampling values that only some servers take on this wire wait, as they were said."""

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


# ---- reading -----------------------------------------------------------------------------


def decode(data: bytes) -> Request:
    """The request in a body. Raises FaultError naming the field that is wrong.

    >>> decode(b'{"model": "m", "input": "hello"}').items[0].text
    'hello'
    """
    fields = json.parse(data)
    known: dict[str, Any] = {"model": fields.need("model"), "items": _input(fields)}
    known |= {name: fields.string(name) for name in _STRINGS}
    known |= {name: fields.boolean(name) for name in (*_BOOLEANS, "store")}
    known |= {name: fields.mapping(name) for name in _OBJECTS}
    format, verbosity, rest = _text(fields)
    include = fields.strings("include") or ()
    sampling, vendor = _sampling(fields, LOGPROBS in include)
    request = Request(
        **known,
        instructions=_instructions(fields),
        tools=tools.decode_all(fields),
        tool_choice=tools.decode_choice(fields),
        max_tool_calls=fields.integer("max_tool_calls", 1),
        sampling=sampling,
        max_output_tokens=fields.integer("max_output_tokens", 1),
        format=format,
        verbosity=verbosity,
        reasoning=_reasoning(fields),
        stream=fields.boolean("stream") or False,
        stream_options=_stream_options(fields),
        conversation=_conversation(fields),
        context_management=fields.array("context_management"),
        include=include,
    )
    unknown = {**fields.rest(), **({"text": rest} if rest else {})}
    if known["store"] is None:
        unknown["store"] = None  # absent, which here means yes: see `encode`
    extra = keep(unknown) or {}
    if vendor:
        extra[_VENDOR] = vendor
    request = replace(request, extra=extra or None)
    check(request)
    return request


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


def _sampling(fields: Fields, logprobs: bool) -> tuple[Sampling, dict[str, JSON]]:
    """The sampling values, and those among them that the protocol itself has not."""
    vendor = {name: fields.any(name) for name in _VENDOR_SAMPLING if name in fields}
    more = Fields(vendor)
    stop = vendor.get("stop")
    bias = more.mapping("logit_bias")
    for token, value in (bias or {}).items():
        Fields({token: value}, "logit_bias").number(token, -100, 100)
    sampling = Sampling(
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        top_logprobs=fields.integer("top_logprobs", 0, 20),
        logprobs=True if logprobs else None,
        top_k=more.integer("top_k"),
        min_p=more.number("min_p", 0, 1),
        repetition_penalty=more.number("repetition_penalty", 0),
        seed=more.integer("seed"),
        stop=(stop,) if isinstance(stop, str) else more.strings("stop"),
        logit_bias=bias,
    )
    return sampling, vendor


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
    return ReasoningOptions(effort, summary, keep(options.rest()))


def _stream_options(fields: Fields) -> StreamOptions | None:
    options = fields.object("stream_options")
    if options is None:
        return None
    obfuscation = options.boolean("include_obfuscation")
    return StreamOptions(include_obfuscation=obfuscation, extra=keep(options.rest()))


# ---- writing -----------------------------------------------------------------------------


def encode(request: Request, dialect: Dialect = STANDARD) -> tuple[bytes, tuple[Loss, ...]]:
    """The body that asks for this, with only what was asked for, and what it could not carry.

    Raises FaultError where a loss would change the answer. The same request always gives the
    same bytes, and a longer conversation begins with the bytes of the shorter one.

    An absent `store` means yes on this wire and no elsewhere. So it stays absent where a client
    of this wire left it out, and is `false` where nobody on another wire asked for it.
    """
    vendor = (request.extra or {}).get(_VENDOR, {})
    own = replace(request.sampling, **dict.fromkeys(vendor))
    losses = judge(replace(request, sampling=own), LOSSES)
    said = dense(merge(_fields(request), {**vendor, **kept(request.extra)}))
    for name in sorted(dialect.drop & said.keys()):
        del said[name]
        losses += (Loss(name, "dropped", "the model's server does not take it"),)
    return json.dump({**said, "input": _encode_items(request.items)}), losses


def _fields(request: Request) -> dict[str, JSON]:
    sampling = request.sampling
    return {
        "model": request.model,
        "stream": request.stream or None,
        "instructions": encode_instructions(request),
        "tools": tools.encode_all(request.tools) or None,
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
    said = (encode_items(item) for item in values)
    return [item for item in said if item is not None]


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
    said = {"effort": options.effort, "summary": options.summary}
    return dense({**said, **kept(options.extra)})


def _encode_stream_options(options: StreamOptions | None) -> JSON:
    """What this wire has of them; usage is part of every answer here."""
    if options is None:
        return None
    said = {"include_obfuscation": options.include_obfuscation, **kept(options.extra)}
    return dense(said) or None


def _encode_include(request: Request) -> JSON:
    include = list(request.include)
    if request.sampling.logprobs and LOGPROBS not in include:
        include.append(LOGPROBS)
    return include or None
