"""Middleware that speaks an engine's answers, each sentence of the text when it is complete."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from typing import ClassVar, Literal

from msgspec.structs import replace

from dragoman.core.error import CUT, Fault, FaultError, bad_request
from dragoman.core.event import Delta, Event, Failed, ItemDone, PartAdded, PartDone
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import Audio, Message, Refusal, Text
from dragoman.core.request import Request
from dragoman.core.sound import milliseconds, to_base64
from dragoman.engines.base import ENDS, Prepared, Wrapper, fault_from

from .sentences import Sentences, speakable, words_in
from .speech import Speaking, Synthesizer

FORMAT = "pcm16"
_AHEAD = 256
"""Events that are read from the engine while a sentence is spoken."""
MOST_SOUND = 32 * 1024 * 1024
"""Bytes of the sound of one message: 11 minutes, as much as a session keeps of answers."""
_LARGE = 512 * 1024
_AUDIO_DELTA = 9_600
"""Bytes of sound in one event: a fifth of a second."""

TOO_LONG = Fault(
    "too_large",
    f"The answer has more than {milliseconds(MOST_SOUND) // 60_000} minutes of sound, and ends "
    "here: ask for shorter ones.",
    "server",
)


class Spoken(Wrapper):
    """Speaks the text of an engine's messages where a request asks for audio.

    A transcript delta is the text of the audio deltas that follow, up to the next one, so that
    players know which words were played. The engine is read ahead while a sentence is
    synthesized. Markup (Markdown) is in the transcript and not spoken.
    """

    acts_on: ClassVar[frozenset[object] | None] = None

    def __init__(self, engine: Engine, synthesizer: Synthesizer) -> None:
        super().__init__(engine)
        self._synthesizer = synthesizer
        self._how: Speaking | None = None  # of the last spoken answer

    def expect(self) -> None:
        """Prepare for a likely answer, with the options of the last one."""
        if self._how is not None:
            self._synthesizer.expect(self._how)

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """None for a request without audio."""
        self._how = None
        if "audio" not in (request.modalities or ()):
            return None
        with suppress(FaultError):  # the answer reports it
            self._how = speaking(request)
        self.expect()
        return Prepared(request, engine=_Speaker(self.engine, self._synthesizer))


class _Speaker(Wrapper):
    """The engine for requests with audio."""

    def __init__(self, engine: Engine, synthesizer: Synthesizer) -> None:
        super().__init__(engine)
        self._synthesizer = synthesizer

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """The engine's answer with its texts as sound."""
        try:
            how = speaking(request)
        except FaultError as error:
            yield Failed(error.fault)
            return
        asked = replace(request, modalities=None, audio=None)
        ahead: asyncio.Queue[Event] = asyncio.Queue(_AHEAD)
        reader = asyncio.ensure_future(self._read(asked, caller, ahead))
        parts: _Parts = {}
        try:
            while True:
                event = await ahead.get()
                async with aclosing(self._spoken(event, parts, how, caller)) as events:
                    async for spoken in events:
                        yield spoken
                if isinstance(event, ENDS):
                    return
        except FaultError as error:
            yield Failed(error.fault)
        finally:
            reader.cancel()
            await asyncio.wait((reader,))

    async def _read(self, request: Request, caller: Caller, ahead: asyncio.Queue[Event]) -> None:
        try:
            async with aclosing(self.engine.stream(request, caller)) as events:
                async for event in events:
                    await ahead.put(event)
            await ahead.put(Failed(CUT))  # not read, where it has ended before
        except Exception as error:
            await ahead.put(Failed(fault_from(error, caller.key)))

    async def _spoken(
        self, event: Event, parts: _Parts, how: Speaking, caller: Caller
    ) -> AsyncGenerator[Event, None]:
        place = getattr(event, "index", None), getattr(event, "part_index", 0)
        part = parts.get(place)
        match event:
            case PartAdded(index, number, Text() | Refusal()):
                parts[index, number] = _Part()
                yield PartAdded(index, number, Audio(format=FORMAT))
            case Delta(index, number, kind, data) if isinstance(part, _Part):
                for sentence in part.feed(data) if kind in ("text", "refusal") else ():
                    await asyncio.sleep(0)  # there may be many that are not spoken
                    async with aclosing(self._say(sentence, how, part, caller)) as deltas:
                        async for delta in deltas:
                            yield Delta(index, number, *delta)
            case PartDone(index, number) if isinstance(part, _Part):
                if rest := part.sentences.close():
                    async with aclosing(self._say(rest, how, part, caller)) as deltas:
                        async for delta in deltas:
                            yield Delta(index, number, *delta)
                parts[index, number] = audio = await part.audio()
                yield PartDone(index, number, audio)
            case ItemDone(index, Message() as message):
                content = [
                    spoken if isinstance(spoken := parts.get((index, number)), Audio) else given
                    for number, given in enumerate(message.parts)
                ]
                yield ItemDone(index, replace(message, content=tuple(content)))
            case Delta(kind="audio"):
                yield event
                await asyncio.sleep(0)  # many may have been read ahead
            case _:
                yield event

    async def _say(
        self, sentence: str, how: Speaking, part: _Part, caller: Caller
    ) -> AsyncGenerator[tuple[Literal["transcript", "audio"], str], None]:
        """The kind and the data of each delta for a sentence."""
        yield "transcript", sentence
        text = speakable(sentence)
        if not words_in(text):
            return
        held, made = b"", asyncio.Queue[bytes]()
        # In a task, as who reads the answer may pause: meanwhile the order would keep its place.
        reader = asyncio.ensure_future(self._make(text, how, part, caller, made))
        try:
            while pcm := await made.get():
                held += pcm
                # The first is sent at once, for a low latency.
                rest = len(held) % _AUDIO_DELTA if part.heard else 0
                part.heard = True
                whole = len(held) - rest
                for start in range(0, whole, _AUDIO_DELTA):
                    yield "audio", b64encode(held[start : start + _AUDIO_DELTA]).decode()
                held = held[whole:]
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if held:
            yield "audio", b64encode(held).decode()

    async def _make(
        self, text: str, how: Speaking, part: _Part, caller: Caller, made: asyncio.Queue[bytes]
    ) -> None:
        """Make the sound of a sentence. The last piece is an empty one, whatever happens."""
        try:
            async with aclosing(self._synthesizer.speak(text, how)) as sound:
                async for pcm in sound:
                    if caller.count is not None:
                        caller.count(len(pcm) * 4 // 3)  # in the end it is base64
                    part.sound += pcm
                    if len(part.sound) > MOST_SOUND:
                        raise FaultError(TOO_LONG)
                    if pcm:
                        made.put_nowait(pcm)
        finally:
            made.put_nowait(b"")


_Parts = dict[tuple[int | None, int], "_Part | Audio"]
"""The parts that are being spoken, or were, by item and number."""


class _Part:
    """A part that is being spoken."""

    def __init__(self) -> None:
        self.sentences = Sentences()
        self.heard = False
        self.sound = bytearray()
        self._text: list[str] = []

    def feed(self, text: str) -> Iterable[str]:
        self._text.append(text)
        return self.sentences.feed(text)

    async def audio(self) -> Audio:
        """The part so far. Much sound is encoded in a thread."""
        apart = len(self.sound) > _LARGE
        data = await asyncio.to_thread(to_base64, self.sound) if apart else to_base64(self.sound)
        return Audio(data or None, FORMAT, "".join(self._text) or None)


def speaking(request: Request) -> Speaking:
    """The speech options of a request."""
    audio = request.audio
    voice = getattr(audio, "voice", None)
    extra = (getattr(audio, "extra", None) or {}).get("realtime", {})
    speed = extra.get("speed", 1.0)
    if isinstance(voice, dict):  # a custom voice of OpenAI, by its id
        voice = voice.get("id")
    if not isinstance(voice, str | None) or not isinstance(speed, int | float):
        raise FaultError(bad_request("must be a name, and the speed a number", "voice"))
    return Speaking(voice=voice, speed=float(speed))
