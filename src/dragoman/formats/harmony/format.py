"""Harmony as a format: renders a prompt, parses answers, and gives the grammar of a constrained
one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.item import (
    Audio,
    Call,
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
    Refusal,
    Text,
    Unknown,
)
from dragoman.core.loss import LossList
from dragoman.core.lower import UpstreamLimits, replace_modalities
from dragoman.core.request import (
    JSONObject,
    JSONSchema,
    NamedTool,
    OutputFormat,
    Request,
    type_name,
)
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.grammar.demand import AllowedTool, Anything, Demand, JSONBody, demand
from dragoman.formats.grammar.lark import EITHER, Writer
from dragoman.formats.messages import unfinished
from dragoman.formats.prompt import Control, Piece, Prompt, Tokenizer, TokenTable

from . import parse
from .parse import COMMENTARY_PHASE, HarmonyParser, Header
from .texts import CHANNELS, FUNCTIONS_CHANNEL, IDENTITY, KNOWLEDGE_CUTOFF
from .tools import FUNCTIONS, TRAINED, Toolkit, comment

START, MESSAGE, CHANNEL = Control(parse.START), Control(parse.MESSAGE), Control(parse.CHANNEL)
CONSTRAIN, END, CALL = Control(parse.CONSTRAIN), Control(parse.END), Control(parse.CALL)

_EFFORTS: dict[str | None, str] = {
    **dict.fromkeys(("none", "minimal", "low"), "low"),
    **dict.fromkeys(("medium", None), "medium"),
    **dict.fromkeys(("high", "xhigh", "max"), "high"),
}
"""Harmony's nearest effort for each that a client may request."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class Harmony:
    """A conversation in harmony.

    >>> request = Request(model="m", items=(Message("user", "hi"),))
    >>> Harmony().render(request).text[-51:]
    '<|start|>user<|message|>hi<|end|><|start|>assistant'
    """

    name = "harmony"
    controls = parse.CONTROLS
    limits = UpstreamLimits(hosted_tools=False)
    """It has namespaces and free-text tools; the model's trained tools are functions here."""

    def __init__(self) -> None:
        self._table: tuple[Tokenizer, TokenTable] | None = None

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt, up to `<|start|>assistant`, or inside a message that is to be continued or a
        call that is forced.

        Raises FaultError, naming the field, for what the format cannot express: an output without
        its call before it, and an unresolved reference.
        """
        losses = LossList()
        tools = Toolkit(request, losses)
        instructions, items, first = _split_instructions(
            request, replace_modalities(request.items, (Image, Audio, File), losses)
        )
        pieces = _message("system", _system(tools, setting, _effort(request, losses)))
        text = _paragraphs("# Instructions", *instructions) if instructions else ""
        about = _paragraphs(text, tools.developer_section(), _response_format(request.format))
        if about:
            pieces += _message("developer", about)
        pieces += _history(items, first, losses, tools.trained)
        pieces += [START, "assistant"]
        if (opened := _prefill(request)) is not None:
            pieces += _open_message(opened)
        return Prompt(tuple(pieces), losses.losses())

    def stops(self, request: Request) -> Stops:
        return Stops((parse.RETURN, parse.CALL, parse.END_OF_TEXT))

    def parser(
        self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None
    ) -> HarmonyParser:
        if tokenizer is not None and (self._table is None or self._table[0] is not tokenizer):
            table = TokenTable(tokenizer, self.controls)
            self._table = tokenizer, table  # cached: a model has one vocabulary
        known = self._table[1] if tokenizer is not None and self._table is not None else None
        return HarmonyParser(turn, Toolkit(request, LossList()), _prefill(request), known)

    def grammar(self, request: Request) -> Grammar | None:
        """Raises FaultError also for a constraint on an answer that has already begun."""
        asked = demand(request)
        return None if asked is None else _grammar(asked, _prefill(request))


HARMONY = Harmony()
"""Stateless except for a cache, so that one instance is enough."""


# ---- what stands before the conversation ---------------------------------------------------


def _split_instructions(
    request: Request, items: tuple[Item, ...]
) -> tuple[list[str], tuple[Item, ...], int]:
    """The instructions, the items after them, and the place of the first of these.

    System and developer messages at the front are instructions; later ones stay where they are. The
    item that the prompt leaves open is left out.
    """
    texts: list[str] = []
    place = 0
    match request.instructions:
        case str() as text:
            texts.append(text)
        case tuple(lead):
            items, place = (*lead, *items), -len(lead)
    if unfinished(request) is not None:
        items = items[:-1]
    count = 0
    for item in items:
        if not (isinstance(item, Message) and item.role in ("system", "developer")):
            break
        texts.append(_text(item.content))
        count += 1
    return [text for text in texts if text], items[count:], place + count


def _system(tools: Toolkit, setting: Setting, effort: str) -> str:
    return _paragraphs(
        setting.preamble(IDENTITY, KNOWLEDGE_CUTOFF),
        f"Reasoning: {effort}",
        *(["# Tools", *(TRAINED[name] for name in tools.trained)] if tools.trained else ()),
        f"{CHANNELS}\n{FUNCTIONS_CHANNEL}" if FUNCTIONS in tools.sections else CHANNELS,
    )


def _effort(request: Request, losses: LossList) -> str:
    """The reasoning effort: low, medium (the default) or high."""
    asked = request.reasoning.effort if request.reasoning is not None else None
    sent = _EFFORTS.get(asked)
    if sent is None:
        why = "the model knows low, medium and high; medium is sent"
        losses.note("reasoning.effort", "dropped", why)
    elif asked is not None and sent != asked:
        losses.note("reasoning.effort", "emulated", f"the nearest the model knows, {sent}, is sent")
    return sent or "medium"


def _response_format(format: OutputFormat | None) -> str:
    match format:
        case JSONObject():
            format = JSONSchema("json_object", {"type": "object"}, "Any JSON object.")
        case JSONSchema():
            pass
        case _:
            return ""
    schema = json.dumps(format.schema or {}, ensure_ascii=False, separators=(",", ":"))
    shown = "\n".join([*comment(format.description), schema])
    return _paragraphs("# Response Formats", f"## {format.name}", shown)


# ---- the conversation ----------------------------------------------------------------------


def _history(
    items: Sequence[Item], first: int, losses: LossList, trained: Collection[str]
) -> Iterator[Piece]:
    """The messages of the items; `first` is the place of the first one in the input, and `trained`
    are the tools that are offered in the form of the model's training.

    Reasoning is dropped from turns that a final answer has closed (the model was trained so), and
    every call is followed by its own outputs. Raises FaultError for an output without a call.
    """
    finals = [_is_final(items, index) for index in range(len(items))]
    closed = max((index for index, final in enumerate(finals) if final), default=-1)
    calls: dict[str, tuple[int, Call]] = {}
    outputs: dict[int, list[Piece]] = {}
    for index, item in enumerate(items):
        if isinstance(item, FunctionCall | CustomToolCall):
            calls[item.call_id] = index, item
        elif isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            if item.call_id not in calls:
                problem = f"no call with the id {item.call_id!r} comes before this output"
                raise FaultError(bad_request(problem, f"input[{first + index}].call_id"))
            at, call = calls[item.call_id]
            native = (call.namespace or call.name) in trained
            author = f"{_recipient(call, native)} to=assistant"
            channel = "analysis" if native else "commentary"
            outputs.setdefault(at, []).extend(_message(author, _text(item.output), channel))
    for index, item in enumerate(items):
        match item:
            case FunctionCallOutput() | CustomToolCallOutput():
                pass
            case Reasoning() | Unknown() if index < closed:
                pass
            case _:
                yield from history_message(item, first + index, finals[index], losses, trained)
                yield from outputs.get(index, ())


def _is_final(items: Sequence[Item], index: int) -> bool:
    """Whether the item is an answer that closes its turn. A message without a phase directly before
    a call is a preamble of it."""
    match items[index : index + 2]:
        case [Message(role="assistant", phase=None), FunctionCall() | CustomToolCall()]:
            return False
        case [Message(role="assistant", phase=phase), *_]:
            return phase != COMMENTARY_PHASE
        case _:
            return False


def history_message(
    item: Item, place: int, final: bool, losses: LossList, trained: Collection[str] = ()
) -> list[Piece]:
    """An item as a message of the prompt; empty for one that the model cannot read."""
    match item:
        case Message(role="assistant"):
            return _message("assistant", _text(item.content), "final" if final else "commentary")
        case Message(role="user", name=name):
            if name is not None and not _NAME.fullmatch(name):
                why = "the name cannot stand in a header"
                losses.note("items[*].name", "dropped", why, (place,))
                name = None
            return _message("user" if name is None else f"user:{name}", _text(item.content))
        case Message():
            text = _text(item.content)
            return _message("developer", f"# Instructions\n\n{text}") if text else []
        case Reasoning():
            if not item.text and item.encrypted is not None:
                why = "the model cannot read encrypted reasoning"
                losses.note("items[*].encrypted_content", "dropped", why, (place,))
            return _message("assistant", item.text, "analysis") if item.text else []
        case FunctionCall(arguments=text) if (item.namespace or item.name) in trained:
            if item.namespace is None:  # code, unchanged
                with suppress(ValueError, TypeError, KeyError):
                    text = str(json.loads(text)["code"])
            to = f"analysis to={_recipient(item, True)} code"
            return _message("assistant", text, to, CALL)
        case FunctionCall():
            call = Header("commentary", _recipient(item), rest=item.arguments, content_type="json")
            return [START, "assistant", *_open_message(call), CALL]
        case CustomToolCall():
            call = Header("commentary", _recipient(item), rest=item.input)
            return [START, "assistant", *_open_message(call), CALL]
        case Unknown(
            kind="code_interpreter_call", value={"code": str(code), "outputs": list(outputs)}
        ):  # of hosted tools the model was trained with code and its output
            logs = [each["logs"] for each in outputs if isinstance(each, dict) and "logs" in each]
            return [
                *_message("assistant", code, "analysis to=python code", CALL),
                *_message("python to=assistant", "\n".join(map(str, logs)), "analysis"),
            ]
        case Unknown():
            why = f"the model cannot read a {type_name(item)}"
            losses.note("items[*]", "dropped", why, (place,))
            return []
        case _:
            problem = f"the {type_name(item)} can only be resolved by the server that stored it"
            raise FaultError(unsupported(problem, f"input[{place}]"))


def _message(author: str, text: str, channel: str | None = None, end: Control = END) -> list[Piece]:
    header: list[Piece] = [START, author] if channel is None else [START, author, CHANNEL, channel]
    return [*header, MESSAGE, text, end]


def _prefill(request: Request) -> Header | None:
    """The message that the prompt leaves open, if any. A forced call is opened, so that only its
    arguments are left to the model."""
    match unfinished(request), request.tool_choice:
        case Message(phase=phase, text=text), _:
            return Header("commentary" if phase == COMMENTARY_PHASE else "final", rest=text)
        case Reasoning(text=text), _:
            return Header("analysis", rest=text)
        case _, NamedTool(kind=kind) as tool:
            content_type = "json" if kind == "function" else None
            return Header("commentary", _recipient(tool), content_type=content_type)
        case _:
            return None


def _open_message(opened: Header) -> list[Piece]:
    """An open message after its role."""
    header = str(opened.channel) + (f" to={opened.recipient}" if opened.recipient else "")
    kind: list[Piece] = [header]
    if opened.content_type:
        kind = [f"{header} ", CONSTRAIN, opened.content_type]
    return [CHANNEL, *kind, MESSAGE, *([opened.rest] if opened.rest else [])]


def _recipient(tool: Call | NamedTool | AllowedTool, native: bool = False) -> str:
    """The address of a tool; one the model was trained with may be in no namespace."""
    if native and tool.namespace is None:
        return tool.name
    return f"{tool.namespace or FUNCTIONS}.{tool.name}"


def _text(content: str | tuple[Part, ...]) -> str:
    """All text of a message, refusals included."""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, Text | Refusal))


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


# ---- the grammar of a constrained answer ---------------------------------------------------


def _grammar(asked: Demand, opened: Header | None) -> Grammar:
    writer = Writer(EITHER)
    marker = writer.marker

    def called(tool: AllowedTool) -> str:
        return f"{writer.body(tool.body)} {writer.end([parse.CALL])}"

    if opened is not None and opened.recipient is not None:
        return writer.grammar(called(asked.tools[0]))  # the only allowed one
    message, header = marker(parse.MESSAGE), marker(parse.CHANNEL)
    following = f'{marker(parse.END)} {marker(parse.START)} "assistant" {header}'
    answers: list[str] = []  # the headers and bodies that may end the answer
    for tool in asked.tools:
        to = writer.text(f"commentary to={_recipient(tool)}")
        kind = "" if tool.custom else f'" " {marker(parse.CONSTRAIN)} "json" '
        answers.append(f"{to} {kind}{message} {called(tool)}")
    if asked.text is not None:
        is_json = isinstance(asked.text, JSONBody)
        kind = f'(" " {marker(parse.CONSTRAIN)} "json")? ' if is_json else ""
        body = writer.body(asked.text)
        answers.append(f'"final" {kind}{message} {body} {writer.end([parse.RETURN])}')
    answer = writer.rule("answer", writer.any_of(answers))
    free = [f'"analysis" {message}']
    if isinstance(asked.text, Anything | None):  # else it would be part of the text
        free.append(f'"commentary" {message}')
    start = f"({writer.any_of(free)} {writer.free()} {following})* {answer}"
    if opened is None:
        return writer.grammar(f"{header} {start}")
    if opened.channel == "analysis":
        return writer.grammar(f"{writer.free()} {following} {start}")
    if isinstance(asked.text, Anything):
        return writer.grammar(f"{writer.free()} {writer.end([parse.RETURN])}")
    problem = "the answer has begun, so it cannot be constrained any more"
    raise FaultError(bad_request(problem, "items"))
