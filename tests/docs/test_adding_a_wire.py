"""CONTRIBUTING's list of what a new protocol takes names what there is, and leaves nothing out."""

import re

from tests.architecture.tree import ROOT
from tests.wire.test_registry import TOY

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
SECTION = PAGE.partition("### A protocol\n")[2].partition("\n## ")[0]
NAMED = re.findall(r"`([\w./]+/[\w./]*|\w+\.md)`", SECTION)
NEWEST = re.compile(r"\bMESSAGES\b|wire[./]messages\b|anthropic|ANTHROPIC")
"""What code says that knows the newest wire, or a server that speaks it."""


def test_every_file_to_touch_exists() -> None:
    assert len(NAMED) > 12
    assert [name for name in NAMED if not (ROOT / name).exists()] == []


def test_no_other_module_knows_the_newest_wire() -> None:
    modules = sorted((ROOT / "src").rglob("*.py"))
    know = {str(each.relative_to(ROOT)) for each in modules if NEWEST.search(each.read_text())}
    named = tuple(name for name in NAMED if name.startswith("src/"))
    assert [name for name in know if not name.startswith(named)] == []
    assert know >= {"src/dragoman/wire/registry.py", "src/dragoman/engines/profiles.py"}


def test_a_wire_of_its_own_knows_only_what_wires_may() -> None:
    imported = re.findall(r"^from dragoman\.(\w+)", TOY, re.MULTILINE)
    assert set(imported) == {"core", "wire"}
