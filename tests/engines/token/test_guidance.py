"""Grammars over vocabularies, and the answers of random models under them."""

import asyncio
import gc
import json
import random
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import Delta, Event, Finished
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller
from dragoman.core.item import FunctionCall, Message
from dragoman.core.request import FunctionTool, JSONSchema, Request, Sampling
from dragoman.core.response import Response
from dragoman.engines.pocket import pocket
from dragoman.engines.token import TokenEngine, constraints
from dragoman.engines.token.constraints import Allowance, GrammarCompiler, followed, matches
from dragoman.formats.format import Grammar, Marker
from dragoman.formats.grammar.demand import JSONBody, Lark, Regex
from dragoman.formats.grammar.lark import Writer
from dragoman.formats.harmony import HARMONY
from dragoman.formats.markup.format import Markup
from dragoman.formats.prompt import ByteTokenizer
from tests.engines.token.chance import RandomModel
from tests.formats.grammar.schemas import schema
from tests.samples import samples

END = "<|end|>"
BYTES = ByteTokenizer([END])
GUIDE = GrammarCompiler(BYTES)


class Words:
    """A vocabulary with words in it; text is encoded by the longest that fit."""

    words = (b'{"', b"name", b'": "', b'"}', b"na", b"me", b"yes", b"ye")
    size = 256 + len(words) + 1
    controls = {END: size - 1}

    def encode(self, text: str) -> list[int]:
        data, ids = text.encode(), []
        while data:
            best = max((w for w in self.words if data.startswith(w)), key=len, default=data[:1])
            ids.append(256 + self.words.index(best) if best in self.words else best[0])
            data = data[len(best) :]
        return ids

    def piece(self, id: int) -> bytes:
        if id < 256:
            return bytes([id])
        return END.encode() if id == self.size - 1 else self.words[id - 256]


def allowed(motion: object, size: int = BYTES.size) -> bytes:
    """The bytes that may come next, as a mask leaves them; `#` for the end."""
    scores = np.zeros(size)
    motion.mask(scores)
    return bytes(id if id < 256 else ord("#") for id in np.flatnonzero(scores == 0))


def test_mask_allows_only_the_grammars_next_bytes() -> None:
    motion = GUIDE.constrain(Grammar('start: "a" | "bc"'))
    assert allowed(motion) == b"ab"
    motion.accept(b"b")
    assert allowed(motion) == b"c"
    assert not motion.over
    motion.accept(b"c")
    assert motion.over
    assert motion.accepting


def test_a_mask_bars_ids_that_the_vocabulary_does_not_have() -> None:
    scores = np.zeros(BYTES.size + 50, dtype=np.float32)
    GUIDE.constrain(Grammar("start: /(?s:.*)/")).mask(scores)
    assert np.isneginf(scores[BYTES.size :]).all()
    assert scores[ord("x")] == 0


def test_control_tokens_are_no_text() -> None:
    motion = GUIDE.constrain(Grammar("start: /(?s:.*)/"))
    scores = np.zeros(BYTES.size)
    motion.mask(scores)
    assert np.isneginf(scores[BYTES.controls[END]])
    assert scores[ord("<")] == 0
    motion.accept(END.encode())  # spelled out it is text like any other


def test_ends_are_those_of_the_grammar_else_those_of_the_engine_else_none() -> None:
    ended = Grammar('start: "a" end_1', (Marker("end_1", END, end=True),))
    other = Grammar('start: "a" (end_1 | end_2)', (
        Marker("end_1", "<|other|>", end=True), Marker("end_2", END, end=True),
    ))  # fmt: skip
    unknown = Grammar('start: "a" end_1', (Marker("end_1", "<|other|>", end=True),))
    for grammar, ends in ((ended, ()), (other, ()), (unknown, (256,))):
        motion = GUIDE.constrain(grammar, frozenset(ends))
        motion.accept(b"a")
        assert (motion.over, motion.accepting) == (False, False)
        assert list(motion.forced()) == [256]
    motion = GUIDE.constrain(unknown)
    motion.accept(b"a")
    assert motion.over


