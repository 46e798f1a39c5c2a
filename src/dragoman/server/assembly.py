"""Builds the engine that a configuration describes: one remote engine for each upstream, a router
before them, the rehearsal where there is nothing else.

It knows what stands where, and nothing of requests. Keys are read from the environment here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from dragoman.core.interfaces import Engine
from dragoman.core.secret import Secret
from dragoman.engines.discover import Discovered
from dragoman.engines.profiles import BY_NAME
from dragoman.engines.rehearsal import rehearsal
from dragoman.engines.remote import Remote
from dragoman.engines.router import Route, Router

from .browser import is_loopback
from .configuration import ConfigurationError, Upstream
from .settings import Settings

TARGETS = ("script",)
"""The names that can be served without an address."""


def assemble(
    upstreams: Sequence[Upstream],
    targets: Sequence[str],
    settings: Settings,
    environ: Mapping[str, str],
) -> Engine:
    """The engine for these upstreams and targets; with neither, the rehearsal.

    Raises ConfigurationError for a target or a profile that does not exist, an address that is
    none, or a variable that holds no key.
    """
    for upstream in upstreams:
        if upstream.pass_client_key and settings.keys:
            raise ConfigurationError(
                f"{upstream.name}: pass_client_key would send it the keys of this server's own "
                "clients. Ask for no key here (api_key_env), or give the upstream one of its own."
            )
    routes = [_route(upstream, settings, environ) for upstream in upstreams]
    for target in targets:
        if target not in TARGETS:
            names = ", ".join(TARGETS)
            raise ConfigurationError(
                f"There is no target {target!r}. There is: {names}; for a server, --upstream URL."
            )
    if targets or not routes:
        routes.append(Route(rehearsal(), models=TARGETS))
    return Router(routes)


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
    key = _key(upstream, environ)
    try:
        engine = Remote(
            upstream.url,
            key=key,
            pass_client_key=upstream.pass_client_key,
            retries=upstream.retries,
            wire=upstream.wire,
            profile=upstream.profile,
            header_hold=settings.header_hold,
        )
    except ValueError as error:
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
