"""Sound and texts of clients that mean harm: none stops a server, takes more than its share, or
leaves a process behind."""

import asyncio
import math
import os
import struct
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from dragoman.core.error import FaultError
from dragoman.core.session_values import (
    Append,
    ResponseDone,
    Transcription,
    TranscriptionCompleted,
)
from dragoman.core.sound import BYTES_PER_MS, RATE, wav
from dragoman.net.threads import reading
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.voice import speech
from dragoman.voice.local import Library
from dragoman.voice.programs import ESpeak
from dragoman.voice.speech import Places
from dragoman.voice.studio import Studio, studio
from tests.samples import samples
from tests.server.stubs import Call, Stub
from tests.voice.fakes import Listener
from tests.voice.test_session import Client, said
from tests.voice.test_session import studio as voices
from tests.voice.test_spoken import BEGUN, ENDED, Plays, message

SETTINGS = Settings(allowed_hosts=("*",))


def file(
    data: bytes, *, rate: int = RATE, channels: int = 1, width: int = 2, code: int = 1
) -> bytes:
    """A WAV file of any claims."""
    unit = channels * width
    form = struct.pack("<HHIIHH", code, channels, rate, rate * unit & 0xFFFFFFFF, unit, 8 * width)
    head = b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<I", len(form)) + form
    return head + b"data\xff\xff\xff\x7f" + data


NO_NUMBERS = struct.pack("<4f", math.nan, math.inf, -math.inf, 1e38)
RUBBISH = Random(13).randbytes(20_000)
RECORDINGS: dict[str, tuple[bytes, str | None]] = {
    "nothing": (b"", "is no sound"),
    "one byte": (b"R", "is no sound"),
    "no numbers": (
        file(struct.pack("<4f", math.nan, math.inf, -math.inf, 1e38) * 99, width=4, code=3),
        None,
    ),
    "half a sample": (file(b"\1\2\3"), None),
    "less than a sample": (file(b"\1"), "has no sound"),
    "no rate": (file(b"\0" * 100, rate=0), "cannot be read as wav"),
    "the highest rate": (file(b"\0" * 100, rate=0xFFFFFFFF), "cannot be read as wav"),
    "no channels": (file(b"\0" * 100, channels=0), "cannot be read as wav"),
    "many channels": (file(b"\0" * 9_000, channels=30_000), "cannot be read as wav"),
    "no width": (file(b"\0" * 100, width=0), "cannot be read as wav"),
    "a head without end": (b"RIFF\0\0\0\0WAVELIST\xff\xff\xff\x7f", "cannot be read as wav"),
    "a claim of 8 kHz": (file(b"\0\1" * 800, rate=8_000), None),
    "hours in a second": (file(b"\0\1" * 60_000, rate=1), "more than the"),
    "mp3 of zeros": (b"\xff\xfb\x90\x64" + bytes(50_000), "cannot be read as mp3"),
    "mp3 of rubbish": (b"\xff\xfb\x90\x64" + RUBBISH, "cannot be read as mp3"),
    "tags without end": (b"ID3\4\0\0\x7f\x7f\x7f\x7f" + RUBBISH, "cannot be read as mp3"),
    "flac of rubbish": (b"fLaC" + RUBBISH, "cannot be read as flac"),
    "ogg of rubbish": (b"OggS" + RUBBISH, "cannot be read as ogg"),
    "opus": (b"OggS\0\2" + bytes(22) + b"OpusHead", "is opus"),
    "a program": (b"\x7fELF" + RUBBISH, "is no sound"),
}


async def test_a_recording_is_read_or_refused_and_the_next_one_read() -> None:
    files = studio("none", "none", detector="energy").files
    server = App(Stub(), SMALL, studio=Studio(None, Listener(), "energy", files))
    try:
        for name, (recording, problem) in RECORDINGS.items():
            call = await transcription(server, recording)
            if problem is None:
                assert call.status == 200, (name, call.body)
                continue
            assert call.status in (400, 413), (name, call.body)
            assert problem in call.json["error"]["message"], (name, call.body)
        call = await transcription(server, wav(bytes(4_800)))
        assert call.status == 200
    finally:
        await server.close()
    assert len(asyncio.all_tasks()) == 1


SMALL = Settings(allowed_hosts=("*",), memory=16_000_000)
FORM = {"content-type": "multipart/form-data; boundary=x"}


