"""Asks again for less, or in other messages, where a server refuses a request, and remembers it:
a lower reasoning effort, or none, a shorter answer, less about its sampling, and roles that
alternate.

- How hard to think is a wish: clients such as Claude Code have it in every request, whatever the
  model, and servers refuse it of models that do not reason, or that know other efforts.
- The most tokens of an answer are an upper bound, and such clients ask for 32,000; servers such as
  vLLM refuse what could exceed the model's context.
- Many clients send a temperature, and top_p, whatever the model; Claude takes one of them, or none.
- Agents such as Codex send several messages of the user in a row, and the chat templates of some
  models (Mistral, Gemma) take none but alternating roles.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import TOO_LONG, Fault, FaultError
from dragoman.core.interfaces import Caller
from dragoman.core.loss import Loss
from dragoman.core.lower import Lowered
from dragoman.core.request import EFFORTS, ReasoningOptions, Request, Sampling
from dragoman.core.roles import READ, WHY, alternating, strictness
from dragoman.core.turn import Turn
from dragoman.net.client import Exchange
from dragoman.wire.protocol import Dialect, Wire
from dragoman.wire.registry import spell_losses

if TYPE_CHECKING:
    from .turns import ThreadPool

MEMORY = 600.0
"""Seconds for which what was refused is not asked for again: another model may have the name."""
MODELS = 1_000
"""The most models of each kind of refusal that are cached for one upstream."""

# ---- the length of an answer -----------------------------------------------------------------

SHORTEST = 1024
"""The fewest tokens that are asked for instead: with fewer, calls of agents would be cut off."""

_MOST = re.compile(
    r"at most (\d{1,9}) completion tokens"
    r"|max_tokens`? must be less than or equal to `?(\d{1,9})"
    r"|> (\d{1,9}), which is the maximum allowed number of output tokens"
    r"|range of max_tokens (?:is|should be) +\[1, (\d{1,9})\]"
    r"|max_(?:output_|completion_)?tokens\b.{1,200}?expected a value <= (\d{1,9}), but got"
    r"|maximum tokens you requested exceeds the model limit of (\d{1,9})",
    re.I,
)
_BESIDE = re.compile(r"exceed context limit: (\d{1,9}) \+ \d{1,9} > (\d{1,9})")
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
    if not _refused(fault, 400, 422):
        return None
    text = fault.message[:READ]
    if most := _MOST.search(text):
        return int(next(filter(None, most.groups())))
    if beside := _BESIDE.search(text):
        return int(beside[2]) - int(beside[1])
    if (context := _CONTEXT.search(text)) is None:
        return None
    size = int(context[1] or context[2])
    if counted := _INPUT.search(text):
        return size - int(counted[1])
    if total := _TOTAL.search(text):
        return size - int(total[1]) + int(total[2])
    return size // 4 if _UNCOUNTED.search(text) else None


# ---- reasoning efforts -----------------------------------------------------------------------

FIELD = "reasoning.effort"
SUMMARY = Loss("reasoning.summary", "dropped", "there is none without reasoning")

_EFFORT = re.compile(
    r"effort|\bthink value\b|\b(thinking|reasoning)[ _](level|value)|budget (to )?0\b", re.I
)
_THINKING = re.compile(r"\b(thinking|reasoning)\b", re.I)
_UNSUPPORTED = re.compile(
    r"support|unrecogni[sz]ed|unknown|not (permitted|allowed|available)|cannot be disabled", re.I
)
_ELSE = re.compile(r"encrypted|signature|block|budget|content|item|summary|max_tokens", re.I)
"""Words of faults of past reasoning, and of options that are not about how hard to think."""


def is_about_effort(fault: Fault) -> bool:
    """Whether a server refused a request for its reasoning effort.

    >>> is_about_effort(Fault("upstream_refused", '"m" does not support thinking', status=400))
    True
    """
    if not _refused(fault, 400, 422, 500):
        return False
    text = f"{fault.param}: {fault.message}"[:READ]
    if fault.status == 500:  # by a chat template
        return bool(_EFFORT.search(text) and _UNSUPPORTED.search(text))
    thinking = _THINKING.search(text) and _UNSUPPORTED.search(text) and not _ELSE.search(text)
    return bool(thinking or _EFFORT.search(text))


def nearest(effort: str, message: str) -> str | None:
    """The nearest of the efforts that a refusal lists, if it lists some. None is never
    that of who wants the model to think.

    >>> nearest("xhigh", "'xhigh' is none of: 'low', 'medium', and 'high'")
    'high'
    >>> nearest("high", "must be one of `none`, `default`"), nearest("high", "not supported")
    (None, None)
    """
    words = re.findall(r"\w+", message[:READ].lower())
    listed = [at for at, each in enumerate(EFFORTS) if each != effort and each in words]
    if len(listed) < 2 or effort not in EFFORTS:
        return None
    asked = EFFORTS.index(effort)
    return EFFORTS[min((at for at in listed if at), key=lambda at: (abs(at - asked), at))]


def with_effort(request: Request, effort: str | None) -> Request:
    """The request with another effort; without one, a summary is not asked for either."""
    options = replace(request.reasoning or ReasoningOptions(), effort=effort)
    if effort is None:
        options = replace(options, summary=None)
    return replace(request, reasoning=None if options == ReasoningOptions() else options)


def effort_of(request: Request) -> str | None:
    """The effort of a request."""
    return None if request.reasoning is None else request.reasoning.effort


def effort_losses(request: Request, sent: str | None) -> tuple[Loss, ...]:
    """The losses of a request that was sent with another effort, or none."""
    asked = request.reasoning
    if sent is not None:
        why = f"the model's server does not take it for this model; {sent} is asked for"
        return (Loss(FIELD, "emulated", why),)
    lost = Loss(FIELD, "dropped", "the model's server does not take it for this model")
    return (lost, SUMMARY) if asked is not None and asked.summary is not None else (lost,)


# ---- sampling --------------------------------------------------------------------------------

_SAMPLING = re.compile(
    r"\b(temperature|top_p|top_k)\b.{1,30}"
    r"(?:(?P<both>cannot both be specified)|deprecated|not (?:support|permitted)|unsupported)",
    re.I,
)


def refused_sampling(fault: Fault, sampling: Sampling) -> str | None:
    """The field of a request's sampling that a server refused it for: of two that exclude each
    other the one that says less.

    >>> words = "`temperature` and `top_p` cannot both be specified for this model."
    >>> fault = Fault("upstream_refused", words, status=400)
    >>> refused_sampling(fault, Sampling(temperature=0.5, top_p=1))
    'top_p'
    """
    found = _SAMPLING.search(fault.message[:READ])
    if found is None or not _refused(fault, 400, 422):
        return None
    name = found[1].lower()
    if found["both"]:
        name = "temperature" if sampling.temperature == 1 else "top_p"
    return None if getattr(sampling, name) is None else name


# ---- what was refused before, and now --------------------------------------------------------


class Refusals:
    """What an upstream refused, and takes instead, for each model and tenant: what one has beside
    it, or its key, says nothing of others."""

    def __init__(self) -> None:
        self._efforts: dict[tuple[str, ...], tuple[str | None, float]] = {}
        self._strict: dict[tuple[str, str], tuple[int, float]] = {}
        self.seen = False

    def lower(self, lowered: Lowered, caller: Caller) -> Lowered:
        """The request with what the server takes, where it is known to refuse it as it is."""
        request, lost = lowered.request, lowered.losses
        since = time.monotonic() - MEMORY
        strict, at = self._strict.get((request.model, caller.tenant), (0, 0.0))
        if strict and at > since and (asked := alternating(request, strict)) is not request:
            request, lost = asked, (*lost, Loss("items", "emulated", WHY[strict]))
        if effort_of(request) is not None:
            sent, at = self._efforts.get(_key(request, caller), (None, since))
            if at > since:
                lost = (*lost, *effort_losses(request, sent))
                request = with_effort(request, sent)
        if request is lowered.request:
            return lowered
        return replace(lowered, request=request, losses=lost)

    def learn_effort(self, request: Request, caller: Caller, sent: str | None) -> None:
        """Note what the server took instead of this request's effort."""
        if len(self._efforts) >= MODELS:
            self._efforts.clear()
        self._efforts[_key(request, caller)], self.seen = (sent, time.monotonic()), True

    def learn_strictness(self, request: Request, caller: Caller, strict: int) -> None:
        """Note which roles the model takes."""
        if len(self._strict) >= MODELS:
            self._strict.clear()
        self._strict[request.model, caller.tenant] = strict, time.monotonic()
        self.seen = True


