"""A protocol is one folder and one line in the registry: server and engines find the rest there."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from dragoman.core.error import Fault, bad_request
from dragoman.core.fold import unfold
from dragoman.core.item import Message, Reasoning, Text, Thought
from dragoman.core.loss import Loss
from dragoman.engines.remote import Remote
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.wire.protocol import Wire
from dragoman.wire.registry import WIRES, spell_fault, spell_losses, wire_at
from tests.answers import answer
from tests.mock import completion, mock, plain
from tests.server.stubs import PATHS, Call, Stub, asking

TOY = '''
"""A protocol of one sentence: `{"to": "m", "say": "Hi"}` is answered by `{"said": "Hello"}`."""

import json

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Delta, Failed, Finished
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.wire import error
from dragoman.wire.losses import Losses, Row, Table, judge, rows
from dragoman.wire.protocol import Wire

LOSSES = Losses(
    "toy",
    Table(
        rows("carried", "as `say`", "Request.items model stream"),
        rows("dropped", "a toy has no seed", "Sampling.seed"),
        rows("refused", "a toy stops by itself", "Sampling.stop"),
    ),
    Table(
        rows("carried", "as `said`", "Message", "Text"),
        rows("dropped", "a toy does not think", "Reasoning"),
    ),
)


def decode_request(data, limits=None):
    body = json.loads(data)
    if "say" not in body:
        raise FaultError(bad_request("is missing", "say"))
    known = ("to", "say", "live")
    rest = {name: value for name, value in body.items() if name not in known}
    return Request(
        model=body["to"],
        items=(Message("user", body["say"]),),
        stream=body.get("live", False),
        extra={"toy": rest} if rest else None,
    )


def encode_request(request, dialect):
    body = {"to": request.model, "say": request.items[-1].text, "live": request.stream}
    return json.dumps(body).encode(), judge(request, LOSSES)


def encode_response(response, request, dialect):
    return json.dumps({"said": response.text}).encode()


class Encoder:
    def __init__(self, request, dialect):
        pass

    def feed(self, events):
        return b"".join(map(self.one, events))

    def one(self, event):
        match event:
            case Delta(kind="text"):
                return b"data: " + json.dumps(event.data).encode() + b"\\n\\n"
            case Failed():
                return b"data: " + encode_error(event.fault, "")[1] + b"\\n\\n"
            case Finished():
                return b"data: null\\n\\n"
        return b""

    def heartbeat(self, *, data=False):
        return b": \\n\\n"


class Decoder:
    ended = False

    def __init__(self, turn):
        self.turn, self.data = turn, b""

    def feed(self, data):
        self.data += data
        return []

    def close(self):
        self.turn.header("toy")
        self.turn.text(json.loads(self.data)["said"])
        self.turn.finish("stop")
        self.turn.end(True)
        self.ended = True
        return self.turn.take()


def encode_error(fault, request_id):
    return error.status(fault), json.dumps({"oops": fault.message, "id": request_id}).encode()


def spelling(request):
    return lambda path: path.replace("items[0]", "say")


WIRE = Wire(
    name="toy",
    path="/toy",
    decode_request=decode_request,
    encode_request=encode_request,
    encoder=Encoder,
    encode_response=encode_response,
    decoder=Decoder,
    losses=LOSSES,
    spelling=spelling,
    encode_error=encode_error,
    models_path="/toy/models",
    encode_models=lambda models: json.dumps([model.id for model in models]).encode(),
    encode_model=lambda model: json.dumps(model.id).encode(),
    count_path="/toy/count",
    client_header="toy-version",
    request_headers=("toy-version", "toy-beta"),
    upstream_headers=(("toy-version", "1"), ("toy-style", "plain")),
)
'''


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Wire:
    """The toy wire, in a package of its own, added to the registry."""
    (tmp_path / "toy_wire").mkdir()
    (tmp_path / "toy_wire" / "__init__.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    wire: Wire = importlib.import_module("toy_wire").WIRE
    monkeypatch.setitem(WIRES, wire.name, wire)
    # The server collects these when it is imported.
    passed = frozenset(name.encode() for name in wire.request_headers)
    monkeypatch.setattr("dragoman.server.exchange._PASSED", passed)
    return wire


def say(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    return {"to": "stub", "say": text, **fields}


async def test_a_wire_in_the_registry_is_served_whole_and_streamed(toy: Wire) -> None:
    app = App(Stub(), Settings())
    whole = await Call(app, "/v1/toy", say())()
    assert (whole.status, whole.json) == (200, {"said": "Hello, world"})
    stream = await Call(app, "/v1/toy", say(live=True))()
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.body == b'data: "Hello"\n\ndata: ", world"\n\ndata: null\n\n'


async def test_its_errors_and_its_listing_have_its_own_shape(toy: Wire) -> None:
    app = App(Stub(), Settings())
    wrong = await Call(app, "/v1/toy", {"to": "stub"})()
    assert (wrong.status, wrong.json["oops"]) == (400, "say: is missing")
    assert wrong.json["id"] == wrong.headers["x-request-id"]
    broken = await Call(App(Stub(Fault("overloaded", "Later.")), Settings()), "/v1/toy", say())()
    assert (broken.status, broken.json["oops"]) == (503, "Later.")
    models = await Call(app, "/v1/toy/models", b"", method="GET")()
    assert models.json == ["stub"]
    one = await Call(app, "/v1/toy/models/stub", b"", method="GET")()
    assert one.json == "stub"
    others = await Call(app, "/v1/models", b"", method="GET")()
    assert others.json["data"][0]["id"] == "stub"


async def test_its_clients_are_known_by_a_header_on_paths_that_wires_share(toy: Wire) -> None:
    app, headers = App(Stub(), Settings()), {"toy-version": "2"}
    for path, shown in (("/v1/models", ["stub"]), ("/v1/models/stub", "stub")):
        assert (await Call(app, path, b"", method="GET", headers=headers)()).json == shown
    nowhere = await Call(app, "/v1/nowhere", say(), headers=headers)()
    assert (nowhere.status, nowhere.json["oops"]) == (404, "There is nothing at /v1/nowhere.")
    chat = await Call(app, "/v1/chat/completions", {}, headers=headers)()
    assert chat.json["error"]["param"] == "model"


async def test_its_requests_are_counted(toy: Wire) -> None:
    call = await Call(App(Stub(), Settings()), "/v1/toy/count", say("12345678"))()
    assert (call.status, call.json) == (200, {"input_tokens": 6})
    assert call.headers["x-dragoman-loss"] == "dropped: input_tokens"


async def test_its_losses_are_reported_in_its_own_words(toy: Wire) -> None:
    thought = Reasoning((Thought("Hm."),), id="rs_0", status="completed")
    said = Message("assistant", (Text("Hello"),), "msg_1", "completed")
    app = App(Stub(*unfold(answer(thought, said, model="stub"))), Settings())
    told = await Call(app, "/v1/toy", say())()
    assert told.json == {"said": "Hello"}
    assert told.headers["x-dragoman-loss"] == "dropped: output[0]"
    async with mock(lambda asked: plain(200, completion({"content": "Hello"}))) as up:
        server = App(Remote(up.base_url, wire="chat"), Settings())
        call = await Call(server, "/v1/toy", say(colour="red"))()
        await server.close()
    assert (call.status, call.json) == (200, {"said": "Hello"})
    assert call.headers["x-dragoman-loss"] == "dropped: colour"


async def test_wire_is_used_towards_a_models_server(toy: Wire) -> None:
    async with mock(lambda asked: plain(200, {"said": "Hello"})) as up:
        server = App(Remote(up.base_url, wire="toy"), Settings())
        seed = await Call(server, body=asking(seed=1))()
        stop = await Call(server, body=asking(stop="x"))()
        await server.close()
        assert [(each.path, each.json["say"]) for each in up.asked] == [("/v1/toy", "Hi")]
    assert seed.status == 200, seed.json
    assert seed.json["choices"][0]["message"]["content"] == "Hello"
    assert seed.headers["x-dragoman-loss"] == "dropped: seed"
    assert (stop.status, stop.json["error"]["param"]) == (400, "stop")


async def test_headers_travel_to_a_server_that_speaks_the_wire_of_the_client(toy: Wire) -> None:
    headers = {"toy-beta": "b", "toy-version": "2", "toy-secret": "s"}

    def answer(asked):
        return plain(200, {"said": ""} if asked.path == "/v1/toy" else completion({"content": ""}))

    async with mock(answer, lambda asked: plain(200, {"data": []})) as up:
        for wire, body in (("toy", say()), ("chat", say()), ("toy", None)):
            server = App(Remote(up.base_url, wire=wire), Settings())
            path, body = ("/v1/toy", body) if body else (PATHS["chat"], asking())
            assert (await Call(server, path, body, headers=headers)()).status == 200
            await server.close()
        upstream = Remote(up.base_url, wire="toy")
        await upstream.models()
        await upstream.close()
    found = [
        {name: value for name, value in each.headers.items() if name.startswith("toy-")}
        for each in (*up.asked, *up.probes)
    ]
    usual = {"toy-version": "1", "toy-style": "plain"}
    assert found == [usual | {"toy-beta": "b", "toy-version": "2"}, {}, usual, usual]


def test_losses_and_faults_use_the_names_of_the_wire(toy: Wire) -> None:
    request = toy.decode_request(b'{"to": "m", "say": "Hi"}')
    losses = (Loss("items[0].role", "dropped", "why"),)
    assert spell_losses(losses, request, "toy")[0].field == "say.role"
    assert spell_losses(losses, request, None) == losses
    fault = spell_fault(bad_request("is wrong", "items[0]"), request, "toy")
    assert (fault.param, fault.message) == ("say", "say: is wrong")


def test_a_path_belongs_to_the_wire_that_serves_it(toy: Wire) -> None:
    paths = ("/v1/toy", "/v1/toy/models", "/v1/toy/x", "/v1/toys", "/v1/models", "/v1/responses/r")
    names = [wire_at(path).name for path in paths]
    assert names == ["toy", "toy", "toy", "chat", "chat", "responses"]
    known = [wire_at(path, {b"toy-version": b"1"}).name for path in paths]
    assert known == ["toy", "toy", "toy", "toy", "toy", "responses"]
