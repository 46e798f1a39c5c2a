"""Decodes Chat answers, streamed and whole, into the events of a turn."""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dragoman.core.error import LONGEST_NAME, MAX_ITEMS
from dragoman.core.item import JSON, Extra, FunctionCall, Token, Unknown
from dragoman.core.tool_calls import CallFragment
from dragoman.wire import json
from dragoman.wire.choices import ChoicesDecoder, Template, decode_tokens, rest
from dragoman.wire.json import BROKEN, string
from dragoman.wire.usage import decode_usage

from .messages import NAME, decode_annotation, encode_logprobs, to_extra
from .response import FINISH_WORDS

CHOICE = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason", "error"})
MESSAGE = frozenset(
    {
        *("annotations", "audio", "content", "function_call", "reasoning", "reasoning_content"),
        *("reasoning_details", "refusal", "role", "tool_calls"),
    }
)
ENTRY = frozenset({"index", "id", "type", "function", "custom"})
CALL = frozenset({"name", "namespace", "arguments", "input"})

Kind = Literal["text", "reasoning", "arguments"]
_KINDS: dict[str, Kind] = {
    "content": "text",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
}
_STRING = rb'"%s"[ \t]*:[ \t]*("(?:[^"\\]|\\.)*+")'
_FIELDS = {
    name: (b'"%s"' % name.encode(), re.compile(_STRING % name.encode()))
    for name in (*_KINDS, "arguments")
}
_PADDING = re.compile(rb'"obfuscation"[ \t]*:[ \t]*("[^"\\]*+")')
_NOTHING: tuple[JSON, ...] = (None, "", [], {})


MOST_CHOICES = 128
"""The most choices; an index beyond is invalid."""


LONGEST = 16 * 1024
"""The most bytes of a chunk that can be a template."""


def learn(data: bytes, value: dict[str, JSON]) -> Template | None:
    """The template of a decoded chunk; None if more than one string in it changes."""
    match value:
        case {"choices": [{"delta": dict(delta)} as choice]} if len(data) <= LONGEST:
            beside = (value.get("usage"), value.get("error"), *_others(choice, "index", "delta"))
        case _:
            return None
    fields = {name: v for name, v in delta.items() if name != "role" and v not in _NOTHING}
    unknown = rest(choice, CHOICE) or rest(delta, MESSAGE)
    if len(fields) != 1 or unknown or [each for each in beside if each not in _NOTHING]:
        return None
    ((name, text),) = fields.items()
    kind, call = _KINDS.get(name), None
    if name == "tool_calls":
        name, kind = "arguments", "arguments"
        text, call = _only_arguments(text)
    if kind is None or not isinstance(text, str):
        return None
    quoted, pattern = _FIELDS[name]
    found = pattern.search(data)
    if data.count(quoted) != 1 or found is None or string(found[1]) != text:
        return None
    prefix, suffix = data[: found.start(1)], data[found.end(1) :]
    if b"\\" in prefix + suffix or b"\n" in prefix + suffix:
        return None  # a name may be written in more ways than one, and so may several lines
    padded = _PADDING.search(suffix)
    padding = None
    if padded is not None and suffix.count(b'"obfuscation"') == 1:
        padding = suffix[: padded.start(1)], suffix[padded.end(1) :]
    given = choice.get("index")
    place = given if type(given) is int and 0 <= given < MOST_CHOICES else 0
    return Template(b"data: " + prefix, suffix + b"\n\n", kind, place, call, padding)


def _only_arguments(calls: JSON) -> tuple[str | None, int | None]:
    """The arguments and the index of a call, if a chunk has no other fields of calls."""
    match calls:
        case [{"function": {"arguments": str(text)} as function} as entry] if text:
            more = (*_others(entry, "index", "function", "type"), *_others(function, "arguments"))
            unknown = rest(entry, ENTRY) or rest(function, CALL)
            usual = entry.get("type") in (None, "", "function") and not unknown
            if usual and all(each in _NOTHING for each in more):
                return text, entry["index"] if type(entry.get("index")) is int else None
    return None, None


def _others(fields: dict[str, JSON], *names: str) -> list[JSON]:
    return [v for name, v in fields.items() if name not in names]


