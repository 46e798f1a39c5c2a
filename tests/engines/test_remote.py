"""What a remote engine sends, and what it makes of ordinary answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.event import Delta, Failed, Finished, Started
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.item import FunctionCall, FunctionCallOutput, Message, Reasoning, Thought
from dragoman.core.request import (
    FunctionTool,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
    Sampling,
    StreamOptions,
)
from dragoman.core.response import Usage
from dragoman.engines.remote import Remote
from dragoman.net.client import Client
from dragoman.net.connection import Timeouts
from tests.engines.asking import HELLO, HELLO_STREAM, ask, asking, events, remote
from tests.mock import Reply, chunk, completion, head, mock, plain, response, said, stream


async def body_of(request: Request, **options: Any) -> dict[str, Any]:
    """What a request looks like on the line."""
    reply = HELLO_STREAM if request.stream else HELLO
    async with remote(reply, **options) as (engine, up):
        await ask(engine, request)
        (asked,) = up.asked
        return asked.json


# ---- what is sent --------------------------------------------------------------------------


async def test_r1_1_connecting_takes_a_base_url_and_nothing_else() -> None:
    async with remote(HELLO) as (engine, up):
        assert (await ask(engine)).text == "Hello"
        (asked,) = up.asked
    assert "authorization" not in asked.headers
    assert asked.json == {"model": "m", "messages": [{"role": "user", "content": "Go."}]}
    defaults = Timeouts()
    assert None not in (defaults.connect, defaults.first_byte, defaults.idle)
    with pytest.raises(ValueError, match="http"):
        Remote("ftp://nowhere/v1")


@pytest.mark.parametrize("tail", ["/v1", "/v1/", "/v1///"])
async def test_r1_2_slashes_collapse_and_a_request_is_a_json_post(tail: str) -> None:
    async with remote(HELLO, key="local-token") as (first, up):
        base_url = f"http://127.0.0.1:{up.port}{tail}"
        engine = Remote(base_url, wire="chat", key="local-token")
        await ask(engine)
        await engine.close()
        assert first.base_url == engine.base_url
        (asked,) = up.asked
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["authorization"] == "Bearer local-token"
    assert asked.headers["content-length"] == str(len(asked.body))


async def test_a_base_url_may_have_no_path_at_all() -> None:
    async with remote(HELLO) as (_, up):
        engine = Remote(f"http://127.0.0.1:{up.port}", wire="chat")
        await ask(engine)
        await engine.close()
        assert up.asked[0].path == "/chat/completions"


async def test_r1_3_a_request_says_what_its_caller_set() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = FunctionTool("now", "Tells the time.", {"type": "object", "properties": {}})
    asked = await body_of(
        asking(
            stream=True,
            tools=(tool,),
            tool_choice=NamedTool("now"),
            sampling=Sampling(temperature=0.0),
        )
    )
    assert asked["stream"] is True
    assert asked["stream_options"] == {"include_usage": True}
    assert asked["temperature"] == 0.0
    assert asked["tools"][0]["function"]["parameters"] == tool.parameters
    assert asked["tool_choice"] == {"type": "function", "function": {"name": "now"}}
    asked = await body_of(asking(format=JSONSchema("answer", schema, strict=True)))
    assert asked["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


async def test_r1_w13_without_tools_neither_tools_nor_their_choice_is_sent() -> None:
    asked = await body_of(asking(tool_choice="auto"))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & asked.keys()


async def test_r1_w14_no_sampling_value_is_made_up() -> None:
    assert (await body_of(asking())).keys() == {"model", "messages"}
    assert (await body_of(asking(stream=True))).keys() == {
        "model",
        "messages",
        "stream",
        "stream_options",
    }


async def test_r1_w15_settings_go_under_the_name_the_server_knows() -> None:
    request = asking(
        max_output_tokens=9,
        parallel_tool_calls=False,
        tools=(FunctionTool("f"),),
        tool_choice="required",
        sampling=Sampling(
            stop=("END",), seed=7, top_p=0.5, top_k=3, min_p=0.1, repetition_penalty=1.1
        ),
    )
    asked = await body_of(request, profile="generic")
    expected = {"max_tokens": 9, "stop": ["END"], "seed": 7, "top_p": 0.5, "top_k": 3}
    assert expected.items() <= asked.items()
    assert asked["tool_choice"] == "required"
    assert asked["parallel_tool_calls"] is False
    assert asked["repetition_penalty"] == 1.1
    assert (await body_of(request, profile="llama.cpp"))["repeat_penalty"] == 1.1
    assert (await body_of(request, profile="vllm"))["max_completion_tokens"] == 9


async def test_d8_only_what_was_set_is_sent_and_never_a_null() -> None:
    request = asking(stream=True, sampling=Sampling(top_p=0.0), tools=(FunctionTool("f"),))
    async with remote(HELLO_STREAM) as (engine, up):
        await ask(engine, request)
        assert b"null" not in up.asked[0].body
        assert up.asked[0].json["top_p"] == 0.0


async def test_p29_usage_is_always_asked_for_in_a_stream() -> None:
    options = StreamOptions(include_usage=False)
    asked = await body_of(asking(stream=True, stream_options=options))
    assert asked["stream_options"]["include_usage"] is True
    assert "stream_options" not in await body_of(asking())


@pytest.mark.parametrize(
    ("profile", "field"),
    [("deepseek", "reasoning_content"), ("ollama", "reasoning"), ("vllm", "reasoning")],
)
async def test_p8_reasoning_goes_back_under_the_name_the_profile_says(
    profile: str, field: str
) -> None:
    history = (
        Message("user", "What is the time?"),
        Reasoning((Thought("I need the clock."),)),
        FunctionCall("call_a", "now", "{}"),
        FunctionCallOutput("call_a", "12:00"),
    )
    asked = await body_of(asking(items=history, tools=(FunctionTool("now"),)), profile=profile)
    assistant = asked["messages"][1]
    assert assistant[field] == "I need the clock."
    assert assistant["tool_calls"][0]["id"] == "call_a"
    assert asked["messages"][2]["tool_call_id"] == "call_a"


async def test_a_schema_is_put_in_words_for_a_server_that_takes_none() -> None:
    request = asking(format=JSONSchema("form", {"type": "object", "title": "Form 7"}))
    asked = await body_of(request, profile="deepseek")
    assert asked["response_format"] == {"type": "json_object"}
    assert "Form 7" in asked["messages"][0]["content"]


@pytest.mark.parametrize("hops", [0, 3])
async def test_each_of_us_counts_itself(hops: int) -> None:
    async with remote(HELLO) as (engine, up):
        await ask(engine, caller=Caller(hops=hops, trace="req_1"))
        headers = up.asked[0].headers
    assert headers["x-dragoman-hops"] == str(hops + 1)
    assert "x-request-id" not in headers


async def test_azure_gets_its_key_under_its_own_name() -> None:
    async with remote(HELLO, profile="azure", key="k") as (engine, up):
        await ask(engine)
        headers = up.asked[0].headers
    assert headers["api-key"] == "k"
    assert "authorization" not in headers


# ---- what is made of the answer ------------------------------------------------------------


async def test_r1_5_a_whole_answer_keeps_what_we_do_not_know() -> None:
    call = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answer = completion({"content": "Well", "tool_calls": [call]}, "tool_calls", vendor_field=[1])
    answer["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    async with remote(plain(200, answer)) as (engine, _):
        response = await ask(engine)
    assert response.text == "Well"
    assert [(c.call_id, c.name) for c in response.calls] == [("call_a", "f")]
    assert response.reasons == ("tool_calls",)
    assert response.usage == Usage(input_tokens=3, output_tokens=2, total_tokens=5)
    assert response.extra is not None
    assert response.extra["chat"]["vendor_field"] == [1]
    assert response.extra["upstream"] == {"id": "chatcmpl-1", "created": 1700000000}
    assert response.model == "mock"


async def test_r1_10_a_stream_opens_once_and_a_refusal_never_opens() -> None:
    async with remote(HELLO_STREAM) as (engine, _):
        heard = await events(engine, asking(stream=True))
    assert isinstance(heard[0], Started)
    assert sum(isinstance(event, Started) for event in heard) == 1
    async with remote(plain(500, b"")) as (engine, _):
        (only,) = await events(engine, asking(stream=True))
    assert isinstance(only, Failed)


async def test_an_end_that_the_server_dated_keeps_its_date() -> None:
    dated = plain(200, response(said("Hello"), completed_at=1700000009))
    async with remote(dated, wire="responses") as (engine, _):
        assert (await ask(engine)).completed_at == 1700000009


@pytest.mark.parametrize("place", ["before", "beside", "after", "late"])
async def test_r1_13_events_come_in_one_order_wherever_usage_came(place: str) -> None:
    counted = {"prompt_tokens": 3, "completion_tokens": 2}
    usage = {**chunk(), "choices": [], "usage": counted}
    text, finish = chunk({"content": "Hello"}), chunk(finish="stop")
    script: dict[str, list[Any]] = {
        "before": [usage, text, finish],
        "beside": [text, {**finish, "usage": counted}],
        "after": [text, finish, usage],
        "late": [text, finish, "[DONE]", usage],
    }
    async with remote(stream(*script[place], done=place != "late")) as (engine, _):
        heard = await events(engine, asking(stream=True))
    assert isinstance(heard[-1], Finished)
    assert heard[-1].reasons == ("stop",)
    assert heard[-1].usage == Usage(input_tokens=3, output_tokens=2)
    assert not any(isinstance(event, Finished) for event in heard[:-1])


async def test_an_answer_has_an_id_of_our_own_and_the_time_it_ended() -> None:
    async with remote(HELLO) as (engine, _):
        first, second = await ask(engine), await ask(engine)
    assert first.id != second.id
    assert "chatcmpl" not in first.id
    assert first.completed_at is not None
    assert first.completed_at >= first.created_at > 1_700_000_000


async def test_r1_w10_each_choice_keeps_its_own_items() -> None:
    def choice(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**chunk(), "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}

    pieces = stream(
        choice(1, {"content": "B"}),
        choice(0, {"content": "A"}),
        choice(1, {"content": "b"}, "length"),
        choice(0, {"content": "a"}),
        choice(0, {}, "stop"),
    )
    async with remote(pieces, profile="openai") as (engine, up):
        answer = await ask(engine, asking(stream=True, sampling=Sampling(n=2)))
        assert up.asked[0].json["n"] == 2
    texts = ["".join(i.text for i in answer.choice(n) if isinstance(i, Message)) for n in (0, 1)]
    assert texts == ["Aa", "Bb"]
    assert answer.reasons == ("stop", "length")


async def test_a_server_that_gives_one_answer_is_asked_several_times() -> None:
    async with remote(HELLO_STREAM, profile="ollama") as (engine, up):
        answer = await ask(engine, asking(stream=True, sampling=Sampling(n=3, seed=1)))
        assert [("n" in asked.json) for asked in up.asked] == [False] * 3
        assert sorted(asked.json["seed"] for asked in up.asked) == [1, 2, 3]
    assert answer.reasons == ("stop",) * 3
    assert [loss.field for loss in answer.losses] == ["n"]


async def test_a_prompt_that_was_cut_in_silence_is_told() -> None:
    usage = {"prompt_tokens": 4000, "completion_tokens": 96, "total_tokens": 4096}
    full = plain(200, completion({"content": "Hello"}, usage=usage))
    async with remote(full, profile="ollama") as (engine, _):
        (loss,) = (await ask(engine)).losses
        assert (loss.field, loss.action) == ("input", "dropped")
        assert "4096" in loss.why
    async with remote(full, profile="vllm") as (engine, _):
        assert not (await ask(engine)).losses
    less = plain(200, completion({"content": "Hello"}, usage={**usage, "prompt_tokens": 3999}))
    async with remote(less, profile="ollama") as (engine, _):
        assert not (await ask(engine)).losses


async def test_what_was_rewritten_for_the_server_is_undone_on_the_way_back() -> None:
    call = {"id": "call_a", "type": "function"}
    tools = (Namespace("clock", (FunctionTool("now"),)),)
    async with remote(HELLO) as (engine, up):
        await ask(engine, asking(tools=tools))
        name = up.asked[0].json["tools"][0]["function"]["name"]
    answer = completion(
        {"tool_calls": [{**call, "function": {"name": name, "arguments": "{}"}}]}, "tool_calls"
    )
    async with remote(plain(200, answer)) as (engine, _):
        (said,) = (await ask(engine, asking(tools=tools))).calls
    assert (said.namespace, said.name) == ("clock", "now")


# ---- connections ---------------------------------------------------------------------------


async def test_r1_w1_connections_are_kept_and_shared() -> None:
    async with remote(HELLO) as (engine, up):
        for _ in range(5):
            await ask(engine)
        assert up.connections == 1


@pytest.mark.parametrize("tail", ["data: [DONE]\n\n", ""])
async def test_a_stream_that_was_read_to_its_end_leaves_its_connection(tail: str) -> None:
    lines = f'data: {{"choices":[{{"delta":{{"content":"x"}},"finish_reason":"stop"}}]}}\n\n{tail}'
    whole = [head(200, f"content-length: {len(lines)}"), lines.encode()]
    async with remote(Reply(whole, keep=True)) as (engine, up):
        for _ in range(3):
            await ask(engine, asking(stream=True))
        assert up.connections == 1


async def test_many_are_answered_at_the_same_time() -> None:
    together = asyncio.Barrier(8)

    async def reply(asked: object) -> Reply:
        await together.wait()
        return HELLO_STREAM

    async with remote(reply) as (engine, up), asyncio.timeout(60):
        answers = await asyncio.gather(*(ask(engine, asking(stream=True)) for _ in range(8)))
        assert up.connections == 8
    assert {answer.text for answer in answers} == {"Hello"}


async def test_a_client_that_was_lent_is_not_closed() -> None:
    async with Client() as client:
        for _ in range(2):
            async with remote(HELLO, client=client) as (engine, _):
                await ask(engine)
                await engine.close()
                await ask(engine)


# ---- the listing ---------------------------------------------------------------------------


async def test_models_are_the_servers_own() -> None:
    listing = {
        "data": [
            {"id": "a", "owned_by": "me", "created": 5, "meta": {"n": 1}},
            {"id": "b", "owned_by": None, "created": "?"},
            {"name": "no id"},
        ]
    }
    async with remote(HELLO, probed=plain(200, listing)) as (engine, _):
        models = await engine.models()
    assert [(m.id, m.owned_by, m.created) for m in models] == [("a", "me", 5), ("b", "unknown", 0)]
    assert models[0].extra is not None
    assert models[0].extra["models"]["meta"] == {"n": 1}


@pytest.mark.parametrize(
    ("probed", "code"),
    [
        (plain(404, b""), "upstream_unreachable"),
        (Reply([]), "upstream_unreachable"),
        (plain(401, b"{}"), "upstream_authentication"),
    ],
)
async def test_a_server_without_a_listing_says_so(probed: Reply, code: str) -> None:
    async with remote(HELLO, probed=probed) as (engine, _):
        with pytest.raises(FaultError) as caught:
            await engine.models()
    assert caught.value.fault.code == code


async def test_an_address_without_the_version_is_told_where_the_listing_may_be() -> None:
    async with mock(HELLO) as up:
        engine = Remote(up.base_url.removesuffix("/v1"), wire="chat")
        with pytest.raises(FaultError, match=f"many servers have theirs at {up.base_url}"):
            await engine.models()
        await engine.close()


async def test_a_listing_is_asked_for_in_the_name_of_the_caller() -> None:
    caller = Caller(key=Secret("theirs"), hops=3)
    async with remote(HELLO, probed=plain(200, {"data": []}), key="ours", pass_client_key=True) as (
        engine,
        up,
    ):
        await engine.models(caller)
        await engine.models()
    assert [(p.headers["authorization"], p.headers["x-dragoman-hops"]) for p in up.probes] == [
        ("Bearer theirs", "4"),
        ("Bearer ours", "1"),
    ]


async def test_capabilities_are_the_profiles() -> None:
    async with remote(HELLO, profile="ollama") as (engine, _):
        can = await engine.capabilities("m")
    assert (can.custom_tools, can.namespaces, can.choices) == (False, False, False)
    assert can.images is None


async def test_deltas_come_as_they_are_said() -> None:
    async with remote(stream(chunk({"content": "a"}), hang=True, done=False)) as (engine, up):
        answer = engine.stream(asking(stream=True))
        async with asyncio.timeout(60):
            async for event in answer:
                if isinstance(event, Delta):
                    break
        await answer.aclose()
        async with asyncio.timeout(5):
            await up.asked[0].gone
    assert isinstance(event, Delta)
    assert event.data == "a"


@pytest.mark.parametrize(("profile", "streams"), [("llama.cpp", True), ("generic", False)])
async def test_a_server_that_stops_only_streams_is_asked_for_streams(
    profile: str, streams: bool
) -> None:
    async with remote(HELLO_STREAM if streams else HELLO, profile=profile) as (engine, up):
        assert (await ask(engine)).text == "Hello"
        assert up.asked[0].json.get("stream", False) is streams
