"""Law 3: an answer given whole is the sum of its stream, and unfolding undoes folding."""

from hypothesis import given

from dragoman.core.fold import Fold, fold, unfold
from dragoman.core.lifecycle import check
from dragoman.core.response import Response
from tests.strategies import responses


@given(responses())
def test_fold_undoes_unfold(response: Response) -> None:
    assert fold(unfold(response)) == response


@given(responses())
def test_what_unfold_gives_is_legal(response: Response) -> None:
    check(unfold(response))


@given(responses())
def test_a_fold_may_be_read_at_any_time(response: Response) -> None:
    total = Fold()
    for event in unfold(response):
        total.feed(event)
        assert total.response.id == response.id
    assert total.response == response
