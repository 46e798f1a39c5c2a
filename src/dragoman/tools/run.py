"""Runs the tools that a model calls: lookup, limits, and the result as an item.

An error of a call is a result too, with a message for the model: tools cannot
raise out of here, and no traceback reaches the model.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.event import DeltaKind, State
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import (
    JSON,
    RECORD,
    Call,
    CallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    Extra,
    FunctionCallOutput,
    Part,
    Text,
    Unknown,
)
from dragoman.core.request import CustomTool, FunctionTool, Namespace
from dragoman.formats.citations import Cited
from dragoman.wire.json import MAX_DIGITS, has_long_number

_log = logging.getLogger("dragoman")

Output = str | tuple[Part, ...]
"""The output of a tool for the model."""

Next = Literal["model", "user"]
Approval = Literal["always", "never"] | Callable[[Call], bool | Awaitable[bool]]
"""Whether a call needs a person's consent: a constant, or a function of the
call."""

SECONDS = 120.0
LONGEST = 200_000
"""Characters of a result, where the tool has no limit of its own."""
MOST_WRITTEN = 100_000
"""Values and names, about, in the arguments of a tool of the server: more are not decoded."""
MOST_DATA = 20 * 1024 * 1024
"""Bytes of the images, sounds and files of a result."""
PATIENCE = 1.0
"""Seconds to wait for a cancelled tool."""


class ToolError(Exception):
    """Raised by a tool for an error; the model gets its message.

    >>> raise ToolError("There is no city of that name. Ask the user for the country.")
    Traceback (most recent call last):
    ...
    dragoman.tools.run.ToolError: There is no city of that name. Ask the user for the country.
    """


class Context(Struct, frozen=True):
    """What a tool gets besides its arguments: the call, the caller, and the `state` of the agent.
    `report` emits a progress event of the run."""

    call: Call
    caller: Caller = ANYONE
    state: Any = None
    report: Callable[[Any], None] = lambda _: None


class Display(Struct, frozen=True):
    """How calls of a hosted tool are shown: as items of a kind of the Responses
    protocol, in place of a function call and its output.

    - `kind` is that of the item: `web_search_call`, say.
    - `opened` returns the fields of the item of a call at its beginning, with the model's
      arguments, even invalid ones. It does not raise.
    - `delta` names the field among them that is streamed: `code` or `arguments`.
    - `working` is the state between `in_progress` and `completed`: `searching`, say.
    """

    kind: str
    opened: Callable[[Call], dict[str, JSON]]
    delta: DeltaKind | None = None
    working: State | None = None
    fails: bool = False  # whether there is a state `failed`, too


class Shown(Struct, frozen=True):
    """The result of a tool with a display: `output` is for the model, and `fields` are those of
    the item at its end, beside or in place of those at its beginning. `kept` is
    for the tool itself: it is in the record of the call, for later answers of the conversation."""

    output: Output
    fields: dict[str, JSON] = {}
    failed: bool = False
    kept: JSON = None


class Tool(Protocol):
    """A name, a schema and an asynchronous call, with defaults for the rest.

    - `spec` is what the model is shown.
    - `after` is whose turn follows its result: the model's, or the user's.
    - With `auto_retry` the model may try again after an error.
    - `auto_truncate` is the number of characters a result is cut down to.
    - A tool that is not `enabled` is hidden from the model; a call of it is run all the same.
    - `seconds` is how long a call may take.
    - A `repeatable` one may be run again when it is not known whether it was run.
    - `display` is how its calls are shown, where that is not as function calls.
    """

    spec: FunctionTool | CustomTool
    after: Next = "model"
    auto_retry: bool = True
    auto_truncate: int | None = None
    enabled: bool = True
    approval: Approval = "never"
    seconds: float | None = None
    repeatable: bool = False
    display: Display | None = None

    def call(self, text: str, context: Context) -> Awaitable[Output | Shown]:
        """Run it on the model's arguments, or its free text. May raise anything."""
        ...


class Session(Protocol):
    """A hosted tool opened for one answer.

    - `tools` are functions for the model, in a `namespace` of theirs or in none; `description` says
      what that is for.
    - `items` are shown before the model is asked: a list of tools, say.
    - `cited` resolves the marks of this tool's citations, where it has any.
    """

    tools: Sequence[Tool]
    namespace: str | None = None
    description: str | None = None
    items: Sequence[Unknown] = ()
    cited: Cited | None = None

    async def close(self) -> None:
        """The answer has ended."""
        return


