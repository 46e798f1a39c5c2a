"""Answers with tools: asks the engine, runs the tools it calls, and asks again until it is done.

It is an engine around an engine. All rounds are one answer: every call and every result is an item
of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.core.error import (
    CUT,
    MAX_ITEMS,
    TOO_LONG,
    Fault,
    FaultError,
    exceeds_context,
    unsupported,
)
from dragoman.core.event import (
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    Progress,
    Started,
    State,
)
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller, Engine
from dragoman.core.item import (
    JSON,
    RECORD,
    Call,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    Extra,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Unknown,
)
from dragoman.core.loss import Loss
from dragoman.core.open_item import empty_item
from dragoman.core.request import AllowedTools, NamedTool, Namespace, Request, UnknownTool
from dragoman.core.response import Usage
from dragoman.engines.base import ENDS, Driver, Prepared, Wrapper, new_id, now
from dragoman.engines.compaction import (
    compacted,
    encode_summary,
    estimate,
    fit,
    summarise,
    weight,
)
from dragoman.engines.fan_out import add_usage
from dragoman.tools.run import (
    PATIENCE,
    Context,
    Display,
    Output,
    Recorded,
    Result,
    Runner,
    message_of,
    not_run,
)
from dragoman.wire.responses.items import WIRE

from .budget import Meter

_log = logging.getLogger("dragoman")

AT_ONCE = 32
"""Calls of one round that run at the same time; the others wait for one to end."""
MOST_REPORTS = 100
"""Reports of tools that wait to be read; more are left out."""
MOST_ADDED, ITEM, BYTES = 64 * 1024 * 1024, 1024, 4
"""Bytes of what the rounds of one answer may add to its conversation, and what an item and a token
count for."""
LARGE = 256 * 1024
"""Such bytes from which on a request is encoded in a thread."""
HALVINGS = 4
"""How often a summary is tried again with half as much."""
_CALLS, _OUTPUTS = (FunctionCall, CustomToolCall), (FunctionCallOutput, CustomToolCallOutput)
PREFIXES = {
    "code_interpreter_call": "ci",
    "file_search_call": "fs",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "web_search_call": "ws",
}
"""What the ids of items that show calls begin with."""
APPROVAL = "mcp_approval_request"
_ASKED = ("name", "arguments", "server_label")
"""The fields of a call that a person is asked about."""
NOT_ALLOWED = "The user did not allow this call."
INTERRUPTED = "It was interrupted; whether it took effect is not known."
SWITCHED_OFF = "It was not run: no more tools may be called. Answer with what you know."
CONTINUE = "Continue exactly where you were cut off, without repeating anything."

_ITEMS = re.compile(r"(?:input|messages)\[")
"""What losses of items are called, in all protocols."""

Decision = bool | str
"""Whether a call is allowed; a text is a refusal, which the model gets as the result."""
Approve = Callable[[Call], Decision | Awaitable[Decision | None] | None]
"""Asks a person about a call that needs consent; None leaves it open, which ends the answer."""


class Loop(Wrapper):
    """Middleware that runs tools. With nothing to do it passes requests through.

    Calls of the client's own tools (those in the request) are left to the client; all others are
    run here, and a call of an unknown tool gets an error as its result. Calls in the request that
    have no result are run first: so an answer that waited for consent, or was cut off, continues.
    The results of a round are in the order of its calls.

    - After `max_rounds` rounds of calls, or more than `retries` rounds in a row with errors, tools
      are switched off and the model is asked for its answer.
    - Where the budget of the `meter` is used up, the answer ends, `incomplete` for `budget`.
    - `approve` decides about calls that need consent. Where it returns None, the answer ends
      for `tool_calls`, and that call has no result.
    - A conversation that is too long for the model is summarised up to its last turn, once.
    - An answer that a limit of tokens cut off is continued, `continuations` times.
    - `state` is what tools find in their context.
    - `pinned` is the number of items at the beginning that no summary replaces.
    - `opening` are lists of tools that the answer begins with.
    - With `quiet`, calls of unknown tools are not sent to the client, which would take them for
      calls of its own; only the model gets the error.

    Calls of tools with a display are items of their own kind, in place of a call and its output;
    one that waits for consent is an approval request.

    Subclasses may override `call`, `decide` and `check` and the callbacks `insert`, `begin` and
    `end`. Raises ValueError for a negative limit.
    """

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
        pinned: int = 0,
        taken: Iterable[str] = (),
        opening: Sequence[Unknown] = (),
        quiet: bool = False,
    ) -> None:
        super().__init__(engine)
        if min(max_rounds or 0, retries, continuations) < 0:
            raise ValueError("max_rounds, retries and continuations cannot be negative")
        self.tools = tools
        self.meter = meter or Meter()
        self.pinned, self.taken, self.opening = pinned, frozenset(taken), opening
        self.quiet = quiet
        self.max_rounds, self.retries = max_rounds, retries
        self.continuations, self._approve, self.state = continuations, approve, state

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Take over where there is something to do."""
        if not (self.tools.tools or self.opening or self.continuations or self.meter.limited):
            return None
        return Prepared(request, start=partial(Driver, self.events(request, caller)))

    def events(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        """The answer, which goes on where its events are read."""
        return _Answer(self, request, caller).events()

    async def call(self, call: Call, context: Context) -> Result:
        """Run one call."""
        return await self.tools.run(call, context)

    async def decide(self, call: Call) -> Decision | None:
        """Whether a call is allowed; None where a person has not decided."""
        if not await self.tools.needs_approval(call):
            return True
        if self._approve is None:
            return None
        try:
            decision = self._approve(call)
            decision = await decision if isinstance(decision, Awaitable) else decision
        except FaultError:
            raise
        except Exception as error:  # the application's, and no bug of an engine
            _log.warning("approve failed for a call of %s", call.name, exc_info=error)
            problem = f"`approve` raised {message_of(error)}"
            raise FaultError(Fault("internal", problem)) from error
        return decision if decision is None or isinstance(decision, str) else bool(decision)

    def check(self, request: Request, output: Sequence[Item]) -> Request | None:
        """The next request, where a complete answer is not acceptable; its items are the earlier
        ones, the answer, and one more."""
        return None

    def insert(self, item: Item, place: int) -> None:
        """Called for an item that the model sees after `place` items of the answer, and that is not
        part of the answer."""

    def begin(self, call: Call) -> None:
        """Called before a call is run."""

    def end(self, call: Call, result: Result) -> None:
        """Called with the result of a call, which may not be part of the answer yet."""


class _Answer:
    """One answer of a loop: all its rounds as one sequence of events."""

    def __init__(self, loop: Loop, request: Request, caller: Caller) -> None:
        self.loop, self.request, self.caller = loop, request, caller
        self.tools, self.meter, self.began = loop.tools, loop.meter, time.monotonic()
        self.theirs, self.hosted = _names(request)
        offered = [
            spec
            for spec in loop.tools.offered()
            if isinstance(spec, Namespace) or (None, spec.name) not in self.theirs
        ]
        self.offered: tuple[Any, ...] = (*request.tools, *offered)
        self.items = list(request.items)
        self.choice = "none" if loop.max_rounds == 0 else request.tool_choice
        self.calls = [  # to be run before the model is asked
            call
            for call in unanswered(self.items)
            if loop.tools.find(call) and call.status != "incomplete"
        ]
        self.ids = {item.call_id for item in self.items if isinstance(item, _CALLS)}
        self.ids |= loop.taken
        self.begun: Started | None = None
        self.end: Finished | Failed | None = None
        self.losses: list[Loss] = []  # that are not in `begun`
        self.used: list[Usage] = []
        self.cost, self.stopped = 0.0, ""
        self.shown = self.asked = self.rounds = self.errors = self.continued = 0
        self.weighed, self.grown = len(self.items), 0  # items, and about the bytes of later ones
        self.spoke = False  # in the last round
        self.waits = self.summarised = False  # for results of the client's; for nothing more

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events: of calls and of the model in turns."""
        if (self.request.sampling.n or 1) > 1:
            raise FaultError(unsupported("an answer with tools is one choice", "n"))
        if self.calls or self.loop.opening or self.meter.spent(self.began):
            yield self._begin()
        for item in self.loop.opening:
            item = replace(item, id=f"{PREFIXES[item.kind]}_{new_id()}")
            yield ItemAdded(self.shown, replace(item, value={**item.value, "tools": []}))
            yield Progress(self.shown, "in_progress")
            yield Progress(self.shown, "failed" if item.value.get("error") else "completed")
            yield ItemDone(self.shown, item)
            self.shown += 1
        while self.end is None:
            if self.calls:
                async with aclosing(self._results()) as results:
                    async for event in results:
                        yield event
            if self.end is None:
                async with aclosing(self._model()) as events:
                    async for event in events:
                        yield event
        about = {"cost": self.cost, **({"stopped": self.stopped} if self.stopped else {})}
        extra = {**(self.end.extra or {}), "agent": about}
        end = replace(self.end, usage=add_usage(self.used), extra=extra)
        if isinstance(end, Finished):
            losses = tuple(dict.fromkeys((*self.losses, *end.losses)))
            end = replace(end, completed_at=now(), losses=losses)
        yield end

    def _begin(self) -> Started:
        self.begun = Started(self.caller.response or new_id(), now(), self.request.model)
        return self.begun

    async def _results(self) -> AsyncGenerator[Event, None]:
        """Run the calls of the last round, and decide what follows."""
        results, waiting = list[Result](), list[Call]()
        decided: list[tuple[Call, Decision]] = []
        allowed = self.choice != "none"
        for call in self.calls:
            decision = await self.loop.decide(call) if allowed else True
            if decision is None:
                waiting.append(call)
            else:
                decided.append((call, decision))
        async with aclosing(self._run(decided, allowed)) as running:
            for call, _ in decided:
                display = self._display(call)
                item = None if display is None else _opened(call, display, self.calls[0].call_id)
                if display is not None and item is not None:
                    for event in _opening(self.shown, item, display):
                        yield event
                async for result in running:
                    if isinstance(result, Result):
                        break
                    yield Progress(None, "in_progress", result)
                results.append(result)
                self.items.append(result.output)
                if display is None or item is None:
                    for event in () if self._hidden(call) else self._whole(result.output):
                        yield event
                else:
                    wrong = result.error or not result.run
                    state: State = "failed" if wrong and display.fails else "completed"
                    status = "failed" if wrong else "completed"
                    record = _record(call, self.calls[0].call_id, result.output.output, result.kept)
                    value = {**item.value, **result.fields, "status": status}
                    yield Progress(self.shown, state)
                    yield ItemDone(self.shown, replace(item, value=value, extra=record))
                    self.shown += 1
        for call in waiting:
            if (display := self._display(call)) is not None:
                given = display.opened(call)
                asked = {name: given[name] for name in _ASKED if name in given}
                extra = _record(call, self.calls[0].call_id, None)
                for event in self._whole(Unknown(WIRE, APPROVAL, asked, f"mcpr_{new_id()}", extra)):
                    yield event
        self.stopped = self.meter.spent(self.began, call=True)
        wrong = [result for result in results if result.error]
        self.rounds, self.errors = self.rounds + 1, self.errors + 1 if wrong else 0
        if (
            self.rounds == self.loop.max_rounds
            or self.errors > self.loop.retries
            or self.stopped
            or not all(result.retry for result in wrong)
        ):
            self.choice = "none"
        elif self.choice == "required" or isinstance(self.choice, NamedTool):
            self.choice = None  # the required call was made
        elif isinstance(self.choice, AllowedTools):
            self.choice = replace(self.choice, mode="auto")
        if self.waits or waiting:
            asks = not self.waits and all(map(self._display, waiting))
            self.end = Finished("completed", ("stop" if asks else "tool_calls",))
        elif not (allowed or self.spoke or self.request.tool_choice == "none"):
            self.end = Finished("incomplete", ("budget",))
        elif not allowed or all(result.after == "user" for result in results):
            self.end = Finished("completed")

    def _display(self, call: Call) -> Display | None:
        """How a call is shown to the client, where not as a function call."""
        tool = self.tools.find(call)
        theirs = tool is None or (call.namespace, call.name) in self.theirs
        return None if tool is None or theirs else tool.display

    def _hidden(self, call: Call) -> bool:
        """Whether a call is not sent to the client."""
        own = self.hosted or (call.namespace, call.name) in self.theirs
        return self.loop.quiet and not own and self.tools.find(call) is None

    def _whole(self, item: Item) -> Iterator[Event]:
        """An item that is there at once."""
        yield ItemAdded(self.shown, empty_item(item))
        yield ItemDone(self.shown, item)
        self.shown += 1

    async def _model(self) -> AsyncGenerator[Event, None]:
        """Ask the model, and decide what follows."""
        if stopped := self.meter.spent(self.began):
            self.stopped, self.end = stopped, Finished("incomplete", ("budget",))
            return
        self._check_size()
        self.meter.rounds += 1
        self.asked += 1
        asked = replace(
            self.request,
            items=tuple(self.items),
            tools=self.offered,
            tool_choice=self.choice if self.offered else None,
        )
        who = self.caller if self.begun is None else replace(self.caller, response=None)
        if self.grown > LARGE:  # what is large is encoded in a thread
            who = replace(who, size=who.size + self.grown)
        fold = Fold()
        end: Finished | Failed = Failed(CUT)
        names: dict[int, str] = {}
        places: dict[int, int | None] = {}  # None for calls that are shown when they are run
        async with aclosing(self.loop.engine.stream(asked, who)) as events:
            async for event in events:
                if isinstance(event, ENDS):
                    end = event
                    break
                if isinstance(event, ItemAdded | ItemDone) and isinstance(event.item, _CALLS):
                    # Some servers count the calls of each answer from zero, or name none.
                    if event.index not in names:
                        names[event.index] = _free(event.item.call_id, self.ids)
                        self.ids.add(names[event.index])
                    call = replace(event.item, call_id=names[event.index])
                    event = replace(event, item=call)
                    if self._display(call) is not None or self._hidden(call):
                        places[event.index] = None
                fold.feed(event)
                if isinstance(event, Started):
                    if self.begun is None:
                        self.begun = event
                        yield event
                    else:
                        # What earlier rounds have added is not the client's.
                        again = self.asked > 1
                        found = event.losses
                        self.losses += [x for x in found if not (again and _ITEMS.match(x.field))]
                elif (index := event.index) is None:
                    yield event
                else:
                    if index not in places:
                        places[index], self.shown = self.shown, self.shown + 1
                    if (place := places[index]) is not None:
                        yield event if place == index else replace(event, index=place)
        fold.feed(end)
        output, usage = fold.response.output, end.usage
        self.items += output
        self.used += [usage] if usage is not None else ()
        if usage is None and self.meter.limited and isinstance(end, Finished):
            written = sum(map(weight, output))
            usage = Usage(input_tokens=estimate(asked), output_tokens=written)
        if usage is not None:
            self.cost += self.meter.add(usage, self.request.model)
        self.calls = []
        match end:
            case Failed(fault=fault) if too_long(fault) and not output and not self.summarised:
                async with aclosing(self._summarise(asked, who)) as events:
                    async for event in events:
                        yield event
            case Finished(reasons=("length",)) if (
                self.continued < self.loop.continuations
                and output
                and not any(isinstance(item, _CALLS) for item in output)
            ):
                self.continued += 1
                self._insert(Message("user", CONTINUE))
            case Finished(status="completed"):
                self._follow(end, asked, output)
            case _:
                self.end = end

    def _check_size(self) -> None:
        """Raise FaultError where a request has made the server's tools answer too much."""
        new = self.items[self.weighed :]
        self.weighed = len(self.items)
        self.grown += sum([ITEM + BYTES * weight(item) for item in new])
        if self.loop.quiet and (self.grown > MOST_ADDED or self.shown > MAX_ITEMS):
            problem = (
                f"The rounds of this answer have more than {MAX_ITEMS} items, or {MOST_ADDED} "
            )
            raise FaultError(Fault("upstream_error", f"{problem}bytes of them.", "upstream"))

    def _follow(self, end: Finished, asked: Request, output: Sequence[Item]) -> None:
        """After a complete answer: run its calls, ask again where `check` says so, or end."""
        made = [item for item in output if isinstance(item, _CALLS)]
        self.spoke = any(isinstance(item, Message) and item.text for item in output)
        self.calls = [
            call
            for call in made
            if (call.namespace, call.name) not in self.theirs
            and (self.tools.find(call) or not self.hosted)
        ]
        self.waits = len(self.calls) < len(made)
        again = None
        if not made:
            again = self.loop.check(replace(asked, items=tuple(self.items)), output)
        if again is not None:
            self.request, self.choice = again, again.tool_choice
            self._insert(again.items[-1])
        if self.calls or again is not None:
            self.losses += end.losses
        else:
            self.end = end

    def _insert(self, item: Item) -> None:
        self.items.append(item)
        self.loop.insert(item, self.shown)

    async def _summarise(self, asked: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        """Replace everything before the last turn by a summary."""
        self.summarised = True
        if self.begun is None:
            yield self._begin()
        blank = Compaction("", f"cmp_{new_id()}")
        yield ItemAdded(self.shown, blank)
        yield Progress(self.shown, "compacting")
        summary, usage = await self._summary(asked, caller)
        if usage is not None:
            self.cost += self.meter.add(usage, asked.model)
            self.used.append(usage)
        yield ItemDone(self.shown, replace(blank, encrypted=encode_summary(summary)))
        self.shown += 1
        pinned, rest = self.items[: self.loop.pinned], self.items[self.loop.pinned :]
        self.items = [*pinned, *compacted(rest, summary)]
        self.weighed = len(self.items)

    async def _summary(self, asked: Request, caller: Caller) -> tuple[str, Usage | None]:
        """A summary of a conversation that is too long: of as many of its latest turns as fit the
        model. Raises FaultError."""
        room = estimate(replace(asked, items=()))
        context = (await self.loop.engine.capabilities(asked.model)).context
        budget = (context or estimate(asked)) // 2 - room
        for _ in range(HALVINGS):
            try:
                shorter = replace(asked, items=fit(asked.items, max(budget, 1)))
                return await summarise(self.loop.engine, shorter, caller)
            except FaultError as error:
                if not too_long(error.fault):
                    raise
                budget //= 2
                last = error
        raise last

    async def _run(
        self, calls: Sequence[tuple[Call, Decision]], allowed: bool
    ) -> AsyncGenerator[Any, None]:
        """The results of calls in their order, and the reports of tools in between."""
        hooks, loop = self.loop, asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[int | None, Any]] = asyncio.Queue()
        places = asyncio.Semaphore(1 if self.request.parallel_tool_calls is False else AT_ONCE)

        async def run(number: int, call: Call, decision: Decision) -> None:
            result: Result | BaseException
            try:
                if not allowed:
                    result = not_run(call, SWITCHED_OFF)
                elif decision is not True:
                    result = not_run(call, decision or NOT_ALLOWED)
                else:
                    async with places:
                        if stopped := self.meter.spent(self.began, call=True):
                            result = not_run(call, f"It was not run. {stopped}")
                        else:
                            self.meter.calls += 1
                            hooks.begin(call)
                            about = Context(call, self.caller, hooks.state, partial(report, call))
                            result = await hooks.call(call, about)
                hooks.end(call, result)
            except BaseException as error:  # an overridden `call`: the reader must not wait forever
                result = error
            queue.put_nowait((number, result))

        def report(call: Call, what: Any) -> None:  # in the thread of the tool
            if queue.qsize() < MOST_REPORTS:
                entry = (None, {"call_id": call.call_id, "report": what})
                with suppress(RuntimeError):  # the loop was closed
                    loop.call_soon_threadsafe(queue.put_nowait, entry)

        order = deque(range(len(calls)))
        done: dict[int, Result | BaseException] = {}
        tasks = [asyncio.ensure_future(run(n, *each)) for n, each in enumerate(calls)]
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
                    if isinstance(ended, BaseException):
                        raise RuntimeError(f"{type(ended).__name__} while a call was run")
                    yield ended
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=2 * PATIENCE)


