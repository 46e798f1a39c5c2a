"""Responses over WebSocket, as its clients speak it: over a real port, with a real client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dragoman.core.error import Fault
from dragoman.core.event import Failed
from dragoman.core.interfaces import Caller, Handle, Secret, Sink
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.base import Immediate
from dragoman.engines.remote import Remote
from dragoman.server import websocket
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.server.websocket import MOST
from dragoman.stores.memory import MemoryStore
from tests.server.state.thinking import BLOB, thinking, thoughts
from tests.server.stubs import FINISHED, OPENING, STARTED, Call, Stub, saying, served, word

PATH = "/v1/responses"
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


@asynccontextmanager
async def talking(
    engine: Any = None, *, memory: bool = True, settings: Settings | None = None, **options: Any
) -> AsyncIterator[ClientConnection]:
    """A connection to a server around this engine."""
    app = App(engine or Stub(), settings or Settings(), Memory(MemoryStore()) if memory else None)
    async with (
        served(app, settings) as port,
        connect(f"ws://127.0.0.1:{port}{PATH}", **options) as socket,
    ):
        yield socket
    await app.close()


async def say(socket: ClientConnection, **fields: Any) -> None:
    frame = {"type": "response.create", "model": "stub", "input": "Hi", **fields}
    await socket.send(json.dumps(frame))


async def hear(socket: ClientConnection) -> list[dict[str, Any]]:
    """The events of one turn."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ENDS:
        events.append(json.loads(await socket.recv()))
    return events


