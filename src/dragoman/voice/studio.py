"""What a server speaks and listens with, by name, and the voice of one session."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from importlib.util import find_spec
from typing import TypeVar

from msgspec import Struct

from dragoman.core.error import Fault, FaultError, bad_request, hint, quoted
from dragoman.core.interfaces import Engine, Secret
from dragoman.core.session_values import (
    SpeechStarted,
    SpeechStopped,
    Transcription,
    TurnDetection,
)

from . import detection, worker
from .detection import Detector
from .local import LocalSynthesizer, LocalTranscriber
from .programs import ESpeak, Piper
from .remote import RemoteSynthesizer, RemoteTranscriber
from .sound import BYTES_PER_MS, EXTRA, Telephone
from .speech import Listening, Synthesizer, Transcriber
from .spoken import Spoken

T = TypeVar("T")

AUTO = "auto"
"""Stands for what is installed; for nothing, where nothing is."""
NONE = "none"

_SYNTHESIZERS: dict[str, Callable[[str], Synthesizer]] = {
    "espeak-ng": lambda voice: ESpeak(voice or "en-us"),
    "piper": Piper,
    "kokoro": lambda model: LocalSynthesizer("kokoro", model),
}
_TRANSCRIBERS: dict[str, Callable[[str], Transcriber]] = {
    "pocketsphinx": lambda grammar: LocalTranscriber("pocketsphinx", grammar),
    "faster-whisper": lambda model: LocalTranscriber("faster-whisper", model),
}
NO_SYNTHESIZER = Fault(
    "unsupported",
    "This server cannot speak: install espeak-ng, or name a synthesizer (speech = espeak-ng, "
    "piper=FILE, kokoro=FILE or the URL of a server with /audio/speech).",
)
NO_TRANSCRIBER = Fault(
    "unsupported",
    f"This server does not understand speech: {EXTRA} brings pocketsphinx, or name a recogniser "
    "(transcription = pocketsphinx=GRAMMAR, faster-whisper=MODEL or the URL of a server with "
    "/audio/transcriptions).",
)


class Studio(Struct, frozen=True):
    """What all sessions share; None where this server cannot speak, or listen."""

    synthesizer: Synthesizer | None
    transcriber: Transcriber | None
    detector: str = AUTO

    def open(self) -> Voice:
        """The voice of one session."""
        return Voice(self)

    async def prepare(self) -> None:
        """Load what takes long to load. Raises FaultError."""
        for each in (self.synthesizer, self.transcriber):
            if isinstance(each, LocalSynthesizer | LocalTranscriber):
                await each.prepare()

    async def close(self) -> None:
        """End what was started."""
        for each in (self.synthesizer, self.transcriber):
            if each is not None:
                await each.close()


def studio(
    speech: str = AUTO,
    transcription: str = AUTO,
    *,
    detector: str = AUTO,
    pocket: bool = False,
    speech_key: Secret | None = None,
    transcription_key: Secret | None = None,
) -> Studio:
    """The studio with these by name: `auto`, `none`, a name, `NAME=OPTION`, or a URL with, after a
    space, the name of the model there. `auto` has a grammar of what the pocket model knows, where
    it is for that one alone. Raises FaultError for what is not known or installed."""
    detection.scorer(detector)
    synthesizer: Synthesizer | None = None
    transcriber: Transcriber | None = None
    if speech == AUTO:
        speech = "espeak-ng" if shutil.which("espeak-ng") and find_spec("soxr") else NONE
    if transcription == AUTO:
        needed = (worker.NEEDED["pocketsphinx"], "soxr")
        grammar = "=pocket" if pocket else ""
        transcription = f"pocketsphinx{grammar}" if all(map(find_spec, needed)) else NONE
    if "://" in speech:
        url, _, model = speech.partition(" ")
        synthesizer = RemoteSynthesizer(url, key=speech_key, model=model or None)
    elif speech != NONE:
        synthesizer = _named(speech, _SYNTHESIZERS, "synthesizer")
    if "://" in transcription:
        url, _, model = transcription.partition(" ")
        transcriber = RemoteTranscriber(url, key=transcription_key, model=model or None)
    elif transcription != NONE:
        transcriber = _named(transcription, _TRANSCRIBERS, "recogniser")
    return Studio(synthesizer, transcriber, detector)


def _named(text: str, makers: dict[str, Callable[[str], T]], what: str) -> T:
    name, _, option = text.partition("=")
    if name not in makers:
        known = f"auto, none, {', '.join(makers)}, or a URL"
        problem = f"There is no {what} {quoted(name)}{hint(name, makers)}; there is {known}."
        raise FaultError(bad_request(problem))
    return makers[name](option)


class Voice:
    """The ears and the mouth of one session; see `engines.session`."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._lines: dict[str, Telephone] = {}

    @property
    def hears(self) -> bool:
        """Whether `transcribe` can be asked."""
        return self._studio.transcriber is not None

    @property
    def speaks(self) -> bool:
        """Whether `speaking` makes answers of sound."""
        return self._studio.synthesizer is not None

    def detector(self, asked: TurnDetection) -> SessionDetector:
        """What finds the turns in what the client sends. Raises FaultError."""
        return SessionDetector(asked, self._studio)

    async def transcribe(self, audio: bytes, asked: Transcription) -> AsyncGenerator[str, None]:
        """The words in some sound."""
        if self._studio.transcriber is None:
            raise FaultError(NO_TRANSCRIBER)
        listening = Listening(language=asked.language, prompt=asked.prompt)
        async with aclosing(self._studio.transcriber.transcribe(audio, listening)) as pieces:
            async for piece in pieces:
                yield piece.text

    def speaking(self, engine: Engine) -> Engine:
        """The engine, whose answers are spoken where that is asked for."""
        if self._studio.synthesizer is None:
            raise FaultError(NO_SYNTHESIZER)
        return Spoken(engine, self._studio.synthesizer)

    def decode(self, audio: bytes, format: str) -> bytes:
        """PCM16 of what a telephone sends, `pcmu` or `pcma`."""
        return self._line(format).decode(audio)

    def encode(self, audio: bytes, format: str) -> bytes:
        """What a telephone is sent."""
        return self._line(format).encode(audio)

    def _line(self, format: str) -> Telephone:
        if format not in self._lines:
            self._lines[format] = Telephone(format)
        return self._lines[format]


