"""A server behind an address: its wires, profile, keys and models, and the faults of its errors."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from math import ceil, inf
from time import time
from typing import Any, TypeVar
from urllib.parse import urljoin
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import CUT, LONGEST_NAME, Code, Fault, FaultError, bad_request
from dragoman.core.event import Event, Failed, Finished
from dragoman.core.interfaces import HOPS_HEADER, VERSION_HEADER, Caller, Decoder, Model, Secret
from dragoman.core.loss import Loss
from dragoman.core.lower import Lowered, UpstreamLimits
from dragoman.core.response import Guarantee
from dragoman.core.turn import Turn
from dragoman.net.client import Client, Exchange, HeaderFields, Response
from dragoman.net.connection import Limits
from dragoman.net.errors import (
    ConnectError,
    DisconnectedError,
    InvalidUrlError,
    NetError,
    NetTimeoutError,
    ProxyError,
    RemoteProtocolError,
    TLSError,
    TooLargeError,
)
from dragoman.net.threads import Lanes, reading
from dragoman.net.url import Proxies, parse_url, split_base
from dragoman.wire import error as wire_error
from dragoman.wire import json
from dragoman.wire.protocol import Wire
from dragoman.wire.registry import WIRES

from .again import Again
from .profiles import ALONE, AUTO, BY_NAME, GENERIC, Profile, by_answers, by_url, unknown_kind

_log = logging.getLogger("dragoman")
_T = TypeVar("_T")

PATIENCE = 2.0
"""Seconds to read the body of an error response."""
LONGEST_WAIT = 60.0
"""The most seconds before a configured retry, whatever Retry-After says."""
LONGEST_RETRY_AFTER = 86_400
"""The most seconds of a `Retry-After` that is sent to clients: some obey any value."""
_SECONDS = frozenset("0123456789.")
_ABSENT = (404, 405)
REDIRECTS = frozenset((301, 302, 303, 307, 308))
BUSY = (429, 503, 529)
"""The statuses of a refusal that may be tried again later."""
UNSURE = frozenset((0, 401, 403, *BUSY, 500, 502, 504))
"""The statuses of an answer that says nothing about the wires of a server; 0 is of none."""
AGAIN = 30.0
"""Seconds after which the wires of a server that gave such an answer are looked for again."""
SHORTEST_SECRET = 8
"""Characters below which a key is a placeholder that may be a word of the message."""


def broken(error: NetError) -> Fault:
    """The fault for a network error."""
    match error:
        case NetTimeoutError():
            return Fault(
                "upstream_timeout", f"The model's server is too slow: {error}.", "upstream"
            )
        case DisconnectedError(before_first_byte=False):
            return CUT
        case TooLargeError():
            problem = f"The model's server sent more than is read: {error}."
            return Fault("upstream_error", problem, "upstream")
        case RemoteProtocolError():
            problem = f"The model's server does not speak HTTP: {error}."
            return Fault("upstream_error", problem, "upstream")
        case ConnectError(__cause__=OSError(errno=errno.EMFILE | errno.ENFILE)):
            problem = "This server has as many files open as its system lets it (ulimit -n)."
            return Fault("overloaded", problem, "server", retry_after="1")
        case _:
            return unreachable(str(error))


def unreachable(what: str) -> Fault:
    """The fault for a server that cannot be reached."""
    problem = f"The model's server cannot be reached: {what}. Is it running, and at this address?"
    return Fault("upstream_unreachable", problem, "upstream")


_KEYS = (
    "--upstream-key-env, or key_env in the file; for ask, chat, models, run and talk --key-env; "
    "key= in Python"
)


def key_refused(name: str, status: int, key: Secret | None, where: str = _KEYS) -> Fault:
    """A server refused the key that we, not our client, have for it, or wants one; `where` is the
    place of that."""
    who = name[0].upper() + name[1:]
    message = (
        f"{who} asks for a key, and none was given for it ({status}). Give it one"
        if key is None
        else f"{who} refused the key that was given for it ({status}). Give it a working one"
    )
    return Fault(
        "upstream_authentication",
        f"{message} ({where}).",
        "server",
        status=status,
    )


def wait(retry_after: str | None, attempt: int) -> float:
    """Seconds before a configured retry.

    >>> wait("3", 0), wait("86400", 0), wait(None, 2)
    (3.0, 60.0, 2.0)
    """
    asked = retry_after or ""
    seconds = float(asked) if asked.isdecimal() else 0.5 * 2**attempt
    return min(seconds, LONGEST_WAIT)


def bounded(retry_after: str | None) -> str | None:
    """A Retry-After for clients: unchanged, unless it is invalid, too long, or in a format
    that not every client can parse.

    >>> bounded("3"), bounded("0.5"), bounded("1" + "0" * 20), bounded("-1"), bounded("soon")
    ('3', '0.5', '86400', None, None)
    >>> bounded("1e3"), bounded("1_0.5"), bounded("nan")
    ('1000', '11', None)
    >>> bounded("Wed, 21 Oct 2015 07:28:00 GMT"), bounded("Fri, 31 Dec 9999 23:59:59 GMT")
    ('Wed, 21 Oct 2015 07:28:00 GMT', '86400')
    """
    if retry_after is None or not retry_after.isascii() or len(retry_after) > 64:
        return None
    try:
        seconds = float(retry_after)
        if not set(retry_after) <= _SECONDS:
            retry_after = str(ceil(min(seconds, LONGEST_RETRY_AFTER)))
    except ValueError:
        try:
            seconds = max(parsedate_to_datetime(retry_after).timestamp() - time(), 0.0)
        except (ValueError, OverflowError):
            return None
    if seconds > LONGEST_RETRY_AFTER:
        return str(LONGEST_RETRY_AFTER)
    return retry_after if seconds >= 0 else None


def without(fault: Fault, key: Secret | None) -> Fault:
    """The fault with the key removed from its message: some servers quote what they refuse.

    >>> without(Fault("internal", "No such key: sk-12345678."), Secret("sk-12345678")).message
    'No such key: ***.'
    """
    encoded = json.dump(msgspec.to_builtins(fault))
    hidden = without_key(encoded, key)
    return fault if hidden == encoded else msgspec.json.decode(hidden, type=Fault)


def without_key(data: bytes, key: Secret | None) -> bytes:
    """The JSON with the key removed, unless it is too short to be told from other text."""
    if key is None or len(key.reveal()) < SHORTEST_SECRET:
        return data
    return data.replace(json.dump(key.reveal())[1:-1], str(key).encode())


def sendable(key: Secret | str | None) -> Secret | None:
    """The key, if it is valid in a header. Raises ValueError, without the key, if not.

    >>> sendable("a\\nb")
    Traceback (most recent call last):
        ...
    ValueError: the key holds characters that no header can carry
    """
    value = key.reveal() if isinstance(key, Secret) else key
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"the key is of type {type(value).__name__}, and must be a text")
    if not (value.isascii() and value.isprintable()):
        raise ValueError("the key holds characters that no header can carry")
    return Secret(value)


PROBE_TIMEOUT = 1.0
"""Seconds for each probe."""


class Answer(Struct, frozen=True):
    """The result of a probe: the status (0: none), the `Server` header, the JSON if it was JSON.

    `ours`: the answer has the mark of a Dragoman; `fault` is the reason where no connection was
    possible.
    """

    status: int = 0
    server: str | None = None
    value: Any = None
    ours: bool = False
    fault: Fault | None = None
    location: str = ""


Senses = dict[str, frozenset[str] | None]
"""The input modalities of each listed model (`text`, `image`, `audio` …); None where unknown."""


def recognise(listing: Answer) -> Profile | None:
    """The profile by the model listing."""
    server = "dragoman" if listing.ours else listing.server  # a proxy has its own
    return by_answers(server, entries(listing.value))


def senses(listing: list[dict[str, Any]]) -> Senses:
    """The input modalities of models in a listing.

    >>> senses([{"id": "m", "architecture": {"input_modalities": ["text"]}}, {"id": "n"}])
    {'m': frozenset({'text'}), 'n': None}
    """
    found: Senses = {}
    for entry in listing:
        match entry:
            case {"id": str(name), "architecture": {"input_modalities": [*taken]}}:
                found[name] = frozenset(map(str, taken))
            case {"id": str(name)}:
                found[name] = None
    return found if any(taken is not None for taken in found.values()) else {}


_CONTEXT = (
    *("context_window", "max_model_len", "context_length", "max_context_length"),
    "max_input_tokens",
)


def context(entry: dict[str, Any]) -> int | None:
    """The context size in a model's listing, under any of the names servers use.

    >>> context({"max_model_len": 4096}), context({"meta": {"n_ctx": 512}}), context({})
    (4096, 512, None)
    """
    meta = entry.get("meta")
    named = [entry.get(name) for name in _CONTEXT]
    if isinstance(meta, dict):
        named += [meta.get("n_ctx"), meta.get("n_ctx_train")]
    sizes = (size for size in named if type(size) is int and 0 < size < json.FAR)
    return next(sizes, None)


def entries(value: Any) -> list[dict[str, Any]]:
    """The models of a listing of any shape; none where it is no listing."""
    data = value.get("data") if isinstance(value, dict) else value
    return [e for e in data if isinstance(e, dict)] if isinstance(data, list) else []


async def question(
    client: Client,
    method: str,
    url: str,
    headers: HeaderFields,
    content: bytes | None = None,
    patience: float = PROBE_TIMEOUT,
) -> Answer:
    """Send a probe; errors are part of the result."""
    if content is not None:
        headers = (*headers, ("content-type", "application/json"))
    try:
        async with asyncio.timeout(patience), client.stream(method, url, headers, content) as reply:
            raw, value = await reply.read(LONGEST_LISTING), None
            if json.marks(raw) > MAX_VALUES:
                raise TooLargeError(f"more than {MAX_VALUES} values in one answer")
            with suppress(ValueError):
                value = json.load(raw)
            ours = reply.header(VERSION_HEADER) is not None
            location = reply.header("location") or ""
            return Answer(reply.status, reply.header("server"), value, ours, location=location)
    except (ConnectError, TLSError, ProxyError, TooLargeError) as error:
        return Answer(fault=broken(error))
    except (NetError, TimeoutError):
        return Answer()


PIECES = 1
"""Pieces of all large answers that are decoded in a turn of the event loop: one may take 20 ms."""
LISTING = 5.0
"""Seconds for a server to list its models."""
LONGEST_LISTING, MAX_MODELS = 4 * 1024 * 1024, 10_000
"""The most bytes and models of a listing: the largest known has some hundreds in a megabyte."""
MAX_VALUES = 100_000
"""The most JSON values of a listing, or of another probe's answer; the largest has 20,000."""
FRESH, MOST_FRESH = 1.0, 16
"""Seconds that a listing is cached for requests with the same headers, and the size of the
cache: without it, a mesh of gateways would multiply the requests."""


