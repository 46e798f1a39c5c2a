"""Messages of every role and shape become items, and what is no message is refused by its path."""

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
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from tests.wire.chat.asking import USER, hear, items, messages, refused

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_r2_23_every_role_is_taken_and_content_keeps_its_form(role: Any) -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b", "cache_control": {"x": 1}},
    ]
    assert items({"role": role, "content": "a"}) == (Message(role, "a"),)
    said = items({"role": role, "content": parts, "name": "n", "vendor": 1})
    kept = Text("b", extra={"chat": {"cache_control": {"x": 1}}})
    extra = {"chat": {"vendor": 1}}
    assert said == (Message(role, (Text("a"), kept), name="n", extra=extra),)
    assert messages(*said) == [{"role": role, "content": parts, "name": "n", "vendor": 1}]


@pytest.mark.parametrize("role", ["tester", "", 1, None])
def test_r2_23_an_unknown_role_is_refused(role: Any) -> None:
    assert refused(USER, {"role": role, "content": "x"}).param == "messages[1].role"


IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low", "z": 1}}
SOUND = {"type": "input_audio", "input_audio": {"data": "QUI=", "format": "wav", "z": 1}, "y": 2}
FILE = {"type": "file", "file": {"file_id": "f1", "filename": "a.pdf", "z": 1}}
DATA = {"type": "file", "file": {"file_data": "data:x;base64,QQ=="}}


def test_v17_parts_of_every_kind_are_carried() -> None:
    wire = [
        {"type": "text", "text": "a"},
        IMAGE,
        SOUND,
        FILE,
        DATA,
        {"type": "refusal", "refusal": "n"},
    ]
    parts = (
        Text("a"),
        Image("https://x/y.png", detail="low", extra={"chat": {"image_url": {"z": 1}}}),
        Audio("QUI=", "wav", extra={"chat": {"input_audio": {"z": 1}, "y": 2}}),
        File("f1", filename="a.pdf", extra={"chat": {"file": {"z": 1}}}),
        File(data="data:x;base64,QQ=="),
        Refusal("n"),
    )
    said = items({"role": "user", "content": wire})
    assert said == (Message("user", parts),)
    assert messages(*said) == [{"role": "user", "content": wire}]


def test_an_image_may_be_a_plain_string() -> None:
    said = items({"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]})
    assert said == (Message("user", (Image("http://x"),)),)


def test_known_vendor_parts_are_kept_word_for_word() -> None:
    part = {"type": "video_url", "video_url": {"url": "http://x"}, "fps": 2}
    said = items({"role": "user", "content": [part]})
    assert said == (Message("user", (UnknownPart("chat", part),)),)
    assert messages(*said)[0]["content"] == [part]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (None, "content"),
        (7, "content"),
        ({"type": "text"}, "content"),
        (["text"], "content[0]"),
        ([{"type": "text", "text": "a"}, {"text": "b"}], "content[1].type"),
        ([{"type": "hologram"}], "content[0].type"),
        ([{"type": "input_text", "text": "a"}], "content[0].type"),
        ([{"type": "text"}], "content[0].text"),
        ([{"type": "text", "text": 1}], "content[0].text"),
        ([{"type": "image_url"}], "content[0].image_url"),
        ([{"type": "image_url", "image_url": 1}], "content[0].image_url"),
        ([{"type": "image_url", "image_url": {}}], "content[0].image_url.url"),
        ([{"type": "input_audio"}], "content[0].input_audio"),
        (
            [{"type": "input_audio", "input_audio": {"format": "wav"}}],
            "content[0].input_audio.data",
        ),
        ([{"type": "file", "file": {"filename": "x"}}], "content[0].file.file_data"),
    ],
)
def test_content_that_is_none_is_refused_by_its_path(content: Any, param: str) -> None:
    assert refused(USER, {"role": "user", "content": content}).param == f"messages[1].{param}"


@pytest.mark.parametrize("messages", [None, [], "hello", ["hello"], {}])
def test_a_conversation_needs_messages(messages: Any) -> None:
    with pytest.raises(FaultError) as caught:
        hear(messages=messages)
    assert (caught.value.fault.param or "").startswith("messages")


# ---- assistant messages ------------------------------------------------------------------


def test_an_assistant_message_is_reasoning_then_text_then_calls() -> None:
    said = items(USER, assistant(content="Let me see.", reasoning_content="Hm.", tool_calls=[CALL]))
    assert said[1:] == (
        Reasoning((Thought("Hm."),)),
        Message("assistant", "Let me see."),
        FunctionCall("c1", "f", '{"a": 1}'),
    )


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_either_name(name: str) -> None:
    thought = Reasoning((Thought("Hm."),))
    assert items(assistant(content="x", **{name: "Hm."})) == (thought, Message("assistant", "x"))
    both = assistant(content="x", reasoning="Hm.", reasoning_content="Hm.")
    assert items(both) == (thought, Message("assistant", "x"))


