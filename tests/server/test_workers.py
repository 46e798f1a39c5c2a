"""Those who look after workers: who is started, replaced, told to stop. No process is forked here;
`test_host` does that, and sees the whole of it from outside."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from dragoman.server import host as room
from dragoman.server.host import HostError, run_workers

Act = Callable[[], object]
MADE_BY_US = (101, 102)
"""The two ends of the lifeline: the workers' and ours."""


class ExitedError(BaseException):
    """The process would be gone."""


class System:
    """The operating system. `deaths` are the workers that die, in this order: each is the number
    of a process, counted from 1, or something that happens before the next one dies."""

    def __init__(self, *deaths: int | Act) -> None:
        self._deaths = list(deaths)
        self.forks = 0
        self.killed: list[tuple[int, int]] = []
        self.closed: list[int] = []

    def pipe(self) -> tuple[int, int]:
        return MADE_BY_US

    def close(self, descriptor: int) -> None:
        self.closed.append(descriptor)

    def fork(self) -> int:
        self.forks += 1
        return self.forks

    def wait(self) -> tuple[int, int]:
        death = self._deaths.pop(0)
        while not isinstance(death, int):
            death()
            death = self._deaths.pop(0)
        return death, 0

    def kill(self, pid: int, sig: int) -> None:
        self.killed.append((pid, sig))
        if pid == 2:  # one that died a moment ago
            raise ProcessLookupError


class Child(System):
    """The same, as a process sees it that was forked."""

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
    before = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM)}
    yield dict(before)
    for sig, handler in before.items():
        signal.signal(sig, handler)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Callable[[System], System]:
    def put(system: System) -> System:
        monkeypatch.setattr(room, "os", system)
        return system

    return put


Put = Callable[[System], System]


def signalled(sig: int) -> Act:
    return lambda: signal.raise_signal(sig)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signal_is_passed_on_and_no_worker_is_replaced(
    sig: int, system: Put, handlers: dict[int, object]
) -> None:
    played = system(System(signalled(sig), 3, 1, 2))
    run_workers(nothing, 3)
    assert played.forks == 3
    assert played.killed == [(1, sig), (2, sig), (3, sig)]
    assert played.closed == list(reversed(MADE_BY_US))
    assert {each: signal.getsignal(each) for each in handlers} == handlers


def test_a_worker_that_dies_is_replaced(system: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "HEALTHY", 0.0)
    played = system(System(1, 3, signalled(signal.SIGTERM), 2, 4))
    run_workers(nothing, 2)
    assert played.forks == 4
    assert [pid for pid, _ in played.killed] == [2, 4]


def test_workers_that_die_at_once_end_them_all(
    system: Put, monkeypatch: pytest.MonkeyPatch, handlers: dict[int, object]
) -> None:
    monkeypatch.setattr(room, "HEALTHY", 1e9)
    played = system(System(1, 2, 3))
    with pytest.raises(HostError, match="as soon as it was started"):
        run_workers(nothing, 3)
    assert played.forks == 3
    assert played.killed == [(2, signal.SIGTERM), (3, signal.SIGTERM)]
    assert {each: signal.getsignal(each) for each in handlers} == handlers


def test_no_worker_is_started_after_a_signal(system: Put) -> None:
    class Interrupted(System):
        def fork(self) -> int:
            signalled(signal.SIGTERM)()  # it waits until the new one is on the list
            return super().fork()

    played = system(Interrupted(1))
    run_workers(nothing, 3)
    assert played.forks == 1
    assert played.killed == [(1, signal.SIGTERM)]


@pytest.mark.parametrize(("ending", "status"), [(None, 0), (KeyboardInterrupt, 0), (ValueError, 1)])
def test_worker_exits_with_its_status(
    ending: type[BaseException] | None,
    status: int,
    system: Put,
    capsys: pytest.CaptureFixture[str],
) -> None:
    worked: list[tuple[int, int]] = []

    def work(number: int, lifeline: int) -> None:
        worked.append((number, lifeline))
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(room.SIGNALS)
        if ending is not None:
            raise ending("why")

    played = system(Child())
    with pytest.raises(ExitedError, match=str(status)):
        run_workers(work, 2)
    assert worked == [(0, MADE_BY_US[0])]
    assert played.closed == [MADE_BY_US[1]]
    assert ("ValueError: why" in capsys.readouterr().err) == bool(status)


def test_without_forks_there_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(HostError, match="Use one"):
        run_workers(nothing, 2)
