"""Finds model servers on this machine and in the environment, without configuration.

An open port proves nothing: only an answer that is a model listing counts. A Dragoman is never
taken as an upstream, so that two of them do not send requests in a ring.
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
"""Where local model servers usually listen: Ollama, LM Studio, vLLM, SGLang, llama.cpp and
LocalAI, Jan, Open GenAI Stack."""
PATIENCE = 0.5
"""Seconds a local server has to answer."""

KEYS = (
    ("OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1"),
    ("OPENROUTER_API_KEY", "OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
    ("DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL", "https://api.deepseek.com/v1"),
    # What ANTHROPIC_BASE_URL names is often a Dragoman, and never has the `/v1`.
    ("ANTHROPIC_API_KEY", "", "https://api.anthropic.com/v1"),
)
"""A key's variable, its address's variable (empty: none), and the address where there is none."""


class Discovered(Struct, frozen=True):
    """A server that was found. `key_env` names the variable that holds its key; `access` is `named`
    where the environment names it, or else says what it did with the key, or without one; `ours` is
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
    """What the environment names, then what answers on the usual local ports.

    `ours` takes Dragomans too, and servers that ask for a key: right for a client, wrong for a
    server. `key` is sent to those alone that ask for one; a server that takes it is the first.
    """
    own = client or Client(connect_retries=0, timeouts=Timeouts(connect=PATIENCE))
    try:
        places = [f"http://127.0.0.1:{port}/v1" for port in PORTS]
        found = await asyncio.gather(*(look(own, place, ours=ours, key=key) for place in places))
        configured = named(environ)
        if not ours:
            # A Dragoman's address is often in the environment, for its clients. Well-known ones are
            # not asked, and a server that does not answer may be started later.
            unknown = [server for server in configured if server.profile is None]
            urls = ("/models".join(split_base(server.base_url)) for server in unknown)
            questions = (question(own, "GET", url, (), patience=PATIENCE) for url in urls)
            answers = zip(unknown, await asyncio.gather(*questions), strict=True)
            hidden = [server for server, answer in answers if answer.ours]
            configured = tuple(server for server in configured if server not in hidden)
    finally:
        if client is None:
            await own.aclose()
    # One that refuses us is not passed over in silence where a key was meant for it.
    last = ["refused", "open"] if key else ["open", "refused"]
    servers = (*configured, *(server for server in found if server is not None))
    return tuple(
        sorted(servers, key=lambda server: ["granted", "named", *last].index(server.access))
    )


def named(environ: Mapping[str, str]) -> tuple[Discovered, ...]:
    """The servers the environment names; a key alone is enough, so is an address alone.

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
    """The model server at an address, if there is one; a Dragoman, or one that wants another key
    than this, only if `ours`."""
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
