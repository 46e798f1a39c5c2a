"""Runs the application: listening sockets, signals, a graceful end, and worker processes."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from threading import Thread
from types import FrameType
from typing import Any, NoReturn, get_type_hints

import uvicorn
from msgspec import Meta

from .app import App
from .auth import SHORTEST, is_host, is_loopback, key_names, origin_of
from .http import HTTPConfig, HTTPProtocol
from .log import LINES, ErrorFormat, log_errors
from .settings import Settings

_log = logging.getLogger("dragoman")

FILES = 8_192
"""The files and connections that a process may have open, where the system's hard limit allows."""
SILENT = 60
"""Seconds of silence after which the kernel asks a client for a sign of life."""
TCP_INFO = Struct("2x B 21x I 28x I")
"""Of what Linux says of a connection: how often it was sent again in vain, packets that are not
acknowledged, and milliseconds since the last acknowledgement (`struct tcp_info`, `linux/tcp.h`)."""
HEALTHY = 1.0
"""Seconds after which the start of a worker has succeeded."""
LONGEST_PAUSE = 60.0
"""The longest pause, in seconds, before a worker that keeps exiting is started again."""
AGAIN = 1.0
"""Seconds until a worker is started again for which the system had no process."""
HANGUP = () if sys.platform == "win32" else (signal.SIGHUP,)
"""The signal for a closed terminal. `nohup` ignores it, and some programs handle it."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, *HANGUP)
"""The signals for a graceful shutdown."""


def _is_ours(sig: int) -> bool:
    return sig not in HANGUP or signal.getsignal(sig) == signal.SIG_DFL


class HostError(Exception):
    """The server cannot listen or keep its workers; the message says why, and what to do."""


def run_workers(work: Callable[[int, int], None], count: int, *, as_json: bool = False) -> None:
    """Run `work` in `count` processes until a signal of `SIGNALS`; a second one ends them at once.

    `work` gets its number, and a pipe's file descriptor that is closed when this process
    exits. A process that ends is replaced; one that exits early, after an exponential
    backoff. Raises HostError where processes cannot be forked, or all exit at the start.
    """
    if not hasattr(os, "fork"):
        raise HostError("Several workers need a system that can fork. Use one.")
    running: dict[int, tuple[int, float]] = {}  # process id: number, time of its start
    deaths = dict.fromkeys(range(count), 0)  # early exits in a row, by number
    signals, proven, failed = 0, False, False
    lifeline, our_end = os.pipe()

    def start(number: int, pause: float = 0.0) -> bool:
        # Signals are blocked meanwhile, or one would miss a worker that is not yet on the list.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            if signals:
                return True
            try:
                pid = os.fork()
            except OSError:  # no process, or memory for one, is left
                return False
            if pid == 0:
                os.setpgid(0, 0)  # this process forwards Ctrl-C, once
                os.close(our_end)
                _be_a_worker(lambda: work(number, lifeline), pause)
            running[pid] = number, time.monotonic() + pause
            return True
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def stop(sig: int, frame: FrameType | None = None) -> None:
        # systemd signals us and the workers: two SIGTERM of theirs are one. What means a second
        # signal to them is SIGINT, which only we send.
        nonlocal signals
        signals += 1
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if signals == 1 else signal.SIGINT)

    before = {sig: signal.signal(sig, stop) for sig in filter(_is_ours, SIGNALS)}
    try:
        for number in range(count):
            if not start(number):
                stop(signal.SIGTERM)
                raise HostError("The system has no processes left for so many workers.")
        while running:
            pid, status = os.wait()
            if pid not in running:  # as a container's first process it inherits orphans
                continue
            number, since = running.pop(pid)
            now = time.monotonic()
            lived = now - since
            ages = [lived, *(now - began for _, began in running.values())]
            proven = proven or max(ages) > HEALTHY
            deaths[number] = deaths[number] + 1 if lived < HEALTHY else 0
            if signals:
                continue
            if not proven and all(deaths.values()):
                failed = True
                stop(signal.SIGTERM)
                continue
            pause = min(2.0 ** (deaths[number] - 1), LONGEST_PAUSE) if deaths[number] else 0.0
            _report_exit(number, status, pause, as_json)
            while not start(number, pause):  # the others serve meanwhile
                time.sleep(AGAIN)
        os.close(our_end)
        os.close(lifeline)
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
    if failed:
        raise HostError("All workers ended as soon as they were started; see their output above.")


def _report_exit(number: int, status: int, pause: float, as_json: bool = False) -> None:
    code = os.waitstatus_to_exitcode(status)
    why = f"by signal {-code}" if code < 0 else f"with status {code}"
    again = f"in {pause:g} s" if pause else "now"
    with suppress(OSError, ValueError):  # not where it would block: the other workers wait for us
        if select.select((), (sys.stderr,), (), 0)[1]:
            said = f"Worker {number} ended {why}; it is started again {again}."
            record = logging.makeLogRecord({"msg": said, "levelname": "WARNING"})
            sys.stderr.write(ErrorFormat(as_json=as_json).format(record) + "\n")


def _be_a_worker(work: Callable[[], None], pause: float) -> NoReturn:
    """Runs in the new process, and never returns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for sig in SIGNALS[1:]:
        if callable(signal.getsignal(sig)):
            signal.signal(sig, signal.SIG_DFL)
    status = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        time.sleep(pause)
        work()
        status = 0
    except KeyboardInterrupt:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        LINES.wait()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


