"""What a server speaks and listens with, by name, and the voice of one session."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from importlib import import_module
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
from .detection import FRAME, Detector
from .local import Library, LocalSynthesizer, LocalTranscriber
from .programs import ESpeak, Piper, Program
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
        """The voice of one session. It is begun to load what takes long: nobody has spoken yet."""
        if any(isinstance(each, Library | Program) for each in self._parts):
            loading = asyncio.ensure_future(self._load())
            _loading.add(loading)
            loading.add_done_callback(_loading.discard)
        return Voice(self)

    @property
    def _parts(self) -> tuple[Synthesizer | Transcriber | None, ...]:
        return self.synthesizer, self.transcriber

    async def _load(self) -> None:
        with suppress(FaultError):  # the first turn says what is wrong
            await self.prepare()

    async def prepare(self) -> None:
        """Load what takes long to load. Raises FaultError."""
        if any(isinstance(each, Library | Program) for each in self._parts):
            with suppress(ImportError):  # whoever needs it says so
                await asyncio.to_thread(import_module, "soxr")
        for each in self._parts:
            if isinstance(each, LocalSynthesizer | LocalTranscriber):
                await each.prepare()

    async def close(self) -> None:
        """End what was started."""
        for each in self._parts:
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


_loading: set[asyncio.Task[None]] = set()
"""What is being loaded: the loop alone would forget it."""


class Voice:
    """The ears and the mouth of one session; see `engines.session`."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.early: Early | None = None
        self.listening = Listening()
        """What the last turn was recognised with."""
        self._lines: dict[str, Telephone] = {}

    @property
    def hears(self) -> bool:
        """Whether `transcribe` can be asked."""
        return self.studio.transcriber is not None

    @property
    def speaks(self) -> bool:
        """Whether `speaking` makes answers of sound."""
        return self.studio.synthesizer is not None

    def detector(self, asked: TurnDetection) -> SessionDetector:
        """What finds the turns in what the client sends. Raises FaultError."""
        return SessionDetector(asked, self)

    async def transcribe(self, audio: bytes, asked: Transcription) -> AsyncGenerator[str, None]:
        """The words in some sound. Where somebody has paused and not gone on, they may be known."""
        if self.studio.transcriber is None:
            raise FaultError(NO_TRANSCRIBER)
        early, self.early = self.early, None
        self.listening = Listening(language=asked.language, prompt=asked.prompt)
        if (
            early is not None
            and early.is_of(audio, self.listening)
            and (said := await early.words()) is not None
        ):
            yield said
            return
        pieces = self.studio.transcriber.transcribe(audio, self.listening)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece.text

    def speaking(self, engine: Engine) -> Engine:
        """The engine, whose answers are spoken where that is asked for."""
        if self.studio.synthesizer is None:
            raise FaultError(NO_SYNTHESIZER)
        return Spoken(engine, self.studio.synthesizer)

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


class Early:
    """What was said until a pause: it is being recognised while it is waited for more.

    It is never cancelled: a library that is stopped has to be loaded again.
    """

    def __init__(self, transcriber: Transcriber, audio: bytes, listening: Listening) -> None:
        self.audio = audio
        self.listening = listening
        self._task = asyncio.ensure_future(self._recognise(transcriber))

    async def _recognise(self, transcriber: Transcriber) -> str | None:
        try:
            async with aclosing(transcriber.transcribe(self.audio, self.listening)) as pieces:
                return "".join([piece.text async for piece in pieces])
        except FaultError:
            return None  # the whole turn is recognised again, and says what is wrong

    def is_of(self, audio: bytes, listening: Listening) -> bool:
        """Whether it is of the beginning of some sound, and is recognised as that is to be."""
        return self.listening == listening and audio.startswith(self.audio)

    @property
    def done(self) -> bool:
        """Whether the words are known."""
        return self._task.done()

    async def words(self) -> str | None:
        """The words; None where they could not be recognised."""
        return await asyncio.shield(self._task)

    def then(self, call: Callable[[str], None]) -> None:
        """Call this with the words, if there are any."""

        def known(task: asyncio.Task[str | None]) -> None:
            if not task.cancelled() and (said := task.result()) is not None:
                call(said)

        self._task.add_done_callback(known)


class SessionDetector:
    """The detector of a session. When somebody pauses, what was said so far is recognised, where
    that is quick or semantic_vad has to know: one pause at a time."""

    def __init__(self, asked: TurnDetection, voice: Voice) -> None:
        transcriber = voice.studio.transcriber
        self._semantic = semantic = asked.kind == "semantic_vad"
        self._transcriber = (
            transcriber if semantic or getattr(transcriber, "quick", False) else None
        )
        self._voice = voice
        self._detector = Detector(
            detection.scorer(voice.studio.detector, asked.threshold),
            threshold=0.5 if semantic else asked.threshold,
            prefix_ms=asked.prefix_padding_ms,
            silence_ms=asked.silence_duration_ms,
            eagerness=asked.eagerness if semantic else None,
            ask=self._ask,
        )
        self._heard = bytearray()  # the latest sound
        self._fed = 0  # bytes
        self._running: Early | None = None

    def feed(self, audio: bytes) -> list[SpeechStarted | SpeechStopped]:
        """What became clear with this sound."""
        found: list[SpeechStarted | SpeechStopped] = []
        for place in range(0, len(audio), FRAME):  # so that what was heard ends at a pause
            piece = audio[place : place + FRAME]
            if self._transcriber is not None:
                self._heard += piece
                del self._heard[:-_RECENT]
            self._fed += len(piece)
            for event in self._detector.feed(piece):
                started = isinstance(event, detection.Started)
                found.append(SpeechStarted(event.at_ms) if started else SpeechStopped(event.at_ms))
        return found

    def reset(self) -> None:
        """Forget an utterance that has begun."""
        self._detector.reset()

    def _ask(self, start: int | None) -> None:
        self._voice.early = None
        if start is None or self._transcriber is None:
            return
        if self._running is not None and not self._running.done:
            return
        size = self._fed - start * BYTES_PER_MS
        if not 0 < size <= len(self._heard):
            return  # it is longer than what is kept
        audio = bytes(self._heard[len(self._heard) - size :])
        early = self._running = Early(self._transcriber, audio, self._voice.listening)
        self._voice.early = early
        if self._semantic:
            early.then(lambda said: self._judge(early, said))

    def _judge(self, early: Early, said: str) -> None:
        if self._voice.early is early:
            self._detector.judge(said)
