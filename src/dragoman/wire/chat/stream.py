"""Decodes Chat answers, streamed and whole, into the events of a turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from dragoman.core.error import Fault
from dragoman.core.event import Event
from dragoman.core.item import JSON, Extra, Token, Unknown
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
    decode_annotation,
    decode_finish,
    decode_logprobs,
    decode_usage,
    encode_logprobs,
    index,
    number,
    readable,
    rest,
    to_extra,
)
from .response import CHOICES

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


class Template(NamedTuple):
    """A chunk with one string in it that changes: the bytes around the string, and what it is.

    The chunks of a stream differ in nothing but that string, as a rule, so only it is decoded.
    `call` is the index of the call that arguments belong to. `padding` splits the suffix where
    OpenAI puts a random text (`obfuscation`).
    """

    prefix: bytes
    suffix: bytes
    kind: Kind
    choice: int
    call: int | None
    padding: tuple[bytes, bytes] | None
    # The same with what frames an event around them.
    head: bytes
    tail: bytes

    def strings(self, data: bytes) -> tuple[list[str], bytes]:
        """The strings of the chunks like this with which the bytes begin, and the bytes behind
        them. An empty string, and what cannot be decoded, is left to the reader of whole chunks."""
        head, suffix = self.head, self.suffix
        if not data.startswith(head) or len(data) > sse.MAX_EVENT:
            return [], data
        *blocks, _ = data.split(b"\n\n")
        pieces = [block[len(head) : -len(suffix)] for block in blocks]
        # One comparison with what the bytes should have been is cheaper than one for each chunk.
        if not data.startswith(head + (self.tail + head).join(pieces) + self.tail):
            alike = [block.startswith(head) and block.endswith(suffix) for block in blocks]
            del pieces[(*alike, False).index(False) :]
        strings = decode_strings(pieces)
        if "" in strings:
            del strings[strings.index("") :]
        count = len(strings)
        return strings, data[sum(map(len, blocks[:count])) + 2 * count :]

    def string(self, data: bytes) -> str | None:
        """The string in the data of one event; None, or empty, if it is not a chunk like this."""
        prefix, suffix, padding = self.prefix, self.suffix, self.padding
        if not data.startswith(prefix):
            return None
        if data.endswith(suffix):
            return string(data[len(prefix) : -len(suffix)])
        if padding is None or not data.endswith(padding[1]):
            return None
        inner = data[len(prefix) : len(data) - len(padding[1])]
        text, found, padded = inner.rpartition(padding[0])
        return string(text) if found and string(padded) is not None else None


def learn(data: bytes, value: dict[str, JSON]) -> Template | None:
    """The template of a chunk that was decoded; None if it holds more than one string of news."""
    match value:
        case {"choices": [{"delta": dict(delta)} as choice]}:
            beside = (value.get("usage"), value.get("error"), *_others(choice, "index", "delta"))
        case _:
            return None
    fields = {name: v for name, v in delta.items() if name != "role" and v not in _NOTHING}
    unknown = rest(choice, CHOICE) or rest(delta, MESSAGE)
    if len(fields) != 1 or unknown or any(each not in _NOTHING for each in beside):
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
    head, tail = b"data: " + prefix, suffix + b"\n\n"
    place = number(choice, 0)
    return Template(prefix, suffix, kind, place, call, padding, head, tail)


def _only_arguments(calls: JSON) -> tuple[str | None, int | None]:
    """The arguments and the index of a call, if a chunk has nothing else of calls."""
    match calls:
        case [{"function": {"arguments": str(text)} as function} as entry] if text:
            more = (*_others(entry, "index", "function", "type"), *_others(function, "arguments"))
            unknown = rest(entry, ENTRY) or rest(function, CALL)
            usual = entry.get("type") in (None, "", "function") and not unknown
            if usual and all(each in _NOTHING for each in more):
                return text, index(entry)
    return None, None


def _others(fields: dict[str, JSON], *names: str) -> list[JSON]:
    return [v for name, v in fields.items() if name not in names]


# ---- whole chunks ------------------------------------------------------------------------

_TEXT = frozenset({"role", "content"})
_AUDIO = ("id", "data", "transcript")
BROKEN_OFF = Fault(
    "upstream_error", "The model's server broke the answer off and did not say why.", "upstream"
)

Written = Literal["text", "reasoning", "call"]


class Reader:
    """Reads chunks and whole answers into one turn. `started` once anything was read."""

    def __init__(self, turn: Turn) -> None:
        self.started = False
        self._turn = turn
        self._begun = False
        self._beside: dict[str, JSON] = {}  # unknown fields of chunks, as last given
        self._ends: dict[int, dict[str, JSON]] = {}  # unknown fields of finished choices
        self._details: dict[int, Details] = {}
        self._last: dict[int, Written] = {}  # what each choice wrote last
        self._texts: set[int] = set()  # choices that gave their reasoning as text

    def read(self, value: dict[str, JSON]) -> None:
        """One chunk, or one whole answer."""
        self.started = True
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
        """Nothing more will be read: the unknown fields of ended choices are passed on."""
        if self._ends:
            ends = [{"index": number, **rest} for number, rest in sorted(self._ends.items())]
            self._turn.header(extra={NAME: {CHOICES: ends}})

    def appender(self, template: Template) -> Callable[[list[str]], None]:
        """What adds the strings of chunks that follow one of this template to the turn."""
        turn, choice = self._turn, template.choice

        def reasoning(strings: list[str]) -> None:
            for each in strings:
                turn.reasoning(each, choice)

        def arguments(strings: list[str]) -> None:
            for each in strings:
                turn.call(CallFragment(template.call, arguments=each), choice)

        match template.kind:
            case "text":
                return partial(turn.texts, choice=choice) if choice else turn.texts
            case "reasoning":
                return reasoning
            case _:
                return arguments

    # ---- inside --------------------------------------------------------------------------

    def _header(self, value: dict[str, JSON]) -> None:
        rest = known.rest(value, known.CHUNK)
        if self._begun:
            if rest != self._beside:
                message, self._beside = self._beside, rest
                fresh = {name: v for name, v in rest.items() if message.get(name) != v}
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
        message, whole = choice.get("delta"), False
        if not isinstance(message, dict):
            message, whole = choice.get("message"), True
        if not isinstance(message, dict):
            message = {"content": choice.get("text")}
        beside, more = known.rest(choice, known.CHOICE), known.rest(message, known.MESSAGE)
        reason, weighed = decode_finish(choice.get("finish_reason")), choice.get("logprobs")
        tokens = self._message(number, message, weighed, more if whole else None)
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
            error = BROKEN_OFF
        if error is not None:
            self._turn.fail(error)
        elif reason is not None:
            self._end_reasoning(number)
            self._turn.finish(reason, number)

    def _message(
        self, number: int, message: dict[str, JSON], weighed: JSON, beside: dict[str, JSON] | None
    ) -> tuple[Token, ...]:
        """What a message says, in the order in which its fields belong.

        `beside` are the unknown fields of a whole message, None for a piece of one. Gives back
        the tokens that belong to nothing that can be message: those a call is made of, as a rule.
        """
        if weighed is None and not beside and _is_text(message):
            if content := message["content"]:
                self._end_reasoning(number)
                self._last[number] = "text"
                self._turn.text(content, number)
            return ()
        calls = _listed(message)
        tokens = decode_logprobs(weighed, "content") if weighed else ()
        self._reasoning(number, message)
        tokens = self._content(number, message.get("content"), tokens, calling=bool(calls))
        self._annotations(number, message.get("annotations"))
        refused = decode_logprobs(weighed, "refusal") if weighed else ()
        self._refusal(number, message.get("refusal"), refused)
        self._audio(number, message.get("audio"))
        if beside:
            self._end_reasoning(number)
            self._turn.attach({NAME: beside}, number)
        for position, entry in enumerate(calls):
            self._end_reasoning(number)
            self._call(number, entry, position if beside is not None else None)
        return tokens

    def _reasoning(self, number: int, message: dict[str, JSON]) -> None:
        """The reasoning, which some servers give under several names at once."""
        details = message.get("reasoning_details")
        details = details if isinstance(details, list) else []
        named = (message.get(name) for name in ("reasoning_content", "reasoning"))
        texts = [text for text in named if isinstance(text, str) and text][:1]
        if texts:
            self._texts.add(number)
        elif number not in self._texts:  # else the details repeat what came as text
            texts = readable(details)
        for text in texts:
            self._last[number] = "reasoning"
            self._turn.reasoning(text, number)
        if details:
            self._details.setdefault(number, Details()).add(details)

    def _content(
        self, number: int, content: JSON, tokens: tuple[Token, ...], *, calling: bool
    ) -> tuple[Token, ...]:
        """The text; gives back the tokens for which there is none."""
        for kind, piece in _pieces(content):
            if kind == "reasoning":
                self._last[number] = "reasoning"
                self._turn.reasoning(piece, number)
            elif kind == "refusal":
                self._refusal(number, piece, ())
            else:
                self._end_reasoning(number)
                self._last[number] = "text"
                self._turn.text(piece, number, tokens)
                tokens = ()
        written = self._last.get(number, "text")
        if not tokens or calling or written == "call":
            return tokens
        (self._turn.text if written == "text" else self._turn.reasoning)("", number, tokens)
        return ()

    def _annotations(self, number: int, listed: JSON) -> None:
        if isinstance(listed, list):
            for note in filter(None, map(decode_annotation, listed)):
                self._end_reasoning(number)
                self._turn.annotate(note, number)

    def _refusal(self, number: int, refusal: JSON, tokens: tuple[Token, ...]) -> None:
        words = refusal if isinstance(refusal, str) else ""
        if words or tokens:
            self._end_reasoning(number)
            self._turn.refusal(words, number, tokens)

    def _audio(self, number: int, audio: JSON) -> None:
        if not isinstance(audio, dict):
            return
        given = {n: v for n in _AUDIO if isinstance(v := audio.get(n), str) and v}
        at = json.whole(audio.get("expires_at"))
        if given or at is not None:
            self._end_reasoning(number)
            self._turn.audio(number, **given, expires_at=at)

    def _call(self, number: int, entry: dict[str, JSON], position: int | None) -> None:
        self._last[number] = "call"
        kind, usual = entry.get("type"), "function" in entry or "custom" in entry
        if isinstance(kind, str) and kind not in ("custom", "function") and not usual:
            rest = {name: v for name, v in entry.items() if name not in ("type", "index")}
            self._turn.close(self._turn.open(Unknown(NAME, kind, rest), number))
        else:
            self._turn.call(_fragment(entry, position), number)

    def _end_reasoning(self, number: int) -> None:
        """Attach the details that go back with the reasoning: they are complete now."""
        details = self._details.pop(number, None)
        if details is not None:
            self._turn.attach_reasoning({NAME: {"reasoning_details": details.take()}}, number)


def _is_text(message: dict[str, JSON]) -> bool:
    """Whether a message says a text and nothing else."""
    if type(message.get("content")) is not str:
        return False
    return all(name in _TEXT or each in _NOTHING for name, each in message.items())


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


def _listed(message: dict[str, JSON]) -> list[dict[str, JSON]]:
    """The calls of a message; the deprecated form counts where there is no list."""
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if not isinstance(calls, list):
        calls = [{"function": legacy}] if isinstance(legacy, dict) else []
    return [entry for entry in calls if isinstance(entry, dict)]


def _fragment(entry: dict[str, JSON], place: int | None) -> CallFragment:
    """A piece of a call; in a whole answer its place in the list is what tells calls apart."""
    kind = "custom" if entry.get("type") == "custom" or "custom" in entry else "function"
    inner = entry[kind] if isinstance(entry.get(kind), dict) else {}
    message = inner.get("input" if kind == "custom" else "arguments")
    return CallFragment(
        known.index(entry) if place is None else place,
        _word(entry.get("id")),
        _word(inner.get("name")),
        message if isinstance(message, str) else "" if message is None else json.text(message),
        kind == "custom",
        _word(inner.get("namespace")),
        to_extra(known.rest(entry, known.ENTRY), **{kind: known.rest(inner, known.CALL)}),
    )


def _word(value: JSON) -> str | None:
    return value if isinstance(value, str) and value else None


# ---- a plain answer, whole ---------------------------------------------------------------

_Word = Annotated[str, Meta(min_length=1)]
_Nothing = Annotated[list[None], Meta(max_length=0)]


class _Message(Struct, forbid_unknown_fields=True):
    content: _Word
    role: Literal["assistant"] | None = None
    refusal: Literal[""] | None = None
    annotations: _Nothing | None = None


class _Choice(Struct, forbid_unknown_fields=True):
    message: _Message
    finish_reason: Literal["stop", "length"]
    index: Literal[0] | None = None
    logprobs: None = None


class _Answered(Struct, forbid_unknown_fields=True):
    choices: Annotated[list[_Choice], Meta(min_length=1, max_length=1)]
    id: str | None = None
    object: Literal["chat.completion"] | None = None
    created: int | None = None
    model: str | None = None
    usage: JSON = None
    service_tier: str | None = None
    system_fingerprint: str | None = None


_answered = msgspec.json.Decoder(_Answered).decode


def _read_plain(data: bytes, turn: Turn) -> bool:
    """Read an answer that is one text and no more into a turn; False if it is another."""
    if turn.started or not turn.direct:
        return False
    try:
        answer = _answered(data)
    except BROKEN:
        return False
    (choice,) = answer.choices
    text = choice.message.content
    if text.lstrip().startswith("<"):  # perhaps a think tag
        return False
    itself = {"id": answer.id, "created": answer.created}
    unknown = {
        "service_tier": answer.service_tier,
        "system_fingerprint": answer.system_fingerprint,
    }
    extra: Extra = {}
    for name, fields in (("upstream", itself), (NAME, unknown)):
        if given := {field: value for field, value in fields.items() if value is not None}:
            extra[name] = given
    json.check_depth(answer.usage)
    turn.usage = decode_usage(answer.usage)
    turn.whole_answer(text, choice.finish_reason, answer.model, extra)
    return True


FIRST = 512
"""How many bytes of a long read are looked at for what its chunks have in common."""


class Decoder(ChunkedDecoder):
    """Decodes one answer into a turn, from pieces of any size."""

    def __init__(self, turn: Turn) -> None:
        self._reader = Reader(turn)
        super().__init__(turn, self._reader)
        self._template: Template | None = None  # of the last chunk, if it has one
        self._running = False  # chunks like it are read here, and not by the SSE decoder
        self._rest = b""  # behind them: the beginning of another one
        self._append: Callable[[list[str]], None] = turn.texts  # the strings of such chunks

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        template = self._template
        # One chunk like the last one, which is how the stream of a model comes, in few calls.
        if (
            template is not None
            and self._running
            and not self._rest
            and data.startswith(template.head)
            and data.endswith(template.tail)
        ):
            piece = data[len(template.head) : -len(template.tail)]
            try:
                text = decode_string(piece)
            except BROKEN:
                text = ""
            # JSON allows line ends beside the string, and in SSE they have a meaning.
            if text and b"\n" not in piece and b"\r" not in piece and len(data) <= sse.MAX_EVENT:
                self._append([text])
                turn = self._turn
                events, turn.events = turn.events, []  # as `take` does
                return events
        events = []
        size = FIRST
        while data:
            if self._template is not None and (self._running or self._begin_run()):
                strings, data = self._template.strings(self._rest + data)
                self._rest = b""
                if strings:
                    self._append(strings)
                if len(data) < FIRST and b"\n\n" not in data and b"\r" not in data:
                    self._rest = data  # nothing, or the beginning of one that may be like them
                    break
                if strings:
                    continue
            self._running = False
            # Decode some of it, as it may show the template of all that follows.
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

    def _read_events(self, events: list[tuple[str, bytes]]) -> None:
        for name, data in events:
            template = self._template
            if template is not None and not name and (text := template.string(data)):
                self._append([text])
            else:
                self._event(name, data)

    def _event(self, name: str, data: bytes) -> None:
        self._template = None
        super()._event(name, data)

    def _value(self, name: str, value: dict[str, JSON], data: bytes) -> None:
        super()._value(name, value, data)
        if not (self._ended or self._turn.over) and (template := learn(data, value)):
            self._template, self._append = template, self._reader.appender(template)

    def _read_whole(self, data: bytes) -> None:
        if not _read_plain(data, self._turn):
            super()._read_whole(data)
