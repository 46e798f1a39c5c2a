"""Decodes Messages answers of a server, streamed and whole, into the events of a turn."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import CUT, Fault
from dragoman.core.event import Event
from dragoman.core.item import (
    JSON,
    FunctionCall,
    Item,
    ItemStatus,
    Message,
    Reasoning,
    Text,
    Unknown,
)
from dragoman.core.open_item import OpenItem
from dragoman.core.turn import EMPTY, NAMELESS, SHORT, Turn
from dragoman.wire import error, json, sse
from dragoman.wire.json import ABSENT, BROKEN

from .blocks import NAME, decode_citation, to_extra
from .response import REASONS, STOPPED, decode_usage

MOST_COUNTS = 100
"""The most fields of the usage; further new ones are ignored."""
_BLANK = b"\xef\xbb\xbf \t\r\n"
_OF_A_MESSAGE = frozenset({"id", "type", "role", "model", "content", "usage", *STOPPED})
_OF_AN_END = (_OF_A_MESSAGE | {"delta"}) - STOPPED.keys()
_OF_BLOCKS: dict[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "citations"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
}
"""Fields that are decoded, and so are not stored in the extra: by the type of a block."""


class _Delta(Struct):
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: JSON = None
    content: str | None = None
    encrypted_content: str | None = None


class _BlockDelta(Struct, kw_only=True):
    type: str
    index: int = 0  # servers that leave it out have one block
    delta: _Delta


class _Input(Struct):
    """A block whose input, if any, stays as the model wrote it."""

    input: Raw = ABSENT


class _Inputs(Struct):
    content: list[_Input]


_block_delta = msgspec.json.Decoder(_BlockDelta).decode
_inputs = msgspec.json.Decoder(_Inputs).decode
_DELTA = "content_block_delta"


class _Block:
    """An open content block: its item, and its part of it."""

    __slots__ = ("index", "input", "json", "kind", "part", "signature", "summary")

    def __init__(self, kind: str, index: int, part: int, input: JSON = None) -> None:
        self.kind = kind
        self.index = index
        self.part = part
        # As text at once: what is large is decoded in a thread, and its end may come later.
        self.input = json.text(input) if input else ""
        self.json: list[str] = []  # the input of a hosted tool, in pieces
        self.signature: list[str] = []  # of thinking, in pieces
        self.summary: dict[str, JSON] = {}  # of a compaction


class Decoder:
    """Decodes one answer into a turn, from pieces of any size."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._head = b""  # the first bytes, until a stream or one JSON value is detected
        self._body = bytearray()  # of an answer that is one
        self._sse = sse.SSEDecoder()
        self._blocks: dict[int, _Block] = {}  # the open blocks, by number
        # The last stopped block stays open: the next event shows whether it is complete.
        self._stopped: int | None = None
        self._message: int | None = None  # the item of consecutive texts
        self._parts = 0  # of that item
        self._read = 0  # characters of inputs that came in pieces
        self._usage: dict[str, JSON] = {}
        self._reason: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the answer is over."""
        return self._turn.over

    # ---- bytes ---------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        turn = self._turn
        if not self._head:
            data = data.lstrip(_BLANK)
        if len(self._head) < error.SHOWN:
            self._head = (self._head + data)[: error.SHOWN]
        if turn.over:
            pass
        elif self._is_whole:
            self._body += data
            if len(self._body) > json.MAX_ANSWER:
                self._fail(f"more than {json.MAX_ANSWER} bytes")
        else:
            try:
                for _, each in self._sse.feed(data):
                    self._event(each)
            except ValueError as problem:
                self._fail(str(problem))
        return turn.take()

    def close(self) -> list[Event]:
        """End the input, and with it the answer."""
        turn = self._turn
        if self._is_whole and not turn.over:
            whole, self._body = bytes(self._body), bytearray()  # it may be large
            self._read_whole(whole)
        elif not turn.over:
            for _, each in self._sse.close():
                self._event(each, last=True)
            self._end()
        return turn.take()

    @property
    def _is_whole(self) -> bool:
        return self._head[:1] in (b"{", b"[")

    def _fail(self, what: str, value: JSON = None) -> None:
        """Fail with the error in a value, or else with a quote of it."""
        fault = Fault("upstream_error", f"The model's server sent {what}.", "upstream")
        self._turn.fail(error.describe(value) or fault)

    # ---- a stream ------------------------------------------------------------------------

    def _event(self, data: bytes, *, last: bool = False) -> None:
        if self._turn.over:
            return
        try:
            found = _block_delta(data)
            # The common case. The nesting of a citation is checked below.
            if found.type == _DELTA and found.delta.citation is None:
                self._delta(found.index, found.delta)
                return
        except BROKEN:  # another event, or half a character
            pass
        if data == sse.END:  # of another protocol; what this one has may be missing
            self._end(complete=True)
            return
        try:
            event = json.load(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            if not last:  # an incomplete event at the end is a cut
                self._fail("an event that is no event of this protocol")
            return
        match event.get("type"):
            case "content_block_delta":
                try:
                    delta = msgspec.convert(event.get("delta"), _Delta)
                except msgspec.ValidationError:  # a delta of an unknown kind
                    return
                self._delta(_number(event), delta)
            case "message_start":
                self._start(_object(event.get("message")))
            case "content_block_start":
                self._open(_number(event), _object(event.get("content_block")))
            case "content_block_stop":
                self._close_stopped()
                self._stopped = _number(event)
            case "message_delta":
                self._count(event.get("usage"))
                self._stop(_object(event.get("delta")) | event)
            case "message_stop":
                self._end(complete=True)
            case "error" | None as kind if kind or event.get("error"):
                self._fail("an error and did not explain it", event)

    def _start(self, message: dict[str, JSON]) -> None:
        self._count(message.get("usage"))
        model, id = message.get("model"), message.get("id")
        rest = {k: v for k, v in message.items() if k not in _OF_A_MESSAGE and v is not None}
        extra = to_extra(rest) or {}
        if isinstance(id, str) and id:
            extra["upstream"] = {"id": id}
        self._turn.header(model if isinstance(model, str) else None, extra)

    def _count(self, usage: JSON) -> None:
        """Merge counts: those at the end complete those at the beginning."""
        counts = {k: v for k, v in _object(usage).items() if v is not None}
        if len(self._usage) < MOST_COUNTS:  # else the cost would be quadratic
            self._usage |= counts
        else:
            self._usage |= {k: v for k, v in counts.items() if k in self._usage}
        self._turn.usage = decode_usage(self._usage)

    def _stop(self, delta: dict[str, JSON]) -> None:
        """Why the answer ended; fields without an equivalent stay in the extra."""
        given = {n: v for n, v in delta.items() if v is not None and n not in _OF_AN_END}
        for name, kind in STOPPED.items():
            if not isinstance(given.get(name), kind):  # clients rely on it
                given.pop(name, None)
        if (reason := given.get("stop_reason")) is not None:
            self._reason = REASONS.get(str(reason), "stop")
            if reason == "stop_sequence" and "stop_sequence" in given:
                self._turn.stop_sequence = given.pop("stop_sequence")
                del given["stop_reason"]
            elif reason in ("end_turn", "max_tokens", "tool_use", "refusal"):
                del given["stop_reason"]
        if given:
            self._turn.header(extra={NAME: given})

    # ---- blocks --------------------------------------------------------------------------

    def _open(self, number: int, fields: dict[str, JSON]) -> None:
        turn, kind = self._turn, fields.get("type")
        if not isinstance(kind, str):
            kind = "text"
        self._close_stopped()
        self._close(number)  # a repeated number
        known = _OF_BLOCKS.get(kind, frozenset())
        extra = to_extra({k: v for k, v in fields.items() if k not in known and v is not None})
        if kind == "text":
            if self._message is None:
                self._message, self._parts = turn.open(Message("assistant")), 0
            block = _Block(kind, self._message, self._parts)
            self._parts += 1
            item = cast(OpenItem, turn.item(block.index))  # the message is open
            turn.emit(item.at("text", block.part, Text("", extra=extra))[0])
        else:
            self._message_done()
            opened: Item
            match kind:
                case "thinking" | "redacted_thinking":
                    opened = Reasoning(extra=extra)
                case "tool_use":
                    name = fields.get("name")
                    if not isinstance(name, str) or not name:
                        turn.fail(NAMELESS)
                        return
                    opened = FunctionCall(str(fields.get("id") or ""), name, "", extra=extra)
                case _:
                    rest = {name: value for name, value in fields.items() if name != "type"}
                    opened = Unknown(NAME, kind, rest)
            called = isinstance(opened, FunctionCall)
            block = _Block(kind, turn.open(opened), 0, fields.get("input") if called else None)
        self._blocks[number] = block
        given = {name: fields.get(name) for name in ("text", "thinking", "signature")}
        for name, value in given.items():
            if isinstance(value, str) and value:
                self._delta(number, _Delta(**{name: value}))
        cited = fields.get("citations")
        for citation in cited if isinstance(cited, list) else ():
            self._delta(number, _Delta(citation=citation))

    def _delta(self, number: int, delta: _Delta) -> None:
        """A delta of a block. Fields that its item does not have are ignored."""
        turn, block = self._turn, self._blocks.get(number)
        item = None if block is None else turn.item(block.index)
        if block is None or item is None:  # never opened: some servers leave the event out
            thinks = delta.thinking is not None or delta.signature is not None
            calls = delta.partial_json is not None
            self._open(number, {"type": "thinking" if thinks else "tool_use" if calls else "text"})
            if not turn.over:
                self._delta(number, delta)
        elif delta.text:
            turn.write(block.index, "text", delta.text, block.part)
        elif delta.thinking:
            turn.write(block.index, "reasoning", delta.thinking)
        elif delta.partial_json:
            if block.kind == "tool_use":
                turn.write(block.index, "arguments", delta.partial_json)
            else:
                block.json.append(delta.partial_json)
        elif delta.signature:
            block.signature.append(delta.signature)
        elif isinstance(delta.citation, dict) and block.kind == "text":
            turn.emit(item.annotate(decode_citation(delta.citation), block.part))
        elif block.kind == "compaction":  # each delta is whole
            given = {"content": delta.content, "encrypted_content": delta.encrypted_content}
            block.summary |= json.dense(given)

    def _close_stopped(self) -> None:
        if self._stopped is not None:
            self._close(self._stopped)
            self._stopped = None

    def _close(self, number: int, status: ItemStatus = "completed") -> None:
        turn, block = self._turn, self._blocks.pop(number, None)
        item = None if block is None else turn.item(block.index)
        if block is None or item is None:
            return
        if block.kind == "text":
            turn.emit(item.close_part(item.at("text", block.part)[1]))
            return
        if block.signature:
            item.attach_reasoning({NAME: {"signature": "".join(block.signature)}}, None)
        final: Item | None = None
        if block.summary and isinstance(item.empty, Unknown):
            final = replace(item.empty, value={**item.empty.value, **block.summary})
        elif isinstance(item.empty, Unknown) and block.json:
            text = "".join(block.json)
            given: JSON = text
            self._read += len(text)
            if self._read <= json.LARGE:  # else it stays a text: all of it is here at once
                with suppress(ValueError):
                    given = json.load(text)
            final = Unknown(NAME, block.kind, {**item.empty.value, "input": given})
        elif block.input and not item.data.tell():
            turn.write(block.index, "arguments", block.input)
        item.status = status
        turn.close(block.index, final)

    def _message_done(self) -> None:
        """The next block is no text: the message is complete."""
        if self._message is not None:
            self._turn.close(self._message)
            self._message = None

    # ---- the end -------------------------------------------------------------------------

    def _end(self, *, complete: bool = False) -> None:
        turn, head = self._turn, self._head
        if turn.over:
            return
        if not turn.started and (complete or not head):
            turn.fail(EMPTY)
        elif complete or self._reason is not None:
            reason = self._reason or "stop"
            status: ItemStatus = "incomplete" if reason in SHORT else "completed"
            for number in list(self._blocks):
                self._close(number, status)
            if not turn.has_output:
                turn.open(Message("assistant"))
            turn.complete(status, (reason,))
        elif turn.started or sse.may_begin(head):
            turn.fail(CUT)
        else:
            turn.fail(error.decode(200, head))

    def _read_whole(self, data: bytes) -> None:
        try:
            value = json.load(data)
        except ValueError as problem:
            self._turn.fail(error.unreadable(problem))
            return
        content = value.get("content") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(content, list):
            self._fail("an answer that is no message", value)
            return
        self._start(value)
        try:
            inputs = [bytes(block.input).decode() for block in _inputs(data).content]
        except BROKEN:  # half a character, or a block that is no object
            inputs = [""] * len(content)
        for number, (block, given) in enumerate(zip(content, inputs, strict=True)):
            if isinstance(block, dict):
                self._open(number, block)
                if block.get("type") == "tool_use" and block.get("input"):
                    self._delta(number, _Delta(partial_json=given))
                self._stopped = number
        self._stop({name: value.get(name) for name in STOPPED})
        self._end(complete=True)


def _object(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}


def _number(event: dict[str, JSON]) -> int:
    """The number of an event's block; servers that leave it out have one block."""
    return json.whole(event.get("index")) or 0
