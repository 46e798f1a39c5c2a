"""Loss tables, and `judge`, which finds the losses of a request or an answer on a wire.

Each wire declares its own table (`losses.py` in its folder): for every field of the core whether it
is carried, emulated, dropped or refused there. Losses name fields as the core does (`items[3].id`,
by the names of Open Responses where the core has shorter ones); the registry maps them to the
names of the client's wire.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, compress, islice, repeat
from operator import attrgetter, call, ne
from typing import Any, Literal, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import fields as struct_fields
from msgspec.structs import replace

from dragoman.core import item as core_item
from dragoman.core import request as core_request
from dragoman.core import response as core_response
from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import INTERNAL, JSON, Message, UnknownPart
from dragoman.core.loss import Loss, LossList, path
from dragoman.core.request import AllowedTools, Request, Sampling, UnknownTool
from dragoman.core.response import CONSTRAINT_FIELDS, Response

Action = Literal["carried", "emulated", "dropped", "refused"]
Test = Callable[[Any, Any], object]


class Row(Struct, frozen=True):
    """The loss action of one field of the core on one wire.

    `field` is a type and its field (`Message.phase`), or a type alone, for the value as a whole,
    perhaps in one place only (`Image in an output`). `when` describes the values of the row: those
    for which `test` is true, given the value that has the field and the request (or response) it is
    part of; it is not called for a field with its usual value. Without a test the
    row is for all values but empty ones. `name` is the field's name in reports, where it
    differs from the core's. A `silent` row is only in this table, and is not reported.
    """

    field: str
    action: Action
    why: str
    when: str = ""
    test: Test | None = None
    name: str | None = None
    silent: bool = False


class Case(NamedTuple):
    """The values of a row, as a text and as a test: `when` and `test` of a `Row`."""

    when: str
    test: Test | None = None


ALWAYS = Case("")


def rows(
    action: Action,
    why: str,
    *fields: str,
    case: Case = ALWAYS,
    name: str | None = None,
    silent: bool = False,
) -> tuple[Row, ...]:
    """Rows with one reason: `rows("carried", "as it is", "Image.url detail")`."""
    found: list[str] = []
    for entry in fields:
        kind, _, names = entry.partition(".")
        found += [f"{kind}.{each}" for each in names.split()] or [kind]
    return tuple([Row(field, action, why, *case, name, silent) for field in found])


# ---- cases and rows that wires share -----------------------------------------------------


def foreign(wire: str) -> Case:
    """Values of a kind of another wire."""
    return Case("of another wire", lambda value, _: value.wire != wire)


def is_true(field: str, when: str = "true") -> Case:
    """Values with a field that is set and not false."""
    return Case(when, lambda value, _: getattr(value, field))


NOT_TEXT = Case(
    "not text", lambda request, _: any(each != "text" for each in request.modalities or ())
)
"""Requests for an answer that is not only text."""
SAME = "the same field"
SEVERAL = "several messages"
"""The text of the case of a choice with more than one message."""
SAMPLED = rows(
    "carried",
    SAME,
    "Request.sampling stream stream_options model user",
    "Sampling.temperature top_p frequency_penalty presence_penalty",
)
LABELLED = rows(
    "carried",
    SAME,
    "Request.parallel_tool_calls tools store metadata moderation service_tier safety_identifier",
    "Request.prompt_cache_key prompt_cache_options prompt_cache_retention",
)
PARTIAL = ("in_progress", "incomplete")
"""The status of an incomplete item."""
UNFINISHED = Case(
    "of a last message that is to be continued",
    lambda item, request: item.status in PARTIAL and item is request.items[-1],
)
"""The status of a message that the answer continues (a *prefill*)."""
OTHER_STATUS = Case(
    "other", lambda item, request: item.status not in PARTIAL or item is not request.items[-1]
)
ANSWERED = (
    *rows("carried", SAME, "Response.model usage"),
    *rows("carried", "in a header", "Response.losses guarantee"),
    *rows("carried", "the same id, with this wire's prefix", "Response.id"),
    *rows("carried", "as the parts it is made of", "Message.content"),
)


def stateless(name: str, wire: str) -> tuple[Row, ...]:
    """The losses of requests on a wire without stored responses and background runs; `name`
    is the wire's display name."""
    trigger = Case(
        "`compaction_trigger`",
        lambda item, _: item.kind == "compaction_trigger" and item.wire != wire,
    )
    other = Case(
        "of another wire", lambda item, _: item.kind != "compaction_trigger" and item.wire != wire
    )
    at_once, cut = f"{name} answers at once or not at all", f"{name} never cuts a conversation"
    some = Case("not `disabled`", lambda request, _: request.truncation not in (None, "disabled"))
    summary = "the reasoning itself is given as its summary too"
    return (
        *rows("emulated", summary, "ReasoningOptions.summary"),
        *rows("refused", f"{name} stores no conversations", "Request.conversation"),
        *rows("refused", f"{name} stores no prompts", "Request.prompt"),
        *rows("refused", at_once, "Request.background", case=is_true("background")),
        *rows("dropped", cut, "Request.truncation", case=some),
        *rows("dropped", f"{name} cannot add this to an answer", "Request.include"),
        *rows("refused", "only the server that made a compaction can read it", "Compaction"),
        *rows("refused", f"{name} stores no items to refer to", "ItemReference"),
        *rows("dropped", "only the last item can ask for a summary", "Unknown", case=trigger),
        *rows("emulated", "the model reads it as text", "Unknown", case=other),
    )


