"""Special tokens, which items of a conversation are in the prompt, and the prefill that ends it."""

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
_ALL_TOKENS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS, "<|startoftext|>")
_LONGEST = max(map(len, _ALL_TOKENS))

SPECIAL_TOKENS = re.compile("|".join(map(re.escape, _ALL_TOKENS)))


class SpecialToken(Struct, frozen=True):
    """A control token, by its text."""

    text: str


class TokenTable(dict[int, str | bytes | SpecialToken]):
    """The meaning of each id: text, bytes of an incomplete character, or a special token.

    `marked` is whether the vocabulary has the special tokens; else they are searched in the text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__((id, SpecialToken(text)) for text, id in tokenizer.controls.items())
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


def certain_length(text: str) -> int:
    """How much of the text cannot be the beginning of a special token.

    >>> certain_length("one <|en"), certain_length("one <|end|>")
    (4, 11)
    """
    at = text.rfind("<", max(len(text) - _LONGEST + 1, 0))
    tail = text[at:]
    held = at >= 0 and any(mark.startswith(tail) and mark != tail for mark in _ALL_TOKENS)
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
"""The nearest effort that harmony has for each that a client may ask for."""


def effort(request: Request, losses: LossList) -> str:
    """The reasoning effort: low, medium (the default) or high."""
    asked = request.reasoning.effort if request.reasoning is not None else None
    if asked is None:
        return "medium"
    sent = _EFFORTS.get(asked)
    if sent is None:
        why = "the model knows low, medium and high; medium is sent"
        losses.note("reasoning.effort", "dropped", why)
    elif sent != asked:
        losses.note("reasoning.effort", "emulated", f"the nearest the model knows, {sent}, is sent")
    return sent or "medium"


def partial(request: Request) -> Message | Reasoning | None:
    """The assistant's message or reasoning to continue: the last item, if it is unfinished or the
    request sets `continue_final_message` (vLLM).

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
            sent = any(fields.get("continue_final_message") is True for fields in wires)
            return last if sent else None
        case _:
            return None


def is_final(items: Sequence[Item], index: int) -> bool:
    """Whether the item is an answer that closes its turn. A message without a phase directly before
    a call is a preamble of it."""
    match items[index]:
        case Message(role="assistant", phase=phase):
            following = items[index + 1] if index + 1 < len(items) else None
            leads = isinstance(following, FunctionCall | CustomToolCall)
            return phase != COMMENTARY_PHASE and not (phase is None and leads)
        case _:
            return False


class HistoryItem(Struct, frozen=True):
    """An item to be rendered: its place in the input, whether it is a final answer, and of an
    output the name and namespace of its tool."""

    item: Item
    place: int
    final: bool = False
    called: tuple[str, str | None] = ("", None)


def visible_history(items: Sequence[Item], first: int = 0) -> list[HistoryItem]:
    """The items that are rendered, in order. `first` is the place of the first one in the input.

    Reasoning is dropped from turns that a final answer has closed (the model was trained so), and
    every call is followed by its own outputs. Raises FaultError for an output without a call.
    """
    finals = [is_final(items, index) for index in range(len(items))]
    closed = max((index for index, final in enumerate(finals) if final), default=-1)
    outputs = _outputs(items, first)
    entries: list[HistoryItem] = []
    for index, item in enumerate(items):
        match item:
            case FunctionCallOutput() | CustomToolCallOutput():
                continue
            case Reasoning() | Unknown() if index < closed:
                continue
        entries.append(HistoryItem(item, first + index, finals[index]))
        entries += outputs.get(index, ())
    return entries


def _outputs(items: Sequence[Item], first: int) -> dict[int, list[HistoryItem]]:
    """The outputs of every call, by the index of the call."""
    calls: dict[str, tuple[int, Call]] = {}
    outputs: dict[int, list[HistoryItem]] = {}
    for index, item in enumerate(items):
        match item:
            case FunctionCall() | CustomToolCall():
                calls[item.call_id] = index, item
            case FunctionCallOutput() | CustomToolCallOutput():
                known = calls.get(item.call_id)
                if known is None:
                    problem = f"no call with the id {item.call_id!r} comes before this output"
                    raise FaultError(bad_request(problem, f"input[{first + index}].call_id"))
                entry = HistoryItem(item, first + index, called=(known[1].name, known[1].namespace))
                outputs.setdefault(known[0], []).append(entry)
    return outputs


class Prefill(Struct, frozen=True):
    """An open message: its header, and the text already in it."""

    channel: str
    recipient: str | None = None
    content_type: str | None = None
    text: str = ""


def prefill(request: Request) -> Prefill | None:
    """The message that the prompt leaves open, if any. A forced call is opened, so that only its
    arguments are left to the model.

    >>> prefill(Request(model="m", tool_choice=NamedTool("roll"))).recipient
    'functions.roll'
    """
    unfinished = partial(request)
    if unfinished is not None:
        match unfinished:
            case Message(phase=phase, text=text):
                channel = "commentary" if phase == COMMENTARY_PHASE else "final"
                return Prefill(channel, text=text)
            case _:
                return Prefill("analysis", text=unfinished.text)
    match request.tool_choice:
        case NamedTool(name=name, kind=kind, namespace=namespace):
            content_type = "json" if kind == "function" else None
            return Prefill("commentary", recipient(name, namespace), content_type)
        case _:
            return None


def recipient(name: str, namespace: str | None) -> str:
    """The address of a tool."""
    return f"{namespace or FUNCTIONS}.{name}"
