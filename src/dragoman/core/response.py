"""Responses: what the events of an answer add up to, and how sure its constraints are."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Literal

from msgspec import Struct

from .error import Fault
from .item import JSON, Call, CustomToolCall, Extra, FunctionCall, Item, Message, Reasoning, Refusal
from .loss import Loss
from .request import (
    AllowedTools,
    JSONObject,
    JSONSchema,
    NamedTool,
    Request,
    UnknownTool,
)

Guarantee = Literal["enforced", "verified", "best-effort"]

CONSTRAINT_FIELDS = (
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "guided_json",
    "structured_outputs",
)
"""Fields beyond the protocols that constrain the whole answer: of vLLM, and of llama.cpp."""
TEXT_CONSTRAINTS = {
    "lark": "guided_grammar",
    "regex": "guided_regex",
    "choice": "guided_choice",
    "schema": "format",
}
"""The fields with which our own engines constrain the text of an answer (see `Capabilities`)."""
_CONSTRAINTS = frozenset(CONSTRAINT_FIELDS)


def default_guarantee(request: Request) -> Guarantee | None:
    """The guarantee of an answer whose engine gave none; None where nothing constrains it.

    >>> default_guarantee(Request(model="m", format=JSONObject()))
    'best-effort'
    """
    if request.tool_choice is None and not (request.tools or request.format or request.extra):
        return None  # most requests
    match request.tool_choice:
        case "required" | NamedTool() | AllowedTools() | UnknownTool():
            bound = True
        case "none":
            bound = False
        case _:  # the arguments of some tool's calls must fit its schema or grammar
            grouped = map(getattr, request.tools, repeat("tools"), repeat(()))
            tools = (*request.tools, *chain.from_iterable(grouped))
            strict = map(getattr, tools, repeat("strict"), repeat(None))
            grammars = map(getattr, tools, repeat("grammar"), repeat(None))
            bound = True in strict or not {None}.issuperset(grammars)
    bound = bound or isinstance(request.format, JSONObject | JSONSchema)
    if bound or any(map(_binds, (request.extra or {}).values())):
        return "best-effort"
    return None


def _binds(fields: dict[str, JSON]) -> bool:
    """Whether fields of a wire constrain the answer."""
    format = fields.get("response_format")
    if isinstance(format, dict) and "type" in format:  # of a kind that no protocol has
        return True
    found = _CONSTRAINTS.intersection(fields)
    return bool(found) and any(fields[name] is not None for name in found)


Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens as the upstream or the engine counted them. None means "not reported", not zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    input_audio_tokens: int | None = None
    input_text_tokens: int | None = None
    input_image_tokens: int | None = None
    output_audio_tokens: int | None = None
    output_text_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    extra: Extra | None = None


class Response(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A whole answer, or as much of one as came.

    `output` holds the items in order of their index and `choices` the alternative each belongs
    to (empty: all to the first). `reasons` has the finish reason of every choice, and
    `stop_sequence` the stop string that ended the first, where that is known. `error` is set when
    the status is failed. `guarantee` is how sure it is that the answer meets the request's
    constraints; None where there are none. Times are Unix seconds.
    """

    id: str
    created_at: int
    model: str
    status: Status
    output: tuple[Item, ...] = ()
    choices: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    usage: Usage | None = None
    error: Fault | None = None
    completed_at: int | None = None
    losses: tuple[Loss, ...] = ()
    extra: Extra | None = None
    guarantee: Guarantee | None = None
    stop_sequence: str | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return "".join(i.text for i in self.choice(0) if isinstance(i, Message))

    @property
    def refusal(self) -> str:
        """The refusal of the first choice, or the empty string."""
        parts = (p for i in self.choice(0) if isinstance(i, Message) for p in i.parts)
        return "".join(p.text for p in parts if isinstance(p, Refusal))

    @property
    def reasoning(self) -> str:
        """The reasoning of the first choice, or its summary."""
        return "".join(i.text for i in self.choice(0) if isinstance(i, Reasoning))

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tools the first choice asks for."""
        return tuple(i for i in self.choice(0) if isinstance(i, FunctionCall | CustomToolCall))

    @property
    def function_calls(self) -> tuple[FunctionCall, ...]:
        """Those of them with JSON arguments: all, where no custom tool was offered."""
        return tuple(i for i in self.calls if isinstance(i, FunctionCall))

    def choice(self, number: int) -> tuple[Item, ...]:
        """The items of one alternative."""
        if not self.choices:
            return self.output if number == 0 else ()
        pairs = zip(self.output, self.choices, strict=True)
        return tuple(item for item, choice in pairs if choice == number)
