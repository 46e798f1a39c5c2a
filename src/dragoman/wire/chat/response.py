"""Encodes answers as Chat completions, streamed and whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dragoman.core.event import (
    Delta,
    Event,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.item import (
    JSON,
    Audio,
    CustomToolCall,
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
)
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.wire import error, json, sse
from dragoman.wire.choices import CHOICES, ChoicesEncoder
from dragoman.wire.json import merge
from dragoman.wire.pieces import LONG, Long, long
from dragoman.wire.protocol import Dialect
from dragoman.wire.usage import encode_usage

from .messages import (
    CITATION,
    NAME,
    encode_annotation,
    encode_call,
    encode_logprobs,
    from_extra,
    restore,
)
from .request import LEGACY

ID_PREFIX = "chatcmpl-"

FINISH_WORDS: dict[str, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "function_call": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "prohibited_content": "content_filter",
    "recitation": "content_filter",
    "refusal": "content_filter",
}
"""The finish reasons of servers, by the protocol's own."""

FINISH_REASONS = {reason: reason for reason in FINISH_WORDS.values()}
"""The finish reasons for clients, by our own; any other is `stop`."""
LEGACY_REASONS = FINISH_REASONS | {"tool_calls": "function_call"}
"""The same for clients that know functions and not tools."""


class _Choice:
    """The encoding state of one choice."""

    __slots__ = (
        "calls",
        "has_content",
        "legacy",
        "length",
        "notes",
        "open",
        "open_calls",
        "text_head",
        "text_tail",
    )

    def __init__(self, text_head: bytes, text_tail: bytes) -> None:
        self.text_head = text_head  # a chunk with text, up to the text
        self.text_tail = text_tail  # and from its end
        self.open = False  # the role has been sent
        self.has_content = False  # content has been sent, even an empty one
        self.length = 0  # of all content so far
        self.calls = 0
        self.notes = 0
        self.open_calls: list[_Item] = []  # calls that are not done; only the first is sent
        self.legacy = False  # a call was sent in the deprecated form, which has room for one


class _Item:
    """The encoding state of an item."""

    __slots__ = (
        *("call", "choice", "done", "given", "item", "legacy", "number", "parts", "start"),
        "waiting",
    )

    def __init__(self, item: Item, number: int, choice: _Choice) -> None:
        self.item = item
        self.number = number  # of the choice
        self.choice = choice
        self.call = 0  # its index among the calls
        self.legacy = False
        self.parts = 0
        self.start = 0  # where its text part begins in the content
        self.given: frozenset[str] = frozenset()  # fields of its audio that were sent
        self.waiting: list[bytes] = []  # chunks to send once the calls before it are done
        self.done = False


