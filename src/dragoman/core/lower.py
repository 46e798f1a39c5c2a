"""Rewrites a request for an upstream that cannot take it as it is, and says how to undo that.

What an upstream can take is a value (`Limits`), never a name. Every rewriting is deterministic:
the same conversation gives the same request, so that what an upstream has cached stays valid.
No wire is known here; fields are named in the words of the core.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .allowed import Allowed
from .error import Fault, FaultError, about, unsupported
from .item import (
    Audio,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    Image,
    Item,
    Message,
)
from .ledger import Ledger
from .loss import Loss
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
from .senses import Sense, without
from .system import lower_system
from .toolbox import Toolbox
from .undo import Renamer, Suppressor, Undo, in_turn


class Limits(Struct, frozen=True, omit_defaults=True, kw_only=True):
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


NATIVE = Limits()


class Lowered(Struct, frozen=True):
    """A request as the upstream takes it, what that cost, and how to undo it on the answer.

    `events` has a memory of one answer: use it for one. None: there is nothing to undo. `places`
    says where each tool stood in the client's list. None: where it stands now. `described` is
    whether the grammar of a tool is only described to the model.
    """

    request: Request
    losses: tuple[Loss, ...] = ()
    events: Undo | None = None
    places: tuple[int, ...] | None = None
    described: bool = False

    def placed(self, losses: tuple[Loss, ...]) -> tuple[Loss, ...]:
        """Losses of the lowered request, with the tools where the client has them."""
        return tuple(replace(loss, field=self._place(loss.field)) for loss in losses)

    def blamed(self, fault: Fault) -> Fault:
        """A fault of the lowered request, with the tool it is about where the client has it."""
        return fault if fault.param is None else about(fault, self._place(fault.param))

    def _place(self, field: str) -> str:
        places = self.places
        if places is None or (tool := _TOOL.match(field)) is None:
            return field
        return f"tools[{places[int(tool[1])]}]{field[tool.end() :]}"


_TOOL = re.compile(r"^tools\[(\d+)\]")


def lower(request: Request, limits: Limits) -> Lowered:
    """Rewrite a request. What the limits allow stays the very same value.

    Raises FaultError where a hosted tool must be called and cannot be.

    >>> request = Request(model="m", items=(Message("developer", "Be brief."),))
    >>> lower(request, NATIVE).request is request
    True
    >>> lower(request, Limits(developer_role="system")).request.items[0].role
    'system'
    """
    if limits == NATIVE and not isinstance(request.tool_choice, AllowedTools):
        return Lowered(request)
    if _is_plain(request):
        return Lowered(request)
    ledger = Ledger()
    lowered, undo, places, described = _lower_tools(request, limits, ledger)
    lowered = _lower_format(lowered, limits, ledger)
    senses: tuple[tuple[Sense, bool | None], ...] = (
        (Image, limits.images),
        (Audio, limits.audio),
        (File, limits.files),
    )
    if missing := tuple(sense for sense, has in senses if has is False):
        lowered = replace(lowered, items=without(lowered.items, missing, ledger))
    front = limits.system_messages == "front"
    lowered = lower_system(lowered, ledger, role=limits.developer_role, front=front)
    lowered = request if lowered == request else lowered
    return Lowered(lowered, ledger.losses(), undo, places, described)


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
    request: Request, limits: Limits, ledger: Ledger
) -> tuple[Request, Undo | None, tuple[int, ...], bool]:
    """Tools, the choice among them and past calls; what to do with calls to come, where each tool
    that is left stood, and whether a grammar is only described."""
    tools, choice = list(enumerate(request.tools)), request.tool_choice
    if not limits.hosted_tools:
        tools, choice = _without_hosted(tools, choice, ledger)
    undo: Undo | None = None
    if isinstance(choice, NamedTool) and not limits.named_tool:
        choice = AllowedTools("required", (choice,))
    elif choice == "none" and tools and not limits.idle_tools:
        tools, choice = [], None
        ledger.note("tool_choice", "emulated", "no tools are offered, so that none is called")
    if isinstance(choice, AllowedTools):
        allowed = Allowed(choice, request.tools)
        undo = Suppressor(allowed.names).feed
        if limits.allowed_tools:
            choice = replace(choice, tools=allowed.expanded)
        else:
            tools, choice = allowed.tools, choice.mode if allowed.tools else None
            ledger.note("tool_choice", "emulated", "only the allowed tools are offered")
    if limits.custom_tools and limits.namespaces:
        places = tuple(number for number, _ in tools)
        offered = tuple(tool for _, tool in tools)
        if type(choice) is type(request.tool_choice) and offered == request.tools:
            return request, undo, places, False
        return replace(request, tools=offered, tool_choice=choice), undo, places, False
    box = Toolbox(tools, custom=limits.custom_tools, namespaces=limits.namespaces, ledger=ledger)
    items, choice = _lower_calls(request.items, box, ledger), _lower_choice(choice, box)
    if box.renames:
        rename = Renamer(box).feed
        undo = rename if undo is None else in_turn(rename, undo)
    lowered = replace(request, tools=box.tools, items=items, tool_choice=choice)
    return lowered, undo, box.places, box.described


_Numbered = list[tuple[int, Tool]]
_NOBODY = "a hosted tool, which nobody here can run"


def _without_hosted(
    tools: _Numbered, choice: ToolChoice | None, ledger: Ledger
) -> tuple[_Numbered, ToolChoice | None]:
    """The tools and the choice without those that somebody else would have to run."""
    kept: _Numbered = []
    for number, tool in tools:
        match tool:
            case UnknownTool():
                ledger.note("tools[*]", "told", _NOBODY, (number,))
            case Namespace(tools=members):
                for place, member in enumerate(members):
                    if isinstance(member, UnknownTool):
                        ledger.note("tools[*].tools[*]", "told", _NOBODY, (number, place))
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
                ledger.note("tool_choice", "told", _NOBODY)
                return kept, replace(choice, tools=own)
            if mode == "required":
                raise FaultError(forced)
            ledger.note("tool_choice", "told", f"{_NOBODY}; no tools are offered")
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


def _lower_calls(items: tuple[Item, ...], box: Toolbox, ledger: Ledger) -> tuple[Item, ...]:
    lowered = list(items)
    for index, item in enumerate(items):
        match item:
            case FunctionCall(namespace=str()) | CustomToolCall():
                lowered[index] = call = box.lower(item)
                if call != item:
                    why = "a past call has the name and kind its tool has"
                    ledger.note("items[*]", "emulated", why, (index,))
            case CustomToolCallOutput():
                lowered[index] = box.lower_output(item)
    return tuple(lowered)


# ---- format ----------------------------------------------------------------------------------


def _lower_format(request: Request, limits: Limits, ledger: Ledger) -> Request:
    format = request.format
    if not isinstance(format, JSONObject | JSONSchema):
        return request
    if _forced(request.tool_choice) and not limits.format_beside_forced_tool:
        ledger.note("format", "told", "a tool must be called, so there is no text to format")
        return replace(request, format=None)
    if isinstance(format, JSONObject) or limits.json_schema:
        return request
    ledger.note("format", "emulated", "the schema is described to the model, and not enforced")
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