# ---- chunks, and whole answers -----------------------------------------------------------

_TEXT = frozenset({"role", "content"})
_AUDIO = ("id", "data", "transcript")


class _Written:
    """The decoding state of one choice."""

    __slots__ = ("details", "last", "texts")

    def __init__(self) -> None:
        self.last: Literal["text", "reasoning", "call"] = "text"  # the kind of the last delta
        self.texts = False  # the reasoning was sent as text
        self.details: list[JSON] = []  # of the current reasoning, in pieces


class Decoder(ChoicesDecoder):
    """Decodes one answer into a turn, from pieces of any size."""

    name = NAME
    fields = CHOICE
    words = FINISH_WORDS
    most = MOST_CHOICES

    def _learn(self, data: bytes, value: dict[str, JSON]) -> None:
        template = learn(data, value)
        if template is None:
            return
        turn, choice = self._turn, template.choice

        def reasoning(strings: list[str]) -> None:
            for each in strings:
                turn.reasoning(each, choice)

        def arguments(strings: list[str]) -> None:
            for each in strings:
                turn.call(CallFragment(template.call, arguments=each), choice)

        self._template, self._append = template, arguments
        if template.kind == "text":
            self._append = partial(turn.texts, choice=choice) if choice else turn.texts
        elif template.kind == "reasoning":
            self._append = reasoning

    def _content(
        self, number: int, choice: dict[str, JSON], beside: dict[str, JSON], *, ends: bool
    ) -> dict[str, JSON] | None:
        state = self._choices.get(number) or self._choices.setdefault(number, _Written())
        message, whole = choice.get("delta"), False
        if not isinstance(message, dict):
            message, whole = choice.get("message"), True
        if not isinstance(message, dict):
            message = {"content": choice.get("text")}
        more, weighed = rest(message, MESSAGE), choice.get("logprobs")
        if weighed is None and not (whole and more) and _is_text(message):
            if message["content"]:
                self._text(state, number, message["content"], ())
        else:
            tokens = self._message(state, number, message, weighed, more if whole else None)
            if tokens:
                beside["logprobs"] = {"content": encode_logprobs(tokens), "refusal": None}
        if ends:
            self._end_reasoning(state, number)
        return None if whole else more

    def _message(
        self,
        state: _Written,
        number: int,
        message: dict[str, JSON],
        weighed: JSON,
        beside: dict[str, JSON] | None,
    ) -> tuple[Token, ...]:
        """Decode a message or a delta, with its fields in a fixed order.

        `beside` are the unknown fields of a whole message, None for a delta. Returns
        the tokens that are not part of a message: usually those of a call.
        """
        turn = self._turn
        calls, legacy = message.get("tool_calls"), message.get("function_call")
        if not isinstance(calls, list):  # the deprecated form counts where there is no list
            calls = [{"function": legacy}] if isinstance(legacy, dict) else []
        calls = [entry for entry in calls if isinstance(entry, dict)]
        weighed = weighed if isinstance(weighed, dict) else {}
        tokens = decode_tokens(weighed.get("content"), NAME)
        self._reasoning(state, number, message)
        for kind, piece in _pieces(message.get("content")):
            if kind == "reasoning":
                state.last = "reasoning"
                turn.reasoning(piece, number)
            elif kind == "refusal":
                self._end_reasoning(state, number)
                turn.refusal(piece, number)
            else:
                self._text(state, number, piece, tokens)
                tokens = ()
        if tokens and not calls and state.last != "call":
            (turn.text if state.last == "text" else turn.reasoning)("", number, tokens)
            tokens = ()
        listed = message.get("annotations")
        for note in map(decode_annotation, listed if isinstance(listed, list) else ()):
            if note is not None:
                self._end_reasoning(state, number)
                turn.annotate(note, number)
        refusal, audio = message.get("refusal"), message.get("audio")
        words = refusal if isinstance(refusal, str) else ""
        refused = decode_tokens(weighed.get("refusal"), NAME)
        if words or refused:
            self._end_reasoning(state, number)
            turn.refusal(words, number, refused)
        if isinstance(audio, dict):
            given = {n: v for n in _AUDIO if isinstance(v := audio.get(n), str) and v}
            at = json.whole(audio.get("expires_at"))
            if given or at is not None:
                self._end_reasoning(state, number)
                turn.audio(number, **given, expires_at=at)
        if beside:
            self._end_reasoning(state, number)
            turn.attach({NAME: beside}, number)
        for position, entry in enumerate(calls):
            self._end_reasoning(state, number)
            state.last = "call"
            kind, usual = entry.get("type"), "function" in entry or "custom" in entry
            if isinstance(kind, str) and kind not in ("custom", "function") and not usual:
                fields = {name: v for name, v in entry.items() if name not in ("type", "index")}
                turn.close(turn.open(Unknown(NAME, kind, fields), number))
            else:
                turn.call(_fragment(entry, None if beside is None else position), number)
        return tokens

    def _text(self, state: _Written, number: int, text: str, tokens: tuple[Token, ...]) -> None:
        self._end_reasoning(state, number)
        state.last = "text"
        self._turn.text(text, number, tokens)

    def _reasoning(self, state: _Written, number: int, message: dict[str, JSON]) -> None:
        """The reasoning, which some servers send under several names at once."""
        details = message.get("reasoning_details")
        details = details if isinstance(details, list) else []
        named = map(message.get, ("reasoning_content", "reasoning"))
        texts = [text for text in named if isinstance(text, str) and text][:1]
        if texts:
            state.texts = True
        elif not state.texts:  # else the details repeat the text
            texts = readable(details)
        for text in texts:
            state.last = "reasoning"
            self._turn.reasoning(text, number)
        state.details += details

    def _end_reasoning(self, state: _Written, number: int) -> None:
        """Attach the complete details, which clients send back with the reasoning."""
        if state.details:
            details, state.details = join_details(state.details), []
            self._turn.attach_reasoning({NAME: {"reasoning_details": details}}, number)

    def _read_whole(self, data: bytes) -> None:
        turn, answer, usage = self._turn, None, None
        if turn.direct and not turn.started:
            try:
                answer = _answered(data)
                usage = decode_usage(answer.usage, NAME)
                if usage is not None and usage.extra:
                    json.check_depth(answer.usage)
            except (*BROKEN, ValueError):
                answer = None
        if answer is None:
            super()._read_whole(data)
            return
        (choice,) = answer.choices
        text, calls = choice.message.content or "", choice.message.tool_calls or ()
        if (
            not (text or calls)
            or (calls and choice.finish_reason == "length")  # one of them may be cut
            or len(calls) >= MAX_ITEMS  # which is a fault
            or (calls and len({call.id for call in calls} - turn.call_ids) < len(calls))
            or text.lstrip().startswith("<")  # it may be a think tag
        ):
            super()._read_whole(data)
            return
        extra: Extra = {}
        itself = {"id": answer.id, "created": answer.created}
        own = {"service_tier": answer.service_tier, "system_fingerprint": answer.system_fingerprint}
        for name, fields in (("upstream", itself), (NAME, own)):
            if given := {field: value for field, value in fields.items() if value is not None}:
                extra[name] = given
        turn.usage = usage
        called = [FunctionCall(c.id, c.function.name, c.function.arguments) for c in calls]
        turn.whole_answer(text, called, choice.finish_reason, answer.model, extra)


