"""A voice in a session: turns, interruptions and what was heard, without a clock and exact."""

from __future__ import annotations

import asyncio
import random
from array import array
from base64 import b64decode
from collections.abc import Callable

import pytest

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta
from dragoman.core.interfaces import ANYONE
from dragoman.core.session_values import (
    Answer,
    Append,
    BufferSpeechStarted,
    BufferSpeechStopped,
    Configure,
    ItemRetrieved,
    ItemTruncated,
    ResponseDone,
    Retrieve,
    SessionConfig,
    SessionEvent,
    SpeechStarted,
    SpeechStopped,
    Transcription,
    TranscriptionCompleted,
    TranscriptionFailed,
    Truncate,
    TurnDetection,
)
from dragoman.core.sound import BYTES_PER_MS
from dragoman.engines.session import TurnSession
from dragoman.voice.session import SessionDetector
from dragoman.voice.speech import Piece
from dragoman.voice.studio import Studio
from tests.samples import samples
from tests.voice.fakes import MS_A_CHARACTER, Listener, Speaker, said_in, spoken
from tests.voice.test_spoken import BEGUN, ENDED, Plays, message

ANSWER = "It is sunny in Paris today. Take a hat with you, and drink enough water. Have a good day."
FRAME_MS = 20
SILENCE_MS = 400


class Client:
    """A client of a session, which has all its events."""

    def __init__(self, engine: Plays, studio: Studio, **config) -> None:
        self.events: list[SessionEvent] = []
        self._came = asyncio.Event()
        detection = config.pop("turn_detection", TurnDetection(silence_duration_ms=200))
        config = SessionConfig(
            model="m", turn_detection=detection, transcription=Transcription(), **config
        )
        self.session = TurnSession(engine, config, ANYONE, self, studio.open())

    @classmethod
    async def open(cls, engine: Plays, studio: Studio, **config) -> Client:
        client = cls(engine, studio, **config)
        await client.session.open()
        return client

    def receive(self, events: list[SessionEvent]) -> None:
        self.events += events
        self._came.set()

    def ended(self, fault: Fault) -> None:
        raise FaultError(fault)

    def hear(self, pcm: bytes) -> None:
        """Let the user's microphone have this, in frames."""
        for start in range(0, len(pcm), FRAME_MS * BYTES_PER_MS):
            piece = pcm[start : start + FRAME_MS * BYTES_PER_MS]
            self.session.send(Append(audio=piece))

    async def until(
        self, condition: Callable[[SessionEvent], bool], after: int = 0
    ) -> SessionEvent:
        while True:
            for event in self.events[after:]:
                if condition(event):
                    return event
            self._came.clear()
            await self._came.wait()

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def sound(self) -> bytes:
        """What the answers were."""
        answers = [event.event for event in self.of(Answer)]
        deltas = [e for e in answers if isinstance(e, Delta) and e.kind == "audio"]
        return b"".join(b64decode(delta.data) for delta in deltas)


def said(text: str) -> bytes:
    """A user says this, with silence around it. It is loud enough to be found."""
    silence = bytes(SILENCE_MS * BYTES_PER_MS)
    return silence + loud(text) + silence


