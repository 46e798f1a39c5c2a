"""The model as files: a folder such as any Llama is kept in.

`config.json`, `tokenizer.json`, `tokenizer_config.json` and `model.safetensors` mean what they
always do, so other programs can read the folder too. Matrices are of half precision.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from .network import Llama
from .text import END, START, STOP

SUMS = "SHA256SUMS"
SHARPNESS = 2.0
"""What the last norm, and so every score, is multiplied with: whoever asks for no temperature gets
1, and at that a model so small would stumble now and then. Greedy choices are the same."""


def write(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder, and the digests of the files that training makes."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "bos_token_id": tokenizer.token_to_id(END),
        "eos_token_id": tokenizer.token_to_id(STOP),
        **asdict(model.shape),
        "head_dim": model.shape.head_dim,
    }
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": STOP,
        "additional_special_tokens": [START],
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.shape.max_position_embeddings,
    }
    texts = {
        "config.json": _pretty(config),
        "tokenizer_config.json": _pretty(names),
        "tokenizer.json": tokenizer.to_str(pretty=False),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "model.safetensors").write_bytes(_safetensors(model))
    digests = (
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in (*texts, "model.safetensors")
    )
    (folder / SUMS).write_text("".join(digests))


def read(model: Llama, folder: Path) -> Tokenizer:
    """Take the weights of a folder into the model, and return its tokenizer."""
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    state = {}
    for name, place in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        first, last = (8 + size + offset for offset in place["data_offsets"])
        kind = np.float16 if place["dtype"] == "F16" else np.float32
        weight = np.frombuffer(data[first:last], kind).astype(np.float32)
        state[name.removeprefix("model.")] = torch.from_numpy(weight.reshape(place["shape"]))
    state["norm.weight"] /= SHARPNESS
    model.load_state_dict(state)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _safetensors(model: Llama) -> bytes:
    """The weights: a header in JSON that says where each one stands, and then their bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, weight in model.state_dict().items():
        if name == "norm.weight":
            weight = weight * SHARPNESS
        half = weight.dim() > 1
        data = weight.numpy().astype(np.float16 if half else np.float32).tobytes()
        header[f"model.{name}"] = {
            "dtype": "F16" if half else "F32",
            "shape": list(weight.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + body
