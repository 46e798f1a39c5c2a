"""Any callable as an engine: its kinds, what it may give, and how it is given up."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest

from dragoman.core.event import Failed
from dragoman.core.interfaces import Capabilities, Model
from dragoman.core.item import FunctionCall
from dragoman.engines.function import Function
from tests.engines.stage import ASKED, answered, heard, others

HALF: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}
REST: dict[str, Any] = {
    "choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]
}
WHOLE: dict[str, Any] = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}


class Chunk:
    """A chunk as client libraries have it."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return self._value


class Source:
    """What a client library's method returns: iterable once, and to be closed."""

    def __init__(self, pieces: list[Any]) -> None:
        self._pieces = pieces
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        yield from self._pieces

    def close(self) -> None:
        self.closed.set()


class AsyncSource(Source):
    """The same, asynchronous."""

    __iter__ = None

    async def __aiter__(self) -> AsyncIterator[Any]:
        for piece in self._pieces:
            yield piece

    async def close(self) -> None:
        self.closed.set()


def texts(messages: list[dict[str, Any]], **rest: Any) -> Iterator[str]:
    yield messages[-1]["content"]
    yield f" ({rest['model']})"


async def async_texts(messages: list[dict[str, Any]], **rest: Any) -> AsyncIterator[str]:
    for text in texts(messages, **rest):
        yield text


def chunks(**asked: Any) -> Iterator[Any]:
    yield HALF
    yield Chunk(REST)


async def async_chunks(**asked: Any) -> AsyncIterator[Any]:
    yield Chunk(HALF)
    yield REST


async def method(**asked: Any) -> AsyncSource:
    return AsyncSource([HALF, REST])


async def whole(**asked: Any) -> dict[str, Any]:
    return WHOLE


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (texts, "Hello! (script)"),
        (async_texts, "Hello! (script)"),
        (lambda **asked: "Hello", "Hello"),
        (lambda **asked: ["Hel", "lo"], "Hello"),
        (chunks, "Hello"),
        (async_chunks, "Hello"),
        (method, "Hello"),
        (lambda **asked: method(**asked), "Hello"),
        (lambda **asked: Source([HALF, REST]), "Hello"),
        (whole, "Hello"),
        (lambda **asked: Chunk(WHOLE), "Hello"),
    ],
)
async def test_any_kind_of_callable_answers(answer: Callable[..., Any], text: str) -> None:
    response = await answered(Function(answer))
    assert (response.text, response.status) == (text, "completed")


async def test_usage_and_calls_come_through() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}
    said = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    response = await answered(Function(lambda **asked: {**WHOLE, **said}))
    assert [(c.name, c.arguments) for c in response.calls if isinstance(c, FunctionCall)] == [
        ("f", '{"a":1}')
    ]
    assert response.usage is not None
    assert response.usage.input_tokens == 3


async def test_the_request_is_asked_as_a_chat_client_asks() -> None:
    seen: dict[str, Any] = {}

    def answer(**asked: Any) -> str:
        seen.update(asked)
        return "ok"

    await heard(Function(answer))
    assert (seen["model"], seen["stream"]) == ("script", True)
    assert seen["messages"] == [{"role": "user", "content": "Hello!"}]


async def test_chunks_that_stop_without_a_reason_were_cut() -> None:
    for answer in (lambda **asked: [HALF], lambda **asked: []):
        last = (await heard(Function(answer)))[-1]
        assert isinstance(last, Failed)
    assert (await answered(Function(lambda **asked: [HALF]))).text == "Hel"


class Refused(Exception):
    """An error as client libraries raise it."""

    def __init__(self, status: int, body: Any = None, headers: Any = None) -> None:
        super().__init__("canary-key")
        self.status_code = status
        self.body = body
        self.response = type("R", (), {"headers": headers})() if headers else None


async def fault_of(error: Exception) -> Any:
    def answer(**asked: Any) -> str:
        raise error

    (failed,) = await heard(Function(answer))
    assert isinstance(failed, Failed)
    assert "canary-key" not in repr(failed)
    return failed.fault


async def test_r1_w12_a_refusal_keeps_status_words_and_when_to_come_back() -> None:
    body = {"message": "slow down", "code": "busy"}
    fault = await fault_of(Refused(429, body, {"retry-after": "7"}))
    assert (fault.code, fault.status, fault.retry_after) == ("upstream_refused", 429, "7")
    assert (fault.message, fault.upstream_code) == ("slow down", "busy")
    assert (await fault_of(Refused(503))).status == 503
    assert (await fault_of(Refused(401, body))).code == "upstream_authentication"


