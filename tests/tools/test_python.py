"""The Python tool: its containers and whose they are, what models write, and Monty."""

import asyncio
import gc
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dragoman.agent.hosted import HostedTools
from dragoman.core.error import FaultError
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import FunctionCall, Message, Unknown
from dragoman.core.request import Request, UnknownTool
from dragoman.server.build import hosted as build_hosted
from dragoman.server.config import ConfigurationError, HostedTool
from dragoman.tools.python import BUSY, KIND, LONGEST, NO_OUTPUT, Python, code_of
from dragoman.tools.run import Context, Hosted, Runner, ToolError
from dragoman.tools.sandbox import MB, NODES, NOT_STARTED, Limits, LostError, _Process, _shown
from tests.agent.hosting import wants
from tests.agent.stage import Model
from tests.oracle import problems, sdk_problems
from tests.server.state.storing import storing
from tests.wire.responses.order_checker import check_order, parse

ADA, BOB = Caller("ada"), Caller("bob")
AUTO: dict[str, Any] = {"type": "code_interpreter", "container": {"type": "auto"}}


class Made:
    """Interpreters that give back what they are given, with their number."""

    about = "Runs Python."

    def __init__(self) -> None:
        self.made: list[Echo] = []
        self.closed = False

    def interpreter(self) -> "Echo":
        self.made.append(Echo(len(self.made)))
        return self.made[-1]

    async def close(self) -> None:
        assert all(each.closed for each in self.made)
        self.closed = True


class Echo:
    def __init__(self, number: int) -> None:
        self.number, self.closed, self.go = number, False, asyncio.Event()

    async def run(self, code: str) -> str:
        try:
            if code == "wait":
                await self.go.wait()
            if code == "die":
                raise LostError("It died.", "last words")
            if code == "never":
                raise ToolError(NOT_STARTED)
        except BaseException:
            self.closed = True
            raise
        return f"{self.number}: {code}" if code else ""

    async def close(self) -> None:
        self.closed = True


def python(**settings: Any) -> tuple[Python, Made]:
    tool: Hosted
    tool = made = Python(**settings)
    assert tool.kinds == {"code_interpreter"}
    made.sandbox = sandbox = Made()
    return made, sandbox


async def opened(tool: Python, caller: Caller = ADA, asked: Any = AUTO, items: Any = ()) -> Any:
    session = await tool.open(asked, items, caller)
    assert (session.namespace, session.items, session.cited) == (None, (), None)
    (session.tool,) = session.tools
    return session


async def ran(session: Any, code: str) -> str:
    """What the model is given."""
    call = FunctionCall("c1", "python", json.dumps({"code": code}))
    output = (await Runner(session.tools).run(call, Context(call))).output.output
    assert isinstance(output, str)
    return output


def item(id: str) -> Unknown:
    return Unknown("responses", KIND, {"container_id": id, "code": "1"})


# ---- containers --------------------------------------------------------------------------------


async def test_a_container_keeps_its_interpreter_from_answer_to_answer() -> None:
    tool, sandbox = python()
    first = await opened(tool)
    assert not sandbox.made  # before there is anything to run
    assert await ran(first, "a") == "0: a"
    await first.close()
    id = first.container.id
    assert id.startswith("cntr_")
    for asked, items in (
        ({"container": id}, ()),
        (AUTO, (item("cntr_other"), item(id))),
        ({"type": "code_interpreter"}, (item(id), Unknown("responses", "web_search_call", {}))),
    ):
        again = await opened(tool, asked=asked, items=items)
        assert again.container.id == id
        assert await ran(again, "b") == "0: b"
    other = await opened(tool)
    assert other.container.id != id
    assert await ran(other, "c") == "1: c"
    await tool.close()
    assert sandbox.closed


