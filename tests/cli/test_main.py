"""From words to an exit status: what runs by default, and what each kind of ending is."""

import io
import os
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.cli.main import parse, parser
from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import VERSION
from dragoman.net.errors import NetError
from dragoman.server.config import ConfigurationError
from dragoman.server.host import HostError
from tests.product import SOURCE


def instead(monkeypatch: pytest.MonkeyPatch, name: str, ending: object = 0) -> list[Namespace]:
    """Put an ending in place of a command; the options it is called with."""
    called: list[Namespace] = []

    def command(options: Namespace) -> object:
        called.append(options)
        if isinstance(ending, BaseException):
            raise ending
        return ending

    monkeypatch.setattr(f"dragoman.cli.{name}.{name}", command)
    return called


@pytest.mark.parametrize("words", [[], ["--port", "9"], ["--upstream", "http://a"], ["serve"]])
def test_serve_is_the_default_command(words, monkeypatch) -> None:
    called = instead(monkeypatch, "serve")
    assert main(words) == 0
    assert [options.command for options in called] == ["serve"]


def test_arguments_of_the_process_are_the_default(monkeypatch) -> None:
    called = instead(monkeypatch, "chat", 1)
    monkeypatch.setattr(sys, "argv", ["dragoman", "ask", "why", "so"])
    assert main() == 1
    assert called[0].question == ["why", "so"]


