"""Hears an answer of this wire: a stream of chunks, or one object where a stream was asked for.

All that is common to streams of chunks stands in `wire.chunked`, what a chunk says in `chunks`;
here are the short cuts through what is commonest in both.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.core.event import Event
from dragoman.core.item import JSON
from dragoman.core.turn import Turn
from dragoman.wire.chunked import ChunkedDecoder

from .chunks import Reader
from .envelope import Envelope, learn
from .plain import read_answer

FIRST = 512
"""How many bytes of a long read are looked at for what its chunks have in common."""


class Decoder(ChunkedDecoder):
    """Hears one answer into a turn, in pieces of any size."""

    def __init__(self, turn: Turn) -> None:
        self._reader = Reader(turn)
        super().__init__(turn, self._reader)
        self._envelope: Envelope | None = None  # of the last chunk, if it said one thing only
        self._running = False  # whether chunks in that envelope are being read, and by us
        self._rest = b""  # behind them: the beginning of another one
        self._say: Callable[[list[str]], None] = turn.texts  # with the strings that follow in it

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        if self._running and not self._rest and self._envelope is not None:
            alone = self._envelope.open_alone(data)
            if alone:
                self._say([alone])
                return self._turn.take()
        events: list[Event] = []
        size = FIRST
        while data:
            if self._envelope is not None and (self._running or self._begin_run()):
                run, data = self._envelope.open_run(self._rest + data)
                self._rest = b""
                if run:
                    self._say(run)
                if len(data) < FIRST and b"\n\n" not in data and b"\r" not in data:
                    self._rest = data  # nothing, or the beginning of one that may be like them
                    break
                if run:
                    continue
            self._running = False
            # Some of it the long way, for it may show what is around all strings that follow.
            end = data.find(b"\n\n", size) + 2
            size *= 2
            some, data = (data[:end], data[end:]) if end > 1 else (data, b"")
            events += super().feed(some)
        return events + self._turn.take()

    def _begin_run(self) -> bool:
        """Take over what is held of an event, for it may be one of a run."""
        held = self._sse.release(FIRST)
        self._running, self._rest = held is not None, held or b""
        return self._running

    def close(self) -> list[Event]:
        """No more bytes will come: the answer ends now, as what it is."""
        rest, self._rest = self._rest, b""
        return (super().feed(rest) if rest else []) + super().close()

    def _hear(self, events: list[tuple[str, bytes]]) -> None:
        for name, data in events:
            envelope = self._envelope
            if envelope is not None and not name and (said := envelope.open(data)):
                self._say([said])
            else:
                self._event(name, data)

    def _event(self, name: str, data: bytes) -> None:
        self._envelope = None
        super()._event(name, data)

    def _value(self, name: str, value: dict[str, JSON], data: bytes) -> None:
        super()._value(name, value, data)
        if not (self._said or self._turn.over) and (envelope := learn(data, value)):
            self._envelope, self._say = envelope, self._reader.saying(envelope)

    def _read_whole(self, data: bytes) -> None:
        if not read_answer(data, self._turn):
            super()._read_whole(data)
