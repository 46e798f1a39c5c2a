"""A client of WebRTC calls, by aiortc on loopback: an offer, events, and sound both ways.

It speaks faster than people do: its frames come as fast as they are taken, each with its own time.
"""

import asyncio
import json
import math
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import aiortc
import httpx2
from aioice import ice
from av import AudioFrame

from dragoman.core.sound import BYTES_PER_MS
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.voice.studio import Studio
from tests.engines import voices
from tests.oracle import realtime_problems
from tests.server.stubs import Stub, served
from tests.wire.realtime.order_checker import Order

CALLS = "/v1/realtime/calls"
TONE = array("h", [int(9_000 * math.sin(math.tau * n / 48)) for n in range(240)]).tobytes()
"""10 ms of 500 Hz."""
SILENCE = bytes(len(TONE))


def loudness(pcm: bytes) -> int:
    return max(map(abs, array("h", pcm)), default=0)


class Ears(voices.Ears):
    """A detector: speech is what is loud, and ends after 100 ms that are not."""

    quiet = 0

    def feed(self, audio: bytes) -> list[Any]:
        found: list[Any] = []
        self.position += len(audio) // BYTES_PER_MS
        loud = loudness(audio) > 3_000
        self.quiet = 0 if loud else self.quiet + len(audio) // BYTES_PER_MS
        if loud and not self.speaking:
            found.append(voices.SpeechStarted(self.position))
        elif self.speaking and self.quiet >= 100:
            found.append(voices.SpeechStopped(self.position))
        self.speaking = loud or (self.speaking and self.quiet < 100)
        return found


class Tones(voices.Speaking):
    """Speaks a letter as 10 ms of a tone."""

    letter = TONE


class Voice(voices.Voice):
    def detector(self, detection: Any) -> Ears:
        self.ears.append(Ears())
        return self.ears[-1]

    def speaking(self, engine: Any) -> Tones:
        return Tones(engine)


class Voiced(Studio, frozen=True):
    def open(self) -> Voice:
        return Voice()


class Microphone(aiortc.MediaStreamTrack):
    """What the user says, and nothing else."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.sent = 0  # samples

    def say(self, pcm: bytes) -> None:
        for place in range(0, len(pcm), 960):
            self.queue.put_nowait(pcm[place : place + 960].ljust(960, b"\0"))

    async def recv(self) -> AudioFrame:
        pcm = await self.queue.get()
        frame = AudioFrame(format="s16", layout="mono", samples=480)
        frame.planes[0].update(pcm)
        frame.sample_rate, frame.time_base = 24_000, Fraction(1, 24_000)
        frame.pts, self.sent = self.sent, self.sent + 480
        await asyncio.sleep(0.001)
        return frame


class Phone:
    """One call. Every event is held against the schema and the order."""

    def __init__(self, port: int, *, audio: bool = True) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.microphone = Microphone()
        self.peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
        self.channel = self.peer.createDataChannel("oai-events")
        self.channel.on("message", self._message)
        if audio:
            self.peer.addTrack(self.microphone)
        self.peer.on("track", self._track)
        self.closed = asyncio.Event()
        self.channel.on("close", self.closed.set)
        self.events: list[dict[str, Any]] = []
        self.heard: list[tuple[int, int]] = []  # when, in samples of 48 kHz, and how loud
        self.location = ""
        self._http = httpx2.AsyncClient(verify=False)
        self._order = Order()
        self._come = asyncio.Event()
        self._seen = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def offer(self) -> str:
        await self.peer.setLocalDescription(await self.peer.createOffer())
        return self.peer.localDescription.sdp

    async def post(self, path: str = "", content: Any = b"", **headers: str) -> httpx2.Response:
        return await self._http.post(self.url + (path or CALLS), content=content, headers=headers)

    async def dial(self, query: str = "?model=stub", **headers: str) -> None:
        headers = {"content-type": "application/sdp", **headers}
        answer = await self.post(CALLS + query, await self.offer(), **headers)
        assert answer.status_code == 201, answer.text
        assert answer.headers["content-type"] == "application/sdp"
        self.location = answer.headers["location"]
        await self.take(answer.text)

    async def take(self, answer: str) -> None:
        await self.peer.setRemoteDescription(aiortc.RTCSessionDescription(answer, "answer"))

    async def say(self, *events: dict[str, Any]) -> None:
        while self.channel.readyState == "connecting":
            await asyncio.sleep(0.005)
        for event in events:
            self.channel.send(json.dumps(event))

    async def until(self, kind: str) -> dict[str, Any]:
        """The next event of this kind behind the last that was waited for."""
        while True:
            while self._seen < len(self.events):
                self._seen += 1
                if self.events[self._seen - 1]["type"] == kind:
                    return self.events[self._seen - 1]
            self._come.clear()
            await self._come.wait()

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    async def hang_up(self) -> int:
        return (await self.post(f"{self.location}/hangup")).status_code

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.peer.close()
        await self._http.aclose()

    def _message(self, message: str) -> None:
        event = json.loads(message)
        assert realtime_problems(event) == [], event
        if not event["type"].startswith("output_audio_buffer."):
            self._order.feed(event)
        self.events.append(event)
        self._come.set()

    def _track(self, track: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._hear(track)))

    async def _hear(self, track: Any) -> None:
        while True:
            try:
                frame = await track.recv()
            except aiortc.mediastreams.MediaStreamError:
                return
            self.heard.append((frame.pts, loudness(bytes(frame.planes[0])[: 4 * frame.samples])))


@asynccontextmanager
async def calling(
    engine: Any = None,
    settings: Settings | None = None,
    *,
    voiced: bool = True,
    studio: Studio | None = None,
    **options: Any,
) -> AsyncIterator[tuple[App, Phone]]:
    """A server on loopback, and a phone that may call it."""
    settings = settings or Settings()
    given = studio or (Voiced(None, None) if voiced else None)
    app = App(engine or Stub(), settings, studio=given)
    async with served(app, settings) as port:
        phone = Phone(port, **options)
        try:
            yield app, phone
        finally:
            await phone.close()
    await app.close()


def on_loopback(monkeypatch: Any) -> None:
    """aioice offers all addresses of a machine but that one, and where there is no network none."""
    here = ["127.0.0.1"]
    monkeypatch.setattr(ice, "get_host_addresses", lambda use_ipv4, use_ipv6: here)