@pytest.mark.parametrize(
    "error",
    [
        FaultError(Fault("model_not_found", "What happened.", "client")),
        NetError("What happened."),
        ConfigurationError("What happened."),
        HostError("What happened."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_expected_failure_prints_one_line(error, monkeypatch, capsys) -> None:
    instead(monkeypatch, "serve", error)
    assert main([]) == 1
    assert capsys.readouterr() == ("", "dragoman: What happened.\n")


def test_unexpected_failure_prints_a_traceback(monkeypatch) -> None:
    instead(monkeypatch, "serve", ValueError("a defect"))
    with pytest.raises(ValueError, match="a defect"):
        main([])


def test_ctrl_c_exits_with_130(monkeypatch) -> None:
    instead(monkeypatch, "serve", KeyboardInterrupt())
    assert main([]) == 130


@pytest.mark.parametrize("words", [["ask", "Count to 1000."], ["models"]])
def test_closed_output_pipe_exits_silently(words, monkeypatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main([*words, "--at", "script"]) == 1
        print("what was left", flush=True)
        monkeypatch.undo()


def test_output_that_cannot_be_written_is_one_line(monkeypatch, capfd) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["ask", "--at", "script", "Hi"]) == 1
        print("what was left", flush=True)
        monkeypatch.undo()
    assert capfd.readouterr().err == (
        "dragoman: The output cannot be written: No space left on device.\n"
    )


def test_help_that_cannot_be_written_is_one_line(monkeypatch, capfd) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["--help"]) == 1
        monkeypatch.undo()
    assert capfd.readouterr().err == (
        "dragoman: The output cannot be written: No space left on device.\n"
    )


CLOSED = """
import os, sys
from dragoman.cli.main import _open_streams
_open_streams()
assert [os.get_inheritable(number) for number in range(3)] == [True] * 3
assert sys.stdin.read() == ""
print("nobody"), print("nobody", file=sys.stderr)
os.pipe()  # has other numbers
"""


@pytest.mark.parametrize("closed", ["0", "2", "0 1 2"])
def test_closed_streams_lead_nowhere(closed) -> None:
    """What a library or a child writes to a stream is nothing for a socket with its number."""
    shut = " ".join(f"{number}{'<' if number == '0' else '>'}&-" for number in closed.split())
    words = ["sh", "-c", f'exec "$0" -c "$1" </dev/null {shut}', sys.executable, CLOSED]
    done = subprocess.run(words, env={**os.environ, **SOURCE}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "" if "2" in closed else "nobody\n")


def test_the_module_is_the_command(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["dragoman", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("dragoman", run_name="__main__")
    assert capsys.readouterr().out == f"dragoman {VERSION}\n"


def test_importing_the_module_runs_nothing(capsys) -> None:
    runpy.run_module("dragoman.__main__", run_name="imported")
    assert capsys.readouterr() == ("", "")


# ---- arguments -----------------------------------------------------------------------------


def output(words: str, capsys: pytest.CaptureFixture[str], status: str) -> str:
    """The text that the parser prints when it exits."""
    with pytest.raises(SystemExit, match=f"^{status}$"):
        parse(words.split())
    shown = capsys.readouterr()
    return " ".join((shown.err if status == "2" else shown.out).split())


HELP = {
    "--help": ["serve models over", "dragoman ask", "Ctrl-C stops an answer", "demo engine"],
    "serve --help": ["looks for model servers", "127.0.0.1", "8000", "--upstream-key-env NAME"],
    "ask --help": ["piped in is appended", "Send one question"],
    "tail --help": ["Replay or follow one answer."],
    "log --help": ["chat completions only where it says `store: true`"],
    "serve -h": ["may be given several times", "--context N", "--threads N"],
    "ask -h": ["first listed", "`script`"],
    "chat --help": ["reasoning effort", "instructions for the model"],
    "models --help": ["the one found on this machine", "--key-env NAME"],
}


@pytest.mark.parametrize("words", HELP)
def test_help_lists_options_and_defaults(words, capsys) -> None:
    shown = output(words, capsys, "0")
    assert not [text for text in HELP[words] if text not in shown], shown


def test_every_command_is_listed_and_has_its_own_help(capsys) -> None:
    for command in ("serve", "models", "ask", "chat", "agent", "run", "tokens"):
        assert command in output("--help", capsys, "0")
        assert "usage: dragoman " + command in output(f"{command} --help", capsys, "0")


def test_version_option_prints_version(capsys) -> None:
    assert output("--version", capsys, "0") == f"dragoman {VERSION}"


REFUSED = {
    "srve": "dragoman: error: there is no command 'srve'; did you mean serve?",
    "aks Hi": "there is no command 'aks'; did you mean ask?",
    "poket": "there is no command 'poket'; there is serve, models, ask, chat, talk, agent, run",
    "pocket": "there is no command 'pocket'; say dragoman serve pocket",
    "gguf:a": "there is no command 'gguf:a'; say dragoman serve gguf:a",
    "version": "there is no command 'version'; say dragoman --version",
    "serve --prot 1": "usage: dragoman serve [-h]",
    "serve --prot": "dragoman serve: error: unrecognized arguments: --prot; did you mean --port?",
    "serve --quux": "dragoman serve: error: unrecognized arguments: --quux",
    "serve --model": "unrecognized arguments: --model",
    "ask --effort hgih": "--effort: there is no effort 'hgih'; did you mean high?",
    "log --limit -1": "--limit: the number must be at least 1",
    "log --limit 0": "--limit: the number must be at least 1",
    "serve --context 0": "--context: the number must be at least 1",
    "serve --gpu-layers -2": "--gpu-layers: the number must be at least 0, or -1 for all",
    "serve --port x": "--port: invalid port value: 'x'",
    "serve --port 65536": "--port: a port is between 0 and 65535",
    "serve --port -1": "--port: a port is between 0 and 65535",
    "serve --workers 0": "--workers: there are between 1 and 1024 workers",
    "serve --workers many": "--workers: invalid workers value: 'many'",
    "serve --retries -1": "--retries: a request is tried again at most 10 times",
    "serve --retries 11": "--retries: a request is tried again at most 10 times",
    "serve --upstream": "--upstream: expected one argument",
    "ask --port": "unrecognized arguments: --port",
    "models a": "unrecognized arguments: a",
}


UNLIKE = ("serve --quux", "serve --model", "models a", "pocket")
"""Nothing is suggested for these."""


@pytest.mark.parametrize("words", REFUSED)
def test_invalid_arguments_are_refused_by_name(words, capsys) -> None:
    shown = output(words, capsys, "2")
    assert REFUSED[words] in shown
    assert words not in UNLIKE or "did you mean" not in shown
    assert "usage: dragoman" in shown


def test_arguments_are_parsed() -> None:
    words = "serve script --port 0 --upstream http://a --upstream http://b --workers 2"
    options = parser().parse_args(words.split())
    assert options.targets == ["script"]
    assert (options.port, options.workers) == (0, 2)
    assert options.upstream == ["http://a", "http://b"]
    options = parser().parse_args(["serve", "gguf:f", "--context", "512", "--gpu-layers", "-1"])
    assert (options.context, options.gpu_layers, options.threads) == (512, -1, None)
    assert parse(["ask", "--effort", "ludicrous"]).effort == "ludicrous"  # of a model to come
    options = parser().parse_args(["chat", "-m", "a", "-s", "Be brief.", "--effort", "low"])
    assert (options.model, options.system, options.effort) == ("a", "Be brief.", "low")


@pytest.mark.parametrize("encoding", ["ascii:strict", "latin-1:strict", "utf-8:surrogateescape"])
def test_characters_that_a_stream_cannot_have_end_nothing(encoding, monkeypatch) -> None:
    """What the model says is shown as far as it can be; what is piped in is read so."""
    name, errors = encoding.split(":")
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=name, errors=errors)
    monkeypatch.setattr(sys, "stdout", out)
    piped = io.TextIOWrapper(io.BytesIO(b"h\xe9\xff"), encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdin", piped)
    assert main(["ask", "--at", "script", "\ud83d"]) == 0
    out.flush()
    quoted = b"\xe2\x80\x9c" if name == "utf-8" else b"?"
    assert b"You said: " + quoted + b"?\n\nh" in raw.getvalue().replace(b"\xef\xbf\xbd", b"?")
