"""Streams are heard however servers send them, and end as what they are."""

import json
from typing import Any

import pytest

from dragoman.core.event import Finished, Started
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, Message, Reasoning
from dragoman.core.response import Usage
from dragoman.core.turn import Turn
from dragoman.wire.chat import CHAT
from tests.wire.chat.answering import (
    CALL,
    DONE,
    STOP,
    TEXT,
    UPSTREAM,
    WITH_USAGE,
    body,
    call,
    calls,
    chunk,
    chunks,
    deltas,
    failed,
    finished,
    hear,
    heard,
    kinds,
    sse,
    tell,
)

# ---- a stream ----------------------------------------------------------------------------


def test_r1_10_a_stream_opens_with_one_started_and_an_error_at_once_opens_nothing() -> None:
    assert kinds(hear(sse(TEXT, STOP))).count("Started") == 1
    assert isinstance(hear(sse(TEXT, STOP))[0], Started)
    assert kinds(hear(sse({"error": {"message": "No."}}))) == ["Failed"]


def test_r1_12_every_part_of_a_chunk_is_read_whichever_come_together() -> None:
    full = chunk(
        {
            "role": "assistant",
            "reasoning_content": "Hm",
            "content": "Hi",
            "refusal": "No",
            "tool_calls": [{"index": 0, **CALL}, "x", None],
        },
        "tool_calls",
        usage={"prompt_tokens": 1, "completion_tokens": 2},
    )
    second = {"index": 1, "delta": {"content": "Yo"}, "finish_reason": "stop"}
    full["choices"] += [None, "x", second]
    response = heard(full)
    assert [type(item) for item in response.choice(0)] == [Reasoning, Message, FunctionCall]
    assert (response.text, response.refusal) == ("Hi", "No")
    (other,) = response.choice(1)
    assert isinstance(other, Message)
    assert (other.text, response.reasons) == ("Yo", ("tool_calls", "stop"))
    assert response.usage == Usage(1, 2)


