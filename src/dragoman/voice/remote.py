"""Calls servers with OpenAI's audio endpoints: /audio/speech and /audio/transcriptions."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dragoman.core.error import FaultError, bad_request, quoted
from dragoman.core.interfaces import Secret
from dragoman.core.sound import Sound, wav
from dragoman.engines.base import new_id
from dragoman.engines.upstream import broken, key_refused, sendable, without
from dragoman.net.client import Client, HeaderFields
from dragoman.net.connection import Limits
from dragoman.net.errors import InvalidUrlError, NetError
from dragoman.net.url import Proxies, parse_url
from dragoman.wire import audio as wire
from dragoman.wire import error
from dragoman.wire.sse import SSEDecoder

from .sound import WavReader, sniff
from .speech import Listening, Piece, Speaking, failed, read_sound

SPEECH_MODEL = "gpt-4o-mini-tts"
TRANSCRIPTION_MODEL = "gpt-4o-mini-transcribe"
USUAL_VOICE = "alloy"
_LONGEST_ANSWER = 64 * 1024 * 1024
_LONGEST_ERROR = 64 * 1024
_REFUSED = (401, 403)


class _Endpoint:
    """One path of a server."""

    def __init__(
        self, url: str, path: str, key: Secret | str | None, client: Client | None
    ) -> None:
        try:
            place = parse_url(url.rstrip("/"))
        except InvalidUrlError as problem:
            raise FaultError(bad_request(f"{quoted(url)}: {problem}")) from None
        self._url = f"{url.rstrip('/')}{path}"
        self.name = f"the speech server at {place.authority}"
        self._key = sendable(key)
        self._client = client or Client(
            proxies=Proxies.from_environ(os.environ),
            limits=Limits(body_bytes=_LONGEST_ANSWER),
            name=self.name,
        )

    async def ask(
        self, media_type: str, body: bytes, accept: str
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """The media type and the next bytes of the answer. Raises FaultError."""
        headers: HeaderFields = (("content-type", media_type), ("accept", accept))
        if self._key is not None:
            headers += (("authorization", f"Bearer {self._key.reveal()}"),)
        try:
            async with self._client.stream("POST", self._url, headers, body) as reply:
                if reply.status in _REFUSED:
                    raise FaultError(key_refused(self.name, reply.status, self._key))
                if reply.status != 200:
                    answer = await reply.read(_LONGEST_ERROR)
                    fault = error.decode(reply.status, answer, reply.header("retry-after"))
                    raise FaultError(without(fault, self._key))
                kind = (reply.header("content-type") or "").partition(";")[0].strip().lower()
                async for chunk in reply.chunks():
                    yield kind, chunk
        except NetError as problem:
            raise FaultError(broken(problem)) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


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
        super().__init__(url, wire.SPEECH, key, client)
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
                if kind.endswith(("/json", "/html")):
                    raise FaultError(failed(self.name, f"it answered with {kind}, not with sound"))
                if len(head) < 12:  # some servers send a WAV file in any case
                    head += data
                    if len(head) < 12:
                        continue
                    reader = WavReader() if sniff(head) == "wav" else None
                    data = head
                if reader is not None:
                    yield read_sound(self.name, reader, data)
                else:
                    data = half + data
                    whole = len(data) & ~1
                    half = data[whole:]
                    yield data[:whole]
        if reader is not None:
            yield read_sound(self.name, reader, b"", last=True)
        elif len(head) < 12:
            yield head[: len(head) & ~1]


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
        super().__init__(url, wire.TRANSCRIPTIONS, key, client)
        self._model = model

    async def transcribe(self, pcm: Sound, asked: Listening) -> AsyncGenerator[Piece, None]:
        """The transcript, streamed where the server can."""
        request = wire.TranscriptionRequest(
            model=self._model or asked.model or TRANSCRIPTION_MODEL,
            data=memoryview(wav(pcm)),
            language=asked.language,
            prompt=asked.prompt,
            stream=True,
        )
        media_type, body = wire.encode_transcription(request, f"dragoman-{new_id()}")
        decoder, whole, seen = SSEDecoder(), bytearray(), ""
        asking = self.ask(media_type, body, "application/json, text/event-stream")
        async with aclosing(asking) as answer:
            async for kind, data in answer:
                if kind != "text/event-stream":
                    whole += data
                    if len(whole) > _LONGEST_ANSWER:
                        raise FaultError(failed(self.name, "its transcript has no end"))
                    continue
                for _, event in _events(decoder, data, self.name):
                    if piece := wire.read_transcript_event(event, seen):
                        seen += piece
                        yield Piece(piece)
        if whole:
            try:
                text = wire.read_transcript(bytes(whole))
            except ValueError as problem:
                raise FaultError(failed(self.name, f"its answer {problem}")) from None
            yield Piece(text)


def _events(decoder: SSEDecoder, data: bytes, name: str) -> list[tuple[str, bytes]]:
    try:
        return decoder.feed(data)
    except ValueError as problem:
        raise FaultError(failed(name, str(problem))) from None
