"""The laws that hold on this wire for all canonical values, and for any split of the bytes."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.event import Failed
from dragoman.core.fold import fold
from dragoman.core.response import Response
from dragoman.wire import json
from dragoman.wire.completions import decode_request, encode_request, encode_response
from dragoman.wire.protocol import STANDARD, Dialect
from tests.samples import samples
from tests.wire.completions.speaking import ALL, ASKED, events, hear, told
from tests.wire.completions.strategies import completions, responses

some_examples = settings(max_examples=samples(15, 400))
PLAIN = Dialect(ask_usage=False)
FIELDS = (
    *("text", "delta", "message", "content", "index", "logprobs", "tokens", "token_logprobs"),
    *("top_logprobs", "finish_reason", "error", "x"),
)


def again(response: Response, *pieces: bytes) -> Response:
    """What is heard of an answer under the id it had."""
    found = fold(hear(*pieces, id=response.id, created_at=response.created_at))
    extra = {wire: fields for wire, fields in (found.extra or {}).items() if wire != "upstream"}
    return replace(found, extra=extra or None)


@some_examples
@given(completions())
def test_law_1_encoded_request_decodes_to_the_same(completion) -> None:
    said, losses = encode_request(completion, PLAIN)
    assert decode_request(said) == completion
    assert losses == ()
    assert encode_request(decode_request(said), PLAIN)[0] == said


@some_examples
@given(responses())
def test_law_1_streamed_answer_decodes_to_the_same(response) -> None:
    assert again(response, told(response)) == response


@some_examples
@given(responses())
def test_law_1_whole_answer_decodes_to_the_same(response) -> None:
    asked = replace(ALL, stream=False)
    assert again(response, encode_response(response, asked, STANDARD)) == response


@some_examples
@given(responses(), st.data())
def test_law_2_a_stream_split_at_any_bytes_gives_the_same_events(response, data) -> None:
    stream = told(response)
    cuts = data.draw(st.sets(st.integers(0, len(stream)), max_size=20))
    pieces = [stream[a:b] for a, b in pairwise([0, *sorted(cuts), len(stream)])]
    assert hear(*pieces) == hear(stream)


@settings(max_examples=samples(5, 50))
@given(responses())
def test_law_2_a_stream_cut_anywhere_is_a_failure_or_complete_and_never_raises(response) -> None:
    stream = told(response)
    whole = hear(stream)
    for at in range(len(stream)):
        heard = hear(stream[:at])
        last = heard[-1]
        known = [event for event in heard[:-1] if event in whole]
        assert len(known) >= len(heard) - 3  # what was open is closed early, at the most
        if isinstance(last, Failed):
            assert last.fault.code in ("upstream_cut", "upstream_error")


@some_examples
@given(st.binary(max_size=200) | st.text(max_size=80).map(str.encode))
def test_nothing_that_is_sent_makes_it_raise(data) -> None:
    hear(data)
    hear(b"data: " + data + b"\n\n")
    hear(b'data: {"choices":[{"text":"a"}]}\n\n' + data)


@some_examples
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda each: (
            st.lists(each, max_size=3)
            | st.dictionaries(
                st.sampled_from(FIELDS),
                each,
            )
        ),
    )
)
def test_no_json_makes_it_raise(value) -> None:
    hear(json.dump({"choices": value}))
    hear(json.dump({"choices": [{"text": "a", "logprobs": value}], "usage": value}))
    hear(b"data: " + json.dump({"choices": [value, {"text": value}], "error": value}) + b"\n\n")
    hear(b"data: " + json.dump(value) + b"\n\n")


@some_examples
@given(responses(), st.sampled_from([ASKED, ALL]))
def test_law_3_the_plain_answer_is_what_a_reader_of_the_stream_gathers(
    response, completion
) -> None:
    *chunks, done = events(told(response, completion))
    assert done == b"[DONE]"
    plain = json.load(encode_response(response, completion, STANDARD))
    for choice in plain["choices"]:
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        lists = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
        for name in ("tokens", "token_logprobs", "text_offset"):
            gathered = [each for found in lists for each in found[name]]
            assert gathered == ((choice["logprobs"] or {}).get(name) or [])
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
    counted = chunks[-1].get("usage")
    assert counted == (plain.get("usage") if completion is ALL else None)
