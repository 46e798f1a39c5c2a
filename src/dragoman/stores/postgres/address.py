"""Where a PostgreSQL database is, in words that may be shown: its host, its name, and the user.

The password is never among them, wherever in the address it stands. What the address leaves out is
looked up where the driver looks it up too; nothing is connected here.
"""

from __future__ import annotations

import getpass
import os
import re
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from dragoman.stores.store import StoreError

NO_URL = (
    "The address of the PostgreSQL store is no URL such as postgresql://USER@HOST/DATABASE. A "
    "password goes into PGPASSWORD; one inside the address has its @ : / ? # written as %40 %3A "
    "%2F %3F %23."
)
NO_USER = "The address of the PostgreSQL store names no user, and this process has no name either."
_OWN = re.compile(r"(^|&)(user|password)=[^&]*")
_HOST = r"(\[[^\]@]*\]|[^:,@\[\]]*)(:\d+)?"
_HOSTS = re.compile(f"{_HOST}(,{_HOST})*")


def place_of(address: str) -> str:
    """A database as people would look for it. Raises StoreError for an address that is no URL, or
    that holds a password in such a way that its parts cannot be told apart, and for one without a
    user where the process has none either.

    >>> place_of("postgresql://ada:secret@db:5433/notes")
    "db:5433 (database 'notes', user 'ada')"
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        raise StoreError(NO_URL) from None
    who, at, where = parts.netloc.partition("@")
    beyond = parts.path + _OWN.sub("", parts.query) + parts.fragment
    if not _HOSTS.fullmatch(where if at else who) or ("@" in beyond and not at):
        raise StoreError(NO_URL)
    host = unquote(where if at else who) or _said(parts, "host") or os.environ.get("PGHOST")
    user = unquote(parts.username or "") or _said(parts, "user") or _user()
    name = unquote(parts.path[1:]) or _said(parts, "dbname", "database")
    name = name or os.environ.get("PGDATABASE") or user
    return f"{host or 'this machine'} (database {name!r}, user {user!r})"


def _said(parts: SplitResult, *names: str) -> str:
    """What the query of the address says of something."""
    said = parse_qs(parts.query)
    return next((said[name][-1] for name in names if name in said), "")


def _user() -> str:
    try:
        return os.environ.get("PGUSER") or getpass.getuser()
    except (KeyError, OSError):
        raise StoreError(NO_USER) from None
