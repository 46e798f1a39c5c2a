"""Decodes Chat answers, streamed and whole, into the events of a turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from dragoman.core.error import Fault
from dragoman.core.event import Event
from dragoman.core.item import JSON, Token, Unknown
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import Turn
from dragoman.wire import json, sse
from dragoman.wire.choices import ChunkedDecoder
from dragoman.wire.error import describe
from dragoman.wire.json import BROKEN, decode_string, decode_strings, string

from . import fields as known
from .fields import (
    CALL,
    CHOICE,
    ENTRY,
    MESSAGE,
    NAME,
    Details,
    broken,
    decode_finish,
    decode_logprobs,
    decode_notes,
    decode_usage,
    encode_logprobs,
    index,
    keep,
    number,
    rest,
    words,
)
from .request import read_answer
from .response import CHOICES

Kind = Literal["text", "thought", "arguments"]

_KINDS: dict[str, Kind] = {
    "content": "text",
    "reasoning_content": "thought",
    "reasoning": "thought",
}
_STRING = rb'"%s"[ \t]*:[ \t]*("(?:[^"\\]|\\.)*+")'
_FIELDS = {
    name: (b'"%s"' % name.encode(), re.compile(_STRING % name.encode()))
    for name in (*_KINDS, "arguments")
}
_PADDING = re.compile(rb'"obfuscation"[ \t]*:[ \t]*("[^"\\]*+")')
_NOTHING: tuple[JSON, ...] = (None, "", [])


_FEW = 2048
"""Bytes up to which events are looked at one by one."""
_MARK = 48
"""Bytes of what stands between two strings that are looked for."""


class Envelope(NamedTuple):
    """The bytes before and after the string, and what the string is.

    `call` is the index of the call that arguments belong to. `padding` splits what comes after
    the string where a random padding stands, if there is one.
    """

    prefix: bytes
    suffix: bytes
    kind: Kind
    choice: int
    call: int | None
    padding: tuple[bytes, bytes] | None
    framed: bytes = b""
    """The prefix and the suffix with what frames an event around them, and both together."""
    ending: bytes = b""
    between: bytes = b""

    def open_alone(self, data: bytes) -> str | None:
        """The string, if the bytes are one such event and no more, which is how a stream that is
        not in a hurry comes."""
        if not (data.endswith(self.ending) and data.startswith(self.framed)):
            return None
        inner = data[len(self.framed) : -len(self.ending)]
        if len(data) > sse.MAX_EVENT or b"\n" in inner or b"\r" in inner:
            return None  # JSON does not mind a line end beside the string, but events do
        try:
            return decode_string(inner)
        except BROKEN:  # the long way will find out what it is
            return None

    def open_run(self, data: bytes) -> tuple[list[str], bytes]:
        """The strings of the events with which the bytes begin, and the bytes behind them."""
        if len(data) > sse.MAX_EVENT:
            return [], data
        strings = (self._many(data) if len(data) > _FEW else None) or self._few(data)
        said = decode_strings(strings)
        if "" in said:  # the next one must take the long way
            del said[said.index("") :]
        if not said:
            return [], data
        told = sum(map(len, strings[: len(said)])) + (len(said) - 1) * len(self.between)
        return said, data[len(self.framed) + told + len(self.ending) :]

    def _few(self, data: bytes) -> list[bytes]:
        """What stands in the place of the string in each event."""
        framed, ending, at = self.framed, self.ending, 0
        strings: list[bytes] = []
        while data.startswith(framed, at) and (end := data.find(ending, at)) >= 0:
            strings.append(data[at + len(framed) : end])
            at = end + len(ending)
        return strings

    def _many(self, data: bytes) -> list[bytes] | None:
        """The same for many, which a single split gives; None where others stand among them."""
        framed, between = self.framed, self.between
        mark = between[-_MARK:]
        *pieces, last = data[len(framed) :].split(mark)
        around = len(mark) - len(between)
        strings = [piece[:around] for piece in pieces]
        text, ended, _ = last.partition(self.ending)
        if ended:
            strings.append(text)
        # Comparing with what they should have been is cheaper than looking at each.
        if not strings or not data.startswith(framed + between.join(strings) + self.ending):
            return None
        return strings

    def open(self, data: bytes) -> str | None:
        """The string in this chunk; None, or empty, if it must take the long way."""
        prefix, suffix = self.prefix, self.suffix
        if not data.startswith(prefix):
            return None
        if data.endswith(suffix):
            return string(data[len(prefix) : -len(suffix)])
        padding = self.padding
        if padding is None or not data.endswith(padding[1]):
            return None
        inner = data[len(prefix) : len(data) - len(padding[1])]
        text, found, padded = inner.rpartition(padding[0])
        return string(text) if found and string(padded) is not None else None


class _Plain(NamedTuple):
    """What a chunk says that says one piece of one thing."""

    field: str
    said: str
    kind: Kind
    choice: int
    call: int | None = None


def learn(data: bytes, value: dict[str, JSON]) -> Envelope | None:
    """The envelope of a chunk that was read the long way; None if it says more than one thing."""
    plain = _plain(value)
    if plain is None:
        return None
    name, pattern = _FIELDS[plain.field]
    found = pattern.search(data)
    if data.count(name) != 1 or found is None or string(found[1]) != plain.said:
        return None
    prefix, suffix = data[: found.start(1)], data[found.end(1) :]
    around = prefix + suffix
    if b"\\" in around or b"\n" in around:
        return None  # a name may be written in more ways than one, and so may several lines
    return Envelope(
        prefix,
        suffix,
        plain.kind,
        plain.choice,
        plain.call,
        _padding(suffix),
        b"data: " + prefix,
        suffix + b"\n\n",
        suffix + b"\n\ndata: " + prefix,
    )


def _padding(suffix: bytes) -> tuple[bytes, bytes] | None:
    found = _PADDING.search(suffix)
    if found is None or suffix.count(b'"obfuscation"') != 1:
        return None
    return suffix[: found.start(1)], suffix[found.end(1) :]


def _plain(value: dict[str, JSON]) -> _Plain | None:
    """What the chunk says, if it has nothing in it that must be looked at every time."""
    match value:
        case {"choices": [{"delta": dict(delta)} as choice]}:
            beside = (value.get("usage"), value.get("error"), *_others(choice, "index", "delta"))
        case _:
            return None
    left = {name: v for name, v in delta.items() if name != "role" and v not in _NOTHING}
    unknown = rest(choice, CHOICE) or rest(delta, MESSAGE)
    if len(left) != 1 or unknown or not all(each in _NOTHING for each in beside):
        return None
    ((field, said),) = left.items()
    if field == "tool_calls":
        return _plain_arguments(said, number(choice, 0))
    if field not in _KINDS or not isinstance(said, str):
        return None
    return _Plain(field, said, _KINDS[field], number(choice, 0))


def _plain_arguments(calls: JSON, choice: int) -> _Plain | None:
    match calls:
        case [{"function": {"arguments": str(said)} as function} as entry] if said:
            more = (*_others(entry, "index", "function", "type"), *_others(function, "arguments"))
            unknown = rest(entry, ENTRY) or rest(function, CALL)
            plain = entry.get("type") in (*_NOTHING, "function") and not unknown
            if plain and all(each in _NOTHING for each in more):
                return _Plain("arguments", said, "arguments", choice, index(entry))
    return None


def _others(fields: dict[str, JSON], *names: str) -> list[JSON]:
    return [v for name, v in fields.items() if name not in names]


_TEXT = frozenset({"role", "content"})
_CHUNKS_NOTHING: tuple[JSON, ...] = (None, "", [], {})
_AUDIO = ("id", "data", "transcript")
CHUNKS_BROKEN = Fault(
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
        if (counted := decode_usage(value.get("usage"))) is not None:
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
                turn.reasoning(each, choice)

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
        reason, weighed = decode_finish(choice.get("finish_reason")), choice.get("logprobs")
        tokens = self._message(number, said, weighed, more if whole else None)
        if tokens:
            beside["logprobs"] = {"content": encode_logprobs(tokens), "refusal": None}
        if beside and (whole or reason is not None):
            self._ends.setdefault(number, {}).update(beside)
            beside = {}
        if beside or (more and not whole):
            raw = {"index": number, **beside, **({"delta": more} if more else {})}
            self._turn.progress(None, "raw", {NAME: {CHOICES: [raw]}})
        self._end(number, choice, reason)

    def _end(self, number: int, choice: dict[str, JSON], reason: str | None) -> None:
        error = describe({"error": choice["error"]}) if choice.get("error") else None
        if error is None and broken(choice.get("finish_reason")):
            error = CHUNKS_BROKEN
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
        tokens = decode_logprobs(weighed, "content") if weighed else ()
        self._reasoning(number, said)
        tokens = self._content(number, said.get("content"), tokens, calling=bool(calls))
        self._annotations(number, said.get("annotations"))
        refused = decode_logprobs(weighed, "refusal") if weighed else ()
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
            self._turn.reasoning(thought, number)
        if details:
            self._details.setdefault(number, Details()).add(details)

    def _content(
        self, number: int, content: JSON, tokens: tuple[Token, ...], *, calling: bool
    ) -> tuple[Token, ...]:
        """The text; gives back the tokens for which there is none."""
        for kind, piece in _pieces(content):
            if kind == "thought":
                self._voices[number] = "thought"
                self._turn.reasoning(piece, number)
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
        (self._turn.text if voice == "text" else self._turn.reasoning)("", number, tokens)
        return ()

    def _annotations(self, number: int, listed: JSON) -> None:
        if isinstance(listed, list):
            for note in filter(None, map(decode_notes, listed)):
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
        at = json.whole(audio.get("expires_at"))
        if heard or at is not None:
            self._seal(number)
            self._turn.audio(number, **heard, expires_at=at)

    def _call(self, number: int, entry: dict[str, JSON], position: int | None) -> None:
        self._voices[number] = "call"
        kind, usual = entry.get("type"), "function" in entry or "custom" in entry
        if isinstance(kind, str) and kind not in ("custom", "function") and not usual:
            rest = {name: v for name, v in entry.items() if name not in ("type", "index")}
            self._turn.close(self._turn.open(Unknown(NAME, kind, rest), number))
        else:
            self._turn.call(_fragment(entry, position), number)

    def _seal(self, number: int) -> None:
        """What must go back with the reasoning is known once something else is said."""
        details = self._details.pop(number, None)
        if details is not None:
            self._turn.attach_reasoning({NAME: {"reasoning_details": details.take()}}, number)


def _is_text(said: dict[str, JSON]) -> bool:
    """Whether a message says a text and nothing else."""
    if type(said.get("content")) is not str:
        return False
    return all(name in _TEXT or each in _CHUNKS_NOTHING for name, each in said.items())


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
            return [("text", json.text(content))]


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
        said if isinstance(said, str) else "" if said is None else json.text(said),
        kind == "custom",
        _word(inner.get("namespace")),
        keep(known.rest(entry, known.ENTRY), **{kind: known.rest(inner, known.CALL)}),
    )


def _word(value: JSON) -> str | None:
    return value if isinstance(value, str) and value else None


FIRST = 512
"""How many bytes of a long read are looked at for what its chunks have in common."""


class Decoder(ChunkedDecoder):
    """Hears one answer into a turn, in pieces of any size."""

    def __init__(self, turn: Turn) -> None:
        self._reader = Reader(turn)
        super().__init__(turn, self._reader)
        self._envelope: Envelope | None = None  # of the last chunk, if it said one thing only
        self._running = False  # whether chunks in that envelope are being read, and by us
        self._rest = b""  # behind them: the beginning of another one
        self._say: Callable[[list[str]], None] = turn.texts  # with the strings that follow in it

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        if self._running and not self._rest and self._envelope is not None:
            alone = self._envelope.open_alone(data)
            if alone:
                self._say([alone])
                return self._turn.take()
        events: list[Event] = []
        size = FIRST
        while data:
            if self._envelope is not None and (self._running or self._begin_run()):
                run, data = self._envelope.open_run(self._rest + data)
                self._rest = b""
                if run:
                    self._say(run)
                if len(data) < FIRST and b"\n\n" not in data and b"\r" not in data:
                    self._rest = data  # nothing, or the beginning of one that may be like them
                    break
                if run:
                    continue
            self._running = False
            # Some of it the long way, for it may show what is around all strings that follow.
            end = data.find(b"\n\n", size) + 2
            size *= 2
            some, data = (data[:end], data[end:]) if end > 1 else (data, b"")
            events += super().feed(some)
        return events + self._turn.take()

    def _begin_run(self) -> bool:
        """Take over what is held of an event, for it may be one of a run."""
        held = self._sse.release(FIRST)
        self._running, self._rest = held is not None, held or b""
        return self._running

    def close(self) -> list[Event]:
        """No more bytes will come: the answer ends now, as what it is."""
        rest, self._rest = self._rest, b""
        return (super().feed(rest) if rest else []) + super().close()

    def _hear(self, events: list[tuple[str, bytes]]) -> None:
        for name, data in events:
            envelope = self._envelope
            if envelope is not None and not name and (said := envelope.open(data)):
                self._say([said])
            else:
                self._event(name, data)

    def _event(self, name: str, data: bytes) -> None:
        self._envelope = None
        super()._event(name, data)

    def _value(self, name: str, value: dict[str, JSON], data: bytes) -> None:
        super()._value(name, value, data)
        if not (self._said or self._turn.over) and (envelope := learn(data, value)):
            self._envelope, self._say = envelope, self._reader.saying(envelope)

    def _read_whole(self, data: bytes) -> None:
        if not read_answer(data, self._turn):
            super()._read_whole(data)
