"""The short cut through plain chunks gives what the long way gives, whatever the bytes are."""

import json
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.event import Event
from dragoman.core.fold import fold
from dragoman.core.turn import Turn
from dragoman.wire import json as body
from dragoman.wire.chat import CHAT
from dragoman.wire.chat import stream as decoder
from dragoman.wire.chat import stream as room
from dragoman.wire.chat.stream import Envelope, learn
from tests.samples import samples
from tests.wire.chat.answering import chunk, sse

PLAIN = (
    b'{"id": "x", "created": 1, "choices": [{"index": 0, "delta": {"content": %s}, '
    b'"finish_reason": null, "logprobs": null}], "usage": null, "obfuscation": "a"}'
)


def events(stream: bytes) -> list[Event]:
    reading = CHAT.decoder(Turn("R", 5, "m"))
    return reading.feed(stream) + reading.close()


def wrap(before: bytes, after: bytes) -> Envelope:
    return Envelope(before, after, "text", 0, None, None)


def the_long_way(stream: bytes) -> list[Event]:
    with mock.patch.object(decoder, "learn", return_value=None):
        return events(stream)


# ---- what is learnt ----------------------------------------------------------------------


def test_the_envelope_of_a_plain_chunk_is_what_surrounds_its_text() -> None:
    data = PLAIN % b'"a\\n\\u00e9"'
    envelope = learn(data, body.load(data))
    assert envelope is not None
    before, after = PLAIN.split(b"%s")
    assert envelope[:5] == (before, after, "text", 0, None)
    assert envelope.open(PLAIN % b'"b"') == "b"


def test_a_random_padding_does_not_matter_and_anything_else_does() -> None:
    envelope = learn(PLAIN % b'"a"', body.load(PLAIN % b'"a"'))
    assert envelope is not None
    padded = PLAIN.removesuffix(b'"a"}') + b"%s}"
    assert envelope.open(padded % (b'"b"', b'"x9"')) == "b"
    assert envelope.open(padded % (b'"b"', b'""')) == "b"
    for odd in (b"7", b'"x', b'"x", "y": "z"', b'"\n"'):
        assert not envelope.open(padded % (b'"b"', odd))
    assert not envelope.open((padded % (b'"b"', b'"x9"')).replace(b"logprobs", b"LOGPROBS"))
    twice = PLAIN.replace(b'"usage": null', b'"obfuscation": "b", "usage": null') % b'"a"'
    learnt = learn(twice, body.load(twice))
    assert learnt is not None
    assert learnt.padding is None
    assert learnt.open(twice.replace(b'"b"', b'"c"')) is None
    none = PLAIN.replace(b', "obfuscation": "a"', b"") % b'"a"'
    learnt = learn(none, body.load(none))
    assert learnt is not None
    assert learnt.padding is None


ARGUMENTS = (
    b'{"choices": [{"index": 1, "delta": {"content": null, "tool_calls": [{"index": 2, "id": null, '
    b'"type": "function", "function": {"name": "", "arguments": %s}}]}}]}'
)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_and_arguments_have_envelopes_too(name: str) -> None:
    thinking = PLAIN.replace(b"content", name.encode())
    thought = learn(thinking % b'"Hm"', body.load(thinking % b'"Hm"'))
    assert thought is not None
    assert thought[2:5] == ("thought", 0, None)
    calling = learn(ARGUMENTS % b'"{"', body.load(ARGUMENTS % b'"{"'))
    assert calling is not None
    assert calling[2:5] == ("arguments", 1, 2)
    assert calling.open(ARGUMENTS % b'"}"') == "}"


