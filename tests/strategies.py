"""Canonical values of the core, for Hypothesis: whole answers as an engine would give them.

Canonical means: every item has an id, an item that is done says so, content is a tuple of parts,
and nothing is given in two ways. Wires narrow these to what they can say.
"""

from base64 import b64encode

from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.item import (
    Annotation,
    Audio,
    CustomToolCall,
    FunctionCall,
    Image,
    Item,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import Loss
from dragoman.core.response import Response, Usage

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
word = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
count = st.integers(0, 1 << 40)
json = st.recursive(
    st.booleans() | st.integers(-(1 << 40), 1 << 40) | text,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(word, inside, max_size=3),
    max_leaves=5,
)
extra = st.none() | st.dictionaries(
    st.sampled_from(["chat", "responses"]),
    st.dictionaries(word, json, min_size=1, max_size=2),
    min_size=1,
)

single_token = st.builds(
    Token, text, st.none() | st.floats(-20, 0), st.none() | st.binary(max_size=4)
)
tokens = st.lists(
    st.builds(replace, single_token, top=st.lists(single_token, max_size=2).map(tuple)), max_size=3
).map(tuple)
annotation = st.builds(
    Annotation, st.just("url_citation"), count, count, url=text, title=text, extra=extra
)
base64 = st.binary(min_size=1, max_size=9).map(lambda raw: b64encode(raw).decode())
texts = st.builds(Text, text, st.lists(annotation, max_size=2).map(tuple), tokens, extra)
refusals = st.builds(Refusal, text, tokens, extra)
thoughts = st.builds(Thought, text, tokens, extra)
summaries = st.builds(Summary, text, extra)
audios = st.builds(
    Audio,
    st.none() | base64,
    st.none() | word,
    st.none() | text.filter(bool),
    st.none() | word,
    st.none() | count,
    extra,
)
unknown_parts = st.builds(UnknownPart, word, st.dictionaries(word, json, max_size=2))
images = st.builds(Image, text, detail=st.none() | word, extra=extra)
spoken_parts = texts | refusals | audios | images | unknown_parts

_done = st.sampled_from(["completed", "incomplete"])
messages = st.builds(
    Message,
    st.just("assistant"),
    st.lists(spoken_parts, max_size=3).map(tuple),
    status=_done,
    phase=st.none() | word,
    extra=extra,
)
reasonings = st.builds(
    Reasoning,
    st.lists(thoughts | unknown_parts, max_size=2).map(tuple),
    st.lists(summaries, max_size=2).map(tuple),
    st.none() | text,
    status=_done,
    extra=extra,
)
function_calls = st.builds(
    FunctionCall, word, word, text.filter(bool), st.none() | word, status=_done, extra=extra
)
custom_calls = st.builds(
    CustomToolCall, word, word, text, st.none() | word, status=_done, extra=extra
)
unknowns = st.builds(Unknown, word, word, st.dictionaries(word, json, max_size=2))
items = messages | reasonings | function_calls | custom_calls | unknowns

usages = st.builds(Usage, *[st.none() | count] * 13, extra)
losses = st.builds(Loss, word, st.sampled_from(["emulated", "dropped"]), text)
faults = st.builds(
    Fault, st.sampled_from(["upstream_error", "upstream_cut", "internal"]), text, status=st.none()
)
reasons = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])


def _opened(item: Item) -> Item:
    """The item as it is while the answer is still going on: not done, not sealed."""
    match item:
        case Reasoning():
            return replace(item, status="in_progress", encrypted=None)
        case Unknown():
            return item
        case _:
            return replace(item, status="in_progress")


@st.composite
def responses(draw: st.DrawFn) -> Response:
    """Any canonical answer: finished, cut short, failed with items open, or of many choices."""
    status = draw(st.sampled_from(["completed", "incomplete", "failed"]))
    output = [
        replace(item, id=f"item_{number}")
        for number, item in enumerate(draw(st.lists(items, max_size=4)))
    ]
    if status == "failed" and output and draw(st.booleans()):
        output[-1] = _opened(output[-1])
    choices = tuple(draw(st.integers(0, 2)) for _ in output)
    return Response(
        id=draw(word),
        created_at=draw(count),
        model=draw(word),
        status=status,
        output=tuple(output),
        choices=choices if any(choices) else (),
        reasons=()
        if status == "failed"
        else tuple(draw(st.lists(reasons, min_size=1, max_size=3))),
        usage=draw(st.none() | usages),
        error=draw(faults) if status == "failed" else None,
        completed_at=draw(st.none() | count),
        losses=tuple(draw(st.lists(losses, max_size=2))),
        extra=draw(extra),
    )
