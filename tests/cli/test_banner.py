"""The page a person reads: what is in it can be pasted, and says what is true."""

import ast
import json
import shlex
import tomllib

import pytest

from dragoman.cli.serve import SHOWN, Row, banner, table

URL = "http://127.0.0.1:8000/v1"
ROWS = [Row("big", "http://127.0.0.1:11434/v1", "ollama"), Row("small", "this server")]


def part(page: str, title: str) -> str:
    """What stands under a title, up to the next."""
    return page.partition(f"--- {title}")[2].partition("\n")[2].partition("\n---")[0]


@pytest.mark.parametrize("key_env", [None, "MY_KEY"])
def test_curl_lines_name_the_first_model(key_env) -> None:
    words = shlex.split(part(banner(URL, ROWS, key_env=key_env), "curl").replace("\\\n", ""))
    assert words[:3] == ["curl", "-N", f"{URL}/chat/completions"]
    headers = [words[place + 1] for place, word in enumerate(words) if word == "-H"]
    key = ["Authorization: Bearer $MY_KEY"] if key_env else []
    assert headers == ["Content-Type: application/json", *key]
    body = json.loads(words[words.index("-d") + 1])
    assert (body["model"], body["stream"]) == ("big", True)


@pytest.mark.parametrize(("key_env", "key"), [(None, "'none'"), ("MY_KEY", "os.environ['MY_KEY']")])
def test_sdk_lines_are_python_and_hold_no_key(key_env, key) -> None:
    code = ast.unparse(ast.parse(part(banner(URL, ROWS, key_env=key_env), "openai SDK")))
    assert f"OpenAI(base_url='{URL}', api_key={key})" in code
    assert ("import os" in code) == (key_env is not None)
    assert code.count("model='big'") == 2


@pytest.mark.parametrize("key_env", [None, "MY_KEY"])
def test_codex_lines_are_valid_configuration(key_env) -> None:
    page = banner(URL, ROWS, key_env=key_env)
    provider = {"name": "Dragoman", "base_url": URL, "wire_api": "responses"}
    assert tomllib.loads(part(page, "Codex")) == {
        "model": "big",
        "model_provider": "dragoman",
        "model_providers": {"dragoman": provider | ({"env_key": key_env} if key_env else {})},
    }
    assert page.endswith("\nCtrl-C stops.")


@pytest.mark.parametrize(("key_env", "key"), [(None, "none"), ("MY_KEY", "$MY_KEY")])
def test_claude_code_lines_are_shell_and_hold_no_key(key_env, key) -> None:
    page = banner(URL, [Row("a model", "here")], key_env=key_env)
    assert shlex.split(part(page, "Claude Code").removesuffix("Ctrl-C stops.")) == [
        *("export", "ANTHROPIC_BASE_URL=http://127.0.0.1:8000", f"ANTHROPIC_AUTH_TOKEN={key}"),
        *("export", "ANTHROPIC_DEFAULT_HAIKU_MODEL=a model"),
        *("claude", "--model", "a model"),
    ]


def test_agents_are_not_sent_to_a_model_that_cannot_hold_their_prompts() -> None:
    page = banner(URL, [Row("pocket", "this server")])
    assert "wire_api" not in page
    assert "claude --model" not in page
    assert "this model holds 4,096: serve another." in page
    assert page.endswith("\nCtrl-C stops.")


@pytest.mark.parametrize("name", ["a'b", 'a"b', "$(a)", "`a`", "a;b", "a\\", "a|b", "a\u241bb"])
def test_a_name_that_could_end_a_string_is_not_in_what_is_pasted(name) -> None:
    page = banner(URL, [Row(name, "there"), Row("qwen3:8b", "there")])
    assert page.count(name) == 1  # in the table
    assert '"model": "qwen3:8b"' in page
    assert '"model": "MODEL"' in banner(URL, [Row(name, "there")])


def test_banner_begins_with_address_and_models() -> None:
    first, _, *rest = banner(URL, ROWS).splitlines()
    assert first == f"Dragoman is ready at {URL}"
    assert rest[:3] == table(ROWS).splitlines()


def test_failed_listing_is_reported_in_its_place() -> None:
    page = banner(URL, [], problems=["Nobody there."])
    assert "  Nobody there.\n  Any model's name is passed on.\n" in page
    assert "MODEL  " not in page
    assert '"model": "MODEL"' in page


def test_the_table_has_columns() -> None:
    assert table(ROWS).splitlines() == [
        "  MODEL  ANSWERED BY",
        "  big    http://127.0.0.1:11434/v1  (ollama)",
        "  small  this server",
    ]


def test_table_counts_models_beyond_the_limit() -> None:
    rows = [Row("x" * number, "there") for number in range(1, SHOWN + 4)]
    lines = table(rows).splitlines()
    assert len(lines) == 1 + SHOWN + 1
    assert lines[1] == f"  x{' ' * (SHOWN - 1)}  there"
    assert lines[-1] == "  … and 3 more: dragoman models"
    assert len(table(rows, most=len(rows)).splitlines()) == 1 + len(rows)
    assert "more" not in table(rows[:SHOWN])


def test_empty_table_is_a_sentence() -> None:
    assert table([]) == "  No models are listed; any name is passed through."
