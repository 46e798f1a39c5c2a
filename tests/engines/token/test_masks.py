"""Masks that may be slow: who waits for them, and who does not."""

import asyncio
import threading
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dragoman.core.event import Delta
from dragoman.core.interfaces import Caller
from dragoman.core.request import JSONSchema, Request
from dragoman.engines.token import TokenEngine, constraints
from dragoman.engines.token.constraints import GrammarState, byte_compiler
from dragoman.formats.format import Grammar
from tests.engines.stage import answered
from tests.engines.token.asking import asked, serving
from tests.engines.token.models import Table
from tests.engines.token.plain import Plain

SOON = 10.0
RECURSIVE = 'start: s\ns: /[.!]/ | /[a-z]/ s "0"? | /[a-z]/ s "1"?'


class Guided(Plain):
    """Has a grammar that is named in the request."""

    def grammar(self, request: Request) -> Grammar | None:
        asked = request.format
        return written(asked.name) if isinstance(asked, JSONSchema) else None


def written(grammar: str) -> Grammar:
    return Grammar("start: @x", inner=(("x", grammar),))


def guided(grammar: str = RECURSIVE, **settings: Any) -> Request:
    return replace(asked(max_tokens=30, temperature=0, **settings), format=JSONSchema(grammar))


def engine_of() -> AbstractAsyncContextManager[TokenEngine]:
    return serving(Table(), format=Guided())


class Held:
    """Holds masks that are looked for until it is let go, and notes the threads."""

    def __init__(self, monkeypatch: Any) -> None:
        self.gate, self.inside = threading.Event(), threading.Event()
        self.threads: list[str] = []
        look = GrammarState.look

        def held(state: GrammarState) -> None:
            self.threads.append(threading.current_thread().name)
            self.inside.set()
            assert self.gate.wait(SOON)
            look(state)

        monkeypatch.setattr(GrammarState, "look", held)

    async def reached(self) -> None:
        async with asyncio.timeout(SOON):
            while not self.inside.is_set():
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("settings", [{}, {"logprobs": True}, {"n": 3}])
async def test_nobody_waits_for_the_masks_of_a_recursive_grammar(monkeypatch, settings) -> None:
    request = guided(**settings)
    async with engine_of() as engine:
        alone = await answered(engine, request)
        held = Held(monkeypatch)
        slow = [asyncio.ensure_future(answered(engine, request)) for _ in range(2)]
        await held.reached()
        assert (await answered(engine, asked(max_tokens=200))).usage.output_tokens == 200
        held.gate.set()
        for each in await asyncio.gather(*slow):
            assert (each.text, each.reasons) == (alone.text, alone.reasons)
    assert len(held.threads) >= 2 * alone.usage.output_tokens - 2
    assert set(held.threads) == {"dragoman-masks"}


async def test_masks_of_tenants_wait_for_none_of_others_and_of_a_tenant_for_its_own(
    monkeypatch,
) -> None:
    async def first(tenant: str, request: Request) -> bool:
        async with aclosing(engine.stream(request, Caller(tenant=tenant))) as stream:
            return any([isinstance(event, Delta) async for event in stream])

    async with engine_of() as engine:
        held = Held(monkeypatch)
        one = [asyncio.ensure_future(first("a", guided(RECURSIVE + " "))) for _ in range(3)]
        await held.reached()
        own = asyncio.ensure_future(first("a", guided(RECURSIVE + "  ")))
        other = asyncio.ensure_future(first("b", guided()))
        async with asyncio.timeout(SOON):
            while len(held.threads) < 2:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert len(held.threads) == 2, "a tenant has one at a time"
        held.gate.set()
        assert all(await asyncio.gather(*one, own, other))


async def test_masks_that_nobody_wants_any_more_are_not_computed(monkeypatch) -> None:
    async with engine_of() as engine:
        held = Held(monkeypatch)
        leaving = [asyncio.ensure_future(answered(engine, guided(n=4))) for _ in range(2)]
        await held.reached()
        for each in leaving:
            each.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        held.gate.set()
        assert (await answered(engine, guided())).usage.output_tokens
        before = len(held.threads)
        assert before < 8 + 31
    async with engine_of() as engine:
        again = Held(monkeypatch)
        waiting = asyncio.ensure_future(answered(engine, guided()))
        await again.reached()
        closing = asyncio.ensure_future(engine.close())
        assert (await waiting).status == "failed"  # closed, while its mask is computed
        again.gate.set()
        await closing


async def test_a_mask_that_cannot_be_computed_fails_its_answer_alone(monkeypatch) -> None:
    look = GrammarState.look

    def panics(state: GrammarState) -> None:
        if state.compiled.slow:
            raise RuntimeError("it panics")
        look(state)

    async with engine_of() as engine:
        monkeypatch.setattr(GrammarState, "look", panics)
        assert (await answered(engine, guided())).status == "failed"
        assert (await answered(engine, guided("start: /[a-z]{3}/"))).text


async def test_where_the_system_has_no_thread_the_model_computes_masks(monkeypatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "dragoman-masks":
            raise RuntimeError("can't start new thread")
        start(thread)

    async with engine_of() as engine:
        before = await answered(engine, guided())
        async with engine_of() as other:
            monkeypatch.setattr(threading.Thread, "start", refused)
            assert (await answered(other, guided())).text == before.text


def test_which_grammars_are_slow(monkeypatch) -> None:
    assert byte_compiler().compiled(written(RECURSIVE)).slow
    quick = byte_compiler().compiled(Grammar('start: "a"+ "b"'))
    state = quick.state()
    state.mask(np.zeros(257))
    assert not quick.slow
    monkeypatch.setattr(constraints, "MAX_QUICK", 0.0)
    state.mask(np.zeros(257))
    assert quick.slow
