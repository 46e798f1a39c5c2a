"""Tools: names an upstream can take and their own names back, and a choice of allowed ones."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.item import Call, CustomToolCall, FunctionCall
from dragoman.core.loss import LossList
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedTool,
    Namespace,
    Tool,
    UnknownTool,
)
from dragoman.core.tools import Toolbox, ToolFilter
from tests.samples import samples

LARK = CustomTool("patch", "Edit files.", "lark", "start: WORD")
CRM = Namespace("crm", (FunctionTool("find", "Find a customer."), LARK), "Customers.")


def box(*tools: Tool, custom: bool = False, namespaces: bool = False) -> tuple[Toolbox, LossList]:
    ledger = LossList()
    return Toolbox(enumerate(tools), custom=custom, namespaces=namespaces, losses=ledger), ledger


def losses(ledger: LossList) -> list[tuple[str, str]]:
    return [(loss.field, loss.action) for loss in ledger.losses()]


def test_p16_a_custom_tool_becomes_a_function_with_one_input() -> None:
    toolbox, ledger = box(LARK)
    (tool,) = toolbox.tools
    assert tool.name == "patch"
    assert tool.parameters == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    assert tool.description == (
        "Edit files.\n\nThe input must match this lark grammar:\nstart: WORD"
    )
    assert losses(ledger) == [("tools[0]", "emulated"), ("tools[0].format", "dropped")]


def test_custom_tool_without_grammar_gets_no_description() -> None:
    toolbox, ledger = box(FunctionTool("f"), CustomTool("note"))
    assert toolbox.tools[1].description is None
    assert losses(ledger) == [("tools[1]", "emulated")]


def test_p16_a_namespace_becomes_a_prefix() -> None:
    toolbox, ledger = box(CRM, custom=True)
    assert toolbox.tools == (
        FunctionTool("crm__find", "Customers.\n\nFind a customer."),
        CustomTool("crm__patch", "Customers.\n\nEdit files.", "lark", "start: WORD"),
    )
    assert losses(ledger) == [("tools[0]", "emulated")]


def test_custom_tool_in_a_native_namespace_becomes_a_function() -> None:
    toolbox, ledger = box(CRM, namespaces=True)
    (group,) = toolbox.tools
    assert [type(tool) for tool in group.tools] == [FunctionTool, FunctionTool]
    call = CustomToolCall("c", "patch", "x", "crm")
    lowered = toolbox.lower(call)
    assert (lowered.name, lowered.namespace) == ("patch", "crm")
    assert toolbox.restore(lowered) == call
    assert ("tools[0].tools[1]", "emulated") in losses(ledger)


@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        ('{"input": "ls"}', "ls"),
        ('{"input":"a\\n\\u00e9"}', "a\né"),
        ('{"input": ""}', ""),
        ('{"input": 1}', '{"input": 1}'),
        ('{"input": "a", "more": 1}', '{"input": "a", "more": 1}'),
        ('{"inp', '{"inp'),
        ("[1]", "[1]"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=["plain", "escaped", "empty", "number", "two", "cut", "array", "none", "deep"],
)
def test_p16_arguments_that_are_not_an_input_object_are_the_input(arguments, input) -> None:
    toolbox, _ = box(LARK)
    restored = toolbox.restore(FunctionCall("c", "patch", arguments))
    assert restored == CustomToolCall("c", "patch", input)


def test_taken_long_and_illegal_names_become_unique_legal_ones() -> None:
    tools = (
        FunctionTool("a__b"),
        Namespace("a", (FunctionTool("b"), FunctionTool("b!"), FunctionTool("b?"))),
        Namespace("a__b", (FunctionTool("c"),)),
        Namespace("long" * 20, (FunctionTool("c"), FunctionTool("d"))),
    )
    toolbox, _ = box(*tools)
    names = [tool.name for tool in toolbox.tools]
    assert names[0] == "a__b"
    assert names[4] == "a__b__c"
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)


def test_a11_two_tools_whose_flat_names_are_one_get_two() -> None:
    """The model's call of either is restored to the one it is of."""
    groups = (Namespace("a", (FunctionTool("b__c"),)), Namespace("a__b", (FunctionTool("c"),)))
    toolbox, _ = box(*groups)
    first, second = (tool.name for tool in toolbox.tools)
    assert first != second
    restored = [toolbox.restore(FunctionCall("x", name, "{}")) for name in (first, second)]
    assert [(call.namespace, call.name) for call in restored] == [("a", "b__c"), ("a__b", "c")]


def test_a_name_with_a_dot_is_understood_but_where_it_is_a_tools_own() -> None:
    """Errors name tools so to the model, which is shown them with a prefix."""
    toolbox, _ = box(CRM)
    made = FunctionCall("x", "crm.find", "{}"), FunctionCall("y", "crm.patch", '{"input": "a"}')
    assert [toolbox.restore(call) for call in made] == [
        FunctionCall("x", "find", "{}", "crm"),
        CustomToolCall("y", "patch", "a", "crm"),
    ]
    for tools in ((CRM, FunctionTool("crm.find")), (FunctionTool("crm.find"), CRM)):
        assert box(*tools)[0].restore(made[0]) == made[0]
    assert box(CRM, custom=True, namespaces=True)[0].restore(made[0]) == made[0]


def test_derived_name_that_is_taken_is_counted_on() -> None:
    group = Namespace("a", (FunctionTool("b!"),))
    (made,) = box(group)[0].tools
    toolbox, _ = box(FunctionTool(made.name), group)
    first, second = toolbox.tools
    assert first.name != second.name


