"""Citations: what they become, and that it is the same however the text is cut."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.item import Annotation
from dragoman.formats.citations import LINES, Citations, domain

PAGES = {1: ("https://ex.com/p", ""), 2: ("https://ex.com/q", "Queues")}


def page(cursor: int, lines: str) -> Annotation | None:
    """A page, as a browser knows them."""
    url, title = PAGES.get(cursor, ("", ""))
    known = url and LINES.fullmatch(lines)
    return Annotation("url_citation", url=url, title=title or domain(url)) if known else None


def file(number: int, name: str) -> Annotation | None:
    """A piece of a file, whatever is behind its number."""
    return Annotation("file_citation", file_id=f"file-{number}") if number in (101, 102) else None


def written(*pieces: str) -> tuple[str, list[Annotation], list[str]]:
    """The text, its annotations, and what was passed on before the end."""
    citations = Citations([page, file])
    early = [each for piece in pieces for each in citations.feed(piece)]
    found = early + citations.end()
    text = ""
    notes = []
    for each in found:
        if isinstance(each, Annotation):
            # It comes after its text.
            assert len(text) == (each.index if each.end is None else each.end)
            notes.append(each)
        else:
            assert each
            text += each
    return text, notes, [each for each in early if isinstance(each, str)]


def note(start: int, end: int, cursor: int = 1) -> Annotation:
    url, title = PAGES[cursor]
    return Annotation("url_citation", start, end, url, title or "ex.com")


def piece(index: int, number: int = 101) -> Annotation:
    return Annotation("file_citation", file_id=f"file-{number}", index=index)


LINK = " ([ex.com](https://ex.com/p)) "


@pytest.mark.parametrize(
    ("text", "expected", "notes"),
    [
        ("a【1†L1】b", f"a{LINK}b", [note(1, 31)]),
        (
            "【1†L1】【2†L3-L5】",
            f"{LINK} ([ex.com](https://ex.com/q)) ",
            [note(0, 30), note(30, 60, 2)],
        ),
        ("【1†L1†ex.com】", LINK, [note(0, 30)]),
        ("☃【1†L1】", f"☃{LINK}", [note(1, 31)]),
        ("😀😀【1†L1】", f"😀😀{LINK}", [note(2, 32)]),
        # What is none, or cites nothing.
        *(
            (text, text, [])
            for text in ("", "【9†L1】", "【0†L1】", "【x†L1】", "【†L1】", "【1】", "】")
        ),
        *(
            (text, text, [])
            for text in ("【1†】", "【1††】", "【1†L1†】", "【1†a†b†c】", "【١†L1】")
        ),
        *((t, t, []) for t in ("【9999999999†L1】", f"【1†{'x' * 129}】", f"【101†{'x' * 386}】")),
        # Pieces of files.
        ("Hot【101†a.md】.", "Hot.", [piece(3)]),
        ("😀【101†a†b】【102】!", "😀!", [piece(1), piece(1, 102)]),
        ("【102】", "", [piece(0, 102)]),
        ("【103†c.md】", "【103†c.md】", []),
        ("a【1†L1】b【101】c", f"a{LINK}bc", [note(1, 31), piece(32)]),
        *((text, text, []) for text in ("Hello there 【1", "a【", "a【1†", "a【1†L1", "a【1†L1†x")),
        ("【1†a【1†L1】", f"【1†a{LINK}", [note(4, 34)]),
        ("【【1†L1】】", f"【{LINK}】", [note(1, 31)]),
    ],
)
def test_r4_64_r4_66_r4_69_what_a_text_becomes_cut_anywhere(text, expected, notes) -> None:
    for cut in range(len(text) + 1):
        assert written(text[:cut], text[cut:])[:2] == (expected, notes)
    assert written(*text)[:2] == (expected, notes)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        *((f"a{held}", "a") for held in ("【", "【1", "【1†", "【1†L1", "【1†L1†ex.c")),
        ("a【x", "a【x"),
        ("a【1x", "a【1x"),
        ("a【9999999999", "a【9999999999"),
        ("a【1†L1】 b【2", f"a{LINK} b"),
        (f"【1†{'x' * 386}", f"【1†{'x' * 386}"),
    ],
)
def test_r4_65_only_what_may_become_a_citation_waits(text, known) -> None:
    assert "".join(written(text)[2]) == known


def test_parentheses_of_an_address_do_not_end_its_link() -> None:
    url = "https://ex.com/Rust_(language)"
    rust = Annotation("url_citation", url=url, title="Rust")
    text, annotation = Citations([lambda *_: rust]).feed("【3†L1】")
    assert text == " ([ex.com](https://ex.com/Rust_%28language%29)) "
    assert annotation == Annotation("url_citation", 0, len(text), url, "Rust")


def test_an_address_without_a_host_stands_for_itself() -> None:
    urn = Annotation("url_citation", url="urn", title="")
    assert Citations([lambda *_: urn]).feed("【3†L1】")[0] == " ([urn](urn)) "


PIECES = st.sampled_from(
    ["【", "】", "†", "1", "2", "9", "L3", "-L5", "x", "é", "😀", "\n", "【1†L1】", "【101】"]
)


@given(st.lists(PIECES, max_size=30), st.data())
def test_r4_66_pieces_of_any_size_give_the_text_of_the_whole(pieces, data) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    places = [0, *cuts, len(text)]
    parts = [text[a:b] for a, b in pairwise(places)]
    whole, notes, _ = written(text)
    assert written(*parts)[:2] == (whole, notes)
    for each in notes:  # an annotation is about its link
        if each.end is None:
            continue
        assert re.fullmatch(
            r" \(\[ex\.com\]\(https://ex\.com/[pq]\)\) ", whole[each.start : each.end]
        )
        assert each.url in whole[each.start : each.end]


def test_r4_68_work_grows_with_the_text_only() -> None:
    """However many marks begin: what waits is bounded, and is looked at once a piece."""

    class Counting(Citations):
        looked = 0

        def _scan(self, text: str, ended: bool) -> list[str | Annotation]:
            self.looked += len(text)
            return super()._scan(text, ended)

    for text in ("【1†" * 2000, "【" * 6000, "【1†L1" + "x" * 6000, "word " * 1200):
        citations = Counting([page, file])
        for at in range(0, len(text), 7):
            citations.feed(text[at : at + 7])
        citations.end()
        assert citations.looked < 60 * len(text)
