"""Requests and answers of the audio endpoints."""

import json
import re

import pytest
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
)

from dragoman.core.error import FaultError
from dragoman.wire import audio
from dragoman.wire.audio import (
    Segment,
    SpeechRequest,
    TranscriptionRequest,
    decode_speech,
    decode_transcription,
    encode_transcript,
)
from dragoman.wire.multipart import Part, find_boundary, read_parts

SEGMENTS = [Segment("Hello there.", 0, 1.2), Segment(" ", 1.2, 2), Segment(" Bye.", 3661.25, 3662)]


def field(name: str, text: str) -> Part:
    return Part(name, memoryview(text.encode()))


def asking(format: str) -> TranscriptionRequest:
    return TranscriptionRequest(model="m", data=memoryview(b""), format=format)


FILE = Part("file", memoryview(b"RIFF"), "a.wav")
MODEL = field("model", "whisper-1")


def test_speech_request_with_everything() -> None:
    body = {
        "model": "tts-1",
        "input": "Hi",
        "voice": {"id": "voice_1"},
        "response_format": "wav",
        "speed": 1.5,
        "instructions": "Whisper.",
        "stream_format": "sse",
        "vendor_field": 1,
    }
    asked = decode_speech(json.dumps(body).encode())
    assert (asked.voice, asked.format, asked.speed, asked.sse) == ("voice_1", "wav", 1.5, True)
    assert (asked.instructions, asked.ignored) == ("Whisper.", ("vendor_field",))


@pytest.mark.parametrize(
    "asked",
    [
        SpeechRequest(model="m", text="Hi", voice="nova", format="pcm"),
        SpeechRequest(model="m", text="Hi", voice="a", speed=2.0, instructions="Whisper."),
    ],
)
def test_a_speech_request_that_is_sent_is_the_one_that_is_read(asked) -> None:
    assert decode_speech(audio.encode_speech(asked)) == asked


@pytest.mark.parametrize(
    "more", [{}, {"language": "en", "prompt": "Days.", "stream": True, "format": "text"}]
)
def test_a_transcription_request_that_is_sent_is_the_one_that_is_read(more) -> None:
    asked = TranscriptionRequest(model="m", data=memoryview(b"RIFF"), **more)
    media_type, body = audio.encode_transcription(asked, "x")
    assert decode_transcription(read_parts(body, find_boundary(media_type))) == asked


@pytest.mark.parametrize(
    ("event", "known", "added"),
    [
        (audio.transcript_delta("Hi"), "", "Hi"),
        (audio.transcript_done("Hi all"), "Hi", " all"),
        (audio.transcript_done("Hi"), "Ho", ""),
        (b'{"object": "transcription.chunk", "choices": [{"delta": {"content": "!"}}]}', "Hi", "!"),
        (b'{"object": "transcription.chunk", "choices": []}', "Hi", None),
        (b"[DONE]", "Hi", None),
        (b'{"type": "session.created"}', "", None),
    ],
)
def test_events_of_a_transcript_add_to_what_is_known(event, known, added) -> None:
    assert audio.read_transcript_event(event.removeprefix(b"data: "), known) == added


def test_a_transcript_of_another_server_is_read_or_says_what_is_wrong() -> None:
    assert audio.read_transcript(b'{"text": "Hi"}') == "Hi"
    for answer in (b"Hi", b"{}"):
        with pytest.raises(ValueError, match=r"."):
            audio.read_transcript(answer)
    broken = b'{"error": {"message": "boom"}}'
    for read in (audio.read_transcript, lambda event: audio.read_transcript_event(event, "")):
        with pytest.raises(FaultError, match="boom"):
            read(broken)


def test_speech_request_needs_no_voice_and_is_mp3_by_default() -> None:
    asked = decode_speech(b'{"model": "tts-1", "input": "Hi", "voice": null}')
    assert (asked.voice, asked.format, asked.sse) == (None, "mp3", False)


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"model": ""}, "model"),
        ({"input": None}, "input"),
        ({"input": "x" * 4097}, "input"),
        ({"instructions": "x" * 4097}, "instructions"),
        ({"voice": 3}, "voice"),
        ({"voice": "x" * 257}, "voice"),
        ({"voice": {}}, "voice.id"),
        ({"speed": 5}, "speed"),
        ({"response_format": "ogg"}, "response_format"),
        ({"stream_format": "raw"}, "stream_format"),
    ],
)
def test_wrong_speech_request_names_the_field(changed, param) -> None:
    body = {"model": "tts-1", "input": "Hi", "voice": "alloy", **changed}
    with pytest.raises(FaultError) as raised:
        decode_speech(json.dumps(body).encode())
    assert raised.value.fault.param == param


def test_speech_events_carry_the_sound_and_end() -> None:
    delta, done = audio.speech_delta("AAAA"), audio.speech_done()
    assert delta == b'data: {"type":"speech.audio.delta","audio":"AAAA"}\n\n'
    assert json.loads(done.removeprefix(b"data: ")) == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
    }


