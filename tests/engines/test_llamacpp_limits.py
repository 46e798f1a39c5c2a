"""The limits of what llama.cpp is asked for: samplers, alternatives of a token, and its caches."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.item import Message, Text
from dragoman.core.request import FunctionTool, JSONObject, Request, Sampling
from dragoman.engines import llamacpp as room
from dragoman.engines.llamacpp import check_request

ASKED = Request(model="tiny", items=(Message("user", "hi"),))


def test_samplers_in_short_have_the_same_bound() -> None:
    for samplers, most in (("k" * 10, None), ("k" * 11, "10 samplers")):
        asked = replace(ASKED, extra={"chat": {"samplers": samplers}})
        with nullcontext() if most is None else pytest.raises(FaultError, match=most):
            check_request(asked)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("samplers", ["top_k"], ["infill"]),
        ("samplers", "kt", "ki"),
        ("dry_multiplier", 0.0, 0.8),
        ("n_probs", 128, 129),
        ("n_predict", 9, 10),
        ("n_predict", None, -1),
        ("reasoning_budget_end_tag", "a" * 65_536, "a" * 65_537),
        ("reasoning_budget_end_tags", ["a" * 256] * 256, ["a" * 256] * 257),
        ("lora", {"a" * 65_536: 1}, {"a" * 65_537: 1}),
        ("reasoning_format", "auto", "nonsense"),
        ("reasoning_format", None, 3),
    ],
)
def test_what_takes_too_much_of_all_others_or_fails_there_is_refused(name, taken, refused) -> None:
    asked = replace(ASKED, max_output_tokens=9)
    check_request(replace(asked, extra={"chat": {name: taken}}))
    with pytest.raises(FaultError) as raised:
        check_request(replace(asked, extra={"chat": {name: refused}}))
    assert raised.value.fault.param == name


@pytest.mark.parametrize(
    "few", [{str(n): 1 for n in range(10_000)}, {"a" * 32_768: 1, "b" * 32_768: 1}]
)
def test_objects_with_many_names_are_refused_wherever_they_are(few) -> None:
    """llama.cpp compares each name with all before it, also once the client has left."""

    def asking(names: dict[str, Any]) -> dict[str, Request]:
        part = Text("hi", extra={"chat": {"x": [names]}})
        schema = {"type": "object", "default": names}
        return {
            "items": replace(ASKED, items=(Message("user", (part,)),)),
            "tools": replace(ASKED, tools=(FunctionTool("f", parameters=schema),)),
            "logit_bias": replace(ASKED, sampling=Sampling(logit_bias=names)),
        }

    for request in asking(few).values():
        check_request(request)
    for param, request in asking({**few, "c": 1}).items():
        with pytest.raises(FaultError) as raised:
            check_request(request)
        assert raised.value.fault.param == param


def test_a_template_is_given_long_texts() -> None:
    long = {"chat_template_kwargs": {"documents": "a" * 100_000}}
    check_request(replace(ASKED, extra={"chat": long}))


def test_many_alternatives_of_a_token_are_refused() -> None:
    for most, expected in ((128, nullcontext()), (129, pytest.raises(FaultError, match="128"))):
        asked = replace(ASKED, sampling=Sampling(logprobs=True, top_logprobs=most))
        with expected:
            check_request(asked)


async def test_demands_of_one_tenant_are_tried_beside_those_of_another(monkeypatch) -> None:
    server: Any = SimpleNamespace(
        address="http://127.0.0.1:9", marks=None, pause=None, close=lambda: None
    )
    engine, gate = room.LlamaCpp(server, Secret("k"), None, 4), threading.Event()

    def checked(self: room.LlamaCpp, request: Request, layout: Any) -> tuple[Request, tuple[()]]:
        if request.model == "slow":
            gate.wait(60)
        return request, ()

    monkeypatch.setattr(room.LlamaCpp, "_checked", checked)
    asked = replace(ASKED, format=JSONObject())
    slow = replace(asked, model="slow")
    held = [asyncio.ensure_future(engine.prepare(slow, Caller(tenant="a"))) for _ in range(40)]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        await engine.prepare(asked, Caller(tenant="b"))
        other = replace(ASKED, extra={"chat": {"top_k": 1}})
        await engine.prepare(other, Caller(tenant="a"))
        other = replace(other, model="slow")
        held += [asyncio.ensure_future(engine.prepare(other, Caller(tenant="a"))) for _ in range(9)]
        await asyncio.sleep(0.01)
        await engine.prepare(asked, Caller(tenant="b"))
    gate.set()
    await asyncio.gather(*held)
    await engine.close()


def test_what_llamacpp_keeps_and_reads_at_a_time_is_bounded(monkeypatch) -> None:
    library = SimpleNamespace(CommonParams=MagicMock, Server=lambda params: params)
    monkeypatch.setattr(room, "import_module", lambda name: library)
    options: dict[str, Any] = {"path": "x", "name": "x", "key": "x", "context": 0, "parallel": 1}
    params = room.start(room.Options(**options, threads=None, gpu_layers=None))
    assert params.cache_ram_mib * 2**20 == room.CACHE
    assert params.n_batch == params.n_ubatch == room.BATCH
