"""One value anywhere is replaced by another: no request and no answer does worse than a fault."""

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Failed, Finished
from dragoman.core.fold import fold
from dragoman.core.request import Request
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD
from tests.samples import samples
from tests.wire.chat.answering import body, hear, tell
from tests.wire.chat.test_cases import ALL, REQUESTS, STREAMS

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "text", "function", "stop", "\ud83d", "\u0000"]),
    lambda inside: (
        st.lists(inside, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "id", "name", "index"]), inside, max_size=2
        )
    ),
    max_leaves=4,
)
plenty = settings(max_examples=samples(150, 3_000))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with every key in it."""
    match value:
        case dict():
            keys: Any = list(value)
        case list():
            keys = range(len(value))
        case _:
            return []
    return [(value, key) for key in keys] + [p for key in keys for p in places(value[key])]


@st.composite
def damaged(draw: st.DrawFn, values: list[Any]) -> Any:
    """One of the values, with something else in one place, or nothing."""
    value = copy.deepcopy(draw(st.sampled_from(values)))
    container, key = draw(st.sampled_from(places(value)))
    if draw(st.booleans()):
        container[key] = draw(anything)
    else:
        del container[key]
    return value


def asked(data: bytes) -> Request | Fault:
    """The request in a body, or the fault with which it is refused."""
    try:
        return CHAT.decode_request(data)
    except FaultError as refused:
        return refused.fault


@plenty
@given(damaged(REQUESTS))
def test_a_damaged_request_is_read_or_refused_and_what_is_read_can_be_said(wire: Any) -> None:
    request = asked(json.dumps(wire).encode())
    if isinstance(request, Fault):
        assert request.code == "invalid_request"
    else:
        assert json.loads(CHAT.encode_request(request, STANDARD)[0])["messages"]


@plenty
@given(damaged([case["events"] for case in STREAMS]), st.sampled_from(["\n", "\r\n"]))
def test_a_damaged_stream_ends_and_what_was_heard_can_be_said(events: Any, end: str) -> None:
    lines = (e if isinstance(e, str) else f"data: {json.dumps(e)}" for e in events)
    stream = "".join(f"{line}\n\n" for line in lines).replace("\n", end)
    heard = hear(stream.encode("utf-8", "surrogatepass"))
    assert isinstance(heard[-1], Finished | Failed)
    assert tell(heard, ALL)
    if isinstance(heard[-1], Finished):
        assert body(fold(heard), ALL)["choices"]
