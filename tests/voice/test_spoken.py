"""Answers that are spoken: what is said when, and what stops when somebody has heard enough."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Started,
)
from dragoman.core.fold import fold
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import Annotation, Audio, FunctionCall, Message, Refusal, Text
from dragoman.core.lifecycle import check
from dragoman.core.request import AudioOutput, Request
from dragoman.engines.base import ENDS, start, wait_closed
from dragoman.voice.spoken import FORMAT, Spoken
from tests.voice.fakes import MS_A_CHARACTER, Speaker, said_in

ASKED = Request(
    model="m",
    items=(Message("user", "Hi"),),
    modalities=("audio",),
    audio=AudioOutput("nova", extra={"realtime": {"speed": 1.5}}),
)


class Plays:
    """An engine that plays events; where `held`, all but the last until that is set."""

    def __init__(self, *events: Event, error: bool = False, held: asyncio.Event | None = None):
        self.events = events
        self.error = error
        self.held = held
        self.asked: list[Request] = []
        self.stopped = False

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        self.asked.append(request)
        self.stopped = True
        for event in self.events:
            if self.held is not None and isinstance(event, ENDS):
                await self.held.wait()
            yield event
        if self.error:
            raise ValueError("boom")
        self.stopped = False


def message(*deltas: str, index: int = 0, part: type[Text | Refusal] = Text) -> list[Event]:
    whole = "".join(deltas)
    kind = "text" if part is Text else "refusal"
    empty = Message("assistant", (), id=f"msg_{index}")
    return [
        ItemAdded(index, empty),
        PartAdded(index, 0, part("")),
        *(Delta(index, 0, kind, each) for each in deltas),
        PartDone(index, 0, part(whole)),
        ItemDone(index, Message("assistant", (part(whole),), id=f"msg_{index}")),
    ]


BEGUN, ENDED = Started("1", 0, "m"), Finished("completed")


async def heard(engine: Plays, speaker: Speaker, request: Request = ASKED) -> list[Event]:
    events = []
    async with aclosing(Spoken(engine, speaker).stream(request)) as stream:
        async for event in stream:
            events.append(event)
    check(events)
    return events


def stretches(events: list[Event]) -> list[tuple[str, str]]:
    """The text of each transcript delta, and what the sound behind it says."""
    found: list[tuple[str, bytes]] = []
    for event in events:
        match event:
            case Delta(_, _, "transcript", text):
                found.append((text, b""))
            case Delta(_, _, "audio", data):
                found[-1] = found[-1][0], found[-1][1] + b64decode(data)
    return [(text, said_in(sound)) for text, sound in found]


async def test_each_sentence_is_followed_by_its_sound() -> None:
    speaker = Speaker()
    engine = Plays(BEGUN, *message("Good **day", "**. How are", " you? ", "Bye"), ENDED)
    events = await heard(engine, speaker)
    assert stretches(events) == [
        ("Good **day**. ", "Good day."),
        ("How are you? ", "How are you?"),
        ("Bye", "Bye"),
    ]
    (item,) = fold(events).output
    (part,) = item.content
    assert (part.format, part.transcript) == (FORMAT, "Good **day**. How are you? Bye")
    assert said_in(b64decode(part.data)) == "Good day.How are you?Bye"
    assert (speaker.how[0].voice, speaker.how[0].speed) == ("nova", 1.5)
    assert engine.asked[0].modalities is None
    assert engine.asked[0].audio is None


async def test_an_event_has_a_fifth_of_a_second_of_sound_at_most() -> None:
    events = await heard(Plays(BEGUN, *message("x" * 101), ENDED), Speaker())
    sizes = [len(b64decode(e.data)) for e in events if isinstance(e, Delta) and e.kind == "audio"]
    assert sizes == [480] + [9_600] * 5  # the first is sent as it comes
    assert sum(sizes) == 48 * MS_A_CHARACTER * 101


async def test_calls_and_annotations_pass_and_refusals_are_spoken() -> None:
    call = FunctionCall("c1", "weather", "{}", id="fc_1")
    called = [
        ItemAdded(1, FunctionCall("c1", "weather", "", id="fc_1")),
        Delta(1, 0, "arguments", "{}"),
        ItemDone(1, call),
    ]
    engine = Plays(BEGUN, *message("I will not.", part=Refusal), *called, ENDED)
    engine.events = (
        *engine.events[:4],
        Delta(0, 0, "annotation", Annotation("url_citation")),
        *engine.events[4:],
    )
    events = await heard(engine, Speaker())
    assert stretches(events) == [("I will not.", "I will not.")]
    assert fold(events).output[1] == call
    kinds = dict.fromkeys(e.kind for e in events if isinstance(e, Delta))
    assert [*kinds] == ["transcript", "audio", "arguments"]


async def test_unspeakable_text_is_in_the_transcript_only() -> None:
    events = await heard(Plays(BEGUN, *message("---\n", "☀️"), ENDED), Speaker())
    assert stretches(events) == [("---\n", ""), ("☀️", "")]


async def test_a_request_without_audio_is_left_alone() -> None:
    events = [BEGUN, *message("Hi. There."), ENDED]
    engine = Plays(*events)
    request = Request(model="m", items=ASKED.items)
    assert await heard(engine, Speaker(), request) == events
    assert engine.asked[0] is request


@pytest.mark.parametrize("voice", [3, {"id": 3}])
async def test_a_voice_that_is_no_name_is_refused(voice) -> None:
    request = Request(model="m", items=ASKED.items, modalities=("audio",), audio=AudioOutput(voice))
    (event,) = await heard(Plays(), Speaker(), request)
    assert isinstance(event, Failed)
    assert event.fault.param == "voice"


async def test_a_voice_may_have_an_id() -> None:
    request = Request(
        model="m", items=ASKED.items, modalities=("audio",), audio=AudioOutput({"id": "voice_1"})
    )
    speaker = Speaker()
    await heard(Plays(BEGUN, *message("Hi."), ENDED), speaker, request)
    assert speaker.how[0].voice == "voice_1"


async def test_a_synthesizer_that_fails_fails_the_answer_and_stops_the_engine() -> None:
    fault, engine = Fault("upstream_error", "no voice"), Plays(BEGUN, *message("Hi.", " x"), ENDED)
    engine.held = asyncio.Event()
    events = await heard(engine, Speaker(fault))
    assert events[-1] == Failed(fault)
    assert engine.stopped


async def test_an_engine_that_raises_fails_the_answer() -> None:
    events = await heard(Plays(BEGUN, *message("Hi."), error=True), Speaker())
    assert isinstance(events[-1], Failed)
    assert events[-1].fault.code == "internal"
    assert stretches(events) == [("Hi.", "Hi.")]


async def test_an_engine_that_just_stops_was_cut() -> None:
    events = await heard(Plays(BEGUN, *message("Hi.")), Speaker())
    assert isinstance(events[-1], Failed)
    assert events[-1].fault.code == "upstream_cut"


async def test_an_interruption_in_a_sentence_stops_engine_and_synthesizer() -> None:
    engine = Plays(BEGUN, *message("Hello there. ", "More."), ENDED, held=asyncio.Event())
    speaker = Speaker(held=asyncio.Event())
    stream = Spoken(engine, speaker).stream(ASKED)
    events: list[Event] = []
    while len(events) < 4:
        events.append(await anext(stream))
    waiting = asyncio.ensure_future(anext(stream))  # for the end of the sentence
    while not speaker.said:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    await stream.aclose()
    assert speaker.stopped == 1
    assert engine.stopped
    assert len(asyncio.all_tasks()) == 1


async def test_an_order_keeps_its_place_from_nobody_while_its_listener_pauses() -> None:
    """Nine calls that were a minute ahead kept all others' speech waiting for 20 s."""
    speaker, sentence = Speaker(), "This is a long sentence. "
    async with aclosing(
        Spoken(Plays(BEGUN, *message(sentence), ENDED), speaker).stream(ASKED)
    ) as events:
        async for event in events:
            if isinstance(event, Delta) and event.kind == "audio":
                break
        await asyncio.sleep(0.01)  # the listener pauses
        assert speaker.made == len(sentence.strip())


