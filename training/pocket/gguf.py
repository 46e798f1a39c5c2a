"""Write the model's folder as one GGUF file, which llama.cpp runs.

    python -m training.pocket.gguf pocket.gguf

The numbers are the same ones. With `--single` the matrices are stored in single precision, so that
llama.cpp rounds nothing in between; else in half precision, as in the package. Needs numpy only.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.engines.pocket.model import Array, read

HOME = Path(__file__).parents[2] / "src/dragoman/engines/pocket"
ALIGNMENT = 32
_NORMAL, _CONTROL = 1, 3
_FLOAT, _HALF = 0, 1
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def export(folder: Path, output: Path, *, single: bool = False) -> None:
    """Read the folder and write the file."""
    config = json.loads((folder / "config.json").read_text())
    fields = {**_sizes(config), **vocabulary(folder, config)}
    if not single:
        fields["general.file_type"] = 1
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for name, weight in read(folder / "model.safetensors").items():
        renamed = _renamed(name)
        part = renamed.split(".")[-2]
        tensors[renamed] = _paired(weight, heads[part]) if part in heads else weight
    output.write_bytes(gguf_file(fields, tensors, single))


def _sizes(config: dict[str, Any]) -> dict[str, object]:
    return {
        "general.architecture": "llama",
        "general.name": "pocket, the demonstration model of Dragoman",
        "general.license": "Apache-2.0",
        "llama.vocab_size": config["vocab_size"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.dimension_count": config["head_dim"],
        "llama.rope.freq_base": float(config["rope_theta"]),
    }


def vocabulary(folder: Path, config: dict[str, Any]) -> dict[str, object]:
    """The tokens; `gpt-2` is the way of splitting words that ours is."""
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = sorted(described["model"]["vocab"].items(), key=lambda entry: entry[1])
    controls = {added["id"] for added in described["added_tokens"]}
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    # llama.cpp gives what opens an answer to the grammar, if there is one, and ends its process at
    # an end token in it: so there is no request to think.
    template, found = re.subn(
        r"\n *\{%- if enable_thinking %\}.*?\{%- endif %\}", "", template, flags=re.S
    )
    assert found == 1
    merges = [m if isinstance(m, str) else " ".join(m) for m in described["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [token for token, _ in tokens],
        "tokenizer.ggml.token_type": [_CONTROL if id in controls else _NORMAL for _, id in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template,
    }


def _renamed(name: str) -> str:
    """A tensor's name as GGUF has it."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in whole:
        return whole[name]
    index, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{index}.{_NAMES[part]}.weight"


def _paired(weight: Array, heads: int) -> Array:
    """Reorder rotary halves into the interleaved pairs that GGUF's Llama expects."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def gguf_file(fields: dict[str, object], tensors: dict[str, Array], single: bool) -> bytes:
    """Header, fields, places of the tensors, and the tensors, each at a multiple of 32 bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    head += b"".join(_text(key) + _value(value) for key, value in fields.items())
    body = b""
    for name, weight in tensors.items():
        half = weight.ndim > 1 and not single
        sizes = struct.pack(f"<I{weight.ndim}Q", weight.ndim, *reversed(weight.shape))
        head += _text(name) + sizes + struct.pack("<IQ", _HALF if half else _FLOAT, len(body))
        data = weight.astype(np.float16 if half else np.float32).tobytes()
        body += data + bytes(-len(data) % ALIGNMENT)
    return head + bytes(-len(head) % ALIGNMENT) + body


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    """A value behind the number of its type."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    raise TypeError(f"GGUF has no type for {value!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--single", action="store_true", help="matrices in single precision")
    parser.add_argument("--folder", type=Path, default=HOME)
    options = parser.parse_args()
    export(options.folder, options.output, single=options.single)


if __name__ == "__main__":
    main()
