"""Holds a voice conversation at a terminal: plays and shows it, with sound devices or files."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

from dragoman.client.conversation import Conversation
from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.event import Delta, Event, Failed, ItemAdded, ItemDone
from dragoman.core.item import FunctionCall, Message
from dragoman.core.session_values import (
    Answer,
    BufferSpeechStarted,
    Refused,
    ResponseCreated,
    ResponseDone,
    SessionEvent,
    TranscriptionCompleted,
    TranscriptionFailed,
    Truncate,
)
from dragoman.core.sound import RATE, milliseconds
from dragoman.tools.run import Result

from .detection import FRAME
from .sound import level

NO_DEVICE = (
    "The microphone and the speaker need sounddevice (pip install sounddevice), and on Linux "
    "PortAudio (apt install libportaudio2). With --input FILE and --output FILE.wav neither is "
    "needed."
)
SHOWN = 5
"""Frames between two levels on the screen."""
_QUIET, _BARS = -60.0, 12


class Screen(Protocol):
    """The display of a conversation."""

    def write(self, text: str) -> None:
        """Append to the line."""
        ...

    def line(self, text: str) -> None:
        """Begin a line."""
        ...

    def event(self, event: Event) -> None:
        """Show a call, or its result."""
        ...

    def status(self, text: str) -> None:
        """Show a status until the next output."""
        ...


class Playback:
    """The queue of sound to play, and the position in its item. The device's
    thread takes from it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[tuple[str, bytes]] = deque()
        self._item = ""
        self._played = 0  # bytes of it

    @property
    def playing(self) -> bool:
        """Whether there is anything to play."""
        return bool(self._queue)

    def add(self, item: str, pcm: bytes) -> None:
        """Queue sound of this item."""
        with self._lock:
            self._queue.append((item, pcm))

    def take(self, size: int) -> bytes:
        """The next bytes, filled up with silence."""
        taken = b""
        with self._lock:
            while self._queue and len(taken) < size:
                item, pcm = self._queue.popleft()
                if item != self._item:
                    self._item, self._played = item, 0
                piece, rest = pcm[: size - len(taken)], pcm[size - len(taken) :]
                if rest:
                    self._queue.appendleft((item, rest))
                taken += piece
                self._played += len(piece)
        return taken + bytes(size - len(taken))

    def stop(self) -> tuple[str, int] | None:
        """Stop playback. Returns the item that was being played, and its milliseconds played;
        None where the queue is empty."""
        with self._lock:
            if not self._queue:
                return None
            (item, _), played = self._queue[0], self._played
            if item != self._item:
                played = 0
            self._queue.clear()
            return item, milliseconds(played)


