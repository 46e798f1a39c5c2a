"""`ask`, `chat` and `models`: what is asked of a server, and what is seen of its answer."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dragoman.cli import chat, main
from dragoman.cli.chat import HELP
from dragoman.engines import discover, local, pocket
from dragoman.tools.run import Shown
from tests.agent.hosting import mcp
from tests.cli.stage import Keyboard, Screen, press_ctrl_c, upstream, wait_until_gone
from tests.mock import Mock, Reply, chunk, plain, stream
from tests.upstream.llamacpp import MODEL_FILE, MODEL_FOLDER
from training.tiny import transcripts

LISTING = {"object": "list", "data": [{"id": "first"}, {"id": "second"}]}
HELLO = stream(chunk({"content": "Hel"}), chunk({"content": "lo!"}), chunk(finish="stop"))
DIM, CALL, BAD, PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[31m", "\x1b[0m"


def seen(*words: str, terminal: bool = False, status: int = 0) -> str:
    """What a command shows on a screen."""
    screen = Screen(terminal=terminal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        assert main(words) == status
    return screen.getvalue()


@pytest.fixture
def up() -> Iterator[Mock]:
    """A server that lists two models and says hello."""
    with upstream(HELLO, plain(200, LISTING)) as server:
        yield server


# ---- ask -----------------------------------------------------------------------------------


def test_ask_prints_the_text_only() -> None:
    assert seen("ask", "--at", "script", "count", "to", "3") == "1, 2, 3.\n"


def test_question_is_read_from_standard_input(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Count\nto 2.\n"))
    assert seen("ask", "--at", "script") == "1, 2.\n"


def test_what_is_piped_in_is_appended_to_the_question(monkeypatch, up: Mock) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a file\nof lines\n"))
    seen("ask", "--at", up.base_url, "Summarise", "this:")
    assert up.asked[0].json["messages"] == [
        {"role": "user", "content": "Summarise this:\n\na file\nof lines\n"}
    ]


@pytest.mark.parametrize("stdin", ["terminal", "closed"])
def test_nothing_is_read_from_a_terminal_where_a_question_was_given(stdin, monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def read(self, size: int | None = -1, /) -> str:
            raise AssertionError("waits for a person who has asked already")

    monkeypatch.setattr(sys, "stdin", Terminal() if stdin == "terminal" else None)
    assert seen("ask", "--at", "script", "Count to 2.") == "1, 2.\n"


def test_a_pipe_that_is_never_closed_is_mentioned(monkeypatch, capsys) -> None:
    monkeypatch.setattr(chat, "WAITING", 0.01)
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        monkeypatch.setattr(sys, "stderr", screen := Screen())
        screen.when(chat.SLOW, lambda: os.close(writing))
        assert seen("ask", "--at", "script", "Count to 2.") == "1, 2.\n"
    assert screen.getvalue() == f"{chat.SLOW}\n"


def test_question_without_an_end_is_refused(monkeypatch, capsys, up: Mock) -> None:
    monkeypatch.setattr(chat, "MOST", 5)
    monkeypatch.setattr(sys, "stdin", io.StringIO("123456"))
    assert seen("ask", "--at", up.base_url, status=1) == ""
    assert capsys.readouterr().err == "dragoman: Standard input has more than 5 characters.\n"
    assert not up.asked


def test_empty_question_is_an_error_and_sends_nothing(monkeypatch, capsys, up: Mock) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    assert seen("ask", "--at", up.base_url, status=2) == ""
    assert "nothing was asked" in capsys.readouterr().err
    assert not up.asked


def test_options_are_sent_with_the_question(up: Mock, monkeypatch) -> None:
    monkeypatch.setenv("A_KEY", "canary")
    words = ["--model", "m", "--system", "Be brief.", "--effort", "low", "--key-env", "A_KEY"]
    assert seen("ask", "--at", up.base_url, *words, "Who", "are", "you?") == "Hello!\n"
    (asked,) = up.asked
    assert asked.headers["authorization"] == "Bearer canary"
    assert asked.json["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who are you?"},
    ]
    assert (asked.json["model"], asked.json["reasoning_effort"]) == ("m", "low")


def test_an_effort_that_is_not_known_is_sent_with_a_note(up: Mock, capsys) -> None:
    seen("ask", "--at", up.base_url, "--effort", "ludicrous", "Hi")
    assert up.asked[0].json["reasoning_effort"] == "ludicrous"
    told = "'ludicrous' is sent as it is; efforts that are known: none, minimal, low, medium, high"
    assert told in capsys.readouterr().err
    seen("ask", "--at", up.base_url, "--effort", "high", "Hi")
    assert capsys.readouterr().err == ""


def test_first_listed_model_is_the_default(up: Mock) -> None:
    seen("ask", "--at", up.base_url, "Hi")
    assert up.asked[0].json["model"] == "first"
    assert "reasoning_effort" not in up.asked[0].json
    assert "authorization" not in up.asked[0].headers


def answering(*deltas: dict[str, Any], finish: str = "stop") -> Reply:
    return stream(*map(chunk, deltas), chunk(finish=finish))


def call(name: str, arguments: str, index: int = 0) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": f"call_{index}", "function": function}]}


CUSTOM = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
LOOKS: dict[str, tuple[Reply, str]] = {
    "text": (answering({"content": "Hello."}), "Hello.\n"),
    "reasoning": (
        answering({"reasoning_content": "Hm."}, {"content": "Hello."}),
        f"{DIM}Hm.{PLAIN}\nHello.\n",
    ),
    "a call": (
        answering({"content": "So."}, call("look", '{"at":1}'), finish="tool_calls"),
        f'So.\n{CALL}[look] {{"at":1}}{PLAIN}\n',
    ),
    "calls at the same time": (
        answering(
            call("a", '{"x":'),
            call("b", '{"y":', 1),
            call("", "1}"),
            call("", "2}", 1),
            finish="tool_calls",
        ),
        f'{CALL}[a] {{"x":1}}\n[b] {{"y":2}}{PLAIN}\n',
    ),
    "a custom call": (
        answering({"tool_calls": [{"index": 0, **CUSTOM}]}, finish="tool_calls"),
        f"{CALL}[patch] *** Begin{PLAIN}\n",
    ),
    "a refusal": (answering({"refusal": "No."}), "No.\n"),
    "a cut": (
        answering({"content": "So"}, finish="length"),
        f"So\n{BAD}(cut short: length){PLAIN}\n",
    ),
}


def without_colours(text: str) -> str:
    for colour in (DIM, CALL, BAD, PLAIN):
        text = text.replace(colour, "")
    return text


@pytest.mark.parametrize("name", LOOKS)
def test_each_kind_of_delta_is_rendered_with_colours_on_a_terminal_only(name) -> None:
    reply, look = LOOKS[name]
    with upstream(reply) as up:
        words = ("ask", "--at", up.base_url, "-m", "m", "Hi")
        assert seen(*words) == without_colours(look)
        shown = seen(*words, terminal=True)
    assert without_colours(shown) == without_colours(look)
    assert painted(shown) == painted(look)


def painted(text: str) -> list[tuple[str, str]]:
    """Every character that can be seen, with the colour it has."""
    colour, found, rest = PLAIN, [], text
    while rest:
        code = next((c for c in (DIM, CALL, BAD, PLAIN) if rest.startswith(c)), None)
        if code is not None:
            colour, rest = code, rest.removeprefix(code)
            continue
        if not rest[0].isspace():
            found.append((rest[0], colour))
        rest = rest[1:]
    return found


def test_failed_answer_prints_its_fault_to_stderr(up: Mock, capsys) -> None:
    up.handler = lambda asked: plain(429, {"error": {"message": "Slow down, please."}})
    shown = seen("ask", "--at", up.base_url, "Hi", status=1)
    assert "Slow down" not in shown
    assert capsys.readouterr().err == "dragoman: Slow down, please.\n"


def test_cut_answer_prints_the_text_so_far(up: Mock, capsys) -> None:
    up.handler = lambda asked: stream(chunk({"content": "Hel"}), done=False)
    assert seen("ask", "--at", up.base_url, "Hi", status=1) == "Hel\n"
    assert "ended the stream" in capsys.readouterr().err


# ---- whom to ask ---------------------------------------------------------------------------


def test_discovered_server_is_asked(up: Mock, monkeypatch) -> None:
    monkeypatch.setattr(discover, "PORTS", (up.port,))
    monkeypatch.setenv("A_KEY", "canary")
    assert seen("ask", "--key-env", "A_KEY", "Hi") == "Hello!\n"
    assert up.asked[0].headers["authorization"] == "Bearer canary"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["ask", "Hi"], "A server on port {} asks for a key: name the variable that holds it with"),
        (["models", "--key-env", "WRONG"], "The server on port {} refused the key in WRONG."),
    ],
)
def test_a_server_that_asks_for_a_key_is_not_passed_over(
    words, problem, up: Mock, monkeypatch, capsys
) -> None:
    right = "Bearer right-key"
    up.probed = lambda asked: (
        plain(200, LISTING)
        if asked.headers.get("authorization") == right
        else plain(401, {"error": {"message": "This server asks for a key."}})
    )
    monkeypatch.setattr(discover, "PORTS", (up.port,))
    monkeypatch.setenv("RIGHT", "right-key")
    monkeypatch.setenv("WRONG", "wrong-key")
    assert seen(*words, status=1) == ""
    assert f"dragoman: {problem.format(up.port)}" in capsys.readouterr().err
    assert seen("ask", "--key-env", "RIGHT", "--model", "m", "Hi") == "Hello!\n"
    assert (up.asked[0].headers["authorization"], up.asked[0].json["model"]) == (right, "m")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_key_whose_server_is_not_found_asks_no_other(
    elsewhere, up: Mock, monkeypatch, capsys
) -> None:
    """Neither one to which the environment has another key, nor the demonstration."""
    monkeypatch.setattr(discover, "PORTS", ())
    monkeypatch.setenv("TEAM_KEY", "team-key")
    if elsewhere:
        monkeypatch.setenv("OPENAI_API_KEY", "other-key")
        monkeypatch.setenv("OPENAI_BASE_URL", up.base_url)
    assert seen("ask", "--key-env", "TEAM_KEY", "Hi", status=1) == ""
    assert "the key in TEAM_KEY is for: name it with --at." in capsys.readouterr().err
    assert not up.asked
    if elsewhere:
        assert seen("ask", "--key-env", "OPENAI_API_KEY", "Hi") == "Hello!\n"


@pytest.mark.parametrize("words", [["ask", "Hi"], ["chat"]])
@pytest.mark.parametrize("target", ["pocket", "script"])
def test_a_model_that_is_not_there_is_refused(words, target, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    main([*words, "--at", target, "--model", "nope"])
    problem = f"There is no model 'nope'. The models are: {target}."
    assert problem in capsys.readouterr().err


def test_the_environment_names_a_server_and_its_key(up: Mock, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", up.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    assert seen("ask", "Hi") == "Hello!\n"
    assert up.asked[0].headers["authorization"] == "Bearer canary"


def test_without_a_server_the_demo_engine_answers(monkeypatch, capsys) -> None:
    monkeypatch.setattr(local, "available", lambda: False)
    assert seen("ask", "Count to two.") == "1, 2.\n"
    said = "No model server found: this is a demo, not a model (script)."
    assert said in capsys.readouterr().err


def test_without_a_server_the_pocket_model_answers(capsys) -> None:
    assert seen("ask", "Count to three.") == "1, 2, 3.\n"
    said = "No model server found: this is a demonstration model (pocket)."
    assert said in capsys.readouterr().err


def test_model_that_cannot_run_is_reported(monkeypatch, capsys) -> None:
    monkeypatch.setattr(pocket, "available", lambda: False)
    seen("ask", "--at", "pocket", "Hello!", status=1)
    assert "dragoman: The pocket model needs the extra local: pip" in capsys.readouterr().err


def test_gguf_file_is_asked() -> None:
    assert (
        seen("ask", "--at", f"gguf:{MODEL_FOLDER / MODEL_FILE}", "Hello!")
        == f"{transcripts.HELLO}\n"
    )


PROBLEMS: dict[str, tuple[list[str], str]] = {
    "no file": (["--at", "gguf:none.gguf"], "none.gguf is no file."),
    "no address": (["--at", "nonsense"], "nonsense: 'nonsense' is neither an http(s) address"),
    "no scheme": (
        ["--at", "localhost:80"],
        "localhost:80: 'localhost:80' is neither an http(s) address nor a name; did you mean ",
    ),
    "half an address": (["--at", "http://[::1"], "http://[::1: the URL has a malformed host"),
    "no key": (
        ["--at", "http://127.0.0.1:9", "--key-env", "NO_KEY"],
        "The environment variable NO_KEY should hold the key",
    ),
    "a broken key": (
        ["--at", "http://127.0.0.1:9", "--key-env", "BROKEN"],
        "The key in the environment variable BROKEN may have printable ASCII only.",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("command", ["ask", "chat", "models"])
def test_bad_target_or_key_is_reported(command, name, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi"))
    monkeypatch.setenv("BROKEN", "canary\nkey")
    words, problem = PROBLEMS[name]
    assert main([command, *words]) == 1
    assert capsys.readouterr().err.startswith(f"dragoman: {problem}")


def test_bad_url_in_the_environment_is_reported(monkeypatch, capsys) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:9/v1")
    assert main(["ask", "Hi"]) == 1
    assert "'localhost:9/v1' is neither" in capsys.readouterr().err


def test_unreachable_server_is_reported(capsys) -> None:
    for words in (["ask", "-m", "m", "Hi"], ["models"]):
        assert main([*words, "--at", "http://127.0.0.1:9/v1"]) == 1
        told = capsys.readouterr().err
        assert "cannot be reached" in told
        assert "127.0.0.1:9" in told


# ---- models --------------------------------------------------------------------------------


def test_models_are_listed_with_their_server(up: Mock) -> None:
    assert seen("models", "--at", up.base_url).splitlines() == [
        "  MODEL   ANSWERED BY",
        f"  first   {up.base_url}  (generic)",
        f"  second  {up.base_url}  (generic)",
    ]


def test_all_models_are_listed_however_many(up: Mock) -> None:
    names = [f"model-{number}" for number in range(50)]
    up.probed = lambda asked: plain(200, {"data": [{"id": name} for name in names]})
    assert [line.split()[0] for line in seen("models", "--at", up.base_url).splitlines()] == [
        "MODEL",
        *names,
    ]


def test_demo_engine_lists_one_model() -> None:
    assert seen("models", "--at", "script").splitlines()[1:] == [
        "  script  this program  (a demo, not a model)"
    ]


# ---- chat ----------------------------------------------------------------------------------

Typed = Callable[..., None]


@pytest.fixture
def typed(monkeypatch) -> Typed:
    """Type these lines, each when it is waited for, and then Ctrl-D."""
    return lambda *lines: monkeypatch.setattr(sys, "stdin", Keyboard(*lines))


def test_chat_sends_the_whole_conversation_until_ctrl_d(up: Mock, typed: Typed) -> None:
    typed("Hi", "  ", "And now?")
    assert seen("chat", "--at", up.base_url) == "> Hello!\n> > Hello!\n> \n"
    assert [asked.json["messages"] for asked in up.asked] == [
        [{"role": "user", "content": "Hi"}],
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello!"}]},
            {"role": "user", "content": "And now?"},
        ],
    ]


def test_chat_says_what_it_talks_to_and_has_commands(up: Mock, typed: Typed, capsys) -> None:
    words = "/etc/hosts is a file"
    typed("/help", "Hi", "/new", "/what", "/model x", words, " /tmp too", "/quit", "never sent")
    shown = seen("chat", "--at", up.base_url)
    assert capsys.readouterr().err == (
        f"first ({up.base_url}). /help lists the commands; Ctrl-D ends.\n"
    )
    unknown = "".join(f"> There is no {word}.\n{HELP}\n" for word in ("/what", "/model x"))
    assert shown == f"> {HELP}\n> Hello!\n> {unknown}> Hello!\n> Hello!\n> "
    said = [[each["content"] for each in asked.json["messages"]] for asked in up.asked]
    assert [each[0] for each in said] == ["Hi", words, words]
    assert said[-1][-1] == " /tmp too"


@pytest.mark.parametrize("end", [(), ("/quit",)])
def test_chat_ends_with_1_where_nothing_was_answered(end, up: Mock, typed: Typed) -> None:
    up.handler = plain(400, {"error": {"message": "Not today."}})
    typed("Hi", "And now?", *end)
    assert "Hello" not in seen("chat", "--at", up.base_url, status=1)
    typed("/help", *end)
    seen("chat", "--at", up.base_url)


@pytest.mark.parametrize("words", [["-m", "mine"], []])
def test_chat_begins_without_a_listing(words, up: Mock, typed: Typed, capsys) -> None:
    up.probed = lambda asked: plain(500, {})
    typed("/quit")
    seen("chat", "--at", up.base_url, *words)
    name = "mine" if words else "No model is listed"
    assert capsys.readouterr().err == f"{name}. /help lists the commands; Ctrl-D ends.\n"


def test_lines_of_a_chat_are_edited_on_a_terminal() -> None:
    """The left arrow moves, and the upper one brings the line back."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "dragoman", "chat", "--at", "script"]
    environ = {**os.environ, "TERM": "xterm"}
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        running = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
        os.close(theirs)
        for cue, keys in (
            (b"ends.", b"Count to 32\x1b[D\x7f\r"),
            (b"1, 2.", b"\x1b[A\r"),
            (b"1, 2.", b"\x04"),
        ):
            shown = b""
            while cue not in shown or not shown.endswith(b"> "):
                shown += terminal.read(1_000)
            terminal.write(keys)
        assert running.wait(30) == 0


