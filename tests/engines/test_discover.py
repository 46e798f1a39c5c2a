"""What is found without configuration: by answer, never by port, and never ourselves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dragoman.core.interfaces import Secret
from dragoman.engines import discover as room
from dragoman.engines.discover import Discovered, discover, look, named
from dragoman.net.client import Client
from tests.cases import cases
from tests.mock import Asked, Reply, mock, plain

LISTING = {"object": "list", "data": [{"id": "a", "owned_by": "me"}, {"id": "b"}, {"no": "id"}]}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(connect_retries=0) as client:
        yield client


async def answer(client: Client, reply: Reply) -> Discovered | None:
    async with mock(plain(500, b""), probed=reply) as up:
        found = await look(client, up.base_url)
        assert found is None or found.base_url == up.base_url
        assert [(each.method, each.path) for each in up.probes] == [("GET", "/v1/models")]
        return found


@pytest.mark.parametrize(
    ("listing", "models", "profile"),
    [
        (LISTING, ("a", "b"), None),
        ({"data": [{"id": "q", "owned_by": "library"}]}, ("q",), "ollama"),
        ({"object": "list", "data": []}, (), None),
        ({"object": "list", "data": None}, (), None),
    ],
)
async def test_model_listing_is_a_server(client: Client, listing, models, profile) -> None:
    found = await answer(client, plain(200, listing))
    assert (found.models, found.key_env) == (models, None)
    assert (found.profile.name if found.profile else None) == profile


@pytest.mark.parametrize(
    "reply",
    [
        plain(404, b"no"),
        plain(401, {"error": {"message": "no key"}}),
        plain(500, b""),
        plain(200, b"<html>hello</html>", type="text/html"),
        plain(200, b"hello", type="text/plain"),
        plain(200, b"[]"),
        plain(200, b"{}"),
        plain(200, {"status": "ok"}),
        plain(200, b'"models"'),
        Reply([b"SSH-2.0-OpenSSH_9.7\r\n"]),
        Reply([]),
        plain(200, LISTING, "x-dragoman: 0.1.0"),  # never ourselves
    ],
    ids=lambda reply: b"".join(reply.pieces).split(b"\r\n\r\n")[-1].decode()[:20] or "nothing",
)
async def test_an_open_port_proves_nothing(client: Client, reply) -> None:
    assert await answer(client, reply) is None


@pytest.mark.parametrize(
    ("refusal", "asks"),
    [
        (plain(401, {"error": "Unauthorized"}), True),
        (plain(401, b"", "x-dragoman: 0.1.0"), True),
        (plain(401, b"<html>Log in</html>", type="text/html"), False),
        (plain(403, {"error": "no"}), False),
    ],
)
async def test_a_key_is_given_to_servers_that_ask_for_one(client: Client, refusal, asks) -> None:
    key = Secret("canary-key")

    def probed(asked: Asked) -> Reply:
        right = asked.headers.get("authorization") == "Bearer canary-key"
        return plain(200, LISTING) if right else refusal

    async with mock(plain(500, b""), probed=probed) as up:
        found = [await look(client, up.base_url, ours=True, key=each) for each in (None, key)]
        sent = ["canary-key" in each.headers.get("authorization", "") for each in up.probes]
        assert await look(client, up.base_url, key=key) is None  # a server has none to give
    access = [each and each.access for each in found]
    assert access == (["refused", "granted"] if asks else [None, None])
    assert sent == ([False, False, True] if asks else [False, False])


async def test_a_server_that_takes_the_key_comes_first(monkeypatch) -> None:
    key, right = Secret("canary-key"), {"authorization": "Bearer canary-key"}

    def probed(asked: Asked) -> Reply:
        known = right.items() <= asked.headers.items()
        return plain(200, LISTING) if known else plain(401, {"error": ""})

    async with (
        mock(plain(500, b""), probed=plain(200, LISTING)) as free,
        mock(plain(500, b""), probed=plain(401, {"error": ""})) as other,
        mock(plain(500, b""), probed=probed) as keyed,
    ):
        monkeypatch.setattr(room, "PORTS", (free.port, other.port, keyed.port))
        for given, order in ((None, [free, other, keyed]), (key, [keyed, other, free])):
            found = await discover({}, ours=True, key=given)
            assert [server.base_url for server in found] == [each.base_url for each in order]


async def test_silence_is_not_waited_for(client: Client, monkeypatch) -> None:
    monkeypatch.setattr(room, "PATIENCE", 0.05)
    assert await answer(client, Reply([], hang=True)) is None


async def test_only_answering_servers_are_discovered_and_ours_on_request(monkeypatch) -> None:
    async with (
        mock(plain(500, b""), probed=plain(200, LISTING)) as good,
        mock(plain(500, b""), probed=plain(404, b"")) as bad,
        mock(plain(500, b""), probed=plain(200, LISTING, "x-dragoman: 0.1.0")) as one_of_us,
    ):
        monkeypatch.setattr(room, "PORTS", (bad.port, good.port, one_of_us.port))
        found = await discover({})
        assert [server.base_url for server in found] == [good.base_url]
        found = await discover({}, ours=True)
        assert [server.base_url for server in found] == [good.base_url, one_of_us.base_url]


async def test_the_environment_comes_first(monkeypatch) -> None:
    async with mock(plain(500, b""), probed=plain(200, LISTING)) as up:
        monkeypatch.setattr(room, "PORTS", (up.port,))
        async with Client() as client:
            found = await discover({"OPENAI_API_KEY": "sk-canary"}, client=client)
    assert [server.base_url for server in found] == ["https://api.openai.com/v1", up.base_url]
    assert "canary" not in repr(found)


async def test_environment_url_of_a_dragoman_is_skipped(client: Client, monkeypatch) -> None:
    monkeypatch.setattr(room, "PORTS", ())
    mark, nobody = plain(401, b"", "x-dragoman: 0.1.0"), "http://127.0.0.1:9/v1"
    async with (
        mock(plain(500, b""), probed=mark) as ours,
        mock(plain(500, b""), probed=plain(200, LISTING)) as other,
    ):
        for url, kept in ((ours.base_url, False), (other.base_url, True), (nobody, True)):
            found = await discover({"OPENAI_BASE_URL": url}, client=client)
            assert [server.base_url for server in found] == [url] * kept
            found = await discover({"OPENAI_BASE_URL": url}, ours=True, client=client)
            assert [server.base_url for server in found] == [url]


async def test_invalid_url_is_passed_on_unchanged(client: Client) -> None:
    for url in ("nonsense", "http://[::1"):
        found = await discover({"OPENAI_BASE_URL": url}, client=client)
        assert found[0].base_url == url


@pytest.mark.parametrize(("environ", "expected"), cases(__file__, "environments"))
def test_upstreams_of_the_environment(environ, expected) -> None:
    found = [
        [server.base_url, server.key_env, server.profile.name if server.profile else None]
        for server in named(environ)
    ]
    assert found == expected