class Hosted(Protocol):
    """A tool of the server, which a request enables by naming one of its `kinds`, which are
    types of tools in the Responses protocol."""

    kinds: frozenset[str]

    async def open(
        self, asked: Mapping[str, JSON], items: Sequence[Unknown], caller: Caller
    ) -> Session:
        """Open the tool for an answer. `asked` is the tool in the request, and `items` are
        those of hosted tools in the conversation, each with the call and the model's
        result (see `recorded`). Raises FaultError for an invalid request."""
        ...

    async def close(self) -> None:
        """Close, when the server ends."""
        ...


_HOSTED: Extra = {RECORD: {}}
"""Marks a tool as run by the server, for formats: models may have been trained with it."""


class Recorded(Struct, frozen=True, omit_defaults=True):
    """The record of a hosted tool's call: the model's arguments, its result, and what
    the tool has `kept`. Calls of one answer of the model have the same `round`."""

    call_id: str
    name: str
    arguments: str
    output: Output | None = None
    namespace: str | None = None
    round: str = ""
    kept: JSON = None


def recorded(item: Unknown) -> Recorded | None:
    """The record of a hosted tool's item, where it has one."""
    try:
        return msgspec.convert((item.extra or {}).get(RECORD), Recorded)
    except msgspec.ValidationError:
        return None


class Result(Struct, frozen=True):
    """The result of a call: the item for the model, whether it is an error or was not `run`,
    whose turn follows, and the fields of its display and its record."""

    output: CallOutput
    error: bool = False
    after: Next = "model"
    retry: bool = True
    run: bool = True
    fields: dict[str, JSON] = {}
    kept: JSON = None