def one_text(name: str, wire: str) -> tuple[Row, ...]:
    """The losses of requests on a wire with one choice of text."""
    several = Case("more than 1", lambda sampling, _: (sampling.n or 1) > 1)
    bias = is_true("logit_bias", "not empty")
    values = "Sampling.min_p repetition_penalty seed"
    return (
        *rows("refused", f"{name} answers in text only", "Request.modalities", case=NOT_TEXT),
        *rows("dropped", "no spoken answer was asked for", "Request.audio", "AudioOutput"),
        *rows("dropped", f"{name} searches by a tool of its own", "Request.web_search"),
        *rows("refused", f"{name} cannot bias tokens", "Sampling.logit_bias", case=bias),
        *rows("refused", f"{name} gives one answer", "Sampling.n", case=several),
        *rows("dropped", f"{name} has no such sampling value", values),
        *rows("carried", "usage is part of every answer", "StreamOptions.include_usage"),
        *no_bare_prompts(name),
        *rows("dropped", f"{name} has no such tool", "UnknownTool", case=foreign(wire)),
        *rows("refused", f"{name} has no such tool", "UnknownTool as a choice", case=foreign(wire)),
    )


def one_text_answered(name: str) -> tuple[Row, ...]:
    """The losses of answers on a wire with one choice of text."""
    silent = Case("without a transcript", lambda part, _: part.transcript is None)
    return (
        *rows("dropped", f"{name} gives one answer, the first", "Response.choices"),
        *rows(
            "dropped",
            f"{name} does not split usage so",
            "Usage.input_audio_tokens input_text_tokens input_image_tokens",
            "Usage.output_audio_tokens output_text_tokens",
        ),
        *rows("dropped", f"{name} has no sound", "Audio", case=silent, name="audio"),
        *rows("dropped", f"{name} answers with text", "Image", "File"),
    )


def no_bare_prompts(name: str) -> tuple[Row, ...]:
    """The losses of bare prompts on a wire of conversations."""
    why = f"{name} takes conversations, no bare prompts"
    return rows("refused", why, "Completion", name="prompts")


UNNAMED_STOP = rows("dropped", "reported as `stop`", "Response.stop_sequence", silent=True)
NO_PART_OF_AN_ANSWER = (
    *rows("dropped", "an answer has no name", "Message.name", silent=True),
    *rows("dropped", "no part of an answer", "FunctionCallOutput", "CustomToolCallOutput"),
    *rows("dropped", "no part of an answer", "ItemReference"),
)


# ---- tables ------------------------------------------------------------------------------

_NAMES = {"encrypted": "encrypted_content", "tokens": "logprobs"}
"""Fields that have another name in Open Responses than in the core."""
_USUAL: dict[str, Any] = {
    "Request.sampling": Sampling(),
    "Response.reasons": ("stop",),
    **dict.fromkeys(
        ("Message.content", "FunctionCallOutput.output", "CustomToolCallOutput.output"), str
    ),
}
"""The usual value of a field, where that is not its default."""
_APART = ("Request.include", "Response.choices", "Response.output")
"""Rows that are looked up by a value."""
_UNSET: tuple[JSON, ...] = (None, ())

_values, _usual = attrgetter("values"), attrgetter("usual")
_OUTPUT, _CHOICE, _THOUGHT = "in an output", "as a choice", "in reasoning"

