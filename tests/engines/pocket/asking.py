"""Lessons as requests: what the model was taught, asked of an engine the way a client would.

What the template or the engine writes into a prompt (the wish for thought, the schema) stands in
a lesson as a system message; here it becomes the wish again.
"""

import json
from typing import Any

from dragoman.core.item import FunctionCall, FunctionCallOutput, Item, Message, Reasoning, Thought
from dragoman.core.request import FunctionTool, JSONSchema, ReasoningOptions, Request, Sampling
from dragoman.core.response import Response
from training.pocket.lesson import Lesson
from training.pocket.lesson import Message as Told

GREEDY = Sampling(temperature=0)
THINK = {"role": "system", "content": "Think."}
SCHEMA = "Answer with JSON that matches this schema, and nothing else:\n"


def request_of(lesson: Lesson) -> Request:
    """The request that renders as the lesson does."""
    told = list(lesson.messages)
    wishes: dict[str, Any] = {}
    if told[-1] == THINK:
        told.pop()
        wishes["reasoning"] = ReasoningOptions(effort="medium")
    if told[0]["role"] == "system" and told[0]["content"].startswith(SCHEMA):
        schema = json.loads(told.pop(0)["content"].removeprefix(SCHEMA))
        wishes["format"] = JSONSchema("answer", schema, strict=True)
    return Request(
        model="pocket",
        items=tuple(item for message in told for item in _items(message)),
        tools=tuple(_tool(tool["function"]) for tool in lesson.tools),
        sampling=GREEDY,
        max_output_tokens=400,
        **wishes,
    )


def expected(lesson: Lesson) -> list[tuple[str, ...]]:
    """What is to come, in the words of `heard`."""
    return [_said(item) for item in _items(lesson.answer)]


def heard(response: Response) -> list[tuple[str, ...]]:
    """What came: texts, thoughts and calls without their ids."""
    return [_said(item) for item in response.output]


def _said(item: Item) -> tuple[str, ...]:
    match item:
        case Reasoning():
            return ("thought", item.text)
        case Message():
            return ("text", item.text)
        case FunctionCall():
            return ("call", item.name, item.arguments)
    raise AssertionError(item)


def _items(message: Told) -> list[Item]:
    if message["role"] == "tool":
        return [FunctionCallOutput(message["tool_call_id"], message["content"])]
    found: list[Item] = []
    if thought := message.get("reasoning_content"):
        found.append(Reasoning(content=(Thought(thought),)))
    if message["content"]:
        found.append(Message(message["role"], message["content"]))
    for call in message.get("tool_calls", ()):
        found.append(
            FunctionCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        )
    return found


def _tool(described: Any) -> FunctionTool:
    return FunctionTool(described["name"], parameters=described["parameters"])