class Encoder(ChoicesEncoder):
    """Encodes the events of one answer, with the options of the request."""

    name = NAME
    id_prefix = ID_PREFIX
    object = "chat.completion.chunk"
    blank: ClassVar[dict[str, JSON]] = {"delta": {}}

    def __init__(self, request: Request, dialect: Dialect) -> None:
        super().__init__(request, dialect)
        self._legacy = bool(request.extra and LEGACY in request.extra)
        self.reasons = LEGACY_REASONS if self._legacy else FINISH_REASONS

    def feed(self, events: Sequence[Event]) -> bytes:
        """The bytes for these events. Consecutive texts, the common case, are one step."""
        encoded: list[bytes] = []
        run: list[str] = []
        where = -1
        for event in events:
            if type(event) is Delta and event.kind == "text" and not event.tokens:
                if event.index != where:
                    if run:
                        encoded.append(self._text_chunks(where, run))
                        run = []
                    where = event.index
                run.append(event.data)
                continue
            if run:
                encoded.append(self._text_chunks(where, run))
                run = []
            encoded.append(self._one(event))
        if run:
            encoded.append(self._text_chunks(where, run))
        return b"".join(encoded)

    def _text_chunks(self, index: int, texts: list[str]) -> bytes:
        """A chunk for each of these pieces of a text."""
        choice: _Choice = self._items[index].choice
        choice.has_content = True
        size = sum(map(len, texts))
        choice.length += size
        data = json.dump_all(texts if size <= LONG else list(map(long, texts)))
        # The encoded JSON has no line ends, so each one separates two chunks.
        head, tail = choice.text_head, choice.text_tail
        return head + data.replace(b"\n", tail + head) + tail

    def _one(self, event: Event) -> bytes:
        """The bytes for one event; empty where this wire has no chunk for it."""
        match event:
            case Delta():
                return self._delta(self._items[event.index], event)
            case ItemAdded():
                return self._item_added(event)
            case PartAdded():
                return self._part_added(self._items[event.index], event.part)
            case PartDone():
                item: _Item = self._items[event.index]
                if isinstance(event.part, Text) and not item.choice.has_content:
                    return self._content(item, "")
                return self._audio_facts(item, event.part)
            case ItemDone():
                return self._item_done(self._items[event.index], event.item)
            case Started():
                return self._start(event)
            case Progress():
                return self._progress(event)
            case Finished():
                return self._finish(event)
            case _:
                self._over = True
                waiting = (i.waiting for c in self._choices.values() for i in c.open_calls[1:])
                return b"".join(map(b"".join, waiting)) + sse.frame(error.encode(event.fault))

    def _delta(self, item: _Item, event: Delta) -> bytes:
        data, tokens = event.data, event.tokens
        match event.kind:
            case "text":  # with tokens; without any it is one of a run
                return self._content(item, data, tokens)
            case "refusal":
                logprobs = {"content": None, "refusal": encode_logprobs(tokens)} if tokens else None
                return self._chunk(item.number, {"delta": {"refusal": data}}, logprobs=logprobs)
            case "reasoning" | "summary":
                return self._reasoning(item, data, tokens)
            case "arguments" | "input":
                if item.legacy:
                    return self._in_order(item, {"function_call": {"arguments": data}})
                kind = "custom" if isinstance(item.item, CustomToolCall) else "function"
                entry = {"index": item.call, kind: {event.kind: data}}
                return self._in_order(item, {"tool_calls": [entry]})
            case "audio":
                return self._say(item, {"audio": {"data": data}})
            case "transcript":
                return self._say(item, {"audio": {"transcript": data}})
            case "annotation":
                note = encode_annotation(data, item.start)
                if note is None:
                    return b""
                if data.kind == CITATION:  # SDKs that join chunks need its place in the list
                    note = {"index": item.choice.notes, **note}
                    item.choice.notes += 1
                return self._say(item, {"annotations": [note]})
            case _:
                return b""

    # ---- items and parts -----------------------------------------------------------------

    def _item_added(self, event: ItemAdded) -> bytes:
        number = event.choice
        choice = self._choices.get(number) or self._choice(number)
        item = _Item(event.item, number, choice)
        self._items.append(item)
        match event.item:
            case FunctionCall() | CustomToolCall() as call:
                entry = encode_call(call)
            case Unknown(wire=wire) as call if wire == NAME:
                entry = {"type": call.kind} | call.value
            case Reasoning() as reasoning:
                tag = (reasoning.extra or {}).get("inline", {}).get("open", "")
                return self._open(number) + (self._content(item, tag) if tag else b"")
            case _:
                return b""  # a message opens with its first part: only text is content
        choice.open_calls.append(item)
        opening = self._open(number)
        if self._legacy and isinstance(call, FunctionCall) and not (choice.calls or choice.legacy):
            item.legacy = choice.legacy = True
            return opening + self._in_order(item, {"function_call": entry["function"]})
        item.call, choice.calls = choice.calls, choice.calls + 1
        return opening + self._in_order(item, {"tool_calls": [{"index": item.call} | entry]})

    def _part_added(self, item: _Item, part: Part) -> bytes:
        match part:
            case Text():
                item.start = item.choice.length
                return self._open(item.number, "")
            case Thought() | Summary():
                item.parts += 1
                return self._reasoning(item, "\n\n") if item.parts > 1 else b""
            case _:
                return self._open(item.number) + self._audio_facts(item, part)

    def _item_done(self, item: _Item, done: Item) -> bytes:
        fields = from_extra(done.extra)
        match done:
            case Reasoning():
                tag = (done.extra or {}).get("inline", {}).get("close", "")
                closing = self._content(item, tag) if tag else b""
            case Message():
                closing = self._open(item.number)
            case FunctionCall() | CustomToolCall() | Unknown() if item in item.choice.open_calls:
                late = b""
                if fields != from_extra(item.item.extra) and not item.legacy:
                    late = self._in_order(item, {"tool_calls": [{"index": item.call} | fields]})
                return late + self._end_call(item)
            case _:
                return b""
        return closing + (self._say(item, dict(fields)) if fields else b"")

    def _in_order(self, item: _Item, delta: dict[str, JSON]) -> bytes:
        """A chunk of a call, if it is the first open one; else it is queued: clients expect the
        fragments of one call before those of the next."""
        chunk = self._say(item, delta)
        if item.choice.open_calls[0] is item:
            return chunk
        item.waiting.append(chunk)
        return b""

    def _end_call(self, item: _Item) -> bytes:
        """The chunks that were queued behind this call."""
        item.done = True
        open_calls, encoded = item.choice.open_calls, b""
        while open_calls and open_calls[0].done:
            del open_calls[0]
            if open_calls:
                encoded += b"".join(open_calls[0].waiting)
        return encoded

    def _say(self, item: _Item, delta: dict[str, JSON], tokens: Sequence[Token] = ()) -> bytes:
        logprobs = {"content": encode_logprobs(tokens), "refusal": None} if tokens else None
        return self._chunk(item.number, {"delta": delta}, logprobs=logprobs)

    def _content(self, item: _Item, text: str, tokens: tuple[Token, ...] = ()) -> bytes:
        item.choice.has_content = True
        item.choice.length += len(text)
        return self._say(item, {"content": text}, tokens)

    def _reasoning(self, item: _Item, text: str, tokens: tuple[Token, ...] = ()) -> bytes:
        if "inline" in (item.item.extra or {}):
            return self._content(item, text, tokens)
        delta = dict.fromkeys(self._dialect.reasoning_out, text)
        return self._say(item, delta, tokens) if delta or tokens else b""

    def _audio_facts(self, item: _Item, part: Part) -> bytes:
        if not isinstance(part, Audio):
            return b""
        facts = {"id": part.id, "expires_at": part.expires_at}
        fresh = {k: v for k, v in facts.items() if v is not None and k not in item.given}
        item.given |= fresh.keys()
        return self._say(item, {"audio": restore(fresh, part.extra)}) if fresh else b""

    # ---- choices -------------------------------------------------------------------------

    def _choice(self, number: int) -> _Choice:
        opening = b'{"index":' + str(number).encode() + b',"delta":{"content":'
        ending = b'},"logprobs":null,"finish_reason":null}'
        choice = self._choices[number] = _Choice(self._head + opening, ending + self._tail)
        return choice

    def _open(self, number: int, content: str | None = None) -> bytes:
        """The first chunk of a choice, which has the role, unless it was sent."""
        choice = self._choices.get(number) or self._choice(number)
        if choice.open:
            return b""
        # SDKs take the first chunk of a choice for the next choice.
        before = self._open(number - 1) if number else b""
        choice.open, choice.has_content = True, content is not None
        wanted = bool(self._request.sampling.logprobs)
        logprobs: JSON = {"content": [], "refusal": None} if wanted else None
        delta = {"role": "assistant", "content": content, "refusal": None}
        return before + self._chunk(number, {"delta": delta}, logprobs=logprobs)


