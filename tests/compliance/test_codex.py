"""A turn of a coding agent (Codex), as it asks over Responses, before a server that has only Chat.

Its request is the fullest there is: long instructions, tools of every kind, sealed reasoning, and
its own items again, just as they were given, with the null fields that its types add. At the end
Codex itself is run, over server-sent events and over a WebSocket.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.engines.find_format import by_name
from dragoman.engines.token import TokenEngine, from_next_token
from dragoman.formats.prompt import ByteTokenizer, Control, Prompt
from dragoman.server.testing import transport
from tests.cases import cases
from tests.mock import Asked, Reply, chunk, mock, plain, stream
from tests.oracle import request_problems
from tests.product import SOURCE, dragoman
from tests.sdk.behind import Behind, behind
from tests.sdk.blocks import blocks, text, thinking, tool_use

DEVELOPER = "You are a coding agent running in a terminal. Follow the house rules. " * 243
"""17 kB of instructions."""
TURN = cases(__file__, "codex")
"""A request of the agent but for its model and its developer message: what was said so far as the
agent resends it, its tools, and its settings."""
PAST, TOOLS = TURN["input"], TURN["tools"]
PATCH: str = PAST[8]["input"]
GRAMMAR: str = TOOLS[1]["format"]["definition"]


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def turn(model: str = "mock", input: list[dict[str, Any]] = PAST) -> dict[str, Any]:
    """The body of a turn."""
    content = [{"type": "input_text", "text": DEVELOPER}]
    developer = {"type": "message", "role": "developer", "content": content}
    return {**TURN, "model": model, "input": [developer, *input]}


def answered(*deltas: dict[str, Any]) -> Any:
    usage = {"prompt_tokens": 5000, "completion_tokens": 40, "total_tokens": 5040}
    counted = {**chunk(), "choices": [], "usage": usage}
    return stream(*map(chunk, deltas), chunk(finish="tool_calls"), counted)


def call(index: int, id: str, name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": ""}
    return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}


def more(index: int, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def collected(text: str) -> list[dict[str, Any]]:
    """What Codex takes out of a stream: finished items, and a completed response with its usage."""
    lines = text.split("\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if "data: {" in line]
    (end,) = [event["response"] for event in events if event["type"] == "response.completed"]
    assert end["id"]
    assert end["usage"]["total_tokens"] >= 0
    assert events[-1]["type"] == "response.completed"
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


async def ask(server: Behind, body: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The items that the agent takes out of the stream, and what it is told was lost."""
    headers = {"user-agent": "codex_cli_rs/0.169.0", "originator": "codex_cli_rs"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as client:
        answer = await client.post(f"{server.base_url}/responses", json=body)
    assert answer.status_code == 200, answer.text
    return collected(answer.text), answer.headers["x-dragoman-loss"]


async def test_p16_codex_turn_is_translated_for_a_chat_server() -> None:
    halves = json.dumps({"input": PATCH})[:30], json.dumps({"input": PATCH})[30:]
    said = answered(
        {"reasoning_content": "Search "},
        {"reasoning_content": "first."},
        {"content": "Searching."},
        call(0, "call_a", "mcp__docs__search"),
        call(1, "call_b", "apply_patch"),
        more(0, '{"query":'),
        more(1, halves[0]),
        more(0, '"style"}'),
        more(1, halves[1]),
    )
    async with behind(said) as server:
        items, told = await ask(server, turn())
        (asked,) = server.up.asked
    thought, message, search, patch = items
    assert thought["content"] == [{"type": "reasoning_text", "text": "Search first."}]
    assert message["content"][0]["text"] == "Searching."
    assert (search["type"], search["name"], search["namespace"], search["arguments"]) == (
        "function_call",
        "search",
        "mcp__docs",
        '{"query":"style"}',
    )
    assert (patch["type"], patch["name"], patch["input"]) == (
        "custom_tool_call",
        "apply_patch",
        PATCH,
    )
    # What a Chat server cannot be asked for is told, each by its name.
    for lost in ("tools[3]", "include[reasoning.encrypted_content]", "client_metadata"):
        assert lost in told
    assert "tools[4]" not in told
    judge(asked.json)


def judge(body: dict[str, Any]) -> None:
    """The request is a proper one of Chat, and nothing of the conversation is missing."""
    assert request_problems(body, "chat") == []
    names = [tool["function"]["name"] for tool in body["tools"]]
    assert names == ["shell", "apply_patch", "mcp__docs__search", "mcp__docs__fetch"]
    assert GRAMMAR in body["tools"][1]["function"]["description"]
    messages = body["messages"]
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "user",
    ]
    assert messages[0]["content"].startswith("You are Codex.")
    assert DEVELOPER in messages[0]["content"]
    assert messages[3]["content"] == "Let me look."
    assert [each["function"] for each in messages[3]["tool_calls"]] == [
        {"name": "shell", "arguments": '{"command":"cat a.py"}'},
        {"name": "mcp__docs__search", "arguments": '{"query":"style"}'},
    ]
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    assert results["call_1"] == "a = 1\n"
    assert "Use spaces." in json.dumps(results["call_2"])
    assert results["call_3"] == "Done."
    patched = messages[6]["tool_calls"][0]["function"]
    assert (patched["name"], json.loads(patched["arguments"])) == ("apply_patch", {"input": PATCH})


