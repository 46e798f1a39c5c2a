"""Converts sound: G.711, resampling, WAV files of synthesizers, and encoders.

Inside Dragoman sound is PCM16: signed, little-endian, one channel, 24,000 samples a second, so 48
bytes are a millisecond.
"""

from __future__ import annotations

import math
import sys
from array import array
from functools import cache
from importlib import import_module
from operator import mul
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dragoman.core.error import Fault, FaultError, bad_request, unsupported
from dragoman.core.sound import RATE, wav_head

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

TELEPHONE_RATE = 8_000
"""Samples a second of G.711."""
EXTRA = "pip install '.[voice]' in the checkout"

_SWAP = sys.byteorder == "big"


def samples_of(pcm: bytes | memoryview) -> array[int]:
    """PCM16 as an array. Raises FaultError for half a sample."""
    if len(pcm) % 2:
        raise FaultError(bad_request(f"{len(pcm)} bytes of PCM16 end in the middle of a sample"))
    samples = array("h", bytes(pcm))
    if _SWAP:
        samples.byteswap()
    return samples


def pcm_of(samples: array[int]) -> bytes:
    """An array as PCM16."""
    if _SWAP:
        samples = array("h", samples)
        samples.byteswap()
    return samples.tobytes()


def level(pcm: bytes) -> float:
    """The level in dB of full scale; silence is -90.

    >>> [round(level(pcm)) for pcm in (b"\\0" * 4, b"\\0\\x40\\0\\xc0")]
    [-90, -6]
    """
    samples = samples_of(pcm)
    mean = sum(samples) / len(samples)
    return decibels(sum(map(mul, samples, samples)) / len(samples) - mean * mean)


def decibels(power: float) -> float:
    """The mean square of samples in dB of full scale."""
    return 10 * math.log10(max(power, 1.0)) - _FULL_SCALE


_FULL_SCALE = 20 * math.log10(32_768)

# ---- G.711 -----------------------------------------------------------------------------------


class G711(Struct, frozen=True):
    """A law of ITU-T G.711 as tables: the code of each 16-bit sample, and the low and high bytes
    of the sample that each code stands for."""

    codes: bytes
    low: bytes
    high: bytes

    def encode(self, pcm: bytes) -> bytes:
        """One byte for each sample."""
        samples = samples_of(pcm)
        return bytes(map(self.codes.__getitem__, array("H", samples.tobytes())))

    def decode(self, data: bytes) -> bytes:
        """PCM16 at the same rate."""
        pcm = bytearray(2 * len(data))
        pcm[0::2] = data.translate(self.low)
        pcm[1::2] = data.translate(self.high)
        return bytes(pcm)


@cache
def mu_law() -> G711:
    """µ-law: 14 bits of a sample, biased by 33, as sign, exponent and four bits; all inverted."""
    codes = bytearray(65_536)
    for sample in range(-32_768, 32_768):
        magnitude = min(abs(sample >> 2), 8_159) + 33
        exponent = magnitude.bit_length() - 6
        code = min(exponent << 4 | magnitude >> (exponent + 1) & 15, 127)
        codes[sample & 0xFFFF] = code ^ (0x7F if sample < 0 else 0xFF)
    values = []
    for code in range(256):
        bits = code ^ 0xFF
        value = (((bits & 15) << 3) + 132 << (bits >> 4 & 7)) - 132
        values.append(-value if bits & 128 else value)
    return _law(codes, values)


@cache
def a_law() -> G711:
    """A-law: 13 bits of a sample as sign, exponent and four bits; every other bit inverted."""
    codes = bytearray(65_536)
    for sample in range(-32_768, 32_768):
        magnitude = sample >> 3 if sample >= 0 else ~(sample >> 3)
        exponent = max(magnitude.bit_length() - 5, 0)
        code = exponent << 4 | magnitude >> max(exponent, 1) & 15
        codes[sample & 0xFFFF] = code ^ (0xD5 if sample >= 0 else 0x55)
    values = []
    for code in range(256):
        bits = code ^ 0x55
        exponent = bits >> 4 & 7
        value = ((bits & 15) << 4) + (264 if exponent else 8) << max(exponent - 1, 0)
        values.append(value if bits & 128 else -value)
    return _law(codes, values)


def _law(codes: bytearray, values: list[int]) -> G711:
    low = bytes(value & 0xFF for value in values)
    return G711(bytes(codes), low, bytes(value >> 8 & 0xFF for value in values))


LAWS = {"pcmu": mu_law, "pcma": a_law}
"""The laws by the names that Realtime has for them, without `audio/`."""