_DEFAULTS: dict[type[Struct], dict[str, Any]] = {
    kind: {
        field.name: _USUAL.get(f"{kind.__name__}.{field.name}", field.default)
        for field in struct_fields(kind)
    }
    for module in (core_item, core_request, core_response)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Struct) and kind is not Struct
}
_INSIDE: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Request": (
        ("sampling", "", ""),
        ("reasoning", "reasoning", ""),
        ("audio", "audio", ""),
        ("stream_options", "stream_options", ""),
        ("format", "format", ""),
        ("tools", "tools[*]", ""),
        ("tool_choice", "tool_choice", _CHOICE),
        ("instructions", "instructions[*]", ""),
    ),
    "Message": (("content", ".content[*]", ""),),
    "Reasoning": (("content", ".content[*]", _THOUGHT), ("summary", ".summary[*]", _THOUGHT)),
    "FunctionCallOutput": (("output", ".output[*]", _OUTPUT),),
    "CustomToolCallOutput": (("output", ".output[*]", _OUTPUT),),
    "Namespace": (("tools", ".tools[*]", ""),),
    "AllowedTools": (("tools", ".tools[*]", ""),),
}
"""Fields that may hold values with rows, beside the items of a request or an answer and
its usage; with their place in reports, and their type."""


class _Kind:
    """The losses of values of one type. Those for which `values` returns `usual` have none (fast
    path): the fields with rows (`own`) and `extra`, the last, have their usual values, and those
    with inner values are empty, or text. With a row of the whole type there is no such value.
    `inside` are the fields with values to judge; none where the type is dropped."""

    __slots__ = ("inside", "own", "rows", "usual", "values")

    def __init__(self, kind: type[Struct], rows: list[Row], kinds: _Kinds, idle: str) -> None:
        self.rows: list[tuple[str, str, Row, Any]] = []  # field, its name in reports, row, usual
        for row in rows:
            field = row.field.partition(".")[2]
            name = _NAMES.get(field, field) if row.name is None else row.name
            self.rows.append((field, name and f".{name}", row, _DEFAULTS[kind].get(field)))
        whole = [row for field, _, row, _ in self.rows if not field]
        gone = any(row.action == "dropped" and not row.test for row in whole)
        bases = [base.__name__ for base in kind.__mro__ if not gone]
        inside = [each for base in bases for each in _INSIDE.get(base, ()) if each[0] != idle]
        self.inside = [(name, where, kinds[as_what]) for name, where, as_what in inside]
        usual = _DEFAULTS[kind]
        pairs = [(f"{n}.__class__" if usual[n] is str else n, usual[n]) for n, *_ in inside]
        named = [("__class__", kind), *((field, normal) for field, _, _, normal in self.rows)]
        self.own = slice(len(pairs), len(pairs) + len(named))
        pairs += [*named, ("extra", None) if "extra" in usual else ("__class__", kind)]
        self.values = attrgetter(*(name or "__class__" for name, _ in pairs))
        self.usual = () if whole else tuple([normal for _, normal in pairs])


_Kinds = dict[str, dict[type, _Kind]]


class Table:
    """The rows of a wire for requests, or for answers.

    `kinds` has the losses of each type, by the place of its values; `apart` has the rows that are
    looked up by a value.
    """

    def __init__(self, *groups: tuple[Row, ...]) -> None:
        self.rows = [row for group in groups for row in group]
        self.apart: dict[tuple[str, str], Row] = {}
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            if row.action == "carried" or row.silent:
                continue
            if row.field in _APART:
                self.apart[row.field, row.when] = row
            else:
                found.setdefault(row.field.partition(".")[0], []).append(row)

        def rows_of(kind: type, place: str) -> list[Row]:
            names = (each.__name__ for each in reversed(kind.__mro__))
            return [row for name in names for row in found.get(name + place, ())]

        # Every request has sampling, and most wires have all of its fields.
        idle = "" if "Sampling" in found else "sampling"
        self.kinds: _Kinds = {"": {}, _OUTPUT: {}, _CHOICE: {}, _THOUGHT: {}}
        for place, kinds in self.kinds.items():
            for kind in _DEFAULTS:
                here = rows_of(kind, "") + rows_of(kind, f" {place}")
                kinds[kind] = _Kind(kind, here, self.kinds, idle)

    def action(self, field: str) -> Action:
        """The loss action of a field; a field without a row has that of its type."""
        names = (field, field.partition(".")[0])
        return next((row.action for row in self.rows if row.field in names), "dropped")


