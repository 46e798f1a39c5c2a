"""Answers of models without a thought of their own, or with few, fit what is demanded of them.

Random schemas and regular expressions, every length in them bounded: an answer that says it is
complete is valid, and nearly all are.
"""

import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from dragoman.core.event import Delta
from dragoman.core.fold import Fold
from dragoman.core.item import FunctionCall, Message
from dragoman.core.request import FunctionTool, JSONSchema, Request, Sampling
from dragoman.core.response import Response
from dragoman.engines.pocket import pocket
from dragoman.engines.token import TokenEngine
from dragoman.formats.harmony import HARMONY
from dragoman.formats.markup.format import Markup
from dragoman.formats.prompt import ByteTokenizer
from tests.engines.token.chance import RandomModel
from tests.formats.grammar.schemas import schema
from tests.samples import samples

COUNT = samples(25, 250)
"""Of each kind, in each format, greedy and by chance: a hundred and a thousand."""
LIMIT = 6_000

HERMES = Markup("hermes")
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
HARMONY_CONTROLS = (
    *("<|channel|>", "<|message|>", "<|start|>", "<|end|>"),
    *("<|return|>", "<|call|>", "<|constrain|>"),
)
VOCABULARIES = {
    "harmony": (HARMONY, ByteTokenizer(HARMONY_CONTROLS)),
    "hermes": (HERMES, ByteTokenizer((*HERMES.profile.controls, *TAGS))),
}