def test_reasoning_that_is_empty_or_sealed_or_odd_is_kept() -> None:
    empty = Reasoning((Thought(""),))
    assert items(assistant(content="x", reasoning_content=""))[0] == empty
    details = [{"type": "reasoning.encrypted", "data": "QQ=="}]
    sealed = Reasoning(extra={"chat": {"reasoning_details": details}})
    assert items(assistant(content="x", reasoning_details=details))[0] == sealed
    odd = items(assistant(content="x", reasoning={"a": 1}, reasoning_content="Hm."))
    assert odd[1] == Message("assistant", "x", extra={"chat": {"reasoning": {"a": 1}}})
    assert messages(*odd)[0] == assistant(content="x", reasoning_content="Hm.", reasoning={"a": 1})


def test_v17_refusal_and_past_audio_are_parts_of_the_message() -> None:
    said = items(
        assistant(content=None, refusal="No."),
        USER,
        assistant(content="x", refusal="No.", audio={"id": "a1", "z": 1}),
        USER,
        assistant(content="", audio={"id": "a1"}),
        USER,
        assistant(content=[{"type": "text", "text": "y"}], refusal="No."),
    )
    audio = Audio(id="a1", extra={"chat": {"z": 1}})
    assert said[0] == Message("assistant", (Refusal("No."),))
    assert said[2] == Message("assistant", (Text("x"), Refusal("No."), audio))
    assert said[4] == Message("assistant", (Audio(id="a1"),))
    assert said[6] == Message("assistant", (Text("y"), Refusal("No.")))
    told = messages(*said)
    assert told[0] == assistant(refusal="No.")
    assert told[2] == assistant(
        content=[{"type": "text", "text": "x"}], refusal="No.", audio={"id": "a1", "z": 1}
    )
    assert refused(assistant(audio={"data": "QQ=="})).param == "messages[0].audio.id"


def test_past_audio_that_came_whole_goes_back_by_its_id() -> None:
    whole = {"id": "a1", "data": "QQ==", "transcript": "Hi.", "expires_at": 9}
    said = items(assistant(content=None, audio=whole))
    assert said == (
        Message("assistant", (Audio("QQ==", transcript="Hi.", id="a1", expires_at=9),)),
    )
    assert messages(*said) == [assistant(audio={"id": "a1"})]


@pytest.mark.parametrize("content", [None, []])
def test_an_assistant_message_of_nothing_is_an_empty_text(content: Any) -> None:
    assert items(assistant(content=content)) == (Message("assistant", ""),)
    assert items(assistant()) == (Message("assistant", ""),)
    assert messages(Message("assistant", "")) == [assistant(content="")]
    thought = items(assistant(content=content, reasoning_content="Hm."))
    assert thought == (Reasoning((Thought("Hm."),)), Message("assistant", ""))


def test_unknown_fields_beside_calls_are_kept() -> None:
    said = items(assistant(content=None, tool_calls=[CALL], vendor=1, name="n"))
    assert said[0] == Message("assistant", name="n", extra={"chat": {"vendor": 1}})
    assert messages(*said) == [assistant(tool_calls=[CALL], name="n", vendor=1)]


def test_r2_24_one_entry_per_call_with_the_arguments_as_written() -> None:
    odd = {"id": "c2", "function": {"name": "g", "arguments": '{"b" : [ ]}', "z": 1}, "index": 0}
    said = items(assistant(content="x", tool_calls=[CALL, odd]))
    assert said[1:] == (
        FunctionCall("c1", "f", '{"a": 1}'),
        FunctionCall("c2", "g", '{"b" : [ ]}', extra={"chat": {"index": 0, "function": {"z": 1}}}),
    )
    assert messages(*said) == [
        assistant(content="x", tool_calls=[CALL, {**odd, "type": "function"}])
    ]
    assert "tool_calls" not in messages(Message("assistant", "x"))[0]
    assert "content" not in messages(FunctionCall("c1", "f", "{}"))[0]


def test_v14_arguments_pass_byte_for_byte() -> None:
    text = '{ "b":1,\t"a" : "\\u00e9é" , "n":1.0 }'
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    said = items(assistant(tool_calls=[call]))
    assert messages(*said)[0]["tool_calls"] == [call]


