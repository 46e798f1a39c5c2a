"""Calls servers with OpenAI's audio endpoints: /audio/speech and /audio/transcriptions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from dragoman.core.error import FaultError, bad_request, quoted
from dragoman.core.interfaces import Secret
from dragoman.core.sound import Sound, wav_head
from dragoman.engines.base import new_id
from dragoman.engines.upstream import broken, key_refused, sendable, without
from dragoman.net.client import Client, HeaderFields
from dragoman.net.connection import Limits, Timeouts
from dragoman.net.errors import InvalidUrlError, NetError
from dragoman.net.url import Proxies, parse_url
from dragoman.wire import audio as wire
from dragoman.wire import error, json
from dragoman.wire.sse import SSEDecoder

from .sound import WavReader, sniff
from .speech import Listening, Piece, Speaking, failed, read_sound

_T = TypeVar("_T")

SPEECH_MODEL = "gpt-4o-mini-tts"
TRANSCRIPTION_MODEL = "gpt-4o-mini-transcribe"
USUAL_VOICE = "alloy"
LONGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer, decompressed: the sound of a text, or the events of a transcript."""
LONGEST_TRANSCRIPT = 1_000_000
"""Characters: a day of speech."""
MOST_VALUES = 100_000
"""Commas, colons and brackets of a transcript, or of one of its events: they bound its values."""
LONGEST_JSON = 4 * 1024 * 1024
"""Bytes of a transcript, or of one of its events."""
_PIECE = 9_600
"""Bytes of an answer that are worked on before others have their turn."""
_SPEAKS, _LISTENS = 120.0, 300.0
"""Seconds that a server may be silent: some begin to answer when all is done."""
_LONGEST_ERROR = 64 * 1024
_REFUSED = (401, 403)


