"""Realtime: how soon an answer is heard, what a session costs, and many of them at once.

The server has one core with all that it starts (espeak-ng, PocketSphinx), the clients the other.
Its model takes no time, so that what is measured is the way to it and back. Clients send sound as
fast as people speak, in frames of 20 ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import sys
import time
from array import array
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from dragoman.core.sound import BYTES_PER_MS
from dragoman.voice.programs import ESpeak
from dragoman.voice.speech import Speaking

from . import machine

FRAME_MS = 20
FRAME = FRAME_MS * BYTES_PER_MS
SILENCE_MS = 200
TURNS, TEXTS, WARM, CALLS = 8, 400, 20, 5
SESSIONS, PAUSE_MS = 50, 12_000
SENTENCE = "Thank you."
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}


SERVER = """
import sys
import dragoman
from dragoman.engines.script import Script
from dragoman.server.settings import Settings
settings = Settings(port=int(sys.argv[1]), store="none", transcription="pocketsphinx=pocket")
dragoman.serve(Script("Good day to you."), settings)
"""


@contextmanager
def served() -> Iterator[tuple[int, int]]:
    """The port and the process of a server with a model that answers at once."""
    port = machine.free_port()
    command = [sys.executable, "-c", SERVER, str(port)]
    with machine.running(command, core=0, ready=f"http://127.0.0.1:{port}/healthz") as process:
        yield port, process.pid


def used(pid: int) -> float:
    """CPU seconds of a process tree, with those processes that have ended: one for each sentence
    that is spoken."""
    ticks = 0
    for one in machine.tree(pid):
        with suppress(FileNotFoundError):  # it has just ended
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def sentence() -> bytes:
    """What somebody says in a room with noise, without the silence around it."""
    draw = Random(1)
    pcm = b"".join([piece async for piece in ESpeak().speak(SENTENCE, Speaking(voice="en-us"))])
    noisy = [max(-32_768, min(int(0.7 * s + draw.gauss(0, 60)), 32_767)) for s in array("h", pcm)]
    loud = max(n for n, sample in enumerate(noisy) if abs(sample) > 1_000)
    return array("h", noisy[: loud + 1]).tobytes()


def noise(milliseconds: int) -> bytes:
    """The room when nobody speaks."""
    draw = Random(2)
    return array("h", [int(draw.gauss(0, 60)) for _ in range(24 * milliseconds)]).tobytes()


class Session:
    """One client: what it says in its own time, and when it heard something."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._due = time.monotonic()
        self._heard = asyncio.Event()
        self.heard_at = 0.0
        self.turns = 0
        self._reader = asyncio.create_task(self._read())

    async def configure(self) -> None:
        """Turns end after `SILENCE_MS`."""
        detection = {"type": "server_vad", "silence_duration_ms": SILENCE_MS}
        audio = {"input": {"turn_detection": detection}}
        session = {"type": "realtime", "audio": audio}
        await self._socket.send(json.dumps({"type": "session.update", "session": session}))

    async def say(self, pcm: bytes) -> None:
        """Send sound as it is spoken."""
        for place in range(0, len(pcm), FRAME):
            await asyncio.sleep(self._due - time.monotonic())
            self._due += FRAME_MS / 1_000
            audio = b64encode(pcm[place : place + FRAME]).decode()
            event = {"type": "input_audio_buffer.append", "audio": audio}
            await self._socket.send(json.dumps(event))

    async def turn(self, speech: bytes, pause: bytes) -> float:
        """Say something; the milliseconds from its end to the first sound of the answer."""
        self._heard.clear()
        await self.say(speech)
        ended = time.monotonic()
        await self.say(pause)
        await asyncio.wait_for(self._heard.wait(), 60)
        return 1_000 * (self.heard_at - ended)

    async def close(self) -> None:
        """Hear no more."""
        self._reader.cancel()

    async def _read(self) -> None:
        async for message in self._socket:
            if '"response.output_audio.delta"' in message[:200] and not self._heard.is_set():
                self.heard_at = time.monotonic()
                self.turns += 1
                self._heard.set()


async def _first_sound(port: int) -> list[float]:
    speech, pause = await sentence(), noise(4_000)
    async with connect(f"ws://127.0.0.1:{port}/v1/realtime?model=script") as socket:
        session = Session(socket)
        await session.configure()
        await session.say(noise(500))
        found = [await session.turn(speech, pause) for _ in range(TURNS + 1)]
        await session.close()
    return found[1:]  # the first one loads the recogniser


