"""What a recogniser and a synthesizer are, and what they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Protocol

from msgspec import Struct

from dragoman.core.error import Fault, FaultError
from dragoman.core.sound import Sound

from .sound import EXTRA, WavReader


class Word(Struct, frozen=True):
    """A word, and the seconds at which it begins and ends."""

    word: str
    start: float
    end: float


class Piece(Struct, frozen=True):
    """A piece of a transcript; joined, they are all of it. `start` and `end` are seconds."""

    text: str
    start: float | None = None
    end: float | None = None
    words: tuple[Word, ...] = ()


class Listening(Struct, frozen=True, kw_only=True):
    """What a recogniser is asked: the language (ISO 639-1) and words that are likely, if known, and
    whether the times of words are wanted. A recording may have more than one utterance."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    words: bool = False
    recording: bool = False


class Speaking(Struct, frozen=True, kw_only=True):
    """How a synthesizer speaks: the voice by name, a speed of which 1 is usual, and instructions
    that some models follow."""

    model: str | None = None
    voice: str | None = None
    speed: float = 1.0
    instructions: str | None = None


class Transcriber(Protocol):
    """Turns speech into text."""

    @property
    def ignores(self) -> tuple[str, ...]:
        """Fields of `Listening` that it cannot follow."""
        ...

    def transcribe(self, pcm: Sound, asked: Listening) -> AsyncGenerator[Piece, None]:
        """The words in PCM16 at 24 kHz, as they are recognised. To stop it, close the generator.
        Raises FaultError."""
        ...

    def close(self) -> Awaitable[None]:
        """End what it has started."""
        ...


class Synthesizer(Protocol):
    """Turns text into speech."""

    @property
    def ignores(self) -> tuple[str, ...]:
        """Fields of `Speaking` that it cannot follow."""
        ...

    def expect(self, how: Speaking) -> None:
        """`speak` is likely to be called soon: do beforehand what can be done, within bounds."""
        ...

    def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16 at 24 kHz, as it is made. To stop it, close the generator. Raises FaultError."""
        ...

    def close(self) -> Awaitable[None]:
        """End what it has started."""
        ...


WAITING = 64
"""Orders that wait for one program or library at the most."""


class Places:
    """Places for so many orders at once. Others wait, and are served as they came."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._places = asyncio.Semaphore(most)
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._waiting == WAITING:
            problem = f"The server is busy: {WAITING} wait for {self._name} already; try again."
            raise FaultError(Fault("overloaded", problem, "server", retry_after="1"))
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *error: object) -> None:
        self._places.release()


def read_sound(name: str, reader: WavReader, data: bytes, *, last: bool = False) -> bytes:
    """PCM of the next bytes of a program or a server. Raises FaultError, which blames it."""
    try:
        return reader.feed(data, last=last)
    except FaultError as error:
        raise FaultError(failed(name, error.fault.message)) from None


def failed(name: str, problem: str) -> Fault:
    """The fault of a program or a library that speaks or listens for us."""
    return Fault("upstream_error", f"{name} failed: {problem}", "upstream")


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
