"""A server that speaks Responses as OpenAI's does: any output, whole and as a stream.

It is written from the protocol and uses none of the package, so that what is heard by Dragoman
was not said by it. One delta is one word; every item is opened, filled and closed.
"""

import re
from collections.abc import Iterator
from typing import Any

from tests.mock import plain, response, stream
from tests.sdk.behind import Player, by_form

JSON = dict[str, Any]

USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 13,
}
_PARTS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}
_CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


def answering(*output: JSON, status: str = "completed", **fields: Any) -> Player:
    """A handler that gives this output to whoever asks, in the form that was asked for."""
    whole = response(*output, status=status, usage=USAGE, **fields)
    return by_form(plain(200, whole), stream(*_numbered(_events(whole)), done=False))


def _numbered(events: Iterator[JSON]) -> Iterator[JSON]:
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _events(whole: JSON) -> Iterator[JSON]:
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        empty = {name: [] for name in ("content", "summary") if name in item}
        empty |= {name: "" for name in ("arguments", "input") if name in item}
        begun = {**item, **empty, "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        for event in _body(item):
            yield {**event, "item_id": item["id"], "output_index": index}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _body(item: JSON) -> Iterator[JSON]:
    for number, part in enumerate(item.get("summary", ())):
        yield from _part("response.reasoning_summary", part, "text", {"summary_index": number})
    for number, part in enumerate(item.get("content", ())):
        yield from _content(part, {"content_index": number})
    if item["type"] in _CALLS:
        name, field = _CALLS[item["type"]]
        yield from ({"type": f"{name}.delta", "delta": word} for word in _words(item[field]))
        named = {"name": item["name"]} if item["type"] == "function_call" else {}
        yield {"type": f"{name}.done", field: item[field], **named}


def _content(part: JSON, at: JSON) -> Iterator[JSON]:
    name, field = _PARTS[part["type"]]
    empty = {**part, field: "", **({"annotations": []} if "annotations" in part else {})}
    yield {"type": "response.content_part.added", "part": empty, **at}
    for word in _words(part[field]):
        yield {"type": f"{name}.delta", "delta": word, **at}
    for number, note in enumerate(part.get("annotations", ())):
        kind = "response.output_text.annotation.added"
        yield {"type": kind, "annotation": note, "annotation_index": number, **at}
    yield {"type": f"{name}.done", field: part[field], **at}
    yield {"type": "response.content_part.done", "part": part, **at}


def _part(name: str, part: JSON, field: str, at: JSON) -> Iterator[JSON]:
    yield {"type": f"{name}_part.added", "part": {**part, field: ""}, **at}
    for word in _words(part[field]):
        yield {"type": f"{name}_text.delta", "delta": word, **at}
    yield {"type": f"{name}_text.done", field: part[field], **at}
    yield {"type": f"{name}_part.done", "part": part, **at}


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*", text)


# ---- output ----------------------------------------------------------------------------------


def message(text: str, *annotations: JSON, phase: str | None = None) -> JSON:
    part = {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}
    return _item("message", "msg_1", role="assistant", content=[part], phase=phase)


def refusal(text: str) -> JSON:
    part = {"type": "refusal", "refusal": text}
    return _item("message", "msg_1", role="assistant", content=[part])


def reasoning(*summary: str, thoughts: tuple[str, ...] = (), seal: str | None = None) -> JSON:
    return _item(
        "reasoning",
        "rs_1",
        summary=[{"type": "summary_text", "text": text} for text in summary],
        content=[{"type": "reasoning_text", "text": text} for text in thoughts] or None,
        encrypted_content=seal,
    )


def function_call(name: str, arguments: str, number: int = 1) -> JSON:
    fields = {"call_id": f"call_{number}", "name": name, "arguments": arguments}
    return _item("function_call", f"fc_{number}", **fields)


def custom_call(name: str, input: str) -> JSON:
    return _item("custom_tool_call", "ctc_1", call_id="call_1", name=name, input=input)


def web_search(query: str) -> JSON:
    return _item("web_search_call", "ws_1", action={"type": "search", "query": query})


def _item(kind: str, id: str, **fields: Any) -> JSON:
    said = {name: value for name, value in fields.items() if value is not None}
    return {"type": kind, "id": id, "status": "completed", **said}
