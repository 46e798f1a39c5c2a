"""`dragoman talk`: a conversation by voice, by microphone and speaker or by sound files."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from pathlib import Path

from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.session_values import Transcription, TurnDetection
from dragoman.core.sound import wav
from dragoman.engines.local import POCKET
from dragoman.server.build import studio_of
from dragoman.server.config import ConfigurationError
from dragoman.server.settings import Settings
from dragoman.voice.speech import NO_SYNTHESIZER, NO_TRANSCRIBER
from dragoman.voice.studio import Studio
from dragoman.voice.talk import Talk

from .chat import Renderer, _client, tools_in

ECHO = "Speak; Ctrl-C ends. Without headphones the answers may interrupt themselves."


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
        raise ConfigurationError("--output needs --input: it is for the answers to a recording.")
    if options.output and options.output.suffix.lower() != ".wav":
        raise ConfigurationError(f"--output {options.output}: WAV is written, to a FILE.wav.")
    recording = _read(options.input) if options.input else None
    if options.output:
        _probe(options.output)
        if options.output.samefile(options.input):
            raise ConfigurationError(f"--output {options.output}: is the recording of --input.")
    tools = [each for path in options.tools for each in tools_in(Path(path))]
    client = await _client(options)
    studio = Studio(None, None)
    try:
        model = options.model or await client.default_model()
        studio = studio_of(settings, os.environ, pocket=model == POCKET)
        lacks = ((studio.synthesizer, NO_SYNTHESIZER), (studio.transcriber, NO_TRANSCRIBER))
        for part, missing in lacks:
            if part is None:
                raise FaultError(missing)
        spoken = None if recording is None else await _decoded(studio, options.input, recording)
        await studio.prepare()
        talking = Talk(
            client,
            screen=Renderer(sys.stdout.isatty()),
            model=model,
            tools=tools,
            voice=studio.open(),
            instructions=options.system or "",
            transcription=Transcription(),
            turn_detection=TurnDetection(),
        )
        async with talking:
            await talking.configure(voice=options.voice or "alloy")
            if spoken is None:
                print(ECHO, file=sys.stderr)
                await talking.with_devices()
            else:
                played = await talking.with_file(spoken)
                if options.output:
                    _write(options.output, played)
    finally:
        await studio.close()
        await client.close()
    return 1 if talking.faults else 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None


async def _decoded(studio: Studio, path: Path, recording: bytes) -> bytes:
    try:
        return bytes(await studio.read(recording))
    except FaultError as error:
        raise ConfigurationError(f"{path}: {error.fault.message}.") from None


def _probe(path: Path) -> None:
    """Raise ConfigurationError for what cannot be written, before there is something to lose."""
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None


def _write(path: Path, pcm: bytes) -> None:
    try:
        path.write_bytes(wav(pcm))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None
