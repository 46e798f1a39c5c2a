"""The host: where it listens, how it speaks HTTP to those who cannot, and how it ends."""

import asyncio
import errno
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.core.interfaces import Secret
from dragoman.server import host as host_module
from dragoman.server.app import App
from dragoman.server.host import (
    FILES,
    PORTS_TRIED,
    TCP_INFO,
    HostError,
    Server,
    address,
    bind,
    check,
)
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.base import Paging
from dragoman.stores.memory import MemoryStore
from tests.server.stubs import OPENING, PATHS, Stub, asking, closing, exchange, post, served, word

# ---- where ---------------------------------------------------------------------------------


def test_memory_is_looked_at_again_where_no_file_was_free_to_look_with(monkeypatch) -> None:
    def full() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    looks: list[object] = []
    monkeypatch.setattr(host_module, "_resident", full)
    server = SimpleNamespace(_loop=SimpleNamespace(call_later=lambda *call: looks.append(call)))
    server._give_back = partial(Server._give_back, server)
    server._give_back(lambda _: 0, 0)
    assert len(looks) == 1


def test_what_is_freed_seldom_enough_is_freed_without_others_waiting(monkeypatch) -> None:
    """A collection blocks the loop: there is none for 200 times as long."""
    clock, collected = [100.0], []

    def collect() -> None:
        collected.append(clock[0])
        clock[0] += 0.1

    monkeypatch.setattr(host_module, "_resident", lambda: 1)
    monkeypatch.setattr(host_module.gc, "collect", collect)
    loop = SimpleNamespace(
        call_later=lambda *call: None, run_in_executor=lambda *call: None, time=lambda: clock[0]
    )
    app = SimpleNamespace(busy=0)
    server = SimpleNamespace(_loop=loop, _app=app, _rested=0.0, _least=math.inf, _memory=100)
    server._give_back = partial(Server._give_back, server)
    for clock[0] in (100.0, 105.0, 119.0, 121.0):
        server._give_back(lambda _: 0, 0)
    assert collected == [100.0, 121.0]
    app.busy, collected[:] = 1, []
    looks = ((200.0, 1), (300.0, 101), (400.0, 102), (500.0, 202), (600.0, 50), (700.0, 151))
    for clock[0], resident in looks:
        monkeypatch.setattr(host_module, "_resident", lambda now=resident: now)
        server._give_back(lambda _: 0, 0)
    assert collected == [400.0, 700.0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "my.box", ""])
def test_other_addresses_than_loopback_need_a_key(host) -> None:
    with pytest.raises(HostError, match="--generate-key"):
        bind(Settings(host=host, port=0), exact=True)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "http://127.0.0.1", "a..b", "x" * 64 + ".de"])
def test_a_host_that_is_none_is_refused(host) -> None:
    with pytest.raises(HostError, match=r"^host is .* a name or an address, without scheme and"):
        bind(Settings(host=host, keys=(Secret("long-enough"),)), exact=True)


