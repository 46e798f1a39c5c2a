"""Writes the parts of the documentation that are derived from the code: `make docs`.

A page marks such a part with `<!-- generated: NAME -->` and `<!-- end -->`; the text between is
replaced by what the generator of that name returns. A test fails when a page is stale. What the
parts say stands in `facts`.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import facts

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(
    r"(?P<open><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<close><!-- end -->)", re.S
)

GENERATORS: dict[str, Callable[[], str]] = {
    "rooms": facts.rooms,
    "modules": facts.modules,
    "decisions": facts.decisions,
    **{
        f"{wire.name}-{side}": partial(facts.losses, getattr(wire.losses, side))
        for wire in facts.WIRES.values()
        for side in ("request", "answer")
    },
    "spellings": facts.spellings,
    "settings": partial(facts.fields, facts.Settings),
    "upstreams": partial(facts.fields, facts.Upstream),
    "webhooks": partial(facts.fields, facts.Webhook),
    "tools": partial(facts.fields, facts.HostedTool),
    "profiles": facts.profiles,
    "command-line": facts.commands,
    "faults": facts.faults,
}


def pages() -> list[Path]:
    """Every page that may have a generated part."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def fresh(text: str) -> str:
    """The text of a page with its generated parts written anew; raises KeyError for a bad name."""

    def fill(part: re.Match[str]) -> str:
        return part["open"] + GENERATORS[part["name"]]() + part["close"]

    return MARKED.sub(fill, text)


def stale() -> dict[Path, str]:
    """The pages that no longer say what the code says, with their new text."""
    texts = {page: page.read_text() for page in pages()}
    return {page: new for page, text in texts.items() if (new := fresh(text)) != text}


if __name__ == "__main__":
    for page, text in stale().items():
        page.write_text(text)
        print(f"wrote {page.relative_to(ROOT)}")
