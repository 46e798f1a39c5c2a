"""Synthesizers that are programs, played by scripts; and libraries in processes, by modules."""

import asyncio
import json
import math
import os
import sys
from array import array
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.core.error import FaultError
from dragoman.core.sound import RATE, wav
from dragoman.voice import programs, worker
from dragoman.voice.local import LocalSynthesizer, LocalTranscriber
from dragoman.voice.programs import ESpeak, Piper
from dragoman.voice.sound import SoundEncoder
from dragoman.voice.speech import Listening, Speaking
from dragoman.voice.studio import Studio, studio

HI = Speaking()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a program: a script of the shell."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("A_KEY", "sk-12345678")

    def install(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        path.chmod(0o755)
        return tmp_path

    return install


async def said(synthesizer, text: str = "Hi", how: Speaking = HI) -> bytes:
    return b"".join([pcm async for pcm in synthesizer.speak(text, how)])


PCM = array("h", range(4_800)).tobytes()


async def test_espeak_is_given_text_on_its_input_and_nothing_of_our_keys(installed) -> None:
    folder = installed("espeak-ng", 'echo "$@" > args; cat > text; env > env; cat sound')
    (folder / "sound").write_bytes(wav(PCM))
    how = Speaking(voice="nova", speed=2.0)
    assert await said(ESpeak("de"), "-q Grüß Gott; rm -rf /", how) == PCM
    assert (folder / "args").read_text().split() == [
        "--stdin",
        "--stdout",
        "-b",
        "1",
        "-v",
        "de+f1",
        "-s",
        "350",
    ]
    assert (folder / "text").read_text() == "-q Grüß Gott; rm -rf /\n"
    assert "sk-12345678" not in (folder / "env").read_text()
    await said(ESpeak(), "Hi", Speaking(voice="fr+m3"))
    assert "-v fr+m3 -s 175" in (folder / "args").read_text()


@pytest.mark.parametrize("voice", ["../x", "--help", "a b", "x" * 40])
async def test_a_voice_that_may_be_no_voice_is_not_an_argument(installed, voice) -> None:
    installed("espeak-ng", "exit 3")
    with pytest.raises(FaultError, match="is no voice: there are OpenAI's"):
        await said(ESpeak(), how=Speaking(voice=voice))
    with pytest.raises(FaultError, match="is no voice"):
        ESpeak(voice)


@pytest.mark.parametrize(
    ("script", "problem", "blame"),
    [
        ("echo Error: no data >&2; exit 1", "espeak-ng failed: 'Error: no data'", "upstream"),
        ("exit 3", "espeak-ng failed: exit status 3", "upstream"),
        ("echo The specified voice does not exist. >&2; exit 1", "voice: 'en-us' is no", "client"),
        ("cat > /dev/null; echo nonsense", "espeak-ng failed: The sound is no", "upstream"),
    ],
)
async def test_a_program_that_fails_says_why(installed, script, problem, blame) -> None:
    installed("espeak-ng", script)
    with pytest.raises(FaultError, match=problem) as raised:
        await said(ESpeak())
    assert raised.value.fault.blame == blame


async def test_a_program_that_complains_without_end_is_read(installed) -> None:
    folder = installed("espeak-ng", "yes x | head -c 300000 >&2; cat sound")
    (folder / "sound").write_bytes(wav(PCM))
    assert await said(ESpeak()) == PCM


async def test_a_program_that_hangs_is_given_up(installed, monkeypatch) -> None:
    monkeypatch.setattr(programs, "_SECONDS", 0.05)
    folder = installed("espeak-ng", "echo $$ > pid; exec sleep 1000")
    with pytest.raises(FaultError, match="no sound for"):
        await said(ESpeak())
    assert not running(folder)


def running(folder: Path) -> bool:
    try:
        os.kill(int((folder / "pid").read_text()), 0)
    except ProcessLookupError:
        return False
    return True


async def test_closing_a_generator_ends_the_process(installed) -> None:
    folder = installed("espeak-ng", "echo $$ > pid; cat sound; exec sleep 1000")
    (folder / "sound").write_bytes(wav(PCM * 4)[:-1_000])
    speaking = ESpeak().speak("Hi", HI)
    await anext(speaking)
    assert running(folder)
    await speaking.aclose()
    assert not running(folder)


async def test_a_cancelled_task_ends_the_process(installed) -> None:
    folder = installed("espeak-ng", "echo $$ > pid; exec sleep 1000")
    task = asyncio.ensure_future(said(ESpeak()))
    while not (folder / "pid").exists() or not (folder / "pid").read_text():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait((task,))
    assert not running(folder)


async def test_a_process_is_started_before_its_text_is_there_and_ends_without_one(
    installed, monkeypatch
) -> None:
    folder = installed("espeak-ng", "echo $$ >> pids; read text; cat sound")
    (folder / "sound").write_bytes(wav(PCM))
    (folder / "pids").touch()

    async def started(count: int) -> int:
        while len(pids := (folder / "pids").read_text().split()) < count:
            await asyncio.sleep(0.001)
        assert len(pids) == count
        return int(pids[-1])

    async def gone(pid: int) -> None:
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.001)

    speaker = ESpeak()
    for how in (HI, HI, Speaking(voice="--path")):  # one for each voice that is one
        speaker.expect(how)
    await started(1)
    assert await said(speaker) == PCM
    await started(1)
    assert await said(speaker) == PCM
    await started(2)
    speaker.expect(HI)
    os.kill(await started(3), 9)
    await asyncio.sleep(0.05)  # until that is known
    assert await said(speaker) == PCM
    await started(4)
    monkeypatch.setattr(programs, "_AHEAD_SECONDS", 1)  # enough to note its id
    speaker.expect(HI)
    await gone(await started(5))
    monkeypatch.setattr(programs, "_AHEAD_SECONDS", 30)
    speaker.expect(HI)
    waiting = await started(6)
    await speaker.close()
    assert not Path(f"/proc/{waiting}").exists()
    assert len(asyncio.all_tasks()) == 1


