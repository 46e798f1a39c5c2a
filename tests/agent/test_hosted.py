"""Hosted tools: what the model sees, what clients see, and that both fit together."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.agent import hosted
from dragoman.agent.hosted import HostedTools, for_model
from dragoman.agent.loop import INTERRUPTED
from dragoman.core.event import Event, Started
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import (
    FunctionCall,
    FunctionCallOutput,
    Message,
    Text,
    Unknown,
)
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AllowedTools,
    FunctionTool,
    NamedTool,
    Namespace,
    Request,
    UnknownTool,
)
from dragoman.engines.base import Wrapper, start, stream_of, wait_closed
from dragoman.engines.script import Script
from dragoman.tools.run import Shown, ToolError, recorded
from tests.agent.hosting import Tool, mcp, python, search, wants
from tests.agent.stage import Model, call
from tests.oracle import problems, sdk_problems
from tests.server.state.storing import Server, storing
from tests.server.stubs import Call as Ask
from tests.wire.messages.gathering import gathered
from tests.wire.messages.schema import check_answer
from tests.wire.responses.order_checker import check_order, parse

SEARCH = {"type": "web_search"}
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
MCP = {"type": "mcp", "server_label": "shop"}


def checked(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, found to be in order, of the protocol and readable by the SDK."""
    check_order(told)
    for event in told:
        assert not problems(event), event
        assert not sdk_problems(event), event
    return told


ASKED = {"input": "Hi", "model": "stub"}


async def test_call_is_shown_as_an_item_of_its_own_and_the_model_sees_a_function() -> None:
    model = Model(wants("search", "browser", query="cats"), "Cats【1†L0】.")
    tool = search(cites=True)
    async with storing(HostedTools(model, [tool])) as server:
        asked = await server.ask(
            stream=True, tools=[SEARCH], include=["web_search_call.action.sources"]
        )
        told = checked(parse(asked.body)[0])
    types = [
        event["type"] for event in told if "web_search" in event["type"] or "item" in event["type"]
    ]
    assert types == [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.output_item.done",
    ]
    found, said = told[-1]["response"]["output"]
    assert found["id"].startswith("ws_")
    assert found["status"] == "completed"
    assert found["action"]["sources"] == [{"type": "url", "url": "https://e.com"}]
    text = "Cats ([example.com](https://example.com/1)) ."
    assert said["content"][0]["text"] == text
    (note,) = said["content"][0]["annotations"]
    assert text[note["start_index"] : note["end_index"]] == text[4:-1]
    (space,) = model.asked[0].tools
    assert isinstance(space, Namespace)
    assert [each.name for each in space.tools] == ["search"]
    assert space.description == "What it is for."
    assert [type(item) for item in model.asked[1].items] == [
        *(Message, FunctionCall, FunctionCallOutput)
    ]
    assert model.asked[1].items[2].output == "Cats: see [1]."
    assert tool.asked == [SEARCH]
    assert tool.closed == 101


@pytest.mark.parametrize("stream", [True, False])
async def test_next_request_shows_the_model_what_it_saw(stream) -> None:
    model = Model(
        [wants("search", "browser", id="a"), wants("python", id="b", code="2+2")],
        wants("python", id="c", code="3"),
        "Done.",
        "Again.",
    )
    tools = [SEARCH, PYTHON]
    engine = HostedTools(model, [search(), python()])
    async with storing(engine) as server:
        first = await server.ask(stream=stream, tools=tools)
        body = parse(first.body)[0][-1]["response"] if stream else first.json
        second = await server.ask(input="And?", tools=tools, previous_response_id=body["id"])
    assert second.status == 200
    kinds = [item["type"] for item in body["output"]]
    assert kinds == [
        "web_search_call", "code_interpreter_call", "code_interpreter_call", "message"
    ]  # fmt: skip
    assert body["output"][1]["outputs"] is None  # which was not included
    assert "sources" not in body["output"][0]["action"]
    before, after = model.asked[2].items, model.asked[3].items
    assert after[: len(before)] == before
    assert [type(item) for item in after[len(before) :]] == [Message, Message]


