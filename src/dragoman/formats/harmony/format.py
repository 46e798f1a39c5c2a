"""Harmony as a format: renders a prompt, parses answers, and gives the grammar of a constrained
one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.item import (
    JSON,
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
    Refusal,
    Text,
    Unknown,
)
from dragoman.core.loss import LossList
from dragoman.core.lower import UpstreamLimits, replace_modalities
from dragoman.core.request import JSONObject, JSONSchema, OutputFormat, Request, type_name
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.grammar.demand import AllowedTool, Anything, Demand, JSONBody, demand
from dragoman.formats.grammar.lark import EITHER, Writer
from dragoman.formats.prompt import Control, Piece, Prompt, Tokenizer

from . import layout, typescript
from .layout import (
    CALL,
    END_OF_TEXT,
    RETURN,
    HistoryItem,
    Prefill,
    TokenTable,
    effort,
    partial,
    prefill,
    recipient,
    visible_history,
)
from .parse import HarmonyParser
from .texts import IDENTITY, KNOWLEDGE_CUTOFF
from .tools import Toolkit

START = Control(layout.START)
MESSAGE = Control(layout.MESSAGE)
CHANNEL = Control(layout.CHANNEL)
CONSTRAIN = Control(layout.CONSTRAIN)
END = Control(layout.END)
CALL_TOKEN = Control(layout.CALL)

_CHANNELS = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
_FUNCTIONS_CHANNEL = "Calls to these tools must go to the commentary channel: 'functions'."
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_MODALITIES = (Image, Audio, File)


def render(request: Request, setting: Setting) -> Prompt:
    """The prompt. Raises FaultError, naming the field, for what the format cannot express."""
    losses = LossList()
    tools = Toolkit(request, losses)
    instructions, items, first = _split_instructions(
        request, replace_modalities(request.items, _MODALITIES, losses)
    )
    pieces = _message("system", _system(tools, setting, effort(request, losses)))
    if developer := _developer(instructions, tools, request.format):
        pieces += _message("developer", developer)
    for entry in visible_history(items, first):
        pieces += history_message(entry, losses)
    pieces += [START, "assistant"]
    if (prefilled := prefill(request)) is not None:
        pieces += _open_message(prefilled)
    return Prompt(tuple(pieces), losses.losses())


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
    if partial(request) is not None:
        items = items[:-1]
    count = 0
    for item in items:
        if not (isinstance(item, Message) and item.role in ("system", "developer")):
            break
        texts.append(message_text(item))
        count += 1
    return [text for text in texts if text], items[count:], place + count


def _system(tools: Toolkit, setting: Setting, effort: str) -> str:
    identity = IDENTITY if setting.identity is None else setting.identity
    cutoff = KNOWLEDGE_CUTOFF if setting.knowledge_cutoff is None else setting.knowledge_cutoff
    about = [identity, cutoff and f"Knowledge cutoff: {cutoff}"]
    if setting.today:
        about.append(f"Current date: {setting.today}")
    channels = [_CHANNELS]
    if tools.has_functions:
        channels.append(_FUNCTIONS_CHANNEL)
    return _paragraphs(
        "\n".join(line for line in about if line),
        f"Reasoning: {effort}",
        "\n".join(channels),
    )


def _developer(instructions: Sequence[str], tools: Toolkit, format: OutputFormat | None) -> str:
    text = _paragraphs("# Instructions", *instructions) if instructions else ""
    return _paragraphs(text, tools.developer_section(), _response_format(format))


def _response_format(format: OutputFormat | None) -> str:
    match format:
        case JSONObject():
            format = JSONSchema("json_object", {"type": "object"}, "Any JSON object.")
        case JSONSchema():
            pass
        case _:
            return ""
    shown = "\n".join([*typescript.comment(format.description), _json(format.schema or {})])
    return _paragraphs("# Response Formats", f"## {format.name}", shown)


# ---- the conversation ----------------------------------------------------------------------


def history_message(entry: HistoryItem, losses: LossList) -> list[Piece]:
    """An item as a message of the prompt; nothing of one that the model cannot read."""
    item, place = entry.item, entry.place
    match item:
        case Message(role="assistant"):
            return _assistant_message("final" if entry.final else "commentary", message_text(item))
        case Message(role="user"):
            return _message(f"user{_user_name(item, place, losses)}", message_text(item))
        case Message():
            text = message_text(item)
            return _message("developer", f"# Instructions\n\n{text}") if text else []
        case Reasoning():
            if not item.text and item.encrypted is not None:
                why = "the model cannot read encrypted reasoning"
                losses.note("items[*].encrypted_content", "dropped", why, (place,))
            return _assistant_message("analysis", item.text) if item.text else []
        case FunctionCall():
            return _call(recipient(item.name, item.namespace), "json", item.arguments)
        case CustomToolCall():
            return _call(recipient(item.name, item.namespace), None, item.input)
        case FunctionCallOutput() | CustomToolCallOutput():
            return _tool_result(recipient(*entry.called), "commentary", _content_text(item.output))
        case Unknown():
            return _hosted(item, place, losses)
        case _:
            problem = f"the {type_name(item)} can only be resolved by the server that stored it"
            raise FaultError(unsupported(problem, f"input[{place}]"))


def _hosted(item: Unknown, place: int, losses: LossList) -> list[Piece]:
    """A hosted tool's call; of those the model knows code and its output."""
    match item.kind, item.value:
        case "code_interpreter_call", {"code": str(code), "outputs": list(text)}:
            logs = [each["logs"] for each in text if isinstance(each, dict) and "logs" in each]
            header = "analysis to=python code"
            call: list[Piece] = [START, "assistant", CHANNEL, header, MESSAGE, code, CALL_TOKEN]
            return call + _tool_result("python", "analysis", "\n".join(map(str, logs)))
        case _:
            losses.note(
                "items[*]", "dropped", f"the model cannot read a {type_name(item)}", (place,)
            )
            return []


