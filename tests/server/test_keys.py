"""Keys: who comes in with which, everywhere, and that none of them is ever shown."""

import asyncio
import hmac
import json
import logging

import msgspec
import pytest
from websockets.asyncio.client import connect

from dragoman.core.interfaces import Caller, Engine, Secret
from dragoman.engines.remote import Remote
from dragoman.engines.router import Route, Router
from dragoman.server.app import App
from dragoman.server.auth import Keys, generate_key, tenant_of
from dragoman.server.config import with_keys
from dragoman.server.exchange import Exchange
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.memory import MemoryStore
from tests.server.stubs import OPENING, PATHS, Call, Stub, asking, exchange, post, served

CANARY = "canary-7f3a9c51"
GUARDED = Settings(keys=(Secret("first"), Secret(CANARY)))

OPEN = ("/healthz", "/readyz", "/talk")


def routes() -> list[tuple[str, str]]:
    """Every route of a server that remembers; a tree by a path below it."""
    router = App(Stub(), GUARDED, Memory(MemoryStore()))._router
    tables = (*router._paths.items(), *router._trees.items())
    found = [
        (method, f"{path}x" if path.endswith("/") else path)
        for path, methods in tables
        for method in methods
        if path not in OPEN
    ]
    return sorted(found)


ELSEWHERE = [
    ("GET", "/"),
    ("GET", "/metrics"),
    ("POST", "/invocations"),
    ("DELETE", PATHS["chat"]),
    ("OPTIONS", PATHS["chat"]),
    ("GET", "/healthz/"),
    ("GET", "/readyz/../v1/models"),
]
ROUTES = [*routes(), *ELSEWHERE]


def test_routes_are_found() -> None:
    assert len(ROUTES) >= 30
    assert {("POST", PATHS[wire]) for wire in PATHS} <= set(ROUTES)
    assert ("DELETE", "/v1/responses/x") in ROUTES


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_p46_every_route_asks_for_the_key(method, path) -> None:
    app = App(Stub(), GUARDED, Memory(MemoryStore()))
    call = await Call(app, path, asking(), method=method)()
    assert call.status == 401
    assert call.headers["www-authenticate"] == "Bearer"
    assert call.headers["x-should-retry"] == "false"  # or Claude Code tries for minutes
    if method != "HEAD":
        error = call.json["error"]
        assert error.get("code") == "invalid_api_key" or error["type"] == "authentication_error"


@pytest.mark.parametrize("path", OPEN)
async def test_p46_only_health_and_a_page_are_open(path) -> None:
    assert (await Call(App(Stub(), GUARDED), path, method="GET")()).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {CANARY}"},
        {"authorization": "bearer first"},
        {"x-api-key": CANARY},
        {"authorization": f"Bearer {CANARY}", "x-api-key": CANARY},
        {"authorization": "Bearer none", "x-api-key": CANARY},
    ],
)
async def test_any_of_the_keys_opens_in_either_header(wire: str, headers) -> None:
    call = await Call(App(Stub(), GUARDED), PATHS[wire], asking(wire), headers=headers)()
    assert call.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {CANARY}"},
        {"authorization": CANARY},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {CANARY}x"},
        {"authorization": f"Bearer {CANARY[:-1]}"},
        {"x-api-key": "é"},
        {"x-api-key": "none"},
        {"x-api-key": ""},
    ],
)
async def test_every_other_key_is_refused(wire: str, headers) -> None:
    stub = Stub()
    call = await Call(App(stub, GUARDED), PATHS[wire], asking(wire), headers=headers)()
    assert call.status == 401
    assert not stub.asked


async def test_a_wrong_key_is_refused_before_the_body_is_read() -> None:
    call = Call(App(Stub(), GUARDED), body=asking())
    call.unread()
    await asyncio.wait_for(call(), 5)
    assert call.status == 401


def test_made_keys_are_long_and_differ() -> None:
    keys = {generate_key().reveal() for _ in range(10)}
    assert len(keys) == 10
    assert all(len(key) > 32 for key in keys)


def test_keys_are_not_stored_in_plain_text() -> None:
    keys = Keys(GUARDED, lambda: b"")
    assert CANARY not in repr(vars(keys))


# ---- tenants -------------------------------------------------------------------------------

BEARER_A, BEARER_B = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
HEADER_A, NO_KEY = {"x-api-key": "key-a"}, dict[str, str]()
BASIC_A, BASIC_B = {"authorization": "Basic YTph"}, {"authorization": "Basic Yjpi"}
PLACEHOLDER = {"authorization": "Bearer none"}
CONFIGURED = Settings(keys=(Secret("key-a"), Secret("key-b")))
FROM_ENVIRONMENT = with_keys(Settings(api_key_env=("A", "B")), {"A": "key-a", "B": "key-b"})
UPSTREAM = "http://127.0.0.1:1/v1"
PLAIN, PASSING = Remote(UPSTREAM), Remote(UPSTREAM, pass_client_key=True)