def test_forced_tokens_are_those_the_vocabulary_would_write() -> None:
    """What must come is encoded as text is: the model sees the tokens it was trained on."""
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["yes", "no"]}},
        "required": ["name"],
    }
    writer = Writer()
    grammar = writer.grammar(writer.body(JSONBody("", {**schema, "additionalProperties": False})))
    words = Words()
    motion = GrammarCompiler(words).constrain(grammar)
    forced = motion.forced()
    text = b"".join(map(words.piece, forced))
    assert text == b'{"name": "'
    assert list(forced) == words.encode(text.decode())
    motion.accept(forced)
    assert not motion.forced()
    motion.accept(words.encode("yes"))
    assert list(motion.forced()) == words.encode('"}')


@pytest.mark.parametrize("text", ["a{5000}", "a{9,}", "a+", "a*b"])
def test_what_a_client_has_repeated_is_not_looked_for_to_its_end(text) -> None:
    """It may be millions of bytes, or have no end: all of the process would wait."""
    writer, lark = Writer(), f"start: {'B ' * 300}\nB: /{text}/"
    motion = GUIDE.constrain(writer.grammar(writer.body(Lark("", lark))))
    assert not motion.forced()


def test_a_token_that_may_grow_is_not_forced() -> None:
    """After `ye`, `s` must come; but had `yes` been meant, it would have been one token."""
    words = Words()
    motion = GrammarCompiler(words).constrain(Grammar('start: "yes" | "no"'))
    assert not motion.forced()
    scores = np.zeros(words.size)
    motion.mask(scores)
    assert {words.piece(int(id)) for id in np.flatnonzero(scores == 0)} == {
        b"yes",
        b"ye",
        b"y",
        b"n",
    }


def test_token_outside_the_grammar_is_a_fault() -> None:
    motion = GUIDE.constrain(Grammar('start: "a"'))
    with pytest.raises(FaultError, match="lost its way") as raised:
        motion.accept(b"b")
    assert raised.value.fault.blame == "server"
    for again in (lambda: motion.mask(np.zeros(BYTES.size)), motion.forced):
        with pytest.raises(FaultError):
            again()


def test_p34_invalid_demand_is_reported_by_its_field() -> None:
    for body, param in (
        (Regex("guided_regex", "a(?=b)"), "guided_regex"),
        (Lark("tools[0].grammar", "start: (((("), "tools[0].grammar"),
        (JSONBody("format.schema", {"$ref": "https://example.com/x"}), "format.schema"),
        (JSONBody("format.schema", {"type": "string", "pattern": "(a)\\1"}), "format.schema"),
        (
            JSONBody("format.schema", {"minLength": 2, "maxLength": 1, "type": "string"}),
            "format.schema",
        ),
    ):
        writer = Writer()
        good = writer.body(Regex("other", "x"))
        grammar = writer.grammar(f"{good} {writer.body(body)} {writer.end([END])}")
        with pytest.raises(FaultError) as raised:
            GUIDE.constrain(grammar)
        fault = raised.value.fault
        assert (fault.code, fault.param) == ("invalid_request", param)
        assert len(fault.message) < 400


def test_p34_a_demand_that_proves_too_large_on_the_way_is_not_our_fault() -> None:
    motion = GUIDE.constrain(Grammar("start: /((a{1,1000}){1,1000}){1,1000}/"))
    with pytest.raises(FaultError) as raised:
        for _ in range(1_000):
            motion.mask(np.zeros(BYTES.size))
            motion.accept(b"a")
    assert raised.value.fault.code == "invalid_request"


MANY_WAYS = 's: s s | "a"'


def test_a_text_that_can_be_read_in_many_ways_is_given_up() -> None:
    """Each token takes longer than the last, for which other threads, or sequences, wait."""
    lark, start, read = f'start: s "b"\n{MANY_WAYS}', time.thread_time(), 0
    motion = GUIDE.constrain(Grammar(lark))
    with pytest.raises(FaultError, match="takes too long for such a text") as raised:
        while read < 2_000:
            motion.mask(np.zeros(BYTES.size))
            motion.accept(b"a")
            read += 1
    assert (raised.value.fault.code, read > 100) == ("invalid_request", True)
    allowance = Allowance()
    for _ in range(9):  # as many choices
        with pytest.raises(FaultError, match="takes too long for such a text"):
            matches(Lark("guided_grammar", lark), "a" * 2_000, allowance)
    assert time.thread_time() - start < 3 * constraints.MAX_SLOW + read * constraints.PER_MASK


