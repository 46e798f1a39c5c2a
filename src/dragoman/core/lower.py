"""Rewrites a request for an upstream that cannot take it as it is, and restores the answer's
events.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, TypeGuard

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .error import Fault, FaultError, unsupported, with_param
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

Modality = type[Image] | type[Audio] | type[File]


def replace_modalities(
    items: tuple[Item, ...], modalities: tuple[Modality, ...], losses: LossList
) -> tuple[Item, ...]:
    """The items with words for all parts of these kinds; the same tuple where there are none.

    >>> seen = (Message("user", (Text("What is this?"), Image("https://example.com/cat.png"))),)
    >>> replace_modalities(seen, (Image,), LossList())[0].text
    'What is this?[image: this model cannot see it]'
    """
    worded = tuple(_without(item, index, modalities, losses) for index, item in enumerate(items))
    return items if all(map(_same, items, worded)) else worded


def _same(old: object, new: object) -> bool:
    return old is new


def _without(item: Item, index: int, modalities: tuple[Modality, ...], losses: LossList) -> Item:
    match item:
        case Message(content=tuple(parts)) if _any(parts, modalities):
            where = "items[*].content[*]"
            return replace(item, content=_worded(parts, modalities, losses, where, index))
        case (
            FunctionCallOutput(output=tuple(parts)) | CustomToolCallOutput(output=tuple(parts))
        ) if _any(parts, modalities):
            where = "items[*].output[*]"
            return replace(item, output=_worded(parts, modalities, losses, where, index))
        case _:
            return item


def _any(parts: tuple[Part, ...], modalities: tuple[Modality, ...]) -> bool:
    return any(isinstance(part, modalities) for part in parts)


def _worded(
    parts: tuple[Part, ...],
    modalities: tuple[Modality, ...],
    losses: LossList,
    where: str,
    index: int,
) -> tuple[Part, ...]:
    words: list[Part] = []
    for number, part in enumerate(parts):
        if not isinstance(part, modalities):
            words.append(part)
            continue
        match part:
            case Audio(transcript=str(transcript)):
                words.append(Text(transcript))
                why = "this model cannot hear; the transcript is sent"
                losses.note(where, "emulated", why, (index, number))
                continue
            case Image():
                text, why = "[image: this model cannot see it]", "this model cannot see"
            case Audio():
                text, why = "[audio: this model cannot hear it]", "this model cannot hear"
            case _:
                text, why = "[file: this model cannot read it]", "this model cannot read files"
        words.append(Text(text))
        losses.note(where, "dropped", f"{why}; a placeholder is sent", (index, number))
    return tuple(words)


def lower_system(
    request: Request, losses: LossList, *, role: Literal["developer", "system"], front: bool
) -> Request:
    """`role` is what developer messages are sent as; `front` asks for one message, before all.

    >>> late = (Message("user", "hi"), Message("developer", "Be brief."))
    >>> request = Request(model="m", instructions="Be kind.", items=late)
    >>> lower_system(request, LossList(), role="system", front=True).items[0].text
    'Be kind.\\n\\nBe brief.'
    """
    spots = [index for index, item in enumerate(request.items) if _is_system(item)]
    if front and spots and (request.instructions or spots != [0]):
        losses.note("items", "emulated", "all system messages are sent as one, before the others")
        return _merged(request, losses, role)
    if role == "developer" or not any(_is_developer(request.items[spot]) for spot in spots):
        return request
    items = list(request.items)
    for spot in spots:
        if _is_developer(item := items[spot]):
            items[spot] = replace(item, role=role)
            losses.note(
                "items[*].role", "emulated", "developer messages are sent as system", (spot,)
            )
    return replace(request, items=tuple(items))


def _merged(request: Request, losses: LossList, role: Literal["developer", "system"]) -> Request:
    match request.instructions:
        case tuple(lead):
            pass
        case text:
            lead = (Message("system", text),) if text else ()
    items = (*lead, *request.items)
    system = [item for item in items if _is_system(item)]
    if len(system) > 1 and any(item != Message(item.role, item.content) for item in system):
        why = "what system messages say beside their text is left out where they are joined"
        losses.note("items", "dropped", why)
    if any(item.role == "system" for item in system):
        role = "system"
    first = replace(system[0], role=role) if len(system) == 1 else _joined(system, role)
    rest = (item for item in items if not _is_system(item))
    return replace(request, instructions=None, items=(first, *rest))


def _joined(messages: list[Message], role: Role) -> Message:
    """One message of several; a string, unless there is more in them than plain text."""
    spoken = [message.parts for message in messages if message.content]
    if all(
        isinstance(part, Text) and part == Text(part.text) for parts in spoken for part in parts
    ):
        texts = (message.text for message in messages)
        return Message(role, "\n\n".join(text for text in texts if text))
    content: list[Part] = []
    for parts in spoken:
        content += [Text("\n\n"), *parts] if content else parts
    return Message(role, tuple(content))


def _is_system(item: Item) -> TypeGuard[Message]:
    return isinstance(item, Message) and item.role in ("system", "developer")


def _is_developer(item: Item) -> TypeGuard[Message]:
    return isinstance(item, Message) and item.role == "developer"


Restore = Callable[[Event], list[Event]]
"""Takes an event of the upstream's answer and gives what the client sees of it."""


