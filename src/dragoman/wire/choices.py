"""Decodes and encodes what wires share: request fields, and answers with `choices`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import compress, repeat
from operator import attrgetter, eq, is_not
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec import Meta, Raw, Struct
from msgspec.structs import asdict

from dragoman.core.error import LONGEST_NAME, Fault, FaultError, bad_request
from dragoman.core.event import Event, Finished, Progress, Started
from dragoman.core.item import JSON, Token
from dragoman.core.loss import Loss
from dragoman.core.request import Request, Sampling, StreamOptions
from dragoman.core.turn import EMPTY, Turn

from . import error, json, sse
from .json import ABSENT, BROKEN, Limits, Reader, decode_string, decode_strings, merge, string
from .losses import Note, listed
from .pieces import decode_in_pieces
from .protocol import Dialect, check_stop
from .usage import decode_usage, encode_usage

CHOICES = "choices"
"""The key of the unknown fields of choices in the extra of an answer."""
FIRST = 512
"""Bytes of a long read that are decoded first, to find the template of its chunks."""

LONG = 64 * 1024
"""Bytes of a chunk that is too long to be a template."""
_CHUNK = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"})
_BLANK = b"\xef\xbb\xbf \t\r\n"
_ERROR = b'{"error"'
_EMPTY: tuple[JSON, ...] = (None, [], {})


# ---- requests ----------------------------------------------------------------------------

# A number is encoded as it was decoded: 1 does not become 1.0.
Probability = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
_Temperature = Annotated[int, Meta(ge=0, le=2)] | Annotated[float, Meta(ge=0, le=2)]
_Penalty = Annotated[int, Meta(ge=-2, le=2)] | Annotated[float, Meta(ge=-2, le=2)]
_Factor = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
_Bias = Annotated[int, Meta(ge=-100, le=100)] | Annotated[float, Meta(ge=-100, le=100)]


ModelName = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]


class SamplingFields(Struct, kw_only=True):
    """The sampling values of a body."""

    temperature: _Temperature | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Probability | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: _Factor | None = None
    repeat_penalty: _Factor | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, _Bias | None] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None


class ConversationFields(SamplingFields, kw_only=True):
    """The fields that Chat and Responses have in common."""

    model: ModelName
    tools: Raw = ABSENT
    tool_choice: JSON = None
    parallel_tool_calls: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: Raw = ABSENT
    store: bool | None = None
    metadata: dict[str, JSON] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, JSON] | None = None
    service_tier: str | None = None
    moderation: JSON = None


LABELS = (
    *("parallel_tool_calls", "metadata", "user", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "prompt_cache_options", "service_tier", "moderation"),
)
"""Those that are unchanged, and have the same name, in the core."""
_SAME = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
    *("seed", "n"),
)
_same = attrgetter(*_SAME)


def decode_sampling(
    body: SamplingFields,
    logprobs: bool | None,
    top_logprobs: int | None,
    unknown: dict[str, JSON],
    limits: Limits,
) -> Sampling:
    """The sampling values; a duplicate under another name is added to the unknown fields. Raises
    FaultError for too many values."""
    penalty, other = body.repetition_penalty, body.repeat_penalty
    if None not in (penalty, other) and penalty != other:
        unknown["repeat_penalty"] = other
    stop, bias = body.stop, body.logit_bias
    if isinstance(stop, str):
        stop = [stop]
    if stop and (stop := [each for each in stop if each]):  # empty ones have no effect
        check_stop("stop", stop, limits)
    if bias is not None and len(bias) > limits.max_logit_bias:
        raise json.too_many("logit_bias", limits.max_logit_bias, "max_logit_bias")
    if body.n is not None and body.n > limits.max_choices:
        problem = f"is {body.n}, and may be {limits.max_choices} at the most (max_choices)"
        raise FaultError(bad_request(problem, "n"))
    return Sampling(
        repetition_penalty=other if penalty is None else penalty,
        stop=tuple(stop) if stop else None,
        logit_bias=None if bias is None else {t: v for t, v in bias.items() if v is not None},
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        **dict(zip(_SAME, _same(body), strict=True)),
    )


class _StreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


stream_options = Reader(_StreamOptions)


def decode_stream_options(given: Any, wire: str) -> StreamOptions | None:
    """The options in a field that `stream_options` reads; None where there are none."""
    asked, rest = stream_options.read_optional(given, "stream_options")
    if asked is None:
        return None
    extra = {wire: rest} if rest else None
    return StreamOptions(asked.include_usage, asked.include_obfuscation, extra)


def encode_stream(
    request: Request, dialect: Dialect, wire: str, notes: list[Note]
) -> dict[str, JSON]:
    """The fields for a stream, where one is requested."""
    options = request.stream_options
    if not request.stream:
        if options is not None:
            notes.append(("stream_options", "dropped", "the answer is not streamed", ()))
        return {}
    options = options or StreamOptions()
    usage = True if dialect.ask_usage else options.include_usage
    given = {"include_usage": usage, "include_obfuscation": options.include_obfuscation}
    shown = merge(json.dense(given), (options.extra or {}).get(wire, {}))
    return {"stream": True} | ({"stream_options": shown} if shown else {})


def encode_body(
    fields: dict[str, JSON],
    request: Request,
    dialect: Dialect,
    wire: str,
    losses: tuple[Loss, ...],
    notes: list[Note],
) -> tuple[bytes, tuple[Loss, ...]]:
    """The body with these fields, the other sampling values and the unknown
    fields, without those that the server refuses; and all losses, including the noted ones."""
    given = asdict(request.sampling)
    given[dialect.repetition_penalty] = given.pop("repetition_penalty")
    given |= {"stop": request.sampling.stop or None, **fields}
    body = dict(compress(given.items(), map(is_not, given.values(), repeat(None))))
    if request.extra:
        body = merge(body, request.extra.get(wire, {}))
        if dialect.beside_continue and body.get("continue_final_message") is True:
            body = {**dialect.beside_continue, **body}
    for name in sorted(dialect.drop & body.keys()):
        del body[name]
        notes.append((name, "dropped", "this server does not take it", ()))
    losses = losses + listed(notes) if notes else losses
    try:
        return json.encode(body), losses
    except (TypeError, UnicodeEncodeError):  # of long texts, or halves of surrogate pairs
        return json.dump(body), losses


# ---- values ------------------------------------------------------------------------------


def rest(value: dict[str, JSON], known: frozenset[str]) -> dict[str, JSON]:
    """The unknown fields, without empty ones."""
    if known.issuperset(value):
        return {}
    return {n: v for n, v in value.items() if n not in known and v not in _EMPTY}


def decode_finish(value: JSON, words: dict[str, str]) -> str | None:
    """The protocol's finish reason, or `error`; None where there is none yet."""
    if value is None or value == "":
        return None
    word = value.lower().replace("-", "_") if isinstance(value, str) else ""
    word = word.partition(":")[0]  # Gemini has details behind it
    return "error" if word in error.BROKEN_OFF else words.get(word, "stop")


