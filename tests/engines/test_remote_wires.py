"""Which wire a remote engine speaks: found out once and for free, or known, or faults."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import ItemAdded, ItemDone
from dragoman.core.interfaces import Caller
from dragoman.core.item import FunctionCall, FunctionCallOutput, Message, Summary, Text
from dragoman.core.request import Sampling
from dragoman.engines import profiles, upstream
from dragoman.engines.profiles import BY_NAME
from dragoman.engines.remote import Remote
from tests.engines.asking import ask, asking, events, fault, remote
from tests.mock import Asked, Mock, Reply, completion, message, mock, plain, response, said

REFUSES = plain(400, {"error": {"message": "input is missing"}})


ANSWERS = {
    "chat": plain(200, completion({"content": "Chat"})),
    "responses": plain(200, response(said("Responses"))),
    "messages": plain(200, message({"type": "text", "text": "Messages"})),
}


def both(asked: Asked) -> Reply:
    """A server that answers on every wire."""
    return ANSWERS.get(asked.path.rpartition("/")[2], ANSWERS["chat"])


def probed(posted: Reply, owner: str = "me", *fields: str) -> Any:
    """Answers the free questions."""
    listing = {"object": "list", "data": [{"id": "m", "owned_by": owner}]}
    return lambda asked: plain(200, listing, *fields) if asked.method == "GET" else posted


def questions(up: Mock) -> list[tuple[str, bytes]]:
    return [(f"{each.method} {each.path}", each.body) for each in up.probes]


# ---- auto ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "wire"),
    [(400, "Responses"), (422, "Responses")]
    + [(status, "Chat") for status in (200, 401, 403, 404, 405, 500, 503)],
)
async def test_auto_asks_once_for_free_and_remembers(status, wire) -> None:
    answers = probed(plain(status, {"error": {"message": "?"}}))
    async with remote(both, wire="auto", probed=answers) as (engine, up):
        assert (await ask(engine)).text == wire
        assert (await ask(engine)).text == wire
        # Where there are no Responses, perhaps there is nothing but Messages.
        more = ("chat/completions", "messages") if status in (404, 405) else ()
        posted = [(f"POST /v1/{path}", b"{}") for path in ("responses", *more)]
        assert questions(up) == [("GET /v1/models", b""), *posted]


async def test_query_of_an_address_follows_every_path() -> None:
    listing = probed(plain(404, {"error": {"message": "?"}}))
    query = "?api-version=1&code=canary"
    vectors = {"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "model": "e"}
    async with mock(both, probed=listing) as up:
        engine = Remote(f"{up.base_url}/{query}#here", wire="auto")
        try:
            (model,) = await engine.models()
            assert (await ask(engine)).text == "Chat"
            up.handler = lambda asked: plain(200, vectors)
            await engine.embed({"model": "e", "input": "x"})
            up.handler = lambda asked: plain(400, {"error": {"message": f"What is {asked.path}?"}})
            quoting = await fault(engine)
        finally:
            await engine.close()
    paths = {f"{each.path}" for each in (*up.probes, *up.asked)}
    words = ("models", "responses", "chat/completions", "messages", "embeddings")
    assert paths == {f"/v1/{path}{query}" for path in words}
    assert model.extra["upstream"]["url"] == up.base_url  # without what may be a secret
    assert quoting.message == "What is /v1/chat/completions?***?"


async def test_tokens_are_counted_with_the_query_of_the_address() -> None:
    async with mock(plain(200, {"input_tokens": 3})) as up:
        engine = Remote(f"{up.base_url}?api-version=1", wire="messages")
        assert await engine.count(asking()) == 3
        await engine.close()
    assert up.asked[0].path == "/v1/messages/count_tokens?api-version=1"


async def test_concurrent_requests_share_one_probe() -> None:
    async with remote(both, wire="auto", probed=probed(REFUSES)) as (engine, up):
        answers = await asyncio.gather(*(ask(engine) for _ in range(6)))
        assert len(up.probes) == 2
    assert {answer.text for answer in answers} == {"Responses"}


async def test_cancelled_request_does_not_stop_the_probe_of_others() -> None:
    asked = asyncio.Event()
    gate = asyncio.Event()

    async def slow(question: Asked) -> Reply:
        asked.set()
        await gate.wait()
        return probed(REFUSES)(question)

    async with remote(both, wire="auto", probed=slow) as (engine, up), asyncio.timeout(10):
        leaving = asyncio.ensure_future(ask(engine))
        staying = asyncio.ensure_future(ask(engine))
        await asked.wait()
        leaving.cancel()
        await asyncio.wait((leaving,))
        gate.set()
        assert (await staying).text == "Responses"
        assert len(up.probes) == 2


async def test_construction_sends_no_request() -> None:
    async with mock(both) as up:
        engine = Remote(up.base_url)
        await engine.capabilities("m")
        await engine.close()
        assert up.connections == 0


async def test_unreachable_server_is_probed_again() -> None:
    async with mock(both) as up:
        port = up.port
    engine = Remote(f"http://127.0.0.1:{port}/v1")
    assert (await fault(engine)).code == "upstream_unreachable"
    async with mock(both, probed(REFUSES, "me"), port=port):
        assert (await ask(engine)).text == "Responses"
        await engine.close()


async def test_failed_probe_is_not_remembered(monkeypatch) -> None:
    async def look(*args: Any) -> None:
        raise RuntimeError("a mistake of ours")

    async with remote(both, wire="auto", probed=probed(REFUSES)) as (engine, _):
        with monkeypatch.context() as patched:
            patched.setattr(upstream.Upstream, "_look", look)
            assert "RuntimeError" in (await fault(engine)).message
        assert (await ask(engine)).text == "Responses"


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_auto_reports_connection_errors_like_a_fixed_wire(scheme) -> None:
    """Over https there is one who speaks no TLS; over http nobody is there any more."""

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    faults = []
    async with await asyncio.start_server(shout, "127.0.0.1", 0) as up:
        base_url = f"{scheme}://127.0.0.1:{up.sockets[0].getsockname()[1]}/v1"
        if scheme == "http":
            up.close()
        for wire in ("auto", "chat"):
            engine = Remote(base_url, wire=wire)
            faults.append(await fault(engine))
            with pytest.raises(FaultError) as caught:
                await engine.models()
            faults.append(caught.value.fault)
            await engine.close()
    assert faults[1:] == faults[:-1]
    assert faults[0].code == "upstream_unreachable"
    assert ("TLS" in faults[0].message) == (scheme == "https")


@pytest.mark.parametrize("name", ["openai", "azure", "openrouter", "deepseek"])
async def test_known_address_is_not_probed(name, monkeypatch) -> None:
    known = [replace(p, hosts=("127.0.0.1",)) for p in profiles.PROFILES if p.name == name]
    monkeypatch.setattr(profiles, "PROFILES", tuple(known))
    async with remote(both, wire="auto") as (engine, up):
        await ask(engine)
        assert engine.profile.name == name
        assert not up.probes


@pytest.mark.parametrize("wire", ANSWERS)
async def test_configured_wire_is_not_probed(wire) -> None:
    async with remote(both, wire=wire, probed=REFUSES) as (engine, up):
        assert (await ask(engine)).text.lower() == wire
        assert not up.probes


# ---- profiles ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "fields", "name"),
    [
        ("library", (), "ollama"),
        ("vllm", (), "vllm"),
        ("me", ("server: llama.cpp",), "llama.cpp"),
    ],
)
async def test_probe_recognises_the_profile(owner, fields, name) -> None:
    async with remote(both, wire="auto", probed=probed(REFUSES, owner, *fields)) as (engine, up):
        assert (await ask(engine)).text == "Chat"
        assert engine.profile is BY_NAME[name]
        assert [each.method for each in up.probes] == ["GET"]


async def test_ordinary_answer_recognises_the_profile() -> None:
    named = plain(200, completion({"content": "Hello"}), "server: llama.cpp")
    async with remote(named) as (engine, _):
        assert engine.profile.name == "generic"
        await ask(engine)
        assert engine.profile.name == "llama.cpp"


async def test_configured_profile_is_not_changed() -> None:
    named = plain(200, completion({"content": "Hello"}), "server: llama.cpp")
    async with remote(named, profile="vllm") as (engine, _):
        await ask(engine)
        assert engine.profile.name == "vllm"


async def test_listing_recognises_the_profile() -> None:
    async with remote(both, probed=probed(REFUSES, "library")) as (engine, _):
        await engine.models()
        assert engine.profile.name == "ollama"


async def test_profile_of_messages_sends_its_key_and_version_with_every_question() -> None:
    listed = {"type": "model", "id": "claude", "display_name": "C", "max_input_tokens": 200_000}
    whole = message({"type": "text", "text": "Hello"}, model="claude")
    listing = plain(200, {"data": [listed], "has_more": False})
    options: dict[str, Any] = {"wire": "auto", "profile": "anthropic", "key": "sk-ant-1"}
    betas = Caller(wire="messages", headers=(("anthropic-beta", "b"),))
    async with remote(plain(200, whole), probed=listing, **options) as (engine, up):
        (model,) = await engine.models()
        for caller in (Caller(wire="chat", headers=betas.headers), betas):
            assert (await ask(engine, caller=caller)).text == "Hello"
        sent = [each.headers for each in (*up.probes, *up.asked)]
        assert [each.path for each in up.asked] == ["/v1/messages"] * 2
    assert (model.id, (model.extra or {})["models"]["context_window"]) == ("claude", 200_000)
    for headers in sent:
        assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-ant-1", "2023-06-01")
        assert "authorization" not in headers
    assert [headers.get("anthropic-beta") for headers in sent] == [None, None, "b"]


async def test_only_clients_of_messages_place_system_messages_in_the_conversation() -> None:
    """Most of Anthropic's models refuse them there, and all before a message of the user."""
    talk = (Message("user", "a"), Message("assistant", "b"), Message("system", "s"))
    async with remote(ANSWERS["messages"], wire="messages", profile="anthropic") as (engine, up):
        for wire in ("messages", "chat"):
            await ask(engine, asking(items=(*talk, Message("user", "c"))), caller=Caller(wire=wire))
    own, front = ([each["role"] for each in asked.json["messages"]] for asked in up.asked)
    assert (own, front) == (["user", "assistant", "system", "user"], ["user", "assistant", "user"])
    assert up.asked[1].json["system"][0]["text"] == "s"