def encode_response(response: Response, request: Request, dialect: Dialect) -> bytes:
    """The body of an answer."""
    extra = dict(response.extra.get(NAME, ())) if response.extra else {}
    ends = {each["index"]: dict(each) for each in extra.pop(CHOICES, ())} if extra else {}
    legacy = request.extra and LEGACY in request.extra
    wanted = request.sampling.logprobs
    choices: list[JSON] = []
    for number, reason in enumerate(response.reasons):
        items = response.choice(number) if response.choices else response.output
        content: list[str] = []
        refusal: list[str] = []
        annotations: list[JSON] = []
        reasoning: list[str] = []
        audio: dict[str, JSON] = {}
        function_call: JSON = None
        calls: list[JSON] = []
        tokens: list[Token] = []
        refusal_tokens: list[Token] = []
        more: dict[str, JSON] = {}
        for item in items:
            match item:
                case Message():
                    for part in item.parts if isinstance(item.content, str) else item.content:
                        match part:
                            case Text():
                                if part.annotations:
                                    at = sum(map(len, content))
                                    notes = [encode_annotation(n, at) for n in part.annotations]
                                    annotations += filter(None, notes)
                                content.append(part.text)
                                tokens += part.tokens
                            case Refusal():
                                refusal.append(part.text)
                                refusal_tokens += part.tokens
                            case Audio():
                                audio = merge(_encode_audio(part), audio)
                case Reasoning():
                    texts = []
                    for thought in (*item.summary, *item.content):
                        if isinstance(thought, Thought | Summary):
                            texts.append(thought.text)
                            tokens += thought.tokens if isinstance(thought, Thought) else ()
                    text = "\n\n".join(texts)
                    if (tags := (item.extra or {}).get("inline")) is not None:
                        content.append(tags.get("open", "") + text + tags.get("close", ""))
                    else:
                        reasoning.append(text)
                case FunctionCall() if legacy and not (calls or function_call):
                    function_call = encode_call(item)["function"]
                    continue
                case FunctionCall() | CustomToolCall():
                    calls.append(encode_call(item))
                    continue
                case Unknown(wire=wire) if wire == NAME:
                    calls.append({"type": item.kind, **item.value})
                    continue
                case _:
                    continue
            if item.extra:
                merge(more, from_extra(item.extra))
        text = "".join(content)
        message: dict[str, JSON] = {
            "role": "assistant",
            "content": (text if len(text) <= LONG else Long(text)) if content else None,
            "refusal": long("".join(refusal)) if any(refusal) else None,
            "annotations": annotations,
        }
        if any(reasoning):
            message |= dict.fromkeys(dialect.reasoning_out, long("".join(reasoning)))
        if audio:
            message["audio"] = audio
        if calls:
            message["tool_calls"] = calls
        if function_call is not None:
            message["function_call"] = function_call
        choice: dict[str, JSON] = {
            "index": number,
            "message": merge(message, more) if more else message,
            "logprobs": None,
            "finish_reason": (LEGACY_REASONS if legacy else FINISH_REASONS).get(reason, "stop"),
        }
        end = ends.get(number)
        late = end.pop("logprobs", {}).get("content") if end else None  # usually of calls
        if wanted or late or tokens or refusal_tokens:
            weighed = encode_logprobs(tokens) + (late or [])
            choice["logprobs"] = {
                "content": long(weighed) if weighed or wanted else None,
                "refusal": long(encode_logprobs(refusal_tokens)) or None,
            }
        choices.append(merge(choice, end) if end else choice)
    body: dict[str, JSON] = {
        "id": ID_PREFIX + response.id,
        "object": "chat.completion",
        "created": response.created_at,
        "model": response.model,
        "choices": choices,
    }
    if response.usage is not None:
        body["usage"] = encode_usage(response.usage, NAME)
    return json.dump(merge(body, extra) if extra else body)


def _encode_audio(audio: Audio) -> dict[str, JSON]:
    data = audio.data and long(audio.data)
    facts = {"id": audio.id, "data": data, "transcript": audio.transcript}
    return restore(json.dense({**facts, "expires_at": audio.expires_at}), audio.extra)