def test_offered_tool_wins_over_a_past_one_of_its_name() -> None:
    toolbox, _ = box(FunctionTool("x"), LARK)
    toolbox.lower(CustomToolCall("c", "patch", "old"))
    assert toolbox.restore(FunctionCall("d", "x", "{}")) == FunctionCall("d", "x", "{}")


# ---- there and back --------------------------------------------------------------------------

NAMES = st.text("ab_-!é", min_size=1, max_size=3) | st.text("a", min_size=60, max_size=70)
NAMED = st.builds(FunctionTool, NAMES) | st.builds(CustomTool, NAMES)
GROUPS = st.builds(
    Namespace, NAMES, st.lists(NAMED, max_size=4, unique_by=lambda t: t.name).map(tuple)
)
TOOLS = st.lists(NAMED | GROUPS, max_size=6, unique_by=lambda t: t.name)
TEXTS = st.text(max_size=20) | st.sampled_from(['{"input": "x"}', "{", "\ud800", '"'])


def calls_of(tools: list[Tool], text: str) -> list[Call]:
    calls: list[Call] = []
    for tool in tools:
        group = tool.name if isinstance(tool, Namespace) else None
        for number, each in enumerate(tool.tools if isinstance(tool, Namespace) else (tool,)):
            kind: Any = CustomToolCall if isinstance(each, CustomTool) else FunctionCall
            prefix = "ctc" if kind is CustomToolCall else "fc"
            calls.append(kind(f"call_{number}", each.name, text, group, f"{prefix}_{number}"))
    return calls


@settings(max_examples=samples(15, 2_000))
@given(TOOLS, TEXTS, st.booleans(), st.booleans())
def test_p16_lowered_and_restored_a_call_is_what_it_was(tools, text, custom, namespaces) -> None:
    toolbox, _ = box(*tools, custom=custom, namespaces=namespaces)
    calls = calls_of(tools, text)
    lowered = [toolbox.lower(call) for call in calls]
    assert [toolbox.restore(call) for call in lowered] == calls
    assert custom or not any(isinstance(call, CustomToolCall) for call in lowered)
    assert namespaces or not any(call.namespace for call in lowered)
    assert len({(call.namespace, call.name) for call in lowered}) == len(lowered)


@given(TOOLS, TEXTS)
def test_p31_the_same_tools_and_calls_get_the_same_names(tools, text) -> None:
    first, second = box(*tools)[0], box(*tools)[0]
    calls = calls_of(tools, text)
    assert first.tools == second.tools
    assert [first.lower(call) for call in calls] == [second.lower(call) for call in calls]


READ, WRITE, PATCH = FunctionTool("read"), FunctionTool("write"), CustomTool("patch")
MCP = UnknownTool("responses", "mcp", {"server_label": "deepwiki", "server_url": "x"})
SEARCH = UnknownTool("responses", "web_search", {})
FILES = Namespace("files", (READ, PATCH, SEARCH), "Files.")
MAIL = Namespace("mail", (READ, FunctionTool("send")))
OFFERED: tuple[Tool, ...] = (READ, WRITE, FILES, MAIL, MCP, SEARCH)


def allowed(*entries: NamedTool | UnknownTool) -> ToolFilter:
    return ToolFilter(AllowedTools("auto", entries), OFFERED)


def entry(kind: str, **value: str) -> UnknownTool:
    return UnknownTool("responses", kind, value)


@pytest.mark.parametrize(
    ("entries", "kept", "names"),
    [
        ([NamedTool("write")], [(1, WRITE)], {(None, "write")}),
        (
            [NamedTool("patch", "custom", "files")],
            [(2, Namespace("files", (PATCH,), "Files."))],
            {("files", "patch")},
        ),
        (
            [NamedTool("read")],
            [
                (0, READ),
                (2, Namespace("files", (READ,), "Files.")),
                (3, Namespace("mail", (READ,))),
            ],
            {(None, "read"), ("files", "read"), ("mail", "read")},
        ),
        ([entry("namespace", name="mail")], [(3, MAIL)], {("mail", "read"), ("mail", "send")}),
        ([entry("mcp", server_label="deepwiki")], [(4, MCP)], set()),
        ([entry("mcp", server_label="other")], [], set()),
        (
            [entry("web_search"), NamedTool("write")],
            [(1, WRITE), (2, Namespace("files", (SEARCH,), "Files.")), (5, SEARCH)],
            {(None, "write")},
        ),
        ([NamedTool("nowhere")], [], set()),
    ],
    ids=["one", "grouped", "anywhere", "group", "hosted", "not offered", "two", "none"],
)
def test_allowed_entries_select_tools_and_names(entries, kept, names) -> None:
    choice = allowed(*entries)
    assert choice.tools == kept
    assert choice.names == names


def test_allowed_entries_expand_in_order() -> None:
    hosted = entry("web_search")
    choice = allowed(hosted, entry("namespace", name="mail"), NamedTool("write"), NamedTool("send"))
    assert choice.expanded == (
        hosted,
        NamedTool("read", "function", "mail"),
        NamedTool("send", "function", "mail"),
        NamedTool("write"),
    )


def test_extra_fields_of_an_entry_are_preserved() -> None:
    odd = NamedTool("patch", extra={"chat": {"odd": 1}})
    assert allowed(odd, odd).expanded == (
        NamedTool("patch", "custom", "files", {"chat": {"odd": 1}}),
    )


def test_expanded_entry_has_the_kind_of_its_tool() -> None:
    assert allowed(NamedTool("patch")).expanded == (NamedTool("patch", "custom", "files"),)


def test_hosted_tools_are_unchanged() -> None:
    hosted = UnknownTool("responses", "web_search", {})
    toolbox, _ = box(hosted, Namespace("n", (hosted,)))
    assert toolbox.tools == (hosted, hosted)
    assert not toolbox.renames
