"""`dragoman run`: starts an agent program on a model, and a server for it where none runs.

The programs, each with the configuration that points it at a server, are at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, ModuleType
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, visible
from dragoman.core.interfaces import Secret, first_model
from dragoman.engines.discover import discover, look
from dragoman.engines.local import POCKET, is_local
from dragoman.engines.upstream import entries, question
from dragoman.net.client import Client
from dragoman.net.url import parse_url, split_base
from dragoman.server.app import App
from dragoman.server.auth import NO_KEY, generate_key, is_loopback
from dragoman.server.build import as_upstreams, prepare
from dragoman.server.config import FILE, ConfigurationError, explained, place_of, read_key
from dragoman.server.host import HostError, address, bind, running
from dragoman.server.state.service import check_memory, open_memory
from dragoman.stores.base import StoreError
from dragoman.stores.factory import data_directory

from .serve import GENERATED, chosen, configured, loading_options

NOT_INSTALLED = (
    "{title} is not installed: there is no program {command!r} on the PATH. Install it with "
    "`{install}`."
)
NO_TARGET = (
    "There is no target {target!r}. What is for the program comes after --, as in "
    "`dragoman run {program} -- {target}`; a server is named with --upstream URL."
)
NOT_FOR_FILES = (
    "--{} is for codex, claude and opencode, and not for {}, which names its models itself. "
    "What is for the file comes after --."
)
BOTH = (
    "--at names a server that is running, and {given} what a server that is started is to serve: "
    "give one of them."
)
NO_MODELS = (
    "No model was found for {title}. Start a model server, such as Ollama, or name a model: "
    "--upstream URL, gguf:FILE or hf:NAME; or a Dragoman that has one: --at URL."
)
UNLISTED = "The server at {place} lists no models: name the one to use with --model."
ONLY_POCKET = (
    "{title} sends prompts of 15,000 tokens and more, and the only model here is the pocket model, "
    "which holds 4,096. Serve another, or insist with --model pocket."
)
WANTS_KEY = (
    "{who} asks for a key: name the variable that holds it with --key-env, "
    "or another server with --at, --upstream or a TARGET."
)
REFUSED = "{who} refused the key in {name}."
ENDED = "The server that was started for {title} exited before it did. Its log:\n{log}"
KEY = "the key to the server"
UNANSWERED = "The server at {place} lists no models: {problem}"
PATIENCE = 10.0
"""Seconds the server has to list its models."""
LAST_WORDS = 2000
"""Characters of the server's log that are shown where it ended by itself."""


Streams = tuple[int, int]
"""The file descriptors of standard output and standard error."""


class Listed(Struct, frozen=True):
    """A model that a server lists, with its context where that is known; `of` how many. `problem`
    says why it is not listed, for one that was named."""

    name: str
    context: int | None = None
    of: int = 1
    problem: str = ""


class Server(Struct, frozen=True):
    """A server to ask, by its base URL: the variable that names its key, the key, and a few words
    about where it comes from. `serving` tells whether it still does."""

    base_url: str
    about: str
    key_env: str | None = None
    key: Secret | None = None
    serving: Callable[[], bool] = lambda: True


