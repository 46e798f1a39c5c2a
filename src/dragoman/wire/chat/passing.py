"""Watches a streamed answer that passes through as it is: where its events end, and how it ends.

Nothing is decoded on the way. The last of what passed is kept, and looked into when the stream is
over: whether it came to its end, and what it counted. What is done with the bytes is known
elsewhere.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Finished
from dragoman.core.item import JSON
from dragoman.core.request import Request
from dragoman.core.response import Status
from dragoman.wire import body, sse
from dragoman.wire.dialect import Dialect

from . import finish, known, usage

LAST = 2 * 1024
"""How many bytes are kept of what has passed: the last chunks, with usage among them."""


def passes(request: Request, said: bytes, dialect: Dialect) -> bool:
    """Whether a body says to a server of this dialect what the request, encoded for it, would.

    A name that stands in it twice may mean the one or the other; then it says nothing for sure.
    """
    if dialect.drop or said.count(b'"model"') != 1:
        return False
    return request.max_output_tokens is None or b'"%b"' % dialect.max_tokens.encode() in said


class _Answer(Struct):
    choices: list[msgspec.Raw]
    usage: JSON = None


_answer = msgspec.json.Decoder(_Answer).decode


def whole(said: bytes) -> Finished | None:
    """The end of an answer that came whole, with what it counted; None if it is no answer."""
    try:
        answer = _answer(said)
    except body.BROKEN:
        return None
    return Finished("completed", (), usage.decode(answer.usage)) if answer.choices else None


class Passing:
    """Feed it the bytes of a stream; it gives those that may pass: whole events, unchanged.

    >>> passing = Passing()
    >>> passing.feed(b'data: {"choices":[]}\\n\\ndata: [DO')
    b'data: {"choices":[]}\\n\\n'
    >>> passing.feed(b"NE]\\n\\n"), passing.ended
    (b'data: [DONE]\\n\\n', True)
    """

    def __init__(self) -> None:
        self.ended = False
        self._held = bytearray()  # an event that is not whole yet
        self._last = b""

    def feed(self, data: bytes) -> bytes:
        """The events that are whole now. Raises ValueError for one larger than MAX_EVENT."""
        if self._held or data[-2:] != b"\n\n":
            data = self._whole(data)
        self._last = (self._last + data)[-LAST:]
        if sse.END in data[-20:]:
            self.ended = data[data.rfind(b"data:") + 5 :].strip() == sse.END
        return data

    def close(self, fault: Fault) -> tuple[bytes, Finished | Failed]:
        """No more will come: what is to be said yet, and how the answer ended.

        `fault` is what became of a stream that did not come to its end.
        """
        late = bytes(self._held)
        decoder = sse.SSEDecoder()
        events = [data for _, data in (*decoder.feed(self._last + late), *decoder.close())]
        values = [_loaded(data) for data in events]
        if late and events and (values[-1] or events[-1] == sse.END):
            late += b"\n\n"  # an end without the blank line after it
        else:
            late = b""  # half an event, which would be read as a broken one
        counts = [counted for v in values if (counted := usage.decode(v.get("usage")))]
        counted = counts[-1] if counts else None
        if any(value.get("error") for value in values):  # it has passed, and is the end
            return late, Finished("failed", (), counted)
        reasons = dict(reason for value in values for reason in _reasons(value))
        said = sse.END in events
        if not (said or reasons):
            return late, Failed(fault, counted)
        words = tuple(reasons[number] for number in sorted(reasons))
        short = any(word in ("length", "content_filter") for word in words)
        status: Status = "incomplete" if short else "completed"
        return late + (b"" if said else sse.DONE), Finished(status, words, counted)

    def _whole(self, data: bytes) -> bytes:
        """What is held with the data behind it, up to the last end of an event."""
        held, searched = self._held, max(0, len(self._held) - 3)
        held += data
        end = 0
        for mark in (b"\n\n", b"\r\n\r\n"):
            if (at := held.rfind(mark, searched)) >= 0:
                end = max(end, at + len(mark))
        whole = bytes(held[:end])
        del held[:end]
        if len(held) > sse.MAX_EVENT:
            held.clear()
            raise ValueError(f"an event that is larger than {sse.MAX_EVENT} bytes")
        return whole


def _loaded(data: bytes) -> dict[str, JSON]:
    """The object in the data of an event; an empty one where there is none."""
    try:
        value = body.load(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _reasons(value: dict[str, JSON]) -> list[tuple[int, str]]:
    """The choices that a chunk ends, and why."""
    choices = value.get("choices")
    return [
        (known.number(choice, position), reason)
        for position, choice in enumerate(choices if isinstance(choices, list) else ())
        if isinstance(choice, dict)
        and (reason := finish.decode(choice.get("finish_reason"))) is not None
    ]
