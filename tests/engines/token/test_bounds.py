"""What an answer says of the demands on it: enforced, verified, best-effort; or it is refused."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.event import Started
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller
from dragoman.core.item import Message
from dragoman.core.request import (
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Request,
    Sampling,
)
from dragoman.core.response import Response
from dragoman.engines.token import TokenEngine, constraints, from_next_token
from dragoman.engines.token.constraints import Enforcer
from dragoman.formats.harmony import HARMONY
from dragoman.formats.markup.format import Markup
from dragoman.formats.prompt import ByteTokenizer
from tests.engines.token.chance import RandomModel
from tests.formats.grammar.accepts import ids

HERMES = Markup("hermes")
CONTROLS = (*HERMES.profile.controls, "<tool_call>", "</tool_call>")
TOKENS = ByteTokenizer(CONTROLS)
END = "<|im_end|>"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "day": {"type": "string", "pattern": "^[a-z]+$"}},
    "required": ["n"],
}
ROLL = FunctionTool("roll", parameters=SCHEMA)
STRICT = FunctionTool("roll", parameters=SCHEMA, strict=True)


def writes(text: str) -> Callable[[list[int], Any], int]:
    """A next-token function that writes a text, whatever it is asked."""
    said = ids(text + END, *CONTROLS)
    opening = list(b"assistant\n")

    def function(tokens: list[int], sampling: Any) -> int:
        start = _start(tokens, opening)
        return said[len(tokens) - start]

    return function


def _start(tokens: list[int], opening: list[int]) -> int:
    """Where the answer begins: after the last line that opens a turn of the assistant."""
    size = len(opening)
    return next(n for n in range(len(tokens), 0, -1) if tokens[n - size : n] == opening)


NO_THOUGHT = {str(ord("<")): -100.0}
"""A bias: a model that knows nothing would think for ever."""


def asked(**fields: Any) -> Request:
    return Request(model="m", items=(Message("user", "hi"),), **fields)


async def answered(
    model: Any, request: Request, caller: Caller | None = None, format: Any = HERMES
) -> tuple[Response, Started | None]:
    engine = TokenEngine(format, model, TOKENS)
    fold, started = Fold(), None
    try:
        async for event in engine.stream(request, *([caller] if caller else [])):
            fold.feed(event)
            started = event if isinstance(event, Started) else started
    finally:
        await engine.close()
    return fold.response, started


async def said(text: str, **fields: Any) -> Response:
    """What becomes of a text that a model says that cannot be bound."""
    return (await answered(from_next_token(writes(text)), asked(**fields)))[0]


CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
FORM = JSONSchema("x", SCHEMA, strict=True)
LOOSE = JSONSchema("x", SCHEMA)
FITS = '{\n "day": "mon", "n": 1\n}'

VERIFIED: list[tuple[str, dict[str, Any]]] = [
    (FITS, {"format": FORM}),
    (FITS, {"format": LOOSE}),
    ("{}", {"format": JSONObject()}),
    (CALL.format("roll", FITS), {"tools": (ROLL,), "tool_choice": "required"}),
    (CALL.format("roll", FITS), {"tools": (ROLL,), "tool_choice": NamedTool("roll")}),
    (CALL.format("roll", FITS), {"tools": (STRICT,)}),
    ("Hello.", {"tools": (STRICT,)}),
    ("yes", {"extra": {"chat": {"guided_choice": ["yes", "no"]}}}),
    ("aab", {"extra": {"chat": {"guided_regex": "a+b"}}}),
    ("1+1", {"extra": {"chat": {"guided_grammar": 'start: "1" ("+" "1")*'}}}),
]


@pytest.mark.parametrize(("text", "fields"), VERIFIED)
async def test_p34_unenforced_answer_is_verified(text, fields) -> None:
    response = await said(text, **fields)
    assert (response.status, response.error) == ("completed", None)
    assert response.guarantee == "verified"


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("Hello.", {"format": FORM}, "text"),
    ('{"n": "one"}', {"format": FORM}, "text"),
    ('{"n": 1, "day": "M1"}', {"format": FORM}, "text"),
    ("Hello.", {"tools": (ROLL,), "tool_choice": "required"}, "calls no tool"),
    (CALL.format("other", "{}"), {"tools": (ROLL,), "tool_choice": "required"}, "calls other"),
    (CALL.format("roll", "{}"), {"tools": (STRICT,)}, "does not fit"),
    (
        f"{CALL.format('roll', FITS)}\n{CALL.format('roll', FITS)}",
        {"tools": (STRICT,), "parallel_tool_calls": False},
        "several",
    ),
    ("maybe", {"extra": {"chat": {"guided_choice": ["yes", "no"]}}}, "text"),
    ("b", {"extra": {"chat": {"guided_regex": "a+"}}}, "text"),
    ("1+", {"extra": {"chat": {"guided_grammar": 'start: "1" ("+" "1")*'}}}, "text"),
]


async def test_an_answer_that_takes_too_long_to_verify_fails_for_its_grammar() -> None:
    grammar = {"guided_grammar": 'start: s "b"\ns: s s | "a"'}
    response = await said("a" * 1_500, extra={"chat": grammar})
    assert (response.status, response.error.code) == ("failed", "invalid_request")
    assert "takes too long for such a text" in response.error.message
    assert response.usage.output_tokens == 1_501


async def test_a_tenant_has_one_answer_verified_at_a_time_and_others_go_on(monkeypatch) -> None:
    running, most, leave = Counter[str](), Counter[str](), threading.Event()

    def slow(asked: Any, items: Any, fits: Any) -> None:
        text = items[0].text
        running[text] += 1
        most[text] = max(most[text], running[text])
        if text == "many":
            leave.wait(30)
        running[text] -= 1

    monkeypatch.setattr(constraints, "problem", slow)
    model, schema = from_next_token(writes("many")), {"format": JSONObject()}
    engine = TokenEngine(HERMES, model, TOKENS)
    request = asked(**schema)
    async with asyncio.timeout(30):
        waiting = [asyncio.ensure_future(_response(engine, request, "a")) for _ in range(12)]
        while not most["many"]:
            await asyncio.sleep(0.01)
        waiting.pop().cancel()  # who leaves a line is not waited for
        monkeypatch.setattr(constraints, "problem", lambda *_: None)
        assert (await _response(engine, request, "b")).guarantee == "verified"
        assert not any(each.done() for each in waiting)
        leave.set()
        found = await asyncio.gather(*waiting)
    assert {each.guarantee for each in found} == {"verified"}
    assert most["many"] == 1
    await engine.close()


async def _response(engine: TokenEngine, request: Request, tenant: str) -> Response:
    fold = Fold()
    async for event in engine.stream(request, Caller(tenant)):
        fold.feed(event)
    return fold.response


@pytest.mark.parametrize(("text", "fields", "what"), BROKEN)
async def test_p34_answer_that_violates_a_strict_demand_fails(text, fields, what) -> None:
    response = await said(text, **fields)
    assert response.status == "failed"
    assert (response.error.code, response.error.blame) == ("upstream_error", "upstream")
    assert what in response.error.message
    assert response.usage is not None


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Hello.", {"format": LOOSE}),
        ("[]", {"format": JSONObject()}),
        (CALL.format("roll", "{}"), {"tools": (ROLL,), "tool_choice": "required"}),
    ],
)
async def test_p34_answer_that_violates_another_demand_is_best_effort(text, fields) -> None:
    response = await said(text, **fields)
    assert (response.status, response.guarantee) == ("completed", "best-effort")
    assert "not what was demanded" in response.losses[-1].why


async def test_an_answer_cut_short_is_not_looked_at() -> None:
    response = await said(FITS, format=FORM, max_output_tokens=3)
    assert (response.status, response.guarantee) == ("incomplete", "best-effort")


async def test_no_demand_has_no_guarantee() -> None:
    for model in (from_next_token(writes("Hello.")), RandomModel(TOKENS.size, 1)):
        response, started = await answered(model, asked(max_output_tokens=5))
        assert response.guarantee is None
        assert started.guarantee is None


async def test_every_choice_is_bound_and_enforced_is_known_from_the_start() -> None:
    wanted = asked(
        format=JSONSchema("x", {"enum": ["a", "b", "c"]}),
        sampling=Sampling(n=5, seed=1, temperature=1.0, logit_bias=NO_THOUGHT),
    )
    response, started = await answered(RandomModel(TOKENS.size, 1), wanted)
    assert started.guarantee == response.guarantee == "enforced"
    texts = {item.text for item in response.output if isinstance(item, Message)}
    assert len(response.output) == 5
    assert texts <= {'"a"', '"b"', '"c"'}


async def test_a_stop_string_may_break_what_was_enforced() -> None:
    wanted = JSONSchema("x", {"const": "one two"})
    for stop, guarantee in ((" ", "best-effort"), ("three", "enforced")):
        sampling = Sampling(stop=(stop,), logit_bias=NO_THOUGHT)
        request = asked(format=wanted, sampling=sampling)
        response, _ = await answered(RandomModel(TOKENS.size, 1), request)
        assert (response.status, response.guarantee) == ("completed", guarantee)


@pytest.mark.parametrize(
    ("wire", "param"),
    [
        (None, "format.schema.properties.a.not"),
        ("chat", "response_format.json_schema.schema.properties.a.not"),
        ("responses", "text.format.schema.properties.a.not"),
    ],
)
async def test_p34_a_keyword_is_refused_by_its_name_on_the_clients_wire(wire, param) -> None:
    unknown = JSONSchema("x", {"properties": {"a": {"not": {}}}})
    for model in (RandomModel(TOKENS.size, 1), from_next_token(writes("{}"))):
        response, _ = await answered(model, asked(format=unknown), Caller(wire=wire))
        assert (response.error.code, response.error.param) == ("invalid_request", param)
        assert response.error.message.startswith(f"{param}: ")


async def test_invalid_grammar_is_refused_for_every_kind_of_model() -> None:
    tool = CustomTool("patch", syntax="lark", grammar="start: ((")
    for model in (RandomModel(TOKENS.size, 1), from_next_token(writes(""))):
        response, _ = await answered(
            model, asked(tools=(tool,)), Caller(wire="responses"), format=HARMONY
        )
        assert response.error.param == "tools[0].format.definition"


async def test_without_llguidance_only_verifiable_demands_are_accepted(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    bounds = Enforcer(TOKENS, scores=True)
    plain = asked(format=JSONSchema("x", {"type": "object"}, strict=True))
    bound = bounds.requirement(plain, HERMES.grammar(plain), frozenset())
    assert bound.constraint is None
    for request in (asked(format=FORM), asked(extra={"chat": {"guided_regex": "a"}})):
        with pytest.raises(FaultError, match=r"'\.\[local\]'"):
            bounds.requirement(request, HERMES.grammar(request), frozenset())