def run(options: Namespace) -> int:
    """Run a program to its end; the exit status is the program's."""
    if options.program.endswith(".py"):
        return _run_file(Path(options.program), options)
    if options.html is not None:
        raise ConfigurationError(f"--html is for a file of Python, and not for {options.program}.")
    program = PROGRAMS[options.program]
    executable = shutil.which(program.command)
    if executable is None:
        fields = {"title": program.title, "command": program.command, "install": program.install}
        raise ConfigurationError(NOT_INSTALLED.format(**fields))
    given = [*options.targets, *(f"--upstream {url}" for url in options.upstream)]
    for target in options.targets:
        if not is_local(target):
            problem = NO_TARGET.format(target=target, program=options.program)
            raise ConfigurationError(problem)
    if options.at and given:
        raise ConfigurationError(BOTH.format(given=given[0]))
    with ExitStack() as stack:
        # Before there is a program to pass them on to, they end this one, which clears up.
        stack.enter_context(handled(LEAVING, _leave))
        folder = stack.enter_context(_own_folder(options.program))
        log = folder / "server.log"
        server, streams = asyncio.run(_found(options, given)), (1, 2)
        if server is None:
            server, streams = stack.enter_context(_started(options, program, log))
        model = asyncio.run(_model(server, options.model, program))
        key = {"key": server.key.reveal()} if server.key else {}
        to = Endpoint(server.base_url, model.name, model.context, server.key_env, **key)
        own = folder / "configuration"
        own.mkdir()
        environ = configure(program, to, own, os.environ)
        others = f"; --model names another of {model.of}" if model.of > 1 else ""
        line = f"{program.title} uses {visible(model.name, True)}{others}, at {server.base_url}"
        os.write(streams[1], f"{line} ({server.about}).\n".encode())
        if model.problem:
            os.write(streams[1], f"{visible(model.problem, True)}\n".encode())
        status = supervise([executable, *options.arguments], environ, streams)
        if not server.serving():
            text = log.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:]
            raise HostError(ENDED.format(title=program.title, log=text))
    return status


def _run_file(path: Path, options: Namespace) -> int:
    """Run a file of Python, and write a page with the history of the models in its variables."""
    from dragoman.program import Model  # agent programs need it not
    from dragoman.program.show import page

    for name in ("model", "at", "key_env", "upstream", "config"):
        if getattr(options, name):
            raise ConfigurationError(NOT_FOR_FILES.format(name.replace("_", "-"), path))
    try:  # what goes wrong later is the program's, with its lines
        code = compile(path.read_bytes(), str(path), "exec")
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = f"{error}" or "it is nested too deeply"
        raise ConfigurationError(f"{path} cannot be run: {reason}.") from None
    if options.html is not None and (problem := _no_page(options.html, path)):
        raise ConfigurationError(f"--html {options.html}: {problem}. Name another.")
    sys.argv = [str(path), *options.targets, *options.arguments]
    sys.path.insert(0, str(path.parent.absolute()))
    before, program = sys.modules["__main__"], ModuleType("__main__")
    program.__file__ = str(path)
    sys.modules["__main__"] = program
    status: SystemExit | None = None
    try:
        exec(code, vars(program))  # noqa: S102 - the file is the user's own program
    except SystemExit as left:  # its models are shown all the same
        status = left
    finally:
        sys.modules["__main__"] = before
    models = {name: each for name, each in vars(program).items() if isinstance(each, Model)}
    if options.html is not None:
        if not models:
            raise ConfigurationError(f"{path} has no model (dragoman.program) in a variable.")
        columns = [(name, each.state) for name, each in models.items()]
        try:
            options.html.write_text(page(columns), encoding="utf-8", errors="replace")
        except OSError as error:
            problem = f"the page cannot be written: {error.strerror}"
            raise ConfigurationError(f"--html {options.html}: {problem}.") from None
    if status is not None:
        raise status
    return 0


def _no_page(page: Path, program: Path) -> str | None:
    """Why a page cannot be written there, as far as it is known before the program has run."""
    folder = page.absolute().parent
    if not folder.is_dir():
        return f"there is no folder {page.parent} for the page"
    if page.is_dir():
        return "it is a folder"
    if page.exists() and page.samefile(program):
        return "it is the program itself"
    return None if os.access(page if page.exists() else folder, os.W_OK) else "it cannot be written"


@contextmanager
def _own_folder(program: str) -> Iterator[Path]:
    """A folder that is gone after the block.

    Among the user's data where possible: a sandbox lets the agent write to the system's temporary
    folders, its own configuration there included, which is why Codex puts no programs into one.
    """
    home: Path | None
    try:
        home = data_directory(os.environ) / "run"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, StoreError):
        home = None
    with TemporaryDirectory(prefix=f"{program}-", dir=home, ignore_cleanup_errors=True) as name:
        yield Path(name)


# ---- the server ------------------------------------------------------------------------------