class _Endpoint:
    """One path of a server."""

    def __init__(
        self, url: str, path: str, key: Secret | str | None, client: Client | None, seconds: float
    ) -> None:
        proxies = Proxies.from_environ(os.environ)
        try:
            place = parse_url(url.rstrip("/"))
            proxies.choose(place)  # raises at once for one that cannot be used
        except InvalidUrlError as problem:
            raise FaultError(bad_request(f"{quoted(url)}: {problem}")) from None
        self._url = f"{url.rstrip('/')}{path}"
        self.name = f"the speech server at {place.authority}"
        self._key = sendable(key)
        self._client = client or Client(
            proxies=proxies,
            limits=Limits(body_bytes=LONGEST_ANSWER),
            timeouts=Timeouts(first_byte=seconds, idle=seconds),
            name=self.name,
        )

    async def ask(
        self, media_type: str, body: bytes | bytearray, accept: str
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """The media type and the next few bytes of the answer. Raises FaultError."""
        headers: HeaderFields = (("content-type", media_type), ("accept", accept))
        if self._key is not None:
            headers += (("authorization", f"Bearer {self._key.reveal()}"),)
        try:
            async with self._client.stream("POST", self._url, headers, body) as reply:
                if reply.status in _REFUSED:
                    raise FaultError(key_refused(self.name, reply.status, self._key, _KEY_AT))
                if reply.status != 200:
                    answer = await reply.read(_LONGEST_ERROR)
                    fault = error.decode(reply.status, answer, reply.header("retry-after"))
                    raise FaultError(without(fault, self._key))
                kind = (reply.header("content-type") or "").partition(";")[0].strip().lower()
                size = 0
                async for chunk in reply.chunks():
                    size += len(chunk)
                    if size > LONGEST_ANSWER:
                        raise FaultError(failed(self.name, "its answer has no end"))
                    for place in range(0, len(chunk), _PIECE):
                        yield kind, chunk[place : place + _PIECE]
                        await asyncio.sleep(0)
        except NetError as problem:
            raise FaultError(broken(problem)) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


_KEY_AT = "speech_key_env or transcription_key_env, in the file"


class RemoteSynthesizer(_Endpoint):
    """Speaks with the model of a server. A request's voice goes there as it is."""

    ignores = ()

    def __init__(
        self,
        url: str,
        *,
        key: Secret | str | None = None,
        model: str | None = None,
        voice: str = USUAL_VOICE,
        client: Client | None = None,
    ) -> None:
        super().__init__(url, wire.SPEECH, key, client, _SPEAKS)
        self._model = model
        self._voice = voice

    def expect(self, how: Speaking) -> None:
        """No-op."""

    async def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16 as the server sends it."""
        request = wire.SpeechRequest(
            model=self._model or how.model or SPEECH_MODEL,
            text=text,
            voice=how.voice or self._voice,
            format="pcm",
            speed=how.speed,
            instructions=how.instructions,
        )
        head, half, reader = b"", b"", None
        body = wire.encode_speech(request)
        asking = self.ask("application/json", body, "audio/pcm, audio/wav")
        async with aclosing(asking) as answer:
            async for kind, data in answer:
                if kind.endswith("/json") or kind.startswith("text/"):
                    raise FaultError(failed(self.name, f"it answered with {kind}, not with sound"))
                if len(head) < 12:  # some servers send a WAV file in any case
                    head += data
                    if len(head) < 12:
                        continue
                    found = sniff(head)
                    if (
                        found in _CODED
                        or head[:3] == b"ID3"
                        or (kind == _MPEG and head[:2] in _SYNC)
                    ):
                        problem = f"it answered with {found}, not with pcm or wav"
                        raise FaultError(failed(self.name, problem))
                    reader = WavReader() if found == "wav" else None
                    data = head
                if reader is not None:
                    data = read_sound(self.name, reader, data)
                else:
                    data = half + data
                    whole = len(data) & ~1
                    data, half = data[:whole], data[whole:]
                yield data
        if reader is not None:
            yield read_sound(self.name, reader, b"", last=True)
        elif len(head) < 12:
            yield head[: len(head) & ~1]


_CODED = ("flac", "ogg", "webm", "mp4")
"""What is no PCM by its first bytes alone."""
_MPEG, _SYNC = "audio/mpeg", (b"\xff\xfb", b"\xff\xfa", b"\xff\xf3", b"\xff\xf2")
"""Some servers call everything so; then mp3 is what begins with a frame of it."""


class RemoteTranscriber(_Endpoint):
    """Recognises speech with the model of a server, as a stream: so without the times of words."""

    ignores = ("words",)

    def __init__(
        self,
        url: str,
        *,
        key: Secret | str | None = None,
        model: str | None = None,
        client: Client | None = None,
    ) -> None:
        super().__init__(url, wire.TRANSCRIPTIONS, key, client, _LISTENS)
        self._model = model

    async def transcribe(self, pcm: Sound, asked: Listening) -> AsyncGenerator[Piece, None]:
        """The transcript, streamed where the server can."""
        request = wire.TranscriptionRequest(
            model=self._model or asked.model or TRANSCRIPTION_MODEL,
            data=memoryview(pcm),
            language=asked.language,
            prompt=asked.prompt,
            stream=True,
        )
        media_type, body = await asyncio.to_thread(
            wire.encode_transcription, request, f"dragoman-{new_id()}", wav_head(len(pcm))
        )
        decoder, whole, seen, heard = SSEDecoder(), bytearray(), "", False
        asking = self.ask(media_type, body, "application/json, text/event-stream")
        async with aclosing(asking) as answer:
            async for kind, data in answer:
                if kind != "text/event-stream":
                    whole += data
                    self._check_size(len(whole), 0)
                    continue
                for _, event in _events(decoder, data, self.name):
                    self._check_size(len(event), json.marks(event))
                    piece = self._read(wire.read_transcript_event, event, seen)
                    heard = heard or piece is not None
                    if piece:
                        seen += piece
                        yield self._piece(piece, len(seen))
        if not heard:
            self._check_size(0, json.marks(bytes(whole)))
            try:
                text = self._read(wire.read_transcript, bytes(whole) or b"{}")
            except ValueError as problem:
                raise FaultError(failed(self.name, f"its answer {problem}")) from None
            yield self._piece(text, len(text))

    def _read(self, read: Callable[..., _T], *given: object) -> _T:
        """What a function reads; an error of the server is without our key."""
        try:
            return read(*given)
        except FaultError as error:
            raise FaultError(without(error.fault, self._key)) from None

    def _check_size(self, size: int, values: int) -> None:
        if size > LONGEST_JSON or values > MOST_VALUES:
            problem = f"it sent more than {LONGEST_JSON} bytes or {MOST_VALUES} values at once"
            raise FaultError(failed(self.name, problem))

    def _piece(self, text: str, whole: int) -> Piece:
        if whole > LONGEST_TRANSCRIPT:
            problem = f"its transcript has more than {LONGEST_TRANSCRIPT} characters"
            raise FaultError(failed(self.name, problem))
        return Piece(text)


def _events(decoder: SSEDecoder, data: bytes, name: str) -> list[tuple[str, bytes]]:
    try:
        return decoder.feed(data)
    except ValueError as problem:
        raise FaultError(failed(name, str(problem))) from None
