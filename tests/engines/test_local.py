"""Local targets by kind and place, and formats by name or model folder."""

import datetime
import json
from pathlib import Path

import pytest

from dragoman.client import connect
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.engines import transformers
from dragoman.engines.completions import remote
from dragoman.engines.find_format import (
    HARMONY,
    dated,
    find_format,
    format_of,
    is_format,
    warning_of,
)
from dragoman.engines.local import find_target, is_local
from tests.engines.test_llamacpp import FILE
from training.tiny.transcripts import HELLO


@pytest.mark.parametrize("target", ["pocket", "script", "hf:a/b", "gguf:a.gguf", "gguf:"])
def test_a_name_of_the_package_or_a_kind_is_local(target) -> None:
    assert is_local(target)


@pytest.mark.parametrize("target", ["http://127.0.0.1:9/v1", "moon", "a.gguf", ""])
def test_anything_else_is_not(target) -> None:
    assert not is_local(target)


def test_a_target_is_known_by_its_name_before_it_is_loaded() -> None:
    target = find_target(f"gguf:{FILE}")
    assert (target.name, target.note) == ("tiny", "a GGUF file, run by llama.cpp")
    assert find_target("pocket").note == "a demonstration model"


def test_unknown_target_is_reported() -> None:
    with pytest.raises(
        ValueError, match=r"no target 'moon'\. There is: pocket, script, hf:…, gguf:"
    ):
        find_target("moon")
    with pytest.raises(ValueError, match="hf: names no model"):
        find_target("hf:")
    with pytest.raises(ValueError, match="pocket has no option format"):
        find_target("pocket", format="hermes")


def test_a_client_of_a_file_is_one_line() -> None:
    with connect(f"gguf:{FILE}", threads=1, context=1024).sync as client:
        assert client.respond("Hello!", temperature=0).text == HELLO


def test_client_of_a_folder_reports_a_missing_extra(monkeypatch) -> None:
    monkeypatch.setattr(transformers, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install '\.\[transformers\]' in the checkout\.$"):
        connect("hf:./nowhere")


TEMPLATE = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
CONFIG = {"bos_token": "<s>", "chat_template": TEMPLATE}
ASKED = Request(model="m", items=(Message("user", "Hi."),))


def folder(path: Path, config: object, template: str | None = None) -> str:
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return str(path)


def test_a_name_is_a_format() -> None:
    assert is_format("hermes")
    assert find_format("hermes").name == "hermes"


def test_a_folder_brings_its_template(tmp_path) -> None:
    place = folder(tmp_path, CONFIG)
    assert is_format(place)
    assert find_format(place).render(ASKED).text == "<s><|user|>Hi."


def test_a_template_in_a_file_of_its_own_comes_first(tmp_path) -> None:
    place = folder(tmp_path, CONFIG, "{{ messages[0].content }}!")
    assert find_format(place).render(ASKED).text == "Hi.!"


def test_unknown_format_is_reported(tmp_path) -> None:
    assert not is_format("morse")
    with pytest.raises(ValueError, match="no format 'morse'"):
        find_format("morse")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json cannot be read: No such file"):
        find_format(str(tmp_path))
    with pytest.raises(ValueError, match="brings no chat template"):
        find_format(folder(tmp_path, {}))


def test_f5_a_folder_with_the_control_tokens_of_harmony_is_harmony(tmp_path) -> None:
    added = {str(n): {"content": mark, "special": True} for n, mark in enumerate(sorted(HARMONY))}
    place = folder(tmp_path, {"added_tokens_decoder": added}, "<|start|>{{ messages[0].content }}")
    assert find_format(place).name == "harmony"
    assert format_of(tmp_path, ["<|start|>"]).name == "hermes"  # the vocabulary knows better


def test_f13_the_date_is_todays_a_fixed_one_or_none() -> None:
    before = datetime.date.today().isoformat()
    assert before <= str(dated()().today) <= datetime.date.today().isoformat()
    assert dated("today")().today in (before, datetime.date.today().isoformat())
    assert (dated("2026-02-28")().today, dated("none")().today) == ("2026-02-28", None)
    with pytest.raises(
        ValueError, match=r"'2026-02-29' is no date: write 2026-11-23, today or none"
    ):
        dated("2026-02-29")
    with pytest.raises(ValueError, match="needs a format"):
        remote("http://127.0.0.1:9/v1", date="none")


def test_f7_the_family_of_a_template_can_be_named(tmp_path) -> None:
    place = folder(tmp_path, CONFIG)
    found = format_of(tmp_path, (), "glm")
    assert (found.name, warning_of(found)) == ("glm", None)
    assert found.render(ASKED).text == find_format(place).render(ASKED).text
    assert format_of(tmp_path, (), "harmony").name == "harmony"
    folder(tmp_path, {})
    assert "<|user|>\nHi." in format_of(tmp_path, (), "glm").render(ASKED).text


def test_f7_template_of_an_unknown_family_is_warned_of(tmp_path, caplog) -> None:
    found = find_format(folder(tmp_path, CONFIG))
    assert found.name == "hermes"
    assert f"{tmp_path}: the chat template is of no known family" in caplog.text
    assert warning_of(found) in caplog.text
    assert "with --format: command, deepseek, " in caplog.text
    caplog.clear()
    known = find_format(folder(tmp_path, CONFIG, "<|im_start|> <tool_call>"))
    assert (warning_of(known), caplog.text) == (None, "")
