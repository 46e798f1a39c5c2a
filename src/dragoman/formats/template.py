"""Renders a model's own chat template in a sandbox; a markup profile parses its answer.

Text of the conversation never becomes a control token: a separator is inserted into text that looks
like one before rendering, and removed after the real control tokens were split off. Needs jinja2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from itertools import chain
from typing import Any, NoReturn

try:
    from jinja2 import Template as JinjaTemplate
    from jinja2 import TemplateError, TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import SandboxedEnvironment
except ImportError as error:
    raise ImportError(
        "Chat templates need the extra local: pip install '.[local]' in the checkout.",
        name=error.name,
    ) from error

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, unsupported
from dragoman.core.item import JSON, Role
from dragoman.core.loss import LossList
from dragoman.core.request import Request
from dragoman.core.roles import NO_SYSTEM, WHY, alternating, strictness

from .format import PLAIN, Setting
from .markup.families import BY_NAME, PROFILES
from .markup.format import Markup
from .markup.profile import Profile
from .messages import Messages, Verbatim, continues, messages, tools
from .prompt import STEP, Marks, Prompt

MAX_CHARACTERS = 16_000_000
"""The longest prompt: no context is larger."""

MAX_REMEMBERED = 1_024
"""Options for which it is cached whether they open the reasoning."""
MAX_OPTIONS = 64
"""The most template variables that a client may set."""
SWITCH = 100
"""The most characters of an option that may open the reasoning, and of its name."""

FALLBACK = "hermes"
"""The most common family, for templates of an unknown one."""
_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"}
)
_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Unicode's private use areas: characters without a meaning of their own."""


Rendering = Callable[[dict[str, JSON], str | None], str]
"""The text of a template with these variables, on a date. Raises FaultError."""


