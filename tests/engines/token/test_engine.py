"""The engine over every kind of model: what is said, what is counted, what is refused."""

import asyncio
import math
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Finished
from dragoman.core.interfaces import Caller
from dragoman.core.item import Message
from dragoman.core.lifecycle import check
from dragoman.core.loss import Loss
from dragoman.core.request import JSONSchema, Request, Sampling
from dragoman.core.response import Response
from dragoman.engines.token import TokenEngine, from_next_token, from_step, from_stream
from dragoman.engines.token.constraints import Requirement
from dragoman.engines.token.engine import SCORED, TOGETHER, WRITTEN, SequenceDecoder
from dragoman.engines.token.scheduler import PREFILL
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.prompt import Prompt
from tests.engines.stage import answered, heard
from tests.engines.token.asking import asked, serving
from tests.engines.token.models import Says, Table, writes
from tests.engines.token.plain import END, TOY, Plain


def stream_of(text: str, size: int = 1) -> Any:
    data = text.encode()

    async def ids(prompt: list[int], sampling: Sampling) -> AsyncIterator[int | list[int]]:
        for at in range(0, len(data), size):
            await asyncio.sleep(0)
            yield data[at] if size == 1 else list(data[at : at + size])

    return from_stream(ids)


async def coroutine(ids: list[int], sampling: Sampling) -> int:
    await asyncio.sleep(0)
    return writes("Good dæy")(ids, sampling)


def stateful(tokens: list[int], temperature: float, new_request: bool) -> int:
    return writes("Good dæy")(tokens, None)


def at_once(batch: list[list[int]], samplings: list[Sampling]) -> list[int]:
    return [writes("Good dæy")(ids, None) for ids in batch]


KINDS: dict[str, Callable[[], Any]] = {
    "scores": lambda: Says("Good dæy"),
    "next token": lambda: from_next_token(writes("Good dæy")),
    "new request": lambda: from_next_token(stateful),
    "coroutine": lambda: from_next_token(coroutine),
    "step": lambda: from_step(at_once),
    "stream": lambda: stream_of("Good dæy"),
    "pieces": lambda: stream_of("Good dæy", 4),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3])
async def test_every_kind_of_model_is_served(kind, n) -> None:
    async with serving(KINDS[kind]()) as engine:
        response = await answered(engine, asked(n=n))
        ended = "stream" not in kind and kind != "pieces"  # those have no token for the end
        assert [_text(response, choice) for choice in range(n)] == ["Good dæy"] * n
        assert (response.status, response.reasons) == ("completed", ("stop",) * n)
        assert response.stop_sequence is None
        usage = response.usage
        assert usage.input_tokens == 3
        assert usage.output_tokens == n * (9 + ended)
        assert usage.total_tokens == 3 + n * (9 + ended)


def _text(response: Response, choice: int) -> str:
    return "".join(item.text for item in response.choice(choice) if isinstance(item, Message))


@pytest.mark.parametrize("kind", KINDS)
async def test_stop_strings_end_every_kind_at_the_token_that_completes_them(kind) -> None:
    async with serving(KINDS[kind]()) as engine:
        for n in (1, 2):
            response = await answered(engine, asked(stop=("d d", "od d"), n=n))
            assert [_text(response, choice) for choice in range(n)] == ["Go"] * n
            assert response.reasons == ("stop",) * n
            assert response.stop_sequence == "od d"
            assert response.usage.output_tokens == 6 * n


@pytest.mark.parametrize("kind", KINDS)
async def test_r4_40_text_at_the_token_limit_is_kept(kind) -> None:
    async with serving(KINDS[kind]()) as engine:
        for limit in (1, 4, 7):
            response = await answered(engine, asked(max_tokens=limit))
            assert response.text == "Good dæy".encode()[:limit].decode("utf-8", "replace")
            assert (response.status, response.reasons) == ("incomplete", ("length",))
            assert response.output[-1].status == "incomplete"
            assert response.usage.output_tokens == limit


async def test_the_context_is_a_limit_too() -> None:
    async with serving(Says("a" * 50, context=10)) as engine:
        response = await answered(engine, asked())
        assert (response.text, response.reasons) == ("a" * 7, ("length",))
        assert len((await answered(engine, asked(max_tokens=99))).text) == 7
        assert len((await answered(engine, asked(max_tokens=2))).text) == 2
        with_default = replace(asked("x" * 8), max_output_tokens=None)
        assert (await answered(engine, with_default)).text == "a"
    async with serving(Says("a" * 50), max_tokens=5) as engine:
        assert (await answered(engine, asked())).text == "a" * 5


