"""The pocket model: half a million parameters in the package, so that there is always something
real to talk to.

It is a demonstration: it knows little and says so. What it computes stands in `network`, what
it was taught beside its training script; here its parts are put together. It needs the `local`
extra, which nothing imports before `pocket` is called.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import DescribedEngine

NAME = "pocket"
DESCRIPTION = (
    "A demonstration model of half a million parameters. It chats a little, adds small numbers, "
    "counts, calls a weather tool and writes small JSON objects; it knows nothing else."
)
FOLDER = Path(__file__).parent
"""Where the model is, laid out as any Llama's folder."""
NEEDED = ("numpy", "llguidance", "jinja2")
"""What the `local` extra brings."""
MISSING = "The pocket model needs the local extra: pip install 'dragoman[local]'"


def available() -> bool:
    """Whether everything that the pocket model needs is installed.

    >>> available()
    True
    """
    return all(find_spec(name) is not None for name in NEEDED)


def pocket() -> DescribedEngine:
    """The pocket model as an engine. Raises ImportError where the `local` extra is missing.

    >>> engine = pocket()
    >>> engine.name, engine.context
    ('pocket', 4096)
    """
    if not available():
        raise ImportError(MISSING)
    from .engine import DescribedEngine
    from .model import load

    return DescribedEngine(*load(FOLDER), name=NAME, description=DESCRIPTION)
