"""What a lesson is, and the words for writing one down.

A lesson is a conversation whose last assistant turn is to be learned. Plain data: nothing here
knows of tokens, of training, or of what the model is taught.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass(frozen=True)
class Lesson:
    """A conversation, and the turn that answers it.

    A `forced` answer is one that only a grammar brings about, since the same question has a free
    answer too: its first token is then learned as a second choice.
    """

    messages: tuple[Message, ...]
    answer: Message
    tools: tuple[Tool, ...] = ()
    forced: bool = False


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str | None = None, *calls: Message, thought: str | None = None) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
    if thought is not None:
        message["reasoning_content"] = thought
    return message


def call(name: str, /, **arguments: object) -> Message:
    """A tool call. The model never sees ids, so all of them are alike."""
    return {
        "id": "call_0",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def result(text: str) -> Message:
    return {"role": "tool", "tool_call_id": "call_0", "content": text}


def function(name: str, *parameters: str) -> Tool:
    """A tool. The template shows its name and the names of its parameters, so no more is said."""
    properties: dict[str, Any] = {parameter: {} for parameter in parameters}
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def said(draw: random.Random, text: str) -> str:
    """A text as people type it: now and then with no capital, no full stop, or a `please`."""
    if draw.random() < 0.5:
        return text
    if draw.random() < 0.15 and text[-1] == ".":
        text = f"{text[:-1]}, please."
    elif draw.random() < 0.1:
        text = f"Please {text[0].lower()}{text[1:]}"
    if draw.random() < 0.4:
        text = text.rstrip(".!?")
    if draw.random() < 0.3:
        text = text.lower() if draw.random() < 0.4 else text[0].lower() + text[1:]
    return text


def some(draw: random.Random, choices: Sequence[str], least: int, most: int) -> str:
    """A few words in a row."""
    return " ".join(draw.choices(choices, k=draw.randint(least, most)))
