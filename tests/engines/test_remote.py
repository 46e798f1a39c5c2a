"""What a remote engine sends, and what it makes of ordinary answers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.item import (
    Audio,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Message,
    Reasoning,
    Text,
    Thought,
)
from dragoman.core.request import (
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
    Sampling,
    StreamOptions,
    completion_request,
)
from dragoman.core.response import Usage
from dragoman.engines.remote import Remote
from dragoman.engines.upstream import without
from dragoman.net.client import Client
from dragoman.net.connection import Timeouts
from tests.engines.asking import HELLO, HELLO_STREAM, ask, asking, remote
from tests.engines.stage import answered
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


@pytest.mark.parametrize(("option", "near"), [("wire", "chatt"), ("profile", "vlm")])
def test_unknown_wire_and_profile_are_refused_where_they_are_given(option, near) -> None:
    meant = {"wire": "chat", "profile": "vllm"}[option]
    with pytest.raises(ValueError, match=rf"^{option} is '{near}'.*; did you mean {meant}\?"):
        Remote("http://127.0.0.1:9/v1", **{option: near})


@pytest.mark.parametrize("tail", ["/v1", "/v1/", "/v1///"])
async def test_r1_2_request_is_a_json_post_whatever_the_slashes_of_the_url(tail) -> None:
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


async def test_base_url_without_a_path() -> None:
    async with remote(HELLO) as (_, up):
        engine = Remote(f"http://127.0.0.1:{up.port}", wire="chat")
        await ask(engine)
        await engine.close()
        assert up.asked[0].path == "/chat/completions"


async def test_r1_3_request_has_the_fields_its_caller_set() -> None:
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


async def test_r1_w15_settings_have_the_profiles_field_names() -> None:
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


@pytest.mark.parametrize("profile", ["llama.cpp", "lmstudio"])
async def test_a_named_tool_is_demanded_by_a_word_where_an_object_is_refused(profile) -> None:
    tools, choice = (FunctionTool("f"), FunctionTool("g")), NamedTool("g")
    asked = await body_of(asking(tools=tools, tool_choice=choice), profile=profile)
    assert asked["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["g"]


async def test_d8_only_what_was_set_is_sent_and_never_a_null() -> None:
    request = asking(stream=True, sampling=Sampling(top_p=0.0), tools=(FunctionTool("f"),))
    async with remote(HELLO_STREAM) as (engine, up):
        await ask(engine, request)
        assert b"null" not in up.asked[0].body
        assert up.asked[0].json["top_p"] == 0.0


async def test_p29_usage_is_always_requested_of_a_stream() -> None:
    options = StreamOptions(include_usage=False)
    asked = await body_of(asking(stream=True, stream_options=options))
    assert asked["stream_options"]["include_usage"] is True
    assert "stream_options" not in await body_of(asking())


@pytest.mark.parametrize(
    ("profile", "field"),
    [("deepseek", "reasoning_content"), ("ollama", "reasoning"), ("vllm", "reasoning")],
)
async def test_p8_reasoning_is_sent_back_in_the_profiles_field(profile, field) -> None:
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


async def test_schema_is_described_to_a_server_without_schemas() -> None:
    request = asking(format=JSONSchema("form", {"type": "object", "title": "Form 7"}))
    asked = await body_of(request, profile="deepseek")
    assert asked["response_format"] == {"type": "json_object"}
    assert "Form 7" in asked["messages"][0]["content"]


@pytest.mark.parametrize("hops", [0, 3])
async def test_hop_header_is_counted_up(hops) -> None:
    async with remote(HELLO) as (engine, up):
        await ask(engine, caller=Caller(hops=hops, trace="req_1"))
        headers = up.asked[0].headers
    assert headers["x-dragoman-hops"] == str(hops + 1)
    assert "x-request-id" not in headers


async def test_azure_key_has_its_own_header() -> None:
    async with remote(HELLO, profile="azure", key="k") as (engine, up):
        await ask(engine)
        headers = up.asked[0].headers
    assert headers["api-key"] == "k"
    assert "authorization" not in headers


# ---- what is made of the answer ------------------------------------------------------------


async def test_r1_5_unary_answer_keeps_unknown_fields() -> None:
    call = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answer = completion({"content": "Well", "tool_calls": [call]}, "tool_calls", vendor_field=[1])
    answer["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    async with remote(plain(200, answer)) as (engine, _):
        response = await ask(engine)
    assert response.text == "Well"
    assert [(c.call_id, c.name) for c in response.calls] == [("call_a", "f")]
    assert response.reasons == ("tool_calls",)
    assert response.usage == Usage(input_tokens=3, output_tokens=2, total_tokens=5)
    assert response.extra["chat"]["vendor_field"] == [1]
    assert response.extra["upstream"] == {"id": "chatcmpl-1", "created": 1700000000}
    assert response.model == "mock"


async def test_completed_at_of_the_server_is_kept() -> None:
    dated = plain(200, response(said("Hello"), completed_at=1700000009))
    async with remote(dated, wire="responses") as (engine, _):
        assert (await ask(engine)).completed_at == 1700000009


async def test_response_has_its_own_id_and_completion_time() -> None:
    async with remote(HELLO) as (engine, _):
        first, second = await ask(engine), await ask(engine)
    assert first.id != second.id
    assert "chatcmpl" not in first.id
    assert first.completed_at is not None
    assert first.completed_at >= first.created_at > 1_700_000_000


async def test_prompt_truncated_by_the_server_is_reported() -> None:
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


async def test_namespaced_call_is_restored() -> None:
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


async def test_r1_w1_connections_are_reused() -> None:
    async with remote(HELLO) as (engine, up):
        for _ in range(5):
            await ask(engine)
        assert up.connections == 1


@pytest.mark.parametrize("tail", ["data: [DONE]\n\n", ""])
async def test_connection_is_reused_after_a_stream(tail) -> None:
    lines = f'data: {{"choices":[{{"delta":{{"content":"x"}},"finish_reason":"stop"}}]}}\n\n{tail}'
    whole = [head(200, f"content-length: {len(lines)}"), lines.encode()]
    async with remote(Reply(whole, keep=True)) as (engine, up):
        for _ in range(3):
            await ask(engine, asking(stream=True))
        assert up.connections == 1


async def test_shared_client_is_not_closed() -> None:
    async with Client() as client:
        for _ in range(2):
            async with remote(HELLO, client=client) as (engine, _):
                await ask(engine)
                await engine.close()
                await ask(engine)


# ---- the listing ---------------------------------------------------------------------------


async def test_models_of_the_server_are_listed() -> None:
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
    assert models[0].extra["models"]["meta"] == {"n": 1}


@pytest.mark.parametrize(
    ("probed", "code"),
    [
        (plain(404, b""), "upstream_unreachable"),
        (Reply([]), "upstream_unreachable"),
        (plain(401, b"{}"), "upstream_authentication"),
    ],
)
async def test_failed_listing_is_a_fault(probed, code) -> None:
    async with remote(HELLO, probed=probed) as (engine, _):
        with pytest.raises(FaultError) as caught:
            await engine.models()
    assert caught.value.fault.code == code


async def test_address_without_a_path_where_nothing_is_suggests_v1() -> None:
    async with mock(plain(404, b"404 page not found")) as up:
        engine = Remote(up.base_url.removesuffix("/v1"), wire="chat")
        suggested = "many servers want an address that ends with /v1"
        with pytest.raises(FaultError, match=suggested):
            await engine.models()
        assert (answer := await answered(engine)).error is not None
        assert answer.error.message.endswith(f"404 page not found ({suggested})")
        await engine.close()


async def test_listing_request_has_the_callers_key_and_hops() -> None:
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


async def test_capabilities_are_those_of_the_profile() -> None:
    async with remote(HELLO, profile="ollama") as (engine, _):
        can = await engine.capabilities("m")
    assert (can.custom_tools, can.namespaces, can.choices) == (False, False, False)
    assert can.images is None


@pytest.mark.parametrize(("profile", "streams"), [("llama.cpp", True), ("generic", False)])
async def test_unary_request_is_streamed_where_the_profile_says_so(profile, streams) -> None:
    async with remote(HELLO_STREAM if streams else HELLO, profile=profile) as (engine, up):
        assert (await ask(engine)).text == "Hello"
        assert up.asked[0].json.get("stream", False) is streams


# ---- guarantees ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("request_", "guarantee"),
    [
        (asking(), None),
        (asking(tools=(FunctionTool("f"),)), None),
        (asking(format=JSONObject()), "best-effort"),
        (asking(extra={"chat": {"guided_regex": "a+"}}), "best-effort"),
    ],
)
async def test_p34_forwarded_demand_is_best_effort(request_, guarantee, stream) -> None:
    async with remote(HELLO_STREAM if stream else HELLO) as (engine, up):
        response = await ask(engine, replace(request_, stream=stream))
        (asked,) = up.asked
    assert response.guarantee == guarantee
    if request_.extra is not None:
        assert asked.json["guided_regex"] == "a+"  # its own wire carries it


# ---- modalities ----------------------------------------------------------------------------

PIXEL = Image("data:image/png;base64,iVBORw0KGgo=")
BEEP = Audio("UklGRg==", "wav")


def listing(**modalities: list[str] | None) -> Reply:
    """A model listing; a model of which nothing is said has None."""
    data: list[dict[str, Any]] = []
    for name, taken in modalities.items():
        more = {} if taken is None else {"architecture": {"input_modalities": taken}}
        data.append({"id": name, "owned_by": "me", **more})
    return plain(200, {"object": "list", "data": data})


def showing(model: str, *parts: Image | Audio) -> Request:
    return Request(model=model, items=(Message("user", (Text("Look."), *parts)),))


async def sent(models: Reply, request: Request) -> list[str]:
    """The types of the parts that such a server is sent."""
    async with remote(HELLO, probed=models, wire="auto") as (engine, up):
        answer = await ask(engine, request)
        (asked,) = up.asked
    content = asked.json["messages"][0]["content"]
    kinds = [part["type"] for part in content]
    assert len(answer.losses) == kinds.count("text") - 1
    return kinds


@pytest.mark.parametrize(
    ("models", "model", "kinds"),
    [
        (listing(m=["text"]), "m", ["text", "text", "text"]),
        (listing(m=["text", "image"]), "m", ["text", "image_url", "text"]),
        (listing(m=["text", "audio"]), "m", ["text", "text", "input_audio"]),
        (listing(m=["text"], n=None), "n", ["text", "image_url", "input_audio"]),
        (listing(m=["text"]), "any name", ["text", "text", "text"]),
        (listing(m=["text"], n=["text"]), "any name", ["text", "image_url", "input_audio"]),
        (plain(404, b""), "m", ["text", "image_url", "input_audio"]),
    ],
)
async def test_parts_the_model_cannot_read_are_replaced_by_text(models, model, kinds) -> None:
    assert await sent(models, showing(model, PIXEL, BEEP)) == kinds


async def test_capabilities_have_the_listed_modalities() -> None:
    async with remote(HELLO, probed=listing(m=["text", "image"])) as (engine, _):
        before = await engine.capabilities("m")
        await engine.models()
        after = await engine.capabilities("m")
    assert (before.images, before.audio) == (None, None)
    assert (after.images, after.audio) == (True, False)


# ---- markup in text ------------------------------------------------------------------------

LEAK = 'Look.\n<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
ASKED = asking(tools=(FunctionTool("now"),))


async def test_p5_calls_in_streamed_text_are_parsed() -> None:
    pieces = [chunk({"content": LEAK[at : at + 3]}) for at in range(0, len(LEAK), 3)]
    async with remote(stream(*pieces, chunk(finish="stop"))) as (engine, _):
        engine.upstream.profile = replace(engine.profile, markup="hermes")
        answer = await ask(engine, replace(ASKED, stream=True))
    text, call = answer.output
    assert isinstance(text, Message)
    assert text.text == "Look."
    assert (call.name, call.arguments) == ("now", '{"zone": "UTC"}')


async def test_native_calls_win_over_calls_in_text() -> None:
    native = {"id": "c1", "function": {"name": "now", "arguments": '{"zone":"UTC"}'}}
    message = {"content": LEAK, "tool_calls": [native]}
    async with remote(plain(200, completion(message, "tool_calls"))) as (engine, _):
        engine.upstream.profile = replace(engine.profile, markup="hermes")
        answer = await ask(engine, ASKED)
    calls = [item for item in answer.output if isinstance(item, FunctionCall)]
    assert [(call.call_id, call.arguments) for call in calls] == [("c1", '{"zone":"UTC"}')]
    assert "tool_call" not in str(answer.output)


async def test_markup_stays_text_without_a_profile_for_it() -> None:
    async with remote(plain(200, completion({"content": LEAK}))) as (engine, _):
        assert (await ask(engine, ASKED)).text == LEAK


async def test_text_that_is_wanted_raw_stays_so() -> None:
    text = "<think>x"
    body = {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    async with remote(plain(200, body)) as (engine, _):
        engine.upstream.profile = replace(engine.profile, markup="hermes")
        answer = await ask(engine, completion_request(replace(ASKED, tools=(), items=()), ("Hi",)))
    assert (answer.text, answer.reasoning) == (text, "")


async def test_answer_and_its_items_have_the_id_that_it_is_stored_under() -> None:
    async with remote(plain(200, completion({"content": "Hello"}))) as (engine, _):
        answer = await ask(engine, ASKED, Caller(response="018f"))
    assert (answer.id, answer.output[0].id) == ("018f", "msg_018f_0")


# ---- keys in quoted text -------------------------------------------------------------------


def test_lone_surrogate_in_a_refusal_is_replaced() -> None:
    fault = Fault("upstream_refused", "bad \ud800 thing", "client", status=400)
    assert without(fault, Secret("sk-123456789")) is fault
    quoted = Fault("upstream_refused", "\ud800 sk-123456789", "client", status=400)
    assert without(quoted, Secret("sk-123456789")).message == "\ufffd ***"


@pytest.mark.parametrize("key", ["plain-key-1", 'with"quote', "back\\slash"])
def test_key_is_masked_in_every_field_of_a_fault(key) -> None:
    fault = Fault("upstream_refused", f"No key {key}.", extra={"error": {"given": [key]}})
    shown = without(fault, Secret(key))
    assert shown.message == "No key ***."
    assert shown.extra == {"error": {"given": ["***"]}}


@pytest.mark.parametrize("streamed", [False, True])
async def test_call_with_the_id_of_an_earlier_one_gets_an_id_of_its_own(streamed) -> None:
    """Some servers count ids from 0 in every answer, and Claude Code loses both calls then."""
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    whole = plain(200, completion({"content": None, "tool_calls": [call]}, finish="tool_calls"))
    piece = chunk({"tool_calls": [{"index": 0, **call}]})
    reply = stream(piece, chunk(finish="tool_calls")) if streamed else whole
    past = (FunctionCall("call_0", "f", "{}"), FunctionCallOutput("call_0", "1"))
    tools = (FunctionTool("f"),)
    first = asking(items=(Message("user", "Go."),), tools=tools, stream=streamed)
    again = asking(items=(Message("user", "Go."), *past), tools=tools, stream=streamed)
    ids = []
    async with remote(reply) as (engine, up):
        for request in (first, again):
            (item,) = (await ask(engine, request)).output
            ids.append(item.call_id)
        assert up.asked[1].json["messages"][1]["tool_calls"][0]["id"] == "call_0"
    assert ids[0] == "call_0"
    assert ids[1] not in ("", "call_0")


def test_proxy_of_another_kind_is_refused_at_once_where_the_server_needs_one(monkeypatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    Remote("http://127.0.0.1:9/v1")
    with pytest.raises(ValueError, match="ALL_PROXY names no http or https proxy"):
        Remote("https://api.example.com/v1")
