"""Where upstreams are, and passwords in their addresses: clients get a name, nobody a password."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys

import pytest

from dragoman.core.interfaces import Secret
from dragoman.engines.remote import Remote
from dragoman.server.app import App
from dragoman.server.build import assemble
from dragoman.server.config import Upstream
from dragoman.server.settings import Settings
from tests.hostile.stage import upstream
from tests.mock import Asked, Reply, head, mock, plain, stream
from tests.product import SOURCE
from tests.server.stubs import PATHS, Call, asking

PASSWORD = "HUNTER2pass"
REPLIES: list[tuple[str, Reply]] = [
    *((f"status {status}", plain(status, {"error": {"message": "no"}})) for status in (401, 403)),
    ("no listing", plain(404, {"error": {"message": "no"}})),
    ("no HTTP", Reply([b"SSH-2.0-x\r\n\r\n"])),
    ("endless headers", Reply([head(200) + b"x: " + b"y" * 100_000])),
    ("closed", Reply([])),
    ("cut", Reply([head(200, "content-length: 100"), b"{"])),
    ("quoted", plain(400, {"error": {"message": f"not with {PASSWORD}"}})),
    ("a broken stream", stream("{", done=False)),
]


@pytest.mark.parametrize("reply", [row[1] for row in REPLIES], ids=[row[0] for row in REPLIES])
@pytest.mark.parametrize("name", ["gpus", "http://a.example/v1", None])
async def test_1_28_and_1_56_errors_do_not_reveal_an_upstreams_address(name, reply) -> None:
    async with mock(reply, probed=reply) as up:
        url = up.base_url.replace("//", f"//user:{PASSWORD}@")
        if name is None:
            engine = Remote(url)
        else:
            engine = assemble([Upstream(name=name, url=url)], (), Settings(), {})
        app = App(engine, Settings(deadline=5))
        for path, method in (
            (PATHS["chat"], "POST"),
            (PATHS["responses"], "POST"),
            ("/v1/models", "GET"),
        ):
            for body in (
                asking("responses" if "responses" in path else "chat", stream=s) for s in (0, 1)
            ):
                body["stream"] = bool(body["stream"])
                call = await Call(app, path, body, method=method)()
                said = call.body.decode() + repr(call.headers)
                assert PASSWORD not in said
                assert str(up.port) not in said
                assert "127.0.0.1" not in said
                assert "a.example" not in said
                if (name, reply) == ("gpus", REPLIES[0][1]) and call.status == 502:
                    assert "The upstream gpus asks for a key" in said
                    assert "key_env in the file" in said
        await app.close()


async def test_an_upstream_that_is_not_there_is_called_by_its_name() -> None:
    async with mock(plain(200, {})) as up:
        port = up.port
    for host in ("127.0.0.1", "localhost", "no-such-host.invalid"):
        named = Upstream(name="gpus", url=f"http://u:{PASSWORD}@{host}:{port}/v1", wire="chat")
        app = App(assemble([named], (), Settings(), {}), Settings())
        call = await Call(app, body=asking())()
        assert call.status == 502
        assert "a connection to the upstream gpus failed: " in call.json["error"]["message"]
        assert not any(each in call.body.decode() for each in (host, str(port), PASSWORD))
        await app.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("place", ["https://there.example/v1", "/there.example", "bad \x9b[2J"])
async def test_a_redirect_is_an_error_and_its_target_only_in_the_log(status, place, caplog) -> None:
    reply = plain(status, b"", f"location: {place}")
    async with mock(reply, reply) as up:
        named = Upstream(name="gpus", url=f"{up.base_url}", wire="chat")
        app = App(assemble([named], (), Settings(), {}), Settings())
        for path in (PATHS["chat"], "/v1/models", PATHS["chat"]):
            method = "GET" if path.endswith("models") else "POST"
            call = await Call(app, path, asking(), method=method)()
            assert (call.status, call.code) == (502, "upstream_error")
            assert f"The upstream gpus redirects ({status})" in call.json["error"]["message"]
            assert b"there" not in call.body
        await app.close()
    (record,) = caplog.records
    assert f"redirects ({status}) to " in record.getMessage()
    assert ("there.example" in record.getMessage()) == ("there" in place)
    assert record.getMessage().isprintable()


def test_1_57_the_server_prints_no_password(tmp_path) -> None:
    def reply(asked: Asked) -> Reply:
        return plain(401, {"error": {"message": "no"}})

    with upstream(reply) as model:
        url = model.base_url.replace("//", f"//user:{PASSWORD}@")
        words = ["serve", "--port", "0", "--log", "--upstream"]
        said = subprocess.run(
            [sys.executable, "-m", "dragoman", *words, f"http://user:{PASSWORD}@[bad"],
            env={**os.environ, **SOURCE, "XDG_DATA_HOME": str(tmp_path)},
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert said.returncode == 1
        assert PASSWORD.encode() not in said.stdout + said.stderr
        process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", *words, url],
            env={**os.environ, **SOURCE, "XDG_DATA_HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        shown = ""
        while "Ctrl-C stops" not in shown:
            shown += process.stdout.readline()
        place = re.search(r"ready at http://127.0.0.1:(\d+)/v1", shown)
        assert place is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(place[1]), timeout=60)
        body = json.dumps(asking())
        connection.request("POST", PATHS["chat"], body, {"content-type": "application/json"})
        assert connection.getresponse().status == 502
        connection.close()
        process.terminate()
        shown += process.communicate(timeout=30)[0]
        assert PASSWORD not in shown
        assert "127.0.0.1" in shown


def test_a_password_of_an_address_is_no_word_of_an_error() -> None:
    engine = Remote(f"http://user:{PASSWORD}@127.0.0.1:1/v1", key=Secret("k" * 20))
    shown = json.dumps([engine.upstream.place, engine.upstream.name, repr(engine.upstream)])
    assert PASSWORD not in shown
