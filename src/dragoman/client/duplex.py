"""Full-duplex speech: the streams of both sides, a loudspeaker, and what happens in between."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
)
from typing import Any, Protocol

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta
from dragoman.core.item import Audio, FunctionCall, Item, Message
from dragoman.core.session import NO_SOUND
from dragoman.core.session_values import (
    Answer,
    BufferCommitted,
    BufferSpeechStarted,
    Command,
    Commit,
    ConversationItemAdded,
    ConversationItemDone,
    ItemDeleted,
    ResponseDone,
    SessionConfig,
    SessionEvent,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    Truncate,
)
from dragoman.core.sound import milliseconds
from dragoman.engines.session import LiveSession
from dragoman.tools.run import Result

Loudspeaker = Callable[[bytes], Awaitable[None] | None]
"""Plays sound (PCM16, 24 kHz), and returns when that is played, or as good as."""


ROUNDS = 16
"""Times that a model may call functions before it must answer what a user said."""


class Talk(Protocol):
    """What full-duplex speech needs of a conversation."""

    live: LiveSession
    config: SessionConfig
    active: set[str]
    """Answers that are under way."""
    fault: Fault | None
    """Why the session is over."""
    listeners: set[Listener]

    def listen(self) -> Listener:
        """Hear all events from now on."""
        ...

    async def next_event(self, listener: Listener) -> SessionEvent:
        """The next event. Raises FaultError at the end of the session, and after long silence."""
        ...

    def append(self, audio: bytes) -> None:
        """Give the session more sound."""
        ...

    async def configure(self, **changes: Any) -> SessionConfig:
        """Change the configuration, once all that was sent is taken."""
        ...

    async def add(self, item: Item | str) -> Item:
        """Put an item into the conversation."""
        ...

    async def ask(self, command: Command, kind: type) -> SessionEvent:
        """Send a command, and wait for what answers it. Raises FaultError."""
        ...

    async def run(self, calls: Iterable[FunctionCall]) -> list[Result]:
        """Run functions."""
        ...

    async def respond(self, **changes: Any) -> None:
        """Have the model answer as soon as it answers nothing else."""
        ...


class Listener:
    """The events of a session from some time on, in their order; None at its end."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[SessionEvent | None] = asyncio.Queue()


def text_of(item: Item | None) -> str:
    """What a message says, written or spoken."""
    if not isinstance(item, Message):
        return ""
    return item.text + "".join(
        part.transcript or "" for part in item.parts if isinstance(part, Audio)
    )


def sound_in(data: str) -> bytes:
    """The sound in base64 that a server sent. Raises FaultError for what is none."""
    try:
        return b64decode(data)
    except ValueError:
        raise FaultError(NO_SOUND) from None


class Speech:
    """One message of the user or the model, while it is spoken: iterate over its text, or await
    the whole text. `fault` is why it broke off or could not be transcribed, if so. An answer that
    failed before it had a message is one without a text, and without an item."""

    def __init__(self, item_id: str, role: str) -> None:
        self.item_id = item_id
        self.role = role
        self.text = ""
        self.fault: Fault | None = None
        self.ended = False
        self._changed = asyncio.Event()

    def add(self, text: str) -> None:
        """More of the text."""
        self.text += text
        self._changed.set()

    def end(self, text: str | None = None, fault: Fault | None = None) -> None:
        """No more comes; with a text, that is all of it."""
        if not self.ended:
            if text is not None and text.startswith(self.text):
                self.text = text
            self.ended, self.fault = True, fault
            self._changed.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        read = 0
        while True:
            if len(self.text) > read:
                piece, read = self.text[read:], len(self.text)
                yield piece
            elif self.ended:
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    def __await__(self) -> Generator[Any, None, str]:
        return self._whole().__await__()

    async def _whole(self) -> str:
        async for _ in self:
            pass
        return self.text