@pytest.mark.parametrize(
    "beyond", [{"port": 99_999}, {"port": -1}, {"workers": 0}, {"read_time": float("nan")}]
)
def test_a_setting_beyond_its_bounds_is_refused_by_its_name(beyond) -> None:
    with pytest.raises(
        HostError, match=rf"{next(iter(beyond))} is .* its bounds are \S+ and \S+\."
    ):
        bind(Settings(**beyond), exact=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.9"])
def test_loopback_needs_none(host) -> None:
    with bind(Settings(host=host, port=0), exact=True) as listener:
        assert listener.getsockname()[1]


@pytest.mark.parametrize("name", ["box:8000", "http://box", "*.example", "[::1]", "a,b", ""])
def test_what_is_no_host_is_refused(name) -> None:
    with pytest.raises(HostError, match=r"allowed_hosts has .* without scheme, port"):
        check(Settings(allowed_hosts=("box.example", name)))
    check(Settings(allowed_hosts=("*", "Box.example", "10.0.0.7", "fe80::1")))


@pytest.mark.parametrize("origin", ["app.example", "*.example", "https://app.example/x", ""])
def test_what_is_no_origin_is_refused(origin) -> None:
    with pytest.raises(HostError, match=r"is a scheme and a host, .* https://app\.example"):
        check(Settings(cors_origins=("https://a.example:8443", origin)))
    check(Settings(cors_origins=("*", "null", "http://[::1]:3000")))


def test_with_a_key_any_address_will_do() -> None:
    settings = Settings(host="0.0.0.0", port=0, keys=(Secret("long enough"),))
    with bind(settings, exact=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


@pytest.mark.skipif(sys.platform != "linux", reason="others have not these options")
async def test_connections_whose_client_has_vanished_are_dropped() -> None:
    aborted: list[str] = []

    def connection(name: str, unacknowledged: int, silent: int, again: int, closing: bool) -> Any:
        info = bytes((0, 0, again)) + bytes(21) + unacknowledged.to_bytes(4, sys.byteorder)
        info += bytes(28) + silent.to_bytes(4, sys.byteorder)
        sock = SimpleNamespace(getsockopt=lambda *asked: info)
        transport = SimpleNamespace(
            is_closing=lambda: closing,
            get_extra_info=lambda what: sock,
            abort=lambda: aborted.append(name),
        )
        return SimpleNamespace(transport=transport)

    settings = Settings(stall=2.0)
    server = Server(App(Stub(), settings), settings)
    server._loop = asyncio.get_running_loop()
    connections: Any = [
        connection("vanished", 3, 2_001, 5, False),
        connection("slow", 3, 40, 5, False),
        connection("idle", 0, 90_000, 5, False),
        connection("sent just now", 3, 90_000, 0, False),
        connection("closing", 3, 90_000, 5, True),
    ]
    server.server_state.connections = connections
    server._drop_vanished()
    assert aborted == ["vanished"]
    with (
        bind(Settings(port=0), exact=True) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as taken,
    ):
        assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        taken.sendall(b"x")
        assert client.recv(1) == b"x"
        await asyncio.sleep(0.1)
        info = taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
    again, unacknowledged, silent = TCP_INFO.unpack_from(info)
    assert (again, unacknowledged, 90 <= silent < 60_000) == (0, 0, True)


def test_taken_port_is_skipped_unless_explicit() -> None:
    with bind(Settings(port=0), exact=True) as first:
        port = first.getsockname()[1]
        with bind(Settings(port=port), exact=False) as second:
            assert port < second.getsockname()[1] < port + PORTS_TRIED
        with pytest.raises(HostError, match=f"Port {port} is taken"):
            bind(Settings(port=port), exact=True)


def test_a_port_that_another_only_bound_is_taken_too() -> None:
    with bind(Settings(port=0), exact=True) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_foreign_address_is_reported() -> None:
    settings = Settings(host="203.0.113.1", port=0, keys=(Secret("long enough"),))
    with pytest.raises(HostError, match=r"Cannot listen on 203\.0\.113\.1"):
        bind(settings, exact=False)
    with pytest.raises(HostError, match=r"Cannot listen on no-such-host\.invalid"):
        bind(Settings(host="no-such-host.invalid", port=0, keys=(Secret("long key"),)), exact=False)


def test_the_address_can_be_pasted() -> None:
    with bind(Settings(port=0), exact=True) as listener:
        assert address(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    with socket.socket(socket.AF_INET6) as six:
        six.bind(("::1", 0))
        assert address(six) == f"http://[::1]:{six.getsockname()[1]}"


# ---- HTTP ----------------------------------------------------------------------------------


BAD_HTTP = {
    "no HTTP": b"HELLO\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "NUL in a header": b"GET /healthz HTTP/1.1\r\nhost: a\0b\r\n\r\n",
    "a space before a colon": b"GET /healthz HTTP/1.1\r\nhost : a\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
    "length and chunks": (
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "no number": b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n",
    "not ASCII": b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
    "an authority": b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n",
    "a star": b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD_HTTP)
async def test_bad_http_is_4xx_in_the_protocols_shape(name) -> None:
    async with served(App(Stub(), Settings())) as port:
        answer = await exchange(port, BAD_HTTP[name])
    assert answer.startswith(b"HTTP/1.1 4")
    assert b'{"error":{"message":"' in answer
    for name in (b"x-dragoman", b"x-request-id", b"request-id"):
        assert b"\r\n%b: " % name in answer


HUGE = {
    "one huge header": [b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 100_000],
    "one huge header in pieces": [b"GET /healthz HTTP/1.1\r\nx: ", *[b"y" * 10_000] * 10],
    "many headers": [b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n"],
    "many headers in pieces": [b"GET /healthz HTTP/1.1\r\n", *[b"x: y\r\n" * 2_000] * 10],
    "201 headers": [b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 201 + b"\r\n"],
    "268 headers in pieces": [b"GET /healthz HTTP/1.1\r\n", *[b"x: y\r\n" * 67] * 4],
    "a huge path": [b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n"],
    "a huge path in pieces": [b"GET /", *[b"a" * 10_000] * 10],
}


@pytest.mark.parametrize("name", HUGE)
async def test_a_huge_head_is_431(name) -> None:
    async with served(App(Stub(), Settings())) as port:
        answer = await exchange(port, *HUGE[name])
    assert answer.startswith(b"HTTP/1.1 431 "), answer
    assert b"65536 bytes of headers (header_limit)" in answer


async def test_the_head_of_each_request_is_measured_alone() -> None:
    """A large body does not count, nor do the requests before on the same connection."""
    settings = Settings(header_limit=2048)
    body = asking(messages=[{"role": "user", "content": "x" * 100_000}])
    async with served(App(Stub(), settings), settings) as port:
        requests = [post(port, body, headers=[JSON, f"x: {'y' * 1500}"]) for _ in range(5)]
        requests.append(post(port, body, headers=[JSON, "connection: close"]))
        assert (await exchange(port, *requests)).count(b"HTTP/1.1 200") == 6
        requests = [post(port, body, headers=[JSON, f"x: {'y' * 2500}"])]
        assert (await exchange(port, *requests)).startswith(b"HTTP/1.1 431 ")


JSON = "content-type: application/json"


async def test_silent_connection_is_closed() -> None:
    settings = Settings(read_time=0.1)
    async with served(App(Stub(), settings), settings) as port:
        assert await exchange(port) == b""
        assert await exchange(port, b"\r\n\r\n") == b""


HALF = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"


async def test_blank_lines_before_a_request_are_none(caplog) -> None:
    async with served(App(Stub(), Settings())) as port:
        answer = await exchange(port, b"\r\n", b"\r\n\r\n", HALF + b"connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        answer = await exchange(port, *[b"\r\n" * 20_000] * 2)
        assert answer.startswith(b"HTTP/1.1 431 ")
    assert not caplog.text


@pytest.mark.parametrize("before", [b"", HALF + b"\r\n"])
async def test_half_a_head_is_408_in_time(before) -> None:
    settings = Settings(read_time=0.1)
    async with served(App(Stub(), settings), settings) as port:
        answer = await exchange(port, before, HALF)
    assert answer.count(b"HTTP/1.1 ") == 1 + bool(before)
    _, _, refusal = answer.rpartition(b"HTTP/1.1 ")
    assert refusal.startswith(b"408 ")
    assert b"read_time" in refusal
    assert b'"code":"stalled"' in refusal


async def test_the_time_for_a_head_is_not_taken_from_the_answer_or_the_next_request() -> None:
    settings = Settings(read_time=0.1)
    stub = Stub(*OPENING, word("a"), 0.35, *closing("a"))
    async with served(App(stub, settings), settings) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(port, asking(stream=True)) + HALF)  # and half of the next
        assert b"[DONE]" in await reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
        writer.write(b"\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.35)  # idle, which keep_alive allows
        writer.write(HALF + b"connection: close\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.read(), 10)
        writer.close()


async def test_stray_bytes_do_not_keep_a_connection_open() -> None:
    settings = Settings(keep_alive=1)
    async with served(App(Stub(), settings), settings) as port:
        answer = await exchange(port, HALF + b"\r\n", b"\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(("path", "status"), [(PATHS["responses"], 101), (PATHS["chat"], 404)])
async def test_an_upgrade_is_taken_where_there_is_a_socket(path, status) -> None:
    request = (
        f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n"
        "upgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "sec-websocket-version: 13\r\n\r\n"
    )
    async with served(App(Stub(), Settings())) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 %d" % status)
        writer.close()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with served(App(Stub(), Settings())) as port:
        get = f"GET {{}} HTTP/1.1\r\nhost: localhost:{port}\r\n\r\n"
        pieces = "".join(get.format(path) for path in ("/healthz", "/readyz", "/v1/models"))
        last = f"GET /healthz HTTP/1.1\r\nhost: localhost:{port}\r\nconnection: close\r\n\r\n"
        answer = await exchange(port, pieces.encode(), last.encode())
    found = [answer.find(word) for word in (b'"ok"', b'"ready"', b'"list"')]
    assert found == sorted(found)
    assert answer.count(b"HTTP/1.1 200") == 4


async def test_expect_continue_is_heeded_and_a_large_body_refused_before_it_comes() -> None:
    settings = Settings(body_limit=10)
    async with served(App(Stub(), settings), settings) as port:
        head = post(port, b"x" * 100, headers=[JSON, "expect: 100-continue"])[:-100]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_refusal_is_not_lost_where_the_body_is_being_sent_and_the_connection_closes() -> None:
    settings = Settings(body_limit=10)

    def answer(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(post(port, b"x" * 2_000_000, headers=[JSON, "connection: close"]))
            return b"".join(iter(lambda: client.recv(65536), b""))  # a reset loses what came

    async with served(App(Stub(), settings), settings) as port:
        for _ in range(5):
            refusal = await asyncio.to_thread(answer, port)
            assert refusal.startswith(b"HTTP/1.1 413")
            assert refusal.endswith(b"}}")


# ---- the end -------------------------------------------------------------------------------


READY = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
async def test_answer_over_the_drain_time_is_cancelled_and_reported(wire: str, sig) -> None:
    stub = Stub(*OPENING, word("a"), asyncio.Event())
    settings = Settings(drain=0.02 if sig == signal.SIGTERM else 1000)
    async with serving(stub, settings) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(port, asking(wire, stream=True), PATHS[wire]))
        await reader.readuntil(b"a")
        await stub.begun.wait()
        signalled(server, sig)
        if sig == signal.SIGINT:  # whoever asks twice does not want to wait
            signalled(server, sig)
        rest = await asyncio.wait_for(reader.read(), 10)
        assert b"shutting down" in rest
        assert stub.cancelled.is_set()
        writer.close()
    assert not stub.running


BEHIND = {"model": "stub", "input": "Hi", "background": True}


async def test_draining_lets_answers_in_the_background_end_and_says_so(capsys) -> None:
    gate, store = asyncio.Event(), MemoryStore()
    stub = Stub(*OPENING, word("a"), gate, *closing("a"))
    async with serving(stub, Settings(drain=10), Memory(store)) as (server, port):
        assert b"queued" in await exchange(port, behind(port))
        await stub.begun.wait()
        signalled(server, signal.SIGTERM)
        while not (await exchange(port, READY)).startswith(b"HTTP/1.1 503"):
            await asyncio.sleep(0.01)
        gate.set()
    assert await statuses(store) == ["completed"]
    assert "Waiting up to 10 s for 1 background answer to end;" in capsys.readouterr().err


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
async def test_background_answer_over_the_drain_time_is_cancelled_and_stored(sig) -> None:
    stub, store = Stub(*OPENING, word("a"), asyncio.Event()), MemoryStore()
    settings = Settings(drain=0.02 if sig == signal.SIGTERM else 1000)
    async with serving(stub, settings, Memory(store)) as (server, port):
        await exchange(port, behind(port))
        await stub.begun.wait()
        signalled(server, sig)
        if sig == signal.SIGINT:  # whoever asks twice does not want to wait
            signalled(server, sig)
    assert stub.cancelled.is_set()
    assert await statuses(store) == ["failed"]


def behind(port: int) -> bytes:
    """A request to be answered in the background, on a connection of its own."""
    headers = ("content-type: application/json", "connection: close")
    return post(port, BEHIND, PATHS["responses"], headers)


async def statuses(store: MemoryStore) -> list[str]:
    return [record.status for record in (await store.list_responses("", None, Paging())).items]


def signalled(server: Server, sig: int) -> None:
    """As if the signal had come; uvicorn would raise it again in this process at its end."""
    server.handle_exit(sig, None)
    server._captured_signals.clear()


class serving:
    """A server in this loop whose end is not hurried."""

    def __init__(
        self,
        stub: Stub,
        settings: Settings,
        memory: Memory | None = None,
        lifeline: int | None = None,
    ) -> None:
        self._listener = bind(Settings(port=0), exact=True)
        self._ready = asyncio.Event()
        app = App(stub, settings, memory)
        self._server = Server(app, settings, self._ready.set, lifeline)

    async def __aenter__(self) -> tuple[Server, int]:
        self._task = asyncio.create_task(self._server.serve([self._listener]))
        await self._ready.wait()
        return self._server, self._listener.getsockname()[1]

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait_for(self._task, 10)


# ---- processes -----------------------------------------------------------------------------

PROGRAM = """
import sys
from dragoman.server.app import App
from dragoman.server.host import bind, run
from dragoman.server.settings import Settings
from tests.server.stubs import Stub, OPENING, closing, word

endless = sys.argv[2:] == ["endless"]
settings = Settings(port=0, workers=int(sys.argv[1]), drain=300 if endless else 5)
listener = bind(settings, exact=True)
stub = Stub(*OPENING, word("a"), 300 if endless else 0.5, *closing("a"))
if sys.argv[2:] == ["broken"]:
    App = None
run(lambda: App(stub, settings), settings, listener,
    lambda: print(listener.getsockname()[1], flush=True))
"""


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in told.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_usual_limit_of_open_files_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        with running("1") as process:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            await asyncio.to_thread(process.stdout.readline)
            soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert soft == min(hard, FILES)


@pytest.mark.parametrize(("workers", "sig"), [("1", signal.SIGTERM), ("3", signal.SIGINT)])
async def test_a_signal_ends_it_after_the_last_answer(workers, sig) -> None:
    with running(workers) as process:
        port = int(await asyncio.to_thread(process.stdout.readline))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(port, asking(stream=True)))
        await reader.readuntil(b'"a"')
        process.send_signal(sig)
        assert b"[DONE]" in await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert await asyncio.to_thread(process.wait, 20) in (0, -sig, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_worker_that_dies_is_replaced_and_none_outlives_the_first_process() -> None:
    with running("2") as process:
        await asyncio.to_thread(process.stdout.readline)
        await asyncio.sleep(1.1)
        before = children(process.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        while len(now := children(process.pid)) < 2 or before[0] in now:
            await asyncio.sleep(0.01)
        process.kill()
        deadline = time.monotonic() + 20
        while any(alive(pid) for pid in now) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert not any(alive(pid) for pid in now)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


INTERRUPTED = """
import os, signal, time
from dragoman.server.host import run_workers

fork = os.fork

def fork_and_be_told_to_stop():
    if pid := fork():
        os.kill(os.getpid(), signal.SIGTERM)
    return pid

os.fork = fork_and_be_told_to_stop
run_workers(lambda number, lifeline: time.sleep(300), 2)
print("all ended")
"""


def test_a_signal_between_two_steps_of_a_start_reaches_the_new_worker() -> None:
    # Had one been missed, its first process would wait for it.
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "all ended\n"


def test_workers_that_cannot_start_are_not_started_for_ever() -> None:
    with running("2", "broken") as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "All workers ended as soon as they were started" in errors


DYING = """
import os, sys, time
from dragoman.server import host

host.HEALTHY = 0.3

def work(number, lifeline):
    if number:
        time.sleep(0.5 * (sys.argv[1] == "later"))
        os._exit(7)
    print("worked", flush=True)
    time.sleep(300)

host.run_workers(work, 2)
print("ended")
"""


@pytest.mark.parametrize("when", ["young", "later"])
def test_a_worker_that_keeps_dying_leaves_the_others_running(when) -> None:
    """5.20. One that dies young is given ever longer pauses."""
    command = [sys.executable, "-c", DYING, when]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            said = [process.stderr.readline().partition(" WARNING ")[2] for _ in range(2)]
            pauses = ["now", "now"] if when == "later" else ["in 1 s", "in 2 s"]
            assert said == [
                f"Worker 1 ended with status 7; it is started again {pause}.\n" for pause in pauses
            ]
            process.terminate()
            assert process.communicate(timeout=30)[0] == "worked\nended\n"  # and once
            assert process.returncode == 0
        finally:
            process.kill()


@pytest.mark.parametrize("orders", ["1 TERM TERM", "1 TERM INT", "1 INT TERM", "2 TERM TERM"])
async def test_a_second_signal_does_not_wait(orders) -> None:
    """5.17. In any order, and where the process has workers."""
    workers, first, second = orders.split()
    with running(workers, "endless") as process:
        port = int(await asyncio.to_thread(process.stdout.readline))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(port, asking(stream=True)))
        await reader.readuntil(b'"a"')
        process.send_signal(signal.Signals["SIG" + first])
        while "Waiting up to" not in (said := await asyncio.to_thread(process.stderr.readline)):
            assert said, "it ended and waited for nothing"
        process.send_signal(signal.Signals["SIG" + second])
        assert b"shutting down" in await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await asyncio.to_thread(process.wait, 20)


async def test_two_sigterms_at_a_worker_are_one() -> None:
    """systemd signals each process, and the first passes its own on."""
    lifeline, end = os.pipe()
    stub = Stub(*OPENING, word("a"), 0.3, *closing("a"))
    async with serving(stub, Settings(drain=20), lifeline=lifeline) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(port, asking(stream=True)))
        await reader.readuntil(b'"a"')
        for _ in range(2):
            signalled(server, signal.SIGTERM)
        assert b"[DONE]" in await asyncio.wait_for(reader.read(), 10)
        writer.close()
    os.close(lifeline)
    os.close(end)


ENDING = """
import asyncio, socket, sys
from dragoman.engines.function import Function
from dragoman.server.app import App
from dragoman.server.host import run
from dragoman.server.settings import Settings

async def boom():
    sys.exit(3)

async def answer(messages, **rest):
    tasks = [asyncio.ensure_future(boom()), asyncio.get_running_loop().call_soon(sys.exit, 4)]
    for _ in range(3):
        yield "a"
        await asyncio.sleep(0.1)

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
listener.setblocking(False)
settings = Settings(port=listener.getsockname()[1], store="none")
run(lambda: App(Function(answer), settings), settings, listener,
    lambda: print(listener.getsockname()[1], flush=True))
"""


async def test_a_task_of_an_engine_that_exits_ends_no_answer_and_a_signal_ends_the_server() -> None:
    command, pipes = [sys.executable, "-c", ENDING], dict.fromkeys(("stdout", "stderr"), -1)
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            port = int(await asyncio.to_thread(process.stdout.readline))
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(post(port, asking(model="function")))
                found = await asyncio.wait_for(reader.readuntil(b'"aaa"'), 20)
                assert b" 200 " in found
                writer.close()
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.to_thread(process.communicate, timeout=20)
        finally:
            process.kill()
    assert process.returncode in (0, -signal.SIGTERM)
    assert errors.count("raised SystemExit") >= 2  # two in one turn of the loop are one
