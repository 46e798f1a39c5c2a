"""The pocket model: its weights, a Llama in numpy, and its cache of keys and values."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, json
from numpy.typing import NDArray

from dragoman.engines.token.vocabulary import Vocabulary, from_folder
from dragoman.formats.template import Template

_FOLDERS = ("../numpy.libs", ".dylibs")
"""Where wheels keep their libraries, relative to numpy's folder."""
_GET, _SET = "scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"


def _found() -> tuple[Callable[[], int], Callable[[int], object]]:
    """Get and set the number of BLAS threads; without OpenBLAS they do nothing."""
    home = Path(np.__file__).parent
    for folder in _FOLDERS:
        for file in (home / folder).glob("*openblas*"):
            library = ctypes.CDLL(str(file))
            if hasattr(library, _GET) and hasattr(library, _SET):
                return getattr(library, _GET), getattr(library, _SET)
    return (lambda: 1), (lambda count: None)


_get, _set = _found()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run BLAS with one thread: for matrices this small more are slower."""
    before = _get()
    _set(1)
    try:
        yield
    finally:
        _set(before)


Array = NDArray[np.float32]

_KINDS = {"F16": np.float16, "F32": np.float32}


def read(file: Path) -> dict[str, Array]:
    """The arrays of a safetensors file by name, in single precision. Raises ValueError for another
    file."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    arrays: dict[str, Array] = {}
    try:
        header = json.decode(data[8 : 8 + size], type=dict[str, dict[str, Any]])
        header.pop("__metadata__", None)
        for name, described in header.items():
            # Where the array stands, as bytes counted from the end of the header.
            first, last = (8 + size + offset for offset in described["data_offsets"])
            found = np.frombuffer(data[first:last], _KINDS[described["dtype"]])
            arrays[name] = found.reshape(described["shape"]).astype(np.float32)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file.name} holds no weights: {error}") from None
    return arrays


Complex = NDArray[np.complex64]


class Shape(Struct, frozen=True):
    """The sizes of a Llama, by their names in `config.json`."""

    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float


class Chunk(Struct, frozen=True):
    """New tokens of one sequence, and its cache of keys and values.

    `cache` has the axes layer, key or value, head, position, with room for the new tokens from
    position `start` on.
    """

    ids: Sequence[int]
    start: int
    cache: Array

    @property
    def end(self) -> int:
        """The position after the last of the new tokens."""
        return self.start + len(self.ids)


class _Layer(Struct, frozen=True):
    """The matrices of one layer, transposed. The weights of the norms, and the scale of the
    attention, are multiplied into them."""

    attend: Array
    out: Array
    widen: Array
    narrow: Array


