"""Where utterances begin and end, and whether somebody has finished."""

import random
import sys
from array import array
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.error import FaultError
from dragoman.core.sound import BYTES_PER_MS
from dragoman.voice.detection import (
    FRAME,
    Detector,
    Energy,
    Started,
    Stopped,
    WebRTC,
    finished,
    numbers,
    scorer,
    to_16k,
)
from tests.cost import is_square
from tests.samples import samples

NOISE = random.Random(5)


def noise(ms: int, level: float = 60) -> bytes:
    return array("h", [round(NOISE.gauss(0, level)) for _ in range(24 * ms)]).tobytes()


def hum(ms: int) -> bytes:
    """Something like a vowel: pulses of a voice at 120 Hz in noise."""
    pulses = [9_000 if n % 200 < 20 else -900 for n in range(24 * ms)]
    return array("h", [p + round(NOISE.gauss(0, 60)) for p in pulses]).tobytes()


class Marks:
    """Scores frames by a mark in them, so that tests say what is speech."""

    def score(self, frame: bytes) -> float:
        return 1.0 if frame[0] else 0.0


def frames(pattern: str) -> bytes:
    """A frame of speech for each `x`, and of silence for any other letter."""
    return b"".join((b"\1" if each == "x" else b"\0") * FRAME for each in pattern)


def detector(**given) -> Detector:
    return Detector(Marks(), prefix_ms=given.pop("prefix_ms", 100), silence_ms=100, **given)


def test_an_utterance_has_padding_before_it_and_the_silence_behind_it() -> None:
    found = detector().feed(frames("." * 10 + "x" * 10 + "." * 6))
    assert found == [Started(200 - 100), Stopped(400 + 100)]


def test_padding_begins_where_the_last_utterance_ended_at_the_earliest() -> None:
    found = detector(prefix_ms=1000).feed(frames("." * 3 + "xxx" + "." * 5 + "xxx" + "." * 5))
    assert found == [Started(0), Stopped(220), Started(220), Stopped(380)]


@pytest.mark.parametrize(
    ("pattern", "speech"), [("..xx....", False), ("x.x.x.", False), ("xx.x", True)]
)
def test_a_click_is_no_utterance(pattern, speech) -> None:
    assert bool(detector().feed(frames(pattern))) is speech


def test_a_short_pause_does_not_end_an_utterance() -> None:
    found = detector().feed(frames("xxx" + "...." + "x" + "...." + "x" + "....."))
    assert found == [Started(0), Stopped(360)]


def test_reset_forgets_the_utterance_and_goes_on_counting() -> None:
    found = detector()
    assert found.feed(frames("xxx")) == [Started(0)]
    assert found.speaking
    found.reset()
    assert not found.speaking
    assert found.feed(frames(".....xxx")) == [Started(60)]


SPEECH = noise(400) + hum(500) + noise(700) + hum(300) + noise(600)


@pytest.mark.parametrize("name", ["energy", "webrtc"])
@settings(max_examples=samples(8, 500))
@given(sizes=st.lists(st.integers(1, 30_000), max_size=30))
def test_sound_in_any_pieces_gives_the_same_verdicts(name, sizes) -> None:
    """At the same samples, too: time is counted in them."""
    whole = Detector(scorer(name)).feed(SPEECH) if name not in _WHOLE else _WHOLE[name]
    _WHOLE[name] = whole
    found, place, pieces = [], 0, Detector(scorer(name))
    for size in sizes:
        found += pieces.feed(SPEECH[place : place + size])
        place += size
    assert found + pieces.feed(SPEECH[place:]) == whole


_WHOLE: dict[str, list[Started | Stopped]] = {}


@pytest.mark.parametrize("name", ["energy", "webrtc"])
def test_voiced_sound_in_noise_is_found(name) -> None:
    found = Detector(scorer(name)).feed(SPEECH)
    assert [type(event) for event in found] == [Started, Stopped, Started, Stopped]
    for event, expected in zip(found, (100, 1400, 1300, 2400), strict=True):
        assert abs(event.at_ms - expected) <= 160


@pytest.mark.parametrize(
    ("name", "level"), [*product(("energy", "webrtc"), (0, 30, 300)), ("silero", 30)]
)
def test_noise_alone_is_no_speech(name, level) -> None:
    """WebRTC's detector takes the beginning of any noise for a voice."""
    assert Detector(scorer(name)).feed(noise(1000, level)) == []


