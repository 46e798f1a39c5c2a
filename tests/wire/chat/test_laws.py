"""The laws that hold on this wire for all canonical values, and for any split of the bytes."""

import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import Event, Failed, Finished
from dragoman.core.fold import fold
from dragoman.core.lifecycle import check
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Dialect
from tests.samples import samples
from tests.wire.chat import answering
from tests.wire.chat.answering import ASKED, body, gathered, tell, told
from tests.wire.chat.strategies import requests, responses
from tests.wire.chat.test_cases import ALL, REQUESTS, STREAMS, stream
from tests.wire.damage import damaged

some_examples = settings(max_examples=samples(15, 400))
PLAIN = Dialect(ask_usage=False)
plenty = settings(max_examples=samples(25, 3_000))


def hear(response: Response, *pieces: bytes) -> list[Event]:
    """What is heard of an answer under the id it had."""
    decoder = CHAT.decoder(Turn(response.id, response.created_at, "m", think=None))
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    check(events)
    return events


def heard(response: Response, *pieces: bytes) -> Response:
    again = fold(hear(response, *pieces))
    extra = {wire: fields for wire, fields in (again.extra or {}).items() if wire != "upstream"}
    return replace(again, extra=extra or None)


@some_examples
@given(requests())
def test_law_1_encoded_request_decodes_to_the_same(request) -> None:
    said, losses = CHAT.encode_request(request, PLAIN)
    assert CHAT.decode_request(said) == request
    assert losses == ()


@some_examples
@given(requests())
def test_p31_the_same_request_is_the_same_bytes(request) -> None:
    said = CHAT.encode_request(request, STANDARD)[0]
    assert CHAT.encode_request(request, STANDARD)[0] == said
    again = CHAT.decode_request(said)
    assert CHAT.encode_request(again, STANDARD)[0] == said


@some_examples
@given(responses())
def test_law_1_streamed_answer_decodes_to_the_same(response) -> None:
    assert heard(response, told(response, ALL)) == response


@some_examples
@given(responses())
def test_law_1_whole_answer_decodes_to_the_same(response) -> None:
    assert heard(response, CHAT.encode_response(response, ALL, STANDARD)) == response


@some_examples
@given(responses(), st.data())
def test_law_2_a_stream_split_at_any_bytes_gives_the_same_events(response, data) -> None:
    stream = told(response, ALL)
    cuts = data.draw(st.sets(st.integers(0, len(stream)), max_size=20))
    pieces = [stream[a:b] for a, b in pairwise([0, *sorted(cuts), len(stream)])]
    assert hear(response, *pieces) == hear(response, stream)


@some_examples
@given(responses(), st.sampled_from([ASKED, ALL]))
def test_law_3_the_plain_answer_is_what_a_reader_of_the_stream_gathers(response, request) -> None:
    streamed, plain = gathered(told(response, request)), body(response, request)
    for choice in streamed["choices"]:
        choice["message"].setdefault("annotations", [])
    if request is ASKED:
        plain.pop("usage", None)
    assert streamed == plain | {"object": "chat.completion.chunk"}


# ---- one value anywhere is replaced or removed -------------------------------------------------


@plenty
@given(st.sampled_from(REQUESTS).flatmap(damaged))
def test_damaged_request_is_decoded_or_refused(wire) -> None:
    try:
        request = CHAT.decode_request(json.dumps(wire).encode())
    except FaultError as refused:
        code = refused.fault.code
    else:
        code = "invalid_request"
        assert json.loads(CHAT.encode_request(request, STANDARD)[0])["messages"]
    assert code == "invalid_request"


@plenty
@given(st.sampled_from([case["events"] for case in STREAMS]).flatmap(damaged))
def test_damaged_stream_ends_and_can_be_encoded_again(events) -> None:
    decoded = answering.hear(stream(events))
    assert isinstance(decoded[-1], Finished | Failed)
    assert tell(decoded, ALL)
    if isinstance(decoded[-1], Finished):
        assert body(fold(decoded), ALL)["choices"]
