"""Bare prompts and vectors over HTTP: to whoever can, within the bounds of all requests."""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import openai
import pytest

from dragoman.core.event import Event
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.request import Request
from dragoman.engines.token.engine import TokenEngine
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.engines.token.models import Says, Table
from tests.engines.token.plain import TOY, Plain
from tests.mock import Reply, plain, stream
from tests.sdk.behind import Behind, Face, behind, by_form
from tests.server.stubs import Call, Stub

PATH, VECTORS = "/v1/completions", "/v1/embeddings"
FACES = pytest.mark.parametrize("face", ["async", "sync"])
SETTINGS = Settings()


class Prompting(Stub):
    """A stub that takes prompts, and has vectors."""

    def __init__(self, *cues: Any) -> None:
        super().__init__(*cues)
        self.prompts: list[tuple[Any, bool]] = []

    def complete(
        self,
        prompt: str | Sequence[int],
        request: Request,
        caller: Caller = ANYONE,
        *,
        echo: bool = False,
    ) -> AsyncGenerator[Event, None]:
        self.prompts.append((prompt, echo))
        return self.stream(request, caller)

    async def embed(self, request: dict[str, Any], caller: Caller = ANYONE) -> dict[str, Any]:
        self.prompts.append((request["input"], False))
        try:
            for cue in self.cues:
                if isinstance(cue, asyncio.Event):
                    self.begun.set()
                    await cue.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return {"object": "list", "data": []}


async def call(engine: Stub, path: str, body: Any, settings: Settings = SETTINGS) -> Call:
    return await Call(App(engine, settings), path, body)()


async def test_prompt_is_completed() -> None:
    engine = Prompting()
    answer = await call(engine, PATH, {"model": "stub", "prompt": "Say", "echo": True, "seed": 3})
    assert answer.status == 200
    assert answer.json["object"] == "text_completion"
    assert answer.json["choices"][0]["text"] == "Hello, world"
    ((request, caller),) = engine.asked
    assert (request.model, request.sampling.seed, request.items) == ("stub", 3, ())
    assert caller.wire == "completions"
    assert engine.prompts == [("Say", True)]


async def test_prompts_are_choices() -> None:
    engine = Prompting()
    answer = await call(engine, PATH, {"model": "stub", "prompt": ["a", [1]], "n": 2})
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2, 3]
    assert sorted(engine.prompts, key=str) == [("a", False)] * 2 + [((1,), False)] * 2


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATH, {"model": "stub", "prompt": "a", "suffix": "z"}, "suffix"),
        (PATH, {"model": "stub", "prompt": "a", "best_of": 2}, "best_of"),
        (PATH, {"model": "stub", "prompt": "a", "max_tokens": 0}, "max_tokens"),
        (PATH, {"model": "stub"}, "prompt"),
        (VECTORS, {"model": "stub"}, "input"),
        (VECTORS, {"input": "a"}, "model"),
    ],
)
async def test_invalid_field_is_named(path, body, param) -> None:
    answer = await call(Prompting(), path, body)
    assert answer.status == 400
    assert answer.json["error"]["param"] == param
    assert answer.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"model": "stub", "prompt": "a"}),
        (PATH, {"model": "stub", "prompt": "a", "stream": True}),
        (PATH, {"model": "stub", "prompt": ["a", "b"]}),
        (VECTORS, {"model": "stub", "input": "a"}),
    ],
)
async def test_engine_without_the_ability_is_reported(path, body) -> None:
    engine = Stub()
    answer = await call(engine, path, body)
    assert answer.status == 400
    assert answer.json["error"]["param"] == "model"
    assert answer.json["error"]["code"] == "unsupported_parameter"
    assert engine.asked == []


