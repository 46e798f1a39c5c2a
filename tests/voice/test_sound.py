"""Sound as bytes: G.711, resampling, WAV files, encoders."""

import hashlib
import math
import struct
import sys
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.error import FaultError
from dragoman.core.sound import RATE, wav, wav_head
from dragoman.voice.sound import (
    Resampler,
    SoundEncoder,
    Telephone,
    WavReader,
    a_law,
    mu_law,
    read_wav_head,
    sniff,
)
from tests.voice.fakes import read_wav

ALL_SAMPLES = array("h", range(-32_768, 32_768)).tobytes()
ALL_CODES = bytes(range(256))


def tone(hertz: float, ms: int, rate: int = RATE, level: float = 0.5) -> bytes:
    count = rate * ms // 1000
    values = [
        round(level * 32_767 * math.sin(2 * math.pi * hertz * n / rate)) for n in range(count)
    ]
    return array("h", values).tobytes()


# The digests are of the tables of ITU-T G.191's g711.c, which CPython's audioop had until 3.12.
@pytest.mark.parametrize(
    ("law", "encoded", "decoded"),
    [
        (
            mu_law,
            "81d633c9e6972a18c74a58720b96cb8ca0bdd096d4060b646dd708c3b846019a",
            "3dab54339e520bb2c924826e3b72a917a2b612e9fd12fc867500f1d983a75827",
        ),
        (
            a_law,
            "38488f6fd710f4686360edc4d38639f96c491595ef93f8eb8d62d5e07ca6ce7b",
            "e04788d110e58ff8c70c93b8480190d973e3b67876b6119abbaec766cc75c174",
        ),
    ],
)
def test_g711_is_bit_exact_for_every_sample_and_every_code(law, encoded, decoded) -> None:
    assert hashlib.sha256(law().encode(ALL_SAMPLES)).hexdigest() == encoded
    assert hashlib.sha256(law().decode(ALL_CODES)).hexdigest() == decoded


@pytest.mark.parametrize(
    ("law", "sample", "code"),
    [  # ITU-T G.711, tables 1a, 1b (A-law) and 2a, 2b (µ-law), as 16-bit samples
        (mu_law, 0, 0xFF),
        (mu_law, 32_767, 0x80),
        (mu_law, -32_768, 0x00),
        (mu_law, 4, 0xFE),
        (a_law, 0, 0xD5),
        (a_law, -1, 0x55),
        (a_law, 32_767, 0xAA),
        (a_law, -32_768, 0x2A),
    ],
)
def test_g711_codes_of_the_recommendation(law, sample, code) -> None:
    assert law().encode(struct.pack("<h", sample)) == bytes([code])


@pytest.mark.parametrize("law", [mu_law, a_law])
def test_decoding_a_code_and_encoding_it_gives_the_code(law) -> None:
    again = law().encode(law().decode(ALL_CODES))
    # µ-law has two zeros, and one sample for both.
    assert again == (ALL_CODES.replace(b"\x7f", b"\xff") if law is mu_law else ALL_CODES)


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(FaultError, match="middle of a sample"):
        mu_law().encode(b"\0\0\0")


