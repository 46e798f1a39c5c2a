"""Chat templates of strangers' folders that take too much: they cost their own request."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.engines import find_format
from dragoman.engines.child import Limits
from dragoman.engines.pocket import FOLDER
from dragoman.engines.token.vocabulary import from_folder
from dragoman.formats import prompt, template
from dragoman.formats.prompt import Control, Marks
from tests.hostile.stage import memory, upstream, watched
from tests.mock import plain
from tests.product import dragoman
from tests.samples import samples

MANY = "{% for each in range(99999) %}"
END = "{% endfor %}"
GROW = "{% set n = namespace(x=3) %}{% for i in range(40) %}{% set n.x = BY %}{% endfor %}"
DOUBLE = GROW.replace("3", "'xxxxxxxx'")
ENDLESS = {
    "6d.11": MANY + MANY + END + END,
    "6d.13": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(90) }}",
    "6d.16": GROW.replace("BY", "n.x ** 9"),
    "6d.17": GROW.replace("BY", "n.x * n.x"),
    "6d.35": "{{ lipsum(n=99999) }}{{ lipsum(n=99999) }}",
    "6d.41": MANY + "{% set x = range(99999) | sort(reverse=true) %}" + END,
    "6d.45": "{% set c = cycler(1) %}" + MANY + MANY + "{% set x = c.next() %}" + END + END,
}
LARGE = {
    "6d.19": DOUBLE.replace("BY", "n.x ~ n.x"),
    "6d.20": DOUBLE.replace("BY", "n.x + n.x"),
    "6d.21": DOUBLE.replace("'xxxxxxxx'", "[1, 2, 3]").replace("BY", "n.x + n.x"),
    "6d.22": DOUBLE.replace("BY", "n.x | replace('x', 'xx')"),
    "6d.23": DOUBLE.replace("BY", "[n.x, n.x] | join"),
    "6d.24": "{{ '%999999999d' % 1 }}",
    "6d.25": "{{ '%999999999d' | format(1) }}",
    "6d.26": "{{ '{:999999999}'.format(messages | length) }}",
    "6d.27": "{{ 'x' | center(999999999) }}",
    "6d.28": "{{ messages[0].role.ljust(999999999) }}",
    "6d.29": "{{ messages[0].role.zfill(999999999) }}",
    "6d.30": "{{ '\t'.expandtabs(999999999) }}",
    "6d.31": "{{ 'x\nx' | indent(999999999) }}",
    "6d.32": "{{ messages | tojson(indent=999999999) }}",
    "6d.34": "{{ 'x' | slice(999999999) | list | length }}",
    "6d.42": "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "6d.43": "{{ 'x'.encode().join([('x' * 99999).encode()] * 99999) }}",
}
BOMBS = {**ENDLESS, **LARGE}
QUICK = ("6d.16", "6d.19", "6d.24", "6d.26", "6d.34", "6d.42", "6d.43")
"""One of each kind; each takes its second, or its memory."""
ASKED = Request(model="m", items=(Message("user", "hi"),))


def folder_of(folder: Path, template: str) -> Path:
    (folder / find_format.CONFIG).write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.mark.parametrize(
    "named", (samples(len(QUICK), len(BOMBS)) == len(BOMBS) and BOMBS) or QUICK
)
def test_a_template_that_takes_too_much_is_given_up(tmp_path, monkeypatch, named) -> None:
    limits = Limits(seconds=1, memory=256 * 2**20, answer=64 * 2**20)
    monkeypatch.setattr(find_format, "_LIMITS", limits)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = time.process_time()
    with pytest.raises((ValueError, FaultError)):
        find_format.format_of(folder_of(tmp_path, BOMBS[named])).render(ASKED)
    assert time.process_time() - used < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_an_ordinary_template_is_rendered_as_here(tmp_path) -> None:
    from dragoman.formats.template import Template

    text = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{% endfor %}"
    asked = Request(model="m", items=(Message("user", "<s> \udcff h\u00e9"),))
    folder = folder_of(tmp_path, text)
    elsewhere = find_format.format_of(folder, ["<s>"])
    assert elsewhere.render(asked) == Template(text, None, ["<s>"]).render(asked)


def test_the_refusal_of_a_template_is_the_error(tmp_path) -> None:
    told = find_format.format_of(folder_of(tmp_path, "{{ raise_exception('only cats') }}"))
    with pytest.raises(FaultError, match="refuses this conversation: only cats"):
        told.render(ASKED)
    with pytest.raises(ValueError, match="cannot be read: line 1"):
        find_format.format_of(folder_of(tmp_path, "{% if %}"))


def test_what_a_template_says_is_bounded(tmp_path) -> None:
    told = find_format.format_of(folder_of(tmp_path, "{{ raise_exception('x' * 99999) }}"))
    with pytest.raises(FaultError) as refused:
        told.render(ASKED)
    assert refused.value.fault.message.count("x") == 1_000


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is no file$"),
    "a pipe": (os.mkfifo, "is no file$"),
    "not text": (lambda path: path.write_bytes(b"\xff"), "is not UTF-8 text$"),
    "nested": (lambda path: path.write_text('{"x":' + "[" * 100_000), "recursion depth exceeded"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_folder_whose_files_are_none_is_refused(tmp_path, kind) -> None:
    make, words = UNREADABLE[kind]
    config = folder_of(tmp_path, "hi") / find_format.CONFIG
    config.unlink(missing_ok=True)
    make(config)
    with pytest.raises(ValueError, match=f"{tmp_path}.*{words}"):
        find_format.format_of(config.parent)


def test_a_server_with_such_a_template_answers_others(tmp_path) -> None:
    text = "{% if messages[0].content == 'bomb' %}" + ENDLESS["6d.16"] + "{% endif %}hi"
    folder = folder_of(tmp_path, text)

    def body(content: str) -> dict[str, Any]:
        return {"model": "m", "messages": [{"role": "user", "content": content}]}

    said = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
    said["choices"] = [{"index": 0, "text": "yes", "finish_reason": "stop"}]
    with upstream(lambda _: plain(200, said)) as model:
        words = ("--upstream", model.base_url, "--wire", "completions", "--format", str(folder))
        with dragoman(*words) as server:
            assert server.post("chat", body("hi")).status == 200
            with watched(server) as cost:
                answer = server.post("chat", body("bomb"))
            assert answer.status == 500
            assert "template" in answer.json["error"]["message"]
            assert cost.pause < 1.0
            assert cost.grown < 200
            assert server.post("chat", body("hi")).status == 200


def test_7_03_template_variables_leave_bounded_memory(tmp_path) -> None:
    with dragoman("pocket") as server:
        message = {"role": "user", "content": "hi"}
        body = {"model": "pocket", "messages": [message], "max_tokens": 2}
        assert server.post("chat", body).status == 200
        before = memory(server.process.pid)
        for number in range(samples(4, 40)):
            options = {"chat_template_kwargs": {"x": f"{number}" + "x" * 5_000_000}}
            with watched(server) as cost:
                assert server.post("chat", {**body, **options}).status == 200
            assert cost.pause < 0.5
        assert memory(server.process.pid) - before < 120


def test_a_folder_whose_control_tokens_take_long_to_look_for_is_refused(tmp_path) -> None:
    folder = folder_of(tmp_path, "{{ messages[0].content }}")
    with pytest.raises(ValueError, match="control tokens are too long or too many"):
        find_format.format_of(folder, ["a" * size for size in range(2, 3_000)])


ADDED: dict[str, Any] = {
    "no id": [{"content": "<|a|>"}],
    "no text": [{"content": 5, "id": 1}],
    "no list": 5,
    "empty": [{"content": "", "id": 1}],
    "negative": [{"content": "<|a|>", "id": -5}],
    "huge": [{"content": "<|a|>", "id": 1 << 31}],
}


@pytest.mark.parametrize("kind", ADDED)
def test_l5_odd_added_tokens_are_refused(tmp_path, kind) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": ADDED[kind]}))
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer: .*added_tokens"):
        from_folder(tmp_path)


def test_a_normalizer_that_the_tokenizer_panics_at_is_refused(tmp_path) -> None:
    described = json.loads((FOLDER / "tokenizer.json").read_bytes())
    described["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer: Precompiled"):
        from_folder(tmp_path)


def test_templates_whose_names_are_no_texts_are_no_template(tmp_path) -> None:
    folder = folder_of(tmp_path, "hi")
    config = {"chat_template": [{"name": [], "template": "a"}, {"name": {}, "template": "b"}]}
    (folder / find_format.CONFIG).write_text(json.dumps(config))
    with pytest.raises(ValueError, match="brings no chat template"):
        find_format.format_of(folder)


TEN = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
REGEX = {"type": "Replace", "pattern": {"Regex": "a*"}, "content": "a" * 200}


@pytest.mark.parametrize("parts", [[TEN] * 9, [{"normalizers": [TEN] * 3}], [REGEX]])
def test_l6_a_normalizer_that_makes_texts_long_is_refused(tmp_path, parts) -> None:
    described = {"normalizer": {"type": "Sequence", "normalizers": parts}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="more than 100 times as long"):
        from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("kind", ["a device", "a pipe", "nested"])
def test_l4_a_vocabulary_that_is_no_file_is_refused(tmp_path, kind, name) -> None:
    make, words = UNREADABLE[kind]
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(ValueError, match=f"{tmp_path}.*{words}"):
        from_folder(tmp_path)


def test_ends_that_are_no_ids_are_left_out(tmp_path) -> None:
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    ids = '[[1], "2", 3, true, -1, 1000000000]'
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {ids}}}')
    assert from_folder(tmp_path).ends == {3}


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_marks_are_found_across_the_steps_of_a_long_text(monkeypatch, step) -> None:
    monkeypatch.setattr(prompt, "STEP", step)
    marks = Marks(["<s>", "<s>x", "<|end|>"])
    found = [*marks.split("a<s>xb<|end|><|en<s><|end|>" + "x" * 20 + "<s><|en")]
    end, start = Control("<|end|>"), Control("<s>")
    opened = ["a", Control("<s>x"), "b", end, "<|en", start]
    assert found == [*opened, end, "x" * 20, start, "<|en"]


@pytest.mark.parametrize("step", [1, 1000])
def test_a_character_that_no_text_has_is_looked_for_in_steps(monkeypatch, step) -> None:
    monkeypatch.setattr(template, "STEP", step)
    for text, unused in {"plain": "\ue000", "\ue000a\ue001": "\ue002"}.items():
        assert template._unused_character([text]) == unused
