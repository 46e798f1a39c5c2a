"""Conversations: what R3's behaviours became, and that none of its hangs is left."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.client import duplex
from dragoman.client.conversation import Conversation, Turn
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta, ItemDone
from dragoman.core.item import Audio, FunctionCall, FunctionCallOutput, Message, Text, Unknown
from dragoman.core.session_values import (
    Answer,
    Append,
    BufferCommitted,
    BufferSpeechStarted,
    Cancel,
    Command,
    Commit,
    Configure,
    ConversationItemAdded,
    ConversationItemDone,
    CreateItem,
    ItemDeleted,
    Refused,
    Respond,
    ResponseCreated,
    ResponseDone,
    SessionConfig,
    SessionCreated,
    SessionEvent,
    SessionResponse,
    SessionUpdated,
    Transcription,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    Truncate,
)
from tests.agent.stage import Model, call
from tests.mock import chunk, mock, stream
from tests.server.stubs import Stub, saying
from tests.wire.realtime.stage import calling

BROKE = Fault("upstream_error", "It broke.", "upstream")
SOUND = bytes(4_800)  # 100 ms
TOLD = SessionConfig(transcription=Transcription(model="w"), turn_detection=None)


class Scripted:
    """A session that does what a test says: it answers commands by rules of the test's own."""

    def __init__(self, talk: Conversation, *rules: Callable[..., Any]) -> None:
        self.talk = talk
        self.rules = rules
        self.sent: list[Command] = []
        self.closed = False
        self.config = SessionConfig(turn_detection=None)
        talk.live = self

    async def open(self) -> None:
        self.tell(SessionCreated("s", self.config))

    def tell(self, *events: SessionEvent) -> None:
        """The session says this, on its own time."""
        asyncio.get_running_loop().call_soon(self.talk.receive, list(events))

    def send(self, command: Command) -> None:
        self.sent.append(command)
        for rule in self.rules:
            if (events := rule(command)) is not None:
                self.tell(*events)
                return
        match command:
            case Configure():
                self.tell(SessionUpdated("s", self.config))
            case CreateItem(item=item):
                self.tell(ConversationItemAdded(item, None), ConversationItemDone(item, None))
            case _:
                pass

    async def drain(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.closed = True

    def of(self, kind: type) -> list[Any]:
        return [command for command in self.sent if isinstance(command, kind)]


def scripted(*rules: Callable[..., Any], **options: Any) -> tuple[Conversation, Scripted]:
    talk = Conversation(Stub(), patience=options.pop("patience", 5), **options)
    return talk, Scripted(talk, *rules)


def answer(id: str, *output: Any, status: Any = "completed", **fields: Any) -> SessionEvent:
    return ResponseDone(SessionResponse(id=id, status=status, output=output, **fields))


def begun(command: Respond, id: str) -> SessionEvent:
    return ResponseCreated(SessionResponse(id=id, metadata=command.metadata))


def said(text: str, id: str = "a1") -> Message:
    return Message("assistant", (Text(text),), id=id, status="completed")


def delta(response: str, item: str, kind: Any, data: str) -> Answer:
    return Answer(response, item, Delta(0, 0, kind, data))


def responds(*events: Any) -> Callable[[Command], Any]:
    """The rule that each answer is these events, of a response with an id of its own."""
    count = 0

    def rule(command: Command) -> Any:
        nonlocal count
        if not isinstance(command, Respond):
            return None
        count += 1
        return [begun(command, f"r{count}"), *[e(f"r{count}") for e in events]]

    return rule


GOOD = responds(lambda id: answer(id, said("Good day")))


async def collect(items: Any) -> list[Any]:
    return [item async for item in items]


# ---- over an engine ------------------------------------------------------------------------


async def test_r3_6_a_conversation_connects_configures_and_fills_in_its_history() -> None:
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"{city}: rain"

    history = [Message("system", "Be brief."), Message("user", "Hi", id="u1"), said("Hello")]
    engine = Stub(*saying("Good ", "day"))
    talk = Conversation(engine, model="stub", tools=[weather], history=history, instructions="x")
    async with talk:
        assert talk.state == "connected"
        assert talk.config.instructions == "x"
        assert [tool.name for tool in talk.config.tools] == ["weather"]
        assert [item.text for item in talk.history] == ["Be brief.", "Hi", "Hello"]
        with pytest.raises(RuntimeError, match="connects once"):
            await talk.connect()
        turn = await talk.say("And now?")
    assert turn.text == "Good day"
    assert talk.state == "closed"
    assert [item.text for item in talk.history][-2:] == ["And now?", "Good day"]
    assert [item.text for item in engine.asked[0][0].items] == [
        "Be brief.",
        "Hi",
        "Hello",
        "And now?",
    ]


async def test_a_key_is_for_the_server_at_an_address_and_for_nothing_else() -> None:
    reply = stream(chunk({"content": "Hi"}), chunk({}, "stop"))
    async with mock(reply) as server, Conversation(server.base_url, model="m", key="k1") as talk:
        assert (await talk.say("Hello!")).text == "Hi"
    assert server.asked[-1].headers["authorization"] == "Bearer k1"
    with pytest.raises(ValueError, match="pocket has no option key"):
        Conversation("pocket", key="k1")
    wrong: Any = 3
    async with Conversation(Stub(), model="stub") as talk:
        with pytest.raises(TypeError, match=r"texts and items \(Message, …\), and not int"):
            await talk.say(wrong)


async def test_r3_9_r3_10_a_turn_has_its_text_calls_and_usage() -> None:
    async with Conversation(Stub(*calling(("c1", "f", "{}"))), model="stub") as talk:
        turn = await talk.say("Hi")
    assert [call.name for call in turn.calls] == ["f"]
    assert (turn.usage.input_tokens, turn.status) == (3, "completed")
    assert Turn(SessionResponse(id="r")).usage.total_tokens is None


async def test_r3_11_a_stream_gives_pieces_and_one_that_is_left_is_cancelled() -> None:
    engine = Stub(*saying("Good ", "day"))
    async with Conversation(engine, model="stub") as talk:
        assert await collect(talk.stream("Hi")) == ["Good ", "day"]
        engine.cues = (*saying("Good ")[:4], asyncio.Event())
        stream = talk.stream("Hi")
        assert await anext(stream) == "Good "
        await stream.aclose()
        await asyncio.wait_for(engine.cancelled.wait(), 5)
        engine.cues = (RuntimeError("x"),)
        with pytest.raises(FaultError, match="The engine failed"):
            await collect(talk.stream("Hi"))
        with pytest.raises(FaultError, match="The engine failed"):
            await talk.say("Hi")
        talk.interrupt()  # nothing to be interrupted


async def test_after_a_stream_that_was_left_the_next_turn_is_answered() -> None:
    engine = Stub(*saying("Good ")[:4], asyncio.Event())
    async with Conversation(engine, model="stub") as talk:
        async for _ in talk.stream("Hi"):
            break
        engine.cues = saying("day")
        assert (await talk.say()).text == "day"
        engine.cues = (*saying("Good ")[:4], asyncio.Event())
        stream = talk.stream("Hi")
        assert await anext(stream) == "Good "
        talk.interrupt()
        engine.cues = saying("night")
        assert (await talk.say("Hi")).text == "night"
        assert await collect(stream) == []


async def test_unknown_settings_and_values_of_other_types_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"no setting 'modle'; did you mean model\?"):
        Conversation("script", modle="m")
    async with Conversation("script", model="script") as talk:
        with pytest.raises(TypeError, match=r"^temperature: Expected"):
            await talk.configure(temperature="hot")
        with pytest.raises(TypeError, match="no setting 'voise'"):
            await talk.say("Hi", voise="x")
        assert (await talk.say("Count to two.")).text == "1, 2."


