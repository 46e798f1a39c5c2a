"""The size of things, as facts that fail: files, functions, and the number of silenced checks.

A module is a noun worth a file, so the limits are generous: they stop only what is several things
in one. How many modules and lines there are in all is held by test_ratchets.
"""

import ast
import io
import tokenize
from collections import Counter

from tests.architecture.tree import PACKAGE, ROOT, sources

FILE_LINES = 700
FUNCTION_LINES = 100
SILENCED = {"type: ignore": 5, "noqa": 15, "pragma: no cover": 5}

OURS = [
    source
    for folder in (PACKAGE, *(ROOT / name for name in ("tests", "bench", "examples", "docs")))
    for source in sources(folder)
]


def test_no_file_is_too_long() -> None:
    assert not [f"{file.name}: {file.lines}" for file in OURS if file.lines > FILE_LINES]


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{source.name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}


def test_few_checks_are_silenced() -> None:
    found = Counter(
        marker
        for source in OURS
        if any(marker in source.text for marker in SILENCED)  # tokenizing is slow
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline)
        if token.type == tokenize.COMMENT
        for marker in SILENCED
        if token.string.lstrip("# ").startswith(marker) or f"# {marker}" in token.string
    )
    assert not {marker: count for marker, count in found.items() if count > SILENCED[marker]}
