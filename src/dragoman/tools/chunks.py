"""Text that is searched: what can be read of a file, where it is cut, and how well it matches.

Words are found here and not by a database, so that each finds the same: in every language, and in
the names of source code.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 in a token, about, for estimates."""
LONGEST_WORD = 64
GROWTH = 1_024
"""Characters of a text beyond twice as many once it is normalised: it may make eighteen of one."""


class UnreadableError(Exception):
    """A file has no text that can be read here. The sentence says why."""


# ---- the text of a file ----------------------------------------------------------------------

_OFFICE = {
    "doc": "a Word document",
    "docx": "a Word document",
    "odp": "an OpenDocument presentation",
    "ods": "an OpenDocument spreadsheet",
    "odt": "an OpenDocument text",
    "pages": "a Pages document",
    "ppt": "a PowerPoint presentation",
    "pptx": "a PowerPoint presentation",
    "xls": "an Excel workbook",
    "xlsx": "an Excel workbook",
}
_MAGIC = (
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\xd0\xcf\x11\xe0", "an Office document"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "an audio, video or image file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"{\\rtf", "an RTF document"),
)
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_HTML = re.compile(r"\s*+(?:<\?xml[^<>]{0,200}>\s*+)?<(?:!doctype html|html)\b", re.IGNORECASE)


