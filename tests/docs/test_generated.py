"""The generated parts of the documentation say what the code says now; `make docs` writes them."""

from docs.generate import stale
from tests.architecture.tree import ROOT


def test_generated_parts_are_fresh() -> None:
    assert not [page.relative_to(ROOT).as_posix() for page in stale()], "run make docs"
