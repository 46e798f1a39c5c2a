"""The serialiser: one item open at a time, a legal order, and the same answer in the end."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Event, Failed, ItemAdded, ItemDone
from dragoman.core.fold import fold
from dragoman.core.lifecycle import ItemSerializer, check
from tests.laws.loose import Step, anything, play


def serial(events: list[Event]) -> list[Event]:
    order = ItemSerializer()
    return [given_on for event in events for given_on in order.feed(event)]


@given(st.lists(anything, max_size=12))
def test_p4_serialised_answers_are_legal_and_the_same(steps: list[Step]) -> None:
    events = play(steps)
    ordered = serial(events)
    check(ordered)
    whole, kept = fold(events), fold(ordered)
    if isinstance(events[-1], Failed):
        assert kept.output == whole.output[: len(kept.output)]
        assert kept.error == whole.error
    else:
        assert kept == whole


@given(st.lists(anything, max_size=12))
def test_p4_one_item_is_open_at_a_time(steps: list[Step]) -> None:
    open_items = 0
    for event in serial(play(steps)):
        open_items += isinstance(event, ItemAdded) - isinstance(event, ItemDone)
        assert open_items <= 1