async def test_without_a_model_the_first_listed_is_asked() -> None:
    engine = Stub(*saying("day"))
    async with Conversation(engine) as talk:
        assert (await talk.say("Hi")).text == "day"
    assert engine.asked[-1][0].model == "stub"


async def test_r3_12_a_round_runs_calls_at_once_and_asks_once_for_the_next_answer() -> None:
    together = asyncio.Barrier(2)
    engine = Stub(*calling(("c1", "look", '{"n": 1}'), ("c2", "look", '{"n": 2}')))

    async def look(n: int) -> int:
        """Looks."""
        await together.wait()
        if n == 2:
            engine.cues = saying("Done")
        return n

    async with Conversation(engine, model="stub", tools=[look]) as talk:
        items = await collect(talk.full_round("Go"))
    kinds = [type(item).__name__ for item in items]
    assert kinds == ["FunctionCall", "FunctionCall", *["FunctionCallOutput"] * 2, "Message"]
    assert [item.output for item in items[2:4]] == ["1", "2"]
    assert len(engine.asked) == 2


async def test_r3_12_a_round_ends_by_its_limit_and_by_a_tool_that_says_so() -> None:
    engine = Stub(*calling(("c1", "look", "{}")))

    def look() -> str:
        """Looks."""
        return "x"

    async with Conversation(engine, model="stub", tools=[look]) as talk:
        await collect(talk.full_round("Go", rounds=2))
    choices = [request.tool_choice for request, _ in engine.asked]
    assert choices == ["auto", "auto", "none"]

    from dragoman import tool

    engine = Stub(*calling(("c1", "stop", "{}")))
    stop = tool(lambda: "x", name="stop", description="", after="user")
    async with Conversation(engine, model="stub", tools=[stop]) as talk:
        items = await collect(talk.full_round("Go"))
        assert isinstance(items[-1], FunctionCallOutput)
        assert isinstance(talk.history[-1], FunctionCallOutput)
    assert len(engine.asked) == 1


