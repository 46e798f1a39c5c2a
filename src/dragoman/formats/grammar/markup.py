"""The envelope of formats that write calls as markup: thinking, then text, or calls between marks.

Everything a family does its own way is data, given as an `Envelope`. Where the text is free, no
mark of a call may stand in it, so that whatever is heard as a call is one that was bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import JSON
from dragoman.core.request import Request
from dragoman.formats.format import Grammar

from .body import Anything, Body, JSONBody, Regex
from .demand import Callee, Demand, demand
from .lark import SPACED, Separators, Writer


class Envelope(Struct, frozen=True, kw_only=True):
    """How a family writes calls and thoughts.

    - `opening`, `separator` and `closing` stand before the name, between name and arguments, and
      after them; `first` and `last` frame all calls, `between` stands between two.
    - `xml` says that the arguments are a tag for each; else they are JSON.
    - `thought` are the marks around thinking; `thinking` says that the prompt ends inside it.
    - `marks` are the texts that may be tokens of their own; `calls` those that begin a call.
    - `bare` says that a message which begins as JSON is taken for a call.
    - `ends` are the tokens that end an answer.
    """

    opening: str
    separator: str
    closing: str
    first: str = ""
    last: str = ""
    between: str = ""
    xml: bool = False
    thought: tuple[str, str] | None = None
    thinking: bool = False
    marks: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    bare: bool = False
    ends: tuple[str, ...] = ()
    separators: Separators = SPACED


_NO_JSON = r"(?:\s*[^\s\[{](?s:.*))?"
"""Text that no reader takes for a call without marks."""


def grammar(request: Request, envelope: Envelope) -> Grammar | None:
    """What the answer must match, or None where nothing is demanded."""
    asked = demand(request)
    return None if asked is None else _Markup(asked, envelope).grammar()


class _Markup:
    """One demand, laid into one family's markup."""

    def __init__(self, asked: Demand, envelope: Envelope) -> None:
        self._asked = asked
        self._envelope = envelope
        self._writer = Writer(envelope.separators)
        marks = sorted(filter(None, envelope.marks), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, marks)) or r"(?!)")

    def grammar(self) -> Grammar:
        writer, asked = self._writer, self._asked
        answers = [] if asked.text is None else [self._text(asked.text)]
        if asked.tools:
            answers.append(self._calls())
        start = f"{writer.any_of(answers)} {writer.end(self._envelope.ends)}"
        return writer.grammar(f"{self._thought()}{start}")

    def _thought(self) -> str:
        """Thinking, which is free; and the blank lines after it."""
        envelope, writer = self._envelope, self._writer
        if envelope.thought is None:
            return ""
        opening, closing = envelope.thought
        gap = writer.rule("GAP", r"/\n{0,2}/")
        inside = f"{writer.until(closing, envelope.calls)} {gap}"
        if envelope.thinking:
            return f"{inside} "
        return f"({writer.marker(opening)} {inside})? "

    def _text(self, body: Body) -> str:
        """The text of an answer without calls."""
        envelope, writer = self._envelope, self._writer
        barred = envelope.calls if self._asked.tools else ()
        if isinstance(body, Anything) and envelope.bare:
            return writer.free(barred, start=_NO_JSON)
        return writer.body(body, barred)

    def _calls(self) -> str:
        """One call or several, after any text where text is free."""
        envelope, writer = self._envelope, self._writer
        call = writer.rule("call", writer.any_of(map(self._call, self._asked.tools)))
        lead = self._laid(envelope.first + envelope.opening)
        mark = self._marks.match(envelope.first + envelope.opening)
        if mark is not None and isinstance(self._asked.text, Anything):
            lead[0] = writer.until(mark[0], envelope.calls)
        more = self._laid(envelope.between + envelope.opening)
        several = f"({' '.join((*more, call))})*" if self._asked.several else ""
        return " ".join((*lead, call, several, *self._laid(envelope.last)))

    def _call(self, tool: Callee) -> str:
        """A call, from its name to what closes it."""
        envelope = self._envelope
        name = self._laid(tool.name + envelope.separator)
        body = self._wrapped(tool) if tool.custom else tool.body
        match body:
            case JSONBody() if envelope.xml:
                inside = self._tags(body)
            case _:
                inside = self._writer.body(body)
        return " ".join((*name, inside, *self._laid(envelope.closing)))

    def _laid(self, text: str) -> list[str]:
        """Fixed text, with the marks in it apart."""
        writer = self._writer
        pieces = re.split(f"({self._marks.pattern})", text)
        each = (
            writer.marker(piece) if place % 2 else writer.text(piece)
            for place, piece in enumerate(pieces)
            if piece
        )
        return list(each)

    def _wrapped(self, tool: Callee) -> Body:
        """The input of a custom tool, which these formats know as a function of one string."""
        match tool.body:
            case Regex(param=param, pattern=pattern):
                each: dict[str, JSON] = {"type": "string", "pattern": f"^(?:{pattern})$"}
            case Anything():
                param, each = "tools", {"type": "string"}
            case body:
                problem = "cannot be enforced in this format, whose calls are JSON"
                raise FaultError(unsupported(problem, body.param))
        schema = {"type": "object", "properties": {"input": each}, "required": ["input"]}
        return JSONBody(param, {**schema, "additionalProperties": False})

    # ---- arguments as tags -----------------------------------------------------------------

    def _tags(self, body: JSONBody) -> str:
        """Arguments, in the order of their schema. Strings are bare text, all else is JSON."""
        properties, required = body.schema.get("properties"), body.schema.get("required", ())
        properties = properties if isinstance(properties, dict) else {}
        each = []
        for name, schema in properties.items():
            opening = " ".join(self._laid(f"<parameter={name}>\n"))
            tag = f"{opening} {self._value(schema, body, name)}"
            each.append(tag if name in required else f"({tag})?")
        return " ".join(each)

    def _value(self, schema: JSON, body: JSONBody, name: str) -> str:
        """The value of an argument, with its closing tag."""
        writer, param = self._writer, f"{body.param}.properties.{name}"
        closing = "\n</parameter>"
        kind = schema.get("type") if isinstance(schema, dict) else None
        if not isinstance(schema, dict) or kind is None or isinstance(kind, list):
            raise FaultError(unsupported("must have one type, in this format", param))
        if kind != "string":
            inner: dict[str, JSON] = {**schema, **_definitions(body.schema)}
            return f"{writer.body(JSONBody(param, inner))} {writer.text(closing + chr(10))}"
        match schema:
            case {"enum": list(texts)} if all(isinstance(text, str) for text in texts):
                text = writer.any_of(map(writer.text, texts))
            case {"pattern": _} | {"format": _} | {"enum": _} | {"const": _}:
                raise FaultError(unsupported("cannot be enforced in this format", param))
            case {"minLength": _} | {"maxLength": _}:
                low, high = schema.get("minLength", 0), schema.get("maxLength", "")
                text = writer.free(_TAGS, start=f"(?s:.{{{low},{high}}})")
            case _:
                return f"{writer.tail(closing, _TAGS)} {writer.text(chr(10))}"
        return f"{text} {writer.text(closing + chr(10))}"


_TAGS = ("</parameter>", "<parameter=", "</tool_call>", "</function>")
"""What ends an argument."""


def _definitions(schema: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}
