"""Runs chat templates in Jinja's sandbox, with the helpers templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dragoman.core.item import JSON

from .messages import Verbatim

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")


def strftime(form: str, date: str) -> str:
    """An ISO date in this form; a text that is no such date as it is.

    >>> strftime("%A, %d %b %Y", "2026-11-21")
    'Saturday, 21 Nov 2026'
    """
    match = _DATE.match(date)
    if match is None or not 1 <= int(match[2]) <= 12:
        return date
    year, month, day = (int(part) for part in match.groups())
    leaps = (year - 1) // 4 - (year - 1) // 100 + (year - 1) // 400
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    number = _BEFORE[month - 1] + day + (leap and month > 2)
    weekday = _DAYS[(365 * (year - 1) + leaps + number - 1) % 7]
    name = _MONTHS[month - 1]
    known = {
        "Y": f"{year:04}",
        "y": f"{year % 100:02}",
        "m": f"{month:02}",
        "d": f"{day:02}",
        "B": name,
        "b": name[:3],
        "A": weekday,
        "a": weekday[:3],
        "j": f"{number:03}",
        "-d": str(day),
        "-m": str(month),
        "e": f"{day:2}",
        "F": date[:10],
        "%": "%",
        "H": "00",
        "M": "00",
        "S": "00",
        "I": "12",
        "p": "AM",
    }
    return re.sub(r"%(-?.)", lambda code: known.get(code[1], code[0]), form)


_MOST_REPEATED = 1_000_000


class _RefusedError(TemplateError):
    """The template says that the conversation is not for it."""


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is only passed."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, which also keeps small operations from making something huge."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Multiply and raise within bounds."""
        sizes = [each if isinstance(each, int) else len(each) for each in (left, right)]
        if operator == "**" and sizes[1] > 64:
            raise TemplateError("a power too high")
        plain = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "*" and not plain and sizes[0] * sizes[1] > _MOST_REPEATED:
            raise TemplateError("a text repeated too often")
        return super().call_binop(context, operator, left, right)


class Sandbox:
    """One template, ready to be rendered. Raises ValueError where it cannot be read."""

    def __init__(self, text: str, most: int) -> None:
        self._most = most
        self._needs_date = not re.search(r"strftime_now\s+is\s+(not\s+)?defined", text)
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(text)
        except TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template cannot be read: line {error.lineno}: {error.message}"
            ) from error

    def render(self, variables: Mapping[str, JSON], today: str | None) -> str:
        """The text. Raises ValueError with the template's own words where it refuses, and
        RuntimeError where it fails."""
        given = dict(variables)
        if today is not None or self._needs_date:
            given["strftime_now"] = lambda form: strftime(form, today) if today else ""
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(given):
                pieces.append(piece)
                size += len(piece)
                if size > self._most:
                    raise ValueError(f"the prompt is longer than {self._most} characters")
        except _RefusedError as refusal:
            raise ValueError(refusal.message) from refusal
        except (TemplateError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        return "".join(pieces)


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _tojson(
    value: JSON,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, Verbatim) and indent is None and separators is None and not sort_keys:
        return value.text
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=str,
    )
