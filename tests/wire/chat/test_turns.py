"""Items become messages: one for each turn of the assistant, results after it, nothing lost."""

from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.item import (
    Annotation,
    Audio,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    ItemReference,
    Message,
    Part,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.request import Request
from dragoman.wire.chat.messages import describe, encode_content, encode_messages
from dragoman.wire.protocol import STANDARD, Dialect
from tests.wire.chat.asking import PLAIN, USER, hear, items, losses, messages

ASK = Message("user", "hello")
A, B = FunctionCall("a", "f", '{"n": 1}'), FunctionCall("b", "g", "{}")
OUT_A, OUT_B = FunctionCallOutput("a", "1"), FunctionCallOutput("b", "2")
CALL_A = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"n": 1}'}}
CALL_B = {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}
RESULT_A = {"role": "tool", "tool_call_id": "a", "content": "1"}
RESULT_B = {"role": "tool", "tool_call_id": "b", "content": "2"}


def thought(text: str) -> Reasoning:
    return Reasoning((Thought(text),))


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


# ---- one turn, one message ---------------------------------------------------------------


def test_p6_consecutive_calls_are_one_message_and_the_results_follow() -> None:
    said = messages(ASK, thought("Hm."), Message("assistant", "x"), A, B, OUT_B, OUT_A)
    turn = assistant(content="x", reasoning_content="Hm.", tool_calls=[CALL_A, CALL_B])
    assert said == [USER, turn, RESULT_B, RESULT_A]


def test_p7_all_parallel_calls_are_kept_in_their_order_and_come_back_so() -> None:
    calls = [FunctionCall(f"c{n}", "f", f'{{"n":{n}}}') for n in range(9)]
    outputs = [FunctionCallOutput(f"c{n}", str(n)) for n in range(9)]
    history = (ASK, *calls, *outputs)
    said = messages(*history)
    assert [call["id"] for call in said[1]["tool_calls"]] == [f"c{n}" for n in range(9)]
    assert items(*said) == history


def test_p6_the_way_back_is_the_same_history() -> None:
    history = (
        ASK,
        thought("one"),
        Message("assistant", "x"),
        A,
        CustomToolCall("b", "g", "y"),
        OUT_A,
        CustomToolCallOutput("b", "2"),
        thought("two"),
        Message("assistant", (Text("z"),)),
        ASK,
    )
    assert items(*messages(*history)) == history


def test_o7_reasoning_stays_with_its_turn_wherever_it_stood() -> None:
    said = messages(ASK, thought("one"), A, thought("two"), B, OUT_A, OUT_B, thought("three"), A)
    assert said[1] == assistant(reasoning_content="one\n\ntwo", tool_calls=[CALL_A, CALL_B])
    assert said[4] == assistant(reasoning_content="three", tool_calls=[CALL_A])


def test_v10_text_after_a_call_is_in_the_same_message() -> None:
    assert messages(ASK, A, Message("assistant", "after"), B) == [
        USER,
        assistant(content="after", tool_calls=[CALL_A, CALL_B]),
    ]


def test_several_messages_of_one_turn_are_the_parts_of_one() -> None:
    said = messages(ASK, Message("assistant", "a", name="n"), Message("assistant", (Text("b"),)), A)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert said[1] == assistant(content=parts, name="n", tool_calls=[CALL_A])
    empty = messages(ASK, Message("assistant"), Message("assistant", "b"), Message("assistant"))
    assert empty[1] == assistant(content="b")


def test_messages_that_were_apart_on_this_wire_stay_apart() -> None:
    wire = [
        USER,
        assistant(content="a"),
        assistant(reasoning_content="r", content="b"),
        assistant(tool_calls=[CALL_A]),
        RESULT_A,
        assistant(content="c"),
    ]
    assert messages(*items(*wire)) == wire
    foreign = {"type": "remote", "id": "c"}
    wire = [assistant(content="a"), assistant(tool_calls=[foreign])]
    assert messages(*items(*wire)) == wire


def test_o8_a_user_message_said_twice_is_two_messages() -> None:
    assert messages(ASK, ASK) == [USER, USER]


def test_reasoning_alone_is_a_message_with_empty_content() -> None:
    assert messages(ASK, thought("Hm."), ASK)[1] == assistant(content="", reasoning_content="Hm.")


# ---- reasoning ---------------------------------------------------------------------------


def test_p8_reasoning_goes_back_in_the_field_its_server_reads_or_not_at_all() -> None:
    history = (ASK, thought("Hm."), Message("assistant", "x"))
    details = [{"type": "reasoning.text", "text": "Hm."}]
    sealed = Reasoning((Thought("Hm."),), extra={"chat": {"reasoning_details": details}})
    assert messages(*history)[1]["reasoning_content"] == "Hm."
    other = Dialect(reasoning_field="reasoning")
    assert messages(*history, dialect=other)[1] == assistant(content="x", reasoning="Hm.")
    assert messages(sealed, ASK)[0]["reasoning_details"] == details
    none = Dialect(reasoning_echo="never", ask_usage=False)
    assert messages(*history, dialect=none)[1] == assistant(content="x")
    assert messages(sealed, ASK, dialect=none)[0] == assistant(content="")
    request = Request(model="m", items=history)
    assert losses(request, none) == {"items[1].reasoning": "dropped"}


