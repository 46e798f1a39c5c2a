"""A store that cannot be opened: one line that says what happened, where, and what to do."""

import asyncio
import errno
import os
import pwd
import sqlite3
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from dragoman.stores import sqlite
from dragoman.stores.base import PATIENCE, StoreError
from dragoman.stores.factory import open_store, store_path
from dragoman.stores.postgres import NO_URL, failed, place_of, unopened
from dragoman.stores.retention import Retention
from dragoman.stores.sqlite import SqliteStore
from tests.postgres import Postgres

SECRET = "hunter2"
BOUND = 30.0


async def error_of(word: str, patience: float = PATIENCE) -> str:
    """The message of the error for a store that cannot be opened."""
    with pytest.raises(StoreError) as caught:
        store = open_store(word, Retention(), os.environ, patience=patience)
        try:
            async with asyncio.timeout(BOUND):
                await store.ready()
        finally:
            await store.close()
    message = str(caught.value)
    assert "\n" not in message
    assert SECRET not in message
    return message


# ---- a database ----------------------------------------------------------------------------


async def test_refused_connection_is_explained() -> None:
    message = await error_of(f"postgresql://ada:{SECRET}@127.0.0.1:1/notes")
    assert message.startswith(
        "The store at 127.0.0.1:1 (database 'notes', user 'ada') cannot be opened: "
        f"{os.strerror(errno.ECONNREFUSED)}. See that a PostgreSQL server runs there"
    )


async def test_silent_server_times_out() -> None:
    over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        message = await error_of(f"postgresql://ada:{SECRET}@127.0.0.1:{port}/notes", patience=0.1)
        over.set()
    assert "cannot be opened: no answer came in time. See that a PostgreSQL server" in message


async def test_rejected_user_is_explained(postgres: Postgres, monkeypatch) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    message = await error_of(postgres.url("guarded"))
    assert "(database 'guarded', user 'postgres') cannot be opened: password auth" in message
    assert "put the right password into PGPASSWORD" in message
    message = await error_of(postgres.url("postgres", user=f"nobody:{SECRET}"))
    assert "user 'nobody') cannot be opened: role \"nobody\" does not exist." in message


async def test_missing_database_is_explained(postgres: Postgres) -> None:
    message = await error_of(postgres.url("nowhere"))
    assert 'cannot be opened: database "nowhere" does not exist.' in message
    assert "make it with createdb" in message


async def test_missing_privilege_is_explained(postgres: Postgres) -> None:
    address = await postgres.database()
    connection = await asyncpg.connect(address)
    await connection.execute("CREATE ROLE reader LOGIN")
    await connection.close()
    message = await error_of(address.replace("//postgres@", "//reader@"))
    assert "user 'reader') cannot be opened: permission denied" in message
    assert "GRANT CREATE, CONNECT ON DATABASE" in message


async def test_database_of_later_version_is_refused(postgres: Postgres) -> None:
    address = await postgres.database()
    store = open_store(address, Retention(), {})
    await store.ready()
    await store.close()
    connection = await asyncpg.connect(address)
    await connection.execute("INSERT INTO dragoman.steps VALUES (99)")
    await connection.close()
    message = await error_of(address)
    assert "user 'postgres') was written by a later Dragoman (step 9, known are 8)." in message
    assert "Run that version on all servers" in message