@pytest.mark.parametrize(
    "data",
    [
        ARGUMENTS % b'""',
        (ARGUMENTS % b'"{"').replace(b'"id": null', b'"id": "c"'),
        (ARGUMENTS % b'"{"').replace(b'"name": ""', b'"name": "f"'),
        (ARGUMENTS % b'"{"').replace(b'"type": "function"', b'"type": "custom"'),
        (ARGUMENTS % b'"{"').replace(b'"content": null', b'"content": "x"'),
        PLAIN % b'"a", "reasoning": "b"',
        PLAIN % b'[{"type": "text", "text": "a"}]',
        b'{"choices": [{"index": 0, "delta": {"audio": {"id": "a"}}}]}',
        PLAIN % b'""',
        PLAIN % b"null",
        PLAIN % b"7",
        PLAIN % b'"a", "refusal": "b"',
        PLAIN % b'"a", "content": "a"',
        PLAIN % b'"a", "c\\u006fntent": "a"',
        PLAIN % b'"a", "tool_calls": [{}]',
        PLAIN % b'"a", "vendor": 1',
        PLAIN % b'"a", "vendor": ""',
        (PLAIN % b'"a"').replace(b'"logprobs"', b'"vendor": "", "logprobs"'),
        (ARGUMENTS % b'"{"').replace(b'"name": ""', b'"vendor": ""'),
        (PLAIN % b'"a"').replace(b'"usage": null', b'"usage": {}'),
        (PLAIN % b'"a"').replace(b'"usage": null', b'"error": "x"'),
        (PLAIN % b'"a"').replace(b'"finish_reason": null', b'"finish_reason": "stop"'),
        (PLAIN % b'"a"').replace(b'"logprobs": null', b'"logprobs": {"content": []}'),
        (PLAIN % b'"a"').replace(b"created", b"cre\\u0061ted"),
        (PLAIN % b'"a"').replace(b"logprobs", b"logpro\\u0062s"),
        b'{"choices": [{"index": 0, "delta": {"content"\n: "a"}}]}',
        b'{"choices": []}',
        b'{"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {}}]}',
    ],
)
def test_nothing_is_learnt_from_a_chunk_that_says_more_or_less(data: bytes) -> None:
    assert learn(data, body.load(data)) is None


@pytest.mark.parametrize(
    "literal",
    [b"7", b"null", b'"a', b'a"', b'"a"b"', b'"a" , "b"', b'"\xff"', b'"\\ud83d"', b'"\n"'],
)
def test_what_is_not_one_string_takes_the_long_way(literal: bytes) -> None:
    before, after = PLAIN.split(b"%s")
    assert not wrap(before, after).open(PLAIN % literal)


def test_a_chunk_shorter_than_its_envelope_takes_the_long_way() -> None:
    assert wrap(b'{"a', b'a"}').open(b'{"a"}') is None
    assert wrap(b"aa", b"aa").open(b"aaa") is None


def test_plain_chunks_take_the_short_cut_and_others_do_not() -> None:
    stream = b"".join(b"data: " + PLAIN % b'"%d"' % n + b"\n\n" for n in range(9))
    with mock.patch.object(body, "load", wraps=body.load) as load:
        events(stream + sse(chunk({}, "stop")))
    assert load.call_count == 2  # the first plain one, and the one with the reason


def test_an_event_with_a_name_takes_the_long_way() -> None:
    plain = b"data: " + PLAIN % b'"a"' + b"\n\n"
    stream = plain + plain + b"event: error\n" + plain
    assert events(stream) == the_long_way(stream)


# ---- the two ways ------------------------------------------------------------------------

