"""Embeddings are looked at and let through."""

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


@pytest.mark.parametrize(("said", "words"), CASES["answers"])
def test_invalid_answer_is_a_fault_of_the_upstream(said, words) -> None:
    with pytest.raises(FaultError) as caught:
        embeddings.decode_response(said.encode())
    fault: Fault = caught.value.fault
    assert words in fault.message
    assert fault.code in ("upstream_error", "upstream_refused")
