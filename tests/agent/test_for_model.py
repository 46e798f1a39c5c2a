"""Conversations with hosted tools as the model gets them: rounds of calls, and what was allowed."""

from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.agent.hosted import for_model
from dragoman.core.conversation import SILENCE
from dragoman.core.item import (
    RECORD,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reasoning,
    Thought,
    Unknown,
)
from dragoman.core.request import Request
from dragoman.tools.mcp import _media
from dragoman.wire.protocol import Dialect
from dragoman.wire.registry import WIRES


def test_a_call_that_is_allowed_later_stands_where_its_result_will() -> None:
    """Servers refuse a call whose result is not behind it, and thinking without what it led to."""
    said, answer = Message("user", "Hm?"), Message("assistant", "Yes.")
    thought, again = Reasoning((Thought("1"),)), Reasoning((Thought("2"),))
    fields = {"name": "buy", "arguments": "{}", "server_label": "x"}
    asked = Unknown("responses", "mcp_approval_request", fields, "mcpr_1")
    decided = {"approval_request_id": "mcpr_1", "approve": True}
    allowed = Unknown("responses", "mcp_approval_response", decided)
    runner: Any = SimpleNamespace(find=lambda call: call)
    before = (said, thought, asked, said, again, answer, allowed)
    seen, decisions = for_model(before, runner)
    call = (seen or ())[-1]
    assert (getattr(call, "name", ""), decisions) == ("buy", {"mcpr_1": True})
    assert seen == (said, said, again, answer, thought, call)
    done = Unknown("responses", "mcp_call", {**fields, **decided, "output": "1"}, "mcp_1")
    seen, _ = for_model((*before, done), runner)
    assert [type(item) for item in seen or ()][:4] == [Message, Message, Reasoning, Message]
    assert [getattr(item, "call_id", "") for item in seen or ()][4:] == ["mcp_1", "mcp_1"]


@pytest.mark.parametrize("first", [True, False])
def test_calls_of_the_last_round_stay_together_however_each_was_decided(first) -> None:
    """Of thinking and what it led to servers refuse a part, once the tool has been run."""
    fields = {"name": "buy", "arguments": "{}", "server_label": "x"}
    asked, answers = [], []
    for number, approve in ((1, first), (2, not first)):
        asked.append(Unknown("responses", "mcp_approval_request", fields, f"mcpr_{number}"))
        decided = {"approval_request_id": f"mcpr_{number}", "approve": approve}
        answers.append(Unknown("responses", "mcp_approval_response", decided))
    said, thought = Message("user", "Hm?"), Reasoning((Thought("1"),))
    own, result = FunctionCall("c0", "f", "{}"), FunctionCallOutput("c0", "1")
    runner: Any = SimpleNamespace(find=lambda call: call)
    seen, _ = for_model((said, thought, own, *asked, result, *answers), runner)
    made = [(type(item), getattr(item, "call_id", "")) for item in seen or ()]
    denied = "mcpr_2" if first else "mcpr_1"
    assert made[:5] == [
        *((Message, ""), (Reasoning, ""), (FunctionCall, "c0")),
        *((FunctionCall, "mcpr_1"), (FunctionCall, "mcpr_2")),
    ]
    assert sorted(made[5:]) == sorted([(FunctionCallOutput, denied), (FunctionCallOutput, "c0")])


def test_a_decision_with_nothing_to_decide_is_no_end_with_the_assistant() -> None:
    """Servers such as Anthropic's refuse that."""
    said, answer = Message("user", "Hm?"), Message("assistant", "Yes.")
    decided = {"approval_request_id": "mcpr_1", "approve": False}
    stray = Unknown("responses", "mcp_approval_response", decided)
    assert for_model((said, answer, stray))[0] == (said, answer, Message("user", SILENCE))
    assert for_model((said, answer, stray, said))[0] == (said, answer, said)
    assert for_model((stray,))[0] == (Message("user", SILENCE),)


def test_an_old_call_that_is_allowed_now_stands_before_those_of_the_last_round() -> None:
    """Its result and theirs come at the end: nothing may stand between."""
    fields = {"name": "buy", "arguments": "{}", "server_label": "x"}
    asked = [Unknown("responses", "mcp_approval_request", fields, f"mcpr_{n}") for n in range(3)]
    answers = [
        Unknown(
            "responses", "mcp_approval_response", {"approval_request_id": each.id, "approve": yes}
        )
        for each, yes in zip(asked, (True, False, True), strict=True)
    ]
    said, old, new = Message("user", "Hm?"), Reasoning((Thought("1"),)), Reasoning((Thought("2"),))
    runner: Any = SimpleNamespace(find=lambda call: call)
    seen, _ = for_model((said, old, asked[0], said, new, *asked[1:], *answers), runner)
    made = [getattr(item, "call_id", type(item)) for item in seen or ()]
    assert made == [
        *(Message, Message, Reasoning, "mcpr_0", Reasoning, "mcpr_1", "mcpr_2"),
        "mcpr_1",  # the denied one's result
    ]
    assert (seen or ())[2] == old


@pytest.mark.parametrize("wire", ["messages", "responses"])
def test_sound_of_an_mcp_server_is_named_where_a_protocol_has_none(wire) -> None:
    part, words = _media("audio", "AAAA", "audio/wav", "")
    call, said = FunctionCall("c1", "f", "{}"), Message("user", "Hm?")
    items = (said, call, FunctionCallOutput("c1", (part,)))
    request = Request(model="m", items=items, max_output_tokens=9)
    body, losses = WIRES[wire].encode_request(request, Dialect())
    assert words.encode() in body
    assert [loss.action for loss in losses] == ["emulated"]


def test_calls_of_the_server_right_behind_a_call_of_the_client_are_of_its_round() -> None:
    """Servers refuse a call whose result is not behind it; a client that stores the conversation
    itself brings no records."""
    fields = {"name": "buy", "arguments": "{}", "server_label": "x", "output": "1"}
    said, own = Message("user", "Hm?"), FunctionCall("c", "f", "{}")

    def seen(text: str) -> str:
        """The conversation for the model: c calls, r results, o text, digits calls of a round."""
        items: list[Any] = [said]
        for sign in text:
            number = len(items)
            record = {"call_id": "h", "name": "buy", "arguments": "{}", "round": sign}
            match sign:
                case "c":
                    items.append(own)
                case "r":
                    items.append(FunctionCallOutput("c", "1"))
                case "o":
                    items.append(Message("assistant", "Yes."))
                case _:
                    extra = {RECORD: record} if sign != "h" else None
                    items.append(Unknown("responses", "mcp_call", fields, f"m{number}", extra))
        signs = {FunctionCall: "c", FunctionCallOutput: "r", Message: "o"}
        return "".join(signs[type(item)] for item in (for_model(items)[0] or ())[1:])

    for sent, expected in {
        "chhr": "cccrrr",
        "cchrr": "cccrrr",
        "hcr": "crcr",
        "hchr": "crccrr",
        "hochhr": "crocccrrr",
        "crhh": "crcrcr",
        "12": "crcr",
        "112cr": "ccrrcrcr",
        "c11r1": "cccrrrcr",
        "1c22r": "crcccrrr",
    }.items():
        assert seen(sent) == expected, sent