async def transcription(server: App, recording: bytes) -> Call:
    fields = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    body = fields + head + recording + b"\r\n--x--\r\n"
    return await Call(server, "/v1/audio/transcriptions", body, headers=FORM)()


@pytest.mark.parametrize("name", ["a\r\nset-cookie: b", "x" * 5_000, "\u2028", "instructions\0"])
async def test_unknown_fields_break_no_header(name, program) -> None:
    program("cat > /dev/null; cat sound")
    body = {"model": "m", "input": "Hi", "response_format": "pcm", name: 1}
    call = await Call(App(Stub(), SETTINGS, studio=Studio(ESpeak(), None)), SPEECH, body)()
    assert call.status == 200
    loss = call.headers["x-dragoman-loss"]
    assert loss.startswith("dropped")
    assert loss.isprintable()
    assert "set-cookie" not in call.headers


# ---- programs --------------------------------------------------------------------------------

SPEECH = "/v1/audio/speech"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Installs a script as espeak-ng; `sound` is beside it."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "sound").write_bytes(wav(bytes(20 * BYTES_PER_MS)))

    def install(script: str) -> Path:
        path = tmp_path / "espeak-ng"
        path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        path.chmod(0o755)
        return tmp_path

    return install


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("-f /etc/passwd", "-f /etc/passwd"),
        ("--help\n-w /tmp/x", "--help\n-w /tmp/x"),
        ("[[h@l'oU]]", "[ [h@l'oU]]"),
        ("[[[", "[ [ ["),
        ("a\0b", "a b"),
        ("<speak><audio src='file:///etc/passwd'/></speak>",) * 2,
        ("$(reboot) `reboot` ; reboot",) * 2,
        ("\ud800", "?"),
    ],
)
async def test_a_text_is_text_to_a_program_and_no_command(text, read, program) -> None:
    folder = program('echo "$#" > count; cat > text; cat sound')
    speaking = ESpeak().speak(text, speech.Speaking())
    assert [piece async for piece in speaking]
    assert (folder / "text").read_bytes() == read.encode() + b"\n"
    assert (folder / "count").read_text() == "8\n"


async def test_a_megabyte_is_not_spoken() -> None:
    server = App(Stub(), SETTINGS, studio=Studio(None, None))
    call = await Call(server, SPEECH, {"model": "m", "input": "a" * 1_000_000})()
    assert (call.status, call.json["error"]["param"]) == (400, "input")


async def test_a_client_that_goes_away_leaves_no_process(program) -> None:
    folder = program("echo $$ > pid; cat sound; exec sleep 1000")
    server = App(Stub(), SETTINGS, studio=Studio(ESpeak(), None))
    body = {"model": "m", "input": "Hello", "response_format": "pcm"}
    (folder / "sound").write_bytes(wav(bytes(40_000))[:-1_000])
    call = Call(server, SPEECH, body)
    running = asyncio.ensure_future(call())
    await call.until(lambda: len(call.sent) > 1)
    process = int((folder / "pid").read_text())
    call.hang_up()
    await running
    while server.busy:
        await asyncio.sleep(0.001)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_many_at_once_are_spoken_to_by_eight_programs(program, monkeypatch) -> None:
    program("cat > /dev/null; cat sound")
    server = App(Stub(), SETTINGS, studio=Studio(ESpeak(), None))
    running, most, start = 0, 0, asyncio.create_subprocess_exec

    async def counted(*given, **options):
        nonlocal running, most
        running += 1
        most = max(most, running)
        process = await start(*given, **options)
        wait = process.wait

        async def ended():
            nonlocal running
            status = await wait()
            running, process.wait = running - 1, wait
            return status

        process.wait = ended
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)
    body = {"model": "m", "input": "Hello", "response_format": "pcm"}
    calls = [Call(server, SPEECH, body) for _ in range(samples(12, 50))]
    await asyncio.gather(*(call() for call in calls))
    assert {(call.status, len(call.body)) for call in calls} == {(200, 20 * BYTES_PER_MS)}
    assert (most, running) == (8, 0)


# ---- queues ----------------------------------------------------------------------------------


