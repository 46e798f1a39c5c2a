"""Realtime's client and server events, and the objects in them, decoded and encoded."""

from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.event import Delta, ItemAdded, ItemDone, PartAdded, Progress
from dragoman.core.item import (
    Audio,
    CustomToolCall,
    File,
    FunctionCallOutput,
    Image,
    ItemReference,
    Message,
    Refusal,
    Text,
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import Loss
from dragoman.core.request import FunctionTool, NamedTool, ReasoningOptions, UnknownTool
from dragoman.core.response import Usage
from dragoman.core.session_values import (
    Answer,
    Append,
    BufferCommitted,
    Command,
    Configure,
    ConversationItemAdded,
    CreateItem,
    ItemRetrieved,
    Playing,
    RateLimits,
    Refused,
    Respond,
    ResponseDone,
    SessionConfig,
    SessionCreated,
    SessionEvent,
    SessionResponse,
    SessionUpdated,
    ToneReceived,
    Transcription,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    TranscriptionSegment,
    TurnDetection,
    UnknownEvent,
    Unreadable,
)
from dragoman.wire import json
from dragoman.wire.json import Fields
from dragoman.wire.realtime import commands
from dragoman.wire.realtime.beta import to_beta, to_ga
from dragoman.wire.realtime.commands import command_of, decode_command, encode_command
from dragoman.wire.realtime.config import decode_config, encode_config
from dragoman.wire.realtime.events import decode_event, encode_events
from dragoman.wire.realtime.items import decode_item, encode_item
from tests.oracle import realtime_problems, realtime_types

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
MCP = {"type": "mcp", "server_label": "s", "server_url": "https://example.com"}
FULL: dict[str, Any] = {
    "type": "realtime",
    "model": "m",
    "output_modalities": ["audio"],
    "instructions": "Be brief.",
    "tools": [TOOL, MCP],
    "tool_choice": {"type": "function", "name": "weather"},
    "max_output_tokens": 7,
    "truncation": "disabled",
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "noise_reduction": {"type": "near_field"},
            "transcription": {"model": "whisper-1", "language": "en", "delay": "low"},
            "turn_detection": {
                "type": "semantic_vad",
                "eagerness": "high",
                "create_response": False,
                "interrupt_response": True,
            },
        },
        "output": {"format": {"type": "audio/pcmu"}, "voice": {"id": "v1"}, "speed": 1.25},
    },
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "more": 1},
    "temperature": 0.5,
    "tracing": "auto",
    "prompt": {"id": "pmpt_1"},
    "include": ["item.input_audio_transcription.logprobs"],
    "vendor": {"a": 1},
}
"""Every field of a session."""


def decoded(session: dict[str, Any]) -> SessionConfig:
    return SessionConfig(**decode_config(Fields(session, "session")))


def test_a_configuration_is_decoded_and_encoded() -> None:
    config = decoded(FULL)
    assert config.tools[0] == FunctionTool(
        "weather", None, {"type": "object"}, extra={"realtime": {"strict": None}}
    )
    assert isinstance(config.tools[1], UnknownTool)
    assert config.tool_choice == NamedTool("weather")
    assert config.reasoning == ReasoningOptions("low", extra={"realtime": {"more": 1}})
    assert config.turn_detection == TurnDetection(
        kind="semantic_vad", eagerness="high", create_response=False
    )
    assert config.transcription == Transcription(
        model="whisper-1", language="en", extra={"realtime": {"delay": "low"}}
    )
    assert config.voice == {"id": "v1"}
    assert encode_config(config) == FULL
    assert decoded(encode_config(config)) == config


def test_a_configuration_for_openai_is_what_its_schema_takes() -> None:
    session = encode_config(decoded({n: v for n, v in FULL.items() if n != "vendor"}))
    assert realtime_problems({"type": "session.update", "session": session}, "Client") == []
    listening = encode_config(SessionConfig(kind="transcription", turn_detection=None))
    assert realtime_problems({"type": "session.update", "session": listening}, "Client") == []
    assert listening["audio"] == {
        "input": {"format": {"type": "audio/pcm", "rate": 24_000}, "turn_detection": None}
    }
    tool = FunctionTool("f", "about", {"type": "object"}, strict=True)
    (shown,) = encode_config(SessionConfig(tools=(tool, UnknownTool("chat", "x", {}))))["tools"]
    assert "strict" not in shown


