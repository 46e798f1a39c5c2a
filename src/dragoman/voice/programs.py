"""Runs speech synthesizers that are programs, espeak-ng and piper: each sentence in a process.

Both are under the GPL, and so are not linked. Their arguments have nothing of a request
but a checked name and numbers: the text is their standard input.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from dragoman.core.error import Fault, FaultError, bad_request, quoted
from dragoman.core.sound import RATE

from .sound import Resampler, WavReader
from .speech import Places, Speaking, failed, read_sound

_PIECE = 9_600
"""Bytes that are read at once: a fifth of a second."""
_AT_ONCE = 8
"""Processes of one synthesizer."""
_SECONDS = 60.0
"""Seconds for a program's next sound before it is killed."""
_AHEAD_SECONDS = 30.0
"""Seconds that a process started ahead waits for its text."""
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "ESPEAK_DATA_PATH", "SYSTEMROOT")
"""The environment variables of a program, without keys."""


_COMMANDS = re.compile(r"(?<=\[)(?=\[)|\0")
"""Characters that are commands to these programs: two brackets begin phonemes, a zero ends all."""


class Program:
    """A program that reads text and writes sound."""

    at_once = _AT_ONCE

    def __init__(self, name: str) -> None:
        self.name = name
        path = shutil.which(name)
        if path is None:
            problem = f"{name} is not installed; {_INSTALL.get(name, f'install {name}')}."
            raise FaultError(Fault("unsupported", problem))
        self._path = path
        self._places = Places(name, self.at_once)
        self._ahead: dict[tuple[str, ...], asyncio.Task[Process]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def _start(self, arguments: tuple[str, ...]) -> Process:
        return await asyncio.create_subprocess_exec(
            self._path,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _PASSED if name in os.environ},
        )

    def start_ahead(self, arguments: tuple[str, ...]) -> None:
        """Start a process for the next text with these arguments: this takes 40 ms, most of the
        time to the first sound. There is one for each voice, with a timeout."""
        if arguments not in self._ahead and len(self._ahead) < self.at_once:
            task = self._ahead[arguments] = asyncio.ensure_future(self._start(arguments))
            asyncio.get_running_loop().call_later(_AHEAD_SECONDS, self._drop, arguments, task)

    def _drop(self, arguments: tuple[str, ...], task: asyncio.Task[Process]) -> None:
        """End a process that was started ahead, if it still waits."""
        if self._ahead.get(arguments) is task:
            del self._ahead[arguments]
            ending = asyncio.ensure_future(_end_started(task))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def run(self, arguments: tuple[str, ...], text: str) -> AsyncGenerator[bytes, None]:
        """The output of the program. Its process ends with the generator. Raises FaultError."""
        async with self._places.turn():
            ahead = self._ahead.pop(arguments, None)
            process = None if ahead is None else await ahead
            if process is None or process.returncode is not None:
                process = await self._start(arguments)
            stdin, stdout = cast(StreamWriter, process.stdin), cast(StreamReader, process.stdout)
            errors = asyncio.ensure_future(_tail(cast(StreamReader, process.stderr)))
            try:
                with suppress(ConnectionError):  # the error is on stderr
                    stdin.write(_COMMANDS.sub(" ", text).encode("utf-8", "replace"))
                    stdin.close()
                while True:
                    async with asyncio.timeout(_SECONDS):
                        data = await stdout.read(_PIECE)
                    if not data:
                        break
                    yield data
                async with asyncio.timeout(_SECONDS):
                    status = await process.wait()
                if status:
                    lines = (await errors).decode("utf-8", "replace").strip().splitlines()
                    problem = quoted(lines[-1]) if lines else f"exit status {status}"
                    raise FaultError(failed(self.name, problem))
            except TimeoutError:
                raise FaultError(failed(self.name, f"no sound for {_SECONDS:g} s")) from None
            finally:
                await end(process)
                errors.cancel()

    async def close(self) -> None:
        """End the processes started ahead: all others end with their generators."""
        for arguments, task in [*self._ahead.items()]:
            self._drop(arguments, task)
        await asyncio.gather(*self._ending)


_INSTALL = {
    "espeak-ng": "apt install espeak-ng, brew install espeak-ng, or an installer from its project",
    "piper": "pip install piper-tts",
}


