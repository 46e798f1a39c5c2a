"""Pages as text: what becomes of HTML and other bytes, and that nothing takes long or grows."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.tools.page import (
    LONGER,
    LONGEST_LINK,
    MOST_LINKS,
    MOST_TEXT,
    WIDTH,
    Page,
    UnreadableError,
    View,
    find_in,
    read,
    wrapped,
)
from tests.samples import samples

URL = "https://ex.test/a/b?c"


def page(text: str, url: str = URL) -> Page:
    return read(text.encode("utf-8", "surrogatepass"), "text/html; charset=utf-8", url)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("a<b>b</b><i>c</i> d", ["abc d"]),
        ("  a \n\t b  <br> c<br><br>d ", ["a b", "c", "", "d"]),
        ("<p>a<p>b</p>c<div>d</div>e", ["a", "", "b", "", "c", "d", "e"]),
        ("<h1>A</h1><h3>B <em>c</em></h3>d", ["# A", "", "### B c", "", "d"]),
        (
            "<ul><li>a<li><p>b</p><ol><li>c</ol></ul>d",
            ["  * a", "  * b", "", "    * c", "", "d"],
        ),
        ("<table><tr><th>a<th>b<tr><td>c</td><td>d</td></table>", ["a | b", "c | d"]),
        ("<pre>  x\n\n   y &lt;</pre>z", ["  x", "", "   y <", "", "z"]),
        ("a<hr>b", ["a", "---", "b"]),
        ("<img alt='a\n cat'><img><img alt=''>", ["[Image: a cat]"]),
        ("a &amp; b &lt;i&gt; &nbsp;c&#33; &unknown; &", ["a & b <i> c! &unknown; &"]),
        ("&#x110000; &#xD800; &#" + "9" * 5000 + "; &#x0;", ["\ufffd \ufffd \ufffd \ufffd"]),
        ("1 < 2 <3 <> </> <!x> <?x?> </ x> <!-- <b> -->y", ["1 < 2 <3 <> y"]),
        ("<!-->a<!-- -- -->b<!---->c", ["abc"]),
        ("a<script>if (1 < 2) '</p>'</script >b<STYLE>p {}</style>c", ["abc"]),
        ("a<svg><text>x</text></svg>b<select><option>x</select>c", ["abc"]),
        ("a<script>x</scripts></SCRIPT x='>'>b", ["a'>b"]),
        ("<p title='a>b' data-x=\"<p>\" y=a/b>c", ["c"]),
        ("<p title='a>b>c", ["b>c"]),
        ('<p ="x>y" =>z', ["z"]),
        ('a<b x="y', ["a"]),
        ("a<!-- b", ["a"]),
        ("a<script>b", ["a"]),
        ("a</b", ["a"]),
        ("a<![CDATA[b]]>c", ["ac"]),
        ("</p></ul></pre></a></h1>a", ["a"]),
        ("【1†x】 \u202e \x00\x07\x1b[2J\x85\x9f", ["〖1‡x〗 \u202e [2J"]),
        # Links.
        ("<a href=/x>a</a> <a href=/x#y>b</a>", ["【0†a】 【0†b】"]),
        ("<a href='//o.test/'>a<b> b</b></a>.", ["【0†a b†o.test】."]),
        ("x <a href=/x> <img src=y alt=z> </a>", ["x 【0†[Image: z]】"]),
        ("<a href=/x></a><a href=/y>  </a>a", ["a"]),
        ("<a href=/x><div>a</div><p>b</p></a>c", ["【0†a b】 c"]),
        ("<pre><a href=/x>a\nb</a>\nc</pre>", ["【0†a b】", "c"]),
        ("<a href=/x>a<a href=/y>b</a>c", ["【0†a】【1†b】c"]),
        ("<a>a</a><a href=''>b</a><a href=#x>c</a>", ["abc"]),
        ("<a href=javascript:x>a</a><a href=mailto:x@y>b</a><a href=data:,x>c</a>", ["abc"]),
        ("<a href='http://[x'>a</a><a href='/\x80'>b</a>", ["ab"]),
        ("<a title='href=/no' HREF = \"/x y&amp;z\"href=/no>a</a>", ["【0†a】"]),
        ("<a href='\n/x\t/y\n'>a</a>", ["【0†a】"]),
    ],
)
def test_what_html_becomes(text, lines) -> None:
    assert page(text).lines == lines


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("<a href=x>a</a><a href=../y>a</a><a href=?z>a</a>", ["a/x", "y", "a/b?z"]),
        ("<base href=/c/><base href=''><a href=x>a</a>", ["c/x"]),
        ("<base href=javascript:x><a href=x>a</a>", ["a/x"]),
        ("<a href='/x y'>a</a><a href='/x&amp;y#z'>a</a>", ["x%20y", "x&y"]),
        (f"<a href=/{'x' * 3000}>a</a>", []),
    ],
)
def test_where_links_lead(text, links) -> None:
    assert page(text).links == [f"https://ex.test/{each}" for each in links]


def test_a_link_that_is_never_closed_takes_in_little() -> None:
    read_page = page(f"<a href=/x>{'word ' * 1000}<p>after")
    assert read_page.lines[-1] == "after"
    assert len(" ".join(read_page.lines).partition("】")[0]) <= LONGEST_LINK + 10


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("<title> A &amp; <b>\n【title】</title><title>B</title>", "A & <b> 〖title〗"),
        ("<title></title><p>x", "ex.test"),
        ("x", "ex.test"),
        (f"<title>{'x' * 9999}", "x" * 200),
    ],
)
def test_titles(text, title) -> None:
    assert page(text).title == title


@pytest.mark.parametrize(
    ("body", "kind", "first"),
    [
        (b"<p>x", "", "x"),
        (b"\n <p>x", "TEXT/HTML", "x"),
        (b"<p>x", "application/xhtml+xml", "x"),
        (b"<p>x", "text/plain", "<p>x"),
        (b"x", "", "x"),
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"<a/>", "application/rss+xml; charset=utf-8", "<a/>"),
        (b"a\r\nb", "text/markdown", "a"),
        # Encodings.
        ("é".encode(), "text/plain", "é"),
        ("é".encode("latin-1"), "text/plain", "é"),
        ("é€".encode("cp1252"), "text/plain; charset=ISO-8859-1", "é€"),
        ("ğ".encode("cp1254"), "text/plain; charset=iso-8859-9", "ğ"),
        ("é".encode(), 'text/plain; charset="UTF8"', "é"),
        ("日本".encode("shift_jis"), "text/html;charset=Shift_JIS", "日本"),
        ("日本".encode("utf-16"), "text/plain", "日本"),
        ("日本".encode("utf-8-sig"), "text/plain; charset=latin-1", "日本"),
        (b"<meta charset=koi8-r>" + "да".encode("koi8-r"), "text/html", "да"),
        (b'<meta content="x; charset=gbk">' + "中".encode("gbk"), "text/html", "中"),
        ("日本".encode()[:-1], "text/plain", "日\ufffd"),
        (b"\xff " + "日本".encode(), "text/plain", "\ufffd 日本"),
        (b"\xff", "text/plain; charset=utf-8", "\ufffd"),
        *(
            (b"x-y", f"text/plain; charset={each}", "x-y")
            for each in ("idna", "zlib", "x\0", "../x")
        ),
        *(
            (b"x-y", f"text/plain; charset={each}", "x-y")
            for each in ("punycode", "unicode_escape")
        ),
        (b"", "text/html", ""),
    ],
)
def test_what_bytes_become(body, kind, first) -> None:
    assert read(body, kind, URL).lines[0] == first


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"%PDF-1.7 x", "text/html", "PDF"),
        (b"x", "application/pdf; x", "PDF"),
        (b"x", "image/png", "'image/png'"),
        (b"x", "application/octet-stream", "octet-stream"),
        (b"x", "a" * 500, "a" * 80),
        (b"x\0", "", "no text"),
    ],
)
def test_content_that_is_no_text_is_an_error(body, kind, words) -> None:
    with pytest.raises(UnreadableError, match=words):
        read(body, kind, URL)


def test_the_source_of_a_page_is_its_html() -> None:
    assert read("<p>x\n【".encode(), "text/html", URL, source=True).lines == ["<p>x", "〖"]


def test_lines_are_broken_at_spaces_where_there_are_some() -> None:
    assert wrapped(f"{'a' * 50} {'b' * 29} c") == [f"{'a' * 50} {'b' * 29}", "c"]
    assert wrapped("x" * 170) == ["x" * 80, "x" * 80, "x" * 10]
    assert wrapped("  " + "x" * 100) == ["  " + "x" * 78, "x" * 22]
    assert wrapped(" " * 100) == [""]
    assert wrapped("a\n\n b") == ["a", "", " b"]
    assert wrapped("") == [""]


# ---- hostile pages ---------------------------------------------------------------------------

REPEATED = [
    *("<!--", "<a ", "<", "</", '<a href="', "<a href='x' ", "<p>", "&#9", "&", "<li>", "<ul>"),
    *('="', "<a =", "<title>", "<script>", "<![CDATA[", "<?", "<b x=' y=\" ", "<pre>\n", "<td>"),
    *("<a href=/x>", "<a href=x>y</a>", "<base href=//a>", "<a" + " " * 99, "【", " ", "\xa0", "x"),
    *(
        "<script></scrip",
        "<svg>",
        "</a",
        "<a/b",
        "<!>",
        "&amp",
        "<p x=y x=y",
        "<img alt='x'>",
        "<h1>",
    ),
    *(
        "<a href=http://x",
        "\n",
        "\r",
        "-->",
        "<a href=//[>",
        "&#x9999999999",
        "<br>",
        "<table>",
        "<hr>",
    ),
]


def calls(text: str) -> int:
    """Calls that reading a page takes, those of C included."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    body = text.encode()
    sys.setprofile(profile)
    try:
        read(body, "text/html", URL)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("piece", REPEATED)
