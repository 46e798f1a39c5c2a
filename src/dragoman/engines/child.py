"""Runs our functions in processes with limits, isolated from slowness, memory use and crashes.

A `Child` is a process that has done some preparation (read a vocabulary, compiled a template) and
forks for each message, so that each message has limits of its own and is isolated.
Systems without fork run the function in this process, without limits.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec import Struct

from dragoman.core.error import Fault, FaultError

Answering = Callable[[bytes], bytes]

FORKS = hasattr(os, "fork") and hasattr(os, "posix_spawn") and bool(sys.executable)
STACK = 4 * 1024 * 1024
"""Bytes of stack of a forked process; less than our threads have, so that it overflows first."""
START_SECONDS = 60.0
"""Seconds for a child's preparation, on a busy machine."""
PATIENCE = 10
"""Wall-clock seconds for each second of processor time, before a process is killed."""


_EXHAUSTED = (errno.EMFILE, errno.ENFILE)
"""The errors of a system, or a process, without free file descriptors."""


class Limits(Struct, frozen=True):
    """The limits of one message: seconds of processor time, bytes of memory beyond the
    child's own, and bytes of the answer."""

    seconds: int
    memory: int
    answer: int = 1 << 20


class ChildError(Exception):
    """The function raised: its type and message."""


class GivenUpError(Exception):
    """The process took more than its limits allow, or died."""


class Interest:
    """Cancels the work of a thread. `process` is a process that the work waits for, or 0."""

    def __init__(self) -> None:
        self.left = False
        self.process = 0

    def leave(self) -> None:
        """Cancel: the result is not needed any more."""
        self.left = True
        if self.process:
            end(self.process)

    def began(self, process: int) -> None:
        """The work waits for a process; 0: no longer. Raises CancelledError where the work was
        cancelled."""
        self.process = process
        if self.left:
            if process:
                end(process)
            raise CancelledError


here = threading.local()
"""The `Interest` in the work of this thread, where it can be cancelled."""


class Child:
    """A process that answers messages by a function of ours.

    `function` is named `module:name`. It is called once with `setup`, and returns a function that
    answers messages, each in a fork. The process starts with the first message, restarts if it
    dies, and ends with `close`, or when the child is garbage-collected. Used from any thread.
    """

    def __init__(self, function: str, setup: bytes) -> None:
        self._function = function
        self._setup = setup
        self._lock = threading.Lock()
        self._control: Connection | None = None
        self._pid = self._owner = 0
        self._end: Callable[[], object] | None = None
        self._inline: Answering | None = None

    def start(self, limits: Limits) -> None:
        """Start the process now. Raises ChildError and GivenUpError."""
        if not FORKS:
            self._here(None)
            return
        with self._lock:
            self._start(limits)

    def ask(self, message: bytes, limits: Limits) -> bytes:
        """The answer. Its process ends with the interest in this thread's work (`here.interest`).
        Raises ChildError and GivenUpError, and
        FaultError where the system has no room for it."""
        if not FORKS:
            return self._here(message)
        interest = getattr(here, "interest", None) or Interest()
        try:
            ours, theirs = Pipe()
        except OSError as error:
            raise _no_room(error) from None
        with ours:
            with theirs:
                self._hand_over(theirs, limits)
            try:
                if not ours.poll(START_SECONDS):
                    raise GivenUpError
                pid = int(ours.recv_bytes())
                interest.began(pid)
                ours.send_bytes(message)
                if not ours.poll(limits.seconds * PATIENCE):
                    end(pid)
                    raise GivenUpError
                return _unwrapped(ours.recv_bytes(limits.answer + 1))
            except (EOFError, OSError) as error:
                raise GivenUpError from error
            finally:
                interest.began(0)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._close()

    # ---- inside --------------------------------------------------------------------------

    def _hand_over(self, connection: Connection, limits: Limits) -> None:
        with self._lock:
            for attempt in (1, 2):
                control = self._control
                if control is None or self._owner != os.getpid():
                    control = self._start(limits)
                try:
                    reduction.send_handle(control, connection.fileno(), self._pid)
                    control.send((limits.seconds, limits.memory))
                    return
                except OSError as error:
                    if error.errno in _EXHAUSTED:
                        raise _no_room(error) from None
                    self._close()
                    if attempt == 2:
                        raise GivenUpError from None

    def _start(self, limits: Limits) -> Connection:
        self._close()
        try:
            self._pid, ours = spawn(__name__, {})
        except OSError as error:
            raise _no_room(error) from None
        self._control, self._owner = ours, os.getpid()
        self._end = weakref.finalize(self, _put_away, ours, self._pid, self._owner)
        try:
            ours.send((self._function, self._setup, limits.seconds, limits.memory))
            if not ours.poll(START_SECONDS):
                raise GivenUpError
            _unwrapped(ours.recv_bytes())
        except (EOFError, OSError) as error:
            self._close()
            raise GivenUpError from error
        except (GivenUpError, ChildError):
            self._close()
            raise
        return ours

    def _close(self) -> None:
        self._control = None
        if self._end is not None:
            self._end()

    def _here(self, message: bytes | None) -> bytes:
        if self._inline is None:
            self._inline = _function(self._function)(self._setup)
        return b"" if message is None else self._inline(message)


