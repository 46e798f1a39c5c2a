"""Messages requests, decoded and encoded, with their tools and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from dragoman.core.error import Fault, FaultError, bad_request, quoted
from dragoman.core.item import JSON, Item, Message
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AllowedTools,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    ReasoningOptions,
    Request,
    Sampling,
    Tool,
    ToolChoice,
    UnknownTool,
)
from dragoman.wire import json
from dragoman.wire.cache import Cache
from dragoman.wire.choices import ModelName, Probability
from dragoman.wire.json import ABSENT, LIMITS, Limits, Reader, merge
from dragoman.wire.losses import Note, judge, listed
from dragoman.wire.protocol import STANDARD, Dialect, check_stop
from dragoman.wire.tools import without_tools

from .blocks import (
    NAME,
    Word,
    as_blocks,
    decode_messages,
    encode_messages,
    from_extra,
    message_reader,
    restore,
    to_extra,
)
from .losses import LOSSES

MAX_TOKENS = 32_000
"""The `max_tokens` of a request that sets no limit: the protocol demands one."""
NO_THREAD = Fault(
    "not_found",
    "thread.previous_message_id: no conversations are held here; send the whole conversation",
    "client",
    "thread.previous_message_id",
    extra={"error": {"details": {"error_code": "thread_not_found"}}},
)
"""The fault for continuing a message thread. Servers may lose threads at any time: with this code
clients send the whole conversation again."""
EPHEMERAL: dict[str, JSON] = {"type": "ephemeral"}
"""Marks the end of a prefix that the server should cache."""

_CACHE_LIMIT = 4 * 1024 * 1024
_decoded = Cache[tuple[Tool, ...]](_CACHE_LIMIT)
"""Tools by the bytes of their array: an agent sends the same ones with every request."""
_encoded = Cache[tuple[tuple[Tool, ...], Raw, list[Note]]](_CACHE_LIMIT)
"""Encoded tools and their losses, by the identity of the tuple, which an entry keeps alive, and
whether schemas are closed."""

_Object = dict[str, JSON]


class _Body(Struct, kw_only=True):
    model: ModelName
    messages: Raw
    system: str | list[Raw] | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    tools: Raw = ABSENT
    tool_choice: _Object | None = None
    stop_sequences: list[str] | None = None
    temperature: Probability | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    stream: bool | None = None
    metadata: _Object | None = None
    service_tier: str | None = None
    thinking: _Object | None = None
    output_config: _Object | None = None


class _Function(Struct):
    name: Word
    input_schema: _Object
    description: str | None = None
    strict: bool | None = None
    type: str | None = None


_body = Reader(_Body, messages=message_reader.strict_list)
_functions = Reader(_Function)
_INTEGERS = ("max_tokens", "top_k")


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
        body, unknown = _body.read_loosely(data)
        match unknown.get("thread"):
            case {"type": "continue"}:  # the rest of the conversation is not in this request
                raise FaultError(NO_THREAD) from None
    items = decode_messages(body.messages, body.system, limits)
    offered = decode_tools(body.tools, limits)
    if body.stop_sequences:
        check_stop("stop_sequences", body.stop_sequences, limits)
    json.check_depth([body.tool_choice, body.metadata, body.thinking, body.output_config])
    if body.metadata is not None:
        json.check_metadata(body.metadata, limits)
    choice, parallel = decode_choice(body.tool_choice, offered)
    if beside := {k: v for k, v in (body.tool_choice or {}).items() if k not in _OF_A_CHOICE}:
        unknown["tool_choice"] = beside
    user, metadata = None, dict(body.metadata or {})
    if isinstance(metadata.get("user_id"), str):
        user = metadata.pop("user_id")
    if rest := {name: value for name, value in metadata.items() if value is not None}:
        unknown["metadata"] = rest
    config = {name: v for name, v in (body.output_config or {}).items() if v is not None}
    format = _decode_format(config.pop("format", None))
    thinking = body.thinking
    if thinking is not None and thinking.get("type") not in _THINKING:
        unknown["thinking"], thinking = thinking, None  # for servers that support it
    reasoning = _decode_reasoning(thinking, config)
    if config:
        unknown["output_config"] = config
    tier = _TIERS.get(body.service_tier or "")
    if body.service_tier is not None and tier is None:
        unknown["service_tier"] = body.service_tier
    return Request(
        model=body.model,
        items=items,
        tools=offered,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            stop=tuple(body.stop_sequences) if body.stop_sequences else None,
        ),
        max_output_tokens=body.max_tokens,
        format=format,
        reasoning=reasoning,
        stream=body.stream or False,
        user=user,
        service_tier=tier,
        extra=to_extra(unknown),
    )


_TIERS = {"auto": "auto", "standard_only": "default"}


def _decode_format(given: JSON) -> JSONSchema | None:
    match given:
        case None:
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            rest = {k: v for k, v in given.items() if k not in ("type", "schema")}
            return JSONSchema("answer", schema, strict=True, extra=to_extra(rest))
        case _:
            problem = "must be an object of type 'json_schema' with a schema"
            raise FaultError(bad_request(problem, "output_config.format"))


# ---- thinking ----------------------------------------------------------------------------

_BUDGETS = ((2_048, "low"), (8_192, "medium"))
"""The efforts for thinking budgets, up to so many tokens; beyond them, high."""
_EFFORTS = {"minimal": "low"}
"""Efforts that have another name on this wire."""
_ADAPTIVE: dict[str, JSON] = {"type": "adaptive"}
_THINKING = ("enabled", "adaptive", "between_tools", "disabled")


def _decode_reasoning(
    thinking: dict[str, JSON] | None, config: dict[str, JSON]
) -> ReasoningOptions | None:
    """The reasoning options by `thinking` and the effort in `output_config`. The fields themselves
    are in the extra, where they have more than an effort."""
    effort = config.pop("effort", None)
    if effort is not None and not isinstance(effort, str):
        raise FaultError(bad_request("must be a string", "output_config.effort"))
    if thinking is None and effort is None:
        return None
    if thinking is not None and thinking["type"] == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or isinstance(budget, bool):
            problem = (
                "is missing"
                if budget is None
                else f"is {json.kind(budget)}, and must be an integer"
            )
            raise FaultError(bad_request(problem, "thinking.budget_tokens"))
    own: dict[str, JSON] = {"thinking": thinking}
    if effort is not None and (off := _effort_of(thinking)) == "none":
        # It counts for the text of an answer, too: elsewhere it would turn the thinking on.
        own["effort"], effort = effort, off
    return ReasoningOptions(effort or _effort_of(thinking), extra={NAME: own})


def _effort_of(thinking: dict[str, JSON] | None) -> str | None:
    match thinking:
        case {"type": "disabled"}:
            return "none"
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return next((effort for most, effort in _BUDGETS if budget <= most), "high")
        case _:
            return None


def _add_reasoning(
    request: Request, options: ReasoningOptions, given: dict[str, Any], notes: list[Note]
) -> None:
    """Add the fields for this reasoning, and drop those that the server refuses beside it."""
    own, effort = from_extra(options.extra), options.effort
    thinking: dict[str, JSON] | None
    if "thinking" in own:  # the client's own field
        thinking = own["thinking"]
        if effort == _effort_of(thinking):
            effort = own.get("effort")
    elif effort == "none":
        thinking, effort = {"type": "disabled"}, None
    elif (given.get("tool_choice") or {}).get("type") in ("any", "tool"):
        thinking = None
        notes.append(("reasoning", "dropped", "there is no thinking before a forced call", ()))
    else:
        thinking = _ADAPTIVE | ({"display": "summarized"} if options.summary else {})
        for name in ("temperature", "top_k"):
            if given.pop(name, None) is not None:
                notes.append((name, "dropped", "it cannot be set where the model thinks", ()))
    if thinking is not None:
        given["thinking"] = thinking
        budget = thinking.get("budget_tokens")
        if request.max_output_tokens is None and isinstance(budget, int):
            given["max_tokens"] += budget  # of which the thinking takes its share
    if effort is not None:
        given["output_config"] = {"effort": _EFFORTS.get(effort, effort)}


# ---- tools -------------------------------------------------------------------------------


def decode_tools(raw: Raw, limits: Limits = LIMITS) -> tuple[Tool, ...]:
    """The tools on offer."""
    data = bytes(raw)
    tools = _decoded.get(data)
    if tools is None:
        value = json.value_of(raw)
        given: JSON = [] if value is None else value
        if not isinstance(given, list):
            problem = f"is {json.kind(given)}, and must be an array"
            raise FaultError(bad_request(problem, "tools"))
        if len(given) > limits.max_tools:
            raise json.too_many("tools", limits.max_tools, "max_tools")
        tools = tuple([_tool(each, f"tools[{number}]") for number, each in enumerate(given)])
        names: dict[str, int] = {}
        for number, tool in enumerate(tools):
            if isinstance(tool, FunctionTool) and names.setdefault(tool.name, number) != number:
                problem = f"is {quoted(tool.name)}, as that of tools[{names[tool.name]}]"
                raise FaultError(bad_request(problem, f"tools[{number}].name"))
        _decoded.put(data, tools, len(data))
    return tools


def _tool(tool: JSON, path: str) -> Tool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "function":  # those of OpenAI's protocols; as a hosted one it would be dropped
        problem = "is 'function'; a tool here has a name, an input_schema, and the type 'custom'"
        raise FaultError(bad_request(problem, f"{path}.type"))
    if isinstance(kind, str) and kind != "custom":
        return UnknownTool(NAME, kind, {name: v for name, v in tool.items() if name != "type"})
    function, rest = _functions.read(json.dump(tool), path)
    return FunctionTool(
        function.name,
        function.description,
        function.input_schema,
        function.strict,
        to_extra(rest),
    )


def encode_tools(
    tools: tuple[Tool, ...], dialect: Dialect = STANDARD
) -> tuple[Raw | None, list[Note]]:
    """The array of the tools that this wire supports, None where there are none; and losses."""
    key = id(tools), dialect.closed_schemas
    entry = _encoded.get(key)
    if entry is None:
        notes: list[Note] = []
        offered = list(_encode_tools(tools, dialect, notes))
        entry = tools, Raw(json.dump(offered) if offered else b""), notes
        _encoded.put(key, entry, len(bytes(entry[1])))
    return entry[1] if bytes(entry[1]) else None, entry[2]


def _encode_tools(tools: Iterable[Tool], dialect: Dialect, notes: list[Note]) -> Iterable[JSON]:
    for tool in tools:
        match tool:
            case FunctionTool():
                schema = {"type": "object"} | (tool.parameters or {"properties": {}})
                if tool.strict and dialect.closed_schemas:
                    schema = closed(schema, notes, "tools[*].parameters")
                fields: dict[str, JSON] = {"name": tool.name, "input_schema": schema}
                given = {"description": tool.description, "strict": tool.strict}
                fields |= {name: v for name, v in given.items() if v is not None}
                yield restore(fields, tool.extra)
            case Namespace():
                yield from _encode_tools(tool.tools, dialect, notes)
            case UnknownTool(wire=wire) if wire == NAME:
                yield {"type": tool.kind, **tool.value}
            # Others are of another wire.


_MODES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
_OF_A_CHOICE = ("type", "name", "disable_parallel_tool_use")
_KINDS = {choice: kind for kind, choice in _MODES.items()}


def decode_choice(
    given: dict[str, JSON] | None, tools: tuple[Tool, ...]
) -> tuple[ToolChoice | None, bool | None]:
    """Which tool the model may or must call, and whether several at a time."""
    if given is None:
        return None, None
    single = given.get("disable_parallel_tool_use")
    if not isinstance(single, bool | None):
        problem = f"is {json.kind(single)}, and must be a boolean"
        raise FaultError(bad_request(problem, "tool_choice.disable_parallel_tool_use"))
    parallel = None if single is None else not single
    match given:
        case {"type": "auto" | "any" | "none" as kind}:
            if kind == "any" and not tools:
                raise FaultError(bad_request("is 'any', and there are no tools", "tool_choice"))
            return _MODES[kind], parallel
        case {"type": "tool", "name": str(name)}:
            for tool in tools:
                if isinstance(tool, FunctionTool) and tool.name == name:
                    return NamedTool(name), parallel
                if isinstance(tool, UnknownTool) and tool.value.get("name") == name:
                    return UnknownTool(NAME, tool.kind, {"name": name}), parallel
            problem = f"chooses {quoted(name)}, which is not among the tools"
            raise FaultError(bad_request(problem, "tool_choice.name"))
        case _:
            problem = "must be 'auto', 'any', 'none', or 'tool' with a name"
            raise FaultError(bad_request(problem, "tool_choice.type"))


def encode_choice(choice: ToolChoice | None, parallel: bool | None) -> dict[str, JSON] | None:
    """The choice; None for the default, which allows parallel calls."""
    match choice:
        case NamedTool():
            fields: dict[str, JSON] = {"type": "tool", "name": choice.name}
        case AllowedTools():
            fields = {"type": _KINDS[choice.mode]}
        case UnknownTool():
            fields = {"type": "tool", **choice.value}
        case str():
            fields = {"type": _KINDS[choice]}
        case _:
            if parallel is None or parallel:
                return None
            fields = {"type": "auto"}
    if parallel is not None and choice != "none":
        fields["disable_parallel_tool_use"] = not parallel
    return fields


# ---- encoding ----------------------------------------------------------------------------

_UNTAKEN = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
)
_FORMATS = frozenset(
    {
        *("date", "date-time", "duration", "email", "hostname"),
        *("ipv4", "ipv6", "time", "uri", "uuid"),
    }
)
_ONE, _SEVERAL = ("items", "not"), ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions")


def _untaken(name: str, value: JSON) -> bool:
    """Whether a keyword is a limit that Anthropic refuses."""
    match name:
        case "minItems":
            return value not in (0, 1)
        case "format":
            return not isinstance(value, str) or value not in _FORMATS
        case _:
            return name in _UNTAKEN


def closed(schema: JSON, notes: list[Note], where: str = "format.schema") -> JSON:
    """A schema as Anthropic takes it, and as its SDKs send it: its objects have no other fields,
    and limits that it refuses are told to the model.

    >>> closed({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}, [])
    {'type': 'object', 'properties': {'n': {'type': 'integer', 'description': '{minimum: 1}'}}, \
'additionalProperties': False}
    """
    if not isinstance(schema, dict):
        return schema
    left = {name: value for name, value in schema.items() if _untaken(name, value)}
    found = {name: value for name, value in schema.items() if name not in left}
    if "anyOf" not in found and "oneOf" in found:
        found["anyOf"] = found.pop("oneOf")
        why = "this server refuses oneOf in a schema; anyOf is sent"
        notes.append((where, "emulated", why, ()))
    for name in _ONE:
        if name in found:
            found[name] = closed(found[name], notes, where)
    for name in _SEVERAL:
        if isinstance(several := found.get(name), list):
            found[name] = [closed(each, notes, where) for each in several]
    for name in _NAMED:
        if isinstance(named := found.get(name), dict):
            found[name] = {key: closed(each, notes, where) for key, each in named.items()}
    kind = found.get("type")
    is_object = "object" in kind if isinstance(kind, list) else kind == "object"
    if is_object and not isinstance(found.get("additionalProperties"), dict):
        found["additionalProperties"] = False
    if left:
        limits = ", ".join(f"{name}: {json.text(value)}" for name, value in left.items())
        about = found.get("description")
        found["description"] = f"{about}\n\n{{{limits}}}" if about else f"{{{limits}}}"
        why = "this server refuses limits in a schema; they are told to the model"
        notes.append((where, "emulated", why, ()))
    return found


def _is_thinking(block: JSON) -> bool:
    return isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")


def _without_blanks(content: JSON) -> JSON:
    """Content without texts that are white space alone."""
    if isinstance(content, str):
        return "" if content.isspace() else content
    kept: list[JSON] = []
    for block in content if isinstance(content, list) else ():
        match block:
            case {"type": "text", "text": str(text)} if text.isspace():
                continue
            case {"type": "tool_result", "content": str() | list()}:
                block = {**block, "content": _without_blanks(block["content"])}
        kept.append(block)
    return kept if isinstance(content, list) else content


def encode_request(request: Request, dialect: Dialect) -> tuple[bytes, tuple[Loss, ...]]:
    """The body of a request, and its losses.

    Absent fields are left out, except `max_tokens`. Raises FaultError where a loss would change
    the answer.
    """
    losses = judge(request, LOSSES)
    notes: list[Note] = []
    items: tuple[Item, ...] = request.items
    if isinstance(request.instructions, str):
        items = (Message("system", request.instructions), *items)
    elif request.instructions is not None:
        items = request.instructions + items
    system, messages = encode_messages(items)
    if not dialect.blank_texts:
        given_messages, system = messages, _without_blanks(system)
        messages = [{**each, "content": _without_blanks(each["content"])} for each in messages]
        if messages != given_messages:
            why = "this server refuses texts of white space alone"
            notes.append(("items[*].content", "dropped", why, ()))
        for message in messages:
            content = message["content"]
            while content and message["role"] == "assistant" and _is_thinking(content[-1]):
                del content[-1]  # of an answer that was cut off
                why = "this server refuses thinking that nothing follows"
                notes.append(("items[*]", "dropped", why, ()))
        messages = [each for each in messages if each["content"]]
    sampling, format = request.sampling, request.format
    if isinstance(format, JSONObject):
        hint = {"type": "text", "text": "Answer with a JSON object and nothing else."}
        system = [*as_blocks(system), hint]
    temperature, limit = sampling.temperature, request.max_output_tokens
    tools, changed = encode_tools(request.tools, dialect) if request.tools else (None, [])
    notes += changed
    given: dict[str, Any] = {
        "model": request.model,
        "max_tokens": MAX_TOKENS if limit is None else limit,
        "system": system or None,
        "messages": messages,
        "tools": tools,
        "stop_sequences": sampling.stop or None,
        "temperature": None if temperature is None else min(temperature, 1),
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stream": request.stream or None,
        "metadata": None if request.user is None else {"user_id": request.user},
        "service_tier": {tier: name for name, tier in _TIERS.items()}.get(
            request.service_tier or ""
        ),
    }
    if given["tools"] is not None:
        given["tool_choice"] = encode_choice(request.tool_choice, request.parallel_tool_calls)
    else:
        notes += without_tools(request)
    if request.reasoning is not None:
        _add_reasoning(request, request.reasoning, given, notes)
    if isinstance(format, JSONSchema):
        schema: JSON = format.schema or {}
        if dialect.closed_schemas:
            schema = closed(schema, notes)
        encoded = restore({"type": "json_schema", "schema": schema}, format.extra)
        given["output_config"] = {**given.get("output_config", {}), "format": encoded}
    body = {name: value for name, value in given.items() if value is not None}
    if request.extra:
        own = from_extra(request.extra)
        # Without tools there is no choice, and none of its options.
        idle = "tool_choice" in own and "tool_choice" not in body
        body = merge(body, {k: v for k, v in own.items() if k != "tool_choice"} if idle else own)
    for name in sorted(dialect.drop & body.keys()):
        del body[name]
        notes.append((name, "dropped", "this server does not take it", ()))
    data = json.dump(body)
    if dialect.cache_control and b'"cache_control":' not in data:
        # Like its own clients: cache the prefix before the conversation, and the conversation.
        if system:
            *before, last = as_blocks(system)
            body["system"] = [*before, {**last, "cache_control": EPHEMERAL}]
        data = json.dump(body | {"cache_control": EPHEMERAL})
    return data, losses + listed(notes) if notes else losses
