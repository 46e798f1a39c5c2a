"""Turns what a web server sent into a page of text: short lines, with numbered links.

All of it is linear in its input, and bounded. Python's own HTML parser is not, in the versions we
support: a megabyte of `<!--` would keep it busy for minutes. As in browsers, what is never closed
(a comment, a script, a tag) takes in the rest.
"""

from __future__ import annotations

import codecs
import html
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal
from urllib.parse import unquote, urljoin

from msgspec import Struct, field

from dragoman.core.error import cut
from dragoman.formats.citations import domain
from dragoman.net.url import check_authority

WIDTH = 80
"""Characters of a line."""
MOST_TEXT = 1_000_000
"""Characters of a page; what follows is left out."""
MOST_TAGS = 100_000
"""Tags of a page; what follows is left out."""
LONGER = "(The page is longer. This is its beginning.)"
MOST_LINKS = 1_000
"""Links of a page that have a number; the text of others is text."""
LONGEST_LINK = 200
"""Characters of a link's text."""
LONGEST_URL = 2048
LONGEST_TITLE, LONGEST_PLACE = 200, 256
"""Characters of a page's title, and of its address where it is shown."""
MOST_MATCHES = 50
AROUND = 4
"""Lines that are shown from a match on, and before the place that a link leads to."""

MARKS = str.maketrans(
    "【】†", "〖〗‡", "".join(map(chr, (*range(9), 11, 12, *range(14, 32), *range(127, 160))))
)
"""What only we may write in a page, since a link is known by it; and control characters."""


class Page(Struct):
    """What a server sent, as text. `links` are addresses, by their number."""

    title: str
    lines: list[str]
    links: list[str] = field(default_factory=list)


class UnreadableError(Exception):
    """There is no text in it, as its words say."""


def read(body: bytes, kind: str, url: str, *, source: bool = False) -> Page:
    """A page of a body: HTML, or anything that is text; `kind` is its `Content-Type`. `source` is
    for HTML as it is written. Raises UnreadableError for what is no text."""
    media, _, parameters = kind.lower().partition(";")
    media = media.strip()
    if media == "application/pdf" or body.startswith(b"%PDF-"):
        raise UnreadableError(
            "It is a PDF, which cannot be read here. Look for the same text as a web page."
        )
    textual = media.startswith("text/") or media.endswith(_TEXTUAL)
    if media and not textual:
        raise UnreadableError(f"It is {one_line(media)[:80]!r}, which cannot be read here as text.")
    if not media and b"\0" in body[:1024]:
        raise UnreadableError("It is no text.")
    text = _decoded(body, parameters)
    is_html = "html" in media or (not media and text.lstrip()[:1] == "<")
    if is_html and not source:
        return _Reader(url).read(text)
    return Page(domain(url), wrapped(text[:MOST_TEXT].translate(MARKS)))


_TEXTUAL = ("json", "xml", "javascript", "yaml", "x-sh", "toml", "ndjson")
"""The ends of media types that are text, whatever they begin with."""


def wrapped(text: str) -> list[str]:
    """The lines of a text, none longer than WIDTH: broken at a space where there is one.

    >>> wrapped("one\\n\\n" + "word " * 17)[2:]
    ['word word word word word word word word word word word word word word word word', 'word']
    """
    lines: list[str] = []
    for line in map(str.rstrip, text.splitlines()):
        place = 0
        while len(line) - place > WIDTH:
            end = line.rfind(" ", place + 1, place + WIDTH + 1)
            if end < 0 or not line[place:end].strip():
                end = place + WIDTH
            lines.append(line[place:end])
            place = end + line.startswith(" ", end)
        lines.append(line[place:])
    return lines or [""]


# ---- what is shown ---------------------------------------------------------------------------


class Link(Struct):
    """Where a link leads, and what is to be shown there: a line, or the first with these words."""

    url: str
    line: int = -1
    words: str = ""


class View(Struct, eq=False):
    """What was shown under a cursor. `lines` are None where they have to be fetched; `first` is the
    number of the first of them. `seen` is what the model was shown in an earlier answer."""

    kind: Literal["results", "page", "source", "find"]
    url: str = ""
    title: str = ""
    lines: list[str] | None = None
    links: list[Link] = field(default_factory=list)
    pattern: str = ""
    seen: str = ""
    first: int = 0

    @property
    def head(self) -> str:
        """The title, and the address as far as it is shown."""
        place = cut(one_line(unquote(self.url)), LONGEST_PLACE)
        match self.kind:
            case "results":
                return self.title
            case "source":
                place = f"view-source:{place}"
            case "find":
                place = f"{place}/find?pattern={one_line(self.pattern)[:80]}"
        return f"{self.title} ({place})"


