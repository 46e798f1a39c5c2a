"""Finds the numbered behaviours: those required, those described, and the tests that have them.

A test has the numbers in its name; a row of the chaos table, or of a corpus of cases in JSON,
those of its field `shows`.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "reference" / "behaviours.md"
TESTS = ROOT / "tests"
ROWS = TESTS / "chaos" / "cases.toml"

BULLET = re.compile(r"^- \*\*(?P<number>[A-Z]\d+(?: w?\d+)?)\*\*(?P<sentence>.*(?:\n  .*)*)", re.M)
NUMBERS = re.compile(r"test_((?:r\d+_w?\d+_|[vodp]\d+_)+)")
NUMBER = re.compile(r"(?:(r\d+)_)?(\w+?)_")


def span(prefix: str, first: int, last: int | None = None) -> list[str]:
    """The numbers from `first` to `last`, each behind `prefix`."""
    return [f"{prefix}{number}" for number in range(first, (last or first) + 1)]


REQUIRED = [
    *span("R0 ", 1, 34),
    *span("R0 w", 1, 17),
    *span("R1 ", 1, 13),
    *span("R1 w", 1, 16),
    *span("R2 ", 1, 35),
    *span("V", 1, 19),
    *span("O", 1, 10),
    *span("R4 ", 3, 37),
    *span("R4 ", 39, 58),
    *span("R4 ", 60),
    *span("R4 ", 64, 69),
    *span("R4 w", 1, 27),
    *span("D", 8),
    *span("P", 1, 9),
    *span("P", 12, 13),
    *span("P", 15, 19),
    *span("P", 21, 32),
    *span("P", 34, 37),
    *span("P", 44, 46),
]


def described(text: str) -> dict[str, str]:
    """Number -> sentence for every bullet of the document; raise ValueError for a double one."""
    sentences: dict[str, str] = {}
    for bullet in BULLET.finditer(text):
        if bullet["number"] in sentences:
            raise ValueError(f"{bullet['number']} stands twice in the document")
        sentences[bullet["number"]] = " ".join(bullet["sentence"].split())
    return sentences


def numbers_of(test: str) -> list[str]:
    """The numbers in the name of a test function, which may have several.

    >>> numbers_of("test_r1_13_usage_comes_last"), numbers_of("test_v10_text_is_kept")
    (['R1 13'], ['V10'])
    >>> numbers_of("test_r1_w5_p1_no_index"), numbers_of("test_round_trip")
    (['R1 w5', 'P1'], [])
    """
    head = NUMBERS.match(test)
    pairs = NUMBER.findall(head[1]) if head else []
    return [f"{group.upper()} {item}" if group else item.upper() for group, item in pairs]


def rows() -> Iterator[tuple[str, str, list[str]]]:
    """File, name and numbers of each row of the chaos table and of corpora, which is a test."""
    tables = [(ROWS, tomllib.loads(ROWS.read_text())["case"])]
    tables += [(path, json.loads(path.read_text())) for path in sorted(TESTS.rglob("cases/*.json"))]
    for path, table in tables:
        for row in table:
            if isinstance(row, dict) and "shows" in row:
                yield path.relative_to(TESTS).as_posix(), row["name"], row["shows"]


def functions(folder: Path) -> Iterator[tuple[str, str]]:
    """File and name of every test function or method that pytest collects under `folder`."""
    for path in sorted(folder.rglob("test_*.py")):
        for name in collected(ast.parse(path.read_text()).body):
            yield path.relative_to(folder).as_posix(), name


def collected(body: list[ast.stmt]) -> Iterator[str]:
    """Names of the functions in a module's body and in those of its classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from collected(node.body)


def by_number() -> dict[str, list[str]]:
    """Number -> the tests that carry it, as `file::function` or `file::row`."""
    tests: dict[str, list[str]] = {}
    named = ((file, name, numbers_of(name)) for file, name in functions(TESTS))
    for file, name, numbers in (*named, *rows()):
        for number in numbers:
            tests.setdefault(number, []).append(f"{file}::{name}")
    return tests
