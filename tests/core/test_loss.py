"""A kind of loss is entered once: with its place where it has one, without where it has several."""

from dragoman.core.loss import Loss, LossList, path


def test_places_are_filled_in_from_the_left() -> None:
    assert path("a[*].b[*].c", (1, 2)) == "a[1].b[2].c"
    assert path("a[*].b[*].c", (1,)) == "a[1].b[*].c"
    assert path("a", ()) == "a"


def test_losses_keep_the_order_of_their_first_occurrence() -> None:
    ledger = LossList()
    ledger.note("b[*]", "dropped", "why", (0,))
    ledger.note("a", "emulated", "how")
    ledger.note("b[*]", "dropped", "why", (1,))
    assert ledger.losses() == (Loss("b[*]", "dropped", "why"), Loss("a", "emulated", "how"))


def test_the_same_place_twice_is_one_place() -> None:
    ledger = LossList()
    for _ in range(2):
        ledger.note("a[*]", "dropped", "why", (3,))
    assert ledger.losses() == (Loss("a[3]", "dropped", "why"),)


def test_two_reasons_are_two_losses() -> None:
    ledger = LossList()
    ledger.note("a", "dropped", "one")
    ledger.note("a", "dropped", "other")
    assert len(ledger.losses()) == 2
    assert ledger.contains("a", "one")
    assert not ledger.contains("a", "third")