def test_only_what_is_given_changes_and_null_turns_off() -> None:
    assert decode_config(Fields({"type": "realtime"})) == {"kind": "realtime"}
    assert decode_config(Fields({})) == {}
    assert decode_config(Fields({"instructions": None, "id": "s", "object": "o"})) == {}
    off = {"input": {"turn_detection": None, "transcription": None, "noise_reduction": None}}
    given = {"audio": off, "tracing": None, "prompt": None, "max_output_tokens": "inf"}
    assert decode_config(Fields(given)) == {
        "turn_detection": None,
        "transcription": None,
        "noise_reduction": None,
        "tracing": None,
        "prompt": None,
        "max_output_tokens": None,
    }
    assert decode_config(Fields({"audio": {"output": {}, "input": {}}})) == {}
    assert decode_config(Fields({"audio": {}})) == {}


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"type": "live"}, "session.type"),
        ({"output_modalities": ["video"]}, "session.output_modalities[0]"),
        ({"max_output_tokens": 0}, "session.max_output_tokens"),
        ({"audio": {"output": {"voice": 7}}}, "session.audio.output.voice"),
        ({"audio": {"output": {"speed": 9}}}, "session.audio.output.speed"),
        ({"audio": {"input": {"format": {"rate": 8000}}}}, "session.audio.input.format.rate"),
        ({"audio": {"input": {"format": {"type": "mp3"}}}}, "session.audio.input.format.type"),
        (
            {"audio": {"input": {"turn_detection": {"threshold": 2}}}},
            "session.audio.input.turn_detection.threshold",
        ),
        (
            {"audio": {"input": {"turn_detection": {"idle_timeout_ms": 1}}}},
            "session.audio.input.turn_detection.idle_timeout_ms",
        ),
        ({"tools": [{"type": "function"}]}, "session.tools[0].name"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
    ],
)
def test_an_error_names_the_field(session, param) -> None:
    with pytest.raises(FaultError) as refused:
        decode_config(Fields(session, "session"))
    assert refused.value.fault.param == param


ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "s"}]},
    {
        "id": "u1",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "a"},
            {"type": "input_audio", "audio": "AAAA", "transcript": "b"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
            {"type": "input_smell", "of": "roses"},
        ],
        "vendor": 1,
    },
    {
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": "c", "more": True},
            {"type": "output_audio", "transcript": "d"},
        ],
    },
    {"id": "f1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "x"},
    {"type": "mcp_approval_response", "id": "m1", "approval_request_id": "a", "approve": True},
]


@pytest.mark.parametrize("value", ITEMS, ids=lambda value: value["type"])
def test_r3_8_an_item_is_decoded_and_encoded(value) -> None:
    item = decode_item(Fields(value))
    assert encode_item(item) == {**value, **_object(item)}
    assert decode_item(Fields(encode_item(item))) == item


def _object(item: Any) -> dict[str, str]:
    return {} if isinstance(item, Unknown) else {"object": "realtime.item"}


def test_items_of_other_wires_and_dialects() -> None:
    old = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}]}
    assert decode_item(Fields(old)) == Message("assistant", (Text("a"),))
    assert encode_item(Message("developer", "Hi"))["role"] == "system"
    assert encode_item(Message("assistant", (Refusal("No."),)))["content"] == [
        {"type": "output_text", "text": "No."}
    ]
    output = FunctionCallOutput("c1", (Text("a"), Image("https://x"), Text("b")))
    assert encode_item(output)["output"] == "ab"
    assert encode_item(ItemReference("u1")) == {"type": "item_reference", "id": "u1"}
    assert decode_item(Fields({"type": "item_reference", "id": "u1"})) == ItemReference("u1")
    assert encode_item(Message("user", (UnknownPart("realtime", {"type": "x"}),)))["content"] == [
        {"type": "x"}
    ]
    for item in (CustomToolCall("c1", "f", ""), Message("user", (File("file_1"),))):
        with pytest.raises(FaultError, match="has no place for"):
            encode_item(item)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "type"),
        ({"type": "message"}, "role"),
        ({"type": "message", "role": "tool"}, "role"),
        ({"type": "message", "role": "user", "content": [{}]}, "content[0].type"),
        ({"type": "message", "role": "user", "content": [{}] * 4_097}, "content"),
        ({"type": "function_call"}, "name"),
        ({"type": "function_call_output", "call_id": "c"}, "output"),
        ({"type": "item_reference"}, "id"),
    ],
)
def test_an_error_names_the_field_of_an_item(item, param) -> None:
    with pytest.raises(FaultError) as refused:
        decode_item(Fields(item))
    assert refused.value.fault.param == param


