"""Templates of chunks: what is learnt, and that they change none of the events."""

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
from dragoman.wire import sse as wire_sse
from dragoman.wire.chat import CHAT
from dragoman.wire.chat import stream as chat_stream
from dragoman.wire.chat.stream import learn
from dragoman.wire.choices import Template
from tests.samples import samples
from tests.wire.chat.answering import chunk, sse

PLAIN = (
    b'{"id": "x", "created": 1, "choices": [{"index": 0, "delta": {"content": %s}, '
    b'"finish_reason": null, "logprobs": null}], "usage": null, "obfuscation": "a"}'
)


def events(stream: bytes) -> list[Event]:
    reading = CHAT.decoder(Turn("R", 5, "m"))
    return reading.feed(stream) + reading.close()


def template_of(data: bytes) -> Template:
    template = learn(data, body.load(data))
    assert template is not None
    return template


def without_templates(stream: bytes) -> list[Event]:
    with mock.patch.object(chat_stream, "learn", return_value=None):
        return events(stream)


# ---- what is learnt ----------------------------------------------------------------------


def test_the_template_of_a_text_chunk_is_what_surrounds_its_text() -> None:
    template = template_of(PLAIN % b'"a\\n\\u00e9"')
    before, after = PLAIN.split(b"%s")
    assert template[:5] == (b"data: " + before, after + b"\n\n", "text", 0, None)
    assert template.string(PLAIN % b'"b"') == "b"


def test_random_padding_is_skipped_and_any_other_difference_is_not() -> None:
    template = template_of(PLAIN % b'"a"')
    padded = PLAIN.removesuffix(b'"a"}') + b"%s}"
    assert template.string(padded % (b'"b"', b'"x9"')) == "b"
    assert template.string(padded % (b'"b"', b'""')) == "b"
    for odd in (b"7", b'"x', b'"x", "y": "z"', b'"\n"'):
        assert not template.string(padded % (b'"b"', odd))
    assert not template.string((padded % (b'"b"', b'"x9"')).replace(b"logprobs", b"LOGPROBS"))
    twice = PLAIN.replace(b'"usage": null', b'"obfuscation": "b", "usage": null') % b'"a"'
    assert template_of(twice).string(twice.replace(b'"b"', b'"c"')) is None
    assert template_of(PLAIN.replace(b', "obfuscation": "a"', b"") % b'"a"').padding is None


ARGUMENTS = (
    b'{"choices": [{"index": 1, "delta": {"content": null, "tool_calls": [{"index": 2, "id": null, '
    b'"type": "function", "function": {"name": "", "arguments": %s}}]}}]}'
)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_and_arguments_have_templates_too(name) -> None:
    reasoning = template_of(PLAIN.replace(b"content", name.encode()) % b'"Hm"')
    assert reasoning[2:5] == ("reasoning", 0, None)
    arguments = template_of(ARGUMENTS % b'"{"')
    assert arguments[2:5] == ("arguments", 1, 2)
    assert arguments.string(ARGUMENTS % b'"}"') == "}"


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
        (PLAIN % b'"a"').replace(b'"usage": null', b'"usage": {"total_tokens": 1}'),
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
def test_a_chunk_with_more_or_less_than_one_string_has_no_template(data) -> None:
    assert learn(data, body.load(data)) is None


@pytest.mark.parametrize(
    "literal",
    [b"7", b"null", b'"a', b'a"', b'"a"b"', b'"a" , "b"', b'"\xff"', b'"\\ud83d"', b'"\n"'],
)
def test_what_is_not_one_string_is_read_as_a_whole_chunk(literal) -> None:
    assert not template_of(PLAIN % b'"a"').string(PLAIN % literal)


def test_an_event_shorter_than_its_template_is_read_as_a_whole_chunk() -> None:
    data = b'{"choices":[{"delta":{"content":"a"}}]}'
    short = data.replace(b'"a"', b"")[1:]
    assert template_of(data).string(short) is None
    assert template_of(data).strings(b"data: " + short + b"\n\n")[0] == []


def test_only_chunks_that_differ_in_more_than_their_text_are_decoded_as_json() -> None:
    stream = b"".join(b"data: " + PLAIN % b'"%d"' % n + b"\n\n" for n in range(9))
    with mock.patch.object(body, "load", wraps=body.load) as load:
        events(stream + sse(chunk({}, "stop")))
    assert load.call_count == 2  # the first one, and the one with the reason


