"""Two of us in a row are as good as one, and two in a ring find out that they are."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import pytest

from dragoman.engines import discover as room
from dragoman.engines.discover import discover
from dragoman.engines.pocket import pocket
from dragoman.engines.remote import Remote
from dragoman.server.app import MAX_HOPS, App
from dragoman.server.host import Server, address, bind
from dragoman.server.settings import Settings
from tests.product import Product, dragoman
from tests.server.stubs import PATHS, Call, asking, served

WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Changes files."}


# ---- in a row --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inner() -> Iterator[Product]:
    with dragoman("script") as product:
        yield product


@pytest.fixture(scope="module", params=["auto", "responses"])
def outer(inner: Product, request) -> Iterator[Product]:
    with dragoman("--upstream", inner.base_url, "--wire", request.param) as product:
        yield product


def test_responses_only_features_pass_two_servers(inner: Product, outer: Product) -> None:
    body = {
        "model": "script",
        "input": "Please apply the patch to Readme.",
        "tools": [PATCH, {"type": "namespace", "name": "mail", "tools": []}],
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    one, two = inner.post("responses", body), outer.post("responses", body)
    assert [item["type"] for item in two.json["output"]] == ["reasoning", "custom_tool_call"]
    if "x-dragoman-loss" in two.headers:  # the line between them is Chat, and it is told
        assert "summary" in two.headers["x-dragoman-loss"]
    else:
        assert [item["type"] for item in one.json["output"]] == ["reasoning", "custom_tool_call"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_inner_one_drops_the_outer_one_reports(stream) -> None:
    body = {"verbosity": "low", "user": "me", "max_tokens": 3, "stream": stream}
    async with served(App(pocket(), Settings())) as port:
        remote = Remote(f"http://127.0.0.1:{port}/v1", wire="chat")
        app = App(remote, Settings())
        call = await Call(app, PATHS["chat"], asking("chat", model="pocket") | body)()
        assert (call.status, call.headers.get("x-dragoman-loss")) == (200, "dropped: verbosity")
        await app.close()


def test_the_models_of_one_are_the_models_of_both(inner: Product, outer: Product) -> None:
    one, two = (p.request("GET", "/v1/models").json for p in (inner, outer))
    assert one == two
    assert two["data"][0]["id"] == "script"
    missing = outer.post(
        "chat", {"model": "no-such", "messages": [{"role": "user", "content": ""}]}
    )
    assert missing.status == 404
    assert missing.json["error"]["code"] == "model_not_found"


async def test_one_knows_the_other_by_its_answers(inner: Product) -> None:
    engine = Remote(inner.base_url)
    await engine.models()
    await engine.close()
    assert engine.profile.name == "dragoman"


async def test_discovery_never_takes_one_of_us(inner: Product, outer: Product, monkeypatch) -> None:
    monkeypatch.setattr(room, "PORTS", (inner.port, outer.port))
    assert await discover({}) == ()


# ---- in a ring -------------------------------------------------------------------------------


@asynccontextmanager
async def ring(size: int, wire: str) -> AsyncIterator[str]:
    """Servers each of which is the next one's upstream; the base URL of one of them."""
    listeners = [bind(Settings(port=0), exact=True) for _ in range(size)]
    urls = [f"{address(listener)}/v1" for listener in listeners]
    async with AsyncExitStack() as stack:
        for number, listener in enumerate(listeners):
            app = App(Remote(urls[number - 1], wire=wire), Settings())
            server, ready = Server(app, Settings(), (event := asyncio.Event()).set), event
            running = asyncio.create_task(server.serve([listener]))
            stack.push_async_callback(_stop, server, running)
            await ready.wait()
        yield urls[0]


async def _stop(server: Server, running: asyncio.Task[None]) -> None:
    server.should_exit = True
    await running


@pytest.mark.parametrize("between", ["auto", "responses"])
@pytest.mark.parametrize("size", [1, 2])
async def test_loop_of_servers_is_refused(size, between) -> None:
    async with ring(size, between) as base_url, httpx2.AsyncClient(timeout=60) as client:
        host = base_url.removesuffix("/v1")
        bodies = [(wire, asking(wire, stream=stream)) for wire in PATHS for stream in (False, True)]
        posts = (client.post(host + PATHS[wire], json=body) for wire, body in bodies)
        for answer in await asyncio.gather(*posts):
            assert answer.status_code == 400
            message = answer.json()["error"]["message"]
            assert f"passed {MAX_HOPS + 1} servers like this one" in message
        listing = await client.get(f"{base_url}/models")
        assert listing.status_code == 502
        assert listing.json()["error"]["message"]
