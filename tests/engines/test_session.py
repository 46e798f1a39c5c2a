"""Sessions over engines of turns, with and without a voice; and those of other servers."""

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request as WebSocketRequest
from websockets.http11 import Response as WebSocketResponse

from dragoman.client.conversation import Conversation
from dragoman.client.duplex import text_of
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta
from dragoman.core.interfaces import ANYONE
from dragoman.core.item import Audio
from dragoman.core.session_values import (
    Answer,
    Append,
    BufferCommitted,
    Cancel,
    Commit,
    Configure,
    ConversationItemDone,
    Delete,
    Refused,
    Respond,
    ResponseDone,
    SessionConfig,
    SessionEvent,
    SessionLimits,
    SessionUpdated,
    Transcription,
    TranscriptionCompleted,
    TranscriptionFailed,
    TurnDetection,
)
from dragoman.engines.remote_session import RemoteSession, session_url
from dragoman.engines.session import TurnSession
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.engines.voices import LOUD, QUIET, Voice
from tests.server.socket.test_realtime import Voiced
from tests.server.stubs import OPENING, Stub, saying, served, word


class Events(list[SessionEvent]):
    """A sink that can be waited on."""

    fault: Fault | None = None

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    def receive(self, events: list[SessionEvent]) -> None:
        self.extend(events)
        self.changed.set()

    def ended(self, fault: Fault) -> None:
        self.fault = fault
        self.changed.set()

    async def until(self, kind: type, count: int = 1) -> Any:
        async with asyncio.timeout(10):
            while len(found := [event for event in self if isinstance(event, kind)]) < count:
                self.changed.clear()
                await self.changed.wait()
        return found[-1]


@asynccontextmanager
async def opened(
    engine: Any = None,
    voice: Voice | None = None,
    limits: SessionLimits | None = None,
    **config: Any,
) -> AsyncIterator[tuple[TurnSession, Events]]:
    events = Events()
    asked = SessionConfig(model="stub", **config)
    session = TurnSession(
        engine or Stub(), asked, ANYONE, events, voice, *([limits] if limits else [])
    )
    await session.open()
    try:
        yield session, events
    finally:
        await session.close()


def speech(events: Events) -> tuple[str, bytes]:
    """What was said, and its sound."""
    from base64 import b64decode

    deltas = [
        event.event
        for event in events
        if isinstance(event, Answer) and isinstance(event.event, Delta)
    ]
    text = "".join(delta.data for delta in deltas if delta.kind != "audio")
    return text, b"".join(b64decode(delta.data) for delta in deltas if delta.kind == "audio")


async def test_a_spoken_turn_is_detected_transcribed_answered_and_spoken() -> None:
    engine, voice = Stub(*saying("Fine, ", "thanks")), Voice()
    told = Transcription(model="w", language="en")
    async with opened(engine, voice, transcription=told) as (session, events):
        await session.drain()
        for _ in range(3):
            session.send(Append(audio=QUIET * 100 + LOUD * 200 + QUIET * 10))
            break
        completed = await events.until(TranscriptionCompleted)
        assert completed.transcript == "Good day."
        assert completed.seconds == 0.2
        done = await events.until(ResponseDone)
    assert voice.heard == [LOUD * 200]
    assert voice.options == [told]
    (request, _) = engine.asked[0]
    assert [item.text for item in request.items] == ["Good day."]
    assert request.modalities == ("text", "audio")
    assert done.response.status == "completed"
    assert speech(events) == ("Fine, thanks", LOUD * 12)


async def test_speech_interrupts_the_answer_and_the_engine() -> None:
    engine, voice = Stub(*OPENING, word("Well"), asyncio.Event()), Voice()
    async with opened(engine, voice) as (session, events):
        session.send(Respond())
        while not speech(events)[1]:
            await asyncio.sleep(0)
        session.send(Append(audio=LOUD * 50))
        done = await events.until(ResponseDone)
        assert (done.response.status, done.response.reason) == ("cancelled", "turn_detected")
        await asyncio.wait_for(engine.cancelled.wait(), 5)


async def test_a_failed_transcription_fails_the_turn_and_not_the_session() -> None:
    voice = Voice()
    told = Transcription(model="w")
    async with opened(Stub(), voice, transcription=told) as (session, events):
        for number, problem in enumerate(
            (FaultError(Fault("unsupported", "No ears.", "server")), RuntimeError("secret")), 1
        ):
            voice.words = ["Goo", problem]
            session.send(Append(audio=LOUD * 200 + QUIET))
            failed = await events.until(TranscriptionFailed, number)
            assert "secret" not in failed.fault.message
            done = await events.until(ResponseDone, number)
            assert done.response.fault == failed.fault


