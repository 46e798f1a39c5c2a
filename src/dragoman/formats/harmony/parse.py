"""Parses harmony into a turn: tokens or text, in pieces of any size, well formed or not."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol

from msgspec import Struct

from dragoman.core.item import CustomToolCall, FunctionCall, Message, Reasoning, Token
from dragoman.core.loss import Loss
from dragoman.core.turn import Turn

from .layout import (
    CHANNEL,
    COMMENTARY_PHASE,
    CONSTRAIN,
    ENDS,
    FINAL_PHASE,
    IN_TEXT,
    MESSAGE,
    START,
    Mark,
    Opening,
    Vocabulary,
    certain,
)
from .tools import NOBODY, Callee, Toolkit

Channel = Literal["analysis", "commentary", "final"]

_CHANNELS: tuple[Channel, ...] = ("analysis", "commentary", "final")
_CONTENT_TYPES = frozenset(("json", "code", "text", "python"))
_STRANGERS = ("user", "system", "developer", "tool")
_ASSISTANT = re.compile(r"\s*assistant(?::[^\s<]*)?")
_CONSTRAINT = re.compile(re.escape(CONSTRAIN) + r"\s*")
_WORD = re.compile(r"\s*([^\s<]*)")
_NAME = re.compile(r"[\w.-]+")


class Header(Struct, frozen=True):
    """What a header says, and what was wrong with it."""

    channel: Channel | None = None
    recipient: str | None = None
    content_type: str | None = None
    foreign: bool = False
    """Whether somebody else speaks: the model went on and wrote the user's or a tool's part."""
    rest: str = ""
    """What stands behind the channel, for a message whose header never ended."""
    warnings: tuple[str, ...] = ()


def read_header(text: str) -> Header:
    """What the text between the start of a message and its content says.

    >>> read_header("<|channel|>commentary to=functions.f <|constrain|>json").recipient
    'functions.f'
    >>> read_header("<|channel|>final <|constrain|>json").content_type
    'json'
    """
    before, _, after = text.partition(CHANNEL)
    foreign = _is_foreign(before)
    before = without_role(before)
    warnings: list[str] = []
    name, after = _first_word(after)
    if not name:  # the mark is missing, or its channel is
        name, before = _first_word(before)
        if _channel(name) is None:
            name, before = "", f"{name}{before}"
    channel = _channel(name)
    if name and name != channel:
        warnings.append(f"the channel {name!r} was read as {channel or 'final'}")
    recipient, content_type = _addressed(_words(f"{before} {after}"), warnings)
    return Header(channel, recipient, content_type, foreign, after, tuple(warnings))


def looks_like_one(text: str) -> bool:
    """Whether text at the place of a header whose start was left out may be one.

    >>> looks_like_one("assist"), looks_like_one(" to=functions"), looks_like_one("Hello")
    (True, True, False)
    """
    word = text.lstrip()
    if word.startswith(("assistant", "to=")):
        return True
    end = next((at for at, letter in enumerate(word) if not letter.isalnum()), len(word))
    if end < len(word):
        return word[:end] in _CHANNELS
    return any(known.startswith(word) for known in ("assistant", "to=", *_CHANNELS))


def without_role(text: str) -> str:
    """The text without an assistant's role in front."""
    role = _ASSISTANT.match(text)
    return text[role.end() :] if role else text


def _is_foreign(before: str) -> bool:
    name, _ = _first_word(before)
    role, _, _ = name.partition(":")
    return role in _STRANGERS or "to=assistant" in before.split()


def _first_word(text: str) -> tuple[str, str]:
    found = _WORD.match(text)
    return (found[1], text[found.end() :]) if found else ("", text)


def _channel(name: str) -> Channel | None:
    """The channel a name begins with or is the beginning of."""
    letters = name.rstrip("?!.:;,")
    for channel in _CHANNELS:
        if letters and (channel.startswith(letters) or letters.startswith(channel)):
            return channel
    return None


def _words(text: str) -> list[str]:
    text = _CONSTRAINT.sub(f" {CONSTRAIN}", text.replace(CHANNEL, " "))
    return text.replace("to= ", "to=").split()


