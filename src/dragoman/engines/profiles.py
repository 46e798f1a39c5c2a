"""What is known of the servers a remote engine may meet, as data.

A profile says which wires a server speaks well, how it spells them, what it cannot take and by
which of its answers it is recognised. Every difference between servers is a value here; no code
anywhere asks for a server's name. A port proves nothing and is never looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.lower import UNLIMITED, UpstreamLimits
from dragoman.core.turn import Think
from dragoman.wire.protocol import Dialect


class Marks(Struct, frozen=True, kw_only=True):
    """The answers by which a server is known; any one of them is enough."""

    hosts: tuple[str, ...] = ()
    """Ends of host names in the base URL."""
    server: tuple[str, ...] = ()
    """Beginnings of the `Server` header, in lower case."""
    owned_by: tuple[str, ...] = ()
    """Values of `owned_by` in the model listing."""


class Profile(Struct, frozen=True, kw_only=True):
    """One kind of server.

    `wires` are the protocols it speaks well, best first; empty means "find out". `think` is what
    to do with think tags in its text, `markup` the family of markup to look for in its text where
    it leaves calls there, `choices` whether it can give several alternatives,
    `silent_context` the context size at which it cuts prompts without a word, and `only_streams`
    says that whole answers are asked for as streams too, since it stops no others when we leave.
    """

    name: str
    marks: Marks = Marks()
    wires: tuple[str, ...] = ()
    dialect: Dialect = Dialect()
    limits: UpstreamLimits = UNLIMITED
    think: Think = "inline"
    markup: str | None = None
    choices: bool = True
    silent_context: int | None = None
    only_streams: bool = False
    key_header: str = "authorization"


_LOCAL = UpstreamLimits(
    custom_tools=False,
    namespaces=False,
    allowed_tools=False,
    format_beside_forced_tool=False,
    developer_role="system",
    system_messages="front",
)
_MAX_TOKENS = Dialect(max_tokens="max_tokens")
_RAW_TOKENS = (("add_special_tokens", False), ("skip_special_tokens", False))

GENERIC = Profile(name="generic", dialect=_MAX_TOKENS, limits=_LOCAL)
"""Nothing is known: the careful choice everywhere."""

PROFILES: tuple[Profile, ...] = (
    Profile(
        name="openai",
        marks=Marks(hosts=("api.openai.com",)),
        wires=("chat", "responses"),
    ),
    Profile(
        name="azure",
        marks=Marks(hosts=(".openai.azure.com", ".services.ai.azure.com")),
        wires=("chat", "responses"),
        key_header="api-key",
    ),
    Profile(
        name="openrouter",
        marks=Marks(hosts=("openrouter.ai",)),
        wires=("chat",),
        dialect=Dialect(max_tokens="max_tokens", reasoning_field="reasoning"),
        limits=_LOCAL,
        think="reasoning",
    ),
    Profile(
        name="deepseek",
        marks=Marks(hosts=("api.deepseek.com",), owned_by=("deepseek",)),
        wires=("chat",),
        dialect=Dialect(max_tokens="max_tokens", reasoning_echo="must"),
        limits=replace(_LOCAL, json_schema=False),
        think="reasoning",
        choices=False,
    ),
    Profile(
        name="moonshot",
        marks=Marks(hosts=("api.moonshot.ai", "api.moonshot.cn"), owned_by=("moonshot",)),
        wires=("chat",),
        dialect=Dialect(max_tokens="max_tokens", reasoning_echo="must"),
        limits=_LOCAL,
        think="reasoning",
    ),
    Profile(
        name="mimo",
        marks=Marks(hosts=("api.xiaomimimo.com",)),
        wires=("chat",),
        dialect=Dialect(reasoning_echo="must"),
        limits=_LOCAL,
        think="reasoning",
    ),
    Profile(
        name="ollama",
        marks=Marks(owned_by=("library",)),
        wires=("chat",),
        dialect=Dialect(max_tokens="max_tokens", reasoning_field="reasoning"),
        limits=_LOCAL,
        think="reasoning",
        choices=False,
        silent_context=4096,
    ),
    Profile(
        name="lmstudio",
        marks=Marks(owned_by=("organization_owner",)),
        dialect=_MAX_TOKENS,
        limits=_LOCAL,
        think="reasoning",
        choices=False,
    ),
    Profile(
        name="vllm",
        marks=Marks(owned_by=("vllm",)),
        wires=("chat",),
        dialect=Dialect(reasoning_field="reasoning", prompt_options=_RAW_TOKENS),
        limits=_LOCAL,
        think="reasoning",
    ),
    Profile(
        name="sglang",
        marks=Marks(owned_by=("sglang",)),
        wires=("chat",),
        dialect=Dialect(max_tokens="max_tokens", prompt_options=_RAW_TOKENS),
        limits=_LOCAL,
        think="reasoning",
    ),
    Profile(
        # Its Responses stream leaves content_index out; its Chat is sound, but takes a tool that is
        # forced by its name for a hint, and shows the model tools that it may not call.
        name="llama.cpp",
        marks=Marks(server=("llama.cpp",), owned_by=("llamacpp",)),
        wires=("chat",),
        dialect=Dialect(
            max_tokens="max_tokens",
            repetition_penalty="repeat_penalty",
            shown_controls="preserved_tokens",
        ),
        limits=replace(_LOCAL, named_tool=False, idle_tools=False),
        think="reasoning",
        only_streams=True,
    ),
    Profile(
        # Another of us: it takes everything as it is, in either protocol.
        name="dragoman",
        marks=Marks(server=("dragoman",), owned_by=("dragoman",)),
        wires=("chat", "responses"),
    ),
)

BY_NAME = {profile.name: profile for profile in (GENERIC, *PROFILES)}


def by_url(base_url: str) -> Profile | None:
    """The profile of a well-known address; None for any other, and for what is no address.

    >>> by_url("https://api.openai.com/v1").name
    'openai'
    """
    try:
        host = f".{urlsplit(base_url).hostname or ''}"
    except ValueError:
        return None
    for profile in PROFILES:
        if any(host.endswith(end if end[0] == "." else f".{end}") for end in profile.marks.hosts):
            return profile
    return None


def by_answers(server: str | None, listing: Iterable[dict[str, Any]] = ()) -> Profile | None:
    """The profile that a `Server` header or a model listing gives away.

    >>> by_answers("llama.cpp").name
    'llama.cpp'
    """
    owners = {owner for entry in listing if isinstance(owner := entry.get("owned_by"), str)}
    spoken = (server or "").lower()
    for profile in PROFILES:
        marks = profile.marks
        if any(spoken.startswith(word) for word in marks.server):
            return profile
        if owners.intersection(marks.owned_by):
            return profile
    return None
