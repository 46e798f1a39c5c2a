"""How the clients of the field read a stream, each reduced to what it cannot do without.

A reader takes the payloads of a stream and returns what its client would have: it fails with a
KeyError, IndexError or ReaderError where that client breaks or goes on without an answer. They
share no code, as the clients do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

JSON = dict[str, Any]


class ReaderError(Exception):
    """The client would be left without what it needs."""


def _need(holds: object, problem: str) -> None:
    if not holds:
        raise ReaderError(problem)


# ---- Responses -------------------------------------------------------------------------------


def item_collector(events: Iterable[JSON]) -> list[JSON]:
    """Acts on finished items only, and waits for a completed response with its usage (Codex)."""
    items: list[JSON] = []
    for event in events:
        match event["type"]:
            case "response.output_item.done":
                items.append(event["item"])
            case "response.completed":
                _need(event["response"]["id"], "no id")
                _need(event["response"]["usage"]["total_tokens"] >= 0, "no usage")
                return items
            case "response.failed" | "response.incomplete":
                raise ReaderError(f"the turn ended as {event['type']}")
    raise ReaderError("the stream closed before response.completed")


def last_event_reader(events: Iterable[JSON]) -> list[JSON]:
    """Reads nothing but the output of the last event (the Agents SDK for JavaScript)."""
    *_, last = events
    _need(last["type"] == "response.completed", "no completed response at the end")
    _need(last["response"]["output"], "an empty output: the agent would ask again for ever")
    return list(last["response"]["output"])


def snapshot_keeper(events: Iterable[JSON]) -> list[JSON]:
    """Keeps a snapshot that every event must fit into (the stream helper of openai-python)."""
    events = list(events)
    _need(events[0]["type"] == "response.created", "response.created is not the first event")
    output: list[JSON] = []
    for event in events:
        match event:
            case {"type": "response.output_item.added", "output_index": at, "item": item}:
                _need(at == len(output), "an item at a place that is taken")
                output.append({**item, "content": []})
            case {"type": "response.content_part.added", "output_index": at, "part": part}:
                _need(event["content_index"] == len(output[at]["content"]), "a part out of place")
                output[at]["content"].append(dict(part))
            case {"type": "response.output_text.delta", "output_index": at, "delta": said}:
                output[at]["content"][event["content_index"]]["text"] += said
            case {"type": "response.function_call_arguments.delta", "output_index": at}:
                output[at]["arguments"] += event["delta"]
    return output


def strict_validator(events: Iterable[JSON]) -> list[JSON]:
    """Checks every field it knows and drops what does not fit (the Vercel AI SDK)."""
    open_items: dict[int, JSON] = {}
    finished: list[JSON] = []
    for event in events:
        match event["type"]:
            case "response.created" | "response.completed" | "response.incomplete":
                response = event["response"]
                _need(isinstance(response["created_at"], int), "created_at")
                _need(response["id"] and response["model"], "id and model")
                final = event["type"] != "response.created"
                _need(not final or response["usage"]["output_tokens"] >= 0, "usage")
            case "response.output_item.added":
                open_items[event["output_index"]] = event["item"]
                _need(event["item"]["id"], "an item without an id")
            case "response.output_item.done":
                _need(open_items.pop(event["output_index"], None), "done, and never added")
                finished.append(event["item"])
                for part in event["item"].get("content") or ():
                    _need(part["type"] != "output_text" or "annotations" in part, "annotations")
            case kind if kind.endswith(".delta"):
                _need(event["output_index"] in open_items, "a delta of an item that is not open")
                _need(event["item_id"] == open_items[event["output_index"]]["id"], "item_id")
    _need(not open_items, "items were left open")
    return finished


# ---- Chat ------------------------------------------------------------------------------------


def accumulator(chunks: Iterable[JSON]) -> JSON:
    """Adds up whatever comes, strings to strings (openai-python, and what is built on it)."""
    message: JSON = {"role": "", "content": "", "calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            _need(choice["index"] == 0, "another choice")
            _need("finish_reason" in choice, "no finish_reason")
            delta = choice["delta"]
            message["role"] += delta.get("role") or ""
            message["content"] += delta.get("content") or ""
            for fragment in delta.get("tool_calls") or ():
                _accumulate(message["calls"], fragment)
    return message


def _accumulate(calls: list[JSON], fragment: JSON) -> None:
    at = fragment["index"]
    _need(at <= len(calls), "a call at a place that is not the next")
    if at == len(calls):
        _need(fragment["id"] and fragment["function"]["name"], "a call without id or name")
        calls.append({"id": "", "name": "", "arguments": ""})
    calls[at]["id"] += fragment.get("id") or ""
    calls[at]["name"] += fragment["function"].get("name") or ""
    calls[at]["arguments"] += fragment["function"].get("arguments") or ""


def usage_reader(chunks: Iterable[JSON]) -> int:
    """Wants a chunk with usage and no choices at the end, having asked for it (LangChain, kani)."""
    *_, last = chunks
    _need(last["choices"] == [], "the last chunk has choices")
    return int(last["usage"]["total_tokens"])
