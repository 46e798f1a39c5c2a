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

from .find_format import find_format, format_of, warning_of
from .token.engine import raw_ids

if TYPE_CHECKING:
    from .token.source import ScoringModel

Kind = Literal["control", "text", "reasoning", "call"]

_WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")
_CONTROL = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>")
_KINDS: dict[str, Kind] = {
    "reasoning": "reasoning",
    "summary": "reasoning",
    "arguments": "call",
    "input": "call",
}


class ShownToken(Struct, frozen=True):
    """A token: its id, its bytes, what it belongs to, and the events it caused."""

    id: int
    piece: bytes
    kind: Kind
    events: tuple[Event, ...] = ()


class ParsedCompletion(Struct, frozen=True):
    """A completion: its tokens, the events of its end, and what was malformed in it."""

    tokens: tuple[ShownToken, ...]
    end: tuple[Event, ...]
    warnings: tuple[str, ...]


class WordTokens:
    """A stand-in for a missing vocabulary: one token per word, numbered by appearance.

    Control tokens are recognised in `texts` by their form, `<|…|>`.

    >>> words = WordTokens(["hi<|end|>"])
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
        return len(self._texts)

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in _WORD.findall(text)]

    def piece(self, id: int) -> bytes:
        return self._texts[id].encode("utf-8", "replace") if 0 <= id < self.size else b""

    def _id(self, word: str) -> int:
        key = f"{word}\0"  # so that a word is never a control token
        if key not in self._ids:
            self._ids[key] = self.size
            self._texts.append(word)
        return self._ids[key]


def word_tokens(format: Format, request: Request, completion: str) -> WordTokens:
    """The word tokens of a conversation and a completion in a format."""
    prompt = format.render(request)
    return WordTokens([prompt.text, *format.stops(request).controls, completion])


def prompt_tokens(
    format: Format, request: Request, tokenizer: Tokenizer, setting: Setting = PLAIN
) -> tuple[list[ShownToken], tuple[Loss, ...]]:
    """The prompt of a request, and what it could not express. Raises FaultError.

    >>> from dragoman.engines.find_format import by_name
    >>> harmony, request = by_name("harmony"), Request(model="m", items=(Message("user", "hi"),))
    >>> tokens, _ = prompt_tokens(harmony, request, word_tokens(harmony, request, ""))
    >>> [(token.piece, token.kind) for token in tokens][-3:]
    [(b'<|end|>', 'control'), (b'<|start|>', 'control'), (b'assistant', 'text')]
    """
    prompt: Prompt = format.render(request, setting)
    ids = prompt.ids(tokenizer)
    pieces = [tokenizer.piece(id) for id in ids]
    places = list(_places(request.items, b"".join(pieces)))
    controls = frozenset(tokenizer.controls.values())
    shown: list[ShownToken] = []
    start = 0
    for id, piece in zip(ids, pieces, strict=True):
        end = start + len(piece)
        inside = (kind for first, last, kind in places if first < end and start < last)
        kind: Kind = "control" if id in controls else next(inside, "text")
        shown.append(ShownToken(id, piece, kind))
        start = end
    return shown, prompt.losses


def completion_tokens(
    format: Format, request: Request, tokenizer: Tokenizer, completion: str | Sequence[int]
) -> ParsedCompletion:
    """A completion, each token with the events that the parser made of it.

    A parser holds back what may become a marker, so events may come some tokens late; a token
    without events is of the kind of the next one with events. Tokens after the end are left out, as
    an engine does.
    """
    ids = raw_ids(completion, tokenizer)
    stops = {tokenizer.controls.get(text) for text in format.stops(request).controls}
    end = next((place for place, id in enumerate(ids) if id in stops), None)
    controls = frozenset(tokenizer.controls.values())
    turn = Turn("view", 0, request.model, think=None)
    turn.begin()
    turn.take()
    parser = format.parser(request, turn, tokenizer)
    fed: list[tuple[int, tuple[Event, ...]]] = []
    for id in ids if end is None else ids[: end + 1]:
        parser.feed([id])
        fed.append((id, tuple(turn.take())))
    parser.close("length" if end is None else "stop")
    last = tuple(turn.take())
    shown: list[ShownToken] = []
    before = (_kind(events[::-1]) for _, events in reversed(fed))
    latest: Kind = next(filter(None, before), "text")
    kind: Kind = _kind(last) or latest  # what makes no event any more goes with the last that did
    for id, events in reversed(fed):
        kind = _kind(events) or kind
        piece = tokenizer.piece(id)
        shown.append(ShownToken(id, piece, "control" if id in controls else kind, events))
    return ParsedCompletion(tuple(reversed(shown)), last, tuple(parser.warnings))


def describe_event(event: Event) -> str | None:
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
    """The kind of what begins or continues first in some events."""
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
    """Where in a prompt the reasoning and the calls are. They are searched by their text, in order,
    since a prompt does not say what it consists of."""
    at = 0
    for kind, text in _texts(items):
        words = text.strip().encode("utf-8", "replace")
        start = prompt.find(words, at)
        if words and start >= 0:
            at = start + len(words)
            if kind != "text":
                yield start, at, kind


def _texts(items: Sequence[Item]) -> Iterator[tuple[Kind, str]]:
    for item in items:
        match item:
            case Message(role="assistant" | "user"):
                yield "text", item.text
            case Reasoning():
                yield "reasoning", item.text
            case FunctionCall(name=name, arguments=text) | CustomToolCall(name=name, input=text):
                yield "call", name
                yield "call", text


MAX_TOKENS = 400
"""The most tokens that the pocket model writes."""
QUESTION = "What is the weather in Paris?"
WEATHER = FunctionTool(
    "get_weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


class Inspection(Struct, frozen=True):
    """The input to show: a request in terms of its format, and what that cost (`losses`).

    `words` says that words stand for tokens, for lack of a vocabulary; `warning` is one for the
    user.
    """

    format: Format
    tokenizer: Tokenizer
    request: Request
    completion: str | Sequence[int] | None
    losses: tuple[Loss, ...] = ()
    words: bool = False
    warning: str | None = None


def inspect_input(
    format: str | None = None,
    folder: str | None = None,
    request: bytes | None = None,
    completion: str | None = None,
    question: str | None = None,
) -> Inspection:
    """The input that a command names.

    - `format` is the name of a format, or a model folder; `folder` is where a vocabulary is.
    - `request` is the body of a Chat Completions or Responses request; `question` is the user's
      message where there is none.
    - `completion` is what a model wrote, as text or as a JSON array of ids.

    Raises FaultError for an invalid request, ValueError for an unknown format or folder, and
    ImportError where something is not installed.
    """
    decoded = _request(request, question)
    parsed = None if completion is None else _completion(completion)
    if folder is not None:
        from .token.vocabulary import from_folder

        vocabulary = from_folder(folder)
        found = find_format(format) if format else format_of(Path(folder), vocabulary.controls)
        fit = lower(decoded, found.limits)
        return Inspection(
            found, vocabulary, fit.request, parsed, fit.losses, warning=warning_of(found)
        )
    if format is not None:
        found = find_format(format)
        if parsed is not None and not isinstance(parsed, str):
            raise ValueError("A completion of ids needs a vocabulary: --tokenizer FOLDER.")
        fit = lower(decoded, found.limits)
        words = word_tokens(found, fit.request, parsed or "")
        return Inspection(found, words, fit.request, parsed, fit.losses, True, warning_of(found))
    return _pocket(decoded, parsed)


def _pocket(request: Request, completion: str | Sequence[int] | None) -> Inspection:
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
    return Inspection(format, vocabulary, fit.request, completion, fit.losses)


def written(model: ScoringModel, prompt: Sequence[int], ends: set[int]) -> list[int]:
    """What a model writes with greedy sampling."""
    slot = model.open(prompt)
    news, ids = list(prompt[slot.length :]), list[int]()
    while len(ids) < MAX_TOKENS and not (ids and ids[-1] in ends):
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
