"""Events as frames: what a stream of server-sent events says, one JSON object at a time.

It knows how our own frames look, and the two fields that only a socket has.
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.error import Fault
from dragoman.wire import body, error

_BLANK_LINE = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"


def frames(said: bytes, lane: str | None) -> Iterator[str]:
    """The events in what an encoder said; comments and `[DONE]` have no frame.

    >>> list(frames(b'event: a\\ndata: {"type":"a"}\\n\\ndata: [DONE]\\n\\n', "1"))
    ['{"type":"a","stream_id":"1"}']
    """
    mark = b"" if lane is None else b',"stream_id":' + body.dump(lane) + b"}"
    for frame in said.split(_BLANK_LINE):
        _, found, data = frame.partition(_DATA)
        if found and data != _DONE:
            yield (data[:-1] + mark if mark else data).decode()


def refusal(fault: Fault, lane: str | None) -> str:
    """The frame that says that a turn failed before it began, or that a frame made no sense.

    Its code is always a string: clients of sockets tell errors apart by it alone, and some know
    no null there. Over HTTP the protocol has null where the type says it all.
    """
    object = error.error_object(fault)
    object["code"] = object["code"] or fault.code
    frame = {"type": "error", "status": error.status(fault), "error": object}
    return body.dump(frame if lane is None else {**frame, "stream_id": lane}).decode()
