"""The page `/talk` in Chromium, with a WAV file as its microphone: a stranger asks the pocket model
for the weather, hears the tool's answer, interrupts it and is understood.

It takes as long as the conversation does, so it is part of the full suite only.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from websockets.asyncio.client import connect

from dragoman.core.sound import BYTES_PER_MS, RATE, wav
from dragoman.voice.programs import ESpeak
from dragoman.voice.sound import Resampler
from dragoman.voice.speech import Speaking
from tests.product import SOURCE
from tests.samples import FULL

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NO_CANCELLER = """{
  const devices = navigator.mediaDevices, get = devices.getUserMedia.bind(devices);
  devices.getUserMedia = ({audio}) => get({audio: {...audio, echoCancellation: false}});
}"""
"""Between this microphone and this speaker there is no room: a canceller takes the user for an echo
of what is played."""
COUNTED = """{
  const devices = navigator.mediaDevices, get = devices.getUserMedia.bind(devices);
  window.microphones = []; window.sockets = [];
  devices.getUserMedia = async (asked) => {
    await new Promise((resolve) => setTimeout(resolve, 500));
    const found = await get(asked);
    microphones.push(found);
    return found;
  };
  window.WebSocket = class extends WebSocket {
    constructor(...given) { super(...given); sockets.push(this); }
  };
}"""
"""Microphones are asked for half a second, and they and WebSockets are counted."""
SAID = "[...document.querySelectorAll('li')].map(each => [each.className, each.textContent])"


class Page:
    """A page, by Chromium's debugging protocol."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._count = 0

    async def call(self, method: str, **params: Any) -> Any:
        self._count += 1
        await self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while (answer := json.loads(await self._socket.recv())).get("id") != self._count:
            assert answer["method"] != "Runtime.exceptionThrown", answer
        return answer["result"]

    async def value(self, expression: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    async def until(self, expression: str, seconds: float = 60) -> None:
        """Wait until this is true on the page."""
        async with asyncio.timeout(seconds):
            while not await self.value(expression):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def browser(folder: Path, microphone: Path) -> AsyncIterator[Page]:
    command = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--remote-debugging-port=0"),
        *(f"--user-data-dir={folder}", "--use-fake-device-for-media-stream"),
        *("--use-fake-ui-for-media-stream", "--autoplay-policy=no-user-gesture-required"),
        *(f"--use-file-for-fake-audio-capture={microphone}%noloop", "about:blank"),
    ]
    port = folder / "DevToolsActivePort"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not port.exists() or "\n" not in port.read_text():
                await asyncio.sleep(0.05)
            number, path = port.read_text().split()
            async with connect(f"ws://127.0.0.1:{number}{path}", max_size=None) as main:
                whole = Page(main)
                (target,) = [
                    each["targetId"]
                    for each in (await whole.call("Target.getTargets"))["targetInfos"]
                    if each["type"] == "page"
                ]
                url = f"ws://127.0.0.1:{number}/devtools/page/{target}"
                async with connect(url, max_size=None) as socket:
                    yield Page(socket)
        finally:
            process.terminate()


async def spoken(*parts: str | int) -> bytes:
    """What a microphone has of texts and milliseconds of silence, in a room with noise."""
    how, draw, sound = Speaking(voice="en-us"), Random(1), b""
    for part in parts:
        if isinstance(part, int):
            sound += bytes(part * BYTES_PER_MS)
        else:
            sound += b"".join([pcm async for pcm in ESpeak().speak(part, how)])
    noisy = [max(-32_768, min(int(0.7 * s + draw.gauss(0, 60)), 32_767)) for s in array("h", sound)]
    resampler = Resampler(RATE, 48_000)
    return wav(resampler.feed(array("h", noisy).tobytes(), last=True), 48_000)