async def test_a_prompt_longer_than_the_context_is_refused_in_tokens() -> None:
    async with serving(Says("", context=10)) as engine:
        (failed,) = await heard(engine, asked("x" * 11))
        assert failed.fault.upstream_code == "context_length_exceeded"
        assert failed.fault.blame == "client"
        assert "12 tokens" in failed.fault.message
        assert "10 tokens" in failed.fault.message
        assert "'toy'" in failed.fault.message  # whose limit it is


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (asked(max_tokens=0), "max_output_tokens"),
        (asked(n=0), "n"),
        (asked(n=129), "n"),
        (asked(top_p=7.0), "top_p"),
        (Request(model="toy"), None),
    ],
)
async def test_invalid_request_is_refused_before_the_model_is_called(request_, param) -> None:
    model = Table()
    async with serving(model) as engine:
        (failed,) = await heard(engine, request_)
        assert (failed.fault.code, failed.fault.param) == ("invalid_request", param)
        assert not model.opened


async def test_a_model_that_only_names_tokens_refuses_probabilities() -> None:
    for kind in ("next token", "new request", "step", "stream"):
        async with serving(KINDS[kind]()) as engine:
            (failed,) = await heard(engine, asked(logprobs=True))
            assert (failed.fault.code, failed.fault.param) == ("unsupported", "logprobs")


async def test_settings_a_function_cannot_take_are_reported() -> None:
    request = asked(top_p=0.5, seed=1, temperature=0.5, logit_bias={"1": 2.0})
    async with serving(KINDS["new request"]()) as engine:
        started = (await heard(engine, request))[0]
        why = "the model chooses its tokens without it"
        fields = ("top_p", "seed", "logit_bias")
        assert started.losses == tuple(Loss(name, "dropped", why) for name in fields)
    async with serving(KINDS["next token"]()) as engine:  # it is given the settings, and may obey
        started = (await heard(engine, request))[0]
        assert not started.losses


async def test_functions_are_given_the_settings() -> None:
    given: list[tuple[Any, ...]] = []

    def next_token(ids: list[int], sampling: Sampling) -> int | None:
        given.append((list(ids), sampling.temperature, sampling.seed))
        return None if len(given) > 2 else 65

    async with serving(from_next_token(next_token)) as engine:
        assert (await answered(engine, asked("a", temperature=0.3, seed=4))).text == "AA"
    assert given == [([97, 10, *[65] * k], 0.3, 4) for k in range(3)]


async def test_stateful_function_is_called_with_new_request_once() -> None:
    given: list[tuple[int, float, bool]] = []

    def next_token(tokens: list[int], temperature: float, new_request: bool) -> int:
        given.append((len(tokens), temperature, new_request))
        return 65 if len(tokens) < 5 else END

    async with serving(from_next_token(next_token)) as engine:
        await answered(engine, asked("a"))
        await asyncio.gather(*(answered(engine, asked("a", temperature=0.0)) for _ in range(2)))
    one = [(2, 1.0, True), (3, 1.0, False), (4, 1.0, False), (5, 1.0, False)]
    assert given == [*one, *[(count, 0.0, new) for count, _, new in one] * 2]


async def test_interleaved_function_is_called_with_new_request() -> None:
    given: list[tuple[int, bool]] = []

    def next_token(tokens: list[int], temperature: float, new_request: bool) -> int:
        given.append((tokens[0], new_request))
        return 65 if len(tokens) < 4 else END

    async with serving(from_next_token(next_token), concurrency=2) as engine:
        await asyncio.gather(answered(engine, asked("a")), answered(engine, asked("b")))
    last = 0
    for letter, new in given:
        assert new or letter == last
        last = letter


async def test_ids_no_vocabulary_has_are_a_fault_of_the_model() -> None:
    for wrong in (-1, TOY.size, "x", 1.5):
        async with serving(from_next_token(lambda ids, sampling, wrong=wrong: wrong)) as engine:
            last = (await heard(engine, asked()))[-1]
            assert last.fault.code == "internal"
            assert "no id" in last.fault.message
    for right in (np.int64(END), True):
        one = iter([right])
        model = from_next_token(lambda ids, sampling, one=one: next(one, END))
        async with serving(model) as engine:
            assert (await answered(engine, asked())).status == "completed"


