"""Where chat templates run: Jinja in its sandbox, with what they are used to finding.

A template can neither reach out nor write without end. It sees no clock: the date it may ask for is
given. Needs jinja2, and is the only place that imports it.
"""

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

from .calendar import strftime
from .messages import Verbatim

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