async def test_next_turn_begins_with_the_bytes_of_the_one_before() -> None:
    """The items go in again as they came out, and a cache of prompts upstream stays good."""
    said = answered(
        {"content": "Searching."}, call(0, "call_a", "shell"), more(0, '{"command":""}')
    )
    async with behind(said) as server:
        items, _ = await ask(server, turn())
        again = [{**item, "status": None} for item in items]
        result = {"type": "function_call_output", "call_id": "call_a", "output": "ok"}
        await ask(server, turn(input=[*PAST, *again, result]))
        first, second = (asked.body for asked in server.up.asked)
    end = first.rindex(b"Now search the docs, and patch it back.")
    conversation = first[:end]
    assert len(conversation) > len(DEVELOPER)
    assert second.startswith(conversation)


async def test_compaction_trigger_gives_one_item_that_replaces_the_history() -> None:
    """Sent by Codex when its context is full, to a provider whose name is OpenAI."""
    said = answered({"content": "a is 2 now; patch it back."})
    async with behind(said) as server:
        items, _ = await ask(server, turn(input=[*PAST, {"type": "compaction_trigger"}]))
        await ask(server, turn(input=[*items, user("Go on.")]))
        first, second = (asked.json["messages"] for asked in server.up.asked)
    (item,) = items
    assert (item["type"], item.keys()) == ("compaction", {"type", "id", "encrypted_content"})
    assert "Write a summary" in first[-1]["content"]
    assert [message["role"] for message in second] == ["system", "user", "user"]
    assert "a is 2 now; patch it back." in second[1]["content"]
    async with behind(answered({"content": "Done."})) as server:
        _, told = await ask(server, turn(input=[{"type": "compaction_trigger"}, *PAST]))
    assert "input[1]" in told


# ---- before a model of this process --------------------------------------------------------

SEARCHED = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
"""What a hosted model did earlier in the conversation, as the agent resends it."""
HERMES_CALLS = [
    "<think>", "Search first.", "</think>", "Searching.", "<tool_call>",
    json.dumps({"name": "mcp__docs__search", "arguments": {"query": "style"}}),
    "</tool_call>", "<tool_call>",
    json.dumps({"name": "apply_patch", "arguments": {"input": PATCH}}),
    "</tool_call>", "<|im_end|>",
]  # fmt: skip
HARMONY_CALL = [
    "<|channel|>", "analysis", "<|message|>", "Search first.", "<|end|>",
    "<|start|>", "assistant", "<|channel|>", "commentary", "<|message|>", "Searching.", "<|end|>",
    "<|start|>", "assistant", "<|channel|>", "commentary to=mcp__docs.search ", "<|constrain|>",
    "json", "<|message|>", '{"query": "style"}', "<|call|>",
]  # fmt: skip


def local(format: str, pieces: list[str], context: int | None = None) -> TokenEngine:
    """An engine of a function that writes an answer every time, and remembers its prompts."""
    marks = [each for each in pieces if each.startswith("<") and each.endswith(">")]
    tokenizer = ByteTokenizer([*dict.fromkeys(marks), "<|im_start|>"])
    script = Prompt(tuple(Control(p) if p in marks else p for p in pieces)).ids(tokenizer)

    def next_token(tokens: list[int], temperature: float, new_request: bool) -> int:
        nonlocal left
        left = iter(script) if new_request else left
        return next(left)

    left = iter(script)
    model = from_next_token(next_token, context=context)
    ends = [pieces[-1]] if format == "hermes" else []
    return TokenEngine(by_name(format), model, tokenizer, ends=ends)


