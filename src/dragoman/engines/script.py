"""Plays given events, responses or text at a pace: for tests, docs and replays.

The demo, which answers a first run without a model and says so, is such a script.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import cycle
from typing import Any, get_args

from msgspec.structs import replace

from dragoman.core.error import cut
from dragoman.core.event import Delta, Event
from dragoman.core.fold import Fold, unfold
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.item import (
    JSON,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
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
    Request,
    Tool,
    UnknownTool,
)
from dragoman.core.response import Response, Usage
from dragoman.core.tools import ToolFilter, flat
from dragoman.formats.grammar.schema import find

from .base import enforce_contract, new_id, now

_WORD = re.compile(r"\s*\S+|\s+\Z")
MOST_READ = 100_000
"""Characters of a text whose words are looked at; of longer ones, the spaces are counted."""
_OF_WORDS = ("text", "refusal", "reasoning", "summary", "arguments", "input")


def words(text: str) -> list[str]:
    """A text in words.

    >>> words("one  two ")
    ['one', '  two', ' ']
    """
    return _WORD.findall(text)


def in_words(events: Iterable[Event]) -> Iterator[Event]:
    """The same events with every delta of text cut into words, or into its tokens where known."""
    for event in events:
        match event:
            case Delta(data=data, tokens=(_, _, *_) as tokens) if data == "".join(
                token.text for token in tokens
            ):
                for token in tokens:
                    yield replace(event, data=token.text, tokens=(token,))
            case Delta(kind=kind, data=str(text), tokens=()) if kind in _OF_WORDS and text:
                for word in _WORD.finditer(text):  # one by one: it may be long
                    yield replace(event, data=word[0])
            case _:
                yield event


def length(item: Item) -> int:
    """How many words an item has."""
    match item:
        case Message(text=text) | Reasoning(text=text):
            pass
        case FunctionCall(arguments=text) | CustomToolCall(input=text):
            pass
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            text = output if isinstance(output, str) else Message("user", output).text
        case _:
            return 0
    if len(text) > MOST_READ:
        return text.count(" ") + 1
    return len(text.split()) + text[-1:].isspace()  # as `words`, and faster


def shortened(items: Sequence[Item], limit: int | None) -> tuple[tuple[Item, ...], bool]:
    """As many words as the limit allows, and whether that cut anything off: the item it falls into
    is incomplete."""
    if limit is None or sum(map(length, items)) <= limit:
        return tuple(items), False
    so_far = Fold()
    whole = Response(id="", created_at=0, model="", status="completed", output=tuple(items))
    for event in in_words(unfold(whole)):
        if isinstance(event, Delta) and event.kind != "summary":
            if limit == 0:
                break
            limit -= 1
        so_far.feed(event)
    *before, last = so_far.response.output
    return (*before, replace(last, status="incomplete")), True


def usage(request: Request, output: Sequence[Item]) -> Usage:
    """Words counted: an honest number, if none that a model would give."""
    instructions = request.instructions
    if isinstance(instructions, str):
        instructions = (Message("system", instructions),)
    asked = sum(map(length, (*(instructions or ()), *request.items)))
    answered = sum(map(length, output))
    thought = sum(length(item) for item in output if isinstance(item, Reasoning))
    return Usage(asked, answered, asked + answered, reasoning_tokens=thought)


Cue = Event | float | Exception | Callable[[], Awaitable[object]]
"""What a take is made of: an event to give, seconds to wait, an exception to raise, or something
to wait for (the `wait` of an `asyncio.Event`)."""

Take = str | Response | Iterable[Cue]
"""What is played for one request: a text, a response, or cues."""

_CUES = (*get_args(Event), int, float, Exception)

NAME = "script"


class Script:
    """An engine that plays takes: one for each request, from the first again after the last.

    A single function instead of takes is asked what to play, with the request. `pace` is the
    number of seconds between two pieces of an answer; texts and responses are given in pieces of
    one word.

    >>> async def play():
    ...     return [event async for event in Script("Good day").stream(Request(model="script"))]
    >>> [event.data for event in asyncio.run(play()) if isinstance(event, Delta)]
    ['Good', ' day']
    """

    def __init__(
        self,
        *takes: Take | Callable[[Request], Take],
        pace: float = 0.0,
        name: str = NAME,
    ) -> None:
        if not takes:
            raise ValueError("a script needs something to play")
        for take in takes:
            if not callable(take):
                _checked(take)
        self.name = name
        self._takes = cycle(takes)
        self._pace = pace

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Play the next take."""
        return enforce_contract(self._play(request), self.name)

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The one model there is: this script."""
        return (Model(self.name, extra={"models": {"guarantees": ["best-effort"]}}),)

    async def capabilities(self, model: str) -> Capabilities:
        """A script takes anything."""
        return Capabilities(
            images=True, audio=True, tools=True, custom_tools=True, namespaces=True, choices=True
        )

    async def close(self) -> None:
        """Nothing to close."""

    async def _play(self, request: Request) -> AsyncGenerator[Event, None]:
        take = next(self._takes)
        if callable(take):
            take = _checked(take(request))
        if isinstance(take, str):
            take = spoken(take, self.name)
        for cue in in_words(unfold(take)) if isinstance(take, Response) else take:
            match cue:
                case int() | float():
                    await asyncio.sleep(cue)
                case Exception():
                    raise cue
                case Delta():
                    yield cue
                    await asyncio.sleep(self._pace / (request.sampling.n or 1))  # side by side
                case _ if callable(cue):
                    await cue()
                case _:
                    yield cue


def _checked(take: Take) -> Take:
    """The same take. Raises TypeError for what is none, if that is seen without playing it."""
    if isinstance(take, str | Response):
        return take
    if isinstance(take, bytes | Mapping) or not isinstance(take, Iterable):
        raise TypeError(
            f"a take is a text, a Response or a list of cues, not {type(take).__name__}"
        )
    for cue in take if isinstance(take, Sequence) else ():
        if not (isinstance(cue, _CUES) or callable(cue)):
            raise TypeError(
                "a cue is an event, seconds, an exception or a function to await, and not "
                f"{type(cue).__name__}; a text is a take by itself: Script('one', 'two')"
            )
    return take


def spoken(text: str, model: str = NAME) -> Response:
    """A response with this text and no more."""
    id = new_id()
    message = Message("assistant", (Text(text),), id=f"msg_{id}_0", status="completed")
    return Response(
        id=id,
        created_at=now(),
        model=model,
        status="completed",
        output=(message,),
        reasons=("stop",),
    )


# ---- the demo --------------------------------------------------------------------------------

PACE = 0.02
"""Seconds between two words: quick, and still to be seen."""
MOST_NUMBERS = 1_000
MOST_CALLS = 4
MOST_QUOTED = 500
MOST_RESULTS = 2_000

_DISCLAIMER = "This is a demo, not a model."
_ADVICE = "Put a model behind me with `dragoman serve --upstream URL`, and it will answer instead."
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNT = re.compile(
    rf"\bcount(?:\s+up)?(?:\s+from\s+\w+)?\s+to\s+(\d{{1,6}}|{'|'.join(_NUMBERS)})\b", re.IGNORECASE
)
_CAPITAL = re.compile(r"(?<=[\w,:;] )[A-Z][\w'-]+(?: [A-Z][\w'-]+)*")
_LETTERS = re.compile(r"[^\W_]+")
_COMMON = frozenset(
    _LETTERS.findall(
        "about also answer call called calls current does from function give given have help into "
        "like make need only please return returns some that them then there these this tool tools "
        "user using value values want what when where which will with would your"
    )
)
"""Words that say nothing about what a tool is for."""
_PREFIXES = {Message: "msg", Reasoning: "rs", FunctionCall: "fc", CustomToolCall: "ctc"}
_Answer = Message | Reasoning | FunctionCall | CustomToolCall


def demo(pace: float = PACE) -> Script:
    """A script that answers every request by itself; `pace` is in seconds a word."""
    return Script(demo_answer, pace=pace)


def demo_answer(request: Request) -> Response:
    """The answer to a request, as a function of that request (and a fresh id).

    >>> demo_answer(Request(model="script", items=(Message("user", "count to 3"),))).text
    '1, 2, 3.'
    """
    id = new_id()
    output: list[Item] = []
    choices: list[int] = []
    reasons: list[str] = []
    messages = (item for item in reversed(request.items) if isinstance(item, Message))
    asked = next((item.text for item in messages if item.role == "user"), "")
    question = asked[:MOST_READ].strip()
    calls = _calls(request, question)
    thoughts: list[_Answer] = []
    if (options := request.reasoning) is not None and options.effort not in (None, "none"):
        thought = f"There is nothing to think about in a demo, {options.effort} effort or not."
        summary = () if options.summary is None else (Summary("Nothing was thought."),)
        thoughts = [Reasoning((Thought(thought),), summary, status="completed")]
    text = "" if calls else _text(request, question)
    for choice in range(request.sampling.n or 1):
        if not choice or text.startswith(_DISCLAIMER):  # or all are the same
            take = f"{_DISCLAIMER} (Take {choice + 1}.)" if choice else _DISCLAIMER
            items = thoughts + (calls or [_message(request, text.replace(_DISCLAIMER, take, 1))])
            whole, short = shortened(items, request.max_output_tokens)
        reasons.append("length" if short else "tool_calls" if calls else "stop")
        for item in whole:
            number = f"{id}_{len(output)}"
            ids = {"id": f"{_PREFIXES[type(item)]}_{number}"}
            if isinstance(item, FunctionCall | CustomToolCall):
                ids["call_id"] = f"call_{number}"
            output.append(replace(item, **ids))
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


def _message(request: Request, text: str) -> Message:
    sampling = request.sampling
    for stop in sampling.stop or ():
        text = text.partition(stop)[0] if stop else text
    tokens: tuple[Token, ...] = ()
    if sampling.logprobs:  # of each word: it could not have been another
        tokens = tuple(Token(w, 0.0, w.encode("utf-8", "replace")) for w in words(text))
        if sampling.top_logprobs:
            tokens = tuple(replace(token, top=(token,)) for token in tokens)
    return Message("assistant", (Text(text, tokens=tokens),), status="completed")


def _text(request: Request, question: str) -> str:
    match request.format:
        case JSONSchema(schema=schema):
            return json.dumps(fill(schema, _subject(question)), ensure_ascii=False)
        case JSONObject():
            asked = {"demo": True, "question": cut(question, MOST_QUOTED)}
            return json.dumps(asked, ensure_ascii=False)
    if count := _COUNT.search(question):
        named = count[1].lower()
        last = _NUMBERS.index(named) + 1 if named in _NUMBERS else int(named)
        return ", ".join(map(str, range(1, min(last, MOST_NUMBERS) + 1))) + "."
    if results := _results(request):
        about = f"The tools have answered: {cut('; '.join(results), MOST_RESULTS)}."
    else:
        shown = (i.parts for i in request.items if isinstance(i, Message))
        pictures = sum(isinstance(part, Image) for parts in shown for part in parts)
        quote = cut(question, MOST_QUOTED)
        about = f"You said: “{quote}”" if question else "You said nothing."
        about += f" I was shown {pictures} image(s) and cannot see." if pictures else ""
    return f"{_DISCLAIMER} {about} {_ADVICE}"


def _results(request: Request) -> list[str]:
    """What tools have returned since the user's last message."""
    names: dict[str, str] = {}
    results: list[str] = []
    for item in request.items:
        match item:
            case Message(role="user"):
                results.clear()
            case FunctionCall() | CustomToolCall():
                names[item.call_id] = item.name
            case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
                text = output if isinstance(output, str) else Message("assistant", output).text
                named = names.get(item.call_id, "a tool")
                results.append(f"{named} returned {cut(text, MOST_RESULTS)}")
    return results


