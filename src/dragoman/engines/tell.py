"""Tells an answer as it comes: what arrives on a connection is decoded and said in the same turn of
the event loop, and no task waits for any of it.

That is the way of an answer with status 200. What else a server answers is left to the engine's
batches, which a task awaits and says on, and a task waits for a connection where none stands ready;
the listener sees no difference. What an answer means is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from dragoman.core.event import Event
from dragoman.core.interfaces import Listener
from dragoman.net.connection import Connection
from dragoman.net.error import DisconnectedError, NetError
from dragoman.net.http import Exchange

from .plan import ENDS, Plan

LATE_NEWS = 0.25
"""Seconds to read on after the end, for usage that comes late and to free the connection."""

Course = Callable[[Plan, Exchange], AsyncGenerator[list[Event], None]]
"""The answer to a plan, to be awaited; the exchange is where it was sent, and its head has come."""


class Told:
    """The answer to one plan, told to a listener: a `Telling`."""

    __slots__ = (
        "_course",
        "_ending",
        "_exchange",
        "_free",
        "_late",
        "_listener",
        "_loop",
        "_over",
        "_plan",
        "_reading",
        "_task",
        "_timer",
    )

    def __init__(self, plan: Plan, exchange: Exchange, listener: Listener, course: Course) -> None:
        self._plan = plan
        self._exchange = exchange
        self._listener: Listener | None = listener  # none, once it wants to hear no more
        self._course = course
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._free: asyncio.Event | None = None  # while it is held: what comes when it is not
        self._reading = False  # the head has come, and is a good one
        self._ending = False  # the wire said that it is over
        self._late: list[Event] = []  # what came after that
        self._over = False

    def begin(self, hold: float) -> Told:
        """Send it. A stream is begun after `hold` seconds, whatever the server does."""
        if not self._exchange.begin(self._came):
            self._task = self._loop.create_task(self._connect(fresh=False))
        if self._plan.stream:
            self._timer = self._loop.call_later(hold, self._guard, self._begin)
        return self

    # ---- for the listener ----------------------------------------------------------------

    def stop(self) -> None:
        """Say no more, and let go of the connection."""
        self._listener = None
        self._leave()

    def hold(self) -> None:
        """Read as little as may be."""
        if self._over or self._free is not None:
            return
        self._free = asyncio.Event()
        if self._ending:
            self._quiet()  # late news is not late while nobody reads
        if self._task is None:
            self._exchange.connection.hold()

    def go_on(self) -> None:
        """Read on."""
        if self._over or self._free is None:
            return
        self._free.set()
        self._free = None
        if self._ending:
            self._linger()
        if self._task is None:
            self._exchange.connection.go_on()

    # ---- what comes ----------------------------------------------------------------------

    def _came(self) -> None:
        """Something has come, or nothing more will."""
        try:
            if self._reading or self._is_good(self._exchange.connection):
                self._hear(self._exchange.connection)
        except Exception as error:
            self._break(error)

    def _is_good(self, connection: Connection) -> bool:
        """Whether this is the head of an answer that can be told; any other is seen to."""
        error = connection.error
        if connection.status or error is None:
            response = self._exchange.adopt()
            if response.status != 200 or response.coded:
                self._await()
                return False
            connection.ear = self._came
            self._plan.upstream.note(response)
            self._reading = True
            return True
        if isinstance(error, DisconnectedError) and error.reused and error.before_first_byte:
            # The server had closed the idle connection: it never saw the request.
            self._exchange.close()
            self._task = self._loop.create_task(self._connect(fresh=True))
        else:
            self._fail(error)
        return False

    def _hear(self, connection: Connection) -> None:
        decoder, data = self._plan.decoder, connection.take()
        events = decoder.feed(data) if data else []
        if connection.over:
            self._end(events)
        elif self._ending:
            self._late += events
        else:
            self._ending = decoder.ended
            if self._ending:
                self._linger()
            if events:
                if not self._ending:
                    self._quiet()
                self._say(events)

    def _linger(self) -> None:
        """Wait for late news, but not for long."""
        self._quiet()
        self._timer = self._loop.call_later(LATE_NEWS, self._guard, self._end, [])

    def _end(self, events: list[Event]) -> None:
        """Nothing more comes, or is waited for."""
        plan, error = self._plan, self._exchange.connection.error
        self._leave()
        if error is None or self._ending or plan.decoder.ended:
            last = plan.decoder.close()
        else:
            last = plan.broken(error)
        self._say(self._late + events + last)

    def _fail(self, error: NetError) -> None:
        """There is no answer."""
        self._leave()
        self._say(self._plan.broken(error))

    def _say(self, batch: list[Event]) -> None:
        plan = self._plan
        if batch and (plan.lowered.events is not None or isinstance(batch[-1], ENDS)):
            batch = plan.given(batch)
        if batch and self._listener is not None:
            self._listener.heard(batch)

    def _begin(self) -> None:
        """It took long enough: the answer begins, empty."""
        self._timer = None
        self._plan.turn.begin()
        self._say(self._plan.turn.take())

    def _leave(self) -> None:
        """The exchange is over, or given up."""
        if self._over:
            return
        self._over = True
        self._quiet()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._exchange.close()

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _guard(self, step: Callable[..., None], *what: object) -> None:
        """Do what no connection asks for; whoever fails, the listener learns of it."""
        try:
            step(*what)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        """The engine has failed, or its listener."""
        listener, self._listener = self._listener, None
        self._leave()
        if listener is not None:
            listener.broke(error)

    # ---- what must be awaited ------------------------------------------------------------

    async def _connect(self, *, fresh: bool) -> None:
        """Have a connection, and send the request on it."""
        try:
            await self._exchange.connect(self._came, fresh=fresh)
            self._task = None
            if self._free is not None:
                self._exchange.connection.hold()
        except NetError as error:
            self._task = None
            self._guard(self._fail, error)
        except Exception as error:
            self._task = None
            self._break(error)

    def _await(self) -> None:
        """Have it awaited, from its head on."""
        self._quiet()
        batches = self._course(self._plan, self._exchange)
        self._task = self._loop.create_task(self._pass_on(batches))

    async def _pass_on(self, batches: AsyncGenerator[list[Event], None]) -> None:
        try:
            async with aclosing(batches):
                async for batch in batches:
                    if self._free is not None:
                        await self._free.wait()
                    if self._listener is None:
                        return
                    self._listener.heard(batch)
            self._task = None
            self._leave()
        except Exception as error:
            self._task = None
            self._break(error)
