"""Speech and transcriptions over HTTP: by the SDK, by another server, and when things go wrong."""

import asyncio
import json
import threading
import tracemalloc
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Secret
from dragoman.core.sound import BYTES_PER_MS, wav
from dragoman.server.app import App
from dragoman.server.audio import _Sending
from dragoman.server.build import studio_of
from dragoman.server.config import ConfigurationError
from dragoman.server.settings import Settings
from dragoman.server.testing import Transport
from dragoman.voice.remote import RemoteSynthesizer, RemoteTranscriber
from dragoman.voice.sound import sniff
from dragoman.voice.speech import Listening, Piece, Speaking
from dragoman.voice.studio import Studio
from dragoman.wire import audio
from tests.mock import Mock, Reply, mock
from tests.server.stubs import Call, Stub, served
from tests.voice.fakes import Files, Listener, Speaker, read_wav, said_in, spoken
from tests.voice.test_session import Hears, said

SPEECH, TRANSCRIPTIONS = "/v1/audio/speech", "/v1/audio/transcriptions"
SETTINGS = Settings(allowed_hosts=("*",))
BROKEN = Fault("upstream_error", "the voice broke", "upstream")


def app(speaker: Speaker | None = None, listener: Listener | None = None, **given) -> App:
    return App(
        Stub(), replace(SETTINGS, **given), studio=Studio(speaker, listener, "energy", Files())
    )


@asynccontextmanager
async def sdk(app: App) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx2.AsyncClient(transport=Transport(app))
    async with openai.AsyncOpenAI(
        base_url="http://dragoman/v1", api_key="none", http_client=http, max_retries=0
    ) as client:
        yield client


@pytest.mark.parametrize("format", ["mp3", "wav", "pcm", None])
async def test_sdk_gets_speech_in_the_format_it_asked_for(format) -> None:
    speaker = Speaker()
    async with sdk(app(speaker)) as client:
        more = {"response_format": format} if format else {}
        answer = await client.audio.speech.create(
            model="tts-1", voice="nova", input="Good day", speed=1.5, **more
        )
    sound = answer.content
    match format:
        case "pcm":
            assert said_in(sound) == "Good day"
        case "wav":
            assert said_in(read_wav(sound)) == "Good day"
        case _:
            assert sniff(sound) == "mp3"
    assert (speaker.how[0].voice, speaker.how[0].speed) == ("nova", 1.5)


async def test_sound_in_events_is_the_sound() -> None:
    body = {"model": "m", "input": "Hi", "voice": "a", "response_format": "wav"}
    call = await Call(app(Speaker()), SPEECH, body | {"stream_format": "sse"})()
    assert call.headers["content-type"] == "text/event-stream"
    events = [json.loads(line[6:]) for line in call.body.decode().split("\n\n") if line]
    assert [event["type"] for event in events][-1] == "speech.audio.done"
    sound = b"".join(b64decode(event["audio"]) for event in events[:-1])
    assert said_in(read_wav(sound)) == "Hi"


def body(text: str = "Hi", **more: str) -> dict[str, str]:
    return {"model": "m", "input": text, "voice": "a", "response_format": "pcm", **more}


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        (body(response_format="opus"), 400, "response_format"),
        (body(text=""), 400, "input"),
    ],
)
async def test_wrong_requests_are_refused(given, status, param) -> None:
    call = await Call(app(Speaker()), SPEECH, given)()
    assert (call.status, call.json["error"]["param"]) == (status, param)


async def test_a_server_without_a_voice_says_what_to_install() -> None:
    call = await Call(App(Stub(), SETTINGS), SPEECH, body())()
    assert call.status == 400
    assert "espeak-ng" in call.json["error"]["message"]
    call = await transcription(App(Stub(), SETTINGS), wav(spoken("Hi")))
    assert call.status == 400
    assert "pip install '.[voice]'" in call.json["error"]["message"]


async def test_a_voice_that_fails_at_once_is_an_error_with_a_status() -> None:
    call = await Call(app(Speaker(BROKEN)), SPEECH, body(text="x"))()
    assert call.status == 502
    assert call.json["error"]["message"] == BROKEN.message


async def test_a_voice_that_fails_later_drops_the_connection_or_says_so_in_an_event() -> None:
    call = await Call(app(Speaker(BROKEN)), SPEECH, body(text="Hello"))()
    assert call.status == 200
    assert not call.whole
    call = await Call(app(Speaker(BROKEN)), SPEECH, body(text="Hello", stream_format="sse"))()
    assert call.whole
    assert BROKEN.message in call.writes[-1].decode()
    assert call.body.startswith(b"data: ")


