"""Parses a model's markup into a turn: tokens or text, in pieces of any size.

One state machine for all families; the profile's tables say where each mark leads. Control tokens
are recognised by id; other marks are found in the text, which is held back while it may become one.
Between two marks a segment reads the text as the state's kind demands.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dragoman.core.item import Token
from dragoman.formats.grammar.schema import read_json
from dragoman.formats.prompt import Control, TokenTable

from .calls import LEADING, Calls, Value, skip, typed
from .emitter import Emitter, Segment
from .profile import MarkTable, Profile

_BLANKS = 64
"""How many blanks before a mark belong to it; more are text, so that no text waits for long."""
_AHEAD = 128
"""How many characters after a mark that may be data are read to find out."""
_LONGEST_NAME = 128
_SEVERAL_WORDS = re.compile(r"\S\s+\S")
_CALL_BEGINS = re.compile(r'\s*(?:\[\s*)?\{\s*"\w')
_CALL_MAY_BEGIN = re.compile(r'\s*(?:\[\s*)?(?:\{\s*"?)?')
_BARE_KEY = re.compile(r"([{,]\s*+)([^\s{}\[\],:]++(?:\s++[^\s{}\[\],:]++)*+)\s*+:")
_OPENING = re.compile(r"[{\[]")
_JUNK = re.compile(r"[\s`]*")


class TextSegment(Segment):
    """Text or reasoning. Blanks wait, because blanks before a mark belong to it."""

    def __init__(self, emit: Callable[[str], None], *, fresh: bool = False) -> None:
        self.blanks = ""
        self._emit = emit
        self._fresh = fresh  # blanks before it belong to the mark

    def feed(self, text: str, at: int, end: int) -> int:
        more = self.blanks + text[at:end]
        if self._fresh:
            more = more.lstrip()
            self._fresh = not more
        text_part = more.rstrip()
        self.blanks = more[len(text_part) :]
        if len(self.blanks) > _BLANKS:
            text_part, self.blanks = more[:-_BLANKS], self.blanks[-_BLANKS:]
        if text_part:
            self._emit(text_part)
        return end

    def leave(self, target: str | None) -> None:
        if self.blanks and target in (None, "over"):
            self._emit(self.blanks)
        self.blanks = ""


class LeadingBlanks(Segment):
    """The start of a message. It ends at the first character that is not blank.

    `blanks` are the blanks of the `first` message; those of others belong to what came before.
    """

    def __init__(self, emitter: Emitter, first: bool) -> None:
        self.blanks = ""
        self._emitter = emitter
        self._first = first

    def feed(self, text: str, at: int, end: int) -> int:
        stop = skip(LEADING, text, at, end)
        if self._first:
            self.blanks += text[at:stop]
        return stop

    def leave(self, target: str | None) -> None:
        if target in (None, "over") and self.blanks:
            self._emitter.text(self.blanks)


class AfterEnd(Segment):
    """Text after the end, which is discarded with a warning."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._warned = False

    def feed(self, text: str, at: int, end: int) -> int:
        if not self._warned and text[at:end].strip():
            self._warned = True
            self._emitter.warn("the model wrote on after its end")
        return end


class CollectedText(Segment):
    """A short text that is needed whole: `use` gets it with the kind of the state that follows."""

    def __init__(self, emitter: Emitter, use: Callable[[Emitter, str, str | None], None]) -> None:
        self._emitter = emitter
        self._use = use
        self.pieces: list[str] = []

    def feed(self, text: str, at: int, end: int) -> int:
        self.pieces.append(text[at:end])
        return end

    def leave(self, target: str | None) -> None:
        self._use(self._emitter, "".join(self.pieces), target)


def _use_id(emitter: Emitter, text: str, target: str | None) -> None:
    emitter.next_id = text.strip() or None


def _use_name(emitter: Emitter, text: str, target: str | None) -> None:
    name = emitter.name_in(text)
    if target in ("arguments", "typed", "gap", "id", "key") and name:
        emitter.next_name = name
    elif target == "start" and name:
        emitter.emit_call(name, "{}")
    elif text.strip():
        emitter.warn(f"a call could not be read: {text.strip()}")
        emitter.text(text.strip())


