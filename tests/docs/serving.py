"""A Dragoman as a stranger would start it: the command, a port, a wait.

For tests of what the documentation promises: it has the models of the package, and keeps what is
said in memory. It looks at nothing but the line that says where it listens.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

READY = re.compile(r"ready at (http://\S+)/v1$")


@contextmanager
def serving() -> Iterator[str]:
    """Run the pocket model and the demo on a free port; yield the address, stop at the end."""
    words = ["serve", "pocket", "script", "--store", "memory", "--tool", "files", "--port", "0"]
    command = [sys.executable, "-m", "dragoman", *words]
    environment = {"PATH": os.environ["PATH"], "NO_COLOR": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, text=True) as server:
        try:
            yield address(server)
        finally:
            server.terminate()


def address(server: subprocess.Popen[str]) -> str:
    """Where it listens, once it says so; raise RuntimeError if it ends without."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := READY.search(line.rstrip()):
            return found[1]
    raise RuntimeError(f"Dragoman did not start (exit status {server.wait()})")
