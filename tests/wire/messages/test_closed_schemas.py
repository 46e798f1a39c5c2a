"""Schemas as Anthropic takes them: closed objects, and limits that are told to the model."""

import json
from typing import Any

from msgspec.structs import replace

from dragoman.core.item import Message
from dragoman.core.request import JSONSchema, Request
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