async def test_a_detector_is_made_for_each_configuration_and_reset_by_commits() -> None:
    voice = Voice(transcribes=False)
    async with opened(None, voice) as (session, events):
        session.send(Append(audio=QUIET * 300))
        session.send(Commit())
        assert [ears.resets for ears in voice.ears] == [1]
        session.send(Configure(changes={"turn_detection": TurnDetection(threshold=0.9)}))
        session.send(Append(audio=QUIET * 100 + LOUD * 100 + QUIET))
        assert len(voice.ears) == 2
        done = await events.until(ResponseDone)
        started = [event for event in events if type(event).__name__ == "BufferSpeechStarted"]
        assert started[0].audio_start_ms == 400
        assert done.response.status == "completed"
        session.send(Configure(changes={"turn_detection": None}))
        session.send(Append(audio=LOUD * 100))
        assert len(voice.ears) == 2


async def test_telephones_are_spoken_to_in_g711() -> None:
    engine, voice = Stub(*saying("ab")), Voice()
    async with opened(engine, voice, input_format="pcmu", output_format="pcma") as (
        session,
        events,
    ):
        session.send(Append(audio=b"\1" * 8 * 200))
        assert session.session.position == 200
        session.send(Respond())
        await events.until(ResponseDone)
        text, sound = speech(events)
        assert (text, len(sound)) == ("ab", 2 * 8)
        events.clear()
        session.send(Respond(changes={"output_format": "pcm16"}))  # an answer in its own format
        done = await events.until(ResponseDone)
        assert done.response.output_format == "pcm16"
        text, sound = speech(events)
        assert (text, len(sound)) == ("ab", 2 * 48)


async def test_sound_counts_while_it_is_transcribed_though_its_item_is_deleted() -> None:
    voice, ended = Voice(), asyncio.Event()
    voice.words = [ended]
    async with opened(None, voice, turn_detection=None) as (session, events):
        before = session.size
        for _ in range(3):
            session.send(Append(audio=LOUD * 1_000))
            session.send(Commit())
            item = await events.until(ConversationItemDone)
            session.send(Delete(item_id=item.item.id))
        assert session.size - before >= 3 * 48_000
        ended.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert session.size == before


async def test_without_a_voice_g711_is_refused_and_sound_goes_to_the_model() -> None:
    engine = Stub()
    async with opened(engine, turn_detection=None) as (session, events):
        session.send(Configure(changes={"output_format": "pcmu"}, event_id="e"))
        refused = await events.until(Refused)
        assert refused.event_id == "e"
        assert refused.fault.param == "session.audio.output.format"
        session.send(Configure(changes={"input_format": "pcm16"}))
        await events.until(SessionUpdated)
        session.send(Append(audio=LOUD * 100))
        session.send(Commit())
        session.send(Respond())
        await events.until(ResponseDone)
        assert session.size > 4_800
    (part,) = engine.asked[0][0].items[0].parts
    assert isinstance(part, Audio)
    assert part.format == "wav"


async def test_answers_are_paused_and_resumed_for_a_client_that_does_not_read() -> None:
    engine = Stub(*OPENING, *[word("x")] * 1_000, *saying("")[-3:])
    async with opened(engine) as (session, events):
        session.send(Respond())
        session.pause()
        session.send(Respond(conversation=False))
        await engine.begun.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert engine.said < 1_000
        assert not any(isinstance(event, ResponseDone) for event in events)
        session.resume()
        await events.until(ResponseDone, 2)


async def test_closing_a_session_ends_all_its_work() -> None:
    engine, voice = Stub(*OPENING, asyncio.Event()), Voice()
    voice.words = [asyncio.Event()]
    async with opened(engine, voice, turn_detection=None) as (session, events):
        session.send(Respond())
        await engine.begun.wait()
        session.send(Append(audio=LOUD * 100))
        session.send(Commit())
        await asyncio.sleep(0)
        count = len(events)
    assert engine.running == 0
    assert len(events) == count
    session.send(Cancel())
    assert len(events) == count


async def test_a_session_that_has_lasted_says_so_and_ends() -> None:
    async with opened(limits=SessionLimits(lifetime_ms=20)) as (_, events):
        refused = await events.until(Refused)
        assert refused.fault.code == "session_expired"
        assert events.fault is not None


