"""The reader of server-sent events takes any line ends in any split; the writer says one block."""

from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire import sse
from dragoman.wire.sse import DONE, END, SSEDecoder, comment, frame

STREAM = (
    b"\xef\xbb\xbf: welcome\n\n"
    b'data: {"a":1}\n\n'
    b"event: named\nid: 7\nretry: 100\ndata:no space\n\n"
    b"data: one\ndata:  two\ndata\n\n"
    b"\n\n\ndata: \xc3\xa9\n\nevent: empty\n\nunknown: x\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    ("", b'{"a":1}'),
    ("named", b"no space"),
    ("", b"one\n two\n"),
    ("", b"\xc3\xa9"),
    ("", END),
]


def read(*pieces: bytes) -> list[tuple[str, bytes]]:
    decoder = SSEDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_r1_11_all_line_ends_comments_ids_names_and_a_byte_order_mark(end) -> None:
    stream = STREAM.replace(b"\n", end)
    assert read(stream) == EVENTS
    assert read(*(stream[n : n + 1] for n in range(len(stream)))) == EVENTS


@given(
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=8, max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_r1_11_any_split_and_any_mix_of_line_ends(ends, cuts) -> None:
    lines = STREAM.split(b"\n")
    stream = b"".join(line + ends[n % 8] for n, line in enumerate(lines[:-1])) + lines[-1]
    # Two mixed ends may melt into one (CR before LF), so the whole is the measure of its pieces.
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(places)]
    assert read(*pieces) == read(stream)


def test_mixed_line_ends_within_one_event() -> None:
    assert read(b"event: e\rdata: a\r\ndata: b\n\r\n") == [("e", b"a\nb")]


def test_r1_11_a_last_event_without_its_blank_line_is_read() -> None:
    assert read(b"data: 1\n\ndata: 2") == [("", b"1"), ("", b"2")]
    assert read(b"data: 1\n\ndata: 2\n") == [("", b"1"), ("", b"2")]
    assert read(b"data: 1\r\n\r", b"", b"\n") == [("", b"1")]
    assert read() == []


def test_many_events_in_one_read_and_one_event_in_many() -> None:
    events = [b"%d" % n for n in range(1000)]
    stream = b"".join(map(frame, events))
    assert [data for _, data in read(stream)] == events
    assert [data for _, data in read(*(stream[n : n + 7] for n in range(0, len(stream), 7)))] == (
        events
    )


def test_events_are_given_as_soon_as_they_are_whole() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: 1\n") == []
    assert decoder.feed(b"\n") == [("", b"1")]
    assert decoder.close() == []


def test_an_event_over_the_limit_is_an_error_whichever_way_it_comes() -> None:
    with mock.patch.object(sse, "MAX_EVENT", 20):
        assert read(b"data: 12345678901234\n\n") == [("", b"12345678901234")]
        for pieces in ([b"data: 123456789012345\n\n"], [b"data: 1234567890", b"12345"]):
            with pytest.raises(ValueError, match="larger than 20 bytes"):
                read(*pieces)
        with pytest.raises(ValueError, match="larger"):
            read(b"data: 1\n\ndata: 12345678901234567")


def test_a_frame_is_one_block_of_lines_with_lf_only() -> None:
    assert frame(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert frame(b"{}", "response.created") == b"event: response.created\ndata: {}\n\n"
    assert comment("alive") == b": alive\n\n"
    assert DONE == b"data: [DONE]\n\n"
    assert read(frame(b"{}", "e") + comment("x") + DONE) == [("e", b"{}"), ("", END)]


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b.c"]), st.binary().map(bytes.hex))))
def test_framed_events_are_read_again(events) -> None:
    said = [(name, data.encode()) for name, data in events]
    assert read(b"".join(frame(data, name or None) for name, data in said)) == said
