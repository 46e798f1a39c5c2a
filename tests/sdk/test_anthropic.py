"""Anthropic's own SDK before Dragoman: answers of every kind, tools, counts, models and errors.

It is strict: what does not fit its types is an error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Finished
from dragoman.core.fold import unfold
from dragoman.core.item import CustomToolCall, FunctionCall, Item, Message, Reasoning, Text, Thought
from dragoman.core.response import Usage
from dragoman.server.app import App
from dragoman.server.build import assemble
from dragoman.server.settings import Settings
from tests.answers import answer
from tests.mock import Asked, Reply
from tests.sdk import blocks
from tests.sdk.behind import behind, timeless
from tests.sdk.scenes import SCENES
from tests.server.stubs import Stub, served

if TYPE_CHECKING:
    import anthropic

JSON = dict[str, Any]
ASKED: JSON = {
    "model": "mock",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Go."}],
}
TOOL: JSON = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
_OPTIONS: JSON = {"api_key": "none", "_strict_response_validation": True}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Three thousand modules, which are not for those who only look what tests there are."""
    global anthropic
    import anthropic


def sdk(base_url: str, **options: Any) -> anthropic.AsyncAnthropic:
    """A strict client, which does not try again unless told to."""
    base_url = base_url.removesuffix("/v1")
    return anthropic.AsyncAnthropic(
        **{"base_url": base_url, "max_retries": 0, **_OPTIONS, **options}
    )


@asynccontextmanager
async def before(engine: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """A client of a server with this engine."""
    async with served(App(engine, Settings())) as port, sdk(f"http://127.0.0.1:{port}") as client:
        yield client


async def gathered(client: anthropic.AsyncAnthropic, **fields: Any) -> tuple[list[Any], Any]:
    """The events of `.stream()`, and the message it makes of them."""
    async with client.messages.stream(**{**ASKED, **fields}) as stream:
        events = [event async for event in stream]
        return events, await stream.get_final_message()


def told(message: Any) -> JSON:
    """What a message says, without its id and without nulls."""
    said: JSON = message.to_dict(exclude_none=True)
    assert said.pop("id").startswith("msg_")
    return said


# ---- answers -----------------------------------------------------------------------------

ANSWERS: dict[str, tuple[tuple[Item, ...], list[JSON], str]] = {
    "text": (
        (Message("assistant", (Text("Grüße, 🌍!"),)),),
        [{"type": "text", "text": "Grüße, 🌍!"}],
        "end_turn",
    ),
    "thinking": (
        (Reasoning((Thought("First this."),)), Message("assistant", (Text("Yes."),))),
        [
            {"type": "thinking", "thinking": "First this.", "signature": ""},
            {"type": "text", "text": "Yes."},
        ],
        "end_turn",
    ),
    "signed thinking": (
        (
            Reasoning((Thought("First."),), extra={"messages": {"signature": "Eq+/=="}}),
            Reasoning(extra={"messages": {"data": "Em=="}}),
        ),
        [
            {"type": "thinking", "thinking": "First.", "signature": "Eq+/=="},
            {"type": "redacted_thinking", "data": "Em=="},
        ],
        "end_turn",
    ),
    "calls": (
        (
            Message("assistant", (Text("Let me see."),)),
            FunctionCall("c1", "weather", '{"city": "Zürich"}'),
            FunctionCall("c2", "clock", ""),
            CustomToolCall("c3", "patch", "*** a\n"),
        ),
        [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Zürich"}},
            {"type": "tool_use", "id": "c2", "name": "clock", "input": {}},
            {"type": "tool_use", "id": "c3", "name": "patch", "input": {"input": "*** a\n"}},
        ],
        "tool_use",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_answer_is_the_same_streamed_and_whole(name) -> None:
    items, content, reason = ANSWERS[name]
    usage = Usage(10, 5, cached_tokens=4, reasoning_tokens=2)
    async with before(Stub(*unfold(answer(*items, usage=usage)))) as client:
        whole = await client.messages.create(**ASKED)
        events, final = await gathered(client)
    assert told(whole) == told(final)
    assert (told(whole)["content"], whole.stop_reason) == (content, reason)
    assert (whole.usage.input_tokens, whole.usage.cache_read_input_tokens) == (6, 4)
    assert whole.usage.output_tokens_details.thinking_tokens == 2
    assert [event.type for event in events][:1] == ["message_start"]
    assert [event.type for event in events][-2:] == ["message_delta", "message_stop"]


@pytest.mark.parametrize("name", SCENES)
async def test_answer_of_a_chat_server_is_the_same_streamed_and_whole(name) -> None:
    scene = SCENES[name]
    async with behind(scene.handler) as server, sdk(server.base_url) as client:
        whole = await client.messages.create(**ASKED)
        _, final = await gathered(client)
    assert told(whole) == told(final)
    assert (whole.usage.input_tokens, whole.usage.cache_read_input_tokens) == (7, 2)
    said = "".join(block.text for block in whole.content if block.type == "text")
    assert said == (scene.chat.get("content") or scene.chat.get("refusal") or "")
    called = [block.name for block in whole.content if block.type == "tool_use"]
    assert called == [name for name, _ in scene.chat.get("tool_calls", ())]


def test_answer_is_the_same_for_the_synchronous_client() -> None:
    async def ask() -> Any:
        items, _, _ = ANSWERS["calls"]
        async with served(App(Stub(*unfold(answer(*items))), Settings())) as port:
            return await asyncio.to_thread(synchronous, f"http://127.0.0.1:{port}")

    def synchronous(base_url: str) -> Any:
        with anthropic.Anthropic(base_url=base_url, **_OPTIONS) as client:
            with client.messages.stream(**ASKED) as stream:
                said = "".join(stream.text_stream)
            return said, told(stream.get_final_message()), told(client.messages.create(**ASKED))

    said, final, whole = asyncio.run(ask())
    assert said == "Let me see."
    assert final == whole


async def test_pocket_model_answers_thinks_and_calls_tools() -> None:
    engine = assemble((), ("pocket",), Settings(), {})
    asked = {**ASKED, "model": "pocket", "extra_body": {"temperature": 0}}
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 400}
    offered = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}}
    async with before(engine) as client:
        for fields in ({}, thinks, offered):
            whole = await client.messages.create(**{**asked, **fields})
            _, final = await gathered(client, **{**asked, **fields})
            assert timeless(whole)["content"] == timeless(final)["content"]
            assert whole.usage.output_tokens > 0
            if fields is offered:
                (call,) = whole.content
                assert (call.type, call.name, whole.stop_reason) == (
                    "tool_use",
                    "weather",
                    "tool_use",
                )
                assert call.input.keys() <= {"city"}
        count = await client.messages.count_tokens(model="pocket", messages=asked["messages"])
        assert count.input_tokens == whole_input(await client.messages.create(**asked))
        (model,) = (await client.models.list()).data
        assert (model.id, model.display_name) == ("pocket", "pocket")


