"""One item at a time, and nothing lost."""

from dragoman.core.error import Fault
from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    Progress,
    Started,
)
from dragoman.core.item import FunctionCall
from dragoman.core.lifecycle import ItemSerializer

START = Started("r", 0, "m")


def added(index: int) -> Event:
    return ItemAdded(index, FunctionCall(f"c{index}", "f", ""))


def delta(index: int, data: str) -> Event:
    return Delta(index, 0, "arguments", data)


def done(index: int, data: str) -> Event:
    return ItemDone(index, FunctionCall(f"c{index}", "f", data))


def in_order(*events: Event) -> list[Event]:
    serial = ItemSerializer()
    return [given for event in events for given in serial.feed(event)]


def test_interleaved_items_are_serialised() -> None:
    first = [added(0), delta(0, "a"), delta(0, "b"), done(0, "ab")]
    second = [added(1), delta(1, "x"), done(1, "x")]
    third = [added(2), delta(2, "y"), done(2, "y")]
    mixed = [first[0], second[0], third[0], first[1], second[1], second[2], third[1], first[2]]
    end = Finished("completed")
    serial = ItemSerializer()
    early = [given for event in [START, *mixed] for given in serial.feed(event)]
    assert early == [START, *first[:3]]
    assert serial.feed(first[3]) == [first[3], *second, *third[:2]]
    assert [*serial.feed(third[2]), *serial.feed(end)] == [third[2], end]


def test_events_of_the_answer_or_a_past_item_pass() -> None:
    beside, past = Progress(None, "alive"), Progress(0, "completed")
    events = [START, added(0), done(0, ""), added(1), added(2), beside, past]
    assert in_order(*events) == [*events[:4], beside, past]


def test_failure_passes_at_once_and_waiting_events_are_dropped() -> None:
    fail = Failed(Fault("internal", "x"))
    assert in_order(START, added(0), added(1), delta(1, "x"), fail) == [START, added(0), fail]
