"""What led to the calls that a request brings, found in the store where nobody carried it.

A worker remembers what it heard itself; this is for a server that was started since, and for the
others on the same store. Only requests that are looked up anyway come here. How reasoning is put
back, and what of it another model may not see, the vault knows.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from dragoman.core.item import CustomToolCall, FunctionCall
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.vault import Vault
from dragoman.stores.base import StoredAnswer, StoreError, call_digest

from .asked import Asked, Source


async def recalled(asked: Asked, source: Source, tenant: str) -> tuple[Request, tuple[Loss, ...]]:
    """The whole request with the thoughts that are missing in it, and what was left out because
    another model sealed it. The same request, where nothing is to be done."""
    whole = asked.whole
    # The thoughts of a chain are in it; only whose they are may matter.
    others = [answer for answer in asked.answers if answer.model != whole.model]
    answers = [*others, *await _found(asked, source, tenant)]
    if not answers:
        return whole, ()
    vault = Vault()
    for answer in answers:
        for choice in sorted(set(answer.response.choices)) or (0,):
            vault.keep(tenant, answer.model, answer.response.choice(choice))
    items, losses = vault.recall(tenant, whole.model, whole.items)
    return (whole if items is whole.items else replace(whole, items=items)), losses


async def _found(asked: Asked, source: Source, tenant: str) -> tuple[StoredAnswer, ...]:
    """The answers with reasoning that made the calls of a request, but for those of its chain."""
    near = {id(item) for answer in asked.answers for item in answer.response.output}
    calls = (i for i in asked.whole.items if isinstance(i, FunctionCall | CustomToolCall))
    marks = tuple(dict.fromkeys(call_digest(call) for call in calls if id(call) not in near))
    if marks:
        with suppress(StoreError):  # an answer without its past is better than none
            return await source.find_answers(tenant, marks)
    return ()