# ---- resampling ------------------------------------------------------------------------------


class Resampler:
    """Resamples a stream of PCM16, in any pieces. For equal rates it
    changes nothing, and needs no package."""

    def __init__(self, source: int, target: int) -> None:
        self._stream: Any = None
        self._rates = source, target
        self._half = b""  # of a sample
        if source != target:
            self._open()

    def _open(self) -> None:
        try:
            soxr = import_module("soxr")
        except ImportError:
            source, target = self._rates
            problem = f"Sound of {source} Hz becomes {target} Hz only with soxr: {EXTRA}."
            raise FaultError(Fault("unsupported", problem)) from None
        # Of int16 it adds noise, which differs with the pieces.
        self._stream = soxr.ResampleStream(*self._rates, 1, dtype="float32")

    def feed(self, pcm: bytes, *, last: bool = False) -> bytes:
        """The samples that these bytes complete; with `last`, all the rest."""
        pcm = self._half + pcm
        self._half = pcm[len(pcm) & ~1 :]
        pcm = pcm[: len(pcm) & ~1]
        if self._stream is None:
            return pcm
        import numpy as np

        given = np.frombuffer(pcm, dtype="<i2").astype(np.float32)
        made: NDArray[numpy.float32] = self._stream.resample_chunk(given, last=last)
        if last:  # it accepts no more
            self._open()
            self._half = b""
        return made.round().clip(-32_768, 32_767).astype("<i2").tobytes()


_TAPS, _THREE = 47, RATE // TELEPHONE_RATE


class Telephone:
    """PCM16 at 24 kHz from and to G.711 at 8 kHz, as streams. Needs numpy.

    soxr would delay 21 ms of an answer's end until the next one, and 64 ms of the caller's
    sound; this filter of 47 taps has a delay of a millisecond, and cuts off at 3.6 kHz. A
    millisecond in is a millisecond out.
    """

    def __init__(self, format: str) -> None:
        try:
            self._np = np = import_module("numpy")
        except ImportError:
            problem = f"G.711 becomes PCM of 24 kHz only with numpy: {EXTRA}."
            raise FaultError(Fault("unsupported", problem)) from None
        self._law = LAWS[format]()
        place = np.arange(_TAPS) - _TAPS // 2
        taps = np.sinc(place * 0.9 / _THREE) * np.hanning(_TAPS + 2)[1:-1]
        self._taps = taps / taps.sum()
        self._sent, self._received = np.zeros(_TAPS - 1), np.zeros(_TAPS - 1)
        self._rest = b""  # of three samples

    def decode(self, data: bytes) -> bytes:
        """Decode the client's sound."""
        np = self._np
        spread = np.zeros(_THREE * len(data))
        spread[::_THREE] = np.frombuffer(self._law.decode(data), dtype="<i2")
        whole = np.concatenate((self._received, _THREE * spread))
        self._received = whole[len(whole) - _TAPS + 1 :]
        return self._filtered(whole, 1)

    def encode(self, pcm: bytes) -> bytes:
        """Encode sound for the client."""
        np = self._np
        pcm = self._rest + pcm
        usable = len(pcm) - len(pcm) % (2 * _THREE)
        pcm, self._rest = pcm[:usable], pcm[usable:]
        whole = np.concatenate((self._sent, np.frombuffer(pcm, dtype="<i2")))
        self._sent = whole[len(whole) - _TAPS + 1 :]
        return self._law.encode(self._filtered(whole, _THREE))

    def _filtered(self, samples: NDArray[numpy.float64], step: int) -> bytes:
        if len(samples) < _TAPS:
            return b""
        made = self._np.convolve(samples, self._taps, "valid")[::step]
        encoded: bytes = made.round().clip(-32_768, 32_767).astype("<i2").tobytes()
        return encoded


# ---- WAV -------------------------------------------------------------------------------------

_PCM, _EXTENSIBLE = 1, 0xFFFE
MIN_RATE, MAX_RATE = 8_000, 192_000
MAX_HEAD = 64 * 1024
"""Bytes of a WAV file before its sound."""


class WavHead(Struct, frozen=True):
    """The rate of a WAV file of PCM16, where its sound begins, and its bytes; for a streamed
    file, `size` is None."""

    rate: int
    offset: int
    size: int | None


