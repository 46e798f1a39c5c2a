"""Finds a token format by its name, or by a model folder; and the date for
prompts."""

from __future__ import annotations

import datetime
import logging
import pickle
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path

import msgspec

from dragoman.core.error import Fault, FaultError, hint
from dragoman.core.item import JSON
from dragoman.formats.format import PLAIN, Format, Setting
from dragoman.formats.harmony.format import Harmony
from dragoman.formats.markup.families import BY_NAME, PROFILES
from dragoman.formats.markup.format import Markup

from .child import Child, ChildError, GivenUpError, Limits

NAMES: dict[str, Callable[[], Format]] = {"harmony": Harmony} | {
    profile.name: partial(Markup, profile) for profile in PROFILES
}
"""Constructors of the formats, by name."""


def by_name(name: str) -> Format:
    """The format of this name. Raises ValueError listing the known names.

    >>> by_name("hermes").name
    'hermes'
    """
    make = NAMES.get(name)
    if make is None:
        known = ", ".join(sorted(NAMES))
        near = hint(name, NAMES) or "."
        raise ValueError(f"There is no format {name!r}. Formats: {known}{near}")
    return make()


CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
UNKNOWN_FAMILY = (
    "the chat template is of no known family, so tool calls and reasoning are parsed as those of "
    "{}: what the model writes in another way comes as text. A family can be chosen with --format: "
    f"{', '.join(sorted(BY_NAME))}"
)
HARMONY = frozenset({"<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>"})
"""Control tokens that only harmony models have."""

_log = logging.getLogger("dragoman")


def find_format(named: str) -> Format:
    """The format of this name, or that of a model folder.

    Raises ValueError for what is neither, or a folder without a template, and ImportError where
    jinja2 is missing.

    >>> find_format("hermes").name
    'hermes'
    """
    folder = Path(named)
    if named in NAMES or not folder.is_dir():
        return by_name(named)
    return format_of(folder)


def format_of(
    folder: Path, controls: Iterable[str] | None = None, named: str | None = None
) -> Format:
    """The format of the model in a folder: harmony where its vocabulary (`controls`, if known) or
    its template has harmony's control tokens, else its chat template, whose family may be `named`.
    Another name, or another folder, overrides that. Raises as `find_format` does."""
    if named is not None and named not in BY_NAME:
        return find_format(named)
    known = None if controls is None else frozenset(controls)
    if named is None and known is not None and known >= HARMONY:
        return by_name("harmony")
    template = folder / TEMPLATE
    config = _text(folder / CONFIG)
    own = _text(template) if template.exists() else None
    if named is None and known is None and all(mark in f"{config}{own}" for mark in HARMONY):
        return by_name("harmony")
    from dragoman.formats.template import from_config  # needs the `local` extra

    try:
        found = from_config(config, own, known, named, StrangersProgram)
    except (ValueError, RecursionError) as error:
        if named is not None:  # its own layout, then
            return by_name(named)
        raise ValueError(f"{folder}: {error}") from None
    if warning := warning_of(found):
        _warn_once(str(folder), warning)
    return found


def _text(path: Path) -> str:
    """Read a file of a folder. Not a pipe or a device, which may be endless: an untrusted folder
    may have links to them. Raises ValueError."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is no file")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None


@cache
def _warn_once(folder: str, warning: str) -> None:
    _log.warning("%s: %s", folder, warning)


MAX_SECONDS, MAX_MEMORY = 2, 512 * 1024 * 1024
"""Processor seconds and bytes of memory for loading a folder's template, and
for each prompt."""
_ANSWER = 64 * 1024 * 1024
_LIMITS = Limits(MAX_SECONDS, MAX_MEMORY, _ANSWER)
_TOO_MUCH = f"takes more than {MAX_SECONDS} s or {MAX_MEMORY // 2**20} MB"


class StrangersProgram:
    """The template of a folder, which is untrusted code: it runs in a process of its own.
    Raises ValueError for one that cannot be parsed."""

    def __init__(self, text: str) -> None:
        self._child = Child(f"{__name__}:rendering", text.encode("utf-8", "replace"))
        try:
            self._child.start(_LIMITS)
        except ChildError as error:
            raise ValueError(str(error).removeprefix("ValueError: ")) from error
        except GivenUpError as error:
            raise ValueError(f"reading the chat template {_TOO_MUCH}") from error

    def __call__(self, variables: dict[str, JSON], today: str | None) -> str:
        try:
            answer = self._child.ask(pickle.dumps((variables, today)), _LIMITS)
        except (ChildError, GivenUpError) as error:
            problem = f"The model's chat template {_TOO_MUCH} for this conversation"
            raise FaultError(Fault("internal", problem)) from error
        if answer.startswith(b"{"):
            raise FaultError(msgspec.json.decode(answer, type=Fault))
        return answer[1:].decode("utf-8", "surrogatepass")


def rendering(setup: bytes) -> Callable[[bytes], bytes]:
    """Renders a template in a child; a fault is returned as a JSON object."""
    from dragoman.formats.template import Program

    program = Program(setup.decode())

    def answer(message: bytes) -> bytes:
        try:
            text = program(*pickle.loads(message))  # noqa: S301 - the parent is no stranger
        except FaultError as error:
            return msgspec.json.encode(error.fault)
        return b"." + text.encode("utf-8", "surrogatepass")

    return answer


def warning_of(format: Format) -> str | None:
    """A warning about a format whose template is of an unknown family, or None."""
    return None if getattr(format, "recognised", True) else UNKNOWN_FAMILY.format(format.name)


def dated(date: str | None = None) -> Callable[[], Setting]:
    """The date for prompts: today's, a fixed one, or `none`. Raises
    ValueError for an invalid date.

    >>> dated("2026-11-23")().today, dated("none")().today
    ('2026-11-23', None)
    """
    if date in (None, "today"):
        return lambda: Setting(today=datetime.date.today().isoformat())
    if date == "none":
        return lambda: PLAIN
    try:
        fixed = Setting(today=datetime.date.fromisoformat(str(date)).isoformat())
    except ValueError:
        raise ValueError(f"{date!r} is no date: write 2026-11-23, today or none.") from None
    return lambda: fixed


def is_format(named: str) -> bool:
    """Whether this is the name of a format, or an existing folder."""
    return named in NAMES or Path(named).is_dir()
