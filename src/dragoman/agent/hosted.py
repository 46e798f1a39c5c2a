"""Runs the server's hosted tools, which a request names, in a loop, for every model.

The model sees functions and their outputs; the client sees the items that the Responses protocol
has for them. Each such item carries a record of its call, so that the next request of the
conversation shows the model what it saw before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from dragoman.core.conversation import SILENCE, with_answers
from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.event import Delta, Event, Finished, ItemDone, PartDone, Started
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import (
    JSON,
    RECORD,
    Annotation,
    Call,
    CallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Text,
    Unknown,
    objects,
)
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    NamedTool,
    Namespace,
    Request,
    ToolChoice,
    UnknownTool,
)
from dragoman.engines.base import Driver, Prepared, Wrapper
from dragoman.formats.citations import Citations, Cited
from dragoman.tools.run import (
    Hosted,
    Recorded,
    Runner,
    Session,
    Tool,
    recorded,
)
from dragoman.wire import json
from dragoman.wire.responses.items import RESULTS

from .budget import Budget, Meter
from .loop import APPROVAL, INTERRUPTED, NOT_ALLOWED, PREFIXES, Decision, Loop

ANSWER = "mcp_approval_response"
MOST_ROUNDS = 64
"""Rounds of calls in one answer of the server, after which tools are switched off."""
GONE = "This tool is not there any more."
_DATED = re.compile(r"(web_search|code_execution)_20\d{6}")
_SAME = {"code_execution": "code_interpreter"}
"""Tools of the Messages protocol whose names differ."""


class HostedTools(Wrapper):
    """Middleware that runs hosted tools; a tool that is not enabled is left to the engine inside.

    Raises ValueError where two tools have the same type.
    """

    acts_on = frozenset(("tools", "web_search", Unknown))

    def __init__(self, engine: Engine, tools: Sequence[Hosted]) -> None:
        super().__init__(engine)
        self._tools = tools
        self._by_kind: dict[str, Hosted] = {}
        for tool in tools:
            for kind in tool.kinds:
                if self._by_kind.setdefault(kind, tool) is not tool:
                    raise ValueError(f"there are two tools of type {kind!r}")

    def prepare(self, request: Request, caller: Caller) -> Prepared | Awaitable[Prepared] | None:
        """Run the tools that the request names, and show the model earlier calls."""
        wanted: dict[int, tuple[Hosted, dict[str, JSON]]] = {}
        for number, tool in enumerate(request.tools):
            if isinstance(tool, UnknownTool):
                found = _DATED.fullmatch(tool.kind)
                kind = _SAME.get(found[1], found[1]) if found else tool.kind
                if (hosted := self._by_kind.get(kind)) is not None:
                    wanted[number] = hosted, {"type": kind, **tool.value}
        search = self._by_kind.get("web_search") if request.web_search is not None else None
        if search is not None:
            options = request.web_search if isinstance(request.web_search, dict) else {}
            wanted[len(request.tools)] = search, {"type": "web_search", **options}
            request = replace(request, web_search=None)
        if wanted:
            _check_once(request, wanted)
            if (request.sampling.n or 1) > 1:
                raise FaultError(unsupported("an answer with tools is one choice", "n"))
            events = self._answer(request, caller, wanted)
            return Prepared(request, start=partial(Driver, events))
        if caller.size:
            return self._restored(request)
        items, _ = for_model(request.items)
        return None if items is None else Prepared(replace(request, items=items))

    async def _restored(self, request: Request) -> Prepared:
        """The conversation for the model, of a large request, which is made in a thread."""
        items, _ = await asyncio.to_thread(for_model, request.items)
        return Prepared(replace(request, items=items or request.items))

    async def close(self) -> None:
        """Close the tools, then the engine."""
        try:
            await asyncio.gather(*(tool.close() for tool in self._tools))
        finally:
            await super().close()

    async def _answer(
        self,
        request: Request,
        caller: Caller,
        wanted: Mapping[int, tuple[Hosted, dict[str, JSON]]],
    ) -> AsyncGenerator[Event, None]:
        """The answer, with the tools open as long as it lasts."""
        known = [item for item in request.items if isinstance(item, Unknown)]
        opened: dict[int, Session] = {}

        async def open(number: int) -> None:
            tool, asked = wanted[number]
            opened[number] = await tool.open(asked, known, caller)

        try:
            # It returns when all have ended, also where this answer is cancelled meanwhile.
            problems = await asyncio.gather(*map(open, wanted), return_exceptions=True)
            for number, problem in zip(wanted, problems, strict=True):
                if isinstance(problem, FaultError):
                    at = f"tools[{number}]" if number < len(request.tools) else "web_search_options"
                    said, param = problem.fault.message, problem.fault.param
                    if param and said.startswith(f"{param}: "):
                        said = f"{at}.{said}"
                    at = ".".join(filter(None, (at, param)))
                    raise FaultError(replace(problem.fault, param=at, message=said)) from problem
                if problem is not None:
                    raise problem
            sessions = {number: opened[number] for number in wanted}
            if caller.size:  # many items take long
                loop, asked = await asyncio.to_thread(self._loop, request, sessions)
            else:
                loop, asked = self._loop(request, sessions)
            own = [number for number, _ in enumerate(request.tools) if number not in wanted]
            async with aclosing(loop.stream(asked, caller)) as events:
                async for event in events:
                    if isinstance(event, Started | Finished) and event.losses:
                        event = replace(event, losses=_renumbered(event.losses, own))
                    yield event
        finally:
            await asyncio.gather(*(session.close() for session in opened.values()))

    def _loop(self, request: Request, sessions: Mapping[int, Session]) -> tuple[Loop, Request]:
        """What runs the tools of these sessions, and the request without them."""
        taken: dict[str, int] = {}
        for number, session in sessions.items():
            _check_names(request, number, session, taken)
        _check_demand(request, sessions)
        own = sessions.values()
        runner = Runner(
            (tool for each in own if each.namespace is None for tool in each.tools),
            {each.namespace: each.tools for each in own if each.namespace is not None},
            {str(each.namespace): each.description for each in own},
        )
        items, decisions = for_model(request.items, runner)
        asked = replace(
            request,
            items=items or request.items,
            tools=tuple(tool for n, tool in enumerate(request.tools) if n not in sessions),
            tool_choice=_chosen(request, sessions),
            max_tool_calls=None,
            include=tuple(n for n in request.include if n.partition(".")[0] not in RESULTS),
        )
        cited = [each.cited for each in own if each.cited is not None]
        loop = Loop(
            Citing(self.engine, cited) if cited else self.engine,
            runner,
            max_rounds=MOST_ROUNDS,
            retries=MOST_ROUNDS,  # pages that do not exist are no reason to stop
            meter=Meter(Budget(calls=request.max_tool_calls)),
            approve=lambda call: decisions.get(call.call_id),
            opening=[item for each in own for item in each.items],
            quiet=True,
        )
        return loop, asked


_TOOL = re.compile(r"tools\[(\d+)\]")


def _renumbered(losses: Iterable[Loss], numbers: Sequence[int]) -> tuple[Loss, ...]:
    """The losses of the client's own tools, by the numbers that these have in its request."""
    found: list[Loss] = []
    for loss in losses:
        if (tool := _TOOL.match(loss.field)) is not None:
            if (number := int(tool[1])) >= len(numbers):
                continue
            loss = replace(loss, field=f"tools[{numbers[number]}]{loss.field[tool.end() :]}")
        found.append(loss)
    return tuple(found)


