"""Rewrites a request for an upstream that lacks some of it, and restores the answer's events."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import compress, repeat
from operator import attrgetter
from typing import Literal, TypeGuard

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from .error import Fault, FaultError, quoted, unsupported, with_param
from .event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from .item import (
    Audio,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Part,
    Reasoning,
    Role,
    Summary,
    Text,
    Thought,
)
from .loss import Loss, LossList
from .request import (
    AllowedTools,
    CustomTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
    Tool,
    ToolChoice,
    UnknownTool,
)
from .tools import Toolbox, ToolFilter

Restore = Callable[[list[Event]], list[Event]]
"""Maps a batch of the upstream's events to the client's. It has state: one per answer."""

Modality = type[Image] | type[Audio] | type[File]
_MODALITIES: tuple[Modality, ...] = (Image, Audio, File)


class UpstreamLimits(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an upstream supports. By default everything."""

    custom_tools: bool = True
    namespaces: bool = True
    hosted_tools: bool = True
    """Whether tools of other kinds are supported; else they are dropped, as nothing runs them."""
    allowed_tools: bool = True
    named_tool: bool = True
    """Whether a certain tool can be forced; else it alone is offered, and a call is required."""
    idle_tools: bool = True
    """Whether tools may be offered and their calls forbidden; else none are offered."""
    format_beside_forced_tool: bool = True
    """Whether an output format may be asked for where a tool must be called."""
    json_schema: bool = True
    """Whether the output format may be a schema; else any JSON object is asked for."""
    any_arguments: bool = True
    """Whether the arguments of past calls may be anything; else they are made a JSON object: some
    servers refuse a conversation with others, whatever is asked next."""
    developer_role: Literal["developer", "system"] = "developer"
    system_messages: Literal["anywhere", "front", "own"] = "anywhere"
    """`front`: one system message, before all others; `own`: but for clients of its protocol, who
    know which models take others, and where."""
    images: bool | None = None
    audio: bool | None = None
    files: bool | None = None
    """Of these three, None is unknown: they are sent, and the upstream decides."""


UNLIMITED = UpstreamLimits()


class Lowered(Struct, frozen=True):
    """The rewritten request, its losses, and how to restore the answer's events.

    `restore` is None where events need no change. `tool_positions` has the position of each tool
    in the client's list; None: unchanged. `grammar_described` is whether the grammar of a tool is
    only described to the model.
    """

    request: Request
    losses: tuple[Loss, ...] = ()
    restore: Restore | None = None
    tool_positions: tuple[int, ...] | None = None
    grammar_described: bool = False

    def client_losses(self, losses: tuple[Loss, ...]) -> tuple[Loss, ...]:
        """Losses of the lowered request, with the client's positions of tools."""
        if self.tool_positions is None:
            return losses
        return tuple(replace(loss, field=self._client_path(loss.field)) for loss in losses)

    def client_fault(self, fault: Fault) -> Fault:
        """A fault of the lowered request, with the client's position of the tool it is about."""
        return fault if fault.param is None else with_param(fault, self._client_path(fault.param))

    def _client_path(self, field: str) -> str:
        positions = self.tool_positions
        if positions is None or (tool := _TOOL_PATH.match(field)) is None:
            return field
        return f"tools[{positions[int(tool[1])]}]{field[tool.end() :]}"


_TOOL_PATH = re.compile(r"^tools\[(\d+)\]")
_role, _space = attrgetter("role"), attrgetter("namespace")


