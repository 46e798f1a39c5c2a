"""The gateways that are measured: how each is started in front of the mock upstream.

One that is not installed is left out and said to be.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

KEY = "sk-bench-0123456789abcdef0123456789abcdef"
"""What the load presents to a gateway that will not start without a key; it opens nothing else."""


class Gateway(Struct, frozen=True):
    """A name, the command that starts it, and the URL that answers when it is ready.

    `key` is the client's, where it wants one; `environment` is what it needs beside ours.
    """

    name: str
    command: Callable[[int, int, Path], list[str]]
    ready: str = "http://127.0.0.1:{port}/v1/models"
    wires: tuple[str, ...] = ("chat",)
    key: str = "none"
    environment: dict[str, str] = {}


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
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; keepalive_requests 1000000;
    }}
  }}
}}
"""
    )
    return ["nginx", "-p", str(folder), "-c", str(conf)]


def _dragoman(port: int, upstream: int, folder: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        "--port",
        str(port),
        "--upstream",
        f"http://127.0.0.1:{upstream}/v1",
        "--wire",
        "chat",
        "--store",
        "none",  # the others remember nothing either
    ]


def _relay(port: int, upstream: int, folder: Path) -> list[str]:
    """The same in front of an upstream that is said to speak cleanly: answers pass unread."""
    conf = folder / "relay.toml"
    conf.write_text(
        f"""[server]
relay = true
[[upstreams]]
name = "mock"
url = "http://127.0.0.1:{upstream}/v1"
wire = "chat"
profile = "openai"
"""
    )
    command = [sys.executable, "-m", "dragoman", "serve", "--config", str(conf)]
    return [*command, "--port", str(port), "--store", "none"]


def _litellm(port: int, upstream: int, folder: Path) -> list[str]:
    conf = folder / "litellm.yaml"
    conf.write_text(
        f"""model_list:
  - model_name: "*"
    litellm_params: {{model: "openai/*", api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
litellm_settings: {{drop_params: true, telemetry: false}}
"""
    )
    return [
        _litellm_path() or "litellm",
        "--config",
        str(conf),
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
    ]


def _litellm_path() -> str | None:
    """LITELLM names its command, for it is best kept in an environment of its own."""
    return os.environ.get("LITELLM") or shutil.which("litellm")


def installed() -> tuple[list[Gateway], list[str]]:
    """The gateways that are here, and the names of those that are not."""
    known = [
        (Gateway("nginx", _nginx), shutil.which("nginx")),
        (
            Gateway(
                "dragoman", _dragoman, "http://127.0.0.1:{port}/healthz", ("chat", "responses")
            ),
            sys.executable,
        ),
        (Gateway("dragoman, relay", _relay, "http://127.0.0.1:{port}/healthz"), sys.executable),
        (
            Gateway(
                "litellm",
                _litellm,
                "http://127.0.0.1:{port}/health/liveliness",
                key=KEY,
                environment={"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            ),
            _litellm_path(),
        ),
    ]
    return [g for g, path in known if path], [g.name for g, path in known if not path]
