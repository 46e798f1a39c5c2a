"""Finds which reasoning effort is sent instead of one that a server refuses for a model.

How hard to think is a wish: clients such as Claude Code have it in every request, whatever the
model, and servers refuse it of models that do not reason, or that know other efforts.
"""

from __future__ import annotations

import re
import time

from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.interfaces import Caller
from dragoman.core.loss import Loss
from dragoman.core.lower import Lowered
from dragoman.core.request import EFFORTS, ReasoningOptions, Request

MEMORY = 600.0
"""Seconds for which a refused effort is not asked for again: another model may have the name."""
MODELS = 1_000
"""The most refused efforts of models that are cached for one upstream."""
READ = 2_000
"""Characters of a refusal that are read."""
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
    if fault.code != "upstream_refused" or fault.status not in (400, 422, 500):
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


class Efforts:
    """What an upstream takes instead of efforts that it refused, for each model and tenant: what
    one has beside its effort, or its key, says nothing of others."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[str | None, float]] = {}

    def lower(self, lowered: Lowered, caller: Caller) -> Lowered:
        """The request with what the server takes, where it is known to refuse its effort."""
        request = lowered.request
        known = self._known.get(self._key(request, caller)) if self._known else None
        if known is None or time.monotonic() - known[1] > MEMORY:
            return lowered
        lost = losses(request, known[0])
        return replace(
            lowered,
            request=with_effort(request, known[0]),
            losses=(*lowered.losses, *lost),
        )

    def learn(self, request: Request, caller: Caller, sent: str | None) -> None:
        """Note what the server took instead of this request's effort."""
        if len(self._known) >= MODELS:
            self._known.clear()
        self._known[self._key(request, caller)] = sent, time.monotonic()

    def _key(self, request: Request, caller: Caller) -> tuple[str, ...]:
        # Some models take an effort only where they have no tools.
        tools = "tools" if request.tools else ""
        return request.model, effort_of(request) or "", tools, caller.tenant


def losses(request: Request, sent: str | None) -> tuple[Loss, ...]:
    """The losses of a request that was sent with another effort, or none."""
    asked = request.reasoning
    if sent is not None:
        why = f"the model's server does not take it for this model; {sent} is asked for"
        return (Loss(FIELD, "emulated", why),)
    lost = Loss(FIELD, "dropped", "the model's server does not take it for this model")
    return (lost, SUMMARY) if asked is not None and asked.summary is not None else (lost,)
