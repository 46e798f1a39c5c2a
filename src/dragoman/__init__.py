"""Any client that speaks an OpenAI protocol, in front of any model, with nothing lost in between.

`connect` gives a client for an engine, `Agent` a model with tools, `serve` serves an engine over
the protocols, `asgi` by a host of your own, `transport` in process. Requests and answers are
exported here; import the rest from its module.
"""

import typing as _typing

from .client import Answer, AnswerError, Client, Stream, arguments, connect, connect_sync
from .core import interfaces as _interfaces
from .core.error import Fault, FaultError
from .core.interfaces import Engine
from .core.item import (
    Audio,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Reasoning,
    Text,
)
from .core.request import CustomTool, FunctionTool, JSONSchema, Request
from .core.response import Response, Usage

if _typing.TYPE_CHECKING:
    from .agent import Agent, Budget, Price
    from .client.conversation import Conversation
    from .server.settings import Settings
    from .tools import Context, ToolError, tool

__version__ = _interfaces.VERSION

__all__ = [
    "Agent",
    "Answer",
    "AnswerError",
    "Audio",
    "Budget",
    "Client",
    "Context",
    "Conversation",
    "CustomTool",
    "CustomToolCall",
    "CustomToolCallOutput",
    "Engine",
    "Fault",
    "FaultError",
    "File",
    "FunctionCall",
    "FunctionCallOutput",
    "FunctionTool",
    "Image",
    "Item",
    "JSONSchema",
    "Message",
    "Price",
    "Reasoning",
    "Request",
    "Response",
    "Stream",
    "Text",
    "ToolError",
    "Usage",
    "__version__",
    "arguments",
    "asgi",
    "connect",
    "connect_sync",
    "serve",
    "tool",
    "transport",
]


def __getattr__(name: str) -> _typing.Any:
    """Agents and tools are imported when they are first used: a server needs neither."""
    if name in ("Agent", "Budget", "Price"):
        from . import agent

        return getattr(agent, name)
    if name == "Conversation":
        from .client.conversation import Conversation

        return Conversation
    if name in ("Context", "ToolError", "tool"):
        from . import tools

        return getattr(tools, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """All names, those that were not used yet among them."""
    return sorted({*globals(), *__all__})


def serve(engine: Engine | str, settings: "Settings | None" = None) -> None:
    """Serve an engine, or what `connect` would call, until a signal says to stop.

    `settings` are those of `dragoman.server.settings`; by default it listens on
    `http://127.0.0.1:8000/v1`, for this machine only. Raises `dragoman.server.host.HostError` when
    it cannot listen there, and what `asgi` does, at the start.

        dragoman.serve("http://127.0.0.1:11434/v1")
    """
    import asyncio
    import os
    import sys
    from functools import partial

    from .client.client import engine_of
    from .server.build import application, studio_of
    from .server.config import with_keys
    from .server.host import address, bind, reachable, run
    from .server.settings import Settings
    from .server.state.service import check_memory

    settings, served = with_keys(settings or Settings(), os.environ), engine_of(engine)
    studio_of(settings, os.environ)
    asyncio.run(check_memory(settings, os.environ))
    listener = bind(settings, exact=True)

    def ready() -> None:
        url = f"{reachable(address(listener))}/v1"
        sys.stderr.write(f"Dragoman is ready at {url}; Ctrl-C stops.\n")

    run(partial(application, served, settings, os.environ), settings, listener, ready)


def asgi(engine: Engine | str, settings: "Settings | None" = None) -> _typing.Any:
    """The ASGI application that `serve` would run, for a host of your own: the same store, keys and
    voices.

    A host that tells it nothing of its lifespan, as where it is mounted in another application,
    should await its `close()` at the end. Raises `dragoman.server.config.ConfigurationError` for
    settings that cannot be used, and `dragoman.stores.base.StoreError` when it cannot remember
    where they say.
    """
    import os

    from .client.client import engine_of
    from .server.build import application
    from .server.settings import Settings

    return application(engine_of(engine), settings or Settings(), os.environ)


def transport(engine: Engine | str, settings: "Settings | None" = None) -> _typing.Any:
    """A transport that answers the official SDK out of an engine, or what `connect` would call.

    Pass it to `httpx2.AsyncClient` or `httpx2.Client` as `transport`, and that to the SDK as
    `http_client`: no port, no network, no key. Raises ImportError where httpx2, which comes with
    the SDK, is not installed.
    """
    from .client.client import engine_of
    from .server.testing import transport as make

    return make(engine_of(engine), settings)