def _no_room(error: OSError) -> FaultError:
    """The fault where the system has no file descriptor or process for a child."""
    problem = f"The server is busy: it can start nothing more ({error.strerror})."
    return FaultError(Fault("overloaded", problem, "server", retry_after="1"))


def _put_away(control: Connection, pid: int, owner: int) -> None:
    """End a child. One that was started before a fork belongs to the parent process."""
    control.close()
    if owner == os.getpid():
        end(pid)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def spawn(module: str, environ: Mapping[str, str]) -> tuple[int, Connection]:
    """Start a Python process that runs `serve` of a module, with a connection as its
    descriptor 3, and only this environment."""
    ours, theirs = Pipe()
    with theirs:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", f"from {module} import serve; serve()"],
            {**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)],
            setpgroup=0,  # the parent handles Ctrl-C
        )
    return pid, ours


def inherited() -> Connection:
    """In a spawned process: the connection to its parent. Libraries must not print to our
    standard output."""
    os.dup2(2, 1)
    control = Connection(os.dup(3))
    os.close(3)
    return control


def end(pid: int) -> None:
    """Kill a process, if it exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def _unwrapped(answer: bytes) -> bytes:
    if answer[:1] == b"!":
        raise ChildError(answer[1:].decode("utf-8", "replace"))
    return answer[1:]


# ---- in the child ------------------------------------------------------------------------------


def serve() -> None:
    """The main loop of a child: prepare, then fork for each message until the connection ends."""
    control = inherited()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap forks automatically
    function, setup, seconds, memory = control.recv()
    answering: Answering | None = None

    def prepare() -> bytes:
        nonlocal answering
        answering = _function(function)(setup)
        return b""

    limited = _limit(seconds, memory)
    reply = _answered(prepare)
    limited()
    control.send_bytes(reply)
    if answering is None:
        return
    while True:
        try:
            handle = reduction.recv_handle(control)
            seconds, memory = control.recv()
        except (EOFError, OSError):
            return
        if os.fork() == 0:
            os.nice(5)  # lower priority than the model
            control.close()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # errors are reported in the answer
            with Connection(handle) as connection:
                connection.send_bytes(b"%d" % os.getpid())
                work = partial(answering, connection.recv_bytes())
                _limit(seconds, memory)
                connection.send_bytes(_answered(work))
            os._exit(0)
        os.close(handle)


def _answered(work: Callable[[], bytes]) -> bytes:
    """The answer, or the error, of work on a stack of a known size."""
    answer = b""

    def run() -> None:
        nonlocal answer
        try:
            answer = b"." + work()
        except BaseException as error:
            answer = f"!{type(error).__name__}: {error}"[:4_000].encode("utf-8", "replace")

    threading.stack_size(STACK)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answer


def _limit(seconds: int, memory: int) -> Callable[[], None]:
    """Limit this process; the result lifts the limits."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    whole = max(round(used.ru_utime + used.ru_stime + seconds), 1)
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: whole}
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + memory
    before = {kind: resource.getrlimit(kind) for kind in limits}
    for kind, most in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, before[kind][1]))

    def lift() -> None:
        for kind, old in before.items():
            with suppress(ValueError, OSError):
                resource.setrlimit(kind, old)

    return lift