_TOKEN = ("token", "logprob", "bytes", "top_logprobs", "id")


def decode_tokens(listed: JSON, wire: str) -> tuple[Token, ...]:
    """The tokens in a list of `logprobs`, with their alternatives."""
    tokens = []
    for value in listed if isinstance(listed, list) else ():
        if not isinstance(value, dict):
            continue
        text, logprob, id, raw = (value.get(n) for n in ("token", "logprob", "id", "bytes"))
        more = {n: v for n, v in value.items() if n not in _TOKEN and v is not None}
        spelt = isinstance(raw, list) and all(type(n) is int and 0 <= n < 256 for n in raw)
        tokens.append(
            Token(
                text if isinstance(text, str) else "",
                logprob if type(logprob) in (int, float) else None,
                bytes(raw) if spelt and isinstance(raw, list) else None,
                decode_tokens(value.get("top_logprobs"), wire),
                id if type(id) is int else None,
                extra={wire: more} if more else None,
            )
        )
    return tuple(tokens)


# ---- chunks that differ in one string ----------------------------------------------------


class Template(NamedTuple):
    """A template of events that differ in one string: the bytes around it, and its kind.

    The chunks of a stream usually differ only in that string, so only it is decoded.
    `call` is the index of the call that arguments belong to. `padding` splits the suffix where
    OpenAI puts a random text (`obfuscation`).
    """

    head: bytes
    tail: bytes
    kind: Literal["text", "reasoning", "arguments"]
    choice: int
    call: int | None
    padding: tuple[bytes, bytes] | None

    def strings(self, data: bytes) -> tuple[list[str], bytes]:
        """The strings of matching chunks at the beginning of the bytes, and the remaining
        bytes. Empty and undecodable strings are left to the reader of whole chunks."""
        head, suffix = self.head, self.tail[:-2]
        if not data.startswith(head) or len(data) > sse.MAX_EVENT:
            return [], data
        *blocks, _ = data.split(b"\n\n")
        inner = slice(len(head), -len(suffix))
        pieces = [block[inner] for block in blocks]
        # One comparison with the expected bytes is cheaper than one for each chunk.
        alike = head + (self.tail + head).join(pieces) + self.tail
        if not data.startswith(alike):
            same = map(eq, blocks, alike.split(b"\n\n"))
            del pieces[(*same, False).index(False) :]
        strings = decode_strings(pieces)
        if "" in strings:
            del strings[strings.index("") :]
        count = len(strings)
        return strings, data[sum(map(len, blocks[:count])) + 2 * count :]

    def string(self, data: bytes) -> str | None:
        """The string in the data of one event; None, or empty, if it is not a chunk like this."""
        prefix, suffix, padding = self.head[6:], self.tail[:-2], self.padding
        if not data.startswith(prefix):
            return None
        if data.endswith(suffix):
            return string(data[len(prefix) : -len(suffix)])
        if padding is None or not data.endswith(padding[1]):
            return None
        inner = data[len(prefix) : len(data) - len(padding[1])]
        text, found, padded = inner.rpartition(padding[0])
        return string(text) if found and string(padded) is not None else None


