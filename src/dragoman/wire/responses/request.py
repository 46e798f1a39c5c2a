"""Responses requests, decoded and encoded."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request, quoted
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
    Reasoning,
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import Loss, LossList
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedTool,
    Namespace,
    ReasoningOptions,
    Request,
    StreamOptions,
    Tool,
    UnknownTool,
)
from dragoman.wire import json
from dragoman.wire.choices import LABELS, ConversationFields, decode_sampling
from dragoman.wire.json import ABSENT, LIMITS, Fields, Limits, Reader, dense
from dragoman.wire.losses import judge
from dragoman.wire.protocol import STANDARD, Dialect
from dragoman.wire.tools import ToolCodec

from .items import CONTENT, VENDOR_PARTS, WIRE, decode_items, encode_item, from_extra, to_extra
from .losses import LOSSES

_BRINGS_TOOLS = frozenset({"additional_tools", "tool_search_output"})
"""Kinds of items that offer tools themselves."""


def check(request: Request, limits: Limits = LIMITS) -> None:
    """Raises FaultError for the first rule that is broken.

    An unknown kind of content is a mistake, not an extension. A call's output follows its call,
    unless earlier items are out of sight.
    """
    previous, conversation = request.previous_response_id, request.conversation
    if conversation is not None and previous is not None:
        raise _wrong("cannot be given together with previous_response_id", "conversation")
    whole = conversation is None and previous is None
    if whole and not request.items and request.instructions is None and request.prompt is None:
        strayed = "messages" in (request.extra or {}).get(WIRE, {})
        hint = "; `messages` is what /v1/chat/completions takes" if strayed else ""
        raise _wrong(f"is missing or empty{hint}", "input")
    calls, asked = set[str](), set[str | None]()
    for number, item in enumerate(request.items):
        parts: str | tuple[Part, ...] = ()
        match item:
            case Message(content=parts):
                name = "content"
            case FunctionCallOutput(output=parts) | CustomToolCallOutput(output=parts):
                name = "output"
                if whole and item.call_id not in calls:
                    problem = (
                        f"No tool call found for the output with call_id {quoted(item.call_id)}"
                    )
                    raise _wrong(problem, f"input[{number}].call_id")
            case FunctionCall() | CustomToolCall():
                calls.add(item.call_id)
            case ItemReference() | Compaction():
                whole = False
            case Unknown(value={"call_id": str(call_id)}):
                calls.add(call_id)
            case Unknown(kind="mcp_approval_request"):
                asked.add(item.id)
            case Unknown(kind="mcp_approval_response", value={"approval_request_id": str(id)}):
                if whole and id not in asked:
                    raise unasked(id, f"input[{number}]")
        if not isinstance(parts, str) and len(parts) > limits.max_parts:
            raise json.too_many(f"input[{number}].{name}", limits.max_parts, "max_parts")
        for place, part in enumerate(parts if isinstance(parts, tuple) else ()):
            if isinstance(part, UnknownPart) and part.value["type"] not in VENDOR_PARTS:
                problem = f"is {quoted(part.value['type'])}, and must be one of {CONTENT}"
                raise _wrong(problem, f"input[{number}].{name}[{place}].type")
    if request.tool_choice in (None, "auto", "none") or request.prompt is not None:
        return
    if _BRINGS_TOOLS.isdisjoint([i.kind for i in request.items if isinstance(i, Unknown)]):
        _check_choice(request)


def _wrong(problem: str, param: str) -> FaultError:
    return FaultError(bad_request(problem, param))


def unasked(id: str, path: str) -> FaultError:
    """The error for the answer to a request for consent that is not there."""
    problem = f"No approval request found with the id {quoted(id)}"
    return _wrong(problem, f"{path}.approval_request_id")


def _check_choice(request: Request) -> None:
    """A tool that must be called must be offered."""
    match request.tool_choice:
        case NamedTool() as choice if (choice.kind, choice.name) not in _names(request.tools):
            raise _wrong(f"{quoted(choice.name)} is not among the tools", "tool_choice")
        case AllowedTools() as choice:
            offered = set(_names(request.tools))
            for number, tool in enumerate(choice.tools):
                if isinstance(tool, NamedTool) and (tool.kind, tool.name) not in offered:
                    at = f"tool_choice.tools[{number}]"
                    raise _wrong(f"{quoted(tool.name)} is not among the tools", at)
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


TOOLS = ToolCodec(WIRE, nested=False)

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for token probabilities."""

_VENDOR = "responses_vendor"
"""The key in `extra` of sampling values that only some servers take on this wire."""

