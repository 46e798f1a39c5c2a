"""The response object, its usage, and the listings that hold responses, items and conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Raw
from msgspec.structs import replace

from dragoman.core.error import TOO_LONG, Code, Fault, FaultError, bad_request
from dragoman.core.item import (
    JSON,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
)
from dragoman.core.loss import Loss
from dragoman.core.request import FunctionTool, JSONSchema, Request, Tool
from dragoman.core.response import Response, Usage
from dragoman.wire import error, json
from dragoman.wire.cache import Cache
from dragoman.wire.json import LIMITS, Fields, Limits, dense
from dragoman.wire.pieces import in_pieces, marked
from dragoman.wire.tools import without_secrets
from dragoman.wire.usage import decode_usage

from . import items
from .items import WIRE, from_extra
from .request import TOOLS, encode_instructions


def decode(value: JSON) -> Usage | None:
    """Usage as an upstream reported it, or None where it reported no count.

    >>> decode({"input_tokens": 3, "output_tokens": 2}).total_tokens
    5
    """
    usage = decode_usage(value, WIRE)
    if usage is None:
        return None
    read, written, total = usage.input_tokens, usage.output_tokens, usage.total_tokens
    if total is None and read is not None and written is not None:
        return replace(usage, total_tokens=read + written)
    return None if (read, written, total) == (None, None, None) else usage


def encode_usage(usage: Usage) -> dict[str, JSON]:
    """Usage with all the numbers its type demands."""
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    encoded: dict[str, JSON] = {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": usage.cache_write_tokens or 0,
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": read + written if usage.total_tokens is None else usage.total_tokens,
    }
    return json.merge(encoded, from_extra(usage.extra)) if usage.extra else encoded


SNAPSHOT_PREFIX = "resp_"
"""What an id begins with on this wire."""

CODES = frozenset(
    {
        *("server_error", "rate_limit_exceeded", "invalid_prompt", "data_residency_mismatch"),
        *("bio_policy", "misalignment_policy_violation", "vector_store_timeout", "invalid_image"),
        *("invalid_image_format", "invalid_base64_image", "invalid_image_url", "image_too_large"),
        *("image_too_small", "image_parse_error", "image_content_policy_violation"),
        *("invalid_image_mode", "image_file_too_large", "unsupported_image_media_type"),
        *("empty_image_file", "failed_to_download_image", "image_file_not_found"),
        TOO_LONG,  # not in the list of OpenAI's SDK, but sent, and read by Codex
    }
)
"""All that the code of a failed response can be."""

_CODES: dict[Code, str] = {
    "rate_limited": "rate_limit_exceeded",
    "invalid_request": "invalid_prompt",
    "unsupported": "invalid_prompt",
}

_PREFIXES: dict[type, str] = {
    Message: "msg",
    Reasoning: "rs",
    FunctionCall: "fc",
    FunctionCallOutput: "fco",
    CustomToolCall: "ctc",
    CustomToolCallOutput: "ctco",
}

REASONS = {"length": "max_output_tokens"}
"""Finish reasons that are called otherwise in `incomplete_details`."""

_SHORT = frozenset({"length", "content_filter"})


MAX_ECHOED = 2 * 1024 * 1024
"""Bytes that a response repeats of its request, each time that it is sent."""


_echoed = Cache[tuple[tuple[Tool, ...], Raw]](4 * 1024 * 1024)
"""The tools of a response, by the identity of the tuple, which an entry keeps alive."""


def _echo_all(tools: tuple[Tool, ...]) -> Raw:
    """The array of the tools as a response repeats them, those of other wires and secrets left out:
    of a function all keys, null where nothing was encoded. Empty where that would be too large."""
    entry = _echoed.get(id(tools))
    if entry is None:
        data = b"[]"
        for start in range(0, len(tools), 64):
            some = without_secrets(tools[start : start + 64])
            more = json.dump([echoed for tool in some if (echoed := _echo(tool)) is not None])
            data = more if data == b"[]" else data if more == b"[]" else data[:-1] + b"," + more[1:]
            if len(data) > MAX_ECHOED:
                data = b"[]"
                break
        entry = tools, Raw(data)
        _echoed.put(id(tools), entry, len(data))
    return entry[1]


def _echo(tool: Tool) -> dict[str, JSON] | None:
    encoded = TOOLS.encode(tool)
    if encoded is not None and isinstance(tool, FunctionTool):
        encoded["description"] = tool.description
        encoded |= {"parameters": tool.parameters, "strict": tool.strict}
    return encoded


class Echo:
    """The fields of a response that repeat its request, encoded once for all responses of a stream:
    instructions and tools are the most of what they hold. Where all is large, what is large in it
    is left out."""

    __slots__ = ("data",)

    def __init__(self, request: Request) -> None:
        sampling, thinking, conversation = request.sampling, request.reasoning, request.conversation
        text: dict[str, JSON] = {"format": {"type": "text"}}
        if request.format is not None:
            text["format"] = encoded = TOOLS.encode_format(request.format)
            if isinstance(request.format, JSONSchema):  # with all its keys
                text["format"] = {"description": "", "schema": {}, "strict": False, **encoded}
        if request.verbosity is not None:
            text["verbosity"] = request.verbosity
        reasoning: dict[str, JSON] = {"effort": None, "summary": None}
        if thinking is not None:
            reasoning = {"effort": thinking.effort, "summary": thinking.summary}
            reasoning |= from_extra(thinking.extra)
        choice, instructions = request.tool_choice, encode_instructions(request)
        if isinstance(instructions, str) and len(instructions) > MAX_ECHOED:
            instructions = None
        fields: dict[str, JSON] = {
            "background": bool(request.background),
            "instructions": instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": reasoning,
            "safety_identifier": request.safety_identifier,
            "service_tier": request.service_tier or "default",
            "store": bool(request.store),
            "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
            "text": text,
            "tool_choice": (choice and TOOLS.encode_choice(choice)) or "auto",
            "tools": _echo_all(request.tools) if request.tools else [],
            "top_logprobs": sampling.top_logprobs or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "presence_penalty": sampling.presence_penalty or 0.0,
            "frequency_penalty": sampling.frequency_penalty or 0.0,
            "truncation": request.truncation or "disabled",
            "metadata": request.metadata or {},
        }
        if conversation is not None:
            named = isinstance(conversation, str)
            fields["conversation"] = {"id": conversation} if named else conversation
        if request.user is not None:
            fields["user"] = request.user
        if request.prompt_cache_retention is not None:
            fields["prompt_cache_retention"] = request.prompt_cache_retention
        self.data = json.dump(fields)[1:-1]
        if len(self.data) > MAX_ECHOED:
            for name, value in fields.items():
                if len(json.dump(value)) > MAX_ECHOED // 8:
                    fields[name] = [] if name == "tools" else {} if name == "metadata" else None
            self.data = json.dump(fields)[1:-1]


def encode_object(response: Response, echo: Echo) -> bytes:
    """The response object. Fields of the model's server that the core does not have
    take precedence."""
    status, completed_at, incomplete = response.status, None, None
    if status == "completed":
        completed_at = response.completed_at
        completed_at = response.created_at if completed_at is None else completed_at
    elif status == "incomplete":
        short = [reason for reason in response.reasons if reason in _SHORT]
        reason = (*short, *response.reasons, "length")[0]
        incomplete = {"reason": REASONS.get(reason, reason)}
    output = []
    for index, item in enumerate(response.output):
        encoded = items.encode_item(item, item.id or derived_id(item, response.id, index))
        if encoded is not None:
            output.append(encoded)
    own: dict[str, JSON] = {
        "id": SNAPSHOT_PREFIX + response.id,
        "object": "response",
        "created_at": response.created_at,
        "status": status,
        "completed_at": completed_at,
        "error": None if response.error is None else render_error(response.error),
        "incomplete_details": incomplete,
        "model": response.model,
        "output": output,
        "usage": None if response.usage is None else encode_usage(response.usage),
    }
    if not (more := response.extra and response.extra.get(WIRE)):
        try:
            return b"%b,%b}" % (json.encode(own)[:-1], echo.data)
        except (TypeError, UnicodeEncodeError):  # as `dump` does
            return in_pieces(own, echo.data, json.value_of)
    own |= json.load(b"{%b}" % echo.data)
    return json.dump(own | more)


def derived_id(item: Item, response_id: str, index: int) -> str:
    """The id of an item that has none, from where it stands."""
    return f"{_PREFIXES.get(type(item), 'item')}_{response_id}_{index}"


def render_error(fault: Fault) -> dict[str, JSON]:
    """The error of a failed response: a code from the protocol's closed list, and the words."""
    fields = error.error_object(fault)
    code = fields["code"]
    if code not in CODES:
        code = "rate_limit_exceeded" if fault.status == 429 else _CODES.get(fault.code)
    named = dense({"type": fields["type"], "param": fields["param"]})
    return {"code": code or "server_error", "message": fault.message, **named}