def lower(request: Request, limits: UpstreamLimits) -> Lowered:
    """Rewrite a request. A request within the limits stays the very same value.

    Raises FaultError where a hosted tool must be called and cannot be.

    >>> request = Request(model="m", items=(Message("developer", "Be brief."),))
    >>> lower(request, UNLIMITED).request is request
    True
    >>> lower(request, UpstreamLimits(developer_role="system")).request.items[0].role
    'system'
    """
    refused = (limits.images is False, limits.audio is False, limits.files is False)
    modalities = tuple(compress(_MODALITIES, refused))
    front, renamed = limits.system_messages == "front", limits.developer_role == "system"
    own_tools = limits.custom_tools and limits.namespaces
    items, choice = request.items, request.tool_choice
    kinds, tools = set(map(type, items)), set(map(type, request.tools))
    messages = compress(items, map(isinstance, items, repeat(Message)))
    roles = list(map(_role, messages)) if front or renamed else []
    calls = compress(items, map(isinstance, items, repeat(FunctionCall)))
    first = not request.instructions and next(map(type, items), None) is Message
    odd = not limits.any_arguments and FunctionCall in kinds and next(_odd_calls(items), -1) >= 0
    # Nearly all requests are within the limits. This says so at any size without another call;
    # where it does not, the rewriting looks closer. Calls of tools that are not allowed are
    # filtered even where the upstream knows that choice.
    if not isinstance(choice, AllowedTools) and (
        limits == UNLIMITED
        or not (
            odd
            or "developer" in roles
            or (front and "system" in roles[first:])
            or (UnknownTool in tools and not limits.hosted_tools)
            or (CustomTool in tools and not limits.custom_tools)
            or (Namespace in tools and not (own_tools and limits.hosted_tools))
            or (choice == "none" and tools and not limits.idle_tools)
            or (isinstance(choice, UnknownTool) and not limits.hosted_tools)
            or (
                isinstance(choice, NamedTool)
                and not (limits.named_tool and (own_tools or choice == NamedTool(choice.name)))
            )
            or (
                request.format is not None
                and not (
                    limits.json_schema and (choice is None or limits.format_beside_forced_tool)
                )
            )
            or not (own_tools or kinds.isdisjoint((CustomToolCall, CustomToolCallOutput)))
            or not (own_tools or FunctionCall not in kinds or not any(map(_space, calls)))
        )
    ):
        for item in items if modalities else ():
            parts = getattr(item, "content", None) or getattr(item, "output", None)
            if isinstance(parts, tuple) and not set(modalities).isdisjoint(map(type, parts)):
                break
        else:
            return Lowered(request)
    losses = LossList()
    asked = replace(request, items=_with_objects(items, losses)) if odd else request
    lowered, restore, positions, described = _lower_tools(asked, limits, losses)
    lowered = _lower_format(lowered, limits, losses)
    if modalities:
        items = replace_modalities(lowered.items, modalities, losses)
        lowered = replace(lowered, items=items)
    lowered = lower_system(lowered, losses, role=limits.developer_role, front=front)
    lowered = request if lowered == request else lowered
    return Lowered(lowered, losses.losses(), restore, positions, described)


# ---- tools -----------------------------------------------------------------------------------


_Numbered = list[tuple[int, Tool]]
_HOSTED = "a hosted tool, which cannot be run here"


def _lower_tools(
    request: Request, limits: UpstreamLimits, losses: LossList
) -> tuple[Request, Restore | None, tuple[int, ...], bool]:
    """Tools, the choice among them and past calls; the other three fields of `Lowered`."""
    tools, choice = list(enumerate(request.tools)), request.tool_choice
    if not limits.hosted_tools:
        tools, choice = _without_hosted(tools, choice, losses)
    restore: Restore | None = None
    if isinstance(choice, NamedTool) and not limits.named_tool:
        choice = AllowedTools("required", (choice,))
    elif choice == "none" and tools and not limits.idle_tools:
        tools, choice = [], None
        losses.note("tool_choice", "emulated", "no tools are offered, so that none is called")
    if isinstance(choice, AllowedTools):
        allowed = ToolFilter(choice, request.tools)
        restore = CallFilter(allowed.names).feed
        if limits.allowed_tools:
            choice = replace(choice, tools=allowed.expanded)
        else:
            tools, choice = allowed.tools, choice.mode if allowed.tools else None
            losses.note("tool_choice", "emulated", "only the allowed tools are offered")
    box = Toolbox(tools, custom=limits.custom_tools, namespaces=limits.namespaces, losses=losses)
    items = list(request.items)
    for index, item in enumerate(items):
        match item:
            case FunctionCall(namespace=str()) | CustomToolCall():
                items[index] = call = box.lower(item)
                if call != item:
                    why = "a past call has the name and kind its tool has"
                    losses.note("items[*]", "emulated", why, (index,))
            case CustomToolCallOutput():
                items[index] = box.lower_output(item)
    match choice:
        case NamedTool():
            choice = box.choose(choice)
        case AllowedTools():
            named = (box.choose(t) if isinstance(t, NamedTool) else t for t in choice.tools)
            choice = replace(choice, tools=tuple(named))
    if box.renames:
        rename = CallRenamer(box).feed
        restore = rename if restore is None else chained(rename, restore)
    lowered = replace(request, tools=box.tools, items=tuple(items), tool_choice=choice)
    return lowered, restore, box.positions, box.grammar_described