class CallRenamer:
    """Gives calls back the names and kinds their client knows.

    The input of a custom tool that was offered as a function is known when its arguments are
    whole, and comes in one piece then.
    """

    __slots__ = ("_box", "_waiting")

    def __init__(self, box: Toolbox) -> None:
        self._box = box
        self._waiting: dict[int, tuple[FunctionCall, list[str]]] = {}

    def feed(self, event: Event) -> list[Event]:
        """The events to pass on for this one."""
        match event:
            case Delta(index=index):
                if index not in self._waiting:
                    return [event]
                self._waiting[index][1].append(event.data)
                return []
            case ItemAdded(index=index, item=FunctionCall() | CustomToolCall() as call):
                own = self._box.restore(call)
                if isinstance(call, FunctionCall) and isinstance(own, CustomToolCall):
                    self._waiting[index] = call, []
                return [replace(event, item=own)]
            case ItemDone(index=index, item=FunctionCall() | CustomToolCall() as call):
                own = self._box.restore(call)
                whole = self._waiting.pop(index, None) is not None
                return [*(_input(index, own) if whole else ()), replace(event, item=own)]
            case Failed():
                return [*self._cut_short(), event]
            case _:
                return [event]

    def _cut_short(self) -> list[Event]:
        """What had come of inputs that will not be finished."""
        waiting, self._waiting = self._waiting, {}
        return [
            delta
            for index, (call, pieces) in waiting.items()
            for delta in _input(index, self._box.restore(replace(call, arguments="".join(pieces))))
        ]


def _input(index: int, call: FunctionCall | CustomToolCall) -> list[Event]:
    said = call.input if isinstance(call, CustomToolCall) else call.arguments
    return [Delta(index, 0, "input", said)] if said else []


class _Choice:
    """What one alternative of the answer kept, and whether a call of it was held back."""

    __slots__ = ("calls", "held_back", "items")

    def __init__(self) -> None:
        self.calls = 0
        self.items = 0
        self.held_back = False


class CallFilter:
    """Holds back the calls of tools that were not allowed, and tells so at the end.

    `allowed` holds pairs of a namespace (or None) and a name. Indices stay dense; a choice whose
    calls were all held back did not end with calls, and one with nothing left says nothing.
    """

    __slots__ = ("_allowed", "_choices", "_id", "_indices", "_ledger", "_names", "_next")

    def __init__(self, allowed: frozenset[tuple[str | None, str]]) -> None:
        self._allowed = allowed
        self._names = {name for _, name in allowed}
        self._ledger = LossList()
        self._choices: dict[int, _Choice] = {}
        self._indices: list[int | None] = []  # by the upstream's index: ours, or None if held back
        self._next = 0
        self._id = ""

    def feed(self, event: Event) -> list[Event]:
        """The events to pass on for this one."""
        match event:
            case Delta() | PartAdded() | PartDone() | ItemDone() | Progress(index=int()):
                return self._inside(event, event.index or 0)
            case ItemAdded():
                return self._added(event)
            case Finished():
                return self._finish(event)
            case Started():
                self._id = event.id
        return [event]

    def _inside(
        self, event: Delta | PartAdded | PartDone | ItemDone | Progress, index: int
    ) -> list[Event]:
        ours = self._indices[index]
        if ours == index:
            return [event]
        return [] if ours is None else [replace(event, index=ours)]

    def _added(self, event: ItemAdded) -> list[Event]:
        choice = self._choices.setdefault(event.choice, _Choice())
        called = isinstance(event.item, FunctionCall | CustomToolCall)
        if isinstance(event.item, FunctionCall | CustomToolCall) and not self._may(event.item):
            choice.held_back = True
            self._indices.append(None)
            why = f"a call of {event.item.name!r}, which is not allowed, was held back"
            self._ledger.note("tool_choice", "dropped", why)
            return []
        choice.items += 1
        choice.calls += called
        index, self._next = self._next, self._next + 1
        self._indices.append(index)
        return [event if index == event.index else replace(event, index=index)]

    def _may(self, call: FunctionCall | CustomToolCall) -> bool:
        if call.namespace is None and call.name in self._names:
            return True  # an upstream may leave the namespace out
        return (call.namespace, call.name) in self._allowed

    def _finish(self, event: Finished) -> list[Event]:
        losses = self._ledger.losses()
        if not losses:
            return [event]
        reasons = list(event.reasons)
        said: list[Event] = []
        for number, choice in self._choices.items():
            bereft = choice.held_back and not choice.calls
            if bereft and number < len(reasons) and reasons[number] == "tool_calls":
                reasons[number] = "stop"
            if not choice.items:
                said += self._silence(number)
        end = replace(event, reasons=tuple(reasons), losses=(*event.losses, *losses))
        return [*said, end]

    def _silence(self, choice: int) -> list[Event]:
        """A message that says nothing. Its id counts on from those of all items so far."""
        id = f"msg_{self._id}_{len(self._indices)}"
        self._indices.append(self._next)
        index, self._next = self._next, self._next + 1
        message = Message("assistant", (Text(""),), id, "completed")
        return [
            ItemAdded(index, replace(message, content=(), status="in_progress"), choice),
            PartAdded(index, 0, Text("")),
            PartDone(index, 0, Text("")),
            ItemDone(index, message),
        ]


