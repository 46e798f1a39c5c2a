"""Shows what an engine makes of an input: the prompt, its tokens, a completion parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded
from dragoman.core.item import CustomToolCall, FunctionCall, Item, Message, Reasoning
from dragoman.core.loss import Loss
from dragoman.core.lower import lower
from dragoman.core.request import FunctionTool, Request
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Format, Setting
from dragoman.formats.prompt import Prompt, Tokenizer
from dragoman.wire.chat import CHAT
from dragoman.wire.responses import RESPONSES

from .find_format import find_format, format_of
from .token.planner import raw_ids

Kind = Literal["control", "text", "reasoning", "call"]

_WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")
_CONTROL = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>")
_KINDS: dict[str, Kind] = {
    "reasoning": "reasoning",
    "summary": "reasoning",
    "arguments": "call",
    "input": "call",
}


class Shown(Struct, frozen=True):
    """One token: its id, its bytes, what kind of thing it belongs to, and what was made of it."""

    id: int
    piece: bytes
    kind: Kind
    events: tuple[Event, ...] = ()


class Heard(Struct, frozen=True):
    """A completion: its tokens, the events of its end, and what was malformed in it."""

    tokens: tuple[Shown, ...]
    end: tuple[Event, ...]
    warnings: tuple[str, ...]


class Words:
    """A vocabulary for when there is none: a token for each word, in order of appearance.

    `controls` are found in the texts given at the start by their looks: `<|…|>`.

    >>> words = Words(["hi<|end|>"])
    >>> list(words.controls), words.encode("one two one")
    (['<|end|>'], [1, 2, 3])
    >>> words.piece(2)
    b' two'
    """

    def __init__(self, texts: Sequence[str]) -> None:
        found = (mark for text in texts for mark in _CONTROL.findall(text))
        self._ids = {text: place for place, text in enumerate(dict.fromkeys(found))}
        self.controls = dict(self._ids)
        self._texts = list(self._ids)

    @property
    def size(self) -> int:
        """How many words there have been."""
        return len(self._texts)

    def encode(self, text: str) -> list[int]:
        """An id for each word; words that look like a control token are none."""
        return [self._id(word) for word in _WORD.findall(text)]

    def piece(self, id: int) -> bytes:
        """The word."""
        return self._texts[id].encode("utf-8", "replace") if 0 <= id < self.size else b""

    def _id(self, word: str) -> int:
        key = f"{word}\0"  # so that a word is never a control token
        if key not in self._ids:
            self._ids[key] = self.size
            self._texts.append(word)
        return self._ids[key]


def words_for(format: Format, request: Request, completion: str) -> Words:
    """The words of a conversation and a completion in a format."""
    prompt = format.render(request)
    return Words([prompt.text, *format.stops(request).controls, completion])


def prompt_tokens(
    format: Format, request: Request, tokenizer: Tokenizer, setting: Setting = PLAIN
) -> tuple[list[Shown], tuple[Loss, ...]]:
    """The prompt of a request, and what could not be said in it. Raises FaultError.

    >>> from dragoman.formats.registry import by_name
    >>> harmony, request = by_name("harmony"), Request(model="m", items=(Message("user", "hi"),))
    >>> tokens, _ = prompt_tokens(harmony, request, words_for(harmony, request, ""))
    >>> [(token.piece, token.kind) for token in tokens][-3:]
    [(b'<|end|>', 'control'), (b'<|start|>', 'control'), (b'assistant', 'text')]
    """
    prompt: Prompt = format.render(request, setting)
    ids = prompt.ids(tokenizer)
    pieces = [tokenizer.piece(id) for id in ids]
    places = list(_places(request.items, b"".join(pieces)))
    controls = frozenset(tokenizer.controls.values())
    shown: list[Shown] = []
    start = 0
    for id, piece in zip(ids, pieces, strict=True):
        end = start + len(piece)
        inside = (kind for first, last, kind in places if first < end and start < last)
        kind: Kind = "control" if id in controls else next(inside, "text")
        shown.append(Shown(id, piece, kind))
        start = end
    return shown, prompt.losses


def completion_tokens(
    format: Format, request: Request, tokenizer: Tokenizer, completion: str | Sequence[int]
) -> Heard:
    """What a model wrote, each token with the events that the parser made of it.

    A parser holds back what may still become a marker, so events may come some tokens late; a token
    that has none of its own is of the kind of the next that has. What is written behind the end is
    left out, as an engine would.
    """
    ids = raw_ids(completion, tokenizer)
    stops = {tokenizer.controls.get(text) for text in format.stops(request).controls}
    end = next((place for place, id in enumerate(ids) if id in stops), None)
    controls = frozenset(tokenizer.controls.values())
    turn = Turn("view", 0, request.model, think=None)
    turn.begin()
    turn.take()
    parser = format.parser(request, turn, tokenizer)
    heard: list[tuple[int, tuple[Event, ...]]] = []
    for id in ids if end is None else ids[: end + 1]:
        parser.feed([id])
        heard.append((id, tuple(turn.take())))
    parser.close("length" if end is None else "stop")
    last = tuple(turn.take())
    shown: list[Shown] = []
    before = (_kind(events[::-1]) for _, events in reversed(heard))
    latest: Kind = next(filter(None, before), "text")
    kind: Kind = _kind(last) or latest  # what makes no event any more goes with the last that did
    for id, events in reversed(heard):
        kind = _kind(events) or kind
        piece = tokenizer.piece(id)
        shown.append(Shown(id, piece, "control" if id in controls else kind, events))
    return Heard(tuple(reversed(shown)), last, tuple(parser.warnings))


def told(event: Event) -> str | None:
    """An event in a few words; None for those that only open and close."""
    match event:
        case Delta(kind=kind, data=data):
            return f"{kind} {data!r}"
        case ItemAdded(item=FunctionCall(name=name) | CustomToolCall(name=name)):
            return f"call of {name}"
        case ItemAdded(item=item):
            return type(item).__name__.lower()
        case Finished(status=status, reasons=reasons):
            return f"{status} ({', '.join(reasons)})"
        case Failed(fault=fault):
            return f"failed: {fault.message}"
        case _:
            return None


def _kind(events: Sequence[Event]) -> Kind | None:
    """The kind of what begins or goes on first in some events."""
    for event in events:
        match event:
            case Delta(kind=kind):
                return _KINDS.get(kind, "text")
            case ItemAdded(item=FunctionCall() | CustomToolCall()):
                return "call"
            case ItemAdded(item=Reasoning()):
                return "reasoning"
            case ItemAdded():
                return "text"
    return None


def _places(items: Sequence[Item], prompt: bytes) -> Iterator[tuple[int, int, Kind]]:
    """Where in a prompt the reasoning and the calls of a conversation stand. They are found by
    their words, one after the other: a prompt does not say what it is made of."""
    at = 0
    for kind, text in _said(items):
        words = text.strip().encode("utf-8", "replace")
        start = prompt.find(words, at)
        if words and start >= 0:
            at = start + len(words)
            if kind != "text":
                yield start, at, kind


def _said(items: Sequence[Item]) -> Iterator[tuple[Kind, str]]:
    for item in items:
        match item:
            case Message(role="assistant" | "user"):
                yield "text", item.text
            case Reasoning():
                yield "reasoning", item.text
            case FunctionCall(name=name, arguments=said) | CustomToolCall(name=name, input=said):
                yield "call", name
                yield "call", said


if TYPE_CHECKING:
    from .token.source import ScoringModel

MOST = 400
"""Tokens that the pocket model is let to write."""
QUESTION = "What is the weather in Paris?"
WEATHER = FunctionTool(
    "get_weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


class Subject(Struct, frozen=True):
    """What is looked at: a request as its format can say it, and what that cost (`losses`).

    `words` says that words stand for tokens, for want of a vocabulary.
    """

    format: Format
    tokenizer: Tokenizer
    request: Request
    completion: str | Sequence[int] | None
    losses: tuple[Loss, ...] = ()
    words: bool = False


def find_subject(
    format: str | None = None,
    folder: str | None = None,
    request: bytes | None = None,
    completion: str | None = None,
    question: str | None = None,
) -> Subject:
    """What is looked at, by the words of a command.

    - `format` is the name of a format, or a folder that has one; `folder` is where a vocabulary is.
    - `request` is the body of a request, of Chat Completions or of Responses; `question` is what a
      user says where there is none.
    - `completion` is what a model wrote, as text or as a JSON array of ids.

    Raises FaultError for a request that is none, ValueError for a format or a folder that is none,
    and ImportError where something is not installed.
    """
    asked = _request(request, question)
    said = None if completion is None else _completion(completion)
    if folder is not None:
        from .token.vocabulary import from_folder

        vocabulary = from_folder(folder)
        found = find_format(format) if format else format_of(Path(folder), vocabulary.controls)
        fit = lower(asked, found.limits)
        return Subject(found, vocabulary, fit.request, said, fit.losses)
    if format is not None:
        found = find_format(format)
        if said is not None and not isinstance(said, str):
            raise ValueError("A completion of ids needs a vocabulary: --tokenizer FOLDER.")
        fit = lower(asked, found.limits)
        words = words_for(found, fit.request, said or "")
        return Subject(found, words, fit.request, said, fit.losses, words=True)
    return _pocket(asked, said)


def _pocket(request: Request, completion: str | Sequence[int] | None) -> Subject:
    """The pocket model, with its own answer where none is given."""
    from .pocket import FOLDER, MISSING, available

    if not available():
        raise ImportError(MISSING)
    from .pocket.model import load

    format, model, vocabulary = load(FOLDER)
    fit = lower(request, format.limits)
    if completion is None:
        prompt = format.render(fit.request).ids(vocabulary)
        controls = vocabulary.controls
        ends = {controls[text] for text in format.stops(fit.request).controls if text in controls}
        completion = written(model, prompt, ends)
    return Subject(format, vocabulary, fit.request, completion, fit.losses)


def written(model: ScoringModel, prompt: Sequence[int], ends: set[int]) -> list[int]:
    """What a model writes if the likeliest token is taken every time."""
    slot = model.open(prompt)
    news, ids = list(prompt[slot.length :]), list[int]()
    while len(ids) < MOST and not (ids and ids[-1] in ends):
        (scores,) = model.step([(slot, news)])
        news = [int(scores.argmax())]
        ids += news
    model.close(slot)
    return ids


def _request(body: bytes | None, question: str | None) -> Request:
    """The request in a body, whose wire is known by its fields; `model` may be left out."""
    if body is None:
        tools = () if question else (WEATHER,)
        return Request(model="m", items=(Message("user", question or QUESTION),), tools=tools)
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise FaultError(bad_request(f"the request is no JSON object: {error}")) from error
    wire = CHAT if "messages" in fields else RESPONSES
    return wire.decode_request(msgspec.json.encode({"model": "m", **fields}))


def _completion(text: str) -> str | list[int]:
    """A completion as text, or as the ids it lists."""
    try:
        return msgspec.json.decode(text, type=list[int])
    except msgspec.DecodeError:
        return text
