"""An agent: a model with tools, instructions and a conversation, which answers in a type."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import asdict, replace

from dragoman.client.answer import Answer, AnswerError, Stream
from dragoman.client.client import LOOP, Client, Input, build_request, engine_of
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed, ItemDone
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import (
    Call,
    CustomToolCallOutput,
    FunctionCallOutput,
    Item,
    Message,
)
from dragoman.core.request import Request
from dragoman.engines.compaction import ANSWER, Compacting, estimate, fit
from dragoman.tools.function import OutputType, PythonTool, as_tool
from dragoman.tools.run import Context, Result, Runner, Tool, ToolError, failed

from .loop import Approve, Budget, Decision, Loop, Meter, Price, unanswered

_OUTPUTS = (FunctionCallOutput, CustomToolCallOutput)
MOVED_ON = "The user did not say whether this call is allowed, and said something else."


class Run(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """What became of a run: an answer with all its items, calls and results among them.

    `value` is the answer in the agent's type; None where it did not get that far, or does not fit.
    `pending` are calls that wait for consent, `stopped` says which budget ended the run, and `cost`
    is by the agent's prices.
    """

    value: Any = None
    pending: tuple[Call, ...] = ()
    stopped: str = ""
    cost: float = 0.0

    @property
    def text(self) -> str:
        """The text of the answer: what was said after the last result of a tool."""
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
    """A model with tools, instructions and a conversation. One run at a time; others wait.

    `target` is what `dragoman.connect` takes. Tools are functions, or tools. `output` is the type
    of the answer: `str`, or any type that msgspec or pydantic knows; where an answer does not fit,
    the model is asked again, `corrections` times. `pinned` items stand before the conversation and
    are never left out; its oldest turns are, where the model's context (of `context` tokens, by
    default what the engine knows) has no room for all. `settings` are those of a request, such as
    `temperature`. The rest is as in `Loop`. A `meter` may be shared with other agents.

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
        self.name, self.model, self.instructions = name, model, instructions
        self.engine = engine_of(target)
        self.tools = Runner(map(as_tool, tools))
        self.pinned, self.history = tuple(pinned), tuple(history)
        self.meter = meter or Meter(budget, prices or {})
        self.output = None if output is str else OutputType(output)
        self.approve, self.state, self.settings = approve, state, dict(settings or {})
        self.context, self.corrections = context, corrections
        self.max_rounds, self.retries, self.continuations = max_rounds, retries, continuations
        self._lock = asyncio.Lock()

    # ---- running -------------------------------------------------------------------------

    async def run(self, said: Input | None = None, **options: Any) -> Run:
        """Ask, run tools until the model has answered, and give all that came, which is then part
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
        """The same as it comes: the events of all rounds, as those of one answer.

        Without anything `said`, the model goes on from the conversation as it is, and calls that
        wait are run: so a run that waits for consent is resumed. `allow` is what was decided: for
        all that wait, or for each by its `call_id`; words are a refusal that the model is given.
        `caller` says who asks. `settings` are those of a request, for this run.
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
        """Make these part of the conversation."""
        self.history += tuple(items)

    # ---- the conversation ----------------------------------------------------------------

    @property
    def pending(self) -> tuple[Call, ...]:
        """The calls that wait for consent, or were interrupted."""
        return tuple(unanswered(self.history))

    def branch(self) -> Self:
        """Another agent that goes on from the same conversation by itself. It spends from the same
        budget."""
        other = copy.copy(self)
        other._lock = asyncio.Lock()
        return other

    def tool(self, description: str, *, name: str | None = None, **settings: Any) -> PythonTool:
        """This agent as a tool of another: each call is a run on a branch of it."""

        async def ask(task: str, context: Context) -> Any:
            run = await self.branch().run(task, caller=context.caller)
            return run.text if self.output is None or run.value is None else run.value

        settings = {"seconds": 3600.0, **settings}
        return PythonTool(ask, name=name or self.name, description=description, **settings)

    def dump(self) -> bytes:
        """The conversation and what was spent, as JSON."""
        meter = self.meter
        usage = asdict(meter.usage)
        saved = Saved(
            1, self.name, self.model, self.history, usage, meter.cost, meter.calls, meter.rounds
        )
        return msgspec.json.encode(saved)

    def load(self, data: bytes) -> None:
        """Go on from a conversation that `dump` gave. Raises ValueError for anything else."""
        saved = msgspec.json.decode(data, type=Saved)
        if saved.version != 1:
            raise ValueError(f"version {saved.version} of a saved agent is not known here")
        self.history, meter = saved.history, self.meter
        meter.usage = msgspec.convert(saved.usage, type(meter.usage))
        meter.cost, meter.calls, meter.rounds = saved.cost, saved.calls, saved.rounds

    def save(self, path: str | Path) -> None:
        """Write what `dump` gives to a file, in one step."""
        path = Path(path)
        draft = path.with_name(path.name + ".part")
        draft.write_bytes(self.dump())
        draft.replace(path)

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class RunStream(Stream):
    """The events of a run; iterate it, or iterate its `text`. See `dragoman.client.Stream`."""

    def __init__(
        self,
        agent: Agent,
        said: Input | None,
        allow: Decision | Mapping[str, Decision] | None,
        caller: Caller,
        settings: Mapping[str, Any],
    ) -> None:
        self._agent, self._allow, self._caller = agent, allow, caller
        self._cost = agent.meter.cost
        given: Input = () if said is None else said
        asked = build_request(given, {**agent.settings, **settings}, stream=True)
        super().__init__(self._run(asked))

    async def finish(self) -> Run:
        """Read on to the end and give the whole run, a failed one too."""
        async for _ in self:
            pass
        return self.answer

    @property
    def answer(self) -> Run:
        """All that has come so far."""
        agent = self._agent
        run = Run(**asdict(super().answer), cost=agent.meter.cost - self._cost)
        stopped = ((run.extra or {}).get("agent") or {}).get("stopped", "")
        pending = tuple(unanswered(run.output)) if run.status == "completed" else ()
        value: Any = run.text
        if agent.output is not None:
            said = [item.text for item in run.output if isinstance(item, Message)]
            try:
                value = agent.output.value(said[-1] if said else "")
            except ToolError:
                value = None
        return replace(run, stopped=stopped, pending=pending, value=None if pending else value)

    async def _run(self, asked: Request) -> AsyncGenerator[Event, None]:
        agent = self._agent
        async with agent._lock:
            pending, said = agent.pending, asked.items
            if said and pending:
                if self._allow is not None:
                    raise TypeError("`allow` is for going on, without anything new being said")
                agent.add([failed(call, MOVED_ON).output for call in pending])
            if not said and not agent.history:
                raise TypeError("nothing was said yet that could be answered")
            typed = agent.output
            try:
                model = asked.model or agent.model or await _first_model(agent.engine)
                known = await agent.engine.capabilities(model)
            except FaultError as error:
                yield Failed(error.fault)
                return
            request = replace(
                asked,
                model=model,
                items=(*agent.history, *said),
                instructions=asked.instructions or agent.instructions,
                # Some servers suppress calls where a schema is asked for.
                format=asked.format if typed is None or agent.tools.offered() else typed.format,
            )
            context = known.context if agent.context is None else agent.context
            request = replace(request, items=agent.prompt(request, context))
            loop = _AgentLoop(agent, {call.call_id for call in pending}, self._allow)
            done: list[Item] = []
            try:
                async with aclosing(loop.stream(request, self._caller)) as events:
                    async for event in events:
                        if isinstance(event, ItemDone):
                            done.append(event.item)
                        yield event
            finally:  # of what was cancelled or failed, what was done stays
                if done:
                    agent.add((*said, *done))


