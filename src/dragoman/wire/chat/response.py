"""Encodes answers as Chat completions, streamed and whole."""

from __future__ import annotations

from collections.abc import Sequence

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
from dragoman.wire.choices import CHOICES
from dragoman.wire.json import merge
from dragoman.wire.protocol import Dialect
from dragoman.wire.usage import encode_usage

from .fields import (
    NAME,
    encode_annotation,
    encode_logprobs,
    from_extra,
    restore,
)
from .messages import encode_call
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
    "safety": "content_filter",
}
"""The finish reasons of servers, by the protocol's own."""

FINISH_REASONS = {reason: reason for reason in FINISH_WORDS.values()}
"""The finish reasons for clients, by our own; any other is `stop`."""
LEGACY_REASONS = FINISH_REASONS | {"tool_calls": "function_call"}
"""The same for clients that know functions and not tools."""

_OPENING, _CLOSING = sse.frame(b"\0").split(b"\0")


class _Choice:
    """What has been encoded of one alternative."""

    __slots__ = ("calls", "has_content", "legacy", "length", "open", "open_calls", "text_head")

    def __init__(self, text_head: bytes) -> None:
        self.text_head = text_head  # a chunk with text, up to the text
        self.open = False  # the role has been sent
        self.has_content = False  # content has been sent, if only an empty one
        self.length = 0  # of all content so far
        self.calls = 0
        self.open_calls: list[_Item] = []  # calls that are not done; only the first is sent
        self.legacy = False  # a call was sent in the deprecated form, which has room for one


