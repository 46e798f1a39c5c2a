"""The browser in the server: what clients of each protocol see, and that a conversation goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.agent.hosted import HostedTools
from dragoman.core.item import FunctionCall, FunctionCallOutput
from tests.agent.stage import Model
from tests.oracle import problems, sdk_problems
from tests.server.state.storing import storing
from tests.server.stubs import Call as Ask
from tests.tools.browsing import Site, web
from tests.wire.messages.schema import check_answer
from tests.wire.responses.order_checker import check_order, parse


def wants(call: str, name: str, /, **arguments: Any) -> FunctionCall:
    return FunctionCall(call, name, json.dumps(arguments), "browser")


def told(model: Model, number: int) -> list[str]:
    """What the model had been given of its calls when it was asked for the nth time."""
    return [i.output for i in model.asked[number].items if isinstance(i, FunctionCallOutput)]


def checked(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response of a stream, whose events are found to be the protocol's, in order, and to say
    the same as it does."""
    check_order(events)
    actions: dict[str, list[Any]] = {}
    for event in events:
        assert not problems(event), event
        assert not sdk_problems(event), event
    for event in events:
        if event["type"] in ("response.output_item.added", "response.output_item.done"):
            actions.setdefault(event["item"]["id"], []).append(event["item"].get("action"))
    assert all(began == ended for began, ended in actions.values())
    kinds = [event["type"].partition("web_search_call.")[2] for event in events]
    assert [kind for kind in kinds if kind] == ["in_progress", "searching", "completed"] * 3
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    notes = [
        e["annotation"] for e in events if e["type"] == "response.output_text.annotation.added"
    ]
    places = [e.get("annotation_index") for e in events if "annotation_index" in e]
    assert places == list(range(len(notes)))
    done = next(e["text"] for e in events if e["type"] == "response.output_text.done")
    final: dict[str, Any] = events[-1]["response"]
    part = final["output"][-1]["content"][0]
    assert (text, notes) == (part["text"], part["annotations"])
    assert text == done
    return final


@pytest.mark.parametrize("stream", [False, True])
async def test_r4_55_r4_56_r4_58_r4_w22_clients_see_items_and_citations(stream) -> None:
    async with Site() as site:
        model = Model(
            wants("c1", "search", query="story"),
            [wants("c2", "open", id=0), wants("c3", "open", id="about:blank")],
            "It is long【1†L4-L6】, and 【0†L0】【7†L1】 are none.",
            [wants("c4", "find", cursor=1, pattern="paragraph 7"), wants("c5", "open", loc=400)],
            [wants("c6", "open", cursor=1, loc=400), wants("c7", "open", id=0, cursor=0)],
            "Yes【3†L400】.",
        )
        tools = [{"type": "web_search", "search_context_size": "low"}]
        asked: dict[str, Any] = {"model": "stub", "input": "Is it long?", "tools": tools}
        async with storing(HostedTools(model, [web(site)])) as server:
            first = await Ask(server.app, "/v1/responses", {**asked, "stream": stream})()
            assert first.status == 200, first.body
            response = checked(parse(first.body)[0]) if stream else first.json
            *calls, message = response["output"]
            assert message["type"] == "message"
            assert [(item["type"], item["status"], item["action"]) for item in calls] == [
                (
                    "web_search_call",
                    "completed",
                    {"type": "search", "query": "story", "queries": ["story"]},
                ),
                ("web_search_call", "completed", {"type": "open_page", "url": f"{site.base}/"}),
                ("web_search_call", "failed", {"type": "open_page", "url": "about:blank"}),
            ]
            link = f" ([{site.base[7:]}]({site.base}/)) "
            (part,) = message["content"]
            assert part["text"] == f"It is long{link}, and 【0†L0】【7†L1】 are none."
            assert part["annotations"] == [
                {
                    "type": "url_citation",
                    "start_index": len("It is long"),
                    "end_index": len("It is long" + link),
                    "url": f"{site.base}/",
                    "title": "A long story",
                }
            ]
            again = {**asked, "input": "Find it.", "previous_response_id": response["id"]}
            second = await Ask(server.app, "/v1/responses", again)()
            assert second.status == 200, second.body
            (part,) = second.json["output"][-1]["content"]
            assert part["text"] == f"Yes{link}."
            stored = await Ask(server.app, f"/v1/responses/{response['id']}", method="GET")()
            assert stored.json["output"] == response["output"]
        found = f"{site.base}//find?pattern=paragraph 7"
        # What was shown is what the model sees again, and its cursors are what they were.
        heads = [output.partition("\n")[0] for output in told(model, 5)]
        assert heads == [
            "[0] story",
            f"[1] A long story ({site.base}/)",
            "This is no address of a web page: the URL must begin with http:// or https://.",
            f"[2] Find results for text: `paragraph 7` in `A long story` ({found})",
            "There is no line 400. The lines are 0 to 34.",
            f"[3] A long story ({site.base}/)",
            f"[4] A long story ({site.base}/)",
        ]
        assert told(model, 5)[:3] == told(model, 2)


async def test_pages_that_do_not_exist_do_not_end_the_search() -> None:
    async with Site() as site:
        missing = (wants(f"c{n}", "open", id=f"{site.base}/{n}") for n in range(4))
        model = Model(*missing, wants("c5", "open", id=f"{site.base}/second"), "Second【0†L0】.")
        async with storing(HostedTools(model, [web(site)])) as server:
            asked = {"model": "stub", "input": "Hi", "tools": [{"type": "web_search"}]}
            answer = await Ask(server.app, "/v1/responses", asked)()
        assert [item.get("status") for item in answer.json["output"]] == [
            *["failed"] * 4,
            *["completed"] * 2,
        ]
        assert answer.json["output"][-1]["content"][0]["annotations"]


async def test_messages_clients_bring_back_what_cursors_need() -> None:
    async with Site() as site:
        model = Model(
            wants("c1", "open", id=f"{site.base}/"),
            "Long.",
            wants("c2", "open", cursor=0, loc=400),
            "End.",
        )
        tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]
        said: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
        async with storing(HostedTools(model, [web(site)])) as server:
            for _ in "ab":
                asked = {"model": "stub", "max_tokens": 99, "messages": said, "tools": tools}
                answer = await Ask(server.app, "/v1/messages", asked)()
                assert answer.status == 200, answer.body
                check_answer(answer.json)
                said += [
                    {"role": "assistant", "content": answer.json["content"]},
                    {"role": "user", "content": "And?"},
                ]
        assert told(model, 3)[-1].startswith(
            f"[1] A long story ({site.base}/)\n**viewing lines [400"
        )


async def test_r4_67_without_a_browser_marks_are_text() -> None:
    async with storing(HostedTools(Model("So【0†L0】"), [])) as server:
        answer = await Ask(server.app, "/v1/responses", {"model": "stub", "input": "Hi"})()
    (part,) = answer.json["output"][0]["content"]
    assert (part["text"], part["annotations"]) == ("So【0†L0】", [])


async def test_options_are_refused_with_their_place() -> None:
    async with Site() as site, storing(HostedTools(Model("x"), [web(site)])) as server:
        tool = {"type": "web_search", "filters": {"allowed_domains": ["http://x"]}}
        asked = {"model": "stub", "input": "Hi", "tools": [{"type": "function", "name": "f"}, tool]}
        answer = await Ask(server.app, "/v1/responses", asked)()
        assert answer.status == 400
        assert answer.json["error"]["param"] == "tools[1].filters.allowed_domains[0]"
