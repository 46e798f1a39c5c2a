"""Tokens, ends, failures, heartbeats, and what is said beside the answer."""

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
    FunctionCall,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Token,
    Unknown,
    UnknownPart,
)
from dragoman.core.request import Request
from dragoman.core.response import Usage
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD
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
