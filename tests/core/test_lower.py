"""Requests are rewritten for what an upstream can take, and left alone where it can."""

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from dragoman.core.error import FaultError, bad_request
from dragoman.core.fold import fold, unfold
from dragoman.core.item import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Text,
)
from dragoman.core.loss import Loss
from dragoman.core.lower import UNLIMITED, Lowered, UpstreamLimits, lower
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
    UnknownTool,
)
from dragoman.core.response import Response
from tests.answers import answer
from tests.cases import cases

USER = Message("user", "hi")
READ, WRITE = FunctionTool("read"), FunctionTool("write")
PATCH = CustomTool("patch", None, "regex", ".*")
CRM = Namespace("crm", (FunctionTool("find"), CustomTool("note")))
SEARCH = UnknownTool("responses", "web_search", {})
OLD = UpstreamLimits(
    custom_tools=False,
    namespaces=False,
    allowed_tools=False,
    format_beside_forced_tool=False,
    json_schema=False,
    developer_role="system",
    system_messages="front",
    images=False,
)
"""An upstream that can take as little as there is."""


def asked(*items: Item, **fields: Any) -> Request:
    return Request(model="m", items=(USER, *items), **fields)


def fields_of(lowered: Lowered) -> list[tuple[str, str]]:
    return [(loss.field, loss.action) for loss in lowered.losses]


EVERYTHING = asked(
    Message("developer", "Be brief."),
    Message("user", (Text("see"), Image("https://example.com/a.png"))),
    CustomToolCall("c1", "patch", '{"a": 1}', id="ctc_1"),
    CustomToolCallOutput("c1", (Text("done"), Image(file_id="f1"))),
    FunctionCall("c2", "find", '{ "q" :1}', "crm"),
    FunctionCallOutput("c2", "nobody"),
    instructions="Be kind.",
    tools=(READ, PATCH, CRM, SEARCH),
    tool_choice="auto",
    format=JSONSchema("answer", {"type": "object"}, "An answer."),
)


