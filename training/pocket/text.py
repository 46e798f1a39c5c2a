"""Lessons as text and as tokens: the chat template of the package, and the vocabulary it needs.

What a model learns is exactly what it will be shown, so the template is the one that ships.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jinja2
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .lesson import Lesson, Message
from .network import Shape

HOME = Path(__file__).parents[2] / "src/dragoman/engines/pocket"
"""Where the model lives in the package."""
END, START, STOP = CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SECOND_CHOICE = 0.05
"""The weight of the first token of a forced answer."""


@dataclass(frozen=True)
class Sample:
    """A lesson as tokens; those from `start` on are learned, the first of them by its weight."""

    ids: list[int]
    start: int
    first: float = 1.0


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=False)
    environment.filters["tojson"] = _json
    return environment.from_string((HOME / "chat_template.jinja").read_text(encoding="utf-8"))


_TEMPLATE = _template()


def _parsed(message: Message) -> Message:
    """The message with call arguments as objects, which is how templates expect them."""
    if "tool_calls" not in message:
        return message
    calls = [dict(call, function=dict(call["function"])) for call in message["tool_calls"]]
    for call in calls:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return dict(message, tool_calls=calls)


def rendered(lesson: Lesson) -> tuple[str, str]:
    """The prompt, and the text that the model is to write."""
    past = [_parsed(message) for message in lesson.messages]
    prompt = _TEMPLATE.render(messages=past, tools=lesson.tools, add_generation_prompt=True)
    whole = _TEMPLATE.render(messages=[*past, _parsed(lesson.answer)], tools=lesson.tools)
    if not whole.startswith(prompt):
        raise ValueError(f"the template does not continue its own prompt: {whole!r}")
    return prompt, whole[len(prompt) :].removesuffix("\n")


def learn_tokenizer(lessons: Iterable[Lesson], shape: Shape) -> Tokenizer:
    """Learn a byte-level BPE that splits words as GPT-2 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocab_size,
        special_tokens=list(CONTROLS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(("".join(rendered(lesson)) for lesson in lessons), trainer)
    return tokenizer


def sample(tokenizer: Tokenizer, lesson: Lesson) -> Sample:
    """A lesson as tokens."""
    prompt, answer = rendered(lesson)
    before, after = tokenizer.encode(prompt).ids, tokenizer.encode(answer).ids
    return Sample(before + after, len(before), SECOND_CHOICE if lesson.forced else 1.0)