async def ask_local(engine: TokenEngine, body: dict[str, Any]) -> httpx2.Response:
    headers = {"user-agent": "codex_cli_rs/0.169.0"}
    async with httpx2.AsyncClient(headers=headers, transport=transport(engine)) as client:
        return await client.post("http://dragoman/v1/responses", json=body)


@pytest.mark.parametrize(
    ("format", "pieces", "calls"), [("hermes", HERMES_CALLS, 2), ("harmony", HARMONY_CALL, 1)]
)
async def test_p16_codex_turn_is_answered_by_a_token_model(format, pieces, calls) -> None:
    engine = local(format, pieces)
    items: list[dict[str, Any]] = []
    for _ in range(2):  # the second time with what came of the first
        answer = await ask_local(engine, turn("local", [*PAST, SEARCHED, *items]))
        assert answer.status_code == 200, answer.text
        thought, message, search, *patches = collected(answer.text)
        assert thought["content"] == [{"type": "reasoning_text", "text": "Search first."}]
        assert message["content"][0]["text"] == "Searching."
        assert (search["name"], search["namespace"]) == ("search", "mcp__docs")
        assert search["arguments"] == '{"query": "style"}'
        patched = [(each["type"], each["name"], each["input"]) for each in patches]
        assert patched == [("custom_tool_call", "apply_patch", PATCH)] * (calls - 1)
        items = [thought, message, search, *patches]
        items += [{"type": "function_call_output", "call_id": search["call_id"], "output": "No."}]
        told = answer.headers["x-dragoman-loss"]
        for lost in ("tools[3]", f"input[{len(PAST) + 1}]"):  # the search, now and then
            assert lost in told
    await engine.close()


# ---- Codex itself ----------------------------------------------------------------------------

CODEX = Path(sys.prefix, "agents", "node_modules", ".bin", "codex")
"""Where the Makefile has npm install it."""
CONFIG = """
model = "mock"
model_provider = "dragoman"
check_for_update_on_startup = false
analytics.enabled = false

[model_providers.dragoman]
name = "Dragoman"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
supports_websockets = {websockets}
"""
COMMAND = "echo It works | tee proof.txt"


def act(asked: Asked) -> Reply:
    """A model that runs one command, and is done when it has the output."""
    if asked.path != "/v1/chat/completions":
        return plain(404, {"error": {"message": "no such path"}})
    if asked.json["messages"][-1]["role"] == "tool":
        return answered({"content": "Done."})
    arguments = json.dumps({"cmd": COMMAND})
    halves = arguments[:9], arguments[9:]
    return answered(call(0, "call_a", "exec_command"), *(more(0, half) for half in halves))


@asynccontextmanager
async def tapped(port: int) -> AsyncIterator[tuple[int, list[bytearray]]]:
    """A port that leads to this one, and what came in through it, connection by connection."""
    heard: list[bytearray] = []

    async def pass_on(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, copy: bytearray
    ) -> None:
        with suppress(ConnectionError):  # the other side has left
            while data := await reader.read(65536):
                copy += data
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(bytearray())
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, forth, heard[-1]), pass_on(back, writer, bytearray()))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as listener:
        yield listener.sockets[0].getsockname()[1], heard


