"""Converts a request into the messages and tools that chat templates take.

Reasoning, text and calls of one assistant turn become one message. Images and audio are refused by
name; items of hosted tools are dropped and reported.
"""

from __future__ import annotations

import json
from hashlib import sha256

from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import (
    JSON,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    Unknown,
)
from dragoman.core.loss import LossList
from dragoman.core.lower import UpstreamLimits, lower_system
from dragoman.core.request import FunctionTool, JSONObject, JSONSchema, Request, type_name

from .grammar.schema import read_json

LIMITS = UpstreamLimits(custom_tools=False, namespaces=False, hosted_tools=False)
_COMPACTION = "compaction_trigger"
"""This item requires an action: without it, the request would be another one."""
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Verbatim(dict[str, JSON]):
    """Arguments as an object with the model's own text, so that it can be repeated byte
    for byte and the prompt cache stays valid."""

    def __init__(self, value: dict[str, JSON], text: str) -> None:
        super().__init__(value)
        self.text = text


Messages = list[dict[str, JSON]]


def messages(
    request: Request, losses: LossList, id_length: int | None = None, leader: Role = "system"
) -> Messages:
    """The conversation, with one message of the `leader` in front for what the system says. Raises
    FaultError for an item that templates cannot express.

    Reasoning is included in the running turn and left out of finished ones, as in training.
    """
    places = {id(item): number for number, item in enumerate(request.items)}
    lowered = lower_system(request, losses, role="system", front=True)
    lead = lowered.instructions or ()
    items = (*((Message("system", lead),) if isinstance(lead, str) else lead), *lowered.items)
    users = (n for n, item in enumerate(items) if isinstance(item, Message) and item.role == "user")
    last = max(users, default=-1)
    turns: Messages = []
    names: dict[str, str] = {}
    for number, item in enumerate(items):
        where = f"items[{(at := places.get(id(item), 0))}]"
        match item:
            case Message(role="assistant"):
                turn = _assistant(turns, fresh=True)
                turn["content"] = turn.get("content", "") + _text(item.parts, f"{where}.content")
            case Message():
                turn = {"role": item.role, "content": _text(item.parts, f"{where}.content")}
                turns.append({**turn, "name": item.name} if item.name else turn)
            case Reasoning():
                if number > last and item.text:
                    turn = _assistant(turns, fresh=True)
                    turn["reasoning_content"] = turn.get("reasoning_content", "") + item.text
            case FunctionCall() | CustomToolCall():
                names[item.call_id] = item.name
                calls = _assistant(turns).setdefault("tool_calls", [])
                calls.append(_call(item, id_length))
            case FunctionCallOutput() | CustomToolCallOutput():
                output = (Text(item.output),) if isinstance(item.output, str) else item.output
                turns.append(
                    {
                        "role": "tool",
                        "content": _text(output, f"{where}.output"),
                        "tool_call_id": short_id(item.call_id, id_length),
                        "name": names.get(item.call_id, ""),
                    }
                )
            case Unknown(kind=kind) if kind != _COMPACTION:
                losses.note(
                    "items[*]", "dropped", f"the model cannot read a {type_name(item)}", (at,)
                )
            case _:
                problem = f"this model's prompt cannot hold an item of type {type_name(item)}"
                raise FaultError(unsupported(problem, where))
    return _with_format_instruction(turns, request, leader)


def unfinished(request: Request) -> Message | Reasoning | None:
    """The assistant's message or reasoning to continue: the last item, if it is unfinished or the
    request sets `continue_final_message` (vLLM)."""
    match request.items[-1:]:
        case (Message(role="assistant", status="incomplete" | "in_progress") as last,) | (
            Reasoning(status="incomplete" | "in_progress") as last,
        ):
            return last
        case (Message(role="assistant") as last,):
            wires = (request.extra or {}).values()
            sent = any(fields.get("continue_final_message") is True for fields in wires)
            return last if sent else None
        case _:
            return None


def continues(request: Request) -> bool:
    """Whether the answer is the rest of the last message."""
    return isinstance(unfinished(request), Message)


def tools(request: Request) -> Messages:
    """The tools in the shape templates take; none where calls are forbidden."""
    if request.tool_choice == "none":
        return []
    found: Messages = []
    for number, tool in enumerate(request.tools):
        if not isinstance(tool, FunctionTool):
            problem = f"this model's prompt only has functions, and this is a {type_name(tool)}"
            raise FaultError(unsupported(problem, f"tools[{number}]"))
        empty: JSON = {"type": "object", "properties": {}}
        function: dict[str, JSON] = {"name": tool.name, "description": tool.description or ""}
        function["parameters"] = empty if tool.parameters is None else tool.parameters
        found.append({"type": "function", "function": function})
    return found


def short_id(id: str, length: int | None) -> str:
    """A call id of the length a family requires; the same for the same id.

    >>> short_id("call_1", 9)
    'RksXkbv4v'
    >>> short_id("abcdefgh1", 9)
    'abcdefgh1'
    """
    if length is None or (len(id) == length and id.isascii() and id.isalnum()):
        return id
    number = int.from_bytes(sha256(id.encode("utf-8", "replace")).digest(), "big")
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


def _assistant(turns: Messages, *, fresh: bool = False) -> dict[str, JSON]:
    """The running assistant turn; a new one where text follows calls."""
    if not turns or turns[-1]["role"] != "assistant" or (fresh and "tool_calls" in turns[-1]):
        turns.append({"role": "assistant", "content": ""})
    return turns[-1]


def _text(parts: tuple[Part, ...], where: str) -> str:
    texts: list[str] = []
    for number, part in enumerate(parts):
        if not isinstance(part, Text | Refusal):
            problem = f"this model reads text only, and this is {type_name(part)}"
            raise FaultError(unsupported(problem, f"{where}[{number}]"))
        texts.append(part.text)
    return "".join(texts)


def _call(call: FunctionCall | CustomToolCall, id_length: int | None) -> dict[str, JSON]:
    arguments: JSON
    if isinstance(call, CustomToolCall):
        arguments = {"input": call.input}
    else:
        arguments = call.arguments or "{}"
        if isinstance(value := read_json(arguments), dict):
            arguments = Verbatim(value, arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"type": "function", "id": short_id(call.call_id, id_length), "function": function}


def _with_format_instruction(turns: Messages, request: Request, leader: Role) -> Messages:
    """Add the required output format to the first message: models answer better when they know it,
    even where a grammar enforces it."""
    match request.format:
        case JSONSchema(schema=dict(schema)):
            shape = json.dumps(schema, ensure_ascii=False)
            text = f"Answer with JSON that matches this schema, and nothing else:\n{shape}"
        case JSONSchema() | JSONObject():
            text = "Answer with one JSON object, and nothing else."
        case _:
            return turns
    if turns and turns[0]["role"] == leader:
        first = {**turns[0], "content": f"{turns[0]['content']}\n\n{text}"}
        return [first, *turns[1:]]
    return [{"role": leader, "content": text}, *turns]