def _check_once(request: Request, wanted: Mapping[int, tuple[Hosted, dict[str, JSON]]]) -> None:
    """Raises FaultError where a tool is named twice: each would be opened."""
    named: dict[tuple[int, str], int] = {}
    for number, (tool, asked) in wanted.items():
        first = named.setdefault((id(tool), str(asked.get("server_label"))), number)
        if first != number:
            at = f"tools[{number}]" if number < len(request.tools) else "web_search_options"
            raise FaultError(bad_request(f"brings what tools[{first}] brings already", at))


def _check_names(request: Request, number: int, session: Session, taken: dict[str, int]) -> None:
    """Raises FaultError where a hosted tool brings a name that is the client's, or already `taken`
    by another hosted tool."""
    brought = [session.namespace] if session.namespace else [t.spec.name for t in session.tools]
    for name in brought:
        if (other := taken.setdefault(name, number)) != number:
            problem = f"brings {name!r}, which tools[{other}] brings already"
            raise FaultError(bad_request(problem, f"tools[{number}]"))
    for place, tool in enumerate(request.tools):
        if isinstance(tool, UnknownTool) or isinstance(tool, Namespace) != bool(session.namespace):
            continue
        if tool.name in brought:
            problem = f"is {tool.name!r}, which tools[{number}] brings already: choose another name"
            raise FaultError(bad_request(problem, f"tools[{place}].name"))


