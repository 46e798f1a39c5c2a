"""A model's folder as an engine, with libraries that are played: what is checked, what is asked of
the library, and what is told when something is missing. The real ones are met next door.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dragoman.engines import transformers as room
from dragoman.engines.find_format import HARMONY
from dragoman.engines.pocket import FOLDER, pocket
from dragoman.engines.pocket.model import load
from dragoman.engines.transformers import Causal
from tests.engines.stage import answered
from tests.engines.test_llamacpp import asking

SIZE = 1024
PARTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class OutOfMemoryError(RuntimeError):
    """As torch has it."""


class HeaderError(Exception):
    """As safetensors has it: of no kind."""


class Tensor(np.ndarray):
    """Just enough of a tensor."""

    def to(self, kind: Any) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def numpy(self) -> Any:
        return np.asarray(self)


class Nothing:
    """A context that does nothing."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


class Memory:
    """A cache: the ids that were read."""

    def __init__(self, *, sliding: bool = False, config: Any = None) -> None:
        self.ids: list[int] = []
        self.is_sliding = [sliding]

    def crop(self, count: int) -> None:
        assert count < 0
        del self.ids[count:]


class Network:
    """The pocket model behind the library's face; `trouble` is raised by the next call."""

    device = "cpu"

    def __init__(self) -> None:
        self.config = SimpleNamespace(get_text_config=lambda: self.config, vocab_size=SIZE)
        self.config.max_position_embeddings = 4096
        self.trouble: Exception | None = None
        self.read: list[int] = []
        _, self._model, _ = load(FOLDER)

    def to(self, device: str) -> "Network":
        return self

    def eval(self) -> "Network":
        return self

    def forward(self, past_key_values: Any = None, logits_to_keep: int = 0) -> None: ...

    def __call__(
        self, *, input_ids: Any, past_key_values: Memory, use_cache: bool, logits_to_keep: int
    ) -> Any:
        assert (use_cache, logits_to_keep) == (True, 1)
        if self.trouble is not None:
            trouble, self.trouble = self.trouble, None
            raise trouble
        ids = input_ids[0].tolist()
        self.read.append(len(ids))
        past_key_values.ids += ids
        slot = self._model.open(past_key_values.ids)
        (scores,) = self._model.step([(slot, past_key_values.ids[slot.length :])])
        self._model.close(slot)
        rows = np.concatenate((scores, np.full(8, 99.0)))  # more rows than ids, as many have
        return SimpleNamespace(logits=rows.reshape(1, 1, -1).view(Tensor))


class Torch:
    """The parts of torch that are used."""

    OutOfMemoryError = OutOfMemoryError
    float32 = "float32"

    def __init__(self, *devices: str, free: float = 1e12) -> None:
        self.threads = 0
        self.cuda = SimpleNamespace(
            is_available=lambda: "cuda" in devices, mem_get_info=lambda device: (free, free)
        )
        mps = SimpleNamespace(is_available=lambda: "mps" in devices)
        self.backends = SimpleNamespace(mps=mps)

    def set_num_threads(self, count: int) -> None:
        self.threads = count

    def inference_mode(self) -> Nothing:
        return Nothing()

    def tensor(self, rows: list[list[int]], device: str) -> Any:
        return np.array(rows)


class Library:
    """The parts of transformers that are used. `loads` is what loading gives, or raises."""

    DynamicCache = Memory

    def __init__(self, loads: Any = None, missing: tuple[str, ...] = ()) -> None:
        self.network = loads or Network()
        self.missing = missing
        self.AutoModelForCausalLM = self
        self.asked: dict[str, Any] = {}

    def from_pretrained(self, folder: Path, **options: Any) -> Any:
        self.asked = options
        if isinstance(self.network, Exception):
            raise self.network
        return self.network, {"missing_keys": set(self.missing)}


