"""Ids are of one length, grow with time, and are too many to guess."""

from __future__ import annotations

import time

import pytest

from dragoman.engines import base
from dragoman.engines.base import new_id


def test_ids_are_32_hexadecimal_digits_and_differ() -> None:
    ids = [new_id() for _ in range(1_000)]
    assert len(set(ids)) == len({id[12:] for id in ids}) == 1_000
    assert all(len(id) == 32 and int(id, 16) for id in ids)


def test_ids_begin_with_the_time_and_grow_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time_ns() // 1_000_000
    assert before <= int(new_id()[:12], 16) <= time.time_ns() // 1_000_000
    earlier = new_id()
    moment = time.time_ns() + 1_000_000
    monkeypatch.setattr(base.time, "time_ns", lambda: moment)
    assert new_id() > earlier
