"""Canonical answers, narrowed to what the Responses protocol can say.

Nothing but what the protocol has no words for is taken away: alternatives, sound, probabilities
of refusals and thoughts, counts by kind of content, and fields of other wires.
"""

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.item import (
    Annotation,
    Audio,
    CustomToolCall,
    Extra,
    FunctionCall,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    Unknown,
    UnknownPart,
)
from dragoman.core.response import Response, Usage
from tests import strategies as values


@st.composite
def responses(draw: st.DrawFn) -> Response:
    """Any answer that can be said on this wire and heard again as it was."""
    response = draw(values.responses())
    output = tuple(_item(item, number) for number, item in enumerate(response.output))
    called = any(isinstance(item, FunctionCall | CustomToolCall) for item in output)
    match response.status:
        case "completed":
            reasons: tuple[str, ...] = ("tool_calls" if called else "stop",)
        case "incomplete":
            reasons = (draw(st.sampled_from(["length", "content_filter", "max_messages"])),)
        case _:
            reasons = ()
    failed = response.status == "failed"
    return replace(
        response,
        output=output,
        choices=(),
        reasons=reasons,
        usage=draw(st.none() | _usages),
        error=draw(_faults) if failed else None,
        completed_at=draw(values.count) if response.status == "completed" else None,
        losses=(),
        extra=_own(response.extra),
    )


_usages = st.builds(
    Usage,
    *[values.count] * 6,
    extra=st.sampled_from([None, {"responses": {"input_tokens_details": {"x_seen": 1}}}]),
)
_faults = st.builds(
    Fault,
    st.just("upstream_error"),
    st.text("abc ", min_size=1).filter(str.strip),
    st.just("upstream"),
    st.none() | values.word,
    upstream_code=st.sampled_from(["server_error", "rate_limit_exceeded"]),
    upstream_type=st.sampled_from(["server_error", "vendor_error"]),
)


def _own(extra: Extra | None) -> Extra | None:
    """Fields of this wire, under names that are none of the protocol's."""
    fields = (extra or {}).get("responses")
    return {"responses": {f"x_{name}": value for name, value in fields.items()}} if fields else None


def _item(item: Item, number: int) -> Item:
    match item:
        case Message():
            content = tuple(_part(part) for part in item.parts if not isinstance(part, Audio))
            return replace(item, content=content, extra=_own(item.extra))
        case Reasoning():
            content = tuple(_part(part) for part in item.content)
            summary = tuple(_part(part) for part in item.summary)
            return replace(item, content=content, summary=summary, extra=_own(item.extra))
        case FunctionCall():
            said = item.arguments.strip() or "{}"
            return replace(item, arguments=said, call_id=f"call_{number}", extra=_own(item.extra))
        case CustomToolCall():
            return replace(item, call_id=f"call_{number}", extra=_own(item.extra))
        case Unknown():
            value = {**item.value, "id": item.id}
            return Unknown("responses", f"x_{item.kind}", value, item.id)
        case _:
            return item


def _part(part: Part) -> Any:
    match part:
        case Text():
            notes = tuple(_note(note) for note in part.annotations)
            tokens = tuple(_token(token) for token in part.tokens)
            return replace(part, annotations=notes, tokens=tokens, extra=_own(part.extra))
        case Refusal() | Thought():
            return replace(part, tokens=(), extra=_own(part.extra))
        case UnknownPart():
            return UnknownPart("responses", {**part.value, "type": f"x_{part.wire}"})
        case Summary():
            return replace(part, extra=_own(part.extra))
        case _:
            return replace(part, extra=_own(part.extra))


def _note(note: Annotation) -> Annotation:
    return replace(note, extra=_own(note.extra))


def _token(token: Token) -> Token:
    top = tuple(_token(other) for other in token.top)
    return replace(token, logprob=token.logprob or -1.0, bytes=token.bytes or b"?", top=top)
