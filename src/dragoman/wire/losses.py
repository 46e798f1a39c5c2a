"""Loss tables, and the judge that finds what a wire cannot say of a request or an answer.

Each wire declares its own table (`losses.py` in its folder): for every field of the core whether it
is carried, emulated, dropped or refused there. Losses name fields as the core does (`items[3].id`,
by the names of Open Responses where the core has shorter ones); the registry maps them to the
names of the client's wire.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Literal, cast

from msgspec import Struct
from msgspec.structs import fields as struct_fields

from dragoman.core import item as core_item
from dragoman.core import request as core_request
from dragoman.core import response as core_response
from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import JSON, Item, Message, UnknownPart
from dragoman.core.loss import Loss, LossList, path
from dragoman.core.request import (
    AllowedTools,
    Completion,
    NamedTool,
    Namespace,
    Request,
    Tool,
    UnknownTool,
)
from dragoman.core.response import CONSTRAINT_FIELDS, Response

Action = Literal["carried", "emulated", "dropped", "refused"]
Test = Callable[[Any, Any], object]


class Row(Struct, frozen=True):
    """What becomes of one field of the core on one wire.

    `field` is a type and its field (`Message.phase`), or a type alone, for the value as a whole.
    `when` narrows the row to some values: those for which `test` is true, given the value that has
    the field and the request (or response) it is part of; it is not asked where every field of the
    value is as it is by default. Without a test the row is for all values but empty ones. `name` is
    the field's name in reports, where the core's is another. A `silent` row stands in this table
    alone, and is not reported of every answer.
    """

    field: str
    action: Action
    why: str
    when: str = ""
    test: Test | None = None
    name: str | None = None
    silent: bool = False


def rows(action: Action, why: str, *fields: str) -> tuple[Row, ...]:
    """Rows with one reason: `rows("carried", "as it is", "Image.url detail")`."""
    found = []
    for entry in fields:
        kind, _, names = entry.partition(".")
        found += [Row(f"{kind}.{name}", action, why) for name in names.split()] or [
            Row(kind, action, why)
        ]
    return tuple(found)


def foreign(wire: str) -> Test:
    """The test for values of a kind that only another wire knows."""
    return lambda value, _: value.wire != wire


class _Kind:
    """What values of one type lose. Those for which `values` gives `unset` lose nothing: the fields
    that rows name, and `extra`, are as they are by default. A row of the whole type leaves no such
    value."""

    __slots__ = ("plain", "tested", "unset", "values")

    def __init__(self, kind: str, rows: list[Row]) -> None:
        named = [(row.field.partition(".")[2], _shown(row), row) for row in rows]
        self.plain = [(field, name, row) for field, name, row in named if field and not row.test]
        self.tested = [(name, row) for field, name, row in named if row.test or not field]
        known = struct_fields(_TYPES[kind]) if kind in _TYPES else ()
        wanted = {"extra", *(field for field, _, _ in named)}
        used = [each for each in known if each.name in wanted]
        self.values = attrgetter("__class__", "__class__", *(each.name for each in used))
        self.unset: tuple[Any, ...] = ()
        if "" not in wanted:
            self.unset = (_TYPES[kind], _TYPES[kind], *(each.default for each in used))


def _shown(row: Row) -> str:
    field = row.field.partition(".")[2]
    name = _NAMES.get(field, field) if row.name is None else row.name
    return name and f".{name}"


class Table:
    """The rows of a wire for requests, or for answers.

    `kinds` has what is lost of each type. `gone` are types that are dropped whole, with all that is
    in them; `apart` has the rows that are looked up by a value.
    """

    def __init__(self, *groups: Row | tuple[Row, ...]) -> None:
        self.rows: list[Row] = []
        for group in groups:
            self.rows += (group,) if isinstance(group, Row) else group
        found: dict[str, list[Row]] = {kind: [] for kind in _TYPES}
        for row in self.rows:
            if row.action != "carried" and not row.silent and row.field not in _APART:
                found.setdefault(row.field.partition(".")[0], []).append(row)
        self.kinds = {kind: _Kind(kind, rows) for kind, rows in found.items()}
        self.gone = {row.field for row in self.rows if row.action == "dropped" and not row.test}
        self.apart = {
            (row.field, row.when): row
            for row in self.rows
            if row.field in _APART and row.action != "carried"
        }

    def action(self, field: str) -> Action:
        """What becomes of a field; what has no row of its own goes with its type."""
        names = (field, field.partition(".")[0])
        return next((row.action for row in self.rows if row.field in names), "dropped")


class Losses(Struct, frozen=True):
    """What one wire cannot say of requests and of answers."""

    wire: str
    request: Table
    answer: Table


_NAMES = {"encrypted": "encrypted_content", "tokens": "logprobs"}
"""Fields that Open Responses calls otherwise than the core."""
_APART = ("Request.include", "Response.choices")
"""Rows that are looked up by a value."""
_TYPES: dict[str, type[Struct]] = {
    name: kind
    for module in (core_item, core_request, core_response)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Struct)
}
_UNSET: tuple[JSON, ...] = (None, ())

OTHER = Row("(any other field)", "dropped", "a field of one wire only, sent where it is spoken")
BOUND = Row("(guided_regex …)", "refused", "this wire has no such bound on an answer")
"""Fields that some servers enforce: an answer that ignores them is no answer."""
_QUIET = frozenset({"system_fingerprint", "timings"})
"""How a server worked: in every answer of some servers, where it would drown the rest."""
_NESTED = frozenset({"text", "response_format", "json_schema", "function", "custom"})
"""Objects of which a wire takes some members: what is left in them is reported by itself."""
_INTERNAL = frozenset(
    {"turn", "upstream", "models", "inline", "error", "legacy", "responses_vendor"}
)
"""Keys of an `extra` that are no wire's."""
_CONTENTS = {
    "Message": ("content",),
    "Reasoning": ("content", "summary"),
    "FunctionCallOutput": ("output",),
    "CustomToolCallOutput": ("output",),
}
"""Where items hold parts."""