class Listing(Struct):
    """A cached listing, which may still be loading, and when it expires."""

    task: asyncio.Task[tuple[Model, ...]]
    until: float = inf

    def listed(self, task: asyncio.Task[tuple[Model, ...]]) -> None:
        """The listing was loaded, or failed: errors are cached, too, except a cancellation."""
        failed = task.cancelled() or task.exception()  # retrieve the exception
        self.until = 0.0 if failed is True else task.get_loop().time() + FRESH


def _elsewhere(task: asyncio.Task[Any]) -> bool:
    """Whether it is under way in another event loop: this one cannot wait for it."""
    return not task.done() and task.get_loop() is not asyncio.get_running_loop()


class Room(Struct):
    """The bytes left for the answers to one request, which may be `shared` by several."""

    left: int
    shared: bool = False


class Upstream:
    """A server. `wires` are its protocols, none until they are detected; `limits` and `profile`
    describe what it accepts, and `headers` are sent with every request. `recognised`: its kind is
    known. `name` is its name in faults, which clients see: never its address. `place` is the
    address without credentials, for the log. `query` is added to the URL of every request."""

    def __init__(
        self,
        base_url: str,
        *,
        key: Secret | str | None,
        pass_client_key: bool,
        wire: str,
        profile: str | None,
        client: Client | None,
        answer_limit: int = Limits().body_bytes,
        name: str | None = None,
    ) -> None:
        url = parse_url(base_url)  # raises at once for an invalid address
        if unknown := unknown_kind(wire, profile):
            raise ValueError(" ".join(unknown))
        self.url, self.query = split_base(base_url)
        for wire_path in (known.path for known in WIRES.values()):
            if self.url.endswith(wire_path):
                problem = f"the URL ends with {wire_path}, which is added to it: leave that out"
                raise InvalidUrlError(problem)
        self.place = str(parse_url(self.url))
        bare = "/" not in self.url.partition("://")[2]
        self._no_path = " (many servers want an address that ends with /v1)" if bare else ""
        self.name = f"the upstream {name}" if name else "the upstream"
        self._password = Secret((url.credentials or "").partition(":")[2])
        self._key = sendable(key)
        self.passes_client_key = pass_client_key
        self._own_client = client is None
        proxies = Proxies.from_environ(os.environ)
        proxies.choose(url)  # raises at once for one that cannot be used
        self.client = client or Client(
            proxies=proxies,
            limits=Limits(body_bytes=answer_limit),
            name=self.name,
        )
        known = BY_NAME[profile] if profile is not None else by_url(self.url)
        self.profile: Profile = known or GENERIC
        self.recognised = known is not None
        self.known_headers: dict[int, HeaderFields] = {}  # by hops; every request has the same
        self.server_header = b""  # the last `Server` header
        self.wires: tuple[str, ...] = (wire,) if wire != AUTO else self.profile.wires
        self._looking: asyncio.Task[None] | None = None
        self.senses: Senses = {}
        self._redirect = ""  # its last redirect
        self._listings: dict[HeaderFields, Listing] = {}
        self._turns = WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Callable[[], None]]]()
        self._large = Lanes()

    def at(self, path: str) -> str:
        """The URL of a path on the server."""
        return self.url + path + self.query

    async def find_out(self, caller: Caller) -> None:
        """Probe the server's kind and wires once, also for concurrent callers. A timeout is
        no error. Raises FaultError where no connection to the server is
        possible; the next caller probes again, as where only a caller's key was refused."""
        if own := (looking := self._looking) is None or _elsewhere(looking):
            looking = self._looking = asyncio.ensure_future(self._look(self.headers(caller)))
            looking.add_done_callback(self._looked)
        await asyncio.shield(looking)
        if not (own or self.wires):  # the key was another caller's
            await self._look(self.headers(caller))

    async def _look(self, headers: HeaderFields) -> None:
        listing = await question(self.client, "GET", self.at("/models"), headers)
        if listing.fault is not None:
            raise FaultError(listing.fault)
        profile, wires = recognise(listing), list[str]()
        if profile is None or not profile.wires:
            reply = await question(self.client, "POST", self.at("/responses"), headers, b"{}")
            profile = profile or by_answers(reply.server)
            wires = ["responses", "chat"] if reply.status in (400, 422) else ["chat"]
            if self.passes_client_key and reply.status in UNSURE:
                # It may refuse, or limit, this caller's key: that decides for nobody else.
                url = self.at(WIRES["chat"].path)
                chat = await question(self.client, "POST", url, headers, b"{}")
                if chat.status not in (400, 422):
                    return
            if reply.status in UNSURE:
                asyncio.get_running_loop().call_later(AGAIN, self._look_again)
            if profile is None and reply.status in _ABSENT:
                profile = await self._alone(headers)
        self._recognise(profile)
        self.wires = (profile and profile.wires) or tuple(wires)
        self._sense(entries(listing.value))

    async def _alone(self, headers: HeaderFields) -> Profile | None:
        """The profile of a server with its own protocol and no Chat."""
        url = self.at(WIRES["chat"].path)
        chat = await question(self.client, "POST", url, headers, b"{}")
        if chat.status not in _ABSENT:
            return None
        wire = WIRES[ALONE.wires[0]]
        headers = (*headers, *wire.upstream_headers)
        reply = await question(self.client, "POST", self.at(wire.path), headers, b"{}")
        speaks = reply.status in (400, 401, 403, 422) and isinstance(reply.value, dict)
        return ALONE if speaks and reply.value.get("type") == "error" else None

    async def models(self, caller: Caller) -> tuple[Model, ...]:
        """The server's own listing, requested once for concurrent callers.
        Raises FaultError where it has none."""
        headers = self.headers(caller)
        if self.wires:
            headers = (*headers, *WIRES[self.wires[0]].upstream_headers)
        now = asyncio.get_running_loop().time()
        self._listings = {k: known for k, known in self._listings.items() if known.until > now}
        if (listing := self._listings.get(headers)) is None or _elsewhere(listing.task):
            listing = Listing(asyncio.ensure_future(self._list(headers, caller)))
            listing.task.add_done_callback(listing.listed)
            if len(self._listings) < MOST_FRESH:
                self._listings[headers] = listing
        return await asyncio.shield(listing.task)

    async def _list(self, headers: HeaderFields, caller: Caller) -> tuple[Model, ...]:
        answer = await question(self.client, "GET", self.at("/models"), headers, patience=LISTING)
        if answer.fault is not None:
            raise FaultError(answer.fault)
        if not answer.status:
            raise FaultError(unreachable(f"{self.name} did not answer"))
        if answer.status in (401, 403):
            raise FaultError(self._unauthorised(answer.status, caller))
        if answer.status in REDIRECTS:
            raise FaultError(self._redirected(answer.status, answer.location))
        if answer.status != 200:
            raise FaultError(unreachable(f"{self.name} has no model listing{self._no_path}"))
        self._recognise(recognise(answer))
        listing = entries(answer.value)
        if len(listing) > MAX_MODELS:
            what = TooLargeError(f"{self.name} lists more than {MAX_MODELS} models")
            raise FaultError(broken(what))
        self._sense(listing)
        models = []
        for entry in listing:
            owner, created, size = entry.get("owned_by"), entry.get("created"), context(entry)
            extra = {
                "models": entry if size is None else entry | {"context_window": size},
                "upstream": {"url": self.place, "kind": self.profile.name},
            }
            if not isinstance(owner, str):
                owner = "unknown"
            if isinstance(name := entry.get("id"), str) and 0 < len(name) <= LONGEST_NAME:
                if type(created) is not int or not 0 <= created < json.FAR:
                    created = 0
                models.append(Model(name, owner, created, extra))
        return tuple(models)

    def _sense(self, listing: list[dict[str, Any]]) -> None:
        """Note the modalities of the listed models: a caller's key may not show all of them."""
        known = self.senses if self.passes_client_key and len(self.senses) < MAX_MODELS else {}
        self.senses = known | senses(listing)

    def limits(self, model: str) -> UpstreamLimits:
        """The capabilities of a model. A server that lists one model, for all keys, uses it for
        every name."""
        if not self.senses:
            return self.profile.limits
        alone = len(self.senses) == 1 and not self.passes_client_key
        senses = self.senses.get(model, next(iter(self.senses.values())) if alone else None)
        if senses is None:
            return self.profile.limits
        return replace(self.profile.limits, images="image" in senses, audio="audio" in senses)

    @staticmethod
    def own_headers(wire: Wire, caller: Caller) -> HeaderFields:
        """Extra headers for this wire."""
        headers = dict(wire.upstream_headers)
        if caller.wire == wire.name:
            given = dict(caller.headers)
            headers |= {name: given[name] for name in wire.request_headers if name in given}
        return tuple(headers.items())

    def headers(self, caller: Caller) -> HeaderFields:
        """Headers for every request. Raises FaultError for an invalid client's key."""
        if not self.passes_client_key and (known := self.known_headers.get(caller.hops)):
            return known
        headers: list[tuple[str, str]] = [(HOPS_HEADER, str(caller.hops + 1))]
        try:
            key = sendable(self.key_for(caller))
        except ValueError as error:  # its message does not have the key
            raise FaultError(bad_request(str(error))) from None
        if key:
            name = self.profile.key_header
            if name == "x-api-key" and self._passes(caller) and caller.wire in self.profile.wires:
                # Clients of such a wire have keys in that header, and tokens (OAuth) in the usual.
                name = "authorization" if caller.bearer else name
            value = key.reveal()
            headers.append((name, f"Bearer {value}" if name == "authorization" else value))
        if not self.passes_client_key:
            self.known_headers[caller.hops] = tuple(headers)
        return tuple(headers)

    def key_for(self, caller: Caller) -> Secret | None:
        """The key for this caller's requests."""
        return caller.key if self._passes(caller) else self._key

    def without_secrets(self, fault: Fault, caller: Caller) -> Fault:
        """The fault without secrets that a server may quote."""
        for secret in (self.key_for(caller), self._password, Secret(self.query[1:])):
            fault = without(fault, secret)
        return fault

    def note(self, server: bytes) -> None:
        """Recognise the profile by the `Server` header of a response."""
        self.server_header = server
        self._recognise(by_answers(server.decode("latin-1")))

    async def refusal(self, response: Response, caller: Caller) -> Fault:
        """The fault for a response with a status other than 200. Its body is read as far as
        possible: if it is cut, endless or slow, the status is enough."""
        if response.status in REDIRECTS:
            return self._redirected(response.status, response.header("location") or "")
        body = b""
        with suppress(TimeoutError, NetError):
            async with asyncio.timeout(PATIENCE):
                async for data in response.chunks():
                    body += data
                    if len(body) >= wire_error.LONGEST:
                        break
        retry_after = bounded(response.header("retry-after"))
        fault = wire_error.decode(response.status, body, retry_after)
        if response.status in _ABSENT and fault.upstream_code is None:
            return replace(fault, message=fault.message + self._no_path)
        if response.status not in (401, 403):
            return fault
        refused = self._unauthorised(response.status, caller)
        if self._passes(caller):
            return replace(fault, code=refused.code, blame="client")
        if response.status == 403:
            # The key may be right, and not be allowed this model or this place.
            return replace(refused, message=f"{refused.message} Its reason: {fault.message}")
        return refused

    def _unauthorised(self, status: int, caller: Caller) -> Fault:
        """The fault for a key that is refused, or not there: ours, or the caller's own."""
        if not (passed := self._passes(caller)) and (self._key or not self.passes_client_key):
            return key_refused(self.name, status, self._key, _KEYS + self.profile.other(self.wires))
        code: Code = "authentication" if status == 401 else "permission"
        who = self.name[0].upper() + self.name[1:]
        problem = "refused the key of" if passed else "asks for its clients' keys, and none is in"
        return Fault(code, f"{who} {problem} this request ({status}).", "client", status=status)

    def take_turns(self, work: Callable[[], None]) -> None:
        """Schedule work on a large answer: a little in each turn of the loop, for all together."""
        loop = asyncio.get_running_loop()
        turns = self._turns.setdefault(loop, deque())
        if not turns:
            loop.call_soon(self._take_turns, turns)
        turns.append(work)

    def _take_turns(self, turns: deque[Callable[[], None]]) -> None:
        works = [turns.popleft() for _ in range(min(PIECES, len(turns)))]
        if turns:
            asyncio.get_running_loop().call_soon(self._take_turns, turns)
        for work in works:
            work()

    async def apart(self, tenant: str, size: int, work: Callable[..., _T], *given: object) -> _T:
        """Run work on large data in a thread: for one answer at a time, and the tenants in turn."""
        reading.set(tenant)
        return await self._large.take(size, work, *given)

    async def close(self) -> None:
        """Close all connections."""
        if self._looking is not None:
            self._looking.cancel()
        for listing in self._listings.values():
            listing.task.cancel()
        if self._own_client:
            await self.client.aclose()

    def _looked(self, looking: asyncio.Task[None]) -> None:
        """Discard a failed probe, so that the next caller tries again."""
        if looking.cancelled() or looking.exception() is not None or not self.wires:
            self._looking = None

    def _look_again(self) -> None:
        self.wires, self._looking = (), None

    def _recognise(self, profile: Profile | None) -> None:
        if profile is not None and not self.recognised:
            self.profile, self.recognised = profile, True
            self.known_headers.clear()

    def _redirected(self, status: int, location: str) -> Fault:
        """The fault for a redirect, which is not followed: it would send keys to another server.
        Its target is logged, once, and not sent to clients."""
        with suppress(ValueError):
            location = str(parse_url(urljoin(self.url, location)))
        if location != self._redirect:
            self._redirect = location
            _log.warning("%s redirects (%d) to %.200r", self.place, status, location)
        who = self.name[0].upper() + self.name[1:]
        problem = f"{who} redirects ({status}), which is not followed"
        return Fault("upstream_error", f"{problem}: give it the address that is in the log.")

    def _passes(self, caller: Caller) -> bool:
        return self.passes_client_key and caller.key is not None


