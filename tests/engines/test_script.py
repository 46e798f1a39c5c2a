"""Scripts: what is played, in which order, at which pace."""

import asyncio
import time

import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Delta, Failed, Finished, ItemAdded, Started
from dragoman.core.fold import fold, unfold
from dragoman.core.item import (
    Compaction,
    CustomToolCall,
    FunctionCall,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Token,
)
from dragoman.core.request import Request, Sampling
from dragoman.engines.script import Script, demo, in_words, length, shortened, words
from tests.answers import answer
from tests.engines.stage import ASKED, answered, heard
from tests.engines.test_chaos import CALLS

WHOLE = answer(
    Reasoning((Thought("well then"),), id="a", status="completed"),
    FunctionCall("c", "f", '{"a": 1}', id="b", status="completed"),
    reasons=("tool_calls",),
)


async def test_a_text_is_played_in_words() -> None:
    events = await heard(Script("Good day to\nyou "))
    assert [e.data for e in events if isinstance(e, Delta)] == ["Good", " day", " to", "\nyou", " "]
    assert events[0].model == "script"


async def test_response_is_played_in_words_and_folds_back_to_itself() -> None:
    events = await heard(Script(WHOLE))
    pieces = [e.data for e in events if isinstance(e, Delta)]
    assert pieces == ["well", " then", '{"a":', " 1}"]
    assert await answered(Script(WHOLE)) == WHOLE


async def test_a_text_with_tokens_is_played_in_tokens() -> None:
    tokens = (Token("un"), Token("known"))
    spelled, misspelled = Text("unknown", tokens=tokens), Text("other", tokens=tokens)
    for part, pieces in ((spelled, ["un", "known"]), (misspelled, ["other"])):
        said = Message("assistant", (part,), id="m", status="completed")
        whole = answer(said)
        events = await heard(Script(whole))
        assert [e.data for e in events if isinstance(e, Delta)] == pieces
        assert await answered(Script(whole)) == whole


async def test_takes_are_played_in_turn_and_from_the_first_again() -> None:
    script = Script("one", "two")
    assert [(await answered(script)).text for _ in range(3)] == ["one", "two", "one"]


async def test_a_function_decides_by_the_request() -> None:
    script = Script(lambda request: f"You asked {request.model}")
    assert (await answered(script, Request(model="x"))).text == "You asked x"


async def test_cues_are_events_pauses_gates_and_exceptions() -> None:
    gate = asyncio.Event()
    start, *rest = list(unfold(WHOLE))
    script = Script([start, 0.001, gate.wait, *rest])
    events = script.stream(ASKED)
    assert await anext(events) == start
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gate.set()
    assert await waiting == rest[0]
    await events.aclose()
    fault = bad_request("no", "n")
    assert await heard(Script([start, FaultError(fault)])) == [start, Failed(fault)]


async def test_a_take_without_a_beginning_or_an_end_is_made_legal() -> None:
    (added,) = [e for e in unfold(WHOLE) if isinstance(e, ItemAdded)][:1]
    assert [type(e) for e in await heard(Script([added]))] == [Started, ItemAdded, Failed]


async def test_the_pace_is_kept_between_words() -> None:
    began = time.perf_counter()
    await heard(Script("one two three", pace=0.01))
    assert time.perf_counter() - began >= 0.03


async def test_several_choices_take_the_time_of_one(monkeypatch) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(delay: float) -> None:
        slept.append(delay)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    request = replace(ASKED, sampling=Sampling(n=4))
    _ = [event async for event in demo(pace=1.0).stream(request)]
    several, slept[:] = sum(slept), []
    _ = [event async for event in demo(pace=1.0).stream(ASKED)]
    assert several < 2 * sum(slept)


async def test_script_lists_itself() -> None:
    script = Script("Hi", name="parrot")
    (model,) = await script.models()
    assert (model.id, model.owned_by) == ("parrot", "dragoman")
    assert (await script.capabilities("parrot")).tools
    assert isinstance((await heard(script))[-1], Finished)
    await script.close()
    with pytest.raises(ValueError, match="something to play"):
        Script()


# ---- words ------------------------------------------------------------------------------------


def test_words_join_to_the_text() -> None:
    for text in ("", " ", "one", " one  two\n", "\n\n"):
        assert "".join(words(text)) == text


def test_events_in_words_fold_to_the_same_answer() -> None:
    events = list(in_words(unfold(CALLS)))
    assert len(events) > len(list(unfold(CALLS)))
    assert fold(events) == CALLS


def test_item_without_words_has_no_length() -> None:
    assert length(Compaction("blob")) == 0


@pytest.mark.parametrize(
    ("item", "left"),
    [
        (Message("assistant", "one two"), Message("assistant", (Text("one"),))),
        (
            Message("assistant", (Refusal("no"), Text("one two"))),
            Message("assistant", (Refusal("no"), Text(""))),
        ),
        (Reasoning((Thought("one two"),)), Reasoning((Thought("one"),))),
        (FunctionCall("c", "f", '{"a": 1}'), FunctionCall("c", "f", '{"a":')),
        (CustomToolCall("c", "f", "ls -l"), CustomToolCall("c", "f", "ls")),
    ],
)
def test_an_item_cut_at_the_limit_is_incomplete(item, left) -> None:
    assert shortened([item], 1) == ((replace(left, status="incomplete"),), True)


def test_limit_cuts_the_item_it_falls_into() -> None:
    one, two = Message("assistant", "one two"), Message("assistant", "three four")
    assert shortened([one, two], None) == ((one, two), False)
    assert shortened([one, two], 4) == ((one, two), False)
    for limit, texts in ((3, ["one two", "three"]), (2, ["one two", ""]), (1, ["one"])):
        items, short = shortened([one, two], limit)
        assert [item.text for item in items if isinstance(item, Message)] == texts
        assert short
        assert isinstance(items[-1], Message)
        assert items[-1].status == "incomplete"


@pytest.mark.parametrize("take", [5, None, b"x", {"a": 1}, ["a text"], [1.0, "a text"]])
async def test_what_is_no_take_is_refused_where_it_is_seen_first(take) -> None:
    with pytest.raises(TypeError, match=r"^a (take|cue) is "):
        Script(take)
    failed = (await heard(Script(lambda request: take)))[-1]
    assert isinstance(failed, Failed)


async def test_a_call_without_a_reason_ends_with_tool_calls() -> None:
    """Chat clients go on by `finish_reason`."""
    said = answer(Message("assistant", (Text("So."),)), FunctionCall("c", "f", "{}"), reasons=())
    assert (await answered(Script(said))).reasons == ("tool_calls",)
    assert (await answered(Script(replace(said, status="incomplete")))).reasons == ("length",)