def test_a_row_of_the_parser_that_is_too_long_is_the_fault_of_the_grammar() -> None:
    grammar = Grammar('start: s "c"\ns: "a" s | "b"')
    assert followed(grammar, "a" * 900 + "b") is not None
    with pytest.raises(FaultError, match="too large") as raised:
        followed(grammar, "a" * 3_000 + "b")
    assert raised.value.fault.code == "invalid_request"


def test_long_texts_of_recursive_grammars_hold_up_nobody() -> None:
    """At one byte all ends that has begun, and meanwhile no other thread runs."""
    grammar = Lark("guided_grammar", 'start: s\ns: "a" s | "a" s "b" | "!"')
    started, waited = time.thread_time(), time.perf_counter()
    for count, problem in ((32_000, "too large"), (128_000, "takes too long for such a text")):
        with pytest.raises(FaultError, match=problem) as raised:
            matches(grammar, "a" * count + "!")
    assert raised.value.fault.code == "invalid_request"
    assert time.thread_time() - started < (time.perf_counter() - waited) / 2, "in this process"
    left = Lark("guided_grammar", 'start: s\ns: s "," x | x\nx: /[a-z]+/')
    assert matches(left, "abc," * 20_000 + "abc")
    assert not matches(left, "abc," * 20_000)
    assert not matches(left, "abc," * 20_000 + "!")
    assert not matches(left, "\ud800," * 2_000)


@pytest.mark.parametrize(
    ("lark", "text"),
    [
        ('start: expr\nexpr: expr "+" expr | expr "*" expr | /[0-9]/', "1+2*3+" * 40 + "1"),
        ('start: s\ns: /[a-z]/ s | ""', "a" * 500),
        ('start: s\ns: "a" "," s | "a"', "a," * 500 + "a"),
        ("start: /[a-z]+/", "a" * 500_000),
    ],
)
def test_usual_grammars_are_followed_to_their_end(lark, text) -> None:
    motion = GUIDE.constrain(Grammar(lark))
    for byte in text[:1_000].encode():
        motion.mask(np.zeros(BYTES.size))
        motion.accept([byte])
    assert matches(Lark("guided_grammar", lark), text)
    assert not matches(Lark("guided_grammar", lark), text + "!")


def test_the_model_does_not_wait_for_a_large_grammar() -> None:
    start = time.thread_time()
    motion = GUIDE.constrain(Grammar("start: " + " | ".join(f'"{n}"' for n in range(5_000))))
    compiled = time.thread_time()
    motion.mask(np.zeros(BYTES.size))
    assert time.thread_time() - compiled < (compiled - start) / 2


def test_invalid_combined_grammar_is_reported() -> None:
    with pytest.raises(FaultError, match=r"^The constraint: line 1"):
        GUIDE.constrain(Grammar("start: missing"))


def test_compiled_grammars_are_bounded_by_the_memory_they_take(monkeypatch) -> None:
    guide = GrammarCompiler(ByteTokenizer())
    small = Grammar('start: "a"')
    guide.compiled(small, tenant="careful")
    monkeypatch.setattr(constraints, "MAX_KEPT", 1_000_000)
    for number in range(6):
        choices = " | ".join(f'"{number}-{each}"' for each in range(1_000))
        guide.compiled(Grammar(f"start: {choices}"), tenant="greedy")
        kept = {tenant: list(each.values()) for tenant, each in guide._kept.items()}
        assert sum(each.weight for all_ in kept.values() for each in all_) <= 1_000_000
    assert len(kept.get("greedy", ())) < 6
    assert guide.compiled(small, tenant="careful") is kept["careful"][0]
    guide.close()


