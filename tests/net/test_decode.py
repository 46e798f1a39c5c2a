"""Content codings, whole and in pieces, chained, cut, broken and hostile."""

import gzip
import zlib
from collections.abc import Iterable

import pytest

from dragoman.net.client import Decoder
from dragoman.net.errors import RemoteProtocolError

TEXT = b"".join(b"data: token %d\n\n" % n for n in range(2000))


def raw_deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(data) + deflater.flush()


CODED = {
    "gzip": (["gzip"], gzip.compress(TEXT, mtime=0)),
    "x-gzip": (["x-gzip"], gzip.compress(TEXT, mtime=0)),
    "deflate": (["deflate"], zlib.compress(TEXT)),
    "raw deflate": (["deflate"], raw_deflate(TEXT)),
    "two members": (
        ["gzip"],
        gzip.compress(TEXT[:999], mtime=0) + gzip.compress(TEXT[999:], mtime=0),
    ),
    "padded": (["gzip"], gzip.compress(TEXT, mtime=0) + b"\0" * 99),
    "two codings": (["deflate", "gzip"], gzip.compress(zlib.compress(TEXT), mtime=0)),
    "none": ([], TEXT),
}


def decode(codings: list[str], pieces: Iterable[bytes]) -> bytes:
    decoder = Decoder(codings)
    data = b"".join(b"".join(decoder.feed(piece)) for piece in pieces)
    decoder.finish()
    return data


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("size", [1, 2, 7, 1000, 1 << 20])
def test_any_grouping_decodes_to_the_same(name: str, size: int) -> None:
    codings, coded = CODED[name]
    pieces = [coded[at : at + size] for at in range(0, len(coded), size)]
    assert decode(codings, pieces) == TEXT


@pytest.mark.parametrize("name", ["gzip", "deflate", "raw deflate", "two codings"])
def test_a_coding_cut_short_is_an_error(name: str) -> None:
    codings, coded = CODED[name]
    for cut in (1, 2, 20, len(coded) - 1):
        with pytest.raises(RemoteProtocolError, match="ends too early"):
            decode(codings, [coded[:cut]])


def test_no_bytes_are_no_broken_coding() -> None:
    assert decode(["gzip"], []) == b""


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bytes_that_are_not_so_coded_are_an_error(coding: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"not valid {coding}"):
        decode([coding], [b"\xff\xff\xff hello"])


def test_an_unknown_coding_is_an_error_once_there_is_a_body() -> None:
    assert decode(["br"], []) == b""
    with pytest.raises(RemoteProtocolError, match="unknown content coding 'br'"):
        decode(["br"], [b"x"])


def test_a_flushed_event_comes_out_at_once() -> None:
    deflater = zlib.compressobj(wbits=31)
    decoder = Decoder(["gzip"])
    for n in range(3):
        event = b"data: %d\n\n" % n
        coded = deflater.compress(event) + deflater.flush(zlib.Z_SYNC_FLUSH)
        assert b"".join(decoder.feed(coded)) == event


def test_pieces_are_bounded_whatever_went_in() -> None:
    bomb = gzip.compress(gzip.compress(b"\0" * 30_000_000, mtime=0))
    decoder = Decoder(["gzip", "gzip"])
    size = 0
    for piece in decoder.feed(bomb):
        assert 0 < len(piece) <= 64 * 1024
        size += len(piece)
    assert size == 30_000_000
