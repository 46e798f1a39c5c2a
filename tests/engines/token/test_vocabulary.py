"""Vocabularies from files, made up here: what they encode, and what they must never encode."""

import importlib
import json
import sys
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from dragoman.core.error import FaultError
from dragoman.core.event import Delta
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.engines.pocket import FOLDER
from dragoman.engines.token import TokenEngine, from_next_token
from dragoman.engines.token import vocabulary as module
from dragoman.engines.token.vocabulary import O200K, Vocabulary, from_folder, from_ranks
from dragoman.formats.markup.format import Markup
from dragoman.formats.prompt import Control, Prompt
from tests.samples import samples

WORDS = [b"he", b"ll", b"hell", b"hello", b" w", "\u00e9".encode()]
RANKED = [bytes([value]) for value in range(256)] + WORDS
CONTROLS = {"<|end|>": 270, "<|go|>": 271}


def ranks(folder: Path) -> Vocabulary:
    file = folder / "toy.tiktoken"
    lines = (b64encode(token) + b" %d" % rank for rank, token in enumerate(RANKED))
    file.write_bytes(b"\n".join(lines))
    return from_ranks(file, CONTROLS)


def byte_letters() -> dict[int, str]:
    """How byte-level BPE writes bytes: printable ones as they are, the others from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [value for value in range(256) if value not in plain]
    return {v: chr(v) for v in plain} | {v: chr(256 + k) for k, v in enumerate(rest)}


def folder_of(folder: Path, **files: Any) -> Path:
    letters = byte_letters()
    pieces = [letters[value] for value in range(256)] + ["he", "ll", "hell", "hello"]
    texts = ((260, "<|end|>", True), (261, "<tool>", False), (262, "  ", False))
    added = [
        {"id": id, "content": text, "special": special, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for id, text, special in texts
    ]  # fmt: skip
    described = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<|end|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [260], "tokens": ["<|end|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {piece: id for id, piece in enumerate(pieces)},
                  "merges": [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"]]},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(described))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_ranks_merge_bytes_in_their_order(tmp_path) -> None:
    vocabulary = ranks(tmp_path)
    assert vocabulary.encode("hello") == [259]
    assert vocabulary.encode("hell") == [258]
    assert [vocabulary.piece(id) for id in vocabulary.encode("h\u00e9 why")] == [
        b"h",
        "\u00e9".encode(),
        b" w",
        b"h",
        b"y",
    ]
    assert vocabulary.size == 272
    assert vocabulary.controls == CONTROLS


def test_ids_without_a_token_are_nothing(tmp_path) -> None:
    vocabulary = ranks(tmp_path)
    assert [vocabulary.piece(id) for id in (-1, 265, 270, 999)] == [b"", b"", b"<|end|>", b""]
    assert from_ranks(tmp_path / "toy.tiktoken", CONTROLS, size=300).size == 300


@pytest.mark.parametrize("kind", ["ranks", "folder"])
def test_text_never_becomes_a_control_token(tmp_path, kind) -> None:
    vocabulary = ranks(tmp_path) if kind == "ranks" else from_folder(folder_of(tmp_path))
    ids = set(vocabulary.controls.values())
    texts = [*vocabulary.controls, "".join(vocabulary.controls), "x<|end|>y", "<|end|>" * 3]
    for text in texts:
        encoded = vocabulary.encode(text)
        assert not ids & set(encoded)
        assert b"".join(map(vocabulary.piece, encoded)) == text.encode()
    prompt = Prompt((Control("<|end|>"), "<|end|>"))
    assert prompt.ids(vocabulary)[0] == vocabulary.controls["<|end|>"]


@given(st.text(max_size=30))
def test_encoding_round_trips(tmp_path_factory, text) -> None:
    said = text.encode("utf-8", "replace")
    for vocabulary in _made(tmp_path_factory):
        assert b"".join(map(vocabulary.piece, vocabulary.encode(text))) == said


_kept: list[Vocabulary] = []


def _made(factory: pytest.TempPathFactory) -> list[Vocabulary]:
    if not _kept:
        _kept.append(ranks(factory.mktemp("ranks")))
        _kept.append(from_folder(folder_of(factory.mktemp("folder"))))
    return _kept


def test_end_tokens_are_read_from_the_folder(tmp_path) -> None:
    assert from_folder(folder_of(tmp_path)).ends == frozenset()
    config = {"eos_token": {"content": "<|end|>"}}
    assert from_folder(folder_of(tmp_path, tokenizer_config=config)).ends == {260}
    config = {"eos_token": "<tool>"}
    files: dict[str, Any] = {"tokenizer_config": config, "generation_config": {"eos_token_id": [7]}}
    assert from_folder(folder_of(tmp_path, **files)).ends == {7, 261}
    files = {"tokenizer_config": {"eos_token": None}, "generation_config": {"eos_token_id": 3}}
    assert from_folder(folder_of(tmp_path, **files)).ends == {3}
    assert from_folder(folder_of(tmp_path, generation_config={})).ends == frozenset()


def test_added_white_space_is_ordinary_text(tmp_path) -> None:
    vocabulary = from_folder(folder_of(tmp_path))
    assert set(vocabulary.controls) == {"<|end|>", "<tool>"}
    assert vocabulary.encode("hello  he") == [259, 262, 256]
    assert vocabulary.piece(262) == b"  "


def changed(folder: Path, **changes: Any) -> Vocabulary:
    described = json.loads((folder_of(folder) / "tokenizer.json").read_text())
    added = described["added_tokens"]
    first = {**added[0], "special": False}
    extra = changes.pop("added", ())
    added += [{**first, "id": 263 + place, "content": text} for place, text in enumerate(extra)]
    (folder / "tokenizer.json").write_text(json.dumps({**described, **changes}))
    return from_folder(folder)


def test_truncation_and_padding_of_a_training_run_are_not_applied(tmp_path) -> None:
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    pad |= {"pad_id": 260, "pad_type_id": 0, "pad_token": "<|end|>"}
    assert changed(tmp_path, truncation=cut, padding=pad).encode("hello") == [259]
    assert changed(tmp_path, truncation=cut, padding=pad).encode("hehehe") == [256] * 3


def test_added_words_are_ordinary_text(tmp_path) -> None:
    vocabulary = changed(tmp_path, added=["\u00c5ngstr\u00f6m", "<answer>"])
    assert set(vocabulary.controls) == {"<|end|>", "<tool>", "<answer>"}
    assert vocabulary.encode("he\u00c5ngstr\u00f6m") == [256, 263]
    assert vocabulary.encode("<answer>") != [264]
    assert vocabulary.piece(263).decode() == "\u00c5ngstr\u00f6m"


@pytest.mark.parametrize("raw", [True, False])
async def test_added_tokens_that_are_not_special_are_text_in_an_answer(tmp_path, raw) -> None:
    vocabulary = changed(tmp_path, added=["\u00c5ngstr\u00f6m", "<answer>", "<tool_call>"])
    given = [256, 263, 264, 257, 260]

    def choose(ids: list[int], sampling: object) -> int:
        return given[sum(id in given[:4] for id in ids)]

    engine = TokenEngine(Markup("hermes"), from_next_token(choose), vocabulary, ends=[260])
    request = Request(model="m", items=(Message("user", "x"),))
    events = engine.complete("x", request) if raw else engine.stream(request)
    text = "".join([event.data async for event in events if isinstance(event, Delta)])
    await engine.close()
    assert text == "he\u00c5ngstr\u00f6m<answer>ll"


def test_missing_llguidance_is_reported_with_its_install_command(monkeypatch) -> None:
    name = "dragoman.engines.token.vocabulary"
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"'\.\[local\]'"):
        importlib.import_module(name)


def test_files_of_another_kind_are_named(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        from_folder(tmp_path)
    for wrong in ("[]", "{", '{"model": 1}'):
        (tmp_path / "tokenizer.json").write_text(wrong)
        with pytest.raises(ValueError, match=r"tokenizer\.json is no"):
            from_folder(tmp_path)
    (tmp_path / "ranks").write_text("aGVsbG8= 1\nnonsense\n")
    with pytest.raises(ValueError, match="line 2"):
        from_ranks(tmp_path / "ranks", {})
    with pytest.raises(FileNotFoundError):
        from_ranks(tmp_path / "none")


# ---- long texts ----------------------------------------------------------------------------

LETTERS = ["a", "b", "ab", "he", "ll", "hello", " w", "  ", " ", "\n", "\n\n", "1", "42", "!", "'s"]
TEXTS = st.lists(st.sampled_from([*LETTERS, "\u00e9", "\u6f22", "\t", "_"]), max_size=60).map(
    "".join
)


def ranked(pairs: list[tuple[int, int]]) -> dict[bytes, int]:
    """Ranks of the bytes and of what some pairs of tokens make, in their order."""
    ranks = {bytes([value]): value for value in range(256)}
    pool = [b"a", b"b", b" ", b"1", b"\n", b"\xc3", b"\xa9"]
    for left, right in pairs:
        token = pool[left % len(pool)] + pool[right % len(pool)]
        if token not in ranks and len(token) < 12:
            ranks[token] = len(ranks)
            pool.append(token)
    return ranks


NUMBERS = st.integers(0, 10_000)


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60), st.lists(TEXTS, min_size=20, max_size=20)
)
@settings(max_examples=samples(8, 1_000))
def test_ranks_encode_as_the_encoder_for_ranks_does(tmp_path_factory, pairs, texts) -> None:
    made, end = ranked(pairs), 1000
    file = tmp_path_factory.mktemp("ranks") / "made.tiktoken"
    file.write_bytes(b"\n".join(b64encode(token) + b" %d" % made[token] for token in made))
    ours = from_ranks(file, {"<|end|>": end})
    reference: Any = LLTokenizer  # its type stubs lack `from_tiktoken`
    theirs = reference.from_tiktoken(
        encoder=made, special_tokens={"": end}, pattern=O200K, eos_token=end
    )
    for text in texts:
        assert ours.encode(text) == theirs.tokenize_str(text)


@given(TEXTS)
def test_a_text_in_parts_has_the_ids_of_the_whole(tmp_path_factory, text) -> None:
    if len(_kept) < 3:
        _made(tmp_path_factory)
        _kept.append(from_folder(FOLDER))
    for vocabulary in _kept:
        whole = vocabulary.encode(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "PART", 3)
            assert vocabulary.encode(text) == whole


def test_a_vocabulary_that_joins_words_is_not_divided(tmp_path) -> None:
    folder = folder_of(tmp_path)
    described = json.loads((folder / "tokenizer.json").read_text())
    letters = byte_letters()
    across = ["h" + letters[ord(" ")], letters[ord("\n")] + "h", "h1"]
    described["model"]["vocab"].update({piece: 260 + n for n, piece in enumerate(across)})
    described["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(described))
    joining = from_folder(folder)
    assert joining._boundary is None
    many = 3 * module.MAX_RUN
    assert len(joining.encode("b" * many)) == many


@pytest.mark.parametrize("kind", ["ranks", "folder"])
@pytest.mark.parametrize("sign", ["-", "a", " ", "\n"])
def test_a_run_without_words_has_a_limit(tmp_path, kind, sign) -> None:
    vocabulary = ranks(tmp_path) if kind == "ranks" else from_folder(folder_of(tmp_path))
    words = "some words " * 3_000
    most = sign * module.MAX_RUN
    told = words.strip() + "!" + most[1:] + "b" + words  # '!' keeps the run from the word before
    back = b"".join(map(vocabulary.piece, vocabulary.encode(words + most[: -len(words) or None])))
    assert back.decode() == words + most[: -len(words) or None]
    with pytest.raises(FaultError, match="65536 bytes in a row"):
        vocabulary.encode(told + sign * module.MAX_RUN)
    with pytest.raises(FaultError, match="65536 bytes in a row"):  # each is four
        vocabulary.encode("\U0001f600" * (module.MAX_RUN // 3))


def test_a_run_takes_time_in_proportion(tmp_path) -> None:
    vocabulary = ranks(tmp_path)

    def seconds(count: int) -> float:
        start = time.thread_time()
        vocabulary.encode("-" * count)
        return time.thread_time() - start

    short = min(seconds(module.MAX_RUN // 16) for _ in range(5))
    assert seconds(module.MAX_RUN) < 80 * short  # the square would be 256