def _without_hosted(
    tools: _Numbered, choice: ToolChoice | None, losses: LossList
) -> tuple[_Numbered, ToolChoice | None]:
    """The tools and the choice without tools that a provider would have to run."""
    left: _Numbered = []
    for number, tool in tools:
        match tool:
            case UnknownTool():
                losses.note("tools[*]", "dropped", _HOSTED, (number,))
            case Namespace(tools=members):
                for place, member in enumerate(members):
                    if isinstance(member, UnknownTool):
                        losses.note("tools[*].tools[*]", "dropped", _HOSTED, (number, place))
                able = tuple(each for each in members if not isinstance(each, UnknownTool))
                if able or not members:
                    left.append((number, tool if able == members else replace(tool, tools=able)))
            case _:
                left.append((number, tool))
    forced = unsupported(f"demands {_HOSTED}", "tool_choice")
    match choice:
        case UnknownTool():
            raise FaultError(forced)
        case "required" if tools and not left:
            raise FaultError(forced)
        case AllowedTools(mode=mode, tools=entries):
            # An entry of an unknown kind may also name a whole namespace.
            own = tuple(
                entry
                for entry in entries
                if not isinstance(entry, UnknownTool) or entry.kind == "namespace"
            )
            if own == entries:
                return left, choice
            if own:
                losses.note("tool_choice", "dropped", _HOSTED)
                return left, replace(choice, tools=own)
            if mode == "required":
                raise FaultError(forced)
            losses.note("tool_choice", "dropped", f"{_HOSTED}; no tools are offered")
            return [], None
        case _:
            return left, choice


# ---- arguments of past calls -----------------------------------------------------------------

_object = msgspec.json.Decoder(dict[str, Raw]).decode
_HUGE = re.compile(r"[:,[]\s*-?[0-9]{309}")
"""A whole number that no double holds, at which llama.cpp fails."""
_WORK = 10**9
"""Names times characters of all arguments: llama.cpp compares each name with all before it."""


def _odd_calls(items: Iterable[Item]) -> Iterator[int]:
    """The places of calls whose arguments are no JSON objects, or would be read for long."""
    work = 0
    for index, item in enumerate(items):
        if isinstance(item, FunctionCall):
            work += item.arguments.count(":") * len(item.arguments)
            with suppress(msgspec.DecodeError, ValueError, RecursionError):
                _object(item.arguments)
                if work <= _WORK and not _HUGE.search(item.arguments):
                    continue
            yield index


PIECE = 64 * 1024
"""Characters of arguments that are escaped in one call: no other thread runs during it."""


def _object_of(text: str) -> str:
    """A JSON object with a text, or an empty one."""
    if not text:
        return "{}"
    escaped = (json.dumps(text[at : at + PIECE])[1:-1] for at in range(0, len(text), PIECE))
    return "".join(['{"input": "', *escaped, '"}'])


def _with_objects(items: Iterable[Item], losses: LossList) -> tuple[Item, ...]:
    """The items, with arguments that are JSON objects: others, as of a call that was cut, or such
    as are read for long, are put into one as a text."""
    found, odd = list[Item](), {*_odd_calls(items)}
    for index, item in enumerate(items):
        if isinstance(item, FunctionCall) and index in odd:
            item = replace(item, arguments=_object_of(item.arguments.strip()))
            why = "this server wants a JSON object, and they are given as a text in one"
            losses.note("items[*].arguments", "emulated", why, (index,))
        found.append(item)
    return tuple(found)


# ---- format ----------------------------------------------------------------------------------


