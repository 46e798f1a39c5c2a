"""A family of markup as a format: chat layout, parser, the grammar of a constrained answer; and
turns whose text contains it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from dragoman.core.error import Fault, FaultError, bad_request, unsupported
from dragoman.core.item import JSON, Token
from dragoman.core.loss import Loss, LossList
from dragoman.core.request import Request
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.grammar.demand import AllowedTool, Anything, Demand, JSONBody, demand
from dragoman.formats.grammar.lark import SPACED, Writer
from dragoman.formats.grammar.schema import read_json
from dragoman.formats.messages import LIMITS, Messages, continues, messages, tools
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
        self.controls = frozenset((*self.profile.controls, *self.profile.ends))
        self._prepared: (
            tuple[Tokenizer | None, TokenTable | None, dict[bool, dict[str, MarkTable]]] | None
        ) = None

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt in the family's own layout, for models without a chat template. Raises
        FaultError naming the item for images, audio and files."""
        losses, layout = LossList(), self.profile.layout
        turns = messages(request, losses, self.profile.id_length)
        prompt = _PromptBuilder(self.profile)
        prompt.layout(layout.begin)
        preamble = setting.preamble()
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
        continued = continues(request)
        last = turns.pop() if continued else {"content": ""}
        for turn in turns:
            if turn["role"] == "assistant":
                prompt.assistant(turn)
            else:
                prompt.fill(roles[turn["role"]], turn["content"])
        prompt.layout(layout.assistant.partition("{}")[0])
        prompt.text(last["content"])
        return Prompt(tuple(prompt.pieces), losses.losses())

    def starts_thinking(self, request: Request) -> bool:
        """Whether the prompt ends inside the reasoning."""
        return False

    def stops(self, request: Request) -> Stops:
        return Stops(self.profile.ends)

    def parser(
        self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None
    ) -> MarkupParser:
        """A parser for the answer."""
        if self._prepared is None or self._prepared[0] is not tokenizer:
            controls = () if tokenizer is None else tokenizer.controls
            tables = {calls: mark_tables(self.profile, calls, controls) for calls in (False, True)}
            known = all_marks(self.profile).union(self.profile.controls, self.profile.fragments)
            token_table = None if tokenizer is None else TokenTable(tokenizer, known)
            self._prepared = (tokenizer, token_table, tables)
        _, token_table, tables = self._prepared  # kept, since a model has but one vocabulary
        tools = schemas(request)
        start = "thought" if self.starts_thinking(request) else "start"
        start = "text" if continues(request) else start
        marks = tables[bool(tools)]
        emitter = Emitter(turn, tools, self.profile.name_form)
        return MarkupParser(self.profile, marks, emitter, token_table, start)

    def grammar(self, request: Request) -> Grammar | None:
        """The grammar of the answer; None where the request constrains nothing. Raises FaultError,
        naming the field, for a constraint that cannot be enforced."""
        asked = demand(request)
        if asked is None:
            return None
        if continues(request):
            if isinstance(asked.text, Anything):
                return None
            problem = "the answer has begun, so it cannot be constrained any more"
            raise FaultError(bad_request(problem, "items"))
        thinking: bool | None = self.starts_thinking(request)
        if not thinking and request.reasoning is not None and request.reasoning.effort == "none":
            thinking = None
        return _GrammarBuilder(asked, self.profile, thinking).grammar()


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
            mark = next(mark for mark, to in marks.items() if to == "call")
            self.fill(f"{mark}{{}}{syntax.last}", native)
            return
        self.layout(syntax.first)
        for number, function in enumerate(functions):
            arguments = function["arguments"]
            self.layout(syntax.between if number else "")
            self.fill(f"{syntax.opening}{{}}", function["name"])
            self.layout(syntax.separator.replace("#", str(number)))
            if syntax.argument and isinstance(arguments, dict):
                for key, value in arguments.items():
                    self.fill(syntax.template(isinstance(value, str)), key, bare(value))
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


