"""What the operating system says of a process tree, and programs pinned to one core.

Knows /proc and nothing of gateways.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    pids = [pid]
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for text in child.read_text().split():
            pids += tree(int(text))
    return pids


def cpu(pid: int) -> float:
    """CPU seconds the threads of a process tree have used, user and system, to the nanosecond."""
    total = 0
    for one in tree(pid):
        for thread in Path(f"/proc/{one}/task").iterdir():
            with suppress(FileNotFoundError):  # it has just ended
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def rss(pid: int) -> float:
    """Resident megabytes of a process tree."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in tree(pid))
    return pages * PAGE / 1e6


@contextmanager
def running(
    command: list[str],
    *,
    core: int,
    ready: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program pinned to a core; waits until the URL `ready` answers with anything.

    `environment` comes on top of ours.
    """
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command] if shutil.which("taskset") else command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        if ready:
            wait_for(ready, process)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], patience: float = 120.0) -> float:
    """Seconds until the URL answered."""
    begun = time.monotonic()
    while time.monotonic() - begun < patience:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=1).read()
        except urllib.error.HTTPError:
            break
        except OSError:
            time.sleep(0.005)
        else:
            break
    else:
        raise RuntimeError(f"{url} did not answer in {patience} s")
    return time.monotonic() - begun


def describe() -> str:
    """One line about this machine."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {os.cpu_count()} cores, Linux, CPython {platform.python_version()}"
