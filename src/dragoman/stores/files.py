"""Stores uploaded files, and vector stores of their text, in SQL.

The text of a file is searched in chunks, each with its index words. The database finds the chunks
with a word; the caller ranks them.
"""

from __future__ import annotations

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Literal, TypeVar

from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.files import IndexedFile, StoredFile, VectorStore
from dragoman.net.threads import TenantLock, reading

from .base import APART, Chunk, Page, Paging, Piece, Room
from .retention import SWEPT, delete_quickly
from .serialize import pack, unpack
from .statements import LISTED, Insert, Row, Steps, Values, chunks, direction, places

T = TypeVar("T")

UNFINISHED = 3_600
"""Seconds after which the indexing of a file has failed: its worker is gone."""
LOST = ("server_error", "The server ended before the file was indexed. Add it again.")

HITS = 100_000
"""Words of chunks that a search in SQLite compares, those of rare words first."""
TIMES = ("", "\ue002", "\ue004")
"""What stands before a word in the index that a chunk has once, twice and four times: letters that
no word has, and that are part of words for FTS5."""
_SATURATION, _LENGTH = 0.6, 0.75
"""As in `tools.chunks`."""
SLICE = 0.02
"""Seconds of the processor that a turn of large work takes which has many steps, about."""
PURGED = 100
"""Chunks that one transaction deletes, so that writers do not wait for long."""
PURGED_BYTES = 128 * 1024
"""Their bytes, about: FTS5 takes as long for words that it deletes as for new ones."""

_FILE = "SELECT seq, id, tenant, name, purpose, size, created_at, expires_at FROM files"
_LIVE = "(expires_at IS NULL OR expires_at > CAST($2 AS BIGINT))"
_STORE = "SELECT seq, active_at, about FROM vector_stores"
_INDEXED = "SELECT seq, status, size, about FROM indexed_files"
_THERE = "status <> 'deleted'"
_OURS = f"SELECT seq FROM vector_stores WHERE id = $3 AND tenant = $1 AND {_LIVE}"