HEAD = re.compile(r"\[(\d{1,9})\] .*\n\*\*viewing lines \[(\d{1,7}) - \d{1,7}\] of \d{1,7}\*\*\n\n")
_NUMBERED = re.compile(r"^L\d{1,7}: ?", re.MULTILINE)
_LINK_MARKS = re.compile(r"【\d+†|(?:†[^†【】]*)?】")


def flat(lines: Sequence[str]) -> tuple[str, list[int]]:
    """The text of lines, in lower case and without what marks links, and where each begins."""
    plain = [_LINK_MARKS.sub("", line).strip().lower() for line in lines]
    return " ".join(plain), list(accumulate((len(line) + 1 for line in plain), initial=0))


def line_with(words: str, lines: Sequence[str]) -> int:
    """The number of the line where these words begin, as a search service quotes them; or -1."""
    start = " ".join(words.lower().split(" … ")[0].strip(" .…").split()[:8])
    text, starts = flat(lines)
    place = text.find(start) if start else -1
    return bisect_right(starts, place) - 1


def find_in(view: View, pattern: str) -> View:
    """The places of a page with this text, which may go over the end of a line."""
    held = view.lines or [""]
    text, starts = flat(held)
    wanted = " ".join(pattern.lower().split())
    lines, links = list[str](), list[Link]()
    place = text.find(wanted)
    while place >= 0 and len(links) < MOST_MATCHES:
        number = bisect_right(starts, place) - 1
        lines += ["", f"# 【{len(links)}†match at L{view.first + number}】"]
        lines += [_LINK_MARKS.sub("", line) for line in held[number : number + AROUND]]
        links.append(Link(view.url, view.first + number))
        place = text.find(wanted, max(starts[min(number + AROUND, len(held))], place + 1))
    if not links:
        lines = ["", f"No `find` results for pattern: `{one_line(pattern)[:200]}`"]
    title = f"Find results for text: `{one_line(pattern)[:80]}` in `{view.title}`"
    return View("find", view.url, title, lines[1:], links, pattern)


def shown_lines(seen: str) -> list[str]:
    """The lines of what a model was shown."""
    return _NUMBERED.sub("", HEAD.sub("", seen, count=1)).split("\n")


# ---- bytes -----------------------------------------------------------------------------------

_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]{1,40})")
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_CODECS = frozenset(
    {
        *("utf-8", "utf-16", "utf-16-le", "utf-16-be", "cp1250", "cp1251", "cp1253", "cp1254"),
        *("cp1255", "cp1256", "cp1257", "cp1258", "cp866", "cp874", "cp932", "cp949", "iso8859-2"),
        *("iso8859-3", "iso8859-4", "iso8859-5", "iso8859-6", "iso8859-7", "iso8859-8"),
        *("iso8859-10", "iso8859-13", "iso8859-14", "iso8859-15", "iso8859-16", "koi8-r"),
        *("koi8-u", "mac-roman", "gb2312", "gbk", "gb18030", "big5", "big5hkscs", "euc_jp"),
        *("euc_kr", "shift_jis", "iso2022_jp", "tis-620"),
    }
)
"""Codecs that the web has. Python has others, some of which take quadratic time."""


def _decoded(body: bytes, parameters: str) -> str:
    """A body as text, whatever it says of itself; nothing is refused."""
    for mark, codec in _BOMS.items():
        if body.startswith(mark):
            return body.decode(codec, "replace")
    named = _CHARSET.search(parameters)
    label = named[1] if named else ""
    if not label and (found := _META.search(body, 0, 1024)):
        label = found[1].decode("ascii", "replace")
    try:
        codec = codecs.lookup(label).name
    except (LookupError, ValueError):
        codec = ""
    if codec in ("ascii", "iso8859-1", "iso8859-9", "cp1252"):
        # Browsers take these for Windows' own, which has more characters.
        return body.decode("cp1254" if codec == "iso8859-9" else "cp1252", "replace")
    if codec in _CODECS:
        return body.decode(codec, "replace")
    try:
        return body.decode()
    except UnicodeDecodeError:
        # Where there is other UTF-8 in it, it has a character that is wrong, or was cut at its end.
        mixed = not body.decode("utf-8", "ignore").isascii()
        return body.decode("utf-8" if mixed else "cp1252", "replace")