async def turn(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    """The last event of a turn."""
    await say(socket, **fields)
    return (await hear(socket))[-1]


def identity(end: dict[str, Any]) -> str:
    return str(end["response"]["id"])


# ---- the checks of Open Responses ------------------------------------------------------------


async def test_a_turn_gives_the_events_of_a_stream() -> None:
    async with talking() as socket:
        await say(socket)
        events = await hear(socket)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello, world"
    assert all("stream_id" not in event for event in events)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("store", [False, True])
async def test_h1_losses_and_the_guarantee_are_in_the_first_event_and_all_in_the_last(
    memory, store
) -> None:
    """Where an answer over HTTP has headers. The strict readers of the SDK take them."""
    early, late = Loss("wibble", "dropped", "why"), Loss("tools[0]", "emulated", "how")
    begun = replace(STARTED, losses=(early,))
    ended = replace(FINISHED, losses=(late,), guarantee="verified")
    _, *events, _ = saying("{}")
    async with talking(Stub(begun, *events, ended), memory=memory) as socket:
        format = {"type": "json_schema", "name": "n", "schema": {}, "strict": True}
        await say(socket, store=store, stream_id="one", text={"format": format})
        heard = await hear(socket)
        TypeAdapter(list[ResponsesServerEvent]).validate_python(heard)
        found = [event.pop("headers", {}) for event in heard]
        lost = "dropped: store, wibble" if store and not memory else "dropped: wibble"
        assert found.pop(0) == {
            "x-dragoman-loss": lost,
            "x-dragoman-guarantee": "best-effort",
        }
        assert found.pop() == {
            "x-dragoman-loss": f"{lost}; emulated: tools[0]",
            "x-dragoman-guarantee": "verified",
        }
        assert not any(found)
        assert all(event["stream_id"] == "one" for event in heard)
    async with talking(Stub(*saying("a"))) as socket:
        await say(socket)
        assert not any("headers" in event for event in await hear(socket))


class Once(Stub):
    """Gives its whole answer in one batch."""

    def start(self, request: Request, caller: Caller, sink: Sink) -> Handle:
        return Immediate([*self.cues], sink)


async def test_losses_of_a_first_event_are_in_a_last_one_that_comes_with_it() -> None:
    begun = replace(STARTED, losses=(Loss("wibble", "dropped", "why"),))
    _, *events = saying("a")
    async with talking(Once(begun, *events)) as socket:
        await say(socket)
        heard = await hear(socket)
    found = [event.get("headers", {}).get("x-dragoman-loss") for event in heard]
    assert (found[0], found[-1]) == ("dropped: wibble", "dropped: wibble")


async def test_turns_follow_one_another() -> None:
    async with talking() as socket:
        await say(socket, store=False)
        await say(socket, store=False)
        first, second = await hear(socket), await hear(socket)
    assert first[-1]["type"] == second[-1]["type"] == "response.completed"
    assert identity(first[-1]) != identity(second[-1])
    assert [event["sequence_number"] for event in second] == list(range(len(second)))


@pytest.mark.parametrize("store", [True, False])
async def test_turn_behind_a_long_history_is_as_large_as_that(store: bool) -> None:
    async with talking(stub := Stub()) as socket:
        end = await turn(socket, input="a" * 200_000, store=store)
        await turn(socket, input="Hi", previous_response_id=identity(end), store=store)
    assert stub.asked[-1][1].size > 200_000  # else it is encoded for its upstream on the loop


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("store", [False, True])
async def test_p23_turn_continues_another_of_its_connection(memory, store) -> None:
    engine = Stub()
    async with talking(engine, memory=memory) as socket:
        previous = None
        for text in "abc":
            end = await turn(socket, input=text, store=store, previous_response_id=previous)
            assert end["response"]["previous_response_id"] == previous
            assert end["response"]["store"] is (store and memory)
            previous = identity(end)
    said = [item.text for item in engine.asked[-1][0].items]
    assert said == ["a", "Hello, world", "b", "Hello, world", "c"]


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("store", [None, False])
async def test_p9_turns_of_a_connection_keep_encrypted_reasoning(memory, store) -> None:
    """The upstream keeps nothing, and refuses what it thought without its seal."""
    async with thinking("responses") as up:
        async with talking(Remote(up.base_url, wire="responses"), memory=memory) as socket:
            previous = None
            for _ in range(3):
                await say(socket, previous_response_id=previous, store=store)
                events = await hear(socket)
                assert events[-1]["type"] == "response.completed", events[-1]
                # Who stores nothing may have to bring it back.
                assert (BLOB in str(events)) is not (memory and store is None)
                previous = identity(events[-1])
        assert [len(thoughts(asked)) for asked in up.asked] == [0, 1, 2]


async def test_stored_turn_includes_unstored_turns_of_its_connection() -> None:
    engine = Stub()
    app = App(engine, Settings(), Memory(MemoryStore()))
    async with served(app) as port:
        address = f"ws://127.0.0.1:{port}{PATH}"
        async with connect(address) as first:
            unkept = identity(await turn(first, input="a", store=False))
            end = await turn(first, input="b", previous_response_id=unkept)
            assert end["response"]["previous_response_id"] == unkept
            kept = identity(end)
            assert "response" in await turn(first, input="c", previous_response_id=kept)
        async with connect(address) as second:
            assert "response" in await turn(second, input="d", previous_response_id=kept)
        listed = await Call(app, f"{PATH}/{kept}/input_items", method="GET")()
    said = [item.text for item in engine.asked[-1][0].items]
    assert said == ["a", "Hello, world", "b", "Hello, world", "d"]
    assert len(listed.json["data"]) == 3
    await app.close()


async def test_another_connection_does_not_know_what_was_not_stored() -> None:
    app = App(Stub(), Settings(), Memory(MemoryStore()))
    async with served(app) as port:
        address = f"ws://127.0.0.1:{port}{PATH}"
        async with connect(address) as first:
            kept = identity(await turn(first))
            unkept = identity(await turn(first, store=False))
        async with connect(address) as second:
            refused = await turn(second, previous_response_id=unkept, store=False)
            assert (refused["type"], refused["status"]) == ("error", 400)
            assert refused["error"]["code"] == "previous_response_not_found"
            assert refused["error"]["param"] == "previous_response_id"
            assert (await turn(second, store=False))["type"] == "response.completed"
            going_on = await turn(second, previous_response_id=kept)
            assert going_on["type"] == "response.completed"
    await app.close()


async def test_failed_continuation_evicts_its_response() -> None:
    output = {"type": "function_call_output", "call_id": "nothing", "output": "1"}
    async with talking() as socket:
        first = identity(await turn(socket, store=False))
        failed = await turn(socket, store=False, previous_response_id=first, input=[output])
        assert failed["type"] == "error"
        assert failed["error"]["param"] == "input[0].call_id"
        again = await turn(socket, store=False, previous_response_id=first)
        assert again["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    "fault",
    [
        Fault("invalid_request", "Wrong.", "client"),
        Fault("permission", "Not you.", "client"),
        Fault("upstream_refused", "No.", "client", status=400),
        Fault("upstream_refused", "No.", "client", status=400, upstream_code="bad_words"),
        Fault("upstream_error", "It broke.", "upstream"),
    ],
)
async def test_error_before_the_first_event_has_a_code_that_is_a_string(fault) -> None:
    async with talking(Stub(Failed(fault))) as socket:
        said = await turn(socket)
    assert said["error"]["code"] == (fault.upstream_code or fault.code)
    error = TypeAdapter[Any](ResponsesServerEvent).validate_python(said)
    assert (error.type, error.error.message) == ("error", fault.message)


@pytest.mark.parametrize("late", [False, True])
async def test_a_failure_of_the_model_evicts_too(late) -> None:
    fault = Fault("upstream_unreachable", "It is not there.", "upstream")
    engine = Stub()
    async with talking(engine) as socket:
        first = identity(await turn(socket, store=False))
        engine.cues = (*OPENING, Failed(fault)) if late else (Failed(fault),)
        failed = await turn(socket, store=False, previous_response_id=first)
        assert failed["type"] == ("response.failed" if late else "error")
        engine.cues = saying("Hello")
        again = await turn(socket, store=False, previous_response_id=first)
        assert again["error"]["code"] == "previous_response_not_found"


# ---- what a socket has besides ---------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False, None])
async def test_stream_in_a_frame_is_accepted_and_changes_nothing(stream) -> None:
    """Codex and the Agents SDK send the body they would POST; a socket streams whatever it says."""
    async with talking() as socket:
        await say(socket, stream=stream, stream_options={"include_obfuscation": False})
        events = await hear(socket)
    assert "response.output_text.delta" in [event["type"] for event in events]
    assert events[-1]["type"] == "response.completed"


async def test_generate_false_generates_nothing() -> None:
    engine = Stub()
    async with talking(engine) as socket:
        await say(socket, generate=False, store=False, input="a")
        events = await hear(socket)
        types = [event["type"] for event in events]
        assert types == ["response.created", "response.in_progress", "response.completed"]
        assert events[-1]["response"]["output"] == []
        assert events[-1]["response"]["model"] == "stub"
        assert engine.asked == []
        end = await turn(socket, previous_response_id=identity(events[-1]), store=False, input="b")
        assert end["type"] == "response.completed"
    assert [item.text for item in engine.asked[0][0].items] == ["a", "b"]


async def test_lanes_run_concurrently_and_are_labelled() -> None:
    go = asyncio.Event()

    class Laned(Stub):
        async def stream(self, request: Any, caller: Any = None) -> Any:
            if request.items[0].text == "slow":
                await go.wait()
            async for event in super().stream(request, caller):
                yield event

    async with talking(Laned()) as socket:
        await say(socket, input="slow", stream_id="one")
        await say(socket, input="quick", stream_id="two")
        quick = await hear(socket)
        assert {event["stream_id"] for event in quick} == {"two"}
        go.set()
        slow = await hear(socket)
        assert {event["stream_id"] for event in slow} == {"one"}
        for event in (quick[-1], slow[-1]):
            assert event["type"] == "response.completed"


async def test_too_many_lanes_and_turns_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(websocket, "LANES", 1)
    monkeypatch.setattr(websocket, "WAITING", 1)
    async with talking(Stub(*OPENING, asyncio.Event())) as socket:
        await say(socket, stream_id="one")
        while json.loads(await socket.recv())["type"] != "response.content_part.added":
            pass
        await say(socket, stream_id="two")
        refused = json.loads(await socket.recv())
        assert (refused["status"], refused["stream_id"]) == (429, "two")
        await say(socket, stream_id="one")
        await say(socket, stream_id="one")
        refused = json.loads(await socket.recv())
        assert (refused["status"], refused["stream_id"]) == (429, "one")


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ("{", None),
        ("[]", None),
        (b"\xff\xfe", None),
        ('{"type": "response.steer", "stream_id": "one"}', "type"),
        ("{}", "type"),
        ('{"type": null}', "type"),
        ('{"type": "response.create", "input": "Hi"}', "model"),
        ('{"type": "response.create", "model": 3, "input": "Hi"}', "model"),
        ('{"type": "response.create", "model": "m", "input": "Hi", "stream": "yes"}', "stream"),
        (
            '{"type": "response.create", "model": "m", "input": "Hi", "background": true}',
            "background",
        ),
        ('{"type": "response.create", "model": "m", "input": "Hi", "stream_id": 3}', "stream_id"),
        ('{"type": "response.create", "model": "m", "input": "Hi", "generate": 3}', "generate"),
        (
            '{"type": "response.create", "response": {"model": "m", "input": "Hi"}}',
            "response",
        ),
        ("[" * 2000, None),
    ],
)
async def test_invalid_frame_is_an_error_and_the_socket_stays_open(frame, param) -> None:
    async with talking() as socket:
        await socket.send(frame)
        error = json.loads(await socket.recv())
        assert (error["type"], error["status"], error["error"]["param"]) == ("error", 400, param)
        assert error["error"]["code"] == "invalid_request"
        assert error.get("stream_id") == ("one" if "steer" in str(frame) else None)
        assert (await turn(socket))["type"] == "response.completed"


