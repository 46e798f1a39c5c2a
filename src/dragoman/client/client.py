"""A client of an engine, by address or by name; asynchronous or blocking."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from inspect import iscoroutinefunction
from typing import Any, Concatenate, ParamSpec, Self, TypedDict, TypeVar, Unpack

import msgspec
from msgspec.structs import fields, replace

from dragoman.core.error import Fault, FaultError, hint
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Engine, first_model
from dragoman.core.item import JSON, Item, Message
from dragoman.core.request import (
    AudioOutput,
    OutputFormat,
    ReasoningOptions,
    Request,
    Sampling,
    Tool,
    ToolChoice,
)
from dragoman.core.response import Response
from dragoman.engines.base import Wrapper, new_id

from .answer import Answer, AnswerError, Stream

_P = ParamSpec("_P")
_T = TypeVar("_T")
_END = object()


class LoopThread:
    """An event loop in a daemon thread, started when first needed, stopped at exit."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, function: Callable[..., Awaitable[_T]], *args: Any, **kwargs: Any) -> _T:
        """Run a coroutine function there and wait for its result; an interrupt cancels it."""

        async def work() -> _T:
            return await function(*args, **kwargs)

        if threading.current_thread() is self._thread:
            raise RuntimeError("the synchronous client cannot be used from its own event loop")
        future = asyncio.run_coroutine_threadsafe(work(), self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._turn, args=(self._loop,), name="dragoman-sync", daemon=True
                )
                self._thread.start()
                atexit.register(self._stop, self._loop, self._thread)
            return self._loop

    @staticmethod
    def _turn(loop: asyncio.AbstractEventLoop) -> None:
        while True:
            # asyncio raises these here, too, when a task ends with one, whose caller gets it.
            with suppress(SystemExit, KeyboardInterrupt):
                return loop.run_forever()

    @staticmethod
    def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        async def end() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:  # streams that were not read to their end
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=0.5)
            loop.stop()

        with suppress(RuntimeError):  # it is closed or blocked, and the process ends
            loop.call_soon_threadsafe(lambda: loop.create_task(end()))
            thread.join(1.0)
            loop.close()


LOOP = LoopThread()
"""The event loop behind the synchronous API."""
if hasattr(os, "register_at_fork"):  # a child has no threads of its parent
    os.register_at_fork(after_in_child=LOOP.forget)


Input = str | Item | dict[str, JSON] | Sequence[Item | dict[str, JSON]] | Request
"""The input of a request: a user's text, one item, a conversation, or a whole request. An item may
be a dict, as in the official SDK's `responses.create(input=…)`."""


class Settings(TypedDict, total=False):
    """Settings of a request; absent ones are not sent.

    `reasoning` may be just the effort, `stop` a single string; a tool, a format and a choice among
    tools may be dicts, as the official SDK's Responses have them. The rest is as in `Request` and
    `Sampling`.
    """

    model: str
    instructions: str
    tools: Sequence[Tool | dict[str, JSON]]
    tool_choice: ToolChoice | dict[str, JSON]
    parallel_tool_calls: bool
    max_tool_calls: int
    max_output_tokens: int
    format: OutputFormat | dict[str, JSON]
    verbosity: str
    reasoning: ReasoningOptions | str
    modalities: Sequence[str]
    audio: AudioOutput
    metadata: dict[str, JSON]
    user: str
    safety_identifier: str
    prompt_cache_key: str
    service_tier: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    seed: int
    stop: str | Sequence[str]
    logit_bias: dict[str, float]
    logprobs: bool
    top_logprobs: int
    n: int


_SAMPLING = frozenset(Sampling.__struct_fields__)


@functools.cache
def _types() -> dict[str, Any]:
    """The type of each setting; computed at first use, which takes milliseconds."""
    found = {field.name: field.type for kind in (Sampling, Request) for field in fields(kind)}
    return {name: type for name, type in found.items() if name not in ("items", "sampling")}


def build_request(given: Input, settings: Mapping[str, JSON], *, stream: bool) -> Request:
    """The request for an input; `stream` is ignored for a whole request.

    Raises TypeError for an unknown setting, a value of the wrong type, and an invalid item.

    >>> build_request([{"role": "user", "content": "Hi"}], {}, stream=True).items[0].text
    'Hi'
    >>> build_request("Hi", {"model": "m", "temperature": 0}, stream=True).sampling.temperature
    0
    """
    values = {name: _shaped(name, value) for name, value in settings.items()}
    if isinstance(given, str):
        given = Message("user", given)
    if not isinstance(given, Request):
        if isinstance(given, list | tuple):
            items = tuple(_item(each, f"input[{n}]") for n, each in enumerate(given))
        else:
            items = (_item(given, "input"),)
        given = Request(model="", items=items, stream=stream)
    sampling = {name: values.pop(name) for name in list(values) if name in _SAMPLING}
    if sampling:
        values["sampling"] = replace(given.sampling, **sampling)
    return replace(given, **values) if values else given


