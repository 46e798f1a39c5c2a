"""Everything that is said to a Responses client, held against the protocol and its readers."""

import json
from typing import Any, get_args

import pytest

from dragoman.core.error import Code, Fault
from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.fold import fold, unfold
from dragoman.core.item import (
    Annotation,
    Audio,
    FunctionCall,
    Image,
    Message,
    Reasoning,
    Text,
    Token,
    Unknown,
    UnknownPart,
)
from dragoman.core.lifecycle import check
from dragoman.core.request import FunctionTool, Namespace, Request, UnknownTool
from dragoman.core.response import Response, Usage
from dragoman.core.turn import CUT
from dragoman.wire.protocol import STANDARD, Dialect
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.response import Echo
from dragoman.wire.tools import without_secrets
from tests import oracle
from tests.cases import cases
from tests.sdk import offline
from tests.wire.responses.order_checker import check_order, parse
from tests.wire.responses.scenes import FAILED, SCENES, play

ASKED = RESPONSES.decode_request(
    json.dumps(
        {
            "model": "asked-for",
            "input": "hi",
            "instructions": "Be brief.",
            "temperature": 0.5,
            "tools": [
                {"type": "function", "name": "first", "parameters": {}, "strict": False},
                {"type": "custom", "name": "apply_patch"},
            ],
            "metadata": {"a": "b"},
        }
    ).encode()
)
OPEN_ITEMS = {"message", "function_call", "function_call_output", "reasoning", "compaction"}


def say(events: list[Event], request: Request = ASKED, dialect: Dialect = STANDARD) -> bytes:
    encoder = RESPONSES.encoder(request, dialect)
    return b"".join(encoder.feed((event,)) for event in events)


def told(events: list[Event], request: Request = ASKED, **dialect: Any) -> list[dict[str, Any]]:
    return parse(say(events, request, Dialect(**dialect)))[0]


@pytest.mark.parametrize("scene", SCENES)
def test_p15_p17_r4_3_o2_o4_every_stream_is_in_order_valid_and_ends_once(scene) -> None:
    events = play(SCENES[scene])
    check(events)
    stream = say(events)
    told, done = parse(stream)  # O4: each frame names its event
    check_order(told)  # P15: one terminal event, and it is the last
    assert done == (scene != "cut_off")
    assert done == stream.endswith(b"}\n\ndata: [DONE]\n\n")
    assert b"\r" not in stream
    assert RESPONSES.encoder(ASKED, STANDARD).feed(events) == stream  # in one batch
    frames = RESPONSES.encoder(ASKED, STANDARD).frames(events)
    assert [json.loads(frame) for frame in frames] == told
    output = told[-1]["response"]["output"]
    assert len({item["id"] for item in output}) == len(output)
    for event in told:
        assert oracle.problems(event) == oracle.sdk_problems(event) == [], event
        if "item_id" in event:
            assert output[event["output_index"]]["id"] == event["item_id"]


@pytest.mark.parametrize("scene", SCENES)
def test_every_event_is_valid_for_open_responses(scene) -> None:
    request = Request(model="m")
    for event in told(play(SCENES[scene]), request, reasoning_events="reasoning"):
        if not _extension(event):
            assert oracle.problems(event, "openresponses") == [], event


def _extension(event: dict[str, Any]) -> bool:
    """Whether an event is about what Open Responses has no words for."""
    items = [event.get("item", {}), *event.get("response", {}).get("output", [])]
    kinds = {item["type"] for item in items if item}
    quoted = "file_citation" in json.dumps(event)
    return bool(kinds - OPEN_ITEMS) or "_call" in event["type"].split(".")[1] or quoted


@pytest.mark.parametrize("scene", sorted(SCENES.keys() - FAILED))
def test_r4_4_official_client_reads_the_same_answer_streamed_and_whole(scene) -> None:
    events = play(SCENES[scene])
    whole = RESPONSES.encode_response(fold(events), ASKED, STANDARD)
    assert json.loads(whole) == told(events)[-1]["response"]
    plain = offline.client(whole).responses.create(model="m", input="hi").to_dict()
    with offline.client(say(events)).responses.stream(model="m", input="hi") as stream:
        last = list(stream)[-1]
    assert _unparsed(last.response.to_dict()) == plain


