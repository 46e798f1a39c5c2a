"""Serves chat over a raw completion server: a format renders its prompts and parses its text.

Otherwise it is a remote engine: connections, failures and names are those of `remote`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import Delta, Event, Failed, Finished, Started
from dragoman.core.interfaces import ANYONE, Caller, Decoder, Model
from dragoman.core.item import JSON
from dragoman.core.loss import Loss
from dragoman.core.lower import UpstreamLimits, lower, with_summary
from dragoman.core.request import AllowedTools, Completion, NamedTool, Request, TextFormat
from dragoman.core.response import default_guarantee
from dragoman.core.turn import Turn
from dragoman.formats.format import Format, Parser, Setting, Stops
from dragoman.formats.prompt import Control, Prompt
from dragoman.wire.completions import COMPLETIONS
from dragoman.wire.protocol import Dialect
from dragoman.wire.registry import spell_losses

from .base import unsupported_fields
from .find_format import dated, find_format
from .remote import Remote
from .upstream import Upstream, UpstreamRequest

RAW = UpstreamLimits(
    custom_tools=False,
    namespaces=False,
    hosted_tools=False,
    allowed_tools=False,
    named_tool=False,
    images=False,
    audio=False,
    files=False,
)
"""Features that a prompt can carry."""

_NOT_ENFORCED = "the prompt asks for it; a completion server does not enforce it"
_BROKEN = Loss(
    "items[*].content",
    "emulated",
    "control tokens in its text are broken by a zero-width space: the server finds them in prompts",
)
_NO_TOKENS = "the answer is parsed as text, without its tokens"


def remote(
    base_url: str,
    *,
    format: Format | str | None = None,
    date: str | None = None,
    **options: Any,
) -> Remote:
    """The engine for a server: with a token format over completions, and the `date` in its
    prompts (see `dated`), or over one of its protocols.

    Raises ValueError for an invalid address, name or date, and a date without a format.
    """
    if format is not None:
        return CompletionServer(base_url, format=format, setting=dated(date), **options)
    if date is not None:
        raise ValueError("A date is for prompts, so it needs a format.")
    return Remote(base_url, **options)


class _RawUpstream(Upstream):
    """A server with a fixed wire, and text input alone."""

    def __init__(self, base_url: str, **options: Any) -> None:
        super().__init__(base_url, **options)
        self.wires = (COMPLETIONS.name,) if self.recognised else ()

    async def find_out(self, caller: Caller) -> None:
        """Recognise the server by its listing, once."""
        with suppress(FaultError):  # the request itself will report the error
            await self.models(caller)
        self.wires = (COMPLETIONS.name,)

    def limits(self, model: str) -> UpstreamLimits:
        return RAW


class CompletionServer(Remote):
    """A server of raw completions, used through a token format.

    `format` is one, the name of one, or the folder of a model with its chat template;
    `setting` is what prompts contain beyond the request, or a function that returns it; by
    default today's date, where the format has a place for it. The other options are those of
    `Remote`. Raises ValueError for a name or a folder without a format.
    """

    _kind = _RawUpstream

    def __init__(
        self,
        base_url: str,
        *,
        format: Format | str,
        setting: Setting | Callable[[], Setting] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(base_url, **options | {"wire": "auto"})
        self.format = find_format(format) if isinstance(format, str) else format
        self._slow = getattr(self.format, "slow", False)
        self._setting = dated() if setting is None else setting

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The server's own listing, with this engine's capabilities. Raises FaultError for none."""
        known: dict[str, JSON] = {"format": self.format.name, "guarantees": ["best-effort"]}
        return tuple(
            replace(model, extra={**extra, "models": {**extra.get("models", {}), **known}})
            for model in await super().models(caller)
            for extra in (model.extra or {},)
        )

    def _prepare(self, request: Request, caller: Caller) -> UpstreamRequest:
        """Render the request, encode the prompt, and put a parser behind the wire's decoder."""
        if isinstance(request, Completion):
            return super()._prepare(request, caller)
        lowered = lower(request, RAW)
        asked = lowered.request
        setting = self._setting() if callable(self._setting) else self._setting
        prompt = self.format.render(asked, setting)
        text = prompt.text_for(self.format.controls)
        raw = _raw(asked, prompt, text, self.format.stops(asked), self.profile.dialect)
        prepared = super()._prepare(raw, caller)
        found = (*lowered.losses, *lowered.client_losses(prompt.losses))
        found += (_BROKEN,) if text != prompt.text else ()
        known = {loss.field for loss in found}
        found += tuple(loss for loss in _lost(asked) if loss.field not in known)
        prepared.lowered = replace(lowered, restore=with_summary(request, lowered.restore))
        prepared.guarantee = default_guarantee(request)
        prepared.turn = Turn(
            prepared.raw_turn.id,
            prepared.raw_turn.created_at,
            request.model,
            losses=(*spell_losses(found, request, caller.wire), *prepared.raw_turn.losses),
            think=None,
        )
        parser = self.format.parser(asked, prepared.turn)
        own = asked.sampling.stop or ()
        prepared.decoder = Parsed(prepared.decoder, parser, prepared.turn, own)
        return prepared


