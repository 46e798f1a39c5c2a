"""A store in one SQLite file: the default, with nothing to set up.

Several processes of one machine may share the file. One thread writes, and writes together what
came together; others read beside it.
"""

from .store import SqliteStore

__all__ = ["SqliteStore"]
