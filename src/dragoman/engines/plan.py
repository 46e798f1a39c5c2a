"""A request made ready for a server: the body, and whatever hears the answer to it.

Here a wire is chosen, the request is made fit for the server, and what was rewritten for it is put
back into the events that come. Nothing is sent here, and nothing is read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.completion import Completion
from dragoman.core.error import FaultError
from dragoman.core.event import Event, Failed, Finished
from dragoman.core.guarantee import Guarantee, unsure
from dragoman.core.interfaces import Caller, Decoder
from dragoman.core.loss import Loss
from dragoman.core.lower import Lowered, lower
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.core.undo import summarised, undone
from dragoman.net.error import NetError, NetTimeoutError
from dragoman.net.http import HeaderFields
from dragoman.wire.chat import CHAT
from dragoman.wire.codec import Wire
from dragoman.wire.completions import COMPLETIONS
from dragoman.wire.loss import worded
from dragoman.wire.responses import RESPONSES

from . import failure
from .mint import now
from .turns import new_turn
from .upstream import Upstream

WIRES = {wire.name: wire for wire in (CHAT, RESPONSES, COMPLETIONS)}
ENDS = (Finished, Failed)

_log = logging.getLogger("dragoman")


class Plan(Struct):
    """A request made ready for one wire.

    `heard` is the turn that holds what the server said, where that is parsed once more; else it is
    `turn` itself.
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
    heard: Turn
    guarantee: Guarantee | None

    @property
    def url(self) -> str:
        """Where it is sent."""
        return self.upstream.url + self.wire.path

    def given(self, batch: list[Event]) -> list[Event]:
        """A batch as the caller gets it: the end stamped, the rewriting of the request undone."""
        if batch and isinstance(end := batch[-1], ENDS):  # it is the last of all
            batch[-1] = self._stamped(end)
        return undone(self.lowered.events, batch)

    def broken(self, error: NetError) -> list[Event]:
        """The connection broke: the end if the answer had ended, else a fault that says how."""
        heard = self.heard
        if not heard.finishing and (not heard.spoken or isinstance(error, NetTimeoutError)):
            heard.fail(failure.broken(error))
        return [*self.decoder.close(), *self.turn.take()]

    def _stamped(self, event: Finished | Failed) -> Finished | Failed:
        """The end, with the time, with a word on demands that the server alone knows of, and with
        one of warning where the profile has one."""
        if isinstance(event, Failed):
            fault = failure.without(event.fault, self.upstream.key_for(self.caller))
            return replace(event, completed_at=event.completed_at or now(), fault=fault)
        event = replace(
            event,
            completed_at=now() if event.completed_at is None else event.completed_at,
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
        return replace(event, losses=(*event.losses, Loss("input", "told", why)))


def make_plan(upstream: Upstream, request: Request, caller: Caller) -> Plan:
    """Encode for the wire the caller speaks, or else for the first that can say it all. Raises
    FaultError where none can."""
    headers = upstream.headers(caller)
    profile = upstream.profile
    names: Sequence[str] = upstream.wires
    if caller.wire is not None and len(names) > 1 and len(profile.wires) > 1:
        names = sorted(names, key=lambda name: name != caller.wire)
    raw = isinstance(request, Completion)
    if raw:
        names = [COMPLETIONS.name]
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
            refused = refused or error
            continue
        lost = (*worded(lowered.losses, request, caller.wire), *lowered.placed(losses))
        if wire is not RESPONSES:  # the only wire that has summaries of reasoning
            lowered = replace(lowered, events=summarised(request, lowered.events))
        turn = new_turn(profile, asked, lost, raw=raw)
        return Plan(
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
            unsure(request),
        )
    raise refused or FaultError(failure.unreachable(f"{upstream.url} speaks no wire we know"))
