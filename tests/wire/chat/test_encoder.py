"""Answers are encoded chunk by chunk: role, content, calls, tokens, finish reason, failures."""

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import (
    Delta,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.item import (
    Annotation,
    Audio,
    CustomToolCall,
    FunctionCall,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    Unknown,
    UnknownPart,
)
from dragoman.core.request import Request
from dragoman.core.response import Usage
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Dialect
from tests.wire.chat.answering import (
    ASKED,
    DONE,
    WITH_LOGPROBS,
    WITH_USAGE,
    answer,
    body,
    chunks,
    deltas,
    gathered,
    tell,
    told,
)

STARTED = Started("R", 5, "m")
SAID = Message("assistant", (Text("Hello"),), "msg", "completed")
LEGACY = Request(model="m", items=ASKED.items, extra={"legacy": {"functions": True}})


def test_a_plain_answer_chunk_by_chunk() -> None:
    events = [
        STARTED,
        ItemAdded(0, Message("assistant", (), "msg", "in_progress")),
        PartAdded(0, 0, Text("")),
        Delta(0, 0, "text", "Hel"),
        Delta(0, 0, "text", 'l"o\n'),
        PartDone(0, 0, Text('Hell"o\n')),
        ItemDone(0, SAID),
        Finished("completed", ("stop",), Usage(1, 2, 3)),
    ]
    envelope = {"id": "chatcmpl-R", "object": "chat.completion.chunk", "created": 5, "model": "m"}

    def said(delta: Any, finish: Any = None) -> Any:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**envelope, "choices": [choice]}

    role = {"role": "assistant", "content": "", "refusal": None}
    expected = [
        said(role),
        said({"content": "Hel"}),
        said({"content": 'l"o\n'}),
        said({}, "stop"),
        "[DONE]",
    ]
    assert chunks(tell(events)) == expected
    # Nothing is said before there is something to say, and every event is one write.
    encoder = CHAT.encoder(ASKED, STANDARD)
    writes = [encoder.feed((event,)) for event in events]
    assert [len(chunks(write)) for write in writes] == [0, 0, 1, 1, 1, 0, 0, 2]
    assert all(write.endswith(b"\n\n") and b"\r" not in write for write in writes if write)


def test_p29_usage_is_shown_to_those_who_asked_and_to_no_other() -> None:
    counted = answer(SAID, usage=Usage(1, 2, 3))
    assert all("usage" not in each for each in chunks(told(counted))[:-1])
    *others, last, done = chunks(told(counted, WITH_USAGE))
    assert [each["usage"] for each in others] == [None] * len(others)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert done == "[DONE]"


def test_p30_usage_that_was_never_reported_is_not_made_up() -> None:
    said = chunks(told(answer(SAID), WITH_USAGE))
    assert {each["usage"] for each in said[:-1]} == {None}
    assert all(each["choices"] for each in said[:-1])
    assert "usage" not in body(answer(SAID))


@pytest.mark.parametrize("request_", [ASKED, WITH_USAGE])
def test_every_chunk_has_the_same_envelope_and_the_key_finish_reason(request_: Request) -> None:
    full = answer(
        Reasoning((Thought("Hm"),), id="rs", status="completed"),
        SAID,
        FunctionCall("c1", "f", "{}", id="fc", status="completed"),
        reasons=("tool_calls",),
        usage=Usage(1, 2, 3),
    )
    said = chunks(told(full, request_))[:-1]
    assert {(c["id"], c["object"], c["created"], c["model"]) for c in said} == {
        ("chatcmpl-R", "chat.completion.chunk", 5, "m")
    }
    choices = [choice for each in said for choice in each["choices"]]
    assert all("finish_reason" in choice for choice in choices)
    assert [c["delta"] for c in choices if c["finish_reason"] is not None] == [{}]


# ---- kinds of content --------------------------------------------------------------------


def test_r1_w3_reasoning_is_said_under_both_names_or_those_asked_for() -> None:
    thought = answer(Reasoning((Thought("Hm"),), id="rs", status="completed"), SAID)
    first, second, *_ = deltas(told(thought))
    assert first == {"role": "assistant", "content": None, "refusal": None}
    assert second == {"reasoning": "Hm", "reasoning_content": "Hm"}
    message = body(thought)["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"]) == ("Hm", "Hm")
    one = Dialect(reasoning_out=("reasoning",))
    assert deltas(told(thought, dialect=one))[1] == {"reasoning": "Hm"}
    none = Dialect(reasoning_out=())
    assert deltas(told(thought, dialect=none))[1] == {"content": "Hello"}
    assert "reasoning" not in body(thought, dialect=none)["choices"][0]["message"]


