"""Webhooks: notifies other servers, with signatures, that a background response ended."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256

from msgspec import Struct

from dragoman.core.interfaces import VERSION
from dragoman.core.response import Response
from dragoman.engines.base import new_id
from dragoman.net.client import Client
from dragoman.net.connection import Timeouts
from dragoman.net.dial import resolve
from dragoman.net.errors import NetError
from dragoman.net.url import parse_url
from dragoman.stores.base import OutboxMessage, Record, StoreError
from dragoman.stores.sql import Store
from dragoman.wire import json
from dragoman.wire.responses.response import SNAPSHOT_PREFIX

_log = logging.getLogger("dragoman.server")

DELAYS = (5.0, 60.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0)
"""Seconds between one attempt and the next; after the last there is none."""
GONE = 410
"""The status with which a receiver refuses further attempts."""
LOOK = 1.0
"""Seconds between two polls of the outbox."""
AT_ONCE = 8
"""Concurrent messages to one receiver: a slow one blocks no other."""
PATIENCE = 30.0
"""Seconds an attempt may take."""


class Receiver(Struct, frozen=True, kw_only=True):
    """A webhook: the events and their receiver. `key` signs the messages; addresses that are not
    public must be listed in `allow`, or their network."""

    url: str
    key: bytes
    events: tuple[str, ...]
    allow: tuple[str, ...] = ()


class Webhooks:
    """All webhooks; `clock` is that of the store."""

    def __init__(self, receivers: Sequence[Receiver] = ()) -> None:
        self.receivers = {receiver.url: receiver for receiver in receivers}
        self.clock: Callable[[], float] = time.time

    def __bool__(self) -> bool:
        return bool(self.receivers)

    def messages(self, record: Record, response: Response) -> tuple[OutboxMessage, ...]:
        """The messages about the end of a background run."""
        name = f"response.{response.status}"
        wanted = [receiver for receiver in self.receivers.values() if name in receiver.events]
        return tuple(_message(receiver.url, name, record, self.clock()) for receiver in wanted)


def _message(url: str, name: str, record: Record, due: float) -> OutboxMessage:
    id, data = f"evt_{new_id()}", {"id": SNAPSHOT_PREFIX + record.id}
    event = {"id": id, "object": "event", "type": name, "created_at": int(due), "data": data}
    return OutboxMessage(id=id, target=url, body=json.dump(event), due=due, tenant=record.tenant)


def signature(key: bytes, id: str, timestamp: int, data: bytes) -> str:
    """The value of the header `webhook-signature`.

    >>> signature(b"key", "evt_1", 1_700_000_000, b"{}")
    'v1,qlxS+Rx59BdwbM0DVnBBVM2EZr7V1DuM8yaNlT+iZiY='
    """
    signed = b".".join((id.encode(), str(timestamp).encode(), data))
    return f"v1,{b64encode(hmac.digest(key, signed, sha256)).decode()}"


class Sender:
    """Sends the messages of the outbox until it is closed."""

    def __init__(self, store: Store, webhooks: Webhooks) -> None:
        self._store = store
        self._webhooks = webhooks
        self._client = Client(timeouts=Timeouts(PATIENCE, PATIENCE, PATIENCE))
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start sending, if there are webhooks."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            receivers = self._webhooks.receivers.values()
            self._tasks = [loop.create_task(self._run(receiver)) for receiver in receivers]

    async def close(self) -> None:
        """Stop; undelivered messages stay in the outbox."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _run(self, receiver: Receiver) -> None:
        """Send to one receiver, several messages at a time; the tenants take turns."""
        sending: set[asyncio.Task[None]] = set()
        last = ""
        try:
            while True:
                messages: Sequence[OutboxMessage] = ()
                if room := AT_ONCE - len(sending):
                    with suppress(StoreError):  # a failing store is tried again
                        messages = await self._take(receiver, room, last)
                for message in messages:
                    task = asyncio.get_running_loop().create_task(self._send(message, receiver))
                    sending.add(task)
                    task.add_done_callback(sending.discard)
                last = max(
                    [each.tenant for each in messages], key=lambda t: (t <= last, t), default=last
                )
                if not messages and room:
                    await asyncio.sleep(LOOK)
                elif len(sending) == AT_ONCE:
                    await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in sending:
                task.cancel()

    async def _take(self, receiver: Receiver, most: int, last: str) -> Sequence[OutboxMessage]:
        moment = await self._store.clock()
        return await self._store.take_due(receiver.url, moment, moment + 2 * PATIENCE, most, last)

    async def _send(self, message: OutboxMessage, receiver: Receiver) -> None:
        due: float | None = None
        problem, worth = await self._attempt(message, receiver)
        if worth and message.attempts <= len(DELAYS):
            due = self._store.now() + DELAYS[message.attempts - 1]
        with suppress(StoreError):  # it is sent again then: the receiver deduplicates by its id
            await self._store.settle(message.id, due)
        if problem and due is None:
            _log.warning("A webhook was given up after %d attempts: %s.", message.attempts, problem)
        elif problem and message.attempts == 1:  # the last attempt may be a day later
            _log.warning("A webhook failed, and is tried again: %s.", problem)

    async def _attempt(self, message: OutboxMessage, receiver: Receiver) -> tuple[str, bool]:
        """The problem, empty for none, and whether to retry."""
        moment = int(self._store.now())  # the receiver refuses one that is far from its own
        headers = (
            ("content-type", "application/json"),
            ("user-agent", f"dragoman/{VERSION}"),
            ("webhook-id", message.id),
            ("webhook-timestamp", str(moment)),
            ("webhook-signature", signature(receiver.key, message.id, moment, message.body)),
        )
        try:
            async with asyncio.timeout(PATIENCE):
                url = parse_url(receiver.url)
                address = await resolve(url, receiver.allow, receiver.url)
                sending = self._client.stream("POST", url, headers, message.body, address=address)
                async with sending as answer:
                    status = answer.status
        except TimeoutError:
            return f"no answer within {PATIENCE:g} s", True
        except NetError as error:
            return str(error), True
        if 200 <= status < 300:
            return "", False
        return f"the receiver answered with status {status}", status != GONE
