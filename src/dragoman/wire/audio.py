"""Speech over HTTP: `/audio/speech` and `/audio/transcriptions`, their requests and answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.item import JSON

from . import error, json, sse
from .json import LIMITS, Fields, Limits
from .multipart import MEDIA_TYPE, Part

SPEECH, TRANSCRIPTIONS = "/audio/speech", "/audio/transcriptions"
LONGEST_INPUT = 4_096
"""Characters of the input of one request (OpenAI's limit), and of instructions."""
LONGEST_NAME = 256
SPEECH_FORMATS = ("mp3", "wav", "pcm", "opus", "aac", "flac")
TRANSCRIPT_FORMATS = ("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
SLOWEST, FASTEST = 0.25, 4.0


# ---- speech ----------------------------------------------------------------------------------


class SpeechRequest(Struct, frozen=True, kw_only=True):
    """Text to be spoken. `sse` wraps the sound in events."""

    model: str
    text: str
    voice: str | None = None
    format: str = "mp3"
    speed: float = 1.0
    instructions: str | None = None
    sse: bool = False
    ignored: tuple[str, ...] = ()


def decode_speech(data: bytes, limits: Limits = LIMITS) -> SpeechRequest:
    """The request in a body. Raises FaultError naming the field that is wrong.

    >>> decode_speech(b'{"model": "tts-1", "input": "Hi", "voice": "alloy"}').text
    'Hi'
    """
    fields = json.parse(data)
    voice = fields.any("voice")
    if isinstance(voice, dict):  # a custom voice
        voice = Fields(voice, "voice").need("id")
    if not isinstance(voice, str | None) or len(voice or "") > LONGEST_NAME:
        raise fields.wrong("voice", f"must be a name of at most {LONGEST_NAME} characters")
    text, instructions = fields.need("input"), fields.string("instructions")
    for name, given in (("input", text), ("instructions", instructions)):
        if given is not None and len(given) > LONGEST_INPUT:
            raise fields.wrong(name, f"has more than {LONGEST_INPUT} characters")
    return SpeechRequest(
        model=fields.need("model"),
        text=text,
        voice=voice,
        format=fields.one_of("response_format", SPEECH_FORMATS) or "mp3",
        speed=fields.number("speed", SLOWEST, FASTEST) or 1.0,
        instructions=instructions,
        sse=fields.one_of("stream_format", ("audio", "sse")) == "sse",
        ignored=tuple(fields.rest()),
    )


def encode_speech(request: SpeechRequest) -> bytes:
    """The body of a request. Default options are left out: some servers support none."""
    body: dict[str, JSON] = {
        "model": request.model,
        "input": request.text,
        "voice": request.voice,
        "response_format": request.format,
    }
    if request.speed != 1.0:
        body["speed"] = request.speed
    if request.instructions is not None:
        body["instructions"] = request.instructions
    return json.dump(body)


def speech_delta(base64: str) -> bytes:
    """The event with some sound."""
    return sse.frame(json.dump({"type": "speech.audio.delta", "audio": base64}))


def speech_done() -> bytes:
    """The last event. It must have token counts, which our backends do not have."""
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    return sse.frame(json.dump({"type": "speech.audio.done", "usage": usage}))


# ---- transcriptions --------------------------------------------------------------------------


class TranscriptionRequest(Struct, frozen=True, kw_only=True):
    """A recording to be transcribed."""

    model: str
    data: memoryview
    language: str | None = None
    prompt: str | None = None
    format: str = "json"
    stream: bool = False
    words: bool = False
    ignored: tuple[str, ...] = ()


class Segment(Struct, frozen=True):
    """A segment of a transcript; times are seconds. `words` are those in it, with their times."""

    text: str
    start: float
    end: float
    words: tuple[tuple[str, float, float], ...] = ()


GRANULARITIES = "timestamp_granularities"
_LISTS = ("include", "languages", "keywords")
_IGNORED = frozenset(
    {
        *_LISTS,
        *("temperature", "chunking_strategy"),
        *("known_speaker_names", "known_speaker_references"),
    }
)
"""Fields that are hints, and are ignored with a loss."""


def decode_transcription(parts: Sequence[Part]) -> TranscriptionRequest:
    """The request in a form. Raises FaultError naming the field that is wrong."""
    fields: dict[str, Part] = {}
    ignored: dict[str, None] = {}
    times: list[str | None] = []
    for part in parts:
        name = part.name.partition("[")[0]  # a list has a part for each value
        if name == GRANULARITIES:
            times.append(Fields({name: part.text}).one_of(name, ("word", "segment")))
        elif name in _IGNORED:
            ignored[name] = None
        elif part.name in fields:
            raise FaultError(bad_request("is given twice", part.name))
        else:
            fields[part.name] = part
    file = fields.pop("file", None)
    if file is None or file.filename is None:
        problem = "is missing" if file is None else "has no filename, so that it is no file"
        raise FaultError(bad_request(problem, "file"))
    form = Fields({name: part.text for name, part in fields.items()})
    format = form.one_of("response_format", TRANSCRIPT_FORMATS) or "json"
    if format == "diarized_json":
        raise FaultError(unsupported("nothing here tells speakers apart", "response_format"))
    if times and format != "verbose_json":
        raise FaultError(bad_request("is for verbose_json", GRANULARITIES))
    request = TranscriptionRequest(
        model=form.need("model"),
        data=file.data,
        language=form.string("language") or None,
        prompt=form.string("prompt") or None,
        format=format,
        stream=form.one_of("stream", ("true", "false", "True", "False")) in ("true", "True"),
        words="word" in times,
        ignored=(*ignored, *form.rest()),
    )
    for name, value in (("model", request.model), ("language", request.language)):
        if len(value or "") > LONGEST_NAME:
            raise form.wrong(name, f"has more than {LONGEST_NAME} characters")
    if request.stream and format not in ("json", "text"):
        raise form.wrong("response_format", "must be json or text where the answer is streamed")
    return request


def encode_transcription(
    request: TranscriptionRequest, boundary: str, head: bytes = b""
) -> tuple[str, bytearray]:
    """The media type and the body of a request with a WAV file: its head and its data. The boundary
    must not be in it. Piece by piece: in a thread, others run between."""
    given = {
        "model": request.model,
        "response_format": request.format,
        "language": request.language,
        "prompt": request.prompt,
        "stream": "true" if request.stream else None,
    }
    form = bytearray()
    for name, value in given.items():
        if value is not None:
            form += f'--{boundary}\r\n{_FIELD}; name="{name}"\r\n\r\n{value}\r\n'.encode(
                errors="replace"
            )
    file = f'--{boundary}\r\n{_FIELD}; name="file"; filename="speech.wav"\r\n'
    form += f"{file}Content-Type: audio/wav\r\n\r\n".encode() + head
    for at in range(0, len(request.data), _STEP):
        form += request.data[at : at + _STEP]
    form += f"\r\n--{boundary}--\r\n".encode()
    return f"{MEDIA_TYPE}; boundary={boundary}", form


_STEP = 1 << 20
"""Bytes that are copied at once."""
_FIELD = "Content-Disposition: form-data"


def encode_transcript(
    asked: TranscriptionRequest, segments: Sequence[Segment], seconds: float
) -> tuple[bytes, bytes]:
    """The media type and the body of an answer, for a recording of so many seconds.

    >>> asked = TranscriptionRequest(model="m", data=memoryview(b""), format="text")
    >>> encode_transcript(asked, [Segment("Hi.", 0, 1)], 1.5)
    (b'text/plain; charset=utf-8', b'Hi.\\n')
    """
    text = "".join([segment.text for segment in segments])
    usage = {"type": "duration", "seconds": math.ceil(seconds)}
    match asked.format:
        case "text":
            return _PLAIN, f"{text}\n".encode(errors="replace")
        case "srt":
            blocks = [f"{n}\n{_lines(s, ',')}\n" for n, s in enumerate(_said(segments), 1)]
            srt = "\n".join(blocks).encode(errors="replace")
            return b"application/x-subrip; charset=utf-8", srt
        case "vtt":
            blocks = ["WEBVTT\n", *(f"{_lines(s, '.')}\n" for s in _said(segments))]
            vtt = "\n".join(blocks).encode(errors="replace")
            return b"text/vtt; charset=utf-8", vtt
        case "verbose_json":
            listed = [_segment(n, segment) for n, segment in enumerate(_said(segments))]
            answer: dict[str, JSON] = {
                "task": "transcribe",
                "language": asked.language or "",
                "duration": round(seconds, 3),
                "text": text,
                "segments": listed,
                "usage": usage,
            }
            if asked.words:
                answer["words"] = [
                    {"word": word, "start": round(start, 3), "end": round(end, 3)}
                    for segment in segments
                    for word, start, end in segment.words
                ]
            return b"application/json", json.dump(answer)
    return b"application/json", json.dump({"text": text, "usage": usage})


_PLAIN = b"text/plain; charset=utf-8"


def _said(segments: Sequence[Segment]) -> list[Segment]:
    return [segment for segment in segments if segment.text.strip()]


def _segment(number: int, segment: Segment) -> dict[str, JSON]:
    """A segment in Whisper's format; values that other recognisers do not have are zero, as all
    fields are required."""
    zeros = {"temperature": 0.0, "avg_logprob": 0.0, "compression_ratio": 0.0}
    times = {"start": round(segment.start, 3), "end": round(segment.end, 3)}
    return {
        "id": number,
        "seek": 0,
        **times,
        "text": segment.text,
        "tokens": [],
        **zeros,
        "no_speech_prob": 0.0,
    }


def _lines(segment: Segment, mark: str) -> str:
    return f"{_time(segment.start, mark)} --> {_time(segment.end, mark)}\n{segment.text.strip()}"


def _time(seconds: float, mark: str) -> str:
    whole, ms = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{mark}{ms:03}"


def read_transcript(body: bytes) -> str:
    """The text of a JSON response. Raises FaultError for an error in it, and ValueError for an
    invalid one."""
    value = json.load(body)
    match value:
        case {"text": str(text)}:
            return text
    if (fault := error.describe(value)) is not None:
        raise FaultError(fault)
    raise ValueError("has no text")


def read_transcript_event(event: bytes, known: str) -> str | None:
    """The text that an event adds to a streamed transcript; None for an event of another kind.
    Raises FaultError for an error event.

    >>> read_transcript_event(b'{"type": "transcript.text.done", "text": "Hi all."}', "Hi")
    ' all.'
    """
    try:
        value = json.load(event)
    except ValueError:
        return None  # [DONE], sent by some servers
    if (fault := error.describe(value)) is not None:
        raise FaultError(fault)
    match value:
        case {"type": "transcript.text.delta", "delta": str(text)}:
            return text
        case {"type": "transcript.text.done", "text": str(text)}:
            return text[len(known) :] if text.startswith(known) else ""
        case {"choices": [{"delta": {"content": str(text)}}]}:  # of vLLM
            return text
    return None


def transcript_delta(text: str) -> bytes:
    """The event with a piece of a transcript."""
    return sse.frame(json.dump({"type": "transcript.text.delta", "delta": text}))


def transcript_done(text: str) -> bytes:
    """The last event, with the whole transcript."""
    return sse.frame(json.dump({"type": "transcript.text.done", "text": text}))
