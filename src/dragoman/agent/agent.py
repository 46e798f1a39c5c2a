"""An agent: a model with tools, instructions and a conversation, which answers in a type."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import ContextVar
from numbers import Number
from pathlib import Path
from types import NoneType
from typing import Any, Self

import msgspec
from msgspec.structs import asdict, replace

from dragoman.client.answer import Answer, AnswerError, Stream
from dragoman.client.client import LOOP, Input, build_request, engine_of, write_file
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed, ItemDone
from dragoman.core.fold import Fold
from dragoman.core.interfaces import ANYONE, Caller, Engine, first_model
from dragoman.core.item import (
    Call,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Refusal,
)
from dragoman.core.request import Request
from dragoman.engines.base import enforce_contract
from dragoman.engines.compaction import ANSWER, estimate, expanded, fit
from dragoman.tools.function import OutputType, PythonTool, as_tool
from dragoman.tools.run import Context, Result, Runner, Tool, ToolError, not_run

from .budget import Budget, Meter, Price, checked
from .loop import CONTINUE, INTERRUPTED, Approve, Decision, Loop, unanswered

_CALLS, _OUTPUTS = (FunctionCall, CustomToolCall), (FunctionCallOutput, CustomToolCallOutput)
MOVED_ON = "It was not run: the user said something else first."
CUT_OFF = "It was cut off, and not run."
NO_ANSWER = "It was not answered."

_inside: ContextVar[frozenset[int]] = ContextVar("inside", default=frozenset())
"""The agents of whose tools one is running."""


class Run(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """The result of a run: an answer with all its items, including calls and their results.

    `value` is the answer in the agent's type; None where there is no answer, or it does not fit.
    `pending` are calls that wait for consent, `stopped` names the budget that ended the run, and
    `cost` is by the agent's prices.
    """

    value: Any = None
    pending: tuple[Call, ...] = ()
    stopped: str = ""
    cost: float = 0.0

    @property
    def text(self) -> str:
        """The text of the answer: all messages after the last result of a tool."""
        place = max((n for n, i in enumerate(self.output, 1) if isinstance(i, _OUTPUTS)), default=0)
        return "".join(item.text for item in self.output[place:] if isinstance(item, Message))


class Saved(msgspec.Struct, frozen=True):
    """An agent's conversation, and what it has spent, as they are written to a file."""

    version: int
    name: str
    model: str
    history: tuple[Item, ...]
    usage: dict[str, Any] = {}
    cost: float = 0.0
    calls: int = 0
    rounds: int = 0


