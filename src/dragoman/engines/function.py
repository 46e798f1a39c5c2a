"""An engine from any Python callable that answers in Chat chunks, or in plain text.

The callable is asked as a client of Chat Completions would ask: with the fields of the request as
keyword arguments. So a client object's own method will do, and so will a generator of a few
lines. What runs in this engine is the caller's code; it is never let near the event loop unless
it is asynchronous itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from functools import partial
from typing import Any

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.lower import with_summary
from dragoman.core.request import Request
from dragoman.core.turn import Think, Turn
from dragoman.wire import error as wire_error
from dragoman.wire import json
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD
from dragoman.wire.registry import spell_fault, spell_losses

from .base import enforce_contract, new_id, now

_DONE = b"data: [DONE]\n\n"
_END = object()


class Function:
    """An engine around a callable.

    The callable takes the fields of a Chat request (`model`, `messages`, `stream`, …) as keyword
    arguments. It may be asynchronous or not, a generator or not, and gives one of

    - chunks or whole completions: dicts, or objects with `model_dump()`;
    - pieces of text, or one text.

    A synchronous one runs in a thread of its own. When the answer is given up, its iterator is
    closed: at once, or where it is synchronous as soon as it gives its next piece; so is what a
    call returns that nobody waits for any more. Exceptions become faults; one with a
    `status_code` becomes a refusal with that status.

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
        self._answer = answer
        self._models = models
        self._think = think

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Call the callable and give what it gives."""
        return enforce_contract(self._events(request, caller), request.model)

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The names it was given."""
        return tuple(map(Model, self._models))

    async def capabilities(self, model: str) -> Capabilities:
        """Nothing is known of a callable."""
        return Capabilities()

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _events(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        try:
            asked, losses = CHAT.encode_request(request, STANDARD)
        except FaultError as error:
            raise FaultError(spell_fault(error.fault, request, caller.wire)) from error
        losses = spell_losses(losses, request, caller.wire)
        turn = Turn(new_id(), now(), request.model, losses=losses, think=self._think)
        hearing, restore = _Hearing(turn), with_summary(request)
        try:
            async with aclosing(_pieces(self._answer, json.load(asked))) as pieces:
                async for piece in pieces:
                    events = hearing.take(piece)
                    for event in events if restore is None else restore(events):
                        yield event
        except FaultError:
            raise
        except Exception as error:
            fault = _refusal(error)
            if fault is None:
                raise
            raise FaultError(fault) from error
        events = hearing.close()
        for event in events if restore is None else restore(events):
            yield event


class _Whole:
    """An answer that came in one piece."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Hearing:
    """Hears pieces of any kind into a turn.

    Text that stops has ended; chunks that stop without a finish reason were cut.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._decoder = CHAT.decoder(turn)
        self._said = False

    def take(self, piece: Any) -> list[Event]:
        """The events of a piece."""
        if isinstance(piece, _Whole):
            piece, self._said = piece.value, True
        if isinstance(piece, str):
            self._said = True
            self._turn.text(piece)
            return self._turn.take()
        value = piece if isinstance(piece, dict) else piece.model_dump(mode="json")
        return self._decoder.feed(b"data: " + json.dump(value) + b"\n\n")

    def close(self) -> list[Event]:
        """The end."""
        events = self._decoder.feed(_DONE) if self._said else []
        return events + self._decoder.close()


# ---- calling -----------------------------------------------------------------------------


async def _pieces(answer: Callable[..., Any], arguments: Any) -> AsyncGenerator[Any, None]:
    """What a callable gives, piece by piece, whatever kind of callable it is."""
    thread = _Thread()
    try:
        if inspect.iscoroutinefunction(answer) or inspect.isasyncgenfunction(answer):
            given = answer(**arguments)
        else:
            given = await thread.call(partial(answer, **arguments))
        if inspect.isawaitable(given):
            given = await given
        if isinstance(given, str | dict) or hasattr(given, "model_dump"):
            yield _Whole(given)
            return
        async with aclosing(_walked(given, thread)) as pieces:
            async for piece in pieces:
                yield piece
    finally:
        thread.finish()


async def _walked(given: Any, thread: _Thread) -> AsyncGenerator[Any, None]:
    """The pieces of something that can be iterated, closed with all that it holds."""
    if hasattr(given, "__aiter__"):
        iterator = aiter(given)
        try:
            async for piece in iterator:
                yield piece
        finally:
            for close in _closers(iterator, given):
                if inspect.isawaitable(closing := close()):
                    await closing
    elif hasattr(given, "__iter__"):
        iterator = iter(given)
        try:
            while (piece := await thread.run(partial(next, iterator, _END))) is not _END:
                yield piece
        finally:
            thread.last(_closers(iterator, given))
    else:
        message = f"The function returned {type(given).__name__}, which is no answer."
        raise FaultError(Fault("internal", message))


def _abandon(future: Future[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Close what a call gave when nobody waited for it any more."""
    if future.cancelled() or future.exception() is not None:
        return
    for close in _closers(future.result()):
        if inspect.isawaitable(closing := close()):
            asyncio.run_coroutine_threadsafe(_finished(closing), loop)


async def _finished(closing: Awaitable[Any]) -> None:
    await closing


def _closers(*things: Any) -> list[Callable[[], Any]]:
    """What closes an iterator and the thing it came from, where they can be closed."""
    things = tuple({id(thing): thing for thing in things}.values())
    found = (getattr(thing, "aclose", None) or getattr(thing, "close", None) for thing in things)
    return [close for close in found if close is not None]


class _Thread:
    """A thread for code that blocks, started when it is needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "dragoman-function")
        self._context = copy_context()

    async def run(self, work: Callable[[], Any]) -> Any:
        """Run something there, and wait for it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._context.run, work)

    async def call(self, work: Callable[[], Any]) -> Any:
        """The same, for work that gives something to be closed. Given up, it is closed there."""
        future = self._pool.submit(self._context.run, work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.last([partial(_abandon, future, asyncio.get_running_loop())])
            raise

    def last(self, work: Iterable[Callable[[], Any]]) -> None:
        """Have something done there after all else; nobody waits for it."""
        for each in work:
            self._pool.submit(each)

    def finish(self) -> None:
        """Let the thread go once its work is done."""
        self._pool.shutdown(wait=False)


def _refusal(error: Exception) -> Fault | None:
    """The fault in an exception of a client library, known by the HTTP status it carries."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not 400 <= status <= 599:
        return None
    if status in (401, 403):
        message = f"The model's server refused the key of the function that asked it ({status})."
        return Fault("upstream_authentication", message, "server", status=status)
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    told = json.dump(getattr(error, "body", None) or "")
    return wire_error.decode(status, told, headers.get("retry-after"))
