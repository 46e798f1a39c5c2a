"""`dragoman serve`: collects what is to be served, prints the banner, and runs the server."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.interfaces import Engine, Model
from dragoman.engines.discover import discover
from dragoman.engines.local import NOTES, POCKET, stand_in
from dragoman.engines.pocket import MISSING
from dragoman.server.app import App
from dragoman.server.auth import generate_key
from dragoman.server.build import as_upstreams, assemble, others, prepare
from dragoman.server.config import (
    FILE,
    Configuration,
    ConfigurationError,
    Upstream,
    load,
    with_keys,
)
from dragoman.server.host import address, bind, check, reachable, run
from dragoman.server.settings import Settings
from dragoman.server.state.service import check_memory, open_memory


class Row(Struct, frozen=True):
    """One line of the table: a model, the server that answers, and what kind it is."""

    model: str
    source: str
    note: str = ""


SHOWN = 20
"""Models shown; the rest is counted."""


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
--- Codex (~/.codex/config.toml) -----------------------------------------------
model = "{model}"
model_provider = "dragoman"
[model_providers.dragoman]
name = "Dragoman"
base_url = "{url}"
wire_api = "responses"
{env_key}
Ctrl-C stops."""


def banner(
    base_url: str, rows: Sequence[Row], *, key_env: str | None = None, problem: str = ""
) -> str:
    """The whole text.

    `key_env` names the variable whose value clients must present; `problem` says why there is no
    listing.
    """
    return _PAGE.format(
        url=base_url,
        table=f"  {problem}\n  Any model's name is passed on." if problem else table(rows),
        model=rows[0].model if rows else "MODEL",
        import_os="import os\n" if key_env else "",
        key=f'os.environ["{key_env}"]' if key_env else '"none"',
        shell_key=f' -H "Authorization: Bearer ${key_env}"' if key_env else "",
        env_key=f'env_key = "{key_env}"\n' if key_env else "",
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
LISTING = 2.0
"""Seconds the model listing may take before the banner goes without it."""


def serve(options: Namespace) -> int:
    """Serve until a signal says to stop."""
    configuration = configured(options)
    settings = with_keys(_settings(options, configuration.server), os.environ)
    key_env = next(iter(settings.api_key_env), None)
    if options.generate_key:
        key, key_env = generate_key(), GENERATED
        settings = replace(settings, keys=(*settings.keys, key))
        print(f"export {GENERATED}={key.reveal()}   # what clients must present\n", flush=True)
    check(settings)
    chosen = _chosen(options, configuration)
    upstreams = _found() if chosen is None else chosen
    format = None if options.upstream else options.format  # else it is the upstream's
    prepare(
        upstreams, options.targets, settings, os.environ, format
    )  # its errors come before anything else is printed
    asyncio.run(check_memory(settings, os.environ, configuration.webhooks))
    listener = bind(settings, exact=settings.port != Settings().port or options.port is not None)
    if settings.port not in (0, listener.getsockname()[1]):
        print(f"Port {settings.port} is taken; this is the next free one.", file=sys.stderr)
    if chosen is None:  # OPENAI_BASE_URL, which is for clients, may name this server
        upstreams = others(upstreams, address(listener))
    printer = _Banner(f"{reachable(address(listener))}/v1", key_env)

    def build() -> App:
        printer.engine = assemble(upstreams, options.targets, settings, os.environ, format)
        memory = open_memory(settings, os.environ, configuration.webhooks)
        return App(printer.engine, settings, memory)

    if not (upstreams or options.targets or stand_in() == POCKET):
        print(f"No model was found: this is the demo engine. {MISSING}", file=sys.stderr)
    run(build, settings, listener, printer.start)
    return 0


class _Banner:
    """Prints the banner once the server is up, with the models if they are listed in time."""

    engine: Engine

    def __init__(self, base_url: str, key_env: str | None) -> None:
        self._base_url = base_url
        self._key_env = key_env

    def start(self) -> None:
        """Begin on the running loop; the start of the server does not wait for the models."""
        self._task = asyncio.ensure_future(self._print())

    async def _print(self) -> None:
        rows: list[Row] = []
        problem = ""
        try:
            async with asyncio.timeout(LISTING):
                rows = [_row(model) for model in await self.engine.models()]
        except FaultError as error:
            problem = error.fault.message
        except TimeoutError:
            problem = f"The upstream listed no models within {LISTING:g} s."
        text = banner(self._base_url, rows, key_env=self._key_env, problem=problem)
        print(text, flush=True)


def _row(model: Model) -> Row:
    place = (model.extra or {}).get("upstream")
    if place is not None:
        return Row(model.id, place["url"], place["kind"])
    ours = (model.extra or {}).get("models", {}).get("format")
    if model.id in NOTES or ours is not None:
        return Row(model.id, "this server", NOTES.get(model.id, f"a model of {ours}"))
    return Row(model.id, "an upstream that does not list it")


def configured(options: Namespace) -> Configuration:
    """The configuration file that was named, or else the one in this folder."""
    if options.config is not None:
        return load(options.config)
    here = Path(FILE)
    return load(here) if here.exists() else Configuration()


def _settings(options: Namespace, settings: Settings) -> Settings:
    """The file's settings, with those of the command line on top."""
    given = {
        name: value
        for name in ("host", "port", "workers", "request_log", "store")
        if (value := getattr(options, name)) is not None
    }
    if options.api_key_env:
        given["api_key_env"] = (options.api_key_env,)
    return replace(settings, **given)


def _chosen(options: Namespace, configuration: Configuration) -> list[Upstream] | None:
    """The upstreams that the command line or the file names; None: discover some."""
    if options.upstream:
        return [
            Upstream(
                name=url,
                url=url,
                key_env=options.upstream_key_env,
                wire=options.wire,
                profile=options.profile,
                format=options.format,
                retries=options.retries or 0,
            )
            for url in options.upstream
        ]
    for word in ("upstream_key_env", "profile", "wire", "format", "retries"):
        if word == "format" and options.targets:
            continue
        if getattr(options, word) not in (None, "auto"):
            raise ConfigurationError(f"--{word.replace('_', '-')} needs an --upstream.")
    if configuration.upstreams or options.targets:
        return list(configuration.upstreams) if not options.targets else []
    return None


def _found() -> list[Upstream]:
    print("Looking for model servers …", file=sys.stderr, flush=True)
    return as_upstreams(asyncio.run(discover(os.environ)))
