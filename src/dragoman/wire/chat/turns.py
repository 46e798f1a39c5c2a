"""Items become the messages of a request: the way back from what `messages` reads.

Whatever the assistant thought, said and called in one turn becomes ONE assistant message, with
the results after it; servers refuse calls that are spread over several messages. The same items
give the same bytes, so that a growing conversation keeps the prompt its server has cached.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.core.item import (
    JSON,
    Audio,
    CallOutput,
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
from dragoman.core.ledger import Ledger
from dragoman.wire import body
from dragoman.wire.dialect import Dialect

from . import content
from .extras import NAME, join, kept, restore

NO_THOUGHT = " "
"""Stands for reasoning that is owed and not to be had. Servers that ask for some refuse the empty
string; words would be taken for the model's own."""
LONGEST = 2000
"""How many characters of a field are kept where an item is written down as a note."""


def encode(items: Iterable[Item], dialect: Dialect, ledger: Ledger) -> list[JSON]:
    """The messages that say these items; what the dialect costs goes into the ledger."""
    writer = _Writer(dialect)
    for index, item in enumerate(items):
        _note_costs(item, index, dialect, ledger)
        writer.add(item)
    messages = writer.close()
    if writer.owed:
        why = (
            "this server wants the reasoning that led to a call, and there is none: it gets a space"
        )
        ledger.note("items[*].reasoning", "emulated", why)
    return messages


def _note_costs(item: Item, index: int, dialect: Dialect, ledger: Ledger) -> None:
    match item:
        case Reasoning() if dialect.reasoning_echo == "never":
            why = "this server takes no reasoning back"
            ledger.note("items[*].reasoning", "told", why, (index,))
        case Message(content=tuple(parts)) | FunctionCallOutput(output=tuple(parts)):
            if not dialect.content_parts and len(parts) > 1 and content.is_text(parts):
                why = "the text is sent as one string; its parts are joined"
                ledger.note("items[*].content", "emulated", why, (index,))


class _Writer:
    """The messages so far, the assistant's turn that is open, and what waits to be shown."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._messages: list[JSON] = []
        self._turn: _AssistantTurn | None = None
        self._hoisted: list[Part] = []
        self.owed = False  # reasoning was, and could not be had

    def add(self, item: Item) -> None:
        """One item more."""
        match item:
            case Message(role="assistant") | Reasoning() | FunctionCall() | CustomToolCall():
                self._assistant(item)
            case Unknown(kind="compaction_trigger"):
                pass  # not the last item, where it would have been answered: it asks for nothing
            case Unknown():
                self._assistant(item)
            case FunctionCallOutput() | CustomToolCallOutput():
                self._end_turn()
                self._messages.append(self._result(item))
            case Message():
                self._end_results()
                self._messages.append(_spoken(item, self._dialect))
            case _:
                pass  # references and compactions: refused before anything is encoded

    def close(self) -> list[JSON]:
        """All messages."""
        self._end_results()
        return self._messages

    def _assistant(
        self, item: Message | Reasoning | FunctionCall | CustomToolCall | Unknown
    ) -> None:
        begins = bool(item.extra and item.extra.get("turn"))
        if self._turn is None or begins:
            self._end_results()
            self._turn = _AssistantTurn(self._dialect)
        self._turn.add(item)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self.owed = self.owed or turn.owed
            self._messages.append(turn.message())

    def _end_results(self) -> None:
        """After the last result of a turn, show what could not be said in it."""
        self._end_turn()
        parts, self._hoisted = self._hoisted, []
        if parts:
            self._messages.append({"role": "user", "content": content.encode(tuple(parts))})

    def _result(self, item: CallOutput) -> JSON:
        output = item.output
        if not isinstance(output, str):
            shown = [part for part in output if isinstance(part, Image | Audio | File)]
            if shown:
                label = Text(f"From the result of the tool call {item.call_id}:")
                self._hoisted += [label, *shown]
            output = tuple(_here(part) for part in output)
        said = _content(output, self._dialect)
        return restore({"role": "tool", "tool_call_id": item.call_id, "content": said}, item.extra)


def _here(part: Part) -> Part:
    """A part of a result, or the word that it follows in a message of its own."""
    match part:
        case Image():
            return Text("[image: see the next user message]")
        case Audio():
            return Text("[audio: see the next user message]")
        case File():
            return Text("[file: see the next user message]")
        case _:
            return part


def _spoken(item: Message, dialect: Dialect) -> JSON:
    said = {"role": item.role, "content": _content(item.content, dialect)}
    if item.name:
        said["name"] = item.name
    return restore(said, item.extra)


def _content(said: content.Content, dialect: Dialect) -> JSON:
    """Content as this side takes it: a list that is all text may have to be a string."""
    if isinstance(said, tuple) and not dialect.content_parts and content.is_text(said):
        return "\n".join(content.describe(part) for part in said)
    return content.encode(said)


class _AssistantTurn:
    """Everything between two things that others said, as one message."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._thoughts: list[str] = []
        self._said: content.Content | None = None
        self._inline = ""  # think tags and the thought in them, before the text they belong to
        self._calls: list[JSON] = []
        self._more: dict[str, JSON] = {}

    def add(self, item: Message | Reasoning | FunctionCall | CustomToolCall | Unknown) -> None:
        """One item more of this turn."""
        match item:
            case Reasoning():
                self._think(item)
            case Message():
                self._say(item.content)
                self._keep({"name": item.name} if item.name else {})
                self._keep(kept(item.extra))
            case FunctionCall() | CustomToolCall():
                self._calls.append(encode_call(item))
            case Unknown(wire=wire) if wire == NAME:
                self._calls.append({"type": item.kind, **item.value})
            case _:
                self._say((Text(_note(item)),))

    @property
    def owed(self) -> bool:
        """Whether the server wants reasoning with this message, and there is none."""
        must = self._dialect.reasoning_echo == "must"
        return must and bool(self._calls) and not any(self._thoughts)

    def message(self) -> dict[str, JSON]:
        """The message; fields that were not given are not in it."""
        said: dict[str, JSON] = {"role": "assistant"}
        if self._inline:
            self._say("")
        parts, refusal, audio = _apart(self._said)
        if parts is not None:
            said["content"] = _content(parts, self._dialect)
        elif not (self._calls or refusal or audio):
            said["content"] = ""
        said |= {"refusal": refusal} if refusal else {}
        said |= {"audio": audio} if audio else {}
        if self._thoughts and self._dialect.reasoning_echo != "never":
            said[self._dialect.reasoning_field] = "\n\n".join(self._thoughts)
        if self.owed:
            said[self._dialect.reasoning_field] = NO_THOUGHT
        said |= {"tool_calls": self._calls} if self._calls else {}
        if self._dialect.reasoning_echo == "never":
            self._more.pop("reasoning_details", None)
        return join(said, self._more)

    def _think(self, item: Reasoning) -> None:
        tags = (item.extra or {}).get("inline")
        if tags is not None:
            self._inline += tags.get("open", "") + item.text + tags.get("close", "")
        elif item.content or item.summary:
            self._thoughts.append(item.text)
        self._keep(kept(item.extra))

    def _say(self, said: content.Content) -> None:
        glue, self._inline = self._inline, ""
        if glue:
            said = _glued(glue, said)
        if self._said is None or self._said == ():
            self._said = said
        elif said != ():
            self._said = (*content.parts(self._said), *content.parts(said))

    def _keep(self, fields: dict[str, JSON]) -> None:
        for name, value in fields.items():
            have = self._more.get(name)
            if isinstance(have, list) and isinstance(value, list):
                self._more[name] = have + value
            else:
                self._more.setdefault(name, value)


