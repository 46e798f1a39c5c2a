"""The laws that hold on this wire for all canonical values, and for any split of the bytes."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.event import Event
from dragoman.core.fold import fold, unfold
from dragoman.core.lifecycle import check
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from dragoman.wire.messages import MESSAGES
from dragoman.wire.protocol import STANDARD
from tests.samples import samples
from tests.wire.messages.gathering import ASKED, gathered
from tests.wire.messages.schema import check_answer, check_request
from tests.wire.messages.strategies import requests, responses

some_examples = settings(max_examples=samples(15, 400))


def streamed(response: Response) -> bytes:
    return MESSAGES.encoder(ASKED, STANDARD).feed(list(unfold(response)))


def decoded(response: Response, *pieces: bytes) -> list[Event]:
    """The events of an answer, under the id it had."""
    decoder = MESSAGES.decoder(Turn(response.id, response.created_at, "m", think=None))
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    check(events)
    return events


def again(response: Response, *pieces: bytes) -> Response:
    """The answer that its bytes are, without what its server says of itself."""
    found = fold(decoded(response, *pieces))
    extra = {wire: fields for wire, fields in (found.extra or {}).items() if wire != "upstream"}
    return replace(found, extra=extra or None)


@some_examples
@given(requests())
def test_law_1_encoded_request_decodes_to_the_same(request) -> None:
    body, losses = MESSAGES.encode_request(request, STANDARD)
    assert MESSAGES.decode_request(body) == request
    assert losses == ()
    check_request(json.loads(body))


@some_examples
@given(requests())
def test_law_7_the_same_request_is_the_same_bytes(request) -> None:
    body = MESSAGES.encode_request(request, STANDARD)[0]
    decoded = MESSAGES.decode_request(body)
    assert MESSAGES.encode_request(decoded, STANDARD)[0] == body


@some_examples
@given(responses())
def test_law_1_streamed_answer_decodes_to_the_same(response) -> None:
    assert again(response, streamed(response)) == response


@some_examples
@given(responses())
def test_law_1_whole_answer_decodes_to_the_same(response) -> None:
    body = MESSAGES.encode_response(response, ASKED, STANDARD)
    assert again(response, body) == response


@some_examples
@given(responses(), st.data())
def test_law_2_a_stream_split_at_any_bytes_gives_the_same_events(response, data) -> None:
    stream = streamed(response)
    cuts = data.draw(st.sets(st.integers(0, len(stream)), max_size=20))
    pieces = [stream[a:b] for a, b in pairwise([0, *sorted(cuts), len(stream)])]
    assert decoded(response, *pieces) == decoded(response, stream)


@some_examples
@given(responses())
def test_law_3_whole_answer_is_what_a_reader_of_the_stream_gathers(response) -> None:
    whole: dict[str, Any] = json.loads(MESSAGES.encode_response(response, ASKED, STANDARD))
    check_answer(whole)
    assert gathered(streamed(response)) == whole


@some_examples
@given(responses(), st.data())
def test_law_4_a_stream_cut_anywhere_ends_once(response, data) -> None:
    stream = streamed(response)
    events = decoded(response, stream[: data.draw(st.integers(0, len(stream)))])
    assert events
