"""`dragoman log` and `dragoman tail`: stored responses, on a terminal or as JSON.

The store is read directly; no server needs to run.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime
from shutil import get_terminal_size

from dragoman.core.event import Failed
from dragoman.server.config import read_key
from dragoman.server.state.history import History, answered, asked, exported, name, open_history
from dragoman.stores.base import Record

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


def _opened(options: Namespace) -> AbstractAsyncContextManager[History]:
    settings = configured(options).server
    key = None
    if options.key_env:
        key = read_key(os.environ, options.key_env, "the key that owns the responses")
    return open_history(options.store or settings.store, settings.pubsub, os.environ, key)
