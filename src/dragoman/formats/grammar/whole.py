"""Demands on the whole answer that no OpenAI protocol has a field for: regex, choice, grammar.

They are spelled as vLLM and others spell them and ride in `extra` under the wire they came by:
`guided_regex`, `guided_choice`, `guided_grammar`, `guided_json`, or the same without the prefix in
`structured_outputs`, or a `response_format` of the kinds `regex`, `grammar` and `ebnf`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.guarantee import WHOLE
from dragoman.core.item import JSON
from dragoman.core.request import Request

from .body import Choice, JSONBody, Lark, Regex, lark
from .schema import enforceable

_NAMES = {"regex": "regex", "pattern": "regex", "choice": "choice", "grammar": "lark"}
_NAMES |= {"json": "json", "schema": "json"}
_UNHEARD = frozenset(
    ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
) | {"whitespace_pattern", "type"}
"""Members that choose how, not what."""


Whole = Regex | Choice | Lark | JSONBody


def whole(request: Request) -> Whole | None:
    """What the whole answer must match. Raises FaultError for what is no such demand."""
    found = [body for fields in (request.extra or {}).values() for body in _bodies(fields)]
    if len(found) > 1:
        raise FaultError(bad_request("the answer cannot be bound twice", found[1].param))
    return found[0] if found else None


def _bodies(fields: dict[str, JSON]) -> Iterator[Whole]:
    for name in WHOLE[:-1]:
        if (value := fields.get(name)) is not None:
            yield _body(_NAMES[name.removeprefix("guided_")], value, name)
    given, format = fields.get("structured_outputs"), fields.get("response_format")
    if isinstance(given, dict):
        yield from _members(given, "structured_outputs")
    elif given is not None:
        raise FaultError(bad_request("must be an object", "structured_outputs"))
    match format:
        case {"type": "regex" | "grammar"} if isinstance(format, dict):
            yield from _members(format, "response_format")
        case {"type": kind}:
            problem = f"{kind} is not known here; use regex, grammar or json_schema"
            raise FaultError(unsupported(problem, "response_format.type"))


def _members(given: dict[str, JSON], where: str) -> Iterator[Whole]:
    for name, value in given.items():
        if name in _UNHEARD or value is None:
            continue
        if name not in _NAMES:
            raise FaultError(unsupported("is not known here", f"{where}.{name}"))
        yield _body(_NAMES[name], value, f"{where}.{name}")


def _body(kind: str, value: JSON, param: str) -> Whole:
    match kind, value:
        case "regex", str(pattern):
            return Regex(param, pattern)
        case "lark", str(text):
            return lark(param, text)
        case "choice", list(texts) if texts and all(isinstance(text, str) for text in texts):
            return Choice(param, tuple(texts))
        case "json", dict(schema):
            return JSONBody(param, enforceable(schema, param))
        case _:
            raise FaultError(bad_request(f"is no {kind}", param))
