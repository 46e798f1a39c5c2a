"""Canonical requests and answers of the completions wire, for Hypothesis."""

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.item import Message, Text, Token
from dragoman.core.request import Completion, Sampling, StreamOptions
from dragoman.core.response import Response, Usage
from tests.strategies import count, text, word

some = text.filter(bool)
names = word.map("x_{}".format)
fields = st.dictionaries(names, st.integers(1, 9) | some, min_size=1, max_size=2)
extra = st.none() | st.fixed_dictionaries({"completions": fields})
unit = st.floats(0, 1, allow_nan=False)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


samplings = st.builds(
    Sampling,
    temperature=maybe(unit),
    top_p=maybe(unit),
    top_k=maybe(st.integers(-1, 99)),
    min_p=maybe(unit),
    frequency_penalty=maybe(unit),
    presence_penalty=maybe(unit),
    repetition_penalty=maybe(unit),
    seed=maybe(count),
    stop=maybe(st.lists(text.filter(bool), min_size=1, max_size=2).map(tuple)),
    logit_bias=maybe(st.dictionaries(word, unit, max_size=2)),
    n=maybe(st.integers(1, 5)),
)
ids = st.lists(count, min_size=1, max_size=4).map(tuple)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    """Any canonical request."""
    sampling = draw(samplings)
    if (top := draw(maybe(st.integers(0, 5)))) is not None:
        sampling = replace(sampling, logprobs=True, top_logprobs=top)
    stream, echo = draw(st.booleans()), draw(st.booleans())
    options = st.builds(StreamOptions, maybe(st.booleans()), maybe(st.booleans()), extra)
    chosen = draw(maybe(options)) if stream else None
    return Completion(
        prompts=tuple(draw(st.lists(text | ids, min_size=1, max_size=3))),
        echo=echo,
        model=draw(some),
        sampling=sampling,
        max_output_tokens=draw(maybe(st.integers(0 if echo else 1, 99))),
        stream=stream,
        stream_options=None if chosen == StreamOptions() else chosen,
        user=draw(maybe(some)),
        extra=draw(extra),
    )


@st.composite
def token_lists(draw: st.DrawFn) -> tuple[Token, ...]:
    """Tokens as the protocol can say them: alternatives are a map, bytes only of no character."""
    values = st.none() | st.floats(-20, 0)
    halves = st.sampled_from([Token("�", -1.5, b"\xe2"), Token("��", None, b"\x9f\x98")])
    plain = st.builds(Token, some.filter(lambda each: not each.startswith("bytes:")), values)
    found = draw(st.lists(plain | halves, max_size=3))
    tops = st.lists(plain, max_size=2, unique_by=lambda each: each.text).map(tuple)
    return tuple(
        replace(each, top=tuple(t for t in draw(tops) if _apart(t, each))) for each in found
    )


usages = st.builds(
    Usage,
    input_tokens=count,
    output_tokens=count,
    total_tokens=count,
    cached_tokens=maybe(count),
    cache_write_tokens=maybe(count),
    reasoning_tokens=maybe(count),
    extra=extra,
)


@st.composite
def responses(draw: st.DrawFn) -> Response:
    """Any canonical answer."""
    id, reasons = (
        draw(word),
        draw(
            st.lists(st.sampled_from(["stop", "length", "content_filter"]), min_size=1, max_size=3)
        ),
    )
    output = []
    for number, reason in enumerate(reasons):
        weighed = draw(token_lists())
        said = "".join(token.text for token in weighed) or draw(some)
        status = "completed" if reason == "stop" else "incomplete"
        part = Text(said, tokens=weighed)
        output.append(Message("assistant", (part,), id=f"msg_{id}_{number}", status=status))
    late = [{"index": number, **draw(fields)} for number in range(len(reasons))]
    beside = draw(maybe(fields)) or {}
    beside |= {"choices": late} if draw(st.booleans()) else {}
    return Response(
        id=id,
        created_at=draw(count),
        model=draw(some),
        status="completed" if set(reasons) == {"stop"} else "incomplete",
        output=tuple(output),
        choices=tuple(range(len(reasons))) if len(reasons) > 1 else (),
        reasons=tuple(reasons),
        usage=draw(maybe(usages)),
        extra={"completions": beside} if beside else None,
    )


def _apart(one: Token, chosen: Token) -> bool:
    """Whether an alternative can stand beside the chosen token: the wire knows both by their text
    alone, and takes the probability of one for that of the other."""
    return one.logprob is not None and one != chosen and one.text != chosen.text