class _AgentLoop(Loop):
    """A loop with the hooks, the decisions and the type of an agent."""

    def __init__(
        self, agent: Agent, pending: set[str], allow: Decision | Mapping[str, Decision] | None
    ) -> None:
        super().__init__(
            Compacting(agent.engine),
            agent.tools,
            max_rounds=agent.max_rounds,
            retries=agent.retries,
            continuations=agent.continuations,
            meter=agent.meter,
            approve=self._ask,
            state=agent.state,
        )
        self._agent, self._pending, self._allow = agent, pending, allow
        self._left = agent.corrections if agent.output is not None else 0
        self.always = True

    async def call(self, call: Call, context: Context) -> Result:
        return await self._agent.call(call, context)

    def check(self, request: Request, output: Sequence[Item]) -> Request | None:
        """Ask again for an answer that does not fit the agent's type."""
        typed = self._agent.output
        text = "".join(item.text for item in output if isinstance(item, Message))
        if typed is None or not self._left:
            return None
        try:
            typed.value(text)
        except ToolError as error:
            self._left -= 1
            items = (*request.items, Message("user", f"{error} Answer again, in JSON alone."))
            return replace(request, items=items, format=typed.format, tool_choice="none")
        return None

    async def _ask(self, call: Call) -> Decision | None:
        if self._allow is not None and call.call_id in self._pending:
            allow = self._allow
            decision = allow.get(call.call_id) if isinstance(allow, Mapping) else allow
            if decision is not None:
                return decision
        if self._agent.approve is None:
            return None
        asked = self._agent.approve(call)
        return await asked if isinstance(asked, Awaitable) else asked


async def _first_model(engine: Engine) -> str:
    if isinstance(engine, Client):
        return ""  # it has a model of its own
    models = await engine.models()
    if not models:
        problem = "No model was named, and the engine lists none."
        raise FaultError(Fault("model_not_found", problem, "client", "model"))
    return models[0].id
