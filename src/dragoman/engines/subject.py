"""What `dragoman tokens` looks at: a format, a vocabulary, a request and a completion, as named.

It reads files and finds out what was left open; what the tokens mean is told by `token.view`.
Without a name it is the pocket model, which is asked for its own answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import Message
from dragoman.core.loss import Loss
from dragoman.core.lower import lower
from dragoman.core.request import FunctionTool, Request
from dragoman.formats.format import Format
from dragoman.formats.tokenizer import Tokenizer
from dragoman.wire.chat import CHAT
from dragoman.wire.responses import RESPONSES

from .find_format import find_format, format_of
from .token.view import words_for

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
    from .pocket.folder import load

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