async def _found(options: Namespace, given: Sequence[str]) -> Server | None:
    """The server that was named, or else, where nothing says what to serve, a Dragoman on the usual
    port."""
    name = options.key_env
    key = read_key(os.environ, name, KEY) if name else None
    if options.at:
        base, query = split_base(options.at)
        if query:
            raise ConfigurationError("--at: a program adds paths to it, so it may have no query.")
        with explained("--at: ", "."):
            parse_url(base)
        at = base if urlsplit(base).path else f"{base}/v1"
        return Server(at, "named by --at", name, key)
    if given:
        return None
    port = configured(options).server.port
    async with Client(connect_retries=0) as client:
        place = f"http://127.0.0.1:{port}/v1"
        found = await look(client, place, ours=True, key=key)
    if found is None or not found.ours:
        return None
    if found.access == "refused":
        who = f"The Dragoman on port {port}"
        raise ConfigurationError((REFUSED if key else WANTS_KEY).format(who=who, name=name))
    used = found.access == "granted"
    return Server(place, "which was running", name if used else None, key if used else None)


@contextmanager
def _started(options: Namespace, program: Program, log: Path) -> Iterator[tuple[Server, Streams]]:
    """A server of our own on a free port, for as long as the block lasts. What it prints goes to
    its log, and the program's streams are those that were ours."""
    configuration = configured(options)
    upstreams, targets = chosen(options, configuration), options.targets
    if upstreams is None:
        found = asyncio.run(discover(os.environ))
        # The models of this machine come first: the first that is listed is the one to use.
        upstreams = sorted(as_upstreams(found), key=lambda each: not _is_here(each.url))
    if not upstreams and not targets:
        raise ConfigurationError(NO_MODELS.format(title=program.title))
    name = options.key_env
    key = read_key(os.environ, name, KEY) if name else generate_key()
    # Where the clients' keys are for the upstreams, there can be none for this server.
    passed = any(each.pass_client_key for each in upstreams)
    settings = replace(
        configuration.server,
        host="127.0.0.1",
        port=0,
        workers=1,
        keys=() if passed else (key,),
        api_key_env=(),
        speech="none",
        transcription="none",
        request_log=True,
        drain=0.0,  # no client is left when the program has ended
    )
    loading = loading_options(options)
    assembled = prepare(upstreams, targets, settings, os.environ, loading)
    asyncio.run(check_memory(settings, os.environ, configuration.webhooks))

    def build() -> App:
        memory = open_memory(settings, os.environ, configuration.webhooks)
        return App(assembled(), settings, memory)

    with _redirected(log) as streams:
        listener = bind(settings, exact=True)
        used = options.config or Path(FILE)
        about = f"started for it{f' with {used}' if used.exists() else ''}, log in {log}"
        base_url = f"{address(listener)}/v1"
        with running(build, settings, listener) as serving:
            yield Server(base_url, about, name or GENERATED, key, serving), streams


