"""What an address turns out to be, by questions that cost nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.interfaces import ANYONE, Caller, Secret
from dragoman.engines import upstream as upstream_module
from dragoman.engines.upstream import (
    PROBE_TIMEOUT,
    Answer,
    Upstream,
    entries,
    question,
    recognise,
)
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


def upstream(
    client: Client, base_url: str, key: str | None = None, *, pass_client_key: bool = False
) -> Upstream:
    return Upstream(
        base_url,
        key=key,
        pass_client_key=pass_client_key,
        wire="auto",
        profile=None,
        client=client,
    )


async def found(client: Client, listed: Reply, posted: Reply) -> tuple[Upstream, Mock]:
    async with mock(plain(500, b""), probed=server(listed, posted)) as up:
        address = upstream(client, up.base_url)
        await address.find_out(ANYONE)
        return address, up


NAMED = "server: llama.cpp"
STUDIO = plain(200, listing("organization_owner"))
BOTH, CHAT = ("responses", "chat"), ("chat",)


@pytest.mark.parametrize(
    ("listed", "posted", "profile", "wires", "asks"),
    [
        *(
            (plain(200, listing()), plain(s, {"error": "x"}), "generic", BOTH, 2)
            for s in (400, 422)
        ),
        *(
            (plain(200, listing()), plain(s, b"{}"), "generic", CHAT, 2)
            for s in (200, 201, 401, 403, 404, 405, 429, 500, 503)
        ),
        *(
            (plain(200, listing()), Reply([noise]), "generic", CHAT, 2)
            for noise in (b"SSH-2.0-x\r\n", b"", b"HTTP/1.1 400 X\r\ncontent-length: 9\r\n\r\n")
        ),
        # What is known of a server counts, whatever it says of /responses.
        (plain(200, listing("library")), plain(400, b"{}"), "ollama", CHAT, 1),
        (plain(200, listing("vllm")), plain(400, b"{}"), "vllm", CHAT, 1),
        (plain(200, listing("sglang")), plain(400, b"{}"), "sglang", CHAT, 1),
        (plain(200, listing("llamacpp")), plain(400, b"{}"), "llama.cpp", CHAT, 1),
        (plain(200, listing("somebody"), NAMED), plain(400, b"{}"), "llama.cpp", CHAT, 1),
        (plain(404, b""), plain(400, b"{}", NAMED), "llama.cpp", CHAT, 2),
        (STUDIO, plain(400, b"{}"), "lmstudio", BOTH, 2),
        (STUDIO, plain(404, b"{}"), "lmstudio", CHAT, 2),
    ],
)
async def test_answers_to_the_probe_tell_profile_and_wires(
    client: Client, listed, posted, profile, wires, asks
) -> None:
    answer, up = await found(client, listed, posted)
    assert (answer.profile.name, answer.wires) == (profile, wires)
    assert len({each.method for each in up.probes}) == asks


REFUSED = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}


@pytest.mark.parametrize(
    ("chat", "messages", "wires"),
    [
        *((plain(404, b"{}"), plain(s, REFUSED), ("messages",)) for s in (400, 401, 403, 422)),
        (plain(405, b"{}"), plain(400, REFUSED), ("messages",)),
        (plain(404, b"{}"), plain(404, REFUSED), CHAT),
        (plain(404, b"{}"), plain(400, {"error": "x"}), CHAT),
        (plain(404, b"{}"), plain(400, b"[]"), CHAT),
        (plain(400, b"{}"), plain(400, REFUSED), CHAT),
        (plain(401, b"{}"), plain(400, REFUSED), CHAT),
    ],
)
async def test_a_server_of_messages_alone_is_recognised(
    client: Client, chat, messages, wires
) -> None:
    replies = {"/v1/chat/completions": chat, "/v1/messages": messages}
    absent = plain(404, {"detail": "Not Found"})
    async with mock(absent, lambda asked: replies.get(asked.path, absent)) as up:
        address = upstream(client, up.base_url)
        await address.find_out(ANYONE)
    assert address.wires == wires
    assert address.profile.name == ("anthropic" if wires != CHAT else "generic")


@pytest.mark.parametrize(
    "silence", [Reply([], hang=True), Reply([b"HTTP/1.1 400 X\r\n"], hang=True)], ids=["no", "half"]
)
async def test_silence_for_a_second_means_chat(client: Client, monkeypatch, silence) -> None:
    assert PROBE_TIMEOUT == 1.0
    monkeypatch.setattr(question, "__defaults__", (None, 0.05))
    answer, up = await found(client, plain(200, listing()), silence)
    assert answer.wires == ("chat",)
    await up.probes[-1].gone  # the question was not left hanging


UNSURE = [plain(status, b"{}") for status in (401, 403, 429, 500, 502, 503)]


@pytest.mark.parametrize("answer", [*UNSURE, Reply([], hang=True)])
async def test_a_server_that_was_busy_or_refused_our_key_is_probed_again(
    client: Client, monkeypatch, answer
) -> None:
    monkeypatch.setattr(upstream_module, "AGAIN", 0.05)
    monkeypatch.setattr(question, "__defaults__", (None, 0.1))
    answers = [answer, plain(400, b"{}")]
    async with mock(plain(500, b""), lambda asked: answers[0]) as up:
        address = upstream(client, up.base_url)
        await address.find_out(ANYONE)
        assert address.wires == CHAT
        del answers[0]
        while address.wires:
            await asyncio.sleep(0.01)
        await address.find_out(ANYONE)
        assert address.wires == BOTH


@pytest.mark.parametrize("refused", [401, 403, 429])
@pytest.mark.parametrize("public", [True, False])
async def test_the_wrong_key_of_a_caller_says_nothing_about_the_wires(
    client: Client, refused, public
) -> None:
    def probed(asked: Asked) -> Reply:
        if public and asked.method == "GET":
            return plain(200, listing())
        good = asked.headers.get("authorization") == "Bearer good-key"
        return plain(400 if good else refused, b"{}")

    async with mock(plain(500, b""), probed) as up:
        address = upstream(client, up.base_url, pass_client_key=True)
        wrong, good = (Caller(key=Secret(f"{name}-key")) for name in ("wrong", "good"))
        await address.find_out(wrong)
        assert address.wires == ()
        await asyncio.gather(*map(address.find_out, (wrong, good)))
        assert address.wires == BOTH


async def test_a_server_that_refuses_responses_alone_has_chat_for_all_keys(client: Client) -> None:
    replies = {"/v1/responses": plain(403, b"{}"), "/v1/chat/completions": plain(422, b"{}")}
    async with mock(plain(500, b""), lambda asked: replies.get(asked.path, STUDIO)) as up:
        address = upstream(client, up.base_url, pass_client_key=True)
        await address.find_out(Caller(key=Secret("some-key")))
        assert address.wires == CHAT


async def test_what_one_key_is_shown_takes_no_images_from_another(client: Client) -> None:
    def entry(name: str, *takes: str) -> dict[str, Any]:
        return {"id": name, "architecture": {"input_modalities": ["text", *takes]}}

    both = [entry("blind"), entry("seeing", "image")]

    def probed(asked: Asked) -> Reply:
        full = asked.headers.get("authorization") == "Bearer full-key"
        return plain(200, {"data": both if full else both[:1]})

    async with mock(plain(500, b""), probed) as up:
        address = upstream(client, up.base_url, pass_client_key=True)
        await address.models(Caller(key=Secret("part-key")))
        assert address.limits("seeing") == address.profile.limits
        await address.models(Caller(key=Secret("full-key")))
        assert address.limits("seeing").images
        assert not address.limits("blind").images
        await address.models(Caller(key=Secret("third-key")))
        assert address.limits("seeing").images


async def test_unreachable_server_has_no_wires(client: Client) -> None:
    async with mock(plain(500, b"")) as up:
        base_url = up.base_url
    address = upstream(client, base_url)
    with pytest.raises(FaultError):
        await address.find_out(ANYONE)
    assert address.wires == ()


async def test_the_questions_are_free_and_carry_the_key(client: Client) -> None:
    async with mock(plain(500, b""), probed=plain(400, b"{}")) as up:
        await upstream(client, up.base_url, "k").find_out(ANYONE)
    assert not up.asked
    asked = [(each.method, each.path, each.body) for each in up.probes]
    assert asked == [("GET", "/v1/models", b""), ("POST", "/v1/responses", b"{}")]
    assert {each.headers["authorization"] for each in up.probes} == {"Bearer k"}
    assert up.probes[1].headers["content-type"] == "application/json"


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
def test_a_listing_may_have_any_shape(value, count) -> None:
    assert len(entries(value)) == count


async def test_an_answer_that_is_no_json_is_an_answer_all_the_same(client: Client) -> None:
    page = plain(200, b"<html>", "server: nginx", "x-dragoman: 9", type="text/html")
    async with mock(plain(500, b""), probed=page) as up:
        answer = await question(client, "GET", f"{up.base_url}/models", ())
    assert answer == Answer(200, "nginx", None, ours=True)


def test_a_dragoman_behind_a_proxy_is_known_though_its_models_are_of_others() -> None:
    listing = {"data": [{"id": "m", "owned_by": "library"}]}
    found = recognise(Answer(200, "nginx", listing, ours=True))
    assert found is not None
    assert found.name == "dragoman"


# ---- event loops -------------------------------------------------------------------------------


def test_each_of_several_event_loops_decodes_its_own_answers_and_looks_for_itself() -> None:
    """One of two that used a client at once hung, or got an error of the other."""
    begun, address = threading.Barrier(2), upstream(Client(), "http://127.0.0.1:9", "k")

    async def use() -> set[int]:
        begun.wait()
        threads = list[int]()
        for _ in range(50):
            address.take_turns(lambda: threads.append(threading.get_ident()))
            await asyncio.sleep(0)
        while len(threads) < 50:
            await asyncio.sleep(0.001)
        for ask in (address.find_out, address.models):
            with pytest.raises(FaultError):
                await ask(ANYONE)
        return {*threads, threading.get_ident()}

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(asyncio.run, asyncio.wait_for(use(), 30)) for _ in "ab"]
        assert [len(each.result()) for each in asked] == [1, 1]
