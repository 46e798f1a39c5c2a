"""Parses harmony into a turn: streamed tokens or text, well formed or not."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from msgspec import Struct

from dragoman.core.item import CustomToolCall, FunctionCall, Message, Reasoning, Token
from dragoman.core.loss import Loss
from dragoman.core.turn import Turn
from dragoman.formats.prompt import Control, Marks, TokenTable

from .tools import NOT_TOOLS, CalledTool, Toolkit

START = "<|start|>"
CHANNEL = "<|channel|>"
CONSTRAIN = "<|constrain|>"
MESSAGE = "<|message|>"
END = "<|end|>"
RETURN = "<|return|>"
CALL = "<|call|>"
END_OF_TEXT = "<|endoftext|>"

_ENDS = frozenset((END, RETURN, CALL, END_OF_TEXT))
CONTROLS = (START, CHANNEL, CONSTRAIN, MESSAGE, *_ENDS, "<|startoftext|>")
_SPECIAL_TOKENS = Marks(CONTROLS)

COMMENTARY_PHASE = "commentary"
FINAL_PHASE = "final_answer"

Channel = Literal["analysis", "commentary", "final"]

_CHANNELS: tuple[Channel, ...] = ("analysis", "commentary", "final")
_CONTENT_TYPES = frozenset(("json", "code", "text", "python"))
_OTHER_ROLES = ("user", "system", "developer", "tool")
_ASSISTANT = re.compile(r"\s*assistant(?::[^\s<]*)?")
_CONSTRAINT = re.compile(re.escape(CONSTRAIN) + r"\s*")
_WORD = re.compile(r"\s*([^\s<]*)")
_NAME = re.compile(r"[\w.-]+")


# ---- headers -------------------------------------------------------------------------------


class Header(Struct, frozen=True):
    """A parsed message header, and what was wrong with it."""

    channel: Channel | None = None
    recipient: str | None = None
    other_role: bool = False
    """Whether the model continued with a message of the user or of a tool."""
    rest: str = ""
    """The text after the channel, for a message whose header never ended; of a message that the
    prompt leaves open, its text so far."""
    warnings: tuple[str, ...] = ()
    content_type: str | None = None


def read_header(text: str) -> Header:
    """Parse the text between the start of a message and its content.

    >>> read_header("<|channel|>commentary to=functions.f <|constrain|>json").recipient
    'functions.f'
    """
    before, _, after = text.partition(CHANNEL)
    author, _ = _first_word(before)
    other_role = author.partition(":")[0] in _OTHER_ROLES or "to=assistant" in before.split()
    before = _without_role(before)
    warnings: list[str] = []
    name, after = _first_word(after)
    if not name:  # the token is missing, or its channel is
        name, before = _first_word(before)
        if _channel(name) is None:
            name, before = "", f"{name}{before}"
    channel = _channel(name)
    if name and name != channel:
        warnings.append(f"the channel {name!r} was read as {channel or 'final'}")
    spaced = _CONSTRAINT.sub(f" {CONSTRAIN}", f"{before} {after}".replace(CHANNEL, " "))
    words = spaced.replace("to= ", "to=").split()
    recipients = [word[3:] for word in words if word.startswith("to=")]
    others = [word for word in words if not word.startswith("to=")]
    types = [word for word in others if word in _CONTENT_TYPES or CONSTRAIN in word]
    others = [word for word in others if word not in types]
    # Without `to=`, a lone word that is no type is the recipient.
    if not recipients and others and _NAME.fullmatch(others[0]) and len(others) + len(types) <= 2:
        recipients.append(others.pop(0))
    if others and not types:
        types.append(others.pop())
    if ignored := [*recipients[1:], *types[1:], *others]:
        warnings.append(f"a header had words to spare: {' '.join(ignored)!r}")
    return Header(
        channel, recipients[0] if recipients else None, other_role, after, tuple(warnings)
    )


def may_be_header(text: str) -> bool:
    """Whether text in the place of a header, without `<|start|>`, may be one.

    >>> may_be_header("assist"), may_be_header(" to=functions"), may_be_header("Hello")
    (True, True, False)
    """
    word = text.lstrip()
    if word.startswith(("assistant", "to=")):
        return True
    end = next((at for at, letter in enumerate(word) if not letter.isalnum()), len(word))
    if end < len(word):
        return word[:end] in _CHANNELS
    return any(known.startswith(word) for known in ("assistant", "to=", *_CHANNELS))


def _without_role(text: str) -> str:
    """The text without the assistant's role in front."""
    role = _ASSISTANT.match(text)
    return text[role.end() :] if role else text


def _first_word(text: str) -> tuple[str, str]:
    found = _WORD.match(text)
    return (found[1], text[found.end() :]) if found else ("", text)


def _channel(name: str) -> Channel | None:
    """The channel for a misspelled or abbreviated name."""
    letters = name.rstrip("?!.:;,")
    for channel in _CHANNELS:
        if letters and (channel.startswith(letters) or letters.startswith(channel)):
            return channel
    return None


