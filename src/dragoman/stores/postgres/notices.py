"""News by LISTEN and NOTIFY: what needs nothing but the database itself.

It knows names, and not what became of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.stores.news import News

from .database import Database


class Notices(News):
    """News on the channel that is called as the schema is."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def publish(self, names: Sequence[str]) -> None:
        # A statement of its own, after the commit: a NOTIFY inside would let no two of them
        # commit at the same time.
        statement = "SELECT pg_notify($1, name) FROM unnest($2::text[]) AS name"
        await self._database.fetch(statement, self._database.schema, list(names))

    async def listen(self) -> None:
        await self._database.listen(self._heard)

    def _heard(self, ear: Any, process: int, channel: str, name: object) -> None:
        self.heard(str(name))