def _names(request: Request) -> tuple[set[tuple[str | None, str]], bool]:
    """The names of a client's own tools, in their namespaces, and whether it has some of unknown
    kinds, whose calls could have any name."""
    names: set[tuple[str | None, str]] = set()
    hosted = False
    for tool in request.tools:
        if isinstance(tool, Namespace):
            names |= {(tool.name, each.name) for each in tool.tools if hasattr(each, "name")}
        elif isinstance(tool, UnknownTool):
            hosted = True
        else:
            names.add((None, tool.name))
    return names, hosted


def _free(id: str, taken: set[str]) -> str:
    """A unique id of a call: this one, or one derived from it."""
    if not id:
        return f"call_{new_id()}"
    free, number = id, 0
    while free in taken:
        number += 1 if number < 9 else len(taken)  # servers may give thousands one id
        free = f"{id}_{number}"
    return free


def _opened(call: Call, display: Display, round: str) -> Unknown:
    """The item that shows a call, in its first state; with the approval request that allowed it."""
    allowed = (call.extra or {}).get(RECORD, {})
    value = {**display.opened(call), **allowed, "status": "in_progress"}
    record = _record(call, round, None)
    return Unknown(WIRE, display.kind, value, f"{PREFIXES[display.kind]}_{new_id()}", record)


def _opening(place: int, item: Unknown, display: Display) -> Iterator[Event]:
    """The events that show a call before it is run."""
    added, name = item, display.delta
    if name is not None:
        added = replace(item, value={**item.value, name: ""})
    yield ItemAdded(place, added)
    yield Progress(place, "in_progress")
    if name is not None and (text := item.value.get(name)):
        at = {"type": f"response.{item.kind}_{name}.delta", "item_id": "", "output_index": 0}
        yield Progress(place, "raw", {WIRE: {**at, "delta": text}})
        at["type"] = f"response.{item.kind}_{name}.done"
        yield Progress(place, "raw", {WIRE: {**at, name: text}})
    if display.working is not None:
        yield Progress(place, display.working)


def _record(call: Call, round: str, output: Output | None, own: JSON = None) -> Extra:
    """The record of a call, stored in its item for the next request of the conversation."""
    record = Recorded(call.call_id, call.name, call.text, output, call.namespace, round, own)
    return {RECORD: to_builtins(record)}


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


def too_long(fault: Fault) -> bool:
    """Whether a request failed because it is too long for the model."""
    return fault.upstream_code == TOO_LONG or (
        fault.code in ("invalid_request", "upstream_refused", "too_large")
        and exceeds_context(fault.message)
    )
