"""What a person writes, made into a request: a text or items, and settings by their names.

The settings are those of `core.request`, flat: what belongs to sampling is put there. It fills in
no value that was not given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.item import JSON, Item, Message
from dragoman.core.request import (
    AudioOutput,
    OutputFormat,
    ReasoningOptions,
    Request,
    Sampling,
    Tool,
    ToolChoice,
)

Input = str | Item | Sequence[Item] | Request
"""What can be asked: a text of the user's, one item, a conversation, or a whole request."""


class Settings(TypedDict, total=False):
    """What may be said about the answer that is wanted; nothing left out is filled in.

    `reasoning` may be just the effort, `stop` a single string. The rest is as in `Request` and
    `Sampling`.
    """

    model: str
    instructions: str
    tools: Sequence[Tool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    max_tool_calls: int
    max_output_tokens: int
    format: OutputFormat
    verbosity: str
    reasoning: ReasoningOptions | str
    modalities: Sequence[str]
    audio: AudioOutput
    metadata: dict[str, JSON]
    user: str
    safety_identifier: str
    prompt_cache_key: str
    service_tier: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    seed: int
    stop: str | Sequence[str]
    logit_bias: dict[str, float]
    logprobs: bool
    top_logprobs: int
    n: int


_SAMPLING = frozenset(Sampling.__struct_fields__)
_REQUEST = frozenset(Request.__struct_fields__) - {"items", "sampling"}


def ask(said: Input, settings: Mapping[str, JSON], *, stream: bool) -> Request:
    """The request for what was said; `stream` where it does not say itself.

    Raises TypeError for a setting there is none of.

    >>> ask("Hi", {"model": "m", "temperature": 0}, stream=True).sampling.temperature
    0
    """
    unknown = [name for name in settings if name not in _SAMPLING | _REQUEST]
    if unknown:
        raise TypeError(f"there is no setting {unknown[0]!r}")
    values = {name: _shaped(name, value) for name, value in settings.items()}
    request = said if isinstance(said, Request) else _begun(said, stream)
    if not values:
        return request
    sampling = {name: values.pop(name) for name in list(values) if name in _SAMPLING}
    if sampling:
        values["sampling"] = replace(request.sampling, **sampling)
    return replace(request, **values)


def _begun(said: str | Item | Sequence[Item], stream: bool) -> Request:
    if isinstance(said, str):
        items: tuple[Item, ...] = (Message("user", said),)
    else:
        items = (said,) if isinstance(said, Struct) else tuple(said)
    return Request(model="", items=items, stream=stream)


def _shaped(name: str, value: JSON) -> JSON:
    """A value in the shape the core has for it."""
    if name == "reasoning" and isinstance(value, str):
        return ReasoningOptions(value)
    if name == "stop" and isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value
