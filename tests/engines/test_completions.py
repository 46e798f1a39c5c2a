"""A raw completion server behind a format, and bare prompts through a remote engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.event import Event, Failed
from dragoman.core.fold import fold
from dragoman.core.interfaces import Caller
from dragoman.core.item import FunctionCall, FunctionCallOutput, Image, Message, Text
from dragoman.core.lifecycle import check
from dragoman.core.request import (
    AllowedTools,
    Completion,
    FunctionTool,
    JSONObject,
    NamedTool,
    Request,
    Sampling,
)
from dragoman.core.response import Response
from dragoman.engines.completions import CompletionServer
from dragoman.engines.remote import Remote
from dragoman.engines.router import Prompted, Route, Router, embed
from dragoman.engines.script import demo
from dragoman.formats.format import Setting
from tests.engines.stage import answered
from tests.formats.plain import PlainFormat
from tests.mock import Handler, Mock, Reply, mock, plain, stream

ADD = FunctionTool("add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})


def piece(text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of a raw completion."""
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
    return {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "raw"} | {
        "choices": [choice],
        **more,
    }


def pieces(*texts: str, finish: str = "stop", **options: Any) -> Reply:
    usage = {"prompt_tokens": 3, "completion_tokens": len(texts), "total_tokens": 3 + len(texts)}
    return stream(*map(piece, texts), piece("", finish), piece(usage=usage, choices=[]), **options)


def asking(*items: Any, **fields: Any) -> Request:
    said = items or (Message("user", "Hi."),)
    return Request(**{"model": "m", "items": said, "stream": True, **fields})


@asynccontextmanager
async def raw(
    handler: Handler | Reply, probed: Handler | Reply | None = None, **options: Any
) -> AsyncIterator[tuple[CompletionServer, Mock]]:
    async with mock(handler, probed) as up:
        engine = CompletionServer(up.base_url, format=PlainFormat(), **options)
        try:
            yield engine, up
        finally:
            await engine.close()


async def ask(reply: Reply, request: Request | None = None, **options: Any) -> Response:
    async with raw(reply, **options) as (engine, _):
        return await answered(engine, request or asking())


# ---- a format around it -----------------------------------------------------------------------


