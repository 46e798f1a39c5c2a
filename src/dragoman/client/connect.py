"""Gives an engine a handle: by address, by name, or as it is.

`connect` is the inverse of serving. It opens nothing by itself: the first question does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self, Unpack, cast

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.request import Request
from dragoman.engines.shipped import SHIPPED
from dragoman.engines.wrap import Wrapper

from .answer import Answer, AnswerError
from .ask import Input, Settings, ask
from .blocking import Blocking
from .face import SyncClient
from .stream import Stream


class Client(Wrapper):
    """An engine as an object: `respond` for whole answers, `stream` for answers as they come.

    It is an engine itself and can stand wherever one can. `model` is asked where a question names
    none; without it, the first that the engine lists. Use it with `async with`, or call `close`.
    """

    def __init__(self, engine: Engine, *, model: str | None = None) -> None:
        super().__init__(engine)
        self._model = model

    def stream(
        self, request: Input, caller: Caller = ANYONE, **settings: Unpack[Settings]
    ) -> Stream:
        """Ask, and read the answer as it comes. Nothing is sent before the first read.

        Raises TypeError for a setting there is none of.
        """
        return Stream(self._answer(ask(request, settings, stream=True), caller))

    async def respond(
        self,
        request: Input,
        caller: Caller = ANYONE,
        *,
        raises: bool = True,
        **settings: Unpack[Settings],
    ) -> Answer:
        """Ask, and wait for the whole answer.

        Raises AnswerError when it fails, with what had come; with `raises=False` that answer is
        returned like any other, and its `status` and `error` say so.
        """
        asked = ask(request, settings, stream=False)
        async with Stream(self._answer(asked, caller)) as stream:
            answer = await stream.finish()
        if raises and answer.status == "failed" and answer.error is not None:
            raise AnswerError(answer.error, answer)
        return answer

    @property
    def sync(self) -> SyncClient:
        """The same client for code without `async`: the same methods, without `await`.

        Use one face of a client or the other, not both: connections belong to one event loop.
        """
        return cast(SyncClient, Blocking(self))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _answer(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        try:
            request = request if request.model else replace(request, model=await self._default())
        except FaultError as error:
            yield Failed(error.fault)
            return
        events = super().stream(request, caller)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def _default(self) -> str:
        """The model to ask where none is named."""
        if self._model is None:
            models = await self.engine.models()
            if not models:
                problem = "No model was named, and the engine lists none."
                raise FaultError(Fault("model_not_found", problem, "client", "model"))
            self._model = models[0].id
        return self._model


def connect(target: str | Engine, *, model: str | None = None, **options: Any) -> Client:
    """A client of the engine at an address, of that name, or of the engine given.

    An address is the base URL of any OpenAI-compatible server (`http://127.0.0.1:11434/v1`), and
    `options` are those of `engines.remote.Remote`, such as `key`. With a `format`, the name of a
    token format, the server is asked for raw completions. `hf:` and a folder or a name on the hub,
    and `gguf:` and a file, load a model here; `options` are those of `engines.transformers` and
    `engines.llamacpp`. Raises ValueError for a name that is none and a model that does not load,
    ImportError where something is not installed.

    >>> connect("script").sync.respond("Count to three.").text
    '1, 2, 3.'
    """
    return Client(_engine(target, options), model=model)


def connect_sync(target: str | Engine, *, model: str | None = None, **options: Any) -> SyncClient:
    """The same for code without `async`.

    >>> with connect_sync("script") as client:
    ...     print(client.respond("Count to two.").text)
    1, 2.
    """
    return connect(target, model=model, **options).sync


def _engine(target: str | Engine, options: dict[str, Any]) -> Engine:
    if not isinstance(target, str):
        return target
    if target.startswith(("http://", "https://")):
        from dragoman.engines.completions import remote  # a socket is only for those who need one

        return remote(target, **options)
    if target in SHIPPED:
        return SHIPPED[target](**options)
    from dragoman.engines.local import KINDS, find_target, is_local

    if not is_local(target):
        known = ", ".join((*SHIPPED, *(f"{kind}:…" for kind in KINDS)))
        raise ValueError(f"{target!r} is neither an http(s) address nor a name; names: {known}")
    return find_target(target, **options).load()
