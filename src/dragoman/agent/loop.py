"""Answers with tools: asks the engine, runs the tools it calls, and asks again until it is done.

It is an engine around an engine. All rounds are one answer: every call and every result is an item
of it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import CUT, Fault, FaultError, unsupported
from dragoman.core.event import Event, Failed, Finished, ItemAdded, ItemDone, Progress, Started
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller, Engine
from dragoman.core.item import (
    Call,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
)
from dragoman.core.loss import Loss
from dragoman.core.open_item import empty_item
from dragoman.core.request import AllowedTools, NamedTool, Request, UnknownTool
from dragoman.core.response import Usage
from dragoman.engines.base import ENDS, Driver, Prepared, Wrapper, new_id, now
from dragoman.engines.compaction import compacted, encode_summary, summarise
from dragoman.engines.fan_out import add_usage
from dragoman.tools.run import Context, Result, Runner, failed

AT_ONCE = 32
"""Calls of one round that run at the same time; the others wait for one to end."""
PATIENCE = 1.0
"""Seconds that a cancelled tool is waited for."""
_CALLS, _OUTPUTS = (FunctionCall, CustomToolCall), (FunctionCallOutput, CustomToolCallOutput)
NOT_ALLOWED = "The user did not allow this call."
SWITCHED_OFF = "It was not run: no more tools may be called. Answer with what you know."
CONTINUE = "Continue exactly where you were cut off, without repeating anything."


class Price(Struct, frozen=True):
    """What a million tokens of a model cost, in any currency. Without a price of their own, tokens
    from a cache cost what others do."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    cache_write: float | None = None

    def of(self, usage: Usage) -> float:
        """The cost of an answer.

        >>> Price(input=2.0, output=10.0, cached=0.5).of(
        ...     Usage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=400_000)
        ... )
        2.4
        """
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        plain = max((usage.input_tokens or 0) - cached - written, 0)
        cost = plain * self.input + (usage.output_tokens or 0) * self.output
        cost += cached * (self.input if self.cached is None else self.cached)
        cost += written * (self.input if self.cache_write is None else self.cache_write)
        return round(cost / 1_000_000, 12)


class Budget(Struct, frozen=True):
    """What an agent may spend, in all its runs together: tokens, cost, calls of tools and of the
    model (`rounds`), and seconds of one run. None stands for no limit.

    It is checked before each call of the model and of a tool. What has been reached may be used
    up; nothing more is begun then. A model call that is under way is not cut off.
    """

    tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    calls: int | None = None
    rounds: int | None = None
    seconds: float | None = None


class Meter:
    """What has been spent, against a budget. Agents and their sub-agents may share one."""

    def __init__(self, budget: Budget | None = None, prices: Mapping[str, Price] = {}) -> None:
        self.budget = budget or Budget()
        self.usage = Usage()
        self.cost = 0.0
        self.calls = self.rounds = 0
        self._prices = prices

    @property
    def limited(self) -> bool:
        """Whether anything is limited."""
        return self.budget != Budget()

    def add(self, usage: Usage | None, model: str) -> None:
        """Count an answer of a model."""
        if usage is not None:
            self.usage = add_usage([self.usage, usage]) or self.usage
            price = self._prices.get(model) or self._prices.get("*")
            self.cost += price.of(usage) if price else 0.0

    def spent(self, began: float, call: bool = False) -> str:
        """Which part of the budget leaves no room for the next call of a tool (`call`) or of the
        model, in a sentence; empty where there is room. `began` is when the run did."""
        usage, budget = self.usage, self.budget
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        counts: list[tuple[str, float | None, float]] = [
            ("tokens", budget.tokens, tokens),
            ("input tokens", budget.input_tokens, usage.input_tokens or 0),
            ("output tokens", budget.output_tokens, usage.output_tokens or 0),
            ("cost", budget.cost, self.cost),
            ("seconds", budget.seconds, time.monotonic() - began),
        ]
        if call:
            counts.append(("calls of tools", budget.calls, self.calls))
        else:
            counts.append(("calls of the model", budget.rounds, self.rounds))
        for what, most, used in counts:
            if most is not None and used >= most:
                return f"The budget is used up: {what}, {used:g} of {most:g}."
        return ""


Decision = bool | str
"""Whether a call is allowed; words are a refusal that the model is given."""
Approve = Callable[[Call], Decision | Awaitable[Decision | None] | None]
"""Asks a person about a call that needs consent; None leaves it open, which ends the answer."""


