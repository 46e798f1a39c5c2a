"""Items of a conversation (messages, reasoning, calls, outputs) and the parts they are made of.

An item is a frozen value in the vocabulary of Open Responses; what only other wires have (a
speaker's name, spoken audio, log-probabilities of a refusal) is a field too. Fields of a wire
that we do not know are in `extra`, under that wire's name, and are emitted on that wire only.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable
from typing import Any, Literal
from zlib import crc32

from msgspec import Struct

JSON = Any
"""A decoded JSON value."""

Extra = dict[str, dict[str, JSON]]
"""Unknown fields, by wire name: `{"chat": {"vendor_field": 1}}`."""
INTERNAL = frozenset(
    {"agent", "error", "inline", "legacy", "models", "responses_vendor", "tool", "turn", "upstream"}
)
"""Keys of an `extra` that are no wire's."""
RECORD = "tool"
"""The key among them of the record of a call that this server ran (`tools.run.Recorded`)."""

Role = Literal["system", "developer", "user", "assistant"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


Octets = bytes
"""The type by another name, for a field that is called `bytes` itself."""


class Token(Struct, frozen=True, omit_defaults=True, gc=False):
    """One token of a model: its text, natural-log probability and alternatives."""

    text: str
    logprob: float | None = None
    bytes: Octets | None = None
    top: tuple[Token, ...] = ()
    id: int | None = None
    forced: bool = False
    extra: Extra | None = None


class Annotation(Struct, frozen=True, omit_defaults=True):
    """A note on a range of text, such as a citation; indices count code points of the text."""

    kind: str
    start: int | None = None
    end: int | None = None
    url: str | None = None
    title: str | None = None
    file_id: str | None = None
    filename: str | None = None
    container_id: str | None = None
    index: int | None = None
    extra: Extra | None = None


class Text(Struct, frozen=True, omit_defaults=True, tag="text"):
    """Plain text, with its annotations and token probabilities."""

    text: str
    annotations: tuple[Annotation, ...] = ()
    tokens: tuple[Token, ...] = ()
    extra: Extra | None = None


class Refusal(Struct, frozen=True, omit_defaults=True, tag="refusal"):
    """The text of a refusal."""

    text: str
    tokens: tuple[Token, ...] = ()
    extra: Extra | None = None


class Image(Struct, frozen=True, omit_defaults=True, tag="image"):
    """A picture, by address (http, https or data URL) or by the id of an uploaded file."""

    url: str | None = None
    file_id: str | None = None
    detail: str | None = None
    extra: Extra | None = None


class Audio(Struct, frozen=True, omit_defaults=True, tag="audio"):
    """Sound: base64 `data` in `format`, or the `id` of sound the server still holds.

    `expires_at` is in Unix seconds.
    """

    data: str | None = None
    format: str | None = None
    transcript: str | None = None
    id: str | None = None
    expires_at: int | None = None
    extra: Extra | None = None


class File(Struct, frozen=True, omit_defaults=True, tag="file"):
    """A document: base64 or data-URL `data`, an address, or the id of an uploaded file."""

    file_id: str | None = None
    data: str | None = None
    url: str | None = None
    filename: str | None = None
    extra: Extra | None = None

    @property
    def name(self) -> str | None:
        """Its name, and one for data that has none, such as Anthropic's: OpenAI refuses data alone.

        >>> File(data="data:application/pdf;base64,JVBERg==").name, File(url="https://a/b").name
        ('file.pdf', None)
        """
        if self.filename or self.file_id or not self.data:
            return self.filename
        return "file.pdf" if self.data.startswith("data:application/pdf") else "file"

    @property
    def text(self) -> str | None:
        """The text of data that is a text in UTF-8; None for anything else.

        >>> File(data="data:text/plain;base64,aGk=").text
        'hi'
        """
        head, _, data = (self.data or self.url or "").partition(";base64,")
        if not head.startswith("data:text/"):
            return None
        try:
            return b64decode(data, validate=True).decode()
        except ValueError:
            return None


class Thought(Struct, frozen=True, omit_defaults=True, tag="thought"):
    """Reasoning in the model's own words (Responses: `reasoning_text`)."""

    text: str
    tokens: tuple[Token, ...] = ()
    extra: Extra | None = None


class Summary(Struct, frozen=True, omit_defaults=True, tag="summary"):
    """A summary of reasoning that is itself not shown (Responses: `summary_text`)."""

    text: str
    extra: Extra | None = None


class UnknownPart(Struct, frozen=True, tag="unknown"):
    """A part of an unknown kind, unchanged, for its own wire."""

    wire: str
    value: dict[str, JSON]


Part = Text | Refusal | Image | Audio | File | Thought | Summary | UnknownPart


class Message(Struct, frozen=True, omit_defaults=True, tag="message"):
    """A message in a role. Content is a plain string or parts; `()` means none was given."""

    role: Role
    content: str | tuple[Part, ...] = ()
    id: str | None = None
    status: ItemStatus | None = None
    name: str | None = None
    phase: str | None = None
    extra: Extra | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The content as parts, in either form."""
        return (Text(self.content),) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """All text parts joined.

        >>> Message("user", (Text("one "), Text("two"))).text
        'one two'
        """
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, Text))


KNOWN_BY = 2048
"""Characters of each end of a long text that tell it from others."""
PLACED = 2_000
"""Parts of what a user said that are read for a place; of others it is known how many there are."""
_NAMING = ("text", "url", "data", "file_id", "id")
"""Fields of parts, of pictures, sound and files, too, that tell what a user said."""
_RUN = re.compile("[0-9A-Za-z]{8,}")


def in_short(text: str) -> str:
    """A text, or of a long one its length and ends, which tell it from others."""
    long = len(text) > 2 * KNOWN_BY
    return f"{len(text)} {text[:KNOWN_BY]} {text[-KNOWN_BY:]}" if long else text


def place_behind(place: int, items: Iterable[Item]) -> int:
    """The number of the place behind some items, from that before them: what a user said until
    there, which tells conversations apart. The first place is 0. Of long texts the ends are read.

    >>> place_behind(0, [Message("user", "Hi")]) == place_behind(0, [Message("user", "Ho")])
    False
    """
    count, number = divmod(place, 1 << 32)
    for item in items:
        if type(item) is not Message or item.role != "user":
            continue
        parts = item.parts
        for part in parts[: PLACED - count] if count < PLACED else ():
            for name in ("text",) if type(part) is Text else _NAMING:
                if isinstance(text := getattr(part, name, None), str):
                    number = crc32(in_short(text).encode("utf-8", "surrogatepass"), number)
        count += len(parts)
    return (count << 32) + number


def place_of(call: Call, place: int | None) -> int | None:
    """The place that belongs to what identifies a call; None where its id does by itself. Some
    servers count ids from 0 in every conversation: those have no long run of letters and digits.

    >>> place_of(FunctionCall("functions.now:0", "now", "{}"), 7)
    7
    >>> place_of(FunctionCall("call_x8Kd93Lp", "now", "{}"), 7)
    """
    runs = _RUN.findall(call.call_id.replace(call.name, " "))
    return place if all(run.isalpha() for run in runs) else None


class Reasoning(Struct, frozen=True, omit_defaults=True, tag="reasoning"):
    """The model's reasoning: as text, as a summary, or encrypted.

    `encrypted` is opaque, and must be sent back byte for byte.
    """

    content: tuple[Thought | UnknownPart, ...] = ()
    summary: tuple[Summary | UnknownPart, ...] = ()
    encrypted: str | None = None
    id: str | None = None
    status: ItemStatus | None = None
    extra: Extra | None = None

    @property
    def text(self) -> str:
        """The text of the reasoning, or of its summary where there is none."""
        parts = self.content or self.summary
        return "".join(part.text for part in parts if not isinstance(part, UnknownPart))


class FunctionCall(Struct, frozen=True, omit_defaults=True, tag="function_call"):
    """The model asks for a function. `arguments` is JSON text exactly as the model wrote it."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None
    status: ItemStatus | None = None
    extra: Extra | None = None

    @property
    def text(self) -> str:
        """What the model wrote."""
        return self.arguments


class FunctionCallOutput(Struct, frozen=True, omit_defaults=True, tag="function_call_output"):
    """What a function returned, for the call with the same `call_id`."""

    call_id: str
    output: str | tuple[Part, ...]
    id: str | None = None
    status: ItemStatus | None = None
    extra: Extra | None = None


class CustomToolCall(Struct, frozen=True, omit_defaults=True, tag="custom_tool_call"):
    """The model asks for a free-form tool; `input` is text of any shape."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None
    id: str | None = None
    status: ItemStatus | None = None
    extra: Extra | None = None

    @property
    def text(self) -> str:
        """What the model wrote."""
        return self.input


class CustomToolCallOutput(Struct, frozen=True, omit_defaults=True, tag="custom_tool_call_output"):
    """What a free-form tool returned, for the call with the same `call_id`."""

    call_id: str
    output: str | tuple[Part, ...]
    id: str | None = None
    status: ItemStatus | None = None
    extra: Extra | None = None


class Compaction(Struct, frozen=True, omit_defaults=True, tag="compaction"):
    """A summary of the conversation before it, encrypted or encoded by its server."""

    encrypted: str
    id: str | None = None
    extra: Extra | None = None


class ItemReference(Struct, frozen=True, omit_defaults=True, tag="item_reference"):
    """Stands for a stored item with this id."""

    id: str
    extra: Extra | None = None


class Unknown(Struct, frozen=True, omit_defaults=True, tag="unknown"):
    """An item of an unknown kind (including hosted tools), unchanged.

    `kind` is its type on that wire and `value` every other field, ids and all.
    """

    wire: str
    kind: str
    value: dict[str, JSON]
    id: str | None = None
    extra: Extra | None = None


def objects(values: JSON) -> list[dict[str, JSON]]:
    """The objects of a list in an unknown item; none where the field is anything else.

    >>> objects([{"a": 1}, "b"]), objects("c"), objects(None)
    ([{'a': 1}], [], [])
    """
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


Call = FunctionCall | CustomToolCall
CallOutput = FunctionCallOutput | CustomToolCallOutput
Item = (
    Message
    | Reasoning
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | Compaction
    | ItemReference
    | Unknown
)


def silent_parts(item: Item) -> list[int]:
    """The indices of the parts of an item that are sound without a transcript."""
    parts = enumerate(item.parts if isinstance(item, Message) else ())
    return [number for number, part in parts if isinstance(part, Audio) and part.transcript is None]
