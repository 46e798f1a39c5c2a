"""Streams are decoded however servers send them, and their content keeps its meaning."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Delta, Finished, ItemAdded, ItemDone
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, Message, Reasoning, Text, Token
from dragoman.core.response import Usage
from dragoman.core.turn import Turn
from dragoman.wire.chat import CHAT
from tests.wire.chat.answering import (
    CALL,
    DONE,
    STOP,
    TEXT,
    UPSTREAM,
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
    output,
    read,
    sse,
    tell,
    whole,
)

# ---- a stream ----------------------------------------------------------------------------


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


def test_an_end_with_blanks_around_it_is_the_end() -> None:
    assert finished(hear(sse(TEXT, b" [DONE] ", done=False))).reasons == ("stop",)


# ---- R2 and V ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "read_as"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("content_filter", "content_filter"),
        ("function_call", "tool_calls"),
        ("tool-calls", "tool_calls"),
        ("tool_use", "tool_calls"),
        ("Content-Filter", "content_filter"),
        ("SAFETY", "content_filter"),
        ("max_tokens", "length"),
        ("max_output_tokens", "length"),
        ("model_length", "length"),
        ("eos", "stop"),
        ("end_turn", "stop"),
        (7, "stop"),
        (["x"], "stop"),
    ],
)
def test_r2_28_v11_one_table_of_reasons_for_whole_and_streamed(word: Any, read_as: str) -> None:
    assert heard(TEXT, chunk({}, word)).reasons == (read_as,)
    assert read(whole({"content": "Hi"}, word)).reasons == (read_as,)


def test_r2_28_none_yet_is_none_yet() -> None:
    for none in (None, ""):
        assert failed(sse(TEXT, chunk({}, none), done=False)).code == "upstream_cut"


@pytest.mark.parametrize("none", [None, [], ()])
def test_r2_29_a_null_and_an_empty_list_are_no_calls(none: Any) -> None:
    assert heard(chunk({"content": "Hi", "tool_calls": none}), STOP).calls == ()
    assert read(whole({"content": "Hi", "tool_calls": none})).calls == ()


WEIGHED = {
    "token": "H",
    "logprob": -0.5,
    "bytes": [72],
    "top_logprobs": [
        {"token": "J", "logprob": -1, "bytes": [74]},
        {"token": "J", "logprob": -2, "bytes": None},
    ],
}
H = Token("H", -0.5, b"H", (Token("J", -1, b"J"), Token("J", -2)))


def test_r2_30_v12_tokens_keep_text_bytes_value_and_alternatives_doubles_included() -> None:
    logprobs = {"logprobs": {"content": [WEIGHED, WEIGHED], "refusal": None}}
    streamed = heard(chunk({"content": "HH"}, choice=logprobs), STOP)
    plain = read(whole({"content": "HH"}, choice=logprobs))
    for response in (streamed, plain):
        (item,) = response.output
        assert isinstance(item, Message)
        assert item.parts == (Text("HH", tokens=(H, H)),)
        assert body(response)["choices"][0]["logprobs"] == logprobs["logprobs"]


def test_tokens_of_half_a_character_stay_with_the_text() -> None:
    half = {"token": "\\xf0", "logprob": -1, "bytes": [240], "top_logprobs": []}
    first = chunk({"content": ""}, choice={"logprobs": {"content": [half]}})
    response = heard(first, chunk({"content": "😀"}), STOP)
    (item,) = response.output
    assert isinstance(item, Message)
    assert item.parts == (Text("😀", tokens=(Token("\\xf0", -1, b"\xf0"),)),)


def test_r2_32_text_before_calls_and_nothing_for_nothing() -> None:
    both = chunk({"tool_calls": [{"index": 0, **CALL}], "content": "Hi"})
    events = hear(sse(chunk({"content": ""}), both, chunk({}), chunk({}, "tool_calls")))
    added = [type(e.item) for e in events if isinstance(e, ItemAdded)]
    assert added == [Message, FunctionCall]
    assert [e.data for e in events if isinstance(e, Delta)] == ["Hi", '{"a": 1}']


@given(st.data())
def test_r2_33_a_call_whole_in_one_delta_is_the_same_as_in_pieces(data: st.DataObject) -> None:
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
    assert isinstance(item, FunctionCall)
    assert (item.arguments, item.status) == (text[:5], "incomplete")


def test_r2_34_names_and_arguments_in_any_order_lose_nothing() -> None:
    assert calls(
        call(index=0, id="c", arguments='{"a"'), call(index=0, name="f", arguments=":1}")
    ) == [("c", "f", '{"a":1}')]
    together = [call(index=n, id=f"c{n}", name="f", arguments='{"a') for n in (0, 1)]
    rest = [call(index=n, arguments='":1}') for n in (0, 1)]
    assert [c[2] for c in calls(*together, *rest)] == ['{"a":1}'] * 2
    assert calls(call(index=0, id="c", name="f")) == [("c", "f", "{}")]


def test_r2_35_v2_the_last_stated_reason_counts_and_usage_may_follow_it() -> None:
    usage = {**UPSTREAM, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    response = heard(TEXT, chunk({}, "length"), chunk({}, None), chunk({}, ""), usage)
    assert (response.reasons, response.usage) == (("length",), Usage(1, 2))
    assert heard(TEXT, chunk({}, "length"), chunk({}, "stop")).reasons == ("stop",)


def test_v1_a_chunk_with_no_choices_disturbs_nothing() -> None:
    empty = {**UPSTREAM, "choices": []}
    assert heard(empty, TEXT, empty, STOP, empty).output == heard(TEXT, STOP).output


def test_v3_text_in_the_finishing_chunk_is_delivered() -> None:
    assert heard(TEXT, chunk({"content": " you"}, "stop")).text == "Hi you"


def test_v4_a_reader_knows_each_call_at_every_moment() -> None:
    events = hear(
        sse(call(index=0, id="c", name="f", arguments='{"a":1}'), chunk({}, "tool_calls"))
    )
    added, delta, done = events[1:4]
    assert isinstance(added, ItemAdded)
    assert isinstance(added.item, FunctionCall)
    assert (added.item.call_id, added.item.name, added.item.arguments) == ("c", "f", "")
    assert isinstance(delta, Delta)
    assert (delta.index, delta.kind, delta.data) == (0, "arguments", '{"a":1}')
    assert isinstance(done, ItemDone)


def test_v10_text_beside_calls_is_kept_in_the_order_in_which_both_came() -> None:
    stream = [
        chunk({"content": "a"}),
        call(index=0, id="c", name="f", arguments='{"x":1}'),
        chunk({"content": "b"}),
        chunk({}, "tool_calls"),
    ]
    items = output(*stream)
    assert [type(item) for item in items] == [Message, FunctionCall, Message]
    said = read(whole({"content": "a", "tool_calls": [CALL]})).output
    assert [type(item) for item in said] == [Message, FunctionCall]


def test_v11_a_filter_and_a_refusal_keep_their_meaning_whole_and_streamed() -> None:
    for response in (
        heard(chunk({"refusal": "No."}), chunk({}, "content_filter")),
        read(whole({"content": None, "refusal": "No."}, "content_filter")),
    ):
        assert (response.refusal, response.reasons, response.status) == (
            "No.",
            ("content_filter",),
            "incomplete",
        )
        choice = body(response)["choices"][0]
        assert (choice["message"]["refusal"], choice["finish_reason"]) == ("No.", "content_filter")


def test_v18_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    hear(sse(b"garbage", call(index=0, id="c", name="f", arguments="oops"), chunk({}, "x-y")))
    assert capfd.readouterr() == ("", "")


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


def test_p5_think_tags_become_reasoning_where_the_profile_says_so_in_any_split() -> None:
    text = "\n<think>\nHm, <b>.\n</think>\n\nYes </think>"
    for size in (1, 3, len(text)):
        pieces = [chunk({"content": text[n : n + size]}) for n in range(0, len(text), size)]
        forgotten = heard(*pieces, STOP, think="reasoning")
        assert (forgotten.reasoning, forgotten.text) == ("Hm, <b>.", "Yes </think>")
        assert body(forgotten)["choices"][0]["message"]["reasoning_content"] == "Hm, <b>."
        inline = heard(*pieces, STOP)
        assert inline.output[0].extra == {
            "inline": {"open": "\n<think>\n", "close": "\n</think>\n\n"}
        }
        assert body(inline)["choices"][0]["message"]["content"] == text
        alone = heard(*pieces, STOP, think=None)
        assert (alone.reasoning, alone.text) == ("", text)
    assert fold(hear(whole({"content": text}))).output == inline.output


def test_p30_a_reported_zero_is_zero_and_nothing_reported_is_absent() -> None:
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert body(heard(TEXT, {**STOP, "usage": zero}))["usage"] == zero
    half = heard(TEXT, {**STOP, "usage": {"completion_tokens": 3}})
    assert half.usage == Usage(output_tokens=3)
    assert body(half)["usage"] == {"completion_tokens": 3}
    assert heard(TEXT, STOP).usage is None