def test_failed_turn_is_left_out_of_the_conversation(up: Mock, typed: Typed, capsys) -> None:
    replies = iter([plain(500, {"error": {"message": "Broken."}}), HELLO])
    up.handler = lambda asked: next(replies)
    typed("Hi", "Hello?")
    assert seen("chat", "--at", up.base_url) == "> > Hello!\n> \n"
    assert "Broken." in capsys.readouterr().err
    assert up.asked[1].json["messages"] == [{"role": "user", "content": "Hello?"}]


def test_ctrl_c_stops_the_answer_and_the_partial_text_stays(
    up: Mock, monkeypatch, typed: Typed
) -> None:
    replies = iter([stream(chunk({"content": "Hel"}), done=False, hang=True), HELLO])
    up.handler = lambda asked: next(replies)
    screen = Screen()
    screen.when("Hel", press_ctrl_c)
    monkeypatch.setattr(sys, "stdout", screen)
    typed("Hi", "Go on.")
    assert main(["chat", "--at", up.base_url]) == 0
    assert screen.getvalue() == "> Hel\n> Hello!\n> \n"
    wait_until_gone(up.asked[0])
    assert up.asked[1].json["messages"][1:] == [
        {"role": "assistant", "content": [{"type": "text", "text": "Hel"}]},
        {"role": "user", "content": "Go on."},
    ]