@pytest.fixture(params=[*VOCABULARIES, "pocket"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[TokenEngine]:
    if request.param == "pocket":
        engine: TokenEngine = pocket()
    else:
        format, tokenizer = VOCABULARIES[request.param]
        engine = TokenEngine(format, RandomModel(tokenizer.size, seed=5), tokenizer)
    yield engine
    await engine.close()


def asked(seed: int, temperature: float, **fields: Any) -> Request:
    return Request(
        model="m",
        items=(Message("user", f"request {seed}"),),
        sampling=Sampling(temperature=temperature, seed=seed),
        max_output_tokens=LIMIT,
        **fields,
    )


def thoughts(engine: TokenEngine, request: Request) -> dict[str, float]:
    """A bias: thoughts are free, and a model that knows nothing would not come to their end."""
    tokenizer = engine.tokenizer
    if engine.format is HARMONY:
        return {str(tokenizer.controls["<|end|>"]): 15.0}
    if engine.name != "pocket" or request.tools:  # calls begin as thoughts do
        return {}
    return {str(id): -100.0 for id in range(tokenizer.size) if tokenizer.piece(id)[:1] == b"<"}


def count(engine: TokenEngine) -> int:
    """How many answers to ask for; the pocket model, which computes more, gives fewer."""
    return COUNT // 5 if engine.name == "pocket" else COUNT


async def answer(engine: TokenEngine, request: Request) -> Response:
    """The whole answer; what was streamed of its text and calls is what stands in it."""
    fold = Fold()
    pieces: dict[int, str] = {}
    request = replace(
        request, sampling=replace(request.sampling, logit_bias=thoughts(engine, request))
    )
    async for event in engine.stream(request):
        fold.feed(event)
        if isinstance(event, Delta):
            pieces[event.index] = pieces.get(event.index, "") + event.data
    for index, item in enumerate(fold.response.output):
        said = item.arguments if isinstance(item, FunctionCall) else getattr(item, "text", "")
        assert pieces.get(index, "") == said
    return fold.response


def enough(statuses: Counter[str]) -> bool:
    """Whether so many answers came to their end as must."""
    assert statuses.keys() <= {"completed", "incomplete"}
    return statuses["completed"] >= 0.95 * statuses.total()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_p34_every_complete_answer_fits_its_schema(
    engine: TokenEngine, temperature: float
) -> None:
    statuses = Counter[str]()
    for seed in range(count(engine)):
        wanted = schema(random.Random(seed))
        form = JSONSchema("x", wanted, strict=True)
        response = await answer(engine, asked(seed, temperature, format=form))
        statuses[response.status] += 1
        assert response.guarantee == "enforced"
        if response.status == "completed":
            jsonschema.validate(json.loads(response.text), wanted)
            assert not response.calls
    assert enough(statuses)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_r4_w21_every_call_that_is_required_is_made_and_fits(
    engine: TokenEngine, temperature: float
) -> None:
    statuses, several = Counter[str](), 0
    for seed in range(count(engine)):
        schemas = {name: schema(random.Random(f"{seed}{name}"), depth=2) for name in ("a", "b")}
        tools = tuple(FunctionTool(name, None, s, strict=True) for name, s in schemas.items())
        request = asked(seed, temperature, tools=tools, tool_choice="required")
        response = await answer(engine, request)
        statuses[response.status] += 1
        if response.status == "completed":
            assert response.reasons == ("tool_calls",)
            assert response.calls
            several += len(response.calls) > 1
            for call in response.calls:
                assert isinstance(call, FunctionCall)
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert enough(statuses)
    assert several or engine.format is not HERMES  # harmony ends at its first call


async def test_p35_beside_tools_an_answer_is_a_call_or_fits_the_schema(engine: TokenEngine) -> None:
    statuses, kinds = Counter[str](), Counter[str]()
    for seed in range(count(engine)):
        wanted = schema(random.Random(seed), depth=1)
        tool = FunctionTool("f", None, schema(random.Random(-seed - 1), depth=1), strict=True)
        form = JSONSchema("x", wanted, strict=True)
        response = await answer(engine, asked(seed, 1.0, format=form, tools=(tool,)))
        statuses[response.status] += 1
        if response.status == "completed":
            for call in response.calls:
                assert isinstance(call, FunctionCall)
                assert tool.parameters is not None
                jsonschema.validate(json.loads(call.arguments), tool.parameters)
            if not response.calls:
                jsonschema.validate(json.loads(response.text), wanted)
            kinds["call" if response.calls else "text"] += 1
    assert enough(statuses)
    assert len(kinds) == 2 or engine.name == "pocket"  # the model had the choice


def pattern(chance: random.Random, depth: int = 2) -> str:
    """A regular expression of texts that end."""
    made = chance.randrange(7 if depth else 4)
    match made:
        case 0:
            return re.escape(chance.choice(["yes", "a/b", "§ 1.", '"x"', "né\n"]))
        case 1:
            return chance.choice(["[a-z]", "[^0-9x]", "\\d", "[A-F]", "."])
        case 2:
            return chance.choice(["[0-9]{1,4}", "[a-c]?", "(?:ab|cd|e)"])
        case 3:
            return chance.choice(["x{2}", "(?:foo|bar){1,3}", "[äöü]{0,3}"])
        case 4:
            return f"(?:{pattern(chance, depth - 1)}|{pattern(chance, depth - 1)})"
        case 5:
            return f"(?:{pattern(chance, depth - 1)}){{0,3}}"
        case _:
            return pattern(chance, depth - 1) + pattern(chance, depth - 1)


async def test_every_complete_answer_is_of_its_regular_expression(engine: TokenEngine) -> None:
    statuses = Counter[str]()
    for seed in range(count(engine)):
        chance = random.Random(seed)
        wanted = "".join(pattern(chance) for _ in range(3))
        extra = {"chat": {"guided_regex": wanted}}
        response = await answer(engine, asked(seed, float(seed % 2), extra=extra))
        statuses[response.status] += 1
        if response.status == "completed":
            assert re.fullmatch(wanted, response.text), (wanted, response.text)
    assert enough(statuses)


async def test_a_choice_and_a_grammar_bind_the_whole_answer(engine: TokenEngine) -> None:
    texts = ["yes", "no", "no, never", "né"]
    sums = 'start: N ("+" N){1,3}\nN: /[0-9]{1,2}/'
    for seed in range(count(engine)):
        chosen = await answer(engine, asked(seed, 1.0, extra={"chat": {"guided_choice": texts}}))
        assert chosen.status == "incomplete" or chosen.text in texts
        summed = await answer(engine, asked(seed, 1.0, extra={"chat": {"guided_grammar": sums}}))
        assert summed.status == "incomplete" or re.fullmatch(r"\d\d?(\+\d\d?){1,3}", summed.text)