_PLAIN = (
    *LABELS,
    *("previous_response_id", "truncation", "background", "prompt", "max_tool_calls"),
    *("max_output_tokens", "conversation", "context_management"),
)
"""Fields that are the same on this wire and in the core."""
_plain = attrgetter(*_PLAIN)
_VENDOR_SAMPLING = ("top_k", "min_p", "repetition_penalty", "seed", "stop", "logit_bias")
_NO_SAMPLING = ("n", "repeat_penalty")
"""Sampling values of other wires, which are unknown fields on this one."""
_INTEGERS = ("max_tool_calls", "max_output_tokens", "top_logprobs", "seed", "top_k")

_Limit = Annotated[int, Meta(ge=1)]


class _Body(ConversationFields, kw_only=True):
    """The fields we know. Those of several shapes are any value here."""

    input: Raw = ABSENT
    previous_response_id: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    max_tool_calls: _Limit | None = None
    max_output_tokens: _Limit | None = None
    include: list[str] | None = None
    instructions: str | list[Any] | None = None
    text: Raw = ABSENT
    reasoning: Raw = ABSENT
    conversation: JSON = None
    context_management: list[Any] | None = None


class _Reasoning(Struct):
    effort: str | None = None
    summary: str | None = None


class _StreamOptions(Struct):
    include_obfuscation: bool | None = None