async def test_piper_speaks_with_its_file(installed) -> None:
    folder = installed("piper", 'echo "$@" > args; cat > text; cat sound')
    (folder / "sound").write_bytes(PCM)
    (folder / "a.onnx.json").write_text(json.dumps({"audio": {"sample_rate": RATE}}))
    piper = Piper(str(folder / "a.onnx"))
    piper.expect(Speaking(speed=2.0))
    assert await said(piper, "Two\nlines", Speaking(voice="nova", speed=2.0)) == PCM
    assert "--output-raw --length-scale 0.5" in (folder / "args").read_text()
    assert (folder / "text").read_text() == "Two lines\n"
    await piper.close()


def test_piper_needs_the_description_of_its_file(installed) -> None:
    folder = installed("piper", "")
    with pytest.raises(FaultError, match=r"no description that can be read"):
        Piper(str(folder / "a.onnx"))


def test_what_is_not_installed_says_how_to_install_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FaultError, match="apt install espeak-ng"):
        ESpeak()
    assert studio(transcription="none").synthesizer is None
    monkeypatch.setattr("dragoman.voice.local.find_spec", lambda name: None)
    with pytest.raises(FaultError, match="pip install faster-whisper"):
        studio("none", "faster-whisper=base")


# ---- libraries -------------------------------------------------------------------------------

