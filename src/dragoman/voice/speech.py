"""Protocols of recognisers and synthesizers, and their options."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec import Struct

from dragoman.core.error import Fault, FaultError
from dragoman.core.sound import Sound
from dragoman.net.threads import TenantLock, reading

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
    """Options of a recognition: the language (ISO 639-1) and likely words, if known, and
    whether the times of words are requested. A recording may have more than one utterance."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    words: bool = False
    recording: bool = False


class Speaking(Struct, frozen=True, kw_only=True):
    """Options of a synthesis: the voice by name, a speed (1 is normal), and instructions
    that some models follow."""

    model: str | None = None
    voice: str | None = None
    speed: float = 1.0
    instructions: str | None = None


class Transcriber(Protocol):
    """Turns speech into text."""

    @property
    def ignores(self) -> tuple[str, ...]:
        """Fields of `Listening` that it ignores."""
        ...

    def transcribe(self, pcm: Sound, asked: Listening) -> AsyncGenerator[Piece, None]:
        """The transcript of PCM16 at 24 kHz, streamed. To stop it, close the generator.
        Raises FaultError."""
        ...

    def close(self) -> Awaitable[None]:
        """End its processes."""
        ...


class Synthesizer(Protocol):
    """Turns text into speech."""

    @property
    def ignores(self) -> tuple[str, ...]:
        """Fields of `Speaking` that it ignores."""
        ...

    def expect(self, how: Speaking) -> None:
        """Prepare for a likely call of `speak`."""
        ...

    def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16 at 24 kHz, streamed. To stop it, close the generator. Raises FaultError."""
        ...

    def close(self) -> Awaitable[None]:
        """End its processes."""
        ...


WAITING = 64
"""The most orders of a tenant that wait for one program or library."""


class Places:
    """Places for so many concurrent orders. Tenants that wait take turns, and where there are
    several, one place is left to the others."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._places = TenantLock(most, most, left=1)
        self._waiting: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A place for an order. Raises FaultError where too many of the tenant wait."""
        tenant = reading.get()
        if self._waiting[tenant] >= WAITING:
            problem = f"The server is busy: {WAITING} wait for {self._name} already; try again."
            raise FaultError(Fault("overloaded", problem, "server", retry_after="1"))
        self._waiting[tenant] += 1
        try:
            await self._places.acquire(tenant)
        finally:
            self._waiting -= Counter((tenant,))
        try:
            yield
        finally:
            self._places.release(tenant)


def read_sound(name: str, reader: WavReader, data: bytes, *, last: bool = False) -> bytes:
    """PCM of the next bytes of a program or a server. Raises FaultError, with its name."""
    try:
        return reader.feed(data, last=last)
    except FaultError as error:
        raise FaultError(failed(name, error.fault.message)) from None


def failed(name: str, problem: str) -> Fault:
    """The fault for a failed speech program or library."""
    return Fault("upstream_error", f"{name} failed: {problem}", "upstream")


NO_SYNTHESIZER = Fault(
    "unsupported",
    f"This server cannot speak: install espeak-ng, and {EXTRA}; or name a synthesizer (speech = "
    "espeak-ng, piper=FILE, kokoro=FILE or the URL of a server with /audio/speech).",
)
NO_TRANSCRIBER = Fault(
    "unsupported",
    f"This server does not understand speech: {EXTRA} brings pocketsphinx, or name a recogniser "
    "(transcription = pocketsphinx=GRAMMAR, faster-whisper=MODEL or the URL of a server with "
    "/audio/transcriptions).",
)