def _shaped(name: str, value: JSON) -> JSON:
    """Convert a value to its type in the core. Raises TypeError."""
    if name not in _types():
        raise TypeError(f"there is no setting {name!r}")
    match name, value:
        case "reasoning", str():
            value = ReasoningOptions(value)
        case "stop", str():
            value = (value,)
        case "tools", list() | tuple():
            value = tuple(_decoded(each, f"tools[{n}]", "tool") for n, each in enumerate(value))
        case "format", type():
            known = "a dict with type 'json_schema', or an agent's `output`, which takes types"
            raise TypeError(f"format: {value.__name__} is a class; give {known}")
        case "format" | "tool_choice", dict():
            value = _decoded(value, name, name)
        case _, list():
            value = tuple(value)
    try:
        shaped = msgspec.convert(value, _types()[name])
    except msgspec.ValidationError as error:
        raise TypeError(f"{name}: {error}") from None
    return shaped if isinstance(shaped, msgspec.Struct) else value


def _item(given: object, place: str) -> Item:
    item = _decoded(given, place)
    if not isinstance(item, Item):
        problem = f"is of type {type(given).__name__}, and must be an item or a dict"
        raise TypeError(f"{place}: {problem}")
    return item


def _decoded(given: object, place: str, kind: str = "item") -> Any:
    """An item or a part of a request (`kind`) from a dict, spelled as in the official SDK's
    Responses; other values unchanged."""
    if not isinstance(given, dict):
        return given
    # Imported where it is used: `import dragoman` alone needs no wire.
    from dragoman.wire import json
    from dragoman.wire.responses import items, request

    try:
        match kind:
            case "item":
                return items.decode_item(given, place)
            case "tool":
                return request.decode_tool(given, place)
            case "format":
                return request.TOOLS.decode_format(json.Fields(given, place))[0]
            case _:
                return request.TOOLS.decode_choice(given)
    except FaultError as error:
        raise TypeError(error.fault.message) from None