async def test_frame_over_the_limit_closes_the_socket() -> None:
    async with talking(settings=Settings(body_limit=1000)) as socket:
        await socket.send("a" * 2000)
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_closing_the_websocket_cancels_the_engine() -> None:
    engine = Stub(*OPENING, word("Hel"), asyncio.Event())
    async with talking(engine) as socket:
        await say(socket)
        while json.loads(await socket.recv())["type"] != "response.output_text.delta":
            pass
        await socket.close()
        async with asyncio.timeout(5):
            await engine.cancelled.wait()
    assert engine.running == 0


async def test_a_connection_has_an_end(monkeypatch) -> None:
    monkeypatch.setattr(websocket.Connection.serve, "__defaults__", (0.05,))
    async with talking() as socket:
        error = json.loads(await socket.recv())
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_a_turn_has_a_deadline() -> None:
    settings = Settings(deadline=0.1)
    async with talking(Stub(asyncio.Event()), settings=settings) as socket:
        end = await turn(socket)
        assert (end["type"], end["status"]) == ("error", 504)
    async with talking(Stub(*OPENING, asyncio.Event()), settings=settings) as socket:
        end = await turn(socket)
        assert end["type"] == "response.failed"
        assert "within 0.1 s" in end["response"]["error"]["message"]


async def test_a_connection_remembers_its_latest_responses_only() -> None:
    async with talking(memory=False) as socket:
        first = identity(await turn(socket, store=False))
        for _ in range(MOST):
            await turn(socket, store=False)
        end = await turn(socket, store=False, previous_response_id=first)
        assert end["error"]["code"] == "previous_response_not_found"


