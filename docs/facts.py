"""What the code says of itself, as Markdown: its rooms, settings, commands, profiles and faults.

Each function asks the code for every fact and only lays it out; where it is put is not known here.
"""

import argparse
import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from dragoman.cli.main import parser
from dragoman.core.item import Message
from dragoman.core.request import Request, Sampling
from dragoman.engines.profiles import GENERIC, PROFILES, Profile
from dragoman.server.config import HostedTool, Upstream, Webhook
from dragoman.server.settings import Settings
from dragoman.wire.error import TABLE
from dragoman.wire.losses import Table
from dragoman.wire.registry import WIRES

__all__ = ["WIRES", "HostedTool", "Settings", "Upstream", "Webhook"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dragoman"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    cells = [list(head), *map(list, rows)]
    lines = [f"| {' | '.join(row)} |\n" for row in cells]
    return "".join([lines[0], "|---" * len(cells[0]), "|\n", *lines[1:]])


# ---- rooms -------------------------------------------------------------------------------


def layers() -> list[str]:
    """The rooms that are built, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (found,) = (c["layers"] for c in contracts["contracts"] if c["id"] == "layers")
    return re.findall(r"\w+", " ".join(found))


def rooms() -> str:
    """The rooms in the order of the layers, each with the first sentence it says of itself."""
    rows = []
    for name in layers():
        for path in (PACKAGE / name / "__init__.py", PACKAGE / f"{name}.py"):
            if path.exists():
                place = path.relative_to(PACKAGE).as_posix().replace("/__init__.py", "/")
                rows.append((f"`{place}`", purpose(path)))
    return table(("room", "what it is"), rows)


def modules() -> str:
    """Every module, by room, with the first sentence it says of itself."""
    parts = []
    for name in layers():
        paths = sorted((PACKAGE / name).rglob("*.py"))
        rows = [
            (f"`{path.relative_to(PACKAGE)}`", sentence(purpose(path)))
            for path in paths
            if path.name != "__init__.py"
        ]
        if rows:
            parts.append(f"### {name}\n\n" + table(("module", "what it does"), rows))
    return "\n".join(parts)


def purpose(module: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def sentence(text: str) -> str:
    """The first sentence of a text.

    >>> sentence("Reads `dragoman.toml`: one file. Nothing else.")
    'Reads `dragoman.toml`: one file.'
    """
    return re.split(r"(?<=\.)\s", text)[0]


def decisions() -> str:
    """The decisions, by their titles."""
    lines = []
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = page.read_text().partition("\n")[0].lstrip("# ")
        number, _, name = title.partition(". ")
        lines.append(f"{number}. [{name}](decisions/{page.name})\n")
    return "".join(lines)


# ---- wires -------------------------------------------------------------------------------


def losses(fields: Table) -> str:
    """The loss table of one wire; fields with one action and one reason share a line."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in fields.rows:
        silent = " silently" * row.silent
        action = row.action if row.action == "carried" else f"**{row.action}**{silent}"
        groups.setdefault((row.when, action, row.why), []).append(f"`{row.field}`")
    lines = [(", ".join(names), *group) for group, names in groups.items()]
    return table(("field", "when", "action", "why"), lines)


def spellings() -> str:
    """The fields of a request that a wire calls otherwise than the core."""
    request = Request(model="m", items=(Message("user", ""),))
    names = [field.name for kind in (Request, Sampling) for field in msgspec.structs.fields(kind)]
    names[names.index("items")] = "items[*].content"
    spell = [wire.spelling(request) for wire in WIRES.values()]
    found = [(name, *(each(name) for each in spell)) for name in [*names, "reasoning.effort"]]
    lines = [[f"`{name}`" for name in line] for line in found if len(set(line)) > 1]
    return table(("core", *WIRES), lines)


def faults() -> str:
    """Every fault, as clients see it."""
    rows = [
        (f"`{code}`", str(row.status), f"`{row.type}`", f"`{row.code}`" if row.code else "null")
        for code, row in TABLE.items()
    ]
    return table(("fault", "status", "`type`", "`code`"), rows)


# ---- configuration -----------------------------------------------------------------------


def fields(kind: type[Struct]) -> str:
    """The settings of a struct, with defaults in TOML form."""
    hints = get_type_hints(kind, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(kind):
        if get_origin(hints[field.name]) is not Annotated:
            continue  # not a setting of the file
        hint, meta = get_args(hints[field.name])
        rows.append(
            (f"`{field.name}`", default(field), f"{meta.description}{range_of(hint, meta)}")
        )
    return table(("field", "default", "meaning"), rows)


def default(field: msgspec.structs.FieldInfo) -> str:
    """The default of a field."""
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    return "none" if value is None else f"`{json.dumps(value)}`"


def range_of(hint: object, meta: Meta) -> str:
    """The allowed values, if not all of the type."""
    words = [json.dumps(value) for value in get_args(hint) if isinstance(value, str)]
    if words:
        return f" One of {', '.join(f'`{word}`' for word in words)}."
    return f" At least {meta.ge:g}." if meta.ge else ""


def profiles() -> str:
    """The kinds of server, with their marks, wires and habits."""
    rows = [
        (f"`{p.name}`", "; ".join(marks(p)) or "–", " and ".join(p.wires) or "detected", habits(p))
        for p in (GENERIC, *PROFILES)
    ]
    return table(("profile", "recognised by", "wires", "habits"), rows)


def marks(profile: Profile) -> Iterator[str]:
    """The marks by which a server is recognised."""
    known = {
        "address": profile.hosts,
        "`Server`": profile.server,
        "`owned_by`": profile.owned_by,
        "names that begin with": profile.listed,
    }
    for where, values in known.items():
        if values:
            yield f"{where} {', '.join(f'`{value}`' for value in values)}"


def habits(profile: Profile) -> str:
    """The differences from a server without limits or quirks."""
    limits, dialect = profile.limits, profile.dialect
    strict = msgspec.structs.replace(limits, named_tool=True, idle_tools=True, json_schema=True)
    careful = profile is not GENERIC and strict == GENERIC.limits
    found = {
        "as `generic`": careful,
        "custom tools become functions": not (careful or limits.custom_tools),
        "namespaces become prefixes": not (careful or limits.namespaces),
        "only allowed tools are sent": not (careful or limits.allowed_tools),
        "developer messages become system messages": not careful
        and limits.developer_role == "system",
        "one leading system message": not careful and limits.system_messages == "front",
        "one leading system message, but for its own clients": limits.system_messages == "own",
        "only the tool named in `tool_choice` is sent": not limits.named_tool,
        "tools are not sent with `tool_choice: none`": not limits.idle_tools,
        "a schema becomes a prompt and `json_object`": not limits.json_schema,
        f"the token limit is `{dialect.max_tokens}`": dialect.max_tokens
        != GENERIC.dialect.max_tokens,
        f"reasoning is sent as `{dialect.reasoning_field}`": dialect.reasoning_field
        != GENERIC.dialect.reasoning_field,
        "arguments of past calls become JSON objects": not (careful or limits.any_arguments),
        "past reasoning is left out": dialect.reasoning_echo == "never",
        "labels and other fields that it refuses are left out": "store" in dialect.drop,
        "calls keep no fields of other servers": not dialect.call_extra,
        "calls of other models get a word for a signature": dialect.call_stand_in is not None,
        f"other ids of calls get {dialect.call_id_length} letters and digits": (
            dialect.call_id_length is not None
        ),
        "the assistant replies to results before a user's message": (
            not dialect.user_behind_results
        ),
        "texts of white space are left out": not dialect.blank_texts,
        "schemas that are enforced are closed, and their limits told": dialect.closed_schemas,
        f"bounds above {profile.most_repeated} are left out of schemas": (
            profile.most_repeated is not None
        ),
        "`n` becomes separate requests": not profile.choices,
        f"a total of {profile.silent_context} tokens logs a warning about truncation": (
            profile.silent_context is not None
        ),
        f"the key is sent in `{profile.key_header}`": profile.key_header != GENERIC.key_header,
    }
    return ", ".join(habit for habit, has in found.items() if has)


# ---- command line ------------------------------------------------------------------------


def commands() -> str:
    """Every command with its arguments, as `--help` has them."""
    (choices,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    parts = []
    for name, command in choices.choices.items():
        rows = [(signature(action), str(action.help)) for action in command._actions]
        parts.append(
            f"## dragoman {name}\n\n{command.description}\n\n"
            + table(("argument", "meaning"), rows)
        )
    return "\n".join(parts)


def signature(action: argparse.Action) -> str:
    """The syntax of an argument."""
    if not action.option_strings:
        name = str(action.metavar or action.dest.upper())
        return f"`[{name} …]`" if action.nargs == "*" else f"`{name}`"
    names = ", ".join(f"`{option}`" for option in action.option_strings)
    if action.nargs == 0:
        return names
    value = "\\|".join(action.choices) if action.choices else action.metavar or action.dest.upper()
    return f"{names[:-1]} {value}`"
