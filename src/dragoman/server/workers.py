"""Several processes that do the same work, and one that looks after them.

The processes are forks, so that they share whatever was opened before, a listening socket above
all. A process that dies is replaced; one that cannot even start ends them all. It does not know
what the work is.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

HEALTHY = 1.0
"""Seconds a process must live to be worth replacing."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What asks us to stop."""


class WorkersError(Exception):
    """The workers cannot be kept running."""


def run_workers(work: Callable[[int, int], None], count: int) -> None:
    """Run `work` in `count` processes until SIGINT or SIGTERM, which are handed on to them.

    `work` gets its number, and a file descriptor at whose other end is this process: it closes
    when we die. Raises WorkersError where processes cannot be forked, or die as soon as started.
    """
    if not hasattr(os, "fork"):
        raise WorkersError("Several workers need a system that can fork. Use one.")
    crew = _Crew(work)
    before = {sig: signal.signal(sig, crew.stop) for sig in SIGNALS}
    try:
        for number in range(count):
            crew.start(number)
        crew.look_after()
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)


class _Crew:
    def __init__(self, work: Callable[[int, int], None]) -> None:
        self._work = work
        self._running: dict[int, tuple[int, float]] = {}  # process id: number, time of its start
        self._stopping = False
        self._lifeline, self._our_end = os.pipe()

    def start(self, number: int) -> None:
        # A signal in the middle waits, or it would miss a worker that is not yet on the list.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            if self._stopping:
                return
            pid = os.fork()
            if pid == 0:
                self._be_a_worker(number)
            self._running[pid] = number, time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def stop(self, sig: int, frame: FrameType | None = None) -> None:
        self._stopping = True
        for pid in self._running:
            with suppress(ProcessLookupError):
                os.kill(pid, sig)

    def look_after(self) -> None:
        failed = False
        while self._running:
            pid, _ = os.wait()
            number, since = self._running.pop(pid)
            if self._stopping:
                continue
            if time.monotonic() - since < HEALTHY:
                failed = True
                self.stop(signal.SIGTERM)
            else:
                self.start(number)
        os.close(self._our_end)
        os.close(self._lifeline)
        if failed:
            raise WorkersError("A worker ended as soon as it was started; see what it said above.")

    def _be_a_worker(self, number: int) -> None:
        """Runs in the new process, and never returns."""
        os.setpgid(0, 0)  # Ctrl-C reaches us through the one who looks after us, and only once
        os.close(self._our_end)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        status = 1
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self._work(number, self._lifeline)
            status = 0
        except KeyboardInterrupt:
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
