"""Drives an asynchronous object from synchronous code.

Calls run on one event loop in a thread that all such objects of a process share. Methods are
looked up on the object itself: there is no second copy of any.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

_T = TypeVar("_T")
_END = object()


class Blocking:
    """Drives an object: awaitables are awaited, asynchronous iterators become plain ones.

    Not to be called on a running event loop, which it would block.

    >>> async def double(n): return 2 * n
    >>> Blocking(double)(21)
    42
    """

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return _driven(getattr(self._target, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            result = self._target(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return _driven(_LOOP.run(call()))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        async def step() -> Any:
            return await anext(self._target, _END)

        if (value := _LOOP.run(step())) is _END:
            raise StopIteration
        return value

    def __enter__(self) -> Self:
        _LOOP.run(self._target.__aenter__())
        return self

    def __exit__(self, *error: Any) -> Any:
        return _LOOP.run(self._target.__aexit__(*error))

    def __repr__(self) -> str:
        return f"Blocking({self._target!r})"


def _driven(value: Any) -> Any:
    """The value itself, or a driver of it where it is asynchronous or a function."""
    asynchronous = hasattr(value, "__anext__") or hasattr(value, "__aenter__")
    return Blocking(value) if asynchronous or inspect.isroutine(value) else value


class _Loop:
    """An event loop in a daemon thread, started when first needed, stopped at exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something there and give its result; an interrupt cancels it."""
        loop = self._started()
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the synchronous client cannot be used from its own event loop")
        future = asyncio.run_coroutine_threadsafe(work, loop)
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
                    target=self._loop.run_forever, name="dragoman-sync", daemon=True
                )
                self._thread.start()
                atexit.register(self._stop, self._loop, self._thread)
            return self._loop

    @staticmethod
    def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        with suppress(RuntimeError):  # it is closed or blocked, and the process ends
            loop.call_soon_threadsafe(loop.stop)
            thread.join(1.0)
            loop.close()


_LOOP = _Loop()
