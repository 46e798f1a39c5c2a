"""Chooses how an answer is constrained to a grammar: by fields of the engine, or by words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import cast

import msgspec
from msgspec import Struct

from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.core.error import FaultError
from dragoman.core.interfaces import first_model
from dragoman.core.item import JSON, CustomToolCall, Extra, Message, Text
from dragoman.core.request import (
    CustomTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    OutputFormat,
    ToolChoice,
)

from .grammar import bare, choices, json_value, regular, to_gbnf, to_lark
from .nodes import Json, Literal, Node

CONTINUE = (
    "Go on with your last message exactly where it ends: write what follows it, and nothing before."
)
"""Asks for what is before the answer in its turn to be continued, where no server does it."""
PREFILL = (
    *("prefill", "final assistant", "last role", "end with a user", "continue_final_message"),
)
"""Words of servers that refuse a conversation that ends with the assistant's message."""
_LONGEST_CHOICE = 200_000
"""Characters of a list of texts; a longer one is a grammar."""


class ProgramError(FaultError):
    """A program could not be run as written: an unsupported option, or no matching answer."""


class Target:
    """The engine that a program uses, and its capabilities."""

    def __init__(self, client: Client, model: str | None, logprobs: bool | None) -> None:
        self.client, self.model = client, model
        self.logprobs, self.stops = logprobs is not False, True
        self.prefills = True  # it takes a conversation that ends with the assistant
        self._known = False
        self.wire = "chat"
        self.constraints: Mapping[str, str] = {}
        self.continues: Mapping[str, JSON] | None = None
        self._continuing: frozenset[str] = frozenset()  # its fields, for requests under way

    async def learn(self) -> None:
        """Query the engine's capabilities, once."""
        if self._known:
            return
        models = []
        with suppress(FaultError):
            models = list(await self.client.models())
        if self.model is None:
            self.model = self.client.model or first_model([each.id for each in models])
        known = await self.client.capabilities(self.model or "")
        entry = next((each for each in models if each.id == self.model), None)
        guarantees = ((entry and entry.extra) or {}).get("models", {}).get("guarantees")
        if not isinstance(guarantees, list):  # not listed, as by another name than asked for
            guarantees = known.guarantees and list(known.guarantees)
        self.wire = known.wire or "chat"
        if guarantees is None or "enforced" in guarantees:
            self.constraints = known.constraints or {}
        if guarantees != ["best-effort"]:
            self.continues = known.continues
            self._continuing = frozenset(known.continues or ())
        self._known = True

    def cannot_continue(self, extra: Extra | None) -> Extra:
        """Note that it continues no message; the fields of a request without those for that."""
        self.prefills, self.continues = False, None
        kept = (extra or {}).get(self.wire, {}).items()
        return {self.wire: {name: each for name, each in kept if name not in self._continuing}}

    @property
    def name(self) -> str:
        """Its name in errors."""
        engine = type(self.client.engine).__name__
        return f"{self.model} ({engine})" if self.model else engine


class Ask(Struct, frozen=True, kw_only=True):
    """One way to ask for an answer that matches: what is added to the request, and how the text is
    read from the answer. With `begun` the answer repeats the text that is in the turn already;
    with `hidden` the assistant's last messages are left out of the request."""

    extra: dict[str, JSON] = {}
    format: OutputFormat | None = None
    tools: tuple[CustomTool, ...] = ()
    tool_choice: ToolChoice | None = None
    begun: bool = False
    hidden: bool = False
    plain: bool = True
    hint: str = ""
    read: Callable[[Answer], str | None] = lambda answer: answer.text


