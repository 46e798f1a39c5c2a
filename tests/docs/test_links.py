"""Links between the pages lead somewhere, and to every page leads one.

The file must be there, and so must the heading. Links to the network are not followed.
"""

import re
from pathlib import Path

from dragoman.core.turn import Turn
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


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page.suffix == ".md" and page.exists() and page not in reached:
            reached.add(page)
            targets = (target.partition("#")[0] for target in LINK.findall(prose(page)))
            waiting += [(page.parent / target).resolve() for target in targets]
    assert not set((ROOT / "docs").rglob("*.md")) - reached


def test_what_the_guide_names_of_a_turn_is_there() -> None:
    guide = (ROOT / "docs/guide/writing-an-engine.md").read_text()
    (about,) = re.findall(r"The `Turn` has a method.*?\n\n", guide, re.S)
    names = re.findall(r"`(\w+)(?:\([^`]*\))?`|`turn\.(\w+)", about)
    assert len(names) > 10
    assert not {a or b for a, b in names} - {"Turn"} - set(dir(Turn(id="", created_at=0, model="")))
