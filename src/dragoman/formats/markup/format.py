"""A family of markup as a format: chat layout, parser, the grammar of a constrained answer; and
turns whose text contains it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dragoman.core.error import Fault, FaultError, unsupported
from dragoman.core.item import JSON, Token
from dragoman.core.loss import Loss, LossList
from dragoman.core.request import Request
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.grammar.demand import AllowedTool, Anything, Body, Demand, JSONBody, demand
from dragoman.formats.grammar.lark import SPACED, Writer
from dragoman.formats.grammar.schema import read_json
from dragoman.formats.messages import LIMITS, Messages, messages, tools
from dragoman.formats.prompt import Marks, Piece, Prompt, Tokenizer, TokenTable

from .calls import bare
from .emitter import Emitter, schemas
from .families import BY_NAME
from .parser import MarkupParser
from .profile import MarkTable, Profile, all_marks, mark_tables


class Markup:
    """A conversation in one family's markup. `profile` is a profile or its name.

    >>> Markup("hermes").stops(Request(model="m")).controls[0]
    '<|im_end|>'
    """

    limits = LIMITS

    def __init__(self, profile: Profile | str) -> None:
        self.profile = BY_NAME[profile] if isinstance(profile, str) else profile
        self.name = self.profile.name
        self._text_tables = {calls: mark_tables(self.profile, calls) for calls in (False, True)}
        self._prepared: tuple[Tokenizer, TokenTable, dict[bool, dict[str, MarkTable]]] | None = None

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt in the family's own layout, for models without a chat template. Raises
        FaultError naming the item for images, audio and files."""
        losses, layout = LossList(), self.profile.layout
        turns = messages(request, losses, self.profile.id_length)
        prompt = _PromptBuilder(self.profile)
        prompt.layout(layout.begin)
        cutoff = setting.knowledge_cutoff and f"Knowledge cutoff: {setting.knowledge_cutoff}"
        today = setting.today and f"Current date: {setting.today}"
        preamble = "\n".join(filter(None, (setting.identity, cutoff, today)))
        system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else ""
        offered = tools(request)
        if preamble or system or offered:
            template, text = layout.system, "\n\n".join(filter(None, (preamble, system)))
            if offered:
                gap = "\n\n" if text else ""
                template = template.replace("{}", f"{{}}{gap}{layout.tools}")
            listed = (json.dumps(tool, ensure_ascii=False) for tool in offered)
            prompt.fill(template, text, "\n".join(listed))
        roles = {"system": layout.system, "user": layout.user, "tool": layout.tool}
        for turn in turns:
            if turn["role"] == "assistant":
                prompt.assistant(turn)
            else:
                prompt.fill(roles[turn["role"]], turn["content"])
        prompt.layout(layout.assistant.partition("{}")[0])
        return Prompt(tuple(prompt.pieces), losses.losses())

    def stops(self, request: Request) -> Stops:
        return Stops(self.profile.ends)

    def parser(
        self,
        request: Request,
        turn: Turn,
        tokenizer: Tokenizer | None = None,
        *,
        thinking: bool = False,
    ) -> MarkupParser:
        """A parser for the answer; `thinking` says that the prompt ends inside the
        reasoning."""
        schemas_by_name = schemas(request)
        emitter, calls = Emitter(turn, schemas_by_name), bool(schemas_by_name)
        start = "thought" if thinking else "start"
        if tokenizer is None:
            return MarkupParser(self.profile, self._text_tables[calls], emitter, None, start)
        known = self._prepared  # the last one is kept, since a model has but one vocabulary
        if known is None or known[0] is not tokenizer:
            controls = tokenizer.controls
            tables = {each: mark_tables(self.profile, each, controls) for each in (False, True)}
            self._prepared = known = (tokenizer, TokenTable(tokenizer), tables)
        return MarkupParser(self.profile, known[2][calls], emitter, known[1], start)

    def grammar(self, request: Request, *, thinking: bool = False) -> Grammar | None:
        """The grammar of the answer; None where the request constrains nothing. Raises FaultError,
        naming the field, for a constraint that cannot be enforced."""
        asked = demand(request)
        return None if asked is None else _GrammarBuilder(asked, self.profile, thinking).grammar()


