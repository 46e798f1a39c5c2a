"""Filters of events: one item at a time, one choice of several, and a legal order in any case."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, ItemDone, Started
from dragoman.core.fold import fold, unfold
from dragoman.core.item import FunctionCall
from dragoman.core.lifecycle import FirstChoice, ItemSerializer, check
from tests.laws.loose import anything, play
from tests.strategies import responses


def serialised(events: list[Event]) -> list[Event]:
    order = ItemSerializer()
    return [passed for event in events for passed in order.feed(event)]


@given(st.lists(anything, max_size=12))
def test_p4_serialised_answer_is_legal_the_same_and_one_item_at_a_time(steps) -> None:
    events = play(steps)
    ordered = serialised(events)
    check(ordered)
    whole, left = fold(events), fold(ordered)
    if isinstance(events[-1], Failed):
        assert left.output == whole.output[: len(left.output)]
        assert left.error == whole.error
    else:
        assert left == whole
    open_items = 0
    for event in ordered:
        open_items += isinstance(event, ItemAdded) - isinstance(event, ItemDone)
        assert open_items <= 1


def test_interleaved_items_are_serialised_each_as_soon_as_it_may() -> None:
    first, second, third = (
        [
            ItemAdded(index, FunctionCall(f"c{index}", "f", "")),
            Delta(index, 0, "arguments", "x"),
            ItemDone(index, FunctionCall(f"c{index}", "f", "x")),
        ]
        for index in range(3)
    )
    start, end = Started("r", 0, "m"), Finished("completed")
    serial = ItemSerializer()
    early = [start, first[0], second[0], third[0], first[1], *second[1:], third[1]]
    assert [e for event in early for e in serial.feed(event)] == [start, *first[:2]]
    assert serial.feed(first[2]) == [first[2], *second, *third[:2]]
    assert [*serial.feed(third[2]), *serial.feed(end)] == [third[2], end]


@given(responses())
def test_first_choice_alone_is_legal_and_whole(response) -> None:
    first = FirstChoice()
    events = [e for event in unfold(response) if (e := first.feed(event)) is not None]
    check(events)
    left = fold(events)
    assert left.output == response.choice(0)
    assert left.choices == ()
    assert left.reasons == response.reasons[:1]


@given(responses())
def test_first_choice_taken_up_later_keeps_the_indices_before(response) -> None:
    events = list(unfold(response))
    before = [e for e in events if getattr(e, "index", None) in (None, 0)]
    first = FirstChoice(1)
    rest = [e for event in events if event not in before and (e := first.feed(event)) is not None]
    indices = {getattr(event, "index", None) for event in rest}
    assert indices <= set(range(1, 1 + len(response.choice(0))))
