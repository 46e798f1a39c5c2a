"""Chat Completions requests, decoded and encoded, with their tools and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from dragoman.core.error import FaultError
from dragoman.core.item import JSON, Extra
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AllowedTools,
    AudioOutput,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    OutputFormat,
    ReasoningOptions,
    Request,
    TextFormat,
    Tool,
    ToolChoice,
    ToolMode,
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
from dragoman.wire.json import ABSENT, Cache, Fields, Reader
from dragoman.wire.losses import Note, judge
from dragoman.wire.protocol import Dialect

from .fields import NAME, from_extra, restore, to_extra
from .losses import LOSSES
from .messages import decode_messages, encode_messages, message_reader

_CACHE_LIMIT = 4 * 1024 * 1024
_decoded = Cache[tuple[Tool, ...]](_CACHE_LIMIT)
"""Tools by the bytes of their array: an agent sends the same ones with every request."""
_encoded = Cache[tuple[tuple[Tool, ...], Raw]](_CACHE_LIMIT)
"""What tools are encoded to, by the identity of the tuple, which an entry keeps alive."""

# ---- tools -------------------------------------------------------------------------------


def decode_tools(raw: Raw) -> tuple[Tool, ...]:
    """The tools on offer."""
    data = bytes(raw)
    tools = _decoded.get(data)
    if tools is None:
        fields = Fields({"tools": json.load(data)})
        tools = tuple([_tool(tool) for tool in fields.objects("tools")])
        _decoded.put(data, tools, len(data))
    return tools


def decode_functions(request: Fields) -> tuple[FunctionTool, ...]:
    """The tools on offer in the deprecated `functions`."""
    return tuple(_function(function, {}) for function in request.objects("functions"))


def _tool(tool: Fields, *, grouped: bool = False) -> Any:
    """One tool; `grouped` inside a namespace, where there are no others."""
    kind = tool.string("type") or ("function" if "function" in tool else tool.need("type"))
    match kind:
        case "namespace" if grouped:
            raise tool.wrong("type", "is a namespace inside a namespace")
        case "namespace":
            name, description = tool.need("name"), tool.string("description")
            tools = tuple([_tool(each, grouped=True) for each in tool.objects("tools")])
            return Namespace(name, tools, description, to_extra(tool.rest()))
        case "function" if grouped and "function" not in tool:
            return _function(tool, {})  # without the inner object, as another protocol has it
        case "function":
            inner = _inner(tool, "function")
            return _function(inner, tool.rest())
        case "custom":
            return _custom(tool)
        case _:
            return UnknownTool(NAME, kind, tool.rest())


def _inner(tool: Fields, name: str) -> Fields:
    inner = tool.object(name)
    if inner is None:
        raise tool.wrong(name, "is missing")
    return inner


def _function(inner: Fields, rest: dict[str, JSON]) -> FunctionTool:
    name, description = inner.need("name"), inner.string("description")
    parameters, strict = inner.mapping("parameters"), inner.boolean("strict")
    extra = to_extra(rest, function=inner.rest())
    return FunctionTool(name, description, parameters, strict, extra)


def _custom(tool: Fields) -> CustomTool:
    inner = _inner(tool, "custom")
    name, description = inner.need("name"), inner.string("description")
    syntax = definition = None
    rest: dict[str, JSON] = {}
    if (format := inner.object("format")) is not None:
        if (grammar := format.object("grammar")) is not None:
            syntax, definition = grammar.need("syntax"), grammar.need("definition")
            rest = {"grammar": grammar.rest()} if grammar.rest() else {}
            if format.need("type") != "grammar":
                raise format.wrong("type", "must be 'grammar' where there is one")
        rest = format.rest() | rest
    extra = to_extra(tool.rest(), custom=inner.rest() | ({"format": rest} if rest else {}))
    return CustomTool(name, description, syntax, definition, extra)


def encode_tools(tools: tuple[Tool, ...]) -> Raw | None:
    """The array of the tools this wire can offer; None where there are none. Hosted tools of
    another wire are not among them."""
    entry = _encoded.get(id(tools))
    if entry is None:
        offered = _encode_all(tools)
        entry = tools, Raw(json.dump(offered) if offered else b"")
        _encoded.put(id(tools), entry, len(bytes(entry[1])))
    return entry[1] if bytes(entry[1]) else None


def _encode_all(tools: Iterable[Tool]) -> list[JSON]:
    encoded = (_encode(tool) for tool in tools)
    return [tool for tool in encoded if tool is not None]


def _encode(tool: Tool) -> JSON:
    match tool:
        case FunctionTool():
            named = {"description": tool.description, "parameters": tool.parameters}
            function = {"name": tool.name} | _given(**named, strict=tool.strict)
            return restore({"type": "function", "function": function}, tool.extra)
        case CustomTool():
            custom: dict[str, JSON] = {"name": tool.name} | _given(description=tool.description)
            if tool.grammar is not None:
                grammar = {"syntax": tool.syntax, "definition": tool.grammar}
                custom["format"] = {"type": "grammar", "grammar": grammar}
            return restore({"type": "custom", "custom": custom}, tool.extra)
        case Namespace():
            group = {"type": "namespace", "name": tool.name}
            group |= _given(description=tool.description)
            return restore({**group, "tools": _encode_all(tool.tools)}, tool.extra)
        case _:
            return {"type": tool.kind, **tool.value} if tool.wire == NAME else None


def _given(**fields: JSON) -> dict[str, JSON]:
    return {name: value for name, value in fields.items() if value is not None}


# ---- choice ------------------------------------------------------------------------------

_MODES: dict[str, ToolMode] = {"none": "none", "auto": "auto", "required": "required"}


def decode_choice(request: Fields, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """Which tool the model may or must call."""
    value = request.any("tool_choice")
    match value:
        case None:
            return None
        case str() if value in _MODES:
            if value == "required" and not tools:
                raise request.wrong("tool_choice", "is 'required', and there are no tools")
            return _MODES[value]
        case dict():
            return _choice(Fields(value, request.at("tool_choice")), tools)
        case _:
            problem = f"is {json.text(value)}, and must be none, auto, required or an object"
            raise request.wrong("tool_choice", problem)


def decode_function_call(request: Fields, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """The choice in the deprecated `function_call`."""
    match value := request.any("function_call"):
        case None:
            return None
        case "none" | "auto":
            return _MODES[value]
        case {"name": str(name)}:
            rest = {field: said for field, said in value.items() if field != "name"}
            choice = NamedTool(name, extra=to_extra({}, function=rest))
            _check_offered(request, "function_call", choice, tools)
            return choice
        case _:
            raise request.wrong("function_call", "must be none, auto or an object with a name")


def _choice(choice: Fields, tools: tuple[Tool, ...]) -> ToolChoice:
    kind = choice.need("type")
    match kind:
        case "function" | "custom":
            named = _named(choice, kind)
        case "allowed_tools":
            allowed = _inner(choice, "allowed_tools")
            mode = allowed.one_of("mode", ("auto", "required"))
            several = tuple(_allowed(each, tools) for each in allowed.objects("tools"))
            if not several:
                raise allowed.wrong("tools", "is missing or empty")
            extra = to_extra(choice.rest(), allowed_tools=allowed.rest())
            return AllowedTools("required" if mode == "required" else "auto", several, extra)
        case _:
            unknown = UnknownTool(NAME, kind, choice.rest())
            _check_offered(choice, "type", unknown, tools)
            return unknown
    _check_offered(choice, kind, named, tools)
    return named


def _allowed(tool: Fields, tools: tuple[Tool, ...]) -> NamedTool | UnknownTool:
    kind = tool.need("type")
    known = kind in ("function", "custom")
    choice = _named(tool, kind) if known else UnknownTool(NAME, kind, tool.rest())
    _check_offered(tool, kind if known else "type", choice, tools)
    return choice


def _named(choice: Fields, kind: str) -> NamedTool:
    inner = _inner(choice, kind)
    name, namespace = inner.need("name"), inner.string("namespace")
    extra = to_extra(choice.rest(), **{kind: inner.rest()})
    return NamedTool(name, "custom" if kind == "custom" else "function", namespace, extra)


def _check_offered(
    place: Fields, field: str, choice: NamedTool | UnknownTool, tools: tuple[Tool, ...]
) -> None:
    if not any(_is(tool, choice) for tool in tools):
        name = choice.name if isinstance(choice, NamedTool) else choice.kind
        raise place.wrong(field, f"chooses {name!r}, which is not among the tools")


def _is(tool: Tool, choice: NamedTool | UnknownTool) -> bool:
    match tool, choice:
        case Namespace(), NamedTool(namespace=str(space)):
            inner = NamedTool(choice.name, choice.kind)
            return tool.name == space and any(_is(each, inner) for each in tool.tools)
        case FunctionTool(), NamedTool(namespace=None, kind="function"):
            return tool.name == choice.name
        case CustomTool(), NamedTool(namespace=None, kind="custom"):
            return tool.name == choice.name
        case UnknownTool(), UnknownTool():
            return tool.kind == choice.kind
        case _:
            return False


def encode_choice(choice: ToolChoice) -> JSON:
    """The choice; None where this wire cannot say it."""
    match choice:
        case str():
            return choice
        case NamedTool():
            named = {"name": choice.name} | _given(namespace=choice.namespace)
            return restore({"type": choice.kind, choice.kind: named}, choice.extra)
        case AllowedTools():
            tools = [each for each in map(encode_choice, choice.tools) if each is not None]
            allowed = {"mode": choice.mode, "tools": tools}
            return restore({"type": "allowed_tools", "allowed_tools": allowed}, choice.extra)
        case _:
            return {"type": choice.kind, **choice.value} if choice.wire == NAME else None


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
_SAME = ("verbosity", "prediction", "store", *LABELS)
"""Fields that are the same on this wire and in the core."""
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
    offered = () if body.tools is ABSENT else decode_tools(body.tools)
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
        functions = decode_functions(fields)
        choice = decode_choice(fields, offered)
        if choice is None:
            choice = decode_function_call(fields, offered + functions)
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
        **{name: getattr(body, name) for name in _SAME},
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
        "logprobs": logprobs,
        "response_format": None if format is None else _encode_format(format),
        "reasoning_effort": reasoning.effort if reasoning else None,
        "reasoning": from_extra(reasoning.extra) or None if reasoning else None,
        "modalities": request.modalities,
        "web_search_options": request.web_search,
        **{name: getattr(request, name) for name in _SAME},
    }
    if (audio := request.audio) is not None:
        spoken = {"voice": audio.voice, "format": audio.format}
        given["audio"] = restore(_given(**spoken), audio.extra)
    choice = request.tool_choice
    if request.tools or choice is not None or request.parallel_tool_calls is not None:
        offered = encode_tools(request.tools) if request.tools else None
        more = {
            "tool_choice": None if choice is None else encode_choice(choice),
            "parallel_tool_calls": given.pop("parallel_tool_calls"),
        }
        if offered is not None:
            given |= {"tools": offered, **more}
        else:
            why = "there are no tools to choose from"
            notes += [(name, "dropped", why, ()) for name in _given(**more)]
    if request.stream or request.stream_options is not None:
        given |= encode_stream(request, dialect, NAME, notes)
    return encode_body(given, request, dialect, NAME, losses, notes)


def _encode_format(format: OutputFormat) -> JSON:
    match format:
        case TextFormat():
            return {"type": "text"}
        case JSONObject():
            return {"type": "json_object"}
        case _:
            optional = {"description": format.description, "schema": format.schema}
            inner = {"name": format.name} | _given(**optional | {"strict": format.strict})
            return {"type": "json_schema", "json_schema": restore(inner, format.extra)}