_EXPLAINED = (NetTimeoutError, TooLargeError)
"""Errors that are more specific than a cut answer."""


class UpstreamRequest(Struct):
    """A request encoded for one wire. `raw_turn` has the server's own events, where they are
    parsed again; else it is `turn`. `again` is for one that may still be refused."""

    upstream: Upstream
    caller: Caller
    exchange: Exchange
    lowered: Lowered
    turn: Turn
    decoder: Decoder
    stream: bool
    raw_turn: Turn
    guarantee: Guarantee | None
    again: Again | None = None

    def restored(self, batch: list[Event]) -> list[Event]:
        """A batch for the caller: the rewriting of the request is undone, and the end has the
        time, a loss for constraints that only the server knows, and the profile's
        warning, if any."""
        end = batch[-1] if batch else None  # the end is the last event
        if type(end) is Failed:
            fault = self.upstream.without_secrets(end.fault, self.caller)
            batch[-1] = replace(end, completed_at=end.completed_at or int(time()), fault=fault)
        elif type(end) is Finished:
            batch[-1] = end = replace(
                end,
                completed_at=end.completed_at or int(time()),
                guarantee=end.guarantee if self.guarantee is None else self.guarantee,
            )
            limit, usage = self.upstream.profile.silent_context, end.usage
            if limit and usage and (usage.input_tokens or 0) + (usage.output_tokens or 0) == limit:
                why = (
                    f"prompt and answer together are exactly {limit} tokens: this server cuts "
                    "longer prompts without saying so; raise its context size"
                )
                _log.warning("%s: %s", self.upstream.place, why)
                batch[-1] = replace(end, losses=(*end.losses, Loss("input", "dropped", why)))
        restore = self.lowered.restore
        return batch if restore is None else restore(batch)

    def closed(self) -> list[Event]:
        """The last events, once no more bytes come: behind those that were decoded before, also
        where one of them is an item too many."""
        try:
            return self.decoder.close()
        except FaultError as error:
            self.turn.fail(error.fault)
            return self.turn.take()

    def broken(self, error: NetError) -> list[Event]:
        """The connection broke: the end if the answer had ended, else the fault."""
        turn = self.raw_turn
        if not turn.all_finished and (not turn.has_output or isinstance(error, _EXPLAINED)):
            turn.fail(broken(error))
        return [*self.closed(), *self.turn.take()]
