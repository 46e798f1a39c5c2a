"""A summary of reasoning that is open: asked of any engine, it is the reasoning itself, said twice.

Clients of Responses (Codex, the AI SDK) show summaries and not the raw reasoning.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.event import Event
from dragoman.core.fold import fold
from dragoman.core.interfaces import Engine
from dragoman.core.item import Message, Summary, Thought
from dragoman.core.loss import Loss
from dragoman.core.request import ReasoningOptions, Request
from dragoman.engines.completions import CompletionServer
from dragoman.engines.find_format import by_name
from dragoman.engines.function import Function
from dragoman.engines.remote import Remote
from dragoman.engines.token import TokenEngine
from dragoman.formats.prompt import ByteTokenizer
from tests.engines.stage import heard
from tests.engines.token.models import Says
from tests.engines.token.plain import TOY
from tests.mock import Reply, chunk, completion, mock, plain, response, said, stream

ASKED = Request(
    model="m",
    items=(Message("user", "Six times seven?"),),
    reasoning=ReasoningOptions(summary="auto"),
    stream=True,
)
THOUGHT, ANSWER = "It is six times seven.", "42"
TAGGED = f"<think>{THOUGHT}</think>{ANSWER}"
EMULATED = Loss("reasoning.summary", "emulated", "the reasoning itself is given as its summary too")
WHOLE = {"role": "assistant", "reasoning_content": THOUGHT, "content": ANSWER}
PIECES: list[dict[str, Any]] = [
    {"reasoning_content": THOUGHT[:6]},
    {"reasoning_content": THOUGHT[6:]},
    {"content": ANSWER},
]


def raw(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"id": "x", "choices": [{"text": text, "index": 0, "finish_reason": finish}]}


@asynccontextmanager
async def before(reply: Reply, kind: Callable[[str], Engine]) -> AsyncIterator[Engine]:
    async with mock(reply) as up:
        engine = kind(up.base_url)
        yield engine
        await engine.close()


@asynccontextmanager
async def alone(engine: Engine) -> AsyncIterator[Engine]:
    yield engine
    await engine.close()


def chat(url: str) -> Engine:
    return Remote(url, wire="chat")


ENGINES: dict[str, Callable[[], AbstractAsyncContextManager[Engine]]] = {
    "chat": lambda: before(stream(*map(chunk, PIECES), chunk({}, "stop")), chat),
    "chat, whole": lambda: before(plain(200, completion(WHOLE)), chat),
    "think tags": lambda: before(stream(chunk({"content": TAGGED}), chunk({}, "stop")), chat),
    "completions": lambda: before(
        stream(raw(TAGGED[:12]), raw(TAGGED[12:]), raw("", "stop")),
        lambda url: CompletionServer(url, format="hermes"),
    ),
    "tokens": lambda: alone(
        TokenEngine(
            by_name("hermes"), Says(TAGGED + "<|im_end|>", size=TOY.size), ByteTokenizer(["<|x|>"])
        )
    ),
    "function": lambda: alone(Function(lambda **asked: completion(WHOLE))),
}


async def answers(name: str, request: Request = ASKED) -> list[Event]:
    async with ENGINES[name]() as engine:
        return await heard(engine, request)


@pytest.mark.parametrize("name", ENGINES)
async def test_open_reasoning_is_given_as_the_summary_and_reported(name) -> None:
    answer = fold(await answers(name))
    thought, *_ = answer.output
    assert thought.content == (Thought(THOUGHT),)
    assert thought.summary == (Summary(THOUGHT),)
    assert answer.text == ANSWER
    assert [loss for loss in answer.losses if loss.field.startswith("reasoning")] == [EMULATED]


@pytest.mark.parametrize("options", [None, ReasoningOptions("low")], ids=["nothing", "effort"])
@pytest.mark.parametrize("name", ENGINES)
async def test_no_summary_is_given_where_none_is_asked_for(name, options) -> None:
    answer = fold(await answers(name, replace(ASKED, reasoning=options)))
    thought, *_ = answer.output
    assert (thought.content, thought.summary) == ((Thought(THOUGHT),), ())


async def test_a_server_that_summarises_itself_is_left_alone() -> None:
    own = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Multiplying."}],
        "content": [{"type": "reasoning_text", "text": THOUGHT}],
    }
    reply = plain(200, response(own, said(ANSWER)))
    async with before(reply, lambda url: Remote(url, wire="responses")) as engine:
        answer = fold(await heard(engine, ASKED))
    thought, *_ = answer.output
    assert thought.summary == (Summary("Multiplying."),)
    assert EMULATED not in answer.losses
