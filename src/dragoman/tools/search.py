"""Queries search services, and fetches pages through the guard for addresses."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from ipaddress import ip_network
from typing import Any, TypeVar
from urllib.parse import urlencode, urljoin

import msgspec
from msgspec import Struct

from dragoman.core.interfaces import VERSION, Secret
from dragoman.core.item import JSON
from dragoman.net.client import Client, HeaderFields
from dragoman.net.connection import Limits, Timeouts
from dragoman.net.dial import resolve
from dragoman.net.errors import InvalidUrlError, NetError
from dragoman.net.threads import TenantLock, outlasting
from dragoman.net.url import Proxies, Url, check_authority, parse_url, split_base
from dragoman.wire import json

from .run import ToolError

_T = TypeVar("_T")

_log = logging.getLogger("dragoman")

SECONDS = 30.0
"""Seconds for a page with its redirects, and for a search."""
REDIRECTS = 5
MOST_BYTES = 2 * 1024 * 1024
"""Bytes of a page, decoded; what follows is left out."""
MOST_ANSWER = 2 * 1024 * 1024
"""Bytes of a search service's answer."""
MOST_VALUES = 50_000
"""Its commas, colons and brackets, which bound its JSON values."""
MOST_RESULTS = 1_000
"""Results that are looked at, for those with an allowed address."""
LONGEST_TEXT = 20_000
"""Characters of a result that are looked at, with their markup."""
LONGEST_QUERY = 400
"""Characters of a query: no service accepts much more."""
_TIMEOUTS = Timeouts(connect=10.0, first_byte=20.0, idle=10.0, total=SECONDS)
_LIMITS = Limits(connections=8, idle_connections=2, keep_alive=5.0)


class Place(Struct, frozen=True):
    """Roughly where the user is: a country's two letters, a region, a city, an IANA time zone."""

    country: str = ""
    region: str = ""
    city: str = ""
    timezone: str = ""


class Query(Struct, frozen=True):
    """A search: the query, the number of results (20 at most), and the allowed domains, if any."""

    text: str
    most: int = 10
    domains: tuple[str, ...] = ()
    place: Place = Place()

    @property
    def with_sites(self) -> str:
        """The query with the domains added, for services without a field for them, if there is
        room: results of other domains are filtered in any case."""
        whole = " ".join((self.text, " OR ".join(f"site:{domain}" for domain in self.domains)))
        return whole.rstrip() if len(whole) <= LONGEST_QUERY else self.text


class Found(Struct):
    """A result of a search."""

    url: str
    title: str = ""
    text: str = ""


class Asked(Struct):
    """A request to a search service."""

    url: str
    headers: HeaderFields = ()
    body: JSON = None


class Service(Struct, frozen=True):
    """A search service: its address, its key, and functions for its requests and
    responses."""

    name: str
    base: str
    key: Secret
    ask: Callable[[str, str, Query], Asked]
    results: tuple[str, ...] = ("results",)
    texts: tuple[str, ...] = ("content",)


def _searxng(base: str, key: str, query: Query) -> Asked:
    before, after = split_base(base)
    parameters = urlencode({"q": query.with_sites, "format": "json"})
    return Asked(f"{before}/search{after}{'&' if after else '?'}{parameters}")


def _brave(base: str, key: str, query: Query) -> Asked:
    parameters = {"q": query.with_sites, "count": query.most, "text_decorations": "false"}
    near = {
        # Its parameter `country` refuses most countries.
        "x-loc-country": query.place.country,
        "x-loc-state-name": query.place.region,
        "x-loc-city": query.place.city,
        "x-loc-timezone": query.place.timezone,
    }
    headers = [(name, value) for name, value in near.items() if value and value.isascii()]
    return Asked(f"{base}?{urlencode(parameters)}", (("x-subscription-token", key), *headers))


def _tavily(base: str, key: str, query: Query) -> Asked:
    body: dict[str, JSON] = {"query": query.text, "max_results": query.most}
    if query.domains:
        body["include_domains"] = query.domains
    return Asked(base, (("authorization", f"Bearer {key}"),), body)


def _exa(base: str, key: str, query: Query) -> Asked:
    body: dict[str, JSON] = {"query": query.text, "type": "auto", "numResults": query.most}
    body["contents"] = {"highlights": True}
    if query.domains:
        body["includeDomains"] = query.domains
    if query.place.country:
        body["userLocation"] = query.place.country
    return Asked(base, (("x-api-key", key),), body)