async def test_code_is_streamed_and_its_output_included() -> None:
    model = Model(wants("python", code="2+2"), "4")
    async with storing(HostedTools(model, [python()])) as server:
        asked = await server.ask(
            stream=True, tools=[PYTHON], include=["code_interpreter_call.outputs"]
        )
        told = checked(parse(asked.body)[0])
    names = [e["type"].removeprefix("response.code_interpreter_call") for e in told]
    assert [name for name in names if name[0] in "._"] == [
        *(".in_progress", "_code.delta", "_code.done", ".interpreting", ".completed")
    ]
    done = next(e for e in told if e["type"].endswith("code.done"))
    item = told[-1]["response"]["output"][0]
    assert (done["code"], done["item_id"]) == ("2+2", item["id"])
    assert item["outputs"] == [{"type": "logs", "logs": "4"}]


@pytest.mark.parametrize("stored", [True, False])
async def test_client_that_keeps_its_own_conversation_brings_calls_back(stored) -> None:
    """What was stored is known, though the client was not shown it."""
    model = Model(wants("python", code="2+2"), "4", "Bye.")
    async with storing(HostedTools(model, [python()])) as server:
        fields: dict[str, Any] = {"tools": [PYTHON]}
        if not stored:
            fields |= {"include": ["code_interpreter_call.outputs"], "store": False}
        first = await server.ask(**fields)
        items = [{"role": "user", "content": "Hi"}, *first.json["output"]]
        again = await server.ask(**fields, input=[*items, {"role": "user", "content": "Bye"}])
    assert again.status == 200
    _, made, output, *_ = model.asked[2].items
    assert isinstance(made, FunctionCall)
    assert json.loads(made.arguments) == {"code": "2+2"}
    assert isinstance(output, FunctionCallOutput)
    assert output.output == "4"


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("approve", [True, False, None])
async def test_call_that_needs_consent_waits_for_it(stored, approve) -> None:
    bought: list[str] = []

    async def buy(text: str) -> Shown:
        bought.append(text)
        return Shown("bought", {"output": "bought"})

    model = Model(wants("buy", "shop", what="tea"), "Bought.")
    async with storing(HostedTools(model, [mcp(buy)])) as server:
        first = await server.ask(stream=True, tools=[MCP], store=stored)
        told = checked(parse(first.body)[0])
        body = told[-1]["response"]
        (asked,) = body["output"]
        assert (body["status"], asked["type"]) == ("completed", "mcp_approval_request")
        assert json.loads(asked["arguments"]) == {"what": "tea"}
        assert (asked["server_label"], asked["name"], bought) == ("shop", "buy", [])
        answer: list[Any] = [{"role": "user", "content": "Well?"}]
        if approve is not None:
            said = {"approval_request_id": asked["id"], "approve": approve}
            answer = [{"type": "mcp_approval_response", **said, "reason": "Too dear."}]
        fields: dict[str, Any] = {"input": answer, "previous_response_id": body["id"]}
        if not stored:
            history = [{"role": "user", "content": "Hi"}, *body["output"], *answer]
            fields = {"input": history, "store": False}
        second = await server.ask(stream=True, tools=[MCP], **fields)
        told = checked(parse(second.body)[0])
        output = told[-1]["response"]["output"]
        if approve:
            assert [item["type"] for item in output] == ["mcp_call", "message"]
            assert output[0]["approval_request_id"] == asked["id"]
            assert output[0]["output"] == "bought"
            kept = (*answer, *output)
            rest = {"input": [*history, *output], "store": False} if not stored else {}
            fields = rest or {"previous_response_id": told[-1]["response"]["id"]}
            assert (await server.ask(tools=[MCP], **fields)).status == 200
            assert kept
    assert len(bought) == (approve is True)
    given = [item for item in model.asked[1].items if isinstance(item, FunctionCallOutput)]
    expected = "bought" if approve else "The user did not allow this call."
    assert [item.output for item in given] == [
        expected + (" Too dear." if approve is False else "")
    ]
    if approve:  # nothing is told, or done, twice
        last = model.asked[2].items
        assert len([item for item in last if isinstance(item, FunctionCall)]) == 1
        assert len([item for item in last if isinstance(item, FunctionCallOutput)]) == 1


@pytest.mark.parametrize("field", ["previous_response_id", None])
async def test_consent_that_nothing_asked_for_is_refused(field) -> None:
    model = Model(wants("buy", "shop", what="tea"), "Well.")
    async with storing(HostedTools(model, [mcp()])) as server:
        first = await server.ask(stream=True, tools=[MCP])
        body = checked(parse(first.body)[0])[-1]["response"]
        answer = {"type": "mcp_approval_response", "approval_request_id": "no", "approve": True}
        history = [] if field else body["output"]
        call = await server.ask(input=[*history, answer], **({field: body["id"]} if field else {}))
    error = call.json["error"]
    assert (call.status, error["param"]) == (400, f"input[{len(history)}].approval_request_id")
    assert len(model.asked) == 1