class Loop(Wrapper):
    """Middleware that runs tools. With nothing to do it is the engine inside.

    A call of a tool that the request brings itself is its client's; any other is run here, and
    where there is no such tool, the model is told so. Calls in the request that have no result are
    run first: so an answer that waited for consent, or was cut off, goes on. The results of a round
    have the order of its calls.

    - After `max_rounds` rounds of calls, or `retries` rounds in a row with errors, the model may
      call nothing more, and is asked for its answer.
    - Where the budget of the `meter` leaves no room, the answer ends, `incomplete` for `budget`.
    - `approve` is asked about calls that need consent. Where it leaves one open, the answer ends
      for `tool_calls`, and that call has no result.
    - A conversation that is too long for the model is summarised up to its last turn, once.
    - An answer that a limit of tokens cut off is continued, `continuations` times.
    - `state` is what tools find in their context.

    Subclasses may override `call` and `check`, and be `always` at work.
    """

    always = False

    def __init__(
        self,
        engine: Engine,
        tools: Runner,
        *,
        max_rounds: int | None = None,
        retries: int = 1,
        continuations: int = 0,
        meter: Meter | None = None,
        approve: Approve | None = None,
        state: Any = None,
    ) -> None:
        super().__init__(engine)
        self.tools = tools
        self.meter = meter or Meter()
        self._max_rounds, self._retries = max_rounds, retries
        self._continuations, self._approve, self._state = continuations, approve, state

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Take over where there is something to do."""
        if not (self.tools.tools or self._continuations or self.meter.limited or self.always):
            return None
        if (request.sampling.n or 1) > 1:
            raise FaultError(unsupported("an answer with tools is one choice", "n"))
        return Prepared(request, start=partial(Driver, self._answer(request, caller)))

    async def call(self, call: Call, context: Context) -> Result:
        """Run one call."""
        return await self.tools.run(call, context)

    def check(self, request: Request, output: Sequence[Item]) -> Request | None:
        """The next request, where a complete answer will not do; its items are those before, the
        answer among them, and more."""
        return None

    async def _answer(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        began, meter = time.monotonic(), self.meter
        theirs = {tool.name for tool in request.tools if not isinstance(tool, UnknownTool)}
        offered = [spec for spec in self.tools.offered() if spec.name not in theirs]
        tools = (*request.tools, *offered)
        items, choice = list(request.items), request.tool_choice
        calls: list[Call] = [call for call in unanswered(items) if self.tools.owns(call)]
        ids = {item.call_id for item in items if isinstance(item, _CALLS)}
        begun: Started | None = None
        end: Finished | Failed | None = None
        losses: list[Loss] = []  # of the rounds after the first
        used: list[Usage] = []
        shown = rounds = errors = continued = 0
        waits = summarised = False  # for results of the client's; for nothing more
        if calls or meter.spent(began):
            begun = Started(caller.response or new_id(), now(), request.model)
            yield begun
        while end is None:
            if calls:
                results: list[Result] = []
                allowed = choice != "none"
                async with aclosing(self._run(calls, request, caller, began, allowed)) as running:
                    async for result in running:
                        if not isinstance(result, Result):
                            yield Progress(None, "in_progress", result)
                            continue
                        results.append(result)
                        items.append(result.output)
                        yield ItemAdded(shown, empty_item(result.output))
                        yield ItemDone(shown, result.output)
                        shown += 1
                wrong = [result for result in results if result.error]
                rounds, errors = rounds + 1, errors + 1 if wrong else 0
                if (
                    rounds == self._max_rounds
                    or errors > self._retries
                    or not all(result.retry for result in wrong)
                ):
                    choice = "none"
                elif choice == "required" or isinstance(choice, NamedTool):
                    choice = None  # what had to be called was
                elif isinstance(choice, AllowedTools):
                    choice = replace(choice, mode="auto")
                if waits or len(results) < len(calls):
                    end = Finished("completed", ("tool_calls",))
                elif not allowed or all(result.after == "user" for result in results):
                    end = Finished("completed")
                if end is not None:
                    break
            if stopped := meter.spent(began):
                end = Finished("incomplete", ("budget",), extra={"agent": {"stopped": stopped}})
                break
            meter.rounds += 1
            asked = replace(
                request,
                items=tuple(items),
                tools=tools,
                tool_choice=choice if tools else None,
            )
            who = caller if begun is None else replace(caller, response=None)
            base, fold, end = shown, Fold(), Failed(CUT)
            names: dict[str, str] = {}
            async with aclosing(self.engine.stream(asked, who)) as events:
                async for event in events:
                    if isinstance(event, ENDS):
                        end = event
                        break
                    if isinstance(event, ItemAdded | ItemDone) and isinstance(event.item, _CALLS):
                        # Some servers count the calls of each answer from zero.
                        id = event.item.call_id
                        if isinstance(event, ItemAdded):
                            names[id] = id if id not in ids else f"{id}_{len(ids)}"
                            ids.add(names[id])
                        call = replace(event.item, call_id=names.get(id, id))
                        event = replace(event, item=call)
                    fold.feed(event)
                    if isinstance(event, Started):
                        losses += event.losses if begun is not None else ()
                        if begun is None:
                            begun = event
                            yield event
                    else:
                        shown += isinstance(event, ItemAdded)
                        yield _moved(event, base)
            fold.feed(end)
            output = fold.response.output
            meter.add(end.usage, request.model)
            used += [end.usage] if end.usage is not None else ()
            items += output
            calls = []
            match end:
                case Failed(fault=fault) if too_long(fault) and not output and not summarised:
                    summarised, end = True, None
                    if begun is None:
                        begun = Started(caller.response or new_id(), now(), request.model)
                        yield begun
                    blank = Compaction("", f"cmp_{begun.id}")
                    yield ItemAdded(shown, blank)
                    yield Progress(shown, "compacting")
                    summary, cost = await summarise(self.engine, asked, who)
                    meter.add(cost, request.model)
                    used += [cost] if cost is not None else ()
                    yield ItemDone(shown, replace(blank, encrypted=encode_summary(summary)))
                    shown, items = shown + 1, list(compacted(items, summary))
                case Finished(reasons=("length",)) if continued < self._continuations and output:
                    continued, end = continued + 1, None
                    items.append(Message("user", CONTINUE))
                case Finished(status="completed"):
                    made = [item for item in output if isinstance(item, _CALLS)]
                    calls = [
                        call for call in made if self.tools.owns(call) or call.name not in theirs
                    ]
                    waits = len(calls) < len(made)
                    again = None if made else self.check(replace(asked, items=tuple(items)), output)
                    if again is not None:
                        request, items, choice = again, list(again.items), again.tool_choice
                    if calls or again is not None:
                        losses += end.losses
                        end = None
        total = add_usage(used)
        if isinstance(end, Failed):
            yield replace(end, usage=total)
        else:
            yield replace(
                end,
                usage=total,
                completed_at=now(),
                losses=tuple(dict.fromkeys((*losses, *end.losses))),
            )

    async def _run(
        self,
        calls: Sequence[Call],
        request: Request,
        caller: Caller,
        began: float,
        allowed: bool,
    ) -> AsyncGenerator[Any, None]:
        """The results of calls in their order, and in between what tools report. Calls that wait
        for consent have none."""
        queue: asyncio.Queue[tuple[int | None, Any]] = asyncio.Queue()
        places = asyncio.Semaphore(1 if request.parallel_tool_calls is False else AT_ONCE)

        async def run(number: int, call: Call, decision: Decision) -> None:
            result: Result | Exception
            try:
                if decision is not True:
                    result = failed(call, decision or NOT_ALLOWED)
                elif not allowed:
                    result = failed(call, SWITCHED_OFF)
                else:
                    async with places:
                        stopped = self.meter.spent(began, call=True)
                        self.meter.calls += not stopped
                        context = Context(call, caller, self._state, partial(report, call))
                        result = (
                            failed(call, f"It was not run. {stopped}", retry=False)
                            if stopped
                            else await self.call(call, context)
                        )
            except Exception as error:  # of what overrides `call`: its reader would wait for ever
                result = error
            queue.put_nowait((number, result))

        def report(call: Call, what: Any) -> None:
            queue.put_nowait((None, {"call_id": call.call_id, "report": what}))

        tasks: list[asyncio.Task[None]] = []
        order: deque[int] = deque()
        done: dict[int, Result | Exception] = {}
        decisions = [await self._decide(call) if allowed else True for call in calls]
        for number, (call, decision) in enumerate(zip(calls, decisions, strict=True)):
            if decision is not None:
                order.append(number)
                tasks.append(asyncio.ensure_future(run(number, call, decision)))
        try:
            while order:
                place, value = await queue.get()
                if place is None:
                    yield value
                    continue
                done[place] = value
                while order and order[0] in done:
                    ended = done.pop(order.popleft())
                    if isinstance(ended, Exception):
                        raise ended
                    yield ended
        finally:
            for task in tasks:
                task.cancel()
            if tasks:  # a tool that does not let itself be cancelled is left behind
                await asyncio.wait(tasks, timeout=PATIENCE)

    async def _decide(self, call: Call) -> Decision | None:
        if not await self.tools.needs_approval(call):
            return True
        if self._approve is None:
            return None
        decision = self._approve(call)
        return await decision if isinstance(decision, Awaitable) else decision


def _moved(event: Event, places: int) -> Event:
    index: int | None = getattr(event, "index", None)
    return event if index is None else replace(event, index=index + places)


def unanswered(items: Iterable[Item]) -> list[Call]:
    """The calls that have no result.

    >>> [call.call_id for call in unanswered((FunctionCall("c1", "f", "{}"),))]
    ['c1']
    """
    calls: dict[str, Call] = {}
    for item in items:
        if isinstance(item, _CALLS):
            calls[item.call_id] = item
        elif isinstance(item, _OUTPUTS):
            calls.pop(item.call_id, None)
    return list(calls.values())


_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum context|prompt is too long|too many (input )?tokens"
    r"|exceeds? the (available )?context|input is too long",
    re.IGNORECASE,
)
"""How servers say that a prompt is too long for the model, where they have no code for it."""


def too_long(fault: Fault) -> bool:
    """Whether a request failed because it is too long for the model."""
    return fault.upstream_code == "context_length_exceeded" or (
        fault.code in ("invalid_request", "upstream_refused", "too_large")
        and _TOO_LONG.search(fault.message) is not None
    )
