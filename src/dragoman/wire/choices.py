"""Decodes answers made of `choices`, streamed and whole, and the sampling values of requests."""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from dragoman.core.error import CUT, Fault
from dragoman.core.event import Event
from dragoman.core.item import JSON
from dragoman.core.request import Sampling
from dragoman.core.turn import EMPTY, Turn

from . import error, json
from .json import Fields
from .sse import END, SSEDecoder


def decode(fields: Fields, *, logprobs: bool | None, top_logprobs: int | None) -> Sampling:
    """The sampling values of a body; those of log-probabilities are given. Raises FaultError
    naming the field that is wrong.

    >>> decode(Fields({"stop": "x", "temperature": 0}), logprobs=None, top_logprobs=None).stop
    ('x',)
    """
    repetition = fields.number("repetition_penalty", 0)
    if repetition is None:
        repetition = fields.number("repeat_penalty", 0)
    chosen = Sampling(
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1),
        top_k=fields.integer("top_k", -1),
        min_p=fields.number("min_p", 0, 1),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        repetition_penalty=repetition,
        seed=fields.integer("seed"),
        stop=stop(fields),
        logit_bias=logit_bias(fields),
        n=fields.integer("n", 1, 128),
    )
    if logprobs is None and top_logprobs is None:
        return chosen
    return replace(chosen, logprobs=logprobs, top_logprobs=top_logprobs)


def stop(fields: Fields) -> tuple[str, ...] | None:
    """The texts that end the answer."""
    match fields.any("stop"):
        case None:
            return None
        case str(one):
            return (one,)
        case list(several) if all(isinstance(each, str) for each in several):
            return tuple(several) or None
        case _:
            raise fields.wrong("stop", "must be a string or an array of strings")


def logit_bias(fields: Fields) -> dict[str, float] | None:
    """What is added to the weight of each token, by its id."""
    given = fields.object("logit_bias")
    if given is None:
        return None
    bias = {token: given.number(token, -100, 100) for token in given.rest()}
    return {token: value for token, value in bias.items() if value is not None}


_BLANK = b"\xef\xbb\xbf \t\r\n"
_FIELDS = (b"data", b"event", b"id", b"retry", b":")
_ERROR = b'{"error"'


class Reader(Protocol):
    """Reads decoded chunks, or whole answers, into a turn. `started` once any was read."""

    started: bool

    def read(self, value: dict[str, JSON]) -> None:
        """One chunk, or one whole answer."""
        ...

    def close(self) -> None:
        """Nothing more will be read."""
        ...


class ChunkedDecoder:
    """Decodes one answer into a turn, from pieces of any size."""

    def __init__(self, turn: Turn, reader: Reader) -> None:
        self._turn = turn
        self._chunks = reader
        self._sse = SSEDecoder()
        self._whole: bytearray | None = None  # an answer that is one JSON value
        self._head = b""  # the first bytes, until a chunk was read
        self._garbled = False  # an event was no JSON object
        self._ended = False  # `[DONE]` was read

    @property
    def ended(self) -> bool:
        """True once the answer is over; usage may still follow."""
        return self._ended or self._turn.over

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        if not self._chunks.started:
            data = self._sniff(data)
        if self._turn.over:
            return []
        if self._whole is not None:
            self._whole += data
            if len(self._whole) > json.MAX_ANSWER:
                self._fail(f"The model's server sent more than {json.MAX_ANSWER} bytes.")
            return self._turn.take()
        try:
            events = self._sse.feed(data)
        except ValueError as problem:
            self._fail(f"The model's server sent {problem}.")
        else:
            self._read_events(events)
        return self._turn.take()

    def close(self) -> list[Event]:
        """No more bytes will come: the answer ends now, as what it is."""
        if not self._turn.over:
            if self._whole is not None:
                self._read_whole(bytes(self._whole))
            else:
                garbled = self._garbled
                for name, data in self._sse.close():
                    self._event(name, data)
                self._garbled = garbled  # half an event is not garbage
                self._end()
        return self._turn.take()

    # ---- a stream ------------------------------------------------------------------------

    def _sniff(self, data: bytes) -> bytes:
        """See by the first bytes whether this is a stream or one JSON value; blanks are skipped."""
        if not self._head:
            data = data.lstrip(_BLANK)
            if data[:1] in (b"{", b"["):
                self._whole = bytearray()
        self._head = (self._head + data)[: error.SHOWN]
        return data

    def _read_events(self, events: list[tuple[str, bytes]]) -> None:
        for name, data in events:
            self._event(name, data)

    def _event(self, name: str, data: bytes) -> None:
        if data == END:
            self._ended = True
            if self._turn.usage is not None:
                self._end()
            return
        if not data.strip():
            return
        try:
            value = json.load(data)
        except ValueError:
            self._repair(name, data)
            return
        if isinstance(value, dict):
            self._value(name, value, data)
        else:
            self._garbled = True

    def _repair(self, name: str, data: bytes) -> None:
        """Not JSON: several events with no blank line between, or an error after half of one."""
        lines = data.split(b"\n")
        at = data.rfind(_ERROR)
        if data.strip() == END:
            self._event(name, END)
        elif len(lines) > 1:
            for line in lines:
                self._event(name, line)
        elif at > 0:
            self._event(name, data[at:])
        else:
            self._garbled = True

    def _value(self, name: str, value: dict[str, JSON], data: bytes) -> None:
        """A chunk; `data` are its bytes."""
        if self._ended:  # nothing but counts is news after the end
            value = {"usage": value.get("usage")}
        elif name == "error" and "error" not in value:
            value = {"error": value}
        self._chunks.read(value)

    def _end(self) -> None:
        self._chunks.close()
        started = self._ended or self._chunks.started
        if not started and not self._head:
            self._turn.fail(EMPTY)
        elif started or (_streamed(self._head) and not self._garbled):
            self._turn.end(complete=self._ended)
        elif self._garbled:
            self._fail("The model's server sent events that are not JSON objects.")
        else:
            self._turn.fail(error.decode(200, self._head))

    # ---- one JSON value ------------------------------------------------------------------

    def _read_whole(self, data: bytes) -> None:
        try:
            value = json.load(data)
        except ValueError as problem:
            if "truncated" in str(problem):
                self._turn.fail(CUT)
            else:
                self._fail(f"The model's server answered with a body that {problem}.")
            return
        fault = _error_of(value)
        if fault is not None:
            self._turn.fail(fault)
        elif missing := _missing(value):
            self._fail(f"The model's server answered with {missing}.")
        else:
            self._chunks.read(value)
            self._chunks.close()
            self._turn.end(complete=True)

    def _fail(self, message: str) -> None:
        self._turn.fail(Fault("upstream_error", message, "upstream"))


def _streamed(head: bytes) -> bool:
    """Whether these first bytes are, or may become, a field of a server-sent event."""
    return any(head.startswith(field) or field.startswith(head) for field in _FIELDS)


def _error_of(value: JSON) -> Fault | None:
    """The fault in a whole answer that has no choices."""
    return None if isinstance(value, dict) and value.get("choices") else error.describe(value)


def _missing(value: JSON) -> str | None:
    """What keeps a JSON value from being an answer."""
    if not isinstance(value, dict):
        return f"{json.kind(value)}, and not with an object"
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices:
        return "no choices"
    if not isinstance(choices[0], dict):
        return f"a choice that is {json.kind(choices[0])}"
    content = (choices[0].get(name) for name in ("message", "delta", "text"))
    if any(isinstance(each, dict | str) for each in content):
        return None
    return "a choice without a message"
