"""The pocket model: its files, its listing, what it can do, and its answers word for word."""

import asyncio
import hashlib
import json
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec

import pytest

from dragoman.client import connect
from dragoman.core.request import FunctionTool, JSONSchema
from dragoman.engines import pocket as room
from dragoman.engines.pocket import FOLDER, NEEDED, pocket
from dragoman.engines.pocket import model as blas
from dragoman.engines.pocket.model import read
from tests.engines.asking import ask
from tests.engines.pocket.asking import expected, heard, request_of
from training.pocket.suite import CASES

WEATHER = FunctionTool(
    "get_weather",
    "The weather in a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
MEGABYTE = 1_000_000


# ---- files -----------------------------------------------------------------------------------


def test_the_files_are_those_that_training_wrote() -> None:
    for line in (FOLDER / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_that_was_changed_is_noticed(name, tmp_path, monkeypatch) -> None:
    """8.09."""
    shutil.copytree(FOLDER, tmp_path / "pocket")
    monkeypatch.setattr("dragoman.engines.pocket.FOLDER", tmp_path / "pocket")
    assert pocket().name == "pocket"
    data = bytearray((FOLDER / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "pocket" / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} was changed or damaged"):
        pocket()


def test_pocket_model_has_half_a_million_weights_in_under_two_megabytes() -> None:
    weights = read(FOLDER / "model.safetensors")
    assert 500_000 < sum(weight.size for weight in weights.values()) < 600_000
    assert sum(file.stat().st_size for file in FOLDER.iterdir() if file.is_file()) < 1.5 * MEGABYTE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02\0\0\0\0\0\0\0[]",
        struct.pack("<Q", 40) + b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        struct.pack("<Q", 9) + b'{"a": {}}',
    ],
)
def test_file_without_weights_is_reported(data, tmp_path) -> None:
    (tmp_path / "broken").write_bytes(data)
    with pytest.raises(ValueError, match=r"^broken holds no weights: "):
        read(tmp_path / "broken")


# ---- what it says of itself ------------------------------------------------------------------


async def test_listing_describes_the_demo_model() -> None:
    engine = pocket()
    (model,) = await engine.models()
    assert model.id == "pocket"
    shown = (model.extra or {})["models"]
    assert shown["description"].startswith("A demonstration model of half a million parameters.")
    assert (shown["format"], shown["context_window"]) == ("hermes", 4096)
    await engine.close()


async def test_missing_local_extra_is_reported(monkeypatch) -> None:
    absent = "llguidance"
    monkeypatch.setattr(room, "find_spec", lambda name: find_spec(name) if name != absent else None)
    assert not room.available()
    with pytest.raises(ImportError, match=r"pip install '\.\[local\]' in the checkout\.$"):
        pocket()


# ---- what it can do --------------------------------------------------------------------------


async def test_pocket_model_streams_calls_tools_and_fits_schemas() -> None:
    async with connect("pocket") as client:
        async with client.stream("Count to ten.", temperature=0) as stream:
            texts = [text async for text in stream.text]
        assert "".join(texts) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."
        assert len(texts) > 5
        answer = await client.respond("What is the weather in Paris?", tools=(WEATHER,))
        (call,) = answer.response.output
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        person = JSONSchema("person", PERSON, strict=True)
        answer = await client.respond("Ada is 36 years old.", format=person, temperature=0)
        assert json.loads(answer.text) == {"name": "Ada", "age": 36}


async def test_a_conversation_is_read_but_once() -> None:
    engine = pocket()
    async with connect(engine) as client:
        first = await client.respond("Write a haiku about the sea.", temperature=0)
        second = await client.respond("Write a haiku about the sea.", temperature=0)
    assert first.text == second.text
    used = (first.response.usage, second.response.usage)
    assert used[0] is not None
    assert used[1].cached_tokens == (used[1].input_tokens or 0) - 1


# ---- what it costs ---------------------------------------------------------------------------


def test_nothing_of_the_extra_is_imported_before_it_is_asked_for() -> None:
    probe = "import sys, dragoman.engines.local, dragoman.server.build; print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-I", "-c", probe], capture_output=True, text=True, check=True
    )
    assert not {*NEEDED} & {*shown.stdout.split()}


def test_blas_has_one_thread_while_the_model_computes(monkeypatch) -> None:
    threads = [4]
    monkeypatch.setattr(blas, "_get", lambda: threads[-1])
    monkeypatch.setattr(blas, "_set", threads.append)
    with pytest.raises(ZeroDivisionError), blas.one_thread():
        assert threads == [4, 1]
        raise ZeroDivisionError
    assert threads == [4, 1, 4]


@pytest.mark.parametrize("found", [True, False])
def test_unknown_blas_is_left_unchanged(found, tmp_path, monkeypatch) -> None:
    (tmp_path / "numpy.libs").mkdir()
    if found:
        (tmp_path / "numpy.libs/libopenblas.so").touch()
    monkeypatch.setattr(blas.np, "__file__", str(tmp_path / "numpy/__init__.py"))
    monkeypatch.setattr(blas.ctypes, "CDLL", lambda name: object())
    get, put = blas._found()
    put(3)
    assert get() == 1


FREE = [case for case in CASES if not case.lesson.forced]


@pytest.mark.uncounted
async def test_suite_is_answered_word_for_word() -> None:
    """Every case, with greedy sampling: whoever trains the model again has to pass this."""
    engine = pocket()
    try:
        answers = await asyncio.gather(*(ask(engine, request_of(case.lesson)) for case in FREE))
    finally:
        await engine.close()
    wrong = [
        case.name
        for case, answer in zip(FREE, answers, strict=True)
        if heard(answer) != expected(case.lesson) or answer.status != "completed"
    ]
    assert not wrong