class SummaryEmitter:
    """Gives open reasoning as the summary that was asked for, too.

    The summary comes as the model thinks; the reasoning itself follows whole, as summary parts come
    before content parts in a Responses stream. An item that begins with a summary of the upstream's
    own is left alone.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, _Summarised] = {}  # by index, once reasoning has begun in them

    def feed(self, event: Event) -> list[Event]:
        """The events to pass on for this one."""
        match event:
            case PartAdded(index=index, part=Thought()) if index not in self._items:
                self._items[index] = _Summarised()
            case PartAdded(index=index, part=Summary()) if index not in self._items:
                self._items[index] = _Summarised(native=True)
        match event:
            case PartAdded() | Delta() | PartDone() | ItemDone():
                item = self._items.get(event.index)
                return [event] if item is None or item.native else item.feed(event)
            case _:
                return [event]


class _Summarised:
    """A reasoning item with an emulated summary."""

    __slots__ = ("_content", "_numbers", "_summary", "native")

    def __init__(self, *, native: bool = False) -> None:
        self.native = native
        self._numbers: dict[tuple[bool, int], int] = {}  # by (is a summary, part): summary index
        self._summary: dict[int, Summary] = {}
        self._content: list[Event] = []  # which waits for the end of the item

    def feed(self, event: PartAdded | Delta | PartDone | ItemDone) -> list[Event]:
        """The events to pass on for one about the item."""
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


def with_summary(request: Request, undo: Restore | None = None) -> Restore | None:
    """The same, with a summary of open reasoning where the request asks for one."""
    if request.reasoning is None or request.reasoning.summary is None:
        return undo
    summarise = SummaryEmitter().feed
    return summarise if undo is None else chained(undo, summarise)


def restore_events(undo: Restore | None, batch: list[Event]) -> list[Event]:
    """A batch of events as the client sees it.

    >>> restore_events(None, []), restore_events(SummaryEmitter().feed, [])
    ([], [])
    """
    return batch if undo is None else [seen for event in batch for seen in undo(event)]


def chained(first: Restore, second: Restore) -> Restore:
    """Both, one after the other."""

    def undo(event: Event) -> list[Event]:
        return [last for between in first(event) for last in second(between)]

    return undo


class UpstreamLimits(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an upstream can take. The defaults are: everything, as it is."""

    custom_tools: bool = True
    namespaces: bool = True
    hosted_tools: bool = True
    """Whether tools of other kinds may be offered; else they are dropped: nobody would run them."""
    allowed_tools: bool = True
    named_tool: bool = True
    """Whether a certain tool can be forced; else it alone is offered, and a call is required."""
    idle_tools: bool = True
    """Whether tools may be offered and their calls forbidden; else none are offered."""
    format_beside_forced_tool: bool = True
    """Whether an output format may be asked for where a tool must be called."""
    json_schema: bool = True
    """Whether the output format may be a schema; else any JSON object is asked for."""
    developer_role: Literal["developer", "system"] = "developer"
    system_messages: Literal["anywhere", "front"] = "anywhere"
    """`front`: one system message, before all others."""
    images: bool | None = None
    audio: bool | None = None
    files: bool | None = None
    """Of these three, None is "not known": it is sent, and the upstream says."""


