"""Files, vector stores and what is found in them: the contract of `Store`, for every store."""

import asyncio
import threading
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.files import IndexedFile, StoredFile, VectorStore
from dragoman.stores import files
from dragoman.stores.base import APART, Page, Paging, Piece, Room
from dragoman.stores.files import PURGED, PURGED_BYTES, UNFINISHED
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore
from dragoman.tools.chunks import asked_words, find_words
from tests.postgres import Postgres

NOW = 1_000_000
BYTES = bytes(range(256))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request, tmp_path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        opened = PostgresStore(server.address, schema=tmp_path.name)
    else:
        opened = SqliteStore(tmp_path / "store.db")
    opened.now = lambda: float(NOW)
    yield opened
    await opened.close()


def file(id: str, **fields: object) -> StoredFile:
    given = {"id": id, "tenant": "t", "name": f"{id}.txt", "purpose": "assistants"}
    return StoredFile(**(given | {"size": 256, "created_at": NOW} | fields))


def entry(name: str, **fields: object) -> IndexedFile:
    given = {"store": "v", "file": name, "name": f"{name}.txt", "created_at": NOW}
    return IndexedFile(**(given | fields))


def _id(store: VectorStore) -> str:
    return store.id


async def filled(store: Store, *files: str, tenant: str = "t", id: str = "v") -> VectorStore:
    """A vector store in which each file has two chunks: its name and `both`, and `other`."""
    made = VectorStore(id=id, tenant=tenant, created_at=NOW, active_at=NOW, name="notes")
    await store.add_vector_store(made, 100)
    for name in files:
        await index(store, name, [[name, "both"], ["other"]], tenant=tenant, store_id=id)
    (found,) = await store.get_vector_stores(tenant, (id,))
    return found


async def index(
    store: Store, name: str, texts: list[list[str]], tenant: str = "t", store_id: str = "v"
) -> IndexedFile:
    if await store.get_file(tenant, name) is None:
        await store.add_file(file(name, tenant=tenant), BYTES, 100, 10**9)
    made = entry(name, store=store_id)
    seq = await store.index_file(tenant, made)
    assert seq is not None
    assert await store.add_pieces(seq, [Piece(" ".join(words), words) for words in texts], 10_000)
    done = replace(made, seq=seq, status="completed")
    assert await store.end_indexing(done)
    return done


async def texts(store: Store, where: VectorStore, *words: str, most: int = 10) -> list[str]:
    seqs = await store.matching([where], None, words, most)
    found = {chunk.seq: chunk.text for chunk in await store.get_chunks(seqs, Room())}
    return [found[seq] for seq in seqs]


async def test_file_is_kept_and_is_gone_when_it_is_deleted(store: Store) -> None:
    made = file("a", expires_at=NOW + 10)
    await store.add_file(made, memoryview(BYTES), 10, 1000)
    assert await store.get_file("t", "a") == made
    assert await store.file_data("t", "a") == BYTES
    assert await store.get_file("other", "a") is None
    assert await store.file_data("other", "a") is None
    assert not await store.delete_file("other", "a")
    assert await store.delete_file("t", "a")
    assert await store.get_file("t", "a") is None
    assert not await store.delete_file("t", "a")


async def test_files_are_listed_in_pages(store: Store) -> None:
    for id in ("a", "b", "c"):
        purpose = "assistants" if id < "c" else "user_data"
        await store.add_file(file(id, purpose=purpose), b"", 10, 1000)
    await store.add_file(file("x", tenant="other"), b"", 10, 1000)

    async def listed(purpose=None, **paging: object) -> tuple[list[str], bool]:
        page = await store.list_files("t", purpose, Paging(**paging))
        return [each.id for each in page.items], page.more

    assert await listed() == (["c", "b", "a"], False)
    assert await listed(limit=2) == (["c", "b"], True)
    assert await listed(after="b") == (["a"], False)
    assert await listed(order="asc", after="a", limit=1) == (["b"], True)
    assert await listed("user_data") == (["c"], False)
    assert await listed(after="x") == ([], False)  # of another tenant