# ---- HTML ------------------------------------------------------------------------------------

_ATTRIBUTES = r"""(?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+)*+"""
_TAG = re.compile(rf"<(/?)([a-zA-Z][^\s/>]*+)({_ATTRIBUTES})>")
_ATTRIBUTE = re.compile(r"""([^\s=/>"']+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]++)))?""")
_RAW = ("script", "style", "template", "svg", "iframe", "noembed", "noframes", "select", "title")
_RAW_END = {name: re.compile(rf"</{name}(?![a-z0-9])", re.IGNORECASE) for name in _RAW}
"""Elements whose inside is no text of the page, or (`title`) no markup."""
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "button", "caption", "center"),
        *("dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure"),
        *("footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html", "label"),
        *("legend", "li", "main", "menu", "nav", "ol", "optgroup", "option", "p", "pre"),
        *("section", "summary", "table", "tbody", "textarea", "tfoot", "thead", "tr", "ul"),
    }
)
_APART = frozenset(
    {
        *("blockquote", "dl", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre"),
        *("section", "table", "ul"),
    }
)
"""Blocks with an empty line around them."""
_LONG_NUMBER = re.compile(r"&#[xX]?[0-9a-fA-F]{9,}+;?")  # int() refuses to read the longest


class _Reader:
    """Reads one document."""

    def __init__(self, url: str) -> None:
        self._base = self._url = url
        self._title = ""
        self._lines: list[str] = []
        self._line: list[str] = []  # pieces of the line that is being written
        self._space = False  # whether a space is due before the next piece
        self._prefix = ""
        self._size = self._tags = 0
        self._pre = self._depth = 0
        self._links: dict[str, int] = {}
        self._link: tuple[str, int] | None = None  # the open one: its address, its first piece
        self._room = 0  # characters that its text may still have

    def read(self, text: str) -> Page:
        """The page."""
        place = 0
        while self._size < MOST_TEXT and (tag := text.find("<", place)) >= 0:
            self._tags += 1
            if self._tags > MOST_TAGS:  # each takes as long as a thousand characters
                self._close_link()
                self._break(apart=True)
                text, place = LONGER, 0
                break
            self._text(text[place:tag])
            if (found := _TAG.match(text, tag)) is not None:
                place = found.end()
                name = found[2].lower()
                if found[1]:
                    self._end(name)
                elif (ending := _RAW_END.get(name)) is not None:
                    closed = ending.search(text, place)
                    closing = text.find(">", closed.end()) if closed else -1
                    inside = text[place : closed.start() if closed and closing >= 0 else len(text)]
                    if name == "title" and not self._title:
                        self._title = one_line(unescaped(inside[:10_000]))[:LONGEST_TITLE]
                    place = closing + 1 if closing >= 0 else len(text)
                else:
                    self._begin(name, found[3])
                continue
            after = text[tag + 1 : tag + 2]
            if after.isalpha() and after.isascii():
                place = len(text)  # a tag that is never closed
            elif after in ("!", "?", "/") and after:
                end = "-->" if text.startswith("<!--", tag) else ">"
                closing = text.find(end, tag + 2)
                place = closing + len(end) if closing >= 0 else len(text)
            else:
                self._text("<")
                place = tag + 1
        self._text(text[place : place + MOST_TEXT])
        self._close_link()
        self._break()
        while self._lines and not self._lines[-1]:
            self._lines.pop()
        title = self._title or domain(self._url)
        return Page(title, wrapped("\n".join(self._lines)), list(self._links))

    # ---- text ------------------------------------------------------------------------------

    def _text(self, text: str) -> None:
        if not text:
            return
        text = unescaped(text).translate(MARKS)
        if self._pre and self._link is None:
            first, *rest = text.split("\n")
            self._put(first)
            for line in rest:
                self._break(always=True)
                self._put(line)
            return
        words = text.split()
        if not words:
            self._space = True
            return
        self._space |= text[0].isspace()
        self._put(" ".join(words))
        self._space = text[-1].isspace()

    def _put(self, text: str) -> None:
        if self._link is not None:
            text, more = text[: self._room], text[self._room :]
            self._room -= len(text)
            self._append(text)
            if self._room:
                return
            self._close_link()  # one that is never closed must not take in the page
            text = more
        self._append(text)

    def _append(self, text: str) -> None:
        if not text:
            return
        if self._space and (self._line or self._link is not None):
            self._line.append(" ")
        self._space = False
        self._line.append(text)
        self._size += len(text) + 1

    def _break(self, *, apart: bool = False, always: bool = False) -> None:
        """End the line; inside a link it is a space."""
        self._space = self._link is not None
        if self._link is not None:
            return
        line = "".join(self._line)
        if line.strip() or always:
            self._lines.append(self._prefix + line)
            self._prefix = ""
            self._size += 1
        self._line.clear()
        if apart and self._lines and self._lines[-1] and not self._prefix:
            self._lines.append("")
            self._size += 1

    # ---- elements --------------------------------------------------------------------------

    def _begin(self, name: str, attributes: str) -> None:
        if name in _BLOCKS:
            self._break(apart=name in _APART and not (name in ("ul", "ol") and self._depth))
        match name:
            case "a":
                self._close_link()
                self._open_link(_attribute(attributes, "href"))
            case "base":
                if self._base == self._url and (target := _attribute(attributes, "href")):
                    self._base = _joined(self._url, target) or self._base
            case "br":
                self._break(always=True)
            case "hr":
                self._put("---")
                self._break()
            case "img":
                if alt := one_line(_attribute(attributes, "alt")):
                    self._put(f"[Image: {alt[:LONGEST_LINK]}]")
            case "ul" | "ol":
                self._depth += 1
            case "li":
                self._prefix = "  " * min(self._depth, 8) + "* "
            case "td" | "th":
                if self._line and self._link is None:
                    self._put(" | ")
                    self._space = False
            case "pre":
                self._pre += 1
            case "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
                self._prefix = "#" * int(name[1]) + " "

    def _end(self, name: str) -> None:
        if name == "a":
            self._close_link()
        if name in ("ul", "ol"):
            self._depth = max(self._depth - 1, 0)
        if name == "pre":
            self._pre = max(self._pre - 1, 0)
        if name in _BLOCKS:
            self._break(apart=name in _APART and not (name in ("ul", "ol") and self._depth))
            self._prefix = ""

    def _open_link(self, target: str) -> None:
        self._tags += self._base.count("/") // 10  # each segment of the base takes its time
        url = _joined(self._base, target) if target and not target.startswith("#") else ""
        if url and (url in self._links or len(self._links) < MOST_LINKS):
            if self._space and self._line:
                self._line.append(" ")
            self._space = False
            self._link, self._room = (url, len(self._line)), LONGEST_LINK

    def _close_link(self) -> None:
        if self._link is None:
            return
        (url, first), self._link = self._link, None
        text = "".join(self._line[first:]).strip()
        del self._line[first:]
        if text:
            number = self._links.setdefault(url, len(self._links))
            host = domain(url)
            place = "" if host == domain(self._url) else f"†{one_line(host)}"
            self._line.append(f"【{number}†{text}{place}】")
            self._size += len(self._line[-1]) - len(text)


def unescaped(text: str) -> str:
    """The text with the characters that its references stand for."""
    return html.unescape(_LONG_NUMBER.sub("\ufffd", text)) if "&" in text else text


def one_line(text: str) -> str:
    """A text on one line, without what only we may write."""
    return " ".join(text.translate(MARKS).split())


def _attribute(attributes: str, name: str) -> str:
    """The value of an attribute, the first of that name; empty where there is none."""
    for found in _ATTRIBUTE.finditer(attributes):
        if found[1].lower() == name:
            return unescaped(found[2] or found[3] or found[4] or "")
    return ""


def _joined(base: str, target: str) -> str:
    """The address of a link, if it leads to a page of the web."""
    try:
        target = re.sub(r"[\t\r\n]", "", target.strip())
        check_authority(target)
        url = urljoin(base, target).replace(" ", "%20")
    except ValueError:  # a long host, or brackets that hold no address
        return ""
    plain = url.lower().startswith(("http://", "https://")) and len(url) <= LONGEST_URL
    return url.partition("#")[0] if plain and url.isprintable() else ""
