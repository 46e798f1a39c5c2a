"""The desk where every request passes: what it builds on is found, and whether it is kept decided.

It joins a store with the runs of this server and hands out plans; it answers nothing itself.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.interfaces import Caller
from dragoman.core.item import ItemReference
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.mint import new_id, now
from dragoman.engines.opaque import ENCRYPTED
from dragoman.engines.seal import Seal
from dragoman.server.stateless import NOT_SEALED
from dragoman.stores.base import Record, Store

from .asked import Source, bare, named, understand
from .run import Batches, Run
from .runs import LEASE, Runs
from .thoughts import recalled
from .webhooks import Courier, Webhooks

ENCODER_VERSION = 2
"""Raised when the same events would be said in other bytes, so that no reader gets a mixture."""

STORED_BY_DEFAULT = frozenset({"responses"})
"""The wires on which a request that says nothing of it asks to be stored."""


class Plan(Struct, frozen=True):
    """How a request is answered: `request` is for the engine, `echoed` what the answer repeats.

    `run` records it, where it is to be kept; a `background` run goes on without its client.
    """

    request: Request
    echoed: Request
    losses: tuple[Loss, ...] = ()
    run: Run | None = None
    background: bool = False

    def recorded(self, batches: Batches) -> Batches:
        """The events, recorded on their way where that is wanted."""
        return batches if self.run is None else self.run.recorded(batches)


class Memory:
    """A store and the runs of this server; without `upkeep`, a store that no other server shares
    and that nobody keeps small."""

    def __init__(
        self,
        store: Store,
        *,
        dialect: str = "openai",
        inherit: bool = False,
        lease: float = LEASE,
        upkeep: bool = True,
        webhooks: Webhooks | None = None,
        seal: Seal | None = None,
        requeue: bool = False,
    ) -> None:
        webhooks = webhooks or Webhooks()
        self.store = store
        self.seal = seal
        self.runs = Runs(
            store, lease=lease, upkeep=upkeep, announce=webhooks.letters, requeue=requeue
        )
        self._courier = Courier(store, webhooks)
        self._dialect = dialect
        self._inherit = inherit

    def begin(self) -> None:
        """See to the runs, and send what there is to send, from now on."""
        self.runs.begin()
        self._courier.begin()

    def plan_at_once(self, wire: str, request: Request) -> Plan | None:
        """How to answer a request that builds on nothing and is not to be kept; None for others."""
        stored = wire in STORED_BY_DEFAULT if request.store is None else request.store
        if stored or request.background or ItemReference in map(type, request.items):
            return None
        if request.previous_response_id is not None or request.conversation is not None:
            return None
        echoed = replace(request, store=False)
        whole = echoed if request.background is None else replace(echoed, background=None)
        return Plan(whole, echoed, self._losses(request))

    async def plan(
        self, wire: str, request: Request, caller: Caller, source: Source | None = None
    ) -> Plan:
        """How to answer a request; `source` is where earlier things are looked up, if not in the
        store. Raises FaultError when something the request names is not there."""
        stored = request.store
        if stored is None:
            stored = wire in STORED_BY_DEFAULT
        if request.background and not stored:
            raise FaultError(bad_request("needs store to be true", "background"))
        id = new_id()
        source = source or self.store
        asked = await understand(request, source, caller.tenant, id, inherit=self._inherit)
        whole, left_out = await recalled(asked, source, caller.tenant)
        losses = (*self._losses(request), *left_out)
        echoed = replace(request, store=stored)
        if not stored:
            return Plan(whole, echoed, losses)
        own, previous = asked.own, request.previous_response_id
        if previous is not None and not await self._known(caller, previous, source):
            # Only the asker remembers what came before, so that the record must hold it.
            own, previous = replace(own, items=named(asked.whole.items, id)), None
        record = Record(
            id=id,
            tenant=caller.tenant,
            wire=wire,
            created_at=now(),
            request=replace(own, store=True),
            status="queued" if request.background else "in_progress",
            previous=None if previous is None else bare(previous),
            conversation=None if asked.conversation is None else bare(asked.conversation),
            background=bool(request.background),
            owner=self.runs.owner,
            lease=self.runs.until(),
            dialect=self._dialect,
            version=ENCODER_VERSION,
            metadata=request.metadata,
        )
        turn = named(asked.own.items, id) if record.conversation is not None else ()
        run = self.runs.open(record, turn)
        return Plan(whole, echoed, losses, run, record.background)

    def _losses(self, request: Request) -> tuple[Loss, ...]:
        return (NOT_SEALED,) if self.seal is None and ENCRYPTED in request.include else ()

    async def once_more(self, record: Record) -> Request:
        """What a record asked, with all that it builds on. Raises FaultError when something it
        names is not there any more."""
        asked = await understand(
            record.request, self.store, record.tenant, record.id, inherit=self._inherit
        )
        whole, _ = await recalled(asked, self.store, record.tenant)
        return whole

    async def _known(self, caller: Caller, previous: str, source: Source) -> bool:
        """Whether the store has the response that a request goes on from."""
        return (
            source is self.store or await self.store.get(caller.tenant, bare(previous)) is not None
        )

    async def close(self) -> None:
        """End what runs and let go of the store."""
        await self.runs.close()
        await self._courier.close()
        await self.store.close()
