"""`dragoman tokens`: prints a prompt token by token, and a completion with its parsed events."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from dragoman.engines.inspect import (
    Inspection,
    ShownToken,
    completion_tokens,
    describe_event,
    inspect_input,
    prompt_tokens,
)
from dragoman.server.config import ConfigurationError, explained

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
            )
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}.") from None
    if subject.words:
        print(WORDS, file=sys.stderr)
    if subject.warning:
        print(f"Warning: {subject.warning}.", file=sys.stderr)
    for line in _lines(subject, sys.stdout.isatty()):
        print(line)
    return 0


def _lines(subject: Inspection, colours: bool) -> Iterable[str]:
    format, tokenizer, request = subject.format, subject.tokenizer, subject.request
    prompt, losses = prompt_tokens(format, request, tokenizer)
    yield f"Prompt in {format.name}: {_counted(prompt)}"
    yield from (_line(token, subject.words, colours) for token in prompt)
    yield from (f"lost: {loss.field} ({loss.why})" for loss in (*subject.losses, *losses))
    if subject.completion is None:
        return
    parsed = completion_tokens(format, request, tokenizer, subject.completion)
    yield ""
    yield f"Completion: {_counted(parsed.tokens)}"
    yield from (_line(token, subject.words, colours) for token in parsed.tokens)
    yield from (f"{'':{WIDTH + 20}}{event}" for event in map(describe_event, parsed.end) if event)
    yield from (f"malformed: {warning}" for warning in parsed.warnings)


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
