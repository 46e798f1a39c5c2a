"""Stop strings: found wherever the pieces end, and nothing held back that need not be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Delta
from dragoman.core.fold import fold
from dragoman.core.item import Message, Token
from dragoman.core.lifecycle import check
from dragoman.core.tool_calls import CallFragment
from dragoman.engines.token import engine
from dragoman.engines.token.engine import StoppingTurn, StopScanner
from dragoman.engines.token.source import NewTokens

letters = st.text("abé", max_size=30)
stops = st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first to be complete wins; of those that end together the longest."""
    ends = [(end, at) for s in stops for at in range(len(text))
            if text.startswith(s, at) and (end := at + len(s))]  # fmt: skip
    if not ends:
        return text, None
    end, at = min(ends)
    return text[:at], text[at:end]


@given(letters, stops, st.data())
def test_any_split_gives_the_text_up_to_the_first_stop(text, stops, data) -> None:
    scanner, said, rest = StopScanner(stops), "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        said += scanner.feed(rest[:size])
        rest = rest[size:]
    said += scanner.flush()
    assert (said, scanner.found) == reference(text, stops)


@pytest.mark.parametrize(
    ("stops", "text", "found"),
    [
        (["abcd", "bc"], "xa", "bc"),
        (["bc", "abcd"], "xa", "bc"),
        (["cd", "abcd"], "x", "abcd"),
        (["abcd", "cd"], "x", "abcd"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 9])
def test_a13_of_nested_stop_strings_the_first_complete_one_ends_the_text(
    stops, text, found, size
) -> None:
    """A string inside another is complete before it; of two that end together the longer wins."""
    scanner = StopScanner(stops)
    fed = "xabcdx"
    said = "".join(scanner.feed(fed[at : at + size]) for at in range(0, len(fed), size))
    assert (said, scanner.found) == (text, found)


@given(letters, stops)
def test_no_more_is_held_back_than_may_become_a_stop(text, stops) -> None:
    scanner, fed, said = StopScanner(stops), "", ""
    for letter in text:
        fed += letter
        said += scanner.feed(letter)
        if scanner.found:
            break
        held = fed[len(said) :]
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = (fed[at:] for at in range(len(said)))
        assert not any(stop.startswith(end) for end in longer for stop in stops)


def test_what_has_begun_is_not_looked_for_again_while_it_goes_on(monkeypatch) -> None:
    """Six such strings, and a long one that held the text back, took 6 ms for each token."""
    looked = []
    beginning = engine._beginning
    monkeypatch.setattr(
        engine, "_beginning", lambda text, *rest: looked.append(text) or beginning(text, *rest)
    )
    scanner = StopScanner(["a" * 200 + "b"])
    assert "".join(scanner.feed("a") for _ in range(150)) == ""
    assert len(looked) == 1
    assert scanner.flush() == "a" * 150
    assert scanner.feed("a" * 51 + "b") == "a" * 51 + "b"  # not what began before


def token(text: str) -> Token:
    return Token(text, -1.0, text.encode())


def test_the_tokens_of_a_text_are_those_that_begin_in_it() -> None:
    turn = StoppingTurn(["STOP"], "1", 0, "m", ())
    for piece in ("one S", "T", "two", " S", "TOP", "more"):
        turn.text(piece, 0, (token(piece),))
    turn.finish("stop")
    turn.end(complete=True)
    events = turn.take()
    check(events)
    said = [(e.data, [t.text for t in e.tokens]) for e in events if isinstance(e, Delta)]
    assert said == [("one ", ["one S"]), ("STtwo", ["T", "two"]), (" ", [" S"])]
    assert turn.stop_sequence == "STOP"


def test_tokens_without_text_of_their_own_shift_no_others() -> None:
    turn = StoppingTurn(["STOP"], "1", 0, "m", ())
    accent = [Token("�", -1.0, b"\xc3"), Token("�", -1.0, b"\xa9")]
    turn.text("", 0, (token("<|a|>"),))
    turn.text("one ", 0, (token("one "),))
    turn.text("é", 0, (accent[0], accent[1]))
    turn.text("", 0, (token("<|b|>"),))
    turn.text(" ST", 0, (token(" "), token("ST")))
    turn.text("", 0, (token("<|c|>"),))
    turn.finish("length")
    turn.end(complete=True)
    events = turn.take()
    check(events)
    said = [(e.data, [t.bytes for t in e.tokens]) for e in events if isinstance(e, Delta)]
    assert said == [
        ("one ", [b"<|a|>", b"one "]),
        ("é", [b"\xc3", b"\xa9"]),
        (" ", [b"<|b|>", b" "]),
        ("ST", [b"ST", b"<|c|>"]),
    ]


def test_held_text_is_emitted_before_other_events() -> None:
    for other in ("thought", "call", "refusal", "finish"):
        turn = StoppingTurn(["STOP"], "1", 0, "m", ())
        turn.texts(["well ", "STO"])
        match other:
            case "thought":
                turn.reasoning("P")
            case "call":
                turn.call(CallFragment(0, "c", "f", "{}"))
            case "refusal":
                turn.refusal("P")
        turn.finish("stop")
        turn.end(complete=True)
        events = turn.take()
        check(events)
        first = fold(events).output[0]
        assert isinstance(first, Message)
        assert first.text == "well STO"
        assert turn.stop_sequence is None


def test_no_output_after_a_stop_string() -> None:
    turn = StoppingTurn(["."], "1", 0, "m", ())
    turn.text("Yes. No")
    turn.text("no")
    turn.reasoning("no")
    turn.refusal("no")
    turn.call(CallFragment(0, "c", "f", "{}"))
    turn.finish("length")
    turn.end(complete=True)
    response = fold(turn.take())
    assert (response.text, response.reasons, len(response.output)) == ("Yes", ("stop",), 1)
    assert response.stop_sequence == "."


def test_tokens_that_come_together_are_taken_in_parts_until_one_is_stopped() -> None:
    """3,000 that a grammar left no choice held others up for 0.75 s, with many stop strings."""

    def new() -> NewTokens:
        return NewTokens([*range(10)], [token(str(n)) for n in range(10)], "stop", 2, False, [])

    parts = list(new().parts(4))
    assert [part.ids for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(part.tokens) for part in parts] == [4, 4, 2]
    assert [part.end for part in parts] == [None, None, "stop"]
    assert [part.prompt for part in parts] == [[], None, None]
    stopped = new()
    for part in stopped.parts(4):
        part.stopped = True
    assert stopped.stopped
    assert stopped.ids == [*range(10)]  # the scheduler counts what was taken
