"""Routes: what answers where, what every answer carries, and how a refusal looks."""

import json
from typing import Any

import pytest

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import ANYONE, HOPS_HEADER, VERSION, Caller, Model
from dragoman.engines.remote import Remote
from dragoman.server.app import MAX_HOPS, App
from dragoman.server.settings import Settings
from dragoman.wire.registry import BASE, WIRES
from tests.mock import Reply, mock, plain
from tests.server.stubs import PATHS, Call, Stub, asking


def app(stub: Stub | None = None, **settings: Any) -> App:
    return App(stub or Stub(), Settings(**settings))


async def get(path: str, method: str = "GET", **options: Any) -> Call:
    return await Call(options.pop("app", None) or app(), path, method=method, **options)()


# ---- every answer --------------------------------------------------------------------------

EVERYWHERE = [
    ("GET", "/healthz"),
    ("GET", "/v1/models"),
    ("GET", "/nowhere"),
    ("DELETE", "/v1/models"),
    ("POST", PATHS["chat"]),
    ("POST", PATHS["responses"]),
    ("POST", "/v1/messages"),
]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/conversations"),
        ("GET", "/v1/conversations/conv_1/items"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("DELETE", "/v1/chat/completions/chatcmpl_1"),
    ],
)
async def test_a_server_that_stores_nothing_says_so(method, path) -> None:
    call = await get(path, method)
    assert call.status == 404
    assert call.json["error"]["message"] == "This server stores nothing (--store none)."


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
async def test_every_response_has_server_and_request_id_headers(method, path) -> None:
    call = await get(path, method)
    assert call.headers["server"] == f"dragoman/{VERSION}"
    assert call.headers["x-dragoman"] == VERSION
    assert call.headers["x-request-id"] == call.headers["request-id"] != ""
    assert int(call.headers["content-length"]) == len(call.body)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-123", True),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", True),
        ("x" * 129, False),
        ("a b", False),
        ("é", False),
        ("", False),
    ],
)
async def test_a_sane_request_id_is_the_clients_own(given, kept) -> None:
    call = await get("/healthz", headers={"x-request-id": given})
    assert (call.headers["x-request-id"] == given) is kept


VERSIONED = {"anthropic-version": "2023-06-01"}


async def test_listing_and_errors_of_shared_paths_have_the_shape_of_the_client() -> None:
    chat, messages = await get("/v1/models"), await get("/v1/models", headers=VERSIONED)
    assert chat.json["data"][0]["object"] == "model"
    assert messages.json["data"][0]["display_name"] == "stub"
    assert (await get("/v1/models/stub", headers=VERSIONED)).json["type"] == "model"
    wrong = await get("/v1/models/none", headers=VERSIONED)
    assert (wrong.status, wrong.json["error"]["type"]) == (404, "not_found_error")
    assert wrong.json["request_id"] == wrong.headers["request-id"]
    assert (await get("/v1/models/none")).json["error"]["code"] == "model_not_found"


async def test_only_what_an_upstream_may_know_travels_on_and_lines_of_one_name_are_one_list() -> (
    None
):
    stub = Stub()
    call = Call(
        App(stub, Settings()), body=asking(), headers={"anthropic-beta": "a", "x-secret": "s"}
    )
    call._scope["headers"] += [(b"anthropic-beta", b"b,c"), (b"anthropic-beta", b"a")]
    await call()
    assert stub.asked[0][1].headers == (("anthropic-beta", "a, b,c"),)


@pytest.mark.parametrize("value", ["a\x01", "\x7f", "a\r\nx-secret: s"])
async def test_header_that_no_upstream_could_be_sent_is_the_mistake_of_the_client(value) -> None:
    """Our own host refuses it before; others let it pass."""
    stub = Stub()
    call = await Call(App(stub, Settings()), body=asking(), headers={"anthropic-beta": value})()
    assert (call.status, stub.asked) == (400, [])
    assert call.json["error"]["param"] == "anthropic-beta"


COUNTED: list[tuple[str, str, Reply, int, bool]] = [
    ("messages", "messages", plain(200, {"input_tokens": 42}), 42, True),
    ("responses", "messages", plain(200, {"input_tokens": 42}), 42, True),
    ("messages", "responses", plain(200, {"input_tokens": 42, "object": "x"}), 42, True),
    ("messages", "messages", plain(404, {"error": {"message": "no"}}), 5, False),
    ("messages", "messages", plain(200, {"input_tokens": "many"}), 5, False),
    ("messages", "chat", plain(200, {"input_tokens": 42}), 5, False),
]


@pytest.mark.parametrize(("wire", "upstream", "reply", "tokens", "exact"), COUNTED)
async def test_tokens_are_counted_by_an_upstream_that_can(
    wire, upstream, reply, tokens, exact
) -> None:
    async with mock(reply) as up:
        app = App(Remote(up.base_url, wire=upstream), Settings())
        headers = {"anthropic-beta": "b-1"}
        path = BASE + WIRES[wire].count_path
        call = await Call(app, path, asking(wire, temperature=0.5), headers=headers)()
        assert call.json["input_tokens"] == tokens
        assert ("x-dragoman-loss" not in call.headers) is exact
        for asked in up.asked:
            assert asked.path == BASE + WIRES[upstream].count_path
            assert asked.json.keys() == {"model", "messages" if upstream == "messages" else "input"}
            assert (asked.headers.get("anthropic-beta") == "b-1") is (wire == upstream)
        assert bool(up.asked) is (upstream != "chat")
        await app.close()