# ---- sessions of other servers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "model", "url"),
    [
        ("http://h/v1/", "a b", "ws://h/v1/realtime?model=a%20b"),
        (
            "wss://h/v1/realtime?intent=transcription",
            "",
            "wss://h/v1/realtime?intent=transcription",
        ),
        ("wss://h/v1?x=1", "m", "wss://h/v1/realtime?x=1&model=m"),
    ],
)
def test_the_address_of_a_session(base, model, url) -> None:
    assert session_url(base, model) == url


@asynccontextmanager
async def upstream(engine: Any, **settings: Any) -> AsyncIterator[str]:
    app = App(engine, Settings(**settings))
    async with served(app) as port:
        yield f"ws://127.0.0.1:{port}/v1"
    await app.close()


@pytest.mark.parametrize("beta", [False, True])
async def test_a_conversation_with_a_server_in_both_dialects(beta) -> None:
    def look() -> str:
        """Looks."""
        engine.cues = saying("Good ", "day")
        return "x"

    from tests.wire.realtime.stage import calling

    engine = Stub(*calling(("c1", "look", "{}")))
    async with upstream(engine) as url:
        talk = Conversation(url, model="stub", tools=[look], key="k", beta=beta, instructions="y")
        async with talk:
            items = [item async for item in talk.full_round("Hi")]
            assert [type(item).__name__ for item in items] == [
                "FunctionCall",
                "FunctionCallOutput",
                "Message",
            ]
            assert items[-1].text == "Good day"
            assert [getattr(item, "text", "") for item in talk.history][-1] == "Good day"
            assert [tool.name for tool in talk.config.tools] == ["look"]
    assert engine.asked[0][0].instructions == "y"


async def test_a_server_that_is_lost_ends_the_conversation() -> None:
    app = App(Stub(*OPENING, asyncio.Event()), Settings())
    async with served(app) as port:
        talk = Conversation(f"ws://127.0.0.1:{port}/v1", model="stub")
        await talk.connect()
        turn = asyncio.ensure_future(talk.say("Hi"))
        await asyncio.sleep(0.1)
        await app.drain(0)
        with pytest.raises(FaultError):
            await turn
        while talk.state == "connected":
            await asyncio.sleep(0.01)
        assert talk.state == "disconnected"
        await talk.close()
    await app.close()


async def test_a_session_that_cannot_be_opened_says_why() -> None:
    events = Events()
    with pytest.raises(FaultError, match="cannot connect"):
        await RemoteSession("ws://127.0.0.1:1/v1", "m", events).open()
    with pytest.raises(FaultError, match="no WebSocket address"):
        await RemoteSession("gopher://h/v1", "m", events).open()
    for base in ("ws://user:secret-1@127.0.0.1:1/v1?key=secret-2", "gopher://user:secret-1@h/v1"):
        with pytest.raises(FaultError) as unopened:
            await RemoteSession(base, "m", events).open()
        assert "secret" not in str(unopened.value)
        assert "127.0.0.1" not in str(unopened.value)
    async with upstream(Stub()) as url:
        with pytest.raises(FaultError, match="is missing in the query") as refused:
            await RemoteSession(url, "", events).open()
        assert refused.value.fault.status == 400


async def test_a_refusal_that_quotes_the_key_does_not_show_it() -> None:
    def refuse(connection: ServerConnection, request: WebSocketRequest) -> WebSocketResponse:
        return connection.respond(401, f"No such key: {request.headers['authorization']}")

    async def never(connection: ServerConnection) -> None: ...

    async with serve(never, "127.0.0.1", 0, process_request=refuse) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(FaultError, match="No such key: Bearer") as refused:
            await RemoteSession(f"ws://127.0.0.1:{port}/v1", "m", key="key-of-ours").open()
        assert "key-of-ours" not in str(refused.value)


