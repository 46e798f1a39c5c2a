"""Requests of Messages clients, decoded and encoded; and those of other clients, encoded."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.item import FunctionCall, Message, Reasoning, Text, Thought, Unknown
from dragoman.core.request import AllowedTools, CustomTool, NamedTool, Request, UnknownTool
from dragoman.wire import error
from dragoman.wire.chat import CHAT
from dragoman.wire.json import Limits
from dragoman.wire.messages import MESSAGES
from dragoman.wire.protocol import STANDARD, Dialect
from tests.cases import cases
from tests.cost import is_square
from tests.wire.messages.schema import check_request

REQUESTS = cases(__file__, "requests")
REFUSED = cases(__file__, "refused")
ENCODED = cases(__file__, "encoded")
CACHED = Dialect(cache_control=True)
MARK = {"type": "ephemeral"}
DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]


def decode(body: Any) -> Request:
    return MESSAGES.decode_request((body if isinstance(body, str) else json.dumps(body)).encode())


def encoded(request: Request, dialect: Dialect = STANDARD) -> tuple[Any, list[str]]:
    """The body, which Anthropic's server would take, and the names of what was lost."""
    body, losses = MESSAGES.encode_request(request, dialect)
    value = json.loads(body)
    check_request(value)
    return value, [f"{loss.field} {loss.action}" for loss in losses]


# ---- requests of its own clients ---------------------------------------------------------


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_request_is_decoded_as_expected_and_encoded_whole(case) -> None:
    request = decode(case["body"])
    expected = {"model": "m", "max_output_tokens": 64, "sampling": {}, **case["reads"]}
    assert to_builtins(request) == to_builtins(convert(expected, Request))
    body, losses = encoded(request)
    assert losses == []
    assert decode(body) == request
    assert Counter(leaves(case["body"])) == Counter(leaves(body))


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every value that is no container, under the name of its field; what stands for absent, and
    a string that may be a block, is the same either way."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, name)
    elif value not in (None, "", "custom") and (name, value) != ("stream", False):
        yield name, json.dumps(value)


@pytest.mark.parametrize(("body", "param", "sentence"), REFUSED)
def test_request_that_makes_no_sense_is_a_400_that_names_the_field(body, param, sentence) -> None:
    with pytest.raises(FaultError) as caught:
        decode(body)
    fault = caught.value.fault
    assert (error.status(fault), fault.param, fault.message) == (400, param, sentence)


def test_thread_is_created_by_the_whole_and_never_continued() -> None:
    """Its clients send all of it again at this code, and ask for nothing else (SDKs since 2.4)."""
    whole = {**SAID, "model": "m", "thread": {"type": "create"}}
    assert (
        json.loads(MESSAGES.encode_request(decode(whole), STANDARD)[0])["thread"] == whole["thread"]
    )
    rest = {**SAID, "model": "m", "thread": {"type": "continue", "previous_message_id": "msg_1"}}
    with pytest.raises(FaultError) as caught:
        decode(rest)
    status, body = MESSAGES.encode_error(caught.value.fault, "req_1")
    told = json.loads(body)["error"]
    assert (status, told["type"]) == (404, "not_found_error")
    assert told["details"] == {"error_code": "thread_not_found"}
    assert "send the whole conversation" in told["message"]


def test_unusual_spellings_of_a_value_are_taken() -> None:
    request = decode({"model": "m", "max_tokens": 64.0, "messages": [], "top_k": 5.0} | SAID)
    assert (request.max_output_tokens, request.sampling.top_k) == (64, 5)
    nulls = dict.fromkeys(("tools", "tool_choice", "stop_sequences", "system", "thinking"))
    assert decode({"model": "m", **SAID, **nulls}) == decode({"model": "m", **SAID})
    half = {"messages": [{"role": "user", "content": "\ud83d"}]}
    assert decode({"model": "m", **half}).items == (Message("user", "\ufffd"),)
    tier = decode({"model": "m", **SAID, "service_tier": "turbo"})
    assert json.loads(MESSAGES.encode_request(tier, STANDARD)[0])["service_tier"] == "turbo"
    empty = decode({"model": "m", "messages": [{"role": "user", "content": []}]})
    assert empty.items == (Message("user", ()),)


SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}


def test_system_messages_at_the_start_belong_to_the_system_prompt() -> None:
    said = [{"role": "system", "content": "b"}, {"role": "user", "content": "x"}]
    request = decode({"model": "m", "system": "a", "messages": said})
    assert request.items[0] == Message("system", (Text("a"), Text("b")))
    assert len(request.items) == 2


def test_system_message_with_a_field_of_its_own_stays_a_message() -> None:
    first = {"role": "system", "content": "b", "x": 1}
    said = [first, {"role": "system", "content": "c"}, *SAID["messages"]]
    for system in ({}, {"system": "a"}):
        request = decode({"model": "m", "max_tokens": 9, **system, "messages": said})
        data, losses = MESSAGES.encode_request(request, STANDARD)
        body = json.loads(data)
        assert {**first, "content": body["messages"][0]["content"]} == body["messages"][0]
        assert body.get("system") == system.get("system")
        assert losses == ()


@pytest.mark.parametrize("value", ["x", {"y": 1}, [2]])
def test_block_may_have_a_field_called_message(value) -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}, "message": value}
    tool = {"name": "f", "input_schema": {"type": "object"}, "message": value}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": [call]}]
    body = {"model": "m", "max_tokens": 9, "messages": messages, "tools": [tool]}
    assert json.loads(MESSAGES.encode_request(decode(body), STANDARD)[0]) == body
    call["(message)"] = value  # this one is ours, and no value of it breaks anything
    assert MESSAGES.encode_request(decode(body), STANDARD)


def test_choice_without_tools_leaves_nothing_behind() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True, "x_a": 1}
    body = {"model": "m", "max_tokens": 9, **SAID}
    assert encoded(decode({**body, "tool_choice": choice})) == (
        body,
        ["tool_choice dropped", "parallel_tool_calls dropped"],
    )


CUSTOM = CustomTool("patch")


@pytest.mark.parametrize(
    ("encode", "tool", "choice"),
    [
        (MESSAGES.encode_request, CUSTOM, "required"),
        (MESSAGES.encode_request, CUSTOM, NamedTool("patch", "custom")),
        (CHAT.encode_request, UnknownTool("responses", "web_search", {}), "required"),
        (
            MESSAGES.encode_request,
            CUSTOM,
            AllowedTools("required", (NamedTool("patch", "custom"),)),
        ),
    ],
)
def test_a_call_that_no_tool_could_be_is_refused(encode, tool, choice) -> None:
    asked = Request(model="m", items=(Message("user", "?"),), tools=(tool,), tool_choice=choice)
    with pytest.raises(FaultError) as refused:
        encode(asked, STANDARD)
    assert (refused.value.fault.code, refused.value.fault.param) == ("unsupported", "tool_choice")
    assert "can be offered none of the tools" in refused.value.fault.message
    free = replace(asked, tool_choice=AllowedTools("auto", (NamedTool("patch", "custom"),)))
    assert "tool_choice" in [loss.field for loss in encode(free, STANDARD)[1]]


def test_thinking_of_an_unknown_kind_is_for_servers_that_know_it() -> None:
    body = {"model": "m", "max_tokens": 9, **SAID, "thinking": {"type": "later", "x": 1}}
    request = decode(body)
    assert request.reasoning is None
    assert json.loads(MESSAGES.encode_request(request, STANDARD)[0]) == body
    assert "thinking" in [loss.field for loss in CHAT.encode_request(request, STANDARD)[1]]


def test_an_effort_does_not_turn_on_thinking_that_is_disabled() -> None:
    config = {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}
    body = {"model": "m", "max_tokens": 9, **SAID, **config}
    request = decode(body)
    assert json.loads(MESSAGES.encode_request(request, STANDARD)[0]) == body
    sent, losses = CHAT.encode_request(request, STANDARD)
    assert json.loads(sent)["reasoning_effort"] == "none"
    assert {loss.field for loss in losses} == {"reasoning.thinking", "reasoning.effort"}
    alone = decode({**body, "thinking": None})  # an effort needs no thinking
    assert json.loads(CHAT.encode_request(alone, STANDARD)[0])["reasoning_effort"] == "high"


