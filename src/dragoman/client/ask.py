"""What a person writes, made into a request: a text or items, and settings by their names.

The settings are those of `core.request`, flat: what belongs to sampling is put there. It fills in
no value that was not given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict, TypeVar

import msgspec
from msgspec.structs import fields, replace

from dragoman.core.error import FaultError
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

Input = str | Item | dict[str, JSON] | Sequence[Item | dict[str, JSON]] | Request
"""What can be asked: a text of the user's, one item, a conversation, or a whole request. An item
may be a dict, as the official SDK has it for `responses.create(input=…)`."""


_T = TypeVar("_T")


class Settings(TypedDict, total=False):
    """What may be said about the answer that is wanted; nothing left out is filled in.

    `reasoning` may be just the effort, `stop` a single string. The rest is as in `Request` and
    `Sampling`.
    """

    model: str
    instructions: str
    tools: Sequence[Tool | dict[str, JSON]]
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
_TYPES = {field.name: field.type for struct in (Sampling, Request) for field in fields(struct)}


def ask(said: Input, settings: Mapping[str, JSON], *, stream: bool) -> Request:
    """The request for what was said; `stream` where it does not say itself.

    Raises TypeError for a setting there is none of, for a value of the wrong type, and for what is
    no item.

    >>> ask([{"role": "user", "content": "Hi"}], {}, stream=True).items[0].text
    'Hi'
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


def _begun(
    said: str | Item | dict[str, JSON] | Sequence[Item | dict[str, JSON]], stream: bool
) -> Request:
    items: tuple[Item, ...]
    match said:
        case str():
            items = (Message("user", said),)
        case list() | tuple():
            items = tuple(_item(each, f"input[{place}]") for place, each in enumerate(said))
        case _:
            items = (_item(said, "input"),)
    return Request(model="", items=items, stream=stream)


def _item(said: object, place: str) -> Item:
    if isinstance(said, Item):
        return said
    if not isinstance(said, dict):
        raise TypeError(f"{place}: is of type {type(said).__name__}, and must be an item or a dict")
    from dragoman.wire.responses.items import decode  # doubles the time `import dragoman` takes

    return _decoded(decode, said, place)


def _decoded(decode: Callable[[dict[str, JSON], str], _T], said: dict[str, JSON], place: str) -> _T:
    try:
        return decode(said, place)
    except FaultError as error:
        raise TypeError(error.fault.message) from None


def _shaped(name: str, value: JSON) -> JSON:
    """A value in the shape the core has for it. Raises TypeError where it has none."""
    if name == "reasoning" and isinstance(value, str):
        return ReasoningOptions(value)
    if name == "stop" and isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        value = tuple(value)
    if name == "tools" and isinstance(value, tuple):
        value = tuple(_tool(each, f"tools[{place}]") for place, each in enumerate(value))
    try:
        msgspec.convert(value, _TYPES[name])
    except msgspec.ValidationError as error:
        raise TypeError(f"{name}: {error}") from None
    return value


def _tool(said: JSON, place: str) -> JSON:
    if not isinstance(said, dict):
        return said
    from dragoman.wire.responses.tools import decode

    return _decoded(decode, said, place)