def test_a_frame_at_16_khz_has_two_samples_of_three() -> None:
    assert to_16k(numbers(array("h", [1, 2, 4, 5, 6, 8]).tobytes())).tolist() == [1, 3, 5, 7]


def test_webrtc_is_as_strict_as_the_threshold(monkeypatch) -> None:
    modes = []

    class Library:
        Vad = modes.append

    monkeypatch.setitem(sys.modules, "webrtcvad", Library)
    for threshold in (0.9, 0.5, 0.3, 0.1):
        WebRTC(threshold)
    assert modes == [3, 3, 2, 1]


def test_scorers_by_name(monkeypatch) -> None:
    assert isinstance(scorer("auto"), WebRTC)
    monkeypatch.setitem(sys.modules, "webrtcvad", None)
    assert isinstance(scorer("auto"), Energy)
    with pytest.raises(FaultError, match=r"needs webrtcvad.*pip install .\.\[voice\]"):
        scorer("webrtc")
    with pytest.raises(FaultError, match="no detector 'vad'; there is auto, energy"):
        scorer("vad")


# ---- whether somebody has finished -----------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("What is the weather in Paris?", True),
        ("what is the weather in paris", True),
        ("Yes.", True),
        ("Who for?", True),
        ("yes", None),
        ("thank you", None),
        ("", None),
        ("…", None),
        ("I would like to", False),
        ("I would like the", False),
        ("Tell me about Paris and", False),
        ("Well,", False),
        ("Let me think...", False),
        ("Ich möchte ein", False),
    ],
)
def test_sentences_that_are_finished(said, expected) -> None:
    assert finished(said) is expected


@pytest.mark.uncounted
def test_a_long_word_takes_linear_time() -> None:
    assert not is_square(lambda count: finished("a" * count + "1"), 2_000)


@pytest.mark.parametrize(
    ("eagerness", "said", "waited"),
    [
        ("high", "What is the weather in Paris?", 200),
        ("auto", "What is the weather in Paris?", 300),
        ("low", "What is the weather in Paris?", 600),
        ("high", "I would like to", 2_000),
        ("medium", "I would like to", 4_000),
        ("low", "I would like to", 8_000),
        ("auto", "yes", 800),
        ("high", None, 400),
    ],
)
def test_eagerness_and_words_say_how_long_is_waited(eagerness, said, waited) -> None:
    asked = []

    def ask(start: int | None) -> None:
        asked.append(start)
        if said is not None:
            found.judge(said)

    found = detector(eagerness=eagerness, ask=ask)
    assert found.feed(frames("xxxxx" + "." * 500)) == [Started(0), Stopped(100 + waited)]
    assert asked == [0]


def test_who_goes_on_is_waited_for_as_usual_again() -> None:
    asked = []

    def ask(start: int | None) -> None:
        asked.append(start)
        if len(asked) == 1:
            found.judge("I would like to")

    found = detector(eagerness="high", ask=ask)
    assert found.feed(frames("xxx" + "." * 90)) == [Started(0)]
    assert found.feed(frames("x" + "." * 19)) == []
    assert found.feed(frames(".")) == [Stopped(2_280)]
    assert asked == [0, None, 0]


@pytest.mark.parametrize(("silence", "look"), [(100, 60), (200, 100), (1_000, 200)])
def test_a_pause_is_reported_after_half_of_the_silence(silence, look) -> None:
    asked = []
    found = Detector(Marks(), silence_ms=silence, ask=asked.append)
    found.feed(frames("xxx" + "." * (-(-look // 20) - 1)))
    assert asked == []
    found.feed(frames("."))
    assert asked == [0]
    found.feed(frames("x"))
    assert asked == [0, None]


def test_a_late_judgement_counts_from_then_on() -> None:
    found = detector(eagerness="low")
    assert found.feed(frames("xxx" + "." * 50)) == [Started(0)]
    found.judge("That is all.")
    assert found.feed(frames(".")) == [Stopped(54 * 20)]


def test_a_late_judgement_of_earlier_words_is_ignored() -> None:
    found = detector(eagerness="high")
    found.feed(frames("xxx" + "." * 12 + "x"))
    found.judge("That is all.")  # while somebody speaks
    assert found.feed(frames("." * 19)) == []
    plain = detector()
    plain.feed(frames("xxx" + "." * 4))
    plain.judge("That is all.")  # of server_vad, which counts silence only
    assert plain.feed(frames(".")) == [Stopped(160)]


def test_a_millisecond_is_48_bytes() -> None:
    assert FRAME == 20 * BYTES_PER_MS == 960
