"""`talk`: what is heard, said, interrupted and called, with WAV files and with devices played."""

import re
import signal
import sys
import threading
from array import array
from pathlib import Path

import pytest

from dragoman.cli import main, talk
from dragoman.cli.talk import ECHO
from dragoman.client import duplex
from dragoman.core.error import Fault
from dragoman.core.sound import BYTES_PER_MS, wav
from dragoman.voice.detection import FRAME
from dragoman.voice.speech import Piece
from dragoman.voice.studio import Studio
from dragoman.voice.talk import Playback, Talk
from tests.cli.stage import Screen
from tests.hostile.stage import upstream
from tests.mock import chunk, stream
from tests.voice.fakes import Files, Listener, Speaker, read_wav, said_in
from tests.voice.test_session import loud

LONG = "Count to 12"
ANSWER = ", ".join(map(str, range(1, 13))) + "."


class Understands(Listener):
    """Understands these, one after the other."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.texts = iter(texts)

    async def transcribe(self, pcm, asked):
        yield Piece(next(self.texts))


@pytest.fixture
def voices(monkeypatch):
    """Gives the command a voice that takes no time."""

    def give(*heard: str, fault: Fault | None = None) -> Speaker:
        speaker = Speaker(fault)
        studio = Studio(speaker, Understands(*heard), "energy", Files())
        monkeypatch.setattr(talk, "studio_of", lambda *_, **__: studio)
        return speaker

    return give


def say(*parts: str | int) -> bytes:
    """Texts, and milliseconds of silence."""
    return b"".join(bytes(p * BYTES_PER_MS) if isinstance(p, int) else loud(p) for p in parts)


def run(*words: str, status: int = 0) -> str:
    screen = Screen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        assert main(("talk", "--at", "script", *words)) == status
    return screen.getvalue()


def with_files(spoken: bytes, *words: str, status: int = 0) -> tuple[str, bytes]:
    Path("said.wav").write_bytes(wav(spoken))
    shown = run("--input", "said.wav", "--output", "heard.wav", *words, status=status)
    return shown, read_wav(Path("heard.wav").read_bytes())


def test_a_file_is_answered_in_a_file(voices) -> None:
    speaker = voices(LONG)
    shown, heard = with_files(say(400, "count for me", 600), "--voice", "nova")
    assert shown == f"> {LONG}\n{ANSWER}\n"
    letters = "".join(c for c in said_in(heard) if c != "\0")
    assert len(letters) >= len(ANSWER) - 1
    assert speaker.how[0].voice == "nova"


def test_speaking_interrupts_and_truncates_to_what_was_played(voices) -> None:
    voices(LONG, "count to 2")
    shown, heard = with_files(say(400, "count for me", 700, "stop it please", 600))
    assert shown.startswith(f"> {LONG}\n{ANSWER}")
    assert "(interrupted)\n> count to 2\n1, 2.\n" in shown
    assert len([s for s in array("h", heard) if s]) < 240 * (len(ANSWER) + len("1, 2."))


def test_tools_are_called_and_the_model_goes_on(voices, monkeypatch) -> None:
    voices("call get_weather")
    Path("tools.py").write_text(
        "from dragoman import tool\n@tool\ndef get_weather(city: str = 'Paris') -> str:\n"
        "    '''The weather.'''\n    return f'sunny in {city}'\n"
    )
    shown, _ = with_files(say(400, "weather please", 600), "--tool", "tools.py")
    assert "[get_weather] {" in shown
    assert "→ sunny in " in shown


def test_errors_are_shown(voices, capfd) -> None:
    voices("hello", fault=Fault("upstream_error", "the voice broke", "upstream"))
    with_files(say(400, "hello there", 600), status=1)
    assert "dragoman: the voice broke" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--input", "none.wav"), "none.wav cannot be read"),
        (("--input", "text.wav"), "text.wav: file: is no sound that is known"),
        (("--output", "a.wav"), "--output needs --input"),
        (("--input", "said.wav", "--output", "no/a.wav"), "cannot be written"),
        (("--input", "said.wav", "--output", "a.txt"), "WAV is written, to a FILE.wav"),
        (("--input", "said.wav", "--output", "./said.wav"), "is the recording of --input"),
        (("--input", "said.wav", "--speech", "none"), "This server cannot speak"),
        (("--input", "said.wav", "--transcription", "none", "--speech", "http://a"), "understand"),
    ],
)
def test_unusable_options_are_errors(words, problem, capfd) -> None:
    Path("text.wav").write_text("Hello")
    Path("said.wav").write_bytes(wav(say(100)))
    run(*words, status=1)
    assert problem in capfd.readouterr().err


def test_without_an_audio_library_files_are_offered(voices, monkeypatch, capfd) -> None:
    voices()
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    run(status=1)
    assert "pip install sounddevice" in capfd.readouterr().err


class Devices:
    """A microphone that a file is played to, and a speaker; Ctrl-C when all was heard."""

    class PortAudioError(Exception):
        pass

    def __init__(self, spoken: bytes, until: int) -> None:
        self.spoken, self.until, self.heard = spoken, until, b""
        self.stopped = threading.Event()

    def RawInputStream(self, callback, **form):
        assert (form["samplerate"], form["blocksize"] * 2) == (24_000, FRAME)
        self.microphone = callback
        return self

    def RawOutputStream(self, callback, **form):
        self.speaker = callback
        return self

    def __enter__(self):
        if not self.heard:
            self.heard = b"\0"
            threading.Thread(target=self.play).start()
        return self

    def __exit__(self, *_):
        self.stopped.set()

    def play(self) -> None:
        for place in range(0, len(self.spoken), FRAME):
            self.microphone(self.spoken[place : place + FRAME], FRAME, None, None)
        while not self.stopped.is_set():
            frame = bytearray(FRAME)
            self.speaker(frame, FRAME, None, None)
            self.heard += bytes(frame).replace(b"\0", b"")
            if len(self.heard) >= self.until:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                return
            self.stopped.wait(0.001)


def test_devices_are_recorded_and_played(voices, monkeypatch, capfd) -> None:
    voices(LONG)
    devices = Devices(say(400, "count for me", 700), 240 * (len(ANSWER) - 1))
    monkeypatch.setitem(sys.modules, "sounddevice", devices)
    assert run() == f"> {LONG}\n{ANSWER}\n"
    assert ECHO in capfd.readouterr().err


def test_devices_that_cannot_be_opened_say_why(voices, monkeypatch, capfd) -> None:
    voices()
    devices = Devices(b"", 0)

    def refuse(**_: object) -> None:
        raise devices.PortAudioError("no default device")

    devices.RawInputStream = refuse
    monkeypatch.setitem(sys.modules, "sounddevice", devices)
    run(status=1)
    assert "cannot be used: no default device." in capfd.readouterr().err


def test_playback_counts_what_was_played_of_each_item() -> None:
    playback = Playback()
    assert playback.take(4) == bytes(4)
    assert playback.stop() is None
    playback.add("a", b"a" * 480)
    playback.add("b", b"b" * 480)
    assert playback.take(960 - 96) == b"a" * 480 + b"b" * 384
    assert playback.stop() == ("b", 8)
    assert not playback.playing
    playback.add("c", b"c" * 480)
    assert playback.stop() == ("c", 0)


def test_a_session_that_ends_ends_the_conversation(voices, monkeypatch, capfd) -> None:
    voices(LONG)
    append = Talk.append

    def once(self: Talk, audio: bytes) -> None:
        append(self, audio)
        self.ended(Fault("session_expired", "The session is over."))

    monkeypatch.setattr(Talk, "append", once)
    _, heard = with_files(say(400, "count for me", 700), status=1)
    assert len(heard) <= FRAME
    assert "The session is over." in capfd.readouterr().err


def test_levels_are_shown_on_a_terminal_between_the_lines(voices, monkeypatch) -> None:
    voices(LONG)
    monkeypatch.setattr(Screen, "isatty", lambda self: True)
    shown, _ = with_files(say(400, "count for me", 700))
    assert "\r\x1b[Kyou ·" in shown
    assert "you ▮" in shown
    lines = re.sub(r"\r\x1b\[K[^\r\n]*(?=\r)|\x1b\[0?m|\r\x1b\[K", "", shown)
    assert lines == f"> {LONG}\n{ANSWER}\n"


def test_a_model_that_calls_whatever_it_is_asked_ends_in_time(voices, monkeypatch) -> None:
    monkeypatch.setattr(duplex, "ROUNDS", 2)
    voices("look")
    Path("tools.py").write_text(
        "from dragoman import tool\n@tool\ndef look() -> str:\n    '''Looks.'''\n    return 'x'\n"
    )
    function = {"name": "look", "arguments": "{}"}
    call = {"index": 0, "id": "c", "type": "function", "function": function}
    with upstream(lambda _: stream(chunk({"tool_calls": [call]}), chunk(finish="tool_calls"))) as m:
        options = ("--at", m.base_url, "--model", "m", "--tool", "tools.py")
        shown, _ = with_files(say(400, "look there", 600), *options)
    assert shown.count("[look] {}") == 3
    assert shown.count("→ x") == 2