FIELDS = frozenset(
    {
        *json.load(
            encode_object(
                Response(id="", created_at=0, model="", status="completed"), Echo(Request(model=""))
            )
        ),
        *("conversation", "output_text", "prompt_cache_retention", "user"),
    }
)
"""The fields of a response that the core has."""


def encode_item(item: Item) -> dict[str, JSON] | None:
    """A stored item, in full; None for one that belongs to another wire."""
    return items.encode_item(item, item.id or "")


def encode_list(found: Sequence[Item], more: bool) -> bytes:
    """A page of items.

    >>> encode_list([], more=False)
    b'{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}'
    """
    encoded = [one for one in map(encode_item, found) if one is not None]
    page = {
        "object": "list",
        "data": encoded,
        "first_id": encoded[0]["id"] if encoded else None,
        "last_id": encoded[-1]["id"] if encoded else None,
        "has_more": more,
    }
    return json.dump(page)


def encode_compaction(id: str, created_at: int, item: Item, used: Usage | None) -> bytes:
    """A conversation that was made short: one item that stands for it."""
    encoded = {
        "id": SNAPSHOT_PREFIX + id,
        "object": "response.compaction",
        "created_at": created_at,
        "output": [encode_item(item)],
        "usage": encode_usage(used or Usage(input_tokens=0, output_tokens=0)),
    }
    return json.dump(encoded)