def _unparsed(value: Any) -> Any:
    """The SDK's own additions (`parsed`, `parsed_arguments`) taken out again."""
    if isinstance(value, list):
        return [_unparsed(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {k: _unparsed(v) for k, v in value.items() if not k.startswith("parsed")}


# ---- numbers -----------------------------------------------------------------------------

VALUED = ("temperature", "top_p", "top_logprobs", "service_tier", "truncation", "tool_choice")
VALUED += ("presence_penalty", "frequency_penalty", "background", "store", "tools", "metadata")


def test_o3_every_snapshot_has_all_fields_and_values_where_values_are_wanted() -> None:
    required = oracle.required("openresponses", "ResponseResource")
    assert len(required) == 31
    for event in told(play(SCENES["text"]), Request(model="m")):
        if "response" in event:
            assert event["response"].keys() >= required
            assert None not in [event["response"][name] for name in VALUED]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault("upstream_error", "x", "upstream"), "server_error"),
        (Fault("upstream_refused", "x", "upstream", status=503), "server_error"),
        (Fault("upstream_refused", "x", "upstream", status=429), "rate_limit_exceeded"),
        (Fault("rate_limited", "x"), "rate_limit_exceeded"),
        (Fault("invalid_request", "x", "client", "input"), "invalid_prompt"),
        (Fault("upstream_refused", "x", upstream_code="invalid_image"), "invalid_image"),
        (Fault("upstream_refused", "x", upstream_code="odd", status=400), "server_error"),
        (CUT, "server_error"),
    ],
)
def test_o5_a_failure_in_mid_stream_has_a_code_of_the_protocol(fault, code) -> None:
    events = told([Started("1", 0, "m"), Failed(fault)])
    assert [event["type"] for event in events][2:] == ["response.failed"]
    assert events[-1]["response"]["error"]["code"] == code
    assert oracle.problems(events[-1]) == oracle.sdk_problems(events[-1]) == []


def test_r4_6_what_was_asked_is_repeated_in_every_snapshot() -> None:
    asked = cases(__file__, "accepted")["what an answer repeats"]
    request = RESPONSES.decode_request(json.dumps(asked).encode())
    described = {**asked["text"]["format"], "description": "", "strict": False}
    expected = {k: v for k, v in asked.items() if k not in ("input", "model", "text", "tools")}
    expected["text"] = {"format": described, "verbosity": "low"}
    expected["tools"] = [{**asked["tools"][0], "description": None}, asked["tools"][1]]
    for event in told(play(SCENES["text"]), request):
        if "response" in event:
            assert expected.items() <= event["response"].items()
            assert event["response"]["model"] == "model-1"
            assert oracle.problems(event) == oracle.sdk_problems(event) == []


def test_p16_a_custom_call_has_the_events_of_its_own_kind() -> None:
    types = {event["type"] for event in told(play(SCENES["custom_call"]))}
    assert "response.custom_tool_call_input.delta" in types
    assert not any("function_call" in type for type in types)
    called = told(play(SCENES["namespaced_call"]))[-1]["response"]["output"][0]
    assert (called["name"], called["namespace"]) == ("search", "mail")


# ---- the end, and what is before the beginning -------------------------------------------


@pytest.mark.parametrize("begun", [[], [Started("1", 0, "m")]], ids=["at once", "begun"])
@pytest.mark.parametrize("code", get_args(Code))
def test_p24_every_failure_is_done_but_for_a_cut(code, begun) -> None:
    done = say([*begun, Failed(Fault(code, "No."))]).endswith(b"data: [DONE]\n\n")
    assert done == (code != "upstream_cut")


def test_a_failed_response_has_all_that_came_and_leaves_it_open() -> None:
    events = told(play(SCENES["failed_during_calls"]))
    response = events[-1]["response"]
    assert [item["status"] for item in response["output"]] == ["in_progress"] * 2
    assert [item["arguments"] for item in response["output"]] == ['{"a"', '{"b"']
    assert "response.function_call_arguments.done" not in {event["type"] for event in events}


def test_a_failure_before_the_beginning_is_an_error_event() -> None:
    fault = Fault("model_not_found", "There is no model m.", "client", "model")
    (flat,) = told([Failed(fault)])
    assert oracle.problems(flat) == oracle.sdk_problems(flat) == []
    assert (flat["code"], flat["param"]) == ("model_not_found", "model")
    (nested,) = told([Failed(fault)], error_event="nested")
    assert oracle.problems(nested, "openresponses") == []
    assert nested["error"]["type"] == "invalid_request_error"


