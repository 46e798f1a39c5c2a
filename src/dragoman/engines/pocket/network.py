"""A Llama in numpy: rows of token ids in, scores of the next token out.

Several sequences are computed at once; what they have in common (the matrices) is applied to all
their rows together. Where keys and values live between calls is told by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .weights import Array

Complex = NDArray[np.complex64]


class Shape(Struct, frozen=True):
    """The sizes of a Llama, by their names in `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float


class Stretch(Struct, frozen=True):
    """New tokens of one sequence, and the memory of its keys and values.

    `memory` has the axes layer, key or value, head, position, and room for the new tokens from
    position `start` on, where they will be written.
    """

    ids: Sequence[int]
    start: int
    memory: Array

    @property
    def end(self) -> int:
        """The position after the last of the new tokens."""
        return self.start + len(self.ids)


class _Layer(Struct, frozen=True):
    """The matrices of one layer, turned so that rows are multiplied from the left. The weights of
    the norms, and the scale of the attention, are already in them."""

    attend: Array
    out: Array
    widen: Array
    narrow: Array


class Network:
    """The computation, with its weights (named as `transformers` names them)."""

    def __init__(self, shape: Shape, weights: Mapping[str, Array]) -> None:
        self.shape = shape
        self._embedding = weights["model.embed_tokens.weight"]
        self._scores = _turned(self._embedding, weights["model.norm.weight"])
        layers = range(shape.num_hidden_layers)
        self._layers = [_layer(shape, weights, f"model.layers.{index}.") for index in layers]
        self._turns = _turns(shape)

    def __call__(self, stretches: Sequence[Stretch]) -> Array:
        """Read all stretches, and score what follows each: one row of scores for each of them."""
        ids = [id for stretch in stretches for id in stretch.ids]
        x = self._embedding[ids]
        turns = self._turned_by(stretches)
        for index, layer in enumerate(self._layers):
            x += self._attention(
                layer, _normed(x, self.shape.rms_norm_eps), turns, stretches, index
            )
            x += _feed(layer, _normed(x, self.shape.rms_norm_eps))
        last = np.cumsum([len(stretch.ids) for stretch in stretches]) - 1
        return _normed(x[last], self.shape.rms_norm_eps) @ self._scores

    def _turned_by(self, stretches: Sequence[Stretch]) -> Complex:
        """The rotations of all rows, by their positions."""
        parts = [self._turns[stretch.start : stretch.end] for stretch in stretches]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts))[:, None]

    def _attention(
        self, layer: _Layer, x: Array, turns: Complex, stretches: Sequence[Stretch], index: int
    ) -> Array:
        shape = self.shape
        heads, keys = shape.num_attention_heads, shape.num_key_value_heads
        rows = (x @ layer.attend).reshape(len(x), heads + 2 * keys, shape.head_dim)
        turning = rows[:, : heads + keys].view(np.complex64)
        turning *= turns
        mixed = np.empty((len(x), heads * shape.head_dim), np.float32)
        row = 0
        for stretch in stretches:
            end = row + len(stretch.ids)
            mixed[row:end] = self._mixed(rows[row:end], stretch, index)
            row = end
        return mixed @ layer.out

    def _mixed(self, rows: Array, stretch: Stretch, index: int) -> Array:
        """The values of one sequence, mixed for each of its new rows as much as they matter."""
        shape, count = self.shape, len(rows)
        heads, kept = shape.num_attention_heads, shape.num_key_value_heads
        keys, values = stretch.memory[index]
        keys[:, stretch.start : stretch.end] = rows[:, heads:-kept].swapaxes(0, 1)
        values[:, stretch.start : stretch.end] = rows[:, -kept:].swapaxes(0, 1)
        # Heads that share their keys stand below one another: one product serves them all.
        asked = rows[:, :heads].reshape(count, kept, -1, shape.head_dim).transpose(1, 2, 0, 3)
        flat = asked.reshape(kept, -1, shape.head_dim)
        weights = flat @ keys[:, : stretch.end].swapaxes(1, 2)
        if count > 1:
            later = np.arange(stretch.end) > np.arange(stretch.start, stretch.end)[:, None]
            weights.reshape(kept, -1, count, stretch.end)[:, :, later] = -np.inf
        weights -= weights.max(-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(-1, keepdims=True)
        found: Array = weights @ values[:, : stretch.end]
        return (
            found.reshape(kept, -1, count, shape.head_dim).transpose(2, 0, 1, 3).reshape(count, -1)
        )


def _normed(x: Array, epsilon: float) -> Array:
    scale: Array = np.einsum("ij,ij->i", x, x)[:, None] * np.float32(1 / x.shape[1])
    scale += np.float32(epsilon)
    normed: Array = np.divide(x, np.sqrt(scale))
    return normed


def _feed(layer: _Layer, x: Array) -> Array:
    both: Array = x @ layer.widen
    gate, up = np.split(both, 2, axis=1)
    up *= gate / (1 + np.exp(-gate))
    fed: Array = up @ layer.narrow
    return fed


def _turns(shape: Shape) -> Complex:
    """The rotation of each pair of numbers at each position, as complex numbers."""
    speeds = shape.rope_theta ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = np.outer(np.arange(shape.max_position_embeddings), speeds)
    turns: Complex = np.exp(1j * angles).astype(np.complex64)
    return turns


def _layer(shape: Shape, weights: Mapping[str, Array], name: str) -> _Layer:
    attention, feed = f"{name}self_attn.", f"{name}mlp."
    asked = _paired(weights[f"{attention}q_proj.weight"], shape.head_dim)
    asked *= np.float32(shape.head_dim**-0.5)
    keys = _paired(weights[f"{attention}k_proj.weight"], shape.head_dim)
    attend = np.concatenate((asked, keys, weights[f"{attention}v_proj.weight"]))
    widen = [weights[f"{feed}{part}_proj.weight"] for part in ("gate", "up")]
    return _Layer(
        _turned(attend, weights[f"{name}input_layernorm.weight"]),
        _turned(weights[f"{attention}o_proj.weight"]),
        _turned(np.concatenate(widen), weights[f"{name}post_attention_layernorm.weight"]),
        _turned(weights[f"{feed}down_proj.weight"]),
    )


def _paired(weight: Array, head_dim: int) -> Array:
    """The rows that are rotated together, the halves of a head, as neighbours."""
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _turned(weight: Array, norm: Array | None = None) -> Array:
    return np.ascontiguousarray((weight if norm is None else weight * norm).T)
