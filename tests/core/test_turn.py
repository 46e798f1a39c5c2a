"""The turn assembler: what loose deltas become, by choice and by index, and how answers end."""

from collections.abc import Callable

import pytest

from dragoman.core.event import Delta, Event, Failed, Finished, Started
from dragoman.core.fold import fold
from dragoman.core.item import (
    Annotation,
    Audio,
    CustomToolCall,
    FunctionCall,
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
from dragoman.core.response import Response, Usage
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


def test_r1_13_reason_and_usage_come_with_the_one_end() -> None:
    events = played(
        lambda t: t.text("Hi"),
        lambda t: t.finish("stop"),
        lambda t: setattr(t, "usage", Usage(1, 2, 3)),
        lambda t: t.end(complete=True),
    )
    assert events[-1] == Finished("completed", ("stop",), Usage(1, 2, 3))


def test_r1_w11_cut_is_a_failure_and_output_so_far_remains() -> None:
    turn = Turn("r", 0, "m")
    turn.text("Hel")
    turn.text("<th", choice=1)
    turn.end(complete=False)
    events = turn.take()
    check(events)
    response = fold(events)
    assert isinstance(events[-1], Failed)
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


def test_an_end_without_a_reason_is_stop_or_tool_calls() -> None:
    assert answer(lambda t: t.text("Hi")).reasons == ("stop",)
    assert answer(lambda t: t.call(CallFragment(0, "x", "f"))).reasons == ("tool_calls",)


def test_empty_answer_is_a_fault() -> None:
    assert played() == [Failed(EMPTY)]


def test_finished_choice_without_output_is_an_empty_message() -> None:
    response = answer(lambda t: t.expect(0), lambda t: t.finish("stop"))
    assert response.output == (Message("assistant", (Text(""),), id="msg_r_0", status="completed"),)
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


def test_v2_the_last_reason_given_counts() -> None:
    assert answer(lambda t: t.finish("stop"), lambda t: t.finish("length")).reasons == ("length",)


def test_text_after_the_finish_reason_is_closed_at_the_end() -> None:
    response = answer(
        lambda t: t.text("Hi"),
        lambda t: t.finish("stop"),
        lambda t: t.text(" there"),
        lambda t: t.call(CallFragment(0, "x", "f")),
    )
    assert response.text == "Hi there"
    assert response.calls[0] == FunctionCall("x", "f", "{}", id="fc_r_2", status="completed")


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_short_answer_is_incomplete(reason: str) -> None:
    response = answer(lambda t: t.text("Hi"), lambda t: t.finish(reason))
    assert (response.status, response.reasons) == ("incomplete", (reason,))
    assert response.output[0] == Message(
        "assistant", (Text("Hi"),), id="msg_r_0", status="incomplete"
    )


def test_r1_w10_choices_keep_their_own_items_and_reasons() -> None:
    response = answer(
        lambda t: t.text("a", 0),
        lambda t: t.text("x", 2),
        lambda t: t.text("b", 0),
        lambda t: t.finish("length", 2),
        lambda t: t.finish("stop", 0),
    )
    assert response.choices == (0, 2)
    assert response.reasons == ("stop", "stop", "length")
    assert (response.text, response.choice(2)[0]) == (
        "ab",
        Message("assistant", (Text("x"),), id="msg_r_1", status="incomplete"),
    )


@pytest.mark.parametrize("number", [-1, 10**9])
def test_choice_number_out_of_bounds_counts_as_the_first(number: int) -> None:
    assert answer(lambda t: t.text("a"), lambda t: t.text("b", number)).text == "ab"


# ---- by choice ---------------------------------------------------------------------------


def test_r1_w3_reasoning_and_refusal_are_items_and_parts_of_their_own() -> None:
    response = answer(
        lambda t: t.reasoning("hm"),
        lambda t: t.reasoning(""),
        lambda t: t.summary("short"),
        lambda t: t.text("I "),
        lambda t: t.refusal("won't", 0, (Token("won't", -1.0),)),
        lambda t: t.refusal(""),
    )
    assert response.output == (
        Reasoning((Thought("hm"),), (Summary("short"),), id="rs_r_0", status="completed"),
        Message(
            "assistant",
            (Text("I "), Refusal("won't", (Token("won't", -1.0),))),
            id="msg_r_1",
            status="completed",
        ),
    )


def test_empty_deltas_give_no_events() -> None:
    events = played(lambda t: t.text(""), lambda t: t.summary(""), lambda t: t.finish("stop"))
    assert not [e for e in events if isinstance(e, Delta)]


def test_v12_tokens_go_with_their_text() -> None:
    a, b = Token("a", -0.1), Token("b", -0.2)
    events = played(lambda t: t.text("a", 0, (a,)), lambda t: t.text("", 0, (b,)))
    assert [(e.data, e.tokens) for e in events if isinstance(e, Delta)] == [("a", (a,)), ("", (b,))]
    assert fold(events).output[0] == Message(
        "assistant", (Text("a", tokens=(a, b)),), id="msg_r_0", status="completed"
    )


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
        assert item is not None
        item.attach_reasoning({"chat": {"x": 1}}, "blob")

    assert answer(lambda t: t.text("Hi"), seal).output[0].extra is None


def test_wire_fields_are_attached_to_the_last_item() -> None:
    response = answer(
        lambda t: t.attach({"chat": {"first": 1}}),
        lambda t: t.text("Hi"),
        lambda t: t.attach({"chat": {"x": 1}}),
    )
    assert response.output[0].extra == {"chat": {"first": 1, "x": 1}}


def test_audio_is_one_part_with_its_transcript() -> None:
    response = answer(
        lambda t: t.audio(id="au", data="QU"),
        lambda t: t.audio(transcript="Hi"),
        lambda t: t.audio(data="JD", format="wav", expires_at=9),
        lambda t: t.text("and text"),
        lambda t: t.audio(id="two"),
    )
    assert response.output[0] == Message(
        "assistant",
        (
            Audio("QUJD", "wav", "Hi", "au", 9),
            Text("and text"),
            Audio(id="two"),
        ),
        id="msg_r_0",
        status="completed",
    )


def test_annotations_are_in_the_text_they_are_about() -> None:
    response = answer(lambda t: t.text("Hi"), lambda t: t.annotate(NOTE), lambda t: t.text("!"))
    assert response.output[0] == Message(
        "assistant", (Text("Hi!", (NOTE,)),), id="msg_r_0", status="completed"
    )


def test_v10_text_beside_a_call_stays_in_order() -> None:
    response = answer(
        lambda t: t.text("before"),
        lambda t: t.call(CallFragment(0, "x", "f", "{}")),
        lambda t: t.text("after"),
    )
    assert [type(item) for item in response.output] == [Message, FunctionCall, Message]
    assert response.text == "beforeafter"


# ---- think tags --------------------------------------------------------------------------

THOUGHT = "<think>\nhm\n</think>\n\nYes"


def test_p5_inline_reasoning_remembers_its_tags() -> None:
    for response in (
        answer(lambda t: t.text(THOUGHT), think="inline"),
        answer(*[lambda t, c=c: t.text(c) for c in THOUGHT], think="inline"),
    ):
        assert response.output == (
            Reasoning(
                (Thought("hm"),),
                id="rs_r_0",
                status="completed",
                extra={"inline": {"open": "<think>\n", "close": "\n</think>\n\n"}},
            ),
            Message("assistant", (Text("Yes"),), id="msg_r_1", status="completed"),
        )


def test_p5_reasoning_may_forget_its_tags_or_stay_text() -> None:
    assert answer(lambda t: t.text(THOUGHT), think="reasoning").output[0].extra is None
    assert answer(lambda t: t.text(THOUGHT), think=None).text == THOUGHT


def test_text_held_back_by_a_tag_is_emitted_first() -> None:
    note = answer(lambda t: t.text("<th"), lambda t: t.annotate(NOTE), think="inline").output
    assert note[0] == Message(
        "assistant", (Text("<th", (NOTE,)),), id="msg_r_0", status="completed"
    )
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
    assert isinstance(message, Message)
    kept = [p.tokens for p in (*thought.content, *message.parts) if isinstance(p, Thought | Text)]
    assert [token for part in kept for token in part] == tokens
    alone = answer(lambda t: t.text("", 0, (tokens[0],)), think="inline").output[0]
    assert alone == Message(
        "assistant", (Text("", tokens=(tokens[0],)),), id="msg_r_0", status="completed"
    )


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
