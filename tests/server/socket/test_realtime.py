"""Realtime over WebSocket, as its clients speak it: over a real port, with real clients."""

import asyncio
import json
import time
import zlib
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI, OpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import dragoman.server.app
from dragoman.core.error import FaultError
from dragoman.core.event import Event, Finished, ItemAdded, ItemDone
from dragoman.core.interfaces import Secret
from dragoman.core.item import FunctionCall, FunctionCallOutput, Unknown
from dragoman.core.response import Usage
from dragoman.server import client_secrets, realtime
from dragoman.server.app import App
from dragoman.server.client_secrets import ClientSecrets
from dragoman.server.log import LINES
from dragoman.server.settings import Settings
from dragoman.server.state.service import open_memory
from dragoman.tools.run import Display, Shown
from dragoman.voice.studio import Studio
from tests.agent.hosting import Fake, Tool
from tests.engines.voices import LOUD, QUIET, Voice
from tests.oracle import DATA, realtime_problems
from tests.server.stubs import FINISHED, OPENING, Stub, saying, served, word
from tests.wire.realtime.order_checker import Order
from tests.wire.realtime.stage import calling

PATH = "/v1/realtime"
USER = {
    "type": "conversation.item.create",
    "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
}
RESPOND = {"type": "response.create"}
COUNTED = replace(FINISHED, usage=Usage(input_tokens=3, output_tokens=2))


@asynccontextmanager
async def served_app(
    engine: Any = None, settings: Settings | None = None, **options: Any
) -> AsyncIterator[tuple[App, int]]:
    app = App(engine or Stub(), settings or Settings(), **options)
    async with served(app, settings) as port:
        yield app, port
    await app.close()


