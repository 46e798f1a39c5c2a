"""`dragoman serve`: what is served with which words, and what is said at the start."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from dragoman.cli import main
from dragoman.cli import serve as command
from dragoman.engines import discover, llamacpp, local, transformers
from dragoman.engines.script import demo
from dragoman.server.host import bind
from dragoman.server.settings import Settings
from dragoman.wire.registry import WIRES
from tests.cli.stage import Screen, serve, upstream
from tests.cli.test_banner import part
from tests.mock import Mock, Reply, completion, plain
from tests.upstream.llamacpp import MODEL_FILE, MODEL_FOLDER
from training.tiny.transcripts import HELLO

LISTING = {"object": "list", "data": [{"id": "first"}, {"id": "second"}]}
LOOKING = "Looking for model servers …\n"
NOBODY = "http://127.0.0.1:9/v1"


@pytest.fixture
def up() -> Iterator[Mock]:
    """A server of two models."""
    with upstream(plain(200, completion({"content": "Hello!"})), plain(200, LISTING)) as server:
        yield server


def models(base_url: str) -> list[str]:
    return [model["id"] for model in httpx2.get(f"{base_url}/models").json()["data"]]


def ask(base_url: str, **more: Any) -> httpx2.Response:
    body = {"model": "first", "messages": [{"role": "user", "content": "Hi"}]}
    return httpx2.post(f"{base_url}/chat/completions", json=body, **more)


# ---- what is served ------------------------------------------------------------------------


def test_with_nothing_found_it_serves_the_pocket_model(capsys) -> None:
    served: list[str] = []
    shown = serve("--port", "0", then=lambda base_url: served.extend(models(base_url)))
    assert served == ["pocket"]
    assert "  pocket  this server  (a demonstration model)\n" in shown
    assert capsys.readouterr().err == LOOKING


def test_with_nothing_found_and_no_extra_the_demo_engine_is_served(monkeypatch, capsys) -> None:
    monkeypatch.setattr(local, "available", lambda: False)
    served: list[str] = []
    shown = serve("--port", "0", then=lambda base_url: served.extend(models(base_url)))
    assert served == ["script"]
    assert "  script  this server  (a demo, not a model)\n" in shown
    assert capsys.readouterr().err == (
        f"{LOOKING}No model was found: this is the demo engine. The pocket model needs "
        "the extra local: pip install '.[local]' in the checkout.\n"
    )


def test_discovered_servers_are_served(up: Mock, monkeypatch, capsys) -> None:
    monkeypatch.setattr(discover, "PORTS", (up.port,))
    served: list[str] = []
    shown = serve("--port", "0", then=lambda base_url: served.extend(models(base_url)))
    assert served == ["first", "second"]
    assert f"  second  {up.base_url}  (generic)\n" in shown
    assert '"model": "first"' in shown
    assert capsys.readouterr().err == LOOKING


def test_a_gguf_file_is_served_by_its_name() -> None:
    answers: list[httpx2.Response] = []

    def talk(base_url: str) -> None:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}]}
        answers.append(httpx2.post(f"{base_url}/chat/completions", json=body))

    target = f"gguf:{MODEL_FOLDER / MODEL_FILE}"
    shown = serve("--port", "0", target, "--context", "512", "--threads", "1", then=talk)
    assert answers[0].json()["choices"][0]["message"]["content"] == HELLO
    assert f"  tiny   this server  ({target})\n" in shown


def test_options_of_local_models_are_passed_on(monkeypatch) -> None:
    given: list[dict[str, Any]] = []

    def prepare(place: str, *, context: int = 0, gpu_layers: int = 0, threads: int = 0) -> Any:
        given.append({"context": context, "gpu_layers": gpu_layers, "threads": threads})
        return demo

    monkeypatch.setattr(llamacpp, "prepare", prepare)
    monkeypatch.setattr(transformers, "prepare", lambda name, *, threads: demo)
    words = ["--context", "512", "--gpu-layers", "-1", "--threads", "2"]
    serve("--port", "0", "gguf:here", *words)
    assert {frozenset(each.items()) for each in given} == {
        frozenset({"context": 512, "gpu_layers": -1, "threads": 2}.items())
    }
    serve("--port", "0", "hf:here", "--threads", "2")


def test_the_environment_names_an_upstream_and_our_key_to_it(up: Mock, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", up.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    shown = serve("--port", "0", then=ask)
    assert up.asked[0].headers["authorization"] == "Bearer canary"
    assert "canary" not in shown


def test_named_upstreams_disable_discovery(up: Mock, monkeypatch, capsys) -> None:
    monkeypatch.setenv("OUR_KEY", "canary")
    words = ["--upstream", up.base_url, "--upstream-key-env", "OUR_KEY", "--wire", "chat"]
    headers = {"authorization": "Bearer of-the-client"}
    serve("--port", "0", *words, then=lambda base_url: ask(base_url, headers=headers))
    assert [asked.path for asked in up.asked] == ["/v1/chat/completions"]
    assert up.asked[0].headers["authorization"] == "Bearer canary"
    assert {asked.method for asked in up.probes} == {"GET"}
    assert capsys.readouterr().err == ""


def test_retries_option_is_used() -> None:
    replies = [plain(200, completion({"content": "Hello!"})), plain(429, {}, "retry-after: 0")]
    answers: list[httpx2.Response] = []
    with upstream(lambda asked: replies.pop()) as up:
        words = ["--upstream", up.base_url, "--wire", "chat", "--retries", "1"]
        serve("--port", "0", *words, then=lambda base_url: answers.append(ask(base_url)))
    assert (answers[0].status_code, replies) == (200, [])


@pytest.mark.parametrize("words", [[], ["--log"]], ids=["off", "on"])
def test_log_option_logs_requests(words, capsys) -> None:
    serve("script", "--port", "0", *words, then=ask)
    logged = capsys.readouterr().err
    assert logged.count("\n") == logged.count("POST /v1/chat/completions ") == len(words)


def test_target_disables_discovery(up: Mock, tmp_path, capsys) -> None:
    configured(tmp_path, f'[[upstreams]]\nname = "up"\nurl = "{up.base_url}"\n')
    shown = serve("script", "--port", "0")
    assert "  script  this server" in shown
    assert "first" not in shown
    named = f"Configuration: {(tmp_path / 'dragoman.toml').resolve()}\n"
    assert capsys.readouterr().err == named


def test_the_file_in_this_folder_is_read(up: Mock, tmp_path) -> None:
    upstream = f'[[upstreams]]\nname = "up"\nurl = "{up.base_url}"\nmodels = ["second", "new"]\n'
    configured(tmp_path, f"[server]\nport = 0\n{upstream}")
    shown = serve()
    assert "  second  up  (generic)\n" in shown
    assert "  new     up  (does not list it)\n" in shown
    assert "first" not in shown


def test_pubsub_that_no_store_uses_is_mentioned(tmp_path, capsys) -> None:
    configured(tmp_path, '[server]\nstore = "none"\npubsub = "redis://127.0.0.1:9"\n')
    serve("script", "--port", "0")
    assert capsys.readouterr().err.startswith(f"{command.NO_PUBSUB}\n")


def test_options_override_the_file(up: Mock, tmp_path) -> None:
    text = f'[server]\nport = 1\nqueue = 7\n[[upstreams]]\nname = "up"\nurl = "{NOBODY}"\n'
    path = configured(tmp_path, text, "other.toml")
    shown = serve("--config", path, "--port", "0", "--upstream", up.base_url)
    assert up.base_url in shown
    assert NOBODY not in shown


def configured(folder: Path, text: str, name: str = "dragoman.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


# ---- the banner ---------------------------------------------------------------------------


def test_the_lines_for_the_sdk_work_when_pasted() -> None:
    said: list[str] = []

    def paste(base_url: str) -> None:
        lines = part(screen.getvalue(), "openai SDK")
        command = [sys.executable, "-W", "error", "-c", lines]
        environment = {"PATH": os.environ["PATH"], "DRAGOMAN_KEY": key_in(screen.getvalue())}
        said.append(subprocess.check_output(command, env=environment, text=True))

    screen = Screen()
    serve("script", "--port", "0", "--generate-key", then=paste, screen=screen)
    both = [line for line in said[0].splitlines() if "This is a demo" in line]
    assert len(both) == 2
    assert both[0] == both[1]


def key_in(shown: str) -> str:
    """The key that was generated."""
    found = re.search(r"^export DRAGOMAN_KEY=(\S+)", shown)
    return found[1]


def test_generated_key_is_printed_and_required() -> None:
    statuses: list[int] = []

    def visit(base_url: str) -> None:
        for key in (key_in(screen.getvalue()), "another"):
            headers = {"authorization": f"Bearer {key}"}
            statuses.append(httpx2.get(f"{base_url}/models", headers=headers).status_code)
        statuses.append(httpx2.get(f"{base_url}/models").status_code)

    screen = Screen()
    shown = serve("script", "--port", "0", "--generate-key", then=visit, screen=screen)
    assert statuses == [200, 401, 401]
    assert shown.count(key_in(shown)) == 1
    assert 'api_key=os.environ["DRAGOMAN_KEY"]' in shown


def test_key_of_a_variable_is_required_and_not_printed(monkeypatch) -> None:
    monkeypatch.setenv("CLIENT_KEY", "canary-key")
    statuses: list[int] = []

    def visit(base_url: str) -> None:
        for headers in ({"x-api-key": "canary-key"}, {}):
            statuses.append(httpx2.get(f"{base_url}/models", headers=headers).status_code)

    shown = serve("script", "--port", "0", "--api-key-env", "CLIENT_KEY", then=visit)
    assert statuses == [200, 401]
    assert "canary" not in shown
    assert "Bearer $CLIENT_KEY" in shown


def test_unreachable_upstream_is_reported_and_served() -> None:
    answers: list[httpx2.Response] = []
    shown = serve(
        "--port", "0", "--upstream", NOBODY, then=lambda base_url: answers.append(ask(base_url))
    )
    assert f"\n  {NOBODY} does not answer: The model's server cannot be reached: " in shown
    assert "127.0.0.1:9" in shown
    assert "\n  Any model's name is passed on.\n" in shown
    assert answers[0].status_code == 502


def test_slow_model_listing_does_not_delay_the_banner(up: Mock, monkeypatch) -> None:
    monkeypatch.setattr(command, "LISTING", 0.05)
    up.probed = lambda asked: Reply([], hang=True)
    shown = serve("--port", "0", "--upstream", up.base_url)
    assert f"  {up.base_url} does not answer: it listed no models within 0.05 s\n" in shown


def test_a_silent_upstream_is_named_beside_one_that_answers(up: Mock) -> None:
    shown = serve("--port", "0", "--upstream", up.base_url, "--upstream", NOBODY)
    assert f"  first   {up.base_url}  (generic)\n" in shown
    assert f"\n  {NOBODY} does not answer: " in shown


def test_models_of_a_silent_upstream_are_listed_as_its(tmp_path) -> None:
    configured(tmp_path, f'[[upstreams]]\nname = "work"\nurl = "{NOBODY}"\nmodels = ["big"]\n')
    shown = serve("--port", "0")
    assert "  big    work  (does not answer)\n" in shown
    assert "\n  work does not answer: The model's server cannot be reached: " in shown


def test_a_model_that_two_upstreams_list_is_shown_with_the_one_asked(up: Mock) -> None:
    with upstream(plain(200, LISTING), plain(200, {"data": [{"id": "second"}]})) as other:
        shown = serve("--port", "0", "--upstream", up.base_url, "--upstream", other.base_url)
    assert f"  second: {up.base_url} is asked, not {other.base_url}, which has it too\n" in shown


@pytest.mark.parametrize("name", ["first", "third"])
def test_a_model_for_vectors_that_nothing_lists_is_reported(name, up: Mock, tmp_path) -> None:
    configured(tmp_path, f'[server]\nembedding_model = "{name}"')
    shown = serve("--port", "0", "--upstream", up.base_url)
    assert ("  embedding_model: no server lists 'third'\n" in shown) == (name == "third")


def test_a_file_without_upstreams_is_reported(tmp_path, capsys) -> None:
    configured(tmp_path, "[server]\nheartbeat = 5\n")
    serve("--port", "0")
    assert capsys.readouterr().err == f"dragoman.toml has no [[upstreams]]. {LOOKING}"


# ---- where ---------------------------------------------------------------------------------


@pytest.fixture
def taken(monkeypatch) -> Iterator[int]:
    """A port that somebody has. It stands for the one that is taken by default."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def instead(settings: Settings, *, exact: bool) -> socket.socket:
            usual = settings.port == Settings().port
            return bind(replace(settings, port=port) if usual else settings, exact=exact)

        monkeypatch.setattr(command, "bind", instead)
        yield port


