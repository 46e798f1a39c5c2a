"""What a client pays to read a streamed answer: ours against the official SDK's.

Both parse the same bytes from memory; no socket, no server.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

from dragoman.core.turn import Turn
from dragoman.wire.chat import CHAT

CHUNKS = 2000


def _stream() -> bytes:
    frames = []
    for number in range(CHUNKS):
        delta = {"content": f" word{number}"} if number else {"role": "assistant", "content": ""}
        chunk = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1763640000,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}],
        }
        frames.append(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    last = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    frames.append(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    return b"".join(frames)


def _ours(data: bytes, piece: int) -> None:
    decoder = CHAT.decoder(Turn("1", 0, "m"))
    for start in range(0, len(data), piece):
        decoder.feed(data[start : start + piece])
    decoder.close()


def _one_by_one(data: bytes) -> None:
    """Each event in a read of its own, as a server's writes arrive that is not in a hurry."""
    decoder = CHAT.decoder(Turn("1", 0, "m"))
    for frame in data.split(b"\n\n"):
        decoder.feed(frame + b"\n\n")
    decoder.close()


def _theirs(data: bytes) -> None:
    import httpx2
    from openai import OpenAI

    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=data)
    )
    with OpenAI(
        api_key="none", base_url="http://mock/v1", http_client=httpx2.Client(transport=transport)
    ) as client:
        for _ in client.chat.completions.create(model="m", messages=[], stream=True):
            pass


def _per_chunk(work: Callable[[], None], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        times.append((time.process_time() - begun) / CHUNKS * 1e6)
    return statistics.median(times)


def table() -> list[str]:
    """The comparison, as lines of Markdown."""
    data = _stream()
    rows = [
        ("dragoman, all at once", _per_chunk(lambda: _ours(data, 65536), 9)),
        ("dragoman, one chunk a read", _per_chunk(lambda: _one_by_one(data), 9)),
        ("dragoman, in reads that cut chunks", _per_chunk(lambda: _ours(data, 170), 9)),
    ]
    try:
        _theirs(data)
    except ImportError:
        theirs = None
    else:
        theirs = _per_chunk(lambda: _theirs(data), 5)
    lines = ["| reading a streamed chunk | CPU | the SDK takes |", "|---|---|---|"]
    for name, own in rows:
        ratio = f"{theirs / own:.0f} times as much" if theirs else "not installed"
        lines.append(f"| {name} | {own:.2f} us | {ratio} |")
    return lines