async def test_consent_without_the_tool_is_answered_for_the_model() -> None:
    model = Model(wants("buy", "shop", what="tea"), "Well.")
    async with storing(HostedTools(model, [mcp()])) as server:
        first = await server.ask(stream=True, tools=[MCP])
        body = checked(parse(first.body)[0])[-1]["response"]
        allowed = {"approval_request_id": body["output"][0]["id"], "approve": True}
        given = [{"type": "mcp_approval_response", **allowed}]
        await server.ask(input=given, previous_response_id=body["id"])
    assert model.asked[1].items[-1].output == "This tool is not there any more."


async def test_a_failed_call_is_shown_as_failed_and_the_model_gets_the_error() -> None:
    async def fails(text: str) -> Shown:
        raise ToolError("The shop is closed.")

    model = Model(wants("buy", "shop"), "Closed.")
    async with storing(HostedTools(model, [mcp(fails, "never")])) as server:
        told = checked(parse((await server.ask(stream=True, tools=[MCP])).body)[0])
    assert "response.mcp_call.failed" in [event["type"] for event in told]
    assert told[-1]["response"]["output"][0]["status"] == "failed"
    assert model.asked[1].items[-1].output == "The shop is closed."


async def test_items_at_the_beginning_come_first() -> None:
    listed = Unknown("responses", "mcp_list_tools", {"server_label": "shop", "tools": []})
    model = Model(wants("buy", "shop"), "Bought.")
    engine = HostedTools(model, [mcp(None, "never", items=[listed])])
    async with storing(engine) as server:
        told = checked(parse((await server.ask(stream=True, tools=[MCP])).body)[0])
        output = told[-1]["response"]["output"]
        assert [item["type"] for item in output] == ["mcp_list_tools", "mcp_call", "message"]
        assert [item["id"].partition("_")[0] for item in output] == ["mcpl", "mcp", "msg"]
        after = await server.ask(previous_response_id=told[-1]["response"]["id"])
    assert after.status == 200
    assert not [item for item in model.asked[2].items if isinstance(item, Unknown)]


async def test_at_most_so_many_calls_are_run() -> None:
    model = Model([wants("python", id=str(n), code=str(n)) for n in range(3)], "Done.")
    async with storing(HostedTools(model, [python()])) as server:
        told = checked(
            parse((await server.ask(stream=True, tools=[PYTHON], max_tool_calls=2)).body)[0]
        )
    output = told[-1]["response"]["output"]
    assert [item["status"] for item in output] == ["completed", "completed", "failed", "completed"]
    assert model.asked[1].tool_choice == "none"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (SEARCH, NamedTool("search", namespace="browser")),
        (
            {"type": "mcp", "server_label": "shop", "name": "buy"},
            NamedTool("buy", namespace="shop"),
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]},
            AllowedTools("auto", (NamedTool("search", namespace="browser"),)),
        ),
    ],
)
async def test_choice_of_a_hosted_tool_is_one_of_its_functions(choice, expected) -> None:
    model = Model("Hello.")
    async with storing(HostedTools(model, [search(), mcp()])) as server:
        assert (await server.ask(tools=[SEARCH, MCP], tool_choice=choice)).status == 200
    assert model.asked[0].tool_choice == expected


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "mcp", "server_label": "shop"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
    ],
)
async def test_call_that_is_demanded_of_a_server_without_tools_is_refused(choice) -> None:
    """It was an answer in plain text, and nothing said that no tool was offered."""
    problem = "A connection to 127.0.0.1:1 failed."
    value = {"server_label": "shop", "tools": [], "error": problem}
    silent, gone = mcp(), mcp(items=(Unknown("responses", "mcp_list_tools", value),))
    silent.tools = gone.tools = ()
    model = Model("Hello.")
    asked = {"tool_choice": choice, "tools": [MCP]}
    async with storing(HostedTools(model, [silent])) as server:
        for stream in (False, True):
            refused = await server.ask(**asked, stream=stream)
            assert (refused.status, refused.json["error"]["param"]) == (400, "tool_choice")
        refused = await server.ask(**asked | {"tools": [MCP | {"allowed_tools": ["nope"]}]})
        assert refused.json["error"]["param"] == "tools[0].allowed_tools"
        assert not model.asked
        for other in ({"tool_choice": "auto"}, {"tool_choice": "none"}):
            assert (await server.ask(**asked | other)).status == 200
    async with storing(HostedTools(model, [gone, search()])) as server:
        refused = await server.ask(**asked)
        assert (refused.status, problem in refused.json["error"]["message"]) == (400, True)
        if choice == "required":  # there is something to call
            assert (await server.ask(**asked | {"tools": [MCP, SEARCH]})).status == 200


