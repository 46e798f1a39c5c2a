"""The one way to answer a request, whatever its protocol: read, ask the engine, say what it says.

The wire tells what the bytes mean, the engine what to answer; here is the order of things, and
that the work ends when the client goes, when time is up, or when the server shuts down.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller, Engine
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.wire.codec import Wire
from dragoman.wire.outcome import judge_answer

from .exchange import Exchange, loss_header
from .limits import Gate, read_body
from .mishap import fault_of
from .pump import TERMINAL
from .router import Handler
from .settings import DIALECTS, Settings
from .stateless import without_memory
from .stream import UNFINISHED, Stream
from .watch import Roster, Watch

Losses = tuple[Loss, ...]


class Answers:
    """Answers requests of every wire out of one engine."""

    def __init__(self, engine: Engine, settings: Settings, roster: Roster) -> None:
        self._engine = engine
        self._settings = settings
        self._roster = roster
        self._dialect = DIALECTS[settings.dialect]
        self._gate = Gate(settings.concurrency, settings.queue, settings.queue_time)

    def over(self, wire: Wire) -> Handler:
        """The handler that answers over this wire."""
        return partial(self._answer, wire)

    async def _answer(self, wire: Wire, exchange: Exchange, caller: Caller) -> None:
        settings = self._settings
        with Watch(self._roster) as watch:
            body = await read_body(exchange, settings.body_limit, settings.read_time, watch)
        request, losses = without_memory(wire.decode_request(body))
        answer = self._streamed if request.stream else self._whole
        await answer(wire, exchange, replace(caller, wire=wire.name), request, losses)

    async def _whole(
        self, wire: Wire, exchange: Exchange, caller: Caller, request: Request, losses: Losses
    ) -> None:
        fold = Fold()
        with self._watch(exchange):
            async with self._gate, aclosing(self._engine.stream(request, caller)) as events:
                async for event in events:
                    fold.feed(event)
                    if isinstance(event, TERMINAL):
                        break
        response = fold.response
        if response.status in ("failed", "in_progress"):
            raise FaultError(response.error or UNFINISHED)
        body = wire.encode_response(response, _echoed(request), self._dialect)
        losses += response.losses + judge_answer(response, wire.name)
        await exchange.reply(200, body, *loss_header(losses))

    async def _streamed(
        self, wire: Wire, exchange: Exchange, caller: Caller, request: Request, losses: Losses
    ) -> None:
        encoder = wire.encoder(_echoed(request), self._dialect)
        stream = Stream(exchange, encoder, self._settings, losses)
        try:
            with self._watch(exchange) as watch:
                async with self._gate, aclosing(self._engine.stream(request, caller)) as events:
                    await stream.run(events, watch)
        except Exception as error:
            await stream.fail(fault_of(error, exchange.id, caller.key))

    def _watch(self, exchange: Exchange) -> Watch:
        watch = Watch(self._roster)
        watch.listen(exchange.receive)
        if (seconds := self._settings.deadline) is not None:
            problem = f"There was no complete answer within {seconds:g} s."
            watch.limit(seconds, Fault("upstream_timeout", problem, "upstream"))
        return watch


def _echoed(request: Request) -> Request:
    """The request as the answer repeats it."""
    return replace(request, store=False)
