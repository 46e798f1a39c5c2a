"""An engine from any Python callable that answers in Chat chunks, or in plain text.

The callable is called like a client of Chat Completions: with the fields of the request as
keyword arguments. So a method of an SDK client works, and so does a generator of a few
lines. It is the user's code: it runs in a thread, unless
it is asynchronous itself.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import aclosing
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

from msgspec.structs import replace

from dragoman.core.error import CUT, Code, Fault, FaultError
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.loss import Loss
from dragoman.core.lower import with_summary
from dragoman.core.request import Request
from dragoman.core.turn import Think, Turn
from dragoman.net.threads import Lanes, reading
from dragoman.wire import error as wire_error
from dragoman.wire import json
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD
from dragoman.wire.registry import spell_fault, spell_losses

from .base import enforce_contract, new_id, now

_DONE = b"data: [DONE]\n\n"
_END = object()
UNFINISHED = replace(
    CUT,
    message="The function's chunks ended without a finish_reason, so its answer counts as cut off: "
    'the last chunk needs one, such as "stop" or "tool_calls".',
    blame="server",
)
"""The fault for chunks without a finish reason."""
MAX_EMPTY = 10_000
"""How often in a row a function may yield nothing."""
LARGE = 64 * 1024
"""Bytes of a chunk that are decoded on the event loop, and of an answer without counting in
`memory`."""
FRAMING, PIECE = 300, 16
"""Bytes of a chunk, about, that are not kept, and what a piece counts for at the least."""
MOST_LEFT = 1024
"""Threads of synchronous functions that go on though their answers have ended."""
_BUSY = Fault(
    "overloaded",
    "The server is busy: too many functions are still at work whose clients have left.",
    "server",
    retry_after="1",
)
_PARTS = ("choices", "error", "object", "usage")
"""What a chunk or a completion has at least one of."""


class Function:
    """An engine around a callable.

    The callable takes the fields of a Chat request (`model`, `messages`, `stream`, …) as keyword
    arguments. It may be asynchronous or not, a generator or not, and gives one of

    - chunks or whole completions: dicts, or objects with `model_dump()`;
    - pieces of text, or one text.

    A synchronous one runs in a thread of its own. When the answer is cancelled, its iterator is
    closed: at once, or where it is synchronous after its next piece; so is an iterator that is
    returned after that. Exceptions become faults; one with a `status_code` becomes a refusal
    with that status. One that yields nothing ten thousand times in a row has failed.

    >>> def parrot(messages, **rest):
    ...     yield from messages[-1]["content"].split()
    >>> engine = Function(parrot, models=("parrot",))
    """

    def __init__(
        self,
        answer: Callable[..., Any],
        *,
        models: tuple[str, ...] = ("function",),
        think: Think = "inline",
    ) -> None:
        if not callable(answer):
            raise TypeError(f"Function takes a callable, and was given {type(answer).__name__}")
        self._answer = answer
        self._models = models
        self._think = think
        self._large = Lanes()

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Call the callable and decode its result."""
        return enforce_contract(self._events(request, caller), request.model)

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The configured names."""
        return tuple(map(Model, self._models))

    async def capabilities(self, model: str) -> Capabilities:
        """No capabilities are known."""
        return Capabilities()

    async def close(self) -> None:
        """Nothing to close."""

    async def _events(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        def encoded() -> tuple[Any, tuple[Loss, ...]]:
            body, losses = CHAT.encode_request(request, STANDARD)
            return json.load(body), losses

        reading.set(caller.tenant)
        try:
            take, size = self._large.take, caller.size
            fields, losses = await take(size, encoded) if size else encoded()
        except FaultError as error:
            raise FaultError(spell_fault(error.fault, request, caller.wire)) from error
        losses = spell_losses(losses, request, caller.wire)
        turn = Turn(new_id(), now(), request.model, losses=losses, think=self._think)
        decoder, restore = CHAT.decoder(turn), with_summary(request)
        whole: bool | None = None
        empty = kept = 0
        ended = False  # text may just end; chunks without a finish reason were cut
        try:
            made = _pieces(self._answer, fields, caller.tenant)
            async with aclosing(made) as pieces:
                async for piece, whole in pieces:
                    ended = ended or whole or isinstance(piece, str)
                    if isinstance(piece, str):
                        turn.text(piece)
                        events = turn.take()
                        kept += PIECE + len(piece)
                    else:
                        data = b"data: " + json.dump(_chunk(piece)) + b"\n\n"
                        feed = partial(decoder.feed, data)
                        large = (size := len(data)) > LARGE
                        events = await self._large.take(size, feed) if large else feed()
                        kept += max(size - FRAMING, PIECE)
                    if kept > LARGE and caller.count is not None:
                        caller.count(kept)
                        kept = 0
                    for event in events if restore is None else restore(events):
                        yield event
                    empty = 0 if events else empty + 1
                    if empty > MAX_EMPTY:
                        problem = f"The function yielded nothing {MAX_EMPTY} times in a row."
                        raise FaultError(Fault("internal", problem))
                    if empty:
                        await asyncio.sleep(0)  # let others run beside one that never waits
        except Exception as error:
            fault = None if isinstance(error, FaultError) else _refusal(error)
            if fault is None:
                raise
            raise FaultError(fault) from error
        if whole is None:
            raise FaultError(_no_answer("nothing"))
        events = (decoder.feed(_DONE) if ended else []) + decoder.close()
        for event in events if restore is None else restore(events):
            yield Failed(UNFINISHED) if event == Failed(CUT) else event


async def _pieces(
    answer: Callable[..., Any], arguments: Any, tenant: str
) -> AsyncGenerator[tuple[Any, bool], None]:
    """The pieces of any kind of callable's result, each with whether it
    is complete by itself."""
    thread = _Thread(tenant)
    call = partial(_in_thread, thread, copy_context())
    try:
        if inspect.iscoroutinefunction(answer) or inspect.isasyncgenfunction(answer):
            given = answer(**arguments)
        else:
            given = await call(partial(answer, **arguments))
        if inspect.isawaitable(given):
            given = await _awaited(given)
        if isinstance(given, str | dict) or hasattr(given, "model_dump"):
            yield given, True
            return
        pieces: Any
        if asynchronous := hasattr(given, "__aiter__"):
            pieces = aiter(given)
        elif hasattr(given, "__iter__") and not isinstance(given, bytes | bytearray):
            pieces = iter(given)
        else:
            raise FaultError(_no_answer(type(given).__name__))
        step: Callable[[], Any] = partial(anext if asynchronous else next, pieces, _END)
        try:
            while (piece := await (_awaited(step()) if asynchronous else call(step))) is not _END:
                yield piece, False
        finally:
            for close in _closers(pieces, given):
                if not asynchronous:
                    thread.submit(close)
                elif inspect.isawaitable(closing := close()):
                    await _awaited(closing)
    finally:
        thread.end()


def _chunk(piece: Any) -> dict[str, Any]:
    """A piece as a chunk or a completion of Chat. Raises FaultError for what is neither."""
    value = piece.model_dump(mode="json") if hasattr(piece, "model_dump") else piece
    if not isinstance(value, dict):
        raise FaultError(_no_answer(type(piece).__name__))
    if not any(part in value for part in _PARTS):
        raise FaultError(_no_answer("a dict without `choices`"))
    return value


def _no_answer(given: str) -> Fault:
    forms = 'text ("" for none), or chunks or a completion of Chat with `choices`'
    return Fault("internal", f"The function gave {given}, which is no answer: give {forms}.")


class _Thread:
    """The thread of one answer, for all its calls: what they open may not leave it. It is started
    with the first."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._started = False

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Add a call. Raises FaultError for the first where so many threads go on, or a tenant has
        half of what others leave."""
        if not self._started:
            own = [*_left.values()].count(self._tenant) if self._tenant else 0
            if len(_left) + own >= MOST_LEFT:
                raise FaultError(_BUSY)
            try:  # one that hangs must not hold up the end of the process
                threading.Thread(target=self._run, name="dragoman-function", daemon=True).start()
            except RuntimeError:  # the system has no more
                raise FaultError(_BUSY) from None
            self._started = True
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return future

    def end(self) -> None:
        """End the thread after its last call."""
        if self._started:
            _left[self] = self._tenant
            self._calls.put(None)

    def _run(self) -> None:
        while (each := self._calls.get()) is not None:
            future, call = each
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del each, future, call  # not held until the next one comes
        del _left[self]


_left: dict[_Thread, str] = {}
"""The threads whose answers have ended, with their tenants."""


async def _in_thread(thread: _Thread, context: Context, work: Callable[[], Any]) -> Any:
    """Run blocking code. A result after a cancellation is closed there."""
    future = thread.submit(partial(context.run, _called, work))
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        thread.submit(partial(_close_result, future, asyncio.get_running_loop()))
        raise


def _called(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        # It would end the event loop, or not reach it at all.
        raise _raised(error) from error


async def _awaited(given: Awaitable[Any]) -> Any:
    """What asynchronous code of the function gives."""
    try:
        return await given
    except (GeneratorExit, KeyboardInterrupt, SystemExit) as error:
        if is_typed(error):
            raise
        raise _raised(error) from error  # it would end the event loop, or leave its answer open


def _raised(error: BaseException) -> RuntimeError:
    return RuntimeError(f"The function raised {type(error).__name__}")


def is_typed(error: BaseException) -> bool:
    """Whether Ctrl-C may have raised an error, and not the code that it comes from: servers handle
    that signal otherwise."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def _close_result(future: Future[Any], loop: asyncio.AbstractEventLoop) -> None:
    if future.cancelled() or future.exception() is not None:
        return
    for close in _closers(future.result()):
        if inspect.isawaitable(closing := close()):
            asyncio.run_coroutine_threadsafe(_awaited(closing), loop)