def test_a_grammar_that_reached_its_limit_is_compiled_again(monkeypatch) -> None:
    monkeypatch.setattr(constraints, "MAX_STATES", 1_000)
    guide = GrammarCompiler(ByteTokenizer())
    grammar = Grammar("start: /(?s:.*)a(?s:.){200}b(?s:.){100}/")
    first = guide.compiled(grammar)
    motion, random = first.state(), np.random.default_rng(1)
    with pytest.raises(FaultError, match="are too large: fewer alternatives"):
        for byte in random.choice(list(b"ab"), 2_000):
            motion.mask(np.zeros(256))
            motion.accept([int(byte)])
    second = guide.compiled(grammar)
    assert second is not first
    second.state().mask(np.zeros(256))
    guide.close()


def test_a_grammar_weighs_what_it_has_grown_to_as_answers_were_written(monkeypatch) -> None:
    """Its size when it was compiled is but a part of that, and it stays in the cache."""
    guide = GrammarCompiler(ByteTokenizer())
    monkeypatch.setattr(constraints, "thread_time", iter(np.arange(0.0, 1000.0, 0.5)).__next__)
    monkeypatch.setattr(constraints, "MAX_SLOW", 1000.0)
    for number in range(8):
        motion = guide.compiled(Grammar(f'start: "{number}" /[a-z]+/'), tenant="a").state()
        motion.accept(b"%d" % number)
        for _ in range(2):
            motion.mask(np.zeros(256))
    assert len(guide._kept["a"]) == 2
    guide.close()


@pytest.mark.parametrize("step", ["_tried", "_matcher"])
async def test_grammars_of_one_tenant_do_not_wait_for_those_of_another(monkeypatch, step) -> None:
    owner = GrammarCompiler if step == "_tried" else constraints
    original, gate = getattr(owner, step), threading.Event()

    def held(*given: Any) -> Any:
        if "slow" in repr(given[1:]):
            gate.wait(60)
        return original(*given)

    engine = pocket()

    async def ask(tenant: str, text: str) -> Event:
        shape = JSONSchema("x", {"const": text})
        request = Request(model="pocket", items=(Message("user", "hi"),), format=shape)
        return [event async for event in engine.stream(request, Caller(tenant=tenant))][-1]

    assert isinstance(await ask("b", "first"), Finished)
    monkeypatch.setattr(owner, step, held)
    slow = [asyncio.ensure_future(ask("a", f"slow {number}")) for number in range(6)]
    await asyncio.sleep(0.05)
    try:
        assert isinstance(await asyncio.wait_for(ask("b", "quick"), 30), Finished)
    finally:
        gate.set()
        await asyncio.gather(*slow)
        await engine.close()


def test_a_tenant_is_not_given_what_another_compiled() -> None:
    guide = GrammarCompiler(ByteTokenizer())
    grammar = Grammar('start: "a"')
    first = guide.compiled(grammar, tenant="a")
    assert guide.compiled(grammar, tenant="a") is first
    assert guide.compiled(grammar, tenant="b") is not first
    guide.close()


def test_threads_may_share_a_guide() -> None:
    wrong: list[str] = []

    def work(name: str) -> None:
        for number in range(100):
            motion = GUIDE.constrain(Grammar(f'start: "{name}{number % 7}!"'))
            motion.accept(motion.forced())
            if not motion.over:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


