"""Reasoning efforts that a server refuses for a model: asked for less, reported, and remembered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Finished, Started
from dragoman.core.interfaces import Caller
from dragoman.core.request import FunctionTool, ReasoningOptions
from dragoman.core.response import Response
from dragoman.engines import again
from dragoman.engines.again import is_about_effort, nearest
from dragoman.wire.registry import WIRES
from tests.engines.asking import HELLO, HELLO_STREAM, ask, asking, events, fault, remote
from tests.engines.receiving import Receiver
from tests.mock import Asked, Reply, message, plain, response, said

HIGH = asking(reasoning=ReasoningOptions("high"))
NO_THINKING = '"m" does not support thinking'
LEVELS = 'invalid reasoning value: "%s" (must be "high", "medium", "low", "max", or "none")'


def refused(text: str, status: int = 400, param: str | None = None) -> Reply:
    error = {"message": text, "type": "invalid_request_error", "param": param, "code": None}
    return plain(status, {"error": error})


class Picky:
    """A server of Chat whose models take these efforts alone, in the words of Ollama."""

    def __init__(self, *taken: str, levels: tuple[str, ...] = ()) -> None:
        self.taken, self.levels = taken, levels

    def __call__(self, asked: Asked) -> Reply:
        sent = asked.json.get("reasoning_effort")
        if self.levels and sent is not None and sent not in self.levels:
            return refused(LEVELS % sent)
        if sent is not None and sent not in self.taken:
            return refused(NO_THINKING)
        return HELLO_STREAM if asked.json.get("stream") else HELLO


def sent(up: Any) -> list[str | None]:
    return [asked.json.get("reasoning_effort") for asked in up.asked]


def lost(answer: Response) -> list[tuple[str, str]]:
    return [(loss.field, loss.action) for loss in answer.losses]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_effort_is_left_out_reported_and_remembered(stream) -> None:
    request = replace(HIGH, stream=stream)
    async with remote(Picky("none")) as (engine, up):
        for _ in range(2):
            answer = await ask(engine, request)
            assert (answer.text, lost(answer)) == ("Hello", [("reasoning.effort", "dropped")])
        assert sent(up) == ["high", None, None]
        first, second, _ = [{**each.json, "reasoning_effort": None} for each in up.asked]
        assert first == second, "nothing else is changed"
        # Neither another model, nor another effort.
        await ask(engine, replace(request, model="n"))
        answer = await ask(engine, replace(request, reasoning=ReasoningOptions("none")))
        assert (sent(up)[3:], answer.losses) == (["high", None, "none"], ())


async def test_a_refused_effort_is_asked_for_again_after_a_while(monkeypatch) -> None:
    async with remote(Picky()) as (engine, up):
        await ask(engine, HIGH)
        monkeypatch.setattr(again, "MEMORY", -1.0)
        await ask(engine, HIGH)
    assert sent(up) == ["high", None, "high", None]


async def test_refused_efforts_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(again, "MODELS", 3)
    async with remote(Picky()) as (engine, _):
        for number in range(8):
            await ask(engine, replace(HIGH, model=f"m{number}"))
            assert len(engine.refusals._efforts) <= 3


@pytest.mark.parametrize(
    ("wire", "body", "field"),
    [
        ("chat", {"reasoning_effort": "high"}, "reasoning_effort"),
        ("responses", {"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 9000}}, "thinking"),
        (
            "messages",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            "output_config.effort",
        ),
    ],
)
@pytest.mark.parametrize("size", [0, 100_000])
async def test_every_wire_names_the_lost_effort_as_its_own(wire, body, field, size) -> None:
    words = [{"role": "user", "content": "Go." + " " * size}]
    asked = {"model": "m", "max_tokens": 9, "messages": words, **body}
    if wire == "responses":
        asked = {"model": "m", "input": words, **body}
    request = WIRES[wire].decode_request(json.dumps(asked).encode())
    caller = Caller(wire=wire, size=size)
    async with remote(Picky()) as (engine, up):
        found = [await ask(engine, request, caller) for _ in range(2)]
        assert sent(up) == ["high", None, None]
    for answer in found:
        assert answer.text == "Hello"
        assert field in [name for name, _ in lost(answer)]
        assert lost(answer).count((field, "dropped")) <= 1


@pytest.mark.parametrize(
    ("asked", "taken", "asks"),
    [
        ("xhigh", ("high", "medium", "low"), ["xhigh", "high", "high"]),
        ("minimal", ("high", "medium", "low"), ["minimal", "low", "low"]),
        ("ultra", ("high", "medium", "low"), ["ultra", None, None]),
        ("xhigh", (), ["xhigh", "high", None, None]),
    ],
)
async def test_an_unknown_effort_becomes_the_nearest_that_is_listed(asked, taken, asks) -> None:
    request = asking(reasoning=ReasoningOptions(asked))
    async with remote(Picky(*taken, levels=("high", "medium", "low", "max", "none"))) as each:
        engine, up = each
        for _ in range(2):
            answer = await ask(engine, request)
            action = "dropped" if asks[-1] is None else "emulated"
            assert lost(answer) == [("reasoning.effort", action)]
        assert sent(up) == asks


@pytest.mark.parametrize(
    "reply",
    [
        refused("Incorrect temperature."),
        refused("max_tokens must be greater than thinking.budget_tokens, which is unsupported"),
        refused("Invalid `signature` in `thinking` block: it is not supported"),
        refused("Item 'rs_1' of type 'reasoning' is not supported without its following item."),
        refused(NO_THINKING, 500),
        refused(NO_THINKING, 401),
        refused(NO_THINKING, 429),
    ],
)
async def test_other_refusals_are_passed_on_at_once(reply) -> None:
    async with remote(lambda asked: reply) as (engine, up):
        await fault(engine, HIGH)
        assert sent(up) == ["high"]


async def test_a_request_without_an_effort_is_never_asked_again() -> None:
    for request in (asking(), asking(reasoning=ReasoningOptions(summary="auto"))):
        async with remote(lambda asked: refused(NO_THINKING)) as (engine, up):
            await fault(engine, request)
            assert len(up.asked) == 1


async def test_what_is_refused_without_an_effort_too_is_not_remembered() -> None:
    def reply(asked: Asked) -> Reply:
        return refused(NO_THINKING if "reasoning_effort" in asked.json else "No such tool.")

    async with remote(reply) as (engine, up):
        for _ in range(2):
            assert (await fault(engine, HIGH)).message == "No such tool."
        assert sent(up) == ["high", None] * 2


async def test_an_effort_that_is_refused_beside_tools_is_sent_without_them() -> None:
    def reply(asked: Asked) -> Reply:
        both = {"tools", "reasoning_effort"} <= asked.json.keys()
        return refused("Function tools with reasoning_effort are not supported.") if both else HELLO

    async with remote(reply) as (engine, up):
        await ask(engine, replace(HIGH, tools=(FunctionTool("f"),)))
        await ask(engine, HIGH)
        assert sent(up) == ["high", None, "high"]


async def test_what_one_tenant_is_refused_says_nothing_of_others() -> None:
    async with remote(Picky()) as (engine, up):
        for name in ("a", "b", "a"):
            await ask(engine, HIGH, Caller(tenant=name))
        assert sent(up) == ["high", None, "high", None, None]


async def test_a_cancelled_request_is_not_asked_again() -> None:
    async with remote(Picky()) as (engine, up):
        receiver = Receiver()
        receiver.start(engine, HIGH)
        await up.arrived.wait()
        receiver.cancel()
        await asyncio.sleep(0.1)
        assert (sent(up), receiver.events) == (["high"], [])


async def test_a_stream_that_has_begun_reports_the_loss_at_its_end() -> None:
    async def slow(asked: Asked) -> Reply:
        await asyncio.sleep(0.05)
        return Picky()(asked)

    async with remote(slow, header_hold=0.01) as (engine, _):
        found = await events(engine, replace(HIGH, stream=True))
    assert [type(event) for event in found].count(Started) == 1
    assert found[0].losses == ()
    assert isinstance(found[-1], Finished)
    assert [loss.field for loss in found[-1].losses] == ["reasoning.effort"]


async def test_a_busy_server_is_asked_again_as_configured() -> None:
    busy = [plain(429, {"error": {"message": "slow down"}}, "retry-after: 0")] * 2

    def reply(asked: Asked) -> Reply:
        return busy.pop() if "reasoning_effort" not in asked.json and busy else Picky()(asked)

    async with remote(reply, retries=2) as (engine, up):
        assert (await ask(engine, HIGH)).text == "Hello"
        assert sent(up) == ["high", None, None, None]


async def test_a_server_of_responses_is_asked_for_no_summary_either() -> None:
    def reply(asked: Asked) -> Reply:
        if "reasoning" in asked.json:
            text = "Unsupported parameter: 'reasoning.effort' is not supported with this model."
            return refused(text, param="reasoning.effort")
        return plain(200, response(said("Hello")))

    request = asking(reasoning=ReasoningOptions("high", "auto"))
    async with remote(reply, wire="responses") as (engine, up):
        for _ in range(2):
            answer = await ask(engine, request, Caller(wire="responses"))
            assert lost(answer) == [
                ("reasoning.effort", "dropped"),
                ("reasoning.summary", "dropped"),
            ]
        assert [asked.json.get("reasoning") for asked in up.asked][1:] == [None, None]


async def test_a_server_of_messages_is_asked_without_thinking() -> None:
    def reply(asked: Asked) -> Reply:
        if "thinking" in asked.json:
            return refused("adaptive thinking is not supported on this model")
        return plain(200, message({"type": "text", "text": "Hello"}))

    async with remote(reply, wire="messages") as (engine, up):
        assert lost(await ask(engine, HIGH)) == [("reasoning.effort", "dropped")]
        assert "output_config" not in up.asked[1].json
        # The thinking that a client of the same protocol asks for is its own business.
        up.forget()
        own = {"messages": {"thinking": {"type": "enabled", "budget_tokens": 9000}}}
        request = asking(reasoning=ReasoningOptions("high", extra=own))
        await fault(engine, request, Caller(wire="messages"))
        assert len(up.asked) == 1


@pytest.mark.parametrize(
    ("status", "param", "text"),
    [
        (400, "reasoning_effort", "Unsupported parameter: it is not supported with this model."),
        (400, None, "Unrecognized request argument supplied: reasoning_effort"),
        (400, None, "`reasoning_effort` is not supported with this model"),
        (422, None, "reasoning_effort: Extra inputs are not permitted"),
        (400, None, "Argument not supported on this model: reasoningEffort"),
        (400, None, "This model does not support the effort parameter."),
        (400, None, "Thinking level is not supported for this model."),
        (400, None, 'think value "medium" is not supported for this model'),
        (400, None, "Reasoning is mandatory for this endpoint and cannot be disabled."),
        (400, None, "invalid reasoning value: 'xhigh'"),
        (400, None, NO_THINKING),
        (500, None, "Unexpected reasoning effort high. Supported types are xhigh and low."),
        (400, None, "Budget 0 is invalid. This model only works in thinking mode."),
        (400, None, "The model does not support setting thinking_budget to 0."),
    ],
)
def test_words_of_servers_that_refuse_an_effort(status, param, text) -> None:
    assert is_about_effort(Fault("upstream_refused", text, "client", param, status=status))
    assert not is_about_effort(Fault("upstream_error", text, "client", param, status=status))


@pytest.mark.parametrize(
    ("asked", "text", "found"),
    [
        ("none", "Supported values are: 'minimal', 'low', 'medium', and 'high'.", "minimal"),
        ("max", "Input should be 'low', 'medium' or 'high'", "high"),
        ("xhigh", "Supported levels: max, high, low", "high"),
        ("high", "`reasoning_effort` must be one of `none`, `default`", None),
        ("high", "the temperature is too low", None),
    ],
)
def test_nearest_of_the_efforts_that_a_refusal_lists(asked, text, found) -> None:
    assert nearest(asked, text) == found
