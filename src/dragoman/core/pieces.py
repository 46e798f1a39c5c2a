"""Text and base64 in pieces that were cut anywhere, put back together while they come.

What is given on at every moment is whole: no half characters, no half bytes. It knows only
strings, and not what they mean.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64

_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=]+")
_PADDING = re.compile("=+")


class Pieces:
    """Pieces of text; half a character waits for its other half.

    >>> pieces = Pieces()
    >>> pieces.add("a\\ud83d"), pieces.add("\\ude00b"), str(pieces)
    ('a', '😀b', 'a😀b')
    """

    __slots__ = ("carry", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.carry = ""

    def add(self, data: str) -> str:
        """The text that is whole now."""
        if self.carry or not data.isascii():
            data = self._whole(self.carry + data)
        self.pieces.append(data)
        return data

    def rest(self) -> str:
        """What is left at the end: a half that never met its other half."""
        if not self.carry:
            return ""
        self.carry = ""
        self.pieces.append("\ufffd")
        return "\ufffd"

    def catch_up(self, whole: str) -> str:
        """What was missing from the text as it should be; nothing if it is another text."""
        said = str(self)
        if not whole.startswith(said):
            return ""
        self.carry = ""  # the other half, if there is one, is in `whole`
        return self.add(whole[len(said) :])

    def _whole(self, data: str) -> str:
        self.carry = ""
        if _SURROGATE.search(data) is None:
            return data
        if "\ud800" <= data[-1] <= "\udbff":
            data, self.carry = data[:-1], data[-1]
        return data.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def __str__(self) -> str:
        return "".join(self.pieces)


class Base64Pieces(Pieces):
    """Pieces of base64, cut or padded anywhere, given on so that together they are one base64.

    Bytes are given in threes, so that every piece decodes by itself too. What is no base64 is
    passed over.
    """

    __slots__ = ("_raw",)

    def __init__(self) -> None:
        super().__init__()
        self._raw = b""

    def add(self, data: str) -> str:
        *padded, data = _PADDING.split(self.carry + _NOT_BASE64.sub("", data))
        for stretch in padded:  # each ends where padding says that bytes end
            self._raw += _bytes(stretch)
        whole = len(data) - len(data) % 4
        self.carry = data[whole:]
        raw = self._raw + a2b_base64(data[:whole])
        cut = len(raw) - len(raw) % 3
        self._raw = raw[cut:]
        return self._give(raw[:cut])

    def rest(self) -> str:
        raw = self._raw + _bytes(self.carry)
        self._raw, self.carry = b"", ""
        return self._give(raw)

    def catch_up(self, whole: str) -> str:
        if whole.startswith(str(self)):
            self._raw = b""
        return super().catch_up(whole)

    def _give(self, raw: bytes) -> str:
        text = b2a_base64(raw, newline=False).decode("ascii")
        if text:
            self.pieces.append(text)
        return text


def _bytes(stretch: str) -> bytes:
    """The bytes of base64 without its padding; a lone character at the end holds none."""
    stretch = stretch[:-1] if len(stretch) % 4 == 1 else stretch
    return a2b_base64(stretch + "=" * (-len(stretch) % 4))
