"""One value anywhere is replaced or removed: no request and no answer does worse than a fault."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.error import FaultError
from dragoman.core.event import Failed, Finished
from dragoman.core.fold import fold
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD
from tests.samples import samples
from tests.wire.chat.answering import body, hear, tell
from tests.wire.chat.test_cases import ALL, REQUESTS, STREAMS, stream
from tests.wire.damage import damaged

plenty = settings(max_examples=samples(100, 3_000))


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
    decoded = hear(stream(events))
    assert isinstance(decoded[-1], Finished | Failed)
    assert tell(decoded, ALL)
    if isinstance(decoded[-1], Finished):
        assert body(fold(decoded), ALL)["choices"]
