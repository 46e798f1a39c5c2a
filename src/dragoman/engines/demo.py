"""The engine of a first run: answers without a model and says so; fills schemas with example
values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.core.item import (
    JSON,
    CallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Message,
    Reasoning,
    Summary,
    Text,
    Thought,
    Token,
)
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
)
from dragoman.core.response import Response

from .base import new_id, now
from .script import NAME, Said, Script, pieces, shortened, usage

_DEEP = 6
"""The depth from which only what is required is filled in, so that recursive schemas end."""
_BOTTOM = 40
_MOST = 2_000
"""Values made for one schema at the most."""
_FAR = 1e15
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_KEYWORDS = {
    "properties": "object",
    "required": "object",
    "additionalProperties": "object",
    "items": "array",
    "prefixItems": "array",
    "minItems": "array",
    "minLength": "string",
    "maxLength": "string",
    "format": "string",
    "minimum": "number",
    "maximum": "number",
}
"""Keywords that give away the type of a schema that names none."""


def fill(schema: JSON, words: str = "rehearsal") -> JSON:
    """A value that fits `schema`; `words` is what free text says.

    >>> fill({"type": "object", "properties": {"city": {"type": "string"}, "days": {"minimum": 3}}})
    {'city': 'rehearsal', 'days': 3}
    """
    return _Filler(schema, words).value(schema, 0)


class _Filler:
    """One schema being filled in: what its references point into, and what free text says."""

    def __init__(self, root: JSON, words: str) -> None:
        self._root = root
        self._words = words
        self._left = _MOST

    def value(self, schema: JSON, depth: int) -> JSON:
        self._left -= 1
        if depth > _BOTTOM or self._left < 0:
            return None
        schema = self._resolved(schema, depth)
        for keyword in ("const", "default"):
            if keyword in schema:
                return schema[keyword]
        for keyword in ("enum", "examples"):
            if values := _list(schema, keyword):
                return values[0]
        match _type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer":
                return _number(schema, whole=True)
            case "number":
                return _number(schema, whole=False)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return self._words

    def _resolved(self, schema: JSON, depth: int) -> dict[str, Any]:
        """The schema with its reference followed, its alternatives chosen, its parts merged."""
        merged: dict[str, Any] = {}
        queue = [schema]
        for _ in range(_BOTTOM):
            if not queue:
                break
            part = queue.pop()
            if not isinstance(part, Mapping):
                continue
            merged = _merged(merged, part)
            if isinstance(part.get("$ref"), str):
                queue.append(self._lookup(part["$ref"]))
            queue += _list(part, "allOf")
            for keyword in ("anyOf", "oneOf"):
                if choices := _list(part, keyword):
                    queue.append(_simplest(choices) if depth > _DEEP else choices[0])
        return merged

    def _lookup(self, reference: str) -> JSON:
        """What a local reference points at; anything at all where it points nowhere."""
        found = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        return found

    def _object(self, schema: dict[str, Any], depth: int) -> JSON:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        names = [name for name in _list(schema, "required") if isinstance(name, str)]
        if depth <= _DEEP:
            names = [*properties, *(name for name in names if name not in properties)]
        return {name: self.value(properties.get(name), depth + 1) for name in names}

    def _array(self, schema: dict[str, Any], depth: int) -> JSON:
        values = [self.value(item, depth + 1) for item in _list(schema, "prefixItems")]
        low = max(_bound(schema.get("minItems"), 0), 1 if depth <= _DEEP else 0)
        count = min(low, _bound(schema.get("maxItems"), low), 100)
        rest = schema.get("items")
        return values + [self.value(rest, depth + 1) for _ in range(int(count) - len(values))]

    def _string(self, schema: dict[str, Any]) -> str:
        text = _FORMATS.get(str(schema.get("format")), self._words)
        low, high = _bound(schema.get("minLength"), 0), _bound(schema.get("maxLength"), len(text))
        text = text.ljust(min(int(low), 10_000), ".")
        return text[: int(max(low, high))]


def _merged(schema: dict[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Both schemas' keywords; what each says of properties adds up."""
    merged = {**part, **schema}
    for keyword in ("properties", "required"):
        both = schema.get(keyword), part.get(keyword)
        if isinstance(both[0], Mapping) and isinstance(both[1], Mapping):
            merged[keyword] = {**both[1], **both[0]}
        elif isinstance(both[0], list) and isinstance(both[1], list):
            merged[keyword] = [*both[0], *(name for name in both[1] if name not in both[0])]
    return merged


def _type(schema: dict[str, Any]) -> str | None:
    """The type to make, where the schema names one or gives it away."""
    named = schema.get("type")
    if isinstance(named, list):
        named = next((name for name in named if name != "null"), "null")
    if isinstance(named, str):
        return named
    return next((_KEYWORDS[keyword] for keyword in schema if keyword in _KEYWORDS), None)


def _simplest(schemas: list[JSON]) -> JSON:
    """Of several alternatives, one without anything inside."""
    flat = [
        each
        for each in schemas
        if isinstance(each, Mapping) and _type(dict(each)) not in ("object", "array", None)
    ]
    return (flat or schemas)[0]