def encode_deleted_listing(id: str) -> bytes:
    """The answer to the deletion of a response."""
    return json.dump({"id": SNAPSHOT_PREFIX + id, "object": "response", "deleted": True})


Include = Literal[
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""What can be asked for with items."""

CONVERSATION_PREFIX = "conv_"
"""What a conversation's id begins with on this wire."""

MOST = 20
"""Items that can be added in one request."""

KEYS = 16
"""Entries that metadata may have."""


def decode_items(data: bytes, limits: Limits = LIMITS) -> tuple[Item, ...]:
    """The items to be added. Raises FaultError naming the field that is wrong."""
    return _items(json.parse(data), limits, needed=True)


def decode_opening(
    data: bytes, limits: Limits = LIMITS
) -> tuple[tuple[Item, ...], dict[str, JSON], tuple[Loss, ...]]:
    """The items and the metadata of a new conversation; neither need be given. What else was given
    is lost."""
    fields = json.parse(data or b"{}")
    found = _items(fields, limits, needed=False), _metadata(fields, limits)
    why = "a conversation has no such field"
    return *found, tuple([Loss(name, "dropped", why) for name in fields.rest()])


def decode_metadata(data: bytes, limits: Limits = LIMITS) -> dict[str, JSON]:
    """The metadata that shall take the place of the old."""
    fields = json.parse(data)
    if "metadata" not in fields:
        raise FaultError(bad_request("is missing", "metadata"))
    return _metadata(fields, limits)


def encode_conversation(id: str, created_at: int, metadata: dict[str, JSON] | None) -> bytes:
    """A conversation.

    >>> encode_conversation("1", 2, None)
    b'{"id":"conv_1","object":"conversation","created_at":2,"metadata":{}}'
    """
    encoded = {"id": CONVERSATION_PREFIX + id, "object": "conversation", "created_at": created_at}
    return json.dump({**encoded, "metadata": metadata or {}})


def encode_deleted_conversation(id: str) -> bytes:
    """What is encoded of a conversation that was deleted."""
    return json.dump(
        {"id": CONVERSATION_PREFIX + id, "object": "conversation.deleted", "deleted": True}
    )


def _items(fields: Fields, limits: Limits, *, needed: bool) -> tuple[Item, ...]:
    match fields.any("items"):
        case None if not needed:
            return ()
        case list(values) if len(values) <= MOST:
            return items.decode_items(json.dump(marked(values)), "items", limits)
        case list(values):
            raise fields.wrong("items", f"has {len(values)} entries; {MOST} are allowed at once")
        case _:
            raise fields.wrong("items", "must be an array")


def _metadata(fields: Fields, limits: Limits) -> dict[str, Any]:
    metadata = fields.mapping("metadata") or {}
    if len(metadata) > KEYS:
        raise fields.wrong("metadata", f"has {len(metadata)} entries; {KEYS} are allowed")
    json.check_metadata(metadata, limits)
    return metadata
