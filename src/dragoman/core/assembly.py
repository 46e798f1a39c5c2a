"""One item while it is being written: its parts, the pieces they are made of, and their closing.

`Turn` decides which item a piece belongs to; this module only adds the piece and says what
happened. It upholds that deltas joined are the text that is done, also where an upstream sends
half a character, leaves deltas out, or ends on a text that is not what it streamed.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from typing import Any

from msgspec.structs import replace

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
    Unknown,
)

_BLANKS: dict[str, Part] = {
    "text": Text(""),
    "annotation": Text(""),
    "refusal": Refusal(""),
    "reasoning": Thought(""),
    "summary": Summary(""),
    "audio": Audio(),
    "transcript": Audio(),
}
_SURROGATE = re.compile("[\ud800-\udfff]")
WORDED = Text | Refusal | Thought | Summary


class _Pieces:
    """Pieces of text; half a character waits for its other half."""

    __slots__ = ("carry", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.carry = ""

    def add(self, data: str) -> str:
        """The text that is whole now."""
        if self.carry or not data.isascii():
            data = self._whole(self.carry + data)
        self.pieces.append(data)
        return data

    def rest(self) -> str:
        """What is left at the end: a half that never met its other half."""
        if not self.carry:
            return ""
        self.carry = ""
        self.pieces.append("\ufffd")
        return "\ufffd"

    def _whole(self, data: str) -> str:
        self.carry = ""
        if _SURROGATE.search(data) is None:
            return data
        if "\ud800" <= data[-1] <= "\udbff":
            data, self.carry = data[:-1], data[-1]
        return data.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def __str__(self) -> str:
        return "".join(self.pieces)


class _Base64Pieces(_Pieces):
    """Pieces of base64, cut anywhere; given on in pieces that decode by themselves."""

    __slots__ = ("_raw",)

    def __init__(self) -> None:
        super().__init__()
        self._raw = b""

    def add(self, data: str) -> str:
        data = self.carry + data
        whole = len(data) - len(data) % 4
        self.carry = data[whole:]
        raw = self._raw + a2b_base64(data[:whole])
        cut = len(raw) - len(raw) % 3
        self._raw = raw[cut:]
        return self._give(raw[:cut])

    def rest(self) -> str:
        raw, self._raw, self.carry = self._raw, b"", ""
        return self._give(raw)

    def _give(self, raw: bytes) -> str:
        text = b2a_base64(raw, newline=False).decode("ascii")
        if text:
            self.pieces.append(text)
        return text


class OpenPart:
    """A part while it is being written."""

    __slots__ = ("annotations", "base", "data", "index", "shut", "tokens", "transcript")

    def __init__(self, index: int, base: Part) -> None:
        self.index = index
        self.base = base
        self.data = _Base64Pieces() if isinstance(base, Audio) else _Pieces()
        self.transcript = _Pieces()
        self.annotations: list[Annotation] = []
        self.tokens: list[Token] = []
        self.shut = False

    def done(self) -> Part:
        """The part as it stands."""
        match self.base:
            case Text():
                notes, tokens = tuple(self.annotations), tuple(self.tokens)
                return replace(self.base, text=str(self.data), annotations=notes, tokens=tokens)
            case Refusal():
                return replace(self.base, text=str(self.data), tokens=tuple(self.tokens))
            case Thought() | Summary():
                return replace(self.base, text=str(self.data))
            case Audio():
                heard = str(self.transcript) or self.base.transcript
                return replace(self.base, data=str(self.data) or None, transcript=heard)
            case _:
                return self.base


class OpenItem:
    """An item while it is being written. `kind` is what the open part takes."""

    __slots__ = (
        "_part",
        "blank",
        "choice",
        "data",
        "index",
        "kind",
        "parts",
        "status",
        "summaries",
    )

    def __init__(self, index: int, choice: int, item: Item) -> None:
        self.index = index
        self.choice = choice
        self.blank = item
        self.status: ItemStatus = "completed"
        self.kind: str | None = None
        self.parts: list[OpenPart] = []
        self.summaries: list[OpenPart] = []
        self.data = _Pieces()  # of a call: its arguments or input
        self._part: OpenPart | None = None

    # ---- writing -------------------------------------------------------------------------

    def write(
        self,
        kind: DeltaKind,
        data: str,
        part_index: int | None = None,
        tokens: tuple[Token, ...] = (),
    ) -> list[Event]:
        """Add a piece and say what happened; `part_index` None means wherever we are."""
        if kind not in _BLANKS:
            text = self.data.add(data)
            return [Delta(self.index, 0, kind, text)] if text else []
        part = self._part
        events: list[Event] = []
        if kind != self.kind or part is None or part_index not in (None, part.index):
            events, part = self.at(kind, part_index)
        text = (part.transcript if kind == "transcript" else part.data).add(data)
        if tokens:
            part.tokens += tokens
        if text or tokens:
            events.append(Delta(self.index, part.index, kind, text, tokens))
        return events

    def annotate(self, annotation: Annotation, part_index: int | None = None) -> list[Event]:
        """Add a note to a text part."""
        events, part = self.at("text", part_index)
        part.annotations.append(annotation)
        events.append(Delta(self.index, part.index, "annotation", annotation))
        return events

    def hear(self, *, id: str | None, format: str | None, expires_at: int | None) -> list[Event]:
        """Facts about spoken audio."""
        last = self.parts[-1] if self.parts else None
        if last is None or not isinstance(last.base, Audio):
            opened = Audio(id=id, format=format, expires_at=expires_at)
            return self.at("audio", base=opened)[0]
        base = last.base
        last.base = replace(
            base,
            id=id or base.id,
            format=format or base.format,
            expires_at=base.expires_at if expires_at is None else expires_at,
        )
        return []

    def seal(self, extra: Extra, encrypted: str | None) -> None:
        """What must go back to the model with this reasoning."""
        if isinstance(self.blank, Reasoning):
            merged = dict(self.blank.extra or {})
            for wire, fields in extra.items():
                merged[wire] = {**merged.get(wire, {}), **fields}
            sealed = encrypted or self.blank.encrypted
            self.blank = replace(self.blank, extra=merged or None, encrypted=sealed)

    def at(
        self, kind: str, part_index: int | None = None, base: Part | None = None
    ) -> tuple[list[Event], OpenPart]:
        """Go to a part, opening it (and closing the one before) where needed."""
        base = base or _BLANKS[kind]
        parts = self.summaries if isinstance(base, Summary) else self.parts
        last = parts[-1] if parts else None
        if part_index is None:
            if last is not None and not last.shut and type(last.base) is type(base):
                self._part, self.kind = last, kind
                return [], last
        elif part_index < len(parts):
            self._part, self.kind = parts[part_index], kind
            return [], parts[part_index]
        events = self._shut_parts()
        part = OpenPart(len(parts), base)
        parts.append(part)
        self._part, self.kind = part, kind
        events.append(PartAdded(self.index, part.index, base))
        return events, part

    # ---- closing -------------------------------------------------------------------------

    def shut_part(self, part: OpenPart, final: Part | None = None) -> list[Event]:
        """Close one part; `final` is the upstream's own idea of it."""
        if part.shut:
            return []
        events: list[Event] = []
        if final is not None and type(final) is type(part.base):
            events += self._catch_up(part, final)
        kind: DeltaKind = part_kind(part.base)
        both: tuple[tuple[_Pieces, DeltaKind], ...]
        both = ((part.data, kind), (part.transcript, "transcript"))
        for pieces, name in both:
            if rest := pieces.rest():
                events.append(Delta(self.index, part.index, name, rest))
        part.shut = True
        events.append(PartDone(self.index, part.index, part.done()))
        return events

    def shut(self, final: Item | None = None) -> tuple[list[Event], Item]:
        """Close what is open and give the events and the item as it is now known."""
        events: list[Event] = []
        if final is not None and type(final) is type(self.blank):
            events += self._catch_up_item(final)
            self.blank = _merge(self.blank, final)
            self.status = getattr(final, "status", None) or self.status
        events += self._shut_parts()
        if rest := self.data.rest():
            events.append(Delta(self.index, 0, self._call_kind, rest))
        return events, self._done()

    @property
    def _call_kind(self) -> DeltaKind:
        return "input" if isinstance(self.blank, CustomToolCall) else "arguments"

    def _shut_parts(self) -> list[Event]:
        events: list[Event] = []
        for part in (*self.summaries, *self.parts):
            if not part.shut:
                events += self.shut_part(part)
        return events

    def _done(self) -> Item:
        content = tuple(part.done() for part in self.parts)
        match self.blank:
            case Message():
                return replace(self.blank, content=content, status=self.status)
            case Reasoning():
                summary = tuple(part.done() for part in self.summaries)
                return replace(self.blank, content=content, summary=summary, status=self.status)
            case FunctionCall():
                return replace(self.blank, arguments=str(self.data), status=self.status)
            case CustomToolCall():
                return replace(self.blank, input=str(self.data), status=self.status)
            case _:
                return self.blank

    def _catch_up_item(self, final: Item) -> list[Event]:
        match final:
            case Message():
                lists: list[tuple[Any, Any]] = [(self.parts, final.parts)]
            case Reasoning():
                lists = [(self.summaries, final.summary), (self.parts, final.content)]
            case FunctionCall():
                return self._catch_up_call(final.arguments or "{}")
            case CustomToolCall():
                return self._catch_up_call(final.input)
            case _:
                return []
        events: list[Event] = []
        for have, want in lists:
            for number, part in enumerate(want):
                if number < len(have):
                    events += self.shut_part(have[number], part)
                else:
                    more, fresh = self.at(part_kind(part), base=blank_part(part))
                    events += more + self.shut_part(fresh, part)
        return events

    def _catch_up_call(self, text: str) -> list[Event]:
        missing = _missing(str(self.data), text)
        return [Delta(self.index, 0, self._call_kind, self.data.add(missing))] if missing else []

    def _catch_up(self, part: OpenPart, final: Part) -> list[Event]:
        """Say what the final part has and the deltas did not bring."""
        events: list[Event] = []
        if isinstance(final, WORDED):
            missing = _missing(str(part.data), final.text)
            fresh = () if part.tokens else getattr(final, "tokens", ())
            if missing or fresh:
                part.tokens += fresh
                piece = part.data.add(missing)
                events.append(Delta(self.index, part.index, part_kind(final), piece, fresh))
        if isinstance(final, Text):
            for note in final.annotations[len(part.annotations) :]:
                part.annotations.append(note)
                events.append(Delta(self.index, part.index, "annotation", note))
        if isinstance(final, Audio):
            both: tuple[tuple[_Pieces, DeltaKind, str | None], ...] = (
                (part.data, "audio", final.data),
                (part.transcript, "transcript", final.transcript),
            )
            for pieces, name, text in both:
                if missing := _missing(str(pieces), text or ""):
                    said = pieces.add(missing)
                    events.append(Delta(self.index, part.index, name, said))
        part.base = blank_part(final)
        return events


