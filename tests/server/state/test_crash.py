"""A server that is killed loses nothing it has shown, and its runs are ended by the next one."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.product import Product, dragoman
from tests.samples import samples

LEASE = 1
PATIENCE = 30
"""Seconds in which a run whose server died must have been ended; tenfold slack and more."""


def words(folder: Path, lease: int = LEASE) -> tuple[str, ...]:
    """What serves the script engine with a store in this folder."""
    path = folder / "dragoman.toml"
    path.write_text(f'[server]\nstore = "sqlite:{folder}/store.db"\nlease = {lease}\n')
    return ("script", "--config", str(path))


@contextmanager
def opened(product: Product, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
    """An answer, to be read inside the block."""
    place = urlsplit(product.base_url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)
    data = None if body is None else json.dumps(body)
    method = "GET" if body is None else "POST"
    with closing(connection):
        connection.request(method, path, data, {"content-type": "application/json"})
        with connection.getresponse() as response:
            yield response


def read(product: Product, path: str, body: Any = None) -> Any:
    """An answer's JSON."""
    with opened(product, path, body) as response:
        return json.load(response)


def replayed(product: Product, path: str) -> list[bytes]:
    """All events of a stream."""
    with opened(product, path) as response:
        return list(frames(response))


def frames(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The events of a stream, one by one, as they were written."""
    frame = b""
    for line in response:
        frame += line
        if line == b"\n":
            if not frame.startswith(b":"):
                yield frame
            frame = b""


def number(frame: bytes) -> int:
    return int(json.loads(frame.split(b"data: ")[1])["sequence_number"])


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "script", "input": "Count to 500.", "stream": True, **fields}


def ended(product: Product, id: str) -> dict[str, Any]:
    """The response, once it is in a terminal state."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found: dict[str, Any] = read(product, f"/v1/responses/{id}")
        if found["status"] not in ("queued", "in_progress"):
            return found
        assert time.monotonic() < deadline, "nobody ended the run"
        time.sleep(0.05)


def identity(first: bytes) -> str:
    """The id of the response that a stream's first event announces."""
    return str(json.loads(first.split(b"data: ")[1])["response"]["id"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trial", range(samples(2, 50)))
def test_r4_w12_o10_killed_server_loses_nothing_it_has_sent(tmp_path, trial) -> None:
    with dragoman(*words(tmp_path)) as first:
        done = read(first, "/v1/responses", {"model": "script", "input": "Say hello."})
        with opened(first, "/v1/responses", asked(background=True)) as response:
            stream = frames(response)
            seen = [next(stream) for _ in range(10 + 7 * trial)]
            accepted = read(first, "/v1/responses", asked(background=True, stream=False))
            first.process.kill()
            first.process.wait()
    path = f"/v1/responses/{identity(seen[0])}"
    with dragoman(*words(tmp_path)) as second:
        failed = ended(second, identity(seen[0]))
        assert failed["status"] == "failed"
        assert "stopped before its end" in failed["error"]["message"]
        assert accepted["status"] == "queued"
        assert ended(second, accepted["id"])["status"] == "failed"
        rest = replayed(second, f"{path}?stream=true&starting_after={number(seen[-1])}")
        whole = replayed(second, f"{path}?stream=true")
        assert seen + rest == whole
        numbered = [number(frame) for frame in whole[:-1]]
        assert numbered == list(range(len(numbered)))
        assert whole[-2].startswith(b"event: response.failed")
        assert read(second, f"/v1/responses/{done['id']}") == done


def test_workers_share_the_store(tmp_path) -> None:
    # Neither is to take the other for dead where it was only stopped for a while.
    with dragoman(*words(tmp_path, lease=60), "--workers", "2") as server:
        for trial in range(samples(5, 200)):
            with opened(server, "/v1/responses", asked(background=True)) as response:
                id = identity(next(frames(response)))
            cancelled = read(server, f"/v1/responses/{id}/cancel", {})
            assert cancelled["status"] == "cancelled", trial
            assert ended(server, id)["status"] == "cancelled"