@pytest.mark.parametrize(
    ("given", "read"), [(None, ""), ("", ""), ({"a": 1}, '{"a":1}'), ("not JSON", "not JSON")]
)
def test_arguments_in_a_history_may_be_null_or_an_object(given: Any, read: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
    assert items(assistant(tool_calls=[call])) == (FunctionCall("c", "f", read),)


def test_custom_calls_and_namespaces_are_carried() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "g", "input": "x=1"}}
    spaced = {
        "id": "c2",
        "type": "function",
        "function": {"name": "f", "namespace": "s", "arguments": "{}"},
    }
    wire = [
        assistant(tool_calls=[custom, spaced]),
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "2"}]},
    ]
    said = items(*wire)
    assert said == (
        CustomToolCall("c1", "g", "x=1"),
        FunctionCall("c2", "f", "{}", "s"),
        CustomToolCallOutput("c1", "1"),
        FunctionCallOutput("c2", (Text("2"),)),
    )
    assert messages(*said) == wire
    empty = items(assistant(tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "g"}}]))
    assert empty == (CustomToolCall("c", "g", ""),)


def test_calls_of_an_unknown_kind_are_kept_word_for_word() -> None:
    call = {"type": "remote", "id": "c1", "remote": {"server": "s"}}
    wire = [assistant(tool_calls=[call]), {"role": "tool", "tool_call_id": "c1", "content": "1"}]
    said = items(*wire)
    assert said[0] == Unknown("chat", "remote", {"id": "c1", "remote": {"server": "s"}})
    assert messages(*said) == wire


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ("f", ""),
        ({"function": {"name": "f"}}, ".id"),
        ({"id": "c", "type": "function"}, ".function"),
        ({"id": "c", "type": "custom"}, ".custom"),
        ({"id": "c", "function": {}}, ".function.name"),
        ({"id": "c", "function": {"name": "f", "arguments": [1]}}, ".function.arguments"),
        ({"id": "c", "type": "custom", "custom": {"name": "g", "input": 1}}, ".custom.input"),
    ],
)
def test_a_call_that_is_none_is_refused_by_its_path(call: Any, param: str) -> None:
    fault = refused(USER, assistant(tool_calls=[call]))
    assert fault.param == f"messages[1].tool_calls[0]{param}"


# ---- results -----------------------------------------------------------------------------


def test_r2_25_a_result_carries_the_id_of_its_call_and_system_stays_system() -> None:
    wire = [
        {"role": "system", "content": "Be brief."},
        USER,
        {k: v for k, v in CALLING.items() if v},
        {"role": "tool", "tool_call_id": "c1", "content": "1", "name": "f"},
        {"role": "system", "content": "Late."},
    ]
    said = items(*wire)
    assert said[3] == FunctionCallOutput("c1", "1", extra={"chat": {"name": "f"}})
    assert messages(*said) == wire


@pytest.mark.parametrize("content", [None, ""])
def test_a_result_may_be_empty(content: Any) -> None:
    said = items(CALLING, {"role": "tool", "tool_call_id": "c1", "content": content})
    assert said[1] == FunctionCallOutput("c1", "")


def test_a_result_without_its_call_is_refused() -> None:
    orphan = {"role": "tool", "tool_call_id": "c2", "content": "1"}
    assert refused(USER, CALLING, orphan).param == "messages[2].tool_call_id"
    assert refused(orphan, CALLING).param == "messages[0].tool_call_id"
    assert refused({"role": "tool", "content": "1"}).param == "messages[0].tool_call_id"


def test_a_call_id_used_again_is_the_later_call() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "g", "input": "x"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "1"}
    said = items(CALLING, result, assistant(tool_calls=[custom]), result)
    assert [type(item) for item in said] == [
        FunctionCall,
        FunctionCallOutput,
        CustomToolCall,
        CustomToolCallOutput,
    ]


# ---- the deprecated form -----------------------------------------------------------------


def test_legacy_calls_and_results_become_calls_and_results() -> None:
    call = {"name": "f", "arguments": "{}"}
    result = {"role": "function", "name": "f", "content": "1"}
    wire = [assistant(content=None, function_call=call), result]
    said = items(*wire, *wire)
    first, second = said[0], said[2]
    assert isinstance(first, FunctionCall)
    assert isinstance(second, FunctionCall)
    assert first.call_id != second.call_id
    assert (first.name, first.arguments) == ("f", "{}")
    extra = {"chat": {"name": "f"}}
    assert said[1] == FunctionCallOutput(first.call_id, "1", extra=extra)
    assert said[3] == FunctionCallOutput(second.call_id, "1", extra=extra)
    assert refused(USER, result).param == "messages[1].name"


def test_where_there_are_calls_a_legacy_call_is_only_kept() -> None:
    said = items(assistant(tool_calls=[CALL], function_call={"name": "g", "arguments": ""}))
    assert said[1:] == (FunctionCall("c1", "f", '{"a": 1}'),)
    assert said[0].extra == {"chat": {"function_call": {"name": "g", "arguments": ""}}}