def _lower_format(request: Request, limits: UpstreamLimits, losses: LossList) -> Request:
    format = request.format
    if not isinstance(format, JSONObject | JSONSchema):
        return request
    match request.tool_choice:
        case None | "auto" | "none" | AllowedTools(mode="auto"):
            forced = False
        case _:
            forced = True
    if forced and not limits.format_beside_forced_tool:
        losses.note("format", "dropped", "a tool must be called, so there is no text to format")
        return replace(request, format=None)
    if isinstance(format, JSONObject) or limits.json_schema:
        return request
    losses.note("format", "emulated", "the schema is described to the model, and not enforced")
    about = f" ({format.description})" if format.description else ""
    schema = msgspec.json.encode(format.schema or {}).decode()
    wanted = f"Answer with one JSON object, {format.name}{about}, that fits this schema:\n{schema}"
    given = request.instructions
    if isinstance(given, tuple):
        instructions: str | tuple[Item, ...] = (*given, Message("system", wanted))
    else:
        instructions = f"{given}\n\n{wanted}" if given else wanted
    return replace(request, format=JSONObject(), instructions=instructions)


# ---- content and system messages -------------------------------------------------------------


def replace_modalities(
    items: tuple[Item, ...], modalities: tuple[Modality, ...], losses: LossList
) -> tuple[Item, ...]:
    """The items with text for all parts of these kinds; the same tuple where there are none.

    >>> seen = (Message("user", (Text("What is this?"), Image("https://example.com/cat.png"))),)
    >>> replace_modalities(seen, (Image,), LossList())[0].text
    'What is this?[image: this model cannot see it]'
    """
    changed: dict[int, Item] = {}
    for index, item in enumerate(items):
        match item:
            case Message(content=tuple(parts)):
                where, name = "items[*].content[*]", "content"
            case (
                FunctionCallOutput(output=tuple(parts)) | CustomToolCallOutput(output=tuple(parts))
            ):
                where, name = "items[*].output[*]", "output"
            case _:
                continue
        if any(isinstance(part, modalities) for part in parts):
            texts = list(parts)
            for number, part in enumerate(parts):
                if isinstance(part, modalities):
                    text, action, why = _placeholder(part)
                    texts[number] = Text(text)
                    losses.note(where, action, why, (index, number))
            changed[index] = replace(item, **{name: tuple(texts)})
    if not changed:
        return items
    return tuple(changed.get(index, item) for index, item in enumerate(items))


def _placeholder(part: Part) -> tuple[str, Literal["emulated", "dropped"], str]:
    """The text sent for a part the model cannot take, and the loss that is reported."""
    match part:
        case Audio(transcript=str(transcript)):
            return transcript, "emulated", "this model cannot hear; the transcript is sent"
        case Image():
            kind, verb, cannot = "image", "see", "see"
        case Audio():
            kind, verb, cannot = "audio", "hear", "hear"
        case _:
            kind, verb, cannot = "file", "read", "read files"
    why = f"this model cannot {cannot}; a placeholder is sent"
    return f"[{kind}: this model cannot {verb} it]", "dropped", why


def lower_system(
    request: Request, losses: LossList, *, role: Literal["developer", "system"], front: bool
) -> Request:
    """`role` is what developer messages are sent as; `front` asks for one message, before all.

    >>> late = (Message("user", "hi"), Message("developer", "Be brief."))
    >>> request = Request(model="m", instructions="Be kind.", items=late)
    >>> lower_system(request, LossList(), role="system", front=True).items[0].text
    'Be kind.\\n\\nBe brief.'
    """
    found = {index: item for index, item in enumerate(request.items) if _is_system(item)}
    if front and found and (request.instructions or list(found) != [0]):
        losses.note("items", "emulated", "all system messages are sent as one, before the others")
        return _system_in_front(request, losses, role)
    items = list(request.items)
    for index, item in found.items():
        if item.role != role == "system":
            items[index] = replace(item, role=role)
            why = "developer messages are sent as system"
            losses.note("items[*].role", "emulated", why, (index,))
    return request if items == list(request.items) else replace(request, items=tuple(items))


def _system_in_front(
    request: Request, losses: LossList, role: Literal["developer", "system"]
) -> Request:
    lead = request.instructions or ()
    if isinstance(lead, str):
        lead = (Message("system", lead),)
    items = (*lead, *request.items)
    system = [item for item in items if _is_system(item)]
    if len(system) > 1 and any(item != Message(item.role, item.content) for item in system):
        why = "fields of system messages beside their text are dropped where they are joined"
        losses.note("items", "dropped", why)
    if any(item.role == "system" for item in system):
        role = "system"
    first = replace(system[0], role=role) if len(system) == 1 else joined(system, role)
    rest = (item for item in items if not _is_system(item))
    return replace(request, instructions=None, items=(first, *rest))


