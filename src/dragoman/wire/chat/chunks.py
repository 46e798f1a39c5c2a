"""Reads decoded chunks and whole answers into a turn: one reader for both.

Every field is looked at by itself, since servers put any of them together, and every level may be
missing, null or of the wrong type. What a field means for the answer is the turn's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from dragoman.core.calls import CallFragment
from dragoman.core.error import Fault
from dragoman.core.item import JSON, Token, Unknown
from dragoman.core.turn import Turn
from dragoman.wire import body
from dragoman.wire.error import describe

from . import finish, known, logprobs, notes, usage
from .details import Details, words
from .encoder import CHOICES
from .envelope import Envelope
from .extras import NAME, keep

_TEXT = frozenset({"role", "content"})
_NOTHING: tuple[JSON, ...] = (None, "", [], {})
_AUDIO = ("id", "data", "transcript")
BROKEN = Fault(
    "upstream_error", "The model's server broke the answer off and did not say why.", "upstream"
)

Voice = Literal["text", "thought", "call"]


class Reader:
    """Reads into one turn. `heard` tells whether anything was read so far."""

    def __init__(self, turn: Turn) -> None:
        self.heard = False
        self._turn = turn
        self._begun = False
        self._beside: dict[str, JSON] = {}  # unknown fields of chunks, as last given
        self._ends: dict[int, dict[str, JSON]] = {}  # unknown fields of finished choices
        self._details: dict[int, Details] = {}
        self._voices: dict[int, Voice] = {}  # what each choice said last
        self._spelt: set[int] = set()  # choices that gave their reasoning as text

    def read(self, value: dict[str, JSON]) -> None:
        """One chunk, or one whole answer."""
        self.heard = True
        choices = value.get("choices")
        error = describe(value) if value.get("error") or value.get("object") == "error" else None
        if error is None or choices:
            self._header(value)
        if (counted := usage.decode(value.get("usage"))) is not None:
            self._turn.usage = counted
        if isinstance(choices, list):
            for position, choice in enumerate(choices):
                if isinstance(choice, dict):
                    self._choice(choice, position)
        if error is not None:
            self._turn.fail(error)

    def close(self) -> None:
        """Nothing more will be read: what waited for the end is said now."""
        if self._ends:
            ends = [{"index": number, **rest} for number, rest in sorted(self._ends.items())]
            self._turn.header(extra={NAME: {CHOICES: ends}})

    def saying(self, plain: Envelope) -> Callable[[list[str]], None]:
        """What to do with the strings of chunks, right after one of the same envelope."""
        turn, choice = self._turn, plain.choice

        def think(said: list[str]) -> None:
            for each in said:
                turn.thought(each, choice)

        def call(said: list[str]) -> None:
            for each in said:
                turn.call(CallFragment(plain.call, arguments=each), choice)

        match plain.kind:
            case "text":
                return partial(turn.texts, choice=choice) if choice else turn.texts
            case "thought":
                return think
            case _:
                return call

    # ---- inside --------------------------------------------------------------------------

    def _header(self, value: dict[str, JSON]) -> None:
        rest = known.rest(value, known.CHUNK)
        if self._begun:
            if rest != self._beside:
                said, self._beside = self._beside, rest
                fresh = {name: v for name, v in rest.items() if said.get(name) != v}
                self._turn.header(extra={NAME: fresh})
            return
        self._begun, self._beside = True, rest
        model = value.get("model")
        itself = {name: value[name] for name in ("id", "created") if value.get(name) is not None}
        extra = {name: fields for name, fields in (("upstream", itself), (NAME, rest)) if fields}
        self._turn.header(model if isinstance(model, str) else None, extra)

    def _choice(self, choice: dict[str, JSON], position: int) -> None:
        number = known.number(choice, position)
        self._turn.expect(number)
        said, whole = choice.get("delta"), False
        if not isinstance(said, dict):
            said, whole = choice.get("message"), True
        if not isinstance(said, dict):
            said = {"content": choice.get("text")}
        beside, more = known.rest(choice, known.CHOICE), known.rest(said, known.MESSAGE)
        reason, weighed = finish.decode(choice.get("finish_reason")), choice.get("logprobs")
        tokens = self._message(number, said, weighed, more if whole else None)
        if tokens:
            beside["logprobs"] = {"content": logprobs.encode(tokens), "refusal": None}
        if beside and (whole or reason is not None):
            self._ends.setdefault(number, {}).update(beside)
            beside = {}
        if beside or (more and not whole):
            raw = {"index": number, **beside, **({"delta": more} if more else {})}
            self._turn.progress(None, "raw", {NAME: {CHOICES: [raw]}})
        self._end(number, choice, reason)

    def _end(self, number: int, choice: dict[str, JSON], reason: str | None) -> None:
        error = describe({"error": choice["error"]}) if choice.get("error") else None
        if error is None and finish.broken(choice.get("finish_reason")):
            error = BROKEN
        if error is not None:
            self._turn.fail(error)
        elif reason is not None:
            self._seal(number)
            self._turn.finish(reason, number)

    def _message(
        self, number: int, said: dict[str, JSON], weighed: JSON, beside: dict[str, JSON] | None
    ) -> tuple[Token, ...]:
        """What a message says, in the order in which its fields belong.

        `beside` are the unknown fields of a whole message, None for a piece of one. Gives back
        the tokens that belong to nothing that can be said: those a call is made of, as a rule.
        """
        if weighed is None and not beside and _is_text(said):
            if content := said["content"]:
                self._seal(number)
                self._voices[number] = "text"
                self._turn.text(content, number)
            return ()
        calls = _listed(said)
        tokens = logprobs.decode(weighed, "content") if weighed else ()
        self._reasoning(number, said)
        tokens = self._content(number, said.get("content"), tokens, calling=bool(calls))
        self._annotations(number, said.get("annotations"))
        refused = logprobs.decode(weighed, "refusal") if weighed else ()
        self._refusal(number, said.get("refusal"), refused)
        self._audio(number, said.get("audio"))
        if beside:
            self._seal(number)
            self._turn.attach({NAME: beside}, number)
        for position, entry in enumerate(calls):
            self._seal(number)
            self._call(number, entry, position if beside is not None else None)
        return tokens

    def _reasoning(self, number: int, said: dict[str, JSON]) -> None:
        """The thought, which servers that mean well give under several names at once."""
        details = said.get("reasoning_details")
        details = details if isinstance(details, list) else []
        named = (said.get(name) for name in ("reasoning_content", "reasoning"))
        thoughts = [thought for thought in named if isinstance(thought, str) and thought][:1]
        if thoughts:
            self._spelt.add(number)
        elif number not in self._spelt:  # else the details only say again what was said
            thoughts = words(details)
        for thought in thoughts:
            self._voices[number] = "thought"
            self._turn.thought(thought, number)
        if details:
            self._details.setdefault(number, Details()).add(details)

    def _content(
        self, number: int, content: JSON, tokens: tuple[Token, ...], *, calling: bool
    ) -> tuple[Token, ...]:
        """The text; gives back the tokens for which there is none."""
        for kind, piece in _pieces(content):
            if kind == "thought":
                self._voices[number] = "thought"
                self._turn.thought(piece, number)
            elif kind == "refusal":
                self._refusal(number, piece, ())
            else:
                self._seal(number)
                self._voices[number] = "text"
                self._turn.text(piece, number, tokens)
                tokens = ()
        voice = self._voices.get(number, "text")
        if not tokens or calling or voice == "call":
            return tokens
        (self._turn.text if voice == "text" else self._turn.thought)("", number, tokens)
        return ()

    def _annotations(self, number: int, listed: JSON) -> None:
        if isinstance(listed, list):
            for note in filter(None, map(notes.decode, listed)):
                self._seal(number)
                self._turn.annotate(note, number)

    def _refusal(self, number: int, refusal: JSON, tokens: tuple[Token, ...]) -> None:
        words = refusal if isinstance(refusal, str) else ""
        if words or tokens:
            self._seal(number)
            self._turn.refusal(words, number, tokens)

    def _audio(self, number: int, audio: JSON) -> None:
        if not isinstance(audio, dict):
            return
        heard = {n: v for n in _AUDIO if isinstance(v := audio.get(n), str) and v}
        at = body.whole(audio.get("expires_at"))
        if heard or at is not None:
            self._seal(number)
            self._turn.audio(number, **heard, expires_at=at)

    def _call(self, number: int, entry: dict[str, JSON], position: int | None) -> None:
        self._voices[number] = "call"
        kind, usual = entry.get("type"), "function" in entry or "custom" in entry
        if isinstance(kind, str) and kind not in ("custom", "function") and not usual:
            rest = {name: v for name, v in entry.items() if name not in ("type", "index")}
            self._turn.shut(self._turn.open(Unknown(NAME, kind, rest), number))
        else:
            self._turn.call(_fragment(entry, position), number)

    def _seal(self, number: int) -> None:
        """What must go back with the reasoning is known once something else is said."""
        details = self._details.pop(number, None)
        if details is not None:
            self._turn.seal({NAME: {"reasoning_details": details.take()}}, number)


def _is_text(said: dict[str, JSON]) -> bool:
    """Whether a message says a text and nothing else."""
    if type(said.get("content")) is not str:
        return False
    return all(name in _TEXT or each in _NOTHING for name, each in said.items())


def _pieces(content: JSON) -> list[tuple[str, str]]:
    """Content of any shape as text, thought and refusal; a null is no text at all."""
    match content:
        case None | "":
            return []
        case str():
            return [("text", content)]
        case list():
            return [piece for part in content for piece in _pieces(part)]
        case {"type": "thinking", "thinking": inner}:
            return [("thought", words) for _, words in _pieces(inner)]
        case {"type": "refusal", "refusal": str(words)}:
            return [("refusal", words)] if words else []
        case {"text": str(words)}:
            return [("text", words)] if words else []
        case _:
            return [("text", body.text(content))]


def _listed(said: dict[str, JSON]) -> list[dict[str, JSON]]:
    """The calls of a message; the deprecated form counts where there is no list."""
    calls, legacy = said.get("tool_calls"), said.get("function_call")
    if not isinstance(calls, list):
        calls = [{"function": legacy}] if isinstance(legacy, dict) else []
    return [entry for entry in calls if isinstance(entry, dict)]


def _fragment(entry: dict[str, JSON], place: int | None) -> CallFragment:
    """A piece of a call; in a whole answer its place in the list is what tells calls apart."""
    kind = "custom" if entry.get("type") == "custom" or "custom" in entry else "function"
    inner = entry[kind] if isinstance(entry.get(kind), dict) else {}
    said = inner.get("input" if kind == "custom" else "arguments")
    return CallFragment(
        known.index(entry) if place is None else place,
        _word(entry.get("id")),
        _word(inner.get("name")),
        said if isinstance(said, str) else "" if said is None else body.text(said),
        kind == "custom",
        _word(inner.get("namespace")),
        keep(known.rest(entry, known.ENTRY), **{kind: known.rest(inner, known.CALL)}),
    )


def _word(value: JSON) -> str | None:
    return value if isinstance(value, str) and value else None
