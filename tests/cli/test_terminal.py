"""The command line as a person meets it: words that make no sense, and Ctrl-C."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from dragoman.cli import main

SECONDS = 60
"""What a machine that does much else may take."""


def test_there_is_at_least_one_worker(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "script", "--workers", "0"])
    assert "at least one worker" in capsys.readouterr().err


@contextmanager
def terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command with a terminal of its own, and our end of that."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dragoman", *words]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(ours: int, wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        said += os.read(ours, 4096)
    return said


def interrupted(process: subprocess.Popen[bytes]) -> int:
    """The exit status after Ctrl-C. A signal between the prompt and the wait for a line is only
    seen after the wait, so a person who sees nothing happen presses again."""
    for _ in range(SECONDS):
        process.send_signal(2)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(1)
    raise AssertionError("it goes on")


@pytest.mark.timeout(SECONDS)
def test_ctrl_c_stops_the_answer_and_at_the_prompt_the_program() -> None:
    with terminal("chat", "--at", "script") as (process, ours):
        read_until(ours, b"> ")
        os.write(ours, b"count to 1000\n")
        read_until(ours, b"1, 2, 3")
        process.send_signal(2)
        read_until(ours, b"> ")
        os.write(ours, b"count to 3\n")
        read_until(ours, b"1, 2, 3.")
        read_until(ours, b"> ")
        assert interrupted(process) == 130
