"""Files and vector stores over HTTP: by the SDK, by others, and by those who mean no good."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.interfaces import Engine, Secret
from dragoman.core.item import FunctionCall
from dragoman.server.app import App
from dragoman.server.files import FORM
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.server.testing import Transport
from dragoman.stores.memory import MemoryStore
from dragoman.tools.files import FileSearch
from tests.agent.stage import Model
from tests.oracle import problems, sdk_problems
from tests.server.stubs import Call, Stub
from tests.wire.responses.order_checker import check_order, parse

ADA, BOB = "ada-has-a-key", "bob-has-a-key"
SETTINGS = Settings(allowed_hosts=("*",), keys=(Secret(ADA), Secret(BOB)))
ZOO = b"# Zoo\n\nPenguins swim at noon.\n\nLions sleep all day."
EXPIRY: Any = {"anchor": "created_at", "seconds": 3600}


@dataclass
class Server:
    app: App
    store: MemoryStore
    ada: openai.AsyncOpenAI
    bob: openai.AsyncOpenAI

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Call:
        given = {
            "authorization": f"Bearer {ADA}",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        path, _, query = path.partition("?")
        call = Call(self.app, f"/v1{path}", body, method=method, headers=given)
        call._scope["query_string"] = query.encode()
        return await call()

    async def upload(self, body: bytes, boundary: str = "x") -> Call:
        return await self.ask(
            "POST", "/files", body, content_type=f"multipart/form-data; boundary={boundary}"
        )


@asynccontextmanager
async def filing(engine: Engine | None = None, **options: Any) -> AsyncIterator[Server]:
    """A server with the tool, and two clients of it."""
    settings, store = replace(SETTINGS, **options), MemoryStore()
    app = App(engine or Stub(), settings, Memory(store, settings), [FileSearch()])
    sdks = [
        openai.AsyncOpenAI(
            base_url="http://dragoman.test/v1",
            api_key=key,
            http_client=httpx2.AsyncClient(transport=Transport(app)),
            max_retries=0,
        )
        for key in (ADA, BOB)
    ]
    try:
        yield Server(app, store, *sdks)
        assert app.budget.held == 0
    finally:
        for sdk in sdks:
            await sdk.close()
        await app.close()


def form(data: bytes = b"text", name: str = "a.txt", purpose: str = "assistants") -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + purpose.encode()
    disposition = f'form-data; name="file"; filename="{name}"'
    file = f"\r\n--x\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + data
    return head + file + b"\r\n--x--\r\n"


async def library(sdk: openai.AsyncOpenAI, **files: bytes) -> tuple[str, dict[str, str]]:
    """A vector store with these files; its id, and theirs."""
    ids = {
        name: (await sdk.files.create(file=(f"{name}.md", data), purpose="assistants")).id
        for name, data in files.items()
    }
    return (await sdk.vector_stores.create(name="v", file_ids=list(ids.values()))).id, ids


# ---- by the SDK ------------------------------------------------------------------------------


async def test_file_goes_round() -> None:
    async with filing() as server:
        sdk = server.ada
        made = await sdk.files.create(
            file=("Übung 1.txt", bytes(range(256))), purpose="user_data", expires_after=EXPIRY
        )
        assert (made.filename, made.bytes, made.purpose) == ("Übung 1.txt", 256, "user_data")
        assert made.expires_at == made.created_at + 3600
        assert await sdk.files.retrieve(made.id) == made
        content = await sdk.files.content(made.id)
        assert content.content == bytes(range(256))
        assert content.response.headers["content-type"] == "application/octet-stream"
        assert content.response.headers["x-content-type-options"] == "nosniff"
        others = [
            await sdk.files.create(file=(f"{n}.txt", b""), purpose="assistants") for n in range(21)
        ]
        listed = [each.id async for each in sdk.files.list(limit=9)]
        assert listed == [each.id for each in reversed([made, *others])]
        assert [each.id for each in (await sdk.files.list()).data] == listed
        only = await sdk.files.list(purpose="user_data", limit=10_000, order="asc")
        assert [each.id for each in only.data] == [made.id]
        assert (await sdk.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError, match="no file"):
            await sdk.files.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.files.delete(made.id)


@pytest.mark.parametrize("behind", [7200, 40 * 86_400])
async def test_what_is_stored_has_the_time_of_its_store(behind) -> None:
    async with filing() as server:
        sdk, store = server.ada, server.store
        store.now = lambda: time.time() + behind  # a database on another machine
        made = await sdk.files.create(
            file=("a.txt", ZOO), purpose="assistants", expires_after=EXPIRY
        )
        found = await sdk.vector_stores.create(
            file_ids=[made.id], expires_after={"anchor": "last_active_at", "days": 1}
        )
        talk = await sdk.conversations.create()
        said = await sdk.responses.create(model="stub", input="Hi", store=True)
        await store.sweep(store.now())
        assert await sdk.files.retrieve(made.id) == made
        assert (await sdk.vector_stores.search(found.id, query="lions")).data
        assert (await sdk.vector_stores.retrieve(found.id)).status == "completed"
        assert await sdk.conversations.retrieve(talk.id) == talk
        assert (await sdk.responses.retrieve(said.id)).id == said.id


async def test_vector_store_goes_round() -> None:
    async with filing() as server:
        sdk = server.ada
        id, files = await library(sdk, zoo=ZOO)
        made = await sdk.vector_stores.retrieve(id)
        assert (made.status, made.usage_bytes, made.file_counts.completed) == (
            "completed",
            len(ZOO),
            1,
        )
        changed = await sdk.vector_stores.update(
            id, name="w", metadata={"k": "v"}, expires_after={"anchor": "last_active_at", "days": 2}
        )
        assert (changed.name, changed.metadata) == ("w", {"k": "v"})
        assert changed.expires_at == changed.last_active_at + 2 * 86_400
        odd: Any = {"n": 1, "deep": {"a": [None]}}  # as conversations may have
        assert (await sdk.vector_stores.update(id, metadata=odd)).metadata == odd
        assert (await sdk.vector_stores.retrieve(id)).metadata == odd
        assert (await sdk.vector_stores.update(id, expires_after=None)).expires_at is None
        assert [each.id async for each in sdk.vector_stores.list()] == [id]
        (found,) = (await sdk.vector_stores.search(id, query="swimming penguin")).data
        assert (found.file_id, found.filename) == (files["zoo"], "zoo.md")
        assert found.content[0].text == ZOO.decode()
        (text,) = (await sdk.vector_stores.files.content(files["zoo"], vector_store_id=id)).data
        assert text.text == ZOO.decode()
        one = await sdk.vector_stores.files.update(
            files["zoo"], vector_store_id=id, attributes={"year": 2024}
        )
        assert one.attributes == {"year": 2024}
        assert await sdk.vector_stores.files.retrieve(files["zoo"], vector_store_id=id) == one
        assert (await sdk.vector_stores.files.delete(files["zoo"], vector_store_id=id)).deleted
        assert (await sdk.vector_stores.search(id, query="penguin")).data == []
        assert (await sdk.vector_stores.delete(id)).deleted
        with pytest.raises(openai.NotFoundError, match="no vector store"):
            await sdk.vector_stores.retrieve(id)
        assert await sdk.files.retrieve(files["zoo"])


async def test_batch_goes_round_and_says_what_could_not_be_read() -> None:
    async with filing() as server:
        sdk = server.ada
        id = (await sdk.vector_stores.create()).id
        batch = await sdk.vector_stores.file_batches.upload_and_poll(
            id, files=[("a.txt", b"tea"), ("b.pdf", b"%PDF-1.7")]
        )
        assert (batch.file_counts.completed, batch.file_counts.failed) == (1, 1)
        assert batch == await sdk.vector_stores.file_batches.retrieve(batch.id, vector_store_id=id)
        assert batch == await sdk.vector_stores.file_batches.cancel(batch.id, vector_store_id=id)
        listed = sdk.vector_stores.file_batches.list_files(
            batch.id, vector_store_id=id, filter="failed"
        )
        (failed,) = [each async for each in listed]
        assert failed.last_error.code == "unsupported_file"
        assert "a PDF document" in failed.last_error.message
        every = [each async for each in sdk.vector_stores.files.list(id, limit=1)]
        assert len(every) == 2
        with pytest.raises(openai.NotFoundError, match="no batch"):
            await sdk.vector_stores.file_batches.retrieve("vsfb_none", vector_store_id=id)


# ---- search ----------------------------------------------------------------------------------

CORPUS = {
    "refunds": b"Refunds are paid within 14 days to the card that was used for the order.",
    "shipping": b"Orders are shipped from Hamburg. Shipping takes three days within Germany.",
    "warranty": b"The warranty on kettles lasts two years. It does not cover limescale.",
    "code": b"def parseInvoice(data):\n    return json.loads(data)['invoice_total']",
    "tokyo": "東京の店舗は午前十時に開きます。".encode(),
}
QUESTIONS = {
    "How long do I wait for a refund?": "refunds",
    "Where do you ship orders from?": "shipping",
    "Is limescale covered by the warranty?": "warranty",
    "parse_invoice": "code",
    "invoice total": "code",
    "東京": "tokyo",
}


async def test_right_file_is_the_best_for_each_question() -> None:
    async with filing() as server:
        id, files = await library(server.ada, **CORPUS)
        for question, name in QUESTIONS.items():
            found = (await server.ada.vector_stores.search(id, query=question)).data
            assert found[0].file_id == files[name], question
            assert all(0 < each.score <= 1 for each in found)
            assert [each.score for each in found] == sorted(
                (each.score for each in found), reverse=True
            )
        several = await server.ada.vector_stores.search(id, query=["refund", "Hamburg"])
        assert {each.file_id for each in several.data[:2]} == {files["refunds"], files["shipping"]}
        assert (await server.ada.vector_stores.search(id, query="zebra")).data == []


async def test_filters_thresholds_and_numbers_narrow_a_search() -> None:
    async with filing() as server:
        sdk = server.ada
        id, files = await library(sdk, old=b"tea in May", new=b"tea and tea again", other=b"ice")
        for name, year in (("old", 2020), ("new", 2024)):
            await sdk.vector_stores.files.update(
                files[name], vector_store_id=id, attributes={"year": year}
            )

        async def found(**options: Any) -> list[str]:
            page = await sdk.vector_stores.search(id, query="tea", **options)
            return [each.filename for each in page.data]

        assert await found() == ["new.md", "old.md"]
        assert await found(max_num_results=1) == ["new.md"]
        assert await found(filters={"type": "lt", "key": "year", "value": 2024}) == ["old.md"]
        assert await found(filters={"type": "eq", "key": "year", "value": 1}) == []
        best = (await sdk.vector_stores.search(id, query="tea")).data[0].score
        assert await found(ranking_options={"score_threshold": best}) == ["new.md"]


class Embedder(Model):
    """A model whose vectors say whether a text is of animals or of tools, and how long it is."""

    broken: Any = None

    async def embed(self, request: dict[str, Any], caller: Any) -> dict[str, Any]:
        self.asked.append(request)
        if self.broken is not None:
            return {"data": self.broken}
        animals = ("cat", "dog", "pet")
        vectors = [
            [float(any(word in text for word in animals)), float("hammer" in text), 0.1]
            for text in request["input"]
        ]
        data = [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]
        return {"data": data[::-1], "model": request["model"]}


@pytest.mark.parametrize("numpy", [True, False])
async def test_vectors_find_what_has_none_of_the_words(numpy, monkeypatch) -> None:
    if not numpy:
        monkeypatch.setitem(sys.modules, "numpy", None)
    async with filing(Embedder("x"), embedding_model="small") as server:
        id, _ = await library(server.ada, cat=b"a cat", hammer=b"a hammer for my home")
        found = (await server.ada.vector_stores.search(id, query="pet for home")).data
        # Without numpy only what has the words is compared.
        assert [each.filename for each in found] == (
            ["cat.md", "hammer.md"] if numpy else ["hammer.md"]
        )
        by_words = await server.ada.vector_stores.search(
            id,
            query="pet for home",
            ranking_options={"hybrid_search": {"embedding_weight": 0, "text_weight": 1}},
        )
        assert by_words.data[0].filename == "hammer.md"


@pytest.mark.parametrize("broken", [[], "no", [{"index": 1, "embedding": [1.0]}]])
async def test_file_without_vectors_has_failed(broken) -> None:
    engine = Embedder("x")
    engine.broken = broken
    async with filing(engine, embedding_model="small") as server:
        id, files = await library(server.ada, cat=b"a cat")
        one = await server.ada.vector_stores.files.retrieve(files["cat"], vector_store_id=id)
        assert (one.status, one.last_error.code) == ("failed", "server_error")
        assert "embedding_model" in one.last_error.message


# ---- whose files -----------------------------------------------------------------------------


async def test_files_of_another_are_not_there() -> None:
    async with filing() as server:
        bob = server.bob
        id, files = await library(server.ada, zoo=ZOO)
        asking = [
            lambda: bob.files.retrieve(files["zoo"]),
            lambda: bob.files.content(files["zoo"]),
            lambda: bob.files.delete(files["zoo"]),
            lambda: bob.vector_stores.retrieve(id),
            lambda: bob.vector_stores.update(id, name="mine"),
            lambda: bob.vector_stores.search(id, query="penguin"),
            lambda: bob.vector_stores.delete(id),
            lambda: bob.vector_stores.files.list(id),
            lambda: bob.vector_stores.files.retrieve(files["zoo"], vector_store_id=id),
            lambda: bob.vector_stores.files.content(files["zoo"], vector_store_id=id),
            lambda: bob.vector_stores.files.delete(files["zoo"], vector_store_id=id),
            lambda: bob.vector_stores.create(file_ids=[files["zoo"]]),
            lambda: bob.responses.create(
                model="stub", input="Hi", tools=[{"type": "file_search", "vector_store_ids": [id]}]
            ),
        ]
        for ask in asking:
            with pytest.raises(openai.NotFoundError):
                await ask()
        assert (await bob.files.list()).data == (await bob.vector_stores.list()).data == []
        own, _ = await library(bob, mine=b"penguin of mine")
        with pytest.raises(openai.NotFoundError):
            await bob.vector_stores.files.create(own, file_id=files["zoo"])
        assert [
            each.filename for each in (await bob.vector_stores.search(own, query="penguin")).data
        ] == ["mine.md"]
        assert (await server.ada.files.content(files["zoo"])).content == ZOO


# ---- bounds, and those who mean no good ------------------------------------------------------


async def test_each_key_has_room_for_so_much() -> None:
    bounds = {"max_files_per_key": 2, "max_vector_stores_per_key": 1, "max_vector_store_chunks": 1}
    async with filing(**bounds, max_file_bytes=10_000) as server:
        id, files = await library(server.ada, a=b"tea", long=b"tea " * 2_000)
        listed = {each.id: each async for each in server.ada.vector_stores.files.list(id)}
        assert listed[files["a"]].status == "completed"
        failed = listed[files["long"]]
        assert (failed.status, failed.usage_bytes) == ("failed", 0)
        assert "max_vector_store_chunks" in failed.last_error.message
        with pytest.raises(openai.BadRequestError, match="max_files_per_key"):
            await server.ada.files.create(file=("c.txt", b"c"), purpose="assistants")
        with pytest.raises(openai.BadRequestError, match="max_vector_stores_per_key"):
            await server.ada.vector_stores.create()
        await server.bob.files.create(file=("c.txt", b"c"), purpose="assistants")
        await server.ada.files.delete(files["a"])
        await server.ada.files.create(file=("c.txt", b"c"), purpose="assistants")


async def test_file_that_is_too_large_is_refused_before_it_is_read() -> None:
    async with filing(max_file_bytes=1000) as server:
        with pytest.raises(openai.APIStatusError, match="max_file_bytes") as caught:
            await server.ada.files.create(file=("c.txt", b"c" * 1001), purpose="assistants")
        assert caught.value.status_code == 413
        head = {"authorization": f"Bearer {ADA}", "content-type": "multipart/form-data; boundary=x"}
        call = Call(
            server.app, "/v1/files", b"", headers={**head, "content-length": str(50 * 1024 * 1024)}
        )
        call.unread()  # nothing of it comes, and nothing is waited for
        assert (await call()).status == 413
        call = Call(server.app, "/v1/files", b"", headers=head)
        call.unread()
        for _ in range(2 + FORM // 1000):  # one without a length, and without an end
            call.arrive(b"--x\r\n" + b"y" * 1000)
        assert (await call()).status == 413


async def test_body_is_counted_before_it_is_read() -> None:
    async with filing(memory=200_000, share=1.0) as server:
        head = {"authorization": f"Bearer {ADA}", "content-type": "multipart/form-data; boundary=x"}
        call = Call(server.app, "/v1/files", b"", headers={**head, "content-length": "300000"})
        call.unread()
        refused = await call()
        assert (refused.status, "memory" in refused.json["error"]["message"]) == (413, True)
        waiting = Call(server.app, "/v1/files", b"", headers={**head, "content-length": "150000"})
        waiting.unread()
        task = asyncio.create_task(waiting())
        while not server.app.budget.held:
            await asyncio.sleep(0)
        other = await server.upload(form(b"t" * 100_000))
        assert (other.status, other.code) == (503, "overloaded")
        waiting.hang_up()
        await task


async def test_upload_whose_client_is_gone_is_not_stored() -> None:
    async with filing() as server:
        head = {"authorization": f"Bearer {ADA}", "content-type": "multipart/form-data; boundary=x"}
        call = Call(server.app, "/v1/files", b"", headers=head)
        call.unread()
        call.arrive(form()[:-20])
        call.hang_up()
        await call()
        assert (await server.ada.files.list()).data == []


@pytest.mark.parametrize(
    ("body", "boundary", "problem"),
    [
        (b"", "x", "boundary"),
        (form(), "y", "boundary"),
        (form(), "", "boundary"),
        (form()[:-8], "x", "ends before"),
        (form(name="a" * 9000), "x", "headers of more than"),
        (form().replace(b'name="file"', b'name="other"'), "x", "file: is missing"),
        (form(purpose="nothing"), "x", "purpose"),
        (b"--x\r\n" * 100_000, "x", "headers of more than"),
        (
            (b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n") * 10_000,
            "x",
            "more than 64 parts",
        ),
    ],
)
async def test_upload_that_is_no_form_is_refused(body, boundary, problem) -> None:
    async with filing() as server:
        refused = await server.upload(body, boundary)
        assert refused.status == 400
        assert problem in refused.json["error"]["message"]
        assert (await server.ada.files.list()).data == []


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "C:\\etc\\passwd", "/etc/passwd", "passwd\u202e"]
)
async def test_name_of_a_file_is_no_path(name) -> None:
    async with filing() as server:
        made = await server.upload(form(name=name))
        assert made.json["filename"] == "passwd"
        content = await server.ask("GET", f"/files/{made.json['id']}/content")
        assert content.headers["content-disposition"] == "attachment; filename*=UTF-8''passwd"
        assert content.body == b"text"


async def test_other_media_types_are_refused() -> None:
    async with filing() as server:
        refused = await server.ask("POST", "/files", b"{}")
        assert (refused.status, refused.code) == (415, "unsupported_media_type")
        assert "multipart/form-data" in refused.json["error"]["message"]
        assert (
            await server.ask("POST", "/vector_stores", b"x", content_type="text/plain")
        ).status == 415


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/files/file-1/else", 404),
        ("DELETE", "/files/file-1/else", 404),
        ("GET", "/files?limit=0", 400),
        ("GET", "/files?before=x", 400),
        ("GET", "/files?after=file-1", 400),
        ("GET", "/vector_stores?after=vs_1", 400),
        ("GET", "/vector_stores/V/files?after=file-1", 400),
        ("GET", "/vector_stores/V/else", 404),
        ("POST", "/vector_stores/V/else", 404),
        ("DELETE", "/vector_stores/V/else", 404),
        ("POST", "/vector_stores/V/files", 404),
        ("GET", "/vector_stores/V/files/file-1", 404),
        ("DELETE", "/vector_stores/V/files/file-1", 404),
        ("PUT", "/files", 405),
    ],
)
async def test_what_is_not_there_is_refused(method, path, status) -> None:
    async with filing() as server:
        id = (await server.ada.vector_stores.create()).id
        body = {"file_id": "file-1"}
        assert (await server.ask(method, path.replace("V", id), body)).status == status
        if path == "/files/file-1/else":
            made = (await server.upload(form())).json["id"]
            assert (await server.ask(method, f"/files/{made}/else")).status == 404


async def test_server_without_the_tool_says_how_to_turn_it_on() -> None:
    for memory, problem in ((Memory(MemoryStore()), "--tool files"), (None, "--store none")):
        app = App(Stub(), Settings(), memory, [] if memory else [FileSearch()])
        for method, path in (("GET", "/v1/files"), ("POST", "/v1/vector_stores/vs_1/search")):
            refused = await Call(app, path, {}, method=method)()
            assert refused.status == 404
            assert problem in refused.json["error"]["message"]
        await app.close()


async def test_vector_store_of_a_request_that_fails_is_not_left() -> None:
    async with filing() as server:
        with pytest.raises(openai.NotFoundError):
            await server.ada.vector_stores.create(file_ids=["file-none"])
        file = await server.ada.files.create(file=("a.txt", b"tea"), purpose="assistants")

        async def fails(*given: Any, **named: Any) -> None:
            raise FaultError(problem.value.fault)

        with pytest.raises(FaultError) as problem:
            server.app.budget.hold("t").resize(2**60)
        server.store.index_file = fails
        with pytest.raises(openai.APIStatusError):
            await server.ada.vector_stores.create(file_ids=[file.id])
        assert (await server.ada.vector_stores.list()).data == []


async def test_long_attributes_are_counted_and_listed_whole() -> None:
    attributes: Any = {f"{number}": "\U0001f600" * 512 for number in range(16)}
    async with filing() as server:
        id, files = await library(server.ada, **{f"f{n}": b"tea" for n in range(12)})
        for file in files.values():
            await server.ada.vector_stores.files.update(
                file, vector_store_id=id, attributes=attributes
            )
        listed = [each async for each in server.ada.vector_stores.files.list(id, limit=5)]
        assert [each.attributes for each in listed] == [attributes] * 12
        condition: Any = {"type": "eq", "key": "1", "value": attributes["1"]}
        found = await server.ada.vector_stores.search(
            id, query="tea", filters=condition, max_num_results=50
        )
        assert len(found.data) == 12
        batch = await server.ada.vector_stores.file_batches.create(
            id, file_ids=[*files.values()], attributes=attributes
        )
        server.app.budget.share = 1_000_000
        with pytest.raises(openai.APIStatusError, match="memory"):
            await server.ada.vector_stores.files.list(id)
        with pytest.raises(openai.APIStatusError, match="memory"):
            await server.ada.vector_stores.file_batches.retrieve(batch.id, vector_store_id=id)


async def test_file_that_is_refused_for_want_of_memory_keeps_its_earlier_index() -> None:
    async with filing() as server:
        id, files = await library(server.ada, zoo=ZOO * 1_000)
        server.app.budget.share = 100_000
        with pytest.raises(openai.APIStatusError, match="memory"):
            await server.ada.vector_stores.files.create(id, file_id=files["zoo"])
        listed = [each.status async for each in server.ada.vector_stores.files.list(id)]
        assert listed == ["completed"]


async def test_attributes_of_a_file_that_is_being_indexed_are_not_changed() -> None:
    async with filing() as server:
        id, files = await library(server.ada, zoo=ZOO)
        await server.store._write("UPDATE indexed_files SET status = 'in_progress'")
        with pytest.raises(openai.BadRequestError, match="is being indexed"):
            await server.ada.vector_stores.files.update(
                files["zoo"], vector_store_id=id, attributes={"a": 1}
            )


@pytest.mark.parametrize("again", [False, True])
async def test_file_whose_client_is_gone_is_not_indexed(again) -> None:
    """But what another request has indexed of it meanwhile stays."""
    async with filing() as server:
        id, files = await library(server.ada, zoo=ZOO)
        await server.ada.vector_stores.files.delete(files["zoo"], vector_store_id=id)
        begun, add = asyncio.Event(), server.store.add_pieces

        async def stuck(*given: Any) -> bool:
            await add(*given)
            begun.set()
            await asyncio.Event().wait()
            return True

        server.store.add_pieces = stuck
        call = Call(
            server.app,
            f"/v1/vector_stores/{id}/files",
            {"file_id": files["zoo"]},
            headers={"authorization": f"Bearer {ADA}"},
        )
        task = asyncio.create_task(call())
        await begun.wait()
        server.store.add_pieces = add
        if again:
            await server.ada.vector_stores.files.create(id, file_id=files["zoo"])
        call.hang_up()
        await task
        left = [each.status async for each in server.ada.vector_stores.files.list(id)]
        assert left == ["completed"] * again
        assert await server.store._read("SELECT count(*) FROM chunks") == [(int(again),)]


# ---- a whole answer --------------------------------------------------------------------------


@pytest.mark.parametrize("include", [True, False])
async def test_model_searches_and_cites(include) -> None:
    wanted = json.dumps({"queries": ["When do penguins swim?"]})
    model = Model(
        FunctionCall("c1", "file_search", wanted), "At noon【101†zoo.md】, he said.", "Yes【101】."
    )
    async with filing(model) as server:
        id, files = await library(server.ada, zoo=ZOO, other=b"nothing")
        tool: Any = {"type": "file_search", "vector_store_ids": [id]}
        asked = {"model": "stub", "input": "When?", "tools": [tool], "stream": True}
        asked |= {"include": ["file_search_call.results"]} if include else {}
        told = parse((await server.ask("POST", "/responses", asked)).body)[0]
        check_order(told)
        for event in told:
            assert not problems(event), event
            assert not sdk_problems(event), event
        assert [e["type"] for e in told if "file_search_call" in e["type"]] == [
            "response.file_search_call.in_progress",
            "response.file_search_call.searching",
            "response.file_search_call.completed",
        ]
        found, said = told[-1]["response"]["output"]
        assert found["queries"] == ["When do penguins swim?"]
        if include:
            (result,) = found["results"]
            assert (result["file_id"], result["filename"]) == (files["zoo"], "zoo.md")
            assert result["text"] == ZOO.decode()
        else:
            assert found["results"] is None
        (part,) = said["content"]
        assert part["text"] == "At noon, he said."
        (note,) = part["annotations"]
        assert note == {
            "type": "file_citation",
            "file_id": files["zoo"],
            "filename": "zoo.md",
            "index": len("At noon"),
        }
        again = await server.ada.responses.create(
            model="stub",
            input="Sure?",
            previous_response_id=told[-1]["response"]["id"],
            tools=[tool],
        )
        (cited,) = again.output[0].content[0].annotations
        assert (cited.file_id, cited.index) == (files["zoo"], 3)
        refused = await server.ask(
            "POST", "/responses", {**asked, "tools": [{"type": "file_search"}]}
        )
        assert refused.json["error"]["param"] == "tools[0].vector_store_ids"
        assert refused.json["error"]["message"] == "tools[0].vector_store_ids: is missing"
        for unknown in ("docs", "vs_docs"):  # is named as it was given
            tool = {"type": "file_search", "vector_store_ids": [unknown]}
            refused = await server.ask("POST", "/responses", {**asked, "tools": [tool]})
            assert f"no vector store '{unknown}'" in refused.json["error"]["message"]
