"""Parses the command line, runs a command, and turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

from dragoman.core.error import bad_request, hint
from dragoman.core.interfaces import VERSION
from dragoman.core.request import EFFORTS

_EPILOG = """\
examples:
  dragoman                                   find model servers on this machine, and serve them
  dragoman serve pocket                      the demonstration model of the package
  dragoman serve script                      the demo engine: streams without a model
  dragoman serve --upstream http://127.0.0.1:9000/v1
  dragoman models                            list the models of a server
  dragoman ask "Why is the sky blue?"        one answer, streamed
  dragoman tokens "Hello!"                   show prompt and output as tokens
  dragoman log --search sky                  search stored requests and answers
  dragoman tail resp_…                       replay or follow one answer
  dragoman chat                              a conversation; Ctrl-C stops an answer, Ctrl-D ends
  dragoman talk                              a conversation by voice
  dragoman agent helper.py                   talk to an agent with tools of your own
  dragoman run codex                         Codex on the model found on this machine
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line; `words` are those of this process by default.

    Returns the exit status: 0 for success, 1 for a failure, 2 for wrong usage.
    """
    _open_streams()
    words = list(sys.argv[1:] if words is None else words)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "serve")
    try:
        try:
            options = parse(words)
        except SystemExit:
            sys.stdout.flush()  # print --help, where possible
            raise
        # Commands import their modules when they run, so that --help is quick.
        if options.command == "serve":
            from .serve import serve as command
        elif options.command == "tokens":
            from .tokens import tokens as command
        elif options.command == "run":
            from .run import run as command
        elif options.command == "talk":
            from .talk import talk as command
        else:
            from .chat import chat as command
        status = command(options)
        sys.stdout.flush()  # where the reader has closed the pipe, this fails and not the exit
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, `head` perhaps, has closed the pipe. Python writes what is buffered when it
        # exits, and would fail again.
        _drop_output()
        return 1
    except Exception as error:
        from dragoman.core.error import FaultError, visible
        from dragoman.net.errors import NetError
        from dragoman.server.config import ConfigurationError
        from dragoman.server.host import HostError

        for_people = FaultError | NetError | ConfigurationError | HostError
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            error = FaultError(bad_request(f"The output cannot be written: {error.strerror}."))
            _drop_output()
        if not isinstance(error, for_people):
            raise
        print(f"dragoman: {visible(str(error))}", file=sys.stderr)
        return 1


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _open_streams() -> None:
    """Open closed standard streams on /dev/null: else the first socket would have the number
    of stderr, and output of a library or a child would go to a client."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # lowest free number
            stream = os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
        # What its encoding lacks, and halves of surrogate pairs, are shown as "?".
        stream, fails = getattr(sys, name), ("strict", "surrogateescape") if number else ("strict",)
        if isinstance(stream, TextIOWrapper) and stream.errors in fails:
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Discard what is still buffered for stdout."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


