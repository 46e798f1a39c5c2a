"""Which of a conversation the model reads again, in which order, and how hard it is to think.

The rules are our own, so that a prompt is exactly what the conversation says. How anything is
written is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import (
    Call,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Unknown,
)
from dragoman.core.ledger import Ledger
from dragoman.core.request import Request

COMMENTARY_PHASE = "commentary"
FINAL_PHASE = "final_answer"

_EFFORTS = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""The nearest that harmony knows to each effort a client may ask for."""


def effort(request: Request, ledger: Ledger) -> str:
    """How hard the model is told to think: low, medium (where nothing was asked for) or high."""
    asked = request.reasoning.effort if request.reasoning is not None else None
    if asked is None:
        return "medium"
    told = _EFFORTS.get(asked)
    if told is None:
        why = "the model knows low, medium and high; medium is sent"
        ledger.note("reasoning.effort", "told", why)
    elif told != asked:
        ledger.note("reasoning.effort", "emulated", f"the nearest the model knows, {told}, is sent")
    return told or "medium"


def partial(request: Request) -> Message | Reasoning | None:
    """What the model is to go on with: an assistant's message or reasoning at the very end that
    is marked as unfinished, or a message there of which the caller says that it is.

    >>> unfinished = Message("assistant", "Once upon", status="incomplete")
    >>> partial(Request(model="m", items=(unfinished,))) is unfinished
    True
    """
    last = request.items[-1] if request.items else None
    match last:
        case Message(role="assistant", status="incomplete" | "in_progress"):
            return last
        case Reasoning(status="incomplete" | "in_progress"):
            return last
        case Message(role="assistant"):
            wires = (request.extra or {}).values()
            told = any(fields.get("continue_final_message") is True for fields in wires)
            return last if told else None
        case _:
            return None


def is_final(items: Sequence[Item], index: int) -> bool:
    """Whether the item is an answer that closes its turn.

    A message without a phase that leads straight to a call is a preamble of it.
    """
    match items[index]:
        case Message(role="assistant", phase=phase):
            following = items[index + 1] if index + 1 < len(items) else None
            leads = isinstance(following, FunctionCall | CustomToolCall)
            return phase != COMMENTARY_PHASE and not (phase is None and leads)
        case _:
            return False


class Entry(Struct, frozen=True):
    """An item to be read again: its place in the input, whether it is an answer that closes its
    turn, and of an output the name and the namespace of the tool it comes from."""

    item: Item
    place: int
    final: bool = False
    called: tuple[str, str | None] = ("", None)


def reread(items: Sequence[Item], first: int = 0) -> list[Entry]:
    """What the model reads again of a conversation, in the order in which it reads it. `first` is
    the place of the first item in the input.

    What it thought, its calls of built-ins among it, is dropped from turns that a final answer
    has closed and kept in the current one. Every call is followed by its own outputs.

    Raises FaultError for an output whose call does not come before it.
    """
    finals = [is_final(items, index) for index in range(len(items))]
    closed = max((index for index, final in enumerate(finals) if final), default=-1)
    outputs = _outputs(items, first)
    entries: list[Entry] = []
    for index, item in enumerate(items):
        match item:
            case FunctionCallOutput() | CustomToolCallOutput():
                continue
            case Reasoning() | Unknown() if index < closed:
                continue
        entries.append(Entry(item, first + index, finals[index]))
        entries += outputs.get(index, ())
    return entries


def _outputs(items: Sequence[Item], first: int) -> dict[int, list[Entry]]:
    """The outputs of every call, by the index of the call."""
    calls: dict[str, tuple[int, Call]] = {}
    outputs: dict[int, list[Entry]] = {}
    for index, item in enumerate(items):
        match item:
            case FunctionCall() | CustomToolCall():
                calls[item.call_id] = index, item
            case FunctionCallOutput() | CustomToolCallOutput():
                known = calls.get(item.call_id)
                if known is None:
                    problem = f"no call with the id {item.call_id!r} comes before this output"
                    raise FaultError(bad_request(problem, f"input[{first + index}].call_id"))
                entry = Entry(item, first + index, called=(known[1].name, known[1].namespace))
                outputs.setdefault(known[0], []).append(entry)
    return outputs
