"""A kind of loss is entered once: with its place where it has one, without where it has several."""

from dragoman.core.ledger import Ledger, path
from dragoman.core.loss import Loss


def test_places_are_filled_in_from_the_left() -> None:
    assert path("a[*].b[*].c", (1, 2)) == "a[1].b[2].c"
    assert path("a[*].b[*].c", (1,)) == "a[1].b[*].c"
    assert path("a", ()) == "a"


def test_losses_keep_the_order_of_their_first_occurrence() -> None:
    ledger = Ledger()
    ledger.note("b[*]", "told", "why", (0,))
    ledger.note("a", "emulated", "how")
    ledger.note("b[*]", "told", "why", (1,))
    assert ledger.losses() == (Loss("b[*]", "told", "why"), Loss("a", "emulated", "how"))


def test_the_same_place_twice_is_one_place() -> None:
    ledger = Ledger()
    for _ in range(2):
        ledger.note("a[*]", "told", "why", (3,))
    assert ledger.losses() == (Loss("a[3]", "told", "why"),)


def test_two_reasons_are_two_losses() -> None:
    ledger = Ledger()
    ledger.note("a", "told", "one")
    ledger.note("a", "told", "other")
    assert len(ledger.losses()) == 2
    assert ledger.knows("a", "one")
    assert not ledger.knows("a", "third")
