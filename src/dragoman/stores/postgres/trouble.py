"""What goes wrong with a PostgreSQL database, as sentences: what happened, and who can mend it how.

Only the kinds of errors are known here and what the database server itself says of them; the words
of the address are not repeated, for one of them may be a password.
"""

from __future__ import annotations

import os

import asyncpg

from dragoman.stores.store import StoreError

TROUBLE = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what a connection says that was cut at the wrong moment
    OSError,
    TimeoutError,
    ValueError,
)
"""What may be raised by asking a database for something."""


def failed(place: str, error: BaseException) -> StoreError:
    """What is said of a database that worked before."""
    return StoreError(f"The store at {place} failed: {_reason(error)}.")


def unopened(place: str, error: BaseException) -> StoreError:
    """What is said of a database that cannot be used from the start, with what to do."""
    return StoreError(f"The store at {place} cannot be opened: {_reason(error)}. {_advice(error)}")


def _reason(error: BaseException) -> str:
    """What happened, on one line."""
    name = type(error).__name__
    if isinstance(error, asyncpg.PostgresError):
        text = str(error.args[0] if error.args else name)
    elif isinstance(error, TimeoutError) and not error.errno:
        text = "no answer came in time"
    elif isinstance(error, ConnectionError) and error.errno:
        text = os.strerror(error.errno)
    elif isinstance(error, OSError):
        text = error.strerror or str(error) or name
    else:
        text = name
    return " ".join(text.split()).rstrip(".")


def _advice(error: BaseException) -> str:
    match error:
        case asyncpg.InvalidAuthorizationSpecificationError():
            return (
                "The database turns this user away: put the right password into PGPASSWORD, or "
                "name another user; its pg_hba.conf says who may come."
            )
        case asyncpg.InvalidCatalogNameError():
            return "Its server has no such database: make it with createdb, or name another."
        case asyncpg.InsufficientPrivilegeError():
            return "The user lacks a right: have the owner GRANT CREATE, CONNECT ON DATABASE to it."
        case asyncpg.TooManyConnectionsError():
            return "Its server is full: raise max_connections there, or run fewer workers."
        case asyncpg.CannotConnectNowError():
            return "Its server is starting or stopping: try again soon."
        case asyncpg.ReadOnlySQLTransactionError():
            return "This server is a copy that nobody may write to: name the one it copies."
        case asyncpg.PostgresError():
            return "Its server refuses what every start needs; the log there says more."
        case asyncpg.InternalClientError():
            return "What answers there does not speak as PostgreSQL does: see host and port."
        case OSError():
            return (
                "See that a PostgreSQL server runs there and may be reached from here, and that "
                "host and port are right."
            )
        case _:
            return "A word in the address, or a variable such as PGSSLMODE, is not understood."