class Losses(Struct, frozen=True):
    """The loss tables of one wire, for requests and answers."""

    wire: str
    request: Table
    answer: Table


# ---- judging -----------------------------------------------------------------------------

OTHER = Row("(any other field)", "dropped", "a field of one wire only, sent where it is spoken")
BOUND = Row("(guided_regex …)", "refused", "this wire has no such bound on an answer")
"""Fields that some servers enforce: an answer that ignores them would be wrong."""
_MOVED = "only Chat has it: it is `text.format` in Responses, `output_config.format` in Messages"
BUDGET = Row("ReasoningOptions.thinking", "emulated", "an effort stands for it")
"""The thinking budget of Messages, for which its decoder has found an effort."""
SERVERS = Row(
    "mcp_servers", "refused", "its tools would be missing; only a Messages server calls them"
)
"""The MCP servers of a Messages request: an answer without them would be wrong."""
_QUIET = frozenset({"system_fingerprint", "timings"})
"""Server statistics: in every answer of some servers, where they would hide other losses."""
_NESTED = frozenset({"text", "response_format", "json_schema", "function", "custom"})
"""Objects of which a wire decodes some members: the rest is reported separately."""

_Place = tuple[int, ...]
_Group = tuple[tuple[str, ...], dict[type, _Kind], _Place, tuple[Any, ...]]
"""Values, and their places: the last place is that of all the rest."""
Note = tuple[str, Action, str, _Place]
"""A loss with its row: the field, the action, the reason, and the numbers of its `[*]`."""


def judge(root: Request | Response, losses: Losses) -> tuple[Loss, ...]:
    """The losses of a request or an answer on the wire of these tables; none on its own
    wire.

    Raises FaultError (`unsupported`, with the field) where a loss would change what the caller of a
    request gets. An answer is never refused.
    """
    notes: list[Note] = []
    own = INTERNAL | {losses.wire}
    if isinstance(root, Request):
        table, choice = losses.request, root.tool_choice
        kinds = table.kinds[""]
        todo: list[_Group] = [(("", "items[*]"), kinds, (), (root, *root.items))]
        for value in root.include:
            row = table.apart.get(("Request.include", value))
            row = row or table.apart.get(("Request.include", ""))
            if row is not None:
                notes.append((f"include[{value}]", row.action, row.why, ()))
        # A tool of another wire cannot be forced; as one of several it can be dropped.
        if isinstance(choice, AllowedTools) and all(
            isinstance(tool, UnknownTool) and tool.wire != losses.wire for tool in choice.tools
        ):
            todo.append((("tool_choice",), table.kinds[_CHOICE], (), choice.tools[:1]))
    else:
        table = losses.answer
        if root.choices and (row := table.apart.get(("Response.choices", ""))) is not None:
            others = {*root.choices} - {0}
            notes += [("choices[*]", row.action, row.why, (number,)) for number in others]
            root = replace(root, output=root.choice(0), choices=())
        row = table.apart.get(("Response.output", SEVERAL)) if root.output[1:] else None
        if row is not None and _several_messages(root):
            notes.append(("output", row.action, row.why, ()))
        kinds = table.kinds[""]
        if root.usage is None:
            todo = [(("", "output[*]"), kinds, (), (root, *root.output))]
        else:
            places = ("", "usage", "output[*]")
            todo = [(places, kinds, (), (root, root.usage, *root.output))]
    # Usual values have no losses. The rest is judged by type first.
    unusual: dict[tuple[str, _Kind], list[tuple[_Place, Any]]] = {}
    for (*first, rest), kinds, place, values in todo:  # it grows in the loop
        each = [*map(kinds.__getitem__, map(type, values))]
        seen = [*map(call, map(_values, each), values)]
        usual = [*map(_usual, each)]
        if seen == usual:
            continue
        wheres = chain(first, repeat(rest))
        among = enumerate(zip(each, values, seen, wheres, strict=False), -len(first))
        for number, (kind, value, now, where) in compress(among, map(ne, seen, usual)):
            at = (*place, number) if where[-1:] == "]" else place
            if now[kind.own] != kind.usual[kind.own] or not own.issuperset(now[-1] or ()):
                unusual.setdefault((where, kind), []).append((at, value))
            for name, inside, inner_kinds in kind.inside:
                inner = getattr(value, name)
                if inner and inner.__class__ is not str:
                    inner = inner if inner.__class__ is tuple else (inner,)
                    todo.append(((where + inside,), inner_kinds, at, inner))
    for (where, kind), found in unusual.items():
        if kind is table.kinds[_THOUGHT][UnknownPart]:
            # Parts of reasoning are dropped where those of a message would be refused.
            strange = [at for at, value in found if value.wire != losses.wire]
            notes += [(where, OTHER.action, OTHER.why, at) for at in strange]
            continue
        for field, name, row, normal in kind.rows:
            test, unset = row.test, (normal,) if row.test else (normal, *_UNSET)
            lost = (
                at
                for at, value in found
                if not field or getattr(value, field) not in unset
                if test is None or test(value, root)
            )
            # From two places on, all are named as "somewhere".
            shown = (where + name).lstrip(".")
            notes += [(shown, row.action, row.why, at) for at in islice(lost, 2)]
        for at, value in found:
            for wire, fields in (getattr(value, "extra", None) or {}).items():
                if wire not in own:
                    notes += _unknown(fields, where, at)
    return listed(notes) if notes else ()


