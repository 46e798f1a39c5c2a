"""Messages of every role and shape become items, and the items become the same messages."""

from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.item import (
    Audio,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from tests.wire.chat.asking import USER, hear, items, messages

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}
CALLED = FunctionCall("c1", "f", '{"a": 1}')
HM = Reasoning((Thought("Hm."),))
ODD_TEXT = '{ "b":1,\t"a" : "\\u00e9é" , "n":1.0 }'


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


def call(id: str, kind: str = "function", /, **inner: Any) -> dict[str, Any]:
    return {"id": id, "type": kind, kind: inner}


def result(id: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content, **fields}


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_r2_23_every_role_is_taken_and_content_keeps_its_form(role: Any) -> None:
    parts = [text("a"), text("b", cache_control={"x": 1})]
    assert items({"role": role, "content": "a"}) == (Message(role, "a"),)
    decoded = items({"role": role, "content": parts, "name": "n", "vendor": 1})
    marked = Text("b", extra={"chat": {"cache_control": {"x": 1}}})
    extra = {"chat": {"vendor": 1}}
    assert decoded == (Message(role, (Text("a"), marked), name="n", extra=extra),)
    assert messages(*decoded) == [{"role": role, "content": parts, "name": "n", "vendor": 1}]


PARTS: list[tuple[dict[str, Any], Any]] = [
    (text("a"), Text("a")),
    (
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low", "z": 1}},
        Image("https://x/y.png", detail="low", extra={"chat": {"image_url": {"z": 1}}}),
    ),
    (
        {"type": "input_audio", "input_audio": {"data": "QUI=", "format": "wav", "z": 1}, "y": 2},
        Audio("QUI=", "wav", extra={"chat": {"input_audio": {"z": 1}, "y": 2}}),
    ),
    (
        {"type": "file", "file": {"file_id": "f1", "filename": "a.pdf", "z": 1}},
        File("f1", filename="a.pdf", extra={"chat": {"file": {"z": 1}}}),
    ),
    (
        {"type": "file", "file": {"file_data": "data:x;base64,QQ=="}},
        File(data="data:x;base64,QQ=="),
    ),
    ({"type": "refusal", "refusal": "n"}, Refusal("n")),
    (
        {"type": "video_url", "video_url": {"url": "http://x"}, "fps": 2},
        UnknownPart("chat", {"type": "video_url", "video_url": {"url": "http://x"}, "fps": 2}),
    ),
]


def test_v17_parts_of_every_kind_are_carried() -> None:
    wire = [{"role": "user", "content": [part for part, _ in PARTS]}]
    decoded = items(*wire)
    assert decoded == (Message("user", tuple(part for _, part in PARTS)),)
    assert messages(*decoded) == wire