# ---- every wait ends -------------------------------------------------------------------------


async def test_r3_w1_a_turn_without_usage_is_a_turn() -> None:
    """R3's completion failed on every response, and hung on one whose usage was null."""
    for status in ("cancelled", "incomplete", "completed"):
        talk, _ = scripted(
            responds(lambda id, status=status: answer(id, said("x"), status=status, usage=None))
        )
        async with talk:
            assert (await talk.say("Hi")).status == status


async def test_r3_w2_the_end_of_another_answer_ends_nothing_of_ours() -> None:
    talk, _ = scripted(
        responds(
            lambda id: answer("foreign", said("wrong", "a9")),
            lambda id: delta("foreign", "a9", "text", "wrong"),
            lambda id: delta(id, "a1", "text", "right"),
            lambda id: answer(id, said("right")),
        )
    )
    async with talk:
        assert await collect(talk.stream("Hi")) == ["right"]


async def test_r3_w3_an_error_event_ends_the_wait_it_is_about() -> None:
    def refuse(command: Command) -> Any:
        if isinstance(command, Respond | CreateItem):
            return [Refused(BROKE, "another's"), Refused(BROKE, command.event_id)]
        return None

    talk, _ = scripted(refuse)
    async with talk:
        with pytest.raises(FaultError, match="It broke"):
            await talk.say()
        with pytest.raises(FaultError, match="It broke"):
            await talk.add("Hi")
    talk, session = scripted(lambda c: [Refused(BROKE)] if isinstance(c, Configure) else None)
    with pytest.raises(FaultError, match="It broke"):
        await talk.connect()
    assert session.closed
    assert talk.errors == [BROKE]


async def test_r3_w4_a_lost_session_ends_every_wait_and_stream() -> None:
    talk, session = scripted(responds())
    await talk.connect()
    turn = asyncio.ensure_future(talk.say())
    speeches = asyncio.ensure_future(collect(talk.full_duplex(forever())))
    await asyncio.sleep(0)
    while not session.of(Respond):
        await asyncio.sleep(0)
    talk.ended(BROKE)
    for waiting in (turn, speeches):
        with pytest.raises(FaultError, match="It broke"):
            await waiting
    assert talk.state == "disconnected"
    with pytest.raises(FaultError, match="It broke"):
        await talk.say("Hi")
    await talk.close()


async def test_r3_w5_silence_ends_a_wait() -> None:
    talk, _ = scripted(patience=0.05)
    async with talk:
        with pytest.raises(FaultError, match="sent nothing for"):
            await talk.say("Hi")


