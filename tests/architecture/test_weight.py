"""`import dragoman` is cheap: little CPU, and nothing that only a server or a test needs.

The exact figures (packages, megabytes, start time) are measured by bench; here stands a bound
with tenfold slack that holds on any machine.
"""

import json
import subprocess
import sys

CPU_SECONDS = 1.5
NOT_FOR_A_LIBRARY = {
    *("dragoman.cli", "dragoman.server", "uvicorn", "click"),
    *("openai", "httpx", "httpx2", "pydantic", "jinja2", "numpy"),
}
PROBE = """
import json, sys, time
start = time.process_time()
import dragoman
print(json.dumps([time.process_time() - start, sorted(sys.modules)]))
"""


def test_the_import_is_cheap() -> None:
    probe = subprocess.run(
        [sys.executable, "-I", "-c", PROBE], capture_output=True, text=True, check=True
    )
    cpu, modules = json.loads(probe.stdout)
    assert cpu < CPU_SECONDS
    assert not NOT_FOR_A_LIBRARY & set(modules)


def test_a_server_loads_what_sound_needs_with_its_first_session() -> None:
    code = """
import sys
from dragoman.cli import serve
from dragoman.server.build import studio_of
from dragoman.server.settings import Settings
studio_of(Settings(), {})
print(*sys.modules)
"""
    probe = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    needed = {"aiortc", "miniaudio", "numpy", "pocketsphinx", "soxr", "webrtcvad"}
    assert not needed & set(probe.stdout.split())
