"""What models, clients and servers say cannot command the terminal on which it is shown."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator

import pytest

from dragoman.cli import main
from dragoman.engines import discover
from dragoman.program import Model, assistant, gen, user
from dragoman.server.state.history import History, name
from dragoman.stores.sqlite import SqliteStore
from tests.cli.stage import Keyboard, Screen, upstream
from tests.mock import Mock, chunk, plain, stream
from tests.server.state.storing import storing
from tests.server.stubs import Stub, saying

# OSC 52 (the clipboard), clear, the title, DCS, C1 in its one-character forms, backspace, a line
# that is written over, half a surrogate pair.
TEXT = "\u202ea\x1b]52;c;aGk=\x07\x1b[2J\x1b]0;owned\x07\x1bPq\x1b\\\x9b31m\x9d0;x\x9c\x08\x7fb\rc"
EVIL = f"{TEXT}\udcffd"  # not as UTF-8
COMMANDS = (
    "\x1b]",
    "\x1b[2J",
    "\x1bP",
    "\x9b",
    "\x9d",
    "\x9c",
    "\x07",
    "\x08",
    "\x7f",
    "\r",
    "\udcff",
    "\u202e",
)
ID = "model\x1b[2J"


def shown(*words: str, status: int = 0, typed: str = "", terminal: bool = True) -> str:
    """All that a command shows on a terminal, or in a pipe."""
    screen = Screen(terminal=terminal)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, screen)
        patch.setattr(sys, "stdin", Keyboard(*typed.split()))
        patch.setattr(discover, "PORTS", ())
        assert main(words) == status, screen.getvalue()
    return screen.getvalue()


@pytest.fixture
def up() -> Iterator[Mock]:
    call = {"index": 0, "id": "c", "function": {"name": f"f{TEXT}", "arguments": TEXT}}
    deltas = ({"reasoning_content": EVIL}, {"content": EVIL}, {"tool_calls": [call]})
    answer = stream(*map(chunk, deltas), chunk(finish="stop"))
    with upstream(answer, plain(200, {"object": "list", "data": [{"id": ID}]})) as server:
        yield server


def check(shown: str) -> None:
    """Nothing commands the terminal, and that there was something can be seen."""
    assert not [each for each in COMMANDS if each in shown], shown
    assert "\u241b" in shown or "\\x1b" in shown or " ]52" in shown, shown


def test_7_08_an_answer_cannot_command_the_terminal(up: Mock) -> None:
    check(shown("ask", "--at", up.base_url, "Hi"))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_program_that_is_shown_cannot_command_the_terminal(up: Mock, terminal) -> None:
    with user():
        lm = Model(up.base_url) + EVIL
    with assistant():
        lm += gen("x")
    screen = Screen(terminal=terminal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        lm.show()
    check(screen.getvalue())


def test_7_08_a_chat_cannot_command_the_terminal(up: Mock) -> None:
    check(shown("chat", "--at", up.base_url, typed="Hi"))


def test_7_08_a_failure_cannot_command_the_terminal(up: Mock) -> None:
    up.handler = lambda asked: plain(400, {"error": {"message": TEXT}})
    check(shown("ask", "--at", up.base_url, "Hi", status=1))
    check(shown("ask", "--at", up.base_url, "Hi", status=1, terminal=False))


def test_7_08_names_of_models_cannot_command_the_terminal(up: Mock) -> None:
    check(shown("models", "--at", up.base_url))


def test_a_long_name_makes_no_line_longer_than_it_is_shown(up: Mock) -> None:
    names = ["x" * 4_000, *(f"m{number}" for number in range(50))]
    up.probed = lambda asked: plain(200, {"object": "list", "data": [{"id": n} for n in names]})
    said = shown("models", "--at", up.base_url, terminal=False)
    assert "x" * 199 + "…" in said
    assert len(said) < 52 * 300


@pytest.mark.parametrize("terminal", [True, False])
def test_7_08_a_model_has_one_line(up: Mock, terminal: bool) -> None:
    names = [
        "a\nforged  http://evil.example",
        "b\tc",
        "d\u202eevil\u2066",
        "e\u2028f",
        "g\x85h",
    ]
    up.probed = lambda asked: plain(200, {"object": "list", "data": [{"id": n} for n in names]})
    said = shown("models", "--at", up.base_url, terminal=terminal)
    assert len(said.splitlines()) == 1 + len(names)
    assert all(letter.isprintable() for letter in said.replace("\n", ""))


def test_7_08_stored_texts_cannot_command_the_terminal(tmp_path) -> None:
    store = tmp_path / "store.db"

    async def ask() -> str:
        async with storing(Stub(*saying(TEXT)), SqliteStore(store)) as server:
            await server.ask(input=TEXT, model=ID)
            (record,) = [each async for each in History(server.memory.store).records()]
            return name(record)

    id = asyncio.run(ask())
    check(shown("log", "--store", f"sqlite:{store}"))
    check(shown("tail", "--store", f"sqlite:{store}", id))


def test_7_08_tokens_cannot_command_the_terminal(tmp_path) -> None:
    request, completion = tmp_path / "request.json", tmp_path / "completion.txt"
    request.write_text(json.dumps({"input": TEXT, "tools": [{"type": ID}]}))
    head = f"commentary to=functions.{TEXT.replace(' ', '')}"
    completion.write_text(f"<|channel|>{head}<|message|>{TEXT}<|call|>")
    words = ["--format", "harmony", "--request", str(request), "--completion", str(completion)]
    check(shown("tokens", *words))


def test_7_08_pipes_get_every_character(up: Mock) -> None:
    assert TEXT in shown("ask", "--at", up.base_url, "Hi", terminal=False)