def test_work_grows_with_the_page_only(piece) -> None:
    size = samples(40, 2000)
    assert calls(piece * 2 * size) < 2.5 * calls(piece * size) + 500


@pytest.mark.parametrize("piece", REPEATED)
def test_pages_are_bounded(piece) -> None:
    """At full size a quadratic step would take minutes."""
    text = piece * (samples(10_000, 2_000_000) // len(piece))
    found = page(text)
    assert sum(map(len, found.lines)) <= 2 * MOST_TEXT
    assert max(map(len, found.lines)) <= WIDTH
    assert len(found.links) <= MOST_LINKS


@pytest.mark.parametrize("name", ["script", "title"])
def test_an_element_whose_ends_are_never_closed_takes_in_the_rest_at_once(name) -> None:
    began = time.process_time()
    found = page(f"a<{name}>" + f"</{name} " * 100_000)
    assert found.lines == ["a"]
    assert time.process_time() - began < 3  # 0.01 s, where a quadratic search takes half a minute


@pytest.mark.parametrize("before", ["//", "http://", "\t/\n/"])
def test_a_link_with_a_long_host_that_is_not_ascii_is_text_at_once(before) -> None:
    began = time.process_time()
    found = page(f"<a href='{before}a" + "\u0301\u0316" * 50_000 + "'>b</a>")
    assert (found.lines, found.links) == (["b"], [])
    assert time.process_time() - began < 1  # 8 s where it is normalised


def test_links_of_an_address_with_many_folders_count_as_many_tags() -> None:
    text = "<a href=x>y</a>" * 1_000
    long = read(text.encode(), "text/html", "https://ex.test/" + "a/" * 4_000)
    assert long.lines[-1] == LONGER
    assert LONGER not in page(text, "https://ex.test/a/b/c/d/e/f/").lines


def test_links_beyond_the_limit_are_text() -> None:
    found = page("".join(f"<a href=/{n}>t{n}</a> " for n in range(MOST_LINKS + 5)))
    assert len(found.links) == MOST_LINKS
    text = " ".join(found.lines)
    assert f"【{MOST_LINKS - 1}†t{MOST_LINKS - 1}】 t{MOST_LINKS} t" in text


MARKUP = st.sampled_from(
    [
        *REPEATED,
        "text",
        "</a>",
        "</p>",
        ">",
        '"',
        "'",
        "href=",
        "&lt;",
        "</script>",
        "</ul>",
        "</pre>",
    ]
)


@given(st.lists(MARKUP | st.text(max_size=5), max_size=12))
@example(["<a href=http://x", "【", "<li>", "0"])  # the host of a link is text too
def test_any_text_is_a_page(pieces) -> None:
    found = page("".join(pieces))
    assert found.lines
    assert all(len(line) <= WIDTH for line in found.lines)
    text = "\n".join(found.lines)
    assert text.count("【") == text.count("】")
    assert all(
        link.startswith(("http://", "https://")) and link.isprintable() for link in found.links
    )


@given(st.text("aİ bß", max_size=200), st.text("aİ bß", min_size=1, max_size=4))
def test_find_names_the_line_whatever_the_case_does_to_lengths(text, pattern) -> None:
    view = View("page", URL, "T", wrapped(text))
    for link in find_in(view, pattern).links:
        near = " ".join(view.lines[link.line : link.line + 4]).lower()
        assert "".join(pattern.lower().split())[:1] in near