async def test_texts_of_white_space_are_not_sent_to_anthropic() -> None:
    """Some models write them before a call, and it refuses a conversation with one."""
    result = FunctionCallOutput("a", (Text(" "), Text("1")))
    talk = (Message("user", "a"), Message("assistant", "\n\n"), FunctionCall("a", "f", "{}"))
    last = Message("assistant", (Text("\n"), Text(" b\n")))
    items = (Message("system", " "), *talk, result, Message("user", " "), last)
    contents = []
    for profile in ("anthropic", "generic"):
        async with remote(ANSWERS["messages"], wire="messages", profile=profile) as (engine, up):
            answered = await ask(engine, asking(items=(*items, Message("user", "c"))))
            contents.append([each["content"] for each in up.asked[0].json["messages"]])
            found = [loss.field for loss in answered.losses]
            assert ("items[*].content" in found) is (profile == "anthropic")
            assert ("system" in up.asked[0].json) is (profile == "generic")
    question, call, results, said, end = contents[0]
    assert (question, [block["type"] for block in call], end) == ("a", ["tool_use"], "c")
    assert results[0]["content"] == [{"type": "text", "text": "1"}]
    assert said == [{"type": "text", "text": " b\n"}]
    assert len(contents[1]) == len(contents[0]) + 1