def joined(messages: list[Message], role: Role) -> Message:
    """One message of several; its content is a string unless there is more than plain text."""
    parts: list[Part] = []
    for message in messages:
        if message.content:
            parts += [Text("\n\n"), *message.parts] if parts else message.parts
    if all(isinstance(part, Text) and part == Text(part.text) for part in parts):
        texts = (message.text for message in messages)
        return Message(role, "\n\n".join(text for text in texts if text))
    return Message(role, tuple(parts))


def _is_system(item: Item) -> TypeGuard[Message]:
    return isinstance(item, Message) and item.role in ("system", "developer")


# ---- the answer's events ---------------------------------------------------------------------


def chained(first: Restore, second: Restore) -> Restore:
    """Both, one after the other."""
    return lambda events: second(first(events))


class CallRenamer:
    """Restores the client's names and kinds of tool calls.

    The input of a custom tool that was offered as a function is known when its arguments are
    complete, so it comes as one delta then.
    """

    __slots__ = ("_box", "_waiting")

    def __init__(self, box: Toolbox) -> None:
        self._box = box
        self._waiting: dict[int, tuple[FunctionCall, list[str]]] = {}

    def feed(self, events: list[Event]) -> list[Event]:
        """The client's events for a batch of the upstream's."""
        waiting = self._waiting
        restored: list[Event] = []
        for event in events:
            match event:
                case Delta(index=index):
                    if index in waiting:
                        waiting[index][1].append(event.data)
                    else:
                        restored.append(event)
                case ItemAdded(index=index, item=FunctionCall() | CustomToolCall() as call):
                    own = self._box.restore(call)
                    if isinstance(call, FunctionCall) and isinstance(own, CustomToolCall):
                        waiting[index] = call, []
                    restored.append(replace(event, item=own))
                case ItemDone(index=index, item=FunctionCall() | CustomToolCall() as call):
                    own = self._box.restore(call)
                    if waiting.pop(index, None) is not None:
                        restored += _input(index, own)
                    restored.append(replace(event, item=own))
                case Failed():  # inputs that will not be finished, as far as they came
                    for index, (call, pieces) in waiting.items():
                        cut = replace(call, arguments="".join(pieces))
                        restored += _input(index, self._box.restore(cut))
                    waiting.clear()
                    restored.append(event)
                case _:
                    restored.append(event)
        return restored


def _input(index: int, call: FunctionCall | CustomToolCall) -> list[Event]:
    return [Delta(index, 0, "input", call.text)] if call.text else []


class CallFilter:
    """Drops calls of tools that were not allowed, and reports them at the end.

    `allowed` holds pairs of a namespace (or None) and a name. Indices stay dense; a choice whose
    calls were all dropped did not end with calls, and one with nothing left is an empty message.
    """

    __slots__ = ("_allowed", "_calls", "_dropped", "_id", "_indices", "_items", "_losses", "_names")

    def __init__(self, allowed: frozenset[tuple[str | None, str]]) -> None:
        self._allowed = allowed
        self._names = {name for _, name in allowed}
        self._losses = LossList()
        self._dropped: dict[int, None] = {}  # the choices of which a call was dropped
        self._calls: set[int] = set()  # those that have a call left
        self._items: list[int] = []  # the choice of each item left
        self._indices: list[int | None] = []  # by the upstream's index: ours, or None if dropped
        self._id = ""

    def feed(self, events: list[Event]) -> list[Event]:
        """The client's events for a batch of the upstream's."""
        passed: list[Event] = []
        for event in events:
            match event:
                case (
                    Delta(index=index)
                    | PartAdded(index=index)
                    | PartDone(index=index)
                    | ItemDone(index=index)
                    | Progress(index=int(index))
                ):
                    ours = self._indices[index]
                    if ours is None:
                        continue
                    event = event if ours == index else replace(event, index=ours)
                case ItemAdded(choice=choice, item=FunctionCall() | CustomToolCall() as call) if (
                    # An upstream may leave the namespace out.
                    not (call.namespace is None and call.name in self._names)
                    and (call.namespace, call.name) not in self._allowed
                ):
                    self._dropped[choice] = None
                    self._indices.append(None)
                    why = f"a call of {quoted(call.name)}, which is not allowed, was dropped"
                    self._losses.note("tool_choice", "dropped", why)
                    continue
                case ItemAdded(index=index, choice=choice, item=item):
                    if isinstance(item, FunctionCall | CustomToolCall):
                        self._calls.add(choice)
                    ours = len(self._items)
                    self._items.append(choice)
                    self._indices.append(ours)
                    event = event if ours == index else replace(event, index=ours)
                case Finished() if self._dropped:
                    passed += self._finish(event)
                    continue
                case Started():
                    self._id = event.id
            passed.append(event)
        return passed

    def _finish(self, event: Finished) -> list[Event]:
        reasons = list(event.reasons)
        passed: list[Event] = []
        for choice in self._dropped:
            if choice < len(reasons) and reasons[choice] == "tool_calls":
                reasons[choice] = "tool_calls" if choice in self._calls else "stop"
            if choice not in self._items:
                # The id counts on from those of all items so far, so that no other has it.
                index, id = len(self._items), f"msg_{self._id}_{len(self._indices)}"
                message = Message("assistant", (Text(""),), id, "completed")
                empty = replace(message, content=(), status="in_progress")
                passed += (
                    ItemAdded(index, empty, choice),
                    PartAdded(index, 0, Text("")),
                    PartDone(index, 0, Text("")),
                    ItemDone(index, message),
                )
                self._items.append(choice)
                self._indices.append(index)
        losses = (*event.losses, *self._losses.losses())
        return [*passed, replace(event, reasons=tuple(reasons), losses=losses)]