@pytest.fixture
def installed(monkeypatch) -> dict[str, Any]:
    """What `import_module` finds; a test may put other things there."""
    found: dict[str, Any] = {"torch": Torch(), "transformers": Library()}
    monkeypatch.setattr(room, "find_spec", lambda name: name)
    monkeypatch.setattr(room, "import_module", found.__getitem__)
    return found


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder that can be spoiled."""
    there = tmp_path / "small"
    there.mkdir()
    for name in (*PARTS, "model.safetensors"):
        shutil.copy(FOLDER / name, there / name)
    return there


# ---- what is served ------------------------------------------------------------------------


async def test_a_folder_is_served_by_its_name(installed: dict[str, Any], folder: Path) -> None:
    engine = room.prepare(str(folder), threads=1)()
    assert (engine.name, engine.format.name, engine.context) == ("small", "hermes", 4096)
    small = pocket()
    question = asking("Who are you?")
    assert (await answered(engine, question)).text == (await answered(small, question)).text
    await small.close()
    assert installed["torch"].threads == 1
    options = installed["transformers"].asked
    loading = {"local_files_only": True, "output_loading_info": True, "trust_remote_code": False}
    assert options == {"dtype": "float32", **loading}
    await engine.close()


async def test_cached_prompt_is_not_read_again(installed: dict[str, Any], folder: Path) -> None:
    engine = room.prepare(str(folder))()
    first = await answered(engine, asking("Hello!"))
    again = await answered(engine, asking("Hello!"))
    assert again.text == first.text
    # All but the last token, which must be read to be followed by anything.
    assert again.usage.cached_tokens == again.usage.input_tokens - 1
    await engine.close()


def test_the_format_can_be_forced_and_harmony_is_known_by_its_tokens(
    installed: dict[str, Any], folder: Path
) -> None:
    assert room.prepare(str(folder), format="mistral")().format.name == "mistral"
    described = json.loads((folder / "tokenizer.json").read_text())
    for number, text in enumerate(sorted(HARMONY)):
        added = {"id": SIZE + number, "content": text, "special": True}
        rest = ("single_word", "lstrip", "rstrip", "normalized")
        described["added_tokens"].append(added | dict.fromkeys(rest, False))
    (folder / "tokenizer.json").write_text(json.dumps(described))
    installed["transformers"].network.config.vocab_size = SIZE + len(HARMONY)
    assert room.prepare(str(folder))().format.name == "harmony"


async def test_a_model_of_the_hub_is_fetched_by_its_name(
    installed: dict[str, Any], folder: Path
) -> None:
    asked: list[Any] = []

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append((name, options["allow_patterns"]))
        return str(folder)

    installed["huggingface_hub"] = SimpleNamespace(snapshot_download=snapshot_download)
    prepared = room.prepare("somebody/small")
    assert not asked  # nothing is fetched before the model is wanted
    engine = prepared()
    assert (engine.name, asked) == ("somebody/small", [("somebody/small", list(room.FILES))])


@pytest.mark.parametrize(
    ("there", "asked", "chosen"),
    [
        ((), "auto", "cpu"),
        (("cuda",), "auto", "cuda"),
        (("mps",), "auto", "mps"),
        (("cuda", "mps"), "cpu", "cpu"),
        (("cuda",), "cuda:1", "cuda:1"),
    ],
)
def test_device_is_the_best_available_or_the_requested_one(
    there, asked, chosen, installed: dict[str, Any], folder: Path, monkeypatch
) -> None:
    used: list[str] = []
    monkeypatch.setattr(Network, "to", lambda network, device: used.append(device) or network)
    installed["torch"] = Torch(*there)
    room.prepare(str(folder), device=asked)()
    assert used == [chosen]


# ---- what is told --------------------------------------------------------------------------


def test_missing_extra_is_reported_with_its_install_command(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(room, "find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(ImportError, match=r"pip install '\.\[transformers\]' in the checkout\.$"):
        room.prepare(str(folder))


@pytest.mark.parametrize("name", ["./nowhere", "/no/where", "~/nowhere-at-all", "a/b/c"])
def test_path_that_is_no_folder_is_not_looked_up_on_the_hub(
    name, installed: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"^{name} is no folder"):
        room.prepare(name)


def not_on_the_hub(name: str, **options: Any) -> str:
    raise OSError("404: no such thing\nand much more")


MISTAKES: list[tuple[Callable[[Path, dict[str, Any]], object], str]] = [
    (lambda folder, _: (folder / "config.json").unlink(), "small has no config.json"),
    (lambda folder, _: (folder / "tokenizer.json").unlink(), "small has no tokenizer.json"),
    (lambda folder, _: (folder / "model.safetensors").unlink(), "small has no weights"),
    (
        lambda folder, _: (folder / "chat_template.jinja").unlink(),
        "brings no chat template; name a format instead",
    ),
    (
        lambda _, found: found.update(transformers=Library(OSError("not a header\nat all"))),
        "cannot be loaded: not a header$",
    ),
    (
        lambda _, found: found.update(transformers=Library(HeaderError("invalid length"))),
        "cannot be loaded: invalid length$",
    ),
    (
        lambda _, found: found.update(transformers=Library(missing=("a.weight", "b.weight"))),
        "the weights of a.weight and 1 more are",
    ),
    (
        lambda _, found: setattr(found["transformers"].network.config, "vocab_size", 1000),
        "1024 ids, the network 1000: they are not of one model",
    ),
]


@pytest.mark.parametrize(
    ("spoil", "problem"), MISTAKES, ids=[problem[:30] for _, problem in MISTAKES]
)
def test_model_that_cannot_be_loaded_is_reported(
    spoil, problem, installed: dict[str, Any], folder: Path
) -> None:
    spoil(folder, installed)
    with pytest.raises(ValueError, match=problem):
        room.prepare(str(folder))()


def test_missing_device_or_model_of_the_hub_is_reported(
    installed: dict[str, Any], folder: Path
) -> None:
    with pytest.raises(ValueError, match=r"no device 'cuda' here. There is: cpu\."):
        room.prepare(str(folder), device="cuda")()
    installed["huggingface_hub"] = SimpleNamespace(snapshot_download=not_on_the_hub)
    with pytest.raises(ValueError, match=r"the hub gave none: 404: no such thing$"):
        room.prepare("somebody/none")()


def test_insufficient_memory_is_reported_before_loading(
    installed: dict[str, Any], folder: Path, monkeypatch
) -> None:
    installed["torch"] = Torch("cuda", free=1e5)
    with pytest.raises(ValueError, match=r"small needs about 0\.0 GB of memory, and 0\.0 GB of it"):
        room.prepare(str(folder))()
    assert installed["transformers"].asked == {}
    installed.update(torch=Torch("mps"), transformers=Library(OutOfMemoryError("huge")))
    with pytest.raises(ValueError, match="of memory, and there is less"):
        room.prepare(str(folder))()


def test_network_without_key_value_cache_is_reported(
    installed: dict[str, Any], folder: Path, monkeypatch
) -> None:
    def forward(network: Network, cache_params: Any = None) -> None: ...

    monkeypatch.setattr(Network, "forward", forward)
    with pytest.raises(ValueError, match="Network takes no keys and values of earlier tokens"):
        room.prepare(str(folder))()


# ---- sequences -----------------------------------------------------------------------------


def causal(*, sliding: bool = False) -> tuple[Causal, Network]:
    network = Network()
    torch: Any = Torch()
    return Causal(torch, network, lambda: Memory(sliding=sliding), size=SIZE), network


def test_failed_sequence_is_isolated_and_not_cached() -> None:
    model, network = causal()
    good, bad = model.open([1, 2, 3]), model.open([4, 5, 6])
    model.step([(good, [1, 2, 3])])
    network.trouble = ValueError("no")
    failed, scores = model.step([(bad, [4, 5, 6]), (good, [7])])
    assert isinstance(failed, ValueError)
    assert scores.shape == (SIZE,)
    assert (bad.length, good.length) == (0, 4)
    for slot in (bad, good):
        model.close(slot)
    assert model.open([4, 5, 6]).length == 0
    assert model.open([1, 2, 3, 7, 8]).length == 4


def test_full_device_is_overloaded_with_retry_after() -> None:
    model, network = causal()
    network.trouble = OutOfMemoryError("CUDA out of memory")
    (failed,) = model.step([(model.open([1]), [1])])
    assert (failed.fault.code, failed.fault.retry_after) == ("overloaded", "5")


def test_cache_is_cut_to_a_common_prefix_that_is_most_of_it() -> None:
    model, _ = causal()
    slot = model.open([1, 2, 3, 4])
    model.step([(slot, [1, 2, 3, 4])])
    model.close(slot)
    assert model.open([1, 2, 9, 9]).length == 0  # half of it is left for its own conversation
    again = model.open([1, 2, 3, 9])
    assert (again.length, again.cache.ids) == (3, [1, 2, 3])


def test_sliding_cache_is_only_extended() -> None:
    model, _ = causal(sliding=True)
    slot = model.open([1, 2, 3])
    model.step([(slot, [1, 2, 3])])
    model.close(slot)
    assert model.open([1, 2, 9]).length == 0
    assert model.open([1, 2, 3, 4]).length == 3


def test_a_tenant_does_not_continue_the_sequence_of_another() -> None:
    model, _ = causal()
    slot = model.open([1, 2, 3], "a")
    model.step([(slot, [1, 2, 3])])
    model.close(slot)
    assert model.open([1, 2, 3, 4], "b").length == 0
    assert model.open([1, 2, 3, 4], "a").length == 3
