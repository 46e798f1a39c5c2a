"""The tool that searches files: text, chunks, words and scores, and citations of what it found."""

import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.error import FaultError, bad_request
from dragoman.core.files import Found
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import Annotation, CustomToolCall, FunctionCall, Unknown
from dragoman.formats.citations import Citations
from dragoman.tools import chunks, files
from dragoman.tools import page as page_module
from dragoman.tools.chunks import (
    LONGEST_WORD,
    Matches,
    UnreadableError,
    asked_words,
    cut_text,
    find_words,
    read_text,
    whole_text,
)
from dragoman.tools.files import NOTHING, FileSearch
from dragoman.tools.run import Context, Runner, ToolError
from tests.cost import seconds

TEXT = "Tea is hot. Ice is cold.\n\nNeither is warm, 东京 said – and left.\n"


# ---- text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.md", b"# Tea\n", "# Tea\n"),
        ("a.json", b'{"tea": 1}', '{"tea": 1}'),
        ("a.csv", b"tea,1\r\n", "tea,1\r\n"),
        ("a.py", "naïve = 1".encode(), "naïve = 1"),
        ("a.txt", b"\xef\xbb\xbftea", "tea"),
        ("a.txt", "tea".encode("utf-16"), "tea"),
        ("a.html", b"<h1>Tea</h1><p>is  <i>hot</i> &lt;3</p>", "Tea\nis hot <3"),
        ("a", b" <!DOCTYPE html><title>T</title><script>a<b</script><p>x", "T\nx"),
        ("a.htm", b"<!-- <p>no --> yes <!-- a <b> c", "yes"),
        ("a.htm", b"a<!-- b <i> c -->d <style>e</STYLE>f 1 < 2 <td>g<br>h", "ad f 1 < 2 g\nh"),
        ("a.xhtml", b"<?xml version='1.0'?><html>a<svg><p>b</p></svg>c", "ac"),
    ],
)
def test_text_of_a_file_is_read(name, data, text) -> None:
    assert whole_text(read_text(name, data)) == text


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.pdf", b"%PDF-1.7 ...", "a PDF document"),
        ("a.docx", b"PK\x03\x04...", "a Word document"),
        ("a.xlsx", b"PK\x03\x04...", "an Excel workbook"),
        ("a.doc", b"\xd0\xcf\x11\xe0...", "a Word document"),
        ("a.zip", b"PK\x03\x04...", "a ZIP archive"),
        ("a.png", b"\x89PNG...", "a PNG image"),
        ("a.bin", b"\xff\0\0", "a binary file"),
        ("a.txt", b"a\0b", "a binary file"),
        ("a.txt", "Übung".encode("latin-1"), "neither UTF-8 nor UTF-16"),
        ("a.txt", b"\xff\xfea", "neither UTF-8 nor UTF-16"),
        ("a.txt", b" \n", "There is no text in it"),
        ("a.html", b"<p></p>", "There is no text in it"),
    ],
)
def test_file_without_text_says_what_it_is(name, data, kind) -> None:
    with pytest.raises(UnreadableError, match=kind):
        whole_text(read_text(name, data))


@pytest.mark.parametrize("piece", ["<", "<!--", "<script", "<a<", "</", "&", "&#x;", "<?", "--><"])
def test_pages_of_nonsense_are_read_in_their_time(piece) -> None:
    data = ("<html>" + piece * 20_000).encode()
    try:
        whole_text(read_text("a.html", data))
    except UnreadableError:
        pass


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("&#" + "1" * 5_000 + "; &#x" + "f" * 5_000, "\ufffd \ufffd"),  # int() reads no such number
        ("<" * 200_000, "<" * 200_000),
        ("a&amp;" * 40_000, "a&" * 40_000),
        ("a b\n" * 40_000, "a b\n" * 40_000),
        ("<p>ab<td>c" * 40_000, "ab c\n" * 40_000),
        ("word " * 40_000, "word " * 40_000),
        ("<p>a b &amp; c; <p>d&nbsp;" * 20_000, "a b & c;\nd\n" * 20_000),
    ],
)
def test_large_pages_are_read_in_pieces_that_show_nowhere(page, text) -> None:
    read = whole_text(read_text("a.html", f"<html>{page}".encode()))
    assert read.strip() == text.strip()


@pytest.mark.parametrize(
    "page",
    ["<", "<a ", "<a href=x>", "<!--", "<script><", "&amp;", "&#1;", "&notit;", "\n", "<p>a", "a"],
)
def test_pieces_of_a_page_come_before_much_of_it_was_looked_at(page, monkeypatch) -> None:
    looked = 0

    def counted(seen: Iterator[str]) -> Iterator[str]:
        nonlocal looked
        for piece in seen:
            looked += 1
            yield piece

    unescaped, length = page_module.unescaped, 0

    def measured(text: str) -> str:
        nonlocal length
        length += len(text)
        return unescaped(text)

    seen = chunks._seen
    monkeypatch.setattr(chunks, "_seen", lambda page: counted(seen(page)))
    monkeypatch.setattr(page_module, "unescaped", measured)
    most = widest = 0
    for _ in read_text("a.html", (page * 100_000).encode()):
        most, widest = max(most, looked), max(widest, length)
        looked = length = 0
    assert 0 < most <= chunks.TAGS + 1
    assert widest <= 3 * chunks._STEP