def listed(notes: Iterable[Note]) -> tuple[Loss, ...]:
    """The noted losses, each once. Raises FaultError for the first that is refused."""
    found = LossList()
    for field, action, why, place in notes:
        if action == "refused":
            raise FaultError(unsupported(f"cannot be carried: {why}", path(field, place)))
        found.note(field, cast(Any, action), why, place)
    return found.losses()


def _unknown(fields: dict[str, JSON], where: str, place: _Place) -> Iterator[Note]:
    """The losses of fields that only another wire has."""
    for name, value in fields.items():
        field = f"{where}.{name}" if where else name
        if value is None or (not where and name in _QUIET):
            continue
        if name in _NESTED and isinstance(value, dict):
            yield from _unknown(value, field, place)
        elif field in CONSTRAINT_FIELDS or field == "response_format.type":
            chats = field not in CONSTRAINT_FIELDS and value in ("json_object", "json_schema")
            yield field, BOUND.action, _MOVED if chats else BOUND.why, place
        elif field == SERVERS.field and value:
            yield field, SERVERS.action, SERVERS.why, place
        elif field == "reasoning.thinking" and value.get("type") in ("enabled", "disabled"):
            yield field, BUDGET.action, BUDGET.why, place
        else:
            yield field, OTHER.action, OTHER.why, place


def _several_messages(response: Response) -> bool:
    """Whether one choice has more than one message."""
    choices = response.choices or (0,) * len(response.output)
    pairs = zip(response.output, choices, strict=True)
    messages = [choice for item, choice in pairs if isinstance(item, Message)]
    return len(messages) > len({*messages})


# ---- names -------------------------------------------------------------------------------

TOOL = r"^(tools\[\d+\](?:\.tools\[\d+\])?)"
"""The pattern of a tool's path in the core."""


def renaming(*renamed: tuple[str, str]) -> Callable[[Request], Callable[[str], str]]:
    """The `spelling` of a wire on which a field has one name in all requests, from patterns of the
    core's names and their replacements.

    >>> renaming((r"^items\\b", "input"))(Request(model="m"))("items[2].role")
    'input[2].role'
    """
    patterns = [(re.compile(core), name) for core, name in renamed]

    def spell(path: str) -> str:
        for pattern, name in patterns:
            path = pattern.sub(name, path)
        return path

    return lambda request: spell


# ---- reports ---------------------------------------------------------------------------------

_HEADER_LENGTH = 1_000
_FIELD_LENGTH = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]*:()/@$-]")


def header(losses: Iterable[Loss]) -> str:
    """One line of plain ASCII for an HTTP header: `dropped: seed, store; emulated: logprobs`.

    It is at most about a thousand characters long; losses that do not fit are counted. Empty
    without losses.

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


def read_header(line: str) -> tuple[Loss, ...]:
    """Decode such a header of another server.

    >>> [loss.field for loss in read_header("dropped: seed, stop; emulated: n; and 3 more")]
    ['seed', 'stop', 'n']
    """
    groups = [group.partition(": ") for group in line[: 2 * _HEADER_LENGTH].split("; ")]
    return tuple(
        [
            Loss(field, cast(Any, action), "the model's server reports it")
            for action, _, fields in groups
            if action in ("dropped", "emulated")
            for field in fields.split(", ")
        ]
    )
