"""The network and its slots: what is read in whatever pieces and company is read the same.

The network itself is compared with llama.cpp elsewhere; these tests compare it with itself.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dragoman.engines.pocket import FOLDER
from dragoman.engines.pocket.model import ROOM, KVCache, Network, Pocket, load

NEAR = {"rtol": 0, "atol": 2e-4}
ONE = tuple(range(40, 240, 3))
TWO = (*ONE[:30], 7, 8, 9, 10)


@pytest.fixture(scope="module")
def network() -> Network:
    return load(FOLDER)[1]._network


@pytest.fixture
def model(network: Network) -> Pocket:
    return Pocket(network)


def whole(network: Network, ids: Sequence[int]) -> Any:
    """The scores after reading all ids at once, in a model that has read nothing else."""
    alone = Pocket(network)
    return alone.step([(alone.open(ids), ids)])[0]


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_prompt_read_in_stretches_is_the_same(network: Network, model: Pocket, size) -> None:
    slot = model.open(ONE)
    for start in range(0, len(ONE), size):
        (scores,) = model.step([(slot, ONE[start : start + size])])
    assert slot.length == len(ONE)
    np.testing.assert_allclose(scores, whole(network, ONE), **NEAR)


def test_sequences_read_together_do_not_mix(network: Network, model: Pocket) -> None:
    short, long = (5, 6), tuple(range(300))
    slots = [model.open(ids) for ids in (ONE, short, long)]
    scores = model.step(list(zip(slots, (ONE, short, long), strict=True)))
    for ids, found in zip((ONE, short, long), scores, strict=True):
        np.testing.assert_allclose(found, whole(network, ids), **NEAR)
    scores = model.step([(slots[0], [9]), (slots[2], [8, 7])])
    np.testing.assert_allclose(scores[0], whole(network, (*ONE, 9)), **NEAR)
    np.testing.assert_allclose(scores[1], whole(network, (*long, 8, 7)), **NEAR)


@pytest.mark.parametrize("closed", [True, False])
def test_cached_tokens_are_not_read_again(network: Network, model: Pocket, closed) -> None:
    first = model.open(ONE)
    model.step([(first, ONE)])
    if closed:
        model.close(first)
    again = model.open(TWO)
    assert again.length == 30
    (scores,) = model.step([(again, TWO[30:])])
    np.testing.assert_allclose(scores, whole(network, TWO), **NEAR)
    # The sequence that was copied has not changed.
    (scores,) = model.step([(first, [3])])
    np.testing.assert_allclose(scores, whole(network, (*ONE, 3)), **NEAR)


def test_the_last_id_is_always_left_to_read(model: Pocket) -> None:
    first = model.open(ONE)
    model.step([(first, ONE)])
    assert model.open(ONE).length == len(ONE) - 1
    assert model.open(ONE[:5]).length == 4
    assert model.open((1, *ONE)).length == 0


def test_of_several_that_begin_alike_the_longest_serves(model: Pocket) -> None:
    for length in (10, 40, 20):
        slot = model.open(ONE[:length])
        model.step([(slot, ONE[slot.length : length])])
        model.close(slot)
    assert model.open(ONE).length == 40


def test_only_so_many_closed_slots_are_remembered(network: Network) -> None:
    model = Pocket(network, max_closed=2)
    held = model.open((900, 901))
    model.step([(held, (900, 901))])
    for first in (100, 200, 300):
        slot = model.open((first, first + 1))
        model.step([(slot, (first, first + 1))])
        model.close(slot)
    assert [model.open((first, first + 1)).length for first in (100, 200, 300)] == [0, 1, 1]
    assert model.open((900, 901)).length == 1  # it is still open, however old


def test_closed_slots_have_so_much_memory_and_are_their_tenants(network: Network) -> None:
    model = Pocket(network)
    for number in range(8):
        slot = model.open([number] * 3_000, f"{number}")
        slot.chunk([number] * 3_000)
        slot.read([number] * 3_000)
        model.close(slot)
    again = [model.open([number] * 3_000, f"{number}") for number in (2, 3, 7)]
    assert [slot.length for slot in again] == [0, 2_999, 2_999]
    assert model.open([7] * 3_000, "4").length == 0


def test_prompt_over_the_context_fails_and_the_slot_stays_usable(
    network: Network, model: Pocket
) -> None:
    slot = model.open(ONE)
    model.step([(slot, ONE)])
    with pytest.raises(ValueError, match="4097 tokens are more than the 4096 this model can read"):
        model.step([(slot, [1] * (4097 - len(ONE)))])
    (scores,) = model.step([(slot, [3])])
    np.testing.assert_allclose(scores, whole(network, (*ONE, 3)), **NEAR)


def test_the_context_can_be_filled(model: Pocket) -> None:
    slot = model.open([1])
    for _ in range(8):
        model.step([(slot, [5] * 512)])
    assert slot.length == model.context == 4096


def test_room_grows_when_it_is_needed(network: Network) -> None:
    cache = KVCache(network.shape)
    sizes = []
    for _ in range(4):
        chunk = cache.chunk([1] * (ROOM - 1))
        cache.read(chunk.ids)
        sizes.append(chunk.cache.shape[-2])
    assert sizes == [ROOM, 2 * ROOM, 4 * ROOM, 4 * ROOM]