class Talk:
    """A connection whose every event is held against the schema and the order."""

    def __init__(self, socket: ClientConnection, *, strict: bool = True) -> None:
        self.socket = socket
        self.order = Order() if strict else None

    async def say(self, *events: dict[str, Any]) -> None:
        for event in events:
            await self.socket.send(json.dumps(event))

    async def next(self) -> dict[str, Any]:
        event = json.loads(await self.socket.recv())
        if self.order is not None:
            assert realtime_problems(event) == [], event
            self.order.feed(event)
        return event

    async def until(self, kind: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != kind:
            events.append(await self.next())
        return events


@asynccontextmanager
async def talking(
    engine: Any = None,
    *,
    query: str = "?model=stub",
    settings: Settings | None = None,
    strict: bool = True,
    app: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Talk]:
    """A session with a server around this engine."""
    async with (
        served_app(engine, settings, **(app or {})) as (_, port),
        connect(f"ws://127.0.0.1:{port}{PATH}{query}", **options) as socket,
    ):
        yield Talk(socket, strict=strict)


async def test_a_text_turn_of_the_openai_sdk() -> None:
    engine = Stub(*OPENING, word("Hello"), *saying("Hello")[-3:-1], COUNTED)
    async with served_app(engine) as (_, port):
        client = AsyncOpenAI(
            api_key="x",
            base_url=f"http://127.0.0.1:{port}/v1",
            websocket_base_url=f"ws://127.0.0.1:{port}/v1",
        )
        async with client.realtime.connect(model="stub") as connection:
            await connection.session.update(
                session={
                    "type": "realtime",
                    "instructions": "Be brief.",
                    "output_modalities": ["text"],
                }
            )
            await connection.conversation.item.create(item=USER["item"])
            await connection.response.create()
            kinds, text = [], ""
            async for event in connection:
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
                if event.type == "response.done":
                    assert event.response.usage is not None
                    assert event.response.usage.total_tokens == 5
                    assert event.response.status == "completed"
                    break
        await client.close()
    assert text == "Hello"
    assert kinds[:3] == ["session.created", "conversation.created", "session.updated"]
    (request, caller) = engine.asked[0]
    assert (request.instructions, request.model) == ("Be brief.", "stub")
    assert [item.text for item in request.items] == ["Hi"]
    assert caller.wire == "realtime"


async def test_a_call_of_a_function_by_the_openai_sdk_without_async() -> None:
    engine = Stub(*calling(("c1", "weather", '{"city": "Oslo"}')))

    def talk(port: int) -> list[Any]:
        client = OpenAI(
            api_key="x",
            base_url=f"http://127.0.0.1:{port}/v1",
            websocket_base_url=f"ws://127.0.0.1:{port}/v1",
        )
        found: list[Any] = []
        with client, client.realtime.connect(model="stub") as connection:
            tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
            connection.session.update(session={"type": "realtime", "tools": [tool]})
            for _ in range(2):
                connection.response.create()
                for event in connection:
                    found.append(event)
                    if event.type == "response.done":
                        break
                output = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
                connection.conversation.item.create(item=output)
        return found

    async with served_app(engine) as (_, port):
        events = await asyncio.to_thread(talk, port)
    (done, _) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert (done.name, done.call_id, done.arguments) == ("weather", "c1", '{"city": "Oslo"}')
    assert [tool.name for tool in engine.asked[0][0].tools] == ["weather"]
    assert [type(item).__name__ for item in engine.asked[1][0].items[1:]] == [
        "FunctionCall",
        "FunctionCallOutput",
    ]


async def test_an_answer_is_cancelled_and_the_engine_with_it() -> None:
    engine = Stub(*OPENING, word("Hello"), asyncio.Event())
    async with talking(engine) as talk:
        await talk.say(USER, RESPOND)
        await talk.until("response.output_text.delta")
        await talk.say({"type": "response.cancel"})
        done = (await talk.until("response.done"))[-1]
        assert done["response"]["status_details"] == {
            "type": "cancelled",
            "reason": "client_cancelled",
        }
        await asyncio.wait_for(engine.cancelled.wait(), 5)
        await talk.say({"type": "response.cancel", "event_id": "mine"})
        error = (await talk.next())["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "mine")


async def test_a_client_that_disconnects_cancels_the_engine() -> None:
    engine = Stub(*OPENING, word("Hello"), asyncio.Event())
    async with talking(engine) as talk:
        await talk.say(USER, RESPOND)
        await talk.until("response.output_text.delta")
        await talk.socket.close()
        await asyncio.wait_for(engine.cancelled.wait(), 5)


async def test_what_makes_no_sense_is_an_error_and_the_session_goes_on() -> None:
    async with talking() as talk:
        await talk.until("conversation.created")
        for frame in ("{", "[]", '{"type": "nonsense"}', "\0"):
            await talk.socket.send(frame)
            error = (await talk.next())["error"]
            assert error["message"].startswith(("The message is", "type: is 'nonsense'"))
        await talk.socket.send(b'{"type": "session.update", "session": {"type": "realtime"}}')
        assert (await talk.next())["type"] == "session.updated"


async def test_a_failing_engine_fails_the_answer_and_not_the_session() -> None:
    async with talking(Stub(RuntimeError("secret"))) as talk:
        for _ in range(2):
            await talk.say(RESPOND)
            done = (await talk.until("response.done"))[-1]
            assert done["response"]["status"] == "failed"
            assert "secret" not in json.dumps(done)


async def test_an_append_of_many_bytes_is_decoded_and_one_of_too_many_refused() -> None:
    sound = b64encode(bytes(3 * 1024 * 1024)).decode()
    append = {"type": "input_audio_buffer.append", "audio": sound}
    async with talking() as talk:
        await talk.say(append, {"type": "input_audio_buffer.commit"})
        await talk.until("conversation.item.done")
    some = {**append, "audio": sound[:20_000]}
    update = {"type": "session.update", "session": {"type": "realtime"}}
    async with talking(settings=Settings(memory=150_000)) as talk:
        await talk.until("conversation.created")
        found = {}
        while found.get("type") != "error":
            await talk.say(some, update)
            found = await talk.next()
        assert found["error"]["code"] in ("overloaded", "request_too_large")
        await talk.say({"type": "input_audio_buffer.clear"})
        await talk.until("input_audio_buffer.cleared")


async def test_a_session_is_refused_as_http_where_it_cannot_be_opened() -> None:
    keyed = Settings(keys=(Secret("k" * 20),))
    rows: list[tuple[dict[str, Any], int]] = [
        ({"query": ""}, 400),
        ({"query": "?call_id=rtc_1"}, 404),
        ({"settings": keyed}, 401),
        ({"settings": Settings(max_sockets_per_key=1)}, 0),
    ]
    for options, status in rows:
        if status:
            with pytest.raises(InvalidStatus) as refused:
                async with talking(**options):
                    pass
            assert refused.value.response.status_code == status
            continue
        studio = Studio(None, None)
        async with served_app(None, options["settings"], studio=studio) as (_, port):
            url = f"ws://127.0.0.1:{port}{PATH}?model=m"
            async with connect(url):
                with pytest.raises(InvalidStatus) as refused:
                    async with connect(url):
                        pass
                assert refused.value.response.status_code == 429
            several = await asyncio.gather(
                *[connect(url) for _ in range(5)], return_exceptions=True
            )
            (one,) = [each for each in several if not isinstance(each, InvalidStatus)]
            assert not isinstance(one, BaseException)
            await one.close()


async def test_a_page_gives_its_key_as_a_subprotocol() -> None:
    key = "k" * 20
    offered = ["realtime", f"openai-insecure-api-key.{key}"]
    settings = Settings(keys=(Secret(key),))
    async with talking(settings=settings, subprotocols=offered) as talk:
        assert talk.socket.subprotocol == "realtime"
        await talk.until("conversation.created")
    with pytest.raises(InvalidStatus):
        async with talking(settings=settings, subprotocols=["realtime", f"{offered[1]}x"]):
            pass


async def test_the_beta_dialect_is_spoken_where_a_client_asks_for_it() -> None:
    headers = {"OpenAI-Beta": "realtime=v1"}
    async with talking(strict=False, additional_headers=headers) as talk:
        update = {"modalities": ["text"], "instructions": "x", "turn_detection": None}
        await talk.say({"type": "session.update", "session": update}, USER, RESPOND)
        events = await talk.until("response.done")
    kinds = [event["type"] for event in events]
    assert "response.text.delta" in kinds
    assert "conversation.item.created" in kinds
    assert not any("output_text" in kind or kind.endswith(".added") for kind in kinds[:5])
    session = events[kinds.index("session.updated")]["session"]
    assert (session["modalities"], session["instructions"]) == (["text"], "x")
    assert events[-1]["response"]["output"][0]["content"][0]["type"] == "text"
    old = ["realtime", "openai-beta.realtime-v1"]
    async with talking(strict=False, subprotocols=old) as talk:
        assert "modalities" in (await talk.next())["session"]


class Voiced(Studio, frozen=True):
    """A studio of voices that need nothing."""

    def open(self) -> Voice:
        return Voice()


async def test_a_spoken_turn_with_the_voice_of_the_server() -> None:
    """Sound in, turns found, text for the model, sound out; and an interruption."""
    engine = Stub(*saying("Fine, ", "thanks"))
    audio = {"input": {"transcription": {"model": "w"}}}
    update = {"type": "session.update", "session": {"type": "realtime", "audio": audio}}
    speech = b64encode(QUIET * 100 + LOUD * 200 + QUIET * 10).decode()
    async with talking(engine, app={"studio": Voiced(None, None)}) as talk:
        await talk.say(update, {"type": "input_audio_buffer.append", "audio": speech})
        events = await talk.until("response.done")
        kinds = [event["type"] for event in events]
        order = ["speech_started", "speech_stopped", "committed", "transcription.completed"]
        places = [next(n for n, kind in enumerate(kinds) if kind.endswith(o)) for o in order]
        assert places == sorted(places)
        (item,) = events[-1]["response"]["output"]
        assert item["content"] == [{"type": "output_audio", "transcript": "Fine, thanks"}]
        engine.cues = (*OPENING, word("Well"), asyncio.Event())
        await talk.say(RESPOND)
        await talk.until("response.output_audio.delta")
        await talk.say(
            {"type": "input_audio_buffer.append", "audio": b64encode(LOUD * 50).decode()}
        )
        done = (await talk.until("response.done"))[-1]["response"]
        assert done["status_details"]["reason"] == "turn_detected"
        cut = {"item_id": done["output"][0]["id"], "content_index": 0, "audio_end_ms": 0}
        await talk.say({"type": "conversation.item.truncate", **cut})
        await talk.until("conversation.item.truncated")


async def test_a_session_that_only_transcribes() -> None:
    query = "?intent=transcription"
    async with talking(query=query, app={"studio": Voiced(None, None)}) as talk:
        created = await talk.next()
        assert created["session"]["type"] == "transcription"
    with pytest.raises(InvalidStatus) as refused:  # where nothing listens, nothing would come
        async with talking(query=query):
            pass
    assert b"does not understand speech" in refused.value.response.body


async def test_a_client_secret_opens_one_session_with_its_configuration(monkeypatch) -> None:
    key = "k" * 20
    settings = Settings(keys=(Secret(key),))
    async with served_app(None, settings) as (_, port), httpx2.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}{PATH}/client_secrets"
        session = {"type": "realtime", "model": "stub", "instructions": "Be brief."}
        asked = {"expires_after": {"anchor": "created_at", "seconds": 60}, "session": session}
        head = {"Authorization": f"Bearer {key}"}
        made = (await http.post(url, json=asked, headers=head)).json()
        assert realtime_problems_of_secret(made) == []
        assert made["session"]["instructions"] == "Be brief."
        socket = f"ws://127.0.0.1:{port}{PATH}"
        bearer = {"Authorization": f"Bearer {made['value']}"}
        async with connect(f"{socket}?model=dear", additional_headers=bearer) as connection:
            created = json.loads(await connection.recv())
            assert created["session"]["instructions"] == "Be brief."
            assert created["session"]["model"] == "stub"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(socket, additional_headers=bearer):
                pass
        assert refused.value.response.status_code == 401
        # One that nobody used in time, and one of too many, are good for nothing.
        made = (await http.post(url, json={}, headers=head)).json()
        later = time.time() + 601
        with monkeypatch.context() as patch:
            patch.setattr(client_secrets, "time", SimpleNamespace(time=lambda: later))
            bearer = {"Authorization": f"Bearer {made['value']}"}
            with pytest.raises(InvalidStatus):
                async with connect(f"{socket}?model=m", additional_headers=bearer):
                    pass
        wrong = await http.post(url, json={"expires_after": {"seconds": 1}}, headers=head)
        assert wrong.status_code == 400


def realtime_problems_of_secret(value: dict[str, Any]) -> list[str]:
    assert value["value"].startswith("ek_")
    document = json.loads((DATA / "realtime.json").read_text())["components"]["schemas"]
    return sorted(set(document["RealtimeCreateClientSecretResponse"]["required"]) - set(value))


async def test_another_worker_takes_a_client_secret() -> None:
    settings = Settings(workers=2)
    async with served_app(None, settings) as (_, port), httpx2.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}{PATH}/client_secrets"
        session = {"type": "realtime", "model": "stub", "instructions": "Be brief."}
        value = (await http.post(url, json={"session": session})).json()["value"]
        plain = await http.get(f"http://127.0.0.1:{port}{PATH}?model=m")
        assert plain.status_code == 426
        # What is too long for a header, or for a secret, is refused at once.
        for size, most in ((200_000, "header_limit"), (5_000_000, "262144")):
            words = Random(0).randbytes(size // 2).hex()
            long = {"session": {"type": "realtime", "instructions": words}}
            refused = (await http.post(url, json=long)).json()["error"]
            assert refused["code"] == "request_too_large"
            assert most in refused["message"]
    async with served_app(None, settings) as (_, port):  # another application of this process
        bearer = {"Authorization": f"Bearer {value}"}
        async with connect(f"ws://127.0.0.1:{port}{PATH}", additional_headers=bearer) as socket:
            created = json.loads(await socket.recv())["session"]
            assert (created["instructions"], created["model"]) == ("Be brief.", "stub")


async def test_another_server_of_the_store_takes_a_client_secret(tmp_path, monkeypatch) -> None:
    def settings(*keys: str) -> Settings:
        store = f"sqlite:{tmp_path}/store.db"
        return Settings(store=store, keys=tuple(Secret(key) for key in keys))

    async def tried(port: int, value: str) -> int:
        bearer = {"Authorization": f"Bearer {value}"}
        try:
            async with connect(f"ws://127.0.0.1:{port}{PATH}", additional_headers=bearer):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    first = settings("red-key-1", "blue-key-1")
    async with served_app(None, first, memory=open_memory(first, {}, ())) as (_, port):
        url = f"http://127.0.0.1:{port}{PATH}/client_secrets"
        async with httpx2.AsyncClient(headers={"Authorization": "Bearer red-key-1"}) as http:
            asked = {"session": {"type": "realtime", "model": "stub"}}
            values = [(await http.post(url, json=asked)).json()["value"] for _ in range(2)]
    monkeypatch.setattr(dragoman.server.app, "_SECRET", b"of another process" * 2)
    again = settings("blue-key-1", "red-key-1")
    async with served_app(None, again, memory=open_memory(again, {}, ())) as (_, port):
        assert [await tried(port, values[0]) for _ in range(2)] == [101, 401]
    # Without the keys, the store alone does not make one.
    other = settings("red-key-1")
    async with served_app(None, other, memory=open_memory(other, {}, ())) as (_, port):
        assert await tried(port, values[1]) == 401


SIGNING = b"k" * 32


def secrets_of(engine: Any = None, **settings: Any) -> ClientSecrets:
    service: Any = SimpleNamespace(engine=engine, settings=Settings(**settings))
    return ClientSecrets(service, lambda: SIGNING)


def test_a_client_secret_is_refused_where_it_is_forged_used_or_one_of_too_many(monkeypatch) -> None:
    found = secrets_of()
    content = {"id": "a", "expires": time.time() + 60, "tenant": "t", "session": {}}

    def value(**changes: Any) -> str:
        return "ek_" + found._signed(zlib.compress(json.dumps({**content, **changes}).encode()))

    assert found.redeem("sk-something") is None
    good = value()
    opened = found.redeem(good)
    assert opened is not None
    assert (opened.caller.tenant, opened.caller.key) == ("t", None)
    other = ClientSecrets(found._service, lambda: b"another key")
    garbage = ["ek_", "ek_!", "ek_\u00e9", "ek_" + "A" * 99]
    for each in [good, value(expires=1), good[:-4] + "AAAA", *garbage]:
        with pytest.raises(FaultError) as refused:
            found.redeem(each)
        assert refused.value.fault.code == "authentication"
    with pytest.raises(FaultError):
        other.redeem(value(id="b"))
    monkeypatch.setattr(client_secrets, "MOST", 2)
    found.redeem(value(id="b", expires=time.time() + 0.2))
    with pytest.raises(FaultError) as refused:
        found.redeem(value(id="c"))
    assert refused.value.fault.code == "overloaded"
    later = time.time() + 30
    monkeypatch.setattr(client_secrets, "time", SimpleNamespace(time=lambda: later))
    assert found.redeem(value(id="c")) is not None  # the second one is of no use any more
    monkeypatch.setattr(client_secrets, "MOST", 4)  # nobody keeps another from using one
    monkeypatch.setattr(client_secrets, "time", time)
    while True:
        try:
            found.redeem(value(id=f"d{len(found._used)}"))
        except FaultError:
            break
    assert len(found._used) < 4
    assert found.redeem(value(id="e", tenant="another")) is not None


async def test_a_client_secret_is_measured_before_it_is_compressed(monkeypatch) -> None:
    """It is decompressed for whoever presents it, used or not."""
    monkeypatch.setattr(zlib, "compress", None)
    async with served_app() as (_, port), httpx2.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}{PATH}/client_secrets"
        for field in ("instructions", "client_secret"):  # one that is not used weighs, too
            session = {"type": "realtime", field: "x" * client_secrets.MAX_SESSION}
            refused = (await http.post(url, json={"session": session})).json()["error"]
            assert (refused["code"], refused["param"]) == ("request_too_large", "session")


