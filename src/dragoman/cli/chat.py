"""`dragoman ask`, `chat` and `models`: answers rendered on a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.client import Client, Stream, connect
from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, ItemDone
from dragoman.core.item import CustomToolCall, FunctionCall, Item, Message, Reasoning
from dragoman.engines.discover import discover
from dragoman.engines.local import NOTES, is_local, stand_in
from dragoman.server.config import explained, read_key

from .serve import row, table

_DIM, _CALL, _BAD, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[31m", "\x1b[0m"


class Renderer:
    """Renders events on a terminal, in colour where it has colours."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours
        self._colour = _PLAIN
        self._at_start = True

    def event(self, event: Event) -> None:
        """Render one event."""
        match event:
            case Delta(kind="reasoning" | "summary", data=str(text)):
                self.write(text, _DIM)
            case Delta(kind="text" | "refusal", data=str(text)):
                self.write(text)
            case ItemAdded(item=Message() | Reasoning()):
                self.line("")
            # Calls may come interleaved, so each is shown when it is whole.
            case ItemDone(item=FunctionCall(name=name, arguments=text)):
                self.line(f"[{name}] {text}", _CALL)
            case ItemDone(item=CustomToolCall(name=name, input=text)):
                self.line(f"[{name}] {text}", _CALL)
            case Finished(status="incomplete", reasons=reasons):
                self.line(f"(cut short: {', '.join(reasons)})", _BAD)
            case Failed(fault=fault):
                self.line("")
                print(f"dragoman: {fault.message}", file=sys.stderr, flush=True)

    def write(self, text: str, colour: str = _PLAIN) -> None:
        """Write text, in this colour."""
        if self._colours and colour != self._colour:
            sys.stdout.write(_PLAIN + colour)
            self._colour = colour
        sys.stdout.write(text)
        sys.stdout.flush()
        if text:
            self._at_start = text.endswith("\n")

    def line(self, text: str, colour: str = _PLAIN) -> None:
        """Write on a line of its own."""
        if not self._at_start:
            self.write("\n", self._colour)
        self.write(text, colour)
        if self._colours:
            sys.stdout.write(_PLAIN)
            self._colour = _PLAIN


NOTHING_ASKED = 'dragoman: nothing was asked. Say dragoman ask "…", or pipe the question in.'


def chat(options: Namespace) -> int:
    """Run one of the three commands."""
    if options.command == "chat":
        return _chat(options)
    return asyncio.run((_models if options.command == "models" else _ask)(options))


async def _models(options: Namespace) -> int:
    async with await _client(options) as client:
        rows = [row(model, "this program") for model in await client.models()]
    print(table(rows, most=len(rows)))
    return 0


async def _ask(options: Namespace) -> int:
    question = " ".join(options.question) or sys.stdin.read()
    if not question.strip():
        print(NOTHING_ASKED, file=sys.stderr)
        return 2
    async with await _client(options) as client:
        answer = await _print_answer(client, (Message("user", question),), options)
    return 0 if answer is not None else 1


def _chat(options: Namespace) -> int:
    # The prompt is read outside the loop, since Ctrl-C cannot reach a thread that waits for input.
    conversation: tuple[Item, ...] = ()
    with asyncio.Runner() as runner:
        client = runner.run(_client(options))
        try:
            while True:
                line = input("> ")
                if line.strip():
                    asked = (*conversation, Message("user", line))
                    answer = runner.run(_print_answer(client, asked, options))
                    if answer is not None:
                        conversation = (*asked, *answer)
        except EOFError:
            print()
            return 0
        finally:
            runner.run(client.__aexit__(None, None, None))


async def _print_answer(
    client: Client, items: tuple[Item, ...], options: Namespace
) -> tuple[Item, ...] | None:
    """Stream one answer to the terminal; its items, or None where it failed."""
    given = {"model": options.model, "instructions": options.system, "reasoning": options.effort}
    settings = {name: value for name, value in given.items() if value is not None}
    stream = client.stream(items, **settings)
    renderer = Renderer(sys.stdout.isatty())
    with _stopped_by_ctrl_c(stream):
        async with stream:
            async for event in stream:
                renderer.event(event)
    renderer.line("")
    answer = stream.answer
    return None if answer.status == "failed" else answer.response.output


@contextmanager
def _stopped_by_ctrl_c(stream: Stream) -> Iterator[None]:
    """While this holds, Ctrl-C closes the stream."""
    loop = asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []

    def stop() -> None:
        closing.append(asyncio.ensure_future(stream.close()))

    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError):  # no signals in this loop
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _client(options: Namespace) -> Client:
    """A client of the server that was named, or of the first one found."""
    key = None
    if options.key_env:
        key = read_key(os.environ, options.key_env, "the key to the server").reveal()
    if options.at:
        return _connected(options.at, key)
    for found in await discover(os.environ, ours=True):
        return _connected(found.base_url, os.environ.get(found.key_env) if found.key_env else key)
    name = stand_in()
    print(f"No model server found: this is {NOTES[name]} ({name}).", file=sys.stderr)
    return _connected(name, None)


def _connected(target: str, key: str | None) -> Client:
    """A client of a model of this machine, or of the server at an address."""
    if is_local(target):
        with explained():
            return connect(target)
    with explained(f"{target}: ", "."):
        return connect(target, key=key)
