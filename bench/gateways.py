"""The gateways that are measured: how each is started in front of the mock upstream.

One that is not installed is left out and named as missing. `python -m bench --install` puts
LiteLLM and agentic-api into environments of their own under build/, never into the project's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

KEY = "sk-bench-0123456789abcdef0123456789abcdef"
"""What the load presents to a gateway that will not start without a key; it opens nothing else."""
ELSEWHERE = Path(__file__).parent.parent / "build" / "gateways"
PACKAGES = {"litellm": "litellm[proxy]", "agentic-api": "agentic-api"}
STORED, UNSTORED = "dragoman", "dragoman, unstored"


class Gateway(Struct, frozen=True):
    """A name, the command that starts it, and the path that answers when it is ready.

    `wires` are the protocols of its clients that are measured; `key` is the client's, where it
    wants one; `environment` is what it needs beside ours; `bodies` are those it is measured with.
    """

    name: str
    command: Callable[[int, int, Path], list[str]]
    program: str | None
    ready: str = "/v1/models"
    wires: tuple[str, ...] = ("chat",)
    key: str = "none"
    environment: dict[str, str] = {}
    bodies: tuple[str, ...] = ("small", "tools", "codex", "history")


def _nginx(port: int, upstream: int, folder: Path) -> list[str]:
    conf = folder / "nginx.conf"
    conf.write_text(
        f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream model {{ server 127.0.0.1:{upstream}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096; client_max_body_size 0;
    location / {{
      proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; keepalive_requests 1000000;
    }}
  }}
}}
"""
    )
    return ["nginx", "-p", str(folder), "-c", str(conf)]


def _floor(port: int, upstream: int, folder: Path) -> list[str]:
    return [sys.executable, "-m", "bench.floor", str(port), str(upstream)]


def dragoman(port: int, upstream: int, folder: Path) -> list[str]:
    """As installed: with the store that is there by default, in a folder of its own."""
    url = f"http://127.0.0.1:{upstream}/v1"
    serve = [sys.executable, "-m", "dragoman", "serve", "--port", str(port)]
    return [*serve, "--upstream", url, "--wire", "chat", "--store", f"sqlite:{folder}/dragoman.db"]


def _unstored(port: int, upstream: int, folder: Path) -> list[str]:
    return [*dragoman(port, upstream, folder)[:-1], "none"]


def _litellm(port: int, upstream: int, folder: Path) -> list[str]:
    conf = folder / "litellm.yaml"
    conf.write_text(
        f"""model_list:
  - model_name: "*"
    litellm_params: {{model: "openai/*", api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
litellm_settings: {{drop_params: true, telemetry: false}}
"""
    )
    where = ["--port", str(port), "--host", "127.0.0.1"]
    return [_elsewhere("litellm", "litellm") or "", "--config", str(conf), *where]


def _agentic(port: int, upstream: int, folder: Path) -> list[str]:
    program = _elsewhere("agentic-api", "agentic-server") or ""
    base = ["--llm-api-base", f"http://127.0.0.1:{upstream}", "--skip-llm-ready-check"]
    where = ["--gateway-host", "127.0.0.1", "--gateway-port", str(port)]
    return [program, *base, *where, "--db-url", f"sqlite://{folder}/agentic.db?mode=rwc"]


def _elsewhere(package: str, program: str) -> str | None:
    """A program of a package that was installed by `--install`, or is on the PATH."""
    inside = ELSEWHERE / package / "bin" / program
    return str(inside) if inside.exists() else shutil.which(program)


def install(packages: Mapping[str, str]) -> None:
    """Install the others from PyPI, each into an environment of its own."""
    for name, package in packages.items():
        folder = ELSEWHERE / name
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([f"{folder}/bin/pip", "install", "--quiet", package], check=True)


def installed() -> tuple[list[Gateway], list[str]]:
    """The gateways that are here, and the names of those that are not."""
    both = ("chat", "responses")
    known = [
        # nginx spools bodies above 16 kB to a file, which is other work.
        Gateway("nginx", _nginx, shutil.which("nginx"), bodies=("small", "tools")),
        Gateway("floor", _floor, sys.executable),
        Gateway(STORED, dragoman, sys.executable, "/healthz", (*both, "messages")),
        Gateway(UNSTORED, _unstored, sys.executable, "/healthz", (*both, "messages")),
        Gateway(
            "litellm",
            _litellm,
            _elsewhere("litellm", "litellm"),
            "/health/liveliness",
            key=KEY,
            environment={"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            bodies=("small",),
        ),
        Gateway(
            "agentic-api",
            _agentic,
            _elsewhere("agentic-api", "agentic-server"),
            "/health",
            both,
            bodies=("small",),
        ),
    ]
    return [g for g in known if g.program], [g.name for g in known if not g.program]