@given(st.lists(st.integers(1, 3000), max_size=20))
def test_resampling_in_any_pieces_gives_the_same_sound(sizes) -> None:
    pcm = tone(440, 200, 22_050)
    whole = Resampler(22_050, RATE).feed(pcm, last=True)
    assert abs(len(whole) // 2 - RATE // 5) <= 1
    resampler, made, place = Resampler(22_050, RATE), b"", 0
    for size in sizes:
        made += resampler.feed(pcm[place : place + size])
        place += size
    assert made + resampler.feed(pcm[place:], last=True) == whole


def test_a_resampler_serves_again_after_its_last_piece() -> None:
    resampler, pcm = Resampler(8_000, RATE), tone(300, 40, 8_000)
    assert resampler.feed(pcm, last=True) == resampler.feed(pcm, last=True)


def test_equal_rates_change_nothing_and_need_nothing(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    assert Resampler(RATE, RATE).feed(b"\1\2\3", last=True) == b"\1\2"
    with pytest.raises(FaultError, match=r"pip install .\.\[voice\]"):
        Resampler(8_000, RATE)


@pytest.mark.parametrize("format", ["pcmu", "pcma"])
def test_a_telephone_gives_the_tone_back_that_it_was_given(format) -> None:
    line, pcm = Telephone(format), tone(440, 300)
    sent = line.encode(pcm[:5_001]) + line.encode(pcm[5_001:5_002]) + line.encode(pcm[5_002:])
    assert len(sent) == 2_400  # no sound is held back
    pieces = [sent[:1], sent[1:1_000], sent[1_000:]]
    received = array("h", b"".join(map(line.decode, pieces)))
    assert len(received) == len(pcm) // 2
    crossings = sum(a < 0 <= b for a, b in pairwise(received[200:]))
    assert abs(crossings - 440 * (len(received) - 200) / RATE) <= 1
    assert abs(max(received) - 16_384) < 900


def test_g711_drops_frequencies_it_cannot_carry() -> None:
    """7 kHz would come back as 1 kHz."""
    line = Telephone("pcmu")
    heard = array("h", line.decode(line.encode(tone(7_000, 100))))
    assert max(heard[200:]) < 400


def test_a_telephone_in_any_pieces_says_the_same() -> None:
    pcm = tone(440, 40) + noise_like(40)
    whole = Telephone("pcma").encode(pcm)
    line = Telephone("pcma")
    assert b"".join(line.encode(pcm[at : at + 77]) for at in range(0, len(pcm), 77)) == whole


def noise_like(ms: int) -> bytes:
    return hashlib.shake_128(b"noise").digest(48 * ms)


def test_a_telephone_needs_numpy(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(FaultError, match=r"pip install .\.\[voice\]"):
        Telephone("pcmu")


# ---- WAV -------------------------------------------------------------------------------------


def chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def file(encoding: int, channels: int, width: int, data: bytes, rate: int = RATE) -> bytes:
    unit = channels * width
    form = struct.pack("<HHIIHH", encoding, channels, rate, rate * unit, unit, 8 * width)
    if encoding == 0xFFFE:
        form += struct.pack("<HHI", 22, 8 * width, 0) + struct.pack("<H", 1) + b"\0" * 14
    return (
        b"RIFF\0\0\0\0WAVE" + chunk(b"LIST", b"odd") + chunk(b"fmt ", form) + chunk(b"data", data)
    )


PCM16 = array("h", [0, 256, -256, 32_512, -32_768]).tobytes()


@given(st.lists(st.integers(1, 60), max_size=30), st.booleans())
def test_a_wav_file_in_any_pieces_gives_the_same_sound(sizes, streamed) -> None:
    pcm = tone(440, 10)
    data = (wav_head() + pcm) if streamed else wav(pcm) + b"LIST\4\0\0\0more"
    reader, made, place = WavReader(), b"", 0
    for size in sizes:
        made += reader.feed(data[place : place + size])
        place += size
    assert made + reader.feed(data[place:], last=True) == pcm


def test_an_extensible_wav_file_is_read() -> None:
    assert read_wav(file(0xFFFE, 1, 2, PCM16)) == PCM16


def test_the_head_of_a_wav_file_says_rate_and_size() -> None:
    found = read_wav_head(wav(PCM16, 8_000))
    assert (found.rate, found.size, found.offset) == (8_000, len(PCM16), 44)
    assert read_wav_head(wav_head()).size is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"ID3", "no WAV file"),
        (b"RIFF\0\0\0\0AVI ", "no WAV file"),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", "no format before"),
        (file(0x55, 1, 2, b""), "is not read here"),
        (file(1, 2, 2, b""), "2 channels of 16 bits"),
        (file(1, 1, 1, b""), "1 channels of 8 bits"),
        (file(1, 1, 2, b"", 500), "500 Hz"),
        (b"RIFF\0\0\0\0WAVE" + b"LIST\xff\xff\xff\x7f", "has no sound in"),
        (wav(b"")[:40], "ends before its sound"),
        (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1", "ends before its sound"),
    ],
)
def test_what_is_no_wav_file_is_refused(data, problem) -> None:
    with pytest.raises(FaultError, match=problem):
        read_wav(data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (wav(b""), "wav"),
        (b"ID3\4", "mp3"),
        (b"\xff\xfb\x90", "mp3"),
        (b"\xff\xf1\x50", "aac"),
        (b"fLaC", "flac"),
        (b"OggS", "ogg"),
        (b"OggS\0\2" + b"\0" * 22 + b"OpusHead", "opus"),
        (b"\x1a\x45\xdf\xa3", "webm"),
        (b"\0\0\0\x20ftypM4A ", "mp4"),
        (b"Hello", None),
        (b"", None),
    ],
)
def test_kinds_of_files_are_distinguished(data, kind) -> None:
    assert sniff(data) == kind


# ---- what is sent ----------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["mp3", "wav", "pcm"])
def test_an_encoder_writes_what_it_says(format) -> None:
    encoder, pcm = SoundEncoder(format), tone(440, 200)
    made = b"".join([encoder.feed(pcm[:4_800]), encoder.feed(pcm[4_800:]), encoder.close()])
    if format == "mp3":
        assert sniff(made) == "mp3"
    else:
        assert (read_wav(made) if format == "wav" else made) == pcm


def test_an_empty_wav_file_has_a_head() -> None:
    assert sniff(SoundEncoder("wav").close()) == "wav"


def test_formats_that_cannot_be_written_are_refused(monkeypatch) -> None:
    with pytest.raises(FaultError, match="ask for mp3, wav, pcm"):
        SoundEncoder("opus")
    monkeypatch.setitem(sys.modules, "lameenc", None)
    with pytest.raises(FaultError, match="ask for wav or pcm"):
        SoundEncoder("mp3")
