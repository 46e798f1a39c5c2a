"""The tools of a request as harmony has them: TypeScript for the prompt, recipients to call.

A tool that takes free text is a function of one string. Tools that the model was trained with are
described as they were then, where the server runs them. Of schemas the shape is written
(references, unions, intersections, constants, additional keys); bounds and patterns are not,
because the syntax cannot express them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Literal

from msgspec import Struct

from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import JSON, RECORD
from dragoman.core.loss import LossList
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    Namespace,
    Request,
    UnknownTool,
)
from dragoman.core.tools import ToolFilter
from dragoman.formats.grammar.schema import find, objects

from .texts import BROWSER, PYTHON

FUNCTIONS = "functions"
"""The namespace of tools without one."""

TRAINED = {"browser": BROWSER, "python": PYTHON}
"""Tools that the model was trained with, and calls at times though the prompt has none: a namespace
and a function."""

NOT_TOOLS = ("", "assistant", "all", "user")
"""Recipients of text, not of a call."""


class CalledTool(Struct, frozen=True):
    """The tool that a message calls. Built-in tools are not offered, and not run."""

    kind: Literal["function", "custom", "built-in"]
    name: str
    namespace: str | None = None


class Toolkit:
    """The tools that may be called in an answer to a request."""

    def __init__(self, request: Request, losses: LossList) -> None:
        # By namespace: its description, and its tools with the fields of the request they are in.
        self.sections: dict[
            str, tuple[str | None, list[tuple[FunctionTool | CustomTool, str]]]
        ] = {}
        self.trained: list[str] = []  # those that a server runs
        self._custom: dict[tuple[str | None, str], bool] = {}
        offered = list(enumerate(request.tools)) if request.tool_choice != "none" else []
        if isinstance(request.tool_choice, AllowedTools):
            offered = ToolFilter(request.tool_choice, request.tools).tools
        why = "the model has no such tool"
        for number, tool in offered:
            match tool:
                case FunctionTool(name=name) | Namespace(name=name) if (
                    name in TRAINED and RECORD in (tool.extra or ())
                ):
                    self.trained.append(name)
                    for each in tool.tools if isinstance(tool, Namespace) else (tool,):
                        space = name if isinstance(tool, Namespace) else None
                        self._custom[space, getattr(each, "name", "")] = False
                case FunctionTool() | CustomTool():
                    self._offer(tool, FUNCTIONS, f"tools[{number}]")
                case Namespace():
                    self.sections.setdefault(tool.name, (tool.description, []))
                    for place, member in enumerate(tool.tools):
                        if isinstance(member, UnknownTool):
                            losses.note("tools[*].tools[*]", "dropped", why, (number, place))
                        else:
                            self._offer(member, tool.name, f"tools[{number}].tools[{place}]")
                case _:
                    losses.note("tools[*]", "dropped", why, (number,))

    def _offer(self, tool: FunctionTool | CustomTool, group: str, field: str) -> None:
        self.sections.setdefault(group, (None, []))[1].append((tool, field))
        space = None if group == FUNCTIONS else group
        self._custom[space, tool.name] = isinstance(tool, CustomTool)

    def developer_section(self) -> str:
        """The request's own tools, for the developer message, by namespace; empty without any."""
        blocks = ["# Tools"] if self.sections else []
        for name, (description, tools) in sorted(self.sections.items()):
            blocks.append(f"## {name}")
            if tools:
                blocks.append("\n".join([*comment(description), f"namespace {name} {{"]))
            elif description:
                blocks.append(description)
            for tool, field in tools:
                about = tool.description
                if isinstance(tool, FunctionTool):
                    blocks.append(
                        function(tool.name, about, tool.parameters, f"{field}.parameters")
                    )
                    continue
                if tool.grammar is not None:
                    rule = f"The input must match this {tool.syntax} grammar:\n{tool.grammar}"
                    about = f"{about}\n\n{rule}" if about else rule
                blocks.append(free(tool.name, about))
            if tools:
                blocks.append(f"}} // namespace {name}")
        return "\n\n".join(blocks)

    def called_tool(self, recipient: str) -> CalledTool | None:
        """The tool a recipient names; None where none is called.

        Names are taken with and without `functions.`. An unknown name is a function, as long as
        there is any tool: a client can report that to the model, where text would only confuse.
        """
        if recipient in NOT_TOOLS:
            return None
        bare = recipient.removeprefix(f"{FUNCTIONS}.") or recipient
        space, _, name = bare.partition(".")
        for key in ((None, bare), (space, name)):
            if (custom := self._custom.get(key)) is not None:
                return CalledTool("custom" if custom else "function", key[1], key[0])
        if space in TRAINED and not (space in self.sections or space in self.trained):
            return CalledTool("built-in", space)
        if bare != recipient or self._custom:
            return CalledTool("function", bare)
        return None


# ---- TypeScript ----------------------------------------------------------------------------