_RECENT = 30_000 * BYTES_PER_MS
"""Bytes of sound that are kept to see whether somebody has finished."""


class SessionDetector:
    """The detector of a session. With semantic_vad it listens to what was said so far whenever
    somebody pauses, where there is a recogniser."""

    def __init__(self, asked: TurnDetection, studio: Studio) -> None:
        semantic = asked.kind == "semantic_vad"
        self._transcriber = studio.transcriber if semantic else None
        self._detector = Detector(
            detection.scorer(studio.detector, asked.threshold),
            threshold=0.5 if semantic else asked.threshold,
            prefix_ms=asked.prefix_padding_ms,
            silence_ms=asked.silence_duration_ms,
            eagerness=asked.eagerness if semantic else None,
            ask=self._ask,
        )
        self._heard = bytearray()  # the latest sound
        self._start = 0  # ms, of that
        self._listening: asyncio.Task[None] | None = None

    def feed(self, audio: bytes) -> list[SpeechStarted | SpeechStopped]:
        """What became clear with this sound."""
        if self._transcriber is not None:
            self._heard += audio
            if (extra := len(self._heard) - _RECENT) > 0:
                extra += -extra % BYTES_PER_MS
                del self._heard[:extra]
                self._start += extra // BYTES_PER_MS
        found: list[SpeechStarted | SpeechStopped] = []
        for event in self._detector.feed(audio):
            started = isinstance(event, detection.Started)
            if not started:
                self._stop()
            found.append(SpeechStarted(event.at_ms) if started else SpeechStopped(event.at_ms))
        return found

    def reset(self) -> None:
        """Forget an utterance that has begun."""
        self._stop()
        self._detector.reset()

    def _ask(self, start: int) -> None:
        if self._transcriber is not None:
            self._stop()
            place = max(start - self._start, 0) * BYTES_PER_MS
            listening = self._judge(self._transcriber, bytes(self._heard[place:]))
            self._listening = asyncio.ensure_future(listening)

    async def _judge(self, transcriber: Transcriber, audio: bytes) -> None:
        try:
            async with aclosing(transcriber.transcribe(audio, Listening())) as pieces:
                said = "".join([piece.text async for piece in pieces])
        except FaultError:
            return  # the usual silence ends it; the whole utterance is transcribed again
        self._detector.judge(said)

    def _stop(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