class _Item:
    """An item that is being encoded."""

    __slots__ = (
        "call",
        "choice",
        "done",
        "given",
        "item",
        "legacy",
        "number",
        "parts",
        "start",
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
        self.given: frozenset[str] = frozenset()  # facts about its audio that were sent
        self.waiting: list[bytes] = []  # chunks to send once the calls before it are done
        self.done = False


class Encoder:
    """Encodes the events of one answer, as the request asked for it."""

    def __init__(self, request: Request, dialect: Dialect) -> None:
        options = request.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._wants_logprobs = bool(request.sampling.logprobs)
        self._legacy = bool(request.extra and LEGACY in request.extra)
        self._reasons = LEGACY_REASONS if self._legacy else FINISH_REASONS
        self._reasoning = dialect.reasoning_out
        self._head = self._tail = self._text_tail = b""
        self._ends: dict[int, dict[str, JSON]] = {}
        self._choices: dict[int, _Choice] = {}
        self._items: list[_Item] = []
        self._envelope: dict[str, JSON] = {}
        self._over = False

    # ---- events --------------------------------------------------------------------------

    def _one(self, event: Event) -> bytes:
        """The bytes for one event; empty where this wire has no chunk for it."""
        match event:
            case Delta():
                return self._delta(event)
            case ItemAdded():
                return self._item_added(event)
            case PartAdded():
                return self._part_added(event)
            case PartDone():
                return self._part_done(event)
            case ItemDone():
                return self._item_done(event)
            case Started():
                self._start(event)
                return b""
            case Progress():
                return self._progress(event)
            case Finished():
                return self._finish(event)
            case _:
                self._over = True
                waiting = (i.waiting for c in self._choices.values() for i in c.open_calls[1:])
                return b"".join(map(b"".join, waiting)) + sse.frame(error.encode(event.fault))

    def feed(self, events: Sequence[Event]) -> bytes:
        """The bytes for these events. Texts in a row, the commonest by far, are one step."""
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

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment, or a chunk that adds nothing; empty outside of an answer."""
        if not self._head or self._over:
            return b""
        return self._chunk(0, {}) if data else sse.comment("alive")

    def _start(self, event: Started) -> None:
        extra = dict(from_extra(event.extra))
        self._ends = {each["index"]: each for each in extra.pop(CHOICES, ())}
        known: dict[str, JSON] = {"id": ID_PREFIX + event.id, "object": "chat.completion.chunk"}
        known |= {"created": event.created_at, "model": event.model}
        self._envelope = merge(known, extra)
        self._head = _head(self._envelope)
        self._tail = (b'],"usage":null}' if self._wants_usage else b"]}") + _CLOSING
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def _text_chunks(self, index: int, texts: list[str]) -> bytes:
        """A chunk for each of these pieces of a text."""
        choice = self._items[index].choice
        choice.has_content = True
        head, tail = choice.text_head, self._text_tail
        if len(texts) == 1:
            choice.length += len(texts[0])
            return head + json.dump(texts[0]) + tail
        choice.length += sum(map(len, texts))
        # No JSON has a line end in it, so each stands where one chunk ends and the next begins.
        return head + json.dump_all(texts).replace(b"\n", tail + head) + tail

    def _delta(self, event: Delta) -> bytes:
        item, data = self._items[event.index], event.data
        match event.kind:
            case "text":  # with tokens; without any it is one of a run
                return self._content(item, data, event.tokens)
            case "refusal":
                return self._chunk(item.number, {"refusal": data}, refusal=event.tokens)
            case "reasoning" | "summary":
                return self._reasoning_chunk(item, data, event.tokens)
            case "arguments" | "input":
                return self._in_order(item, self._chunk(item.number, self._call_delta(item, data)))
            case "audio":
                return self._chunk(item.number, {"audio": {"data": data}})
            case "transcript":
                return self._chunk(item.number, {"audio": {"transcript": data}})
            case "annotation":
                note = encode_annotation(data, item.start)
                return b"" if note is None else self._chunk(item.number, {"annotations": [note]})
            case _:
                return b""

    def _progress(self, event: Progress) -> bytes:
        raw = (event.data or {}).get(NAME, {}) if event.state == "raw" else {}
        return b"".join(self._chunk(c["index"], {}, more=c) for c in raw.get(CHOICES, ()))

    # ---- items and parts -----------------------------------------------------------------

    def _item_added(self, event: ItemAdded) -> bytes:
        choice = self._choices.get(event.choice) or self._choice(event.choice)
        item = _Item(event.item, event.choice, choice)
        self._items.append(item)
        match event.item:
            case FunctionCall() as call if self._legacy and not (choice.calls or choice.legacy):
                item.legacy = choice.legacy = True
                return self._begin_call(item, encode_call(call))
            case FunctionCall() | CustomToolCall() as call:
                return self._begin_call(item, encode_call(call))
            case Unknown(wire=wire) as call if wire == NAME:
                return self._begin_call(item, {"type": call.kind} | call.value)
            case Reasoning() as reasoning:
                opening = self._open(item)
                tag = (reasoning.extra or {}).get("inline", {}).get("open", "")
                return opening + (self._content(item, tag) if tag else b"")
            case _:
                return b""  # a message opens with its first part: only text has content

    def _part_added(self, event: PartAdded) -> bytes:
        item = self._items[event.index]
        match event.part:
            case Text():
                item.start = item.choice.length
                return self._open(item, "")
            case Thought() | Summary():
                item.parts += 1
                return self._reasoning_chunk(item, "\n\n") if item.parts > 1 else b""
            case Audio():
                return self._open(item) + self._audio_facts(item, event.part)
            case _:
                return self._open(item)

    def _part_done(self, event: PartDone) -> bytes:
        item = self._items[event.index]
        match event.part:
            case Text() if not item.choice.has_content:
                return self._content(item, "")
            case Audio():
                return self._audio_facts(item, event.part)
            case _:
                return b""

    def _item_done(self, event: ItemDone) -> bytes:
        item, done = self._items[event.index], event.item
        match done:
            case Reasoning():
                tag = (done.extra or {}).get("inline", {}).get("close", "")
                closing = self._content(item, tag) if tag else b""
                return closing + self._extra_chunk(item, from_extra(done.extra))
            case Message():
                return self._open(item) + self._extra_chunk(item, from_extra(done.extra))
            case FunctionCall() | CustomToolCall():
                late, chunk = from_extra(done.extra), b""
                if late != from_extra(item.item.extra) and not item.legacy:
                    chunk = self._chunk(item.number, {"tool_calls": [{"index": item.call} | late]})
                return self._in_order(item, chunk) + self._end_call(item)
            case Unknown(wire=wire) if wire == NAME:
                return self._end_call(item)
            case _:
                return b""

    def _in_order(self, item: _Item, chunks: bytes) -> bytes:
        """A chunk of a call, if it is the first open one; else it waits: readers of Chat expect the
        fragments of one call before those of the next."""
        if item.choice.open_calls[0] is item:
            return chunks
        item.waiting.append(chunks)
        return b""

    def _end_call(self, item: _Item) -> bytes:
        """The chunks that waited for this call to be done."""
        item.done = True
        open_calls, encoded = item.choice.open_calls, b""
        while open_calls and open_calls[0].done:
            del open_calls[0]
            if open_calls:
                encoded += b"".join(open_calls[0].waiting)
        return encoded

    def _open(self, item: _Item, content: str | None = None) -> bytes:
        return b"" if item.choice.open else self._role(item.number, item.choice, content)

    def _extra_chunk(self, item: _Item, fields: dict[str, JSON]) -> bytes:
        return self._chunk(item.number, dict(fields)) if fields else b""

    def _content(self, item: _Item, text: str, tokens: tuple[Token, ...] = ()) -> bytes:
        item.choice.has_content = True
        item.choice.length += len(text)
        return self._chunk(item.number, {"content": text}, content=tokens or None)

    def _reasoning_chunk(self, item: _Item, text: str, tokens: tuple[Token, ...] = ()) -> bytes:
        if "inline" in (item.item.extra or {}):
            return self._content(item, text, tokens)
        delta = dict.fromkeys(self._reasoning, text)
        if not delta and not tokens:
            return b""
        return self._chunk(item.number, delta, content=tokens or None)

    def _audio_facts(self, item: _Item, audio: Audio) -> bytes:
        facts = {"id": audio.id, "expires_at": audio.expires_at}
        fresh = {k: v for k, v in facts.items() if v is not None and k not in item.given}
        item.given |= fresh.keys()
        fresh = restore(fresh, audio.extra) if fresh else fresh
        return self._chunk(item.number, {"audio": fresh}) if fresh else b""

    def _begin_call(self, item: _Item, call: dict[str, JSON]) -> bytes:
        """The first chunk of a call."""
        if item.legacy:
            delta = {"function_call": call["function"]}
        else:
            item.call, item.choice.calls = item.choice.calls, item.choice.calls + 1
            delta = {"tool_calls": [{"index": item.call} | call]}
        item.choice.open_calls.append(item)
        return self._in_order(item, self._open(item) + self._chunk(item.number, delta))

    def _call_delta(self, item: _Item, data: str) -> dict[str, JSON]:
        """A later piece of a call."""
        if item.legacy:
            return {"function_call": {"arguments": data}}
        custom = isinstance(item.item, CustomToolCall)
        piece = {"custom": {"input": data}} if custom else {"function": {"arguments": data}}
        return {"tool_calls": [{"index": item.call} | piece]}

    # ---- beginning and end ---------------------------------------------------------------

    def _choice(self, number: int) -> _Choice:
        opening = b'{"index":' + str(number).encode() + b',"delta":{"content":'
        choice = self._choices[number] = _Choice(self._head + opening)
        return choice

    def _role(self, number: int, choice: _Choice, content: str | None) -> bytes:
        choice.open = True
        choice.has_content = content is not None
        tokens: tuple[Token, ...] | None = () if self._wants_logprobs else None
        delta = {"role": "assistant", "content": content, "refusal": None}
        return self._chunk(number, delta, content=tokens)

    def _finish(self, event: Finished) -> bytes:
        self._over = True
        extra = dict(from_extra(event.extra))
        ends = self._ends | {each["index"]: each for each in extra.pop(CHOICES, ())}
        counted = event.usage if self._wants_usage else None
        encoded = b""
        for number, reason in enumerate(event.reasons):
            choice = self._choices.get(number) or self._choice(number)
            if not choice.open:
                encoded += self._role(number, choice, None)
            if counted is None and number == len(event.reasons) - 1:
                self._head = _head(self._envelope | extra)
            word = self._reasons.get(reason, "stop")
            encoded += self._chunk(number, {}, reason=word, more=ends.get(number))
        if counted is not None:
            last = {"choices": [], "usage": encode_usage(counted, NAME)}
            encoded += sse.frame(json.dump(self._envelope | extra | last))
        return encoded + sse.DONE

    def _chunk(
        self,
        number: int,
        delta: dict[str, JSON],
        *,
        content: tuple[Token, ...] | None = None,
        refusal: tuple[Token, ...] | None = None,
        reason: str | None = None,
        more: dict[str, JSON] | None = None,
    ) -> bytes:
        """One chunk. Empty tokens of a piece are none; of a first chunk they are an empty list."""
        choice: dict[str, JSON] = {
            "index": number,
            "delta": delta,
            "logprobs": _logprobs(content, refusal),
            "finish_reason": reason,
        }
        if more:
            choice = merge(choice, more)
        return self._head + json.dump(choice) + self._tail


def _head(envelope: dict[str, JSON]) -> bytes:
    """A chunk up to its first choice."""
    return _OPENING + json.dump(envelope)[:-1] + b',"choices":['


def _logprobs(content: tuple[Token, ...] | None, refusal: tuple[Token, ...] | None) -> JSON:
    if content is None and not refusal:
        return None
    return {
        "content": None if content is None else encode_logprobs(content),
        "refusal": encode_logprobs(refusal) if refusal else None,
    }


def encode_response(response: Response, request: Request, dialect: Dialect) -> bytes:
    """The body of an answer."""
    extra = dict(response.extra.get(NAME, ())) if response.extra else {}
    ends = {each["index"]: dict(each) for each in extra.pop(CHOICES, ())}
    legacy = bool(request.extra and LEGACY in request.extra)
    reasons = LEGACY_REASONS if legacy else FINISH_REASONS
    wanted = bool(request.sampling.logprobs)
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
                                offset = sum(map(len, content)) if part.annotations else 0
                                for note in part.annotations:
                                    encoded = encode_annotation(note, offset)
                                    annotations += [] if encoded is None else [encoded]
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
        message: dict[str, JSON] = {
            "role": "assistant",
            "content": "".join(content) if content else None,
            "refusal": "".join(refusal) if refusal else None,
            "annotations": annotations,
        }
        if any(reasoning):
            message |= dict.fromkeys(dialect.reasoning_out, "".join(reasoning))
        for name, given in (("audio", audio), ("tool_calls", calls)):
            if given:
                message[name] = given
        if function_call is not None:
            message["function_call"] = function_call
        choice: dict[str, JSON] = {
            "index": number,
            "message": merge(message, more) if more else message,
            "logprobs": None,
            "finish_reason": reasons.get(reason, "stop"),
        }
        end = ends.get(number, {})
        late = end.pop("logprobs", {}).get("content", [])  # the tokens of calls, as a rule
        if wanted or late or tokens or refusal_tokens:
            weighed = encode_logprobs(tokens) + late
            choice["logprobs"] = {
                "content": weighed if weighed or wanted else None,
                "refusal": encode_logprobs(refusal_tokens) or None,
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
    facts: dict[str, JSON] = {"id": audio.id, "data": audio.data}
    facts |= {"transcript": audio.transcript, "expires_at": audio.expires_at}
    return restore({name: fact for name, fact in facts.items() if fact is not None}, audio.extra)
