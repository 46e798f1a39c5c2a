"""From a configuration to an engine: what stands behind which name, and what cannot be built."""

import pytest

import dragoman
from dragoman.core.interfaces import Secret
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.engines import local, pocket
from dragoman.engines.discover import Discovered
from dragoman.engines.profiles import BY_NAME
from dragoman.engines.script import Script
from dragoman.server.app import App
from dragoman.server.build import as_upstreams, assemble, others
from dragoman.server.config import ConfigurationError, Upstream, with_keys
from dragoman.server.settings import Settings
from tests.engines.stage import answered
from tests.mock import Mock, completion, mock, plain
from tests.server.stubs import Call

SETTINGS = Settings()


def asking(model: str) -> Request:
    return Request(model=model, items=(Message("user", "Hello!"),))


def saying(text: str) -> object:
    return plain(200, completion({"content": text}))


def at(up: Mock, **more: object) -> Upstream:
    return Upstream(name=up.base_url, url=up.base_url, wire="chat", profile="generic", **more)


@pytest.mark.parametrize(
    ("targets", "local_extra", "models"),
    [
        ((), False, ["script"]),
        (("script",), False, ["script"]),
        ((), True, ["pocket"]),
        (("pocket", "pocket"), True, ["pocket"]),
        (("script", "pocket"), True, ["script", "pocket"]),
    ],
)
async def test_targets_are_served(targets, local_extra, models, monkeypatch) -> None:
    monkeypatch.setattr(local, "available", lambda: local_extra)
    engine = assemble((), targets, SETTINGS, {})
    assert [model.id for model in await engine.models()] == models
    if "script" in models:
        assert (await answered(engine, asking("script"))).text.startswith("This is a demo")
        error = (await answered(engine, asking("other"))).error
        assert error.code == "model_not_found"
    await engine.close()


def test_target_with_a_missing_extra_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(pocket, "available", lambda: False)
    problem = r"needs the extra local: pip install '\.\[local\]' in the checkout\.$"
    with pytest.raises(ConfigurationError, match=problem):
        assemble((), ("pocket",), SETTINGS, {})


async def test_any_model_name_is_passed_to_the_only_upstream() -> None:
    async with mock(saying("I am the upstream.")) as up:
        engine = assemble([at(up)], (), SETTINGS, {})
        assert (await answered(engine, asking("any-name"))).text == "I am the upstream."
        await engine.close()
    assert [asked.json["model"] for asked in up.asked] == ["any-name"]


async def test_the_demo_can_stand_beside_an_upstream() -> None:
    async with mock(saying("I am the upstream.")) as up:
        engine = assemble([at(up)], ("script",), SETTINGS, {})
        assert (await answered(engine, asking("script"))).text.startswith("This is a demo")
        assert (await answered(engine, asking("other"))).text == "I am the upstream."
        await engine.close()


async def test_models_and_aliases_find_their_upstream() -> None:
    async with mock(saying("one")) as one, mock(saying("two")) as two:
        upstreams = [at(one, models=("a",)), at(two, models=("b",), aliases={"fast": "b"})]
        engine = assemble(upstreams, (), SETTINGS, {})
        said = [(await answered(engine, asking(name))).text for name in ("a", "b", "fast")]
        await engine.close()
    assert said == ["one", "two", "two"]
    assert [asked.json["model"] for asked in two.asked] == ["b", "b"]


async def test_an_upstream_gets_the_key_that_its_variable_holds() -> None:
    async with mock(saying("Hello")) as up:
        engine = assemble([at(up, key_env="UP_KEY")], (), SETTINGS, {"UP_KEY": " canary\n"})
        await answered(engine, asking("m"))
        await engine.close()
    assert up.asked[0].headers["authorization"] == "Bearer canary"


async def test_retries_and_profile_are_the_upstreams() -> None:
    busy, done = plain(503, b"", "retry-after: 0"), saying("At last.")
    replies = iter([busy, busy, done])
    async with mock(lambda asked: next(replies)) as up:
        engine = assemble([at(up, retries=2)], (), SETTINGS, {})
        assert (await answered(engine, asking("m"))).text == "At last."
        await engine.close()


# ---- what cannot be built ------------------------------------------------------------------

