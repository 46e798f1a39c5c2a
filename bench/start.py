"""What it costs to be there: import, start, idle memory, size on disk; and how soon it lets go."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import cancel, machine

ROOT = Path(__file__).parent.parent


def _import_seconds() -> float:
    code = "import time; t=time.process_time(); import dragoman; print(time.process_time()-t)"
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(7)
    ]
    return statistics.median(runs)


def _server() -> tuple[float, float]:
    """Seconds until ready and idle megabytes."""
    seconds, memory = [], []
    for _ in range(5):
        port = machine.free_port()
        command = [sys.executable, "-m", "dragoman", "serve", "script", "--port", str(port)]
        begun = time.monotonic()
        with machine.running(command, core=0, ready=f"http://127.0.0.1:{port}/healthz") as process:
            seconds.append(time.monotonic() - begun)
            memory.append(machine.rss(process.pid))
    return statistics.median(seconds), statistics.median(memory)


def _weight() -> tuple[int, float]:
    """Packages and megabytes of a fresh installation, without pip and setuptools."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = f"{folder}/bin/python"
        quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([python, *quiet, str(ROOT)], check=True, capture_output=True)
        subprocess.run([python, "-c", "import dragoman.cli"], check=True)
        site = next(Path(folder).glob("lib/python*/site-packages"))
        others = ("pip", "pkg_resources", "setuptools", "_dist")
        kept = [path for path in site.iterdir() if not path.name.startswith(others)]
        packages = sum(1 for path in kept if path.suffix == ".dist-info")
        size = 0
        for path in kept:
            done = subprocess.run(["du", "-sk", str(path)], capture_output=True, check=True)
            size += int(done.stdout.split()[0])
        return packages, size / 1024


def table() -> list[str]:
    """The figures, as lines of Markdown."""
    ready, memory = _server()
    packages, size = _weight()
    return [
        "| being there | measured | goal |",
        "|---|---|---|",
        f"| `import dragoman`, CPU | {_import_seconds():.3f} s | 0.1 s |",
        f"| server ready | {ready:.2f} s | 0.5 s |",
        f"| idle memory | {memory:.0f} MB | 45 MB |",
        f"| installed packages, ours counted | {packages} | 8 |",
        f"| installed size | {size:.0f} MB | 30 MB |",
        f"| client gone to upstream closed, p95 | {cancel.p95():.0f} ms | 100 ms |",
    ]