def test_taken_default_port_gives_the_next_one(taken: int) -> None:
    found: list[str] = []
    serve("script", then=found.append)
    assert taken < int(found[0].rpartition(":")[2].removesuffix("/v1"))


def test_taken_explicit_port_is_an_error(taken: int, tmp_path, capsys) -> None:
    path = configured(tmp_path, f"[server]\nport = {taken}")
    usual = tmp_path / "usual.toml"
    usual.write_text(f"[server]\nport = {Settings().port}")
    for words in (
        ["--port", str(taken)],
        ["--port", str(Settings().port)],
        ["--config", path],
        ["--config", str(usual)],
    ):
        assert main(["serve", "script", *words]) == 1
        told = f"dragoman: Port {taken} is taken on 127.0.0.1. Choose another with --port, "
        told += "or in Python with Settings(port=…).\n"
        assert capsys.readouterr() == ("", told)


def test_server_never_discovers_itself(monkeypatch) -> None:
    """The environment that tells clients where Dragoman is may be that of Dragoman."""
    listener = bind(Settings(port=0), exact=True)
    monkeypatch.setattr(command, "bind", lambda settings, exact: listener)
    port = listener.getsockname()[1]
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://localhost:{port}/v1")
    monkeypatch.setattr(discover, "PATIENCE", 0.1)  # it listens already, and does not answer yet
    assert "  pocket  this server  (a demonstration model)\n" in serve()


