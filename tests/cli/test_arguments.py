"""Arguments that are accepted and refused, and the help texts."""

import pytest

from dragoman.cli.main import parser
from dragoman.core.interfaces import VERSION


def output(words: str, capsys: pytest.CaptureFixture[str], status: str) -> str:
    """The text that the parser prints when it exits."""
    with pytest.raises(SystemExit, match=f"^{status}$"):
        parser().parse_args(words.split())
    shown = capsys.readouterr()
    return " ".join((shown.err if status == "2" else shown.out).split())


HELP = {
    "--help": ["serve models over", "dragoman ask", "Ctrl-C stops an answer", "demo engine"],
    "serve --help": ["looks for model servers", "127.0.0.1", "8000", "--upstream-key-env NAME"],
    "ask --help": ["standard input", "first listed", "`script`"],
    "chat --help": ["reasoning effort", "instructions for the model"],
    "models --help": ["the one found on this machine", "--key-env NAME"],
}


@pytest.mark.parametrize("words", HELP)
def test_help_lists_options_and_defaults(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = output(words, capsys, "0")
    assert not [text for text in HELP[words] if text not in shown], shown


def test_every_command_is_listed_and_has_its_own_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("serve", "models", "ask", "chat", "tokens"):
        assert command in output("--help", capsys, "0")
        assert "usage: dragoman " + command in output(f"{command} --help", capsys, "0")


def test_version_option_prints_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert output("--version", capsys, "0") == f"dragoman {VERSION}"


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
    "serve --upstream": "--upstream: expected one argument",
    "ask --port": "unrecognized arguments: --port",
    "models a": "unrecognized arguments: a",
}


@pytest.mark.parametrize("words", REFUSED)
def test_invalid_arguments_are_refused_by_name(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = output(words, capsys, "2")
    assert REFUSED[words] in shown
    assert "usage: dragoman" in shown


def test_arguments_are_parsed() -> None:
    words = "serve script --port 0 --upstream http://a --upstream http://b --workers 2"
    options = parser().parse_args(words.split())
    assert options.targets == ["script"]
    assert (options.port, options.workers) == (0, 2)
    assert options.upstream == ["http://a", "http://b"]
    options = parser().parse_args(["chat", "-m", "a", "-s", "Be brief.", "--effort", "low"])
    assert (options.model, options.system, options.effort) == ("a", "Be brief.", "low")