class Client(Wrapper):
    """A client of an engine: `respond` for whole answers, `stream` for streamed ones.

    It is an engine itself. `model` is the default model; without it, the first that
    the engine lists. Use it with `async with`, or call `close`.
    """

    def __init__(self, engine: Engine, *, model: str | None = None) -> None:
        super().__init__(engine)
        self._model = model

    @property
    def model(self) -> str | None:
        """The model that is asked where a request names none; None as long as that is not known."""
        return self._model

    def stream(
        self, request: Input, caller: Caller = ANYONE, **settings: Unpack[Settings]
    ) -> Stream:
        """Ask, and read the answer as it comes. Nothing is sent before the first read.

        Raises TypeError for an unknown setting.
        """
        return Stream(self._answer(build_request(request, settings, stream=True), caller))

    async def respond(
        self,
        request: Input,
        caller: Caller = ANYONE,
        *,
        raises: bool = True,
        **settings: Unpack[Settings],
    ) -> Answer:
        """Send a request, and wait for the whole answer.

        Raises AnswerError when it fails, with the answer so far; with `raises=False` it is
        returned like any other: see its `status` and `error`.
        """
        asked = build_request(request, settings, stream=False)
        async with Stream(self._answer(asked, caller)) as stream:
            answer = await stream.finish()
        if raises and answer.status == "failed" and answer.error is not None:
            raise AnswerError(answer.error, answer)
        return answer

    @property
    def sync(self) -> SyncClient:
        """The same client for code without `async`: the same methods, without `await`.

        Use a client in one way or the other, not both: connections belong to one event loop.
        """
        return SyncClient(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _answer(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        try:
            request = (
                request if request.model else replace(request, model=await self.default_model())
            )
        except FaultError as error:
            yield Failed(error.fault)
            return
        async with aclosing(super().stream(request, caller)) as events:
            async for event in events:
                yield event

    async def default_model(self) -> str:
        """The model that is asked where a request names none; it is looked up at first. Raises
        FaultError where none is listed."""
        if self._model is None:
            self._model = first_model([each.id for each in await self.engine.models()])
        if self._model is None:
            problem = "No model was named, and the engine lists none."
            raise FaultError(Fault("model_not_found", problem, "client", "model"))
        return self._model


def write_file(name: str | os.PathLike[str], data: bytes) -> None:
    """Write a file in one step; others may write it, too. Its mode stays, and a link one."""
    from pathlib import Path  # imported only where needed: it takes 2 ms

    path = Path(name).resolve()
    draft = path.with_name(f"{path.name}.{new_id()}.part")
    try:
        draft.touch()
        with suppress(FileNotFoundError):
            draft.chmod(path.stat().st_mode & 0o777)
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _driven(
    method: Callable[Concatenate[Any, _P], Awaitable[_T]],
) -> Callable[Concatenate[Any, _P], _T]:
    """A synchronous method: waits for the result of the asynchronous one."""

    @functools.wraps(method)
    def call(face: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return LOOP.run(method, face.behind, *args, **kwargs)

    return call


def iterated(source: AsyncIterator[_T]) -> Iterator[_T]:
    """A synchronous iterator over the same values."""
    while (value := LOOP.run(anext, source, _END)) is not _END:
        yield value


class SyncStream:
    """A `Stream` for code without `async`."""

    def __init__(self, behind: Stream) -> None:
        self.behind = behind
        self._events = iterated(behind)

    finish = _driven(Stream.finish)
    close = _driven(Stream.close)

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    @property
    def text(self) -> Iterator[str]:
        """The pieces of text of the first choice. Raises AnswerError when the answer fails."""
        return iterated(self.behind.text)

    @property
    def response(self) -> Response:
        """All that has come so far."""
        return self.behind.response

    @property
    def answer(self) -> Answer:
        """The same, with usage and times."""
        return self.behind.answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class SyncClient:
    """A `Client` for code without `async`: on a running event loop it would block the loop."""

    def __init__(self, behind: Client) -> None:
        self.behind = behind

    @property
    def model(self) -> str | None:
        """The model that is asked where a request names none; None as long as that is not known."""
        return self.behind.model

    def stream(
        self, request: Input, caller: Caller = ANYONE, **settings: Unpack[Settings]
    ) -> SyncStream:
        """Ask, and read the answer as it comes. Nothing is sent before the first read."""
        return SyncStream(self.behind.stream(request, caller, **settings))

    default_model = _driven(Client.default_model)
    respond = _driven(Client.respond)
    models = _driven(Client.models)
    capabilities = _driven(Client.capabilities)
    close = _driven(Client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def connect(target: str | Engine, *, model: str | None = None, **options: Any) -> Client:
    """A client of an engine, by its address, its name, or itself.

    An address is the base URL of any OpenAI-compatible server (`http://127.0.0.1:11434/v1`), and
    `options` are those of `engines.remote.Remote`, such as `key`. With a `format`, the name of a
    token format, the server is asked for raw completions. `hf:` and a folder or a name on the hub,
    and `gguf:` and a file, load a model here; `options` are those of `engines.transformers` and
    `engines.llamacpp`. Raises ValueError for an unknown name and a model that does not load,
    ImportError where something is not installed.

    >>> connect("script").sync.respond("Count to three.").text
    '1, 2, 3.'
    """
    return Client(engine_of(target, options), model=model)


def connect_sync(target: str | Engine, *, model: str | None = None, **options: Any) -> SyncClient:
    """The same for code without `async`.

    >>> with connect_sync("script") as client:
    ...     print(client.respond("Count to two.").text)
    1, 2.
    """
    return connect(target, model=model, **options).sync


def engine_of(target: str | Engine, options: Mapping[str, Any] = {}) -> Engine:
    """The engine of a target (see `connect`). Raises TypeError for other
    values."""
    if not isinstance(target, str):
        for method in ("stream", "models", "capabilities", "close"):
            if not callable(getattr(target, method, None)):
                problem = f"is neither an engine nor the name or address of one: it has no {method}"
                raise TypeError(f"{type(target).__name__} {problem}")
        if isinstance(target, type):
            raise TypeError(f"{target.__name__} is a class; give an engine: {target.__name__}(…)")
        if iscoroutinefunction(target.stream):
            problem = "is a coroutine; write `def stream` and return a generator, or yield in it"
            raise TypeError(f"{type(target).__name__}.stream {problem}")
        if options:
            problem = f"are for addresses and names; give them to {type(target).__name__} itself"
            raise TypeError(f"options ({', '.join(options)}) {problem}")
        return target
    if target.startswith(("http://", "https://")):
        from dragoman.engines.completions import remote

        return remote(target, **options)
    # Local engines import wires and formats, which `import dragoman` alone does not need.
    from dragoman.engines.local import KINDS, SHIPPED, find_target, is_local

    if not is_local(target):
        known = ", ".join((*SHIPPED, *(f"{kind}:…" for kind in KINDS)))
        host, _, port = target.partition("/")[0].partition(":")
        near = hint(target, SHIPPED) or ";"
        meant = f"; did you mean http://{target}?" if host and port.isdecimal() else near
        problem = f"{target!r} is neither an http(s) address nor a name{meant} names: {known}"
        raise ValueError(problem)
    return find_target(target, **options).load()
