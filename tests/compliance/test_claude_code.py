"""Claude Code itself, before servers that have only Chat: it runs a command, edits a file, resumes.

Its requests are the fullest that Messages has: a system prompt in blocks with cache marks, a dozen
tools, thinking, context management, and its own history again.
"""

import asyncio
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.compliance.test_codex import answered, call, more
from tests.mock import Asked, Reply, chunk, stream
from tests.oracle import request_problems
from tests.product import dragoman
from tests.sdk.behind import behind
from tests.upstream.llamacpp import run_llamacpp
from tests.upstream.scripted import CONTEXT, write_model
from tests.upstream.scripted import call as called

PACKAGES = Path(sys.prefix, "agents", "node_modules", "@anthropic-ai")
"""Where the Makefile has npm install it."""
CLAUDE = next(PACKAGES.glob("claude-code-*/claude"), PACKAGES)
"""The program itself, for this kind of machine; what is on npm's path is only a link to it."""
if CLAUDE == PACKAGES:
    pytest.skip("needs npm, by which `make test` installs it", allow_module_level=True)
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


async def run_claude(
    base_url: str, folder: Path, *words: str, code: int = 0, **environ: str
) -> list[dict[str, Any]]:
    """What it prints, to its end, in `folder/work`. It reaches nothing but this machine."""
    home, work = folder / "home", folder / "work"
    home.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        CLAUDE,
        *("-p", *words, "--model", "mock", "--output-format", "stream-json", "--verbose"),
        "--dangerously-skip-permissions",
        cwd=work,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
            "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
            "NO_PROXY": "127.0.0.1",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            **environ,
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
    assert process.returncode == code, (said.decode(), log.decode())
    return [json.loads(line) for line in said.splitlines()]


async def test_claude_code_runs_a_command_edits_a_file_and_resumes(tmp_path) -> None:
    work = tmp_path / "work"
    async with behind(Script(work)) as server:
        *_, end = await run_claude(server.base_url, tmp_path, "Show that it works.")
        *_, again = await run_claude(server.base_url, tmp_path, "Again, please.", "--continue")
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


async def test_claude_code_works_with_a_model_under_llamacpp(tmp_path) -> None:
    """Every token of its prompts is counted, and every token of the answers sampled, by llama.cpp;
    its template and its parser find the calls."""
    file, work = tmp_path / "mock.gguf", tmp_path / "work"
    note = str(work / "note.txt")
    bash = "Let me see.\n" + called("Bash", command=COMMAND, description="Shows it")
    answers = {
        "Show": [
            bash,
            called("Write", file_path=note, content="alpha\n"),
            called("Edit", file_path=note, old_string="alpha", new_string="beta"),
            "Done.",
        ],
        "Again": [bash, "Done."],
    }
    write_model(file, answers)
    with ExitStack() as stack:
        started = run_llamacpp(model="mock", slots=1, context=CONTEXT, file=file)
        llamacpp = await asyncio.to_thread(stack.enter_context, started)
        served = dragoman("--upstream", llamacpp.base_url)
        product = await asyncio.to_thread(stack.enter_context, served)
        *_, end = await run_claude(product.base_url, tmp_path, "Show that it works.")
        *_, again = await run_claude(product.base_url, tmp_path, "Again, please.", "--continue")
        assert llamacpp.busy() == 0
        predicted = llamacpp.predicted()
    for each in (end, again):
        assert (each["subtype"], each["is_error"], each["result"]) == ("success", False, "Done.")
    assert end["session_id"] == again["session_id"]
    assert (work / "proof.txt").read_text() == "It works\n"
    assert (work / "note.txt").read_text() == "beta\n"
    assert predicted == end["usage"]["output_tokens"] + again["usage"]["output_tokens"]
    # Four prompts and two, each the one before and more: the server computes only what is new.
    fresh, cached = (
        [each["usage"][f"{how}input_tokens"] for each in (end, again)]
        for how in ("", "cache_read_")
    )
    assert fresh[0] + cached[0] > 4 * 12_000
    assert fresh[1] < 1000
    assert cached[0] > 2 * fresh[0]
    assert cached[1] > 2 * 12_000
