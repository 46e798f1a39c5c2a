"""A profile made ready for scanning: which marks count in which state, as text and as tokens.

Made once for each profile, vocabulary and kind of request. A mark that the vocabulary has as a
control token counts as that token only: spelled with ordinary ones it is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dragoman.formats.tokenizer import Tokenizer

from .profile import Profile, State

_SAID = ("start", "text", "thought")
_BLANK_END = re.compile(r"\s\Z")


class Marks:
    """The marks that count in one state; where each leads is in `leads`, None for a stray."""

    __slots__ = ("_begins", "_first", "_longest", "_pattern", "kind", "leads", "name", "state")
    # `_first` are the characters marks begin with, `_begins` all that may become a mark.

    def __init__(
        self, name: str, state: State, leads: dict[str, str | None], spelled: Iterable[str]
    ) -> None:
        self.name = name
        self.state = state
        self.kind = state.kind
        self.leads = leads
        marks = sorted(spelled, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")
        self._begins = frozenset(mark[:size] for mark in marks for size in range(1, len(mark)))
        self._first = frozenset(mark[0] for mark in marks)
        self._longest = max(map(len, marks), default=1) - 1

    def find(self, text: str, at: int) -> tuple[int, int]:
        """Where the next mark begins and ends; beyond the text if there is none."""
        found = self._pattern.search(text, at)
        return found.span() if found else (len(text), len(text))

    def touches(self, text: str) -> bool:
        """Whether there is anything in the text that a mark begins with."""
        return not self._first.isdisjoint(text)

    def held(self, text: str, at: int) -> int:
        """Where at the end of the text a mark may be beginning."""
        for start in range(max(at, len(text) - self._longest), len(text)):
            if text[start] in self._first and text[start:] in self._begins:
                return start
        return len(text)


class Vocabulary:
    """What the tokens of one vocabulary say, learnt as they come.

    `plain` holds the text of those that cannot have to do with any mark.
    """

    def __init__(self, tokenizer: Tokenizer, profile: Profile) -> None:
        self.controls = {id: text for text, id in tokenizer.controls.items()}
        self.plain: dict[int, str] = {}
        self._tokenizer = tokenizer
        firsts = {mark[0] for mark in marks(profile) if len(mark) > 1}
        self._first = re.compile(f"[{re.escape(''.join(sorted(firsts)))}]")

    def piece(self, id: int) -> bytes:
        """The bytes of an ordinary token."""
        raw = self._tokenizer.piece(id)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return raw
        if text and not self._first.search(text) and not _BLANK_END.search(text):
            self.plain[id] = text
        return raw


def marks(profile: Profile) -> frozenset[str]:
    """Every mark of a profile."""
    found = {*profile.ends, *profile.strays}
    for state in profile.states.values():
        found |= {*state.marks, *state.ids}
    return frozenset(found)


def table(profile: Profile, calls: bool, controls: Iterable[str] = ()) -> dict[str, Marks]:
    """The states of a profile, with calls or, where no tools are on offer, without."""
    as_tokens = frozenset(controls)
    return {
        name: _marks(profile, name, state, calls, as_tokens)
        for name, state in profile.states.items()
    }


def _marks(
    profile: Profile, name: str, state: State, calls: bool, as_tokens: frozenset[str]
) -> Marks:
    leads: dict[str, str | None] = {**state.ids, **state.marks}
    spelled = set(state.marks)
    if state.kind in _SAID:
        for mark in profile.strays:
            leads.setdefault(mark, None)
            spelled.add(mark)
        if not calls:
            for mark, target in list(leads.items()):
                if mark in profile.tags:
                    del leads[mark]
                elif target and profile.states[target].kind not in (*_SAID, "header", "over"):
                    leads[mark] = None
    for mark in profile.ends:
        leads[mark] = "over"
        spelled.add(mark)
    return Marks(name, state, leads, (spelled & leads.keys()) - as_tokens)
