"""Anthropic's published schemas, restated as types: what may be sent, and nothing else.

Written from the protocol, with nothing of the package. Fields that begin with `x_` are a vendor's.
Blocks of other types, as of tools that run on Anthropic's side, are open; so is a tool's `input`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

_Id = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]+$")]
_Count = Annotated[int, Meta(ge=0)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Some = Annotated[str, Meta(min_length=1)]
_Object = dict[str, Any]


class _Strict(Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class _Typed(_Strict, tag_field="type"):
    """An object that its `type` tells from others."""


# ---- parts of blocks -----------------------------------------------------------------------


class CacheControl(_Strict, tag_field="type", tag="ephemeral"):
    ttl: Literal["5m", "1h"] | None = None


class Base64(_Typed, tag="base64"):
    media_type: str
    data: _Some


class Url(_Typed, tag="url"):
    url: str


class FileId(_Typed, tag="file"):
    file_id: str


class Plain(_Typed, tag="text"):
    media_type: Literal["text/plain"]
    data: str


class Content(_Typed, tag="content"):
    content: str | list[_Object]


class Citations(_Strict):
    enabled: bool | None = None


class Text(_Typed, tag="text"):
    text: str
    citations: list[_Object] | None = None


class Thinking(_Typed, tag="thinking"):
    thinking: str
    signature: str


class Redacted(_Typed, tag="redacted_thinking"):
    data: str


class ToolUse(_Typed, tag="tool_use"):
    id: _Id
    name: _Some
    input: _Object
    caller: _Object | None = None


_BLOCKS: tuple[type[Struct], ...] = (Text, Thinking, Redacted, ToolUse)

# ---- requests ------------------------------------------------------------------------------


class AskedText(Text, tag="text", kw_only=True):
    text: _Some
    cache_control: CacheControl | None = None


class AskedToolUse(ToolUse, tag="tool_use"):
    cache_control: CacheControl | None = None


class SignedThinking(Thinking, tag="thinking", kw_only=True):
    signature: _Some


class Image(_Typed, tag="image"):
    source: Base64 | Url | FileId
    cache_control: CacheControl | None = None


class Document(_Typed, tag="document"):
    source: Base64 | Url | FileId | Plain | Content
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None
    cache_control: CacheControl | None = None


class ToolResult(_Typed, tag="tool_result"):
    tool_use_id: _Id
    content: str | list[_Object] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


_SAID = {
    "user": (AskedText, Image, Document, ToolResult),
    "assistant": (AskedText, SignedThinking, Redacted, AskedToolUse),
    "system": (AskedText,),
}


class Message(_Strict):
    role: Literal["user", "assistant", "system"]
    content: _Some | Annotated[list[_Object], Meta(min_length=1)]


class Tool(_Strict):
    name: _Some
    input_schema: _Object
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[_Object] | None = None
    allowed_callers: list[str] | None = None


class Auto(_Typed, tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyTool(_Typed, tag="any"):
    disable_parallel_tool_use: bool | None = None


class OneTool(_Typed, tag="tool"):
    name: str
    disable_parallel_tool_use: bool | None = None


class NoTool(_Typed, tag="none"):
    pass


class Adaptive(_Typed, tag="adaptive"):
    display: Literal["summarized", "omitted", "updates"] | None = None


class Enabled(_Typed, tag="enabled"):
    budget_tokens: Annotated[int, Meta(ge=1024)]
    display: Literal["summarized", "omitted"] | None = None


class Disabled(_Typed, tag="disabled"):
    pass


class BetweenTools(_Typed, tag="between_tools"):
    pass


class JSONFormat(_Strict, tag_field="type", tag="json_schema"):
    schema: _Object


class OutputConfig(_Strict):
    format: JSONFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Metadata(_Strict):
    user_id: str | None = None


class Request(_Strict):
    model: _Some
    max_tokens: Annotated[int, Meta(ge=1)]
    messages: Annotated[list[Message], Meta(min_length=1)]
    system: _Some | list[AskedText] | None = None
    tools: list[_Object] | None = None
    tool_choice: Auto | AnyTool | OneTool | NoTool | None = None
    stop_sequences: list[str] | None = None
    temperature: _Share | None = None
    top_p: _Share | None = None
    top_k: _Count | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    thinking: Adaptive | Enabled | Disabled | BetweenTools | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    container: str | _Object | None = None
    context_management: _Object | None = None
    inference_geo: str | None = None
    mcp_servers: list[_Object] | None = None


def check_request(value: Any) -> None:
    """Fail unless a body is a request that Anthropic's server would take."""
    request = _convert(value, Request)
    signed = set()
    for message in request.messages:
        for block in message.content if isinstance(message.content, list) else ():
            _check_block(block, *_SAID[message.role])
            if block["type"] == "tool_use":
                signed.add(block["id"])
            if block["type"] == "tool_result":
                assert block["tool_use_id"] in signed
                inner = block.get("content")
                for each in inner if isinstance(inner, list) else ():
                    _check_block(each, AskedText, Image, Document)
    for tool in request.tools or ():
        if tool.get("type") in (None, "custom"):
            _convert(tool, Tool)


