"""Files and vector stores: `/files` and `/vector_stores`, their requests and objects, and the
options of the tool that searches them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.files import (
    Attribute,
    Combination,
    Comparison,
    Condition,
    Found,
    IndexedFile,
    StoredFile,
    VectorStore,
)
from dragoman.core.item import JSON

from . import json
from .json import LIMITS, Fields, Limits
from .multipart import Part

FILES, VECTOR_STORES = "/files", "/vector_stores"
FILE_PREFIX, STORE_PREFIX, BATCH_PREFIX = "file-", "vs_", "vsfb_"
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
MOST_ATTRIBUTES, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
MOST_AT_ONCE = 500
"""The most files that one request adds to a vector store."""
MOST_STORES, MOST_QUERIES = 16, 16
"""The most vector stores, and queries, of one search."""
LONGEST_QUERY = 4_096
MOST_RESULTS = 50
MOST_CONDITIONS = 1_000
"""Conditions of a search, where each value that one lists counts as one."""
MOST_DAYS = 3_650
LONGEST_NAME = 512


# ---- requests --------------------------------------------------------------------------------


class Upload(Struct, frozen=True):
    """An uploaded file, which expires after so many `seconds`, or never."""

    name: str
    data: memoryview
    purpose: str
    seconds: int | None = None


class Addition(Struct, frozen=True):
    """A file to be added to a vector store, by its bare id, with its chunking."""

    file: str
    attributes: dict[str, Attribute] = {}
    tokens: int = 800
    overlap: int = 400


class Opening(Struct, frozen=True):
    """A vector store to be created, with its initial files."""

    name: str = ""
    description: str | None = None
    metadata: dict[str, Any] = {}
    days: int | None = None
    files: tuple[Addition, ...] = ()


class Search(Struct, frozen=True):
    """A search: one query or several, in files that match a filter. `weights`
    are those of vectors and of words, where there are both."""

    queries: tuple[str, ...] = ()
    condition: Condition | None = None
    most: int = 10
    threshold: float = 0.0
    weights: tuple[float, float] = (1.0, 1.0)


def decode_upload(parts: Sequence[Part]) -> Upload:
    """The file in a form. Raises FaultError naming the field that is wrong."""
    fields: dict[str, Part] = {}
    for part in parts:
        if part.name in fields:
            raise FaultError(bad_request("is given twice", part.name))
        fields[part.name] = part
    file, purpose = fields.get("file"), fields.get("purpose")
    if file is None or file.filename is None:
        problem = "is missing" if file is None else "has no filename, so that it is no file"
        raise FaultError(bad_request(problem, "file"))
    if purpose is None:
        raise FaultError(bad_request("is missing", "purpose"))
    Fields({"purpose": purpose.text}).one_of("purpose", PURPOSES)
    seconds: int | None = None
    if (given := fields.get("expires_after[seconds]")) is not None:
        if not given.text.isascii() or not given.text.isdigit() or len(given.text) > 9:
            raise FaultError(bad_request("must be an integer", given.name))
        seconds = int(given.text)
        Fields({given.name: seconds}).integer(given.name, 3_600, 2_592_000)
    if (anchor := fields.get("expires_after[anchor]")) is not None:
        Fields({anchor.name: anchor.text}).one_of(anchor.name, ("created_at",))
    return Upload(file.filename or "file", file.data, purpose.text, seconds)


def decode_opening(data: bytes, limits: Limits = LIMITS) -> Opening:
    """The vector store to be created. Raises FaultError naming the field that is wrong."""
    fields = json.parse(data or b"{}")
    about = _described(fields, limits)
    tokens, overlap = _strategy(fields)
    files = [Addition(_file_id(fields, n, id), {}, tokens, overlap) for n, id in _ids(fields)]
    return Opening(**about, files=tuple(files))


def decode_change(data: bytes, limits: Limits = LIMITS) -> dict[str, Any]:
    """The changed fields of a vector store; `days` is None where it does not expire."""
    fields = json.parse(data)
    given = {*fields.left()}
    about = _described(fields, limits)
    names = {"days": "expires_after"}
    return {name: value for name, value in about.items() if names.get(name, name) in given}


def _described(fields: Fields, limits: Limits) -> dict[str, Any]:
    name, description = fields.string("name") or "", fields.string("description")
    for field, text in (("name", name), ("description", description or "")):
        if len(text) > LONGEST_NAME:
            raise fields.wrong(field, f"has more than {LONGEST_NAME} characters")
    metadata = fields.mapping("metadata") or {}
    json.check_metadata(metadata, limits)
    days: int | None = None
    if (expiry := fields.object("expires_after")) is not None:
        expiry.one_of("anchor", ("last_active_at",))
        days = expiry.integer("days", 1, MOST_DAYS)
        if days is None:
            raise expiry.wrong("days", "is missing")
    return {"name": name, "description": description, "metadata": metadata, "days": days}


def decode_addition(data: bytes, limits: Limits = LIMITS) -> Addition:
    """The file to be added to a vector store. Raises FaultError naming the field that is wrong."""
    return _addition(json.parse(data))


def decode_batch(data: bytes, limits: Limits = LIMITS) -> tuple[Addition, ...]:
    """The files to be added to a vector store together. Raises FaultError for a field."""
    fields = json.parse(data)
    each = [_addition(entry) for entry in fields.objects("files")]
    if len(each) > MOST_AT_ONCE:
        raise json.too_many("files", MOST_AT_ONCE, "at once")
    attributes, (tokens, overlap) = _attributes(fields), _strategy(fields)
    for number, id in _ids(fields):
        each.append(Addition(_file_id(fields, number, id), attributes, tokens, overlap))
    if not each:
        raise fields.wrong("file_ids", "is missing")
    return tuple(each)


def decode_attributes(data: bytes, limits: Limits = LIMITS) -> dict[str, Attribute]:
    """The new attributes of a file in a vector store. Raises FaultError."""
    return _attributes(json.parse(data))


def _addition(fields: Fields) -> Addition:
    id = fields.need("file_id").removeprefix(FILE_PREFIX)
    return Addition(id, _attributes(fields), *_strategy(fields))


def _ids(fields: Fields) -> list[tuple[int, str]]:
    ids = fields.strings("file_ids") or ()
    if len(ids) > MOST_AT_ONCE:
        raise json.too_many(fields.at("file_ids"), MOST_AT_ONCE, "at once")
    return list(enumerate(dict.fromkeys(ids)))


def _file_id(fields: Fields, number: int, id: str) -> str:
    if not id:
        raise fields.wrong(f"file_ids[{number}]", "is empty")
    return id.removeprefix(FILE_PREFIX)


def _attributes(fields: Fields) -> dict[str, Attribute]:
    given, found = fields.mapping("attributes") or {}, dict[str, Attribute]()
    if len(given) > MOST_ATTRIBUTES:
        raise fields.wrong("attributes", f"has more than {MOST_ATTRIBUTES} entries")
    for key, value in given.items():
        place = f"attributes.{key[:LONGEST_KEY]}"
        if len(key) > LONGEST_KEY or (isinstance(value, str) and len(value) > LONGEST_VALUE):
            problem = f"names have {LONGEST_KEY} characters, and texts {LONGEST_VALUE}, at the most"
            raise fields.wrong(place, problem)
        if not isinstance(value, str | int | float) or (type(value) is int and abs(value) > 2**63):
            raise fields.wrong(place, f"is {json.kind(value)}, and must be text, number or boolean")
        found[key] = value if isinstance(value, str | bool) else float(value)
    return found


def _strategy(fields: Fields) -> tuple[int, int]:
    """The tokens of a chunk, and of its overlap with the next."""
    given = fields.object("chunking_strategy")
    if given is None or given.one_of("type", ("auto", "static")) != "static":
        return 800, 400
    static = given.object("static") or Fields({}, given.at("static"))
    tokens = static.integer("max_chunk_size_tokens", 100, 4_096)
    overlap = static.integer("chunk_overlap_tokens", 0)
    tokens = 800 if tokens is None else tokens
    overlap = min(400, tokens // 2) if overlap is None else overlap
    if overlap > tokens // 2:
        problem = f"is {overlap}, and must be at most half of max_chunk_size_tokens"
        raise static.wrong("chunk_overlap_tokens", problem)
    return tokens, overlap


def decode_search(data: bytes, limits: Limits = LIMITS) -> Search:
    """The search in a body. Raises FaultError naming the field that is wrong."""
    fields = json.parse(data)
    query = fields.any("query")
    queries = query if isinstance(query, list) else [query]
    if not queries or not all(isinstance(each, str) and each.strip() for each in queries):
        raise fields.wrong("query", "must be text that is not empty, or a list of such")
    if len(queries) > MOST_QUERIES or max(map(len, queries)) > LONGEST_QUERY:
        problem = f"at most {MOST_QUERIES} questions of {LONGEST_QUERY} characters are allowed"
        raise fields.wrong("query", problem)
    return _search(fields, tuple(queries), 10)


def decode_options(asked: Mapping[str, JSON]) -> tuple[tuple[str, ...], Search]:
    """The ids of the vector stores of a request's tool, as given, and its options. Raises
    FaultError naming the field that is wrong."""
    fields = Fields(dict(asked))
    ids = fields.strings("vector_store_ids")
    if not ids:
        raise fields.wrong("vector_store_ids", "is missing" if ids is None else "is empty")
    if len(ids) > MOST_STORES:
        raise json.too_many("vector_store_ids", MOST_STORES, "of one tool")
    return tuple(ids), _search(fields, (), 20)


def _search(fields: Fields, queries: tuple[str, ...], most: int) -> Search:
    most = fields.integer("max_num_results", 1, MOST_RESULTS) or most
    given, condition = fields.object("filters"), None
    if given is not None:
        condition = _condition(given, [MOST_CONDITIONS])
    threshold, weights = 0.0, (1.0, 1.0)
    if (ranking := fields.object("ranking_options")) is not None:
        ranking.string("ranker")
        threshold = ranking.number("score_threshold", 0, 1) or 0.0
        if (hybrid := ranking.object("hybrid_search")) is not None:
            both = [hybrid.number(name, 0, 1e6) for name in ("embedding_weight", "text_weight")]
            meaning, words = (1.0 if each is None else float(each) for each in both)
            weights = meaning, words
            if not any(weights):
                raise hybrid.wrong("text_weight", "is 0, as the other weight is")
    return Search(queries, condition, most, threshold, weights)


_COMPARED = ("eq", "ne", "gt", "gte", "lt", "lte")
_LISTED = ("in", "nin")


def _condition(fields: Fields, left: list[int]) -> Condition:
    kind = fields.one_of("type", ("and", "or", *_COMPARED, *_LISTED))
    if kind is None:
        raise fields.wrong("type", "is missing")
    given = fields.any("value")
    values = given if kind in _LISTED else [given]
    left[0] -= max(len(values), 1) if isinstance(values, list) else 1
    if left[0] < 0:
        problem = f"has more than {MOST_CONDITIONS} conditions, or values in their lists"
        raise FaultError(unsupported(problem, "filters"))
    if kind in ("and", "or"):
        each = [_condition(entry, left) for entry in fields.objects("filters")]
        if not each:
            raise fields.wrong("filters", "is missing or empty")
        return Combination(kind == "and", tuple(each))
    key = fields.need("key")
    if not isinstance(values, list):
        raise fields.wrong("value", f"is {json.kind(values)}, and must be an array")
    for entry in values:
        if not isinstance(entry, str | int | float) or (
            isinstance(entry, float) and not math.isfinite(entry)
        ):
            problem = f"is {json.kind(entry)}, and must be text, number or boolean"
            raise fields.wrong("value", problem)
    operator: Any = kind
    return Comparison(key, operator, tuple(values) if kind in _LISTED else values[0])


# ---- objects ---------------------------------------------------------------------------------


def file_object(file: StoredFile) -> dict[str, JSON]:
    """The protocol's object of a file."""
    return {
        "id": FILE_PREFIX + file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def store_object(store: VectorStore) -> dict[str, JSON]:
    """The protocol's object of a vector store."""
    days = store.days
    return {
        "id": STORE_PREFIX + store.id,
        "object": "vector_store",
        "created_at": store.created_at,
        "name": store.name,
        "description": store.description,
        "usage_bytes": store.size,
        "file_counts": _counts(store.counts),
        "status": "in_progress" if store.counts.get("in_progress") else "completed",
        "expires_after": None if days is None else {"anchor": "last_active_at", "days": days},
        "expires_at": store.expires_at,
        "last_active_at": store.active_at,
        "metadata": store.metadata,
    }


def store_entry(store: VectorStore) -> dict[str, JSON]:
    """The same in a list, with metadata that is encoded: many of them take much memory."""
    return {**store_object(store), "metadata": Raw(json.dump(store.metadata))}


def indexed_object(file: IndexedFile) -> dict[str, JSON]:
    """The protocol's object of a file in a vector store."""
    error = None if file.error is None else {"code": file.error[0], "message": file.error[1]}
    static = {"max_chunk_size_tokens": file.tokens, "chunk_overlap_tokens": file.overlap}
    return {
        "id": FILE_PREFIX + file.file,
        "object": "vector_store.file",
        "usage_bytes": file.size,
        "created_at": file.created_at,
        "vector_store_id": STORE_PREFIX + file.store,
        "status": file.status,
        "last_error": error,
        "chunking_strategy": {"type": "static", "static": static},
        "attributes": file.attributes,
    }


def batch_object(id: str, files: Sequence[IndexedFile]) -> dict[str, JSON]:
    """The protocol's object of a file batch."""
    counts: dict[str, int] = {}
    for file in files:
        counts[file.status] = counts.get(file.status, 0) + 1
    return {
        "id": BATCH_PREFIX + id,
        "object": "vector_store.files_batch",
        "created_at": min(file.created_at for file in files),
        "vector_store_id": STORE_PREFIX + files[0].store,
        "status": "in_progress" if counts.get("in_progress") else "completed",
        "file_counts": _counts(counts),
    }


def _counts(counts: Mapping[str, int]) -> dict[str, JSON]:
    names = ("in_progress", "completed", "failed", "cancelled")
    return {**{name: counts.get(name, 0) for name in names}, "total": sum(counts.values())}


def found_object(found: Found) -> dict[str, JSON]:
    """A result in the item of a call."""
    return {
        "file_id": FILE_PREFIX + found.file,
        "filename": found.name,
        "score": found.score,
        "text": found.text,
        "attributes": found.attributes,
    }


def encode_found(queries: Sequence[str], found: Sequence[Found]) -> bytes:
    """The answer to a search."""
    shown: list[dict[str, JSON]] = []
    for each in found:
        value = found_object(each)
        content = [{"type": "text", "text": value.pop("text")}]
        shown.append({**value, "content": content})
    kind = "vector_store.search_results.page"
    page = {"object": kind, "search_query": list(queries), "data": shown}
    return json.dump({**page, "has_more": False, "next_page": None})


def encode_content(texts: Sequence[str]) -> bytes:
    """The text of a file in a vector store, by its chunks."""
    data = [{"type": "text", "text": text} for text in texts]
    page = {"object": "vector_store.file_content.page", "data": data}
    return json.dump({**page, "has_more": False, "next_page": None})


def encode_listing(shown: Sequence[dict[str, JSON]], more: bool) -> bytes:
    """A page of a list."""
    ids = [each["id"] for each in shown] or [None]
    data = b",".join(map(json.dump, shown))  # one by one: they may be long together
    rest = json.dump({"first_id": ids[0], "last_id": ids[-1], "has_more": more})
    return b'{"object":"list","data":[%b],%b' % (data, rest[1:])


def encode_deleted(id: str, kind: str) -> bytes:
    """The answer to a deletion.

    >>> encode_deleted("file-1", "file")
    b'{"id":"file-1","object":"file","deleted":true}'
    """
    return json.dump({"id": id, "object": kind, "deleted": True})
