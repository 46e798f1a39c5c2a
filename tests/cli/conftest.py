"""What every test of the command line starts from: an empty folder, nothing in the environment,
nobody on the usual ports, and Ctrl-C as Python has it."""

import io
import signal
import sys
from collections.abc import Iterator

import pytest

from dragoman.engines import discover


@pytest.fixture(autouse=True)
def nothing_around(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discover, "PORTS", ())
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    for key, address, _ in discover.KEYS:
        monkeypatch.delenv(key, raising=False)
        monkeypatch.delenv(address, raising=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