def _is_text(message: dict[str, JSON]) -> bool:
    """Whether a message has only text."""
    if type(message.get("content")) is not str:
        return False
    return not [n for n, v in message.items() if n not in _TEXT and v not in _NOTHING]


def _pieces(content: JSON) -> list[tuple[str, str]]:
    """Content of any shape as text, reasoning and refusal; a null is no text at all."""
    match content:
        case None | "":
            return []
        case str():
            return [("text", content)]
        case list():
            return [piece for part in content for piece in _pieces(part)]
        case {"type": "thinking", "thinking": inner}:
            return [("reasoning", words) for _, words in _pieces(inner)]
        case {"type": "refusal", "refusal": str(words)}:
            return [("refusal", words)] if words else []
        case {"text": str(words)}:
            return [("text", words)] if words else []
        case _:
            return [("text", json.text(content))]


def _fragment(entry: dict[str, JSON], place: int | None) -> CallFragment:
    """A piece of a call; in a whole response calls are identified by their position."""
    kind = "custom" if entry.get("type") == "custom" or "custom" in entry else "function"
    inner = entry[kind] if isinstance(entry.get(kind), dict) else {}
    message, at = inner.get("input" if kind == "custom" else "arguments"), entry.get("index")
    return CallFragment(
        (at if type(at) is int else None) if place is None else place,
        _word(entry.get("id")),
        _word(inner.get("name")),
        message if isinstance(message, str) else "" if message is None else json.text(message),
        kind == "custom",
        _word(inner.get("namespace")),
        to_extra(rest(entry, ENTRY), **{kind: rest(inner, CALL)}),
    )


