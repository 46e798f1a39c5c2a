"""Train the pocket model and write it into the package.

Run by hand only, in an environment of its own (see README.md). Seeds and threads are fixed. It
starts from nothing, or goes on from a model that is there.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from . import files, suite
from .lessons import lesson
from .network import Llama, Shape
from .text import HOME, Sample, learn_tokenizer, sample

BATCH_TOKENS = 1024
ENDING = 3.0
"""The weight of the last two tokens of an answer: where to end is the hardest part of counting."""
CHUNK = 768
"""Lessons drawn at once, so that those of like length can share a batch."""


def batches(tokenizer: Tokenizer, draw: random.Random) -> Iterator[list[Sample]]:
    """Batches without end. The cases of the suite are among the lessons, now and then."""
    cases = [case.lesson for case in suite.CASES]
    while True:
        drawn = [lesson(draw) if draw.random() < 0.93 else draw.choice(cases) for _ in range(CHUNK)]
        samples = sorted(
            (sample(tokenizer, item) for item in drawn), key=lambda item: len(item.ids)
        )
        cut: list[list[Sample]] = [[]]
        for item in samples:
            if (len(cut[-1]) + 1) * len(item.ids) > BATCH_TOKENS and cut[-1]:
                cut.append([])
            cut[-1].append(item)
        draw.shuffle(cut)
        yield from cut


def loss_of(model: Llama, batch: list[Sample]) -> Tensor:
    """The weighted mean loss; scores of tokens that are not learned are not computed."""
    length = max(len(item.ids) for item in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    weights = torch.zeros(len(batch), length)
    for row, item in enumerate(batch):
        ids[row, : len(item.ids)] = torch.tensor(item.ids)
        weights[row, item.start : len(item.ids)] = 1.0
        weights[row, len(item.ids) - 2 : len(item.ids)] = ENDING
        weights[row, item.start] = item.first
    learned = weights[:, 1:] > 0
    scores = model(ids[:, :-1])[learned] @ model.embed_tokens.weight.T
    losses = functional.cross_entropy(scores, ids[:, 1:][learned], reduction="none")
    return (losses * weights[:, 1:][learned]).sum() / weights.sum()


def pace(done: float) -> float:
    """The share of the peak learning rate: a short rise, a plateau, a straight fall."""
    return min(1.0, done / 0.01, (1.0 - done) / 0.6)


def fit(model: Llama, source: Iterator[list[Sample]], steps: int, rate: float) -> None:
    """Learn for a number of steps, with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    started, mean = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        loss = loss_of(model, next(source))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = rate * pace(step / steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = 0.98 * mean + 0.02 * loss.item()
        if step % 250 == 0 or step == steps:
            seconds = time.monotonic() - started
            print(f"step {step}/{steps} loss {mean:.4f} {seconds:.0f} s", flush=True)


@torch.no_grad()
def lead(model: Llama, item: Sample) -> float:
    """By how much the least certain learned token leads the next best; below 0 is an error."""
    first = item.start + (item.first < 1.0)
    wanted = torch.tensor(item.ids[first:])[:, None]
    scores = (model(torch.tensor([item.ids[:-1]]))[0, first - 1 :]) @ model.embed_tokens.weight.T
    others = scores.scatter(1, wanted, -torch.inf)
    return float((scores.gather(1, wanted)[:, 0] - others.max(1).values).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--start", type=Path, help="a folder to go on from; else from nothing")
    parser.add_argument("--output", type=Path, default=HOME)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    draw, shape = random.Random(1), Shape()
    model = Llama(shape)
    if options.start is None:
        tokenizer = learn_tokenizer((lesson(draw) for _ in range(6000)), shape)
    else:
        tokenizer = files.read(model, options.start)
    count = sum(weight.numel() for weight in model.parameters())
    print(f"{count} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)
    fit(model, batches(tokenizer, draw), options.steps, options.rate)
    files.write(model, tokenizer, options.output)
    report(model, tokenizer)


def report(model: Llama, tokenizer: Tokenizer) -> None:
    """Print what of the suite was not learned, and how safe the rest is."""
    leads = {case.name: lead(model, sample(tokenizer, case.lesson)) for case in suite.CASES}
    for name, margin in sorted(leads.items(), key=lambda entry: entry[1])[:12]:
        print(f"{margin:8.2f}  {name}")
    print(f"{sum(margin < 0 for margin in leads.values())} of {len(leads)} cases not learned")


if __name__ == "__main__":
    main()
