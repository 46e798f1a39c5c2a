"""The model of a program: an immutable value to which texts and nodes are appended with `+`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import sys
from collections import deque
from collections.abc import Awaitable, Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar, cast
from weakref import finalize

from msgspec import Struct

from dragoman.client.answer import Spent
from dragoman.client.client import LOOP, Client, SyncClient, build_request, connect, write_file
from dragoman.core.error import hint
from dragoman.core.interfaces import Engine
from dragoman.core.item import Item, Token
from dragoman.core.request import Sampling
from dragoman.core.response import Guarantee
from dragoman.tools.function import in_thread

from .history import Capture, State, dump, load
from .interpreter import Emit, Kind, Run
from .means import Target
from .nodes import Call, Join, Literal, Media, join, node
from .show import fragment, page, plain

_M = TypeVar("_M", bound="Model")
_SETTINGS = frozenset((*Sampling.__struct_fields__, "effort", "max_tokens")) - {"n", "stop"}


class _Inside:
    """The context of a program that runs in a thread: its event loop, and the `emit` callback."""

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Emit | None) -> None:
        self.emit = emit
        self._loop = loop
        self._running: Future[None] | None = None
        self._over = False

    def drive(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the loop, for its thread."""
        self._running = asyncio.run_coroutine_threadsafe(work, self._loop)
        if self._over:
            self._running.cancel()
        self._running.result()

    def cancel(self) -> None:
        """Cancel the thread's work on the loop, which ends the thread."""
        self._over = True
        if self._running is not None:
            self._running.cancel()


_inside: ContextVar[_Inside | None] = ContextVar("inside", default=None)


class Delta(Struct, frozen=True):
    """A streamed piece of a program, and the `model` with it.

    `kind` is `literal` or `text` (`reasoning`, `transcript`: text, too), a `call` or the `result`
    of a tool, `audio` (base64), or `done`, with which something is captured under its `name`.
    """

    kind: Kind
    text: str
    name: str | None
    model: Model

    def __str__(self) -> str:
        return self.text if self.kind in ("literal", "text", "transcript") else ""


