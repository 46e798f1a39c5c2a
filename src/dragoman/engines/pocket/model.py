"""The pocket model: its folder, its weights, a Llama in numpy, and its cache."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, convert, json
from numpy.typing import NDArray

from dragoman.engines.token.vocabulary import Vocabulary, from_folder
from dragoman.formats.template import Template

_FOLDERS = ("../numpy.libs", ".dylibs")
"""Where the wheels keep their libraries, seen from numpy's folder."""
_GET, _SET = "scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"


def _found() -> tuple[Callable[[], int], Callable[[int], object]]:
    """How to ask for the number of threads and how to set it; where there is no way, no harm."""
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
    """While this holds, BLAS has one thread; then again as many as before."""
    before = _get()
    _set(1)
    try:
        yield
    finally:
        _set(before)


Array = NDArray[np.float32]

_KINDS = {"F16": np.float16, "F32": np.float32}


class _Place(Struct, frozen=True):
    """Where in the file an array stands, as bytes counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read(file: Path) -> dict[str, Array]:
    """The arrays by their names, in single precision. Raises ValueError for a file that is none."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.decode(data[8 : 8 + size], type=dict[str, dict[str, Any]])
        header.pop("__metadata__", None)
        return {name: _array(data, 8 + size, place) for name, place in header.items()}
    except (ValueError, KeyError) as error:
        raise ValueError(f"{file.name} holds no weights: {error}") from None


def _array(data: bytes, start: int, described: dict[str, Any]) -> Array:
    place = convert(described, _Place)
    first, last = place.data_offsets
    found = np.frombuffer(data[start + first : start + last], _KINDS[place.dtype])
    return found.reshape(place.shape).astype(np.float32)


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


KEPT = 32
"""Closed slots that are remembered."""
ROOM = 64
"""Tokens a slot has room for at first; it doubles when it is full."""


class Pocket:
    """A `ScoringModel` over the network. It is used from one thread."""

    def __init__(self, network: Network, *, kept: int = KEPT) -> None:
        self._network = network
        self._most = kept
        self._slots: OrderedDict[int, Memory] = OrderedDict()
        self._open: set[int] = set()

    @property
    def context(self) -> int:
        """Positions there are."""
        return self._network.shape.max_position_embeddings

    def open(self, ids: Sequence[int]) -> Memory:
        """A slot that has read as much of the prompt as any slot before, but for its last id."""
        prompt = np.array(ids[:-1], np.int32)
        memory = Memory(self._network.shape)
        best, shared = None, 0
        for known in self._slots.values():
            if (common := known.common(prompt)) > shared:
                best, shared = known, common
        if best is not None:
            memory.copy(best, shared)
            self._slots.move_to_end(id(best))
        self._slots[id(memory)] = memory
        self._open.add(id(memory))
        return memory

    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Sequence[Array]:
        """Read new ids in each slot, and score what follows the last of them."""
        stretches = [slot.stretch(ids) for slot, ids in work]
        with one_thread():
            scores = self._network(stretches)
        for slot, ids in work:
            slot.read(ids)
        return list(scores)

    def close(self, slot: Any) -> None:
        """Remember a slot for prompts that begin alike; the one not used for longest is dropped."""
        self._open.discard(id(slot))
        self._slots.move_to_end(id(slot))
        closed = [key for key in self._slots if key not in self._open]
        for key in closed[: max(0, len(closed) - self._most)]:
            del self._slots[key]


class Memory:
    """One sequence: the ids that were read, and their keys and values in every layer."""

    def __init__(self, shape: Shape) -> None:
        self.length = 0
        self._most = shape.max_position_embeddings
        heads = (shape.num_hidden_layers, 2, shape.num_key_value_heads)
        self._values: Array = np.empty((*heads, ROOM, shape.head_dim), np.float32)
        self._ids: NDArray[np.int32] = np.empty(ROOM, np.int32)

    def common(self, ids: NDArray[np.int32]) -> int:
        """How many ids at the start are the same."""
        most = min(self.length, len(ids))
        different = self._ids[:most] != ids[:most]
        return int(different.argmax()) if different.any() else most

    def copy(self, other: Memory, length: int) -> None:
        """Begin with what another sequence has read."""
        self._reserve(length)
        self._values[..., :length, :] = other._values[..., :length, :]
        self._ids[:length] = other._ids[:length]
        self.length = length

    def stretch(self, ids: Sequence[int]) -> Stretch:
        """The new ids with room for their keys and values. Raises ValueError beyond the context."""
        end = self.length + len(ids)
        if end > self._most:
            raise ValueError(f"{end} tokens are more than the {self._most} this model can read")
        self._reserve(end)
        return Stretch(ids, self.length, self._values)

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
