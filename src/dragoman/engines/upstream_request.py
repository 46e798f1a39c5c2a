"""A request prepared for a server: wire, body, headers, and the decoder for its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import Event, Failed, Finished
from dragoman.core.interfaces import Caller, Decoder
from dragoman.core.loss import Loss
from dragoman.core.lower import Lowered, lower, with_summary
from dragoman.core.request import Completion, Request
from dragoman.core.response import Guarantee, default_guarantee
from dragoman.core.turn import Turn
from dragoman.formats.markup.text_tool_calls import TextToolCallTurn
from dragoman.net.client import HeaderFields
from dragoman.net.errors import NetError, NetTimeoutError
from dragoman.wire.protocol import Wire
from dragoman.wire.registry import WIRES, spell_fault, spell_losses

from . import errors
from .base import ENDS, new_id
from .profiles import Profile
from .upstream import Upstream


def new_turn(
    profile: Profile, request: Request, losses: tuple[Loss, ...], *, raw: bool = False
) -> Turn:
    """A turn for the answer to this request, as this kind of server answers.

    `raw` says that the text is wanted as it comes, markup and all.
    """
    id, at, model = new_id(), int(time.time()), request.model
    if raw or profile.markup is None:
        return Turn(id, at, model, losses=losses, think=None if raw else profile.think)
    return TextToolCallTurn(id, at, model, markup=profile.markup, request=request, losses=losses)


_log = logging.getLogger("dragoman")


class UpstreamRequest(Struct):
    """A request made ready for one wire.

    `raw_turn` holds what the server said, where that is parsed once more; else it is `turn` itself.
    """

    upstream: Upstream
    caller: Caller
    wire: Wire
    headers: HeaderFields
    body: bytes
    lowered: Lowered
    turn: Turn
    decoder: Decoder
    stream: bool
    raw_turn: Turn
    guarantee: Guarantee | None

    def restored(self, batch: list[Event]) -> list[Event]:
        """A batch as the caller gets it: the end stamped, the rewriting of the request undone."""
        if batch and isinstance(end := batch[-1], ENDS):  # it is the last of all
            batch[-1] = self._stamped(end)
        restore = self.lowered.restore
        return batch if restore is None else restore(batch)

    def broken(self, error: NetError) -> list[Event]:
        """The connection broke: the end if the answer had ended, else a fault that says how."""
        turn = self.raw_turn
        if not turn.all_finished and (not turn.has_output or isinstance(error, NetTimeoutError)):
            turn.fail(errors.broken(error))
        return [*self.decoder.close(), *self.turn.take()]

    def _stamped(self, event: Finished | Failed) -> Finished | Failed:
        """The end, with the time, with a word on demands that the server alone knows of, and with
        one of warning where the profile has one."""
        if isinstance(event, Failed):
            fault = errors.without(event.fault, self.upstream.key_for(self.caller))
            return replace(event, completed_at=event.completed_at or int(time.time()), fault=fault)
        event = replace(
            event,
            completed_at=event.completed_at or int(time.time()),
            guarantee=event.guarantee if self.guarantee is None else self.guarantee,
        )
        limit, usage = self.upstream.profile.silent_context, event.usage
        if limit is None or usage is None:
            return event
        if (usage.input_tokens or 0) + (usage.output_tokens or 0) != limit:
            return event
        why = (
            f"prompt and answer together are exactly {limit} tokens: this server cuts longer "
            "prompts without saying so; raise its context size"
        )
        _log.warning("%s: %s", self.upstream.url, why)
        return replace(event, losses=(*event.losses, Loss("input", "dropped", why)))


def prepare(upstream: Upstream, request: Request, caller: Caller) -> UpstreamRequest:
    """Encode for the wire the caller speaks, or else for the first that can say it all. Raises
    FaultError where none can."""
    headers = upstream.headers(caller)
    profile = upstream.profile
    names: Sequence[str] = upstream.wires
    if caller.wire is not None and len(names) > 1 and len(profile.wires) > 1:
        names = sorted(names, key=lambda name: name != caller.wire)
    raw = isinstance(request, Completion)
    if raw:
        names = [wire.name for wire in WIRES.values() if not wire.conversation]
    lowered = lower(request, upstream.limits(request.model))
    asked = lowered.request
    if profile.only_streams and not asked.stream:
        asked = replace(asked, stream=True)
    refused: FaultError | None = None
    for name in names:
        wire = WIRES[name]
        dialect = profile.dialect
        if caller.wire is not None and caller.wire != name:
            # Another protocol's way to say a text is a list; many servers take strings only.
            dialect = replace(dialect, content_parts=False)
        try:
            said, losses = wire.encode_request(asked, dialect)
        except FaultError as error:
            fault = spell_fault(lowered.client_fault(error.fault), asked, caller.wire)
            refused = refused or FaultError(fault)
            continue
        if lowered.losses or losses:
            losses = (
                *spell_losses(lowered.losses, request, caller.wire),
                *spell_losses(lowered.client_losses(losses), asked, caller.wire),
            )
        if (
            request.reasoning is not None
            and wire.losses.request.action("ReasoningOptions.summary") != "carried"
        ):
            lowered = replace(lowered, restore=with_summary(request, lowered.restore))
        turn = new_turn(profile, asked, losses, raw=raw)
        return UpstreamRequest(
            upstream,
            caller,
            wire,
            headers,
            said,
            lowered,
            turn,
            wire.decoder(turn),
            request.stream,
            turn,
            default_guarantee(request),
        )
    raise refused or FaultError(errors.unreachable(f"{upstream.url} speaks no wire we know"))