class Talk(Conversation):
    """A conversation that is shown and played. For `screen` and `changes` see `Screen` and
    `Conversation`. Speech interrupts the answer, which is truncated to what was played."""

    def __init__(self, *given: Any, screen: Screen, **changes: Any) -> None:
        super().__init__(*given, **changes)
        self.playback = Playback()
        self.faults: list[Fault] = []
        """The errors so far."""
        self._screen = screen
        self._changed = asyncio.Event()
        self._calling = False  # functions run, and the model continues with their results

    def receive(self, events: list[SessionEvent]) -> None:
        """Take events of the session."""
        super().receive(events)
        for event in events:
            self._show(event)
        self._changed.set()

    def ended(self, fault: Fault) -> None:
        """End: the session is over."""
        super().ended(fault)
        self._changed.set()

    async def run(self, calls: Iterable[FunctionCall]) -> list[Result]:
        """Run calls, and show their results."""
        results = await super().run(calls)
        for result in results:
            self._screen.event(ItemDone(0, result.output))
        self._calling = any(result.after == "model" for result in results)
        self._changed.set()
        return results

    def _show(self, event: SessionEvent) -> None:
        match event:
            case BufferSpeechStarted():
                if (stopped := self.playback.stop()) is not None:
                    item, ms = stopped
                    cut = Truncate(item_id=item, content_index=0, audio_end_ms=ms)
                    # The session is still processing this event.
                    asyncio.get_running_loop().call_soon(self.live.send, cut)
                    self._screen.line("(interrupted)\n")
            case TranscriptionCompleted(transcript=text):
                self._screen.line(f"> {text.strip()}\n")
            case TranscriptionFailed(fault=fault) | Refused(event_id=None, fault=fault):
                self.fail(fault)
            case ResponseCreated():
                self._calling = False
            case Answer(event=Delta(kind="audio", data=data), item_id=item):
                self.playback.add(item, b64decode(data))
            case Answer(event=Delta(kind="transcript" | "text", data=str(text))):
                self._screen.write(text)
            case Answer(event=ItemDone(item=FunctionCall()) as done):
                self._screen.event(done)
            case Answer(event=ItemAdded(item=Message()) | ItemDone(item=Message())):
                self._screen.line("")
            case ResponseDone(response=response):
                if response.fault is not None:
                    self.fail(response.fault)
                calls = any(isinstance(item, FunctionCall) for item in response.output)
                self._calling = calls and response.status == "completed"

    def fail(self, fault: Fault) -> None:
        """Show an error."""
        self.faults.append(fault)
        self._screen.event(Failed(fault))

    def _levels(self, recorded: bytes, played: bytes) -> None:
        self._screen.status(f"you {bars(recorded)}  model {bars(played)}")

    async def _say(self, source: AsyncIterator[bytes]) -> None:
        try:
            async for _ in self.full_duplex(source):
                pass  # events are shown as they arrive
        except FaultError as error:
            self.fail(error.fault)

    # ---- files ---------------------------------------------------------------------------------

    async def with_file(self, spoken: bytes) -> bytes:
        """Send a recording. Returns what is played: the clock stops while the model generates, so
        that it does not depend on its speed."""
        output: list[bytes] = []

        def step(frame: bytes) -> None:
            output.append(self.playback.take(FRAME))
            if len(output) % SHOWN == 0:
                self._levels(frame, output[-1])

        async def source() -> AsyncIterator[bytes]:
            for place in range(0, len(spoken), FRAME):
                while (self.active or self._calling) and not self.playback.playing:
                    self._changed.clear()
                    await self._changed.wait()
                frame = spoken[place : place + FRAME]
                yield frame + bytes(FRAME - len(frame))
                step(frame)

        await self._say(source())
        while self.playback.playing:
            step(b"")
        self._screen.status("")
        return b"".join(output)

    # ---- devices -------------------------------------------------------------------------------

    async def with_devices(self) -> None:
        """Talk with the microphone and the speaker until the session ends. Raises FaultError where
        there are none."""
        loop, frames = asyncio.get_running_loop(), asyncio.Queue[bytes]()
        played = b""

        def record(data: Any, *_: object) -> None:
            loop.call_soon_threadsafe(frames.put_nowait, bytes(data))

        def play(data: Any, *_: object) -> None:
            nonlocal played
            data[:] = played = self.playback.take(len(data))

        async def source() -> AsyncIterator[bytes]:
            while True:
                for _ in range(SHOWN):
                    yield (frame := await frames.get())
                self._levels(frame, played)

        with _devices(record, play):
            await self._say(source())


@contextmanager
def _devices(record: Any, play: Any) -> Any:
    """Open the microphone and the speaker."""
    try:
        devices: Any = import_module("sounddevice")
    except (ImportError, OSError):  # OSError: there is no PortAudio
        raise FaultError(bad_request(NO_DEVICE)) from None
    form = {"samplerate": RATE, "channels": 1, "dtype": "int16", "blocksize": FRAME // 2}
    try:
        streams = (
            devices.RawInputStream(callback=record, **form),
            devices.RawOutputStream(callback=play, **form),
        )
    except devices.PortAudioError as error:
        problem = f"The microphone or the speaker cannot be used: {error}."
        raise FaultError(bad_request(problem)) from None
    with streams[0], streams[1]:
        yield


def bars(pcm: bytes) -> str:
    """The level of some sound, as a bar.

    >>> bars(b"\\0" * 960), bars(b"\\xff\\x7f\\1\\x80" * 240)
    ('············', '▮▮▮▮▮▮▮▮▮▮▮▮')
    """
    full = round(_BARS * (1 - max(level(pcm), _QUIET) / _QUIET)) if pcm else 0
    return "▮" * full + "·" * (_BARS - full)
