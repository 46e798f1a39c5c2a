"""Opens the store that a word names: nothing, this process's memory, a file, or a database.

none                 nothing is remembered
memory               until the server stops
sqlite               a file in the user's data directory
sqlite:PATH          that file
postgresql://…       a PostgreSQL database, which several servers may share

What a store then does is its own business. Nothing of a word that may be a password is repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .keeping import Keeping
from .memory import MemoryStore
from .sqlite import SqliteStore
from .store import Store, StoreError

DEFAULT = "sqlite"
HOMELESS = (
    "This user has no home directory to keep anything in: set XDG_DATA_HOME, or choose with "
    "--store: sqlite:PATH is a file, and none keeps nothing."
)
WORDS = "none, memory, sqlite, sqlite:PATH, or postgresql://HOST/DATABASE"


def open_store(
    word: str, keeping: Keeping, environ: Mapping[str, str], news: str = ""
) -> Store | None:
    """The store, or None for `none`. Raises StoreError for a word that names no store, for a file
    that cannot be used, and for a database without the package that speaks to it. What else may
    be wrong with a database its `ready` says. `news` is the address of a Redis by
    which servers that share a database hear of each other.

    >>> open_store("none", Keeping(), {}) is None
    True
    """
    kind = word.partition(":")[0]
    if word == "none":
        return None
    if word == "memory":
        return MemoryStore(keeping)
    if (path := file_of(word, environ)) is not None:
        return SqliteStore(path, keeping)
    if kind in ("postgres", "postgresql"):
        return _postgres(word, keeping, news, environ.get("REDIS_PASSWORD"))
    raise StoreError(f"There is no store {kind!r}. There is: {WORDS}.")  # a password may follow


def file_of(word: str, environ: Mapping[str, str]) -> Path | None:
    """The file of a store that is one, be it there or not; None for all other stores.

    >>> file_of("sqlite", {"XDG_DATA_HOME": "/data"}).as_posix()
    '/data/dragoman/store.db'
    """
    kind, _, place = word.partition(":")
    if kind != "sqlite":
        return None
    return _expanded(place) if place else data_directory(environ) / "store.db"


def _postgres(address: str, keeping: Keeping, news: str, password: str | None) -> Store:
    with _needing("asyncpg", "postgres"):
        from .postgres import PostgresStore
    if not news:
        return PostgresStore(address, keeping)
    with _needing("redis", "redis"):
        from .redis_news import RedisNews
    return PostgresStore(address, keeping, news=RedisNews(news, password))


@contextmanager
def _needing(package: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        problem = f'This store needs {package}: pip install "dragoman[{extra}]".'
        raise StoreError(problem) from None


def data_directory(environ: Mapping[str, str]) -> Path:
    """Where this user's data is kept on this system. Raises StoreError for a user without a home.

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


def _expanded(place: str) -> Path:
    try:
        return Path(place).expanduser()
    except RuntimeError:
        raise StoreError(HOMELESS) from None