def _subject(question: str) -> str:
    """What a question is about, by its capital letters: good enough to fill in a form."""
    names = _CAPITAL.findall(question)
    return cut(names[-1], MOST_QUOTED) if names else "example"


def _calls(request: Request, question: str) -> list[_Answer]:
    tools: Iterable[Tool] = request.tools
    forced = False
    match request.tool_choice:
        case "none":
            return []
        case "required":
            forced = True
        case NamedTool() | AllowedTools() as choice:
            if isinstance(choice, NamedTool):
                choice = AllowedTools("required", (choice,))
            forced = choice.mode == "required"
            tools = [tool for _, tool in ToolFilter(choice, request.tools).tools]
    offers = [(space, tool) for space, tool in flat(tools) if not isinstance(tool, UnknownTool)]
    chosen = offers[:1] if forced else []
    if not _results(request) and not _COUNT.search(question):
        chosen = _wanted(question, offers) or chosen
    most = MOST_CALLS if request.max_tool_calls is None else max(request.max_tool_calls, 0)
    if request.parallel_tool_calls is False:
        most = min(most, 1)
    subject = _subject(question)
    calls: list[_Answer] = []
    for space, tool in chosen[:most]:
        if isinstance(tool, CustomTool):
            calls.append(CustomToolCall("", tool.name, subject, space, status="completed"))
        else:
            arguments = fill(tool.parameters or {"type": "object"}, subject)
            text = json.dumps(arguments, ensure_ascii=False)
            calls.append(FunctionCall("", tool.name, text, space, status="completed"))
    return calls


