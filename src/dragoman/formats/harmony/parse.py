"""Hears a model's harmony into a turn: tokens or text, in pieces of any size, well formed or not.

Where a message goes is decided by its recipient first and its channel second. It never raises: what
is malformed is read as well as can be, and noted. Which tools there are is known to the toolkit.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from dragoman.core.item import Token
from dragoman.core.loss import Loss
from dragoman.core.turn import Turn

from .body import Body, Called, Ending, Flow, Said, Thought, Unsaid
from .header import Header, looks_like_one, read_header, without_role
from .marks import (
    CHANNEL,
    CONSTRAIN,
    ENDS,
    IN_TEXT,
    MESSAGE,
    START,
    Mark,
    Vocabulary,
    certain,
)
from .opening import Opening
from .policy import COMMENTARY_PHASE, FINAL_PHASE
from .tools import NOBODY, Toolkit

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
        self._turn.end(said=True)

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
                turn.lose(Loss("tools", "told", why))
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
