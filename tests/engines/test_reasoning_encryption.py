"""Encrypted reasoning of our own: what it holds, and for whom it is decrypted."""

from __future__ import annotations

import base64
import builtins
import hmac
import subprocess
import sys
import threading
from base64 import urlsafe_b64decode
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.event import ItemDone
from dragoman.core.fold import fold
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import FunctionCall, Item, Message, Reasoning, Summary, Thought
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.reasoning import (
    ASKING,
    ENCRYPTED,
    MARK,
    NOT_DECRYPTED,
    PIECE,
    AESCipher,
    Cipher,
    EncryptingReasoning,
    MemoryCipher,
    ReasoningCipher,
    best_cipher,
)
from dragoman.engines.script import Script
from tests import strategies
from tests.engines.stage import heard

KEY = bytes(range(32))
THOUGHT = Reasoning(
    (Thought("Hm. \ud83d"),), (Summary("Short."),), extra={"inline": {"open": "<think>"}}
)
CIPHERS: list[Callable[[bytes], Cipher]] = [AESCipher, MemoryCipher]


def ciphered(kind: Callable[[bytes], Cipher] = AESCipher, key: bytes = KEY) -> ReasoningCipher:
    return ReasoningCipher(lambda: key, kind)


# ---- blobs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CIPHERS)
@given(strategies.reasonings, strategies.text, strategies.text)
def test_p13_encrypted_reasoning_is_decrypted_unchanged(kind, item, tenant, model) -> None:
    cipher = ciphered(kind)
    blob = cipher.encrypt(item, tenant, model)
    assert blob.isascii()
    assert cipher.is_ours(blob)
    opened = cipher.decrypt(blob, tenant, model)
    content = tuple(replace(p, tokens=()) if isinstance(p, Thought) else p for p in item.content)
    assert opened == Reasoning(content, item.summary, extra=item.extra)


@pytest.mark.parametrize("kind", CIPHERS)
def test_content_is_decrypted_for_its_own_tenant_and_model_only(kind) -> None:
    cipher = ciphered(kind)
    blob = cipher.encrypt(THOUGHT, "ada", "m")
    assert cipher.decrypt(blob, "ada", "m") == THOUGHT
    for tenant, model in (("bob", "m"), ("ada", "n"), ("", ""), ("m", "ada"), ("adam", "")):
        assert cipher.decrypt(blob, tenant, model) is None


@pytest.mark.parametrize("kind", CIPHERS)
@given(st.integers(0), st.permutations("AZaz09-_.é"))
def test_changed_content_is_not_decrypted(kind, at, others) -> None:
    cipher = ciphered(kind)
    blob = cipher.encrypt(THOUGHT, "ada", "m")  # another one each time
    start = blob.rindex(".") + 1
    place = start + at % (len(blob) - 4 - start)  # the last ones may be spare bits
    other = next(each for each in others if each != blob[place])
    assert cipher.decrypt(blob[:place] + other + blob[place + 1 :], "ada", "m") is None
    assert cipher.decrypt(blob[:place], "ada", "m") is None


def test_encrypted_content_is_not_readable() -> None:
    blob = ciphered().encrypt(Reasoning((Thought("the secret word"),)), "", "m")
    assert b"secret" not in urlsafe_b64decode(blob[blob.rindex(".") + 1 :])


def test_content_of_another_key_is_not_ours() -> None:
    """Another key is another Dragoman, which may stand behind this one."""
    cipher, other = ciphered(), ciphered(key=b"x" * 32)
    assert not cipher.is_ours(other.encrypt(THOUGHT, "", "m"))
    assert not cipher.is_ours("gAAAAABother+/==")
    assert not cipher.is_ours("")
    assert not cipher.is_ours(MARK)
    assert ciphered().is_ours(cipher.encrypt(THOUGHT, "", "m"))


def test_a_reference_ends_with_its_process_and_when_there_is_no_more_room() -> None:
    cipher = ciphered(MemoryCipher)
    blob = cipher.encrypt(THOUGHT, "", "m")
    again = ciphered(MemoryCipher)
    assert again.is_ours(blob)
    assert again.decrypt(blob, "", "m") is None
    small = ciphered(lambda key: MemoryCipher(key, size=500))
    blobs = [small.encrypt(THOUGHT, "", "m") for _ in range(9)]
    assert small.decrypt(blobs[0], "", "m") is None
    assert small.decrypt(blobs[-1], "", "m") == THOUGHT