def test_parts_of_reasoning_are_paragraphs() -> None:
    thought = Reasoning(
        (Thought("c"), UnknownPart("responses", {})),
        (Summary("a"), Summary("b")),
        id="rs",
        status="completed",
    )
    said = gathered(told(answer(thought, SAID)))["choices"][0]["message"]
    assert said["reasoning"] == "a\n\nb\n\nc"
    assert body(answer(thought, SAID))["choices"][0]["message"]["reasoning"] == "a\n\nb\n\nc"


def test_p5_think_tags_are_put_back_into_the_text() -> None:
    tags = {"inline": {"open": "<think>", "close": "</think>\n"}}
    thought = Reasoning((Thought("Hm"),), id="rs", status="completed", extra=tags)
    said = answer(thought, SAID)
    assert [d.get("content") for d in deltas(told(said))] == [
        None,
        "<think>",
        "Hm",
        "</think>\n",
        "Hello",
    ]
    assert body(said)["choices"][0]["message"]["content"] == "<think>Hm</think>\nHello"
    assert "reasoning" not in body(said)["choices"][0]["message"]


def test_p5_tags_that_were_never_closed_stay_open() -> None:
    thought = Reasoning((Thought("Hm"),), id="rs", extra={"inline": {"open": "<think>"}})
    assert gathered(told(answer(thought)))["choices"][0]["message"]["content"] == "<think>Hm"
    assert body(answer(thought))["choices"][0]["message"]["content"] == "<think>Hm"


def test_r1_w3_a_refusal_is_said_as_one() -> None:
    refusal = answer(Message("assistant", (Refusal("No."),), "msg", "completed"))
    assert deltas(told(refusal)) == [
        {"role": "assistant", "content": None, "refusal": None},
        {"refusal": "No."},
    ]
    message = body(refusal)["choices"][0]["message"]
    assert (message["content"], message["refusal"]) == (None, "No.")


def test_v17_audio_is_said_id_first_and_its_expiry_last() -> None:
    audio = Audio("QUJD", None, "Hi.", "a1", 99, {"chat": {"voice": "v"}})
    spoken = answer(Message("assistant", (audio,), "msg", "completed"))
    assert deltas(told(spoken))[1:] == [
        {"audio": {"id": "a1", "expires_at": 99, "voice": "v"}},
        {"audio": {"data": "QUJD"}},
        {"audio": {"transcript": "Hi."}},
    ]
    assert body(spoken)["choices"][0]["message"]["audio"] == {
        "id": "a1",
        "data": "QUJD",
        "transcript": "Hi.",
        "expires_at": 99,
        "voice": "v",
    }
    late = [
        STARTED,
        ItemAdded(0, Message("assistant", (), "msg")),
        PartAdded(0, 0, Audio()),
        Delta(0, 0, "transcript", "Hi."),
        PartDone(0, 0, Audio(transcript="Hi.", id="a1", expires_at=99)),
    ]
    assert deltas(tell(late))[1:] == [
        {"audio": {"transcript": "Hi."}},
        {"audio": {"id": "a1", "expires_at": 99}},
    ]


def test_v17_annotations_count_from_the_beginning_of_the_content() -> None:
    first = Text("ab", (Annotation("url_citation", 0, 2, "http://a", "A"),))
    second = Text("cd", (Annotation("url_citation", 1, 2, "http://b", extra={"chat": {"z": 1}}),))
    foreign = Text("ef", (Annotation("file_citation", file_id="f"),))
    known = Text("", (Annotation("other", extra={"chat": {"page": 3}}),))
    noted = answer(Message("assistant", (first, second, foreign, known), "msg", "completed"))
    expected = [
        {
            "type": "url_citation",
            "url_citation": {"start_index": 0, "end_index": 2, "url": "http://a", "title": "A"},
        },
        {
            "type": "url_citation",
            "url_citation": {"start_index": 3, "end_index": 4, "url": "http://b"},
            "z": 1,
        },
        {"type": "other", "page": 3},
    ]
    assert gathered(told(noted))["choices"][0]["message"]["annotations"] == expected
    assert body(noted)["choices"][0]["message"]["annotations"] == expected


