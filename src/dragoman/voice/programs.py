"""Speech synthesizers that are programs, espeak-ng and piper: each sentence in its own process.

Both are under the GPL, and so run, and are not linked. Nothing of a request is in their arguments
but a checked name and numbers: the text is their standard input.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import cast

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
"""How long a program may take for its next sound before it is given up."""
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "ESPEAK_DATA_PATH", "SYSTEMROOT")
"""What of our environment a program sees: keys are none of its business."""


_COMMANDS = re.compile(r"(?<=\[)(?=\[)|\0")
"""What is no text to these programs: two brackets begin phonemes, and a zero ends it all."""


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

    async def run(self, arguments: Sequence[str], text: str) -> AsyncGenerator[bytes, None]:
        """What the program writes. Its process ends with the generator. Raises FaultError."""
        async with self._places:
            process = await asyncio.create_subprocess_exec(
                self._path,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={name: os.environ[name] for name in _PASSED if name in os.environ},
            )
            stdin, stdout = cast(StreamWriter, process.stdin), cast(StreamReader, process.stdout)
            errors = asyncio.ensure_future(_tail(cast(StreamReader, process.stderr)))
            try:
                with suppress(ConnectionError):  # it says why on stderr
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
                    said = (await errors).decode("utf-8", "replace").strip().splitlines()
                    problem = quoted(said[-1]) if said else f"exit status {status}"
                    raise FaultError(failed(self.name, problem))
            except TimeoutError:
                raise FaultError(failed(self.name, f"no sound for {_SECONDS:g} s")) from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
                await asyncio.shield(process.wait())
                errors.cancel()

    async def close(self) -> None:
        """Nothing runs but what somebody reads."""


_INSTALL = {
    "espeak-ng": "apt install espeak-ng, brew install espeak-ng, or an installer from its project",
    "piper": "pip install piper-tts",
}


async def _tail(stream: StreamReader) -> bytes:
    """The last of what a program complains about; all of it is read, or it would wait for us."""
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
"""Voices of espeak-ng that stand in for those of OpenAI."""


class ESpeak(Program):
    """espeak-ng: speaks a hundred languages at once and with little grace. `voice` is that of
    requests that name none."""

    ignores = ("instructions",)

    def __init__(self, voice: str = "en-us") -> None:
        super().__init__("espeak-ng")
        if not _VOICE.fullmatch(voice):
            raise FaultError(bad_request(_no_voice(voice)))
        self._voice = voice

    async def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16 as espeak-ng writes it."""
        voice = self._voice
        if how.voice in _VARIANTS:
            voice = f"{voice.partition('+')[0]}+{_VARIANTS[how.voice]}"
        elif how.voice:
            if not _VOICE.fullmatch(how.voice):
                raise FaultError(bad_request(_no_voice(how.voice), "voice"))
            voice = how.voice
        words = round(_WORDS_A_MINUTE * min(max(how.speed, 0.25), 4.0))
        reader = WavReader()
        arguments = ("--stdin", "--stdout", "-b", "1", "-v", voice, "-s", str(words))
        async with aclosing(self.run(arguments, text + "\n")) as pieces:
            try:
                async for data in pieces:
                    if pcm := read_sound(self.name, reader, data):
                        yield pcm
            except FaultError as error:
                if "voice does not exist" not in error.fault.message:
                    raise
                raise FaultError(bad_request(_no_voice(voice), "voice")) from None
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

    async def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16 as piper writes it."""
        resampler = Resampler(self._rate, RATE)
        scale = str(round(1 / min(max(how.speed, 0.25), 4.0), 3))
        arguments = ("-m", str(self._model), "--output-raw", "--length-scale", scale)
        line = " ".join(text.split()) + "\n"  # it speaks line by line
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
