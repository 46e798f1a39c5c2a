"""Says an answer as a stream of Responses events, or whole.

The order is the protocol's: created, in progress, one item after the other, one terminal event.
The sequence numbers are this encoder's alone, so the same events always give the same bytes.
What an event is called is known to `wording`, what a response looks like to `snapshot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, Started
from dragoman.core.fold import Fold
from dragoman.core.item import JSON
from dragoman.core.order import FirstChoice, Serial
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.wire import body, error, sse
from dragoman.wire.dialect import STANDARD, Dialect

from . import snapshot
from .seals import hides, shown, without
from .wording import Wording

_BLANK_LINE = 2
"""The bytes that end a frame."""


class Encoder:
    """Feed it the events of one answer; it gives the bytes of each.

    >>> encoder = Encoder(Request(model="m"))
    >>> encoder.feed(Started("1", 0, "m")).splitlines()[0]
    b'event: response.created'
    """

    def __init__(self, request: Request, dialect: Dialect = STANDARD) -> None:
        self._repeated = snapshot.echo(request)
        self._hides = hides(request)
        self._nested_error = dialect.error_event == "nested"
        self._wording = Wording(dialect.reasoning_events)
        self._fold = Fold()
        self._serial = Serial()
        self._first: FirstChoice | None = None  # needed only where there are alternatives
        self._items = 0
        self._number = 0  # of the next event
        self._beat: dict[str, JSON] | None = None  # the response, while it is in progress
        self._over = False
        # The frame of the last delta, as the next one is most likely of the same kind: what
        # stands before its number, between number and data, and after the data.
        self._key: tuple[int, str, int] | None = None
        self._before = self._after = b""

    def feed(self, event: Event) -> bytes:
        """The bytes for one event; empty where it has no word here, or must wait its turn."""
        if isinstance(event, Delta) and self._fits(event) and self._first is None:
            self._fold.feed(event)
            return self._next_delta(event.data)
        only = self._of_the_first(event)
        if only is None or self._over:
            return b""
        event = without(only) if self._hides else only
        self._fold.feed(event)
        return b"".join([self._say(ready) for ready in self._serial.feed(event)])

    def feed_all(self, events: Sequence[Event]) -> bytes:
        """The bytes for several events. Deltas of one kind in a row, as most are, are one step."""
        said: list[bytes] = []
        run: list[Delta] = []
        for event in events:
            if isinstance(event, Delta) and self._fits(event) and self._first is None:
                run.append(event)
                continue
            if run:
                said.append(self._deltas(run))
                run = []
            said.append(self.feed(event))
        if run:
            said.append(self._deltas(run))
        return b"".join(said)

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment, or `response.in_progress` once more; empty unless an answer is being given."""
        if self._beat is None:
            return b""
        return self._in_progress() if data else sse.comment("still working")

    def _of_the_first(self, event: Event) -> Event | None:
        """The event, unless it belongs to an alternative: this wire has no place for one."""
        if isinstance(event, ItemAdded):
            if event.choice and self._first is None:
                self._first = FirstChoice(self._items)
            self._items += 1
        return event if self._first is None else self._first.feed(event)

    # ---- what is said --------------------------------------------------------------------

    def _say(self, event: Event) -> bytes:
        match event:
            case Delta():
                return self._delta(event)
            case Started():
                self._wording.response_id = event.id
                self._beat = self._snapshot()
                return self._opening(self._beat) + self._in_progress()
            case Finished():
                # A cancelled answer has no event of its own: it is one that stopped early.
                status = "incomplete" if event.status == "cancelled" else event.status
                return self._terminal(f"response.{status}") + sse.DONE
            case Failed():
                # Where the answer broke off, nobody said that it was done.
                done = b"" if event.fault.code == "upstream_cut" else sse.DONE
                begun = self._beat is not None
                return (self._terminal("response.failed") if begun else self._error(event)) + done
            case _:
                return b"".join([self._frame(*said) for said in self._wording.say(event)])

    def _opening(self, begun: dict[str, JSON]) -> bytes:
        """The first events; a run in the background begins as one that waits its turn."""
        if not self._repeated["background"]:
            return self._frame("response.created", begun)
        queued = {"response": {**begun["response"], "status": "queued"}}
        return self._frame("response.created", queued) + self._frame("response.queued", queued)

    def _in_progress(self) -> bytes:
        return self._frame("response.in_progress", self._beat or {})

    def _terminal(self, name: str) -> bytes:
        self._beat, self._over = None, True
        return self._frame(name, self._snapshot())

    def _snapshot(self) -> dict[str, JSON]:
        return {"response": snapshot.render(self._fold.response, self._repeated)}

    def _error(self, event: Failed) -> bytes:
        """A failure of an answer that never began, and so has no response to fail."""
        self._over = True
        told = error.error_object(event.fault)
        if self._nested_error:
            return self._frame("error", {"error": told})
        return self._frame("error", {name: told[name] for name in ("code", "message", "param")})

    # ---- framing -------------------------------------------------------------------------

    def _frame(self, name: str, fields: dict[str, JSON]) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse.frame(body.dump({"type": name, "sequence_number": number, **fields}), name)

    def _fits(self, event: Delta) -> bool:
        """Whether the frame of the last delta is the frame of this one."""
        return (event.index, event.kind, event.part_index) == self._key and not event.tokens

    def _next_delta(self, data: JSON) -> bytes:
        number, self._number = self._number, self._number + 1
        return b'%b%d,"delta":%b%b' % (self._before, number, body.dump(data), self._after)

    def _deltas(self, run: list[Delta]) -> bytes:
        """The frames of deltas that all fit the last one."""
        self._fold.take_run(run)
        said = body.dump_all([event.data for event in run]).decode().split("\n")
        number, before, after = self._number, self._before.decode(), self._after.decode()
        self._number += len(run)
        # As text, which is put together faster than bytes, and encoded once.
        return "".join(
            [f'{before}{n},"delta":{each}{after}' for n, each in enumerate(said, number)]
        ).encode()

    def _delta(self, event: Delta) -> bytes:
        """Say a delta, and remember its frame for those that follow."""
        for name, fields in self._wording.say(event):
            if event.tokens or event.kind == "annotation":
                return self._frame(name, fields)
            del fields["delta"]
            listed = fields.pop("logprobs", None) is not None
            opening = body.dump({"type": name, **fields})[:-1] + b',"sequence_number":'
            self._before = sse.frame(opening, name)[:-_BLANK_LINE]
            self._after = (b',"logprobs":[]' if listed else b"") + b"}\n\n"
            self._key = (event.index, event.kind, event.part_index)
            return self._next_delta(event.data)
        return b""


def encode_response(response: Response, request: Request, dialect: Dialect = STANDARD) -> bytes:
    """The answer as one JSON object: the very response that a stream's last event carries."""
    if response.choices:  # this wire has a place for one alternative
        first = response.choice(0)
        response = replace(response, output=first, choices=(), reasons=response.reasons[:1])
    if hides(request):
        response = replace(response, output=shown(response.output))
    return body.dump(snapshot.render(response, snapshot.echo(request)))