async def test_who_makes_many_secrets_with_keys_of_its_own_loses_its_own(monkeypatch) -> None:
    engine: Any = Stub()
    engine.passes_client_key = True
    monkeypatch.setattr(client_secrets, "MOST", 4)
    async with served_app(engine) as (app, port), httpx2.AsyncClient() as http:
        for key in ("mine", *["another"] * 6):
            url = f"http://127.0.0.1:{port}{PATH}/client_secrets"
            head = {"Authorization": f"Bearer sk-{key}"}
            assert (await http.post(url, json={}, headers=head)).status_code == 200
        kept = [key.reveal() for _, key in app._realtime._secrets._passed.values() if key]
    assert kept == ["sk-mine", *["sk-another"] * 3]


async def test_a_key_that_is_passed_on_stays_in_the_process_that_was_given_it(monkeypatch) -> None:
    engine: Any = Stub()
    engine.passes_client_key = True
    head = {"Authorization": "Bearer sk-theirs"}
    monkeypatch.setattr(client_secrets, "MOST", 1)
    async with served_app(engine) as (_, port), httpx2.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}{PATH}"
        first, second = [
            (await http.post(f"{url}/client_secrets", json={}, headers=head)).json()["value"]
            for _ in range(2)
        ]
        assert "theirs" not in second
        bearer = {"Authorization": f"Bearer {first}"}
        with pytest.raises(InvalidStatus):
            async with connect(f"ws://127.0.0.1:{port}{PATH}?model=m", additional_headers=bearer):
                pass
        bearer = {"Authorization": f"Bearer {second}"}
        address = f"ws://127.0.0.1:{port}{PATH}?model=m"
        async with connect(address, additional_headers=bearer) as socket:
            talk = Talk(socket)
            await talk.say(RESPOND)
            await talk.until("response.done")
    key = engine.asked[0][1].key
    assert key is not None
    assert key.reveal() == "sk-theirs"
    async with served_app(engine, Settings(workers=2)) as (_, port), httpx2.AsyncClient() as http:
        made = await http.post(f"http://127.0.0.1:{port}{PATH}/client_secrets", json={})
        assert made.json()["error"]["code"] == "unsupported_parameter"