async def test_an_interruption_between_events_stops_engine_and_synthesizer() -> None:
    engine = Plays(BEGUN, *message("x" * 100), ENDED, held=asyncio.Event())
    speaker = Speaker(held=asyncio.Event())
    stream = Spoken(engine, speaker).stream(ASKED)
    async for event in stream:
        if isinstance(event, Delta) and event.kind == "audio":
            break
    await stream.aclose()
    assert speaker.stopped == 1
    assert engine.stopped
    assert len(asyncio.all_tasks()) == 1


async def test_sound_of_the_model_that_was_read_ahead_is_delivered_one_piece_at_a_time() -> None:
    sound = [Delta(0, 0, "audio", "AAAA")] * 20
    begun, ended = [*message()[:1], PartAdded(0, 0, Audio())], [PartDone(0, 0, Audio())]
    together: list[int] = []

    class Counts:
        def receive(self, events: list[Event]) -> None:
            together.append(sum(isinstance(event, Delta) for event in events))

    plays = Plays(BEGUN, *begun, *sound, *ended, ItemDone(0, Message("assistant")), ENDED)
    handle = start(Spoken(plays, Speaker()), ASKED, ANYONE, Counts())
    await wait_closed(handle)
    assert sum(together) == 20
    assert max(together) == 1


async def test_sound_is_accounted_for_and_an_answer_without_room_fails() -> None:
    counted: list[int] = []
    engine, full = Plays(BEGUN, *message("Hi. "), ENDED), Fault("overloaded", "full", "server")
    async for event in Spoken(engine, Speaker()).stream(ASKED, Caller(count=counted.append)):
        last = event
    assert last == ENDED
    assert sum(counted) == 48 * MS_A_CHARACTER * 3 * 4 // 3

    def refuse(more: int) -> None:
        raise FaultError(full)

    async for event in Spoken(engine, Speaker()).stream(ASKED, Caller(count=refuse)):
        last = event
    assert last == Failed(full)
