"""Detects speech, transcribes it and speaks answers, for one session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Engine
from dragoman.core.session_values import (
    SpeechStarted,
    SpeechStopped,
    Transcription,
    TurnDetection,
)
from dragoman.core.sound import BYTES_PER_MS, Sound

from . import detection
from .detection import FRAME, Detector
from .sound import Telephone
from .speech import NO_SYNTHESIZER, NO_TRANSCRIBER, Listening, Synthesizer, Transcriber
from .spoken import Spoken


class Voice:
    """The ears and the mouth of one session; see `engines.session`."""

    def __init__(
        self,
        synthesizer: Synthesizer | None,
        transcriber: Transcriber | None,
        detector: str,
    ) -> None:
        self.synthesizer = synthesizer
        self.transcriber = transcriber
        self.scorer = detector
        """What finds speech, by name."""
        self.early: Early | None = None
        self.listening = Listening()
        """What the last turn was recognised with."""
        self._spoken: Spoken | None = None
        self._lines: dict[str, Telephone] = {}
        self._turn = asyncio.Lock()
        self._waiting = 0  # bytes of sound

    @property
    def transcribes(self) -> bool:
        """Whether `transcribe` can be asked."""
        return self.transcriber is not None

    @property
    def speaks(self) -> bool:
        """Whether `speaking` makes answers of sound."""
        return self.synthesizer is not None

    def detector(self, asked: TurnDetection) -> SessionDetector:
        """What finds the turns in what the client sends. Raises FaultError."""
        return SessionDetector(asked, self)

    async def transcribe(self, audio: Sound, asked: Transcription) -> AsyncGenerator[str, None]:
        """The words in some sound. Where somebody has paused and not gone on, they may be known. A
        session has one thing recognised at a time, so that it never keeps others from it."""
        if self.transcriber is None:
            raise FaultError(NO_TRANSCRIBER)
        early, self.early = self.early, None
        self.listening = listening = Listening(language=asked.language, prompt=asked.prompt)
        if (
            early is not None
            and early.is_of(audio, listening)
            and (said := await early.words()) is not None
        ):
            yield said
            return
        if self._waiting and self._waiting + len(audio) > _BACKLOG:
            raise FaultError(_TOO_MUCH)
        self._waiting += len(audio)
        try:
            async with self._turn:
                pieces = self.transcriber.transcribe(audio, listening)
                async with aclosing(pieces):
                    async for piece in pieces:
                        yield piece.text
        finally:
            self._waiting -= len(audio)

    def speaking(self, engine: Engine) -> Engine:
        """The engine, whose answers are spoken where that is asked for."""
        if self.synthesizer is None:
            raise FaultError(NO_SYNTHESIZER)
        self._spoken = Spoken(engine, self.synthesizer)
        return self._spoken

    def expect_answer(self) -> None:
        """The user has paused: if that was all, an answer is spoken next."""
        if self._spoken is not None:
            self._spoken.expect()

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


_BACKLOG = 600_000 * BYTES_PER_MS
"""Bytes of a session's sound that wait to be recognised."""
_TOO_MUCH = Fault("overloaded", "More than 10 minutes of sound wait to be recognised.", "client")
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

    def is_of(self, audio: Sound, listening: Listening) -> bool:
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
        transcriber = voice.transcriber
        self._semantic = semantic = asked.kind == "semantic_vad"
        self._transcriber = (
            transcriber if semantic or getattr(transcriber, "quick", False) else None
        )
        self._voice = voice
        self._detector = Detector(
            detection.scorer(voice.scorer, asked.threshold),
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
        if start is not None:
            self._voice.expect_answer()
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
