"""The official SDK before Dragoman before a server that answers what it is told.

`behind` runs the whole server in the test's own process, with the engine that the command line
would build. `Behind` asks by either face of the SDK: the asynchronous one here, the synchronous
one in a thread. What is asked and what it means is for the tests to say.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai

from dragoman.server.app import App
from dragoman.server.build import assemble
from dragoman.server.config import Upstream
from dragoman.server.settings import Settings
from tests.mock import Asked, Handler, Mock, Reply, mock
from tests.server.stubs import served

Face = Literal["async", "sync"]
JSON = Any

Player = Callable[[Asked], Reply]
"""A handler that answers at once."""

_SAID = [{"role": "user", "content": "Go."}]
GO = {
    "chat": {"messages": _SAID},
    "responses": {"input": "Go."},
    "messages": {"messages": _SAID, "max_tokens": 100},
}
"""What is asked where the question does not matter."""


class Behind:
    """A running server and clients of it. `up` is the mock that it stands before."""

    def __init__(self, up: Mock, base_url: str, face: Face, api_key: str) -> None:
        self.up = up
        self.base_url = base_url
        self.face = face
        self._options: dict[str, Any] = {"base_url": base_url, "api_key": api_key}

    def sdk(self, **options: Any) -> openai.AsyncOpenAI:
        """An asynchronous client, which does not try again unless told to."""
        return openai.AsyncOpenAI(**{**self._options, "max_retries": 0, **options})

    def client(self, wire: str) -> Any:
        """The asynchronous client of whoever made the protocol."""
        if wire != "messages":
            return self.sdk()
        import anthropic  # three thousand modules

        options = {**self._options, "base_url": self.base_url.removesuffix("/v1")}
        return anthropic.AsyncAnthropic(**options, max_retries=0)

    async def whole(self, wire: str, **fields: JSON) -> Any:
        """The SDK's object for an answer in one piece."""
        return await self._with(lambda sdk: _api(sdk, wire).create(**_asked(wire, fields)))

    async def parsed(self, wire: str, **fields: JSON) -> Any:
        """The same by `.parse()`."""
        return await self._with(lambda sdk: _api(sdk, wire).parse(**_asked(wire, fields)))

    async def raw(self, wire: str, **fields: JSON) -> list[Any]:
        """All chunks or events of a stream as they come, with no helper."""
        if self.face == "sync":
            return await self._with(
                lambda sdk: list(_api(sdk, wire).create(**_asked(wire, fields), stream=True))
            )
        async with self.client(wire) as sdk:
            stream = await _api(sdk, wire).create(**_asked(wire, fields), stream=True)
            return [event async for event in stream]

    async def streamed(self, wire: str, **fields: JSON) -> tuple[list[Any], Any]:
        """The events of `.stream()`, and the final object it makes of them."""
        if self.face == "sync":
            return await self._with(lambda sdk: self._streamed(sdk, wire, fields))
        async with self.sdk() as sdk, _api(sdk, wire).stream(**_asked(wire, fields)) as stream:
            events = [event async for event in stream]
            if wire == "responses":
                return events, events[-1].response
            return events, await stream.get_final_completion()

    @staticmethod
    def _streamed(sdk: Any, wire: str, fields: JSON) -> tuple[list[Any], Any]:
        with _api(sdk, wire).stream(**_asked(wire, fields)) as stream:
            events = list(stream)
            if wire == "responses":
                return events, events[-1].response
            return events, stream.get_final_completion()

    async def _with(self, ask: Callable[[Any], Any]) -> Any:
        if self.face == "async":
            async with self.sdk() as sdk:
                return await ask(sdk)

        def synchronous() -> Any:
            with openai.OpenAI(**self._options, max_retries=0) as sdk:
                return ask(sdk)

        return await asyncio.to_thread(synchronous)


def _api(sdk: Any, wire: str) -> Any:
    return sdk.chat.completions if wire == "chat" else getattr(sdk, wire)


def _asked(wire: str, fields: dict[str, JSON]) -> dict[str, JSON]:
    return {"model": "mock", **GO[wire], **fields}


@asynccontextmanager
async def behind(
    handler: Handler | Reply,
    *,
    probed: Handler | Reply | None = None,
    wire: str = "chat",
    face: Face = "async",
    settings: Settings | None = None,
    api_key: str = "none",
    **upstream: Any,
) -> AsyncIterator[Behind]:
    """Dragoman before a mock that is spoken to over `wire`."""
    settings = settings or Settings()
    async with mock(handler, probed) as up:
        given = {"name": "mock", "url": up.base_url, "wire": wire, **upstream}
        engine = assemble([Upstream(**given)], (), settings, {})
        async with served(App(engine, settings), settings) as port:
            yield Behind(up, f"http://127.0.0.1:{port}/v1", face, api_key)


def by_form(whole: Reply, streamed: Reply) -> Player:
    """A handler that answers as it is asked: in one piece or as a stream."""

    def answer(asked: Asked) -> Reply:
        return streamed if asked.json.get("stream") else whole

    return answer


def timeless(value: JSON) -> JSON:
    """What an SDK object says, without ids, times, nulls and what the SDK itself adds."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    passing = {"id", "call_id", "created", "created_at", "completed_at"}
    passing |= {"parsed", "parsed_arguments"}
    if isinstance(value, dict):
        said = {k: timeless(v) for k, v in value.items() if k not in passing}
        # The helper leaves the place of a call or a citation in the list as a field of it.
        place = {"index"} if {"function", "custom", "url_citation"} & said.keys() else set()
        return {k: v for k, v in said.items() if v is not None and k not in place}
    return [timeless(each) for each in value] if isinstance(value, list) else value