def _check_demand(request: Request, sessions: Mapping[int, Session]) -> None:
    """Raises FaultError where a call is demanded of hosted tools that bring nothing to call: a
    server whose tools cannot be listed, or has none of those that are allowed."""
    choice, tools = request.tool_choice, request.tools
    entries: Sequence[object] = ()
    if isinstance(choice, UnknownTool):
        entries = (choice,)
    elif isinstance(choice, AllowedTools):
        entries = choice.tools if choice.mode == "required" else ()
    elif choice == "required" and len(tools) not in sessions:  # else there is a web search
        entries = tools
    empty: list[tuple[int, UnknownTool]] = []
    for entry in entries:
        label = entry.value.get("server_label") if isinstance(entry, UnknownTool) else None
        meant = [
            (number, tool)
            for number, tool in enumerate(tools)
            if number in sessions and isinstance(tool, UnknownTool)
            if isinstance(entry, UnknownTool) and tool.kind == entry.kind
            if label in (None, tool.value.get("server_label"))
        ]
        if not meant or any(sessions[number].tools for number, _ in meant):
            return
        empty += meant
    for number, tool in empty:
        at, problem = "tool_choice", f"demands a call, and tools[{number}] brings nothing to call"
        said = [each.value.get("error") for each in sessions[number].items]
        if reason := next(filter(None, said), None):
            problem += f": {reason}"
        elif tool.value.get("allowed_tools") is not None:
            at = f"tools[{number}].allowed_tools"
            problem = "allows none of the tools that there are, and tool_choice demands a call"
        raise FaultError(bad_request(problem, at))


def _chosen(request: Request, sessions: Mapping[int, Session]) -> ToolChoice | None:
    """The tool choice, with functions in place of hosted tools."""

    if not isinstance(request.tool_choice, UnknownTool | AllowedTools):
        return request.tool_choice
    brought: list[tuple[UnknownTool, dict[JSON, list[NamedTool]]]] = []  # by name, None for all
    for number, session in sessions.items():
        tool = request.tools[number] if number < len(request.tools) else None
        if isinstance(tool, UnknownTool):
            by_name: dict[JSON, list[NamedTool]] = {None: []}
            for each in session.tools:
                own = NamedTool(each.spec.name, _kind(each.spec), session.namespace)
                alone = tool.kind == "mcp"  # only these are chosen one by one
                for name in {None, *((each.spec.name, _shown_name(each)) if alone else ())}:
                    by_name.setdefault(name, []).append(own)
            brought.append((tool, by_name))
    seen: set[tuple[str, str, str]] = set()

    def named(entry: UnknownTool) -> list[NamedTool | UnknownTool]:
        """What an entry stands for; nothing where an earlier one stands for it."""
        label, name = entry.value.get("server_label"), entry.value.get("name")
        key = entry.kind, repr(label), repr(name)
        if key in seen:
            return []
        seen.add(key)
        name = name if entry.kind == "mcp" else None
        found: list[NamedTool | UnknownTool] = []
        for tool, by_name in brought:
            if tool.kind == entry.kind and label in (None, tool.value.get("server_label")):
                found += by_name.get(name, ()) if isinstance(name, str | None) else ()
        return found or [entry]

    match choice := request.tool_choice:
        case UnknownTool():
            tools = named(choice)  # or itself, for the engine inside
            return tools[0] if len(tools) == 1 else AllowedTools("required", tuple(tools))
        case AllowedTools(tools=entries):
            every: list[NamedTool | UnknownTool] = []
            for entry in entries:
                every += named(entry) if isinstance(entry, UnknownTool) else [entry]
            return replace(choice, tools=tuple(every))


def _shown_name(tool: Tool) -> JSON:
    """The name that clients see of a tool, where models need another."""
    if tool.display is None:
        return None
    return tool.display.opened(FunctionCall("", tool.spec.name, "")).get("name")


def _kind(spec: Any) -> Any:
    return "custom" if isinstance(spec, CustomTool) else "function"


# ---- the conversation, as the model sees it --------------------------------------------------


