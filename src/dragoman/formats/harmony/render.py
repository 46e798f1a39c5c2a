"""Writes a request as a harmony prompt, up to where the model begins to write.

Text and control tokens stay apart, so that nothing a client says can end its own message. What
the model reads again is decided in `policy`, and what tools look like in `tools`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from dragoman.core.error import FaultError, unsupported
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
from dragoman.core.kind import kind_of
from dragoman.core.ledger import Ledger
from dragoman.core.request import JSONObject, JSONSchema, OutputFormat, Request
from dragoman.core.senses import without
from dragoman.formats.format import Setting
from dragoman.formats.prompt import Control, Piece, Prompt

from . import marks, typescript
from .opening import Opening, opening, recipient
from .policy import Entry, effort, partial, reread
from .texts import IDENTITY, KNOWLEDGE_CUTOFF
from .tools import Toolkit

START = Control(marks.START)
MESSAGE = Control(marks.MESSAGE)
CHANNEL = Control(marks.CHANNEL)
CONSTRAIN = Control(marks.CONSTRAIN)
END = Control(marks.END)
CALL = Control(marks.CALL)

_CHANNELS = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
_FUNCTIONS_CHANNEL = "Calls to these tools must go to the commentary channel: 'functions'."
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SENSES = (Image, Audio, File)


def render(request: Request, setting: Setting) -> Prompt:
    """The prompt. Raises FaultError, naming the field, for what the format cannot say."""
    ledger = Ledger()
    tools = Toolkit(request, ledger)
    folded, items, first = _instructed(request, without(request.items, _SENSES, ledger))
    pieces = _plain("system", _system(tools, setting, effort(request, ledger)))
    if developer := _developer(folded, tools, request.format):
        pieces += _plain("developer", developer)
    for entry in reread(items, first):
        pieces += message(entry, ledger)
    pieces += [START, "assistant"]
    if (begun := opening(request)) is not None:
        pieces += _begun(begun)
    return Prompt(tuple(pieces), ledger.losses())


# ---- what stands before the conversation ---------------------------------------------------


def _instructed(
    request: Request, items: tuple[Item, ...]
) -> tuple[list[str], tuple[Item, ...], int]:
    """The instructions in their order, the items after them, and the place of the first of these.

    System and developer messages at the front are instructions. Later ones stay where they are;
    and what the prompt leaves open is not among the items.
    """
    texts: list[str] = []
    place = 0
    match request.instructions:
        case str() as told:
            texts.append(told)
        case tuple(lead):
            items, place = (*lead, *items), -len(lead)
    if partial(request) is not None:
        items = items[:-1]
    count = 0
    for item in items:
        if not (isinstance(item, Message) and item.role in ("system", "developer")):
            break
        texts.append(said(item))
        count += 1
    return [text for text in texts if text], items[count:], place + count


def _system(tools: Toolkit, setting: Setting, effort: str) -> str:
    identity = IDENTITY if setting.identity is None else setting.identity
    cutoff = KNOWLEDGE_CUTOFF if setting.knowledge_cutoff is None else setting.knowledge_cutoff
    about = [identity, cutoff and f"Knowledge cutoff: {cutoff}"]
    if setting.today:
        about.append(f"Current date: {setting.today}")
    channels = [_CHANNELS]
    if tools.gives_functions:
        channels.append(_FUNCTIONS_CHANNEL)
    return _paragraphs(
        "\n".join(line for line in about if line),
        f"Reasoning: {effort}",
        "\n".join(channels),
    )


def _developer(instructions: Sequence[str], tools: Toolkit, format: OutputFormat | None) -> str:
    told = _paragraphs("# Instructions", *instructions) if instructions else ""
    return _paragraphs(told, tools.developer_section(), _response_format(format))


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


def message(entry: Entry, ledger: Ledger) -> list[Piece]:
    """An item as the model reads it again; nothing of one that it cannot read."""
    item, place = entry.item, entry.place
    match item:
        case Message(role="assistant"):
            return _spoken("final" if entry.final else "commentary", said(item))
        case Message(role="user"):
            return _plain(f"user{_speaker(item, place, ledger)}", said(item))
        case Message():
            text = said(item)
            return _plain("developer", f"# Instructions\n\n{text}") if text else []
        case Reasoning():
            if not item.text and item.encrypted is not None:
                why = "the model cannot read sealed reasoning"
                ledger.note("items[*].encrypted_content", "told", why, (place,))
            return _spoken("analysis", item.text) if item.text else []
        case FunctionCall():
            return _call(recipient(item.name, item.namespace), "json", item.arguments)
        case CustomToolCall():
            return _call(recipient(item.name, item.namespace), None, item.input)
        case FunctionCallOutput() | CustomToolCallOutput():
            return _returned(recipient(*entry.called), "commentary", _words(item.output))
        case Unknown():
            return _hosted(item, place, ledger)
        case _:
            problem = f"only the server that keeps the {kind_of(item)} knows what it stands for"
            raise FaultError(unsupported(problem, f"input[{place}]"))


def _hosted(item: Unknown, place: int, ledger: Ledger) -> list[Piece]:
    """A hosted tool's doings; of those the model can read code, and what came of it."""
    match item.kind, item.value:
        case "code_interpreter_call", {"code": str(code), "outputs": list(told)}:
            logs = [each["logs"] for each in told if isinstance(each, dict) and "logs" in each]
            header = "analysis to=python code"
            call: list[Piece] = [START, "assistant", CHANNEL, header, MESSAGE, code, CALL]
            return call + _returned("python", "analysis", "\n".join(map(str, logs)))
        case _:
            ledger.note("items[*]", "told", f"the model cannot read a {kind_of(item)}", (place,))
            return []


def _plain(author: str, text: str) -> list[Piece]:
    return [START, author, MESSAGE, text, END]


def _spoken(channel: str, text: str) -> list[Piece]:
    return [START, "assistant", CHANNEL, channel, MESSAGE, text, END]


def _call(recipient: str, content_type: str | None, body: str) -> list[Piece]:
    begun = _begun(Opening("commentary", recipient, content_type, body))
    return [START, "assistant", *begun, CALL]


def _returned(tool: str, channel: str, text: str) -> list[Piece]:
    return [START, f"{tool} to=assistant", CHANNEL, channel, MESSAGE, text, END]


def _begun(begun: Opening) -> list[Piece]:
    """A message after its role, without an end: in the form in which the model writes it."""
    header = begun.channel + (f" to={begun.recipient}" if begun.recipient else "")
    kind: list[Piece] = [header]
    if begun.content_type:
        kind = [f"{header} ", CONSTRAIN, begun.content_type]
    return [CHANNEL, *kind, MESSAGE, *([begun.text] if begun.text else [])]


def said(item: Message) -> str:
    """All a message says, refusals among it."""
    return _words(item.content)


def _words(content: str | tuple[Part, ...]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, Text | Refusal))


def _speaker(item: Message, place: int, ledger: Ledger) -> str:
    if item.name is None:
        return ""
    if _NAME.fullmatch(item.name):
        return f":{item.name}"
    ledger.note("items[*].name", "told", "the name cannot stand in a header", (place,))
    return ""


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def _json(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