def test_an_event_with_a_name_is_read_as_a_whole_chunk() -> None:
    plain = b"data: " + PLAIN % b'"a"' + b"\n\n"
    stream = plain + plain + b"event: error\n" + plain
    assert events(stream) == without_templates(stream)


# ---- the same events ------------------------------------------------------------------------

literals = st.one_of(
    st.text(max_size=5).map(json.dumps),
    st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(['""', "null", "7", '"\\ud83d"', '"\\ude00"', '"<think>"', '"</think>x"']),
    st.text('"\\a,:{}[]', max_size=6),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
templates = st.sampled_from(
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
runs = st.tuples(templates, st.lists(literals, min_size=1, max_size=4))
events_ = st.lists(runs, max_size=4).map(
    lambda runs: [(template, literal) for template, several in runs for literal in several]
)


@settings(max_examples=samples(25, 2_000))
@given(events_, st.booleans())
def test_templates_change_no_event(chunks, done) -> None:
    stream = b"".join(
        b"data: " + template.replace(b"%s", literal).replace(b"\n", b" ") + b"\n\n"
        for template, literal in chunks
    )
    stream += b"data: [DONE]\n\n" if done else b""
    assert events(stream) == without_templates(stream)


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


@given(st.lists(strings.map(framed) | st.sampled_from(ODD), max_size=12))
def test_a_burst_gives_the_events_of_chunk_by_chunk(chunks) -> None:
    stream = b"".join(chunk + b"\n\n" for chunk in [framed(b'"x"'), *chunks])
    single = CHAT.decoder(Turn("R", 5, "m"))
    alone = [
        event for chunk in stream.split(b"\n\n")[:-1] for event in single.feed(chunk + b"\n\n")
    ]
    assert events(stream) == alone + single.close()
    assert fold(events(stream)) == fold(without_templates(stream))


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


def texts(events: list[Event]) -> tuple[str, str]:
    response = fold(events)
    return response.text, response.status


@given(
    st.sampled_from(LINES),
    st.lists(st.sampled_from(BESIDE).map(framed), min_size=1, max_size=4),
    st.lists(st.integers(0, 1500), max_size=4),
    st.booleans(),
)
def test_line_ends_beside_a_string_mean_what_they_mean_in_events(
    first, chunks, cuts, broken
) -> None:
    if broken:
        chunks = [chunk.replace(b"data: {", b"data: {\n") for chunk in chunks]
    stream = b"".join(chunk + b"\n\n" for chunk in [first, *chunks])
    ends = [0, *sorted({len(first) + 2, *cuts}), max(1500, len(stream))]
    decoder = CHAT.decoder(Turn("R", 5, "m"))
    pieces = [event for at, to in pairwise(ends) for event in decoder.feed(stream[at:to])]
    assert texts(pieces + decoder.close()) == texts(without_templates(stream))


def test_a_large_event_in_many_pieces_is_scanned_once() -> None:
    decoder = CHAT.decoder(Turn("R", 5, "m"))
    large = b"y" * 1_000_000
    stream = framed(b'"x"') + b"\n\n" + framed(b'"%b"' % large) + b"\n\n"
    pieces: list[Event] = []
    for at in range(0, len(stream), 1000):
        pieces += decoder.feed(stream[at : at + 1000])
        assert len(decoder._rest) < 1000
    assert fold(pieces + decoder.close()).text == "x" + large.decode()


@pytest.mark.parametrize("between", [[], [b": alive"], [framed(b'""')], [framed(b'"')]])
def test_another_event_ends_a_run_of_like_chunks(between) -> None:
    template = template_of(PLAIN % b'"x"')
    chunks = [*[framed(b'"a"')] * 30, *between, framed(b'"b"'), b"data: [DONE]"]
    strings, rest = template.strings(b"".join(chunk + b"\n\n" for chunk in chunks))
    assert strings == ["a"] * 30 + ([] if between else ["b"])
    assert rest == b"".join(chunk + b"\n\n" for chunk in chunks[len(strings) :])
    assert template.strings(b": alive\n\n" * 9) == ([], b": alive\n\n" * 9)


def test_a_chunk_larger_than_an_event_may_be_is_left_to_the_sse_decoder(monkeypatch) -> None:
    template, chunk = template_of(PLAIN % b'"x"'), framed(b'"a"') + b"\n\n"
    decoder = CHAT.decoder(Turn("R", 5, "m"))
    decoder.feed(chunk * 2)
    monkeypatch.setattr(wire_sse, "MAX_EVENT", 10)
    assert template.strings(chunk) == ([], chunk)
    assert decoder.feed(chunk)[-1].fault.code == "upstream_error"
