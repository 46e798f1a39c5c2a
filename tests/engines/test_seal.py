"""Blobs of our own: what they hold, for whom they open, and what they leave alone."""

from __future__ import annotations

import builtins
import subprocess
import sys
from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.event import ItemDone, Started
from dragoman.core.fold import fold
from dragoman.core.interfaces import Caller
from dragoman.core.item import FunctionCall, Item, Message, Reasoning, Summary, Thought, Token
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.cipher import Cipher
from dragoman.engines.reasoning_encryption import (
    ASKING,
    ENCRYPTED,
    GONE,
    MARK,
    EncryptingReasoning,
    Referring,
    Seal,
    Way,
    find_way,
)
from dragoman.engines.script import Script
from tests import strategies
from tests.engines.stage import heard

KEY = bytes(range(32))
THOUGHT = Reasoning(
    (Thought("Hm. \ud83d"),), (Summary("Short."),), extra={"inline": {"open": "<think>"}}
)
WAYS: list[Callable[[bytes], Way]] = [Cipher, Referring]


def sealer(way: Callable[[bytes], Way] = Cipher, key: bytes = KEY) -> Seal:
    return Seal(lambda: key, way)


# ---- blobs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@given(strategies.reasonings, strategies.text, strategies.text)
def test_p13_what_was_sealed_is_what_is_opened(
    way: Callable[[bytes], Way], item: Reasoning, tenant: str, model: str
) -> None:
    seal = sealer(way)
    blob = seal.close(item, tenant, model)
    assert blob.isascii()
    assert seal.is_ours(blob)
    opened = seal.open(blob, tenant, model)
    content = tuple(replace(p, tokens=()) if isinstance(p, Thought) else p for p in item.content)
    assert opened == Reasoning(content, item.summary, extra=item.extra)


@pytest.mark.parametrize("way", WAYS)
def test_a_blob_opens_for_its_own_tenant_and_model_only(way: Callable[[bytes], Way]) -> None:
    seal = sealer(way)
    blob = seal.close(THOUGHT, "ada", "m")
    assert seal.open(blob, "ada", "m") == THOUGHT
    for tenant, model in (("bob", "m"), ("ada", "n"), ("", ""), ("m", "ada"), ("adam", "")):
        assert seal.open(blob, tenant, model) is None


@pytest.mark.parametrize("way", WAYS)
@given(st.integers(0), st.permutations("AZaz09-_.é"))
def test_a_blob_that_was_touched_does_not_open(
    way: Callable[[bytes], Way], at: int, others: list[str]
) -> None:
    seal = sealer(way)
    blob = seal.close(THOUGHT, "ada", "m")  # another one each time
    start = blob.rindex(".") + 1
    place = start + at % (len(blob) - 4 - start)  # the last ones may be spare bits
    other = next(each for each in others if each != blob[place])
    assert seal.open(blob[:place] + other + blob[place + 1 :], "ada", "m") is None
    assert seal.open(blob[:place], "ada", "m") is None


def test_a_blob_hides_its_words() -> None:
    blob = sealer().close(Reasoning((Thought("the secret word"),)), "", "m")
    assert b"secret" not in urlsafe_b64decode(blob[blob.rindex(".") + 1 :])


def test_blobs_of_others_are_told_apart() -> None:
    """Another key is another Dragoman, which may stand behind this one."""
    seal, other = sealer(), sealer(key=b"x" * 32)
    assert not seal.is_ours(other.close(THOUGHT, "", "m"))
    assert not seal.is_ours("gAAAAABseal+/==")
    assert not seal.is_ours("")
    assert not seal.is_ours(MARK)
    assert sealer().is_ours(seal.close(THOUGHT, "", "m"))


def test_log_probabilities_are_not_taken_along() -> None:
    seal = sealer()
    weighed = Reasoning((Thought("Hm.", tokens=(Token("Hm.", -0.5),)),))
    opened = seal.open(seal.close(weighed, "", "m"), "", "m")
    assert opened == Reasoning((Thought("Hm."),))


def test_a_reference_ends_with_its_process_and_when_there_is_no_more_room() -> None:
    seal = sealer(Referring)
    blob = seal.close(THOUGHT, "", "m")
    again = sealer(Referring)
    assert again.is_ours(blob)
    assert again.open(blob, "", "m") is None
    small = sealer(lambda key: Referring(key, size=500))
    blobs = [small.close(THOUGHT, "", "m") for _ in range(9)]
    assert small.open(blobs[0], "", "m") is None
    assert small.open(blobs[-1], "", "m") == THOUGHT


