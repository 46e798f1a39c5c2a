"""The source tree as data: where things are, and every module read and parsed once.

The architecture tests ask it; it knows none of their rules.
"""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "dragoman"
UNTRACKED = {"__pycache__", "build", "dist"}


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """What it says, parsed when first asked for: a second for all there is."""
        return ast.parse(self.text)

    @property
    def name(self) -> str:
        """The path from the root of the checkout, for messages."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def lines(self) -> int:
        return self.text.count("\n")


@cache
def sources(folder: Path = PACKAGE) -> tuple[Source, ...]:
    """Every Python file under `folder`, sorted by path."""
    return tuple(Source(path, path.read_text()) for path in sorted(folder.rglob("*.py")))


def rooms(*names: str) -> list[Source]:
    """The modules of the named sub-packages, as far as they exist."""
    return [file for file in sources() if file.path.relative_to(PACKAGE).parts[0] in names]


def published_files() -> Iterator[Path]:
    """Every file that a clone of the project holds: what git tracks, or all that is not built."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        tracked = (ROOT / name for name in listing.stdout.split("\0") if name)
        return (path for path in tracked if path.is_file())
    return (
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and not any(
            part.startswith(".") or part in UNTRACKED for part in path.relative_to(ROOT).parts
        )
    )