async def test_losses_are_those_of_what_the_client_sent() -> None:
    """Its tools have the numbers of its request, and the calls of earlier rounds are not its."""
    rounds = iter(
        (("tools[0].strict", "tools[1]", "input[0].id"), ("input[*].id", "input[1].status", "text"))
    )

    class Losing(Wrapper):
        async def stream(
            self, request: Request, caller: Caller = ANYONE
        ) -> AsyncGenerator[Event, None]:
            async for event in self.engine.stream(request, caller):
                if isinstance(event, Started):
                    losses = tuple(Loss(name, "dropped", "no") for name in next(rounds))
                    event = replace(event, losses=losses)
                yield event

    theirs = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    model = Losing(Model(wants("search", "browser"), "Done."))
    async with storing(HostedTools(model, [search()])) as server:
        answer = await server.ask(tools=[SEARCH, theirs])
    assert answer.headers["x-dragoman-loss"] == "dropped: tools[1].strict, input[0].id, text"


async def test_function_of_the_client_has_the_name_of_a_namespace() -> None:
    theirs = {"type": "function", "name": "browser", "parameters": {"type": "object"}}
    model = Model("Hello.")
    async with storing(HostedTools(model, [search()])) as server:
        assert (await server.ask(tools=[theirs, SEARCH])).status == 200
    assert [type(tool) for tool in model.asked[0].tools] == [FunctionTool, Namespace]


async def test_model_gets_a_result_for_a_cancelled_call() -> None:
    async def hangs(text: str) -> Shown:
        begun.set()
        return await asyncio.Future()

    begun = asyncio.Event()
    model = Model(wants("python", code="1"), "I do not know.")
    async with storing(HostedTools(model, [python(hangs)])) as server:
        asked = (await server.ask(tools=[PYTHON], background=True)).json
        await begun.wait()
        path = f"/v1/responses/{asked['id']}/cancel"
        cancelled = (await Ask(server.app, path, {})()).json
        assert [item["status"] for item in cancelled["output"]] == ["in_progress"]
        await server.ask(previous_response_id=asked["id"])
        await server.ask(input=[*cancelled["output"], {"role": "user", "content": "And now?"}])
    for request in model.asked[1:]:
        made = next(item for item in request.items if isinstance(item, FunctionCall))
        given = next(item for item in request.items if isinstance(item, FunctionCallOutput))
        assert (json.loads(made.arguments), given.output) == ({"code": "1"}, INTERRUPTED)


async def test_client_keeps_its_own_functions() -> None:
    theirs = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    model = Model([call("mine"), wants("python", id="b", code="1")], "Done.")
    async with storing(HostedTools(model, [python()])) as server:
        told = checked(parse((await server.ask(stream=True, tools=[theirs, PYTHON])).body)[0])
        kinds = [item["type"] for item in told[-1]["response"]["output"]]
        assert kinds == ["function_call", "code_interpreter_call"]
        named = {**theirs, "name": "python"}
        refused = await server.ask(tools=[named, PYTHON])
        assert (refused.status, refused.json["error"]["param"]) == (400, "tools[0].name")


async def test_error_of_an_unknown_tool_is_sent_to_the_model_alone() -> None:
    """A client would run it, or give up: it has no such function either."""
    model = Model([wants("python", code="1"), wants("set_alarm", id="b")], "Done.")
    async with storing(HostedTools(model, [python()])) as server:
        told = checked(parse((await server.ask(stream=True, tools=[PYTHON])).body)[0])
    kinds = [item["type"] for item in told[-1]["response"]["output"]]
    assert kinds == ["code_interpreter_call", "message"]
    assert model.asked[1].items[-1].output == "There is no tool 'set_alarm'. The tools are: python."