def test_the_key_is_asked_for_once_and_only_when_needed() -> None:
    asked: list[int] = []

    def key() -> bytes:
        asked.append(1)
        return KEY

    seal = Seal(key)
    assert not seal.is_ours("gAAA")
    assert asked == []
    assert seal.is_ours(seal.close(THOUGHT, "", "m"))
    assert asked == [1]


def test_without_the_package_references_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_way() is Cipher
    found = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name, *more)

    monkeypatch.delitem(sys.modules, "dragoman.engines.cipher")
    monkeypatch.setattr(builtins, "__import__", missing)
    assert find_way() is Referring


# ---- around an engine ------------------------------------------------------------------------

ASK = Message("user", "Go.")
CALL = FunctionCall("call_1", "clock", "{}")
WANTED = Request(model="m", items=(ASK,), include=(ENCRYPTED,))
ADA = Caller(tenant="ada")


class Model(Script):
    """Gives the same answer to all, and remembers what it was asked."""

    def __init__(self, *output: Item) -> None:
        self.asked: list[Request] = []
        self.output = tuple(
            replace(item, id=f"item_{place}", status="completed")
            for place, item in enumerate(output)
        )
        super().__init__(self.play)

    def play(self, request: Request) -> Response:
        self.asked.append(request)
        loss = (Loss(ASKING, "dropped", "no such thing"), Loss("seed", "dropped", "none"))
        given: dict[str, Any] = {"id": "1", "created_at": 0, "model": "x", "status": "completed"}
        return Response(output=self.output, reasons=("stop",), losses=loss, **given)


OPEN = Reasoning((Thought("Hm."),))
FOREIGN = Reasoning(summary=(Summary("Short."),), encrypted="gAAA+/==")


async def test_reasoning_that_nobody_sealed_is_sealed_and_opened_again() -> None:
    model = Model(OPEN, CALL)
    engine = EncryptingReasoning(model, sealer())
    answer = fold(await heard(engine, WANTED))
    thought = answer.output[0]
    assert isinstance(thought, Reasoning)
    assert (thought.text, answer.output[1]) == ("Hm.", model.output[1])
    assert thought.encrypted is not None
    assert [loss.field for loss in answer.losses] == ["seed"]  # what was asked for is done
    bare = Reasoning(encrypted=thought.encrypted, id="rs_own")
    answer = fold(await heard(engine, replace(WANTED, items=(ASK, bare, CALL))))
    assert model.asked[-1].items == (ASK, replace(OPEN, id="rs_own"), CALL)
    answer = fold(await heard(engine, Request(model="m", items=(ASK, bare, CALL))))
    assert model.asked[-1].items == (ASK, replace(OPEN, id="rs_own"), CALL)
    assert [loss.field for loss in answer.losses] == [ASKING, "seed"]


async def test_p13_what_others_sealed_passes_untouched_both_ways() -> None:
    model = Model(FOREIGN, Reasoning(), CALL)
    engine = EncryptingReasoning(model, sealer())
    answer = fold(await heard(engine, replace(WANTED, items=(ASK, FOREIGN, CALL))))
    assert answer.output == model.output  # and nothing is not sealed
    assert model.asked[-1].items == (ASK, FOREIGN, CALL)


@pytest.mark.parametrize("words", [(), (Summary("Short."),)])
async def test_a_blob_that_does_not_open_is_told_and_words_stay(words: Any) -> None:
    model = Model(OPEN)
    seal = sealer()
    engine = EncryptingReasoning(model, seal)
    blob = Reasoning(summary=words, encrypted=seal.close(OPEN, "bob", "m"), id="rs_1")
    asked = Request(model="m", items=(ASK, blob, CALL))
    started = (await heard(engine, asked))[0]
    assert isinstance(started, Started)
    assert started.losses[-1] == GONE
    kept = (Reasoning(summary=words),) if words else ()
    assert model.asked[-1].items == (ASK, *kept, CALL)


async def test_who_asks_for_nothing_gets_nothing() -> None:
    model = Model(OPEN)
    engine = EncryptingReasoning(model, sealer())
    events = await heard(engine, Request(model="m", items=(ASK,)))
    assert all(e.item == model.output[0] for e in events if isinstance(e, ItemDone))


def test_cipher_is_imported_when_the_first_reasoning_is_sealed() -> None:
    """It takes six megabytes, which a server whose clients never ask for it does without."""
    probe = (
        "import sys\nfrom dragoman.engines.reasoning_encryption import Seal\n"
        "seal = Seal(lambda: bytes(32))\nprint('cryptography' in sys.modules)\n"
        "seal._ready()\nprint('cryptography' in sys.modules)"
    )
    said = subprocess.check_output([sys.executable, "-c", probe], text=True)
    assert said.split() == ["False", "True"]