def _refused(fault: Fault, *statuses: int) -> bool:
    return fault.code == "upstream_refused" and fault.status in statuses


def _key(request: Request, caller: Caller) -> tuple[str, ...]:
    # Some models take an effort only where they have no tools.
    tools = "tools" if request.tools else ""
    return request.model, effort_of(request) or "", tools, caller.tenant


class Again(Struct, eq=False):
    """One request that may be refused: `asked` before what is known of it was applied, and
    `request` as it is sent. `send` makes an exchange of a body."""

    refusals: Refusals
    caller: Caller
    asked: Request
    request: Request
    wire: Wire
    dialect: Dialect
    send: Callable[..., Exchange]
    less_effort: bool = False  # whether it was asked again with less effort
    shorter: bool = False  # and for a shorter answer
    unsampled: tuple[str, ...] = ()  # and without these fields of its sampling
    strict: int = 0  # and with stricter roles

    async def changed(self, fault: Fault, body: bytes | bytearray, threads: ThreadPool) -> Exchange:
        """The request of this body without what was refused. Raises FaultError where the
        refusal is about something else, or where there is nothing to change."""
        caller, most, effort = self.caller, self.request.max_output_tokens, effort_of(self.request)
        if most is None:
            most = self.wire.max_tokens
        left = None if self.shorter else room(fault)
        change: Callable[[Request], Request]
        strict = strictness(fault.message) if _refused(fault, 400, 422, 500) else 0
        if strict > self.strict:
            self.strict, change = strict, partial(alternating, strict=strict)
        elif most is not None and left is not None and SHORTEST <= left < most:
            self.shorter, change = True, partial(replace, max_output_tokens=left)
        elif name := refused_sampling(fault, sampling := self.request.sampling):
            self.unsampled = (*self.unsampled, name)
            change = partial(replace, sampling=replace(sampling, **{name: None}))
        elif effort is not None and is_about_effort(fault):
            effort = None if self.less_effort else nearest(effort, fault.message)
            self.less_effort, change = True, partial(with_effort, effort=effort)
        else:
            if left is not None and left < SHORTEST:  # its clients are to shorten the prompt
                fault = replace(fault, upstream_code=fault.upstream_code or TOO_LONG)
            raise FaultError(fault)

        def again() -> bytes:
            self.request = change(self.request)
            return self.wire.encode_request(self.request, self.dialect)[0]

        asked = await threads.run(caller.tenant, again) if caller.size else again()
        if asked == body:  # a wire's own field
            raise FaultError(fault)
        return self.send(asked)

    def taken(self, turn: Turn) -> None:
        """The server took the request: report what it took, and remember it."""
        if not (self.less_effort or self.shorter or self.unsampled or self.strict):
            return
        found: tuple[Loss, ...] = ()
        if self.less_effort:
            sent = effort_of(self.request)
            self.refusals.learn_effort(self.asked, self.caller, sent)
            found = effort_losses(self.asked, sent)
        if self.shorter:
            why = f"the model's server has room for {self.request.max_output_tokens} tokens"
            found = (*found, Loss("max_output_tokens", "emulated", why))
        why = "the model's server does not take it for this model"
        found = (*found, *[Loss(name, "dropped", why) for name in self.unsampled])
        spell = partial(spell_losses, request=self.asked, wire=self.caller.wire)
        lost = spell(found)
        instead = {loss.field for loss in lost}
        if self.strict:
            self.refusals.learn_strictness(self.asked, self.caller, self.strict)
            lost += spell((Loss("items", "emulated", WHY[self.strict]),))
        turn.losses = (*(each for each in turn.losses if each.field not in instead), *lost)
        if turn.started:  # its losses were sent
            for loss in lost:
                turn.report_loss(loss)