SAME: dict[str, tuple[list[dict[str, Any]], tuple[Item, ...]]] = {
    "reasoning, text and calls": (
        [assistant(content="Let me see.", reasoning_content="Hm.", tool_calls=[CALL])],
        (HM, Message("assistant", "Let me see."), CALLED),
    ),
    "encrypted reasoning": (
        [assistant(content="x", reasoning_details=[{"type": "reasoning.encrypted", "data": "Q"}])],
        (
            Reasoning(
                extra={
                    "chat": {"reasoning_details": [{"type": "reasoning.encrypted", "data": "Q"}]}
                }
            ),
            Message("assistant", "x"),
        ),
    ),
    "empty reasoning": (
        [assistant(content="x", reasoning_content="")],
        (Reasoning((Thought(""),)), Message("assistant", "x")),
    ),
    "reasoning of a wrong type": (
        [assistant(content="x", reasoning_content="Hm.", reasoning={"a": 1})],
        (HM, Message("assistant", "x", extra={"chat": {"reasoning": {"a": 1}}})),
    ),
    "V17 refusal": (
        [assistant(refusal="No.")],
        (Message("assistant", (Refusal("No."),)),),
    ),
    "V17 text, refusal and audio": (
        [assistant(content=[text("x")], refusal="No.", audio={"id": "a1", "z": 1})],
        (
            Message(
                "assistant",
                (Text("x"), Refusal("No."), Audio(id="a1", extra={"chat": {"z": 1}})),
            ),
        ),
    ),
    "unknown fields beside calls": (
        [assistant(tool_calls=[CALL], vendor=1, name="n")],
        (Message("assistant", name="n", extra={"chat": {"vendor": 1}}), CALLED),
    ),
    "R2 24: two calls": (
        [
            assistant(
                content="x",
                tool_calls=[CALL, {**call("c2", name="g", arguments="[ ]", z=1), "index": 0}],
            )
        ],
        (
            Message("assistant", "x"),
            CALLED,
            FunctionCall("c2", "g", "[ ]", extra={"chat": {"index": 0, "function": {"z": 1}}}),
        ),
    ),
    "V14: arguments byte for byte": (
        [assistant(tool_calls=[call("c", name="f", arguments=ODD_TEXT)])],
        (FunctionCall("c", "f", ODD_TEXT),),
    ),
    "custom call and namespace": (
        [
            assistant(
                tool_calls=[
                    call("c1", "custom", name="g", input="x=1"),
                    call("c2", name="f", namespace="s", arguments="{}"),
                ]
            ),
            result("c1", "1"),
            result("c2", [text("2")]),
        ],
        (
            CustomToolCall("c1", "g", "x=1"),
            FunctionCall("c2", "f", "{}", "s"),
            CustomToolCallOutput("c1", "1"),
            FunctionCallOutput("c2", (Text("2"),)),
        ),
    ),
    "call of an unknown kind": (
        [
            assistant(tool_calls=[{"type": "remote", "id": "c1", "remote": {"server": "s"}}]),
            result("c1", "1"),
        ],
        (
            Unknown("chat", "remote", {"id": "c1", "remote": {"server": "s"}}),
            FunctionCallOutput("c1", "1"),
        ),
    ),
    "R2 25: a result carries the id of its call, and system stays system": (
        [
            {"role": "system", "content": "Be brief."},
            USER,
            CALLING,
            result("c1", "1", name="f"),
            {"role": "system", "content": "Late."},
        ],
        (
            Message("system", "Be brief."),
            Message("user", "hello"),
            CALLED,
            FunctionCallOutput("c1", "1", extra={"chat": {"name": "f"}}),
            Message("system", "Late."),
        ),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_r2_24_r2_25_v14_v17_messages_become_items_and_the_same_messages(name: str) -> None:
    wire, expected = SAME[name]
    assert items(*wire) == expected
    assert messages(*expected) == wire


EMPTY = (Message("assistant", ""),)
READ: dict[str, tuple[list[dict[str, Any]], tuple[Item, ...]]] = {
    "an image as a plain string": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}],
        (Message("user", (Image("http://x"),)),),
    ),
    "reasoning": (
        [assistant(content="x", reasoning="Hm.")],
        (HM, Message("assistant", "x")),
    ),
    "reasoning under both names": (
        [assistant(content="x", reasoning="Hm.", reasoning_content="Hm.")],
        (HM, Message("assistant", "x")),
    ),
    "a string beside audio": (
        [assistant(content="x", audio={"id": "a1"})],
        (Message("assistant", (Text("x"), Audio(id="a1"))),),
    ),
    "an empty string beside audio": (
        [assistant(content="", audio={"id": "a1"})],
        (Message("assistant", (Audio(id="a1"),)),),
    ),
    "parts beside a refusal": (
        [assistant(content=[text("y")], refusal="No.")],
        (Message("assistant", (Text("y"), Refusal("No."))),),
    ),
    "null content": ([assistant(content=None)], EMPTY),
    "no parts": ([assistant(content=[])], EMPTY),
    "no content": ([assistant()], EMPTY),
    "null content beside reasoning": (
        [assistant(content=None, reasoning_content="Hm.")],
        (HM, *EMPTY),
    ),
    "a custom call without an input": (
        [assistant(tool_calls=[call("c", "custom", name="g")])],
        (CustomToolCall("c", "g", ""),),
    ),
    "a call without a type": (
        [assistant(tool_calls=[{"id": "c", "function": {"name": "g", "arguments": "{}"}}])],
        (FunctionCall("c", "g", "{}"),),
    ),
    "a null result": ([CALLING, result("c1", None)], (CALLED, FunctionCallOutput("c1", ""))),
    "an empty result": ([CALLING, result("c1", "")], (CALLED, FunctionCallOutput("c1", ""))),
    "a call id used again for another kind": (
        [
            CALLING,
            result("c1", "1"),
            assistant(tool_calls=[call("c1", "custom", name="g", input="x")]),
            result("c1", "1"),
        ],
        (
            CALLED,
            FunctionCallOutput("c1", "1"),
            CustomToolCall("c1", "g", "x"),
            CustomToolCallOutput("c1", "1"),
        ),
    ),
    "the deprecated form beside calls": (
        [assistant(tool_calls=[CALL], function_call={"name": "g", "arguments": ""})],
        (
            Message("assistant", extra={"chat": {"function_call": {"name": "g", "arguments": ""}}}),
            CALLED,
        ),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_messages_of_other_shapes_become_items(name: str) -> None:
    wire, expected = READ[name]
    assert items(*wire) == expected


@pytest.mark.parametrize("messages", [None, [], "hello", ["hello"], {}])
def test_request_without_messages_is_refused(messages: Any) -> None:
    with pytest.raises(FaultError) as caught:
        hear(messages=messages)
    assert (caught.value.fault.param or "").startswith("messages")


def test_past_audio_that_came_whole_goes_back_by_its_id() -> None:
    whole = {"id": "a1", "data": "QQ==", "transcript": "Hi.", "expires_at": 9}
    decoded = items(assistant(content=None, audio=whole))
    assert decoded == (
        Message("assistant", (Audio("QQ==", transcript="Hi.", id="a1", expires_at=9),)),
    )
    assert messages(*decoded) == [assistant(audio={"id": "a1"})]


def test_absent_content_and_calls_are_left_out() -> None:
    assert messages(Message("assistant", "")) == [assistant(content="")]
    assert "tool_calls" not in messages(Message("assistant", "x"))[0]
    assert "content" not in messages(FunctionCall("c1", "f", "{}"))[0]


@pytest.mark.parametrize(
    ("given", "read"), [(None, ""), ("", ""), ({"a": 1}, '{"a":1}'), ("not JSON", "not JSON")]
)
def test_arguments_in_a_history_may_be_null_or_an_object(given: Any, read: str) -> None:
    wire = assistant(tool_calls=[call("c", name="f", arguments=given)])
    assert items(wire) == (FunctionCall("c", "f", read),)


def test_deprecated_calls_and_results_become_calls_and_results() -> None:
    wire = [
        assistant(content=None, function_call={"name": "f", "arguments": "{}"}),
        {"role": "function", "name": "f", "content": "1"},
    ]
    first, output, second, last = items(*wire, *wire)
    assert isinstance(first, FunctionCall)
    assert isinstance(second, FunctionCall)
    assert first.call_id != second.call_id
    assert (first.name, first.arguments) == ("f", "{}")
    extra = {"chat": {"name": "f"}}
    assert output == FunctionCallOutput(first.call_id, "1", extra=extra)
    assert last == FunctionCallOutput(second.call_id, "1", extra=extra)
