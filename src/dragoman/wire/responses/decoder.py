"""Hears an answer in the Responses protocol, streamed or whole, into a turn.

Only what arrives is believed: an output that comes only at the end, an end that never comes, an
error in place of an answer. What a server says beside the protocol is kept as it is, for a client
of the same wire. Events about single items are heard by `families`.
"""

from __future__ import annotations

from dragoman.core.error import Fault
from dragoman.core.event import Event
from dragoman.core.item import JSON
from dragoman.core.turn import CUT, EMPTY, NAMELESS, Turn
from dragoman.wire import body, error, sse

from . import mend, snapshot, usage
from .extras import WIRE, dense
from .families import HEAR, Told, beside
from .hearing import Hearing
from .incoming import Incoming

_BEGINNINGS = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDS = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
    "response.failed": "failed",
}
"""Terminal events, and the status of a response that does not say its own."""

_REASONS = {theirs: ours for ours, theirs in snapshot.REASONS.items()}
_TIERS = frozenset({"auto", "default"})
"""Service tiers that tell a client nothing."""

_SILENT = Fault("upstream_error", "The model's server failed and did not say why.", "upstream")


class Decoder:
    """Hears the bytes of one answer.

    >>> decoder = Decoder(Turn("1", 0, "m"))
    >>> (event,) = decoder.feed(b'data: {"type": "response.created", "response": {}}\\n\\n')
    >>> event.id, event.model
    ('1', 'm')
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._incoming = Incoming()
        self._hearing = Hearing(turn)
        self._known: Told = {}  # unknown fields of the response that were told already
        self._fault: Fault | None = None  # told by an event of its own, before the response fails
        self._done = False  # `[DONE]` was said

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        if self._turn.over:
            return []
        try:
            for name, said in self._incoming.feed(data):
                self._event(name, said)
        except ValueError as problem:
            message = f"The model's server sent what cannot be read: {problem}."
            self._turn.fail(Fault("upstream_error", message, "upstream"))
        return self._turn.take()

    def close(self) -> list[Event]:
        """No more bytes will come: what was not ended is ended now, as what it is."""
        if not self._turn.over:
            self._close()
        return self._turn.take()

    def _close(self) -> None:
        for name, said in self._incoming.close():
            self._event(name, said)
        whole = self._incoming.whole
        if whole is not None and not self._turn.over:
            self._whole(whole)
        if self._fault is not None:
            self._turn.fail(self._fault)
        elif self._done and self._turn.spoken:
            self._complete("completed", {})
        self._turn.fail(CUT)

    @property
    def ended(self) -> bool:
        """Whether the wire said that the answer is over."""
        return self._turn.over or self._done or self._fault is not None

    # ---- events --------------------------------------------------------------------------

    def _event(self, name: str, data: bytes) -> None:
        if data == sse.END:
            self._done = True
            return
        try:
            told = body.load(data)
        except ValueError:
            self._mend(name, data)
            return
        if isinstance(told, dict) and not self._turn.over:
            kind = told.get("type")
            self._told(kind if isinstance(kind, str) else name, told)

    def _mend(self, name: str, data: bytes) -> None:
        """Several events with no blank line between are taken apart. Anything else is passed
        over: what it said comes again when its part, its item or the answer is done."""
        lines = data.split(b"\n")
        if len(lines) > 1:
            for line in lines:
                self._event(name, line)

    def _told(self, name: str, told: Told) -> None:
        hear = HEAR.get(name)
        if hear is not None:
            hear(self._hearing, told)
        elif name in _BEGINNINGS:
            self._header(_dict(told.get("response")))
        elif name in _ENDS:
            self._end(_dict(told.get("response")), _ENDS[name])
        elif name == "error" or (not name and told.get("error")):
            said = {n: v for n, v in told.items() if n not in ("type", "sequence_number")}
            self._fault = error.describe(said) or CUT
        elif name:
            beside(self._hearing, name, told)
        elif told.get("object") == "response":
            self._end(told, "failed")

    def _whole(self, data: bytes) -> None:
        """An answer that is no stream."""
        try:
            value = body.load(data) if data else {}
        except ValueError:
            value = data.decode("utf-8", "replace")
        if isinstance(value, dict) and isinstance(value.get("output"), list):
            self._end(value, "completed")
        elif value:
            self._turn.fail(error.describe(value) or error.decode(200, data))
        else:
            self._turn.fail(EMPTY)

    # ---- the response --------------------------------------------------------------------

    def _header(self, response: Told) -> None:
        """What a snapshot says of the whole: who answers, what was counted, what is unknown."""
        said = {n: v for n, v in dense(response).items() if n not in snapshot.FIELDS}
        if isinstance(tier := response.get("service_tier"), str) and tier not in _TIERS:
            said["service_tier"] = tier
        news = {name: v for name, v in said.items() if self._known.get(name) != v}
        self._known |= news
        extra = {WIRE: news} if news else {}
        own = dense({name: response.get(name) for name in ("id", "created_at")})
        if own and not self._turn.started:
            extra["upstream"] = own
        model = response.get("model")
        self._turn.header(model if isinstance(model, str) else None, extra)
        self._turn.usage = usage.decode(response.get("usage")) or self._turn.usage

    def _end(self, response: Told, status: str) -> None:
        """The response is over, in the way it says itself or else as the event is called."""
        said = response.get("status")
        status = said if isinstance(said, str) else status
        failed = status in ("failed", "in_progress", "queued")
        self._header(response)
        output = response.get("output")
        items = output if isinstance(output, list) else []
        self._hearing.reconcile([mend.item(v) for v in items if isinstance(v, dict)], failed=failed)
        if failed:
            said = response.get("error") and error.describe({"error": response["error"]})
            self._turn.fail(said or self._fault or (_SILENT if status == "failed" else CUT))
        else:
            self._complete(status, response)

    def _complete(self, status: str, response: Told) -> None:
        if self._hearing.nameless:
            self._turn.fail(NAMELESS)
        elif status == "incomplete":
            reason = _dict(response.get("incomplete_details")).get("reason")
            word = reason if isinstance(reason, str) else "max_output_tokens"
            self._turn.complete("incomplete", (_REASONS.get(word, word),))
        elif status == "cancelled":
            self._turn.complete("cancelled", ("stop",))
        else:
            reasons = ("tool_calls" if self._hearing.called else "stop",)
            self._turn.complete("completed", reasons, body.whole(response.get("completed_at")))


def _dict(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}
