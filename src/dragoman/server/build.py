"""Builds the engine that a configuration describes, and the application around one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import asdict, replace

from dragoman.core.error import FaultError, hint
from dragoman.core.interfaces import Engine, Secret
from dragoman.engines.completions import remote
from dragoman.engines.discover import Discovered
from dragoman.engines.local import Target, find_target, is_local, stand_in
from dragoman.engines.router import Route, Router
from dragoman.tools.run import Hosted
from dragoman.voice.studio import Studio, studio

from .app import App
from .auth import is_loopback
from .config import (
    ConfigurationError,
    HostedTool,
    Upstream,
    check_name,
    clash,
    explained,
    place_of,
    problem_of,
    read_key,
    with_keys,
    without_credentials,
)
from .settings import Settings
from .state.service import open_memory


def assemble(
    upstreams: Sequence[Upstream],
    targets: Sequence[str],
    settings: Settings,
    environ: Mapping[str, str],
    options: Mapping[str, Any] = {},
) -> Router:
    """The engine for these upstreams and targets; with neither, the placeholder. Models are
    loaded; `options` are those of `find_target`.

    Raises ConfigurationError for a target or a profile that does not exist, a target that needs
    what is not installed or cannot be loaded, an address that is none, a variable that holds no
    key, or a name that two of them have.
    """
    return prepare(upstreams, targets, settings, environ, options)()


def prepare(
    upstreams: Sequence[Upstream],
    targets: Sequence[str],
    settings: Settings,
    environ: Mapping[str, str],
    options: Mapping[str, Any] = {},
) -> Callable[[], Router]:
    """The same in two steps: everything is checked now, models are loaded by calling the result."""
    for upstream in upstreams:
        if upstream.pass_client_key and settings.keys:
            raise ConfigurationError(
                f"{upstream.name}: pass_client_key would send it the keys of this server's own "
                "clients. Ask for no key here (api_key_env), or give the upstream one of its own."
            )
    if shared := clash(upstreams):
        number, field, why = shared
        raise ConfigurationError(f"{upstreams[number].name}: {field} {why}.")
    routes = [_route(upstream, settings, environ) for upstream in upstreams]
    found = find(targets or (() if routes else (stand_in(),)), options)
    owners = {name: each.name for each in upstreams for name in (*each.models, *each.aliases)}
    for target, each in found.items():
        if (owner := owners.setdefault(each.name, target)) != target:
            problem = (
                f"The model {each.name!r} is in both {owner} and {target}: rename one of them."
            )
            raise ConfigurationError(problem)
    own = found.values()
    return lambda: Router([*routes, *(Route(_loaded(each), (each.name,)) for each in own)])


def find(targets: Sequence[str], options: Mapping[str, Any]) -> dict[str, Target]:
    """The targets of these names, checked. Raises ConfigurationError."""
    found: dict[str, Target] = {}
    for target in targets:
        with explained(end="" if is_local(target) else "; for a server, --upstream URL."):
            found[target] = find_target(target, **options)
    return found


def _loaded(target: Target) -> Engine:
    with explained():
        return target.load()


def as_upstreams(found: Sequence[Discovered]) -> list[Upstream]:
    """The discovered servers as configured upstreams."""
    return [
        Upstream(
            name=place_of(server.base_url),
            url=server.base_url,
            key_env=server.key_env,
            profile=server.profile.name if server.profile else None,
        )
        for server in found
    ]


def others(upstreams: Sequence[Upstream], own: str) -> list[Upstream]:
    """The upstreams without the server at `own`, a URL on this machine."""
    port = urlsplit(own).port
    return [
        upstream
        for upstream in upstreams
        if (place := urlsplit(upstream.url)).port != port or not is_loopback(place.hostname or "")
    ]


def _route(upstream: Upstream, settings: Settings, environ: Mapping[str, str]) -> Route:
    if problem := problem_of(upstream):
        end = "" if problem[1].endswith("?") else "."
        raise ConfigurationError(f"{upstream.name}: {problem[0]} {problem[1]}{end}")
    key = None
    if upstream.key_env is not None:
        key = read_key(environ, upstream.key_env, f"the key to {upstream.name} (key_env)")
    with explained(f"{upstream.name}: "):
        engine = remote(
            upstream.url,
            key=key,
            pass_client_key=upstream.pass_client_key,
            retries=upstream.retries,
            wire=upstream.wire,
            format=upstream.format,
            date=upstream.date,
            profile=upstream.profile,
            header_hold=settings.header_hold,
            answer_limit=settings.answer_limit,
            name=None if "://" in upstream.name else upstream.name,
        )
    return Route(engine, upstream.models, upstream.aliases, upstream.name, upstream.realtime)


def studio_of(settings: Settings, environ: Mapping[str, str], *, pocket: bool = False) -> Studio:
    """The speech backends of the server, for the pocket model alone or for any.
    Raises ConfigurationError for what does not exist or is not installed, and for a variable that
    holds no key."""
    keys: dict[str, Secret] = {}
    for name in ("speech", "transcription"):
        if (variable := getattr(settings, f"{name}_key_env")) is not None:
            if "://" not in getattr(settings, name):
                raise ConfigurationError(f"{name}_key_env is for a URL in {name}.")
            keys[f"{name}_key"] = read_key(environ, variable, f"the key to {name}")
    try:
        with explained():
            return studio(
                settings.speech,
                settings.transcription,
                detector=settings.speech_detection,
                pocket=pocket,
                **keys,
            )
    except FaultError as error:
        raise ConfigurationError(without_credentials(error.fault.message)) from None


def application(engine: Engine, settings: Settings, environ: Mapping[str, str]) -> App:
    """The application, with all that its settings name opened: keys, the store and voices. Raises
    ConfigurationError, and StoreError for a place where no store can be."""
    settings = with_keys(settings, environ)
    memory, studio = open_memory(settings, environ), studio_of(settings, environ)
    return App(engine, settings, memory, studio=studio)


def hosted(tools: Sequence[HostedTool], environ: Mapping[str, str]) -> list[Hosted]:
    """The hosted tools. Each is imported when it is used. Raises ConfigurationError for
    one that does not exist, is named twice or lacks a package, and for a field
    that it does not have."""
    found: dict[str, Hosted] = {}
    servers: list[Any] = []
    for tool in tools:
        kind, equals, rest = tool.use.partition("=")
        name, _, label = kind.partition(":")
        if name not in _FIELDS or (label and name != "mcp"):
            known = "web=SERVICE, python, files, mcp:NAME=URL"
            problem = f"There is no tool {tool.use!r}{hint(name, _FIELDS)}; there is {known}."
            raise ConfigurationError(problem)
        for field, value in asdict(tool).items():
            if value and field not in ("use", *_FIELDS[name]):
                raise ConfigurationError(f"{tool.use}: {field} is not for this tool.")
        if name in found:
            raise ConfigurationError(f"{tool.use}: there is another tool of this kind.")
        with explained(f"{tool.use}: "):
            match name:
                case "web":
                    from dragoman.tools.web import Web

                    found[name] = Web.configured(rest, environ, allow=tool.allow)
                case "python":
                    from dragoman.tools.python import Python
                    from dragoman.tools.sandbox import Limits

                    usual = Limits()
                    limits = Limits(
                        seconds=tool.seconds or usual.seconds, memory=tool.memory or usual.memory
                    )
                    found[name] = Python(rest or "monty", limits=limits)
                case "files":
                    from dragoman.tools.files import FileSearch

                    found[name] = FileSearch()
                case "mcp":
                    from dragoman.tools.mcp import read_server

                    if label or equals:
                        fields = {name: getattr(tool, name) for name in _OF_SERVER}
                        given = {name: value for name, value in fields.items() if value}
                        servers.append(replace(read_server(f"{label}={rest}"), **given))
    mcp = [tool for tool in tools if tool.use.startswith("mcp")]
    if mcp:
        from dragoman.tools.mcp import MCP

        for tool in mcp:
            for variable in tool.headers.values():
                check_name(environ, variable, "a header of an MCP server")
        hosts, allow = ([each for tool in mcp for each in getattr(tool, name)] for name in _OF_ALL)
        with explained("mcp: "):
            found["mcp"] = MCP(servers, hosts=hosts, allow=allow, environ=environ)
    return list(found.values())


_OF_SERVER = ("headers", "environment", "approval", "allowed_tools", "seconds")
_OF_ALL = ("hosts", "allow")
_FIELDS = {
    "web": ("allow",),
    "python": ("seconds", "memory"),
    "files": (),
    "mcp": (*_OF_SERVER, *_OF_ALL),
}
"""The tools, with the fields that each has."""