# ---- answers -----------------------------------------------------------------------------

_GARBLED = "The model's server sent events that are not JSON objects."


class ChoicesDecoder:
    """Decodes one answer into a turn, from pieces of any size.

    A wire provides its state of a choice (`fields`), the names of finish reasons (`words`), the
    limit of choices (`most`), and the reader of a choice.
    """

    name: ClassVar[str]
    """The key of the wire in every `extra`."""
    fields: ClassVar[frozenset[str]]
    words: ClassVar[dict[str, str]]
    most: ClassVar[int]

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._head = b""  # the first bytes, until a chunk was decoded
        self._whole: bytearray | None = None  # an answer that is one JSON value
        self._sse: sse.SSEDecoder | None = None  # of an answer that is a stream
        self._started = False  # a chunk was decoded
        self._garbled = 0  # events that were no JSON object
        self._ended = False  # `[DONE]` was read
        self.ended = False  # `[DONE]`, or the end of the answer; usage may still follow
        self._beside: dict[str, JSON] | None = None  # unknown fields of chunks so far
        self._ends: dict[int, dict[str, JSON]] = {}  # unknown fields of finished choices
        self._choices: dict[int, Any] = {}  # the wire's state of each choice
        self._template: Template | None = None  # of the last chunk, if it has one
        self._append: Callable[[list[str]], None] = turn.texts  # the strings of such chunks
        self._running = False  # matching chunks are decoded here, not by the SSE decoder
        self._rest = b""  # the rest: the beginning of another one

    # ---- implemented by wires ------------------------------------------------------------

    @abstractmethod
    def _content(
        self, number: int, choice: dict[str, JSON], beside: dict[str, JSON], *, ends: bool
    ) -> dict[str, JSON] | None:
        """Decode a choice. Returns the unknown fields of its delta; None for a whole message.

        `beside` are the unknown fields of the choice; more may be added.
        """

    def _learn(self, data: bytes, value: dict[str, JSON]) -> None:
        """Set the template of a decoded chunk, if it has one."""

    # ---- bytes ---------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        template, turn = self._template, self._turn
        # The fast path: one chunk that matches the template, in few calls.
        if (
            template is not None
            and self._running
            and not self._rest
            and data.startswith(template.head)
            and data.endswith(template.tail)
        ):
            piece = data[len(template.head) : -len(template.tail)]
            try:
                text = decode_string(piece)
            except BROKEN:
                text = ""
            # JSON allows line ends beside the string, but in SSE they end the line.
            if text and b"\n" not in piece and b"\r" not in piece and len(data) <= sse.MAX_EVENT:
                self._append([text])
                events, turn.events = turn.events, []  # as `take` does
                return events
        if self._sse is None and self._whole is None:
            # The first bytes show whether this is a stream or one JSON value; blanks are skipped.
            data = data.lstrip(_BLANK)
            if data[:1] in (b"{", b"["):
                self._whole = bytearray()
        if self._whole is None:
            if data:
                self._read_stream(data)
        elif not turn.over:
            self._whole += data
            if len(self._whole) > json.MAX_ANSWER:
                self._fail(f"The model's server sent more than {json.MAX_ANSWER} bytes.")
        self.ended = self._ended or turn.over
        events, turn.events = turn.events, []
        return events

    def close(self) -> list[Event]:
        """End the input, and with it the answer."""
        turn = self._turn
        if self._whole is not None and not turn.over:
            whole, self._whole = bytes(self._whole), bytearray()  # it may be large
            self._read_whole(whole)
        elif not turn.over:
            if self._rest:
                self._template = None
                self._read_stream(self._rest)
            garbled = self._garbled
            for name, data in self._sse.close() if self._sse else ():
                self._event(name, data, last=True)
            self._garbled = garbled  # an incomplete event is a cut
            self._end()
        self.ended = True
        events, turn.events = turn.events, []
        return events

    def _fail(self, message: str) -> None:
        self._turn.fail(Fault("upstream_error", message, "upstream"))

    # ---- a stream ------------------------------------------------------------------------

    def _read_stream(self, data: bytes) -> None:
        decoder = self._sse = self._sse or sse.SSEDecoder()
        size = FIRST
        while data:
            if self._template is not None:
                if not self._running and (held := decoder.release(FIRST)) is not None:
                    self._running, self._rest = True, held  # it may begin a run of matching chunks
                if self._running:
                    strings, data = self._template.strings(self._rest + data)
                    self._rest = b""
                    if strings:
                        self._append(strings)
                    if len(data) < FIRST and b"\n\n" not in data and b"\r" not in data:
                        self._rest = data  # nothing, or the beginning of a chunk that may match
                        return
                    if strings:
                        continue
            self._running = False
            # Decode some of it, which may give the template of the rest.
            end = data.find(b"\n\n", size) + 2
            size *= 2
            some, data = (data[:end], data[end:]) if end > 1 else (data, b"")
            if not self._started and len(self._head) < error.SHOWN:
                self._head = (self._head + some)[: error.SHOWN]
            if self._turn.over:
                return
            try:
                events = decoder.feed(some)
            except ValueError as problem:
                self._fail(f"The model's server sent {problem}.")
                return
            for name, value in events:
                template = self._template
                if template is not None and not name and (text := template.string(value)):
                    self._append([text])
                else:
                    self._event(name, value)

    def _event(self, name: str, data: bytes, *, last: bool = False) -> None:
        self._template = None
        if data == sse.END:
            self._ended = True
            if self._turn.usage is not None:
                self._end()
            return
        if not data.strip():
            return
        try:
            value = json.load(data)
        except ValueError:
            self._repair(name, data, last)
            return
        if not isinstance(value, dict):
            self._pass_over()
            return
        if self._ended:  # only usage is read after the end
            value = {"usage": value.get("usage")}
        elif name == "error" and "error" not in value:
            value = {"error": value}
        self._read(value)
        if len(data) < LONG and not (self._ended or self._turn.over):
            self._learn(data, value)

    def _repair(self, name: str, data: bytes, last: bool) -> None:
        """Handle invalid JSON: several events without a blank line between, or an error after
        a part of one. An undecodable piece fails the answer, which would else look complete."""
        lines = data.split(b"\n")
        at = data.rfind(_ERROR)
        if data.strip() == sse.END:
            self._event(name, sse.END)
        elif len(lines) > 1:
            for line in lines:
                if self._turn.over:
                    return
                self._event(name, line, last=last)
        elif at > 0:
            self._event(name, data[at:])
        elif error.is_corrupt(data) and not (last or self._ended):
            self._turn.fail(error.CORRUPT)
        else:
            self._pass_over()

    def _pass_over(self) -> None:
        self._garbled += 1
        if self._garbled > error.MAX_GARBLED:
            self._fail(_GARBLED)

    def _end(self) -> None:
        self._pass_ends()
        started, head = self._ended or self._started, self._head
        if not started and not head:
            self._turn.fail(EMPTY)
        elif started or (sse.may_begin(head) and not self._garbled):
            self._turn.end(complete=self._ended)
        elif self._garbled:
            self._fail(_GARBLED)
        else:
            self._turn.fail(error.decode(200, head))

    # ---- one JSON value ------------------------------------------------------------------

    def _read_whole(self, data: bytes) -> None:
        try:
            value = json.load(data, decode_in_pieces)
        except ValueError as problem:
            self._turn.fail(error.unreadable(problem))
            return
        answered = isinstance(value, dict) and value.get("choices")
        fault = None if answered else error.describe(value)
        if fault is not None:
            self._turn.fail(fault)
        elif missing := _missing(value):
            self._fail(f"The model's server answered with {missing}.")
        else:
            self._read(value)
            self._pass_ends()
            self._turn.end(complete=True)

    # ---- chunks, and whole answers -------------------------------------------------------

    def _read(self, value: dict[str, JSON]) -> None:
        """One chunk, or one whole answer."""
        self._started, self._head = True, b""
        choices, turn = value.get("choices"), self._turn
        if isinstance(choices, list) and len(choices) > self.most:
            self._fail(f"The model's server sent {len(choices)} choices at once.")
            return
        failed = value.get("error") or value.get("object") == "error"
        fault = error.describe(value) if failed else None
        if fault is None or choices:
            self._header(value)
        if (counted := decode_usage(value.get("usage"), self.name)) is not None:
            turn.usage = counted
        for position, choice in enumerate(choices if isinstance(choices, list) else ()):
            if isinstance(choice, dict):
                self._choice(choice, position, fault)
        if fault is not None:
            turn.fail(fault)

    def _header(self, value: dict[str, JSON]) -> None:
        extra = rest(value, _CHUNK)
        if self._beside is None:
            self._beside, model = extra, value.get("model")
            itself = {n: value[n] for n in ("id", "created") if value.get(n) is not None}
            given = {name: v for name, v in (("upstream", itself), (self.name, extra)) if v}
            self._turn.header(model if isinstance(model, str) else None, given)
        elif fresh := {name: v for name, v in extra.items() if self._beside.get(name) != v}:
            self._beside |= fresh
            self._turn.header(extra={self.name: fresh})

    def _choice(self, choice: dict[str, JSON], position: int, failed: Fault | None) -> None:
        turn, given, ended = self._turn, choice.get("index"), choice.get("finish_reason")
        if ended and (native := choice.get("native_finish_reason")):  # a router may say stop for it
            ended = native if decode_finish(native, {}) == "error" else ended
        # The number of a choice is its index, or its position where the index is invalid.
        number = given if type(given) is int and 0 <= given < self.most else position
        turn.expect(number)
        reason = decode_finish(ended, self.words)
        fault = (failed or error.broken_off(ended)) if reason == "error" else None
        if choice.get("error"):
            fault = error.describe({"error": choice["error"]})
        beside = rest(choice, self.fields)
        more = self._content(number, choice, beside, ends=reason is not None and fault is None)
        if beside and (more is None or reason is not None):
            self._ends.setdefault(number, {}).update(beside)
            beside = {}
        if beside or more:
            raw = {"index": number, **beside, **({"delta": more} if more else {})}
            turn.progress(None, "raw", {self.name: {CHOICES: [raw]}})
        if fault is not None:
            turn.fail(fault)
        elif reason is not None:
            ended_by = self._ends.get(0, {}).get("stop_reason")  # vLLM's; else an id, or null
            if number == 0 and isinstance(ended_by, str):
                turn.stop_sequence = ended_by
            turn.finish(reason, number)

    def _pass_ends(self) -> None:
        """Pass on the unknown fields of finished choices, at the end."""
        if self._ends:
            ends = [{"index": number, **fields} for number, fields in sorted(self._ends.items())]
            self._turn.header(extra={self.name: {CHOICES: ends}})


