"""`dragoman tokens`: prints a prompt token by token, and a completion with its parsed events."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dragoman.core.error import FaultError, bad_request, visible
from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded
from dragoman.core.item import CustomToolCall, FunctionCall, Message, Reasoning
from dragoman.core.loss import Loss
from dragoman.core.lower import lower
from dragoman.core.request import FunctionTool, Request
from dragoman.core.response import CONSTRAINT_FIELDS
from dragoman.core.turn import Turn
from dragoman.engines.base import unsupported_fields
from dragoman.engines.find_format import dated, find_format, format_of, warning_of
from dragoman.engines.token.engine import raw_ids
from dragoman.formats.format import PLAIN, Format, Setting
from dragoman.formats.prompt import Tokenizer
from dragoman.server.config import ConfigurationError, explained
from dragoman.wire.chat import CHAT
from dragoman.wire.responses import RESPONSES

_COLOURS = {"control": "\x1b[35m", "text": "", "reasoning": "\x1b[2m", "call": "\x1b[36m"}
_PLAIN = "\x1b[0m"
WIDTH = 32
"""Columns for a token, before what was made of it."""
WORDS = "No vocabulary was named (--tokenizer FOLDER): words stand for tokens."


def tokens(options: Namespace) -> int:
    """Run the command."""
    try:
        with explained():
            subject = inspect_input(
                options.format,
                options.tokenizer,
                None if options.request is None else _bytes(options.request),
                None if options.completion is None else _bytes(options.completion).decode(),
                " ".join(options.question) or None,
                options.date,
            )
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}.") from None
    if subject.words:
        print(WORDS, file=sys.stderr)
    if subject.warning:
        print(visible(f"Warning: {subject.warning}."), file=sys.stderr)
    for line in _lines(subject, sys.stdout.isatty()):
        print(line)
    return 0


def _lines(subject: Inspection, colours: bool) -> Iterable[str]:
    format, tokenizer, request = subject.format, subject.tokenizer, subject.request
    prompt, losses = prompt_tokens(format, request, tokenizer, subject.setting)
    yield f"Prompt in {format.name}: {_counted(prompt)}"
    yield from (_line(token, subject.words, colours) for token in prompt)
    losses += tuple(unsupported_fields(request, carried=CONSTRAINT_FIELDS))
    yield from (visible(f"lost: {loss.field} ({loss.why})") for loss in (*subject.losses, *losses))
    if subject.completion is None:
        return
    shown, end, warnings = completion_tokens(format, request, tokenizer, subject.completion)
    yield ""
    yield f"Completion: {_counted(shown)}"
    yield from (_line(token, subject.words, colours) for token in shown)
    yield from (f"{'':{WIDTH + 20}}{event}" for event in map(describe_event, end) if event)
    yield from (visible(f"malformed: {warning}") for warning in warnings)
    if after := len(raw_ids(subject.completion, tokenizer)) - len(shown):
        yield f"left out: {after} tokens after the end"


def _line(token: ShownToken, words: bool, colours: bool) -> str:
    shown = _visible(token.piece)
    number = "" if words else str(token.id)
    made = "; ".join(filter(None, map(describe_event, token.events)))
    padding = " " * max(WIDTH - len(shown), 1) if made else ""
    if colours:
        shown = f"{_COLOURS[token.kind]}{shown}{_PLAIN}"
    return f"{number:>7}  {token.kind:<9}  {shown}{padding}{made}"


def _visible(piece: bytes) -> str:
    """A token's text with its blanks to be seen; its bytes where it is no whole text."""
    try:
        return repr(piece.decode())[1:-1]
    except UnicodeDecodeError:
        return repr(piece)


def _counted(found: Iterable[ShownToken]) -> str:
    kinds = [token.kind for token in found]
    parts = (f"{kinds.count(kind)} {kind}" for kind in _COLOURS if kind in kinds)
    return f"{len(kinds)} tokens ({', '.join(parts)})"


def _bytes(named: str) -> bytes:
    return sys.stdin.buffer.read() if named == "-" else Path(named).read_bytes()


# ---- what is shown ---------------------------------------------------------------------------

Kind = Literal["control", "text", "reasoning", "call"]

_WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")
_CONTROL = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>")
_KINDS: dict[str, Kind] = {
    "reasoning": "reasoning",
    "summary": "reasoning",
    "arguments": "call",
    "input": "call",
}
MAX_TOKENS = 400
"""The most tokens that the pocket model writes."""
QUESTION = "What is the weather in Paris?"
WEATHER = FunctionTool(
    "get_weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


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
        self.controls = {text: place for place, text in enumerate(dict.fromkeys(found))}
        self._words: dict[str, int] = {}  # apart, so that a word is never a control token
        self._texts = list(self.controls)

    @property
    def size(self) -> int:
        return len(self._texts)

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in _WORD.findall(text):
            if word not in self._words:
                self._words[word] = self.size
                self._texts.append(word)
            ids.append(self._words[word])
        return ids

    def piece(self, id: int) -> bytes:
        return self._texts[id].encode("utf-8", "replace") if 0 <= id < self.size else b""


class Inspection(Struct, frozen=True):
    """The input to show: a request in terms of its format, and what that cost (`losses`).

    `words` says that words stand for tokens, for lack of a vocabulary; `warning` is one for the
    user; `setting` is what the prompt says beside the request.
    """

    format: Format
    tokenizer: Tokenizer
    request: Request
    completion: str | Sequence[int] | None
    losses: tuple[Loss, ...] = ()
    words: bool = False
    warning: str | None = None
    setting: Setting = PLAIN


def inspect_input(
    format: str | None = None,
    folder: str | None = None,
    request: bytes | None = None,
    completion: str | None = None,
    question: str | None = None,
    date: str | None = None,
) -> Inspection:
    """The input that a command names; without any, the pocket model's, with its own answer.

    - `format` is the name of a format, or a model folder; `folder` is where a vocabulary is.
    - `request` is the body of a Chat Completions or Responses request; `question` is the user's
      message where there is none.
    - `completion` is what a model wrote, as text or as a JSON array of ids.
    - `date` is the one that the prompt says, where its format says one.

    Raises FaultError for an invalid request, ValueError for an unknown format or folder or for no
    date, and ImportError where something is not installed.
    """
    setting = dated(date)()
    if request is None:
        message = Message("user", question or QUESTION)
        asked = Request(model="m", items=(message,), tools=() if question else (WEATHER,))
    else:
        try:
            fields = msgspec.json.decode(request, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise FaultError(bad_request(f"the request is no JSON object: {error}")) from error
        wire = CHAT if "messages" in fields else RESPONSES
        asked = wire.decode_request(msgspec.json.encode({"model": "m", **fields}))
    parsed: str | Sequence[int] | None = completion
    if completion is not None:
        with suppress(msgspec.DecodeError, RecursionError):  # else it is text
            parsed = msgspec.json.decode(completion, type=list[int])
    tokenizer: Tokenizer
    if folder is not None:
        from dragoman.engines.token.vocabulary import from_folder

        tokenizer = from_folder(folder)
        found = format_of(Path(folder), tokenizer.controls, format)
    elif format is None:
        return _inspect_pocket(asked, parsed)
    else:
        found = find_format(format)
    fit = lower(asked, found.limits)
    if folder is None:
        if parsed is not None and not isinstance(parsed, str):
            raise ValueError("A completion of ids needs a vocabulary: --tokenizer FOLDER.")
        ends = found.stops(fit.request).controls
        tokenizer = WordTokens([found.render(fit.request, setting).text, *ends, parsed or ""])
    _check_ids(parsed, tokenizer)
    words, warning = folder is None, warning_of(found)
    return Inspection(found, tokenizer, fit.request, parsed, fit.losses, words, warning, setting)


def _check_ids(completion: str | Sequence[int] | None, tokenizer: Tokenizer) -> None:
    """Raise ValueError for an id that no token has."""
    ids = () if completion is None or isinstance(completion, str) else completion
    for id in ids:
        if not 0 <= id < tokenizer.size:
            problem = f"The completion has the id {id}, and the vocabulary ends at"
            raise ValueError(f"{problem} {tokenizer.size - 1}.")


def _inspect_pocket(request: Request, completion: str | Sequence[int] | None) -> Inspection:
    from dragoman.engines.pocket import FOLDER, MISSING, available

    if not available():
        raise ImportError(MISSING)
    from dragoman.engines.pocket.model import load

    format, model, vocabulary = load(FOLDER)
    fit = lower(request, format.limits)
    _check_ids(completion, vocabulary)
    if completion is None:  # what the model writes with greedy sampling
        news = format.render(fit.request).ids(vocabulary)
        controls, slot = vocabulary.controls, model.open(news)
        ends = {controls.get(text) for text in format.stops(fit.request).controls}
        written: list[int] = []
        while len(written) < MAX_TOKENS and not (written and written[-1] in ends):
            (scores,) = model.step([(slot, news)])
            news = [int(scores.argmax())]
            written += news
        completion = written
    return Inspection(format, vocabulary, fit.request, completion, fit.losses)


class ShownToken(Struct, frozen=True):
    """A token: its id, its bytes, what it belongs to, and the events it caused."""

    id: int
    piece: bytes
    kind: Kind
    events: tuple[Event, ...] = ()


def prompt_tokens(
    format: Format, request: Request, tokenizer: Tokenizer, setting: Setting = PLAIN
) -> tuple[list[ShownToken], tuple[Loss, ...]]:
    """The prompt of a request, and what it could not express. Raises FaultError.

    A prompt does not say what it consists of, so the reasoning and the calls in it are found by
    their text, in order.

    >>> from dragoman.engines.find_format import by_name
    >>> harmony, request = by_name("harmony"), Request(model="m", items=(Message("user", "hi"),))
    >>> tokens, _ = prompt_tokens(harmony, request, WordTokens([harmony.render(request).text]))
    >>> [(token.piece, token.kind) for token in tokens][-3:]
    [(b'<|end|>', 'control'), (b'<|start|>', 'control'), (b'assistant', 'text')]
    """
    texts: list[tuple[Kind, str]] = []
    for item in request.items:
        match item:
            case Message(role="assistant" | "user"):
                texts.append(("text", item.text))
            case Reasoning():
                texts.append(("reasoning", item.text))
            case FunctionCall(name=name, arguments=text) | CustomToolCall(name=name, input=text):
                texts += (("call", name), ("call", text))
    prompt = format.render(request, setting)
    ids = prompt.ids(tokenizer)
    pieces = [tokenizer.piece(id) for id in ids]
    whole, at = b"".join(pieces), 0
    places: list[tuple[int, int, Kind]] = []
    for kind, text in texts:
        words = text.strip().encode("utf-8", "replace")
        start = whole.find(words, at)
        if words and start >= 0:
            at = start + len(words)
            places.append((start, at, kind))
    controls = frozenset(tokenizer.controls.values())
    shown: list[ShownToken] = []
    start = 0
    for id, piece in zip(ids, pieces, strict=True):
        end = start + len(piece)
        inside = (kind for first, last, kind in places if first < end and start < last)
        shown.append(ShownToken(id, piece, "control" if id in controls else next(inside, "text")))
        start = end
    return shown, prompt.losses


def completion_tokens(
    format: Format, request: Request, tokenizer: Tokenizer, completion: str | Sequence[int]
) -> tuple[list[ShownToken], Sequence[Event], Sequence[str]]:
    """A completion, each token with the events that the parser made of it; the events of its end;
    and what was malformed in it.

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
    return shown[::-1], last, parser.warnings


def _kind(events: Sequence[Event]) -> Kind | None:
    """The kind of what begins or continues first in some events."""
    for event in events:
        match event:
            case Delta(kind=kind):
                return _KINDS.get(kind, "text")
            case ItemAdded(item=FunctionCall() | CustomToolCall()):
                return "call"
            case ItemAdded(item=item):
                return "reasoning" if isinstance(item, Reasoning) else "text"
    return None


def describe_event(event: Event) -> str | None:
    """An event in a few words; None for those that only open and close."""
    match event:
        case Delta(kind=kind, data=data):
            return f"{kind} {data!r}"
        case ItemAdded(item=FunctionCall(name=name) | CustomToolCall(name=name)):
            return visible(f"call of {name}")
        case ItemAdded(item=item):
            return type(item).__name__.lower()
        case Finished(status=status, reasons=reasons):
            return f"{status} ({', '.join(reasons)})"
        case Failed(fault=fault):
            return visible(f"failed: {fault.message}")
        case _:
            return None
