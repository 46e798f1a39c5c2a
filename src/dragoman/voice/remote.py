"""Speech by servers that have OpenAI's audio endpoints: /audio/speech and /audio/transcriptions."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from dragoman.core.error import FaultError, bad_request, quoted
from dragoman.core.interfaces import Secret
from dragoman.engines.base import new_id
from dragoman.engines.upstream import broken, key_refused, sendable, without
from dragoman.net.client import Client, HeaderFields
from dragoman.net.connection import Limits
from dragoman.net.errors import InvalidUrlError, NetError
from dragoman.net.url import Proxies, parse_url
from dragoman.wire import error, json
from dragoman.wire.multipart import MEDIA_TYPE
from dragoman.wire.sse import SSEDecoder

from .sound import WavReader, sniff, wav
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

    def __init__(
        self,
        url: str,
        *,
        key: Secret | str | None = None,
        model: str | None = None,
        voice: str = USUAL_VOICE,
        client: Client | None = None,
    ) -> None:
        super().__init__(url, "/audio/speech", key, client)
        self._model = model
        self._voice = voice

    async def speak(self, text: str, how: Speaking) -> AsyncGenerator[bytes, None]:
        """PCM16 as the server sends it."""
        asked: dict[str, Any] = {
            "model": self._model or how.model or SPEECH_MODEL,
            "input": text,
            "voice": how.voice or self._voice,
            "response_format": "pcm",
        }
        if how.speed != 1.0:
            asked["speed"] = how.speed
        if how.instructions is not None:
            asked["instructions"] = how.instructions
        head, half, reader = b"", b"", None
        asking = self.ask("application/json", json.dump(asked), "audio/pcm, audio/wav")
        async with aclosing(asking) as answer:
            async for kind, data in answer:
                if kind.endswith(("/json", "/html")):
                    raise FaultError(failed(self.name, f"it answered with {kind}, not with sound"))
                if len(head) < 12:  # some servers send a WAV file whatever they are asked for
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
    """Recognises speech with the model of a server."""

    def __init__(
        self,
        url: str,
        *,
        key: Secret | str | None = None,
        model: str | None = None,
        client: Client | None = None,
    ) -> None:
        super().__init__(url, "/audio/transcriptions", key, client)
        self._model = model

    async def transcribe(self, pcm: bytes, asked: Listening) -> AsyncGenerator[Piece, None]:
        """The words as the server gives them: streamed, where it can."""
        model = self._model or asked.model or TRANSCRIPTION_MODEL
        fields = {"model": model, "response_format": "json", "stream": "true"}
        if asked.language is not None:
            fields["language"] = asked.language
        if asked.prompt is not None:
            fields["prompt"] = asked.prompt
        boundary, body = form(fields, wav(pcm))
        decoder, whole, told = SSEDecoder(), b"", ""
        asking = self.ask(
            f"{MEDIA_TYPE}; boundary={boundary}", body, "application/json, text/event-stream"
        )
        async with aclosing(asking) as answer:
            async for kind, data in answer:
                if kind != "text/event-stream":
                    whole += data
                    if len(whole) > _LONGEST_ANSWER:
                        raise FaultError(failed(self.name, "its transcript has no end"))
                    continue
                for _, event in _events(decoder, data, self.name):
                    for piece in _pieces(event, told):
                        told += piece.text
                        yield piece
        if whole:
            yield Piece(_text(whole, self.name))


def _events(decoder: SSEDecoder, data: bytes, name: str) -> list[tuple[str, bytes]]:
    try:
        return decoder.feed(data)
    except ValueError as problem:
        raise FaultError(failed(name, str(problem))) from None


def _pieces(event: bytes, told: str) -> list[Piece]:
    """What an event of a streamed transcript adds to what is known of it."""
    try:
        value = json.load(event)
    except ValueError:
        return []  # [DONE], which some send
    if (fault := error.describe(value)) is not None:
        raise FaultError(fault)
    match value:
        case {"type": "transcript.text.delta", "delta": str(text)}:
            return [Piece(text)]
        case {"type": "transcript.text.done", "text": str(text)} if text.startswith(told):
            return [Piece(text[len(told) :])] if len(text) > len(told) else []
    return []


def _text(body: bytes, name: str) -> str:
    try:
        value = json.load(body)
    except ValueError as problem:
        raise FaultError(failed(name, f"its answer {problem}")) from None
    match value:
        case {"text": str(text)}:
            return text
    raise FaultError(error.describe(value) or failed(name, "its answer has no text"))


def form(fields: dict[str, str], sound: bytes) -> tuple[str, bytes]:
    """The boundary and the body of a form with these fields and a WAV file."""
    boundary = f"dragoman-{new_id()}"
    parts = []
    for name, value in fields.items():
        parts.append(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}'
        )
    head = 'Content-Disposition: form-data; name="file"; filename="speech.wav"'
    parts.append(f"--{boundary}\r\n{head}\r\nContent-Type: audio/wav\r\n\r\n")
    body = "\r\n".join(parts).encode() + sound + f"\r\n--{boundary}--\r\n".encode()
    return boundary, body
