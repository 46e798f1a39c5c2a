"""Opens the store that an address names: none, this process's memory, a file, or a database.

none                 nothing is stored
memory               until the server stops
sqlite               a file in the user's data directory
sqlite:PATH          that file
postgresql://…       a PostgreSQL database, which several servers may share

Errors never contain a part of an address that may be a password.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .base import PATIENCE, StoreError
from .memory import MemoryStore
from .retention import Retention
from .sql import Store
from .sqlite import SqliteStore

DEFAULT = "sqlite"
HOMELESS = (
    "This user has no home directory to keep anything in: set XDG_DATA_HOME, or choose with "
    "--store: sqlite:PATH is a file, and none keeps nothing."
)
ADDRESSES = "none, memory, sqlite, sqlite:PATH, or postgresql://HOST/DATABASE"


def open_store(
    address: str,
    retention: Retention,
    environ: Mapping[str, str],
    pubsub_url: str = "",
    patience: float = PATIENCE,
) -> Store | None:
    """The store, or None for `none`. `pubsub_url` is the address of a Redis through which servers
    that share a database notify each other; operations that take longer than `patience` seconds
    fail.

    Raises StoreError for an address that names no store, for a file that cannot be used, and for a
    database whose driver is not installed; other errors of a database are raised by its
    `ready`.

    >>> open_store("none", Retention(), {}) is None
    True
    """
    kind = address.partition(":")[0]
    if address == "none":
        return None
    if address == "memory":
        return MemoryStore(retention)
    if (path := store_path(address, environ)) is not None:
        return SqliteStore(path, retention, patience)
    if kind in ("postgres", "postgresql"):
        with _requiring("asyncpg", "postgres"):
            from .postgres import PostgresStore
        pubsub = None
        if pubsub_url:
            with _requiring("redis", "redis"):
                from .redis import RedisPubSub
            pubsub = RedisPubSub(pubsub_url, environ.get("REDIS_PASSWORD"))
        return PostgresStore(address, retention, pubsub=pubsub, patience=patience)
    raise StoreError(f"There is no store {kind!r}. There is: {ADDRESSES}.")  # no password: see top


def store_path(address: str, environ: Mapping[str, str]) -> Path | None:
    """The file of a SQLite store, whether it exists or not; None for other stores.

    >>> store_path("sqlite", {"XDG_DATA_HOME": "/data"}).as_posix()
    '/data/dragoman/store.db'
    """
    kind, _, path = address.partition(":")
    if kind != "sqlite":
        return None
    if path == ":memory:":  # to SQLite one database for each connection, to others a file's name
        raise StoreError("sqlite::memory: is no file: the store of this process is `memory`.")
    return _expanded(path) if path else data_directory(environ) / "store.db"


@contextmanager
def _requiring(package: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        problem = f"This store needs the extra {extra}: pip install '.[{extra}]' in the checkout."
        raise StoreError(problem) from None


def data_directory(environ: Mapping[str, str]) -> Path:
    """This user's data directory. Raises StoreError for a user without a home.

    >>> data_directory({"XDG_DATA_HOME": "/data"}).as_posix()
    '/data/dragoman'
    """
    if own := environ.get("XDG_DATA_HOME"):
        return Path(own) / "dragoman"
    home = _expanded("~")
    if sys.platform == "win32":  # pragma: no cover - not a system of the tests
        return Path(environ.get("LOCALAPPDATA") or home) / "dragoman"
    if sys.platform == "darwin":  # pragma: no cover - not a system of the tests
        return home / "Library" / "Application Support" / "dragoman"
    return home / ".local" / "share" / "dragoman"


def _expanded(path: str) -> Path:
    if "\0" in path:
        raise StoreError("The path of the store has a NUL, which no path may have.")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise StoreError(HOMELESS) from None
