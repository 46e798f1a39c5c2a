"""Validates embeddings, `POST /embeddings`: requests and responses are passed on unchanged, but for
vectors whose server ignores that they were asked for in base64.

Embeddings have no values in the core: requests and responses
are the protocol's own objects.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode

import msgspec
from msgspec import Raw

from dragoman.core.error import Fault, FaultError
from dragoman.core.item import JSON

from . import error, json

PATH = "/embeddings"


def decode_request(data: bytes, limits: json.Limits = json.LIMITS) -> dict[str, JSON]:
    """The request in a body, nulls left out. Raises FaultError naming the field that is wrong.

    >>> decode_request(b'{"model": "m", "input": ["a", "b"], "user": null}')
    {'model': 'm', 'input': ['a', 'b']}
    """
    fields = json.parse(data)
    given = fields.rest()
    fields.need("model")
    _check_input(fields, fields.any("input"), limits)
    fields.integer("dimensions", 1)
    fields.one_of("encoding_format", ("float", "base64"))
    fields.string("user")
    return given


def _check_input(fields: json.Fields, given: JSON, limits: json.Limits) -> None:
    """Text, token ids, or a list of either."""
    match given:
        case None:
            raise fields.wrong("input", "is missing")
        case "" | []:
            raise fields.wrong("input", "is empty")
        case str() | [int(), *_] if _is_one(given):
            return
        case [str(), *_] | [[*_], *_]:
            if len(given) > limits.max_inputs:
                raise json.too_many("input", limits.max_inputs, "max_inputs")
            for number, each in enumerate(given):
                if not each or not _is_one(each):
                    raise fields.wrong(f"input[{number}]", "must be text or token ids, and some")
        case _:
            raise fields.wrong("input", "must be text, token ids, or a list of either")


def _is_one(value: JSON) -> bool:
    if isinstance(value, list):
        return all(type(each) is int and each >= 0 for each in value)
    return isinstance(value, str)


_numbers = msgspec.json.Decoder(list[float]).decode


def decode_response(data: bytes, encoding: JSON = None) -> dict[str, JSON]:
    """The response in a body, with undecoded fields: vectors may be large, and are passed on, in
    the encoding that was asked for. Raises FaultError for an invalid one, with its error message if
    it is short."""
    try:
        fields: dict[str, JSON] = json.raw_fields(data)
        vectors = fields.get("data", b"")
        if bytes(memoryview(vectors)[:1]) == b"[":
            if encoding == "base64":
                encoded = [_in_base64(each) for each in json.raw_list(vectors)]
                fields["data"] = Raw(json.dump(encoded))
            return fields
    except json.BROKEN:
        pass
    if len(data) > error.LONGEST:
        raise FaultError(_broken("no vectors"))
    try:
        value = json.load(data)
    except ValueError as problem:
        raise FaultError(_broken(f"a body that {problem}")) from None
    raise FaultError(error.describe(value) or _broken("no vectors"))


def _in_base64(entry: Raw) -> dict[str, JSON]:
    """An entry whose vector, if it is one of numbers, is the base64 of its bytes: OpenAI's SDK for
    JavaScript asks for that where its user does not say, and reads nothing else."""
    fields: dict[str, JSON] = json.raw_fields(entry)
    if bytes(memoryview(fields.get("embedding", b""))[:1]) == b"[":
        vector = array("f", _numbers(fields["embedding"]))
        if sys.byteorder == "big":
            vector.byteswap()
        fields["embedding"] = b64encode(vector.tobytes()).decode()
    return fields


def _broken(what: str) -> Fault:
    return Fault("upstream_error", f"The model's server answered with {what}.", "upstream")
