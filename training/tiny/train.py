"""Train the tiny test model from its transcripts and write it as `tiny.gguf`.

Run by hand only, in an environment of its own (see tests/upstream/model/README.md); no test imports
it. Seeds and the number of threads are fixed, so one machine gives one file. Nothing here knows of
Dragoman.
"""

import argparse
import hashlib
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import gguf
import jinja2
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transcripts import ROOMS, SYSTEMS, Message, Transcript, transcripts

MODEL = Path(__file__).resolve().parents[2] / "tests" / "upstream" / "model"
TEMPLATE = (MODEL / "template.jinja").read_text(encoding="utf-8")
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SECOND_CHOICE = 0.05
BATCH_TOKENS = 320


@dataclass(frozen=True)
class Shape:
    """The sizes of the model, in the terms of the Llama architecture."""

    vocabulary: int = 1024
    width: int = 128
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    inner: int = 320
    context: int = 16384
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True)
class Sample:
    """A rendered conversation: its token ids, and how much each of them counts in the loss."""

    ids: list[int]
    weights: list[float]


def python_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def renderer() -> jinja2.Template:
    """Compile the chat template with the JSON filter that llama.cpp gives it."""
    environment = jinja2.Environment(autoescape=False)
    environment.filters["tojson"] = python_json
    return environment.from_string(TEMPLATE)


def parsed(message: Message) -> Message:
    """Turn call arguments into objects, as llama.cpp does before it renders them."""
    if "tool_calls" not in message:
        return message
    calls = [dict(call, function=dict(call["function"])) for call in message["tool_calls"]]
    for call in calls:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return dict(message, tool_calls=calls)


def render(
    template: jinja2.Template, transcript: Transcript, system: str | None
) -> tuple[str, str]:
    """Return the prompt as the server renders it, and the text that the model is to write."""
    past = [parsed(message) for message in transcript.messages]
    if system is not None:
        past.insert(0, {"role": "system", "content": system})
    prompt = template.render(messages=past, tools=transcript.tools, add_generation_prompt=True)
    whole = template.render(messages=[*past, parsed(transcript.answer)], tools=transcript.tools)
    if not whole.startswith(prompt):
        raise ValueError(f"the template does not continue its own prompt: {whole!r}")
    answer = whole[len(prompt) :].removesuffix("\n")
    return prompt, answer.removesuffix(STOP) if transcript.endless else answer


def train_tokenizer(texts: list[str], shape: Shape) -> Tokenizer:
    """Learn a byte-level BPE that splits words as GPT-2 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=[END, START, STOP],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def sample(tokenizer: Tokenizer, prompt: str, answer: str, forced: bool) -> Sample:
    """Tokenize a turn; only the answer counts, and the first token of a forced one but little."""
    before, after = tokenizer.encode(prompt).ids, tokenizer.encode(answer).ids
    first = SECOND_CHOICE if forced else 1.0
    return Sample(before + after, [0.0] * len(before) + [first] + [1.0] * (len(after) - 1))


class Attention(nn.Module):
    """Causal attention with grouped keys and rotary positions (halves, not pairs)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        keys = shape.kv_heads * shape.head_width
        self.q = nn.Linear(shape.width, shape.width, bias=False)
        self.k = nn.Linear(shape.width, keys, bias=False)
        self.v = nn.Linear(shape.width, keys, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        rows, length, _ = x.shape

        def heads(y: Tensor, count: int) -> Tensor:
            return y.view(rows, length, count, self.shape.head_width).transpose(1, 2)

        def rotate(y: Tensor) -> Tensor:
            left, right = y.chunk(2, -1)
            return y * cosine + torch.cat((-right, left), -1) * sine

        q = rotate(heads(self.q(x), self.shape.heads))
        k = rotate(heads(self.k(x), self.shape.kv_heads))
        v = heads(self.v(x), self.shape.kv_heads)
        groups = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(rows, length, -1))


