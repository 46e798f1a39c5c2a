"""Failures as the official SDK sees them: its own exceptions, with the field and the code."""

import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from dragoman.core.interfaces import Secret
from dragoman.server.settings import Settings
from tests.mock import Asked, Reply, chunk, plain, stream
from tests.sdk.behind import Face, behind
from tests.sdk.speaking import answering, message

WIRES = pytest.mark.parametrize("wire", ["chat", "responses"])
FACES = pytest.mark.parametrize("face", ["async", "sync"])

REFUSALS: dict[int, type[openai.APIStatusError]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    404: openai.NotFoundError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
}


def refusing(status: int, *headers: str) -> Reply:
    error = {"message": "No, thank you.", "type": "odd_error", "param": "the.field", "code": "odd"}
    return plain(status, {"error": error}, *headers)


async def caught(ask: Callable[[], Any]) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as error:
        await ask()
    return error.value


@pytest.mark.parametrize(("wire", "upstream"), [("chat", "responses"), ("responses", "chat")])
async def test_upstream_status_becomes_the_sdks_exception(wire, upstream) -> None:
    status = 0

    def refuse(asked: Asked) -> Reply:
        return refusing(status, "retry-after: 7")

    async with behind(refuse, wire=upstream, api_key="sk-theirs-1", pass_client_key=True) as server:
        for status, kind in REFUSALS.items():
            for ask in (server.whole, server.raw):
                error = await caught(lambda ask=ask: ask(wire))
                assert (type(error), error.status_code) == (kind, status)
                assert "No, thank you." in error.message
                assert (error.param, error.code, error.type) == ("the.field", "odd", "odd_error")
                assert error.response.headers["retry-after"] == "7"
                assert error.request_id


@WIRES
async def test_invalid_request_names_the_field(wire: str) -> None:
    async with behind(refusing(500)) as server:
        error = await caught(lambda: server.whole(wire, temperature=9))
        assert type(error) is openai.BadRequestError
        assert error.param == "temperature"
        choice: Any = {"type": "function", "function": {"name": "no"}, "name": "no"}
        error = await caught(lambda: server.raw(wire, tool_choice=choice))
        assert type(error) is openai.BadRequestError
        assert str(error.param).startswith("tool_choice")
        assert server.up.asked == []


@WIRES
async def test_unreachable_upstream_is_502(wire: str) -> None:
    async with behind(refusing(500)) as server:
        gone = f"http://127.0.0.1:{server.up.port}/v1"
    async with behind(refusing(500), url=gone) as server:
        error = await caught(lambda: server.raw(wire))
    assert (error.status_code, error.code) == (502, "upstream_unreachable")


@WIRES
async def test_request_without_the_key_is_401(wire: str) -> None:
    settings = Settings(keys=(Secret("sk-ours"),))
    async with behind(answering(message("Hi.")), wire="responses", settings=settings) as server:
        error = await caught(lambda: server.whole(wire))
        assert type(error) is openai.AuthenticationError
        assert error.code == "invalid_api_key"
        async with server.sdk(api_key="sk-ours") as sdk:
            answer = await sdk.responses.create(model="mock", input="Go.")
            assert answer.output_text == "Hi."
    assert all("sk-ours" not in str(asked.headers) for asked in server.up.asked)


async def test_refused_upstream_key_is_502() -> None:
    async with behind(refusing(401)) as server:
        error = await caught(lambda: server.whole("chat"))
    assert (error.status_code, error.code) == (502, "upstream_authentication")


@FACES
async def test_stream_cut_by_the_upstream_is_an_error_after_its_text(face: Face) -> None:
    broken = stream(chunk({"content": "Once "}), chunk({"content": "upon"}), done=False)
    async with behind(broken, face=face) as server:
        with pytest.raises(openai.APIError, match="ended"):
            await server.raw("chat")
        events = await server.raw("responses")
    said = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(said) == "Once upon"
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code
    assert events[-1].response.status == "failed"


# ---- trying again ----------------------------------------------------------------------------


async def test_p25_retry_after_reaches_the_sdk_which_waits() -> None:
    """`Retry-After` is passed on at once: it is the client that waits."""
    times: list[float] = []
    hello = answering(message("Hi."))

    def answer(asked: Asked) -> Reply:
        times.append(time.monotonic())
        return refusing(429, "retry-after: 1") if len(times) == 1 else hello(asked)

    async with behind(answer, wire="responses") as server, server.sdk(max_retries=2) as sdk:
        assert (await sdk.responses.create(model="mock", input="Go.")).output_text == "Hi."
    first, second = times
    assert 0.9 < second - first < 20


# ---- models ----------------------------------------------------------------------------------


async def test_models_are_those_of_the_upstream() -> None:
    data = [
        {"id": "org/model-a", "object": "model", "created": 5, "owned_by": "org", "context": 9},
        {"id": "b", "owned_by": "me"},
    ]
    listing = plain(200, {"object": "list", "data": data})
    async with behind(refusing(500), probed=listing) as server, server.sdk() as sdk:
        found = [model.to_dict() async for model in sdk.models.list()]
        one = await sdk.models.retrieve("org/model-a")
        with pytest.raises(openai.NotFoundError) as error:
            await sdk.models.retrieve("c")
    more = {"guarantees": ["best-effort"]}
    assert found == [
        {**data[0], **more},
        {"id": "b", "object": "model", "created": 0, "owned_by": "me", **more},
    ]
    assert one.to_dict() == found[0]
    assert error.value.code == "model_not_found"