PORTS_TRIED = 20
"""How many ports are tried, from the configured one."""
LOOK = 5.0
"""Seconds between two checks for memory that can be released."""
SPARE = 64 * 1024 * 1024
"""Bytes of memory, beyond those at the start, that are not released."""
COLLECTED = 20_000, 2, 500
"""Thresholds of the collector: a large answer makes a million objects."""
REST = 200
"""How many times as long as a collection lasted there is none."""
FAREWELL = 5
"""Seconds for connections to close once all answers have ended."""


def check(settings: Settings) -> None:
    """Raise HostError for a setting beyond its bounds, for a server that is reachable from other
    machines without a key, for a key that is too short, for workers that do not share a store, and
    for an invalid origin or host."""
    for field, hint in get_type_hints(Settings, include_extras=True).items():
        value, meta = getattr(settings, field), getattr(hint, "__metadata__", (None,))[-1]
        if isinstance(meta, Meta) and isinstance(value, int | float):
            low = -math.inf if meta.ge is None else meta.ge
            high = math.inf if meta.le is None else meta.le
            if not low <= value <= high:
                raise HostError(f"{field} is {value}, and its bounds are {low:g} and {high:g}.")
    for name, key in zip(key_names(settings), settings.keys, strict=False):
        if len(key.reveal()) < SHORTEST:
            raise HostError(
                f"{name}: a key for clients of less than {SHORTEST} characters can be guessed. Use "
                "a longer one, or have one made with --generate-key."
            )
    labels = _name(settings).rstrip(".").split(".")
    if settings.host and not (is_host(_name(settings)) and all(0 < len(x) < 64 for x in labels)):
        raise HostError(
            f"host is {settings.host!r}, and must be a name or an address, without scheme and port."
        )
    if not settings.keys and not is_loopback(_name(settings)):
        raise HostError(
            f"Without a key Dragoman listens on this machine only, and not on {settings.host}: "
            "everyone who reaches it could use your models. Put a key into an environment variable "
            "and name it with --api-key-env NAME, or have one made with --generate-key."
        )
    for origin in settings.cors_origins:
        if origin not in ("*", "null") and ("*" in origin or not origin_of(origin)[0]):
            raise HostError(
                f"cors_origins has {origin!r}, and an origin is a scheme and a host, and a port "
                "where it is not the usual one: https://app.example or http://localhost:3000."
            )
    for host in settings.allowed_hosts:  # which would refuse every request
        if host != "*" and not is_host(host):
            raise HostError(
                f"allowed_hosts has {host!r}, and a host is a name or an address, without scheme, "
                'port, path and patterns: models.example or 10.0.0.7; "*" is any.'
            )
    if settings.workers > 1 and settings.store == "memory":
        raise HostError(
            "Each worker has a memory of its own, and what one stored the others would not find. "
            "Use --store sqlite, --store none, or one worker."
        )


