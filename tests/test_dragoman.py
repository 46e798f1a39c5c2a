"""The door: serving an engine from Python, until a signal says to stop."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

import dragoman
from dragoman.engines.base import Wrapper
from dragoman.server import host
from dragoman.server.settings import Settings


@pytest.fixture(autouse=True)
def own_data(monkeypatch, tmp_path) -> None:
    """The store of whoever runs the tests is theirs."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.parametrize("target", ["script", dragoman.connect("script")], ids=["name", "engine"])
def test_an_engine_is_served_until_a_signal(target, monkeypatch, capsys) -> None:
    asked: list[tuple[int, bool]] = []
    listener = host.bind(Settings(port=0), exact=True)
    url = f"{host.address(listener)}/v1/models"

    def bind(settings: Settings, *, exact: bool) -> object:
        asked.append((settings.port, exact))
        return listener

    def visit() -> httpx2.Response:
        answer = httpx2.get(url)  # the socket listens already: it waits to be accepted
        os.kill(os.getpid(), signal.SIGINT)
        return answer

    monkeypatch.setattr(host, "bind", bind)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(1) as pool, listener:
            visiting = pool.submit(visit)
            with pytest.raises(KeyboardInterrupt):
                dragoman.serve(target)
    finally:
        signal.signal(signal.SIGINT, before)
    assert asked == [(8000, True)]
    ready = f"Dragoman is ready at {url.removesuffix('/models')}; Ctrl-C stops.\n"
    assert capsys.readouterr().err == ready
    assert [model["id"] for model in visiting.result().json()["data"]] == ["script"]


@pytest.mark.parametrize("target", [7, None, object(), dragoman.Message("user", "Hi")])
def test_what_is_no_engine_is_a_type_error(target) -> None:
    for given in (dragoman.serve, dragoman.transport, dragoman.connect):
        with pytest.raises(TypeError, match="is neither an engine nor the name or address of one"):
            given(target)


class Slip(Wrapper):
    """An engine with the usual slip: `async def` that returns a generator."""

    async def stream(self, request, caller=None):
        return super().stream(request, caller)


def test_an_engine_that_would_fail_each_request_is_a_type_error() -> None:
    engine = dragoman.connect("script").engine
    slips = (Slip(engine), "Slip.stream is a coroutine; write `def stream`"), (Slip, "is a class")
    for given in (dragoman.serve, dragoman.transport, dragoman.connect):
        for target, problem in slips:
            with pytest.raises(TypeError, match=problem):
                given(target)
    with pytest.raises(TypeError, match=r"options \(guarantee\) are for addresses and names"):
        dragoman.connect(engine, guarantee="enforced")


def test_a_port_that_is_taken_is_not_passed_over() -> None:
    with host.bind(Settings(port=0), exact=True) as listener:
        settings = Settings(port=listener.getsockname()[1])
        with pytest.raises(host.HostError, match="taken"):
            dragoman.serve(dragoman.connect("script"), settings)


async def test_an_engine_answers_in_this_process() -> None:
    transport = dragoman.transport(dragoman.connect("script"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://here/v1") as client:
        assert (await client.get("/models")).json()["data"][0]["id"] == "script"


def test_importing_the_package_loads_no_protocol_server_store_or_local_engine() -> None:
    probe = "import sys, dragoman; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", probe], text=True).split())
    rooms = ("cli", "formats", "net", "server", "stores", "wire", "engines.local", "engines.remote")
    packages = ("httptools", "numpy", "sqlite3", "tomllib", "uvicorn", "uvloop", "websockets")
    assert not loaded & {*(f"dragoman.{room}" for room in rooms), *packages}
