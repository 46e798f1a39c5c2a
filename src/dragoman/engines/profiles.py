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

from dragoman.core.error import hint
from dragoman.core.item import JSON
from dragoman.core.lower import UNLIMITED, UpstreamLimits
from dragoman.core.response import CONSTRAINT_FIELDS, TEXT_CONSTRAINTS
from dragoman.core.turn import Think
from dragoman.wire.protocol import Dialect
from dragoman.wire.registry import WIRES

_CAREFUL = UpstreamLimits(
    custom_tools=False,
    namespaces=False,
    allowed_tools=False,
    format_beside_forced_tool=False,
    any_arguments=False,
    developer_role="system",
    system_messages="front",
)
_MAX_TOKENS = Dialect(max_tokens="max_tokens")
_SCHEMA = {"schema": "format"}
_BESIDE: dict[str, JSON] = {"add_generation_prompt": False}
_CONTINUES: dict[str, JSON] = {"continue_final_message": True, **_BESIDE}
_RAW_TOKENS = (("add_special_tokens", False), ("skip_special_tokens", False))
_REFUSED = frozenset(
    {
        *("metadata", "moderation", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "safety_identifier", "store", "user", "verbosity"),
    }
)
"""Fields without which the answer is the same, and with which some servers refuse to give one."""
_PLAIN = replace(_MAX_TOKENS, reasoning_echo="never", drop=_REFUSED)
_STRICT = replace(_PLAIN, call_extra=False)
_UNSIGNED: dict[str, JSON] = {
    "extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}
}
_GEMINI = replace(_PLAIN, call_stand_in=_UNSIGNED)


class Profile(Struct, frozen=True, kw_only=True):
    """One kind of server. The defaults are the safe choice for unknown servers."""

    name: str
    hosts: tuple[str, ...] = ()
    """Ends of host names in the base URL; any of these four is enough to recognise it."""
    server: tuple[str, ...] = ()
    """Beginnings of the `Server` header, in lower case."""
    owned_by: tuple[str, ...] = ()
    """Values of `owned_by` in the model listing."""
    listed: tuple[str, ...] = ()
    """Beginnings of names in the model listing that no other server has."""
    wires: tuple[str, ...] = ()
    """The protocols it supports well, best first; empty means detection."""
    dialect: Dialect = _MAX_TOKENS
    limits: UpstreamLimits = _CAREFUL
    think: Think = "reasoning"
    """How to handle think tags in its text."""
    markup: str | None = None
    """The family of markup to look for in its text, where it leaves calls there."""
    choices: bool = True
    """Whether it supports several choices (`n`)."""
    silent_context: int | None = None
    """The context size at which it truncates prompts silently."""
    most_repeated: int | None = None
    """The highest bound in a schema, such as `maxLength`, of which it makes a grammar; None: any.
    It is one below llama.cpp's MAX_REPETITION_THRESHOLD, which LM Studio has, too."""
    only_streams: bool = False
    """Whether whole answers are requested as streams too, since it stops no others at a
    disconnect."""
    key_header: str = "authorization"
    constraints: dict[str, str] | None = None
    """Its fields that constrain the text of an answer (see `Capabilities`)."""
    continues: dict[str, JSON] | None = None
    """Fields for continuing an unfinished message of the assistant; None: not known."""
    guarantees: tuple[str, ...] | None = None
    """Those of a model whose entry in the listing has none (see `Capabilities`)."""

    def other(self, wires: tuple[str, ...]) -> str:
        """What to try where a server of these protocols alone refuses a key as we send it."""
        if wires != ALONE.wires or self.key_header == ALONE.key_header:
            return ""
        return f'; profile = "{ALONE.name}" sends it as {ALONE.key_header}'


GENERIC = Profile(name="generic", think="inline")
"""An unknown server."""

_WHOLE = Profile(
    name="whole",
    wires=("chat", "responses"),
    dialect=Dialect(),
    limits=UNLIMITED,
    think="inline",
)
"""A server that supports everything, in each of its protocols."""

_OPENAI = replace(
    _WHOLE,
    dialect=Dialect(reasoning_echo="never", call_extra=False),
    constraints={**_SCHEMA, "custom": "tools"},
)