def _is_here(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


@contextmanager
def _redirected(log: Path) -> Iterator[Streams]:
    """What this process prints goes to a file, that of libraries too; gives what it went to."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        with (
            open(1, "w", buffering=1, encoding="utf-8", closefd=False) as out,
            open(2, "w", buffering=1, encoding="utf-8", closefd=False) as error,
            redirect_stdout(out),
            redirect_stderr(error),
        ):
            yield before
    finally:
        for number, descriptor in enumerate(before, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


async def _model(server: Server, named: str | None, program: Program) -> Listed:
    """The model to use: the one that was named, listed or not, or else the first whose context
    could hold the program's prompts."""
    headers = (("authorization", f"Bearer {server.key.reveal()}"),) if server.key else ()
    async with Client() as client:
        url = f"{server.base_url}/models"
        answer = await question(client, "GET", url, headers, patience=PATIENCE)
    if answer.fault is not None:
        raise FaultError(answer.fault)
    place = place_of(server.base_url)
    listed = [
        Listed(each["id"], size if isinstance(size := each.get("context_window"), int) else None)
        for each in entries(answer.value)
        if isinstance(each.get("id"), str)
    ]
    wants_key = answer.status == 401
    if wants_key and server.key is None:
        raise ConfigurationError(WANTS_KEY.format(who=f"The server at {place}"))
    problem = _message(answer.value) or f"it answered {answer.status or 'nothing'}."
    unanswered = UNANSWERED.format(place=place, problem=problem)
    if named is not None and not wants_key:
        failed = "" if 0 < answer.status < 500 else unanswered  # 404 is of one without a listing
        missing = Listed(named, problem=failed)
        return next((each for each in listed if each.name == named), missing)
    if answer.status != 200:
        raise ConfigurationError(unanswered)
    usable = [each for each in listed if each.name != POCKET]
    if not usable:
        problem = ONLY_POCKET if listed else UNLISTED
        raise ConfigurationError(problem.format(title=program.title, place=place))
    first = first_model([each.name for each in usable])
    return next(replace(each, of=len(usable)) for each in usable if each.name == first)


def _message(body: Any) -> str:
    """What the body of an error says."""
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message") or "") if isinstance(error, dict) else ""


# ---- the program -----------------------------------------------------------------------------

LEAVING = ("SIGTERM", "SIGHUP")
TYPED = ("SIGINT", "SIGQUIT")
PASSED = (*LEAVING, *TYPED, "SIGCONT", "SIGUSR1", "SIGUSR2")
"""Signals that are passed on, by name: not every system has all of them."""
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handled(names: Sequence[str], handler: Handler) -> Iterator[None]:
    """While this holds, these signals are handled so."""
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def supervise(words: Sequence[str], environ: Mapping[str, str], streams: Streams) -> int:
    """Run a program to its end, passing signals on; its exit status, or 128 and the signal that
    ended it, as a shell has it.

    The terminal is the program's: it is in our process group, and so in the foreground.
    """
    programs: list[int] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None = None) -> None:
        if not programs:
            early.append(number)
        elif signal.Signals(number).name not in TYPED or not _in_foreground():
            with suppress(ProcessLookupError):
                os.kill(programs[0], number)

    with handled(PASSED, pass_on):
        try:
            process = subprocess.Popen(words, env=environ, stdout=streams[0], stderr=streams[1])  # noqa: S603
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(f"{words[0]} cannot be run: {reason}.") from None
        programs.append(process.pid)
        for number in early:
            pass_on(number)
        process.returncode = _ended(process.pid)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _in_foreground() -> bool:
    """Whether what is typed at a terminal, such as Ctrl-C, has reached the program already."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _ended(process: int) -> int:
    """Wait for the end of a process: its exit code, as `subprocess` has it. While it is suspended
    (Ctrl-Z), so are we: the shell waits for us, and not for it."""
    while True:
        _, status = os.waitpid(process, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        signal.raise_signal(signal.SIGTSTP)


# ---- the programs ----------------------------------------------------------------------------


class Endpoint(Struct, frozen=True):
    """What a program is to ask: a base URL that ends in `/v1`, a model there, its context in tokens
    where that is known, and the variable that holds the key, where there is one, with its value."""

    base_url: str
    model: str
    context: int | None = None
    key_env: str | None = None
    key: str = NO_KEY


class Setup(Struct, frozen=True):
    """The files in a program's own folder, by their paths in it, and the variables that it gets."""

    files: Mapping[str, str]
    environ: Mapping[str, str]


class Program(Struct, frozen=True):
    """A program: how it is called and installed, and what it needs.

    `foreign` are the beginnings of variables that would lead it to another server or to the user's
    own configuration: it does not get them.
    """

    title: str
    command: str
    install: str
    foreign: tuple[str, ...]
    setup: Callable[[Endpoint, Path], Setup]


def _codex(to: Endpoint, folder: Path) -> Setup:
    provider = "model_providers.dragoman."
    settings: dict[str, Any] = {
        "model": to.model,
        "model_provider": "dragoman",
        "model_context_window": to.context,
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        f"{provider}name": "Dragoman",
        f"{provider}base_url": to.base_url,
        f"{provider}wire_api": "responses",
        f"{provider}env_key": to.key_env,
    }
    # A JSON string is a string of TOML, too, but for DEL, which TOML wants escaped.
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n".replace("\x7f", "\\u007F")
        for name, value in settings.items()
        if value is not None
    ]
    return Setup({"config.toml": "".join(lines)}, {"CODEX_HOME": str(folder)})