class _GrammarBuilder:
    """The grammar of one demand in one family's markup. Whether the prompt ends in the reasoning
    is `thinking`, and None where there must be none."""

    def __init__(self, asked: Demand, profile: Profile, thinking: bool | None) -> None:
        self._asked = asked
        self._profile = profile
        self._thinking = thinking
        self._writer = Writer(SPACED)
        broken = {m for m in all_marks(profile) for part in profile.fragments if part in m}
        self._marks = Marks({*(all_marks(profile) - broken), *profile.controls})
        leads = profile.states["text"].marks.items()
        kinds = {name: state.kind for name, state in profile.states.items()}
        self._call_marks = tuple(m for m, to in leads if kinds[to] not in ("header", "start"))

    def grammar(self) -> Grammar:
        writer, asked = self._writer, self._asked
        barred = self._call_marks if asked.tools else ()
        answers: list[str] = []  # the text of an answer without calls, or calls
        if isinstance(asked.text, Anything) and self._profile.bare:
            answers.append(writer.free(barred, start=_NO_JSON))
        elif asked.text is not None:
            answers.append(writer.body(asked.text, barred))
        if asked.tools:
            answers.append(self._calls())
        ends = [end for end in self._profile.ends if end not in self._profile.states["start"].marks]
        return writer.grammar(f"{self._reasoning()}{writer.any_of(answers)} {writer.end(ends)}")

    def _reasoning(self) -> str:
        """Reasoning is free text; after it come blank lines."""
        writer, states = self._writer, self._profile.states
        reached = {name for name, state in states.items() if "thought" in state.marks.values()}
        leads = {*(reached - {"start", "text"}), "thought"}  # at once, or by a header (Gemma)
        opening = next((m for m, to in states["start"].marks.items() if to in leads), None)
        if opening is None or self._thinking is None:
            return ""
        marks = states["thought"].marks.items()
        closing = next(m for m, to in marks if states[to].kind == "start")
        gap = writer.rule("GAP", r"/\n{0,2}/")
        inside = f"{writer.until(closing, self._call_marks)} {gap}"
        return f"{inside} " if self._thinking else f"({writer.marker(opening)} {inside})? "

    def _calls(self) -> str:
        """One call or several, after any text where text is free."""
        syntax, writer = self._profile.syntax, self._writer
        call = writer.rule("call", writer.any_of(map(self._call, self._asked.tools)))
        head = syntax.first + syntax.opening
        free = isinstance(self._asked.text, Anything)
        lead = self._until(head, self._call_marks) if free else self._fixed(head)
        more = self._fixed(syntax.between + syntax.opening)
        several = f"({' '.join((*more, call))})*" if self._asked.several else ""
        return " ".join((*lead, call, several, *self._fixed(syntax.last)))

    def _call(self, tool: AllowedTool) -> str:
        """A call, from its name to what closes it."""
        syntax, body, writer = self._profile.syntax, tool.body, self._writer
        if syntax.argument and isinstance(body, JSONBody):
            inside = self._parameters(body)
        else:
            inside = writer.body(body)
        before, number, after = syntax.separator.partition("#")
        name = self._fixed(tool.name + before)
        if number:
            name += [writer.rule("NUMBER", "/[0-9]+/"), *self._fixed(after)]
        return " ".join((*name, inside, *self._fixed(syntax.closing)))

    def _fixed(self, text: str) -> list[str]:
        """Fixed text, split at its marks."""
        writer = self._writer
        return [
            writer.text(piece) if isinstance(piece, str) else writer.marker(piece.text)
            for piece in self._marks.split(text)
        ]

    def _until(self, text: str, without: Iterable[str]) -> list[str]:
        """Any text up to and with a fixed one, which begins with a mark or with text before one."""
        found = next((m for m in self._marks.pattern.finditer(text) if m[0].strip()), None)
        if found is None:
            return self._fixed(text)
        before = text[: found.start()]
        return [self._writer.until(found[0], without, before), *self._fixed(text[found.end() :])]

    def _parameters(self, body: JSONBody) -> str:
        """Arguments as tags, in the order of their schema."""
        properties, required = body.schema.get("properties"), body.schema.get("required", ())
        tags = []
        for name, schema in (properties if isinstance(properties, dict) else {}).items():
            tag = self._parameter(schema, body, name)
            tags.append(tag if name in required else f"({tag})?")
        return " ".join(tags)

    def _parameter(self, schema: JSON, body: JSONBody, name: str) -> str:
        """An argument: a string as bare text, else JSON."""
        writer, param = self._writer, f"{body.param}.properties.{name}"
        kind = schema.get("type") if isinstance(schema, dict) else None
        if not isinstance(schema, dict) or kind is None or isinstance(kind, list):
            raise FaultError(unsupported("must have one type, in this format", param))
        head, _, closing = self._profile.syntax.template(kind == "string").rpartition("{}")
        opening = self._fixed(head.replace("{}", name))
        ends = sorted(
            mark.strip()
            for state in map(self._profile.states.__getitem__, ("value", "between"))
            for mark in (*state.marks, *state.doubtful)
        )
        if kind != "string":
            shared = [each for each in ("$defs", "definitions") if each in body.schema]
            inner: dict[str, JSON] = {**schema, **{each: body.schema[each] for each in shared}}
            value = [writer.body(JSONBody(param, inner)), *self._fixed(closing)]
            return " ".join((*opening, *value))
        match schema:
            case {"enum": list(texts)} if all(isinstance(text, str) for text in texts):
                value = [writer.any_of(map(writer.text, texts)), *self._fixed(closing)]
            case {"pattern": _} | {"format": _} | {"enum": _} | {"const": _}:
                raise FaultError(unsupported("cannot be enforced in this format", param))
            case {"minLength": _} | {"maxLength": _}:
                low, high = schema.get("minLength", 0), schema.get("maxLength", "")
                text = writer.free(ends, start=f"(?s:.{{{low},{high}}})")
                value = [text, *self._fixed(closing)]
            case _:
                value = self._until(closing, ends)
        return " ".join((*opening, *value))


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
