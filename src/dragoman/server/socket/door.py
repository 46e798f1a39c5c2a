"""Lets WebSocket connections in, or tells them why not, before anything is said on them.

It knows the one path that speaks WebSocket and how a refusal looks; what is said on a connection is
for the connection.
"""

from __future__ import annotations

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller, Engine
from dragoman.server.exchange import JSON_TYPE, Exchange
from dragoman.server.limits import Gate
from dragoman.server.memory.memory import Memory
from dragoman.server.settings import Settings
from dragoman.server.watch import Roster
from dragoman.wire import error
from dragoman.wire.responses import RESPONSES

from .connection import Connection
from .turn import Turns

PATH = f"/v1{RESPONSES.path}"
"""The one path that speaks WebSocket."""

DENIAL = "websocket.http.response"
"""The ASGI extension by which a refusal has a status and a body."""

NO_SOCKET = Fault("not_found", f"There is no WebSocket here, only at {PATH}.", "client")
PLAIN = Fault(
    "upgrade_required", "GET opens a WebSocket here: send `Upgrade: websocket`, or POST.", "client"
)


class Sockets:
    """The connections to one engine."""

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

    async def plain(self, exchange: Exchange, caller: Caller) -> None:
        """Answer a GET that asks for no WebSocket."""
        await exchange.refuse(PLAIN, (b"upgrade", b"websocket"))

    async def serve(self, exchange: Exchange, caller: Caller) -> None:
        """Serve a connection to its end. Raises FaultError where there is nothing to connect to."""
        if exchange.path != PATH:
            raise FaultError(NO_SOCKET)
        await exchange.receive()  # that it wants to connect
        await exchange.send({"type": "websocket.accept", "headers": exchange.marks})
        connection = Connection(
            Turns(self._engine, self._memory, caller),
            caller,
            exchange.receive,
            exchange.send,
            self._settings,
            self._roster,
            self._gate,
            exchange.id,
        )
        await connection.serve()


async def deny(exchange: Exchange, fault: Fault) -> None:
    """Refuse a connection: in the words of an HTTP error where the host can say them."""
    await exchange.receive()
    if DENIAL not in exchange.scope.get("extensions", {}):
        await exchange.send(
            {"type": "websocket.close", "code": 1008, "reason": fault.message[:120]}
        )
        return
    status = error.status(fault)
    headers = [*exchange.marks, JSON_TYPE]
    await exchange.send({"type": f"{DENIAL}.start", "status": status, "headers": headers})
    await exchange.send({"type": f"{DENIAL}.body", "body": error.encode(fault)})