async def test_a_client_that_does_not_read_pauses_the_engine() -> None:
    """The engine is at most a few writes ahead of what the client has taken."""
    words = [word("x" * 8_000)] * 1_500
    engine = Stub(*OPENING, *words, *saying("")[-3:-1], Finished("completed"))
    async with talking(engine, max_queue=1, max_size=None, strict=False) as talk:
        await talk.say(RESPOND)
        await engine.begun.wait()
        said = -1
        while engine.said != said:  # until it waits for us
            said = engine.said
            await asyncio.sleep(0.1)
        assert said < len(words)
        events = await talk.until("response.done")
        assert len(events) > len(words)


async def test_a_session_ends_when_its_time_is_over_and_says_so(monkeypatch) -> None:
    limits = realtime.SessionLimits
    monkeypatch.setattr(realtime, "SessionLimits", lambda **k: limits(**k, lifetime_ms=50))
    async with talking() as talk:
        error = (await talk.until("error"))[-1]
        assert error["error"]["code"] == "session_expired"
        with pytest.raises(ConnectionClosed):
            await talk.next()


async def test_a_server_that_shuts_down_ends_the_sessions_that_are_answering() -> None:
    engine = Stub(*OPENING, asyncio.Event())
    async with (
        served_app(engine) as (app, port),
        connect(f"ws://127.0.0.1:{port}{PATH}?model=stub") as socket,
    ):
        talk = Talk(socket)
        await talk.say(RESPOND)
        await talk.until("response.content_part.added")
        await app.drain(0)
        error = (await talk.until("error"))[-1]
        assert error["error"]["code"] == "shutting_down"
        with pytest.raises(ConnectionClosed, match="1012"):  # the SDK reconnects
            await talk.next()


