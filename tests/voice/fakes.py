"""A synthesizer and a transcriber that take no time and need nothing installed."""

import asyncio
from array import array
from collections.abc import AsyncGenerator
from typing import ClassVar

from dragoman.core.error import Fault, FaultError
from dragoman.voice.sound import WavReader
from dragoman.voice.speech import Listening, Piece, Speaking, Word

MS_A_CHARACTER = 10


class Speaker:
    """Says each character in 10 ms of samples that are its number. `fault` ends the first sentence
    with it in its middle; `held` says a sentence but for its end until it is set."""

    ignores: ClassVar = ("instructions",)

    def __init__(self, fault: Fault | None = None, held: asyncio.Event | None = None) -> None:
        self.said: list[str] = []
        self.how: list[Speaking] = []
        self.expected: list[Speaking] = []
        self.made = 0
        self.stopped = 0
        self.closed = False
        self._fault = fault
        self._held = held

    def expect(self, how: Speaking) -> None:
        self.expected.append(how)

    async def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        self.said.append(text)
        self.how.append(how)
        finished = False
        try:
            for number, letter in enumerate(text):
                if number == len(text) // 2 and self._fault is not None:
                    raise FaultError(self._fault)
                if number == len(text) - 1 and self._held is not None:
                    await self._held.wait()
                self.made += 1
                yield array("h", [ord(letter)] * 24 * MS_A_CHARACTER).tobytes()
            finished = True
        finally:
            self.stopped += not finished

    async def close(self) -> None:
        self.closed = True


def read_wav(data: bytes) -> bytes:
    """PCM16 of a WAV file. Raises FaultError for what is none."""
    return WavReader().feed(data, last=True)


class Files:
    """Reads WAV files, in place of the library that reads all kinds in its process."""

    async def ask(self, head: dict, data: bytes) -> AsyncGenerator[tuple[dict, bytes], None]:
        try:
            pcm = read_wav(data)
        except FaultError as error:
            raise FaultError(Fault("upstream_error", error.fault.message, "upstream")) from None
        for start in range(0, len(pcm), 48_000):
            yield {}, pcm[start : start + 48_000]

    async def close(self) -> None: ...


def said_in(pcm: bytes) -> str:
    """What such sound says."""
    samples = array("h", pcm)
    return "".join(map(chr, samples[:: 24 * MS_A_CHARACTER]))


class Listener:
    """Understands what `Speaker` says, word by word."""

    ignores: ClassVar = ()

    def __init__(self, fault: Fault | None = None, held: asyncio.Event | None = None) -> None:
        self.asked: list[Listening] = []
        self.stopped = 0
        self.closed = False
        self._fault = fault
        self._held = held

    async def transcribe(self, pcm: bytes, asked: Listening) -> AsyncGenerator[Piece, None]:
        self.asked.append(asked)
        finished, place = False, 0.0
        try:
            for word in said_in(pcm).split():
                end = place + len(word) * MS_A_CHARACTER / 1000
                times = (Word(word, place, end),) if asked.words else ()
                yield Piece(f" {word}" if place else word, place, end, times)
                place = end + MS_A_CHARACTER / 1000
                if self._fault is not None:
                    raise FaultError(self._fault)
                if self._held is not None:
                    await self._held.wait()
            finished = True
        finally:
            self.stopped += not finished

    async def close(self) -> None:
        self.closed = True


def spoken(text: str) -> bytes:
    """What `Speaker` makes of a text."""
    return b"".join(array("h", [ord(c)] * 24 * MS_A_CHARACTER).tobytes() for c in text)