class Program:
    """Compile a template. An error in it raises ValueError."""

    def __init__(self, text: str) -> None:
        self._template = _compiled(text)
        self._needs_date = not re.search(r"strftime_now\s+is\s+(not\s+)?defined", text)

    def __call__(self, variables: dict[str, JSON], today: str | None) -> str:
        given: dict[str, Any] = dict(variables)
        if today is not None or self._needs_date:
            given["strftime_now"] = lambda form: strftime(form, today) if today else ""
        refusal = "the model's chat template refuses this conversation"
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(given):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_CHARACTERS:
                    problem = f"the prompt is longer than {MAX_CHARACTERS} characters"
                    raise FaultError(bad_request(f"{refusal}: {problem}"))
        except _RejectedError as error:
            raise FaultError(bad_request(f"{refusal}: {error.message}")) from error
        except (TemplateError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
            problem = f"The model's chat template failed: {type(error).__name__}: {error}"
            raise FaultError(Fault("internal", problem)) from error
        return "".join(pieces)


class Template(Markup):
    """The format of a model that brings a chat template.

    - `text` is the template, in Jinja; an error in it raises ValueError.
    - `profile` says how the model writes calls: a profile or its name; by default recognised from
      the template (`recognised` is False where `FALLBACK` had to be taken).
    - `controls` are the texts of the vocabulary's control tokens.
    - `variables` are further template variables, such as `bos_token`.
    - `program` renders the template elsewhere; by default here, with no limit of time or memory.

    >>> chat = Template("{% for m in messages %}<s>{{ m.content }}{% endfor %}", "hermes", ["<s>"])
    >>> from dragoman.core.item import Message
    >>> chat.render(Request(model="m", items=(Message("user", "<s>"),))).pieces
    (Control(text='<s>'), '<s>')
    """

    def __init__(
        self,
        text: str,
        profile: Profile | str | None = None,
        controls: Iterable[str] = (),
        variables: Mapping[str, str] | None = None,
        program: Rendering | None = None,
    ) -> None:
        known = {each for each in controls if len(each) > 1}
        self._marks = Marks(known)
        found = profile or profile_of(text, known)
        self.recognised = found is not None
        super().__init__(found or FALLBACK)
        own = (variables or {}).get("eos_token")
        if own is not None and own not in self.profile.ends:
            self.profile = replace(self.profile, ends=(*self.profile.ends, own))
        self.controls |= {*known, *self.profile.ends}
        start = self.profile.states["start"].marks
        self._thought_opens = tuple(mark for mark, to in start.items() if to == "thought")
        self._program = Program(text) if program is None else program
        self.slow = program is not None
        self._variables = dict(variables or {})
        self._starts_thinking: dict[bytes, bool] = {}

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt. Raises FaultError naming the item for what is not text, and with the
        template's own message where it refuses the conversation, however its roles alternate."""
        asked, strict, options = request, 0, _options(request)
        while True:
            losses = LossList()
            if strict:
                losses.note("items", "emulated", WHY[strict])
            leader: Role = "user" if strict == NO_SYSTEM else "system"
            turns = messages(asked, losses, self.profile.id_length, leader)
            try:
                text, separator = self._run(turns, tools(asked), options, setting, continues(asked))
                break
            except FaultError as error:
                before, strict = strict, strictness(error.fault.message)
                changed = alternating(asked, strict)
                formatted = strict == NO_SYSTEM and request.format is not None
                if strict <= before or not (formatted or changed is not asked):
                    raise
                asked = changed
        if self.slow or options:
            self.starts_thinking(request)  # cached for the parser, which must not block
        pieces = (
            piece.replace(separator, "") if isinstance(piece, str) else piece
            for piece in self._marks.split(text)
        )
        return Prompt(tuple(pieces), losses.losses())

    # ---- inside --------------------------------------------------------------------------

    def _run(
        self,
        turns: Messages,
        tools: Messages,
        options: dict[str, JSON],
        setting: Setting,
        continued: bool = False,
    ) -> tuple[str, str]:
        """The template's output, and the separator in it that is to be taken out. Where the last
        message is to be `continued`, the output ends with its text."""
        given = {"messages": turns, "tools": tools or None, **options}
        try:
            separator = _unused_character(given)
            variables = {name: self._separated(value, separator) for name, value in given.items()}
        except RecursionError as error:
            problem = "the conversation is nested too deeply for a chat template"
            raise FaultError(bad_request(problem)) from error
        variables = {**self._variables, **variables, "add_generation_prompt": not continued}
        if not continued:
            return self._program(variables, setting.today), separator
        mark = _unused_character([given, separator])
        last = variables["messages"][-1]
        last["content"] += mark
        text, found, _ = self._program(variables, setting.today).rpartition(mark)
        if not found:
            problem = "this model's chat template cannot continue a message; end with a user's"
            raise FaultError(unsupported(problem, "items"))
        return text, separator

    def _separated(self, value: JSON, separator: str) -> JSON:
        """A value in which no text is a control token, or can become one at its end."""
        match value:
            case str():
                return self._separate(value, separator)
            case Verbatim():
                marked = {name: self._separated(each, separator) for name, each in value.items()}
                return Verbatim(marked, self._separate(value.text, separator))
            case dict():
                return {
                    self._separated(name, separator): self._separated(each, separator)
                    for name, each in value.items()
                }
            case list():
                return [self._separated(each, separator) for each in value]
            case _:
                return value

    def _separate(self, text: str, separator: str) -> str:
        pieces: list[str] = []
        at = 0
        while (found := self._marks.search(text, at)) is not None:
            pieces.append(text[at : found.start() + 1])
            at = found.start() + 1  # another one may begin inside it
        text = separator.join((*pieces, text[at:]))
        if not self._marks.touches(text[len(text) - self._marks.longest :]):
            return text  # nearly all
        for at in range(len(text) - 1, max(-1, len(text) - self._marks.longest - 1), -1):
            if self._marks.begin_with(text[at:]):
                text = f"{text[: at + 1]}{separator}{text[at + 1 :]}"
        return text

    def starts_thinking(self, request: Request) -> bool:
        """Whether the template opens the reasoning, so that the answer begins inside it (Qwen3 and
        DeepSeek-R1 templates do). Found by rendering one message."""
        options = {
            name: value
            for name, value in _options(request).items()
            if len(name) <= SWITCH and not isinstance(value, dict | list)
            if not isinstance(value, str) or len(value) <= SWITCH
        }
        key = sha256(json.dumps(options, sort_keys=True, default=str).encode()).digest()
        known = self._starts_thinking.get(key)
        if known is None:
            try:
                hello: dict[str, JSON] = {"role": "user", "content": "hello"}
                text, _ = self._run([hello], [], options, PLAIN)
            except FaultError:
                text = ""
            if len(self._starts_thinking) >= MAX_REMEMBERED:
                self._starts_thinking.clear()
            known = self._starts_thinking[key] = text.rstrip().endswith(self._thought_opens)
        return known


def from_config(
    config: str,
    template: str | None = None,
    controls: Iterable[str] | None = None,
    profile: str | None = None,
    read: Callable[[str], Rendering] | None = None,
) -> Template:
    """The format of a model folder, from the text of its `tokenizer_config.json`.

    `template` is the text of `chat_template.jinja`, where there is one; `controls` are the control
    tokens of the vocabulary, by default those that the configuration names; `profile` is the name
    of the family, by default recognised. `read` makes the program of the template, for one that is
    not trusted. Raises ValueError where there is no template.
    """
    value = json.loads(config)
    if not isinstance(value, dict):
        raise ValueError("tokenizer_config.json is no JSON object")
    found = template or value.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {
            str(each.get("name")): each.get("template") for each in found if isinstance(each, dict)
        }
        found = named.get("tool_use") or named.get("default")
    if not isinstance(found, str) or not found:
        raise ValueError("the model brings no chat template; name a format instead")
    variables = {
        name: text
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _content(value.get(name)))
    }
    added = value.get("added_tokens_decoder")
    if controls is None:
        entries = added.values() if isinstance(added, dict) else ()
        special = (each for each in entries if isinstance(each, dict) and each.get("special"))
        configured = {*filter(None, map(_content, special)), *variables.values()}
        family = BY_NAME.get(profile) if profile else profile_of(found, configured)
        # Configurations may name but some; what the template writes for a role is one of its own.
        controls = configured.union((family or BY_NAME[FALLBACK]).controls)
    return Template(found, profile, controls, variables, read(found) if read else None)