def test_nothing_is_encoded_after_the_end() -> None:
    encoder = RESPONSES.encoder(ASKED, STANDARD)
    for event in play(SCENES["text"]):
        encoder.feed([event])
    assert encoder.feed([Failed(CUT)]) == encoder.heartbeat() == b""


def test_a_cancelled_answer_is_one_that_stopped_early() -> None:
    last = told([Started("1", 0, "m"), Finished("cancelled")])[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "cancelled"
    assert oracle.problems(last) == oracle.sdk_problems(last) == []


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (("length",), "max_output_tokens"),
        (("stop", "length"), "max_output_tokens"),
        (("content_filter",), "content_filter"),
        (("steered",), "steered"),
        ((), "max_output_tokens"),
    ],
)
def test_why_an_answer_is_incomplete(reasons, said) -> None:
    last = told([Started("1", 0, "m"), Finished("incomplete", reasons)])[-1]
    assert last["response"]["incomplete_details"] == {"reason": said}


# ---- heartbeats --------------------------------------------------------------------------


def test_a_heartbeat_is_a_comment_or_the_next_event() -> None:
    encoder = RESPONSES.encoder(ASKED, STANDARD)
    assert encoder.heartbeat() == encoder.heartbeat(data=True) == b""
    stream = encoder.feed([Started("1", 0, "m")])
    assert encoder.heartbeat().startswith(b":")
    stream += encoder.heartbeat(data=True) + encoder.feed([Finished("completed")])
    events, _ = parse(stream)
    assert [event["sequence_number"] for event in events] == [0, 1, 2, 3]
    assert events[2]["response"] == events[1]["response"]
    assert events[2]["type"] == "response.in_progress"


# ---- what has no words here --------------------------------------------------------------


def _answer(*inside: Event) -> list[dict[str, Any]]:
    return told([Started("1", 0, "m"), *inside, Finished("completed")])


def test_items_and_parts_of_other_wires_have_no_place() -> None:
    foreign, part = Unknown("chat", "thing", {}, "x"), UnknownPart("chat", {"type": "y"})
    whole = Message("assistant", (part, Text("Hi")), "msg_1", "completed")
    events = _answer(
        ItemAdded(0, foreign),
        Progress(0, "searching"),
        Progress(0, "raw", {"responses": {"type": "response.x"}}),
        ItemDone(0, foreign),
        ItemAdded(1, Message("assistant", (), "msg_1", "in_progress")),
        PartAdded(1, 0, part),
        PartDone(1, 0, part),
        PartAdded(1, 1, Text("")),
        Delta(1, 1, "text", "Hi"),
        PartDone(1, 1, Text("Hi")),
        Delta(1, 0, "annotation", Annotation("url_citation")),
        ItemDone(1, whole),
    )
    check_order(events)
    assert [item["id"] for item in events[-1]["response"]["output"]] == ["msg_1"]
    assert len(events[-1]["response"]["output"][0]["content"]) == 1


