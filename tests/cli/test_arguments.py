"""The grammar: what is taken, what is refused, and that the help teaches both."""

import pytest

from dragoman.cli.main import parser
from dragoman.core.version import VERSION


def told(words: str, capsys: pytest.CaptureFixture[str], status: str) -> str:
    """What the parser says when it ends the program."""
    with pytest.raises(SystemExit, match=f"^{status}$"):
        parser().parse_args(words.split())
    shown = capsys.readouterr()
    return " ".join((shown.err if status == "2" else shown.out).split())


TAUGHT = {
    "--help": ["serve models over", "dragoman ask", "Ctrl-C stops an answer", "rehearsal"],
    "serve --help": ["looks for model servers", "127.0.0.1", "8000", "--upstream-key-env NAME"],
    "ask --help": ["standard input", "first listed", "`script`"],
    "chat --help": ["how hard to think", "instructions for the model"],
    "models --help": ["whatever answers on this machine", "--key-env NAME"],
}


@pytest.mark.parametrize("words", TAUGHT)
def test_help_teaches(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(words, capsys, "0")
    assert not [text for text in TAUGHT[words] if text not in shown], shown


def test_every_command_is_named_and_has_a_help_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("serve", "models", "ask", "chat", "tokens"):
        assert command in told("--help", capsys, "0")
        assert "usage: dragoman " + command in told(f"{command} --help", capsys, "0")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert told("--version", capsys, "0") == f"dragoman {VERSION}"


REFUSED = {
    "srve": "invalid choice: 'srve'",
    "serve --prot": "unrecognized arguments: --prot",
    "serve --port x": "--port: invalid port value: 'x'",
    "serve --port 65536": "--port: a port is between 0 and 65535",
    "serve --port -1": "--port: a port is between 0 and 65535",
    "serve --workers 0": "--workers: there must be at least one worker",
    "serve --workers many": "--workers: invalid workers value: 'many'",
    "serve --retries -1": "--retries: a request is tried again at most 10 times",
    "serve --retries 11": "--retries: a request is tried again at most 10 times",
    "serve --wire smoke": "--wire: invalid choice: 'smoke'",
    "serve --upstream": "--upstream: expected one argument",
    "ask --port": "unrecognized arguments: --port",
    "models a": "unrecognized arguments: a",
}


@pytest.mark.parametrize("words", REFUSED)
def test_words_that_make_no_sense_are_refused_and_named(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = told(words, capsys, "2")
    assert REFUSED[words] in shown
    assert "usage: dragoman" in shown


def test_what_is_said_is_understood() -> None:
    words = "serve script --port 0 --upstream http://a --upstream http://b --workers 2"
    options = parser().parse_args(words.split())
    assert options.targets == ["script"]
    assert (options.port, options.workers) == (0, 2)
    assert options.upstream == ["http://a", "http://b"]
    options = parser().parse_args(["chat", "-m", "a", "-s", "Be brief.", "--effort", "low"])
    assert (options.model, options.system, options.effort) == ("a", "Be brief.", "low")