UNLIMITED = UpstreamLimits()


class Lowered(Struct, frozen=True):
    """A request as the upstream takes it, what that cost, and how to undo it on the answer.

    `restore` has a memory of one answer: use it for one. None: there is nothing to undo. `places`
    says where each tool stood in the client's list. None: where it stands now. `grammar_described`
    is whether the grammar of a tool is only described to the model.
    """

    request: Request
    losses: tuple[Loss, ...] = ()
    restore: Restore | None = None
    places: tuple[int, ...] | None = None
    grammar_described: bool = False

    def client_losses(self, losses: tuple[Loss, ...]) -> tuple[Loss, ...]:
        """Losses of the lowered request, with the tools where the client has them."""
        return tuple(replace(loss, field=self._place(loss.field)) for loss in losses)

    def client_fault(self, fault: Fault) -> Fault:
        """A fault of the lowered request, with the tool it is about where the client has it."""
        return fault if fault.param is None else with_param(fault, self._place(fault.param))

    def _place(self, field: str) -> str:
        places = self.places
        if places is None or (tool := _TOOL.match(field)) is None:
            return field
        return f"tools[{places[int(tool[1])]}]{field[tool.end() :]}"


_TOOL = re.compile(r"^tools\[(\d+)\]")


def lower(request: Request, limits: UpstreamLimits) -> Lowered:
    """Rewrite a request. What the limits allow stays the very same value.

    Raises FaultError where a hosted tool must be called and cannot be.

    >>> request = Request(model="m", items=(Message("developer", "Be brief."),))
    >>> lower(request, UNLIMITED).request is request
    True
    >>> lower(request, UpstreamLimits(developer_role="system")).request.items[0].role
    'system'
    """
    if limits == UNLIMITED and not isinstance(request.tool_choice, AllowedTools):
        return Lowered(request)
    if _is_plain(request):
        return Lowered(request)
    losses = LossList()
    lowered, undo, places, described = _lower_tools(request, limits, losses)
    lowered = _lower_format(lowered, limits, losses)
    modalities: tuple[tuple[Modality, bool | None], ...] = (
        (Image, limits.images),
        (Audio, limits.audio),
        (File, limits.files),
    )
    if missing := tuple(sense for sense, has in modalities if has is False):
        lowered = replace(lowered, items=replace_modalities(lowered.items, missing, losses))
    front = limits.system_messages == "front"
    lowered = lower_system(lowered, losses, role=limits.developer_role, front=front)
    lowered = request if lowered == request else lowered
    return Lowered(lowered, losses.losses(), undo, places, described)


def _is_plain(request: Request) -> bool:
    """Whether every upstream can take this: text, at most one system message, no tool or format."""
    if request.tools or request.tool_choice is not None or request.format is not None:
        return False
    for index, item in enumerate(request.items):
        if type(item) is not Message or type(item.content) is not str:
            return False
        leads = index == 0 and item.role == "system" and request.instructions is None
        if item.role not in ("user", "assistant") and not leads:
            return False
    return True


# ---- tools -----------------------------------------------------------------------------------


def _lower_tools(
    request: Request, limits: UpstreamLimits, losses: LossList
) -> tuple[Request, Restore | None, tuple[int, ...], bool]:
    """Tools, the choice among them and past calls; what to do with calls to come, where each tool
    that is left stood, and whether a grammar is only described."""
    tools, choice = list(enumerate(request.tools)), request.tool_choice
    if not limits.hosted_tools:
        tools, choice = _without_hosted(tools, choice, losses)
    undo: Restore | None = None
    if isinstance(choice, NamedTool) and not limits.named_tool:
        choice = AllowedTools("required", (choice,))
    elif choice == "none" and tools and not limits.idle_tools:
        tools, choice = [], None
        losses.note("tool_choice", "emulated", "no tools are offered, so that none is called")
    if isinstance(choice, AllowedTools):
        allowed = ToolFilter(choice, request.tools)
        undo = CallFilter(allowed.names).feed
        if limits.allowed_tools:
            choice = replace(choice, tools=allowed.expanded)
        else:
            tools, choice = allowed.tools, choice.mode if allowed.tools else None
            losses.note("tool_choice", "emulated", "only the allowed tools are offered")
    if limits.custom_tools and limits.namespaces:
        places = tuple(number for number, _ in tools)
        offered = tuple(tool for _, tool in tools)
        if type(choice) is type(request.tool_choice) and offered == request.tools:
            return request, undo, places, False
        return replace(request, tools=offered, tool_choice=choice), undo, places, False
    box = Toolbox(tools, custom=limits.custom_tools, namespaces=limits.namespaces, losses=losses)
    items, choice = _lower_calls(request.items, box, losses), _lower_choice(choice, box)
    if box.renames:
        rename = CallRenamer(box).feed
        undo = rename if undo is None else chained(rename, undo)
    lowered = replace(request, tools=box.tools, items=items, tool_choice=choice)
    return lowered, undo, box.places, box.described


