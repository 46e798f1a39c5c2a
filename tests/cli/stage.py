"""A person at the command line, played in this process: what is typed, seen and pressed.

Commands run in the main thread, as they do for a person; servers they ask stand in another.
"""

import asyncio
import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from threading import Thread

from dragoman.cli import main
from tests.mock import Asked, Handler, Mock, Reply, mock

SECONDS = 30
"""What a machine that does much else may take."""


def press_ctrl_c() -> None:
    """What the terminal does then."""
    signal.raise_signal(signal.SIGINT)


class Screen(io.StringIO):
    """What is printed. Each cue is acted upon once, when its text is there to be seen."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal
        self._cues: list[tuple[str, Callable[[], object]]] = []

    def isatty(self) -> bool:
        return self._terminal

    def when(self, text: str, act: Callable[[], object]) -> None:
        self._cues.append((text, act))

    def write(self, text: str) -> int:
        written = super().write(text)
        seen = self.getvalue()
        for cue in [cue for cue in self._cues if cue[0] in seen]:
            self._cues.remove(cue)
            cue[1]()
        return written


class Keyboard(io.StringIO):
    """Lines that are typed, one for each time somebody waits for one; a callable is done instead.

    After the last comes Ctrl-D.
    """

    def __init__(self, *lines: str | Callable[[], object]) -> None:
        super().__init__()
        self._lines = list(lines)

    def readline(self, size: int | None = -1, /) -> str:
        if not self._lines:
            return ""
        line = self._lines.pop(0)
        if isinstance(line, str):
            return line + "\n"
        line()
        return "\n"


def serve(
    *words: str,
    then: Callable[[str], object] = lambda base_url: None,
    screen: Screen | None = None,
) -> str:
    """Run `dragoman serve WORDS` until `then`, given the base URL, is done; all it printed.

    Raises what `then` raises, and AssertionError if the server does not come up.
    """
    screen = screen or Screen()
    visits: list[Future[object]] = []

    def visit(base_url: str) -> object:
        try:
            return then(base_url)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool, redirect_stdout(screen):
        screen.when("Ctrl-C stops.", lambda: visits.append(pool.submit(visit, _url(screen))))
        status = main(["serve", *words])
    assert (status, len(visits)) == (130, 1)
    visits[0].result()
    return screen.getvalue()


def _url(screen: Screen) -> str:
    return screen.getvalue().partition("ready at ")[2].split()[0]


def wait_until_gone(asked: Asked) -> None:
    """Return when the server has seen that nobody waits for this answer any more."""
    deadline = time.monotonic() + SECONDS
    while not asked.gone.done():
        assert time.monotonic() < deadline, "still waited for"
        time.sleep(0.01)


@contextmanager
def upstream(handler: Handler | Reply, probed: Handler | Reply | None = None) -> Iterator[Mock]:
    """A mock in a thread of its own."""
    running: Future[tuple[Mock, Callable[[], None]]] = Future()

    async def play() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        async with mock(handler, probed) as server:
            running.set_result((server, lambda: loop.call_soon_threadsafe(over.set)))
            await over.wait()

    thread = Thread(target=asyncio.run, args=(play(),))
    thread.start()
    server, stop = running.result(SECONDS)
    try:
        yield server
    finally:
        stop()
        thread.join()