class Files(ABC):
    """The part of a store for files. Ids are bare, and tenants are isolated:
    see `Store`."""

    FULL_TEXT: ClassVar[Literal["fts5", "tsvector"]]
    """How the database indexes words."""

    now: Callable[[], float] = staticmethod(time.time)
    """The time by which leases and ages end and messages are due: the same for all servers of a
    store."""

    _large: TenantLock
    """For what is large: the next is written after the one before, and others between them."""
    _indexing: TenantLock
    """The same, for chunks."""

    @abstractmethod
    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        """The rows that a statement finds."""

    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        """The rows that a statement returns (RETURNING)."""

        def steps() -> Steps[Sequence[Row]]:
            return (yield statement, values)

        return await self._transact((), steps)

    @abstractmethod
    def _transact(
        self, inserts: Sequence[Insert], steps: Callable[[], Steps[T]] | None = None
    ) -> Awaitable[T]:
        """Insert rows and run steps in one transaction; returns the result of the steps. In a group
        commit, the steps may be run again from the start, alone."""

    async def _transact_alone(self, steps: Callable[[], Steps[T]]) -> T:
        """Run steps on chunks: those of a group would hold up all writers together."""
        async with self._indexing.turn(reading.get()):
            return await self._transact((), steps)

    @abstractmethod
    async def apart(self, size: int, work: Callable[[], T]) -> T:
        """What is made of so many bytes; in a thread where they are many."""

    async def in_turns(self, size: int, steps: Iterator[T]) -> list[T]:
        """The same, step by step: where they are many, others have their turn between two steps,
        however long those before took."""
        made = list[T]()
        while await self.apart(size, partial(_some, steps, made)):
            pass
        return made

    # ---- files ---------------------------------------------------------------------------

    async def add_file(
        self, file: StoredFile, data: bytes | memoryview, most: int, most_bytes: int
    ) -> None:
        """Store a file. Raises FaultError where its tenant has `most` files, or `most_bytes`."""

        def steps() -> Steps[None]:
            statement = "SELECT count(*), coalesce(sum(size), 0) FROM files WHERE tenant = $1"
            ((count, size),) = yield statement, (file.tenant,)
            if count >= most:
                problem = f"there are {count} files already (max_files_per_key); delete some"
                raise FaultError(bad_request(problem, "file"))
            if size + file.size > most_bytes:
                problem = f"all files would have more than {most_bytes} bytes together "
                problem += "(max_file_bytes_per_key); delete some"
                raise FaultError(bad_request(problem, "file"))
            statement = """INSERT INTO files
                (id, tenant, name, purpose, size, created_at, expires_at, data)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"""
            row = (file.id, file.tenant, file.name, file.purpose, file.size, file.created_at)
            yield statement, (*row, file.expires_at, data)

        if file.size <= APART:
            await self._transact((), steps)
            return
        async with self._large.turn(file.tenant):
            await self._transact((), steps)

    async def get_file(self, tenant: str, id: str) -> StoredFile | None:
        """A file, without its bytes."""
        reading.set(tenant)
        where = f"WHERE tenant = $1 AND {_LIVE} AND id = $3"
        rows = await self._read(f"{_FILE} {where}", tenant, int(self.now()), id)
        return _file(rows[0]) if rows else None

    async def file_data(self, tenant: str, id: str) -> bytes | None:
        """The bytes of a file."""
        reading.set(tenant)
        statement = f"SELECT data FROM files WHERE tenant = $1 AND {_LIVE} AND id = $3"
        rows = await self._read(statement, tenant, int(self.now()), id)
        return rows[0][0] if rows else None

    async def list_files(
        self, tenant: str, purpose: str | None, paging: Paging
    ) -> Page[StoredFile]:
        """The files of a tenant (with a purpose, or all) by the time of their upload."""
        reading.set(tenant)
        where, values = f"tenant = $1 AND {_LIVE}", [tenant, int(self.now())]
        rows = await self._page(_FILE, "files", where, values, {"purpose": purpose}, paging)
        return Page(tuple(map(_file, rows[: paging.limit])), len(rows) > paging.limit)

    async def delete_file(self, tenant: str, id: str) -> bool:
        """Delete a file, also from all vector stores."""

        def steps() -> Steps[list[int] | None]:
            statement = "DELETE FROM files WHERE tenant = $1 AND id = $2 RETURNING seq"
            if not (yield statement, (tenant, id)):
                return None
            return (yield from _unindex("file = $1", (id,)))

        return await self._purged(await self._transact((), steps))

    # ---- vector stores -------------------------------------------------------------------

    async def add_vector_store(self, store: VectorStore, most: int) -> None:
        """Store a vector store without files. Raises FaultError where its tenant has `most`."""

        def steps() -> Steps[None]:
            statement = "SELECT count(*) FROM vector_stores WHERE tenant = $1"
            ((count,),) = yield statement, (store.tenant,)
            if count >= most:
                problem = f"There are {count} vector stores already (max_vector_stores_per_key); "
                raise FaultError(bad_request(f"{problem}delete some."))
            statement = """INSERT INTO vector_stores (id, tenant, active_at, expires_at, about)
                VALUES ($1, $2, $3, $4, $5)"""
            row = (store.id, store.tenant, store.active_at, store.expires_at, pack(store))
            yield statement, row

        await self._transact((), steps)

    async def get_vector_stores(self, tenant: str, ids: Sequence[str]) -> list[VectorStore]:
        """The existing ones of these vector stores, with their counts."""
        reading.set(tenant)
        found: list[Row] = []
        for some in chunks(dict.fromkeys(ids)):
            where = f"WHERE tenant = $1 AND {_LIVE} AND id IN ({places(len(some), 3)})"
            found += await self._read(f"{_STORE} {where}", tenant, int(self.now()), *some)
        return await self._counted(found, lambda store: store)

    async def list_vector_stores(
        self, tenant: str, paging: Paging, show: Callable[[VectorStore], T], room: Room
    ) -> Page[T]:
        """What is shown of the vector stores of a tenant, by the time they were made: one by one,
        as their metadata may be long. Raises what `room` raises."""
        reading.set(tenant)
        where, values = f"tenant = $1 AND {_LIVE}", [tenant, int(self.now())]
        rows = await self._page(_STORE, "vector_stores", where, values, {}, paging)
        room.read(3 * sum([len(about) for *_, about in rows]))  # packed, and as JSON
        found = await self._counted(rows[: paging.limit], show)
        return Page(tuple(found), len(rows) > paging.limit)

    async def _counted(self, rows: Sequence[Row], show: Callable[[VectorStore], T]) -> list[T]:
        """What is shown of the vector stores of rows, with the number of their files."""
        counts: dict[int, dict[str, int]] = {seq: {} for seq, *_ in rows}
        sizes = dict.fromkeys(counts, 0)
        for some in chunks(counts):
            statement = f"""SELECT store, status, count(*), sum(size) FROM indexed_files
                WHERE store IN ({places(len(some))}) AND {_THERE} GROUP BY store, status"""
            for seq, status, count, size in await self._read(statement, *some):
                counts[seq][status] = count
                sizes[seq] += int(size)

        def shown(seq: int, active_at: int, about: bytes) -> T:
            store: VectorStore = unpack(about, VectorStore)
            known = {"seq": seq, "counts": counts[seq], "size": sizes[seq]}
            return show(replace(store, active_at=active_at, **known))

        size = sum([len(about) for *_, about in rows])
        return await self.apart(size, lambda: [shown(*row) for row in rows])

    async def change_vector_store(self, store: VectorStore) -> bool:
        """Replace the metadata of a vector store."""
        statement = """UPDATE vector_stores SET active_at = $3, expires_at = $4, about = $5
            WHERE id = $1 AND tenant = $2 RETURNING seq"""
        about = pack(replace(store, counts={}, size=0, seq=0))
        row = (store.id, store.tenant, store.active_at, store.expires_at, about)
        return bool(await self._write(statement, *row))

    async def touch_vector_stores(self, stores: Sequence[VectorStore], now: int) -> None:
        """Set the last use of vector stores to now."""
        for some in chunks([store.seq for store in stores], LISTED - 1):
            statement = f"""UPDATE vector_stores
                SET active_at = $1, expires_at = expires_at + (CAST($1 AS BIGINT) - active_at)
                WHERE seq IN ({places(len(some), 2)})"""
            await self._write(statement, now, *some)

    async def delete_vector_store(self, tenant: str, id: str) -> bool:
        """Delete a vector store with all its chunks; the files stay."""

        def steps() -> Steps[list[int] | None]:
            statement = "DELETE FROM vector_stores WHERE tenant = $1 AND id = $2 RETURNING seq"
            for (seq,) in (yield statement, (tenant, id)):
                return (yield from _unindex("store = $1", (seq,)))
            return None

        return await self._purged(await self._transact((), steps))

    # ---- files in vector stores ----------------------------------------------------------

    async def index_file(self, tenant: str, file: IndexedFile) -> int | None:
        """Start to index a file, replacing its earlier index; returns its `seq`. None for an
        unknown vector store."""

        earlier = list[int]()

        def steps() -> Steps[int | None]:
            values = (tenant, int(self.now()), file.store)
            found = yield f"{_OURS} FOR UPDATE", values
            if not found:
                return None
            ((store,),) = found
            # A deletion that began before ends first, and a later one finds this index.
            yield "SELECT 1 FROM files WHERE id = $1 FOR UPDATE", (file.file,)
            earlier[:] = yield from _unindex("store = $1 AND file = $2", (store, file.file))
            statement = """INSERT INTO indexed_files (store, file, batch, status, begun, about)
                VALUES ($1, $2, $3, $4, $5, $6) RETURNING seq"""
            row = (store, file.file, file.batch, file.status, int(self.now()), pack(file))
            ((seq,),) = yield statement, row
            return int(seq)

        seq = await self._transact((), steps)
        await self._purged(earlier)
        return seq

    async def add_pieces(self, seq: int, pieces: Sequence[Piece], most: int) -> bool:
        """Add chunks of a file that is being indexed; False where it is not any more. Raises
        FaultError where its vector store would have more than `most`."""
        size = sum([len(piece.text.encode()) for piece in pieces])

        def steps() -> Steps[bool]:
            statement = "SELECT store FROM indexed_files WHERE seq = $1 AND status = 'in_progress'"
            found = yield f"{statement} FOR UPDATE", (seq,)  # who deletes it waits for its chunks
            if not found:
                return False
            ((store,),) = found
            statement = f"SELECT sum(chunks) FROM indexed_files WHERE store = $1 AND {_THERE}"
            ((count,),) = yield statement, (store,)
            if count + len(pieces) > most:
                problem = f"the vector store has room for {most} chunks (max_vector_store_chunks)"
                raise FaultError(bad_request(problem, "file_id"))
            for piece in pieces:
                yield from self._add(store, seq, piece)
            statement = """UPDATE indexed_files SET chunks = chunks + $2, size = size + $3
                WHERE seq = $1"""
            yield statement, (seq, len(pieces), size)
            return True

        return await self._transact_alone(steps)

    def _add(self, store: int, file: int, piece: Piece) -> Steps[None]:
        row = (store, file, piece.text.encode(), piece.vector)
        if self.FULL_TEXT == "tsvector":
            statement = """INSERT INTO chunks (store, file, text, vector, words)
                VALUES ($1, $2, $3, $4, array_to_tsvector(CAST($5 AS TEXT[])))"""
            yield statement, (*row, _with_counts(piece.words))
            return
        statement = """INSERT INTO chunks (store, file, text, vector) VALUES ($1, $2, $3, $4)
            RETURNING seq"""
        ((seq,),) = yield statement, row
        statement = "INSERT INTO chunk_words (rowid, store, words) VALUES ($1, $2, $3)"
        yield statement, (seq, str(store), " ".join(_with_counts(piece.words)))

    async def end_indexing(self, file: IndexedFile) -> bool:
        """Set the result of indexing a file, by its `seq`; a failed file has no chunks."""
        left = ", size = 0, chunks = 0" if file.status == "failed" else ""
        statement = f"""UPDATE indexed_files SET status = $2, about = $3{left}
            WHERE seq = $1 AND {_THERE} RETURNING seq"""
        row = (file.seq, file.status, pack(replace(file, seq=0)))
        return await self._purged([file.seq] if await self._write(statement, *row) else None)

    async def get_indexed(self, tenant: str, store: str, file: str) -> IndexedFile | None:
        """A file in a vector store."""
        reading.set(tenant)
        where = f"WHERE store IN ({_OURS}) AND file = $4 AND {_THERE}"
        rows = await self._read(f"{_INDEXED} {where}", tenant, int(self.now()), store, file)
        return _indexed(rows[0]) if rows else None

    async def list_indexed(
        self,
        tenant: str,
        store: str,
        paging: Paging,
        batch: str | None = None,
        status: str | None = None,
        room: Room | None = None,
    ) -> Page[IndexedFile]:
        """The files in a vector store (those of a batch, or with a status) as they were added.
        Raises what `room` raises."""
        reading.set(tenant)
        where, values = f"store IN ({_OURS}) AND {_THERE}", [tenant, int(self.now()), store]
        only = {"batch": batch, "status": status}
        rows = await self._page(_INDEXED, "indexed_files", where, values, only, paging, id="file")
        found = await self._indexed(rows[: paging.limit], room or Room())
        return Page(found, len(rows) > paging.limit)

    async def _indexed(self, rows: Sequence[Row], room: Room) -> tuple[IndexedFile, ...]:
        """Files in vector stores, which may have long attributes. Raises what `room` raises."""
        size = sum([len(about) for *_, about in rows])
        room.read(3 * size)  # packed, as values, and as JSON
        return await self.apart(size, lambda: tuple(map(_indexed, rows)))

    async def remove_indexed(
        self, tenant: str, store: str, file: str, seq: int | None = None
    ) -> bool:
        """Remove a file from a vector store; only the index with this `seq`, if given."""

        def steps() -> Steps[list[int] | None]:
            where, values = f"store IN ({_OURS}) AND file = $4", [tenant, int(self.now()), store]
            values.append(file)
            if seq is not None:
                where += " AND seq = $5"
                values.append(seq)
            return (yield from _unindex(where, values)) or None

        return await self._purged(await self._transact((), steps))

    async def chunks_of(self, tenant: str, store: str, file: str, room: Room) -> list[Chunk]:
        """All chunks of a file in a vector store. Raises what `room` raises."""
        reading.set(tenant)
        where = f"""WHERE file IN (SELECT seq FROM indexed_files
            WHERE store IN ({_OURS}) AND file = $4 AND {_THERE})"""
        values = (tenant, int(self.now()), store, file)
        ((size,),) = await self._read(
            f"SELECT coalesce(sum(length(text)), 0) FROM chunks {where}", *values
        )
        room.read(int(size))
        statement = f"SELECT seq, file, text, NULL FROM chunks {where} ORDER BY seq"
        return [_chunk(row) for row in await self._read(statement, *values)]

    # ---- search --------------------------------------------------------------------------

    async def searched(self, store: VectorStore, after: int, most: int) -> Sequence[IndexedFile]:
        """The searchable files in a vector store, from after the one with this `seq` on."""
        where = "WHERE store = $1 AND status = 'completed' AND seq > $2 ORDER BY seq LIMIT $3"
        rows = await self._read(f"{_INDEXED} {where}", store.seq, after, most)
        return await self._indexed(rows, Room())

    async def indexed(self, files: Iterable[int], room: Room) -> list[IndexedFile]:
        """Searchable files in vector stores, by their `seq`. Raises what `room` raises."""
        found: list[IndexedFile] = []
        for some in chunks(dict.fromkeys(files)):
            where = f"WHERE seq IN ({places(len(some))}) AND status = 'completed'"
            found += await self._indexed(await self._read(f"{_INDEXED} {where}", *some), room)
        return found

    async def count_chunks(
        self, stores: Sequence[VectorStore], files: Collection[int] | None
    ) -> int:
        """The number of searchable chunks: of all files, or of these."""
        wanted = [store.seq for store in stores] if files is None else files
        column, count = "store" if files is None else "seq", 0
        for some in chunks(wanted):
            statement = f"""SELECT sum(chunks) FROM indexed_files
                WHERE {column} IN ({places(len(some))}) AND status = 'completed'"""
            ((more,),) = await self._read(statement, *some)
            count += int(more or 0)
        return count

    async def matching(
        self,
        stores: Sequence[VectorStore],
        files: Collection[int] | None,
        words: Iterable[str],
        most: int,
    ) -> list[int]:
        """The `seq` of at most `most` chunks with one of these words, those first that match them
        best; of all files, or of these."""
        listed = list(dict.fromkeys(words))
        if not listed or not stores:
            return []
        statement = f"""SELECT sum(chunks), sum(size) FROM indexed_files
            WHERE store IN ({places(len(stores))}) AND status = 'completed'"""
        ((total, size),) = await self._read(statement, *(store.seq for store in stores))
        if not total:
            return []
        # By BM25. The database's own ranks know no rare words, or read what all tenants have.
        mean = max(int(size) / int(total), 1.0)
        long = f"{1 - _LENGTH} + {_LENGTH / mean} * length(c.text)"
        if self.FULL_TEXT == "tsvector":
            rows = await self._by_tsvector(stores, files, listed, most, int(total), long)
        else:
            rows = await self._by_fts5(stores, files, listed, most, int(total), long)
        return [seq for seq, _ in heapq.nsmallest(most, rows, key=lambda row: (-row[1], row[0]))]

    async def _by_tsvector(
        self,
        stores: Sequence[VectorStore],
        files: Collection[int] | None,
        words: Sequence[str],
        most: int,
        total: int,
        long: str,
    ) -> Sequence[Row]:
        """Chunks, and how well each matches, with a length that `long` says."""
        asked = [f"'{times}{word}'" for word in words for times in TIMES]
        values: list[object] = [" | ".join(asked[:: len(TIMES)]), most, *asked]
        parsed = [f"CAST(CAST(${n + 3} AS TEXT) AS TSQUERY) AS q{n}" for n in range(len(asked))]
        where = f"c.store IN ({places(len(stores), len(values) + 1)})"
        values += [store.seq for store in stores]
        if files is not None:
            where += f" AND c.file = ANY(CAST(${len(values) + 1} AS BIGINT[]))"
            values.append(list(files))
        counts, having, scores = list[str](), list[str](), list[str]()
        for n, first in enumerate(range(0, len(asked), len(TIMES))):
            often = f"CASE WHEN words @@ q{first} THEN CASE "
            for place in range(len(TIMES) - 1, 0, -1):
                often += f"WHEN words @@ q{first + place} THEN {place * 2} "
            counts.append(f"{often} ELSE 1 END ELSE 0 END AS w{n}")
            count = f"CAST(count(nullif(w{n}, 0)) AS DOUBLE PRECISION)"
            rare = f"(greatest({total} - {count}, 0) + 0.5) / ({count} + 0.5)"
            having.append(f"ln(1 + {rare}) AS i{n}")
            scores.append(f"i{n} * w{n} / (w{n} + {_SATURATION} * long)")
        # What is read of the rows, which may be large, is read once.
        statement = f"""WITH hits AS MATERIALIZED (SELECT seq, long, {", ".join(counts)} FROM
            (SELECT c.seq, CAST({long} AS DOUBLE PRECISION) AS long, strip(c.words) AS words
                FROM chunks c JOIN indexed_files f ON f.seq = c.file
                WHERE c.words @@ CAST(CAST($1 AS TEXT) AS TSQUERY) AND {where}
                AND f.status = 'completed' OFFSET 0) c, (SELECT {", ".join(parsed)} OFFSET 0) q),
            weights AS MATERIALIZED (SELECT {", ".join(having)} FROM hits)
            SELECT seq, {" + ".join(scores)} AS score
            FROM hits, weights ORDER BY score DESC, seq LIMIT $2"""
        return await self._read(statement, *values)

    async def _by_fts5(
        self,
        stores: Sequence[VectorStore],
        files: Collection[int] | None,
        words: Sequence[str],
        most: int,
        total: int,
        long: str,
    ) -> Sequence[Row]:
        """The same. bm25() would read what all tenants have of each word."""
        ours = " OR ".join([f'"{store.seq}"' for store in stores])
        asked = [f'store : ({ours}) AND words : "{t}{word}"' for t in TIMES for word in words]
        hit = "FROM chunk_words WHERE chunk_words MATCH"
        # With `files`, these may have common words alone.
        left = most_hits = HITS if files is None else 2 * HITS
        counted = [
            f"SELECT count(*), {n} FROM (SELECT 1 {hit} ${n} LIMIT {most_hits})"
            for n in range(1, len(words) + 1)
        ]
        counts = await self._read(" UNION ALL ".join(counted), *asked[: len(words)])
        weighed = list[str]()
        for count, n in sorted(map(tuple, counts)):
            if not count or left <= 0:
                continue
            left -= count
            weight = math.log(1 + (max(total - count, 0) + 0.5) / (count + 0.5))
            # A limit takes a third of the time, even one that leaves nothing out.
            limit = f"LIMIT {most_hits}" if count == most_hits else ""
            for place in range(len(TIMES)):
                columns = ", ".join([f"{weight if each == place else 0}" for each in range(3)])
                found = f"SELECT rowid {hit} ${n + place * len(words)} {limit}"
                weighed.append(f"SELECT rowid, {columns} FROM ({found})")
        if not weighed:
            return []
        rows: list[Row] = []
        for some in [None] if files is None else chunks(files, LISTED - len(stores)):
            values: list[object] = [*asked, most, *(store.seq for store in stores)]
            where = f"c.store IN ({places(len(stores), len(asked) + 2)})"
            if some is not None:
                where += f" AND c.file IN ({places(len(some), len(values) + 1)})"
                values += some
            statement = f"""WITH hits (chunk, one, two, four) AS ({" UNION ALL ".join(weighed)})
                SELECT seq, one / (1 + k) + two * (2 / (2 + k) - 1 / (1 + k))
                    + four * (4 / (4 + k) - 2 / (2 + k)) AS score
                FROM (SELECT c.seq, one, two, four, {_SATURATION} * ({long}) AS k
                    FROM (SELECT chunk, sum(one) AS one, sum(two) AS two, sum(four) AS four
                        FROM hits GROUP BY chunk) h
                    JOIN chunks c ON c.seq = h.chunk JOIN indexed_files f ON f.seq = c.file
                    WHERE {where} AND f.status = 'completed')
                ORDER BY score DESC, seq LIMIT ${len(asked) + 1}"""
            rows += await self._read(statement, *values)
        return rows

    async def vectors(self, store: VectorStore, after: int, most: int) -> Sequence[Row]:
        """The vectors of a vector store, as rows with the `seq` of the chunk and of its file,
        after a chunk."""
        statement = """SELECT c.seq, c.file, c.vector FROM chunks c
            JOIN indexed_files f ON f.seq = c.file WHERE c.store = $1 AND c.seq > $2
            AND c.vector IS NOT NULL AND f.status = 'completed' ORDER BY c.seq LIMIT $3"""
        return await self._read(statement, store.seq, after, most)

    async def get_chunks(self, seqs: Iterable[int], room: Room) -> list[Chunk]:
        """Chunks by their `seq`. Raises what `room` raises."""
        found: list[Chunk] = []
        for some in chunks(dict.fromkeys(seqs)):
            where = f"FROM chunks WHERE seq IN ({places(len(some))})"
            size = "length(text) + coalesce(length(vector), 0)"
            ((held,),) = await self._read(f"SELECT coalesce(sum({size}), 0) {where}", *some)
            room.read(int(held))
            rows = await self._read(f"SELECT seq, file, text, vector {where}", *some)
            found += map(_chunk, rows)
        return found

    # ---- steps ---------------------------------------------------------------------------

    async def _page(
        self,
        columns: str,
        table: str,
        where: str,
        values: Sequence[object],
        only: dict[str, str | None],
        paging: Paging,
        id: str = "id",
    ) -> Sequence[Row]:
        """The rows of a page, and one more where there are more."""
        sign, order = direction(paging)
        given = list(values)
        if paging.after is not None:
            given.append(paging.after)
            where += f""" AND seq {sign}
                (SELECT seq FROM {table} WHERE {where} AND {id} = ${len(given)})"""
        for name, value in only.items():
            if value is not None:
                given.append(value)
                where += f" AND {name} = ${len(given)}"
        given.append(paging.limit + 1)
        tail = f"WHERE {where} ORDER BY seq {order} LIMIT ${len(given)}"
        return await self._read(f"{columns} {tail}", *given)

    async def _purged(self, files: Sequence[int] | None) -> bool:
        """Delete the chunks of these files, which are deleted or failed; false without files.
        Those of others are not waited for: a sweep deletes what was left."""
        for some in chunks(files or (), LISTED - 1):
            while await self._transact_alone(partial(self._purge, some)):
                pass
        return files is not None

    def _purge(self, files: Sequence[int] = ()) -> Steps[bool]:
        """Delete some of the chunks of deleted and failed files, of these or of all; true if there
        may be more."""
        ours = f"AND f.seq IN ({places(len(files), 2)})" if files else ""
        statement = f"""SELECT c.seq FROM chunks c JOIN indexed_files f ON f.seq = c.file
            WHERE f.status IN ('deleted', 'failed') {ours} ORDER BY c.seq LIMIT $1"""
        statement = f"SELECT seq, length(text) FROM chunks WHERE seq IN ({statement}) ORDER BY seq"
        found, room = list[int](), PURGED_BYTES
        for seq, size in (yield statement, (PURGED, *files)):
            if room > 0:
                found.append(seq)
                room -= size
        for some in chunks(found):
            if self.FULL_TEXT == "fts5":
                yield f"DELETE FROM chunk_words WHERE rowid IN ({places(len(some))})", some
            yield f"DELETE FROM chunks WHERE seq IN ({places(len(some))})", some
        if len(found) == PURGED or room <= 0:
            return True
        # Another server may have marked some since: those still have chunks.
        left = "EXISTS (SELECT 1 FROM chunks c WHERE c.file = indexed_files.seq)"
        ours = f"AND seq IN ({places(len(files))})" if files else ""
        yield f"DELETE FROM indexed_files WHERE status = 'deleted' {ours} AND NOT {left}", files
        return False

    async def _forget_files(self, now: float) -> None:
        """Delete expired files and vector stores, and fail indexing that has timed
        out."""

        for table, key, column in (("files", "id", "file"), ("vector_stores", "seq", "store")):
            steps = partial(self._expire, table, key, column, int(now))
            while await self._transact((), steps):
                pass
        where = "WHERE status = 'in_progress' AND begun <= CAST($1 AS BIGINT)"
        for row in await self._read(f"{_INDEXED} {where}", int(now) - UNFINISHED):
            await self.end_indexing(replace(_indexed(row), status="failed", error=LOST))
        while await self._transact_alone(self._purge):
            pass

    def _expire(self, table: str, key: str, column: str, now: int) -> Steps[int]:
        """Delete some of the expired files, or vector stores; returns how many."""

        def delete(rows: list[Row]) -> Steps[None]:
            some = [key for (key,) in rows]
            yield f"DELETE FROM {table} WHERE {key} IN ({places(len(some))})", some
            yield from _unindex(f"{column} IN ({places(len(some))})", some)

        find = f"SELECT {key} FROM {table} WHERE expires_at <= CAST($1 AS BIGINT) LIMIT $2"
        return (yield from delete_quickly((yield find, (now, SWEPT)), delete))


