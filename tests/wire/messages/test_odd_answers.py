"""Answers that this protocol has no words for, and those that end too early."""

import json

import pytest
from msgspec.structs import replace

from dragoman.core.error import CUT, Fault
from dragoman.core.event import Failed, ItemAdded
from dragoman.core.fold import unfold
from dragoman.core.item import CustomToolCall, FunctionCall, Message, Summary, Text, Thought
from dragoman.core.request import Request
from dragoman.wire.messages import MESSAGES
from dragoman.wire.protocol import STANDARD
from tests.answers import answer
from tests.wire.messages.gathering import frames, gathered

ASKED = Request(model="m", stream=True)


@pytest.mark.parametrize(
    "item",
    [
        Message("assistant", (Thought("hm"), Text("Hello"), Summary("hm"))),
        FunctionCall("call_a", "f", '"Oslo"'),
        FunctionCall("call_a", "f", " \n[1, 2]"),
        FunctionCall("call_a", "f", "Oslo"),
        FunctionCall("call_a", "f", " \n{}"),
    ],
)
def test_odd_item_is_streamed_as_it_is_given_whole(item) -> None:
    response = answer(item)
    whole = json.loads(MESSAGES.encode_response(response, ASKED, STANDARD))
    encoder = MESSAGES.encoder(ASKED, STANDARD)
    stream = b"".join(encoder.feed((event,)) for event in unfold(response))
    assert gathered(stream) == whole


@pytest.mark.parametrize("items", [(Message("assistant", "Done."),), ()])
def test_answer_without_calls_does_not_wait_for_results(items) -> None:
    """Some servers call that `tool_calls`; Claude Code would ask for the call without end."""
    response = replace(answer(*items), reasons=("tool_calls",))
    whole = json.loads(MESSAGES.encode_response(response, ASKED, STANDARD))
    assert whole["stop_reason"] == "end_turn"
    encoder = MESSAGES.encoder(ASKED, STANDARD)
    assert gathered(encoder.feed(unfold(response))) == whole


@pytest.mark.parametrize(
    "call", [FunctionCall("call_a", "f", ""), CustomToolCall("call_a", "f", "")]
)
def test_call_of_a_failed_answer_is_not_closed(call) -> None:
    """Readers run a call when its block is closed. What was said before is closed."""
    encoder = MESSAGES.encoder(ASKED, STANDARD)
    said = Message("assistant", (Text("Look."),))
    events = [*list(unfold(answer(said)))[:-1], ItemAdded(1, call), ItemAdded(2, call), Failed(CUT)]
    kinds = [event["type"] for event in frames(encoder.feed(events))]
    assert kinds.count("content_block_start") == 2
    assert kinds.count("content_block_stop") == 1
    assert kinds[-1] == "error"


@pytest.mark.parametrize(
    ("code", "type"),
    [("context_length_exceeded", None), (None, "exceed_context_size_error"), ("other", None)],
)
def test_prompt_that_exceeds_the_context_is_called_too_long(code, type) -> None:
    """Agents compact the conversation at these words."""
    fault = Fault("invalid_request", "1 > 0.", upstream_code=code, upstream_type=type)
    status, body = MESSAGES.encode_error(fault, "req_1")
    error = json.loads(body)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["message"] == ("1 > 0." if code == "other" else "prompt is too long: 1 > 0.")


@pytest.mark.parametrize(
    "message",
    ["The prompt has 9011 tokens, and the context is 4096.", "At most 4096 tokens, and 9011 came."],
)
def test_size_and_limit_of_a_prompt_are_in_the_form_that_agents_read(message) -> None:
    fault = Fault("invalid_request", message, upstream_code="context_length_exceeded")
    error = json.loads(MESSAGES.encode_error(fault, "req_1")[1])["error"]
    assert error["message"] == f"prompt is too long: 9011 tokens > 4096 maximum. {message}"


def test_prompt_that_is_called_too_long_already_is_not_called_so_twice() -> None:
    message = "prompt is too long: 200001 tokens > 200000 maximum"
    fault = Fault("upstream_refused", message, upstream_code="context_length_exceeded")
    assert json.loads(MESSAGES.encode_error(fault, "req_1")[1])["error"]["message"] == message


def test_id_of_a_call_is_its_servers_own_for_clients_and_a_legal_one_for_anthropic() -> None:
    """What was remembered of a call is found by its id, which the client brings back."""
    call = FunctionCall("functions.f:0", "f", "{}")
    body = json.loads(MESSAGES.encode_response(answer(call), ASKED, STANDARD))
    assert body["content"][0]["id"] == "functions.f:0"
    asked = Request(model="m", items=(Message("user", "?"), call))
    sent = json.loads(MESSAGES.encode_request(asked, STANDARD)[0])
    assert sent["messages"][1]["content"][0]["id"] == "functions_2e_f_3a_0"
