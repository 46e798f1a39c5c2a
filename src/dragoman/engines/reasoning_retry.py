"""Asks upstreams for encrypted reasoning, and retries without it where a server refuses."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.interfaces import ANYONE, Caller, Engine, Passed
from dragoman.core.item import Item, Reasoning
from dragoman.core.loss import Loss
from dragoman.core.request import Request

from .base import Bounded, Wrapper, batches, relay
from .reasoning_encryption import ASKING, ENCRYPTED, all_in_words, is_opaque

MODELS = 1_000
"""Models remembered that seal nothing."""
CODE = "invalid_encrypted_content"
NOT_OPENED = Loss(
    ENCRYPTED, "dropped", "the model's server could not open it; it was asked again without"
)
_REFUSED = re.compile(r"encrypted.content|signature.{0,20}thinking", re.IGNORECASE)
_UNKNOWN = re.compile(r"""["'`]include(\[\d+\])?["'`]""")
"""How servers name the field by which sealed reasoning is asked for, where they have none."""


class _Try(Struct, frozen=True):
    """A request, and whether it asks for sealed reasoning that its client did not ask for."""

    request: Request
    asking: bool = False
    losses: tuple[Loss, ...] = ()


class Resending(Wrapper):
    """An engine that survives sealed reasoning it cannot open. Without `again` such a refusal
    stands."""

    def __init__(self, engine: Engine, *, again: bool = True) -> None:
        super().__init__(engine)
        self._again = again
        self._open: Bounded[str, bool] = Bounded(MODELS)

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """Answer; at the second try, if need be."""
        async with aclosing(self.batches(request, caller)) as answer:
            async for batch in answer:
                for event in batch:
                    yield event

    def batches(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[list[Event], None]:
        """The same in the batches of the engine inside."""
        first = self._first(request, caller)
        if first.asking or (self._again and any(map(_is_sealed, request.items))):
            return self._tried(first, caller)
        return batches(self.engine, request, caller)

    def aside(self, request: Request, caller: Caller) -> Engine | None:
        """The engine inside, where nothing sealed is sent or asked for."""
        idle = not (request.tools or caller.stored)
        if idle and Reasoning not in map(type, request.items):
            return self.engine
        asks = self._first(request, caller).asking
        return None if asks or any(map(_is_sealed, request.items)) else self.engine

    def relay(
        self, body: bytes, request: Request, caller: Caller
    ) -> AsyncGenerator[Passed, None] | None:
        """The bytes of the engine inside: nothing sealed passes as bytes."""
        return relay(self.engine, body, request, caller)

    async def _tried(self, first: _Try, caller: Caller) -> AsyncGenerator[list[Event], None]:
        begun = answered = False
        second: _Try | None = None
        async with aclosing(batches(self.engine, first.request, caller)) as answer:
            async for batch in answer:
                if not answered and (second := self._second(first, batch)) is not None:
                    break
                answered = answered or any(not isinstance(event, Started) for event in batch)
                begun = True
                yield _told(batch, first, begun=False)
        if second is None:
            return
        async with aclosing(batches(self.engine, second.request, caller)) as answer:
            async for batch in answer:
                if given := _told(batch, second, begun=begun):
                    yield given

    def _first(self, request: Request, caller: Caller) -> _Try:
        """The request, asking for what a client of Chat can neither ask for nor carry, and for
        what a client need not ask for where the answer is kept here."""
        wanted = caller.stored or (request.tools and caller.wire != "responses")
        if not wanted or ENCRYPTED in request.include or self._open.get(request.model):
            return _Try(request)
        return _Try(replace(request, include=(*request.include, ENCRYPTED)), asking=True)

    def _second(self, first: _Try, batch: list[Event]) -> _Try | None:
        """What to ask where a first batch refuses something sealed; None where it does not."""
        if not isinstance(end := batch[-1], Failed):
            return None
        if not _is_about_seals(end.fault, asking=first.asking):
            return None
        request, losses = first.request, first.losses
        asking = first.asking
        if asking and end.fault.upstream_code != CODE:
            self._open.put(request.model, True, 1)
            include = tuple(value for value in request.include if value != ENCRYPTED)
            request, asking = replace(request, include=include), False
        if self._again and any(map(_is_sealed, request.items)):
            request = replace(request, items=all_in_words(request.items))
            losses = (*losses, NOT_OPENED)
        return None if request is first.request else _Try(request, asking, losses)


def _is_sealed(item: Item) -> bool:
    return isinstance(item, Reasoning) and is_opaque(item)


def _is_about_seals(fault: Fault, *, asking: bool) -> bool:
    if fault.upstream_code == CODE:
        return True
    if fault.code != "upstream_refused" or fault.blame != "client":
        return False
    said = fault.message
    return bool(_REFUSED.search(said) or (asking and _UNKNOWN.search(said)))


def _told(batch: list[Event], attempt: _Try, *, begun: bool) -> list[Event]:
    """A batch with the losses of its attempt; without a second beginning."""
    first, last = batch[0], batch[-1]
    if begun and attempt.losses and isinstance(last, Finished):
        batch = [*batch[:-1], replace(last, losses=(*last.losses, *attempt.losses))]
    if not isinstance(first, Started):
        return batch
    if begun:
        return batch[1:]
    losses = first.losses
    if attempt.asking:
        losses = tuple(loss for loss in losses if loss.field != ASKING)
    return [replace(first, losses=(*losses, *attempt.losses)), *batch[1:]]
