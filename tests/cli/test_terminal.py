"""The command line on a terminal of its own, with the keys a person has: Ctrl-C and Ctrl-D."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SECONDS = 60
"""What a machine that does much else may take."""
CTRL_C, CTRL_D = b"\x03", b"\x04"
DIM, PLAIN = b"\x1b[2m", b"\x1b[0m"

PROGRAM = """
import os, sys
os.login_tty(0)  # so that the keys are signals
from dragoman.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Terminal:
    """A command with a terminal, and our end of that."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self._ours = ours

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def until(self, wanted: bytes) -> bytes:
        """All that is shown up to where this is."""
        said = b""
        while wanted not in said:
            said += os.read(self._ours, 4096)
        return said

    def pressed_until_it_ends(self, key: bytes) -> int:
        """The exit status. A signal between the prompt and the wait for a line is only seen after
        the wait, so a person who sees nothing happen presses again."""
        for _ in range(SECONDS):
            self.press(key)
            while select.select([self._ours], [], [], 1)[0]:
                try:
                    os.read(self._ours, 4096)
                except OSError:  # how this end sees that the other is closed
                    return self.process.wait()
        raise AssertionError("it goes on")


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


@pytest.mark.timeout(2 * SECONDS)
def test_ctrl_c_stops_the_answer_and_at_the_prompt_the_program() -> None:
    with terminal("chat", "--at", "script") as person:
        person.until(b"> ")
        person.press(b"count to 1000\n")
        person.until(b"1, 2, 3")
        person.press(CTRL_C)
        person.until(b"> ")
        person.press(b"count to 3\n")
        person.until(b"1, 2, 3.")
        person.until(b"> ")
        assert person.pressed_until_it_ends(CTRL_C) == 130


@pytest.mark.timeout(2 * SECONDS)
def test_ctrl_c_stops_a_server() -> None:
    with terminal("serve", "script", "--port", "0") as person:
        assert b"Dragoman is ready at http://127.0.0.1:" in person.until(b"Ctrl-C stops.")
        assert person.pressed_until_it_ends(CTRL_C) == 130
