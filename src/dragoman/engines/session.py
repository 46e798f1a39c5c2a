"""Runs a session over a turn engine and a voice: the driver of `core.session`.

Everything runs on one event loop. Commands are processed at once; what must be awaited (an answer,
a transcript) is a task or a handle of its own, so that neither clients nor models block
later commands.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, Protocol

from msgspec.structs import replace

from dragoman.core.conversation import with_sounds
from dragoman.core.error import Fault, unsupported
from dragoman.core.event import Delta, Event
from dragoman.core.interfaces import ANYONE, Caller, Engine, Handle
from dragoman.core.request import Request
from dragoman.core.session import LIMITS, TOO_OLD, Session
from dragoman.core.session_values import (
    Answer,
    Answered,
    Append,
    AudioFormat,
    Command,
    Configure,
    Forget,
    Generate,
    Refused,
    Report,
    ResponseCreated,
    ResponseDone,
    SessionConfig,
    SessionEvent,
    SessionLimits,
    SpeechStarted,
    SpeechStopped,
    Stop,
    Tick,
    Transcribe,
    Transcribed,
    Transcription,
    TurnDetection,
    Unreadable,
)
from dragoman.core.sound import BYTES_PER_MS, Sound

from .base import Prepared, Wrapper, fault_from, new_id, now, start, wait_closed

PIECE_MS = 1_000
"""Sound that is taken at once: a detector needs 5 ms of CPU for it, and is never further behind
than the session allows."""
LARGE = 64 * 1024
"""Bytes of a request that is worked on in a thread."""
CLOSED = Fault("cancelled", "The session was closed.", "client")


class Detector(Protocol):
    """Detects where speech begins and ends. It counts samples and has no clock: the same
    sound in any pieces gives the same reports."""

    def feed(self, audio: bytes) -> Iterable[SpeechStarted | SpeechStopped]:
        """Process sound. Returns the detected events, with positions since the detector began."""
        ...

    def reset(self) -> None:
        """Drop an utterance that has begun; the position is not reset."""
        ...


class Voice(Protocol):
    """Speech recognition and synthesis of one session. Sound is PCM16, 24 kHz."""

    @property
    def transcribes(self) -> bool:
        """Whether there is a recogniser, so that `transcribe` can be called."""
        ...

    @property
    def speaks(self) -> bool:
        """Whether there is a synthesizer, so that `speaking` adds sound to answers."""
        ...

    def detector(self, detection: TurnDetection) -> Detector:
        """A detector of turns."""
        ...

    def transcribe(self, audio: Sound, options: Transcription) -> AsyncGenerator[str, None]:
        """The transcript, in pieces. Raises FaultError; closing it stops the work."""
        ...

    def speaking(self, engine: Engine) -> Engine:
        """The engine, whose text becomes sound where a request's `modalities` have "audio"."""
        ...

    def decode(self, audio: bytes, format: str) -> bytes:
        """G.711 (`pcmu`, `pcma`) as PCM16."""
        ...

    def encode(self, audio: bytes, format: str) -> bytes:
        """PCM16 as G.711."""
        ...

    def close(self) -> None:
        """The session has ended."""
        ...


class SessionSink(Protocol):
    """Receives the events of a session."""

    def receive(self, events: list[SessionEvent]) -> None:
        """Process the next events, at least one. It is called on the event loop, and must not block
        or raise."""
        ...

    def ended(self, fault: Fault) -> None:
        """The session has ended, for this reason; nothing more is received. It is not called after
        `close`."""
        ...


class LiveSession(Protocol):
    """An open session: over a turn engine, or of another server."""

    def send(self, command: Command) -> None:
        """Send a command. Its results, errors too, are events."""
        ...

    async def open(self) -> None:
        """Open the session. Raises FaultError."""
        ...

    async def drain(self) -> None:
        """Wait until most commands are processed."""
        ...

    def pause(self) -> None:
        """Pause the answers until `resume`: the client does not read."""
        ...

    def resume(self) -> None:
        """Resume the answers."""
        ...

    async def close(self) -> None:
        """End the session and all its work. The sink receives nothing more."""
        ...


class _Turn:
    """The sink of one answer. It does not refer to its handle: a reference cycle would keep
    the session, with all its sound, until the garbage collector runs."""

    def __init__(self, session: TurnSession, response_id: str) -> None:
        self._session = session
        self._response_id = response_id

    def receive(self, events: list[Event]) -> None:
        self._session.report(Answered(self._response_id, events))


Apart = Callable[..., Awaitable[Any]]
"""Calls a function with its arguments in a thread."""