async def test_r3_w6_a_cancelled_behind_a_completed_is_dropped() -> None:
    talk, _ = scripted(
        responds(
            lambda id: answer(id, said("x")),
            lambda id: answer(id, said("late"), status="cancelled"),
        )
    )
    async with talk:
        turns = [await talk.say("Hi"), await talk.say("Hi")]
        assert [turn.text for turn in turns] == ["x", "x"]


async def test_r3_5_r3_w7_waits_match_their_own_item() -> None:
    other = Message("user", "other", id="other")

    def create(command: Command) -> Any:
        if not isinstance(command, CreateItem):
            return None
        return [
            ConversationItemAdded(other, None),
            ConversationItemAdded(command.item, "other"),
        ]

    talk, _ = scripted(create)
    async with talk:
        added = await talk.add("mine")
        assert isinstance(added, Message)
        assert added.text == "mine"
        assert [item.text for item in talk.history] == ["other", "mine"]


async def test_r3_4_r3_7_history_follows_the_session_and_can_be_read_at_any_time() -> None:
    talk, session = scripted()
    spoken = Message("user", (Audio(None, "pcm16"),), id="u2")
    async with talk:
        session.talk.receive(
            [
                ConversationItemAdded(Message("user", "b", id="b"), None),
                ConversationItemAdded(Message("user", "a", id="a"), None),
                ConversationItemAdded(Message("user", "c", id="c"), "a"),
                ConversationItemAdded(Message("user", "z", id="z"), "unknown"),
                ConversationItemDone(Message("user", "C", id="c"), "a"),
                ConversationItemAdded(Message("user", "b", id="b"), None),
                ItemDeleted("b"),
                ConversationItemAdded(spoken, "z"),
                TranscriptionCompleted("u2", 0, " Hello. "),
                TranscriptionCompleted("c", 0, "?"),
                ConversationItemDone(spoken, "z"),
                ConversationItemAdded(Unknown("realtime", "x", {}, "x"), "u2"),
                ConversationItemDone(Unknown("realtime", "x", {}, "x"), "u2"),
            ]
        )
        texts = [getattr(item, "text", "") for item in talk.history]
        assert texts == ["a", "C", "z", "", ""]
        (part,) = talk.history[3].parts
        assert part == Audio(None, "pcm16", "Hello.")


async def test_the_answers_sound_is_played() -> None:
    sound = b64encode(SOUND).decode()
    talk, _ = scripted(
        responds(lambda id: delta(id, "a1", "audio", sound), lambda id: answer(id, said("x")))
    )
    played: list[bytes] = []
    async with talk:
        await talk.say("Hi", play=played.append)
    assert played == [SOUND]


# ---- full duplex ------------------------------------------------------------------------------


async def forever() -> AsyncIterator[bytes]:
    while True:
        yield SOUND
        await asyncio.sleep(0.01)


