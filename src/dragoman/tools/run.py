"""Runs the tools that a model calls: whose call it is, its limits, and its result as an item.

A call that goes wrong is a result too, which says to the model what to do about it: nothing a tool
does raises here, and no traceback reaches the model.
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

_log = logging.getLogger("dragoman")

Output = str | tuple[Part, ...]
"""What a tool gives to the model."""

Next = Literal["model", "user"]
Approval = Literal["always", "never"] | Callable[[Call], bool | Awaitable[bool]]
"""Whether a call needs a person's consent: it does, it does not, or a function of the call says
so."""

SECONDS = 120.0
LONGEST = 200_000
"""Characters of a result, where the tool has no limit of its own."""
MOST_DATA = 20 * 1024 * 1024
"""Bytes of the images, sounds and files of a result."""
PATIENCE = 1.0
"""Seconds that a cancelled tool is waited for."""


class ToolError(Exception):
    """Raised by a tool to tell the model, in these words, what went wrong.

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
    """How calls of a tool that the server brings are shown: as items of a kind that the Responses
    protocol has for them, in place of a function call and its output.

    - `kind` is that of the item: `web_search_call`, say.
    - `opened` gives the fields of the item of a call when it begins: they hold what the model
      wrote, be it nonsense. It does not raise.
    - `delta` names the field among them that is streamed: `code` or `arguments`.
    - `working` is the state between `in_progress` and `completed`: `searching`, say.
    """

    kind: str
    opened: Callable[[Call], dict[str, JSON]]
    delta: DeltaKind | None = None
    working: State | None = None
    fails: bool = False  # whether there is a state `failed`, too


class Shown(Struct, frozen=True):
    """What a tool with a display gives: `output` to the model, and to the item of the call the
    `fields` that it has at its end, beside or in place of those it began with. What is `kept` is
    for the tool itself: it is in the record of the call, in later answers of the conversation."""

    output: Output
    fields: dict[str, JSON] = {}
    failed: bool = False
    kept: JSON = None


class Tool(Protocol):
    """A name, a schema and an asynchronous call. What a tool does not say is as it is here.

    - `spec` is what the model is shown.
    - `after` says who speaks after its result: the model, or the user.
    - With `auto_retry` the model may try again after an error.
    - `auto_truncate` is the number of characters a result is cut down to.
    - A tool that is not `enabled` is hidden from the model; a call of it is run all the same.
    - `seconds` is how long a call may take.
    - One that is `repeatable` may be run again when it is unknown whether it was run.
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
        """Run it on the arguments, or the free text, that the model wrote. Raises what it likes."""
        ...


class Session(Protocol):
    """What a hosted tool has for one answer.

    - `tools` are functions for the model, in a `namespace` of theirs or in none; `description` says
      what that is for.
    - `items` are shown before the model is asked: a list of tools, say.
    - `cited` knows the marks of this tool's citations, where the model is shown any.
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
    """A tool that a server has, and a request turns on by naming one of its `kinds`, which are
    types of tools in the Responses protocol."""

    kinds: frozenset[str]

    async def open(
        self, asked: Mapping[str, JSON], items: Sequence[Unknown], caller: Caller
    ) -> Session:
        """What it has for an answer. `asked` is the tool as the request has it, and `items` are
        those of hosted tools in the conversation before, each with the call and what the model was
        given (see `recorded`). Raises FaultError for what cannot be done."""
        ...

    async def close(self) -> None:
        """The server ends."""
        ...


_HOSTED: Extra = {RECORD: {}}
"""What tells a format that the server runs a tool: models may have been trained with that."""


class Recorded(Struct, frozen=True, omit_defaults=True):
    """The call behind an item of a hosted tool: as the model wrote it, what it was given, and what
    the tool has `kept`. Calls of one answer of the model have the same `round`."""

    call_id: str
    name: str
    arguments: str
    output: Output | None = None
    namespace: str | None = None
    round: str = ""
    kept: JSON = None


def recorded(item: Unknown) -> Recorded | None:
    """The call behind an item of a hosted tool, where it is known."""
    try:
        return msgspec.convert((item.extra or {}).get(RECORD), Recorded)
    except msgspec.ValidationError:
        return None


class Result(Struct, frozen=True):
    """What became of a call: the item for the model, whether that is an error or it was not `run`,
    what follows, and the fields of its display and its record."""

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
        """What the model is shown."""
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
        """The tool that a call is of, where that is run here."""
        return self.tools.get((call.namespace, call.name))

    async def needs_approval(self, call: Call) -> bool:
        """Whether a person must consent first. A rule that fails is a yes."""
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
        """Run one call. Raises nothing but CancelledError, when it is cancelled itself."""
        tool = self.find(call)
        if tool is None:
            enabled = [key for key, each in self.tools.items() if each.enabled]
            names = ", ".join(
                name if space is None else f"{space}.{name}" for space, name in enabled
            )
            names = names or "none"
            return failed(call, f"There is no tool {call.name!r}. The tools are: {names}.")
        seconds = self._seconds if tool.seconds is None else tool.seconds
        most = tool.auto_truncate or LONGEST
        # In a task of its own: one that cancels itself, or will not be cancelled, harms no other.
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
            words = truncated(_clean(_said(output)), most)
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


class _LateError(Exception):
    """A tool did not end in time."""


async def _call(tool: Tool, call: Call, context: Context) -> Output | Shown | BaseException:
    """What a tool gives, or raises: a SystemExit would end the event loop."""
    try:
        return await tool.call(call.text, context)
    except BaseException as error:
        if not isinstance(error, ToolError | asyncio.CancelledError):
            _log.warning("the tool %s failed", call.name, exc_info=error)
        return error


def failed(call: Call, problem: str, *, retry: bool = True) -> Result:
    """The result of a call that went wrong."""
    return Result(_item(call, problem), error=True, retry=retry)


def not_run(call: Call, why: str) -> Result:
    """The result of a call that was not made, which is no error of the model's."""
    return Result(_item(call, why), run=False)


def _item(call: Call, output: Output) -> CallOutput:
    if isinstance(call, CustomToolCall):
        return CustomToolCallOutput(call.call_id, output)
    return FunctionCallOutput(call.call_id, output)


def _said(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:
        words = ""
    if isinstance(error, ToolError | _LateError):
        return words or "It did not say why."
    return f"{type(error).__name__}: {words}" if words else f"{type(error).__name__}."


def _clean(text: str) -> str:
    """The text without half surrogates, which no protocol can carry."""
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
