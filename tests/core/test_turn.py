"""The turn assembler: what loose deltas become, by choice and by index, and how answers end."""

from collections.abc import Callable

import pytest

from dragoman.core.error import MAX_ITEMS, TOO_MANY, FaultError
from dragoman.core.event import (
    Delta,
    DeltaKind,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    Progress,
    Started,
)
from dragoman.core.fold import fold
from dragoman.core.item import (
    Annotation,
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
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import CUT, EMPTY, Think, Turn

NOTE = Annotation("url_citation", url="https://example.com")


def played(*steps: Callable[[Turn], object], think: Think = None, end: bool = True) -> list[Event]:
    """The events of a turn that takes these steps; by default its end is said."""
    turn = Turn("r", 7, "m", think=think)
    for step in steps:
        step(turn)
    if end:
        turn.end(complete=True)
    events = turn.take()
    check(events)
    return events


def answer(*steps: Callable[[Turn], object], think: Think = None) -> Response:
    return fold(played(*steps, think=think))


def said(*parts: Text | Refusal | Audio, id: str = "msg_r_0") -> Message:
    """The message of an answer that ended well."""
    return Message("assistant", parts, id=id, status="completed")


# ---- beginning and end -------------------------------------------------------------------


def test_r1_10_an_answer_begins_once() -> None:
    events = played(
        lambda t: t.header("real", {"upstream": {"id": "up"}}),
        lambda t: t.header("other"),
        lambda t: t.begin(),
        lambda t: t.text("Hi"),
    )
    assert [e for e in events if isinstance(e, Started)] == [
        Started("r", 7, "real", extra={"upstream": {"id": "up"}})
    ]


def test_late_upstream_fields_are_sent_with_the_end() -> None:
    end = played(lambda t: t.text("Hi"), lambda t: t.header(None, {"upstream": {"x": 1}}))[-1]
    assert isinstance(end, Finished)
    assert end.extra == {"upstream": {"x": 1}}


def test_r1_w11_cut_is_a_failure_and_output_so_far_remains() -> None:
    turn = Turn("r", 0, "m")
    turn.text("Hel")
    turn.text("<th", choice=1)
    turn.end(complete=False)
    events = turn.take()
    check(events)
    response = fold(events)
    assert events[-1].fault == CUT
    assert response.status == "failed"
    assert [item.text for item in response.output if isinstance(item, Message)] == ["Hel", "<th"]


def test_finish_reason_before_the_transport_breaks_is_an_end() -> None:
    turn = Turn("r", 0, "m")
    turn.text("Hi")
    assert not turn.all_finished
    turn.finish("stop")
    assert turn.all_finished
    turn.end(complete=False)
    assert fold(turn.take()).status == "completed"


def test_empty_answer_is_a_fault() -> None:
    assert played() == [Failed(EMPTY)]


def test_finished_choice_without_output_is_an_empty_message() -> None:
    response = answer(lambda t: t.expect(0), lambda t: t.finish("stop"))
    assert response.output == (said(Text("")),)
    assert answer(lambda t: t.finish("content_filter")).output == ()


def test_nothing_follows_the_end() -> None:
    late: list[Callable[[Turn], object]] = [
        lambda t: t.text("late", 1),
        lambda t: t.call(CallFragment(0, "x", "f", "{}")),
        lambda t: t.open(Message("assistant")),
        lambda t: t.progress(None, "alive"),
        lambda t: t.complete("completed", ("stop",)),
        lambda t: t.fail(CUT),
        lambda t: t.end(complete=False),
        lambda t: t.begin(),
    ]
    events = played(lambda t: t.text("Hi"), lambda t: t.end(complete=True), *late)
    assert isinstance(events[-1], Finished)
    assert played(lambda t: t.fail(CUT), *late) == [Failed(CUT)]


WORDS = ("text", "refusal", "reasoning", "summary")


@pytest.mark.parametrize("kind", WORDS)
def test_a_delta_has_the_kind_of_its_method(kind) -> None:
    deltas = [e for e in played(lambda t: getattr(t, kind)("a")) if isinstance(e, Delta)]
    assert [(delta.kind, delta.data) for delta in deltas] == [(kind, "a")]


@pytest.mark.parametrize("kind", WORDS)
def test_words_behind_the_end_are_dropped(kind) -> None:
    turn = Turn("r", 7, "m")
    turn.end(complete=True)
    turn.take()
    getattr(turn, kind)("a")
    assert turn.take() == []


def test_text_after_the_finish_reason_is_closed_at_the_end() -> None:
    response = answer(
        lambda t: t.text("Hi"),
        lambda t: t.finish("stop"),
        lambda t: t.text(" there"),
        lambda t: t.call(CallFragment(0, "x", "f")),
    )
    assert response.text == "Hi there"
    assert response.calls[0] == FunctionCall("x", "f", "{}", id="fc_r_2", status="completed")


# ---- by choice ---------------------------------------------------------------------------


def test_encrypted_content_is_attached_to_its_reasoning() -> None:
    response = answer(
        lambda t: t.reasoning("hm"),
        lambda t: t.attach_reasoning({"chat": {"signature": "s"}}, encrypted="blob"),
        lambda t: t.attach_reasoning({"chat": {"more": 1}}),
    )
    assert response.output[0] == Reasoning(
        (Thought("hm"),),
        encrypted="blob",
        id="rs_r_0",
        status="completed",
        extra={"chat": {"signature": "s", "more": 1}},
    )


def test_encrypted_content_is_ignored_outside_reasoning() -> None:
    def seal(turn: Turn) -> None:
        item = turn.item(0)
        item.attach_reasoning({"chat": {"x": 1}}, "blob")

    assert answer(lambda t: t.text("Hi"), seal).output[0].extra is None


def test_wire_fields_are_attached_to_the_last_item() -> None:
    response = answer(
        lambda t: t.attach({"chat": {"first": 1}}),
        lambda t: t.text("Hi"),
        lambda t: t.attach({"chat": {"x": 1}}),
    )
    assert response.output[0].extra == {"chat": {"first": 1, "x": 1}}


# ---- think tags --------------------------------------------------------------------------

THOUGHT = "<think>\nhm\n</think>\n\nYes"


def test_text_held_back_by_a_tag_is_emitted_first() -> None:
    note = answer(lambda t: t.text("<th"), lambda t: t.annotate(NOTE), think="inline").output
    assert note[0] == said(Text("<th", (NOTE,)))
    for step in (
        lambda t: t.refusal("no"),
        lambda t: t.reasoning("hm"),
        lambda t: t.audio(transcript="a"),
        lambda t: t.attach_reasoning({}),
        lambda t: t.call(CallFragment(0, "x", "f")),
        lambda t: t.finish("stop"),
    ):
        assert answer(lambda t: t.text("<th"), step, think="inline").text == "<th"


def test_r2_30_tokens_of_held_back_text_are_emitted() -> None:
    tokens = [Token(c, -1.0) for c in THOUGHT]
    steps = [lambda t, k=k: t.text(k.text, 0, (k,)) for k in tokens]
    thought, message = answer(*steps, think="inline").output
    assert isinstance(thought, Reasoning)
    kept = [p.tokens for p in (*thought.content, *message.parts) if isinstance(p, Thought | Text)]
    assert [token for part in kept for token in part] == tokens
    alone = answer(lambda t: t.text("", 0, (tokens[0],)), think="inline").output[0]
    assert alone == said(Text("", tokens=(tokens[0],)))


# ---- ids ---------------------------------------------------------------------------------


def test_v19_ids_are_derived_where_they_are_missing_or_taken() -> None:
    response = answer(
        lambda t: t.open(Message("assistant", id="m")),
        lambda t: t.open(Message("assistant", id="m")),
        lambda t: t.open(Message("assistant", id="msg_r_3")),
        lambda t: t.open(Message("assistant")),
        lambda t: t.open(FunctionCall("c", "f", "")),
        lambda t: t.open(CustomToolCall("c", "g", "")),
        lambda t: t.open(Unknown("responses", "search", {}, "m")),
        lambda t: t.open(Unknown("responses", "search", {})),
        lambda t: t.complete("completed", ("stop",)),
    )
    assert [item.id for item in response.output] == [
        *("m", "msg_r_1", "msg_r_3", "msg_r_3_", "fc_r_4", "ctc_r_5", "item_r_6", None)
    ]
    assert [call.call_id for call in response.calls] == ["c", "call_r_1"]


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
    assert fold(events).output[0] == said(
        Text("Hel"), Audio("QUJDREVG", transcript="abcd"), Audio(), id="m"
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
        said(Text("Hel"), Text("more"), id="m"),
        said(Text("a"), id="n"),
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
    assert response.output[0] == said(Text("ab"), Text("xy"), Refusal("no"), id="m")


def test_delta_for_a_closed_part_is_ignored() -> None:
    def shut_part(turn: Turn) -> None:
        item = turn.item(0)
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
    assert response.output[0] == said(Text("abc"), Text("next"), id="m")


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


def test_items_without_a_choice_close_at_the_end() -> None:
    assert answer(lambda t: t.open(Message("assistant"))).reasons == ("stop",)


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


def test_empty_deltas_give_no_events() -> None:
    empty = [lambda t, kind=kind: getattr(t, kind)("") for kind in WORDS]
    events = played(*empty, lambda t: t.finish("stop"))
    assert not [e for e in events if isinstance(e, Delta)]


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


# ---- bounds --------------------------------------------------------------------------------


def parts(turn: Turn, count: int) -> None:
    index = turn.open(Message("assistant"))
    for number in range(count):
        turn.write(index, "text", "a", number)


MANY = {
    "items": lambda turn, count: [turn.open(Message("assistant")) for _ in range(count)],
    "parts": parts,
    "calls without a name": lambda turn, count: [
        turn.call(CallFragment(number, arguments="{")) for number in range(count)
    ],
}


@pytest.mark.parametrize("name", MANY)
def test_items_parts_and_calls_have_a_bound(name) -> None:
    MANY[name](Turn("1", 0, "m"), MAX_ITEMS)
    turn = Turn("1", 0, "m")
    with pytest.raises(FaultError) as raised:
        MANY[name](turn, MAX_ITEMS + 1)
    turn.fail(raised.value.fault)
    assert turn.take()[-1] == Failed(TOO_MANY)


def test_text_held_back_does_not_keep_an_answer_with_too_many_items_from_ending() -> None:
    turn = Turn("1", 0, "m")
    turn.text("<thi")
    for _ in range(MAX_ITEMS):
        turn.open(Message("assistant"))
    turn.fail(TOO_MANY)
    assert turn.take()[-1] == Failed(TOO_MANY)


def test_fields_added_to_an_item_are_not_copied_each_time() -> None:
    turn = Turn("1", 0, "m")
    index = turn.open(FunctionCall("c", "f", "", extra={"chat": {"a": 1}}))
    opened = turn.item(index)
    for number in range(3):
        opened.add_extra({"chat": {f"x{number}": number}})
    turn.close(index)
    added, *_, done = (e for e in turn.take() if isinstance(e, ItemAdded | ItemDone))
    assert added.item.extra == {"chat": {"a": 1}}
    assert done.item.extra == {"chat": {"a": 1, "x0": 0, "x1": 1, "x2": 2}}