async def test_an_item_is_found_by_reference_on_its_connection() -> None:
    engine = Stub()
    async with talking(engine, memory=False) as socket:
        end = await turn(socket, store=False)
        item = end["response"]["output"][0]["id"]
        await turn(socket, store=False, input=[{"type": "item_reference", "id": item}])
    assert [item.text for item in engine.asked[-1][0].items] == ["Hello, world"]
    async with talking(engine) as socket:
        end = await turn(socket, input=[{"type": "item_reference", "id": "nothing"}])
        assert end["status"] == 404
        end = await turn(socket, conversation="nothing", store=False)
        assert end["status"] == 404


# ---- the door --------------------------------------------------------------------------------


async def test_a_socket_needs_the_key_and_the_path() -> None:
    app = App(Stub(), Settings(keys=(Secret("right"),)))
    async with served(app) as port:
        address = f"ws://127.0.0.1:{port}"
        right = {"authorization": "Bearer right"}
        async with connect(address + PATH, additional_headers=right) as socket:
            assert (await turn(socket))["type"] == "response.completed"
        for path, headers, status in (
            (PATH, {}, 401),
            (PATH, {"authorization": "Bearer wrong"}, 401),
            ("/v1/nothing", right, 404),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(address + path, additional_headers=headers):
                    pass
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body or b"")["error"]["message"]


async def test_an_uninvited_page_opens_no_socket() -> None:
    async with served(App(Stub(), Settings())) as port:
        address = f"ws://127.0.0.1:{port}{PATH}"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address, additional_headers={"origin": "https://evil.example"}):
                pass
        assert refused.value.response.status_code == 403


async def test_plain_get_is_426() -> None:
    call = await Call(App(Stub(), Settings()), PATH, method="GET")()
    assert call.status == 426
    assert call.headers["upgrade"] == "websocket"


@pytest.mark.parametrize(
    ("path", "extensions", "draining", "answer"),
    [
        ("/nothing", {}, False, ("websocket.close", None)),  # a host that cannot send a status
        (PATH, {"websocket.http.response": {}}, True, ("websocket.http.response.start", 503)),
    ],
)
async def test_refused_handshake_is_answered(path, extensions, draining, answer) -> None:
    app, sent = App(Stub(), Settings()), list[Any]()
    if draining:
        await app.drain(0)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": path, "headers": [], "extensions": extensions}
    await app(scope, receive, send)
    assert (sent[0]["type"], sent[0].get("status")) == answer


async def test_a_turn_that_waits_does_not_begin_once_a_shutdown_has_stopped_all() -> None:
    app = App(Stub(*OPENING, asyncio.Event()), Settings(), Memory(MemoryStore()))

    class Late:
        """Another answer, whose end takes a while to be stored."""

        def stop(self, fault: Fault) -> None:
            asyncio.get_running_loop().call_later(0.1, app._roster.discard, self)

    async with served(app) as port, connect(f"ws://127.0.0.1:{port}{PATH}") as socket:
        for _ in range(2):
            await say(socket, store=False)
        await socket.recv()
        app._roster.works.add(Late())
        async with asyncio.timeout(30):
            await app.drain(0)
        kinds = [(await hear(socket))[-1]["type"] for _ in range(2)]
        assert kinds == ["response.failed", "error"]
    await app.close()