_SERVICES: dict[str, Mapping[str, Any]] = {
    "searxng": {"ask": _searxng},
    "brave": {
        "base": "https://api.search.brave.com/res/v1/web/search",
        "ask": _brave,
        "results": ("web", "results"),
        "texts": ("description", "extra_snippets"),
    },
    "tavily": {"base": "https://api.tavily.com/search", "ask": _tavily},
    "exa": {"base": "https://api.exa.ai/search", "ask": _exa, "texts": ("highlights", "text")},
}


def find_service(text: str, environ: Mapping[str, str]) -> Service:
    """The service that a configuration names: `searxng:URL`, or `brave`, `tavily` or `exa`, whose
    keys are in the environment, with an address of their own where they are behind another server
    (`exa:URL`). Raises ValueError, with a message that says what to do."""
    name, _, base = text.partition(":")
    about = _SERVICES.get(name)
    if about is None:
        raise ValueError(
            f"{name[:40]!r} is no search service: it must be searxng:URL, brave, tavily or exa"
        )
    key = ""
    if "base" in about:
        variable = f"{name.upper()}_API_KEY"
        key = environ.get(variable, "").strip()
        if not key or not (key.isascii() and key.isprintable()):
            raise ValueError(f"{name} needs its key in the environment variable {variable}")
    elif not base:
        raise ValueError(f"{name} needs an address: {name}:http://127.0.0.1:8888")
    try:
        parse_url(base or about["base"])
    except InvalidUrlError as error:
        raise ValueError(f"{name}: {error}") from None
    return Service(
        **{"name": name, "key": Secret(key), **about, **({"base": base} if base else {})}
    )


class Fetched(Struct):
    """A fetched page: its address after redirects, its `Content-Type`, and its bytes, which
    may be truncated."""

    url: str
    kind: str
    body: bytes
    cut: bool = False


class Fetcher:
    """The HTTP client for search services and pages.

    `allow` are networks that pages may be in though they are not public. Raises ValueError for what
    is no network.
    """

    def __init__(self, allow: Sequence[str] = (), proxies: Proxies | None = None) -> None:
        self._allow = tuple(str(ip_network(each, strict=False)) for each in allow)
        self._client = Client(proxies=proxies, timeouts=_TIMEOUTS, limits=_LIMITS)
        self._reading = TenantLock()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def in_turn(self, work: Callable[[], _T], tenant: str) -> _T:
        """Read or search pages and results in a thread, in turn; the turn ends with the work, also
        where the caller was cancelled."""
        await self._reading.acquire(tenant)
        return await outlasting(work, lambda: self._reading.release(tenant))

    # ---- searching -------------------------------------------------------------------------

    async def search(
        self, service: Service, query: Query, may: Callable[[str], bool], tenant: str = ""
    ) -> list[Found]:
        """The results at allowed hosts, for a tenant. Raises ToolError, with a message for the
        model; the one for the operator is logged."""
        asked = service.ask(service.base, service.key.reveal(), query)
        headers: HeaderFields = (
            ("accept", "application/json"),
            ("accept-encoding", "gzip"),
            ("user-agent", f"dragoman/{VERSION}"),
            *asked.headers,
        )
        method, body = "GET", None
        if asked.body is not None:
            method, body = "POST", msgspec.json.encode(asked.body)
            headers = (*headers, ("content-type", "application/json"))
        problem, status = "", 0
        try:
            async with asyncio.timeout(SECONDS):
                async with self._client.stream(method, asked.url, headers, body) as response:
                    status = response.status
                    answer = await response.read(MOST_ANSWER)
            if status == 200:
                if json.marks(answer) > MOST_VALUES:
                    raise NetError(f"its answer has more than {MOST_VALUES} values")
                # The hosts of many results, where they are not ASCII, take most of a second.
                return await self.in_turn(
                    partial(_results, service, answer, query.most, may), tenant
                )
            problem = _STATUSES.get(status, f"it answered with status {status}")
        except TimeoutError:
            problem = f"it did not answer within {SECONDS:g} seconds"
        except NetError as error:
            problem = str(error)
        except ValueError:
            problem = "its answer is no JSON"
        _log.warning("the search service %s failed: %s", service.name, problem)
        if status == 429:
            raise ToolError("There were too many searches. Try again later, or answer without.")
        raise ToolError("The search service does not answer. Answer with what you know.")

    # ---- fetching --------------------------------------------------------------------------

    async def fetch(self, url: str, may: Callable[[str], bool], tenant: str = "") -> Fetched:
        """Fetch a page for a tenant; `may` returns whether a host is allowed. Every address,
        redirects included, is checked before it is used, and pinned. Raises ToolError."""
        try:
            async with asyncio.timeout(SECONDS):
                for _ in range(REDIRECTS + 1):
                    fetched = await self._get(target(url), may, tenant)
                    if isinstance(fetched, Fetched):
                        return fetched
                    url = fetched
        except TimeoutError:
            raise ToolError(f"The page did not come within {SECONDS:g} seconds.") from None
        except (NetError, ValueError) as error:  # ValueError: for an invalid address
            raise ToolError(f"The page could not be opened: {error}.") from None
        raise ToolError(f"The page redirects more than {REDIRECTS} times.")

    async def _get(self, url: Url, may: Callable[[str], bool], tenant: str) -> Fetched | str:
        """A page, or the address that it redirects to."""
        if not may(url.host):
            raise ToolError(f"Pages of {url.host} may not be opened here.")
        address = await resolve(url, self._allow, tenant)
        async with self._client.stream("GET", url, _HEADERS, address=address) as response:
            status, place = response.status, response.header("location")
            if status in (301, 302, 303, 307, 308) and place:
                place = place.encode("latin-1").decode("utf-8", "replace")
                check_authority(place)
                return urljoin(_text_of(url), place)
            if not 200 <= status < 300:
                raise ToolError(f"The page's server answered with status {status}.")
            pieces, size = list[bytes](), 0
            async for piece in response.chunks():
                pieces.append(piece)
                size += len(piece)
                if size > MOST_BYTES:
                    break
            kind = response.header("content-type") or ""
            return Fetched(_text_of(url), kind, b"".join(pieces)[:MOST_BYTES], size > MOST_BYTES)