if FULL:

    @pytest.mark.uncounted
    @pytest.mark.parametrize("by", ["socket", "call"])
    async def test_a_stranger_talks_with_the_pocket_model(by, tmp_path) -> None:
        if CHROMIUM is None or shutil.which("espeak-ng") is None:
            pytest.skip("Chromium or espeak-ng is not installed")
        microphone = tmp_path / "microphone.wav"
        parts = (2_500, "What is the weather in Paris?", 7_000, "Count to twenty.", 4_000)
        microphone.write_bytes(await spoken(*parts, "Thank you.", 20_000))
        command = [sys.executable, "-m", "dragoman", "serve", "pocket", "--port", "0"]
        server = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **SOURCE}, cwd=tmp_path, stdout=subprocess.PIPE
        )
        try:
            ready = (await server.stdout.readline()).decode()
            url = ready.rsplit(" ", 1)[1].strip().removesuffix("/v1")
            async with browser(tmp_path / "profile", microphone) as page:
                await page.call("Runtime.enable")
                await page.call("Page.navigate", url=f"{url}/talk")
                await page.until("document.getElementById('model')?.value === 'pocket'")
                await page.value(f"document.getElementById('by').value = '{by}'")
                await page.value(NO_CANCELLER)
                await page.value("document.getElementById('start').click()")
                await page.until("document.querySelectorAll('li.model').length === 3")
                await page.until("document.querySelectorAll('.unheard').length === 1")
                said = await page.value(SAID)
        finally:
            server.terminate()
            await server.wait()
        kinds, texts = zip(*said, strict=True)
        assert kinds == ("user", "tool", "model", "user", "model", "user", "model")
        assert texts[0] == "What is the weather in Paris"
        assert texts[1].startswith('get_weather {"city": "Paris"} → ')
        assert texts[2].startswith("It is windy in Paris")
        assert texts[3] == "Count to 20"
        assert "2, 3" in texts[4]
        assert texts[5] == "Thank you"

    @pytest.mark.uncounted
    async def test_start_clicked_twice_is_one_session_and_a_wrong_key_is_said(tmp_path) -> None:
        if CHROMIUM is None:
            pytest.skip("Chromium is not installed")
        microphone = tmp_path / "microphone.wav"
        microphone.write_bytes(wav(bytes(BYTES_PER_MS * 20_000), RATE))
        command = [sys.executable, "-m", "dragoman", "serve", "script", "--port", "0"]
        server = await asyncio.create_subprocess_exec(
            *command,
            *("--api-key-env", "KEY"),
            env={**os.environ, **SOURCE, "KEY": "right-key"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
        )
        state = "document.getElementById('state').textContent"
        click = "document.getElementById('start').click()"
        try:
            ready = (await server.stdout.readline()).decode()
            url = ready.rsplit(" ", 1)[1].strip().removesuffix("/v1")
            async with browser(tmp_path / "profile", microphone) as page:
                await page.call("Runtime.enable")
                await page.call("Page.navigate", url=f"{url}/talk")
                await page.until(f"document.getElementById('start') && {state}.includes('a key')")
                await page.value("document.getElementById('key').value = 'wrong-key'")
                await page.value(click)
                await page.until(f"{state}.startsWith('It did not start: This key is not one')", 10)
                await page.value("document.getElementById('key').value = 'right-key'; models()")
                await page.until("document.getElementById('model').value === 'script'", 10)
                await page.value(COUNTED)
                await page.value(f"{click}; {click}")
                await asyncio.sleep(0.2)  # while the microphone is asked for
                await page.value("document.getElementById('form').requestSubmit()")
                await page.until(f"{state} === 'Listening.'", 10)
                assert await page.value("[microphones.length, sockets.length]") == [1, 1]
                await page.value(click)
                assert await page.value(state) == "Stopped."
                live = "microphones.flatMap(each => each.getTracks())"
                await page.until(f"{live}.every(each => each.readyState === 'ended')", 10)
                await page.until("sockets.every(each => each.readyState === WebSocket.CLOSED)", 10)
        finally:
            server.terminate()
            await server.wait()