async def test_a_client_that_disconnects_stops_the_voice() -> None:
    speaker = Speaker(held=asyncio.Event())
    server = app(speaker)
    call = Call(server, SPEECH, body(text="Hello"))
    running = asyncio.ensure_future(call())
    await call.until(lambda: len(call.sent) > 1)
    call.hang_up()
    await running
    while server.busy or not speaker.stopped:
        await asyncio.sleep(0.001)
    assert speaker.stopped == 1


async def test_a_client_that_does_not_read_holds_the_voice_back() -> None:
    speaker = Speaker()
    call = Call(app(speaker), SPEECH, body(text="x" * 4_096))
    running = asyncio.ensure_future(call())
    await call.until(lambda: len(call.sent) > 1)
    call.reading.clear()
    for _ in range(20_000):
        await asyncio.sleep(0)
    assert speaker.made < 4_096
    call.reading.set()
    await running
    assert len(call.body) == 4_096 * 480


async def test_a_client_with_much_sound_does_not_block_others() -> None:
    """Here two speak at once, whether they are read or not."""
    speaker = Speaker(held=asyncio.Event())
    speaker.at_once = 2
    server = app(speaker, keys=(Secret("k" * 9), Secret("j" * 9)))

    def call(text: str, key: str) -> Call:
        headers = {"content-type": "application/json", "authorization": f"Bearer {key * 9}"}
        return Call(server, SPEECH, body(text=text), headers=headers)

    asked = [call("first", "k"), call("second", "k"), call("third", "j")]
    running = [asyncio.ensure_future(each()) for each in asked]
    await asked[2].until(lambda: len(asked[2].sent) > 1)
    assert sorted(speaker.said) == ["first", "third"]
    speaker._held.set()
    await asyncio.gather(*running)
    assert speaker.said[2] == "second"
    assert [each.status for each in asked] == [200] * 3


async def test_shutting_down_ends_what_is_spoken() -> None:
    speaker = Speaker(held=asyncio.Event())
    server = app(speaker)
    call = Call(server, SPEECH, body(text="Hello", stream_format="sse"))
    running = asyncio.ensure_future(call())
    await call.until(lambda: len(call.sent) > 1)
    await server.drain(0)
    await running
    assert speaker.stopped == 1
    assert "shutting down" in call.writes[-1].decode()
    await server.close()
    assert speaker.closed


# ---- transcriptions --------------------------------------------------------------------------


