"""Requests are decoded and encoded as the corpora say; what is malformed is refused by its path."""

import json
from typing import Any

import pytest
from msgspec import convert

from dragoman.core.error import FaultError
from dragoman.core.item import (
    Audio,
    Compaction,
    File,
    Image,
    ItemReference,
    Message,
    Refusal,
    Summary,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.request import FunctionTool, Request
from dragoman.wire.chat import CHAT
from dragoman.wire.chat.messages import describe, encode_messages, encode_part
from dragoman.wire.chat.request import TOOLS
from dragoman.wire.protocol import STANDARD, Dialect
from tests.cases import cases
from tests.cost import is_square

TRANSLATIONS = cases(__file__, "translations")
"""Bodies, the requests they become, and the bodies that these become in some dialect."""
REFUSED = cases(__file__, "refused")
PLAIN = Dialect(ask_usage=False)
"""Adds nothing of its own to a request."""
USER = Message("user", "hello")


def decode(**fields: Any) -> Request:
    """The request in a body of these fields; `messages` has a default."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
    return CHAT.decode_request(json.dumps(body).encode())


@pytest.mark.parametrize("case", TRANSLATIONS, ids=lambda case: case["name"])
def test_request_is_decoded_and_encoded_as_expected(case) -> None:
    request = convert(case["request"], Request)
    if "body" in case:
        assert CHAT.decode_request(json.dumps(case["body"]).encode()) == request
    dialect = convert({"ask_usage": False, **case.get("dialect", {})}, Dialect)
    body, losses = CHAT.encode_request(request, dialect)
    assert json.loads(body) == case.get("encoded", case.get("body"))
    assert {loss.field: loss.action for loss in losses} == case.get("losses", {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "name": "f"}]),
        ("tool_choice", {"type": "function", "name": "f"}),
        ("response_format", {"type": "json_schema", "name": "n", "schema": {}}),
    ],
)
def test_fields_that_are_not_nested_are_refused_with_a_hint(field, value) -> None:
    with pytest.raises(FaultError, match="is missing; the fields beside type stand in it here"):
        decode(**{field: value})


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_malformed_or_out_of_range_field_is_refused_by_its_path(fields, param) -> None:
    with pytest.raises(FaultError) as caught:
        decode(**fields)
    fault = caught.value.fault
    assert (fault.code, fault.blame, fault.param) == ("invalid_request", "client", param)
    assert fault.message.startswith(param)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"model":"m"}', b"[" * 9999]
)
def test_body_that_is_no_request_is_refused(body) -> None:
    with pytest.raises(FaultError) as caught:
        CHAT.decode_request(body)
    assert caught.value.fault.code == "invalid_request"


def test_p31_the_same_history_gives_the_same_bytes_and_growing_it_the_same_prefix() -> None:
    called = {"name": "f", "arguments": '{ "b":1, "a":2 }'}
    turn = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "é"}]},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "r",
            "tool_calls": [{"id": "1", "type": "function", "function": called}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    more = [{"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]

    def raw(*messages: Any) -> bytes:
        return CHAT.encode_request(decode(messages=messages), PLAIN)[0]

    assert raw(*turn) == raw(*turn)
    assert raw(*turn, *more).startswith(raw(*turn).removesuffix(b"]}"))
    assert json.loads(raw(*turn, *more))["messages"] == turn + more


def test_a_lone_surrogate_is_replaced() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a\\ud83d"}],"n":1.0}'
    request = CHAT.decode_request(body)
    assert request.items == (Message("user", "a\ufffd"),)
    assert request.sampling.n == 1
    cut = Request(model="m", items=(Message("user", "a\ud83d"),))
    assert b'"a\xef\xbf\xbd"' in CHAT.encode_request(cut, STANDARD)[0]


def test_of_two_fields_with_one_name_the_last_counts() -> None:
    body = b'{"model":"a","model":"m","messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert CHAT.decode_request(body) == Request(model="m", items=(Message("user", "\U0001f600"),))


@pytest.mark.parametrize("messages", [None, [], "hello", ["hello"], {}])
def test_request_without_messages_is_refused(messages) -> None:
    with pytest.raises(FaultError) as caught:
        decode(messages=messages)
    assert (caught.value.fault.param or "").startswith("messages")


def test_tools_are_decoded_and_encoded_once() -> None:
    tools = [{"type": "function", "function": {"name": "once", "parameters": {"type": "object"}}}]
    first, second = decode(tools=tools), decode(tools=tools)
    assert first.tools is second.tools
    assert TOOLS.encode_all(first.tools) is TOOLS.encode_all(second.tools)
    once = (FunctionTool("once"),), (FunctionTool("once"),)
    assert TOOLS.encode_all(once[0]) is not TOOLS.encode_all(once[1])


def test_o6_hosted_calls_become_short_text_and_are_reported() -> None:
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
    items = (USER, search, Message("assistant", "Found."), USER, picture)
    body, losses = CHAT.encode_request(Request(model="m", items=items), PLAIN)
    said = json.loads(body)["messages"]
    note = '[web_search_call: {"action":{"query":"x"}}]'
    parts = [{"type": "text", "text": note}, {"type": "text", "text": "Found."}]
    assert said[1] == {"role": "assistant", "content": parts}
    drawn = said[3]["content"][0]["text"]
    assert drawn.startswith('[image_generation_call: {"result":"…","prompt":"a a a')
    assert drawn.endswith('a …","urls":["…"]}]')
    assert len(drawn) < 2200
    assert [(loss.field, loss.action) for loss in losses] == [("items[*]", "emulated")]


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
def test_part_without_a_form_is_described_in_words(part, words) -> None:
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
def test_part_without_a_form_is_encoded_as_text(part) -> None:
    assert encode_part(part) == {"type": "text", "text": describe(part)}


def test_refused_items_give_no_message() -> None:
    items = (ItemReference("i"), Message("user", "hello"), Compaction("blob"))
    assert encode_messages(items, STANDARD, []) == [{"role": "user", "content": "hello"}]


def test_null_among_the_fields_of_an_assistant_message_counts_as_absent() -> None:
    nulls = {"audio": None, "function_call": None, "reasoning": None, "refusal": None}
    said = {"role": "assistant", "content": "Hi."}
    assert decode(messages=[{**said, **nulls}]) == decode(messages=[said])


def test_an_empty_stop_string_is_none() -> None:
    assert decode(stop="").sampling.stop is None
    assert decode(stop=[""]).sampling.stop is None
    assert decode(stop=["", "a"]).sampling.stop == ("a",)
    assert decode(stop=None).sampling.stop is None


def test_unknown_members_of_the_format_are_retained() -> None:
    request = decode(response_format={"type": "json_object", "x_new": 1})
    assert request.extra == {"chat": {"response_format": {"x_new": 1}}}


def test_a_format_of_null_within_an_object_is_none() -> None:
    assert decode(response_format=None).format is None
    assert decode(response_format=None, seed=None, audio={"voice": "a"}).format is None


def test_choosing_among_many_tools_takes_no_square() -> None:
    def choose(count: int) -> None:
        tools = [{"type": "function", "function": {"name": f"f{n}"}} for n in range(count)]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
        decode(tools=tools, tool_choice=choice)

    assert not is_square(choose, 250)