def test_workers_option_runs_workers(monkeypatch) -> None:
    asked: list[tuple[int, str, int]] = []

    def run(build: Callable[[], Any], settings: Settings, listener: socket.socket, _: Any) -> None:
        asked.append((settings.workers, settings.host, listener.getsockname()[1]))
        listener.close()

    monkeypatch.setattr(command, "run", run)
    assert main(["serve", "script", "--workers", "3", "--host", "localhost", "--port", "0"]) == 0
    assert [(workers, host) for workers, host, _ in asked] == [(3, "localhost")]


# ---- what cannot be served -----------------------------------------------------------------

WIRE_NAMES = "auto, chat, completions, messages, responses"
MISTAKES: dict[str, tuple[list[str], str]] = {
    "a target": (
        ["scrpt"],
        "There is no target 'scrpt'; did you mean script? There is: pocket, script, hf:…, gguf:…; ",
    ),
    "a file": (["m.gguf"], "There is no target 'm.gguf'. Did you mean gguf:m.gguf? There is: "),
    "a profile": (
        ["--upstream", NOBODY, "--profile", "olama"],
        f"{NOBODY}: profile is 'olama', and must be one of ",
    ),
    "a wire that is nearly one": (
        ["--upstream", NOBODY, "--wire", "chatt"],
        f"{NOBODY}: wire is 'chatt', and must be one of {WIRE_NAMES}; did you mean chat?\n",
    ),
    "a format that is nearly one": (
        ["--upstream", NOBODY, "--wire", "completions", "--format", "harmnoy"],
        f"{NOBODY}: format is 'harmnoy', and must be a model's folder or one of ",
    ),
    "a wire": (
        ["--upstream", NOBODY, "--wire", "smoke"],
        f"{NOBODY}: wire is 'smoke', and must be one of {', '.join(sorted(('auto', *WIRES)))}.",
    ),
    "an address": (
        ["--upstream", "localhost:9/v1"],
        "localhost:9/v1: the URL must begin with http:// or https://",
    ),
    "our key": (
        ["--upstream", NOBODY, "--upstream-key-env", "NO_KEY"],
        f"The environment variable NO_KEY should hold the key to {NOBODY} (key_env), and is empty.",
    ),
    "the clients' key": (
        ["script", "--api-key-env", "NO_KEY"],
        "The environment variable NO_KEY should hold a key for clients (api_key_env), and is ",
    ),
    "another address than loopback": (
        ["script", "--host", "0.0.0.0"],
        "Without a key Dragoman listens on this machine only, and not on 0.0.0.0:",
    ),
    "no upstream for a wire": (["--wire", "chat"], "--wire needs an --upstream."),
    "no upstream for a key": (
        ["script", "--upstream-key-env", "K"],
        "--upstream-key-env needs an --upstream.",
    ),
    "a key that another upstream would be sent": (
        ["--upstream", NOBODY, "--upstream", f"{NOBODY}/2", "--upstream-key-env", "K"],
        "--upstream-key-env needs a single --upstream: no server is sent another's key.",
    ),
    "no upstream for a profile": (["--profile", "vllm"], "--profile needs an --upstream."),
    "no upstream to try again": (["script", "--retries", "1"], "--retries needs an --upstream."),
    "an upstream twice": (
        ["--upstream", NOBODY, "--upstream", NOBODY],
        f"{NOBODY}: name is '{NOBODY}', as that of another upstream.",
    ),
    "two models of one name": (
        [f"gguf:{MODEL_FOLDER / MODEL_FILE}", f"gguf:{MODEL_FOLDER}/./{MODEL_FILE}"],
        "The model 'tiny' is in both gguf:",
    ),
    "an option of another kind": (
        ["gguf:no-file.gguf", "pocket", "--context", "9"],
        "no-file.gguf is no file.",
    ),
    "an option that the kind does not have": (
        ["hf:folder", "--context", "9"],
        "hf: models have no option context.",
    ),
    "an option without a target": (["--context", "9"], "--context needs a TARGET"),
    "a key where its variable is named": (
        ["script", "--api-key-env", "sk-secret"],
        "The variable with a key for clients (api_key_env) is to be given by its NAME, such as ",
    ),
    "no upstream for a format": (["--format", "hermes"], "--format needs an --upstream."),
    "a format of no completions": (
        ["--upstream", NOBODY, "--format", "hermes"],
        f'{NOBODY}: format is for an upstream with the wire "completions".',
    ),
    "a file that is none": (["gguf:no-file.gguf"], "no-file.gguf is no file."),
    "a kind without a place": (["gguf:"], "gguf: names no model: give a folder or a file"),
    "a format nobody has": (
        ["gguf:no-file.gguf", "--format", "morse"],
        "There is no format 'morse'. Formats: ",
    ),
    "a format for what has its own": (
        ["pocket", "--format", "hermes"],
        "pocket has no option format.",
    ),
    "a format that is none": (
        ["--upstream", NOBODY, "--wire", "completions", "--format", "morse"],
        f"{NOBODY}: format is 'morse', and must be a model's folder or one of ",
    ),
    "no format": (
        ["--upstream", NOBODY, "--wire", "completions"],
        f"{NOBODY}: format is missing: over completions a model is spoken to in one of ",
    ),
    "a path that is added": (
        ["--upstream", f"{NOBODY}/chat/completions/"],
        f"{NOBODY}/chat/completions/: the URL ends with /chat/completions, which is added to it",
    ),
    "files that are not stored": (
        ["script", "--tool", "files", "--store", "none"],
        "files: This server stores nothing (--store none), and so no files.",
    ),
    "no such file": (["--config", "none.toml"], "none.toml cannot be read: No such file"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_on_the_command_line_prints_one_line(name, capsys) -> None:
    words, told = MISTAKES[name]
    assert main(["serve", "--port", "0", *words]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"dragoman: {told}")
    assert shown.err.count("\n") == 1


def test_mistake_in_the_file_is_reported_with_line_and_field(tmp_path, capsys) -> None:
    configured(tmp_path, "[server]\nprot = 1")
    assert main([]) == 1
    told = "dragoman: dragoman.toml:2: server.prot: is not a setting; did you mean port?"
    assert capsys.readouterr().err.startswith(told)


def test_bad_url_in_the_environment_is_reported(monkeypatch, capsys) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "nonsense")
    assert main(["--port", "0"]) == 1
    assert "dragoman: nonsense: the URL must begin with http" in capsys.readouterr().err
