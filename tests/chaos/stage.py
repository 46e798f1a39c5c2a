"""Plays rows of the table to whoever asks, and checks what an engine made of them.

The upstream of a stage is a raw socket server that plays the row it was last given; a row about
an idle connection first serves one ordinary answer on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import asdict

from dragoman.core.event import Event, Failed, Started
from dragoman.core.fold import fold
from dragoman.core.item import CustomToolCall, FunctionCall, Item, Message, Reasoning
from dragoman.core.lifecycle import check
from dragoman.core.request import FunctionTool, Request, StreamOptions
from dragoman.core.response import Response, Usage
from dragoman.engines.remote import Remote
from dragoman.wire import error as wire_error
from tests.chaos.cases import Case
from tests.engines.receiving import received
from tests.mock import Asked, Mock, Reply, completion, message, mock, plain, response, said

WARM_UP = "warm up"
"""What a request says that is only there to leave an idle connection behind."""


WARM = {
    "completions": completion({"content": "ok"}),
    "responses": response(said("ok")),
    "messages": message({"type": "text", "text": "ok"}),
}
"""The answers to it, by the end of the path."""


class Stage:
    """A mock that plays one row after the other."""

    mock: Mock

    def __init__(self) -> None:
        self.case: Case | None = None
        self._stale: set[int] = set()

    @property
    def base_url(self) -> str:
        return self.mock.base_url

    def play(self, case: Case) -> None:
        """Give this row to all who ask from now on."""
        self.case = case
        self.mock.forget()

    def reply(self, asked: Asked) -> Reply:
        if WARM_UP.encode() in asked.body:
            self._stale.add(asked.connection)
            return plain(200, WARM[asked.path.rpartition("/")[2]])
        case = self.case
        if case.warm and asked.connection in self._stale:
            self._stale.discard(asked.connection)
            return Reply([])
        return Reply(list(case.pieces), pause=case.pause, reset=case.reset)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """A stage with its server running."""
    made = Stage()
    async with mock(made.reply) as made.mock:
        yield made


# ---- an engine on the stage ----------------------------------------------------------------

TOOLS = tuple(FunctionTool(name) for name in ("weather", "time", "now", "say"))


def asking(text: str = "Go.", *, stream: bool = True) -> Request:
    """A request that every row can be the answer to."""
    return Request(
        model="mock",
        items=(Message("user", text),),
        tools=TOOLS,
        stream=stream,
        stream_options=StreamOptions(include_usage=True) if stream else None,
    )


async def perform(stage: Stage, case: Case, engine: Remote, *, stream: bool) -> None:
    """Play a row through an engine and check every word of what it expects."""
    if case.warm:
        await received(engine, asking(WARM_UP, stream=False))
    stage.play(case)
    events = await received(engine, asking(stream=stream))
    check(events)
    assert len(stage.mock.asked) == case.expected.asks
    assert outcome(events) == expected_outcome(case, fold(events))


def outcome(events: list[Event]) -> dict[str, Any]:
    """What came of an answer, in the words of the table."""
    whole = fold(events)
    told: dict[str, Any] = {
        "end": whole.status,
        "text": whole.text,
        "reasoning": whole.reasoning,
        "refusal": whole.refusal,
        "calls": tuple(_call(call) for call in whole.calls),
        "order": tuple(_kind(item) for item in whole.output),
        "usage": _usage(whole.usage),
        "begun": isinstance(events[0], Started),
    }
    match events[-1]:
        case Failed(fault=fault):
            told["end"] = f"failed:{fault.code}"
            told["status"] = wire_error.status(fault)
            told["says"] = fault.message
            told["retry_after"] = fault.retry_after
        case _:
            told["finish"] = whole.reasons[0]
    return told


def expected_outcome(case: Case, whole: Response) -> dict[str, Any]:
    """The same for what the row expects; ids that are to be derived are taken from the answer's."""
    expected = case.expected
    told: dict[str, Any] = {
        "end": expected.end,
        "text": expected.text,
        "reasoning": expected.reasoning,
        "refusal": expected.refusal,
        "calls": named(expected.calls, whole.id),
        "order": expected.order,
        "usage": expected.usage,
        "begun": expected.begun,
    }
    if expected.good:
        return told | {"finish": expected.finish}
    assert whole.error is not None, whole
    assert expected.says in whole.error.message
    assert "<" not in whole.error.message
    return told | {
        "status": expected.status,
        "says": whole.error.message,
        "retry_after": expected.retry_after,
    }


def named(
    calls: tuple[tuple[str | None, str, str], ...], id: str
) -> tuple[tuple[str, str, str], ...]:
    """Calls with their ids; a missing one is derived from the answer's id and the call's place."""
    return tuple(
        (given or f"call_{id}_{place}", name, arguments)
        for place, (given, name, arguments) in enumerate(calls)
    )


def _call(call: FunctionCall | CustomToolCall) -> tuple[str, str, str]:
    said = call.arguments if isinstance(call, FunctionCall) else call.input
    return call.call_id, call.name, said


def _kind(item: Item) -> str:
    match item:
        case Message():
            return "message"
        case Reasoning():
            return "reasoning"
        case FunctionCall():
            return "function_call"
        case _:
            return type(item).__name__


def _usage(usage: Usage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    return {name: n for name, n in asdict(usage).items() if n is not None and name != "extra"}