async def test_a_conversation_is_rendered_asked_for_and_parsed() -> None:
    past = (
        Message("user", "Add."),
        FunctionCall("c", "add", '{"a": 1}'),
        FunctionCallOutput("c", "2"),
    )
    request = asking(
        *past,
        tools=(ADD,),
        max_output_tokens=9,
        sampling=Sampling(temperature=0.5, stop=("!",), top_k=3),
    )
    async with raw(pieces("It ", "is ", "2.")) as (engine, up):
        response = await answered(engine, request)
    (asked,) = up.asked
    assert asked.path == "/v1/completions"
    assert asked.json == {
        "model": "m",
        "prompt": '<tools>add\n<user>Add.<end><model><call>add {"a": 1}</call><end>'
        "<tool>2<end><model>",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["!", "\n<user>", "<end>"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert response.text == "It is 2."
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 3)
    assert response.model == "raw"
    assert response.losses == ()
    assert (response.extra or {})["upstream"] == {"id": "cmpl-1", "created": 7}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_a_call_in_the_text_is_a_call_however_it_is_cut(size: int) -> None:
    text = 'Let me see.<call>add {"a": 1}</call>'
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    response = await ask(pieces(*cut), asking(tools=(ADD,)))
    message, call = response.output
    assert isinstance(message, Message)
    assert message.text == "Let me see."
    assert isinstance(call, FunctionCall)
    assert (call.name, call.arguments) == ("add", '{"a": 1}')
    assert response.reasons == ("tool_calls",)


async def test_a_whole_answer_is_parsed_like_a_streamed_one() -> None:
    whole = plain(200, piece("Hello<end>", "stop"))
    response = await ask(whole, asking(stream=False))
    assert (response.text, response.status) == ("Hello", "completed")


async def test_length_is_incomplete_with_all_that_was_said() -> None:
    response = await ask(pieces("Once", finish="length"))
    assert (response.text, response.status, response.reasons) == ("Once", "incomplete", ("length",))


async def test_an_answer_without_text_is_an_empty_message() -> None:
    response = await ask(pieces())
    assert (response.status, response.text, len(response.output)) == ("completed", "", 1)


async def test_a_cut_keeps_what_came() -> None:
    response = await ask(stream(piece("Once"), done=False))
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "upstream_cut"
    assert response.text == "Once"


async def test_a_break_after_the_end_is_an_end() -> None:
    reply = stream(piece("Once", "stop"), done=False, reset=True)
    assert (await ask(reply)).status == "completed"


async def test_an_error_in_the_stream_is_told() -> None:
    response = await ask(stream(piece("O"), {"error": {"message": "out of memory"}}))
    assert response.error is not None
    assert response.error.message == "out of memory"


async def test_a_refusal_is_told() -> None:
    response = await ask(plain(400, {"error": {"message": "prompt too long"}}))
    assert response.error is not None
    assert (response.error.message, response.error.status) == ("prompt too long", 400)


async def test_what_cannot_be_rendered_is_refused_before_anything_is_asked() -> None:
    from dragoman.core.item import Compaction

    async with raw(pieces("x")) as (engine, up):
        response = await answered(engine, asking(Compaction("c", "x")))
    assert response.error is not None
    assert (response.error.code, response.error.param) == ("unsupported", "items")
    assert up.asked == []


async def test_several_choices_are_asked_for_one_by_one() -> None:
    async with raw(pieces("x")) as (engine, up):
        request = asking(sampling=Sampling(n=2, seed=5))
        response = await answered(engine, request)
    assert sorted(asked.json["seed"] for asked in up.asked) == [5, 6]
    assert [item.text for item in response.output if isinstance(item, Message)] == ["x", "x"]


async def test_a_stream_is_begun_while_the_server_is_silent() -> None:
    held = Reply([*pieces("x").pieces], pause=0.05)
    async with raw(held, header_hold=0.01) as (engine, _):
        response = await answered(engine, asking())
    assert (response.text, response.model) == ("x", "m")


async def test_a_setting_may_be_a_function() -> None:
    async with raw(pieces("x"), setting=lambda: Setting(identity="I am.")) as (engine, up):
        await answered(engine, asking())
    assert up.asked[0].json["prompt"].startswith("I am.<user>")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": (ADD,), "tool_choice": "required"}, "tool_choice"),
        ({"format": JSONObject()}, "format"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"sampling": Sampling(logprobs=True, top_logprobs=2)}, "logprobs"),
        ({"modalities": ("text", "audio")}, "modalities"),
        ({"prediction": {"content": "x"}}, "prediction"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search": {}}, "web_search_options"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"extra": {"chat": {"vendor": 1}}}, "vendor"),
    ],
)
async def test_what_a_prompt_cannot_carry_is_told_once(fields: Any, field: str) -> None:
    async with raw(pieces("x")) as (engine, up):
        response = await answered(engine, asking(**fields))
    assert [loss.field for loss in response.losses] == [field]
    assert "logprobs" not in up.asked[0].json


async def test_what_is_demanded_is_best_effort() -> None:
    assert (await ask(pieces("x"), asking(format=JSONObject()))).guarantee == "best-effort"
    assert (await ask(pieces("x"))).guarantee is None


async def test_a_forced_tool_is_the_only_one_offered() -> None:
    tools = (ADD, FunctionTool("other"))
    for choice in (NamedTool("add"), AllowedTools("required", (NamedTool("add"),))):
        async with raw(pieces("x")) as (engine, up):
            response = await answered(engine, asking(tools=tools, tool_choice=choice))
        assert up.asked[0].json["prompt"].startswith("<tools>add\n<user>")
        assert "tool_choice" in {loss.field for loss in response.losses}


async def test_losses_are_worded_for_the_caller() -> None:
    async with raw(pieces("x")) as (engine, _):
        request = asking(format=JSONObject())
        async with aclosing(engine.stream(request, Caller(wire="chat"))) as events:
            response = fold([event async for event in events])
    assert [loss.field for loss in response.losses] == ["response_format"]


async def test_pictures_are_left_out_and_told() -> None:
    content = (Text("See:"), Image(url="data:image/png;base64,AA=="))
    response = await ask(pieces("x"), asking(Message("user", content)))
    assert len(response.losses) == 1


# ---- kinds of servers -------------------------------------------------------------------------


