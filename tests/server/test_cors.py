"""Web pages: none that was not invited, neither by a borrowed name nor from another site."""

import pytest

from dragoman.core.interfaces import Secret
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.wire.registry import WIRES
from tests.server.stubs import PATHS, Call, Stub, asking

OPEN = Settings()
GUARDED = Settings(keys=(Secret("key"),))


async def ask(settings: Settings, method: str = "POST", **headers: str) -> Call:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await Call(App(Stub(), settings), body=asking(), headers=named, method=method)()


OWN = [
    *("localhost", "localhost:8000", "LOCALHOST.", "127.0.0.1:8000", "127.1.2.3"),
    *("[::1]", "[::1]:8000", "app.localhost:80", ""),
]
BORROWED = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("192.168.1.5", "0.0.0.0:8000", "[::2]", "[[::1]"),
]


@pytest.mark.parametrize("host", [*OWN, *BORROWED])
async def test_only_names_of_this_machine_are_served_without_a_key(host) -> None:
    call = await ask(OPEN, host=host)
    assert call.status == (200 if host in OWN else 403)
    assert host in OWN or call.json["error"]["type"] == "permission_error"


async def test_names_can_be_allowed_and_a_key_is_enough() -> None:
    assert (await ask(Settings(allowed_hosts=("My.Box",)), host="my.box:80")).status == 200
    assert (await ask(Settings(allowed_hosts=("*",)), host="any.example")).status == 200
    assert (await ask(Settings(host="my.box"), host="my.box:80")).status == 200
    assert (await ask(GUARDED, host="any.example", x_api_key="key")).status == 200


LOCAL = [
    *("http://localhost:3000", "http://127.0.0.1:8000", "http://[::1]:5173", "app://notes.md"),
    "vscode-webview://0abc",
]
FOREIGN = [
    *("https://evil.example", "http://evil.example:8000", "null"),
    *("http://localhost.evil.example", "https://127.0.0.1.evil.example"),
]


@pytest.mark.parametrize("origin", [*LOCAL, *FOREIGN])
async def test_only_local_pages_and_applications_are_served(origin) -> None:
    call = await ask(OPEN, origin=origin)
    assert call.status == (200 if origin in LOCAL else 403)
    assert "access-control-allow-origin" not in call.headers


async def test_the_page_of_an_allowed_host_may_use_it() -> None:
    settings = Settings(allowed_hosts=("my.box",))
    call = await ask(settings, host="my.box:80", origin="http://my.box:80")
    assert call.status == 200
    assert (await ask(settings, host="my.box", origin="http://other.box")).status == 403


@pytest.mark.parametrize("listed", ["https://app.example", "*"])
@pytest.mark.parametrize("settings", [OPEN, GUARDED])
async def test_cors_lets_listed_pages_in(settings, listed) -> None:
    open_to_pages = Settings(keys=settings.keys, cors_origins=(listed,))
    call = await ask(open_to_pages, origin="https://app.example", x_api_key="key")
    assert call.status == 200
    assert call.headers["access-control-allow-origin"] == "https://app.example"
    exposed = call.headers["access-control-expose-headers"].split(", ")
    assert {wire.request_id_header for wire in WIRES.values()} < set(exposed)
    assert {"retry-after", "x-should-retry"} < set(exposed), "SDKs obey them"
    assert call.headers["vary"] == "origin"


async def test_cors_answers_a_preflight_without_a_key() -> None:
    settings = Settings(keys=GUARDED.keys, cors_origins=("https://app.example",))
    call = await ask(
        settings,
        "OPTIONS",
        origin="https://app.example",
        access_control_request_method="POST",
        access_control_request_headers="authorization, content-type",
    )
    assert call.status == 204
    assert call.body == b""
    assert call.headers["access-control-allow-origin"] == "https://app.example"
    assert call.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert call.headers["access-control-allow-headers"] == "authorization, content-type"


async def test_a_refusal_can_be_read_by_the_page_that_asked() -> None:
    settings = Settings(keys=GUARDED.keys, cors_origins=("https://app.example",))
    call = await ask(settings, origin="https://app.example")
    assert call.status == 401
    assert call.headers["access-control-allow-origin"] == "https://app.example"


async def test_an_unlisted_page_gets_no_cors_headers() -> None:
    settings = Settings(keys=GUARDED.keys, cors_origins=("https://app.example",))
    call = await ask(settings, origin="https://evil.example", x_api_key="key")
    assert "access-control-allow-origin" not in call.headers
    assert (await ask(GUARDED, "OPTIONS", access_control_request_method="POST")).status == 401
    assert (
        await ask(GUARDED, "OPTIONS", access_control_request_method="POST", x_api_key="key")
    ).status == 405


@pytest.mark.parametrize("settings", [OPEN, GUARDED])
async def test_the_preflight_of_a_page_is_told_what_lists_pages(settings) -> None:
    asks = {"origin": "http://localhost:3000", "access_control_request_method": "POST"}
    call = await ask(settings, "OPTIONS", **asks)
    assert call.status == 403
    assert "list it in cors_origins" in call.json["error"]["message"]


async def test_host_is_checked_on_every_path() -> None:
    for path in (*PATHS.values(), "/v1/models", "/nowhere"):
        call = await Call(App(Stub(), OPEN), path, headers={"host": "evil.example"})()
        assert call.status == 403
