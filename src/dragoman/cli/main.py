"""Parses the command line, runs a command, and turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dragoman.core.interfaces import VERSION

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
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line; `words` are those of this process by default.

    Returns the exit status: 0 for success, 1 for a failure, 2 for wrong usage.
    """
    words = list(sys.argv[1:] if words is None else words)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "serve")
    options = parser().parse_args(words)
    # What a command needs is imported when it runs, so that --help is quick.
    if options.command == "serve":
        from .serve import serve as command
    elif options.command in ("log", "tail"):
        from .history import history as command
    elif options.command == "tokens":
        from .tokens import tokens as command
    else:
        from .chat import chat as command
    try:
        return command(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, `head` perhaps, has closed the pipe. Python writes what is buffered when it
        # exits, and would fail again.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return 1
    except Exception as error:
        if not _explains_itself(error):
            raise
        print(f"dragoman: {error}", file=sys.stderr)
        return 1


def _explains_itself(error: Exception) -> bool:
    """Whether the message of an error is one for people."""
    from dragoman.core.error import FaultError
    from dragoman.net.errors import NetError
    from dragoman.server.config import ConfigurationError
    from dragoman.server.host import HostError, WorkersError
    from dragoman.stores.base import StoreError

    kinds = FaultError | NetError | ConfigurationError | HostError | StoreError | WorkersError
    return isinstance(error, kinds)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="dragoman",
        description="Any client that speaks an OpenAI protocol, in front of any model.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"dragoman {VERSION}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    _serve_options(
        commands.add_parser("serve", help="serve models over Chat Completions and Responses")
    )
    _client_options(commands.add_parser("models", help="list the models a server offers"))
    ask = _client_options(
        commands.add_parser("ask", help="send one question and stream the answer")
    )
    ask.add_argument(
        "question", nargs="*", help="the question; read from standard input if omitted"
    )
    chat = _client_options(commands.add_parser("chat", help="hold a conversation"))
    for command in (ask, chat):
        command.add_argument("--model", "-m", help="the model's name; the first listed by default")
        command.add_argument("--system", "-s", help="instructions for the model")
        command.add_argument("--effort", help="the reasoning effort: low, medium, high …")
    _tokens_options(commands.add_parser("tokens", help="show prompt and output as tokens"))
    log = _store_options(commands.add_parser("log", help="list stored requests and answers"))
    log.add_argument("--search", default="", metavar="WORDS", help="only those with these words")
    log.add_argument("--export", action="store_true", help="everything, one line of JSON each")
    log.add_argument("--limit", type=int, metavar="N", help="only the newest N")
    tail = _store_options(commands.add_parser("tail", help="replay or follow one answer"))
    tail.add_argument("id", metavar="ID", help="the response's id")
    return top


def _store_options(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument("--store", metavar="WHERE", help="the store, as for serve")
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="the configuration that names it"
    )
    about = "the variable with the API key that owns the responses"
    command.add_argument("--key-env", metavar="NAME", help=about)
    return command


def _tokens_options(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Show a prompt token by token, and a model's output with the result of parsing it. Without "
        "arguments, the pocket model gets a question about the weather."
    )
    add = command.add_argument
    add("question", nargs="*", help="the user message, if there is no --request")
    add("--format", metavar="NAME", help="a token format, or a folder that has a chat template")
    add("--tokenizer", metavar="FOLDER", help="the folder of the vocabulary (tokenizer.json)")
    about = "a request of Chat Completions or Responses, as JSON; - is standard input"
    add("--request", metavar="FILE", help=about)
    about = "a model's output, as text or as a JSON array of ids; - is standard input"
    add("--completion", metavar="FILE", help=about)


def _serve_options(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Serve models. Without a target, an upstream or a configuration, looks for model servers "
        "on this machine and in the environment; if there are none, serves the demonstration "
        "model of the package, or the demo engine."
    )
    add = command.add_argument
    about = "the models to serve: pocket, script, hf:NAME_OR_FOLDER, gguf:FILE"
    add("targets", nargs="*", metavar="TARGET", help=about)
    add("--host", help="the address to listen on (127.0.0.1); any other needs --api-key-env")
    add("--port", type=port, help="the port (8000, or the next free one; exact if given)")
    add(
        "--upstream",
        action="append",
        default=[],
        metavar="URL",
        help="serve the server at this URL",
    )
    add("--upstream-key-env", metavar="NAME", help="the variable that holds our key to it")
    wires = ("auto", "chat", "responses", "completions")
    add("--wire", choices=wires, default="auto", help="the protocol to call it with")
    add("--format", metavar="NAME", help="the token format of its model, or a folder with one")
    add("--retries", type=retries, metavar="N", help="how often its 429 or 503 is retried (0)")
    add("--profile", metavar="KIND", help="the kind of server; detected by default")
    add("--api-key-env", metavar="NAME", help="the variable that holds the API key for clients")
    add("--generate-key", action="store_true", help="create an API key for clients, and print it")
    about = "log each request to stderr"
    add("--log", dest="request_log", action="store_true", default=None, help=about)
    about = "where responses are stored: none, memory, sqlite[:PATH], postgresql://HOST/DATABASE"
    add("--store", metavar="WHERE", help=about)
    add("--workers", type=workers, help="processes that share the port (1)")
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="the configuration (dragoman.toml, if it exists)",
    )


def _client_options(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument(
        "--at",
        metavar="URL",
        help="the server to call, `pocket`, `script`, hf:… or gguf:…; by default the one found "
        "on this machine",
    )
    command.add_argument("--key-env", metavar="NAME", help="the variable that holds the key to it")
    return command


def workers(text: str) -> int:
    """How many workers. argparse uses the function's name in its error message."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("there must be at least one worker")
    return count


def retries(text: str) -> int:
    """How often to try again. argparse uses the function's name in its error message."""
    count = int(text)
    if not 0 <= count <= 10:
        raise argparse.ArgumentTypeError("a request is tried again at most 10 times")
    return count


def port(text: str) -> int:
    """A port. argparse uses the function's name in its error message."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError("a port is between 0 and 65535")
    return number
