"""The generated parts of the documentation say what the code says now; `make docs` writes them."""

from docs.generate import GENERATORS, MARKED, pages, stale
from dragoman.wire.error import TABLE
from tests.architecture.tree import ROOT


def test_generated_parts_are_fresh() -> None:
    assert not [page.relative_to(ROOT).as_posix() for page in stale()], "run make docs"


def test_every_generated_part_has_a_page() -> None:
    """A wire's loss tables are shown, too."""
    shown = {found["name"] for page in pages() for found in MARKED.finditer(page.read_text())}
    assert shown == GENERATORS.keys()


def test_every_fault_has_advice() -> None:
    advice = (ROOT / "docs" / "guide" / "errors.md").read_text().partition("## What to do")[2]
    assert not [code for code in TABLE if f"`{code}`" not in advice]
