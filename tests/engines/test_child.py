"""Processes that may be given up: what breaks in one message breaks nothing else."""

import errno
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from pathlib import Path

import pytest

from dragoman.core.error import FaultError
from dragoman.engines import child as children
from dragoman.engines.child import Child, ChildError, GivenUpError, Limits, end

LIMITS = Limits(seconds=1, memory=100 * 2**20)


def answering(setup: bytes) -> Callable[[bytes], bytes]:
    """What the child runs."""
    if setup == b"broken":
        raise ValueError("no such thing")
    if setup == b"dead":
        os._exit(3)

    def deep(number: int) -> int:
        return deep(number + 1) + 1

    def answer(message: bytes) -> bytes:
        match message:
            case b"memory":
                return b"x" * 2**30
            case b"loop":
                while True:
                    pass
            case b"crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case b"error":
                raise KeyError("what")
            case b"environment":
                return " ".join(sorted(os.environ)).encode()
            case b"long":
                return b"x" * 2**21
            case b"print":
                print("not for standard output")
        return setup + message

    return answer


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child(f"{__name__}:answering", b"say ")
    yield child
    child.close()


def ask(child: Child, message: bytes) -> bytes:
    return child.ask(message, LIMITS)


def test_a_child_answers_many_at_a_time(child) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(ask(child, b"%d" % n))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [b"say %d" % n for n in range(8)]


@pytest.mark.parametrize("message", [b"loop", b"crash", b"long"])
def test_what_breaks_is_its_own_message(child, message) -> None:
    with pytest.raises(GivenUpError):
        ask(child, message)
    assert ask(child, b"hi") == b"say hi"


def test_errors_are_raised(child) -> None:
    with pytest.raises(ChildError, match="KeyError: 'what'"):
        ask(child, b"error")
    with pytest.raises(ChildError, match="MemoryError"):
        ask(child, b"memory")


def test_a_child_knows_no_keys_and_writes_nowhere(child, monkeypatch, capfd) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert b"OPENAI_API_KEY" not in ask(child, b"environment")
    assert ask(child, b"print") == b"say print"
    assert capfd.readouterr().out == ""


def test_a_child_that_died_starts_anew(child) -> None:
    assert ask(child, b"one") == b"say one"
    end(child._pid)
    while not _gone(child._pid):
        pass
    assert ask(child, b"two") == b"say two"


def _gone(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_preparation_that_fails_is_an_error() -> None:
    with pytest.raises(ChildError, match="ValueError: no such thing"):
        Child(f"{__name__}:answering", b"broken").start(LIMITS)
    with pytest.raises(GivenUpError):
        Child(f"{__name__}:answering", b"dead").start(LIMITS)


def test_a_process_without_files_is_busy_and_keeps_its_child(monkeypatch) -> None:
    """The grammar was blamed for it, and the child was ended with all that it knew."""

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    child = Child(f"{__name__}:answering", b"")
    ask(child, b"hi")
    known = child._pid
    for place, name in ((children, "Pipe"), (reduction, "send_handle")):
        monkeypatch.setattr(place, name, full)
        with pytest.raises(FaultError, match="nothing more") as error:
            ask(child, b"hi")
        assert error.value.fault.code == "overloaded"
        monkeypatch.undo()
    assert ask(child, b"hi") == b"hi"
    assert child._pid == known
    child.close()


def test_a_system_without_room_for_a_process_gives_up(monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "posix_spawn", full)
    child = Child(f"{__name__}:answering", b"")
    with pytest.raises(FaultError, match="can start nothing more"):
        ask(child, b"hi")
    monkeypatch.undo()
    assert ask(child, b"hi") == b"hi"
    child.close()


def test_closing_leaves_nothing() -> None:
    def files() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before = files()
    child = Child(f"{__name__}:answering", b"")
    assert ask(child, b"hi") == b"hi"
    pid = child._pid
    child.close()
    child.close()
    assert files() == before
    assert not Path(f"/proc/{pid}").exists()


def test_a_garbage_collected_child_ends() -> None:
    child = Child(f"{__name__}:answering", b"")
    assert ask(child, b"hi") == b"hi"
    pid = child._pid
    del child
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()
