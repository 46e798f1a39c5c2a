"""A short cut for the commonest requests and whole answers: plain text, with nothing beside it.

One typed decoder takes such a body apart in a single step, and whatever differs from these shapes
by a single field goes the long way. The short cut knows no error and no loss: it gives what the
long way gives, or None.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dragoman.core.item import JSON, Extra, Message, Text
from dragoman.core.request import Request, Sampling, StreamOptions
from dragoman.core.response import Response, Usage
from dragoman.core.turn import Turn
from dragoman.wire import body
from dragoman.wire.dialect import Dialect

from .extras import NAME

_Role = Literal["system", "developer", "user", "assistant"]
_Count = Annotated[int, Meta(ge=1)]
_Word = Annotated[str, Meta(min_length=1)]
_Share = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
_Heat = Annotated[int, Meta(ge=0, le=2)] | Annotated[float, Meta(ge=0, le=2)]
_Nothing = Annotated[list[None], Meta(max_length=0)]


# ---- requests ----------------------------------------------------------------------------


class _Spoken(Struct, forbid_unknown_fields=True):
    role: _Role
    content: str


class _Options(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None


class _Asked(Struct, forbid_unknown_fields=True):
    model: _Word
    messages: Annotated[list[_Spoken], Meta(min_length=1)]
    temperature: _Heat | None = None
    top_p: _Share | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stream: bool | None = None
    stream_options: _Options | None = None


_asked = msgspec.json.Decoder(_Asked).decode
_NO_SAMPLING = Sampling()


def decode_request(data: bytes) -> Request | None:
    """The request in a plain body."""
    try:
        asked = _asked(data)
    except body.BROKEN:
        return None
    old, new, options = asked.max_tokens, asked.max_completion_tokens, asked.stream_options
    if (old is not None and new is not None) or _answered_twice(asked.messages):
        return None
    heat, share = asked.temperature, asked.top_p
    return Request(
        model=asked.model,
        items=tuple([Message(each.role, each.content) for each in asked.messages]),
        sampling=(
            _NO_SAMPLING
            if heat is None and share is None
            else Sampling(temperature=heat, top_p=share)
        ),
        max_output_tokens=old if new is None else new,
        stream=asked.stream or False,
        stream_options=None if options is None else StreamOptions(options.include_usage),
    )


def encode_request(request: Request, dialect: Dialect) -> bytes | None:
    """The body that asks this, if it is plain; it loses nothing then."""
    sampling, options, extra = request.sampling, request.stream_options, request.extra
    plain = Request(
        model=request.model,
        items=request.items,
        instructions=request.instructions,
        sampling=Sampling(temperature=sampling.temperature, top_p=sampling.top_p),
        max_output_tokens=request.max_output_tokens,
        stream=request.stream,
        stream_options=None if options is None else StreamOptions(options.include_usage),
        extra=None if extra and any(extra.values()) else extra,
    )
    # One comparison, made by msgspec, finds every field that is not looked at below.
    if plain != request or dialect.drop or (options is not None and not request.stream):
        return None
    messages = _messages(request)
    if messages is None:
        return None
    said: dict[str, JSON] = {"model": request.model, "messages": messages}
    for name, value in (
        (dialect.max_tokens, request.max_output_tokens),
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
    ):
        if value is not None:
            said[name] = value
    if request.stream:
        said["stream"] = True
        counted = True if dialect.ask_usage else options and options.include_usage
        if counted is not None:
            said["stream_options"] = {"include_usage": counted}
    return body.dump(said)


def _messages(request: Request) -> list[JSON] | None:
    """The messages, if each is a text in a role and nothing else."""
    said: list[JSON] = []
    if request.instructions is not None:
        if not isinstance(request.instructions, str):
            return None
        said.append({"role": "system", "content": request.instructions})
    before = ""
    for item in request.items:
        if type(item) is not Message or type(item.content) is not str:
            return None
        if item.role == before == "assistant" or item != Message(item.role, item.content):
            return None
        before = item.role
        said.append({"role": item.role, "content": item.content})
    return said


def _answered_twice(spoken: list[_Spoken]) -> bool:
    """Whether two messages of the assistant stand together, which are one turn elsewhere."""
    before = ""
    for each in spoken:
        if each.role == before == "assistant":
            return True
        before = each.role
    return False


# ---- answers -----------------------------------------------------------------------------


class _Message(Struct, forbid_unknown_fields=True):
    content: _Word
    role: Literal["assistant"] | None = None
    refusal: Literal[""] | None = None
    annotations: _Nothing | None = None


class _Choice(Struct, forbid_unknown_fields=True):
    message: _Message
    finish_reason: Literal["stop", "length"]
    index: Literal[0] | None = None
    logprobs: None = None


class _PromptDetails(Struct, forbid_unknown_fields=True):
    cached_tokens: int | None = None
    audio_tokens: int | None = None


class _CompletionDetails(Struct, forbid_unknown_fields=True):
    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class _Usage(Struct, forbid_unknown_fields=True):
    prompt_tokens: int
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Answered(Struct, forbid_unknown_fields=True):
    choices: Annotated[list[_Choice], Meta(min_length=1, max_length=1)]
    id: str | None = None
    object: Literal["chat.completion"] | None = None
    created: int | None = None
    model: str | None = None
    usage: _Usage | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None


_answered = msgspec.json.Decoder(_Answered).decode
_NO_PROMPT_DETAILS, _NO_COMPLETION_DETAILS = _PromptDetails(), _CompletionDetails()


def read_answer(data: bytes, turn: Turn) -> bool:
    """Hear a plain answer into a turn; False if it must be heard the long way."""
    if turn.started or not turn.direct:
        return False
    try:
        answer = _answered(data)
    except body.BROKEN:
        return False
    (choice,) = answer.choices
    said = choice.message.content
    if said.lstrip().startswith("<"):  # perhaps a think tag
        return False
    extra: Extra = {}
    if answer.id is not None or answer.created is not None:
        extra["upstream"] = _given(("id", answer.id), ("created", answer.created))
    tier, stamp = answer.service_tier, answer.system_fingerprint
    if tier is not None or stamp is not None:
        extra[NAME] = _given(("service_tier", tier), ("system_fingerprint", stamp))
    turn.usage = None if answer.usage is None else _counted(answer.usage)
    turn.speak(said, choice.finish_reason, answer.model, extra)
    return True


def _given(*values: tuple[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in values if value is not None}


def _counted(usage: _Usage) -> Usage:
    asked = usage.prompt_tokens_details or _NO_PROMPT_DETAILS
    said = usage.completion_tokens_details or _NO_COMPLETION_DETAILS
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        cached_tokens=asked.cached_tokens,
        reasoning_tokens=said.reasoning_tokens,
        input_audio_tokens=asked.audio_tokens,
        output_audio_tokens=said.audio_tokens,
        accepted_prediction_tokens=said.accepted_prediction_tokens,
        rejected_prediction_tokens=said.rejected_prediction_tokens,
    )


def only_text(response: Response) -> str | None:
    """All that an answer says, where that is one text without anything beside it."""
    match response.output:
        case (Message(content=(Text() as text,), extra=None),) if not response.choices:
            return text.text if text == Text(text.text) else None
        case _:
            return None
