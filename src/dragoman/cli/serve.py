"""`dragoman serve`: collects what is to be served, prints the banner, and runs the server."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, cut, visible
from dragoman.core.interfaces import Model
from dragoman.engines.discover import discover
from dragoman.engines.local import NOTES, POCKET, stand_in
from dragoman.engines.pocket import MISSING
from dragoman.engines.router import Router
from dragoman.server.app import NO_STORE, App
from dragoman.server.auth import generate_key
from dragoman.server.build import (
    as_upstreams,
    assemble,
    find,
    hosted,
    others,
    prepare,
    studio_of,
)
from dragoman.server.config import (
    FILE,
    Configuration,
    ConfigurationError,
    HostedTool,
    Upstream,
    load,
    place_of,
    with_keys,
)
from dragoman.server.host import address, bind, check, reachable, run
from dragoman.server.settings import Settings
from dragoman.server.state.service import check_memory, open_memory
from dragoman.tools.files import FileSearch


class Row(Struct, frozen=True):
    """One line of the table: a model, the server that answers, and what kind it is."""

    model: str
    source: str
    note: str = ""


SHOWN, NAME = 20, 200
"""Models shown; the rest is counted. Characters of a name: all lines are as wide as the longest."""


_PAGE = """\
Dragoman is ready at {url}

{table}

--- curl -----------------------------------------------------------------------
curl -N {url}/chat/completions -H "Content-Type: application/json"{shell_key} \\
  -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

--- openai SDK -----------------------------------------------------------------
{import_os}from openai import OpenAI
client = OpenAI(base_url="{url}", api_key={key})
for event in client.responses.create(model="{model}", input="Hello!", stream=True):
    print(getattr(event, "delta", ""), end="", flush=True)

print()
hello = [{{"role": "user", "content": "Hello!"}}]
for chunk in client.chat.completions.create(model="{model}", messages=hello, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)

print()
{agents}