async def _many(port: int, pid: int, count: int, pause_ms: int) -> tuple[float, list[float], int]:
    """CPU per session in per cent of a core while nobody or everybody speaks now and then; how long
    they waited; and how many were never answered."""
    speech, pause = await sentence(), noise(pause_ms)
    waits: list[float] = []
    lost = 0

    async def one(number: int) -> None:
        nonlocal lost
        async with connect(f"ws://127.0.0.1:{port}/v1/realtime?model=script") as socket:
            session = Session(socket)
            await session.configure()
            await session.say(pause[: pause_ms * number // count * BYTES_PER_MS])
            try:
                waits.append(await session.turn(speech, pause))
            except TimeoutError:
                lost += 1
            await session.close()

    before, begun = used(pid), time.monotonic()
    await asyncio.gather(*(one(number) for number in range(count)))
    return 100 * (used(pid) - before) / (time.monotonic() - begun) / count, waits, lost


async def _quiet(port: int, pid: int) -> float:
    """CPU of a session in which nobody speaks, in per cent of a core."""
    async with connect(f"ws://127.0.0.1:{port}/v1/realtime?model=script") as socket:
        session = Session(socket)
        await session.configure()
        await session.say(noise(1_000))
        before = used(pid)
        await session.say(noise(10_000))
        await session.close()
        return 10 * (used(pid) - before)


async def _calls(port: int, pid: int) -> float:
    """CPU of a call in which somebody listens and nobody speaks, in per cent of a core."""
    aiortc = import_module("aiortc")
    peers = []
    for _ in range(CALLS):
        peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
        peer.addTrack(aiortc.mediastreams.AudioStreamTrack())  # of silence
        await peer.setLocalDescription(await peer.createOffer())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = peer.localDescription.sdp.encode()
        head = (
            "POST /v1/realtime/calls?model=script HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            "Connection: close\r\nContent-Type: application/sdp\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.read()).partition(b"\r\n\r\n")[2].decode()
        writer.close()
        await peer.setRemoteDescription(aiortc.RTCSessionDescription(answer, "answer"))
        peers.append(peer)
    await asyncio.sleep(2)
    before = used(pid)
    await asyncio.sleep(10)
    spent = used(pid) - before
    for peer in peers:
        await peer.close()
    return 10 * spent / CALLS


async def _texts(port: int, pid: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Milliseconds and CPU milliseconds of a turn of text, over Realtime and over Responses."""

    async def measured(url: str, frame: Any, last: str) -> tuple[float, float]:
        found, before = [], 0.0
        async with connect(f"ws://127.0.0.1:{port}{url}") as socket:
            for number in range(TEXTS + WARM):
                if number == WARM:
                    before = machine.cpu(pid)
                begun = time.perf_counter()
                await socket.send(json.dumps(frame))
                async for message in socket:
                    if json.loads(message)["type"] == last:
                        break
                found.append(1_000 * (time.perf_counter() - begun))
        return statistics.median(found[WARM:]), 1_000 * (machine.cpu(pid) - before) / TEXTS

    asked = {"conversation": "none", "input": [ITEM], "output_modalities": ["text"]}
    realtime = {"type": "response.create", "response": asked}
    responses = {"type": "response.create", "model": "script", "input": "Hi", "store": False}
    return (
        await measured("/v1/realtime?model=script", realtime, "response.done"),
        await measured("/v1/responses", responses, "response.completed"),
    )


def table() -> list[str]:
    """The figures, as lines of Markdown."""
    lines = ["| realtime | measured | goal |", "|---|---|---|"]

    def row(what: str, measured: str, goal: str = "") -> None:
        lines.append(f"| {what} | {measured} | {goal} |")

    voiced = shutil.which("espeak-ng") is not None and find_spec("pocketsphinx") is not None
    with served() as (port, pid):
        waits = asyncio.run(_first_sound(port)) if voiced else []  # and all is loaded
        (taken, cpu), (plain, plain_cpu) = asyncio.run(_texts(port, pid))
        beside = f"{taken:.1f} ms, {plain:.1f} ms"
        row("turn of text, and that over the WebSocket of Responses", beside, "2 ms more")
        row("the same, CPU", f"{cpu:.1f} ms, {plain_cpu:.1f} ms")
        if not voiced:
            return [*lines, "", "Without espeak-ng and PocketSphinx no voice is measured."]
        what = f"end of speech to first sound, {SILENCE_MS} ms of silence in it, median of {TURNS}"
        row(what, f"{statistics.median(waits):.0f} ms", "250 ms")
        row("session in which nobody speaks, CPU", f"{asyncio.run(_quiet(port, pid)):.1f} %")
        memory = machine.rss(pid)
        each, waits, lost = asyncio.run(_many(port, pid, SESSIONS, PAUSE_MS))
        many = f"{SESSIONS} sessions, each with a turn in {PAUSE_MS // 1_000} s"
        row(f"{many}: CPU of each", f"{each:.1f} %")
        found = f"{statistics.median(waits):.0f} ms, {max(waits):.0f} ms"
        row("the same, end of speech to first sound, median and worst", found)
        row("the same, turns without an answer", f"{lost}", "0")
        row("the same, memory of each", f"{(machine.rss(pid) - memory) / SESSIONS:.1f} MB")
        if find_spec("aiortc") is not None:
            each = asyncio.run(_calls(port, pid))
            row(f"WebRTC call in which nobody speaks, CPU of each of {CALLS}", f"{each:.1f} %")
    load = os.getloadavg()[0]
    return [*lines, "", f"Load average behind these: {load:.1f} on {os.cpu_count()} cores."]