async def test_servers_of_a_database_have_one_secret(postgres: Postgres) -> None:
    address = await postgres.database()
    stores = [open_store(address, Retention(), {}) for _ in range(3)]
    with pytest.raises(StoreError, match="could not be opened yet"):
        assert stores[0].secret
    await asyncio.gather(*(store.ready() for store in stores))
    assert len({store.secret for store in stores}) == 1
    assert len(stores[0].secret) == 32
    for store in stores:
        await store.close()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:97500/notes", "port must be 0-65535. See the port"),
        ("127.0.0.1:1/notes?sslmode=verify-full", 'root.crt" does not exist'),
        ("127.0.0.1:1/notes?sslmode=verify-ca&sslrootcert=/nope", "See the files of sslrootcert"),
        ("127.0.0.1:1/notes?sslmode=verify-ca&sslrootcert=" + __file__, "See sslmode, sslrootcert"),
        ("/notes?host=/nope", "or the folder of the socket"),
    ],
)
async def test_ports_and_certificates_are_explained(address, words, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    message = await error_of(f"postgresql://ada:{SECRET}@{address}")
    assert words in message
    assert SECRET not in message


async def test_invalid_option_is_explained_without_its_value() -> None:
    message = await error_of(f"postgresql://ada:{SECRET}@127.0.0.1:1/notes?sslmode={SECRET}")
    assert "ClientConfigurationError. A word in the address" in message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (asyncpg.TooManyConnectionsError("full"), "full. Its server is full: raise max_conn"),
        (asyncpg.CannotConnectNowError("up soon."), "up soon. Its server is starting"),
        (asyncpg.ReadOnlySQLTransactionError("no\nway"), "no way. This server is a read-only"),
        (asyncpg.DiskFullError("disk"), "disk. Its server refuses"),
        (asyncpg.PostgresError(), "PostgresError. Its server refuses"),
        (asyncpg.InternalClientError("x"), "InternalClientError. What answers there"),
        (asyncpg.InterfaceError(SECRET), "InterfaceError. A word in the address"),
        (asyncpg.InterfaceError("connection is closed"), "InterfaceError. The connection was lost"),
        (ConnectionError("rejected SSL"), "rejected SSL. See that"),
        (OSError(), "OSError. See that"),
        (TimeoutError(errno.ETIMEDOUT, "x"), "x. See that"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_has_its_advice(error, words) -> None:
    assert str(unopened("db", error)).startswith(f"The store at db cannot be opened: {words}")
    assert str(failed("db", error)) == f"The store at db failed: {words.partition('. ')[0]}."


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("postgresql://ada@db/notes", "db (database 'notes', user 'ada')"),
        ("postgresql://a%40b:x@[::1]:5/n%2Fo", "[::1]:5 (database 'n/o', user 'a@b')"),
        ("postgres://one:1,two:2/notes", "one:1,two:2 (database 'notes', user 'me')"),
        ("postgresql:///?host=/run&dbname=n&user=a@b", "/run (database 'n', user 'a@b')"),
        ("postgresql:///notes?password=a@b", "this machine (database 'notes', user 'me')"),
        ("postgresql://ada@db", "db (database 'ada', user 'ada')"),
    ],
)
def test_place_is_named_without_its_password(address, place, monkeypatch) -> None:
    for name in ("PGHOST", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGUSER", "me")
    assert place_of(address) == place


@pytest.mark.parametrize("password", ["12/34", "12?34", "12#34", "12@34", "a:b/c", "1?a=2", "x]"])
def test_address_broken_by_its_password_is_not_shown(password) -> None:
    with pytest.raises(StoreError) as caught:
        place_of(f"postgresql://ada:{password}@db/notes")
    assert str(caught.value) == NO_URL


def test_process_without_user_name_needs_user_in_address(monkeypatch) -> None:
    for name in ("PGUSER", "LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", dict[int, object]().__getitem__)
    with pytest.raises(StoreError, match="names no user"):
        place_of("postgresql://db/notes")
    with pytest.raises(StoreError, match=r"no home directory .* set XDG_DATA_HOME"):
        store_path("sqlite", {})
    with pytest.raises(StoreError, match="no home directory"):
        store_path("sqlite:~/store.db", {})


# ---- a file --------------------------------------------------------------------------------


def foreign(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)


def later(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def others(table: str, step: int = 0) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(f"CREATE TABLE {table} (name TEXT)")
            connection.execute(f"PRAGMA user_version = {step}")
        connection.close()

    return make


OTHERS = "cannot be used: it holds the tables of something else. Leave it to that, or choose"


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a folder that is a file": (
        lambda path: path.parent.rmdir() or path.parent.write_text(""),
        "cannot be made: File exists. Let this user write to it and to its folder, or choose",
    ),
    "a folder": (Path.mkdir, "cannot be used: unable to open database file. Let this user write"),
    "not a database": (foreign, "cannot be used: file is not a database. It is damaged or another"),
    "of a later version": (later, "was written by a later Dragoman (step 99, known are 8). Run"),
    "of somebody else": (others("bookmarks"), OTHERS),
    "of somebody else with a table of that name": (others("items"), OTHERS),
    "of somebody else who counts steps": (others("bookmarks", 3), OTHERS),
}


@pytest.mark.parametrize("kind", FILES)
async def test_unusable_file_is_explained(kind, tmp_path) -> None:
    spoil, words = FILES[kind]
    path = tmp_path / "deep" / "store.db"
    path.parent.mkdir()
    spoil(path)
    message = await error_of(f"sqlite:{path}")
    assert message.startswith(f"The store {path} {words}")
    assert "choose with --store: sqlite:PATH is another file, and none keeps nothing." in message


async def test_path_that_none_can_have_is_explained() -> None:
    assert await error_of("sqlite:a\0b") == (
        "The path of the store has a NUL, which no path may have."
    )


async def test_memory_of_sqlite_is_refused() -> None:
    assert "the store of this process is `memory`" in await error_of("sqlite::memory:")


async def test_file_of_somebody_else_is_left_as_it_is(tmp_path) -> None:
    path = tmp_path / "store.db"
    others("bookmarks")(path)
    before = path.read_bytes()
    await error_of(f"sqlite:{path}")
    assert path.read_bytes() == before


def test_read_only_file_is_explained(tmp_path, monkeypatch) -> None:
    def reading(path: Path, patience: float) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)

    monkeypatch.setattr(sqlite, "connect", reading)
    with pytest.raises(StoreError, match=r"readonly database\. Let this user write to it"):
        SqliteStore(tmp_path / "store.db")
