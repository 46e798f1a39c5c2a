"""An engine behind an address: any OpenAI-compatible server, over the wire it speaks best."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import closing
from enum import IntEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING
from weakref import finalize

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import (
    ANYONE,
    Caller,
    Capabilities,
    Handle,
    Model,
    Secret,
    Sink,
)
from dragoman.core.item import JSON, CustomToolCall, FunctionCall
from dragoman.core.lower import lower, with_summary
from dragoman.core.request import Completion, Request, completion_request
from dragoman.core.response import default_guarantee
from dragoman.core.turn import Turn
from dragoman.formats.markup.format import TextToolCallTurn
from dragoman.net.client import CODINGS, Client, Exchange, content_decoder
from dragoman.net.client import Decoder as ContentDecoder
from dragoman.net.connection import Connection, Limits, Timeouts
from dragoman.net.errors import DisconnectedError, NetError, TooLargeError
from dragoman.wire import embeddings, json
from dragoman.wire.losses import read_header
from dragoman.wire.registry import WIRES, spell_fault, spell_losses

from .again import Again, Refusals
from .base import Deferred, Driver, fault_from, new_id, receive_last, stream_of
from .bounds import lower_bounds
from .fan_out import fan_out
from .profiles import Profile
from .remote_count import count
from .upstream import BUSY, Room, Upstream, UpstreamRequest, broken, unreachable, wait

if TYPE_CHECKING:
    from .turns import ThreadPool

_log = logging.getLogger("dragoman")

PIECE = 32 * 1024
"""Bytes of an answer that are decoded in one turn of the event loop."""
LARGE = 64 * 1024
"""Bytes without an event from which they are decoded in a thread, and their values counted."""
FRAMING = 300
"""Bytes of an event, about, that are not buffered: its framing, and its ids."""
LONG = 512 * 1024
"""Bytes from which an answer counts, whatever it is made of: its end may take long to encode."""
MAX_VALUES = 3_000_000
"""The most values within one JSON value of an answer."""
EVENTS = 250
"""Events of an answer that are passed on in one turn of the event loop."""
LATE_USAGE = 0.25
"""Seconds to continue reading after the end, for late usage and to free the connection."""

_CALLS = (FunctionCall, CustomToolCall)
_SUMMARY = "ReasoningOptions.summary"
_NOTED = frozenset((b"server", b"x-dragoman-loss", *CODINGS))
JSON_BODY = ("content-type", "application/json")


class State(IntEnum):
    """The state of an answer."""

    WAITING = 0  # a task awaits a connection, the reason of a refusal, or the time of a retry
    HEADERS = 1  # the request is sent
    BODY = 2  # events are delivered as they are read
    TAIL = 3  # the wire has ended the answer; late usage may still come
    OVER = 4


class UpstreamAnswer(Struct, eq=False):
    """The handle of an answer: what is read from its socket is passed on in the same turn."""

    _remote: Remote
    _request: UpstreamRequest
    _sink: Sink | None  # None at the end: a reference cycle
    _exchange: Exchange
    _room: Room | None
    _unseen: int  # bytes until the next careful decode; at each read where negative
    _state: State = State.HEADERS
    _attempt: int = 0
    _content: ContentDecoder | None = None  # of a body with a content coding
    _divided: bool = False  # a read is not yet decoded to its end
    _queued: bool = False  # and its rest is scheduled
    _silent: int = 0  # bytes since the last event, about
    _values: int = 0  # the most JSON values in them
    _kept: int = 0  # bytes buffered of the answer, about, that were not passed to `count` yet
    _ready: tuple[list[Event], bool] | None = None  # decoded in a thread, and whether it is the end
    _late: list[Event] = []  # events received in TAIL
    _paused: bool = False
    _task: asyncio.Task[None] | None = None  # in WAITING
    _timer: asyncio.TimerHandle | None = None

    # ---- for the sink --------------------------------------------------------------------

    def cancel(self) -> None:
        """Close the connection, or return it to the pool if it was read to its end."""
        if self._state == State.OVER:
            return
        self._state, self._sink = State.OVER, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._exchange.close()

    def pause(self) -> None:
        """Pause reading from the server's socket."""
        if self._paused or self._state == State.OVER:
            return
        self._paused = True
        if self._state == State.TAIL:
            self._stop_timer()  # no timeout while reading is paused
        if self._state != State.WAITING:
            self._exchange.connection.pause()

    def resume(self) -> None:
        """Resume reading."""
        if not self._paused or self._state == State.OVER:
            return
        self._paused = False
        if self._state == State.TAIL:
            self._wait_for_late_usage()
        if self._divided or self._ready is not None:
            self._wait_for_turn()
        elif self._state != State.WAITING:
            self._exchange.connection.resume()
            asyncio.get_running_loop().call_soon(self._read_on)  # what came while it waited

    # ---- reading -------------------------------------------------------------------------

    def _on_readable(self) -> None:
        """Called by the connection for new data, and at its end."""
        connection, request = self._exchange.connection, self._request
        try:
            if self._state < State.BODY:
                if self._state == State.WAITING:
                    return  # it is looked at again
                if connection.status != 200:
                    self._find_out_why(connection)
                    return
                upstream = self._remote.upstream
                for name, value in connection.headers:
                    if name not in _NOTED:
                        continue
                    if name == b"server" and value != upstream.server_header:
                        upstream.note(value)
                    elif name in CODINGS and value != b"chunked":
                        self._content = content_decoder(connection.headers)
                        self._unseen = -1
                    elif name == b"x-dragoman-loss":  # another Dragoman: its losses are final
                        request.turn.losses += read_header(value.decode("latin-1"))
                if request.again is not None:
                    request.again.taken(request.turn)
                    request.again = None
                self._state = State.BODY
                self._exchange.head = self._exchange.body = b""  # it is not sent again
                connection.headers.clear()
            data = b"".join(connection.parts)
            connection.parts.clear()
            over = connection.over
            self._unseen -= len(data)
            if self._unseen >= 0:
                events = request.decoder.feed(data) if data else []
            else:
                if (looked := self._look(data, over)) is None:
                    return
                events, over = looked
            if over:
                self._end(events, connection.error)
                return
            if request.decoder.ended:
                if self._state == State.TAIL:
                    self._late += events
                    return
                if self._ready is None:
                    self._state = State.TAIL
                    self._wait_for_late_usage()
            elif events and self._timer is not None:
                self._stop_timer()
            if events:
                self._silent = 0
                if request.lowered.restore is not None or request.turn.over:
                    events = request.restored(events)
                if events and self._sink is not None:
                    self._sink.receive(events)
        except Exception as error:
            self._fail(error)

    def _look(self, data: bytes, over: bool) -> tuple[list[Event], bool] | None:
        """Decode much data since the last time, a coded body, or data without an event. None
        where a thread does."""
        connection = self._exchange.connection
        if self._ready is not None:
            if data:
                connection.parts.append(data)
            ready, self._ready = self._ready, None
            return self._share(*ready)
        if len(data) > PIECE and not self._divided:  # yield to other answers
            connection.parts.append(data)
            self._divided, self._unseen = True, self._unseen + len(data)
            self._wait_for_turn()
            return None
        most, limit = self._remote.unseen, self._remote.answer_limit
        room = self._room = self._room or Room(limit)
        left = self._unseen + len(data)
        unseen = most - left if left >= 0 else 0
        room.left -= unseen
        if self._content is not None or self._divided:
            data, over = self._piece(data)
        self._silent += unseen + len(data)
        room.left -= len(data)
        if room.left < 0:
            raise TooLargeError(f"one answer of more than {limit} bytes (answer_limit)")
        if self._silent > LARGE and self._state == State.TAIL:
            return [], True  # it has no usage
        self._values = self._values + json.marks(data) if self._silent > LARGE else 0
        if self._values > MAX_VALUES:
            raise TooLargeError(f"more than {MAX_VALUES} values in one")
        if self._silent > LARGE and (over or b"\n" in data):  # the end of a large event
            self._wait_for(self._decode_apart, data, over)
            return None
        events = self._decoded(data, over)
        if (kept := len(data) - FRAMING * len(events)) > 0:  # undecoded bytes in proportion
            self._kept += kept + unseen * kept // len(data)
        much = self._kept > LARGE or limit - room.left >= LONG
        if much and self._request.caller.count is not None:
            self._request.caller.count(self._kept)
            self._kept = 0
        if events:
            self._silent = 0
        small = not (self._content or self._divided or self._silent > LARGE)
        self._unseen = most if small and room.left >= most and not room.shared else -1
        return self._share(events, over)

    def _share(self, events: list[Event], over: bool) -> tuple[list[Event], bool]:
        """The events for one turn of the loop; the rest is scheduled. One event
        of the server may be many of ours, each of which is encoded and stored."""
        if len(events) <= EVENTS:
            return events, over
        self._ready, self._unseen = (events[EVENTS:], over), -1
        self._wait_for_turn()
        return events[:EVENTS], False

    def _piece(self, data: bytes) -> tuple[bytes, bool]:
        """The next piece of the body, and whether it is the last. A read may be large, or inflate
        to much: the pieces are decoded in separate turns of the loop, and reading is paused
        until the last."""
        connection, content = self._exchange.connection, self._content
        if content is not None:
            data = content.decode(data)
            self._divided = data != b""
        else:
            self._divided = len(data) > PIECE
            if self._divided:
                connection.parts.append(data[PIECE:])
                data = data[:PIECE]
        if self._divided:
            self._wait_for_turn()
            return data, False
        if not self._paused:
            connection.resume()
        if content is not None and connection.over and connection.error is None:
            content.finish()
        return data, connection.over

    def _wait_for_turn(self) -> None:
        """Schedule the rest of a read, and pause reading until then."""
        self._exchange.connection.pause()
        if not (self._paused or self._queued):
            self._queued = True
            self._remote.upstream.take_turns(self._read_on)

    def _read_on(self) -> None:
        self._queued = False
        if not self._paused and self._state in (State.BODY, State.TAIL):
            if self._ready is None:
                self._on_readable()
            else:
                self._go_on()

    def _go_on(self) -> None:
        """Pass on decoded events, and resume reading after the last of them."""
        self._on_readable()
        if self._state != State.OVER and not self._paused and self._ready is None:
            if not self._divided:
                self._exchange.connection.resume()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _find_out_why(self, connection: Connection) -> None:
        """There is no answer: retry, read the refusal, or fail."""
        error = connection.error
        if connection.status or error is None:
            self._wait_for(self._refused)
        elif isinstance(error, DisconnectedError) and error.reused and error.before_first_byte:
            # The server had closed the idle connection: it never saw the request.
            self._exchange.close()
            self._wait_for(self._connect, fresh=True)
        else:
            self._fail(error)

    def _wait_for_late_usage(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(LATE_USAGE, self._end, [], None)

    def _begin_stream(self) -> None:
        self._timer = None
        try:
            self._request.turn.begin()
            events = self._request.restored(self._request.turn.take())
            if events and self._sink is not None:
                self._sink.receive(events)
        except Exception as error:
            self._fail(error)

    # ---- the end -------------------------------------------------------------------------

    def _end(self, events: list[Event], error: NetError | None) -> None:
        """The body has ended, or is not waited for: release the connection, and deliver the
        last events. An error after the end is ignored."""
        request = self._request
        try:
            if error is None or request.decoder.ended:
                events = self._late + events + request.closed()
            else:
                events = events + request.broken(error)
            sink = self._sink
            self.cancel()
            if sink is not None and (events := request.restored(events)):
                sink.receive(events)
        except Exception as problem:
            self._fail(problem)

    def _fail(self, error: Exception) -> None:
        """Fail the answer, for an error of the server, a decoder or the sink."""
        request = self._request
        match error:
            case NetError():
                events = request.broken(error)
            case FaultError():
                request.turn.fail(error.fault)
                events = request.turn.take()
            case _:
                key = self._remote.upstream.key_for(request.caller)
                events = [Failed(fault_from(error, key, request.caller.trace))]
        if (sink := self._sink) is not None:  # else it was cancelled
            self.cancel()
            receive_last(request.restored(events), sink)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- asynchronous steps --------------------------------------------------------------

    def _wait_for(
        self, work: Callable[..., Awaitable[None]], *given: object, **options: bool
    ) -> None:
        self._state = State.WAITING
        self._task = asyncio.get_running_loop().create_task(self._await(work, *given, **options))

    async def _await(
        self, work: Callable[..., Awaitable[None]], *given: object, **options: bool
    ) -> None:
        try:
            await work(*given, **options)
            self._task = None
        except Exception as error:
            self._task = None
            self._fail(error)

    async def _decode_apart(self, data: bytes, over: bool) -> None:
        """Decode large data in a thread, not to block the loop. Reading is paused meanwhile."""
        self._exchange.connection.pause()
        self._stop_timer()
        apart, tenant = self._remote.upstream.apart, self._request.caller.tenant
        events = await apart(tenant, self._silent, self._decoded, data, over)
        self._state, self._ready, self._unseen = State.BODY, (events, over), -1
        self._task = None
        self._go_on()

    def _decoded(self, data: bytes, over: bool) -> list[Event]:
        request, whole = self._request, over and self._exchange.connection.error is None
        events = request.decoder.feed(data) if data else []
        return events + request.closed() if whole else events

    async def _connect(self, *, fresh: bool) -> None:
        """Wait for a connection, or a fresh one, and send the request."""
        await self._exchange.connect(self._on_readable, fresh=fresh)
        self._state = State.HEADERS
        if self._paused:
            self._exchange.connection.pause()

    async def _refused(self) -> None:
        """Retry where that is configured, or without what is refused; else the refusal is the
        answer."""
        remote, request, seconds = self._remote, self._request, 0.0
        response = self._exchange.adopt()
        with closing(self._exchange):
            if self._attempt == remote.retries or response.status not in BUSY:
                fault = await remote.upstream.refusal(response, request.caller)
                if (again := request.again) is None:
                    raise FaultError(fault)
                self._exchange = await again.changed(fault, self._exchange.body, remote._turns)
            else:
                seconds = wait(response.header("retry-after"), self._attempt)
                self._attempt += 1
        await asyncio.sleep(seconds)
        await self._connect(fresh=False)


class Remote:
    """An engine behind an address.

    - `base_url` is the base URL for clients of that server, with `/v1` where it has one.
    - `name` is its name in errors, which do not reveal its address to callers.
    - `key` is our key to it; with `pass_client_key` the caller's own key is sent instead.
    - `wire` is `auto` (detected once, at no cost), `chat` or `responses`.
    - `profile` names a kind of server; by default it is recognised by its answers.
    - `retries` is how often a 429, 503 or 529 before the first byte is tried again; 0 passes it on.
    - `header_hold` is how many seconds a stream may be silent before it is begun all the same.
    - `answer_limit` is how many bytes the server may send for one request.
    """

    _kind: type[Upstream] = Upstream
    _slow = False  # whether small requests are prepared in a thread, too

    def __init__(
        self,
        base_url: str,
        *,
        key: Secret | str | None = None,
        pass_client_key: bool = False,
        wire: str = "auto",
        profile: str | None = None,
        retries: int = 0,
        header_hold: float = 5.0,
        timeouts: Timeouts | None = None,
        client: Client | None = None,
        answer_limit: int = Limits().body_bytes,
        name: str | None = None,
    ) -> None:
        self.upstream = self._kind(
            base_url,
            key=key,
            pass_client_key=pass_client_key,
            wire=wire,
            profile=profile,
            client=client,
            answer_limit=answer_limit,
            name=name,
        )
        self.refusals = Refusals()
        self.retries = retries
        self.header_hold = header_hold
        self.timeouts = timeouts or self.upstream.client.timeouts
        self._stream_timeouts = replace(self.timeouts, total=None)
        self.answer_limit = self.upstream.client.limits.body_bytes
        self.unseen = min(PIECE, self.answer_limit)

    @property
    def base_url(self) -> str:
        """The address of the server."""
        return self.upstream.url

    @property
    def passes_client_key(self) -> bool:
        """Whether callers' own keys are sent to the server, which then identify callers."""
        return self.upstream.passes_client_key

    @property
    def profile(self) -> Profile:
        """The server's profile, as far as it is recognised."""
        return self.upstream.profile

    # ---- the engine ----------------------------------------------------------------------

    def start(
        self,
        request: Request,
        caller: Caller,
        sink: Sink,
        room: Room | None = None,
        asked: UpstreamRequest | None = None,
        *,
        looked: bool = False,
    ) -> Handle:
        """Ask the server once, or once for each choice where it gives one at a time; all of them
        share one `room`. A large request is prepared in a thread first, then it is `asked`.
        `looked`: its wires were looked for, and may not be known all the same."""
        if not (self.upstream.wires or looked):
            return Deferred(
                self.upstream.find_out(caller),
                lambda _: self.start(request, caller, sink, room, looked=True),
                caller,
                sink,
            )
        wanted = request.sampling.n
        if wanted and wanted > 1 and not ("chat" in self.upstream.wires and self.profile.choices):
            room = room or Room(self.answer_limit, shared=True)
            begin = partial(self.start, room=room, looked=True)
            ask = partial(stream_of, begin, caller=caller)
            return Driver(fan_out(ask, request, caller), caller, sink)
        if asked is None:
            if caller.size or self._slow:
                prepare = self.upstream.client.in_thread(partial(self._prepare, request, caller))
                ready = self._turns.run(caller.tenant, prepare)
                begin = partial(self.start, request, caller, sink, room, looked=True)
                return Deferred(ready, begin, caller, sink)
            asked = self._prepare(request, caller)
        exchange = asked.exchange
        unseen = self.unseen if room is None else -1
        answer = UpstreamAnswer(self, asked, sink, exchange, room, unseen)
        if exchange.idle:
            exchange.send(exchange.idle.pop(), answer._on_readable)
        else:
            answer._wait_for(answer._connect, fresh=False)
        if asked.stream:
            # The stream begins before the first event: many clients time out on a silent server.
            loop = asyncio.get_running_loop()
            answer._timer = loop.call_later(self.header_hold, answer._begin_stream)
        return answer

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """The same as an async generator."""
        return stream_of(self.start, request, caller)

    def complete(
        self,
        prompt: str | Sequence[int],
        request: Request,
        caller: Caller = ANYONE,
        *,
        echo: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Continue a prompt, over the server's `/completions`."""
        return self.stream(completion_request(request, (prompt,), echo=echo), caller)

    async def count(self, request: Request, caller: Caller = ANYONE) -> int | None:
        """The prompt's tokens, as counted by the server; None where it cannot."""
        return await count(self.upstream, request, caller)

    async def embed(self, request: dict[str, JSON], caller: Caller = ANYONE) -> dict[str, JSON]:
        """The server's embeddings, undecoded. Raises FaultError."""
        upstream, asked, attempt = self.upstream, json.dump(request), 0
        url, fields = upstream.at(embeddings.PATH), (JSON_BODY, *upstream.headers(caller))
        while True:
            exchange = upstream.client.stream("POST", url, fields, asked, timeouts=self.timeouts)
            try:
                async with exchange as response:
                    if response.status == 200:
                        body = await response.read(count=caller.count)
                        encoding = request.get("encoding_format")
                        decode = partial(embeddings.decode_response, body, encoding)
                        if (size := len(body)) > LARGE:
                            return await upstream.apart(caller.tenant, size, decode)
                        return decode()
                    fault = await upstream.refusal(response, caller)
                    seconds = wait(response.header("retry-after"), attempt)
            except NetError as error:
                fault, attempt = broken(error), self.retries
            if attempt == self.retries or response.status not in BUSY:
                raise FaultError(upstream.without_secrets(fault, caller))
            attempt += 1
            await asyncio.sleep(seconds)

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The server's listing of models. Raises FaultError where it has none."""
        return await self.upstream.models(caller)

    async def capabilities(self, model: str) -> Capabilities:
        """The capabilities by the profile, and by the model's entry in the server's listing."""
        limits = self.upstream.limits(model)
        return Capabilities(
            images=limits.images,
            audio=limits.audio,
            custom_tools=limits.custom_tools,
            namespaces=limits.namespaces,
            choices=self.profile.choices,
            wire=next(iter(self.upstream.wires), None),
            constraints=self.profile.constraints,
            continues=self.profile.continues,
            guarantees=self.profile.guarantees,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self.upstream.close()

    @cached_property
    def _turns(self) -> ThreadPool:
        """One thread prepares requests, as several contend for the GIL; more wait for processes."""
        from .turns import THREADS, ThreadPool  # imported only where needed

        turns = ThreadPool(THREADS if self._slow else 1)
        finalize(self, turns.close).atexit = False
        return turns

    def _prepare(self, request: Request, caller: Caller) -> UpstreamRequest:
        """Encode for the caller's wire if the server has it, or else for the first that carries
        everything. Raises FaultError where none does."""
        upstream, profile = self.upstream, self.upstream.profile
        # Most requests have the same headers, and most servers the same limits for every model.
        headers = upstream.known_headers.get(caller.hops) or upstream.headers(caller)
        limits = upstream.limits(request.model) if upstream.senses else profile.limits
        names: Sequence[str] = upstream.wires or ("chat",)  # where they are not known
        if caller.wire is not None and len(names) > 1 and len(profile.wires) > 1:
            names = sorted(names, key=lambda name: name != caller.wire)
        raw = isinstance(request, Completion)  # its text must be unparsed, with its markup
        if raw:
            names = [wire.name for wire in WIRES.values() if not wire.conversation]
        if limits.system_messages == "own" and caller.wire != names[0]:
            limits = replace(limits, system_messages="front")
        wish, lowered = request.reasoning, lower(request, limits)
        if profile.most_repeated is not None:
            lowered = lower_bounds(lowered, profile.most_repeated)
        full = lowered.request
        if self.refusals.seen:
            lowered = self.refusals.lower(lowered, caller)
        asked = lowered.request
        if profile.only_streams and not asked.stream:
            asked = replace(asked, stream=True)
        refused: FaultError | None = None
        for name in names:
            wire = WIRES[name]
            dialect = profile.dialect
            if caller.wire is not None and caller.wire != name and dialect.content_parts:
                # In other protocols a text is a list of parts; many servers accept only strings.
                dialect = replace(dialect, content_parts=False)
            try:
                body, losses = wire.encode_request(asked, dialect)
            except FaultError as error:
                fault = spell_fault(lowered.client_fault(error.fault), asked, caller.wire)
                refused = refused or FaultError(fault)
                continue
            if lowered.losses or losses:
                losses = (
                    *spell_losses(lowered.losses, request, caller.wire),
                    *spell_losses(lowered.client_losses(losses), asked, caller.wire),
                )
            if wish is not None and wire.losses.request.action(_SUMMARY) != "carried":
                lowered = replace(lowered, restore=with_summary(request, lowered.restore))
            if wire.upstream_headers or caller.headers:
                headers = (*headers, *upstream.own_headers(wire, caller))
            id, at = caller.response or new_id(), int(time.time())
            if raw or profile.markup is None:
                think = None if raw else profile.think
                turn = Turn(id, at, asked.model, losses=losses, think=think)
            else:
                turn = TextToolCallTurn(
                    id, at, asked.model, markup=profile.markup, request=asked, losses=losses
                )
            if request.tools:
                # Some servers count the ids of calls from 0 in every answer, and agents take two
                # calls with one id for the same call.
                turn.call_ids |= {i.call_id for i in request.items if isinstance(i, _CALLS)}
            url, fields = upstream.url + wire.path + upstream.query, (JSON_BODY, *headers)
            timeouts = self._stream_timeouts if asked.stream else self.timeouts
            exchange = upstream.client.stream("POST", url, fields, body, timeouts=timeouts)
            decoder, sure = wire.decoder(turn), default_guarantee(request)
            prepared = UpstreamRequest(
                upstream, caller, exchange, lowered, turn, decoder, request.stream, turn, sure
            )
            given, most = asked.sampling, (asked.max_output_tokens, wire.max_tokens)
            wishes = (wish, *most, given.temperature, given.top_p, given.top_k)
            if asked.instructions or len(asked.items) > 1 or wishes != (None,) * 6:
                send = partial(upstream.client.stream, "POST", url, fields, timeouts=timeouts)
                prepared.again = Again(self.refusals, caller, full, asked, wire, dialect, send)
            return prepared
        raise refused or FaultError(unreachable(f"{upstream.name} speaks no wire we know"))
