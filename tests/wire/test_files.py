"""Files and vector stores: requests as they are decoded, and what is refused with its field."""

import json

import pytest
from openai.types import FileObject
from openai.types import VectorStore as SdkStore
from openai.types.vector_stores import VectorStoreFile, VectorStoreFileBatch

from dragoman.core.error import FaultError
from dragoman.core.files import (
    Combination,
    Comparison,
    Found,
    IndexedFile,
    StoredFile,
    VectorStore,
)
from dragoman.wire.files import (
    MOST_AT_ONCE,
    MOST_CONDITIONS,
    Addition,
    Opening,
    Search,
    batch_object,
    decode_addition,
    decode_attributes,
    decode_batch,
    decode_change,
    decode_opening,
    decode_options,
    decode_search,
    decode_upload,
    encode_content,
    encode_deleted,
    encode_found,
    encode_listing,
    file_object,
    indexed_object,
    store_object,
)
from dragoman.wire.multipart import Part


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def parts(*, file: str | None = "a.txt", **fields: str) -> list[Part]:
    found = [Part(name, memoryview(value.encode())) for name, value in fields.items()]
    return [*found, Part("file", memoryview(b"text"), file)]


def static(tokens: object, overlap: object) -> dict[str, object]:
    fields = {"max_chunk_size_tokens": tokens, "chunk_overlap_tokens": overlap}
    return {"type": "static", "static": fields}


EXPIRY = "expires_after[seconds]"


def test_upload_is_a_file_with_a_purpose() -> None:
    given = decode_upload(parts(purpose="user_data"))
    assert (given.name, bytes(given.data), given.purpose) == ("a.txt", b"text", "user_data")
    assert given.seconds is None
    anchored = {EXPIRY: "3600", "expires_after[anchor]": "created_at"}
    assert decode_upload(parts(purpose="batch", **anchored)).seconds == 3600
    assert decode_upload(parts(purpose="batch", file="")).name == "file"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "file"),
        (parts(purpose="batch", file=None), "file"),
        (parts(), "purpose"),
        (parts(purpose="other"), "purpose"),
        (parts(purpose="batch", **{EXPIRY: "3599"}), EXPIRY),
        (parts(purpose="batch", **{EXPIRY: "-1"}), EXPIRY),
        (parts(purpose="batch", **{EXPIRY: "٣"}), EXPIRY),
        (parts(purpose="batch", **{EXPIRY: "9" * 10}), EXPIRY),
        (
            parts(purpose="batch", **{"expires_after[anchor]": "now"}),
            "expires_after[anchor]",
        ),
        (parts(purpose="batch") * 2, "purpose"),
    ],
)
def test_upload_that_is_wrong_is_refused(given, param) -> None:
    with pytest.raises(FaultError) as caught:
        decode_upload(given)
    assert caught.value.fault.param == param


@pytest.mark.parametrize(
    ("data", "opening"),
    [
        (b"", Opening()),
        (body(name="n", metadata=None), Opening(name="n")),
        (
            body(
                name="n",
                description="d",
                metadata={"k": "v"},
                expires_after={"anchor": "last_active_at", "days": 3},
                file_ids=["file-1", "2", "file-1"],
                chunking_strategy=static(200, 50),
            ),
            Opening(
                "n", "d", {"k": "v"}, 3, (Addition("1", {}, 200, 50), Addition("2", {}, 200, 50))
            ),
        ),
    ],
)
def test_vector_store_is_opened(data, opening) -> None:
    assert decode_opening(data) == opening


def test_only_what_is_given_changes() -> None:
    assert decode_change(body(name="n")) == {"name": "n"}
    assert decode_change(body(expires_after=None)) == {"days": None}
    assert decode_change(body(metadata={"a": "b"})) == {"metadata": {"a": "b"}}


@pytest.mark.parametrize(
    ("fields", "addition"),
    [
        ({"file_id": "file-1"}, Addition("1")),
        (
            {"file_id": "1", "attributes": {"a": 1, "b": True, "c": "d"}},
            Addition("1", {"a": 1.0, "b": True, "c": "d"}),
        ),
        ({"file_id": "1", "chunking_strategy": {"type": "auto"}}, Addition("1")),
        ({"file_id": "1", "chunking_strategy": static(100, None)}, Addition("1", {}, 100, 50)),
        ({"file_id": "1", "chunking_strategy": static(None, 0)}, Addition("1", {}, 800, 0)),
        ({"file_id": "1", "chunking_strategy": {"type": "static"}}, Addition("1")),
    ],
)
def test_file_is_added(fields, addition) -> None:
    assert decode_addition(body(**fields)) == addition