# ---- the prompt ----------------------------------------------------------------------------


class _PromptBuilder:
    """A prompt being written: layout, in which control tokens count, and text, in which not."""

    def __init__(self, profile: Profile) -> None:
        self.pieces: list[Piece] = []
        self._profile = profile
        self._controls = Marks(profile.controls)

    def layout(self, text: str) -> None:
        """Text of the layout, split at its control tokens."""
        for piece in self._controls.split(text):
            if isinstance(piece, str):
                self.text(piece)
            else:
                self.pieces.append(piece)

    def text(self, text: str) -> None:
        """Text of the conversation: never a control token."""
        last = self.pieces[-1] if self.pieces else None
        if isinstance(last, str):
            self.pieces[-1] = last + text
        elif text:
            self.pieces.append(text)

    def fill(self, template: str, *texts: str) -> None:
        """A template of the layout, with these texts in its places."""
        for place, piece in enumerate(template.split("{}")):
            if place:
                self.text(texts[place - 1])
            self.layout(piece)

    def assistant(self, turn: dict[str, JSON]) -> None:
        layout, calls = self._profile.layout, turn.get("tool_calls", [])
        before, _, after = layout.assistant.partition("{}")
        self.layout(before)
        if reasoning := turn.get("reasoning_content"):
            self.fill(layout.thought, reasoning)
        self.text(turn["content"])
        if calls:
            self.layout("\n" if turn["content"] else "")
            self._calls([call["function"] for call in calls])
        self.layout((calls and layout.call_end) or after)

    def _calls(self, functions: Messages) -> None:
        syntax = self._profile.syntax
        if len(functions) == 1 and (native := self._native(functions[0])) is not None:
            marks = self._profile.states["text"].marks
            self.layout(next(mark for mark, to in marks.items() if to == "call"))
            self.text(native)
            self.layout(syntax.last)
            return
        self.layout(syntax.first)
        for number, function in enumerate(functions):
            self.layout((syntax.between if number else "") + syntax.opening)
            self.text(function["name"])
            self.layout(syntax.separator)
            arguments = function["arguments"]
            if syntax.body == "xml" and isinstance(arguments, dict):
                for key, value in arguments.items():
                    self.text(f"<parameter={key}>\n{bare(value)}\n</parameter>\n")
            else:  # as the model wrote it, so that the prompt cache survives
                self.text(getattr(arguments, "text", None) or bare(arguments))
            self.layout(syntax.closing)
        self.layout(syntax.last)

    def _native(self, function: dict[str, JSON]) -> str | None:
        """A call that the family writes in a form of its own: Llama's code and built-in tools."""
        name, arguments = function["name"], function["arguments"]
        match arguments:
            case {"code": str(code)} if name == self._profile.code and len(arguments) == 1:
                return code
            case {"query": str(query)} if name in self._profile.builtins and len(arguments) == 1:
                return f"{name}.call(query={json.dumps(query, ensure_ascii=False)})"
            case _:
                return None


# ---- the grammar of a constrained answer ---------------------------------------------------

_NO_JSON = r"(?:\s*[^\s\[{](?s:.*))?"
"""Text that no parser takes for a call without marks."""
_PARAMETER_ENDS = ("</parameter>", "<parameter=", "</tool_call>", "</function>")


