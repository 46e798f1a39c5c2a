"""What the documentation shows is run: Python in Markdown, docstring examples, examples/*.py.

Nothing is mocked and nothing leaves the machine. Where a page speaks to the server at the address
that a first start prints, a rehearsal server stands there for the test, on a free port.
"""

import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pytest_examples import CodeExample, EvalExample, find_examples

from tests.architecture.tree import PACKAGE, ROOT, sources
from tests.docs.rehearsal import rehearsing

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs"]
PRINTED_ADDRESS = "http://127.0.0.1:8000"
PROMPT = re.compile(r"^ *>>> ", re.M)
DOCTESTED = [
    ".".join(source.path.relative_to(above).with_suffix("").parts)
    for folder, above in ((PACKAGE, PACKAGE.parent), (ROOT / "tests", ROOT))
    for source in sources(folder)
    if PROMPT.search(source.text)
]


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[str]:
    with rehearsing() as address:
        yield address


@pytest.mark.parametrize("example", list(find_examples(*PAGES)), ids=str)
def test_pages(
    example: CodeExample, eval_example: EvalExample, request: pytest.FixtureRequest
) -> None:
    if PRINTED_ADDRESS in example.source:
        address = request.getfixturevalue("rehearsal")
        example.source = example.source.replace(PRINTED_ADDRESS, address)
    elif eval_example.update_examples:
        eval_example.run_print_update(example)
        return
    eval_example.run_print_check(example)


@pytest.mark.parametrize("module", DOCTESTED)
def test_docstrings(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted
    assert not outcome.failed


def test_example_files() -> None:
    failed = {}
    for path in sorted((ROOT / "examples").glob("*.py")):
        command = [sys.executable, "-W", "error", str(path)]
        outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if outcome.returncode:
            failed[path.name] = outcome.stderr
    assert not failed