def with_summary(request: Request, restore: Restore | None = None) -> Restore | None:
    """The same, with open reasoning as the summary too where the request asks for one."""
    if request.reasoning is None or request.reasoning.summary is None:
        return restore
    summarise = SummaryEmitter().feed
    return summarise if restore is None else chained(restore, summarise)


class SummaryEmitter:
    """Emits open reasoning as the summary that was asked for, as Ollama and LM Studio do.

    The summary comes as the model thinks; the reasoning itself follows whole, as summary parts come
    before content parts in a Responses stream. An item that begins with a summary of the upstream's
    own passes unchanged.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, _SummarisedItem | None] = {}  # by index; None: it has its own

    def feed(self, events: list[Event]) -> list[Event]:
        """The client's events for a batch of the upstream's."""
        emitted: list[Event] = []
        for event in events:
            match event:
                case PartAdded(index, part=Thought()) if index not in self._items:
                    self._items[index] = _SummarisedItem()
                case PartAdded(index, part=Summary()) if index not in self._items:
                    self._items[index] = None
            match event:
                case PartAdded(index) | Delta(index) | PartDone(index) | ItemDone(index) if (
                    item := self._items.get(index)
                ):
                    emitted += item.feed(event)
                case _:
                    emitted.append(event)
        return emitted


class _SummarisedItem:
    """A reasoning item with an emulated summary."""

    __slots__ = ("_content", "_numbers", "_summary")

    def __init__(self) -> None:
        self._numbers: dict[tuple[bool, int], int] = {}  # by (is a summary, part): summary index
        self._summary: dict[int, Summary] = {}
        self._content: list[Event] = []  # which waits for the end of the item

    def feed(self, event: PartAdded | Delta | PartDone | ItemDone) -> list[Event]:
        """The client's events for one of the upstream's."""
        match event:
            case PartAdded(index, part_index, Thought() | Summary() as part):
                number = len(self._numbers)
                self._numbers[isinstance(part, Summary), part_index] = number
                return [PartAdded(index, number, Summary(""))]
            case Delta(index, part_index, "reasoning" | "summary" as kind, data):
                number = self._numbers[kind == "summary", part_index]
                return [Delta(index, number, "summary", data)] if data else []
            case PartDone(index, part_index, Thought() | Summary() as part):
                number = self._numbers[isinstance(part, Summary), part_index]
                if isinstance(part, Thought):
                    self._content += [
                        PartAdded(index, part_index, replace(part, text="", tokens=())),
                        Delta(index, part_index, "reasoning", part.text, part.tokens),
                        event,
                    ]
                    part = Summary(part.text)
                self._summary[number] = part
                return [PartDone(index, number, part)]
            case ItemDone(item=Reasoning() as item):
                summary = tuple(self._summary[number] for number in sorted(self._summary))
                return [*self._content, replace(event, item=replace(item, summary=summary))]
            case _:
                self._content.append(event)
                return []