def natives(target: Target, body: Node, prefix: str, *, follows: bool) -> Iterator[Ask]:
    """The constraints that the engine supports for a node, strongest first. A text that is in the
    turn already, the `prefix`, is part of the grammar, so that no new turn begins. `follows`: the
    last item of the conversation is the assistant's."""
    fields = target.constraints
    texts, alone = choices(body), bare(body)
    schema = alone if isinstance(alone, Json) else None
    usual = schema is not None and schema.schema != {} and schema.separators == (", ", ": ")
    at_once = not prefix and (usual or "lark" not in fields)
    if schema is not None and "schema" in fields and at_once:
        yield Ask(format=_format(schema))
    if "lark" in fields:
        if texts and not prefix and sum(map(len, texts)) < _LONGEST_CHOICE:
            yield Ask(extra=_nested(fields["choice"], list(texts)))
        yield Ask(extra=_nested(fields["lark"], to_lark(body, prefix)), begun=True)
    if "choice" in fields and texts:
        begun = [prefix + text for text in texts]
        yield Ask(extra=_nested(fields["choice"], begun), begun=True)
    if "regex" in fields and (pattern := regular(body)) is not None:
        whole = (regular(Literal(prefix)) or "") + pattern
        yield Ask(extra=_nested(fields["regex"], whole), begun=True)
    if "gbnf" in fields and (rules := to_gbnf(body, prefix)) is not None:
        yield Ask(extra=_nested(fields["gbnf"], rules), begun=True)
    if schema is not None and "schema" in fields:
        if not at_once:
            yield Ask(format=_format(schema))
        if follows:  # some servers continue that, and bind no answer that has begun
            yield Ask(format=_format(schema), hidden=True)
    if "custom" in fields and schema is None:
        syntax, rules = "lark", to_lark(body)
        if (pattern := regular(body)) is not None:
            syntax, rules = "regex", pattern
        about = "Takes the next words of your answer, and nothing else."
        tool = CustomTool("answer", about, syntax, rules)
        named = NamedTool("answer", "custom")
        yield Ask(tools=(tool,), tool_choice=named, plain=False, read=_input)
    if "schema" in fields and schema is None:
        value: dict[str, JSON] | None = None
        if texts:
            value = {"type": "string", "enum": list(dict.fromkeys(texts))}
        elif (pattern := regular(body)) is not None:
            value = {"type": "string", "pattern": f"^{pattern}$"}
        if value is not None:
            yield Ask(
                format=JSONSchema("answer", _object(value), strict=True),
                plain=False,
                read=lambda answer: json_value(body, answer.text),
            )


def unbound(body: Node, number: int, formats: bool = True) -> Ask:
    """The request without constraints, for attempt `number`. Without `formats` the engine refuses
    the protocol's field for JSON."""
    alone, hint = bare(body), ""
    if isinstance(alone, Json):
        if number:  # some servers take the field and do not look at it
            hint = "Answer with JSON of this schema, and nothing else:\n"
            hint += msgspec.json.encode(alone.schema).decode()
        return Ask(format=_format(alone) if formats else None, hint=hint)
    if number:
        if (texts := choices(body)) is not None:
            hint = f"Answer with exactly one of these, and nothing else: {', '.join(texts)}"
        elif (pattern := regular(body)) is not None:
            hint = "Answer with text that matches this regular expression, and nothing else: "
            hint += pattern
        else:
            hint = "Answer with text of this grammar, and nothing else:\n" + to_lark(body)
    return Ask(hint=hint)


def _format(value: Json) -> OutputFormat:
    if not value.schema:
        return JSONObject()
    return JSONSchema("answer", value.schema, strict=True)


def _nested(path: str, value: JSON) -> dict[str, JSON]:
    """A field by its path.

    >>> _nested("structured_outputs.regex", "a+")
    {'structured_outputs': {'regex': 'a+'}}
    """
    for name in reversed(path.split(".")):
        value = {name: value}
    return cast("dict[str, JSON]", value)


def _object(value: dict[str, JSON]) -> dict[str, JSON]:
    about = {"required": ["value"], "additionalProperties": False}
    return {"type": "object", "properties": {"value": value}, **about}


def _input(answer: Answer) -> str | None:
    calls = [call for call in answer.calls if isinstance(call, CustomToolCall)]
    return calls[0].input if calls else None


def by_probability(body: Node, answer: Answer) -> str | None:
    """The option whose first token was the most likely, where that is known."""
    texts = choices(body)
    messages = (item for item in answer.choice(0) if isinstance(item, Message))
    parts = [part for item in messages for part in item.parts if isinstance(part, Text)]
    first = next((token for part in parts for token in part.tokens if token.text.strip()), None)
    if texts is None or first is None:
        return None
    found: list[tuple[float, str]] = []
    for token in first.top:
        start = token.text.strip().lower()
        for text in texts:
            if start and token.logprob is not None and text.lower().startswith(start):
                found.append((token.logprob, text))
    best = max(found, default=None)
    if best is None or sum(score == best[0] for score, _ in found) > 1:
        return None  # two begin alike
    return best[1]
