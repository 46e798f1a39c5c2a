"""Agent programs that `dragoman run` starts, and the configuration that points each at a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.server.auth import NO_KEY, is_loopback


class Endpoint(Struct, frozen=True):
    """What a program is to ask: a base URL that ends in `/v1`, a model there, its context in tokens
    where that is known, and the variable that holds the key, where there is one, with its value."""

    base_url: str
    model: str
    context: int | None = None
    key_env: str | None = None
    key: str = NO_KEY


class Setup(Struct, frozen=True):
    """The files in a program's own folder, by their paths in it, and the variables that it gets."""

    files: Mapping[str, str]
    environ: Mapping[str, str]


class Program(Struct, frozen=True):
    """A program: how it is called and installed, and what it needs.

    `foreign` are the beginnings of variables that would lead it to another server or to the user's
    own configuration: it does not get them.
    """

    title: str
    command: str
    install: str
    foreign: tuple[str, ...]
    setup: Callable[[Endpoint, Path], Setup]


def _codex(to: Endpoint, folder: Path) -> Setup:
    provider = "model_providers.dragoman."
    settings: dict[str, Any] = {
        "model": to.model,
        "model_provider": "dragoman",
        "model_context_window": to.context,
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        f"{provider}name": "Dragoman",
        f"{provider}base_url": to.base_url,
        f"{provider}wire_api": "responses",
        f"{provider}env_key": to.key_env,
    }
    # A JSON string is a string of TOML, too, but for DEL, which TOML wants escaped.
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n".replace("\x7f", "\\u007F")
        for name, value in settings.items()
        if value is not None
    ]
    return Setup({"config.toml": "".join(lines)}, {"CODEX_HOME": str(folder)})


def _claude(to: Endpoint, folder: Path) -> Setup:
    # It asks those for titles and summaries, and for what its aliases mean in subagents.
    kinds = ("HAIKU", "SONNET", "OPUS")
    environ = {
        "CLAUDE_CONFIG_DIR": str(folder),
        "ANTHROPIC_BASE_URL": to.base_url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": to.key,
        "ANTHROPIC_MODEL": to.model,
        **{f"ANTHROPIC_DEFAULT_{kind}_MODEL": to.model for kind in kinds},
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    if to.context is not None:
        environ["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(to.context)
    # Without it, the first thing a new configuration folder leads to is a page to log in at.
    return Setup({".claude.json": json.dumps({"hasCompletedOnboarding": True})}, environ)


def _opencode(to: Endpoint, folder: Path) -> Setup:
    model: dict[str, Any] = {"name": to.model}
    if to.context is not None:
        # It wants both; what is kept free for an answer is taken from the context.
        model["limit"] = {"context": to.context, "output": max(to.context // 4, 1)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Dragoman",
        "options": {
            "baseURL": to.base_url,
            "apiKey": f"{{env:{to.key_env}}}" if to.key_env else NO_KEY,
        },
        "models": {to.model: model},
    }
    text = json.dumps(
        {
            "$schema": "https://opencode.ai/config.json",
            "model": f"dragoman/{to.model}",
            "small_model": f"dragoman/{to.model}",
            "provider": {"dragoman": provider},
            # Or every key in the environment would bring another.
            "enabled_providers": ["dragoman"],
            "share": "disabled",
            "autoupdate": False,
        }
    )
    # Its own variables add to the user's configuration, and do not replace it: that is found by
    # the XDG folders. The file there yields to a project's; the variable does not.
    environ = {
        f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "STATE")
    }
    environ |= {
        "OPENCODE_CONFIG_CONTENT": text,
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_CLAUDE_CODE": "1",
    }
    return Setup({"config/opencode/opencode.json": text}, environ)


PROGRAMS: Mapping[str, Program] = {
    "codex": Program(
        "Codex", "codex", "npm install -g @openai/codex", foreign=("CODEX_",), setup=_codex
    ),
    "claude": Program(
        "Claude Code",
        "claude",
        "npm install -g @anthropic-ai/claude-code",
        foreign=("ANTHROPIC_", "CLAUDE_CODE_USE_", "CLAUDE_CODE_OAUTH_", "CLAUDE_CONFIG_DIR"),
        setup=_claude,
    ),
    "opencode": Program(
        "opencode",
        "opencode",
        "npm install -g opencode-ai",
        foreign=("OPENCODE_",),
        setup=_opencode,
    ),
}


def configure(
    program: Program, to: Endpoint, folder: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Write the program's files into the folder, which is its own; the environment it is to have,
    made from that of the user."""
    setup = program.setup(to, folder)
    for place, text in setup.files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
    own = {name: value for name, value in environ.items() if not name.startswith(program.foreign)}
    if to.key_env is not None:
        own[to.key_env] = to.key
    if is_loopback(host := urlsplit(to.base_url).hostname or ""):
        # A proxy of the environment would look for it on its own machine.
        direct = environ.get("no_proxy") or environ.get("NO_PROXY")
        own |= dict.fromkeys(("no_proxy", "NO_PROXY"), f"{direct},{host}" if direct else host)
    return {**own, **setup.environ}
