"""What outlives what: programs inside tools, streams and generators that are dropped, forks."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from dragoman.engines.script import Script
from dragoman.program import Model, assistant, block, gen, user
from tests.agent.stage import Model as Stage
from tests.agent.stage import call
from tests.program.test_model import opening, question


async def test_a_tool_may_run_a_program() -> None:
    helper = question(Model(Stage("noon")))

    def now() -> str:
        """The time."""
        with user():
            lm = helper + "When?"
        with assistant():
            return (lm + gen("x"))["x"]

    async def here() -> str:
        """The place."""
        async with user():
            lm = await helper.run("Where?")
        async with assistant():
            return (await lm.run(gen("x")))["x"]

    stage = Stage([call("now", "c1"), call("here", "c2")], "Done.")
    with block("b"):
        async with assistant():
            lm = await Model(stage).run(gen("x", tools=[now, here]))
    assert [item.output for item in lm.items if hasattr(item, "output")] == ["noon", "noon"]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_stream_that_is_dropped_stops_the_answer(asynchronous) -> None:
    stopped = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    lm = Model(Script([*opening("one"), wait]))
    with assistant():
        if asynchronous:
            async for delta in lm.stream(gen("x")):
                assert str(delta) == "one"
                break
        else:
            next(lm.stream(gen("x")))
    assert await asyncio.to_thread(stopped.wait, 30)


async def test_a_generator_that_is_broken_off_leaves_no_role_open() -> None:
    async def words():
        async with assistant():
            async for delta in Model(Script("a b")).stream(gen()):
                yield str(delta)

    async for word in words():
        assert word == "a"
        break
    for _ in range(100):
        await asyncio.sleep(0)
    with user():
        assert str(Model("script") + "x").startswith("<|im_start|>user")


FORKED = """
import os
from dragoman.program import Model, assistant, gen, regex, user

def ask(lm):
    with user():
        lm += "Count to 3."
    with assistant():
        lm += gen("count", stop=".") + regex("[0-9]{2}", name="number")
    return lm["count"], len(lm["number"])

lm = Model("pocket", temperature=0)
before = ask(lm)
if (pid := os.fork()) == 0:
    os._exit(0 if ask(lm) == before else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or ask(lm) != before)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_can_use_the_model_of_its_parent() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=100)


UNREAD = """
from dragoman.program import Model, assistant, gen
with assistant():
    stream = Model("pocket").stream(gen("x"))
next(stream)
"""


def test_a_process_ends_in_silence_with_a_stream_that_is_half_read() -> None:
    command = [sys.executable, "-c", UNREAD]
    ended = subprocess.run(command, capture_output=True, check=True, timeout=100)
    assert ended.stderr == b""