def bind(settings: Settings, *, exact: bool) -> socket.socket:
    """A socket bound where the settings say, or on one of the next ports if that one is taken.

    With `exact` no other port is tried. Raises HostError, as `check` does, or when none is free.
    """
    check(settings)
    name, port = _name(settings), settings.port
    last = port if exact or port == 0 else min(port + PORTS_TRIED - 1, 65535)
    while True:
        try:
            return _bound(name, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise HostError(f"Cannot listen on {name}:{port}: {error.strerror}.") from None
        if port == last:
            taken = f"Port {port} is" if port == settings.port else f"All ports up to {port} are"
            other = "Choose another with --port, or in Python with Settings(port=…)."
            raise HostError(f"{taken} taken on {name}. {other}")
        port += 1


def address(listener: socket.socket) -> str:
    """The URL of a bound socket, without a path."""
    name, port = listener.getsockname()[:2]
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def reachable(url: str) -> str:
    """The same URL for clients on this machine.

    >>> reachable("http://0.0.0.0:8000")
    'http://127.0.0.1:8000'
    """
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def run(
    build: Callable[[], App],
    settings: Settings,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal, then let answers end and return or exit by that signal.

    `build` makes the application, once in each worker; `ready` is called when the first worker
    accepts connections.
    """
    log_errors(as_json=settings.log_format == "json")
    _raise_file_limit()
    if settings.workers == 1:
        Server(build(), settings, ready).run([listener])
        return

    def work(number: int, lifeline: int) -> None:
        announce = ready if number == 0 else lambda: None
        Server(build(), settings, announce, lifeline).run([listener])

    with listener:
        run_workers(work, settings.workers, as_json=settings.log_format == "json")


def _raise_file_limit() -> None:
    """Let this process have more than the usual 1,024 files: an answer takes two."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # where a system has another limit as well
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def running(
    build: Callable[[], App], settings: Settings, listener: socket.socket
) -> Iterator[Callable[[], bool]]:
    """Serve in a thread of its own while the block lasts; signals are for others to handle.

    Yields a function that returns whether it still serves. Raises HostError if it does not start.
    """
    log_errors(as_json=settings.log_format == "json")
    started: Future[None] = Future()
    server = Server(build(), settings, lambda: started.set_result(None))

    def work() -> None:
        try:
            server.run([listener])
        except BaseException:
            traceback.print_exc()
        finally:
            if not started.done():
                started.set_exception(HostError("The server ended before it was ready."))

    thread = Thread(target=work, name="server", daemon=True)
    thread.start()
    try:
        started.result()
        yield thread.is_alive
    finally:
        server.should_exit = True
        thread.join()


class Server(uvicorn.Server):
    """uvicorn's server, which listens until all answers have ended.

    `lifeline` is a file descriptor; when its other end closes, the server stops.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        ready: Callable[[], None] = lambda: None,
        lifeline: int | None = None,
    ) -> None:
        self._rested = 0.0  # when memory may be collected again
        self._least = math.inf  # the resident memory since the last collection, at the least
        self._memory, self._stall = settings.memory, settings.stall
        super().__init__(
            HTTPConfig(
                app,
                settings,
                http=HTTPProtocol,
                ws=_socket,
                ws_max_size=settings.body_limit,
                ws_per_message_deflate=False,
                interface="asgi3",
                lifespan="on",
                log_config=None,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=settings.backlog,
                timeout_keep_alive=settings.keep_alive,
                timeout_graceful_shutdown=FAREWELL,
            )
        )
        self._app = app
        self._patience = settings.drain
        self._ready = ready
        self._lifeline = lifeline

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle uvicorn's signals, and the rest of `SIGNALS` like SIGTERM."""
        more: list[signal.Signals] = []
        if threading.current_thread() is threading.main_thread():
            more += filter(_is_ours, HANGUP)
        for sig in more:
            signal.signal(sig, lambda _, frame: self.handle_exit(signal.SIGTERM, frame))
        try:
            with super().capture_signals():
                yield
        finally:
            for sig in more:
                signal.signal(sig, signal.SIG_DFL)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve. A SystemExit ends the task of an engine or a tool that raises it, and not us."""
        factory = self.config.get_loop_factory() or asyncio.new_event_loop
        with asyncio.Runner(loop_factory=lambda: _unending(factory())) as runner:
            runner.run(self.serve(sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self._lifeline is not None:
            self._loop.add_reader(self._lifeline, self._orphaned)
        # These objects are permanent: exclude them from collection. Collect all seldom, and the
        # newest few at a time, which blocks the loop.
        gc.freeze()
        gc.set_threshold(*COLLECTED)
        # While large requests are decoded in threads, the loop's thread waits less for the GIL.
        sys.setswitchinterval(0.001)
        if sys.platform == "linux":  # others have other fields
            self._drop_vanished()
        if trim := _trimmer():
            self._give_back(trim, _resident() + SPARE)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if going := _going(self._app.busy, self._app.background):
            wait = f"Waiting up to {self._patience:g} s for {going} to end"
            LINES.write(f"\n{wait}; Ctrl-C again ends them now.\n")
        await self._app.drain(self._patience)
        await super().shutdown(sockets)
        LINES.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and self._lifeline is None:
            self.force_exit = True  # a worker gets SIGINT as the second signal
        super().handle_exit(sig, frame)
        if self.force_exit and self.started:  # the second signal: stop at once
            self._loop.call_soon_threadsafe(self._app.stop_all)

    def _give_back(self, trim: Callable[[int], object], enough: int) -> None:
        """Release memory after a load peak, periodically: the C library retains much of
        what was freed, and reference cycles are freed by the collector alone. A collection blocks
        the loop: under load there is none unless more was taken than requests may take."""
        self._loop.call_later(LOOK, self._give_back, trim, enough)
        try:
            resident = _resident()
        except OSError:  # no file descriptor is free
            return
        self._least = min(self._least, resident)
        if resident > enough:
            now = self._loop.time()
            due = not self._app.busy or resident > self._least + self._memory
            if due and now >= self._rested:
                gc.collect()
                self._rested = now + REST * (self._loop.time() - now)
                self._least = resident
            self._loop.run_in_executor(None, trim, 0)

    def _drop_vanished(self) -> None:
        """Drop connections whose clients acknowledge nothing of what was sent, periodically: they
        vanished. Of one that reads slowly the system acknowledges that, too."""
        self._loop.call_later(LOOK, self._drop_vanished)
        for connection in list(self.server_state.connections):
            transport = connection.transport
            if transport.is_closing():
                continue
            sock = transport.get_extra_info("socket")
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
            again, unacknowledged, silent = TCP_INFO.unpack_from(info)
            # The first bytes after a silence are not acknowledged yet, either.
            if again > 2 and unacknowledged and silent > 1000 * self._stall:
                transport.abort()

    def _orphaned(self) -> None:
        self._loop.remove_reader(self._lifeline or 0)
        self.handle_exit(signal.SIGTERM, None)


def _unending(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """The loop, which goes on with its work where it raises what ended another task."""
    run = loop.run_until_complete

    def run_until_complete(work: Any) -> Any:
        work = asyncio.ensure_future(work, loop=loop)
        while True:
            try:
                return run(work)
            except SystemExit:
                if work.done():
                    raise
                _log.exception("a task of an engine or a tool raised SystemExit")

    vars(loop).update(run_until_complete=run_until_complete)
    return loop


def _socket(**options: Any) -> asyncio.Protocol:
    """The protocol of a WebSocket, which is loaded for the first one: websockets takes 1.3 MB."""
    from .frames import SocketProtocol

    return SocketProtocol(**options)


def _trimmer() -> Callable[[int], object] | None:
    """`malloc_trim` of the C library, where it has one (glibc)."""
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
        _resident()
    except (OSError, ValueError):
        return None
    return _trim


def _trim(pad: int) -> None:
    import ctypes  # only where memory is to be released

    ctypes.CDLL(None).malloc_trim(pad)


def _resident() -> int:
    """The resident memory of this process, in bytes. Raises OSError where it is not
    known."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _going(answers: int, background: int) -> str:
    """The answers that are waited for, as text; empty where there are none.

    >>> _going(2, 0), _going(1, 1)
    ('2 answers', '1 answer and 1 background answer')
    """
    counted = ((answers, "answer"), (background, "background answer"))
    return " and ".join(f"{n} {word}{'s' if n > 1 else ''}" for n, word in counted if n)


def _name(settings: Settings) -> str:
    return settings.host.strip("[]").lower()


def _bound(name: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(
        name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections have the listener's options: the kernel ends one whose client has vanished,
        # soon where it is silent. Where something was sent it would try for a quarter of an hour.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", SILENT), ("TCP_KEEPINTVL", SILENT // 3)):
            if hasattr(socket, option):  # not everywhere
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        listener.bind(place)
        # Only listening reserves the port: two sockets that are only bound may share it.
        listener.listen()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