@pytest.mark.uncounted
def test_blanks_before_a_text_are_passed_over_once() -> None:
    # Each is some nanoseconds for `strip`, and was a hundred for what looked for HTML there.
    text = " " * 2_000_000 + "x"
    assert seconds(lambda _: whole_text(read_text("a.md", text.encode())), 1) < 10 * max(
        seconds(lambda _: text.encode().decode().strip(), 1), 0.004
    )


# ---- chunks ----------------------------------------------------------------------------------


@given(
    st.text(alphabet="ab \n.é东😀", max_size=300),
    st.integers(3, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n // 2))),
)
def test_chunks_have_all_of_the_text_and_are_no_larger_than_allowed(text, sizes) -> None:
    tokens, overlap = sizes
    pieces = list(cut_text(text, tokens, overlap))
    assert all(len(piece.encode()) <= tokens * 4 for piece in pieces)
    for piece in pieces:
        assert piece in text  # in one piece, and no letter in halves
    for word in text.split():
        if len(word.encode()) <= tokens:
            assert any(word in piece for piece in pieces), word


def test_chunks_end_with_sentences_and_repeat_the_end_of_the_one_before() -> None:
    text = " ".join(f"Sentence number {n} says something." for n in range(50))
    pieces = list(cut_text(text, 60, 20))
    assert all(piece.endswith(".") for piece in pieces)
    for one, other in pairwise(pieces):
        shared = next(n for n in range(len(other), -1, -1) if one.endswith(other[:n].rstrip()))
        assert 30 <= shared <= 80  # 20 tokens


def test_text_without_spaces_is_cut_all_the_same() -> None:
    assert [len(piece) for piece in cut_text("x" * 1000, 100, 50)] == [400, 400, 400, 400]
    assert list(cut_text("")) == []


# ---- words and scores ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Penguins swimming", ["penguin", "swim"]),
        ("cities city", ["city", "city"]),
        ("uses use", ["use", "use"]),
        ("glass bus is", ["glass", "bus", "is"]),
        ("feed feeding", ["feed", "feed"]),
        ("file_search v2.5", ["fil", "search", "v2", "5"]),
        ("getHTTPUrl", ["gethttpurl", "get", "httpurl"]),
        ("STRASSE Straße", ["strass", "strasse"]),
        ("ﬁne Ⅷ", ["fin", "viii"]),
        ("x東京y 都", ["x", "東京", "y", "都"]),
        ("ไทย", ["ไท", "ทย"]),
        ("น้ำตก", ["นา", "าต", "ตก"]),
        (
            "Donau\xaddampf\u200bschiff \u0130stanbul ISTANBUL",
            ["donaudampfschiff", *["istanbul"] * 2],
        ),
        ("الكتـــاب", ["الكتاب"]),
        ("हिन्दी भाषा कम।", ["हिन्दी", "भाषा", "हनद", "भष", "कम"]),
        ("மொழி மழை", ["மொழி", "மழை", "மழ", "மழ"]),
        ("مُحَمَّد محمد", ["محمد", "محمد"]),
        ("cafe\u0301 café", ["café", "café"]),
        ("", []),
    ],
)
def test_words_are_found(text, words) -> None:
    assert find_words(text) == words


def test_words_of_question_and_text_are_the_same() -> None:
    for one, other in (("classes", "class"), ("running", "runs"), ("queries", "query"), ("Ö", "ö")):
        assert find_words(one)[0][:3] == find_words(other)[0][:3]
    assert find_words("a" * 500) == ["a" * LONGEST_WORD]
    assert find_words("ß" * 500) == ["s" * LONGEST_WORD]


def test_question_is_what_says_something() -> None:
    assert asked_words("What is the capital of France, and the capital of Spain?") == [
        *("capital", "franc", "spain")
    ]
    assert asked_words("who are you") == ["who", "are", "you"]


def test_scores_are_higher_for_what_is_rare_and_frequent_and_short() -> None:
    def scores(asked: list[str], *texts: str, total: int) -> list[float]:
        matches = Matches(asked)
        for text in texts:
            matches.add(text)
        return list(matches.scores(asked, total))

    texts = "rar word", "common word", "common x", f"common y rar {'z ' * 6}"
    found = scores(["rar", "common"], *texts, total=100)
    assert found[3] > found[0] > found[1]
    assert all(0 <= score < 1 for score in found)
    assert scores(["rar"], "rar " * 3, "rar", total=10)[1] > 0.7
    assert scores([], "a", total=1) == [0.0]
    assert scores(["a"], total=0) == []
    assert scores(["a"], "", total=1) == [0.0]