def _word(value: JSON) -> str | None:
    return value if isinstance(value, str) and value else None


# ---- details of reasoning ----------------------------------------------------------------

_READABLE = ("text", "summary")
_JOINED = (*_READABLE, "data")


def join_details(pieces: list[JSON]) -> list[JSON]:
    """Join the pieces with the same index and type into entries.

    >>> first = {"index": 0, "type": "reasoning.text", "text": "Hm"}
    >>> join_details([first, {"index": 0, "type": "reasoning.text", "text": "m", "signature": "s"}])
    [{'index': 0, 'type': 'reasoning.text', 'text': 'Hmm', 'signature': 's'}]
    """
    entries: dict[Hashable, list[JSON]] = {}
    for piece in pieces:
        match piece:
            case {"index": int(index), "type": str(kind)}:
                entries.setdefault((index, kind), []).append(piece)
            case _:
                entries[len(entries)] = [piece]
    return [_merged(entry) for entry in entries.values()]


def _merged(pieces: list[JSON]) -> JSON:
    """One entry: its texts joined, and the last value of other fields."""
    if len(pieces) == 1:
        return pieces[0]
    entry: dict[str, JSON] = {}
    for piece in pieces:
        entry |= {n: v for n, v in piece.items() if v is not None or n not in entry}
    for name in _JOINED:
        if isinstance(entry.get(name), str):
            texts = (piece.get(name) for piece in pieces)
            entry[name] = "".join(text for text in texts if isinstance(text, str))
    return entry


def readable(pieces: list[JSON]) -> list[str]:
    """The text in the pieces of one chunk.

    >>> readable([{"type": "reasoning.text", "text": "Hm"}, {"type": "reasoning.encrypted"}])
    ['Hm']
    """
    texts = (piece.get(n) for piece in pieces if isinstance(piece, dict) for n in _READABLE)
    return [text for text in texts if isinstance(text, str) and text]


# ---- an answer of text and calls, whole --------------------------------------------------

_Word = Annotated[str, Meta(min_length=1)]
_Nothing = Annotated[list[None], Meta(max_length=0)]


class _Function(Struct, forbid_unknown_fields=True):
    name: _Word
    arguments: _Word


class _Call(Struct, forbid_unknown_fields=True):
    id: _Word
    function: _Function
    type: Literal["function"] | None = None
    index: int | None = None


class _Message(Struct, forbid_unknown_fields=True):
    content: str | None = None
    tool_calls: list[_Call] | None = None
    role: Literal["assistant"] | None = None
    refusal: Literal[""] | None = None
    annotations: _Nothing | None = None


class _Choice(Struct, forbid_unknown_fields=True):
    message: _Message
    finish_reason: Literal["stop", "length", "tool_calls"]
    index: Literal[0] | None = None
    logprobs: None = None


class _Answer(Struct, forbid_unknown_fields=True):
    choices: Annotated[list[_Choice], Meta(min_length=1, max_length=1)]
    id: str | None = None
    object: Literal["chat.completion"] | None = None
    created: int | None = None
    model: Annotated[str, Meta(max_length=LONGEST_NAME)] | None = None
    usage: JSON = None
    service_tier: str | None = None
    system_fingerprint: str | None = None


_answered = msgspec.json.Decoder(_Answer).decode