CLAUDE_ANSWER = 32_000
"""The most tokens of an answer that it asks for by default."""


def _claude(to: Endpoint, folder: Path) -> Setup:
    # It asks those for titles and summaries, and for what its aliases mean in subagents.
    kinds = ("HAIKU", "SONNET", "OPUS")
    environ = {
        "CLAUDE_CONFIG_DIR": str(folder),
        "ANTHROPIC_BASE_URL": to.base_url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": to.key,
        "ANTHROPIC_MODEL": to.model,
        **{f"ANTHROPIC_DEFAULT_{kind}_MODEL": to.model for kind in kinds},
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    if to.context is not None:
        environ["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(to.context)
        if (room := max(to.context // 4, 1)) < CLAUDE_ANSWER:
            # Servers such as vLLM refuse a request whose prompt and longest answer exceed it.
            environ["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(room)
    # Without it, the first thing a new configuration folder leads to is a page to log in at.
    return Setup({".claude.json": json.dumps({"hasCompletedOnboarding": True})}, environ)


def _opencode(to: Endpoint, folder: Path) -> Setup:
    model: dict[str, Any] = {"name": to.model}
    if to.context is not None:
        # It wants both; what is kept free for an answer is taken from the context.
        model["limit"] = {"context": to.context, "output": max(to.context // 4, 1)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Dragoman",
        "options": {
            "baseURL": to.base_url,
            "apiKey": f"{{env:{to.key_env}}}" if to.key_env else NO_KEY,
        },
        "models": {to.model: model},
    }
    text = json.dumps(
        {
            "$schema": "https://opencode.ai/config.json",
            "model": f"dragoman/{to.model}",
            "small_model": f"dragoman/{to.model}",
            "provider": {"dragoman": provider},
            # Or every key in the environment would bring another.
            "enabled_providers": ["dragoman"],
            "share": "disabled",
            "autoupdate": False,
        }
    )
    # Its own variables add to the user's configuration, and do not replace it: that is found by
    # the XDG folders. The file there yields to a project's; the variable does not.
    environ = {
        f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "STATE")
    }
    environ |= {
        "OPENCODE_CONFIG_CONTENT": text,
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_CLAUDE_CODE": "1",
    }
    return Setup({"config/opencode/opencode.json": text}, environ)


PROGRAMS: Mapping[str, Program] = {
    "codex": Program(
        "Codex", "codex", "npm install -g @openai/codex", foreign=("CODEX_",), setup=_codex
    ),
    "claude": Program(
        "Claude Code",
        "claude",
        "npm install -g @anthropic-ai/claude-code",
        foreign=("ANTHROPIC_", "CLAUDE_CODE_USE_", "CLAUDE_CODE_OAUTH_", "CLAUDE_CONFIG_DIR"),
        setup=_claude,
    ),
    "opencode": Program(
        "opencode",
        "opencode",
        "npm install -g opencode-ai",
        foreign=("OPENCODE_",),
        setup=_opencode,
    ),
}


def configure(
    program: Program, to: Endpoint, folder: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Write the program's files into the folder, which is its own; the environment it is to have,
    made from that of the user."""
    setup = program.setup(to, folder)
    for place, text in setup.files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8", errors="replace")
    own = {name: value for name, value in environ.items() if not name.startswith(program.foreign)}
    if to.key_env is not None:
        own[to.key_env] = to.key
    if is_loopback(host := urlsplit(to.base_url).hostname or ""):
        # A proxy of the environment would look for it on its own machine.
        direct = environ.get("no_proxy") or environ.get("NO_PROXY")
        own |= dict.fromkeys(("no_proxy", "NO_PROXY"), f"{direct},{host}" if direct else host)
    return {**own, **setup.environ}
