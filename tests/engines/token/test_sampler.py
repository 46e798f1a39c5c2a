"""The sampler, against the definitions: exact log-probabilities, and draws by the right weights."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman.core.error import FaultError
from dragoman.core.item import Token
from dragoman.core.request import Sampling
from dragoman.engines.token.sampler import Sampler, check
from tests.samples import samples

SCORES = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
TIMES = samples(1_000, 4_000)


def sampler(prompt: tuple[int, ...] = (), **settings: object) -> Sampler:
    bias = check(Sampling(logit_bias=settings.get("logit_bias")), len(SCORES))
    return Sampler(Sampling(**settings), prompt, lambda id: Token(str(id), id=id), bias)


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def drawn(expected: NDArray[np.float64], **settings: object) -> None:
    """Many draws have the frequencies they should; what may not come never does."""
    one = sampler(seed=1, **settings)
    counts = Counter(one.choose(SCORES) for _ in range(TIMES))
    for id, chance in enumerate(expected):
        spread = 5 * math.sqrt(chance * (1 - chance) / TIMES)
        assert abs(counts[id] / TIMES - chance) <= spread, (id, counts)


def test_temperature_top_p_top_k_and_min_p_choose_among_the_right_tokens() -> None:
    drawn(softmax(SCORES))
    drawn(softmax(SCORES / 0.5), temperature=0.5)
    kept = softmax(SCORES)
    for count, settings in (
        (3, {"top_k": 3}),
        (2, {"top_p": 0.75}),  # 0.56 is too little, 0.56 + 0.21 suffices
        (3, {"top_p": 0.77}),
        (4, {"min_p": 0.1}),  # e^-2 is above a tenth of the likeliest, e^-3 is not
        (1, {"top_p": 0.0}),
        (2, {"top_k": 5, "top_p": 0.75}),
        (6, {"top_k": 99, "top_p": 1.0, "min_p": 0.0}),
    ):
        cut = np.where(np.arange(len(SCORES)) < count, kept, 0)
        drawn(cut / cut.sum(), **settings)


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_a_temperature_close_to_zero_is_the_likeliest_token_too(temperature) -> None:
    assert sampler(temperature=temperature).choose(SCORES) == 0
    assert sampler(temperature=temperature).choose(SCORES.astype(np.float32) * 100) == 0


@pytest.mark.parametrize("score", [-np.inf, np.nan])
def test_no_remaining_token_is_a_fault(score) -> None:
    with pytest.raises(FaultError, match="leave no token"):
        sampler().choose(np.full(6, score))


def test_impossible_token_has_a_finite_logprob() -> None:
    scores = np.array([0.0, -np.inf])
    told = sampler(logprobs=True, top_logprobs=2).with_logprobs(0, scores)
    assert [token.logprob for token in told.top] == [0.0, -9999.0]


def test_temperature_zero_is_the_likeliest_token() -> None:
    assert {sampler(temperature=0).choose(SCORES) for _ in range(20)} == {0}
    assert {sampler(top_k=1).choose(SCORES) for _ in range(20)} == {0}


@given(st.integers(-(2**70), 2**70))
def test_a_seed_gives_the_same_tokens_every_time(seed) -> None:
    first, second = sampler(seed=seed), sampler(seed=seed)
    assert [first.choose(SCORES) for _ in range(20)] == [second.choose(SCORES) for _ in range(20)]


def test_without_a_seed_no_two_are_alike() -> None:
    assert len({tuple(map(sampler().choose, [SCORES] * 20)) for _ in range(10)}) > 1


def test_penalties_and_bias_change_the_scores_as_defined() -> None:
    one = sampler((1, 1), repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    for id in (0, 0, 4):
        one.count(id)
    expected = SCORES.copy()
    expected[[0, 1]] /= 2  # seen and positive
    expected[4] *= 2  # seen and negative
    expected[0] -= 0.5 * 2 + 0.25
    expected[4] -= 0.5 + 0.25
    seen: list[NDArray[np.float64]] = []

    class Spy:
        over = False

        def mask(self, logits: NDArray[np.float64]) -> None:
            seen.append(logits.copy())

        def accept(self, ids: object) -> None: ...

        def forced(self) -> tuple[int, ...]:
            return ()

    before = SCORES.copy()
    one.choose(SCORES, Spy())
    assert np.allclose(seen[0], expected)
    assert (before == SCORES).all()  # the model's own vector is left alone
    one.count(2)
    one.choose(SCORES, Spy())
    assert seen[1][2] == SCORES[2] / 2 - 0.5 - 0.25
    assert sampler(temperature=0, logit_bias={"5": 100, "0": -100}).choose(SCORES) == 5


hundredths = st.integers(-5_000, 5_000).map(lambda value: value / 100)


@given(st.lists(hundredths, min_size=2, max_size=40), st.integers(0, 8))
def test_logprobs_are_those_of_the_models_own_distribution(scores, top) -> None:
    logits = np.array(scores)
    one = sampler(temperature=0.1, top_p=0.1, logit_bias={"0": 5}, logprobs=True, top_logprobs=top)
    total = math.log(math.fsum(math.exp(s - max(scores)) for s in scores)) + max(scores)
    told = one.with_logprobs(1, logits)
    assert told.id == 1
    assert told.logprob == pytest.approx(scores[1] - total, abs=1e-9)
    best = sorted(range(len(scores)), key=lambda id: (-scores[id], id))[:top]
    assert [each.logprob for each in told.top] == pytest.approx(
        [scores[id] - total for id in best], abs=1e-9
    )
    if len(set(scores)) == len(scores):
        assert [each.id for each in told.top] == best


def test_single_precision_vectors_do() -> None:
    exact = sampler().with_logprobs(0, SCORES).logprob
    single = sampler().with_logprobs(0, SCORES.astype(np.float32)).logprob
    assert single == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 1.1),
        ("min_p", -0.5),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -3.0),
        ("repetition_penalty", 0.0),
        ("top_logprobs", -1),
        ("top_logprobs", 129),
        ("logit_bias", {"x": 1.0}),
        ("logit_bias", {"-1": 1.0}),
        ("logit_bias", {"6": 1.0}),
    ],
)
def test_invalid_settings_are_refused_by_name(field, value) -> None:
    with pytest.raises(FaultError) as caught:
        check(Sampling(**{field: value}), 6)
    assert caught.value.fault.param == field


def test_settings_that_mean_something_are_not() -> None:
    check(Sampling(temperature=0, top_p=1, min_p=0, repetition_penalty=1.1, top_logprobs=20), 6)
    check(Sampling(logit_bias={"5": -100}), 6)


def test_biases_are_added_at_once() -> None:
    many = {str(id): float(id % 7) for id in range(100_000)} | {"07": 1.0}
    bias = check(Sampling(logit_bias=many), 100_001)
    assert bias is not None
    assert (bias[6], bias[7], bias[100_000]) == (6.0, 1.0, 0.0)


@pytest.mark.parametrize("key", ["6", "-1", "1.0", "\uff11", "0" * 5_000, "x" * 5_000])
def test_a_bias_for_no_token_is_refused_briefly(key) -> None:
    with pytest.raises(FaultError) as raised:
        check(Sampling(logit_bias={key: 1.0}), 6)
    assert raised.value.fault.param == "logit_bias"
    assert len(raised.value.fault.message) < 200