def _addressed(words: list[str], warnings: list[str]) -> tuple[str | None, str | None]:
    """Recipient and content type. Without `to=`, a lone word that names no type is a recipient."""
    recipients = [word[3:] for word in words if word.startswith("to=")]
    others = [word for word in words if not word.startswith("to=")]
    types = [word for word in others if word in _CONTENT_TYPES or CONSTRAIN in word]
    others = [word for word in others if word not in types]
    if not recipients and others and _NAME.fullmatch(others[0]) and len(others) + len(types) <= 2:
        recipients.append(others.pop(0))
    if others and not types:
        types.append(others.pop())
    ignored = [*recipients[1:], *types[1:], *others]
    if ignored:
        warnings.append(f"a header had words to spare: {' '.join(ignored)!r}")
    content_type = types[0].replace(CONSTRAIN, "") if types else None
    return recipients[0] if recipients else None, content_type


Ending = Literal["completed", "incomplete"]


Flow = Callable[[str], None]


class Body(Protocol):
    """The content of a message while it comes."""

    @property
    def flow(self) -> Flow | None:
        """Where more of it may go straight on, once there is some: the same as `add`, sooner."""
        ...

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        """More of it."""
        ...

    def close(self, ending: Ending) -> None:
        """It is at its end; an incomplete one was cut."""
        ...


class Said:
    """A message to the user, in a phase of the answer. A final one is said even if it is empty."""

    def __init__(self, turn: Turn, phase: str, final: bool) -> None:
        self._turn = turn
        self._phase = phase
        self._final = final
        self.flow: Flow | None = None

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        if self.flow is None:
            self._begin()
        self._turn.text(text, 0, tokens)

    def close(self, ending: Ending) -> None:
        if self._final and self.flow is None and ending == "completed":
            self._turn.write(self._begin(), "text", "")
        if ending == "completed":
            self._turn.close_message()

    def _begin(self) -> int:
        self.flow = self._turn.text
        return self._turn.next_item(Message("assistant", phase=self._phase))


class Thought:
    """Reasoning."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.flow: Flow | None = None

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        if self.flow is None:
            self.flow = self._turn.reasoning
            self._turn.next_item(Reasoning())
        self._turn.reasoning(text, 0, tokens)

    def close(self, ending: Ending) -> None:
        if ending == "completed":
            self._turn.close_message()


class Called:
    """A call of one of the client's tools, its arguments exactly as the model writes them."""

    def __init__(self, turn: Turn, callee: Callee) -> None:
        self._turn = turn
        custom = callee.kind == "custom"
        kind = CustomToolCall if custom else FunctionCall
        self._index = index = turn.next_item(kind("", callee.name, "", callee.namespace))
        self.flow: Flow = partial(turn.write, index, "input" if custom else "arguments")

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        self.flow(text)

    def close(self, ending: Ending) -> None:
        if (item := self._turn.item(self._index)) is not None:
            item.status = ending
        self._turn.close(self._index)


class Unsaid:
    """What somebody else would have said."""

    flow = None

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        pass

    def close(self, ending: Ending) -> None:
        pass


_LONGEST_HEADER = 512
"""Characters after which a header is none: the model forgot it and is speaking already."""
_MOST_WARNINGS = 100

_utf8 = codecs.getincrementaldecoder("utf-8")


