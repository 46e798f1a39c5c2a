"""`POST /v1/responses/input_tokens`: how long a prompt would be, without asking the model.

It reads, asks and writes; who can count is known to `engines.fitting`.
"""

from __future__ import annotations

from dragoman.core.interfaces import Caller, Engine
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.fitting import count
from dragoman.wire import body
from dragoman.wire.responses import RESPONSES

from .exchange import Exchange, loss_header
from .limits import whole_body
from .memory.asked import understand
from .memory.memory import Memory
from .settings import Settings
from .stateless import without_memory
from .watch import Roster, Watch

PATH = f"/v1{RESPONSES.path}/input_tokens"
ESTIMATED = Loss("input_tokens", "told", "an estimate: the model's own tokens are not known here")


class Counting:
    """Counts prompts for one engine."""

    def __init__(
        self, engine: Engine, settings: Settings, roster: Roster, memory: Memory | None
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._roster = roster
        self._memory = memory

    async def answer(self, exchange: Exchange, caller: Caller) -> None:
        """Count what a request and all that it builds on come to."""
        data = await whole_body(exchange, self._settings, self._roster)
        request = await whole(RESPONSES.decode_request(data), caller, self._memory)
        with Watch(self._roster) as watch:
            watch.listen(exchange.receive)
            tokens, exact = await count(self._engine, request)
        told = () if exact else (ESTIMATED,)
        said = {"object": "response.input_tokens", "input_tokens": tokens}
        await exchange.reply(200, body.dump(said), *loss_header(told))


async def whole(request: Request, caller: Caller, memory: Memory | None) -> Request:
    """The request with all that it builds on. Raises FaultError when something is not there."""
    if memory is None:
        return without_memory(request)[0]
    return (await understand(request, memory.store, caller.tenant, "once")).whole
