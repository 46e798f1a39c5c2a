"""A choice of allowed tools, applied to what is offered."""

import pytest

from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedTool,
    Namespace,
    Tool,
    UnknownTool,
)
from dragoman.core.tools import ToolFilter

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
def test_allowed_entries_select_tools_and_names(
    entries: list[NamedTool | UnknownTool],
    kept: list[tuple[int, Tool]],
    names: set[tuple[str | None, str]],
) -> None:
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
