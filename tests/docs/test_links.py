"""Links between the pages lead somewhere: the file is there, and so is the heading.

Links to the network are not followed.
"""

import re
from pathlib import Path

from tests.architecture.tree import ROOT

LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
HEADING = re.compile(r"^#+ (.+)$", re.M)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts derive them."""
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(prose(page)))
    return {heading.strip().replace(" ", "-") for heading in kept}


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def leads_nowhere(page: Path, target: str) -> bool:
    file, _, anchor = target.partition("#")
    there = (page.parent / file).resolve() if file else page
    return not there.exists() or bool(anchor and anchor not in anchors(there))


def test_links_lead_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for target in LINK.findall(prose(page))
        if "://" not in target and leads_nowhere(page, target)
    ]
    assert not dead
