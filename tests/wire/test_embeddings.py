"""Embeddings are looked at and let through."""

import math
import struct
from base64 import b64decode
from typing import Any

import pytest

from dragoman.core.error import Fault, FaultError
from dragoman.wire import embeddings, json
from tests.cases import cases

CASES = cases(__file__, "embeddings")


@pytest.mark.parametrize("given", ["a", ["a"], ["a", "b"], [1, 2], [[1, 2], [3]], ["a", [1]]])
def test_input_is_text_or_ids_or_a_list_of_those(given) -> None:
    said = {"model": "m", "input": given, "encoding_format": "base64", "dimensions": 3, "x": 1}
    assert embeddings.decode_request(json.dump(said | {"user": None})) == said


@pytest.mark.parametrize(("fields", "param"), CASES["requests"])
def test_invalid_field_is_named(fields, param) -> None:
    with pytest.raises(FaultError) as caught:
        embeddings.decode_request(json.dump({"model": "m"} | fields))
    assert caught.value.fault.param == param


def test_as_many_tokens_as_openai_takes_are_within_the_default_limit() -> None:
    """LangChain fills its requests up to exactly so many."""
    given = [[7] * 146 for _ in range(2_047)] + [[7] * 1_138]
    assert sum(map(len, given)) == 300_000
    said = {"model": "m", "input": given, "encoding_format": "base64"}
    assert json.check_size(json.dump(said), json.Limits()) > 300_000


def test_answer_passes_unchanged() -> None:
    said = {"object": "list", "data": [{"index": 0, "embedding": "AAAA"}], "usage": {}, "x": 1}
    assert json.load(json.dump(embeddings.decode_response(json.dump(said)))) == said


def test_vectors_are_in_base64_where_that_was_asked_for() -> None:
    """OpenAI's SDK for JavaScript asks for it, and took the numbers of servers that ignore it for
    bytes: vectors of a quarter of their length, and wrong."""
    entries = [{"index": 1, "embedding": [0.5, -1, 2e40], "x": 1}, {"embedding": "AAAA"}, {}]
    said = json.dump({"data": entries, "usage": {}})
    answer: Any = json.load(json.dump(embeddings.decode_response(said, "base64")))
    first, *others = answer["data"]
    assert struct.unpack("<3f", b64decode(first.pop("embedding"))) == (0.5, -1, math.inf)
    assert (first, others) == ({"index": 1, "x": 1}, [{"embedding": "AAAA"}, {}])
    assert json.load(json.dump(embeddings.decode_response(said, "float")))["data"] == entries


@pytest.mark.parametrize("data", ["[1]", '[{"embedding": ["a"]}]', '[{"embedding": [[1]]}]'])
def test_vectors_that_are_none_are_a_fault_of_the_upstream(data) -> None:
    with pytest.raises(FaultError) as caught:
        embeddings.decode_response(f'{{"data": {data}}}'.encode(), "base64")
    assert caught.value.fault.code == "upstream_error"


@pytest.mark.parametrize(("said", "words"), CASES["answers"])
def test_invalid_answer_is_a_fault_of_the_upstream(said, words) -> None:
    with pytest.raises(FaultError) as caught:
        embeddings.decode_response(said.encode())
    fault: Fault = caught.value.fault
    assert words in fault.message
    assert fault.code in ("upstream_error", "upstream_refused")


def test_base64_is_of_little_endian_bytes_on_any_machine(monkeypatch) -> None:
    monkeypatch.setattr(embeddings.sys, "byteorder", "big")  # which has them the other way round
    body = b'{"data": [{"index": 0, "embedding": [0.5]}]}'
    (entry,) = json.load(json.dump(embeddings.decode_response(body, "base64")))["data"]
    assert b64decode(entry["embedding"]) == struct.pack(">f", 0.5)
