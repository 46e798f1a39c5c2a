"""Finds model servers on this machine and in the environment, without configuration.

An open port proves nothing: only a model listing counts. A Dragoman is never
used as an upstream, so that two of them do not send requests in a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from dragoman.core.interfaces import Secret
from dragoman.net.client import Client
from dragoman.net.connection import Timeouts
from dragoman.net.url import split_base

from .profiles import Profile, by_url
from .upstream import entries, question, recognise

PORTS = (11434, 1234, 8000, 30000, 8080, 1337, 8321)
"""The default ports of local model servers: Ollama, LM Studio, vLLM, SGLang, llama.cpp and
LocalAI, Jan, Open GenAI Stack."""
PATIENCE = 0.5
"""Seconds for a local server to answer."""

KEYS = (
    ("OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1"),
    ("OPENROUTER_API_KEY", "OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
    ("DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL", "https://api.deepseek.com/v1"),
    # ANTHROPIC_BASE_URL is often that of a Dragoman, and never has the `/v1`.
    ("ANTHROPIC_API_KEY", "", "https://api.anthropic.com/v1"),
)
"""A key's variable, its address's variable (empty: none), and the address where there is none."""


class Discovered(Struct, frozen=True):
    """A discovered server. `key_env` names the variable with its key; `access` is `named`
    where the environment names it, or else how it answered with a key, or without one; `ours` is
    a Dragoman."""

    base_url: str
    models: tuple[str, ...] = ()
    profile: Profile | None = None
    key_env: str | None = None
    access: Literal["named", "open", "granted", "refused"] = "open"
    ours: bool = False


async def discover(
    environ: Mapping[str, str],
    *,
    ours: bool = False,
    client: Client | None = None,
    key: Secret | None = None,
) -> tuple[Discovered, ...]:
    """The servers of the environment, then those on the default local ports.

    With `ours` also Dragomans, and servers that ask for a key: for clients, not for
    servers. `key` is sent only to those that ask for one; a server that accepts it is the first.
    """
    own = client or Client(connect_retries=0, timeouts=Timeouts(connect=PATIENCE))
    try:
        places = [f"http://127.0.0.1:{port}/v1" for port in PORTS]
        found = await asyncio.gather(*(look(own, place, ours=ours, key=key) for place in places))
        configured = named(environ)
        if not ours:
            # A Dragoman's address is often in the environment, for its clients. Well-known ones are
            # not probed, and a server that does not answer may be started later.
            unknown = [server for server in configured if server.profile is None]
            urls = ("/models".join(split_base(server.base_url)) for server in unknown)
            questions = (question(own, "GET", url, (), patience=PATIENCE) for url in urls)
            answers = zip(unknown, await asyncio.gather(*questions), strict=True)
            hidden = [server for server, answer in answers if answer.ours]
            configured = tuple(server for server in configured if server not in hidden)
    finally:
        if client is None:
            await own.aclose()
    # A server that refuses our key is not skipped silently.
    last = ["refused", "open"] if key else ["open", "refused"]
    servers = (*configured, *(server for server in found if server is not None))
    return tuple(
        sorted(servers, key=lambda server: ["granted", "named", *last].index(server.access))
    )


def named(environ: Mapping[str, str]) -> tuple[Discovered, ...]:
    """The servers of the environment; a key alone is enough, so is an address alone.

    >>> [server.base_url for server in named({"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})]
    ['http://127.0.0.1:9/v1']
    """
    servers = []
    for key, address, usual in KEYS:
        if environ.get(key) or environ.get(address):
            url = environ.get(address) or usual
            key_env = key if environ.get(key) else None
            servers.append(Discovered(url, (), by_url(url), key_env, "named"))
    return tuple(servers)


async def look(
    client: Client, base_url: str, *, ours: bool = False, key: Secret | None = None
) -> Discovered | None:
    """The model server at an address, if there is one; a Dragoman, or one that refuses this
    key, only with `ours`."""
    url = f"{base_url}/models"
    access: Literal["open", "granted"] = "open"
    answer = await question(client, "GET", url, (), patience=PATIENCE)
    error = isinstance(answer.value, dict) and "error" in answer.value
    if ours and answer.status == 401 and (answer.ours or error):
        if key is not None:
            bearer = ("authorization", f"Bearer {key.reveal()}")
            answer = await question(client, "GET", url, (bearer,), patience=PATIENCE)
        if answer.status != 200:
            return Discovered(base_url, access="refused", ours=answer.ours)
        access = "granted"
    if answer.status != 200 or (answer.ours and not ours):
        return None
    models = tuple(e["id"] for e in entries(answer.value) if isinstance(e.get("id"), str))
    empty = isinstance(answer.value, dict) and answer.value.get("object") == "list"
    if not models and not empty:  # some list no models as null
        return None
    return Discovered(base_url, models, recognise(answer), access=access, ours=answer.ours)