async def transcription(server: App, sound: bytes, **fields: str) -> Call:
    lines = []
    for name, value in {"model": "whisper-1", **fields}.items():
        lines.append(f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n')
    head = 'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    form = "".join(lines).encode() + b"--x\r\n" + head.encode() + sound + b"\r\n--x--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=x"}
    return await Call(server, TRANSCRIPTIONS, form, headers=headers)()


async def test_sdk_transcribes_in_each_format() -> None:
    listener = Listener()
    async with sdk(app(listener=listener)) as client:
        create, sound = client.audio.transcriptions.create, ("a.wav", wav(spoken("Good day")))
        whole = await create(file=sound, model="whisper-1", language="en", prompt="Days.")
        assert whole.text == "Good day"
        assert whole.usage is not None
        long = await create(file=sound, model="whisper-1", response_format="verbose_json")
        assert (long.text, round(float(long.duration), 2)) == ("Good day", 0.08)
        assert [(s.text, s.end) for s in long.segments or ()] == [("Good", 0.04), (" day", 0.08)]
        text = await create(file=sound, model="whisper-1", response_format="text")
        assert str(text).strip() == "Good day"
        stream = await create(file=sound, model="whisper-1", stream=True)
        events = [event async for event in stream]
    assert [getattr(event, "delta", "") for event in events] == ["Good", " day", ""]
    assert events[-1].text == "Good day"
    assert (listener.asked[0].language, listener.asked[0].prompt) == ("en", "Days.")


async def test_what_is_asked_of_a_voice_in_vain_is_reported() -> None:
    given = body(instructions="Whisper.", vendor="x")
    call = await Call(app(Speaker()), SPEECH, given)()
    assert call.headers["x-dragoman-loss"] == "dropped: vendor, instructions"


async def test_sdk_gets_the_times_of_words() -> None:
    async with sdk(app(listener=Listener())) as client:
        asked = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
        whole = await client.audio.transcriptions.create(
            file=("a.wav", wav(spoken("Good day"))), model="whisper-1", **asked
        )
    assert [(each.word, each.end) for each in whole.words] == [("Good", 0.04), ("day", 0.08)]


async def test_what_a_recogniser_does_not_know_is_reported() -> None:
    call = await transcription(app(listener=Listener()), wav(spoken("Hi")), temperature="0.5")
    assert call.json["text"] == "Hi"
    assert call.headers["x-dragoman-loss"] == "dropped: temperature"


@pytest.mark.parametrize(
    ("sound", "status", "problem"),
    [
        (b"\0\0\0\x20ftypM4A ", 400, "file: is mp4; send wav, mp3, flac, ogg"),
        (b"Hello", 400, "is no sound that is known here"),
        (wav(b""), 400, "has no sound in it"),
        (b"RIFF\0\0\0\0WAVE", 400, "ends before its sound"),
        (wav(b"\0" * 100_000), 413, "more than 50000 (audio_limit)"),
        (wav(b"\0" * 200_000), 413, "audio_limit"),
    ],
)
async def test_what_cannot_be_transcribed_is_refused(sound, status, problem) -> None:
    call = await transcription(app(listener=Listener(), audio_limit=50_000), sound)
    assert call.status == status
    assert problem in call.json["error"]["message"]


async def test_a_recogniser_that_fails_is_an_error_or_the_last_event() -> None:
    sound = wav(spoken("Good day"))
    call = await transcription(app(listener=Listener(BROKEN)), sound)
    assert call.status == 502
    call = await transcription(app(listener=Listener(BROKEN)), sound, stream="true")
    assert (call.status, call.whole) == (200, True)
    assert BROKEN.message in call.writes[-1].decode()


class Streams(Listener):
    """Recognises words as some servers do: their times are not known."""

    async def transcribe(self, pcm: bytes, asked: Listening) -> AsyncIterator[Piece]:
        async for piece in super().transcribe(pcm, asked):
            known = piece.text.startswith(" known")
            yield piece if known else replace(piece, start=None, end=None)


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("Good day", [("Good day", 0.0, 0.08)]),
        ("A b known c d", [("A b", 0.0, 0.13), (" known", 0.04, 0.09), (" c d", 0.0, 0.13)]),
        (" ", []),
    ],
)
async def test_pieces_without_times_are_one_segment(text, segments) -> None:
    sound = wav(spoken(text))
    call = await transcription(app(listener=Streams()), sound, response_format="verbose_json")
    found = [(s["text"], s["start"], s["end"]) for s in call.json["segments"]]
    assert found == segments
    assert call.json["text"] == text.strip()


# ---- one server's voice behind another -------------------------------------------------------


async def test_another_server_speaks_and_listens_for_us() -> None:
    async with served(app(Speaker(), Listener())) as port:
        url = f"http://127.0.0.1:{port}/v1"
        speaker, listener = RemoteSynthesizer(url), RemoteTranscriber(url)
        how = Speaking(voice="nova", speed=2.0, instructions="Whisper.")
        sound = b"".join([pcm async for pcm in speaker.speak("Good day", how)])
        assert said_in(sound) == "Good day"
        asked = Listening(language="en", prompt="Days.")
        pieces = [piece.text async for piece in listener.transcribe(sound, asked)]
        assert pieces == ["Good", " day"]
        await speaker.close()
        await listener.close()


