"""`dragoman tokens`: what is shown for which words, with colours where a person looks."""

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.cli import main
from dragoman.engines import pocket
from tests.cli.stage import Screen

CALL = (
    "<|channel|>analysis<|message|>A wish.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.get_weather <|constrain|>json<|message|>{"city":"Rome"}<|call|>'
)


def shown(*words: str, terminal: bool = False, status: int = 0) -> list[str]:
    screen = Screen(terminal=terminal)
    with redirect_stdout(screen):
        assert main(["tokens", *words]) == status
    return screen.getvalue().splitlines()


def rows(lines: list[str]) -> list[list[str]]:
    """Kind, text and rest of each line of a token, ids left out."""
    return [line[9:].split(None, 2) for line in lines if line[9:].startswith(KINDS)]


KINDS = ("control", "text", "reasoning", "call")


def test_alone_it_shows_how_the_pocket_model_calls_a_tool() -> None:
    lines = shown()
    assert lines[0].startswith("Prompt in hermes: ")
    middle = lines.index("")
    assert ["control", "<|im_start|>"] in rows(lines[:middle])
    assert any("call of get_weather; arguments" in line for line in lines[middle:])
    assert lines[-1].strip() == "completed (tool_calls)"
    assert all(line[:7].strip().isdigit() for line in lines[1:middle])


def test_question_is_rendered_without_tools() -> None:
    lines = shown("Hello!")
    assert "get_weather" not in "".join(lines)
    assert lines[-1].strip() == "completed (stop)"


def test_unsupported_tools_are_shown_as_they_are_sent(tmp_path) -> None:
    file = tmp_path / "request.json"
    tools = [
        {"type": "web_search"},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find"}]},
    ]
    file.write_text(json.dumps({"input": "Hello!", "tools": tools}))
    for where in (("--format", "hermes"), ()):  # words, and the pocket model with its answer
        lines = shown(*where, "--request", str(file))
        text = "".join(row[1] for row in rows(lines) if len(row) > 1)
        assert "crm__find" in text
        assert "web_search" not in text
        assert any(line.startswith("lost: tools[0] (") for line in lines)


def test_a_completion_is_parsed_beside_its_tokens(tmp_path) -> None:
    file = tmp_path / "completion.txt"
    file.write_text(CALL)
    lines = shown("--format", "harmony", "--completion", str(file))
    found = rows(lines[lines.index("") :])
    assert ["reasoning", "A", "reasoning; reasoning 'A'"] in found
    assert ["control", "<|message|>", "call of get_weather"] in found
    assert ["call", "Rome", "arguments 'Rome'"] in found
    assert lines[-1].strip() == "completed (tool_calls)"


def test_without_a_vocabulary_words_stand_for_tokens(capsys) -> None:
    lines = shown("--format", "harmony", "one two")
    assert "words stand for tokens" in capsys.readouterr().err
    assert {line[:7] for line in lines[1:]} == {" " * 7}
    assert rows(lines)[-6:-3] == [["control", "<|message|>"], ["text", "one"], ["text", "two"]]


def test_f7_template_of_an_unknown_family_is_warned_of(tmp_path, capsys) -> None:
    config = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    shown("--format", str(tmp_path), "Hi")
    assert "Warning: the chat template is of no known family" in capsys.readouterr().err


def test_f13_the_date_of_a_prompt_can_be_chosen(tmp_path) -> None:
    config = {"chat_template": "Today is {{ strftime_now('%d %B %Y') }}.{{ messages[0].content }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    lines = shown("--format", str(tmp_path), "--date", "2026-02-03", "Hi")
    assert [row[1] for row in rows(lines)][2:5] == ["03", "February", "2026"]
    lines = shown("--format", str(tmp_path), "--date", "none", "Hi")
    assert [row[1] for row in rows(lines)][2] == "."


def test_a_folder_names_vocabulary_and_format(tmp_path) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text("[2]")
    folder = str(pocket.FOLDER)
    lines = shown("--tokenizer", folder, "--completion", str(ids), "Hi")
    assert lines[0].startswith("Prompt in hermes: ")
    assert rows(lines)[-1] == ["control", "<|im_end|>"]
    forced = shown("--tokenizer", folder, "--format", "mistral", "--completion", str(ids), "Hi")
    assert forced[0].startswith("Prompt in mistral: ")


def test_a_request_and_a_completion_come_from_standard_input(monkeypatch) -> None:
    request = {"input": "Bring me the moon."}
    typed = SimpleNamespace(buffer=io.BytesIO(json.dumps(request).encode()))
    monkeypatch.setattr(sys, "stdin", typed)
    lines = shown("--format", "hermes", "--request", "-")
    assert ["text", "moon"] in rows(lines)
    assert "" not in lines


def test_tokens_of_past_turns_have_kinds(tmp_path) -> None:
    call = {"name": "add", "arguments": '{"a": 2}'}
    messages = [
        {"role": "user", "content": "Add 2 and 3"},
        {
            "role": "assistant",
            "reasoning_content": "I should.",
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"messages": messages}))
    lines = shown("--request", str(file))
    found = rows(lines[: lines.index("")])
    kinds = {kind for kind, *_ in found}
    assert kinds == set(KINDS)
    assert "".join(text for kind, text, *_ in found if kind == "call") == 'add{"a":2}}'