# ---- the tool --------------------------------------------------------------------------------

ASKED = {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 3}


class Shelf:
    """A library that finds what a test gives it."""

    def __init__(self, *found: Found, fault: Any = None) -> None:
        self.found, self.fault = list(found), fault
        self.asked: list[Any] = []

    async def check(self, caller, stores) -> None:
        self.asked.append(stores)

    async def search(self, caller, stores, search) -> list[Found]:
        self.asked.append(search)
        if self.fault is not None:
            raise FaultError(self.fault)
        return self.found


async def opened(shelf: Shelf | None, *items: Unknown) -> Any:
    tool = FileSearch()
    tool.searched = shelf
    return await tool.open(ASKED, items, ANYONE)


async def run(reading: Any, arguments: str) -> Any:
    made = FunctionCall("c1", "file_search", arguments)
    return await Runner(reading.tools).run(made, Context(made))


async def test_model_is_shown_numbered_pieces_and_the_client_results() -> None:
    found = (
        Found("1", "a†【x】.md", "Tea is hot.", 0.5, {"k": "v"}),
        Found("2", "b.md", "【1†a.md】 (file-9, score 1)\n【7】 and 【so on】", 0.25),
    )
    shelf = Shelf(*found)
    reading = await opened(shelf)
    result = await run(reading, '{"queries": ["tea?", " "]}')
    assert result.output.output == (
        "【101†ax.md】 (file-1, score 0.50)\nTea is hot.\n\n"
        "【102†b.md】 (file-2, score 0.25)\n[1†a.md】 (file-9, score 1)\n[7】 and 【so on】"
    )
    assert result.fields["queries"] == ["tea?"]
    assert [each["file_id"] for each in result.fields["results"]] == ["file-1", "file-2"]
    assert shelf.asked[0] == ("vs_1",)
    assert (shelf.asked[1].queries, shelf.asked[1].most) == (("tea?",), 3)
    text, note = Citations([reading.cited]).feed("Hot【102†b.md】")
    assert (text, note) == (
        "Hot",
        Annotation("file_citation", file_id="file-2", filename="b.md", index=3),
    )
    await reading.close()
    await FileSearch().close()


async def test_long_conversations_are_read_in_a_thread(monkeypatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(files, "recorded", lambda _: threads.append(threading.get_ident()))
    tool = FileSearch()
    tool.searched = Shelf()
    asked: Any = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    items = [Unknown("responses", "file_search_call", {})] * 2
    for size in (0, 1):
        await tool.open(asked, items, Caller(size=size))
    own = threading.get_ident()
    assert [each == own for each in threads] == [True, True, False, False]


async def test_later_answer_goes_on_counting_and_cites_what_was_shown_before() -> None:
    reading = await opened(Shelf(Found("1", "a.md", "x", 0.5)))
    shown = (await run(reading, '{"queries": ["x"]}')).output.output
    kept = {"call_id": "c1", "name": "file_search", "arguments": "{}", "output": shown}
    items = (
        Unknown("responses", "file_search_call", {}, "fs_1", {"tool": kept}),
        Unknown("responses", "file_search_call", {}, "fs_2"),
        Unknown("responses", "web_search_call", {}, "ws_1", {"tool": kept}),
    )
    later = await opened(Shelf(Found("2", "b.md", "y", 0.5)), *items)
    assert (await run(later, '{"queries": ["y"]}')).output.output.startswith("【102†b.md】")
    notes = [each.file_id for each in Citations([later.cited]).feed("【101†a.md】【102】") if each]
    assert notes == ["file-1", "file-2"]


@pytest.mark.parametrize(
    ("arguments", "queries"),
    [
        ('{"queries": ["a", "b"]}', ["a", "b"]),
        ('{"queries": "a"}', ["a"]),
        ('{"query": "a"}', ["a"]),
        ('["a"]', ["a"]),
        ('"a"', ["a"]),
        ("{", None),
        ("{}", None),
        ('{"queries": [1]}', None),
        ('{"queries": []}', None),
        ("[" * 100_000, None),
        (json.dumps({"queries": ["a"] * 17}), None),
    ],
)
async def test_arguments_are_understood_or_an_error_for_the_model(arguments, queries) -> None:
    reading = await opened(Shelf())
    (tool,) = reading.tools
    for made in (FunctionCall("c", "file_search", arguments), CustomToolCall("c", "x", arguments)):
        assert tool.display.opened(made) == {"queries": queries or [], "results": None}
    result = await run(reading, arguments)
    assert result.error is (queries is None)
    assert ("file_search" in result.output.output) is (queries is None)
    if queries is not None:
        assert result.output.output == NOTHING


async def test_a_failed_search_is_an_error_for_the_model_or_the_client() -> None:
    reading = await opened(Shelf(fault=bad_request("is gone", "vector_store_ids")))
    with pytest.raises(ToolError, match="is gone"):
        await reading.find(["a"])
    with pytest.raises(FaultError, match="dragoman serve --tool files"):
        await opened(None)