_STEP = "    "
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")
_DEFINITION = re.compile(r"#/(?:\$defs|definitions)/[^/]+")
_MAX_DEPTH = 64
_MAX_TYPES = 20_000
"""Types of one function, with the lines of their comments, each of which may be indented far."""


def function(name: str, description: str | None, parameters: JSON, param: str = "tools") -> str:
    """A function of one object. `param` is named in the FaultError for too large a schema.

    >>> print(function("roll", "Rolls dice.", {"properties": {"sides": {"type": "integer"}}}))
    // Rolls dice.
    type roll = (_: {
    sides?: number,
    }) => any;
    """
    lines = comment(description)
    if not parameters:  # Responses has an empty schema where Chat leaves the field out
        return "\n".join([*lines, f"type {name} = () => any;"])
    writer = _Writer(name, parameters, param)
    shape = writer.type(parameters, "")
    about = parameters.get("description") if isinstance(parameters, dict) else None
    if about != description:
        lines += comment(about)
    lines.append(f"type {name} = (_: {shape}) => any;")
    return "\n\n".join([*writer.aliases(), "\n".join(lines)])


def free(name: str, description: str | None) -> str:
    """A function of one text."""
    return "\n".join([*comment(description), f"type {name} = (_: string) => any;"])


def comment(text: JSON, indent: str = "") -> list[str]:
    """A comment of as many lines; none for what is no text or empty.

    >>> comment("one\\ntwo")
    ['// one\\n// two']
    """
    start = f"{indent}// "
    return [start + text.replace("\n", f"\n{start}")] if isinstance(text, str) and text else []