def test_unknown_events_are_encoded_on_their_own_wire_only() -> None:
    thing = Unknown("responses", "x_call", {"id": "x_1"}, "x_1")
    beside = {"type": "vendor.news", "item_id": "?", "output_index": 9, "n": 1}
    events = _answer(
        Progress(None, "raw", {"chat": {"vendor": 1}}),
        Progress(None, "raw", {"responses": {"type": "keepalive"}}),
        Progress(None, "queued"),
        ItemAdded(0, thing),
        Progress(0, "raw", {"responses": beside}),
        Delta(0, 0, "code", "x = 1"),
        Delta(0, 0, "arguments", "{}"),
        ItemDone(0, thing),
    )
    types = [event["type"] for event in events]
    assert types[2:] == [
        "keepalive",
        "response.output_item.added",
        "vendor.news",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[4] == {**beside, "item_id": "x_1", "output_index": 0, "sequence_number": 4}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_an_item_without_an_id_gets_one_from_its_place() -> None:
    called = FunctionCall("c", "f", "{}", status="completed")
    events = _answer(
        ItemAdded(0, FunctionCall("c", "f", "")),
        Delta(0, 0, "arguments", "{}"),
        ItemDone(0, called),
    )
    check_order(events)
    assert events[-1]["response"]["output"][0]["id"] == "fc_1_0"


def test_audio_is_encoded_as_its_transcript() -> None:
    events = _answer(
        ItemAdded(0, Message("assistant", (), "msg_1")),
        PartAdded(0, 0, Audio(id="audio_1", format="wav")),
        Delta(0, 0, "audio", "QUJD"),
        Delta(0, 0, "transcript", "Hel"),
        Delta(0, 0, "transcript", "lo"),
        PartDone(0, 0, Audio("QUJD", "wav", "Hello", "audio_1")),
        ItemDone(0, Message("assistant", (Audio("QUJD", "wav", "Hello", "audio_1"),), "msg_1")),
    )
    check_order(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"


def test_probabilities_that_are_not_known_are_left_out() -> None:
    tokens = (Token("a", -1.0), Token("b"), Token("é", -2.0, None, (Token("x"), Token("y", -3.0))))
    events = _answer(
        ItemAdded(0, Message("assistant", (), "msg_1")),
        PartAdded(0, 0, Text("")),
        Delta(0, 0, "text", "abé", tokens),
        PartDone(0, 0, Text("abé", (), tokens)),
        ItemDone(0, Message("assistant", (Text("abé", (), tokens),), "msg_1")),
    )
    check_order(events)
    first, last = events[4]["logprobs"]
    assert first == {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
    assert last["bytes"] == [195, 169]
    assert [top["token"] for top in last["top_logprobs"]] == ["y"]
    assert all(oracle.problems(e) == oracle.sdk_problems(e) == [] for e in events)


def test_an_annotation_has_every_field_its_type_demands() -> None:
    notes = tuple(
        Annotation(kind)
        for kind in ("url_citation", "file_citation", "container_file_citation", "file_path")
    )
    events = _answer(
        ItemAdded(0, Message("assistant", (), "msg_1")),
        PartAdded(0, 0, Text("")),
        *(Delta(0, 0, "annotation", note) for note in notes),
        PartDone(0, 0, Text("", notes)),
        ItemDone(0, Message("assistant", (Text("", notes),), "msg_1")),
    )
    check_order(events)
    assert all(oracle.problems(e) == oracle.sdk_problems(e) == [] for e in events)


# ---- usage and the rest of the response --------------------------------------------------


def test_usage_that_was_never_reported_is_null_and_otherwise_complete() -> None:
    assert _answer()[-1]["response"]["usage"] is None
    counted = Usage(input_tokens=3, output_tokens=2)
    last = told([Started("1", 0, "m"), Finished("completed", usage=counted)])[-1]
    assert last["response"]["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }


def test_unknown_fields_of_the_upstream_response_are_encoded_again() -> None:
    extra = {"responses": {"service_tier": "priority", "tool_usage": {"n": 1}}, "chat": {"x": 1}}
    last = told([Started("1", 0, "m", extra=extra), Finished("completed")])[-1]["response"]
    assert (last["service_tier"], last["tool_usage"]) == ("priority", {"n": 1})
    assert "x" not in last


def test_a_servers_own_fields_replace_those_repeated_from_the_request() -> None:
    extra = {"responses": {"service_tier": "flex", "model": "other", "vendor": 1}}
    events: list[Event] = [Started("1", 0, "m", extra=extra), Finished("completed", ("stop",))]
    plain = told([Started("1", 0, "m"), events[1]])
    changed = told(events)
    for before, after in zip(plain, changed, strict=True):
        before["response"] |= {"service_tier": "flex", "model": "other", "vendor": 1}
        assert list(after["response"].items()) == list(before["response"].items())


def test_half_a_character_in_a_delta_is_replaced() -> None:
    text, halves = Text(""), [Delta(0, 0, "text", half) for half in ("a", "\ud83d", "\ud83d", "b")]
    opened = [Started("1", 0, "m"), ItemAdded(0, Message("assistant")), PartAdded(0, 0, text)]
    encoder = RESPONSES.encoder(ASKED, STANDARD)
    pieces = [encoder.feed(batch) for batch in (opened, halves[:1], halves[1:2], halves[2:])]
    events, _ = parse(b"".join(pieces))
    deltas = [each["delta"] for each in events if each["type"].endswith("text.delta")]
    assert deltas == ["a", "\ufffd", "\ufffd", "b"]


@pytest.mark.parametrize("include", [(), ("reasoning.encrypted_content",)])
def test_encrypted_reasoning_of_a_stored_answer_is_shown_where_it_is_included(include) -> None:
    request = Request(model="m", store=True, include=include)
    output = (Reasoning(encrypted="x", id="rs_1"),)
    response = Response(id="1", created_at=0, model="m", status="completed", output=output)
    whole = json.loads(RESPONSES.encode_response(response, request, STANDARD))
    streamed = told(list(unfold(response)), request)[-1]["response"]
    assert streamed["output"] == whole["output"]
    assert ("encrypted_content" in whole["output"][0]) is bool(include)


def test_an_answer_in_the_background_begins_as_queued() -> None:
    request = Request(model="m", background=True, prompt_cache_retention="24h")
    events = told([Started("1", 0, "m")], request)
    assert events[0]["response"]["prompt_cache_retention"] == "24h"
    states = [(each["type"], each["response"]["status"]) for each in events]
    assert states == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.in_progress", "in_progress"),
    ]


def test_deltas_of_another_choice_have_no_place() -> None:
    message, text = Message("assistant"), Text("")
    events: list[Event] = [Started("1", 0, "m")]
    for index in (0, 1):
        events += [ItemAdded(index, message, choice=1 - index), PartAdded(index, 0, text)]
    events += [Delta(index, 0, "text", data) for index, data in ((0, "a"), (1, "b"), (1, "c"))]
    deltas = [each["delta"] for each in told(events) if each["type"].endswith("text.delta")]
    assert deltas == ["b", "c"]


def test_of_several_choices_the_first_is_the_answer() -> None:
    response = Response(
        id="1",
        created_at=0,
        model="m",
        status="completed",
        output=(Message("assistant", "One."), Message("assistant", "Two.")),
        choices=(0, 1),
        reasons=("stop", "stop"),
    )
    encoded = json.loads(RESPONSES.encode_response(response, Request(model="m"), STANDARD))
    assert [item["content"][0]["text"] for item in encoded["output"]] == ["One."]


def test_a_part_without_text_is_only_added_and_done() -> None:
    response = Response(
        id="1",
        created_at=0,
        model="m",
        status="completed",
        output=(Message("assistant", (Image(url="https://example.com/a.png"),)),),
        reasons=("stop",),
    )
    encoder = RESPONSES.encoder(Request(model="m"), STANDARD)
    names = [told["type"] for told in parse(encoder.feed(list(unfold(response))))[0]]
    assert [name for name in names if "part" in name or "text" in name] == [
        "response.content_part.added",
        "response.content_part.done",
    ]


def test_what_is_too_large_to_be_repeated_is_left_out() -> None:
    request = Request(
        model="m",
        tools=(FunctionTool("f", "x" * 900_000),),
        metadata={"a": "x" * 900_000},
        user="x" * 900_000,
        prompt_cache_key="key",
    )
    echoed = json.loads(b"{" + Echo(request).data + b"}")
    assert (echoed["tools"], echoed["metadata"], echoed["user"]) == ([], {}, None)
    assert echoed["prompt_cache_key"] == "key"


def test_credentials_for_mcp_servers_are_not_repeated() -> None:
    mcp = {"server_label": "s", "server_url": "https://h/", "authorization": "secret"}
    tools = (
        UnknownTool("responses", "mcp", {**mcp, "headers": {"x-key": "secret"}}),
        Namespace("group", (UnknownTool("responses", "mcp", mcp), FunctionTool("f"))),
        Namespace("other", (FunctionTool("g"),)),
        UnknownTool("responses", "web_search", {"authorization": "a field of its own"}),
    )
    echoed = json.loads(b"{" + Echo(Request(model="m", tools=tools)).data + b"}")["tools"]
    shown = {"type": "mcp", "server_label": "s", "server_url": "https://h/"}
    assert echoed[0] == shown
    assert echoed[1]["tools"][0] == shown
    assert echoed[3]["authorization"] == "a field of its own"
    assert without_secrets(tools[2:]) == tools[2:]
    same = tools[2:]
    assert without_secrets(same) is same
    # The server that runs the tool is sent them.
    sent, _ = RESPONSES.encode_request(Request(model="m", tools=tools), STANDARD)
    assert sent.count(b"secret") == 3