WHISPER = """
from collections import namedtuple
Segment = namedtuple("Segment", "text start end words")
Word = namedtuple("Word", "start end word")
print("a library that talks")
class WhisperModel:
    def __init__(self, name, device):
        if name == "missing":
            raise ValueError("no such model")
        self.name = name
    def transcribe(self, sound, language, initial_prompt, word_timestamps):
        if initial_prompt == "raise":
            raise ValueError("boom")
        if initial_prompt == "die":
            import os
            os._exit(3)
        if initial_prompt == "hang":
            import time
            time.sleep(1000)
        about = f" {self.name} {language} {len(sound)} {sound.dtype}"
        words = [Word(0.5, 1.0, " again")] if word_timestamps else None
        return iter([Segment(about, 0.0, 0.5, None), Segment(" again", 0.5, 1.0, words)]), None
"""
KOKORO = """
import numpy
class Kokoro:
    def __init__(self, model, voices):
        self.files = model, voices
    def get_voices(self):
        return ["am_adam", "af_heart"]
    def create(self, text, voice, speed):
        level = {"af_heart": 0.5, "am_adam": 0.25}[voice] * speed
        return numpy.full(24 * len(text), level, "float32"), 24000
"""


@pytest.fixture
def libraries(tmp_path, monkeypatch) -> Path:
    (tmp_path / "faster_whisper.py").write_text(WHISPER)
    (tmp_path / "kokoro_onnx.py").write_text(KOKORO)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    return tmp_path


async def heard(transcriber: LocalTranscriber, **asked: str) -> list[tuple[str, float, float]]:
    pieces = transcriber.transcribe(bytes(48_000), Listening(**asked))
    return [(piece.text, piece.start, piece.end) async for piece in pieces]


async def test_whisper_in_its_process_lives_through_what_it_raises_and_dies_alone(
    libraries, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)  # nothing long is computed here
    made = studio("none", "faster-whisper=small", detector="energy")
    whisper = made.transcriber
    await made.prepare()
    expected = [("small en 16000 float32", 0.0, 0.5), (" again", 0.5, 1.0)]
    assert await heard(whisper, language="en") == expected
    first = whisper._idle[0]
    with pytest.raises(FaultError, match="faster-whisper failed: ValueError: boom"):
        await heard(whisper, prompt="raise")
    assert whisper._idle == [first]
    with pytest.raises(FaultError, match="its process has died"):
        await heard(whisper, prompt="die")
    assert await heard(whisper, language="en") == expected
    assert whisper._idle[0] is not first
    hanging = asyncio.ensure_future(heard(whisper, prompt="hang"))
    while whisper._idle:
        await asyncio.sleep(0)
    hanging.cancel()
    await asyncio.wait((hanging,))
    loading = asyncio.ensure_future(made.prepare())
    await asyncio.sleep(0.01)
    await made.close()
    with pytest.raises(FaultError, match="the server is closing"):
        await loading
    assert (whisper._idle, whisper._all) == ([], set())


async def test_kokoro_speaks_with_the_voices_beside_its_model(libraries) -> None:
    model = str(libraries / "kokoro.onnx")
    without = LocalSynthesizer("kokoro", model)
    with pytest.raises(FaultError, match=r"no voices\*\.bin beside"):
        await said(without)
    (libraries / "voices-v1.0.bin").touch()
    kokoro = studio(f"kokoro={model}", "none", detector="energy").synthesizer
    assert array("h", await said(kokoro)).tolist() == [16_383] * 48
    assert array("h", await said(kokoro, "a", Speaking(voice="am_adam"))).tolist() == [8_191] * 24
    await Studio(kokoro, None).close()


def test_a_grammar_is_in_lower_case_and_its_words_are_known_as_they_were_written() -> None:
    text = (
        "#JSGF V1.0 UTF-8 en;\n// Not a Word\ngrammar My.Talk;\nimport <Other.*>;\n/* Nor This */"
        "public <Said> = /2.5/ In <City> {Tag} | O'Hare;\n<City> = Paris | in;"
    )
    lower, written = worker.spoken_grammar(text)
    assert lower == text.replace("In <", "in <").replace("O'H", "o'h").replace("Paris", "paris")
    assert written == {"in": "In", "o'hare": "O'Hare", "paris": "Paris"}
    shipped = Path(worker.__file__).with_name("pocket.gram").read_text()
    assert {"Paris", "York", "what", "2"} <= set(worker.spoken_grammar(shipped)[1].values())
    lower, written = worker.spoken_grammar("<a> = Two {2} | On {ON};")
    assert (lower, written) == ("<a> = two {2} | on {ON};", {"two": "2", "on": "On"})


