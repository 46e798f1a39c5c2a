"""`dragoman ask`, `chat`, `agent`, `models`, `log` and `tail`: answers, new and stored, on a
terminal.

The store is read directly; no server needs to run.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import runpy
import select
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dragoman.agent import Agent, Run
from dragoman.agent.hosted import HostedTools
from dragoman.client import Client, Stream, connect
from dragoman.core.error import FaultError, bad_request, visible
from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, ItemDone, Progress
from dragoman.core.interfaces import Engine, Secret
from dragoman.core.item import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Unknown,
)
from dragoman.core.request import UnknownTool
from dragoman.engines.discover import discover
from dragoman.engines.local import NOTES, is_local, stand_in
from dragoman.server.build import assemble, hosted
from dragoman.server.config import ConfigurationError, HostedTool, explained, place_of, read_key
from dragoman.server.settings import Settings
from dragoman.server.state.history import History, answered, asked, exported, name, open_history
from dragoman.stores.base import Record
from dragoman.tools.function import PythonTool
from dragoman.wire.responses.items import WIRE

from .serve import Row, configured, row, table

T = TypeVar("T")

_DIM, _CALL, _BAD, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[31m", "\x1b[0m"
_ERASE = "\r\x1b[K"
"""The control sequence that clears a line on a terminal."""


SHOWN = {
    "code_interpreter_call": ("code",),
    "file_search_call": ("queries",),
    "mcp_call": ("name",),
    "web_search_call": ("action",),
}
"""Items of hosted tools, each with the field that is shown."""


class Renderer:
    """Renders events: verbatim to a file or a pipe, on a terminal in colour and without control
    characters."""

    def __init__(self, terminal: bool) -> None:
        self._colours = terminal
        self._colour = _PLAIN
        self._at_start = True
        self._status = False

    def event(self, event: Event) -> None:
        """Render one event."""
        match event:
            case Delta(kind="reasoning" | "summary", data=str(text)):
                self.write(text, _DIM)
            case Delta(kind="text" | "refusal", data=str(text)):
                self.write(text)
            case ItemAdded(item=Message() | Reasoning()):
                self.line("")
            # Calls may come interleaved, so each is shown when it is complete.
            case ItemDone(item=FunctionCall(name=name, arguments=text)):
                self.line(f"[{name}] {text}", _CALL)
            case ItemDone(item=CustomToolCall(name=name, input=text)):
                self.line(f"[{name}] {text}", _CALL)
            case ItemDone(item=Unknown(kind=kind, value=value)) if kind in SHOWN:
                field = next(filter(value.get, SHOWN[kind]), "")
                self.line(f"[{kind}] {_short(str(value.get(field, '')))}", _CALL)
            case Progress(state="searching" | "interpreting" as state):
                self.line(f"({state} …)", _DIM)
            case Progress(index=None, data={"report": report}):
                self.line(f"({_short(str(report))})", _DIM)
            case ItemDone(item=FunctionCallOutput() | CustomToolCallOutput() as item):
                self.line(f"→ {_short(str(item.output))}", _DIM)
            case Finished(status="incomplete", reasons=reasons):
                self.line(f"(cut short: {', '.join(reasons)})", _BAD)
            case Failed(fault=fault):
                self.line("")
                print(f"dragoman: {visible(fault.message)}", file=sys.stderr, flush=True)

    def write(self, text: str, colour: str = _PLAIN) -> None:
        """Write text, in this colour."""
        if self._colours:
            text = visible(text)
            if self._status:
                sys.stdout.write(_ERASE)
                self._status = False
            if colour != self._colour:
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

    def status(self, text: str) -> None:
        """Show a status on a terminal, at the start of a line, until something is written."""
        if self._colours and self._at_start:
            sys.stdout.write(f"{_ERASE}{text}")
            sys.stdout.flush()
            self._status = True


NOTHING = (
    "dragoman: nothing was found. (Responses are stored unless a request says otherwise, chat "
    "completions only with `store: true`. What a client stored with a key is shown by --key-env.)"
)
KEYLESS = (
    "The configuration has keys, and what their clients stored is theirs: --key-env {} shows it. "
    "This is what was stored without a key."
)
MOST = 64 * 1024 * 1024
"""Characters of a question: servers refuse longer ones, and standard input may be endless."""
WAITING = 2.0
"""Seconds after which a note says that standard input is being read."""
SLOW = "Reading standard input, too, to its end; </dev/null leaves it out."
NOTHING_ASKED = 'dragoman: nothing was asked. Say dragoman ask "…", or pipe the question in.'


def chat(options: Namespace) -> int:
    """Run one of the commands."""
    if options.command in ("chat", "agent"):
        return _chat(options)
    commands = {"models": _models, "ask": _ask, "log": _log, "tail": _tail}
    return asyncio.run(commands[options.command](options))


async def _models(options: Namespace) -> int:
    async with await _client(options) as client:
        rows = [row(model, "this program") for model in await client.models()]
    print(table(rows, most=len(rows)))
    return 0


async def _ask(options: Namespace) -> int:
    typed = bool(options.question) and (sys.stdin is None or sys.stdin.isatty())
    piped = "" if typed else _piped(bool(options.question))
    question = "\n\n".join(filter(str.strip, (" ".join(options.question), piped)))
    if not question:
        print(NOTHING_ASKED, file=sys.stderr)
        return 2
    async with await _client(options) as client:
        given = {
            "model": options.model,
            "instructions": options.system,
            "reasoning": options.effort,
        }
        settings: Any = {name: value for name, value in given.items() if value is not None}
        answer = await _print_answer(client.stream((Message("user", question),), **settings))
    if answer is not None and answer.status == "cancelled":
        raise KeyboardInterrupt  # half an answer is no success
    return 0 if answer is not None else 1


HINT = "/help lists the commands; Ctrl-D ends."
HELP = """\
/help   this list
/new    begin a new conversation
/quit   end, as Ctrl-D does
A line that begins with a space is sent as it is.
Ctrl-C stops an answer. The arrow keys edit a line and bring back earlier ones."""


def _piped(optional: bool) -> str:
    """All of standard input. Prints a note if it is optional and nothing comes: a pipe that is
    never closed (of ssh, for instance) looks like a slow one."""
    with suppress(OSError, ValueError):  # of what is no file, or cannot be selected
        if optional and not select.select([sys.stdin], [], [], WAITING)[0]:
            print(SLOW, file=sys.stderr)
    piped = sys.stdin.read(MOST + 1)
    if len(piped) > MOST:
        raise FaultError(bad_request(f"Standard input has more than {MOST} characters."))
    return piped


def _chat(options: Namespace) -> int:
    with suppress(ImportError):  # `input` edits lines with it, where there is one
        importlib.import_module("readline")
    # Input is read outside the loop, since Ctrl-C cannot reach a thread that waits for it.
    with asyncio.Runner() as runner:
        if options.command == "agent":
            agent, about = _loaded(options.file), f"{options.file}: {HINT}"
        else:
            agent, about = runner.run(_agent(options))
        began = agent.history
        answered = failed = False  # one answer is enough to have worked
        try:
            print(about, file=sys.stderr)
            while True:
                line = input("> ")
                command = line.rstrip()
                word = command.partition(" ")[0]
                if command == "/quit":
                    return int(failed)
                if command == "/new":
                    agent.history = began
                elif word.startswith("/") and word[1:].isalpha():
                    print(HELP if word == "/help" else f"There is no {command}.\n{HELP}")
                elif command:
                    run = runner.run(_print_answer(agent.stream(line)))
                    answered = answered or run is not None
                    failed = not answered
                    while run is not None and (decided := _decided(run)):
                        allow, items = decided
                        run = runner.run(_print_answer(agent.stream(items, allow=allow)))
        except EOFError:
            print()
            return int(failed)
        finally:
            runner.run(agent.close())


async def _agent(options: Namespace) -> tuple[Agent, str]:
    """An agent with the named tools, and its description in a line."""
    client = await _client(options)
    # The command of an MCP server may end like a file.
    tools = [t for t in options.tools if t.endswith(".py") and not t.startswith("mcp:")]
    mine = [tool for each in tools for tool in tools_in(Path(each))]
    servers = [HostedTool(use=each) for each in options.tools if each not in tools]
    engine: Engine = client
    settings: dict[str, Any] = {"reasoning": options.effort} if options.effort else {}
    if servers:
        engine = HostedTools(client, hosted(servers, os.environ))
        settings["tools"] = [_named(each.use) for each in servers]
    agent = Agent(
        engine,
        tools=mine,
        model=options.model or "",
        instructions=options.system,
        settings=settings,
    )
    return agent, await _header(client, options.model)


def _named(use: str) -> UnknownTool:
    """A hosted tool as the tool of a request."""
    name, _, label = use.partition("=")[0].partition(":")
    match name:
        case "python":
            return UnknownTool(WIRE, "code_interpreter", {"container": {"type": "auto"}})
        case "mcp":
            return UnknownTool(WIRE, "mcp", {"server_label": label})
        case _:
            return UnknownTool(WIRE, f"{name.removesuffix('s')}_search", {})


def _decided(run: Run) -> tuple[dict[str, bool] | None, list[Item] | None] | None:
    """Ask the user about pending calls: decisions for `allow`, or approval items; None for none."""
    if run.pending:
        return {call.call_id: _allowed(call.name, call.text) for call in run.pending}, None
    items: list[Item] = []
    for item in run.output:
        if isinstance(item, Unknown) and item.kind == "mcp_approval_request":
            name, given = f"{item.value['server_label']}.{item.value['name']}", item.value
            fields = {"approve": _allowed(name, given["arguments"]), "approval_request_id": item.id}
            items.append(Unknown(item.wire, "mcp_approval_response", fields))
    return (None, items) if items else None


def _allowed(name: str, given: str) -> bool:
    """Whether the user allows a call; without an answer it is refused."""
    try:
        return input(visible(f"Allow {name} {given}? [y/N] ", True)).strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        print()
        return False


def _loaded(path: Path) -> Agent:
    """The agent of a file: `agent`, or the only one. Raises ConfigurationError."""
    found = _in_file(path, Agent)
    if len(found) != 1:
        problem = f"makes {len(found)} agents, and must make one, or name one of them `agent`"
        raise ConfigurationError(f"{path} {problem}.")
    return found[0]


def tools_in(path: Path) -> list[PythonTool]:
    """The tools of a file, at least one. Raises ConfigurationError."""
    if not (found := _in_file(path, PythonTool)):
        raise ConfigurationError(f"{path} has no tool (a function with `@tool`).")
    return found


def _in_file(path: Path, kind: type[T]) -> list[T]:
    """The objects of a type in the global names of a Python file; of several agents
    the one called `agent`. Raises ConfigurationError for a file that cannot be run."""
    sys.path.insert(0, str(path.parent.absolute()))
    sys.argv = [str(path)]  # the command's own words are not for the file
    try:
        names = runpy.run_path(str(path), run_name=path.stem)
    except (OSError, SyntaxError, ImportError) as error:
        raise ConfigurationError(f"{path} cannot be run: {error}.") from None
    found = {name: each for name, each in names.items() if isinstance(each, kind)}
    return [found["agent"]] if "agent" in found else list(dict.fromkeys(found.values()))


async def _header(client: Client, model: str | None) -> str:
    """The model and its server, in a line; a server that lists no models is used all the same."""
    rows: list[Row] = []
    if model is None:
        with suppress(FaultError):
            rows = [row(each, "this program") for each in await client.models()]
    who = f"{rows[0].model} ({rows[0].source})" if rows else visible(model or "No model is listed")
    return f"{who}. {HINT}"


async def _print_answer(stream: Stream) -> Any:
    """Stream one answer to the terminal; returns the run, or None where it failed."""
    renderer = Renderer(sys.stdout.isatty())
    with _stopped_by_ctrl_c(stream):
        async with stream:
            async for event in stream:
                renderer.event(event)
    renderer.line("")
    return None if stream.answer.status == "failed" else stream.answer


@contextmanager
def _stopped_by_ctrl_c(stream: Stream) -> Iterator[None]:
    """Inside this context, Ctrl-C closes the stream."""
    loop = asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []

    def stop() -> None:
        closing.append(asyncio.ensure_future(stream.close()))

    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError):  # this loop supports no signals
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _client(options: Namespace) -> Client:
    """A client of the named server, or of the first one found."""
    key = _key(options, "the key to the server")
    if options.at:
        return _connected(options.at, key)
    for found in await discover(os.environ, ours=True, key=key):
        if key and found.key_env not in (None, options.key_env):
            continue  # the environment has its key, which is another
        if found.access == "refused":
            where = f"erver on port {urlsplit(found.base_url).port}"
            raise ConfigurationError(
                f"The s{where} refused the key in {options.key_env}."
                if key
                else f"A s{where} asks for a key: name the variable that holds it with --key-env."
            )
        return _connected(found.base_url, os.environ.get(found.key_env) if found.key_env else key)
    if key:
        raise ConfigurationError(
            f"No server was found that the key in {options.key_env} is for: name it with --at."
        )
    target = stand_in()
    print(f"No model server found: this is {NOTES[target]} ({target}).", file=sys.stderr)
    return _connected(target, None)


def _key(options: Namespace, what: str) -> Secret | None:
    """The key in the named variable, if there is one."""
    return read_key(os.environ, options.key_env, what) if options.key_env else None


def _connected(target: str, key: Secret | str | None) -> Client:
    """A client of a local model, or of the server at an address."""
    if is_local(target):
        # Through a router, which resolves the names of models.
        return connect(assemble((), (target,), Settings(), os.environ))
    with explained(f"{place_of(target)}: ", "."):
        return connect(target, key=key, name=f"at {place_of(target)}")


# ---- stored answers --------------------------------------------------------------------------


async def _log(options: Namespace) -> int:
    width = get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 0
    shown = 0
    async with _stored(options) as stored, aclosing(stored.records(options.search)) as records:
        async for record in records:
            if shown == options.limit:
                break
            if options.export:
                print(exported(record).decode())
            else:
                print(*lines(record, width), sep="\n" if width else "  ")
            shown += 1
    if not shown:
        print(NOTHING, file=sys.stderr)
    return 0 if shown else 1


async def _tail(options: Namespace) -> int:
    renderer, failed = Renderer(sys.stdout.isatty()), False
    async with _stored(options) as stored, aclosing(stored.events(options.id)) as batches:
        async for batch in batches:
            for event in batch:
                renderer.event(event)
                failed = isinstance(event, Failed)
    renderer.line("")
    return 1 if failed else 0


def lines(record: Record, width: int = 0) -> tuple[str, str]:
    """A line for a record: time, status, model and texts, cut to a width; 0 means one line
    without a limit."""
    moment = datetime.fromtimestamp(record.created_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    head = f"{moment}  {name(record)}  {record.status}  {_short(record.request.model)}"
    texts = f"{_short(asked(record))} → {_short(answered(record))}"
    if not width:
        return head, texts
    return _cut(head, width), _cut(f"    {texts}", width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _short(text: str) -> str:
    """A text on one line, without control characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:1_000])
    return " ".join(plain.split())


def _stored(options: Namespace) -> AbstractAsyncContextManager[History]:
    settings, key = configured(options).server, _key(options, "the key that owns the responses")
    if settings.api_key_env and key is None:
        print(KEYLESS.format(" or ".join(settings.api_key_env)), file=sys.stderr)
    return open_history(options.store or settings.store, settings.pubsub, os.environ, key)
