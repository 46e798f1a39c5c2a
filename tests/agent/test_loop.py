"""The loop: rounds, results in order, errors, limits, consent; all as the events of one answer."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.agent import loop as loop_module
from dragoman.agent.budget import Budget, Meter, Price
from dragoman.agent.loop import (
    CONTINUE,
    NOT_ALLOWED,
    SWITCHED_OFF,
    Loop,
    too_long,
    unanswered,
)
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed, ItemDone, Progress
from dragoman.core.fold import fold, unfold
from dragoman.core.interfaces import Caller
from dragoman.core.item import (
    Compaction,
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    Message,
)
from dragoman.core.request import (
    AllowedTools,
    FunctionTool,
    NamedTool,
    Namespace,
    Request,
    Sampling,
    UnknownTool,
)
from dragoman.core.response import Response, Usage
from dragoman.engines.compaction import Compacting
from dragoman.engines.script import Script
from dragoman.tools.function import PythonTool, tool
from dragoman.tools.run import Context, Result, Runner, ToolError
from tests.agent.stage import Model, call
from tests.engines.stage import heard, others

ASKED = Request(model="m", items=(Message("user", "Go."),), stream=True)


def add(a: int, b: int = 1) -> int:
    "Adds."
    return a + b


def broken() -> None:
    raise ValueError("broken")


def loop(model: Any, *tools: Any, **settings: Any) -> Loop:
    made = [each if isinstance(each, PythonTool) else PythonTool(each) for each in tools or (add,)]
    return Loop(model, Runner(made), **settings)


async def answer(engine: Loop, request: Request = ASKED) -> Response:
    return fold(await heard(engine, request))


def outputs(response: Response) -> list[Any]:
    return [item.output for item in response.output if isinstance(item, FunctionCallOutput)]


async def test_calls_are_run_and_their_results_given_until_the_model_answers() -> None:
    model = Model(
        [Message("assistant", "I add."), call("add", a=1)], call("add", "c2", a=2), "Done."
    )
    response = await answer(loop(model))
    assert [type(item).__name__ for item in response.output] == [
        *("Message", "FunctionCall", "FunctionCallOutput"),
        *("FunctionCall", "FunctionCallOutput", "Message"),
    ]
    assert outputs(response) == ["2", "3"]
    assert response.usage == Usage(input_tokens=30, output_tokens=15, total_tokens=45)
    assert (response.status, response.reasons) == ("completed", ("stop",))
    assert [len(asked.items) for asked in model.asked] == [1, 4, 6]
    assert all(asked.tools == model.asked[0].tools for asked in model.asked)
    assert model.asked[0].tools[0].name == "add"


@pytest.mark.parametrize("asked", [ASKED, replace(ASKED, tools=(FunctionTool("theirs"),))])
async def test_law_8_a_loop_without_tools_is_the_engine(asked) -> None:
    engine = Script(list(unfold(await answer(loop(Model("Hi."))))))
    assert await heard(Loop(engine, Runner()), asked) == await heard(engine, asked)
    assert Loop(engine, Runner()).prepare(asked, Caller()) is None


async def test_calls_of_the_clients_tools_are_left_to_the_client() -> None:
    model = Model([call("add", a=1), call("theirs", "c2")])
    asked = replace(ASKED, tools=(FunctionTool("theirs"),))
    response = await answer(loop(model), asked)
    assert outputs(response) == ["2"]
    assert response.reasons == ("tool_calls",)
    assert [each.call_id for each in unanswered(response.output)] == ["c2"]
    assert [each.name for each in model.asked[0].tools] == ["theirs", "add"]
    model = Model(call("add", a=1), "Done.")  # one that has the name of ours
    response = await answer(loop(model), replace(ASKED, tools=(FunctionTool("add"),)))
    assert [each.name for each in model.asked[0].tools] == ["add"]


async def test_calls_run_side_by_side_and_their_results_come_in_order() -> None:
    order: list[int] = []
    gates = [asyncio.Event() for _ in range(3)]

    async def wait(n: int) -> int:
        if n < 2:
            await gates[n + 1].wait()
        order.append(n)
        gates[n].set()
        return n

    made = [call("wait", f"c{n}", n=n) for n in range(3)]
    assert outputs(await answer(loop(Model(made, "Done."), wait))) == ["0", "1", "2"]
    assert order == [2, 1, 0]


async def test_calls_run_one_after_the_other_where_that_is_asked_for() -> None:
    running = most = 0

    async def one() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    made = [call("one", f"c{n}") for n in range(5)]
    await answer(loop(Model(made, "Done."), one), replace(ASKED, parallel_tool_calls=False))
    assert most == 1
    await answer(loop(Model(made, "Done."), one))
    assert most == 5


async def test_a_hundred_calls_are_answered() -> None:
    made = [call("add", f"c{n}", a=n) for n in range(100)]
    response = await answer(loop(Model(made, "Done.")))
    assert outputs(response) == [str(n + 1) for n in range(100)]


# ---- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [call("zz"), FunctionCall("c1", "add", "{"), call("add", a="x")])
async def test_an_invalid_call_gets_an_error_and_the_model_may_try_again(wrong) -> None:
    model = Model(wrong, call("add", "c2", a=1), "Done.")
    response = await answer(loop(model))
    assert outputs(response)[1] == "2"
    assert [asked.tool_choice for asked in model.asked] == [None, None, None]


async def test_after_errors_in_a_row_no_more_is_called() -> None:
    model = Model(call("broken"), call("broken", "c2"), "Sorry.")
    response = await answer(loop(model, broken))
    assert [asked.tool_choice for asked in model.asked] == [None, None, "none"]
    assert response.text == "Sorry."
    model = Model(call("broken"), call("add", "c2", a=1), call("broken", "c3"), "Sorry.")
    await answer(loop(model, broken, add))  # one that went well begins the count again
    assert [asked.tool_choice for asked in model.asked] == [None] * 4


async def test_a_tool_that_may_not_be_tried_again_ends_the_calls_at_once() -> None:
    model = Model(call("broken"), "Sorry.")
    await answer(loop(model, PythonTool(broken, auto_retry=False)))
    assert model.asked[1].tool_choice == "none"


async def test_after_the_last_round_no_more_is_called() -> None:
    model = Model(call("add", a=1), call("add", "c2", a=1), "Done.")
    response = await answer(loop(model, max_rounds=2))
    assert [asked.tool_choice for asked in model.asked] == [None, None, "none"]
    assert response.text == "Done."


async def test_a_model_that_calls_all_the_same_is_stopped() -> None:
    model = Model(call("add", a=1), call("add", "c2", a=1))
    response = await answer(loop(model, max_rounds=1))
    assert outputs(response) == ["2", SWITCHED_OFF]
    assert (response.status, response.reasons) == ("incomplete", ("budget",))
    assert len(model.asked) == 2


@pytest.mark.parametrize(
    ("choice", "then"),
    [
        ("required", None),
        (NamedTool("add"), None),
        ("auto", "auto"),
        (AllowedTools("required", (NamedTool("add"),)), AllowedTools("auto", (NamedTool("add"),))),
    ],
)
async def test_what_must_be_called_is_called_once(choice, then) -> None:
    model = Model(call("add", a=1), "Done.")
    await answer(loop(model), replace(ASKED, tool_choice=choice))
    assert [asked.tool_choice for asked in model.asked] == [choice, then]


async def test_the_user_speaks_next_where_all_tools_say_so() -> None:
    @tool(after="user")
    def show(what: str = "") -> str:
        return what

    response = await answer(loop(Model(call("show", what="a"), "Done."), show))
    assert (response.text, outputs(response), response.status) == ("", ["a"], "completed")
    both = [call("show"), call("add", "c2", a=1)]
    assert (await answer(loop(Model(both, "Done."), show, add))).text == "Done."


async def test_a_failed_answer_ends_all_with_what_was_used() -> None:
    fault = Fault("upstream_error", "No.", "upstream")
    events = await heard(loop(Model(call("add", a=1), fault)), ASKED)
    assert isinstance(events[-1], Failed)
    assert events[-1].fault == fault
    assert events[-1].usage == Usage(input_tokens=10, output_tokens=5, total_tokens=15)
    assert sum(isinstance(event, ItemDone) for event in events) == 2


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_calls_of_an_answer_that_was_cut_off_are_not_run(reason) -> None:
    cut = Response(
        id="1",
        created_at=0,
        model="m",
        status="incomplete",
        output=(replace(call("add", a=1), status="incomplete"),),
        reasons=(reason,),
    )
    response = await answer(loop(Model(cut)))
    assert (response.status, response.reasons, outputs(response)) == ("incomplete", (reason,), [])


async def test_an_answer_that_was_cut_off_is_continued_where_that_is_wanted() -> None:
    cut = Response(
        id="1",
        created_at=0,
        model="m",
        status="incomplete",
        output=(Message("assistant", "One, "),),
        reasons=("length",),
    )
    model = Model(cut, cut, "three.")
    response = await answer(loop(model, continuations=2))
    assert (response.text, response.status) == ("One, One, three.", "completed")
    assert model.asked[1].items[-1] == Message("user", CONTINUE)
    assert (await answer(loop(Model(cut, cut, "x"), continuations=1))).status == "incomplete"


async def test_several_choices_are_refused() -> None:
    response = await answer(loop(Model("x")), replace(ASKED, sampling=Sampling(n=2)))
    assert "n: an answer with tools is one choice" in response.error.message


async def test_calls_of_servers_that_count_from_zero_stay_apart() -> None:
    model = Model(call("add", "call_0", a=1), call("add", "call_0", a=2), "Done.")
    response = await answer(loop(model))
    made = [item.call_id for item in response.output if hasattr(item, "call_id")]
    assert made == ["call_0", "call_0", "call_0_1", "call_0_1"]
    assert outputs(response) == ["2", "3"]


async def test_custom_tools_are_run_too() -> None:
    @tool(custom=True)
    def patch(text: str) -> str:
        return text.upper()

    response = await answer(loop(Model(CustomToolCall("c1", "patch", "go"), "Done."), patch))
    assert response.output[1].output == "GO"


# ---- consent ---------------------------------------------------------------------------------


@tool(approval="always")
def delete(path: str = "/") -> str:
    return f"deleted {path}"


async def later(_: Any) -> bool:
    await asyncio.sleep(0)
    return True


@pytest.mark.parametrize(
    ("approve", "result"),
    [
        (lambda _: True, "deleted /"),
        (later, "deleted /"),
        (lambda _: False, NOT_ALLOWED),
        (lambda _: "Ask my boss.", "Ask my boss."),
    ],
)
async def test_consent_is_asked_for_and_the_model_gets_a_refusal(approve, result) -> None:
    response = await answer(loop(Model(call("delete"), "Done."), delete, approve=approve))
    assert (outputs(response), response.text) == ([result], "Done.")


@pytest.mark.parametrize("approve", [None, lambda _: None])
async def test_an_answer_that_waits_for_consent_ends_and_goes_on_later(approve) -> None:
    model = Model([call("delete"), call("add", "c2", a=1)], "Done.")
    engine = loop(model, delete, add, approve=approve)
    response = await answer(engine)
    assert (response.reasons, outputs(response)) == (("tool_calls",), ["2"])
    assert [each.name for each in unanswered(response.output)] == ["delete"]
    again = replace(ASKED, items=(*ASKED.items, *response.output))
    response = await answer(loop(model, delete, add, approve=lambda _: True), again)
    assert (outputs(response), response.text) == (["deleted /"], "Done.")
    assert len(model.asked) == 2


async def test_a_rule_that_raises_fails_the_answer() -> None:
    def approve(_: Any) -> bool:
        raise FaultError(Fault("internal", "nobody is there"))

    events = await heard(loop(Model(call("delete")), delete, approve=approve), ASKED)
    assert events[-1].fault.message == "nobody is there"


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_exception_of_approve_is_the_applications_own(is_async) -> None:
    async def wait(_: Any) -> bool:
        raise EOFError("no line")

    def approve(asked: Any) -> Any:
        return wait(asked) if is_async else [][0]

    events = await heard(loop(Model(call("delete")), delete, approve=approve), ASKED)
    expected = "EOFError: no line" if is_async else "IndexError: list index out of range"
    assert events[-1].fault.message == f"`approve` raised {expected}"


# ---- budgets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "rounds", "sentence"),
    [
        (Budget(rounds=1), 1, "calls of the model, 1 of 1"),
        (Budget(tokens=30), 2, "tokens, 30 of 30"),
        (Budget(input_tokens=10), 1, "input tokens, 10 of 10"),
        (Budget(output_tokens=11), 3, "output tokens, 15 of 11"),
        (Budget(cost=0.00002), 2, "cost, 3.5e-05 of 2e-05"),
        (Budget(seconds=0), 0, "seconds"),
    ],
)
async def test_a_budget_ends_the_answer_before_the_next_call_of_the_model(
    budget, rounds, sentence
) -> None:
    model = Model(lambda asked: call("add", f"c{len(asked.items)}", a=1))
    meter = Meter(budget, {"*": Price(input=1.0, output=1.5)})
    response = await answer(loop(model, meter=meter))
    assert len(model.asked) == meter.rounds == rounds
    assert (response.status, response.reasons) == ("incomplete", ("budget",))
    assert sentence in response.extra["agent"]["stopped"]
    assert not unanswered(response.output)


async def test_a_budget_of_calls_leaves_the_others_unrun() -> None:
    meter = Meter(Budget(calls=2))
    model = Model([call("add", f"c{n}", a=n) for n in range(4)], "Done.")
    response = await answer(loop(model, meter=meter))
    assert outputs(response)[:2] == ["1", "2"]
    used_up = "It was not run. The budget is used up: calls of tools, 2 of 2."
    assert outputs(response)[2:] == [used_up] * 2
    assert (meter.calls, response.text, model.asked[1].tool_choice) == (2, "Done.", "none")


def test_prices_know_caches_and_models() -> None:
    usage = Usage(input_tokens=1_000_000, cached_tokens=500_000, cache_write_tokens=100_000)
    assert Price(input=1.0).of(usage) == 1.0
    assert Price(input=1.0, cached=0.1, cache_write=2.0).of(usage) == pytest.approx(0.65)
    meter = Meter(prices={"m": Price(input=1.0)})
    assert meter.add(usage, "other") == 0.0
    assert meter.add(usage, "m") == meter.cost == 1.0


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Budget, {"tokens": "5"}),
        (Budget, {"seconds": [1]}),
        (Price, {"input": "1"}),
        (Price, {"output": None}),
        (Price, {"cached": "1"}),
    ],
)
def test_a_limit_or_price_that_is_no_number_is_a_type_error_that_names_it(kind, given) -> None:
    with pytest.raises(TypeError, match=f"^{next(iter(given))}: is of type"):
        kind(**given)


# ---- too long --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "long"),
    [
        (Fault("upstream_refused", "x", upstream_code="context_length_exceeded"), True),
        (Fault("upstream_refused", "This model's maximum context length is 8 tokens"), True),
        (Fault("upstream_refused", "prompt is too long: 9 tokens > 8 maximum"), True),
        (Fault("invalid_request", "exceeds the available context size"), True),
        (Fault("upstream_refused", "temperature: too high"), False),
        (Fault("upstream_error", "context length"), False),
        (Fault("upstream_refused", "Too many tokens, please wait.", status=429), False),
    ],
)
def test_faults_of_long_prompts_are_known(fault, long) -> None:
    assert too_long(fault) is long


async def test_a_conversation_that_is_too_long_is_summarised_once() -> None:
    long = Fault("upstream_refused", "No.", "upstream", upstream_code="context_length_exceeded")
    items = (Message("user", "I am Ada."), Message("assistant", "Hi."), Message("user", "Go."))
    model = Model(long, "She is Ada.", call("add", a=1), "Done.")
    asked = replace(ASKED, items=items)
    response = await answer(loop(Compacting(model)), asked)
    assert isinstance(response.output[0], Compaction)
    assert response.text == "Done."
    assert response.usage.output_tokens == 15
    shown = [item.text for item in model.asked[2].items]
    assert "She is Ada." in shown[0]
    assert shown[1:] == ["Go."]
    events = await heard(loop(Model(long, "Summary.", long)), asked)
    assert events[-1].fault == long


# ---- progress, cancelling --------------------------------------------------------------------


async def test_tools_report_progress() -> None:
    def slow(context: Context) -> str:
        context.report("halfway")
        return f"for {context.caller.tenant}, {context.state}"

    async def native(context: Context) -> str:
        context.report({"percent": 50})
        return ""

    made = [call("slow"), call("native", "c2")]
    engine = loop(Model(made, "Done."), slow, native, state="state")
    async with aclosing(engine.stream(ASKED, Caller(tenant="t"))) as stream:
        events = [event async for event in stream]
    reports = [event.data for event in events if isinstance(event, Progress)]
    assert {"call_id": "c2", "report": {"percent": 50}} in reports
    assert {"call_id": "c1", "report": "halfway"} in reports
    assert outputs(fold(events))[0] == "for t, state"


async def test_law_6_closing_the_answer_stops_its_tools() -> None:
    inside, ended = asyncio.Event(), 0

    async def wait() -> None:
        nonlocal ended
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    made = [call("wait"), call("wait", "c2")]
    engine = loop(Model(made), wait)

    async def read() -> None:
        async with aclosing(engine.stream(ASKED)) as events:
            async for _ in events:
                pass

    reading = asyncio.ensure_future(read())
    await inside.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    for _ in range(10):
        await asyncio.sleep(0)
    assert ended == 2
    assert not others()


async def test_a_hook_that_raises_fails_the_answer_and_stops_the_others() -> None:
    class Odd(Loop):
        async def call(self, call: FunctionCall, context: Context) -> Result:
            if call.call_id == "c1":
                raise FaultError(Fault("internal", "odd"))
            await asyncio.Event().wait()
            raise AssertionError

    made = [call("add", a=1), call("add", "c2", a=1)]
    engine = Odd(Model(made), Runner([PythonTool(add)]))
    events: Sequence[Event] = await heard(engine, ASKED)
    assert events[-1].fault.message == "odd"
    assert not others()


async def test_words_of_a_tool_error_reach_the_model() -> None:
    def refuse() -> None:
        raise ToolError("Only on Mondays.")

    assert outputs(await answer(loop(Model(call("refuse"), "Ok."), refuse))) == ["Only on Mondays."]


# ---- calls that are not what they seem -------------------------------------------------------


async def test_equal_and_missing_call_ids_are_made_unique() -> None:
    made = [call("add", "c", a=1), call("add", "c", a=2), call("add", "", a=3)]
    response = await answer(loop(Model(made, "Done.")))
    ids = [item.call_id for item in response.output if isinstance(item, FunctionCall)]
    assert ids[:2] == ["c", "c_1"]
    assert ids[2].startswith("call_")
    assert outputs(response) == ["2", "3", "4"]
    engine = loop(Model(call("add", "c", a=1), "Done."), taken=["c", "c_1"])
    assert (await answer(engine)).output[0].call_id == "c_2"


async def test_a_call_in_a_namespace_or_of_a_hosted_tool_is_the_clients() -> None:
    spaced = replace(call("add", a=1), namespace="crm")
    asked = replace(ASKED, tools=(Namespace("crm", (FunctionTool("add"),)),))
    response = await answer(loop(Model(spaced)), asked)
    assert (response.reasons, outputs(response)) == (("tool_calls",), [])
    hosted = replace(ASKED, tools=(UnknownTool("responses", "mcp", {"type": "mcp"}),))
    response = await answer(loop(Model([call("search"), call("add", "c2", a=1)])), hosted)
    assert (response.reasons, outputs(response)) == (("tool_calls",), ["2"])
    response = await answer(loop(Model(spaced, "Done.")))
    assert outputs(response) == ["There is no tool 'crm.add'. The tools are: add."]


class Stop(BaseException):
    """Neither an exception nor a cancellation."""


async def cancels() -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def stops() -> None:
    raise Stop


async def exits() -> None:
    raise GeneratorExit


async def stays() -> None:
    for _ in range(3):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("hostile", [cancels, stops, exits])
async def test_a_tool_that_ends_in_no_usual_way_is_an_error(hostile) -> None:
    response = await answer(loop(Model(call(hostile.__name__), "Done."), hostile))
    assert f"The tool '{hostile.__name__}' failed." in outputs(response)[0]


async def test_a_tool_that_will_not_be_cancelled_is_left_behind() -> None:
    response = await answer(loop(Model(call("stays"), "Done."), PythonTool(stays, seconds=0.01)))
    assert outputs(response) == ["The tool 'stays' failed. It did not end within 0.01 seconds."]


async def test_reports_of_a_thread_arrive_while_it_works() -> None:
    gate = threading.Event()

    def work(context: Context) -> str:
        for number in range(1_000):
            context.report(number)
        gate.wait(30)
        return "done"

    engine = loop(Model(call("work"), "Done."), work)
    reports = 0
    async with aclosing(engine.stream(ASKED)) as events:
        async for event in events:
            if isinstance(event, Progress):
                reports += 1
                gate.set()
    assert 1 <= reports <= 1_000


def test_limits_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        loop(Model("x"), max_rounds=-1)


async def test_without_rounds_nothing_is_called() -> None:
    model = Model("Done.")
    assert (await answer(loop(model, max_rounds=0))).text == "Done."
    assert model.asked[0].tool_choice == "none"


async def test_refusals_of_the_user_are_no_errors_of_the_model() -> None:
    model = Model(call("delete"), call("delete", "c2"), call("delete", "c3"), "Fine.")
    await answer(loop(model, delete, approve=lambda _: False))
    assert [asked.tool_choice for asked in model.asked] == [None] * 4


async def test_a_decision_is_words_or_a_yes_or_a_no() -> None:
    model = Model(call("delete"), "Fine.")
    assert outputs(await answer(loop(model, delete, approve=lambda _: 1))) == ["deleted /"]


@pytest.mark.parametrize("place", range(12))
async def test_law_6_closing_the_answer_at_any_event_leaves_nothing(place) -> None:
    made = [call("add", a=1), call("add", "c2", a=2)]
    engine = loop(Model(made, "Done."))
    async with aclosing(engine.stream(ASKED)) as events:
        for _ in range(place):
            await anext(events, None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not others()


async def test_a_hook_that_is_cancelled_or_stops_ends_the_answer() -> None:
    class Odd(Loop):
        async def call(self, call: FunctionCall, context: Context) -> Result:
            raise Stop

    events = await heard(Odd(Model(call("add", a=1)), Runner([PythonTool(add)])), ASKED)
    assert events[-1].fault.code == "internal"


def test_thousands_of_calls_with_one_id_are_named_without_trying_all() -> None:
    class Taken(set[str]):
        looks = 0

        def __contains__(self, id: object) -> bool:
            self.looks += 1
            return super().__contains__(id)

    taken = Taken()
    for _ in range(1_000):
        taken.add(loop_module._free("c", taken))
    assert len(taken) == 1_000
    assert {"c", "c_1", "c_2"} <= taken
    assert taken.looks < 15_000
