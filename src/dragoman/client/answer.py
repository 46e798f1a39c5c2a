"""The answer as plain attributes: its text and calls, how it ended, and what it took.

A failed answer is an error that still holds what had come.
"""

from __future__ import annotations

from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import asdict

from dragoman.core.error import Fault, FaultError
from dragoman.core.item import JSON, Call, FunctionCall, Item
from dragoman.core.response import Response, Status, Usage

End = Literal[
    "stop",  # the model finished
    "length",  # the limit of tokens was reached
    "tool_calls",  # tools are to be called
    "content_filter",  # a filter cut it off
    "refused",  # the model refused
    "truncated",  # the connection broke: what is there is not all
    "cancelled",
    "error",
    "unfinished",  # it is still going on
]


class Spent(Usage, frozen=True, omit_defaults=True, kw_only=True):
    """Usage, and what the answer took: round trips, and seconds.

    Tokens are None where they were not reported, `time_to_first_token` where nothing came.
    """

    round_trips: int = 1
    time_to_first_token: float | None = None
    latency: float = 0.0


class Answer(Struct, frozen=True):
    """An answer, or as much of it as came. `response` has all of it.

    >>> answer = Answer(Response(id="1", created_at=0, model="m", status="completed"), Spent())
    >>> answer.text, answer.end
    ('', 'stop')
    """

    response: Response
    usage: Spent

    @property
    def text(self) -> str:
        """The text."""
        return self.response.text

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tools the model asks for, in order."""
        return self.response.calls

    @property
    def reasoning(self) -> str:
        """The reasoning, or a summary of it."""
        return self.response.reasoning

    @property
    def refusal(self) -> str:
        """The refusal, or the empty string."""
        return self.response.refusal

    @property
    def output(self) -> tuple[Item, ...]:
        """All items, to be appended to the conversation."""
        return self.response.output

    @property
    def status(self) -> Status:
        """Completed, incomplete, failed or cancelled; in progress before the end."""
        return self.response.status

    @property
    def error(self) -> Fault | None:
        """What went wrong, where the status is failed."""
        return self.response.error

    @property
    def end(self) -> End:
        """How the answer ended."""
        response = self.response
        match response.status:
            case "failed":
                cut = response.error is not None and response.error.code == "upstream_cut"
                return "truncated" if cut else "error"
            case "cancelled":
                return "cancelled"
            case "in_progress":
                return "unfinished"
        reason = response.reasons[0] if response.reasons else "stop"
        if reason == "stop" and response.refusal:
            return "refused"
        return cast(End, reason) if reason in _REASONS else "stop"

    def json(self) -> JSON:
        """The text as JSON. Raises FaultError where it is none."""
        return _parsed(self.text, "The answer")


class AnswerError(FaultError):
    """A failed answer, raised. `fault` says why, `answer` holds what came before."""

    def __init__(self, fault: Fault, answer: Answer) -> None:
        super().__init__(fault)
        self.answer = answer


_REASONS = frozenset(("length", "tool_calls", "content_filter"))
"""Reasons of the core that are ends by the same name."""


def arguments(call: FunctionCall) -> dict[str, JSON]:
    """The arguments of a call as a dict; blank ones are the empty dict.

    Raises FaultError, quoting what the model wrote, where that is no JSON object.

    >>> arguments(FunctionCall("call_1", "get_weather", '{"city": "Paris"}'))
    {'city': 'Paris'}
    """
    if not call.arguments.strip():
        return {}
    parsed: dict[str, JSON] = _parsed(call.arguments, f"The arguments of {call.name}", object=True)
    return parsed


def spent(usage: Usage | None, first: float | None, latency: float) -> Spent:
    """The measurements of one answer; `first` and `latency` are in seconds."""
    reported = {} if usage is None else asdict(usage)
    return Spent(**reported, time_to_first_token=first, latency=latency)


def _parsed(text: str, what: str, *, object: bool = False) -> JSON:
    from dragoman.wire import json  # `import dragoman` alone needs no wire

    try:
        value = json.load(text)
    except ValueError as error:
        shown = text if len(text) <= 200 else text[:200] + "…"
        message = f"{what}: {shown!r} {error}."
        raise FaultError(Fault("upstream_error", message, "upstream")) from None
    if object and not isinstance(value, dict):
        problem = f"{what} are {json.kind(value)}, and must be an object."
        raise FaultError(Fault("upstream_error", problem, "upstream"))
    return value