def blank(item: Item) -> Item:
    """The item as it is when it opens: its identity, and nothing in it yet."""
    match item:
        case Message():
            return replace(item, content=(), status="in_progress")
        case Reasoning():
            return replace(item, content=(), summary=(), encrypted=None, status="in_progress")
        case FunctionCall():
            return replace(item, arguments="", status="in_progress")
        case CustomToolCall():
            return replace(item, input="", status="in_progress")
        case _:
            return item


def blank_part(part: Part) -> Part:
    """The part as it is when it opens."""
    match part:
        case Text():
            return replace(part, text="", annotations=(), tokens=())
        case Refusal():
            return replace(part, text="", tokens=())
        case Thought() | Summary():
            return replace(part, text="")
        case Audio():
            return replace(part, data=None, transcript=None)
        case _:
            return part


def part_kind(part: Part) -> DeltaKind:
    """The kind of delta a part is made of."""
    match part:
        case Refusal():
            return "refusal"
        case Thought():
            return "reasoning"
        case Summary():
            return "summary"
        case Audio():
            return "audio"
        case _:
            return "text"


def _missing(have: str, want: str) -> str:
    """What must follow `have` to make `want`; nothing where they disagree: said is said."""
    return want[len(have) :] if want.startswith(have) else ""


def _merge(old: Item, final: Item) -> Item:
    """The upstream's last word on an item, under the identity it was announced with."""
    match final:
        case Unknown():
            return final
        case FunctionCall() | CustomToolCall() if isinstance(old, FunctionCall | CustomToolCall):
            return replace(blank(final), id=old.id, call_id=old.call_id, name=old.name)
        case Reasoning():
            return replace(blank(final), id=old.id, encrypted=final.encrypted)
        case _:
            return replace(blank(final), id=old.id)
