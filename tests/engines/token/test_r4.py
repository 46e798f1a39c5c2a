"""A model of the gpt-oss kind behind the Responses protocol, from the client's side."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dragoman
from dragoman.core.fold import fold
from dragoman.core.interfaces import Secret
from dragoman.core.item import Message
from dragoman.core.request import Request, Sampling
from dragoman.engines.token import TokenEngine, from_stream
from dragoman.engines.token.engine import raw_ids
from dragoman.formats.harmony import HARMONY
from dragoman.formats.prompt import ByteTokenizer
from dragoman.server.settings import Settings
from tests.engines.stage import heard
from tests.engines.token.models import Table

VOCABULARY = ByteTokenizer(
    [
        *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>"),
        *("<|end|>", "<|return|>", "<|call|>"),
    ]
)
THINKS = "<|channel|>analysis<|message|>Let me think.<|end|><|start|>assistant"
SAYS = "<|channel|>final<|message|>Good day.<|return|>"
PREAMBLE = "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
CALLS = (
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Rome"}<|call|>'
)
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
EVERYTHING = THINKS + PREAMBLE + CALLS
JSON = dict[str, Any]


def speaking(text: str, size: int = 3, vocabulary: ByteTokenizer = VOCABULARY) -> TokenEngine:
    """An engine whose model writes this, a few tokens at a time."""
    ids = raw_ids(text, vocabulary)

    async def stream(prompt: list[int], sampling: Sampling) -> AsyncIterator[list[int]]:
        for at in range(0, len(ids), size):
            await asyncio.sleep(0)
            yield ids[at : at + size]

    return TokenEngine(HARMONY, from_stream(stream), vocabulary, name="oss")


@asynccontextmanager
async def client(engine: TokenEngine) -> AsyncIterator[httpx2.AsyncClient]:
    transport = dragoman.transport(engine)
    async with httpx2.AsyncClient(transport=transport, base_url="http://dragoman/v1") as http:
        yield http


async def posted(text: str | TokenEngine, **fields: Any) -> httpx2.Response:
    engine = speaking(text) if isinstance(text, str) else text
    async with client(engine) as http:
        body = {"model": "oss", "input": "Hi", "tools": [TOOL], **fields}
        return await http.post("/responses", json=body, timeout=20)


async def streamed(text: str | TokenEngine, **fields: Any) -> list[JSON]:
    """The events of a stream, as they are on the wire."""
    reply = await posted(text, stream=True, **fields)
    assert reply.status_code == 200, reply.text
    data = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


async def whole(text: str | TokenEngine, **fields: Any) -> JSON:
    reply = await posted(text, **fields)
    assert reply.status_code == 200, reply.text
    found: JSON = reply.json()
    return found


def types(events: list[JSON]) -> list[str]:
    """The types in order, deltas of a kind taken together."""
    found: list[str] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if not (found and found[-1] == kind and kind.endswith("delta")):
            found.append(kind)
    return found


def joined(events: list[JSON], kind: str) -> str:
    return "".join(e["delta"] for e in events if e["type"] == f"response.{kind}.delta")


async def test_r4_27_response_begins_before_the_first_token() -> None:
    go = asyncio.Event()

    async def patient(prompt: list[int], sampling: Sampling) -> AsyncIterator[int]:
        await go.wait()
        for id in raw_ids(SAYS, VOCABULARY):
            yield id

    engine = TokenEngine(HARMONY, from_stream(patient), VOCABULARY)
    events = engine.stream(Request(model="oss", items=(Message("user", "Hi"),)))
    first = await asyncio.wait_for(anext(events), 10)  # the model has not said a word
    assert type(first).__name__ == "Started"
    go.set()
    assert [e async for e in events]
    begun = (await streamed(SAYS))[:2]
    assert types(begun) == ["created", "in_progress"]
    for number, event in enumerate(begun):
        response = event["response"]
        assert event["sequence_number"] == number
        assert (response["status"], response["output"]) == ("in_progress", [])
        assert response["usage"] is None
        assert response["id"].startswith("resp_")


PART = ["output_item.added", "content_part.added"]
DONE = ["content_part.done", "output_item.done"]
ITEMS = {  # by type: the events of an item
    "reasoning": [*PART, "reasoning_text.delta", "reasoning_text.done", *DONE],
    "message": [*PART, "output_text.delta", "output_text.done", *DONE],
    "function_call": [
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
    ],
}


async def test_r4_28_r4_29_r4_30_r4_31_r4_w3_channels_are_items_with_their_own_events() -> None:
    """Analysis is reasoning, final and the preamble of a call are messages, a recipient a call."""
    told = {}
    for text in (EVERYTHING, SAYS):
        events = await streamed(text)
        for index, item in enumerate(events[-1]["response"]["output"]):
            mine = [e for e in events if e.get("output_index") == index]
            assert types(mine) == ITEMS[item["type"]]
            assert {e.get("item_id") or e["item"]["id"] for e in mine} == {item["id"]}
            assert [e["item"]["status"] for e in (mine[0], mine[-1])] == [
                "in_progress",
                "completed",
            ]
            told[item["type"], item.get("phase")] = joined(mine, types(mine)[-3].split(".")[0])
            if item["type"] == "function_call":
                assert (mine[0]["item"]["arguments"], item["name"]) == ("", "get_weather")
                assert mine[-2]["arguments"] == item["arguments"] == '{"city": "Rome"}'
                assert len([e for e in mine if e["type"].endswith("delta")]) > 1
                assert (item["id"][:3], item["call_id"][:5]) == ("fc_", "call_")
            else:
                assert item["content"][0]["text"] == mine[-3]["text"]
    assert told == {
        ("reasoning", None): "Let me think.",
        ("message", "commentary"): "I will look.",
        ("message", "final_answer"): "Good day.",
        ("function_call", None): '{"city": "Rome"}',
    }


async def test_r4_32_the_recipient_decides_whatever_the_channel() -> None:
    on_analysis = CALLS.replace("commentary", "analysis")
    response = await whole(THINKS + on_analysis)
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]
    assert response["output"][0]["content"][0]["text"] == "Let me think."
    assert response["output"][1]["arguments"] == '{"city": "Rome"}'


async def test_r4_33_every_stream_has_one_terminal_event_and_it_is_the_right_one() -> None:
    async def broken(prompt: list[int], sampling: Sampling) -> AsyncIterator[int]:
        for id in raw_ids(SAYS, VOCABULARY)[:12]:
            yield id
        raise ValueError

    failing = TokenEngine(HARMONY, from_stream(broken), VOCABULARY)
    cases: list[tuple[str, str | TokenEngine, JSON]] = [
        ("completed", SAYS, {}),
        ("completed", EVERYTHING, {}),
        ("incomplete", THINKS + SAYS, {"max_output_tokens": 25}),
        ("failed", failing, {}),
    ]
    for status, text, fields in cases:
        events = await streamed(text, **fields)
        assert events[-1]["type"] == f"response.{status}"
        assert events[-1]["response"]["status"] == status
        ends = ("completed", "incomplete", "failed")
        assert sum(e["type"].removeprefix("response.") in ends for e in events) == 1


async def test_r4_34_r4_35_r4_36_r4_w1_r4_w2_r4_w7_ids_and_indexes_agree_everywhere() -> None:
    used: list[str] = []
    for text in (SAYS, EVERYTHING, THINKS + SAYS, THINKS + THINKS + SAYS):
        events = await streamed(text)
        response = events[-1]["response"]
        output = response["output"]
        added = [e for e in events if e["type"] == "response.output_item.added"]
        done = [e for e in events if e["type"] == "response.output_item.done"]
        assert [e["output_index"] for e in added] == list(range(len(output)))
        assert [e["output_index"] for e in done] == list(range(len(output)))
        assert [e["item"] for e in done] == output
        assert {e["content_index"] for e in events if "content_index" in e} <= {0}
        for event in events:
            if "output_index" in event:
                id = event.get("item_id") or event["item"]["id"]
                assert id == output[event["output_index"]]["id"]
        plain = await whole(text)
        assert _nameless(plain["output"]) == _nameless(output)
        used += [each["id"] for each in (response, plain, *output, *plain["output"])]
    assert len(set(used)) == len(used)


async def test_r4_37_return_and_call_end_the_answer() -> None:
    response = await whole(SAYS + "<|start|>assistant<|channel|>final<|message|>never")
    assert response["output"][-1]["content"][0]["text"] == "Good day."
    assert len(response["output"]) == 1
    response = await whole(CALLS + "<|start|>assistant" + CALLS)
    assert [item["type"] for item in response["output"]] == ["function_call"]
    first = CALLS.replace("<|call|>", "<|end|>") + "<|start|>assistant"
    response = await whole(first + CALLS)  # ended in another way: then there are two
    assert [item["type"] for item in response["output"]] == ["function_call"] * 2
    assert len({item["call_id"] for item in response["output"]}) == 2


async def test_f11_end_of_text_ends_a_harmony_answer() -> None:
    junk = "<|start|>assistant<|channel|>final<|message|>junk<|return|>"
    vocabulary = ByteTokenizer([*VOCABULARY.controls, "<|endoftext|>"])
    text = f"<|channel|>final<|message|>Hi<|endoftext|>{junk}"
    answer = await whole(speaking(text, vocabulary=vocabulary))
    assert [item["content"][0]["text"] for item in answer["output"]] == ["Hi"]


@pytest.mark.parametrize("end", ["<|return|>", "<|call|>"])
async def test_r4_39_immediate_end_is_an_empty_response(end) -> None:
    for stream in (True, False):
        response = (await streamed(end))[-1]["response"] if stream else await whole(end)
        assert response["status"] == "completed"
        assert "".join(p["text"] for i in response["output"] for p in i["content"]) == ""


async def test_r4_40_r4_w8_cut_anywhere_is_incomplete_and_keeps_the_text() -> None:
    text = THINKS + SAYS
    tokens = raw_ids(text, VOCABULARY)
    for limit in range(1, len(tokens)):
        events = await streamed(text, max_output_tokens=limit)
        response = events[-1]["response"]
        assert events[-1]["type"] == "response.incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"]["output_tokens"] == limit
        said = [p["text"] for item in response["output"] for p in item["content"]]
        streamed_text = joined(events, "reasoning_text") + joined(events, "output_text")
        assert "".join(said) == streamed_text
        assert ("Let me think." + "Good day.").startswith(streamed_text)
        assert "<|" not in json.dumps(response["output"])


async def test_r4_41_null_equals_absent() -> None:
    fields = dict.fromkeys(("max_output_tokens", "metadata", "tools", "instructions", "reasoning"))
    assert (await whole(SAYS, **fields))["status"] == "completed"
    assert (await whole(SAYS, **fields | {"instructions": "Be brief."}))["status"] == "completed"


async def test_r4_w10_invalid_field_is_a_400_that_names_it() -> None:
    unknown = [{"type": "function_call_output", "call_id": "nobody", "output": "x"}]
    wrong: list[tuple[JSON, str]] = [
        ({"input": unknown}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 7}, "top_p"),
    ]
    for fields, param in wrong:
        for stream in (True, False):
            reply = await posted(SAYS, stream=stream, **fields)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (400, param), error
            assert error["type"] == "invalid_request_error"


async def test_r4_42_disconnect_frees_the_slot() -> None:
    """How soon is counted in test_scheduler.py."""
    model = Table(size=VOCABULARY.size)
    engine = TokenEngine(HARMONY, model, VOCABULARY, ends=())
    model.table[:, 256:] = -50.0  # it never ends
    transport = dragoman.transport(engine)
    async with httpx2.AsyncClient(transport=transport, base_url="http://dragoman/v1") as http:
        body = {"model": "oss", "input": "Hi", "stream": True}
        async with http.stream("POST", "/responses", json=body) as reply:
            async for line in reply.aiter_lines():
                if "delta" in line:
                    break
            assert model.live
        async with asyncio.timeout(10):
            while model.live:
                await asyncio.sleep(0.005)
    await engine.close()


async def test_r4_43_usage_counts_prompt_output_reasoning_and_cache() -> None:
    text = THINKS + SAYS
    usage = (await whole(text))["usage"]
    tokens = raw_ids(text, VOCABULARY)
    assert usage["output_tokens"] == len(tokens)
    assert usage["total_tokens"] == usage["input_tokens"] + len(tokens)
    engine = speaking(text)
    asked = Request(model="oss", items=(Message("user", "Hi"),), tools=())
    plain = (await whole(engine, tools=[]))["usage"]
    assert plain["input_tokens"] == await engine.count(asked)
    assert usage["output_tokens_details"]["reasoning_tokens"] == len(
        raw_ids("<|channel|>analysis<|message|>Let me think.<|end|>", VOCABULARY)
    )
    model = Table(size=VOCABULARY.size, reuse=True)
    model.table[:, VOCABULARY.controls["<|return|>"]] = 50.0  # it ends at once
    reusing = TokenEngine(HARMONY, model, VOCABULARY, name="oss")
    first, second = [(await whole(reusing, tools=[]))["usage"] for _ in range(2)]
    assert first["input_tokens_details"]["cached_tokens"] == 0
    assert second["input_tokens_details"]["cached_tokens"] == second["input_tokens"] - 1
    await reusing.close()


async def test_r4_w23_tool_output_counts_as_input() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "s" * 500}
    user = {"role": "user", "content": "Hi"}
    short = await whole(SAYS, input=[user, call, {**result, "output": ""}])
    usage = (await whole(SAYS, input=[user, call, result]))["usage"]
    assert usage["output_tokens"] == short["usage"]["output_tokens"]
    assert usage["input_tokens"] == short["usage"]["input_tokens"] + 500


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(1, 7))
def test_r4_44_output_tokens_are_those_sampled_the_stop_token_with_them(limit, size) -> None:
    ids = raw_ids(EVERYTHING, VOCABULARY)
    request = Request(model="oss", items=(Message("user", "Hi"),), max_output_tokens=limit)
    usage = fold(asyncio.run(heard(speaking(EVERYTHING, size), request))).usage
    assert usage.output_tokens == min(limit, len(ids))
    assert usage.input_tokens is not None
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.reasoning_tokens is not None
    assert usage.reasoning_tokens <= usage.output_tokens


async def test_r4_45_r4_46_r4_47_r4_w18_response_repeats_the_request() -> None:
    asked: JSON = {
        "model": "any/name",
        "instructions": "Be brief.",
        "temperature": 0,
        "top_p": 0.5,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "metadata": {"__debug": "true", "mine": "1"},  # switches nothing on
        "reasoning": {"effort": "low", "summary": None},
    }
    for response in (await whole(SAYS, **asked), (await streamed(SAYS, **asked))[-1]["response"]):
        assert {name: response[name] for name in asked} == asked
        assert type(response["created_at"]) is int
        (tool,) = response["tools"]
        assert (tool["name"], tool["type"]) == ("get_weather", "function")


def _nameless(output: list[JSON]) -> list[JSON]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


async def test_r4_w14_cost_of_a_token_is_constant() -> None:
    """In tokens that are decoded, and in all calls of Python functions."""
    pieces: list[int] = []
    calls = 0

    def called(frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    class Counting(ByteTokenizer):
        def piece(self, id: int) -> bytes:
            pieces.append(id)
            return super().piece(id)

    def engine(size: int) -> TokenEngine:
        made = speaking("<|channel|>final<|message|>" + "word " * size + "<|return|>", 1)
        counting = Counting(list(VOCABULARY.controls))
        return TokenEngine(HARMONY, made._source, counting)

    counts = []
    for size in (100, 400):
        one = engine(size)
        await heard(one, Request(model="oss", items=(Message("user", "Hi"),)))
        pieces.clear()
        calls = 0
        sys.setprofile(called)
        try:
            await heard(one, Request(model="oss", items=(Message("user", "Hi"),)))
        finally:
            sys.setprofile(None)
        counts.append((len(pieces), calls))
    (short, few), (long, many) = counts
    assert long <= 4 * short + 100
    assert many <= 4.1 * few


async def test_r4_w15_nothing_of_a_conversation_is_printed_or_logged(capfd, caplog) -> None:
    caplog.set_level(0)
    await streamed(SAYS, input="a secret question")
    shown = caplog.text + "".join(capfd.readouterr())
    assert "secret" not in shown
    assert "Good" not in shown


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([*VOCABULARY.controls, "analysis", "final", " to=x", "é{", " "])))
def test_r4_w16_whatever_the_model_writes_the_answer_ends_and_is_the_same_in_any_grouping(
    pieces,
) -> None:
    text = "".join(pieces)
    request = Request(model="oss", items=(Message("user", "Hi"),))

    def said(size: int) -> Any:
        response = fold(asyncio.run(heard(speaking(text, size), request)))
        return response.status, response.text, response.reasoning, response.usage

    assert said(1) == said(3) == said(1_000)
    assert said(1)[0] == "completed"


async def test_r4_w19_keys_and_limits_hold_for_a_token_engine() -> None:
    settings = Settings(keys=(Secret("right"),), body_limit=1_000, memory=10_000)
    transport = dragoman.transport(speaking(SAYS), settings)
    async with httpx2.AsyncClient(transport=transport, base_url="http://dragoman/v1") as http:
        statuses = []
        for key, text in (("wrong", "Hi"), ("right", "Hi"), ("right", "Hi" * 1_000)):
            headers = {"authorization": f"Bearer {key}"}
            body = {"model": "oss", "input": text}
            statuses.append((await http.post("/responses", json=body, headers=headers)).status_code)
    assert statuses == [401, 200, 413]


async def test_r4_w19_models_and_health_are_there() -> None:
    async with client(speaking(SAYS)) as http:
        listing = (await http.get("/models")).json()
        assert listing["data"][0]["id"] == "oss"
        assert listing["data"][0]["format"] == "harmony"
        assert (await http.get("http://dragoman/healthz")).status_code == 200
