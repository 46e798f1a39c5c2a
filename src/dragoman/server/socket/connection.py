"""One WebSocket connection: frames in, turns in their lanes, frames out.

Frames without a lane are answered one after the other; those of one lane too, and lanes beside one
another. A turn that fails costs its socket nothing. Whatever is going on ends with the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, suppress

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Failed
from dragoman.core.interfaces import Caller
from dragoman.server.asgi import Receive, Send
from dragoman.server.limits import Gate
from dragoman.server.mishap import fault_of
from dragoman.server.settings import DIALECTS, Settings
from dragoman.server.watch import Roster, Watch
from dragoman.wire import body
from dragoman.wire.responses import RESPONSES

from .frames import frames, refusal
from .turn import Ask, Turns, lane_of, understood

LANES = 32
"""Lanes a connection may have going at once."""
WAITING = 32
"""Turns that may wait in one lane."""
LIFETIME = 3600.0
"""Seconds a connection may last."""

TOO_OLD = Fault(
    "connection_limit",
    "This connection has lasted its 60 minutes; open another and go on there.",
    "client",
)


class Connection:
    """Serves one client until it leaves, or its time is over."""

    def __init__(
        self,
        turns: Turns,
        caller: Caller,
        receive: Receive,
        send: Send,
        settings: Settings,
        roster: Roster,
        gate: Gate,
        trace: str,
    ) -> None:
        self._turns = turns
        self._caller = caller
        self._receive = receive
        self._send = send
        self._settings = settings
        self._roster = roster
        self._gate = gate
        self._trace = trace
        self._lanes: dict[str | None, deque[Ask]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._time = asyncio.timeout(None)
        self._stalled = False  # the client did not read in time

    async def serve(self, lifetime: float = LIFETIME) -> None:
        """Hear frames and answer them."""
        self._time = asyncio.timeout(lifetime)
        try:
            async with self._time:
                while (message := await self._receive())["type"] == "websocket.receive":
                    await self._hear(message.get("text") or message.get("bytes") or "")
        except TimeoutError:
            await self._say(refusal(TOO_OLD, None))
            await self._close()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hear(self, text: str | bytes) -> None:
        """Put what a frame asks for into its lane; say so where it makes no sense."""
        try:
            ask = understood(text)
            self._queue(ask)
        except FaultError as error:
            await self._say(refusal(error.fault, _lane(text)))

    def _queue(self, ask: Ask) -> None:
        lane = self._lanes.get(ask.lane)
        if lane is not None:
            if len(lane) >= WAITING:
                raise FaultError(_crowded(f"{WAITING} turns are waiting in this lane"))
            lane.append(ask)
            return
        if len(self._lanes) >= LANES:
            raise FaultError(_crowded(f"{LANES} lanes are going on this connection"))
        self._lanes[ask.lane] = deque([ask])
        task = asyncio.get_running_loop().create_task(self._work(ask.lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, lane: str | None) -> None:
        """Answer the turns of a lane, one after the other, until there are none."""
        queue = self._lanes[lane]
        try:
            while queue:
                await self._turn(queue.popleft())
        finally:
            del self._lanes[lane]

    async def _turn(self, ask: Ask) -> None:
        try:
            with Watch(self._roster) as watch:
                if (seconds := self._settings.deadline) is not None:
                    problem = f"There was no complete answer within {seconds:g} s."
                    watch.limit(seconds, Fault("upstream_timeout", problem, "upstream"))
                async with self._gate:
                    await self._answer(ask, watch)
        except Exception as error:
            fault = fault_of(error, self._trace, self._caller.key)
            await self._turns.failed(ask)
            await self._say(refusal(fault, ask.lane))

    async def _answer(self, ask: Ask, watch: Watch) -> None:
        plan, events = await self._turns.answer(ask)
        if plan.run is not None:
            plan.run.watch = watch
        encoder = RESPONSES.encoder(plan.echoed, DIALECTS[self._settings.dialect])
        begun = False
        async with aclosing(events) as answer:
            async for batch in answer:
                if not begun and isinstance(batch[0], Failed):
                    raise FaultError(batch[0].fault)
                begun = True
                await self._say(*frames(encoder.feed_all(batch), ask.lane))

    async def _say(self, *texts: str) -> None:
        """Send frames. One that the client does not take in time is the last: what followed it
        would follow a gap."""
        if self._stalled:
            return
        try:
            async with asyncio.timeout(self._settings.stall):
                for text in texts:
                    await self._send({"type": "websocket.send", "text": text})
        except TimeoutError:
            self._stalled = True
            with suppress(RuntimeError):  # its time is over already
                self._time.reschedule(0.0)
        except (OSError, RuntimeError):  # how hosts say that the client is gone
            pass

    async def _close(self) -> None:
        """Say goodbye to a client that listens."""
        if not self._stalled:
            with suppress(OSError, RuntimeError):
                async with asyncio.timeout(self._settings.stall):
                    await self._send({"type": "websocket.close", "code": 1000})


def _lane(text: str | bytes) -> str | None:
    """The lane of a frame that makes no sense, where at least that can be read."""
    try:
        return lane_of(body.parse(text.encode() if isinstance(text, str) else text))
    except FaultError:
        return None


def _crowded(problem: str) -> Fault:
    return Fault("rate_limited", f"Too much at once: {problem}.", "client")