class Agent:
    """A model with tools, instructions and a conversation. One run at a time; those of other tasks
    wait.

    `target` is what `dragoman.connect` takes. Tools are functions, or tools. `output` is the type
    of the answer: `str`, or any type that msgspec or pydantic knows; where an answer does not fit,
    the model is asked again, `corrections` times. `pinned` items stand before the conversation and
    are never left out; its oldest turns are, where the model's context (of `context` tokens, by
    default what the engine knows) has no room for all. `settings` are those of a request, such as
    `temperature`. The rest is as in `Loop`. A `meter` may be shared with other agents. Raises
    TypeError for an argument of the wrong type.

    Subclasses may override `prompt`, `call` and `add`.

    >>> def get_weather(city: str) -> str:
    ...     "The weather in a city."
    ...     return f"Sunny in {city}."
    >>> agent = Agent("script", tools=[get_weather])
    >>> agent.run_sync("Count to three.").text
    '1, 2, 3.'
    """

    def __init__(
        self,
        target: str | Engine,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        instructions: str | None = None,
        output: Any = str,
        model: str = "",
        name: str = "agent",
        pinned: Sequence[Item] = (),
        history: Sequence[Item] = (),
        context: int | None = None,
        budget: Budget | None = None,
        prices: Mapping[str, Price] | None = None,
        meter: Meter | None = None,
        max_rounds: int | None = None,
        retries: int = 1,
        corrections: int = 1,
        continuations: int = 0,
        approve: Approve | None = None,
        state: Any = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.engine = name, engine_of(target)
        self.tools = Runner(map(as_tool, checked("tools", tools, Iterable)))
        given = {"model": model or "", "instructions": instructions}
        asked = build_request(tuple(pinned), given, stream=True)
        self.model, self.instructions, self.pinned = asked.model, asked.instructions, asked.items
        self.history = build_request(tuple(history), {}, stream=True).items
        self.meter = meter or Meter(budget, prices or {})
        self.output = None if output is str else OutputType(output)
        self.approve, self.state, self.settings = approve, state, dict(settings or {})
        if approve is not None:
            with suppress(ValueError):  # some of C have no signature
                try:
                    inspect.signature(approve).bind(None)
                except TypeError as error:
                    raise TypeError(f"approve: is called with one call: {error}") from None
        self.context = checked("context", context, Number, NoneType)
        self.max_rounds = checked("max_rounds", max_rounds, Number, NoneType)
        self.retries = checked("retries", retries, Number)
        self.corrections = checked("corrections", corrections, Number)
        self.continuations = checked("continuations", continuations, Number)
        self._turn = _Turn()

    # ---- running -------------------------------------------------------------------------

    async def run(self, said: Input | None = None, **options: Any) -> Run:
        """Ask, run tools until the model has answered, and return all items, which are then part
        of the conversation. `options` are those of `stream`. Raises AnswerError when the answer
        fails."""
        async with self.stream(said, **options) as stream:
            run = await stream.finish()
        if run.error is not None:
            raise AnswerError(run.error, run)
        return run

    def run_sync(self, said: Input | None = None, **options: Any) -> Run:
        """The same for code without `async`."""
        return LOOP.run(self.run, said, **options)

    def stream(
        self,
        said: Input | None = None,
        *,
        allow: Decision | Mapping[str, Decision] | None = None,
        caller: Caller = ANYONE,
        **settings: Any,
    ) -> RunStream:
        """Like `run`, streamed: the events of all rounds, as those of one answer.

        Without `said` (the input), the model continues the conversation as it is, and pending calls
        are run: so a run that waits for consent is resumed. `allow` are the decisions: one for
        all pending calls, or one for each by its `call_id`; a text is a refusal, which the model
        gets as the result. The run raises ValueError for a decision on a call that is not pending.
        `caller` identifies the client. `settings` are those of a request, for this run.
        """
        return RunStream(self, said, allow, caller, settings)

    # ---- what subclasses may override ----------------------------------------------------

    def prompt(self, request: Request, context: int | None) -> tuple[Item, ...]:
        """What the model is shown of the conversation: the pinned items and the latest turns that
        have room in `context` tokens, beside the rest of the request. Linear in their number."""
        if context is None:
            return (*self.pinned, *request.items)
        room = context - (request.max_output_tokens or context // ANSWER)
        room -= estimate(replace(request, items=self.pinned))
        return (*self.pinned, *fit(request.items, room))

    async def call(self, call: Call, context: Context) -> Result:
        """Run one call of a tool."""
        return await self.tools.run(call, context)

    def add(self, items: Sequence[Item]) -> None:
        """Append to the conversation."""
        self.history = (*self.history, *items)

    # ---- the conversation ----------------------------------------------------------------

    @property
    def pending(self) -> tuple[Call, ...]:
        """The calls that wait for consent, or were not begun when a run was cancelled."""
        return tuple(call for call in unanswered(self.history) if call.status != "incomplete")

    def branch(self) -> Self:
        """A copy that continues the same conversation independently. It shares the budget."""
        other = copy.copy(self)
        other._turn = _Turn()
        return other

    def as_tool(self, description: str, *, name: str | None = None, **settings: Any) -> PythonTool:
        """This agent as a tool of another: each call is a run on a branch of it. A run without an
        answer is an error for the other one."""

        async def ask(task: str, context: Context) -> Any:
            run = await self.branch().run(task, caller=context.caller)
            if run.pending:
                raise ToolError("A person must consent to a call of this agent first.")
            if run.status != "completed" or run.value is None:
                raise ToolError(run.stopped or "This agent came to no answer.")
            return run.value

        settings = {"seconds": 3600.0, **settings}
        return PythonTool(ask, name=name or self.name, description=description, **settings)

    def dump(self) -> bytes:
        """Serialise the conversation and what was spent, as JSON."""
        meter = self.meter
        usage = asdict(meter.usage)
        saved = Saved(
            1, self.name, self.model, self.history, usage, meter.cost, meter.calls, meter.rounds
        )
        try:
            return msgspec.json.encode(saved)
        except UnicodeEncodeError:  # the input has half of a surrogate pair
            text = json.dumps(msgspec.to_builtins(saved), ensure_ascii=False)
            return text.encode(errors="replace")

    def load(self, data: bytes | str | Path) -> None:
        """Restore what `dump` gave, or `save` wrote to a file. The meter, which others may share,
        is set to what was spent then. Raises ValueError for anything else, OSError for no file."""
        if not isinstance(data, bytes):
            data = Path(data).read_bytes()
        saved = msgspec.json.decode(data, type=Saved)
        if saved.version != 1:
            raise ValueError(f"version {saved.version} of a saved agent is not supported")
        self.history, meter = saved.history, self.meter
        meter.usage = msgspec.convert(saved.usage, type(meter.usage))
        meter.cost, meter.calls, meter.rounds = saved.cost, saved.calls, saved.rounds

    def save(self, path: str | Path) -> None:
        """Write what `dump` gives to a file, in one step."""
        write_file(path, self.dump())

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class _Turn:
    """Lets one run of an agent at a time, on whatever event loop."""

    def __init__(self) -> None:
        self._lock: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None  # the one that reads the run

    async def __aenter__(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if self._lock is not None and self._lock.locked():
            if self._loop is not loop and self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this agent is running on another event loop")
            if self._loop is loop and self._task is task:
                raise RuntimeError("a stream of this agent is still open here; close it first")
        if self._lock is None or self._loop is not loop:
            self._lock, self._loop = asyncio.Lock(), loop
        await self._lock.acquire()
        self._task = task

    async def __aexit__(self, *error: object) -> None:
        self._task = None
        if self._lock is not None:
            self._lock.release()


class RunStream(Stream):
    """The events of a run; iterate it, or iterate its `text`, with `async with`. See
    `dragoman.client.Stream`."""

    def __init__(
        self,
        agent: Agent,
        input: Input | None,
        allow: Decision | Mapping[str, Decision] | None,
        caller: Caller,
        settings: Mapping[str, Any],
    ) -> None:
        self._agent, fold = agent, Fold()
        given: Input = () if input is None else input
        asked = build_request(given, {**agent.settings, **settings}, stream=True)
        # The run holds no reference to this stream, so that one that is dropped ends at once.
        super().__init__(self._run(agent, asked, allow, caller, fold), fold)

    async def finish(self) -> Run:
        """Read to the end and return the whole run, also a failed one."""
        async for _ in self:
            pass
        return self.answer

    @property
    def answer(self) -> Run:
        """All that was received so far."""
        answer, typed = super().answer, self._agent.output
        about = (answer.extra or {}).get("agent") or {}
        run = Run(**asdict(answer), cost=about.get("cost", 0.0), stopped=about.get("stopped", ""))
        asked = (*self._agent.history, *run.output)  # some may wait since an earlier run
        pending = tuple(unanswered(asked)) if run.status == "completed" else ()
        value: Any = run.text
        if typed is not None:
            try:
                value = _value(typed, run.output)
            except ToolError:
                value = None
        return replace(run, pending=pending, value=None if pending else value)

    @staticmethod
    async def _run(
        agent: Agent,
        asked: Request,
        allow: Decision | Mapping[str, Decision] | None,
        caller: Caller,
        fold: Fold,
    ) -> AsyncGenerator[Event, None]:
        input = asked.items
        if id(agent) in _inside.get():
            raise RuntimeError("a tool of this agent cannot run it; a branch of it can be run")
        async with agent._turn:
            answered = {item.call_id for item in input if isinstance(item, _OUTPUTS)}
            left = [call for call in unanswered(agent.history) if call.call_id not in answered]
            pending = {call.call_id for call in left if agent.tools.find(call)}
            if input and pending and allow is not None:
                raise TypeError("`allow` resumes a run: it cannot be combined with new input")
            if isinstance(allow, Mapping) and (other := allow.keys() - pending):
                waiting = ", ".join(sorted(pending)) or "none"
                problem = f"`allow` has {', '.join(sorted(other))}; pending calls: {waiting}"
                raise ValueError(problem)
            if not input and not agent.history:
                raise TypeError("the conversation is empty, and there is no input")
            for call in left:  # calls that will not be run get a result now
                if call.status == "incomplete":
                    agent.add([not_run(call, CUT_OFF).output])
                elif input or call.call_id not in pending:
                    words = MOVED_ON if call.call_id in pending else NO_ANSWER
                    agent.add([not_run(call, words).output])
            typed, meter = agent.output, agent.meter
            try:
                model = asked.model or agent.model or await _first_model(agent.engine)
                known = await agent.engine.capabilities(model)
            except FaultError as error:
                yield Failed(error.fault)
                return
            if meter.budget.cost is not None and meter.price(model) is None:
                raise ValueError(f"the budget limits the cost, and {model!r} has no price")
            request = replace(
                asked,
                model=model,
                items=(*agent.history, *input),
                instructions=asked.instructions or agent.instructions,
                # Some servers suppress calls where a schema is asked for: that is left to the
                # correction, where there is one.
                format=asked.format
                if typed is None or (agent.tools.offered() and agent.corrections)
                else typed.format,
            )
            context = known.context if agent.context is None else agent.context
            request = replace(request, items=agent.prompt(expanded(request), context))
            loop = _AgentLoop(agent, pending, allow)
            try:
                # Not by `stream`, which is ahead of its reader: a reader that leaves would never
                # see calls that are being run.
                made = enforce_contract(loop.events(request, caller), model)
                async with aclosing(made) as events:
                    async for event in events:
                        if isinstance(event, ItemDone):
                            loop.done.append(event.item)
                        yield event
            finally:  # a cancelled or failed run leaves its completed items in the history
                if fold.response.status in ("cancelled", "in_progress"):  # and the text so far
                    for item in fold.response.output[len(loop.done) :]:
                        if isinstance(item, Message) and item.text:
                            loop.done.append(replace(item, status="incomplete"))
                loop.settle()
                summaries = [item for item in loop.done if isinstance(item, Compaction)]
                rest = [item for item in loop.done if not isinstance(item, Compaction)]
                if loop.done:  # a summary replaces what was before the last turn
                    agent.add((*summaries, *input, *rest))


class _AgentLoop(Loop):
    """A loop with the hooks, the decisions and the type of an agent. `done` are the items that will
    be added to the conversation."""

    def __init__(
        self, agent: Agent, pending: set[str], allow: Decision | Mapping[str, Decision] | None
    ) -> None:
        super().__init__(
            agent.engine,
            agent.tools,
            max_rounds=agent.max_rounds,
            retries=agent.retries,
            continuations=agent.continuations,
            meter=agent.meter,
            approve=agent.approve,
            state=agent.state,
            pinned=len(agent.pinned),
            taken=[item.call_id for item in agent.history if isinstance(item, _CALLS)],
        )
        self.done: list[Item] = []
        self._agent, self._pending, self._allow = agent, pending, allow
        self._left = agent.corrections if agent.output is not None else 0
        self._inserted: list[tuple[int, Item]] = []
        self._begun: dict[str, Call] = {}
        self._ended: dict[str, Result] = {}

    async def call(self, call: Call, context: Context) -> Result:
        _inside.set(_inside.get() | {id(self._agent)})
        return await self._agent.call(call, context)

    async def decide(self, call: Call) -> Decision | None:
        if call.call_id in self._pending and self._allow is not None:
            allow = self._allow
            decision = allow.get(call.call_id) if isinstance(allow, Mapping) else allow
            if decision is not None:
                return decision
        return await super().decide(call)

    def check(self, request: Request, output: Sequence[Item]) -> Request | None:
        """Ask again for an answer that does not fit the agent's type."""
        typed = self._agent.output
        parts = [part for item in output if isinstance(item, Message) for part in item.parts]
        if typed is None or not self._left or any(isinstance(part, Refusal) for part in parts):
            return None
        try:
            _value(typed, request.items)
        except ToolError as error:
            self._left -= 1
            items = (*request.items, Message("user", f"{error} Answer again, in JSON alone."))
            return replace(request, items=items, format=typed.format, tool_choice="none")
        return None

    def insert(self, item: Item, place: int) -> None:
        self._inserted.append((place, item))

    def begin(self, call: Call) -> None:
        self._begun[call.call_id] = call

    def end(self, call: Call, result: Result) -> None:
        self._ended[call.call_id] = result

    def settle(self) -> None:
        """Add to `done` the results that are not in the answer yet, and mark calls that were begun
        as interrupted: none of them is run twice."""
        for place, item in reversed(self._inserted):
            if place <= len(self.done):
                self.done.insert(place, item)
        given = {item.call_id for item in self.done if isinstance(item, _OUTPUTS)}
        for id, result in self._ended.items():
            if id not in given:
                self.done.append(result.output)
        for id, call in self._begun.items():
            tool = self.tools.find(call)
            if id not in self._ended and id not in given and not (tool and tool.repeatable):
                self.done.append(not_run(call, INTERRUPTED).output)


def _value(typed: OutputType, items: Sequence[Item]) -> Any:
    """The value of the last message, or of the last ones where an answer was cut off and continued.
    Raises ToolError."""
    text, problem = "", ToolError("There is no answer.")
    for item in reversed(items):
        if isinstance(item, Message) and item.role == "assistant":
            try:
                return typed.value(item.text + text)
            except ToolError as error:
                problem = problem if text else error
            text = item.text + text
        elif isinstance(item, Message) and item.text == CONTINUE:
            continue
        elif text and isinstance(item, (Message, *_OUTPUTS)):
            break
    raise problem


async def _first_model(engine: Engine) -> str:
    default: Any = getattr(engine, "default_model", None)  # a client's, also behind middleware
    if callable(default):
        return str(await default())
    model = first_model([each.id for each in await engine.models()])
    if model is None:
        problem = "No model was named, and the engine lists none."
        raise FaultError(Fault("model_not_found", problem, "client", "model"))
    return model