@pytest.mark.parametrize(
    ("path", "body"),
    [(PATH, {"model": "stub", "prompt": "a"}), (VECTORS, {"model": "stub", "input": "a"})],
)
class TestBounds:
    """What holds for all requests holds for these."""

    async def test_the_work_ends_when_the_client_goes(self, path: str, body: Any) -> None:
        engine = Prompting(asyncio.Event())
        asking = Call(App(engine, SETTINGS), path, body)
        task = asyncio.create_task(asking())
        await engine.begun.wait()
        asking.hang_up()
        async with asyncio.timeout(5):
            await task
        assert engine.cancelled.is_set()
        assert asking.sent == []

    async def test_time_has_a_limit(self, path: str, body: Any) -> None:
        engine = Prompting(asyncio.Event())
        answer = await call(engine, path, body, Settings(deadline=0.1))
        assert answer.status == 504
        assert engine.cancelled.is_set()

    async def test_those_who_wait_are_counted_with_all_others(self, path: str, body: Any) -> None:
        engine = Prompting(held := asyncio.Event())
        app = App(engine, Settings(concurrency=1, queue=0))
        first = asyncio.create_task(
            Call(app, body={"model": "stub", "messages": [{"role": "user", "content": "Hi"}]})()
        )
        await engine.begun.wait()
        assert (await Call(app, path, body)()).status == 429
        held.set()
        await first


async def test_silent_stream_has_heartbeats() -> None:
    engine = Prompting(held := asyncio.Event(), *Stub().cues)
    app = App(engine, Settings(header_hold=0, heartbeat=0.1))
    asking = Call(app, PATH, {"model": "stub", "prompt": "a", "stream": True})
    task = asyncio.create_task(asking())
    async with asyncio.timeout(10):
        await asking.until(lambda: b": waiting" in asking.body)
    held.set()
    await task
    assert asking.body.endswith(b"data: [DONE]\n\n")


# ---- the official SDK --------------------------------------------------------------------------

COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
LISTS = {
    "tokens": ["Once", " upon"],
    "token_logprobs": [None, -0.5],
    "top_logprobs": [None, {" upon": -0.5, " more": -1.5}],
    "text_offset": [0, 4],
}


def piece(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"text": text, "index": 0, "finish_reason": finish, **more}
    return {"id": "cmpl-9", "object": "text_completion", "created": 7, "model": "big"} | {
        "choices": [choice]
    }


WHOLE = plain(200, piece("Once upon", "stop", logprobs=LISTS) | {"usage": COUNTS})
STREAM = stream(
    piece("Once", logprobs={n: v and v[:1] for n, v in LISTS.items()}),
    piece(" upon", logprobs={n: v and v[1:] for n, v in LISTS.items()}),
    piece("", "stop"),
    {"id": "cmpl-9", "choices": [], "usage": COUNTS},
)


async def ask(server: Behind, face: Face, use: Any, **fields: Any) -> Any:
    """What the SDK makes of an answer, by either face; a stream as a list of chunks."""
    if face == "async":
        async with server.sdk() as sdk:
            answer = await use(sdk).create(**fields)
            return [each async for each in answer] if fields.get("stream") else answer

    def synchronous() -> Any:
        with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as sdk:
            answer = use(sdk).create(**fields)
            return list(answer) if fields.get("stream") else answer

    return await asyncio.to_thread(synchronous)


@FACES
async def test_sdk_completes_prompts(face: Face) -> None:
    asked = {"model": "mock", "prompt": "Once", "echo": True, "logprobs": 2, "max_tokens": 9}
    async with behind(by_form(WHOLE, STREAM), face=face) as server:
        whole = await ask(server, face, lambda sdk: sdk.completions, **asked)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = await ask(server, face, lambda sdk: sdk.completions, **asked, **options)
        first, second = (each.json for each in server.up.asked)
    assert first == asked
    assert second == asked | options
    (choice,) = whole.choices
    assert (choice.text, choice.finish_reason) == ("Once upon", "stop")
    assert choice.logprobs.to_dict() == LISTS
    assert whole.usage.total_tokens == 5
    assert whole.id.startswith("cmpl-")
    assert "".join(c.text for chunk in chunks for c in chunk.choices) == "Once upon"
    offsets = [c.logprobs.text_offset for chunk in chunks for c in chunk.choices if c.logprobs]
    assert offsets == [[0], [4]]
    assert chunks[-1].usage.total_tokens == 5


