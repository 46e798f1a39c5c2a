"""The turn assembler by index: items and parts that say which they are, and final words on them."""

from collections.abc import Callable

from dragoman.core.error import Fault
from dragoman.core.event import DeltaKind, Failed, ItemAdded, ItemDone, Progress, Started
from dragoman.core.fold import fold
from dragoman.core.item import (
    Audio,
    CustomToolCall,
    FunctionCall,
    Image,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    Unknown,
)
from dragoman.core.lifecycle import check
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from tests.core.test_turn import NOTE, answer, played


def by_index(*steps: Callable[[Turn], object]) -> Response:
    return answer(*steps, lambda t: t.complete("completed", ("stop",)))


def test_items_by_index_may_interleave() -> None:
    events = played(
        lambda t: t.open(FunctionCall("a", "f", "")),
        lambda t: t.open(FunctionCall("b", "g", "")),
        lambda t: t.write(1, "arguments", '{"b":'),
        lambda t: t.write(0, "arguments", "{}"),
        lambda t: t.write(1, "arguments", "2}"),
        lambda t: t.close(1),
        lambda t: t.close(1),
        lambda t: t.write(1, "arguments", "noise"),
        lambda t: t.complete("completed", ("tool_calls",)),
    )
    assert [c.arguments for c in fold(events).calls if isinstance(c, FunctionCall)] == [
        "{}",
        '{"b":2}',
    ]
    assert [e.index for e in events if isinstance(e, ItemDone)] == [1, 0]


def test_a_finished_call_without_arguments_has_the_empty_object() -> None:
    response = by_index(
        lambda t: t.open(FunctionCall("a", "f", "")),
        lambda t: t.open(FunctionCall("b", "g", "")),
        lambda t: t.close(0, FunctionCall("a", "f", "", status="incomplete")),
    )
    assert [c.arguments for c in response.calls if isinstance(c, FunctionCall)] == ["", "{}"]


def test_whole_items_without_deltas_give_all_events() -> None:
    message = Message(
        "assistant",
        (
            Text("Hi", (NOTE,), (Token("Hi", -1.0),)),
            Refusal("no"),
            Audio("QUJD", transcript="abc"),
            Image("https://example.com/a.png"),
        ),
        id="m",
        status="completed",
        phase="final_answer",
    )
    reasoning = Reasoning(
        (Thought("hm"),), (Summary("s1"), Summary("s2")), "blob", id="r", status="completed"
    )
    call = FunctionCall("c", "f", '{"a":1}', id="f", status="completed")
    custom = CustomToolCall("d", "g", "ls", id="g", status="incomplete")
    unknown = Unknown("responses", "search", {"q": 1, "done": True}, "u")
    items = (message, reasoning, call, custom, unknown)
    opened = (*items[:4], Unknown("responses", "search", {"q": 1}, "u"))
    steps = [lambda t, i=item: t.open(i) for item in opened]
    steps += [lambda t, n=n, i=item: t.close(n, i) for n, item in enumerate(items)]
    assert by_index(*steps).output == items


def test_a_final_item_adds_only_what_the_deltas_left_out() -> None:
    final = Message(
        "assistant",
        (Text("Hello", (NOTE,)), Audio("QUJDREVG", transcript="abcd"), Audio()),
        status="in_progress",
    )
    events = played(
        lambda t: t.open(Message("assistant", id="m")),
        lambda t: t.write(0, "text", "Hel"),
        lambda t: t.write(0, "audio", "QUJDRA"),
        lambda t: t.write(0, "transcript", "ab"),
        lambda t: t.close(0, final),
        lambda t: t.complete("completed", ("stop",)),
    )
    assert fold(events).output[0] == Message(
        "assistant",
        (Text("Hel"), Audio("QUJDREVG", transcript="abcd"), Audio()),
        id="m",
        status="completed",
    )


def test_deltas_win_over_a_final_item_that_disagrees() -> None:
    response = by_index(
        lambda t: t.open(Message("assistant", id="m")),
        lambda t: t.write(0, "text", "Hel", 0),
        lambda t: t.close(0, Message("assistant", (Text("Bye"), Text("more")))),
        lambda t: t.open(Message("assistant", id="n")),
        lambda t: t.write(1, "text", "a"),
        lambda t: t.close(1, FunctionCall("x", "f", "{}")),
        lambda t: t.open(FunctionCall("x", "f", "")),
        lambda t: t.write(2, "arguments", '{"a":1}'),
        lambda t: t.close(2, FunctionCall("other", "g", "{}")),
    )
    assert response.output == (
        Message("assistant", (Text("Hel"), Text("more")), id="m", status="completed"),
        Message("assistant", (Text("a"),), id="n", status="completed"),
        FunctionCall("x", "f", '{"a":1}', id="fc_r_2", status="completed"),
    )


