"""Renders a request as a harmony prompt.

Text and control tokens stay apart, so that no text of a client can end its own message.
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
from dragoman.core.loss import LossList
from dragoman.core.lower import replace_modalities
from dragoman.core.request import JSONObject, JSONSchema, OutputFormat, Request, type_name
from dragoman.formats.format import Setting
from dragoman.formats.prompt import Control, Piece, Prompt

from . import layout, typescript
from .layout import HistoryItem, Prefill, effort, partial, prefill, recipient, visible_history
from .texts import IDENTITY, KNOWLEDGE_CUTOFF
from .tools import Toolkit

START = Control(layout.START)
MESSAGE = Control(layout.MESSAGE)
CHANNEL = Control(layout.CHANNEL)
CONSTRAIN = Control(layout.CONSTRAIN)
END = Control(layout.END)
CALL = Control(layout.CALL)

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
            call: list[Piece] = [START, "assistant", CHANNEL, header, MESSAGE, code, CALL]
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
    return [START, "assistant", *prefilled, CALL]


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