class _GrammarBuilder:
    """The grammar of one demand in one family's markup."""

    def __init__(self, asked: Demand, profile: Profile, thinking: bool) -> None:
        self._asked = asked
        self._profile = profile
        self._thinking = thinking
        self._writer = Writer(SPACED)
        self._marks = Marks({*all_marks(profile), *profile.controls})
        leads = profile.states["text"].marks.items()
        kinds = {name: state.kind for name, state in profile.states.items()}
        self._call_marks = tuple(m for m, to in leads if kinds[to] not in ("header", "start"))

    def grammar(self) -> Grammar:
        writer, asked = self._writer, self._asked
        answers = [] if asked.text is None else [self._text(asked.text)]
        if asked.tools:
            answers.append(self._calls())
        ends = [end for end in self._profile.ends if end not in self._profile.states["start"].marks]
        return writer.grammar(f"{self._reasoning()}{writer.any_of(answers)} {writer.end(ends)}")

    def _reasoning(self) -> str:
        """Reasoning is free text; after it come blank lines."""
        writer, states = self._writer, self._profile.states
        opening = next((m for m, to in states["start"].marks.items() if to == "thought"), None)
        if opening is None:
            return ""
        closing = next(m for m, to in states["thought"].marks.items() if to == "start")
        gap = writer.rule("GAP", r"/\n{0,2}/")
        inside = f"{writer.until(closing, self._call_marks)} {gap}"
        return f"{inside} " if self._thinking else f"({writer.marker(opening)} {inside})? "

    def _text(self, body: Body) -> str:
        """The text of an answer without calls."""
        barred = self._call_marks if self._asked.tools else ()
        if isinstance(body, Anything) and self._profile.bare:
            return self._writer.free(barred, start=_NO_JSON)
        return self._writer.body(body, barred)

    def _calls(self) -> str:
        """One call or several, after any text where text is free."""
        syntax, writer = self._profile.syntax, self._writer
        call = writer.rule("call", writer.any_of(map(self._call, self._asked.tools)))
        lead = self._fixed(syntax.first + syntax.opening)
        mark = self._marks.pattern.match(syntax.first + syntax.opening)
        if mark is not None and isinstance(self._asked.text, Anything):
            lead[0] = writer.until(mark[0], self._call_marks)
        more = self._fixed(syntax.between + syntax.opening)
        several = f"({' '.join((*more, call))})*" if self._asked.several else ""
        return " ".join((*lead, call, several, *self._fixed(syntax.last)))

    def _call(self, tool: AllowedTool) -> str:
        """A call, from its name to what closes it."""
        syntax, body = self._profile.syntax, tool.body
        if syntax.body == "xml" and isinstance(body, JSONBody):
            inside = self._parameters(body)
        else:
            inside = self._writer.body(body)
        name = self._fixed(tool.name + syntax.separator)
        return " ".join((*name, inside, *self._fixed(syntax.closing)))

    def _fixed(self, text: str) -> list[str]:
        """Fixed text, split at its marks."""
        writer = self._writer
        return [
            writer.text(piece) if isinstance(piece, str) else writer.marker(piece.text)
            for piece in self._marks.split(text)
        ]

    def _parameters(self, body: JSONBody) -> str:
        """Arguments as tags, in the order of their schema."""
        properties, required = body.schema.get("properties"), body.schema.get("required", ())
        tags = []
        for name, schema in (properties if isinstance(properties, dict) else {}).items():
            opening = " ".join(self._fixed(f"<parameter={name}>\n"))
            tag = f"{opening} {self._parameter(schema, body, name)}"
            tags.append(tag if name in required else f"({tag})?")
        return " ".join(tags)

    def _parameter(self, schema: JSON, body: JSONBody, name: str) -> str:
        """The value of an argument, with its closing tag: a string as bare text, else JSON."""
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
                text = writer.free(_PARAMETER_ENDS, start=f"(?s:.{{{low},{high}}})")
            case _:
                return f"{writer.tail(closing, _PARAMETER_ENDS)} {writer.text(chr(10))}"
        return f"{text} {writer.text(closing + chr(10))}"


def _definitions(schema: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}


# ---- markup in an upstream's text ----------------------------------------------------------


