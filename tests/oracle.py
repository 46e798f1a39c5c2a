"""The judges that are not ours: the published schemas, and the official SDK's own types.

Give them an event, an object or a request; they say what is wrong with it, field by field, or
nothing. Which schema applies is told by the value's `type` or `object`. They know no order of
events.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import extend
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter, ValidationError
from referencing import Registry
from referencing.jsonschema import DRAFT202012

Document = Literal["openai", "openresponses", "realtime"]
JSON = Any

DATA = Path(__file__).with_name("data")
_WHOLE = {
    "openai": {
        "response": "Response",
        "chat.completion": "CreateChatCompletionResponse",
        "chat.completion.chunk": "CreateChatCompletionStreamResponse",
    },
    "openresponses": {"response": "ResponseResource"},
}
_REQUESTS = {"responses": "CreateResponse", "chat": "CreateChatCompletionRequest"}

# The documents say `oneOf` where several members may fit, as in an input message without a type.
_Validator = extend(Draft202012Validator, {"oneOf": Draft202012Validator.VALIDATORS["anyOf"]})


@cache
def _schemas(document: Document) -> dict[str, JSON]:
    text = (DATA / f"{document}.json").read_text()
    return json.loads(text, object_hook=_nullable)["components"]["schemas"]


def _nullable(schema: dict[str, JSON]) -> dict[str, JSON]:
    """`nullable`, which the older schemas still have, as what it says."""
    return {"anyOf": [schema, {"type": "null"}]} if schema.get("nullable") is True else schema


@cache
def _validator(document: Document, name: str) -> Draft202012Validator:
    resource = DRAFT202012.create_resource({"components": {"schemas": _schemas(document)}})
    registry: Registry[JSON] = Registry().with_resource("urn:api", resource)
    return _Validator({"$ref": f"urn:api#/components/schemas/{name}"}, registry=registry)


@cache
def _events(document: Document) -> dict[str, str]:
    """The type of every event of a Responses stream, and the name of its schema."""
    return {
        schema["properties"]["type"]["enum"][0]: name
        for name, schema in _schemas(document).items()
        if name.endswith("Event") and "sequence_number" in schema.get("properties", {})
    }


def problems(value: JSON, document: Document = "openai") -> list[str]:
    """What the schema of an event or a whole answer has against it; empty when nothing."""
    name = _WHOLE[document].get(value.get("object")) or _events(document).get(value.get("type"))
    if name is None:
        return [f"no schema is known for {value.get('type') or value.get('object')!r}"]
    return _check(document, name, _without_null_usage(value) if document == "openai" else value)


def request_problems(value: JSON, wire: str) -> list[str]:
    """What the schema of a request to OpenAI's server has against it."""
    return _check("openai", _REQUESTS[wire], value)


@cache
def _realtime_events(side: str) -> dict[str, str]:
    """The type of every event of a side, and the name of its schema."""
    schemas = _schemas("realtime")
    names = [each["$ref"].rpartition("/")[2] for each in schemas[f"Realtime{side}Event"]["anyOf"]]
    types = [schemas[name]["properties"]["type"] for name in names]
    return {
        (type.get("const") or type["enum"][0]): name
        for type, name in zip(types, names, strict=True)
    }


def realtime_problems(value: JSON, side: Literal["Server", "Client"] = "Server") -> list[str]:
    """What the schema of a Realtime event has against it."""
    name = _realtime_events(side).get(value.get("type"))
    if name is None:
        return [f"no schema is known for {value.get('type')!r}"]
    return _check("realtime", name, _without_null_transcripts(value))


def _without_null_transcripts(event: JSON) -> JSON:
    """OpenAI says null where the user's sound has no transcript, and clients insist on it; the
    document says a string."""
    match event:
        case {"item": {"role": "user", "content": content}}:
            parts = [
                {k: v for k, v in part.items() if (k, v) != ("transcript", None)}
                for part in content
            ]
            return {**event, "item": {**event["item"], "content": parts}}
    return event


def realtime_types(side: Literal["Server", "Client"]) -> set[str]:
    """The types of all events of a side."""
    return set(_realtime_events(side))


def required(document: Document, name: str) -> set[str]:
    """The fields that a schema demands."""
    return set(_schemas(document)[name]["required"])


def _check(document: Document, name: str, value: JSON) -> list[str]:
    error = best_match(_validator(document, name).iter_errors(value))
    return [] if error is None else [f"{name} {error.json_path}: {error.message}"]


def _without_null_usage(value: JSON) -> JSON:
    """OpenAI's server sends `usage: null` until there is one; only its description has no null."""
    if isinstance(value.get("response"), dict):
        return {**value, "response": _without_null_usage(value["response"])}
    return {k: v for k, v in value.items() if k != "usage" or v is not None}


_SDK: dict[str, TypeAdapter[Any]] = {
    "response": TypeAdapter(Response),
    "chat.completion": TypeAdapter(ChatCompletion),
    "chat.completion.chunk": TypeAdapter(ChatCompletionChunk),
}
_SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def sdk_problems(value: JSON) -> list[str]:
    """What the types of the official SDK have against an event or a whole answer."""
    adapter = _SDK.get(value.get("object"), _SDK_EVENT)
    try:
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return []
