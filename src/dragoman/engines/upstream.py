"""What is known of a server behind an address: its wires, its kind, its keys.

All of it is found out by asking once, for free, or learned from answers that come anyway. What is
said in a request or an answer is not known here.
"""

from __future__ import annotations

import asyncio
import os

from msgspec.structs import replace

from dragoman.core.error import Code, Fault, FaultError, bad_request
from dragoman.core.identity import HOPS
from dragoman.core.interfaces import Caller, Model
from dragoman.core.item import JSON
from dragoman.core.lower import Limits
from dragoman.core.secret import Secret
from dragoman.net.http import Client, HeaderFields
from dragoman.net.proxy import Proxies
from dragoman.net.response import Response
from dragoman.net.url import parse_url
from dragoman.wire import error as wire_error

from . import failure, probe
from .profiles import BY_NAME, GENERIC, Profile, by_answers, by_url

LISTING = 5.0
"""Seconds a server has to list its models."""


class Upstream:
    """A server. `wires` are those it speaks, none as long as that is not known; `limits` and
    `profile` tell what it takes, and `headers` what goes with every request. `recognised` says
    whether it is known what kind of server it is."""

    def __init__(
        self,
        base_url: str,
        *,
        key: Secret | str | None,
        pass_client_key: bool,
        wire: str,
        profile: str | None,
        client: Client | None,
    ) -> None:
        self.url = base_url.rstrip("/")
        parse_url(self.url)  # says at once what is wrong with an address
        self._key = failure.sendable(key)
        self.passes_client_key = pass_client_key
        self._own_client = client is None
        self.client = client or Client(proxies=Proxies.from_environ(os.environ))
        known = BY_NAME[profile] if profile else by_url(self.url)
        self.profile: Profile = known or GENERIC
        self.recognised = known is not None
        self._known_headers: dict[int, HeaderFields] = {}  # by hops; every request has the same
        self._server: str | None = None  # the last `Server` header that told nothing
        self.wires: tuple[str, ...] = (wire,) if wire != "auto" else self.profile.wires
        self._looking: asyncio.Task[probe.Found] | None = None
        self._senses: probe.Senses = {}

    async def find_out(self, caller: Caller) -> None:
        """Look once, however many ask at the same time. Raises FaultError where no connection to
        the server can be had; whoever asks next looks again."""
        headers = self.headers(caller)
        if self._looking is None:
            self._looking = asyncio.ensure_future(probe.look(self.client, self.url, headers))
            self._looking.add_done_callback(self._looked)
        found = await asyncio.shield(self._looking)
        if found.fault is not None:
            raise FaultError(found.fault)
        self._recognise(found.profile if found.profile is not GENERIC else None)
        self.wires, self._senses = found.wires, found.senses

    async def models(self, caller: Caller) -> tuple[Model, ...]:
        """The server's own listing. Raises FaultError when it has none to give."""
        answer = await probe.question(
            self.client, "GET", f"{self.url}/models", self.headers(caller), patience=LISTING
        )
        if answer.fault is not None:
            raise FaultError(answer.fault)
        if not answer.status:
            raise FaultError(failure.unreachable(f"{self.url} did not answer"))
        if answer.status in (401, 403):
            raise FaultError(failure.key_refused(self.url, answer.status, self.key_for(caller)))
        if answer.status != 200:
            said = f"{self.url} has no model listing"
            if "/" not in self.url.partition("://")[2]:
                said += f" (many servers have theirs at {self.url}/v1)"
            raise FaultError(failure.unreachable(said))
        self._recognise(probe.recognise(answer))
        listing = probe.entries(answer.value)
        self._senses = probe.senses(listing)
        return tuple(
            Model(
                entry["id"],
                _text(entry.get("owned_by")),
                _whole(entry.get("created")),
                {
                    "models": entry | _sized(probe.context(entry)),
                    "upstream": {"url": self.url, "kind": self.profile.name},
                },
            )
            for entry in listing
            if isinstance(entry.get("id"), str)
        )

    def limits(self, model: str) -> Limits:
        """What a model can take. A server that lists one model answers every name with that."""
        if not self._senses:
            return self.profile.limits
        only = next(iter(self._senses.values())) if len(self._senses) == 1 else None
        senses = self._senses.get(model, only)
        if senses is None:
            return self.profile.limits
        return replace(self.profile.limits, images="image" in senses, audio="audio" in senses)

    def headers(self, caller: Caller) -> HeaderFields:
        """What goes with every request. Raises FaultError for a client's key no header takes."""
        if not self.passes_client_key and (known := self._known_headers.get(caller.hops)):
            return known
        headers: list[tuple[str, str]] = [(HOPS, str(caller.hops + 1))]
        try:
            key = failure.sendable(self.key_for(caller))
        except ValueError as error:  # which does not show the key
            raise FaultError(bad_request(str(error))) from None
        if key:
            name = self.profile.key_header
            value = key.reveal()
            headers.append((name, f"Bearer {value}" if name == "authorization" else value))
        if not self.passes_client_key:
            self._known_headers[caller.hops] = tuple(headers)
        return tuple(headers)

    def key_for(self, caller: Caller) -> Secret | None:
        """The key that goes with this caller's requests."""
        return caller.key if self._passes(caller) else self._key

    def note(self, response: Response) -> None:
        """Learn from an answer what kind of server this is, if that is not known."""
        if self.recognised:
            return
        server = response.headers.get("server")
        if server != self._server:
            self._server = server
            self._recognise(by_answers(server))

    async def refusal(self, response: Response, caller: Caller) -> Fault:
        """The fault that an answer with another status than 200 is."""
        said = await failure.words(response)
        fault = wire_error.decode(response.status, said, response.headers.get("retry-after"))
        if response.status in (401, 403) and not self._passes(caller):
            return failure.key_refused(self.url, response.status, self._key)
        if response.status in (401, 403):
            code: Code = "authentication" if response.status == 401 else "permission"
            return replace(fault, code=code, blame="client")
        return fault

    async def close(self) -> None:
        """Close all connections."""
        if self._looking is not None:
            self._looking.cancel()
        if self._own_client:
            await self.client.aclose()

    def _looked(self, looking: asyncio.Task[probe.Found]) -> None:
        """Forget a look that found nothing, for whatever reason: the next may find more."""
        failed = looking.cancelled() or looking.exception() is not None
        if failed or looking.result().fault is not None:
            self._looking = None

    def _recognise(self, profile: Profile | None) -> None:
        if profile is not None and not self.recognised:
            self.profile, self.recognised = profile, True
            self._known_headers.clear()

    def _passes(self, caller: Caller) -> bool:
        return self.passes_client_key and caller.key is not None


def _sized(context: int | None) -> dict[str, JSON]:
    return {} if context is None else {"context_window": context}


def _text(value: object) -> str:
    return value if isinstance(value, str) else "unknown"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
