"""Whole answers are heard whatever their shape, and what is no answer is a fault that says why."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Failed
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, Message, Reasoning, Refusal, Text, Thought
from dragoman.core.response import Usage
from dragoman.wire import json as wire_body
from dragoman.wire import sse as wire_sse
from tests.wire.chat.answering import (
    CALL,
    STOP,
    TEXT,
    body,
    chunk,
    failed,
    hear,
    kinds,
    output,
    read,
    sse,
    whole,
)

# ---- what is no answer -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bytes_", "says"),
    [
        (b"", "no answer in it"),
        (b" \r\n\n", "no answer in it"),
        (b"<html><h1>502</h1></html>", "web page"),
        (b"upstream exploded", "upstream exploded"),
        (b"\xff\xfe\x00garbage", "garbage"),
        (b"[1, 2]", "an array, and not with an object"),
        (b"{}", "no choices"),
        (b'{"choices": null}', "no choices"),
        (b'{"choices": "x"}', "no choices"),
        (b'{"choices": []}', "no choices"),
        (b'{"choices": [null]}', "a choice that is null"),
        (b'{"choices": [{"index": 0}]}', "a choice without a message"),
        (b'{"choices": [{"message": null}]}', "a choice without a message"),
        (b'{"choices": [}', "not valid JSON"),
        (b"data: x\n\ndata: 7\n\n", "not JSON objects"),
        (b"data: [DONE]\n\n", "no answer in it"),
    ],
)
def test_r1_4_what_is_no_answer_is_a_fault_that_says_which(bytes_: bytes, says: str) -> None:
    fault = failed(bytes_)
    assert (fault.code, fault.blame) == ("upstream_error", "upstream")
    assert says in fault.message
    assert "<" not in fault.message


def test_r2_31_a_choice_without_a_message_is_a_fault_and_null_content_is_no_text() -> None:
    assert "without a message" in failed(b'{"choices": [{"finish_reason": "stop"}]}').message
    (item,) = read(whole({"content": None, "tool_calls": [CALL]})).output
    assert isinstance(item, FunctionCall)


@pytest.mark.parametrize(
    "cut", [b"d", b"da", b"data", b": ping", b": ping\n\n", b'{"choices": [{"in']
)
def test_r1_w11_a_beginning_that_breaks_off_is_a_cut(cut: bytes) -> None:
    assert failed(cut).code == "upstream_cut"


def test_an_event_over_the_limit_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_sse, "MAX_EVENT", 1000)
    events = hear(sse(TEXT, done=False), b"data: " + b"x" * 2000, sse(STOP))
    assert isinstance(events[-1], Failed)
    assert "larger than 1000 bytes" in events[-1].fault.message


def test_a_whole_answer_over_the_limit_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_body, "MAX_ANSWER", 1000)
    data = whole({"content": "x" * 2000})
    for pieces in ([data], [data[:900], data[900:]]):
        assert "more than 1000 bytes" in failed(*pieces).message


@given(st.binary(max_size=60))
def test_garbage_ends_in_one_fault_and_never_in_an_exception(garbage: bytes) -> None:
    assert isinstance(hear(garbage)[-1], Failed)


# ---- a whole answer ----------------------------------------------------------------------


def test_r1_5_a_whole_answer_is_text_calls_reason_usage_and_what_we_do_not_know() -> None:
    message = {"role": "assistant", "content": "Hi", "tool_calls": [CALL], "vendor": {"x": 1}}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    data = whole(message, "tool_calls", choice={"stop_reason": 7}, usage=usage, tier="a")
    response = read(data)
    assert response.output == (
        Message(
            "assistant", (Text("Hi"),), "msg_R_0", "completed", extra={"chat": {"vendor": {"x": 1}}}
        ),
        FunctionCall("c1", "f", '{"a": 1}', id="fc_R_1", status="completed"),
    )
    assert (response.model, response.reasons, response.usage) == (
        "big",
        ("tool_calls",),
        Usage(1, 2, 3),
    )
    assert response.extra == {
        "upstream": {"id": "up-1", "created": 7},
        "chat": {"tier": "a", "choices": [{"index": 0, "stop_reason": 7}]},
    }
    said = body(response)
    assert said["choices"][0]["stop_reason"] == 7
    assert said["choices"][0]["message"]["vendor"] == {"x": 1}
    assert (said["tier"], said["usage"]) == ("a", usage)
    bare = read(whole({"content": None, "vendor": 1, "tool_calls": [CALL]}))
    assert [type(item) for item in bare.output] == [Message, FunctionCall]
    assert body(bare)["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x", "x"),
        ([{"type": "text", "text": "a"}, "b", {"text": "c"}, None], "abc"),
        ([{"n": "é"}], '{"n":"é"}'),
        (7, "7"),
        (True, "true"),
        ({"text": "x"}, "x"),
    ],
)
def test_r1_6_content_of_any_shape_reads_as_one_text(content: Any, text: str) -> None:
    (item,) = read(whole({"content": content})).output
    assert item == Message("assistant", (Text(text),), "msg_R_0", "completed")
    assert "None" not in read(whole({"content": [None, "a"]})).text


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        (None, "{}"),
        ("", "{}"),
        ({"b": 1, "a": "é"}, '{"b":1,"a":"é"}'),
        ('{ "b":1 }', '{ "b":1 }'),
        ("not JSON", "not JSON"),
        ([1], "[1]"),
        (7, "7"),
    ],
)
def test_r1_7_arguments_of_any_shape_stay_readable(given: Any, read_as: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
    (item,) = read(whole({"tool_calls": [call]})).output
    assert isinstance(item, FunctionCall)
    assert item.arguments == read_as
    (streamed,) = output(chunk({"tool_calls": [{"index": 0, **call}]}), chunk({}, "tool_calls"))
    assert streamed == item


def test_r1_8_entries_that_are_no_calls_ids_that_are_missing_and_the_legacy_form() -> None:
    bare = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    odd = [None, "x", 7, [], {}, {"type": "function"}, {"function": None}, bare, {**bare, "id": ""}]
    response = read(whole({"tool_calls": odd}))
    assert [(c.call_id, c.name) for c in response.calls] == [("call_R_0", "f"), ("call_R_1", "f")]
    legacy = {"name": "g", "arguments": "{}"}
    assert [c.name for c in read(whole({"function_call": legacy})).calls] == ["g"]
    assert [c.name for c in read(whole({"tool_calls": "x", "function_call": legacy})).calls] == [
        "g"
    ]
    assert read(whole({"content": "x", "tool_calls": [], "function_call": legacy})).calls == ()
    nameless = [{"id": "c", "function": {"arguments": '{"a":1}'}}]
    assert "never got a name" in failed(whole({"tool_calls": nameless})).message


def test_whole_calls_are_told_apart_by_their_place() -> None:
    same = {"index": 0, "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    calls = read(whole({"tool_calls": [same, same, {**same, "id": "x"}]})).calls
    assert [call.call_id for call in calls] == ["call_R_0", "call_R_1", "x"]


def test_r1_w3_whole_reasoning_and_refusals_have_kinds_of_their_own() -> None:
    details = [{"type": "reasoning.text", "text": "Hm", "signature": "s", "index": 0}]
    message = {"content": None, "refusal": "No.", "reasoning": "Hm", "reasoning_details": details}
    assert read(whole(message)).output == (
        Reasoning(
            (Thought("Hm"),),
            id="rs_R_0",
            status="completed",
            extra={"chat": {"reasoning_details": details}},
        ),
        Message("assistant", (Refusal("No."),), "msg_R_1", "completed"),
    )


def test_r1_w7_one_json_body_for_a_stream_gives_the_events_of_a_stream() -> None:
    data = whole({"role": "assistant", "content": "Hi", "tool_calls": [CALL]}, "tool_calls")
    events = hear(*(data[n : n + 1] for n in range(len(data))))
    assert kinds(events) == [
        "Started",
        "ItemAdded",
        "PartAdded",
        "Delta",
        "PartDone",
        "ItemDone",
        "ItemAdded",
        "Delta",
        "ItemDone",
        "Finished",
    ]
    assert events == hear(b"\xef\xbb\xbf\n " + data)


@pytest.mark.parametrize(
    ("data", "message", "status"),
    [
        (b'{"error": {"message": "No.", "code": 429}}', "No.", 429),
        (b'{"error": "No."}', "No.", None),
        (b'{"detail": "No."}', "No.", None),
        (b'{"object": "error", "message": "No.", "code": 400}', "No.", 400),
        (b'[{"error": {"message": "No."}}]', "No.", None),
        (b'{"error": {"message": "No."}, "choices": []}', "No.", None),
    ],
)
def test_an_error_in_a_whole_answer_is_a_fault(
    data: bytes, message: str, status: int | None
) -> None:
    events = hear(data)
    assert kinds(events) == ["Failed"]
    assert (failed(data).message, failed(data).status) == (message, status)


def test_an_error_beside_a_whole_answer_ends_it_as_failed() -> None:
    events = hear(whole({"content": "Hi"}, error={"message": "Broke off."}))
    assert fold(events).text == "Hi"
    assert failed(whole({"content": "Hi"}, error={"message": "Broke off."})).message == "Broke off."


def test_a_whole_answer_without_a_reason_is_complete() -> None:
    assert read(whole({"content": "Hi"}, None)).reasons == ("stop",)
    assert read(whole({"tool_calls": [CALL]}, None)).reasons == ("tool_calls",)
    delta = json.dumps({"choices": [{"delta": {"content": "Hi"}}]}).encode()
    assert read(delta).text == "Hi"
    assert read(json.dumps({"choices": [{"text": "Hi"}]}).encode()).text == "Hi"