COMMANDS: list[dict[str, Any]] = [
    {"type": "session.update", "session": FULL},
    {"type": "session.update", "session": {"type": "realtime"}},
    {"type": "input_audio_buffer.append", "audio": "AAAA"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    {"type": "conversation.item.create", "previous_item_id": "root", "item": ITEMS[3]},
    {"type": "conversation.item.retrieve", "item_id": "u1"},
    {"type": "conversation.item.delete", "item_id": "u1"},
    {
        "type": "conversation.item.truncate",
        "item_id": "u1",
        "content_index": 0,
        "audio_end_ms": 7,
    },
    {"type": "response.create", "event_id": "e1"},
    {"type": "response.create", "response": {"instructions": "x"}},
    {
        "type": "response.create",
        "response": {
            "instructions": "x",
            "output_modalities": ["text"],
            "tools": [TOOL],
            "tool_choice": "none",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "low"},
            "max_output_tokens": "inf",
            "prompt": {"id": "p"},
            "audio": {"output": {"voice": "ash", "format": {"type": "audio/pcma"}}},
            "conversation": "none",
            "input": [ITEMS[3]],
            "metadata": {"a": "b"},
        },
    },
    {"type": "response.cancel", "response_id": "r1"},
    {"type": "response.cancel"},
]


@pytest.mark.parametrize("value", COMMANDS, ids=lambda value: value["type"])
def test_a_client_event_is_decoded_and_encoded(value) -> None:
    command = decode_command(json.dump(value))
    assert not isinstance(command, Unreadable)
    again = encode_command(command)
    assert decode_command(json.dump(again)) == command
    assert _bare(again) == _bare(value)
    assert realtime_problems(_bare(again), "Client") == []


def _bare(value: Any) -> Any:
    """Without what only makes it an object."""
    if isinstance(value, dict):
        return {n: _bare(v) for n, v in value.items() if n not in ("object", "temperature")}
    return [*map(_bare, value)] if isinstance(value, list) else value


def test_r3_2_every_client_event_of_the_protocol_is_known() -> None:
    assert {value["type"] for value in COMMANDS} == realtime_types("Client")
    assert set(commands._DECODERS) == realtime_types("Client")


@pytest.mark.parametrize(
    ("data", "message", "event_id"),
    [
        (b"{", "is not valid JSON", None),
        (b"[]", "is an array", None),
        (b'{"event_id": "e1"}', "type: is missing", "e1"),
        (b'{"event_id": 1}', "event_id: is a number", None),
        (json.dump({"event_id": "e" * 513, "type": "x"}), "more than 512 characters", None),
        (b'{"event_id": "e1", "type": "x"}', "type: is 'x', which is no event", "e1"),
        (b'{"type": "session.update"}', "session: is missing", None),
        (b'{"type": "input_audio_buffer.append"}', "audio: is missing", None),
        (b'{"type": "input_audio_buffer.append", "audio": "?"}', "audio: is not base64", None),
        (b'{"type": "conversation.item.create"}', "item: is missing", None),
        (
            b'{"type": "conversation.item.create", "item": {"type": "item_reference", "id": "a"}}',
            "stands in the input of an answer only",
            None,
        ),
        (b'{"type": "conversation.item.truncate", "item_id": "a"}', "audio_end_ms: is miss", None),
    ],
)
def test_what_makes_no_sense_is_a_command_to_be_refused(data, message, event_id) -> None:
    command = decode_command(data)
    assert isinstance(command, Unreadable)
    assert message in command.fault.message
    assert command.event_id == event_id


def test_an_append_has_15_mib_at_the_most(monkeypatch) -> None:
    monkeypatch.setattr(commands, "MAX_AUDIO", 8)

    def appended(size: int) -> Command:
        audio = b64encode(b"\0" * size).decode()
        return decode_command(json.dump({"type": "input_audio_buffer.append", "audio": audio}))

    assert appended(8) == Append(audio=b"\0" * 8)
    refused = appended(12)
    assert isinstance(refused, Unreadable)
    assert refused.fault.code == "too_large"
    assert commands.MAX_AUDIO == 8


def test_an_item_with_long_names_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(commands, "MAX_OTHER", 8)

    def created(name: str) -> Command:
        item = {"type": "function_call", "name": name, "call_id": "c1", "arguments": "{}"}
        return decode_command(json.dump({"type": "conversation.item.create", "item": item}))

    assert isinstance(created("f" * 6), CreateItem)
    refused = created("f" * 7)
    assert isinstance(refused, Unreadable)
    assert (refused.fault.code, refused.fault.param) == ("too_large", "item")


