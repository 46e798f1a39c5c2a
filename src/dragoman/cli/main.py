"""The command line's grammar."""

from __future__ import annotations

import argparse
from pathlib import Path

from dragoman.core.version import VERSION

_EPILOG = """\
examples:
  dragoman                                   find what is on this machine, and serve it
  dragoman serve pocket                      the demonstration model of the package
  dragoman serve script                      the rehearsal: streams without any model
  dragoman serve --upstream http://127.0.0.1:9000/v1
  dragoman models                            what a server offers
  dragoman ask "Why is the sky blue?"        one answer, streamed
  dragoman tokens "Hello!"                   what a model reads and writes, in tokens
  dragoman log --search sky                  what was asked and answered
  dragoman tail resp_…                       one answer again, or as it comes
  dragoman chat                              a conversation; Ctrl-C stops an answer, Ctrl-D ends
"""


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
    _serve(commands.add_parser("serve", help="serve models over Chat Completions and Responses"))
    _asking(commands.add_parser("models", help="list the models a server offers"))
    ask = _asking(commands.add_parser("ask", help="ask once and stream the answer"))
    ask.add_argument(
        "question", nargs="*", help="what to ask; read from standard input if left out"
    )
    chat = _asking(commands.add_parser("chat", help="hold a conversation"))
    for command in (ask, chat):
        command.add_argument("--model", "-m", help="the model's name; the first listed by default")
        command.add_argument("--system", "-s", help="instructions for the model")
        command.add_argument("--effort", help="how hard to think: low, medium, high …")
    _tokens(commands.add_parser("tokens", help="show what a model reads and writes, in tokens"))
    log = _keeping(commands.add_parser("log", help="list what was asked and answered"))
    log.add_argument("--search", default="", metavar="WORDS", help="only what has these words")
    log.add_argument("--export", action="store_true", help="all of it, a line of JSON for each")
    log.add_argument("--limit", type=int, metavar="N", help="the newest N only")
    tail = _keeping(commands.add_parser("tail", help="show an answer again, or as it comes"))
    tail.add_argument("id", metavar="ID", help="the response's id")
    return top


def _keeping(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument("--store", metavar="WHERE", help="where it is kept, as for serve")
    command.add_argument("--config", type=Path, metavar="FILE", help="where that is written")
    about = "the variable with the key whose responses are meant"
    command.add_argument("--key-env", metavar="NAME", help=about)
    return command


def _tokens(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Show a conversation token by token, as a model reads it, and what a model wrote with what "
        "is made of it. Without words, the pocket model is asked for the weather."
    )
    add = command.add_argument
    add("question", nargs="*", help="what a user says, where there is no --request")
    add("--format", metavar="NAME", help="a token format, or a folder that has a chat template")
    add("--tokenizer", metavar="FOLDER", help="the folder of the vocabulary (tokenizer.json)")
    about = "a request of Chat Completions or Responses, as JSON; - is standard input"
    add("--request", metavar="FILE", help=about)
    about = "what a model wrote, as text or as a JSON array of ids; - is standard input"
    add("--completion", metavar="FILE", help=about)


def _serve(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Serve models. Without a target, an upstream or a configuration, looks for model servers "
        "on this machine and in the environment; where there are none, serves the demonstration "
        "model of the package, or rehearses."
    )
    add = command.add_argument
    about = "what answers: pocket, script, hf:NAME_OR_FOLDER, gguf:FILE"
    add("targets", nargs="*", metavar="TARGET", help=about)
    add("--host", help="the address to listen on (127.0.0.1); any other needs --api-key-env")
    add("--port", type=port, help="the port (8000, or the next free one; given: just this one)")
    add("--upstream", action="append", default=[], metavar="URL", help="serve what is at this URL")
    add("--upstream-key-env", metavar="NAME", help="the variable that holds our key to it")
    wires = ("auto", "chat", "responses", "completions")
    add("--wire", choices=wires, default="auto", help="how to speak to it")
    add("--format", metavar="NAME", help="the token format of its model, or a folder that has one")
    add("--retries", type=retries, metavar="N", help="how often its 429 or 503 is tried again (0)")
    add("--profile", metavar="KIND", help="what kind of server it is; by default it is recognised")
    add("--api-key-env", metavar="NAME", help="clients must present the value of this variable")
    add("--generate-key", action="store_true", help="make a key for clients, and print it")
    about = "a line on stderr for each request"
    add("--log", dest="request_log", action="store_true", default=None, help=about)
    kept = "where responses are kept: none, memory, sqlite[:PATH], postgresql://HOST/DATABASE"
    add("--store", metavar="WHERE", help=kept)
    add("--workers", type=workers, help="processes that share the port (1)")
    add("--config", type=Path, metavar="FILE", help="the configuration (dragoman.toml, if there)")


def _asking(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument(
        "--at",
        metavar="URL",
        help="the server to ask, `pocket`, `script`, hf:… or gguf:…; by default whatever answers "
        "on this machine",
    )
    command.add_argument("--key-env", metavar="NAME", help="the variable that holds the key to it")
    return command


def workers(text: str) -> int:
    """How many workers. The parser calls a word that is no number by this name."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("there must be at least one worker")
    return count


def retries(text: str) -> int:
    """How often to try again. The parser calls a word that is no number by this name."""
    count = int(text)
    if not 0 <= count <= 10:
        raise argparse.ArgumentTypeError("a request is tried again at most 10 times")
    return count


def port(text: str) -> int:
    """A port. The parser calls a word that is no number by this name."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError("a port is between 0 and 65535")
    return number
