"""The runner: whose call it is, results in all cases, and what hostile tools do to it: nothing."""

import asyncio
import sys
import threading
from typing import Any

import pytest

from dragoman.core.interfaces import Secret
from dragoman.core.item import CustomToolCall, FunctionCall, FunctionCallOutput, Image, Text
from dragoman.tools.function import PythonTool, tool
from dragoman.tools.run import LONGEST, MOST_DATA, Context, Runner, ToolError, truncated
from tests.samples import samples


def call(name: str = "f", arguments: str = "{}") -> FunctionCall:
    return FunctionCall("c1", name, arguments)


async def ran(function: Any, **settings: Any) -> Any:
    made = PythonTool(function, name="f", **settings)
    return await Runner([made]).run(call(), Context(call()))


def test_a_name_has_one_owner() -> None:
    @tool
    def f() -> None: ...

    runner = Runner([f])
    assert runner.find(call("f"))
    assert not runner.find(call("g"))
    assert not runner.find(FunctionCall("c1", "f", "{}", namespace="theirs"))
    with pytest.raises(ValueError, match="two tools with the name 'f'"):
        Runner([f, PythonTool(lambda: None, name="f")])


async def test_tools_that_are_not_enabled_are_hidden_and_run_all_the_same() -> None:
    @tool(enabled=False)
    def hidden() -> str:
        return "here"

    @tool
    def shown() -> None: ...

    runner = Runner([hidden, shown])
    assert [spec.name for spec in runner.offered()] == ["shown"]
    result = await runner.run(call("hidden"), Context(call("hidden")))
    assert result.output == FunctionCallOutput("c1", "here")


async def test_a_tool_that_is_not_there_is_an_error_for_the_model() -> None:
    result = await Runner([PythonTool(lambda: None, name="f")]).run(call("g"), Context(call("g")))
    assert result.error
    assert result.retry
    assert result.output.output == "There is no tool 'g'. The tools are: f."
    asked = CustomToolCall("c1", "g", "x")
    assert (await Runner().run(asked, Context(asked))).output.output == (
        "There is no tool 'g'. The tools are: none."
    )


class Words(Exception):
    def __str__(self) -> str:
        raise ValueError


def recursive() -> Any:
    return recursive()


def raising(error: BaseException) -> Any:
    def f() -> None:
        raise error

    return f


def raising_natively(error: BaseException) -> Any:
    async def f() -> None:
        raise error

    return f


HOSTILE = {
    "a defect": (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    "no words": (ValueError(), "ValueError."),
    "words that raise": (Words(), "Words."),
    "the end of the process": (SystemExit(3), "SystemExit: 3"),
    "an interrupt": (KeyboardInterrupt(), "KeyboardInterrupt."),
    "a cancellation of its own": (asyncio.CancelledError(), "CancelledError."),
    "a time-out of its own": (TimeoutError("no answer"), "TimeoutError: no answer"),
    "a secret": (ValueError(Secret("sk-canary")), "ValueError: ***"),
    "a long text": (ValueError("x" * 10**7), "ValueError: xx"),
}


@pytest.mark.parametrize("kind", [raising, raising_natively])
@pytest.mark.parametrize("name", HOSTILE)
async def test_whatever_is_raised_becomes_words_for_the_model(name, kind) -> None:
    error, words = HOSTILE[name]
    result = await ran(kind(error))
    assert result.error
    assert result.retry
    assert result.output.output.startswith(f"The tool 'f' failed. {words}")
    assert "Traceback" not in result.output.output
    assert len(result.output.output) < LONGEST + 99


async def test_words_of_a_tool_error_are_passed_on_as_they_are() -> None:
    result = await ran(raising(ToolError("Ask again tomorrow.")), auto_retry=False)
    assert (result.output.output, result.error, result.retry) == (
        "Ask again tomorrow.",
        True,
        False,
    )


async def test_a_tool_that_calls_itself_without_end_is_an_error() -> None:
    assert "RecursionError" in (await ran(recursive)).output.output


async def test_a_tool_that_hangs_is_given_up() -> None:
    gate = threading.Event()

    async def f() -> None:
        await asyncio.Event().wait()

    for hangs in (f, lambda: gate.wait(30)):
        result = await ran(hangs, seconds=0.01)
        assert result.output.output == "The tool 'f' failed. It did not end within 0.01 seconds."
    gate.set()


async def test_what_it_changes_in_its_arguments_is_its_own() -> None:
    def f(values: list[int] = []) -> int:  # noqa: B006
        values.append(1)
        return len(values)

    made = call(arguments='{"values": [1]}')
    for _ in "ab":
        assert (await Runner([PythonTool(f)]).run(made, Context(made))).output.output == "2"
    assert made.arguments == '{"values": [1]}'


async def test_results_are_cut_to_their_limit() -> None:
    size = samples(5, 50) * 10**6
    assert len((await ran(lambda: "x" * size)).output.output) == LONGEST
    parts = (await ran(lambda: [Text("x" * size)], auto_truncate=100)).output.output
    assert parts == (Text("x" * 97 + "..."),)
    assert (await ran(lambda: "One. Two three", auto_truncate=10)).output.output == "One...."


@pytest.mark.parametrize(
    ("text", "most", "cut"),
    [
        ("short", 5, "short"),
        ("a b\n\nc d\n\ne f g h i j", 14, "a b\n\nc d..."),
        ("one two\nthree four five", 14, "one two..."),
        ("One two. Three four five", 14, "One two...."),
        ("one two three four", 14, "one two..."),
        ("x" * 20, 14, "x" * 11 + "..."),
        ("xxxx", 2, ".."),
    ],
)
def test_texts_are_cut_where_something_ends(text, most, cut) -> None:
    assert truncated(text, most) == cut
    assert len(cut) <= most


async def test_cancelling_a_call_cancels_the_tool() -> None:
    inside, ended = asyncio.Event(), asyncio.Event()

    async def f() -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.ensure_future(ran(f))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def fails(_: Any) -> bool:
    raise ValueError("no rule")


async def later(asked: Any) -> bool:
    return asked.arguments != "{}"


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        ("never", False),
        ("always", True),
        (lambda asked: asked.name == "f", True),
        (lambda asked: False, False),
        (later, False),
        (fails, True),
    ],
)
async def test_consent_is_needed_by_rule_and_where_the_rule_fails(rule, needed) -> None:
    runner = Runner([PythonTool(lambda: None, name="f", approval=rule)])
    assert await runner.needs_approval(call()) is needed
    assert not await runner.needs_approval(call("g"))


async def test_a_deep_result_is_an_error() -> None:
    deep: Any = []
    for _ in range(sys.getrecursionlimit() * 100):
        deep = [deep]
    result = await ran(lambda: deep)
    assert result.error
    assert "RecursionError" in result.output.output


async def test_half_surrogates_and_too_much_data_do_no_harm() -> None:
    assert (await ran(lambda: "a\ud800")).output.output == "a?"
    result = await ran(lambda: [Image("data:," + "x" * MOST_DATA)])
    assert "more than 20971520 bytes" in result.output.output
    two = (await ran(lambda: [Text("abcdefgh"), Text("ijklmnop")], auto_truncate=12)).output.output
    assert [part.text for part in two] == ["abcdefgh", "i..."]


async def test_a_tool_error_without_a_message_is_reported() -> None:
    class Odd(ToolError):
        def __str__(self) -> str:
            raise ValueError

    assert (await ran(raising(Odd()))).output.output == "It did not say why."
