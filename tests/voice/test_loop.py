"""The whole loop without a network: espeak-ng speaks in noise, PocketSphinx understands, the pocket
model calls a tool, and espeak-ng says what came of it."""

import asyncio
import random
import shutil
from array import array

import pytest

from dragoman.core.item import FunctionCall, FunctionCallOutput, Message
from dragoman.core.request import FunctionTool
from dragoman.core.session_values import (
    CreateItem,
    ItemTruncated,
    Respond,
    ResponseDone,
    TranscriptionCompleted,
    Truncate,
    TurnDetection,
)
from dragoman.core.sound import BYTES_PER_MS
from dragoman.engines.local import find_target
from dragoman.voice.detection import Detector, Started, Stopped, scorer
from dragoman.voice.programs import ESpeak
from dragoman.voice.speech import Listening, Speaking
from dragoman.voice.studio import studio
from tests.server.socket.phone import calling, on_loopback
from tests.voice.test_session import Client

if shutil.which("espeak-ng") is None:
    pytest.skip("espeak-ng is not installed", allow_module_level=True)

pytestmark = pytest.mark.uncounted
NOISE = random.Random(7)
TOOL = FunctionTool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)


async def speech(text: str, level: float = 100) -> bytes:
    """Somebody says this in a room with noise."""
    how = Speaking(voice="en-us")
    pcm = b"".join([piece async for piece in ESpeak().speak(text, how)])
    silence = bytes(500 * BYTES_PER_MS)
    samples = array("h", silence + pcm + silence)
    noisy = [max(-32_768, min(int(0.6 * s + NOISE.gauss(0, level)), 32_767)) for s in samples]
    return array("h", noisy).tobytes()


async def test_utterances_in_noise_are_found_each() -> None:
    sound = await speech("Hello there.", 200) + await speech("Good morning.", 200)
    for name in ("energy", "webrtc"):
        found = Detector(scorer(name), silence_ms=300).feed(sound)
        assert [type(event) for event in found] == [Started, Stopped, Started, Stopped]


async def test_closing_what_espeak_says_ends_it_at_once() -> None:
    speaking = ESpeak().speak("This is a long text. " * 400, Speaking())
    await anext(speaking)
    await speaking.aclose()
    assert len(asyncio.all_tasks()) == 1


async def test_weather_is_asked_called_answered_and_interrupted() -> None:
    made = studio(transcription="pocketsphinx=pocket")
    client = await Client.open(
        find_target("pocket").load(),
        made,
        tools=(TOOL,),
        turn_detection=TurnDetection(silence_duration_ms=300),
    )

    def is_done(event: object) -> bool:
        return isinstance(event, ResponseDone)

    client.hear(await speech("What is the weather in Paris?"))
    asked = await client.until(is_done)
    (call,) = asked.response.output
    assert isinstance(call, FunctionCall)
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Paris"}')
    await client.until(lambda event: isinstance(event, TranscriptionCompleted))
    assert client.of(TranscriptionCompleted)[0].transcript == "What is the weather in Paris"

    mark = len(client.events)
    weather = '{"weather": "sunny", "temperature": 20}'
    client.session.send(CreateItem(item=FunctionCallOutput(call.call_id, weather)))
    client.session.send(Respond())
    told = await client.until(is_done, mark)
    (message,) = told.response.output
    assert isinstance(message, Message)
    assert message.content[0].transcript == "It is sunny in Paris, 20 degrees."
    heard = client.sound()
    assert 1_500 < len(heard) // BYTES_PER_MS < 5_000

    # The client had played a second of it when somebody spoke; it says so, and is understood.
    client.session.send(Truncate(item_id=message.id, content_index=0, audio_end_ms=1_000))
    client.hear(await speech("Thank you."))
    await client.until(lambda event: isinstance(event, ItemTruncated))
    await client.until(is_done, client.events.index(told) + 1)
    assert client.of(TranscriptionCompleted)[-1].transcript == "Thank you"
    await client.session.close()

    # A recording may have more than one of them.
    sound = await speech("What is the weather in Paris?") + await speech("Thank you.")
    asked = Listening(recording=True, words=True)
    first, second = [piece async for piece in made.transcriber.transcribe(sound, asked)]
    assert (first.text, second.text) == ("What is the weather in Paris", " Thank you")
    assert [each.word for each in second.words] == ["thank", "you"]
    assert 0.3 < first.start < first.end < second.start < second.words[1].end
    await made.close()


async def test_a_webrtc_call_is_transcribed_and_played(monkeypatch) -> None:
    """Speech that went through Opus is understood, and so is what the server plays."""
    on_loopback(monkeypatch)
    made = studio(transcription="pocketsphinx=pocket")
    async with calling(find_target("pocket").load(), studio=made) as (_, phone):
        await phone.dial("?model=pocket")
        audio = {"input": {"transcription": {"model": "any"}}}
        await phone.say({"type": "session.update", "session": {"type": "realtime", "audio": audio}})
        await phone.until("session.updated")
        phone.microphone.say(await speech("Thank you.") + bytes(500 * BYTES_PER_MS))
        heard = await phone.until("conversation.item.input_audio_transcription.completed")
        assert heard["transcript"] == "Thank you"
        done = await phone.until("response.done")
        (part,) = done["response"]["output"][0]["content"]
        assert part["transcript"] == "You are welcome."
        await phone.until("output_audio_buffer.stopped")
        assert sum(level > 1_000 for _, level in phone.heard) > 20  # frames