async def run_codex(
    home: Path, *words: str, by: Sequence[str | Path] = (CODEX,)
) -> list[dict[str, Any]]:
    """The events that it prints, when started by these words. It reaches nothing but this
    machine."""
    nowhere = "http://127.0.0.1:9"
    path = f"{CODEX.parent}:{os.environ['PATH']}"
    environ = {"PATH": path, "HOME": str(home), "NO_PROXY": "127.0.0.1", **SOURCE}
    process = await asyncio.create_subprocess_exec(
        *by,
        *("exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", *words),
        env={**environ, "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere},
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
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.skipif(not CODEX.exists(), reason="needs npm, by which `make test` installs Codex")
@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_codex_runs_a_command_and_finishes(transport, tmp_path) -> None:
    socket = transport == "websocket"
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    with ExitStack() as stack:
        async with mock(act) as up:
            served = dragoman("--upstream", up.base_url)
            product = await asyncio.to_thread(stack.enter_context, served)
            async with tapped(product.port) as (port, heard):
                config = CONFIG.format(port=port, websockets=json.dumps(socket))
                (home / ".codex").mkdir(parents=True)
                (home / ".codex" / "config.toml").write_text(config)
                events = await run_codex(home, "--cd", str(work), "Show that it works.")
    done = [event["item"] for event in events if event["type"] == "item.completed"]
    ran, said = (item for item in done if item["type"] != "error")  # it knows no model `mock`
    assert (ran["type"], ran["exit_code"]) == ("command_execution", 0)
    assert ran["aggregated_output"] == (work / "proof.txt").read_text() == "It works\n"
    assert (said["type"], said["text"]) == ("agent_message", "Done.")
    assert events[-1]["type"] == "turn.completed"
    assert events[-1]["usage"]["input_tokens"] == 2 * 5000
    # A fallback would have asked by POST.
    assert any(b"POST /v1/responses " in sent for sent in heard) is not socket
    assert any(b"GET /v1/responses " in sent for sent in heard) is socket
    assert [asked.path for asked in up.asked] == ["/v1/chat/completions"] * 2
    for asked in up.asked:
        assert request_problems(asked.json, "chat") == []
    result = up.asked[-1].json["messages"][-1]
    assert "It works" in result["content"]


@pytest.mark.skipif(not CODEX.exists(), reason="needs npm, by which `make test` installs Codex")
async def test_dragoman_run_codex_edits_a_file(tmp_path) -> None:
    """One command starts both. The configuration in the user's home, which Codex would refuse, is
    not read, and nothing is added to it."""
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text("no TOML")
    (work / "note.txt").write_text("alpha\n")
    edit = json.dumps({"cmd": f"sed -i s/alpha/beta/ {work}/note.txt"})

    def act(asked: Asked) -> Reply:
        if asked.json["messages"][-1]["role"] == "tool":
            return answered({"content": "Done."})
        return answered(call(0, "call_a", "exec_command"), more(0, edit))

    async with mock(act) as up:
        by = (sys.executable, "-m", "dragoman", "run", "codex", "--upstream", up.base_url)
        words = ("--model", "mock", "--", "--cd", str(work))
        events = await run_codex(home, "Edit it.", by=(*by, *words))
    assert (work / "note.txt").read_text() == "beta\n"
    assert events[-1]["type"] == "turn.completed"
    assert [asked.json["model"] for asked in up.asked] == ["mock", "mock"]
    assert [each.name for each in (home / ".codex").iterdir()] == ["config.toml"]
    assert list((home / ".local" / "share" / "dragoman" / "run").iterdir()) == []


def messages(asked: Asked) -> Reply:
    """The same model behind a server of Messages."""
    if asked.path != "/v1/messages":
        return plain(404, {"error": {"message": "no such path"}})
    last = asked.json["messages"][-1]["content"]
    ran = isinstance(last, list) and last[-1]["type"] == "tool_result"
    usage = {"input_tokens": 1000, "cache_read_input_tokens": 4000, "output_tokens": 40}
    thought = thinking("Run it.", "c2lnbmVk")
    if ran:
        return blocks(thought, text("Done."), usage=usage)(asked)
    call = tool_use("exec_command", {"cmd": COMMAND})
    return blocks(thought, call, reason="tool_use", usage=usage)(asked)


@pytest.mark.skipif(not CODEX.exists(), reason="needs npm, by which `make test` installs Codex")
async def test_codex_runs_a_command_on_a_server_of_messages(tmp_path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    with ExitStack() as stack:
        async with mock(messages) as up:
            served = dragoman("--upstream", up.base_url, "--profile", "anthropic")
            product = await asyncio.to_thread(stack.enter_context, served)
            (home / ".codex").mkdir(parents=True)
            config = CONFIG.format(port=product.port, websockets="false")
            (home / ".codex" / "config.toml").write_text(config)
            events = await run_codex(home, "--cd", str(work), "Show that it works.")
    done = [event["item"] for event in events if event["type"] == "item.completed"]
    kinds = [item["type"] for item in done if item["type"] != "error"]
    assert kinds == ["reasoning", "command_execution", "reasoning", "agent_message"]
    assert (work / "proof.txt").read_text() == "It works\n"
    assert events[-1]["usage"]["input_tokens"] == 2 * 5000
    assert events[-1]["usage"]["cached_input_tokens"] == 2 * 4000
    first, second = (asked.json for asked in up.asked)
    assert all(asked.headers["anthropic-version"] == "2023-06-01" for asked in up.asked)
    # What it thought goes back with its signature, before the call it led to.
    *_, turn, result = second["messages"]
    assert turn["content"][0] == {
        "type": "thinking",
        "thinking": "Run it.",
        "signature": "c2lnbmVk",
    }
    assert turn["content"][1]["id"] == result["content"][0]["tool_use_id"] == "toolu_1"
    assert second["tools"] == first["tools"]
    assert second["system"] == first["system"]
    assert first["system"][-1]["cache_control"] == {"type": "ephemeral"}