def test_key_is_read_once_and_lazily() -> None:
    asked: list[int] = []

    def key() -> bytes:
        asked.append(1)
        return KEY

    cipher = ReasoningCipher(key)
    assert not cipher.is_ours("gAAA")
    assert asked == []
    assert cipher.is_ours(cipher.encrypt(THOUGHT, "", "m"))
    assert asked == [1]


def test_without_the_package_references_are_given(monkeypatch) -> None:
    assert isinstance(best_cipher(KEY), AESCipher)
    found = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert isinstance(best_cipher(KEY), MemoryCipher)


def test_a16_signatures_are_compared_in_constant_time(monkeypatch) -> None:
    """So that the time of a refusal does not say how much of a forged one was right."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(
        hmac, "compare_digest", lambda *each: (compared.append(each), compare(*each))[1]
    )
    cipher = MemoryCipher(KEY)
    blob = cipher.encrypt(b"thought", b"tenant")
    assert cipher.decrypt(blob, b"tenant") == b"thought"
    assert cipher.decrypt(blob, b"another") is None
    assert [len(given) == len(own) == 32 for given, own in compared] == [True, True]


# ---- around an engine ------------------------------------------------------------------------

ASK = Message("user", "Go.")
CALL = FunctionCall("call_1", "clock", "{}")
WANTED = Request(model="m", items=(ASK,), include=(ENCRYPTED,))


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


async def test_plain_reasoning_is_encrypted_and_decrypted_again() -> None:
    model = Model(OPEN, CALL)
    engine = EncryptingReasoning(model, ciphered())
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


async def test_a_large_request_is_decrypted_in_a_thread_and_in_pieces(monkeypatch) -> None:
    pieces: list[tuple[bool, int]] = []
    decode = base64.b64decode

    def decoded(content: str, *rest: Any, **options: Any) -> bytes:
        here = threading.current_thread() is threading.main_thread()
        pieces.append((here, len(content)))
        return decode(content, *rest, **options)

    long, cipher = Reasoning((Thought("Hm. " * 50_000),)), ciphered()
    blob = Reasoning(encrypted=cipher.encrypt(long, ANYONE.tenant, "m"))
    monkeypatch.setattr(base64, "b64decode", decoded)
    model = Model(OPEN)
    engine = EncryptingReasoning(model, cipher)
    for size in (0, 1_000_000):
        pieces.clear()
        request = Request(model="m", items=(ASK, blob, CALL))
        async with aclosing(engine.stream(request, Caller(size=size))) as events:
            assert [event async for event in events]
        assert model.asked[-1].items == (ASK, long, CALL)
        assert len(pieces) == 5
        assert {here for here, _ in pieces} == {not size}
        assert max(length for _, length in pieces) == PIECE


async def test_p13_foreign_encrypted_content_passes_unchanged() -> None:
    model = Model(FOREIGN, Reasoning(), CALL)
    engine = EncryptingReasoning(model, ciphered())
    answer = fold(await heard(engine, replace(WANTED, items=(ASK, FOREIGN, CALL))))
    assert answer.output == model.output  # and nothing is not encrypted
    assert model.asked[-1].items == (ASK, FOREIGN, CALL)


@pytest.mark.parametrize("words", [(), (Summary("Short."),)])
async def test_content_that_cannot_be_decrypted_is_reported_and_text_stays(words) -> None:
    model = Model(OPEN)
    cipher = ciphered()
    engine = EncryptingReasoning(model, cipher)
    blob = Reasoning(summary=words, encrypted=cipher.encrypt(OPEN, "bob", "m"), id="rs_1")
    asked = Request(model="m", items=(ASK, blob, CALL))
    started = (await heard(engine, asked))[0]
    assert started.losses[-1] == NOT_DECRYPTED
    kept = (Reasoning(summary=words),) if words else ()
    assert model.asked[-1].items == (ASK, *kept, CALL)


async def test_reasoning_is_not_encrypted_unrequested() -> None:
    model = Model(OPEN)
    engine = EncryptingReasoning(model, ciphered())
    events = await heard(engine, Request(model="m", items=(ASK,)))
    assert all(e.item == model.output[0] for e in events if isinstance(e, ItemDone))


def test_cipher_is_imported_when_the_first_reasoning_is_encrypted() -> None:
    """It takes six megabytes, which a server whose clients never ask for it does without."""
    probe = (
        "import sys\nfrom dragoman.engines.reasoning import MARK, ReasoningCipher\n"
        "cipher = ReasoningCipher(lambda: bytes(32))\nprint('cryptography' in sys.modules)\n"
        "cipher.is_ours(MARK)\nprint('cryptography' in sys.modules)"
    )
    said = subprocess.check_output([sys.executable, "-c", probe], text=True)
    assert said.split() == ["False", "True"]