def profile_of(template: str, controls: Iterable[str] = ()) -> Profile | None:
    """The profile all of whose hints are found in a template or among the control tokens.

    >>> profile_of("[INST]{{ x }}[/INST]", ["[TOOL_CALLS]"]).name
    'mistral'
    """
    text = "\n".join((template, *controls))
    return next((p for p in PROFILES if all(hint in text for hint in p.hints)), None)


def _options(request: Request) -> dict[str, JSON]:
    """Template variables the client sets; `chat_template_kwargs` and `documents` are vLLM's.
    Raises FaultError for too many."""
    options: dict[str, JSON] = {}
    effort = request.reasoning.effort if request.reasoning else None
    if effort is not None:
        thinks = effort != "none"
        options = {"enable_thinking": thinks, "thinking": thinks, "reasoning_effort": effort}
    for fields in (request.extra or {}).values():
        if isinstance(given := fields.get("chat_template_kwargs"), dict):
            if len(given) > MAX_OPTIONS:
                problem = f"has {len(given)} names, and {MAX_OPTIONS} are the most here"
                raise FaultError(bad_request(problem, "chat_template_kwargs"))
            options.update(given)
        if isinstance(documents := fields.get("documents"), list):
            options["documents"] = documents
    return {name: value for name, value in options.items() if name not in _RESERVED}


def _unused_character(value: JSON) -> str:
    """A private use character that does not occur in the value. Raises FaultError if all do."""
    text, used = json.dumps(value, ensure_ascii=False, default=str), set[str]()
    if not text.isascii():
        for at in range(0, len(text), STEP):
            used.update(text[at : at + STEP])
    separator = next(
        (chr(number) for number in chain(*_PRIVATE_USE) if chr(number) not in used), None
    )
    if separator is None:
        raise FaultError(bad_request("the conversation leaves no character for private use"))
    return separator


def _content(value: JSON) -> str | None:
    """The text of a token, which is given as a string or as an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


# ---- the sandbox ---------------------------------------------------------------------------

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAYS_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")


def strftime(form: str, date: str) -> str:
    """An ISO date in this form; any other text unchanged. By hand: formats import no clock.

    >>> strftime("%A, %d %b %Y", "2026-11-21")
    'Saturday, 21 Nov 2026'
    """
    match = _DATE.match(date)
    if match is None or not 1 <= int(match[2]) <= 12:
        return date
    year, month, day = map(int, match.groups())
    leaps = (year - 1) // 4 - (year - 1) // 100 + (year - 1) // 400
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    number = _DAYS_BEFORE[month - 1] + day + (leap and month > 2)
    weekday = _DAYS[(365 * (year - 1) + leaps + number - 1) % 7]
    name = _MONTHS[month - 1]
    numbers = {"Y": match[1], "y": match[1][2:], "m": match[2], "d": match[3], "j": f"{number:03}"}
    shorter = {"-d": str(day), "-m": str(month), "e": f"{day:2}", "F": date[:10], "%": "%"}
    names = {"B": name, "b": name[:3], "A": weekday, "a": weekday[:3]}
    midnight = {"H": "00", "M": "00", "S": "00", "I": "12", "p": "AM"}
    known = numbers | shorter | names | midnight
    return re.sub(r"%(-?.)", lambda code: known.get(code[1], code[0]), form)


_MAX_REPEATED = 1_000_000


_MAX_SAID = 1_000
"""Characters of a template's `raise_exception` message that are sent to clients."""


class _RejectedError(TemplateError):
    """The template called `raise_exception`."""


def _reject(message: str) -> NoReturn:
    raise _RejectedError(f"{message}"[:_MAX_SAID])


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; rendering ignores it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(SandboxedEnvironment):
    """Jinja's sandbox, with limits on small expressions that make something huge. Templates may
    change lists (Kimi K2's does), since what they are given are copies."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [each if isinstance(each, int) else len(each) for each in (left, right)]
        if operator == "**" and sizes[1] > 64:
            raise TemplateError("a power too high")
        plain = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "*" and not plain and sizes[0] * sizes[1] > _MAX_REPEATED:
            raise TemplateError("a text repeated too often")
        return super().call_binop(context, operator, left, right)


def _compiled(text: str) -> JinjaTemplate:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _reject
    try:
        return environment.from_string(text)
    except TemplateSyntaxError as error:
        raise ValueError(
            f"the chat template cannot be read: line {error.lineno}: {error.message}"
        ) from error


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
