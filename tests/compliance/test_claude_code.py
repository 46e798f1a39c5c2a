"""Claude Code itself, before servers of other protocols: it runs commands, edits files, resumes.

Its requests are the fullest that Messages has: a system prompt in blocks with cache marks, a dozen
tools, thinking, context management, and its own history again.
"""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compliance.test_codex import answered, call, more
from tests.mock import Asked, Reply, chunk, plain, response, said, stream
from tests.oracle import request_problems
from tests.product import Product, dragoman
from tests.sdk.behind import behind
from tests.upstream.llamacpp import Llamacpp, run_llamacpp
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


async def test_claude_code_works_on_a_model_that_does_not_think(tmp_path) -> None:
    script = Script(tmp_path / "work")

    def reply(asked: Asked) -> Reply:
        if "reasoning_effort" in asked.json:
            return plain(400, {"error": {"message": '"mock" does not support thinking'}})
        return script(asked)

    async with behind(reply) as server:
        *_, end = await run_claude(server.base_url, tmp_path, "Again, please.")
        efforts = [each.json.get("reasoning_effort") for each in server.up.asked]
    assert (end["subtype"], end["result"]) == ("success", "Done.")
    assert efforts[0] is not None, "it asks for thinking"
    assert efforts[1:] == [None] * 2, "it is refused once"


@asynccontextmanager
async def before_llamacpp(
    file: Path, answers: dict[str, list[str]], context: int = CONTEXT
) -> AsyncIterator[tuple[Product, Llamacpp]]:
    """Dragoman before llama.cpp, with a model that gives these answers."""
    write_model(file, answers)
    with ExitStack() as stack:
        started = run_llamacpp(model="mock", slots=1, context=context, file=file)
        llamacpp = await asyncio.to_thread(stack.enter_context, started)
        served = dragoman("--upstream", llamacpp.base_url)
        yield await asyncio.to_thread(stack.enter_context, served), llamacpp


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
    async with before_llamacpp(file, answers) as (product, llamacpp):
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


async def test_claude_code_gets_the_error_of_too_small_a_context(tmp_path) -> None:
    async with before_llamacpp(tmp_path / "mock.gguf", {"Go": ["Done."]}, 8192) as (product, _):
        *_, end = await run_claude(product.base_url, tmp_path, "Go.", code=1)
    assert (end["is_error"], end["terminal_reason"]) == (True, "prompt_too_long")
    assert end["result"].startswith("Prompt is too long")


# ---- what happens on the way -----------------------------------------------------------------

DONE = stream(chunk({"content": "Done."}), chunk(finish="stop"))
IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSu"
    "QmCC"
)
ECHO = json.dumps({"command": "echo one", "description": "Shows it"})


async def test_reasoning_and_parallel_calls_come_back_when_it_resumes(tmp_path) -> None:
    def act(asked: Asked) -> Reply:
        last, number = asked.json["messages"][-1], len(asked.json["messages"])
        if last["role"] == "tool":
            return DONE
        return answered(
            {"reasoning_content": "Two at "},
            {"reasoning_content": "once."},
            *(call(place, f"call_{number}{place}", "Bash") for place in range(2)),
            *(more(place, ECHO) for place in range(2)),
        )

    async with behind(act) as server:
        printed = await run_claude(server.base_url, tmp_path, "Go.")
        id = printed[-1]["session_id"]
        *_, again = await run_claude(server.base_url, tmp_path, "Once more.", "--resume", id)
        asked = [each.json["messages"] for each in server.up.asked]
    blocks = [
        block
        for each in printed
        if each["type"] == "assistant"
        for block in each["message"]["content"]
    ]
    kinds = [block["type"] for block in blocks]
    assert kinds == ["thinking", "tool_use", "tool_use", "text"]
    assert blocks[0]["thinking"] == "Two at once."
    assert (again["result"], again["session_id"]) == ("Done.", id)
    assert len(asked) == 4
    for messages in asked[1:]:
        calling = [message for message in messages if message.get("tool_calls")]
        assert {message["reasoning_content"] for message in calling} == {"Two at once."}
    assert len(calling) == 2
    assert [m["content"] for m in asked[-1] if m["role"] == "tool"] == ["one"] * 4


