"""`dragoman talk`: a conversation by voice, by microphone and speaker or by WAV files."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from argparse import Namespace
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta, ItemAdded, ItemDone
from dragoman.core.item import FunctionCall, Message
from dragoman.core.session_values import (
    Answer,
    Append,
    BufferSpeechStarted,
    BufferSpeechStopped,
    CreateItem,
    Refused,
    Respond,
    ResponseCreated,
    ResponseDone,
    SessionConfig,
    SessionEvent,
    Transcription,
    TranscriptionCompleted,
    TranscriptionFailed,
    Truncate,
)
from dragoman.engines.local import POCKET
from dragoman.engines.session import LiveSession, TurnSession
from dragoman.server.build import studio_of
from dragoman.server.config import ConfigurationError, explained
from dragoman.server.settings import Settings
from dragoman.tools.function import PythonTool
from dragoman.tools.run import Context, Runner
from dragoman.voice.sound import BYTES_PER_MS, RATE, read_wav, wav
from dragoman.voice.studio import NO_SYNTHESIZER, NO_TRANSCRIBER, Studio

from .chat import Renderer, _client, _in_file

FRAME_MS = 20
FRAME = FRAME_MS * BYTES_PER_MS
SETTLE_MS = 3_000
"""Silence behind a WAV file, in which its last turn ends."""
NO_DEVICE = (
    "The microphone and the speaker need sounddevice (pip install sounddevice), and on Linux "
    "libportaudio2. With --input FILE.wav, and --output FILE.wav, neither is needed."
)
ECHO = "Speak; Ctrl-C ends. Without headphones the answers may interrupt themselves."


class Playback:
    """The sound that is to be played, and how much of the item it is of was played. The device's
    thread takes from it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[tuple[str, bytes]] = deque()
        self._item = ""
        self._played = 0  # bytes, of that

    @property
    def playing(self) -> bool:
        """Whether there is anything to play."""
        return bool(self._queue)

    def add(self, item: str, pcm: bytes) -> None:
        """Play this too, which is of this item."""
        with self._lock:
            self._queue.append((item, pcm))

    def take(self, size: int) -> bytes:
        """The next bytes, and silence where there are none."""
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
        """Play no more. The item that was being played, and how many milliseconds of it were heard;
        None where nothing is unheard."""
        with self._lock:
            if not self._queue:
                return None
            (item, _), played = self._queue[0], self._played
            if item != self._item:
                played = 0
            self._queue.clear()
            return item, played // BYTES_PER_MS


