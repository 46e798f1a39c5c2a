"""The order of a Responses stream as a grammar, and a checker that walks it.

    stream   = created → in_progress → item* → terminal → [DONE]
    item     = output_item.added → body → output_item.done         one at a time, dense indices
    message  = ( content_part.added → (delta | annotation.added)* → *.done → content_part.done )*
    thought  = ( summary_part.added → delta* → text.done → summary_part.done | content part )*
    call     = arguments.delta* → arguments.done
    hosted   = in_progress → code.delta* → code.done → interpreting → completed, say
    terminal = completed | incomplete | failed                     exactly one

It is written from the protocol, not from the encoder: no code of the package is used here.
"""

import json
from collections.abc import Iterator
from typing import Any

Told = dict[str, Any]

TERMINALS = ("response.completed", "response.incomplete", "response.failed")
CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
WORDS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
    "summary_text": ("response.reasoning_summary_text", "text"),
}
HOSTED = {
    "web_search_call": ("in_progress", "searching", "completed"),
    "file_search_call": ("in_progress", "searching", "completed"),
    "code_interpreter_call": ("in_progress", "code", "interpreting", "completed"),
    "image_generation_call": ("in_progress", "generating", "partial_image", "completed"),
    "mcp_call": ("in_progress", "arguments", "completed|failed"),
    "mcp_list_tools": ("in_progress", "completed|failed"),
    "compaction": ("compacting",),
}
"""What is said of items in progress, in this order; some servers leave out or repeat steps."""
STREAMED = ("code", "arguments")
WHOLE = ("_output", "_approval_request")
ZERO = {"content": [], "summary": [], "arguments": "", "input": ""}


class OrderError(AssertionError):
    """An event came where the protocol does not have it."""


def parse(stream: bytes) -> tuple[list[Told], bool]:
    """The events of a stream and whether `[DONE]` ended it, each frame checked to the byte."""
    frames = stream.decode().split("\n\n")
    _expect(frames.pop() == "", "the stream ends in the middle of a frame")
    frames = [frame for frame in frames if not frame.startswith(":")]
    done = bool(frames) and frames[-1] == "data: [DONE]"
    told = []
    for frame in frames[: len(frames) - done]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        _expect(name == f"event: {event['type']}", f"{name} does not name {event['type']}")
        told.append(event)
    return told, done


def check_order(told: list[Told]) -> None:
    """Raises OrderError at the first event that is out of order, or not what came before it."""
    for number, event in enumerate(told):
        _expect(event["sequence_number"] == number, f"{event['type']} is not numbered {number}")
    walk = _Walk(told)
    created = walk.take("response.created")["response"]
    _expect(created["status"] == "in_progress", "a created response is not in progress")
    _expect(created["output"] == [], "a created response has output")
    _expect(walk.take("response.in_progress")["response"] == created, "the snapshots differ")
    items: list[Told] = []
    while walk.next("response.output_item.added"):
        item = _item(walk, len(items))
        if item is None:
            break
        items.append(item)
    _terminal(walk, created, items)


class _Walk:
    """The events still to come; what a server says beside the protocol is passed over."""

    def __init__(self, told: list[Told]) -> None:
        self._left = [event for event in told if not _beside(event)]

    def next(self, *types: str) -> bool:
        return bool(self._left) and self._left[0]["type"] in types

    def take(self, *types: str) -> Told:
        _expect(bool(self._left), f"the stream ends where {types} should come")
        event = self._left.pop(0)
        _expect(event["type"] in types, f"{event['type']} came where {types} should come")
        return event

    @property
    def over(self) -> bool:
        return not self._left


def _beside(event: Told) -> bool:
    """Whatever is no event of the protocol may stand anywhere."""
    return bool(event["type"].startswith("vendor"))


def _expect(holds: bool, problem: str) -> None:
    if not holds:
        raise OrderError(problem)


def _item(walk: _Walk, index: int) -> Told | None:
    """One item, as it is when it is done; None if the answer failed in the middle of it."""
    added = walk.take("response.output_item.added")
    _expect(added["output_index"] == index, f"item {index} is at {added['output_index']}")
    item = added["item"]
    held = {name: item[name] for name in ZERO if item.get(name, ZERO[name]) != ZERO[name]}
    _expect(not held or item["type"].endswith(WHOLE), f"item {index} was added with {held}")
    at = {"item_id": item["id"], "output_index": index}
    said = dict(_body(walk, item["type"], at))
    if walk.next("response.failed"):
        return None
    done = walk.take("response.output_item.done")
    _expect(done["output_index"] == index, f"item {index} is done at {done['output_index']}")
    final = done["item"]
    for name in ("id", "type", "call_id", "name", "role"):
        _expect(final.get(name) == item.get(name), f"the {name} of item {index} changed")
    _expect(final.get("status", "completed") != "in_progress", f"item {index} is not done")
    for name, value in said.items():
        _expect(
            final.get(name, ZERO.get(name)) == value, f"the {name} of item {index} is not as said"
        )
    return dict(final)