def read_wav_head(data: bytes) -> WavHead | None:
    """The head, or None where more bytes are needed. Raises FaultError for anything but a WAV file
    of one channel of PCM16, the format of synthesizers."""
    if data[:4] != b"RIFF"[: len(data)] or data[8:12] != b"WAVE"[: max(len(data) - 8, 0)]:
        raise FaultError(bad_request("The sound is no WAV file."))
    place, rate = 12, 0
    while len(data) >= place + 8:
        name, size = data[place : place + 4], _number(data[place + 4 : place + 8])
        place += 8
        if name == b"data":
            if not rate:
                raise FaultError(bad_request("The WAV file has no format before its sound."))
            # 0x7ffff000 is espeak-ng's, 0 ffmpeg's placeholder for an unknown length.
            open_ended = size == 0 or size >= 0x7FFF_0000
            return WavHead(rate, place, None if open_ended else size)
        if name == b"fmt ":
            if len(data) < place + 16:
                return None
            encoding, channels, rate = (_number(data[place + a : place + b]) for a, b in _FIELDS)
            width = _number(data[place + 14 : place + 16])
            plain = encoding in (_PCM, _EXTENSIBLE) and (channels, width) == (1, 16)
            if not plain or not MIN_RATE <= rate <= MAX_RATE:
                problem = f"{channels} channels of {width} bits at {rate} Hz, encoding {encoding}"
                raise FaultError(bad_request(f"The WAV file is not read here: it has {problem}."))
        place += size + size % 2
        if place > MAX_HEAD:
            raise FaultError(bad_request(f"The WAV file has no sound in {MAX_HEAD} bytes."))
    return None


_FIELDS = ((0, 2), (2, 4), (4, 8))


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


class WavReader:
    """PCM16 of a WAV file that arrives in pieces, at 24 kHz."""

    def __init__(self) -> None:
        self._held = b""
        self._left: int | None = None
        self._resampler: Resampler | None = None

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        """The samples that these bytes complete. Raises FaultError for an invalid WAV file."""
        if self._resampler is None:
            self._held += data
            head = read_wav_head(self._held)
            if head is None:
                if last:
                    raise FaultError(bad_request("The WAV file ends before its sound."))
                return b""
            data, self._held = self._held[head.offset :], b""
            self._left, self._resampler = head.size, Resampler(head.rate, RATE)
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        return self._resampler.feed(data, last=last)


# ---- kinds of files --------------------------------------------------------------------------

_MAGIC = ((b"fLaC", "flac"), (b"OggS", "ogg"), (b"\x1a\x45\xdf\xa3", "webm"), (b"ID3", "mp3"))


def sniff(data: bytes) -> str | None:
    """The type of a sound file by its first bytes: wav, mp3, aac, flac, ogg, opus, webm, mp4; None
    for an unknown one.

    >>> sniff(wav_head()), sniff(b"ID3"), sniff(b"Hello")
    ('wav', 'mp3', None)
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"OggS" and data[28:36] == b"OpusHead":
        return "opus"
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if len(data) >= 2 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:  # the sync of a frame
        return "aac" if data[1] & 0x06 == 0 else "mp3"  # layer 0 is ADTS
    return None


# ---- encoders --------------------------------------------------------------------------------


class SoundEncoder:
    """Encodes PCM16 at 24 kHz as `pcm`, `wav` or `mp3`, a piece at a time. Raises FaultError for a
    format that is not supported here."""

    def __init__(self, format: str) -> None:
        if format not in MEDIA_TYPES:
            problem = f"Sound is not written as {format} here; ask for {', '.join(MEDIA_TYPES)}"
            raise FaultError(unsupported(problem, "response_format"))
        self.media_type = MEDIA_TYPES[format]
        self._head = wav_head() if format == "wav" else b""
        self._mp3: Any = None
        if format == "mp3":
            try:
                encoder = import_module("lameenc").Encoder()
            except ImportError:
                problem = f"mp3 is written with lameenc ({EXTRA}); ask for wav or pcm"
                raise FaultError(unsupported(problem, "response_format")) from None
            encoder.silence()
            encoder.set_bit_rate(64)
            encoder.set_in_sample_rate(RATE)
            encoder.set_channels(1)
            encoder.set_quality(7)
            self._mp3 = encoder

    def feed(self, pcm: bytes) -> bytes:
        """The next bytes of the file."""
        if self._mp3 is not None:
            return bytes(self._mp3.encode(pcm))
        head, self._head = self._head, b""
        return head + pcm

    def close(self) -> bytes:
        """The last bytes."""
        return self._head if self._mp3 is None else bytes(self._mp3.flush())


MEDIA_TYPES = {"mp3": b"audio/mpeg", "wav": b"audio/wav", "pcm": b"audio/pcm"}
"""The supported formats, by their media types."""