def test_a_summary_stands_in_for_reasoning_that_is_not_shown() -> None:
    summary = Reasoning(summary=(Summary("In short."),), encrypted="blob")
    request = Request(model="m", items=(ASK, summary, A))
    assert messages(ASK, summary, A)[1]["reasoning_content"] == "In short."
    assert losses(request) == {
        "items[1].summary": "emulated",
        "items[1].encrypted_content": "dropped",
    }


def test_reasoning_that_is_only_sealed_is_told() -> None:
    request = Request(model="m", items=(ASK, Reasoning(encrypted="blob"), A))
    assert messages(ASK, Reasoning(encrypted="blob"), A)[1] == assistant(tool_calls=[CALL_A])
    assert losses(request) == {"items[1].encrypted_content": "dropped"}


def test_details_of_several_thoughts_are_one_list() -> None:
    first = Reasoning(extra={"chat": {"reasoning_details": [{"n": 1}], "other": 1}})
    second = Reasoning(extra={"chat": {"reasoning_details": [{"n": 2}], "other": 2}})
    said = messages(ASK, first, A, second, B)[1]
    assert said["reasoning_details"] == [{"n": 1}, {"n": 2}]
    assert said["other"] == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("Yes.", "<think>\nHm.\n</think>\n\nYes."),
        (
            (Text("Yes."), Refusal("No.")),
            [{"type": "text", "text": "<think>\nHm.\n</think>\n\nYes."}],
        ),
        (
            (Image("http://x"),),
            [
                {"type": "text", "text": "<think>\nHm.\n</think>\n\n"},
                {"type": "image_url", "image_url": {"url": "http://x"}},
            ],
        ),
    ],
)
def test_p5_think_tags_go_back_into_the_text_word_for_word(content: Any, told: Any) -> None:
    inline = Reasoning(
        (Thought("Hm."),), extra={"inline": {"open": "<think>\n", "close": "\n</think>\n\n"}}
    )
    assert messages(ASK, inline, Message("assistant", content))[1]["content"] == told


def test_p5_think_tags_without_an_answer_are_the_text() -> None:
    cut = Reasoning((Thought("Hm"),), extra={"inline": {"open": "<think>"}})
    assert messages(ASK, cut, A)[1] == assistant(content="<think>Hm", tool_calls=[CALL_A])


# ---- what Chat has no form for -----------------------------------------------------------

PICTURE = Image("data:image/png;base64,QUJD")