class _Choice(Turn):
    """One choice: its parser, and the calls found in it or `given` by the server, by fragments.
    Those found wait for its end."""

    def __init__(self, turn: TextToolCallTurn, number: int) -> None:
        super().__init__(turn.id, turn.created_at, turn.model)
        self._turn = turn
        self._number = number
        self.found: dict[int | str, list[CallFragment]] = {}
        self.given: dict[int | str, list[CallFragment]] = {}
        self.parser = turn.format.parser(turn.request, self)

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        Turn.text(self._turn, data, self._number, tokens)

    def reasoning(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        self._turn.reasoning(data, self._number, tokens)

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        self.found.setdefault(fragment.index or 0, []).append(fragment)


class TextToolCallTurn(Turn):
    """A turn whose text may contain one family's markup, as some servers leave their model's calls
    there.

    >>> from dragoman.core.request import FunctionTool
    >>> asked = Request(model="m", tools=(FunctionTool("now"),))
    >>> turn = TextToolCallTurn("1", 0, "m", markup="hermes", request=asked)
    >>> turn.text('<tool_call>{"name": "now"}</tool_call>')
    >>> turn.end(complete=True)
    >>> turn.take()[-1].reasons
    ('tool_calls',)
    """

    def __init__(
        self,
        id: str,
        created_at: int,
        model: str,
        *,
        markup: str,
        request: Request,
        losses: tuple[Loss, ...] = (),
    ) -> None:
        super().__init__(id, created_at, model, losses=losses, think=None)
        self.format = Markup(markup)
        self.request = request
        self._parsed: dict[int, _Choice] = {}

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """Text with markup in it."""
        if data:
            self._state(choice).parser.write(data, tokens)
        else:
            super().text(data, choice, tokens)

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        """A fragment of a call that the server gave as such."""
        state = self._state(choice)
        if not state.given:
            state.parser.flush()
        key = fragment.id or 0 if fragment.index is None else fragment.index
        state.given.setdefault(key, []).append(fragment)
        super().call(fragment, choice)

    def finish(self, reason: str, choice: int = 0) -> None:
        if self._release(choice) and reason == "stop":
            reason = "tool_calls"
        super().finish(reason, choice)

    def end(self, complete: bool) -> None:
        for choice in list(self._parsed) if complete else ():
            self.finish("stop", choice)
        super().end(complete)

    def fail(self, fault: Fault) -> None:
        for choice in list(self._parsed):
            self._release(choice)
        super().fail(fault)

    def _state(self, choice: int) -> _Choice:
        state = self._parsed.get(choice)
        if state is None:
            state = self._parsed[choice] = _Choice(self, choice)
        return state

    def _release(self, choice: int) -> bool:
        """Emit what is held back; returns whether there were calls in it. Calls that the server
        gave win: what was found beside them is text, unless it is one of them again."""
        state = self._parsed.pop(choice, None)
        if state is None:
            return False
        state.parser.flush()
        given = [_meaning(_joined(fragments)) for fragments in state.given.values()]
        for fragments in state.found.values():
            call = _joined(fragments)
            if not given:
                super().call(call, choice)
            elif _meaning(call) not in given:
                name = json.dumps(call.name, ensure_ascii=False)
                text = f'{{"name": {name}, "arguments": {call.arguments or "{}"}}}'
                super().text(text, choice)
        return bool(state.found) and not given


def _joined(fragments: list[CallFragment]) -> CallFragment:
    """A call from its fragments."""
    first = fragments[0]
    name = next((each.name for each in fragments if each.name), "")
    arguments = "".join(each.arguments for each in fragments)
    return CallFragment(first.index, first.id, name, arguments, last=fragments[-1].last)


def _meaning(call: CallFragment) -> tuple[str | None, JSON]:
    """Equal for equal calls, however they are written."""
    return call.name, read_json(call.arguments or "{}", call.arguments)