def _number(schema: dict[str, Any], *, whole: bool) -> float:
    """The smallest number the bounds allow, or 1."""
    step = max(_bound(schema.get("multipleOf"), 1), 1e-6)
    inside = step if whole or "multipleOf" in schema else step / 2
    low = max(
        _bound(schema.get("minimum"), -_FAR),
        _bound(schema.get("exclusiveMinimum"), -2 * _FAR) + inside,
    )
    high = min(
        _bound(schema.get("maximum"), _FAR),
        _bound(schema.get("exclusiveMaximum"), 2 * _FAR) - inside,
    )
    number = min(max(step, low), high)
    if "multipleOf" in schema or whole:
        number = math.floor(number / step) * step
        number = number if number >= low else number + step
    return int(number) if whole else number


def _bound(value: JSON, otherwise: float) -> float:
    """A number of a schema, if it is one that can be counted with."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and abs(value) <= _FAR else otherwise


def _list(schema: Mapping[str, Any], keyword: str) -> list[JSON]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


PACE = 0.02
"""Seconds between two words: quick, and still to be seen."""
MOST_NUMBERS = 1_000
MOST_CALLS = 4
MOST_QUOTED = 500

_DISCLAIMER = "This is a rehearsal, not a model."
_ADVICE = "Put a model behind me with `dragoman serve --upstream URL`, and it will answer instead."
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNT = re.compile(
    rf"\bcount(?:\s+up)?(?:\s+from\s+\w+)?\s+to\s+(\d{{1,6}}|{'|'.join(_NUMBERS)})\b", re.IGNORECASE
)
_WORD = re.compile(r"[^\W_]+")
_CAPITAL = re.compile(r"(?<=[\w,:;] )[A-Z][\w'-]+(?: [A-Z][\w'-]+)*")
_COMMON = frozenset(
    _WORD.findall(
        "about also answer call called calls current does from function give given have help into "
        "like make need only please return returns some that them then there these this tool tools "
        "user using value values want what when where which will with would your"
    )
)
"""Words that say nothing about what a tool is for."""
_Offer = tuple[FunctionTool | CustomTool, str | None]


def rehearsal(pace: float = PACE) -> Script:
    """The script engine with this play; `pace` is in seconds a word."""
    return Script(rehearse, pace=pace)


def rehearse(request: Request) -> Response:
    """The answer to a request, as a function of that request (and a fresh id).

    >>> rehearse(Request(model="script", items=(Message("user", "count to 3"),))).text
    '1, 2, 3.'
    """
    id = new_id()
    output: list[Said] = []
    choices: list[int] = []
    reasons: list[str] = []
    for choice in range(request.sampling.n or 1):
        items, reason = _Take(request, choice).perform()
        reasons.append(reason)
        for item in items:
            output.append(_named(item, id, len(output)))
            choices.append(choice)
    return Response(
        id=id,
        created_at=now(),
        model=NAME,
        status="incomplete" if "length" in reasons else "completed",
        output=tuple(output),
        choices=tuple(choices) if len(reasons) > 1 else (),
        reasons=tuple(reasons),
        usage=usage(request, output),
    )


class _Take:
    """One alternative of the answer."""

    def __init__(self, request: Request, choice: int) -> None:
        self._request = request
        self._choice = choice
        self._said = _last_said(request)

    def perform(self) -> tuple[list[Said], str]:
        """The items, and why they end where they end."""
        calls = self._calls()
        items: list[Said] = [*self._thoughts(), *(calls or [self._message()])]
        kept, short = shortened(items, self._request.max_output_tokens)
        return kept, "length" if short else "tool_calls" if calls else "stop"

    def _thoughts(self) -> Iterator[Reasoning]:
        options = self._request.reasoning
        if options is None or options.effort in (None, "none"):
            return
        thought = f"There is nothing to think about in a rehearsal, {options.effort} effort or not."
        summary = () if options.summary is None else (Summary("Nothing was thought."),)
        yield Reasoning((Thought(thought),), summary, status="completed")

    def _message(self) -> Message:
        text = self._text()
        for stop in self._request.sampling.stop or ():
            text = text.partition(stop)[0] if stop else text
        return Message("assistant", (Text(text, tokens=self._tokens(text)),), status="completed")

    def _tokens(self, text: str) -> tuple[Token, ...]:
        """Each word with its probability, where that was asked: it could not have been another."""
        sampling = self._request.sampling
        if not sampling.logprobs:
            return ()
        words = [(word, word.encode("utf-8", "replace")) for word in pieces(text)]
        tokens = (Token(word, 0.0, raw) for word, raw in words)
        return tuple(replace(t, top=(t,)) if sampling.top_logprobs else t for t in tokens)

    def _text(self) -> str:
        match self._request.format:
            case JSONSchema(schema=schema):
                return json.dumps(fill(schema, self._subject()), ensure_ascii=False)
            case JSONObject():
                return json.dumps({"rehearsal": True, "said": self._said}, ensure_ascii=False)
        if count := _COUNT.search(self._said):
            named = count[1].lower()
            last = _NUMBERS.index(named) + 1 if named in _NUMBERS else int(named)
            return ", ".join(map(str, range(1, min(last, MOST_NUMBERS) + 1))) + "."
        take = f" (Take {self._choice + 1}.)" if self._choice else ""
        return f"{_DISCLAIMER}{take} {self._heard()} {_ADVICE}"

    def _heard(self) -> str:
        results = _results(self._request)
        if results:
            told = "; ".join(f"{name} returned {said}" for name, said in results)
            return f"The tools have answered: {told}."
        pictures = sum(
            isinstance(part, Image)
            for item in self._request.items
            if isinstance(item, Message)
            for part in item.parts
        )
        seen = f" I was shown {pictures} image(s) and cannot see." if pictures else ""
        said = self._said if len(self._said) <= MOST_QUOTED else self._said[:MOST_QUOTED] + "…"
        return (f"You said: “{said}”" if said else "You said nothing.") + seen

    def _subject(self) -> str:
        """What the question is about, by its capital letters: good enough to fill in a form."""
        names = _CAPITAL.findall(self._said)
        return names[-1] if names else "rehearsal"

    def _calls(self) -> list[Said]:
        request, offers = self._request, _offers(self._request)
        forced = False
        match request.tool_choice:
            case "none":
                return []
            case "required":
                forced = True
            case NamedTool() as named:
                offers, forced = [offer for offer in offers if _is(offer, named)], True
            case AllowedTools(mode=mode, tools=allowed):
                named_tools = [tool for tool in allowed if isinstance(tool, NamedTool)]
                offers = [o for o in offers if any(_is(o, named) for named in named_tools)]
                forced = mode == "required"
        asked = not _results(request) and not _COUNT.search(self._said)
        wanted = _wanted(self._said, offers) if asked else []
        chosen = wanted or (offers[:1] if forced else [])
        if request.parallel_tool_calls is False:
            chosen = chosen[:1]
        most = MOST_CALLS if request.max_tool_calls is None else request.max_tool_calls
        return [self._call(offer) for offer in chosen[: max(most, 0)]]

    def _call(self, offer: _Offer) -> Said:
        tool, namespace = offer
        if isinstance(tool, CustomTool):
            return CustomToolCall("", tool.name, self._subject(), namespace, status="completed")
        arguments = fill(tool.parameters or {"type": "object"}, self._subject())
        text = json.dumps(arguments, ensure_ascii=False)
        return FunctionCall("", tool.name, text, namespace, status="completed")


# ---- reading the request -----------------------------------------------------------------


def _last_said(request: Request) -> str:
    """The last thing the user said."""
    said = (item for item in reversed(request.items) if isinstance(item, Message))
    return next((item.text.strip() for item in said if item.role == "user"), "")


def _results(request: Request) -> list[tuple[str, str]]:
    """What tools have returned since the user last spoke, with their names."""
    names: dict[str, str] = {}
    results: list[tuple[str, str]] = []
    for item in request.items:
        match item:
            case Message(role="user"):
                results.clear()
            case FunctionCall() | CustomToolCall():
                names[item.call_id] = item.name
            case FunctionCallOutput() | CustomToolCallOutput():
                results.append((names.get(item.call_id, "a tool"), _output(item)))
    return results


def _output(item: CallOutput) -> str:
    if isinstance(item.output, str):
        return item.output
    return Message("assistant", item.output).text


def _offers(request: Request) -> list[_Offer]:
    """The tools that can be called, namespaces opened."""
    offers: list[_Offer] = []
    for tool in request.tools:
        match tool:
            case FunctionTool() | CustomTool():
                offers.append((tool, None))
            case Namespace():
                inside = (t for t in tool.tools if isinstance(t, FunctionTool | CustomTool))
                offers += ((each, tool.name) for each in inside)
    return offers


def _is(offer: _Offer, named: NamedTool) -> bool:
    tool, namespace = offer
    kind = "custom" if isinstance(tool, CustomTool) else "function"
    return (tool.name, kind) == (named.name, named.kind) and named.namespace in (None, namespace)


def _wanted(said: str, offers: list[_Offer]) -> list[_Offer]:
    """The tools a question seems to be about: those whose names or descriptions share a word.

    A question that speaks of tools gets the first.
    """
    words = _telling(said)
    by_name = [offer for offer in offers if words & _telling(offer[0].name)]
    told = [offer for offer in offers if words & _telling(offer[0].description or "")]
    if re.search(r"\b(?:tool|function)s?\b", said, re.IGNORECASE):
        told = told or offers
    return by_name or told[:1]


def _telling(text: str) -> set[str]:
    """The words of a text that tell what it is about."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)
    return {word for word in _WORD.findall(spaced.lower()) if len(word) > 3} - _COMMON


def _named(item: Said, id: str, index: int) -> Said:
    match item:
        case Message():
            return replace(item, id=f"msg_{id}_{index}")
        case Reasoning():
            return replace(item, id=f"rs_{id}_{index}")
        case FunctionCall():
            return replace(item, id=f"fc_{id}_{index}", call_id=f"call_{id}_{index}")
        case CustomToolCall():
            return replace(item, id=f"ctc_{id}_{index}", call_id=f"call_{id}_{index}")