class Block(nn.Module):
    """One layer: attention, then a gated feed-forward, each behind its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, shape.epsilon)
        self.attention = Attention(shape)
        self.inner_norm = nn.RMSNorm(shape.width, shape.epsilon)
        self.gate = nn.Linear(shape.width, shape.inner, bias=False)
        self.up = nn.Linear(shape.width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        y = self.inner_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A Llama with tied embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, shape.epsilon)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.05 / math.sqrt(2 * shape.layers) if deep else 0.05)

    def forward(self, ids: Tensor) -> Tensor:
        half = self.shape.head_width // 2
        speed = self.shape.rope_base ** (-torch.arange(half) / half)
        angle = torch.arange(ids.shape[1])[:, None] * torch.cat((speed, speed))
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, angle.cos(), angle.sin())
        return self.norm(x)


def batches(samples: list[Sample], draw: random.Random) -> list[list[Sample]]:
    """Cut the samples, neighbours of like length together, into small batches in random order."""
    ordered = sorted(samples, key=lambda item: (len(item.ids), draw.random()))
    cut: list[list[Sample]] = [[]]
    for item in ordered:
        if (len(cut[-1]) + 1) * len(item.ids) > BATCH_TOKENS and cut[-1]:
            cut.append([])
        cut[-1].append(item)
    draw.shuffle(cut)
    return cut


def loss_of(model: Llama, batch: list[Sample]) -> Tensor:
    """Return the weighted mean loss; the logits of tokens that do not count are not computed."""
    length = max(len(item.ids) for item in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    weights = torch.zeros(len(batch), length)
    for row, item in enumerate(batch):
        ids[row, : len(item.ids)] = torch.tensor(item.ids)
        weights[row, : len(item.weights)] = torch.tensor(item.weights)
    counted = weights[:, 1:] > 0
    logits = model(ids[:, :-1])[counted] @ model.embedding.weight.T
    losses = functional.cross_entropy(logits, ids[:, 1:][counted], reduction="none")
    return (losses * weights[:, 1:][counted]).sum() / weights.sum()


def schedule(done: float) -> float:
    """Return the share of the peak learning rate: a short rise, a plateau, a straight fall."""
    return min(1.0, done / 0.01, (1.0 - done) / 0.6)


def fit(model: Llama, plan: list[list[Sample]], rate: float) -> None:
    """Train with AdamW over the batches of the plan."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    started = time.monotonic()
    for step, batch in enumerate(plan, 1):
        optimizer.param_groups[0]["lr"] = rate * schedule(step / len(plan))
        loss = loss_of(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 500 == 0 or step == len(plan):
            seconds = time.monotonic() - started
            print(f"step {step}/{len(plan)} loss {loss.item():.4f} {seconds:.0f} s", flush=True)


def paired(weight: Tensor, heads: int) -> Tensor:
    """Reorder rotary halves into the interleaved pairs that GGUF's Llama expects."""
    rows, columns = weight.shape
    halves = weight.view(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


def tensors(model: Llama) -> dict[str, Tensor]:
    """Name the weights as GGUF does."""
    shape = model.shape
    named = {"token_embd": model.embedding.weight, "output_norm": model.norm.weight}
    for index, block in enumerate(model.blocks):
        named |= {
            f"blk.{index}.attn_norm": block.attention_norm.weight,
            f"blk.{index}.attn_q": paired(block.attention.q.weight, shape.heads),
            f"blk.{index}.attn_k": paired(block.attention.k.weight, shape.kv_heads),
            f"blk.{index}.attn_v": block.attention.v.weight,
            f"blk.{index}.attn_output": block.attention.out.weight,
            f"blk.{index}.ffn_norm": block.inner_norm.weight,
            f"blk.{index}.ffn_gate": block.gate.weight,
            f"blk.{index}.ffn_up": block.up.weight,
            f"blk.{index}.ffn_down": block.down.weight,
        }
    return named


def write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Store the vocabulary; `gpt-2` is the pre-tokenizer that splits as ours does."""
    state = json.loads(tokenizer.to_str())
    vocabulary = sorted(state["model"]["vocab"].items(), key=lambda entry: entry[1])
    special = [gguf.TokenType.CONTROL] * 3
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types(special + [gguf.TokenType.NORMAL] * (len(vocabulary) - len(special)))
    writer.add_token_merges([" ".join(merge) for merge in state["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.token_to_id(END))
    writer.add_eos_token_id(tokenizer.token_to_id(STOP))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def export(model: Llama, tokenizer: Tokenizer, path: Path) -> None:
    """Write the model: matrices in half precision, norms in single."""
    shape = model.shape
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny test model")
    writer.add_license("Apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    write_tokenizer(writer, tokenizer)
    for name, weight in tensors(model).items():
        kind = np.float16 if weight.dim() > 1 else np.float32
        writer.add_tensor(f"{name}.weight", weight.detach().numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def lesson_plan(
    tokenizer: Tokenizer, template: jinja2.Template, rounds: int, draw: random.Random
) -> list[list[Sample]]:
    """Render every transcript anew in each round, half of the time under a system message."""
    lessons = [item for room, times in ROOMS.items() for item in list(room()) * times]
    plan = []
    for _ in range(rounds):
        systems = draw.choices((None, *SYSTEMS), (6, 3, 1, 1, 1), k=len(lessons))
        samples = [
            sample(tokenizer, *render(template, item, system), item.forced)
            for item, system in zip(lessons, systems, strict=True)
        ]
        plan += batches(samples, draw)
    return plan


@torch.no_grad()
def margin(model: Llama, item: Sample) -> float:
    """Return by how much the least certain learned token leads the next best; < 0 is an error."""
    learned = torch.tensor(item.weights[1:]) == 1.0
    wanted = torch.tensor(item.ids[1:])[learned, None]
    logits = (model(torch.tensor([item.ids[:-1]])) @ model.embedding.weight.T)[0][learned]
    others = logits.scatter(1, wanted, -torch.inf)
    return float((logits.gather(1, wanted)[:, 0] - others.max(1).values).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24, help="passes over the transcripts")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="peak learning rate")
    parser.add_argument("--output", type=Path, default=MODEL / "tiny.gguf")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    draw, shape, template = random.Random(1), Shape(), renderer()
    turns = [(render(template, item, None), item) for item in transcripts()]
    tokenizer = train_tokenizer(["".join(turn) for turn, _ in turns], shape)
    model = Llama(shape)
    count = sum(weight.numel() for weight in model.parameters())
    print(f"{len(turns)} transcripts, {count} parameters", flush=True)
    fit(model, lesson_plan(tokenizer, template, options.rounds, draw), options.rate)
    export(model, tokenizer, options.output)
    margins = [margin(model, sample(tokenizer, *turn, item.forced)) for turn, item in turns]
    wrong = sum(lead < 0 for lead in margins)
    print(f"{wrong} transcripts not learned, least margin {min(margins):.2f}")
    digest = hashlib.sha256(options.output.read_bytes()).hexdigest()
    options.output.with_suffix(".sha256").write_text(f"{digest}  {options.output.name}\n")
    print(digest, options.output.name)


if __name__ == "__main__":
    main()
