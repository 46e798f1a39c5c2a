"""Several servers on one PostgreSQL: what one of them runs, any other can read, resume and stop."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest

from dragoman.core.event import Event
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.request import Request
from dragoman.stores.postgres import PostgresStore
from tests.postgres import Postgres
from tests.product import dragoman
from tests.samples import samples
from tests.server.state.storing import Server, storing
from tests.server.state.test_crash import asked, ended, frames, identity, number, read, replayed
from tests.server.state.test_crash import opened as opened_at
from tests.server.stubs import Stub, saying

AT_ONCE = 20
"""Clients that work at the same time."""


class Parrot(Stub):
    """Says what it is asked, word by word; what begins with "wait" it never ends."""

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        text = request.items[-1].text
        *events, last = saying(*(f"{word} " for word in text.split()))
        for event in events:
            yield event
            await asyncio.sleep(0.001)
        if text.startswith("wait"):
            await asyncio.Event().wait()
        yield last


def said(text: str) -> str:
    return "".join(f"{word} " for word in text.split())


@pytest.fixture
async def servers(postgres: Postgres, tmp_path) -> AsyncIterator[list[Server]]:
    async with AsyncExitStack() as stack:
        stores = [PostgresStore(postgres.address, schema=tmp_path.name) for _ in range(3)]
        opening = [storing(Parrot(), store, lease=20.0) for store in stores]
        yield [await stack.enter_async_context(server) for server in opening]


class Client:
    """One client, whose every word goes to a server other than the one that runs its answer."""

    def __init__(self, servers: list[Server], number: int) -> None:
        self.number = number
        self._random = random.Random(number)
        self._sdks = [server.sdk.responses for server in servers]
        self._random.shuffle(self._sdks)
        self.text = " ".join(f"word{number}x{place}" for place in range(self._random.randint(1, 9)))

    async def work(self) -> None:
        """One operation of several kinds, and whether its answers are right."""
        kinds = (self.resume, self.read, self.cancel, self.chain, self.delete)
        await kinds[self.number % len(kinds)]()

    async def resume(self) -> None:
        here, there, third = self._sdks
        stream = await here.create(model="m", input=self.text, background=True, stream=True)
        seen: list[Any] = []
        cut = self._random.randint(1, 6)
        async for event in stream:
            seen.append(event.to_dict())
            if len(seen) == cut:
                break
        await stream.close()
        id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        rest = await there.retrieve(id, stream=True, starting_after=last)
        seen += [event.to_dict() async for event in rest]
        whole = await third.retrieve(id, stream=True)
        assert seen == [event.to_dict() async for event in whole]
        assert seen[-1]["type"] == "response.completed"
        assert (await there.retrieve(id)).output_text == said(self.text)

    async def read(self) -> None:
        here, there, third = self._sdks
        answer = await here.create(model="m", input=self.text, background=True)
        assert answer.status == "queued"
        async for event in await there.retrieve(answer.id, stream=True):
            last = event.type
        assert last == "response.completed"
        assert (await third.retrieve(answer.id)).output_text == said(self.text)

    async def cancel(self) -> None:
        here, there, third = self._sdks
        answer = await here.create(model="m", input=f"wait {self.text}", background=True)
        for server in (there, third, here):
            assert (await server.cancel(answer.id)).status == "cancelled"
        assert (await third.retrieve(answer.id)).status == "cancelled"

    async def chain(self) -> None:
        here, there, third = self._sdks
        first = await here.create(model="m", input=self.text)
        again = await there.retrieve(first.id)
        assert again.to_dict() == first.to_dict()
        second = await there.create(model="m", input="more", previous_response_id=first.id)
        items = await third.input_items.list(second.id, order="asc")
        assert [item.content[0].text for item in items.data] == [
            self.text,
            said(self.text),
            "more",
        ]

    async def delete(self) -> None:
        here, there, third = self._sdks
        answer = await here.create(model="m", input=self.text)
        await there.delete(answer.id)
        for server in self._sdks:
            with pytest.raises(openai.NotFoundError):
                await server.retrieve(answer.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await third.create(model="m", input="more", previous_response_id=answer.id)
        assert caught.value.code == "previous_response_not_found"


@pytest.mark.timeout(600)
@pytest.mark.uncounted
async def test_p21_any_server_answers_for_every_other_under_load(servers: list[Server]) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with turns:
            await Client(servers, number).work()

    async with asyncio.TaskGroup() as clients:
        for number in range(samples(50, 1_000)):
            clients.create_task(one(number))


@pytest.mark.timeout(300)
async def test_p22_stream_resumes_on_another_server_after_a_kill(
    postgres: Postgres, tmp_path
) -> None:
    address = await postgres.database()
    file = tmp_path / "dragoman.toml"
    # So long that neither takes the other for dead where it was only stopped for a while.
    file.write_text(f'[server]\nstore = "{address}"\nlease = 5\n')
    words = ("script", "--config", str(file))
    await asyncio.to_thread(_kill_and_go_on, words)


def _kill_and_go_on(words: tuple[str, ...]) -> None:
    with dragoman(*words) as first, dragoman(*words) as second:
        body = {**asked(background=True), "input": "Count to 100."}
        with opened_at(first, "/v1/responses", body) as response:
            stream = frames(response)
            seen = [next(stream) for _ in range(10)]
        path = f"/v1/responses/{identity(seen[0])}?stream=true"
        whole = seen + replayed(second, f"{path}&starting_after={number(seen[-1])}")
        assert whole == replayed(second, path)
        assert whole[-2].startswith(b"event: response.completed")
        with opened_at(first, "/v1/responses", asked(background=True)) as response:
            stopped = identity(next(frames(response)))
        cancelled = read(second, f"/v1/responses/{stopped}/cancel", {})
        assert cancelled["status"] == "cancelled"
        with opened_at(first, "/v1/responses", asked(background=True)) as response:
            lost = identity(next(frames(response)))
            first.process.kill()
            first.process.wait()
        assert ended(second, lost)["status"] == "failed"
        assert whole == replayed(second, path)
