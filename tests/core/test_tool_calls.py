"""Fragments of tool calls as servers really send them, and the calls they must become.

Each row is what one kind of server does; the fragments go through a whole turn, so that what is
compared is what a client sees.
"""

from itertools import repeat
from typing import Any

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace

from dragoman.core import tool_calls
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall
from dragoman.core.lifecycle import check
from dragoman.core.tool_calls import LONGEST, CallFragment, CallSorter, LooseCall
from dragoman.core.turn import Turn
from tests.cases import cases

F = CallFragment
Row = list[tuple[str, str]]


def events_of(*pieces: CallFragment | str, reason: str = "tool_calls") -> list[Any]:
    """All events of a turn that brings these fragments and texts."""
    turn = Turn("r", 0, "m")
    for piece in pieces:
        turn.text(piece) if isinstance(piece, str) else turn.call(piece)
    turn.finish(reason)
    turn.end(complete=True)
    events = turn.take()
    check(events)
    return events


def called(*fragments: CallFragment, reason: str = "tool_calls") -> Row:
    """Name and arguments of every call that comes of them; their ids are seen to be distinct."""
    calls = fold(events_of(*fragments, reason=reason)).calls
    assert len({call.call_id for call in calls}) == len(calls)
    return [
        (call.name, call.arguments if isinstance(call, FunctionCall) else call.input)
        for call in calls
    ]


CASES = cases(__file__, "tool_calls")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_fragments_become_the_expected_calls(case) -> None:
    fragments = convert(case["fragments"], list[CallFragment])
    response = fold(events_of(*fragments, reason=case.get("reason", "tool_calls")))
    assert to_builtins(response.calls) == tuple(case["calls"])
    assert len({call.call_id for call in response.calls}) == len(response.calls)
    assert response.status == case["status"]
    assert (response.error.message if response.error else None) == case.get("error")


def test_p7_parallel_calls_stay_in_order() -> None:
    many = [F(n, f"id{n}", f"f{n}", f'{{"n":{n}}}') for n in range(20)]
    assert called(*many) == [(f"f{n}", f'{{"n":{n}}}') for n in range(20)]


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
        assert called(*cut, F(name="g", arguments='{"b":2}')) == [("f", text), ("g", '{"b":2}')]


def test_text_after_a_complete_call_closes_it() -> None:
    events = events_of(F(0, "x", "f", '{"a":1}'), "done", F(0, arguments="noise"), reason="stop")
    assert fold(events).calls[0] == FunctionCall(
        "x", "f", '{"a":1}', id="fc_r_0", status="completed"
    )


def test_text_between_the_pieces_of_a_call_does_not_break_it() -> None:
    answer = fold(events_of(F(0, "x", "f", '{"a"'), "wait", F(0, arguments=":1}")))
    assert answer.text == "wait"
    assert [call.arguments for call in answer.calls] == ['{"a":1}']


@pytest.mark.parametrize("size", [20_000])
def test_long_arguments_are_scanned_once(size) -> None:
    sorter = CallSorter(repeat(None))
    call = sorter.sort(F(name="f", arguments='{"a":"'))
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
@pytest.mark.uncounted
def test_many_calls_cost_linear_time(monkeypatch, fragment, reasons) -> None:
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


def test_long_arguments_are_not_parsed(monkeypatch) -> None:
    """60 MB of them took seconds, on the event loop, where an answer was cut off."""
    parsed: list[int] = []
    loads = tool_calls.json.loads
    monkeypatch.setattr(tool_calls.json, "loads", lambda t: (parsed.append(len(t)), loads(t))[1])
    for size, complete in ((LONGEST, True), (LONGEST + 1, False)):
        pieces = ['{"a":"', "x" * (size - 8), '"}']
        call = LooseCall(F(0, "c", "f"))
        for piece in pieces:
            call.pieces.append(piece)
            assert call.complete is (complete and piece == '"}')
        assert called(F(0, "c", "f"), *[F(0, arguments=piece) for piece in pieces]) == [
            ("f", "".join(pieces))
        ]
    assert parsed == [LONGEST] * len(parsed) != []
    # All calls of an answer count together.
    many = [F(0, f"c{n}", "f", pieces[0] + pieces[1]) for n in range(3)]
    parsed.clear()
    called(*[replace(each, index=n) for n, each in enumerate(many)], reason="length")
    assert not parsed