async def test_tokens_that_the_wire_of_an_upstream_cannot_ask_for_are_estimated() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    body = asking("responses", input=[{"role": "user", "content": [audio]}])
    async with mock(plain(200, {"input_tokens": 42})) as up:
        app = App(Remote(up.base_url, wire="messages"), Settings())
        call = await Call(app, BASE + WIRES["responses"].count_path, body)()
        assert (call.status, up.asked) == (200, [])
        await app.close()


async def test_tokens_of_messages_are_counted_without_a_limit() -> None:
    body = {"model": "stub", "messages": [{"role": "user", "content": "12345678"}]}
    call = await Call(App(Stub(), Settings()), "/v1/messages/count_tokens", body)()
    assert (call.status, call.json) == (200, {"input_tokens": 6})
    assert call.headers["x-dragoman-loss"] == "dropped: input_tokens"


async def test_request_ids_differ() -> None:
    ids = {(await get("/healthz")).headers["x-request-id"] for _ in range(10)}
    assert len(ids) == 10


# ---- health --------------------------------------------------------------------------------


async def test_health_and_readiness() -> None:
    assert (await get("/healthz")).json == {"status": "ok"}
    assert (await get("/readyz")).json == {"status": "ready"}


async def test_draining_server_is_healthy_not_ready_and_refuses_requests(wire: str) -> None:
    server = app()
    await server.drain(0)
    assert (await get("/healthz", app=server)).status == 200
    assert (await get("/readyz", app=server)).status == 503
    call = await Call(server, PATHS[wire], asking(wire))()
    assert call.status == 503
    assert call.code == {"messages": "overloaded_error"}.get(wire, "shutting_down")
    assert call.headers["retry-after"]


# ---- models --------------------------------------------------------------------------------


async def test_models_are_listed_with_all_that_is_known_of_them() -> None:
    class Listing(Stub):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            known = {"id": "x", "context": 9, "guarantees": ["enforced"]}
            return (Model("a%41"), Model("org/b", "them", 7, {"models": known}))

    unknown = {"guarantees": ["best-effort"]}  # what its answers say
    known = {"guarantees": ["enforced"], "context": 9}
    call = await get("/v1/models", app=app(Listing()))
    assert call.json == {
        "object": "list",
        "data": [
            {**unknown, "id": "a%41", "object": "model", "created": 0, "owned_by": "dragoman"},
            {**known, "id": "org/b", "object": "model", "created": 7, "owned_by": "them"},
        ],
    }
    for place, entry in enumerate(call.json["data"]):
        # A host gives the path decoded: it is not decoded again.
        assert (await get(f"/v1/models/{entry['id']}", app=app(Listing()))).json == entry, place


async def test_an_unknown_model_is_distinguished_from_known_ones() -> None:
    call = await get("/v1/models/nope")
    assert (call.status, call.json["error"]["code"]) == (404, "model_not_found")
    assert call.json["error"]["message"] == "There is no model 'nope'. The models are: stub."


async def test_a_listing_of_messages_has_the_context() -> None:
    class Listing(Stub):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            return (Model("a", extra={"models": {"context_window": 9}}), Model("b"))

    version = {"anthropic-version": "2023-06-01"}
    call = await get("/v1/models", headers=version, app=app(Listing()))
    assert [entry.get("max_input_tokens") for entry in call.json["data"]] == [9, None]


async def test_failed_listing_is_reported() -> None:
    class Unreachable(Stub):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            raise FaultError(Fault("upstream_unreachable", "Nobody is there.", "upstream"))

    call = await get("/v1/models", app=app(Unreachable()))
    assert call.status == 502
    assert call.json["error"]["message"] == "Nobody is there."


async def test_head_is_get_without_the_body() -> None:
    call = await get("/v1/models", "HEAD")
    assert call.status == 200
    assert call.body == b""
    assert int(call.headers["content-length"]) == len((await get("/v1/models")).body)