def test_files_are_added_together() -> None:
    each = decode_batch(body(file_ids=["file-1"], attributes={"a": "b"}, files=[{"file_id": "2"}]))
    assert each == (Addition("2"), Addition("1", {"a": "b"}))
    assert decode_attributes(body(attributes={"a": "b"})) == {"a": "b"}
    assert decode_attributes(body(attributes=None)) == {}


@pytest.mark.parametrize(
    ("decode", "fields", "param"),
    [
        (decode_opening, {"name": "n" * 513}, "name"),
        (decode_opening, {"description": "n" * 513}, "description"),
        (decode_opening, {"metadata": {str(n): "" for n in range(65)}}, "metadata"),
        (decode_opening, {"expires_after": {}}, "expires_after.days"),
        (decode_opening, {"expires_after": {"days": 0}}, "expires_after.days"),
        (decode_opening, {"expires_after": {"anchor": "x", "days": 1}}, "expires_after.anchor"),
        (decode_opening, {"file_ids": ["1"] * (MOST_AT_ONCE + 1)}, "file_ids"),
        (decode_opening, {"file_ids": ["1", ""]}, "file_ids[1]"),
        (decode_addition, {}, "file_id"),
        (
            decode_addition,
            {"file_id": "1", "chunking_strategy": {"type": "x"}},
            "chunking_strategy.type",
        ),
        (
            decode_addition,
            {"file_id": "1", "chunking_strategy": static(99, 1)},
            "chunking_strategy.static.max_chunk_size_tokens",
        ),
        (
            decode_addition,
            {"file_id": "1", "chunking_strategy": static(100, 51)},
            "chunking_strategy.static.chunk_overlap_tokens",
        ),
        (decode_batch, {}, "file_ids"),
        (decode_batch, {"files": [{"file_id": "1"}] * (MOST_AT_ONCE + 1)}, "files"),
        (decode_batch, {"files": [{}]}, "files[0].file_id"),
        (decode_attributes, {"attributes": {str(n): "" for n in range(17)}}, "attributes"),
        (decode_attributes, {"attributes": {"k" * 65: ""}}, "attributes." + "k" * 64),
        (decode_attributes, {"attributes": {"k": "v" * 513}}, "attributes.k"),
        (decode_attributes, {"attributes": {"k": []}}, "attributes.k"),
        (decode_attributes, {"attributes": {"k": 10**400}}, "attributes.k"),
        (decode_search, {}, "query"),
        (decode_search, {"query": []}, "query"),
        (decode_search, {"query": ["a", " "]}, "query"),
        (decode_search, {"query": ["a"] * 17}, "query"),
        (decode_search, {"query": "a" * 4097}, "query"),
        (decode_search, {"query": "a", "max_num_results": 51}, "max_num_results"),
        (
            decode_search,
            {"query": "a", "ranking_options": {"score_threshold": 2}},
            "ranking_options.score_threshold",
        ),
        (
            decode_search,
            {
                "query": "a",
                "ranking_options": {"hybrid_search": {"text_weight": 0, "embedding_weight": 0}},
            },
            "ranking_options.hybrid_search.text_weight",
        ),
        (decode_search, {"query": "a", "filters": {}}, "filters.type"),
        (decode_search, {"query": "a", "filters": {"type": "like"}}, "filters.type"),
        (decode_search, {"query": "a", "filters": {"type": "and"}}, "filters.filters"),
        (decode_search, {"query": "a", "filters": {"type": "eq", "value": 1}}, "filters.key"),
        (decode_search, {"query": "a", "filters": {"type": "eq", "key": "k"}}, "filters.value"),
        (
            decode_search,
            {"query": "a", "filters": {"type": "in", "key": "k", "value": "v"}},
            "filters.value",
        ),
        (
            decode_search,
            {
                "query": "a",
                "filters": {"type": "and", "filters": [{"type": "or"}] * MOST_CONDITIONS},
            },
            "filters.filters[0].filters",
        ),
    ],
)
def test_what_is_wrong_is_named(decode, fields, param) -> None:
    with pytest.raises(FaultError) as caught:
        decode(body(**fields))
    assert caught.value.fault.param == param


