"""The Agents SDK's realtime runner, unmodified, in front of an engine that only chats."""

import asyncio
from typing import Any

from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import Stub, saying, served
from tests.wire.realtime.stage import calling


async def test_a_session_with_a_function() -> None:
    from agents import function_tool
    from agents.realtime import RealtimeAgent, RealtimeRunner

    engine = Stub(*calling(("c1", "weather", '{"city": "Oslo"}')))

    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        engine.cues = saying("It ", "rains.")
        return f"{city}: rain"

    app = App(engine, Settings())
    async with served(app) as port:
        agent: Any = RealtimeAgent(name="A", instructions="Be brief.", tools=[weather])
        model = {"url": f"ws://127.0.0.1:{port}/v1/realtime?model=stub", "api_key": "x"}
        session = await RealtimeRunner(agent).run(model_config=model)
        ended = 0
        async with session, asyncio.timeout(30):
            await session.send_message("The weather in Oslo?")
            async for event in session:
                assert event.type != "error", event
                ended += event.type == "agent_end"
                if ended == 2:
                    break
    await app.close()
    kinds = [type(item).__name__ for item in engine.asked[-1][0].items]
    assert kinds == ["Message", "FunctionCall", "FunctionCallOutput"]
    assert engine.asked[-1][0].items[-1].output == "Oslo: rain"
    assert engine.asked[0][0].instructions == "Be brief."
