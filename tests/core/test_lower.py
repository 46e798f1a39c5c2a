"""Requests are rewritten for what an upstream can take, and left alone where it can."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.error import FaultError, bad_request
from dragoman.core.fold import fold, unfold
from dragoman.core.item import (
    Audio,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Text,
)
from dragoman.core.loss import Loss, LossList
from dragoman.core.lower import (
    UNLIMITED,
    Lowered,
    Modality,
    UpstreamLimits,
    lower,
    lower_system,
    replace_modalities,
)
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    OutputFormat,
    Request,
    TextFormat,
    ToolChoice,
    UnknownTool,
)
from dragoman.core.response import Response

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


# ---- nothing to do ---------------------------------------------------------------------------


def test_unlimited_upstream_gets_the_same_request() -> None:
    lowered = lower(EVERYTHING, UNLIMITED)
    assert lowered.request is EVERYTHING
    assert (lowered.losses, lowered.restore) == ((), None)


def test_request_within_the_limits_is_unchanged() -> None:
    request = asked(
        FunctionCall("c", "read", "{}"),
        FunctionCallOutput("c", "x"),
        tools=(READ, WRITE),
        tool_choice=NamedTool("read"),
        format=TextFormat(),
        instructions="Be kind.",
    )
    lowered = lower(request, OLD)
    assert lowered.request is request
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
def test_request_within_the_limits_costs_one_call_at_any_size(
    request_: Request, limits: UpstreamLimits
) -> None:
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
def test_item_beyond_the_limits_is_rewritten(
    item: Item, limits: UpstreamLimits, lowered: Item
) -> None:
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


# ---- tools -----------------------------------------------------------------------------------


def test_p16_tools_and_history_are_lowered_and_reported() -> None:
    lowered = lower(EVERYTHING, UpstreamLimits(custom_tools=False, namespaces=False))
    names = [getattr(tool, "name", tool) for tool in lowered.request.tools]
    assert names == ["read", "patch", "crm__find", "crm__note", SEARCH]
    assert not any(isinstance(tool, CustomTool | Namespace) for tool in lowered.request.tools)
    assert lowered.request.items[3:7] == (
        FunctionCall("c1", "patch", '{"input": "{\\"a\\": 1}"}', id="fc_1"),
        FunctionCallOutput("c1", (Text("done"), Image(file_id="f1"))),
        FunctionCall("c2", "crm__find", '{ "q" :1}'),
        FunctionCallOutput("c2", "nobody"),
    )
    assert fields_of(lowered) == [
        ("tools[1]", "emulated"),
        ("tools[1].format", "dropped"),
        ("tools[2].tools[1]", "emulated"),
        ("tools[2]", "emulated"),
        ("items[*]", "emulated"),
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (NamedTool("patch", "custom"), NamedTool("patch")),
        (NamedTool("find", "function", "crm"), NamedTool("crm__find")),
        ("required", "required"),
        (None, None),
        (
            AllowedTools("auto", (NamedTool("note", "custom", "crm"), SEARCH)),
            AllowedTools("auto", (NamedTool("crm__note"), SEARCH)),
        ),
    ],
    ids=["custom", "namespace", "mode", "none", "allowed"],
)
def test_choice_is_lowered_with_the_tools(choice: ToolChoice, expected: ToolChoice) -> None:
    request = asked(tools=(PATCH, CRM, SEARCH), tool_choice=choice)
    lowered = lower(request, UpstreamLimits(custom_tools=False, namespaces=False))
    assert lowered.request.tool_choice == expected


def test_unchanged_past_call_is_not_reported() -> None:
    request = asked(
        CustomToolCall("c", "patch", "x"), CustomToolCallOutput("c", ""), tools=(PATCH,)
    )
    lowered = lower(request, UpstreamLimits(namespaces=False))
    assert lowered.request is request
    assert (lowered.losses, lowered.restore) == ((), None)


# ---- allowed tools ---------------------------------------------------------------------------


def heard(lowered: Lowered, *names: str) -> Response:
    """What the client sees of an answer that calls these."""
    calls = tuple(
        FunctionCall(f"c{n}", name, "{}", id=f"fc_{n}", status="completed")
        for n, name in enumerate(names)
    )
    answer = Response(
        id="1", created_at=0, model="m", status="completed", output=calls, reasons=("tool_calls",)
    )
    assert lowered.restore is not None
    return fold(lowered.restore([*unfold(answer)]))


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


def test_choice_is_dropped_with_the_last_tool() -> None:
    choice = AllowedTools("required", (NamedTool("gone"),))
    lowered = lower(asked(tools=(READ,), tool_choice=choice), UpstreamLimits(allowed_tools=False))
    assert (lowered.request.tools, lowered.request.tool_choice) == ((), None)


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


# ---- format ----------------------------------------------------------------------------------

SCHEMA = JSONSchema("answer", {"type": "object"})


@pytest.mark.parametrize(
    "choice",
    ["required", NamedTool("read"), AllowedTools("required", (NamedTool("read"),)), SEARCH],
    ids=["required", "named", "allowed", "hosted"],
)
@pytest.mark.parametrize("format", [SCHEMA, JSONObject()], ids=["schema", "object"])
def test_format_is_dropped_beside_a_forced_tool(choice: ToolChoice, format: OutputFormat) -> None:
    request = asked(tools=(READ, SEARCH), tool_choice=choice, format=format)
    lowered = lower(request, UpstreamLimits(format_beside_forced_tool=False))
    assert lowered.request.format is None
    assert ("format", "dropped") in fields_of(lowered)


@pytest.mark.parametrize(
    "choice", [None, "auto", "none", AllowedTools("auto", (NamedTool("read"),))], ids=str
)
def test_format_is_sent_where_no_tool_is_forced(choice: ToolChoice | None) -> None:
    request = asked(tools=(READ,), tool_choice=choice, format=SCHEMA)
    lowered = lower(request, UpstreamLimits(format_beside_forced_tool=False))
    assert lowered.request.format == SCHEMA


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, "{}"),
        ("Be kind.", "Be kind.\n\n{}"),
        (
            (Message("system", "Be kind."),),
            (Message("system", "Be kind."), Message("system", "{}")),
        ),
    ],
    ids=["none", "text", "items"],
)
def test_schema_is_described_where_it_is_not_supported(given_: Any, expected: Any) -> None:
    words = 'Answer with one JSON object, answer, that fits this schema:\n{"type":"object"}'
    lowered = lower(asked(instructions=given_, format=SCHEMA), UpstreamLimits(json_schema=False))
    assert lowered.request.format == JSONObject()
    match expected:
        case str():
            assert lowered.request.instructions == expected.format(words)
        case (first, _):
            assert lowered.request.instructions == (first, Message("system", words))
    assert fields_of(lowered) == [("format", "emulated")]


def test_format_without_schema_is_unchanged() -> None:
    for format in (JSONObject(), TextFormat()):
        assert (
            lower(asked(format=format), UpstreamLimits(json_schema=False)).request.format == format
        )


# ---- all of it -------------------------------------------------------------------------------


def test_p19_and_p32_together_with_all_other_limits() -> None:
    lowered = lower(EVERYTHING, OLD)
    system, *rest = lowered.request.items
    assert isinstance(system, Message)
    assert system.role == "system"
    assert system.text.startswith("Be kind.\n\nAnswer with one JSON object, answer (An answer.),")
    assert system.text.endswith("\n\nBe brief.")
    assert lowered.request.instructions is None
    assert rest[1] == Message("user", (Text("see"), Text("[image: this model cannot see it]")))
    assert rest[3] == FunctionCallOutput(
        "c1", (Text("done"), Text("[image: this model cannot see it]"))
    )
    assert [field for field, _ in fields_of(lowered)[5:]] == [
        "format",
        "items[2].content[1]",
        "items[4].output[1]",
        "items",
    ]


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
def test_p31_a_longer_conversation_begins_with_the_same_bytes(limits: UpstreamLimits) -> None:
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
def test_loss_of_a_tool_has_its_position_in_the_client_list(
    limits: UpstreamLimits, choice: ToolChoice | None, lost: str, told: str
) -> None:
    lowered = lower(asked(tools=(READ, CRM, SEARCH, PATCH), tool_choice=choice), limits)
    (loss,) = lowered.client_losses((Loss(lost, "dropped", "no such thing"),))
    assert loss.field == told
    assert lowered.client_losses(()) == ()


def test_named_tool_is_offered_alone_where_it_cannot_be_forced() -> None:
    """Some servers take a named choice for a hint; that some tool is required they all keep to."""
    request = asked(tools=(READ, WRITE, PATCH), tool_choice=NamedTool("write"))
    for limits in (UpstreamLimits(named_tool=False, allowed_tools=False), OLD_AND_LAX):
        lowered = lower(request, limits)
        assert [tool.name for tool in lowered.request.tools] == ["write"]
        assert lowered.request.tool_choice == "required"
        assert [loss.action for loss in lowered.losses] == ["emulated"]
    native = lower(request, UpstreamLimits(named_tool=False))
    assert native.request.tool_choice == AllowedTools("required", (NamedTool("write"),))
    assert lower(request, UpstreamLimits(images=False)).request is request


def test_no_tools_are_offered_for_choice_none_where_idle_tools_are_called() -> None:
    request = asked(tools=(READ, PATCH), tool_choice="none")
    for limits in (UpstreamLimits(idle_tools=False), OLD_AND_LAX):
        lowered = lower(request, limits)
        assert (lowered.request.tools, lowered.request.tool_choice) == ((), None)
        assert [loss.field for loss in lowered.losses] == ["tool_choice"]
    assert lower(request, UpstreamLimits(images=False)).request is request
    assert lower(asked(tool_choice="none"), OLD_AND_LAX).request.tool_choice == "none"


OLD_AND_LAX = msgspec.structs.replace(OLD, named_tool=False, idle_tools=False)


# ---- hosted tools --------------------------------------------------------------------------

LOCAL = UpstreamLimits(hosted_tools=False)
MIXED = Namespace("mixed", (SEARCH, READ))


@pytest.mark.parametrize("limits", [LOCAL, msgspec.structs.replace(OLD, hosted_tools=False)])
def test_hosted_tools_that_cannot_run_are_dropped_and_reported(limits: UpstreamLimits) -> None:
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


def test_request_without_hosted_tools_is_unchanged() -> None:
    request = asked(tools=(READ, PATCH, CRM), tool_choice="required")
    assert lower(request, LOCAL).request is request


@pytest.mark.parametrize(
    "choice", [SEARCH, "required", AllowedTools("required", (SEARCH,))], ids=str
)
def test_a_hosted_tool_that_must_be_called_is_refused(choice: ToolChoice) -> None:
    with pytest.raises(FaultError) as refused:
        lower(asked(tools=(SEARCH,), tool_choice=choice), LOCAL)
    assert (refused.value.fault.code, refused.value.fault.param) == ("unsupported", "tool_choice")


def test_a_forced_hosted_tool_is_refused_without_tools_too() -> None:
    with pytest.raises(FaultError):
        lower(asked(tool_choice=SEARCH), LOCAL)


def test_hosted_tools_among_the_allowed_are_dropped() -> None:
    space = UnknownTool("responses", "namespace", {"name": "crm"})
    tools, choice = (
        (SEARCH, READ, CRM),
        AllowedTools("required", (SEARCH, NamedTool("read"), space)),
    )
    lowered = lower(asked(tools=tools, tool_choice=choice), LOCAL)
    assert isinstance(lowered.request.tool_choice, AllowedTools)
    assert SEARCH not in lowered.request.tool_choice.tools
    assert fields_of(lowered) == [("tools[0]", "dropped"), ("tool_choice", "dropped")]
    kept = AllowedTools("auto", (NamedTool("read"),))
    assert fields_of(lower(asked(tools=tools, tool_choice=kept), LOCAL)) == [
        ("tools[0]", "dropped")
    ]
    alone = lower(asked(tools=tools, tool_choice=AllowedTools("auto", (SEARCH,))), LOCAL)
    assert (alone.request.tools, alone.request.tool_choice) == ((), None)
    assert fields_of(alone) == [("tools[0]", "dropped"), ("tool_choice", "dropped")]


SYSTEM, DEVELOPER = Message("system", "Be kind."), Message("developer", "Be brief.")


def lowered(
    *items: Item, instructions: Any = None, **how: Any
) -> tuple[Request, list[tuple[str, str]]]:
    ledger = LossList()
    request = Request(model="m", instructions=instructions, items=items)
    how = {"role": "system", "front": True, **how}
    result = lower_system(request, ledger, **how)
    return result, [(loss.field, loss.action) for loss in ledger.losses()]


def test_p19_system_messages_are_joined_in_front_in_their_order() -> None:
    request, losses = lowered(SYSTEM, USER, DEVELOPER, USER, instructions="Be yourself.")
    assert request.instructions is None
    assert request.items == (
        Message("system", "Be yourself.\n\nBe kind.\n\nBe brief."),
        USER,
        USER,
    )
    assert losses == [("items", "emulated")]


def test_p19_a_late_message_moves_to_the_front() -> None:
    late = Message("developer", (Text("Be brief."),), name="Ada")
    request, losses = lowered(USER, late)
    assert request.items == (Message("system", late.content, name="Ada"), USER)
    assert losses == [("items", "emulated")]


def test_p19_a_developer_message_becomes_a_system_message() -> None:
    request, losses = lowered(USER, DEVELOPER, SYSTEM, front=False)
    assert request.items == (USER, Message("system", "Be brief."), SYSTEM)
    assert losses == [("items[1].role", "emulated")]
    request, losses = lowered(DEVELOPER, USER)
    assert request.items == (Message("system", "Be brief."), USER)
    assert losses == [("items[0].role", "emulated")]


def test_joined_system_messages_take_the_system_role() -> None:
    request, _ = lowered(DEVELOPER, DEVELOPER, role="developer")
    assert request.items[0].role == "developer"
    request, _ = lowered(DEVELOPER, SYSTEM, role="developer")
    assert request.items[0].role == "system"


def test_joined_content_with_other_parts_stays_parts() -> None:
    marked = Message("system", (Text("a", extra={"chat": {"mark": 1}}), Image("u")))
    request, losses = lowered(marked, Message("system", ""), DEVELOPER)
    (joined,) = request.items
    assert isinstance(joined, Message)
    assert joined.content == (*marked.parts, Text("\n\n"), Text("Be brief."))
    assert losses == [("items", "emulated")]


def test_text_in_parts_is_joined_to_a_string() -> None:
    request, _ = lowered(Message("system", (Text("a"), Text("b"))), SYSTEM)
    assert request.items == (Message("system", "ab\n\nBe kind."),)


def test_names_lost_in_joining_are_reported() -> None:
    _, losses = lowered(Message("system", "a", name="Ada"), SYSTEM)
    assert losses == [("items", "emulated"), ("items", "dropped")]


def test_instructions_given_as_items_are_joined_too() -> None:
    other = FunctionCall("c", "f", "{}")
    request, _ = lowered(SYSTEM, instructions=(DEVELOPER, other))
    assert request.items == (Message("system", "Be brief.\n\nBe kind."), other)


@pytest.mark.parametrize(
    ("items", "instructions", "how"),
    [
        ((USER,), "Be kind.", {}),
        ((SYSTEM, USER), None, {}),
        ((SYSTEM, USER), "", {}),
        ((USER, SYSTEM, DEVELOPER), "Be.", {"role": "developer", "front": False}),
        ((USER, SYSTEM), "Be.", {"front": False}),
    ],
    ids=["instructions only", "in front", "empty instructions", "native", "anywhere"],
)
def test_supported_system_messages_are_unchanged(
    items: tuple[Item, ...], instructions: str | None, how: dict[str, Any]
) -> None:
    request = Request(model="m", instructions=instructions, items=items)
    how = {"role": "system", "front": True, **how}
    assert lower_system(request, LossList(), **how) is request


PICTURE = Image("data:image/png;base64,AAAA")
ALL: tuple[Modality, ...] = (Image, Audio, File)


def words(*parts: object, senses: tuple[Modality, ...] = ALL) -> tuple[str, list[tuple[str, str]]]:
    ledger = LossList()
    (item,) = replace_modalities((Message("user", parts),), senses, ledger)
    assert isinstance(item, Message)
    return item.text, [(loss.field, loss.action) for loss in ledger.losses()]


def test_p32_image_becomes_a_placeholder_and_is_reported() -> None:
    text, losses = words(Text("Look: "), PICTURE)
    assert text == "Look: [image: this model cannot see it]"
    assert losses == [("items[0].content[1]", "dropped")]


def test_p32_an_image_in_a_tool_result_becomes_a_placeholder_and_never_text() -> None:
    history: tuple[Item, ...] = (
        FunctionCallOutput("c1", (Text("a screenshot"), PICTURE)),
        CustomToolCallOutput("c2", (PICTURE,)),
    )
    ledger = LossList()
    first, second = replace_modalities(history, (Image,), ledger)
    assert isinstance(first, FunctionCallOutput)
    assert isinstance(second, CustomToolCallOutput)
    placeholder = Text("[image: this model cannot see it]")
    assert first.output == (Text("a screenshot"), placeholder)
    assert second.output == (placeholder,)
    assert [loss.field for loss in ledger.losses()] == ["items[*].output[*]"]
    assert "base64" not in repr((first, second))


def test_audio_is_replaced_by_its_transcript_or_a_placeholder() -> None:
    assert words(Audio("AAAA", "wav")) == (
        "[audio: this model cannot hear it]",
        [("items[0].content[0]", "dropped")],
    )
    assert words(Audio("AAAA", transcript="hello")) == (
        "hello",
        [("items[0].content[0]", "emulated")],
    )


def test_a_file_becomes_a_placeholder() -> None:
    assert words(File("f1"))[0] == "[file: this model cannot read it]"


def test_only_missing_modalities_are_replaced() -> None:
    assert words(PICTURE, File("f1"), senses=(File,))[1] == [("items[0].content[1]", "dropped")]


def test_items_without_missing_modalities_are_unchanged() -> None:
    history: tuple[Item, ...] = (
        Message("user", "hi"),
        Message("user", (Text("hi"),)),
        FunctionCallOutput("c", "x"),
        FunctionCallOutput("c", (Text("x"),)),
    )
    assert replace_modalities(history, ALL, LossList()) is history


def test_an_image_alone_is_replaced_where_the_model_cannot_see() -> None:
    history = (USER, FunctionCallOutput("c", (Text("x"), Image("u"))))
    lowered = lower(Request(model="m", items=history), UpstreamLimits(images=False))
    assert lowered.request.items[0] is USER
    placeholder = Text("[image: this model cannot see it]")
    assert lowered.request.items[1] == FunctionCallOutput("c", (Text("x"), placeholder))
    assert fields_of(lowered) == [("items[1].output[1]", "dropped")]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_late_system_message_moves_to_the_front(role: Any) -> None:
    items = (Message("user", "Hello"), Message(role, "Be brief."))
    request = Request(model="m", items=items)
    asked = lower(request, UpstreamLimits(developer_role="system", system_messages="front")).request
    assert [getattr(item, "role", "") for item in asked.items] == ["system", "user"]
