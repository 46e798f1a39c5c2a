"""Selects the speech backends of a server by name."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import aclosing, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from dragoman.core.error import FaultError, bad_request, hint, quoted, unsupported
from dragoman.core.interfaces import Secret
from dragoman.core.sound import RATE, Sound

from . import detection, worker
from .local import Library, LocalSynthesizer, LocalTranscriber
from .programs import ESpeak, Piper, Program
from .remote import RemoteSynthesizer, RemoteTranscriber
from .session import Voice
from .sound import EXTRA, sniff
from .speech import Synthesizer, Transcriber

T = TypeVar("T")

FILES = ("wav", "mp3", "flac", "ogg")
"""The supported types of recordings; ogg is Vorbis."""
AUTO = "auto"
"""Selects an installed backend, or none without any."""
NONE = "none"

_SYNTHESIZERS: dict[str, Callable[[str], Synthesizer]] = {
    "espeak-ng": lambda voice: ESpeak(voice or "en-us"),
    "piper": Piper,
    "kokoro": lambda model: LocalSynthesizer("kokoro", model),
}
_TRANSCRIBERS: dict[str, Callable[[str], Transcriber]] = {
    "pocketsphinx": lambda grammar: LocalTranscriber("pocketsphinx", grammar),
    "faster-whisper": lambda model: LocalTranscriber("faster-whisper", model),
}


class Studio(Struct, frozen=True):
    """The backends that all sessions share; None without a synthesizer, or a recogniser."""

    synthesizer: Synthesizer | None
    transcriber: Transcriber | None
    detector: str = AUTO
    files: Library | None = None
    """Decodes recordings."""

    def open(self) -> Voice:
        """The voice of one session. Starts to load slow libraries, before the first speech."""
        if self._local:
            loading = asyncio.ensure_future(self._load())
            _loading.add(loading)
            loading.add_done_callback(_loading.discard)
        return Voice(self.synthesizer, self.transcriber, self.detector)

    async def ready(self) -> None:
        """Import what the detector needs, for the first session: in a thread, as numpy takes a
        tenth of a second."""
        await asyncio.to_thread(detection.scorer, self.detector)

    @property
    def _local(self) -> list[Library | Program]:
        """The local backends."""
        used: tuple[object, ...] = (self.synthesizer, self.transcriber)
        return [each for each in used if isinstance(each, Library | Program)]

    async def _load(self) -> None:
        with suppress(FaultError):  # the first turn reports the error
            await self.prepare()

    async def prepare(self) -> None:
        """Load slow libraries. Raises FaultError."""
        if self._local:
            with suppress(ImportError):  # reported when it is used
                await asyncio.to_thread(import_module, "soxr")
        for each in self._local:
            if isinstance(each, Library):
                await each.prepare()

    async def read(self, data: bytes, claim: Callable[[int], None] = lambda size: None) -> Sound:
        """PCM16 of a recording, a file of a kind in `FILES`. `claim` accounts for its size before
        it is decoded: a small file may be hours of sound. Raises FaultError."""
        kind = sniff(data)
        if kind not in FILES:
            what = f"is {kind}" if kind else "is no sound that is known here"
            raise FaultError(unsupported(f"{what}; send {', '.join(FILES)}", "file"))
        if self.files is None:
            raise FaultError(unsupported(f"is read with miniaudio ({EXTRA})", "file"))
        sound = bytearray()
        try:
            async with aclosing(self.files.ask({"rate": RATE}, data)) as pieces:
                async for _, pcm in pieces:
                    claim(2 * len(pcm))
                    sound += pcm
        except FaultError as error:
            if error.fault.code != "upstream_error":
                raise
            problem = f"cannot be read as {kind}: {error.fault.message}"
            raise FaultError(bad_request(problem, "file")) from None
        if not sound:
            raise FaultError(bad_request("has no sound in it", "file"))
        return sound

    async def close(self) -> None:
        """End the backends."""
        for each in (self.synthesizer, self.transcriber, self.files):
            if each is not None:
                await each.close()


def studio(
    speech: str = AUTO,
    transcription: str = AUTO,
    *,
    detector: str = AUTO,
    pocket: bool = False,
    speech_key: Secret | None = None,
    transcription_key: Secret | None = None,
) -> Studio:
    """The studio with backends by name: `auto`, `none`, a name, `NAME=OPTION`, or a URL with, after
    a space, the name of the model there. `auto` uses a grammar for the pocket model, where
    it is the only model. Raises FaultError for a backend that is unknown or not installed."""
    if detector != AUTO:
        detection.scorer(detector)
    synthesizer: Synthesizer | None = None
    transcriber: Transcriber | None = None
    if speech == AUTO:
        speech = "espeak-ng" if shutil.which("espeak-ng") and find_spec("soxr") else NONE
    if transcription == AUTO:
        needed = (worker.NEEDED["pocketsphinx"], "soxr")
        grammar = "=pocket" if pocket else ""
        transcription = f"pocketsphinx{grammar}" if all(map(find_spec, needed)) else NONE
    if "://" in speech:
        url, _, model = speech.partition(" ")
        synthesizer = RemoteSynthesizer(url, key=speech_key, model=model or None)
    elif speech != NONE:
        synthesizer = _named(speech, _SYNTHESIZERS, "synthesizer")
    if "://" in transcription:
        url, _, model = transcription.partition(" ")
        transcriber = RemoteTranscriber(url, key=transcription_key, model=model or None)
    elif transcription != NONE:
        name, _, grammar = transcription.partition("=")
        if name == "pocketsphinx" and grammar not in ("", "pocket") and not Path(grammar).is_file():
            raise FaultError(bad_request(f"{transcription}: there is no file {quoted(grammar)}."))
        transcriber = _named(transcription, _TRANSCRIBERS, "recogniser")
    files = Library("miniaudio") if find_spec(worker.NEEDED["miniaudio"]) else None
    return Studio(synthesizer, transcriber, detector, files)


def _named(text: str, makers: dict[str, Callable[[str], T]], what: str) -> T:
    name, _, option = text.partition("=")
    if name not in makers:
        known = f"auto, none, {', '.join(makers)}, or a URL"
        problem = f"There is no {what} {quoted(name)}{hint(name, makers)}; there is {known}."
        raise FaultError(bad_request(problem))
    return makers[name](option)


_loading: set[asyncio.Task[None]] = set()
"""Strong references to loading tasks: the loop has only weak ones."""