DATA = Path(__file__).parents[1] / "data"


async def test_recordings_of_all_kinds_are_read(tmp_path) -> None:
    """A tone of 440 Hz, a tenth of a second at the least, is one whatever file it is in."""
    tone = array("h", [round(16_384 * math.sin(n * 440 * math.tau / RATE)) for n in range(4_800)])
    mp3 = SoundEncoder("mp3")
    high = bytes((value >> 8) + 128 for value in tone)
    recordings = {
        "wav": wav(tone.tobytes()),
        "8 bits": wav(high).replace(b"\2\0\x10\0", b"\1\0\x08\0"),
        "8 kHz": wav(tone[::3].tobytes(), 8_000),
        "mp3": mp3.feed(tone.tobytes()) + mp3.close(),
        "flac": (DATA / "tone.flac").read_bytes(),
        "ogg": (DATA / "tone.ogg").read_bytes(),
    }
    reader = studio("none", "none", detector="energy")
    assert await reader.read(recordings["wav"]) == tone.tobytes()
    for name, recording in recordings.items():
        claimed: list[int] = []
        samples = array("h", await reader.read(recording, claimed.append))
        loud = [sample for sample in samples if abs(sample) > 2_000]
        cycles = sum(a < 0 <= b for a, b in pairwise(loud))
        assert abs(cycles - (44 if name in ("flac", "ogg") else 88)) <= 2, name
        assert max(samples) > 12_000, name
        assert sum(claimed) == 4 * len(samples)
    await reader.close()
    rate = {"rate": RATE}
    assert b"".join(pcm for _, pcm in worker.miniaudio("")(rate, wav(PCM))) == PCM
    with pytest.raises(FaultError, match=r"is read with miniaudio \(pip install"):
        await Studio(None, None).read(wav(PCM))


def test_messages_of_a_process_are_read_as_they_are_written(tmp_path) -> None:
    path = tmp_path / "messages"
    first, second = worker.line({"a": 1}, b"data"), worker.line({"done": True}, b"")
    path.write_bytes(first + b"data" + second + b"{")
    with path.open("rb") as stream:
        assert worker.read(stream) == ({"a": 1, "size": 4}, b"data")
        assert worker.read(stream) == ({"done": True, "size": 0}, b"")
        assert worker.read(stream) is None


class Sphinx:
    """PocketSphinx, which hears its own name and knows short words only."""

    def __init__(self, **config: object) -> None:
        self.calls: list[tuple[str, object]] = []
        Sphinx.latest = self

    class Endpointer:
        """Hears whatever is loud."""

        frame_bytes, speech_start, in_speech = 960, 0.0, False

        def __init__(self, sample_rate: int) -> None:
            self.place = 0

        def process(self, frame: bytes) -> bytes | None:
            loud = max(array("h", frame)) > 5_000
            if loud and not self.in_speech:
                self.speech_start = self.place / 32_000
            ended = self.in_speech and not loud
            self.in_speech, self.place = loud, self.place + len(frame)
            return frame if loud or ended else None

    def lookup_word(self, word: str) -> str | None:
        return word if len(word) < 7 else None

    def add_jsgf_string(self, name: str, text: bytes) -> None:
        self.calls.append((name, text))

    def activate_search(self, name: str) -> None:
        self.calls.append(("search", name))

    def start_utt(self) -> None: ...

    def process_raw(self, pcm: bytes, full_utt: bool) -> None:
        self.heard = array("h", pcm)

    def end_utt(self) -> None: ...

    def hyp(self) -> object:
        class Found:
            hypstr = "ask ada of rome"

        return Found if len(self.heard) > 10 else None

    def seg(self) -> list[object]:
        said = ["<s>", "ask", "ada(2)", "<sil>", "of", "rome", "</s>"]
        return [SimpleNamespace(word=w, start_frame=n, end_frame=n) for n, w in enumerate(said)]

    Decoder = None


