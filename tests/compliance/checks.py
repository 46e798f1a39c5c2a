"""What every server of the Responses protocol must be able to do, as seven questions.

Each is a request and what a model that understands it says. The prompts are some that the tiny
test model knows by heart; a server without a model may say what it likes, in the right form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

JSON = Any

PHASES = (None, "commentary", "final_answer")
_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQ"
    "DwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Looks up the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@dataclass(frozen=True)
class Check:
    """A question. `answer` is what the tiny model says: a text, or the arguments of its call."""

    name: str
    input: JSON
    answer: str
    fields: dict[str, JSON]
    tool: str | None = None

    def body(self, model: str, **fields: JSON) -> dict[str, JSON]:
        """The request, without chance."""
        return {"model": model, "input": self.input, "temperature": 0, **self.fields, **fields}


def _check(name: str, input: JSON, answer: str, tool: str | None = None, **fields: JSON) -> Check:
    return Check(name, input, answer, fields, tool)


def _said(role: str, text: str, **fields: JSON) -> dict[str, JSON]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return {"type": "message", "role": role, "content": content, **fields}


HELLO = "Hello! How can I help you?"

CHECKS = {
    check.name: check
    for check in (
        _check("basic-response", [{"role": "user", "content": "Hello!"}], HELLO),
        _check(
            "assistant-phase",
            [
                _said("user", "My name is Ada."),
                _said("assistant", "Nice to meet you, Ada.", phase="commentary"),
                _said("user", "ping"),
                _said("assistant", "pong", phase="final_answer"),
                _said("user", "What is my name?"),
            ],
            "Your name is Ada.",
        ),
        _check("streaming-response", "Count to five.", "1, 2, 3, 4, 5.", stream=True),
        _check(
            "system-prompt",
            [_said("system", "Be brief."), _said("user", "ping")],
            "pong",
        ),
        _check(
            "tool-calling",
            [_said("user", "What is the weather in Paris?")],
            '{"city": "Paris"}',
            "get_weather",
            tools=[_WEATHER],
        ),
        _check(
            "image-input",
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Describe this image."},
                        {"type": "input_image", "image_url": _PIXEL},
                    ],
                }
            ],
            "I do not know that. I am only a tiny test model.",
        ),
        _check(
            "multi-turn",
            [
                {"role": "user", "content": "My name is Grace."},
                {"role": "assistant", "content": "Nice to meet you, Grace."},
                {"role": "user", "content": "What is my name?"},
            ],
            "Your name is Grace.",
        ),
    )
}


def problems_of_messages(response: dict[str, JSON]) -> list[str]:
    """What is wrong with the messages of an answer: each is the assistant's, in a legal phase."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    wrong = [f"role {m['role']!r}" for m in messages if m["role"] != "assistant"]
    wrong += [f"phase {m['phase']!r}" for m in messages if m.get("phase") not in PHASES]
    return wrong