def _closers(*things: Any) -> list[Callable[[], Any]]:
    """The `close` functions of an iterator and its source, where they have any."""
    things = tuple({id(thing): thing for thing in things}.values())
    found = (getattr(thing, "aclose", None) or getattr(thing, "close", None) for thing in things)
    return [close for close in found if close is not None]


def _refusal(error: Exception) -> Fault | None:
    """The fault for an exception of a client library: one with an HTTP status, or one about a
    request that has no answer."""
    answer = getattr(error, "response", None)
    named = ((error, "status_code"), (error, "status"), (answer, "status_code"))
    found = (getattr(thing, name, None) for thing, name in named)
    status = next((each for each in found if isinstance(each, int)), None)
    body = getattr(error, "body", None)
    if not isinstance(status, int) or not 400 <= status <= 599:
        if body:  # of an error amid a stream
            return wire_error.describe(body) or wire_error.describe({"error": body})
        asked = "request" in vars(error) or hasattr(type(error), "request")  # openai's, httpx's
        if status is not None or not (asked or isinstance(error, ConnectionError | TimeoutError)):
            return None
        name = type(error).__name__
        late = "timeout" in name.lower()
        problem = f"The server that the function asked {'is too slow' if late else 'is not there'}"
        code: Code = "upstream_timeout" if late else "upstream_unreachable"
        return Fault(code, f"{problem} ({name}).", "upstream")
    if status in (401, 403):
        message = f"The model's server refused the key of the function that asked it ({status})."
        return Fault("upstream_authentication", message, "server", status=status)
    headers = getattr(answer, "headers", None) or {}
    if not body:  # of litellm, ollama; the text of an error may have an address, with its key
        words = (getattr(error, name, None) for name in ("message", "error"))
        body = {"message": next((each for each in words if isinstance(each, str)), "")}
    return wire_error.decode(status, json.dump(body), headers.get("retry-after"))