def test_parts_with_numbers_may_be_open_side_by_side() -> None:
    response = by_index(
        lambda t: t.open(Message("assistant", id="m")),
        lambda t: t.write(0, "text", "a", 3),
        lambda t: t.write(0, "text", "x", 4),
        lambda t: t.write(0, "text", "b", 3),
        lambda t: t.write(0, "refusal", "no", 3),
        lambda t: t.write(0, "text", "y", 4),
    )
    assert response.output[0] == Message(
        "assistant", (Text("ab"), Text("xy"), Refusal("no")), id="m", status="completed"
    )


def test_delta_for_a_closed_part_is_ignored() -> None:
    def shut_part(turn: Turn) -> None:
        item = turn.item(0)
        assert item is not None
        part = item.at("text", 0)[1]
        turn.emit(item.close_part(part, Text("abc")))
        turn.emit(item.close_part(part))
        turn.emit(item.annotate(NOTE, 0))

    response = by_index(
        lambda t: t.open(Message("assistant", id="m")),
        lambda t: t.write(0, "text", "ab", 0),
        shut_part,
        lambda t: t.write(0, "text", "late", 0),
        lambda t: t.write(0, "text", "next"),
    )
    assert response.output[0] == Message(
        "assistant", (Text("abc"), Text("next")), id="m", status="completed"
    )


def test_delta_of_a_wrong_kind_is_ignored() -> None:
    items = (
        Message("assistant", id="m", status="completed"),
        Reasoning(id="r", status="completed"),
        FunctionCall("c", "f", "{}", id="f", status="completed"),
        CustomToolCall("d", "g", "", id="g", status="completed"),
    )
    wrong: list[DeltaKind] = ["arguments", "text", "input", "arguments"]
    steps = [lambda t, i=item: t.open(i) for item in items]
    steps += [lambda t, n=n, k=kind: t.write(n, k, "x") for n, kind in enumerate(wrong)]
    assert by_index(*steps).output == items


def test_half_a_character_at_the_end_of_arguments_is_replaced() -> None:
    response = by_index(
        lambda t: t.open(CustomToolCall("a", "f", "")),
        lambda t: t.write(0, "input", "x\ud83d"),
        lambda t: t.open(Unknown("responses", "code", {})),
        lambda t: t.write(1, "code", "y\ud83d"),
        lambda t: t.write(1, "code", ""),
    )
    assert response.calls[0] == CustomToolCall(
        "a", "f", "x\ufffd", id="ctc_r_0", status="completed"
    )


def test_item_closed_by_index_is_closed_for_its_choice() -> None:
    response = answer(lambda t: t.text("a"), lambda t: t.close(0), lambda t: t.text("b"))
    assert [i.text for i in response.output if isinstance(i, Message)] == ["a", "b"]


def test_progress_of_an_unknown_item_is_of_the_answer() -> None:
    events = played(
        lambda t: t.progress(3, "searching"),
        lambda t: t.open(Message("assistant")),
        lambda t: t.progress(0, "raw", {"chat": {"x": 1}}),
        lambda t: t.complete("completed", ("stop",)),
    )
    assert [e for e in events if isinstance(e, Progress)] == [
        Progress(None, "searching"),
        Progress(0, "raw", {"chat": {"x": 1}}),
    ]


def test_incomplete_end_makes_open_items_incomplete() -> None:
    events = played(
        lambda t: t.open(Message("assistant")),
        lambda t: t.complete("incomplete", ("length",)),
        end=False,
    )
    assert fold(events).output[0].status == "incomplete"


def test_items_without_a_choice_close_at_the_end() -> None:
    assert answer(lambda t: t.open(Message("assistant"))).reasons == ("stop",)


def test_a_failure_leaves_open_items_open() -> None:
    turn = Turn("r", 0, "m")
    turn.open(FunctionCall("x", "f", ""))
    assert turn.has_output
    turn.fail(Fault("upstream_error", "broken"))
    events = turn.take()
    check(events)
    assert [type(e) for e in events] == [Started, ItemAdded, Failed]


def test_text_goes_into_the_item_that_was_opened() -> None:
    response = answer(
        lambda t: t.next_item(Reasoning()),
        lambda t: t.reasoning("Hm"),
        lambda t: t.next_item(Message("assistant", phase="commentary")),
        lambda t: t.text("One"),
        lambda t: t.close_message(),
        lambda t: t.text("Two"),
        lambda t: t.next_item(FunctionCall("c", "f", "")),
        lambda t: t.text("Three"),
        lambda t: t.finish("stop"),
        lambda t: t.end(complete=True),
    )
    assert [item.text for item in response.output if isinstance(item, Message)] == [
        "One",
        "Two",
        "Three",
    ]
    assert [type(item) for item in response.output[::3]] == [Reasoning, FunctionCall]
    assert isinstance(first := response.output[1], Message)
    assert first.phase == "commentary"