_SERVE = (
    "Serve models. Without a target, an upstream or a configuration, looks for model servers on "
    "this machine and in the environment; if there are none, serves the demonstration model of the "
    "package, or the demo engine."
)
_TOKENS = (
    "Show a prompt token by token, and a model's output with the result of parsing it. Without "
    "arguments, the pocket model gets a question about the weather."
)
_AT = (
    "the server to call, `pocket`, `script`, hf:… or gguf:…; by default the one found on this "
    "machine"
)
_QUESTION = (
    "the question; what is piped in is appended to it, and is the question where there is none"
)
_LOG = (
    "List stored requests and answers, the newest first. Responses are stored unless a request "
    "says otherwise; chat completions only where it says `store: true`, and Messages never."
)
_AGENT = (
    "Talk to an agent (dragoman.Agent) that a file of Python makes: the one called `agent`, or the "
    "only one. Calls that need consent are asked about."
)
_MARKED = "a FILE.py with functions marked `@tool`; may be given several times"
_TALK = (
    "Talk to a model by microphone and speaker; speaking interrupts the answer. Speech is "
    "recognised and synthesized on this machine, unless another is named."
)
_RUN = (
    "Run an agent program on a model: with a configuration of its own, which is temporary, and "
    "the user's left as it is. It asks the Dragoman that is named, or else the one on the usual "
    "port, or else one that is started for as long as the program runs, with the target or the "
    "upstream given here, the configuration's, or what is found on this machine. What comes after "
    "-- is for the program; its exit status is ours."
)
_HTML = "of a file: the page to write, with the history of its models (dragoman.program)"
_PROGRAMS = ("codex", "claude", "opencode")
_RUN_AT = "the Dragoman to ask; by default the one on the usual port, or else one is started"
_TARGETS = "the models to serve: pocket, script, hf:NAME_OR_FOLDER, gguf:FILE"
_CONFIG = "the configuration (dragoman.toml, if it exists)"
_DATE = "the date that prompts say, where they say one: 2026-11-23, none, or today (the default)"
_TOOL = (
    "a tool that models may use: web=searxng:URL, web=brave, web=tavily, web=exa, python, "
    "python=bubblewrap, files, or mcp:NAME=URL; may be given several times"
)
_SPEECH = (
    "what speaks: espeak-ng, espeak-ng=VOICE, piper=FILE, kokoro=FILE, the URL of a server with "
    "/audio/speech, or none; by default espeak-ng, where it is installed"
)
_TRANSCRIPTION = (
    "what understands speech: pocketsphinx, pocketsphinx=GRAMMAR, faster-whisper=MODEL, the URL of "
    "a server with /audio/transcriptions, or none; by default pocketsphinx, where it is installed"
)
_STORE = "where responses are stored: none, memory, sqlite[:PATH], postgresql://HOST/DATABASE"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Exits with status 2 for an invalid one."""
    arguments: Sequence[str] = ()
    if words and words[0] == "run" and "--" in words:  # argparse would take them for targets
        end = words.index("--")
        words, arguments = words[:end], words[end + 1 :]
    top = parser()
    commands = [name for action in top._actions for name in action.choices or ()]
    if words and not words[0].startswith("-") and words[0] not in commands:
        near = hint(words[0], commands) or f"; there is {', '.join(commands)}"
        if words[0] in ("help", "version"):
            near = f"; say dragoman --{words[0]}"
        elif words[0].partition(":")[0] in ("pocket", "script", "hf", "gguf"):
            near = f"; say dragoman serve {words[0]}"
        top.error(f"there is no command {words[0]!r}{near}")
    options, unknown = top.parse_known_args(words)
    if options.command == "run" and not any(word.startswith("-") for word in unknown):
        options.targets += unknown  # those after an option, which argparse gives to no list
        unknown = []
    if unknown:
        command: argparse.ArgumentParser = options.parser
        # Without the common prefix, or all would be similar.
        names = [name[2:] for action in command._actions for name in action.option_strings]
        word, mark, name = unknown[0].partition("=")[0].rpartition("--")
        near = hint(name, names).replace("mean ", "mean --") if mark and not word else ""
        command.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    options.arguments = arguments
    return options


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="dragoman",
        description="Any client that speaks OpenAI's protocols or Anthropic's, before any model.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"dragoman {VERSION}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, about: str, description: str | None = None) -> Callable[..., object]:
        description = description or f"{about[0].upper()}{about[1:]}."
        made = commands.add_parser(name, help=about, description=description)
        made.set_defaults(parser=made)
        return made.add_argument

    add = command("serve", "serve models over Chat Completions, Responses and Messages", _SERVE)
    add("targets", nargs="*", default=[], metavar="TARGET", help=_TARGETS)
    add("--host", help="the address to listen on (127.0.0.1); any other needs a key for clients")
    add("--port", type=port, help="the port (8000, or the next free one; exact if given)")
    _add_upstream(add)
    add("--api-key-env", metavar="NAME", help="the variable that holds the API key for clients")
    add("--generate-key", action="store_true", help="create an API key for clients, and print it")
    about = "log each request to stderr"
    add("--log", dest="request_log", action="store_true", default=None, help=about)
    about = "how requests and errors are logged (text)"
    add("--log-format", choices=("text", "json"), help=about)
    add("--store", metavar="WHERE", help=_STORE)
    add("--tool", dest="tools", action="append", default=[], metavar="TOOL", help=_TOOL)
    _add_voice(add)
    add("--workers", type=workers, metavar="N", help="processes that share the port (1)")
    add("--config", type=Path, metavar="FILE", help=_CONFIG)

    for name, about in (
        ("models", "list the models a server offers"),
        ("ask", "send one question and stream the answer"),
        ("chat", "hold a conversation"),
    ):
        add = command(name, about)
        _add_server(add)
        if name == "ask":
            add("question", nargs="*", help=_QUESTION)
        if name == "chat":
            about = f"{_TOOL}; or a FILE.py with functions marked `@tool`"
            add("--tool", dest="tools", action="append", default=[], metavar="TOOL", help=about)
        if name != "models":
            _add_model(add)
            add("--effort", type=effort, help=f"the reasoning effort: {', '.join(EFFORTS)}")

    add = command("talk", "hold a conversation by voice", _TALK)
    _add_server(add)
    _add_model(add)
    add("--tool", dest="tools", action="append", default=[], metavar="FILE.py", help=_MARKED)
    add("--voice", metavar="NAME", help="the voice of the answers (alloy)")
    add("--input", type=Path, metavar="FILE", help="send this recording instead of the microphone")
    add("--output", type=Path, metavar="FILE.wav", help="write the answers' sound to this file")
    _add_voice(add)

    add = command("agent", "talk to the agent that a file of Python makes", _AGENT)
    add("file", type=Path, metavar="FILE.py", help="the file")

    add = command("run", "run Codex, Claude Code or opencode on a model, or a program", _RUN)
    about = f"the program: {', '.join(_PROGRAMS)}, or a file of Python"
    add("program", type=_program, metavar="PROGRAM", help=about)
    add("--html", type=Path, metavar="PAGE", help=_HTML)
    about = f"{_TARGETS}; of a file of Python, its arguments"
    add("targets", nargs="*", default=[], metavar="TARGET", help=about)
    add("--model", "-m", help="the model's name; the first listed by default")
    add("--at", metavar="URL", help=_RUN_AT)
    add("--key-env", metavar="NAME", help="the variable that holds the key to it")
    _add_upstream(add)
    add("--config", type=Path, metavar="FILE", help=_CONFIG)

    add = command("tokens", "show prompt and output as tokens", _TOKENS)
    add("question", nargs="*", help="the user message, if there is no --request")
    add("--format", metavar="NAME", help="a token format, or a folder that has a chat template")
    add("--tokenizer", metavar="FOLDER", help="the folder of the vocabulary (tokenizer.json)")
    add("--date", metavar="DATE", help=_DATE)
    about = "a request of Chat Completions or Responses, as JSON; - is standard input"
    add("--request", metavar="FILE", help=about)
    about = "a model's output, as text or as a JSON array of ids; - is standard input"
    add("--completion", metavar="FILE", help=about)

    for name, about in (
        ("log", "list stored requests and answers"),
        ("tail", "replay or follow one answer"),
    ):
        add = command(name, about, _LOG if name == "log" else None)
        add("--store", metavar="WHERE", help="the store, as for serve")
        add("--config", type=Path, metavar="FILE", help="the configuration that names it")
        about = "the variable with the API key that owns the responses"
        add("--key-env", metavar="NAME", help=about)
        if name == "tail":
            add("id", metavar="ID", help="the response's id")
            continue
        add("--search", default="", metavar="TEXT", help="only those with this text")
        add("--export", action="store_true", help="everything, one line of JSON each")
        add("--limit", type=positive, metavar="N", help="only the newest N")
    return top


def _add_server(add: Callable[..., object]) -> None:
    """Add the options for the server."""
    add("--at", metavar="URL", help=_AT)
    add("--key-env", metavar="NAME", help="the variable that holds the key to it")


def _add_model(add: Callable[..., object]) -> None:
    """Add the options for the model and its settings."""
    add("--model", "-m", help="the model's name; the first listed by default")
    add("--system", "-s", help="instructions for the model")


def _add_voice(add: Callable[..., object]) -> None:
    """Add the options for speech backends."""
    add("--speech", metavar="NAME", help=_SPEECH)
    add("--transcription", metavar="NAME", help=_TRANSCRIPTION)


def _add_upstream(add: Callable[..., object]) -> None:
    """Add the options for serving."""
    about = "serve the server at this URL; may be given several times"
    add("--upstream", action="append", default=[], metavar="URL", help=about)
    about = "the variable that holds our key to it, where it is the only one"
    add("--upstream-key-env", metavar="NAME", help=about)
    add("--wire", metavar="NAME", help="the protocol to call it with; detected by default")
    add("--format", metavar="NAME", help="the token format of its model, or a folder with one")
    add("--date", metavar="DATE", help=_DATE)
    about = "the context of each answer of gguf: models, in tokens; by default the model's own"
    add("--context", type=positive, metavar="N", help=about)
    about = "how many layers of gguf: models are on the graphics card; llama.cpp decides"
    add("--gpu-layers", type=layers, metavar="N", help=about)
    about = "how many threads compute hf: and gguf: models; by default they decide"
    add("--threads", type=positive, metavar="N", help=about)
    add("--retries", type=retries, metavar="N", help="how often its 429, 503 or 529 is retried (0)")
    add("--profile", metavar="KIND", help="the kind of server; detected by default")


def _number(name: str, low: int, high: float, problem: str) -> Callable[[str], int]:
    """The argparse type of a number within bounds, whose name is shown in errors."""

    def number(text: str) -> int:
        if not low <= (value := int(text)) <= high:
            raise argparse.ArgumentTypeError(problem)
        return value

    number.__name__ = name
    return number


port = _number("port", 0, 65535, "a port is between 0 and 65535")
retries = _number("retries", 0, 10, "a request is tried again at most 10 times")
workers = _number("workers", 1, 1024, "there are between 1 and 1024 workers")
positive = _number("number", 1, math.inf, "the number must be at least 1")
layers = _number("number", -1, math.inf, "the number must be at least 0, or -1 for all")


def _program(text: str) -> str:
    if text not in _PROGRAMS and not text.endswith(".py"):
        near = hint(text, _PROGRAMS) or f"; there is {', '.join(_PROGRAMS)}, or a FILE.py"
        raise argparse.ArgumentTypeError(f"there is no program {text!r}{near}")
    return text


def effort(text: str) -> str:
    """A reasoning effort. One that only the model may have is sent unchanged, with a note, unless
    it looks like a typo of one."""
    if text not in EFFORTS:
        if near := hint(text, EFFORTS):
            raise argparse.ArgumentTypeError(f"there is no effort {text!r}{near}")
        known = ", ".join(EFFORTS)
        print(f"{text!r} is sent as it is; efforts that are known: {known}.", file=sys.stderr)
    return text
