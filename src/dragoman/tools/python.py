"""The hosted tool `code_interpreter`: runs Python that a model wrote, in containers.

A container is an interpreter in a sandbox that keeps what code defines. It belongs to one tenant,
runs one call at a time, and ends when it is idle for long. Without a sandbox nothing is run.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence

from msgspec.structs import astuple

from dragoman.core.error import Fault, FaultError, bad_request, quoted, unsupported
from dragoman.core.interfaces import Caller
from dragoman.core.item import JSON, Call, Unknown
from dragoman.core.request import FunctionTool

from .run import Context, Display, Session, Shown, Tool, ToolError
from .sandbox import Bubblewrap, Interpreter, Limits, LostError, Monty, Sandbox

KIND = "code_interpreter_call"
NAME = "python"
LONGEST = 200_000
"""Characters of code."""
CONTAINERS, PER_TENANT = 16, 8
"""Interpreters of a worker of the server, and those of one tenant among them."""
IDLE = 1200.0
"""Seconds after its last call that an interpreter is closed."""
PATIENCE = 60.0
"""Seconds that a call waits for room, where all interpreters are at work."""
NO_OUTPUT = "(no output)"
GONE = "What earlier calls defined is gone."
BUSY = "All containers of this server are at work. Try again later, or answer without running code."


# ---- the tool --------------------------------------------------------------------------------


class Container:
    """An interpreter with an id that a client may name. `forgot`: the model has seen
    results of an earlier interpreter."""

    def __init__(self, tenant: str, forgot: bool) -> None:
        self.id, self.tenant = f"cntr_{secrets.token_hex(16)}", tenant
        self.interpreter: Interpreter | None = None
        self.lock = asyncio.Lock()
        self.timer: asyncio.TimerHandle | None = None
        self.forgot = forgot


class Python:
    """The hosted tool `code_interpreter`, with containers in a sandbox: `monty` or `bubblewrap`.

    There are at most `containers` interpreters, and `per_tenant` of one tenant; for one more, that
    which was idle for longest is closed; where none is idle, it waits for one to be. After `idle`
    seconds each is closed. Raises ValueError or ImportError, in a sentence, where the sandbox
    cannot be had here.
    """

    kinds = frozenset({"code_interpreter"})

    def __init__(
        self,
        sandbox: str = "monty",
        *,
        limits: Limits | None = None,
        containers: int = CONTAINERS,
        per_tenant: int = PER_TENANT,
        idle: float = IDLE,
    ) -> None:
        self._limits = limits or Limits()
        if min(containers, per_tenant, idle, *astuple(self._limits)) <= 0:
            raise ValueError("The limits of the Python tool must be more than 0.")
        self.sandbox: Sandbox
        match sandbox:
            case "monty":
                self.sandbox = Monty(self._limits, containers)
            case "bubblewrap":
                self.sandbox = Bubblewrap(self._limits)
            case _:
                raise ValueError(
                    f"The Python tool has no sandbox {sandbox!r}; it has monty and bubblewrap."
                )
        self._most, self._per_tenant, self._idle = containers, per_tenant, idle
        # In the order of their last use.
        self._containers: dict[tuple[str, str], Container] = {}
        self._ended = asyncio.Event()  # of the run that ends next
        self._closing: set[asyncio.Task[None]] = set()

    async def open(
        self, asked: Mapping[str, JSON], items: Sequence[Unknown], caller: Caller
    ) -> Session:
        """The container of the request, that of the conversation, or a new one. Its
        interpreter starts with the first call."""
        ids = [each.value.get("container_id") for each in items if each.kind == KIND]
        match asked.get("container"):
            case str(id):
                container = self._containers.get((caller.tenant, id))
                if container is None:
                    problem = f"There is no container {quoted(id)}, or it has expired. Ask for a "
                    problem += 'new one: {"type": "auto"}.'
                    raise FaultError(Fault("not_found", problem, "client", "container"))
            case None | {"type": "auto"} as settings:
                _check(settings or {})
                own = (id for id in reversed(ids) if isinstance(id, str))
                known = (self._containers.get((caller.tenant, id)) for id in own)
                container = next((each for each in known if each is not None), None)
                if container is None:
                    container = Container(caller.tenant, forgot=bool(ids))
            case _:
                problem = 'must be the id of a container, or {"type": "auto"}'
                raise FaultError(bad_request(problem, "container"))
        return PythonSession(self, container)

    async def run(self, container: Container, code: str) -> str:
        """Run code in a container. Raises ToolError where none can be started."""
        try:
            async with container.lock:
                return await self._run(container, code)
        finally:
            self._ended.set()
            self._ended = asyncio.Event()

    async def _run(self, container: Container, code: str) -> str:
        if container.interpreter is None:
            try:
                async with asyncio.timeout(PATIENCE):
                    while not self._make_room(container):
                        await self._ended.wait()
            except TimeoutError:
                raise ToolError(BUSY) from None
            container.interpreter = self.sandbox.interpreter()
        self._use(container)
        try:
            output = await container.interpreter.run(code)
        except LostError as lost:
            container.interpreter = None
            output = "\n".join(filter(None, (lost.output, f"{lost} {GONE}")))
        except BaseException:  # cancelled, or it did not start
            container.forgot = True
            container.interpreter = None
            raise
        else:
            if container.forgot:
                output = "\n".join(filter(None, (f"(A new interpreter. {GONE})", output)))
        container.forgot = False
        self._use(container)
        return output or NO_OUTPUT

    async def close(self) -> None:
        """End all containers."""
        for container in list(self._containers.values()):
            self._drop(container)
        while self._closing:
            await asyncio.wait(self._closing)
        await self.sandbox.close()

    def _use(self, container: Container) -> None:
        """Mark a container as the latest used."""
        key = container.tenant, container.id
        self._containers.pop(key, None)
        self._containers[key] = container
        if container.timer is not None:
            container.timer.cancel()
        container.timer = asyncio.get_running_loop().call_later(self._idle, self._expire, container)

    def _expire(self, container: Container) -> None:
        if container.lock.locked():
            self._use(container)
        else:
            self._drop(container)

    def _make_room(self, container: Container) -> bool:
        """Close idle interpreters, the tenant's own first; true if there is room for this one."""
        others = [each for each in self._containers.values() if each is not container]
        own = [each for each in others if each.tenant == container.tenant]
        for found, most in ((own, self._per_tenant), (others, self._most)):
            if len(found) >= most:
                idle = next((each for each in found if not each.lock.locked()), None)
                if idle is not None:
                    self._drop(idle)
                return idle is not None
        return True

    def _drop(self, container: Container) -> None:
        """Drop a container, and end its interpreter. An answer that still has it gets a new one."""
        self._containers.pop((container.tenant, container.id), None)
        if container.timer is not None:
            container.timer.cancel()
        if container.interpreter is not None:
            task = asyncio.ensure_future(container.interpreter.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            container.interpreter, container.forgot = None, True


def _check(settings: Mapping[str, JSON]) -> None:
    """Raise FaultError for unsupported settings of a container."""
    if settings.get("file_ids"):
        problem = "this server has no files to put into a container; send their text instead"
        raise FaultError(unsupported(problem, "container.file_ids"))
    if settings.get("memory_limit") is not None:
        problem = "the memory of a container is this server's choice; leave it out"
        raise FaultError(unsupported(problem, "container.memory_limit"))
    match settings.get("network_policy"):
        case None | {"type": "disabled"}:
            pass
        case _:
            problem = "containers have no network here; leave it out, or ask for disabled"
            raise FaultError(unsupported(problem, "container.network_policy"))


def code_of(arguments: str) -> str:
    """The code in the arguments of a call. Models that were trained with a Python tool write the
    code itself in their place, others put line breaks into the string.

    >>> code_of('{"code": "print(1)"}'), code_of("print(1)"), code_of('{"a": 1}')
    ('print(1)', 'print(1)', '{"a": 1}')
    """
    if len(arguments) <= 2 * LONGEST:
        try:
            match json.loads(arguments, strict=False):
                case {"code": str(code)}:
                    arguments = code
        except (ValueError, RecursionError):
            pass
    return arguments.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded


class PythonSession(Session):
    """The tool for one answer. The container stays, for those that follow."""

    def __init__(self, python: Python, container: Container) -> None:
        self.container = container
        self.tools = (PythonCode(python, container),)


class PythonCode(Tool):
    """The function `python` of one answer, whose one argument is `code`."""

    # Each run has its own limit; calls of one container wait for each other.
    seconds = 24 * 3600.0

    def __init__(self, python: Python, container: Container) -> None:
        self._python, self._container = python, container
        parameters: dict[str, JSON] = {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python source code"}},
            "required": ["code"],
            "additionalProperties": False,
        }
        self.spec = FunctionTool(NAME, python.sandbox.about, parameters)
        self.display = Display(KIND, self.opened, "code", "interpreting")

    def opened(self, call: Call) -> dict[str, JSON]:
        """The item of a call when it begins."""
        return {"code": code_of(call.text), "container_id": self._container.id, "outputs": None}

    async def call(self, text: str, context: Context) -> Shown:
        """Run the code that the model wrote."""
        code = code_of(text)
        if len(code) > LONGEST:
            raise ToolError(f"The code is longer than {LONGEST:,} characters. Write less at once.")
        output = await self._python.run(self._container, code)
        outputs: list[JSON] = []
        if output != NO_OUTPUT:
            outputs.append({"type": "logs", "logs": output})
        return Shown(output, {"container_id": self._container.id, "outputs": outputs})
