"""Endpoints that speak and listen: `/v1/audio/speech`, `/v1/audio/transcriptions`, and the page
`/talk`.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller
from dragoman.core.loss import Loss
from dragoman.core.sound import milliseconds
from dragoman.net.threads import reading
from dragoman.net.webrtc import available
from dragoman.voice.local import Library
from dragoman.voice.sound import SoundEncoder
from dragoman.voice.speech import (
    NO_SYNTHESIZER,
    NO_TRANSCRIBER,
    Listening,
    Piece,
    Speaking,
    Synthesizer,
    Transcriber,
)
from dragoman.voice.studio import Studio
from dragoman.wire import audio as wire
from dragoman.wire import error, sse
from dragoman.wire.audio import Segment, SpeechRequest, TranscriptionRequest
from dragoman.wire.multipart import MEDIA_TYPE, find_boundary, read_parts
from dragoman.wire.registry import BASE

from .cancellation import GONE, Watch, stalled, too_late
from .exchange import Exchange, Headers, Route, fault_of, report_headers
from .limits import Gate, read_body
from .responder import SSE_HEADERS, Service

FORM = 64 * 1024
"""Bytes of a form beside those of the recording in it."""
_PAGE = Path(__file__).with_name("talk.html").read_bytes()
_POLICY = (
    b"default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; "
    b"connect-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
)
_PAGE_HEADERS: Headers = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
UNUSED = "what speaks or listens here has no such option"


class AudioHandlers:
    """Handlers for speech and transcriptions by the backends of `studio`. Local backends take
    few requests at once: clients queue for them in turn, and each has its `share`."""

    def __init__(self, service: Service, studio: Studio, share: float) -> None:
        self._service = service
        self._studio = studio
        settings = service.settings

        def gate(used: object) -> Gate:
            places: int | None = getattr(used, "at_once", None)
            if places is None:  # it is a server, too
                return service.gate
            return Gate(places, settings.queue, settings.queue_time, share)

        self._speaking, self._listening = gate(studio.synthesizer), gate(studio.transcriber)
        self._reading = gate(Library)

    def routes(self) -> list[Route]:
        """The routes to these handlers."""
        return [
            Route("GET", "/talk", self.page, public=True),
            Route("POST", BASE + wire.SPEECH, self.speak),
            Route("POST", BASE + wire.TRANSCRIPTIONS, self.transcribe),
        ]

    def page(self, exchange: Exchange, caller: Caller) -> None:
        """The page `/talk`. It is public, as it holds no data: its requests need the key."""
        calls = available() and self._service.settings.workers == 1
        page = _PAGE.replace(b'data-calls="no"', b'data-calls="yes"') if calls else _PAGE
        exchange.start(200, [*exchange.marks, *_PAGE_HEADERS], page)
        exchange.status = 200
        exchange.end()

    async def speak(self, exchange: Exchange, caller: Caller) -> None:
        """Synthesize speech, streamed while it is generated."""
        reading.set(caller.tenant)
        asked = await self._service.read(exchange, caller, wire.decode_speech)
        encoder = SoundEncoder(asked.format)
        headers: Headers = SSE_HEADERS if asked.sse else [(b"content-type", encoder.media_type)]
        losses = _losses(asked, self._studio.synthesizer)
        made = self._sound(asked, encoder)
        sending = _Sending(self._service, exchange, caller, made, self._speaking)
        await sending.begin([*headers, *losses], _error if asked.sse else None)

    async def _sound(
        self, asked: SpeechRequest, encoder: SoundEncoder
    ) -> AsyncGenerator[bytes, None]:
        if self._studio.synthesizer is None:
            raise FaultError(NO_SYNTHESIZER)
        how = Speaking(
            model=asked.model,
            voice=asked.voice,
            speed=asked.speed,
            instructions=asked.instructions,
        )

        def event(data: bytes) -> bytes:
            return wire.speech_delta(b64encode(data).decode()) if asked.sse and data else data

        async with aclosing(self._studio.synthesizer.speak(asked.text, how)) as sound:
            async for pcm in sound:
                if data := encoder.feed(pcm):
                    yield event(data)
        yield event(encoder.close()) + (wire.speech_done() if asked.sse else b"")

    async def transcribe(self, exchange: Exchange, caller: Caller) -> None:
        """Transcribe a recording."""
        reading.set(caller.tenant)
        service, limit = self._service, self._service.settings.audio_limit
        hold = service.budget.hold(caller.tenant)
        body = await read_body(
            exchange,
            service.settings,
            service.roster,
            hold,
            media_type=(MEDIA_TYPE,),
            limit=limit + FORM,
            setting="audio_limit",
        )
        boundary = find_boundary(exchange.header(b"content-type"))
        asked = wire.decode_transcription(read_parts(body, boundary))
        if len(asked.data) > limit:
            problem = f"has {len(asked.data)} bytes, more than {limit} (audio_limit)"
            raise FaultError(Fault("too_large", f"file: {problem}", "client", "file"))
        losses, seconds = _losses(asked, self._studio.transcriber), 0.0

        async def transcribed() -> AsyncGenerator[Piece, None]:
            nonlocal seconds
            if self._studio.transcriber is None:
                raise FaultError(NO_TRANSCRIBER)
            hold.add(2 * len(asked.data))
            async with self._reading.place(caller.tenant):
                pcm = await self._studio.read(bytes(asked.data), hold.add)
            seconds = milliseconds(len(pcm)) / 1000
            how = Listening(
                model=asked.model,
                language=asked.language,
                prompt=asked.prompt,
                words=asked.words,
                recording=True,
            )
            async with aclosing(self._studio.transcriber.transcribe(pcm, how)) as found:
                async for piece in found:
                    yield piece

        pieces = transcribed()
        if asked.stream:
            sending = _Sending(service, exchange, caller, _events(pieces), self._listening)
            await sending.begin([*SSE_HEADERS, *losses], _error)
            return
        with Watch(service.roster, exchange) as watch:
            watch.limit(service.settings.deadline)
            async with self._listening.place(caller.tenant), aclosing(pieces):
                found = await _together(pieces)
        segments = [_segment(piece, seconds) for piece in found]
        media_type, answer = wire.encode_transcript(asked, segments, seconds)
        exchange.start(200, [*exchange.marks, *losses, (b"content-type", media_type)], answer)
        exchange.status = 200
        exchange.end()


def _losses(
    asked: SpeechRequest | TranscriptionRequest, used: Synthesizer | Transcriber | None
) -> Headers:
    """The ignored fields: unknown ones, and those that the installed backend does not use."""
    ignored = [each for each in used.ignores if getattr(asked, each)] if used is not None else []
    names = [wire.GRANULARITIES if each == "words" else each for each in ignored]
    return report_headers(tuple(Loss(name, "dropped", UNUSED) for name in (*asked.ignored, *names)))


async def _together(pieces: AsyncGenerator[Piece, None]) -> list[Piece]:
    """The pieces that have times, and those that have none joined to one: servers stream words, or
    less."""
    found: list[Piece] = []
    text = ""
    async for piece in pieces:
        if piece.start is None:
            text += piece.text
        else:
            found += (Piece(text), piece) if text else (piece,)
            text = ""
    return [*found, Piece(text)] if text else found


def _segment(piece: Piece, seconds: float) -> Segment:
    start, end = piece.start, piece.end
    return Segment(
        piece.text,
        0.0 if start is None else start,
        seconds if end is None else end,
        tuple((each.word, each.start, each.end) for each in piece.words),
    )


async def _events(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[bytes, None]:
    whole = ""
    async with aclosing(pieces):
        async for piece in pieces:
            whole += piece.text
            yield wire.transcript_delta(piece.text)
    yield wire.transcript_done(whole)


def _error(fault: Fault) -> bytes:
    """The last event of a stream that failed."""
    return sse.frame(error.encode(fault), "error")


class _Sending:
    """Streams the output of a generator with backpressure. It holds a place at a gate.

    An error before the first byte is sent with its status; later the connection is
    dropped, or an event reports it.
    """

    def __init__(
        self,
        service: Service,
        exchange: Exchange,
        caller: Caller,
        made: AsyncGenerator[bytes, None],
        gate: Gate,
    ) -> None:
        self._service = service
        self._gate = gate
        self._exchange = exchange
        self._caller = caller
        self._made = made
        self._task: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        self._stopped: Fault | None = None
        self._sending = False
        self._deadline: Fault | None = None
        self._last: Callable[[Fault], bytes] | None = None

    async def begin(self, headers: Headers, last: Callable[[Fault], bytes] | None) -> None:
        """Wait for the first bytes, and leave the rest to a task. `last` makes the last bytes of
        a response that failed. Raises FaultError."""
        service, exchange, tenant = self._service, self._exchange, self._caller.tenant
        seconds = service.settings.deadline
        with Watch(service.roster, exchange) as watch:
            watch.limit(seconds)
            await self._gate.enter(tenant)
            try:
                first = await anext(self._made, b"")
            except BaseException:
                self._gate.leave(tenant)
                await self._made.aclose()
                raise
        self._last = last
        service.roster.works.add(self)
        exchange.listen(self)
        if seconds is not None:
            self._deadline = too_late(seconds)
            service.roster.call_at(self, asyncio.get_running_loop().time() + seconds)
        hold, exchange.hold = exchange.hold, None
        exchange.open(200, headers)
        if exchange.write(first, more=True):
            self._drained.clear()
        else:
            self._drained.set()
        self._task = asyncio.ensure_future(self._send())
        if hold is not None:
            self._task.add_done_callback(lambda _: hold.close())

    async def _send(self) -> None:
        exchange, stall = self._exchange, self._service.settings.stall
        failed: Fault | None = None
        self._sending = True
        try:
            async with aclosing(self._made):
                if self._stopped is not None:  # before it began
                    raise asyncio.CancelledError
                async for data in self._made:
                    if not self._drained.is_set():
                        async with asyncio.timeout(stall):
                            await self._drained.wait()
                    if exchange.write(data, more=True):
                        self._drained.clear()
                    await asyncio.sleep(0)  # yield to other tasks: ready pieces come without a wait
        except asyncio.CancelledError:
            failed = self._stopped or GONE
        except TimeoutError:
            failed = stalled(stall)
        except Exception as problem:
            failed = fault_of(problem, exchange.id, self._caller.key)
        finally:
            self._service.roster.discard(self)
            self._gate.leave(self._caller.tenant)
        if failed is None:
            exchange.write(b"", more=False)
        elif failed is GONE or failed.code == "stalled" or self._last is None:
            exchange.abort()
            return
        else:
            exchange.write(self._last(failed), more=False)
        exchange.end()

    def stop(self, fault: Fault) -> None:
        """End it for this reason."""
        if self._task is not None and self._stopped is None:
            self._stopped = fault
            if self._sending:  # a task that has not begun would end without leaving its place
                self._task.cancel()

    def tick(self, now: float) -> None:
        """Time is up."""
        if self._deadline is not None:
            self.stop(self._deadline)

    def disconnected(self) -> None:
        """The client is gone."""
        self.stop(GONE)

    def drained(self) -> None:
        """The client has read the buffer."""
        self._drained.set()
