"""Sessions of other servers, relayed: over real ports, with real clients."""

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dragoman.core.error import Fault, FaultError
from dragoman.core.item import Message
from dragoman.core.session_values import CreateItem, ItemDeleted, SessionLimits
from dragoman.engines import remote_session
from dragoman.engines.remote import Remote
from dragoman.engines.router import Route, Router
from dragoman.net import websocket
from dragoman.server import relay
from dragoman.server.log import LINES
from dragoman.server.relay import SessionCopy, read_head
from dragoman.server.settings import Settings
from tests.server.socket.test_realtime import PATH, RESPOND, USER, Talk, served_app
from tests.server.stubs import OPENING, Stub, saying, word
from tests.wire.realtime.stage import calling

REALTIME = {"type": "realtime"}


class Cable:
    """What connects two servers, and can be cut; where it is `mute`, nothing passes by it, and
    where it is `out`, nobody is at its end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.mute = self.out = False
        self.connected = 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.out:
            writer.transport.abort()
            return
        self.connected += 1
        there, onward = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, onward}
        await asyncio.gather(self._pass(reader, onward), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if not self.mute:
                    writer.write(data)
        writer.close()

    def cut(self) -> None:
        """End all connections with no word."""
        self.mute = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@asynccontextmanager
async def linked(
    engine: Any, dialect: Any, app: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Cable, int]]:
    """A server that relays sessions with the models of another, and the cable between them."""
    async with served_app(engine, **(app or {})) as (_, port):
        cable = Cable(port)
        async with await asyncio.start_server(cable.connect, "127.0.0.1") as server:
            place = server.sockets[0].getsockname()[1]
            upstream = Remote(f"http://127.0.0.1:{place}/v1", key="k")
            route = Route(upstream, ("stub",), {"other": "stub"}, realtime=dialect)
            local = Route(Stub(*saying("local"), models=("local",)), ("local",))
            async with served_app(Router([route, local]), Settings(**settings)) as (_, front):
                yield cable, front
            cable.cut()


@asynccontextmanager
async def relayed(engine: Any, dialect: Any, **settings: Any) -> AsyncIterator[int]:
    """The port of such a server."""
    async with linked(engine, dialect, **settings) as (_, front):
        yield front


@pytest.mark.parametrize("dialect", ["ga", "beta"])
@pytest.mark.parametrize("beta", [False, True])
async def test_a_session_is_relayed_between_dialects(dialect, beta) -> None:
    engine = Stub(*saying("Good ", "day"))
    headers = {"OpenAI-Beta": "realtime=v1"} if beta else {}
    async with (
        relayed(engine, dialect) as port,
        connect(f"ws://127.0.0.1:{port}{PATH}?model=other", additional_headers=headers) as socket,
    ):
        talk = Talk(socket, strict=not beta and dialect == "ga")
        if beta:
            await talk.say({"type": "session.update", "session": {"instructions": "x"}})
        await talk.say(USER, RESPOND)
        kinds = [event["type"] for event in await talk.until("response.done")]
        await talk.socket.send("{")
        assert (await talk.next())["type"] == "error"
    assert ("response.text.delta" in kinds) == beta
    assert ("response.output_text.delta" in kinds) != beta
    (request, caller) = engine.asked[0]
    assert request.model == "stub"
    assert caller.hops == 1
    assert [item.text for item in request.items] == ["Hi"]


async def test_a_client_secret_opens_a_session_that_is_relayed(capfd) -> None:
    engine = Stub()
    async with relayed(engine, "ga", request_log=True) as port, httpx2.AsyncClient() as http:
        session = {"type": "realtime", "model": "stub", "instructions": "Be brief."}
        place = f"://127.0.0.1:{port}{PATH}"
        made = await http.post(f"http{place}/client_secrets", json={"session": session})
        bearer = {"Authorization": f"Bearer {made.json()['value']}"}
        async with connect(f"ws{place}", additional_headers=bearer) as connection:
            talk = Talk(connection)
            await talk.say(RESPOND)
            await talk.until("response.done")
    assert engine.asked[0][0].instructions == "Be brief."
    LINES.wait()
    assert "SESSION /v1/realtime 101" in capfd.readouterr().err


async def test_a_client_secret_for_a_model_that_is_not_here_is_not_made() -> None:
    async with relayed(Stub(), "ga") as port, httpx2.AsyncClient() as http:
        place = f"http://127.0.0.1:{port}{PATH}"
        for name, status in (("local", 200), ("other", 200), ("nobody", 404)):
            session = {"type": "realtime", "model": name}
            made = await http.post(f"{place}/client_secrets", json={"session": session})
            assert made.status_code == status
        assert made.json()["error"]["param"] == "session.model"
        for name in ("sessions", "transcription_sessions"):
            beta = await http.post(f"{place}/{name}", json={"model": "local"})
            assert beta.status_code == 404
            assert "POST /v1/realtime/client_secrets" in beta.json()["error"]["message"]


async def test_a_session_with_a_model_of_ours_is_not_relayed() -> None:
    engine = Stub()
    async with (
        relayed(engine, "ga") as port,
        connect(f"ws://127.0.0.1:{port}{PATH}?model=local") as socket,
    ):
        talk = Talk(socket)
        await talk.say(RESPOND)
        await talk.until("response.done")
    assert engine.asked == []
    async with relayed(engine, "ga") as port:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{port}{PATH}?model=nobody"):
                pass
    assert refused.value.response.status_code == 404


@pytest.mark.parametrize("beta", [False, True])
async def test_a_session_that_its_server_ends_is_ended_and_says_why(beta) -> None:
    headers = {"OpenAI-Beta": "realtime=v1"} if beta else {}
    route = Route(Remote("http://127.0.0.1:1/v1"), ("stub",), realtime="ga")
    async with (
        served_app(Router([route])) as (_, port),
        connect(f"ws://127.0.0.1:{port}{PATH}?model=stub", additional_headers=headers) as socket,
    ):
        event = json.loads(await socket.recv())
        assert event["error"]["code"] == "upstream_unreachable"
        with pytest.raises(ConnectionClosed):
            await socket.recv()


# ---- sessions that are lost ------------------------------------------------------------------


@asynccontextmanager
async def talking(
    engine: Any, *, dialect: Any = "ga", beta: bool = False, **options: Any
) -> AsyncIterator[tuple[Cable, Talk]]:
    """A client of a relayed session, and what it can lose."""
    headers = {"OpenAI-Beta": "realtime=v1"} if beta else {}
    async with (
        linked(engine, dialect, **options) as (cable, port),
        connect(f"ws://127.0.0.1:{port}{PATH}?model=stub", additional_headers=headers) as socket,
    ):
        yield cable, Talk(socket, strict=not beta and dialect == "ga")


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(relay, "PAUSES", (0.0, 0.01, 0.02))


def user(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content, **fields}
    return {"type": "conversation.item.create", "item": item}


def texts(request: Any) -> list[str]:
    return [item.text for item in request.items]


@pytest.mark.parametrize("dialect", ["ga", "beta"])
@pytest.mark.parametrize("beta", [False, True])
async def test_an_idle_session_that_is_lost_goes_on_as_it_was(dialect, beta) -> None:
    engine = Stub(*saying("Fine"))
    async with talking(engine, dialect=dialect, beta=beta) as (cable, talk):
        session = {"instructions": "Be brief."}
        session |= {} if beta else {"type": "realtime"}
        await talk.say({"type": "session.update", "session": session})
        tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
        await talk.say({"type": "session.update", "session": {**session, "tools": [tool]}})
        await talk.say(user("One", id="mine"), user("Two"), RESPOND)
        await talk.until("response.done")
        await talk.say({"type": "conversation.item.delete", "item_id": "mine"}, user("Three"))
        await talk.until("conversation.item.created" if beta else "conversation.item.done")
        await talk.say(user("Zero", id="mine"))
        await talk.until("conversation.item.created" if beta else "conversation.item.done")
        cable.cut()
        await talk.say(user("Four", id="other"), RESPOND)
        events = await talk.until("response.done")
        await talk.say({"type": "conversation.item.delete", "item_id": "mine"})
        await talk.until("conversation.item.deleted")
    kinds = {event["type"] for event in events}
    assert not kinds & {"session.created", "session.updated", "conversation.created", "error"}
    items = [event["item"] for event in events if "item" in event]
    assert items[0]["id"] == "other"
    assert cable.connected == 2
    request, _ = engine.asked[-1]
    assert texts(request) == ["Two", "Fine", "Three", "Zero", "Four"]
    assert (request.instructions, [tool.name for tool in request.tools]) == ("Be brief.", ["look"])


async def test_an_answer_under_way_fails_and_stays_as_far_as_it_was_said() -> None:
    engine = Stub(*OPENING, word("Hel"), asyncio.Event())
    async with talking(engine) as (cable, talk):
        await talk.say(USER, RESPOND)
        await talk.until("response.output_text.delta")
        cable.cut()
        events = await talk.until("response.done")
        done = events[-1]["response"]
        assert done["status"] == "failed"
        assert done["status_details"]["error"]["code"] == "upstream_cut"
        (item,) = done["output"]
        assert (item["status"], item["content"][0]["text"]) == ("incomplete", "Hel")
        engine.cues = saying("Fine")
        await talk.say(user("Well?"), RESPOND)
        done = (await talk.until("response.done"))[-1]["response"]
        assert done["status"] == "completed"
    assert texts(engine.asked[-1][0]) == ["Hi", "Hel", "Well?"]


async def test_the_openai_sdk_goes_on_after_a_loss() -> None:
    engine = Stub(*OPENING, word("Hel"), asyncio.Event())
    found: list[tuple[str, str | None]] = []
    async with linked(engine, "ga") as (cable, port):
        base = f"127.0.0.1:{port}/v1"
        async with (
            AsyncOpenAI(
                api_key="x", base_url=f"http://{base}", websocket_base_url=f"ws://{base}"
            ) as client,
            client.realtime.connect(model="stub") as connection,
        ):
            await connection.response.create()
            async for event in connection:
                if event.type == "response.output_text.delta" and not found:
                    cable.cut()
                    engine.cues = saying("Fine")
                elif event.type == "response.done":
                    text = event.response.output[0].content[0].text
                    found.append((event.response.status, text))
                    if len(found) == 2:
                        break
                    await connection.conversation.item.create(item=USER["item"])
                    await connection.response.create()
    assert found == [("failed", "Hel"), ("completed", "Fine")]


@pytest.mark.parametrize("whole", [True, False])
async def test_a_call_that_was_made_can_be_answered_and_one_that_broke_off_is_deleted(
    whole,
) -> None:
    cues = calling(("c1", "look", '{"a": 1}'))
    engine = Stub(*cues if whole else [*cues[:3], asyncio.Event()])
    async with talking(engine) as (cable, talk):
        await talk.say(USER, RESPOND)
        await talk.until("response.done" if whole else "response.function_call_arguments.delta")
        cable.cut()
        engine.cues = saying("Fine")
        if not whole:
            (call,) = (await talk.until("response.done"))[-1]["response"]["output"]
            assert call["status"] == "incomplete"
            deleted = await talk.next()
            assert (deleted["type"], deleted["item_id"]) == (
                "conversation.item.deleted",
                call["id"],
            )
        output = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
        await talk.say({"type": "conversation.item.create", "item": output}, RESPOND)
        await talk.until("response.done")
    kinds = [type(item).__name__ for item in engine.asked[-1][0].items]
    assert kinds == ["Message", *["FunctionCall"] * whole, "FunctionCallOutput"]


async def test_what_was_asked_and_not_answered_is_asked_again() -> None:
    engine = Stub(*saying("Fine"))
    async with talking(engine) as (cable, talk):
        await talk.until("conversation.created")
        await talk.say({"type": "conversation.item.delete", "item_id": "none", "event_id": "e1"})
        await talk.until("error")
        cable.mute = True
        await talk.say({"type": "session.update", "session": {"instructions": "x", **REALTIME}})
        await talk.say({"type": "conversation.item.delete", "item_id": "none", "event_id": "e2"})
        await talk.say(user("One", id="mine"), RESPOND)
        await asyncio.sleep(0.1)
        cable.cut()
        events = await talk.until("response.done")
    assert [event["type"] for event in events][:3] == [
        "session.updated",
        "error",
        "conversation.item.added",
    ]
    assert (events[1]["error"]["event_id"], events[2]["item"]["id"]) == ("e2", "mine")
    (request, _) = engine.asked[-1]
    assert (request.instructions, texts(request)) == ("x", ["One"])


async def test_sound_that_was_not_committed_is_lost_and_the_client_learns_it(monkeypatch) -> None:
    monkeypatch.setattr(relay, "SOON", 0.0)
    engine = Stub(*saying("Fine"))
    sound = {"type": "input_audio_buffer.append", "audio": b64encode(bytes(9_600)).decode()}
    async with talking(engine) as (cable, talk):
        await talk.say(sound, {"type": "session.update", "session": REALTIME})
        await talk.until("session.updated")
        cable.cut()
        cleared, error = await talk.until("error")
        assert cleared["type"] == "input_audio_buffer.cleared"
        assert "was not committed" in error["error"]["message"]
        await talk.say(RESPOND)
        await talk.until("response.done")
        # Sound without words cannot be said again.
        await talk.say(sound, {"type": "input_audio_buffer.commit"})
        await talk.until("conversation.item.done")
        cable.cut()
        error = (await talk.until("error"))[-1]["error"]
        assert "has no transcript" in error["message"]
        with pytest.raises(ConnectionClosed):
            await talk.next()


async def test_a_session_that_is_lost_again_or_cannot_be_opened_ends() -> None:
    for out in (False, True):
        async with talking(Stub(*OPENING, word("Hi"), asyncio.Event())) as (cable, talk):
            await talk.say(USER, RESPOND)
            await talk.until("response.output_text.delta")
            cable.out = out
            cable.cut()
            await talk.until("response.done")
            if not out:
                await talk.say(RESPOND)
                await talk.until("response.output_text.delta")
                cable.cut()
                await talk.until("response.done")
            error = (await talk.until("error"))[-1]["error"]
            assert error["code"] == "upstream_cut"
            assert ("It was not opened again" in error["message"]) == out
            with pytest.raises(ConnectionClosed):
                await talk.next()


async def test_a_session_that_cannot_be_as_it_was_ends_and_says_why(monkeypatch) -> None:
    refused = CreateItem(item=Message("user", "x", id="root"))

    async def lose(mute: bool = False) -> str:
        async with talking(Stub()) as (cable, talk):
            await talk.say(USER)
            await talk.until("conversation.item.done")
            cable.cut()
            cable.mute = mute
            error = (await talk.until("error"))[-1]["error"]
            with pytest.raises(ConnectionClosed):
                await talk.next()
            assert error["code"] == "upstream_cut"
            return str(error["message"])

    with monkeypatch.context() as patch:
        patch.setattr(SessionCopy, "replay", lambda self: ([refused], []))
        assert "It was not opened again: item.id: 'root' is the id of" in await lose()
    with monkeypatch.context() as patch:
        patch.setattr(relay, "WITHIN", 0.1)
        assert "It was not opened again: it took more than 0.1 s" in await lose(mute=True)
    monkeypatch.setattr(relay, "LIMITS", SessionLimits(text=1))
    assert "not opened again" not in await lose()


async def test_a_client_that_leaves_while_its_session_is_opened_again_ends_that(
    monkeypatch,
) -> None:
    monkeypatch.setattr(relay, "PAUSES", (60.0,))
    async with talking(Stub()) as (cable, talk):
        await talk.until("conversation.created")
        cable.cut()
        await asyncio.sleep(0.05)
        await talk.socket.close()
        while any("_reopen" in str(task.get_coro()) for task in asyncio.all_tasks()):
            await asyncio.sleep(0.001)
        assert cable.connected == 1


# ---- what is known of a session ----------------------------------------------------------------


class Followed:
    """A copy of a session, which is given events of its server."""

    def __init__(self, **session: Any) -> None:
        self.copy = SessionCopy({}, beta=False)
        audio = {"input": {"transcription": {"model": "w"}}, "output": {}} | session
        session = {"id": "s", "type": "realtime", "model": "m", "audio": audio}
        self.received("session.created", session=session)

    def received(self, kind: str, **fields: Any) -> None:
        data = json.dumps({"type": kind, "event_id": "e", **fields}).encode()
        self.copy.received(self.copy.read(data))

    def sent(self, data: bytes) -> None:
        self.copy.sent(read_head(data), data)

    def item(self, role: str, *parts: dict[str, Any], id: str) -> None:
        message = {"id": id, "type": "message", "role": role, "content": [*parts]}
        self.received("conversation.item.added", item=message, previous_item_id=None)
        self.received("conversation.item.done", item=message, previous_item_id=None)

    def replayed(self) -> list[str]:
        commands, _ = self.copy.replay()
        return [c.item.text for c in commands if isinstance(c, CreateItem)]


SOUND = {"type": "input_audio", "transcript": None}
LOST = Fault("upstream_cut", "It is lost.", "upstream")


def test_speech_is_replayed_as_its_transcript() -> None:
    known = Followed()
    known.received("input_audio_buffer.speech_started", item_id="u", audio_start_ms=0)
    known.received("input_audio_buffer.committed", item_id="u", previous_item_id=None)
    known.item("user", SOUND, id="u")
    about = {"item_id": "u", "content_index": 0}
    transcription = "conversation.item.input_audio_transcription"
    known.received(f"{transcription}.completed", **about, transcript=" Hello ")
    assert known.replayed() == ["Hello"]
    assert known.copy.close(LOST) == []
    known.received("input_audio_buffer.committed", item_id="v", previous_item_id="u")
    known.item("user", SOUND, id="v")
    assert [type(e).__name__ for e in known.copy.close(LOST)] == ["TranscriptionFailed"]
    with pytest.raises(FaultError, match="has no transcript"):
        known.copy.replay()
    known.received("input_audio_buffer.committed", item_id="w", previous_item_id="u")
    known.received(f"{transcription}.failed", item_id="w", content_index=0, error={"message": "x"})
    known.received("input_audio_buffer.speech_started", item_id="x", audio_start_ms=0)
    assert [type(e).__name__ for e in known.copy.close(LOST)] == ["BufferCleared", "Refused"]


@pytest.mark.parametrize(("format", "a_second"), [("audio/pcm", 48_000), ("audio/pcmu", 8_000)])
def test_an_answer_is_replayed_as_far_as_it_was_played(format, a_second) -> None:
    known = Followed(output={"format": {"type": format}})
    known.received("response.created", response={"id": "r", "status": "in_progress"})
    item = {"id": "a", "type": "message", "role": "assistant", "content": []}
    place = {"response_id": "r", "item_id": "a", "output_index": 0, "content_index": 0}
    known.received("conversation.item.added", item=item, previous_item_id=None)
    known.received("response.output_item.added", response_id="r", output_index=0, item=item)
    part = {"type": "audio", "transcript": ""}
    known.received("response.content_part.added", **place, part=part)
    for said in ("One two. ", "Three four."):
        known.received("response.output_audio_transcript.delta", **place, delta=said)
        sound = b64encode(bytes(a_second)).decode()
        known.received("response.output_audio.delta", **place, delta=sound)
    spoken = {"type": "output_audio", "transcript": "One two. Three four."}
    whole = {**item, "content": [spoken], "status": "completed"}
    known.received("response.output_item.done", response_id="r", output_index=0, item=whole)
    known.received("conversation.item.done", item=whole, previous_item_id=None)
    known.received("response.done", response={"id": "r", "status": "completed", "output": [whole]})
    assert known.replayed() == ["One two. Three four."]
    known.received("conversation.item.truncated", item_id="a", content_index=0, audio_end_ms=9_000)
    assert known.replayed() == ["One two. Three four."]
    known.received("conversation.item.truncated", item_id="a", content_index=0, audio_end_ms=1_700)
    assert known.replayed() == ["One two. Three "]
    known.item("assistant", id="b")
    commands, gone = known.copy.replay()
    assert len(commands) == 2
    assert gone == [ItemDeleted("b")]


def test_what_is_kept_of_a_session_is_counted_whatever_its_server_sends() -> None:
    place: Any = {"response_id": "r", "item_id": "a", "output_index": 0, "content_index": 0}
    for odd in ({"item_id": "a" * 5_000}, {"content_index": 5_000}, {"content_index": -1}):
        with pytest.raises(FaultError, match="cannot be followed"):
            Followed().received("response.output_audio.delta", **{**place, **odd}, delta="AAAA")
    known = Followed()
    call = {"id": "c", "type": "function_call", "call_id": "c", "name": "n" * 1_000_000}
    known.received("conversation.item.added", item=call, previous_item_id=None)
    assert known.copy.size > 1_000_000
    known.received("response.created", response={"id": "r", "status": "in_progress"})
    before = known.copy.size
    known.received("response.output_item.added", response_id="r", output_index=0, item=call)
    assert known.copy.size > before + 1_000_000
    known.item("assistant", id="a")
    for _ in range(100):
        known.received("response.output_audio_transcript.delta", **place, delta="ab")
        known.received("response.output_audio.delta", **place, delta="AAAA")
    known.received("response.done", response={"id": "r", "status": "completed", "output": []})
    assert known.copy.size > 1_000_000 + 100 * 256
    known.received("session.updated", session={"type": "realtime"})
    before = known.copy.size
    for _ in range(2):
        known.sent(b'{"type": "session.update", "session": {"own": "%s"}}' % (b"x" * 600_000))
        known.received("session.updated", session={"type": "realtime"})
    assert 600_000 < known.copy.size - before < 601_000
    known.sent(b'{"type": "session.update", "session": {"other": "%s"}}' % (b"x" * 600_000))
    with pytest.raises(FaultError, match="may have 1048576"):
        known.received("session.updated", session={"type": "realtime"})


ITEM = {"id": "a", "type": "message", "role": "assistant", "content": []}
PART = {"response_id": "r", "item_id": "a", "output_index": 0, "part": {"type": "text", "text": ""}}


@pytest.mark.parametrize(
    "progress",
    [
        lambda n: ("response.created", {"response": {"id": f"r{n}"}}),
        lambda n: ("input_audio_buffer.committed", {"item_id": f"i{n}"}),
        lambda n: (
            "response.output_item.added",
            {"response_id": "r", "output_index": n, "item": {**ITEM, "id": f"i{n}"}},
        ),
        lambda n: ("response.content_part.added", {**PART, "content_index": n}),
    ],
    ids=["answers", "transcriptions", "items", "parts"],
)
def test_what_a_lost_session_has_in_progress_is_closed_in_one_short_piece(
    progress, monkeypatch
) -> None:
    monkeypatch.setattr(relay, "OPEN", 20)
    known = Followed()
    for _ in range(30):  # what is done no longer counts
        known.received("response.created", response={"id": "r"})
        known.received("response.done", response={"id": "r", "status": "completed", "output": []})
    known.received("response.created", response={"id": "r"})
    known.received("response.output_item.added", response_id="r", output_index=0, item=ITEM)
    for number in range(1, 19):
        kind, fields = progress(number)
        known.received(kind, **fields)
    with pytest.raises(FaultError, match="More than 20 answers"):
        kind, fields = progress(19)
        known.received(kind, **fields)
    assert len(known.copy.close(LOST)) < 3 * 20


def test_a_session_that_cannot_be_followed_is_not_opened_again(monkeypatch) -> None:
    known = Followed()
    known.sent(b'{"type": "session.update", "session": 3}')
    with pytest.raises(FaultError, match="cannot be read"):
        known.received("session.updated", session={"type": "realtime"})
    monkeypatch.setattr(relay, "MOST", 1)
    known.sent(b'{"type": "response.create"}')
    with pytest.raises(FaultError, match="More than 1 commands"):
        known.sent(b'{"type": "response.create"}')
    monkeypatch.setattr(relay, "LIMITS", SessionLimits(text=1_000))
    known = Followed()
    with pytest.raises(FaultError, match="as many as a session may have"):
        known.item("user", {"type": "input_text", "text": "x" * 1_000}, id="u")
    with pytest.raises(FaultError, match="as many as a session may have"):
        known.received("response.created", response={"id": "r"})
    assert read_head(b"no event").type == ""


# ---- too much --------------------------------------------------------------------------------


async def test_r3_an_event_of_many_values_is_refused_and_the_session_goes_on() -> None:
    async with talking(Stub(*saying("Hi")), max_json_values=100) as (_, talk):
        await talk.until("session.created")
        await talk.say({"type": "session.update", "session": {"x": [*range(100)]}})
        refused = (await talk.until("error"))[-1]["error"]
        assert "more than 100" in refused["message"]
        await talk.say(USER, RESPOND)
        await talk.until("response.done")


async def test_what_a_server_has_not_taken_counts_in_the_memory(monkeypatch) -> None:
    flows, send = asyncio.Event(), websocket._Connection.send_text

    async def later(self: Any, data: bytes) -> None:
        await flows.wait()
        await send(self, data)

    monkeypatch.setattr(websocket._Connection, "send_text", later)
    append = {"type": "input_audio_buffer.append", "audio": b64encode(bytes(60_000)).decode()}
    async with talking(Stub(*saying("Hi")), memory=150_000) as (_, talk):
        await talk.until("session.created")
        await talk.say(append, append)
        refused = (await talk.until("error"))[-1]["error"]
        assert "(memory)" in refused["message"]
        flows.set()
        await talk.say(USER, RESPOND)
        await talk.until("response.done")


@pytest.mark.parametrize("mark", ",[{")
async def test_r2_an_event_of_many_values_ends_the_session_of_its_server(mark, monkeypatch) -> None:
    monkeypatch.setattr(remote_session, "MAX_VALUES", 600)
    async with talking(Stub(*saying(mark * 1_000))) as (_, talk):
        await talk.until("session.created")
        await talk.say(USER, RESPOND)
        refused = (await talk.until("error"))[-1]["error"]
        assert refused["code"] == "upstream_error"
        with pytest.raises(ConnectionClosed):
            await talk.next()


@pytest.mark.parametrize("dialect", ["ga", "beta"])
@pytest.mark.parametrize("beta", [False, True])
async def test_long_events_are_read_in_a_thread_and_keep_their_order(
    dialect, beta, monkeypatch
) -> None:
    here: list[bool] = []

    def noted(data: bytes) -> relay.Head:
        if len(data) > 1_000:
            here.append(threading.current_thread() is threading.main_thread())
        return read_head(data)

    monkeypatch.setattr(relay, "LARGE", 1_000)
    monkeypatch.setattr(relay, "read_head", noted)
    text, engine = "\N{GRINNING FACE}" * 1_001, Stub(*saying("Good"))
    async with talking(engine, dialect=dialect, beta=beta) as (cable, talk):
        await talk.say(user(text, id="a"), user("short", id="b"))
        await talk.say({"type": "conversation.item.retrieve", "item_id": "a"})
        found = (await talk.until("conversation.item.retrieved"))[-1]
        assert found["item"]["content"][0]["text"] == text
        assert len(here) > 2
        assert not any(here)
        cable.cut()
        await talk.say(RESPOND)
        await talk.until("response.done")
    assert [item.text for item in engine.asked[-1][0].items] == [text, "short"]


def test_an_event_of_another_server_is_made_utf_8(monkeypatch) -> None:
    monkeypatch.setattr(relay, "LARGE", 3)
    assert relay.as_utf8("aé\N{GRINNING FACE}b".encode()).decode() == "aé\N{GRINNING FACE}b"
    assert relay.as_utf8(b"ab\xf0\x9f").decode() == "ab\N{REPLACEMENT CHARACTER}"
    assert relay.as_utf8(b"") == b""


async def test_a_session_that_cannot_be_followed_is_logged_and_goes_on(monkeypatch, caplog) -> None:
    monkeypatch.setattr(relay, "LIMITS", SessionLimits(text=100))
    async with talking(Stub(*saying("Hi"))) as (cable, talk):
        await talk.say(user("x" * 200))
        await talk.until("conversation.item.done")
        await talk.say({"type": "session.update", "session": 3}, USER, RESPOND)
        await talk.until("response.done")
        cable.cut()
        assert (await talk.until("error"))[-1]["error"]["code"] == "upstream_cut"
    (line,) = [each.message for each in caplog.records if "opened again" in each.message]
    assert "is not opened again if it is lost: " in line
    assert "as many as a session may have" in line


async def test_an_event_that_cannot_be_passed_on_ends_the_session(monkeypatch) -> None:
    def fails(self, found, frames):
        raise TypeError

    async with talking(Stub(*saying("Hi"))) as (_, talk):
        await talk.until("session.created")
        monkeypatch.setattr(relay.Relay, "_pass_on", fails)
        await talk.say(USER)
        assert (await talk.until("error"))[-1]["error"]["type"] == "server_error"
        with pytest.raises(ConnectionClosed):
            await talk.next()


async def test_a_deeply_nested_event_is_passed_on_and_refused_by_its_receiver() -> None:
    async with talking(Stub(*saying("Hi"))) as (_, talk):
        await talk.socket.send('{"type": "x", "y": ' + "[" * 3_000 + "]" * 3_000 + "}")
        assert "256 levels" in (await talk.until("error"))[-1]["error"]["message"]
        await talk.say(USER, RESPOND)
        await talk.until("response.done")