class Runner:
    """Tools by namespace and name, each with one owner: here. `spaces` are tools by namespace, and
    `about` says what these are for.

    Raises ValueError where two have the same name.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        spaces: Mapping[str, Iterable[Tool]] = {},
        about: Mapping[str, str | None] = {},
        *,
        seconds: float = SECONDS,
    ) -> None:
        self.tools: dict[tuple[str | None, str], Tool] = {}
        self._seconds, self._about = seconds, about
        for space, found in ((None, tools), *spaces.items()):
            for tool in found:
                if self.tools.setdefault((space, tool.spec.name), tool) is not tool:
                    raise ValueError(f"there are two tools with the name {tool.spec.name!r}")

    def offered(self) -> tuple[FunctionTool | CustomTool | Namespace, ...]:
        """The specs for the model."""
        spaces: dict[str | None, list[FunctionTool | CustomTool]] = {None: []}
        for (space, _), tool in self.tools.items():
            if tool.enabled:
                spec = tool.spec
                if tool.display is not None and space is None:
                    spec = replace(spec, extra=_HOSTED)
                spaces.setdefault(space, []).append(spec)
        own = spaces.pop(None)
        named = [
            Namespace(name or "", tuple(each), self._about.get(name or ""), extra=_HOSTED)
            for name, each in spaces.items()
        ]
        return (*own, *named)

    def find(self, call: Call) -> Tool | None:
        """The tool of a call, where it is run here."""
        return self.tools.get((call.namespace, call.name))

    async def needs_approval(self, call: Call) -> bool:
        """Whether a person must consent first. A rule that raises counts as yes."""
        tool = self.find(call)
        if tool is None or isinstance(tool.approval, str):
            return tool is not None and tool.approval != "never"
        try:
            needed = tool.approval(call)
            return bool(await needed if isinstance(needed, Awaitable) else needed)
        except Exception:
            _log.exception("the rule of approval of the tool %s failed", call.name)
            return True

    async def run(self, call: Call, context: Context) -> Result:
        """Run one call. Raises only CancelledError, when it is cancelled itself."""
        tool = self.find(call)
        if tool is None:
            enabled = [key for key, each in self.tools.items() if each.enabled]
            asked, *names = (
                name if space is None else f"{space}.{name}"
                for space, name in ((call.namespace, call.name), *enabled)
            )
            known = ", ".join(names) or "none"
            return failed(call, f"There is no tool {asked!r}. The tools are: {known}.")
        seconds = self._seconds if tool.seconds is None else tool.seconds
        most = tool.auto_truncate or LONGEST
        # In a task of its own: a tool may cancel itself, or resist cancellation.
        task = asyncio.ensure_future(_call(tool, call, context))
        try:
            done, _ = await asyncio.wait((task,), timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,), timeout=PATIENCE)
            raise
        if not done:
            task.cancel()
            output: Output | Shown | BaseException = _LateError(
                f"It did not end within {seconds:g} seconds."
            )
        else:
            output = task.result()
        if isinstance(output, BaseException):
            words = truncated(_clean(message_of(output)), most)
            if not isinstance(output, ToolError):
                words = f"The tool {call.name!r} failed. {words}"
            return failed(call, words, retry=tool.auto_retry)
        shown = output if isinstance(output, Shown) else Shown(output)
        about = partial(
            Result, error=shown.failed, after=tool.after, fields=shown.fields, kept=shown.kept
        )
        if isinstance(shown.output, str):
            return about(_item(call, truncated(_clean(shown.output), most)))
        parts: list[Part] = []
        room = MOST_DATA
        for part in shown.output:
            if isinstance(part, Text):
                text = truncated(_clean(part.text), most)
                most -= len(text)
                part = Text(text)
            else:
                room -= len(msgspec.json.encode(part))
            parts.append(part)
        if room < 0:
            words = f"The tool {call.name!r} failed. Its result has more than {MOST_DATA} bytes."
            return failed(call, words, retry=tool.auto_retry)
        return about(_item(call, tuple(parts)))


def check_written(text: str) -> None:
    """Raise ToolError for arguments with so many values, or so long ones, that it takes long to
    decode them."""
    if sum(map(text.count, ",:[{")) > MOST_WRITTEN:
        raise ToolError(f"The arguments have more than {MOST_WRITTEN} values.")
    if has_long_number(text.encode("utf-8", "replace")):
        raise ToolError(f"The arguments have a number of more than {MAX_DIGITS} digits.")


class _LateError(Exception):
    """A tool did not end in time."""


async def _call(tool: Tool, call: Call, context: Context) -> Output | Shown | BaseException:
    """The result of a tool, or its exception as a value: a SystemExit would end the event loop."""
    try:
        return await tool.call(call.text, context)
    except BaseException as error:
        if not isinstance(error, ToolError | asyncio.CancelledError):
            _log.warning("the tool %s failed", call.name, exc_info=error)
        return error


def failed(call: Call, problem: str, *, retry: bool = True) -> Result:
    """The result of a failed call."""
    return Result(_item(call, problem), error=True, retry=retry)


def not_run(call: Call, why: str) -> Result:
    """The result of a call that was not run, which is no error of the model."""
    return Result(_item(call, why), run=False)


def _item(call: Call, output: Output) -> CallOutput:
    if isinstance(call, CustomToolCall):
        return CustomToolCallOutput(call.call_id, output)
    return FunctionCallOutput(call.call_id, output)


def message_of(error: BaseException) -> str:
    """What an exception of the application's code says, with its type."""
    try:
        words = str(error)
    except Exception:
        words = ""
    if isinstance(error, ToolError | _LateError):
        return words or "It did not say why."
    return f"{type(error).__name__}: {words}" if words else f"{type(error).__name__}."


def _clean(text: str) -> str:
    """The text without lone surrogates, which no protocol can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


_ENDS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?]\s"), re.compile(r"\s"))
"""Where a text may be cut: after a paragraph, a line, a sentence, a word."""


def truncated(text: str, most: int) -> str:
    """A text of at most `most` characters: cut after a paragraph, a line, a sentence or a word of
    its last third, if there is one, and with three dots.

    >>> truncated("One sentence. Another one", 20)
    'One sentence....'
    >>> truncated("short", 20)
    'short'
    """
    if len(text) <= most:
        return text
    room = max(most - 3, 0)
    for end in _ENDS:
        places = [found.end() for found in end.finditer(text, room * 2 // 3, room)]
        if places:
            return text[: places[-1]].rstrip() + "..."
    return text[:room] + "..."[:most]
