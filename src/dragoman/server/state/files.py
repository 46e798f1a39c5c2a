"""The library: indexes files for vector stores, and searches them by words and by vectors."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import mul

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, quoted
from dragoman.core.files import Condition, Found, IndexedFile, StoredFile, VectorStore
from dragoman.core.interfaces import Caller, Engine
from dragoman.core.item import JSON
from dragoman.engines.router import embed
from dragoman.server.limits import Gate
from dragoman.server.settings import Settings
from dragoman.stores.base import Chunk, Piece, Room
from dragoman.stores.sql import Store
from dragoman.tools.chunks import (
    Matches,
    UnreadableError,
    asked_words,
    cut_text,
    find_words,
    read_text,
    whole_text,
)
from dragoman.wire import json
from dragoman.wire.files import FILE_PREFIX, STORE_PREFIX, Search

BATCH = 64
"""Chunks that are embedded and stored together: writers wait for no more."""
TOKENS = 32 * 1024
"""Their tokens, at the most."""
WEIGHT = 6
"""What the bytes of a file weigh while it is indexed, as its text and as that of its chunks."""
CANDIDATES = 300
"""Chunks that are compared closely: those that have most of the words, and as many by vectors."""
COUNT = 64
"""What a word of a question weighs for each of these chunks that may have it."""
MOST_WORDS = 64
"""Words of all questions that are searched for."""
VECTORS = 500
"""Vectors that are read and compared at a time."""
MOST_DIMENSIONS = 16_384
"""Numbers of a vector."""
CHARACTER = 128
"""What a character weighs that is read, or whose words are found: it may begin a tag, or stand for
twenty (NFKC)."""
FILES = 100
"""Files that are held against conditions at a time: their attributes may be long."""
FILE = 4_096
"""What a file weighs that is held against conditions."""
AT_ONCE = 4
"""Searches that read at a time: each holds the vectors that it compares."""
ACTIVE = 60
"""Seconds within which a vector store that is searched again is as active as it was."""


class _Vector(Struct):
    index: int
    embedding: list[float]


class Library:
    """Files and vector stores in a store, with vectors of an engine where the settings name its
    model. All methods raise FaultError."""

    def __init__(self, store: Store, engine: Engine, settings: Settings, share: float) -> None:
        self.store = store
        self._searching = Gate(AT_ONCE, settings.queue, settings.queue_time, share)
        self._engine = engine
        self._settings = settings

    async def check(self, caller: Caller, stores: Sequence[str]) -> None:
        """Raise FaultError where there is no vector store with one of these ids."""
        await self._opened(caller, stores)

    async def _opened(self, caller: Caller, ids: Sequence[str]) -> list[VectorStore]:
        bare = [id.removeprefix(STORE_PREFIX) for id in ids]
        found = await self.store.get_vector_stores(caller.tenant, bare)
        there = {store.id for store in found}
        for number, id in enumerate(ids):
            if bare[number] not in there:
                problem = f"there is no vector store {quoted(id)}, or no longer"
                place = f"vector_store_ids[{number}]"
                raise FaultError(replace(bad_request(problem, place), code="not_found"))
        return found

    # ---- indexing ------------------------------------------------------------------------

    async def index(self, caller: Caller, file: StoredFile, entry: IndexedFile) -> IndexedFile:
        """Add a file to a vector store; how that ended. One whose client is gone meanwhile is not
        added."""
        room = Room(count=caller.count)
        room.hold(WEIGHT * file.size)  # where there is none, its earlier index stays
        try:
            return await self._index(caller, file, entry)
        finally:
            room.hold(-room.held)

    async def _index(self, caller: Caller, file: StoredFile, entry: IndexedFile) -> IndexedFile:
        seq = await self.store.index_file(caller.tenant, entry)
        if seq is None:
            raise FaultError(no_vector_store(entry.store))
        entry = replace(entry, seq=seq)
        try:
            error = await self._indexed(caller, file, entry)
        except BaseException:
            await self.store.remove_indexed(caller.tenant, entry.store, entry.file, seq)
            raise
        entry = replace(entry, status="failed" if error else "completed", error=error)
        await self.store.end_indexing(entry)
        found = await self.store.get_indexed(caller.tenant, entry.store, entry.file)
        if found is None:
            problem = "The file, or its vector store, was deleted while it was indexed."
            raise FaultError(Fault("not_found", problem, "client"))
        return found

    async def _indexed(
        self, caller: Caller, file: StoredFile, entry: IndexedFile
    ) -> tuple[str, str] | None:
        """Store the chunks of a file; what went wrong, if anything did."""
        data = await self.store.file_data(caller.tenant, file.id)
        if data is None:
            return "invalid_file", "The file was deleted before it was indexed."
        try:
            text = await self._text(file.name, data)
        except UnreadableError as error:
            return "unsupported_file", str(error)
        del data
        most, pieces = self._settings.max_vector_store_chunks, _pieces(text, entry)
        size, count = CHARACTER * len(text), min(BATCH, TOKENS // entry.tokens)
        try:
            while some := await self.store.in_turns(size, islice(pieces, count)):
                if entry.model:
                    vectors = await self._embed([piece.text for piece in some], caller)
                    some = [
                        replace(piece, vector=vector)
                        for piece, vector in zip(some, vectors, strict=True)
                    ]
                if not await self.store.add_pieces(entry.seq, some, most):
                    return "invalid_file", "It was added again before it was indexed."
        except FaultError as error:
            code = "invalid_file" if error.fault.blame == "client" else "server_error"
            return code, error.fault.message
        return None

    async def _text(self, name: str, data: bytes) -> str:
        """The text of a file. Raises UnreadableError."""
        size = CHARACTER * len(data)
        pieces = await self.store.in_turns(size, read_text(name, data))
        return await self.store.apart(size, whole_text, pieces)

    async def _embed(self, texts: list[str], caller: Caller) -> list[bytes]:
        """The vectors of texts, each of length 1."""
        request: dict[str, JSON] = {"model": self._settings.embedding_model, "input": texts}
        answer = await embed(self._engine, {**request, "encoding_format": "float"}, caller)
        return await self.store.turns.take(_vectors, answer.get("data"), len(texts))

    # ---- search --------------------------------------------------------------------------

    async def search(self, caller: Caller, stores: Sequence[str], search: Search) -> list[Found]:
        """The chunks that fit best, the best first."""
        opened = await self._opened(caller, stores)
        moment = int(self.store.now())
        old = [store for store in opened if store.active_at < moment - ACTIVE]
        await self.store.touch_vector_stores(old, moment)
        vectors: list[bytes] = []
        if self._settings.embedding_model:
            vectors = await self._embed(list(search.queries), caller)
        async with self._searching.place(caller.tenant):
            return await self._search(caller, opened, search, vectors)

    async def _search(
        self,
        caller: Caller,
        opened: Sequence[VectorStore],
        search: Search,
        vectors: Sequence[bytes],
    ) -> list[Found]:
        only: set[int] | None = None
        if (condition := search.condition) is not None:
            only = set()
            for store in opened:
                after = 0
                while files := await self.store.searched(store, after, FILES):
                    after = files[-1].seq
                    only |= await self.store.apart(FILE * len(files), _meant, files, condition)
            if not only:
                return []
        length = sum(map(len, search.queries))
        asking = map(asked_words, search.queries)
        questions = await self.store.in_turns(CHARACTER * length, asking)
        asked = dict.fromkeys(chain.from_iterable(questions))
        words = [*islice(asked, MOST_WORDS)]
        seqs = dict.fromkeys(await self.store.matching(opened, only, words, CANDIDATES))
        if vectors:
            seqs |= dict.fromkeys(await self._nearest(opened, only, vectors))
        room = Room(count=caller.count)
        try:
            chunks = await self.store.get_chunks(seqs, room)
            found = await self.store.indexed([chunk.file for chunk in chunks], room)
            total = await self.store.count_chunks(opened, only)
            owners = {file.seq: file for file in found}
            chunks = [chunk for chunk in chunks if chunk.file in owners]  # others were deleted
            texts, matches = [chunk.text for chunk in chunks], Matches(asked)
            room.hold(COUNT * sum([min(len(asked), len(text)) for text in texts]))
            await self.store.in_turns(CHARACTER * sum(map(len, texts)), map(matches.add, texts))
            size = 2 * len(chunks) * sum(map(len, questions))
            size += len(vectors) * sum([len(chunk.vector or b"") for chunk in chunks])
            best = [0.0] * len(chunks)
            given = vectors or [b""] * len(questions)
            for words, vector in zip(questions, given, strict=True):
                scores = matches.scores(words, total)
                if vector:
                    scores = _with_meaning(scores, chunks, vector, search.weights)
                best = [*map(max, best, await self.store.in_turns(size, scores))]
        finally:
            room.hold(-room.held)
        scored = zip(best, chunks, strict=True)
        ranked = [
            Found(file.file, file.name, chunk.text, round(score, 4), file.attributes)
            for score, chunk in sorted(scored, key=lambda pair: (-pair[0], pair[1].seq))
            for file in (owners[chunk.file],)
        ]
        good = [each for each in ranked if each.score > 0 and each.score >= search.threshold]
        return good[: search.most]

    async def _nearest(
        self, stores: Sequence[VectorStore], files: Collection[int] | None, vectors: Sequence[bytes]
    ) -> list[int]:
        """The chunks whose vectors are nearest to one of these. Without numpy there are none: then
        only what has the words is compared."""
        try:
            import numpy
        except ImportError:
            return []
        asked = numpy.array([numpy.frombuffer(vector, numpy.float32) for vector in vectors])
        best: list[tuple[float, int]] = []
        size = len(vectors[0])
        for store in stores:
            after = 0
            while rows := await self.store.vectors(store, after, VECTORS):
                after = rows[-1][0]
                fit = [(s, v) for s, f, v in rows if len(v) == size and (not files or f in files)]
                if fit:
                    data = numpy.frombuffer(b"".join([vector for _, vector in fit]), numpy.float32)
                    near = (data.reshape(len(fit), -1) @ asked.T).max(axis=1).tolist()
                    pairs = zip(near, [seq for seq, _ in fit], strict=True)
                    best = heapq.nlargest(CANDIDATES, chain(best, pairs))
        return [seq for _, seq in best]


def _pieces(text: str, entry: IndexedFile) -> Iterator[Piece]:
    for chunk in cut_text(text, entry.tokens, entry.overlap):
        yield Piece(chunk, sorted(find_words(chunk)))


def _meant(files: Sequence[IndexedFile], condition: Condition) -> set[int]:
    return {file.seq for file in files if condition.fits(file.attributes)}


def _vectors(data: JSON, count: int) -> list[bytes]:
    """The vectors of so many texts, each of length 1. Raises FaultError."""
    found: dict[int, bytes] = {}
    sizes: set[int] = set()
    try:
        # One after the other: others may run between two.
        for each in msgspec.json.decode(json.dump(data), type=list[Raw]):
            vector = msgspec.json.decode(each, type=_Vector)
            sizes.add(size := len(vector.embedding))
            if not 0 < size <= MOST_DIMENSIONS or len(sizes) > 1:
                what = f"vectors of {min(sizes)} to {max(sizes)} numbers; all must have as many"
                raise FaultError(_no_vectors(f"{what}, at most {MOST_DIMENSIONS}"))
            found[vector.index] = _normalised(vector.embedding)
    except msgspec.DecodeError as error:
        raise FaultError(_no_vectors(f"no vectors: {error}")) from None
    if sorted(found) != list(range(count)):
        raise FaultError(_no_vectors(f"{len(found)} vectors for {count} texts"))
    return [found[number] for number in range(count)]


def _normalised(vector: Sequence[float]) -> bytes:
    length = math.sqrt(sum(map(mul, vector, vector))) or 1.0
    return array("f", [value / length for value in vector]).tobytes()


def _with_meaning(
    scores: Iterable[float],
    chunks: Sequence[Chunk],
    vector: bytes,
    weights: tuple[float, float],
) -> Iterator[float]:
    """The scores of chunks with how near each is to a vector."""
    asked, (meaning, by_words) = array("f", vector), weights
    for chunk, score in zip(chunks, scores, strict=True):
        both = meaning * _cosine(asked, chunk.vector) + by_words * score
        yield both / (meaning + by_words)


def _cosine(asked: array[float], vector: bytes | None) -> float:
    if vector is None or len(vector) != len(asked) * asked.itemsize:
        return 0.0
    near: float = sum(map(mul, asked, array("f", vector)))
    return min(max(near, 0.0), 1.0)


def _no_vectors(what: str) -> Fault:
    problem = f"The model that makes vectors (embedding_model) answered with {what}."
    return Fault("upstream_error", problem, "upstream")


def no_vector_store(id: str) -> Fault:
    """The fault for an id that no vector store has."""
    problem = f"There is no vector store {quoted(STORE_PREFIX + id)}, or no longer."
    return Fault("not_found", problem, "client")


def no_file(id: str, param: str | None = None) -> Fault:
    """The fault for an id that no file has."""
    problem = f"There is no file {quoted(FILE_PREFIX + id)}, or no longer."
    return Fault("not_found", problem, "client", param)
