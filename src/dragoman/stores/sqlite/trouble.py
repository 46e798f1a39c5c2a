"""What is in the way when a SQLite file is opened, as sentences: what happened, and what to do.

Only the kinds of errors are known here; what is done with the file stands elsewhere.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from dragoman.stores.store import StoreError

ELSE = "or choose with --store: sqlite:PATH is another file, and none keeps nothing."

_WRITING = "Let this user write to it and to its folder, "
_DAMAGED = "It is damaged or another kind of file: move it away and a new one is made, "
_ADVICE = {
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_BUSY: "Another program keeps it locked: see which, ",
    sqlite3.SQLITE_FULL: "The disk is full: make room, ",
    sqlite3.SQLITE_IOERR: "The disk fails, or is no place for a database: see to it, ",
    sqlite3.SQLITE_ERROR: "It holds the tables of something else: leave it to that, ",
}
"""What to do, by the first byte of the code that SQLite gives."""


def unopened(path: Path, error: OSError | sqlite3.Error) -> StoreError:
    """What is said of a file that cannot be used, with what to do."""
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return StoreError(f"The store {path} cannot be made: {reason}. {_WRITING}{ELSE}")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_READONLY) & 0xFF
    return StoreError(
        f"The store {path} cannot be used: {error}. {_ADVICE.get(code, _WRITING)}{ELSE}"
    )
