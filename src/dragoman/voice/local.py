"""Runs Python libraries for speech in processes of their own; see `worker`."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.util import find_spec
from typing import Any, cast

from dragoman.core.error import Fault, FaultError
from dragoman.core.sound import RATE, Sound

from . import programs, worker
from .sound import EXTRA, Resampler
from .speech import Listening, Piece, Places, Speaking, Word, failed

_SECONDS = 300.0
"""Seconds for the next piece of an answer: some libraries load large models first."""
_MOST = 2
"""Processes of one library."""


class _LibraryError(FaultError):
    """An error of the library. Its process continues with the next order."""


class _Process:
    """A process that executes one order after another."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, name: str, option: str) -> _Process:
        """Start it and wait until its library is loaded. Raises FaultError."""
        process = cls(
            await asyncio.create_subprocess_exec(
                # Run as a file: it does not need this package, which is slow to import.
                *(sys.executable, "-P", worker.__file__, name, option),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        )
        try:
            async for _ in process.answers(name):
                pass  # only that it is ready
        except BaseException:
            await process.end()
            raise
        return process

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    def order(self, head: dict[str, Any], data: Sound) -> None:
        stdin = cast(StreamWriter, self._process.stdin)
        stdin.write(worker.line(head, data))
        stdin.write(data)

    async def answers(self, name: str) -> AsyncGenerator[worker.Answer, None]:
        """The answers to the current order. Raises FaultError."""
        stream = cast(StreamReader, self._process.stdout)
        while True:
            try:
                async with asyncio.timeout(_SECONDS):
                    head = json.loads(await stream.readuntil(b"\n"))
                    data = await stream.readexactly(head["size"])
            except TimeoutError:
                raise FaultError(failed(name, f"no answer for {_SECONDS:g} s")) from None
            except (EOFError, ConnectionError, ValueError):
                raise FaultError(failed(name, "its process has died")) from None
            if "error" in head:
                raise _LibraryError(failed(name, head["error"]))
            if head.get("done"):
                return
            yield head, data

    async def end(self) -> None:
        await programs.end(self._process)


class Library:
    """A library in up to two processes, which start on demand and stay."""

    at_once = _MOST

    def __init__(self, name: str, option: str = "") -> None:
        self.name = name
        self._option = option
        if find_spec(worker.NEEDED[name]) is None:
            problem = f"{name} is not installed: {_INSTALL[name]}."
            raise FaultError(Fault("unsupported", problem))
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._closed = False
        self._places = Places(name, self.at_once)

    async def prepare(self) -> None:
        """Load the library now, so that the first order need not wait. Raises FaultError."""
        async with self._places.turn():
            if not self._all:
                self._idle.append(await self._started())

    async def ask(self, head: dict[str, Any], data: Sound) -> AsyncGenerator[worker.Answer, None]:
        """The answers to an order. If they are not read to the end, the process is killed: a
        library cannot be interrupted."""
        async with self._places.turn():
            process = await self._ready()
            usable = False
            try:
                process.order(head, data)
                async with aclosing(process.answers(self.name)) as answers:
                    async for answer in answers:
                        yield answer
                usable = True
            except _LibraryError:
                usable = True
                raise
            finally:
                if usable:
                    self._idle.append(process)
                else:
                    self._all.discard(process)
                    await process.end()

    async def _ready(self) -> _Process:
        """An idle process that has not died since, as for want of memory; or a new one."""
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            self._all.discard(process)
            await process.end()
        return await self._started()

    async def _started(self) -> _Process:
        process = await _Process.start(self.name, self._option)
        if self._closed:  # while it loaded
            await process.end()
            raise FaultError(failed(self.name, "the server is closing"))
        self._all.add(process)
        return process

    async def close(self) -> None:
        """End the processes."""
        self._closed = True
        self._idle.clear()
        while self._all:
            await self._all.pop().end()


_INSTALL = {
    "pocketsphinx": EXTRA,
    "faster-whisper": "pip install faster-whisper",
    "kokoro": "pip install kokoro-onnx",
    "miniaudio": EXTRA,
}


class LocalTranscriber(Library):
    """Recognises speech: `pocketsphinx` with a grammar, `faster-whisper` with a model."""

    @property
    def ignores(self) -> tuple[str, ...]:
        """PocketSphinx supports only English, and its own vocabulary."""
        return ("language", "prompt") if self.name == "pocketsphinx" else ()

    @property
    def quick(self) -> bool:
        """Whether recognising an unfinished turn is cheap."""
        return self.name == "pocketsphinx" and bool(self._option)

    async def transcribe(self, pcm: Sound, asked: Listening) -> AsyncGenerator[Piece, None]:
        """The transcript, a piece for each segment of the library. Of no sound there is none."""
        if len(pcm) < 2:
            return
        order = {
            "language": asked.language,
            "prompt": asked.prompt,
            "words": asked.words,
            "recording": asked.recording,
            "rate": RATE,
        }
        async with aclosing(self.ask(order, pcm)) as answers:
            async for head, _ in answers:
                words = [Word(*each) for each in head["words"]]
                yield Piece(head["text"], head.get("start"), head.get("end"), tuple(words))


class LocalSynthesizer(Library):
    """Speaks: `kokoro` with the file of its model."""

    ignores = ("instructions",)

    def expect(self, how: Speaking) -> None:
        """No-op: the library is loaded already."""

    async def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16, a sentence at a time."""
        order = {"text": text, "voice": how.voice, "speed": how.speed}
        async with aclosing(self.ask(order, b"")) as answers:
            async for head, pcm in answers:
                yield Resampler(head["rate"], RATE).feed(pcm, last=True)