def _message(author: str, text: str) -> list[Piece]:
    return [START, author, MESSAGE, text, END]


def _assistant_message(channel: str, text: str) -> list[Piece]:
    return [START, "assistant", CHANNEL, channel, MESSAGE, text, END]


def _call(recipient: str, content_type: str | None, body: str) -> list[Piece]:
    prefilled = _open_message(Prefill("commentary", recipient, content_type, body))
    return [START, "assistant", *prefilled, CALL_TOKEN]


def _tool_result(tool: str, channel: str, text: str) -> list[Piece]:
    return [START, f"{tool} to=assistant", CHANNEL, channel, MESSAGE, text, END]


def _open_message(prefilled: Prefill) -> list[Piece]:
    """A message after its role, without an end, as the model itself writes it."""
    header = prefilled.channel + (f" to={prefilled.recipient}" if prefilled.recipient else "")
    kind: list[Piece] = [header]
    if prefilled.content_type:
        kind = [f"{header} ", CONSTRAIN, prefilled.content_type]
    return [CHANNEL, *kind, MESSAGE, *([prefilled.text] if prefilled.text else [])]


def message_text(item: Message) -> str:
    """All text of a message, refusals included."""
    return _content_text(item.content)


def _content_text(content: str | tuple[Part, ...]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, Text | Refusal))


