"""Builds the engine that a configuration describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from dragoman.core.interfaces import Engine, Secret
from dragoman.engines.completions import remote
from dragoman.engines.discover import Discovered
from dragoman.engines.local import Target, find_target, is_local, stand_in
from dragoman.engines.profiles import BY_NAME
from dragoman.engines.router import Route, Router

from .auth import is_loopback
from .config import ConfigurationError, Upstream, format_problem
from .settings import Settings


def assemble(
    upstreams: Sequence[Upstream],
    targets: Sequence[str],
    settings: Settings,
    environ: Mapping[str, str],
    format: str | None = None,
) -> Engine:
    """The engine for these upstreams and targets; with neither, the one that stands in. Models are
    loaded; `format` is the token format of those that take one.

    Raises ConfigurationError for a target or a profile that does not exist, a target that needs
    what is not installed or cannot be loaded, an address that is none, or a variable that holds no
    key.
    """
    return prepare(upstreams, targets, settings, environ, format)()


def prepare(
    upstreams: Sequence[Upstream],
    targets: Sequence[str],
    settings: Settings,
    environ: Mapping[str, str],
    format: str | None = None,
) -> Callable[[], Engine]:
    """The same in two steps: all is checked now, models are loaded when the result is called."""
    for upstream in upstreams:
        if upstream.pass_client_key and settings.keys:
            raise ConfigurationError(
                f"{upstream.name}: pass_client_key would send it the keys of this server's own "
                "clients. Ask for no key here (api_key_env), or give the upstream one of its own."
            )
    routes = [_route(upstream, settings, environ) for upstream in upstreams]
    named = tuple(dict.fromkeys(targets)) or (() if routes else (stand_in(),))
    found = [_target(target, format) for target in named]
    return lambda: Router([*routes, *(Route(_loaded(each), (each.name,)) for each in found)])


def _target(target: str, format: str | None) -> Target:
    """A target, checked. Raises ConfigurationError."""
    try:
        return find_target(target, **({} if format is None else {"format": format}))
    except ImportError as error:
        raise ConfigurationError(f"{error}.") from None
    except ValueError as error:
        hint = "" if is_local(target) else "; for a server, --upstream URL."
        raise ConfigurationError(f"{error}{hint}") from None


def _loaded(target: Target) -> Engine:
    try:
        return target.load()
    except ImportError as error:
        raise ConfigurationError(f"{error}.") from None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def as_upstreams(found: Sequence[Discovered]) -> list[Upstream]:
    """The servers that were discovered, as if they had been configured."""
    return [
        Upstream(
            name=server.base_url,
            url=server.base_url,
            key_env=server.key_env,
            profile=server.profile.name if server.profile else None,
        )
        for server in found
    ]


def others(upstreams: Sequence[Upstream], own: str) -> list[Upstream]:
    """Those that are not the server at `own`, a URL on this machine."""
    port = urlsplit(own).port
    return [
        upstream
        for upstream in upstreams
        if (place := urlsplit(upstream.url)).port != port or not is_loopback(place.hostname or "")
    ]


def _route(upstream: Upstream, settings: Settings, environ: Mapping[str, str]) -> Route:
    if upstream.profile is not None and upstream.profile not in BY_NAME:
        known = ", ".join(sorted(BY_NAME))
        problem = f"There is no profile {upstream.profile!r}. Profiles: {known}."
        raise ConfigurationError(problem)
    if wrong := format_problem(upstream):
        raise ConfigurationError(f"{upstream.name}: format {wrong}.")
    key = _key(upstream, environ)
    try:
        engine = remote(
            upstream.url,
            key=key,
            pass_client_key=upstream.pass_client_key,
            retries=upstream.retries,
            wire=upstream.wire,
            format=upstream.format,
            profile=upstream.profile,
            header_hold=settings.header_hold,
        )
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"{upstream.name}: {error}") from None
    return Route(engine, models=upstream.models, aliases=upstream.aliases)


def _key(upstream: Upstream, environ: Mapping[str, str]) -> Secret | None:
    if upstream.key_env is None:
        return None
    value = environ.get(upstream.key_env, "").strip()
    if not value:
        raise ConfigurationError(
            f"The environment variable {upstream.key_env} should hold the key to "
            f"{upstream.name}, and is empty."
        )
    return Secret(value)