# ---- bodies --------------------------------------------------------------------------------

Write = Callable[..., None]


class Body:
    """The content of a message while it arrives; this one discards it.

    `write` takes plain text once some has been added: the same as `add`, with fewer calls.
    """

    write: Write | None = None

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        pass

    def close(self, complete: bool) -> None:
        pass


class TextBody(Body):
    """A message or reasoning. A final message is emitted even if it is empty."""

    def __init__(self, turn: Turn, item: Message | Reasoning) -> None:
        self._turn = turn
        self._item = item

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        if self.write is None:
            self._turn.next_item(self._item)
            thinks = isinstance(self._item, Reasoning)
            self.write = self._turn.reasoning if thinks else self._turn.text
        self.write(text, 0, tokens)

    def close(self, complete: bool) -> None:
        if complete:
            final = isinstance(self._item, Message) and self._item.phase == FINAL_PHASE
            if final and self.write is None:
                self._turn.write(self._turn.next_item(self._item), "text", "")
            self._turn.close_message()


class CallBody(Body):
    """A call of one of the client's tools, its arguments exactly as the model writes them."""

    def __init__(self, turn: Turn, tool: CalledTool) -> None:
        self._turn = turn
        custom = tool.kind == "custom"
        kind = CustomToolCall if custom else FunctionCall
        self._index = index = turn.next_item(kind("", tool.name, "", tool.namespace))
        self._write = self.write = partial(turn.write, index, "input" if custom else "arguments")

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        self._write(text)

    def close(self, complete: bool) -> None:
        if (item := self._turn.item(self._index)) is not None:
            item.status = "completed" if complete else "incomplete"
        self._turn.close(self._index)


# ---- the parser ----------------------------------------------------------------------------

_LONGEST_HEADER = 512
"""Longer text is content: the model left the header out."""
_MAX_WARNINGS = 100