literals = st.one_of(
    st.text(max_size=5).map(json.dumps),
    st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(['""', "null", "7", '"\\ud83d"', '"\\ude00"', '"<think>"', '"</think>x"']),
    st.text('"\\a,:{}[]', max_size=6),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
envelopes = st.sampled_from(
    [
        PLAIN,
        PLAIN.replace(b": ", b":").replace(b", ", b","),
        PLAIN.replace(b'"index": 0', b'"index": 1'),
        PLAIN.replace(b'"index": 0', b'"index": true'),
        PLAIN.replace(b'"index": 0', b'"index": -1'),
        PLAIN.replace(b'"index": 0', b'"index": 500'),
        PLAIN.replace(b'"index": 0', b'"index": null'),
        ARGUMENTS.replace(b'"index": 2', b'"index": null'),
        PLAIN.replace(b'"created": 1', b'"created": 2'),
        PLAIN.replace(b'"obfuscation": "a"', b'"obfuscation": "b"'),
        PLAIN.replace(b'"obfuscation": "a"', b'"obfuscation": "%s"'),
        PLAIN.replace(b'"obfuscation": "a"', b'"obfuscation": %s'),
        PLAIN.replace(b"content", b"reasoning_content"),
        PLAIN.replace(b'"content"', b'"content": null, "reasoning"'),
        ARGUMENTS,
        ARGUMENTS.replace(b'"index": 1', b'"index": 0'),
        ARGUMENTS.replace(b'"id": null', b'"id": "c"').replace(b'"name": ""', b'"name": "f"'),
        ARGUMENTS.replace(b'"type": "function"', b'"type": "custom"'),
        PLAIN.replace(b"%s", b'%s, "role": "assistant"'),
        PLAIN.replace(b"%s", b'%s, "content": "twice"'),
        PLAIN.replace(b"%s", b'%s, "reasoning_content": "Hm"'),
        PLAIN.replace(b'"finish_reason": null', b'"finish_reason": "stop"'),
        PLAIN.replace(b'"usage": null', b'"usage": {"prompt_tokens": 1}'),
        PLAIN.replace(b'"id": "x"', b'"id": "x", "provider": "p"'),
        PLAIN.replace(b'"logprobs"', b'"vendor": "", "logprobs"'),
        PLAIN.replace(b"%s", b'%s, "vendor": ""'),
        PLAIN.replace(b"%s", b'%s, "vendor": {}, "refusal": "", "tool_calls": []'),
        PLAIN.replace(b"%s", b'%s, "vendor": 0'),
        ARGUMENTS.replace(b'"name": ""', b'"name": "", "vendor": ""'),
        b'{"choices": [{"index": 0, "delta": {"reasoning_details": [{"text": %s}]}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": %s}}]}}]}',
        b'{"error": {"message": %s}}',
        b"%s",
    ]
)
runs = st.tuples(envelopes, st.lists(literals, min_size=1, max_size=4))
events_ = st.lists(runs, max_size=4).map(
    lambda runs: [(envelope, literal) for envelope, several in runs for literal in several]
)


@settings(max_examples=samples(150, 2_000))
@given(events_, st.booleans())
def test_the_short_cut_gives_what_the_long_way_gives(
    said: list[tuple[bytes, bytes]], done: bool
) -> None:
    stream = b"".join(
        b"data: " + envelope.replace(b"%s", literal).replace(b"\n", b" ") + b"\n\n"
        for envelope, literal in said
    )
    stream += b"data: [DONE]\n\n" if done else b""
    assert events(stream) == the_long_way(stream)


# ---- runs ------------------------------------------------------------------------------------

ODD = [
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    b"data: [DONE]",
    b": alive",
    b"event: x\ndata: {}",
]


def framed(string: bytes) -> bytes:
    return b"data: " + PLAIN % string


strings = st.sampled_from(
    [b'"a"', b'"b\\n"', b'"\\u00e9"', b'""', b'"a","b"', b'"', b"1", b'"\\ud83d"']
)


@pytest.mark.parametrize("few", [0, 2048])
@given(st.lists(strings.map(framed) | st.sampled_from(ODD), max_size=8), st.booleans())
def test_a_run_is_what_chunk_by_chunk_would_give(
    few: int, chunks: list[bytes], whole: bool
) -> None:
    data = b"".join(chunk + b"\n\n" for chunk in chunks)
    data = data if whole else data[:-3]
    envelope = learn(PLAIN % b'"x"', body.load(PLAIN % b'"x"'))
    assert envelope is not None
    with mock.patch.object(room, "_FEW", few):
        said, rest = envelope.open_run(data)
    expected = []
    for event in data.split(b"\n\n")[:-1]:
        text = envelope.open(event[6:]) if event.startswith(b"data: ") else None
        if not text:
            break
        expected.append(text)
    assert said == expected
    assert rest == b"\n\n".join(data.split(b"\n\n")[len(said) :])


@given(st.lists(strings.map(framed) | st.sampled_from(ODD), max_size=12))
def test_a_burst_is_heard_as_chunk_by_chunk(chunks: list[bytes]) -> None:
    stream = b"".join(chunk + b"\n\n" for chunk in [framed(b'"x"'), *chunks])
    single = CHAT.decoder(Turn("R", 5, "m"))
    alone = [
        event for chunk in stream.split(b"\n\n")[:-1] for event in single.feed(chunk + b"\n\n")
    ]
    assert events(stream) == alone + single.close()
    assert fold(events(stream)) == fold(the_long_way(stream))


BESIDE = [
    b'"a"',
    b' "b"\t',
    b'"a"\n',
    b'\n"a"',
    b'"a"\r',
    b'\r"a"',
    b'"a"\r\n',
    b'"a"\n\n',
    b'"\n"',
]
"""What stands between two lines is no part of an event, though JSON takes it for a blank."""
LINES = [framed(b'"x"'), framed(b'"x"').replace(b"data: {", b"data: {\ndata:")]


def texts(heard: list[Event]) -> tuple[str, str]:
    response = fold(heard)
    return response.text, response.status


@pytest.mark.parametrize("few", [0, 2048])
@given(
    st.sampled_from(LINES),
    st.lists(st.sampled_from(BESIDE).map(framed), min_size=1, max_size=4),
    st.lists(st.integers(0, 1500), max_size=4),
    st.booleans(),
)
def test_line_ends_beside_a_string_are_what_they_are_on_the_long_way(
    few: int, first: bytes, chunks: list[bytes], cuts: list[int], broken: bool
) -> None:
    if broken:
        chunks = [chunk.replace(b"data: {", b"data: {\n") for chunk in chunks]
    stream = b"".join(chunk + b"\n\n" for chunk in [first, *chunks])
    ends = [0, *sorted({len(first) + 2, *cuts}), max(1500, len(stream))]
    decoder = CHAT.decoder(Turn("R", 5, "m"))
    with mock.patch.object(room, "_FEW", few):
        heard = [event for at, to in pairwise(ends) for event in decoder.feed(stream[at:to])]
        heard += decoder.close()
    assert texts(heard) == texts(the_long_way(stream))


def test_a_large_event_in_many_pieces_is_not_looked_at_again_and_again() -> None:
    decoder = CHAT.decoder(Turn("R", 5, "m"))
    large = b"y" * 1_000_000
    stream = framed(b'"x"') + b"\n\n" + framed(b'"%b"' % large) + b"\n\n"
    heard: list[Event] = []
    for at in range(0, len(stream), 1000):
        heard += decoder.feed(stream[at : at + 1000])
        assert len(decoder._rest) < 1000
    assert fold(heard + decoder.close()).text == "x" + large.decode()


@pytest.mark.parametrize("between", [[], [b": alive"], [framed(b'""')], [framed(b'"')]])
def test_what_stands_among_many_ends_the_run_there(between: list[bytes]) -> None:
    envelope = learn(PLAIN % b'"x"', body.load(PLAIN % b'"x"'))
    assert envelope is not None
    chunks = [*[framed(b'"a"')] * 30, *between, framed(b'"b"'), b"data: [DONE]"]
    said, rest = envelope.open_run(b"".join(chunk + b"\n\n" for chunk in chunks))
    assert said == ["a"] * 30 + ([] if between else ["b"])
    assert rest == b"".join(chunk + b"\n\n" for chunk in chunks[len(said) :])
    assert envelope.open_run(b": alive\n\n" * 1000) == ([], b": alive\n\n" * 1000)
    short = envelope.framed + envelope.suffix[1:] + b"\n\n"
    assert envelope.open_run(short * 20) == ([], short * 20)


def test_one_event_alone_is_opened_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    around = '{"choices": [{"index": 0, "delta": {"content": %s}}]}'
    data = (around % '"a"').encode()
    envelope = learn(data, json.loads(data))
    assert envelope is not None

    def event(text: str) -> bytes:
        return b"data: " + (around % text).encode() + b"\n\n"

    assert envelope.open_alone(event('"b"')) == "b"
    assert envelope.open_alone(event('"b"') * 2) is None
    assert envelope.open_alone(event('"b')) is None
    assert envelope.open_alone(event("1")) is None
    assert envelope.open_alone(b": alive\n\n" + event('"b"')) is None
    assert envelope.open_alone(event('"b"')[:-1]) is None
    monkeypatch.setattr(room.sse, "MAX_EVENT", 10)
    assert envelope.open_alone(event('"b"')) is None