def _user_name(item: Message, place: int, losses: LossList) -> str:
    if item.name is None:
        return ""
    if _NAME.fullmatch(item.name):
        return f":{item.name}"
    losses.note("items[*].name", "dropped", "the name cannot stand in a header", (place,))
    return ""


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def _json(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def grammar(
    request: Request, channel: str | None = None, recipient: str | None = None
) -> Grammar | None:
    """The grammar of the answer, or None where the request constrains nothing.

    `channel` and `recipient` are those of a message that the prompt leaves open. Raises FaultError
    for a constraint on an answer that has already begun.
    """
    asked = demand(request)
    if asked is None:
        return None
    return _GrammarBuilder(asked).grammar(channel, recipient)


class _GrammarBuilder:
    """The grammar of one demand, as messages."""

    def __init__(self, asked: Demand) -> None:
        self._asked = asked
        self._writer = Writer(EITHER)

    def grammar(self, channel: str | None, recipient: str | None) -> Grammar:
        writer, header = self._writer, self._writer.marker("<|channel|>")
        if channel is not None and recipient is not None:
            called = [tool for tool in self._asked.tools if _recipient(tool) == recipient]
            return writer.grammar(self._called(called[0]))
        next_message = (
            f'{writer.marker("<|end|>")} {writer.marker("<|start|>")} "assistant" {header}'
        )
        answer = writer.rule("answer", writer.any_of(self._answers()))
        free = [f'"analysis" {self._message()}']
        if isinstance(self._asked.text, Anything | None):  # else it would be part of the text
            free.append(f'"commentary" {self._message()}')
        start = f"({writer.any_of(free)} {writer.free()} {next_message})* {answer}"
        match channel:
            case None:
                return writer.grammar(f"{header} {start}")
            case "analysis":
                return writer.grammar(f"{writer.free()} {next_message} {start}")
            case _ if isinstance(self._asked.text, Anything):
                return writer.grammar(f"{writer.free()} {writer.end(['<|return|>'])}")
            case _:
                problem = "the answer has begun, so it cannot be constrained any more"
                raise FaultError(bad_request(problem, "items"))

    def _answers(self) -> Iterator[str]:
        """The headers and bodies that may end the answer."""
        asked, writer = self._asked, self._writer
        for tool in asked.tools:
            to = f"commentary to={_recipient(tool)}"
            kind = "" if tool.custom else f'" " {writer.marker("<|constrain|>")} "json" '
            yield f"{writer.text(to)} {kind}{self._message()} {self._called(tool)}"
        if asked.text is not None:
            json = isinstance(asked.text, JSONBody)
            kind = f'(" " {writer.marker("<|constrain|>")} "json")? ' if json else ""
            body = writer.body(asked.text)
            yield f'"final" {kind}{self._message()} {body} {writer.end(["<|return|>"])}'

    def _called(self, tool: AllowedTool) -> str:
        return f"{self._writer.body(tool.body)} {self._writer.end(['<|call|>'])}"

    def _message(self) -> str:
        return self._writer.marker("<|message|>")


def _recipient(tool: AllowedTool) -> str:
    return f"{tool.namespace or 'functions'}.{tool.name}"


class Harmony:
    """A conversation in harmony.

    >>> from dragoman.core.item import Message
    >>> request = Request(model="m", items=(Message("user", "hi"),))
    >>> Harmony().render(request).text[-51:]
    '<|start|>user<|message|>hi<|end|><|start|>assistant'
    """

    name = "harmony"
    limits = UpstreamLimits(hosted_tools=False)
    """It has namespaces and free-text tools; its built-in tools cannot be run here."""

    def __init__(self) -> None:
        self._table: tuple[Tokenizer, TokenTable] | None = None

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt, up to `<|start|>assistant`, or inside a message that is to be continued or a
        call that is forced.

        Raises FaultError for an output without its call before it, and for an unresolved reference.
        """
        return render(request, setting)

    def stops(self, request: Request) -> Stops:
        return Stops((RETURN, CALL, END_OF_TEXT))

    def parser(
        self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None
    ) -> HarmonyParser:
        tools = Toolkit(request, LossList())
        table = self._token_table(tokenizer) if tokenizer is not None else None
        return HarmonyParser(turn, tools, prefill(request), table)

    def grammar(self, request: Request) -> Grammar | None:
        prefilled = prefill(request)
        return grammar(request, *((prefilled.channel, prefilled.recipient) if prefilled else ()))

    def _token_table(self, tokenizer: Tokenizer) -> TokenTable:
        """The table of a vocabulary; the last one is kept, since a model has but one."""
        if self._table is None or self._table[0] is not tokenizer:
            self._table = tokenizer, TokenTable(tokenizer)
        return self._table[1]


HARMONY = Harmony()
"""Stateless but for a cache, so that one is enough."""
