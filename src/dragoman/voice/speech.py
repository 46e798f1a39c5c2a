"""What a recogniser and a synthesizer are, and what they are asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from typing import Protocol

from msgspec import Struct

from dragoman.core.error import Fault, FaultError

from .sound import WavReader


class Piece(Struct, frozen=True):
    """A piece of a transcript; joined, they are all of it. `start` and `end` are seconds."""

    text: str
    start: float | None = None
    end: float | None = None


class Listening(Struct, frozen=True, kw_only=True):
    """What a recogniser is asked: the language (ISO 639-1) and words that are likely, if known."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class Speaking(Struct, frozen=True, kw_only=True):
    """How a synthesizer speaks: the voice by name, a speed of which 1 is usual, and instructions
    that some models follow."""

    model: str | None = None
    voice: str | None = None
    speed: float = 1.0
    instructions: str | None = None


class Transcriber(Protocol):
    """Turns speech into text."""

    def transcribe(self, pcm: bytes, asked: Listening) -> AsyncGenerator[Piece, None]:
        """The words in PCM16 at 24 kHz, as they are recognised. To stop it, close the generator.
        Raises FaultError."""
        ...

    def close(self) -> Awaitable[None]:
        """End what it has started."""
        ...


class Synthesizer(Protocol):
    """Turns text into speech."""

    def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16 at 24 kHz, as it is made. To stop it, close the generator. Raises FaultError."""
        ...

    def close(self) -> Awaitable[None]:
        """End what it has started."""
        ...


def read_sound(name: str, reader: WavReader, data: bytes, *, last: bool = False) -> bytes:
    """PCM of the next bytes of a program or a server. Raises FaultError, which blames it."""
    try:
        return reader.feed(data, last=last)
    except FaultError as error:
        raise FaultError(failed(name, error.fault.message)) from None


def failed(name: str, problem: str) -> Fault:
    """The fault of a program or a library that speaks or listens for us."""
    return Fault("upstream_error", f"{name} failed: {problem}", "upstream")