def test_no_event_for_a_command_of_ours() -> None:
    with pytest.raises(FaultError, match="Unreadable is no event"):
        encode_command(Unreadable(fault=Fault("internal", "x")))
    assert encode_command(Configure(changes={"extra": {"realtime": {"a": 1}}})) == {
        "type": "session.update",
        "session": {"type": "realtime", "a": 1},
    }
    assert encode_command(Respond()) == {"type": "response.create"}
    assert encode_command(CreateItem(item=Message("user", "Hi"), event_id="e"))["event_id"] == "e"


# ---- server events ---------------------------------------------------------------------------

FAULT = Fault("upstream_error", "It broke.", "upstream")
CALL = Unknown(
    "realtime", "mcp_call", {"server_label": "s", "name": "n", "arguments": "{}"}, "item_9"
)
EVENTS: list[SessionEvent] = [
    SessionCreated("sess_1", SessionConfig(model="m"), 1_700_000_000),
    SessionUpdated("sess_1", SessionConfig(kind="transcription")),
    TranscriptionDelta("item_1", 0, "a", logprobs=[{"token": "a", "logprob": -1.0, "bytes": [97]}]),
    TranscriptionSegment("item_1", 0, "seg_1", "a", "A", 0.5, 1.0),
    TranscriptionCompleted("item_1", 0, "a", 1.5),
    TranscriptionCompleted(
        "item_1",
        0,
        "a",
        usage={"type": "tokens", "input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
        logprobs=[],
    ),
    TranscriptionFailed("item_1", 0, FAULT),
    Playing("resp_1", "started"),
    Playing("resp_1", "stopped"),
    Playing("resp_1", "cleared"),
    ToneReceived("5", 1_700_000_000),
    RateLimits(({"name": "requests", "limit": 5, "remaining": 4, "reset_seconds": 0.5},)),
    Refused(FAULT, "mine"),
    Answer("resp_1", "item_9", ItemAdded(0, CALL), "mcp_call"),
    Answer("resp_1", "item_9", Delta(0, 0, "arguments", "{"), "mcp_call"),
    Answer("resp_1", "item_9", Progress(0, "raw", {"realtime": {"arguments": "{}"}}), "mcp_call"),
    Answer("", "item_9", Progress(0, "in_progress"), "mcp_call"),
    Answer("", "item_9", Progress(0, "completed"), "mcp_call"),
    Answer("", "item_9", Progress(0, "failed"), "mcp_call"),
    Answer("resp_1", "item_9", ItemDone(0, CALL), "mcp_call"),
    Answer("", "item_8", Progress(0, "in_progress"), "mcp_list_tools"),
    Answer("", "item_8", Progress(0, "completed"), "mcp_list_tools"),
    Answer("", "item_8", Progress(0, "failed"), "mcp_list_tools"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_server_event_is_encoded_and_decoded(event) -> None:
    objects = encode_events([event], lambda: "event_1")
    for each in objects:
        if each["type"].startswith("response.mcp_call."):
            assert "response_id" not in each
        if not each["type"].startswith("response.output_item"):
            assert realtime_problems(each) == []
    decoded = [each for object in objects for each in decode_event(object)]
    assert encode_events(decoded, lambda: "event_1") == objects


def test_every_server_event_of_the_protocol_is_encoded() -> None:
    """Those that are not here are in the tables of orders."""
    ours = {each["type"] for each in encode_events(EVENTS, lambda: "e")}
    ordered = realtime_types("Server") - ours
    assert len(realtime_types("Server")) == 46
    assert "conversation.item.created" in ordered  # of the beta dialect
    assert ordered.isdisjoint({"error", "rate_limits.updated"})


def test_r3_3_what_an_upstream_sends_and_we_do_not_know_is_kept() -> None:
    strange = [
        {"type": "session.dreamt", "of": "sheep"},
        {"type": "response.output_smell.delta", "response_id": "r", "item_id": "i", "delta": "a"},
        {"type": "conversation.item.added"},
        {"type": "conversation.item.deleted", "item_id": 7},
    ]
    for event in strange:
        (found,) = decode_event(event)
        assert isinstance(found, UnknownEvent)
        (again,) = encode_events([found], lambda: "e")
        assert {**again, **event} == again
    assert decode_event({"type": 7}) == []
    assert decode_event({"type": "response.output_text.done"}) == []


def test_events_with_little_in_them_are_read() -> None:
    (failed,) = decode_event({"type": "error"})
    assert isinstance(failed, Refused)
    assert "reported an error" in failed.fault.message
    (created,) = decode_event({"type": "conversation.item.created", "item": ITEMS[0]})
    assert isinstance(created, ConversationItemAdded)
    (done,) = decode_event({"type": "response.done", "response": {"id": "r", "status": "odd"}})
    assert isinstance(done, ResponseDone)
    assert done.response == SessionResponse(id="r")
    error = {"type": "failed", "error": {"type": "server_error", "code": "x", "message": "m"}}
    response = {"status": "failed", "status_details": error, "usage": {"input_tokens": 1}}
    (done,) = decode_event({"type": "response.done", "response": response})
    assert isinstance(done, ResponseDone)
    assert done.response.fault is not None
    assert done.response.usage == Usage(input_tokens=1)
    assert decode_event({"type": "session.created"}) == [
        SessionCreated("", SessionConfig(turn_detection=None))
    ]
    part = {"type": "response.content_part.added", "item_id": "i", "part": {"type": "output_audio"}}
    (answer,) = decode_event(part)
    assert isinstance(answer, Answer)
    assert answer.event == PartAdded(0, 0, Audio(format="pcm16", transcript=""))


def test_losses_are_reported_where_http_has_a_header() -> None:
    loss = Loss("output_modalities", "dropped", "why")
    events = [
        SessionUpdated("s", SessionConfig(), losses=(loss,)),
        ResponseDone(SessionResponse(id="r", status="completed", losses=(loss,))),
    ]
    for event in encode_events(events, lambda: "e"):
        assert event["headers"] == {"x-dragoman-loss": "dropped: output_modalities"}


def test_a_failed_answer_has_no_code_where_its_fault_has_none() -> None:
    response = SessionResponse(id="r", status="failed", fault=bad_request("is missing", "x"))
    (event,) = encode_events([ResponseDone(response)], lambda: "e")
    assert realtime_problems(event) == []


def test_progress_without_an_event_of_its_own_is_left_out() -> None:
    assert encode_events([Answer("r", "i", Progress(0, "searching"))], lambda: "e") == []
    assert encode_events([Answer("r", "i", Progress(0, "completed"))], lambda: "e") == []


# ---- the beta dialect --------------------------------------------------------------------------

OLD_SESSION = {
    "modalities": ["text", "audio"],
    "voice": "alloy",
    "input_audio_format": "g711_ulaw",
    "output_audio_format": "pcm16",
    "input_audio_transcription": {"model": "whisper-1"},
    "turn_detection": None,
    "max_response_output_tokens": "inf",
    "temperature": 0.8,
    "instructions": "x",
}
NEW_SESSION = {
    "type": "realtime",
    "output_modalities": ["audio"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcmu"},
            "transcription": {"model": "whisper-1"},
            "turn_detection": None,
        },
        "output": {"voice": "alloy", "format": {"type": "audio/pcm", "rate": 24_000}},
    },
    "max_output_tokens": "inf",
    "temperature": 0.8,
    "instructions": "x",
}
OLD_ITEM = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}]}
NEW_ITEM = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "a"}],
}
PAIRS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"type": "session.update", "session": OLD_SESSION},
        {"type": "session.update", "session": NEW_SESSION},
    ),
    (
        {"type": "response.create", "response": {"modalities": ["text"], "input": [OLD_ITEM, 1]}},
        {
            "type": "response.create",
            "response": {"output_modalities": ["text"], "input": [NEW_ITEM, 1]},
        },
    ),
    (
        {"type": "conversation.item.create", "item": OLD_ITEM},
        {"type": "conversation.item.create", "item": NEW_ITEM},
    ),
    (
        {"type": "response.text.delta", "delta": "a"},
        {"type": "response.output_text.delta", "delta": "a"},
    ),
    (
        {"type": "response.audio_transcript.done", "transcript": "a"},
        {"type": "response.output_audio_transcript.done", "transcript": "a"},
    ),
    ({"type": "response.cancel"}, {"type": "response.cancel"}),
    (
        {"type": "transcription_session.updated", "session": {"input_audio_format": "pcm16"}},
        {
            "type": "session.updated",
            "session": {
                "type": "transcription",
                "audio": {"input": {"format": {"type": "audio/pcm", "rate": 24_000}}},
            },
        },
    ),
    (
        {
            "type": "response.done",
            "response": {"status_details": None, "usage": None, "status": "completed"},
        },
        {
            "type": "response.done",
            "response": {"status_details": None, "usage": None, "status": "completed"},
        },
    ),
]


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda value: value["type"])
def test_the_beta_dialect_says_the_same(old, new) -> None:
    assert to_ga(old) == [new]
    assert to_beta(new) == [old]