def for_model(
    items: Sequence[Item], runner: Runner | None = None
) -> tuple[tuple[Item, ...] | None, dict[str, Decision]]:
    """The conversation with calls and outputs in place of the items of hosted tools, and what the
    user has decided about calls that wait, by their ids. None where it has no such items."""
    answers: dict[str, Unknown] = {}
    done: set[str] = set()  # calls that were run after they were allowed
    ours = False
    for item in items:
        if isinstance(item, Unknown):
            ours = ours or item.kind in _OURS or RECORD in (item.extra or ())
            if item.kind == ANSWER:
                answers[_text(item.value.get("approval_request_id"))] = item
            elif item.kind != APPROVAL:
                done.add(_text(item.value.get("approval_request_id")))
    if not ours:
        return None, {}
    decided = isinstance(items[-1], Unknown) and items[-1].kind == ANSWER
    items = [item for item in items if not (isinstance(item, Unknown) and _is_silent(item))]
    decisions: dict[str, Decision] = {}
    found: list[Item] = []
    denied: list[Item] = []  # the results of calls beside which others are allowed now
    late: list[Item] = []  # calls that are allowed now, since when others have spoken
    begin = len(items)  # of the last round, behind which only its results may be
    while begin and isinstance(items[begin - 1], CallOutput):
        begin -= 1
    while begin and (isinstance(last := items[begin - 1], Call) or _asks(last, done)):
        begin -= 1
    number, at, waits = -1, 0, False  # where that begins for the model, and if calls are to be run
    for group in _rounds(items):
        outputs: list[Item] = []
        for item in group:
            number += 1
            call = _record(item) if isinstance(item, Unknown) else None
            if number == begin:
                at = len(found) - len([*takewhile(_is_reasoning, reversed(found))])
            if not isinstance(item, Unknown) or call is None:
                found.append(item)
            elif item.kind != APPROVAL:
                found.append(_call(call))
                cut = item.value.get("status") in ("in_progress", "incomplete")
                given = INTERRUPTED if cut else call.output or ""
                outputs.append(FunctionCallOutput(call.call_id, given))
            elif _asks(item, done):
                made = replace(
                    _call(call), extra={RECORD: {"approval_request_id": item.id or call.call_id}}
                )
                answer = answers.get(item.id or "")
                reason = answer.value.get("reason") if answer is not None else None
                allowed = answer is not None and answer.value.get("approve") is True
                gone = allowed if runner is None else runner.find(made) is None
                if allowed and not gone:
                    decisions[call.call_id] = True
                    if number >= begin:
                        found.append(made)
                        waits = True
                        continue
                    thoughts = [*takewhile(_is_reasoning, reversed(found))][::-1]
                    late += [*thoughts, made]
                    del found[len(found) - len(thoughts) :]
                else:
                    found.append(made)
                    words = f"{NOT_ALLOWED} {reason}" if reason else NOT_ALLOWED
                    result = FunctionCallOutput(call.call_id, GONE if gone else words)
                    (denied if number >= begin else outputs).append(result)
        found += outputs
    if waits:  # calls that are to be run stand together, with their results behind the last
        found[at:at], late = late, []
    seen = with_answers([*found, *denied, *late])
    end = seen[-1] if seen else Message("assistant")
    if decided and isinstance(end, Message) and end.role == "assistant":
        seen.append(Message("user", SILENCE))  # nothing was left to decide
    return tuple(seen), decisions


def _asks(item: Item, done: set[str]) -> bool:
    """Whether an item asks the user about a call that was not run since."""
    return isinstance(item, Unknown) and item.kind == APPROVAL and (item.id or "") not in done


def _is_reasoning(item: Item) -> bool:
    return isinstance(item, Reasoning)


def _is_silent(item: Unknown) -> bool:
    """Whether an item adds nothing for the model: in Messages a call has two blocks, and the second
    has everything."""
    if item.kind in (ANSWER, "mcp_list_tools"):
        return True
    return RECORD in (item.extra or ()) and recorded(item) is None


_OURS = frozenset((*PREFIXES, APPROVAL, ANSWER))


