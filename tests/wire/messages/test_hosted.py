"""Blocks of calls that a server of ours ran: what is kept in them is found again."""

from base64 import b64encode
from typing import Any

import msgspec
import pytest

from dragoman.core.item import RECORD, Unknown
from dragoman.wire.messages.blocks import encode_item, is_search
from tests.wire.messages.test_request import decode

KEPT = {"call_id": "c", "name": "search", "arguments": '{"q":1}', "output": "[1]", "kept": [2]}
ACTION = {"type": "search", "query": "cats", "sources": [{"type": "url", "url": "https://e.com"}]}
CALLS = {
    "web": (
        Unknown("responses", "web_search_call", {"action": ACTION}, "ws_1", {RECORD: KEPT}),
        KEPT,
    ),
    "python": (
        Unknown(
            "responses",
            "code_interpreter_call",
            {"code": "2", "outputs": [{"logs": "2\n"}]},
            "ci_1",
        ),
        {"call_id": "ci_1", "name": "python", "arguments": '{"code":"2"}', "output": "2\n"},
    ),
    "mcp": (
        Unknown(
            "responses",
            "mcp_call",
            {"name": "buy", "server_label": "shop", "arguments": '{"n":1}', "output": "Sold."},
            "mcp_1",
        ),
        {
            "call_id": "mcp_1",
            "name": "buy",
            "arguments": '{"n":1}',
            "output": "Sold.",
            "namespace": "shop",
        },
    ),
}


def decoded(*blocks: Any) -> tuple[Any, ...]:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": list(blocks)}]
    return decode({"model": "m", "max_tokens": 9, "messages": said}).items[1:]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_found_again_in_the_blocks_of_it(name) -> None:
    item, record = CALLS[name]
    blocks = msgspec.json.decode(msgspec.json.encode(encode_item(item)))
    use, result = decoded(*blocks)
    assert (use.extra, result.extra) == ({RECORD: {}}, {RECORD: record})
    again = [*encode_item(use), *encode_item(result)]  # for a server that runs them itself
    assert again == blocks


SEARCHES = [
    (CALLS["web"][0], True),
    (CALLS["python"][0], False),
    (Unknown("responses", "web_search_call", {"action": ACTION, "status": "failed"}, "w"), False),
    (Unknown("responses", "web_search_call", {"action": {"type": "open_page"}}, "w"), False),
    (Unknown("responses", "web_search_call", {"action": ACTION}), False),
]


@pytest.mark.parametrize(("item", "counts"), SEARCHES)
def test_searches_that_were_made_are_counted(item, counts) -> None:
    assert is_search(item) is counts


ODD = [
    ("web_search_call", {"action": "search"}, {}),
    ("web_search_call", {"action": {"query": "q", "sources": 5}}, {"query": "q"}),
    (
        "web_search_call",  # a source of OpenAI's that is no page
        {"action": {"query": "q", "sources": [{"type": "api", "name": "oai-weather"}]}},
        {"query": "q"},
    ),
    ("code_interpreter_call", {"code": "1", "outputs": [1.5]}, {"code": "1"}),
    ("code_interpreter_call", {"code": "1", "outputs": True}, {"code": "1"}),
    ("mcp_call", {"name": "n", "server_label": "s", "arguments": [1]}, {"input": [1]}),
    ("mcp_call", {"name": "n", "server_label": "s", "arguments": {"a": 1}}, {"a": 1}),
    ("mcp_call", {"name": "n", "server_label": "s"}, {}),
]


@pytest.mark.parametrize(("kind", "value", "given"), ODD)
def test_odd_fields_of_a_servers_call_have_blocks(kind, value, given) -> None:
    blocks = encode_item(Unknown("responses", kind, value, "x_1"))
    use, result = msgspec.json.decode(msgspec.json.encode(blocks))
    assert (use["input"], result["tool_use_id"]) == (given, "srvtoolu_x_1")


BROKEN = {
    "no use": ({"type": "mcp_tool_result", "tool_use_id": "srvtoolu_mcp_1"}, "None"),
    "no base64": (
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_ws_1",
            "content": [{"encrypted_content": "?"}],
        },
        "web_search",
    ),
    "no object": (
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_ws_1",
            "content": [{"encrypted_content": b64encode(b"1").decode()}],
        },
        "web_search",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_blocks_that_a_client_broke_say_that_the_call_failed(name) -> None:
    block, called = BROKEN[name]
    use = {
        "type": "server_tool_use",
        "id": "srvtoolu_ws_1",
        "name": "web_search",
        "input": {"a": 1},
    }
    *_, result = decoded(use, block)
    record = result.extra[RECORD]
    assert (record["name"], record["output"]) == (called, "It failed.")


def test_blocks_of_other_servers_have_no_record() -> None:
    use = {"type": "server_tool_use", "id": "srvtoolu_01A", "name": "web_search", "input": {}}
    (item,) = decoded(use)
    assert item.extra is None