class _Text(Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


_body = Reader(_Body)
_reasoning, _stream_options, _text = Reader(_Reasoning), Reader(_StreamOptions), Reader(_Text)

# ---- decoding -----------------------------------------------------------------------------


_USUAL = {WIRE: {"store": None}}
"""The extra of most requests: one for all."""


def decode(data: bytes, limits: Limits = LIMITS) -> Request:
    """The request in a body. Raises FaultError naming the field that is wrong.

    >>> decode(b'{"model": "m", "input": "hello"}').items[0].text
    'hello'
    """
    try:
        request = _decode(data, limits)
    except (FaultError, ValueError, *json.BROKEN) as error:
        request = _decode(json.mended(data, error, _INTEGERS), limits)
    check(request, limits)
    return request


def _decode(data: bytes, limits: Limits) -> Request:
    body, rest = _body.read(data)
    plain: dict[str, Any] = dict(zip(_PLAIN, _plain(body), strict=True))
    instructions, choice = body.instructions, body.tool_choice
    loose = [instructions, choice, *plain.values()]
    if not {dict, list}.isdisjoint(map(type, loose)):
        json.check_depth(loose)
    if body.metadata is not None:
        json.check_metadata(body.metadata, limits)
    match body.conversation:
        case None | str() | {"id": str()}:
            pass
        case _:
            raise _wrong("must be a conversation's id, or an object with it", "conversation")
    if isinstance(instructions, list):
        plain["instructions"] = decode_items(json.dump(instructions), "instructions", limits)
    else:
        plain["instructions"] = instructions
    if body.reasoning is not ABSENT and (
        given := _options(_reasoning, body.reasoning, "reasoning")
    ):
        reasoning, more = given
        plain["reasoning"] = ReasoningOptions(reasoning.effort, reasoning.summary, to_extra(more))
    if body.stream_options is not ABSENT and (
        given := _options(_stream_options, body.stream_options, "stream_options")
    ):
        options, more = given
        plain["stream_options"] = StreamOptions(
            include_obfuscation=options.include_obfuscation, extra=to_extra(more)
        )
    if body.text is not ABSENT and (given := _options(_text, body.text, "text")):
        text, more = given
        plain["verbosity"] = text.verbosity
        if text.format is not None:
            json.check_depth(text.format)
            plain["format"], unknown = TOOLS.decode_format(Fields(text.format, "text.format"))
            more |= {"format": unknown} if unknown else {}
        rest |= {"text": more} if more else {}
    vendor = {n: v for n in _VENDOR_SAMPLING if (v := getattr(body, n)) is not None}
    rest |= {n: v for n in _NO_SAMPLING if (v := getattr(body, n)) is not None}
    body.n = body.repeat_penalty = None
    include = tuple(body.include or ())
    probabilities = True if LOGPROBS in include else None
    if body.store is None:
        rest["store"] = None  # absent, which here means yes: see `encode`
    extra = {WIRE: rest} if rest else {}
    if vendor:
        extra[_VENDOR] = vendor
    return Request(
        model=body.model,
        items=_input(body.input, limits),
        tools=() if body.tools is ABSENT else TOOLS.decode_all(body.tools, limits),
        tool_choice=None if choice is None else TOOLS.decode_choice(choice, limits),
        sampling=decode_sampling(body, probabilities, body.top_logprobs, rest, limits),
        stream=body.stream or False,
        store=body.store,
        include=include,
        extra=_USUAL if extra == _USUAL else extra or None,
        **plain,
    )


def decode_tool(value: dict[str, JSON], path: str) -> Tool:
    """One tool. Raises FaultError naming the field that is wrong."""
    tool: Tool = TOOLS.decode(Fields(value, path))
    return tool


def _options(reader: Reader[Any], data: Raw, path: str) -> tuple[Any, dict[str, JSON]] | None:
    """An object of options and its unknown fields; None where it is null."""
    return None if bytes(data) == b"null" else reader.read(data, path)


def _input(data: Raw, limits: Limits) -> tuple[Item, ...]:
    if data is ABSENT:
        return ()
    match bytes(memoryview(data)[:1]):
        case b"[":
            return decode_items(data, "input", limits)
        case b'"':
            return (Message("user", json.decode_string(data)),)
        case b"n":
            return ()
        case _:
            problem = f"is {json.kind(json.value_of(data))}, and must be a string or an array"
            raise FaultError(bad_request(problem, "input"))


# ---- encoding -----------------------------------------------------------------------------


def encode(request: Request, dialect: Dialect = STANDARD) -> tuple[bytes, tuple[Loss, ...]]:
    """The body that asks for this, with only what was asked for, and what it could not carry.

    Raises FaultError where a loss would change the answer. The same request always gives the
    same bytes, and a longer conversation begins with the bytes of the shorter one.

    An absent `store` means yes on this wire and no elsewhere. So it stays absent where a client
    of this wire left it out, and is `false` where a client of another wire did not ask for it.
    """
    vendor, unknown = (request.extra or {}).get(_VENDOR, {}), from_extra(request.extra)
    own = replace(request.sampling, **dict.fromkeys(vendor))
    losses = judge(replace(request, sampling=own), LOSSES)
    sampling, options, include = request.sampling, request.stream_options, list(request.include)
    if sampling.logprobs and LOGPROBS not in include:
        include.append(LOGPROBS)
    format = request.format and TOOLS.encode_format(request.format)
    encoded = {
        "model": request.model,
        "stream": request.stream or None,
        "instructions": encode_instructions(request),
        "tools": TOOLS.encode_all(request.tools) if request.tools else None,
        "tool_choice": request.tool_choice and TOOLS.encode_choice(request.tool_choice),
        "text": dense({"format": format, "verbosity": request.verbosity}) or None,
        "reasoning": None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "top_logprobs": sampling.top_logprobs,
        "include": include or None,
        "store": None if "store" in unknown else bool(request.store),
        **dict(zip(_PLAIN, _plain(request), strict=True)),
    }
    if (reasoning := request.reasoning) is not None:
        given = {"effort": reasoning.effort, "summary": reasoning.summary}
        encoded["reasoning"] = dense({**given, **from_extra(reasoning.extra)})
    if options is not None:  # usage is part of every answer here
        obfuscation = {"include_obfuscation": options.include_obfuscation}
        encoded["stream_options"] = dense({**obfuscation, **from_extra(options.extra)}) or None
    encoded, items = dense(json.merge(encoded, {**vendor, **unknown})), request.items
    if dialect.reasoning_echo == "never":
        items, left = _sealed(items)
        losses += left
    for name in sorted(dialect.drop & encoded.keys()):
        del encoded[name]
        losses += (Loss(name, "dropped", "the model's server does not take it"),)
    return json.dump({**encoded, "input": _encode_items(items)}), losses


def _sealed(items: tuple[Item, ...]) -> tuple[tuple[Item, ...], tuple[Loss, ...]]:
    """The items with reasoning only where it is encrypted, and not its text: OpenAI refuses a
    conversation with any other, such as that of another server's model."""
    kept: list[Item] = []
    losses = LossList()
    for index, item in enumerate(items):
        if type(item) is Reasoning:
            if item.encrypted is None:
                why = "this server takes only its own encrypted reasoning back"
                losses.note("items[*].reasoning", "dropped", why, (index,))
                continue
            item = replace(item, content=())
        kept.append(item)
    return tuple(kept), losses.losses()


def encode_instructions(request: Request) -> JSON:
    """Instructions in the shape they were given."""
    given = request.instructions
    return _encode_items(given) if isinstance(given, tuple) else given


def _encode_items(values: tuple[Item, ...]) -> list[JSON]:
    return [encoded for item in values if (encoded := encode_item(item)) is not None]
