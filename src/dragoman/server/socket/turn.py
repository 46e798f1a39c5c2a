"""One turn on a socket: what a frame asks for, planned, answered and remembered.

It gives batches of events and an encoder for them; who sends them, and when, is not known here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.interfaces import Caller, Engine
from dragoman.core.request import Request
from dragoman.engines.mint import new_id, now
from dragoman.engines.wrap import batches
from dragoman.server.memory.asked import bare, understand
from dragoman.server.memory.memory import Memory, Plan
from dragoman.server.memory.run import Run
from dragoman.server.stateless import NOT_STORED
from dragoman.stores.base import Record
from dragoman.wire import body
from dragoman.wire.body import Fields
from dragoman.wire.responses import RESPONSES

from .near import Near

CREATE = "response.create"


class Ask(Struct, frozen=True):
    """A frame that asks for a response. Without `generate` only its place in a chain is made."""

    request: Request
    lane: str | None = None
    generate: bool = True


def understood(text: str | bytes) -> Ask:
    """What a frame asks for. Raises FaultError naming what is wrong with it."""
    fields = body.parse(text.encode() if isinstance(text, str) else text)
    kind = fields.string("type")
    if kind != CREATE:
        raise FaultError(bad_request(f"is {kind!r}, and must be {CREATE!r}", "type"))
    generate = fields.boolean("generate")
    fields.boolean("stream")  # Codex and the Agents SDK send it; a socket streams in any case
    if fields.boolean("background"):
        raise FaultError(bad_request("is not supported over WebSocket", "background"))
    said = fields.rest()
    said.pop("stream_id", None)
    request = RESPONSES.decode_request(body.dump({**said, "stream": True}))
    return Ask(request, lane_of(fields), generate is not False)


def lane_of(fields: Fields) -> str | None:
    """The lane a frame belongs to. Raises FaultError for one that is no text."""
    return fields.string("stream_id")


class Turns:
    """Answers what is asked on one connection."""

    def __init__(self, engine: Engine, memory: Memory | None, caller: Caller) -> None:
        self._engine = engine
        self._memory = memory
        # Every turn is kept, by the connection where not by the store.
        self._caller = replace(caller, wire=RESPONSES.name, stored=True)
        self._near = Near(None if memory is None else memory.store)

    async def answer(self, ask: Ask) -> tuple[Plan, AsyncGenerator[list[Event], None]]:
        """The plan of a turn and its events. Raises FaultError when it cannot be begun; what it
        was to go on from is forgotten then."""
        try:
            plan = await self._plan(ask.request)
        except FaultError:
            await self.failed(ask)
            raise
        source = batches(self._engine, plan.request, self._caller) if ask.generate else _nothing()
        return plan, self._checked(ask, plan.recorded(source))

    async def failed(self, ask: Ask) -> None:
        """A turn failed: what it went on from must not be gone on from again."""
        previous = ask.request.previous_response_id
        if previous is not None:
            await self._near.evict(self._caller.tenant, bare(previous))

    async def _checked(
        self, ask: Ask, answer: AsyncGenerator[list[Event], None]
    ) -> AsyncGenerator[list[Event], None]:
        async with aclosing(answer):
            async for batch in answer:
                if isinstance(batch[-1], Failed):
                    await self.failed(ask)
                yield batch
        await self._near.own.sweep(0.0)

    async def _plan(self, request: Request) -> Plan:
        stored = request.store is not False
        if self._memory is not None and stored:
            wire = RESPONSES.name
            return await self._memory.plan(wire, request, self._caller, self._near)
        id, tenant = new_id(), self._caller.tenant
        asked = await understand(request, self._near, tenant, id)
        record = Record(
            id=id,
            tenant=tenant,
            wire=RESPONSES.name,
            created_at=now(),
            request=asked.whole,
        )
        losses = (NOT_STORED,) if request.store else ()
        echoed = replace(request, store=False)
        return Plan(asked.whole, echoed, losses, Run(record, self._near.own))


async def _nothing() -> AsyncGenerator[list[Event], None]:
    """The events of a turn that generates nothing."""
    yield [Started(new_id(), now(), ""), Finished("completed", completed_at=now())]
