"""`dragoman serve --store`: a store that cannot be opened is told at once; nothing is served."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

import dragoman
from dragoman.cli import main
from dragoman.cli import serve as command
from dragoman.server import host
from dragoman.server.settings import Settings
from dragoman.stores.base import StoreError
from tests.cli.stage import serve
from tests.postgres import Postgres

SECRET = "hunter2"
NOWHERE = f"postgresql://ada:{SECRET}@127.0.0.1:1/notes"


@pytest.fixture(autouse=True)
def own_data(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_unreachable_database_is_reported_and_nothing_is_served(workers, capsys) -> None:
    words = ["script", "--port", "0", "--workers", workers, "--store", NOWHERE]
    assert main(["serve", *words]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(
        "dragoman: The store at 127.0.0.1:1 (database 'notes', user 'ada') cannot be opened: "
    )
    assert shown.err.count("\n") == 1
    assert SECRET not in shown.err


def test_no_model_is_loaded_for_a_server_that_cannot_start(tmp_path, monkeypatch) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(command, "assemble", lambda *words: loaded.append(words))
    (tmp_path / "store.db").write_bytes(b"not a database" * 100)
    words = ["--store", f"sqlite:{tmp_path / 'store.db'}"]
    assert main(["serve", "script", "--port", "0", *words]) == 1
    assert loaded == []


def test_reachable_database_is_used(postgres: Postgres) -> None:
    address = asyncio.run(postgres.database())
    assert "  script  this server" in serve("script", "--port", "0", "--store", address)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_unusable_default_store_is_reported(workers, tmp_path, capsys) -> None:
    path = tmp_path / "data" / "dragoman" / "store.db"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert main(["serve", "script", "--port", "0", "--workers", workers]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"dragoman: The store {path} was written by a later Dragoman")
    assert "--store" in shown.err
    assert shown.err.count("\n") == 1
    assert "  script  this server" in serve("script", "--port", "0", "--store", "none")


def test_serve_function_raises_before_the_port_is_bound(monkeypatch) -> None:
    bound: list[object] = []
    monkeypatch.setattr(host, "bind", lambda settings, exact: bound.append(settings))
    with pytest.raises(StoreError, match="cannot be opened"):
        dragoman.serve(dragoman.connect("script"), Settings(store=NOWHERE))
    assert bound == []
