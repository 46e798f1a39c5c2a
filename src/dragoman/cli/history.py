"""`dragoman log` and `dragoman tail`: stored responses, on a terminal or as JSON.

The store is read directly; no server needs to run.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from shutil import get_terminal_size

from dragoman.core.event import Failed
from dragoman.core.interfaces import Secret
from dragoman.server.auth import tenant_of
from dragoman.server.config import ConfigurationError
from dragoman.server.state.history import History, answered, asked, exported, name
from dragoman.stores.base import Record, Retention
from dragoman.stores.factory import open_store, store_path

from .chat import Renderer
from .serve import configured

NOTHING = "dragoman: nothing was found."


def history(options: Namespace) -> int:
    """Run one of the two commands."""
    return asyncio.run((_log if options.command == "log" else _tail)(options))


async def _log(options: Namespace) -> int:
    width = get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 0
    shown = 0
    async with _opened(options) as stored, aclosing(stored.records(options.search)) as records:
        async for record in records:
            if shown == options.limit:
                break
            print(exported(record).decode() if options.export else line(record, width))
            shown += 1
    if not shown:
        print(NOTHING, file=sys.stderr)
    return 0 if shown else 1


async def _tail(options: Namespace) -> int:
    renderer, failed = Renderer(sys.stdout.isatty()), False
    async with _opened(options) as stored, aclosing(stored.events(options.id)) as batches:
        async for batch in batches:
            for event in batch:
                renderer.event(event)
                failed = isinstance(event, Failed)
    renderer.line("")
    return 1 if failed else 0


def line(record: Record, width: int = 0) -> str:
    """A record in one line, cut to a width; 0 means not cut."""
    moment = datetime.fromtimestamp(record.created_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    texts = f"{_short(asked(record))} → {_short(answered(record))}"
    text = f"{moment}  {name(record)}  {record.status}  {record.request.model}  {texts}"
    return text if not width or len(text) <= width else f"{text[: width - 1]}…"


def _short(text: str) -> str:
    """A text on one line, without control characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:1_000])
    return " ".join(plain.split())


@asynccontextmanager
async def _opened(options: Namespace) -> AsyncGenerator[History, None]:
    settings = configured(options).server
    word = options.store or settings.store
    file = store_path(word, os.environ)
    if file is not None and not file.exists():  # reading does not create a store
        raise ConfigurationError(f"There is no store at {file}: nothing has been stored there yet.")
    store = open_store(word, Retention(), os.environ, settings.pubsub)
    if store is None or word == "memory":
        problem = f"The store {word!r} has nothing that could be read from here; see --store."
        raise ConfigurationError(problem)
    key = os.environ.get(options.key_env, "").strip() if options.key_env else ""
    if options.key_env and not key:
        raise ConfigurationError(f"{options.key_env} is empty.")
    tenant = tenant_of(Secret(key)) if key else ""
    try:
        yield History(store, tenant)
    finally:
        await store.close()