async def test_one_tool_named_twice_is_refused() -> None:
    async with storing(HostedTools(Model("Hello."), [python(), mcp()])) as server:
        for tools in ([PYTHON, PYTHON], [MCP, MCP]):
            refused = await server.ask(tools=tools)
            assert (refused.status, refused.json["error"]["param"]) == (400, "tools[1]")


async def test_what_is_not_on_is_left_to_the_engine() -> None:
    model = Model("Hello.")
    engine = HostedTools(model, [search()])
    async with storing(engine) as server:
        answer = await server.ask(tools=[PYTHON])
        assert answer.status == 200
        refused = await server.ask(tools=[SEARCH, PYTHON], n=2)
        assert refused.status == 200
    assert [tool.kind for tool in model.asked[0].tools] == ["code_interpreter"]


async def test_tool_that_cannot_be_opened_is_the_clients_fault_and_the_others_are_closed() -> None:
    one, other = search(), Tool("mcp", refuses=True)
    async with storing(HostedTools(Model("Hello."), [one, other])) as server:
        refused = await server.ask(tools=[SEARCH, MCP])
        assert (refused.status, refused.json["error"]["param"]) == (400, "tools[1].server_label")
        assert one.closed == 1
    asked = {"model": "stub", "messages": [{"role": "user", "content": "Hi"}]}
    async with storing(HostedTools(Model("Hello."), [search(refuses=True)])) as server:
        chat = {**asked, "web_search_options": {}}
        refused = await Ask(server.app, "/v1/chat/completions", chat)()
        assert refused.json["error"]["param"] == "web_search_options.server_label"


@pytest.mark.parametrize("moment", ["at once", "opening", "opened", "answering"])
async def test_what_was_opened_is_closed_when_the_answer_is_cancelled(moment) -> None:
    one, other, asked = search(), Tool("mcp", waits=moment == "opening"), asyncio.Event()

    async def play() -> None:
        asked.set()
        await asyncio.Future()

    class Unheard:
        def receive(self, events: list[Event]) -> None:
            raise AssertionError(events)

    engine = HostedTools(Script(lambda _: [play]), [one, other])
    tools = tuple(UnknownTool("responses", kind, {}) for kind in ("web_search", "mcp"))
    handle = start(engine, Request(model="stub", items=(), tools=tools), ANYONE, Unheard())
    if moment != "at once":
        await other.opening.wait()
    if moment == "answering":
        await asked.wait()
    handle.cancel()
    await wait_closed(handle)
    assert (one.closed, other.closed) == (len(one.asked), len(other.asked))
    assert len(one.asked) == (moment != "at once")


@pytest.mark.parametrize("stream", [True, False])
async def test_citations_of_several_tools_in_one_text(stream) -> None:
    model = Model("Cats【1†L0】 purr【2†file】, says【3†L0】.")
    async with storing(HostedTools(model, [search(cites=True), python(cites=True)])) as server:
        answer = await server.ask(tools=[SEARCH, PYTHON], stream=stream)
    told = checked(parse(answer.body)[0])[-1]["response"] if stream else answer.json
    (part,) = told["output"][-1]["content"]
    text, (one, two, three) = part["text"], part["annotations"]
    link = " ([example.com](https://example.com/{})) "
    assert text == f"Cats{link.format(1)} purr, says{link.format(3)}."
    assert text[one["start_index"] : one["end_index"]] == link.format(1)
    assert text[: two["index"]].endswith(" purr")
    assert text[three["start_index"] : three["end_index"]] == link.format(3)


async def test_chat_client_searches_by_options() -> None:
    model = Model(wants("search", "browser", query="cats"), "Cats【1†L0】.")
    async with storing(HostedTools(model, [search(cites=True)])) as server:
        answer = await server.sdk.chat.completions.create(
            model="stub",
            messages=[{"role": "user", "content": "Cats?"}],
            web_search_options={"search_context_size": "low"},
        )
    (choice,) = answer.choices
    assert choice.message.content == "Cats ([example.com](https://example.com/1)) ."
    assert choice.message.annotations is not None
    assert choice.message.annotations[0].url_citation.url == "https://example.com/1"


