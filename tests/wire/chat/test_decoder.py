"""What no corpus shows of decoding: limits, garbage, when the end comes, events as they come."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Delta, Failed, Finished, ItemAdded, ItemDone
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, Message
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.wire import json as wire_body
from dragoman.wire import sse as wire_sse
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD
from tests.cases import cases
from tests.wire.chat.answering import (
    STOP,
    TEXT,
    body,
    call,
    calls,
    chunk,
    deltas,
    failed,
    hear,
    heard,
    output,
    read,
    sse,
    tell,
    whole,
)


def test_an_event_over_the_limit_is_a_fault(monkeypatch) -> None:
    monkeypatch.setattr(wire_sse, "MAX_EVENT", 1000)
    events = hear(sse(TEXT, done=False), b"data: " + b"x" * 2000, sse(STOP))
    assert "larger than 1000 bytes" in events[-1].fault.message


def test_a_whole_answer_over_the_limit_is_a_fault(monkeypatch) -> None:
    monkeypatch.setattr(wire_body, "MAX_ANSWER", 1000)
    data = whole({"content": "x" * 2000})
    for pieces in ([data], [data[:900], data[900:]]):
        assert "more than 1000 bytes" in failed(*pieces).message


@given(st.binary(max_size=60))
def test_garbage_ends_in_one_fault_and_never_in_an_exception(garbage) -> None:
    assert isinstance(hear(garbage)[-1], Failed)


def test_the_end_comes_at_once_where_usage_is_known_and_waits_for_it_where_not() -> None:
    decoder = CHAT.decoder(Turn("R", 5, "m"))
    events = decoder.feed(sse(TEXT, chunk({}, "stop", usage={"prompt_tokens": 1})))
    assert isinstance(events[-1], Finished)
    assert decoder.feed(sse(TEXT)) == decoder.close() == []
    waiting = CHAT.decoder(Turn("R", 5, "m"))
    assert not waiting.ended
    assert not isinstance(waiting.feed(sse(TEXT, STOP))[-1], Finished)
    assert waiting.ended
    assert waiting.feed(sse(TEXT)) == []  # no text is news after the end
    assert isinstance(waiting.close()[-1], Finished)
    assert waiting.close() == []


@pytest.mark.parametrize(("word", "read_as"), cases(__file__, "reasons"))
def test_r2_28_v11_one_table_of_reasons_for_whole_and_streamed(word, read_as) -> None:
    assert heard(TEXT, chunk({}, word)).reasons == (read_as,)
    assert read(whole({"content": "Hi"}, word)).reasons == (read_as,)


@given(st.data())
def test_r2_33_a_call_whole_in_one_delta_is_the_same_as_in_pieces(data) -> None:
    text = '{"a": "b{}\\"", "c": [1, 2]}'
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    places = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    whole = calls(call(index=0, id="c", name="f", arguments=text))
    assert calls(
        call(index=0, id="c", name="f"), *(call(index=0, arguments=p) for p in pieces)
    ) == (whole)
    # Half an argument string never ends a stream; its call is incomplete.
    (item,) = output(call(index=0, id="c", name="f", arguments=text[:5]), chunk({}, "length"))
    assert (item.arguments, item.status) == (text[:5], "incomplete")


def test_v4_a_reader_knows_each_call_at_every_moment() -> None:
    events = hear(
        sse(call(index=0, id="c", name="f", arguments='{"a":1}'), chunk({}, "tool_calls"))
    )
    added, delta, done = events[1:4]
    assert isinstance(added, ItemAdded)
    assert (added.item.call_id, added.item.name, added.item.arguments) == ("c", "f", "")
    assert isinstance(delta, Delta)
    assert (delta.index, delta.kind, delta.data) == (0, "arguments", '{"a":1}')
    assert isinstance(done, ItemDone)


def test_v18_nothing_is_printed_or_logged_and_what_is_lost_is_listed(capfd, caplog) -> None:
    caplog.set_level(0)
    hear(sse(b"garbage", call(index=0, id="c", name="f", arguments="oops"), chunk({}, "x-y")))
    request = Request(model="m", items=(Message("user", "Hi"),), max_tool_calls=3)
    _, losses = CHAT.encode_request(request, STANDARD)
    assert [(loss.field, loss.action) for loss in losses] == [("max_tool_calls", "dropped")]
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_v19_ids_are_the_same_in_deltas_final_items_and_on_every_reading() -> None:
    stream = sse(call(name="f", arguments='{"a":1}'), call(name="g"), chunk({}, "tool_calls"))
    events = hear(stream)
    assert events == hear(stream)
    added = [e.item for e in events if isinstance(e, ItemAdded)]
    done = [e.item for e in events if isinstance(e, ItemDone)]
    for first, last in zip(added, done, strict=True):
        assert isinstance(first, FunctionCall)
        assert isinstance(last, FunctionCall)
        assert (first.id, first.call_id) == (last.id, last.call_id)
    plain = body(fold(events))["choices"][0]["message"]["tool_calls"]
    said = [d["tool_calls"][0] for d in deltas(tell(events)) if "tool_calls" in d]
    assert [c["id"] for c in plain] == [c["id"] for c in said if "id" in c]


def test_more_choices_at_once_than_there_may_be_are_refused() -> None:
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}
    assert "sent 129 choices" in failed(wire_body.dump({"choices": [choice] * 129})).message
