"""Models of the `transformers` library, from a local folder or by their name on the hub.

A folder becomes an engine: weights, vocabulary, chat template. The `transformers` extra is imported
only when a model is loaded.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from dragoman.core.error import Fault, FaultError
from dragoman.formats.format import Setting

from .find_format import dated, find_format, format_of

if TYPE_CHECKING:
    from .token.engine import TokenEngine

NEEDED = ("torch", "transformers", "numpy", "llguidance", "jinja2")
MISSING = (
    "Models of a folder or of the hub need the extra transformers: "
    "pip install '.[transformers]' in the checkout."
)
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
FILES = (*WEIGHTS, "*.json", "*.jinja")
"""The files that are fetched from the hub."""
SPARE = 1.2
"""The memory of a loaded model relative to its files."""
GIGABYTE = 1e9


def prepare(
    name: str,
    *,
    format: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    date: str | None = None,
) -> Callable[[], TokenEngine]:
    """The engine for the model in a folder, or of that name on the hub. Options and files are
    checked now; the model is fetched and loaded when the result is called.

    - `format` is the name of a token format; by default it is the model's own chat template, or
      harmony where the vocabulary has its tokens.
    - `device` is `cpu`, `cuda` (or `cuda:1`), `mps`, or `auto`: the first available of the others.
    - `threads` is how many threads torch may use on the processor; by default it decides.
    - `date` is what prompts say of the date: one such as `2026-11-23`, `none`, or today's.

    Both raise ImportError where the extra is missing, and ValueError, in a sentence, for a folder
    without a model, an absent device, too little memory or a model without template.
    """
    if any(find_spec(needed) is None for needed in NEEDED):
        raise ImportError(MISSING)
    if format is not None:
        find_format(format)
    setting = dated(date)
    local = Path(name).expanduser()
    if local.is_dir():
        check(local)
    elif local.exists() or name.startswith((".", "~", "/")) or name.count("/") > 1:
        raise ValueError(f"{name} is no folder.")

    def load() -> TokenEngine:
        folder = local if local.is_dir() else fetch(name)
        return _engine(folder, name_of(name), format, device, threads, setting)

    return load


def name_of(name: str) -> str:
    """The model's name in the listing: the folder's own name, or the hub's.

    >>> name_of("openai/gpt-oss-20b")
    'openai/gpt-oss-20b'
    """
    folder = Path(name).expanduser()
    return folder.resolve().name if folder.is_dir() else name


def check(folder: Path) -> None:
    """Raise ValueError for a folder that lacks a part of a model."""
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise ValueError(f"{folder} has no {needed}: a model's folder has one.")
    if not _weights(folder):
        raise ValueError(f"{folder} has no weights ({' or '.join(WEIGHTS)}).")


def fetch(name: str) -> Path:
    """The folder of a model of the hub, downloaded if necessary. Raises ValueError."""
    hub = import_module("huggingface_hub")
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:  # the hub's own errors are among these
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{name} is no folder here, and the hub gave none: {reason}") from error
    check(folder)
    return folder


def _engine(
    folder: Path,
    name: str,
    format: str | None,
    device: str,
    threads: int | None,
    setting: Callable[[], Setting],
) -> TokenEngine:
    from .token.engine import TokenEngine
    from .token.vocabulary import from_folder

    torch, library = import_module("torch"), import_module("transformers")
    place = _device(torch, device)
    vocabulary = from_folder(folder)
    found = format_of(folder, vocabulary.controls, format)
    if threads is not None:
        torch.set_num_threads(threads)
    network = _network(torch, library, folder, place)
    config = network.config.get_text_config()
    rows = getattr(config, "vocab_size", vocabulary.size)
    if rows < vocabulary.size:
        raise ValueError(
            f"{folder}: the vocabulary has {vocabulary.size} ids, the network {rows}: "
            "they are not of one model."
        )
    model = Causal(
        torch,
        network,
        lambda: library.DynamicCache(config=config),
        size=vocabulary.size,
        context=getattr(config, "max_position_embeddings", None),
    )
    ends = vocabulary.ends
    return TokenEngine(found, model, vocabulary, name=name, ends=ends, setting=setting)


def _network(torch: Any, library: Any, folder: Path, device: str) -> Any:
    """The network with its weights, on its device. Raises ValueError for what does not load."""
    config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, Any])
    # Processors compute half precision slowly and inexactly.
    widen = device == "cpu" and "float16" in (config.get("dtype"), config.get("torch_dtype"))
    needed = sum(file.stat().st_size for file in _weights(folder)) * (2 if widen else 1) * SPARE
    free = _free(torch, device)
    if free is not None and needed > free:
        raise ValueError(_not_enough(folder, needed, f"{free / GIGABYTE:.1f} GB of it are free"))
    try:
        network, report = library.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype="float32" if widen else "auto",
            local_files_only=True,
            trust_remote_code=False,  # else it would ask at the terminal whether to run it
            output_loading_info=True,
        )
        absent = sorted(report["missing_keys"])
        if absent:
            raise ValueError(f"the weights of {absent[0]} and {len(absent) - 1} more are missing")
        return network.to(device).eval()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ValueError(_not_enough(folder, needed, "there is less")) from error
    except Exception as error:  # each library beneath has errors of its own for broken files
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{folder} cannot be loaded: {reason}") from error


def _not_enough(folder: Path, needed: float, there: str) -> str:
    return f"{folder} needs about {needed / GIGABYTE:.1f} GB of memory, and {there}."


def _weights(folder: Path) -> list[Path]:
    """The weight files, of the first kind there is: some folders have both."""
    kinds = (sorted(folder.glob(kind)) for kind in WEIGHTS)
    return next(filter(None, kinds), [])


def _device(torch: Any, asked: str) -> str:
    """The torch device. Raises ValueError for one that is not available."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    there = [name for name, is_there in here.items() if is_there] + ["cpu"]
    if asked == "auto":
        return there[0]
    if asked.partition(":")[0] not in there:
        raise ValueError(f"There is no device {asked!r} here. There is: {', '.join(there)}.")
    return asked


