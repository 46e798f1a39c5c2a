"""What the client of a session sends, has waiting or leaves unread is bounded, and others go on."""

from __future__ import annotations

import json
import os
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.hostile.stage import gateway, watched
from tests.mock import Asked, Reply, chunk, head, stream
from tests.product import Product, configured
from tests.samples import samples

ROOM = "[server]\nmemory = 64_000_000\nstore = 'none'\n"
RESPOND = {"type": "response.create"}
CLEAR = {"type": "input_audio_buffer.clear"}


def reply(asked: Asked) -> Reply:
    if b'"never"' in asked.body[:100]:
        return Reply([], hang=True)
    if b'"floods"' in asked.body[:100]:
        much = json.dumps(chunk({"content": "x" * 100_000})).encode()
        return Reply([head(), *[b"data: " + much + b"\n\n"] * 600])
    return stream(chunk({"content": "ok"}), chunk(finish="stop"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("sessions")
    with gateway(reply, *configured(folder, ROOM)) as (running, _):
        yield running


class Session:
    """A client that says what it is told to."""

    def __init__(self, server: Product, model: str = "m", **options: Any) -> None:
        address = f"ws://127.0.0.1:{server.port}/v1/realtime?model={model}"
        self.socket: ClientConnection = connect(address, max_size=None, **options)

    def close(self) -> None:
        self.socket.close()

    def say(self, *events: dict[str, Any], times: int = 1) -> None:
        for _ in range(times):
            for event in events:
                self.socket.send(json.dumps(event))

    def until(self, kind: str, times: int = 1) -> dict[str, Any]:
        while True:
            event: dict[str, Any] = json.loads(self.socket.recv(timeout=60))
            times -= event["type"] == kind
            if not times:
                return event

    def refused(self, *events: dict[str, Any]) -> str:
        """The code of the error that these are answered with."""
        self.say(*events)
        return str(self.until("error")["error"]["code"])


def item(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    message = {"type": "message", "role": "user", "content": content, **fields}
    return {"type": "conversation.item.create", "item": message}


def update(**session: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "realtime", **session}}


def sound(size: int) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": b64encode(bytes(size)).decode()}


# ---- attacks: each leaves a session that still answers ------------------------------------------


def many_items(session: Session) -> None:
    count = samples(100, 1_000)
    session.say(item(), times=count)
    session.until("conversation.item.done", count)


def much_sound(session: Session) -> None:
    """A detector hears all of it."""
    size = samples(1_000_000, 15 * 1024 * 1024)
    for _ in range(samples(1, 100)):
        session.say(sound(size), CLEAR)
        session.until("input_audio_buffer.cleared")


def garbage(session: Session) -> None:
    count = samples(10, 100)
    session.say({"type": "input_audio_buffer.append", "audio": "!" * 100_000}, times=count)
    session.until("error", count)


def a_storm_of_cancels(session: Session) -> None:
    count = samples(30, 500)
    session.say(RESPOND, {"type": "response.cancel"}, times=count)
    session.until("response.done", count)


def nonsense_while_it_answers(session: Session) -> None:
    count = samples(300, 20_000)
    session.say(RESPOND)
    session.say({"type": "nonsense"}, times=count)
    session.until("error", count)
    session.say({"type": "response.cancel"})


def long_instructions(session: Session) -> None:
    for _ in range(samples(1, 20)):
        assert session.refused(update(instructions="x" * 5_000_000)) == "request_too_large"


def deep_json(session: Session) -> None:
    nested = '{"a":' * 20_000 + "1" + "}" * 20_000
    session.socket.send(f'{{"type": "session.update", "session": {nested}}}')
    session.until("error")


def items_of_others(session: Session) -> None:
    for what in ("delete", "retrieve", "truncate"):
        event = {"type": f"conversation.item.{what}", "item_id": "item_of_another"}
        place = {"content_index": 0, "audio_end_ms": 0} if what == "truncate" else {}
        assert session.refused({**event, **place}).endswith(("not_found", "invalid_item_id"))


def ids_of_its_own(session: Session) -> None:
    session.say(item(id="one"))
    session.until("conversation.item.done")
    assert session.refused(item(id="one")) == "item_create_duplicate_item_id"
    assert session.refused(item(id="root")) == "item_create_duplicate_item_id"
    session.say(item(id="x" * 1_000_000))
    assert session.until("error")["error"]["param"] == "item.id"


def long_inputs(session: Session) -> None:
    """Answers beside the conversation, each with an input of its own."""
    asked = {"conversation": "none", "input": [item("x" * 12_000_000)["item"]]}
    session.say({"type": "response.create", "response": asked}, times=3)
    assert session.until("error")["error"]["code"] == "request_too_large"


ATTACKS: list[Callable[[Session], None]] = [
    many_items,
    much_sound,
    garbage,
    a_storm_of_cancels,
    nonsense_while_it_answers,
    long_instructions,
    *[long_inputs][: samples(0, 1)],
    deep_json,
    items_of_others,
    ids_of_its_own,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=[each.__name__ for each in ATTACKS])
def test_an_attack_blocks_no_others_and_the_session_continues(server, attack) -> None:
    model = "never" if attack in (nonsense_while_it_answers, long_inputs) else "m"
    with watched(server) as cost, closing(Session(server, model)) as session:
        attack(session)
        session.say(CLEAR, update(instructions=""))
        session.until("session.updated")
    assert cost.pause < 0.5
    assert cost.grown < 100


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "call_id": "c", "arguments": "{}", "name": "x" * 2_000_000},
        {"type": "function_call_output", "output": "", "call_id": "x" * 2_000_000},
        {"type": "mcp_call", "arguments": "x" * 2_000_000},
        {"type": "message", "role": "user", "content": [], "other": [{"a": "x" * 2_000_000}]},
        {"type": "message", "role": "user", "content": [], "other": [0] * 120_000},
    ],
    ids=["name", "call_id", "unknown", "extra", "values"],
)
def test_what_an_item_has_beside_its_texts_is_bounded(server, item) -> None:
    with closing(Session(server)) as session:
        session.say({"type": "conversation.item.create", "item": item})
        error = session.until("error")["error"]
        assert "characters beside its texts" in error["message"]
        session.say({"type": "response.create", "response": {"input": [item]}})
        assert "characters beside its texts" in session.until("error")["error"]["message"]


