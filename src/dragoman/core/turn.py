"""Assembles one answer from the deltas of any upstream into a legal sequence of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Literal

from msgspec.structs import replace

from .error import CUT, LONGEST_NAME, MAX_ITEMS, TOO_MANY, Fault, FaultError
from .event import (
    Delta,
    DeltaKind,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
    State,
)
from .item import (
    JSON,
    Annotation,
    CustomToolCall,
    Extra,
    FunctionCall,
    Item,
    ItemStatus,
    Message,
    Reasoning,
    Text,
    Token,
    Unknown,
)
from .loss import Loss
from .open_item import OpenItem, empty_item, unique
from .response import Status, Usage
from .tool_calls import CallFragment, CallSorter, LooseCall, Unread

Think = Literal["inline", "reasoning"] | None
"""What to do with think tags at the start of the text: `inline` makes reasoning of them and
remembers the tags, so that a wire that had them in the text can put them back; `reasoning`
forgets them; None leaves the text alone."""

SHORT = ("length", "content_filter")
"""Finish reasons that leave what was being written incomplete."""
MAX_CHOICES = 1_000
"""A choice with a number beyond this is a mistake, and counts as the first."""

EMPTY = Fault("upstream_error", "The model's server answered 200 with no answer in it.", "upstream")
NAMELESS = Fault(
    "upstream_error", "The model's server sent a tool call that never got a name.", "upstream"
)

_PREFIXES: dict[type, str] = {
    Message: "msg",
    Reasoning: "rs",
    FunctionCall: "fc",
    CustomToolCall: "ctc",
}


class Turn:
    """Makes a legal sequence of events of loose deltas.

    Feed it through the methods below and collect the events with `take`. There are two ways in: by
    choice, for wires that only know "more text" (`text`, `reasoning`, `call`, `finish`, `end`), and
    by index, for those that name the item they mean (`open`, `write`, `close`, `complete`).

    >>> turn = Turn("1", 0, "m")
    >>> turn.text("Hel"); turn.text("lo"); turn.finish("stop"); turn.end(complete=True)
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
        self.stop_sequence: str | None = None  # the stop string that ended the first choice
        # Whether several pieces of text may be taken at once: a subclass may look into each.
        self.direct = type(self).text is Turn.text
        self._think = think
        self._extra: Extra = {}
        self._late: list[Loss] = []
        self.events: list[Event] = []  # made since the last `take`
        self._items: list[OpenItem | None] = []  # by index; None once closed
        self._room = repeat(None, MAX_ITEMS)  # one for each part and call there may still be
        self._unread = Unread()  # of arguments
        self._choices: dict[int, _Choice] = {}
        self._ids: set[str] = set()
        self.call_ids: set[str] = set()  # those of the conversation may be added

    # ---- beginning -----------------------------------------------------------------------

    def take(self) -> list[Event]:
        """The events made since the last call."""
        events, self.events = self.events, []
        return events

    def header(self, model: str | None = None, extra: Extra | None = None) -> None:
        """Set what the upstream reports of itself, and begin; later fields wait for the end."""
        if extra:
            for wire, fields in extra.items():
                self._extra.setdefault(wire, {}).update(fields)
        if not self.started:
            if model and not model[LONGEST_NAME:]:
                self.model = model
            self.begin()

    def begin(self) -> None:
        """Begin the answer now, whether or not the upstream has sent anything."""
        if not self.started and not self.over:
            self.started = True
            extra, self._extra = self._extra or None, {}
            self.events.append(
                Started(self.id, self.created_at, self.model, self.losses, extra=extra)
            )

    def report_loss(self, loss: Loss) -> None:
        """Report a loss that only the answer shows: once, at its end."""
        if loss not in self._late:
            self._late.append(loss)

    # ---- by choice -----------------------------------------------------------------------

    def expect(self, choice: int) -> None:
        """Note that a choice exists, before it has any output."""
        self._choice(choice)

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """Add text to the answer."""
        state = self._choices.get(choice) or self._choice(choice)
        if state.think is not None:
            if state.tokens or not state.think.rules_out_tag(data):
                state.tokens += tokens
                self._split(state, state.think.feed(data))
                if state.think.settled and not state.tokens:
                    state.think = None
                return
            state.think = None
        if data or tokens:
            item = state.open
            if item is None or item.kind != "text":
                item = self._item_for(state, "text")
            if not self.over:
                self.events += item.write("text", data, None, tokens)

    def texts(self, pieces: list[str], choice: int = 0) -> None:
        """Add several pieces of text in a row, none empty, none ending in half a character."""
        if (
            self.direct
            and not self.over
            and (state := self._choices.get(choice)) is not None
            and state.think is None
            and (item := state.open) is not None
            and item.kind == "text"
            and item.number is None
            and (part := item.part) is not None
            and not part.closed
            and not part.data.carry
        ):
            part.data.writelines(pieces)
            index, number = item.index, part.index
            for piece in pieces:
                self.events.append(Delta(index, number, "text", piece))
        else:
            for piece in pieces:
                self.text(piece, choice)

    def refusal(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """Add to the refusal."""
        if data or tokens:
            self._write(self._settled(choice), "refusal", data, tokens)

    def reasoning(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """Add to the reasoning."""
        if data or tokens:
            state = self._choices.get(choice)
            if state is None or state.think is not None:
                state = self._settled(choice)
            self._write(state, "reasoning", data, tokens)

    def summary(self, data: str, choice: int = 0) -> None:
        """Add to a summary of the reasoning."""
        if data:
            self._write(self._settled(choice), "summary", data)

    def attach_reasoning(self, extra: Extra, choice: int = 0, encrypted: str | None = None) -> None:
        """Attach what must be sent back with the reasoning: details, a signature, a blob."""
        self._item_for(self._settled(choice), "reasoning").attach_reasoning(extra, encrypted)

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
        """Add spoken audio: base64 `data`, `transcript`, or fields of both."""
        item = self._item_for(self._settled(choice), "audio")
        self.emit(item.set_audio(id=id, format=format, expires_at=expires_at))
        if data:
            self.emit(item.write("audio", data))
        if transcript:
            self.emit(item.write("transcript", transcript))

    def attach(self, extra: Extra, choice: int = 0) -> None:
        """Attach fields of some wire to the item that was written last."""
        state = self._settled(choice)
        (state.open or self._item_for(state, "text")).add_extra(extra)

    def annotate(self, annotation: Annotation, choice: int = 0) -> None:
        """Annotate the text so far."""
        self.emit(self._item_for(self._settled(choice), "text").annotate(annotation))

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        """Add a fragment of a tool call, complete or not, indexed or not."""
        state = self._choices.get(choice) or self._choice(choice)
        call = state.calls.sort(fragment)
        if call is None:
            return
        if state.think is not None:
            self._settled(choice)
        if state.open is not None:
            self._close_open(state)
        if call.item is None and call.name:
            self._announce(call, state)
            state.fed.pop(call, None)
            self._close_complete(state)
        elif fragment.extra and call.item is not None and (item := self._items[call.item]):
            item.add_extra(fragment.extra)
        state.fed[call] = None
        piece = fragment.arguments
        if piece == "{}" and not call.pieces and not call.custom:
            # Some servers open every call with `{}` and send the arguments after it: the empty
            # object waits, and is emitted at the end if it was all.
            call.placeholder = True
        elif piece:
            call.pieces.append(piece)
            item = None if call.item is None else self._items[call.item]
            if item is not None and not self.over:
                self.events += item.write("input" if call.custom else "arguments", piece)
        if fragment.last:
            self._close_call(call)

    def finish(self, reason: str, choice: int = 0) -> None:
        """End a choice, for this reason."""
        state = self._settled(choice)
        state.reason = reason
        if reason in ("stop", "length"):
            self._add_empty_message(state)
        self._close_open(state, "incomplete" if reason in SHORT else "completed")
        announced, state.announced = state.announced, []
        for call in announced:
            broken = reason in SHORT and not call.whole
            self._close_call(call, "incomplete" if broken else "completed")

    def whole_answer(
        self,
        text: str,
        calls: Sequence[FunctionCall],
        reason: str,
        model: str | None,
        extra: Extra,
    ) -> None:
        """Add an answer that is one text, or calls with different ids and some arguments, or both,
        from `header` to `end`, before anything else came."""
        status: ItemStatus = "incomplete" if reason in SHORT else "completed"
        self.started = self.over = True
        self.events.append(
            Started(self.id, self.created_at, model or self.model, self.losses, extra=extra or None)
        )
        if text:
            id, part = f"msg_{self.id}_0", Text(text)
            self.events += (
                ItemAdded(0, Message("assistant", (), id, "in_progress")),
                PartAdded(0, 0, Text("")),
                Delta(0, 0, "text", text),
                PartDone(0, 0, part),
                ItemDone(0, Message("assistant", (part,), id, status)),
            )
            self._items.append(None)
        for call in calls:
            index = len(self._items)
            done = replace(call, id=f"fc_{self.id}_{index}", status=status)
            self.events += (
                ItemAdded(index, replace(done, arguments="", status="in_progress")),
                Delta(index, 0, "arguments", call.arguments),
                ItemDone(index, done),
            )
            self._items.append(None)
        self.events.append(Finished(status, (reason,), self.usage))

    def end(self, complete: bool) -> None:
        """The stream is over; `complete` is whether the upstream ended it, not merely stopped."""
        states = self._choices
        if self.over:
            return
        if not complete and not self.all_finished:
            self.fail(CUT)
        elif not self.has_output:
            self.fail(EMPTY)
        else:
            for number, state in states.items():
                self.finish(state.reason or ("tool_calls" if state.calls.calls else "stop"), number)
            for state in states.values():
                unnamed = None in [call.item for call in state.calls.calls]
                if unnamed and state.reason not in SHORT:
                    self.fail(NAMELESS)
                    return
            for state in states.values():
                self._add_empty_message(state)
            # One reason for each choice up to the last that has any output.
            found = map(states.get, range(max(states, default=0) + 1))
            reasons = tuple([(state and state.reason) or "stop" for state in found])
            short = not set(SHORT).isdisjoint(reasons)
            self.complete("incomplete" if short else "completed", reasons)

    def close_message(self, choice: int = 0) -> None:
        """Close the message or reasoning being written; what follows is another."""
        self._close_open(self._settled(choice))

    def next_item(self, item: Item, choice: int = 0) -> int:
        """Close what is being written and open this item. Text goes into a message opened so, and
        reasoning into a reasoning item."""
        self.close_message(choice)
        opened = self._open(item, choice)
        if isinstance(item, Message | Reasoning):
            self._choice(choice).open = opened
        return opened.index

    # ---- by index ------------------------------------------------------------------------

    def open(self, item: Item, choice: int = 0) -> int:
        """Open an item and give its index. A missing or repeated id is derived. Raises FaultError
        for one too many, as every method does that opens an item or a part."""
        return self._open(item, choice).index

    def write(
        self,
        index: int,
        kind: DeltaKind,
        data: str,
        part: int | None = None,
        tokens: tuple[Token, ...] = (),
    ) -> None:
        """Write to an open item, opening its part where needed; a closed item ignores it."""
        item = self._items[index]
        if item is not None:
            self.emit(item.write(kind, data, part, tokens))

    def item(self, index: int) -> OpenItem | None:
        """The open item at this index, for exact work on its parts."""
        return self._items[index]

    def emit(self, events: list[Event]) -> None:
        """Add events that an open item gave; after the end none is added."""
        if not self.over:
            self.events += events

    def close(self, index: int, final: Item | None = None) -> None:
        """Close an item; `final` is the upstream's own complete item, where it sent one."""
        item = self._items[index]
        if item is None:
            return
        self._items[index] = None
        state = self._choices.get(item.choice)
        if state is not None and state.open is item:
            state.open = None
        events, done = item.close(final)
        self.emit([*events, ItemDone(index, done)])

    def progress(self, index: int | None, state: State, data: JSON = None) -> None:
        """Report progress of the answer, or (with an index) of one of its items."""
        self.begin()
        known = index is not None and 0 <= index < len(self._items)
        self.emit([Progress(index if known else None, state, data)])

    def complete(
        self, status: Status, reasons: tuple[str, ...], completed_at: int | None = None
    ) -> None:
        """End the answer well; open items are closed."""
        if self.over:
            return
        self.begin()
        for index, item in enumerate(self._items):
            if item is not None:
                item.status = "incomplete" if status == "incomplete" else "completed"
                self.close(index)
        self.over = True
        late, extra = tuple(self._late), self._extra or None
        self.events.append(
            Finished(
                status,
                reasons,
                self.usage,
                completed_at,
                late,
                extra=extra,
                stop_sequence=self.stop_sequence,
            )
        )

    def fail(self, fault: Fault) -> None:
        """End the answer with a fault. What came before stands, and open items stay open."""
        if not self.over:
            with suppress(FaultError):  # what was held back would be an item too many
                for number in self._choices:
                    self._settled(number)
            self.over = True
            self.events.append(Failed(fault, self.usage, extra=self._extra or None))

    @property
    def has_output(self) -> bool:
        """Whether anything of the answer itself has come."""
        return bool(self._choices or self._items)

    @property
    def all_finished(self) -> bool:
        """Whether every choice that has any output has a finish reason."""
        states = self._choices.values()
        return bool(states) and all(state.reason is not None for state in states)

    # ---- choices -------------------------------------------------------------------------

    def _choice(self, number: int) -> _Choice:
        number = number if 0 <= number < MAX_CHOICES else 0
        state = self._choices.get(number)
        if state is None:
            self.begin()
            calls = CallSorter(self._room, self._unread)
            state = self._choices[number] = _Choice(number, self._think is not None, calls)
        return state

    def _settled(self, number: int) -> _Choice:
        """The choice, once the text its think tags held back is written."""
        state = self._choice(number)
        splitter, state.think = state.think, None
        if splitter is not None:
            self._split(state, splitter.flush())
            self._write(state, "text", "", tuple(state.tokens))
            state.tokens = []
        return state

    def _split(self, state: _Choice, pieces: list[Piece]) -> None:
        for kind, piece in pieces:
            match kind:
                case "text" | "reasoning":
                    tokens, state.tokens = tuple(state.tokens), []
                    self._write(state, kind, piece, tokens)
                case "open" if self._think == "inline":
                    self._close_open(state)
                    opened = Reasoning(extra={"inline": {"open": piece}})
                    state.open = self._open(opened, state.number)
                case "close" if self._think == "inline":
                    item = self._item_for(state, "reasoning")
                    item.attach_reasoning({"inline": {"close": piece}}, None)

    def _write(
        self, state: _Choice, kind: DeltaKind, data: str, tokens: tuple[Token, ...] = ()
    ) -> None:
        if data or tokens:
            item = state.open
            if item is None or item.kind != kind:
                item = self._item_for(state, kind)
            if not self.over:
                self.events += item.write(kind, data, None, tokens)

    def _item_for(self, state: _Choice, kind: DeltaKind) -> OpenItem:
        """The open item this kind of delta goes to, opened where needed."""
        wanted = Reasoning if kind in ("reasoning", "summary") else Message
        if state.open is None or not isinstance(state.open.empty, wanted):
            self._close_open(state)
            self._close_complete(state)
            fresh: Item = Reasoning() if wanted is Reasoning else Message("assistant")
            state.open = self._open(fresh, state.number)
        return state.open

    def _close_open(self, state: _Choice, status: ItemStatus = "completed") -> None:
        """Close the message or reasoning that is being written."""
        if state.open is not None:
            state.open.status = status
            self.close(state.open.index)

    def _add_empty_message(self, state: _Choice) -> None:
        """A choice that ended well without any output is an empty message."""
        if not state.has_output and state.reason != "content_filter":
            state.open = self._open(Message("assistant"), state.number)
            self.emit(state.open.write("text", ""))

    # ---- items and calls -----------------------------------------------------------------

    def _open(self, item: Item, choice: int) -> OpenItem:
        self.begin()
        index = len(self._items)
        if index >= MAX_ITEMS:
            raise FaultError(TOO_MANY)
        if choice in self._choices:
            self._choices[choice].has_output = True
        if item.id or not isinstance(item, Unknown):
            derived = f"{_PREFIXES.get(type(item), 'item')}_{self.id}_{index}"
            given = None if item.id and item.id[LONGEST_NAME:] else item.id
            item = replace(item, id=unique(given, derived, self._ids))
        if isinstance(item, FunctionCall | CustomToolCall):
            derived = f"call_{self.id}_{len(self.call_ids)}"
            item = replace(item, call_id=unique(item.call_id, derived, self.call_ids))
        opened = OpenItem(index, choice, empty_item(item), self._room)
        self._items.append(opened)
        self.emit([ItemAdded(index, opened.empty, choice)])
        return opened

    def _announce(self, call: LooseCall, state: _Choice) -> None:
        kind = CustomToolCall if call.custom else FunctionCall
        item = kind(call.id or "", call.name or "", "", call.namespace, extra=call.extra)
        call.item = self._open(item, state.number).index
        state.announced.append(call)
        # Arguments may come before the name.
        self.write(call.item, "input" if call.custom else "arguments", "".join(call.pieces))

    def _close_complete(self, state: _Choice) -> None:
        """Close the calls whose arguments are complete, in the order of the answer.

        Only one that was fed since the last time can have become so: looking at all of them would
        make many calls cost their square.
        """
        fed, state.fed = state.fed, {}
        for call in sorted(fed, key=lambda call: -1 if call.item is None else call.item):
            if call.complete:
                self._close_call(call)

    def _close_call(self, call: LooseCall, status: ItemStatus = "completed") -> None:
        if call.item is not None and (item := self._items[call.item]) is not None:
            item.status = status
            self.close(call.item)


class _Choice:
    """What is open in one alternative of the answer."""

    __slots__ = (
        "announced",
        "calls",
        "fed",
        "has_output",
        "number",
        "open",
        "reason",
        "think",
        "tokens",
    )

    def __init__(self, number: int, think: bool, calls: CallSorter) -> None:
        self.number = number
        self.open: OpenItem | None = None  # the message or reasoning being written
        self.calls = calls
        self.announced: list[LooseCall] = []  # those that may be open, in order
        self.fed: dict[LooseCall, None] = {}  # those that got something since last looked at
        self.reason: str | None = None
        self.has_output = False
        self.think = ThinkSplitter() if think else None
        self.tokens: list[Token] = []  # of text that is held back


Kind = Literal["reasoning", "text", "open", "close"]
Piece = tuple[Kind, str]
Step = Callable[["ThinkSplitter", bool], list[Piece]]

_OPEN, _CLOSE = "<think>", "</think>"
_BLANKS = 64
"""How many blanks around a tag belong to it; further ones are text, and no more is held back."""


class ThinkSplitter:
    """Splits text that begins with a think tag into reasoning and text, however it is cut.

    The pieces `open` and `close` carry the tags with the blanks around them, so that all pieces
    joined are the text that came in.

    >>> splitter = ThinkSplitter()
    >>> splitter.feed("<think>hm") + splitter.feed("m</think>") + splitter.feed("  Yes")
    [('open', '<think>'), ('reasoning', 'hm'), ('reasoning', 'm'), ('close', '</think>  '), ('text', 'Yes')]
    """  # noqa: E501 - the example's output is one line

    __slots__ = ("_held", "_step")

    def __init__(self) -> None:
        self._held = ""
        self._step: Step = ThinkSplitter._before  # a bound method would make a reference cycle

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now; the rest is held back."""
        self._held += text
        return self._step(self, False)

    def rules_out_tag(self, text: str) -> bool:
        """Whether this text, coming first, rules out a tag at the start of the answer."""
        if not text or text[0] == "<" or text[0].isspace():
            return False
        return not self._held and self._step is ThinkSplitter._before

    def flush(self) -> list[Piece]:
        """The text held back, at the end of the answer."""
        return self._step(self, True)

    @property
    def settled(self) -> bool:
        """True once all further text is plain text."""
        return self._step is ThinkSplitter._after

    def _before(self, last: bool) -> list[Piece]:
        """Blanks and, perhaps, a part of the opening tag."""
        bare = self._held.lstrip()
        blanks = len(self._held) - len(bare)
        if blanks > _BLANKS or not (bare.startswith(_OPEN) or _OPEN.startswith(bare)):
            return self._enter(ThinkSplitter._after, last)
        start = blanks + len(_OPEN)
        if len(self._held) < start:
            return self._enter(ThinkSplitter._after, last) if last else []
        end = start + _leading(self._held[start:], "\r\n")
        if end == len(self._held) < start + _BLANKS and not last:
            return []  # more newlines may follow
        return self._give("open", end) + self._enter(ThinkSplitter._inside, last)

    def _inside(self, last: bool) -> list[Piece]:
        """The reasoning, up to the closing tag and the newlines before it."""
        at = self._held.find(_CLOSE)
        if at >= 0:
            pieces = self._give("reasoning", at - _newlines_before(self._held[:at]))
            return pieces + self._enter(ThinkSplitter._between, last)
        if last:
            return self._give("reasoning", len(self._held))
        sure = len(self._held) - _overlap(self._held, _CLOSE)
        return self._give("reasoning", sure - _newlines_before(self._held[:sure]))

    def _between(self, last: bool) -> list[Piece]:
        """The closing tag has come; blanks after it belong to it."""
        start = self._held.find(_CLOSE) + len(_CLOSE)
        end = start + _leading(self._held[start:], None)
        if end == len(self._held) < start + _BLANKS and not last:
            return []
        return self._give("close", end) + self._enter(ThinkSplitter._after, last)

    def _after(self, last: bool) -> list[Piece]:
        return self._give("text", len(self._held))

    def _enter(self, step: Step, last: bool) -> list[Piece]:
        self._step = step
        return step(self, last)

    def _give(self, kind: Kind, size: int) -> list[Piece]:
        piece, self._held = self._held[:size], self._held[size:]
        return [(kind, piece)] if piece else []


def _leading(text: str, blanks: str | None) -> int:
    """How many of these characters `text` begins with, up to the limit (None: any blank)."""
    head = text[:_BLANKS]
    return len(head) - len(head.lstrip(blanks))


def _newlines_before(text: str) -> int:
    """How many newlines `text` ends with, up to the limit."""
    tail = text[-_BLANKS:]
    return len(tail) - len(tail.rstrip("\r\n"))


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` could begin `mark`."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0
