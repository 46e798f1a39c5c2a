"""Folding what no whole answer shows: items that are still open, news from both ends."""

from dragoman.core.error import Fault
from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    PartAdded,
    Progress,
    Started,
)
from dragoman.core.fold import Fold, fold, unfold
from dragoman.core.item import (
    Annotation,
    Audio,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Text,
    Token,
    Unknown,
)
from dragoman.core.lifecycle import check
from dragoman.core.loss import Loss
from dragoman.core.response import Response
from tests.answers import answer

START = Started("r", 0, "m")


def open_item(item: Item, *events: Event) -> Item:
    """The first item of an answer that has come this far."""
    return fold([START, ItemAdded(0, item), *events]).output[0]


def test_fold_of_nothing_is_in_progress_and_empty() -> None:
    assert Fold().response == Response(id="", created_at=0, model="", status="in_progress")


def test_progress_adds_nothing() -> None:
    assert fold([START, Progress(None, "alive")]) == fold([START])


def test_open_calls_have_the_arguments_so_far() -> None:
    assert open_item(FunctionCall("c", "f", ""), Delta(0, 0, "arguments", '{"a')) == FunctionCall(
        "c", "f", '{"a'
    )
    assert open_item(CustomToolCall("c", "f", ""), Delta(0, 0, "input", "ls")) == CustomToolCall(
        "c", "f", "ls"
    )
    unknown = Unknown("responses", "search", {})
    assert open_item(unknown, Delta(0, 0, "code", "x")) == unknown


def test_losses_and_extra_of_start_and_end_are_merged() -> None:
    first, last = Loss("a", "dropped", "why"), Loss("b", "emulated", "why")
    start = Started("r", 0, "m", (first,), {"upstream": {"id": "u"}, "chat": {"x": 1}})
    end = Finished("completed", losses=(last,), extra={"upstream": {"y": 2}})
    whole = fold([start, end])
    assert whole.losses == (first, last)
    assert whole.extra == {"upstream": {"id": "u", "y": 2}, "chat": {"x": 1}}
    assert fold([START, Failed(Fault("internal", "x"), extra=end.extra)]).extra == end.extra


def test_unfold_of_a_sparse_response_is_legal() -> None:
    for status, reason in (("completed", "stop"), ("incomplete", "length"), ("cancelled", "stop")):
        bare = Response(id="r", created_at=0, model="m", status=status)
        events = list(unfold(bare))
        check(events)
        assert events[-1] == Finished(bare.status, (reason,))
    failed = list(unfold(Response(id="r", created_at=0, model="m", status="failed")))
    check(failed)
    assert fold(failed).error is not None


def test_unfold_of_a_response_in_progress_has_no_end() -> None:
    calls = (
        FunctionCall("c", "f", "", id="a", status="completed"),
        CustomToolCall("d", "g", "", id="b", status="in_progress"),
        Message("assistant", (Text("Hel"), Audio()), id="c", status="in_progress"),
    )
    response = Response(id="r", created_at=0, model="m", status="in_progress", output=calls)
    assert fold(unfold(response)) == response


def test_string_content_stays_a_string() -> None:
    said = Message("assistant", "Hi", id="m", status="completed")
    check(unfold(answer(said)))
    assert fold(unfold(answer(said))) == answer(said)


def test_deltas_in_a_row_are_folded_in_order_with_annotations_and_tokens_between() -> None:
    note, token = Annotation("n"), Token("c")
    said = (Delta(0, 0, "text", text) for text in ("d", "e"))
    item = open_item(
        Message("assistant", ()),
        PartAdded(0, 0, Text("")),
        Delta(0, 0, "text", "a"),
        Delta(0, 0, "text", "b"),
        Delta(0, 0, "annotation", note),
        Delta(0, 0, "annotation", note),
        Delta(0, 0, "text", "c", (token,)),
        *said,
    )
    whole = Text("abcde", annotations=(note, note), tokens=(token,))
    assert item == Message("assistant", (whole,))


def test_cancelled_answer_folds_as_far_as_it_came() -> None:
    events = [
        Started("1", 0, "m"),
        ItemAdded(0, Message("assistant", ())),
        PartAdded(0, 0, Text("")),
        Delta(0, 0, "text", "Hel"),
        Finished("cancelled"),
    ]
    taken = Fold()
    taken.feed_all(events)
    assert taken.response == fold(events)
    assert taken.response.text == "Hel"
