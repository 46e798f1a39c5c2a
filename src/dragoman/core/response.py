"""What the events of an answer add up to.

These are the values; `fold` and `unfold` in `fold.py` turn events into a response and back. No
wire's shape is known here, and a number that was never reported stays None.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .error import Fault
from .guarantee import Guarantee
from .item import Call, CustomToolCall, Extra, FunctionCall, Item, Message, Reasoning, Refusal
from .loss import Loss

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens counted by whoever answered. None means "not reported", which is not zero."""

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
    to (empty: all to the first). `reasons` has the finish reason of every choice. `error` is set
    when the status is failed. `guarantee` says how sure it is that the answer is what was demanded;
    None where nothing was. Times are Unix seconds.
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

    @property
    def text(self) -> str:
        """Everything the first choice said in text."""
        return "".join(i.text for i in self.choice(0) if isinstance(i, Message))

    @property
    def refusal(self) -> str:
        """The words of refusal in the first choice, or the empty string."""
        parts = (p for i in self.choice(0) if isinstance(i, Message) for p in i.parts)
        return "".join(p.text for p in parts if isinstance(p, Refusal))

    @property
    def reasoning(self) -> str:
        """What the first choice thought aloud, or its summary."""
        return "".join(i.text for i in self.choice(0) if isinstance(i, Reasoning))

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tools the first choice asks for."""
        return tuple(i for i in self.choice(0) if isinstance(i, FunctionCall | CustomToolCall))

    def choice(self, number: int) -> tuple[Item, ...]:
        """The items of one alternative."""
        if not self.choices:
            return self.output if number == 0 else ()
        pairs = zip(self.output, self.choices, strict=True)
        return tuple(item for item, choice in pairs if choice == number)
