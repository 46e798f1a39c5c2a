"""Cuts the published API descriptions down to the schemas that the tests check against.

Run as `python tests/data/prune.py FULL_DOCUMENT NAME` with a name from ROOTS; it writes NAME.json
beside itself. Kept are the named schemas and all they refer to, without prose and examples; no
rule of any schema is changed.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOTS = {
    "openai": (
        "CreateResponse",
        "Response",
        "ResponseStreamEvent",
        "InputItem",
        "CreateChatCompletionRequest",
        "CreateChatCompletionResponse",
        "CreateChatCompletionStreamResponse",
        "ListModelsResponse",
        "ErrorResponse",
    ),
    "realtime": (
        "RealtimeServerEvent",
        "RealtimeClientEvent",
        "RealtimeCreateClientSecretResponse",
    ),
    "openresponses": ("CreateResponseBody", "ResponseResource", "ItemParam"),
}
"""The schemas to keep; of Open Responses also every event of a stream."""

PROSE = ("description", "example", "examples", "externalDocs")


def pruned(value: Any) -> Any:
    """The same without prose and vendor extensions, wherever they are keywords of a schema."""
    if isinstance(value, list):
        return [pruned(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, each in value.items():
        if name == "properties":
            kept[name] = {field: pruned(schema) for field, schema in each.items()}
        elif name not in PROSE and not name.startswith("x-"):
            kept[name] = pruned(each)
    return kept


def references(value: Any) -> set[str]:
    """The names of all schemas that a schema refers to."""
    if isinstance(value, list):
        return set().union(*map(references, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
    return own.union(*map(references, value.values()))


def prune(document: dict[str, Any], roots: tuple[str, ...]) -> dict[str, Any]:
    """The document with nothing but the schemas reachable from the roots."""
    schemas = document["components"]["schemas"]
    events = {name for name in schemas if name.endswith("StreamingEvent")}
    ours = ROOTS["openresponses"]
    wanted, kept = [*roots, *(events if roots == ours else ())], {}
    while wanted:
        name = wanted.pop()
        if name not in kept:
            kept[name] = pruned(schemas[name])
            wanted += references(kept[name])
    info = {name: document["info"][name] for name in ("title", "version")}
    return {"openapi": document["openapi"], "info": info, "components": {"schemas": kept}}


if __name__ == "__main__":
    source, name = sys.argv[1:]
    document = prune(json.loads(Path(source).read_text()), ROOTS[name])
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    Path(__file__).with_name(f"{name}.json").write_text(text + "\n")
