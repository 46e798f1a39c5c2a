"""What a server over Chat Completions says, whole and in chunks, as data.

Each scene is one answer in both forms, with what a client must ask to get it and what the answer
is over each protocol. The chunks are what servers send, not what would be neat.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.mock import chunk, completion, plain, stream
from tests.sdk.behind import Player, by_form

JSON = dict[str, Any]

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


@dataclass(frozen=True)
class Scene:
    """An answer. `chat` is the message and `responses` the output that clients must find in it."""

    message: JSON
    deltas: tuple[JSON, ...]
    chat: JSON
    responses: list[JSON]
    finish: str = "stop"
    fields: dict[str, JSON] = field(default_factory=dict)
    logprobs: tuple[JSON, ...] = ()

    @property
    def handler(self) -> Player:
        """A server that gives this answer."""
        whole = completion(self.message, self.finish, usage=USAGE)
        chunks = [chunk({"role": "assistant", "content": None}), *map(chunk, self.deltas)]
        if self.logprobs:
            whole["choices"][0]["logprobs"] = {"content": list(self.logprobs)}
            for said, token in zip(chunks[1:], self.logprobs, strict=True):
                said["choices"][0]["logprobs"] = {"content": [token]}
        counted = {**chunk(), "choices": [], "usage": USAGE}
        return by_form(plain(200, whole), stream(*chunks, chunk(finish=self.finish), counted))


def _call(name: str, arguments: str, id: str = "call_a", **fields: Any) -> JSON:
    function = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function, **fields}


def _more(index: int, arguments: str) -> JSON:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def _text(text: str, **fields: Any) -> JSON:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    content = [{**part, **fields}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content}


def _function_call(name: str, arguments: str) -> JSON:
    return {
        "type": "function_call",
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def function(name: str, parameter: str) -> JSON:
    """A function with one parameter, as a tool of both protocols."""
    parameters = {
        "type": "object",
        "properties": {parameter: {"type": "string"}},
        "required": [parameter],
        "additionalProperties": False,
    }
    return {"name": name, "parameters": parameters, "strict": True}


def tools(*functions: JSON) -> dict[str, JSON]:
    """The tools in the words of each protocol."""
    return {
        "chat": {"tools": [{"type": "function", "function": each} for each in functions]},
        "responses": {"tools": [{"type": "function", **each} for each in functions]},
    }


WEATHER, CLOCK = function("weather", "city"), function("clock", "zone")
TOKENS = tuple(
    {
        "token": token,
        "logprob": logprob,
        "bytes": list(token.encode()),
        "top_logprobs": [{"token": token, "logprob": logprob, "bytes": list(token.encode())}],
    }
    for token, logprob in (("Hel", -0.25), ("lo", -0.5))
)
CITATION = {"url": "https://example.com/a", "title": "A page", "start_index": 0, "end_index": 5}

SCENES = {
    "text": Scene(
        {"content": "Grüße, 🌍!"},
        ({"content": "Grü"}, {"content": ""}, {"content": "ße, "}, {"content": "🌍!"}),
        {"content": "Grüße, 🌍!"},
        [_text("Grüße, 🌍!")],
    ),
    "reasoning": Scene(
        {"content": "Yes.", "reasoning_content": "First this."},
        ({"reasoning_content": "First "}, {"reasoning_content": "this."}, {"content": "Yes."}),
        {"content": "Yes.", "reasoning": "First this.", "reasoning_content": "First this."},
        [
            {
                "type": "reasoning",
                "status": "completed",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "First this."}],
            },
            _text("Yes."),
        ],
    ),
    "refusal": Scene(
        {"content": None, "refusal": "I cannot do that."},
        ({"refusal": "I cannot "}, {"refusal": "do that."}),
        {"refusal": "I cannot do that."},
        [
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "refusal", "refusal": "I cannot do that."}],
            }
        ],
    ),
    "call": Scene(
        {"content": None, "tool_calls": [_call("weather", '{"city": "Zürich"}')]},
        (
            {"tool_calls": [_call("weather", "", index=0)]},
            _more(0, '{"ci'),
            _more(0, 'ty": "Zü'),
            _more(0, 'rich"}'),
        ),
        {"tool_calls": [("weather", '{"city": "Zürich"}')]},
        [_function_call("weather", '{"city": "Zürich"}')],
        "tool_calls",
        tools(WEATHER),
    ),
    "parallel calls, interleaved": Scene(
        {
            "content": None,
            "tool_calls": [
                _call("weather", '{"city": "Rome"}'),
                _call("clock", '{"zone": "CET"}', "call_b"),
            ],
        },
        (
            {"tool_calls": [_call("weather", "", index=0)]},
            {"tool_calls": [_call("clock", "", "call_b", index=1)]},
            _more(0, '{"city"'),
            _more(1, '{"zone"'),
            _more(0, ': "Rome"}'),
            _more(1, ': "CET"}'),
        ),
        {"tool_calls": [("weather", '{"city": "Rome"}'), ("clock", '{"zone": "CET"}')]},
        [_function_call("weather", '{"city": "Rome"}'), _function_call("clock", '{"zone": "CET"}')],
        "tool_calls",
        tools(WEATHER, CLOCK),
    ),
    "call after text": Scene(
        {"content": "Let me see.", "tool_calls": [_call("weather", '{"city": "Bern"}')]},
        (
            {"content": "Let me "},
            {"content": "see."},
            {"tool_calls": [_call("weather", '{"city": "Bern"}', index=0)]},
        ),
        {"content": "Let me see.", "tool_calls": [("weather", '{"city": "Bern"}')]},
        [_text("Let me see."), _function_call("weather", '{"city": "Bern"}')],
        "tool_calls",
        tools(WEATHER),
    ),
    "logprobs": Scene(
        {"content": "Hello"},
        ({"content": "Hel"}, {"content": "lo"}),
        {"content": "Hello"},
        [_text("Hello", logprobs=list(TOKENS))],
        fields={
            "chat": {"logprobs": True, "top_logprobs": 1},
            "responses": {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
        },
        logprobs=TOKENS,
    ),
    "annotations": Scene(
        {"content": "Hello", "annotations": [{"type": "url_citation", "url_citation": CITATION}]},
        (
            {"content": "Hello"},
            {"annotations": [{"type": "url_citation", "url_citation": CITATION}]},
        ),
        {"content": "Hello", "annotations": [{"type": "url_citation", "url_citation": CITATION}]},
        [_text("Hello", annotations=[{"type": "url_citation", **CITATION}])],
    ),
    "nothing": Scene({"content": None}, (), {"content": ""}, [_text("")]),
}
"""Answers that end well, by what is in them."""
