"""Today's values of what may only shrink: modules, lines, modules with one importer, calls.

The limits are in ratchets.toml; `python -m tests.architecture` prints both and can write them.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

from tests.architecture import calls
from tests.architecture.tree import PACKAGE, Source, sources

FILE = Path(__file__).with_name("ratchets.toml")
ROOMS = (
    *("core", "wire", "formats", "net", "engines", "tools", "stores"),
    *("client", "agent", "program", "voice", "server", "cli"),
)
SLACK = 0.05
"""How far a value may fall below its limit before the limit has to follow."""
NOISE = {"calls": 0.02}
"""How far a value may be above: whether the loop waits for the store's thread depends on timing."""

Figures = dict[str, dict[str, float]]


def limits() -> Figures:
    """What is written down."""
    return tomllib.loads(FILE.read_text())


def write(figures: Figures) -> None:
    """Write figures down as the limits."""
    lines = [
        "# Written by `python -m tests.architecture --write`; a limit is lowered, never raised."
    ]
    for section, values in figures.items():
        lines += ["", f"[{section}]", *(f"{name} = {value:g}" for name, value in values.items())]
    FILE.write_text("\n".join(lines) + "\n")


def tree_figures() -> Figures:
    """What the source tree says."""
    files = sources()
    lines = dict.fromkeys(ROOMS, 0)
    for file in files:
        room = file.path.relative_to(PACKAGE).parts[0]
        if room in lines:
            lines[room] += file.lines
    importers = _importers(files)
    return {
        "modules": {
            "all": len(importers),
            "one_importer": sum(len(found) == 1 for found in importers.values()),
        },
        "lines": {**lines, "all": sum(file.lines for file in files)},
    }


def call_figures() -> Figures:
    """What a running server says."""
    return {"calls": calls.measured()}


def complaint(limit: float, value: float, noise: float = 0) -> str | None:
    """What is wrong with a value, in words for whoever has to change it."""
    if value > limit * (1 + noise):
        return f"{value:g} is above its limit of {limit:g}"
    if value < limit - max(SLACK * limit, 1):
        return f"{value:g} is well below its limit of {limit:g}: lower it to {value:g}"
    return None


def complaints(figures: Figures) -> list[str]:
    """Every value that is above its limit, or so far below that the limit has to follow."""
    allowed = limits()
    return [
        f"{section}.{name} = {wrong}"
        for section, values in figures.items()
        for name, value in values.items()
        if (wrong := complaint(allowed[section][name], value, NOISE.get(section, 0)))
    ]


def _importers(files: tuple[Source, ...]) -> dict[str, set[str]]:
    """The modules that import each module; packages import but are not asked about."""
    names = {_name(file): file for file in files}
    found: dict[str, set[str]] = defaultdict(set)
    for importer, file in names.items():
        package = importer if file.path.name == "__init__.py" else importer.rpartition(".")[0]
        for node in ast.walk(file.tree):
            for target in _targets(node, package):
                if target in names and target != importer:
                    found[target].add(importer)
    return {
        name: found[name] for name, file in names.items() if not file.path.name.startswith("__")
    }


def _name(file: Source) -> str:
    parts = file.path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(node: ast.AST, package: str) -> list[str]:
    """The modules that an import may name: `from a import b` names both a and a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]
