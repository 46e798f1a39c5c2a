"""The engines that come with the package, by name: the pocket model, and the rehearsal.

Which of them stands in where there is nothing else is decided here, once for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.core.interfaces import Engine

from .pocket import available, pocket
from .rehearsal import rehearsal

POCKET, SCRIPT = "pocket", "script"
SHIPPED: Mapping[str, Callable[..., Engine]] = {POCKET: pocket, SCRIPT: rehearsal}
"""Makes the engine of a name. Raises ImportError where it needs what is not installed."""
NOTES = {POCKET: "a demonstration model", SCRIPT: "a rehearsal, not a model"}
"""What each of them is, in a few words."""


def stand_in() -> str:
    """The name of the engine for when there is nothing else: a model, if it can be run."""
    return POCKET if available() else SCRIPT