def whole_input(message: Any) -> int:
    """All tokens that were read, cached or not."""
    return int(message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0))


async def test_tool_result_reaches_the_model() -> None:
    def upstream(asked: Asked) -> Reply:
        done = any(message["role"] == "tool" for message in asked.json["messages"])
        scene = "text" if done else "call after text"
        return SCENES[scene].handler(asked)

    async with behind(upstream) as server, sdk(server.base_url) as client:
        messages: list[Any] = [*ASKED["messages"]]
        _, message = await gathered(client, tools=[TOOL])
        (call,) = [block for block in message.content if block.type == "tool_use"]
        messages.append({"role": "assistant", "content": message.content})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
        messages.append({"role": "user", "content": [result, {"type": "text", "text": "And?"}]})
        asked = {**ASKED, "messages": messages, "tools": [TOOL]}
        final = await client.messages.create(**asked)
        sent = server.up.asked[-1].json["messages"]
    assert final.content[0].text == "Grüße, 🌍!"
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    assert sent[1]["content"] == "Let me see."
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == call.id
    assert (sent[2]["content"], sent[3]["content"]) == ("12 degrees", "And?")


async def test_tool_runner_sends_the_whole_conversation_again() -> None:
    """It sends what is new in a message thread, which no server need hold."""

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """Get the weather in a city.

        Args:
            city: Which city.
        """
        return f"sunny in {city}"

    engine = assemble((), ("pocket",), Settings(), {})
    said = {"role": "user", "content": "What is the weather in Paris?"}
    async with before(engine) as client:
        runner = client.beta.messages.tool_runner(
            model="pocket",
            max_tokens=100,
            tools=[get_weather],
            messages=[said],
            extra_body={"temperature": 0},
        )
        last = await runner.until_done()
    assert last.content[0].text == "The weather in Paris: sunny."


# ---- models and counts -------------------------------------------------------------------


async def test_models_are_listed_and_found() -> None:
    async with before(Stub(models=("a", "org/b"))) as client:
        assert [model.id async for model in client.models.list()] == ["a", "org/b"]
        assert (await client.models.retrieve("org/b")).id == "org/b"
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.models.retrieve("c")
    assert caught.value.type == "not_found_error"


