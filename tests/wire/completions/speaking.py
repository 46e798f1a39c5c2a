"""Short ways to write raw completions down: as chunks, as bytes, and as what was heard."""

import json
from typing import Any

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed
from dragoman.core.fold import fold, unfold
from dragoman.core.lifecycle import check
from dragoman.core.request import Completion, Sampling, StreamOptions
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from dragoman.wire.completions import COMPLETIONS
from dragoman.wire.protocol import STANDARD
from dragoman.wire.sse import SSEDecoder

DONE = b"data: [DONE]\n\n"
UPSTREAM = {"id": "up-1", "object": "text_completion", "created": 7, "model": "raw"}
ASKED = Completion(model="m", prompts=("Once",), stream=True)
ALL = Completion(
    model="m",
    prompts=("Once",),
    stream=True,
    stream_options=StreamOptions(include_usage=True),
    sampling=Sampling(logprobs=True, top_logprobs=2),
)


def chunk(text: Any = "", finish: Any = None, **more: Any) -> dict[str, Any]:
    """A chunk with one choice; `more` are further fields of the choice."""
    return {**UPSTREAM, "choices": [{"text": text, "index": 0, "finish_reason": finish, **more}]}


def sse(*chunks: Any, done: bool = True) -> bytes:
    """The chunks as a stream; bytes stand as the data they are."""
    data = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in chunks]
    return b"".join(b"data: " + each + b"\n\n" for each in data) + (DONE if done else b"")


def hear(*pieces: bytes, id: str = "R", created_at: int = 5) -> list[Event]:
    """The events of an answer that came in these pieces; they are legal, or the test fails."""
    decoder = COMPLETIONS.decoder(Turn(id, created_at, "m", think=None))
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    check(events)
    assert decoder.ended
    return events


def heard(*chunks: Any, done: bool = True) -> Response:
    """The answer that these chunks add up to."""
    return fold(hear(sse(*chunks, done=done)))


def failed(*pieces: bytes) -> Fault:
    """The fault with which an answer ends."""
    last = hear(*pieces)[-1]
    assert isinstance(last, Failed), last
    return last.fault


def told(response: Response, completion: Completion = ALL) -> bytes:
    """An answer, said as a stream."""
    encoder = COMPLETIONS.encoder(completion, STANDARD)
    return b"".join(encoder.feed((event,)) for event in unfold(response))


def events(stream: bytes) -> list[Any]:
    """The data of a stream."""
    decoder = SSEDecoder()
    found = [data for _, data in decoder.feed(stream) + decoder.close()]
    return [each if each == b"[DONE]" else json.loads(each) for each in found]