async def test_encrypted_reasoning_comes_back_to_a_responses_server(tmp_path) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    echo = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "Bash"}
    echo |= {"arguments": ECHO, "status": "completed"}

    def act(asked: Asked) -> Reply:
        done = asked.json["input"][-1]["type"] == "function_call_output"
        items = [said("Done.")] if done else [thought, echo]
        events = [
            {"type": f"response.output_item.{step}", "output_index": place, "item": item}
            for place, item in enumerate(items)
            for step in ("added", "done")
        ]
        completed = {"type": "response.completed", "response": response(*items)}
        return stream(*events, completed, done=False)

    async with behind(act, wire="responses") as server:
        *_, end = await run_claude(server.base_url, tmp_path, "Go.")
        asked = [each.json["input"] for each in server.up.asked]
    assert end["result"] == "Done."
    *_, came, called, result = asked[1]
    assert came["encrypted_content"] == "gAAA"
    assert (called["type"], result["output"]) == ("function_call", "one")


async def test_image_that_it_reads_reaches_a_chat_server(tmp_path) -> None:
    file = tmp_path / "red.png"
    file.write_bytes(base64.b64decode(IMAGE))

    def act(asked: Asked) -> Reply:
        if len(server.up.asked) > 1:
            return DONE
        return answered(call(0, "call_a", "Read"), more(0, json.dumps({"file_path": str(file)})))

    async with behind(act) as server:
        *_, end = await run_claude(server.base_url, tmp_path, "Look.")
        *_, result, user = server.up.asked[-1].json["messages"]
    assert end["result"] == "Done."
    assert (result["role"], user["role"]) == ("tool", "user")
    assert user["content"][-1]["image_url"]["url"] == f"data:image/png;base64,{IMAGE}"


CUT = answered(call(0, "call_a", "Bash"), more(0, '{"command":"touch cut"')).pieces[:3]


@pytest.mark.parametrize(
    "first",
    [
        plain(429, {"error": {"message": "Slow down."}}, "retry-after: 1"),
        plain(503, {"error": {"message": "Busy."}}),
        Reply(CUT),
        Reply(CUT, reset=True),
    ],
    ids=["429", "503", "cut", "reset"],
)
async def test_claude_code_asks_again_where_an_answer_fails(first, tmp_path) -> None:
    """A call that was cut is not run."""
    async with behind(lambda _: first if len(server.up.asked) == 1 else DONE) as server:
        printed = await run_claude(server.base_url, tmp_path, "Go.")
        asked = server.up.asked
    assert printed[-1]["result"] == "Done."
    assert len(asked) == 2
    assert '"type": "tool_use"' not in json.dumps([each.get("message") for each in printed])


async def test_claude_code_reports_where_every_answer_fails(tmp_path) -> None:
    environ = {"CLAUDE_CODE_MAX_RETRIES": "1"}
    async with behind(Reply(CUT)) as server:
        *_, end = await run_claude(server.base_url, tmp_path, "Go.", code=1, **environ)
    assert end["is_error"]
    assert "ended the stream before the answer was finished" in end["result"]


async def test_claude_code_compacts_a_conversation_that_exceeds_the_context(tmp_path) -> None:
    """It does at the words of this protocol, which say what Chat has a code for."""
    problem = {"message": "There are 9 tokens, and 8 fit.", "code": "context_length_exceeded"}
    long = json.dumps({"command": "head -c 20000 /dev/zero | tr '\\0' a", "description": "Fills"})

    def act(asked: Asked) -> Reply:
        _, *messages = asked.json["messages"]
        if len(json.dumps(messages)) > 35_000:
            return plain(400, {"error": problem})
        if json.dumps(messages[-1]).endswith('Go on."}'):
            return answered(call(0, f"call_{len(messages)}", "Bash"), more(0, long))
        return DONE

    async with behind(act) as server:
        await run_claude(server.base_url, tmp_path, "Go on.")
        printed = await run_claude(server.base_url, tmp_path, "Go on.", "--continue")
    assert "compact_boundary" in [each.get("subtype") for each in printed]
    assert printed[-1]["result"] == "Done."