async def test_messages_client_gets_blocks_and_brings_them_back() -> None:
    named = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ]

    async def messages(server: Server, *said: Any, stream: bool = False) -> Any:
        fields = {"model": "stub", "max_tokens": 99, "messages": said, "tools": named}
        return await Ask(server.app, "/v1/messages", {**fields, "stream": stream})()

    calls = [wants("search", "browser", query="cats"), wants("python", id="b", code="2+2")]
    for stream in (False, True):
        model, tool = Model(calls, "Cats.", "Bye."), search()
        async with storing(HostedTools(model, [tool, python()])) as server:
            hi = {"role": "user", "content": "Hi"}
            first = await messages(server, hi, stream=stream)
            assert first.status == 200
            body = gathered(first.body) if stream else first.json
            check_answer(body)
            assert [block["type"] for block in body["content"]] == [
                *("server_tool_use", "web_search_tool_result"),
                *("server_tool_use", "code_execution_tool_result", "text"),
            ]
            assert body["content"][0]["input"] == {"query": "cats"}
            assert body["content"][3]["content"]["stdout"] == "4"
            assert body["stop_reason"] == "end_turn"
            searches = {"web_search_requests": 1, "web_fetch_requests": 0}
            assert body["usage"]["server_tool_use"] == searches
            again = {"role": "assistant", "content": body["content"]}
            bye = {"role": "user", "content": "Bye"}
            assert (await messages(server, hi, again, bye)).status == 200
        assert tool.asked[0]["type"] == "web_search"
        given = [item for item in model.asked[2].items if isinstance(item, FunctionCallOutput)]
        assert [item.output for item in given] == ["Cats: see [1].", "4"]
        called = [item for item in model.asked[2].items if isinstance(item, FunctionCall)]
        assert [(item.name, item.namespace) for item in called] == [
            ("search", "browser"),
            ("python", None),
        ]


@pytest.mark.parametrize("odd", [True, 5, "x", {"a": 1}, [1], None])
def test_calls_of_others_with_odd_results_are_shown_to_the_model(odd) -> None:
    items = (
        Unknown("responses", "file_search_call", {"queries": ["q"], "results": odd}, "fs_1"),
        Unknown("responses", "code_interpreter_call", {"code": "1", "outputs": odd}, "ci_1"),
    )
    seen, _ = for_model(items)
    assert [item.output for item in seen or () if isinstance(item, FunctionCallOutput)] == ["", ""]


def test_halves_of_surrogate_pairs_in_calls_of_others_are_shown_replaced() -> None:
    items = (
        Unknown("responses", "file_search_call", {"queries": ["\ud83d"]}, "fs_1"),
        Unknown("responses", "code_interpreter_call", {"code": "\ud83d"}, "ci_1"),
    )
    seen, _ = for_model(items)
    calls = [item.arguments for item in seen or () if isinstance(item, FunctionCall)]
    assert calls == ['{"queries":["\ufffd"]}', '{"code":"\ufffd"}']


def test_record_of_a_call_is_kept_in_its_item() -> None:
    assert recorded(Unknown("responses", "web_search_call", {})) is None


def test_two_tools_of_one_type_are_refused() -> None:
    with pytest.raises(ValueError, match="web_search"):
        HostedTools(Model("x"), [search(), search()])


async def test_without_hosted_tools_it_is_the_engine_inside() -> None:
    assert HostedTools.acts_on is not None
    assert issubclass(HostedTools, Wrapper)
    assert Text("x").text == "x"


@pytest.mark.parametrize("tools", [(), (UnknownTool("responses", "code_interpreter", {}),)])
async def test_items_of_a_large_request_are_read_in_a_thread(monkeypatch, tools) -> None:
    """10,000 of them took 0.2 s, and one with numbers in the place of its texts nearly as much."""
    threads: list[int] = []

    def noted(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return for_model(*given)

    monkeypatch.setattr(hosted, "for_model", noted)
    odd = {"code": "1", "container_id": [1.5], "outputs": [{"logs": [1.5, 2.5]}]}
    item = Unknown("responses", "code_interpreter_call", odd, "ci_1")
    model = Model("Hello.")
    engine = HostedTools(model, [python()])
    request = Request(model="m", items=(item, Message("user", "Hi")), tools=tools)
    for size, here in ((0, True), (100_000, False)):
        async for _ in stream_of(partial(start, engine), request, Caller(size=size)):
            pass
        assert {each == threading.get_ident() for each in threads} == {here}
        threads.clear()
        assert model.asked[-1].items[1] == FunctionCallOutput("ci_1", "[1.5,2.5]")
    await engine.close()