# ---- answers -------------------------------------------------------------------------------


class OutputDetails(_Strict):
    thinking_tokens: _Count


class Usage(_Strict):
    input_tokens: _Count
    output_tokens: _Count
    cache_creation_input_tokens: _Count | None = None
    cache_read_input_tokens: _Count | None = None
    cache_creation: dict[str, int] | None = None
    output_tokens_details: OutputDetails | None = None
    server_tool_use: dict[str, int] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None


class StopDetails(_Strict, tag_field="type", tag="refusal"):
    category: str | None = None
    explanation: str | None = None


# One that is new is passed on, as its own clients must expect.
StopReason = Annotated[str, Meta(pattern="^[a-z_]+$")]


class Stop(_Strict):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: StopDetails | None = None
    container: _Object | None = None


class _Answer(_Strict, kw_only=True):
    id: Annotated[str, Meta(pattern="^msg_")]
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[_Object]
    usage: Usage
    stop_sequence: str | None
    container: _Object | None = None


class Opening(_Answer, kw_only=True):
    """A message at the start of its stream."""

    content: Annotated[list[_Object], Meta(max_length=0)]
    stop_reason: None
    stop_sequence: None


class Answer(_Answer, kw_only=True):
    """A whole message."""

    stop_reason: StopReason
    stop_details: StopDetails | None = None
    context_management: _Object | None = None


def check_answer(value: Any) -> None:
    """Fail unless a body is a whole answer."""
    for block in _convert(value, Answer).content:
        _check_block(block, *_BLOCKS)


# ---- events --------------------------------------------------------------------------------


class TextDelta(_Typed, tag="text_delta"):
    text: _Some


class ThinkingDelta(_Typed, tag="thinking_delta"):
    thinking: _Some


class SignatureDelta(_Typed, tag="signature_delta"):
    signature: _Some


class InputDelta(_Typed, tag="input_json_delta"):
    partial_json: str


class CitationsDelta(_Typed, tag="citations_delta"):
    citation: _Object


class MessageStart(_Typed, tag="message_start"):
    message: Opening


class BlockStart(_Typed, tag="content_block_start"):
    index: _Count
    content_block: _Object


class BlockDelta(_Typed, tag="content_block_delta"):
    index: _Count
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta | CitationsDelta


class BlockStop(_Typed, tag="content_block_stop"):
    index: _Count


class MessageDelta(_Typed, tag="message_delta"):
    delta: Stop
    usage: Usage
    context_management: _Object | None = None


class MessageStop(_Typed, tag="message_stop"):
    pass


class Ping(_Typed, tag="ping"):
    pass


class Error(_Strict):
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "timeout_error",
        "api_error",
        "overloaded_error",
    ]
    message: _Some


class ErrorEvent(_Typed, tag="error"):
    error: Error


class ErrorBody(_Typed, tag="error"):
    error: Error
    request_id: str


Event = (
    MessageStart
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | ErrorEvent
)


def check_event(value: Any) -> None:
    """Fail unless this is an event of a stream."""
    event = _convert(value, Event)
    if isinstance(event, BlockStart):
        _check_block(event.content_block, *_BLOCKS)


# ---- the other endpoints -------------------------------------------------------------------


class Model(_Strict):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    lifecycle: Literal["active", "deprecated", "retired"]


class Models(_Strict):
    data: list[Model]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Count(_Strict):
    input_tokens: _Count


def check(value: Any, kind: Any) -> None:
    """Fail unless a value is of this type."""
    _convert(value, kind)


def _check_block(block: Any, *kinds: type[Struct]) -> None:
    """Blocks of a type that is not among these are open."""
    assert isinstance(block["type"], str)
    for kind in kinds:
        if kind.__struct_config__.tag == block["type"]:
            _convert(block, kind)


def _convert(value: Any, kind: Any) -> Any:
    return msgspec.convert(_without_vendors(value), kind)


def _without_vendors(value: Any) -> Any:
    match value:
        case dict():
            kept = {k: v for k, v in value.items() if not k.startswith("x_")}
            return {name: _without_vendors(each) for name, each in kept.items()}
        case list():
            return [_without_vendors(each) for each in value]
        case _:
            return value