async def test_vllm_is_told_to_begin_no_turn_where_a_message_is_continued() -> None:
    """It refuses to continue a message and to begin one; our own servers take the first alone."""
    talk = (Message("user", "a"), Message("assistant", "b"))
    added = "add_generation_prompt"
    for profile, given, sent in (
        ("vllm", {"continue_final_message": True}, False),
        ("sglang", {"continue_final_message": True}, False),
        ("vllm", {"continue_final_message": True, added: True}, True),  # the client's own
        ("vllm", {"continue_final_message": False}, None),
        ("generic", {"continue_final_message": True}, None),
    ):
        async with remote(ANSWERS["chat"], wire="chat", profile=profile) as (engine, up):
            await ask(engine, asking(items=talk, extra={"chat": given}))
        assert up.asked[0].json.get(added) is sent, (profile, given)


async def test_signatures_of_gemini_are_not_sent_to_openai() -> None:
    """It refuses fields of calls that it does not know, whoever's they are."""
    signed = {"chat": {"extra_content": {"google": {"thought_signature": "c2ln"}}}}
    call = FunctionCall("a", "f", "{}", extra=signed)
    talk = (Message("user", "a"), call, FunctionCallOutput("a", "1"))
    for profile, kept in (("openai", False), ("azure", False), ("gemini", True)):
        async with remote(ANSWERS["chat"], wire="chat", profile=profile) as (engine, up):
            await ask(engine, asking(items=talk))
        (sent,) = up.asked[0].json["messages"][1]["tool_calls"]
        assert ("extra_content" in sent) is kept


