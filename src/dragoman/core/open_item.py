"""Assembles one item: its parts, the buffers of their text, and how they are closed."""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator
from io import StringIO
from typing import Any

from msgspec.structs import replace

from .error import TOO_MANY, FaultError
from .event import Delta, DeltaKind, Event, PartAdded, PartDone
from .item import (
    Annotation,
    Audio,
    CustomToolCall,
    Extra,
    FunctionCall,
    Item,
    ItemStatus,
    Message,
    Part,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
)

_SURROGATE = re.compile("[\ud800-\udfff]")
_LONE = re.compile(
    "[\ud800-\udfff](?:(?<=[\ud800-\udbff])(?![\udc00-\udfff])"
    "|(?<=[\udc00-\udfff])(?<![\ud800-\udbff].))"
)
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=]+")
_PADDING = re.compile("=+")

STEP = 16 * 1024
"""Characters that are looked at in one call: no other thread runs meanwhile."""


def paired(text: str) -> str:
    """The text with halves of surrogate pairs joined, and U+FFFD for each that is alone.

    >>> paired("\\ud83d\\ude00 \\ud83d")
    '😀 \ufffd'
    """
    # UTF-16 does both, but takes longer for each that is alone.
    return _LONE.sub("\ufffd", text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")


class TextBuffer(StringIO):
    """Text in pieces; half a surrogate pair waits for its other half.

    >>> buffer = TextBuffer()
    >>> buffer.add("a\\ud83d"), buffer.add("\\ude00b"), buffer.getvalue()
    ('a', '😀b', 'a😀b')
    """

    __slots__ = ("carry",)

    def __init__(self) -> None:
        super().__init__()
        self.carry = ""

    def add(self, data: str) -> str:
        """Add a piece; what of it is complete now."""
        if self.carry or not data.isascii():
            data = self._whole(self.carry + data)
        self.write(data)
        return data

    def rest(self) -> str:
        """What is left at the end: a replacement for half a pair that is still waiting."""
        if not self.carry:
            return ""
        self.carry = ""
        self.write("\ufffd")
        return "\ufffd"

    def catch_up(self, whole: str) -> str:
        """Add what is missing from the final text; nothing if it is another text."""
        so_far = self.getvalue()
        if not whole.startswith(so_far):
            return ""
        self.carry = ""  # the other half, if there is one, is in `whole`
        return self.add(whole[len(so_far) :])

    def _whole(self, data: str) -> str:
        self.carry = ""
        steps = range(0, len(data), STEP)
        if not any(_SURROGATE.search(data, at, at + STEP) for at in steps):
            return data
        return "".join([self._joined(self.carry + data[at : at + STEP]) for at in steps])

    def _joined(self, data: str) -> str:
        """A piece of which nothing is left but half a pair at its end."""
        self.carry = ""
        if "\ud800" <= data[-1] <= "\udbff":
            data, self.carry = data[:-1], data[-1]
        return paired(data)


class Base64Buffer(TextBuffer):
    """Base64 in pieces, cut or padded anywhere; what `add` gives is one base64 when joined.

    Bytes are given in threes, so that every piece decodes by itself too. Characters that are not
    base64 are ignored.
    """

    __slots__ = ("_raw",)

    def __init__(self) -> None:
        super().__init__()
        self._raw = b""

    def add(self, data: str) -> str:
        if len(data) > STEP:
            return "".join([self.add(data[at : at + STEP]) for at in range(0, len(data), STEP)])
        *padded, data = _PADDING.split(self.carry + _NOT_BASE64.sub("", data))
        # Each ends where padding says that bytes end.
        self._raw = b"".join([self._raw, *map(_bytes, padded)])
        whole = len(data) - len(data) % 4
        self.carry = data[whole:]
        raw = self._raw + a2b_base64(data[:whole])
        cut = len(raw) - len(raw) % 3
        self._raw = raw[cut:]
        return self._encode(raw[:cut])

    def rest(self) -> str:
        raw = self._raw + _bytes(self.carry)
        self._raw, self.carry = b"", ""
        return self._encode(raw)

    def catch_up(self, whole: str) -> str:
        if whole.startswith(self.getvalue()):
            self._raw = b""
        return super().catch_up(whole)

    def _encode(self, raw: bytes) -> str:
        text = b2a_base64(raw, newline=False).decode("ascii")
        self.write(text)
        return text


def _bytes(segment: str) -> bytes:
    """The bytes of base64 without its padding; a lone character at the end holds none."""
    segment = segment[:-1] if len(segment) % 4 == 1 else segment
    return a2b_base64(segment + "=" * (-len(segment) % 4))


EMPTY_PARTS: dict[str, Part] = {
    "text": Text(""),
    "annotation": Text(""),
    "refusal": Refusal(""),
    "reasoning": Thought(""),
    "summary": Summary(""),
    "audio": Audio(),
    "transcript": Audio(),
}
_KINDS: dict[type, DeltaKind] = {
    Refusal: "refusal",
    Thought: "reasoning",
    Summary: "summary",
    Audio: "audio",
}
_DELTAS: dict[type, frozenset[str]] = {
    Message: frozenset(("text", "refusal", "audio", "transcript")),
    Reasoning: frozenset(("reasoning", "summary")),
    FunctionCall: frozenset(("arguments",)),
    CustomToolCall: frozenset(("input",)),
}
"""The kinds of delta each item is made of."""
_ITEM_DELTAS = frozenset(("arguments", "input", "code", "command", "output"))
_BLANK: dict[type, dict[str, Any]] = {
    Message: {"content": (), "status": "in_progress"},
    Reasoning: {"content": (), "summary": (), "encrypted": None, "status": "in_progress"},
    FunctionCall: {"arguments": "", "status": "in_progress"},
    CustomToolCall: {"input": "", "status": "in_progress"},
    Text: {"text": "", "annotations": (), "tokens": ()},
    Refusal: {"text": "", "tokens": ()},
    Thought: {"text": "", "tokens": ()},
    Summary: {"text": ""},
    Audio: {"data": None, "transcript": None},
}
"""The fields that are filled while an item or a part is written, as they are when it opens."""


_CLOSED = TextBuffer()


class OpenPart:
    """A part while it is being written."""

    __slots__ = ("annotations", "base", "closed", "data", "final", "index", "tokens", "transcript")

    def __init__(self, index: int, base: Part) -> None:
        self.index = index
        self.base = base
        audio = isinstance(base, Audio)
        self.data = Base64Buffer() if audio else TextBuffer()
        self.transcript = TextBuffer() if audio else self.data
        self.annotations: list[Annotation] = []
        self.tokens: list[Token] = []
        self.closed = False
        self.final = base  # as it was closed

    def close(self) -> Part:
        """The complete part, of which no more is written: its text, which may be large, is held
        once."""
        text = self.data.getvalue()
        values = {
            "text": text,
            "annotations": tuple(self.annotations),
            "tokens": tuple(self.tokens),
            "data": text or None,
            "transcript": (text if self.transcript is self.data else self.transcript.getvalue())
            or None,
        }
        filled = {name: values[name] for name in _BLANK.get(type(self.base), ())}
        self.closed, self.final = True, replace(self.base, **filled)
        self.data = self.transcript = _CLOSED
        return self.final


class OpenItem:
    """An item while it is being written.

    `kind` is what was written last, `part` where, and `number` the upstream's number of that part.
    """

    __slots__ = (
        "_extra",
        "_numbered",
        "_open",
        "_room",
        "choice",
        "data",
        "empty",
        "index",
        "kind",
        "number",
        "part",
        "parts",
        "status",
        "summaries",
    )

    def __init__(self, index: int, choice: int, item: Item, room: Iterator[None]) -> None:
        self.index = index
        self.choice = choice
        self.empty = item
        self.status: ItemStatus = "completed"
        self.kind: DeltaKind | None = None
        self.parts: list[OpenPart] = []
        self.summaries: list[OpenPart] = []
        self.data = TextBuffer()  # of a call: its arguments or input
        self.part: OpenPart | None = None
        self.number: int | None = None
        self._numbered: dict[tuple[type, int], OpenPart] = {}
        self._open: list[OpenPart] = []  # parts, some of which may be closed by now
        self._room = room  # one for each part that the answer may still have
        self._extra: Extra | None = None  # what was added to the item's own

    # ---- writing -------------------------------------------------------------------------

    def write(
        self,
        kind: DeltaKind,
        data: str,
        number: int | None = None,
        tokens: tuple[Token, ...] = (),
    ) -> list[Event]:
        """Add a piece; the events of it.

        `number` is the upstream's own number of the part; None means the current one. Ignored are
        more of a part that is closed, and deltas that an item of this type does not have.
        """
        events: list[Event] = []
        if kind != self.kind and kind not in _DELTAS.get(type(self.empty), _ITEM_DELTAS):
            return events
        if kind not in EMPTY_PARTS:
            self.kind, buffer, place, tokens = kind, self.data, 0, ()
        else:
            part = self.part
            if kind != self.kind or part is None or part.closed or number != self.number:
                events, part = self.at(kind, number)
                if part.closed:
                    return []
            place = part.index
            buffer = part.transcript if kind == "transcript" else part.data
            part.tokens += tokens
        if type(buffer) is TextBuffer and not buffer.carry and data.isascii():
            buffer.write(data)  # as nearly always; `add` does the same
        else:
            data = buffer.add(data)
        if data or tokens:
            events.append(Delta(self.index, place, kind, data, tokens))
        return events

    def annotate(self, annotation: Annotation, number: int | None = None) -> list[Event]:
        """Add an annotation to a text part."""
        events, part = self.at("text", number)
        if part.closed:
            return []
        part.annotations.append(annotation)
        events.append(Delta(self.index, part.index, "annotation", annotation))
        return events

    def set_audio(
        self, *, id: str | None, format: str | None, expires_at: int | None
    ) -> list[Event]:
        """Set fields of spoken audio."""
        opened = Audio(id=id, format=format, expires_at=expires_at)
        events, part = self.at("audio", base=opened)
        base = part.base
        if not events and isinstance(base, Audio):
            part.base = replace(
                base,
                id=id or base.id,
                format=format or base.format,
                expires_at=base.expires_at if expires_at is None else expires_at,
            )
        return events

    def add_extra(self, extra: Extra) -> None:
        """Add fields of some wire to the item."""
        if self._extra is None:
            self._extra = {wire: {**fields} for wire, fields in (self.empty.extra or {}).items()}
        for wire, fields in extra.items():
            self._extra.setdefault(wire, {}).update(fields)

    def attach_reasoning(self, extra: Extra, encrypted: str | None) -> None:
        """Add what the client must send back with this reasoning."""
        if isinstance(self.empty, Reasoning):
            self.add_extra(extra)
            self.empty = replace(self.empty, encrypted=encrypted or self.empty.encrypted)

    def at(
        self, kind: DeltaKind, number: int | None = None, base: Part | None = None
    ) -> tuple[list[Event], OpenPart]:
        """The part for this kind of delta, and the events of opening it where needed. Raises
        FaultError for one too many.

        Without a number the part before is closed; parts with numbers may be open side by side.
        """
        base = base or EMPTY_PARTS[kind]
        parts = self.summaries if isinstance(base, Summary) else self.parts
        if number is not None:
            part = self._numbered.get((type(base), number))
        else:
            part = parts[-1] if parts else None
            if part is not None and (part.closed or type(part.base) is not type(base)):
                part = None
        events: list[Event] = []
        if part is None:
            events = self._close_parts() if number is None else []
            if next(self._room, self) is self:
                raise FaultError(TOO_MANY)
            part = OpenPart(len(parts), base)
            parts.append(part)
            self._open.append(part)
            events.append(PartAdded(self.index, part.index, base))
            if number is not None:
                self._numbered[type(base), number] = part
        self.part, self.number = part, number
        self.kind = kind if isinstance(base, type(EMPTY_PARTS[kind])) else None
        return events, part

    # ---- closing -------------------------------------------------------------------------

    def close_part(self, part: OpenPart, final: Part | None = None) -> list[Event]:
        """Close one part; `final` is the upstream's own complete part."""
        if part.closed:
            return []
        events: list[Event] = []
        if final is not None and type(final) is type(part.base):
            events += self._catch_up(part, final)
        kinds: tuple[DeltaKind, DeltaKind] = (part_kind(part.base), "transcript")
        for kind, buffer in zip(kinds, (part.data, part.transcript), strict=True):
            if rest := buffer.rest():
                events.append(Delta(self.index, part.index, kind, rest))
        events.append(PartDone(self.index, part.index, part.close()))
        return events

    def close(self, final: Item | None = None) -> tuple[list[Event], Item]:
        """Close what is open; the events, and the complete item.

        A completed function call without arguments gets the empty object for them.
        """
        events: list[Event] = []
        if final is not None and type(final) is type(self.empty):
            events += self._catch_up_item(final)
            self.empty, self._extra = _merge(self.empty, final), None
            status = getattr(final, "status", None)
            self.status = self.status if status in (None, "in_progress") else status
        events += self._close_parts()
        rest = self.data.rest()
        if isinstance(self.empty, FunctionCall) and self.status == "completed":
            rest += "" if self.data.getvalue().strip() else self.data.add("{}")
        if rest:
            events.append(Delta(self.index, 0, self._call_kind, rest))
        return events, self._done()

    @property
    def _call_kind(self) -> DeltaKind:
        return self.kind or ("input" if isinstance(self.empty, CustomToolCall) else "arguments")

    def _close_parts(self) -> list[Event]:
        parts, self._open = self._open, []
        if len(parts) > 1:  # summaries first
            parts.sort(key=lambda part: not isinstance(part.base, Summary))
        return [event for part in parts for event in self.close_part(part)]

    def _done(self) -> Item:
        text = self.data.getvalue()
        values = {
            "content": tuple([part.final for part in self.parts]),
            "summary": tuple([part.final for part in self.summaries]),
            "arguments": text,
            "input": text,
            "encrypted": getattr(self.empty, "encrypted", None),
            "status": self.status,
        }
        filled = {name: values[name] for name in _BLANK.get(type(self.empty), ())}
        if self._extra is not None:
            filled["extra"] = self._extra or None
        return replace(self.empty, **filled)

    def _catch_up_item(self, final: Item) -> list[Event]:
        """Emit what the final item has and the deltas did not bring."""
        lists: list[tuple[list[OpenPart], tuple[Part, ...]]] = []
        match final:
            case Message():
                lists = [(self.parts, final.parts)]
            case Reasoning():
                lists = [(self.summaries, final.summary), (self.parts, final.content)]
            case FunctionCall(arguments=text) | CustomToolCall(input=text):
                missing = self.data.catch_up(text)
                return [Delta(self.index, 0, self._call_kind, missing)] if missing else []
        events: list[Event] = []
        for have, want in lists:
            known = {(type(part.base), number): part for number, part in enumerate(have)}
            for number, part in enumerate(want):
                open_part = (self._numbered or known).get((type(part), number))
                if open_part is None:
                    more, open_part = self.at(part_kind(part), base=empty_part(part))
                    events += more
                events += self.close_part(open_part, part)
        return events

    def _catch_up(self, part: OpenPart, final: Part) -> list[Event]:
        """Emit what the final part has and the deltas did not bring."""
        events: list[Event] = []
        if isinstance(final, Text | Refusal | Thought | Summary):
            fresh = () if part.tokens else getattr(final, "tokens", ())
            part.tokens += fresh
            piece = part.data.catch_up(final.text)
            if piece or fresh:
                events.append(Delta(self.index, part.index, part_kind(final), piece, fresh))
        if isinstance(final, Text):
            for note in final.annotations[len(part.annotations) :]:
                part.annotations.append(note)
                events.append(Delta(self.index, part.index, "annotation", note))
        if isinstance(final, Audio):
            if piece := part.data.catch_up(final.data or ""):
                events.append(Delta(self.index, part.index, "audio", piece))
            if piece := part.transcript.catch_up(final.transcript or ""):
                events.append(Delta(self.index, part.index, "transcript", piece))
        part.base = empty_part(final)
        return events


def unique(given: str | None, derived: str, taken: set[str]) -> str:
    """The id that was given, or where it is missing or taken the derived one; taken from now on."""
    id = given if given and given not in taken else derived
    while id in taken:
        id += "_"
    taken.add(id)
    return id


def empty_item(item: Item) -> Item:
    """The item as it is when it opens: its ids, and no content."""
    blank = _BLANK.get(type(item))
    return replace(item, **blank) if blank else item


def empty_part(part: Part) -> Part:
    """The part as it is when it opens."""
    blank = _BLANK.get(type(part))
    return replace(part, **blank) if blank else part


def part_kind(part: Part) -> DeltaKind:
    """The kind of delta a part is made of."""
    return _KINDS.get(type(part), "text")


def _merge(old: Item, final: Item) -> Item:
    """The upstream's final item, with the ids and the name it was announced with."""
    given: dict[str, Any] = {"id": old.id}
    if isinstance(old, FunctionCall | CustomToolCall):
        given |= {"call_id": old.call_id, "name": old.name}
    if isinstance(final, Reasoning):
        given["encrypted"] = final.encrypted
    return replace(empty_item(final), **given)
