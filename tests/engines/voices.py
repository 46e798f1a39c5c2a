"""A voice that needs no sound: speech is what is not silence, and a letter takes a millisecond."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from dragoman.core.event import Delta, Event, PartAdded, PartDone
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import Audio, Text
from dragoman.core.request import Request
from dragoman.core.session_values import (
    SpeechStarted,
    SpeechStopped,
    Transcription,
    TurnDetection,
)
from dragoman.core.sound import BYTES_PER_MS
from dragoman.engines.base import Wrapper

LOUD, QUIET = b"\1\1" * 24, b"\0\0" * 24
"""A millisecond of speech, and one of silence."""


class Ears:
    """A detector: speech is what is not silence, and ends at the first silence."""

    def __init__(self) -> None:
        self.position = 0
        self.speaking = False
        self.resets = 0

    def feed(self, audio: bytes) -> list[Any]:
        found: list[Any] = []
        for at in range(0, len(audio), BYTES_PER_MS):
            loud = audio[at : at + BYTES_PER_MS] == LOUD
            if loud != self.speaking:
                self.speaking = loud
                found.append((SpeechStarted if loud else SpeechStopped)(self.position))
            self.position += 1
        return found

    def reset(self) -> None:
        self.resets += 1
        self.speaking = False


class Speaking(Wrapper):
    """Speaks an engine's text: a millisecond for each letter."""

    letter = LOUD

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(super().stream(request, caller)) as events:
            async for event in events:
                match event:
                    case PartAdded():
                        yield PartAdded(event.index, 0, Audio(format="pcm16"))
                    case Delta(data=text):
                        yield Delta(event.index, 0, "transcript", text)
                        sound = b64encode(self.letter * len(text)).decode()
                        yield Delta(event.index, 0, "audio", sound)
                    case PartDone(part=Text(text=text)):
                        yield PartDone(event.index, 0, Audio(format="pcm16", transcript=text))
                    case _:
                        yield event


class Voice:
    """A voice whose every utterance is the same words, unless they cannot be heard."""

    def __init__(self, *, transcribes: bool = True, speaks: bool = True) -> None:
        self.transcribes = transcribes
        self.speaks = speaks
        self.ears: list[Ears] = []
        self.words: list[Any] = ["Good ", "day. "]
        self.heard: list[bytes] = []
        self.closed = False
        self.options: list[Transcription] = []

    def detector(self, detection: TurnDetection) -> Ears:
        self.ears.append(Ears())
        return self.ears[-1]

    async def transcribe(self, audio: bytes, options: Transcription) -> AsyncGenerator[str, None]:
        self.heard.append(audio)
        self.options.append(options)
        for each in self.words:
            if isinstance(each, Exception):
                raise each
            if isinstance(each, asyncio.Event):
                await each.wait()
            else:
                yield each

    def speaking(self, engine: Engine) -> Engine:
        return Speaking(engine)

    def decode(self, audio: bytes, format: str) -> bytes:
        return b"".join(bytes((byte, byte)) * 3 for byte in audio)

    def encode(self, audio: bytes, format: str) -> bytes:
        return audio[::6]

    def close(self) -> None:
        self.closed = True