COUNT = samples(8, 250)
"""Of each kind, in each format, greedy and by chance."""
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
async def engine(request) -> AsyncIterator[TokenEngine]:
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
    return max(COUNT // 5, 3) if engine.name == "pocket" else COUNT


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
@pytest.mark.uncounted
async def test_p34_every_complete_answer_fits_its_schema(engine: TokenEngine, temperature) -> None:
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
@pytest.mark.uncounted
async def test_r4_w21_every_call_that_is_required_is_made_and_fits(
    engine: TokenEngine, temperature
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
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert enough(statuses)
    assert several or engine.format is not HERMES  # harmony ends at its first call


@pytest.mark.uncounted
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
                assert tool.parameters is not None
                jsonschema.validate(json.loads(call.arguments), tool.parameters)
            if not response.calls:
                jsonschema.validate(json.loads(response.text), wanted)
            kinds["call" if response.calls else "text"] += 1
    assert enough(statuses)
    assert len(kinds) == 2 or engine.name == "pocket"  # the model had the choice


async def test_f17_a_schema_that_is_not_strict_is_enforced_as_far_as_it_can_be(
    engine: TokenEngine,
) -> None:
    items = {"type": "integer", "minimum": 1, "maximum": 9}
    several = {"type": "array", "items": items, "uniqueItems": True, "minItems": 1, "maxItems": 2}
    schema = {"type": "object", "properties": {"n": several}, "required": ["n"]}
    format = JSONSchema("n", schema, strict=False)
    response = await answer(engine, asked(1, 0.0, format=format))
    assert response.status == "completed"
    assert json.loads(response.text).keys() == {"n"}
    assert response.guarantee == "best-effort"
    lost = [loss.field for loss in response.losses]
    assert lost == ["format.schema.properties.n.uniqueItems"]


async def test_a_choice_and_a_grammar_bind_the_whole_answer(engine: TokenEngine) -> None:
    texts = ["yes", "no", "no, never", "né"]
    sums = 'start: N ("+" N){1,3}\nN: /[0-9]{1,2}/'
    for seed in range(count(engine)):
        chosen = await answer(engine, asked(seed, 1.0, extra={"chat": {"guided_choice": texts}}))
        assert chosen.status == "incomplete" or chosen.text in texts
        summed = await answer(engine, asked(seed, 1.0, extra={"chat": {"guided_grammar": sums}}))
        assert summed.status == "incomplete" or re.fullmatch(r"\d\d?(\+\d\d?){1,3}", summed.text)


def test_a14_the_grammar_used_least_recently_is_compiled_again(monkeypatch) -> None:
    compiler = GrammarCompiler(ByteTokenizer())
    first, second, third = (Grammar(f'start: "{word}"') for word in ("one", "two", "six"))
    try:
        tried = compiler._tried  # what the system says of memory is not the same each time
        monkeypatch.setattr(compiler, "_tried", lambda *given: (tried(*given)[0], 1000, 0.0))
        monkeypatch.setattr(constraints, "MAX_KEPT", 2500)
        kept, other = compiler.compiled(first), compiler.compiled(second)
        assert compiler.compiled(first) is kept  # and so is used later than the second
        compiler.compiled(third)
        assert compiler.compiled(first) is kept
        assert compiler.compiled(second) is not other
    finally:
        compiler.close()


async def test_an_unclosed_engine_ends_with_its_last_reference() -> None:
    before = {*threading.enumerate()}
    engine = TokenEngine(HARMONY, RandomModel(BYTES.size, seed=5), BYTES)
    asked = Request(
        model="m",
        items=(Message("user", "?"),),
        format=JSONSchema("s", {"type": "boolean"}),
        max_output_tokens=5,
    )
    fold = Fold()
    fold.feed_all([event async for event in engine.stream(asked)])
    assert fold.response.guarantee == "enforced"
    compiler = engine._enforcer._compiler
    assert compiler is not None
    pid, threads = compiler._child._pid, {*threading.enumerate()} - before
    kept = weakref.ref(engine)
    del engine, compiler
    async with asyncio.timeout(10):  # its threads are on their way out of what it had them do
        while kept() is not None or Path(f"/proc/{pid}").exists():
            gc.collect()
            await asyncio.sleep(0.01)
    ours = [each for each in threads if each.name in ("dragoman-model", "dragoman-plan")]
    assert ours
    for each in ours:
        each.join(10)
        assert not each.is_alive()


def test_what_must_follow_is_not_looked_for_where_rules_come_again_in_themselves() -> None:
    """It would try each byte first, for which everybody waits."""
    for rules, given in (('start: a\na: "x" start?', False), ('start: a\na: "xyz"', True)):
        compiler = GrammarCompiler(ByteTokenizer())
        state = compiler.constrain(Grammar("start: @it", inner=(("it", rules),)))
        assert bool(state.forced()) is given
        compiler.close()