def _missing(value: JSON) -> str | None:
    """Why a JSON value is no answer."""
    if not isinstance(value, dict):
        return f"{json.kind(value)}, and not with an object"
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices:
        return "no choices"
    if not isinstance(choices[0], dict):
        return f"a choice that is {json.kind(choices[0])}"
    content = (choices[0].get(name) for name in ("message", "delta", "text"))
    whole = any(isinstance(each, dict | str) for each in content)
    return None if whole else "a choice without a message"


# ---- answers, encoded --------------------------------------------------------------------

MAX_REPEATED = 8 * 1024
"""Bytes of an answer's fields that each chunk repeats; if there are more, unknown ones are only in
the first chunk."""
OPENING, CLOSING = sse.frame(b"\0").split(b"\0")


class ChoicesEncoder:
    """Encodes the events of one answer as chunks, with the options of the request.

    A wire provides the name of a chunk (`object`), the content of an empty choice
    (`blank`), and its finish reasons.
    """

    name: ClassVar[str]
    """The key of the wire in every `extra`."""
    id_prefix: ClassVar[str]
    object: ClassVar[str]
    blank: ClassVar[dict[str, JSON]]
    reasons: dict[str, str]

    def __init__(self, request: Request, dialect: Dialect) -> None:
        options = request.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._request = request
        self._dialect = dialect
        self._head = self._tail = b""  # a chunk before and after its choice
        self._envelope: dict[str, JSON] = {}
        self._ends: dict[int, dict[str, JSON]] = {}  # unknown fields of the ends of choices
        self._choices: dict[int, Any] = {}  # what the wire remembers of each choice
        self._items: list[Any] = []  # and of each item
        self._over = False

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment, or a chunk that adds nothing; empty outside of an answer."""
        if not self._head or self._over:
            return b""
        return self._chunk(0, self.blank) if data else sse.comment("alive")

    def _chunk(
        self,
        number: int,
        content: dict[str, JSON],
        *,
        logprobs: JSON = None,
        reason: str | None = None,
        more: dict[str, JSON] | None = None,
    ) -> bytes:
        """One chunk of one choice; `more` are fields that this wire does not know."""
        choice = {"index": number, **content, "logprobs": logprobs, "finish_reason": reason}
        return self._head + json.dump(merge(choice, more) if more else choice) + self._tail

    def _unknown(self, event: Started | Finished) -> dict[str, JSON]:
        """The unknown fields of the answer; those of its choices are stored."""
        extra = dict((event.extra or {}).get(self.name, {}))
        self._ends |= {each["index"]: each for each in extra.pop(CHOICES, ())}
        return extra

    def _start(self, event: Started) -> bytes:
        known: dict[str, JSON] = {"id": self.id_prefix + event.id, "object": self.object}
        known |= {"created": event.created_at, "model": event.model}
        self._envelope = merge(dict(known), self._unknown(event))
        self._head = OPENING + json.dump(self._envelope)[:-1] + b',"choices":['
        self._tail = (b'],"usage":null}' if self._wants_usage else b"]}") + CLOSING
        if not self._head[MAX_REPEATED:]:
            return b""
        first = self._chunk(0, self.blank)
        self._envelope = known
        self._head = OPENING + json.dump(known)[:-1] + b',"choices":['
        return first

    def _progress(self, event: Progress) -> bytes:
        """The unknown fields in the middle of an answer."""
        raw = (event.data or {}).get(self.name, {}) if event.state == "raw" else {}
        given = raw.get(CHOICES, ())
        return b"".join([self._chunk(each["index"], self.blank, more=each) for each in given])

    def _open(self, number: int) -> bytes:
        """The chunks before the end of a choice without content."""
        return b""

    def _finish(self, event: Finished) -> bytes:
        self._over = True
        last = self._envelope | self._unknown(event)
        counted = event.usage if self._wants_usage else None
        encoded = b""
        for number, reason in enumerate(event.reasons):
            encoded += self._open(number)
            if counted is None and number == len(event.reasons) - 1:
                self._head = OPENING + json.dump(last)[:-1] + b',"choices":['
            word = self.reasons.get(reason, "stop")
            more = self._ends.get(number)
            encoded += self._chunk(number, self.blank, reason=word, more=more)
        if counted is not None:
            last |= {"choices": [], "usage": encode_usage(counted, self.name)}
            encoded += sse.frame(json.dump(last))
        return encoded + sse.DONE