class _WithSounds(Wrapper):
    """An engine whose requests get the user's sound."""

    def __init__(self, engine: Engine, sounds: tuple[Sound, ...], apart: Apart) -> None:
        super().__init__(engine)
        self._sounds = sounds
        self._apart = apart

    async def prepare(self, request: Request, caller: Caller) -> Prepared:
        """Encode the sounds."""
        items = await self._apart(with_sounds, request.items, self._sounds)
        return Prepared(replace(request, items=items))


class TurnSession:
    """A session over an engine that answers one request at a time.

    Without a `voice` it is a session of text: models with audio input get the user's sound as it
    is, and only the client ends turns. `engine` is asked as `caller`. What takes long is done
    `apart`, in a thread; `counted` accounts for answers that are made.
    """

    def __init__(
        self,
        engine: Engine,
        config: SessionConfig,
        caller: Caller = ANYONE,
        sink: SessionSink | None = None,
        voice: Voice | None = None,
        limits: SessionLimits = LIMITS,
        apart: Apart = asyncio.to_thread,
        counted: Callable[[Engine], Engine] | None = None,
    ) -> None:
        speaks = voice is not None and voice.speaks
        self._engine = voice.speaking(engine) if voice is not None and speaks else engine
        if counted is not None:
            self._engine = counted(self._engine)
        self._caller = caller
        self.sink = sink
        self._voice = voice
        self._limits = limits
        self._apart = apart
        self.session = Session(
            new_id(),
            config,
            transcribes=voice is not None and voice.transcribes,
            speaks=speaks,
            detects=voice is not None,
            expires_at=now() + limits.lifetime_ms // 1000,
            limits=limits,
        )
        self._turns: dict[str, Handle] = {}
        self._formats: dict[str, AudioFormat] = {}  # of the sound of answers
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._detector: Detector | None = None
        self._detection: TurnDetection | None = None  # what that was made for
        self._queue: deque[Command] = deque()  # the one that is being taken, and those behind it
        self._taken = asyncio.Event()  # there is none
        self._taken.set()
        self._heard = 0  # bytes of sound that are being transcribed, of deleted items too
        self._offset = 0  # its first sample's position, in milliseconds
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def size(self) -> int:
        """Bytes that the session holds, or nearly."""
        waiting = sum(len(each.audio) for each in self._queue if isinstance(each, Append))
        return self.session.size + waiting + self._heard

    async def drain(self) -> None:
        """Wait until all commands are processed, and yield to the loop."""
        await asyncio.sleep(0)
        await self._taken.wait()

    async def open(self) -> None:
        """Open: the sink receives the first events."""
        loop, lifetime = asyncio.get_running_loop(), self._limits.lifetime_ms
        self._timer = loop.call_later(lifetime / 1000, self.report, Tick(lifetime))
        self._hand_on(self.session.open())

    def send(self, command: Command) -> None:
        """Take a command; its events are received before this returns, as far as they are clear.
        Much sound is taken piece by piece, others between, and what is sent meanwhile behind it."""
        idle = not self._queue
        size = PIECE_MS * (BYTES_PER_MS if self.session.config.input_format == "pcm16" else 8)
        if isinstance(command, Append) and len(command.audio) > size:
            starts = range(0, len(command.audio), size)
            self._queue += [Append(audio=command.audio[at : at + size]) for at in starts]
        else:
            self._queue.append(command)
        if idle:
            self._taken.clear()
            self._take_queued()

    def report(self, what: Command | Report) -> None:
        """Pass an input to the session, its events to the client, and do its work."""
        events = self.session.receive(what)
        if events:
            self._hand_on(events)
        work = self.session.work
        while work:
            match work.popleft():
                case Generate(response_id=id, request=request, sounds=sounds, size=size):
                    engine = (
                        _WithSounds(self._engine, sounds, self._apart) if sounds else self._engine
                    )
                    caller = replace(self._caller, size=size if size > LARGE else 0)
                    handle = start(engine, request, caller, _Turn(self, id))
                    if not self.session.answering(id):  # it has ended already
                        self._cancel(handle)
                        continue
                    self._turns[id] = handle
                    if self._paused:
                        handle.pause()
                case Stop(response_id=id):
                    self._cancel(self._turns.pop(id, None))
                case Transcribe(item_id=id, audio=audio, options=options):
                    self._heard += len(audio)
                    self._start(self._transcribe(id, audio, options))
                case Forget():
                    if self._detector is not None:
                        self._detector.reset()
        if isinstance(what, Answered) and not self.session.answering(what.response_id):
            self._turns.pop(what.response_id, None)
        if self.session.closed:
            self._over(TOO_OLD)

    def pause(self) -> None:
        """Pause the answers."""
        self._paused = True
        for handle in self._turns.values():
            handle.pause()

    def resume(self) -> None:
        """Resume the answers."""
        self._paused = False
        for handle in self._turns.values():
            handle.resume()

    async def close(self) -> None:
        """Cancel all work, and wait until it has ended."""
        self.sink = None
        self._over(CLOSED)
        if self._timer is not None:
            self._timer.cancel()
        for handle in self._turns.values():
            self._cancel(handle)
        self._turns.clear()
        for task in self._tasks:
            task.cancel()
        if self._voice is not None:
            self._voice.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._ending, return_exceptions=True)

    # ---- inside ----------------------------------------------------------------------------

    def _over(self, fault: Fault) -> None:
        """End the session on its own account."""
        sink, self.sink = self.sink, None
        # It has expired: open answers have it in a reference cycle.
        self.session.receive(Tick(self._limits.lifetime_ms))
        self._queue.clear()
        self._taken.set()
        if sink is not None:
            sink.ended(fault)

    def _take_queued(self) -> None:
        """Take what was sent, up to the next piece of more sound: that comes in a later turn of
        the loop."""
        sound = False
        while self._queue:
            if sound and isinstance(self._queue[0], Append):
                asyncio.get_running_loop().call_soon(self._take_queued)
                return
            command = self._queue[0]
            sound = isinstance(command, Append)
            try:
                self._take(command)
            except Exception as error:  # a voice that fails: the session would get no input
                fault = fault_from(error, self._caller.key)
                self._hand_on([Refused(fault)])
                self._over(fault)
            if self._queue:  # or it is over
                self._queue.popleft()
        self._taken.set()

    def _take(self, command: Command) -> None:
        format = self.session.config.input_format
        if isinstance(command, Append):
            audio = command.audio
            if format != "pcm16" and self._voice is not None:
                audio = self._voice.decode(audio, format)
                command = replace(command, audio=audio)
            detector = self._detector_now()
            self.report(command)
            for found in detector.feed(audio) if detector is not None else ():
                self.report(type(found)(found.at_ms + self._offset))
            return
        if isinstance(command, Configure) and self._voice is None:
            for side in ("input", "output"):
                if command.changes.get(f"{side}_format", "pcm16") != "pcm16":
                    problem = "is converted by the voice of a server, and this one has none"
                    fault = unsupported(problem, f"session.audio.{side}.format")
                    command = Unreadable(fault=fault, event_id=command.event_id)
                    break
        self.report(command)

    def _hand_on(self, events: list[SessionEvent]) -> None:
        if self._voice is not None:
            events = [self._encoded(event, self._voice) for event in events]
        if self.sink is not None:
            self.sink.receive(events)

    def _encoded(self, event: SessionEvent, voice: Voice) -> SessionEvent:
        """An event with its sound in the format of its answer."""
        match event:
            case ResponseCreated(response=response):
                self._formats[response.id] = response.output_format
            case ResponseDone(response=response):
                del self._formats[response.id]
            case Answer(event=Delta(kind="audio") as delta):
                if (format := self._formats[event.response_id]) != "pcm16":
                    audio = voice.encode(b64decode(delta.data), format)
                    return replace(event, event=replace(delta, data=b64encode(audio).decode()))
        return event

    def _detector_now(self) -> Detector | None:
        """The detector for the current configuration."""
        detection = self.session.config.turn_detection
        if detection != self._detection:
            self._detection, self._detector = detection, None
            self._offset = self.session.position
            if detection is not None and self._voice is not None:
                self._detector = self._voice.detector(detection)
        return self._detector

    def _cancel(self, handle: Handle | None) -> None:
        if handle is not None:
            handle.cancel()
            task = asyncio.get_running_loop().create_task(wait_closed(handle))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _transcribe(self, id: str, audio: Sound, options: Transcription) -> None:
        """Report the transcript of an item, or why there is none."""
        try:
            if self._voice is None:  # pragma: no cover - only a voice is asked
                return
            async with aclosing(self._voice.transcribe(audio, options)) as pieces:
                async for piece in pieces:
                    self.report(Transcribed(id, piece))
            self.report(Transcribed(id, done=True))
        except Exception as error:
            self.report(Transcribed(id, fault=fault_from(error, self._caller.key)))
        finally:
            self._heard -= len(audio)