def _rounds(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The items, with those calls together that one answer of the model has made. Records name
    their round, but where the client stores the conversation itself there are none: right behind a
    client's call are those beside it, as the model goes on when the client has its result."""
    group: list[Item] = []
    round = ""
    for item in items:
        call = _record(item) if isinstance(item, Unknown) else None
        own = call.round if call is not None else ""
        beside = bool(group) and (isinstance(group[0], Call) or bool(own and own == round))
        if group and not (call is not None and beside):
            yield group
            group = []
        group.append(item)
        round = own
    if group:
        yield group


def _call(call: Recorded) -> FunctionCall:
    return FunctionCall(call.call_id, call.name, call.arguments, call.namespace)


def _record(item: Unknown) -> Recorded | None:
    """The call behind an item, from its record, or else from the item's own fields: all there is
    where the client stores the conversation itself."""
    if (record := recorded(item)) is not None:
        return record
    call_id = item.id or ""
    match item.kind, item.value:
        case "code_interpreter_call", {"code": str(code), **rest}:
            logs = [each["logs"] for each in objects(rest.get("outputs")) if "logs" in each]
            return _python(call_id, code, "\n".join(map(_text, logs)))
        case (
            "mcp_call" | "mcp_approval_request",
            {"name": str(name), "arguments": str(arguments), "server_label": str(label), **rest},
        ):
            output = rest.get("output") or rest.get("error") or ""
            return Recorded(call_id, name, arguments, _text(output), label)
        case "file_search_call", {"queries": [*queries], **rest}:
            results = objects(rest.get("results"))
            shown = [(_text(each.get("filename")), _text(each.get("text"))) for each in results]
            given = json.text({"queries": queries})
            return Recorded(call_id, "file_search", given, "\n\n".join(map(": ".join, shown)))
        case _:
            return None


def _text(value: JSON) -> str:
    """A field that is a text; what a client has put in its place as JSON, which takes less time
    than its repr."""
    return value if isinstance(value, str) else json.text(value)


def _python(call_id: str, code: str, output: str) -> Recorded:
    return Recorded(call_id, "python", json.text({"code": code}), output)


# ---- citations -------------------------------------------------------------------------------


class Citing(Wrapper):
    """Middleware that replaces citation marks in the text of answers by annotations."""

    def __init__(self, engine: Engine, cited: Sequence[Cited]) -> None:
        super().__init__(engine)
        self._cited = cited

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """The answer, with its texts rewritten."""
        parts: dict[tuple[int, int], _Part] = {}
        async with aclosing(self.engine.stream(request, caller)) as events:
            async for event in events:
                match event:
                    case Delta(kind="text", index=index, part_index=number):
                        if (part := parts.get((index, number))) is None:
                            part = parts[index, number] = _Part(Citations(self._cited))
                        for each in part.feed(event):
                            yield each
                    case PartDone(part=Text() as text, index=index, part_index=number):
                        if (part := parts.get((index, number))) is None:
                            yield event
                            continue
                        for each in part.end(index, number):
                            yield each
                        yield replace(event, part=part.made(text))
                    case ItemDone(item=Message(content=tuple(content)) as message, index=index):
                        made = tuple(
                            part.made(each)
                            if isinstance(each, Text) and (part := parts.get((index, number)))
                            else each
                            for number, each in enumerate(content)
                        )
                        yield replace(event, item=replace(message, content=made))
                    case _:
                        yield event


class _Part:
    """Rewrites one text part as it is streamed."""

    def __init__(self, citations: Citations) -> None:
        self._citations = citations
        self._text: list[str] = []
        self._notes: list[Annotation] = []
        self._changed = False

    def feed(self, delta: Delta) -> Iterator[Delta]:
        """The deltas that another piece completes."""
        pieces = self._citations.feed(delta.data)
        if pieces == [delta.data]:
            self._text.append(delta.data)
            yield delta
            return
        self._changed = True
        yield from self._give(pieces, delta.index, delta.part_index)

    def end(self, index: int, number: int) -> Iterator[Delta]:
        """The rest."""
        yield from self._give(self._citations.end(), index, number)

    def _give(self, pieces: Sequence[str | Annotation], index: int, number: int) -> Iterator[Delta]:
        for piece in pieces:
            if isinstance(piece, str):
                self._text.append(piece)
                yield Delta(index, number, "text", piece)
            else:
                self._notes.append(piece)
                yield Delta(index, number, "annotation", piece)

    def made(self, text: Text) -> Text:
        """The whole part. Probabilities of tokens are left out where the text has changed."""
        whole, tokens = "".join(self._text), () if self._changed else text.tokens
        return replace(
            text, text=whole, annotations=(*text.annotations, *self._notes), tokens=tokens
        )
