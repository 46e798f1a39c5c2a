"""What a request has that no prompt has a place for: fields for servers that know of conversations.

Each is named as a loss, in the words of clients. What a prompt does say is the business of formats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dragoman.core.error import FaultError, unsupported
from dragoman.core.loss import Loss
from dragoman.core.request import Request

SUMMARISED = "the reasoning itself is given as its summary too"
NO_ROOM = "a prompt has no place for it"
_NO_PLACE = {
    "audio": "audio",
    "max_tool_calls": "max_tool_calls",
    "moderation": "moderation",
    "prediction": "prediction",
    "prompt_cache_key": "prompt_cache_key",
    "prompt_cache_options": "prompt_cache_options",
    "prompt_cache_retention": "prompt_cache_retention",
    "safety_identifier": "safety_identifier",
    "service_tier": "service_tier",
    "verbosity": "verbosity",
    "web_search": "web_search_options",
}
"""The fields, and what clients call them."""

_RENDERED = frozenset(("chat_template_kwargs", "continue_final_message", "documents"))
"""What prompts are rendered with, though no OpenAI protocol has a field for it."""


def unsaid(request: Request, heard: Collection[str] = ()) -> Iterator[Loss]:
    """A loss for each field that is set and goes nowhere. `heard` are fields of one wire alone that
    go somewhere here.

    Raises FaultError for a stored prompt: without it the answer would be to another question.

    >>> [loss.field for loss in unsaid(Request(model="m", modalities=("text", "audio")))]
    ['modalities']
    """
    if request.prompt is not None:
        raise FaultError(unsupported("no prompts are kept here", "prompt"))
    if any(modality != "text" for modality in request.modalities or ()):
        yield Loss("modalities", "told", "a prompt is gone on from in text")
    if request.reasoning is not None and request.reasoning.summary is not None:
        yield Loss("reasoning.summary", "emulated", SUMMARISED)
    for name, said in _NO_PLACE.items():
        if getattr(request, name) is not None:
            yield Loss(said, "told", NO_ROOM)
    for fields in (request.extra or {}).values():
        for name in fields:
            if name not in _RENDERED and name not in heard:
                yield Loss(name, "told", NO_ROOM)
