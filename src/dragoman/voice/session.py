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
    """The speech backends of one session; see `engines.session`."""

    def __init__(
        self,
        synthesizer: Synthesizer | None,
        transcriber: Transcriber | None,
        detector: str,
    ) -> None:
        self.synthesizer = synthesizer
        self.transcriber = transcriber
        self.scorer = detector
        """The name of the detector."""
        self.early: Early | None = None
        self.running: Early | None = None
        """The last early recognition, maybe of a pause that is over: there is one at a time."""
        self.listening = Listening()
        """The options of the last recognition."""
        self._spoken: Spoken | None = None
        self._lines: dict[str, Telephone] = {}
        self._turn = asyncio.Lock()
        self._waiting = 0  # bytes of sound

    @property
    def transcribes(self) -> bool:
        """Whether `transcribe` can be called."""
        return self.transcriber is not None

    @property
    def speaks(self) -> bool:
        """Whether `speaking` adds sound to answers."""
        return self.synthesizer is not None

    def detector(self, asked: TurnDetection) -> SessionDetector:
        """A detector of turns. Raises FaultError."""
        return SessionDetector(asked, self)

    async def transcribe(self, audio: Sound, asked: Transcription) -> AsyncGenerator[str, None]:
        """The transcript of some sound, which may be known since a pause. A
        session recognises one turn at a time, so that it does not block other sessions."""
        if self.transcriber is None:
            raise FaultError(NO_TRANSCRIBER)
        early, self.early = self.early, None
        self.listening = listening = Listening(language=asked.language, prompt=asked.prompt)
        if (
            early is not None
            and early.is_of(audio, listening)
            and (words := await early.words()) is not None
        ):
            yield words
            return
        size = max(len(audio), _LEAST)
        if self._waiting and self._waiting + size > _BACKLOG:
            raise FaultError(_TOO_MUCH)
        self._waiting += size
        try:
            async with self._turn:
                pieces = self.transcriber.transcribe(audio, listening)
                async with aclosing(pieces):
                    async for piece in pieces:
                        yield piece.text
        finally:
            self._waiting -= size

    def speaking(self, engine: Engine) -> Engine:
        """The engine, with spoken answers where a request has audio."""
        if self.synthesizer is None:
            raise FaultError(NO_SYNTHESIZER)
        self._spoken = Spoken(engine, self.synthesizer)
        return self._spoken

    def expect_answer(self) -> None:
        """Prepare speech at a pause: an answer may follow."""
        if self._spoken is not None:
            self._spoken.expect()

    def decode(self, audio: bytes, format: str) -> bytes:
        """Decode G.711, `pcmu` or `pcma`, to PCM16."""
        return self._line(format).decode(audio)

    def encode(self, audio: bytes, format: str) -> bytes:
        """Encode PCM16 as G.711."""
        return self._line(format).encode(audio)

    def close(self) -> None:
        """The session has ended: what it only expected is not recognised."""
        if self.running is not None:
            self.running.cancel()

    def _line(self, format: str) -> Telephone:
        if format not in self._lines:
            self._lines[format] = Telephone(format)
        return self._lines[format]


_BACKLOG = 600_000 * BYTES_PER_MS
"""Bytes of a session's sound that wait to be recognised."""
_LEAST = 1_000 * BYTES_PER_MS
"""What a piece of it counts for at the least: each is a task, which its item may not outlive."""
_TOO_MUCH = Fault("overloaded", "More than 10 minutes of sound wait to be recognised.", "client")
_RECENT = 30_000 * BYTES_PER_MS
"""Bytes of the latest sound that are kept for recognition at a pause."""


class Early:
    """The recognition of a turn up to a pause, started while more may follow.

    It is cancelled only with its session: a library that is killed has to be loaded again.
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
            return None  # the whole turn is recognised again, and reports the error

    def is_of(self, audio: Sound, listening: Listening) -> bool:
        """Whether it is of the beginning of this sound, with the same options."""
        return self.listening == listening and audio.startswith(self.audio)

    @property
    def done(self) -> bool:
        """Whether the recognition has ended."""
        return self._task.done()

    def cancel(self) -> None:
        """End the recognition."""
        self._task.cancel()

    async def words(self) -> str | None:
        """The transcript; None if the recognition failed."""
        return await asyncio.shield(self._task)

    def then(self, call: Callable[[str], None]) -> None:
        """Call this with the transcript, if there is one."""

        def known(task: asyncio.Task[str | None]) -> None:
            if not task.cancelled() and (words := task.result()) is not None:
                call(words)

        self._task.add_done_callback(known)


class SessionDetector:
    """The detector of a session. At a pause, the turn so far is recognised, if that
    is quick or semantic_vad needs it: one pause at a time."""

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
        self._recent = bytearray()  # the latest sound
        self._fed = 0  # bytes

    def feed(self, audio: bytes) -> list[SpeechStarted | SpeechStopped]:
        """Process sound, and return the events it completes."""
        found: list[SpeechStarted | SpeechStopped] = []
        for place in range(0, len(audio), FRAME):  # so that `_recent` ends at a pause
            piece = audio[place : place + FRAME]
            if self._transcriber is not None:
                self._recent += piece
                del self._recent[:-_RECENT]
            self._fed += len(piece)
            for event in self._detector.feed(piece):
                started = isinstance(event, detection.Started)
                found.append(SpeechStarted(event.at_ms) if started else SpeechStopped(event.at_ms))
        return found

    def reset(self) -> None:
        """Drop an utterance that has begun."""
        self._detector.reset()

    def _ask(self, start: int | None) -> None:
        self._voice.early = None
        if start is not None:
            self._voice.expect_answer()
        if start is None or self._transcriber is None:
            return
        if self._voice.running is not None and not self._voice.running.done:
            return
        size = self._fed - start * BYTES_PER_MS
        if not 0 < size <= len(self._recent):
            return  # it is longer than `_RECENT`
        audio = bytes(self._recent[len(self._recent) - size :])
        early = Early(self._transcriber, audio, self._voice.listening)
        self._voice.early = self._voice.running = early
        if self._semantic:
            early.then(lambda words: self._judge(early, words))

    def _judge(self, early: Early, words: str) -> None:
        if self._voice.early is early:
            self._detector.judge(words)
