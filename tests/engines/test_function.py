"""Any callable as an engine: its kinds, what it may return, and how it is cancelled."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Failed
from dragoman.core.fold import fold
from dragoman.core.interfaces import Caller, Capabilities, Model
from dragoman.core.request import Request
from dragoman.core.response import Usage
from dragoman.engines import function
from dragoman.engines.base import Prepared, Wrapper
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
async def test_every_kind_of_callable_is_an_engine(answer, text) -> None:
    response = await answered(Function(answer))
    assert (response.text, response.status) == (text, "completed")


async def test_calls_usage_models_and_capabilities() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}
    said = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    engine = Function(lambda **asked: {**WHOLE, **said}, models=("a", "b"))
    response = await answered(engine)
    assert [(c.name, c.arguments) for c in response.calls] == [("f", '{"a":1}')]
    assert response.usage == Usage(input_tokens=3, output_tokens=1)
    assert await engine.models() == (Model("a"), Model("b"))
    assert await engine.capabilities("a") == Capabilities()
    await engine.close()


async def test_callable_gets_the_fields_of_a_chat_request() -> None:
    seen: dict[str, Any] = {}

    def answer(**asked: Any) -> str:
        seen.update(asked)
        return "ok"

    await heard(Function(answer))
    assert (seen["model"], seen["stream"]) == ("script", True)
    assert seen["messages"] == [{"role": "user", "content": "Hello!"}]


async def test_chunks_without_a_finish_reason_are_a_cut() -> None:
    for answer in (lambda **asked: [HALF], lambda **asked: []):
        last = (await heard(Function(answer)))[-1]
        assert isinstance(last, Failed)
    assert (await answered(Function(lambda **asked: [HALF]))).text == "Hel"


async def test_a_call_without_a_finish_reason_is_an_error() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}]
    error = (await answered(Function(lambda **asked: chunks))).error
    assert error is not None
    assert error.code == "upstream_cut"
    assert "The function's chunks ended without a finish_reason" in error.message


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
    assert "canary-key" not in repr(failed)
    return failed.fault


async def test_r1_w12_client_library_error_keeps_status_message_and_retry_after() -> None:
    body = {"message": "slow down", "code": "busy"}
    fault = await fault_of(Refused(429, body, {"retry-after": "7"}))
    assert (fault.code, fault.status, fault.retry_after) == ("upstream_refused", 429, "7")
    assert (fault.message, fault.upstream_code) == ("slow down", "busy")
    assert (await fault_of(Refused(503))).status == 503
    assert (await fault_of(Refused(401, body))).code == "upstream_authentication"


def _unanswered() -> list[tuple[Exception, str]]:
    request = httpx2.Request("POST", "http://canary-key")
    answer = httpx2.Response(429, request=request, headers={"retry-after": "7"})
    return [
        (openai.APITimeoutError(request), "upstream_timeout"),
        (openai.APIConnectionError(message="canary-key", request=request), "upstream_unreachable"),
        (httpx2.ReadTimeout("canary-key"), "upstream_timeout"),
        (httpx2.RemoteProtocolError("canary-key"), "upstream_unreachable"),
        (
            httpx2.HTTPStatusError("canary-key", request=request, response=answer),
            "upstream_refused",
        ),
        (TimeoutError(), "upstream_timeout"),
        (ConnectionResetError("canary-key"), "upstream_unreachable"),
    ]


@pytest.mark.parametrize(("error", "code"), _unanswered())
async def test_an_error_of_a_client_library_without_an_answer_is_the_servers(error, code) -> None:
    fault = await fault_of(error)
    assert fault.code == code
    assert fault.retry_after == ("7" if code == "upstream_refused" else None)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ({"message": "long", "code": "context_length_exceeded"}, ("upstream_refused", "long", 400)),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "full"}},
            ("upstream_refused", "full", 529),
        ),
    ],
)
async def test_an_error_amid_a_stream_of_a_client_library_is_told_as_it_is(error, told) -> None:
    request = httpx2.Request("POST", "http://localhost")
    for raised in (openai.APIError("canary-key", request, body=error), Refused(200, error)):
        fault = await fault_of(raised)
        assert (fault.code, fault.message, fault.status) == told


async def test_an_error_without_a_body_is_told_in_its_own_words() -> None:
    """As those of litellm, of ollama, and of aiohttp, whose text may have an address."""
    words = "This model's maximum context length is 8 tokens. You requested 9."
    for status, name in (
        ("status_code", "message"),
        ("status_code", "error"),
        ("status", "message"),
    ):
        error = RuntimeError("canary-key")
        setattr(error, status, 400)
        setattr(error, name, words)
        fault = await fault_of(error)
        assert (fault.status, fault.message) == (400, words)
        assert fault.upstream_code == "context_length_exceeded", "by which clients compact"
    assert "canary" not in (await fault_of(Refused(429))).message
    error.status = "busy"
    assert (await fault_of(error)).code == "internal"


async def test_p45_other_exceptions_are_reported_by_type_only() -> None:
    message = (await fault_of(ValueError("canary-key"))).message
    assert message.startswith("The engine failed with ValueError;")
    assert "canary" not in message
    assert (await fault_of(Refused(200))).code == "internal"


@pytest.mark.parametrize(
    "kind", [StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError]
)
async def test_what_a_function_raises_ends_its_answer_and_nothing_else(kind) -> None:
    def raising(**asked: Any) -> str:
        raise kind

    async with asyncio.timeout(60):
        error = (await answered(Function(raising))).error
    assert (error.code, "RuntimeError" in error.message) == ("internal", True)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_what_an_asynchronous_function_raises_ends_its_answer_and_nothing_else(kind) -> None:
    async def call(**asked: Any) -> str:
        raise kind

    async def pieces(**asked: Any) -> AsyncIterator[str]:
        yield "Hel"
        raise kind

    class Closed(AsyncSource):
        async def close(self) -> None:
            raise kind

    for answer in (call, pieces, lambda **asked: call(), lambda **asked: Closed([HALF, REST])):
        async with asyncio.timeout(60):
            error = (await answered(Function(answer))).error
        assert (error.code, "RuntimeError" in error.message) == ("internal", True)


def test_ctrl_c_in_an_asynchronous_function_ends_the_program() -> None:
    async def answer(**asked: Any) -> str:
        signal.raise_signal(signal.SIGINT)
        return "never"

    loop = asyncio.new_event_loop()  # without the handler of asyncio.Runner
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(answered(Function(answer)))
    finally:
        signal.signal(signal.SIGINT, before)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class PanicError(BaseException):
    """As libraries in Rust raise."""


async def test_a_panic_in_an_asynchronous_function_or_middleware_fails_the_answer() -> None:
    async def panics(**asked: Any) -> str:
        raise PanicError

    class Middleware(Wrapper):
        async def prepare(self, request: Request, caller: Caller) -> Prepared | None:
            raise PanicError

    class Early(Wrapper):
        def prepare(self, request: Request, caller: Caller) -> None:
            raise PanicError

    class Engine(Function):
        def start(self, *given: Any) -> Any:
            raise PanicError

    for engine in (
        Function(panics),
        *(k(Function(panics)) for k in (Middleware, Early)),
        Engine(panics),
    ):
        async with asyncio.timeout(60):
            error = (await answered(engine)).error
        assert (error.code, "with PanicError" in error.message) == ("internal", True)


async def test_what_an_asynchronous_function_awaited_and_was_cancelled_fails_it() -> None:
    async def waiting(**asked: Any) -> str:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task
        return "never"

    async with asyncio.timeout(60):
        error = (await answered(Function(waiting))).error
    assert (error.code, "CancelledError" in error.message) == ("internal", True)


async def test_wrong_return_value_is_a_fault() -> None:
    assert "NoneType" in (await answered(Function(lambda **asked: None))).error.message
    wrong = await answered(Function(lambda **asked: [3]))
    assert wrong.error.code == "internal"


async def test_r1_w1_blocking_function_does_not_block_the_loop() -> None:
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
async def test_closing_the_answer_closes_its_source(kind) -> None:
    source = kind([HALF, REST])
    events = Function(lambda **asked: source).stream(ASKED)
    await anext(events)
    await events.aclose()
    assert await asyncio.to_thread(source.closed.wait, 10)
    assert not others()


async def test_cancel_closes_a_blocked_generator_when_it_returns() -> None:
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


@pytest.mark.parametrize("kind", [Source, AsyncSource])
async def test_cancelled_call_closes_what_it_returns_later(kind) -> None:
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


async def test_cancelled_call_may_raise_or_return_later() -> None:
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


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"role": "assistant", "content": "hi"}, "a dict without `choices`"),
        ([{"text": "hi"}], "a dict without `choices`"),
        ([None], "NoneType"),
        (["hi", 3], "int"),
        (b"hi", "bytes"),
        ([], "nothing"),
    ],
)
async def test_what_is_no_answer_is_named(given, named) -> None:
    failed = (await heard(Function(lambda **asked: given)))[-1]
    assert isinstance(failed, Failed)
    assert failed.fault.message.startswith(f"The function gave {named}, which is no answer: ")
    assert failed.fault.code == "internal"


def test_what_cannot_be_called_is_refused_when_the_engine_is_made() -> None:
    with pytest.raises(TypeError, match="Function takes a callable, and was given str"):
        Function("hi")


async def test_a_function_that_yields_nothing_lets_others_run_and_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(function, "MAX_EMPTY", 50)

    async def nothing(**asked: Any) -> AsyncIterator[Any]:
        while True:
            yield ""
            yield {"choices": []}

    def neither(**asked: Any) -> Iterator[str]:
        while True:
            yield ""

    for answer in (nothing, neither):
        turns, answering = 0, asyncio.ensure_future(answered(Function(answer)))
        while not answering.done():
            await asyncio.sleep(0)
            turns += 1
        assert "yielded nothing 50 times" in (await answering).error.message
        assert turns >= 50


async def test_functions_whose_clients_have_left_take_so_many_threads_and_half_for_a_tenant(
    monkeypatch,
) -> None:
    monkeypatch.setattr(function, "MOST_LEFT", 4)
    release, begun = threading.Event(), threading.Semaphore(0)

    def hangs(**asked: Any) -> str:
        begun.release()
        release.wait(60)
        return "late"

    async def all_of(tenant: str) -> list[Any]:
        return [event async for event in Function(hangs).stream(ASKED, Caller(tenant=tenant))]

    async def ask(tenant: str) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(all_of(tenant))
        await asyncio.wait({task}, timeout=0.05)
        return task

    left = [await ask("a") for _ in range(2)]  # who waits is not refused
    for task in left:
        assert await asyncio.to_thread(begun.acquire, timeout=10)
        task.cancel()  # its thread goes on
    await asyncio.wait(left)
    refused = (await (await ask("a")))[-1]
    assert (refused.fault.code, refused.fault.retry_after) == ("overloaded", "1")
    other = await ask("b")
    assert not other.done()
    release.set()
    await other
    while function._left:
        await asyncio.sleep(0.001)
    assert (await answered(Function(lambda **asked: "Hello"))).text == "Hello"


async def test_all_calls_of_an_answer_are_made_in_one_thread() -> None:
    seen = set()

    def answer(**asked: Any) -> Iterator[str]:
        try:
            for _ in range(9):
                seen.add(threading.get_ident())
                yield "a"
        finally:
            seen.add(threading.get_ident())

    await answered(Function(answer))
    assert len(seen) == 1


async def test_what_is_large_is_encoded_and_decoded_in_threads_and_counted(monkeypatch) -> None:
    threads, counted = list[bool](), list[int]()

    def seen(work: Any) -> Any:
        def wrapper(*given: Any) -> Any:
            threads.append(threading.current_thread() is threading.main_thread())
            return work(*given)

        return wrapper

    decoder = function.CHAT.decoder

    def watched(turn: Any) -> Any:
        made = decoder(turn)
        made.feed = seen(made.feed)
        return made

    chat = SimpleNamespace(encode_request=seen(function.CHAT.encode_request), decoder=watched)
    monkeypatch.setattr(function, "CHAT", chat)
    large = {"choices": [{"index": 0, "delta": {"content": "a" * 100_000}}]}

    async def chunks(**asked: Any) -> AsyncIterator[Any]:
        yield HALF
        yield large
        yield "b" * 70_000
        yield REST

    for size in (0, 100_000):
        threads.clear()
        caller = Caller("t", size=size, count=counted.append)
        found = [event async for event in Function(chunks).stream(ASKED, caller)]
        assert len(fold(found).text) == 170_005
        assert threads == [size == 0, True, False, True, True]
    assert [number // 1000 for number in counted] == [99, 70] * 2


async def test_an_answer_without_room_in_memory_fails_and_its_function_is_closed() -> None:
    closed = asyncio.Event()

    async def endless(**asked: Any) -> AsyncIterator[str]:
        try:
            for _ in range(10_000):
                yield "a" * 1000
        finally:
            closed.set()

    def count(more: int) -> None:
        raise FaultError(Fault("overloaded", "The server is busy."))

    caller = Caller("t", count=count)
    found = [event async for event in Function(endless).stream(ASKED, caller)]
    assert found[-1].fault.code == "overloaded"
    assert closed.is_set()
