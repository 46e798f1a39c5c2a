"""Which behaviour has which number: the list that must be complete, the document, the tests.

Reads docs/reference/behaviours.md and the names of all test functions; it imports no test and
knows nothing of what a behaviour means.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "reference" / "behaviours.md"
TESTS = ROOT / "tests"

BULLET = re.compile(r"^- \*\*(?P<number>[A-Z]\d+(?: w?\d+)?)\*\*(?P<sentence>.*(?:\n  .*)*)", re.M)
TEST_NAME = re.compile(r"test_(?P<set>r\d+)_(?P<item>w?\d+)_|test_(?P<single>[vodp]\d+)_")


def span(prefix: str, first: int, last: int | None = None) -> list[str]:
    """The numbers from `first` to `last`, each behind `prefix`."""
    return [f"{prefix}{number}" for number in range(first, (last or first) + 1)]


REQUIRED = [
    *span("R1 ", 1, 13),
    *span("R1 w", 1, 16),
    *span("R2 ", 23, 35),
    *span("V", 1, 4),
    *span("V", 10, 19),
    *span("O", 1, 8),
    *span("R4 ", 3, 8),
    *span("D", 8),
    *span("P", 1, 8),
    *span("P", 15, 17),
    *span("P", 19),
    *span("P", 24, 32),
    *span("P", 37),
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


def number_of(test: str) -> str | None:
    """The number in the name of a test function.

    >>> number_of("test_r1_13_usage_comes_last"), number_of("test_v10_text_is_kept")
    ('R1 13', 'V10')
    >>> number_of("test_r1_w5_no_index"), number_of("test_round_trip")
    ('R1 w5', None)
    """
    found = TEST_NAME.match(test)
    if not found:
        return None
    return found["single"].upper() if found["single"] else f"{found['set'].upper()} {found['item']}"


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


def by_number(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Number -> the tests that carry it, as `file::function`."""
    tests: dict[str, list[str]] = {}
    for file, name in names:
        if number := number_of(name):
            tests.setdefault(number, []).append(f"{file}::{name}")
    return tests
