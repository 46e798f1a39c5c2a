"""Those who look after workers: who is started, replaced, told to stop. No process is forked here;
`test_host` does that, and sees the whole of it from outside."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from dragoman.server import host as room
from dragoman.server.app import App
from dragoman.server.host import HostError, Server, check, run_workers
from dragoman.server.settings import Settings
from tests.server.stubs import Stub

MADE_BY_US = (101, 102)
"""The two ends of the lifeline: the workers' and ours."""


class ExitedError(BaseException):
    """The process would be gone."""


class Child:
    """The operating system as a process sees it that was forked."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    def pipe(self) -> tuple[int, int]:
        return MADE_BY_US

    def close(self, descriptor: int) -> None:
        self.closed.append(descriptor)

    def fork(self) -> int:
        return 0

    def setpgid(self, pid: int, group: int) -> None:
        self.group = group

    def _exit(self, status: int) -> None:
        raise ExitedError(status)


def nothing(number: int, lifeline: int) -> None:
    """No work."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[int, object]]:
    """The signal handlers of this process, which are put back in the end."""
    before = {sig: signal.getsignal(sig) for sig in room.SIGNALS}
    yield dict(before)
    for sig, handler in before.items():
        signal.signal(sig, handler)


@pytest.mark.parametrize(("ending", "status"), [(None, 0), (KeyboardInterrupt, 0), (ValueError, 1)])
def test_worker_exits_with_its_status(ending, status, handlers, monkeypatch, capsys) -> None:
    worked: list[tuple[int, int]] = []

    def work(number: int, lifeline: int) -> None:
        worked.append((number, lifeline))
        for sig in room.SIGNALS[1:]:
            assert signal.getsignal(sig) == handlers[sig]  # nohup has SIGHUP ignored
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(room.SIGNALS)
        if ending is not None:
            raise ending("why")

    played = Child()
    monkeypatch.setattr(room, "os", played)
    with pytest.raises(ExitedError, match=str(status)):
        run_workers(work, 2)
    assert worked == [(0, MADE_BY_US[0])]
    assert played.closed == [MADE_BY_US[1]]
    assert ("ValueError: why" in capsys.readouterr().err) == bool(status)


def test_first_process_of_a_container_inherits_processes_that_are_no_workers(monkeypatch) -> None:
    class Parent(Child):
        ended = iter((99, 101))

        def fork(self) -> int:
            return 101

        def kill(self, pid: int, sig: int) -> None:
            """It ends."""

        def wait(self) -> tuple[int, int]:
            if (pid := next(self.ended)) == 101:
                signal.raise_signal(signal.SIGTERM)
            return pid, 0

    played = Parent()
    monkeypatch.setattr(room, "os", played)
    run_workers(nothing, 1)
    assert played.closed == [MADE_BY_US[1], MADE_BY_US[0]]


class Crowded(Child):
    """A system that has no process left now and then."""

    def __init__(self, *forks: int | OSError) -> None:
        super().__init__()
        self.forks = iter(forks)
        self.told: list[tuple[int, int]] = []

    def fork(self) -> int:
        if isinstance(pid := next(self.forks), OSError):
            raise pid
        return pid

    def kill(self, pid: int, sig: int) -> None:
        self.told.append((pid, sig))

    def wait(self) -> tuple[int, int]:
        if next(self.forks, None) is None:
            signal.raise_signal(signal.SIGTERM)
            return 102, 0
        return 101, signal.SIGKILL

    @staticmethod
    def waitstatus_to_exitcode(status: int) -> int:
        return -status


def test_a_worker_for_which_there_is_no_process_is_started_later(monkeypatch) -> None:
    played = Crowded(101, 0, OSError(), OSError(), 102)
    monkeypatch.setattr(room, "os", played)
    monkeypatch.setattr(room, "AGAIN", 0.0)
    monkeypatch.setattr(room, "HEALTHY", 0.0)  # it lived long enough
    run_workers(nothing, 1)
    assert played.told == [(102, signal.SIGTERM)]


def test_where_there_are_no_processes_for_all_workers_none_is_left(monkeypatch) -> None:
    played = Crowded(101, OSError())
    monkeypatch.setattr(room, "os", played)
    with pytest.raises(HostError, match="no processes left"):
        run_workers(nothing, 2)
    assert played.told == [(101, signal.SIGTERM)]


def test_without_forks_there_is_one_worker(monkeypatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(HostError, match="Use one"):
        run_workers(nothing, 2)


def test_workers_share_no_memory_so_no_store_in_it() -> None:
    check(Settings(workers=2, store="none"))
    check(Settings(workers=1, store="memory"))
    with pytest.raises(HostError, match="a memory of its own"):
        check(Settings(workers=2, store="memory"))


@pytest.mark.parametrize("ignored", [False, True])
def test_l9_a_closed_terminal_is_as_sigterm_unless_that_is_ignored(ignored) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    server = Server(App(Stub(), Settings()), Settings())
    with server.capture_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        assert server.should_exit is not ignored
        assert server._captured_signals == ([] if ignored else [signal.SIGTERM])
        server._captured_signals.clear()  # uvicorn would raise them again
    after = signal.SIG_IGN if ignored else signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) == after


def test_e1_the_exit_of_a_worker_is_not_written_to_a_full_pipe(monkeypatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe, os.fdopen(reading, "rb") as end:
        os.set_blocking(writing, False)  # a write that would wait is an error
        os.set_blocking(reading, False)
        monkeypatch.setattr(sys, "stderr", pipe)
        room._report_exit(0, 9, 0.0)
        pipe.flush()
        said = "Worker 0 ended by signal 9; it is started again now."
        moment, _, rest = end.read().decode().partition(" ")
        assert (moment[-1], rest) == ("Z", f"WARNING {said}\n")
        room._report_exit(0, 9, 0.0, as_json=True)
        pipe.flush()
        line = json.loads(end.read())
        assert (line.pop("time")[-1], line) == ("Z", {"level": "WARNING", "message": said})
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(65_536))
        room._report_exit(0, 9, 0.0)
        pipe.flush()
        assert not end.read().strip(b"\0")
