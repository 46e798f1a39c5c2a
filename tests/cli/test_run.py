"""`dragoman run`: what a program is given, the server that is started for it, signals and errors.

The program is a script on the PATH that stores what it was given.
"""

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from dragoman.cli.main import _PROGRAMS, parse
from dragoman.cli.run import PROGRAMS, Endpoint, configure
from dragoman.core.interfaces import Secret
from dragoman.engines import discover
from dragoman.engines.script import demo
from dragoman.server.app import App
from dragoman.server.host import bind, running
from dragoman.server.settings import Settings
from tests.cli.stage import upstream
from tests.mock import Asked, Mock, Reply, completion, plain
from tests.product import SOURCE

RECORD = """#!/bin/sh
env -0 > "$RECORD/environ"
printf '%s\\0' "$@" > "$RECORD/arguments"
cp -R "${CODEX_HOME:-${CLAUDE_CONFIG_DIR:-$XDG_CONFIG_HOME}}" "$RECORD/files"
echo from the program
exit 7
"""
ASK = f"""#!{sys.executable} -ISsB
import os, pathlib, re, sys, urllib.request
url = re.search('base_url = "(.*)"', open(os.environ["CODEX_HOME"] + "/config.toml").read())[1]
def ask(key):
    asked = urllib.request.Request(url + "/models", headers={{"authorization": "Bearer " + key}})
    try:
        return urllib.request.urlopen(asked).status
    except urllib.error.HTTPError as error:
        return error.code
log = pathlib.Path(os.environ["CODEX_HOME"], "..", "server.log")
print(url, ask(os.environ["DRAGOMAN_KEY"]), ask("another-key"), "GET" in log.read_text())
"""
LISTING = {
    "object": "list",
    "data": [{"id": "pocket"}, {"id": 'a "b"', "context_window": 32768}, {"id": "c"}],
}
NAME = 'a "b"'
INSTALL = {"codex": "@openai/codex", "claude": "@anthropic-ai/claude-code", "opencode": "opencode"}
OWN = {"codex": "CODEX_HOME", "claude": "CLAUDE_CONFIG_DIR", "opencode": "XDG_CONFIG_HOME"}
"""The variable that names the folder of each program's own configuration."""


