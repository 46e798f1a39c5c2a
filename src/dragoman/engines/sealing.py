"""An engine whose reasoning can be taken along by clients that leave nothing with us.

Where a request asks for sealed reasoning, reasoning that its maker did not seal is sealed here; a
blob of ours that comes back becomes words again before the engine sees it. Blobs of others pass as
they are. How sealing is done is not known here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from dragoman.core.event import Event, ItemDone, Started
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import Item, Reasoning
from dragoman.core.loss import Loss
from dragoman.core.request import Request

from .opaque import ASKING, ENCRYPTED, in_words
from .seal import Seal
from .wrap import Wrapper, batches

GONE = Loss(
    ENCRYPTED,
    "told",
    "a blob of this server could not be opened: it is too old, or of another key's or model's "
    "conversation",
)


class Sealing(Wrapper):
    """An engine that seals."""

    def __init__(self, engine: Engine, seal: Seal) -> None:
        super().__init__(engine)
        self._seal = seal

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """Answer, out of what was sealed."""
        async with aclosing(self.batches(request, caller)) as answer:
            async for batch in answer:
                for event in batch:
                    yield event

    def batches(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[list[Event], None]:
        """The same in the batches of the engine inside."""
        opened, losses = self._opened(request, caller)
        if opened is request and ENCRYPTED not in request.include:
            return batches(self.engine, request, caller)
        return self._sealed(opened, losses, caller)

    def aside(self, request: Request, caller: Caller) -> Engine | None:
        """The engine inside, where nothing is sealed."""
        if ENCRYPTED in request.include or self._opened(request, caller)[0] is not request:
            return None
        return self.engine

    async def _sealed(
        self, request: Request, losses: tuple[Loss, ...], caller: Caller
    ) -> AsyncGenerator[list[Event], None]:
        sealing = ENCRYPTED in request.include
        async with aclosing(batches(self.engine, request, caller)) as answer:
            async for batch in answer:
                if isinstance(begun := batch[0], Started):
                    batch = [_begun(begun, losses, sealing=sealing), *batch[1:]]
                if sealing:
                    batch = [self._closed(event, request, caller) for event in batch]
                yield batch

    def _closed(self, event: Event, request: Request, caller: Caller) -> Event:
        """An event, with the blob in it where it is the last of reasoning that has none."""
        if type(event) is not ItemDone or not isinstance(item := event.item, Reasoning):
            return event
        if item.encrypted is not None or not (item.content or item.summary or item.extra):
            return event
        blob = self._seal.close(item, caller.tenant, request.model)
        return replace(event, item=replace(item, encrypted=blob))

    def _opened(self, request: Request, caller: Caller) -> tuple[Request, tuple[Loss, ...]]:
        """The request with our blobs in words; the same one, where it has none."""
        items: list[Item] = []
        changed = gone = False
        for item in request.items:
            if not isinstance(item, Reasoning) or not self._seal.is_ours(item.encrypted or ""):
                items.append(item)
                continue
            changed = True
            held = self._seal.open(item.encrypted or "", caller.tenant, request.model)
            gone = gone or held is None
            known = replace(held, id=item.id, status=item.status) if held else in_words(item)
            items += [] if known is None else [known]
        if not changed:
            return request, ()
        return replace(request, items=tuple(items)), (GONE,) if gone else ()


def _begun(event: Started, losses: tuple[Loss, ...], *, sealing: bool) -> Started:
    told = event.losses
    if sealing:  # what is asked for is done, whatever the wire behind us can say
        told = tuple(loss for loss in told if loss.field != ASKING)
    return replace(event, losses=(*told, *losses))