async def test_p45_other_exceptions_are_told_by_type_only() -> None:
    message = (await fault_of(ValueError("canary-key"))).message
    assert message.startswith("The engine failed with ValueError;")
    assert "canary" not in message
    assert (await fault_of(Refused(200))).code == "internal"


async def test_what_is_no_answer_is_a_fault_that_says_so() -> None:
    assert "NoneType" in (await answered(Function(lambda **asked: None))).error.message
    wrong = await answered(Function(lambda **asked: [3]))
    assert wrong.error is not None
    assert wrong.error.code == "internal"


async def test_r1_w1_a_function_that_blocks_does_not_stop_the_loop() -> None:
    release, names = threading.Event(), []

    def answer(**asked: Any) -> Iterator[str]:
        names.append(threading.current_thread().name)
        release.wait()
        yield "Hello"

    waiting = asyncio.ensure_future(answered(Function(answer)))
    while not names:
        await asyncio.sleep(0.001)
    assert not waiting.done()  # and the loop runs, for this line is reached
    release.set()
    assert (await waiting).text == "Hello"
    assert names[0].startswith("dragoman-function")


@pytest.mark.parametrize("kind", [Source, AsyncSource])
async def test_closing_an_answer_closes_its_source(kind: type[Source]) -> None:
    source = kind([HALF, REST])
    events = Function(lambda **asked: source).stream(ASKED)
    await anext(events)
    await events.aclose()
    assert await asyncio.to_thread(source.closed.wait, 10)
    assert not others()


async def test_giving_up_closes_a_generator_as_soon_as_it_can_be() -> None:
    release, closed, reached = threading.Event(), threading.Event(), threading.Event()

    def answer(**asked: Any) -> Iterator[str]:
        try:
            yield "Hel"
            reached.set()
            release.wait()
            yield "lo"
        finally:
            closed.set()

    reading = asyncio.ensure_future(answered(Function(answer)))
    await asyncio.to_thread(reached.wait, 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not closed.is_set()
    release.set()
    assert await asyncio.to_thread(closed.wait, 10)


async def test_giving_up_cancels_what_is_asynchronous_at_once() -> None:
    started, closed = asyncio.Event(), []

    async def answer(**asked: Any) -> AsyncIterator[str]:
        try:
            started.set()
            await asyncio.Event().wait()
            yield "never"
        finally:
            closed.append(True)

    reading = asyncio.ensure_future(answered(Function(answer)))
    await started.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert closed == [True]


async def test_a_function_says_what_it_was_told_to() -> None:
    engine = Function(texts, models=("a", "b"))
    assert await engine.models() == (Model("a"), Model("b"))
    assert await engine.capabilities("a") == Capabilities()
    await engine.close()


async def test_the_official_client_object_is_an_engine() -> None:
    def serve(request: httpx2.Request) -> httpx2.Response:
        data = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"}}]}\n\n'
        data += b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, content=data + b"data: [DONE]\n\n"
        )

    transport = httpx2.MockTransport(serve)
    client = openai.AsyncOpenAI(
        api_key="none", base_url="http://test", http_client=httpx2.AsyncClient(transport=transport)
    )
    engine = Function(client.chat.completions.create)
    assert (await answered(engine)).text == "Hello"
    await client.close()


@pytest.mark.parametrize("kind", [Source, AsyncSource])
async def test_a_call_given_up_before_it_returns_closes_what_it_returns(
    kind: type[Source],
) -> None:
    release, called, source = threading.Event(), threading.Event(), kind([HALF, REST])

    def answer(**asked: Any) -> Source:
        called.set()
        release.wait(10)
        return source

    reading = asyncio.ensure_future(answered(Function(answer)))
    assert await asyncio.to_thread(called.wait, 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not source.closed.is_set()
    release.set()
    assert await asyncio.to_thread(source.closed.wait, 10)


async def test_a_call_given_up_may_still_raise_or_give_what_needs_no_closing() -> None:
    for end in (RuntimeError("late"), None):
        release, called, done = threading.Event(), threading.Event(), threading.Event()
        before = set(threading.enumerate())

        def answer(
            called: threading.Event = called,
            release: threading.Event = release,
            done: threading.Event = done,
            end: Exception | None = end,
            **asked: Any,
        ) -> str:
            called.set()
            release.wait(10)
            done.set()
            if end is not None:
                raise end
            return "late"

        reading = asyncio.ensure_future(answered(Function(answer)))
        assert await asyncio.to_thread(called.wait, 10)
        (thread,) = (
            t for t in set(threading.enumerate()) - before if t.name.startswith("dragoman-function")
        )
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        release.set()
        await asyncio.to_thread(thread.join, 10)
        assert done.is_set()
        assert not thread.is_alive()