async def test_events_and_a_close_that_quote_the_key_do_not_show_it() -> None:
    async def quote(connection: ServerConnection) -> None:
        key = connection.request.headers["authorization"]
        error = {"type": "invalid_request_error", "message": f"No such key: {key}"}
        await connection.send(json.dumps({"type": "error", "error": error}))
        await connection.close(1008, key)

    events = Events()
    async with serve(quote, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        session = RemoteSession(f"ws://127.0.0.1:{port}/v1", "m", events, key="key-of-ours")
        await session.open()
        async with asyncio.timeout(10):
            while events.fault is None:
                await asyncio.sleep(0.001)
        await session.close()
    told = f"{events} {events.fault}"
    assert told.count("Bearer ***") == 2
    assert "key-of-ours" not in told


async def test_a_server_that_is_paused_is_not_read_and_one_that_takes_nothing_is_left() -> None:
    async with upstream(Stub(*saying("Good ", "day"))) as url:
        events = Events()
        session = RemoteSession(url, "stub", events)
        session.pause()
        await session.open()
        session.send(Respond())
        await asyncio.sleep(0.1)
        assert list(events) == []
        session.resume()
        await events.until(ResponseDone)
        await session.drain()
        session.send(Append(audio=bytes(2_000_000)))
        await session.drain()
        for _ in range(40):
            session.send_raw(bytes(2_000_000))
        assert events.fault is not None
        assert "takes nothing" in events.fault.message
        await session.close()


async def test_much_sound_at_once_is_taken_in_pieces_and_what_follows_behind_it() -> None:
    """A turn in one event is as one in many: it was cut when the detector was far behind."""
    voice = Voice()
    async with opened(None, voice, transcription=Transcription()) as (session, events):
        session.send(Append(audio=QUIET * 100 + LOUD * 5_000 + QUIET * 100 + LOUD * 4_000))
        session.send(Commit())
        assert session.session.position == 1_000
        await session.drain()
        await events.until(TranscriptionCompleted, 2)
        assert [len(heard) // 48 for heard in voice.heard] == [5_000, 4_000]
        session.send(Configure(changes={"input_format": "pcmu"}))
        session.send(Append(audio=b"\1" * 16_001))
        assert session.session.position == 9_200 + 1_000
        await session.drain()
        assert session.session.position == 9_200 + 2_000


async def test_a_session_whose_voice_fails_says_so_and_is_over() -> None:
    voice = Voice()
    async with opened(None, voice) as (session, events):
        session.send(Append(audio=QUIET))
        broken: Any = voice.ears[0]
        broken.feed = lambda audio: 1 / 0
        session.send(Append(audio=QUIET * 2_000))
        refused = await events.until(Refused)
        assert refused.fault.code == "internal"
        assert events.fault == refused.fault
        await session.drain()
        said = len(events)
        session.send(Cancel())
        assert len(events) == said


async def test_a_lost_conversation_is_reopened_with_its_items() -> None:
    """The new session is configured as the old one was, and told what was said, as text."""
    engine = Stub(*saying("Fine"))
    app = App(engine, Settings(), studio=Voiced(None, None))
    async with served(app) as port:
        address = f"ws://127.0.0.1:{port}/v1"
        talk = Conversation(address, model="stub", instructions="Be brief.")
        with pytest.raises(RuntimeError, match="not lost"):
            await talk.reconnect()
        await talk.connect()
        await talk.configure(transcription=Transcription(), turn_detection=None)
        await talk.configure(modalities=("text",))
        talk.append(LOUD * 200)
        await talk.ask(Commit(), BufferCommitted)
        await talk.say()
        await talk.say("And you?")
        engine.cues = (*OPENING, word("Well"), asyncio.Event())
        with pytest.raises(FaultError):
            async for _ in talk.stream("So?"):
                assert isinstance(talk.live, RemoteSession)
                assert talk.live._socket is not None
                await talk.live._socket.close()
        said = ["Good day.", "Fine", "And you?", "Fine", "So?"]
        assert [text for item in talk.history if (text := text_of(item))] == said
        talk._make, make = (lambda: RemoteSession("ws://127.0.0.1:1/v1", "m", talk)), talk._make
        with pytest.raises(FaultError):
            await talk.reconnect()
        assert talk.state == "disconnected"
        talk._make = make
        await talk.reconnect()
        engine.cues = saying("Yes")
        assert (await talk.say("Still there?")).text == "Yes"
        await talk.close()
    await app.close()
    request, _ = engine.asked[-1]
    assert (request.instructions, request.modalities) == ("Be brief.", None)
    assert [item.text for item in request.items] == [*said, "Still there?"]


@pytest.mark.parametrize("ends", [True, False])
async def test_a_session_that_is_over_is_let_go_at_once(ends) -> None:
    """Its sound would stay until the garbage collector looks at old objects, which is seldom."""
    engine = Stub(*saying("Fine")) if ends else Stub(*OPENING, asyncio.Event())
    gc.collect()
    gc.disable()
    try:
        async with opened(engine) as (session, events):
            session.send(Respond())
            await events.until(ResponseDone if ends else Answer)
        rest = weakref.ref(session.session)
        events.clear()
        engine.asked.clear()
        del session
        await asyncio.sleep(0)
        assert rest() is None
    finally:
        gc.enable()