class Duplex:
    """One full-duplex stretch of a conversation: its tasks, and the streams that are open."""

    def __init__(self, talk: Talk, source: AsyncIterable[bytes], sink: Loudspeaker | None) -> None:
        self.speeches: asyncio.Queue[Speech | None] = asyncio.Queue()
        self._talk = talk
        self._open: dict[str, Speech] = {}
        self._transcripts: set[str] = set()  # items of the user that are being transcribed
        self._error: BaseException | None = None
        self._source_over = False
        self._pending = False  # sound was sent that is in no item yet
        self._rounds = 0  # answers with calls, since the user said something
        self._running: set[asyncio.Task[None]] = set()  # tools
        self._idle = asyncio.Event()
        self._player = Player(sink, self._failed) if sink is not None else None
        self._listener = talk.listen()
        loop = asyncio.get_running_loop()
        self._reader = loop.create_task(self._read())
        self._sender = loop.create_task(self._send(source))

    def check(self) -> None:
        """Raise what went wrong."""
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """End all tasks and streams."""
        self._talk.listeners.discard(self._listener)
        tasks = [self._reader, self._sender, *self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._player is not None:
            await self._player.close()
        for speech in self._open.values():
            speech.end(fault=Fault("cancelled", "The conversation went no further.", "client"))

    def _failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self.speeches.put_nowait(None)

    async def _send(self, source: AsyncIterable[bytes]) -> None:
        """Send the user's sound, and at its end what is left in the buffer."""
        try:
            async for audio in source:
                # A detector says what of it is speech: the rest belongs to no item.
                self._pending |= self._talk.config.turn_detection is None
                self._talk.append(audio)
                await self._talk.live.drain()
            await self._talk.configure()  # answered behind all that was sent
            if self._pending:
                await self._finish()
            self._source_over = True
            self._check_over()
        except Exception as error:
            self._failed(error)

    async def _finish(self) -> None:
        """Commit the last turn, where no detector has found its end."""
        try:
            await self._talk.ask(Commit(), BufferCommitted)
        except FaultError as error:
            if error.fault.blame == "upstream" and self._talk.fault is not None:
                raise
            return  # there was too little
        if self._talk.config.kind == "realtime":
            self._start(self._talk.respond())

    async def _read(self) -> None:
        try:
            while True:
                try:
                    event = await self._talk.next_event(self._listener)
                except FaultError:
                    if self._talk.fault is not None or self._waits:
                        raise
                    continue  # nobody says anything
                self._take(event)
                self._check_over()
        except Exception as error:
            fault = error.fault if isinstance(error, FaultError) else None
            for speech in self._open.values():
                speech.end(fault=fault)
            self._failed(error)

    @property
    def _waits(self) -> bool:
        """Whether nothing but events of the session is awaited."""
        awaited = self._talk.active or self._transcripts
        return self._source_over and bool(awaited) and not self._running

    def _check_over(self) -> None:
        """End once the source has ended, and every turn is answered."""
        unread = not self._listener.queue.empty()  # of which the conversation knows already
        busy = unread or self._talk.active or self._running or self._transcripts
        playing = self._player is not None and self._player.busy
        if self._source_over and not busy:
            if playing and self._player is not None:
                self._player.then(self._check_over)
            else:
                self.speeches.put_nowait(None)

    def _take(self, event: SessionEvent) -> None:
        match event:
            case ConversationItemAdded(item=Message(role="user" | "assistant" as role) as item) if (
                (item.id or "") not in self._open  # or else nothing would end the first
            ):
                speech = self._open[item.id or ""] = Speech(item.id or "", role)
                self.speeches.put_nowait(speech)
            case ConversationItemDone(item=Message(role="user") as item):
                self._rounds = 0
                spoken = any(isinstance(p, Audio) and p.transcript is None for p in item.parts)
                if spoken and self._talk.config.transcription is not None:
                    self._transcripts.add(item.id or "")
                else:
                    self._end(item.id or "", text_of(item))
            case BufferCommitted():
                self._pending = False
            case BufferSpeechStarted():
                self._pending = True
                if self._player is not None and (played := self._player.interrupt()) is not None:
                    id, number, ms = played
                    self._talk.live.send(
                        Truncate(item_id=id, content_index=number, audio_end_ms=ms)
                    )
            case TranscriptionDelta(item_id=id, delta=text) if id in self._open:
                self._open[id].add(text)
            case TranscriptionCompleted(item_id=id, transcript=text):
                self._transcripts.discard(id)
                self._end(id, text.strip())
            case TranscriptionFailed(item_id=id, fault=fault):
                self._transcripts.discard(id)
                self._end(id, fault=fault)
            case ItemDeleted(item_id=id):
                self._transcripts.discard(id)
                self._end(id)
            case Answer(item_id=id, event=Delta(kind="audio", part_index=number, data=data)):
                if self._player is not None:
                    self._player.put(id, number, sound_in(data))
            case Answer(item_id=id, event=Delta(kind="text" | "transcript", data=data)):
                if id in self._open:
                    self._open[id].add(data)
            case ResponseDone(response=response):
                for each in response.output:
                    self._end(each.id or "", text_of(each), response.fault)
                if response.fault is not None and not any(
                    isinstance(each, Message) for each in response.output
                ):  # it failed before it said anything
                    failed = Speech("", "assistant")
                    failed.end(fault=response.fault)
                    self.speeches.put_nowait(failed)
                calls = [each for each in response.output if isinstance(each, FunctionCall)]
                if calls and response.status == "completed":
                    self._start(self._call(calls))

    def _end(self, id: str, text: str | None = None, fault: Fault | None = None) -> None:
        if (speech := self._open.pop(id, None)) is not None:
            speech.end(text, fault)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
        self._check_over()

    async def _call(self, calls: list[FunctionCall]) -> None:
        """Run the calls of one answer, and ask once for the next when all results are in: after
        many rounds for one without calls."""
        self._rounds += 1
        results = await self._talk.run(calls if self._rounds <= ROUNDS else ())  # asked for none
        for result in results:
            await self._talk.add(result.output)
        if any(result.after == "model" for result in results):
            last = {"tool_choice": "none"} if self._rounds == ROUNDS else {}
            await self._talk.respond(**last)


class Player:
    """Plays sound piece by piece in a task of its own, and knows how much of which part was."""

    def __init__(self, sink: Loudspeaker, failed: Callable[[BaseException], None]) -> None:
        self._sink = sink
        self._failed = failed
        self._queue: asyncio.Queue[tuple[str, int, bytes]] = asyncio.Queue()
        self._current: tuple[str, int] | None = None
        self._played: dict[tuple[str, int], int] = {}
        self._then: Callable[[], None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._play())

    @property
    def busy(self) -> bool:
        """Whether there is something to be played."""
        return self._current is not None or not self._queue.empty()

    def put(self, id: str, number: int, audio: bytes) -> None:
        """Play this after the rest."""
        self._queue.put_nowait((id, number, audio))

    def then(self, what: Callable[[], None]) -> None:
        """Call this when the queue is empty."""
        self._then = what

    def interrupt(self) -> tuple[str, int, int] | None:
        """Drop the queue. Returns the part that was being played, and its milliseconds played."""
        place, self._current = self._current, None
        while not self._queue.empty():
            id, number, _ = self._queue.get_nowait()
            place = place or (id, number)
        if place is None:
            return None
        return *place, milliseconds(self._played.get(place, 0))

    async def close(self) -> None:
        """Play nothing more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _play(self) -> None:
        try:
            while True:
                id, number, audio = await self._queue.get()
                self._current = (id, number)
                await played(self._sink, audio)
                self._played[id, number] = self._played.get((id, number), 0) + len(audio)
                if self._queue.empty():
                    self._current = None
                    if self._then is not None:
                        self._then()
        except Exception as error:
            self._failed(error)


async def played(sink: Loudspeaker, audio: bytes) -> None:
    done = sink(audio)
    if done is not None:
        await done
