"""Reads the table of cases and makes bytes of its rows; the table's head says what a row may hold.

A row that does not say exactly what it expects is refused. Who plays the bytes, and to whom, is
the business of the tests beside it.
"""

from __future__ import annotations

import gzip
import json
import re
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.wire.registry import WIRES as REGISTERED

TABLE = Path(__file__).with_name("cases.toml")

SENT = {
    *("wire", "script", "body", "answer", "answers", "headers", "type", "transfer", "trailers"),
    *("cut", "coding", "line_end", "bom", "split", "pause", "fill", "warm"),
}
EXPECTED = {
    *("end", "text", "chat_text", "reasoning", "refusal", "calls", "order", "finish", "usage"),
    *("status", "begun", "says", "retry_after", "asks"),
}
WIRES = [wire.name for wire in REGISTERED.values() if wire.conversation]
"""The protocols in front of which and behind which the rows are played."""
GOOD = ("completed", "incomplete")
ABSENT = "absent"

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))")
_NAMED = {b"r": b"\r", b"n": b"\n", b"t": b"\t", b"\\": b"\\"}


class CaseError(ValueError):
    """A row that cannot be played, or that leaves open what it expects."""


@dataclass(frozen=True)
class Expected:
    """What must become of a row. `usage` None: none was reported."""

    end: str
    text: str
    chat_text: str
    reasoning: str
    refusal: str
    calls: tuple[tuple[str | None, str, str], ...]
    order: tuple[str, ...]
    finish: str | None
    usage: dict[str, int] | None
    status: int
    begun: bool
    says: str
    retry_after: str | None
    asks: int

    @property
    def good(self) -> bool:
        return self.end in GOOD

    @property
    def code(self) -> str:
        """The fault's code."""
        return self.end.removeprefix("failed:")


@dataclass(frozen=True)
class Case:
    """One row: the bytes, in the pieces they are written in, and what is expected of them."""

    name: str
    wire: str
    pieces: tuple[bytes, ...]
    pause: float
    reset: bool
    warm: bool
    expected: Expected


def load(path: Path = TABLE) -> tuple[Case, ...]:
    """All rows, in their order. Raises CaseError naming the row and what is wrong with it."""
    rows = tomllib.loads(path.read_text())["case"]
    cases = tuple(parse(row) for row in rows)
    names = [case.name for case in cases]
    if doubles := {name for name in names if names.count(name) > 1}:
        raise CaseError(f"rows of the same name: {sorted(doubles)}")
    return cases


def parse(row: dict[str, Any]) -> Case:
    """One row. Raises CaseError."""
    row = dict(row)
    name = row.pop("name", None) or "a row without a name"
    row.pop("shows", None)  # read by tests.behaviours
    if unknown := row.keys() - SENT - EXPECTED:
        raise CaseError(f"{name}: unknown fields {sorted(unknown)}")
    if row.get("wire") not in WIRES:
        raise CaseError(f"{name}: the wire is one of {', '.join(WIRES)}")
    if len(row.keys() & {"script", "body", "answer"}) != 1:
        raise CaseError(f"{name}: one of script, body and answer says what is sent")
    if "fill" in row:
        text, times = row.pop("fill")
        row = _filled(row, text * times)
    return Case(
        name=name,
        wire=row["wire"],
        pieces=tuple(_pieces(row)),
        pause=row.get("pause", 0.0),
        reset=row.get("cut") == "reset",
        warm=row.get("warm", False),
        expected=_expected(name, row),
    )


def _expected(name: str, row: dict[str, Any]) -> Expected:
    if "any" in row.values() or any(row.get(key) == "" for key in ("end", "finish", "says")):
        raise CaseError(f"{name}: a row says exactly what it expects")
    end = row.get("end", "")
    good = end in GOOD
    if not good and not re.fullmatch("failed:[a-z_]+", end):
        raise CaseError(f"{name}: the end is completed, incomplete or failed:CODE, not {end!r}")
    needed = ("text", "finish", "usage") if good else ("text", "status", "begun", "says")
    if missing := [key for key in needed if key not in row]:
        raise CaseError(f"{name}: a row that is {end} says what it expects of {missing}")
    if barred := row.keys() & ({"status", "begun", "says"} if good else {"finish"}):
        raise CaseError(f"{name}: a row that is {end} has no {sorted(barred)}")
    usage = row.get("usage", ABSENT)
    if usage != ABSENT and not isinstance(usage, dict):
        raise CaseError(f"{name}: usage is its numbers, or {ABSENT!r}")
    return Expected(
        end=end,
        text=row["text"],
        chat_text=row.get("chat_text", row["text"]),
        reasoning=row.get("reasoning", ""),
        refusal=row.get("refusal", ""),
        calls=tuple((c.get("id"), c["name"], c["arguments"]) for c in row.get("calls", ())),
        order=tuple(row.get("order", _usual_order(row, good))),
        finish=row.get("finish"),
        usage=None if usage == ABSENT else usage,
        status=row.get("status", 200),
        begun=row.get("begun", True),
        says=row.get("says", ""),
        retry_after=row.get("retry_after"),
        asks=row.get("asks", 1),
    )


def _usual_order(row: dict[str, Any], good: bool) -> list[str]:
    """Reasoning, message, calls, as far as they are expected; who ends well says something."""
    order = ["reasoning"] if row.get("reasoning") else []
    if row["text"] or row.get("refusal"):
        order.append("message")
    order += ["function_call"] * len(row.get("calls", ()))
    return order or (["message"] if good else [])


def _filled(value: Any, text: str) -> Any:
    match value:
        case str():
            return value.replace("<fill>", text)
        case dict():
            return {key: _filled(each, text) for key, each in value.items()}
        case list():
            return [_filled(each, text) for each in value]
        case _:
            return value


