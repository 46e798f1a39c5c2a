"""Claude Code itself, before a server that has only Chat: it runs a command, edits a file, resumes.

Its requests are the fullest that Messages has: a system prompt in blocks with cache marks, a dozen
tools, thinking, context management, and its own history again.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compliance.test_codex import answered, call, more
from tests.mock import Asked, Reply, chunk, stream
from tests.oracle import request_problems
from tests.sdk.behind import Behind, behind

PACKAGES = Path(sys.prefix, "agents", "node_modules", "@anthropic-ai")
"""Where the Makefile has npm install it."""
CLAUDE = next(PACKAGES.glob("claude-code-*/claude"), PACKAGES)
"""The program itself, for this kind of machine; what is on npm's path is only a link to it."""
COMMAND = "echo It works | tee proof.txt"


class Script:
    """A model that runs a command, writes a file, edits it, and is done."""

    def __init__(self, work: Path) -> None:
        self.note = str(work / "note.txt")
        self.asked = 0

    def __call__(self, asked: Asked) -> Reply:
        self.asked += 1
        results = 0
        for message in asked.json["messages"]:  # since the user spoke last
            results = (
                results + 1
                if message["role"] == "tool"
                else 0
                if "user" in message["role"]
                else results
            )
        steps: list[tuple[str, dict[str, Any]]] = [
            ("Bash", {"command": COMMAND, "description": "Shows it"}),
            ("Write", {"file_path": self.note, "content": "alpha\n"}),
            ("Edit", {"file_path": self.note, "old_string": "alpha", "new_string": "beta"}),
        ]
        if "Again" in json.dumps(asked.json["messages"][-3:]):
            steps = steps[:1]
        if results >= len(steps):
            usage = {"prompt_tokens": 5000, "completion_tokens": 40, "total_tokens": 5040}
            counted = {**chunk(), "choices": [], "usage": usage}
            return stream(chunk({"content": "Done."}), chunk(finish="stop"), counted)
        name, fields = steps[results]
        arguments = json.dumps(fields)
        return answered(
            {"content": "Let me see."},
            call(0, f"call_{self.asked}", name),
            more(0, arguments[:9]),
            more(0, arguments[9:]),
        )


async def run_claude(server: Behind, home: Path, work: Path, *words: str) -> dict[str, Any]:
    """What it prints at its end. It reaches nothing but this machine."""
    home.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        CLAUDE,
        *("-p", *words, "--model", "mock", "--output-format", "json"),
        "--dangerously-skip-permissions",
        cwd=work,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": server.base_url.removesuffix("/v1"),
            "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
            "NO_PROXY": "127.0.0.1",
            "HTTPS_PROXY": "http://127.0.0.1:9",
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (said.decode(), log.decode())
    end: dict[str, Any] = json.loads(said)
    return end


@pytest.mark.skipif(
    CLAUDE == PACKAGES, reason="needs npm, by which `make test` installs Claude Code"
)
async def test_claude_code_runs_a_command_edits_a_file_and_resumes(tmp_path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    async with behind(Script(work)) as server:
        end = await run_claude(server, home, work, "Show that it works.")
        again = await run_claude(server, home, work, "Again, please.", "--continue")
        asked = [each.json for each in server.up.asked]
    for each in (end, again):
        assert (each["subtype"], each["is_error"], each["result"]) == ("success", False, "Done.")
    assert end["session_id"] == again["session_id"]
    assert (work / "proof.txt").read_text() == "It works\n"
    assert (work / "note.txt").read_text() == "beta\n"
    assert end["usage"]["input_tokens"] == 4 * 5000
    assert len(asked) == 6
    for body in asked:
        assert request_problems(body, "chat") == []
    said = [message["content"] for message in asked[-1]["messages"] if message["role"] == "tool"]
    assert len(said) == 4
    assert "It works" in said[-1]