def test_colours_are_used_on_a_terminal_only() -> None:
    assert not any("\x1b" in line for line in shown("Hello!"))
    coloured = shown("Hello!", terminal=True)
    assert any("\x1b[35m<|im_start|>\x1b[0m" in line for line in coloured)


def test_bytes_that_are_not_text_are_shown_as_bytes(tmp_path) -> None:
    file = tmp_path / "completion.txt"
    file.write_text("☃")
    lines = shown("--tokenizer", str(pocket.FOLDER), "--completion", str(file), "Hi")
    assert any(r"b'\x" in line for line in lines)
    assert lines[-1].strip() == "incomplete (length)"


def test_losses_and_malformed_output_are_reported(tmp_path) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
    file, said = tmp_path / "request.json", tmp_path / "completion.txt"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    said.write_text("<|channel|>nonsense<|message|>Hm<|return|>")
    lines = shown("--format", "harmony", "--request", str(file), "--completion", str(said))
    assert any(line.startswith("malformed: ") for line in lines)
    file.write_text(json.dumps({"messages": [{"role": "user", "content": [image]}]}))
    lines = shown("--format", "harmony", "--request", str(file))
    assert any(line.startswith("lost: items[0].content[0]") for line in lines)


def test_what_goes_nowhere_in_a_request_and_a_completion_is_reported(tmp_path) -> None:
    file, said = tmp_path / "request.json", tmp_path / "completion.txt"
    tool = {"type": "function", "function": {"name": "look"}}
    messages = [{"role": "user", "content": "Hi"}]
    file.write_text(json.dumps({"messages": messages, "tools": [tool], "magic": 1, "seed": 1}))

    def told(completion: str) -> list[str]:
        said.write_text(completion)
        lines = shown("--format", "hermes", "--request", str(file), "--completion", str(said))
        assert "lost: magic (a prompt cannot express it)" in lines
        return [line for line in lines if line.startswith(("left out", "malformed"))]

    assert told("Hi<|im_end|>") == []
    assert told("Hi<|im_end|>and more") == ["left out: 2 tokens after the end"]
    unfinished = "malformed: the call at the end is not finished: what has not begun is left out"
    assert told('<tool_call>\n{"name": "loo') == [unfinished]
    assert told("Hi <tool_c") == ["malformed: the half mark '<tool_c' at the end is left out"]


MISTAKES = {
    "an id that is none": (
        ["--completion", "ids.json"],
        "The completion has the id 999999999, and the vocabulary ends at ",
    ),
    "an id below all": (
        ["--tokenizer", str(pocket.FOLDER), "--completion", "below.json"],
        "The completion has the id -1, and the vocabulary ends at ",
    ),
    "no such format": (["--format", "morse"], "There is no format 'morse'. Formats: "),
    "nearly a format": (["--format", "harmnoy"], "There is no format 'harmnoy'. Formats: "),
    "no such folder": (
        ["--tokenizer", "nowhere"],
        f"{Path('nowhere', 'tokenizer.json')} cannot be read: No such file or directory.",
    ),
    "no such file": (
        ["--request", "nowhere.json"],
        "nowhere.json cannot be read: No such file or directory.",
    ),
    "ids without a vocabulary": (
        ["--format", "harmony", "--completion", "ids.json"],
        "A completion of ids needs a vocabulary: --tokenizer FOLDER.",
    ),
    "no request": (["--request", "ids.json"], "the request is no JSON object: "),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_prints_one_line(name, capsys) -> None:
    Path("ids.json").write_text("[1, 999999999]")
    Path("below.json").write_text("[-1]")
    words, told = MISTAKES[name]
    assert shown(*words, status=1) == []
    error = capsys.readouterr().err
    assert error.startswith(f"dragoman: {told}")
    assert ("; did you mean harmony?" in error) == ("harmnoy" in told)


def test_missing_local_extra_is_reported(monkeypatch, capsys) -> None:
    monkeypatch.setattr(pocket, "available", lambda: False)
    assert shown(status=1) == []
    assert "pip install '.[local]'" in capsys.readouterr().err


def test_l7_a_request_of_brackets_is_one_line(tmp_path, capsys) -> None:
    file = tmp_path / "deep"
    file.write_text('{"messages":' + "[" * 20_000 + "]" * 20_000 + "}")
    shown("--request", str(file), status=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert "the request is no JSON object" in line
    shown("Hi", "--completion", str(file), status=0)