async def test_large_files_are_written_one_after_another(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, running, most = store._transact, 0, 0

    async def transact(*given):
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await real(*given)
        finally:
            running -= 1

    monkeypatch.setattr(store, "_transact", transact)
    for size, together in ((APART, 3), (APART + 1, 1)):
        names, most = [f"{size}{name}" for name in "abc"], 0
        adding = [store.add_file(file(name, size=size), b"", 10, 10**9) for name in names]
        await asyncio.gather(*adding)
        assert most <= together


async def test_tenant_has_room_for_so_many_files_and_bytes(store: Store) -> None:
    await store.add_file(file("a"), BYTES, 2, 600)
    with pytest.raises(FaultError, match="max_file_bytes_per_key"):
        await store.add_file(file("b", size=345), BYTES, 2, 600)
    await store.add_file(file("b"), BYTES, 2, 600)
    with pytest.raises(FaultError, match="max_files_per_key"):
        await store.add_file(file("c", size=1), BYTES, 2, 600)
    await store.add_file(file("c", tenant="other"), BYTES, 2, 600)
    await store.delete_file("t", "a")  # which makes room
    await store.add_file(file("d"), BYTES, 2, 600)


async def test_vector_store_is_kept_changed_and_deleted(store: Store) -> None:
    made = await filled(store, "cat", "dog")
    assert (made.counts, made.size, made.name) == ({"completed": 2}, 26, "notes")
    assert await store.get_vector_stores("other", ("v",)) == []
    assert await store.change_vector_store(replace(made, name="pets", days=2))
    (changed,) = await store.get_vector_stores("t", ("v", "none"))
    assert changed == replace(made, name="pets", days=2)
    assert not await store.change_vector_store(replace(made, tenant="other"))
    await store.touch_vector_stores([changed], NOW + 500)
    (touched,) = await store.get_vector_stores("t", ("v",))
    assert touched.expires_at == NOW + 500 + 2 * 86_400
    with pytest.raises(FaultError, match="max_vector_stores_per_key"):
        await store.add_vector_store(replace(made, id="w"), 1)
    await store.add_vector_store(replace(made, id="w"), 2)
    page = await store.list_vector_stores("t", Paging(limit=1, order="asc"), _id, Room())
    assert page == Page(("v",), True)
    assert not await store.delete_vector_store("other", "v")
    assert await store.delete_vector_store("t", "v")
    assert await store.get_vector_stores("t", ("v",)) == []
    assert await store.matching([made], None, ["cat"], 10) == []
    assert await store.get_file("t", "cat") is not None


async def test_vector_stores_with_much_metadata_are_counted_and_shown_in_a_thread(
    store: Store,
) -> None:
    made = VectorStore(id="v", tenant="t", created_at=NOW, active_at=NOW)
    for number in range(6):
        many = {"numbers": [1] * 60_000}
        await store.add_vector_store(replace(made, id=f"v{number}", metadata=many), 9)
    held: list[int] = []
    room = Room(count=held.append)
    page = await store.list_vector_stores(
        "t", Paging(limit=9), lambda _: threading.get_ident(), room
    )
    assert len(page.items) == 6
    assert threading.get_ident() not in page.items
    assert sum(held) > 6 * 60_000


async def test_chunks_are_found_by_their_words(store: Store) -> None:
    made = await filled(store, "cat", "dog")
    other = await filled(store, "emu", tenant="other", id="w")
    assert await texts(store, made, "cat") == ["cat both"]
    assert await texts(store, made, "both", "dog") == ["dog both", "cat both"]
    assert await texts(store, made, "emu", "v", "AND", "store") == []
    assert await texts(store, made) == []
    assert await store.matching([], None, ["cat"], 10) == []
    cat, dog = await store.searched(made, 0, 10)
    assert (cat.name, dog.file) == ("cat.txt", "dog")
    only = await store.matching([made, other], {cat.seq}, ["both"], 10)
    assert [chunk.file for chunk in await store.get_chunks(only, Room())] == [cat.seq]
    assert await store.count_chunks([made, other], None) == 6
    assert await store.count_chunks([made], [dog.seq]) == 2
    assert await store.indexed([cat.seq, cat.seq], Room()) == [cat]


async def test_words_of_every_language_are_found(store: Store) -> None:
    made = await filled(store)
    words = ["naïve", "东京", "v2", "ß", "straße", "x" * 64, "हिन्दी", "٣"]
    await index(store, "a", [[word] for word in words])
    for word in words:
        assert await texts(store, made, word) == [word]


async def test_vectors_are_read_in_their_order(store: Store) -> None:
    made = await filled(store)
    await store.add_file(file("a"), BYTES, 10, 1000)
    seq = await store.index_file("t", entry("a"))
    vectors = [array("f", [number, 0.5]).tobytes() for number in range(3)]
    pieces = [Piece(str(number), [], vector) for number, vector in enumerate(vectors)]
    await store.add_pieces(seq, [*pieces, Piece("none", [])], 10)
    assert await store.vectors(made, 0, 10) == []  # it is not indexed yet
    await store.end_indexing(entry("a", seq=seq, status="completed"))
    first = await store.vectors(made, 0, 2)
    rest = await store.vectors(made, first[-1][0], 2)
    assert [bytes(row[2]) for row in (*first, *rest)] == vectors


async def test_file_that_is_added_again_takes_its_own_place(store: Store) -> None:
    made = await filled(store, "cat")
    (old,) = await store.searched(made, 0, 10)
    done = await index(store, "cat", [["tiger"]])
    assert await texts(store, made, "cat", "tiger") == ["tiger"]
    assert not await store.add_pieces(old.seq, [Piece("x", ["x"])], 10)
    assert not await store.end_indexing(old)
    (found,) = await store.get_vector_stores("t", ("v",))
    assert found.counts == {"completed": 1}
    assert (await store.get_indexed("t", "v", "cat")).seq == done.seq


async def test_vector_store_has_room_for_so_many_chunks(store: Store) -> None:
    made = await filled(store, "cat")
    await store.add_file(file("dog"), BYTES, 10, 10_000)
    seq = await store.index_file("t", entry("dog"))
    assert await store.add_pieces(seq, [Piece("dog", ["dog"])], 3)
    with pytest.raises(FaultError, match="max_vector_store_chunks"):
        await store.add_pieces(seq, [Piece("dog", ["dog"])], 3)
    failed = entry("dog", seq=seq, status="failed", error=("invalid_file", "Too long."))
    assert await store.end_indexing(failed)
    found = await store.get_indexed("t", "v", "dog")
    assert found == replace(failed, size=0)
    assert await texts(store, made, "dog") == []
    again = await store.index_file("t", entry("cow"))
    assert await store.add_pieces(again, [Piece("cow", ["cow"])], 3)  # there is room again


async def test_files_in_a_vector_store_are_listed_and_taken_out(store: Store) -> None:
    made = await filled(store, "cat", "dog")
    await store.index_file("t", entry("cow", batch="b"))

    async def listed(batch=None, status=None, **paging: object) -> list[str]:
        page = await store.list_indexed("t", "v", Paging(**paging), batch, status)
        return [each.file for each in page.items]

    assert await listed() == ["cow", "dog", "cat"]
    assert await listed(batch="b") == ["cow"]
    assert await listed(status="completed", order="asc", limit=1) == ["cat"]
    assert await listed(after="dog") == ["cat"]
    assert await store.get_indexed("other", "v", "cat") is None
    assert not await store.remove_indexed("other", "v", "cat")
    assert await store.remove_indexed("t", "v", "cat")
    assert await store.get_indexed("t", "v", "cat") is None
    assert await texts(store, made, "cat") == []
    assert await store.index_file("other", entry("cat")) is None
    assert await store.index_file("t", entry("cat", store="none")) is None


async def test_chunks_of_a_file_are_read_in_their_order(store: Store) -> None:
    await filled(store, "cat")
    room = Room(most=100, left=100)
    found = await store.chunks_of("t", "v", "cat", room)
    assert [chunk.text for chunk in found] == ["cat both", "other"]
    assert room.left == 100 - len("cat bothother")
    assert await store.chunks_of("other", "v", "cat", Room()) == []


async def test_deleted_file_is_out_of_all_vector_stores(store: Store) -> None:
    made = await filled(store, "cat")
    await index(store, "cat", [["lion"]] * (PURGED + 1))
    assert await store.delete_file("t", "cat")
    assert await texts(store, made, "lion") == []
    assert not await store.searched(made, 0, 10)
    tables = ["chunks", "indexed_files"] + ["chunk_words"] * (store.FULL_TEXT == "fts5")
    for table in tables:  # and its room is free
        assert await store._read(f"SELECT count(*) FROM {table}") == [(0,)], table


async def test_large_chunks_are_deleted_a_few_at_a_time(store: Store) -> None:
    """A hundred of 16 KiB held others' writes for half a second."""
    await filled(store, "cat")
    await index(store, "cat", [["x" * (PURGED_BYTES // 4)]] * 9)
    await store._write("UPDATE indexed_files SET status = 'deleted' RETURNING seq")
    left = [9]
    while await store._transact((), store._purge):
        left += [count for (count,) in await store._read("SELECT count(*) FROM chunks")]
    assert left == [9, 5, 1]
    assert await store._read("SELECT count(*) FROM chunks") == [(0,)]


async def test_chunks_of_several_files_are_written_and_deleted_one_after_the_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one commit held others' writes for seconds."""
    await filled(store)
    at_once = most = 0
    transact = store._transact

    async def counted(inserts: Any, steps: Any = None) -> Any:
        nonlocal at_once, most
        heavy = "_purge" in repr(steps) or "add_pieces" in repr(steps)
        at_once += heavy
        most = max(most, at_once)
        try:
            return await transact(inserts, steps)
        finally:
            at_once -= heavy

    monkeypatch.setattr(store, "_transact", counted)
    names = [f"f{n}" for n in range(9)]
    await asyncio.gather(*[index(store, name, [["lion"]] * 20) for name in names])
    await asyncio.gather(*[store.delete_file("t", name) for name in names])
    assert most == 1
    assert await store._read("SELECT count(*) FROM chunks") == [(0,)]


async def test_chunks_of_a_file_that_is_removed_during_a_purge_are_deleted(store: Store) -> None:
    await filled(store, "cat")
    purge = store._purge()
    found = await store._read(*_flat(next(purge)))
    await store._write("UPDATE indexed_files SET status = 'deleted'")  # by another server
    await store._write(*_flat(purge.send(found)))
    await store.sweep(NOW)
    for table in ("chunks", "indexed_files"):
        assert await store._read(f"SELECT count(*) FROM {table}") == [(0,)], table


async def test_deletion_does_not_wait_for_the_chunks_of_others(store: Store) -> None:
    await filled(store, "cat", "dog")
    await store._write("UPDATE indexed_files SET status = 'deleted' WHERE file = 'cat'")
    assert await store.delete_file("t", "dog")  # of cat another request deletes the rest
    assert await store._read("SELECT file FROM indexed_files") == [("cat",)]
    assert await store._read("SELECT count(*) FROM chunks") == [(2,)]
    await store.sweep(NOW)
    assert await store._read("SELECT count(*) FROM chunks") == [(0,)]


def _flat(step):
    statement, values = step
    return statement, *values


async def test_sweep_deletes_what_has_expired(store: Store) -> None:
    made = await filled(store, "cat")
    await store.change_vector_store(replace(made, days=1))
    await store.add_file(file("dog", expires_at=NOW + 5), BYTES, 10, 10_000)
    await store.sweep(NOW + 4)
    assert await store.get_file("t", "dog") is not None
    store.now = lambda: NOW + 5.0
    assert await store.get_file("t", "dog") is None  # before it is swept, too
    await store.sweep(NOW + 5)
    store.now = lambda: float(NOW)
    assert await store.get_file("t", "dog") is None
    assert len(await store.get_vector_stores("t", ("v",))) == 1
    store.now = lambda: NOW + 86_400.0
    assert await store.get_vector_stores("t", ("v",)) == []
    await store.sweep(NOW + 86_400)
    assert await store.matching([made], None, ["cat"], 10) == []
    assert await store._read("SELECT count(*) FROM chunks") == [(0,)]
    assert await store.get_file("t", "cat") is not None


async def test_what_was_never_indexed_has_failed(store: Store) -> None:
    await filled(store)
    seq = await store.index_file("t", entry("cat"))
    await store.add_pieces(seq, [Piece("cat", ["cat"])], 10)
    await store.sweep(NOW + UNFINISHED - 1)
    assert (await store.get_indexed("t", "v", "cat")).status == "in_progress"
    await store.sweep(NOW + UNFINISHED)
    found = await store.get_indexed("t", "v", "cat")
    assert (found.status, found.error[0], found.size) == ("failed", "server_error", 0)


async def test_rare_words_come_before_common_ones_however_much_another_tenant_has(
    store: Store, monkeypatch
) -> None:
    made = await filled(store, "cat", "dog", "emu")
    await filled(store, *(f"fox{n}" for n in range(20)), tenant="other", id="w")
    await filled(store, *(f"ape{n}" for n in range(9)), tenant="third", id="x")
    assert await texts(store, made, "both", "dog", most=1) == ["dog both"]
    assert await texts(store, made, "other", "emu", "gnu", most=1) == ["emu both"]
    assert sorted(await texts(store, made, "both", "emu")) == ["cat both", "dog both", "emu both"]
    assert await texts(store, made, "gnu") == []
    monkeypatch.setattr(files, "HITS", 1)
    found = await texts(store, made, "both", "dog")
    assert len(found) == (1 if store.FULL_TEXT == "fts5" else 3)
    (cat, *_) = await store.searched(made, 0, 10)
    assert len(await store.matching([made], {cat.seq}, ["both", "dog"], 10)) == 1


@pytest.mark.parametrize("old", [False, True])
async def test_the_best_chunk_is_found_among_many_with_the_same_words(store: Store, old) -> None:
    """Of 2,000 with an invoice's words. `old`: what was indexed before words were counted."""
    made = await filled(store)
    noise = find_words("invoice number date " + " ".join([f"w{n}" for n in range(40)]))
    short = find_words("The invoice number is written beside the invoice date.")
    often = [*noise, *4 * noise[:3]]
    best = [list(dict.fromkeys(short))] if old else [short, often]
    for name, chunks in (("a", 1000 * [noise]), ("b", best), ("c", 1000 * [noise])):
        await index(store, name, chunks)
    wanted = {" ".join(words) for words in best}
    for question in (
        "invoice",
        "invoice date",
        "What is the invoice number?",
        "Where is the date of an invoice?",
        "Is the number beside the date of an invoice?",
    ):
        found = await texts(store, made, *asked_words(question), most=len(best))
        assert set(found) == wanted, question
    files = {each.seq for each in await store.searched(made, 0, 10)}
    found = await store.get_chunks(await store.matching([made], files, ["invoic"], 1), Room())
    assert [each.text for each in found if each.text in wanted] == [found[0].text]
