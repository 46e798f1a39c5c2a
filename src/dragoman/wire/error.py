"""Encodes faults as HTTP statuses and error objects, and decodes errors of other servers.

The error object is the one OpenAI's protocols share. Whether a refused key was the client's or ours
is decided by the engine that sent it.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import CUT, TOO_LONG, Blame, Code, Fault, exceeds_context, quoted
from dragoman.core.item import JSON

from . import json

SHOWN = 1000
"""Characters of an unstructured body that are quoted."""
MAX_EXTRA = 16 * 1024
"""Bytes of an error's extra fields; beyond that they are left out."""

CORRUPT = Fault(
    "upstream_error",
    "The model's server sent a piece of the answer that is not valid JSON, so that the rest would "
    "have a gap. Ask again.",
    "upstream",
)
"""The fault for an answer with an undecodable piece."""

_HTML = re.compile(r"<(?:!doctype|html|head|body)\b", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


class _Row(Struct, frozen=True):
    status: int
    type: str
    code: str | None


_INVALID, _SERVER = "invalid_request_error", "server_error"

TABLE: dict[Code, _Row] = {
    "invalid_request": _Row(400, _INVALID, None),
    "unsupported": _Row(400, _INVALID, "unsupported_parameter"),
    "authentication": _Row(401, "authentication_error", "invalid_api_key"),
    "permission": _Row(403, "permission_error", None),
    "not_found": _Row(404, _INVALID, "not_found"),
    "model_not_found": _Row(404, _INVALID, "model_not_found"),
    "previous_response_not_found": _Row(400, _INVALID, "previous_response_not_found"),
    "method_not_allowed": _Row(405, _INVALID, "method_not_allowed"),
    "upgrade_required": _Row(426, _INVALID, "upgrade_required"),
    "connection_limit": _Row(400, _INVALID, "websocket_connection_limit_reached"),
    "active_response": _Row(409, _INVALID, "conversation_already_has_active_response"),
    "not_active": _Row(400, _INVALID, "response_cancel_not_active"),
    "item_exists": _Row(400, _INVALID, "item_create_duplicate_item_id"),
    "item_not_found": _Row(404, _INVALID, "item_retrieve_invalid_item_id"),
    "empty_buffer": _Row(400, _INVALID, "input_audio_buffer_commit_empty"),
    "session_expired": _Row(400, _INVALID, "session_expired"),
    "unsupported_media_type": _Row(415, _INVALID, "unsupported_media_type"),
    "too_large": _Row(413, _INVALID, "request_too_large"),
    "rate_limited": _Row(429, "rate_limit_error", "rate_limit_exceeded"),
    "overloaded": _Row(503, _SERVER, "overloaded"),
    "upstream_error": _Row(502, _SERVER, "upstream_error"),
    "upstream_refused": _Row(502, _SERVER, "upstream_refused"),
    "upstream_authentication": _Row(502, _SERVER, "upstream_authentication"),
    "upstream_unreachable": _Row(502, _SERVER, "upstream_unreachable"),
    "upstream_timeout": _Row(504, _SERVER, "upstream_timeout"),
    "upstream_cut": _Row(502, _SERVER, "upstream_cut"),
    "stalled": _Row(408, _INVALID, "stalled"),
    "cancelled": _Row(499, _INVALID, "cancelled"),
    "shutting_down": _Row(503, _SERVER, "shutting_down"),
    "store_unavailable": _Row(503, _SERVER, "store_unavailable"),
    "internal": _Row(500, _SERVER, "internal_error"),
}
"""The HTTP status of each fault."""

_BY_STATUS: dict[int, Code] = {
    401: "authentication",
    403: "permission",
    404: "not_found",
    413: "too_large",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}
"""The fault for an upstream's status, where there is no code."""

_STATUS_OF_TYPE = {"overloaded_error": 529}
"""The status of an error type, for errors in a stream that began with 200."""


BROKEN_OFF = frozenset(
    {
        *("abort", "error", "insufficient_system_resource", "network_error"),
        # Gemini's, for calls that it could not read
        *("function_call_filter", "malformed_function_call", "unexpected_tool_call"),
    }
)
"""The finish reasons of answers that their server broke off."""
MAX_GARBLED = 1_000
"""The most events, or lines of them, that are no JSON object, of an answer."""
LONGEST = 128 * 1024
"""Bytes of an error body that are read."""


def is_corrupt(data: bytes) -> bool:
    """Whether an invalid event looks like an object: a piece of the answer."""
    return data.lstrip().startswith(b"{")


# ---- encoding -----------------------------------------------------------------------------


def status(fault: Fault) -> int:
    """The HTTP status of a fault. An upstream's own status is kept."""
    return _named(fault) or TABLE[fault.code].status


def error_object(fault: Fault) -> dict[str, JSON]:
    """The error object: message, type, param and code, and the upstream's extra fields.

    >>> error_object(Fault("model_not_found", "There is no model m.", "client", "model"))["code"]
    'model_not_found'
    """
    row = _row(fault)
    return {
        "message": fault.message,
        "type": fault.upstream_type or row.type,
        "param": fault.param,
        "code": fault.upstream_code or row.code,
        **(fault.extra or {}).get("error", {}),
    }


def encode(fault: Fault) -> bytes:
    """The body of an error response."""
    return json.dump({"error": error_object(fault)})


def encode_error(fault: Fault, request_id: str) -> tuple[int, bytes]:
    """The status and the body of an error response. The request id is not in the body, but
    in a header."""
    return status(fault), encode(fault)


def _named(fault: Fault) -> int | None:
    """The upstream's status, where it is to be sent."""
    shown = fault.code in ("upstream_refused", "upstream_error")
    return fault.status if shown and fault.status and 400 <= fault.status <= 599 else None


def _row(fault: Fault) -> _Row:
    named = _named(fault)
    if named is None:
        return TABLE[fault.code]
    if code := _BY_STATUS.get(named):
        return TABLE[code]
    return _Row(named, _INVALID if named < 500 else _SERVER, None)


# ---- decoding -----------------------------------------------------------------------------


def decode(status: int, data: bytes, retry_after: str | None = None) -> Fault:
    """The fault for an upstream's error response, whatever the shape of its body.

    `retry_after` is that header's value. The fault is `upstream_refused`, with
    the status; or `upstream_error`, where the status is none of an error.

    >>> decode(404, b'{"error": "model m not found"}').message
    'model m not found'
    """
    try:
        value = json.load(data)
    except ValueError:
        value = None
    fault = describe(value, status)
    if fault is None:
        text = value if isinstance(value, str) else data.decode("utf-8", "replace")
        fault = _fault(f"The model's server answered {status}{_quoted(text)}", status)
    return replace(fault, retry_after=retry_after)


_CODE_OF_TYPE = {"exceed_context_size_error": TOO_LONG}
"""Codes that clients know, by the types that llama.cpp sends instead."""


def broken_off(reason: JSON) -> Fault:
    """The fault for a finish reason of `BROKEN_OFF`."""
    why = f"The model's server broke the answer off, with the finish reason {quoted(str(reason))}."
    return Fault("upstream_error", why, "upstream")


def unreadable(problem: ValueError) -> Fault:
    """The fault for a body that should be JSON, and has this problem."""
    if "truncated" in str(problem):
        return CUT
    message = f"The model's server answered with a body that {problem}."
    return Fault("upstream_error", message, "upstream")


def describe(value: JSON, status: int | None = None) -> Fault | None:
    """The fault in a decoded body or event; None where there is none.

    `status` is that of the response. Without it, for an error in a stream, a
    status in the object is used.
    """
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    fields: dict[str, JSON] = error if isinstance(error, dict) else value
    message, param = _explanation(fields)
    if message is None and not error:
        return None
    code, kind, given = fields.get("code"), fields.get("type"), fields.get("param")
    if status is None:
        named = (code, fields.get("status"), fields.get("status_code"))
        usual = _STATUS_OF_TYPE.get(kind) if isinstance(kind, str) else None
        status = next((n for n in map(_number, named) if n is not None), usual)
    if type(code) is int:  # usually a status, and then no code
        code = None if 100 <= code <= 599 else str(code)
    known = ("message", "type", "param", "code", "error", "detail", "object")
    rest = {name: v for name, v in fields.items() if name not in known and v is not None}
    small = rest and len(json.dump(rest)) <= MAX_EXTRA
    fault = _fault(
        message or "The model's server reported an error and did not explain it.", status
    )
    uncoded = not isinstance(code, str) or code == kind or code.isdigit()
    if uncoded and (status is None or fault.blame == "client") and exceeds_context(fault.message):
        code = TOO_LONG  # most servers have no code for it, and clients compact by it
    if code == TOO_LONG and status is None:  # in a stream; clients retry the error of a server
        fault = _fault(fault.message, 400)
    return replace(
        fault,
        param=given if isinstance(given, str) else param,
        upstream_code=code if isinstance(code, str) else _CODE_OF_TYPE.get(str(kind)),
        upstream_type=kind if isinstance(kind, str) else None,
        extra={"error": rest} if small and fields is error else None,
    )


def _number(value: JSON) -> int | None:
    """The status of an error in a value, which LiteLLM has as a text."""
    if isinstance(value, str) and re.fullmatch("[45][0-9]{2}", value):
        return int(value)
    return value if type(value) is int and 400 <= value <= 599 else None


def _fault(message: str, status: int | None) -> Fault:
    if status is None or not 400 <= status <= 599:
        return Fault("upstream_error", message, "upstream")
    asked_wrongly = status < 500 and status not in (401, 403, 407, 408, 429)
    blame: Blame = "client" if asked_wrongly else "upstream"
    return Fault("upstream_refused", message, blame, status=status)


def _explanation(fields: JSON) -> tuple[str | None, str | None]:
    """The message of an error object, and the path of its field."""
    match fields:
        case str() if fields.strip():
            return (
                "The model's server answered with a web page." if _HTML.search(fields) else fields
            ), None
        case {"msg": str(problem), "loc": [_, *path]}:
            param = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")
            return f"{param}: {problem}" if param else problem, param or None
        case dict():
            for name in ("message", "detail", "error"):
                if (found := _explanation(fields.get(name)))[0] is not None:
                    return found
        case list():
            all_found = [_explanation(each) for each in fields]
            text = [words for words, _ in all_found if words is not None]
            return ("; ".join(text), all_found[0][1]) if text else (None, None)
    return None, None


def _quoted(text: str) -> str:
    text = _CONTROL.sub(" ", text).strip()
    if not text:
        return " with no explanation."
    if text.startswith("<") or _HTML.search(text):
        return " with a web page instead of an answer of its API."
    return f": {text[:SHOWN]}"