@FACES
async def test_sdk_raises_for_a_refused_prompt(face: Face) -> None:
    refusal = plain(404, {"error": {"message": "no such path", "code": "gone"}})
    async with behind(refusal, face=face) as server:
        for fields in ({"suffix": "z"}, {}, {"stream": True}):
            with pytest.raises(openai.APIStatusError) as caught:
                await ask(
                    server, face, lambda sdk: sdk.completions, model="m", prompt="a", **fields
                )
            expected = (400, "suffix") if "suffix" in fields else (404, None)
            assert (caught.value.status_code, caught.value.param) == expected


@FACES
async def test_sdk_raises_for_a_cut_stream(face: Face) -> None:
    async with behind(stream(piece("Once"), done=False), face=face) as server:
        with pytest.raises(openai.APIError, match="before the answer was finished"):
            await ask(server, face, lambda sdk: sdk.completions, model="m", prompt="a", stream=True)


@FACES
@pytest.mark.parametrize("spelt", ["AAAAPwAAgL8=", [0.5, -1.0]])
async def test_sdk_reads_embeddings_in_either_encoding(face: Face, spelt) -> None:
    answer = {
        "object": "list",
        "model": "e",
        "data": [{"object": "embedding", "index": 0, "embedding": spelt}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    async with behind(plain(200, answer), face=face) as server:
        found = await ask(server, face, lambda sdk: sdk.embeddings, model="e", input=["a"])
        (asked,) = server.up.asked
    assert found.data[0].embedding == [0.5, -1.0]
    assert asked.path == "/v1/embeddings"
    assert asked.json == {"model": "e", "input": ["a"], "encoding_format": "base64"}


@FACES
async def test_sdk_raises_for_refused_embeddings(face: Face) -> None:
    for reply, status in (
        (plain(400, {"error": {"message": "too long", "param": "input"}}), 400),
        (plain(200, {"error": {"message": "out of memory"}}), 502),
        (Reply([]), 502),
    ):
        async with behind(reply, face=face) as server:
            with pytest.raises(openai.APIStatusError) as caught:
                await ask(server, face, lambda sdk: sdk.embeddings, model="e", input="a")
        assert caught.value.status_code == status


# ---- a model in this process ---------------------------------------------------------------------


async def asked(model: Any, **fields: Any) -> Call:
    """What a model in this process answers to a prompt."""
    app = App(TokenEngine(Plain(), model, TOY, name="toy"), SETTINGS)
    answer = await Call(app, PATH, {"model": "toy", "prompt": "Once", **fields})()
    await app.close()
    return answer


@pytest.mark.parametrize(
    ("fields", "text", "finish"),
    [
        ({}, " upon a time", "stop"),
        ({"echo": True}, "Once upon a time", "stop"),
        ({"prompt": list(b"Once"), "echo": True}, "Once upon a time", "stop"),
        ({"max_tokens": 5}, " upon", "length"),
        ({"stop": " a"}, " upon", "stop"),
    ],
)
async def test_prompt_is_completed_by_a_token_model(fields, text, finish) -> None:
    answer = (await asked(Says(" upon a time"), **fields)).json
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, finish)
    assert answer["usage"]["prompt_tokens"] == 4


async def test_prompt_alone_is_scored_token_by_token() -> None:
    """What evaluations of base models ask: nothing written, everything weighed."""
    call = await asked(Table(), echo=True, max_tokens=0, logprobs=2)
    (choice,) = call.json["choices"]
    assert choice["text"] == "Once"
    scores = choice["logprobs"]
    assert scores["tokens"] == list("Once")
    assert scores["text_offset"] == [0, 1, 2, 3]
    assert scores["token_logprobs"][0] is None
    table = Table().table
    for place in range(1, 4):
        row = table[sum(b"Once"[max(0, place - 3) : place]) % len(table)]
        expected = row[b"Once"[place]] - math.log(sum(math.exp(score) for score in row))
        assert scores["token_logprobs"][place] == pytest.approx(expected, abs=1e-4)
    assert call.json["usage"]["completion_tokens"] == 0