def test_ask_that_is_stopped_by_ctrl_c_has_not_succeeded(up: Mock, monkeypatch) -> None:
    up.handler = lambda asked: stream(chunk({"content": "Hel"}), done=False, hang=True)
    screen = Screen()
    screen.when("Hel", press_ctrl_c)
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["ask", "--at", up.base_url, "Hi"]) == 130


def test_ctrl_c_at_the_prompt_ends_it(typed: Typed) -> None:
    typed("count to 2", press_ctrl_c)
    assert seen("chat", "--at", "script", status=130) == "> 1, 2.\n> "


def test_chat_works_without_signal_handlers() -> None:
    with ThreadPoolExecutor(1) as pool:
        screen = pool.submit(seen, "ask", "--at", "script", "count to 3").result()
    assert screen == "1, 2, 3.\n"


# ---- tools ---------------------------------------------------------------------------------

TOOLS = """
from dragoman import tool

@tool(approval="always")
def pay(amount: int) -> str:
    "Pay an amount."
    return f"paid {amount}"
"""
AGENT = f"{TOOLS}\nfrom dragoman import Agent\nother = agent = Agent('URL', tools=[pay])\n"


def calling(up: Mock) -> None:
    """Have the model call `pay`, and then say what came of it."""

    def answer(asked: Any) -> Reply:
        said = asked.json["messages"][-1]
        if said["role"] == "tool":
            return answering({"content": f"It is {said['content']}"})
        return answering(call("pay", '{"amount": 5}'), finish="tool_calls")

    up.handler = answer


