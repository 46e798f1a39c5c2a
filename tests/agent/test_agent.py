"""Agents: conversations, typed answers, consent across processes, branches, hooks."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pydantic
import pytest
from msgspec.structs import replace

from dragoman import program
from dragoman.agent import Agent, Budget, Run
from dragoman.agent.agent import CUT_OFF, INTERRUPTED, MOVED_ON, NO_ANSWER
from dragoman.agent.budget import Price
from dragoman.client import AnswerError, connect
from dragoman.core.error import Fault
from dragoman.core.event import Delta, ItemAdded, PartAdded, Started
from dragoman.core.interfaces import Capabilities
from dragoman.core.item import (
    Compaction,
    FunctionCallOutput,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
)
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.base import Wrapper
from dragoman.engines.compaction import estimate
from dragoman.engines.script import Script, spoken
from dragoman.tools.function import tool
from dragoman.tools.run import Context, Result, failed
from tests.agent.stage import Model, call
from tests.engines.stage import others


def add(a: int, b: int = 1) -> int:
    "Adds."
    return a + b


@tool(approval="always")
def delete(path: str = "/") -> str:
    return f"deleted {path}"


async def test_a_run_calls_functions_and_becomes_part_of_the_conversation() -> None:
    model = Model([Message("assistant", "I add."), call("add", a=1)], "Two.", "Again.")
    agent = Agent(model, tools=[add], instructions="Be brief.", prices={"*": Price(input=1e6)})
    run = await agent.run("One and one?", temperature=0)
    assert (run.text, run.value, run.end, run.pending) == ("Two.", "Two.", "stop", ())
    assert (run.usage.output_tokens, run.cost) == (10, 20.0)
    assert len(agent.history) == 5
    await agent.run("And again?")
    asked = model.asked[2]
    assert asked.items[:5] == agent.history[:5]
    assert (asked.instructions, asked.model) == ("Be brief.", "script")
    assert (model.asked[0].sampling.temperature, asked.sampling.temperature) == (0, None)


def test_without_async_it_does_the_same() -> None:
    agent = Agent(Model(call("add", a=1), "Two."), tools=[add])
    assert agent.run_sync("One and one?").text == "Two."


async def test_a_run_is_read_as_it_comes() -> None:
    agent = Agent(Model(call("add", a=1), "It is two."), tools=[add])
    async with agent.stream("One and one?") as stream:
        pieces = [event.data async for event in stream if isinstance(event, Delta)]
        assert "".join(pieces).endswith("It is two.")
        assert stream.answer.text == "It is two."
    async with agent.stream("Again?") as stream:
        assert "".join([piece async for piece in stream.text]) == "It is two."


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Person(pydantic.BaseModel):
    name: str


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (Point, '{"x": 1}', Point(1)),
        (Person, '{"name": "Ada"}', Person(name="Ada")),
        (list[int], '{"value": [1]}', [1]),
        (bool, '{"value": true}', True),
    ],
)
async def test_answers_come_in_the_type_of_the_agent(output, text, value) -> None:
    model = Model(text)
    run = await Agent(model, output=output).run("Go.")
    assert run.value == value
    assert model.asked[0].format.schema["type"] == "object"


async def test_p35_a_schema_is_asked_for_when_no_tool_may_be_called_any_more() -> None:
    model = Model(call("add", a=1), "It is (2, 0).", '{"x": 2}')
    agent = Agent(model, tools=[add], output=Point)
    run = await agent.run("Go.")
    assert run.value == Point(2)
    assert [asked.format is not None for asked in model.asked] == [False, False, True]
    assert [asked.tool_choice for asked in model.asked] == [None, None, "none"]
    assert "Answer again, in JSON alone." in model.asked[2].items[-1].text


async def test_a_schema_is_asked_for_at_once_where_there_is_no_correction() -> None:
    model = Model('{"x": 2}')
    run = await Agent(model, tools=[add], output=Point, corrections=0).run("Go.")
    assert run.value == Point(2)
    assert model.asked[0].format is not None


async def test_a_typed_answer_that_was_cut_off_and_continued_is_one_value() -> None:
    cut = replace(spoken('{"x": '), status="incomplete", reasons=("length",))
    model = Model(cut, [Reasoning((Thought("Where was I?"),)), Message("assistant", "2}")])
    run = await Agent(model, output=Point, continuations=1).run("Go.")
    assert (run.value, len(model.asked)) == (Point(2), 2)


async def test_an_answer_that_never_fits_has_no_value() -> None:
    model = Model("No.")
    run = await Agent(model, output=Point, corrections=2).run("Go.")
    assert (run.value, run.status, len(model.asked)) == (None, "completed", 3)


# ---- consent ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "result"),
    [
        (True, "deleted /"),
        (False, "The user did not allow this call."),
        ({"c1": True}, "deleted /"),
        ({"c1": "Not today."}, "Not today."),
    ],
)
async def test_a_run_that_waits_goes_on_in_another_process(tmp_path, allow, result) -> None:
    first = Agent(Model([call("delete"), call("add", "c2", a=1)]), tools=[delete, add])
    run = await first.run("Clean up.")
    assert (
        [each.name for each in run.pending] == [each.name for each in first.pending] == ["delete"]
    )
    assert run.value is None
    first.save(tmp_path / "agent.json")
    second = Agent(Model("Done."), tools=[delete, add])
    second.load(str(tmp_path / "agent.json"))
    assert second.history == first.history
    assert second.meter.usage == first.meter.usage
    run = await second.run(allow=allow)
    assert run.text == "Done."
    given = [item.output for item in second.history if isinstance(item, FunctionCallOutput)]
    assert given == ["2", result]
    assert not second.pending


async def test_consent_is_asked_for_while_it_runs() -> None:
    async def approve(asked: Any) -> bool:
        return asked.arguments == "{}"

    model = Model([call("delete"), call("delete", "c2", path="/x")], "Done.")
    agent = Agent(model, tools=[delete], approve=approve)
    run = await agent.run("Clean up.")
    given = [item.output for item in run.output if isinstance(item, FunctionCallOutput)]
    assert given == ["deleted /", "The user did not allow this call."]
    undecided = Agent(Model(call("delete")), tools=[delete], approve=lambda _: None)
    await undecided.run("Clean up.")
    with pytest.raises(ValueError, match="`allow` has other; pending calls: "):
        await undecided.run(allow={"other": True})
    assert undecided.pending


async def test_a_call_that_was_not_decided_about_is_still_pending() -> None:
    model = Model([call("delete"), call("delete", "c2", path="/x")], "Done.")
    agent = Agent(model, tools=[delete])
    first = await agent.run("Clean up.")
    assert [each.call_id for each in first.pending] == ["c1", "c2"]
    second = await agent.run(allow={"c2": True})
    assert [each.call_id for each in second.pending] == ["c1"]
    assert (second.text, second.value) == ("", None)
    third = await agent.run(allow=False)
    assert (third.text, third.pending) == ("Done.", ())


async def test_who_says_something_else_has_not_consented() -> None:
    model = Model(call("delete"), "As you like.")
    agent = Agent(model, tools=[delete])
    await agent.run("Clean up.")
    with pytest.raises(TypeError, match="`allow` resumes a run"):
        await agent.run("Never mind.", allow=True)
    assert (await agent.run("Never mind.")).text == "As you like."
    shown = model.asked[1].items[-2:]
    assert (shown[0].output, shown[1].text) == (MOVED_ON, "Never mind.")


# ---- what goes wrong -------------------------------------------------------------------------


async def test_a_failed_run_is_an_error_and_keeps_what_was_done() -> None:
    fault = Fault("upstream_error", "No.", "upstream")
    agent = Agent(Model(call("add", a=1), fault, "Back."), tools=[add])
    with pytest.raises(AnswerError) as raised:
        await agent.run("Go.")
    assert isinstance(raised.value.answer, Run)
    assert [type(item).__name__ for item in agent.history] == [
        *("Message", "FunctionCall", "FunctionCallOutput")
    ]
    assert (await agent.run()).text == "Back."


async def test_a_run_that_never_began_leaves_no_trace() -> None:
    agent = Agent(Model(Fault("upstream_unreachable", "No.", "upstream"), "Hi."))
    with pytest.raises(AnswerError):
        await agent.run("Go.")
    assert agent.history == ()
    with pytest.raises(TypeError, match="the conversation is empty"):
        await agent.run()


@pytest.mark.parametrize("repeatable", [False, True])
async def test_no_call_is_run_twice_after_a_run_was_cancelled(repeatable) -> None:
    ran: list[str] = []
    paid = asyncio.Event()

    @tool(repeatable=repeatable)
    async def slow() -> str:
        ran.append("slow")
        if len(ran) < 3:
            await asyncio.Event().wait()
        return "at last"

    async def pay() -> str:
        ran.append("pay")
        paid.set()
        return "paid"

    model = Model([call("slow"), call("pay", "c2")], "Fine.")
    agent = Agent(model, tools=[slow, pay])
    running = asyncio.ensure_future(agent.run("Go."))
    await paid.wait()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not others()
    assert [each.name for each in agent.pending] == (["slow"] if repeatable else [])
    assert (await agent.run()).text == "Fine."
    assert ran == ["slow", "pay", *(["slow"] if repeatable else [])]
    given = {item.call_id: item.output for item in agent.history if hasattr(item, "output")}
    assert given == {"c1": "at last" if repeatable else INTERRUPTED, "c2": "paid"}


@pytest.mark.parametrize("close", [False, True])
async def test_results_without_their_calls_are_not_in_the_conversation(close) -> None:
    ran: list[str] = []

    async def pay() -> str:
        ran.append("pay")
        return "paid"

    model = Model([Message("assistant", "I pay now."), call("pay")], "Fine.")
    agent = Agent(model, tools=[pay])
    async with agent.stream("Go.") as stream:
        async for _ in stream.text:
            for _ in range(100):  # a slow reader, which leaves before it sees the call
                await asyncio.sleep(0)
            if close:
                await stream.close()
            break
    assert not ran
    assert [type(item) for item in agent.history] == [Message, Message]
    assert (await agent.run("Go on.")).text == "Fine."


async def test_the_text_so_far_stays_where_a_run_is_out_of_time() -> None:
    cues = [
        Started(id="1", created_at=0, model="any"),
        ItemAdded(0, Message("assistant", id="msg_1")),
        PartAdded(0, 0, Text("")),
        Delta(0, 0, "text", "Once upon a"),
        asyncio.Event().wait,
    ]
    agent = Agent(Script(cues, "time."))
    async with agent.stream("A story.") as stream:
        reading = asyncio.ensure_future(stream.finish())
        while not stream.answer.text:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert [item.text for item in agent.history] == ["A story.", "Once upon a"]
    assert (await agent.run("Go on.")).text == "time."


async def test_calls_that_were_not_begun_wait_and_can_be_refused() -> None:
    def add_one(a: int) -> int:
        raise AssertionError("it was refused")

    history = (Message("user", "Go."), call("add_one", a=1))
    agent = Agent(Model("Fine."), tools=[add_one], history=history)
    run = await agent.run(allow=False)
    assert run.output[0].output == "The user did not allow this call."
    history = (Message("user", "Go."), replace(call("add_one", a=1), status="incomplete"))
    agent = Agent(Model("Fine."), tools=[add_one], history=history)
    await agent.run()
    assert agent.history[2].output == CUT_OFF


async def test_calls_of_others_are_answered_by_who_asks_or_not_at_all() -> None:
    history = (Message("user", "Go."), call("theirs"))
    agent = Agent(Model("Fine."), history=history)
    await agent.run(FunctionCallOutput("c1", "42"))
    assert [item.output for item in agent.history if hasattr(item, "output")] == ["42"]
    agent = Agent(Model("Fine."), history=history)
    await agent.run()
    assert [item.output for item in agent.history if hasattr(item, "output")] == [NO_ANSWER]


async def test_a_budget_ends_a_run_and_says_so() -> None:
    agent = Agent(Model(call("add", a=1)), tools=[add], budget=Budget(rounds=1))
    run = await agent.run("Go.")
    assert run.stopped == "The budget is used up: calls of the model, 1 of 1."
    assert run.end == "budget"
    assert (run.status, run.pending) == ("incomplete", ())
    assert (await agent.run("More!")).stopped


async def test_without_a_model_to_ask_it_fails() -> None:
    class None_(Model):
        async def models(self, caller: Any = None) -> tuple[()]:
            return ()

    with pytest.raises(AnswerError, match="the engine lists none"):
        await Agent(None_("x")).run("Go.")


# ---- conversations ---------------------------------------------------------------------------


async def test_a_branch_goes_on_by_itself_and_shares_the_budget() -> None:
    agent = Agent(Model("Hi."))
    await agent.run("Hello.")
    other = agent.branch()
    assert other.history is agent.history
    await other.run("And?")
    assert (len(agent.history), len(other.history)) == (2, 4)
    assert agent.meter.rounds == 2


async def test_runs_of_one_agent_wait_for_each_other() -> None:
    model = Model(lambda asked: str(len(asked.items)))
    agent = Agent(model)
    runs = await asyncio.gather(*(agent.run("Go.") for _ in range(3)))
    assert [run.text for run in runs] == ["1", "3", "5"]


async def test_the_latest_turns_and_the_pinned_items_are_shown() -> None:
    turns = [Message(role, "word " * 20) for _ in range(50) for role in ("user", "assistant")]
    model = Model("Ok.")
    pinned = (Message("user", "I am Ada."), Message("assistant", "Hi Ada."))
    agent = Agent(model, pinned=pinned, history=turns, context=400)
    await agent.run("And now?")
    shown = model.asked[0].items
    assert shown[:2] == pinned
    assert shown[-1].text == "And now?"
    assert 2 < len(shown) < 20
    assert len(agent.history) == 102

    class Small(Model):
        async def capabilities(self, model: str) -> Capabilities:
            return Capabilities(context=400)

    small = Small("Ok.")
    await Agent(small, pinned=pinned, history=turns).run("And now?")
    assert small.asked[0].items == shown


async def test_a_conversation_that_is_too_long_is_compacted_and_goes_on() -> None:
    long = Fault("upstream_refused", "No.", "upstream", upstream_code="context_length_exceeded")
    turns = [Message("user", "I am Ada."), Message("assistant", "Hi.")]
    model = Model(long, "She is Ada.", "Done.", "Again.")
    agent = Agent(model, history=turns, continuations=1)
    assert (await agent.run("Go.")).text == "Done."
    assert isinstance(agent.history[2], Compaction)
    await agent.run("More.")
    shown = [item.text for item in model.asked[3].items]
    assert "She is Ada." in shown[0]
    assert shown[1:] == ["Go.", "Done.", "More."]


async def test_a_conversation_with_half_of_a_surrogate_pair_can_be_saved() -> None:
    agent = Agent(Model("Fine."))
    await agent.run("Half: \ud83d")
    other = Agent(Model("Fine."))
    other.load(agent.dump())
    assert [item.text for item in other.history] == ["Half: ?", "Fine."]


@pytest.mark.parametrize(
    "make",
    [
        lambda text: Agent(Model("x"), history=[Message("user", text)]),
        lambda text: program.Model(Model("x")).set("text", text),
    ],
)
def test_two_may_save_to_one_file_at_a_time(make, tmp_path, monkeypatch) -> None:
    path = tmp_path / "saved.json"
    first, second = make("1"), make("2")
    write = Path.write_bytes

    def interrupted(draft: Path, data: bytes) -> int:
        monkeypatch.undo()
        written = write(draft, data)
        second.save(path)  # meanwhile
        return written

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    first.save(path)
    assert path.read_bytes() == first.dump()
    assert [each.name for each in tmp_path.iterdir()] == ["saved.json"]


def test_a_file_that_is_saved_again_keeps_its_mode_and_a_link_stays_one(tmp_path) -> None:
    path, link = tmp_path / "saved.json", tmp_path / "link.json"
    path.touch(0o600)
    link.symlink_to(path)
    agent = Agent(Model("x"))
    agent.save(link)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == agent.dump()


async def test_what_was_not_saved_by_an_agent_is_refused() -> None:
    agent = Agent(Model("Hi."))
    with pytest.raises(ValueError, match="truncated"):
        agent.load(b"{")
    data = json.loads(agent.dump()) | {"version": 2}
    with pytest.raises(ValueError, match="version 2"):
        agent.load(json.dumps(data).encode())


async def test_an_agent_is_a_tool_of_another() -> None:
    helper = Agent(Model("Paris.", "Rome."), name="geographer")
    typed = Agent(Model('{"name": "Ada"}'), name="namer", output=Person)
    made = [call("geographer", task="France?"), call("namer", "c2", task="Who?")]
    chief = Agent(
        Model(made, "Paris."), tools=[helper.as_tool("Knows capitals."), typed.as_tool("Points.")]
    )
    run = await chief.run("What is the capital of France?")
    given = [item.output for item in run.output if isinstance(item, FunctionCallOutput)]
    assert given == ["Paris.", '{"name":"Ada"}']
    assert helper.history == ()


async def test_hooks_see_prompts_calls_and_what_is_added() -> None:
    class Odd(Agent):
        def prompt(self, request: Request, context: int | None) -> Any:
            return (*super().prompt(request, context), Message("user", "Please."))

        async def call(self, call: Any, context: Context) -> Result:
            return replace(await super().call(call, context), output=failed(call, "42").output)

        def add(self, items: Any) -> None:
            super().add([item for item in items if not isinstance(item, FunctionCallOutput)])

    model = Model(call("add", a=1), "Done.")
    agent = Odd(model, tools=[add])
    await agent.run("Go.")
    assert model.asked[0].items[-1].text == "Please."
    assert model.asked[1].items[-1].output == "42"
    assert not any(isinstance(item, FunctionCallOutput) for item in agent.history)


async def test_a_client_is_a_target_with_its_own_model() -> None:
    model = Model("Hi.")
    prices = {"mine": Price(input=1e6)}
    async with Agent(connect(model, model="mine"), prices=prices, budget=Budget(cost=50)) as agent:
        assert (await agent.run("Go.")).cost == 10
    async with Agent(Wrapper(connect(model, model="mine"))) as agent:
        await agent.run("Go.")
    assert [asked.model for asked in model.asked] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"instructions": [{"role": "developer", "content": "x"}]}, "instructions: "),
        ({"instructions": ["text"]}, "instructions: "),
        ({"instructions": b"x"}, "instructions: Expected"),
        ({"model": 5}, "model: Expected"),
        ({"tools": add}, "tools: is of type function"),
        ({"budget": {"tokens": 5}}, "budget: is of type dict"),
        ({"prices": {"*": 1}}, r"prices\['\*'\]: is of type int, and must be Price"),
        ({"prices": "x"}, "prices: is of type str"),
        ({"approve": "always"}, "approve: is called with one call: 'always' is not"),
        ({"approve": lambda: True}, "approve: is called with one call: too many"),
        ({"approve": lambda a, b: True}, "approve: is called with one call: missing"),
        ({"context": "4k"}, "context: is of type str"),
        ({"max_rounds": "3"}, "max_rounds: is of type str"),
        ({"retries": None}, "retries: is of type NoneType"),
        ({"corrections": "1"}, "corrections: is of type str"),
        ({"continuations": "1"}, "continuations: is of type str"),
    ],
)
def test_an_argument_of_the_wrong_type_is_a_type_error_that_names_it(given, problem) -> None:
    with pytest.raises(TypeError, match=f"^{problem}"):
        Agent("script", **given)


def test_all_numbers_and_none_for_a_model_are_taken() -> None:
    given: dict[str, Any] = {"model": None, "context": 6e3, "retries": False, "prices": None}
    assert Agent("script", budget=Budget(tokens=1e6), **given).model == ""
    items = (Message("developer", "Be brief."),)
    assert Agent("script", instructions=list(items)).instructions == items


async def test_a_conversation_may_be_given_as_dicts_and_is_never_shared() -> None:
    said = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    agent = Agent(Model("Fine."), history=said)
    assert [item.text for item in agent.history] == ["Hi.", "Hello."]
    agent.history = shared = []
    await agent.branch().run("Go.")
    assert not shared


class Measuring(Model):
    """Refuses what is longer than its context, as servers do, and says nothing of its size."""

    def play(self, request: Request) -> Any:
        if estimate(request) > 120:
            self.asked.append(request)
            fault = Fault("upstream_refused", "maximum context length is 120 tokens", "upstream")
            return Response(id="1", created_at=0, model="m", status="failed", error=fault)
        return super().play(request)


async def test_a_model_that_measures_is_given_summaries_of_what_fits_and_the_pinned_items() -> None:
    turns = [Message(role, "word " * 10) for _ in range(20) for role in ("user", "assistant")]
    model = Measuring("A summary.", "Done.")
    pinned = (Message("user", "I am Ada."),)
    agent = Agent(model, history=turns, pinned=pinned)
    assert (await agent.run("Go.")).text == "Done."
    assert model.asked[-1].items[0] == pinned[0]
    assert [item.text for item in model.asked[-1].items][-1] == "Go."
    assert (await agent.run("More.")).text == "Done."
    assert [item.text for item in model.asked[-1].items][-3:] == ["Go.", "Done.", "More."]
    hopeless = Agent(Measuring("x"), instructions="word " * 200)
    with pytest.raises(AnswerError, match="maximum context"):
        await hopeless.run("Go.")


# ---- one at a time ---------------------------------------------------------------------------


def test_an_agent_may_be_used_on_several_loops_one_after_the_other() -> None:
    agent = Agent(Model("Hi."))

    async def twice() -> None:
        await asyncio.gather(agent.run("a"), agent.run("b"))

    asyncio.run(twice())
    asyncio.run(twice())
    assert agent.run_sync("c").text == "Hi."
    assert len(agent.history) == 10


async def test_a_run_on_another_loop_meanwhile_is_an_error() -> None:
    agent = Agent(Model("Hi."))
    async with agent.stream("a") as stream:
        await anext(stream)
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(agent.run_sync, "b")
        with pytest.raises(RuntimeError, match="still open here"):
            await agent.run("b")
    assert (await agent.run("b")).text == "Hi."


async def test_a_stream_that_is_dropped_lets_the_next_task_run_its_agent() -> None:
    agent = Agent(Script("one two three"))
    async for _ in agent.stream("Hi").text:
        break
    run = await asyncio.wait_for(asyncio.ensure_future(agent.run("Again")), 60)
    assert run.text == "one two three"
    assert [item.text for item in agent.history] == ["Hi", "one", "Again", "one two three"]


async def test_a_tool_cannot_run_its_own_agent() -> None:
    async def ask() -> str:
        return (await agent.run("Inside?")).text

    def ask_in_a_thread() -> str:
        return agent.run_sync("Inside?").text

    async def branch() -> str:
        return (await agent.branch().run("Inside?")).text

    made = [call("ask"), call("ask_in_a_thread", "c2")]
    agent = Agent(Model(made, "Done."), tools=[ask, ask_in_a_thread, branch])
    run = await agent.run("Go.")
    given = [item.output for item in run.output if isinstance(item, FunctionCallOutput)]
    assert all("a tool of this agent cannot run it" in each for each in given)
    assert len(agent.history) == 6


# ---- costs -----------------------------------------------------------------------------------


async def test_costs_are_those_of_one_run() -> None:
    prices = {"*": Price(output=200_000.0)}
    agent = Agent(Model("Hi."), prices=prices, budget=Budget(cost=3.0))
    branches = [agent.branch() for _ in range(3)]
    runs = await asyncio.gather(*(each.run("Go.") for each in branches))
    assert [run.cost for run in runs] == [1.0] * 3
    assert (await agent.run("Go.")).stopped == "The budget is used up: cost, 3 of 3."
    with pytest.raises(ValueError, match="'script' has no price"):
        await Agent(Model("Hi."), budget=Budget(cost=3.0)).run("Go.")


async def test_tokens_that_are_not_reported_are_estimated() -> None:
    answer = Response(
        id="1",
        created_at=0,
        model="m",
        status="completed",
        output=(call("add", a=1),),
        reasons=("tool_calls",),
    )
    agent = Agent(Model(answer), tools=[add], budget=Budget(tokens=30))
    assert "tokens" in (await agent.run("Go.")).stopped


async def test_a_refusal_is_an_end() -> None:
    refused = Message("assistant", (Refusal("I cannot."),))
    model = Model(refused)
    run = await Agent(model, output=Point).run("Go.")
    assert (run.end, run.value, len(model.asked)) == ("refused", None, 1)


async def test_what_was_asked_again_is_part_of_the_conversation() -> None:
    agent = Agent(Model("No.", '{"x": 1}'), output=Point)
    await agent.run("Go.")
    assert [item.role for item in agent.history] == ["user", "assistant", "user", "assistant"]


async def test_a_sub_agent_without_an_answer_is_an_error_for_the_other() -> None:
    waits = Agent(Model(call("delete")), tools=[delete], name="cleaner")
    spent = Agent(Model("Hi."), name="miser", budget=Budget(rounds=0))
    made = [call("cleaner", task="Go."), call("miser", "c2", task="Go.")]
    chief = Agent(Model(made, "Sorry."), tools=[waits.as_tool("Cleans."), spent.as_tool("Saves.")])
    run = await chief.run("Go.")
    assert [item.output for item in run.output if isinstance(item, FunctionCallOutput)] == [
        "A person must consent to a call of this agent first.",
        "The budget is used up: calls of the model, 0 of 0.",
    ]