def test_transcription_request_with_everything() -> None:
    lists = [field("include[]", each) for each in ("logprobs", "x")]
    rest = [("language", "en"), ("prompt", "Names."), ("stream", "true"), ("temperature", "0")]
    fields = [field(name, text) for name, text in (*rest, ("vendor", "1"))]
    asked = decode_transcription([FILE, MODEL, *lists, *fields])
    assert (asked.language, asked.prompt, asked.stream) == ("en", "Names.", True)
    assert asked.ignored == ("include", "temperature", "vendor")
    assert bytes(asked.data) == b"RIFF"


def test_words_are_asked_for_with_their_times() -> None:
    lists = [field("timestamp_granularities[]", each) for each in ("word", "segment")]
    asked = decode_transcription([FILE, MODEL, *lists, field("response_format", "verbose_json")])
    assert (asked.words, asked.ignored) == (True, ())
    said = [Segment("Hi you.", 0, 1, (("Hi", 0, 0.5), ("you", 0.50001, 1)))]
    value = json.loads(encode_transcript(asked, said, 1)[1])
    TranscriptionVerbose.model_validate(value)
    assert value["words"] == [
        {"word": "Hi", "start": 0, "end": 0.5},
        {"word": "you", "start": 0.5, "end": 1},
    ]


def test_empty_fields_of_a_form_are_absent() -> None:
    asked = decode_transcription([FILE, MODEL, field("language", ""), field("prompt", "")])
    assert (asked.language, asked.prompt, asked.stream) == (None, None, False)


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([MODEL], "file"),
        ([MODEL, field("file", "RIFF")], "file"),
        ([FILE], "model"),
        ([FILE, MODEL, MODEL], "model"),
        ([FILE, field("model", "x" * 257)], "model"),
        ([FILE, MODEL, field("language", "x" * 257)], "language"),
        ([FILE, MODEL, field("stream", "yes")], "stream"),
        ([FILE, MODEL, field("response_format", "xml")], "response_format"),
        ([FILE, MODEL, field("response_format", "diarized_json")], "response_format"),
        ([FILE, MODEL, field("timestamp_granularities[]", "word")], "timestamp_granularities"),
        ([FILE, MODEL, field("timestamp_granularities[]", "year")], "timestamp_granularities"),
        (
            [FILE, MODEL, field("response_format", "srt"), field("stream", "true")],
            "response_format",
        ),
    ],
)
def test_wrong_form_names_the_field(parts, param) -> None:
    with pytest.raises(FaultError) as raised:
        decode_transcription(parts)
    assert raised.value.fault.param == param


@pytest.mark.parametrize(
    ("format", "media_type", "body"),
    [
        ("text", b"text/plain; charset=utf-8", "Hello there.  Bye.\n"),
        (
            "srt",
            b"application/x-subrip; charset=utf-8",
            (
                "1\n00:00:00,000 --> 00:00:01,200\nHello there.\n\n"
                "2\n01:01:01,250 --> 01:01:02,000\nBye.\n"
            ),
        ),
        (
            "vtt",
            b"text/vtt; charset=utf-8",
            (
                "WEBVTT\n\n00:00:00.000 --> 00:00:01.200\nHello there.\n\n"
                "01:01:01.250 --> 01:01:02.000\nBye.\n"
            ),
        ),
    ],
)
def test_transcript_as_text(format, media_type, body) -> None:
    assert encode_transcript(asking(format), SEGMENTS, 3662.5) == (media_type, body.encode())


@pytest.mark.parametrize("format", ["json", "text", "srt", "vtt", "verbose_json"])
def test_half_of_a_surrogate_pair_in_a_transcript_is_replaced(format) -> None:
    text = encode_transcript(asking(format), [Segment("a\ud800b", 0, 1)], 1)[1].decode()
    assert re.search(r"a[?\ufffd]b", text)


@pytest.mark.parametrize(
    ("format", "model"),
    [
        ("json", Transcription),
        ("verbose_json", TranscriptionVerbose),
    ],
)
def test_transcript_as_json_is_what_the_sdk_reads(format, model) -> None:
    media_type, body = encode_transcript(asking(format), SEGMENTS, 3662.5)
    value = json.loads(body)
    assert media_type == b"application/json"
    model.model_validate(value)
    assert value["text"] == "Hello there.  Bye."
    assert value["usage"] == {"type": "duration", "seconds": 3663}
    assert [s["text"] for s in value.get("segments", ())] in ([], ["Hello there.", " Bye."])


def test_transcript_events_are_what_the_sdk_reads() -> None:
    for model, event in (
        (TranscriptionTextDeltaEvent, audio.transcript_delta("Hi")),
        (TranscriptionTextDoneEvent, audio.transcript_done("Hi")),
    ):
        model.model_validate_json(event.removeprefix(b"data: "))