@pytest.fixture
def up() -> Iterator[Mock]:
    with upstream(plain(200, completion({"content": "Hi"})), plain(200, LISTING)) as server:
        yield server


Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path, monkeypatch) -> Install:
    """Puts a program on the PATH; the folder in which it is to leave what it was given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def put(name: str, text: str) -> Path:
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        return tmp_path

    return put


def left(folder: Path) -> list[str]:
    """What is left of the temporary folders of the programs."""
    return sorted(each.name for each in folder.glob("data/dragoman/run/*"))


def given(folder: Path) -> dict[str, str]:
    """The environment of the program."""
    entries = (folder / "environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


# ---- what a program is given -----------------------------------------------------------------


def codex(base_url: str, environ: dict[str, str], files: Path) -> None:
    config = tomllib.loads((files / "config.toml").read_text())
    assert (config["model"], config["model_context_window"]) == (NAME, 32768)
    (provider,) = config["model_providers"].values()
    assert (provider["base_url"], provider["env_key"]) == (base_url, "TEAM_KEY")
    assert provider["wire_api"] == "responses"
    assert "CODEX_OLD" not in environ


def claude(base_url: str, environ: dict[str, str], files: Path) -> None:
    ours = {name: text for name, text in environ.items() if name.startswith("ANTHROPIC_")}
    models = {ours.pop(name) for name in list(ours) if name.endswith("MODEL")}
    assert models == {NAME}
    assert ours == {
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": "team-secret",
    }
    assert environ["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "32768"
    assert environ["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "8192"
    assert "CLAUDE_CODE_USE_BEDROCK" not in environ
    assert json.loads((files / ".claude.json").read_text()) == {"hasCompletedOnboarding": True}


def opencode(base_url: str, environ: dict[str, str], files: Path) -> None:
    text = (files / "opencode" / "opencode.json").read_text()
    assert environ["OPENCODE_CONFIG_CONTENT"] == text
    config = json.loads(text)
    assert config["model"] == config["small_model"] == f"dragoman/{NAME}"
    provider = config["provider"]["dragoman"]
    assert provider["options"] == {"baseURL": base_url, "apiKey": "{env:TEAM_KEY}"}
    assert provider["models"][NAME]["limit"]["context"] == 32768
    assert config["enabled_providers"] == ["dragoman"]
    assert "OPENCODE_CONFIG" not in environ


@pytest.mark.parametrize("check", [codex, claude, opencode], ids=lambda check: check.__name__)
def test_program_gets_its_own_configuration(check, install, up, monkeypatch, capfd) -> None:
    name = check.__name__
    folder = install(name, RECORD)
    mine = {
        "TEAM_KEY": "team-secret",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "example.com",
        "CODEX_OLD": "1",
        "ANTHROPIC_API_KEY": "mine",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "OPENCODE_CONFIG": "mine",
        "KEPT": "yes",
    }
    for variable, text in mine.items():
        monkeypatch.setenv(variable, text)
    words = ["run", name, "--at", up.base_url, "--key-env", "TEAM_KEY"]
    assert main([*words, "--", "exec", "--model", "x y", "--"]) == 7
    assert (folder / "arguments").read_text().split("\0")[:-1] == ["exec", "--model", "x y", "--"]
    environ = given(folder)
    check(up.base_url, environ, folder / "files")
    assert environ["KEPT"] == "yes"
    assert environ["NO_PROXY"] == environ["no_proxy"] == "example.com,127.0.0.1"
    for file in (folder / "files").rglob("*"):
        assert file.is_dir() or "team-secret" not in file.read_text()
    own = environ[OWN[name]]
    assert own.startswith(str(folder / "data"))
    assert left(folder) == []
    assert not (folder / "home").exists()
    out, said = capfd.readouterr()
    assert out == "from the program\n"
    title = PROGRAMS[name].title
    several = "--model names another of 2"
    assert said == f"{title} uses {NAME}; {several}, at {up.base_url} (named by --at).\n"


def test_without_key_or_known_context_neither_is_configured(install, up) -> None:
    folder = install("codex", RECORD)
    root = up.base_url.removesuffix("/v1")
    assert main(["run", "codex", "--at", root, "--model", "unlisted"]) == 7
    config = tomllib.loads((folder / "files" / "config.toml").read_text())
    assert config["model"] == "unlisted"
    assert "model_context_window" not in config
    assert config["model_providers"]["dragoman"].keys() == {"name", "base_url", "wire_api"}
    assert config["model_providers"]["dragoman"]["base_url"] == up.base_url


@pytest.mark.parametrize(
    ("context", "answer"), [(None, None), (3, "1"), (40_960, "10240"), (128_000, None)]
)
def test_claude_leaves_room_for_the_prompt_beside_the_longest_answer(context, answer, tmp_path):
    """vLLM refuses a request whose prompt and `max_tokens`, 32,000 by default, exceed it."""
    to = Endpoint("http://127.0.0.1/v1", "m", context)
    environ = configure(PROGRAMS["claude"], to, tmp_path, {})
    assert environ.get("CLAUDE_CODE_MAX_OUTPUT_TOKENS") == answer


def test_end_by_a_signal_is_reported_as_a_shell_does(install, up) -> None:
    install("codex", "#!/bin/sh\nkill -KILL $$\n")
    assert main(["run", "codex", "--at", up.base_url]) == 128 + 9


# ---- which server ----------------------------------------------------------------------------


def test_server_is_started_for_a_target_and_ends_with_the_program(install, capfd) -> None:
    folder = install("codex", ASK)
    assert main(["run", "codex", "script"]) == 0
    out, said = capfd.readouterr()
    url, allowed, refused, logged = out.split()
    assert (allowed, refused, logged) == ("200", "401", "True")
    log = said.partition("log in ")[2].removesuffix(").\n")
    assert said == f"Codex uses script, at {url} (started for it, log in {log}).\n"
    assert left(folder) == []
    bind(Settings(port=int(url.split(":")[2].removesuffix("/v1"))), exact=True).close()


def test_what_is_found_on_this_machine_is_served(install, up, monkeypatch, capfd) -> None:
    """Not the server of the environment, whose models come first otherwise; the one on the usual
    port is no Dragoman."""
    Path("dragoman.toml").write_text(f"[server]\nport = {up.port}\n")
    install("codex", RECORD)
    monkeypatch.setattr(discover, "PORTS", (up.port,))
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://nowhere.invalid/v1")
    assert main(["run", "codex"]) == 7
    said = capfd.readouterr().err
    assert said.startswith(f"Codex uses {NAME}; --model names another of 2, at ")
    assert "(started for it" in said


def test_running_dragoman_is_used(install, monkeypatch, capfd) -> None:
    folder = install("codex", RECORD)
    monkeypatch.setenv("TEAM_KEY", "team-secret")
    monkeypatch.setenv("WRONG_KEY", "wrong-secret")
    settings = Settings(port=0, keys=(Secret("team-secret"),), store="none")
    with bind(settings, exact=True) as listener:
        port = listener.getsockname()[1]
        Path("dragoman.toml").write_text(f"[server]\nport = {port}\n")
        with running(lambda: App(demo(), settings), settings, listener):
            assert main(["run", "codex", "--key-env", "TEAM_KEY"]) == 7
            assert main(["run", "codex"]) == 1
            assert main(["run", "codex", "--key-env", "WRONG_KEY"]) == 1
    used, wants, refused = capfd.readouterr().err.splitlines()
    assert used == f"Codex uses script, at http://127.0.0.1:{port}/v1 (which was running)."
    assert f"The Dragoman on port {port} asks for a key" in wants
    assert refused == f"dragoman: The Dragoman on port {port} refused the key in WRONG_KEY."
    provider = tomllib.loads((folder / "files" / "config.toml").read_text())["model_providers"]
    assert provider["dragoman"]["env_key"] == "TEAM_KEY"


def test_server_that_ends_before_the_program_is_reported(install, monkeypatch, capfd) -> None:
    @contextmanager
    def failing(*given: Any) -> Iterator[Callable[[], bool]]:
        with running(*given):
            print("What went wrong.", file=sys.stderr)
            yield lambda: False

    install("codex", RECORD)
    monkeypatch.setattr("dragoman.cli.run.running", failing)
    assert main(["run", "codex", "script"]) == 1
    _, _, said = capfd.readouterr().err.partition("dragoman: ")
    assert said.startswith("The server that was started for Codex exited before it did. Its log:\n")
    assert "What went wrong." in said


# ---- what cannot be run ----------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_that_is_not_installed(name, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", name, "script"]) == 1
    said = capfd.readouterr().err
    assert (
        f"no program '{name}' on the PATH. Install it with `npm install -g {INSTALL[name]}" in said
    )


PROBLEMS = {
    "": "No model was found for Codex. Start a model server",
    "exec hello": "What is for the program comes after --, as in `dragoman run codex -- exec`",
    "script --at http://127.0.0.1:9": "--at names a server that is running, and script what",
    "--at http://127.0.0.1:9/v1?a=b": "--at: a program adds paths to it",
    "--at ftp://there": "--at: ",
    "--at http://127.0.0.1:9": "Is it running, and at this address?",
    "pocket": "the only model here is the pocket model, which holds 4,096",
    "--upstream http://127.0.0.1:9/v1": "lists no models: ",
    "--context 9": "--context needs a TARGET",
}


@pytest.mark.parametrize("words", PROBLEMS)
def test_problem_is_one_line_and_leaves_nothing(words, install, capfd) -> None:
    Path("dragoman.toml").write_text("[server]\nport = 9\n")  # nobody is there
    folder = install("codex", RECORD)
    assert main(["run", "codex", *words.split()]) == 1
    out, said = capfd.readouterr()
    assert PROBLEMS[words] in said
    assert (out, said.count("\n")) == ("", 1)
    assert not (folder / "environ").exists()
    assert left(folder) == []


def test_server_that_lists_nothing_needs_the_models_name(install, capfd) -> None:
    install("codex", RECORD)
    empty = {"object": "list", "data": []}
    with upstream(plain(500, {}), plain(200, empty)) as up:
        assert main(["run", "codex", "--at", up.base_url]) == 1
    assert "lists no models: name the one to use with --model" in capfd.readouterr().err


def test_upstream_that_does_not_answer_is_reported_although_the_model_is_named(
    install, capfd
) -> None:
    install("codex", RECORD)
    words = ["run", "codex", "--model", "m"]
    assert main([*words, "--upstream", "http://127.0.0.1:9/v1"]) == 7
    used, down = capfd.readouterr().err.splitlines()
    assert used.startswith("Codex uses m, at ")
    assert "lists no models: The model's server cannot be reached" in down
    with upstream(plain(500, {}), plain(404, {"error": {"message": "There is no list."}})) as up:
        assert main([*words, "--at", up.base_url]) == 7
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_server_that_wants_a_key_is_reported_although_the_model_is_named(
    install, monkeypatch, capfd
) -> None:
    folder = install("codex", RECORD)
    monkeypatch.setenv("WRONG_KEY", "wrong-secret")
    words = ["run", "codex", "--model", "m"]
    with upstream(plain(500, {}), plain(401, {"error": {"message": "No such key."}})) as up:
        assert main([*words, "--at", up.base_url]) == 1
        assert main([*words, "--at", up.base_url, "--key-env", "WRONG_KEY"]) == 1
    wants, refused = capfd.readouterr().err.splitlines()
    assert "asks for a key: name the variable that holds it with --key-env" in wants
    assert refused.endswith(": No such key.")
    assert not (folder / "environ").exists()


def test_folder_may_be_a_temporary_one_of_the_system(install, up, tmp_path, monkeypatch) -> None:
    folder = install("codex", RECORD)
    (folder / "data").write_text("not a folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["run", "codex", "--at", up.base_url]) == 7
    assert given(folder)["CODEX_HOME"].startswith(str(tmp_path / "codex-"))


# ---- the command line ------------------------------------------------------------------------


def test_words_after_two_dashes_are_the_programs() -> None:
    options = parse(["run", "codex", "--model", "m", "script", "--", "--at", "x", "--", "y"])
    assert (options.program, options.targets, options.at) == ("codex", ["script"], None)
    assert options.arguments == ["--at", "x", "--", "y"]
    assert parse(["ask", "--", "why"]).question == ["why"]


def test_every_program_is_on_the_command_line() -> None:
    assert tuple(PROGRAMS) == _PROGRAMS


# ---- signals ---------------------------------------------------------------------------------

STOPS = """#!/bin/sh
trap 'echo asked to end; exit 9' TERM
trap 'echo interrupted' INT
kill -STOP $$
echo continued
while :; do sleep 0.02; done
"""


def test_signals_pass_and_a_suspended_program_suspends_us(install, up) -> None:
    install("codex", STOPS)
    command = [sys.executable, "-m", "dragoman", "run", "codex", "--at", up.base_url]
    environ = {**os.environ, **SOURCE}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        try:
            assert process.stdout is not None
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline() == "continued\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "asked to end\n"
            assert process.wait(30) == 9
        finally:
            process.kill()


def test_signal_before_there_is_a_program_ends_us_and_leaves_nothing(install) -> None:
    folder = install("codex", RECORD)

    def terminate(asked: Asked) -> Reply:
        os.kill(os.getpid(), signal.SIGTERM)
        return plain(200, LISTING)

    with (
        upstream(plain(500, {}), terminate) as up,
        pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)),
    ):
        main(["run", "codex", "--at", up.base_url])
    assert left(folder) == []
    assert not (folder / "environ").exists()


@pytest.mark.parametrize("text", ["", "#!/nowhere/at-all\n"])
def test_program_that_cannot_be_executed_is_one_line(text, install, up, capfd) -> None:
    folder = install("codex", text)
    assert main(["run", "codex", "--at", up.base_url]) == 1
    assert "codex cannot be run: " in capfd.readouterr().err
    assert left(folder) == []


def test_targets_are_not_called_missing(capsys) -> None:
    with pytest.raises(SystemExit):
        parse(["run"])
    assert capsys.readouterr().err.endswith("arguments are required: PROGRAM\n")