def _glued(text: str, said: content.Content) -> content.Content:
    """The text and what follows it, with no seam between them."""
    match said:
        case str():
            return text + said
        case (Text() as first, *rest):
            return (replace(first, text=text + first.text), *rest)
        case _:
            return (Text(text), *said)


def _apart(
    said: content.Content | None,
) -> tuple[content.Content | None, str | None, dict[str, JSON] | None]:
    """Content, refusal and past audio, which have fields of their own on this wire."""
    if said is None or isinstance(said, str):
        return said, None, None
    audio: dict[str, JSON] | None = None
    parts: list[Part] = []
    refusals: list[str] = []
    for part in said:
        match part:
            case Refusal():
                refusals.append(part.text)
            case Audio(id=str(id)):
                audio = restore({"id": id}, part.extra)
            case Audio():
                parts.append(Text(content.describe(part)))
            case _:
                parts.append(part)
    return tuple(parts) or None, "".join(refusals) or None, audio


def encode_call(call: FunctionCall | CustomToolCall) -> dict[str, JSON]:
    """A call as an entry of `tool_calls`."""
    named = {"name": call.name} | ({"namespace": call.namespace} if call.namespace else {})
    match call:
        case FunctionCall():
            kind, inner = "function", named | {"arguments": call.arguments}
        case _:
            kind, inner = "custom", named | {"input": call.input}
    return restore({"id": call.call_id, "type": kind, kind: inner}, call.extra)


def _note(item: Unknown) -> str:
    """An item this wire has no form for (a hosted tool's call, as a rule), in words."""
    return f"[{item.kind}: {body.text(_short(item.value))}]"


def _short(value: JSON) -> JSON:
    """The value without what would drown it."""
    match value:
        case str() if len(value) > LONGEST or value.startswith("data:"):
            return value[:LONGEST] + "…" if " " in value[:LONGEST] else "…"
        case list():
            return [_short(each) for each in value]
        case dict():
            hidden = ("id", "status", "encrypted_content")
            return {name: _short(v) for name, v in value.items() if name not in hidden and v}
        case _:
            return value
