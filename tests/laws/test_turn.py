"""Laws 2, 3 and 4 for the assembler: whatever comes in, legal events come out, and the same ones.

The steps are drawn without sense; what they must add up to is only claimed where it is clear.
"""

import json

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Event, Failed, Finished
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, Message, Reasoning
from dragoman.core.lifecycle import check
from dragoman.core.tool_calls import CallFragment
from tests.laws.loose import Step, anything, calling, pieces, play, saying, thinks
from tests.strategies import text

said = st.text(st.sampled_from("ab \n😀é<>/thinkd"), max_size=20)


@given(st.lists(anything, max_size=12), thinks, st.booleans())
def test_law_4_any_deltas_become_legal_events(steps, think, end) -> None:
    events = play(steps, think, end)
    check(events)
    assert isinstance(events[-1], Finished | Failed)


@given(st.lists(anything, max_size=10), thinks)
def test_law_7_same_deltas_give_the_same_events(steps, think) -> None:
    assert play(steps, think) == play(steps, think)


@given(st.data(), st.lists(st.tuples(st.sampled_from(["text", "reasoning", "refusal"]), said)))
def test_law_2_text_cut_anywhere_folds_to_the_same(data, segments) -> None:
    whole = [(kind, [words]) for kind, words in segments]
    cut = [(kind, data.draw(pieces(words))) for kind, words in segments]
    assert fold(play(_steps(whole))).output == fold(play(_steps(cut))).output


@given(st.data(), said, said, st.sampled_from(["", "\n", "\r\n\n", " ", "\n" * 70, " " * 70]))
def test_p5_think_tags_split_the_same_wherever_the_text_is_cut(
    data, thought, answer, blanks
) -> None:
    words = f"{blanks}<think>{blanks}{thought}{blanks}</think>{blanks}{answer}"
    whole, cut = _steps([("text", [words])]), _steps([("text", data.draw(pieces(words)))])
    assert fold(play(whole)).output == fold(play(cut)).output
    assert _inlined(play(cut)) == words


@given(st.data(), st.dictionaries(text, text, min_size=1), st.dictionaries(text, text, min_size=1))
def test_p4_interleaved_calls_fold_to_the_same_as_one_after_the_other(data, first, second) -> None:
    queues = [
        [CallFragment(number, f"call_{number}", "f")]
        + [
            CallFragment(number, arguments=piece)
            for piece in data.draw(pieces(json.dumps(arguments, ensure_ascii=False)))
        ]
        for number, arguments in enumerate((first, second))
    ]
    steps = [calling(queue.pop(0)) for queue in queues]
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        steps.append(calling(queue.pop(0)))
    events = play(steps)
    check(events)
    calls = fold(events).calls
    assert [json.loads(call.arguments) for call in calls if isinstance(call, FunctionCall)] == [
        first,
        second,
    ]


def _steps(segments: list[tuple[str, list[str]]]) -> list[Step]:
    return [saying(kind, piece) for kind, cut in segments for piece in cut]


def _inlined(events: list[Event]) -> str:
    """The text again, tags and all, from what became of it."""
    written = ""
    for item in fold(events).output:
        if isinstance(item, Reasoning):
            tags = (item.extra or {}).get("inline", {})
            written += tags.get("open", "") + item.text + tags.get("close", "")
        elif isinstance(item, Message):
            written += item.text
    return written