class Talk:
    """One conversation: shows what is said, plays it, and runs the tools. It is the sink of its
    session."""

    session: LiveSession

    def __init__(self, tools: Sequence[PythonTool], renderer: Renderer) -> None:
        self.runner = Runner(tools)
        self.playback = Playback()
        self.changed = asyncio.Event()
        self.over = asyncio.Event()
        self.working = 0
        """Answers and calls that are going on."""
        self.hearing = False
        """Whether somebody is speaking."""
        self._renderer = renderer
        self._calls: list[FunctionCall] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.faults: list[str] = []

    def receive(self, events: list[SessionEvent]) -> None:
        """Take events of the session."""
        for event in events:
            self._take(event)
        self.changed.set()

    def ended(self, fault: Fault) -> None:
        """The session is over."""
        self._fail(fault.message)
        self.over.set()
        self.changed.set()

    def _take(self, event: SessionEvent) -> None:
        match event:
            case BufferSpeechStarted():
                self.hearing = True
                if (unheard := self.playback.stop()) is not None:
                    item, ms = unheard
                    cut = Truncate(item_id=item, content_index=0, audio_end_ms=ms)
                    # The session is in the middle of this event.
                    asyncio.get_running_loop().call_soon(self.session.send, cut)
                    self._renderer.line("(interrupted)\n")
            case BufferSpeechStopped():
                self.hearing = False
            case TranscriptionCompleted(transcript=text):
                self._renderer.line(f"> {text.strip()}\n")
            case TranscriptionFailed(fault=fault) | Refused(fault=fault):
                self._fail(fault.message)
            case ResponseCreated():
                self.working += 1
            case Answer(event=Delta(kind="audio", data=data), item_id=item):
                self.playback.add(item, b64decode(data))
            case Answer(event=Delta(kind="transcript" | "text", data=text)):
                self._renderer.write(text)
            case Answer(event=ItemDone(item=FunctionCall() as call) as done):
                self._renderer.event(done)
                self._calls.append(call)
            case Answer(event=ItemAdded(item=Message()) | ItemDone(item=Message())):
                self._renderer.line("")
            case ResponseDone(response=response):
                calls, self._calls = self._calls, []
                if response.fault is not None:
                    self._fail(response.fault.message)
                if response.status == "completed" and calls:
                    task = asyncio.ensure_future(self._run(calls))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    self.working -= 1

    async def _run(self, calls: Sequence[FunctionCall]) -> None:
        """Run calls side by side, and have the model say what came of them."""
        results = await asyncio.gather(*(self.runner.run(each, Context(each)) for each in calls))
        for result in results:
            self._renderer.event(ItemDone(0, result.output))
            self.session.send(CreateItem(item=result.output))
        self.working -= 1
        self.session.send(Respond())
        self.changed.set()

    def _fail(self, problem: str) -> None:
        self.faults.append(problem)
        self._renderer.line("")
        print(f"dragoman: {problem}", file=sys.stderr, flush=True)

    async def close(self) -> None:
        """End the conversation."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.session.close()


def talk(options: Namespace) -> int:
    """Hold a conversation by voice."""
    try:
        return asyncio.run(_talk(options))
    except KeyboardInterrupt:
        return 0


async def _talk(options: Namespace) -> int:
    given = {"speech": options.speech, "transcription": options.transcription}
    settings = replace(Settings(), **{k: v for k, v in given.items() if v is not None})
    if options.output and not options.input:
        raise ConfigurationError("--output is for what is said to an --input.")
    spoken = _read(options.input) if options.input else None
    output = options.output
    talking = Talk(
        [each for path in options.tools for each in _in_file(Path(path), PythonTool)],
        Renderer(sys.stdout.isatty()),
    )
    client = await _client(options)
    studio = Studio(None, None)
    try:
        model = options.model or next(iter(await client.models())).id
        studio = studio_of(settings, os.environ, pocket=model == POCKET)
        lacks = ((studio.synthesizer, NO_SYNTHESIZER), (studio.transcriber, NO_TRANSCRIBER))
        for part, missing in lacks:
            if part is None:
                raise FaultError(missing)
        config = SessionConfig(
            model=model,
            instructions=options.system or "",
            tools=talking.runner.offered(),
            voice=options.voice or "alloy",
            transcription=Transcription(),
        )
        await studio.prepare()
        session = TurnSession(client, config, sink=talking, voice=studio.open())
        talking.session = session
        await session.open()
        try:
            if spoken is not None:
                heard = [frame async for frame in _with_file(talking, spoken)]
                if output:
                    _write(output, b"".join(heard))
            else:
                await _with_devices(talking)
        finally:
            await talking.close()
    finally:
        await studio.close()
        await client.close()
    return 1 if talking.faults else 0


async def _with_file(talking: Talk, spoken: bytes) -> AsyncIterator[bytes]:
    """What the user hears, in frames, while they say what is in a file. The file waits while the
    model thinks, so that the outcome does not depend on its speed."""
    place, silence = 0, 0
    while not talking.over.is_set():
        if talking.working and not talking.playback.playing:
            talking.changed.clear()
            await talking.changed.wait()
            continue
        frame = spoken[place : place + FRAME]
        place += FRAME
        talking.session.send(Append(audio=frame + bytes(FRAME - len(frame))))
        await asyncio.sleep(0)
        yield talking.playback.take(FRAME)
        if place >= len(spoken) and not (talking.working or talking.playback.playing):
            silence = 0 if talking.hearing else silence + FRAME_MS
            if silence >= SETTLE_MS:
                return


async def _with_devices(talking: Talk) -> None:
    """Talk until Ctrl-C, with the microphone and the speaker."""
    try:
        devices: Any = import_module("sounddevice")
    except (ImportError, OSError):  # OSError: there is no PortAudio
        raise ConfigurationError(NO_DEVICE) from None
    loop = asyncio.get_running_loop()

    def heard(data: Any, *_: object) -> None:
        loop.call_soon_threadsafe(talking.session.send, Append(audio=bytes(data)))

    def play(data: Any, *_: object) -> None:
        data[:] = talking.playback.take(len(data))

    form = {"samplerate": RATE, "channels": 1, "dtype": "int16", "blocksize": FRAME // 2}
    print(ECHO, file=sys.stderr)
    with explained("The microphone or the speaker cannot be used: "):
        try:
            streams = (
                devices.RawInputStream(callback=heard, **form),
                devices.RawOutputStream(callback=play, **form),
            )
        except devices.PortAudioError as error:
            raise ValueError(f"{error}.") from None
    with streams[0], streams[1]:
        await talking.over.wait()


def _read(path: Path) -> bytes:
    try:
        return read_wav(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except FaultError as error:
        raise ConfigurationError(f"{path}: {error.fault.message}") from None


def _write(path: Path, pcm: bytes) -> None:
    try:
        path.write_bytes(wav(pcm))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None
