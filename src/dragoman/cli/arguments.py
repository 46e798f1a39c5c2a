"""The command line's grammar: which commands there are and what they take.

It parses words into options and teaches them by `--help`. What a command does is elsewhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dragoman.core.identity import VERSION

_EPILOG = """\
examples:
  dragoman                                   find what is on this machine, and serve it
  dragoman serve script                      the rehearsal: streams without any model
  dragoman serve --upstream http://127.0.0.1:9000/v1
  dragoman models                            what a server offers
  dragoman ask "Why is the sky blue?"        one answer, streamed
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
    return top


def _serve(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Serve models. Without a target, an upstream or a configuration, looks for model servers "
        "on this machine and in the environment, and rehearses when there are none."
    )
    add = command.add_argument
    add("targets", nargs="*", metavar="TARGET", help="what answers: script")
    add("--host", help="the address to listen on (127.0.0.1); any other needs --api-key-env")
    add("--port", type=port, help="the port (8000, or the next free one; given: just this one)")
    add("--upstream", action="append", default=[], metavar="URL", help="serve what is at this URL")
    add("--upstream-key-env", metavar="NAME", help="the variable that holds our key to it")
    add("--wire", choices=("auto", "chat", "responses"), default="auto", help="how to speak to it")
    add("--profile", metavar="KIND", help="what kind of server it is; by default it is recognised")
    add("--api-key-env", metavar="NAME", help="clients must present the value of this variable")
    add("--generate-key", action="store_true", help="make a key for clients, and print it")
    add("--workers", type=workers, help="processes that share the port (1)")
    add("--config", type=Path, metavar="FILE", help="the configuration (dragoman.toml, if there)")


def _asking(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument(
        "--at",
        metavar="URL",
        help="the server to ask, or `script`; by default whatever answers on this machine",
    )
    command.add_argument("--key-env", metavar="NAME", help="the variable that holds the key to it")
    return command


def workers(text: str) -> int:
    """How many workers. The parser calls a word that is no number by this name."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("there must be at least one worker")
    return count


def port(text: str) -> int:
    """A port. The parser calls a word that is no number by this name."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError("a port is between 0 and 65535")
    return number
