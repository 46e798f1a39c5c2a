"""Responses over WebSocket as the official SDK speaks it, unmodified, over a real port."""

from typing import Any

import openai

from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.memory import MemoryStore
from tests.server.stubs import Stub, served


async def turn(connection: Any, **fields: Any) -> tuple[str, str]:
    """What was said, and the id of the response."""
    await connection.response.create(model="stub", store=False, **fields)
    said = ""
    async for event in connection:
        if event.type == "response.output_text.delta":
            said += event.delta
        elif event.type == "response.completed":
            return said, event.response.id
    raise AssertionError("the connection ended")


async def test_sdk_takes_turns_over_one_websocket() -> None:
    engine = Stub()
    app = App(engine, Settings(), Memory(MemoryStore()))
    async with (
        served(app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as sdk,
        sdk.responses.connect() as connection,
    ):
        said, first = await turn(connection, input="a")
        again, _ = await turn(connection, input="b", previous_response_id=first)
        assert said == again == "Hello, world"
        await connection.response.create(model="stub", input="c", previous_response_id="resp_no")
        error: Any = await connection.recv()
        assert (error.type, error.error.code) == ("error", "previous_response_not_found")
    assert [item.text for item in engine.asked[-1][0].items] == ["a", "Hello, world", "b"]
    await app.close()