def _use_gap(emitter: Emitter, text: str, target: str | None) -> None:
    """Text between two parts of a call is reported, and emitted after the call."""
    text = text.strip()
    if text:
        emitter.warn(f"not expected there: {text}")
    if target not in ("key", "value") and emitter.in_call:
        if emitter.parameter:
            emitter.warn(f"an argument of {emitter.next_name} has no value: {emitter.parameter}")
        emitter.close_parameters()
    if text:
        emitter.text(text)


def _use_key(emitter: Emitter, text: str, target: str | None) -> None:
    emitter.parameter = text.strip()
    if target not in ("value", "gap"):
        emitter.warn(f"an argument of {emitter.next_name} has no value: {emitter.parameter}")
        emitter.close_parameters()


def _use_value(
    emitter: Emitter, text: str, target: str | None, *, padded: bool, known: str | None
) -> None:
    """One argument as bare text, typed by the schema of its tool where it is not `known` what it
    is; a `padded` one stands on lines of its own."""
    closed = target in ("gap", "key")
    if padded:
        text = text.removeprefix("\n")
    if not closed:
        text = text.rstrip().removesuffix("</function>")
    if padded or not closed:
        text = text.removesuffix("\n")
    name = emitter.next_name
    value = json.dumps(text, ensure_ascii=False)
    if emitter.truncated:
        value = value[:-1]
    elif known == "json" and read_json(text, emitter) is not emitter:
        value = text
    elif known != "string":
        value = typed(text, emitter.parameter, emitter.tools.get(name))
    key = json.dumps(emitter.parameter, ensure_ascii=False)
    emitter.add_arguments(f"{', ' if emitter.parameters else '{'}{key}: {value}")
    emitter.parameters, emitter.parameter = emitter.parameters + 1, ""
    if not closed:
        emitter.warn(f"an argument of {name} was not closed")
        emitter.close_parameters()


def _use_literal(emitter: Emitter, text: str, target: str | None) -> None:
    """Arguments between two strings, whose keys are bare (Gemma); what has quotes is JSON."""
    if '"' not in text:
        text = _BARE_KEY.sub(lambda key: f"{key[1]}{json.dumps(key[2])}:", text)
    emitter.add_arguments(text + ('"' if target == "string" else ""))
    if target != "string":
        emitter.close_call()


