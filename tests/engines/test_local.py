"""Models of this machine by what a user writes: which kind it is, its name, and what is told."""

import pytest

from dragoman.client import connect
from dragoman.engines.local import find_target, is_local, transformers
from tests.engines.test_llamacpp import FILE
from training.tiny.transcripts import HELLO


@pytest.mark.parametrize("target", ["pocket", "script", "hf:a/b", "gguf:a.gguf", "gguf:"])
def test_a_name_of_the_package_or_a_kind_is_local(target: str) -> None:
    assert is_local(target)


@pytest.mark.parametrize("target", ["http://127.0.0.1:9/v1", "moon", "a.gguf", ""])
def test_anything_else_is_not(target: str) -> None:
    assert not is_local(target)


def test_a_target_is_known_by_its_name_before_it_is_loaded() -> None:
    target = find_target(f"gguf:{FILE}")
    assert (target.name, target.note) == ("tiny", "a GGUF file, run by llama.cpp")
    assert find_target("pocket").note == "a demonstration model"


def test_what_is_no_target_is_told() -> None:
    with pytest.raises(
        ValueError, match=r"no target 'moon'\. There is: pocket, script, hf:…, gguf:"
    ):
        find_target("moon")
    with pytest.raises(ValueError, match="hf: names no model"):
        find_target("hf:")
    with pytest.raises(ValueError, match="pocket has no options, and format was given"):
        find_target("pocket", format="hermes")


def test_a_client_of_a_file_is_one_line() -> None:
    with connect(f"gguf:{FILE}", threads=1, context=1024).sync as client:
        assert client.respond("Hello!", temperature=0).text == HELLO


def test_a_client_of_a_folder_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'dragoman\[transformers\]'"):
        connect("hf:./nowhere")
