"""What storing costs: `python -m bench.store [--responses N] [--rounds N]`.

CPU of a stored response, by thread; the time that storing adds to a stream, what a resume takes
after 10,000 events, what a token takes on disk, and whether the server's memory grows with what it
has stored. All in one process, without sockets, and the rounds with and without a store
interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dragoman.core.event import Event
from dragoman.core.fold import unfold
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.base import new_id
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.base import LogSegment, Record, Retention, Store
from dragoman.stores.sqlite import SqliteStore
from tests.server.stubs import Call, Stub, saying

from . import machine

SETTINGS = Settings(allowed_hosts=("*",))
TOKENS = 300
"""Deltas of a stream, about what a paragraph or two has."""
PACE = 0.01
"""Seconds between two deltas of a paced stream: a model that writes 100 tokens a second."""
AT_ONCE = 16
RESUMED = 10_000
WRITTEN = 4_096
TEXT = "".join(f"word{place} " for place in range(60))


def words(count: int) -> tuple[str, ...]:
    return tuple(f"word{place} " for place in range(count))


def paced(count: int) -> tuple[Any, ...]:
    """The cues of a stream whose deltas come one by one."""
    cues: list[Event | float] = []
    for event in saying(*words(count)):
        cues += [PACE, event]
    return tuple(cues)


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.store")
    parser.add_argument("--responses", type=int, default=20_000, help="for the memory that is used")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        await writes(folder)
        await added("a burst", saying(*words(TOKENS)), folder, options.rounds, 40)
        await added("100 tokens a second", paced(100), folder, options.rounds, 8)
        await resumed(folder)
        await many(folder, options.responses)


async def writes(folder: Path) -> None:
    """The CPU of a response, unary and streamed, at once with others."""
    for name, live in (("unary", _put), ("streamed", _stream)):
        for clients in (1, AT_ONCE, 4 * AT_ONCE):
            store = SqliteStore(folder / f"{name}{clients}.db")
            await asyncio.gather(*(live(store) for _ in range(clients)))
            process, loop = time.process_time(), time.thread_time()
            for _ in range(WRITTEN // clients):
                await asyncio.gather(*(live(store) for _ in range(clients)))
            count = WRITTEN // clients * clients
            loop = (time.thread_time() - loop) / count * 1e6
            process = (time.process_time() - process) / count * 1e6
            print(
                f"a {name} response, {clients} at once: {process:.0f} us, "
                f"{loop:.0f} of them on the event loop"
            )
            await store.close()


def _record(id: str) -> Record:
    request = Request(model="m", items=(Message("user", "Hi", id=f"msg_{id}_in0"),))
    return Record(id=id, tenant="", wire="responses", created_at=50, request=request)


async def _put(store: Store) -> None:
    id = new_id()
    await store.put(replace(_record(id), status="completed", response=_answer(id, TEXT)))


async def _stream(store: Store) -> None:
    id = new_id()
    answer = _answer(id, TEXT)
    await store.begin(_record(id))
    await store.finish(id, answer, LogSegment(0, tuple(unfold(answer))))


def _answer(id: str, text: str) -> Response:
    said = Message("assistant", text, id=f"out_{id}", status="completed")
    return Response(id=id, created_at=50, model="m", status="completed", output=(said,))


async def added(name: str, cues: tuple[Any, ...], folder: Path, rounds: int, count: int) -> None:
    """The CPU and the time of a stream with a store, against the same without."""
    figures: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(rounds):
        for kept in (False, True):
            memory = Memory(SqliteStore(folder / f"{name}{number}.db"))
            app = App(Stub(*cues), SETTINGS, memory)
            await _ask(app, store=kept)
            cpu, start = time.process_time(), time.perf_counter()
            if name == "a burst":
                for _ in range(count):
                    await _ask(app, store=kept)
                each = (time.perf_counter() - start) / count
            else:
                await asyncio.gather(*(_ask(app, store=kept) for _ in range(count)))
                each = time.perf_counter() - start
            figures[kept].append(((time.process_time() - cpu) / count, each))
            await app.close()
    (cpu0, time0), (cpu1, time1) = (
        (statistics.median(part) for part in zip(*figures[kept], strict=True))
        for kept in (False, True)
    )
    print(
        f"{name}: {time0 * 1e3:.2f} ms without, {time1 * 1e3:.2f} ms with a store "
        f"(+{(time1 / time0 - 1) * 100:.1f} %); CPU {cpu0 * 1e3:.2f} → {cpu1 * 1e3:.2f} ms"
    )


async def _ask(app: App, **fields: Any) -> Call:
    body = {"model": "stub", "input": "Hi", "stream": True, **fields}
    return await Call(app, "/v1/responses", body)()


async def resumed(folder: Path) -> None:
    """The last event of a long answer, read again; and the disk that a token takes."""
    path = folder / "long.db"
    app = App(Stub(*saying(*words(RESUMED))), SETTINGS, Memory(SqliteStore(path)))
    said = b"".join((await _ask(app)).writes)
    id = said.split(b'"id":"')[1].split(b'"')[0].decode()
    took = []
    for _ in range(5):
        call = Call(app, f"/v1/responses/{id}", method="GET")
        call._scope["query_string"] = f"stream=true&starting_after={RESUMED}".encode()
        start = time.perf_counter()
        await call()
        took.append(time.perf_counter() - start)
        assert b"response.completed" in b"".join(call.writes)
    print(f"resume after {RESUMED:,} events: {statistics.median(took) * 1e3:.0f} ms")
    await app.close()
    size = sum(file.stat().st_size for file in folder.glob("long.db*"))
    print(f"disk: {size / RESUMED:.0f} bytes a token, its event and its place in the answer")


async def many(folder: Path, count: int) -> None:
    """Resident memory as responses are stored, far more than may be kept."""
    store = SqliteStore(folder / "many.db", Retention(max_responses=1_000))
    engine = Stub(*saying(*words(10)))
    app = App(engine, SETTINGS, Memory(store))
    pid, before = os.getpid(), 0.0
    for part in range(10):
        for _ in range(count // 10 // AT_ONCE):
            await asyncio.gather(*(_ask(app) for _ in range(AT_ONCE)))
            engine.asked.clear()  # the stub's own memory is not what is measured
        await store.sweep(time.time())
        gc.collect()
        before = before or machine.rss(pid)
        if part in (0, 4, 9):
            done, size = (part + 1) * count // 10, machine.rss(pid)
            print(f"memory after {done:,} responses: {size:.0f} MB ({size - before:+.1f})")
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