def test_an_empty_text_is_said_and_no_text_is_null() -> None:
    assert body(answer(Message("assistant", (Text(""),))))["choices"][0]["message"]["content"] == ""
    assert body(answer(Message("assistant")))["choices"][0]["message"]["content"] is None
    empty = Message("assistant", (Text(""),), "msg", "completed")
    thought = Reasoning((Thought("Hm"),), id="rs", status="completed")
    assert deltas(told(answer(empty))) == [{"role": "assistant", "content": "", "refusal": None}]
    assert deltas(told(answer(thought, empty)))[-1] == {"content": ""}
    none = answer(Message("assistant", (), "msg", "completed"))
    assert deltas(told(none)) == [{"role": "assistant", "content": None, "refusal": None}]


# ---- calls -------------------------------------------------------------------------------


def test_p1_v4_a_call_is_announced_with_index_id_and_name_and_every_fragment_has_its_index() -> (
    None
):
    events = [
        STARTED,
        ItemAdded(0, FunctionCall("c1", "f", "", id="fc1")),
        ItemAdded(1, CustomToolCall("c2", "g", "", "s", id="fc2")),
        Delta(0, 0, "arguments", '{"a'),
        Delta(1, 0, "input", "x"),
        Delta(0, 0, "arguments", '":1}'),
        ItemDone(0, FunctionCall("c1", "f", '{"a":1}', id="fc1")),
        ItemDone(1, CustomToolCall("c2", "g", "x", "s", id="fc2")),
        Finished("completed", ("tool_calls",)),
    ]
    assert [d["tool_calls"] for d in deltas(tell(events))[1:]] == [
        [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a'}}],
        [{"index": 0, "function": {"arguments": '":1}'}}],
        [
            {
                "index": 1,
                "id": "c2",
                "type": "custom",
                "custom": {"name": "g", "namespace": "s", "input": ""},
            }
        ],
        [{"index": 1, "custom": {"input": "x"}}],
    ]


def test_interleaved_calls_are_said_one_after_the_other_each_as_soon_as_it_may() -> None:
    """Some readers take a call for complete when the next one begins."""
    encoder = CHAT.encoder(ASKED, STANDARD)
    calls = [FunctionCall(f"c{n}", "f", "{}", id=f"fc{n}", status="completed") for n in range(3)]
    events = [
        STARTED,
        *(ItemAdded(n, replace(call, arguments="")) for n, call in enumerate(calls)),
        Delta(2, 0, "arguments", "{}"),
        ItemDone(2, calls[2]),
        Delta(1, 0, "arguments", "{"),
        Delta(0, 0, "arguments", "{}"),
        ItemDone(0, calls[0]),
        Delta(1, 0, "arguments", "}"),
        ItemDone(1, calls[1]),
    ]
    indices = []
    for event in events:
        said = [d["tool_calls"] for d in deltas(encoder.feed((event,))) if "tool_calls" in d]
        indices.append([fragment["index"] for (fragment,) in said])
    assert indices == [[], [0], [], [], [], [], [], [0], [1, 1], [1], [2, 2]]


def test_calls_count_from_zero_in_every_choice() -> None:
    calls = [FunctionCall(f"c{n}", "f", "{}", id=f"fc{n}", status="completed") for n in range(4)]
    both = answer(*calls, choices=(0, 1, 0, 1), reasons=("tool_calls", "tool_calls"))
    said = gathered(told(both))["choices"]
    assert [[call["id"] for call in choice["message"]["tool_calls"]] for choice in said] == [
        ["c0", "c2"],
        ["c1", "c3"],
    ]


def test_fields_that_came_with_a_call_are_said_with_it_also_when_they_came_late() -> None:
    early = FunctionCall("c1", "f", "", id="fc1", extra={"chat": {"signature": "s"}})
    late = FunctionCall("c2", "f", "", id="fc2")
    events = [
        STARTED,
        ItemAdded(0, early),
        ItemDone(0, early),
        ItemAdded(1, late),
        ItemDone(1, FunctionCall("c2", "f", "", id="fc2", extra={"chat": {"signature": "t"}})),
    ]
    calls = [d["tool_calls"][0] for d in deltas(tell(events))[1:]]
    assert [call.get("signature") for call in calls] == ["s", None, "t"]
    assert calls[2] == {"index": 1, "signature": "t"}


def test_calls_of_an_unknown_kind_are_said_on_their_own_wire_only() -> None:
    own = Unknown("chat", "remote", {"id": "c1", "remote": {"x": 1}})
    foreign = Unknown("responses", "web_search_call", {"id": "ws"})
    both = answer(foreign, own)
    call = {"type": "remote", "id": "c1", "remote": {"x": 1}}
    assert deltas(told(both))[1:] == [{"tool_calls": [{"index": 0, **call}]}]
    assert body(both)["choices"][0]["message"]["tool_calls"] == [call]


def test_who_asked_with_functions_is_answered_with_a_function_call() -> None:
    one = FunctionCall("c1", "f", '{"a":1}', id="fc1", status="completed")
    two = FunctionCall("c2", "g", "{}", id="fc2", status="completed")
    said = gathered(told(answer(one, two, reasons=("tool_calls",)), LEGACY))["choices"][0]
    plain = body(answer(one, two, reasons=("tool_calls",)), LEGACY)["choices"][0]
    for choice in (said, plain):
        assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a":1}'}
        # That form has room for one; the others are said in the form that has room.
        assert [call["id"] for call in choice["message"]["tool_calls"]] == ["c2"]
        assert choice["finish_reason"] == "function_call"
    assert body(answer(SAID), LEGACY)["choices"][0]["finish_reason"] == "stop"


# ---- tokens ------------------------------------------------------------------------------

YES = Token("Yes", -0.5, b"Yes", (Token("Yes", -0.5, b"Yes"), Token("No", -1.0)), 7)
WEIGHED = {
    "id": 7,
    "token": "Yes",
    "logprob": -0.5,
    "bytes": [89, 101, 115],
    "top_logprobs": [
        {"token": "Yes", "logprob": -0.5, "bytes": [89, 101, 115]},
        {"token": "No", "logprob": -1.0, "bytes": None},
    ],
}


def test_v12_tokens_stand_beside_the_delta_they_belong_to() -> None:
    weighed = answer(
        Reasoning((Thought("Hm", (YES,)),), id="rs", status="completed"),
        Message("assistant", (Text("Yes", tokens=(YES,)), Refusal("No", (YES,))), "m", "completed"),
    )
    choices = [c for each in chunks(told(weighed))[:-1] for c in each["choices"]]
    assert [(list(c["delta"])[:1], c["logprobs"]) for c in choices] == [
        (["role"], None),
        (["reasoning"], {"content": [WEIGHED], "refusal": None}),
        (["content"], {"content": [WEIGHED], "refusal": None}),
        (["refusal"], {"content": None, "refusal": [WEIGHED]}),
        ([], None),
    ]
    whole = {"content": [WEIGHED, WEIGHED], "refusal": [WEIGHED]}
    assert body(weighed)["choices"][0]["logprobs"] == whole
    only = answer(Message("assistant", (Refusal("No", (YES,)),), "m", "completed"))
    assert body(only)["choices"][0]["logprobs"] == {"content": None, "refusal": [WEIGHED]}


def test_r2_30_none_asked_for_and_none_found_are_different() -> None:
    assert body(answer(SAID))["choices"][0]["logprobs"] is None
    none = {"content": [], "refusal": None}
    assert body(answer(SAID), WITH_LOGPROBS)["choices"][0]["logprobs"] == none
    assert gathered(told(answer(SAID), WITH_LOGPROBS))["choices"][0]["logprobs"] == none


# ---- beginning and end -------------------------------------------------------------------


def test_choices_end_each_with_its_reason_and_one_that_said_nothing_too() -> None:
    said = answer(SAID, choices=(1,), reasons=("content_filter", "length"))
    choices = [c for each in chunks(told(said))[:-1] for c in each["choices"]]
    assert [(c["index"], c["finish_reason"]) for c in choices if c["finish_reason"]] == [
        (0, "content_filter"),
        (1, "length"),
    ]
    assert [c["message"]["content"] for c in body(said)["choices"]] == [None, "Hello"]


def test_p24_a_failure_is_an_error_object_and_neither_a_reason_nor_an_end() -> None:
    cut = Fault("upstream_cut", "It was cut.", "upstream")
    events = [
        STARTED,
        ItemAdded(0, Message("assistant", (), "msg")),
        PartAdded(0, 0, Text("")),
        Delta(0, 0, "text", "Hel"),
        Failed(cut),
    ]
    stream = tell(events, WITH_USAGE)
    error = {
        "message": "It was cut.",
        "type": "server_error",
        "param": None,
        "code": "upstream_cut",
    }
    assert chunks(stream)[-1] == {"error": error}
    assert all(c["finish_reason"] is None for e in chunks(stream)[:-1] for c in e["choices"])
    assert DONE not in stream
    assert chunks(tell([Failed(cut)])) == [{"error": error}]


def test_p24_what_waited_for_its_turn_is_said_before_the_failure() -> None:
    calls = [FunctionCall(f"c{n}", "f", "", id=f"fc{n}") for n in range(3)]
    events = [
        STARTED,
        *(ItemAdded(n, call) for n, call in enumerate(calls)),
        *(Delta(n, 0, "arguments", f'{{"{n}"') for n in range(3)),
        Failed(Fault("upstream_cut", "It was cut.")),
    ]
    (message,) = (choice["message"] for choice in gathered(tell(events))["choices"])
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [
        '{"0"',
        '{"1"',
        '{"2"',
    ]
    assert "error" in chunks(tell(events))[-1]


def test_p27_a_heartbeat_is_a_comment_or_an_empty_chunk_and_only_during_an_answer() -> None:
    encoder = CHAT.encoder(WITH_USAGE, STANDARD)
    assert encoder.heartbeat() == encoder.heartbeat(data=True) == b""
    encoder.feed([STARTED])
    assert encoder.heartbeat() == b": alive\n\n"
    (said,) = chunks(encoder.heartbeat(data=True))
    assert said["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    assert (said["id"], said["usage"]) == ("chatcmpl-R", None)
    encoder.feed([Finished("completed")])
    assert encoder.heartbeat() == encoder.heartbeat(data=True) == b""
    broken = CHAT.encoder(ASKED, STANDARD)
    broken.feed([STARTED])
    broken.feed([Failed(Fault("internal", "x"))])
    assert broken.heartbeat() == b""


def test_fields_of_the_answer_we_do_not_know_are_said_again() -> None:
    started = Started("R", 5, "m", extra={"chat": {"system_fingerprint": "fp", "tier": "a"}})
    ends = [{"index": 0, "stop_reason": 7, "message": {"x": 1}}]
    extra = {"chat": {"timings": {"ms": 1}, "tier": "b", "choices": ends}}
    events = [started, ItemAdded(0, SAID), ItemDone(0, SAID), Finished("completed", extra=extra)]
    *others, last, _ = chunks(tell(events))
    assert {each["system_fingerprint"] for each in (*others, last)} == {"fp"}
    assert ({each["tier"] for each in others}, last["tier"]) == ({"a"}, "b")
    assert last["timings"] == {"ms": 1}
    assert last["choices"][0]["stop_reason"] == 7
    counted = [*events[:-1], Finished("completed", usage=Usage(1, 1, 2), extra=extra)]
    *_, finish, last, _ = chunks(tell(counted, WITH_USAGE))
    assert "timings" not in finish
    assert (last["timings"], last["usage"]["total_tokens"]) == ({"ms": 1}, 2)


def test_what_went_on_beside_the_answer_is_said_on_this_wire_only() -> None:
    raw = {"index": 0, "delta": {"vendor": 1}, "filter": {"x": 1}}
    encoder = CHAT.encoder(ASKED, STANDARD)
    encoder.feed([STARTED])
    (said,) = chunks(encoder.feed([Progress(None, "raw", {"chat": {"choices": [raw]}})]))
    assert said["choices"][0] == {**raw, "logprobs": None, "finish_reason": None}
    for other in (
        Progress(None, "raw", {"responses": {}}),
        Progress(None, "raw"),
        Progress(None, "queued"),
    ):
        assert encoder.feed([other]) == b""


def test_fields_beside_a_message_or_a_thought_are_said_when_it_is_done() -> None:
    details = [{"type": "reasoning.encrypted", "data": "QQ=="}]
    thought = Reasoning(id="rs", status="completed", extra={"chat": {"reasoning_details": details}})
    message = Message("assistant", (Text("x"),), "m", "completed", extra={"chat": {"vendor": 1}})
    said = answer(thought, message)
    assert deltas(told(said))[1:] == [
        {"reasoning_details": details},
        {"content": "x"},
        {"vendor": 1},
    ]
    plain = body(said)["choices"][0]["message"]
    assert (plain["reasoning_details"], plain["vendor"]) == (details, 1)


def test_kinds_of_deltas_and_parts_this_wire_has_no_word_for_say_nothing() -> None:
    events = [
        STARTED,
        ItemAdded(0, Unknown("responses", "code_interpreter_call", {})),
        Delta(0, 0, "code", "1 + 1"),
        ItemDone(0, Unknown("responses", "code_interpreter_call", {})),
        ItemAdded(1, Message("assistant", (), "m")),
        PartAdded(1, 0, UnknownPart("responses", {})),
        PartDone(1, 0, UnknownPart("responses", {})),
    ]
    role = {"role": "assistant", "content": None, "refusal": None}
    assert deltas(tell(events)) == [role]