def read_text(name: str, data: bytes) -> Iterator[str]:
    """The text in a file, in pieces: others run between them. Raises UnreadableError, which names
    what it is instead.

    >>> whole_text(read_text("a.html", b"<p>Tea &amp; <b>cake</b><script>x()</script>"))
    'Tea & cake'
    """
    ending = name.rpartition(".")[2].lower()
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            raise UnreadableError(_unread(_OFFICE.get(ending, kind)))
    encoding = next((each for mark, each in _MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        kind = "a binary file" if b"\0" in data else "neither UTF-8 nor UTF-16"
        raise UnreadableError(_unread(_OFFICE.get(ending, kind))) from None
    if "\0" in text:
        raise UnreadableError(_unread("a binary file"))
    if ending in ("html", "htm", "xhtml") or _HTML.match(text):
        yield from _from_html(text)
    else:
        yield text


def whole_text(pieces: Iterable[str]) -> str:
    """The text of its pieces. Raises UnreadableError where there is none."""
    text = "".join(pieces)
    if not text.strip():
        raise UnreadableError("There is no text in it.")
    return text


def _unread(kind: str) -> str:
    return f"It is {kind}, of which no text can be read here: convert it to text or Markdown."


_UNSEEN = ("script", "style", "template", "noscript", "svg")
_BLOCKS = """p div br hr li ul ol dl dt dd h1 h2 h3 h4 h5 h6 tr table section article header footer
blockquote pre title main nav aside figure figcaption form option"""
_LINES = frozenset(_BLOCKS.split())
_STEP = 64 * 1024
"""Characters of a page that are looked at in one call."""
TAGS = 16 * 1024
"""Its tags that are looked at for one piece."""
_TAG = re.compile(r"/?[a-zA-Z][a-zA-Z0-9:-]{0,40}")


def _from_html(page: str) -> Iterator[str]:
    """The text of a page, its blocks on lines of their own. Linear, whatever the page is, and in
    pieces, some of them empty, of which none takes long."""
    held, size = list[str](), 0
    for number, piece in enumerate(_seen(page)):
        if number % TAGS == 0:
            yield ""
        for place in range(0, len(piece), _STEP):
            held.append(piece[place : place + _STEP])
            size += len(held[-1])
            if size >= _STEP:
                text = "".join(held)
                end = next(filter(None, (text.rfind(each) + 1 for each in "\n ;")), size)
                yield _in_lines(text[:end])
                held, size = [text[end:]], size - end
    yield _in_lines("".join(held)).rstrip()


def _in_lines(text: str) -> str:
    """The text without references, blank lines and more than one space; its last one is kept."""
    from .page import unescaped  # with half a megabyte of names

    text = unescaped(text)
    lines = [" ".join(line.split()) for line in text.split("\n")]
    written = "\n".join([line for line in lines if line])
    return written + text[-1] if written and text[-1].isspace() else written


def _seen(page: str) -> Iterator[str]:
    """The text after each tag of a page, with a line end for each tag of a block."""
    until = ""  # what ends that which is not seen
    place = page.find("<")
    yield page if place < 0 else page[:place]
    while place >= 0:
        start = place + 1
        place = page.find("<", start)
        piece = page[start:] if place < 0 else page[start:place]
        if until:
            if until == "-->" and until in piece:
                until, piece = "", piece.partition(until)[2]
            elif until != "-->" and piece[: len(until)].lower() == until:
                until, piece = "", piece.partition(">")[2]
            else:
                piece = ""
        elif piece.startswith("!--"):
            _, ended, piece = piece.partition("-->")
            if not ended:
                until = "-->"
        elif piece[:1] in ("!", "?"):
            piece = piece.partition(">")[2]
        elif (tag := _TAG.match(piece)) is not None:
            name = tag[0].lower()
            _, _, piece = piece.partition(">")
            if name in _UNSEEN:
                until, piece = f"/{name}", ""
            elif name.removeprefix("/") in _LINES:
                piece = "\n" + piece
            elif name in ("td", "th"):
                piece = " " + piece
        else:
            piece = "<" + piece
        yield piece


# ---- chunks ----------------------------------------------------------------------------------

_SPACE = re.compile(rb"\s")
_ENDS = (b"\n\n", b"\n", b". ", b" ")


def cut_text(text: str, tokens: int = 800, overlap: int = 400) -> Iterator[str]:
    """The chunks of a text: about so many tokens each, of which so many are those that the one
    before ends with. A chunk ends with a paragraph, a line, a sentence or a word, if its last
    quarter has the end of one.

    >>> list(cut_text("one two three four five", tokens=4, overlap=2))
    ['one two three', 'three four five']
    """
    data = text.encode("utf-8", "replace")
    most, back = tokens * BYTES_PER_TOKEN, overlap * BYTES_PER_TOKEN
    start = 0
    while start < len(data):
        end = start + most
        if end < len(data):
            end = _end(data, start + most * 3 // 4, end)
        if piece := data[start:end].decode("utf-8", "replace").strip():
            yield piece
        if end >= len(data):
            return
        # A chunk is no longer than `most`, and the next begins in its last half: so it goes on.
        after = max(end - back, start + 1)
        space = _SPACE.search(data, after, end)
        start = _whole(data, after) if space is None else space.end()


def _end(data: bytes, low: int, high: int) -> int:
    for end in _ENDS:
        place = data.rfind(end, low, high)
        if place >= 0:
            return place + len(end)
    while high > low and data[high] & 0xC0 == 0x80:  # within a character
        high -= 1
    return high


def _whole(data: bytes, place: int) -> int:
    while place < len(data) and data[place] & 0xC0 == 0x80:
        place += 1
    return place


# ---- words -----------------------------------------------------------------------------------

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
                       "\uac00-\ud7af\uf900-\ufaff]+")  # fmt: skip
_ACCENTS = re.compile(r"([\W\uff9e\uff9f]{32})[\W\uff9e\uff9f]+")
"""More signs in a row than a text has: to order them takes quadratic time (UAX #15, 13)."""
_SIGNS = [sign for sign in map(chr, range(0x300, 0x2000)) if unicodedata.category(sign)[0] == "M"]
_VOWELS = re.compile(f"[{''.join(_SIGNS)}\u200d\xad\u0640\u200b\u2060\ufeff]+")
"""Signs of vowels, and what is not seen, such as `&shy;`, which `re` and FTS5 take for the end of a
word."""
_INDIC = "".join([sign for sign in _SIGNS if "\u0900" <= sign < "\u0e00"])
_SIGNED = re.compile(rf"(?<![^\W_])[^\W_]++(?:[{_INDIC}\u200d]++[^\W_]*+)++")
"""A word of Hindi, Tamil and the like with such signs."""
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LITTLE = """a an and are as at be but by can do does for from had has have how i if in into is it
its me my no not of on or our she so that the their them then there they thi to wa we were what when
where which who why will with you your"""
COMMON = frozenset(_LITTLE.split())
"""Words that say little, without their endings."""


def find_words(text: str) -> list[str]:
    """The words of a text, without case, the endings of English, and signs of vowels; of languages
    without spaces, all pairs of letters. A name such as `readFile` counts as its words, too, and a
    word of Hindi both with its signs and without.

    >>> find_words("Running tests: readFile, \u6771\u4eac\u90fd!")
    ['run', 'test', 'readfil', 'read', 'fil', '\u6771\u4eac', '\u4eac\u90fd']
    """
    found: list[str] = []
    text = unicodedata.normalize("NFKC", _ACCENTS.sub(r"\1 ", text))[: 2 * len(text) + GROWTH]
    plain, signs = _VOWELS.subn("", text.replace("\u0130", "I"))  # its small form has a sign
    if signs:
        found += [word[:LONGEST_WORD] for word in _SIGNED.findall(text)]
    for match in _WORD.finditer(plain):
        word = match[0]
        if word.isascii():
            word = word[:LONGEST_WORD]
            found.append(_stem(word.lower()))
            if not word.islower() and len(parts := _HUMPS.split(word)) > 1:
                found += [_stem(part.lower()) for part in parts]
            continue
        place = 0
        for unspaced in _UNSPACED.finditer(word):
            found += filter(None, (word[place : unspaced.start()].casefold()[:LONGEST_WORD],))
            letters, place = unspaced[0], unspaced.end()
            found += [letters[at : at + 2] for at in range(max(len(letters) - 1, 1))]
        found += filter(None, (word[place:].casefold()[:LONGEST_WORD],))
    return found


@lru_cache(32_768)
def _stem(word: str) -> str:
    """An English word without its ending: crude, and the same for question and text."""
    if len(word) < 4 or not word.isalpha():
        return word
    if word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith("s") and word[-2] not in "sui":
        word = word[:-1]
    if word.endswith(("ing", "ed")) and not word.endswith("eed"):
        rest = word[: -3 if word.endswith("g") else -2]
        if len(rest) > 2:
            word = rest[:-1] if rest[-1] == rest[-2] and rest[-1] not in "ls" else rest
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def asked_words(query: str) -> list[str]:
    """The words of a question that say something, each once; all where none does.

    >>> asked_words("What is the sun?"), asked_words("Who is it?")
    (['sun'], ['who', 'is', 'it'])
    """
    words = list(dict.fromkeys(find_words(query)))
    return [word for word in words if word not in COMMON] or words


# ---- scores ----------------------------------------------------------------------------------

_SATURATION, _LENGTH = 0.6, 0.75
"""Of BM25: how soon more of a word says no more, and how much the length of a text counts."""


class Matches:
    """How often texts have the words of questions, and how well they match each question: BM25 as
    a part of the most that it could be.

    >>> matches = Matches(["red", "fox"])
    >>> matches.add("A red fox"), matches.add("Red hens"), matches.add("A hen")
    (None, None, None)
    >>> one, other, neither = matches.scores(["red", "fox"], 9)
    >>> one > other > neither == 0
    True
    """

    def __init__(self, asked: Iterable[str]) -> None:
        self._asked = {word: word for word in asked}
        self._texts: list[tuple[int, Counter[str]]] = []
        self._having = Counter[str]()

    def add(self, text: str) -> None:
        """Count the words of a text."""
        words = find_words(text)
        counts = Counter(filter(None, map(self._asked.get, words)))  # others would take much memory
        self._texts.append((len(words), counts))
        self._having.update(counts.keys())

    def scores(self, query: Iterable[str], total: int) -> Iterator[float]:
        """How well each text matches a question, from 0 to 1, in the order in which they were
        added. Of `total` texts those with none of its words may be left out."""
        weights: dict[str, float] = {}
        for word in query:
            having = self._having[word]
            weights[word] = math.log(1 + (max(total, having) - having + 0.5) / (having + 0.5))
        most = sum(weights.values())
        there = [word for word in weights if self._having[word]]
        mean = sum([length for length, _ in self._texts]) / max(len(self._texts), 1)
        for length, counts in self._texts:
            relative = 1 - _LENGTH + _LENGTH * length / (mean or 1.0)
            found = sum(
                weights[word] * counts[word] / (counts[word] + _SATURATION * relative)
                for word in there
                if word in counts
            )
            yield found / most if most else 0.0