class Model:
    """An engine with a history of turns and captures. Appending returns a new model.

    `target` is what `dragoman.connect` takes, or a client; `settings` are those of sampling, such
    as `temperature`, and `max_tokens` and `effort`; others are options of `connect`. Unless
    `logprobs` is false, the log probabilities of tokens are requested, where the engine has them.

    In asynchronous code write `lm = await lm.run(node)`: `+` waits for the model.

    >>> from dragoman.program import assistant, gen, user
    >>> lm = Model("script")
    >>> with user():
    ...     lm += "Count to three."
    >>> with assistant():
    ...     lm += gen("numbers", stop=",")
    >>> lm["numbers"]
    '1'
    """

    __slots__ = ("_settings", "_state", "_target")

    def __init__(
        self,
        target: str | Engine | SyncClient,
        *,
        model: str | None = None,
        logprobs: bool | None = None,
        **settings: Any,
    ) -> None:
        options = {name: settings.pop(name) for name in list(settings) if name not in _SETTINGS}
        if isinstance(target, SyncClient):
            target = target.behind
        if isinstance(target, Client) and not options:
            client = target
        else:
            try:
                client = connect(target, model=model, **options)
            except (TypeError, ValueError) as error:
                near = [each + found for each in options if (found := hint(each, _SETTINGS))]
                if not near:
                    raise
                raise TypeError(f"there is no setting {near[0]} ({error})") from None
        _check(settings)
        self._target = Target(client, model, logprobs)
        self._settings: Mapping[str, Any] = settings
        self._state = State()

    def _of(self, state: State, settings: Mapping[str, Any] | None = None) -> Self:
        made = object.__new__(type(self))
        made._target, made._state = self._target, state
        made._settings = self._settings if settings is None else settings
        return made

    # ---- running -------------------------------------------------------------------------

    def __add__(self, other: object) -> Self:
        value = node(other)
        model = self
        for part in value.parts if isinstance(value, Join) else (value,):
            if isinstance(part, Call):  # the user's code, in the user's thread
                given = part.function(model, *part.args, **part.kwargs)
                model = _checked(part, given, type(model))
                continue
            inside = _inside.get()
            run = model._run(None if inside is None else inside.emit)
            if isinstance(part, Literal | Media):  # which awaits nothing
                with contextlib.suppress(StopIteration):
                    run.visit(part).send(None)
            elif inside is None:
                LOOP.run(run.visit, part)
            else:
                inside.drive(run.visit(part))
            model = model._of(run.state)
        return model

    def __radd__(self, other: object) -> NoReturn:
        raise TypeError("the model stands at the left: write `lm + node`")

    def run(self, *nodes: object) -> Coroutine[Any, Any, Self]:
        """Append texts and nodes, in asynchronous code. The roles and blocks are those that are
        open now."""
        return ModelStream(self, nodes).finish()

    def stream(self, *nodes: object) -> ModelStream[Self]:
        """Like `run`, streamed: iterate it with `for` or `async for`."""
        return ModelStream(self, nodes)

    def batch(
        self, nodes: Iterable[object], *, at_once: int | None = None, progress: bool = False
    ) -> Batch[Self]:
        """Append each of several nodes to this model, all at the same time, or `at_once`: await it,
        or call `wait`. With `progress` a bar is shown."""
        return Batch([ModelStream(self, (each,)) for each in nodes], at_once, progress)

    def _run(self, emit: Emit | None) -> Run:
        async def call(value: Call, state: State, given: Mapping[str, Any]) -> State:
            model = self._of(state, {**self._settings, **given})
            return (await self._called(value, model, emit))._state

        return Run(self._target, self._settings, self._state, call, emit)

    @staticmethod
    async def _called(value: Call, model: Model, emit: Emit | None) -> Model:
        """Run a program: a synchronous one in a thread, whose `+` runs on this loop."""
        function = value.function
        if inspect.iscoroutinefunction(function):
            return _checked(value, await function(model, *value.args, **value.kwargs), Model)
        before, inside = _inside.get(), _Inside(asyncio.get_running_loop(), emit)
        _inside.set(inside)
        try:
            given = await in_thread(lambda: function(model, *value.args, **value.kwargs))
        finally:
            inside.cancel()
            _inside.set(before)
        return _checked(value, given, Model)

    # ---- captures ------------------------------------------------------------------------

    def capture(self, name: str) -> Capture:
        """The capture of a name with its metadata; of a list, the latest. Raises KeyError."""
        found = self._found(name)
        return found[-1] if isinstance(found, list) else found

    def _found(self, name: str) -> Capture | list[Capture]:
        found = self._state.settled().capture(name)
        if found is None:
            known = ", ".join(map(repr, self._state.settled().names())) or "nothing"
            raise KeyError(f"nothing was captured under {name!r}; there is {known}")
        return found

    def __getitem__(self, name: str) -> Any:
        found = self._found(name)
        return [each.value for each in found] if isinstance(found, list) else found.value

    def __setitem__(self, name: str, value: object) -> NoReturn:
        raise TypeError(f"a model does not change; write `lm = lm.set({name!r}, …)`")

    def __contains__(self, name: object) -> bool:
        return name in self._state.settled().names()

    def get(self, name: str, default: Any = None) -> Any:
        """What was captured under a name, or the default."""
        try:
            return self[name]
        except KeyError:
            return default

    def set(self, name: str, value: object) -> Self:
        """The model with a capture."""
        return self._of(self._state.settled().captured(name, Capture(value)))

    def remove(self, name: str) -> Self:
        """The model without a capture."""
        return self._of(self._state.settled().without(name))

    def log_prob(self, name: str, default: float | None = None) -> Any:
        """The natural logarithm of the probability of a capture (a list of them, for a list); the
        default where the engine reported none."""
        found = self._found(name)
        known = [each.log_prob for each in (found if isinstance(found, list) else [found])]
        values = [default if each is None else each for each in known]
        return values if isinstance(found, list) else values[0]

    def guarantee(self, name: str) -> Guarantee | None:
        """How sure it is that a capture matches what was asked for: `enforced`, `verified` or
        `best-effort`; None where that was free."""
        return self.capture(name).guarantee

    @property
    def captures(self) -> dict[str, Any]:
        """All captures by their names."""
        return {name: self[name] for name in self._state.settled().names()}

    # ---- reading -------------------------------------------------------------------------

    def __str__(self) -> str:
        return str(self._state.settled())

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        turns, names = len(self._state.turns()), ", ".join(self._state.names())
        return f"<Model {self._target.name}: {turns} turns; {names or 'no captures'}>"

    def __len__(self) -> int:
        return len(str(self))

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> NoReturn:
        raise TypeError("a model has no elements; `lm.stream(node)` is what can be iterated")

    @property
    def items(self) -> tuple[Item, ...]:
        """The conversation, as requests have it."""
        return tuple(self._state.settled().items())

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of all that was generated, where they were reported."""
        pieces = [piece for turn in self._state.turns() for piece in turn.pieces()]
        return tuple(token for piece in pieces for token in piece.tokens)

    @property
    def state(self) -> State:
        """The history and the captures, as a value without an engine."""
        return self._state.settled()

    @property
    def usage(self) -> Spent:
        """The usage so far: tokens, round trips, seconds."""
        return self._state.usage

    @property
    def client(self) -> Client:
        """The client that sends the requests."""
        return self._target.client

    def close(self) -> None:
        """Close the connections, and unload a local model: of this model and of all models derived
        from it. In asynchronous code, `await lm.client.close()`."""
        LOOP.run(self._target.client.close)

    def with_sampling_params(
        self, params: Mapping[str, Any] | None = None, /, **settings: Any
    ) -> Self:
        """The model with other sampling settings, such as `top_p`; None removes one."""
        given = {**(params or {}), **settings}
        if unknown := sorted(given.keys() - _SETTINGS):
            known = ", ".join(sorted(_SETTINGS))
            raise TypeError(f"there is no setting {unknown[0]!r}; there are {known}")
        _check(given)
        merged = {**self._settings, **given}
        return self._of(self._state, {k: v for k, v in merged.items() if v is not None})

    # ---- rendering -----------------------------------------------------------------------

    def html(self, *others: Model, prices: tuple[float, float] | None = None) -> str:
        """A page that shows this model, and others side by side: roles, tokens by their
        probability, captures, usage and, by the prices of a million tokens in and out, cost."""
        models = (self, *others)
        titles = ["" if len(models) == 1 else f"branch {n}" for n in range(1, len(models) + 1)]
        columns = [(title, each.state) for title, each in zip(titles, models, strict=True)]
        return page(columns, prices)

    def show(self, *others: Model) -> None:
        """Show this model, and others side by side: in a notebook, or else on the terminal."""
        models = (self, *others)
        notebook: Any = sys.modules.get("IPython")
        if notebook is not None and hasattr(notebook.get_ipython(), "kernel"):
            display = importlib.import_module("IPython.display")
            display.display(display.HTML("".join(each._repr_html_() for each in models)))
            return
        for each in models:
            sys.stdout.write(plain(each.state, color=sys.stdout.isatty()))

    def _repr_html_(self) -> str:
        return fragment(self.state)

    # ---- files ---------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Serialise the history and the captures as JSON."""
        return dump(self._state.settled())

    def load(self, data: bytes | str | Path) -> Self:
        """This model, with what `dump` gave, or what `save` wrote to a file. Raises ValueError for
        anything else."""
        if isinstance(data, bytes):
            return self._of(load(data))
        path = Path(data)
        if path.exists() and not path.is_file():  # a pipe or a device has no end
            raise ValueError(f"{path} is no file")
        return self._of(load(path.read_bytes()))

    def save(self, path: str | Path) -> None:
        """Write what `dump` gives to a file, in one step."""
        write_file(path, self.dump())


