"""The in-process transport: the official SDK over an engine, with no port and true streaming."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from fractions import Fraction
from typing import Any

import httpx2
import openai
import pytest

from dragoman.core.error import Fault
from dragoman.core.event import Delta, Failed, ItemDone, PartDone
from dragoman.core.interfaces import Engine, Secret
from dragoman.core.item import Message, Text, Token
from dragoman.core.request import Request
from dragoman.engines.script import Script
from dragoman.server.app import App
from dragoman.server.responder import MANY_TOKENS
from dragoman.server.settings import Settings
from dragoman.server.testing import transport
from tests.server.stubs import FINISHED, OPENING, Call, Stub, asking, closing, saying, word

BASE = "http://dragoman/v1"
HELLO: Any = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def client(stub: Stub, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx2.AsyncClient(transport=transport(stub, **options))
    sdk = openai.AsyncOpenAI(base_url=BASE, api_key="mine", http_client=http, max_retries=0)
    async with sdk:
        yield sdk


@contextmanager
def sync_client(stub: Engine) -> Iterator[openai.OpenAI]:
    http = httpx2.Client(transport=transport(stub))
    with openai.OpenAI(base_url=BASE, api_key="mine", http_client=http, max_retries=0) as sdk:
        yield sdk


async def test_whole_answers_over_both_wires() -> None:
    stub = Stub(*saying("Hello", ", world"))
    async with client(stub) as sdk:
        chat = await sdk.chat.completions.create(model="stub", messages=HELLO)
        assert chat.choices[0].message.content == "Hello, world"
        response = await sdk.responses.create(model="stub", input="Hi")
        assert response.output_text == "Hello, world"
        assert [model.id async for model in sdk.models.list()] == ["stub"]
    key = stub.asked[0][1].key
    assert key.reveal() == "mine"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_engine_that_would_end_the_loop_fails_its_request_alone(kind) -> None:
    def answer(request: Request) -> str:
        if request.items == (Message("user", "Leave"),):
            raise kind
        return "Hello"

    with sync_client(Script(answer)) as sdk:
        with pytest.raises(openai.InternalServerError, match=kind.__name__):
            sdk.with_options(timeout=20).responses.create(model="m", input="Leave")
        assert sdk.responses.create(model="m", input="Hi").output_text == "Hello"


async def test_streams_come_as_the_engine_speaks_and_not_at_the_end() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    cues = [cue for gate in gates for cue in (gate, word("x"))]
    async with client(Stub(*OPENING, *cues, *closing("xxx"))) as sdk:
        stream = await sdk.responses.create(model="stub", input="Hi", stream=True)
        heard = 0
        gates[0].set()
        async for event in stream:
            if event.type == "response.output_text.delta":
                heard += 1
                if heard < 3:
                    gates[heard].set()
        assert heard == 3


async def test_errors_are_the_sdks_own() -> None:
    fault = Fault("upstream_refused", "Slow down.", "upstream", status=429, retry_after="3")
    async with client(Stub(Failed(fault))) as sdk:
        with pytest.raises(openai.RateLimitError) as caught:
            await sdk.responses.create(model="stub", input="Hi")
        assert caught.value.response.headers["retry-after"] == "3"
        with pytest.raises(openai.NotFoundError):
            await sdk.models.retrieve("none")
    async with client(Stub(), settings=Settings(keys=(Secret("other"),))) as sdk:
        with pytest.raises(openai.AuthenticationError):
            await sdk.models.list()


async def test_an_answer_may_have_no_body() -> None:
    settings = Settings(cors_origins=("https://app.example",))
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    async with httpx2.AsyncClient(transport=transport(Stub(), settings=settings)) as http:
        answer = await http.options(f"{BASE}/responses", headers=headers)
    assert (answer.status_code, answer.content) == (204, b"")


async def test_closing_a_stream_stops_the_engine() -> None:
    stub = Stub(*OPENING, word("a"), asyncio.Event())
    async with client(stub) as sdk:
        stream = await sdk.responses.create(model="stub", input="Hi", stream=True)
        await anext(aiter(stream))
        assert stub.running == 1
        await stream.close()
        assert stub.cancelled.is_set()
        assert not stub.running


@pytest.mark.parametrize("streamed", [False, True])
async def test_cancelling_a_request_stops_the_engine(streamed) -> None:
    stub = Stub(asyncio.Event())
    async with client(stub) as sdk:
        task = asyncio.create_task(sdk.responses.create(model="stub", input="Hi", stream=streamed))
        await stub.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stub.cancelled.is_set()


async def test_a_reader_that_lags_holds_the_engine_back() -> None:
    stub = Stub(
        *OPENING, *[cue for _ in range(500) for cue in (word("x" * 1000), 0)], *closing("x")
    )
    async with client(stub) as sdk:
        stream = await sdk.responses.create(model="stub", input="Hi", stream=True, store=False)
        await asyncio.sleep(0.1)
        assert stub.running == 1  # far from its end
        assert len([event async for event in stream]) > 500


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_time_out_of_the_client_holds(streamed) -> None:
    stub = Stub(*(OPENING if streamed else ()), asyncio.Event())
    async with client(stub) as sdk:
        asked = sdk.with_options(timeout=0.05).responses.create
        with pytest.raises(openai.APITimeoutError):
            answer = await asked(model="stub", input="Hi", stream=streamed)
            _ = [event async for event in answer]
        assert stub.cancelled.is_set()


async def test_an_answer_that_breaks_off_is_an_error() -> None:
    settings = Settings(stall=0.01, heartbeat=0.01)
    stub = Stub(
        *OPENING, *[cue for _ in range(500) for cue in (word("x" * 1000), 0)], *closing("x")
    )
    async with httpx2.AsyncClient(transport=transport(stub, settings=settings)) as http:
        body = asking("responses", stream=True, store=False)
        request = http.build_request("POST", f"{BASE}/responses", json=body)
        answer = await http.send(request, stream=True)
        await stub.ended.wait()
        with pytest.raises(httpx2.RemoteProtocolError, match="broke off"):
            await answer.aread()
        await answer.aclose()


def test_the_sync_client_streams_too() -> None:
    heard: list[str] = []

    class Listening(Stub):
        async def stream(self, request, caller=None):
            for event in (*OPENING, word("a")):
                yield event
            while request.stream and not heard:
                await asyncio.sleep(0.001)
            for event in (word("b"), *closing("ab")):
                yield event

    with sync_client(Listening()) as sdk:
        assert sdk.responses.create(model="stub", input="Hi").output_text == "ab"
        for event in sdk.responses.create(model="stub", input="Hi", stream=True):
            if event.type == "response.output_text.delta":
                heard.append(event.delta)
    assert heard == ["a", "b"]


def test_the_sync_client_stops_the_engine_by_closing() -> None:
    stub = Stub(*OPENING, word("a"), 60, *closing("a"))
    with sync_client(stub) as sdk:
        stream = sdk.responses.create(model="stub", input="Hi", stream=True)
        next(iter(stream))
        stream.close()
        assert stub.cancelled.is_set()
        assert not stub.running


def test_closing_a_client_that_was_never_used_is_nothing() -> None:
    with sync_client(Stub()):
        pass


def test_missing_httpx2_is_reported_with_its_install_command(monkeypatch) -> None:
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "dragoman.server.testing")
    with pytest.raises(ImportError, match="pip install openai"):
        importlib.import_module("dragoman.server.testing")


@pytest.mark.parametrize("end", ["read", "stopped", "gone"])
async def test_a_body_with_many_log_probabilities_is_made_in_a_thread(end, monkeypatch) -> None:
    tokens = (Token("a", -1.0),) * (MANY_TOKENS + 1)
    part = Text("a" * len(tokens), tokens=tokens)
    done = ItemDone(0, Message("assistant", (part,), id="msg_0", status="completed"))
    said = (*OPENING, Delta(0, 0, "text", part.text, tokens), PartDone(0, 0, part), done, FINISHED)
    to_thread, gate, apart = asyncio.to_thread, asyncio.Event(), asyncio.Event()

    async def held(work: Any, *given: Any) -> Any:
        apart.set()
        await gate.wait()
        if end == "stopped":
            raise ValueError("no body")
        return await to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", held)
    call = Call(App(Stub(*said), Settings()), body=asking(logprobs=True))
    asked = asyncio.ensure_future(call())
    await apart.wait()
    assert not call.sent
    if end == "gone":
        call.hang_up()
        await asked
    gate.set()
    await asked
    if end == "read":
        assert len(call.json["choices"][0]["logprobs"]["content"]) == len(tokens)
    elif end == "stopped":
        assert (call.status, call.code) == (500, "internal_error")
    else:
        await asyncio.sleep(0.01)
        assert not call.sent


async def test_a_client_of_httpx_is_told_that_the_transport_is_for_httpx2() -> None:
    given: Any = Fraction(1)  # of another library
    made = transport(Stub())
    with pytest.raises(TypeError, match=r"client of httpx2, and was given a fractions\.Fraction"):
        await made.handle_async_request(given)
    with pytest.raises(TypeError, match="client of httpx2"):
        made.handle_request(given)