_Offer = tuple[str | None, FunctionTool | CustomTool]


def _wanted(question: str, offers: list[_Offer]) -> list[_Offer]:
    """The tools whose names share a word with a question, or else the first whose description does;
    of a question that speaks of tools, the first."""
    asked = _topics(question)
    by_name = [offer for offer in offers if asked & _topics(offer[1].name)]
    described = [offer for offer in offers if asked & _topics(offer[1].description or "")]
    if re.search(r"\b(?:tool|function)s?\b", question, re.IGNORECASE):
        described = described or offers
    return by_name or described[:1]


def _topics(text: str) -> set[str]:
    """The words of a text that say what it is about."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text).lower()
    return {word for word in _LETTERS.findall(spaced) if len(word) > 3} - _COMMON


# ---- example values --------------------------------------------------------------------------

_DEEP = 6
"""The depth from which only what is required is filled in, so that recursive schemas end."""
_DEEPEST = 40
_MOST = 2_000
"""Values made for one schema at the most."""
_LARGEST = 1e15
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_TYPES = (
    dict.fromkeys(("properties", "required", "additionalProperties"), "object")
    | dict.fromkeys(("items", "prefixItems", "minItems"), "array")
    | dict.fromkeys(("minLength", "maxLength", "format"), "string")
    | dict.fromkeys(("minimum", "maximum"), "number")
)
"""The type of a schema that names none, by its keywords."""


def fill(schema: JSON, text: str = "example") -> JSON:
    """A value that fits `schema`; `text` is what free text says.

    >>> fill({"type": "object", "properties": {"city": {"type": "string"}, "days": {"minimum": 3}}})
    {'city': 'example', 'days': 3}
    """
    return _Filler(schema, text).value(schema, 0)


class _Filler:
    """One schema being filled in: what its references point into, and what free text says."""

    def __init__(self, root: JSON, text: str) -> None:
        self._root = root
        self._text = text
        self._left = _MOST

    def value(self, schema: JSON, depth: int) -> JSON:
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            return None
        deep = depth > _DEEP
        schema = self._resolved(schema, deep)
        for keyword in ("const", "default"):
            if keyword in schema:
                return self._given(schema[keyword])
        for keyword in ("enum", "examples"):
            if values := _list(schema, keyword):
                return self._given(values[0])
        match _type(schema):
            case "object":
                properties = schema.get("properties")
                properties = properties if isinstance(properties, Mapping) else {}
                names = [name for name in _list(schema, "required") if isinstance(name, str)]
                names = names if deep else [*properties, *names]
                return {n: self.value(properties.get(n), depth + 1) for n in dict.fromkeys(names)}
            case "array":
                filled = [self.value(item, depth + 1) for item in _list(schema, "prefixItems")]
                low = max(_bound(schema, "minItems", 0), 0 if deep else 1)
                count = int(min(low, _bound(schema, "maxItems", low), 100)) - len(filled)
                return filled + [self.value(schema.get("items"), depth + 1) for _ in range(count)]
            case "string":
                text = _FORMATS.get(str(schema.get("format")), self._text)
                low = min(_bound(schema, "minLength", 0), 10_000)
                text = text.ljust(int(low), ".")
                return self._given(text[: int(max(low, _bound(schema, "maxLength", len(text))))])
            case "integer" | "number" as kind:
                return _number(schema, whole=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return self._text

    def _given(self, value: JSON) -> JSON:
        """A value of the schema, which counts by its size: it may be large, and be there often."""
        waiting = [value]
        while waiting and self._left >= 0:
            self._left -= 1
            match waiting.pop():
                case str() as text:
                    self._left -= len(text) // 100
                case list() as values:
                    waiting += values
                case dict() as fields:
                    waiting += (*fields, *fields.values())
        return value if self._left >= 0 else None

    def _resolved(self, schema: JSON, deep: bool) -> dict[str, Any]:
        """The schema with its reference followed, its alternatives chosen, its parts merged."""
        merged: dict[str, Any] = {}
        queue = [schema]
        for _ in range(_DEEPEST):
            part = queue.pop() if queue else None
            if not isinstance(part, Mapping):
                continue
            for keyword, value in part.items():
                match keyword, merged.get(keyword), value:
                    case "properties", {**own}, {**other}:
                        merged[keyword] = {**other, **own}
                    case "required", [*own], [*other]:
                        merged[keyword] = [*own, *other]
                    case _:
                        merged.setdefault(keyword, value)
            if "$ref" in part:  # where it points nowhere, anything at all fits
                queue.append(find(self._root, part["$ref"]))
            queue += _list(part, "allOf")
            for keyword in ("anyOf", "oneOf"):
                if choices := _list(part, keyword):
                    flat = [c for c in choices if deep and isinstance(c, Mapping)]
                    flat = [c for c in flat if _type(c) not in ("object", "array", None)]
                    queue.append((flat or choices)[0])
        return merged


def _type(schema: Mapping[str, Any]) -> str | None:
    """The type to make, where the schema names one or its keywords give it away."""
    named = schema.get("type")
    if isinstance(named, list):
        named = next((name for name in named if name != "null"), "null")
    if isinstance(named, str):
        return named
    return next((_TYPES[keyword] for keyword in schema if keyword in _TYPES), None)


def _number(schema: dict[str, Any], *, whole: bool) -> float:
    """The smallest number the bounds allow, or 1."""
    step = max(_bound(schema, "multipleOf", 1), 1e-6)
    whole_steps = whole or "multipleOf" in schema
    inside = step if whole_steps else step / 2
    low = max(
        _bound(schema, "minimum", -_LARGEST),
        _bound(schema, "exclusiveMinimum", -2 * _LARGEST) + inside,
    )
    high = min(
        _bound(schema, "maximum", _LARGEST),
        _bound(schema, "exclusiveMaximum", 2 * _LARGEST) - inside,
    )
    number = min(max(step, low), high)
    if whole_steps:
        number = math.floor(number / step) * step
        number = number if number >= low else number + step
    return int(number) if whole else number


def _bound(schema: Mapping[str, Any], keyword: str, otherwise: float) -> float:
    """A number of a schema, if it is one that can be counted with."""
    value: Any = schema.get(keyword)
    return value if type(value) in (int, float) and abs(value) <= _LARGEST else otherwise


def _list(schema: Mapping[str, Any], keyword: str) -> list[JSON]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