def test_number_that_is_none_is_refused() -> None:
    data = b'{"query": "a", "filters": {"type": "eq", "key": "k", "value": 1e999}}'
    with pytest.raises(FaultError):
        decode_search(data)


def test_many_conditions_are_refused() -> None:
    each = {"type": "eq", "key": "k", "value": 1}
    nested = {"type": "and", "filters": [each] * MOST_CONDITIONS}
    with pytest.raises(FaultError, match="more than 1000 conditions"):
        decode_search(body(query="a", filters=nested))


def test_search_has_its_options() -> None:
    assert decode_search(body(query="a")) == Search(("a",))
    filters = {
        "type": "or",
        "filters": [
            {"type": "gte", "key": "year", "value": 2024},
            {"type": "nin", "key": "lang", "value": ["en", "de"]},
        ],
    }
    ranking = {"ranker": "auto", "score_threshold": 0.5, "hybrid_search": {"text_weight": 3}}
    given = body(query=["a", "b"], max_num_results=5, filters=filters, ranking_options=ranking)
    conditions = Comparison("year", "gte", 2024), Comparison("lang", "nin", ("en", "de"))
    assert decode_search(given) == Search(
        ("a", "b"), Combination(False, conditions), 5, 0.5, (1.0, 3.0)
    )
    tool = {"type": "file_search", "vector_store_ids": ["vs_1", "2"], "ranking_options": {}}
    assert decode_options(tool) == (("vs_1", "2"), Search(most=20))


@pytest.mark.parametrize("ids", [None, [], ["1"] * 17, [1]])
def test_tool_needs_vector_stores(ids) -> None:
    with pytest.raises(FaultError) as caught:
        decode_options({"type": "file_search", "vector_store_ids": ids})
    assert caught.value.fault.param in ("vector_store_ids", "vector_store_ids[0]")


def test_objects_are_those_of_the_sdk() -> None:
    file = StoredFile(id="1", tenant="", name="a", purpose="batch", size=3, created_at=5)
    assert FileObject.model_validate(file_object(file)).id == "file-1"
    store = VectorStore(id="1", tenant="", created_at=5, active_at=5, days=1, counts={"failed": 2})
    shown = SdkStore.model_validate(store_object(store))
    assert (shown.id, shown.status, shown.file_counts.total) == ("vs_1", "completed", 2)
    assert (
        store_object(VectorStore(id="1", tenant="", created_at=5, active_at=5))["expires_at"]
        is None
    )
    busy = VectorStore(id="1", tenant="", created_at=5, active_at=5, counts={"in_progress": 1})
    assert store_object(busy)["status"] == "in_progress"
    entry = IndexedFile(store="1", file="2", name="a", created_at=5, error=("server_error", "No."))
    assert VectorStoreFile.model_validate(indexed_object(entry)).last_error.message == "No."
    done = IndexedFile(store="1", file="3", name="a", created_at=4, status="completed")
    assert indexed_object(done)["last_error"] is None
    batch = VectorStoreFileBatch.model_validate(batch_object("9", [entry, done]))
    assert (batch.created_at, batch.status, batch.file_counts.total) == (4, "in_progress", 2)
    assert batch_object("9", [done])["status"] == "completed"


def test_pages_are_encoded() -> None:
    page = json.loads(encode_listing([{"id": "a"}, {"id": "b"}], True))
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("a", "b", True)
    assert json.loads(encode_listing([], False))["first_id"] is None
    found = json.loads(encode_found(["q"], [Found("1", "a.txt", "text", 0.5, {"k": "v"})]))
    assert found["data"] == [
        {
            "file_id": "file-1",
            "filename": "a.txt",
            "score": 0.5,
            "attributes": {"k": "v"},
            "content": [{"type": "text", "text": "text"}],
        }
    ]
    assert json.loads(encode_content(["a"]))["data"] == [{"type": "text", "text": "a"}]
    assert json.loads(encode_deleted("file-1", "file"))["deleted"] is True