def _check(settings: Mapping[str, Any]) -> None:
    """Raises TypeError for a setting of the wrong type, in the words of a client's."""
    named = {"effort": "reasoning", "max_tokens": "max_output_tokens"}
    given = {named.get(name, name): each for name, each in settings.items()}
    given.pop("logit_bias", None)  # its ids may be numbers, as for OpenAI's SDK
    build_request((), given, stream=True)


def _checked(value: Call, given: object, kind: type[_M]) -> _M:
    if not isinstance(given, kind):
        name = getattr(value.function, "__name__", "the program")
        what = "nothing" if given is None else type(given).__name__
        raise TypeError(f"{name} returned {what} instead of the model: end it with `return lm`")
    return given


class ModelStream(Awaitable[_M]):
    """The deltas of some nodes as they are generated: iterate it, or await the final model.

    To stop early, close it, or use it with `with` or `async with`. One that is dropped stops, too.
    """

    def __init__(self, model: _M, nodes: Iterable[object]) -> None:
        self._start = self._model = model
        self._node = join(node(each) for each in nodes)
        self._context = copy_context()
        self._task: asyncio.Task[_M] | None = None
        self._ready: deque[Delta] = deque()
        self._more = asyncio.Event()

    @property
    def model(self) -> _M:
        """The model with everything generated so far."""
        return self._model

    async def finish(self) -> _M:
        """Read to the end, and return the model."""
        if self._task is None:
            self._task = self._begun(False)
        try:
            self._model = await self._task
        finally:
            self._task.cancel()
        self._ready.clear()
        return self._model

    def __await__(self) -> Generator[Any, Any, _M]:
        return self.finish().__await__()

    def _begun(self, streaming: bool) -> asyncio.Task[_M]:
        start, value, ready, more = self._start, self._node, self._ready, self._more

        def take(kind: Kind, text: str, name: str | None, state: State) -> None:
            ready.append(Delta(kind, text, name, start._of(state)))
            more.set()

        async def work() -> _M:  # which knows nothing of this stream, so that it may be dropped
            inside = _inside.get()
            run = start._run(take if streaming else inside.emit if inside else None)
            try:
                await run.visit(value)
                return start._of(run.state)
            finally:
                more.set()

        loop = asyncio.get_running_loop()
        task = loop.create_task(work(), context=self._context)
        finalize(self, _stop, loop, task).atexit = False
        return task

    def __aiter__(self) -> ModelStream[_M]:
        return self

    async def _wait(self) -> bool:
        """Wait for a delta; false at the end."""
        if self._task is None:
            self._task = self._begun(True)
        while not self._ready:
            if self._task.done():
                self._model = self._task.result()
                return False
            self._more.clear()
            await self._more.wait()
        return True

    def _next(self) -> Delta:
        delta = self._ready.popleft()
        self._model = cast(_M, delta.model)
        return delta

    async def __anext__(self) -> Delta:
        if not await self._wait():
            raise StopAsyncIteration
        return self._next()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        if not self._ready and not LOOP.run(self._wait):
            raise StopIteration
        return self._next()

    async def close(self) -> None:
        """Cancel the run; the model stays as it was at the latest delta."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        LOOP.run(self.close)


def _stop(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(task.cancel)


class Batch(Awaitable[list[_M]]):
    """Several models at the same time: await it, or call `wait`."""

    def __init__(self, streams: list[ModelStream[_M]], at_once: int | None, progress: bool) -> None:
        self._streams, self._progress = streams, progress
        self._at_once = at_once or max(len(streams), 1)
        self._done = 0

    def __await__(self) -> Generator[Any, Any, list[_M]]:
        return self._all().__await__()

    def wait(self) -> list[_M]:
        """The models, for code without `async`."""
        return LOOP.run(self._all)

    async def _all(self) -> list[_M]:
        places = asyncio.Semaphore(self._at_once)

        async def one(stream: ModelStream[_M]) -> _M:
            async with places:
                model = await stream.finish()
            self._done += 1
            if self._progress:
                self._show()
            return model

        tasks = [asyncio.ensure_future(one(stream)) for stream in self._streams]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            if self._progress:
                sys.stderr.write("\n")

    def _show(self) -> None:
        done, of = self._done, len(self._streams)
        bar = "#" * (30 * done // of)
        sys.stderr.write(f"\r[{bar:<30}] {done}/{of}")
        sys.stderr.flush()
