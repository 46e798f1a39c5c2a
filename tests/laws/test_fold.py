"""Law 3: an answer given whole is the sum of its stream, and unfolding undoes folding."""

from hypothesis import given

from dragoman.core.fold import Fold, fold, unfold
from dragoman.core.lifecycle import check
from tests.strategies import responses


@given(responses())
def test_law_3_fold_inverts_unfold(response) -> None:
    assert fold(unfold(response)) == response


@given(responses())
def test_law_4_unfold_is_legal(response) -> None:
    check(unfold(response))


@given(responses())
def test_law_3_fold_can_be_read_at_any_event(response) -> None:
    total = Fold()
    for event in unfold(response):
        total.feed(event)
        assert total.response.id == response.id
    assert total.response == response
