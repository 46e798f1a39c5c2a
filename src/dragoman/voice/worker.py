"""A process that recognises or makes speech with a Python library: it takes orders on its standard
input and answers on its standard output.

Such libraries compute for seconds without letting go of the interpreter, and some crash: neither
may happen to a server. An order is a line of JSON with its bytes behind it, and so is each answer;
the last answer to an order says `done`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

Answer = tuple[dict[str, Any], bytes]
Engine = Callable[[dict[str, Any], bytes], Iterator[Answer]]


def read(stream: BinaryIO) -> Answer | None:
    """The next message; None at the end."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head: dict[str, Any] = json.loads(line)
    return head, stream.read(head.get("size", 0))


def message(head: dict[str, Any], data: bytes = b"") -> bytes:
    """A message."""
    return json.dumps({**head, "size": len(data)}).encode() + b"\n" + data


_ROOM = 80.0
"""The noise of a quiet room, as the deviation of its samples: -52 dB."""


def pocketsphinx(grammar: str) -> Engine:
    """CMU PocketSphinx with the English model that it ships. With a grammar (a file of JSGF, or
    `pocket`: what the pocket model knows) only what that allows is recognised, and far better;
    words are written as they are there."""
    import numpy as np

    decoder = import_module("pocketsphinx").Decoder(samprate=16_000, loglevel="FATAL")
    written: dict[str, str] = {}
    if grammar:
        file = Path(__file__).with_name("pocket.gram") if grammar == "pocket" else Path(grammar)
        text, written = spoken_grammar(file.read_text(encoding="utf-8"))
        if missing := [word for word in written if decoder.lookup_word(word) is None]:
            raise ValueError(f"the English model has no word {', '.join(missing)} of the grammar")
        decoder.add_jsgf_string("grammar", text.encode())
        decoder.activate_search("grammar")

    def transcribe(order: dict[str, Any], pcm: bytes) -> Iterator[Answer]:
        # Its model was trained in rooms: where there is no noise at all, it understands far less.
        sound = np.frombuffer(pcm, dtype="<i2")
        room = np.random.default_rng(1).normal(0, _ROOM, len(sound))
        decoder.start_utt()
        decoder.process_raw(
            (sound + room).clip(-32_768, 32_767).astype("<i2").tobytes(), full_utt=True
        )
        decoder.end_utt()
        if (found := decoder.hyp()) is not None:
            said = " ".join([written.get(word, word) for word in found.hypstr.split()])
            yield {"text": said[:1].upper() + said[1:]}, b""

    return transcribe


_JSGF = re.compile(
    r"/\*.*?\*/|//[^\n]*|<[^>]*>|\{[^}]*\}|/[\d.]+/|\A#[^;\n]*;?"
    r"|\b(?:grammar|import)\s[^;]*;|\bpublic\b|(?P<word>[^\W\d_][\w'.-]*)",
    re.S,
)
"""What is in a grammar: comments, rules, tags, weights, the head and, last, words."""


def spoken_grammar(text: str) -> tuple[str, dict[str, str]]:
    """A grammar with its words in lower case, as dictionaries have them, and for each how it was
    written."""
    written: dict[str, str] = {}

    def lower(match: re.Match[str]) -> str:
        if (word := match["word"]) is None:
            return match[0]
        written.setdefault(word.lower(), word)
        return word.lower()

    return _JSGF.sub(lower, text), written


def faster_whisper(model: str) -> Engine:
    """Whisper by CTranslate2: a model by name, which it downloads once, or a folder."""
    import numpy as np

    whisper = import_module("faster_whisper").WhisperModel(model or "base", device="auto")

    def transcribe(order: dict[str, Any], pcm: bytes) -> Iterator[Answer]:
        sound = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32_768
        language, prompt = order.get("language"), order.get("prompt")
        segments, _ = whisper.transcribe(sound, language=language, initial_prompt=prompt)
        for number, segment in enumerate(segments):
            text = segment.text if number else segment.text.lstrip()
            yield {"text": text, "start": segment.start, "end": segment.end}, b""

    return transcribe


def kokoro(model: str) -> Engine:
    """Kokoro by ONNX: its model file, with the file of its voices beside it (`voices*.bin`)."""
    beside = sorted(Path(model).parent.glob("voices*.bin"))
    if not beside:
        raise FileNotFoundError(f"there is no voices*.bin beside {model}")
    library = import_module("kokoro_onnx").Kokoro(model, str(beside[-1]))
    voices = set(library.get_voices())

    def speak(order: dict[str, Any], _: bytes) -> Iterator[Answer]:
        asked = order.get("voice")
        voice = asked if asked in voices else next(v for v in ("af_heart", *sorted(voices)))
        sound, rate = library.create(order["text"], voice, speed=order.get("speed", 1.0))
        pcm = (sound.clip(-1, 1) * 32_767).astype("<i2").tobytes()
        yield {"rate": rate}, pcm

    return speak


ENGINES: dict[str, Callable[[str], Engine]] = {
    "pocketsphinx": pocketsphinx,
    "faster-whisper": faster_whisper,
    "kokoro": kokoro,
}
NEEDED = {
    "pocketsphinx": "pocketsphinx",
    "faster-whisper": "faster_whisper",
    "kokoro": "kokoro_onnx",
}
"""The library of each."""


def main(name: str, option: str) -> None:
    """Answer orders until there are no more."""
    orders = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer

    def answer(head: dict[str, Any], data: bytes = b"") -> None:
        answers.write(message(head, data))
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
