"""Records real answers of llama.cpp, byte for byte, as corpora for decoders and HTTP readers.

Run `python -m tests.upstream.record` to write `recorded/` anew. `NAME.http.txt` is the answer as it
came over the socket, framing included; `NAME.txt` is its body alone. Nothing is edited: ids, times
and timings are those of the day.
"""

import http.client
import io
import json
from pathlib import Path
from typing import Any

from tests.upstream.llamacpp import Llamacpp, run_llamacpp
from training.tiny.transcripts import GET_WEATHER, user

RECORDED = Path(__file__).parent / "recorded"
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
RESPONSES_WEATHER = {"type": "function", **GET_WEATHER["function"], "strict": True}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def chat(text: str, **fields: Any) -> tuple[str, bytes]:
    body = {"model": "tiny-test", "messages": [user(text)], "temperature": 0, **fields}
    return CHAT, json.dumps(body).encode()


def responses(text: str, **fields: Any) -> tuple[str, bytes]:
    body = {"model": "tiny-test", "input": text, "temperature": 0, **fields}
    return RESPONSES, json.dumps(body).encode()


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
WEATHER, BOTH = "What is the weather in Paris?", "What is the weather in Paris and Rome?"
THINK = "Think. What is 2 plus 3?"

CASES: dict[str, tuple[str, bytes | None]] = {
    "chat_text": chat("Hello!"),
    "chat_text_stream": chat("Hello!", stream=True),
    "chat_usage_stream": chat("Hello!", **USAGE),
    "chat_unicode_stream": chat("Send me an emoji.", stream=True),
    "chat_reasoning": chat(THINK),
    "chat_reasoning_stream": chat(THINK, stream=True),
    "chat_call": chat(WEATHER, tools=[GET_WEATHER]),
    "chat_call_stream": chat(WEATHER, tools=[GET_WEATHER], stream=True),
    "chat_two_calls_stream": chat(BOTH, tools=[GET_WEATHER], **USAGE),
    "chat_text_and_call_stream": chat(
        "Say it, then look up the weather in Paris.", tools=[GET_WEATHER], stream=True
    ),
    "chat_logprobs": chat("Hello!", logprobs=True, top_logprobs=2),
    "chat_logprobs_stream": chat("Hello!", logprobs=True, top_logprobs=2, stream=True),
    "chat_length": chat("Count to one hundred.", max_tokens=8),
    "chat_length_stream": chat("Count to one hundred.", max_tokens=8, stream=True),
    "responses_text": responses("Hello!"),
    "responses_text_stream": responses("Hello!", stream=True),
    "responses_reasoning_stream": responses(THINK, stream=True),
    "responses_call": responses(WEATHER, tools=[RESPONSES_WEATHER]),
    "responses_call_stream": responses(WEATHER, tools=[RESPONSES_WEATHER], stream=True),
    "responses_length_stream": responses("Count to one hundred.", max_output_tokens=8, stream=True),
    "error_json": (CHAT, b'{"messages": ['),
    "error_no_messages": (CHAT, b"{}"),
    "error_context": chat("x " * 9000, stream=True),
    "error_image": (
        CHAT,
        json.dumps({"messages": [{"role": "user", "content": [IMAGE]}]}).encode(),
    ),
    "error_responses_empty": (RESPONSES, b"{}"),
    "error_path": ("/v1/nowhere", None),
    "models": ("/v1/models", None),
    "props": ("/props", None),
    "health": ("/health", None),
}


class Replayed:
    """Recorded bytes in place of a socket, for `http.client` to read."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.raw)


def body_of(raw: bytes) -> bytes:
    """Take the body out of a whole HTTP answer, with the framing of its chunks undone."""
    response = http.client.HTTPResponse(Replayed(raw))
    response.begin()
    return response.read()


def record(server: Llamacpp, path: str, body: bytes | None) -> bytes:
    """Ask once and return every byte of the answer until the server closes the connection."""
    with server.open(path, body, close=True) as connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    with run_llamacpp() as server:
        for name, (path, body) in CASES.items():
            raw = record(server, path, body)
            (RECORDED / f"{name}.http.txt").write_bytes(raw)
            (RECORDED / f"{name}.txt").write_bytes(body_of(raw))
            print(name, raw.split(b"\r\n", 1)[0].decode(), len(raw))
    with run_llamacpp(api_key="a-key") as guarded:
        raw = record(guarded, *CASES["chat_text"])
        (RECORDED / "error_key.http.txt").write_bytes(raw)
        (RECORDED / "error_key.txt").write_bytes(body_of(raw))


if __name__ == "__main__":
    main()