# ---- errors ------------------------------------------------------------------------------

REFUSALS: dict[int, tuple[str, str]] = {
    400: ("BadRequestError", "invalid_request_error"),
    401: ("AuthenticationError", "authentication_error"),
    402: ("PaymentRequiredError", "billing_error"),
    403: ("PermissionDeniedError", "permission_error"),
    404: ("NotFoundError", "not_found_error"),
    413: ("ContentTooLargeError", "request_too_large"),
    429: ("RateLimitError", "rate_limit_error"),
    500: ("InternalServerError", "api_error"),
    503: ("ServiceUnavailableError", "overloaded_error"),
    529: ("OverloadedError", "overloaded_error"),
}


@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_status_of_an_upstream_becomes_the_sdks_exception(wire) -> None:
    status = 0

    def refuse(_: Asked) -> Reply:
        return blocks.refusal(status, REFUSALS[status][1], "No, thank you.", "retry-after: 7")

    upstream: JSON = {"wire": wire, "pass_client_key": True}
    server_of = behind(refuse, **upstream)
    async with server_of as server, sdk(server.base_url, api_key="of-the-client") as client:
        for status, (name, kind) in REFUSALS.items():
            for stream in (False, True):
                with pytest.raises(anthropic.APIStatusError) as caught:
                    await client.messages.create(**ASKED, stream=stream)
                error = caught.value
                assert (type(error).__name__, error.type) == (name, kind)
                assert error.status_code == status
                assert error.api_message == "No, thank you."
                assert error.response.headers["retry-after"] == "7"
                assert error.request_id


async def test_invalid_request_names_the_field() -> None:
    async with before(Stub()) as client:
        with pytest.raises(anthropic.BadRequestError, match="temperature: must be at most 1"):
            await client.messages.create(**ASKED, extra_body={"temperature": 1.5})


async def test_error_in_a_stream_is_raised_after_what_came() -> None:
    *events, end = unfold(answer(Message("assistant", (Text("Hello"),))))
    assert isinstance(end, Finished)
    async with before(Stub(*events, Failed(Fault("overloaded", "Later.")))) as client:
        said = ""
        async with client.messages.stream(**ASKED) as stream:
            with pytest.raises(anthropic.APIStatusError, match="Later") as caught:
                async for text in stream.text_stream:
                    said += text
    assert (said, caught.value.type) == ("Hello", "overloaded_error")


@pytest.mark.parametrize("status", [429, 529])
async def test_client_obeys_retry_after_and_asks_again(status) -> None:
    times: list[float] = []
    hello = SCENES["text"].handler

    def answer_later(asked: Asked) -> Reply:
        times.append(time.monotonic())
        busy = blocks.refusal(status, REFUSALS[status][1], "Later.", "retry-after: 1")
        return busy if len(times) == 1 else hello(asked)

    async with (
        behind(answer_later, retries=0) as server,
        sdk(server.base_url, max_retries=2) as client,
    ):
        message = await client.messages.create(**ASKED)
    assert message.content[0].text == "Grüße, 🌍!"
    assert 0.9 < times[1] - times[0] < 20


# ---- the SDK in TypeScript ---------------------------------------------------------------
TYPESCRIPT = Path(sys.prefix, "agents", "node_modules", "@anthropic-ai", "sdk", "index.mjs")
"""Where the Makefile has npm install it."""
SCRIPT = Path(__file__).with_name("stream.mjs")


@pytest.mark.skipif(not TYPESCRIPT.exists(), reason="needs npm, by which `make test` installs it")
async def test_typescript_sdk_gathers_what_the_python_sdk_gathers() -> None:
    items = tuple(item for name in ("signed thinking", "calls") for item in ANSWERS[name][0])
    async with served(App(Stub(*unfold(answer(*items))), Settings())) as port:
        base_url = f"http://127.0.0.1:{port}"
        node = await asyncio.create_subprocess_exec(
            *("node", SCRIPT, TYPESCRIPT.as_uri(), base_url, json.dumps(ASKED)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, log = await node.communicate()
        assert node.returncode == 0, log.decode()
        async with sdk(base_url) as client:
            _, final = await gathered(client)
    found = json.loads(said)
    assert timeless(found["final"]) == timeless(final)
    assert found["heard"]["text"] == "Let me see."
    assert found["heard"]["thinking"] == "First."
    assert found["heard"]["json"] == '{"city": "Zürich"}{"input":"*** a\\n"}'