@pytest.mark.uncounted
def test_long_conversations_cost_no_square() -> None:
    system, call = {"role": "system", "content": "a"}, FunctionCall("c", "f", "{}")

    def translate(count: int) -> None:
        body = {"model": "m", "messages": [system] * count + SAID["messages"]}
        request = MESSAGES.decode_request(json.dumps(body).encode(), Limits(max_items=60_000))
        assert len(request.items[0].parts) == count
        MESSAGES.encode_request(request, STANDARD)
        texts = (Message("system", "a"),) * count
        items = (*texts, Message("user", "?"), *(call,) * count)
        MESSAGES.encode_request(Request(model="m", items=items), STANDARD)

    assert not is_square(translate, 3_000)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "a", "citations": [{"x": DEEP}]},
        {"type": "image", "source": {"type": "url", "url": "a", "x": DEEP}},
        {"type": "document", "source": {"type": "content", "content": DEEP}},
    ],
    ids=lambda block: block["type"],
)
def test_fields_of_a_block_have_a_limit_of_depth(block) -> None:
    with pytest.raises(FaultError, match="nested more than 256 levels deep"):
        decode({"model": "m", "messages": [{"role": "user", "content": [block]}]})


def test_tools_sent_again_are_the_same_value() -> None:
    tools = [{"name": "again", "input_schema": {"type": "object"}}]
    first, second = (decode({"model": "m", **SAID, "tools": tools}) for _ in "ab")
    assert first.tools is second.tools
    assert encoded(first) == encoded(second)


# ---- requests of other clients -----------------------------------------------------------


@pytest.mark.parametrize("case", ENCODED, ids=lambda case: case["name"])
def test_request_of_another_client_is_encoded_with_its_losses(case) -> None:
    given = {"model": "m", "items": [{"type": "message", "role": "user", "content": "?"}]}
    request = convert({**given, "sampling": {}, **case["request"]}, Request)
    body, losses = encoded(request)
    least = {"model": "m", "max_tokens": 32_000}
    if "items" not in case["request"]:
        least["messages"] = [{"role": "user", "content": "?"}]
    assert body == {**least, **case["body"]}
    assert losses == case["losses"]


def test_what_stands_before_the_conversation_is_cached_unless_the_client_marks_it() -> None:
    said = {"model": "m", "max_tokens": 9, **SAID}
    assert encoded(decode(said), CACHED)[0] == {**said, "cache_control": MARK}
    system = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    marked = [system[0], {**system[1], "cache_control": MARK}]
    whole = {**said, "system": marked, "cache_control": MARK}
    assert encoded(decode({**said, "system": system}), CACHED)[0] == whole
    given = {**said, "system": [{**system[0], "cache_control": MARK}, system[1]]}
    assert encoded(decode(given), CACHED)[0] == given


def test_field_the_server_refuses_is_dropped_and_reported() -> None:
    request = decode({"model": "m", "max_tokens": 9, **SAID, "top_k": 5, "x_a": 1})
    dialect = Dialect(drop=frozenset({"top_k", "x_a", "system"}))
    assert encoded(request, dialect) == (
        {"model": "m", "max_tokens": 9, **SAID},
        ["top_k dropped", "x_a dropped"],
    )


def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter() -> None:
    (case,) = [case for case in REQUESTS if case["name"].startswith("several calls")]
    body = {"model": "m", "max_tokens": 9, "messages": case["body"]["messages"]}
    short = {**body, "messages": body["messages"][:-1]}
    bodies = [MESSAGES.encode_request(decode(each), STANDARD)[0] for each in (short, body)]
    assert bodies[1].startswith(bodies[0].removesuffix(b"]}"))


def test_tool_of_another_protocol_cannot_be_chosen() -> None:
    choice = UnknownTool("responses", "web_search", {})
    request = Request(model="m", items=(Message("user", "?"),), tools=(choice,), tool_choice=choice)
    with pytest.raises(FaultError, match="tool_choice"):
        encoded(request)


