"""Sessions of other servers, relayed: over real ports, with real clients."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dragoman.engines.remote import Remote
from dragoman.engines.router import Route, Router
from dragoman.server.log import LINES
from dragoman.server.settings import Settings
from tests.server.socket.test_realtime import PATH, RESPOND, USER, Talk, served_app
from tests.server.stubs import Stub, saying


@asynccontextmanager
async def relayed(engine: Any, dialect: Any, **settings: Any) -> AsyncIterator[int]:
    """The port of a server that relays sessions with the models of another."""
    async with served_app(engine) as (_, port):
        upstream = Remote(f"http://127.0.0.1:{port}/v1", key="k")
        route = Route(upstream, ("stub",), {"other": "stub"}, realtime=dialect)
        local = Route(Stub(*saying("local"), models=("local",)), ("local",))
        async with served_app(Router([route, local]), Settings(**settings)) as (_, front):
            yield front


@pytest.mark.parametrize("dialect", ["ga", "beta"])
@pytest.mark.parametrize("beta", [False, True])
async def test_a_session_is_relayed_between_dialects(dialect, beta) -> None:
    engine = Stub(*saying("Good ", "day"))
    headers = {"OpenAI-Beta": "realtime=v1"} if beta else {}
    async with (
        relayed(engine, dialect) as port,
        connect(f"ws://127.0.0.1:{port}{PATH}?model=other", additional_headers=headers) as socket,
    ):
        talk = Talk(socket, strict=not beta and dialect == "ga")
        if beta:
            await talk.say({"type": "session.update", "session": {"instructions": "x"}})
        await talk.say(USER, RESPOND)
        kinds = [event["type"] for event in await talk.until("response.done")]
        await talk.socket.send("{")
        assert (await talk.next())["type"] == "error"
    assert ("response.text.delta" in kinds) == beta
    assert ("response.output_text.delta" in kinds) != beta
    (request, caller) = engine.asked[0]
    assert request.model == "stub"
    assert caller.hops == 1
    assert [item.text for item in request.items] == ["Hi"]


async def test_a_client_secret_opens_a_session_that_is_relayed(capfd) -> None:
    engine = Stub()
    async with relayed(engine, "ga", request_log=True) as port, httpx2.AsyncClient() as http:
        session = {"type": "realtime", "model": "stub", "instructions": "Be brief."}
        place = f"://127.0.0.1:{port}{PATH}"
        made = await http.post(f"http{place}/client_secrets", json={"session": session})
        bearer = {"Authorization": f"Bearer {made.json()['value']}"}
        async with connect(f"ws{place}", additional_headers=bearer) as connection:
            talk = Talk(connection)
            await talk.say(RESPOND)
            await talk.until("response.done")
    assert engine.asked[0][0].instructions == "Be brief."
    LINES.wait()
    assert "SESSION /v1/realtime 101" in capfd.readouterr().err


async def test_a_client_secret_for_a_model_that_is_not_here_is_not_made() -> None:
    async with relayed(Stub(), "ga") as port, httpx2.AsyncClient() as http:
        place = f"http://127.0.0.1:{port}{PATH}"
        for name, status in (("local", 200), ("other", 200), ("nobody", 404)):
            session = {"type": "realtime", "model": name}
            made = await http.post(f"{place}/client_secrets", json={"session": session})
            assert made.status_code == status
        assert made.json()["error"]["param"] == "session.model"
        for name in ("sessions", "transcription_sessions"):
            beta = await http.post(f"{place}/{name}", json={"model": "local"})
            assert beta.status_code == 404
            assert "POST /v1/realtime/client_secrets" in beta.json()["error"]["message"]


async def test_a_session_with_a_model_of_ours_is_not_relayed() -> None:
    engine = Stub()
    async with (
        relayed(engine, "ga") as port,
        connect(f"ws://127.0.0.1:{port}{PATH}?model=local") as socket,
    ):
        talk = Talk(socket)
        await talk.say(RESPOND)
        await talk.until("response.done")
    assert engine.asked == []
    async with relayed(engine, "ga") as port:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{port}{PATH}?model=nobody"):
                pass
    assert refused.value.response.status_code == 404


@pytest.mark.parametrize("beta", [False, True])
async def test_a_session_that_its_server_ends_is_ended_and_says_why(beta) -> None:
    headers = {"OpenAI-Beta": "realtime=v1"} if beta else {}
    route = Route(Remote("http://127.0.0.1:1/v1"), ("stub",), realtime="ga")
    async with (
        served_app(Router([route])) as (_, port),
        connect(f"ws://127.0.0.1:{port}{PATH}?model=stub", additional_headers=headers) as socket,
    ):
        event = json.loads(await socket.recv())
        assert event["error"]["code"] == "upstream_unreachable"
        with pytest.raises(ConnectionClosed):
            await socket.recv()