async def test_calls_of_other_models_are_sent_to_gemini_with_a_stand_in_for_the_signature() -> None:
    """Gemini 3 refuses calls without one. Of calls in parallel it signs the first alone."""
    signed = {"chat": {"extra_content": {"google": {"thought_signature": "c2ln"}}}}
    first, second = FunctionCall("a", "f", "{}"), FunctionCall("b", "f", "{}")
    results = FunctionCallOutput("a", "1"), FunctionCallOutput("b", "2")
    for extra, expected in ((None, "skip_thought_signature_validator"), (signed, "c2ln")):
        talk = (Message("user", "a"), replace(first, extra=extra), second, *results)
        async with remote(ANSWERS["chat"], wire="chat", profile="gemini") as (engine, up):
            await ask(engine, asking(items=talk))
        one, two = up.asked[0].json["messages"][1]["tool_calls"]
        assert one["extra_content"] == {"google": {"thought_signature": expected}}
        assert "extra_content" not in two


# ---- which of two --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "wire"),
    [("openai", "chat"), ("openai", "responses"), *(("dragoman", wire) for wire in ANSWERS)],
)
async def test_o1_server_of_several_wires_is_asked_on_the_callers(profile, wire) -> None:
    async with remote(both, wire="auto", profile=profile) as (engine, _):
        answer = await ask(engine, caller=Caller(wire=wire))
    assert answer.text.lower() == wire


async def test_o1_responses_server_is_asked_on_responses() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "**Hm**"}],
        "encrypted_content": "gAAAA",
    }
    whole = plain(200, response(thought, said("Hello")))
    async with remote(whole, wire="auto", probed=probed(REFUSES)) as (engine, up):
        answer = await ask(engine, caller=Caller(wire="responses"))
        assert up.asked[0].path == "/v1/responses"
        assert up.asked[0].json["input"]
    item = answer.output[0]
    assert (item.id, item.encrypted, item.summary) == ("rs_1", "gAAAA", (Summary("**Hm**"),))


async def test_field_of_one_wire_only_selects_that_wire() -> None:
    async with remote(both, wire="auto", probed=probed(REFUSES)) as (engine, up):
        assert (await ask(engine)).text == "Responses"
        assert (await ask(engine, asking(sampling=Sampling(stop=("END",))))).text == "Chat"
        assert up.asked[1].json["stop"] == ["END"]


@pytest.mark.parametrize("wire", ["responses", "messages"])
async def test_choices_over_wires_of_one_are_separate_requests(wire) -> None:
    async with remote(both, wire=wire) as (engine, up):
        received = await events(engine, asking(sampling=Sampling(n=2)))
        assert len(up.asked) == 2
        assert not any("n" in asked.json for asked in up.asked)
    assert sorted(e.choice for e in received if isinstance(e, ItemAdded)) == [0, 1]
    answers = [event.item for event in received if isinstance(event, ItemDone)]
    first, second = (answer.id for answer in answers)
    assert first != second
    if wire == "responses":  # whose server names its items, every time the same
        assert (first, second) == ("msg_1", "msg_1_1")


async def test_single_text_part_of_another_wire_is_sent_as_a_string() -> None:
    """Its lists of one text are that protocol's way to say a string; many servers take no list."""
    said = (Message("user", (Text("Hello"),)), Message("user", (Text("a"), Text("b"))))
    for wire, contents, faults in (
        ("responses", ["Hello", "a\nb"], True),
        ("chat", [[{"type": "text", "text": "Hello"}], [{"type": "text", "text": "a"}, B]], False),
    ):
        async with remote(both) as (engine, up):
            answer = await ask(engine, asking(items=said), Caller(wire=wire))
            messages = up.asked[0].json["messages"]
        assert [message["content"] for message in messages] == contents
        assert bool(answer.losses) is faults


B = {"type": "text", "text": "b"}
