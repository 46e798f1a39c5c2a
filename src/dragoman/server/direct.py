"""An answer without a task: what the engine tells is encoded and written in the same turn of the
event loop.

It is the short way for requests that are here whole, for which nothing must be looked up or kept,
whose engine can tell its answer, on a host that takes writes without being awaited. The client sees
the same as on the long way, which stands in `answer`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from dragoman.core.error import Fault
from dragoman.core.event import Event
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller, Engine, Telling
from dragoman.engines.base import tell
from dragoman.wire.registry import Wire

from .asgi import Headers, Outlet
from .cancellation import GONE, TERMINAL, InFlight, stalled, too_late
from .exchange import Exchange, fault_of, framed, refusal
from .heartbeat import Clock
from .limits import Gate
from .settings import Settings
from .speech import Speech
from .state.service import Plan
from .whole import whole


class Direct(ABC):
    """What both kinds of answers share: they hold a place at the gate, stand on the roster, stop
    their engine when nobody is left to answer to, and end once. Engines tell it their answer."""

    __slots__ = (
        "_caller",
        "_exchange",
        "_gate",
        "_outlet",
        "_roster",
        "_settings",
        "_telling",
    )

    def __init__(
        self,
        exchange: Exchange,
        outlet: Outlet,
        caller: Caller,
        settings: Settings,
        roster: InFlight,
        gate: Gate,
    ) -> None:
        self._exchange = exchange
        self._outlet = outlet
        self._caller = caller
        self._settings = settings
        self._roster = roster
        self._gate = gate
        self._telling: Telling | None = None

    def begin(self, engine: Engine, plan: Plan) -> bool:
        """Have the engine tell its answer. False where it cannot, or not now: then nothing has
        happened."""
        if not self._gate.enter_at_once():
            return False
        telling = None
        try:
            telling = tell(engine, plan.request, self._caller, self)
        finally:
            if telling is None:
                self._gate.leave()
        if telling is None:
            return False
        self._telling = telling
        self._outlet.audience = self
        self._roster.add(self)
        if (seconds := self._settings.deadline) is not None:
            self._roster.remind(self, asyncio.get_running_loop().time() + seconds)
        return True

    def stop(self, fault: Fault) -> None:
        """End the answer for this reason, if it is not over."""
        telling = self._telling
        if telling is None:
            return
        self._leave()
        try:
            telling.stop()
            self._fail(fault)
        except Exception as error:  # whoever rings, or stops others too, is not to be disturbed
            fault_of(error, self._exchange.id, self._caller.key)
            self._exchange.abort()

    def ring(self, now: float) -> None:
        """Time is over; called by the roster."""
        self.stop(too_late(self._settings.deadline or 0))

    def gone(self) -> None:
        """The client has closed the connection."""
        self.stop(GONE)

    def heard(self, events: list[Event]) -> None:
        """What the engine says."""
        try:
            if self._telling is not None:
                self._hear(events)
        except Exception as error:
            self.broke(error)

    def broke(self, error: Exception) -> None:
        """The engine, or the saying of what it says, has failed."""
        self.stop(fault_of(error, self._exchange.id, self._caller.key))

    @abstractmethod
    def drained(self) -> None:
        """The client has read what was written."""

    @abstractmethod
    def _hear(self, events: list[Event]) -> None: ...

    @abstractmethod
    def _fail(self, fault: Fault) -> None: ...

    def _leave(self) -> None:
        """It is over, but for what is yet to be written."""
        if self._telling is not None:
            self._telling = None  # it knows its listener: a cycle
            self._outlet.audience = None
            self._roster.discard(self)
            self._gate.leave()

    def _refuse(self, fault: Fault) -> None:
        if self._exchange.opened:  # saying something else has failed
            self._exchange.abort()
        else:
            self._reply(*refusal(fault))

    def _reply(self, status: int, body: bytes, headers: Headers) -> None:
        self._outlet.start(status, self._exchange.opening(status, framed(body, headers)))
        self._outlet.put(body, more=False)


class DirectWhole(Direct):
    """An answer in one piece."""

    __slots__ = ("_fold", "_plan", "_wire")

    def __init__(
        self,
        exchange: Exchange,
        outlet: Outlet,
        caller: Caller,
        settings: Settings,
        roster: InFlight,
        gate: Gate,
        wire: Wire,
        plan: Plan,
    ) -> None:
        super().__init__(exchange, outlet, caller, settings, roster, gate)
        self._wire = wire
        self._plan = plan
        self._fold = Fold()

    def drained(self) -> None:
        """Nothing waits for it."""

    def _hear(self, events: list[Event]) -> None:
        self._fold.feed_all(events)
        if not isinstance(events[-1], TERMINAL):
            return
        body, headers = whole(self._wire, self._fold.response, self._plan, self._settings)
        self._reply(200, body, headers)
        self._leave()

    def _fail(self, fault: Fault) -> None:
        if fault is not GONE:
            self._refuse(fault)


class DirectStream(Direct):
    """An answer in events, as they come."""

    __slots__ = ("_clock", "_held", "_speech")

    def __init__(
        self,
        exchange: Exchange,
        outlet: Outlet,
        caller: Caller,
        settings: Settings,
        roster: InFlight,
        gate: Gate,
        speech: Speech,
    ) -> None:
        super().__init__(exchange, outlet, caller, settings, roster, gate)
        self._speech = speech
        self._clock = Clock(settings, self._beat, self._stall)
        self._held = False

    def begin(self, engine: Engine, plan: Plan) -> bool:
        """The same; silence is filled from now on."""
        begun = super().begin(engine, plan)
        if begun:
            self._clock.start()
        return begun

    def drained(self) -> None:
        """The engine may go on."""
        if self._held and self._telling is not None:
            self._held = False
            self._clock.sent()
            self._telling.go_on()

    def _hear(self, events: list[Event]) -> None:
        speech = self._speech
        if speech.begun:
            data = speech.say(events)
        else:
            data = speech.begin(events, opened=self._exchange.opened)
        if data or speech.over:
            self._put(data)

    def _put(self, data: bytes) -> None:
        over, outlet = self._speech.over, self._outlet
        if not self._exchange.opened:
            outlet.start(200, self._exchange.opening(200, self._speech.head))
            self._clock.opened()
        outlet.put(data, more=not over)
        if over:
            self._leave()
        elif not self._held:  # or else its client has had its time since then
            self._held = outlet.full
            self._clock.sent(all=not self._held)
            if self._held and self._telling is not None:
                self._telling.hold()

    def _leave(self) -> None:
        super()._leave()
        self._clock.stop()

    def _fail(self, fault: Fault) -> None:
        if fault is GONE:
            return
        if fault.code == "stalled":  # there is nobody who would read why
            self._exchange.abort()
        elif self._exchange.opened or self._speech.begun:
            self._put(self._speech.end(fault))
        else:
            self._refuse(fault)

    def _beat(self) -> None:
        try:
            self._put(self._speech.alive())
        except Exception as error:
            self.broke(error)

    def _stall(self) -> None:
        self.stop(stalled(self._settings.stall))
