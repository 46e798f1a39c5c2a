"""A model's own chat template as a format: rendered in a sandbox, parsed by a profile of markup.

Words of the conversation never become control tokens: they are marked before the template sees
them, and the marks are taken out once the real control tokens were found. Where a template comes
from is not known here; the `local` extra (jinja2) is needed to render one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import chain

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.item import JSON
from dragoman.core.ledger import Ledger
from dragoman.core.request import Request
from dragoman.core.turn import Turn

from .format import PLAIN, Grammar, Setting, Stops
from .markup.families import PROFILES
from .markup.format import Markup
from .markup.parser import MarkupParser
from .markup.profile import Profile
from .messages import LIMITS, Verbatim, messages, tools
from .prompt import Control, Piece, Prompt
from .tokenizer import Tokenizer

MOST_CHARACTERS = 16_000_000
"""A prompt longer than this is refused: no context is that long."""

_THINKING = ("<think>", "[THINK]")
_OUR_NAMES = frozenset(
    {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"}
)
_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""The characters that mean nothing but what one agrees on."""


class Template:
    """A format for the models that bring a chat template.

    - `text` is the template, in Jinja; a fault in it raises ValueError.
    - `profile` says how the model writes calls: a profile or its name; by default recognised.
    - `controls` are the texts of the vocabulary's control tokens.
    - `variables` are what the template knows besides, such as `bos_token`.

    >>> chat = Template("{% for m in messages %}<s>{{ m.content }}{% endfor %}", "hermes", ["<s>"])
    >>> from dragoman.core.item import Message
    >>> chat.render(Request(model="m", items=(Message("user", "<s>"),))).pieces
    (Control(text='<s>'), '<s>')
    """

    limits = LIMITS

    def __init__(
        self,
        text: str,
        profile: Profile | str | None = None,
        controls: Iterable[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        try:
            from .sandbox import Sandbox
        except ImportError as error:
            raise ImportError(
                "Chat templates need jinja2: pip install 'dragoman[local]'.", name=error.name
            ) from error
        self._controls = sorted({each for each in controls if len(each) > 1}, key=len, reverse=True)
        self._markup = Markup(profile or profile_of(text, self._controls))
        self._sandbox = Sandbox(text, MOST_CHARACTERS)
        self._variables = dict(variables or {})
        any_control = "|".join(map(re.escape, self._controls)) or r"(?!)"
        self._split = re.compile(f"({any_control})")
        self._begins = re.compile(f"(?=(?:{any_control}))(.)", re.DOTALL)
        self._longest = len(self._controls[0]) if self._controls else 0
        self._partial = {each[:size] for each in self._controls for size in range(1, len(each))}
        self._thinks: dict[str, bool] = {}

    @property
    def name(self) -> str:
        """The name of the markup the model writes."""
        return self._markup.name

    @property
    def profile(self) -> Profile:
        """The markup the model writes."""
        return self._markup.profile

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt. Raises FaultError, naming the item, for what is not text, and with the
        template's own words where it refuses the conversation."""
        ledger = Ledger()
        turns = messages(request, ledger, self.profile.id_length)
        known = tools(request)
        text, sign = self._rendered(turns, known, _options(request), setting)
        pieces: list[Piece] = []
        for place, piece in enumerate(self._split.split(text)):
            if piece:
                pieces.append(Control(piece) if place % 2 else piece.replace(sign, ""))
        return Prompt(tuple(pieces), ledger.losses())

    def stops(self, request: Request) -> Stops:
        """The control tokens that end an answer: the family's, and the model's own."""
        own = self._variables.get("eos_token")
        ends = self.profile.ends
        return Stops(ends if own is None or own in ends else (*ends, own))

    def parser(
        self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None
    ) -> MarkupParser:
        """A parser for the answer to this request. Without a tokenizer only `write` works."""
        thinking = self._ends_in_thought(request)
        return self._markup.hear(request, turn, tokenizer, thinking=thinking)

    def grammar(self, request: Request) -> Grammar | None:
        """What the whole answer must match, or None where the request demands nothing."""
        return self._markup.demanded(request, thinking=self._ends_in_thought(request))

    # ---- inside --------------------------------------------------------------------------

    def _rendered(
        self,
        turns: list[dict[str, JSON]],
        known: list[dict[str, JSON]],
        options: dict[str, JSON],
        setting: Setting,
    ) -> tuple[str, str]:
        """The template's text, and the sign in it that is to be taken out."""
        given = {"messages": turns, "tools": known or None, **options}
        try:
            sign = _unused(given)
            variables = {name: self._marked(value, sign) for name, value in given.items()}
        except RecursionError as problem:
            told = "the conversation is nested too deeply for a chat template"
            raise FaultError(bad_request(told)) from problem
        try:
            text = self._sandbox.render(
                {**self._variables, **variables, "add_generation_prompt": True}, setting.today
            )
        except ValueError as problem:
            raise FaultError(
                bad_request(f"the model's chat template refuses this conversation: {problem}")
            ) from problem
        except RuntimeError as problem:
            raise FaultError(
                Fault("internal", f"The model's chat template failed: {problem}")
            ) from problem
        return text, sign

    def _marked(self, value: JSON, sign: str) -> JSON:
        """A value in which no text is a control token, or can become one at its end."""
        match value:
            case str():
                return self._mark(value, sign)
            case Verbatim():
                marked = {name: self._marked(each, sign) for name, each in value.items()}
                return Verbatim(marked, self._mark(value.text, sign))
            case dict():
                return {
                    self._marked(name, sign): self._marked(each, sign)
                    for name, each in value.items()
                }
            case list():
                return [self._marked(each, sign) for each in value]
            case _:
                return value

    def _mark(self, text: str, sign: str) -> str:
        text = self._begins.sub(rf"\1{sign}", text)
        for at in range(len(text) - 1, max(-1, len(text) - self._longest), -1):
            if text[at:] in self._partial:
                text = f"{text[: at + 1]}{sign}{text[at + 1 :]}"
        return text

    def _ends_in_thought(self, request: Request) -> bool:
        """Whether the prompt opens the reasoning, so that the answer begins inside it."""
        options = _options(request)
        key = json.dumps(options, sort_keys=True, default=str)
        known = self._thinks.get(key)
        if known is None:
            try:
                hello: dict[str, JSON] = {"role": "user", "content": "hello"}
                text, _ = self._rendered([hello], [], options, PLAIN)
            except FaultError:
                text = ""
            if len(self._thinks) > 64:
                self._thinks.clear()
            known = self._thinks[key] = text.rstrip().endswith(_THINKING)
        return known


def from_config(
    config: str, template: str | None = None, controls: Iterable[str] | None = None
) -> Template:
    """The format of a model's folder, from the text of its `tokenizer_config.json`.

    `template` is the text of `chat_template.jinja`, where the folder has one; `controls` are the
    control tokens of its vocabulary, by default those the configuration names. Raises ValueError
    where there is no template to be found.
    """
    value = json.loads(config)
    if not isinstance(value, dict):
        raise ValueError("tokenizer_config.json is no JSON object")
    found = template or _template(value.get("chat_template"))
    if found is None:
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
        controls = {*filter(None, map(_content, special)), *variables.values()}
    return Template(found, None, controls, variables)


def profile_of(template: str, controls: Iterable[str] = ()) -> Profile:
    """The profile that a template's text and a vocabulary's control tokens give away.

    All hints of a profile must be found; where none fits, it is the one most are trained on.

    >>> profile_of("[INST]{{ x }}[/INST]", ["[TOOL_CALLS]"]).name
    'mistral'
    """
    seen = "\n".join((template, *controls))
    for profile in PROFILES:
        if all(hint in seen for hint in profile.hints):
            return profile
    return next(profile for profile in PROFILES if profile.name == _USUAL)


_USUAL = "hermes"


def _options(request: Request) -> dict[str, JSON]:
    """What else the client wants the template to know."""
    options: dict[str, JSON] = {}
    effort = request.reasoning.effort if request.reasoning else None
    if effort is not None:
        thinks = effort != "none"
        options = {"enable_thinking": thinks, "thinking": thinks, "reasoning_effort": effort}
    for fields in (request.extra or {}).values():
        if isinstance(given := fields.get("chat_template_kwargs"), dict):
            options.update(given)
        if isinstance(documents := fields.get("documents"), list):
            options["documents"] = documents
    return {name: value for name, value in options.items() if name not in _OUR_NAMES}


def _unused(value: JSON) -> str:
    """A character for private use that occurs nowhere in the value. Raises FaultError where they
    all do."""
    used = set(json.dumps(value, ensure_ascii=False, default=str))
    sign = next((chr(number) for number in chain(*_PRIVATE) if chr(number) not in used), None)
    if sign is None:
        raise FaultError(bad_request("the conversation leaves no character for private use"))
    return sign


def _template(value: JSON) -> str | None:
    """The template of a configuration, which may have several by name."""
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("tool_use") or named.get("default")
    return value if isinstance(value, str) and value else None


def _content(value: JSON) -> str | None:
    """The text of a token, given as a string or as an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None