PROFILES: tuple[Profile, ...] = (
    replace(_OPENAI, name="openai", hosts=("api.openai.com",)),
    replace(
        _OPENAI,
        name="azure",
        hosts=(".openai.azure.com", ".services.ai.azure.com"),
        key_header="api-key",
    ),
    Profile(
        # Its thinking comes in blocks of its own, never as tags; its hosted tools run there.
        name="anthropic",
        hosts=("api.anthropic.com",),
        wires=("messages",),
        dialect=Dialect(cache_control=True, blank_texts=False, closed_schemas=True),
        limits=UpstreamLimits(
            custom_tools=False,
            namespaces=False,
            allowed_tools=False,
            developer_role="system",
            system_messages="own",
            audio=False,
        ),
        think=None,
        choices=False,
        key_header="x-api-key",
    ),
    Profile(
        name="openrouter",
        hosts=("openrouter.ai",),
        wires=("chat",),
        dialect=replace(_MAX_TOKENS, reasoning_field="reasoning"),
    ),
    Profile(
        name="deepseek",
        hosts=("api.deepseek.com",),
        owned_by=("deepseek",),
        wires=("chat",),
        dialect=replace(_MAX_TOKENS, reasoning_echo="must"),
        limits=replace(_CAREFUL, json_schema=False),
        choices=False,
    ),
    Profile(
        name="moonshot",
        hosts=("api.moonshot.ai", "api.moonshot.cn"),
        owned_by=("moonshot",),
        wires=("chat",),
        dialect=replace(_MAX_TOKENS, reasoning_echo="must"),
    ),
    Profile(
        name="mimo",
        hosts=("api.xiaomimimo.com",),
        wires=("chat",),
        dialect=Dialect(reasoning_echo="must"),
    ),
    # These three refuse a request with any field that they do not know.
    Profile(name="gemini", hosts=(".googleapis.com",), wires=("chat",), dialect=_GEMINI),
    Profile(
        name="strict",
        hosts=("api.groq.com", "api.cerebras.ai"),
        wires=("chat",),
        dialect=_STRICT,
    ),
    Profile(
        name="mistral",
        hosts=("api.mistral.ai",),
        wires=("chat",),
        dialect=replace(
            _STRICT,
            call_id_length=9,
            user_behind_results=False,
            ask_usage=False,
            drop=_REFUSED | {"stream_options"},
        ),
    ),
    Profile(
        name="ollama",
        owned_by=("library",),  # else it is who made the model
        listed=("hf.co/", "huggingface.co/"),
        wires=("chat",),
        dialect=replace(_MAX_TOKENS, reasoning_field="reasoning"),
        choices=False,
        silent_context=4096,
    ),
    Profile(
        # It refuses a `tool_choice` that is an object.
        name="lmstudio",
        owned_by=("organization_owner",),
        limits=replace(_CAREFUL, named_tool=False),
        choices=False,
        most_repeated=1999,
    ),
    Profile(
        name="vllm",
        owned_by=("vllm",),
        wires=("chat",),
        dialect=Dialect(
            reasoning_field="reasoning", prompt_options=_RAW_TOKENS, beside_continue=_BESIDE
        ),
        constraints={
            "regex": "structured_outputs.regex",
            "choice": "structured_outputs.choice",
            **_SCHEMA,
        },
        continues=_CONTINUES,
    ),
    Profile(
        name="sglang",
        owned_by=("sglang",),
        wires=("chat",),
        dialect=replace(_MAX_TOKENS, prompt_options=_RAW_TOKENS, beside_continue=_BESIDE),
        constraints={"regex": "regex", **_SCHEMA},
        continues=_CONTINUES,
    ),
    Profile(
        # Its Responses stream leaves content_index out; its Chat is sound, but takes a tool that is
        # forced by its name for a hint, and shows the model tools that it may not call.
        name="llama.cpp",
        server=("llama.cpp",),
        owned_by=("llamacpp",),
        wires=("chat",),
        dialect=replace(
            _MAX_TOKENS,
            repetition_penalty="repeat_penalty",
            shown_controls="preserved_tokens",
            drop=frozenset(CONSTRAINT_FIELDS) - {"grammar"},  # which it ignores
        ),
        limits=replace(_CAREFUL, named_tool=False, idle_tools=False),
        choices=False,  # after a cancellation it goes on from the prompt of another request
        most_repeated=1999,
        only_streams=True,
        constraints={"gbnf": "grammar", **_SCHEMA},
        continues={},
    ),
    replace(
        _WHOLE,
        name="dragoman",
        server=("dragoman",),
        owned_by=("dragoman",),
        wires=("chat", "responses", "messages"),
        constraints=TEXT_CONSTRAINTS,  # where its listing says that the model's are enforced
        continues={"continue_final_message": True},
        guarantees=("best-effort",),
    ),
)

BY_NAME = {profile.name: profile for profile in (GENERIC, *PROFILES)}
ALONE = BY_NAME["anthropic"]
"""The profile of a server with neither Chat nor Responses, but with this one's protocol."""


AUTO = "auto"
"""The value of `wire` for detection."""


def unknown_kind(wire: str, profile: str | None) -> tuple[str, str] | None:
    """Which of these two no server is called with, and the reason.

    >>> unknown_kind("auto", "vlm")[1].partition("; ")[2]
    'did you mean vllm?'
    >>> unknown_kind("chat-completions", None)[1].partition("; ")[2]
    'did you mean chat?'
    """
    for field, value, known in (("wire", wire, (AUTO, *WIRES)), ("profile", profile, BY_NAME)):
        if value is not None and value not in known:
            kinds = ", ".join(sorted(known))
            begun = next(filter(value.startswith, known), value)  # as of `chat-completions`
            return field, f"is {value!r}, and must be one of {kinds}{hint(begun, known)}"
    return None


def by_url(base_url: str) -> Profile | None:
    """The profile of a well-known address; None for any other, and for an invalid one.

    >>> by_url("https://api.openai.com/v1").name
    'openai'
    """
    try:
        host = f".{urlsplit(base_url).hostname or ''}"
    except ValueError:
        return None
    for profile in PROFILES:
        if any(host.endswith(end if end[0] == "." else f".{end}") for end in profile.hosts):
            return profile
    return None


def by_answers(server: str | None, listing: Iterable[dict[str, Any]] = ()) -> Profile | None:
    """The profile by a `Server` header, or by a model listing: a gateway has the owners of others.

    >>> by_answers("llama.cpp").name
    'llama.cpp'
    """
    listing, header = [*listing], (server or "").lower()
    owners = {owner for entry in listing if isinstance(owner := entry.get("owned_by"), str)}
    names = [name for entry in listing if isinstance(name := entry.get("id"), str)]
    found = [each for each in PROFILES if header.startswith(each.server)]
    found += [each for each in PROFILES if owners.intersection(each.owned_by)]
    found += [p for p in PROFILES if p.listed and any(n.startswith(p.listed) for n in names)]
    return next(iter(found), None)
