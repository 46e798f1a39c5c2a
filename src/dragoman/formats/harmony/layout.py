"""What rendering and parsing harmony share: special tokens, which messages are kept, and the
prefill of a prompt.
"""

from __future__ import annotations

import re
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
from dragoman.core.loss import LossList
from dragoman.core.request import NamedTool, Request
from dragoman.formats.prompt import Tokenizer

from .tools import FUNCTIONS

START = "<|start|>"
CHANNEL = "<|channel|>"
CONSTRAIN = "<|constrain|>"
MESSAGE = "<|message|>"
END = "<|end|>"
RETURN = "<|return|>"
CALL = "<|call|>"
END_OF_TEXT = "<|endoftext|>"

ENDS = frozenset((END, RETURN, CALL, END_OF_TEXT))
_ALL = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS, "<|startoftext|>")
_LONGEST = max(map(len, _ALL))

IN_TEXT = re.compile("|".join(map(re.escape, _ALL)))


class Mark(Struct, frozen=True):
    """A control token, by its text."""

    text: str


class Vocabulary(dict[int, str | bytes | Mark]):
    """What each id stands for: text, bytes of a character that is torn apart, or a mark.

    `marked` is whether the marks are tokens of it; else they are looked for in the text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__((id, Mark(text)) for text, id in tokenizer.controls.items())
        self.marked = MESSAGE in tokenizer.controls
        self._tokenizer = tokenizer

    def __missing__(self, id: int) -> str | bytes:
        piece = self._tokenizer.piece(id)
        known: str | bytes
        try:
            known = piece.decode()
        except UnicodeDecodeError:
            known = piece
        self[id] = known
        return known


def certain(text: str) -> int:
    """How much of the text cannot be the beginning of a mark that is still to come.

    >>> certain("one <|en"), certain("one <|end|>")
    (4, 11)
    """
    at = text.rfind("<", max(len(text) - _LONGEST + 1, 0))
    tail = text[at:]
    held = at >= 0 and any(mark.startswith(tail) and mark != tail for mark in _ALL)
    return at if held else len(text)


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


def effort(request: Request, ledger: LossList) -> str:
    """How hard the model is told to think: low, medium (where nothing was asked for) or high."""
    asked = request.reasoning.effort if request.reasoning is not None else None
    if asked is None:
        return "medium"
    told = _EFFORTS.get(asked)
    if told is None:
        why = "the model knows low, medium and high; medium is sent"
        ledger.note("reasoning.effort", "dropped", why)
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


class Opening(Struct, frozen=True):
    """A header, and the text already said under it."""

    channel: str
    recipient: str | None = None
    content_type: str | None = None
    text: str = ""


def opening(request: Request) -> Opening | None:
    """The message the prompt of a request ends in the midst of, if it does.

    A tool that must be called is called at once, and only its arguments are left to the model.

    >>> opening(Request(model="m", tool_choice=NamedTool("roll"))).recipient
    'functions.roll'
    """
    unfinished = partial(request)
    if unfinished is not None:
        match unfinished:
            case Message(phase=phase, text=text):
                channel = "commentary" if phase == COMMENTARY_PHASE else "final"
                return Opening(channel, text=text)
            case _:
                return Opening("analysis", text=unfinished.text)
    match request.tool_choice:
        case NamedTool(name=name, kind=kind, namespace=namespace):
            content_type = "json" if kind == "function" else None
            return Opening("commentary", recipient(name, namespace), content_type)
        case _:
            return None


def recipient(name: str, namespace: str | None) -> str:
    """How a tool is addressed."""
    return f"{namespace or FUNCTIONS}.{name}"