def test_a_client_that_never_reads_is_held_up_and_costs_what_is_bounded(server) -> None:
    """It retrieves four minutes of sound again and again."""
    with watched(server) as cost, closing(Session(server, max_queue=1)) as session:
        detection = {"input": {"turn_detection": None}}
        session.say(
            update(audio=detection), sound(4_000_000), {"type": "input_audio_buffer.commit"}
        )
        id = session.until("conversation.item.done")["item"]["id"]
        for _ in range(samples(10, 100)):
            try:
                session.say({"type": "conversation.item.retrieve", "item_id": id})
            except Exception:  # it is disconnected
                break
    assert cost.pause < 0.5
    assert cost.grown < 150


def test_answers_of_a_session_count_in_memory(server) -> None:
    """It was 650 MB."""
    beside = {**RESPOND, "response": {"conversation": "none"}}
    with watched(server) as cost, closing(Session(server, "floods")) as session:
        session.say(beside, times=8)
        with suppress(ConnectionClosed):  # where there is no room for what is unread either
            session.until("response.done", 8)
    assert cost.grown < 200


def test_many_sessions_at_once_are_all_answered(server) -> None:
    with watched(server) as cost:
        sessions = [Session(server) for _ in range(samples(5, 200))]
        for session in sessions:  # as text: for programs that speak, 64 wait at the most
            session.say(item(), {**RESPOND, "response": {"output_modalities": ["text"]}})
        for session in sessions:
            assert session.until("response.done")["response"]["status"] == "completed"
            session.close()
    assert cost.grown < 100


def test_a_socket_that_is_half_closed_ends_its_session(server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(
            b"GET /v1/realtime?model=never HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\n"
            b"connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: "
            + b64encode(os.urandom(16))
            + b"\r\n\r\n"
        )
        assert b"session.created" in connection.recv(65_536) + connection.recv(65_536)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass
