"""Requests for raw text: what is taken, what is refused, and what is asked of each server."""

from typing import Any

import pytest
from msgspec import convert

from dragoman.core.error import FaultError
from dragoman.core.item import Message
from dragoman.core.request import Completion, Request, completion_request
from dragoman.wire import json
from dragoman.wire.completions import decode_request, encode_request
from dragoman.wire.protocol import STANDARD, Dialect
from tests.cases import cases

TRANSLATIONS = cases(__file__, "translations")
REFUSED: Any = cases(__file__, "refused")


@pytest.mark.parametrize("case", TRANSLATIONS, ids=lambda case: case["name"])
def test_request_is_decoded_and_encoded_as_expected(case) -> None:
    request = convert(case["request"], Completion)
    if "body" in case:
        assert decode_request(json.dump(case["body"])) == request
    body, losses = encode_request(request, convert(case.get("dialect", {}), Dialect))
    assert json.load(body) == case.get("encoded", case.get("body"))
    assert [loss.field for loss in losses] == case.get("losses", [])


@pytest.mark.parametrize(("body", "param", "problem"), REFUSED)
def test_invalid_or_unsupported_field_is_refused_by_its_path(body, param, problem) -> None:
    with pytest.raises(FaultError) as caught:
        decode_request(json.dump(body))
    fault = caught.value.fault
    assert (fault.param, fault.message) == (param, f"{param}: {problem}")


def test_a_conversation_is_no_prompt() -> None:
    with pytest.raises(FaultError) as caught:
        encode_request(Request(model="m", items=(Message("user", "Hi"),)), STANDARD)
    assert caught.value.fault.param == "items"


def test_a_request_is_asked_of_prompts() -> None:
    request = completion_request(Request(model="m", stream=True), ["a", [1]], echo=True)
    assert request == Completion(model="m", prompts=("a", (1,)), echo=True, stream=True)
    assert completion_request(request, ["b"]) == Completion(model="m", prompts=("b",), stream=True)
