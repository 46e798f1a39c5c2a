"""A Redis server for the tests, as the system's package brings it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0
PROGRAM = "redis-server"


def there() -> bool:
    """Whether Redis can be started; in continuous integration it must be."""
    return shutil.which(PROGRAM) is not None or bool(os.environ.get("CI"))


@contextmanager
def running(password: str = "") -> Iterator[str]:
    """The URL of a new server, without the password, to the end of the block."""
    with tempfile.TemporaryDirectory(prefix="redis") as text:
        place = Path(text) / "socket"
        words = [PROGRAM, "--port", "0", "--unixsocket", str(place), "--save", "", "--dir", text]
        words += ["--requirepass", password] if password else []
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + PATIENCE
            while not place.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("Redis did not start")
                time.sleep(0.01)
            yield f"unix://{place}"
        finally:
            process.terminate()
            process.wait(PATIENCE)