SPELT = [
    ("items[0]", "system"),
    ("items[0].content[1].text", "system[1].text"),
    ("items[1].content", "messages[0].content"),
    ("items[2].name", "messages[1].name"),
    ("items[3]", "messages[2].content[0]"),
    ("items[4].content[1].annotations", "messages[2].content[2].annotations"),
    ("items[6].arguments", "messages[2].content[4].arguments"),
    ("items[7].output[1]", "messages[3].content[0].content[1]"),
    ("items[9].content[0].text", "messages[3].content[2].text"),
    ("items[10]", "messages[4]"),
    ("items[11].content[0]", "messages[5].content[0]"),
    ("items[*]", "messages[*]"),
    ("items", "messages"),
    ("format", "output_config.format"),
    ("format.schema", "output_config.format.schema"),
    ("max_output_tokens", "max_tokens"),
    ("stop", "stop_sequences"),
    ("reasoning.effort", "output_config.effort"),
    ("reasoning.summary", "thinking.summary"),
    ("tools[0].parameters", "tools[0].input_schema"),
    ("user", "metadata.user_id"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    ("temperature", "temperature"),
]


def test_names_of_fields_are_those_of_the_protocol() -> None:
    text, call = {"type": "text", "text": "t"}, {"type": "tool_use", "name": "f", "input": {}}
    results = [{"type": "tool_result", "tool_use_id": f"t{n}"} for n in range(2)]
    said = [
        ("user", "a"),
        ("user", "b"),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "x"},
                text,
                text,
                {**call, "id": "t0"},
                {**call, "id": "t1"},
            ],
        ),
        ("user", [*results, text]),
        ("assistant", "c"),
        ("assistant", [text]),
    ]
    messages = [{"role": role, "content": content} for role, content in said]
    request = decode({"model": "m", "system": [text, text], "messages": messages})
    spell = MESSAGES.spelling(request)
    assert [(path, spell(path)) for path, _ in SPELT] == SPELT


def test_picture_in_a_call_of_another_wire_is_not_sent_as_words() -> None:
    """A model that is changed in the middle of a conversation would read a million tokens."""
    drawn = {"status": "completed", "result": "iVBO" * 1_000_000, "revised_prompt": "A cat"}
    item = Unknown("responses", "image_generation_call", drawn, "ig_1")
    body, _ = encoded(Request(model="m", items=(Message("user", "Draw."), item)))
    (block,) = body["messages"][1]["content"]
    assert block["text"] == '[image_generation_call: {"result":"…","revised_prompt":"A cat"}]'


def test_thinking_behind_which_nothing_came_is_left_out_where_that_is_refused() -> None:
    """Of an answer that was cut off: the final block of a message cannot be thinking."""
    said = Message("user", "Go.")
    thought = Reasoning(
        (Thought("Hm.", extra={"messages": {}}),), extra={"messages": {"signature": "s"}}
    )
    answer = Message("assistant", "Yes.")
    request = Request(
        model="m", items=(said, thought, said, thought, answer, said, answer, thought)
    )
    body, losses = MESSAGES.encode_request(request, Dialect(blank_texts=False))
    shapes = [
        [block["type"] for block in each["content"]]
        if each["role"] == "assistant"
        else each["role"]
        for each in json.loads(body)["messages"]
    ]
    assert shapes == ["user", "user", ["thinking", "text"], "user", ["text"]]
    assert [loss.field for loss in losses] == ["items[*]"]
    body, losses = MESSAGES.encode_request(request, STANDARD)
    assert ([*body.split(b'"thinking":')][3:], losses) != ([], ())


@pytest.mark.parametrize("wire", [CHAT, MESSAGES])
def test_a_key_of_a_tool_in_an_item_is_not_told_to_the_model(wire) -> None:
    tool = {"type": "mcp", "server_label": "x", "authorization": "KEY", "headers": {"a": "KEY"}}
    item = Unknown("responses", "additional_tools", {"role": "developer", "tools": [tool]})
    request = Request(model="m", items=(item, Message("user", "Go.")), max_output_tokens=9)
    body, _ = wire.encode_request(request, STANDARD)
    assert (b"server_label" in body, b"KEY" in body) == (True, False)