# ---- the bytes -----------------------------------------------------------------------------


def _pieces(row: dict[str, Any]) -> list[bytes]:
    """All that the server writes, a piece for each write."""
    if "answer" in row:
        pieces = [unescape(row["answer"])]
    else:
        body = _body(row)
        pieces = [_head(row, sum(map(len, body))), *_framed(row, body)]
    if size := row.get("split"):
        whole = b"".join(pieces)
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    return [piece for piece in pieces if piece]


def _body(row: dict[str, Any]) -> list[bytes]:
    """The pieces of the body, coded but not framed."""
    if "body" in row:
        pieces = [row["body"].strip().encode()]
    else:
        script = Script(row["wire"])
        pieces = [script.line(line) for line in row["script"].splitlines() if line]
        end = row.get("line_end", "\n").encode()
        pieces = [piece.replace(b"\n", end) for piece in pieces]
        if row.get("bom"):
            pieces[0] = b"\xef\xbb\xbf" + pieces[0]
    if row.get("coding") == "gzip":
        return _gzipped(pieces, whole="cut" not in row)
    return pieces


def _gzipped(pieces: list[bytes], whole: bool) -> list[bytes]:
    if whole and len(pieces) == 1:
        return [gzip.compress(pieces[0], mtime=0)]
    packer = zlib.compressobj(wbits=31)
    packed = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    return [*packed, packer.flush()] if whole else packed


def _head(row: dict[str, Any], size: int) -> bytes:
    kind = "text/event-stream" if "script" in row else "application/json"
    lines = [f"HTTP/1.1 {row.get('answers', 200)} X", f"content-type: {row.get('type', kind)}"]
    match row.get("transfer", "close"):
        case "close":
            lines.append("connection: close")
        case "chunked":
            lines.append("transfer-encoding: chunked")
        case "length":
            lines.append(f"content-length: {size + 1000 if 'cut' in row else size}")
    if "coding" in row:
        lines.append(f"content-encoding: {row['coding']}")
    return "\r\n".join([*lines, *row.get("headers", ()), "", ""]).encode()


def _framed(row: dict[str, Any], body: list[bytes]) -> list[bytes]:
    if row.get("transfer") != "chunked":
        return body
    framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body if piece]
    if "cut" not in row:
        trailers = "".join(f"{line}\r\n" for line in row.get("trailers", ()))
        framed.append(f"0\r\n{trailers}\r\n".encode())
    return framed


def unescape(text: str) -> bytes:
    r"""Bytes for text with the escapes \r \n \t \xHH \\; all else stands for itself.

    >>> unescape(r"a\r\n\xff\"")
    b'a\r\n\xff\\"'
    """

    def replace(found: re.Match[bytes]) -> bytes:
        if found[1]:
            return bytes.fromhex(found[1].decode())
        return _NAMED.get(found[2], found[0])

    return _ESCAPE.sub(replace, text.encode())


class Script:
    """Makes bytes of the lines of a script, one after the other."""

    def __init__(self, wire: str) -> None:
        self._sequence = 0 if wire == "responses" else None

    def line(self, line: str) -> bytes:
        """One line."""
        word, _, rest = line.partition(" ")
        match word:
            case "half":
                whole = self.line(rest)
                return whole[: len(whole) // 2]
            case "raw":
                return unescape(rest)
            case "data":
                return f"data: {rest}\n\n".encode()
            case "done":
                return b"data: [DONE]\n\n"
            case "delta":
                choice = f'{{"index":0,"delta":{rest},"finish_reason":null}}'
                return _chunk(f'"choices":[{choice}]')
            case "finish":
                return _chunk(f'"choices":[{{"index":0,"delta":{{}},"finish_reason":{rest}}}]')
            case "choice":
                return _chunk(f'"choices":[{rest}]')
            case "usage":
                return _chunk(f'"choices":[],"usage":{rest}')
            case "chunk":
                return _chunk(rest[1:-1])
            case "begin":
                return self._event("message_start", {"message": _message(json.loads(rest))})
            case "open" | "piece":
                number, _, value = rest.partition(" ")
                kind, name = _BLOCK_EVENTS[word]
                return self._event(kind, {"index": int(number), name: json.loads(value)})
            case "close":
                return self._event("content_block_stop", {"index": int(rest)})
            case "stop":
                ending = {"delta": {"stop_sequence": None}, **json.loads(rest)}
                return self._event("message_delta", ending) + self._event("message_stop", {})
            case "created":
                return self._event("response.created", {"response": _response({})})
            case "ends":
                response = _response(json.loads(rest))
                return self._event(f"response.{response['status']}", {"response": response})
            case "event":
                fields = json.loads(rest)
                return self._event(fields.pop("type"), fields)
        raise CaseError(f"no line of a script begins with {word!r}")

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        event = {"type": kind, **fields}
        if self._sequence is not None:
            event = {"type": kind, "sequence_number": self._sequence, **fields}
            self._sequence += 1
        return f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()


_BLOCK_EVENTS = {
    "open": ("content_block_start", "content_block"),
    "piece": ("content_block_delta", "delta"),
}


def _chunk(fields: str) -> bytes:
    """A Chat chunk; its fields stay the text they are in the table, escapes and all."""
    usual = '"id":"chatcmpl-up","object":"chat.completion.chunk","created":1700000000'
    return f'data: {{{usual},"model":"mock",{fields}}}\n\n'.encode()


def _response(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "resp_up",
        "object": "response",
        "created_at": 1700000000,
        "model": "mock",
        "status": "in_progress",
        "output": [],
        **fields,
    }


def _message(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_up",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        **fields,
    }
