"""A family's way to write calls and thoughts, as the grammars of demanded answers need it.

Only what the profile says, in other words; how a grammar is made of it is not known here.
"""

from __future__ import annotations

from dragoman.formats.grammar.markup import Envelope

from .profile import Profile

_TURNS = ("header", "start")


def enveloped(profile: Profile, *, thinking: bool = False) -> Envelope:
    """The envelope of a family; `thinking` says that the prompt ends inside the reasoning."""
    writing, states = profile.writing, profile.states
    marks = {text for state in states.values() for text in (*state.marks, *state.ids)}
    text, start = states["text"], states["start"]
    return Envelope(
        opening=writing.opening,
        separator=writing.separator,
        closing=writing.closing,
        first=writing.first,
        last=writing.last,
        between=writing.between,
        xml=writing.body == "xml",
        thought=_thought(profile),
        thinking=thinking,
        marks=(*sorted(marks), *profile.controls),
        calls=tuple(mark for mark, to in text.marks.items() if states[to].kind not in _TURNS),
        bare=profile.bare,
        ends=tuple(end for end in profile.ends if end not in start.marks),
    )


def _thought(profile: Profile) -> tuple[str, str] | None:
    """The marks around reasoning: the one that leads into it, and the one that leads out again."""
    for mark, to in profile.states["start"].marks.items():
        inside = profile.states[to]
        if inside.kind == "thought":
            closing = next(m for m, back in inside.marks.items() if back == "start")
            return mark, closing
    return None
