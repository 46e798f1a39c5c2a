"""Asks upstreams for encrypted reasoning, and retries without it where a server refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.interfaces import Caller, Engine, Sink
from dragoman.core.item import Item, Reasoning
from dragoman.core.loss import Loss
from dragoman.core.request import Request

from .base import LRU, Prepared, Wrapper, start, wait_closed
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


class RetryingReasoning(Wrapper):
    """Middleware that asks once more without encrypted reasoning where a server cannot decrypt it,
    and without asking for it where a server does not know how. With `again` false, a refusal to
    decrypt stands."""

    acts_on = frozenset(("stored", "tools", Reasoning))

    def __init__(self, engine: Engine, *, again: bool = True) -> None:
        super().__init__(engine)
        self._again = again
        self._open: LRU[str, bool] = LRU(MODELS)

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Ask for what a client of Chat can neither ask for nor carry, and for what a client need
        not ask for where the answer is stored here. Whether the engine inside is asked again is
        decided at its first events."""
        wanted = caller.stored or (request.tools and caller.wire != "responses")
        asking = wanted and ENCRYPTED not in request.include and not self._open.get(request.model)
        sealed = Reasoning in map(type, request.items) and _has_sealed(request.items)
        if not (asking or (sealed and self._again)):
            return None
        first = _Try(request)
        if asking:
            include = (*request.include, ENCRYPTED)
            first = _Try(replace(request, include=include), asking=True)
        return Prepared(request, start=partial(_Attempts, self.engine, self.second, first))

    def second(self, first: _Try, batch: list[Event]) -> _Try | None:
        """What to ask where a first batch refuses something sealed; None where it does not."""
        if not isinstance(end := batch[-1], Failed) or len(batch) > 2:
            return None
        if not _is_about_seals(end.fault, asking=first.asking):
            return None
        request, losses = first.request, first.losses
        asking = first.asking
        if asking and end.fault.upstream_code != CODE:
            self._open.put(request.model, True, 1)
            include = tuple(value for value in request.include if value != ENCRYPTED)
            request, asking = replace(request, include=include), False
        if self._again and _has_sealed(request.items):
            request = replace(request, items=all_in_words(request.items))
            losses = (*losses, NOT_OPENED)
        return None if request is first.request else _Try(request, asking, losses)


class _Attempts:
    """The sink of up to two attempts, and the handle of the answer they give."""

    def __init__(
        self,
        engine: Engine,
        second: Callable[[_Try, list[Event]], _Try | None],
        first: _Try,
        caller: Caller,
        sink: Sink,
    ) -> None:
        self._engine = engine
        self._second = second
        self._try = first
        self._caller = caller
        self._sink = sink
        self._begun = False
        self._paused = False
        self.receive: Callable[[list[Event]], None] = self._receive_first
        self._handle = start(engine, first.request, caller, self)

    def cancel(self) -> None:
        """Cancel the attempt."""
        self._handle.cancel()

    def pause(self) -> None:
        """Pause the attempt, and one that follows it."""
        self._paused = True
        self._handle.pause()

    def resume(self) -> None:
        """Resume the attempt."""
        self._paused = False
        self._handle.resume()

    async def wait_closed(self) -> None:
        """Wait until the attempt has cleaned up."""
        await wait_closed(self._handle)

    def _receive_first(self, events: list[Event]) -> None:
        second = self._second(self._try, events)
        if second is None:
            if any(not isinstance(event, Started) for event in events):
                self.receive = self._sink.receive  # it is answered: nothing is left to be done
            self._begun = True
            self._sink.receive(_told(events, self._try, begun=False))
            return
        self._try = second
        self.receive = self._receive_second
        self._handle = start(self._engine, second.request, self._caller, self)
        if self._paused:
            self._handle.pause()

    def _receive_second(self, events: list[Event]) -> None:
        if given := _told(events, self._try, begun=self._begun):
            self._sink.receive(given)


def _has_sealed(items: Iterable[Item]) -> bool:
    return any(isinstance(item, Reasoning) and is_opaque(item) for item in items)


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
