"""A small request that stands for much is refused for what it stands for, and is looked up once."""

from __future__ import annotations

import json

import pytest

from tests.hostile.stage import gateway, watched
from tests.mock import completion, plain
from tests.product import Product, configured
from tests.samples import samples

LIMIT = 2_000_000
"""The server's `body_limit` here."""
LARGE = "word " * 60_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("amplification")
    settings = f"[server]\nbody_limit = {LIMIT}\nanswer_limit = {LIMIT}\n"
    answer = plain(200, completion({"content": "ok"}))
    with gateway(lambda _: answer, *configured(folder, settings)) as (running, model):
        yield running, model


def respond(server: Product, **body: object):
    data = json.dumps({"model": "m", **body}).encode()
    return server.request("POST", "/v1/responses", data)


def item(text: str, **fields: object) -> dict[str, object]:
    part = {"type": "input_text", "text": text}
    return {"type": "message", "role": "user", "content": [part], **fields}


def references(ids: list[str]) -> list[dict[str, object]]:
    return [{"type": "item_reference", "id": id} for id in ids]


def refused(answer, field: str) -> None:
    assert answer.status == 413, answer.body[:500]
    error = answer.json["error"]
    assert error["param"] == field
    assert "(body_limit)" in error["message"]


def test_7_04_a_chain_counts_as_a_body_does(server) -> None:
    running, model = server
    previous: dict[str, object] = {}
    sizes = []
    for _ in range(10):
        answer = respond(running, input=LARGE, **previous)
        if answer.status != 200:
            break
        sizes.append(len(model.asked[-1].body))
        previous = {"previous_response_id": answer.json["id"]}
    refused(answer, "previous_response_id")
    assert len(sizes) >= 5
    assert max(sizes) < 2 * LIMIT
    with watched(running) as cost:  # the same input again and again is stored once, and sent often
        refused(respond(running, input="hi", **previous), "previous_response_id")
        counted = json.dumps({"model": "m", "input": "hi", **previous}).encode()
        refused(
            running.request("POST", "/v1/responses/input_tokens", counted), "previous_response_id"
        )
    assert cost.grown < 50


def test_7_04_a_conversation_counts_as_a_body_does(server) -> None:
    running, _ = server
    made = running.request("POST", "/v1/conversations", b"{}").json["id"]
    for _ in range(8):
        data = json.dumps({"items": [item(LARGE)]}).encode()
        assert running.request("POST", f"/v1/conversations/{made}/items", data).status == 200
    refused(respond(running, input="hi", conversation=made), "conversation")


def test_parts_of_a_chain_count_in_memory_as_those_of_a_body_do(tmp_path) -> None:
    """Nine requests that went on from a million parts held 1.4 GB."""
    settings = configured(tmp_path, "[server]\nmemory = 10_000_000\n")
    many = [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 2_000}] * 5
    previous: dict[str, object] = {}
    answer = plain(200, completion({"content": "ok"}))
    with gateway(lambda _: answer, *settings) as (server, _):
        statuses: list[int] = []
        while len(statuses) < 12:
            made = respond(server, input=many, **previous)
            statuses.append(made.status)
            if made.status != 200:
                break
            previous = {"previous_response_id": made.json["id"]}
        assert (made.status, made.json["error"]["code"]) == (413, "request_too_large")
        assert len(statuses) > 4
        assert respond(server, input=many).status == 200


@pytest.mark.parametrize("count", [7, 100, 5_000])
def test_7_06_7_09_references_to_one_large_item_count_as_often_as_they_stand(server, count) -> None:
    running, model = server
    stored = respond(running, input=[item(LARGE, id="msg_large")]).json["id"]
    model.asked.clear()
    with watched(running) as cost:
        answer = respond(running, input=references(["msg_large"] * count))
        place = LIMIT // len(LARGE)
        refused(answer, f"input[{place}].id")
        kept = respond(running, input=references(["msg_large"] * place))
        assert kept.status == 200
    assert cost.grown < 80
    (asked,) = model.asked
    assert asked.body.count(LARGE[:1000].encode()) >= place
    assert running.request("DELETE", f"/v1/responses/{stored}").status == 200


@pytest.mark.parametrize("named", ["derived", "given"])
def test_7_07_many_references_are_looked_up_together(server, named) -> None:
    running, model = server
    count = 2_000
    given = [item("hi", **({"id": f"msg_{n}x"} if named == "given" else {})) for n in range(count)]
    first = respond(running, input=given).json["id"].removeprefix("resp_")
    ids = [f"msg_{n}x" if named == "given" else f"msg_{first}_in{n}" for n in range(count)]
    with watched(running) as cost:
        assert respond(running, input=references(ids)).status == 200
    assert len(model.asked[-1].json["messages"]) == count
    assert cost.pause < 0.5
    missing = respond(running, input=references([*ids, "msg_nobody"]))
    assert (missing.status, missing.json["error"]["param"]) == (404, f"input[{count}].id")


def test_7_05_a_long_chain_works_and_stalls_no_other_request(server) -> None:
    running, model = server
    previous: dict[str, object] = {}
    turns = samples(60, 1_500)
    with watched(running) as cost:
        for _ in range(turns):
            answer = respond(running, input="hi", **previous)
            assert answer.status == 200
            previous = {"previous_response_id": answer.json["id"]}
    assert len(model.asked[-1].json["messages"]) == 2 * turns - 1
    assert cost.pause < 0.5
    items = running.request("GET", f"/v1/responses/{answer.json['id']}/input_items?limit=100")
    assert len(items.json["data"]) == min(100, 2 * turns - 1)


# ---- what small requests have sent to the model's server ----------------------------------------


def test_what_is_sent_for_a_small_request_counts_in_memory(tmp_path) -> None:
    """34 requests with 16 choices held 1.2 GB; calls of 30 MB of cached reasoning, 30 MB each."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    thought = plain(200, completion({"reasoning_content": "x" * 1_500_000, "tool_calls": [call]}))
    answers = [thought, plain(200, completion({"content": "ok"}))]
    settings = configured(tmp_path, "[server]\nmemory = 10_000_000\nbody_limit = 2_000_000\n")
    user = {"role": "user", "content": "Hi"}
    said = {"role": "assistant", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "1"}
    settings += ("--profile", "deepseek")  # which gives one choice at a time
    with gateway(lambda asked: answers[len(model.asked) > 1], *settings) as (server, model):

        def ask(*messages: object, n: int = 1) -> int:
            body = {"model": "m", "messages": messages, "tools": [tool], "n": n}
            return server.post("chat", body).status

        assert ask(user) == 200
        assert ask(user, said, result) == 200
        assert len(model.asked[-1].body) > 1_500_000
        assert ask(user, said, result, n=8) in (413, 503)
        assert ask({**user, "content": "x" * 900_000}, n=2) == 200
        assert ask({**user, "content": "x" * 1_500_000}, n=8) in (413, 503)
        assert ask(user, n=8) == 200
