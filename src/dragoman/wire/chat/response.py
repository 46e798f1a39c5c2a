"""Says a whole answer: what a reader of the stream would have put together, as one object.

What several items hold is one message here, in the order of the items: reasoning, content,
refusal, audio and calls each have one field.
"""

from __future__ import annotations

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
from dragoman.wire import body
from dragoman.wire.dialect import Dialect

from . import finish, logprobs, notes, usage
from .encoder import CHOICES, ID_PREFIX
from .extras import NAME, join, kept, restore
from .plain import only_text
from .request import LEGACY
from .turns import encode_call

OBJECT = "chat.completion"


def encode(response: Response, request: Request, dialect: Dialect) -> bytes:
    """The body of an answer."""
    extra = dict(kept(response.extra))
    ends = {each["index"]: dict(each) for each in extra.pop(CHOICES, ())}
    choices: list[JSON] = []
    text = None if ends or request.sampling.logprobs else only_text(response)
    for number, reason in enumerate(response.reasons):
        if text is not None and number == 0:
            choices.append(_plain(text, reason, request))
            continue
        writer = _Writer(request, dialect)
        for item in response.choice(number):
            writer.add(item)
        end = ends.get(number, {})
        choice = {
            "index": number,
            "message": writer.message(),
            "logprobs": writer.logprobs(end.pop("logprobs", {}).get("content", [])),
            "finish_reason": finish.encode(reason, legacy=writer.legacy),
        }
        choices.append(join(choice, end))
    said = {
        "id": ID_PREFIX + response.id,
        "object": OBJECT,
        "created": response.created_at,
        "model": response.model,
        "choices": choices,
    }
    if response.usage is not None:
        said["usage"] = usage.encode(response.usage)
    return body.dump(join(said, extra))


def _plain(text: str, reason: str, request: Request) -> JSON:
    """A choice that is one text: what a writer would put together, without one."""
    legacy = bool(request.extra and LEGACY in request.extra)
    return {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None, "annotations": []},
        "logprobs": None,
        "finish_reason": finish.encode(reason, legacy=legacy),
    }


class _Writer:
    """One message, put together from the items of one choice."""

    def __init__(self, request: Request, dialect: Dialect) -> None:
        self.legacy = bool(request.extra and LEGACY in request.extra)
        self._wants_logprobs = bool(request.sampling.logprobs)
        self._reasoning_out = dialect.reasoning_out
        self._thoughts: list[str] = []
        self._content: list[str] | None = None
        self._refusal: list[str] | None = None
        self._notes: list[JSON] = []
        self._audio: dict[str, JSON] | None = None
        self._calls: list[dict[str, JSON]] = []
        self._function_call: JSON = None
        self._tokens: list[Token] = []
        self._refusal_tokens: list[Token] = []
        self._more: dict[str, JSON] = {}

    def add(self, item: Item) -> None:
        """One item more."""
        match item:
            case Message():
                self._message(item)
            case Reasoning():
                self._reasoning(item)
            case FunctionCall() if self.legacy and not (self._calls or self._function_call):
                self._function_call = encode_call(item)["function"]
            case FunctionCall() | CustomToolCall():
                self._calls.append(encode_call(item))
            case Unknown(wire=wire) if wire == NAME:
                self._calls.append({"type": item.kind, **item.value})

    def message(self) -> dict[str, JSON]:
        """The message. Content and refusal are always there, if only as null."""
        said: dict[str, JSON] = {
            "role": "assistant",
            "content": None if self._content is None else "".join(self._content),
            "refusal": None if self._refusal is None else "".join(self._refusal),
            "annotations": self._notes,
        }
        if thought := "".join(self._thoughts):
            said |= dict.fromkeys(self._reasoning_out, thought)
        optional = {
            "audio": self._audio,
            "tool_calls": self._calls or None,
            "function_call": self._function_call,
        }
        said |= {name: value for name, value in optional.items() if value is not None}
        return join(said, self._more)

    def logprobs(self, late: list[JSON]) -> JSON:
        """The tokens, where they were asked for or given; `late` are those of no text."""
        content = logprobs.encode(self._tokens) + late
        refusal = logprobs.encode(self._refusal_tokens) or None
        if not (content or refusal or self._wants_logprobs):
            return None
        return {"content": content if content or self._wants_logprobs else None, "refusal": refusal}

    def _message(self, item: Message) -> None:
        for part in item.parts:
            match part:
                case Text():
                    self._text(part)
                case Refusal():
                    self._refusal = [*(self._refusal or ()), part.text]
                    self._refusal_tokens += part.tokens
                case Audio():
                    self._audio = join(_heard(part), self._audio or {})
        join(self._more, kept(item.extra))

    def _text(self, part: Text) -> None:
        content = self._content = self._content or []
        found = (notes.encode(note, sum(map(len, content))) for note in part.annotations)
        self._notes += [note for note in found if note is not None]
        content.append(part.text)
        self._tokens += part.tokens

    def _reasoning(self, item: Reasoning) -> None:
        parts = [p for p in (*item.summary, *item.content) if isinstance(p, Thought | Summary)]
        thought = "\n\n".join(part.text for part in parts)
        for part in parts:
            self._tokens += part.tokens if isinstance(part, Thought) else ()
        tags = (item.extra or {}).get("inline")
        if tags is None:
            self._thoughts.append(thought)
        else:
            tagged = tags.get("open", "") + thought + tags.get("close", "")
            self._content = [*(self._content or ()), tagged]
        join(self._more, kept(item.extra))


def _heard(audio: Audio) -> dict[str, JSON]:
    facts: dict[str, JSON] = {"id": audio.id, "data": audio.data}
    facts |= {"transcript": audio.transcript, "expires_at": audio.expires_at}
    return restore({name: fact for name, fact in facts.items() if fact is not None}, audio.extra)
