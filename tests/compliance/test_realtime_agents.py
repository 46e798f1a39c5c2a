"""The Agents SDK's realtime runner, unmodified, in front of an engine that only chats."""

import asyncio
from typing import Any

from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.engines.voices import LOUD, QUIET
from tests.server.socket.test_realtime import Voiced
from tests.server.stubs import OPENING, Stub, saying, served, word
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


async def test_a_spoken_turn_an_interruption_and_a_failure() -> None:
    """What the runner does where it plays: it says what was heard of an answer that is cut."""
    from agents.realtime import RealtimeAgent, RealtimeRunner

    engine = Stub(*OPENING, word("A long story"), asyncio.Event())
    app = App(engine, Settings(), studio=Voiced(None, None))
    async with served(app) as port:
        model: Any = {"url": f"ws://127.0.0.1:{port}/v1/realtime?model=stub", "api_key": "x"}
        audio = {
            "input": {"transcription": {"model": "w"}, "turn_detection": {"type": "server_vad"}}
        }
        model["initial_model_settings"] = {"audio": audio}
        session = await RealtimeRunner(RealtimeAgent(name="A")).run(model_config=model)
        async with session, asyncio.timeout(30):
            seen: dict[str, Any] = {}

            async def until(kind: str) -> None:
                async for event in session:
                    seen[event.type] = event
                    if event.type == kind:
                        break

            await session.send_audio(LOUD * 200 + QUIET * 10)
            await until("audio")
            engine.cues = saying("Fine")
            await session.send_audio(LOUD * 200 + QUIET * 10)
            await until("audio_interrupted")
            await until("agent_end")
            await until("agent_end")
            engine.cues = (RuntimeError("secret"),)
            await session.send_message("And now?")
            await until("agent_end")
            assert "error" not in seen
    await app.close()
    spoken = [item.text for item in engine.asked[1][0].items]
    assert spoken[0] == "Good day."
    assert spoken[-1] == "Good day."
