"""The reasoning cache: reasoning before calls is restored, for its tenant and model only."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.event import Event, Failed, Finished, ItemAdded, ItemDone, Started
from dragoman.core.fold import fold, unfold
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import (
    KNOWN_BY,
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Summary,
    Thought,
    Unknown,
    place_behind,
)
from dragoman.core.request import FunctionTool, Request
from dragoman.core.response import Response
from dragoman.core.turn import CUT
from dragoman.engines import reasoning_cache
from dragoman.engines.reasoning import ENCRYPTED, is_opaque, readable
from dragoman.engines.reasoning_cache import LARGE, CachingReasoning, ReasoningCache
from dragoman.engines.script import Script
from tests import strategies
from tests.engines.stage import heard

ASK = Message("user", "What is the time in Rome?")
SAID = Message("assistant", "One moment.")
ENCRYPTED_ITEM = Reasoning(summary=(Summary("A clock."),), encrypted="gAAA+/==\ud83d", id="rs_1")
OPEN = Reasoning((Thought("I need a clock."),))
CALL = FunctionCall("call_1", "clock", '{"city": "Rome"}')
RESULT = FunctionCallOutput("call_1", "12:00")
TURN = {"turn": {"new": True}}


def cache(*items: Item, model: str = "m") -> ReasoningCache:
    kept = ReasoningCache()
    kept.store("ada", model, items)
    return kept


def recalled(
    kept: ReasoningCache, *items: Item, model: str = "m", tenant: str = "ada"
) -> tuple[Item, ...]:
    return kept.restore(tenant, model, items)[0]


# ---- what is put back ------------------------------------------------------------------------


def test_p9_one_of_several_calls_restores_reasoning_once() -> None:
    second = FunctionCall("call_2", "clock", "{}")
    kept = cache(ENCRYPTED_ITEM, CALL, second)
    assert recalled(kept, ASK, second, RESULT) == (ASK, ENCRYPTED_ITEM, second, RESULT)
    assert recalled(kept, ASK, second, CALL) == (ASK, ENCRYPTED_ITEM, second, CALL)
    tight = replace(CALL, arguments='{"city":"Rome"}')
    assert recalled(kept, tight) == (ENCRYPTED_ITEM, tight)


def test_reasoning_before_a_tool_of_the_server_is_not_there_twice() -> None:
    """OpenAI refuses two items with one id."""
    search = Unknown("responses", "web_search_call", {"status": "completed"}, id="ws_1")
    kept = cache(ENCRYPTED_ITEM, search, CALL)
    asked = (ASK, ENCRYPTED_ITEM, search, CALL, RESULT)
    assert recalled(kept, *asked) == asked
    assert recalled(kept, ASK, search, CALL, RESULT) == asked, "which a client left out"
    assert recalled(kept, ASK, CALL, RESULT) == (ASK, ENCRYPTED_ITEM, CALL, RESULT)
    shown = Unknown("responses", "tool_search_output", {"tools": []})
    asked = (ASK, ENCRYPTED_ITEM, shown, CALL, RESULT)
    assert recalled(kept, *asked) == asked
    taken = Unknown("responses", "computer_call_output", {"call_id": "call_0"})
    earlier = Reasoning((Thought("Look."),))
    behind = (ASK, earlier, taken)
    assert recalled(kept, *behind, CALL) == (*behind, ENCRYPTED_ITEM, CALL), "that of another step"


def test_reasoning_of_a_tool_of_the_server_is_not_that_of_the_call_behind_it() -> None:
    """Claude refuses thinking that is moved or there twice, and OpenAI such an item."""
    bought = Unknown("responses", "mcp_call", {"name": "buy"}, id="mcp_1")
    second = replace(ENCRYPTED_ITEM, summary=(Summary("Now a watch."),), id="rs_2")
    for said in ((), (SAID,)):
        for first in ((ENCRYPTED_ITEM,), ()):
            whole = (ASK, *first, *said, bought, second, *said, CALL, RESULT)
            kept = cache(*whole[1:-1])
            assert recalled(kept, *whole) == whole
            shown = tuple(readable(i) if isinstance(i, Reasoning) else i for i in whole)
            assert recalled(kept, *(item for item in shown if item)) == whole, "only its text"
            assert recalled(kept, ASK, *said, bought, *said, CALL, RESULT) == whole
            assert recalled(kept, ASK, *said, CALL, RESULT) == (ASK, second, *said, CALL, RESULT)
    use = Unknown("messages", "server_tool_use", {"id": "srvtoolu_1", "name": "web_search"})
    found = Unknown("messages", "web_search_tool_result", {"tool_use_id": "srvtoolu_1"})
    blocks = (ASK, ENCRYPTED_ITEM, use, found, second, CALL, RESULT)
    assert recalled(cache(*blocks[1:-1]), ASK, use, found, CALL, RESULT) == blocks
    both = Reasoning((Thought("A clock.\n\nNow a watch."),))
    unseen = recalled(cache(ENCRYPTED_ITEM, bought, second, CALL), ASK, both, CALL)
    assert unseen == (ASK, second, CALL), "as Chat shows them"
    nameless = replace(bought, id=None, value={"id": 5})
    for leads in ((ENCRYPTED_ITEM, second), (OPEN, Reasoning((Thought("Now a watch."),)))):
        asked = (ASK, leads[0], nameless, leads[1], CALL, RESULT)
        assert recalled(cache(*asked[1:-1]), *asked) == asked


def test_p9_text_without_its_encrypted_content_is_completed() -> None:
    """Chat shows a summary as reasoning, and a client may bring that back."""
    shown = Reasoning((Thought(" A clock.\n\nI need a clock. "),))
    both = replace(ENCRYPTED_ITEM, content=OPEN.content)
    assert recalled(cache(both, CALL), ASK, shown, SAID, CALL) == (ASK, both, SAID, CALL)
    summary = Reasoning((Thought("A clock."),))
    assert recalled(cache(ENCRYPTED_ITEM, CALL), ASK, summary, CALL) == (ASK, ENCRYPTED_ITEM, CALL)


@pytest.mark.parametrize(
    "brought",
    [
        ENCRYPTED_ITEM,
        Reasoning((Thought("Something else."),)),
        Reasoning((Thought("A clock."),), extra={"chat": {"reasoning_details": [1]}}),
    ],
)
def test_reasoning_of_the_client_is_not_replaced(brought) -> None:
    asked = (ASK, brought, CALL, RESULT)
    assert cache(ENCRYPTED_ITEM, CALL).restore("ada", "m", asked) == (asked, ())


def test_reasoning_inside_the_text_is_not_put_beside_it() -> None:
    inline = Reasoning((Thought("Hm."),), extra={"inline": {"open": "<think>"}})
    asked = (ASK, Message("assistant", "<think>Hm.</think>"), CALL)
    assert recalled(cache(inline, CALL), *asked) == asked


def test_restored_reasoning_begins_the_turn() -> None:
    """A mark says that a message of the assistant follows another; the first item has it."""
    begun = replace(CALL, extra={**TURN, "chat": {"x": 1}})
    kept = cache(ENCRYPTED_ITEM, CALL)
    asked = (ASK, SAID, begun, RESULT)
    marked, plain = replace(ENCRYPTED_ITEM, extra=TURN), replace(CALL, extra={"chat": {"x": 1}})
    assert recalled(kept, *asked) == (ASK, SAID, marked, plain, RESULT)
    spoken = replace(SAID, extra=TURN)
    assert recalled(kept, ASK, SAID, spoken, CALL)[2:] == (marked, SAID, CALL)


def test_fields_of_a_call_that_only_its_wire_has_are_restored() -> None:
    """Gemini refuses a conversation whose calls lack the signature that they had; clients of other
    protocols, and many of Chat, do not send it back."""
    own, marked = {"chat": {"extra_content": {"google": {"thought_signature": "c2ln"}}}}, TURN
    signed, second = replace(CALL, extra=own), FunctionCall("call_2", "clock", "{}")
    for led in ((), (OPEN,)):
        kept = cache(*led, signed, second)
        assert recalled(kept, ASK, CALL, second, RESULT) == (ASK, *led, signed, second, RESULT)
        tight = replace(CALL, arguments='{"city":"Rome"}')
        assert recalled(kept, ASK, tight, RESULT) == (ASK, *led, replace(tight, extra=own), RESULT)
        assert recalled(kept, ASK, *led, signed, RESULT) == (ASK, *led, signed, RESULT)
        other = (ASK, *led, CALL, RESULT)
        assert recalled(kept, *other, model="n") == recalled(kept, *other, tenant="bob") == other
    begun = replace(CALL, extra=marked)
    assert recalled(cache(signed), ASK, SAID, begun)[2] == replace(CALL, extra=own | marked)


def test_reasoning_of_a_call_to_which_a_client_added_its_defaults_is_restored() -> None:
    """Claude Code sends `replace_all: false` back with each Edit."""
    filled = replace(CALL, arguments='{"zone": null, "city": "Rome"}')
    other = replace(CALL, arguments='{"zone": null, "city": "Oslo"}')
    kept = cache(ENCRYPTED_ITEM, CALL)
    assert recalled(kept, ASK, filled) == (ASK, ENCRYPTED_ITEM, filled)
    assert recalled(kept, ASK, other) == (ASK, other)


# ---- whose it is -----------------------------------------------------------------------------


def test_conversations_whose_calls_are_the_same_keep_their_own_reasoning() -> None:
    """Kimi counts the ids of its calls from 0 in every conversation."""
    kept, first = ReasoningCache(), FunctionCall("functions.clock:0", "clock", "{}")
    others = [Message("user", f"I am {name}") for name in ("Ada", "Bob")]
    thoughts = [Reasoning((Thought(f"{each.text} thinks"),)) for each in others]
    for asked, thought in zip(others, thoughts, strict=True):
        place = place_behind(0, (ASK, asked))
        kept.store("ada", "m", (thought, first), place)
    for asked, thought in zip(others, thoughts, strict=True):
        for call in (first, replace(first, arguments='{"zone": 1}')):  # with a client's defaults
            whole = (ASK, SAID, asked, thought, call)
            assert recalled(kept, ASK, SAID, asked, call, RESULT, asked) == (*whole, RESULT, asked)


def test_reasoning_is_restored_where_a_client_changed_what_came_before() -> None:
    kept = ReasoningCache()
    unique = replace(CALL, call_id="call_x8Kd93Lp")
    kept.store("ada", "m", (OPEN, unique), place_behind(0, (ASK,)))
    for call in (unique, replace(unique, arguments='{"city":"Rome"}')):
        assert recalled(kept, SAID, call) == (OPEN, SAID, call)
    kept.store("ada", "m", (OPEN, CALL), place_behind(0, (ASK,)))
    assert recalled(kept, SAID, CALL) == (SAID, CALL)  # it may be that of another conversation


async def test_large_reasoning_that_is_restored_counts() -> None:
    """Small requests that brought back calls with 30 MB of reasoning had 30 MB sent for each."""
    engine, counted, seen = CachingReasoning(Script("x")), list[int](), list[int]()
    for size in (10, LARGE):
        thought = Reasoning((Thought("x" * size),))
        engine.cache.store("ada", "m", (thought, CALL), place_behind(0, (ASK,)))
        asked = Request(model="m", items=(ASK, CALL, RESULT), tools=(TOOL,))
        prepared = engine.prepare(asked, Caller(tenant="ada", size=5, count=counted.append))
        assert prepared is not None
        assert prepared.caller is not None
        seen.append(prepared.caller.size)
    assert seen[0] == 5
    assert counted == [seen[1] - 5]
    assert counted[0] > LARGE


@pytest.mark.parametrize(
    "other",
    [
        replace(CALL, name="other"),
        replace(CALL, arguments='{"city": "Oslo"}'),
        replace(CALL, arguments='{"city": '),
        replace(CALL, arguments="[" * 100_000),
        replace(CALL, call_id="call_9"),
    ],
)
def test_another_call_with_the_same_id_restores_nothing(other) -> None:
    """Some servers count their calls from 0 in every conversation."""
    asked = (ASK, other)
    assert cache(ENCRYPTED_ITEM, CALL).restore("ada", "m", asked) == (asked, ())


def test_oldest_entry_is_evicted() -> None:
    kept = ReasoningCache(2_000)
    for number in range(10):
        call = replace(CALL, call_id=f"call_{number}")
        kept.store("ada", "m", (Reasoning((Thought("x" * 500),)), call))
    there = [
        len(recalled(kept, replace(CALL, call_id=f"call_{number}"))) == 2 for number in range(10)
    ]
    assert not there[0]
    assert there[-1]
    assert there == sorted(there)
    empty = ReasoningCache(0)
    empty.store("ada", "m", (ENCRYPTED_ITEM, CALL))
    assert recalled(empty, CALL) == (CALL,)


def test_one_tenant_cannot_push_out_the_reasoning_of_another() -> None:
    kept = ReasoningCache(20_000, share=0.5)
    kept.store("ada", "m", (OPEN, CALL))
    for number in range(100):
        call = replace(CALL, call_id=f"call_{number}")
        kept.store("bob", "m", (Reasoning((Thought("x" * 500),)), call))
    assert recalled(kept, CALL) == (OPEN, CALL)
    last = recalled(kept, replace(CALL, call_id="call_99"), tenant="bob")
    assert len(last) == 2
    assert 5 < len(kept.led) < 15


def test_long_arguments_weigh_as_much_as_they_are() -> None:
    kept = ReasoningCache(200_000)
    for number in range(100):
        arguments = f'{{"n": {number}, "x": "{"x" * 10_000}"}}'
        kept.store("ada", "m", (OPEN, FunctionCall(f"call_{number}", "f", arguments)))
    assert len(kept.led) < 20
    assert len(kept.latest) < 3


def test_reasoning_before_many_calls_is_weighed_once(monkeypatch) -> None:
    weighed: list[object] = []
    monkeypatch.setattr(
        reasoning_cache, "repr", lambda each: weighed.append(each) or "x", raising=False
    )
    calls = [replace(CALL, call_id=f"call_{number}") for number in range(50)]
    cache(OPEN, *calls)
    assert weighed == [OPEN]


# ---- when the model changes ------------------------------------------------------------------


def test_p13_for_another_model_only_text_is_restored_and_loss_reported() -> None:
    items, losses = cache(ENCRYPTED_ITEM, CALL).restore("ada", "other", (ASK, CALL))
    assert items == (ASK, replace(ENCRYPTED_ITEM, encrypted=None, id=None), CALL)
    assert [(loss.field, loss.action) for loss in losses] == [(ENCRYPTED, "dropped")]
    assert "encrypted by m" in losses[0].why
    items, losses = cache(OPEN, CALL).restore("ada", "other", (ASK, CALL))
    assert (items, losses) == ((ASK, OPEN, CALL), ())
    items, losses = cache(Reasoning(encrypted="x"), CALL).restore("ada", "other", (ASK, CALL))
    assert items == (ASK, CALL)
    assert losses


@pytest.mark.parametrize(
    "opaque",
    [ENCRYPTED_ITEM, replace(OPEN, extra={"chat": {"reasoning_details": [{"signature": "s"}]}})],
)
def test_p13_encrypted_content_of_a_client_is_known_by_its_model(opaque) -> None:
    kept = cache(opaque)
    asked = (ASK, opaque, SAID, ASK)
    assert kept.restore("ada", "m", asked) == (asked, ())
    items, losses = kept.restore("ada", "other", asked)
    assert items == (ASK, readable(opaque), SAID, ASK)
    assert losses
    # Of one whose maker nobody knows nothing is said.
    assert kept.restore("bob", "other", asked) == (asked, ())


def test_long_encrypted_content_is_known_by_its_ends(monkeypatch) -> None:
    """It is looked at on the event loop."""
    hashed: list[int] = []
    digest = hashlib.sha256
    monkeypatch.setattr(
        hashlib, "sha256", lambda data=b"": hashed.append(len(data)) or digest(data)
    )
    long = "a" * 1_000_000
    wholes = [
        Reasoning(encrypted=long),
        replace(OPEN, extra={"messages": {"signature": long}}),
        replace(OPEN, extra={"chat": {"reasoning_details": [{"data": long}] * 1_000}}),
    ]
    for whole in wholes:
        kept = cache(whole)
        _, losses = kept.restore("ada", "other", (ASK, whole, SAID, ASK))
        assert losses
    assert max(hashed) < 2_000 * KNOWN_BY
    _, losses = cache(wholes[0]).restore("ada", "other", (ASK, Reasoning(encrypted=long + "b")))
    assert not losses  # it is another


# ---- laws ------------------------------------------------------------------------------------

_hosted = st.builds(Unknown, st.just("responses"), st.just("mcp_call"), st.just({}))
_plain = st.builds(Message, st.just("assistant"), strategies.text.filter(bool))


@st.composite
def answers(draw: st.DrawFn) -> list[list[Item]]:
    """Turns of an agent: what led to calls, perhaps words, the calls, and what they returned."""
    turns: list[list[Item]] = []
    for number in range(draw(st.integers(1, 4))):
        turn: list[Item] = []
        for group in range(draw(st.integers(1, 2))):
            turn += draw(st.lists(strategies.reasonings, max_size=2))
            if draw(st.booleans()):
                turn += [draw(_plain), *draw(st.lists(strategies.reasonings, max_size=1))]
            for call in range(draw(st.integers(1, 2))):
                made = draw(strategies.function_calls | strategies.custom_calls | _hosted)
                name = "id" if isinstance(made, Unknown) else "call_id"
                turn.append(replace(made, **{name: f"call_{number}_{group}_{call}"}))
        turns.append(turn)
    return turns


def history(turns: list[list[Item]], *, bare: bool) -> tuple[Item, ...]:
    said: list[Item] = [ASK]
    for turn in turns:
        said += [i for i in turn if not (bare and isinstance(i, Reasoning))]
        said += [
            FunctionCallOutput(item.call_id, "ok")
            for item in turn
            if isinstance(item, FunctionCall | CustomToolCall)
        ]
    return tuple(said)


@given(answers())
def test_p13_restored_history_is_identical(turns) -> None:
    kept = ReasoningCache()
    for turn in turns:
        kept.store("ada", "m", turn)
    whole, bare = history(turns, bare=False), history(turns, bare=True)
    assert kept.restore("ada", "m", bare) == (whole, ())
    assert kept.restore("ada", "m", whole) == (whole, ())
    assert kept.restore("bob", "m", bare) == (bare, ())


@given(answers())
def test_p13_another_model_gets_all_text_and_nothing_encrypted(turns) -> None:
    kept = ReasoningCache()
    for turn in turns:
        kept.store("ada", "m", turn)
    items, losses = kept.restore("ada", "other", history(turns, bare=True))
    thoughts = [item for turn in turns for item in turn if isinstance(item, Reasoning)]
    back = [item for item in items if isinstance(item, Reasoning)]
    assert not any(map(is_opaque, back))
    assert [i.text for i in back if i.text] == [i.text for i in thoughts if i.text]
    assert bool(losses) is any(map(is_opaque, thoughts))


# ---- around an engine ------------------------------------------------------------------------

TOOL = FunctionTool("clock")
FIRST = Request(model="m", items=(ASK,), tools=(TOOL,))
AGAIN = Request(model="m", items=(ASK, CALL, RESULT), tools=(TOOL,))


def answered(*output: Item, **fields: Any) -> Response:
    named = tuple(
        replace(item, id=f"item_{n}", status="completed") for n, item in enumerate(output)
    )
    given = {"id": "1", "created_at": 0, "model": "x", "status": "completed", **fields}
    return Response(output=named, reasons=("tool_calls",), **given)


class Model(Script):
    """Thinks, then calls; remembers what it was asked."""

    def __init__(self, *output: Item, **fields: Any) -> None:
        self.asked: list[Request] = []
        self.answer = answered(*(output or (ENCRYPTED_ITEM, CALL)), **fields)
        super().__init__(self.play)

    def play(self, request: Request) -> Response:
        self.asked.append(request)
        return self.answer


async def test_p9_reasoning_the_client_dropped_is_restored() -> None:
    model = Model()
    engine = CachingReasoning(model)
    first = fold(await heard(engine, FIRST))
    assert first.output == model.answer.output
    await heard(engine, AGAIN)
    assert model.asked[-1].items == (ASK, model.answer.output[0], CALL, RESULT)


async def test_p13_change_of_model_is_reported() -> None:
    model = Model()
    engine = CachingReasoning(model)
    await heard(engine, FIRST)
    started = (await heard(engine, replace(AGAIN, model="other")))[0]
    assert [loss.field for loss in started.losses] == [ENCRYPTED]


async def test_every_choice_is_remembered_for_itself() -> None:
    other = replace(CALL, call_id="call_2")
    model = Model(ENCRYPTED_ITEM, OPEN, CALL, other, choices=(0, 1, 0, 1))
    model.answer = replace(model.answer, reasons=("tool_calls", "tool_calls"))
    engine = CachingReasoning(model)
    await heard(engine, FIRST)
    thoughts = model.answer.output
    await heard(engine, replace(AGAIN, items=(ASK, CALL, RESULT)))
    assert model.asked[-1].items[1] == thoughts[0]
    await heard(engine, replace(AGAIN, items=(ASK, other)))
    assert model.asked[-1].items[1] == thoughts[1]


@pytest.mark.parametrize("left", [False, True], ids=["cut", "closed by the reader"])
async def test_reasoning_before_a_cut_is_cached(left) -> None:
    events = [e for e in unfold(answered(ENCRYPTED_ITEM, CALL)) if type(e) is not Finished]
    engine = CachingReasoning(Script([*events, Failed(CUT)]))
    answer = engine.stream(FIRST)
    async for event in answer:
        if left and isinstance(event, ItemDone) and isinstance(event.item, FunctionCall):
            break
    await answer.aclose()
    assert len(engine.cache.restore("", "m", AGAIN.items)[0]) == 4


async def test_an_item_that_is_open_at_the_end_does_not_hide_a_call_after_it() -> None:
    class Overlapping(Model):
        async def stream(
            self, request: Request, caller: Caller = ANYONE
        ) -> AsyncGenerator[Event, None]:
            yield Started("r", 0, "m")
            for index, item in enumerate((Message("assistant"), ENCRYPTED_ITEM, CALL)):
                yield ItemAdded(index, item)
            yield ItemDone(2, CALL)
            yield ItemDone(1, ENCRYPTED_ITEM)
            yield Failed(CUT)

    engine = CachingReasoning(Overlapping(SAID))
    async for _ in engine.stream(FIRST):
        pass
    assert ENCRYPTED_ITEM in engine.cache.restore("", "m", (ASK, CALL))[0]