@pytest.mark.parametrize("command", ["chat", "agent"])
@pytest.mark.parametrize(("said", "result"), [("y", "paid 5"), ("", "did not allow")])
def test_calls_that_need_consent_are_asked_about(
    command, said, result, up: Mock, typed: Typed, tmp_path
) -> None:
    file = tmp_path / "tools.py"
    file.write_text(TOOLS if command == "chat" else AGENT.replace("URL", up.base_url))
    calling(up)
    typed("Pay.", said)
    words = ["chat", "--at", up.base_url, "--tool", str(file)]
    shown = seen(*(words if command == "chat" else ["agent", str(file)]))
    assert 'Allow pay {"amount": 5}? [y/N] ' in shown
    assert f"{result}" in shown.partition("It is ")[2]


@pytest.mark.parametrize("place", ["https://shop.example", "stdio:python shop.py"])
def test_tools_of_the_server_run_here_and_their_calls_are_shown(
    place, up: Mock, typed: Typed, monkeypatch
) -> None:
    async def buy(text: str) -> Shown:
        return Shown("bought", {"output": "bought"})

    space = mcp(buy)
    monkeypatch.setattr(chat, "hosted", lambda tools, environ: [space])
    typed("Buy.", "yes", "Again.", "n")

    def answer(asked: Any) -> Reply:
        said, tools = asked.json["messages"][-1], asked.json["tools"]
        if said["role"] == "tool":
            return answering({"content": f"It is {said['content']}"})
        return answering(call(tools[0]["function"]["name"], "{}"), finish="tool_calls")

    up.handler = answer
    shown = seen("chat", "--at", up.base_url, "--tool", f"mcp:shop={place}")
    assert shown.count("Allow shop.buy {}? [y/N] ") == 2
    assert "[mcp_call] buy" in shown
    assert "It is bought" in shown
    assert "It is The user did not allow this call." in shown