async def test_a_container_is_its_tenants() -> None:
    tool, _ = python()
    session = await opened(tool)
    await ran(session, "secret = 1")
    id = session.container.id
    for caller in (BOB, ANYONE, Caller("")):
        with pytest.raises(
            FaultError, match=r"no container 'cntr_\w+', or it has expired"
        ) as raised:
            await opened(tool, caller, {"container": id})
        assert raised.value.fault.param == "container"
        assert raised.value.fault.code == "not_found"
        theirs = await opened(tool, caller, items=(item(id),))
        assert theirs.container.id != id
    assert (await ran(theirs, "a")).endswith("1: a")
    await tool.close()


@pytest.mark.parametrize(
    ("container", "param"),
    [
        (1, "container"),
        ([], "container"),
        ({}, "container"),
        ({"type": "other"}, "container"),
        ("cntr_1", "container"),
        ("x" * 1000, "container"),
        ({"type": "auto", "file_ids": ["file_1"]}, "container.file_ids"),
        ({"type": "auto", "memory_limit": "4g"}, "container.memory_limit"),
        ({"type": "auto", "network_policy": {"type": "allowlist"}}, "container.network_policy"),
        ({"type": "auto", "network_policy": 1}, "container.network_policy"),
    ],
)
async def test_what_cannot_be_had_is_refused_with_its_field(container, param) -> None:
    tool, _ = python()
    with pytest.raises(FaultError) as raised:
        await opened(tool, asked={"type": "code_interpreter", "container": container})
    assert raised.value.fault.param == param
    assert raised.value.fault.blame == "client"
    assert len(raised.value.fault.message) < 300


async def test_settings_that_ask_for_nothing_are_taken() -> None:
    tool, _ = python()
    settings = {"file_ids": [], "memory_limit": None, "network_policy": {"type": "disabled"}}
    assert await opened(tool, asked={"container": {"type": "auto", **settings, "new": 1}})


async def test_one_more_than_there_may_be_closes_what_was_idle_for_longest() -> None:
    tool, sandbox = python(containers=3, per_tenant=2)
    a, b, c = [await opened(tool) for _ in range(3)]
    await ran(a, "1")
    await ran(b, "1")
    await ran(a, "2")
    assert await ran(c, "1") == "2: 1"  # its own third
    assert [each.closed for each in sandbox.made] == [False, True, False]
    with pytest.raises(FaultError):
        await opened(tool, asked={"container": b.container.id})
    d, e = await opened(tool, BOB), await opened(tool, Caller("cid"))
    assert await ran(d, "1") == "3: 1"
    assert await ran(e, "1") == "4: 1"  # the fourth of all
    assert [each.closed for each in sandbox.made] == [True, True, False, False, False]
    # An answer that still has one gets another, and the model is told.
    assert await ran(b, "3") == "(A new interpreter. What earlier calls defined is gone.)\n5: 3"
    assert await ran(b, "4") == "5: 4"
    await tool.close()


async def test_containers_that_lost_their_interpreter_count_too() -> None:
    tool, _ = python(containers=3, per_tenant=2)
    sessions = [await opened(tool) for _ in range(9)]
    for session in sessions:
        await ran(session, "die")
    assert [*tool._containers] == [("ada", each.container.id) for each in sessions[-2:]]
    assert await ran(sessions[-1], "1") == "9: 1"
    assert len(tool._containers) == 2
    await tool.close()


