"""Requests of Responses clients: read, and said again to a server of the same wire."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import Started
from dragoman.core.item import (
    Audio,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reasoning,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import Loss
from dragoman.core.request import (
    CustomTool,
    FunctionTool,
    Namespace,
    Request,
    Sampling,
    StreamOptions,
    UnknownTool,
)
from dragoman.wire import error
from dragoman.wire.chat import CHAT
from dragoman.wire.losses import judge
from dragoman.wire.protocol import STANDARD, Dialect
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.items import decode_item
from tests import oracle
from tests.cases import cases
from tests.wire.damage import damaged

ACCEPTED: dict[str, Any] = cases(__file__, "accepted")
REFUSED = cases(__file__, "refused")


def decode(body: Any) -> Request:
    data = body if isinstance(body, str) else json.dumps(body)
    return RESPONSES.decode_request(data.encode())


def said(request: Request, dialect: Dialect = STANDARD) -> dict[str, Any]:
    body, losses = RESPONSES.encode_request(request, dialect)
    assert losses == ()
    return dict(json.loads(body))


def asked(**fields: Any) -> Request:
    return decode({"model": "m", "input": "x", **fields})


# ---- the corpus --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACCEPTED)
def test_r4_6_r4_7_o8_p8_accepted_request_is_encoded_whole_and_decoded_the_same(name) -> None:
    request = decode(ACCEPTED[name])
    body, losses = RESPONSES.encode_request(request, STANDARD)
    assert RESPONSES.decode_request(body) == request
    assert losses == ()
    again = json.loads(body)
    assert not Counter(leaves(ACCEPTED[name])) - Counter(leaves(again))
    assert again.get("tool_choice") == ACCEPTED[name].get("tool_choice")
    vendor = "vendor" in json.dumps(ACCEPTED[name]) or name in BEYOND_OPENAI
    problems = oracle.request_problems(again, "responses")
    assert problems == [] or vendor, problems


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no container, under the name of its field; kinds may be renamed."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, name)
    elif value is not None and name not in ("type", "stop", "stream"):
        yield ("content" if name == "input" else name, value)


@pytest.mark.parametrize("name", ["the least", "messages in every form", "tools of every kind"])
def test_d8_encoded_request_has_only_the_given_fields(name) -> None:
    again = said(decode(ACCEPTED[name]))
    assert again.keys() == ACCEPTED[name].keys()
    assert None not in again.values()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("text", {"format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
    ],
)
def test_fields_nested_as_in_another_protocol_are_refused_with_a_hint(field, value) -> None:
    with pytest.raises(FaultError, match=r"name: is missing; what \w+ holds stands"):
        asked(**{field: value})


@pytest.mark.parametrize(("body", "param"), REFUSED)
def test_r4_8_a_request_that_makes_no_sense_is_a_400_that_names_the_field(body, param) -> None:
    with pytest.raises(FaultError) as caught:
        decode(body)
    fault = caught.value.fault
    told = error.error_object(fault)
    assert error.status(fault) == 400
    assert (told["type"], told["param"]) == ("invalid_request_error", param)
    assert told["message"]


BEYOND_OPENAI = {
    "every field of the protocol",  # newer fields than the published schema, and 5 tokens
    "messages in every form",
    "calls with what we do not know",
    "instructions as items",
    "a client resends what it got",
    "what an answer repeats",
}


@given(st.sampled_from(sorted(ACCEPTED)), st.data())
def test_a_damaged_request_is_taken_or_refused(name, data) -> None:
    body = json.dumps(data.draw(damaged(ACCEPTED[name]))).encode()
    statuses = []
    try:
        request = RESPONSES.decode_request(body)
        again, _ = RESPONSES.encode_request(request, STANDARD)
        assert RESPONSES.decode_request(again).model
        assert RESPONSES.encoder(request, STANDARD).feed([Started("1", 0, "m")])
    except FaultError as refusal:
        statuses.append(error.status(refusal.fault))
    assert statuses in ([], [400])


# ---- numbers -----------------------------------------------------------------------------


def test_r4_5_input_is_a_string_or_items_and_a_type_may_be_missing() -> None:
    assert asked().items == (Message("user", "x"),)
    assert asked(input=[{"role": "user", "content": "x"}]).items == (Message("user", "x"),)
    strange = asked(input=[{"type": "vendor:thing", "id": "v", "a": None}]).items
    assert strange == (Unknown("responses", "vendor:thing", {"id": "v", "a": None}, "v"),)


def test_messages_without_a_type_are_decoded_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.wire.responses.items._read_head", None)  # of one item alone
    parts = [{"type": "input_text", "text": "Hi"}]
    given = [{"role": "user", "content": "Hi"}, {"role": "user", "content": parts}]
    assert asked(input=given).items == (Message("user", "Hi"), Message("user", (Text("Hi"),)))


def test_o6_hosted_calls_in_the_history_are_carried_or_reported() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": None}
    request = asked(input=[{"role": "user", "content": "x"}, search])
    assert said(request)["input"][1] == search
    assert [loss.action for loss in judge(request, CHAT.losses)] == ["emulated"]


def test_o7_reasoning_stays_where_it_stood_among_the_calls() -> None:
    items: list[Any] = [{"role": "user", "content": "x"}]
    for turn in ("a", "b"):
        items += [{"type": "reasoning", "id": f"rs_{turn}", "summary": []}]
        items += [_call(f"{turn}1"), _call(f"{turn}2")]
        items += [_output(f"{turn}1"), _output(f"{turn}2")]
    kinds = [type(item) for item in asked(input=items).items]
    turn_kinds = [Reasoning, FunctionCall, FunctionCall, FunctionCallOutput, FunctionCallOutput]
    assert kinds == [Message, *turn_kinds, *turn_kinds]
    assert said(asked(input=items))["input"][1:] == items[1:]


def _call(id: str) -> dict[str, str]:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": '{"x":  1}'}


def _output(id: str) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": id, "output": "y"}


def test_p16_custom_tools_grammars_and_namespaces_are_carried_whole() -> None:
    tools = ACCEPTED["tools of every kind"]["tools"]
    request = asked(tools=tools)
    kinds = [type(tool) for tool in request.tools]
    assert (
        kinds == [FunctionTool] * 3 + [CustomTool] * 3 + [Namespace, CustomTool] + [UnknownTool] * 3
    )
    assert said(request)["tools"][5:] == tools[5:]
    assert said(request)["tools"][5]["format"]["definition"] == 'start: "a"'


# ---- what is not said, and what it means -------------------------------------------------


def test_absent_strict_stays_absent_and_is_false_for_other_wires() -> None:
    tool = {"type": "function", "name": "f", "parameters": {}}
    request = asked(tools=[tool])
    assert said(request)["tools"] == [tool]
    strict = replace(request, tools=(replace(request.tools[0], strict=True),))
    assert said(strict)["tools"] == [{**tool, "strict": True}]
    assert said(Request(model="m", tools=(FunctionTool("f"),)))["tools"] == [
        {**tool, "strict": False}
    ]


def test_absent_store_stays_absent_and_is_false_for_other_wires() -> None:
    assert "store" not in said(asked())
    assert said(asked(store=True))["store"] is True
    assert said(Request(model="m"))["store"] is False


def test_probabilities_are_asked_for_by_include() -> None:
    request = asked(include=["message.output_text.logprobs"], top_logprobs=3)
    assert request.sampling.logprobs is True
    chat = Request(model="m", sampling=Sampling(logprobs=True), store=False)
    body, losses = RESPONSES.encode_request(chat, STANDARD)
    assert json.loads(body)["include"] == ["message.output_text.logprobs"]
    assert [loss.field for loss in losses] == ["logprobs"]


def test_fields_of_another_wire_are_refused_or_reported() -> None:
    with pytest.raises(FaultError) as caught:
        RESPONSES.encode_request(Request(model="m", sampling=Sampling(stop=("a",))), STANDARD)
    assert caught.value.fault.param == "stop"
    foreign = (
        Unknown("chat", "thing", {}),
        Message("user", (Text("x"), UnknownPart("responses", {"type": "input_video"}))),
    )
    tools = (UnknownTool("chat", "thing", {}),)
    body, losses = RESPONSES.encode_request(
        Request(model="m", items=foreign, tools=tools, store=False), STANDARD
    )
    assert len(losses) == 2
    assert "tools" not in json.loads(body)
    assert [item["type"] for item in json.loads(body)["input"]] == ["message"]


@pytest.mark.parametrize(
    ("kind", "words"), [("json_schema", "`text.format` in Responses"), ("regex", "no such bound")]
)
def test_the_format_of_another_wire_is_refused_with_its_name_here(kind, words) -> None:
    request = asked(response_format={"type": kind, "json_schema": {"name": "n"}})
    with pytest.raises(FaultError, match=words):
        CHAT.encode_request(request, STANDARD)


def test_field_the_server_refuses_is_dropped_and_reported() -> None:
    dialect = Dialect(drop=frozenset({"metadata", "user"}))
    body, losses = RESPONSES.encode_request(asked(metadata={"a": "b"}), dialect)
    assert "metadata" not in json.loads(body)
    assert losses == (Loss("metadata", "dropped", "the model's server does not take it"),)


def test_options_of_a_stream_that_this_wire_has_not_are_left_out() -> None:
    options = StreamOptions(include_usage=True)
    assert "stream_options" not in said(Request(model="m", stream_options=options, store=False))


def test_sound_is_read_and_never_sent() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}
    request = asked(input=[{"role": "user", "content": [sound]}])
    assert request.items == (Message("user", (Audio("QQ==", "wav"),)),)
    with pytest.raises(FaultError):
        RESPONSES.encode_request(request, STANDARD)
    spoken = Message("assistant", (Audio("QQ==", "wav", "Hello", "audio_1"),))
    body, losses = RESPONSES.encode_request(Request(model="m", items=(spoken,)), STANDARD)
    assert json.loads(body)["input"][0]["content"][0]["text"] == "Hello"
    assert losses


def test_a_tool_of_another_wire_cannot_be_chosen() -> None:
    request = Request(model="m", tool_choice=UnknownTool("chat", "thing", {}))
    with pytest.raises(FaultError):
        RESPONSES.encode_request(request, STANDARD)


def test_a_longer_conversation_begins_with_the_bytes_of_the_shorter() -> None:
    items = ACCEPTED["a client resends what it got"]["input"]
    short, _ = RESPONSES.encode_request(asked(input=items[:5], temperature=0), STANDARD)
    long, _ = RESPONSES.encode_request(asked(input=items, temperature=0), STANDARD)
    assert long.startswith(short.removesuffix(b"]}"))


TYPED_ITEMS = cases(__file__, "items")


@pytest.mark.parametrize("odd", [{}, {"type": "web_search_call", "id": "ws_1"}])
def test_items_decoded_typed_are_those_decoded_field_by_field(odd) -> None:
    items = [*TYPED_ITEMS, odd] if odd else TYPED_ITEMS
    typed = asked(input=items).items
    assert typed == tuple(map(decode_item, items))


@pytest.mark.parametrize("wrong", [7, {"type": "function_call", "call_id": "", "name": "f"}])
def test_an_item_of_the_wrong_type_is_named_after_typed_ones(wrong) -> None:
    with pytest.raises(FaultError) as raised:
        asked(input=[*TYPED_ITEMS, wrong])
    assert str(raised.value.fault.param).startswith(f"input[{len(TYPED_ITEMS)}]")


def test_unusual_spellings_of_a_value_are_taken() -> None:
    assert asked(max_output_tokens=4096.0).max_output_tokens == 4096
    assert asked(input=None, instructions="x").items == ()
    assert asked(top_k=3).sampling == Sampling(top_k=3)
    assert decode('{"model": "m", "input": "\\ud83d"}').items == (Message("user", "\ufffd"),)


def test_reasoning_of_parts_that_are_no_reasoning_is_taken() -> None:
    parts = [
        {"type": "output_text", "text": "a"},
        {"type": "refusal", "refusal": "b"},
        {"type": "x"},
    ]
    (reasoning,) = asked(input=[{"type": "reasoning", "content": parts}]).items
    refusal, odd = (UnknownPart("responses", part) for part in parts[1:])
    assert reasoning == Reasoning((Thought("a"), refusal, odd))


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "function_call_output", "call_id": "c", "output": None}, "output"),
        ({"type": "reasoning", "summary": "s"}, "summary"),
        ({"role": "user", "content": 7}, "content"),
        ({"role": "tool", "content": "x"}, "role"),
    ],
)
def test_a_field_of_an_item_that_is_wrong_is_named(item, param) -> None:
    with pytest.raises(FaultError) as caught:
        asked(input=[item])
    assert caught.value.fault.param == f"input[0].{param}"


def test_a_server_that_takes_only_its_own_reasoning_back_gets_no_other() -> None:
    """OpenAI refuses a conversation with reasoning that is not encrypted, as of another server's
    model, and the text of any."""
    thought, note = (Thought("Hm."),), Message("user", "hi")
    items = (note, Reasoning(thought, id="rs_1"), Reasoning(thought, encrypted="gAAA", id="rs_2"))
    request = Request(model="m", items=items)
    body, losses = RESPONSES.encode_request(request, Dialect(reasoning_echo="never"))
    (_, kept) = json.loads(body)["input"]
    assert kept == {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAA"}
    assert [(loss.field, loss.action) for loss in losses] == [("items[1].reasoning", "dropped")]
    assert len(json.loads(RESPONSES.encode_request(request, STANDARD)[0])["input"]) == 3


def test_a_file_without_a_name_gets_one() -> None:
    """OpenAI refuses its data without, and Anthropic's clients give none."""
    parts = [{"type": "input_file", "file_data": "data:application/pdf;base64,QQ=="}]
    (message,) = said(asked(input=[{"role": "user", "content": parts}]))["input"]
    assert message["content"][0]["filename"] == "file.pdf"


def test_tools_sent_again_are_the_same_value() -> None:
    tools = [{"type": "function", "name": "again", "parameters": {"type": "object"}}]
    first, second = asked(input="a", tools=tools), asked(input="b", tools=tools)
    assert first.tools is second.tools
    assert said(first)["tools"] == said(second)["tools"]
    alien = Request(model="m", items=first.items, tools=(UnknownTool("chat", "odd", {}),))
    body, _ = RESPONSES.encode_request(alien, STANDARD)
    assert "tools" not in json.loads(body)