_Place = tuple[int, ...]
_Found = list[tuple[_Place, Any]]


class Search(Struct):
    """The losses of one value on one wire, as they are found."""

    table: Table
    wire: str
    root: Request | Response
    found: LossList | None = None

    def note(self, row: Row, field: str, place: _Place = ()) -> None:
        """Enter a loss by this row at this place. Raises FaultError where the row refuses it."""
        if row.action == "refused":
            raise FaultError(unsupported(f"cannot be carried: {row.why}", path(field, place)))
        if self.found is None:
            self.found = LossList()
        self.found.note(field, cast(Literal["emulated", "dropped"], row.action), row.why, place)

    def look(self, kind: str, where: str, found: _Found) -> None:
        """Judge all values of one kind, which may lie in several places."""
        rows = self.table.kinds.get(kind)
        values = [value for _, value in found]
        if rows is None or list(map(rows.values, values)).count(rows.unset) == len(values):
            return
        for field, name, row in rows.plain:
            lost = [at for at, value in found if getattr(value, field) not in _UNSET]
            for place in lost[:2]:  # two are as many as all: both are named as "somewhere"
                self.note(row, (where + name).lstrip("."), place)
        for name, row in rows.tested:
            test = row.test
            lost = [at for at, value in found if test is None or test(value, self.root)]
            for place in lost[:2]:  # two are as many as all: both are named as "somewhere"
                self.note(row, (where + name).lstrip("."), place)
        for place, value in found:
            if extra := getattr(value, "extra", None):
                for wire, fields in extra.items():  # fields that only another wire has
                    if wire != self.wire and wire not in _INTERNAL:
                        self._unknown(fields, where, place)

    def one(self, value: Any, where: str = "", place: _Place = ()) -> None:
        """Judge one value."""
        self.look(type(value).__name__, where, [(place, value)])

    def _unknown(self, fields: dict[str, JSON], where: str, place: _Place) -> None:
        for name, value in fields.items():
            field = f"{where}.{name}" if where else name
            if value is None or (not where and name in _QUIET):
                continue
            if name in _NESTED and isinstance(value, dict):
                self._unknown(value, field, place)
            elif field in CONSTRAINT_FIELDS or field == "response_format.type":
                self.note(BOUND, field, place)
            else:
                self.note(OTHER, field, place)

    def items(self, items: Iterable[tuple[int, Item]], where: str) -> None:
        """Judge items, kind by kind, and the parts in them."""
        kinds: dict[str, _Found] = {}
        for index, item in items:
            kinds.setdefault(type(item).__name__, []).append(((index,), item))
        for kind, found in kinds.items():
            self.look(kind, where, found)
            if kind not in self.table.gone:
                for field in _CONTENTS.get(kind, ()):
                    parts = [(at, getattr(item, field)) for at, item in found]
                    if parts := [(at, some) for at, some in parts if not isinstance(some, str)]:
                        self._parts(kind, field, where, parts)

    def _parts(self, kind: str, field: str, where: str, found: _Found) -> None:
        kinds: dict[str, _Found] = {}
        for place, parts in found:
            for number, part in enumerate(parts):
                kinds.setdefault(type(part).__name__, []).append(((*place, number), part))
        where = f"{where}.{field}[*]"
        for part_kind, parts in kinds.items():
            if kind == "Reasoning" and part_kind == "UnknownPart":
                self._drop_foreign(parts, where)
                continue
            self.look(part_kind, where, parts)
            if field == "output" and f"{part_kind} in an output" in self.table.kinds:
                self.look(f"{part_kind} in an output", where, parts)

    def _drop_foreign(self, parts: Iterable[tuple[_Place, UnknownPart]], where: str) -> None:
        """Pieces of reasoning are left out where those of a message would be refused."""
        for place, part in parts:
            if part.wire != self.wire:
                self.note(OTHER, where, place)

    def tools(
        self, tools: Iterable[Tool | NamedTool], where: str = "tools[*]", place: _Place = ()
    ) -> None:
        """Judge tools, those in namespaces too."""
        kinds: dict[str, _Found] = {}
        for number, tool in enumerate(tools):
            kinds.setdefault(type(tool).__name__, []).append(((*place, number), tool))
            if isinstance(tool, Namespace):
                self.tools(tool.tools, f"{where}.tools[*]", (*place, number))
        for kind, found in kinds.items():
            self.look(kind, where, found)

    def tool_choice(self, choice: Any) -> None:
        """A tool of another wire cannot be forced; as one of several it can be left out."""
        if isinstance(choice, AllowedTools):
            self.one(choice, "tool_choice")
            strange = [isinstance(t, UnknownTool) and t.wire != self.wire for t in choice.tools]
            if strange and all(strange):
                choice = choice.tools[0]
            else:
                self.tools(choice.tools, "tool_choice.tools[*]")
                return
        if isinstance(choice, UnknownTool):
            self.look("UnknownTool as a choice", "tool_choice", [((), choice)])
        elif not isinstance(choice, str):
            self.one(choice, "tool_choice")


