"""`POST /v1/responses/compact`: a conversation as one opaque item, for a client to go on from.

It reads, asks and writes; how a summary is made is the business of `engines.compact`.
"""

from __future__ import annotations

from dragoman.core.interfaces import Caller, Engine
from dragoman.core.item import Compaction
from dragoman.core.request import Request
from dragoman.engines.compact import seal, summarise
from dragoman.engines.mint import new_id, now
from dragoman.wire.responses import RESPONSES, listing

from .counting import whole
from .exchange import Exchange
from .limits import Gate, whole_body
from .memory.memory import Memory
from .settings import Settings
from .watch import Roster, Watch

PATH = f"/v1{RESPONSES.path}/compact"


class Compactions:
    """Has conversations summarised by one engine."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        roster: Roster,
        gate: Gate,
        memory: Memory | None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._roster = roster
        self._gate = gate
        self._memory = memory

    async def answer(self, exchange: Exchange, caller: Caller) -> None:
        """Summarise what a request holds and all that it builds on."""
        data = await whole_body(exchange, self._settings, self._roster)
        request: Request = await whole(RESPONSES.decode_request(data), caller, self._memory)
        with Watch(self._roster) as watch:
            watch.listen(exchange.receive)
            async with self._gate:
                summary, usage = await summarise(self._engine, request, caller)
        id = new_id()
        item = Compaction(seal(summary), f"cmp_{id}")
        await exchange.reply(200, listing.encode_compaction(id, now(), item, usage))
