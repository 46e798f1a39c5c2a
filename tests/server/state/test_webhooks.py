"""Webhooks: signed as the official SDK checks it, tried again, sent to no address by accident."""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from dragoman.core.error import Fault
from dragoman.server.config import EVENTS, ConfigurationError, Webhook, read
from dragoman.server.settings import Settings
from dragoman.server.state import webhooks
from dragoman.server.state.service import open_memory
from dragoman.server.state.webhooks import Receiver, Sender, Webhooks
from dragoman.stores.base import OutboxMessage, StoreError
from dragoman.stores.statements import add_to
from tests.mock import Asked, Reply, mock, plain
from tests.server.state.storing import Server, opened, storing
from tests.server.stubs import OPENING, Stub

KEY = bytes(range(32))
SECRET = f"whsec_{b64encode(KEY).decode()}"
LOOPBACK = ("127.0.0.1",)


class Inbox:
    """Takes messages, and answers them with these statuses, the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses or (200,))
        self.came: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self.url = ""

    def take(self, asked: Asked) -> Reply:
        self.came.put_nowait((asked.headers, asked.body))
        status = self.statuses[0] if len(self.statuses) == 1 else self.statuses.pop(0)
        return plain(status, b"")


@asynccontextmanager
async def inbox(*statuses: int) -> AsyncIterator[Inbox]:
    box = Inbox(*statuses)
    async with mock(box.take) as up:
        box.url = f"http://127.0.0.1:{up.port}/hook"
        yield box


def telling(url: str, *events: str, allow: tuple[str, ...] = LOOPBACK) -> Webhooks:
    return Webhooks([Receiver(url=url, key=KEY, events=events or EVENTS, allow=allow)])


@pytest.fixture(autouse=True)
def _soon(monkeypatch) -> None:
    monkeypatch.setattr(webhooks, "LOOK", 0.01)
    monkeypatch.setattr(webhooks, "DELAYS", (0.0, 0.0))


async def ask(server: Server, **fields: Any) -> str:
    server.memory.begin()
    answer = await server.sdk.responses.create(
        model="stub", input="Hi", extra_body={"background": True, **fields}
    )
    return answer.id


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_sdk_verifies_and_parses_the_webhook(kind, tmp_path) -> None:
    async with (
        inbox() as box,
        storing(Stub(), opened(kind, tmp_path), webhooks=telling(box.url)) as server,
    ):
        id = await ask(server)
        headers, data = await box.came.get()
        event = server.sdk.webhooks.unwrap(data, headers, secret=SECRET)
        assert event.type == "response.completed"
        assert event.data.id == id
        assert event.id == headers["webhook-id"]
        assert event.created_at > 1_700_000_000
        with pytest.raises(openai.InvalidWebhookSignatureError):
            server.sdk.webhooks.unwrap(data + b" ", headers, secret=SECRET)
        assert (await server.sdk.responses.retrieve(id)).status == "completed"


async def test_webhook_is_signed_with_the_time_of_the_store() -> None:
    """A receiver refuses what a server sends whose own clock is far off."""
    store = opened("memory", Path())
    store.now = lambda: 1_700_000_000.0
    async with inbox() as box, storing(Stub(), store, webhooks=telling(box.url)) as server:
        await ask(server)
        headers, data = await box.came.get()
    assert headers["webhook-timestamp"] == "1700000000"
    assert json.loads(data)["created_at"] == 1_700_000_000


async def test_each_end_has_a_name_of_its_own() -> None:
    failed = Fault("overloaded", "No.", "server")
    for cues, name in (((*OPENING, failed), "failed"), ((*OPENING, 60), "cancelled")):
        async with (
            inbox() as box,
            storing(Stub(*cues), webhooks=telling(box.url)) as server,
        ):
            id = await ask(server)
            if name == "cancelled":
                await server.sdk.responses.cancel(id)
            _, data = await box.came.get()
            assert json.loads(data)["type"] == f"response.{name}"


async def test_unsubscribed_event_sends_no_webhook() -> None:
    async with inbox() as box:
        hooks = telling(box.url, "response.failed")
        async with storing(Stub(), webhooks=hooks) as server:
            await ask(server)
            await server.sdk.responses.create(model="stub", input="in the foreground")
            for run in tuple(server.memory.runs.live.values()):
                await run.finished()
            assert await server.memory.store.take_due(box.url, 2e9 * 10, 0.0) == ()


async def given_up(caplog: pytest.LogCaptureFixture) -> str:
    """What is written until a webhook is given up."""
    while "given up" not in caplog.text:
        await asyncio.sleep(0.01)
    return caplog.text


async def test_webhook_is_retried(tmp_path, caplog) -> None:
    async with inbox(503, 302, 200) as box:
        hooks = telling(box.url)
        async with storing(Stub(), webhooks=hooks) as server:
            await ask(server)
            came = [await box.came.get() for _ in range(3)]
            assert len({headers["webhook-id"] for headers, _ in came}) == 1
            assert len({data for _, data in came}) == 1
            while await server.memory.store.take_due(box.url, 0.0, 0.0):
                await asyncio.sleep(0)
            while not caplog.records:
                await asyncio.sleep(0.01)
            problem = "the receiver answered with status 503"
            (record,) = caplog.records  # the log of errors gives it time and form
            assert (record.name, record.levelname) == ("dragoman.server", "WARNING")
            assert record.getMessage() == f"A webhook failed, and is tried again: {problem}."


@pytest.mark.parametrize(("status", "attempts"), [(500, 3), (410, 1)])
async def test_webhook_is_dropped_after_its_attempts(status, attempts, caplog) -> None:
    async with inbox(status) as box, storing(Stub(), webhooks=telling(box.url)) as server:
        await ask(server)
        said = await given_up(caplog)
        assert f"after {attempts} attempts: the receiver answered with status {status}" in said
        assert box.came.qsize() == attempts
        assert await server.memory.store.take_due(box.url, 2e10, 0.0) == ()


async def test_webhook_to_a_private_address_is_not_sent(caplog) -> None:
    async with inbox() as box:
        for url in (box.url, box.url.replace("127.0.0.1", "localhost")):
            async with storing(Stub(), webhooks=telling(url, allow=())) as server:
                await ask(server)
                said = await given_up(caplog)
                assert "may not be called" in said
        assert box.came.empty()


async def test_unsent_webhook_is_sent_by_the_next_server(tmp_path) -> None:
    async with inbox() as box:
        hooks = telling(box.url)
        async with storing(Stub(), opened("sqlite", tmp_path), webhooks=hooks) as first:
            first.memory._sender.begin = lambda: None  # it dies before it can send
            id = await ask(first)
            for run in tuple(first.memory.runs.live.values()):
                await run.finished()
        assert box.came.empty()
        async with storing(Stub(), opened("sqlite", tmp_path), webhooks=hooks) as second:
            second.memory.begin()
            _, data = await box.came.get()
            assert json.loads(data)["data"]["id"] == id


async def test_webhook_is_sent_for_an_orphaned_run(tmp_path) -> None:
    async with inbox() as box:
        hooks = telling(box.url)
        first = storing(Stub(*OPENING, 60), opened("sqlite", tmp_path), lease=0.1)
        async with first as here:
            await ask(here)
            here.memory.runs._upkeep.cancel()
            store = opened("sqlite", tmp_path)
            async with storing(Stub(), store, webhooks=hooks, lease=0.1) as second:
                second.memory.begin()
                _, data = await box.came.get()
                assert json.loads(data)["type"] == "response.failed"


async def test_message_is_sent_when_its_store_works_again(monkeypatch) -> None:
    async with inbox() as box, storing(Stub(), webhooks=telling(box.url)) as server:
        store, troubles = server.memory.store, [StoreError("The disk is full."), None]
        take_due = store.take_due

        async def failing(*given: Any) -> Any:
            if troubles and (trouble := troubles.pop(0)):
                raise trouble
            return await take_due(*given)

        monkeypatch.setattr(store, "take_due", failing)
        await ask(server)
        await box.came.get()
        assert not troubles


async def test_4e_07_slow_receiver_holds_up_no_other(monkeypatch) -> None:
    monkeypatch.setattr(webhooks, "AT_ONCE", 3)
    held: list[asyncio.StreamWriter] = []
    slow = await asyncio.start_server(lambda reader, writer: held.append(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{slow.sockets[0].getsockname()[1]}/"
    async with inbox() as box, slow:
        receivers = [*telling(url).receivers.values(), *telling(box.url).receivers.values()]
        async with storing(Stub(), webhooks=Webhooks(receivers)) as server:
            for _ in range(40):
                await ask(server)
            async with asyncio.timeout(20):
                ids = [(await box.came.get())[0]["webhook-id"] for _ in range(40)]
            assert len(set(ids)) == 40
            assert 0 < len(held) <= 3
        for writer in held:
            writer.close()


async def test_webhook_of_one_key_waits_for_one_of_another_and_not_for_all(monkeypatch) -> None:
    monkeypatch.setattr(webhooks, "AT_ONCE", 2)
    async with inbox() as box, storing(Stub(), webhooks=telling(box.url)) as server:
        store = server.memory.store
        messages = [
            OutboxMessage(id=id, target=box.url, body=b"", due=time.time(), tenant=id[0])
            for id in (*(f"a{n}" for n in range(20)), "b", *(f"c{n}" for n in range(9)))
        ]
        await store._transact((), partial(add_to, 0, "", None, (), messages))
        server.memory.begin()
        async with asyncio.timeout(20):
            came = [(await box.came.get())[0]["webhook-id"] for _ in messages]
        assert sorted(came) == sorted(message.id for message in messages)
        assert came.index("b") < 6
        assert min(came.index(f"c{n}") for n in range(9)) < 6


async def test_silent_webhook_receiver_times_out(monkeypatch, caplog) -> None:
    monkeypatch.setattr(webhooks, "PATIENCE", 0.05)
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: held.append(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    sender = Sender(opened("memory", Path()), hooks := telling(url))
    receiver = hooks.receivers.get(url)
    assert receiver is not None
    letter = OutboxMessage(id="a", target=url, body=b"{}", due=0.0)
    problem, worth = await sender._attempt(letter, receiver)
    assert "0.05 s" in problem
    assert worth
    await sender.close()
    for writer in held:
        writer.close()
    server.close()


TABLE = "[[webhooks]]\nurl = '{url}'\nsecret_env = 'HOOK'\n"


def test_webhooks_are_read_from_the_file() -> None:
    text = TABLE.format(url="https://x.test/") + "events = ['response.failed']\nallow = ['::1']"
    assert read(text).webhooks == (
        Webhook(
            url="https://x.test/",
            secret_env="HOOK",
            events=("response.failed",),
            allow=("::1",),
        ),
    )
    with pytest.raises(ConfigurationError, match=r"toml:4: webhooks\[0\].events: has 'nothing'"):
        read(TABLE.format(url="https://x.test/") + "events = ['nothing']")


@pytest.mark.parametrize(
    ("url", "secret", "problem"),
    [
        ("https://x.test/", "", "HOOK should hold a secret"),
        ("https://x.test/", "plain words", "HOOK should hold a secret"),
        ("https://x.test/", "whsec_!", "HOOK should hold a secret"),
        ("ftp://x.test/", SECRET, "url cannot be used"),
    ],
)
def test_invalid_webhook_is_a_configuration_error(url, secret, problem) -> None:
    hooks = [Webhook(url=url, secret_env="HOOK")]
    with pytest.raises(ConfigurationError, match=problem) as caught:
        open_memory(Settings(store="memory"), {"HOOK": secret}, hooks)
    assert "plain" not in str(caught.value)


async def test_configured_webhooks_are_used() -> None:
    memory = open_memory(
        Settings(store="memory"), {"HOOK": SECRET}, [Webhook(url="http://x/", secret_env="HOOK")]
    )
    assert memory._sender._webhooks.receivers.get("http://x/") == Receiver(
        url="http://x/", key=KEY, events=EVENTS
    )
    await memory.close()