def _body(walk: _Walk, type: str, at: Told) -> Iterator[tuple[str, Any]]:
    """What the events inside an item add up to, by field."""
    match type:
        case "message":
            yield "content", list(_parts(walk, at, "content"))
        case "reasoning":
            yield "summary", list(_parts(walk, at, "summary"))
            yield "content", list(_parts(walk, at, "content"))
        case "function_call" | "custom_tool_call":
            name, field = CALLS[type]
            said = "".join(_deltas(walk, name, at))
            if walk.next("response.failed"):
                return
            done = _there(walk.take(f"{name}.done"), at)
            _expect(done[field] == said, f"the {field} are not what was said")
            _expect(type != "function_call" or bool(done["name"]), "the call has no name")
            yield field, said
        case _:
            yield from _progress(walk, type, at)


def _progress(walk: _Walk, type: str, at: Told) -> Iterator[tuple[str, Any]]:
    """What is said of an item of a hosted tool on its way."""
    for step in HOSTED.get(type, ()):
        if step in STREAMED:
            said = "".join(_deltas(walk, f"response.{type}_{step}", at))
            if said or walk.next(f"response.{type}_{step}.done"):
                done = _there(walk.take(f"response.{type}_{step}.done"), at)
                _expect(done[step] == said, f"the {step} is not what was said")
                yield step, said
        names = [f"response.{type}.{name}" for name in step.split("|")]
        while walk.next(*names):
            _there(walk.take(*names), at)


def _parts(walk: _Walk, at: Told, kind: str) -> Iterator[Told]:
    prefix = "response.reasoning_summary_part" if kind == "summary" else "response.content_part"
    count = 0
    while walk.next(f"{prefix}.added"):
        here = {**at, f"{kind}_index": count}
        part = _part(walk, prefix, here)
        if part is None:
            return
        yield part
        count += 1


def _part(walk: _Walk, prefix: str, at: Told) -> Told | None:
    added = _there(walk.take(f"{prefix}.added"), at)["part"]
    if added["type"] not in WORDS:
        if walk.next("response.failed"):
            return None
        return dict(_there(walk.take(f"{prefix}.done"), at)["part"])
    name, field = WORDS[added["type"]]
    _expect(added[field] == "", "a part was added with text in it")
    said, notes, tokens = "", [], []
    while walk.next(f"{name}.delta", "response.output_text.annotation.added"):
        event = _there(walk.take(f"{name}.delta", "response.output_text.annotation.added"), at)
        if "annotation" in event:
            _expect(event["annotation_index"] == len(notes), "annotations are not counted from 0")
            notes.append(event["annotation"])
        else:
            said += event["delta"]
            tokens += event.get("logprobs", [])
    if walk.next("response.failed"):
        return None
    done = _there(walk.take(f"{name}.done"), at)
    _expect(done[field] == said, f"the {field} is not what was said")
    part = _there(walk.take(f"{prefix}.done"), at)["part"]
    whole = {**added, field: said}
    if added["type"] == "output_text":
        whole |= {"annotations": notes, "logprobs": tokens}
        _expect(done["logprobs"] == tokens, "the probabilities are not what was said")
    _expect(part == whole, "the part is not what was said")
    return dict(part)


def _deltas(walk: _Walk, name: str, at: Told) -> Iterator[str]:
    while walk.next(f"{name}.delta"):
        yield _there(walk.take(f"{name}.delta"), at)["delta"]


def _there(event: Told, at: Told) -> Told:
    for name, value in at.items():
        _expect(event.get(name) == value, f"{event['type']} has another {name} than {value!r}")
    return event


def _terminal(walk: _Walk, created: Told, items: list[Told]) -> None:
    event = walk.take(*TERMINALS)
    _expect(walk.over, "something came after the end")
    final = event["response"]
    _expect(f"response.{final['status']}" == event["type"], "the status is not the event's")
    _expect(final["output"][: len(items)] == items, "the output is not what was said")
    failed = final["status"] == "failed"
    _expect(failed or len(final["output"]) == len(items), "the output has items never said")
    _expect(failed == (final["error"] is not None), "an error stands where none is, or none")
    short = final["status"] == "incomplete"
    _expect(short == (final["incomplete_details"] is not None), "the details are out of place")
    whole = final["status"] == "completed"
    _expect(whole == isinstance(final["completed_at"], int), "completed_at is out of place")
    _expect(final.keys() >= created.keys(), "a field of the snapshots is missing at the end")
    changing = {"status", "completed_at", "error", "incomplete_details", "output", "usage"}
    for name in created.keys() - changing:
        _expect(final[name] == created[name], f"{name} changed on the way")
