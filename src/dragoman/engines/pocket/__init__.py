"""The pocket model: a demonstration model in the package, so that there is always one to try.

Needs the `local` extra, which is imported when `pocket` is called.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.engines.token import TokenEngine

NAME = "pocket"
DESCRIPTION = (
    "A demonstration model of half a million parameters. It chats a little, adds small numbers, "
    "counts, calls a weather tool and writes small JSON objects; it knows nothing else."
)
FOLDER = Path(__file__).parent
"""The model's files, laid out as any Llama's folder."""
NEEDED = ("numpy", "llguidance", "jinja2")
"""What the `local` extra installs."""
MISSING = "The pocket model needs the extra local: pip install '.[local]' in the checkout."


def available() -> bool:
    """Whether the `local` extra is installed.

    >>> available()
    True
    """
    return all(find_spec(name) is not None for name in NEEDED)


def pocket() -> TokenEngine:
    """The pocket model as an engine. Raises ImportError where the `local` extra is missing, and
    ValueError where its files are not those of the package.

    >>> engine = pocket()
    >>> engine.name, engine.context
    ('pocket', 4096)
    """
    if not available():
        raise ImportError(MISSING)
    from dragoman.engines.token import TokenEngine

    from .model import load

    for line in (FOLDER / "SHA256SUMS").read_text().splitlines():
        digest, file = line.split()
        if sha256((FOLDER / file).read_bytes()).hexdigest() != digest:
            problem = "was changed or damaged since it was installed (SHA256SUMS)"
            raise ValueError(f"{FOLDER / file} {problem}. Install Dragoman again.")
    return TokenEngine(*load(FOLDER), name=NAME, description=DESCRIPTION)