def test_p32_an_image_in_a_result_is_shown_in_a_user_message_after_the_results() -> None:
    shot = FunctionCallOutput("a", (Text("Here:"), PICTURE))
    said = messages(ASK, A, B, shot, OUT_B, ASK)
    assert said[2] == {
        "role": "tool",
        "tool_call_id": "a",
        "content": [
            {"type": "text", "text": "Here:"},
            {"type": "text", "text": "[image: see the next user message]"},
        ],
    }
    assert said[3] == RESULT_B
    assert said[4] == {
        "role": "user",
        "content": [
            {"type": "text", "text": "From the result of the tool call a:"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        ],
    }
    assert said[5] == USER
    assert losses(Request(model="m", items=(ASK, A, shot))) == {"items[2].output[1]": "emulated"}


def test_p32_files_and_sounds_too_each_with_the_call_it_came_from() -> None:
    first = FunctionCallOutput("a", (File("f1"), Audio("QUI=", "wav")))
    second = FunctionCallOutput("b", (PICTURE,))
    shown = messages(ASK, A, B, first, second)[4]["content"]
    assert [part["type"] for part in shown] == ["text", "file", "input_audio", "text", "image_url"]
    assert [part["text"] for part in shown if part["type"] == "text"] == [
        "From the result of the tool call a:",
        "From the result of the tool call b:",
    ]
    told = messages(ASK, A, B, first, second)[2]["content"]
    assert [part["text"] for part in told] == [
        "[file: see the next user message]",
        "[audio: see the next user message]",
    ]


def test_o6_calls_of_hosted_tools_are_read_as_text_and_told() -> None:
    search = Unknown(
        "responses",
        "web_search_call",
        {"id": "ws", "status": "completed", "action": {"query": "x", "empty": None}},
    )
    picture = Unknown(
        "responses",
        "image_generation_call",
        {"result": "QUJD" * 9999, "prompt": "a " * 9999, "urls": ["data:image/png;base64,QQ=="]},
    )
    said = messages(ASK, search, Message("assistant", "Found."), ASK, picture)
    note = '[web_search_call: {"action":{"query":"x"}}]'
    parts = [{"type": "text", "text": note}, {"type": "text", "text": "Found."}]
    assert said[1] == assistant(content=parts)
    drawn = said[3]["content"][0]["text"]
    assert drawn.startswith('[image_generation_call: {"result":"…","prompt":"a a a')
    assert drawn.endswith('a …","urls":["…"]}]')
    assert len(drawn) < 2200
    assert losses(Request(model="m", items=(ASK, search))) == {"items[1]": "emulated"}


def test_trigger_that_is_not_the_last_item_is_dropped_and_reported() -> None:
    trigger = Unknown("responses", "compaction_trigger", {})
    assert messages(ASK, trigger, ASK) == messages(ASK, ASK)
    assert losses(Request(model="m", items=(ASK, trigger, ASK))) == {"items[1]": "dropped"}


def test_past_audio_without_an_id_is_its_transcript() -> None:
    spoken = Message("assistant", (Audio("QUI=", transcript="Hi."), Audio("QUI=")))
    assert messages(ASK, spoken)[1]["content"] == [
        {"type": "text", "text": "Hi."},
        {"type": "text", "text": "[audio]"},
    ]


def test_what_was_noted_on_a_text_is_not_sent_back_and_told() -> None:
    noted = Message("assistant", (Text("x", (Annotation("url_citation", 0, 1, "http://x"),)),))
    assert messages(ASK, noted)[1]["content"] == [{"type": "text", "text": "x"}]
    assert losses(Request(model="m", items=(ASK, noted))) == {
        "items[1].content[0].annotations": "dropped"
    }


def test_what_only_its_maker_can_read_is_refused() -> None:
    with pytest.raises(FaultError) as caught:
        messages(ASK, Compaction("blob"))
    assert caught.value.fault.param == "items[1]"


def test_servers_that_take_strings_only_get_strings_and_are_told() -> None:
    strings = Dialect(content_parts=False, ask_usage=False)
    several = (Text("a"), Text("b", extra={"chat": {"cache_control": {}}}))
    history = (
        Message("system", several),
        Message("user", (Text("x"),)),
        Message("user", (Text("y"), Image("http://x"))),
        A,
        FunctionCallOutput("a", several),
        Message("assistant", several),
    )
    said = messages(*history, dialect=strings)
    assert [message["content"] for message in said if "content" in message] == [
        "a\nb",
        "x",
        [
            {"type": "text", "text": "y"},
            {"type": "image_url", "image_url": {"url": "http://x"}},
        ],
        "a\nb",
        "a\nb",
    ]
    assert losses(Request(model="m", items=history), strings) == {"items[*].content": "emulated"}
    assert losses(hear({"role": "user", "content": [{"type": "text", "text": "x"}]}), strings) == {}
    assert losses(Request(model="m", items=history), PLAIN) == {}


def test_reasoning_that_a_server_requires_and_nobody_has_is_a_space() -> None:
    must = Dialect(reasoning_echo="must", ask_usage=False)
    calls = (ASK, FunctionCall("a", "f", "{}"), FunctionCallOutput("a", "1"))
    said = messages(*calls, dialect=must)
    assert [message.get("reasoning_content") for message in said] == [None, " ", None]
    request = Request(model="m", items=calls)
    assert losses(request, must) == {"items[*].reasoning": "emulated"}
    known = (ASK, Reasoning((Thought("Hm"),)), *calls[1:])
    assert losses(Request(model="m", items=known), must) == {}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (Text("a"), "a"),
        (Refusal("a"), "a"),
        (Thought("a"), "a"),
        (Summary("a"), "a"),
        (Image(file_id="f1"), "[image f1]"),
        (Image("http://x"), "[image]"),
        (Audio("QQ=="), "[audio]"),
        (Audio(id="a1", transcript="Hi."), "Hi."),
        (File(url="http://x/a.pdf"), "[file http://x/a.pdf]"),
        (File("f1", filename="a.pdf"), "[file a.pdf]"),
        (File(), "[file]"),
        (UnknownPart("responses", {"type": "input_video"}), "[input_video]"),
        (UnknownPart("responses", {}), "[part]"),
    ],
)
def test_part_without_a_form_is_described_in_words(part: Part, words: str) -> None:
    assert describe(part) == words


@pytest.mark.parametrize(
    "part",
    [
        Image(file_id="f1"),
        Audio(id="a1"),
        File(url="http://x"),
        Thought("a"),
        UnknownPart("responses", {"type": "input_video"}),
    ],
)
def test_part_without_a_form_is_encoded_as_text(part: Part) -> None:
    assert encode_content((part,)) == [{"type": "text", "text": describe(part)}]


def test_refused_items_give_no_message() -> None:
    items = (ItemReference("i"), Message("user", "hello"), Compaction("blob"))
    assert encode_messages(items, STANDARD, []) == [{"role": "user", "content": "hello"}]
