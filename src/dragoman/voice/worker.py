"""A process that runs a Python library for speech or sound files: it reads orders from its
standard input and writes answers to its standard output.

Such libraries hold the GIL for seconds, and some crash: neither
may happen to a server. An order is a line of JSON followed by its bytes, and so is each answer;
the last answer to an order has `done`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Answer = tuple[dict[str, Any], bytes]
Engine = Callable[[dict[str, Any], bytes], Iterator[Answer]]


def read(stream: BinaryIO) -> Answer | None:
    """The next message; None at the end."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head: dict[str, Any] = json.loads(line)
    return head, stream.read(head.get("size", 0))


def line(head: dict[str, Any], data: bytes | bytearray) -> bytes:
    """The JSON line of a message; its data, which may be long, follows."""
    return json.dumps({**head, "size": len(data)}).encode() + b"\n"


def at_16k(order: dict[str, Any], pcm: bytes) -> NDArray[np.float32]:
    """The samples of an order's sound at 16 kHz, for recognisers."""
    import numpy as np

    soxr = import_module("soxr")

    sound = np.frombuffer(pcm, dtype="<i2", count=len(pcm) // 2).astype(np.float32)
    made: NDArray[np.float32] = soxr.resample(sound, order["rate"], _RATE)
    return made


_RATE = 16_000
_SECOND = 2 * _RATE
_LONGEST = 30 * _SECOND
"""The most bytes of a recording that are recognised at once."""
_EDGE = 0.2
"""Seconds of silence around each: the recogniser expects some, and the endpointer leaves none."""
_ROOM = 80.0
"""The noise of a quiet room, as the deviation of its samples: -52 dB."""


def pocketsphinx(grammar: str) -> Engine:
    """CMU PocketSphinx with its English model. With a grammar (a JSGF file, or
    `pocket`: that of the pocket model) only its sentences are recognised, with fewer errors;
    words are spelled as in the grammar."""
    import numpy as np

    library = import_module("pocketsphinx")
    decoder = library.Decoder(samprate=_RATE, loglevel="FATAL")
    written: dict[str, str] = {}
    if grammar:
        file = Path(__file__).with_name("pocket.gram") if grammar == "pocket" else Path(grammar)
        text, written = spoken_grammar(file.read_text(encoding="utf-8"))
        if missing := [word for word in written if decoder.lookup_word(word) is None]:
            raise ValueError(f"the English model has no word {', '.join(missing)} of the grammar")
        decoder.add_jsgf_string("grammar", text.encode())
        decoder.activate_search("grammar")

    def in_a_room(sound: NDArray[np.float32], noise: np.random.Generator) -> bytes:
        """Add noise: the model was trained with some, and recognises less without any."""
        noisy = sound + noise.normal(0, _ROOM, len(sound))
        return bytes(noisy.round().clip(-32_768, 32_767).astype("<i2").tobytes())

    def transcribe(order: dict[str, Any], pcm: bytes) -> Iterator[Answer]:
        noise, space, sound = np.random.default_rng(1), "", at_16k(order, pcm)
        turn = order["recording"] is False
        for start, audio in [(0.0, in_a_room(sound, noise))] if turn else utterances(sound, noise):
            decoder.start_utt()
            try:
                decoder.process_raw(audio, full_utt=True)
            finally:  # or else no other utterance could be started
                decoder.end_utt()
            if (found := decoder.hyp()) is None:
                continue
            text = " ".join([written.get(word, word) for word in found.hypstr.split()])
            head: dict[str, Any] = {"text": space + text[:1].upper() + text[1:]}
            if not turn:
                end = start + len(audio) / _SECOND
                head |= {"start": max(start + _EDGE, 0.0), "end": end - _EDGE}
            yield head | {"words": [*times(start)] if order["words"] else []}, b""
            space = " "

    def times(start: float) -> Iterator[tuple[str, float, float]]:
        """Each word with its start and end: there are 100 frames in a second."""
        for each in decoder.seg():
            word = each.word.partition("(")[0]  # the(2) is another pronunciation
            if word[:1].isalpha():  # <sil> is silence
                begin, end = start + each.start_frame / 100, start + (each.end_frame + 1) / 100
                yield written.get(word, word), max(begin, 0.0), end

    def utterances(
        sound: NDArray[np.float32], noise: np.random.Generator
    ) -> Iterator[tuple[float, bytes]]:
        """The utterances of a recording, with their starts in seconds. A grammar matches one
        sentence, with some silence around it."""
        endpointer = library.Endpointer(sample_rate=_RATE)
        size = endpointer.frame_bytes // 2
        sound = np.pad(sound, _RATE // 2)  # speech at the very start is not found
        edge = in_a_room(np.zeros(int(_EDGE * _RATE), np.float32), noise)
        held, begin, end = b"", 0.0, -0.5
        for frame in np.split(sound, range(size, len(sound), size))[:-1]:
            speech = endpointer.process(in_a_room(frame, noise))
            if speech is not None:
                begin = begin if held else max(endpointer.speech_start - 0.5, end)
                held += speech
            if held and (not endpointer.in_speech or len(held) > _LONGEST):
                yield begin - _EDGE, edge + held + edge
                held, end = b"", begin + len(held) / _SECOND

    return transcribe


_JSGF = re.compile(
    r"/\*.*?\*/|//[^\n]*|<[^>]*>|\{[^}]*\}|/[\d.]+/|\A#[^;\n]*;?"
    r"|\b(?:grammar|import)\s[^;]*;|\bpublic\b"
    r"|(?P<word>[^\W\d_][\w'.-]*)(?P<tag>\s*\{\s*(?P<number>\d+)\s*\})?",
    re.S,
)
"""The tokens of a grammar: comments, rules, tags, weights, the head and, last, words."""


def spoken_grammar(text: str) -> tuple[str, dict[str, str]]:
    """A grammar with its words in lower case, as in dictionaries, and the spelling of
    each: a number, where one is its tag (`two {2}`)."""
    written: dict[str, str] = {}

    def lower(match: re.Match[str]) -> str:
        if (word := match["word"]) is None:
            return match[0]
        written.setdefault(word.lower(), match["number"] or word)
        return word.lower() + (match["tag"] or "")

    return _JSGF.sub(lower, text), written


def faster_whisper(model: str) -> Engine:
    """Whisper by CTranslate2: a model by name, which it downloads once, or a folder."""
    whisper = import_module("faster_whisper").WhisperModel(model or "base", device="auto")

    def transcribe(order: dict[str, Any], pcm: bytes) -> Iterator[Answer]:
        segments, _ = whisper.transcribe(
            at_16k(order, pcm) / 32_768,
            language=order["language"],
            initial_prompt=order["prompt"],
            word_timestamps=order["words"],
        )
        for number, segment in enumerate(segments):
            text = segment.text if number else segment.text.lstrip()
            words = [(each.word.strip(), each.start, each.end) for each in segment.words or ()]
            times = {"start": segment.start, "end": segment.end, "words": words}
            yield {"text": text, **times}, b""

    return transcribe


def kokoro(model: str) -> Engine:
    """Kokoro by ONNX: its model file, with the file of its voices beside it (`voices*.bin`)."""
    beside = sorted(Path(model).parent.glob("voices*.bin"))
    if not beside:
        raise FileNotFoundError(f"there is no voices*.bin beside {model}")
    library = import_module("kokoro_onnx").Kokoro(model, str(beside[-1]))
    voices = set(library.get_voices())

    def speak(order: dict[str, Any], _: bytes) -> Iterator[Answer]:
        asked = order["voice"]
        voice = asked if asked in voices else next(v for v in ("af_heart", *sorted(voices)))
        sound, rate = library.create(order["text"], voice, speed=order["speed"])
        pcm = (sound.clip(-1, 1) * 32_767).astype("<i2").tobytes()
        yield {"rate": rate}, pcm

    return speak


def miniaudio(_: str) -> Engine:
    """Decodes sound files, a second at a time: one channel, at the requested rate."""
    library = import_module("miniaudio")

    def read_file(order: dict[str, Any], data: bytes) -> Iterator[Answer]:
        rate, form = order["rate"], library.SampleFormat.SIGNED16
        for samples in library.stream_memory(data, form, 1, rate, frames_to_read=rate):
            yield {}, samples.tobytes()

    return read_file


ENGINES: dict[str, Callable[[str], Engine]] = {
    "pocketsphinx": pocketsphinx,
    "faster-whisper": faster_whisper,
    "kokoro": kokoro,
    "miniaudio": miniaudio,
}
NEEDED = {
    "pocketsphinx": "pocketsphinx",
    "faster-whisper": "faster_whisper",
    "kokoro": "kokoro_onnx",
    "miniaudio": "miniaudio",
}
"""The library of each."""


def main(name: str, option: str) -> None:
    """Execute orders until the input ends."""
    orders = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries must not print to the answers

    def answer(head: dict[str, Any], data: bytes = b"") -> None:
        answers.write(line(head, data))
        answers.write(data)
        answers.flush()

    try:
        engine = ENGINES[name](option)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}", "done": True})
        return
    answer({"done": True})
    while (order := read(orders)) is not None:
        try:
            for head, data in engine(*order):
                answer(head, data)
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}", "done": True})
        else:
            answer({"done": True})


if __name__ == "__main__":
    main(*sys.argv[1:3])