TENANTS: list[tuple[str, Settings, Engine, dict[str, str], dict[str, str], bool]] = [
    ("configured keys, two", CONFIGURED, PLAIN, BEARER_A, BEARER_B, False),
    ("configured keys, one in either header", CONFIGURED, PLAIN, BEARER_A, HEADER_A, True),
    ("environment keys, two", FROM_ENVIRONMENT, PLAIN, BEARER_A, BEARER_B, False),
    ("environment keys, one in either header", FROM_ENVIRONMENT, PLAIN, BEARER_A, HEADER_A, True),
    ("pass_client_key, two", Settings(), PASSING, BEARER_A, BEARER_B, False),
    ("pass_client_key, one in either header", Settings(), PASSING, BEARER_A, HEADER_A, True),
    ("pass_client_key, a key and none", Settings(), PASSING, BEARER_A, NO_KEY, False),
    ("pass_client_key, none and a key", Settings(), PASSING, NO_KEY, BEARER_A, False),
    ("pass_client_key, none", Settings(), PASSING, NO_KEY, NO_KEY, True),
    ("no keys asked for, two sent", Settings(), PLAIN, BEARER_A, BEARER_B, False),
    ("no keys asked for, one in either header", Settings(), PLAIN, BEARER_A, HEADER_A, True),
    ("no keys asked for, a key and none", Settings(), PLAIN, BEARER_A, NO_KEY, False),
    ("no keys asked for, none and a key", Settings(), PLAIN, NO_KEY, HEADER_A, False),
    ("no keys asked for, what SDKs send for none", Settings(), PLAIN, PLACEHOLDER, NO_KEY, True),
    ("no keys asked for, two of a proxy", Settings(), PLAIN, BASIC_A, BASIC_B, False),
    ("no keys asked for, a proxy's and none", Settings(), PLAIN, BASIC_A, NO_KEY, False),
    ("no keys asked for, none sent", Settings(), PLAIN, NO_KEY, NO_KEY, True),
]


class _Passing(Stub):
    passes_client_key = True


def _with_upstream(upstream: Engine) -> Stub:
    """A stub in the place of an upstream, as far as keys are concerned."""
    router = Router([Route(PLAIN, ("other",)), Route(upstream)])
    return _Passing() if router.passes_client_key else Stub()


@pytest.mark.parametrize(
    ("settings", "upstream", "first", "second", "shared"),
    [case[1:] for case in TENANTS],
    ids=[case[0] for case in TENANTS],
)
async def test_stored_responses_are_there_only_for_the_tenant_of_the_key(
    settings, upstream, first, second, shared
) -> None:
    app = App(_with_upstream(upstream), settings, Memory(MemoryStore()))
    path = PATHS["responses"]
    stored = await Call(app, path, asking("responses"), headers=first)()
    id = stored.json["id"]
    async with served(app) as port:
        for headers, status in ((first, 200), (second, 200 if shared else 404)):
            read = await Call(app, f"{path}/{id}", method="GET", headers=headers)()
            assert read.status == status
            following = asking("responses", previous_response_id=id)
            followed = await Call(app, path, following, headers=headers)()
            assert followed.status == (200 if status == 200 else 400)  # as OpenAI answers it
            place = f"ws://127.0.0.1:{port}{path}"
            async with connect(place, additional_headers=headers) as socket:
                await socket.send(json.dumps({"type": "response.create", **following}))
                event = json.loads(await socket.recv())
            assert (event["type"] == "response.created") is (status == 200), event
    await app.close()


async def test_the_tenant_of_a_passed_key_does_not_show_the_key() -> None:
    stub = _with_upstream(PASSING)
    headers = {"authorization": f"Bearer {CANARY}"}
    await Call(App(stub, Settings()), PATHS["chat"], asking(), headers=headers)()
    ((_, caller),) = stub.asked
    assert len(caller.tenant) == 24
    assert CANARY not in caller.tenant
    assert caller.tenant != tenant_of(Secret(CANARY), b"another store's")


# ---- P45 -----------------------------------------------------------------------------------


def test_p45_a_secret_does_not_print() -> None:
    secret = Secret(CANARY)
    shown = f"{secret} {secret!r} {secret!s} {[secret]} {Caller(key=secret)} {GUARDED}"
    assert CANARY not in shown
    for encode in (msgspec.json.encode, msgspec.msgpack.encode):
        with pytest.raises(TypeError):
            encode(Caller(key=secret))


async def test_p45_the_canary_shows_nowhere(caplog, capfd) -> None:
    """A key that opens, and one that does not, through good, bad and broken requests."""
    caplog.set_level(logging.DEBUG)
    seen = b""

    def clumsy(caller: Caller) -> Exception:
        return RuntimeError(f"the upstream said no to {caller.key and caller.key.reveal()}")

    class Clumsy(Stub):
        async def stream(self, request, caller=None):
            for event in OPENING if request.stream else ():
                yield event
            raise clumsy(caller)

    for engine in (Stub(), Clumsy()):
        async with served(App(engine, GUARDED)) as port:
            for path, wire in ((path, name) for name, path in PATHS.items()):
                for body in (asking(wire), asking(wire, stream=True), {"model": 1}, b"{garbage"):
                    for key in (CANARY, f"{CANARY}-but-wrong"):
                        for header in (f"authorization: Bearer {key}", f"x-api-key: {key}"):
                            seen += await exchange(port, post(port, body, path, [*HEADERS, header]))
    assert b"HTTP/1.1 200" in seen
    assert b"HTTP/1.1 400" in seen
    assert b"HTTP/1.1 401" in seen
    assert b"HTTP/1.1 500" in seen
    output, errors = capfd.readouterr()
    assert "said no to ***" in caplog.text
    assert CANARY not in seen.decode() + caplog.text + output + errors


HEADERS = ["content-type: application/json", "connection: close"]


def test_every_key_is_compared_in_constant_time(monkeypatch) -> None:
    """So that the time of a refusal says neither which key was close nor how close."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noting(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return compare(given, known)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    three = Settings(keys=(Secret("first"), Secret("second"), Secret("third")))
    keys = Keys(three, lambda: b"")
    headers = [(b"authorization", b"Bearer first")]
    exchange = Exchange("GET", "/", b"", headers)
    assert keys.check(exchange)[1] is not None
    assert len(compared) == 3
    assert len({known for _, known in compared}) == 3
    assert all(len(given) == len(known) == 32 for given, known in compared)
