"""Hears a model's markup into a turn: tokens or text, in pieces of any size.

One engine for all families. Control tokens are told by their ids, other marks are found in the
text, held back as long as they may still become one; what each leads to is in the profile's table.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence

from dragoman.core.item import Token

from .emitter import Say, Voice
from .profile import Marks, Profile, Vocabulary
from .states import (
    BLANKS,
    Argument,
    Arguments,
    Blanks,
    Body,
    Calls,
    Draft,
    Gap,
    Id,
    Key,
    Name,
    Said,
    Typed,
    Unsaid,
)

_BLOCK = 4096
"""Characters looked at together, so that a long text costs no more than many short ones."""

_decoder = codecs.getincrementaldecoder("utf-8")


class MarkupParser:
    """One answer of one choice."""

    def __init__(
        self,
        profile: Profile,
        table: Mapping[str, Marks],
        voice: Voice,
        vocabulary: Vocabulary | None = None,
        start: str = "start",
    ) -> None:
        self._profile = profile
        self._table = table
        self._voice = voice
        self._vocabulary = vocabulary
        self._plain = vocabulary.plain if vocabulary else {}
        self._decoder = _decoder("replace")
        self._draft = Draft()
        self._begun = False
        self._held = ""
        self._again = ""  # what must be heard once more
        self._doubt = False  # what is held is a mark that may be data
        self._flow: Say | None = None  # where plain text goes that needs no look
        self._thinking = False
        self._reasoning = 0
        self._origin = ("text", "", "")  # where the last call began, the blanks before it, its mark
        self._make: dict[str, Callable[[Marks], Body]] = {
            "start": lambda _: Blanks(voice, not self._begun),
            "text": lambda _: Said(voice.text, voice.plain_text),
            "thought": lambda _: Said(voice.thought, voice.plain_thought, fresh=True),
            "call": self._calls,
            "name": self._name,
            "id": lambda _: Id(self._draft),
            "typed": lambda _: Typed(voice, self._draft),
            "arguments": lambda _: Arguments(voice, self._draft),
            "gap": lambda _: Gap(voice, self._draft),
            "key": lambda _: Key(voice, self._draft),
            "value": lambda _: Argument(voice, self._draft),
            "header": lambda _: Unsaid(voice, False),
            "over": lambda _: Unsaid(voice, True),
        }
        self._marks = table[start]
        self._body: Body
        self._enter(start)

    # ---- the parser's promises -----------------------------------------------------------

    def feed(self, ids: Sequence[int], tokens: Sequence[Token] = ()) -> None:
        """More tokens. `tokens` are the same ones with log-probabilities, where asked for."""
        if tokens:
            for id, token in zip(ids, tokens, strict=False):
                self._token(id, token)
                self._reasoning += self._thinking
            return
        plain = self._plain.get
        for id in ids:
            if (say := self._flow) is not None and (piece := plain(id)) is not None:
                say(piece)
            else:
                self._token(id)
            self._reasoning += self._thinking

    def write(self, text: str, tokens: Sequence[Token] = ()) -> None:
        """More text, from a source that has no ids; `tokens` are those it is made of."""
        if tokens:
            for token in tokens:
                self._voice.weigh(token, token.text)
        elif (say := self._flow) and text and not (text[-1].isspace() or self._marks.touches(text)):
            say(text)
            return
        for at in range(0, len(text), _BLOCK):
            self._hear(text[at : at + _BLOCK])

    def flush(self) -> None:
        """Say what is held back as what it turned out to be, and begin anew."""
        self._hear(self._decoder.decode(b"", final=True))
        self._settle()
        if isinstance(self._body, Calls) and self._body.doubtful:
            self._back(self._body)
            self._settle_again()
        self._voice.cut = True
        self._body.leave(None)
        self._voice.shut()
        self._voice.cut = False
        self._enter("over" if self._marks.kind == "over" else "start")

    def close(self, reason: str) -> None:
        """The model stopped. Ends the turn."""
        self.flush()
        self._voice.finish(reason)

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens were reasoning, markers included."""
        return self._reasoning

    @property
    def warnings(self) -> Sequence[str]:
        """What was malformed and how it was read."""
        return self._voice.warnings

    # ---- tokens --------------------------------------------------------------------------

    def _token(self, id: int, token: Token | None = None) -> None:
        vocabulary = self._vocabulary
        if vocabulary is None:
            raise TypeError("this parser was made without a tokenizer, and hears text only")
        control = vocabulary.controls.get(id)
        if control is not None:
            self._hear(self._decoder.decode(b"", final=True))
            self._decoder.reset()
            self._control(control)
            return
        text = self._decoder.decode(vocabulary.piece(id))
        if token is not None:
            self._voice.weigh(token, text)
        self._hear(text)
        if self._flow is not None and self._decoder.getstate()[0]:
            self._flow = None  # the rest of a character must come first

    def _control(self, mark: str) -> None:
        """A control token: a mark, whatever stands around it, or else nothing to be said."""
        self._settle()
        if mark in self._marks.leads:
            self._take(mark)
        elif mark in self._profile.tags and self._marks.kind in ("start", "text", "thought"):
            self._hear_body(mark)  # no tools are on offer: it is only a word
        else:
            self._voice.warn(f"{mark} was not expected and is left out")
        self._look_ahead()

    # ---- text ----------------------------------------------------------------------------

    def _hear(self, text: str) -> None:
        if not text:
            return
        if self._flow is not None and not self._marks.touches(text):
            self._body.feed(text, 0, len(text))
            self._look_ahead()
            return
        text, self._held = self._held + text, ""
        self._doubt = False
        self._run(text)
        self._look_ahead()

    def _run(self, text: str) -> None:
        at = 0
        while at < len(text):
            at = self._step(text, at)
            if self._again:
                text, at, self._again = self._again + text[at:], 0, ""

    def _step(self, text: str, at: int) -> int:
        """Hear up to the next mark, or to where a mark may be beginning."""
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
        if self._body.quoted and not self._ends(text, end):
            if self._doubt:
                self._held = text[start:]
                return len(text)
            return self._feed(text, start, end)
        self._take(text[start:end], len(text) - end)
        return end

    def _ends(self, text: str, at: int) -> bool:
        """Whether a mark inside a string is one after all: only another mark may follow it.

        `_doubt` tells that it cannot be known yet.
        """
        rest = text[at:].lstrip()
        self._doubt = False
        if len(text) - at - len(rest) > BLANKS:
            return False
        target = self._table["start"]
        start, _ = target.find(rest, 0)
        if start == 0 and rest:
            return True
        self._doubt = target.held(rest, 0) == 0
        return False

    def _settle(self) -> None:
        """No more text belongs to what is held: it is what it is."""
        held, self._held = self._held, ""
        if held and self._doubt:
            _, end = self._marks.find(held, 0)
            self._take(held[:end], len(held) - end)
            held = held[end:]
        self._doubt = False
        if held:
            self._hear_body(held)
            self._settle_again()

    def _settle_again(self) -> None:
        """Hear once more what must be, and nothing after it."""
        while self._again:
            again, self._again = self._again, ""
            self._run(again)
            held, self._held = self._held, ""
            self._hear_body(held)

    def _hear_body(self, text: str) -> None:
        at = 0
        while at < len(text):
            at = self._feed(text, at, len(text))
            if self._again:
                self._again += text[at:]
                return

    # ---- states --------------------------------------------------------------------------

    def _feed(self, text: str, at: int, end: int) -> int:
        """Hear text[at:end] in this state, and go where it leads if it ends by itself."""
        body = self._body
        at = body.feed(text, at, end)
        if isinstance(body, Calls | Name) and body.refused:
            self._back(body)
        elif at < end:
            self._ended(body, text[at], len(text) - at)
        return at

    def _ended(self, body: Body, char: str, left: int) -> None:
        """A body ended by itself, before this character."""
        state, self._begun = self._marks.state, True
        if isinstance(body, Blanks):
            bare = self._profile.bare and self._voice.tools and char in "{["
            kept = body.kept
            if not kept:
                self._voice.forget(left)
            self._enter("bare" if bare else "text")
            self._body.feed(kept, 0, len(kept))
        elif isinstance(body, Name):
            if self._draft.name:
                self._enter(state.then)
            else:
                self._enter(state.braces or state.then)
        else:
            body.leave("start")
            self._voice.forget(left)
            self._enter(state.then)

    def _back(self, body: Calls | Name) -> None:
        """What looked like a call is none: it is heard again as what stood before it."""
        raw = "".join(body.raw if isinstance(body, Calls) else body.pieces)
        name, blanks, mark = self._origin
        self._enter(name)
        if mark:
            self._voice.warn(f"{mark} was not followed by a call")
        before = blanks + (mark if mark in self._profile.tags else "")
        self._body.feed(before, 0, len(before))
        self._again = raw

    def _take(self, mark: str, left: int = 0) -> None:
        target = self._marks.leads[mark]
        if target is None:
            self._voice.warn(f"{mark} has no business there and is left out")
            return
        self._reasoning += self._thinking and self._vocabulary is not None
        self._begun = True
        kind, body = self._table[target].kind, self._body
        if kind in ("call", "name"):
            blanks = body.blanks if isinstance(body, Said) else ""
            self._origin = ("thought" if self._thinking else "text", blanks, mark)
        body.leave(kind)
        self._voice.forget(left)
        self._enter(target)

    def _enter(self, name: str) -> None:
        self._marks = self._table[name]
        self._body = self._make[self._marks.kind](self._marks)
        self._thinking = self._marks.kind == "thought"
        self._look_ahead()

    def _calls(self, marks: Marks) -> Calls:
        if marks.name != "bare":
            return Calls(self._voice, self._profile.code)
        self._origin = ("text", "", "")
        return Calls(self._voice, None, frozenset(self._voice.tools))

    def _name(self, marks: Marks) -> Name:
        tag = self._origin[2] in self._profile.tags
        return Name(self._voice, self._draft, marks.state.braces is not None, tag)

    def _look_ahead(self) -> None:
        """Whether plain text may be said without a look."""
        body = self._body
        self._flow = (
            body.plain if isinstance(body, Said) and body.flows and not self._held else None
        )
