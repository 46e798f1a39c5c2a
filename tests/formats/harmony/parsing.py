"""What a test hears of a model's answer: the items it becomes, and the events on the way.

A vocabulary of bytes, with the control tokens of harmony, is all the model there is.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from dragoman.core.event import Delta, Event, Finished, ItemDone
from dragoman.core.item import FunctionCall, Item, Message, Token
from dragoman.core.lifecycle import check
from dragoman.core.request import CustomTool, FunctionTool, Namespace, Request, UnknownTool
from dragoman.core.turn import Turn
from dragoman.formats.harmony import HARMONY, HarmonyParser
from dragoman.formats.prompt import ByteTokenizer, Control, Piece, Prompt, Tokenizer

MARKS = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|startoftext|>",
    "<|reserved_200013|>",
)
BYTES = ByteTokenizer(MARKS)
PLAIN = Request(model="m")
TOOLS = Request(
    model="m",
    tools=(
        FunctionTool("f", "Does it.", {"type": "object", "properties": {"a": {"type": "string"}}}),
        FunctionTool("lookup"),
        CustomTool("patch", "Changes files."),
        Namespace("crm", (FunctionTool("find"), CustomTool("note")), "Customers."),
        UnknownTool("responses", "web_search", {}),
        UnknownTool("responses", "code_interpreter", {"container": {"type": "auto"}}),
    ),
)


def spelt(text: str) -> list[int]:
    """The ids of a text in which marks are control tokens."""
    pieces: list[Piece] = []
    while text:
        at, mark = min(
            ((text.find(mark), mark) for mark in MARKS if mark in text), default=(len(text), "")
        )
        pieces.append(text[:at])
        if mark:
            pieces.append(Control(mark))
        text = text[at + len(mark) :]
    return Prompt(tuple(pieces)).ids(BYTES)


class Parsed:
    """One answer: its events, checked for their legal order, its items and its reason to end."""

    def __init__(self, events: list[Event], parser: HarmonyParser) -> None:
        check(events)
        self.events = events
        self.parser = parser
        self.items = [plain(event.item) for event in events if isinstance(event, ItemDone)]
        (self.end,) = [event for event in events if isinstance(event, Finished)]

    @property
    def deltas(self) -> dict[int, str]:
        """The text of all deltas of each item."""
        said: dict[int, str] = {}
        for event in self.events:
            if isinstance(event, Delta):
                said[event.index] = said.get(event.index, "") + event.data
        return said

    @property
    def merged(self) -> list[Event]:
        """The events, with the deltas of a part in a row as one."""
        merged: list[Event] = []
        for event in self.events:
            last = merged[-1] if merged else None
            if (
                isinstance(event, Delta)
                and isinstance(last, Delta)
                and (last.index, last.kind) == (event.index, event.kind)
            ):
                merged[-1] = replace(
                    last, data=last.data + event.data, tokens=last.tokens + event.tokens
                )
            else:
                merged.append(event)
        return merged


def plain(item: Item) -> Item:
    """An item without the ids that a turn gives."""
    if isinstance(item, Message) or not hasattr(item, "call_id"):
        return replace(item, id=None)
    return replace(item, id=None, call_id="")


def parse(
    ids: Iterable[Sequence[int]] | str,
    request: Request = TOOLS,
    reason: str = "stop",
    tokens: Iterator[Sequence[Token]] | None = None,
    tokenizer: Tokenizer = BYTES,
) -> Parsed:
    """The answer in groups of tokens, or in text with marks in it, which is one group."""
    turn = Turn("1", 0, "m", think=None)
    parser = HARMONY.parser(request, turn, tokenizer)
    for group in [spelt(ids)] if isinstance(ids, str) else ids:
        parser.feed(group, next(tokens) if tokens else ())
    parser.close(reason)
    return Parsed(turn.take(), parser)


def read(chunks: Iterable[str], request: Request = TOOLS, reason: str = "stop") -> Parsed:
    """The answer as text, in chunks."""
    turn = Turn("1", 0, "m", think=None)
    parser = HARMONY.parser(request, turn)
    for chunk in chunks:
        parser.write(chunk)
    parser.close(reason)
    return Parsed(turn.take(), parser)


def called(name: str, arguments: str, namespace: str | None = None) -> FunctionCall:
    """A call as `plain` leaves it."""
    return FunctionCall("", name, arguments, namespace, status="completed")