Ctrl-C stops."""
_AGENTS = """\
--- Codex (~/.codex/config.toml) -----------------------------------------------
model = "{model}"
model_provider = "dragoman"
[model_providers.dragoman]
name = "Dragoman"
base_url = "{url}"
wire_api = "responses"
{env_key}
--- Claude Code ----------------------------------------------------------------
export ANTHROPIC_BASE_URL={root} ANTHROPIC_AUTH_TOKEN={token}
export ANTHROPIC_DEFAULT_HAIKU_MODEL={word}
claude --model {word}"""
_NO_AGENTS = """\
--- Codex, Claude Code ---------------------------------------------------------
They send prompts of 15,000 tokens and more, and this model holds 4,096: serve another."""


def banner(
    base_url: str, rows: Sequence[Row], *, key_env: str | None = None, problems: Sequence[str] = ()
) -> str:
    """The whole text.

    `key_env` names the variable whose value clients must present; `problems` says which upstreams
    list nothing, and why.
    """
    # It is pasted into shells and code: a name that could end a string there is left out.
    model = next((row.model for row in rows if _NAME.fullmatch(row.model)), "MODEL")
    known = table(rows) if rows or not problems else "  Any model's name is passed on."
    agents = _NO_AGENTS if model == POCKET else _AGENTS
    return _PAGE.replace("{agents}", agents).format(
        url=base_url,
        root=base_url.removesuffix("/v1"),
        table="\n".join((*(f"  {problem}" for problem in problems), known)),
        model=model,
        word=shlex.quote(model),
        import_os="import os\n" if key_env else "",
        key=f'os.environ["{key_env}"]' if key_env else '"none"',
        shell_key=f' -H "Authorization: Bearer ${key_env}"' if key_env else "",
        env_key=f'env_key = "{key_env}"\n' if key_env else "",
        token=f'"${key_env}"' if key_env else "none",
    )


def table(rows: Sequence[Row], *, most: int = SHOWN) -> str:
    """The models, in columns; beyond `most` they are only counted.

    >>> print(table([Row("m", "http://127.0.0.1:11434/v1", "ollama")]))
      MODEL  ANSWERED BY
      m      http://127.0.0.1:11434/v1  (ollama)
    """
    if not rows:
        return "  No models are listed; any name is passed through."
    width = max(5, *(len(row.model) for row in rows[:most]))
    lines = [f"  {'MODEL':<{width}}  ANSWERED BY"]
    for row in rows[:most]:
        note = f"  ({row.note})" if row.note else ""
        lines.append(f"  {row.model:<{width}}  {row.source}{note}")
    if len(rows) > most:
        lines.append(f"  … and {len(rows) - most} more: dragoman models")
    return "\n".join(lines)


GENERATED = "DRAGOMAN_KEY"
"""The variable a generated key is shown to be put into."""
NO_PUBSUB = "pubsub is not used: it is for servers that share a store in PostgreSQL."
ONE_KEY = (
    "--upstream-key-env needs a single --upstream: no server is sent another's key. With several, "
    f"give each an entry in {FILE}, with its own key_env."
)
LISTING = 2.0
"""Seconds the model listing may take before the banner goes without it."""


def serve(options: Namespace) -> int:
    """Serve until a signal says to stop."""
    configuration = configured(options)
    settings = with_keys(_settings(options, configuration.server), os.environ)
    key_env = next(iter(settings.api_key_env), None)
    if options.generate_key:
        key, key_env = generate_key(), GENERATED
        settings = replace(settings, keys=(key, *settings.keys))
        print(f"export {GENERATED}={key.reveal()}   # what clients must present\n", flush=True)
    check(settings)
    upstreams, targets = chosen(options, configuration), options.targets
    discovering = upstreams is None
    if upstreams is None:
        file = options.config or Path(FILE)
        unused = f"{file} has no [[upstreams]]. " if file.exists() else ""
        print(f"{unused}Looking for model servers …", file=sys.stderr, flush=True)
        upstreams = as_upstreams(asyncio.run(discover(os.environ)))
    loading = loading_options(options)
    # Its errors come before anything else is printed.
    prepare(upstreams, targets, settings, os.environ, loading)
    named = (*configuration.tools, *(HostedTool(use=each) for each in options.tools))
    tools = hosted(named, os.environ)
    if settings.store == "none" and any(isinstance(tool, FileSearch) for tool in tools):
        raise ConfigurationError(f"files: {NO_STORE}")
    studio_of(settings, os.environ)
    local = {each.name: ("this server", kind) for kind, each in find(targets, loading).items()}
    if settings.pubsub and not settings.store.startswith("postgres"):
        print(NO_PUBSUB, file=sys.stderr)
    asyncio.run(check_memory(settings, os.environ, configuration.webhooks))
    listener = bind(settings, exact=configuration.port_given or options.port is not None)
    if settings.port not in (0, listener.getsockname()[1]):
        print(f"Port {settings.port} is taken; this is the next free one.", file=sys.stderr)
    if discovering:  # OPENAI_BASE_URL, which is for clients, may name this server
        upstreams = others(upstreams, address(listener))
    elif not options.config and Path(FILE).exists():
        print(f"Configuration: {Path(FILE).resolve()}", file=sys.stderr)
    if not (upstreams or targets or stand_in() == POCKET):
        print(f"No model was found: this is the demo engine. {MISSING}", file=sys.stderr)
    engines: list[Router] = []
    tasks: list[asyncio.Task[None]] = []

    def build() -> App:
        engines.append(assemble(upstreams, targets, settings, os.environ, loading))
        memory = open_memory(settings, os.environ, configuration.webhooks)
        alone = not upstreams and {*(targets or (stand_in(),))} == {POCKET}
        studio = studio_of(settings, os.environ, pocket=alone)
        return App(engines[-1], settings, memory, hosted(named, os.environ), studio)

    def ready() -> None:  # the start of the server does not wait for the models
        url = f"{reachable(address(listener))}/v1"
        asked = settings.embedding_model
        announcing = _announce(engines[-1], url, key_env, upstreams, local, asked)
        tasks.append(asyncio.get_running_loop().create_task(announcing))

    run(build, settings, listener, ready)
    return 0


def loading_options(options: Namespace) -> dict[str, object]:
    """The options that are for the targets."""
    words = ("context", "gpu_layers", "threads", *(() if options.upstream else ("format", "date")))
    return {word: value for word in words if (value := getattr(options, word)) is not None}


async def _announce(
    engine: Router,
    base_url: str,
    key_env: str | None,
    upstreams: Sequence[Upstream],
    places: Mapping[str, tuple[str, str]],
    embedding: str,
) -> None:
    """Print the banner, with the models that are listed in time and why others are not; and where
    all are, whether the one for vectors is none of them."""
    listings = await engine.listings(patience=LISTING)
    problems, places = [], dict(places)
    listed: dict[str, str] = {}
    for upstream, listing in zip(upstreams, listings, strict=False):  # targets come after these
        if isinstance(listing, BaseException):
            late = f"it listed no models within {LISTING:g} s"
            why = late if isinstance(listing, TimeoutError) else f"{listing}"
            answers = isinstance(listing, FaultError) and listing.fault.code == "upstream_error"
            unlisted = "cannot be used" if answers else "does not answer"
            problems.append(visible(f"{upstream.name} {unlisted}: {why}", True))
            kinds = {}
        else:
            unlisted = "does not list it"
            kinds = {each.id: (each.extra or {})["upstream"]["kind"] for each in listing}
        for name in (*(upstream.models or kinds), *upstream.aliases):
            note = kinds.get(upstream.aliases.get(name, name), unlisted)
            places.setdefault(name, (upstream.name, note))
        if not upstream.models:
            twice = [name for name in kinds if name in listed]
            problems += [
                visible(
                    f"{name}: {listed[name]} is asked, not {upstream.name}, which has it too", True
                )
                for name in twice[:3]
            ]
            listed |= {name: upstream.name for name in kinds if name not in listed}
    try:
        models = engine.merge(listings)
        rows = [row(model, "this server", places) for model in models]
        known = models and not any(isinstance(each, BaseException) for each in listings)
        if embedding and known and embedding not in {model.id for model in models}:
            problems.append(f"embedding_model: no server lists {embedding!r}")
    except (FaultError, TimeoutError):
        rows = []
    print(banner(base_url, rows, key_env=key_env, problems=problems), flush=True)


def row(model: Model, here: str, places: Mapping[str, tuple[str, str]] = {}) -> Row:
    """The line of a model; `here` is what answers for those that no server is behind, `places` has
    what answers for some names, and of what kind that is."""
    extra, name = model.extra or {}, visible(cut(model.id, NAME), True)
    if (known := places.get(model.id)) is not None and known[1] not in NOTES:
        return Row(name, *known)
    if (place := extra.get("upstream")) is not None:
        return Row(name, place["url"], place["kind"])
    ours = extra.get("models", {}).get("format", "no format")
    return Row(name, here, NOTES.get(model.id, f"a model of {ours}"))


_NAME = re.compile(r"[\w .,:/@+=-]+")


def configured(options: Namespace) -> Configuration:
    """The configuration file that was named, or else the one in this folder."""
    here = options.config or Path(FILE)
    return load(here) if options.config or here.exists() else Configuration()


_SETTINGS = (
    *("host", "port", "workers", "request_log", "log_format", "store"),
    *("speech", "transcription"),
)
"""Settings that have an option of the same name."""


def _settings(options: Namespace, settings: Settings) -> Settings:
    """The file's settings, with those of the command line on top."""
    given = {name: value for name in _SETTINGS if (value := getattr(options, name)) is not None}
    if options.api_key_env:
        given["api_key_env"] = (options.api_key_env,)
    return replace(settings, **given)


def chosen(options: Namespace, configuration: Configuration) -> Sequence[Upstream] | None:
    """The upstreams that the command line or the file names; None: discover some."""
    words = ("upstream_key_env", "profile", "wire", "format", "date", "retries")
    given = {word: value for word in words if (value := getattr(options, word)) is not None}
    if len(options.upstream) > 1 and options.upstream_key_env:
        raise ConfigurationError(ONE_KEY)
    if options.upstream:
        fields = {word.removeprefix("upstream_"): value for word, value in given.items()}
        return [Upstream(name=place_of(url), url=url, **fields) for url in options.upstream]
    for word in ("context", "gpu_layers", "threads"):
        if getattr(options, word) is not None and not options.targets:
            raise ConfigurationError(f"--{word.replace('_', '-')} needs a TARGET, such as gguf:…")
    for word in given:
        if word not in ("format", "date") or not options.targets:
            raise ConfigurationError(f"--{word.replace('_', '-')} needs an --upstream.")
    return () if options.targets else configuration.upstreams or None