_HEADERS: HeaderFields = (
    ("accept", "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5"),
    ("accept-encoding", "gzip, deflate"),
    ("user-agent", f"dragoman/{VERSION}"),
)
_STATUSES = {
    401: "it refused the key",
    403: "it refused the request: the key may be wrong, or (SearXNG) `json` is not among the "
    "`formats` under `search` in its settings.yml",
    429: "there were too many requests",
}


def target(url: str) -> Url:
    """A valid address of a page. Raises ToolError for another scheme,
    credentials, or a port of another service."""
    try:
        parsed = parse_url(url)
    except InvalidUrlError as error:
        raise ToolError(f"This is no address of a web page: {error}.") from None
    if parsed.credentials is not None:
        raise ToolError("An address with a user name or password may not be opened.")
    if parsed.port not in (80, 443) and parsed.port < 1024:
        raise ToolError(f"Port {parsed.port} is not one of web pages.")
    return parsed


def _text_of(url: Url) -> str:
    return f"{url.scheme}://{url.authority}{url.target}"


def _results(service: Service, data: bytes, most: int, may: Callable[[str], bool]) -> list[Found]:
    """The results of a response: those with an allowed address. Raises ValueError where it is no
    JSON."""
    answer = json.load(data)
    for name in service.results:
        answer = answer.get(name) if isinstance(answer, dict) else None
    found: list[Found] = []
    for each in answer[:MOST_RESULTS] if isinstance(answer, list) else ():
        url = each.get("url") if isinstance(each, dict) else None
        if not isinstance(url, str) or len(found) == most:
            continue
        try:
            host = target(url).host
        except ToolError:
            continue
        if may(host):
            texts = [_words(each.get(name)) for name in service.texts]
            found.append(Found(url, _words(each.get("title")), " ".join(filter(None, texts))))
    return found


def _words(value: JSON) -> str:
    """The text of a result, or of a list, without markup."""
    values = value if isinstance(value, list) else [value]
    text = " … ".join(each[:LONGEST_TEXT] for each in values if isinstance(each, str))
    text = text[:LONGEST_TEXT]  # the rest is not shown, and takes long in one go
    return " ".join(re.sub(r"</?(?:strong|b|em|mark)>", "", text).split())


def is_within(host: str, domains: Sequence[str]) -> bool:
    """Whether a host is one of these domains, or below one.

    >>> is_within("docs.example.com", ["example.com"]), is_within("notexample.com", ["example.com"])
    (True, False)
    """
    host = host.rstrip(".")
    return any(host == each or host.endswith(f".{each}") for each in domains)
