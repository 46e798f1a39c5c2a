"""Loose deltas for the turn assembler: what streams bring, and what they should never bring.

A step is one call of a method of `Turn`. `anything` draws steps without any sense between them;
`pieces` cuts a text anywhere, also through a character.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise

from hypothesis import strategies as st

from dragoman.core.event import Event
from dragoman.core.item import (
    Annotation,
    CustomToolCall,
    FunctionCall,
    Message,
    Reasoning,
    Token,
    Unknown,
)
from dragoman.core.response import Usage
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import CUT, Think, Turn
from tests import strategies as values

Step = Callable[[Turn], object]

choice = st.sampled_from([0, 0, 0, 1, 2, -1, 10**9])
speech = st.sampled_from(
    ["", "a", "Hi ", "\n", " ", "<think>", "</think>", "<th", "ink>", "</", "\ud83d", "\ude00", "é"]
)
arguments = st.sampled_from(
    ["", "{}", "{", "}", '{"a":', '"}"', "1}", '{"b": 2}', " ", "\\", "\ud83d"]
)
base64 = st.sampled_from(["", "QUJD", "QQ==", "QQ", "=", "A", "?!", "QUJDRA==", "QUI=QUJD"])
some_tokens = st.sampled_from([(), (), (Token("t", -0.5),)])
part_number = st.sampled_from([None, 0, 1, 5])
fragments = st.builds(
    CallFragment,
    st.sampled_from([None, 0, 0, 1, 7]),
    st.sampled_from([None, "", "x", "y"]),
    st.sampled_from([None, "", "f", "g"]),
    arguments,
    st.booleans(),
    st.sampled_from([None, "n"]),
    st.sampled_from([None, {"chat": {"y": 2}}]),
)
openings = st.sampled_from(
    [
        Message("assistant", id="m"),
        Reasoning(),
        FunctionCall("x", "f", "{}"),
        CustomToolCall("y", "g", ""),
        Unknown("w", "k", {}),
    ]
)
kinds = st.sampled_from(
    ["text", "refusal", "reasoning", "summary", "arguments", "input", "audio", "code"]
)


def _at(turn: Turn, number: int) -> int | None:
    """Some item of the turn."""
    known = len(turn._items)
    return number % known if known else None


@st.composite
def by_index(draw: st.DrawFn) -> Step:
    """A step that means a certain item, open or not."""
    number, kind, part = draw(st.integers(0, 9)), draw(kinds), draw(part_number)
    data = draw(base64 if kind == "audio" else speech)
    final = draw(st.none() | values.items)
    shut = draw(st.booleans())

    def step(turn: Turn) -> None:
        index = _at(turn, number)
        if index is not None and shut:
            turn.close(index, final)
        elif index is not None:
            turn.write(index, kind, data, part)

    return step


anything: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda d, c, t: lambda turn: turn.text(d, c, t), speech, choice, some_tokens),
    st.builds(lambda d, c, t: lambda turn: turn.refusal(d, c, t), speech, choice, some_tokens),
    st.builds(lambda d, c: lambda turn: turn.reasoning(d, c), speech, choice),
    st.builds(lambda d, c: lambda turn: turn.summary(d, c), speech, choice),
    st.builds(lambda c: lambda turn: turn.attach_reasoning({"chat": {"s": 1}}, c, "e"), choice),
    st.builds(
        lambda d, t, c: lambda turn: turn.audio(c, id="a", data=d, transcript=t),
        base64,
        speech,
        choice,
    ),
    st.builds(lambda c: lambda turn: turn.annotate(Annotation("url_citation"), c), choice),
    st.builds(lambda f, c: lambda turn: turn.call(f, c), fragments, choice),
    st.builds(lambda c: lambda turn: turn.attach({"chat": {"x": 1}}, c), choice),
    st.builds(lambda r, c: lambda turn: turn.finish(r, c), values.reasons, choice),
    st.builds(lambda c: lambda turn: turn.expect(c), choice),
    st.builds(lambda: lambda turn: turn.header("other", {"upstream": {"id": "u"}})),
    st.builds(lambda i: lambda turn: turn.progress(i, "searching"), st.none() | st.integers(-1, 9)),
    st.builds(lambda: lambda turn: setattr(turn, "usage", Usage(1))),
    st.builds(lambda i, c: lambda turn: turn.open(i, c), openings, choice),
    by_index(),
    st.builds(lambda said: lambda turn: turn.end(said), st.booleans()),
    st.builds(lambda: lambda turn: turn.fail(CUT)),
)
thinks: st.SearchStrategy[Think] = st.sampled_from([None, "inline", "reasoning"])


def calling(fragment: CallFragment) -> Step:
    """The step that brings this fragment of a call."""
    return lambda turn: turn.call(fragment)


def saying(kind: str, words: str) -> Step:
    """The step that says this, as text, thought or refusal."""
    return lambda turn: getattr(turn, kind)(words)


def play(steps: Iterable[Step], think: Think = "inline", said: bool = True) -> list[Event]:
    """The events a fresh turn makes of these steps and of their end."""
    turn = Turn("r1", 0, "m", think=think)
    events = []
    for step in steps:
        step(turn)
        events += turn.take()
    turn.end(said)
    return events + turn.take()


def halves(text: str) -> str:
    """The text with every character beyond 16 bits as its two halves, as JSON escapes have it."""
    units = text.encode("utf-16-le", "surrogatepass")
    return "".join(chr(int.from_bytes(units[n : n + 2], "little")) for n in range(0, len(units), 2))


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """The text cut anywhere, halves of characters included."""
    units = halves(text)
    cuts = sorted(draw(st.lists(st.integers(0, len(units)), max_size=6)))
    edges = [0, *cuts, len(units)]
    return [units[a:b] for a, b in pairwise(edges)]