def judge(request: Request, losses: Losses) -> tuple[Loss, ...]:
    """What the request loses on the wire that has this table; on its own wire that is nothing.

    Raises FaultError (`unsupported`, with the field) where a loss would change what the caller
    gets.
    """
    search = Search(losses.request, losses.wire, request)
    root, sampling = losses.request.kinds["Request"], losses.request.kinds["Sampling"]
    if root.values(request) != root.unset:
        search.look("Request", "", [((), request)])
    if isinstance(request, Completion):
        search.one(request)
    if sampling.values(request.sampling) != sampling.unset:
        search.one(request.sampling)
    for name in ("reasoning", "audio", "stream_options", "format"):
        if (value := getattr(request, name)) is not None:
            search.one(value, name)
    if request.include:
        rows = losses.request.apart
        for value in request.include:
            row = rows.get(("Request.include", value)) or rows.get(("Request.include", ""))
            if row is not None:
                search.note(row, f"include[{value}]")
    if request.tools:
        search.tools(request.tools)
    if request.tool_choice is not None:
        search.tool_choice(request.tool_choice)
    if isinstance(request.instructions, tuple):
        search.items(enumerate(request.instructions), "instructions[*]")
    search.items(enumerate(request.items), "items[*]")
    return search.found.losses() if search.found else ()


def judge_answer(response: Response, losses: Losses) -> tuple[Loss, ...]:
    """What the answer loses on the wire that has this table. Never refuses."""
    table = losses.answer
    search = Search(table, losses.wire, response)
    search.look("Response", "", [((), response)])
    counts = table.kinds["Usage"]
    if response.usage is not None and counts.values(response.usage) != counts.unset:
        search.one(response.usage, "usage")
    items: Iterable[tuple[int, Item]] = enumerate(response.output)
    one = table.apart.get(("Response.choices", ""))
    if one is not None and any(response.choices):
        for choice in sorted({*response.choices} - {0}):
            search.note(one, "choices[*]", (choice,))
        items = [each for each in items if not response.choices[each[0]]]
    search.items(items, "output[*]")
    return search.found.losses() if search.found else ()


def several_messages(response: Any, _: Any) -> bool:
    """Whether one choice has more than one message."""
    choices = response.choices or (0,) * len(response.output)
    seen = set()
    for item, choice in zip(response.output, choices, strict=True):
        if isinstance(item, Message):
            if choice in seen:
                return True
            seen.add(choice)
    return False


# ---- reports ---------------------------------------------------------------------------------

_HEADER_LENGTH = 1_000
_FIELD_LENGTH = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]*:()/@$-]")


def header(losses: Iterable[Loss]) -> str:
    """One line of plain ASCII for an HTTP header: `dropped: seed, store; emulated: logprobs`.

    It is at most about a thousand characters long; what did not fit is counted. Empty when
    nothing was lost.

    >>> header([Loss("seed", "dropped", ""), Loss("logprobs", "emulated", "")])
    'dropped: seed; emulated: logprobs'
    """
    groups: dict[str, dict[str, None]] = {"dropped": {}, "emulated": {}}
    for loss in losses:
        groups[loss.action][_UNSAFE.sub("?", loss.field[:_FIELD_LENGTH])] = None
    line, left = "", sum(map(len, groups.values()))
    for action, fields in groups.items():
        opening = f"; {action}: " if line else f"{action}: "
        for field in fields:
            if len(line) + len(opening) + len(field) > _HEADER_LENGTH:
                return f"{line}; and {left} more"
            line += opening + field
            opening, left = ", ", left - 1
    return line