class Parsed:
    """Decodes raw text with a parser around the wire's own decoder. `stops` are the client's: the
    server was given the format's, too."""

    def __init__(self, raw: Decoder, parser: Parser, turn: Turn, stops: Sequence[str]) -> None:
        self._stops = stops
        self._raw = raw
        self._parser = parser
        self._turn = turn

    @property
    def ended(self) -> bool:
        """Whether the server has ended the answer."""
        return self._raw.ended

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        return self._parsed(self._raw.feed(data))

    def close(self) -> list[Event]:
        """The events at the end of the bytes."""
        return self._parsed(self._raw.close())

    def _parsed(self, events: list[Event]) -> list[Event]:
        turn = self._turn
        for event in events:
            match event:
                case Delta(kind="text"):
                    self._parser.write(event.data)
                case Started():
                    own = (event.extra or {}).get("upstream")
                    turn.header(event.model, {"upstream": own} if own else None)
                case Finished():
                    turn.usage = event.usage
                    if event.stop_sequence in self._stops:
                        turn.stop_sequence = event.stop_sequence
                    self._parser.close(event.reasons[0])
                case Failed():
                    turn.usage = event.usage
                    turn.fail(event.fault)
        return turn.take()


def _raw(request: Request, prompt: Prompt, text: str, stops: Stops, dialect: Dialect) -> Completion:
    """The prompt as a raw request, with the sampling and without the rendered fields."""
    sampling = request.sampling
    stop = dict.fromkeys((*(sampling.stop or ()), *stops.texts, *stops.controls))
    options: dict[str, JSON] = dict(dialect.prompt_options)
    if dialect.shown_controls is not None:
        written = (piece.text for piece in prompt.pieces if isinstance(piece, Control))
        options[dialect.shown_controls] = list(dict.fromkeys((*written, *stops.controls)))
    return Completion(
        model=request.model,
        prompts=(text,),
        sampling=replace(sampling, stop=tuple(stop) or None, logprobs=None, top_logprobs=None),
        max_output_tokens=request.max_output_tokens,
        stream=request.stream,
        user=request.user,
        extra={COMPLETIONS.name: options} if options else None,
    )


def _lost(request: Request) -> Iterator[Loss]:
    """The losses: fields that a prompt cannot carry, or a completion server cannot enforce."""
    sampling, choice = request.sampling, request.tool_choice
    match choice:
        case "required" | NamedTool() | AllowedTools(mode="required"):
            yield Loss("tool_choice", "dropped", _NOT_ENFORCED)
    if not isinstance(request.format, TextFormat | None):
        yield Loss("format", "dropped", _NOT_ENFORCED)
    if request.parallel_tool_calls is False:
        yield Loss("parallel_tool_calls", "dropped", _NOT_ENFORCED)
    if sampling.logprobs or sampling.top_logprobs:
        yield Loss("logprobs", "dropped", _NO_TOKENS)
    yield from unsupported_fields(request)