def _some(steps: Iterator[T], made: list[T]) -> bool:
    """Take some steps; true if there may be more."""
    end = time.thread_time() + SLICE
    for each in steps:
        made.append(each)
        if time.thread_time() > end:
            return True
    return False


def _unindex(where: str, values: Values) -> Steps[list[int]]:
    """Hide files in vector stores from searches; returns their `seq`. Chunks are deleted later."""
    statement = f"UPDATE indexed_files SET status = 'deleted' WHERE {where} AND {_THERE} "
    return [seq for (seq,) in (yield f"{statement} RETURNING seq", values)]


def _with_counts(words: Sequence[str]) -> list[str]:
    """Words of a chunk for the index, which tells how often it has each."""
    found = list[str]()
    for word, count in Counter(words).items():
        found += [times + word for place, times in enumerate(TIMES) if count >= 2**place]
    return found


def _file(row: Row) -> StoredFile:
    _, id, tenant, name, purpose, size, created_at, expires_at = row
    return StoredFile(
        id=id,
        tenant=tenant,
        name=name,
        purpose=purpose,
        size=size,
        created_at=created_at,
        expires_at=expires_at,
    )


def _indexed(row: Row) -> IndexedFile:
    seq, status, size, about = row
    file: IndexedFile = unpack(about, IndexedFile)
    return replace(file, seq=seq, status=status, size=size)


def _chunk(row: Row) -> Chunk:
    seq, file, text, vector = row
    return Chunk(seq, file, bytes(text).decode(), vector)
