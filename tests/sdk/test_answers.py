"""Answers of every kind, read by the official SDK: streamed and whole they are the same."""

from typing import Any

import openai
import pytest

from tests.mock import chunk, completion, plain, stream
from tests.sdk.behind import Face, behind, by_form, timeless
from tests.sdk.scenes import SCENES, USAGE, Scene

SCENES_BY_FACE = pytest.mark.parametrize(
    ("name", "face"), [*((name, "async") for name in SCENES), ("text", "sync"), ("call", "sync")]
)


def said(completion: Any) -> dict[str, Any]:
    """The message of a completion, with its calls as pairs, and what the SDK adds left out."""
    (choice,) = timeless(completion)["choices"]
    message = choice["message"]
    assert message.pop("role") == "assistant"
    if "tool_calls" in message:
        functions = [call["function"] for call in message["tool_calls"]]
        message["tool_calls"] = [(each["name"], each["arguments"]) for each in functions]
    if not message.get("annotations"):
        message.pop("annotations", None)
    return message


@SCENES_BY_FACE
async def test_chat_answer_is_the_same_streamed_and_whole(name: str, face: Face) -> None:
    scene: Scene = SCENES[name]
    fields = scene.fields.get("chat", {})
    async with behind(scene.handler, face=face) as server:
        whole = await server.whole("chat", **fields)
        fields = {**fields, "stream_options": {"include_usage": True}}
        _, final = await server.streamed("chat", **fields)
    assert said(whole) == said(final) == scene.chat
    for answer in (whole, final):
        (choice,) = answer.choices
        assert choice.finish_reason == scene.finish
        assert timeless(answer.usage) == USAGE
        tokens = choice.logprobs.content if choice.logprobs else ()
        assert [token.to_dict() for token in tokens] == list(scene.logprobs)
        calls = choice.message.tool_calls or ()
        assert len({call.id for call in calls}) == len(calls)


@SCENES_BY_FACE
async def test_responses_answer_is_the_same_streamed_and_whole(name: str, face: Face) -> None:
    scene: Scene = SCENES[name]
    fields = scene.fields.get("responses", {})
    async with behind(scene.handler, face=face) as server:
        whole = await server.whole("responses", **fields)
        events, final = await server.streamed("responses", **fields)
    assert timeless(whole) == timeless(final)
    assert timeless(whole.output) == scene.responses
    assert whole.status == "completed"
    assert whole.usage.input_tokens_details.cached_tokens == 2
    assert whole.usage.output_tokens_details.reasoning_tokens == 3
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    ids = [item.id for item in final.output]
    assert len(set(ids)) == len(ids)


# ---- answers that do not end by themselves ---------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "text", "detail", "raised", "face"),
    [
        (
            "length",
            "It is a truth univ",
            "max_output_tokens",
            openai.LengthFinishReasonError,
            "async",
        ),
        (
            "content_filter",
            "How to ",
            "content_filter",
            openai.ContentFilterFinishReasonError,
            "sync",
        ),
    ],
)
async def test_cut_answer_names_its_reason(reason, text, detail, raised, face) -> None:
    scene = Scene({"content": text}, ({"content": text},), {}, [], reason)
    async with behind(scene.handler, face=face) as server:
        (choice,) = (await server.whole("chat")).choices
        assert (choice.finish_reason, choice.message.content) == (reason, text)
        *_, end = await server.raw("chat")
        assert end.choices[0].finish_reason == reason
        with pytest.raises(raised):  # the helper takes what was cut for a failure
            await server.streamed("chat")
        events, final = await server.streamed("responses")
        assert events[-1].type == "response.incomplete"
        whole = await server.whole("responses")
        assert timeless(whole) == timeless(final)
        assert (whole.status, whole.incomplete_details.reason) == ("incomplete", detail)
        assert whole.output[0].status == "incomplete"
        assert whole.output_text == text


async def test_call_cut_by_the_limit_stays_incomplete() -> None:
    half = '{"city": "Zür'
    call = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": half}}
    scene = Scene(
        {"content": None, "tool_calls": [call]},
        ({"tool_calls": [{**call, "index": 0}]},),
        {},
        [],
        "length",
    )
    fields = {"tools": [{"type": "function", "name": "weather", "parameters": {}, "strict": False}]}
    async with behind(scene.handler) as server:
        whole = await server.whole("responses", **fields)
        _, final = await server.streamed("responses", **fields)
    for response in (whole, final):
        (item,) = response.output
        assert (item.arguments, item.status, response.status) == (half, "incomplete", "incomplete")


# ---- what only one of the protocols has ------------------------------------------------------


async def test_interleaved_choices_stay_apart() -> None:
    def piece(index: int, text: str | None, finish: str | None = None) -> dict[str, Any]:
        delta = {} if text is None else {"content": text}
        return {**chunk(), "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}

    whole = completion({"content": "one two"})
    second = {"index": 1, "message": {"role": "assistant", "content": "uno due"}}
    whole["choices"].append({**second, "finish_reason": "stop"})
    chunks = [piece(0, "one"), piece(1, "uno"), piece(0, " two"), piece(1, " due")]
    ends = [piece(1, None, "stop"), piece(0, None, "stop")]
    async with behind(by_form(plain(200, whole), stream(*chunks, *ends))) as server:
        _, final = await server.streamed("chat", n=2)
        for answer in (await server.whole("chat", n=2), final):
            told = [(c.index, c.message.content, c.finish_reason) for c in answer.choices]
            assert told == [(0, "one two", "stop"), (1, "uno due", "stop")]
        assert [asked.json["n"] for asked in server.up.asked] == [2, 2]


async def test_server_without_n_is_asked_once_per_choice() -> None:
    hello = completion({"content": "Hello"}, usage=USAGE)
    stop = chunk(finish="stop")
    handler = by_form(plain(200, hello), stream(chunk({"content": "Hello"}), stop))
    async with behind(handler, profile="ollama") as server:
        _, final = await server.streamed("chat", n=3)
        for answer in (await server.whole("chat", n=3), final):
            told = [(c.index, c.message.content, c.finish_reason) for c in answer.choices]
            assert told == [(n, "Hello", "stop") for n in range(3)]
        assert [asked.json.get("n") for asked in server.up.asked] == [None] * 6


async def test_audio_for_a_responses_server_is_refused() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    async with behind(plain(500, b""), wire="responses") as server:
        with pytest.raises(openai.BadRequestError) as caught:
            await server.whole("chat", messages=[{"role": "user", "content": [sound]}])
        assert caught.value.param == "messages[0].content[0].input_audio"
        assert server.up.asked == []
