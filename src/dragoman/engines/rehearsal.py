"""The engine of a first run: it answers without a model, and says so.

What it plays depends on the request alone: it repeats what was said, counts when asked to count,
calls a tool that the question seems to be about, fills in a form where a schema is given, and
keeps to every limit it was set. It is no model and never pretends to be one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from msgspec.structs import replace

from dragoman.core.item import (
    CallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Message,
    Reasoning,
    Summary,
    Text,
    Thought,
    Token,
)
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
)
from dragoman.core.response import Response

from .filler import fill
from .mint import new_id, now
from .script import NAME, Script
from .words import Said, pieces, shortened, usage

PACE = 0.02
"""Seconds between two words: quick, and still to be seen."""
MOST_NUMBERS = 1_000
MOST_CALLS = 4
MOST_QUOTED = 500

_DISCLAIMER = "This is a rehearsal, not a model."
_ADVICE = "Put a model behind me with `dragoman serve --upstream URL`, and it will answer instead."
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNT = re.compile(
    rf"\bcount(?:\s+up)?(?:\s+from\s+\w+)?\s+to\s+(\d{{1,6}}|{'|'.join(_NUMBERS)})\b", re.IGNORECASE
)
_WORD = re.compile(r"[^\W_]+")
_CAPITAL = re.compile(r"(?<=[\w,:;] )[A-Z][\w'-]+(?: [A-Z][\w'-]+)*")
_COMMON = frozenset(
    _WORD.findall(
        "about also answer call called calls current does from function give given have help into "
        "like make need only please return returns some that them then there these this tool tools "
        "user using value values want what when where which will with would your"
    )
)
"""Words that say nothing about what a tool is for."""
_Offer = tuple[FunctionTool | CustomTool, str | None]


def rehearsal(pace: float = PACE) -> Script:
    """The script engine with this play; `pace` is in seconds a word."""
    return Script(rehearse, pace=pace)


def rehearse(request: Request) -> Response:
    """The answer to a request, as a function of that request (and a fresh id).

    >>> rehearse(Request(model="script", items=(Message("user", "count to 3"),))).text
    '1, 2, 3.'
    """
    id = new_id()
    output: list[Said] = []
    choices: list[int] = []
    reasons: list[str] = []
    for choice in range(request.sampling.n or 1):
        items, reason = _Take(request, choice).perform()
        reasons.append(reason)
        for item in items:
            output.append(_named(item, id, len(output)))
            choices.append(choice)
    return Response(
        id=id,
        created_at=now(),
        model=NAME,
        status="incomplete" if "length" in reasons else "completed",
        output=tuple(output),
        choices=tuple(choices) if len(reasons) > 1 else (),
        reasons=tuple(reasons),
        usage=usage(request, output),
    )


class _Take:
    """One alternative of the answer."""

    def __init__(self, request: Request, choice: int) -> None:
        self._request = request
        self._choice = choice
        self._said = _last_said(request)

    def perform(self) -> tuple[list[Said], str]:
        """The items, and why they end where they end."""
        calls = self._calls()
        items: list[Said] = [*self._thoughts(), *(calls or [self._message()])]
        kept, short = shortened(items, self._request.max_output_tokens)
        return kept, "length" if short else "tool_calls" if calls else "stop"

    def _thoughts(self) -> Iterator[Reasoning]:
        options = self._request.reasoning
        if options is None or options.effort in (None, "none"):
            return
        thought = f"There is nothing to think about in a rehearsal, {options.effort} effort or not."
        summary = () if options.summary is None else (Summary("Nothing was thought."),)
        yield Reasoning((Thought(thought),), summary, status="completed")

    def _message(self) -> Message:
        text = self._text()
        for stop in self._request.sampling.stop or ():
            text = text.partition(stop)[0] if stop else text
        return Message("assistant", (Text(text, tokens=self._tokens(text)),), status="completed")

    def _tokens(self, text: str) -> tuple[Token, ...]:
        """Each word with its probability, where that was asked: it could not have been another."""
        sampling = self._request.sampling
        if not sampling.logprobs:
            return ()
        words = [(word, word.encode("utf-8", "replace")) for word in pieces(text)]
        tokens = (Token(word, 0.0, raw) for word, raw in words)
        return tuple(replace(t, top=(t,)) if sampling.top_logprobs else t for t in tokens)

    def _text(self) -> str:
        match self._request.format:
            case JSONSchema(schema=schema):
                return json.dumps(fill(schema, self._subject()), ensure_ascii=False)
            case JSONObject():
                return json.dumps({"rehearsal": True, "said": self._said}, ensure_ascii=False)
        if count := _COUNT.search(self._said):
            named = count[1].lower()
            last = _NUMBERS.index(named) + 1 if named in _NUMBERS else int(named)
            return ", ".join(map(str, range(1, min(last, MOST_NUMBERS) + 1))) + "."
        take = f" (Take {self._choice + 1}.)" if self._choice else ""
        return f"{_DISCLAIMER}{take} {self._heard()} {_ADVICE}"

    def _heard(self) -> str:
        results = _results(self._request)
        if results:
            told = "; ".join(f"{name} returned {said}" for name, said in results)
            return f"The tools have answered: {told}."
        pictures = sum(
            isinstance(part, Image)
            for item in self._request.items
            if isinstance(item, Message)
            for part in item.parts
        )
        seen = f" I was shown {pictures} image(s) and cannot see." if pictures else ""
        said = self._said if len(self._said) <= MOST_QUOTED else self._said[:MOST_QUOTED] + "…"
        return (f"You said: “{said}”" if said else "You said nothing.") + seen

    def _subject(self) -> str:
        """What the question is about, by its capital letters: good enough to fill in a form."""
        names = _CAPITAL.findall(self._said)
        return names[-1] if names else "rehearsal"

    def _calls(self) -> list[Said]:
        request, offers = self._request, _offers(self._request)
        forced = False
        match request.tool_choice:
            case "none":
                return []
            case "required":
                forced = True
            case NamedTool() as named:
                offers, forced = [offer for offer in offers if _is(offer, named)], True
            case AllowedTools(mode=mode, tools=allowed):
                named_tools = [tool for tool in allowed if isinstance(tool, NamedTool)]
                offers = [o for o in offers if any(_is(o, named) for named in named_tools)]
                forced = mode == "required"
        asked = not _results(request) and not _COUNT.search(self._said)
        wanted = _wanted(self._said, offers) if asked else []
        chosen = wanted or (offers[:1] if forced else [])
        if request.parallel_tool_calls is False:
            chosen = chosen[:1]
        most = MOST_CALLS if request.max_tool_calls is None else request.max_tool_calls
        return [self._call(offer) for offer in chosen[: max(most, 0)]]

    def _call(self, offer: _Offer) -> Said:
        tool, namespace = offer
        if isinstance(tool, CustomTool):
            return CustomToolCall("", tool.name, self._subject(), namespace, status="completed")
        arguments = fill(tool.parameters or {"type": "object"}, self._subject())
        text = json.dumps(arguments, ensure_ascii=False)
        return FunctionCall("", tool.name, text, namespace, status="completed")


# ---- reading the request -----------------------------------------------------------------


def _last_said(request: Request) -> str:
    """The last thing the user said."""
    said = (item for item in reversed(request.items) if isinstance(item, Message))
    return next((item.text.strip() for item in said if item.role == "user"), "")


def _results(request: Request) -> list[tuple[str, str]]:
    """What tools have returned since the user last spoke, with their names."""
    names: dict[str, str] = {}
    results: list[tuple[str, str]] = []
    for item in request.items:
        match item:
            case Message(role="user"):
                results.clear()
            case FunctionCall() | CustomToolCall():
                names[item.call_id] = item.name
            case FunctionCallOutput() | CustomToolCallOutput():
                results.append((names.get(item.call_id, "a tool"), _output(item)))
    return results


def _output(item: CallOutput) -> str:
    if isinstance(item.output, str):
        return item.output
    return Message("assistant", item.output).text


def _offers(request: Request) -> list[_Offer]:
    """The tools that can be called, namespaces opened."""
    offers: list[_Offer] = []
    for tool in request.tools:
        match tool:
            case FunctionTool() | CustomTool():
                offers.append((tool, None))
            case Namespace():
                inside = (t for t in tool.tools if isinstance(t, FunctionTool | CustomTool))
                offers += ((each, tool.name) for each in inside)
    return offers


def _is(offer: _Offer, named: NamedTool) -> bool:
    tool, namespace = offer
    kind = "custom" if isinstance(tool, CustomTool) else "function"
    return (tool.name, kind) == (named.name, named.kind) and named.namespace in (None, namespace)


def _wanted(said: str, offers: list[_Offer]) -> list[_Offer]:
    """The tools a question seems to be about: those whose names or descriptions share a word.

    A question that speaks of tools gets the first.
    """
    words = _telling(said)
    by_name = [offer for offer in offers if words & _telling(offer[0].name)]
    told = [offer for offer in offers if words & _telling(offer[0].description or "")]
    if re.search(r"\b(?:tool|function)s?\b", said, re.IGNORECASE):
        told = told or offers
    return by_name or told[:1]


def _telling(text: str) -> set[str]:
    """The words of a text that tell what it is about."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text)
    return {word for word in _WORD.findall(spaced.lower()) if len(word) > 3} - _COMMON


def _named(item: Said, id: str, index: int) -> Said:
    match item:
        case Message():
            return replace(item, id=f"msg_{id}_{index}")
        case Reasoning():
            return replace(item, id=f"rs_{id}_{index}")
        case FunctionCall():
            return replace(item, id=f"fc_{id}_{index}", call_id=f"call_{id}_{index}")
        case CustomToolCall():
            return replace(item, id=f"ctc_{id}_{index}", call_id=f"call_{id}_{index}")
