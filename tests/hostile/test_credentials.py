"""Credentials of strangers: nothing of one tenant is another's, on any route of any kind of server;
two credentials are none; guesses are slowed down, and cost those with a key nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect

from dragoman.cli import main
from dragoman.core.fold import unfold
from dragoman.core.interfaces import Secret
from dragoman.core.item import FunctionCall, Message, Reasoning, Thought
from dragoman.core.response import Response
from dragoman.engines.reasoning_cache import ReasoningCache
from dragoman.engines.remote import Remote
from dragoman.engines.router import Route, Router
from dragoman.net.client import _encode_head
from dragoman.server.app import App
from dragoman.server.auth import ADDRESSES, GUESSES, SHORTEST, Keys, tenant_of
from dragoman.server.config import with_keys
from dragoman.server.exchange import Exchange
from dragoman.server.host import HostError, check
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.wire.realtime import KEY_SUBPROTOCOL
from tests.mock import NO_SUCH_PATH, completion, message, mock, plain
from tests.server.stubs import PATHS, Call, Stub, asking, exchange, post, saying, served

A, B = {"authorization": "Bearer key-of-a"}, {"authorization": "Bearer key-of-b"}
NOBODY: dict[str, str] = {}
KEYS = {"A": "key-of-a", "B": "key-of-b"}


class Passing(Stub):
    passes_client_key = True


SERVERS: list[tuple[str, type[Stub], Settings]] = [
    ("configured keys", Stub, Settings(keys=(Secret("key-of-a"), Secret("key-of-b")))),
    ("keys of the environment", Stub, with_keys(Settings(api_key_env=("A", "B")), KEYS)),
    ("pass_client_key", Passing, Settings()),
    ("no keys", Stub, Settings()),
]
every_server = pytest.mark.parametrize(
    ("kind", "settings"), [row[1:] for row in SERVERS], ids=[row[0] for row in SERVERS]
)
RESPONSES, CHAT = PATHS["responses"], PATHS["chat"]
CONVERSATIONS = "/v1/conversations"


@asynccontextmanager
async def holding(kind: type[Stub], settings: Settings) -> AsyncIterator[tuple[App, Any]]:
    """A server, and the ids of what A has stored there: a response, an item, a completion, a
    conversation, an item of it."""
    app = App(kind(*saying("secret of A")), settings, Memory(MemoryStore()))

    async def made(path: str, body: dict[str, Any]) -> Any:
        call = await Call(app, path, body, headers=A)()
        assert call.status == 200, call.body
        return call.json

    said = {"type": "message", "role": "user", "content": "secret of A"}
    response = await made(RESPONSES, asking("responses"))
    completion = await made(CHAT, asking("chat", store=True))
    conversation = await made(CONVERSATIONS, {"items": [said]})
    path = f"{CONVERSATIONS}/{conversation['id']}/items"
    items = await Call(app, path, method="GET", headers=A)()
    yield (
        app,
        (
            response["id"],
            response["output"][0]["id"],
            completion["id"],
            conversation["id"],
            items.json["data"][0]["id"],
        ),
    )
    await app.close()


def attempts(ids: Any) -> list[tuple[str, str, str, Any]]:
    """Every way to something of another: its name, method, path and body."""
    response, item, completion, conversation, member = ids
    one, talk = f"{RESPONSES}/{response}", f"{CONVERSATIONS}/{conversation}"
    chat, count = f"{CHAT}/{completion}", f"{RESPONSES}/input_tokens"
    following = asking("responses", previous_response_id=response)
    talking = asking("responses", conversation=conversation)
    referring = asking("responses", input=[{"type": "item_reference", "id": item}])
    return [
        ("1.60 input items", "GET", f"{one}/input_items", None),
        ("1.60 response", "GET", one, None),
        ("1.60 replay", "GET", f"{one}?stream=true", None),
        ("cancel", "POST", f"{one}/cancel", {}),
        ("continue", "POST", RESPONSES, following),
        ("reference", "POST", RESPONSES, referring),
        ("count", "POST", count, following),
        ("count a reference", "POST", count, referring),
        ("count a talk", "POST", count, talking),
        ("compact", "POST", f"{RESPONSES}/compact", following),
        ("talk", "GET", talk, None),
        ("items of a talk", "GET", f"{talk}/items", None),
        ("item of a talk", "GET", f"{talk}/items/{member}", None),
        ("rename a talk", "POST", talk, {"metadata": {"a": "b"}}),
        ("add to a talk", "POST", f"{talk}/items", {"items": []}),
        ("go on with a talk", "POST", RESPONSES, talking),
        ("1.61 completion", "GET", chat, None),
        ("1.61 messages", "GET", f"{chat}/messages", None),
        ("change a completion", "POST", chat, {"metadata": {"a": "b"}}),
        ("delete a completion", "DELETE", chat, None),
        ("delete an item", "DELETE", f"{talk}/items/{member}", None),
        ("delete a talk", "DELETE", talk, None),
        ("delete a response", "DELETE", one, None),
    ]


@every_server
async def test_no_route_gives_a_stranger_what_another_tenant_stored(kind, settings) -> None:
    async with holding(kind, settings) as (app, ids):
        tried = attempts(ids)
        for stranger in (B, NOBODY):
            for name, method, path, body in tried:
                path, _, query = path.partition("?")
                call = Call(app, path, body, method=method, headers=stranger)
                call._scope["query_string"] = query.encode()
                await call()
                assert call.status in (400, 401, 404), (name, call.status, call.body)
                assert b"secret of A" not in call.body, name
            listed = await Call(app, CHAT, method="GET", headers=stranger)()  # 1.61, 1.62
            assert listed.status == 401 or listed.json["data"] == []
        for name, method, path, _ in tried:  # and all of it is still there, for A
            if method == "GET":
                call = await Call(app, path.partition("?")[0], method=method, headers=A)()
                assert call.status == 200, name


@every_server
async def test_a_socket_has_the_tenant_of_its_handshake(kind, settings) -> None:
    async with holding(kind, settings) as (app, ids), served(app) as port:
        for headers, known in ((B, False), (A, True)):
            place = f"ws://127.0.0.1:{port}{RESPONSES}"
            async with connect(place, additional_headers=headers) as socket:
                following = asking("responses", previous_response_id=ids[0])
                await socket.send(json.dumps({"type": "response.create", **following}))
                event = json.loads(await socket.recv())
                assert (event["type"] == "response.created") is known, event


THOUGHT = Reasoning((Thought("secret thought of A"),))
CALL = FunctionCall("call_1", "f", "{}")


def test_a_tenant_does_not_push_out_the_thoughts_of_another() -> None:
    cache = ReasoningCache(100_000)
    cache.store("b", "m", (THOUGHT, CALL))
    for number in range(1_000):
        thought = Reasoning((Thought("x" * 1_000),))
        cache.store("a", "m", (thought, FunctionCall(f"call_{number}", "f", "{}")))
    assert cache.restore("b", "m", (Message("user", "?"), CALL))[0][1] == THOUGHT
    assert len(cache.led) < 100


THINKING = tuple(
    unfold(Response(id="r", created_at=1, model="stub", status="completed", output=(THOUGHT, CALL)))
)


@every_server
async def test_1_63_thoughts_of_a_tenant_stay_with_it(kind, settings) -> None:
    stub = kind(*THINKING)
    app = App(stub, settings, Memory(MemoryStore()))
    asked = asking(tools=[{"type": "function", "function": {"name": "f"}}])
    assert (await Call(app, CHAT, asked, headers=A)()).status == 200
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    ]
    for headers, known in ((B, False), (NOBODY, False), (A, True)):
        await Call(app, CHAT, asked, headers=headers)()
        request, _ = stub.asked[-1]
        assert any(isinstance(item, Reasoning) for item in request.items) is known


def test_tenants_have_the_same_name_in_all_processes_on_a_store_and_in_no_other(
    tmp_path,
) -> None:
    first, second = SqliteStore(tmp_path / "a.db"), SqliteStore(tmp_path / "a.db")
    other = SqliteStore(tmp_path / "b.db")
    names = [tenant_of(Secret("key-of-a"), store.secret) for store in (first, second, other)]
    assert names[0] == names[1] != names[2]
    assert tenant_of(Secret("key-of-b"), first.secret) != names[0]
    for store in (first, second, other):
        asyncio.run(store.close())


# ---- two credentials ---------------------------------------------------------------------------

RIGHT, WRONG = "Authorization: Bearer key-of-a", "Authorization: Bearer key-of-nobody"
OFFERED = f"sec-websocket-protocol: {KEY_SUBPROTOCOL}key-of-"
CONTRADICTIONS = [
    ("1.04 wrong, then right", [WRONG, RIGHT], 400),
    ("1.04 right, then wrong", [RIGHT, WRONG], 400),
    ("1.04 right twice", [RIGHT, RIGHT], 400),
    ("1.04 x-api-key twice", ["x-api-key: key-of-a", "x-api-key: key-of-b"], 400),
    ("1.05 wrong beside right", [WRONG, "x-api-key: key-of-a"], 401),
    ("1.05 right beside wrong", [RIGHT, "x-api-key: key-of-nobody"], 401),
    ("1.05 two right ones", [RIGHT, "x-api-key: key-of-b"], 401),
    ("1.05 basic beside right", ["Authorization: Basic YTph", "x-api-key: key-of-a"], 401),
    ("1.05 two the same and another", [RIGHT, "x-api-key: key-of-a", f"{OFFERED}b"], 401),
    ("1.05 two in one subprotocol header", [f"{OFFERED}a, {KEY_SUBPROTOCOL}key-of-b"], 401),
    ("1.04 two subprotocol headers", [f"{OFFERED}a", f"{OFFERED}b"], 400),
    ("the same in both", [RIGHT, "x-api-key: key-of-a"], 200),
]


@pytest.mark.parametrize(
    ("lines", "status"),
    [row[1:] for row in CONTRADICTIONS],
    ids=[row[0] for row in CONTRADICTIONS],
)
@pytest.mark.parametrize("settings", [SERVERS[0][2], SERVERS[3][2]], ids=["keys", "no keys"])
async def test_two_credentials_are_refused(settings, lines, status) -> None:
    async with served(App(Stub(), settings)) as port:
        headers = ["content-type: application/json", "connection: close", *lines]
        answer = await exchange(port, post(port, asking(), headers=headers))
        assert answer.split()[1] == str(status).encode(), answer
        upgrade = ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"]
        upgrade += ["sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==", f"host: 127.0.0.1:{port}"]
        upgrade += lines
        head = "\r\n".join([f"GET {RESPONSES} HTTP/1.1", *upgrade, "", ""]).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        line = await reader.readline()
        writer.close()
        assert line.split()[1] == (b"101" if status == 200 else str(status).encode())


# ---- guesses -----------------------------------------------------------------------------------


class From(Exchange):
    """A request from an address."""

    def __init__(self, address: str, key: str) -> None:
        super().__init__("GET", "/", b"", [(b"x-api-key", key.encode())])
        self.place = address

    @property
    def address(self) -> str:
        return self.place


def refused(keys: Keys, asked: Exchange) -> str:
    try:
        keys.check(asked)
    except Exception as error:
        return error.fault.code
    return ""


async def test_1_73_wrong_keys_of_an_address_are_slowed_down_and_right_ones_are_not() -> None:
    async with served(App(Stub(), SERVERS[0][2])) as port:
        codes: list[bytes] = []
        for number in range(3 * GUESSES):
            lines = [f"host: 127.0.0.1:{port}", "connection: close", f"x-api-key: guess-{number}"]
            head = "\r\n".join(["GET /v1/models HTTP/1.1", *lines, "", ""])
            answer = await exchange(port, head.encode())
            codes.append(answer.split()[1])
            if codes[-1] == b"429":
                assert b"\r\nretry-after: 1\r\n" in answer
                assert b"\r\nconnection: close\r\n" in answer
            right = head.replace(f"guess-{number}", "key-of-a").encode()
            assert (await exchange(port, right)).split()[1] == b"200"
        assert codes.count(b"401") < 2 * GUESSES
        assert codes.count(b"429") >= GUESSES


def test_guesses_are_counted_by_address_and_forgotten_in_time(monkeypatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    keys = Keys(SERVERS[0][2], lambda: b"")
    codes = [refused(keys, From("192.0.2.1", "wrong")) for _ in range(GUESSES + 1)]
    assert codes == ["authentication"] * GUESSES + ["rate_limited"]
    assert refused(keys, From("192.0.2.2", "wrong")) == "authentication"
    assert refused(keys, From("192.0.2.1", "key-of-a")) == ""
    now = 1.0
    assert refused(keys, From("192.0.2.1", "wrong")) == "authentication"
    assert refused(keys, From("192.0.2.1", "wrong")) == "rate_limited"
    for number in range(2 * ADDRESSES):
        refused(keys, From(f"10.0.{number // 256}.{number % 256}", "wrong"))
    assert len(keys._guesses) == ADDRESSES


@pytest.mark.parametrize("length", [1, SHORTEST - 1])
def test_1_71_a_short_key_is_an_error(length) -> None:
    keys = {"LONG": "x" * 40, "TEAM": "y" * length}
    short = with_keys(Settings(api_key_env=("LONG", "TEAM")), keys)
    with pytest.raises(HostError, match="TEAM: a key for clients of less than 8"):
        check(short)
    check(with_keys(Settings(api_key_env=("TEAM",)), {"TEAM": "y" * SHORTEST}))


# ---- caches before the key ---------------------------------------------------------------------


async def test_7_01_names_of_hosts_leave_nothing_behind() -> None:
    app = App(Stub(), Settings())
    for number in range(200):
        for name in ("evil.example", "x.localhost"):
            host = f"{'h' * 60_000}{number}.{name}"
            call = await Call(app, "/v1/models", method="GET", headers={"host": host})()
            assert call.status == 400
    assert sum(len(host or b"") for host in app._browsers.plain) < 1_000


async def test_few_of_the_headers_that_clients_choose_are_remembered() -> None:
    async with mock(plain(200, message({"type": "text", "text": "ok"}))) as up:
        app = App(Remote(up.base_url, wire="messages"), Settings())
        for number in range(40):
            headers = {
                "anthropic-beta": f"{'b' * 60_000}{number}",
                "anthropic-version": "2023-06-01",
            }
            call = await Call(app, PATHS["messages"], asking("messages"), headers=headers)()
            assert call.status == 200, call.body
            assert len(up.asked[-1].headers["anthropic-beta"]) > 60_000
        assert _encode_head.cache_info().currsize <= 32  # of 64 KiB at the most
        await app.close()


# ---- keys that are passed on -------------------------------------------------------------------

KEYED = [
    ("messages", "authorization", "anthropic", "authorization"),
    ("messages", "x-api-key", "anthropic", "x-api-key"),
    ("chat", "authorization", "anthropic", "x-api-key"),
    ("messages", "x-api-key", "generic", "authorization"),
    ("chat", "authorization", "azure", "api-key"),
]


@pytest.mark.parametrize(("wire", "given", "profile", "sent"), KEYED)
@pytest.mark.parametrize("suffix", ["", "/count_tokens"])
async def test_a_key_goes_on_in_the_header_that_its_server_reads(
    wire, given, profile, sent, suffix
) -> None:
    upstream = "messages" if profile == "anthropic" else "chat"
    said = message({"type": "text", "text": "ok"})
    async with mock(plain(200, said if upstream == "messages" else completion({}))) as up:
        options = {"profile": profile, "wire": upstream, "pass_client_key": True}
        app = App(Remote(up.base_url, **options), Settings())
        headers = {given: "Bearer token-1" if given == "authorization" else "token-1"}
        path = PATHS[wire] + (suffix if wire == "messages" else "")
        await Call(app, path, asking(wire), headers=headers)()
        for asked in up.asked:
            names = ("authorization", "x-api-key", "api-key")
            found = {name: asked.headers[name] for name in names if name in asked.headers}
            assert found == {sent: "Bearer token-1" if sent == "authorization" else "token-1"}
        assert up.asked or suffix
        await app.close()


@pytest.mark.parametrize("path", [f"{RESPONSES}/input_tokens", "/v1/messages/count_tokens"])
async def test_counting_tokens_asks_for_listings_with_the_key_of_the_caller(path) -> None:
    listing = plain(200, {"object": "list", "data": [{"id": "stub"}]})
    async with mock(NO_SUCH_PATH, listing) as one, mock(NO_SUCH_PATH, listing) as two:
        engines = [Remote(up.base_url, wire="chat", pass_client_key=True) for up in (one, two)]
        app = App(Router(map(Route, engines)), Settings())
        body = asking("messages" if "messages" in path else "responses")
        assert (await Call(app, path, body, headers=A)()).status == 200
        for up in (one, two):
            (probe,) = up.probes
            assert probe.headers["authorization"] == A["authorization"]
        await app.close()


# ---- every question has its turn and its time ---------------------------------------------------


class Slow(Stub):
    async def count(self, request, caller) -> int:
        await asyncio.sleep(60)
        return 1


@pytest.mark.parametrize("path", [f"{RESPONSES}/input_tokens", "/v1/messages/count_tokens"])
async def test_counting_tokens_passes_the_gate_and_the_deadline(path) -> None:
    body = asking("messages" if "messages" in path else "responses")
    late = await Call(App(Slow(), Settings(deadline=0.1)), path, body)()
    assert late.status == 504
    app = App(Slow(), Settings(concurrency=1, queue=0, deadline=5))
    first = asyncio.ensure_future(Call(app, path, body)())
    await asyncio.sleep(0.05)
    assert (await Call(app, path, body)()).status == 429
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


SECRET = "HUNTER2"
SHOWN: dict[str, str] = {
    "an MCP server": f'[[tools]]\nuse = "mcp:x=https://u:{SECRET}@host:bad/x"',
    "its scheme": f'[[tools]]\nuse = "mcp:x=ftp://u:{SECRET}@host/x"',
    "a header": f'[[tools]]\nuse = "mcp:x=https://h/x"\nheaders = {{a = "Bearer {SECRET}"}}',
    "a search": f'[[tools]]\nuse = "web=searxng:http://u:{SECRET}@h:bad"',
    "speech": f'[server]\nspeech = "http://u:{SECRET}@h:bad/x"',
    "a webhook": f'[[webhooks]]\nurl = "https://h/x"\nsecret_env = "whsec_{SECRET}"',
    "encryption": f'[server]\nencryption_key_env = "sk-{SECRET}"',
}


@pytest.mark.parametrize("named", SHOWN)
def test_an_error_at_the_start_shows_no_secret(named, tmp_path, capfd) -> None:
    """Neither the password of a URL nor what was given in place of a variable's name."""
    (tmp_path / "dragoman.toml").write_text(SHOWN[named])
    words = ["serve", "script", "--port", "0", "--config", str(tmp_path / "dragoman.toml")]
    assert main(words) == 1
    said = "".join(capfd.readouterr())
    assert said.startswith("dragoman: ")
    assert SECRET not in said