class StringText(Segment):
    """A string between two marks (Gemma), emitted as a JSON string as it arrives."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def feed(self, text: str, at: int, end: int) -> int:
        self._emitter.add_arguments(json.dumps(text[at:end], ensure_ascii=False)[1:-1])
        return end

    def leave(self, target: str | None) -> None:
        if target == "literal":
            self._emitter.add_arguments('"')
        else:
            self._emitter.close_call()


_USES = {"id": _use_id, "gap": _use_gap, "key": _use_key, "literal": _use_literal}


class Name(CollectedText):
    """The name of a call, up to a mark.

    With `braces` a brace may end it: arguments follow, or calls that carry their own names. What is
    in a `tag` is one word: several are ordinary text.
    """

    def __init__(self, emitter: Emitter, braces: bool, tag: bool) -> None:
        super().__init__(emitter, _use_name)
        emitter.next_name, emitter.next_id, emitter.parameters = "", None, 0
        self.rejected = False
        self._braces = braces
        self._tag = tag
        self._size = 0

    def feed(self, text: str, at: int, end: int) -> int:
        found = _OPENING.search(text, at, end) if self._braces else None
        stop = found.start() if found else end
        super().feed(text, at, stop)
        self._size += stop - at
        name = "".join(self.pieces) if self._tag or found else ""
        several = self._tag and _SEVERAL_WORDS.search(name) is not None
        self.rejected = self._size > _LONGEST_NAME or several
        if found:
            self._emitter.next_name = self._emitter.name_in(name)
        return stop


class Arguments(Segment):
    """JSON, emitted as it arrives. It ends with its last brace; other text lasts to the mark.

    With `named` a name stands before it, perhaps in a fence (DeepSeek's `function` type).
    """

    def __init__(self, emitter: Emitter, *, named: bool = False) -> None:
        self._emitter = emitter
        self._name = ""
        self._value: Value | None = None
        self._raw = False
        self._in_name = named
        if not named:
            self._begin()

    @property
    def quoted(self) -> bool:
        return self._value is not None and self._value.quoted

    def feed(self, text: str, at: int, end: int) -> int:
        if self._in_name:
            brace = text.find("{", at, end)
            self._name += text[at : end if brace < 0 else brace]
            if brace < 0:
                return end
            self._begin()
            at = brace
        if self._value is None:
            at = skip(LEADING, text, at, end)
            if at == end:
                return end
            self._value = Value()
            self._raw = text[at] not in '{["'
        if self._value.done:
            return skip(_JUNK, text, at, end)
        stop = end if self._raw else self._value.feed(text[:end] if end < len(text) else text, at)
        self._emitter.add_arguments(text[at:stop])
        return skip(_JUNK, text, stop, end) if stop < end else end

    def leave(self, target: str | None) -> None:
        if self._in_name:
            self._begin()
        self._emitter.close_call()

    def _begin(self) -> None:
        self._in_name = False
        name = self._name.split("```")[0].strip()
        self._emitter.open_call(name or self._emitter.next_name, self._emitter.next_id)
        self._emitter.next_name = ""


# ---- the parser ----------------------------------------------------------------------------

_BLOCK = 4096
"""Characters scanned together, so that a long text costs no more than many short ones."""

_CALL_KINDS = frozenset(("call", "name", "id", "typed", "gap"))


class MarkupParser:
    """Parses one answer."""

    def __init__(
        self,
        profile: Profile,
        table: Mapping[str, MarkTable],
        emitter: Emitter,
        token_table: TokenTable | None = None,
        start: str = "start",
    ) -> None:
        self._profile = profile
        self._table = table
        self._emitter = emitter
        self._token_table = token_table
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._partial = False  # bytes of an incomplete character
        self._begun = False
        self._held = ""
        self._replay = ""  # text to be parsed again
        self._ambiguous = False  # the held mark may be data of a string
        self._thinking = False
        self.reasoning_tokens = 0
        self.warnings = emitter.warnings
        self._call_start = ("text", "", "")  # the state before a call, its blanks, the mark
        self._enter(start)

    # ---- the protocol `Parser` -------------------------------------------------------------

    def feed(self, ids: Sequence[int], tokens: Sequence[Token] = ()) -> None:
        for place, id in enumerate(ids):
            self._token(id, tokens[place] if tokens else None)
            self.reasoning_tokens += self._thinking

    def write(self, text: str, tokens: Sequence[Token] = ()) -> None:
        """Parse text, from a source without ids; `tokens` are those it consists of."""
        for token in tokens:
            self._emitter.add_token(token, token.text)
        for at in range(0, len(text), _BLOCK):
            self._parse_text(text[at : at + _BLOCK])

    def flush(self, *, cut: bool = False) -> None:
        """Emit what is held back as what it turned out to be, and begin anew. Of an answer that was
        `cut`, the head of an unfinished call is dropped: markup must not be shown as text."""
        emitter = self._emitter
        self._flush_partial_character()
        marks = self._marks
        emitter.cut = cut
        emitter.dropping = cut and marks.kind in _CALL_KINDS and marks.name != "bare"
        if emitter.dropping:
            emitter.warn("the call at the end is not finished: what has not begun is left out")
        in_text = marks.kind in ("start", "text", "thought")
        if cut and not self._ambiguous and len(self._held) > in_text:
            emitter.warn(f"the half mark {self._held!r} at the end is left out")
            self._held = ""  # one character in a text is more often text
        self._release_held()
        if isinstance(self._segment, Calls) and self._segment.unproven and not emitter.dropping:
            self._backtrack(self._segment)
            self._parse_replay()
        emitter.truncated = True
        self._segment.leave(None)
        emitter.close_call()
        emitter.truncated = emitter.dropping = emitter.cut = False
        self._enter("over" if self._marks.kind == "over" else "start")

    def close(self, reason: str) -> None:
        self.flush(cut=reason == "length")
        self._emitter.finish(reason)

    # ---- tokens --------------------------------------------------------------------------

    def _token(self, id: int, token: Token | None = None) -> None:
        if self._token_table is None:
            raise TypeError("this parser was made without a tokenizer, and parses text only")
        piece = self._token_table[id]
        if isinstance(piece, Control) and piece.text in self._profile.fragments:
            piece = piece.text
        if isinstance(piece, Control):
            self._flush_partial_character()
            self._control(piece.text)
            return
        if isinstance(piece, bytes) or self._partial:
            piece = self._decoder.decode(piece if isinstance(piece, bytes) else piece.encode())
            self._partial = bool(self._decoder.getstate()[0])
        if token is not None:
            self._emitter.add_token(token, piece)
        self._parse_text(piece)

    def _flush_partial_character(self) -> None:
        if self._partial:
            self._partial = False
            self._parse_text(self._decoder.decode(b"", final=True))

    def _control(self, mark: str) -> None:
        """A control token: a mark, whatever stands around it, or else dropped."""
        self._release_held()
        if mark in self._marks.leads:
            self._follow_mark(mark)
        elif mark in self._profile.tags and self._marks.kind in ("start", "text", "thought"):
            self._feed_rest(mark)  # the request has no tools: it is text
        else:
            self._emitter.warn(f"{mark} was not expected and is left out")

    # ---- text ----------------------------------------------------------------------------

    def _parse_text(self, text: str) -> None:
        segment = self._segment
        if isinstance(segment, TextSegment) and not (self._held or self._marks.touches(text)):
            segment.feed(text, 0, len(text))  # no mark is in it: it needs no scan
        elif text:
            text, self._held = self._held + text, ""
            self._ambiguous = False
            self._run(text)

    def _run(self, text: str) -> None:
        at = 0
        while at < len(text):
            at = self._step(text, at)
            if self._replay:
                text, at, self._replay = self._replay + text[at:], 0, ""

    def _step(self, text: str, at: int) -> int:
        """Read up to the next mark, or to where a mark may be beginning."""
        marks = self._marks
        start, end = marks.find(text, at)
        stop = start if start < len(text) else marks.held(text, at)
        if at < stop:
            reached = self._feed(text, at, stop)
            if self._marks is not marks or reached < stop:
                return reached
        if start == len(text):
            self._held = text[stop:]
            return len(text)
        doubtful = self._segment.quoted or (
            marks.kind == "value" and text[start:end] not in marks.state.marks
        )
        if doubtful and not self._is_mark(text, end):
            if self._ambiguous:
                self._held = text[start:]
                return len(text)
            return self._feed(text, start, end)
        self._follow_mark(text[start:end], len(text) - end)
        return end

    def _is_mark(self, text: str, at: int) -> bool:
        """Whether a mark that may be data (it is in a string, or in a value) is one after all: if
        nothing follows it but other marks, or one with which a call begins.

        `_ambiguous` says that it cannot be known yet.
        """
        text, complete = text[at : at + _AHEAD], len(text) - at >= _AHEAD
        marks, at = self._table["start"], 0
        self._ambiguous = False
        while True:
            at = skip(LEADING, text, at)
            found = marks.pattern.match(text, at)
            if found is None:
                self._ambiguous = not complete and marks.held(text, at) == at
                return False
            at = found.end()
            target = marks.leads[found[0]]
            kind = None if target is None else self._table[target].kind
            if kind == "name" or (kind == "call" and _CALL_BEGINS.match(text, at)):
                return True
            if kind == "call" and _CALL_MAY_BEGIN.fullmatch(text, at):
                self._ambiguous = not complete
                return False

    def _release_held(self) -> None:
        """No more text belongs to what is held: it is what it is."""
        held, self._held = self._held, ""
        if held and self._ambiguous:
            _, end = self._marks.find(held, 0)
            self._follow_mark(held[:end], len(held) - end)
            held = held[end:]
        self._ambiguous = False
        if held:
            self._feed_rest(held)
            self._parse_replay()

    def _parse_replay(self) -> None:
        """Parse again what must be, and nothing after it."""
        while self._replay:
            replay, self._replay = self._replay, ""
            self._run(replay)
            held, self._held = self._held, ""
            self._feed_rest(held)

    def _feed_rest(self, text: str) -> None:
        at = 0
        while at < len(text):
            at = self._feed(text, at, len(text))
            if self._replay:
                self._replay += text[at:]
                return

    # ---- states --------------------------------------------------------------------------

    def _feed(self, text: str, at: int, end: int) -> int:
        """Read text[at:end] in this state, and change it if the segment ends by itself."""
        segment = self._segment
        at = segment.feed(text, at, end)
        if isinstance(segment, Calls | Name) and segment.rejected:
            self._backtrack(segment)
        elif at < end:
            self._leave_segment(segment, text[at], len(text) - at)
        return at

    def _leave_segment(self, segment: Segment, char: str, left: int) -> None:
        """A segment ended by itself, before this character."""
        state, self._begun = self._marks.state, True
        if isinstance(segment, LeadingBlanks):
            bare = self._profile.bare and self._emitter.tools and char in "{["
            blanks = segment.blanks
            if not blanks:
                self._emitter.drop_tokens(left)
            self._enter("bare" if bare else "text")
            self._segment.feed(blanks, 0, len(blanks))
        elif isinstance(segment, Name):
            self._enter(state.then if self._emitter.next_name else state.braces or state.then)
        else:
            segment.leave("start")
            self._emitter.drop_tokens(left)
            self._enter(state.then)

    def _backtrack(self, segment: Calls | Name) -> None:
        """What looked like a call is none: parse it again as text of the state before it."""
        raw = "".join(segment.raw if isinstance(segment, Calls) else segment.pieces)
        name, blanks, mark = self._call_start
        self._enter(name)
        if mark:
            self._emitter.warn(f"{mark} was not followed by a call")
        before = blanks + (mark if mark in self._profile.tags else "")
        self._segment.feed(before, 0, len(before))
        self._replay = raw

    def _follow_mark(self, mark: str, left: int = 0) -> None:
        target = self._marks.leads[mark]
        if target is None:
            self._emitter.warn(f"{mark} does not belong there and is left out")
            return
        self.reasoning_tokens += self._thinking and self._token_table is not None
        self._begun = True
        kind, segment = self._table[target].kind, self._segment
        if kind in ("call", "name"):
            blanks = segment.blanks if isinstance(segment, TextSegment) else ""
            self._call_start = ("thought" if self._thinking else "text", blanks, mark)
        segment.leave(kind)
        self._emitter.drop_tokens(left)
        self._enter(target)

    def _enter(self, name: str) -> None:
        marks = self._marks = self._table[name]
        self._thinking = marks.kind == "thought"
        self._segment = self._segment_for(marks)

    def _segment_for(self, marks: MarkTable) -> Segment:
        emitter = self._emitter
        match marks.kind:
            case "start":
                return LeadingBlanks(emitter, not self._begun)
            case "text":
                return TextSegment(emitter.text)
            case "thought":
                return TextSegment(emitter.thought, fresh=True)
            case "call" if marks.name == "bare":
                self._call_start = ("text", "", "")
                return Calls(emitter, None, frozenset(emitter.tools))
            case "call":
                return Calls(emitter, self._profile.code)
            case "name":
                tag = self._call_start[2] in self._profile.tags
                return Name(emitter, marks.state.braces is not None, tag)
            case "typed" | "arguments":
                return Arguments(emitter, named=marks.kind == "typed")
            case "value":
                padded = "\n{}\n" in self._profile.syntax.argument
                use = partial(_use_value, padded=padded, known=marks.state.known)
                return CollectedText(emitter, use)
            case "string":
                return StringText(emitter)
            case "id" | "gap" | "key" | "literal":
                if marks.kind != "id" and emitter.next_name and not emitter.in_call:
                    emitter.open_call(emitter.next_name)
                return CollectedText(emitter, _USES[marks.kind])
            case "header":
                return Segment()
            case _:
                return AfterEnd(emitter)
