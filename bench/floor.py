"""The floor: the least a Python gateway can do that reads what it passes on.

`python -m bench.floor PORT UPSTREAM_PORT` decodes Chat Completions into typed structs and encodes
them again, both ways, on httptools, uvloop and msgspec with pooled upstream connections. It has no
routes, keys, errors, limits, cancellation or backpressure, and drops fields it does not know: what
a real gateway adds is measured against it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
import msgspec
import uvloop
from msgspec import UNSET, Raw, Struct, UnsetType

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
ASK = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
)
LAST = b"0\r\n\r\n"


class Function(Struct):
    name: str
    description: str | UnsetType = UNSET
    parameters: Raw | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class Tool(Struct):
    function: Function
    type: str = "function"
    id: str | UnsetType = UNSET


class Part(Struct):
    type: str
    text: str | UnsetType = UNSET


class Message(Struct, omit_defaults=True):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[Tool] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    refusal: str | None = None


class Request(Struct):
    model: str
    messages: list[Message]
    stream: bool = False
    temperature: float | UnsetType = UNSET
    max_completion_tokens: int | UnsetType = UNSET
    tools: list[Tool] | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET


class Delta(Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: Raw | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: Delta
    finish_reason: str | None = None


class Choice(Struct):
    index: int
    message: Message
    finish_reason: str | None = None


class Chunk(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Raw | UnsetType = UNSET


class Completion(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Raw | UnsetType = UNSET


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(Request).decode
decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_completion = msgspec.json.Decoder(Completion).decode
idle: list[Upstream] = []


class Client(asyncio.Protocol):
    """A connection of a client: one request at a time."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        body, self.body = b"".join(self.body), []
        if not body:  # someone wants to know whether it is up
            self.transport.write(JSON_HEAD % (2, b"{}"))
            return
        request = decode_request(body)
        data = encode(request)
        if idle:
            idle.pop().ask(self, data, request.stream)
        else:
            opening = asyncio.ensure_future(self.open(data, request.stream))
            opening.add_done_callback(asyncio.Task.result)

    async def open(self, data: bytes, stream: bool) -> None:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(Upstream, "127.0.0.1", int(sys.argv[2]))
        upstream.ask(self, data, stream)


class Upstream(asyncio.Protocol):
    """A connection to the model server: a read of it becomes one write to the client."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)

    def ask(self, client: Client, data: bytes, stream: bool) -> None:
        self.client, self.stream = client.transport, stream
        self.body: list[bytes] = []
        self.rest, self.over, self.begun = b"", False, False
        self.transport.write(ASK % (len(data), data))

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        if self.stream:
            self.pass_on(b"".join(self.body))
            self.body = []
        elif self.over:
            answer = encode(decode_completion(b"".join(self.body)))
            self.client.write(JSON_HEAD % (len(answer), answer))
        if self.over:
            self.over = False
            idle.append(self)

    def pass_on(self, body: bytes) -> None:
        *events, self.rest = (self.rest + body).split(b"\n\n")
        out = [] if self.begun else [SSE_HEAD]
        self.begun = True
        for event in events:
            data = event[6:]
            if data != b"[DONE]":
                data = encode(decode_chunk(data))
            out.append(b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data))
        if self.over:
            out.append(LAST)
        self.client.write(b"".join(out))

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.over = True


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Client, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