class HarmonyParser:
    """One answer. It begins in the header of an assistant's message, or where the prompt ended."""

    def __init__(
        self,
        turn: Turn,
        tools: Toolkit,
        opening: Opening | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._turn = turn
        self._tools = tools
        self._vocabulary = vocabulary
        self._warnings: list[str] = []
        self._decoder = _utf8("replace")
        self._torn = False  # bytes of a character wait for the rest of it
        self._held = ""  # text that may become a mark
        self._tokens: list[Token] = []  # with log-probabilities, not said yet
        self._head = ""  # the header, while there is no body
        self._started = False  # the header's start was marked
        self._body: Body | None = None
        self._flow: Flow | None = None  # where a token goes that is plain text of the body
        self._calls = 0
        self._seen = 0  # tokens in all
        self._since = 0  # of them those before the message
        self._thinking = False
        self._reasoning = 0
        self._over = False
        if opening is not None:
            self._enter(read_header(_header_text(opening)))

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens were reasoning, markers included."""
        return self._reasoning + (self._seen - self._since if self._thinking else 0)

    @property
    def warnings(self) -> Sequence[str]:
        """What was malformed and how it was read; a hundred at most."""
        return self._warnings

    # ---- hearing ---------------------------------------------------------------------------

    def feed(self, ids: Sequence[int], tokens: Sequence[Token] = ()) -> None:
        """More tokens. `tokens` are the same ones with log-probabilities, where asked for."""
        vocabulary = self._vocabulary
        if vocabulary is None:
            self._warn("tokens without a vocabulary were passed over")
            return
        if self._flow is not None and len(ids) == 1 and not tokens:
            piece = vocabulary[ids[0]]
            if type(piece) is str:
                self._seen += 1
                self._flow(piece)
                return
        self._flow = None
        hear = self._hear if vocabulary.marked else self.write
        seen, said = self._seen, []
        for place, id in enumerate(ids):
            piece = vocabulary[id]
            if type(piece) is str and not self._torn:
                said.append(piece)
            elif isinstance(piece, Mark):
                hear("".join(said))
                said = []
                self._mend()
                self._seen = seen + place + 1
                self._mark(piece.text)
                continue
            else:
                said.append(self._decode(piece))
            if tokens:
                self._tokens += tokens[place : place + 1]
        self._seen = seen + len(ids)
        if said:
            hear("".join(said))
        if self._body is not None and vocabulary.marked and not (self._torn or self._tokens):
            self._flow = self._body.flow

    def write(self, text: str) -> None:
        """More text, from a source that has no ids; marks are found in the text."""
        text = self._held + text
        end = certain(text)
        self._held = text[end:]
        at = 0
        for mark in IN_TEXT.finditer(text, 0, end):
            self._hear(text[at : mark.start()])
            self._mark(mark[0])
            at = mark.end()
        self._hear(text[at:end])

    def close(self, reason: str) -> None:
        """The model stopped, for `stop` or `length`. What was held back is said, what is open is
        closed, and the turn ends; a second time nothing happens."""
        if self._over:
            return
        self._over = True
        self._mend()
        held, self._held = self._held, ""
        self._hear(held)
        cut = reason == "length"
        if self._body is None:
            self._give_up(cut)
        self._leave("incomplete" if cut else "completed")
        self._turn.expect(0)
        self._turn.finish("tool_calls" if self._calls and reason == "stop" else reason)
        self._turn.end(complete=True)

    def _decode(self, piece: str | bytes) -> str:
        text = self._decoder.decode(piece.encode() if isinstance(piece, str) else piece)
        self._torn = bool(self._decoder.getstate()[0])
        return text

    def _mend(self) -> None:
        """Say half a character that will not become whole."""
        if self._torn:
            self._torn = False
            self._hear(self._decoder.decode(b"", True))
            self._decoder.reset()

    def _hear(self, text: str) -> None:
        if not text:
            return
        if self._body is None:
            self._hear_header(text)
        elif self._tokens:
            tokens, self._tokens = tuple(self._tokens), []
            self._body.add(text, tokens)
        else:
            self._body.add(text, ())

    # ---- marks -----------------------------------------------------------------------------

    def _mark(self, mark: str) -> None:
        if mark == MESSAGE and self._body is None:
            self._enter(read_header(self._head))
        elif mark in ENDS:
            self._end(cut=False)
        elif mark == START:
            self._finish_unended()
            self._started = True
        elif mark == CHANNEL:
            self._finish_unended(header=False)
            head, again, _ = self._head.partition(CHANNEL)
            if again:
                self._warn("a header named two channels; the second was taken")
            self._head = head + CHANNEL
        elif mark == CONSTRAIN and self._body is None and self._head.strip():
            self._head += mark
        else:
            self._warn(f"{mark} was out of place and was passed over")

    def _finish_unended(self, header: bool = True) -> None:
        """Another message begins: end the one before it, if the model did not."""
        if self._body is not None or (header and self._head.strip()):
            self._warn("a message had no end")
            self._end(cut=False)

    def _end(self, cut: bool) -> None:
        if self._body is None:
            self._give_up(cut)
        self._leave("completed")

    # ---- messages --------------------------------------------------------------------------

    def _hear_header(self, text: str) -> None:
        """More of what stands at the place of a header, as long as it can be one; then it is the
        content of a message without one."""
        size = len(self._head)
        if self._started or CHANNEL in self._head:
            end = _LONGEST_HEADER - size
        else:
            head = self._head + text
            tries = range(size + 1, min(len(head), _LONGEST_HEADER) + 1)
            end = next((at - 1 - size for at in tries if not looks_like_one(head[:at])), len(text))
            end = min(end, _LONGEST_HEADER - size)
        self._head += text[: end + 1]
        if len(text) > end:
            header, said = self._unheaded()
            self._say_unheaded(header, said + text[end + 1 :])

    def _give_up(self, cut: bool) -> None:
        """The message ends in its header: find out what is to be said of it."""
        head = self._head
        if not head.strip() and not self._started:
            self._head = ""
            return
        header, said = self._unheaded()
        unsaid = header.foreign or "to=" in said or not said.strip()
        if unsaid or (cut and (self._started or CHANNEL in head)):
            self._warn(f"a header was not ended: {head[:80]!r}")
        else:
            self._say_unheaded(header, said)

    def _unheaded(self) -> tuple[Header, str]:
        """What is known of a message whose content stands in its header, and that content."""
        head, self._head = self._head, ""
        header = read_header(head)
        marked = CHANNEL in head
        said = (header.rest if marked else without_role(head)).replace(CONSTRAIN, "")
        return Header(header.channel if marked else None, foreign=header.foreign), said

    def _say_unheaded(self, header: Header, said: str) -> None:
        self._warn("the content of a message stood in its header")
        self._enter(header)
        self._hear(said)

    def _enter(self, header: Header) -> None:
        """The header is read, and the content begins."""
        self._head = ""
        for warning in header.warnings:
            self._warn(warning)
        self._body = self._choose(header)
        self._thinking = isinstance(self._body, Thought)
        self._tokens = []

    def _choose(self, header: Header) -> Body:
        turn, recipient = self._turn, header.recipient or ""
        if header.foreign:
            self._warn("the model wrote somebody else's message, which was passed over")
            return Unsaid()
        callee = self._tools.callee(recipient)
        if callee is not None:
            if callee.kind == "built-in":
                why = f"the model called its {callee.name}, which nobody here runs: said as text"
                turn.report_loss(Loss("tools", "dropped", why))
                return Said(turn, COMMENTARY_PHASE, final=False)
            self._calls += 1
            return Called(turn, callee)
        if recipient not in NOBODY:
            self._warn(f"{recipient!r} was called, and there are no tools; it is said as text")
            return Said(turn, COMMENTARY_PHASE, final=False)
        match header.channel:
            case "analysis":
                return Thought(turn)
            case "commentary":
                return Said(turn, COMMENTARY_PHASE, final=False)
            case _:
                return Said(turn, FINAL_PHASE, final=True)

    def _leave(self, ending: Ending) -> None:
        """The message is over."""
        body, self._body = self._body, None
        if body is not None:
            if self._tokens:
                tokens, self._tokens = tuple(self._tokens), []
                body.add("", tokens)
            body.close(ending)
        self._reasoning = self.reasoning_tokens
        self._since, self._thinking = self._seen, False
        self._head, self._started = "", False

    def _warn(self, warning: str) -> None:
        if len(self._warnings) < _MOST_WARNINGS:
            self._warnings.append(warning)


def _header_text(opening: Opening) -> str:
    to = f" to={opening.recipient}" if opening.recipient else ""
    return f"{CHANNEL}{opening.channel}{to}"
