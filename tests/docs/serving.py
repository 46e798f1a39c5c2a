"""A Dragoman as a stranger would start it: the command, a port, a wait.

For tests of what the documentation promises: it has the models of the package, and keeps what is
said in memory. It looks at nothing but `/healthz`.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

START_SECONDS = 30


@contextmanager
def serving() -> Iterator[str]:
    """Run the pocket model and the rehearsal on a free port; yield the address, stop at the end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    words = ["serve", "pocket", "script", "--store", "memory", "--port", str(port)]
    command = [sys.executable, "-m", "dragoman", *words]
    environment = {"PATH": os.environ["PATH"], "NO_COLOR": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until_healthy(server, address)
            yield address
        finally:
            server.terminate()


def wait_until_healthy(server: subprocess.Popen, address: str) -> None:
    """Return when the server answers; raise RuntimeError if it ends or stays silent."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{address}/healthz"):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise RuntimeError(f"no answer from {address} (exit status {server.poll()})")