def test_a_file_sees_no_words_of_the_command(typed: Typed, tmp_path, monkeypatch) -> None:
    file = tmp_path / "mine.py"
    monkeypatch.setattr("sys.argv", ["dragoman", "agent", str(file)])
    file.write_text(
        "import sys\nfrom dragoman import Agent\nagent = Agent(*sys.argv[1:], 'script')\n"
    )
    typed("Count to three.")
    assert "1, 2, 3." in seen("agent", str(file))


def test_a_file_without_a_tool_is_refused(capsys, tmp_path) -> None:
    file = tmp_path / "tools.py"
    file.write_text("def pay(amount: int) -> str: ...\n")
    assert main(["chat", "--at", "script", "--tool", str(file)]) == 1
    assert capsys.readouterr().err == f"dragoman: {file} has no tool (a function with `@tool`).\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", "makes 0 agents"),
        ("from dragoman import Agent\na, b = Agent('script'), Agent('script')", "makes 2 agents"),
        ("import nothing_like_it", "cannot be run: No module named 'nothing_like_it'"),
        ("x =", "cannot be run: invalid syntax"),
    ],
)
def test_a_file_without_an_agent_is_refused(text, problem, tmp_path, capsys) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert main(["agent", str(file)]) == 1
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("python=bubblewrap", ("code_interpreter", {"container": {"type": "auto"}})),
        ("web=searxng:http://a", ("web_search", {})),
        ("files", ("file_search", {})),
        ("mcp:shop=https://a", ("mcp", {"server_label": "shop"})),
    ],
)
def test_a_tool_is_asked_for_as_a_request_does(use, expected) -> None:
    tool = chat._named(use)
    assert (tool.kind, tool.value) == expected