def test_items_are_created_in_the_beta_dialect() -> None:
    old = {"type": "conversation.item.created", "item": {**OLD_ITEM, "status": "completed"}}
    added, done = to_ga(old)
    assert (added["type"], done["type"]) == ("conversation.item.added", "conversation.item.done")
    assert to_beta(added) == [old]
    assert to_beta(done) == []
    opened = {"type": "conversation.item.created", "item": {**OLD_ITEM, "status": "in_progress"}}
    assert [event["type"] for event in to_ga(opened)] == ["conversation.item.added"]


def test_odd_values_pass_between_the_dialects_as_they_are() -> None:
    odd = {
        "type": "session.update",
        "session": {"modalities": "all", "input_audio_format": 7, "output_audio_format": "opus"},
    }
    (new,) = to_ga(odd)
    assert new["session"]["audio"] == {"input": {"format": 7}, "output": {"format": "opus"}}
    assert to_beta(new) == [odd]
    for item in (7, {"role": "assistant"}, {"role": "assistant", "content": [7]}):
        event = {"type": "conversation.item.create", "item": item}
        assert to_ga(event) == [event]
    assert to_ga({"type": "conversation.item.created"})[1]["type"] == "conversation.item.done"
    assert to_beta({"type": "session.update", "session": {"audio": 7}}) == [
        {"type": "session.update", "session": {}}
    ]