@asynccontextmanager
async def other(kind: str, *pieces: bytes, status: int = 200) -> AsyncIterator[Mock]:
    """A server that answers with this, whatever it is asked."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode()
    async with mock(lambda asked: Reply([head, *pieces])) as server:
        yield server


async def said_by(server: Mock, **given: str) -> bytes:
    speaker = RemoteSynthesizer(server.base_url, **given)
    try:
        return b"".join([pcm async for pcm in speaker.speak("Good day", Speaking())])
    finally:
        await speaker.close()


PCM = spoken("Hi")


@pytest.mark.parametrize(
    "pieces", [[PCM], [PCM[:3], PCM[3:12], PCM[12:]], [wav(PCM)[:7], wav(PCM)[7:60], wav(PCM)[60:]]]
)
async def test_sound_of_another_server_in_any_pieces_pcm_or_not(pieces) -> None:
    async with other("audio/pcm", *pieces) as server:
        assert await said_by(server, key="k", model="kokoro", voice="af") == PCM
    (asked,) = server.asked
    assert asked.headers["authorization"] == "Bearer k"
    assert asked.json == {
        "model": "kokoro",
        "input": "Good day",
        "voice": "af",
        "response_format": "pcm",
    }


async def test_very_short_sound_of_another_server() -> None:
    async with other("audio/pcm", b"\1\0\1") as server:
        assert await said_by(server) == b"\1\0"


async def heard_by(server: Mock) -> str:
    listener = RemoteTranscriber(server.base_url, key="sk-12345678", model="whisper")
    try:
        return "".join([p.text async for p in listener.transcribe(PCM, Listening())])
    finally:
        await listener.close()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("application/json", b'{"text": "Hi"}'),
        ("text/event-stream", b'data: {"type": "transcript.text.done", "text": "Hi"}\n\n'),
        (
            "text/event-stream",
            (
                b'data: {"type": "transcript.text.delta", "delta": "Hi"}\n\n'
                b'data: {"type": "transcript.text.done", "text": "Hi"}\n\ndata: [DONE]\n\n'
            ),
        ),
        (
            "text/event-stream",  # of vLLM
            (
                b'data: {"object": "transcription.chunk", "choices": [{"delta": {"content": "H"}, '
                b'"finish_reason": null}]}\n\n'
                b'data: {"object": "transcription.chunk", "choices": [{"delta": {"content": "i"}, '
                b'"finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
            ),
        ),
    ],
)
async def test_transcripts_of_another_server_whole_or_streamed(kind, content) -> None:
    async with other(kind, content) as server:
        assert await heard_by(server) == "Hi"
    (asked,) = server.asked
    assert b'name="model"\r\n\r\nwhisper' in asked.body
    assert wav(PCM) in asked.body


@pytest.mark.parametrize(
    ("kind", "content", "status", "problem"),
    [
        ("application/json", b'{"error": {"message": "no such voice"}}', 400, "no such voice"),
        ("application/json", b"{}", 401, "refused the key"),
        ("application/json", b"{}", 200, "has no text"),
        ("application/json", b"nonsense", 200, "its answer"),
        ("application/json", b'{"error": {"message": "sk-12345678?"}}', 400, r"\*\*\*"),
        ("application/json", b'{"error": {"message": "sk-12345678?"}}', 200, r"\*\*\*"),
        ("text/event-stream", b'data: {"error": {"message": "sk-12345678?"}}\n\n', 200, r"\*\*\*"),
        ("text/event-stream", b'data: {"error": {"message": "boom"}}\n\n', 200, "boom"),
        ("text/event-stream", b"data: x\n" * 100_001, 200, "lines"),
    ],
)
async def test_another_server_that_fails_to_listen(kind, content, status, problem) -> None:
    async with other(kind, content, status=status) as server:
        with pytest.raises(FaultError, match=problem):
            await heard_by(server)


async def test_long_sound_for_a_recogniser_is_copied_once_and_in_a_thread(monkeypatch) -> None:
    encode, pcm = audio.encode_transcription, bytearray(16 * 1024 * 1024)
    found: list[Any] = []

    def encoded(asked: Any, *given: Any) -> Any:
        tracemalloc.start()
        try:
            body = encode(asked, *given)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        found.append((asked.data.obj, threading.current_thread(), peak))
        return body

    monkeypatch.setattr(audio, "encode_transcription", encoded)
    async with other("application/json", b'{"text": "Hi"}') as server:
        listener = RemoteTranscriber(server.base_url)
        assert [piece.text async for piece in listener.transcribe(pcm, Listening())] == ["Hi"]
        await listener.close()
        assert wav(pcm) in server.asked[0].body
    ((data, thread, peak),) = found
    assert data is pcm
    assert thread is not threading.main_thread()
    assert peak < 2 * len(pcm)


async def test_another_server_that_fails_to_speak() -> None:
    async with other("application/json", b"{}") as server:
        with pytest.raises(FaultError, match="answered with application/json, not with sound"):
            await said_by(server)
    with pytest.raises(FaultError, match="cannot be reached"):
        await said_by(server)


# ---- settings --------------------------------------------------------------------------------


def test_a_studio_of_urls_has_their_keys_and_models() -> None:
    settings = Settings(
        speech="https://a.example/v1 kokoro",
        speech_key_env="A_KEY",
        transcription="https://b.example/v1",
        transcription_key_env="B_KEY",
        speech_detection="energy",
    )
    made = studio_of(settings, {"A_KEY": "a", "B_KEY": "b"})
    assert isinstance(made.synthesizer, RemoteSynthesizer)
    assert isinstance(made.transcriber, RemoteTranscriber)
    assert (made.synthesizer._key.reveal(), made.transcriber._key.reveal()) == ("a", "b")
    assert (made.synthesizer._model, made.transcriber._model) == ("kokoro", None)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"speech": "espeek-ng"}, "no synthesizer 'espeek-ng'; did you mean espeak-ng"),
        ({"transcription": "sphinx"}, "no recogniser 'sphinx'"),
        ({"transcription": "pocketsphinx=no.gram"}, "there is no file 'no.gram'"),
        ({"speech": "ftp://a"}, "'ftp://a': the URL must begin with http://"),
        ({"speech_detection": "ears"}, "no detector 'ears'"),
        ({"speech_key_env": "A_KEY"}, "speech_key_env is for a URL in speech"),
        ({"transcription": "http://a", "transcription_key_env": "NONE"}, "NONE should hold"),
    ],
)
def test_missing_synthesizer_or_recogniser_is_an_error(given, problem) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        studio_of(Settings(**given), {"A_KEY": "a"})


async def test_none_is_neither_speech_nor_transcription() -> None:
    made = studio_of(Settings(speech="none", transcription="none"), {})
    assert (made.synthesizer, made.transcriber) == (None, None)
    await made.prepare()
    await made.close()


# ---- the page --------------------------------------------------------------------------------


async def test_the_page_to_talk_on_is_public_and_loads_nothing_from_elsewhere() -> None:
    call = await Call(app(keys=(Secret("k"),)), "/talk", method="GET")()
    assert (call.status, call.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = call.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert b"https://" not in call.body
    assert b"http://" not in call.body


async def test_a_recording_that_is_large_once_read_is_refused_while_it_is_read() -> None:
    call = await transcription(app(listener=Listener(), memory=1_000_000), wav(bytes(300_000)))
    assert call.status == 413


# ---- sessions --------------------------------------------------------------------------------


async def test_sdk_has_a_turn_by_voice() -> None:
    """What is said is found, transcribed and answered; the answer is what the model wrote."""
    speaker = Speaker()
    server = App(Stub(), SETTINGS, studio=Studio(speaker, Hears(), "energy"))
    async with (
        served(server) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k") as client,
        client.realtime.connect(model="stub") as connection,
    ):
        transcription = {"transcription": {"model": "whisper-1"}}
        await connection.session.update(
            session={"type": "realtime", "audio": {"input": transcription}}
        )
        sound = said("what is the weather") + bytes(200 * BYTES_PER_MS)
        for start in range(0, len(sound), 4_800):
            piece = b64encode(sound[start : start + 4_800]).decode()
            await connection.input_audio_buffer.append(audio=piece)
        events = []
        async for event in connection:
            events.append(event)
            if event.type == "response.done":
                break
    by = {event.type: event for event in events}
    assert by["response.done"].response.status == "completed"
    done = by["conversation.item.input_audio_transcription.completed"]
    assert done.transcript == "what is the weather"
    assert by["response.output_audio_transcript.done"].transcript == "Hello, world"
    heard = [b64decode(e.delta) for e in events if e.type == "response.output_audio.delta"]
    assert said_in(b"".join(heard)) == "Hello, world"
    types = [event.type for event in events]
    ordered = [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "response.created",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.done",
    ]
    assert sorted(ordered, key=types.index) == ordered


async def test_who_leaves_before_the_first_sound_is_sent_takes_no_place_with_him() -> None:
    """The task that sends was cancelled before it began, so that nothing was ended."""
    server = app(Speaker())
    begin = _Sending.begin

    async def left(self: Any, *given: Any) -> None:
        await begin(self, *given)
        self.disconnected()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Sending, "begin", left)
        for _ in range(20):  # more than there are places
            call = Call(server, SPEECH, body(text="Hello"))
            async with asyncio.timeout(10):
                await call()
                while server.busy:
                    await asyncio.sleep(0.001)
    call = await Call(server, SPEECH, body(text="Hello"))()
    assert call.status == 200