async def sounds(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield SOUND


HEARD = Message("user", (Audio(None, "pcm16"),), id="u1", status="completed")


def commits(*events: SessionEvent) -> Callable[[Command], Any]:
    """The rule that what is committed becomes the item u1, and then this."""

    def rule(command: Command) -> Any:
        if not isinstance(command, Commit):
            return None
        whole = [ConversationItemAdded(HEARD, None), ConversationItemDone(HEARD, None)]
        return [BufferCommitted("u1"), *whole, *events]

    return rule


SPEAKS = responds(
    lambda id: ConversationItemAdded(replace(said(""), content=(), id=f"a_{id}"), None),
    lambda id: delta(id, f"a_{id}", "transcript", "Good "),
    lambda id: delta(id, f"a_{id}", "audio", b64encode(SOUND).decode()),
    lambda id: answer(id, Message("assistant", (Audio(None, "pcm16", "Good day"),), id=f"a_{id}")),
)


async def test_r3_13_a_stream_for_each_message_of_both_sides() -> None:
    told = [
        TranscriptionDelta("u1", 0, "Hel"),
        TranscriptionCompleted("u1", 0, "Hello. "),
    ]
    talk, session = scripted(commits(*told), SPEAKS)
    session.config = TOLD
    played: list[bytes] = []
    async with talk:
        speeches = await collect(talk.full_duplex(sounds(3), played.append))
    assert [(speech.role, await speech) for speech in speeches] == [
        ("user", "Hello."),
        ("assistant", "Good day"),
    ]
    assert await collect(speeches[1]) == ["Good day"]
    assert played == [SOUND]
    assert len(session.of(Append)) == 3
    assert len(session.of(Respond)) == 1


async def test_silence_without_speech_is_no_turn_with_a_detector() -> None:
    talk, session = scripted(commits(), SPEAKS)
    session.config = SessionConfig()
    async with talk:
        assert await collect(talk.full_duplex(sounds(3))) == []
    assert session.of(Commit) == []


async def test_r3_w8_a_transcription_that_fails_or_is_off_ends_the_users_stream() -> None:
    talk, session = scripted(commits(TranscriptionFailed("u1", 0, BROKE)), SPEAKS)
    session.config = TOLD
    async with talk:
        user, _ = await collect(talk.full_duplex(sounds(1)))
        assert await user == ""
        assert user.fault == BROKE
    talk, session = scripted(commits(), SPEAKS)
    async with talk:
        user, _ = await collect(talk.full_duplex(sounds(1)))
        assert (await user, user.fault) == ("", None)
    talk, session = scripted(commits(ItemDeleted("u1")), SPEAKS)
    session.config = TOLD
    async with talk:
        user, _ = await collect(talk.full_duplex(sounds(1)))
        assert await user == ""


async def test_a_model_that_only_calls_is_asked_for_an_answer_without_calls(monkeypatch) -> None:
    monkeypatch.setattr(duplex, "ROUNDS", 2)
    talk, session = scripted(commits(), responds(lambda id: answer(id, call_of(id, "nothing"))))
    async with talk, asyncio.timeout(10):
        await collect(talk.full_duplex(sounds(1)))
    asked = [command.changes.get("tool_choice") for command in session.of(Respond)]
    assert asked == [None, None, "none"]


async def test_r3_w9_a_source_or_a_sink_that_raises_is_raised() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield SOUND
        raise OSError("no microphone")

    async def mute(audio: bytes) -> None:
        raise OSError("no loudspeaker")

    talk, _ = scripted(commits(), SPEAKS)
    async with talk:
        with pytest.raises(OSError, match="microphone"):
            await collect(talk.full_duplex(broken()))
        with pytest.raises(OSError, match="loudspeaker"):
            await collect(talk.full_duplex(sounds(1), mute))


async def test_r3_w10_a_slow_loudspeaker_holds_up_nothing() -> None:
    stuck = asyncio.Event()
    talk, session = scripted(commits(), SPEAKS)

    async def slow(audio: bytes) -> None:
        await stuck.wait()

    async with talk:
        duplex = talk.full_duplex(sounds(1), slow)
        speeches = [await anext(duplex), await anext(duplex)]
        assert await speeches[1] == "Good day"  # while nothing was played
        assert (await talk.configure()) == session.config
        stuck.set()
        assert await collect(duplex) == []


def call_of(id: str, name: str) -> FunctionCall:
    return FunctionCall(id, name, "{}", id=f"f_{id}", status="completed")


async def test_r3_14_parallel_calls_run_at_once_outside_the_loop_with_one_next_answer() -> None:
    together = asyncio.Barrier(2)
    seen: list[Any] = []

    async def look() -> str:
        """Looks."""
        await together.wait()
        seen.append(await talk.configure())  # events come while tools run
        return "x"

    calls = [call_of("c1", "look"), call_of("c2", "look")]
    count = 0

    def rule(command: Command) -> Any:
        nonlocal count
        if not isinstance(command, Respond):
            return None
        count += 1
        if count == 1:
            done = [Answer("r1", call.id or "", ItemDone(0, call)) for call in calls]
            return [begun(command, "r1"), *done, answer("r1", *calls)]
        return [begun(command, "r2"), answer("r2", said("Done"))]

    talk, session = scripted(commits(), rule, tools=[look])
    async with talk:
        await collect(talk.full_duplex(sounds(1)))
    assert len(seen) == 2
    outputs = [command.item.call_id for command in session.of(CreateItem)]
    assert outputs == ["c1", "c2"]
    assert len(session.of(Respond)) == 2
    kinds = [type(command) for command in session.sent]
    assert kinds.index(CreateItem) < len(kinds) - 1 - kinds[::-1].index(Respond)


async def test_r3_14_results_wait_for_an_answer_that_is_under_way() -> None:
    """The user has spoken meanwhile: a second response.create would be refused."""

    def look() -> str:
        """Looks."""
        return "x"

    active = Fault("active_response", "It is being answered.", "client")
    count = 0

    def rule(command: Command) -> Any:
        nonlocal count
        if not isinstance(command, Respond):
            return None
        count += 1
        match count:
            case 1:
                other = ResponseCreated(SessionResponse(id="r9"))
                call = call_of("c1", "look")
                return [begun(command, "r1"), answer("r1", call), other]
            case 2:
                return [
                    ResponseCreated(SessionResponse(id="r8")),
                    Refused(active, command.event_id),
                ]
            case _:
                return [begun(command, "r3"), answer("r3", said("Done"))]

    talk, session = scripted(commits(), rule, tools=[look])
    async with talk:
        duplex = asyncio.ensure_future(collect(talk.full_duplex(sounds(1))))
        while not session.of(CreateItem):
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        assert len(session.of(Respond)) == 1
        session.tell(answer("r9"))
        while len(session.of(Respond)) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        session.tell(answer("r8"))
        await duplex
    assert len(session.of(Respond)) == 3


async def test_r3_w11_an_interruption_stops_playing_and_reports_what_was_played() -> None:
    first, stuck = asyncio.Event(), asyncio.Event()
    sound = b64encode(SOUND).decode()
    talk, session = scripted(commits())

    async def play(audio: bytes) -> None:
        if first.is_set():
            await stuck.wait()
        first.set()

    async with talk:
        duplex = asyncio.ensure_future(collect(talk.full_duplex(forever(), play)))
        item = replace(said(""), content=())
        session.tell(
            ResponseCreated(SessionResponse(id="r1")),
            ConversationItemAdded(item, None),
            *[delta("r1", "a1", "audio", sound)] * 5,
        )
        await first.wait()
        await asyncio.sleep(0.02)
        session.tell(BufferSpeechStarted("u1", 0), answer("r1", item, status="cancelled"))
        while not session.of(Truncate):
            await asyncio.sleep(0)
        session.tell(BufferSpeechStarted("u2", 0))
        await asyncio.sleep(0.02)
        duplex.cancel()
        await asyncio.gather(duplex, return_exceptions=True)
    (cut,) = session.of(Truncate)
    assert (cut.item_id, cut.content_index, cut.audio_end_ms) == ("a1", 0, 100)


async def test_r3_15_the_end_of_the_microphone_does_not_cut_the_answer() -> None:
    talk, session = scripted(commits(), responds())
    async with talk:
        duplex = asyncio.ensure_future(collect(talk.full_duplex(sounds(1))))
        while not session.of(Respond):
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        assert not duplex.done()
        session.tell(
            ConversationItemAdded(replace(said(""), content=()), "u1"),
            answer("r1", said("Late, and whole")),
        )
        assert [await speech for speech in await duplex] == ["", "Late, and whole"]


async def test_a_call_behind_the_end_of_the_microphone_is_answered() -> None:
    async with Conversation(Model(call("nothing"), "Here."), model="script") as talk:
        _, answered = await collect(talk.full_duplex(sounds(1)))
        assert await answered == "Here."


async def test_a_microphone_without_sound_asks_nothing() -> None:
    talk, session = scripted()
    async with talk:
        assert await collect(talk.full_duplex(sounds(0))) == []
    assert session.of(Respond) == []
    short = Fault("empty_buffer", "x", "client")
    talk, session = scripted(
        lambda c: [Refused(short, c.event_id)] if isinstance(c, Commit) else None
    )
    async with talk:
        assert await collect(talk.full_duplex(sounds(1))) == []
    assert session.of(Respond) == []


async def test_an_answer_under_way_can_be_interrupted() -> None:
    talk, session = scripted()
    async with talk:
        session.talk.receive([ResponseCreated(SessionResponse(id="r1"))])
        talk.interrupt()
        assert len(session.of(Cancel)) == 1