def _free(torch: Any, device: str) -> float | None:
    """Free memory of a device in bytes; None if unknown."""
    if device.startswith("cuda"):
        free: float = torch.cuda.mem_get_info(device)[0]
        return free
    memory = Path("/proc/meminfo")
    if device != "cpu" or not memory.exists():
        return None
    sizes = dict(line.split(":", 1) for line in memory.read_text().splitlines())
    return float(sizes["MemAvailable"].split()[0]) * 1024


# ---- the network as a source of scores -----------------------------------------------------


REUSABLE = 4
"""Closed sequences whose keys and values are kept."""
CONCURRENCY = 8
"""Sequences at a time: each has its own keys and values in the device's memory."""
OUT_OF_MEMORY = Fault(
    "overloaded",
    "The device has no memory left for this sequence. Ask for less, or later.",
    retry_after="5",
)


class Causal:
    """A `ScoringModel` over a network that gives `logits` and takes `past_key_values`.

    `new_cache` makes an empty cache; `size` is how many ids the vocabulary has, which may be fewer
    than the network has rows. Sequences are computed one after the other: their caches are of
    different lengths, and padding them to one would copy them at every step. It is used from one
    thread. Raises ValueError for a network without a cache.
    """

    concurrency = CONCURRENCY

    def __init__(
        self,
        torch: ModuleType,
        network: Any,
        new_cache: Any,
        *,
        size: int,
        context: int | None = None,
    ) -> None:
        self.context = context
        self._torch = torch
        self._network = network
        self._new_cache = new_cache
        self._size = size
        self._closed: deque[CachedSequence] = deque(maxlen=REUSABLE)
        takes = inspect.signature(network.forward).parameters
        if "past_key_values" not in takes:
            raise ValueError(
                f"{type(network).__name__} takes no keys and values of earlier tokens."
            )
        # Most networks can leave out the scores of all but the last position.
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def open(self, ids: Sequence[int], tenant: str = "") -> CachedSequence:
        """A slot that continues the tenant's closed sequence with the longest common prefix; one
        that shares less than half of the prompt is left for its own conversation."""
        own = (each for each in self._closed if each.tenant == tenant)
        useful = [each for each in own if 2 * each.shared(ids) > len(ids)]
        if not useful:
            return CachedSequence([], self._new_cache(), tenant)
        found = max(useful, key=lambda each: each.shared(ids))
        self._closed.remove(found)
        found.cut(found.shared(ids))
        return found

    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Sequence[Any]:
        """Read new ids in each slot and score what follows, or return the error of that slot."""
        with self._torch.inference_mode():
            return [self._read(slot, ids) for slot, ids in work]

    def close(self, slot: Any) -> None:
        """Keep the sequence, unless a step failed."""
        if slot.length and not slot.broken:
            self._closed.append(slot)

    def _read(self, slot: CachedSequence, ids: Sequence[int]) -> Any:
        torch = self._torch
        slot.broken = True  # until all layers have read it
        try:
            output = self._network(
                input_ids=torch.tensor([list(ids)], device=self._network.device),
                past_key_values=slot.cache,
                use_cache=True,
                **self._options,
            )
            scores = output.logits[0, -1, : self._size].to(torch.float32).cpu().numpy()
        except torch.OutOfMemoryError:
            return FaultError(OUT_OF_MEMORY)
        except Exception as error:
            return error
        slot.ids += ids
        slot.broken = False
        return scores


class CachedSequence(Struct, eq=False):
    """One sequence: the ids that were read, and their keys and values."""

    ids: list[int]
    cache: Any
    tenant: str = ""
    broken: bool = False

    @property
    def length(self) -> int:
        return len(self.ids)

    def shared(self, prompt: Sequence[int]) -> int:
        """How many ids of a prompt need not be read again; its last one always must."""
        most = min(len(self.ids), len(prompt) - 1)
        same = next((at for at in range(most) if self.ids[at] != prompt[at]), most)
        # Sliding windows and linear attention have lost the first positions: they cannot be cut.
        lost = (*getattr(self.cache, "is_sliding", ()), *getattr(self.cache, "is_linear", ()))
        return same if same == len(self.ids) or not any(lost) else 0

    def cut(self, length: int) -> None:
        """Drop what was read after so many ids."""
        if length < len(self.ids):
            self.cache.crop(length - len(self.ids))  # a negative number is so many to remove
            del self.ids[length:]
