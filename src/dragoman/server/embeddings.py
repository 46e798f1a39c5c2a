"""Embeddings: let through to the engine that has them, within the bounds of all other requests.

It reads, asks and writes; what is in a request or an answer is the wire's business.
"""

from __future__ import annotations

from dragoman.core.error import Fault
from dragoman.core.interfaces import Caller, Engine
from dragoman.engines.prompted import embed
from dragoman.wire import body, embeddings

from .exchange import Exchange
from .limits import Gate, whole_body
from .settings import Settings
from .watch import Roster, Watch

PATH = f"/v1{embeddings.PATH}"


class Embeddings:
    """Answers requests for vectors out of one engine."""

    def __init__(self, engine: Engine, settings: Settings, roster: Roster, gate: Gate) -> None:
        self._engine = engine
        self._settings = settings
        self._roster = roster
        self._gate = gate

    async def answer(self, exchange: Exchange, caller: Caller) -> None:
        """Read, ask and answer; given up when the client goes or time is up."""
        settings = self._settings
        said = await whole_body(exchange, self._settings, self._roster)
        request = embeddings.decode_request(said)
        with Watch(self._roster) as watch:
            watch.listen(exchange.receive)
            if settings.deadline is not None:
                problem = f"There was no answer within {settings.deadline:g} s."
                watch.limit(settings.deadline, Fault("upstream_timeout", problem, "upstream"))
            async with self._gate:
                answer = await embed(self._engine, request, caller)
        await exchange.reply(200, body.dump(answer))