async def test_where_all_are_at_work_calls_wait() -> None:
    tool, sandbox = python(containers=2, per_tenant=2)
    first, second, late = [
        asyncio.ensure_future(ran(await opened(tool), code)) for code in ("wait", "wait", "3")
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not late.done()
    sandbox.made[1].go.set()
    assert (await second, await late) == ("1: wait", "2: 3")
    assert [each.closed for each in sandbox.made] == [False, True, False]
    sandbox.made[0].go.set()
    assert await first == "0: wait"
    await tool.close()


async def test_what_is_at_work_is_not_closed(monkeypatch) -> None:
    monkeypatch.setattr("dragoman.tools.python.PATIENCE", 0.01)
    tool, sandbox = python(containers=2, per_tenant=1)
    busy = await opened(tool)
    run = asyncio.ensure_future(ran(busy, "wait"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await ran(await opened(tool), "1") == BUSY
    other = await opened(tool, BOB)
    await ran(other, "1")
    third = await opened(tool, Caller("cid"))
    assert await ran(third, "1") == "2: 1"
    assert [each.closed for each in sandbox.made] == [False, True, False]
    sandbox.made[0].go.set()
    assert await run == "0: wait"
    await tool.close()


async def test_calls_of_one_container_wait_for_each_other() -> None:
    tool, sandbox = python()
    session = await opened(tool)
    first = asyncio.ensure_future(ran(session, "wait"))
    second = asyncio.ensure_future(ran(session, "2"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.done()
    sandbox.made[0].go.set()
    assert await asyncio.gather(first, second) == ["0: wait", "0: 2"]
    await tool.close()


async def test_a_container_that_is_idle_for_long_is_closed() -> None:
    tool, sandbox = python(idle=0.05)
    session, busy = await opened(tool), await opened(tool)
    await ran(session, "1")
    run = asyncio.ensure_future(ran(busy, "wait"))
    while not sandbox.made[0].closed:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not sandbox.made[1].closed
    sandbox.made[1].go.set()
    assert await run == "1: wait"
    with pytest.raises(FaultError, match="expired"):
        await opened(tool, asked={"container": session.container.id})
    again = await opened(tool, items=(item(session.container.id),))
    assert await ran(again, "1") == "(A new interpreter. What earlier calls defined is gone.)\n2: 1"
    await tool.close()


async def test_a_lost_interpreter_is_reported_and_replaced() -> None:
    tool, sandbox = python()
    session = await opened(tool)
    assert await ran(session, "1") == "0: 1"
    lost = "last words\nIt died. What earlier calls defined is gone."
    assert await ran(session, "die") == lost
    assert await ran(session, "2") == "1: 2"
    assert await ran(session, "never") == NOT_STARTED
    run = asyncio.ensure_future(ran(session, "wait"))
    for _ in range(10):
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.wait([run])
    assert sandbox.made[-1].closed
    assert (await ran(session, "3")).endswith("3: 3")
    await tool.close()


# ---- the call, and how it is shown ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"code": "print(1)"}', "print(1)"),
        ('{"code": "a\nb"}', "a\nb"),
        ('{"code": "1", "timeout": 5}', "1"),
        ("print(1)", "print(1)"),
        ('{"source": "1"}', '{"source": "1"}'),
        ('{"code": 1}', '{"code": 1}'),
        ('{"code"', '{"code"'),
        ("[1]", "[1]"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
        ('{"code": "\\ud800"}', "?"),
        ("\ud800", "?"),
    ],
)
def test_code_is_found_in_what_models_write(arguments, code) -> None:
    assert code_of(arguments) == code


async def test_a_call_is_shown_as_the_protocol_has_it() -> None:
    tool, _ = python()
    session = await opened(tool)
    display = session.tool.display
    assert (display.kind, display.delta, display.working) == (KIND, "code", "interpreting")
    assert not display.fails
    call = FunctionCall("c1", "python", '{"code": "1"}')
    begun = {"code": "1", "container_id": session.container.id, "outputs": None}
    assert display.opened(call) == begun
    assert session.tool.opened(FunctionCall("c1", "python", "no {json")) == {
        **begun,
        "code": "no {json",
    }
    shown = await session.tool.call(call.arguments, Context(call))
    assert (shown.output, shown.failed) == ("0: 1", False)
    assert shown.fields == {
        "container_id": session.container.id,
        "outputs": [{"type": "logs", "logs": "0: 1"}],
    }
    silent = await session.tool.call("", Context(call))
    assert (silent.output, silent.fields["outputs"]) == (NO_OUTPUT, [])
    await tool.close()


async def test_code_has_a_length() -> None:
    tool, sandbox = python()
    session = await opened(tool)
    for text in ("#" * (LONGEST + 1), json.dumps({"code": "#" * (2 * LONGEST)})):
        with pytest.raises(ToolError, match="longer than 200,000 characters"):
            await session.tool.call(text, Context(FunctionCall("c1", "python", text)))
    assert not sandbox.made
    await tool.close()


def test_the_tool_is_described() -> None:
    tool = Python()
    spec = asyncio.run(tool.open(AUTO, (), ADA)).tools[0].spec
    assert spec.name == "python"
    assert spec.parameters["required"] == ["code"]
    assert "no files, no network" in spec.description


# ---- what is missing -----------------------------------------------------------------------------


def test_without_a_sandbox_there_is_no_tool(monkeypatch) -> None:
    from dragoman.tools import sandbox

    with pytest.raises(ValueError, match="no sandbox 'docker'; it has monty and bubblewrap"):
        Python("docker")
    with pytest.raises(ValueError, match="must be more than 0"):
        Python(limits=Limits(seconds=0))
    with monkeypatch.context() as patched:
        patched.setattr(sandbox, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match="pip install"):
            Python()
    for program in ("/nowhere", shutil.which("true")):
        monkeypatch.setenv("MONTY_BIN", program)
        with pytest.raises(ImportError, match="Its program does not run"):
            Python()
    hangs = "import time; time.sleep(60)"
    writes_no_text = "import os; os.write(2, b'\\xff'); os._exit(1)"
    for program, seconds, reason in ((hangs, 0.1, "timed out"), (writes_no_text, 60.0, "\ufffd")):
        monkeypatch.setattr(sandbox, "_TRIAL", program)
        monkeypatch.setattr(sandbox, "START_SECONDS", seconds)
        with pytest.raises(ImportError, match=f"Its program does not run: .*{reason}"):
            Python()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("which", None, "bwrap: install the package bubblewrap"),
        ("which", shutil.which("false"), "user namespaces"),
        ("machine", "riscv64", "x86-64 or ARM64"),
    ],
)
def test_without_bubblewrap_the_other_sandbox_is_named(monkeypatch, name, value, words) -> None:
    owner = shutil if name == "which" else platform
    monkeypatch.setattr(owner, name, lambda *_: value)
    with pytest.raises(ValueError, match=words):
        Python("bubblewrap")


@pytest.mark.parametrize("program", [shutil.which("false"), "/nowhere"])
async def test_a_sandbox_that_does_not_start_runs_nothing(program) -> None:
    process = _Process(([program], []), Limits())
    with pytest.raises(ToolError, match="could not be started"):
        await process.run("1")
    await process.close()


FORK = """
import os, signal
from dragoman.tools.python import Python
Python()
if worker := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
signal.alarm(20)
import pydantic_monty
with pydantic_monty.Monty() as pool, pool.checkout() as session:
    session.feed_run("1")
"""


def test_monty_works_in_workers_that_are_forked_after_it_was_tried() -> None:
    assert subprocess.run((sys.executable, "-c", FORK), check=False).returncode == 0


async def test_monty_that_does_not_start_runs_nothing(monkeypatch) -> None:
    tool = Python()
    monkeypatch.setenv("MONTY_BIN", "/nowhere")
    tool.sandbox._pool = tool.sandbox.package.AsyncMonty()
    assert await ran(await opened(tool), "1") == NOT_STARTED
    await tool.close()


# ---- Monty ---------------------------------------------------------------------------------------


@pytest.fixture
async def monty():
    tool = Python(limits=Limits(seconds=60.0, memory=32 * MB, output=1_000))
    yield tool
    await tool.close()


LONG_TO_SHOW = (
    "e = ValueError('a' * 100_000)",
    "e = 10 ** 4200",
    "import datetime as d; e = d.timezone(d.timedelta(hours=1), 'a' * 100_000)",
    "import collections; e = collections.namedtuple('A' * 100_000, 'x')(1)",
    f"class {'A' * 50_000}: pass\ne = {'A' * 50_000}()",
)
"""Values that are one object each, and have no length."""


DEEP = "cannot be shown" if sys.version_info < (3, 12) else "[[[["
"""What is said of a list in a list …: later Pythons show them."""


async def test_what_code_gives(monty) -> None:
    session = await opened(monty)
    for code, output in (
        ("x = 40", NO_OUTPUT),
        ("print('a')\nx + 2", "a\n42"),
        ("None", NO_OUTPUT),
        ("'é'", "'é'"),
        ("import math; math.sqrt(2)", "1.4142135623730951"),
        ("import asyncio; await asyncio.sleep(0)", NO_OUTPUT),
        ("import time; time.sleep(1000)", NO_OUTPUT),
        ("class A: pass\n[A()]", "[MontyClassProxy(name='A', attributes={})]"),
        ("{'a': [(1, {2})]}", "{'a': [(1, {2})]}"),
        ("print('\\ud800')", "\ufffd"),
        ("10 ** 5000", "cannot be shown"),
        ("d = []\nfor i in range(10**5): d = [d]\nd", DEEP),
        (f"'x' * {NODES}", "too large to be shown. Print a part of it."),
        ("b = [1]\nfor i in range(99): b = [b, b]\nb", "too large to be shown"),
        *((f"{made}\n[e] * 9_000", "too large to be shown") for made in LONG_TO_SHOW),
        (f"[0.125] * {NODES // 3}", "0.125, 0.125"),
        ("class A: pass\n{A()}", "cannot be shown: unhashable type"),
        ("print('x' * 2000)", "x" * 1000 + "\n(Cut: the output is longer than 1,000 characters.)"),
        ("print('x' * 10**6)", "x" * 1000 + "\n(Cut: the output is longer than 1,000 characters.)"),
        ("x = 'a' * 10**9", "MemoryError: memory limit exceeded"),
        ("raise SystemExit(3)", "RuntimeError"),
        ("raise TimeoutError('late')", "TimeoutError: late"),
        ("x", "40"),
    ):
        assert output in await ran(session, code), code


def test_a_long_error_is_not_shown_before_it_is_measured() -> None:
    class Long(Exception):
        """The repr of one of 60 MB takes half a second."""

        def __str__(self) -> str:
            return "\1" * 1_000_000

        __repr__ = pytest.fail

    with_zone = datetime(2020, 1, 1, tzinfo=timezone(timedelta(0), "\1" * 1_000_000))
    for value in (Long(), [Long()], with_zone):
        assert "too large to be shown" in _shown(value)


async def test_errors_of_code_are_not_kept(monty) -> None:
    session = await opened(monty)
    gc.collect()
    gc.disable()
    try:
        for _ in range(30):
            assert "ValueError: aaa" in await ran(session, "raise ValueError('a' * 1_000)")
        names = [type(each).__name__ for each in gc.get_objects()]
    finally:
        gc.enable()
    assert names.count("MontyRuntimeError") < 10  # each thread of Monty may have its last one


async def test_a_traceback_is_that_of_the_code(monty) -> None:
    lines = (await ran(await opened(monty), "def f(n):\n    return 1 / n\nf(0)")).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[2].strip() == "f(0)"
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert (await ran(await opened(monty), "def (")).endswith("Expected an identifier")


async def test_a_value_that_is_too_large_to_transfer_ends_the_interpreter(monty) -> None:
    session = await opened(monty)
    assert "memory limit" in await ran(session, "list(range(10**6))")
    assert await ran(session, "1") == "1"


async def test_time_is_limited_and_the_loop_goes_on() -> None:
    tool = Python(limits=Limits(seconds=0.1))
    session, turns = await opened(tool), 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count())
    assert await ran(session, "x = 1\nprint('before')\nwhile True: pass") == (
        "before\nIt did not end within 0.1 seconds, and was stopped. "
        "What earlier calls defined is gone."
    )
    assert turns > 20
    counting.cancel()
    assert "NameError" in await ran(session, "x")
    # Such a call waits for the server, which is no time of its own.
    code = "while True:\n  try: open('/etc/passwd')\n  except Exception: pass"
    assert "did not end within 0.1 seconds" in await asyncio.wait_for(ran(session, code), 10)
    await tool.close()


OUTLIVED = """
import asyncio, sys
from dragoman.tools import sandbox
async def main(life, code):
    sandbox.LIFE = int(life)
    interpreter = sandbox.Monty(sandbox.Limits(seconds=0.5), 1).interpreter()
    await interpreter.run("1")
    print(interpreter._session.worker_pid, flush=True)
    interpreter._monty.limits = sandbox.Limits()
    await interpreter.run(code)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")
@pytest.mark.parametrize(
    ("life", "code"),
    [("60", "while True: pass"), ("1", "import math\nmath.gcd(3**4_000_000, 5**3_000_000)")],
)
def test_code_that_outlives_its_server_ends_within_its_limits(life, code) -> None:
    program = (sys.executable, "-c", OUTLIVED, life, code)
    with subprocess.Popen(program, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        worker = os.pidfd_open(int(server.stdout.readline()))
        time.sleep(0.3)
        server.kill()
    try:
        assert not select.select([worker], [], [], 0.2)[0]  # it works
        assert select.select([worker], [], [], 60)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker, signal.SIGKILL)
        os.close(worker)


async def test_a_run_that_is_cancelled_ends_at_once(monty) -> None:
    session = await opened(monty)
    await ran(session, "x = 1")
    process = os.pidfd_open(session.container.interpreter._session.worker_pid)
    run = asyncio.ensure_future(ran(session, "while True: pass"))
    await asyncio.sleep(0.05)
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(process, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(process)
    os.close(process)
    assert "NameError" in await ran(session, "x")


# ---- in a server ---------------------------------------------------------------------------------


async def test_a_conversation_keeps_its_container() -> None:
    model = Model(
        *(wants("python", code="x = 40"), wants("python", code="x + 2"), "42"),
        *(wants("python", code="x"), "40"),
    )
    fields = {"tools": [AUTO], "include": ["code_interpreter_call.outputs"]}
    async with storing(HostedTools(model, [Python()])) as server:
        told, _ = parse((await server.ask(stream=True, **fields)).body)
        check_order(told)
        for event in told:
            assert not problems(event), event
            assert not sdk_problems(event), event
        first = told[-1]["response"]
        second = await server.ask(previous_response_id=first["id"], **fields)
        other = await server.ask(tools=[{"type": "code_interpreter", "container": "cntr_1"}])
    calls = [item for item in first["output"] + second.json["output"] if item["type"] == KIND]
    assert [call["code"] for call in calls] == ["x = 40", "x + 2", "x"]
    assert [call["status"] for call in calls] == ["completed"] * 3
    logs = [[each["logs"] for each in call["outputs"]] for call in calls]
    assert logs == [[], ["42"], ["40"]]
    assert len({call["container_id"] for call in calls}) == 1
    assert model.asked[1].items[-1].output == NO_OUTPUT
    assert (other.status, other.json["error"]["param"]) == (404, "tools[0].container")


async def test_an_answer_that_is_cancelled_ends_its_run() -> None:
    tool, sandbox = python()
    engine = HostedTools(Model(wants("python", code="wait")), [tool])
    tools = (UnknownTool("responses", AUTO["type"], {}),)
    request = Request(model="m", items=(Message("user", "Hi"),), tools=tools)

    async def answer() -> None:
        async for _ in engine.stream(request, ADA):
            pass

    answering = asyncio.ensure_future(answer())
    while not (sandbox.made and tool._containers):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    answering.cancel()
    await asyncio.wait([answering])
    assert sandbox.made[0].closed
    await engine.close()
    assert sandbox.closed


def test_limits_are_configured_in_the_file() -> None:
    (made,) = build_hosted((HostedTool(use="python", seconds=5, memory=64 * MB),), {})
    assert isinstance(made, Python)
    assert made._limits == Limits(seconds=5, memory=64 * MB)
    with pytest.raises(ConfigurationError, match="memory is not for this tool"):
        build_hosted((HostedTool(use="files", memory=64 * MB),), {})