async def test_r2_3_each_kind_of_server_is_asked_in_its_own_words() -> None:
    sampling = Sampling(repetition_penalty=1.2, frequency_penalty=0.5, top_k=4, min_p=0.1)
    request = asking(sampling=sampling, max_output_tokens=3)
    said: dict[str, dict[str, Any]] = {}
    for kind in ("vllm", "llama.cpp", "generic", "openai"):
        async with raw(pieces("x"), profile=kind) as (engine, up):
            await answered(engine, request)
        assert up.probes == []
        said[kind] = up.asked[0].json
    for kind, body in said.items():
        assert (body["max_tokens"], body["top_k"], body["min_p"]) == (3, 4, 0.1), kind
        assert body["frequency_penalty"] == 0.5
        assert "max_completion_tokens" not in body
    assert said["llama.cpp"]["repeat_penalty"] == said["vllm"]["repetition_penalty"] == 1.2
    assert "repetition_penalty" not in said["llama.cpp"]
    assert said["vllm"]["skip_special_tokens"] is False
    assert said["vllm"]["add_special_tokens"] is False
    assert said["llama.cpp"]["preserved_tokens"] == ["<user>", "<end>", "<model>"]


async def test_what_the_server_is_its_listing_tells_once() -> None:
    listing = {"object": "list", "data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}
    async with raw(pieces("x"), plain(200, listing)) as (engine, up):
        await answered(engine, asking())
        await answered(engine, asking())
        (model,) = await engine.models()
        assert (await engine.capabilities("m")).images is False
    assert [asked.json["skip_special_tokens"] for asked in up.asked] == [False, False]
    assert len(up.probes) == 2
    shown = (model.extra or {})["models"]
    assert (shown["format"], shown["guarantees"]) == ("plain", ["best-effort"])
    assert shown["context_window"] == 4096


async def test_a_format_by_a_name_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"no format 'morse'\. Formats: "):
        CompletionServer("http://127.0.0.1:9/v1", format="morse")


async def test_nobody_there_is_a_fault() -> None:
    engine = CompletionServer("http://127.0.0.1:9/v1", format=PlainFormat())
    response = await answered(engine, asking())
    await engine.close()
    assert response.error is not None
    assert response.error.code == "upstream_unreachable"


async def test_leaving_closes_the_connection() -> None:
    hanging = Reply(stream(piece("Once"), done=False).pieces, hang=True)
    async with raw(hanging) as (engine, up):
        async with aclosing(engine.stream(asking())) as events:
            await anext(events)
        async with asyncio.timeout(5):
            await up.asked[0].gone


# ---- bare prompts ------------------------------------------------------------------------------


async def heard(engine: Any, request: Completion) -> list[Event]:
    async with aclosing(Prompted(engine).stream(request)) as stream:
        events = [event async for event in stream]
    check(events)
    return events


def echoing(asked: Any) -> Reply:
    """A server that says the prompt in capitals."""
    return plain(200, piece(str(asked.json["prompt"]).upper(), "stop"))


@pytest.mark.parametrize("behind", [False, True])
async def test_a_prompt_passes_through_to_the_server(behind: bool) -> None:
    async with mock(echoing) as up:
        remote = Remote(up.base_url, wire="chat")
        engine: Any = Router([Route(remote, aliases={"nick": "m"})]) if behind else remote
        name = "nick" if behind else "m"
        request = Completion(model=name, prompts=("<a>",), extra={"completions": {"grammar": "g"}})
        response = fold(await heard(engine, request))
        await engine.close()
    assert response.text == "<A>"
    (asked,) = up.asked
    assert asked.path == "/v1/completions"
    assert asked.json == {"model": "m", "prompt": "<a>", "grammar": "g"}


async def test_think_tags_in_raw_text_are_text() -> None:
    async with mock(plain(200, piece("<think>a</think>b", "stop"))) as up:
        engine = Remote(up.base_url, wire="chat")
        response = fold(await heard(engine, Completion(model="m", prompts=("x",))))
        await engine.close()
    assert response.text == "<think>a</think>b"


