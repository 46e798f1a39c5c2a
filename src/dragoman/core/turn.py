"""One answer, put together from loose deltas: whatever comes in, legal events come out.

This is the only assembler of the house: decoders of every wire and parsers of every token format
feed it. It derives missing ids from the response's id, joins halves of characters, closes what
was left open, and knows no wire, no socket and no clock.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from .assembly import OpenItem, blank
from .calls import CallFragment, CallSorter, LooseCall
from .error import Fault
from .event import DeltaKind, Event, Failed, Finished, ItemAdded, ItemDone, Progress, Started
from .item import (
    JSON,
    Annotation,
    CustomToolCall,
    Extra,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Token,
    Unknown,
)
from .loss import Loss
from .response import Status, Usage
from .think import ThinkSplitter

Think = Literal["inline", "reasoning"] | None
"""What to do with think tags at the start of the text: `inline` makes reasoning of them and
remembers the tags, so that a wire that had them in the text can put them back; `reasoning`
forgets them; None leaves the text alone."""

_PREFIXES: dict[type, str] = {
    Message: "msg",
    Reasoning: "rs",
    FunctionCall: "fc",
    CustomToolCall: "ctc",
}


class _Choice:
    """What is open in one alternative of the answer."""

    __slots__ = ("calls", "open", "reason", "spoken", "think")

    def __init__(self, think: bool) -> None:
        self.open: OpenItem | None = None  # the message or reasoning being written
        self.calls = CallSorter()
        self.reason: str | None = None
        self.spoken = False
        self.think = ThinkSplitter() if think else None


class Turn:
    """Makes legal events of loose deltas.

    Feed it through the methods below and collect what it made with `take`. Two ways lead in: by
    choice, for wires that only know "more text" (`text`, `thought`, `call`, `finish`, `end`), and
    by index, for those that say which item they mean (`open`, `write`, `shut`, `complete`).

    >>> turn = Turn("1", 0, "m")
    >>> turn.text("Hel"); turn.text("lo"); turn.finish("stop"); turn.end(said=True)
    >>> [type(event).__name__ for event in turn.take()][-3:]
    ['PartDone', 'ItemDone', 'Finished']
    """

    def __init__(
        self,
        id: str,
        created_at: int,
        model: str,
        *,
        losses: tuple[Loss, ...] = (),
        think: Think = "inline",
    ) -> None:
        self.id = id
        self.created_at = created_at
        self.model = model
        self.losses = losses
        self.started = False
        self.over = False
        self.usage: Usage | None = None
        self._think = think
        self._extra: Extra = {}
        self._events: list[Event] = []
        self._items: list[OpenItem | None] = []  # by index; None once closed
        self._choices: dict[int, _Choice] = {}
        self._ids: set[str] = set()
        self._call_ids: set[str] = set()

    # ---- beginning -----------------------------------------------------------------------

    def take(self) -> list[Event]:
        """The events made since the last call."""
        events, self._events = self._events, []
        return events

    def header(self, model: str | None = None, extra: Extra | None = None) -> None:
        """What the upstream says of itself. Begins the answer; later news waits for its end."""
        if extra:
            for wire, fields in extra.items():
                self._extra.setdefault(wire, {}).update(fields)
        if not self.started:
            self.model = model or self.model
            self.begin()

    def begin(self) -> None:
        """Begin the answer now, whether or not the upstream has said anything."""
        if not self.started and not self.over:
            self.started = True
            extra, self._extra = self._extra or None, {}
            self._events.append(
                Started(self.id, self.created_at, self.model, self.losses, extra=extra)
            )

    # ---- by choice -----------------------------------------------------------------------

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """More of what the model says."""
        state = self._choices.get(choice) or self._choice(choice)
        if state.think is None:
            self._say(state, choice, "text", data, tokens)
            return
        for kind, piece in state.think.feed(data):
            self._think_piece(state, choice, kind, piece, tokens)
            tokens = ()
        if state.think.settled:
            state.think = None

    def refusal(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """More of a refusal."""
        self._say(self._choice(choice), choice, "refusal", data, tokens)

    def thought(self, data: str, choice: int = 0) -> None:
        """More of the model's reasoning, in its own words."""
        self._say(self._choice(choice), choice, "reasoning", data)

    def summary(self, data: str, choice: int = 0) -> None:
        """More of a summary of the reasoning."""
        self._say(self._choice(choice), choice, "summary", data)

    def seal(self, extra: Extra, choice: int = 0, encrypted: str | None = None) -> None:
        """What must come back with the reasoning: opaque details, a signature, a blob."""
        state = self._choice(choice)
        item = self._speaker(state, choice, "reasoning")
        item.seal(extra, encrypted)

    def audio(
        self,
        choice: int = 0,
        *,
        id: str | None = None,
        data: str | None = None,
        transcript: str | None = None,
        format: str | None = None,
        expires_at: int | None = None,
    ) -> None:
        """More of what the model says aloud: base64 `data`, `transcript`, or facts about both."""
        state = self._choice(choice)
        item = self._speaker(state, choice, "text")
        self._events += item.hear(id=id, format=format, expires_at=expires_at)
        if data:
            self._events += item.write("audio", data)
        if transcript:
            self._events += item.write("transcript", transcript)

    def annotate(self, annotation: Annotation, choice: int = 0) -> None:
        """A note on the text so far."""
        state = self._choice(choice)
        item = self._speaker(state, choice, "text")
        self._events += item.annotate(annotation)

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        """A piece of a tool call, complete or not, indexed or not."""
        state = self._choice(choice)
        self._settle_think(state, choice)
        self._hush(state)
        call = state.calls.sort(fragment)
        if call.item is None and call.name:
            self._announce(call, choice)
            for other in state.calls.calls:
                if other is not call and other.item is not None and other.complete:
                    self._shut_call(other)
        if fragment.arguments:
            call.pieces.append(fragment.arguments)
            if call.shut:
                return  # a fragment for a call that was whole already can only be noise
            if call.item is not None:
                self.write(call.item, "input" if call.custom else "arguments", fragment.arguments)

    def finish(self, reason: str, choice: int = 0) -> None:
        """The choice is at its end, for this reason."""
        state = self._choice(choice)
        state.reason = reason
        self._settle_think(state, choice)
        short = reason in ("length", "content_filter")
        self._hush(state, "incomplete" if short else "completed")
        for call in state.calls.calls:
            if call.item is not None and not call.shut:
                self._shut_call(call, "incomplete" if short and not call.complete else "completed")

    def end(self, said: bool) -> None:
        """The stream is over; `said` tells whether the upstream said so or merely stopped."""
        if self.over:
            return
        pending = {n: state for n, state in self._choices.items() if state.reason is None}
        if (pending or not self._choices) and not said:
            self.fail(CUT)
            return
        for number, state in pending.items():
            self.finish("tool_calls" if state.calls.calls else "stop", number)
        if not self._choices:
            self.fail(EMPTY)
        elif any(call.item is None for s in self._choices.values() for call in s.calls.calls):
            self.fail(NAMELESS)
        else:
            self._finish_empty()
            reasons = tuple(
                self._choices[n].reason or "stop" if n in self._choices else "stop"
                for n in range(max(self._choices) + 1)
            )
            short = any(reason in ("length", "content_filter") for reason in reasons)
            self.complete("incomplete" if short else "completed", reasons)

    # ---- by index ------------------------------------------------------------------------

    def open(self, item: Item, choice: int = 0) -> int:
        """Open an item and give its index. A missing or repeated id is derived."""
        return self._open(item, choice).index

    def write(
        self,
        index: int,
        kind: DeltaKind,
        data: str,
        part: int | None = None,
        tokens: tuple[Token, ...] = (),
    ) -> None:
        """More of an open item; its part opens by itself. Writing to a closed item is noise."""
        item = self._items[index]
        if item is not None:
            self._events += item.write(kind, data, part, tokens)

    def item(self, index: int) -> OpenItem | None:
        """The open item at this index, for exact work on its parts."""
        return self._items[index]

    def emit(self, events: list[Event]) -> None:
        """Add events that an open item gave."""
        self._events += events

    def shut(self, index: int, final: Item | None = None) -> None:
        """Close an item; `final` is the upstream's own idea of the whole, where it gave one."""
        item = self._items[index]
        if item is None:
            return
        self._items[index] = None
        events, done = item.shut(final)
        self._events += events
        self._events.append(ItemDone(index, done))

    def progress(self, index: int | None, state: str, data: JSON = None) -> None:
        """Something happened beside the answer."""
        self.begin()
        self._events.append(Progress(index, state, data))  # type: ignore[arg-type]

    def complete(
        self, status: Status, reasons: tuple[str, ...], completed_at: int | None = None
    ) -> None:
        """The good end."""
        if self.over:
            return
        self.begin()
        for index, item in enumerate(self._items):
            if item is not None:
                item.status = "incomplete" if status == "incomplete" else "completed"
                self.shut(index)
        self.over = True
        self._events.append(
            Finished(status, reasons, self.usage, completed_at, extra=self._extra or None)
        )

    def fail(self, fault: Fault) -> None:
        """The bad end. What came before stands, and open items stay open."""
        if not self.over:
            self.over = True
            self._events.append(Failed(fault, self.usage, extra=self._extra or None))

    @property
    def spoken(self) -> bool:
        """Whether anything of the answer itself has come."""
        return bool(self._choices or self._items)

    @property
    def finishing(self) -> bool:
        """Whether every choice that spoke has given its reason to stop."""
        states = self._choices.values()
        return bool(states) and all(state.reason is not None for state in states)

    # ---- inside --------------------------------------------------------------------------

    def _choice(self, number: int) -> _Choice:
        state = self._choices.get(number)
        if state is None:
            self.begin()
            state = self._choices[number] = _Choice(self._think is not None)
        return state

    def expect(self, choice: int) -> None:
        """A choice exists, though it has said nothing yet."""
        self._choice(choice)

    def _say(
        self,
        state: _Choice,
        choice: int,
        kind: Literal["text", "refusal", "reasoning", "summary"],
        data: str,
        tokens: tuple[Token, ...] = (),
    ) -> None:
        if not data and not tokens:
            return
        if kind != "text":
            self._settle_think(state, choice)
        item = state.open
        if item is None or item.kind != kind:
            item = self._speaker(state, choice, kind)
        self._events += item.write(kind, data, None, tokens)

    def _open(self, item: Item, choice: int) -> OpenItem:
        self.begin()
        index = len(self._items)
        if choice in self._choices:
            self._choices[choice].spoken = True
        opened = OpenItem(index, choice, blank(self._identified(item, index)))
        self._items.append(opened)
        self._events.append(ItemAdded(index, opened.blank, choice))
        return opened

    def _speaker(self, state: _Choice, choice: int, kind: str) -> OpenItem:
        """The open item in which this kind is said, opened where needed."""
        wanted = Reasoning if kind in ("reasoning", "summary") else Message
        if state.open is None or not isinstance(state.open.blank, wanted):
            self._hush(state)
            for call in state.calls.calls:
                if call.item is not None and call.complete:
                    self._shut_call(call)
            fresh: Item = Reasoning() if wanted is Reasoning else Message("assistant")
            state.open = self._open(fresh, choice)
        return state.open

    def _hush(
        self, state: _Choice, status: Literal["completed", "incomplete"] = "completed"
    ) -> None:
        """Close the message or reasoning that is being written."""
        if state.open is not None:
            state.open.status = status
            self.shut(state.open.index)
            state.open = None

    def _think_piece(
        self, state: _Choice, choice: int, kind: str, piece: str, tokens: tuple[Token, ...]
    ) -> None:
        if kind == "text":
            self._say(state, choice, "text", piece, tokens)
        elif kind == "reasoning":
            self._say(state, choice, "reasoning", piece)
        elif self._think == "inline":
            if kind == "open":
                self._hush(state)
                state.open = self._open(Reasoning(extra={"inline": {"open": piece}}), choice)
            else:
                self.seal({"inline": {"close": piece}}, choice)

    def _settle_think(self, state: _Choice, choice: int) -> None:
        splitter, state.think = state.think, None
        if splitter is not None:
            for kind, piece in splitter.flush():
                self._think_piece(state, choice, kind, piece, ())

    def _announce(self, call: LooseCall, choice: int) -> None:
        name, namespace = call.name or "", call.namespace
        call_id = call.id if call.id and call.id not in self._call_ids else None
        if call_id is None:
            call_id = f"call_{self.id}_{len(self._call_ids)}"
        self._call_ids.add(call_id)
        item: Item
        if call.custom:
            item = CustomToolCall(call_id, name, "", namespace)
        else:
            item = FunctionCall(call_id, name, "", namespace)
        call.item = self.open(item, choice)
        for piece in call.pieces:  # arguments that came before the name
            self.write(call.item, "input" if call.custom else "arguments", piece)

    def _shut_call(
        self, call: LooseCall, status: Literal["completed", "incomplete"] = "completed"
    ) -> None:
        if call.item is None or call.shut:
            return
        call.shut = True
        item = self._items[call.item]
        if item is not None:
            item.status = status
            if status == "completed" and not call.custom and not "".join(call.pieces).strip():
                self.write(call.item, "arguments", "{}")
            self.shut(call.item)

    def _finish_empty(self) -> None:
        """A choice that ended well and said nothing at all still said an empty message."""
        for number, state in self._choices.items():
            if not state.spoken and state.reason != "content_filter":
                item = self._open(Message("assistant"), number)
                self._events += item.write("text", "")
                self.shut(item.index)

    def _identified(self, item: Item, index: int) -> Item:
        prefix = _PREFIXES.get(type(item), "item")
        given = item.id
        if isinstance(item, Unknown) or (given and given not in self._ids):
            self._ids.add(given or "")
            return item
        derived = f"{prefix}_{self.id}_{index}"
        self._ids.add(derived)
        return replace(item, id=derived)


CUT = Fault(
    "upstream_cut",
    "The model's server ended the stream before the answer was finished. "
    "What arrived before is all there is; ask again.",
    "upstream",
)
EMPTY = Fault("upstream_error", "The model's server answered 200 with no answer in it.", "upstream")
NAMELESS = Fault(
    "upstream_error", "The model's server sent a tool call that never got a name.", "upstream"
)