@pytest.mark.parametrize("odd", [None, 7, "x", [], [{}], {}])
def test_odd_values_are_alike_in_both_dialects(odd) -> None:
    parts = [{"type": odd}, {"type": {"a": odd}}, odd]
    item = {"type": "conversation.item.create", "item": {"role": "assistant", "content": parts}}
    assert to_ga(item) == to_beta(item) == [item]
    (nested,) = to_ga({"response": {"audio": odd, "voice": "v"}})
    assert nested["response"]["audio"]["output"] == {"voice": "v"}
    format = {"type": [odd]}
    (flat,) = to_beta({"session": {"audio": {"input": {"format": format}}}})
    assert flat["session"] == {"input_audio_format": format}


def test_a_whole_session_may_be_spoken_in_the_beta_dialect() -> None:
    """What our encoder says, read as clients of that time do: flat, and with its names."""
    config = replace(SessionConfig(model="m"), transcription=Transcription(model="whisper-1"))
    objects = encode_events([SessionCreated("sess_1", config)], lambda: "e")
    (old,) = [each for object in objects for each in to_beta(object)]
    assert old["session"]["modalities"] == ["text", "audio"]
    assert old["session"]["input_audio_format"] == "pcm16"
    assert old["session"]["turn_detection"]["type"] == "server_vad"
    assert "audio" not in old["session"]
    assert "type" not in old["session"]


def test_sound_of_the_user_without_a_transcript_says_so() -> None:
    """The Agents SDK in JavaScript reads no item in which the field is missing."""
    (said,) = encode_item(Message("user", (Audio(format="pcm16"),)))["content"]
    assert said == {"type": "input_audio", "transcript": None}
    (answered,) = encode_item(Message("assistant", (Audio(format="pcm16"),)))["content"]
    assert answered == {"type": "output_audio"}


def test_what_was_dropped_stands_beside_the_event() -> None:
    loss = (Loss("audio", "dropped", "why"),)
    item = Message("user", (Audio(format="pcm16"),), id="a")
    for event in (BufferCommitted("a", None, loss), ItemRetrieved(item, loss)):
        (found,) = encode_events([event], lambda: "e")
        assert found["headers"] == {"x-dragoman-loss": "dropped: audio"}
        assert decode_event(found) == [replace(event, losses=())]


def test_an_id_is_as_long_as_a_name() -> None:
    item = {"type": "message", "role": "user", "content": [], "id": "x" * 4_097}
    for kind in ("message", "mcp_call"):
        command = command_of({"type": "conversation.item.create", "item": {**item, "type": kind}})
        assert isinstance(command, Unreadable)
        assert command.fault.param == "item.id"
