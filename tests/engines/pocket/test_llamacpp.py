"""The same weights under llama.cpp: another tokenizer, template engine, network and parser.

The weights are exported when the tests run. In single precision, with nothing rounded in between,
both programs must score every token alike; in half precision, as anybody would run the file, they
must say the same.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dragoman.engines.pocket import FOLDER
from dragoman.engines.pocket.model import load
from tests.engines.pocket.asking import THINK, expected
from tests.upstream.llamacpp import Llamacpp, run_llamacpp
from training.pocket.gguf import export
from training.pocket.lesson import Lesson
from training.pocket.suite import CASES, Case

SAMPLE = [case for case in CASES if not case.lesson.forced][::8]
"""The whole suite is asked of our own network; this compares the programs."""
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
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llamacpp]:
    file = tmp_path_factory.mktemp("single") / "pocket.gguf"
    export(FOLDER, file, single=True)
    with run_llamacpp(model="pocket", slots=1, file=file, exact=True) as server:
        yield server


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llamacpp]:
    file = tmp_path_factory.mktemp("half") / "pocket.gguf"
    export(FOLDER, file)
    with run_llamacpp(model="pocket", slots=1, file=file) as server:
        yield server


@pytest.mark.parametrize("prompt", STRANGE)
def test_every_token_is_scored_alike(prompt: str, single: Llamacpp) -> None:
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
    for place in single.request("/completion", wanted).json()["completion_probabilities"]:
        (scores,) = model.step([(slot, news)])
        theirs = {token["id"]: token["logprob"] for token in place["top_logprobs"]}
        ours = logarithms(scores)
        # Only the end of the text is barred, so that the sequence goes on.
        assert len(theirs) > 1000
        assert max(abs(ours[id] - value) for id, value in theirs.items()) < DIFFERENCE
        news, compared = [place["id"]], compared + 1
    assert compared == 12


@pytest.mark.parametrize("prompt", STRANGE)
def test_tokenizers_agree(prompt: str, single: Llamacpp) -> None:
    _, _, vocabulary = load(FOLDER)
    if "<|" not in prompt:
        assert list(vocabulary.encode(prompt)) == tokenized(single, prompt)
    assert b"".join(map(vocabulary.piece, tokenized(single, prompt))).decode() == prompt


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_a_sample_of_the_suite_is_answered_alike(case: Case, half: Llamacpp) -> None:
    assert chatted(half, case.lesson) == expected(case.lesson)


def tokenized(server: Llamacpp, text: str) -> list[int]:
    body = {"content": text, "parse_special": True}
    return list(server.request("/tokenize", body).json()["tokens"])


def logarithms(scores: Any) -> Any:
    wide = scores.astype(np.float64)
    wide -= wide.max()
    return wide - np.log(np.exp(wide).sum())


def chatted(server: Llamacpp, lesson: Lesson) -> list[tuple[str, ...]]:
    """What llama.cpp answers over its own Chat Completions, with its own template and parser."""
    messages = list(lesson.messages)
    think = messages[-1] == THINK
    body = {
        "model": "pocket",
        "messages": messages[:-1] if think else messages,
        "tools": list(lesson.tools),
        "temperature": 0,
        "max_tokens": 400,
        "chat_template_kwargs": {"enable_thinking": think},
    }
    answer = server.request("/v1/chat/completions", body).json()
    message = answer["choices"][0]["message"]
    thought, text = message.get("reasoning_content"), message.get("content")
    return [
        *([("thought", thought)] if thought else []),
        *([("text", text)] if text else []),
        *(
            ("call", call["function"]["name"], spaced(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ),
    ]


def spaced(arguments: str) -> str:
    """Arguments as the model writes them; llama.cpp writes them again in its own way."""
    return json.dumps(json.loads(arguments), ensure_ascii=False)