def test_pocketsphinx_writes_words_as_the_grammar_does(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pocketsphinx", Sphinx)
    monkeypatch.setattr(Sphinx, "Decoder", Sphinx)
    grammar = tmp_path / "a.gram"
    grammar.write_text("#JSGF V1.0;\ngrammar a;\npublic <said> = ask Ada of Rome;")
    transcribe = worker.pocketsphinx(str(grammar))
    lower = "#JSGF V1.0;\ngrammar a;\npublic <said> = ask ada of rome;"
    assert Sphinx.latest.calls == [("grammar", lower.encode()), ("search", "grammar")]
    ((head, _),) = transcribe({"words": True, "recording": False, "rate": 16_000}, bytes(2_000))
    assert head["text"] == "Ask Ada of Rome"
    times = [("ask", 0.01, 0.02), ("Ada", 0.02, 0.03), ("of", 0.04, 0.05), ("Rome", 0.05, 0.06)]
    assert head["words"] == times
    assert 40 < max(Sphinx.latest.heard) < 400  # the noise of a quiet room
    order = {"words": False, "recording": False, "rate": 16_000}
    assert list(transcribe(order, bytes(8))) == []
    said = {"text": "Ask ada of rome", "words": []}
    assert list(worker.pocketsphinx("")(order, bytes(2_000))) == [(said, b"")]
    said = array("h", [20_000] * 16_000).tobytes()
    recording = bytes(32_000) + said + bytes(32_000) + said
    order = {"words": True, "recording": True, "rate": 16_000}
    heads = [head for head, _ in transcribe(order, recording)]
    assert heads[0]["text"] + heads[1]["text"] == "Ask Ada of Rome Ask Ada of Rome"
    for head, start in zip(heads, (1, 3), strict=True):
        assert abs(head["start"] - start) < 0.05
        assert abs(head["end"] - start - 1) < 0.1
        assert abs(head["words"][0][1] - start + 0.2 - 0.01) < 0.05
    grammar.write_text("#JSGF V1.0;\ngrammar a;\npublic <said> = ask Beelzebub;")
    with pytest.raises(ValueError, match="no word beelzebub of the grammar"):
        worker.pocketsphinx(str(grammar))


def test_libraries_are_asked_as_their_documentation_says(libraries, monkeypatch) -> None:
    for name in ("faster_whisper", "kokoro_onnx"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    whisper = worker.faster_whisper("")
    order = {"language": "en", "prompt": None, "words": True, "rate": 16_000}
    heads = [head for head, _ in whisper(order, bytes(64))]
    assert [head["text"] for head in heads] == ["base en 32 float32", " again"]
    assert [head["words"] for head in heads] == [[], [("again", 0.5, 1.0)]]
    (libraries / "voices-v1.0.bin").touch()
    speak = worker.kokoro(str(libraries / "kokoro.onnx"))
    ((head, pcm),) = speak({"text": "a", "voice": "am_adam", "speed": 2.0}, b"")
    assert (head, array("h", pcm).tolist()) == ({"rate": 24_000}, [16_383] * 24)


def test_an_utterance_that_fails_leaves_pocketsphinx_usable() -> None:
    """Two items with no sound of one client kept it from all others until the server ended."""
    pytest.importorskip("pocketsphinx")
    transcribe = worker.pocketsphinx("")
    order = {"words": False, "recording": False, "rate": 24_000}
    with pytest.raises(IndexError):
        list(transcribe(order, b""))
    for size in (4_800, 4_801, 2, 3):
        assert [head for head, _ in transcribe(order, bytes(size)) if head["text"].strip()] == []


async def test_of_no_sound_there_is_no_transcript() -> None:
    pytest.importorskip("pocketsphinx")
    transcriber = LocalTranscriber("pocketsphinx")
    for sound in (b"", b"\0"):
        assert [piece async for piece in transcriber.transcribe(sound, Listening())] == []