async def test_logprobs_are_exact_and_one_for_each_token() -> None:
    model = Table()
    async with serving(model) as engine:
        request = asked(logprobs=True, top_logprobs=2, seed=3, max_tokens=12, temperature=0.7)
        response = await answered(engine, request)
    (message,) = response.output
    (part,) = message.parts
    assert len(part.tokens) == 12
    ids = [*b"hi\n"]
    for token in part.tokens:
        scores = model.scores(ids)
        total = math.log(np.exp(scores).sum())
        assert token.id is not None
        assert token.logprob == pytest.approx(scores[token.id] - total)
        assert [t.logprob for t in token.top] == pytest.approx(sorted(scores - total)[:-3:-1])
        assert token.bytes == TOY.piece(token.id)
        ids.append(token.id)


async def test_seeds_give_the_same_answer_whatever_else_is_being_written() -> None:
    async with serving(Table()) as engine:
        request = asked("seeded", seed=11, max_tokens=40)
        alone = (await answered(engine, request)).text
        crowd = [answered(engine, asked(f"other {k}", max_tokens=30 + k)) for k in range(12)]
        again, *_ = await asyncio.gather(answered(engine, request), *crowd)
        assert again.text == alone
        three = await answered(engine, asked("seeded", seed=11, max_tokens=40, n=3))
        texts = [_text(three, choice) for choice in range(3)]
        assert texts[0] == alone
        assert len(set(texts)) == 3
        one_more = asked("seeded", seed=12, max_tokens=40)
        assert (await answered(engine, one_more)).text == texts[1]


async def test_cached_tokens_are_reported() -> None:
    async with serving(Says("ok", reuse=True)) as engine:
        cached = [(await answered(engine, asked("same"))).usage for _ in range(2)]
        both = (await answered(engine, asked("same", n=2))).usage
    assert [usage and usage.cached_tokens for usage in (*cached, both)] == [0, 4, 4]


async def test_setting_function_is_called_for_every_prompt() -> None:
    days = iter(["2026-01-01", "2026-01-02"])
    model = Says("ok")
    async with serving(model, setting=lambda: Setting(today=next(days), identity="me")) as engine:
        await answered(engine, asked())
        await answered(engine, asked())
    assert [bytes(slot.prompt) for slot in model.opened] == [
        b"2026-01-01hi\n",
        b"2026-01-02hi\n",
    ]


async def test_tokens_of_a_request_are_counted_exactly() -> None:
    model = Says("ok")
    async with serving(model) as engine:
        for text in ("", "hällo", "x" * 9_000):
            usage = (await answered(engine, asked(text))).usage
            assert await engine.count(asked(text)) == usage.input_tokens


async def test_listing_has_format_context_and_guarantees() -> None:
    async with serving(Says("", context=77)) as engine:
        (model,) = await engine.models()
        assert (model.id, model.extra) == (
            "toy",
            {"models": {"format": "plain", "context_window": 77, "guarantees": ["enforced"]}},
        )
        capabilities = await engine.capabilities("toy")
        assert (capabilities.choices, capabilities.context) == (True, 77)
    async with serving(Says("")) as engine:
        (model,) = await engine.models()
        assert model.extra == {"models": {"format": "plain", "guarantees": ["enforced"]}}