async def end(process: Process) -> None:
    """Kill a process, close its pipes and wait for its end."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    transport = cast(Any, process)._transport
    for number in range(3):  # asyncio waits for pipes too, and none ends while it is not read
        if pipe := transport.get_pipe_transport(number):
            pipe.close()
    await asyncio.shield(process.wait())


async def _end_started(task: asyncio.Task[Process]) -> None:
    with suppress(OSError):  # it could not be started: the next request reports it
        await end(await task)


async def _tail(stream: StreamReader) -> bytes:
    """The end of a program's stderr; all of it is read, or the pipe would fill up."""
    held = b""
    while data := await stream.read(4096):
        held = (held + data)[-2000:]
    return held


# ---- espeak-ng -------------------------------------------------------------------------------

_VOICE = re.compile(r"[A-Za-z0-9][\w-]{0,30}(?:\+[\w-]{1,30})?", re.ASCII)
_WORDS_A_MINUTE = 175
_VARIANTS = {
    "alloy": "f2",
    "ash": "m3",
    "ballad": "m7",
    "cedar": "m1",
    "coral": "f3",
    "echo": "m4",
    "fable": "m5",
    "marin": "f4",
    "nova": "f1",
    "onyx": "m6",
    "sage": "f5",
    "shimmer": "f4",
    "verse": "m2",
}
"""Voices of espeak-ng for the names of OpenAI's."""


class ESpeak(Program):
    """espeak-ng: a hundred languages, fast, with a robotic voice. `voice` is that of
    requests without one."""

    ignores = ("instructions",)

    def __init__(self, voice: str = "en-us") -> None:
        super().__init__("espeak-ng")
        if not _VOICE.fullmatch(voice):
            raise FaultError(bad_request(_no_voice(voice)))
        self._voice = voice

    def expect(self, how: Speaking) -> None:
        """Start a process for the next sentence."""
        with suppress(FaultError):  # `speak` raises it
            self.start_ahead(self._arguments(how))

    def _arguments(self, how: Speaking) -> tuple[str, ...]:
        voice = self._voice
        if how.voice in _VARIANTS:
            voice = f"{voice.partition('+')[0]}+{_VARIANTS[how.voice]}"
        elif how.voice:
            if not _VOICE.fullmatch(how.voice):
                raise FaultError(bad_request(_no_voice(how.voice), "voice"))
            voice = how.voice
        words = round(_WORDS_A_MINUTE * min(max(how.speed, 0.25), 4.0))
        return ("--stdin", "--stdout", "-b", "1", "-v", voice, "-s", str(words))

    async def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16 as espeak-ng writes it."""
        arguments, reader = self._arguments(how), WavReader()
        async with aclosing(self.run(arguments, text + "\n")) as pieces:
            try:
                async for data in pieces:
                    if pcm := read_sound(self.name, reader, data):
                        yield pcm
            except FaultError as error:
                if "voice does not exist" not in error.fault.message:
                    raise
                named = how.voice or self._voice
                raise FaultError(bad_request(_no_voice(named), "voice")) from None
        if pcm := read_sound(self.name, reader, b"", last=True):
            yield pcm


def _no_voice(name: str) -> str:
    known = ", ".join(_VARIANTS)
    return (
        f"{quoted(name)} is no voice: there are OpenAI's ({known}) and those of espeak-ng, such as "
        "de or en-us+f3"
    )


# ---- piper -----------------------------------------------------------------------------------


class Piper(Program):
    """piper: a neural voice from a file, `NAME.onnx` with `NAME.onnx.json` beside it."""

    ignores = ("instructions", "voice")

    def __init__(self, model: str) -> None:
        super().__init__("piper")
        self._model = Path(model)
        beside = Path(f"{model}.json")
        try:
            described = msgspec.json.decode(beside.read_bytes(), type=_Described)
        except (OSError, msgspec.DecodeError) as error:
            problem = f"The voice {model!r} has no description that can be read: {error}."
            raise FaultError(bad_request(problem)) from None
        self._rate = described.audio.sample_rate

    def expect(self, how: Speaking) -> None:
        """Start a process for the next sentence: it loads its voice first."""
        self.start_ahead(self._arguments(how))

    def _arguments(self, how: Speaking) -> tuple[str, ...]:
        scale = str(round(1 / min(max(how.speed, 0.25), 4.0), 3))
        return ("-m", str(self._model), "--output-raw", "--length-scale", scale)

    async def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16 as piper writes it."""
        arguments, resampler = self._arguments(how), Resampler(self._rate, RATE)
        line = " ".join(text.split()) + "\n"  # it synthesizes line by line
        async with aclosing(self.run(arguments, line)) as pieces:
            async for data in pieces:
                if pcm := resampler.feed(data):
                    yield pcm
        if pcm := resampler.feed(b"", last=True):
            yield pcm


class _Sound(msgspec.Struct):
    sample_rate: int


class _Described(msgspec.Struct):
    audio: _Sound
