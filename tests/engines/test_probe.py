"""What an address turns out to be, by questions that cost nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.engines.upstream import PROBE_TIMEOUT, Answer, Found, entries, look, question
from dragoman.net.client import Client
from tests.mock import Asked, Mock, Reply, mock, plain

LISTING = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "me"}]}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(connect_retries=0) as client:
        yield client


def listing(owner: str = "me") -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "m", "owned_by": owner}]}


def server(listed: Reply, posted: Reply) -> Any:
    """Answers the two questions."""
    return lambda asked: listed if asked.method == "GET" else posted


async def found(client: Client, listed: Reply, posted: Reply) -> tuple[Found, Mock]:
    async with mock(plain(500, b""), probed=server(listed, posted)) as up:
        return await look(client, up.base_url, ()), up


@pytest.mark.parametrize("status", [400, 422])
async def test_a_bad_request_means_responses(client: Client, status: int) -> None:
    answer, _ = await found(client, plain(200, listing()), plain(status, {"error": "no input"}))
    assert answer.wires == ("responses", "chat")
    assert answer.profile.name == "generic"


@pytest.mark.parametrize("status", [200, 201, 401, 403, 404, 405, 429, 500, 503])
async def test_any_other_status_means_chat(client: Client, status: int) -> None:
    answer, _ = await found(client, plain(200, listing()), plain(status, b"{}"))
    assert answer.wires == ("chat",)


@pytest.mark.parametrize(
    "silence", [Reply([], hang=True), Reply([b"HTTP/1.1 400 X\r\n"], hang=True)], ids=["no", "half"]
)
async def test_silence_for_a_second_means_chat(
    client: Client, monkeypatch: pytest.MonkeyPatch, silence: Reply
) -> None:
    assert PROBE_TIMEOUT == 1.0
    monkeypatch.setattr(question, "__defaults__", (None, 0.05))
    answer, up = await found(client, plain(200, listing()), silence)
    assert answer.wires == ("chat",)
    await up.probes[-1].gone  # the question was not left hanging


@pytest.mark.parametrize(
    "noise", [b"SSH-2.0-x\r\n", b"", b"HTTP/1.1 400 X\r\ncontent-length: 9\r\n\r\n"]
)
async def test_a_broken_answer_means_chat(client: Client, noise: bytes) -> None:
    answer, _ = await found(client, plain(200, listing()), Reply([noise]))
    assert answer.wires == ("chat",)


async def test_where_nobody_is_there_nothing_is_known(client: Client) -> None:
    async with mock(plain(500, b"")) as up:
        base_url = up.base_url
    assert (await look(client, base_url, ())).wires == ()


async def test_the_questions_are_free_and_carry_the_key(client: Client) -> None:
    headers = (("authorization", "Bearer k"),)
    async with mock(plain(500, b""), probed=plain(400, b"{}")) as up:
        await look(client, up.base_url, headers)
    assert not up.asked
    asked = [(each.method, each.path, each.body) for each in up.probes]
    assert asked == [("GET", "/v1/models", b""), ("POST", "/v1/responses", b"{}")]
    assert {each.headers["authorization"] for each in up.probes} == {"Bearer k"}
    assert up.probes[1].headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("owner", "name"),
    [("library", "ollama"), ("vllm", "vllm"), ("sglang", "sglang"), ("llamacpp", "llama.cpp")],
)
async def test_a_server_is_known_by_the_owner_of_its_models(
    client: Client, owner: str, name: str
) -> None:
    answer, up = await found(client, plain(200, listing(owner)), plain(400, b"{}"))
    assert answer.profile.name == name
    assert answer.wires == ("chat",)  # whatever it says of /responses
    assert [each.method for each in up.probes] == ["GET"]


async def test_a_server_is_known_by_its_server_header(client: Client) -> None:
    named = plain(200, listing("somebody"), "server: llama.cpp")
    answer, up = await found(client, named, plain(400, b"{}"))
    assert (answer.profile.name, answer.wires) == ("llama.cpp", ("chat",))
    assert len(up.probes) == 1


async def test_a_server_without_a_listing_is_known_by_its_second_answer(client: Client) -> None:
    posted = plain(400, b"{}", "server: llama.cpp")
    answer, _ = await found(client, plain(404, b""), posted)
    assert (answer.profile.name, answer.wires) == ("llama.cpp", ("chat",))


async def test_a_profile_that_leaves_the_wire_open_is_asked_on(client: Client) -> None:
    studio = plain(200, listing("organization_owner"))
    answer, _ = await found(client, studio, plain(400, b"{}"))
    assert (answer.profile.name, answer.wires) == ("lmstudio", ("responses", "chat"))
    answer, _ = await found(client, studio, plain(404, b"{}"))
    assert answer.wires == ("chat",)


async def test_a_port_proves_nothing(client: Client) -> None:
    """The same answers at two ports are the same server."""
    answers = [await found(client, plain(200, listing()), plain(404, b"")) for _ in range(2)]
    assert {answer.profile.name for answer, _ in answers} == {"generic"}
    assert len({up.port for _, up in answers}) == 2


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (LISTING, 1),
        ([{"id": "a"}, {"id": "b"}], 2),
        ({"data": [{"id": "a"}, None, "b", 3]}, 1),
        ({"data": None}, 0),
        ({"models": []}, 0),
        (None, 0),
        ("data", 0),
        (7, 0),
    ],
)
def test_a_listing_may_have_any_shape(value: Any, count: int) -> None:
    assert len(entries(value)) == count


async def test_an_answer_that_is_no_json_is_an_answer_all_the_same(client: Client) -> None:
    page = plain(200, b"<html>", "server: nginx", "x-dragoman: 9", type="text/html")
    async with mock(plain(500, b""), probed=page) as up:
        answer = await question(client, "GET", f"{up.base_url}/models", ())
    assert answer == Answer(200, "nginx", None, ours=True)


async def test_a_question_may_have_patience_of_its_own(client: Client) -> None:
    def slow(asked: Asked) -> Reply:
        return Reply([], hang=True)

    async with mock(plain(500, b""), probed=slow) as up:
        answer = await question(client, "GET", f"{up.base_url}/models", (), patience=0.05)
        await up.probes[0].gone
    assert answer == Answer()
