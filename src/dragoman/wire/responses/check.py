"""What must hang together in a request: rules that concern more than one field.

Each rule raises a FaultError that names the field to mend, as the protocol's own server does.
What a single field may be is checked where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import (
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
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedTool,
    Namespace,
    Request,
    Tool,
    UnknownTool,
)

from .parts import VENDOR_PARTS

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
