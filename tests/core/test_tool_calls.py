"""Fragments of tool calls as servers really send them, and the calls they must become.

Each row is what one kind of server does; the fragments go through a whole turn, so that what is
compared is what a client sees.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.event import Failed
from dragoman.core.fold import fold
from dragoman.core.item import CustomToolCall, FunctionCall
from dragoman.core.lifecycle import check
from dragoman.core.tool_calls import CallFragment, CallSorter, LooseCall
from dragoman.core.turn import NAMELESS, Turn

F = CallFragment
Row = list[tuple[str, str]]


def heard(*fragments: CallFragment, reason: str = "tool_calls") -> list[Any]:
    """All events of a turn that brings these fragments."""
    turn = Turn("r", 0, "m")
    for fragment in fragments:
        turn.call(fragment)
    turn.finish(reason)
    turn.end(complete=True)
    events = turn.take()
    check(events)
    return events


def called(*fragments: CallFragment, reason: str = "tool_calls") -> Row:
    """Name and arguments of every call that comes of them; their ids are seen to be distinct."""
    calls = fold(heard(*fragments, reason=reason)).calls
    assert len({call.call_id for call in calls}) == len(calls)
    return [
        (call.name, call.arguments if isinstance(call, FunctionCall) else call.input)
        for call in calls
    ]


TWO: Row = [("f", '{"a":1}'), ("g", '{"b":2}')]
TWICE: Row = [("f", '{"a":1}'), ("f", '{"a":2}')]


def test_p1_two_calls_without_indices_or_ids() -> None:
    assert called(
        F(name="f"), F(arguments='{"a"'), F(arguments=":1}"), F(name="g"), F(arguments='{"b":2}')
    ) == TWO  # fmt: skip
    assert called(F(name="f", arguments='{"a":1}'), F(name="f", arguments='{"a":2}')) == TWICE


def test_p1_calls_without_indices_are_separated_by_ids() -> None:
    assert called(
        F(id="x", name="f"),
        F(id="y", name="g"),
        F(id="x", arguments='{"a":1}'),
        F(id="y", arguments='{"b":2}'),
    ) == TWO  # fmt: skip


def test_p2_the_same_index_for_all_calls() -> None:
    assert called(
        F(0, "x", "f"), F(0, arguments='{"a":1}'), F(0, "y", "g"), F(0, arguments='{"b":2}')
    ) == TWO  # fmt: skip
    assert called(F(0, None, "f", '{"a":1}'), F(0, None, "g", '{"b":2}')) == TWO
    assert called(F(0, None, "f", '{"a":1}'), F(0, None, "f", '{"a":2}')) == TWICE


def test_p2_the_same_index_and_the_same_name_in_a_fragment_of_its_own() -> None:
    assert called(
        F(0, name="f"), F(0, arguments='{"a":1}'), F(0, name="f"), F(0, arguments='{"a":2}')
    ) == TWICE  # fmt: skip


def test_p4_interleaved_calls_on_one_index_are_separated_by_ids() -> None:
    assert called(
        F(0, "x", "f"),
        F(0, "y", "g"),
        F(0, "x", arguments='{"a"'),
        F(0, "y", arguments='{"b"'),
        F(0, "x", arguments=":1}"),
        F(0, "y", arguments=":2}"),
    ) == TWO  # fmt: skip


def test_p4_interleaved_calls_by_index() -> None:
    assert called(
        F(0, "x", "f"),
        F(1, "y", "g"),
        F(1, arguments='{"b"'),
        F(0, arguments='{"a"'),
        F(0, arguments=":1}"),
        F(1, arguments=":2}"),
    ) == TWO  # fmt: skip


def test_p7_parallel_calls_stay_in_order() -> None:
    many = [F(n, f"id{n}", f"f{n}", f'{{"n":{n}}}') for n in range(20)]
    assert called(*many) == [(f"f{n}", f'{{"n":{n}}}') for n in range(20)]


def test_arguments_before_the_name() -> None:
    assert called(F(0, arguments='{"a"'), F(0, name="f"), F(0, arguments=":1}")) == TWO[:1]
    assert called(
        F(0, arguments='{"a":1}'), F(1, arguments='{"b":2}'), F(0, name="f"), F(1, name="g")
    ) == TWO  # fmt: skip
    assert called(
        F(name="f", arguments='{"a":1}'), F(arguments='{"b":2}'), F(name="g")
    ) == TWO  # fmt: skip


def test_a_late_id_is_the_same_call() -> None:
    assert called(F(0, None, "f", '{"a"'), F(0, "x", None, ":1}")) == TWO[:1]
    assert called(F(None, None, "f", '{"a"'), F(None, "x", None, ":1}")) == TWO[:1]
    assert called(F(None, None, "f"), F(None, "x", "f", '{"a":1}')) == TWO[:1]
    assert called(F(0, None, None, '{"a"'), F(0, "x", "f", ":1}")) == TWO[:1]


def test_p3_an_orphan_on_a_new_index_belongs_to_the_open_call() -> None:
    assert called(F(0, "x", "f"), F(4, arguments='{"a"'), F(9, arguments=":1}")) == TWO[:1]
    assert called(F(0, "x", "f", '{"a"'), F(7, "x", "f", ":1}")) == TWO[:1]


def test_two_calls_that_share_an_id() -> None:
    shared = [F(0, "x", "f"), F(1, "x", "g"), F(0, arguments='{"a":1}'), F(1, arguments='{"b":2}')]
    assert called(*shared) == TWO
    assert called(F(0, "x", "f"), F(1, "x", "f"), F(1, "x", arguments='{"a":2}'),
                  F(0, "x", arguments='{"a":1}')) == TWICE  # fmt: skip
    assert called(F(None, "x", "f", '{"a":1}'), F(None, "x", "f", '{"a":2}')) == TWICE


def test_id_and_name_repeated_in_every_fragment() -> None:
    assert called(F(0, "x", "f", '{"a"'), F(0, "x", "f", ":"), F(0, "x", "f", "1}")) == TWO[:1]
    assert called(F(0, "x", "f", '{"a":1}'), F(0, "x", "f", "")) == TWO[:1]
    assert called(F(None, None, "f", '{"a"'), F(None, None, "f", ":1}")) == TWO[:1]


def test_repeated_name_alone_begins_no_call() -> None:
    fragments = [F(0, "x", "f", '{"a":1}'), F(0, None, "f"), F(1, "y", "g", '{"b":2}')]
    assert called(*fragments) == TWO


def test_empty_ids_and_names_are_none() -> None:
    assert called(F(0, "x", "f", '{"a"'), F(0, "", "", ":1}")) == TWO[:1]


def test_empty_arguments_become_the_empty_object() -> None:
    assert called(F(0, "x", "f")) == [("f", "{}")]
    assert called(F(0, "x", "f", " ")) == [("f", " {}")]


def test_placeholder_object_is_replaced_by_the_arguments() -> None:
    assert called(F(0, "x", "f", "{}"), F(0, arguments='{"a":1}')) == TWO[:1]
    assert called(F(0, "x", "f", "{}")) == [("f", "{}")]
    assert called(F(0, "x", "f", "{}"), reason="length") == [("f", "{}")]
    assert called(F(None, None, "f", "{}"), F(None, None, "f", "{}")) == [("f", "{}")] * 2
    assert called(F(None, None, "f", "{}"), F(None, None, "f", '{"a":1}')) == TWO[:1]


def test_v13_unparsable_arguments_do_not_spoil_the_other_calls() -> None:
    bad, good = '{"a": oops} and more', '{"b":2}'
    assert called(F(0, "x", "f", bad), F(1, "y", "g", good)) == [("f", bad), ("g", good)]
    assert called(F(name="f", arguments="[1]"), F(arguments="]")) == [("f", "[1]]")]
    assert called(F(name="f", arguments='{"a":1}'), F(arguments="}")) == [("f", '{"a":1}}')]
    assert called(F(name="f", arguments='{"a":1}}'), F(arguments="{")) == [("f", '{"a":1}}{')]


def test_v14_arguments_are_the_models_own_bytes() -> None:
    text = '{ "z" : "\\u00e9\\"}" ,"a":1.0 }\n'
    for size in (1, 2, 5):
        cut = [F(0, "x", "f")]
        cut += [F(0, arguments=text[n : n + size]) for n in range(0, len(text), size)]
        assert called(*cut) == [("f", text)]


def test_braces_and_quotes_inside_strings_do_not_end_a_call() -> None:
    text = '{"code":"}{ \\\\\\" }","x":{"y":"}"}}'
    for size in (1, 3):
        cut = [F(name="f")] + [F(arguments=text[n : n + size]) for n in range(0, len(text), size)]
        assert called(*cut, F(name="g", arguments='{"b":2}')) == [("f", text), TWO[1]]


def test_a_custom_call_takes_any_text() -> None:
    (call,) = fold(heard(F(0, "x", "sh", "ls ", custom=True), F(0, arguments="{}"))).calls
    assert isinstance(call, CustomToolCall)
    assert (call.name, call.input) == ("sh", "ls {}")
    (late,) = fold(heard(F(0, arguments="{}x"), F(0, "x", "sh", "", custom=True))).calls
    assert isinstance(late, CustomToolCall)
    assert late.input == "{}x"


def test_empty_fragment_is_no_call() -> None:
    assert CallSorter().sort(F(0)) is None
    assert called(F(0), F(None, "", ""), reason="stop") == []


def test_call_without_a_name_is_a_fault() -> None:
    last = heard(F(0, "x", None, '{"a":1}'))[-1]
    assert isinstance(last, Failed)
    assert last.fault == NAMELESS


def test_a_call_cut_short_before_its_name_is_no_fault() -> None:
    events = heard(F(0, "x"), reason="length")
    assert fold(events).status == "incomplete"


def test_a_call_cut_short_is_incomplete() -> None:
    half, whole = fold(
        heard(F(0, "x", "f", '{"a"'), F(1, "y", "g", '{"b":2}'), reason="length")
    ).calls
    assert (half.status, whole.status) == ("incomplete", "completed")


def test_text_after_a_complete_call_closes_it() -> None:
    turn = Turn("r", 0, "m")
    turn.call(F(0, "x", "f", '{"a":1}'))
    turn.text("done")
    turn.call(F(0, arguments="noise"))
    turn.finish("stop")
    turn.end(complete=True)
    events = turn.take()
    check(events)
    assert fold(events).calls[0] == FunctionCall(
        "x", "f", '{"a":1}', id="fc_r_0", status="completed"
    )


def test_text_between_the_pieces_of_a_call_does_not_break_it() -> None:
    turn = Turn("r", 0, "m")
    turn.call(F(0, "x", "f", '{"a"'))
    turn.text("wait")
    turn.call(F(0, arguments=":1}"))
    turn.finish("tool_calls")
    turn.end(complete=True)
    answer = fold(turn.take())
    assert answer.text == "wait"
    assert [c.arguments for c in answer.calls if isinstance(c, FunctionCall)] == ['{"a":1}']


@pytest.mark.parametrize("size", [20_000])
def test_long_arguments_are_scanned_once(size: int) -> None:
    sorter = CallSorter()
    call = sorter.sort(F(name="f", arguments='{"a":"'))
    assert call is not None
    call.pieces.append('{"a":"')
    for _ in range(size):
        assert sorter.sort(F(arguments="{}")) is call
        call.pieces.append("{}")
    assert not call.complete


@pytest.mark.parametrize(
    "fragment",
    [F(name="f", arguments='{"a":1}'), F(name="f", arguments="{}"), F(name="f", custom=True)],
    ids=["whole", "empty", "custom"],
)
@pytest.mark.parametrize("reasons", [1, 2000], ids=["one end", "an end after each"])
def test_many_calls_cost_linear_time(
    monkeypatch: pytest.MonkeyPatch, fragment: CallFragment, reasons: int
) -> None:
    looks = 0
    complete = LooseCall.complete.fget
    shut = Turn._close_call

    def look(call: LooseCall) -> bool:
        nonlocal looks
        looks += 1
        return complete(call)

    def counted(turn: Turn, *args: Any) -> None:
        nonlocal looks
        looks += 1
        shut(turn, *args)

    monkeypatch.setattr(LooseCall, "complete", property(look))
    monkeypatch.setattr(Turn, "_close_call", counted)
    count, turn = 2000, Turn("r", 0, "m")
    for index in range(count):
        turn.call(replace(fragment, index=index, id=f"c{index}"))
        if index % (count // reasons) == 0:
            turn.finish("tool_calls")
    turn.end(complete=True)
    assert len(fold(turn.take()).calls) == count
    assert looks <= 6 * count


def test_call_complete_before_its_name_stays_open() -> None:
    """Being announced, it is not closed by its own announcement."""
    turn = Turn("r", 0, "m")
    turn.call(F(index=0, id="a", arguments='{"a":1}'))
    turn.call(F(index=0, id="a", name="f"))
    assert turn.item(0) is not None
    turn.call(F(index=1, id="b", name="g"))
    assert turn.item(0) is None


def test_call_gets_unknown_fields_that_came_late() -> None:
    early, late = {"chat": {"signature": "s"}}, {"chat": {"more": 1}}
    (call,) = fold(heard(F(0, "x", "f", extra=early), F(0, arguments="{}", extra=late))).calls
    assert call.extra == {"chat": {"signature": "s", "more": 1}}
