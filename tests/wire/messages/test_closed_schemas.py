"""Schemas as Anthropic takes them: closed objects, and limits that are told to the model."""

import json
from typing import Any

from msgspec.structs import replace

from dragoman.core.item import Message
from dragoman.core.request import FunctionTool, JSONSchema, Namespace, Request
from dragoman.wire.messages import request as room
from dragoman.wire.protocol import Dialect

SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A person.",
    "minProperties": 1,
    "properties": {"age": {"type": "integer", "minimum": 1}, "any": True},
    "items": {"type": "string"},
    "anyOf": [{"type": "object"}, {"type": "object", "additionalProperties": {}}],
}


def test_objects_are_closed_and_limits_are_told() -> None:
    notes: list[Any] = []
    found: Any = room.closed(SCHEMA, notes)
    assert found["additionalProperties"] is False
    assert found["anyOf"] == [
        {"type": "object", "additionalProperties": False},
        {"type": "object", "additionalProperties": {}},
    ]
    assert found["properties"]["any"] is True
    assert "minimum: 1" in json.dumps(found["properties"])
    assert notes
    assert all(note[1] == "emulated" for note in notes)


def test_schemas_are_closed_in_a_request_where_the_server_wants_it() -> None:
    asked = Request(model="m", items=(Message("user", "hi"),), format=JSONSchema("x", SCHEMA))
    body, losses = room.encode_request(asked, replace(Dialect(), closed_schemas=True))
    assert json.loads(body)["output_config"]["format"]["schema"]["additionalProperties"] is False
    assert any(loss.action == "emulated" for loss in losses)


def test_formats_lengths_and_alternatives_that_it_refuses_are_told_or_respelled() -> None:
    """As its SDK does: `minItems` beyond 1, formats beyond its own, and `oneOf` are 400 there."""
    asked = {
        "type": ["object", "null"],
        "properties": {
            "few": {"type": "array", "minItems": 1},
            "many": {"type": "array", "minItems": 2},
            "day": {"type": "string", "format": "date"},
            "odd": {"type": "string", "format": "json-pointer"},
            "broken": {"format": {"a": 1}},
            "either": {"oneOf": [{"type": "object", "minItems": 2}]},
            "both": {"oneOf": [], "anyOf": []},
        },
    }
    notes: list[Any] = []
    found: Any = room.closed(asked, notes)
    assert found["additionalProperties"] is False
    assert found["properties"] == {
        "few": {"type": "array", "minItems": 1},
        "many": {"type": "array", "description": "{minItems: 2}"},
        "day": {"type": "string", "format": "date"},
        "odd": {"type": "string", "description": '{format: "json-pointer"}'},
        "broken": {"description": '{format: {"a":1}}'},
        "either": {
            "anyOf": [
                {"type": "object", "additionalProperties": False, "description": "{minItems: 2}"}
            ]
        },
        "both": {"oneOf": [], "anyOf": []},
    }
    assert "this server refuses oneOf in a schema; anyOf is sent" in {note[2] for note in notes}


def test_schemas_of_strict_tools_alone_are_closed_and_only_where_the_server_wants_it() -> None:
    """The SDKs of OpenAI and its agents make their tools strict."""
    strict, loose = FunctionTool("a", None, SCHEMA, True), FunctionTool("b", None, SCHEMA)
    asked = Request(
        model="m",
        items=(Message("user", "hi"),),
        tools=(strict, loose, Namespace("n", tools=(replace(strict, name="c"),))),
    )
    whole = {"type": "object"} | SCHEMA
    for _ in range(2):  # encoded tools are cached
        body, losses = room.encode_request(asked, Dialect(closed_schemas=True))
        shut, open_, inner = (tool["input_schema"] for tool in json.loads(body)["tools"])
        assert shut == inner == room.closed(whole, [])
        assert open_ == whole
        assert "tools[*].parameters" in {loss.field for loss in losses}
        body, losses = room.encode_request(asked, Dialect())
        assert all(tool["input_schema"] == whole for tool in json.loads(body)["tools"])
        assert "tools[*].parameters" not in {loss.field for loss in losses}