CASES = cases(__file__, "lowered")
"""Requests, limits of an upstream, the fields that change for it, and the losses."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_request_is_lowered_as_expected(case) -> None:
    request, limits = convert(case["request"], Request), convert(case["limits"], UpstreamLimits)
    if "refused" in case:
        with pytest.raises(FaultError) as refused:
            lower(request, limits)
        fault = refused.value.fault
        assert (fault.code, fault.param) == ("unsupported", case["refused"])
        return
    lowered = lower(request, limits)
    fields = case["request"] | case.get("changed", {})
    known = {name: value for name, value in fields.items() if value is not None}
    assert lowered.request == convert(known, Request)
    assert "changed" in case or lowered.request is request
    assert "restore" not in case or lowered.restore is None
    assert [[loss.field, loss.action] for loss in lowered.losses] == case.get("losses", [])


def test_unlimited_upstream_gets_the_same_request() -> None:
    lowered = lower(EVERYTHING, UNLIMITED)
    assert lowered.request is EVERYTHING
    assert (lowered.losses, lowered.restore) == ((), None)


FUNCTIONS = tuple(FunctionTool(f"tool_{number}") for number in range(10))
PARTS = Message("user", (Text("see"),))
TURNS = (USER, PARTS, FunctionCall("c", "tool_1", "{}"), FunctionCallOutput("c", (Text("x"),)))


@pytest.mark.parametrize(
    ("request_", "limits"),
    [
        (Request(model="m", items=(Message("system", "Be kind."), *TURNS * 100)), OLD),
        (Request(model="m", items=TURNS, tools=FUNCTIONS), OLD),
        (asked(tools=FUNCTIONS, tool_choice=NamedTool("tool_1")), OLD),
        (
            asked(tools=(PATCH,), tool_choice=NamedTool("patch", "custom")),
            UpstreamLimits(audio=False),
        ),
        (asked(tools=(SEARCH,), tool_choice=SEARCH), UpstreamLimits(images=False)),
        (asked(CustomToolCallOutput("c", (Text("x"),))), UpstreamLimits(files=False)),
        (asked(tools=FUNCTIONS, format=JSONSchema("a", {})), UpstreamLimits(custom_tools=False)),
    ],
    ids=["long", "tools", "named", "custom", "hosted", "output", "format"],
)
def test_request_within_the_limits_costs_one_call_at_any_size(request_, limits) -> None:
    lowered, calls = counted(lambda: lower(request_, limits))
    assert lowered.request is request_
    assert calls == 1


@pytest.mark.parametrize(
    ("item", "limits", "lowered"),
    [
        (Message("system", "x"), UpstreamLimits(system_messages="front"), Message("system", "x")),
        (
            Message("user", (Image("https://example.com/a.png"),)),
            UpstreamLimits(images=False),
            Message("user", (Text("[image: this model cannot see it]"),)),
        ),
        (
            FunctionCallOutput("c", (Image(file_id="f1"),)),
            UpstreamLimits(images=False),
            FunctionCallOutput("c", (Text("[image: this model cannot see it]"),)),
        ),
    ],
    ids=["late", "image", "output"],
)
def test_item_beyond_the_limits_is_rewritten(item, limits, lowered) -> None:
    items = lower(asked(item), limits).request.items
    assert lowered in items
    assert items != (USER, item)


def counted(work: Callable[[], Lowered]) -> tuple[Lowered, int]:
    """The result, and how many Python functions ran."""
    calls = -1  # the lambda itself

    def count(frame: object, event: str, value: object) -> None:
        nonlocal calls
        calls += event == "call"

    gc.disable()  # its callbacks are calls too
    sys.setprofile(count)
    try:
        result = work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return result, calls


def heard(lowered: Lowered, *names: str) -> Response:
    """What the client sees of an answer that calls these."""
    calls = (
        FunctionCall(f"c{n}", name, "{}", id=f"fc_{n}", status="completed")
        for n, name in enumerate(names)
    )
    return fold(lowered.restore([*unfold(answer(*calls, reasons=("tool_calls",)))]))


MANY_NAMES = json.dumps(dict.fromkeys(map(str, range(20_000)), 0))


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ('{"a": "b', '{"input": "{\\"a\\": \\"b"}'),
        ('{"a": 1}{"b": 2}', '{"input": "{\\"a\\": 1}{\\"b\\": 2}"}'),
        (" [1]", '{"input": "[1]"}'),
        ('{"a": NaN}', '{"input": "{\\"a\\": NaN}"}'),
        ("\ud83d", '{"input": "\\ud83d"}'),
        ("", "{}"),
        ("[" * 100_000, json.dumps({"input": "[" * 100_000})),
        ("é\n\ud83d" * 50_000, json.dumps({"input": "é\n\ud83d" * 50_000})),
        (f'{{"a": {"9" * 309}}}', json.dumps({"input": f'{{"a": {"9" * 309}}}'})),
        (MANY_NAMES, json.dumps({"input": MANY_NAMES})),
    ],
)
def test_arguments_that_are_no_object_are_put_into_one(given, sent) -> None:
    """Most servers read those of the whole conversation, and refuse it after such a call."""
    items = (FunctionCall("a", "read", "{ }"), FunctionCall("b", "read", given))
    lowered = lower(asked(*items), UpstreamLimits(any_arguments=False))
    assert [item.arguments for item in lowered.request.items[-2:]] == ["{ }", sent]
    assert fields_of(lowered) == [("items[2].arguments", "emulated")]
    assert lower(asked(*items), UNLIMITED).request.items[-1].arguments == given


def test_arguments_of_a_first_call_and_of_many_calls_with_many_names_are_put_into_one() -> None:
    """llama.cpp compares each name of an object with all before it."""
    some = json.dumps(dict.fromkeys(map(str, range(5_000)), 0))
    for texts, kept in (([MANY_NAMES], 0), ([some] * 9, 3)):
        items = tuple(FunctionCall(f"c{n}", "read", each) for n, each in enumerate(texts))
        lowered = lower(Request(model="m", items=items), UpstreamLimits(any_arguments=False))
        sent = [item.arguments for item in lowered.request.items]
        assert sent == texts[:kept] + [json.dumps({"input": each}) for each in texts[kept:]]


def test_only_allowed_tools_are_offered_where_the_choice_is_unknown() -> None:
    choice = AllowedTools("required", (NamedTool("write"),))
    lowered = lower(
        asked(tools=(READ, WRITE), tool_choice=choice), UpstreamLimits(allowed_tools=False)
    )
    assert lowered.request.tools == (WRITE,)
    assert lowered.request.tool_choice == "required"
    assert fields_of(lowered) == [("tool_choice", "emulated")]
    response = heard(lowered, "read", "write")
    assert [call.name for call in response.calls] == ["write"]
    assert [loss.field for loss in response.losses] == ["tool_choice"]


def test_calls_are_filtered_even_where_the_choice_is_known() -> None:
    request = asked(tools=(READ, WRITE), tool_choice=AllowedTools("auto", (NamedTool("read"),)))
    lowered = lower(request, UNLIMITED)
    assert lowered.request is request
    assert [call.name for call in heard(lowered, "write", "read").calls] == ["read"]


def test_allowed_tools_are_matched_by_the_client_names() -> None:
    choice = AllowedTools("auto", (NamedTool("find", "function", "crm"),))
    lowered = lower(asked(tools=(READ, CRM), tool_choice=choice), OLD)
    response = heard(lowered, "read", "crm__find", "find")
    assert [(call.namespace, call.name) for call in response.calls] == [
        ("crm", "find"),
        (None, "find"),
    ]


SCHEMA = JSONSchema("answer", {"type": "object"})


@given(
    st.builds(
        UpstreamLimits,
        custom_tools=st.booleans(),
        namespaces=st.booleans(),
        allowed_tools=st.booleans(),
        json_schema=st.booleans(),
        developer_role=st.sampled_from(["developer", "system"]),
        system_messages=st.sampled_from(["anywhere", "front"]),
        images=st.none() | st.booleans(),
    )
)
def test_p31_a_longer_conversation_begins_with_the_same_bytes(limits) -> None:
    longer = msgspec.structs.replace(
        EVERYTHING, items=(*EVERYTHING.items, CustomToolCall("c3", "patch", "y"), USER)
    )
    before, after = (lower(request, limits).request for request in (EVERYTHING, longer))
    again = lower(EVERYTHING, limits).request
    assert msgspec.json.encode(before) == msgspec.json.encode(again)
    assert (
        msgspec.json.encode(before.items)[:-1]
        == (msgspec.json.encode(after.items)[: len(msgspec.json.encode(before.items)) - 1])
    )
    assert (before.tools, before.instructions) == (after.tools, after.instructions)


@pytest.mark.parametrize(
    ("limits", "choice", "lost", "told"),
    [
        (UNLIMITED, None, "tools[2]", "tools[2]"),
        (OLD, None, "tools[3]", "tools[2]"),
        (OLD, None, "tools[1].strict", "tools[1].strict"),
        (OLD, None, "input[1]", "input[1]"),
        (OLD, AllowedTools("auto", (NamedTool("note", "custom", "crm"),)), "tools[0]", "tools[1]"),
        (
            UpstreamLimits(allowed_tools=False),
            AllowedTools("auto", (NamedTool("patch", "custom"),)),
            "tools[0]",
            "tools[3]",
        ),
    ],
)
def test_loss_of_a_tool_has_its_position_in_the_client_list(limits, choice, lost, told) -> None:
    lowered = lower(asked(tools=(READ, CRM, SEARCH, PATCH), tool_choice=choice), limits)
    (loss,) = lowered.client_losses((Loss(lost, "dropped", "no such thing"),))
    assert loss.field == told
    assert lowered.client_losses(()) == ()


LOCAL = UpstreamLimits(hosted_tools=False)
MIXED = Namespace("mixed", (SEARCH, READ))


@pytest.mark.parametrize("limits", [LOCAL, msgspec.structs.replace(OLD, hosted_tools=False)])
def test_hosted_tools_that_cannot_run_are_dropped_and_reported(limits) -> None:
    tools = (READ, SEARCH, MIXED, Namespace("only", (SEARCH,)), Namespace("empty", ()))
    lowered = lower(asked(tools=tools), limits)
    assert SEARCH not in lowered.request.tools
    assert [field for field, action in fields_of(lowered) if action == "dropped"] == [
        "tools[1]",
        "tools[*].tools[*]",
    ]
    if limits is LOCAL:
        assert lowered.request.tools == (READ, Namespace("mixed", (READ,)), tools[-1])
        lost = (Loss("tools[1].parameters", "dropped", "x"), Loss("store", "dropped", "x"))
        assert [loss.field for loss in lowered.client_losses(lost)] == [
            "tools[2].parameters",
            "store",
        ]
        assert lowered.client_fault(bad_request("x", "tools[1].a")).message == "tools[2].a: x"
        assert lowered.client_fault(bad_request("x")).message == "x"