class Network:
    """The network, with its weights (named as `transformers` names them)."""

    def __init__(self, shape: Shape, weights: Mapping[str, Array]) -> None:
        self.shape = shape
        self._embedding = weights["model.embed_tokens.weight"]
        self._scores = _transposed(self._embedding, weights["model.norm.weight"])
        layers = range(shape.num_hidden_layers)
        self._layers = [_layer(shape, weights, f"model.layers.{index}.") for index in layers]
        self._rotations = _rotations(shape)

    def __call__(self, chunks: Sequence[Chunk]) -> Array:
        """Read all chunks, and score what follows each: one row of scores per chunk."""
        ids = [id for chunk in chunks for id in chunk.ids]
        x = self._embedding[ids]
        rotations = np.concatenate([self._rotations[each.start : each.end] for each in chunks])
        rotations = rotations[:, None]  # of all rows, by position
        for index, layer in enumerate(self._layers):
            x += self._attention(
                layer, _normed(x, self.shape.rms_norm_eps), rotations, chunks, index
            )
            x += _feed_forward(layer, _normed(x, self.shape.rms_norm_eps))
        last = np.cumsum([len(chunk.ids) for chunk in chunks]) - 1
        return _normed(x[last], self.shape.rms_norm_eps) @ self._scores

    def _attention(
        self, layer: _Layer, x: Array, rotations: Complex, chunks: Sequence[Chunk], index: int
    ) -> Array:
        shape = self.shape
        heads, keys = shape.num_attention_heads, shape.num_key_value_heads
        rows = (x @ layer.attend).reshape(len(x), heads + 2 * keys, shape.head_dim)
        rotated = rows[:, : heads + keys].view(np.complex64)
        rotated *= rotations
        attended = np.empty((len(x), heads * shape.head_dim), np.float32)
        row = 0
        for chunk in chunks:
            end = row + len(chunk.ids)
            attended[row:end] = self._attend(rows[row:end], chunk, index)
            row = end
        return attended @ layer.out

    def _attend(self, rows: Array, chunk: Chunk, index: int) -> Array:
        """Attention of one sequence, for its new rows."""
        shape, count = self.shape, len(rows)
        heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        keys, values = chunk.cache[index]
        keys[:, chunk.start : chunk.end] = rows[:, heads:-kv_heads].swapaxes(0, 1)
        values[:, chunk.start : chunk.end] = rows[:, -kv_heads:].swapaxes(0, 1)
        # Heads that share their keys stand below one another: one product serves them all.
        queries = rows[:, :heads].reshape(count, kv_heads, -1, shape.head_dim).transpose(1, 2, 0, 3)
        flat = queries.reshape(kv_heads, -1, shape.head_dim)
        weights = flat @ keys[:, : chunk.end].swapaxes(1, 2)
        if count > 1:
            later = np.arange(chunk.end) > np.arange(chunk.start, chunk.end)[:, None]
            weights.reshape(kv_heads, -1, count, chunk.end)[:, :, later] = -np.inf
        weights -= weights.max(-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(-1, keepdims=True)
        found: Array = weights @ values[:, : chunk.end]
        return (
            found.reshape(kv_heads, -1, count, shape.head_dim)
            .transpose(2, 0, 1, 3)
            .reshape(count, -1)
        )


def _normed(x: Array, epsilon: float) -> Array:
    scale: Array = np.einsum("ij,ij->i", x, x)[:, None] * np.float32(1 / x.shape[1])
    scale += np.float32(epsilon)
    normed: Array = np.divide(x, np.sqrt(scale))
    return normed


def _feed_forward(layer: _Layer, x: Array) -> Array:
    both: Array = x @ layer.widen
    gate, up = np.split(both, 2, axis=1)
    up *= gate / (1 + np.exp(-gate))
    fed: Array = up @ layer.narrow
    return fed


def _rotations(shape: Shape) -> Complex:
    """The rotation of each pair of numbers at each position (RoPE), as complex numbers."""
    speeds = shape.rope_theta ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = np.outer(np.arange(shape.max_position_embeddings), speeds)
    rotations: Complex = np.exp(1j * angles).astype(np.complex64)
    return rotations


def _layer(shape: Shape, weights: Mapping[str, Array], name: str) -> _Layer:
    attention, feed = f"{name}self_attn.", f"{name}mlp."
    queries = _interleaved(weights[f"{attention}q_proj.weight"], shape.head_dim)
    queries *= np.float32(shape.head_dim**-0.5)
    keys = _interleaved(weights[f"{attention}k_proj.weight"], shape.head_dim)
    attend = np.concatenate((queries, keys, weights[f"{attention}v_proj.weight"]))
    widen = [weights[f"{feed}{part}_proj.weight"] for part in ("gate", "up")]
    return _Layer(
        _transposed(attend, weights[f"{name}input_layernorm.weight"]),
        _transposed(weights[f"{attention}o_proj.weight"]),
        _transposed(np.concatenate(widen), weights[f"{name}post_attention_layernorm.weight"]),
        _transposed(weights[f"{feed}down_proj.weight"]),
    )


def _interleaved(weight: Array, head_dim: int) -> Array:
    """The rows that are rotated together, the halves of a head, as neighbours."""
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _transposed(weight: Array, norm: Array | None = None) -> Array:
    return np.ascontiguousarray((weight if norm is None else weight * norm).T)


MAX_CLOSED = 32
"""Closed slots that keep their keys and values."""
MAX_KEPT = 16_384
"""Tokens for which they have room together (1.5 KB each)."""
ROOM = 64
"""Tokens a slot has room for at first; it doubles when full."""


class Pocket:
    """A `ScoringModel` over the network. It is used from one thread."""

    def __init__(self, network: Network, *, max_closed: int = MAX_CLOSED) -> None:
        self._network = network
        self._max_closed = max_closed
        self._slots: OrderedDict[int, KVCache] = OrderedDict()
        self._open: set[int] = set()

    @property
    def context(self) -> int:
        return self._network.shape.max_position_embeddings

    def open(self, ids: Sequence[int], tenant: str = "") -> KVCache:
        """A slot that reuses the longest prefix of the prompt that any of the tenant's has read."""
        prompt = np.array(ids[:-1], np.int32)
        cache = KVCache(self._network.shape, tenant)
        best, shared = None, 0
        for known in self._slots.values():
            if known.tenant == tenant and (common := known.common(prompt)) > shared:
                best, shared = known, common
        if best is not None:
            cache.copy(best, shared)
            self._slots.move_to_end(id(best))
        self._slots[id(cache)] = cache
        self._open.add(id(cache))
        return cache

    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Sequence[Array]:
        chunks = [slot.chunk(ids) for slot, ids in work]
        with one_thread():
            scores = self._network(chunks)
        for slot, ids in work:
            slot.read(ids)
        return list(scores)

    def close(self, slot: Any) -> None:
        """Keep a slot for prompts that begin alike; the least recently used ones are dropped."""
        self._open.discard(id(slot))
        self._slots.move_to_end(id(slot))
        closed = [key for key in self._slots if key not in self._open]
        tokens = sum(self._slots[key].room for key in closed)
        for left, key in zip(range(len(closed), 1, -1), closed, strict=False):
            if left <= self._max_closed and tokens <= MAX_KEPT:
                break
            tokens -= self._slots.pop(key).room


class KVCache:
    """One sequence: the ids that were read, and their keys and values in every layer."""

    def __init__(self, shape: Shape, tenant: str = "") -> None:
        self.length, self.tenant = 0, tenant
        self._most = shape.max_position_embeddings
        heads = (shape.num_hidden_layers, 2, shape.num_key_value_heads)
        self._values: Array = np.empty((*heads, ROOM, shape.head_dim), np.float32)
        self._ids: NDArray[np.int32] = np.empty(ROOM, np.int32)

    @property
    def room(self) -> int:
        """For how many tokens it has memory."""
        return len(self._ids)

    def common(self, ids: NDArray[np.int32]) -> int:
        """How many leading ids are the same."""
        most = min(self.length, len(ids))
        different = self._ids[:most] != ids[:most]
        return int(different.argmax()) if different.any() else most

    def copy(self, other: KVCache, length: int) -> None:
        """Begin with a prefix of another sequence."""
        self._reserve(length)
        self._values[..., :length, :] = other._values[..., :length, :]
        self._ids[:length] = other._ids[:length]
        self.length = length

    def chunk(self, ids: Sequence[int]) -> Chunk:
        """The new ids with room for their keys and values. Raises ValueError beyond the context."""
        end = self.length + len(ids)
        if end > self._most:
            raise ValueError(f"{end} tokens are more than the {self._most} this model can read")
        self._reserve(end)
        return Chunk(ids, self.length, self._values)

    def read(self, ids: Sequence[int]) -> None:
        """The new ids have been read."""
        end = self.length + len(ids)
        self._ids[self.length : end] = ids
        self.length = end

    def _reserve(self, length: int) -> None:
        """Make room, at least twice as much as before."""
        room = self._values.shape[-2]
        if length <= room:
            return
        room = min(max(length, 2 * room), self._most)
        old_values, old_ids, used = self._values, self._ids, self.length
        shape = (*old_values.shape[:-2], room, old_values.shape[-1])
        self._values, self._ids = np.empty(shape, np.float32), np.empty(room, np.int32)
        self._values[..., :used, :] = old_values[..., :used, :]
        self._ids[:used] = old_ids[:used]


def load(folder: Path) -> tuple[Template, Pocket, Vocabulary]:
    """The format, the model and its vocabulary."""
    shape = json.decode((folder / "config.json").read_bytes(), type=Shape)
    model = Pocket(Network(shape, read(folder / "model.safetensors")))
    vocabulary = from_folder(folder)
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return Template(template, "hermes", vocabulary.controls), model, vocabulary
