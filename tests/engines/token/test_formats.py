"""The engine in the formats of the families: what a model writes in markup is heard as items."""

import re
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from dragoman.core.event import Event
from dragoman.core.fold import fold
from dragoman.core.interfaces import Caller
from dragoman.core.item import (
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Unknown,
)
from dragoman.core.lifecycle import check
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    Namespace,
    Request,
    UnknownTool,
)
from dragoman.engines.find_format import NAMES, by_name
from dragoman.engines.token import TokenEngine, from_next_token
from dragoman.formats.prompt import ByteTokenizer, Control, Piece, Prompt
from tests.engines.stage import answered
from tests.engines.token.models import Says
from tests.engines.token.plain import TOY

ASKED = Request(
    model="m",
    items=(Message("user", "What is the weather in Rome?"),),
    tools=(FunctionTool("get_weather", None, {"properties": {"city": {"type": "string"}}}),),
)


@pytest.mark.parametrize("name", NAMES)
async def test_plain_text_is_a_message_in_every_format(name) -> None:
    format = by_name(name)
    words = "It is sunny in Rome." if name != "harmony" else "<|message|>It is sunny in Rome."
    (end, *_) = format.stops(ASKED).controls
    engine = TokenEngine(format, Says(words + end, size=TOY.size), ByteTokenizer(["<|x|>"]))
    response = await answered(engine, ASKED)
    await engine.close()
    assert response.text == "It is sunny in Rome."
    assert response.reasons == ("stop",)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "harmony"])
async def test_unsupported_item_is_refused_by_the_callers_field_name(name) -> None:
    items = (*ASKED.items, Message("assistant", "Hm."), Message("user", "And?"), Compaction("x"))
    (failed,) = await said(name, "", Request(model="m", items=items))
    assert failed.fault.param == "input[3]"
    assert failed.fault.message == (
        "input[3]: this model's prompt cannot hold an item of type 'compaction'"
    )


# ---- tools of every kind -------------------------------------------------------------------

PATCH = CustomTool("apply_patch", "Edits.", "lark", "start: /.+/")
DOCS = Namespace("mcp__docs", (FunctionTool("search"), FunctionTool("fetch")), "Documentation.")
SEARCH = UnknownTool("responses", "web_search", {})
CODEX = Request(
    model="m",
    items=(
        Message("user", "Set a to 2."),
        Unknown("responses", "web_search_call", {"status": "completed"}, "ws_1"),
        FunctionCall("c1", "search", "{}", "mcp__docs"),
        FunctionCallOutput("c1", "Nothing."),
        CustomToolCall("c2", "apply_patch", "a = 2"),
        CustomToolCallOutput("c2", "Done."),
        Message("user", "Again."),
    ),
    tools=(SEARCH, FunctionTool("shell"), PATCH, DOCS),
    tool_choice="auto",
)
CALLS = {
    "hermes": '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "a = 2"}}\n</tool_call>'
    '<tool_call>\n{"name": "mcp__docs__search", "arguments": {"q": "x"}}\n</tool_call><|im_end|>',
    "harmony": "<|channel|>commentary to=functions.apply_patch<|message|>a = 2<|call|>",
}


async def said(name: str, text: str, request: Request) -> list[Event]:
    """The events for a client of Responses, of a model that only names its tokens."""
    format = by_name(name)
    controls = ByteTokenizer([*format.stops(request).controls, "<tool_call>", "</tool_call>"])
    written = iter(Prompt(tuple(pieces(text, controls))).ids(controls))
    model = from_next_token(lambda ids, sampling: next(written, None))
    engine = TokenEngine(format, model, controls)
    async with aclosing(engine.stream(request, Caller(wire="responses"))) as stream:
        events = [event async for event in stream]
    await engine.close()
    check(events)
    return events


def pieces(text: str, tokenizer: ByteTokenizer) -> Iterator[Piece]:
    marks = "|".join(map(re.escape, tokenizer.controls))
    for piece in re.split(f"({marks})", text):
        yield Control(piece) if piece in tokenizer.controls else piece


@pytest.mark.parametrize("name", CALLS)
async def test_p16_custom_tools_and_namespaces_of_a_token_engine_come_back_as_they_were(
    name,
) -> None:
    events = await said(name, CALLS[name], CODEX)
    calls = fold(events).calls
    patch = calls[0]
    assert (patch.name, patch.input) == ("apply_patch", "a = 2")
    if name == "hermes":
        search = calls[1]
        assert (search.namespace, search.name) == ("mcp__docs", "search")
        assert search.arguments == '{"q": "x"}'
    lost = {loss.field: loss.action for loss in fold(events).losses}
    assert lost["tools[0]"] == "dropped"
    assert lost["input[1]"] == "dropped"
    assert ("tools[3]" in lost) == (name == "hermes")


async def test_a_grammar_that_is_only_described_is_never_called_enforced() -> None:
    strict = FunctionTool("shell", parameters={"type": "object"}, strict=True)
    for tools in ((PATCH,), (PATCH, strict)):
        response = fold(await said("hermes", "Hm.", Request(model="m", items=ASKED.items)))
        assert response.guarantee is None
        response = fold(await said("hermes", "Hm.", replace(ASKED, tools=tools)))
        assert response.guarantee == "best-effort"
        assert ("tools[0].format", "dropped") in {(x.field, x.action) for x in response.losses}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        (UnknownTool("responses", "web_search", {}), CODEX.tools),
        ("required", (SEARCH,)),
        (AllowedTools("required", (SEARCH,)), CODEX.tools),
    ],
    ids=["named", "required", "allowed"],
)
async def test_a_hosted_tool_is_refused_only_where_it_is_forced(name, choice, tools) -> None:
    (failed,) = await said(name, "", replace(CODEX, tool_choice=choice, tools=tools))
    assert (failed.fault.code, failed.fault.param) == ("unsupported", "tool_choice")
    assert "cannot be run here" in failed.fault.message


async def test_a_fault_in_a_tool_names_its_place_in_the_clients_list() -> None:
    wrong = FunctionTool("f", None, {"properties": {"a": {"not": {}}}}, strict=True)
    request = replace(CODEX, tools=(SEARCH, DOCS, wrong))
    for name in ("hermes", "harmony"):
        (failed,) = await said(name, "", request)
        assert str(failed.fault.param).startswith("tools[2].parameters")


@pytest.mark.parametrize("name", CALLS)
async def test_the_prompt_that_is_counted_is_the_one_that_is_sent(name) -> None:
    tokenizer = ByteTokenizer(by_name(name).stops(CODEX).controls)
    engine = TokenEngine(by_name(name), from_next_token(lambda ids, sampling: None), tokenizer)
    counted = await engine.count(CODEX)
    usage = fold([event async for event in engine.stream(CODEX)]).usage
    await engine.close()
    assert usage.input_tokens == counted
