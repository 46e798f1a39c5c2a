"""What is promised of a memory by number: it is durable, bounded, resumable, and copies nothing.

Each promise is asked of the whole server; how a store keeps it stands in the tests of stores.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.server.settings import Settings
from dragoman.stores.base import Paging, Retention
from dragoman.stores.sqlite import SqliteStore
from tests.server.memory.remembering import Server, frames, identity, opened, remembering
from tests.server.stubs import Stub


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_r4_w11_an_unknown_previous_response_is_never_passed_over(
    kind: str, tmp_path: Path
) -> None:
    async with remembering(Stub(), opened(kind, tmp_path)) as server:
        deleted = (await server.ask()).json["id"]
        await server.sdk.responses.delete(deleted)
        unkept = (await server.ask(store=False)).json["id"]
        answered = len(server.app._engine.asked)
        for previous in ("resp_nothing", "nothing", deleted, unkept):
            for fields in ({}, {"stream": True}, {"store": False}, {"background": True}):
                call = await server.ask(previous_response_id=previous, **fields)
                assert call.status == 400, (previous, fields)
                assert call.json["error"]["code"] == "previous_response_not_found"
        assert len(server.app._engine.asked) == answered


async def kept_bytes(server: Server) -> list[int]:
    """The size of what is kept of each response's input, the earliest first."""
    page = await server.memory.store.list_responses("", None, Paging(limit=100, order="asc"))
    return [sum(len(item.text) for item in record.request.items) for record in page.records]


async def test_o9_a_turn_is_kept_once_and_not_copied_into_those_after_it(tmp_path: Path) -> None:
    async with remembering(Stub(), opened("sqlite", tmp_path)) as server:
        previous = None
        for _ in range(20):
            call = await server.ask(input="x" * 1000, previous_response_id=previous)
            previous = call.json["id"]
        assert len(server.app._engine.asked[-1][0].items) == 39
        assert await kept_bytes(server) == [1000] * 20


async def test_p21_responses_are_kept_on_disk_within_bounds_that_are_stated(tmp_path: Path) -> None:
    assert Settings().store == "sqlite"
    keeping = Retention(
        max_age=Settings().retention,
        max_log_age=Settings().log_retention,
        max_responses=Settings().max_responses,
    )
    assert keeping == Retention()
    store = SqliteStore(tmp_path / "store.db", Retention(max_responses=3))
    async with remembering(Stub(), store) as server:
        ids = [(await server.ask()).json["id"] for _ in range(5)]
        await store.sweep(0)
    async with remembering(Stub(), opened("sqlite", tmp_path)) as again:
        found = [(await again.get(f"/{id}")).status for id in ids]
    assert sorted(found) == [200, 200, 200, 404, 404]


async def test_p22_a_background_stream_resumes_as_long_as_is_stated(tmp_path: Path) -> None:
    path, keeping = tmp_path / "store.db", Retention(max_log_age=100)
    async with remembering(Stub(), SqliteStore(path, keeping)) as server:
        whole = await server.ask(stream=True, background=True)
        id = identity(whole)
    async with remembering(Stub(), SqliteStore(path, keeping)) as again:
        seen = frames(whole.body)
        for place in range(len(seen) - 1):
            rest = await again.get(f"/{id}?stream=true&starting_after={place}")
            assert b"".join(seen[: place + 1]) + rest.body == whole.body
        born = (await again.get(f"/{id}")).json["created_at"]
        await again.memory.store.sweep(born + 90)
        assert (await again.get(f"/{id}?stream=true")).status == 200
        await again.memory.store.sweep(born + 200)
        refused = await again.get(f"/{id}?stream=true")
        assert (refused.status, refused.json["error"]["param"]) == (400, "stream")
        kept = await again.get(f"/{id}")
        ended = json.loads(seen[-2].split(b"data: ")[1])["response"]
        assert kept.json == ended
