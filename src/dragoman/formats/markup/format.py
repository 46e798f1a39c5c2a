"""A family of markup as a format: chat layout, parser, and the grammar of a constrained answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from msgspec import Struct

from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import JSON
from dragoman.core.loss import LossList
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.grammar.demand import Anything, Body, Callee, Demand, JSONBody, Regex, demand
from dragoman.formats.grammar.lark import SPACED, Separators, Writer
from dragoman.formats.messages import LIMITS, messages, tools
from dragoman.formats.prompt import Control, Piece, Prompt, Tokenizer

from .calls import bare
from .emitter import Sink, Voice, schemas
from .families import BY_NAME
from .parser import MarkupParser
from .profile import Marks, Profile, Side, Vocabulary, table


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


_TURNS = ("header", "start")


def enveloped(profile: Profile, *, thinking: bool = False) -> Envelope:
    """The envelope of a family; `thinking` says that the prompt ends inside the reasoning."""
    writing, states = profile.writing, profile.states
    marks = {text for state in states.values() for text in (*state.marks, *state.ids)}
    text, start = states["text"], states["start"]
    return Envelope(
        opening=writing.opening,
        separator=writing.separator,
        closing=writing.closing,
        first=writing.first,
        last=writing.last,
        between=writing.between,
        xml=writing.body == "xml",
        thought=_thought(profile),
        thinking=thinking,
        marks=(*sorted(marks), *profile.controls),
        calls=tuple(mark for mark, to in text.marks.items() if states[to].kind not in _TURNS),
        bare=profile.bare,
        ends=tuple(end for end in profile.ends if end not in start.marks),
    )


def _thought(profile: Profile) -> tuple[str, str] | None:
    """The marks around reasoning: the one that leads into it, and the one that leads out again."""
    for mark, to in profile.states["start"].marks.items():
        inside = profile.states[to]
        if inside.kind == "thought":
            closing = next(m for m, back in inside.marks.items() if back == "start")
            return mark, closing
    return None


class _Page:
    """A prompt while it is being written: our own words, and those of others."""

    def __init__(self, profile: Profile) -> None:
        self._pieces: list[Piece] = []
        names = sorted(profile.controls, key=len, reverse=True)
        self._controls = re.compile("(" + "|".join(map(re.escape, names)) + ")")
        self._names = frozenset(names)

    def mark(self, text: str) -> None:
        """Words of the frame: control tokens in them are meant."""
        for piece in self._controls.split(text):
            if piece:
                self._add(Control(piece) if piece in self._names else piece)

    def say(self, text: str) -> None:
        """Words of anybody else, which are only words."""
        if text:
            self._add(text)

    def _add(self, piece: Piece) -> None:
        last = self._pieces[-1] if self._pieces else None
        if isinstance(piece, str) and isinstance(last, str):
            self._pieces[-1] = last + piece
        else:
            self._pieces.append(piece)

    def prompt(self, ledger: LossList) -> Prompt:
        """All of it."""
        return Prompt(tuple(self._pieces), ledger.losses())


def lay_out(profile: Profile, request: Request, setting: Setting) -> Prompt:
    """The prompt for a request. Raises FaultError for what cannot be said in it."""
    ledger, frame = LossList(), profile.frame
    turns = messages(request, ledger, profile.id_length)
    page = _Page(profile)
    page.mark(frame.begin)
    lead = _lead(setting)
    system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else ""
    known = tools(request)
    if lead or system or known:
        page.mark(frame.system.before)
        page.say("\n\n".join(filter(None, (lead, system))))
        if known:
            page.mark("\n\n" if lead or system else "")
            _tell(page, frame.tools, known)
        page.mark(frame.system.after)
    sides = {"system": frame.system, "user": frame.user, "tool": frame.tool}
    for turn in turns:
        if turn["role"] == "assistant":
            _assistant(page, profile, turn)
        else:
            _said(page, sides[turn["role"]], turn["content"])
    page.mark(frame.assistant.before)
    return page.prompt(ledger)


def _lead(setting: Setting) -> str:
    today = setting.today and f"Current date: {setting.today}"
    cutoff = setting.knowledge_cutoff and f"Knowledge cutoff: {setting.knowledge_cutoff}"
    return "\n".join(filter(None, (setting.identity, cutoff, today)))


def _tell(page: _Page, words: str, known: list[dict[str, JSON]]) -> None:
    before, _, after = words.partition("{tools}")
    page.mark(before)
    page.say("\n".join(json.dumps(tool, ensure_ascii=False) for tool in known))
    page.mark(after)


def _said(page: _Page, side: Side, text: str) -> None:
    page.mark(side.before)
    page.say(text)
    page.mark(side.after)


def _assistant(page: _Page, profile: Profile, turn: dict[str, JSON]) -> None:
    frame, calls = profile.frame, turn.get("tool_calls", [])
    page.mark(frame.assistant.before)
    if thought := turn.get("reasoning_content"):
        _said(page, frame.thought, thought)
    page.say(turn["content"])
    if calls:
        page.mark("\n" if turn["content"] else "")
        _calls(page, profile, calls)
    page.mark((calls and frame.call_end) or frame.assistant.after)


def _calls(page: _Page, profile: Profile, calls: list[dict[str, JSON]]) -> None:
    writing = profile.writing
    functions = [call["function"] for call in calls]
    if len(functions) == 1 and _native(page, profile, functions[0]):
        return
    page.mark(writing.first)
    for number, function in enumerate(functions):
        page.mark(writing.between if number else "")
        page.mark(writing.opening)
        page.say(function["name"])
        page.mark(writing.separator)
        arguments = function["arguments"]
        if writing.body == "json" or isinstance(arguments, str):
            page.say(getattr(arguments, "text", None) or _json(arguments))
        else:
            for key, value in arguments.items():
                page.say(f"<parameter={key}>\n{bare(value)}\n</parameter>\n")
        page.mark(writing.closing)
    page.mark(writing.last)


def _native(page: _Page, profile: Profile, function: dict[str, JSON]) -> bool:
    """A call that the family writes in a way of its own: code, or a query to a built-in tool."""
    name, arguments = function["name"], function["arguments"]
    match arguments:
        case {"code": str(code)} if name == profile.code and len(arguments) == 1:
            text = code
        case {"query": str(query)} if name in profile.builtins and len(arguments) == 1:
            text = f"{name}.call(query={json.dumps(query, ensure_ascii=False)})"
        case _:
            return False
    marks = [mark for mark, to in profile.states["text"].marks.items() if to == "call"]
    page.mark(marks[0])
    page.say(text)
    page.mark(profile.writing.last)
    return True


def _json(arguments: JSON) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


class Markup:
    """A conversation in one family's markup. `profile` is a profile or its name.

    >>> Markup("hermes").stops(Request(model="m")).controls[0]
    '<|im_end|>'
    """

    limits = LIMITS

    def __init__(self, profile: Profile | str) -> None:
        self.profile = BY_NAME[profile] if isinstance(profile, str) else profile
        self._in_text = {calls: table(self.profile, calls) for calls in (False, True)}
        self._in_tokens: tuple[Tokenizer, Vocabulary, dict[bool, dict[str, Marks]]] | None = None

    @property
    def name(self) -> str:
        """What it is called on the command line and in the model listing."""
        return self.profile.name

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt, up to where the model begins to write. Raises FaultError, naming the item,
        for pictures, sound and files."""
        return lay_out(self.profile, request, setting)

    def stops(self, request: Request) -> Stops:
        """The control tokens that end an answer."""
        return Stops(self.profile.ends)

    def parser(
        self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None
    ) -> MarkupParser:
        """A parser for the answer to this request. Without a tokenizer only `write` works."""
        return self.hear(request, turn, tokenizer)

    def hear(
        self,
        request: Request,
        sink: Sink,
        tokenizer: Tokenizer | None = None,
        *,
        choice: int = 0,
        thinking: bool = False,
    ) -> MarkupParser:
        """The same for one of several choices, or for a prompt that ends inside the reasoning."""
        known = schemas(request)
        voice = Voice(sink, known, choice)
        start = "thought" if thinking else "start"
        if tokenizer is None:
            return MarkupParser(self.profile, self._in_text[bool(known)], voice, None, start)
        vocabulary, tables = self._prepared(tokenizer)
        return MarkupParser(self.profile, tables[bool(known)], voice, vocabulary, start)

    def grammar(self, request: Request) -> Grammar | None:
        """What the answer must match, by this family's way to write calls; None where the request
        demands nothing. Raises FaultError, naming the field, for a demand that cannot be kept."""
        return self.demanded(request)

    def demanded(self, request: Request, *, thinking: bool = False) -> Grammar | None:
        """The same, for a prompt that may end inside the reasoning."""
        return grammar(request, enveloped(self.profile, thinking=thinking))

    def _prepared(self, tokenizer: Tokenizer) -> tuple[Vocabulary, dict[bool, dict[str, Marks]]]:
        """What is known of a vocabulary; the last one is remembered, since a model has but one."""
        known = self._in_tokens
        if known is None or known[0] is not tokenizer:
            tables = {
                calls: table(self.profile, calls, tokenizer.controls) for calls in (False, True)
            }
            self._in_tokens = known = (tokenizer, Vocabulary(tokenizer, self.profile), tables)
        return known[1], known[2]