class _Writer:
    """Writes the types of one function.

    A definition that is referenced once is written inline. One that is referenced more often, or by
    itself, gets a type of its own, so that no schema grows beyond its size.
    """

    def __init__(self, function: str, root: JSON, param: str) -> None:
        self._function = function
        self._root = root
        self._param = param
        pointers = (each.get("$ref") for each in objects(root))
        self._uses = Counter(each for each in pointers if isinstance(each, str))
        self._names: dict[str, str] = {}  # of types of their own, by pointer
        self._named: list[str] = []
        self._taken = {function}
        self._numbers = count(2)  # for names that are taken; no number is tried twice
        self._depth = 0
        self._written = 0

    def type(self, schema: JSON, indent: str) -> str:
        """The type of one value; the inside of an object is indented by `indent`."""
        return " | ".join(self._members(schema, indent))

    def aliases(self) -> list[str]:
        """The types that were given a name while others were written."""
        blocks: list[str] = []
        for pointer in self._named:  # grows during the loop
            target = find(self._root, pointer)
            line = f"type {self._names[pointer]} = {self.type(target, '')};"
            blocks.append("\n".join([*self._comments(target, ""), line]))
        return blocks

    def _count(self, number: int) -> None:
        self._written += number
        if self._written > _MAX_TYPES:
            raise FaultError(unsupported("is too large to be shown to the model", self._param))

    # ---- types -----------------------------------------------------------------------------

    def _members(self, schema: JSON, indent: str) -> list[str]:
        """The types of which a value may have one."""
        if not isinstance(schema, dict):
            return ["never"] if schema is False else ["any"]
        self._count(1)
        if self._depth >= _MAX_DEPTH:
            return ["any"]
        self._depth += 1
        parts = [part for part in self._parts(schema, indent) if part != ["any"]]
        self._depth -= 1
        if len(parts) > 1:
            members = ["(" + " & ".join(_atom(part) for part in parts) + ")"]
        else:
            members = parts[0] if parts else ["any"]
        if schema.get("nullable") is True and members != ["any"] and "null" not in members:
            members = [*members, "null"]
        return members

    def _parts(self, schema: dict[str, JSON], indent: str) -> list[list[str]]:
        """The types of which a value must have all."""
        if "const" in schema:
            return [[_json(schema["const"])]]
        if values := _list(schema, "enum"):
            return [_distinct(map(_json, values))]
        parts: list[list[str]] = []
        if isinstance(pointer := schema.get("$ref"), str):
            parts.append(self._reference(pointer, indent))
        for key in ("oneOf", "anyOf"):
            if variants := _list(schema, key):
                each = (self._members(variant, indent) for variant in variants)
                parts.append(_distinct(member for members in each for member in members))
        parts += [self._members(part, indent) for part in _list(schema, "allOf")]
        if not parts or "properties" in schema:
            parts.insert(0, self._plain(schema, indent))
        return parts

    def _plain(self, schema: dict[str, JSON], indent: str) -> list[str]:
        kinds = schema.get("type")
        if kinds is None and "properties" in schema:
            kinds = "object"
        written: list[str] = []
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            match kind:
                case "array":
                    items, rest = schema.get("items"), "Array<any>"
                    if items is not None and items is not True:
                        rest = _atom(self._members(items, indent)) + "[]"
                    if first := _list(schema, "prefixItems"):
                        each = [self.type(item, indent) for item in first]
                        each += [] if items is False else [f"...{rest}"]
                        rest = f"[{', '.join(each)}]"
                    written.append(rest)
                case "object":
                    lines = ["{"]
                    required = {n for n in _list(schema, "required") if isinstance(n, str)}
                    properties = schema.get("properties")
                    for key, value in properties.items() if isinstance(properties, dict) else ():
                        name = key if _IDENTIFIER.fullmatch(key) else _json(key)
                        name += "" if key in required else "?"
                        lines += self._property(name, value, indent)
                    others = schema.get("additionalProperties")
                    if isinstance(others, dict) and others:
                        lines += self._property("[key: string]", others, indent)
                    written.append("\n".join([*lines, indent + "}"]))
                case _:
                    written.append(_PLAIN.get(str(kind), "any"))
        return _distinct(written)

    def _property(self, name: str, schema: JSON, indent: str) -> list[str]:
        lines = self._comments(schema, indent)
        default = _default(schema)
        variants = self._variants(schema)
        if not variants:
            shape = self.type(schema, indent + _STEP)
            return [*lines, f"{indent}{name}: {shape},{default and f' // {default}'}"]
        lines += comment(default, indent)
        lines.append(f"{indent}{name}:")
        for variant in variants:
            remark = self._remark(variant)
            lines.append(f"{indent} | {self.type(variant, indent + '   ')}{remark}")
        return [*lines, f"{indent},"]

    def _variants(self, schema: JSON) -> list[JSON]:
        """The variants to be written one per line: those of oneOf, and any with a remark."""
        if not isinstance(schema, dict) or schema.keys() & _NOT_VARIANTS:
            return []
        variants = _list(schema, "oneOf") or _list(schema, "anyOf")
        if not ("oneOf" in schema or any(map(self._remark, variants))):
            return []
        nothing = {"type": "null"}
        nullable = schema.get("nullable") is True and nothing not in variants
        return [*variants, nothing] if variants and nullable else variants

    # ---- references ------------------------------------------------------------------------

    def _reference(self, pointer: str, indent: str) -> list[str]:
        target = find(self._root, pointer)
        if target is None:
            return ["any"]
        if self._is_inline(pointer):
            return self._members(target, indent)
        name = self._names.get(pointer)
        if name is None:
            last = re.sub(r"\W", "_", pointer.rpartition("/")[2].strip("#")) or "self"
            name = stem = f"{self._function}_{last}"
            while name in self._taken:
                name = f"{stem}_{next(self._numbers)}"
            self._taken.add(name)
            self._names[pointer] = name
            self._named.append(pointer)
        return [name]

    def _is_inline(self, pointer: str) -> bool:
        return self._uses[pointer] == 1 and _DEFINITION.fullmatch(pointer) is not None

    # ---- comments --------------------------------------------------------------------------

    def _comments(self, schema: JSON, indent: str, depth: int = 0) -> list[str]:
        """A schema's descriptions, and those of its items and parts."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return []
        schema = self._described(schema)
        title, about = schema.get("title"), schema.get("description")
        examples = _list(schema, "examples")
        lengths = (each.count("\n") for each in (title, about) if isinstance(each, str))
        self._count(sum(lengths) + len(examples))
        lines = comment(title, indent)
        if lines:
            lines.append(f"{indent}//")
        lines += comment(about, indent)
        if examples:
            lines.append(f"{indent}// Examples:")
            lines += [f"{indent}// - {_json(example)}" for example in examples]
        for part in (schema.get("items"), *_list(schema, "allOf")):
            lines += self._comments(part, indent, depth + 1)
        return lines

    def _remark(self, schema: JSON) -> str:
        """The description on one line, after the type it is about."""
        if not isinstance(schema, dict):
            return ""
        about = self._described(schema).get("description")
        words = [" ".join(about.split())] if isinstance(about, str) else []
        text = " ".join(word for word in (*words, _default(schema)) if word)
        return text and f" // {text}"

    def _described(self, schema: dict[str, JSON]) -> dict[str, JSON]:
        """A reference that is written inline, with the texts of its target where it has none."""
        pointer = schema.get("$ref")
        if not isinstance(pointer, str) or not self._is_inline(pointer):
            return schema
        target = find(self._root, pointer)
        words = target if isinstance(target, dict) else {}
        return {**{key: words[key] for key in _WORDS if key in words}, **schema}


_PLAIN = {"string": "string", "boolean": "boolean", "null": "null", "number": "number"}
_PLAIN |= {"integer": "number"}
_WORDS = ("title", "description", "examples")
_NOT_VARIANTS = {"const", "enum", "$ref", "allOf", "properties"}


def _default(schema: JSON) -> str:
    if not isinstance(schema, dict) or "default" not in schema:
        return ""
    value = schema["default"]
    bare = isinstance(value, str) and value.isprintable() and "enum" in schema
    return f"default: {value if bare else _json(value)}"


def _atom(members: Sequence[str]) -> str:
    return members[0] if len(members) == 1 else "(" + " | ".join(members) + ")"


def _distinct(members: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(members))


def _list(schema: dict[str, JSON], key: str) -> list[JSON]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _json(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
