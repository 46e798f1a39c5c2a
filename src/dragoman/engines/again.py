"""Asks again with less where a server refuses a request: a lower reasoning effort, or none, and a
shorter answer where the longest has no room beside the prompt.

The most tokens of an answer are an upper bound, and clients such as Claude Code ask for 32,000
whatever the model; servers such as vLLM refuse what could exceed its context.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import TOO_LONG, Fault, FaultError
from dragoman.core.interfaces import Caller
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.net.client import Exchange
from dragoman.wire.protocol import Dialect, Wire
from dragoman.wire.registry import spell_losses

from .effort import READ, Efforts, effort_of, is_about_effort, losses, nearest, with_effort

if TYPE_CHECKING:
    from .turns import ThreadPool

SHORTEST = 1024
"""The fewest tokens that are asked for instead: with fewer, calls of agents would be cut off."""

_MOST = re.compile(
    r"at most (\d{1,9}) completion tokens|max_tokens`? must be less than or equal to `?(\d{1,9})"
)
_CONTEXT = re.compile(
    r"context length (?:is|of)(?: only)? (\d{1,9}) tokens|max_model_len=(?:\w{1,50}=)?(\d{1,9})"
)
_UNCOUNTED = re.compile(r"output tokens and your prompt|maximum input length|max_model_len=")
_INPUT = re.compile(r"(?:has|contains) (\d{1,9}) input tokens")
_TOTAL = re.compile(
    r"requested (?:a total of |about )?(\d{1,9}) tokens\b.{1,200}?"
    r"\b(\d{1,9}) (?:tokens )?(?:in|for) the (?:completion|output)\b",
    re.DOTALL,
)


def room(fault: Fault) -> int | None:
    """The tokens that an answer may have, where a server refused a request since it asks for
    more. Where it has not counted the prompt to its end, a quarter of the context.

    >>> words = "maximum context length is 80 tokens and your request has 50 input tokens"
    >>> room(Fault("upstream_refused", words, status=400))
    30
    """
    if fault.code != "upstream_refused" or fault.status not in (400, 422):
        return None
    text = fault.message[:READ]
    if most := _MOST.search(text):
        return int(most[1] or most[2])
    if (context := _CONTEXT.search(text)) is None:
        return None
    size = int(context[1] or context[2])
    if counted := _INPUT.search(text):
        return size - int(counted[1])
    if total := _TOTAL.search(text):
        return size - int(total[1]) + int(total[2])
    return size // 4 if _UNCOUNTED.search(text) else None


class Again(Struct, eq=False):
    """One request that may be refused: `asked` before what is known of efforts was applied, and
    `request` as it is sent. `send` makes an exchange of a body."""

    efforts: Efforts
    caller: Caller
    asked: Request
    request: Request
    wire: Wire
    dialect: Dialect
    send: Callable[..., Exchange]
    less_effort: bool = False  # whether it was asked again with less effort
    shorter: bool = False  # and for a shorter answer

    async def less(self, fault: Fault, body: bytes | bytearray, threads: ThreadPool) -> Exchange:
        """The request of this body with less of what was refused. Raises FaultError where the
        refusal is about something else, or where there is nothing to leave out."""
        request, caller = self.request, self.caller
        most, left = request.max_output_tokens, None if self.shorter else room(fault)
        effort = effort_of(request)
        if most is not None and left is not None and SHORTEST <= left < most:
            self.shorter, self.request = True, replace(request, max_output_tokens=left)
        elif effort is not None and is_about_effort(fault):
            effort = None if self.less_effort else nearest(effort, fault.message)
            self.less_effort, self.request = True, with_effort(request, effort)
        else:
            if left is not None and left < SHORTEST:  # its clients are to shorten the prompt
                fault = replace(fault, upstream_code=fault.upstream_code or TOO_LONG)
            raise FaultError(fault)
        encode = partial(self.wire.encode_request, self.request, self.dialect)
        less, _ = await threads.run(caller.tenant, encode) if caller.size else encode()
        if less == body:  # a wire's own field
            raise FaultError(fault)
        return self.send(less)

    def taken(self, turn: Turn) -> None:
        """The server took the request: report what it took, and remember its effort."""
        found: tuple[Loss, ...] = ()
        if self.less_effort:
            sent = effort_of(self.request)
            self.efforts.learn(self.asked, self.caller, sent)
            found = losses(self.asked, sent)
        if self.shorter:
            why = f"the model's server has room for {self.request.max_output_tokens} tokens"
            found = (*found, Loss("max_output_tokens", "emulated", why))
        if not found:
            return
        lost = spell_losses(found, self.asked, self.caller.wire)
        names = [loss.field for loss in lost]
        turn.losses = (*(loss for loss in turn.losses if loss.field not in names), *lost)
        if turn.started:  # its losses were sent
            for loss in lost:
                turn.report_loss(loss)