async def test_an_answer_takes_no_longer_than_the_deadline() -> None:
    engine = Stub(*OPENING, asyncio.Event())
    async with talking(engine, settings=Settings(deadline=0.1)) as talk:
        await talk.say(RESPOND)
        done = (await talk.until("response.done"))[-1]
        assert done["response"]["status_details"]["error"]["code"] == "upstream_timeout"


class Counts(Stub):
    """Makes much that counts."""

    async def stream(self, request: Any, caller: Any = None) -> AsyncGenerator[Event, None]:
        for event in OPENING:
            yield event
        while True:
            caller.count(50_000)
            caller.count(-10_000)
            self.said += 40_000
            yield word("x")


async def test_answers_leave_room_for_what_clients_are_sent() -> None:
    engine = Counts()
    async with talking(engine, settings=Settings(memory=1_000_000)) as talk:
        await talk.say(USER, RESPOND)
        done = (await talk.until("response.done"))[-1]["response"]
        assert done["status_details"]["error"]["code"] == "overloaded"
        assert 800_000 < engine.said < 875_000  # an eighth is left
        await talk.say({"type": "session.update", "session": {"type": "realtime"}})
        await talk.until("session.updated")


async def test_a_connection_without_room_for_what_it_is_sent_is_told_so() -> None:
    """What else its key has in flight takes all of `memory`."""
    settings = Settings(memory=2_000_000)
    async with served_app(Stub(*saying("x" * 100_000)), settings) as (app, port):
        hold = app.budget.hold("")
        hold.resize(1_990_000)
        async with connect(f"ws://127.0.0.1:{port}{PATH}?model=m", max_size=None) as socket:
            await socket.send(json.dumps(USER))
            await socket.send(json.dumps(RESPOND))
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        assert closed.value.rcvd.reason.endswith("too many bytes are in flight (memory).")
        hold.close()
        assert app.budget.held == 0


