"""The model as torch trains it: a Llama with tied embeddings, its weights named as usual.

It must compute what the numpy engine computes; a test compares that one with llama.cpp. Nothing
here knows what is learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of the model, by their names in `config.json`."""

    vocab_size: int = 1024
    hidden_size: int = 128
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    intermediate_size: int = 256
    max_position_embeddings: int = 4096
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


class Attention(nn.Module):
    """Causal attention with grouped keys and rotary positions (halves, not pairs)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        keys = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        rows, length, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(rows, length, -1, self.shape.head_dim).transpose(1, 2)

        def rotate(y: Tensor) -> Tensor:
            left, right = y.chunk(2, -1)
            return y * cosine + torch.cat((-right, left), -1) * sine

        q, k = rotate(heads(self.q_proj(x))), rotate(heads(self.k_proj(x)))
        v = heads(self.v_proj(x))
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))


class Feed(nn.Module):
    """The gated feed-forward part (SwiGLU)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then the feed-forward part, each behind its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Feed(shape)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Token ids in, the last hidden states out; the embedding turns those into scores."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = 0.05 / math.sqrt(2 * shape.num_hidden_layers) if deep else 0.05
                nn.init.normal_(weight, std=scale)

    def forward(self, ids: Tensor) -> Tensor:
        half = self.shape.head_dim // 2
        speed = self.shape.rope_theta ** (-torch.arange(half) / half)
        angle = torch.arange(ids.shape[1])[:, None] * torch.cat((speed, speed))
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, angle.cos(), angle.sin())
        return self.norm(x)
