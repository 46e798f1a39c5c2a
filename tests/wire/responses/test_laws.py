"""Laws 1, 2 and 4 on this wire: what is said is heard again, however it is cut.

The answers are drawn; the streams that break off are those of the scenes.
"""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import fold, unfold
from dragoman.core.item import Message, Reasoning
from dragoman.core.lifecycle import check
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from dragoman.wire.protocol import STANDARD, Dialect
from dragoman.wire.responses import RESPONSES
from tests import strategies as values
from tests.samples import samples
from tests.wire.damage import damaged
from tests.wire.responses.narrow import responses
from tests.wire.responses.order_checker import check_order, parse
from tests.wire.responses.scenes import FAILED, SCENES, play

ASKED = Request(model="m")
dialects = st.sampled_from([STANDARD, Dialect(reasoning_events="reasoning")])


def say(events: list[Event], dialect: Dialect = STANDARD) -> list[bytes]:
    encoder = RESPONSES.encoder(ASKED, dialect)
    return [encoder.feed((event,)) for event in events]


def hear(pieces: list[bytes], id: str = "0123abcd", created_at: int = 1_700_000_000) -> list[Event]:
    """What is heard, without what the other side said of itself."""
    decoder = RESPONSES.decoder(Turn(id, created_at, "?"))
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    return [_ours(event) for event in events]


def _ours(event: Event) -> Event:
    if isinstance(event, Started) and event.extra:
        extra = {wire: said for wire, said in event.extra.items() if wire != "upstream"}
        return replace(event, extra=extra or None)
    return event


@given(responses(), dialects)
def test_law_1_streamed_answer_decodes_to_the_same_events(response, dialect) -> None:
    events = list(unfold(response))
    assert hear(say(events, dialect), response.id, response.created_at) == events


@given(responses())
def test_law_1_whole_answer_decodes_to_the_same(response) -> None:
    whole = RESPONSES.encode_response(response, ASKED, STANDARD)
    events = hear([whole], response.id, response.created_at)
    check(events)
    assert fold(events) == response


@given(responses(), st.data())
def test_law_2_stream_split_at_any_bytes_decodes_to_the_same_events(response, data) -> None:
    stream = b"".join(say(list(unfold(response))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bounds = zip([0, *cuts], [*cuts, len(stream)], strict=True)
    pieces = [stream[start:end] for start, end in bounds]
    assert hear(pieces) == hear([stream])


@given(values.responses(), dialects)
def test_law_3_any_answer_is_encoded_in_order_and_like_the_whole(response, dialect) -> None:
    assume(not _open_side_by_side(response))
    stream = b"".join(say(list(unfold(response)), dialect))
    if dialect is STANDARD:
        told, _ = parse(stream)
        check_order(told)
        whole = json.loads(RESPONSES.encode_response(response, ASKED, STANDARD))
        assert response.status == "failed" or told[-1]["response"] == whole
    check(hear([stream]))


def _open_side_by_side(response: Response) -> bool:
    """Whether several parts of one item are open at once, which no assembler makes."""
    item = response.output[-1] if response.output else None
    if response.status != "failed" or getattr(item, "status", None) != "in_progress":
        return False
    return (isinstance(item, Message) and len(item.parts) > 1) or isinstance(item, Reasoning)


@pytest.mark.parametrize("scene", SCENES)
def test_every_scene_is_decoded_as_it_was_played_in_any_pieces_and_cut(scene) -> None:
    events = play(SCENES[scene])
    pieces = say(events)
    stream, decoded = b"".join(pieces), hear(pieces)
    assert hear([stream[n : n + 1] for n in range(len(stream))]) == decoded
    assert hear(say(decoded)) == decoded
    whole = fold(decoded)
    if scene not in FAILED:
        # Interleaved calls are emitted one after the other.
        assert whole == fold(events) if scene == "parallel_calls" else decoded == events
    for end in range(0, len(stream), samples(97, 1)):
        cut = hear([stream[:end]])
        check(cut)
        assert isinstance(cut[-1], Failed) or fold(cut) == whole


@given(st.sampled_from(sorted(SCENES)), st.data())
def test_stream_with_missing_and_damaged_events_is_decoded_and_encoded_in_order(
    scene, data
) -> None:
    told, _ = parse(b"".join(say(play(SCENES[scene]))))
    kept = data.draw(st.lists(st.sampled_from(told), max_size=20))
    events = hear([_frame(data.draw(st.just(event) | damaged(event))) for event in kept])
    check(events)
    assert isinstance(events[-1], Failed | Finished)
    said = b"".join(say(events))
    if b'"error"' not in said:
        check_order(parse(said)[0])


def _frame(event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"