_Numbered = list[tuple[int, Tool]]
_NOBODY = "a hosted tool, which nobody here can run"


def _without_hosted(
    tools: _Numbered, choice: ToolChoice | None, losses: LossList
) -> tuple[_Numbered, ToolChoice | None]:
    """The tools and the choice without those that somebody else would have to run."""
    kept: _Numbered = []
    for number, tool in tools:
        match tool:
            case UnknownTool():
                losses.note("tools[*]", "dropped", _NOBODY, (number,))
            case Namespace(tools=members):
                for place, member in enumerate(members):
                    if isinstance(member, UnknownTool):
                        losses.note("tools[*].tools[*]", "dropped", _NOBODY, (number, place))
                able = tuple(each for each in members if not isinstance(each, UnknownTool))
                if able or not members:
                    kept.append((number, tool if able == members else replace(tool, tools=able)))
            case _:
                kept.append((number, tool))
    forced = unsupported(f"demands {_NOBODY}", "tool_choice")
    match choice:
        case UnknownTool():
            raise FaultError(forced)
        case "required" if tools and not kept:
            raise FaultError(forced)
        case AllowedTools(mode=mode, tools=entries):
            own = tuple(each for each in entries if not _is_hosted(each))
            if own == entries:
                return kept, choice
            if own:
                losses.note("tool_choice", "dropped", _NOBODY)
                return kept, replace(choice, tools=own)
            if mode == "required":
                raise FaultError(forced)
            losses.note("tool_choice", "dropped", f"{_NOBODY}; no tools are offered")
            return [], None
        case _:
            return kept, choice


def _is_hosted(entry: NamedTool | UnknownTool) -> bool:
    """Whether an allowed tool is a hosted one; an entry may also name a whole namespace."""
    return isinstance(entry, UnknownTool) and entry.kind != "namespace"


def _lower_choice(choice: ToolChoice | None, box: Toolbox) -> ToolChoice | None:
    match choice:
        case NamedTool():
            return box.choose(choice)
        case AllowedTools():
            named = (box.choose(t) if isinstance(t, NamedTool) else t for t in choice.tools)
            return replace(choice, tools=tuple(named))
        case _:
            return choice


def _lower_calls(items: tuple[Item, ...], box: Toolbox, losses: LossList) -> tuple[Item, ...]:
    lowered = list(items)
    for index, item in enumerate(items):
        match item:
            case FunctionCall(namespace=str()) | CustomToolCall():
                lowered[index] = call = box.lower(item)
                if call != item:
                    why = "a past call has the name and kind its tool has"
                    losses.note("items[*]", "emulated", why, (index,))
            case CustomToolCallOutput():
                lowered[index] = box.lower_output(item)
    return tuple(lowered)


# ---- format ----------------------------------------------------------------------------------


def _lower_format(request: Request, limits: UpstreamLimits, losses: LossList) -> Request:
    format = request.format
    if not isinstance(format, JSONObject | JSONSchema):
        return request
    if _forced(request.tool_choice) and not limits.format_beside_forced_tool:
        losses.note("format", "dropped", "a tool must be called, so there is no text to format")
        return replace(request, format=None)
    if isinstance(format, JSONObject) or limits.json_schema:
        return request
    losses.note("format", "emulated", "the schema is described to the model, and not enforced")
    wanted = _wanted(format)
    match request.instructions:
        case tuple(items):
            return replace(
                request, format=JSONObject(), instructions=(*items, Message("system", wanted))
            )
        case text:
            instructions = f"{text}\n\n{wanted}" if text else wanted
            return replace(request, format=JSONObject(), instructions=instructions)


def _forced(choice: ToolChoice | None) -> bool:
    """Whether the model must call a tool."""
    match choice:
        case None | "auto" | "none" | AllowedTools(mode="auto"):
            return False
        case _:
            return True


def _wanted(format: JSONSchema) -> str:
    about = f" ({format.description})" if format.description else ""
    schema = msgspec.json.encode(format.schema or {}).decode()
    return f"Answer with one JSON object, {format.name}{about}, that fits this schema:\n{schema}"