@pytest.mark.parametrize("late", [True, False])
def test_r1_13_one_order_of_events_whatever_the_order_of_chunks(late: bool) -> None:
    usage = {**UPSTREAM, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    events = hear(
        sse(TEXT, STOP, done=False) + (DONE + sse(usage, done=False) if late else sse(usage))
    )
    assert (kinds(events)[0], kinds(events)[-1]) == ("Started", "Finished")
    assert kinds(events).count("Finished") == 1
    assert finished(events).usage == Usage(1, 2)
    assert finished(events).reasons == ("stop",)


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


def test_r1_w2_w9_cached_tokens_are_read_and_repeated_usage_is_not_added_up() -> None:
    def counted(n: int) -> Any:
        details = {"cached_tokens": 4}
        usage = {"prompt_tokens": 5, "completion_tokens": n, "prompt_tokens_details": details}
        return chunk({"content": "x"}, usage=usage)

    response = heard(counted(1), counted(2), {**STOP, "usage": None})
    assert response.usage == Usage(5, 2, cached_tokens=4)


def test_p29_usage_that_was_null_first_is_read_last_also_without_choices() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    last = {**UPSTREAM, "choices": [], "usage": usage}
    events = hear(sse({**TEXT, "usage": None}, {**STOP, "usage": None}, last))
    assert chunks(tell(events, WITH_USAGE))[-2]["usage"] == usage


def test_r1_w4_a_legacy_call_in_a_stream_is_a_call_like_any_other() -> None:
    pieces = [{"name": "f"}, {"arguments": '{"a"'}, {"arguments": ":1}"}]
    response = heard(*(chunk({"function_call": p}) for p in pieces), chunk({}, "function_call"))
    assert [(c.call_id, c.name) for c in response.calls] == [("call_R_0", "f")]
    assert response.calls[0] == FunctionCall(
        "call_R_0", "f", '{"a":1}', id="fc_R_0", status="completed"
    )
    assert response.reasons == ("tool_calls",)


def test_r1_w5_calls_without_an_index_remain_several() -> None:
    first, second = (
        call(id="a", name="f", arguments='{"x":1}'),
        call(id="b", name="f", arguments="{"),
    )
    assert calls(first, second, call(arguments='"y":2}')) == [
        ("a", "f", '{"x":1}'),
        ("b", "f", '{"y":2}'),
    ]


def test_p1_a_null_or_missing_index_gets_a_stable_place() -> None:
    stream = [call(index=None, id="a", name="f", arguments="{}"), call(id="b", name="g")]
    assert [c[0] for c in calls(*stream)] == ["a", "b"]
    said = [d["tool_calls"][0] for d in deltas(tell(hear(sse(*stream)))) if "tool_calls" in d]
    assert all("index" in fragment for fragment in said)
    assert sorted({fragment["index"] for fragment in said}) == [0, 1]


def test_p2_the_same_index_for_all_calls_is_repaired_by_their_ids_and_starts() -> None:
    by_id = [call(index=0, id=n, name="f", arguments=f'{{"n":"{n}"}}') for n in "abc"]
    assert [c[0] for c in calls(*by_id)] == ["a", "b", "c"]
    by_start = [call(index=0, name="f", arguments=f'{{"n":{n}}}') for n in range(3)]
    assert [c[2] for c in calls(*by_start)] == ['{"n":0}', '{"n":1}', '{"n":2}']


def test_p3_an_orphan_fragment_belongs_to_the_open_call() -> None:
    stream = [call(index=0, id="a", name="f", arguments='{"x"'), call(index=5, arguments=":1}")]
    assert calls(*stream) == [("a", "f", '{"x":1}')]


def test_p4_interleaved_fragments_reach_their_own_calls() -> None:
    opened = [call(index=n, id=f"c{n}", name="f", arguments="") for n in (0, 1)]
    rest = [call(index=n, arguments=a) for a in ('{"p":', '"A"}') for n in (0, 1)]
    assert calls(*opened, *rest) == [("c0", "f", '{"p":"A"}'), ("c1", "f", '{"p":"A"}')]
    said = deltas(tell(hear(sse(*opened, *rest, chunk({}, "tool_calls")))))
    order = [d["tool_calls"][0]["index"] for d in said if "tool_calls" in d]
    assert order == [0, 0, 0, 1, 1, 1]  # said on without interleaving


def test_p7_parallel_calls_of_one_delta_are_all_kept() -> None:
    many = [
        {"index": n, "id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(5)
    ]
    response = heard(chunk({"tool_calls": many}), chunk({}, "tool_calls"))
    assert [call.call_id for call in response.calls] == [f"c{n}" for n in range(5)]


def test_r1_w6_an_error_object_in_the_stream_ends_it_as_failed() -> None:
    error = {"message": "Out of memory", "type": "server_error", "code": "oom", "param": "n"}
    events = hear(sse(TEXT, {"error": error}, STOP))
    fault = failed(sse(TEXT, {"error": error}, STOP))
    assert (fault.message, fault.upstream_type, fault.upstream_code, fault.param) == (
        "Out of memory",
        "server_error",
        "oom",
        "n",
    )
    assert fold(events).text == "Hi"
    assert kinds(events).count("Failed") == 1
    said = chunks(tell(events))[-1]["error"]
    assert (said["message"], said["code"]) == ("Out of memory", "oom")


def test_p24_an_error_glued_to_half_an_event_is_not_swallowed() -> None:
    half = (
        sse(TEXT, done=False)
        + b'data: {"choices": [{"delta": {"con{"error": {"message": "Gone"}}\n\n'
    )
    assert failed(half).message == "Gone"


def test_r1_w8_two_data_lines_with_no_blank_line_between_are_two_events() -> None:
    two = b"data: %s\ndata: %s\n\n" % (json.dumps(TEXT).encode(), json.dumps(STOP).encode())
    assert heard(two.removeprefix(b"data: ").removesuffix(b"\n\n")).text == "Hi"
    assert finished(hear(two)).reasons == ("stop",)
    spread = json.dumps(TEXT, indent=1).replace("\n", "\ndata: ").encode()
    assert heard(spread, STOP).text == "Hi"


def test_r1_w10_every_choice_keeps_its_own_items_text_and_reason() -> None:
    stream = [
        chunk({"content": "a"}, index=1),
        chunk({"content": "b"}, index=0),
        call(index=0, id="c", name="f", arguments="{}"),
        chunk({"content": "c"}, "length", index=1),
        chunk({}, "tool_calls"),
    ]
    response = heard(*stream)
    assert [type(item) for item in response.choice(0)] == [Message, FunctionCall]
    (second,) = response.choice(1)
    assert isinstance(second, Message)
    assert (response.text, second.text) == ("b", "ac")
    assert response.reasons == ("tool_calls", "length")
    assert [c["finish_reason"] for c in body(response)["choices"]] == ["tool_calls", "length"]


def test_r1_w11_a_stream_that_breaks_off_is_failed_and_keeps_what_came() -> None:
    events = hear(sse(TEXT, done=False))
    assert fold(events).text == "Hi"
    assert failed(sse(TEXT, done=False)).code == "upstream_cut"
    one_of_two = sse(chunk({"content": "a"}, index=1), TEXT, STOP, done=False)
    assert failed(one_of_two).code == "upstream_cut"


def test_an_end_with_blanks_around_it_is_the_end() -> None:
    assert finished(hear(sse(TEXT, b" [DONE] ", done=False))).reasons == ("stop",)