async def test_who_waits_for_a_program_is_served_in_order_and_not_without_end(monkeypatch) -> None:
    monkeypatch.setattr(speech, "WAITING", 3)
    places, served, free = Places("espeak-ng", 2), [], asyncio.Event()

    async def order(number: int) -> None:
        async with places.turn():
            served.append(number)
            await free.wait()

    tasks = [asyncio.ensure_future(order(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert served == [0, 1]
    with pytest.raises(FaultError, match="3 wait for espeak-ng already") as raised:
        await order(5)
    assert (raised.value.fault.code, raised.value.fault.retry_after) == ("overloaded", "1")
    free.set()
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]
    await order(6)


async def test_orders_of_one_key_leave_a_place_to_others_and_take_turns_with_theirs() -> None:
    """Who had sixty sessions made another's wait for all their turns."""
    places, served, free = Places("pocketsphinx", 2), [], asyncio.Event()

    async def order(tenant: str) -> None:
        reading.set(tenant)
        async with places.turn():
            served.append(tenant)
            await free.wait()

    tasks = [asyncio.ensure_future(order(tenant)) for tenant in "aab"]
    await asyncio.sleep(0)
    assert served == ["a", "a"]  # it was alone
    tasks += [asyncio.ensure_future(order(tenant)) for tenant in "aaaabb"]
    await asyncio.sleep(0)
    with pytest.raises(FaultError, match="wait for pocketsphinx already"):
        await asyncio.gather(*(order("c") for _ in range(speech.WAITING + 1)))
    free.set()
    await asyncio.gather(*tasks)
    assert [*filter("c".__ne__, served)][:6] == ["a", "a", "b", "a", "b", "a"]


async def test_a_session_has_one_turn_recognised_at_a_time_and_a_bounded_number_waiting() -> None:
    class Slow(Listener):
        async def transcribe(self, pcm, asked):
            self.asked.append(len(pcm))
            await free.wait()
            yield speech.Piece("Hi")

    listener, free = Slow(), asyncio.Event()
    voice = Studio(None, listener, "energy").open()

    async def turn(minutes: int) -> str:
        pieces = voice.transcribe(bytes(minutes * 60_000 * BYTES_PER_MS), Transcription())
        return "".join([piece async for piece in pieces])

    turns = [asyncio.ensure_future(turn(minutes)) for minutes in (1, 2, 3)]
    await asyncio.sleep(0)
    assert listener.asked == [60_000 * BYTES_PER_MS]
    with pytest.raises(FaultError, match="10 minutes of sound wait"):
        await turn(5)
    free.set()
    assert await asyncio.gather(*turns) == ["Hi", "Hi", "Hi"]
    assert await turn(11) == "Hi"  # alone, a turn may be of any length
    free.clear()
    short = [asyncio.ensure_future(turn(0)) for _ in range(600)]
    await asyncio.sleep(0)
    with pytest.raises(FaultError, match="10 minutes of sound wait"):
        await turn(0)  # each is a task, however short
    free.set()
    assert len(await asyncio.gather(*short)) == 600


@pytest.mark.parametrize("size", [331, 961, 100_003])
async def test_a_turn_in_odd_pieces_is_the_turn(size) -> None:
    client = await Client.open(Plays(BEGUN, *message("Good day."), ENDED), voices())
    sound = said("what is the weather")
    for start in range(0, len(sound), size):
        client.session.send(Append(audio=sound[start : start + size]))
        client.session.send(Append(audio=b""))
    await client.until(lambda event: isinstance(event, ResponseDone))
    assert client.of(TranscriptionCompleted)[0].transcript == "what is the weather"
    await client.session.close()


async def test_a_recording_that_is_not_read_to_its_end_leaves_no_pipe() -> None:
    """A pipe that is not read is not closed by the end of its process."""
    library = Library("miniaudio")
    async with aclosing(library.ask({"rate": RATE}, wav(bytes(20_000_000)))) as pieces:
        async for _ in pieces:
            (process,) = library._all
            transport = cast(Any, process._process)._transport
            await asyncio.sleep(0.2)  # until more has come than is held
            break
    assert transport.is_closing()
    assert transport.get_pipe_transport(1).is_closing()
    await library.close()


async def test_a_process_that_died_meanwhile_is_replaced() -> None:
    library = Library("miniaudio")
    for _ in range(2):
        async with aclosing(library.ask({"rate": RATE}, wav(bytes(4_800)))) as pieces:
            assert [len(pcm) async for _, pcm in pieces] == [4_800]
        (process,) = library._all
        process._process.kill()
        await process._process.wait()
    await library.close()