async def test_each_answer_has_a_line_in_the_log(capfd) -> None:
    settings = Settings(request_log=True)
    engine = Stub(*OPENING, *saying("")[-3:-1], COUNTED)
    async with talking(engine, settings=settings) as talk:
        await talk.say(RESPOND)
        await talk.until("response.done")
    LINES.wait()
    assert "TURN /v1/realtime 200" in capfd.readouterr().err


# ---- tools of MCP servers --------------------------------------------------------------------


class Adding(Stub):
    """Calls a tool of an MCP server, and says what it gave."""

    async def stream(self, request: Any, caller: Any = None) -> Any:
        self.asked.append((request, caller))
        last = request.items[-1]
        called = isinstance(last, FunctionCallOutput)
        cues = saying(f"It is {last.output}.") if called else calling(("c1", "total", '{"a": 1}'))
        for cue in cues:
            if isinstance(cue, ItemAdded | ItemDone) and isinstance(cue.item, FunctionCall):
                cue = type(cue)(cue.index, replace(cue.item, namespace="s"))
            yield cue


async def test_the_tools_of_an_mcp_server_are_listed_asked_about_and_called() -> None:
    """The client sees each step and no credential, and the model what was said."""

    async def total(text: str) -> Shown:
        return Shown("3", {"output": "3", "error": None})

    def shown(call: Any) -> dict[str, Any]:
        return {"server_label": "s", "name": "total", "arguments": call.text}

    display = Display("mcp_call", shown, delta="arguments", fails=True)
    tools = [{"name": "total", "input_schema": {}, "description": None}]
    listed = Unknown("responses", "mcp_list_tools", {"server_label": "s", "tools": tools})
    hosted = Tool("mcp", Fake("total", display, total, "always"), namespace="s", items=(listed,))
    engine = Adding()
    asked = {"type": "mcp", "server_label": "s", "server_url": "https://x.example", "headers": {}}
    async with talking(engine, app={"tools": [hosted]}) as talk:
        session = {"type": "realtime", "tools": [{**asked, "authorization": "secret"}]}
        await talk.say({"type": "session.update", "session": session}, USER, RESPOND)
        updated, *events = await talk.until("response.done")
        assert "secret" not in json.dumps([updated, *events])
        kinds = [event["type"] for event in events]
        assert kinds.index("mcp_list_tools.in_progress") < kinds.index("mcp_list_tools.completed")
        _, wanted = events[-1]["response"]["output"]
        assert (wanted["type"], wanted["arguments"]) == ("mcp_approval_request", '{"a": 1}')
        answer = {"type": "mcp_approval_response", "id": "mine", "approve": True}
        item = {**answer, "approval_request_id": wanted["id"]}
        await talk.say({"type": "conversation.item.create", "item": item}, RESPOND)
        events = await talk.until("response.done")
    kinds = [event["type"] for event in events]
    steps = [f"mcp_call{step}" for step in ("_arguments.done", ".in_progress", ".completed")]
    places = [kinds.index(f"response.{step}") for step in steps]
    assert places == sorted(places)
    *_, called, said = events[-1]["response"]["output"]
    assert (called["output"], called["approval_request_id"]) == ("3", wanted["id"])
    assert said["content"][0]["text"] == "It is 3."
    assert hosted.asked[0]["authorization"] == "secret"
    kinds = [type(each).__name__ for each in engine.asked[-1][0].items]
    assert kinds == ["Message", "FunctionCall", "FunctionCallOutput"]
    async with served_app() as (_, port), httpx2.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}{PATH}/client_secrets"
        refused = (await http.post(url, json={"session": session})).json()["error"]
        assert (refused["code"], refused["param"]) == ("unsupported_parameter", "session.tools")