async def test_others_have_their_turns_while_the_decoders_of_many_choices_are_made(
    monkeypatch,
) -> None:
    made, between = 0, []

    class Counted(SequenceDecoder):
        def __init__(self, *given: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(*given)

    async def other() -> None:
        while made < 8:
            between.append(made)
            await asyncio.sleep(0)

    monkeypatch.setattr("dragoman.engines.token.engine.SequenceDecoder", Counted)
    async with serving(Says("hi")) as engine:
        await asyncio.gather(answered(engine, asked(n=8)), other())
    assert between[-1] == 7


async def test_choices_are_decoded_a_few_tokens_a_turn_of_the_event_loop(monkeypatch) -> None:
    taken, most = 0, 0

    class Counted(SequenceDecoder):
        def take(self, new: Any) -> Any:
            nonlocal taken, most
            taken += len(new.ids)
            most = max(most, taken)
            return super().take(new)

    async def other() -> None:
        nonlocal taken
        while True:
            taken = 0
            await asyncio.sleep(0)

    monkeypatch.setattr("dragoman.engines.token.engine.SequenceDecoder", Counted)
    letters = from_step(lambda batch, samplings: [97] * len(batch))
    async with serving(letters) as engine:
        beside = asyncio.create_task(other())
        await answered(engine, asked(n=16, max_tokens=500))
        beside.cancel()
    assert most < 2 * TOGETHER


async def test_listing_without_llguidance_promises_no_enforcement(monkeypatch) -> None:
    monkeypatch.setattr("dragoman.engines.token.constraints._llguidance_installed", lambda: False)
    async with serving(Says("")) as engine:
        (model,) = await engine.models()
        assert (model.extra or {})["models"]["guarantees"] == ["verified", "best-effort"]


async def test_a_long_conversation_is_counted_away_from_the_loop() -> None:
    threads = []

    class Slow(Plain):
        def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
            threads.append(threading.current_thread() is threading.main_thread())
            return super().render(request, setting)

    async with serving(Says(""), format=Slow()) as engine:
        await engine.count(asked("short"))
        await engine.count(asked("x" * 9_000))
    assert threads == [True, False]


def test_missing_numpy_is_reported_with_its_install_command(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError, match=r"'\.\[local\]'"):
        TokenEngine(Plain(), Says(""), TOY)
    TokenEngine(Plain(), from_next_token(writes("")), TOY)  # which needs none


class OnlyAB:
    """Lets a and b through, three of them; the first is forced to be b."""

    took = 0.0
    compiled = SimpleNamespace(busy=0, slow=False)

    def __init__(self) -> None:
        self.seen: list[int] = []

    def mask(self, logits: Any) -> None:
        kept = logits[[97, 98]].copy()
        logits[:] = -np.inf
        logits[[97, 98]] = kept

    def accept(self, ids: Sequence[int]) -> None:
        self.seen += ids

    def forced(self) -> Sequence[int]:
        return () if self.seen else [98, 97]

    @property
    def over(self) -> bool:
        return len(self.seen) >= 5


def only_ab(request: Request, grammar: Grammar, ends: frozenset[int], *_: Any) -> Requirement:
    assert ends == {END}
    return Requirement(OnlyAB, None)


@pytest.mark.parametrize("logprobs", [False, True])
async def test_forced_tokens_are_written_without_a_model_step(logprobs) -> None:
    model = Table()
    async with serving(model) as engine:
        engine._enforcer.requirement = only_ab
        request = replace(asked(logprobs=logprobs), format=JSONSchema("x"))
        response = await answered(engine, request)
    assert response.text.startswith("ba")
    assert (len(response.text), set(response.text)) == (5, {"a", "b"})
    assert response.reasons == ("stop",)
    reads = [count for step in model.steps for count in step]
    assert reads == ([3, 1, 1, 1, 1] if logprobs else [5, 1, 1])
    if logprobs:
        (message,) = response.output
        (part,) = message.parts
        assert [token.forced for token in part.tokens] == [True, True, False, False, False]
        assert all(token.logprob is not None and token.logprob < 0 for token in part.tokens)


async def test_many_forced_tokens_are_read_in_rounds_beside_others() -> None:
    forced = ord("a")

    class Endless:
        took = 0.0
        compiled = SimpleNamespace(busy=0, slow=False)
        over = False

        def mask(self, logits: Any) -> None:
            logits[:] = -np.inf
            logits[forced] = 0

        def accept(self, ids: Sequence[int]) -> None:
            assert set(ids) == {forced}

        def forced(self) -> Sequence[int]:
            return [forced] * 5_000

    model = Table()
    async with serving(model) as engine:
        engine._enforcer.requirement = lambda *_: Requirement(Endless, None)
        request = replace(asked(), format=JSONSchema("x"), max_output_tokens=4_000)
        response = await answered(engine, request)
    assert response.text == "a" * 4_000
    reads = [count for step in model.steps for count in step]
    assert max(reads) <= PREFILL + 3
    assert len(reads) == 8


async def test_a_format_whose_end_is_no_token_is_ended_by_its_text() -> None:
    class Words(Plain):
        def stops(self, request: Request) -> Stops:
            return Stops(("<|end|>", "<|over|>"), ("##",))

    for end in ("<|over|>", "##"):
        async with serving(Says(f"Well.{end} And more"), format=Words()) as engine:
            response = await answered(engine, asked())
            assert response.text == f"Well.{end}"  # a parser knows its own markers, this one none
            assert response.reasons == ("stop",)
            assert response.usage.output_tokens == 5 + len(end)


async def test_custom_end_tokens_end_the_answer() -> None:
    async with serving(Says("one. two"), ends=[ord(".")]) as engine:
        assert (await answered(engine, asked())).text == "one."
    async with serving(Says("one"), ends=["<|end|>"]) as engine:
        assert (await answered(engine, asked())).text == "one"
    with pytest.raises(KeyError):
        async with serving(Says(""), ends=["<|nothing|>"]):
            pass


async def test_counting_what_cannot_be_rendered_is_a_fault() -> None:
    class Mute(Plain):
        def render(self, request: Request, setting: Setting = PLAIN) -> Any:
            from dragoman.core.error import unsupported

            raise FaultError(unsupported("no", "input"))

    async with serving(Says(""), format=Mute()) as engine:
        with pytest.raises(FaultError):
            await engine.count(asked())
        (failed,) = await heard(engine, asked())
        assert failed.fault.param == "input"


# ---- streams of ids ---------------------------------------------------------------------------


class PanicError(BaseException):
    """As libraries in Rust raise."""


@pytest.mark.parametrize("error", [ValueError, PanicError])
async def test_broken_stream_fails_and_keeps_its_text(error) -> None:
    async def broken(ids: list[int], sampling: Sampling) -> AsyncIterator[int]:
        yield 65
        raise error("secret")

    async with asyncio.timeout(10), serving(from_stream(broken)) as engine:
        response = await answered(engine, asked())
        assert (response.text, response.status) == ("A", "failed")
        assert error.__name__ in response.error.message
        assert "secret" not in response.error.message


async def test_a_stream_is_closed_when_it_is_not_wanted_any_more() -> None:
    closed: list[str] = []

    async def endless(ids: list[int], sampling: Sampling) -> AsyncIterator[int]:
        try:
            while True:
                yield 65
                await asyncio.sleep(0)
        finally:
            closed.append("closed")

    async with serving(from_stream(endless)) as engine:
        for n in (1, 2):
            assert (await answered(engine, asked(max_tokens=3, n=n))).text == "AAA"
            assert (await answered(engine, asked(stop=("AAAA",), n=n))).text == ""
            reading = asyncio.ensure_future(answered(engine, asked(n=n)))
            await asyncio.sleep(0.01)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
    assert len(closed) == 9


@pytest.mark.parametrize("n", [1, 2])
async def test_busy_stream_does_not_block_the_loop(n) -> None:
    async def eager(ids: list[int], sampling: Sampling) -> AsyncIterator[int]:
        while True:
            yield 65

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(count_turns())
    async with serving(from_stream(eager)) as engine:
        await answered(engine, asked(n=n, max_tokens=100))
    other.cancel()
    assert turns > 90


async def test_stream_that_raises_on_cancellation_is_cancelled() -> None:
    async def stubborn(ids: list[int], sampling: Sampling) -> AsyncIterator[int]:
        yield 65
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise RuntimeError("no") from error

    async with serving(from_stream(stubborn)) as engine:
        reading = asyncio.ensure_future(answered(engine, asked()))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


@pytest.mark.parametrize(
    ("format", "model", "problem"),
    [
        ("hermes", Says("Good"), r"use find_format.by_name\('hermes'\)"),
        (Plain(), stateful, "function is no model of tokens: use from_next"),
    ],
)
def test_what_is_no_format_and_no_model_is_refused_when_the_engine_is_made(
    format, model, problem
) -> None:
    with pytest.raises(TypeError, match=problem):
        TokenEngine(format, model, TOY)


async def test_large_answers_are_accounted_for() -> None:
    counted: list[int] = []
    request = asked("hi", max_tokens=2_000, logprobs=True, top_logprobs=4, temperature=0)
    async with serving(Table()) as engine:
        found = [event async for event in engine.stream(request, Caller(count=counted.append))]
        assert isinstance(found[-1], Finished)
        assert 1_000_000 < sum(counted) <= 2_000 * (WRITTEN + 5 * SCORED)

        def refuse(size: int) -> None:
            raise FaultError(Fault("overloaded", "There is no room."))

        found = [event async for event in engine.stream(request, Caller(count=refuse))]
        check(found)
        assert (found[-1].fault.code, len(found) > 2) == ("overloaded", True)
