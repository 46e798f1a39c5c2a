"""Decodes Messages answers of a server, streamed and whole, into the events of a turn."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from dragoman.core.error import Fault
from dragoman.core.event import Event
from dragoman.core.item import JSON, FunctionCall, Item, Message, Reasoning, Text, Unknown
from dragoman.core.turn import EMPTY, Turn
from dragoman.wire import error, json, sse
from dragoman.wire.json import ABSENT, BROKEN

from .blocks import NAME, decode_citation, to_extra
from .response import REASONS, STOPPED, decode_usage

_BLANK = b"\xef\xbb\xbf \t\r\n"
_ITSELF = frozenset({"id", "type", "role", "model", "content", "usage", *STOPPED})
"""Fields of a message that we know."""
_KNOWN: dict[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "citations"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
}
"""Fields of a block that we know, or that its item does not keep in its extra."""


class _Delta(Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: JSON = None


class _Event(Struct):
    type: str = ""
    index: int = 0
    delta: JSON = None
    message: JSON = None
    content_block: JSON = None
    usage: JSON = None
    error: JSON = None


class _BlockDelta(Struct):
    """The commonest event by far."""

    type: str
    index: int
    delta: _Delta


class _Input(Struct):
    """A block whose input, if it has one, stays as the model wrote it."""

    input: Raw = ABSENT


class _Inputs(Struct):
    content: list[_Input]


_block_delta = msgspec.json.Decoder(_BlockDelta).decode
_DELTA = b'{"type":"content_block_delta"'


class _Block:
    """A content block that is open: the item it belongs to, and which part of it."""

    __slots__ = ("fields", "index", "json", "kind", "part")

    def __init__(self, kind: str, index: int, part: int, fields: dict[str, JSON]) -> None:
        self.kind = kind
        self.index = index
        self.part = part
        self.fields = fields
        self.json: list[str] = []  # the input of a call, in pieces


class Decoder:
    """Decodes one answer into a turn, from pieces of any size."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._sse: sse.SSEDecoder | None = None  # of an answer that is a stream
        self._whole: bytearray | None = None  # an answer that is one JSON value
        self._head = b""  # the first bytes, to be quoted where they make no sense
        self._blocks: dict[int, _Block] = {}  # those that are open, by their number
        self._message: int | None = None  # the item that texts in a row belong to
        self._parts = 0  # of that item
        self._usage: dict[str, JSON] = {}
        self._reason: str | None = None
        self._stopped = False  # `message_stop` was read

    @property
    def ended(self) -> bool:
        """True once the answer is over."""
        return self._stopped or self._turn.over

    # ---- bytes ---------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        turn = self._turn
        if self._sse is None and self._whole is None:
            # The first bytes show whether this is a stream or one JSON value; blanks are skipped.
            data = data.lstrip(_BLANK)
            if data[:1] in (b"{", b"["):
                self._whole = bytearray()
            elif data:
                self._sse = sse.SSEDecoder()
        if len(self._head) < error.SHOWN:
            self._head = (self._head + data)[: error.SHOWN]
        if turn.over:
            return turn.take()
        if self._whole is not None:
            self._whole += data
            if len(self._whole) > json.MAX_ANSWER:
                self._fail(f"The model's server sent more than {json.MAX_ANSWER} bytes.")
        elif self._sse is not None:
            try:
                for _, each in self._sse.feed(data):
                    self._event(each)
            except ValueError as problem:
                self._fail(f"The model's server sent {problem}.")
        return turn.take()

    def close(self) -> list[Event]:
        """No more bytes will come: the answer ends now, as what it is."""
        turn = self._turn
        if self._whole is not None and not turn.over:
            self._read_whole(bytes(self._whole))
        elif not turn.over:
            for _, each in self._sse.close() if self._sse else ():
                self._event(each, last=True)
            if not turn.started and self._head:
                fault = error.decode(0, self._head)
                turn.fail(fault)
            self._end(complete=self._stopped)
        return turn.take()

    def _fail(self, message: str) -> None:
        self._turn.fail(Fault("upstream_error", message, "upstream"))

    # ---- a stream ------------------------------------------------------------------------

    def _event(self, data: bytes, *, last: bool = False) -> None:
        turn = self._turn
        if turn.over:
            return
        if data.startswith(_DELTA):
            try:
                found = _block_delta(data)
            except BROKEN:  # half a character, or a shape of its own
                pass
            else:
                self._delta(found.index, found.delta)
                return
        try:
            value = json.load(data)
            event = msgspec.convert(value, _Event)
        except (ValueError, msgspec.ValidationError):
            if not last and turn.started:  # half an event at the end is a cut
                self._fail("The model's server sent an event that is no event of this protocol.")
            return
        match event.type:
            case "content_block_delta":
                try:
                    delta = msgspec.convert(event.delta, _Delta)
                except msgspec.ValidationError:
                    return
                self._delta(event.index, delta)
            case "message_start":
                self._start(event.message if isinstance(event.message, dict) else {})
            case "content_block_start":
                block = event.content_block
                self._open(event.index, block if isinstance(block, dict) else {})
            case "content_block_stop":
                self._close(event.index)
            case "message_delta":
                self._count(event.usage)
                if isinstance(event.delta, dict):
                    self._stop(event.delta)
            case "message_stop":
                self._stopped = True
                self._end(complete=True)
            case "error" | "":
                fault = error.describe(value)
                if fault is not None:
                    turn.fail(fault)

    def _start(self, message: dict[str, JSON]) -> None:
        self._count(message.get("usage"))
        model, id = message.get("model"), message.get("id")
        rest = {k: v for k, v in message.items() if k not in _ITSELF and v is not None}
        extra = to_extra(rest) or {}
        if isinstance(id, str) and id:
            extra["upstream"] = {"id": id}
        self._turn.header(model if isinstance(model, str) and model else None, extra)

    def _count(self, usage: JSON) -> None:
        """Counts grow; those at the end complete those at the beginning."""
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}
            self._turn.usage = decode_usage(self._usage)

    def _stop(self, delta: dict[str, JSON]) -> None:
        """Why the answer ended; what our own reasons do not tell stays in the extra."""
        given = {name: value for name, value in delta.items() if value is not None}
        if isinstance(reason := given.get("stop_reason"), str):
            self._reason = REASONS.get(reason, "stop")
            if reason in ("end_turn", "max_tokens", "tool_use", "refusal"):
                del given["stop_reason"]
        if given:
            self._turn.header(extra={NAME: given})

    # ---- blocks --------------------------------------------------------------------------

    def _open(self, number: int, fields: dict[str, JSON]) -> None:
        turn, kind = self._turn, str(fields.get("type"))
        if number in self._blocks:
            self._close(number)
        rest = {k: v for k, v in fields.items() if k not in _KNOWN.get(kind, ()) and v is not None}
        extra = to_extra(rest)
        if kind == "text":
            if self._message is None:
                self._message, self._parts = turn.open(Message("assistant")), 0
            block = _Block(kind, self._message, self._parts, fields)
            self._parts += 1
            self._blocks[number] = block
            item = turn.item(block.index)
            if item is not None:
                turn.emit(item.at("text", block.part, Text("", extra=extra))[0])
            self._text(block, fields.get("text"))
            listed = fields.get("citations")
            for citation in listed if isinstance(listed, list) else ():
                self._cite(block, citation)
            return
        self._message_done()
        opened: Item
        match kind:
            case "thinking" | "redacted_thinking":
                opened = Reasoning(extra=extra)
            case "tool_use":
                id, name = str(fields.get("id") or ""), str(fields.get("name") or "")
                opened = FunctionCall(id, name, "", extra=extra)
            case _:
                self._blocks[number] = _Block(kind, -1, 0, fields)
                return
        block = self._blocks[number] = _Block(kind, turn.open(opened), 0, fields)
        if kind == "thinking":
            self._think(block, fields.get("thinking"))
            self._sign(block, fields.get("signature"))

    def _delta(self, number: int, delta: _Delta) -> None:
        block = self._blocks.get(number)
        if block is None:  # never opened, as servers that are nearly right do
            kind = "thinking" if delta.thinking is not None else "text"
            self._open(number, {"type": kind})
            block = self._blocks[number]
        if delta.text is not None:
            self._text(block, delta.text)
        elif delta.partial_json is not None:
            if block.kind == "tool_use" and delta.partial_json:
                self._turn.write(block.index, "arguments", delta.partial_json)
            block.json.append(delta.partial_json)
        elif delta.thinking is not None:
            self._think(block, delta.thinking)
        elif delta.signature is not None:
            self._sign(block, delta.signature)
        elif delta.citation is not None:
            self._cite(block, delta.citation)

    def _text(self, block: _Block, text: JSON) -> None:
        if isinstance(text, str) and text and block.kind == "text":
            self._turn.write(block.index, "text", text, block.part)

    def _think(self, block: _Block, text: JSON) -> None:
        if isinstance(text, str) and text and block.kind == "thinking":
            self._turn.write(block.index, "reasoning", text)

    def _sign(self, block: _Block, signature: JSON) -> None:
        item = self._turn.item(block.index) if block.kind == "thinking" else None
        if item is not None and isinstance(signature, str) and signature:
            block.fields["signed"] = signature = str(block.fields.get("signed", "")) + signature
            item.attach_reasoning({NAME: {"signature": signature}}, None)

    def _cite(self, block: _Block, citation: JSON) -> None:
        item = self._turn.item(block.index) if block.kind == "text" else None
        if item is not None and isinstance(citation, dict):
            self._turn.emit(item.annotate(decode_citation(citation), block.part))

    def _close(self, number: int) -> None:
        turn, block = self._turn, self._blocks.pop(number, None)
        if block is None:
            return
        if block.kind == "text":
            item = turn.item(block.index)
            if item is not None:
                turn.emit(item.close_part(item.at("text", block.part)[1]))
        elif block.index >= 0:
            if block.kind == "tool_use" and not "".join(block.json):
                given = block.fields.get("input")
                turn.write(block.index, "arguments", json.text(given if given else {}))
            turn.close(block.index)
        else:
            fields = {k: v for k, v in block.fields.items() if k != "type"}
            if block.json:
                try:
                    fields["input"] = json.load("".join(block.json))
                except ValueError:
                    fields["input"] = "".join(block.json)
            turn.close(turn.open(Unknown(NAME, block.kind, fields)))

    def _message_done(self) -> None:
        """What follows is no text: the message is complete."""
        if self._message is not None:
            index, self._message = self._message, None
            if not any(block.index == index for block in self._blocks.values()):
                self._turn.close(index)

    # ---- the end -------------------------------------------------------------------------

    def _end(self, *, complete: bool) -> None:
        turn = self._turn
        if turn.over:
            return
        if self._reason is None and not complete:
            turn.end(complete=False)
            return
        for number in list(self._blocks):
            self._close(number)
        self._message_done()
        reason = self._reason or "stop"
        if not turn.started:
            turn.fail(EMPTY)
        else:
            if not turn.has_output:
                turn.open(Message("assistant"))
            turn.complete(
                "incomplete" if reason in ("length", "content_filter") else "completed", (reason,)
            )

    def _read_whole(self, data: bytes) -> None:
        try:
            value = json.load(data)
        except ValueError as problem:
            self._fail(f"The model's server sent a body that {problem}.")
            return
        if not isinstance(value, dict) or not isinstance(value.get("content"), list):
            fault = error.describe(value)
            if fault is not None:
                self._turn.fail(fault)
            else:
                self._fail("The model's server answered with something that is no message.")
            return
        self._start(value)
        inputs = _inputs(data)
        for number, block in enumerate(value["content"]):
            if isinstance(block, dict):
                self._open(number, block)
                if block.get("type") == "tool_use" and inputs:
                    arguments = bytes(inputs[number].input).decode("utf-8", "replace")
                    self._delta(number, _Delta(partial_json=arguments))
                self._close(number)
        self._stop({name: value.get(name) for name in STOPPED})
        self._stopped = True
        self._end(complete=True)


def _inputs(data: bytes) -> list[_Input]:
    """The inputs of the blocks in a body; none where it is no body of this protocol."""
    try:
        return msgspec.json.decode(data, type=_Inputs).content
    except BROKEN:
        return []