def loud(text: str) -> bytes:
    """What `Speaker` makes of it, with a tone on top that is a voice to a detector of energy."""
    samples = array("h", spoken(text))
    return array("h", [s + 4_000 * (n // 40 % 2) for n, s in enumerate(samples)]).tobytes()


class Hears(Listener):
    """Understands what is said by `loud`."""

    async def transcribe(self, pcm, asked):
        samples = array("h", pcm)
        words = [s for n, s in enumerate(samples) if s and not n // 40 % 2]
        self.asked.append(asked)
        yield Piece("what is the weather" if words else "")


def studio(speaker: Speaker | None = None, listener: Listener | None = None) -> Studio:
    return Studio(speaker or Speaker(), listener or Hears(), "energy")


async def test_a_spoken_turn_is_transcribed_and_answered_by_voice() -> None:
    engine = Plays(BEGUN, *message(ANSWER), ENDED)
    client = await Client.open(engine, studio())
    client.hear(said("what is the weather"))
    done = await client.until(lambda event: isinstance(event, ResponseDone))
    assert done.response.status == "completed"
    (started,), (stopped,) = client.of(BufferSpeechStarted), client.of(BufferSpeechStopped)
    assert abs(started.audio_start_ms - 100) <= 40
    assert abs(stopped.audio_end_ms - (400 + 190 + 200)) <= 40
    assert client.of(TranscriptionCompleted)[0].transcript == "what is the weather"
    assert engine.asked[0].items[-1].text == "what is the weather"
    assert said_in(client.sound()) == ANSWER.replace(". ", ".")
    await client.session.close()


async def test_a_recogniser_that_fails_fails_the_transcription_and_no_more() -> None:
    class Deaf(Listener):
        async def transcribe(self, pcm, asked):
            raise FaultError(Fault("upstream_error", "deaf", "upstream"))
            yield

    client = await Client.open(Plays(BEGUN, *message("Pardon?"), ENDED), studio(listener=Deaf()))
    client.hear(said("what is it"))
    failed = await client.until(lambda event: isinstance(event, TranscriptionFailed))
    assert failed.fault.message == "deaf"
    await client.session.close()


async def test_at_any_instant_an_interruption_leaves_what_was_played() -> None:
    """The sound of a character is 10 ms: what is left of the answer ends at a word, and has all
    words that were heard; its sound ends where the client says."""
    draw = random.Random(13)
    length = MS_A_CHARACTER * len(ANSWER.replace(". ", "."))
    for instant in [1, length, *(draw.randrange(length) for _ in range(samples(8, 40)))]:
        engine = Plays(BEGUN, *message(ANSWER), ENDED, held=asyncio.Event())
        client = await Client.open(engine, studio())
        client.hear(said("what is the weather"))
        await client.until(lambda event: isinstance(event, Answer))
        while len(client.sound()) < min(instant + 200, length) * BYTES_PER_MS:
            await asyncio.sleep(0)
        mark, sound, cancelled_at = len(client.events), said("stop"), None
        for start in range(0, len(sound), FRAME_MS * BYTES_PER_MS):
            client.hear(sound[start : start + FRAME_MS * BYTES_PER_MS])
            if cancelled_at is None and client.of(ResponseDone):
                cancelled_at = start // BYTES_PER_MS + FRAME_MS
        assert cancelled_at - SILENCE_MS <= 100  # of what the user says
        done = await client.until(lambda event: isinstance(event, ResponseDone), mark)
        assert (done.response.status, done.response.reason) == ("cancelled", "turn_detected")
        (item,) = [
            event.item_id
            for event in client.events[:mark]
            if isinstance(event, Answer) and type(event.event).__name__ == "ItemAdded"
        ]
        client.session.send(Truncate(item_id=item, content_index=0, audio_end_ms=instant))
        await client.until(lambda event: isinstance(event, ItemTruncated), mark)
        client.session.send(Retrieve(item_id=item))
        kept = (await client.until(lambda event: isinstance(event, ItemRetrieved), mark)).item
        (part,) = kept.content
        sound = b64decode(part.data or "")
        assert abs(len(sound) // BYTES_PER_MS - instant) <= FRAME_MS
        left = part.transcript or ""
        assert ANSWER.startswith(left)
        spoken_then = len(left.replace(". ", ".")) * MS_A_CHARACTER
        next_word = ANSWER[len(left) :].split(" ")[0]
        assert spoken_then <= instant + FRAME_MS
        assert instant - FRAME_MS <= spoken_then + MS_A_CHARACTER * (len(next_word) + 1)
        assert engine.stopped
        await client.session.close()
    assert len(asyncio.all_tasks()) == 1


async def test_at_a_pause_an_answer_is_expected_that_is_spoken_as_the_last_one() -> None:
    speaker = Speaker()
    engine = Plays(BEGUN, *message("Good day."), ENDED)
    client = await Client.open(engine, studio(speaker), voice="nova")
    question = said("what is the weather")
    for number, modalities in enumerate([("audio",), ("text",), ("text",)]):
        client.session.send(Configure(changes={"modalities": modalities}))
        client.hear(question[: -250 * BYTES_PER_MS])
        assert len(client.of(ResponseDone)) == number
        assert len(speaker.expected) == [0, 2, 2][number]
        client.hear(question[-250 * BYTES_PER_MS :])
        while len(client.of(ResponseDone)) <= number:
            await asyncio.sleep(0)
    assert [how.voice for how in speaker.expected] == ["nova"] * 2
    await client.session.close()


async def test_an_interruption_stops_engine_and_synthesizer() -> None:
    engine = Plays(BEGUN, *message(ANSWER), ENDED, held=asyncio.Event())
    speaker = Speaker(held=asyncio.Event())
    client = await Client.open(engine, studio(speaker))
    client.hear(said("what is the weather"))
    await client.until(lambda event: bool(client.sound()))
    client.hear(said("stop")[: 700 * BYTES_PER_MS])
    await client.until(lambda event: isinstance(event, ResponseDone))
    while not (engine.stopped and speaker.stopped):
        await asyncio.sleep(0)
    await client.session.close()


# ---- semantic_vad ----------------------------------------------------------------------------


class Says(Listener):
    """Understands this, whatever it hears."""

    def __init__(self, text: str, fault: Fault | None = None) -> None:
        super().__init__()
        self.text, self.heard, self._broken = text, [], fault

    async def transcribe(self, pcm, asked):
        self.heard.append(len(pcm) // BYTES_PER_MS)
        if self._broken is not None:
            raise FaultError(self._broken)
        yield Piece(self.text)


async def pause_after(text: str | None, eagerness: str, fault: Fault | None = None) -> int:
    """How long somebody who says this is waited for, in ms."""
    listener = None if text is None else Says(text, fault)
    detection = TurnDetection(kind="semantic_vad", eagerness=eagerness)
    detector = SessionDetector(detection, Studio(None, listener, "energy").open())
    found: list[SpeechStarted | SpeechStopped] = []
    sound = bytes(400 * BYTES_PER_MS) + loud("x" * 60) + bytes(9_000 * BYTES_PER_MS)
    for start in range(0, len(sound), 960):
        found += detector.feed(sound[start : start + 960])
        for _ in range(3):
            await asyncio.sleep(0)
    assert [type(event) for event in found] == [SpeechStarted, SpeechStopped]
    if listener is not None:
        assert listener.heard == [900 + 200 - 100 + 100]
    return found[1].at_ms - 1_000


@pytest.mark.parametrize(
    ("text", "eagerness", "waited"),
    [
        ("What is the weather in Paris?", "high", 220),
        ("What is the weather in Paris?", "low", 600),
        ("I would like to", "high", 2_000),
        (None, "auto", 800),
    ],
)
async def test_semantic_vad_uses_the_transcript(text, eagerness, waited) -> None:
    assert abs(await pause_after(text, eagerness) - waited) <= 40


async def test_semantic_vad_waits_as_usual_for_what_is_not_understood() -> None:
    fault = Fault("upstream_error", "deaf", "upstream")
    assert abs(await pause_after("", "auto", fault) - 800) <= 40


async def test_semantic_vad_forgets_what_it_listened_to_with_a_reset() -> None:
    listener = Says("That is all.")
    detection = TurnDetection(kind="semantic_vad", eagerness="low")
    detector = SessionDetector(detection, Studio(None, listener, "energy").open())
    sound = bytes(400 * BYTES_PER_MS) + loud("x" * 60) + bytes(240 * BYTES_PER_MS)
    assert [type(event) for event in detector.feed(sound)] == [SpeechStarted]
    detector.reset()
    await asyncio.sleep(0)
    assert detector.feed(bytes(2_000 * BYTES_PER_MS)) == []


async def test_what_is_recognised_at_a_pause_is_one_at_a_time_and_ends_with_its_session() -> None:
    listener = Listener(held=asyncio.Event())  # a server that hangs
    client = await Client.open(Plays(), Studio(None, listener, "energy"))
    for eagerness in ("low", "high"):  # each has a detector of its own
        detection = TurnDetection(kind="semantic_vad", eagerness=eagerness)
        client.session.send(Configure(changes={"turn_detection": detection}))
        client.hear(bytes(400 * BYTES_PER_MS) + loud("x" * 60) + bytes(240 * BYTES_PER_MS))
        await asyncio.sleep(0.01)
    assert len(listener.asked) == 1
    await client.session.close()
    await asyncio.sleep(0.01)
    assert listener.stopped == 1


# ---- what is recognised early ----------------------------------------------------------------


class Quick(Says):
    quick = True


async def turn(listener: Listener, *sounds: bytes, **asked: str) -> str:
    """What a turn is understood as, whose sound comes in these pieces."""
    voice = Studio(None, listener, "energy").open()
    detector = voice.detector(TurnDetection(silence_duration_ms=400))
    sound, found = b"", []
    for each in sounds:
        sound += each
        found += detector.feed(each)
        await asyncio.sleep(0)
    (start, stop) = (event.at_ms * BYTES_PER_MS for event in found)
    pieces = voice.transcribe(sound[start:stop], Transcription(**asked))
    return "".join([text async for text in pieces])


def silence(ms: int) -> bytes:
    return bytes(ms * BYTES_PER_MS)


async def test_a_pause_is_recognised_before_the_turn_has_ended() -> None:
    listener = Quick("what is the weather")
    said = await turn(listener, silence(400), loud("x" * 60), silence(300), silence(300))
    assert said == "what is the weather"
    assert listener.heard == [100 + 200 + 600 + 200]


async def test_a_pause_in_the_middle_is_not_taken_for_the_turn() -> None:
    listener = Quick("what is the weather")
    word = loud("x" * 60)
    await turn(listener, silence(400), word, silence(300), word, silence(100), silence(500))
    assert listener.heard == [1_100, 2_000]
    await turn(listener, silence(400) + word + silence(300) + word + silence(600))
    assert listener.heard[2:] == [1_100, 2_200]  # while it recognised the first pause


@pytest.mark.parametrize(("listener", "asked"), [(Says("a"), {}), (Quick("a"), {"language": "de"})])
async def test_what_is_slow_or_asked_otherwise_is_recognised_once_the_turn_has_ended(
    listener, asked
) -> None:
    await turn(listener, silence(400), loud("x" * 60), silence(300), silence(300), **asked)
    assert listener.heard[-1] == 100 + 200 + 600 + 400


async def test_what_fails_early_is_tried_again_and_says_why() -> None:
    listener = Quick("", Fault("upstream_error", "deaf", "upstream"))
    with pytest.raises(FaultError, match="deaf"):
        await turn(listener, silence(400), loud("x" * 60), silence(300), silence(300))
    assert len(listener.heard) == 2


# ---- what is not installed, and telephones ---------------------------------------------------


async def test_a_voice_says_what_it_lacks() -> None:
    voice = Studio(None, None, "energy").open()
    assert (voice.transcribes, voice.speaks) == (False, False)
    with pytest.raises(FaultError, match=r"espeak-ng, and pip install .*voice"):
        voice.speaking(Plays())
    with pytest.raises(FaultError, match="does not understand speech"):
        await anext(voice.transcribe(b"", Transcription()))


@pytest.mark.parametrize("format", ["pcmu", "pcma"])
async def test_a_telephone_talks_to_a_session(format) -> None:
    engine = Plays(BEGUN, *message("Good day."), ENDED)
    client = await Client.open(engine, studio(), input_format=format, output_format=format)
    line = Studio(None, None, "energy").open()
    sent = line.encode(said("what is the weather"), format)
    for start in range(0, len(sent), 160):
        client.session.send(Append(audio=sent[start : start + 160]))
    await client.until(lambda event: isinstance(event, ResponseDone))
    heard = line.decode(client.sound(), format)
    assert abs(len(client.sound()) - 8 * MS_A_CHARACTER * len("Good day.")) <= 80
    assert heard
    await client.session.close()