# ---- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/models/",
        "/chat/completions",
        "/v1/responses/resp_1",
        "/v1/responses/resp_1/input_items",
        "/v1/images/generations",
        "/v1/chat/completions/../models",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_unknown_path_is_404_in_the_protocols_shape(path, method) -> None:
    call = await get(path, method)
    assert call.status == 404
    error = call.json["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "not_found"
    assert error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", PATHS["chat"], "POST"),
        ("DELETE", PATHS["responses"], "GET, HEAD, POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/stub", "GET, HEAD"),
        ("OPTIONS", PATHS["chat"], "POST"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
async def test_a_method_that_is_not_taken_is_405_and_names_those_that_are(
    method, path, allow
) -> None:
    call = await get(path, method)
    assert call.status == 405
    assert call.headers["allow"] == allow
    assert call.json["error"]["code"] == "method_not_allowed"


async def test_an_upgrade_to_a_websocket_is_not_found_so_that_clients_fall_back() -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket"}
    call = await get(PATHS["responses"], headers=headers)
    assert call.status == 404
    assert "WebSocket" in call.json["error"]["message"]


# ---- rings ---------------------------------------------------------------------------------


async def test_hops_are_counted_for_the_engine(wire: str) -> None:
    stub = Stub()
    for given, counted in (("", 0), ("3", 3), (str(MAX_HOPS), MAX_HOPS), ("many", 0)):
        await Call(app(stub), PATHS[wire], asking(wire), headers={HOPS_HEADER: given})()
        assert stub.asked[-1][1].hops == counted


@pytest.mark.parametrize("hops", [str(MAX_HOPS + 1), "9" * 5000])
async def test_request_over_the_hop_limit_is_refused(wire: str, hops) -> None:
    stub = Stub()
    call = await Call(app(stub), PATHS[wire], asking(wire), headers={HOPS_HEADER: hops})()
    assert call.status == 400
    assert call.json["error"]["message"].startswith(f"{HOPS_HEADER}: ")
    assert wire == "messages" or call.json["error"]["param"] == HOPS_HEADER
    assert not stub.asked


async def test_caller_has_trace_wire_and_key(wire: str) -> None:
    stub = Stub()
    headers = {"x-request-id": "my-id", "authorization": "Bearer mine"}
    await Call(app(stub), PATHS[wire], asking(wire), headers=headers)()
    caller = stub.asked[0][1]
    assert (caller.trace, caller.wire) == ("my-id", wire)
    assert caller.key.reveal() == "mine"


# ---- lifespan ------------------------------------------------------------------------------


async def test_the_engine_is_closed_with_the_server() -> None:
    stub = Stub()
    inbox = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]
    sent = []

    async def receive() -> dict[str, Any]:
        return inbox.pop()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    await app(stub)({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert stub.closed


async def test_a_handler_that_breaks_is_our_mistake(caplog) -> None:
    class Broken(Stub):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            raise ZeroDivisionError("by accident")

    call = await get("/v1/models", app=app(Broken()))
    assert call.status == 500
    assert json.loads(call.body)["error"]["code"] == "internal_error"
    assert "ZeroDivisionError" in caplog.text


async def test_failing_send_is_raised_and_no_second_response_starts() -> None:
    call = Call(app(), "/v1/models", method="GET")
    keep = call.send

    async def broken(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            raise RuntimeError("no more")
        await keep(message)

    call.send = broken
    with pytest.raises(RuntimeError, match="no more"):
        await call()
    assert [message["type"] for message in call.sent] == ["http.response.start"]


async def test_a_path_that_is_nearly_one_is_set_right() -> None:
    call = await get("/v1/chat/completion", "POST")
    assert "Did you mean /v1/chat/completions?" in call.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/images/generations", "There is nothing at /v1/images/generations."),
        ("/v1/moderations", "There is nothing at /v1/moderations."),
        ("/", "There is nothing at /. The API begins with /v1, as in /v1/models."),
        ("/v1/", "There is nothing at /v1/. The API begins with /v1, as in /v1/models."),
        ("/api/chat", "There is nothing at /api/chat. The API begins with /v1, as in /v1/models."),
    ],
)
async def test_a_path_that_is_like_none_is_not_guessed_at(path, words) -> None:
    assert (await get(path)).json["error"]["message"] == words


@pytest.mark.parametrize("path", ["/messages", "/v1/v1/messages"])
async def test_path_with_the_base_missing_or_doubled_gets_a_suggestion(path) -> None:
    call = await get(path, "POST")
    assert call.status == 404
    assert "Did you mean /v1/messages?" in call.body.decode()


@pytest.mark.parametrize(
    ("path", "meant", "base"),
    [
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions", "ends in /v1."),
        ("/v1/responses/responses", "/v1/responses", "ends in /v1."),
        ("/v1/responses/chat/completions/responses/compact", "/v1/responses/compact", "ends in"),
        ("/v1/messages/v1/messages", "/v1/messages", "ends before /v1."),
        ("/v1/chat/completions/v1/messages/count_tokens", "/v1/messages/count_tokens", "before"),
        ("/v1/responses/models", "/v1/models", "ends in /v1."),
    ],
)
async def test_base_url_with_the_path_of_a_request_gets_a_suggestion(path, meant, base) -> None:
    for method in ("POST", "GET"):
        call = await get(path, method)
        assert call.status == 404
        assert f"Did you mean {meant}? " in call.body.decode()
        assert base in call.body.decode()


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("/llm", "/llm/v1/models", 200),
        ("/llm", "/llm/healthz", 200),
        ("/llm", "/v1/models", 200),  # a host that has taken it off
        ("/", "/v1/models", 200),
        ("/llm", "/llms/v1/models", 404),
        ("/llm", "/llm", 404),
    ],
)
async def test_an_application_that_is_mounted_answers_below_its_path(root, path, status) -> None:
    app = App(Stub(), Settings())

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": root}, receive, send)

    call = await Call(mounted, path, method="GET")()
    assert call.status == status