class HarmonyParser:
    """Parses one answer, from the header of an assistant message or from where the prompt ended."""

    def __init__(
        self,
        turn: Turn,
        tools: Toolkit,
        opened: Header | None = None,
        table: TokenTable | None = None,
    ) -> None:
        self._turn = turn
        self._tools = tools
        self._table = table
        self.warnings: list[str] = []
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._partial = False  # bytes of an incomplete character
        self._held = ""  # text that may become a special token
        self._tokens: list[Token] = []  # with log-probabilities, not emitted yet
        self._head = ""  # the header, while there is no body
        self._started = False  # `<|start|>` was found
        self._body: Body | None = None
        self._fast_path: Write | None = None  # takes plain text of the body
        self._calls = 0
        self._token_count = 0  # tokens in all
        self._message_start = 0  # of them those before the message
        self._thinking = False
        self._reasoning = 0
        self._over = False
        if opened is not None:
            self._enter(opened)

    @property
    def reasoning_tokens(self) -> int:
        return self._reasoning + (self._token_count - self._message_start if self._thinking else 0)

    # ---- the protocol `Parser` -------------------------------------------------------------

    def feed(self, ids: Sequence[int], tokens: Sequence[Token] = ()) -> None:
        table = self._table
        if table is None:
            self._warn("tokens without a vocabulary were dropped")
            return
        if self._fast_path is not None and len(ids) == 1 and not tokens:
            piece = table[ids[0]]
            if type(piece) is str:
                self._token_count += 1
                self._fast_path(piece)
                return
        self._fast_path = None
        marked = MESSAGE in table.controls  # else special tokens are searched in the text
        parse = self._parse_text if marked else self.write
        seen, pieces = self._token_count, list[str]()
        for place, id in enumerate(ids):
            piece = table[id]
            if type(piece) is str and not self._partial:
                pieces.append(piece)
            elif isinstance(piece, Control):
                parse("".join(pieces))
                pieces = []
                self._flush_partial_character()
                self._token_count = seen + place + 1
                self._special_token(piece.text)
                continue
            else:
                whole = piece.encode() if isinstance(piece, str) else piece
                pieces.append(self._decoder.decode(whole))
                self._partial = bool(self._decoder.getstate()[0])
            if tokens:
                self._tokens += tokens[place : place + 1]
        self._token_count = seen + len(ids)
        if pieces:
            parse("".join(pieces))
        if self._body is not None and marked and not (self._partial or self._tokens):
            self._fast_path = self._body.write

    def write(self, text: str) -> None:
        text = self._held + text
        end = _SPECIAL_TOKENS.held(text)
        self._held = text[end:]
        at = 0
        for token in _SPECIAL_TOKENS.pattern.finditer(text, 0, end):
            self._parse_text(text[at : token.start()])
            self._special_token(token[0])
            at = token.end()
        self._parse_text(text[at:end])

    def close(self, reason: str) -> None:
        """End the turn, for `stop` or `length`. A second call does nothing."""
        if self._over:
            return
        self._over = True
        self._flush_partial_character()
        held, self._held = self._held, ""
        self._parse_text(held)
        cut = reason == "length"
        if self._body is None:
            self._end_in_header(cut)
        self._leave(complete=not cut)
        self._turn.expect(0)
        self._turn.finish("tool_calls" if self._calls and reason == "stop" else reason)
        self._turn.end(complete=True)

    def _flush_partial_character(self) -> None:
        """Emit an incomplete character that will not be completed."""
        if self._partial:
            self._partial = False
            self._parse_text(self._decoder.decode(b"", True))
            self._decoder.reset()

    def _parse_text(self, text: str) -> None:
        if not text:
            return
        if self._body is None:
            self._parse_header(text)
        else:
            tokens, self._tokens = tuple(self._tokens), []
            self._body.add(text, tokens)

    # ---- special tokens ----------------------------------------------------------------------

    def _special_token(self, token: str) -> None:
        if token == MESSAGE and self._body is None:
            self._enter(read_header(self._head))
        elif token in _ENDS:
            self._end()
        elif token == START:
            self._end_unfinished()
            self._started = True
        elif token == CHANNEL:
            self._end_unfinished(header=False)
            head, again, _ = self._head.partition(CHANNEL)
            if again:
                self._warn("a header named two channels; the second was taken")
            self._head = head + CHANNEL
        elif token == CONSTRAIN and self._body is None and self._head.strip():
            self._head += token
        else:
            self._warn(f"{token} was out of place and is dropped")

    def _end_unfinished(self, header: bool = True) -> None:
        """Another message begins: end the one before it, if the model did not."""
        if self._body is not None or (header and self._head.strip()):
            self._warn("a message had no end")
            self._end()

    def _end(self) -> None:
        if self._body is None:
            self._end_in_header(cut=False)
        self._leave()

    # ---- messages --------------------------------------------------------------------------

    def _parse_header(self, text: str) -> None:
        """More text in the place of a header. What cannot be one is content without a header."""
        size = len(self._head)
        if self._started or CHANNEL in self._head:
            end = _LONGEST_HEADER - size
        else:
            head = self._head + text
            tries = range(size + 1, min(len(head), _LONGEST_HEADER) + 1)
            end = next((at - 1 - size for at in tries if not may_be_header(head[:at])), len(text))
            end = min(end, _LONGEST_HEADER - size)
        self._head += text[: end + 1]
        if len(text) > end:
            header, content = self._content_in_header()
            self._emit_content_in_header(header, content + text[end + 1 :])

    def _end_in_header(self, cut: bool) -> None:
        """The message ends in its header: emit what of it is content."""
        head = self._head
        if not head.strip() and not self._started:
            self._head = ""
            return
        header, text = self._content_in_header()
        dropped = header.other_role or "to=" in text or not text.strip()
        if dropped or (cut and (self._started or CHANNEL in head)):
            self._warn(f"a header was not ended: {head[:80]!r}")
        else:
            self._emit_content_in_header(header, text)

    def _content_in_header(self) -> tuple[Header, str]:
        """The header, as far as there is one, and the content found in its place."""
        head, self._head = self._head, ""
        header = read_header(head)
        marked = CHANNEL in head
        text = (header.rest if marked else _without_role(head)).replace(CONSTRAIN, "")
        return Header(header.channel if marked else None, other_role=header.other_role), text

    def _emit_content_in_header(self, header: Header, text: str) -> None:
        self._warn("the content of a message stood in its header")
        self._enter(header)
        self._parse_text(text)

    def _enter(self, header: Header) -> None:
        """The header is complete, and the content begins."""
        self._head = ""
        for warning in header.warnings:
            self._warn(warning)
        self._thinking = False
        self._body = self._body_for(header)
        self._tokens = []

    def _body_for(self, header: Header) -> Body:
        turn, recipient = self._turn, header.recipient or ""
        if header.other_role:
            self._warn("the model wrote a message of another role, which is dropped")
            return Body()
        tool = self._tools.called_tool(recipient)
        phase = FINAL_PHASE
        if tool is not None and tool.kind != "built-in":
            self._calls += 1
            return CallBody(turn, tool)
        if tool is not None:
            why = f"the model called its {tool.name}, which cannot be run here: it is text"
            turn.report_loss(Loss("tools", "dropped", why))
            phase = COMMENTARY_PHASE
        elif recipient not in NOT_TOOLS:
            self._warn(f"{recipient!r} was called, and there are no tools; it is text")
            phase = COMMENTARY_PHASE
        elif header.channel == "analysis":
            self._thinking = True
            return TextBody(turn, Reasoning())
        elif header.channel == "commentary":
            phase = COMMENTARY_PHASE
        return TextBody(turn, Message("assistant", phase=phase))

    def _leave(self, complete: bool = True) -> None:
        """The message is over."""
        body, self._body = self._body, None
        if body is not None:
            if self._tokens:
                tokens, self._tokens = tuple(self._tokens), []
                body.add("", tokens)
            body.close(complete)
        self._reasoning = self.reasoning_tokens
        self._message_start, self._thinking = self._token_count, False
        self._head, self._started = "", False

    def _warn(self, warning: str) -> None:
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(warning)
