"""The same weights under llama.cpp: another tokenizer, template engine, network and parser.

The weights are exported when the tests run. In single precision, with nothing rounded in between,
both programs must score every token alike.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dragoman.engines.pocket import FOLDER
from dragoman.engines.pocket.model import load
from tests.upstream.llamacpp import Llamacpp, run_llamacpp
from training.pocket.gguf import export

DIFFERENCE = 0.02
"""The most that the logarithm of any token's probability may differ."""
STRANGE = (
    "<|im_start|>user\nExplain 17 quantum mechanics, please!<|im_end|>\n<|im_start|>assistant\n",
    "no markup at all, and a long way to go " * 12,
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n',
    "Zażółć gęślą jaźń 你好 🙂 \t\n  x=[1,2,3]; print('hi')",
    "a",
)


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> Iterator[Llamacpp]:
    file = tmp_path_factory.mktemp("single") / "pocket.gguf"
    export(FOLDER, file, single=True)
    with run_llamacpp(model="pocket", slots=1, file=file, exact=True) as server:
        yield server


@pytest.mark.parametrize("prompt", STRANGE)
def test_every_token_is_scored_alike(prompt, single: Llamacpp) -> None:
    _, model, vocabulary = load(FOLDER)
    ids = tokenized(single, prompt)
    slot = model.open(ids)
    wanted = {
        "prompt": ids,
        "n_predict": 12,
        "temperature": 0,
        "n_probs": vocabulary.size,
        "ignore_eos": True,
    }
    news, compared = ids, 0
    for place in json.loads(single.ask("/completion", wanted))["completion_probabilities"]:
        (scores,) = model.step([(slot, news)])
        theirs = {token["id"]: token["logprob"] for token in place["top_logprobs"]}
        ours = logarithms(scores)
        # Only the end of the text is barred, so that the sequence goes on.
        assert len(theirs) > 1000
        assert max(abs(ours[id] - value) for id, value in theirs.items()) < DIFFERENCE
        news, compared = [place["id"]], compared + 1
    assert compared == 12


@pytest.mark.parametrize("prompt", STRANGE)
def test_tokenizers_agree(prompt, single: Llamacpp) -> None:
    _, _, vocabulary = load(FOLDER)
    if "<|" not in prompt:
        assert list(vocabulary.encode(prompt)) == tokenized(single, prompt)
    assert b"".join(map(vocabulary.piece, tokenized(single, prompt))).decode() == prompt


def test_formats_are_enforced(single: Llamacpp) -> None:
    """Where what opens an answer has an end token, a grammar ends llama.cpp's process."""
    body = {
        "messages": [{"role": "user", "content": "Ada is 36 years old."}],
        "response_format": {"type": "json_object"},
        "max_tokens": 40,
        "temperature": 0,
    }
    (choice,) = json.loads(single.ask("/v1/chat/completions", body))["choices"]
    assert choice["message"]["content"].lstrip().startswith("{")


def tokenized(server: Llamacpp, text: str) -> list[int]:
    body = {"content": text, "parse_special": True}
    return list(json.loads(server.ask("/tokenize", body))["tokens"])


def logarithms(scores: Any) -> Any:
    wide = scores.astype(np.float64)
    wide -= wide.max()
    return wide - np.log(np.exp(wide).sum())
