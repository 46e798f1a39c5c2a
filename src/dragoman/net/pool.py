"""The connections to one origin: the idle ones, how many may stand, and who waits for one.

It hands out connections and takes them back; it does not send, retry or read.
"""

import asyncio
from collections import deque

from dragoman.net.connection import Connection
from dragoman.net.dial import Dialer
from dragoman.net.error import NetTimeoutError
from dragoman.net.limits import Limits


class Pool:
    """A keep-alive pool over one Dialer.

    A place is taken from the moment a connection is dialled until it is closed, whoever
    closes it. Who waits longest is served first, with a free place or a released connection.
    """

    def __init__(self, dialer: Dialer, limits: Limits) -> None:
        self.dialer = dialer
        self._limits = limits
        self._closed = False
        self._places = limits.connections
        self._standing: set[Connection] = set()
        self._idle: list[Connection] = []  # the last one used is the first one taken
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()

    @property
    def empty(self) -> bool:
        """Whether nothing stands, is being dialled or is waited for."""
        return self._places == self._limits.connections and not self._waiting

    def take(self) -> Connection | None:
        """An idle connection, or None; never waits."""
        return self._idle.pop() if self._idle else None

    async def acquire(self, within: float | None, *, fresh: bool = False) -> Connection:
        """A connection to send on; with `fresh`, one that was never used.

        Waits at most `within` seconds for a place, and as long again for the connection.
        Raises NetTimeoutError with phase "pool", and what Dialer.dial raises.
        """
        while True:
            if self._idle and not fresh:
                return self._idle.pop()
            if self._places:
                self._places -= 1
                break
            if self._idle:
                self._idle.pop(0).abort()
                continue
            handed = await self._wait_turn(within)
            if handed is None:
                break
            if handed.usable and not fresh:
                return handed
            handed.abort()
        return await self._dial(within)

    def give_back(self, connection: Connection) -> None:
        """End the exchange on a connection and keep it, if it can serve another."""
        if not connection.release(self._limits.keep_alive):
            return
        if self._closed:
            connection.abort()
        else:
            self._offer(connection)

    def close(self) -> None:
        """Close every connection, also those in use, and keep none from now on."""
        self._closed = True
        for connection in tuple(self._standing):
            connection.abort()

    async def _dial(self, within: float | None) -> Connection:
        try:
            connection = await self.dialer.dial(within)
        except BaseException:
            self._free_place()
            raise
        self._standing.add(connection)
        connection.on_close = self._forget
        return connection

    def _forget(self, connection: Connection) -> None:
        self._standing.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._free_place()

    def _free_place(self) -> None:
        if not self._hand_over(None):
            self._places += 1

    def _offer(self, connection: Connection) -> None:
        if not (self._waiting and self._hand_over(connection)):
            self._idle.append(connection)
            if len(self._idle) > self._limits.idle_connections:
                self._idle[0].abort()

    def _hand_over(self, what: Connection | None) -> bool:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(what)
                return True
        return False

    async def _wait_turn(self, within: float | None) -> Connection | None:
        turn: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(within):
                return await turn
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            if not turn.cancelled():  # it was served in the moment it gave up
                handed = turn.result()
                if handed is None:
                    self._free_place()
                elif handed.usable:  # and not closed since, which has freed its place
                    self._offer(handed)
            if isinstance(error, TimeoutError):
                message = f"all {self._limits.connections} connections were in use for {within:g} s"
                raise NetTimeoutError(message, "pool") from None
            raise