async def test_several_prompts_and_choices_stand_in_order() -> None:
    async with mock(echoing) as up:
        engine = Remote(up.base_url, wire="chat")
        request = Completion(
            model="m", prompts=("a", (1, 2)), echo=True, sampling=Sampling(n=2, seed=7)
        )
        response = fold(await heard(engine, request))
        await engine.close()
    texts = [
        "".join(i.text for i in response.choice(n) if isinstance(i, Message)) for n in range(4)
    ]
    assert texts == ["A", "A", "[1, 2]", "[1, 2]"]
    said = sorted(((a.json["prompt"], a.json["seed"], a.json["echo"]) for a in up.asked), key=str)
    assert said == [("a", 7, True), ("a", 8, True), ([1, 2], 7, True), ([1, 2], 8, True)]


async def test_an_engine_of_conversations_only_says_so() -> None:
    request = Completion(model="m", prompts=("x",))
    for engine in (demo(), Router([Route(demo())])):
        (last,) = await heard(engine, request)
        assert isinstance(last, Failed)
        assert (last.fault.code, last.fault.param) == ("unsupported", "model")
        with pytest.raises(FaultError) as caught:
            await embed(engine, {"model": "m", "input": "x"})
        assert (caught.value.fault.code, caught.value.fault.param) == ("unsupported", "model")


async def test_a_model_nobody_has() -> None:
    router = Router([Route(CompletionServer("http://127.0.0.1:9", format=PlainFormat()), ("m",))])
    (last,) = await heard(router, Completion(model="x", prompts=("x",)))
    await router.close()
    assert isinstance(last, Failed)
    assert last.fault.code == "model_not_found"


async def test_a_conversation_cannot_be_said_as_a_completion() -> None:
    async with raw(pieces("x")) as (engine, _):
        request = Completion(model="m", prompts=("bare",), stream=True)
        assert fold(await heard(engine, request)).text == "x"


# ---- vectors -----------------------------------------------------------------------------------

VECTORS = {"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "model": "e"}


async def test_vectors_pass_through() -> None:
    async with mock(plain(200, VECTORS)) as up:
        router = Router([Route(Remote(up.base_url, key="sk-secret-key"), aliases={"nick": "e"})])
        answer = await embed(router, {"model": "nick", "input": "x"})
        await router.close()
    assert answer == VECTORS
    assert (up.asked[0].path, up.asked[0].json) == ("/v1/embeddings", {"model": "e", "input": "x"})
    assert up.asked[0].headers["authorization"] == "Bearer sk-secret-key"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (plain(404, {"error": {"message": "no such model"}}), "upstream_refused"),
        (plain(401, {"error": {"message": "no"}}), "upstream_authentication"),
        (plain(200, b"<html>"), "upstream_error"),
        (Reply([b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\n{"]), "upstream_cut"),
    ],
)
async def test_vectors_that_do_not_come_are_a_fault(reply: Reply, code: str) -> None:
    async with mock(reply) as up:
        engine = Remote(up.base_url)
        with pytest.raises(FaultError) as caught:
            await engine.embed({"model": "e", "input": "x"})
        await engine.close()
    assert caught.value.fault.code == code


# ---- Llama's ends ------------------------------------------------------------------------------

MARKS = ("<|eot_id|>", "<|eom_id|>")


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("word", ["stop", "eos", "length", None])
async def test_r2_4_a_text_that_ends_in_an_end_marker_is_said_without_it(
    mark: str, word: str | None
) -> None:
    async with mock(plain(200, piece(f"Hello.{mark}", word))) as up:
        engine = CompletionServer(up.base_url, format="llama")
        response = await answered(engine, asking(stream=False))
        await engine.close()
    assert response.text == "Hello."
    assert response.status == ("incomplete" if word == "length" else "completed")
    assert "".join(up.asked[0].json["prompt"]).endswith("assistant<|end_header_id|>\n\n")
    assert set(MARKS) <= set(up.asked[0].json["stop"])


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("size", [1, 2, 5, 9, 100])
async def test_r2_7_an_end_marker_is_not_said_however_it_is_cut(mark: str, size: int) -> None:
    text = f"Hello.{mark}"
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    for reply in (
        pieces(*cut),
        stream(*map(piece, cut[:-1]), piece(cut[-1], "eos_token")),  # text beside the reason
    ):
        async with mock(reply) as up:
            engine = CompletionServer(up.base_url, format="llama")
            response = await answered(engine, asking())
            await engine.close()
        assert (response.text, response.status) == ("Hello.", "completed")