PLACE = "http://127.0.0.1:9/v1"
MISTAKES: dict[str, tuple[Upstream, str]] = {
    "address": (
        Upstream(name="up", url="http://[::1"),
        "up: the URL has a malformed host or port",
    ),
    "no key": (
        Upstream(name="up", url=PLACE, key_env="NOT_THERE"),
        "The environment variable NOT_THERE should hold the key to up (key_env), and is empty.",
    ),
    "unsendable key": (
        Upstream(name="up", url=PLACE, key_env="BROKEN"),
        "The key in the environment variable BROKEN may have printable ASCII only.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_upstream_is_reported(name) -> None:
    upstream, problem = MISTAKES[name]
    with pytest.raises(ConfigurationError) as caught:
        assemble([upstream], (), SETTINGS, {"EMPTY": " ", "BROKEN": "canary\nkey"})
    assert str(caught.value) == problem


def test_our_own_clients_keys_are_never_passed_on() -> None:
    upstream = Upstream(name="up", url=PLACE, pass_client_key=True)
    assert assemble([upstream], (), SETTINGS, {})
    with pytest.raises(ConfigurationError, match=r"^up: pass_client_key would send"):
        assemble([upstream], (), Settings(keys=(Secret("key"),)), {})


# ---- what was discovered -------------------------------------------------------------------


def test_discovered_servers_become_upstreams() -> None:
    found = [Discovered(PLACE, ("a",), BY_NAME["ollama"]), Discovered("http://h/v1", key_env="K")]
    assert as_upstreams(found) == [
        Upstream(name=PLACE, url=PLACE, profile="ollama"),
        Upstream(name="http://h/v1", url="http://h/v1", key_env="K"),
    ]


@pytest.mark.parametrize(
    ("url", "is_another"),
    [
        ("http://127.0.0.1:8000/v1", False),
        ("http://localhost:8000/v1", False),
        ("http://[::1]:8000", False),
        ("http://127.0.0.1:8001/v1", True),
        ("http://192.168.1.5:8000/v1", True),
        ("http://example.com/v1", True),
    ],
)
def test_the_server_that_we_are_is_no_upstream(url, is_another) -> None:
    upstreams = [Upstream(name="it", url=url)]
    assert others(upstreams, "http://127.0.0.1:8000") == upstreams * is_another


# ---- the application -----------------------------------------------------------------------


async def test_asgi_opens_the_store_and_the_keys_of_its_settings(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TEAM", "team-key-0123456789")
    place = tmp_path / "app.db"
    settings = Settings(store=f"sqlite:{place}", api_key_env=("TEAM",))
    app = dragoman.asgi(Script("x"), settings)  # its host tells it nothing of its lifespan
    headers = {"authorization": "Bearer team-key-0123456789"}
    try:
        path, body = "/v1/responses", {"model": "script", "input": "x", "background": True}
        assert (await Call(app, path, body)()).status == 401
        assert (await Call(app, path, body, headers=headers)()).json["status"] == "queued"
        assert (await Call(app, "/v1/conversations", {}, headers=headers)()).status == 200
    finally:
        await app.close()
    assert place.exists()


def test_serve_takes_the_keys_of_the_environment(monkeypatch) -> None:
    ran: list[App] = []
    monkeypatch.setenv("TEAM", "team-key-0123456789")
    monkeypatch.setattr("dragoman.server.host.bind", lambda *_, **__: None)
    monkeypatch.setattr("dragoman.server.host.run", lambda build, *_: ran.append(build()))
    settings = Settings(port=0, store="none", api_key_env=("TEAM",))
    dragoman.serve("script", settings)
    dragoman.serve("script", with_keys(settings, {"TEAM": "team-key-0123456789"}))
    keys = [app._settings.keys for app in ran]
    assert [[key.reveal() for key in each] for each in keys] == [["team-key-0123456789"]] * 2
    monkeypatch.delenv("TEAM")
    with pytest.raises(ConfigurationError, match="TEAM"):
        dragoman.asgi("script", settings)


@pytest.mark.parametrize(
    "named", [{"store": "memory"}, {"api_key_env": ("TEAM",)}, {"speech": "espeak-ng"}]
)
def test_an_application_does_not_ignore_what_it_does_not_open(named) -> None:
    with pytest.raises(ValueError, match=rf"ignores {next(iter(named))}: call dragoman.asgi"):
        App(Script("x"), Settings(**named))
