"""Decodes forms with files (`multipart/form-data`, RFC 7578) from a whole body."""

from __future__ import annotations

import re
from urllib.parse import unquote

from msgspec import Struct

from dragoman.core.error import Fault, FaultError, bad_request, quoted

MEDIA_TYPE = "multipart/form-data"
MAX_PARTS = 64
MAX_HEAD = 8 * 1024
"""Bytes of the headers of one part."""
MAX_FIELD = 64 * 1024
"""Bytes of a part that is no file."""
MAX_FILENAME = 255
"""Characters of a file's name; a longer one is cut at its beginning."""

_PARAMETER = re.compile(r';\s*([\w*-]+)\s*=\s*("(?:\\"|[^"])*"|[^;\s]*)')
_BOUNDARY = re.compile(r"[\x20-\x7e]{0,69}[\x21-\x7e]")
_ESCAPES = {"%22": '"', "%0D": "\r", "%0A": "\n"}
"""The escapes of browsers, and similar clients, in names."""


class Part(Struct, frozen=True):
    """One part of a form: a field with its text, or a file with its name and its bytes."""

    name: str
    data: memoryview
    filename: str | None = None

    @property
    def text(self) -> str:
        """The text of a field. Raises FaultError for a file, and for long text."""
        if len(self.data) > MAX_FIELD:
            raise FaultError(bad_request(f"is longer than {MAX_FIELD} bytes", self.name))
        try:
            return bytes(self.data).decode()
        except UnicodeDecodeError:
            raise FaultError(bad_request("is not UTF-8", self.name)) from None


def find_boundary(content_type: str) -> bytes:
    """The boundary of the parts, by the header. Raises FaultError without one.

    >>> find_boundary('multipart/form-data; boundary="a b"')
    b'a b'
    """
    boundary = _parameters(content_type).get("boundary", "")
    if not _BOUNDARY.fullmatch(boundary):
        problem = "The content-type has no boundary of 1 to 70 characters (RFC 2046, 5.1.1)."
        raise FaultError(bad_request(problem))
    return boundary.encode()


def read_parts(body: bytes, boundary: bytes) -> list[Part]:
    """The parts of a body. Raises FaultError for an invalid form, or too many parts.

    >>> body = b'--x\\r\\nContent-Disposition: form-data; name="a"\\r\\n\\r\\n1\\r\\n--x--\\r\\n'
    >>> read_parts(body, b"x")[0].text
    '1'
    """
    line = b"--" + boundary
    view, parts = memoryview(body), list[Part]()
    if body.startswith(line):
        place = len(line)
    else:  # the preamble is ignored
        place = body.find(b"\r\n" + line) + 2 + len(line)
        if place < 2 + 2 + len(line):
            raise FaultError(
                bad_request("The body does not have the boundary of its content-type.")
            )
    while body[place : place + 2] != b"--":
        start = body.find(b"\r\n", place, place + MAX_HEAD) + 2
        if start < 2 or body[place : start - 2].strip(b" \t"):
            raise FaultError(bad_request("The body has something behind a boundary."))
        empty = body[start : start + 2] == b"\r\n"
        head = start - 2 if empty else body.find(b"\r\n\r\n", start, start + MAX_HEAD)
        if head < 0:
            problem = f"A part of the body has headers of more than {MAX_HEAD} bytes, or no end."
            raise FaultError(bad_request(problem))
        end = body.find(b"\r\n" + line, head + 4 - 2)
        if end < 0:
            raise FaultError(bad_request("The body ends before its last boundary."))
        if len(parts) == MAX_PARTS:
            raise FaultError(bad_request(f"The body has more than {MAX_PARTS} parts."))
        parts.append(_part(body[start:head], view[head + 4 : max(end, head + 4)]))
        place = end + 2 + len(line)
    return parts


def _part(head: bytes, data: memoryview) -> Part:
    disposition = ""
    for line in head.decode("utf-8", "replace").split("\r\n"):
        header, _, value = line.partition(":")
        match header.strip().lower():
            case "content-disposition":
                disposition = value
            case "content-transfer-encoding" if value.strip().lower() not in _PLAIN:
                problem = f"A part of the body is encoded with {quoted(value.strip())}; send bytes."
                raise FaultError(Fault("unsupported_media_type", problem, "client"))
    given = _parameters(disposition)
    if "name" not in given or disposition.partition(";")[0].strip().lower() != "form-data":
        raise FaultError(bad_request("A part of the body has no name (Content-Disposition)."))
    filename = given.get("filename")
    if (coded := given.get("filename*")) is not None:  # RFC 5987, used by some clients
        filename = unquote(coded.rpartition("'")[2], errors="replace")
    return Part(given["name"], data, None if filename is None else _clean(filename))


_PLAIN = ("", "7bit", "8bit", "binary")


def _parameters(header: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in _PARAMETER.findall(header):
        if value.startswith('"'):
            value = value[1:-1].replace('\\"', '"')
            for written, meant in _ESCAPES.items():
                value = value.replace(written, meant)
        found.setdefault(name.lower(), value)
    return found


def _clean(filename: str) -> str:
    r"""A name without the folders that it was in, and without what is no letter.

    >>> _clean(r"C:\docs\a.txt"), _clean("../../etc/passwd"), _clean("a\r\nb"), _clean("..")
    ('a.txt', 'passwd', 'ab', '')
    """
    name = re.split(r"[/\\]", filename)[-1]
    name = "".join([letter for letter in name if letter.isprintable()]).strip()
    return "" if name in (".", "..") else name[-MAX_FILENAME:]
