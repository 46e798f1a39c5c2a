"""Writes the parts of the documentation that are derived from the code: `make docs`.

A page marks such a part with `<!-- generated: NAME -->` and `<!-- end -->`; the text between is
replaced by what the generator of that name returns. A test fails when a page is stale. This knows
how to print, and asks the code for every fact.
"""

import ast
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from dragoman.wire.policy import ANSWER, REQUEST, Table

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dragoman"
MARKED = re.compile(
    r"(?P<open><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<close><!-- end -->)", re.S
)


def rooms() -> str:
    """The rooms in the order of the layers, each with the first sentence it says of itself."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (c["layers"] for c in contracts["contracts"] if c["id"] == "layers")
    rows = ["| room | what it is |", "|---|---|"]
    for name in re.findall(r"\w+", " ".join(layers)):
        for path in (PACKAGE / name / "__init__.py", PACKAGE / f"{name}.py"):
            if path.exists():
                rows.append(f"| `{path.relative_to(PACKAGE)}` | {purpose(path)} |")
    return "\n".join(rows).replace("/__init__.py", "/") + "\n"


def purpose(module: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def fates(table: Table) -> str:
    """One table of the loss policy."""
    rows = ["| field | when | fate | why |", "|---|---|---|---|"]
    for row in table.values():
        field = row.field if row.field.startswith("(") else f"`{row.field}`"
        rows.append(f"| {field} | {row.when} | **{row.fate}** | {row.why} |")
    return "\n".join(rows).replace("**carried**", "carried") + "\n"


GENERATORS: dict[str, Callable[[], str]] = {
    "rooms": rooms,
    "chat-request": lambda: fates(REQUEST["responses"]),
    "responses-request": lambda: fates(REQUEST["chat"]),
    "chat-answer": lambda: fates(ANSWER["responses"]),
    "responses-answer": lambda: fates(ANSWER["chat"]),
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
